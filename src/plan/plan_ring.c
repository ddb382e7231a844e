/* SPDX-License-Identifier: Apache-2.0 */
/* plan_ring: everybody talks only to two neighbours, and nobody ever waits for
 * anybody else. Each rank sends 2 (n-1)/n of the buffer in an all_reduce,
 * however many ranks there are: no algorithm can send less.
 *
 * How it goes, with four ranks. The buffer is cut into four slices; each rank
 * has its own version of all four, and we want their sums. In every round each
 * rank sends one slice to the rank ahead of it and gets another from the rank
 * behind it, to which it adds its own version:
 *
 *               rank 0      rank 1      rank 2      rank 3
 *   round 0    sends 3     sends 0     sends 1     sends 2
 *              adds  2     adds  3     adds  0     adds  1     two versions
 *   round 1    sends 2     sends 3     sends 0     sends 1
 *              adds  1     adds  2     adds  3     adds  0     three
 *   round 2    sends 1     sends 2     sends 3     sends 0
 *              adds  0     adds  1     adds  2     adds  3     all four
 *
 * What a rank sends in a round is what it added up in the round before, so the
 * sum of slice s starts at rank s+1, travels once around the ring, and is whole
 * when it comes to rank s. That was a reduce_scatter: rank s has slice s. To
 * end an all_reduce, the finished slices travel around once more, and everyone
 * keeps a copy:
 *
 *   round 3    sends 0     sends 1     sends 2     sends 3
 *              keeps 3     keeps 0     keeps 1     keeps 2
 *   rounds 4 and 5: the same, with the slice that was kept last.
 *
 * That was an all_gather.
 *
 * Pieces. While a slice is added up nothing would be sent. So slices are cut
 * into pieces that follow each other: piece p of round k is one message, number
 * k * pieces + p, and the messages go out in that order. A few are always on
 * their way; before message m is posted, message m - lag has come and has been
 * added. A piece is sent on `pieces` messages after it came, so any lag up to
 * that is right.
 *
 * The sum of slice s is taken in the order s+1, s+2, ..., s: another order for
 * each slice, the same on every run, and the same bits on all ranks, because
 * the sum is made once and then copied. It is not the order of ranks.
 */
#include "plan/planners.h"

typedef struct ring {
    const oari_flow *flow;
    int rounds;          /* in which sums are made: n-1, or 0 */
    int keeps;           /* rounds after that, in which they are copied */
    size_t pieces, size; /* of a slice; elements of a piece */
    size_t lag;
} ring;

/* ---- which slice, which piece -------------------------------------------- */

static int slice_sent(const ring *r, int round)
{
    int back = round < r->rounds ? round + 1 : round - r->rounds;

    return oari_circle_wrap(&r->flow->circle, r->flow->circle.me - back);
}

/* The one behind me sends what I would send one round later. */
static int slice_come(const ring *r, int round)
{
    int back = round < r->rounds ? round + 2 : round - r->rounds + 1;

    return oari_circle_wrap(&r->flow->circle, r->flow->circle.me - back);
}

static int round_of(const ring *r, size_t message)
{
    return (int)(message / r->pieces);
}

/* Where the piece of a message lies in the buffer, and how long it is. */
static size_t piece_of(const ring *r, int slice, size_t message, size_t *count)
{
    const oari_cut *cut = &r->flow->cut;
    size_t at = oari_piece(oari_cut_count(cut, slice), r->size,
                           message % r->pieces, count);

    return oari_cut_first(cut, slice) + at;
}

/* ---- places -------------------------------------------------------------- */

static oari_spot my_version(const ring *r, size_t at)
{
    return (oari_spot){ r->flow->in.where, r->flow->in.at + at };
}

/* The output is the whole row; in a reduce_scatter it is my part alone. */
static oari_spot finished(const ring *r, size_t at)
{
    size_t first =
        r->keeps != 0 ? 0 : oari_cut_first(&r->flow->cut, r->flow->circle.me);

    return (oari_spot){ r->flow->out.where, r->flow->out.at + at - first };
}

/* A sum is held from when it comes until it has been sent on. */
static oari_spot sum_place(const ring *r, size_t message)
{
    size_t places = r->pieces + r->lag;

    return (oari_spot){ OARI_WORK, r->flow->work + message % places * r->size };
}

/* My own versions that have to be widened or weighted before they are sent. */
static oari_spot lift_place(const ring *r, size_t message)
{
    size_t places = r->pieces + r->lag;

    return (oari_spot){ OARI_WORK,
                        r->flow->work + (places + message % r->lag) * r->size };
}

/* ---- one message --------------------------------------------------------- */

/* The first to be sent is my own version. */
static oari_spot version_to_send(const ring *r, oari_plan *plan, size_t message,
                                 size_t at, size_t count)
{
    oari_spot mine = my_version(r, at);

    if (!r->flow->ask->lift || mine.where == OARI_WORK)
        return mine;
    oari_plan_combine(plan, lift_place(r, message), mine,
                      (oari_spot){ OARI_NOWHERE, 0 }, 0, count);
    return lift_place(r, message);
}

