/* SPDX-License-Identifier: Apache-2.0 */
/* comm/fault/alone.h: a message that ends without the group: in a loose group
 * because its peer is gone or its time is up, in any group because the user
 * gives it up. The links forget it (oari_backend.withdraw), and the driver
 * finishes it in its next round. */
#ifndef OARI_COMM_FAULT_ALONE_H
#define OARI_COMM_FAULT_ALONE_H

#include "comm/comm.h"

/* Makes a group loose that was just made. OAR_E_UNSUPPORTED if its links cannot
 * take messages back. */
oar_status oari_group_loosen(oar_group *group);

/* Ends a message under way with this thread's last error, because of that rank
 * (-1: none). Returns 0 if the links cannot take it back now. unmoved: only if
 * none of its data has been moved. The caller holds the token. */
int oari_fail_alone(oar_group *group, oar_work *work, int peer, int unmoved);

/* Calls the function of oar_group_on_gone for ranks that have gone since the
 * last call. The caller holds the token. */
void oari_gone_look(oar_group *group);
/* Frees what oar_group_on_gone has made. NULL is fine. */
void oari_gone_unwatch(struct oari_gone_watch *watch);

#endif
