/* SPDX-License-Identifier: Apache-2.0 */
/* plan_doubling: all_reduce between partners whose distance doubles.
 *
 * doubling: in each round partners swap what they have and both combine it, the
 * lower one's to the left; log2 n rounds with the whole buffer. For small data.
 *
 * halving (Rabenseifner): partners split what they are responsible for: each
 * sends the other's half and combines its own. After log2 n rounds everyone has
 * one finished slice; then partners swap finished slices in the opposite order.
 * As few bytes as a ring, in 2 log2 n rounds.
 *
 * Any number of ranks: with p the power of two not above n, the first 2 (n-p)
 * ranks are paired off, and the odd one of each pair hands its buffer to the
 * even one before, and gets the result after. The p that are left are
 * `players`, counted anew in the same order.
 */
#include "plan/planners.h"

typedef struct game {
    const oari_flow *flow;
    oari_plan *plan;
    size_t count;
    int players, extra;
    int me;         /* as a player; -1: none */
    oari_spot mine; /* where my partial result is */
    oari_spot sum;  /* where it goes */
    size_t come;    /* WORK: what a partner sends */
    size_t size;    /* elements of a chunk */
} game;

static const oari_spot nothing = { OARI_NOWHERE, 0 };

static game begin(const oari_flow *flow, oari_plan *plan, size_t count)
{
    const oari_circle *c = &flow->circle;
    game g = { .flow = flow,
               .plan = plan,
               .count = count,
               .players = 1,
               .mine = flow->in,
               .sum = { OARI_WORK, flow->work },
               .come = flow->work + count };

    while (2 * g.players <= c->n)
        g.players *= 2;
    g.extra = c->n - g.players;
    g.me = c->me >= 2 * g.extra ? c->me - g.extra
           : c->me % 2 == 0     ? c->me / 2
                                : -1;
    g.size = oari_chunk(flow->ask, count, flow->ask->wide);
    if (g.size > count)
        g.size = count;
    if (plan->work_count < g.come + OARI_WINDOW * g.size)
        plan->work_count = g.come + OARI_WINDOW * g.size;
    return g;
}

/* The rank of a player. */
static int rank_of(const game *g, int player)
{
    return oari_circle_rank(&g->flow->circle,
                            player < g->extra ? 2 * player : player + g->extra);
}

static oari_spot moved(oari_spot spot, size_t by)
{
    return (oari_spot){ spot.where, spot.at + by };
}

static void lift(game *g)
{
    if (!g->flow->ask->lift || g->mine.where == OARI_WORK)
        return;
    oari_plan_combine(g->plan, g->sum, g->mine, nothing, 0, g->count);
    g->mine = g->sum;
}

/* ---- swapping, chunk by chunk -------------------------------------------- */

typedef struct range {
    size_t first, count;
} range;

static void combine_chunk(const game *g, range keep, int left, int whole,
                          size_t index)
{
    size_t count, at = oari_piece(keep.count, g->size, index, &count);
    oari_spot come = { OARI_WORK, g->come + index % OARI_WINDOW * g->size };
    oari_spot mine = moved(g->mine, keep.first + at);
    oari_spot to = moved(whole ? g->flow->out : g->sum, keep.first + at);

    oari_plan_combine(g->plan, to, left ? mine : come, left ? come : mine,
                      whole, count);
}

static void post_chunk(const game *g, int rank, range give, range keep,
                       size_t index)
{
    size_t sent, come, at = oari_piece(give.count, g->size, index, &sent);

    oari_piece(keep.count, g->size, index, &come);
    oari_plan_recv(g->plan, rank, OARI_WORK,
                   g->come + index % OARI_WINDOW * g->size, come);
    oari_plan_send(g->plan, rank, g->mine.where, g->mine.at + give.first + at,
                   sent);
}

/* Gives a rank one range of my partial result and combines its version of
 * another with mine, which stands to the left if `left`. */
static void swap(game *g, int rank, range give, range keep, int left, int whole)
{
    size_t longer = give.count > keep.count ? give.count : keep.count;
    size_t chunks = g->size != 0 ? (longer + g->size - 1) / g->size : 0;
    int posted[OARI_WINDOW] = { 0 };

    for (size_t i = 0; i < chunks + OARI_WINDOW; i++) {
        if (i >= OARI_WINDOW) {
            oari_plan_wait_until(g->plan, posted[i % OARI_WINDOW]);
            combine_chunk(g, keep, left, whole, i - OARI_WINDOW);
        }
        if (i < chunks)
            post_chunk(g, rank, give, keep, i);
        posted[i % OARI_WINDOW] = g->plan->posted;
    }
}

/* ---- those who do not play ----------------------------------------------- */

