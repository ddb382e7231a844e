/* SPDX-License-Identifier: Apache-2.0 */
/* shared.h: memory that peers on the same host can reach.
 *
 * Collectives over such memory act on the peers' buffers in place: no copy, no
 * kernel. It is ordinary memory to the program that owns it. Each process owns
 * its segments and is the only one that allocates in them; nothing has a name
 * in a file system, so nothing is left behind. A child made by fork does not
 * have this memory: touching it there is a fault (but see
 * oar_shared_copy_on_fork).
 */
#ifndef OARSONG_SHARED_H
#define OARSONG_SHARED_H

#include <oarsong/status.h>

OAR_BEGIN_DECLS

/* Gives zeroed memory that begins on a page of its own. Any thread. May be
 * called before any group exists. */
OAR_API oar_status oar_shared_alloc(size_t bytes, void **memory);

/* Gives it back; NULL is fine. Any thread. No operation may be using it. */
OAR_API void oar_shared_free(void *memory);

/* 1: children made by fork from now on have a copy of this memory, at the same
 * place, which peers do not reach: what a child writes there stays with it. A
 * page that it has not written to may show what its parent writes later. For
 * programs whose workers read what they inherit. */
OAR_API void oar_shared_copy_on_fork(int on);

/* Whether peers can reach all these bytes. Not every byte of a segment can be
 * reached for ever: what an aborted operation might still have touched is made
 * private (docs/shared-memory.md). */
OAR_API int oar_shared_reachable(const void *memory, size_t bytes);

OAR_END_DECLS

#endif
