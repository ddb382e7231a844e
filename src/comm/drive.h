/* SPDX-License-Identifier: Apache-2.0 */
/* comm/drive.h: moving a group's operations on. The caller holds the engine's
 * token. */
#ifndef OARI_COMM_DRIVE_H
#define OARI_COMM_DRIVE_H

#include "comm/group.h"

/* Begins an operation that was not queued: nothing else is under way. */
void oari_drive_start(oar_group *group, oar_work *work);

/* One round. Returns whether anything moved. */
int oari_drive_once(oar_group *group);

/* Rounds until the work is done; NULL: until there is nothing left, or a user
 * wants the token. */
void oari_drive(oar_group *group, const oar_work *work);

/* Off the fast path: has anything gone wrong? */
void oari_drive_look(oar_group *group);

/* Ends the group because a rank is gone. work: what waits, or NULL. */
void oari_peer_gone(oar_group *group, const oar_work *work, int rank);

/* One that is under way, or NULL. */
oar_work *oari_any_work(const oari_engine *engine);

static inline int oari_work_is_done(const oar_work *work)
{
    return atomic_load_explicit(&work->done, memory_order_acquire);
}

#endif