static void post(const ring *r, oari_plan *plan, size_t message)
{
    const oari_circle *c = &r->flow->circle;
    int round = round_of(r, message);
    size_t sent, come;
    size_t sent_at = piece_of(r, slice_sent(r, round), message, &sent);
    size_t come_at = piece_of(r, slice_come(r, round), message, &come);
    oari_spot from, to;

    if (round >= r->rounds)
        from = finished(r, sent_at);
    else if (round == 0)
        from = version_to_send(r, plan, message, sent_at, sent);
    else
        from = sum_place(r, message - r->pieces);
    to = round < r->rounds ? sum_place(r, message) : finished(r, come_at);
    oari_plan_recv(plan, oari_circle_rank(c, c->me - 1), to.where, to.at, come);
    oari_plan_send(plan, oari_circle_rank(c, c->me + 1), from.where, from.at,
                   sent);
}

static void add(const ring *r, oari_plan *plan, size_t message)
{
    int round = round_of(r, message), whole = round == r->rounds - 1;
    size_t count, at = piece_of(r, slice_come(r, round), message, &count);
    oari_spot sum = sum_place(r, message);

    if (round < r->rounds)
        oari_plan_combine(plan, whole ? finished(r, at) : sum, sum,
                          my_version(r, at), whole, count);
}

/* ---- all of them --------------------------------------------------------- */

static void go_around(const ring *r, oari_plan *plan)
{
    size_t messages = (size_t)(r->rounds + r->keeps) * r->pieces;
    int posted[OARI_WINDOW] = { 0 }; /* after each of the last messages */

    for (size_t m = 0; m < messages + r->lag; m++) {
        if (m >= r->lag) {
            oari_plan_wait_until(plan, posted[m % r->lag]);
            add(r, plan, m - r->lag);
        }
        if (m < messages)
            post(r, plan, m);
        posted[m % r->lag] = plan->posted;
    }
}

static ring make_ring(const oari_flow *flow, oari_plan *plan, int sums,
                      int keeps)
{
    size_t most = oari_cut_most(&flow->cut), places;
    ring r = { flow,
               sums ? flow->circle.n - 1 : 0,
               keeps ? flow->circle.n - 1 : 0,
               0,
               0,
               0 };

    r.size = oari_chunk(flow->ask, most,
                        sums ? flow->ask->wide : flow->ask->element);
    if (r.size > most && most != 0)
        r.size = most;
    r.pieces = (most + r.size - 1) / r.size;
    if (r.pieces == 0)
        r.pieces = 1;
    r.lag = r.pieces < OARI_WINDOW ? r.pieces : OARI_WINDOW;
    places = sums ? r.pieces + 2 * r.lag : 0;
    if (plan->work_count < flow->work + places * r.size)
        plan->work_count = flow->work + places * r.size;
    return r;
}

void oari_ring_reduce(const oari_flow *flow, oari_plan *plan, int gather)
{
    size_t first = gather ? 0 : oari_cut_first(&flow->cut, flow->circle.me);
    size_t count = gather ? oari_cut_first(&flow->cut, flow->cut.n)
                          : oari_cut_count(&flow->cut, flow->circle.me);
    ring r = make_ring(flow, plan, 1, gather);

    if (flow->circle.n == 1)
        oari_plan_combine(plan, flow->out,
                          (oari_spot){ flow->in.where, flow->in.at + first },
                          (oari_spot){ OARI_NOWHERE, 0 }, 1, count);
    else
        go_around(&r, plan);
}

void oari_ring_gather(const oari_flow *flow, oari_plan *plan)
{
    ring r = make_ring(flow, plan, 0, 1);

    go_around(&r, plan);
}

/* ---- the planners -------------------------------------------------------- */

oari_flow oari_flow_all(const oari_ask *ask, oari_cut cut)
{
    return (oari_flow){ .ask = ask,
                        .circle = oari_circle_all(ask),
                        .cut = cut,
                        .in = { OARI_IN, 0 },
                        .out = { OARI_OUT, 0 } };
}

void oari_plan_ring_all_reduce(const oari_ask *ask, oari_plan *plan)
{
    oari_flow flow =
        oari_flow_all(ask, oari_cut_slices(ask->count, ask->ranks));

    if (ask->mean)
        oari_bruck_words(ask, plan, OARI_FACTOR);
    oari_ring_reduce(&flow, plan, 1);
}

void oari_plan_ring_reduce_scatter(const oari_ask *ask, oari_plan *plan)
{
    oari_flow flow = oari_flow_all(ask, oari_cut_parts(ask));

    if (ask->mean)
        oari_bruck_words(ask, plan, OARI_FACTOR);
    oari_ring_reduce(&flow, plan, 0);
}

void oari_plan_ring_all_gather(const oari_ask *ask, oari_plan *plan)
{
    oari_flow flow = oari_flow_all(ask, oari_cut_parts(ask));

    oari_plan_copy(plan, OARI_OUT, oari_cut_first(&flow.cut, ask->rank),
                   OARI_IN, -1, 0, oari_cut_count(&flow.cut, ask->rank));
    oari_ring_gather(&flow, plan);
}
