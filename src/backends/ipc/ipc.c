/* SPDX-License-Identifier: Apache-2.0 */
/* ipc: the backend `ipc`: collectives and messages on GPU memory, between
 * processes of one host that share a GPU or have GPUs that reach each other.
 *
 * It has no links; those that the core makes beside it find peers that are gone
 * and compare what ranks call. Nothing here ever waits for a peer: what has to
 * wait is in a queue, or on a stream. docs/decisions/0027 says why it is the
 * way it is, README.md what it cannot do. */
#include <sched.h>
#include <string.h>

#include "backends/backends.h"
#include "backends/ipc/ipc.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/group/group.h"

enum {
    MULTIPROCESSOR_COUNT = 16, /* CUdevice_attribute */
    DRAIN_MS = 500             /* for streams that have been let go */
};

/* ---- queues -------------------------------------------------------------- */

void oari_ipc_finish(oar_transfer *done, oar_status status)
{
    done->status = status;
    done->done = 1;
}

static ipc_work *new_work(ipc *self)
{
    ipc_work *work = self->spare;

    if (work == NULL)
        return oari_alloc(1, sizeof *work);
    self->spare = work->next;
    memset(work, 0, sizeof *work);
    return work;
}

oar_status oari_ipc_queue_add(ipc *self, ipc_queue *queue,
                              const oar_collective *call, oar_transfer *done)
{
    ipc_work *work = new_work(self);

    if (work == NULL)
        return OAR_E_NOMEM;
    work->call = call;
    work->done = done;
    *queue->end = work;
    queue->end = &work->next;
    return OAR_OK;
}

void oari_ipc_queue_end(ipc *self, ipc_queue *queue, ipc_work **place,
                        oar_status status)
{
    ipc_work *work = *place;
    oar_transfer *done = work->done;

    *place = work->next;
    if (queue->end == &work->next)
        queue->end = place;
    work->next = self->spare;
    self->spare = work;
    oari_ipc_finish(done, status);
}

static void end_all(ipc *self, ipc_queue *queue, oar_status why)
{
    while (queue->first != NULL)
        oari_ipc_queue_end(self, queue, &queue->first, why);
}

static void abandon(ipc *self, oar_status why)
{
    end_all(self, &self->queue, why);
    oari_match_abort(self->match, why);
    for (int r = 0; r < self->ranks; r++) {
        end_all(self, &self->peer[r].outbox, why);
        end_all(self, &self->peer[r].asked, why);
    }
}

/* ---- streams ------------------------------------------------------------- */

oar_status oari_ipc_await_event(ipc *self, oari_cu_stream stream, void *event)
{
    if (event == NULL)
        return OAR_OK;
    return oari_cuda_check(self->cu->StreamWaitEvent(stream, event, 0),
                           "wait for the caller's stream");
}

oar_status oari_ipc_has_come(ipc *self, void *event, int *done)
{
    int result = event != NULL ? self->cu->EventQuery(event) : OARI_CU_SUCCESS;

    *done = result == OARI_CU_SUCCESS;
    if (result == OARI_CU_NOT_READY)
        return OAR_OK;
    return oari_cuda_check(result, "ask how far a stream is");
}

oar_status oari_ipc_record(ipc *self, oari_cu_stream stream, void *event)
{
    if (event == NULL)
        return OAR_OK;
    return oari_cuda_check(self->cu->EventRecord(event, stream),
                           "record the end of an operation");
}

oar_status oari_ipc_write(ipc *self, oari_cu_stream stream, int rank,
                          ipc_word *word, uint32_t value)
{
    oari_cu_memory at = oari_ipc_reach(self, rank, word);

    return oari_cuda_check(self->cu->StreamWriteValue32(stream, at, value, 0),
                           "let a stream say how far it is");
}

oar_status oari_ipc_await(ipc *self, oari_cu_stream stream, int rank,
                          ipc_word *word, uint32_t value)
{
    oari_cu_memory at = oari_ipc_reach(self, rank, word);

    return oari_cuda_check(self->cu->StreamWaitValue32(stream, at, value, 0),
                           "let a stream wait for a peer's");
}

