/* SPDX-License-Identifier: Apache-2.0 */
/* base/fork.h: detects a child made by fork and closes its copies of
 * descriptors. */
#ifndef OARI_BASE_FORK_H
#define OARI_BASE_FORK_H

#include <stdatomic.h>

extern atomic_uint oari_fork_count;

/* Returns a number that is one higher in every child: an object with another
 * number was made by a parent. */
static inline unsigned oari_fork_generation(void)
{
    return atomic_load_explicit(&oari_fork_count, memory_order_relaxed);
}

/* Begins to count. Call it before the first oari_fork_generation. */
void oari_fork_watch(void);

/* Makes children close a descriptor at once, because peers take an open one for
 * a sign of life. Returns fd. Call oari_fork_forget before closing it. */
int oari_fork_guard(int fd);

/* Undoes oari_fork_guard. */
void oari_fork_forget(int fd);

/* Forgets a descriptor and closes it; -1 is fine. */
void oari_fork_close(int fd);

#endif
