/* SPDX-License-Identifier: Apache-2.0 */
/* plan_pairwise: one message for each pair.
 *
 * pairwise, all_to_all: in round k every rank sends to the rank k places ahead
 * and receives from the one k behind, so that in every round each link carries
 * one message each way. A few rounds overlap. Parts of any size: with messages
 * nobody needs to know more than its own counts.
 *
 * linear, gather and scatter: root and each of the others, at once. For parts
 * of any size, which only root knows, and for large ones, which a tree would
 * carry several times.
 */
#include "plan/planners.h"

void oari_plan_pairwise(const oari_ask *ask, oari_plan *plan)
{
    oari_cut in = oari_cut_parts(ask);
    oari_cut out = { ask->ranks, ask->count, 0, ask->out_at };
    int n = ask->ranks, me = ask->rank, posted[OARI_WINDOW] = { 0 };

    oari_plan_copy(plan, OARI_OUT, oari_cut_first(&out, me), OARI_IN, -1,
                   oari_cut_first(&in, me), oari_cut_count(&in, me));
    for (int k = 1; k < n; k++) {
        int to = (me + k) % n, from = (me - k + n) % n;
        oari_plan_wait_until(plan, posted[k % OARI_WINDOW]);
        oari_plan_recv(plan, from, OARI_OUT, oari_cut_first(&out, from),
                       oari_cut_count(&out, from));
        oari_plan_send(plan, to, OARI_IN, oari_cut_first(&in, to),
                       oari_cut_count(&in, to));
        posted[k % OARI_WINDOW] = plan->posted;
    }
    oari_plan_wait(plan);
}

static void gather_at_root(const oari_ask *ask, oari_plan *plan)
{
    oari_cut row = oari_cut_parts(ask);

    for (int r = 0; r < ask->ranks; r++)
        if (r != ask->root)
            oari_plan_recv(plan, r, OARI_OUT, oari_cut_first(&row, r),
                           oari_cut_count(&row, r));
    oari_plan_copy(plan, OARI_OUT, oari_cut_first(&row, ask->root), OARI_IN, -1,
                   0, oari_cut_count(&row, ask->root));
}

static void scatter_from_root(const oari_ask *ask, oari_plan *plan)
{
    oari_cut row = oari_cut_parts(ask);

    for (int r = 0; r < ask->ranks; r++)
        if (r != ask->root)
            oari_plan_send(plan, r, OARI_IN, oari_cut_first(&row, r),
                           oari_cut_count(&row, r));
    oari_plan_copy(plan, OARI_OUT, 0, OARI_IN, -1,
                   oari_cut_first(&row, ask->root),
                   oari_cut_count(&row, ask->root));
}

void oari_plan_linear(const oari_ask *ask, oari_plan *plan)
{
    int gather = ask->kind == OAR_COLL_GATHER;

    if (ask->rank == ask->root) {
        if (gather)
            gather_at_root(ask, plan);
        else
            scatter_from_root(ask, plan);
    } else if (gather)
        oari_plan_send(plan, ask->root, OARI_IN, 0, ask->count);
    else
        oari_plan_recv(plan, ask->root, OARI_OUT, 0, ask->count);
    oari_plan_wait(plan);
}
