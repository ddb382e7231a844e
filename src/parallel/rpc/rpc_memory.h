/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/rpc/rpc_memory.h: memory for large arrays that are received. Fresh
 * memory costs as much as the copy into it, because the system clears every
 * page when it is touched first. So blocks are kept for the next array of about
 * that size, of all agents of this process together, up to a bound; the last
 * agent that ends frees them. Any thread. */
#ifndef OARI_PARALLEL_RPC_RPC_MEMORY_H
#define OARI_PARALLEL_RPC_RPC_MEMORY_H

#include <oarsong/tensor.h>

/* An agent begins and ends. */
void oari_rpc_memory_open(void);
void oari_rpc_memory_close(void);

/* Gives storage of that many bytes, not cleared, with one reference. Its memory
 * comes back here when the last reference goes. */
oar_status oari_rpc_memory_take(size_t bytes, oar_storage **storage);

#endif
