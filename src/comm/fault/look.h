/* SPDX-License-Identifier: Apache-2.0 */
/* comm/fault/look.h: finds out whether anything has gone wrong with the
 * operations under way. The caller holds the engine's token. */
#ifndef OARI_COMM_FAULT_LOOK_H
#define OARI_COMM_FAULT_LOOK_H

#include "comm/comm.h"

/* Looks for published faults, ranks that are gone, mismatches and deadlines.
 * Ends the group if something is wrong. */
void oari_fault_look(oar_group *group);

/* Ends the group if a peer has published a fault. Returns whether one has. */
int oari_fault_hear(oar_group *group);

/* Returns a rank that the operation needs and that is gone, or -1. */
int oari_fault_lost_rank(const oar_group *group, const oar_work *work);
/* Logs once that the operation has waited for long, and for which ranks. */
void oari_fault_warn_stall(const oar_group *group, oar_work *work);

/* Fails with OAR_E_PEER: says which rank is gone, and how. */
oar_status oari_fail_gone(oar_group *group, int rank);
/* Ends the group, or in a loose one the message, because a rank is gone. work:
 * what waits, or NULL. */
void oari_peer_gone(oar_group *group, oar_work *work, int rank);

#endif
