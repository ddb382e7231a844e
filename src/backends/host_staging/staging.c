/* SPDX-License-Identifier: Apache-2.0 */
/* staging: collectives and messages of device memory through the host, for
 * groups that have no engine for GPUs, or whose engine cannot do a call; only
 * where OARSONG_ENABLE_GPU_FALLBACK allows it.
 *
 * The ranks make a second group among themselves, for host memory. A worker
 * takes the calls in the order in which they are posted, so in the same order
 * on all ranks, and runs them on that group.
 */
#include "backends/host_staging/staging.h"

#include <string.h>

#include "backends/backends.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/env.h"
#include "base/status.h"
#include "base/thread.h"

enum {
    NAP_NS = 50000,    /* between tests of messages in flight */
    CORES_FOR_TWO = 8, /* for each rank, before a second thread sums */
    SLOT_BYTES = 4 << 20,
    SLOT_BYTES_OF_TWO = 8 << 20 /* at two ranks */
};

/* ---- messages ------------------------------------------------------------ */

/* A message is loaded as a whole, sent over the inner group, and stored as a
 * whole. None waits for another, so that ranks that send to each other do not
 * block each other. */
static oar_status start_message(staging *h, staging_call *c)
{
    const oar_collective *call = &c->call;
    oar_call_opts o = h->untimed;
    oari_cu_event loaded = h->slot[0].loaded;
    oar_span span;

    if (oari_span_bytes(&c->call.out) != 0)
        OARI_TRY(oar_pinned_alloc(oari_span_bytes(&c->call.out), &c->memory));
    span = oar_span_of(c->memory, call->out.count, call->out.dtype);
    if (call->kind == OAR_COLL_SEND) {
        OARI_TRY(staging_wait_ready(h, call));
        OARI_TRY(staging_copy_down(h, c->memory, call->out.data,
                                   oari_span_bytes(&c->call.out)));
        OARI_TRY(staging_record_event(h, loaded, h->down));
        OARI_TRY(staging_wait_event(h, loaded));
        return oar_send(h->inner, span, call->root, call->tag, &o, &c->work);
    }
    c->message = oar_message_init();
    o.message = &c->message;
    return oar_recv(h->inner, span, call->root, call->tag, &o, &c->work);
}

/* Waits until a received message is stored: then its memory may be freed. */
static oar_status finish_message(staging *h, staging_call *c)
{
    const oar_collective *call = &c->call;

    if (call->kind == OAR_COLL_SEND)
        return staging_record_event(h, call->finished, h->up);
    OARI_TRY(staging_wait_ready(h, call));
    OARI_TRY(staging_copy_up(h, call->out.data, c->memory,
                             oari_span_bytes(&c->call.out)));
    OARI_TRY(staging_record_event(h, call->finished, h->up));
    return staging_wait_event(h, call->finished);
}

/* ---- the worker ---------------------------------------------------------- */

static void report_done(staging *h, staging_call *c, oar_status status)
{
    c->status = status;
    if (status != OAR_OK)
        c->why = *oar_last_error();
    pthread_mutex_lock(&h->lock);
    oari_list_append(&h->done, &c->link);
    pthread_mutex_unlock(&h->lock);
}

/* After a collective that failed here, the other ranks may be in another one
 * than this rank, so no later one runs. */
static void run_call(void *arg)
{
    staging_call *c = arg;
    staging *h = c->h;
    int is_message = c->call.kind >= OAR_COLL_SEND;
    oar_status status = staging_check_aborted(h);
    int aborted = status != OAR_OK;

    if (status == OAR_OK && !is_message && h->failed)
        status = oari_fail(OAR_E_ABORTED, "a collective before it has failed");
    if (status == OAR_OK)
        status = staging_buffer_open(h, c->call.out.device.index);
    if (status == OAR_OK)
        status = is_message ? start_message(h, c)
                            : staging_run_collective(h, &c->call);
    if (status == OAR_OK && is_message) {
        oari_list_append(&h->messages, &c->link);
        return;
    }
    h->failed |= !aborted && !is_message && status != OAR_OK;
    report_done(h, c, status);
}

/* The worker's step. It is called again soon while messages are in flight. */
static int64_t test_messages(void *arg)
{
    staging *h = arg;
    oari_link *link = h->messages.first, *next;

    for (; link != NULL; link = next) {
        staging_call *c = OARI_CONTAINER_OF(link, staging_call, link);
        int done = 0;
        oar_status status = oar_work_test(c->work, &done);

        next = link->next;
        if (!done && status == OAR_OK)
            continue;
        if (status == OAR_OK)
            status = finish_message(h, c);
        oari_list_remove(&h->messages, link);
        report_done(h, c, status);
    }
    return h->messages.first != NULL ? oari_now_ns() + NAP_NS : OARI_NEVER;
}

/* ---- what the core calls ------------------------------------------------- */

static oar_status post_call(void *self, const oar_collective *call,
                            oar_transfer *done)
{
    staging *h = self;
    size_t n = (size_t)h->ranks;
    staging_call *c = oari_alloc(1, sizeof *c + 2 * n * sizeof(size_t));
    size_t *room;
    oar_status status;

    if (c == NULL)
        return OAR_E_NOMEM;
    room = (size_t *)(c + 1);
    c->job = (oari_job){ .run = run_call, .arg = c };
    c->h = h;
    c->call = *call;
    c->done = done;
    if (call->in_counts != NULL)
        c->call.in_counts = memcpy(room, call->in_counts, n * sizeof *room);
    if (call->out_counts != NULL)
        c->call.out_counts =
            memcpy(room + n, call->out_counts, n * sizeof *room);
    atomic_fetch_add(&h->pending, 1);
    status = oari_worker_post(h->worker, &c->job, OARI_NEVER);
    if (status != OAR_OK) {
        atomic_fetch_sub(&h->pending, 1);
        oari_free(c);
    }
    return status;
}

