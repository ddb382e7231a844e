/* SPDX-License-Identifier: Apache-2.0 */
/* comm/engine/work.h: the life of one operation's handle. Two hold it: the
 * caller and the engine. */
#ifndef OARI_COMM_ENGINE_WORK_H
#define OARI_COMM_ENGINE_WORK_H

#include "comm/comm.h"

/* Makes a work, with one holder, from copies of the call and of the counts and
 * the label that it points to. NULL: no memory. */
oar_work *oari_work_make(oar_group *group, const oari_call *call);
/* Makes a work that is done when `parts` others are. NULL: no memory. */
oar_work *oari_work_make_whole(oar_group *group, int parts);
/* Frees a work that was never handed out, or keeps it for the next one of its
 * group. NULL is fine. */
void oari_work_free(oar_work *work);
/* Frees the works that are kept; there will be no others. */
void oari_work_drop_spares(oari_engine *engine);
/* Ends one holder's claim; the last frees it. */
void oari_work_let_go(oar_work *work);

/* Gives the call its number, records it, and returns the number. */
uint64_t oari_work_record(oar_group *group, const oari_call *call,
                          uint64_t state);
/* Ends the work on the engine's side. */
void oari_work_finish(oar_work *work, oar_status status);

/* Mark that a function of the user's runs, for that group, on this thread,
 * which holds the token. And the question whether one does. */
void oari_work_function_begin(const oar_group *group);
void oari_work_function_end(void);
int oari_work_function_runs(const oar_group *group);
/* Returns whether the work's own function runs on this thread. */
int oari_work_ends_here(const oar_work *work);

/* Sets a function that runs when the work ends, or at once if it has ended.
 * Returns 0 if the work has one already. */
int oari_work_set_function(oar_work *work, oar_work_fn fn, void *arg);

#endif
