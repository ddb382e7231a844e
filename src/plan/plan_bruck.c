/* SPDX-License-Identifier: Apache-2.0 */
/* plan_bruck: few rounds, for small data.
 *
 * all_gather (Bruck): rank r begins with part r. After a round in which it had
 * the k parts r .. r+k-1 it has 2k of them: it sends its k to rank r-k and gets
 * those of rank r+k. ceil(log2 n) rounds for any n; parts lie where they belong
 * from the start, so a run of parts that goes over the end of the row is two
 * messages.
 *
 * all_reduce: the inputs of all ranks gathered that way, then combined by
 * everyone in the order of ranks: n times the bytes, but log n rounds, and the
 * same bits as everywhere.
 *
 * all_to_all: data for the rank d places ahead goes there in jumps of the
 * powers of two that make up d; in round j everything with bit j of d set moves
 * by 2^j. ceil(log2 n) messages of half a row each, instead of n-1 small ones.
 *
 * barrier (dissemination): in round j, tell rank r + 2^j and hear r - 2^j.
 */
#include "plan/planners.h"

typedef struct row {
    oari_where where;
    oari_cut cut;
} row;

/* Parts first .. first+k-1 around the row, to or from a rank. */
static void move_parts(oari_plan *plan, const row *w, int sending, int peer,
                       int first, int k)
{
    int n = w->cut.n, end = first + k <= n ? first + k : n;
    size_t at = oari_cut_first(&w->cut, first);
    size_t count = oari_cut_first(&w->cut, end) - at;

    if (sending)
        oari_plan_send(plan, peer, w->where, at, count);
    else
        oari_plan_recv(plan, peer, w->where, at, count);
    if (first + k > n)
        move_parts(plan, w, sending, peer, 0, first + k - n);
}

static void gather_row(const oari_circle *c, oari_plan *plan, const row *w)
{
    for (int have = 1; have < c->n; have *= 2) {
        int k = have < c->n - have ? have : c->n - have;
        int behind = oari_circle_wrap(c, c->me - have);
        int ahead = oari_circle_wrap(c, c->me + have);

        move_parts(plan, w, 0, oari_circle_rank(c, ahead), ahead, k);
        move_parts(plan, w, 1, oari_circle_rank(c, behind), c->me, k);
        oari_plan_wait(plan);
    }
}

void oari_bruck_words(const oari_ask *ask, oari_plan *plan, oari_where words)
{
    oari_circle c = oari_circle_all(ask);
    row w = { words, { .n = ask->ranks, .count = 1 } };

    gather_row(&c, plan, &w);
}

static void all_gather(const oari_ask *ask, oari_plan *plan)
{
    oari_circle c = oari_circle_all(ask);
    row w = { OARI_OUT, oari_cut_parts(ask) };

    oari_plan_copy(plan, OARI_OUT, oari_cut_first(&w.cut, ask->rank), OARI_IN,
                   -1, 0, oari_cut_count(&w.cut, ask->rank));
    gather_row(&c, plan, &w);
}

/* Slot i of GATHER is rank r + i's, so that no run of slots goes around. */
static void all_reduce(const oari_ask *ask, oari_plan *plan)
{
    size_t count = ask->count;
    int n = ask->ranks, me = ask->rank;

    if (ask->weighted)
        oari_bruck_words(ask, plan, OARI_FACTOR);
    plan->slots = n;
    plan->slot_count = count;
    plan->gather_count = (size_t)n * count;
    oari_plan_copy(plan, OARI_GATHER, 0, OARI_IN, -1, 0, count);
    for (int have = 1; have < n; have *= 2) {
        size_t k = (size_t)(have < n - have ? have : n - have) * count;

        oari_plan_recv(plan, (me + have) % n, OARI_GATHER, (size_t)have * count,
                       k);
        oari_plan_send(plan, (me - have + n) % n, OARI_GATHER, 0, k);
        oari_plan_wait(plan);
    }
    if (count != 0)
        oari_plan_step(plan, (oari_step){ .kind = OARI_REDUCE,
                                          .to = OARI_OUT,
                                          .from = OARI_GATHER,
                                          .peer = me,
                                          .to_peer = -1,
                                          .count = count });
}

/* ---- all_to_all ---------------------------------------------------------- */

/* Slot d of GATHER holds what has d places left to go, or came from d places
 * behind; slots n on are for packing, and those from `in` on for what comes. */
static void jump(const oari_ask *ask, oari_plan *plan, int bit)
{
    size_t count = ask->count, n = (size_t)ask->ranks;
    size_t out = n, in = n + (n + 1) / 2, k = 0;

    for (size_t d = 0; d < n; d++)
        if (d & (size_t)bit)
            oari_plan_copy(plan, OARI_GATHER, (out + k++) * count, OARI_GATHER,
                           -1, d * count, count);
    oari_plan_recv(plan, (ask->rank - bit + ask->ranks) % ask->ranks,
                   OARI_GATHER, in * count, k * count);
    oari_plan_send(plan, (ask->rank + bit) % ask->ranks, OARI_GATHER,
                   out * count, k * count);
    oari_plan_wait(plan);
    k = 0;
    for (size_t d = 0; d < n; d++)
        if (d & (size_t)bit)
            oari_plan_copy(plan, OARI_GATHER, d * count, OARI_GATHER, -1,
                           (in + k++) * count, count);
}

static void all_to_all(const oari_ask *ask, oari_plan *plan)
{
    size_t count = ask->count;
    int n = ask->ranks, me = ask->rank;

    plan->gather_count = ((size_t)n + 2 * (((size_t)n + 1) / 2)) * count;
    for (int d = 0; d < n; d++)
        oari_plan_copy(plan, OARI_GATHER, (size_t)d * count, OARI_IN, -1,
                       (size_t)((me + d) % n) * count, count);
    for (int bit = 1; bit < n; bit *= 2)
        jump(ask, plan, bit);
    for (int d = 0; d < n; d++)
        oari_plan_copy(plan, OARI_OUT, (size_t)((me - d + n) % n) * count,
                       OARI_GATHER, -1, (size_t)d * count, count);
}

void oari_plan_bruck(const oari_ask *ask, oari_plan *plan)
{
    switch (ask->kind) {
    case OAR_COLL_ALL_REDUCE: all_reduce(ask, plan); break;
    case OAR_COLL_ALL_TO_ALL: all_to_all(ask, plan); break;
    default: all_gather(ask, plan); break;
    }
}

/* ---- barrier ------------------------------------------------------------- */

void oari_signal_all(const oari_circle *c, oari_plan *plan)
{
    for (int bit = 1; bit < c->n; bit *= 2) {
        oari_plan_signal(plan, oari_circle_rank(c, c->me + bit),
                         oari_circle_rank(c, c->me - bit));
        oari_plan_wait(plan);
    }
}

void oari_plan_dissemination(const oari_ask *ask, oari_plan *plan)
{
    oari_circle c = oari_circle_all(ask);

    oari_signal_all(&c, plan);
}
