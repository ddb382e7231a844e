/* SPDX-License-Identifier: Apache-2.0 */
/* plan_doubling: reductions between partners whose distance doubles.
 *
 * doubling: in each round partners swap what they have and both combine it, the
 * lower one's to the left; log2 n rounds with the whole buffer. For small data.
 *
 * halving (Rabenseifner): partners split what they are responsible for: each
 * sends the other's half and combines its own. After log2 n rounds every rank
 * has one finished slice; then partners swap finished slices in the opposite
 * order. As few bytes as a ring, in 2 log2 n rounds. A reduce_scatter is the
 * first half of that; its slices are the parts of ranks.
 *
 * Any number of ranks: with p the power of two not above n, the first 2 (n-p)
 * ranks form pairs. The odd rank of a pair hands its buffer to the even one
 * before, and gets the result after. The p ranks that are left are active, and
 * are numbered from 0 in the same order.
 */
#include "plan/planners.h"

typedef struct doubling {
    const oari_plan_reduction *reduction;
    oari_plan *plan;
    size_t count;
    int active, pairs;  /* active ranks; pairs of which one is not */
    int me;             /* my number among the active ranks; -1: none */
    oari_location mine; /* where my partial result is */
    oari_location sum;  /* where it goes */
    size_t received;    /* WORK: what a partner sends */
    size_t size;        /* elements of a chunk */
    const oari_partition *parts; /* of ranks; NULL: a slice an active rank */
} doubling;

static const oari_location nothing = { OARI_NOWHERE, 0 };

static doubling make_doubling(const oari_plan_reduction *reduction,
                              oari_plan *plan, size_t count)
{
    const oari_rank_ring *ring = &reduction->ring;
    doubling d = { .reduction = reduction,
                   .plan = plan,
                   .count = count,
                   .active = 1,
                   .mine = reduction->in,
                   .sum = { OARI_WORK, reduction->work },
                   .received = reduction->work + count };

    while (2 * d.active <= ring->n)
        d.active *= 2;
    d.pairs = ring->n - d.active;
    d.me = ring->me >= 2 * d.pairs ? ring->me - d.pairs
           : ring->me % 2 == 0     ? ring->me / 2
                                   : -1;
    d.size = oari_chunk_size(reduction->req, count, reduction->req->wide);
    if (d.size > count)
        d.size = count;
    if (plan->work_count < d.received + OARI_WINDOW * d.size)
        plan->work_count = d.received + OARI_WINDOW * d.size;
    return d;
}

/* Returns the rank of an active rank's number. */
static int rank_of(const doubling *d, int number)
{
    return oari_ring_rank(&d->reduction->ring,
                          number < d->pairs ? 2 * number : number + d->pairs);
}

/* ---- swapping, chunk by chunk -------------------------------------------- */

typedef struct range {
    size_t first, count;
} range;

/* Gives a rank one range of my partial result and combines its version of
 * another with mine, which stands to the left if `left`. */
static void swap_ranges(const doubling *d, int rank, range give, range keep,
                        int left, int finish)
{
    oari_location to = finish ? d->reduction->out : d->sum;
    size_t longer = give.count > keep.count ? give.count : keep.count;
    size_t chunks = d->size != 0 ? (longer + d->size - 1) / d->size : 0;
    int posted[OARI_WINDOW] = { 0 };

    for (size_t i = 0; i < chunks + OARI_WINDOW; i++) {
        size_t place = d->received + i % OARI_WINDOW * d->size, count, at;
        if (i >= OARI_WINDOW) {
            oari_location come = { OARI_WORK, place };
            at = keep.first +
                 oari_chunk_first(keep.count, d->size, i - OARI_WINDOW, &count);
            oari_location mine = { d->mine.buffer, d->mine.at + at };
            oari_plan_wait_until(d->plan, posted[i % OARI_WINDOW]);
            oari_plan_combine(d->plan, (oari_location){ to.buffer, to.at + at },
                              left ? mine : come, left ? come : mine, finish,
                              count);
        }
        if (i < chunks) {
            oari_chunk_first(keep.count, d->size, i, &count);
            oari_plan_recv(d->plan, rank, OARI_WORK, place, count);
            at = give.first + oari_chunk_first(give.count, d->size, i, &count);
            oari_plan_send(d->plan, rank, d->mine.buffer, d->mine.at + at,
                           count);
        }
        posted[i % OARI_WINDOW] = d->plan->posted;
    }
}

/* ---- before and after ---------------------------------------------------- */

/* Promotes my contribution, and combines those of each pair in its even rank.
 * Returns where my partial result is then. */
static oari_location combine_pairs(doubling d)
{
    const oari_rank_ring *ring = &d.reduction->ring;
    range all = { 0, d.count }, none = { 0, 0 };

    if (d.reduction->req->promote && d.mine.buffer != OARI_WORK) {
        oari_plan_combine(d.plan, d.sum, d.mine, nothing, 0, d.count);
        d.mine = d.sum;
    }
    if (ring->me >= 2 * d.pairs)
        return d.mine;
    if (d.me < 0)
        swap_ranges(&d, oari_ring_rank(ring, ring->me - 1), all, none, 1, 0);
    else
        swap_ranges(&d, oari_ring_rank(ring, ring->me + 1), none, all, 1, 0);
    return d.sum;
}

/* Sends the result to the odd rank of each pair. */
static void send_result_to_pairs(const doubling *d)
{
    const oari_rank_ring *ring = &d->reduction->ring;
    oari_location out = d->reduction->out;

    if (ring->me >= 2 * d->pairs)
        return;
    if (d->me < 0)
        oari_plan_recv(d->plan, oari_ring_rank(ring, ring->me - 1), out.buffer,
                       out.at, d->count);
    else
        oari_plan_send(d->plan, oari_ring_rank(ring, ring->me + 1), out.buffer,
                       out.at, d->count);
    oari_plan_wait(d->plan);
}

