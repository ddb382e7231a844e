/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/rpc/rpc_ref.h: the table of values, for rpc_ref.c and
 * rpc_ref_notes.c. All of it is called with refs_lock. */
#ifndef OARI_PARALLEL_RPC_RPC_REF_H
#define OARI_PARALLEL_RPC_RPC_REF_H

#include "parallel/rpc/rpc_agent.h"

/* Returns whether this rank owns the value. */
int oari_rref_is_own(const oar_rref *rref);
/* The rank that made a value by oar_rpc_remote. */
int oari_rref_maker(uint64_t id);
/* Which of the owner's lives the value belongs to (rpc_rejoin.c). */
int oari_rref_owner_life(uint64_t id);

oar_rref *oari_rref_find(oar_rpc *agent, int owner, uint64_t id);
oar_rref *oari_rref_add(oar_rpc *agent, int owner, uint64_t id);
/* Finds a value of this rank; if it is yet to be made, makes a place for it. */
oar_rref *oari_rref_find_own(oar_rpc *agent, uint64_t id);

/* Appends a control message, to be sent soon. */
void oari_rref_add_note(oar_rpc *agent, int to, oari_rpc_kind kind, uint64_t id,
                        uint32_t number, unsigned flags);
/* Sends the HELDs that were put off until NOTED. */
void oari_rref_confirm_owed(oar_rref *rref);

/* Calls fn(rref, arg) for each value in the table. */
void oari_rref_each(oar_rpc *agent, void (*fn)(oar_rref *rref, void *arg),
                    void *arg);
/* Has the value broken, for that reason. */
void oari_rref_break(oar_rref *rref, const oar_error *error);
/* After whatever may have been the last use of a value. */
void oari_rref_end(oar_rref *rref);

#endif
