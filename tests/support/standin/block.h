/* SPDX-License-Identifier: Apache-2.0 */
/* standin/block.h: where threads of a block meet. Each call names the place in
 * the source where the kernel made it. */
#ifndef TESTS_STANDIN_BLOCK_H
#define TESTS_STANDIN_BLOCK_H

#include <cstddef>

namespace standin
{

/* A call of an intrinsic: its name and where it stands. */
struct site {
    const char *what, *file;
    int line;
};

#define STANDIN_AT \
    const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* Waits for all threads of the block; returns how many of them gave a
 * predicate that is not zero. */
int meet_block(int predicate, site at);

/* Waits for the lanes of the mask; the last of them runs fn, whose lane[i] is
 * what lane i gave (NULL: not in the mask, or not in the block). */
typedef void (*lanes_fn)(void *const lane[32], unsigned mask);
void meet_lanes(unsigned mask, void *mine, lanes_fn fn, site at);

/* All 32 lanes of a warp meet, and fn computes over what each gave by
 * reference: how mma.sync and its like are written for the host.
 *
 *     struct mma { float d[4]; unsigned a[4], b[2]; };
 *     mma mine = { ... };
 *     standin::warp_meet(mine, [](mma *const lane[32]) { ... }, "mma.sync");
 */
void warp_of_32(site at);
template <class T, class Fn>
void warp_meet(T &mine, const Fn &fn, const char *what, STANDIN_AT)
{
    struct given {
        T *mine;
        const Fn *fn;
    } me = { &mine, &fn };
    warp_of_32({ what, file, line });
    meet_lanes(0xffffffffu, &me,
               [](void *const lane[32], unsigned) {
                   T *typed[32];
                   for (int i = 0; i < 32; i++)
                       typed[i] = static_cast<given *>(lane[i])->mine;
                   (*static_cast<given *>(lane[0])->fn)(typed);
               },
               { what, file, line });
}

/* Copies that a thread starts and that are there when it has waited for them
 * (cp.async): those of a group are copied by the wait for it, so that a wait
 * that is missing shows. */
void copy_later(void *to, const void *from, std::size_t bytes);
void commit_copies();
void wait_copies(int groups_left, site at);

/* The dynamic shared memory of the block, aligned to 128 bytes. */
void *shared_memory();
std::size_t shared_memory_bytes();

/* Ends the process: the kernel, this thread and this place, then why. */
[[noreturn]] void fail(site at, const char *why);

} // namespace standin

#endif
