/* SPDX-License-Identifier: Apache-2.0 */
/* plan_sizes: collectives in which a rank does not know all that it needs of
 * the others: parts that only root knows, rows of an all_to_all, objects. Ranks
 * exchange sizes first; then all of them make the same second plan. It is one
 * collective: no other one comes between.
 *
 * Over shared memory it is one sync point, the one that shows the buffers.
 * Every slot has the counts of both buffers; a rank whose row has parts of its
 * own also publishes where they begin. If that table does not fit into a slot
 * it goes through the bounce buffer, with a sync point before it, which
 * protects a slow reader of the operation before, and one after it.
 */
#include "plan/planners.h"

/* The table has the beginnings of all parts, the end, and the longest part. */
size_t oari_table_words(const oari_plan_request *req)
{
    int table = req->kind == OAR_COLL_ALL_TO_ALL ||
                (req->kind == OAR_COLL_SCATTER && req->object);

    return table ? (size_t)req->ranks + 2 : 0;
}

void oari_plan_sizes(const oari_plan_request *req, oari_plan *plan)
{
    size_t words = oari_table_words(req);
    int root = req->rank == req->root;

    plan->shows = OARI_SHOWS_IN | OARI_SHOWS_PRIVATE;
    if (req->kind == OAR_COLL_GATHER && !req->object && root)
        plan->shows |= OARI_SHOWS_OUT;
    if (words == 0)
        oari_plan_sync(plan, 0, 0);
    else if (words <= req->slot_bytes / sizeof(uint64_t))
        oari_plan_sync_table(plan);
    else {
        oari_plan_sync(plan, 0, 0);
        oari_plan_sync_table(plan);
        oari_plan_sync(plan, 0, 0);
    }
    oari_plan_replan(plan);
}

/* Exchanges one word between root and each of the others. Only objects need it:
 * other messages have the size that the sender has, and the receiver sees
 * whether that is what it expects. */
static void exchange_sizes_with_root(const oari_plan_request *req,
                                     oari_plan *plan, int to_root)
{
    int root = req->rank == req->root;

    for (int r = 0; r < req->ranks; r++) {
        int part = root ? r : req->rank;
        if (root == (r == req->root))
            continue;
        if (root != to_root)
            oari_plan_send(plan, r, OARI_TABLE, (size_t)part, 1);
        else
            oari_plan_recv(plan, r, OARI_TABLE, (size_t)part, 1);
    }
    oari_plan_wait(plan);
}

void oari_plan_size_messages(const oari_plan_request *req, oari_plan *plan)
{
    oari_rank_ring ring = oari_ring_from(req, req->root);

    switch (req->kind) {
    case OAR_COLL_GATHER: exchange_sizes_with_root(req, plan, 1); break;
    case OAR_COLL_ALL_GATHER: oari_bruck_words(req, plan, OARI_TABLE); break;
    case OAR_COLL_BROADCAST:
        oari_tree_broadcast(
            &ring, plan, (oari_location){ OARI_TABLE, (size_t)req->root }, 1);
        break;
    default: exchange_sizes_with_root(req, plan, 0); break;
    }
    oari_plan_replan(plan);
}
