/* SPDX-License-Identifier: Apache-2.0 */
/* base/clock.h: time. The raw counter is cheap (a few ns) and counts at a rate
 * that oari_ticks_per_second tells; the clock proper is CLOCK_MONOTONIC. */
#ifndef OARI_BASE_CLOCK_H
#define OARI_BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "base/plugin.h"

static inline uint64_t oari_ticks(void)
{
#if defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#elif defined(__x86_64__)
    return __rdtsc();
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
#endif
}

/* Measured once (about 1 ms) where the machine does not say it. */
double oari_ticks_per_second(void);

/* Nanoseconds of CLOCK_MONOTONIC. */
static inline int64_t oari_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* A point in time timeout_ms from now; a negative timeout never comes. */
OARI_FOR_PLUGINS int64_t oari_deadline(int64_t timeout_ms);

/* Milliseconds left, rounded up, for poll(2): -1 for never, 0 when past. */
OARI_FOR_PLUGINS int oari_deadline_left_ms(int64_t deadline_ns);

#define OARI_NEVER INT64_MAX

/* Writes how long that is: "14 s" or "0.3 s". */
void oari_seconds_text(int64_t ns, char *text, size_t bytes);

#endif
