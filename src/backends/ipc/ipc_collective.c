/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_collective: how a collective gets onto the streams.
 *
 * Every rank writes on its page what its buffers are, and when they are ready.
 * A rank that works waits (here, in progress, never on the device) until all
 * descriptions are there; then its stream waits until all are ready, works, and
 * writes that it is done. Collectives start in order, one after the other, and
 * so does their work on the device.
 *
 * Where one rank works for all on one GPU, whatever another process puts on a
 * stream makes the GPU switch to it and back (some microseconds if it has run,
 * milliseconds if it waits). So the others put nothing there: their hosts test
 * whether their buffers are ready, write so, and test whether the work is done;
 * and the rank that works starts when all have written "ready". */
#include <string.h>

#include "backends/ipc/ipc.h"
#include "base/status.h"
#include "device/cuda/cuda_trace.h"

static int does_work(const ipc *self, int rank)
{
    return !self->leader_works || rank == 0;
}

/* ---- words --------------------------------------------------------------- */

static ipc_word *ready_word(const ipc *self, int rank, uint32_t number)
{
    return &oari_ipc_page(self, rank)->ready[number % IPC_DEPTH];
}

static ipc_word *done_word(const ipc *self, int rank, uint32_t number)
{
    return &oari_ipc_page(self, rank)->done[number % IPC_DEPTH];
}

/* Whether the words of that number may be used again: everything that this rank
 * waited for there has come, so no rank will write an old number. */
static int is_free(const ipc *self, uint32_t number)
{
    uint32_t old = number - IPC_DEPTH;

    if (self->started < IPC_DEPTH)
        return 1;
    for (int r = 0; r < self->ranks; r++) {
        if (r == self->rank)
            continue;
        if (does_work(self, self->rank) &&
            !ipc_has(ready_word(self, r, old), old))
            return 0;
        if (does_work(self, r) && !ipc_has(done_word(self, r, old), old))
            return 0;
    }
    return 1;
}

/* ---- describing ---------------------------------------------------------- */

/* Memory that peers cannot map is copied to some that they can. */
static oar_status export_in(ipc *self, ipc_work *work, ipc_memory *memory)
{
    const oar_span *in = &work->call->in;

    OARI_TRY(oari_ipc_export(self, in->data, memory));
    if (memory->id != 0)
        return OAR_OK;
    work->bounces_in = 1;
    OARI_TRY(oari_ipc_wait_event(self, self->stream, work->call->ready));
    OARI_TRY(
        oari_ipc_bounce_reserve(self, &self->in_bounce, oari_span_bytes(in)));
    OARI_TRY(oari_ipc_copy(self, oari_cu_address(self->in_bounce.memory),
                           oari_cu_address(in->data), oari_span_bytes(in),
                           self->stream));
    return oari_ipc_export(self, self->in_bounce.memory, memory);
}

static oar_status describe_buffers(ipc *self, ipc_work *work, ipc_entry *e)
{
    const oar_collective *call = work->call;
    int is_in_place; /* on the input itself, not on a copy of it */

    e->in.id = e->out.id = 0;
    e->weight = call->weight;
    e->in_count = call->in.count;
    e->out_count = call->out.count;
    e->has_counts =
        call->ragged && (call->in_counts != NULL || call->out_counts != NULL);
    for (int r = 0; r < self->ranks && e->has_counts; r++) {
        e->counts[r] = call->in_counts != NULL ? call->in_counts[r] : 0;
        e->counts[self->ranks + r] =
            call->out_counts != NULL ? call->out_counts[r] : 0;
    }
    if (oari_ipc_reads(self, call))
        OARI_TRY(export_in(self, work, &e->in));
    if (!oari_ipc_writes(self, call))
        return OAR_OK;
    is_in_place = call->in.data == call->out.data && e->in.id != 0 &&
                  e->in.base + e->in.offset == oari_cu_address(call->in.data);
    if (is_in_place) {
        e->out = e->in;
        return OAR_OK;
    }
    OARI_TRY(oari_ipc_export(self, call->out.data, &e->out));
    if (e->out.id != 0)
        return OAR_OK;
    work->bounces_out = 1;
    OARI_TRY(oari_ipc_bounce_reserve(self, &self->out_bounce,
                                     oari_span_bytes(&call->out)));
    return oari_ipc_export(self, self->out_bounce.memory, &e->out);
}

