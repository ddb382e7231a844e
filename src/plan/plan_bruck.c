/* SPDX-License-Identifier: Apache-2.0 */
/* plan_bruck: few rounds, for small data.
 *
 * all_gather (Bruck): rank r begins with part r. After a round that it began
 * with the k parts r .. r+k-1 it has 2k of them: it sends its k parts to rank
 * r-k and receives those of rank r+k. That is ceil(log2 n) rounds for any n.
 * Parts lie where they belong from the start, so a run of parts that goes over
 * the end of the row is two messages. A short row is gathered in GATHER, where
 * no run does, and copied.
 *
 * all_reduce, reduce_scatter: the inputs of all ranks are gathered that way,
 * then every rank combines them, or its part of them, in the order of ranks: n
 * times the bytes, but log n rounds, and the same bits as every canonical
 * algorithm.
 *
 * all_to_all: data for the rank d places ahead goes there in jumps of the
 * powers of two that make up d; in round j everything with bit j of d set moves
 * by 2^j. ceil(log2 n) messages of half a row each, instead of n-1 small ones.
 *
 * barrier (dissemination): in round j, signal rank r + 2^j and wait for the
 * signal of rank r - 2^j.
 */
#include "plan/planners.h"

enum { COPIED_BYTES = 16 << 10 }; /* the longest row that is copied */

typedef struct row {
    oari_buffer buffer;
    oari_partition partition;
} row;

/* Sends or receives parts first .. first+k-1, counted around the row. */
static void move_parts(oari_plan *plan, const row *w, int sending, int peer,
                       int first, int k)
{
    int n = w->partition.n, end = first + k <= n ? first + k : n;
    size_t at = oari_partition_first(&w->partition, first);
    size_t count = oari_partition_first(&w->partition, end) - at;

    if (sending)
        oari_plan_send(plan, peer, w->buffer, at, count);
    else
        oari_plan_recv(plan, peer, w->buffer, at, count);
    if (first + k > n)
        move_parts(plan, w, sending, peer, 0, first + k - n);
}

static void gather_row(const oari_plan_request *req, oari_plan *plan,
                       const row *w)
{
    int n = req->ranks, me = req->rank;

    for (int have = 1; have < n; have *= 2) {
        int k = have < n - have ? have : n - have;
        int behind = (me - have + n) % n, ahead = (me + have) % n;

        move_parts(plan, w, 0, ahead, ahead, k);
        move_parts(plan, w, 1, behind, me, k);
        oari_plan_wait(plan);
    }
}

void oari_bruck_words(const oari_plan_request *req, oari_plan *plan,
                      oari_buffer words)
{
    row w = { words, { .n = req->ranks, .count = 1 } };

    gather_row(req, plan, &w);
}

/* Gathers the inputs of all ranks: that of rank r + i at place i of GATHER, so
 * that no run of inputs goes over its end. */
static void gather_inputs(const oari_plan_request *req, oari_plan *plan,
                          size_t count)
{
    int n = req->ranks, me = req->rank;

    plan->gather_ranks = n;
    plan->gather_stride = count;
    plan->gather_count = (size_t)n * count;
    oari_plan_copy(plan, OARI_GATHER, 0, OARI_IN, -1, 0, count);
    for (int have = 1; have < n; have *= 2) {
        size_t k = (size_t)(have < n - have ? have : n - have) * count;

        oari_plan_recv(plan, (me + have) % n, OARI_GATHER, (size_t)have * count,
                       k);
        oari_plan_send(plan, (me - have + n) % n, OARI_GATHER, 0, k);
        oari_plan_wait(plan);
    }
}

/* Every rank combines elements first .. first+count-1 of all inputs, which have
 * `whole` elements. */
static void plan_reduction(const oari_plan_request *req, oari_plan *plan,
                           size_t whole, size_t first, size_t count)
{
    if (req->weighted)
        oari_bruck_words(req, plan, OARI_FACTOR);
    gather_inputs(req, plan, whole);
    if (count != 0)
        oari_plan_step(plan, (oari_step){ .kind = OARI_REDUCE,
                                          .to = OARI_OUT,
                                          .from = OARI_GATHER,
                                          .from_at = first,
                                          .with_at = first,
                                          .peer = req->rank,
                                          .to_peer = -1,
                                          .count = count });
}

