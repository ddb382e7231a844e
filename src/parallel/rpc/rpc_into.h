/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/rpc/rpc_into.h: arrays of a reply that go straight into memory of
 * the caller.
 *
 * The memory is written only while the call is not done. So from the head of
 * such a reply until all of it is there the call is `arriving`: it cannot be
 * cancelled, and its deadline, the death of the rank and the end of the agent
 * reach it as failures of its receives, which the group ends so that nothing
 * touches their memory any more. A reply that comes later goes into memory of
 * the agent. */
#ifndef OARI_PARALLEL_RPC_RPC_INTO_H
#define OARI_PARALLEL_RPC_RPC_INTO_H

#include "parallel/rpc/rpc_agent.h"

/* Where one array of a reply goes. */
typedef struct oari_rpc_place {
    void *data;
    size_t bytes;
    oar_dtype dtype;
    int64_t count;
    oar_tensor *tensor; /* whose shape the array must have; NULL: any */
} oari_rpc_place;

struct oari_rpc_into {
    int count;
    oari_rpc_place place[];
};

/* Makes the places that the options of a call name; *into is NULL if there are
 * none. OAR_E_ARG, OAR_E_DEVICE, OAR_E_STATE. */
oar_status oari_rpc_into_create(const oar_rpc_call_opts *opts,
                                oari_rpc_into **into);
void oari_rpc_into_destroy(oari_rpc_into *into);

/* The head of an answer came: if its large arrays are as large as the places
 * for them, fills in where each goes and marks the call as arriving; else
 * returns 0. With the lock. */
int oari_rpc_into_begin(oar_rpc *agent, const oari_rpc_head *head,
                        const uint64_t *array_bytes, void **data,
                        int64_t *deadline_ns);
/* The call is not arriving any more; with the lock. */
void oari_rpc_into_end(oar_rpc *agent, oari_rpc_pending *pending);

/* Compares a whole reply with the places, and copies what is not in them. */
oar_status oari_rpc_into_fill(const oari_rpc_into *into, const char *name,
                              const oar_rpc_message *reply);

#endif
