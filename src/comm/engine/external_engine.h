/* SPDX-License-Identifier: Apache-2.0 */
/* comm/engine/external_engine.h: an external engine beside our links. */
#ifndef OARI_COMM_ENGINE_EXTERNAL_ENGINE_H
#define OARI_COMM_ENGINE_EXTERNAL_ENGINE_H

#include "comm/comm.h"

/* Closes and frees it; a half-opened one, too. */
void oari_external_close(oari_external *external);

/* Moves it on. Returns whether it is the links' turn now. */
int oari_external_drive(oar_group *group);
/* Returns how long a waiter spins beside it; ns: without it. */
int64_t oari_external_spin(const oar_group *group, int64_t ns);
/* Notes that it has failed, as the last error says. Nothing ends yet: the links
 * may find the cause, a peer that is gone or calls something else. */
void oari_external_fail(oar_group *group, oari_external *external);
/* Returns whether what it calls done must not be handed out, because a peer has
 * given up, or may have. */
int oari_external_too_late(oar_group *group, const oar_work *work);
/* Aborts all external engines of the group. */
void oari_external_abort(oar_group *group);
/* Sleeps until it or the links have something new, or the deadline passes. */
void oari_external_sleep(oar_group *group, int64_t idle_ns,
                         int64_t deadline_ns);

#endif
