/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_check: chooses the engine for an operation on device memory, and checks
 * its memory, before the operation is queued. */
#include "base/log.h"
#include "base/status.h"
#include "comm/api/check.h"
#include "comm/api/post.h"
#include "comm/fault/fault.h"
#include "device/cuda/cuda.h"

static oar_status fail_without_engine(const oar_group *g, const oari_call *call,
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
                         what, at.text, g->name, oari_group_backend_name(g));
    return oari_fail(
        OAR_E_UNSUPPORTED,
        "%s%s of %s%s%s on %s: \"%s\" cannot do that. Use "
        "another backend for GPUs (\"ipc\" does all), or set "
        "OARSONG_ENABLE_GPU_FALLBACK=1 to go through the host",
        what, call->ragged ? "_v" : "", oar_dtype_name(span->dtype),
        oari_kind_reduces(call->kind) ? " " : "",
        oari_kind_reduces(call->kind) ? oar_reduce_op_name(call->op.kind) : "",
        at.text, g->gpu.ops->name);
}

/* Depends only on what all ranks know, so that they choose alike. */
static int can_take(const oari_external *f, const oari_call *call)
{
    oar_collective asked = oari_call_for_engine(call);

    if (!f->opened || (size_t)call->kind >= f->ops->post_count ||
        f->ops->post[call->kind] == NULL)
        return 0;
    return f->ops->takes == NULL || f->ops->takes(f->self, &asked);
}

/* The host and `ipc` can reduce in the order of ranks; other engines have no
 * such mode. */
static oar_status choose_engine(oar_group *g, oari_call *call,
                                const oar_span *span)
{
    oar_backend_caps caps = oar_backend_caps_init();

    if (can_take(&g->gpu, call) &&
        ((oari_call_form(call) & OARI_FORM_CANONICAL) == 0 ||
         (g->gpu.ops->probe != NULL && g->gpu.ops->probe(&caps) == OAR_OK &&
          (caps.can & OAR_CAN_ORDER) != 0)))
        call->gpu = &g->gpu;
    else if (can_take(&g->hosted, call))
        call->gpu = &g->hosted;
    else
        return fail_without_engine(g, call, span);
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

oar_status oari_gpu_check(oar_group *group, oari_call *call)
{
    const char *what = oar_coll_name(call->kind);
    const oar_span *in = &call->in, *out = &call->out;
    const oar_span *span = in->device.kind != OAR_CPU ? in : out;
    int both = (in->data != NULL || in->count != 0) &&
               (out->data != NULL || out->count != 0);

    OARI_TRY(oari_group_check(group));
    if (both && (in->device.kind != out->device.kind ||
                 in->device.index != out->device.index))
        return oari_fail(OAR_E_DEVICE, "%s from memory on %s to memory on %s",
                         what, oar_device_text(in->device).text,
                         oar_device_text(out->device).text);
    OARI_TRY(choose_engine(group, call, span));
    OARI_TRY(oari_cuda_check_span(what, in));
    if (out->data != in->data || out->count > in->count)
        OARI_TRY(oari_cuda_check_span(what, out));
    if (call->stream == NULL)
        call->stream = oar_stream_current(span->device);
    call->device = span->device.index;
    return OAR_OK;
}
