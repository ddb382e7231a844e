/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_call: collectives of ours as collectives of Gloo's. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "backends/gloo/gloo.h"
#include "base/status.h"

/* ---- which --------------------------------------------------------------- */

static int reduces(oar_coll kind)
{
    return kind == OAR_COLL_ALL_REDUCE || kind == OAR_COLL_REDUCE ||
           kind == OAR_COLL_REDUCE_SCATTER;
}

/* Elements of one rank's part, or of all where there are no parts: what all
 * ranks have alike. */
static size_t agreed_count(const oar_collective *call)
{
    switch (call->kind) {
    case OAR_COLL_REDUCE:
    case OAR_COLL_GATHER:
    case OAR_COLL_ALL_GATHER:
    case OAR_COLL_ALL_TO_ALL: return call->in.count;
    default: return call->out.count;
    }
}

static int is_half(oar_dtype dtype)
{
    return dtype == OAR_F16 || dtype == OAR_BF16;
}

/* The weights of a mean have to be summed too. A factor needs a place for the
 * product, and half types, which are summed in f32 and rounded once, one for
 * f32: of all reductions, all_reduce has it. */
static int takes_operator(const oar_collective *call)
{
    if (call->op.kind == OAR_REDUCE_OP_WEIGHTED_MEAN)
        return 0;
    return call->kind == OAR_COLL_ALL_REDUCE ||
           (call->op.kind != OAR_REDUCE_OP_PREMUL_SUM &&
            !is_half(call->in.dtype));
}

/* Parts of any size Gloo knows in two collectives. */
static int takes_parts(const oar_collective *call)
{
    return call->kind == OAR_COLL_ALL_GATHER ||
           call->kind == OAR_COLL_ALL_TO_ALL;
}

/* Gloo's first generation counts bytes by int. */
static int is_too_large(const gloo *g, const oar_collective *call)
{
    size_t unit = is_half(call->out.dtype) ? sizeof(float)
                                           : oar_dtype_size(call->out.dtype);

    return gloo_is_old(g->choice.way[call->kind]) &&
           agreed_count(call) > INT_MAX / unit / (size_t)g->ranks;
}

/* Where Gloo's first generation is wrong, or not the same on all ranks: its
 * ring combines in another order on every rank, its bcube leaves out
 * contributions unless the ranks are a power of two. */
static int is_wrong(const gloo *g, const oar_collective *call)
{
    oar_dtype dtype = call->in.dtype;
    int rounds = (dtype == OAR_F32 || dtype == OAR_F64 || is_half(dtype)) &&
                 call->op.kind != OAR_REDUCE_OP_MIN &&
                 call->op.kind != OAR_REDUCE_OP_MAX;

    switch (g->choice.way[call->kind]) {
    case GLOO_ALLREDUCE_OLD_RING: return rounds && g->ranks > 2;
    case GLOO_ALLREDUCE_OLD_BCUBE: return (g->ranks & (g->ranks - 1)) != 0;
    default: return 0;
    }
}

int gloo_takes(void *self, const oar_collective *call)
{
    const gloo *g = self;

    if (g->hub == NULL || g->choice.way[call->kind] == GLOO_PLANNED)
        return 0;
    if (call->kind == OAR_COLL_BARRIER)
        return 1;
    if (reduces(call->kind) && (!takes_operator(call) || is_wrong(g, call)))
        return 0;
    if (call->ragged)
        return takes_parts(call);
    return agreed_count(call) != 0 && !is_too_large(g, call);
}

/* ---- the arithmetic ------------------------------------------------------ */

static void combine(const void *how, void *c, const void *a, const void *b,
                    size_t count)
{
    const gloo_job *job = how;
    const void *source[] = { a, b };
    void *destination[] = { c };
    oari_reduction r = { .kind = job->op,
                         .dtype = job->dtype,
                         .sources = 2,
                         .source = source,
                         .destinations = 1,
                         .destination = destination };

    oari_reduce(&r, count);
}

