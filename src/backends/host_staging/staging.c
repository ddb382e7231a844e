/* SPDX-License-Identifier: Apache-2.0 */
/* staging: the way of device memory through the host, for groups that have no
 * engine for GPUs, or whose engine cannot do a call; only where
 * OARSONG_ENABLE_GPU_FALLBACK allows it.
 *
 * The ranks make a second group among themselves, for host memory. A worker
 * takes the calls in the order in which they are posted, so in the same order
 * on all ranks, and does them on that group.
 */
#include "backends/host_staging/staging.h"

#include <string.h>

#include "backends/backends.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/status.h"
#include "base/thread.h"

enum {
    NAP_NS = 50000,    /* between two looks at messages under way */
    CORES_FOR_TWO = 8, /* a rank, before a second thread helps */
    SLOT_BYTES = 4 << 20,
    SLOT_BYTES_OF_TWO = 8 << 20 /* at two ranks */
};

/* ---- the worker ---------------------------------------------------------- */

static void put_over(hosted *h, hosted_job *job, oar_status status)
{
    job->status = status;
    if (status != OAR_OK)
        job->why = *oar_last_error();
    pthread_mutex_lock(&h->lock);
    oari_list_append(&h->over, &job->link);
    pthread_mutex_unlock(&h->lock);
}

/* After one that failed here, the others may be at another collective than this
 * rank. */
static oar_status do_collective(hosted *h, const oar_collective *call)
{
    oar_status status =
        h->torn ? oari_fail(OAR_E_ABORTED, "a collective before it has failed")
                : hosted_stage_open(h, call->out.device.index);

    if (status == OAR_OK)
        status = hosted_collective(h, call);
    h->torn |= status != OAR_OK;
    return status;
}

static void begin_job(void *arg)
{
    hosted_job *job = arg;
    hosted *h = job->h;
    oar_status status = hosted_goes_on(h);

    if (job->call.kind < OAR_COLL_SEND) {
        if (status == OAR_OK)
            status = do_collective(h, &job->call);
        put_over(h, job, status);
        return;
    }
    if (status == OAR_OK)
        status = hosted_stage_open(h, job->call.out.device.index);
    if (status == OAR_OK)
        status = hosted_letter_begin(h, job);
    if (status == OAR_OK)
        oari_list_append(&h->letters, &job->link);
    else
        put_over(h, job, status);
}

/* The worker's step. While messages are under way it comes again soon. */
static int64_t look_at_letters(void *arg)
{
    hosted *h = arg;
    oari_link *link = h->letters.first, *next;

    for (; link != NULL; link = next) {
        hosted_job *job = OARI_CONTAINER_OF(link, hosted_job, link);
        oar_status status;

        next = link->next;
        if (!hosted_letter_done(h, job, &status))
            continue;
        oari_list_remove(&h->letters, link);
        put_over(h, job, status);
    }
    return h->letters.first != NULL ? oari_now_ns() + NAP_NS : OARI_NEVER;
}

/* ---- the backend's calls ------------------------------------------------- */

static hosted_job *new_job(hosted *h, const oar_collective *call,
                           oar_transfer *done)
{
    size_t n = (size_t)h->ranks;
    hosted_job *job = oari_alloc(1, sizeof *job + 2 * n * sizeof(size_t));
    size_t *room;

    if (job == NULL)
        return NULL;
    room = (size_t *)(job + 1);
    job->job = (oari_job){ .run = begin_job, .arg = job };
    job->h = h;
    job->call = *call;
    job->done = done;
    if (call->in_counts != NULL)
        job->call.in_counts = memcpy(room, call->in_counts, n * sizeof *room);
    if (call->out_counts != NULL)
        job->call.out_counts =
            memcpy(room + n, call->out_counts, n * sizeof *room);
    return job;
}

static oar_status post(void *self, const oar_collective *call,
                       oar_transfer *done)
{
    hosted *h = self;
    hosted_job *job = new_job(h, call, done);
    oar_status status;

    if (job == NULL)
        return OAR_E_NOMEM;
    atomic_fetch_add(&h->pending, 1);
    status = oari_worker_post(h->worker, &job->job, OARI_NEVER);
    if (status != OAR_OK) {
        atomic_fetch_sub(&h->pending, 1);
        oari_free(job);
    }
    return status;
}

static void finish(hosted *h, hosted_job *job)
{
    oar_transfer *done = job->done;

    if (job->status != OAR_OK)
        oari_fail_with(&job->why);
    done->source = job->message.source;
    done->got_tag = (uint64_t)job->message.tag;
    done->got_bytes = job->message.bytes;
    done->status = h->why != OAR_OK ? (oar_status)h->why : job->status;
    done->done = 1;
    hosted_letter_drop(job);
    oari_free(job);
    atomic_fetch_sub(&h->pending, 1);
}

static oar_status progress(void *self)
{
    hosted *h = self;
    oari_list over;
    oari_link *link;

    pthread_mutex_lock(&h->lock);
    over = h->over;
    h->over = (oari_list){ NULL, NULL };
    pthread_mutex_unlock(&h->lock);
    while ((link = oari_list_take(&over)) != NULL)
        finish(h, OARI_CONTAINER_OF(link, hosted_job, link));
    return OAR_OK;
}

