/* SPDX-License-Identifier: Apache-2.0 */
/* comm/engine/gpu_events.h: the events that order an operation on device memory
 * among the caller's own work. */
#ifndef OARI_COMM_ENGINE_GPU_EVENTS_H
#define OARI_COMM_ENGINE_GPU_EVENTS_H

#include "comm/comm.h"

/* The engine's self if it is this group's for device memory; else NULL. */
void *oari_group_gpu(const oar_group *group, const oar_backend_ops *ops);

/* Begins one: from now on what is on the stream is before it. */
oar_status oari_gpu_mark(oar_work *work);
/* What comes on the stream from now on waits for it; it is ordered. */
oar_status oari_gpu_follow(const oar_work *work, void *stream);
/* Gives back what it needed. */
void oari_gpu_unmark(oar_work *work);
/* Before the group goes: waits for what its callers think is done. */
void oari_gpu_await(oar_group *group);
/* Whether it has run. */
int oari_gpu_finished(const oar_work *work);

#endif
