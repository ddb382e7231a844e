/* SPDX-License-Identifier: Apache-2.0 */
/* comm/engine/work.h: the life of one operation's handle. Two hold it: the
 * caller and the engine. */
#ifndef OARI_COMM_ENGINE_WORK_H
#define OARI_COMM_ENGINE_WORK_H

#include "comm/comm.h"

/* Makes a work with a copy of the call, and of the counts and the label that it
 * points to. NULL: no memory. One holder. */
oar_work *oari_work_make(oar_group *group, const oari_call *call);
/* Makes one that is done when `parts` others are. */
oar_work *oari_work_make_whole(oar_group *group, int parts);
/* Frees one that nobody has been given. NULL is fine. */
void oari_work_free(oar_work *work);
/* Ends one holder's claim; the last frees it. */
void oari_work_let_go(oar_work *work);

/* Gives the call its number, under which it is recorded. */
uint64_t oari_work_record(oar_group *group, const oari_call *call,
                          uint64_t state);
/* The engine is through with it. */
void oari_work_finish(oar_work *work, oar_status status);

/* Sets a function that runs when the work ends, or at once if it has ended: 1.
 * 0: it has one already. */
int oari_work_set_function(oar_work *work, oar_work_fn fn, void *arg);

#endif
