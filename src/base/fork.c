/* SPDX-License-Identifier: Apache-2.0 */
/* fork: a bitmap of the descriptors that a child closes, and a count of
 * generations. The bitmap has only atomics, because a child may not take a lock
 * that another thread of its parent may hold. */
#include "base/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

enum { WORDS = 1024 }; /* descriptors up to 65535; later ones stay open */

atomic_uint oari_fork_count;
static _Atomic uint64_t guarded[WORDS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void close_guarded(void)
{
    atomic_fetch_add(&oari_fork_count, 1);
    for (int i = 0; i < WORDS; i++) {
        uint64_t word = atomic_exchange(&guarded[i], 0);
        for (int bit = 0; word != 0; bit++, word >>= 1)
            if (word & 1)
                close(i * 64 + bit);
    }
}

static void install_handler(void)
{
    pthread_atfork(NULL, NULL, close_guarded);
}

void oari_fork_watch(void)
{
    pthread_once(&once, install_handler);
}

int oari_fork_guard(int fd)
{
    oari_fork_watch();
    if (fd >= 0 && fd < WORDS * 64)
        atomic_fetch_or(&guarded[fd / 64], UINT64_C(1) << fd % 64);
    return fd;
}

void oari_fork_forget(int fd)
{
    if (fd >= 0 && fd < WORDS * 64)
        atomic_fetch_and(&guarded[fd / 64], ~(UINT64_C(1) << fd % 64));
}

void oari_fork_close(int fd)
{
    if (fd < 0)
        return;
    oari_fork_forget(fd);
    close(fd);
}
