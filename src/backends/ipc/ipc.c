/* SPDX-License-Identifier: Apache-2.0 */
/* ipc: the backend `ipc`: collectives and messages on GPU memory, between
 * processes of one host that share a GPU or have GPUs that reach each other.
 *
 * It has no links; those that the core makes beside it notice peers that are
 * gone and compare what ranks call. Nothing here ever waits for a peer: what
 * has to wait is in a queue, or on a stream. docs/decisions/0027 has the
 * reasons, README.md the limits. */
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
    DRAIN_MS = 500             /* for the streams to run out */
};

/* ---- queues -------------------------------------------------------------- */

oar_status oari_ipc_queue_add(ipc *self, ipc_queue *queue,
                              const oar_collective *call, oar_transfer *done)
{
    ipc_work *work = self->spare;

    if (work != NULL) {
        self->spare = work->next;
        memset(work, 0, sizeof *work);
    } else if ((work = oari_alloc(1, sizeof *work)) == NULL) {
        return OAR_E_NOMEM;
    }
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
    oari_transfer_finish(done, status);
}

static void end_queue(ipc *self, ipc_queue *queue, oar_status why)
{
    while (queue->first != NULL)
        oari_ipc_queue_end(self, queue, &queue->first, why);
}

/* ---- streams ------------------------------------------------------------- */

oar_status oari_ipc_wait_event(ipc *self, oari_cu_stream stream, void *event)
{
    if (event == NULL)
        return OAR_OK;
    return oari_cuda_check(self->cu->StreamWaitEvent(stream, event, 0),
                           "wait for the caller's stream");
}

oar_status oari_ipc_test_event(ipc *self, void *event, int *done)
{
    int result = event != NULL ? self->cu->EventQuery(event) : OARI_CU_SUCCESS;

    *done = result == OARI_CU_SUCCESS;
    if (result == OARI_CU_NOT_READY)
        return OAR_OK;
    return oari_cuda_check(result, "ask how far a stream is");
}

oar_status oari_ipc_record_event(ipc *self, oari_cu_stream stream, void *event)
{
    if (event == NULL)
        return OAR_OK;
    return oari_cuda_check(self->cu->EventRecord(event, stream),
                           "record the end of an operation");
}

oar_status oari_ipc_write_word(ipc *self, oari_cu_stream stream, int rank,
                               ipc_word *word, uint32_t value)
{
    oari_cu_memory at = oari_ipc_device_word(self, rank, word);

    return oari_cuda_check(self->cu->StreamWriteValue32(stream, at, value, 0),
                           "let a stream write how far it is");
}

oar_status oari_ipc_wait_word(ipc *self, oari_cu_stream stream, int rank,
                              ipc_word *word, uint32_t value)
{
    oari_cu_memory at = oari_ipc_device_word(self, rank, word);

    return oari_cuda_check(self->cu->StreamWaitValue32(stream, at, value, 0),
                           "let a stream wait for a peer's");
}

/* ---- progress ------------------------------------------------------------ */

static int takes_call(void *self, const oar_collective *call)
{
    switch (call->kind) {
    case OAR_COLL_ALL_REDUCE:
    case OAR_COLL_REDUCE:
    case OAR_COLL_REDUCE_SCATTER: return oari_ipc_reduces(call->in.dtype);
    default: return 1;
    }
}

/* A peer that has given up has ended kernels that others wait for: what they
 * wrote is incomplete. The core calls this after an operation has finished on
 * the device, and before its result is used, so that is found out in time. */
static oar_status progress_engine(void *given)
{
    ipc *self = given;
    oar_status why = (oar_status)atomic_load(&self->why);
    ipc_page *first = oari_ipc_page(self, 0);
    int stopped_by;

    if (why != OAR_OK) {
        end_queue(self, &self->queue, why);
        oari_match_abort(self->match, why);
        for (int r = 0; r < self->ranks; r++) {
            end_queue(self, &self->peer[r].outbox, why);
            end_queue(self, &self->peer[r].asked, why);
        }
        return OAR_OK;
    }
    if (self->ranks > 1 && atomic_load(&first->stop)) {
        stopped_by = (int)atomic_load(&first->stopper) - 1;
        return oari_about(stopped_by,
                          oari_fail(OAR_E_ABORTED,
                                    "ipc: rank %d has given up the group",
                                    stopped_by));
    }
    oari_ipc_progress_collectives(self);
    oari_ipc_progress_messages(self);
    return OAR_OK;
}

static void abort_engine(void *given, oar_status why)
{
    ipc *self = given;
    int none = OAR_OK;

    atomic_compare_exchange_strong(&self->why, &none, (int)why);
    oari_ipc_stop_streams(self);
}

/* ---- opening ------------------------------------------------------------- */

static oar_status probe_ipc(oar_backend_caps *caps)
{
    caps->devices = 1u << OAR_CUDA;
    caps->can = OAR_WANTS_LINKS | OAR_CAN_ORDER;
    caps->note = "several ranks on one GPU, or on GPUs of one host that reach "
                 "each other";
    return oar_device_available(OAR_CUDA);
}