/* ---- moving on ----------------------------------------------------------- */

static int takes(void *self, const oar_collective *call)
{
    switch (call->kind) {
    case OAR_COLL_ALL_REDUCE:
    case OAR_COLL_REDUCE:
    case OAR_COLL_REDUCE_SCATTER: return oari_ipc_reduces(call->in.dtype);
    default: return 1;
    }
}

/* A peer that has given up has ended kernels that others wait for: what they
 * wrote is not whole. Whoever asks here after an operation has finished on the
 * device, and before its result is used, finds that out. */
static oar_status check_peers(const ipc *self)
{
    int who = self->ranks > 1 ? oari_ipc_stopper(self) : -1;

    if (who < 0)
        return OAR_OK;
    return oari_about(
        who,
        oari_fail(OAR_E_ABORTED, "ipc: rank %d has given up the group", who));
}

static oar_status progress(void *given)
{
    ipc *self = given;
    oar_status why = (oar_status)atomic_load(&self->why);

    if (why != OAR_OK) {
        abandon(self, why);
        return OAR_OK;
    }
    OARI_TRY(check_peers(self));
    oari_ipc_go_on(self);
    oari_ipc_go_on_messages(self);
    return OAR_OK;
}

static void abort_engine(void *given, oar_status why)
{
    ipc *self = given;
    int none = OAR_OK;

    atomic_compare_exchange_strong(&self->why, &none, (int)why);
    oari_ipc_release(self);
}

/* ---- opening ------------------------------------------------------------- */

static oar_status probe(oar_backend_caps *caps)
{
    caps->devices = 1u << OAR_CUDA;
    caps->can = OAR_WANTS_LINKS | OAR_CAN_ORDER;
    caps->note = "several ranks on one GPU, or on GPUs of one host that reach "
                 "each other";
    return oar_device_available(OAR_CUDA);
}

static oar_status make_peers(ipc *self)
{
    self->peer = oari_alloc((size_t)self->ranks, sizeof *self->peer);
    if (self->peer == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < self->ranks; r++) {
        self->peer[r].outbox.end = &self->peer[r].outbox.first;
        self->peer[r].asked.end = &self->peer[r].asked.first;
    }
    return OAR_OK;
}

static oar_status make_stream(ipc *self, void *given)
{
    self->stream = given;
    self->own_stream = given == NULL;
    if (given != NULL)
        return OAR_OK;
    return oar_stream_create(oar_device_of(OAR_CUDA, self->device),
                             OAR_STREAM_URGENT, &self->stream);
}

static oar_status ask_device(ipc *self)
{
    oari_cu_device device;
    int processors = 0;

    OARI_TRY(oari_cuda_check(self->cu->DeviceGet(&device, self->device),
                             "find a device"));
    OARI_TRY(oari_cuda_check(
        self->cu->DeviceGetAttribute(&processors, MULTIPROCESSOR_COUNT, device),
        "ask a device for its size"));
    self->processors = processors > 0 ? (unsigned)processors : 1;
    return OAR_OK;
}

static oar_status open_inside(ipc *self, const oari_open *with)
{
    OARI_TRY(make_peers(self));
    OARI_TRY(oari_ipc_open_messages(self));
    OARI_TRY(ask_device(self));
    OARI_TRY(make_stream(self, with->env.stream));
    return oari_ipc_meet(self, with);
}

/* The group's, but no more than there is reason to keep on the device. */
static size_t eager_bytes(const oari_open *with)
{
    const oar_group *group = with->group;
    size_t wanted =
        group != NULL ? group->settings.eager_bytes : IPC_EAGER_BYTES;

    return wanted < IPC_EAGER_BYTES ? wanted / 256 * 256 : IPC_EAGER_BYTES;
}

static oar_status open_engine(void *given, const oari_open *with)
{
    ipc *self = given;
    oar_status status;

    self->rank = with->env.rank;
    self->ranks = with->env.ranks;
    self->device = with->env.device;
    self->queue.end = &self->queue.first;
    self->eager_bytes = eager_bytes(with);
    if (self->ranks > IPC_RANKS)
        return oari_fail(OAR_E_UNAVAILABLE, "ipc: %d ranks; at most %d work",
                         self->ranks, IPC_RANKS);
    OARI_TRY(oari_cuda_enter(self->device, &self->cu));
    status = open_inside(self, with);
    oari_cuda_leave();
    return status;
}

