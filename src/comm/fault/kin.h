/* SPDX-License-Identifier: Apache-2.0 */
/* comm/fault/kin.h: the groups of one rank in this process: a world and what
 * was made of it. A rank that waits in one of them for long looks after the
 * others, too: so it can tell those who wait for it there where it is. Any
 * thread. */
#ifndef OARI_COMM_FAULT_KIN_H
#define OARI_COMM_FAULT_KIN_H

#include "comm/comm.h"

/* Links of a group, in struct oar_group; guarded here. */
void oari_kin_join(oar_group *group);
/* It is one of the parent's. */
void oari_kin_move(oar_group *group, const oar_group *parent);
void oari_kin_leave(oar_group *group); /* fine if it never joined */

/* Drives the others for a moment, as far as nobody does. How many there are. */
int oari_kin_look(const oar_group *group);

/* Writes what the rank did last, in whichever of its groups; whether that was
 * in another than this one. */
int oari_kin_last(const oar_group *group, char *text, size_t bytes);

#endif
