/* SPDX-License-Identifier: Apache-2.0 */
/* base/thread.h: how many cores there are for us, threads of the library's own,
 * and how to be kind to the others. */
#ifndef OARI_BASE_THREAD_H
#define OARI_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

#include <oarsong/status.h>

#include "base/plugin.h"

/* Cores this process may use: its affinity mask, cut by the cgroup's quota. At
 * least 1. */
int oari_cpus(void);

/* That mask, a bit for each core. */
void oari_cpu_bits(uint64_t *bits, int words);

/* Starts a thread with this name, of which 15 characters count. All signals are
 * blocked in it, so that the program's own threads get them; only those that an
 * instruction raises (SIGSEGV and its like) are not, so that the program's
 * handlers see them. The caller joins or detaches the thread. */
OARI_FOR_PLUGINS oar_status oari_thread_start(pthread_t *thread,
                                              const char *name,
                                              void *(*body)(void *arg),
                                              void *arg);

/* A condition variable on the monotonic clock, and a wait on it: 0 when the
 * deadline has passed. */
OARI_FOR_PLUGINS void oari_cond_init(pthread_cond_t *cond);
OARI_FOR_PLUGINS int oari_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock,
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
