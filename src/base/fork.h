/* SPDX-License-Identifier: Apache-2.0 */
/* base/fork.h: what a child made by fork must not have. */
#ifndef OARI_BASE_FORK_H
#define OARI_BASE_FORK_H

#include <stdatomic.h>

/* Grows by one in every child: whoever remembers another number was made by a
 * parent. */
extern atomic_uint oari_fork_count;
static inline unsigned oari_fork_generation(void)
{
    return atomic_load_explicit(&oari_fork_count, memory_order_relaxed);
}

/* Begins counting. To be called before a generation is first remembered. */
void oari_fork_watch(void);

/* A descriptor that a child closes at once: peers take its being open for a
 * sign of life. Gives back fd. Forget it before closing it. */
int oari_fork_guard(int fd);
void oari_fork_forget(int fd);

/* Forgets and closes; -1 is fine. */
void oari_fork_close(int fd);

#endif
