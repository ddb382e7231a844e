/* SPDX-License-Identifier: Apache-2.0 */
/* base/clock.h: a raw counter, which is cheap to read (a few ns) and counts
 * oari_ticks_per_second, and CLOCK_MONOTONIC with its deadlines. */
#ifndef OARI_BASE_CLOCK_H
#define OARI_BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "base/plugin_export.h"

/* Returns the raw counter. */
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

/* Returns the rate of the raw counter. Where the machine does not say it, the
 * first call measures it (about 1 ms). */
double oari_ticks_per_second(void);

/* Returns CLOCK_MONOTONIC in nanoseconds. */
static inline int64_t oari_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Both clocks at one moment. */
typedef struct oari_moment {
    int64_t ns;
    uint64_t ticks;
} oari_moment;

/* Returns both clocks. It reads them a few times, because the thread may lose
 * its core between one and the other. */
oari_moment oari_moment_now(void);

/* Returns the time timeout_ms from now; OARI_NEVER for a negative timeout. */
OARI_FOR_PLUGINS int64_t oari_deadline(int64_t timeout_ms);

/* Returns the milliseconds left, rounded up, for poll(2): -1 for OARI_NEVER, 0
 * after the deadline. */
OARI_FOR_PLUGINS int oari_deadline_left_ms(int64_t deadline_ns);

#define OARI_NEVER INT64_MAX

/* Writes a duration as "14 s" or "0.3 s". */
void oari_duration_text(int64_t ns, char *text, size_t bytes);

#endif
