/* SPDX-License-Identifier: Apache-2.0 */
/* comm/fault/siblings.h: siblings, the groups of one rank in this process: a
 * world and the groups made of it. A rank that waits in one of them for long
 * drives its siblings, too, so that it can tell ranks that wait for it there
 * where it is. Any thread may call these functions. */
#ifndef OARI_COMM_FAULT_SIBLINGS_H
#define OARI_COMM_FAULT_SIBLINGS_H

#include "comm/comm.h"

/* Adds a group to the list of this process. */
void oari_siblings_join(oar_group *group);
/* Makes the group a sibling of its parent. */
void oari_siblings_move(oar_group *group, const oar_group *parent);
/* Takes a group off the list. Fine if it never joined. */
void oari_siblings_leave(oar_group *group);

/* Drives the siblings for a moment, where no other thread does. Returns how
 * many there are. */
int oari_siblings_drive(const oar_group *group);

/* Writes the last operation of this rank in any of the groups. Returns whether
 * it was in a sibling. */
int oari_siblings_last(const oar_group *group, char *text, size_t bytes);

#endif