/* Kernels read whole elements. */
static oar_status check_alignment(const oar_collective *call)
{
    uintptr_t odd = (uintptr_t)call->in.data | (uintptr_t)call->out.data;
    size_t size = oar_dtype_size(call->in.dtype);

    if ((call->kind != OAR_COLL_ALL_REDUCE && call->kind != OAR_COLL_REDUCE &&
         call->kind != OAR_COLL_REDUCE_SCATTER) ||
        odd % size == 0)
        return OAR_OK;
    return oari_fail(OAR_E_ARG,
                     "%s of %s at an address that is no multiple of %zu bytes: "
                     "a GPU cannot read that",
                     oar_coll_name(call->kind), oar_dtype_name(call->in.dtype),
                     size);
}

/* ---- one collective ------------------------------------------------------ */

/* From here on the collective has a number: a failure ends the group. */
static oar_status start_work(ipc *self, ipc_work *work)
{
    uint32_t number = atomic_load(&self->number) + 1;
    ipc_entry *entry = oari_ipc_entry(self, self->rank, number);

    atomic_store(&self->number, number);
    self->started++;
    work->number = number;
    work->started = 1;
    OARI_TRY(describe_buffers(self, work, entry));
    atomic_store(&entry->stamp, number);
    if (!does_work(self, self->rank) && !work->bounces_in &&
        !work->bounces_out) /* nothing is on the stream: write_ready does it */
        return OAR_OK;
    work->ready_said = 1;
    OARI_TRY(oari_ipc_wait_event(self, self->stream, work->call->ready));
    oari_gpu_trace_call_begin(self->device, self->stream, work->call->finished);
    if (self->leader_works && self->rank == 0)
        return OAR_OK;
    return oari_ipc_write_word(self, self->stream, self->rank,
                               ready_word(self, self->rank, number), number);
}

/* Returns 1 when this rank has written that its buffers are ready, or has
 * failed. */
static int write_ready(ipc *self, ipc_work *work, oar_status *status)
{
    int done;

    if (work->ready_said)
        return 1;
    *status = oari_ipc_test_event(self, work->call->ready, &done);
    if (*status != OAR_OK || !done)
        return *status != OAR_OK;
    atomic_store(ready_word(self, self->rank, work->number), work->number);
    work->ready_said = 1;
    return 1;
}

/* Whether all ranks have described their buffers, and, where the leader works,
 * written that they are ready. */
static int can_work(const ipc *self, uint32_t number)
{
    for (int r = 0; r < self->ranks; r++) {
        if (atomic_load(&oari_ipc_entry(self, r, number)->stamp) != number)
            return 0;
        if (self->leader_works && r != self->rank &&
            !ipc_has(ready_word(self, r, number), number))
            return 0;
    }
    return 1;
}

static oar_status do_work(ipc *self, const ipc_work *work)
{
    ipc_view view[IPC_RANKS];

    for (int r = 0; r < self->ranks; r++) {
        const ipc_entry *e = oari_ipc_entry(self, r, work->number);

        view[r].entry = e;
        OARI_TRY(oari_ipc_map(self, r, &e->in, &view[r].in));
        OARI_TRY(oari_ipc_map(self, r, &e->out, &view[r].out));
    }
    for (int r = 0; r < self->ranks && !self->leader_works; r++)
        if (r != self->rank)
            OARI_TRY(oari_ipc_wait_word(self, self->stream, r,
                                        ready_word(self, r, work->number),
                                        work->number));
    OARI_TRY(oari_ipc_run_share(self, work->call, view));
    return oari_ipc_write_word(self, self->stream, self->rank,
                               done_word(self, self->rank, work->number),
                               work->number);
}

