/* SPDX-License-Identifier: Apache-2.0 */
/* plan_line: small operations. Each rank publishes its data in its slot; after
 * one sync point every rank reads what it needs from the slots of the others. n
 * slots are read and one is written. There is no second sync point: a rank has
 * several slots in turn. A rank that needs nothing of the others does not wait
 * for them: the root of a broadcast or scatter, the others in a reduce or
 * gather. */
#include "plan/planners.h"

/* Returns whose slots this rank reads. */
static int awaited_peer(const oari_plan_request *req)
{
    switch (req->kind) {
    case OAR_COLL_BROADCAST:
    case OAR_COLL_SCATTER:
        return req->rank == req->root ? OARI_PEER_NONE : req->root;
    case OAR_COLL_REDUCE:
    case OAR_COLL_GATHER:
        return req->rank == req->root ? OARI_PEER_ALL : OARI_PEER_NONE;
    default: return OARI_PEER_ALL;
    }
}

/* Publishes as much as a rank needs of this one. */
static void sync_with_data(const oari_plan_request *req, oari_plan *plan)
{
    oari_partition row = oari_partition_parts(req);
    int root = req->rank == req->root;
    size_t count = req->count;

    switch (req->kind) {
    case OAR_COLL_BARRIER: count = 0; break;
    case OAR_COLL_BROADCAST: count = root ? count : 0; break;
    case OAR_COLL_GATHER:
    case OAR_COLL_ALL_GATHER:
        count = oari_partition_count(&row, req->rank);
        break;
    case OAR_COLL_SCATTER:
        count = root ? oari_partition_first(&row, req->ranks) : 0;
        break;
    case OAR_COLL_REDUCE_SCATTER:
        count = oari_partition_first(&row, req->ranks);
        break;
    case OAR_COLL_ALL_TO_ALL: count *= (size_t)req->ranks; break;
    default: break;
    }
    /* behind other steps of a plan, all ranks wait for all */
    plan->slots_only = plan->steps == 0;
    oari_plan_sync_with(
        plan, plan->slots_only ? awaited_peer(req) : OARI_PEER_ALL, count);
}

/* all_to_all has equal parts only: before a sync point no rank knows the rows
 * of the others. */
void oari_plan_line(const oari_plan_request *req, oari_plan *plan)
{
    oari_partition row = oari_partition_parts(req);
    int root = req->rank == req->root, all = req->root < 0;
    int all_to_all = req->kind == OAR_COLL_ALL_TO_ALL;
    size_t first = oari_partition_first(&row, req->rank);
    size_t count = oari_partition_count(&row, req->rank);

    sync_with_data(req, plan);
    switch (req->kind) {
    case OAR_COLL_BARRIER: break;
    case OAR_COLL_BROADCAST:
        if (!root)
            oari_plan_copy(plan, OARI_OUT, 0, OARI_SLOT, req->root, 0,
                           req->count);
        break;
    case OAR_COLL_ALL_REDUCE:
    case OAR_COLL_REDUCE:
        if (all || root)
            oari_plan_reduce(plan, OARI_OUT, 0, OARI_SLOT, 0, req->count);
        break;
    case OAR_COLL_SCATTER:
        oari_plan_copy(plan, OARI_OUT, 0, root ? OARI_IN : OARI_SLOT, req->root,
                       first, count);
        break;
    case OAR_COLL_REDUCE_SCATTER:
        oari_plan_reduce(plan, OARI_OUT, 0, OARI_SLOT, first, count);
        break;
    default:
        for (int r = 0; r < req->ranks; r++)
            if (all || root)
                oari_plan_copy(plan, OARI_OUT, oari_partition_first(&row, r),
                               r == req->rank ? OARI_IN : OARI_SLOT, r,
                               all_to_all ? first : 0,
                               oari_partition_count(&row, r));
        break;
    }
}

size_t oari_slot_count(const oari_plan_request *req)
{
    oari_partition row = oari_partition_parts(req);

    switch (req->kind) {
    case OAR_COLL_GATHER:
    case OAR_COLL_ALL_GATHER: return oari_partition_longest(&row);
    case OAR_COLL_SCATTER:
    case OAR_COLL_REDUCE_SCATTER:
    case OAR_COLL_ALL_TO_ALL: return oari_partition_first(&row, req->ranks);
    default: return req->count;
    }
}
