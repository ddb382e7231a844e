/* SPDX-License-Identifier: Apache-2.0 */
/* plan_exchange: everyone to everyone, and the order of ranks.
 *
 * all_reduce as reduce-scatter by slices and all-gather. Rank r gets slice r of
 * everyone, combines the slices in the order of ranks, and sends the result to
 * everyone: 2 (n-1)/n of the buffer sent by each rank. The order makes it
 * bitwise equal to the memory plans. reduce is the same with root alone getting
 * the results; reduce_scatter has parts instead of slices, and ends there.
 *
 * Slices go in chunks. In every turn three chunks are on their way: the results
 * of chunk c, the contributions to c+1, which are there when c is combined, and
 * those to c+2. So both directions of every link are busy while the processor
 * adds:
 *
 *      turn      1           2           3
 *      wait      trade 0     trade 1     result 0, trade 2
 *      combine   0           1           2
 *      post      result 0    result 1    result 2
 *                trade 2     trade 3     trade 4
 */
#include "plan/planners.h"

typedef struct exchange {
    const oari_ask *ask;
    oari_cut cut;
    size_t size, turns; /* elements of a chunk, how many */
} exchange;

static size_t piece_of(const exchange *x, int rank, size_t turn, size_t *count)
{
    size_t at = oari_piece(oari_cut_count(&x->cut, rank), x->size, turn, count);

    return oari_cut_first(&x->cut, rank) + at;
}

/* Contributions of a turn lie in one of two sets of slots. */
static size_t set_of(const exchange *x, size_t turn)
{
    return turn % 2 * x->size * (size_t)x->cut.n;
}

static void post_trade(const exchange *x, oari_plan *plan, size_t turn)
{
    int n = x->cut.n, me = x->ask->rank;
    size_t mine, theirs;

    piece_of(x, me, turn, &mine);
    for (int step = 1; step < n; step++) {
        int to = (me + step) % n, from = (me - step + n) % n;
        size_t at = piece_of(x, to, turn, &theirs);
        oari_plan_recv(plan, from, OARI_GATHER,
                       set_of(x, turn) + (size_t)from * x->size, mine);
        oari_plan_send(plan, to, OARI_IN, at, theirs);
    }
}

/* Where this rank leaves its result of a turn: in its output, unless it has
 * none. */
static oari_spot result_of(const exchange *x, size_t turn)
{
    const oari_ask *a = x->ask;
    size_t count, at = piece_of(x, a->rank, turn, &count);

    if (a->kind == OAR_COLL_REDUCE_SCATTER)
        return (oari_spot){ OARI_OUT, at - oari_cut_first(&x->cut, a->rank) };
    if (a->kind == OAR_COLL_REDUCE && a->rank != a->root)
        return (oari_spot){ OARI_GATHER,
                            (2 * (size_t)x->cut.n + turn % 2) * x->size };
    return (oari_spot){ OARI_OUT, at };
}

static void combine(const exchange *x, oari_plan *plan, size_t turn)
{
    oari_spot to = result_of(x, turn);
    size_t count, at = piece_of(x, x->ask->rank, turn, &count);

    if (count != 0)
        oari_plan_step(plan, (oari_step){ .kind = OARI_REDUCE,
                                          .to = to.where,
                                          .to_at = to.at,
                                          .from = OARI_GATHER,
                                          .from_at = set_of(x, turn),
                                          .with_at = at,
                                          .peer = 0,
                                          .to_peer = -1,
                                          .count = count });
}

static int gets_results(const oari_ask *ask, int rank)
{
    return ask->kind == OAR_COLL_ALL_REDUCE ||
           (ask->kind == OAR_COLL_REDUCE && rank == ask->root);
}

static void post_results(const exchange *x, oari_plan *plan, size_t turn)
{
    int n = x->cut.n, me = x->ask->rank;
    oari_spot result = result_of(x, turn);
    size_t mine, theirs;

    piece_of(x, me, turn, &mine);
    for (int step = 1; step < n; step++) {
        int to = (me + step) % n, from = (me - step + n) % n;
        size_t at = piece_of(x, from, turn, &theirs);
        if (gets_results(x->ask, me))
            oari_plan_recv(plan, from, OARI_OUT, at, theirs);
        if (gets_results(x->ask, to))
            oari_plan_send(plan, to, result.where, result.at, mine);
    }
}

static void reduce(const oari_ask *ask, oari_plan *plan, oari_cut cut)
{
    size_t most = oari_cut_most(&cut);
    exchange x = { ask, cut, oari_chunk(ask, most, ask->element), 0 };
    int posted[2];

    if (ask->weighted)
        oari_bruck_words(ask, plan, OARI_FACTOR);
    if (x.size > most)
        x.size = most;
    x.turns = most != 0 ? (most + x.size - 1) / x.size : 0;
    plan->slots = ask->ranks;
    plan->slot_count = x.size;
    plan->gather_count = (2 * (size_t)ask->ranks + 2) * x.size;
    for (size_t t = 0; t < 2 && t < x.turns; t++) {
        post_trade(&x, plan, t);
        posted[t] = plan->posted;
    }
    for (size_t t = 0; t < x.turns; t++) {
        oari_plan_wait_until(plan, posted[t % 2]);
        combine(&x, plan, t);
        post_results(&x, plan, t);
        if (t + 2 < x.turns)
            post_trade(&x, plan, t + 2);
        posted[t % 2] = plan->posted;
    }
    oari_plan_wait(plan);
}

static void all_gather(const oari_ask *ask, oari_plan *plan)
{
    oari_cut row = oari_cut_parts(ask);
    int n = ask->ranks, me = ask->rank;

    for (int step = 1; step < n; step++) {
        int from = (me - step + n) % n;
        oari_plan_recv(plan, from, OARI_OUT, oari_cut_first(&row, from),
                       oari_cut_count(&row, from));
        oari_plan_send(plan, (me + step) % n, OARI_IN, 0,
                       oari_cut_count(&row, me));
    }
    oari_plan_copy(plan, OARI_OUT, oari_cut_first(&row, me), OARI_IN, -1, 0,
                   oari_cut_count(&row, me));
    oari_plan_wait(plan);
}

void oari_plan_exchange(const oari_ask *ask, oari_plan *plan)
{
    switch (ask->kind) {
    case OAR_COLL_ALL_GATHER: all_gather(ask, plan); break;
    case OAR_COLL_REDUCE_SCATTER: reduce(ask, plan, oari_cut_parts(ask)); break;
    default: reduce(ask, plan, oari_cut_slices(ask->count, ask->ranks)); break;
    }
}
