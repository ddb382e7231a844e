/* SPDX-License-Identifier: Apache-2.0 */
/* plan_ring: every rank talks only to its two neighbours. Each rank sends
 * 2 (n-1)/n of the buffer in an all_reduce, however many ranks there are: no
 * algorithm can send less.
 *
 * This is how it works with four ranks. The buffer is cut into four slices;
 * each rank has its own version of all four, and we want their sums. In every
 * round each rank sends one slice to the rank ahead of it, and receives another
 * from the rank behind it, to which it adds its own version:
 *
 *               rank 0      rank 1      rank 2      rank 3
 *   round 0    sends 3     sends 0     sends 1     sends 2
 *              adds  2     adds  3     adds  0     adds  1     two versions
 *   round 1    sends 2     sends 3     sends 0     sends 1
 *              adds  1     adds  2     adds  3     adds  0     three
 *   round 2    sends 1     sends 2     sends 3     sends 0
 *              adds  0     adds  1     adds  2     adds  3     all four
 *
 * What a rank sends in a round is what it added up in the round before. So the
 * sum of slice s starts at rank s+1, travels once around the ring, and is
 * complete when it reaches rank s. That was a reduce_scatter: rank s has slice
 * s. To complete an all_reduce, the finished slices travel around once more,
 * and every rank keeps a copy:
 *
 *   round 3    sends 0     sends 1     sends 2     sends 3
 *              keeps 3     keeps 0     keeps 1     keeps 2
 *   rounds 4 and 5: each rank sends on the slice that it kept last.
 *
 * That was an all_gather.
 *
 * Chunks. If a rank added up a whole slice before it sent anything, its links
 * would be idle meanwhile. So slices are cut into chunks that follow each
 * other: chunk c of round k is one message, number k * chunks + c, and the
 * messages go out in that order. A few are always in flight: message m is
 * posted once message m - lag has arrived and has been added. A chunk is sent
 * on `chunks` messages after it arrived, so any lag up to that is right.
 *
 * The sum of slice s is taken in the order s+1, s+2, ..., s: another order for
 * each slice, the same on every run, and the same bits on all ranks, because
 * the sum is made once and then copied. It is not the order of ranks.
 */
#include "plan/planners.h"

typedef struct ring_plan {
    const oari_plan_reduction *reduction;
    int sum_rounds;      /* rounds in which sums are made: n-1, or 0 */
    int keep_rounds;     /* rounds after them, in which sums are copied */
    size_t chunks, size; /* chunks of a slice; elements of a chunk */
    size_t lag;
} ring_plan;

static ring_plan make_ring(const oari_plan_reduction *reduction,
                           oari_plan *plan, int sums, int keeps)
{
    const oari_plan_request *req = reduction->req;
    size_t longest = oari_partition_longest(&reduction->partition), work;
    int rounds = reduction->ring.n - 1;
    ring_plan r = { .reduction = reduction,
                    .sum_rounds = sums ? rounds : 0,
                    .keep_rounds = keeps ? rounds : 0 };

    r.size = oari_chunk_size(req, longest, sums ? req->wide : req->element);
    if (r.size > longest && longest != 0)
        r.size = longest;
    r.chunks = longest != 0 ? (longest + r.size - 1) / r.size : 1;
    r.lag = r.chunks < OARI_WINDOW ? r.chunks : OARI_WINDOW;
    work = reduction->work + (sums ? r.chunks + 2 * r.lag : 0) * r.size;
    if (plan->work_count < work)
        plan->work_count = work;
    return r;
}

/* ---- which slice, which chunk -------------------------------------------- */

static int slice_sent(const ring_plan *r, int round)
{
    const oari_rank_ring *ring = &r->reduction->ring;
    int back = round < r->sum_rounds ? round + 1 : round - r->sum_rounds;

    return oari_ring_wrap(ring, ring->me - back);
}

/* The rank behind me sends now what I send one round later. */
static int slice_received(const ring_plan *r, int round)
{
    const oari_rank_ring *ring = &r->reduction->ring;
    int back = round < r->sum_rounds ? round + 2 : round - r->sum_rounds + 1;

    return oari_ring_wrap(ring, ring->me - back);
}

/* Returns where the chunk of a message begins in the buffer, and its length. */
static size_t chunk_of(const ring_plan *r, int slice, size_t message,
                       size_t *count)
{
    const oari_partition *p = &r->reduction->partition;
    size_t at = oari_chunk_first(oari_partition_count(p, slice), r->size,
                                 message % r->chunks, count);

    return oari_partition_first(p, slice) + at;
}

/* ---- where it lies ------------------------------------------------------- */

static oari_location my_version(const ring_plan *r, size_t at)
{
    oari_location in = r->reduction->in;

    return (oari_location){ in.buffer, in.at + at };
}

/* The output is the whole row; in a reduce_scatter it is my part alone. */
static oari_location finished(const ring_plan *r, size_t at)
{
    const oari_plan_reduction *reduction = r->reduction;
    size_t first =
        r->keep_rounds != 0
            ? 0
            : oari_partition_first(&reduction->partition, reduction->ring.me);

    return (oari_location){ reduction->out.buffer,
                            reduction->out.at + at - first };
}