static oar_status progress_engine(void *self)
{
    staging *h = self;
    oari_list done;
    oari_link *link;

    pthread_mutex_lock(&h->lock);
    done = h->done;
    h->done = (oari_list){ NULL, NULL };
    pthread_mutex_unlock(&h->lock);
    while ((link = oari_list_take(&done)) != NULL) {
        staging_call *c = OARI_CONTAINER_OF(link, staging_call, link);
        oar_transfer *transfer = c->done;

        if (c->status != OAR_OK)
            oari_fail_with(&c->why);
        transfer->source = c->message.source;
        transfer->got_tag = (uint64_t)c->message.tag;
        transfer->got_bytes = c->message.bytes;
        transfer->status = h->why != OAR_OK ? (oar_status)h->why : c->status;
        transfer->done = 1;
        oar_work_release(c->work);
        oar_pinned_free(c->memory);
        oari_free(c);
        atomic_fetch_sub(&h->pending, 1);
    }
    return OAR_OK;
}

static void abort_engine(void *self, oar_status why)
{
    staging *h = self;
    int none = OAR_OK;

    if (atomic_compare_exchange_strong(&h->why, &none, (int)why))
        oar_group_abort(h->inner, "the group it belongs to has ended");
}

/* ---- opening and closing ------------------------------------------------- */

static oar_status probe_staging(oar_backend_caps *caps)
{
    caps->devices = 1u << OAR_CUDA;
    caps->can = OAR_WANTS_LINKS | OAR_CAN_ORDER | OAR_CAN_ANY;
    caps->note = "device memory through the host";
    return OAR_OK;
}

static int takes_call(void *self, const oar_collective *call)
{
    return !oari_kind_reduces(call->kind) ||
           oar_reduce_op_check(call->op, call->out.dtype) == OAR_OK;
}

static oar_status make_inner_group(staging *h, oar_group *outer)
{
    oari_child_spec spec = { .own = "host",
                             .count = h->ranks,
                             .bare = 1,
                             .rendezvous_ms = outer->timeout_ms };
    int *member = oari_alloc((size_t)h->ranks, sizeof *member);
    oar_status status;

    if (member == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < h->ranks; r++)
        member[r] = r;
    spec.member = member;
    status = oari_group_child(outer, &spec, &h->inner);
    oari_free(member);
    return status;
}

static oar_status open_engine(void *self, const oari_open *with)
{
    staging *h = self;
    oari_worker_opts opts = { .name = "oar-staging",
                              .step = test_messages,
                              .arg = h };
    int64_t slot_bytes = with->env.ranks == 2 ? SLOT_BYTES_OF_TWO : SLOT_BYTES;
    int64_t threads = oari_cpus() >= CORES_FOR_TWO * with->env.ranks ? 2 : 1;
    uint64_t bytes;

    h->rank = with->env.rank;
    h->ranks = with->env.ranks;
    h->device = -1;
    h->untimed = oar_call_opts_init();
    h->untimed.timeout_ms = -1;
    pthread_mutex_init(&h->lock, NULL);
    OARI_TRY(oari_env_int("OARSONG_GPU_FALLBACK_BYTES", 16 << 10, 1 << 30,
                          &slot_bytes));
    OARI_TRY(oari_env_int("OARSONG_GPU_FALLBACK_THREADS", 1, 2, &threads));
    h->sum_threads = (int)threads;
    h->in_count = oari_alloc((size_t)h->ranks, sizeof *h->in_count);
    h->out_count = oari_alloc((size_t)h->ranks, sizeof *h->out_count);
    h->mapped = oari_alloc((size_t)h->ranks, sizeof *h->mapped);
    h->pinned = oari_alloc((size_t)h->ranks, 1);
    if (h->in_count == NULL || h->out_count == NULL || h->mapped == NULL ||
        h->pinned == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(make_inner_group(h, with->group));
    /* rank 0's setting holds for all ranks */
    bytes = (uint64_t)slot_bytes / STAGING_LINE * STAGING_LINE;
    OARI_TRY(oar_broadcast(h->inner, oar_span_of(&bytes, 1, OAR_U64), 0, NULL,
                           NULL));
    h->slot_bytes = bytes;
    h->buffer_bytes = STAGING_SLOTS * bytes + sizeof(staging_counters);
    return oari_worker_create(&opts, &h->worker);
}

static void close_engine(void *self)
{
    staging *h = self;

    if (atomic_load(&h->pending) != 0)
        abort_engine(h, OAR_E_ABORTED);
    oari_worker_destroy(h->worker, NULL);
    staging_sum_close(h);
    staging_buffer_close(h);
    progress_engine(h);
    oar_group_destroy(h->inner);
    oari_free(h->in_count);
    oari_free(h->out_count);
    oari_free(h->mapped);
    oari_free(h->pinned);
    pthread_mutex_destroy(&h->lock);
}

const oari_backend oari_backend_hosted = {
    .ops.size = sizeof(oar_backend_ops),
    .ops.abi = OAR_BACKEND_ABI,
    .ops.name = "hosted",
    .ops.self_size = sizeof(staging),
    .ops.probe = probe_staging,
    .ops.close = close_engine,
    .ops.progress = progress_engine,
    .ops.abort = abort_engine,
    .ops.takes = takes_call,
    .ops.post_count = OAR_COLL_COUNT,
    .ops.post = OARI_POST_ON_DEVICE(post_call),
    .role = OARI_ROLE_STAGING,
    .open = open_engine,
};
