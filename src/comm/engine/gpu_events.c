/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_events: the two events that order an operation on device memory among
 * the caller's own work: `ready` is recorded on the caller's stream at the
 * call, and `finished` by the engine behind all it did. What happens in
 * between is in drive_gpu.c. docs/gpu.md tells the whole story. */
#include "comm/engine/gpu_events.h"

#include <sched.h>

#include "base/status.h"
#include "comm/engine/engine.h"
#include "device/cuda/cuda.h"

void *oari_group_gpu(const oar_group *group, const oar_backend_ops *ops)
{
    return group != NULL && group->gpu.opened && group->gpu.ops == ops
               ? group->gpu.self
               : NULL;
}

/* Whether all that an event on the caller's stream would wait for has run. The
 * stream of old, by either of its names, waits for others when something is put
 * on it, so there nobody knows; and others may wait for it. */
static int has_run(const oari_cuda *cu, const oari_call *call)
{
    return (uintptr_t)call->stream > OARI_CU_STREAM_LEGACY &&
           cu->StreamQuery(call->stream) == OARI_CU_SUCCESS &&
           cu->StreamQuery(NULL) == OARI_CU_SUCCESS;
}

static oar_status mark_ready(const oari_cuda *cu, oari_call *call)
{
    if (call->ready == NULL)
        OARI_TRY(oari_cuda_event_take(call->device, &call->ready));
    return oari_cuda_check(cu->EventRecord(call->ready, call->stream),
                           "mark the place of an operation on its stream");
}

static void forget(oari_call *call, void **event)
{
    if (*event != NULL)
        oari_cuda_event_give(call->device, *event);
    *event = NULL;
}

/* Where there is nothing to be behind, nothing is put on the device, which
 * processes that share it would notice. */
oar_status oari_gpu_mark(oar_work *work)
{
    oari_call *call = &work->call;
    const oari_cuda *cu;
    oar_status status = OAR_OK;

    if (call->finished == NULL)
        OARI_TRY(oari_cuda_event_take(call->device, &call->finished));
    OARI_TRY(oari_cuda_enter(call->device, &cu));
    if (has_run(cu, call))
        forget(call, &call->ready);
    else
        status = mark_ready(cu, call);
    oari_cuda_leave();
    return status;
}

void oari_gpu_unmark(oar_work *work)
{
    forget(&work->call, &work->call.ready);
    forget(&work->call, &work->call.finished);
}

oar_status oari_gpu_follow(const oar_work *work, void *stream)
{
    const oari_call *call = &work->call;
    const oari_cuda *cu;
    oar_status status;

    OARI_TRY(oari_cuda_enter(call->device, &cu));
    if (stream == NULL)
        stream = oar_stream_current(oar_device_of(OAR_CUDA, call->device));
    status = oari_cuda_check(cu->StreamWaitEvent(stream, call->finished, 0),
                             "order a stream behind an operation");
    oari_cuda_leave();
    return status;
}

int oari_gpu_finished(const oar_work *work)
{
    const oari_call *call = &work->call;
    const oari_cuda *cu;
    int result;

    if (oari_cuda_enter(call->device, &cu) != OAR_OK)
        return 1;
    result = cu->EventQuery(call->finished);
    oari_cuda_leave();
    return result != OARI_CU_NOT_READY;
}

/* Calls that have returned, because all is on a stream, are as good as done:
 * they are not aborted. Those that cannot end run into their deadline. */
void oari_gpu_await(oar_group *g)
{
    oari_engine *e = &g->engine;

    while (atomic_load(&e->watched) != 0 && !oari_group_broken(g)) {
        oari_engine_nudge(g);
        sched_yield();
    }
}