/* A sum is held from its arrival until it has been sent on. */
static oari_location sum_of(const ring_plan *r, size_t message)
{
    size_t place = message % (r->chunks + r->lag);

    return (oari_location){ OARI_WORK, r->reduction->work + place * r->size };
}

/* Round 0 sends my own version, which may have to be promoted before. */
static oari_location version_to_send(const ring_plan *r, oari_plan *plan,
                                     size_t message, size_t at, size_t count)
{
    size_t place = r->chunks + r->lag + message % r->lag;
    oari_location mine = my_version(r, at);
    oari_location promoted = { OARI_WORK,
                               r->reduction->work + place * r->size };

    if (!r->reduction->req->promote || mine.buffer == OARI_WORK)
        return mine;
    oari_plan_combine(plan, promoted, mine, (oari_location){ OARI_NOWHERE, 0 },
                      0, count);
    return promoted;
}

/* ---- one message --------------------------------------------------------- */

static void post_message(const ring_plan *r, oari_plan *plan, size_t message)
{
    const oari_rank_ring *ring = &r->reduction->ring;
    int round = (int)(message / r->chunks);
    size_t sent, received;
    size_t sent_at = chunk_of(r, slice_sent(r, round), message, &sent);
    size_t received_at =
        chunk_of(r, slice_received(r, round), message, &received);
    oari_location from, to;

    if (round >= r->sum_rounds)
        from = finished(r, sent_at);
    else if (round == 0)
        from = version_to_send(r, plan, message, sent_at, sent);
    else
        from = sum_of(r, message - r->chunks);
    to = round < r->sum_rounds ? sum_of(r, message) : finished(r, received_at);
    oari_plan_recv(plan, oari_ring_rank(ring, ring->me - 1), to.buffer, to.at,
                   received);
    oari_plan_send(plan, oari_ring_rank(ring, ring->me + 1), from.buffer,
                   from.at, sent);
}

/* ---- all of them --------------------------------------------------------- */

static void go_around(const ring_plan *r, oari_plan *plan)
{
    size_t messages = (size_t)(r->sum_rounds + r->keep_rounds) * r->chunks;
    int posted[OARI_WINDOW] = { 0 }; /* after each of the last messages */

    for (size_t m = 0; m < messages + r->lag; m++) {
        if (m >= r->lag) {
            size_t message = m - r->lag, count, at;
            int round = (int)(message / r->chunks);
            int last = round == r->sum_rounds - 1;
            oari_location sum = sum_of(r, message);

            oari_plan_wait_until(plan, posted[m % r->lag]);
            at = chunk_of(r, slice_received(r, round), message, &count);
            if (round < r->sum_rounds)
                oari_plan_combine(plan, last ? finished(r, at) : sum, sum,
                                  my_version(r, at), last, count);
        }
        if (m < messages)
            post_message(r, plan, m);
        posted[m % r->lag] = plan->posted;
    }
}

void oari_ring_reduce(const oari_plan_reduction *reduction, oari_plan *plan,
                      int gather)
{
    const oari_partition *p = &reduction->partition;
    int me = reduction->ring.me;
    ring_plan r = make_ring(reduction, plan, 1, gather);
    oari_location mine =
        my_version(&r, gather ? 0 : oari_partition_first(p, me));

    if (reduction->ring.n == 1)
        oari_plan_combine(plan, reduction->out, mine,
                          (oari_location){ OARI_NOWHERE, 0 }, 1,
                          gather ? oari_partition_first(p, p->n)
                                 : oari_partition_count(p, me));
    else
        go_around(&r, plan);
}

/* ---- the planners -------------------------------------------------------- */

oari_plan_reduction oari_plan_reduction_all(const oari_plan_request *req,
                                            oari_partition partition)
{
    return (oari_plan_reduction){ .req = req,
                                  .ring = oari_ring_all(req),
                                  .partition = partition,
                                  .in = { OARI_IN, 0 },
                                  .out = { OARI_OUT, 0 } };
}

void oari_plan_ring_all_reduce(const oari_plan_request *req, oari_plan *plan)
{
    oari_plan_reduction reduction = oari_plan_reduction_all(
        req, oari_partition_slices(req->count, req->ranks));

    if (req->mean)
        oari_bruck_words(req, plan, OARI_FACTOR);
    oari_ring_reduce(&reduction, plan, 1);
}

void oari_plan_ring_reduce_scatter(const oari_plan_request *req,
                                   oari_plan *plan)
{
    oari_plan_reduction reduction =
        oari_plan_reduction_all(req, oari_partition_parts(req));

    if (req->mean)
        oari_bruck_words(req, plan, OARI_FACTOR);
    oari_ring_reduce(&reduction, plan, 0);
}

void oari_plan_ring_all_gather(const oari_plan_request *req, oari_plan *plan)
{
    oari_partition row = oari_partition_parts(req);
    oari_plan_reduction reduction = oari_plan_reduction_all(req, row);
    ring_plan r = make_ring(&reduction, plan, 0, 1);

    oari_plan_copy(plan, OARI_OUT, oari_partition_first(&row, req->rank),
                   OARI_IN, -1, 0, oari_partition_count(&row, req->rank));
    go_around(&r, plan);
}