static oar_status end_work(ipc *self, const ipc_work *work)
{
    const oar_span *out = &work->call->out;
    int done = 0;

    for (int r = 0; r < self->ranks && !self->leader_works; r++)
        if (r != self->rank)
            OARI_TRY(oari_ipc_wait_word(self, self->stream, r,
                                        done_word(self, r, work->number),
                                        work->number));
    if (!does_work(self, self->rank) &&
        !work->bounces_out) /* the work has been done */
        OARI_TRY(oari_ipc_test_event(self, work->call->finished, &done));
    if (!done && work->bounces_out)
        OARI_TRY(oari_ipc_copy(self, oari_cu_address(out->data),
                               oari_cu_address(self->out_bounce.memory),
                               oari_span_bytes(out), self->stream));
    oari_gpu_trace_call_end(self->device, work->call->finished,
                            oar_coll_name(work->call->kind));
    if (done)
        return OAR_OK;
    return oari_ipc_record_event(self, self->stream, work->call->finished);
}

/* Whether what this work waits for has come. */
static int can_advance(const ipc *self, const ipc_work *work)
{
    if (!work->started)
        return is_free(self, atomic_load(&self->number) + 1);
    if (does_work(self, self->rank))
        return can_work(self, work->number);
    return !work->ready_said ||
           ipc_has(done_word(self, 0, work->number), work->number);
}

/* Goes as far as possible now. Returns 1 when all is on the stream, or has
 * failed. */
static int advance_work(ipc *self, ipc_work *work, oar_status *status)
{
    *status = OAR_OK;
    if (!can_advance(self, work))
        return 0;
    if (!work->started && (*status = start_work(self, work)) != OAR_OK)
        return 1;
    if (does_work(self, self->rank)) {
        if (!can_work(self, work->number))
            return 0;
        if ((*status = do_work(self, work)) != OAR_OK)
            return 1;
    } else {
        if (!write_ready(self, work, status))
            return 0;
        if (*status != OAR_OK ||
            !ipc_has(done_word(self, 0, work->number), work->number))
            return *status != OAR_OK;
    }
    *status = end_work(self, work);
    return 1;
}

void oari_ipc_progress_collectives(ipc *self)
{
    const oari_cuda *cu;
    oar_status status;

    if (self->queue.first == NULL || !can_advance(self, self->queue.first) ||
        oari_cuda_enter(self->device, &cu) != OAR_OK)
        return;
    while (self->queue.first != NULL &&
           advance_work(self, self->queue.first, &status))
        oari_ipc_queue_end(self, &self->queue, &self->queue.first, status);
    oari_cuda_leave();
}

/* ---- posting ------------------------------------------------------------- */

/* Whether there is nothing to move; the same on all ranks. */
static int is_empty(const oar_collective *call)
{
    switch (call->kind) {
    case OAR_COLL_BROADCAST:
    case OAR_COLL_ALL_REDUCE:
    case OAR_COLL_REDUCE:
    case OAR_COLL_REDUCE_SCATTER: return call->in.count == 0;
    case OAR_COLL_ALL_GATHER: return call->out.count == 0;
    case OAR_COLL_ALL_TO_ALL: return !call->ragged && call->in.count == 0;
    default: return 0;
    }
}

/* An empty collective is done at once, even if others wait. */
oar_status oari_ipc_post(void *given, const oar_collective *call,
                         oar_transfer *done)
{
    ipc *self = given;
    oar_status status, why = (oar_status)atomic_load(&self->why);
    const oari_cuda *cu;

    if (call->kind == OAR_COLL_SEND)
        return oari_ipc_send(self, call, done);
    if (call->kind == OAR_COLL_RECV)
        return oari_ipc_recv(self, call, done);
    if (why != OAR_OK) {
        oari_transfer_finish(done, why);
        return OAR_OK;
    }
    OARI_TRY(check_alignment(call));
    if (is_empty(call)) {
        OARI_TRY(oari_cuda_enter(self->device, &cu));
        status = oari_ipc_wait_event(self, self->stream, call->ready);
        if (status == OAR_OK)
            status = oari_ipc_record_event(self, self->stream, call->finished);
        oari_cuda_leave();
        if (status == OAR_OK)
            oari_transfer_finish(done, OAR_OK);
        return status;
    }
    OARI_TRY(oari_ipc_queue_add(self, &self->queue, call, done));
    oari_ipc_progress_collectives(self);
    return OAR_OK;
}
