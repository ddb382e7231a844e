/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/rpc/rpc_map.h: arrays that lie in a window (window.h) and are mapped
 * by a rank of this host, not sent.
 *
 * The values of a message have the window's token and where in it the array
 * begins. The sender keeps the window, and puts off the array's drop, until the
 * receiver has given the array up (RETURNED, with the number of the message) or
 * is gone; the receiver keeps its mapping as long as a message or tensor needs
 * it, whatever happens to the sender, and windows that were used in the last
 * second so as not to map them again. */
#ifndef OARI_PARALLEL_RPC_RPC_MAP_H
#define OARI_PARALLEL_RPC_RPC_MAP_H

#include "parallel/rpc/rpc_agent.h"

/* Finds out which ranks can map memory of which; a collective. */
oar_status oari_rpc_map_agree(oar_rpc *agent, oar_group *group);
/* Gives up all that was lent and all windows that are kept, and forgets what is
 * borrowed; the agent ends. */
void oari_rpc_map_close(oar_rpc *agent);

/* ---- the sender ---------------------------------------------------------- */

/* What a message lends, until its receiver returns it. */
struct oari_rpc_lent {
    oari_link link; /* in the list of its peer */
    uint64_t sequence;
    oar_rpc_message *held; /* has the windows and the drops of the arrays */
};

/* Returns whether arrays of the message are mapped by that rank. */
int oari_rpc_map_applies(const oar_rpc *agent, int to,
                         const oar_rpc_message *message);
/* Takes what a message lends out of it. */
oar_status oari_rpc_map_lend(oar_rpc_message *message, oari_rpc_lent **lent);
void oari_rpc_map_free_lent(oari_rpc_lent *lent);
/* RETURNED came; a rank is gone. Without the lock. */
void oari_rpc_map_returned(oar_rpc *agent, int from, uint64_t sequence);
void oari_rpc_map_rank_gone(oar_rpc *agent, int rank);

/* ---- the receiver -------------------------------------------------------- */

/* Maps the arrays of a message that came and puts them among those that were
 * received. */
oar_status oari_rpc_map_arrays(oar_rpc *agent, int from, uint64_t sequence,
                               oar_rpc_message *message);
/* Tells the sender that nothing of such a message is used. */
void oari_rpc_map_return(oar_rpc *agent, int from, uint64_t sequence);
/* Gives up windows that were not used for a second, and returns when to look
 * again; with the lock. */
int64_t oari_rpc_map_expire(oar_rpc *agent, int64_t now_ns);

#endif
