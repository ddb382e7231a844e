/* SPDX-License-Identifier: Apache-2.0 */
/* plan_pairwise: one message for each pair.
 *
 * pairwise, all_to_all: in round k every rank sends to the rank k places ahead
 * and receives from the one k behind, so that in every round each link carries
 * one message each way. A few rounds overlap. Parts may have any size: with
 * messages a rank needs to know its own counts only.
 *
 * linear, gather and scatter: root exchanges a message with each of the others,
 * all at once. For parts of any size, which only root knows, and for large
 * ones, which a tree would carry several times.
 */
#include "plan/planners.h"

void oari_plan_pairwise(const oari_plan_request *req, oari_plan *plan)
{
    oari_partition in = oari_partition_parts(req);
    oari_partition out = { req->ranks, req->count, 0, req->out_at };
    int n = req->ranks, me = req->rank, posted[OARI_WINDOW] = { 0 };

    oari_plan_copy(plan, OARI_OUT, oari_partition_first(&out, me), OARI_IN, -1,
                   oari_partition_first(&in, me),
                   oari_partition_count(&in, me));
    for (int k = 1; k < n; k++) {
        int to = (me + k) % n, from = (me - k + n) % n;
        oari_plan_wait_until(plan, posted[k % OARI_WINDOW]);
        oari_plan_recv(plan, from, OARI_OUT, oari_partition_first(&out, from),
                       oari_partition_count(&out, from));
        oari_plan_send(plan, to, OARI_IN, oari_partition_first(&in, to),
                       oari_partition_count(&in, to));
        posted[k % OARI_WINDOW] = plan->posted;
    }
    oari_plan_wait(plan);
}

static void exchange_at_root(const oari_plan_request *req, oari_plan *plan,
                             int gather)
{
    oari_partition row = oari_partition_parts(req);

    for (int r = 0; r < req->ranks; r++) {
        size_t first = oari_partition_first(&row, r);
        size_t count = oari_partition_count(&row, r);
        if (r != req->root && gather)
            oari_plan_recv(plan, r, OARI_OUT, first, count);
        else if (r != req->root)
            oari_plan_send(plan, r, OARI_IN, first, count);
    }
    oari_plan_copy(plan, OARI_OUT,
                   gather ? oari_partition_first(&row, req->root) : 0, OARI_IN,
                   -1, gather ? 0 : oari_partition_first(&row, req->root),
                   oari_partition_count(&row, req->root));
}

void oari_plan_linear(const oari_plan_request *req, oari_plan *plan)
{
    int gather = req->kind == OAR_COLL_GATHER;

    if (req->rank == req->root)
        exchange_at_root(req, plan, gather);
    else if (gather)
        oari_plan_send(plan, req->root, OARI_IN, 0, req->count);
    else
        oari_plan_recv(plan, req->root, OARI_OUT, 0, req->count);
    oari_plan_wait(plan);
}