/* ---- all_gather ---------------------------------------------------------- */

static int is_short(const oari_plan_request *req)
{
    return !req->ragged && !req->object &&
           req->count * req->element <= COPIED_BYTES / (size_t)req->ranks;
}

static void plan_all_gather(const oari_plan_request *req, oari_plan *plan)
{
    row w = { OARI_OUT, oari_partition_parts(req) };
    int n = req->ranks, me = req->rank;

    if (n > 2 && is_short(req)) {
        gather_inputs(req, plan, req->count);
        for (int i = 0; i < n; i++)
            oari_plan_copy(plan, OARI_OUT, (size_t)((me + i) % n) * req->count,
                           OARI_GATHER, -1, (size_t)i * req->count, req->count);
        return;
    }
    oari_plan_copy(plan, OARI_OUT, oari_partition_first(&w.partition, me),
                   OARI_IN, -1, 0, oari_partition_count(&w.partition, me));
    gather_row(req, plan, &w);
}

/* ---- all_to_all ---------------------------------------------------------- */

/* Moves everything with `bit` set in its distance. Place d of GATHER holds what
 * has d places left to go, or came from d places behind; places n on are for
 * packing, and those from `in` on for what is received. */
static void jump_ahead(const oari_plan_request *req, oari_plan *plan, int bit)
{
    size_t count = req->count, n = (size_t)req->ranks;
    size_t out = n, in = n + (n + 1) / 2, k = 0;

    for (size_t d = 0; d < n; d++)
        if (d & (size_t)bit)
            oari_plan_copy(plan, OARI_GATHER, (out + k++) * count, OARI_GATHER,
                           -1, d * count, count);
    oari_plan_recv(plan, (req->rank - bit + req->ranks) % req->ranks,
                   OARI_GATHER, in * count, k * count);
    oari_plan_send(plan, (req->rank + bit) % req->ranks, OARI_GATHER,
                   out * count, k * count);
    oari_plan_wait(plan);
    k = 0;
    for (size_t d = 0; d < n; d++)
        if (d & (size_t)bit)
            oari_plan_copy(plan, OARI_GATHER, d * count, OARI_GATHER, -1,
                           (in + k++) * count, count);
}

static void plan_all_to_all(const oari_plan_request *req, oari_plan *plan)
{
    size_t count = req->count;
    int n = req->ranks, me = req->rank;

    plan->gather_count = ((size_t)n + 2 * (((size_t)n + 1) / 2)) * count;
    for (int d = 0; d < n; d++)
        oari_plan_copy(plan, OARI_GATHER, (size_t)d * count, OARI_IN, -1,
                       (size_t)((me + d) % n) * count, count);
    for (int bit = 1; bit < n; bit *= 2)
        jump_ahead(req, plan, bit);
    for (int d = 0; d < n; d++)
        oari_plan_copy(plan, OARI_OUT, (size_t)((me - d + n) % n) * count,
                       OARI_GATHER, -1, (size_t)d * count, count);
}

void oari_plan_bruck(const oari_plan_request *req, oari_plan *plan)
{
    oari_partition part = oari_partition_parts(req);

    switch (req->kind) {
    case OAR_COLL_ALL_REDUCE:
        plan_reduction(req, plan, req->count, 0, req->count);
        break;
    case OAR_COLL_REDUCE_SCATTER:
        plan_reduction(req, plan, oari_partition_first(&part, req->ranks),
                       oari_partition_first(&part, req->rank),
                       oari_partition_count(&part, req->rank));
        break;
    case OAR_COLL_ALL_TO_ALL: plan_all_to_all(req, plan); break;
    default: plan_all_gather(req, plan); break;
    }
}

/* ---- barrier ------------------------------------------------------------- */

void oari_signal_all(const oari_rank_ring *ring, oari_plan *plan)
{
    for (int bit = 1; bit < ring->n; bit *= 2) {
        oari_plan_signal(plan, oari_ring_rank(ring, ring->me + bit),
                         oari_ring_rank(ring, ring->me - bit));
        oari_plan_wait(plan);
    }
}

void oari_plan_dissemination(const oari_plan_request *req, oari_plan *plan)
{
    oari_rank_ring ring = oari_ring_all(req);

    oari_signal_all(&ring, plan);
}
