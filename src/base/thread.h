/* SPDX-License-Identifier: Apache-2.0 */
/* base/thread.h: how many cores there are for us, and how to be kind to them.
 */
#ifndef OARI_BASE_THREAD_H
#define OARI_BASE_THREAD_H

/* Cores this process may use: its affinity mask, cut by the cgroup's quota. At
 * least 1. */
int oari_cpus(void);

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
