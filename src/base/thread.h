/* SPDX-License-Identifier: Apache-2.0 */
/* base/thread.h: how many cores there are for us, and how to be kind to them.
 */
#ifndef OARI_BASE_THREAD_H
#define OARI_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

/* Cores this process may use: its affinity mask, cut by the cgroup's quota. At
 * least 1. */
int oari_cpus(void);

/* That mask, a bit for each core. */
void oari_cpu_bits(uint64_t *bits, int words);

/* A condition variable on the monotonic clock, and a wait on it: 0 when the
 * deadline has passed. */
void oari_cond_init(pthread_cond_t *cond);
int oari_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock,
                   int64_t deadline_ns);

/* In a loop that looks again and again for something: yields at first, then
 * sleeps for longer and longer, up to a millisecond. *since: 0 before the first
 * time. */
void oari_rest(int64_t *since);

/* In a loop that waits for another core. */
static inline void oari_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

#endif
