/* SPDX-License-Identifier: Apache-2.0 */
/* comm/engine/drive.h: moving a group's operations on. The caller holds the
 * engine's token. */
#ifndef OARI_COMM_ENGINE_DRIVE_H
#define OARI_COMM_ENGINE_DRIVE_H

#include "comm/comm.h"

/* Begins an operation that was not queued: nothing else is under way. */
void oari_drive_start(oar_group *group, oar_work *work);
/* The same for a caller that does not wait: drives it for a moment. Nothing
 * else ends. */
void oari_drive_begin(oar_group *group, oar_work *work);
/* Begins the messages that are queued. Nothing ends. */
void oari_drive_begin_messages(oar_group *group);

/* One round. Returns whether anything moved. */
int oari_drive_once(oar_group *group);

/* Rounds until the work is done or the time is up; NULL: until there is nothing
 * left, or a user wants the token. */
void oari_drive(oar_group *group, const oar_work *work, int64_t until_ns);

/* An operation that is under way, for texts; NULL: none. */
oar_work *oari_drive_any(const oar_group *group);

/* The operation of a lane has ended. */
void oari_drive_finish(oar_group *group, oari_lane *lane, oar_status status);

/* One round of an operation on device memory (drive_gpu.c). */
oari_progress oari_drive_gpu(oar_group *group, oari_lane *lane);
/* Moves the engines for it on. */
void oari_gpu_progress(oar_group *group);
/* Begins it, with what follows in its batch. */
void oari_drive_gpu_start(oar_group *group, oari_lane *lane, oar_work *work);
/* After an abort: until nothing of it runs any more, but only a moment. */
void oari_drive_gpu_drain(oar_group *group);

/* Whether who waits for it may go on. */
static inline int oari_work_is_done(const oar_work *work)
{
    return atomic_load_explicit(&work->done, memory_order_acquire) ||
           (work->order_only &&
            atomic_load_explicit(&work->ordered, memory_order_acquire));
}

#endif
