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

/* Returns the lowest set bit of my member number; for root, the first power of
 * two that is not below n. */
static int lowest_bit(const oari_rank_ring *ring)
{
    int bit = 1;

    while (bit < ring->n && (ring->me & bit) == 0)
        bit *= 2;
    return bit;
}

void oari_tree_broadcast(const oari_rank_ring *ring, oari_plan *plan,
                         oari_location buffer, size_t count)
{
    int bit = lowest_bit(ring);

    if (ring->me != 0) {
        oari_plan_recv(plan, oari_ring_rank(ring, ring->me - bit),
                       buffer.buffer, buffer.at, count);
        oari_plan_wait(plan);
    }
    for (bit /= 2; bit > 0; bit /= 2)
        if (ring->me + bit < ring->n)
            oari_plan_send(plan, oari_ring_rank(ring, ring->me + bit),
                           buffer.buffer, buffer.at, count);
    oari_plan_wait(plan);
}

/* WORK holds one sum, and beside it what a child sends. */
void oari_tree_reduce(const oari_plan_reduction *reduction, oari_plan *plan,
                      size_t count)
{
    const oari_rank_ring *ring = &reduction->ring;
    oari_location mine = reduction->in, nothing = { OARI_NOWHERE, 0 };
    oari_location sum = { OARI_WORK, reduction->work };
    oari_location received = { OARI_WORK, reduction->work + count };
    int end = lowest_bit(ring), leaf = end == 1 || ring->me + 1 >= ring->n;

    if (plan->work_count < reduction->work + 2 * count)
        plan->work_count = reduction->work + 2 * count;
    for (int bit = 1; bit < end && ring->me + bit < ring->n; bit *= 2) {
        int last = ring->me == 0 && 2 * bit >= ring->n;
        oari_plan_recv(plan, oari_ring_rank(ring, ring->me + bit),
                       received.buffer, received.at, count);
        oari_plan_wait(plan);
        oari_plan_combine(plan, last ? reduction->out : sum, mine, received,
                          last, count);
        mine = sum;
    }
    if (ring->n == 1)
        oari_plan_combine(plan, reduction->out, mine, nothing, 1, count);
    if (ring->me == 0)
        return;
    if (leaf && reduction->req->promote && mine.buffer != OARI_WORK) {
        oari_plan_combine(plan, sum, mine, nothing, 0, count);
        mine = sum;
    }
    oari_plan_send(plan, oari_ring_rank(ring, ring->me - end), mine.buffer,
                   mine.at, count);
    oari_plan_wait(plan);
}

/* ---- gather and scatter: equal parts ------------------------------------- */

/* Returns the members in the subtree that begins at m with this bit. */
static int subtree(const oari_rank_ring *ring, int m, int bit)
{
    return m + bit <= ring->n ? bit : ring->n - m;
}

/* Moves `count` elements up the tree in a gather, down in a scatter, between a
 * location here and a rank, which is my parent or my child. */
static void move_parts(const oari_plan_request *req, oari_plan *plan, int peer,
                       int is_parent, oari_location here, size_t count)
{
    if ((req->kind == OAR_COLL_GATHER) == is_parent)
        oari_plan_send(plan, peer, here.buffer, here.at, count);
    else
        oari_plan_recv(plan, peer, here.buffer, here.at, count);
}

/* Moves the parts of members m .. m+k-1 between root's row, which they may go
 * over the end of, and a child of root. `parts` is where the child has them;
 * is_parent: I am that child. */
static void move_at_root(const oari_plan_request *req, oari_plan *plan,
                         int peer, int is_parent, oari_location parts, int m,
                         int k)
{
    int n = req->ranks, first = (m + req->root) % n;
    int part = first + k <= n ? k : n - first;
    size_t count = (size_t)part * req->count;
    oari_location row = { req->kind == OAR_COLL_GATHER ? OARI_OUT : OARI_IN,
                          (size_t)first * req->count };

    move_parts(req, plan, peer, is_parent, is_parent ? parts : row, count);
    if (part == k)
        return;
    parts.at += count;
    move_at_root(req, plan, peer, is_parent, parts, m + part, k - part);
}

