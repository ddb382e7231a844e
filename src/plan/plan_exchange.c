/* SPDX-License-Identifier: Apache-2.0 */
/* plan_exchange: every rank to every rank, combined in the order of ranks.
 *
 * all_reduce is a reduce_scatter by slices and an all_gather. Rank r receives
 * slice r of every rank, combines the slices in the order of ranks, and sends
 * the result to every rank: each rank sends 2 (n-1)/n of the buffer. The order
 * makes it bitwise equal to the plans over shared memory. In a reduce only root
 * receives the results; a reduce_scatter has parts instead of slices, and ends
 * when they are combined.
 *
 * Slices go in chunks. In every turn three chunks are in flight: the results of
 * chunk c, the contributions to c+1, which have arrived when c is combined, and
 * those to c+2. So both directions of every link are busy while the processor
 * adds:
 *
 *      turn      1               2               3
 *      wait      contribution 0  contribution 1  result 0, contribution 2
 *      combine   0               1               2
 *      post      result 0        result 1        result 2
 *                contribution 2  contribution 3  contribution 4
 */
#include "plan/planners.h"

typedef struct exchange {
    const oari_plan_request *req;
    oari_partition partition;
    size_t size, turns; /* elements of a chunk, how many */
} exchange;

static size_t chunk_of(const exchange *x, int rank, size_t turn, size_t *count)
{
    size_t at = oari_chunk_first(oari_partition_count(&x->partition, rank),
                                 x->size, turn, count);

    return oari_partition_first(&x->partition, rank) + at;
}

/* Contributions of a turn lie in one of two halves of GATHER. */
static size_t half_of(const exchange *x, size_t turn)
{
    return turn % 2 * x->size * (size_t)x->partition.n;
}

static void post_contributions(const exchange *x, oari_plan *plan, size_t turn)
{
    int n = x->partition.n, me = x->req->rank;
    size_t mine, theirs;

    chunk_of(x, me, turn, &mine);
    for (int step = 1; step < n; step++) {
        int to = (me + step) % n, from = (me - step + n) % n;
        size_t at = chunk_of(x, to, turn, &theirs);
        oari_plan_recv(plan, from, OARI_GATHER,
                       half_of(x, turn) + (size_t)from * x->size, mine);
        oari_plan_send(plan, to, OARI_IN, at, theirs);
    }
}

static int gets_results(const oari_plan_request *req, int rank)
{
    return req->kind == OAR_COLL_ALL_REDUCE ||
           (req->kind == OAR_COLL_REDUCE && rank == req->root);
}

/* Leaves my result in my output, unless I have none. */
static void combine_and_post(const exchange *x, oari_plan *plan, size_t turn)
{
    const oari_plan_request *req = x->req;
    int n = x->partition.n, me = req->rank;
    size_t mine, theirs, at = chunk_of(x, me, turn, &mine);
    oari_location result = { OARI_OUT, at };

    if (req->kind == OAR_COLL_REDUCE_SCATTER)
        result.at = at - oari_partition_first(&x->partition, me);
    else if (req->kind == OAR_COLL_REDUCE && me != req->root)
        result = (oari_location){ OARI_GATHER,
                                  (2 * (size_t)n + turn % 2) * x->size };
    if (mine != 0)
        oari_plan_step(plan, (oari_step){ .kind = OARI_REDUCE,
                                          .to = result.buffer,
                                          .to_at = result.at,
                                          .from = OARI_GATHER,
                                          .from_at = half_of(x, turn),
                                          .with_at = at,
                                          .peer = 0,
                                          .to_peer = -1,
                                          .count = mine });
    for (int step = 1; step < n; step++) {
        int to = (me + step) % n, from = (me - step + n) % n;
        at = chunk_of(x, from, turn, &theirs);
        if (gets_results(req, me))
            oari_plan_recv(plan, from, OARI_OUT, at, theirs);
        if (gets_results(req, to))
            oari_plan_send(plan, to, result.buffer, result.at, mine);
    }
}

static void plan_reduction(const oari_plan_request *req, oari_plan *plan,
                           oari_partition partition)
{
    size_t longest = oari_partition_longest(&partition);
    exchange x = { req, partition, oari_chunk_size(req, longest, req->element),
                   0 };
    int posted[2];

    if (req->weighted)
        oari_bruck_words(req, plan, OARI_FACTOR);
    if (x.size > longest)
        x.size = longest;
    x.turns = longest != 0 ? (longest + x.size - 1) / x.size : 0;
    plan->gather_ranks = req->ranks;
    plan->gather_stride = x.size;
    plan->gather_count = (2 * (size_t)req->ranks + 2) * x.size;
    for (size_t t = 0; t < 2 && t < x.turns; t++) {
        post_contributions(&x, plan, t);
        posted[t] = plan->posted;
    }
    for (size_t t = 0; t < x.turns; t++) {
        oari_plan_wait_until(plan, posted[t % 2]);
        combine_and_post(&x, plan, t);
        if (t + 2 < x.turns)
            post_contributions(&x, plan, t + 2);
        posted[t % 2] = plan->posted;
    }
    oari_plan_wait(plan);
}

static void plan_all_gather(const oari_plan_request *req, oari_plan *plan)
{
    oari_partition row = oari_partition_parts(req);
    int n = req->ranks, me = req->rank;

    for (int step = 1; step < n; step++) {
        int from = (me - step + n) % n;
        oari_plan_recv(plan, from, OARI_OUT, oari_partition_first(&row, from),
                       oari_partition_count(&row, from));
        oari_plan_send(plan, (me + step) % n, OARI_IN, 0,
                       oari_partition_count(&row, me));
    }
    oari_plan_copy(plan, OARI_OUT, oari_partition_first(&row, me), OARI_IN, -1,
                   0, oari_partition_count(&row, me));
    oari_plan_wait(plan);
}

void oari_plan_exchange(const oari_plan_request *req, oari_plan *plan)
{
    switch (req->kind) {
    case OAR_COLL_ALL_GATHER: plan_all_gather(req, plan); break;
    case OAR_COLL_REDUCE_SCATTER:
        plan_reduction(req, plan, oari_partition_parts(req));
        break;
    default:
        plan_reduction(req, plan,
                       oari_partition_slices(req->count, req->ranks));
        break;
    }
}
