/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_events: the two events that order an operation on device memory among
 * the caller's own work: `ready` is recorded on the caller's stream at the
 * call, and `finished` by the engine behind all it did. What happens in
 * between is in drive_gpu.c; docs/gpu.md describes the whole. */
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

static void give_event(oari_call *call, void **event)
{
    if (*event != NULL)
        oari_cuda_event_give(call->device, *event);
    *event = NULL;
}

/* If all that an event on the caller's stream would wait for has run, nothing
 * is put on the device, because processes that share it would notice. The
 * legacy stream, by either of its names, waits for other streams when something
 * is put on it, and other streams may wait for it: there nothing is known. */
oar_status oari_gpu_mark(oar_work *work)
{
    oari_call *call = &work->call;
    const oari_cuda *cu;
    oar_status status = OAR_OK;

    if (call->finished == NULL)
        OARI_TRY(oari_cuda_event_take(call->device, &call->finished));
    OARI_TRY(oari_cuda_enter(call->device, &cu));
    if ((uintptr_t)call->stream > OARI_CU_STREAM_LEGACY &&
        cu->StreamQuery(call->stream) == OARI_CU_SUCCESS &&
        cu->StreamQuery(NULL) == OARI_CU_SUCCESS)
        give_event(call, &call->ready);
    else {
        if (call->ready == NULL)
            status = oari_cuda_event_take(call->device, &call->ready);
        if (status == OAR_OK)
            status =
                oari_cuda_check(cu->EventRecord(call->ready, call->stream),
                                "mark the place of an operation on its stream");
    }
    oari_cuda_leave();
    return status;
}

void oari_gpu_unmark(oar_work *work)
{
    give_event(&work->call, &work->call.ready);
    give_event(&work->call, &work->call.finished);
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

/* A call that has returned, because all of it is on a stream, counts as done:
 * it is not aborted. One that cannot end runs into its deadline. */
void oari_gpu_await(oar_group *g)
{
    oari_engine *e = &g->engine;

    while (atomic_load(&e->watched) != 0 && !oari_group_broken(g)) {
        oari_engine_nudge(g);
        sched_yield();
    }
}
