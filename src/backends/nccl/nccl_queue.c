/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_queue: operations, from the post until NCCL has put them on the stream.
 *
 * A unit is one call, or all calls of a batch. It goes to NCCL as one group of
 * NCCL, opened and closed by the same thread, since NCCL keeps the open group
 * of each thread. NCCL then puts it on the stream by a thread of its own; until
 * its state says that it has, it accepts no other call, and nothing may be
 * recorded after it. So one unit is in flight, and the others wait.
 *
 * A transfer is an entry of the queue by itself: scratch[0] is the next one,
 * scratch[1] the call, scratch[2] not NULL if the next belongs to the same
 * unit.
 */
#include <stdio.h>

#include "backends/nccl/nccl_engine.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/status.h"
#include "device/cuda/cuda_trace.h"
#include "link/match.h"

enum {
    CHECK_NS = 1000000,        /* between checks for errors on the GPU */
    ABORT_NS = 1000 * 1000000, /* the longest wait for the end of NCCL */
};

static oar_transfer *next_of(const oar_transfer *t)
{
    return t->scratch[0];
}

static const oar_collective *call_of(const oar_transfer *t)
{
    return t->scratch[1];
}

static void finish_list(oar_transfer **list, oar_status status)
{
    while (*list != NULL) {
        oar_transfer *t = *list;

        *list = next_of(t);
        oari_transfer_finish(t, status);
    }
}

int oari_nccl_is_idle(const oari_nccl_engine *e)
{
    return e->first == NULL && e->in_flight == NULL;
}

void oari_nccl_end_all(oari_nccl_engine *e, oar_status why)
{
    finish_list(&e->in_flight, why);
    finish_list(&e->first, why);
    e->last = &e->first;
    finish_list(&e->to_self, why);
    finish_list(&e->from_self, why);
}

/* NCCL often does not know why it failed: a peer is gone, or called something
 * else. So the operation is not completed; progress reports that NCCL failed,
 * and the core gives the links time to find the reason before it aborts. */
void oari_nccl_record_failure(oari_nccl_engine *e, oar_status status)
{
    if (status == OAR_OK || e->failed != OAR_OK)
        return;
    e->failed = status;
    snprintf(e->text, sizeof e->text, "%.399s", oar_last_error_text());
}

/* ---- units --------------------------------------------------------------- */

static oar_status wait_ready(const oari_cuda *cu, void *stream,
                             const oar_collective *call)
{
    if (call->ready == NULL)
        return OAR_OK;
    return oari_cuda_check(cu->StreamWaitEvent(stream, call->ready, 0),
                           "wait for a buffer");
}

static oar_status record_finished(const oari_cuda *cu, void *stream,
                                  const oar_collective *call)
{
    if (call->finished == NULL)
        return OAR_OK;
    return oari_cuda_check(cu->EventRecord(call->finished, stream),
                           "record the end of a collective");
}

/* Gives the unit in flight to NCCL. The group of NCCL is closed even if a call
 * in it fails. */
static oar_status start_unit(oari_nccl_engine *e)
{
    const oari_nccl *lib = e->lib;
    oari_nccl_handle comm = e->comm->handle;
    const oar_transfer *t;
    const oari_cuda *cu;
    oar_status status = OAR_OK;
    int ended;

    OARI_TRY(oari_cuda_enter(e->device, &cu));
    for (t = e->in_flight; t != NULL && status == OAR_OK; t = next_of(t))
        status = wait_ready(cu, e->comm->stream, call_of(t));
    if (status == OAR_OK) {
        oari_gpu_trace_call_begin(e->device, e->comm->stream,
                                  call_of(e->in_flight)->finished);
        status =
            oari_nccl_check(lib, lib->GroupStart(), comm, "opening a group");
    }
    if (status == OAR_OK) {
        for (t = e->in_flight; t != NULL && status == OAR_OK; t = next_of(t))
            status = oari_nccl_call(e, call_of(t));
        ended = lib->GroupEnd();
        if (status == OAR_OK)
            status = oari_nccl_check(
                lib, ended, comm, oar_coll_name(call_of(e->in_flight)->kind));
    }
    oari_cuda_leave();
    return status;
}

/* Returns 1 if NCCL has put the unit on the stream; its transfers are then
 * completed. */
static int finish_unit(oari_nccl_engine *e)
{
    int state = oari_nccl_comm_state(e->comm);
    const oari_cuda *cu;
    oar_status status;

    if (state == OARI_NCCL_IN_PROGRESS)
        return 0;
    status = oari_nccl_check(e->lib, state, e->comm->handle,
                             oar_coll_name(call_of(e->in_flight)->kind));
    if (status == OAR_OK)
        status = oari_cuda_enter(e->device, &cu);
    if (status == OAR_OK) {
        oari_gpu_trace_call_end(e->device, call_of(e->in_flight)->finished,
                                oar_coll_name(call_of(e->in_flight)->kind));
        for (const oar_transfer *t = e->in_flight;
             t != NULL && status == OAR_OK; t = next_of(t))
            status = record_finished(cu, e->comm->stream, call_of(t));
        oari_cuda_leave();
    }
    oari_nccl_record_failure(e, status);
    if (status != OAR_OK)
        return 0;
    finish_list(&e->in_flight, OAR_OK);
    return 1;
}

/* Starts units one after the other, until one is in flight or no complete one
 * is left. An abort takes the handle away first. */
