/* SPDX-License-Identifier: Apache-2.0 */
/* standin/access.h: what block.cc tells the functions that look at accesses. */
#ifndef TESTS_STANDIN_ACCESS_H
#define TESTS_STANDIN_ACCESS_H

#include <cstddef>

namespace standin
{

/* A block begins: nothing is written there yet. which: 0 static, 1 dynamic;
 * start may be NULL. */
void watch_shared(int which, char *start, std::size_t bytes);

/* A launch begins: this memory is its arguments. */
void watch_arguments(const void *start, const void *end);

/* Whether kernels run. */
void watch(bool on);

/* Something else than a kernel has written this. */
void note_write(const void *to, std::size_t bytes);

} // namespace standin

#endif