static void fold(game *g)
{
    const oari_circle *c = &g->flow->circle;
    range all = { 0, g->count }, none = { 0, 0 };

    if (c->me >= 2 * g->extra)
        return;
    if (g->me < 0)
        swap(g, oari_circle_rank(c, c->me - 1), all, none, 1, 0);
    else {
        swap(g, oari_circle_rank(c, c->me + 1), none, all, 1, 0);
        g->mine = g->sum;
    }
}

static void unfold(const game *g)
{
    const oari_circle *c = &g->flow->circle;
    oari_spot out = g->flow->out;

    if (c->me >= 2 * g->extra)
        return;
    if (g->me < 0)
        oari_plan_recv(g->plan, oari_circle_rank(c, c->me - 1), out.where,
                       out.at, g->count);
    else
        oari_plan_send(g->plan, oari_circle_rank(c, c->me + 1), out.where,
                       out.at, g->count);
    oari_plan_wait(g->plan);
}

/* ---- doubling ------------------------------------------------------------ */

/* Both need the other's version of everything: what is sent must not change
 * until it has gone, so nothing is combined before. */
static void double_up(game *g, int bit)
{
    int partner = g->me ^ bit, rank = rank_of(g, partner);
    int whole = 2 * bit == g->players;
    oari_spot come = { OARI_WORK, g->come };
    oari_spot to = whole ? g->flow->out : g->sum;

    oari_plan_recv(g->plan, rank, come.where, come.at, g->count);
    oari_plan_send(g->plan, rank, g->mine.where, g->mine.at, g->count);
    oari_plan_wait(g->plan);
    if (g->me < partner)
        oari_plan_combine(g->plan, to, g->mine, come, whole, g->count);
    else
        oari_plan_combine(g->plan, to, come, g->mine, whole, g->count);
    g->mine = g->sum;
}

static void finish_alone(const game *g)
{
    oari_plan_combine(g->plan, g->flow->out, g->flow->in, nothing, 1, g->count);
}

void oari_doubling(const oari_flow *flow, oari_plan *plan, size_t count)
{
    game g = begin(flow, plan, count);

    if (flow->circle.n == 1) {
        finish_alone(&g);
        return;
    }
    if (plan->work_count < g.come + count)
        plan->work_count = g.come + count;
    lift(&g);
    fold(&g);
    for (int bit = 1; g.me >= 0 && bit < g.players; bit *= 2)
        double_up(&g, bit);
    unfold(&g);
}

/* ---- halving ------------------------------------------------------------- */

/* The slices that a player is left with when partners at distance `bit` have
 * split: those of the players that differ from it only below that bit. */
static range slices_of(const game *g, int player, int bit)
{
    int first = player & ~(bit - 1);
    size_t at = oari_slice_first(g->count, g->players, first);

    return (range){ at,
                    oari_slice_first(g->count, g->players, first + bit) - at };
}

static void halve(game *g, int bit)
{
    int partner = g->me ^ bit;

    swap(g, rank_of(g, partner), slices_of(g, partner, bit),
         slices_of(g, g->me, bit), g->me < partner, bit == 1);
    g->mine = g->sum;
}

static void share(const game *g, int bit)
{
    int partner = g->me ^ bit, rank = rank_of(g, partner);
    range theirs = slices_of(g, partner, bit), mine = slices_of(g, g->me, bit);
    oari_spot out = g->flow->out;

    oari_plan_recv(g->plan, rank, out.where, out.at + theirs.first,
                   theirs.count);
    oari_plan_send(g->plan, rank, out.where, out.at + mine.first, mine.count);
    oari_plan_wait(g->plan);
}

void oari_halving(const oari_flow *flow, oari_plan *plan, size_t count)
{
    game g = begin(flow, plan, count);

    if (flow->circle.n == 1) {
        finish_alone(&g);
        return;
    }
    lift(&g);
    fold(&g);
    for (int bit = g.players / 2; g.me >= 0 && bit > 0; bit /= 2)
        halve(&g, bit);
    for (int bit = 1; g.me >= 0 && bit < g.players; bit *= 2)
        share(&g, bit);
    unfold(&g);
}

/* ---- the planners -------------------------------------------------------- */

void oari_plan_doubling(const oari_ask *ask, oari_plan *plan)
{
    oari_flow flow = oari_flow_all(ask, oari_cut_slices(ask->count, 1));

    if (ask->mean)
        oari_bruck_words(ask, plan, OARI_FACTOR);
    oari_doubling(&flow, plan, ask->count);
}

void oari_plan_halving(const oari_ask *ask, oari_plan *plan)
{
    oari_flow flow = oari_flow_all(ask, oari_cut_slices(ask->count, 1));

    if (ask->mean)
        oari_bruck_words(ask, plan, OARI_FACTOR);
    oari_halving(&flow, plan, ask->count);
}