static void run_units(oari_nccl_engine *e)
{
    pthread_mutex_lock(&e->comm->use);
    while (e->comm->handle != NULL && e->failed == OAR_OK) {
        oar_transfer *end = e->first;

        if (e->in_flight != NULL && !finish_unit(e))
            break;
        while (end != NULL && end->scratch[2] != NULL)
            end = next_of(end);
        if (end == NULL)
            break;
        e->in_flight = e->first;
        e->first = next_of(end);
        end->scratch[0] = NULL;
        if (e->first == NULL)
            e->last = &e->first;
        oari_nccl_record_failure(e, start_unit(e));
    }
    pthread_mutex_unlock(&e->comm->use);
}

/* ---- messages to the rank itself ----------------------------------------- */

static oar_status copy_to_self(oari_nccl_engine *e, const oar_collective *send,
                               const oar_collective *recv)
{
    void *stream = e->comm->stream;
    size_t bytes = oari_span_bytes(&send->out);
    const oari_cuda *cu;
    oar_status status;

    OARI_TRY(oari_cuda_enter(e->device, &cu));
    status = wait_ready(cu, stream, send);
    if (status == OAR_OK)
        status = wait_ready(cu, stream, recv);
    if (status == OAR_OK && bytes > 0)
        status = oari_cuda_check(
            cu->MemcpyDtoDAsync((oari_cu_memory)(uintptr_t)recv->out.data,
                                (oari_cu_memory)(uintptr_t)send->out.data,
                                bytes, stream),
            "copy a message to oneself");
    if (status == OAR_OK)
        status = record_finished(cu, stream, send);
    if (status == OAR_OK)
        status = record_finished(cu, stream, recv);
    oari_cuda_leave();
    return status;
}

/* NCCL knows a message of a rank to itself only as a pair in one group. Here
 * the end that is posted first waits for the other; then it is a copy on the
 * stream, without NCCL. A pair whose sizes differ fails alone, as it does on
 * the host. */
static void post_to_self(oari_nccl_engine *e, oar_transfer *t)
{
    oar_transfer **list =
        call_of(t)->kind == OAR_COLL_SEND ? &e->to_self : &e->from_self;

    while (*list != NULL)
        list = (oar_transfer **)&(*list)->scratch[0];
    *list = t;
    while (e->failed == OAR_OK && e->to_self != NULL && e->from_self != NULL) {
        oar_transfer *send = e->to_self, *recv = e->from_self;
        oar_span from = call_of(send)->out, to = call_of(recv)->out;
        oar_status status = OAR_OK;

        if (oari_span_bytes(&from) == oari_span_bytes(&to))
            status = copy_to_self(e, call_of(send), call_of(recv));
        else
            status = oar_backend_fail(OAR_E_SIZE,
                                      "a message to oneself of another size "
                                      "than its receive");
        if (status != OAR_OK && status != OAR_E_SIZE) {
            oari_nccl_record_failure(e, status);
            return;
        }
        e->to_self = next_of(send);
        e->from_self = next_of(recv);
        oari_transfer_finish(send, status);
        oari_transfer_finish(recv, status);
    }
}

/* ---- what the core calls ------------------------------------------------- */

oar_status oari_nccl_post(void *self, const oar_collective *call,
                          oar_transfer *done)
{
    oari_nccl_engine *e = self;
    oar_status why = (oar_status)e->why;

    if (why != OAR_OK) {
        oari_transfer_finish(done, why);
        return OAR_OK;
    }
    done->scratch[0] = NULL;
    done->scratch[1] = (void *)(uintptr_t)call;
    done->scratch[2] = e->batching ? done : NULL;
    if ((call->kind == OAR_COLL_SEND || call->kind == OAR_COLL_RECV) &&
        call->root == e->rank) {
        post_to_self(e, done);
        return OAR_OK;
    }
    *e->last = done;
    e->last = (oar_transfer **)&done->scratch[0];
    if (!e->batching)
        run_units(e);
    return OAR_OK;
}

/* The last call of a batch ends its unit. All before the batch has ended its
 * unit already, so an empty batch changes nothing. */
oar_status oari_nccl_batch(void *self, int open)
{
    oari_nccl_engine *e = self;
    oar_transfer *t = e->first;

    e->batching = open;
    if (open)
        return OAR_OK;
    while (t != NULL && next_of(t) != NULL)
        t = next_of(t);
    if (t != NULL)
        t->scratch[2] = NULL;
    run_units(e);
    return OAR_OK;
}

/* After an abort, what NCCL is putting on the stream is completed only when
 * NCCL has ended. */
oar_status oari_nccl_progress(void *self)
{
    oari_nccl_engine *e = self;
    oar_status why = (oar_status)e->why;
    int64_t now;

    if (why != OAR_OK) {
        if (e->ending_ns == 0)
            e->ending_ns = oari_now_ns();
        if (e->in_flight == NULL || oari_nccl_comm_wait(e->comm, 0) ||
            oari_now_ns() >= e->ending_ns + ABORT_NS)
            oari_nccl_end_all(e, why);
        return OAR_OK;
    }
    if (!oari_nccl_is_idle(e))
        run_units(e);
    /* Asks for errors of what runs on the GPU: not every time, and not while a
     * unit is in flight, whose state is asked for anyway. */
    if ((now = oari_now_ns()) >= e->check_ns && e->in_flight == NULL) {
        e->check_ns = now + CHECK_NS;
        pthread_mutex_lock(&e->comm->use);
        if (e->comm->handle != NULL)
            oari_nccl_record_failure(
                e, oari_nccl_check(e->lib, oari_nccl_comm_state(e->comm),
                                   e->comm->handle, "what runs on the GPU"));
        pthread_mutex_unlock(&e->comm->use);
    }
    return e->failed == OAR_OK ? OAR_OK
                               : oar_backend_fail(e->failed, "%s", e->text);
}
