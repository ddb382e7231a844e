/* SPDX-License-Identifier: Apache-2.0 */
/* comm/engine/gpu_events.h: the events that order an operation on device memory
 * among the caller's own work. */
#ifndef OARI_COMM_ENGINE_GPU_EVENTS_H
#define OARI_COMM_ENGINE_GPU_EVENTS_H

#include "comm/comm.h"

/* Returns the engine's self if it is this group's engine for device memory, or
 * NULL. */
void *oari_group_gpu(const oar_group *group, const oar_backend_ops *ops);

/* Marks the work's place on its stream: what is there now comes before it. */
oar_status oari_gpu_mark(oar_work *work);
/* Makes what is put on the stream from now on wait for the work, which is
 * ordered. stream == NULL: the current one. */
oar_status oari_gpu_follow(const oar_work *work, void *stream);
/* Gives the work's events back. */
void oari_gpu_unmark(oar_work *work);
/* Waits, before the group ends, for operations whose calls have returned. */
void oari_gpu_await(oar_group *group);
/* Returns whether the work has run on the device. */
int oari_gpu_finished(const oar_work *work);

#endif
