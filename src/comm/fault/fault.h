/* SPDX-License-Identifier: Apache-2.0 */
/* comm/fault/fault.h: how a group ends, and which ranks are gone. */
#ifndef OARI_COMM_FAULT_FAULT_H
#define OARI_COMM_FAULT_FAULT_H

#include "comm/engine/engine.h"

/* Fails with OAR_E_STATE in a child of the process that made the group. */
oar_status oari_group_owned(const oar_group *group);

/* Fails with the reason if the group cannot be used any more. */
oar_status oari_group_check(const oar_group *group);

/* Ends the group with this thread's last error, unless it has ended. work: in
 * which operation, or NULL; peer: because of which rank, or -1. The group is
 * broken when this returns, even if another thread's fault came first: what has
 * failed must not be driven on. */
void oari_group_break(oar_group *group, const oar_work *work, int peer);
/* Ends the group with a fault that a peer has published, or that the ranks have
 * found together, unless it has ended. */
void oari_group_adopt(oar_group *group, const oari_fault *fault);

/* Adds to the text of a fault which group it is about, and which ranks the rank
 * and the peer (below 0: none) are in the first group. Adds nothing in the
 * first group. */
void oari_fault_place(const oar_group *group, int rank, int peer,
                      oar_error *fault);

/* Adds rank, process and operation (NULL: none) to a failure of this rank. */
void oari_fault_fill(const oar_group *group, const oar_work *work, int peer,
                     oar_error *fault);

/* Returns a fault that a peer has published, or NULL. Any thread may call it.
 */
int oari_group_published(const oar_group *group, oari_fault *fault);
/* Returns 0, or how a rank is gone (control_page.h). The caller holds the
 * token. */
int oari_group_gone(const oar_group *group, int rank);

/* What the engine calls upward (look.c). */
extern const oari_engine_events oari_fault_events;

/* ---- external_fault.c ---------------------------------------------------- */

/* Returns what oari_group_gone does beside an external engine; gone: what the
 * links say. */
int oari_external_gone(const oar_group *group, int rank, int gone);
/* Ends the group if an external engine has failed: with the cause that the
 * links find, or after a while with the engine's own error. */
void oari_external_look(oar_group *group);

/* ---- timeout scopes (timeout_scope.c) ------------------------------------ */

struct oari_timeout_scope;
/* Gives the open scope of this rank that lasts longest; until_ns 0: none. */
void oari_timeout_scope_mine(const oar_group *group,
                             struct oari_timeout_scope *scope);
/* Frees the scopes that were never ended. */
void oari_timeout_scope_drop(oar_group *group);

#endif
