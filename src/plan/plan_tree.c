/* SPDX-License-Identifier: Apache-2.0 */
/* plan_tree: binomial trees: ceil(log2 n) rounds.
 *
 * Ranks are counted from root: member m = rank - root. The parent of m is m
 * without its lowest set bit; its children are m + 1, m + 2, m + 4, ... below
 * that bit, so that the subtree of m is the members m .. m + bit - 1.
 *
 * broadcast goes down the tree, the largest subtree first. reduce goes up: a
 * member combines its children's subtrees, the smallest first, with its own to
 * the left: the members in their order, each subtree by itself. gather and
 * scatter carry the parts of whole subtrees, which are neighbours in the row;
 * only at root may they go over the end of the row, and are two messages then.
 */
#include "plan/planners.h"

/* The lowest set bit; of root, the first power of two that is not below n. */
static int lowest_bit(const oari_circle *c)
{
    int bit = 1;

    while (bit < c->n && (c->me & bit) == 0)
        bit *= 2;
    return bit;
}

/* Members in the subtree that begins at m with this bit. */
static int subtree(const oari_circle *c, int m, int bit)
{
    return m + bit <= c->n ? bit : c->n - m;
}

void oari_tree_broadcast(const oari_circle *c, oari_plan *plan,
                         oari_spot buffer, size_t count)
{
    int bit = lowest_bit(c);

    if (c->me != 0) {
        oari_plan_recv(plan, oari_circle_rank(c, c->me - bit), buffer.where,
                       buffer.at, count);
        oari_plan_wait(plan);
    }
    for (bit /= 2; bit > 0; bit /= 2)
        if (c->me + bit < c->n)
            oari_plan_send(plan, oari_circle_rank(c, c->me + bit), buffer.where,
                           buffer.at, count);
    oari_plan_wait(plan);
}

/* ---- reduce -------------------------------------------------------------- */

static oari_spot lifted(const oari_flow *flow, oari_plan *plan, oari_spot sum,
                        size_t count)
{
    if (!flow->ask->lift || flow->in.where == OARI_WORK)
        return flow->in;
    oari_plan_combine(plan, sum, flow->in, (oari_spot){ OARI_NOWHERE, 0 }, 0,
                      count);
    return sum;
}

/* One sum, and beside it what a child sends. */
void oari_tree_reduce(const oari_flow *flow, oari_plan *plan, size_t count)
{
    const oari_circle *c = &flow->circle;
    oari_spot sum = { OARI_WORK, flow->work };
    oari_spot come = { OARI_WORK, flow->work + count }, mine = flow->in;
    int end = lowest_bit(c);

    if (plan->work_count < flow->work + 2 * count)
        plan->work_count = flow->work + 2 * count;
    for (int bit = 1; bit < end && c->me + bit < c->n; bit *= 2) {
        int whole = c->me == 0 && 2 * bit >= c->n;
        oari_plan_recv(plan, oari_circle_rank(c, c->me + bit), come.where,
                       come.at, count);
        oari_plan_wait(plan);
        oari_plan_combine(plan, whole ? flow->out : sum, mine, come, whole,
                          count);
        mine = sum;
    }
    if (c->me != 0) {
        if (end == 1 || c->me + 1 >= c->n)
            mine = lifted(flow, plan, sum, count);
        oari_plan_send(plan, oari_circle_rank(c, c->me - end), mine.where,
                       mine.at, count);
        oari_plan_wait(plan);
    } else if (c->n == 1)
        oari_plan_combine(plan, flow->out, flow->in,
                          (oari_spot){ OARI_NOWHERE, 0 }, 1, count);
}

static void reduce(const oari_ask *ask, oari_plan *plan)
{
    oari_flow flow = oari_flow_all(ask, oari_cut_slices(ask->count, 1));

    flow.circle = oari_circle_from(ask, ask->root);
    if (ask->mean)
        oari_bruck_words(ask, plan, OARI_FACTOR);
    oari_tree_reduce(&flow, plan, ask->count);
}

/* ---- gather and scatter: equal parts ------------------------------------- */

/* Parts of members m .. m+k-1 between root's row and a member. */
static void move_at_root(const oari_ask *ask, oari_plan *plan, int peer, int m,
                         int k)
{
    int n = ask->ranks, first = (m + ask->root) % n;
    int end = first + k <= n ? first + k : n;
    size_t at = (size_t)first * ask->count;
    size_t count = (size_t)(end - first) * ask->count;

    if (ask->kind == OAR_COLL_GATHER)
        oari_plan_recv(plan, peer, OARI_OUT, at, count);
    else
        oari_plan_send(plan, peer, OARI_IN, at, count);
    if (first + k > n)
        move_at_root(ask, plan, peer, m + end - first, k - (end - first));
}