/* ---- closing ------------------------------------------------------------- */

static int has_run(const ipc *self, oari_cu_stream stream)
{
    return stream == NULL || self->cu->StreamQuery(stream) != OARI_CU_NOT_READY;
}

static int all_have_run(const ipc *self)
{
    int all = !self->own_stream || has_run(self, self->stream);

    for (int r = 0; r < self->ranks; r++)
        all = all && has_run(self, self->peer[r].stream);
    return all;
}

/* What is on the streams of a group in good order ends by itself, if the peers
 * live. If not they are let go. */
static int drain(ipc *self)
{
    int64_t half = oari_now_ns() + (int64_t)DRAIN_MS * 500000;
    int64_t until = half + (int64_t)DRAIN_MS * 500000;
    int let_go = atomic_load(&self->why) != OAR_OK;

    while (!all_have_run(self)) {
        int64_t now = oari_now_ns();

        if (now > until)
            return 0;
        if (!let_go && now > half) {
            oari_ipc_release(self);
            let_go = 1;
        }
        sched_yield();
    }
    return 1;
}

static void end_streams(ipc *self)
{
    oar_device device = oar_device_of(OAR_CUDA, self->device);

    if (self->own_stream && self->stream != NULL)
        oar_stream_destroy(device, self->stream);
    for (int r = 0; r < self->ranks; r++)
        if (self->peer[r].stream != NULL)
            oar_stream_destroy(device, self->peer[r].stream);
}

static void leave_pages(ipc *self)
{
    for (int r = 0; r < self->ranks; r++)
        if (self->peer[r].registered)
            self->cu->MemHostUnregister(self->peer[r].page);
    oari_ipc_page_leave(self);
}

static void free_arrays(ipc *self)
{
    oari_match_destroy(self->match);
    while (self->spare != NULL) {
        ipc_work *work = self->spare;

        self->spare = work->next;
        oari_free(work);
    }
    oari_free(self->peer);
    oari_free(self->kernel);
}

/* Streams that do not end use what is left: it stays until the process ends. */
static void close_engine(void *given)
{
    ipc *self = given;
    const oari_cuda *cu;

    if (self->cu == NULL || self->peer == NULL ||
        oari_cuda_enter(self->device, &cu) != OAR_OK) {
        free_arrays(self);
        return;
    }
    if (drain(self)) {
        oari_ipc_forget_mapped(self);
        end_streams(self);
        leave_pages(self);
    }
    oari_cuda_leave();
    free_arrays(self);
}

/* ---- the table ----------------------------------------------------------- */

const oari_backend oari_backend_ipc = {
    .ops.size = sizeof(oar_backend_ops),
    .ops.abi = OAR_BACKEND_ABI,
    .ops.name = "ipc",
    .ops.self_size = sizeof(ipc),
    .ops.probe = probe,
    .ops.close = close_engine,
    .ops.progress = progress,
    .ops.abort = abort_engine,
    .ops.takes = takes,
    .ops.post_count = OAR_COLL_COUNT,
    .ops.post = {
        [OAR_COLL_BROADCAST] = oari_ipc_post,
        [OAR_COLL_ALL_REDUCE] = oari_ipc_post,
        [OAR_COLL_REDUCE] = oari_ipc_post,
        [OAR_COLL_GATHER] = oari_ipc_post,
        [OAR_COLL_SCATTER] = oari_ipc_post,
        [OAR_COLL_ALL_GATHER] = oari_ipc_post,
        [OAR_COLL_REDUCE_SCATTER] = oari_ipc_post,
        [OAR_COLL_ALL_TO_ALL] = oari_ipc_post,
        [OAR_COLL_SEND] = oari_ipc_send,
        [OAR_COLL_RECV] = oari_ipc_recv,
    },
    .open = open_engine,
};