static oar_status open_on_device(ipc *self, const oari_open *with)
{
    oari_cu_device device;
    int processors = 0;

    self->peer = oari_alloc((size_t)self->ranks, sizeof *self->peer);
    if (self->peer == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < self->ranks; r++) {
        self->peer[r].outbox.end = &self->peer[r].outbox.first;
        self->peer[r].asked.end = &self->peer[r].asked.first;
    }
    OARI_TRY(oari_ipc_open_messages(self));
    OARI_TRY(oari_cuda_check(self->cu->DeviceGet(&device, self->device),
                             "find a device"));
    OARI_TRY(oari_cuda_check(
        self->cu->DeviceGetAttribute(&processors, MULTIPROCESSOR_COUNT, device),
        "ask a device for its size"));
    self->processors = processors > 0 ? (unsigned)processors : 1;
    self->stream = with->env.stream;
    self->own_stream = self->stream == NULL;
    if (self->own_stream)
        OARI_TRY(oar_stream_create(oari_ipc_device(self), OAR_STREAM_URGENT,
                                   &self->stream));
    return oari_ipc_rendezvous(self, with);
}

static oar_status open_engine(void *given, const oari_open *with)
{
    ipc *self = given;
    size_t eager = with->group != NULL ? with->group->settings.eager_bytes
                                       : IPC_EAGER_BYTES;
    oar_status status;

    self->rank = with->env.rank;
    self->ranks = with->env.ranks;
    self->device = with->env.device;
    self->queue.end = &self->queue.first;
    self->eager_bytes =
        eager < IPC_EAGER_BYTES ? eager / 256 * 256 : IPC_EAGER_BYTES;
    if (self->ranks > IPC_RANKS)
        return oari_fail(OAR_E_UNAVAILABLE, "ipc: %d ranks; at most %d work",
                         self->ranks, IPC_RANKS);
    OARI_TRY(oari_cuda_enter(self->device, &self->cu));
    status = open_on_device(self, with);
    oari_cuda_leave();
    return status;
}

/* ---- closing ------------------------------------------------------------- */

/* Whether all that was put on the streams has run. */
static int is_idle(const ipc *self)
{
    for (int r = -1; r < self->ranks; r++) {
        oari_cu_stream stream = r < 0 ? self->stream : self->peer[r].stream;

        if ((r >= 0 || self->own_stream) && stream != NULL &&
            self->cu->StreamQuery(stream) == OARI_CU_NOT_READY)
            return 0;
    }
    return 1;
}

/* Waits until the streams have run out: by themselves, if the peers live; else
 * they are stopped. Returns 0 if they have not. */
static int drain_streams(ipc *self)
{
    int64_t half = oari_now_ns() + (int64_t)DRAIN_MS * 500000;
    int64_t deadline = half + (int64_t)DRAIN_MS * 500000;
    int stopped = atomic_load(&self->why) != OAR_OK;

    while (!is_idle(self)) {
        int64_t now = oari_now_ns();

        if (now > deadline)
            return 0;
        if (!stopped && now > half) {
            oari_ipc_stop_streams(self);
            stopped = 1;
        }
        sched_yield();
    }
    return 1;
}

static void free_lists(ipc *self)
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

/* Streams that do not end use memory and pages: these stay until the process
 * ends. */
static void close_engine(void *given)
{
    ipc *self = given;
    oar_device device = oari_ipc_device(self);
    const oari_cuda *cu;

    if (self->cu == NULL || self->peer == NULL ||
        oari_cuda_enter(self->device, &cu) != OAR_OK) {
        free_lists(self);
        return;
    }
    if (drain_streams(self)) {
        oari_ipc_release_memory(self);
        if (self->own_stream && self->stream != NULL)
            oar_stream_destroy(device, self->stream);
        for (int r = 0; r < self->ranks; r++) {
            if (self->peer[r].stream != NULL)
                oar_stream_destroy(device, self->peer[r].stream);
            if (self->peer[r].registered)
                cu->MemHostUnregister(self->peer[r].page);
        }
        oari_ipc_page_leave(self);
    }
    oari_cuda_leave();
    free_lists(self);
}

/* ---- the table ----------------------------------------------------------- */

const oari_backend oari_backend_ipc = {
    .ops.size = sizeof(oar_backend_ops),
    .ops.abi = OAR_BACKEND_ABI,
    .ops.name = "ipc",
    .ops.self_size = sizeof(ipc),
    .ops.probe = probe_ipc,
    .ops.close = close_engine,
    .ops.progress = progress_engine,
    .ops.abort = abort_engine,
    .ops.takes = takes_call,
    .ops.post_count = OAR_COLL_COUNT,
    .ops.post = OARI_POST_ON_DEVICE(oari_ipc_post),
    .open = open_engine,
};