/* The other end of that, at member m. */
static void move_to_root(const oari_ask *ask, oari_plan *plan, oari_spot parts,
                         int m, int k)
{
    int n = ask->ranks, first = (m + ask->root) % n;
    int part = first + k <= n ? k : n - first;
    size_t count = (size_t)part * ask->count;

    if (ask->kind == OAR_COLL_GATHER)
        oari_plan_send(plan, ask->root, parts.where, parts.at, count);
    else
        oari_plan_recv(plan, ask->root, parts.where, parts.at, count);
    if (part < k) {
        parts.at += count;
        move_to_root(ask, plan, parts, m + part, k - part);
    }
}

static void move_to_parent(const oari_ask *ask, const oari_circle *c,
                           oari_plan *plan, oari_spot parts, int bit)
{
    int k = subtree(c, c->me, bit), parent = oari_circle_rank(c, c->me - bit);

    if (c->me == bit)
        move_to_root(ask, plan, parts, c->me, k);
    else if (ask->kind == OAR_COLL_GATHER)
        oari_plan_send(plan, parent, parts.where, parts.at,
                       (size_t)k * ask->count);
    else
        oari_plan_recv(plan, parent, parts.where, parts.at,
                       (size_t)k * ask->count);
}

static void move_to_child(const oari_ask *ask, const oari_circle *c,
                          oari_plan *plan, int bit)
{
    int child = c->me + bit, k = subtree(c, child, bit);
    int peer = oari_circle_rank(c, child);

    if (child >= c->n)
        return;
    if (c->me == 0)
        move_at_root(ask, plan, peer, child, k);
    else if (ask->kind == OAR_COLL_GATHER)
        oari_plan_recv(plan, peer, OARI_GATHER, (size_t)bit * ask->count,
                       (size_t)k * ask->count);
    else
        oari_plan_send(plan, peer, OARI_GATHER, (size_t)bit * ask->count,
                       (size_t)k * ask->count);
}

/* A leaf needs no scratch. */
static oari_spot parts_of(const oari_ask *ask, const oari_circle *c,
                          oari_plan *plan, int bit)
{
    int k = subtree(c, c->me, bit);

    if (k == 1)
        return (oari_spot){ ask->kind == OAR_COLL_GATHER ? OARI_IN : OARI_OUT,
                            0 };
    plan->gather_count = (size_t)k * ask->count;
    return (oari_spot){ OARI_GATHER, 0 };
}

static void gather(const oari_ask *ask, oari_plan *plan)
{
    oari_circle c = oari_circle_from(ask, ask->root);
    int end = lowest_bit(&c);

    for (int bit = 1; bit < end; bit *= 2)
        move_to_child(ask, &c, plan, bit);
    if (c.me == 0) {
        oari_plan_copy(plan, OARI_OUT, (size_t)ask->rank * ask->count, OARI_IN,
                       -1, 0, ask->count);
    } else {
        oari_spot parts = parts_of(ask, &c, plan, end);
        if (parts.where == OARI_GATHER)
            oari_plan_copy(plan, OARI_GATHER, 0, OARI_IN, -1, 0, ask->count);
        oari_plan_wait(plan);
        move_to_parent(ask, &c, plan, parts, end);
    }
    oari_plan_wait(plan);
}

static void scatter(const oari_ask *ask, oari_plan *plan)
{
    oari_circle c = oari_circle_from(ask, ask->root);
    oari_spot parts = { OARI_IN, (size_t)ask->rank * ask->count };
    int end = lowest_bit(&c);

    if (c.me != 0) {
        parts = parts_of(ask, &c, plan, end);
        move_to_parent(ask, &c, plan, parts, end);
        oari_plan_wait(plan);
    }
    for (int bit = end / 2; bit > 0; bit /= 2)
        move_to_child(ask, &c, plan, bit);
    if (parts.where != OARI_OUT)
        oari_plan_copy(plan, OARI_OUT, 0, parts.where, -1, parts.at,
                       ask->count);
    oari_plan_wait(plan);
}

void oari_plan_binomial(const oari_ask *ask, oari_plan *plan)
{
    oari_circle c = oari_circle_from(ask, ask->root);

    switch (ask->kind) {
    case OAR_COLL_REDUCE: reduce(ask, plan); break;
    case OAR_COLL_GATHER: gather(ask, plan); break;
    case OAR_COLL_SCATTER: scatter(ask, plan); break;
    default:
        oari_tree_broadcast(&c, plan,
                            (oari_spot){ c.me == 0 ? OARI_IN : OARI_OUT, 0 },
                            ask->count);
        break;
    }
}
