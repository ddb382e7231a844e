/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_collective: how a collective gets onto the streams.
 *
 * Every rank says on its page what its buffers are, and when they are ready. A
 * rank that works waits (here, in progress, never on the device) until all
 * descriptions are there; then its stream waits until all are ready, works, and
 * says so. Collectives are begun in order, one after the other, and so is their
 * work on the device.
 *
 * Where one rank works for all on one GPU, whatever another process puts on a
 * stream makes the GPU change to it and back (some microseconds if it has run,
 * milliseconds if it waits). So the others put nothing there: they look here
 * whether their buffers are ready, say so, and look whether the work is done;
 * and the one that works begins when all have said so. */
#include <string.h>

#include "backends/ipc/ipc.h"
#include "base/status.h"

static int works(const ipc *self, int rank)
{
    return !self->alone_works || rank == 0;
}

/* Whether another rank works for this one, which puts nothing on its stream. */
static int only_looks(const ipc *self)
{
    return !works(self, self->rank);
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

/* Whether the words of that number may be used again: everything that this
 * rank waited for there has come, so nobody will write an old number. */
static int has_place(const ipc *self, uint32_t number)
{
    uint32_t old = number - IPC_DEPTH;

    if (self->begun < IPC_DEPTH)
        return 1;
    for (int r = 0; r < self->ranks; r++) {
        if (r == self->rank)
            continue;
        if (works(self, self->rank) && !ipc_has(ready_word(self, r, old), old))
            return 0;
        if (works(self, r) && !ipc_has(done_word(self, r, old), old))
            return 0;
    }
    return 1;
}

static oar_status await_ready(ipc *self, uint32_t number)
{
    for (int r = 0; r < self->ranks; r++)
        if (r != self->rank)
            OARI_TRY(oari_ipc_await(self, self->stream, r,
                                    ready_word(self, r, number), number));
    return OAR_OK;
}

static oar_status await_done(ipc *self, uint32_t number)
{
    for (int r = 0; r < self->ranks; r++)
        if (r != self->rank && works(self, r))
            OARI_TRY(oari_ipc_await(self, self->stream, r,
                                    done_word(self, r, number), number));
    return OAR_OK;
}

/* ---- describing ---------------------------------------------------------- */

static oari_cu_memory address(const void *data)
{
    return (oari_cu_memory)(uintptr_t)data;
}

/* Memory that peers cannot map is copied to some that they can. */
static oar_status show_in(ipc *self, ipc_work *work, ipc_memory *memory)
{
    const oar_span *in = &work->call->in;

    OARI_TRY(oari_ipc_show(self, in->data, memory));
    if (memory->id != 0)
        return OAR_OK;
    work->stages_in = 1;
    OARI_TRY(oari_ipc_await_event(self, self->stream, work->call->ready));
    OARI_TRY(oari_ipc_stage_room(self, &self->in_stage, ipc_bytes(in)));
    OARI_TRY(oari_ipc_copy(self, address(self->in_stage.memory),
                           address(in->data), ipc_bytes(in), self->stream));
    return oari_ipc_show(self, self->in_stage.memory, memory);
}

static oar_status show_out(ipc *self, ipc_work *work, ipc_memory *memory)
{
    const oar_span *out = &work->call->out;

    OARI_TRY(oari_ipc_show(self, out->data, memory));
    if (memory->id != 0)
        return OAR_OK;
    work->stages_out = 1;
    OARI_TRY(oari_ipc_stage_room(self, &self->out_stage, ipc_bytes(out)));
    return oari_ipc_show(self, self->out_stage.memory, memory);
}

static void describe_counts(ipc *self, const oar_collective *call, ipc_entry *e)
{
    e->has_counts = call->in_counts != NULL || call->out_counts != NULL;
    for (int r = 0; r < self->ranks; r++) {
        e->counts[r] = call->in_counts != NULL ? call->in_counts[r] : 0;
        e->counts[self->ranks + r] =
            call->out_counts != NULL ? call->out_counts[r] : 0;
    }
}

/* Whether what was shown is the input itself, and not a copy of it. */
static int is_shown(const oar_collective *call, const ipc_memory *memory)
{
    return memory->id != 0 &&
           memory->base + memory->offset == address(call->in.data);
}

static oar_status describe(ipc *self, ipc_work *work, ipc_entry *e)
{
    const oar_collective *call = work->call;

    e->in.id = e->out.id = 0;
    e->weight = call->weight;
    e->in_count = call->in.count;
    e->out_count = call->out.count;
    if (call->ragged)
        describe_counts(self, call, e);
    else
        e->has_counts = 0;
    if (oari_ipc_reads(self, call))
        OARI_TRY(show_in(self, work, &e->in));
    if (!oari_ipc_writes(self, call))
        return OAR_OK;
    if (call->in.data != call->out.data || !is_shown(call, &e->in))
        return show_out(self, work, &e->out);
    e->out = e->in;
    return OAR_OK;
}

/* Kernels read whole elements. */
static oar_status check_aligned(const oar_collective *call)
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

/* Unless it has copies to make, which are on its stream. */
static int says_so_itself(const ipc *self, const ipc_work *work)
{
    return only_looks(self) && !work->stages_in && !work->stages_out;
}

/* From here on it has its number: a failure ends the group. */
static oar_status begin(ipc *self, ipc_work *work)
{
    uint32_t number = atomic_load(&self->number) + 1;
    ipc_entry *entry = oari_ipc_entry(self, self->rank, number);

    atomic_store(&self->number, number);
    self->begun++;
    work->number = number;
    work->begun = 1;
    OARI_TRY(describe(self, work, entry));
    atomic_store(&entry->stamp, number);
    if (says_so_itself(self, work))
        return OAR_OK;
    work->told = 1;
    OARI_TRY(oari_ipc_await_event(self, self->stream, work->call->ready));
    if (self->alone_works && self->rank == 0)
        return OAR_OK;
    return oari_ipc_write(self, self->stream, self->rank,
                          ready_word(self, self->rank, number), number);
}

/* 1 when this rank has said that its buffers are ready, or has failed. */
static int tell_ready(ipc *self, ipc_work *work, oar_status *status)
{
    int done;

    if (work->told)
        return 1;
    *status = oari_ipc_has_come(self, work->call->ready, &done);
    if (*status != OAR_OK || !done)
        return *status != OAR_OK;
    atomic_store(ready_word(self, self->rank, work->number), work->number);
    work->told = 1;
    return 1;
}

static int all_described(const ipc *self, uint32_t number)
{
    for (int r = 0; r < self->ranks; r++)
        if (atomic_load(&oari_ipc_entry(self, r, number)->stamp) != number)
            return 0;
    return 1;
}

static int all_ready(const ipc *self, uint32_t number)
{
    for (int r = 0; r < self->ranks; r++)
        if (r != self->rank && !ipc_has(ready_word(self, r, number), number))
            return 0;
    return 1;
}

/* Whether this rank can do its part. */
static int can_work(const ipc *self, uint32_t number)
{
    return all_described(self, number) &&
           (!self->alone_works || all_ready(self, number));
}

static oar_status look_at(ipc *self, uint32_t number, ipc_view *view)
{
    for (int r = 0; r < self->ranks; r++) {
        const ipc_entry *e = oari_ipc_entry(self, r, number);

        view[r].entry = e;
        OARI_TRY(oari_ipc_map(self, r, &e->in, &view[r].in));
        OARI_TRY(oari_ipc_map(self, r, &e->out, &view[r].out));
    }
    return OAR_OK;
}

static oar_status do_work(ipc *self, const ipc_work *work)
{
    ipc_view view[IPC_RANKS];

    OARI_TRY(look_at(self, work->number, view));
    if (!self->alone_works)
        OARI_TRY(await_ready(self, work->number));
    OARI_TRY(oari_ipc_do_share(self, work->call, view));
    return oari_ipc_write(self, self->stream, self->rank,
                          done_word(self, self->rank, work->number),
                          work->number);
}

static oar_status end(ipc *self, const ipc_work *work)
{
    const oar_span *out = &work->call->out;
    int done = 0;

    if (!self->alone_works)
        OARI_TRY(await_done(self, work->number));
    if (only_looks(self) && !work->stages_out) /* the work has been done */
        OARI_TRY(oari_ipc_has_come(self, work->call->finished, &done));
    if (done)
        return OAR_OK;
    if (work->stages_out)
        OARI_TRY(oari_ipc_copy(self, address(out->data),
                               address(self->out_stage.memory), ipc_bytes(out),
                               self->stream));
    return oari_ipc_record(self, self->stream, work->call->finished);
}

/* Whether the one that works has done it. */
static int is_worked_out(const ipc *self, uint32_t number)
{
    return ipc_has(done_word(self, 0, number), number);
}

/* Whether what this one waits for has come; asked again and again. */
static int can_go_on(const ipc *self, const ipc_work *work)
{
    if (!work->begun)
        return has_place(self, atomic_load(&self->number) + 1);
    if (works(self, self->rank))
        return can_work(self, work->number);
    return !work->told || is_worked_out(self, work->number);
}

/* As far as it goes now: 1 when it is all on the stream, or has failed. */
static int go_on(ipc *self, ipc_work *work, oar_status *status)
{
    *status = OAR_OK;
    if (!can_go_on(self, work))
        return 0;
    if (!work->begun && (*status = begin(self, work)) != OAR_OK)
        return 1;
    if (works(self, self->rank)) {
        if (!can_work(self, work->number))
            return 0;
        if ((*status = do_work(self, work)) != OAR_OK)
            return 1;
    } else {
        if (!tell_ready(self, work, status))
            return 0;
        if (*status != OAR_OK || !is_worked_out(self, work->number))
            return *status != OAR_OK;
    }
    *status = end(self, work);
    return 1;
}

void oari_ipc_go_on(ipc *self)
{
    const oari_cuda *cu;
    oar_status status;

    if (self->queue.first == NULL || !can_go_on(self, self->queue.first) ||
        oari_cuda_enter(self->device, &cu) != OAR_OK)
        return;
    while (self->queue.first != NULL && go_on(self, self->queue.first, &status))
        oari_ipc_queue_end(self, &self->queue, &self->queue.first, status);
    oari_cuda_leave();
}

/* ---- posting ------------------------------------------------------------- */

/* Whether there is nothing to move, which all ranks see alike. */
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

static oar_status pass_empty(ipc *self, const oar_collective *call)
{
    const oari_cuda *cu;
    oar_status status;

    OARI_TRY(oari_cuda_enter(self->device, &cu));
    status = oari_ipc_await_event(self, self->stream, call->ready);
    if (status == OAR_OK)
        status = oari_ipc_record(self, self->stream, call->finished);
    oari_cuda_leave();
    return status;
}

/* An empty one is done at once even if others wait: it touches nothing. */
oar_status oari_ipc_post(void *given, const oar_collective *call,
                         oar_transfer *done)
{
    ipc *self = given;
    oar_status why = (oar_status)atomic_load(&self->why);

    if (why != OAR_OK) {
        oari_ipc_finish(done, why);
        return OAR_OK;
    }
    OARI_TRY(check_aligned(call));
    if (is_empty(call)) {
        OARI_TRY(pass_empty(self, call));
        oari_ipc_finish(done, OAR_OK);
        return OAR_OK;
    }
    OARI_TRY(oari_ipc_queue_add(self, &self->queue, call, done));
    oari_ipc_go_on(self);
    return OAR_OK;
}
