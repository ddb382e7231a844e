/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/rpc/rpc_stream.h: replies in parts.
 *
 * The caller says with the call how many parts it takes ahead (head.status),
 * and with its limits how many bytes. The function sends a part while fewer
 * than that are out, so one part more than the bytes may be out; each counts
 * until the caller gives credit for it (CREDIT), which it does for several at
 * once: when half of either has been taken. So neither side can wait for the
 * other: a function waits only if all is out, and all that is out will be
 * taken. Parts and the answer behind them arrive in order. */
#ifndef OARI_PARALLEL_RPC_RPC_STREAM_H
#define OARI_PARALLEL_RPC_RPC_STREAM_H

#include "parallel/rpc/rpc_agent.h"

enum { OARI_RPC_PARTS = 65536 }; /* that may be taken ahead, at most */

/* The parts of a call that are here; belongs to its future. */
struct oari_rpc_stream {
    int room;            /* parts */
    int first;           /* the next to take */
    atomic_int count;    /* parts that are here */
    int taking;          /* a thread is in oar_future_next */
    int paid_later;      /* parts taken for which no credit was given */
    uint64_t paid_bytes; /* and their bytes */
    oar_rpc_message *part[];
};

/* Makes one for that many parts, 1 to OARI_RPC_PARTS; NULL: no memory. */
oari_rpc_stream *oari_rpc_stream_create(int room);
void oari_rpc_stream_destroy(oari_rpc_stream *stream);
/* Drops the parts that nobody has taken; with the lock. NULL is fine. */
void oari_rpc_stream_clear(oari_rpc_stream *stream);

/* OAR_E_ARG unless a call is one without parts. */
oar_status oari_rpc_refuse_parts(int parts, const char *call);
/* A stream may be waited for once all its parts are taken, or it has failed:
 * else OAR_E_STATE. */
oar_status oari_rpc_stream_check_ended(oar_future *future);

/* Whether a part may come now, and that it has; with the lock. */
int oari_rpc_part_fits(oar_rpc *agent, int from, const oari_rpc_head *head);
void oari_rpc_count_part(oar_rpc *agent, uint64_t number, uint64_t bytes);
/* Messages as they come, in order, without the lock. */
void oari_rpc_take_part(oar_rpc *agent, int from, uint64_t number,
                        oar_rpc_message *part, oar_status status);
void oari_rpc_take_credit(oar_rpc *agent, int from, const oari_rpc_head *head);

#endif
