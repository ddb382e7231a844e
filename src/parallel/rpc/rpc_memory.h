/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/rpc/rpc_memory.h: memory for large arrays that are received, and for
 * messages. Fresh memory of an array costs as much as the copy into it, because
 * the system clears every page when it is touched first. So blocks are kept for
 * the next array of about that size, of all agents of this process together, up
 * to a bound; the last agent that ends frees them. The same for the records of
 * messages, of which a call needs four. Any thread. */
#ifndef OARI_PARALLEL_RPC_RPC_MEMORY_H
#define OARI_PARALLEL_RPC_RPC_MEMORY_H

#include <oarsong/rpc.h>

/* An agent begins and ends. */
void oari_rpc_memory_open(void);
void oari_rpc_memory_close(void);

/* Gives storage of that many bytes, not cleared, with one reference. Its memory
 * comes back here when the last reference goes. */
oar_status oari_rpc_memory_take(size_t bytes, oar_storage **storage);

/* Memory for a message, not cleared; NULL: none. And back. */
oar_rpc_message *oari_rpc_memory_take_message(void);
void oari_rpc_memory_give_message(oar_rpc_message *message);

#endif