static void abort_engine(void *self, oar_status why)
{
    hosted *h = self;
    int none = OAR_OK;

    if (atomic_compare_exchange_strong(&h->why, &none, (int)why))
        oar_group_abort(h->inner, "the group it carries for has ended");
}

/* ---- opening and closing ------------------------------------------------- */

static oar_status probe(oar_backend_caps *caps)
{
    caps->devices = 1u << OAR_CUDA;
    caps->can = OAR_WANTS_LINKS | OAR_CAN_ORDER | OAR_CAN_ANY;
    caps->note = "device memory through the host";
    return OAR_OK;
}

static int takes(void *self, const oar_collective *call)
{
    return !oari_kind_reduces(call->kind) ||
           oar_reduce_op_check(call->op, call->out.dtype) == OAR_OK;
}

static oar_status make_inner(hosted *h, oar_group *outer)
{
    oari_child_spec kin = { .own = "host",
                            .count = h->ranks,
                            .bare = 1,
                            .meet_ms = outer->timeout_ms };
    int *member = oari_alloc((size_t)h->ranks, sizeof *member);
    oar_status status;

    if (member == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < h->ranks; r++)
        member[r] = r;
    kin.member = member;
    status = oari_group_child(outer, &kin, &h->inner);
    oari_free(member);
    return status;
}

static oar_status read_settings(hosted *h)
{
    int64_t bytes = h->ranks == 2 ? SLOT_BYTES_OF_TWO : SLOT_BYTES;
    int64_t threads = oari_cpus() >= CORES_FOR_TWO * h->ranks ? 2 : 1;

    OARI_TRY(
        oari_env_int("OARSONG_GPU_FALLBACK_BYTES", 16 << 10, 1 << 30, &bytes));
    OARI_TRY(oari_env_int("OARSONG_GPU_FALLBACK_THREADS", 1, 2, &threads));
    h->slot_bytes = (size_t)bytes / HOSTED_LINE * HOSTED_LINE;
    h->sum_threads = (int)threads;
    return OAR_OK;
}

/* All ranks cut alike: rank 0's setting counts. */
static oar_status agree_on_slots(hosted *h)
{
    uint64_t bytes = h->slot_bytes;

    OARI_TRY(oar_broadcast(h->inner, oar_span_of(&bytes, 1, OAR_U64), 0, NULL,
                           NULL));
    h->slot_bytes = bytes;
    return OAR_OK;
}

static oar_status open_engine(void *self, const oari_open *with)
{
    hosted *h = self;
    oari_worker_opts opts = { .name = "oar-staging",
                              .step = look_at_letters,
                              .arg = h };

    h->rank = with->env.rank;
    h->ranks = with->env.ranks;
    h->device = -1;
    pthread_mutex_init(&h->lock, NULL);
    OARI_TRY(read_settings(h));
    h->count = oari_alloc((size_t)h->ranks, sizeof *h->count);
    h->other = oari_alloc((size_t)h->ranks, sizeof *h->other);
    h->near = oari_alloc((size_t)h->ranks, sizeof *h->near);
    h->pinned = oari_alloc((size_t)h->ranks, 1);
    if (h->count == NULL || h->other == NULL || h->near == NULL ||
        h->pinned == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(make_inner(h, with->group));
    OARI_TRY(agree_on_slots(h));
    return oari_worker_create(&opts, &h->worker);
}

static void close_engine(void *self)
{
    hosted *h = self;

    if (atomic_load(&h->pending) != 0)
        abort_engine(h, OAR_E_ABORTED);
    oari_worker_destroy(h->worker, NULL);
    hosted_sum_close(h);
    hosted_stage_close(h);
    progress(h);
    oar_group_destroy(h->inner);
    oari_free(h->count);
    oari_free(h->other);
    oari_free(h->near);
    oari_free(h->pinned);
    pthread_mutex_destroy(&h->lock);
}

const oari_backend oari_backend_hosted = {
    .ops.size = sizeof(oar_backend_ops),
    .ops.abi = OAR_BACKEND_ABI,
    .ops.name = "hosted",
    .ops.self_size = sizeof(hosted),
    .ops.probe = probe,
    .ops.close = close_engine,
    .ops.progress = progress,
    .ops.abort = abort_engine,
    .ops.takes = takes,
    .ops.post_count = OAR_COLL_COUNT,
    .ops.post = {
        [OAR_COLL_BROADCAST] = post,
        [OAR_COLL_ALL_REDUCE] = post,
        [OAR_COLL_REDUCE] = post,
        [OAR_COLL_GATHER] = post,
        [OAR_COLL_SCATTER] = post,
        [OAR_COLL_ALL_GATHER] = post,
        [OAR_COLL_REDUCE_SCATTER] = post,
        [OAR_COLL_ALL_TO_ALL] = post,
        [OAR_COLL_SEND] = post,
        [OAR_COLL_RECV] = post,
    },
    .role = OARI_ROLE_STAGING,
    .open = open_engine,
};
