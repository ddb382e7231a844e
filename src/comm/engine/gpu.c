/* SPDX-License-Identifier: Apache-2.0 */
/* gpu: operations on device memory, up to where they are queued: which engine
 * does them, whether the memory is what it says, and the two events that order
 * them among the caller's own work: `ready` is recorded on the caller's stream
 * at the call, and `finished` by the engine behind all it did. What happens in
 * between is in drive_gpu.c. docs/gpu.md tells the whole story.
 */
#include <sched.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/api/check.h"
#include "comm/engine/drive.h"
#include "device/cuda/cuda.h"

void *oari_group_gpu(const oar_group *group, const oar_backend_ops *ops)
{
    return group != NULL && group->gpu.opened && group->gpu.ops == ops
               ? group->gpu.self
               : NULL;
}

/* ---- who does it --------------------------------------------------------- */

static oar_status no_way(const oar_group *g, const oari_call *call,
                         const oar_span *span)
{
    const char *what = oar_coll_name(call->kind);
    oar_device_name at = oar_device_text(span->device);

    if (g->gpu.ops == NULL)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "%s of memory on %s: group \"%s\" over \"%s\" has no "
                         "engine for GPUs. Make it with the backend "
                         "\"hybrid\", \"nccl\" or \"ipc\", or set "
                         "OARSONG_ENABLE_GPU_FALLBACK=1 to go through the host",
                         what, at.text, g->name, oar_group_backend(g));
    return oari_fail(
        OAR_E_UNSUPPORTED,
        "%s%s of %s%s%s on %s: \"%s\" cannot do that. Use "
        "another backend for GPUs (\"ipc\" does all), or set "
        "OARSONG_ENABLE_GPU_FALLBACK=1 to go through the host",
        what, call->ragged ? "_v" : "", oar_dtype_name(span->dtype),
        oari_kind_reduces(call->kind) ? " " : "",
        oari_kind_reduces(call->kind) ? oar_op_name(call->op.kind) : "",
        at.text, g->gpu.ops->name);
}

/* By what all ranks know alike. */
static int takes(const oari_foreign *f, const oari_call *call)
{
    oar_collective asked = oari_call_for_engine(call);

    if (!f->opened || (size_t)call->kind >= f->ops->post_count ||
        f->ops->post[call->kind] == NULL)
        return 0;
    return f->ops->takes == NULL || f->ops->takes(f->self, &asked);
}

/* "In the order of ranks" is what the host and `ipc` do; another engine does
 * not know the word. */
static int keeps_order(const oari_foreign *f, const oari_call *call)
{
    oar_backend_caps caps = oar_backend_caps_init();

    if ((oari_call_form(call) & OARI_FORM_CANONICAL) == 0)
        return 1;
    return f->ops->probe != NULL && f->ops->probe(&caps) == OAR_OK &&
           (caps.can & OAR_CAN_ORDER) != 0;
}

static oar_status choose_engine(oar_group *g, oari_call *call,
                                const oar_span *span)
{
    if (takes(&g->gpu, call) && keeps_order(&g->gpu, call))
        call->gpu = &g->gpu;
    else if (takes(&g->hosted, call))
        call->gpu = &g->hosted;
    else
        return no_way(g, call, span);
    if (call->gpu == &g->gpu && span->device.index != g->device)
        return oari_fail(OAR_E_DEVICE,
                         "%s of memory on %s: group \"%s\" has its engine on "
                         "cuda:%d here",
                         oar_coll_name(call->kind),
                         oar_device_text(span->device).text, g->name,
                         g->device);
    if (call->gpu == &g->hosted)
        oari_log(OAR_LOG_WARN,
                 "group \"%s\", rank %d: %s of %zu bytes on %s goes through "
                 "the host (OARSONG_ENABLE_GPU_FALLBACK)",
                 g->name, g->rank, oar_coll_name(call->kind),
                 oari_call_bytes(call), oar_device_text(span->device).text);
    return OAR_OK;
}

static int is_empty(const oar_span *span)
{
    return span->data == NULL && span->count == 0;
}