/* ---- doubling ------------------------------------------------------------ */

/* Both need the other's version of everything: what is sent must not change
 * until it has gone, so nothing is combined before. */
static void swap_everything(const doubling *d, int bit)
{
    int partner = d->me ^ bit, rank = rank_of(d, partner);
    int last = 2 * bit == d->active;
    oari_location received = { OARI_WORK, d->received };
    oari_location to = last ? d->reduction->out : d->sum;

    oari_plan_recv(d->plan, rank, received.buffer, received.at, d->count);
    oari_plan_send(d->plan, rank, d->mine.buffer, d->mine.at, d->count);
    oari_plan_wait(d->plan);
    if (d->me < partner)
        oari_plan_combine(d->plan, to, d->mine, received, last, d->count);
    else
        oari_plan_combine(d->plan, to, received, d->mine, last, d->count);
}

void oari_doubling(const oari_plan_reduction *reduction, oari_plan *plan,
                   size_t count)
{
    doubling d = make_doubling(reduction, plan, count);

    if (reduction->ring.n == 1) {
        oari_plan_combine(plan, reduction->out, reduction->in, nothing, 1,
                          count);
        return;
    }
    if (plan->work_count < d.received + count)
        plan->work_count = d.received + count;
    d.mine = combine_pairs(d);
    for (int bit = 1; d.me >= 0 && bit < d.active; bit *= 2) {
        swap_everything(&d, bit);
        d.mine = d.sum;
    }
    send_result_to_pairs(&d);
}

void oari_plan_doubling(const oari_plan_request *req, oari_plan *plan)
{
    oari_plan_reduction reduction =
        oari_plan_reduction_all(req, oari_partition_slices(req->count, 1));

    if (req->mean)
        oari_bruck_words(req, plan, OARI_FACTOR);
    oari_doubling(&reduction, plan, req->count);
}

/* ---- halving ------------------------------------------------------------- */

/* Returns where the slices of an active rank begin: its part, and in a pair
 * that of the rank after it; or a slice of its own. */
static size_t slice_first(const doubling *d, int number)
{
    if (d->parts == NULL)
        return oari_slice_first(d->count, d->active, number);
    return oari_partition_first(
        d->parts, number < d->pairs ? 2 * number : number + d->pairs);
}

/* Returns the slices that an active rank is left with when partners at distance
 * `bit` have split: those of the ranks that differ from it only below that bit.
 */
static range slices_of(const doubling *d, int number, int bit)
{
    int first = number & ~(bit - 1);
    size_t at = slice_first(d, first);

    return (range){ at, slice_first(d, first + bit) - at };
}

/* After this an active rank has the sum of its slices, finished in an
 * all_reduce. */
static void split_sums(doubling *d, int finish)
{
    for (int bit = d->active / 2; d->me >= 0 && bit > 0; bit /= 2) {
        int partner = d->me ^ bit;

        swap_ranges(d, rank_of(d, partner), slices_of(d, partner, bit),
                    slices_of(d, d->me, bit), d->me < partner,
                    finish && bit == 1);
        d->mine = d->sum;
    }
}

static void halve_all_reduce(doubling d)
{
    oari_location out = d.reduction->out;

    split_sums(&d, 1);
    for (int bit = 1; d.me >= 0 && bit < d.active; bit *= 2) {
        int partner = d.me ^ bit, rank = rank_of(&d, partner);
        range theirs = slices_of(&d, partner, bit);
        range mine = slices_of(&d, d.me, bit);

        oari_plan_recv(d.plan, rank, out.buffer, out.at + theirs.first,
                       theirs.count);
        oari_plan_send(d.plan, rank, out.buffer, out.at + mine.first,
                       mine.count);
        oari_plan_wait(d.plan);
    }
    send_result_to_pairs(&d);
}

/* The even rank of a pair has the sums of both parts. */
static void halve_reduce_scatter(doubling d)
{
    const oari_rank_ring *ring = &d.reduction->ring;
    const oari_partition *parts = d.parts;
    size_t count = oari_partition_count(parts, ring->me);
    oari_location sum = d.sum;

    split_sums(&d, 0);
    sum.at += oari_partition_first(parts, ring->me);
    if (d.me < 0)
        oari_plan_recv(d.plan, ring->me - 1, sum.buffer, sum.at, count);
    else if (ring->me < 2 * d.pairs)
        oari_plan_send(d.plan, ring->me + 1, sum.buffer, sum.at + count,
                       oari_partition_count(parts, ring->me + 1));
    oari_plan_wait(d.plan);
    oari_plan_combine(d.plan, d.reduction->out, sum, nothing, 1, count);
}

void oari_plan_halving(const oari_plan_request *req, oari_plan *plan)
{
    oari_partition parts = oari_partition_parts(req);
    int scatters = req->kind == OAR_COLL_REDUCE_SCATTER;
    size_t count =
        scatters ? oari_partition_first(&parts, req->ranks) : req->count;
    oari_plan_reduction reduction =
        oari_plan_reduction_all(req, oari_partition_slices(count, 1));
    doubling d = make_doubling(&reduction, plan, count);

    d.parts = scatters ? &parts : NULL;
    if (req->mean)
        oari_bruck_words(req, plan, OARI_FACTOR);
    if (req->ranks == 1) {
        oari_plan_combine(plan, reduction.out, reduction.in, nothing, 1, count);
        return;
    }
    d.mine = combine_pairs(d);
    if (scatters)
        halve_reduce_scatter(d);
    else
        halve_all_reduce(d);
}
