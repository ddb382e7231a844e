/* SPDX-License-Identifier: Apache-2.0 */
/* base/thread.h: the cores of this process, the library's own threads, and ways
 * to wait. */
#ifndef OARI_BASE_THREAD_H
#define OARI_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

#include <oarsong/status.h>

#include "base/plugin_export.h"

/* Returns how many cores this process may use: those of its affinity mask, but
 * no more than the cgroup's quota, rounded up. At least 1. */
int oari_cpus(void);

/* Gives the affinity mask, a bit for each core. */
void oari_cpu_bits(uint64_t *bits, int words);

/* Starts a thread with this name, of which 15 characters count. The thread
 * blocks all signals, so that the program's own threads get them, except those
 * that an instruction raises (SIGSEGV and the like), which the program's
 * handlers should see. The caller joins or detaches the thread. */
OARI_FOR_PLUGINS oar_status oari_thread_start(pthread_t *thread,
                                              const char *name,
                                              void *(*body)(void *arg),
                                              void *arg);

/* Makes a condition variable on the monotonic clock. */
OARI_FOR_PLUGINS void oari_cond_init(pthread_cond_t *cond);

/* Waits on a condition variable; returns 0 if the deadline has passed. */
OARI_FOR_PLUGINS int oari_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock,
                                    int64_t deadline_ns);

/* Pauses in a polling loop: yields at first, then sleeps for longer and longer,
 * up to a millisecond. *since is 0 before the first call. */
void oari_backoff(int64_t *since);

/* Tells the processor that a loop waits for another core. */
static inline void oari_cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

/* Fetches a cache line that this core is about to write. */
static inline void oari_prefetch_to_write(void *line)
{
#if defined(__x86_64__) /* the builtin would only fetch it to read */
    __asm__ volatile("prefetchw %0" ::"m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

#endif