/* Both sides on one GPU. */
static oar_status check_sides(const oari_call *call)
{
    const oar_span *in = &call->in, *out = &call->out;

    if (is_empty(in) || is_empty(out) ||
        (in->device.kind == out->device.kind &&
         in->device.index == out->device.index))
        return OAR_OK;
    return oari_fail(OAR_E_DEVICE, "%s from memory on %s to memory on %s",
                     oar_coll_name(call->kind),
                     oar_device_text(in->device).text,
                     oar_device_text(out->device).text);
}

oar_status oari_gpu_check(oar_group *group, oari_call *call)
{
    const char *what = oar_coll_name(call->kind);
    const oar_span *span =
        call->in.device.kind != OAR_CPU ? &call->in : &call->out;

    OARI_TRY(oari_group_check(group));
    OARI_TRY(check_sides(call));
    OARI_TRY(choose_engine(group, call, span));
    OARI_TRY(oari_cuda_check_span(what, &call->in));
    if (call->out.data != call->in.data || call->out.count > call->in.count)
        OARI_TRY(oari_cuda_check_span(what, &call->out));
    if (call->stream == NULL)
        call->stream = oar_stream_current(span->device);
    call->device = span->device.index;
    return OAR_OK;
}

/* ---- events -------------------------------------------------------------- */

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

/* ---- opening and ending -------------------------------------------------- */

static oar_status open_engine(oar_group *g, oari_foreign *f,
                              const oari_choice *choice,
                              const oar_group_opts *o, int64_t meet_ms)
{
    oari_open with = { .env = { .size = sizeof with.env,
                                .rank = g->rank,
                                .ranks = g->ranks,
                                .store = g->store,
                                .store_address = g->store_address,
                                .name = g->name,
                                .timeout_ms = meet_ms,
                                .device = g->device,
                                .stream = o->stream,
                                .id = o->nccl_id },
                       .board = g->board,
                       .group = g,
                       .recorder = g->recorder,
                       .meet_ms = meet_ms };

    if (choice->split != NULL) {
        with.env.split = *choice->split;
        *choice->split = NULL;
    }
    return oari_foreign_open(g, f, &with);
}

/* What "auto" has come to, in the group's name for its backend. */
static oar_status name_pair(oar_group *g)
{
    char name[256], *kept;

    snprintf(name, sizeof name, "cpu:%s,cuda:%s", oari_group_asked(g)->name,
             g->gpu.ops->name);
    if ((kept = oari_strdup(name)) == NULL)
        return OAR_E_NOMEM;
    oari_free(g->backend_name);
    g->backend_name = kept;
    return OAR_OK;
}

oar_status oari_gpu_open(oar_group *g, const oari_choice *choice,
                         const oar_group_opts *o, int64_t meet_ms)
{
    oar_device device = o->device != NULL ? *o->device : oar_device_current();

    g->device = device.index;
    if (o->device != NULL && device.kind != OAR_CUDA)
        return oari_fail(OAR_E_DEVICE, "a group with its engine on the %s",
                         oar_device_text(device).text);
    g->gpu.ops = choice->gpu;
    if (choice->any_gpu) {
        OARI_TRY(oari_hybrid_settle(g, meet_ms, &g->gpu.ops));
        OARI_TRY(name_pair(g));
    }
    if (g->gpu.ops != NULL)
        OARI_TRY(open_engine(g, &g->gpu, choice, o, meet_ms));
    return OAR_OK;
}

int oari_group_goes_through_host(const oar_group *group)
{
    return group->rules.through_host && !group->bare;
}

oar_status oari_hosted_open(oar_group *g)
{
    static const oari_choice none;
    oar_group_opts o = { .size = sizeof o };
    const oari_backend *staging = NULL;

    if (!oari_group_goes_through_host(g))
        return OAR_OK;
    OARI_TRY(oari_backend_in_role(OARI_ROLE_STAGING, &staging));
    g->hosted.ops = &staging->ops;
    return open_engine(g, &g->hosted, &none, &o, g->timeout_ms);
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