static void move_to_parent(const oari_plan_request *req,
                           const oari_rank_ring *ring, oari_plan *plan,
                           oari_location parts, int bit)
{
    int k = subtree(ring, ring->me, bit);

    if (ring->me == bit)
        move_at_root(req, plan, req->root, 1, parts, ring->me, k);
    else
        move_parts(req, plan, oari_ring_rank(ring, ring->me - bit), 1, parts,
                   (size_t)k * req->count);
}

static void move_to_child(const oari_plan_request *req,
                          const oari_rank_ring *ring, oari_plan *plan, int bit)
{
    int child = ring->me + bit, k = subtree(ring, child, bit);
    int peer = oari_ring_rank(ring, child);
    oari_location parts = { OARI_GATHER, (size_t)bit * req->count };

    if (child >= ring->n)
        return;
    if (ring->me == 0)
        move_at_root(req, plan, peer, 0, parts, child, k);
    else
        move_parts(req, plan, peer, 0, parts, (size_t)k * req->count);
}

/* Returns where I hold the parts of my subtree. A leaf needs no scratch. */
static oari_location parts_of(const oari_plan_request *req,
                              const oari_rank_ring *ring, oari_plan *plan,
                              int bit)
{
    int k = subtree(ring, ring->me, bit);

    if (k == 1)
        return (oari_location){ req->kind == OAR_COLL_GATHER ? OARI_IN
                                                             : OARI_OUT,
                                0 };
    plan->gather_count = (size_t)k * req->count;
    return (oari_location){ OARI_GATHER, 0 };
}

static void plan_gather(const oari_plan_request *req,
                        const oari_rank_ring *ring, oari_plan *plan)
{
    int end = lowest_bit(ring);

    for (int bit = 1; bit < end; bit *= 2)
        move_to_child(req, ring, plan, bit);
    if (ring->me == 0) {
        oari_plan_copy(plan, OARI_OUT, (size_t)req->rank * req->count, OARI_IN,
                       -1, 0, req->count);
    } else {
        oari_location parts = parts_of(req, ring, plan, end);
        if (parts.buffer == OARI_GATHER)
            oari_plan_copy(plan, OARI_GATHER, 0, OARI_IN, -1, 0, req->count);
        oari_plan_wait(plan);
        move_to_parent(req, ring, plan, parts, end);
    }
    oari_plan_wait(plan);
}

static void plan_scatter(const oari_plan_request *req,
                         const oari_rank_ring *ring, oari_plan *plan)
{
    oari_location parts = { OARI_IN, (size_t)req->rank * req->count };
    int end = lowest_bit(ring);

    if (ring->me != 0) {
        parts = parts_of(req, ring, plan, end);
        move_to_parent(req, ring, plan, parts, end);
        oari_plan_wait(plan);
    }
    for (int bit = end / 2; bit > 0; bit /= 2)
        move_to_child(req, ring, plan, bit);
    if (parts.buffer != OARI_OUT)
        oari_plan_copy(plan, OARI_OUT, 0, parts.buffer, -1, parts.at,
                       req->count);
    oari_plan_wait(plan);
}

void oari_plan_binomial(const oari_plan_request *req, oari_plan *plan)
{
    oari_rank_ring ring = oari_ring_from(req, req->root);
    oari_plan_reduction reduction =
        oari_plan_reduction_all(req, oari_partition_slices(req->count, 1));

    switch (req->kind) {
    case OAR_COLL_REDUCE:
        reduction.ring = ring;
        if (req->mean)
            oari_bruck_words(req, plan, OARI_FACTOR);
        oari_tree_reduce(&reduction, plan, req->count);
        break;
    case OAR_COLL_GATHER: plan_gather(req, &ring, plan); break;
    case OAR_COLL_SCATTER: plan_scatter(req, &ring, plan); break;
    default:
        oari_tree_broadcast(
            &ring, plan,
            (oari_location){ ring.me == 0 ? OARI_IN : OARI_OUT, 0 },
            req->count);
        break;
    }
}
