/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/rpc/rpc_times.h: how long calls take, counted in buckets. Guarded by
 * the agent's lock. */
#ifndef OARI_PARALLEL_RPC_RPC_TIMES_H
#define OARI_PARALLEL_RPC_RPC_TIMES_H

#include <oarsong/rpc.h>

#include "base/list.h"

/* p50_ns and p99_ns are not kept, but found when they are read. */
typedef struct oari_rpc_made {
    oari_link link;
    oar_rpc_times times;
    char name[]; /* of a function of other ranks */
} oari_rpc_made;

/* Counts a call. */
void oari_rpc_count_time(oar_rpc_times *times, int64_t ns, int failed);
/* Counts a call of this rank. */
void oari_rpc_count_made(oar_rpc *agent, const char *name, int64_t ns,
                         int failed);
void oari_rpc_free_times(oar_rpc *agent);

#endif
