/* SPDX-License-Identifier: Apache-2.0 */
/* comm/engine/drive.h: moving a group's operations on. The caller of each
 * function holds the engine's token. */
#ifndef OARI_COMM_ENGINE_DRIVE_H
#define OARI_COMM_ENGINE_DRIVE_H

#include "comm/comm.h"

/* Begins an operation that was not queued. Nothing else is under way. */
void oari_drive_start(oar_group *group, oar_work *work);
/* Begins an operation that was not queued, and drives it for a moment, for a
 * caller that does not wait. No other operation ends. */
void oari_drive_begin(oar_group *group, oar_work *work);
/* Begins the messages that are queued. No operation ends. */
void oari_drive_begin_messages(oar_group *group);

/* Ends a message that has failed alone (fault/alone.h). */
void oari_drive_end_message(oar_group *group, oar_work *work);

/* Drives for one round. Returns whether anything moved. */
int oari_drive_once(oar_group *group);

/* What a thread drives for: a work, or what a function says. Neither: until
 * there is nothing left, or a user wants the token. */
typedef struct oari_goal {
    const oar_work *work;
    int (*is_done)(void *arg);
    void *arg;
} oari_goal;

/* Drives until the goal is reached or the time is up. Returns 0 if the token
 * has gone to a user meanwhile, which happens only without a goal. */
int oari_drive_until(oar_group *group, oari_goal goal, int64_t until_ns);
static inline void oari_drive(oar_group *group, const oar_work *work,
                              int64_t until_ns)
{
    oari_drive_until(group, (oari_goal){ .work = work }, until_ns);
}

/* Moves collectives on once, so that those whose every rank has done its part
 * are done before a fault ends the others. */
void oari_drive_last(oar_group *group);

/* Returns an operation that is under way, for texts, or NULL. */
oar_work *oari_drive_any(const oar_group *group);

/* Ends the operation of a lane. */
void oari_drive_finish(oar_group *group, oari_lane *lane, oar_status status);

/* ---- device memory (drive_gpu.c) ----------------------------------------- */

/* Begins an operation, with what follows in its batch. */
void oari_drive_gpu_start(oar_group *group, oari_lane *lane, oar_work *work);
/* Moves the engines for device memory on. */
void oari_gpu_progress(oar_group *group);
/* Drives an operation for one round. */
oari_progress oari_drive_gpu(oar_group *group, oari_lane *lane);
/* Waits, after an abort, until nothing runs on the device; but not for long. */
void oari_drive_gpu_drain(oar_group *group);

/* Returns whether a caller that waits for the work may go on. */
static inline int oari_work_is_done(const oar_work *work)
{
    return atomic_load_explicit(&work->done, memory_order_acquire) ||
           (work->order_only &&
            atomic_load_explicit(&work->ordered, memory_order_acquire));
}

#endif
