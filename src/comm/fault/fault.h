/* SPDX-License-Identifier: Apache-2.0 */
/* comm/fault/fault.h: how a group ends, and who is gone. */
#ifndef OARI_COMM_FAULT_FAULT_H
#define OARI_COMM_FAULT_FAULT_H

#include "comm/engine/engine.h"

/* OAR_OK, or OAR_E_STATE in a child of the process that made the group. */
oar_status oari_group_owned(const oar_group *group);

/* OAR_OK, or why nothing can be done with it (as the last error). */
oar_status oari_group_check(const oar_group *group);

/* Ends the group with this thread's last error, unless it has ended; work, if
 * any, says in which operation. The group is broken when this returns, even if
 * another thread's fault came first and is only being written: what has failed
 * must not be driven on. */
void oari_group_break(oar_group *group, const oar_work *work, int peer);
/* The same with a fault that a peer has told, or that the ranks found together.
 */
void oari_group_adopt(oar_group *group, const oari_fault *fault);

/* Adds to the text of a fault which group it is about, and who the rank and the
 * peer (below 0: none) are in the first group; nothing if it is that one. */
void oari_fault_place(const oar_group *group, int rank, int peer,
                      oar_error *fault);

/* A fault that a peer has published, or NULL. Any thread. */
const oari_fault *oari_group_published(const oar_group *group);
/* 0, or how a rank is gone (board.h). The driver's. */
int oari_group_gone(const oar_group *group, int rank);

/* What the engine calls upward (look.c). */
extern const oari_engine_events oari_fault_events;

/* ---- foreign_fault.c ----------------------------------------------------- */

/* oari_group_gone beside an engine; gone: what the links say. */
int oari_foreign_gone(const oar_group *group, int rank, int gone);
/* Ends the group if it has failed and nobody knew better for long enough. */
void oari_foreign_look(oar_group *group);

/* ---- scope.c ------------------------------------------------------------- */

struct oari_scope;
void oari_scope_mine(const oar_group *group, struct oari_scope *scope);
void oari_scope_drop(oar_group *group);

#endif