static void describe_operator(const gloo *g, const oar_collective *call,
                              gloo_job *job)
{
    job->op = call->op.kind;
    job->dtype = call->in.dtype;
    job->task.combine = combine;
    job->task.how = job;
    if (is_half(job->dtype)) {
        job->widens = 1;
        job->half = job->dtype;
        job->dtype = OAR_F32;
        job->task.unit = sizeof(float);
        job->from = call->in.data;
        job->into = call->out.data;
    }
    if (call->op.kind == OAR_REDUCE_OP_AVG)
        job->divisor = g->ranks;
    if (call->op.kind == OAR_REDUCE_OP_PREMUL_SUM) {
        job->has_factor = 1;
        job->factor = call->op.scalar;
    }
    if (call->op.kind == OAR_REDUCE_OP_AVG ||
        call->op.kind == OAR_REDUCE_OP_PREMUL_SUM)
        job->op = OAR_REDUCE_OP_SUM;
}

/* ---- posting ------------------------------------------------------------- */

/* Tells collectives apart that are under way at once, and those that do not fit
 * each other: these then wait for each other in vain, until the core finds out,
 * instead of writing more than there is room for. */
static uint32_t make_tag(gloo *g, const oar_collective *call)
{
    uint64_t word = (uint64_t)call->kind | (uint64_t)call->op.kind << 4 |
                    (uint64_t)call->out.dtype << 8 |
                    (uint64_t)(uint32_t)call->root << 12;

    if (!call->ragged)
        word ^= (uint64_t)agreed_count(call) * 0x9e3779b97f4a7c15u;
    word = (word ^ word >> 31) * 0xbf58476d1ce4e5b9u;
    return ++g->number << 24 | (uint32_t)(word >> 40);
}

/* After the call is given up its counts are gone, but the lane may not be done
 * with them. */
static const size_t *keep_counts(const gloo *g, const size_t *counts,
                                 size_t *room)
{
    if (counts == NULL)
        return NULL;
    memcpy(room, counts, (size_t)g->ranks * sizeof *counts);
    return room;
}

static gloo_job *make_job(gloo *g, const oar_collective *call,
                          oar_transfer *done)
{
    size_t ranks = (size_t)g->ranks;
    gloo_job *job = calloc(1, sizeof *job + 2 * ranks * sizeof *job->counts);
    oar_dtype dtype = call->in.data != NULL ? call->in.dtype : call->out.dtype;

    if (job == NULL)
        return NULL;
    job->done = done;
    job->task = (gloo_task){ .way = g->choice.way[call->kind],
                             .tag = make_tag(g, call),
                             .root = call->root,
                             .unit = oar_dtype_size(dtype),
                             .in = call->in.data,
                             .out = call->out.data,
                             .in_count = call->in.count,
                             .out_count = call->out.count };
    job->task.in_counts = keep_counts(g, call->in_counts, job->counts);
    job->task.out_counts =
        keep_counts(g, call->out_counts, job->counts + ranks);
    if (reduces(call->kind))
        describe_operator(g, call, job);
    return job;
}

/* Right here: what OARSONG_GLOO_BLOCKING asks for. */
static oar_status run_here(gloo *g, gloo_job *job)
{
    oar_transfer *done = job->done;
    sigset_t before;

    gloo_signal_block(&before);
    gloo_lane_run(&g->hub->lane[0], job);
    gloo_signal_restore(&before);
    done->status = OAR_OK;
    if (job->failed)
        done->status = oar_backend_fail(OAR_E_CLOSED, "gloo: %s", job->why);
    free(job);
    done->done = 1;
    return OAR_OK;
}

/* To the caller that comes for it, or to a lane. Gloo's first generation wants
 * one order: that of the lane. */
static oar_status give(gloo *g, const oar_collective *call, gloo_job *job)
{
    int old = gloo_is_old(job->task.way);

    if (call->awaited && !old) {
        gloo_lane_offer(g->hub, job);
        return OAR_OK;
    }
    return gloo_lane_give(
        g->hub, old ? 0 : (int)(g->number % (uint32_t)g->choice.lanes), job);
}

oar_status gloo_post(void *self, const oar_collective *call, oar_transfer *done)
{
    gloo *g = self;
    gloo_job *job = make_job(g, call, done);
    oar_status status;

    if (job == NULL)
        return oar_backend_fail(OAR_E_NOMEM, "gloo: out of memory");
    if (g->blocking)
        return run_here(g, job);
    job->other = g->jobs;
    g->jobs = job;
    status = give(g, call, job);
    if (status != OAR_OK) {
        g->jobs = job->other;
        free(job);
    }
    return status;
}
