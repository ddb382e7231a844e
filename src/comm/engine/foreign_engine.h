/* SPDX-License-Identifier: Apache-2.0 */
/* comm/engine/foreign_engine.h: an engine of somebody else's, beside our links. */
#ifndef OARI_COMM_ENGINE_FOREIGN_ENGINE_H
#define OARI_COMM_ENGINE_FOREIGN_ENGINE_H

#include "comm/comm.h"

void oari_foreign_close(oari_foreign *foreign);

/* Moves it on. What is left when this returns is the links' turn: 1: now. */
int oari_foreign_drive(oar_group *group);
/* How long to spin beside it; ns: without it. */
int64_t oari_foreign_spin(const oar_group *group, int64_t ns);
/* It has failed, as the last error says. Nothing ends yet: the links may come
 * to know that a peer is gone, or does something else, which is the cause. */
void oari_foreign_fail(oar_group *group, oari_foreign *foreign);
/* Whether what an engine calls done must not be handed out: because a peer has
 * given up, or may have. */
int oari_foreign_too_late(oar_group *group, const oar_work *work);
void oari_foreign_abort(oar_group *group);
/* Sleeps until it, or the links, have something new, at most until then. */
void oari_foreign_sleep(oar_group *group, int64_t idle_ns, int64_t deadline_ns);

#endif
