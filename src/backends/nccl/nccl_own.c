/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_own: messages of a rank to itself, and the two events that bind our
 * stream to the caller's.
 *
 * NCCL knows a message to oneself only as a pair in one group. Here whichever
 * end comes first waits for the other; then it is a copy on the stream, and
 * NCCL has nothing to do with it. */
#include "backends/nccl/nccl_engine.h"
#include "base/status.h"

/* ---- events -------------------------------------------------------------- */

oar_status oari_nccl_wait_ready(const oari_cuda *cu, void *stream,
                                const oar_collective *call)
{
    if (call->ready == NULL)
        return OAR_OK;
    return oari_cuda_check(cu->StreamWaitEvent(stream, call->ready, 0),
                           "wait for a buffer");
}

oar_status oari_nccl_record_finished(const oari_cuda *cu, void *stream,
                                     const oar_collective *call)
{
    if (call->finished == NULL)
        return OAR_OK;
    return oari_cuda_check(cu->EventRecord(call->finished, stream),
                           "record the end of a collective");
}

/* ---- messages to oneself ------------------------------------------------- */

int oari_nccl_is_to_self(const oari_nccl_engine *e, const oar_collective *call)
{
    return (call->kind == OAR_COLL_SEND || call->kind == OAR_COLL_RECV) &&
           call->root == e->rank;
}

static oar_status copy_to_self(oari_nccl_engine *e, const oar_collective *send,
                               const oar_collective *recv)
{
    void *stream = e->comm->stream;
    size_t bytes = send->out.count * oar_dtype_size(send->out.dtype);
    const oari_cuda *cu;
    oar_status status;

    OARI_TRY(oari_cuda_enter(e->device, &cu));
    status = oari_nccl_wait_ready(cu, stream, send);
    if (status == OAR_OK)
        status = oari_nccl_wait_ready(cu, stream, recv);
    if (status == OAR_OK && bytes > 0)
        status = oari_cuda_check(
            cu->MemcpyDtoDAsync((oari_cu_memory)(uintptr_t)recv->out.data,
                                (oari_cu_memory)(uintptr_t)send->out.data,
                                bytes, stream),
            "copy a message to oneself");
    if (status == OAR_OK)
        status = oari_nccl_record_finished(cu, stream, send);
    if (status == OAR_OK)
        status = oari_nccl_record_finished(cu, stream, recv);
    oari_cuda_leave();
    return status;
}

static int same_bytes(const oar_collective *a, const oar_collective *b)
{
    return a->out.count * oar_dtype_size(a->out.dtype) ==
           b->out.count * oar_dtype_size(b->out.dtype);
}

/* A pair whose sizes differ fails alone, as it does on the host. */
static void pair_up(oari_nccl_engine *e)
{
    while (e->failed == OAR_OK && e->to_self != NULL && e->from_self != NULL) {
        oar_transfer *send = e->to_self, *recv = e->from_self;
        oar_status status =
            same_bytes(oari_nccl_posted(send), oari_nccl_posted(recv))
                ? copy_to_self(e, oari_nccl_posted(send),
                               oari_nccl_posted(recv))
                : oar_backend_fail(OAR_E_SIZE,
                                   "a message to oneself of another size than "
                                   "its receive");

        if (status != OAR_OK && status != OAR_E_SIZE) {
            oari_nccl_note_failure(e, status);
            return;
        }
        e->to_self = oari_nccl_next(send);
        e->from_self = oari_nccl_next(recv);
        oari_nccl_done(send, status);
        oari_nccl_done(recv, status);
    }
}

void oari_nccl_post_to_self(oari_nccl_engine *e, oar_transfer *t)
{
    oar_transfer **list = oari_nccl_posted(t)->kind == OAR_COLL_SEND
                              ? &e->to_self
                              : &e->from_self;

    while (*list != NULL)
        list = (oar_transfer **)&(*list)->scratch[0];
    *list = t;
    pair_up(e);
}
