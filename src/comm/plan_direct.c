/* SPDX-License-Identifier: Apache-2.0 */
/* plan_direct: large operations over memory that every rank can reach. The
 * first meeting tells all ranks where all buffers are; then everyone works on
 * them in place; the last meeting says that everyone has finished.
 *
 * Where some buffer cannot be reached, the data goes through the lines if it
 * fits, else through the stages.
 *
 * all_reduce: rank r combines slice r of all inputs and stores it straight into
 * all outputs: count * n elements read and written in all, by n ranks at once,
 * and not one copy.
 */
#include "comm/planners.h"

void oari_plan_direct_all_reduce(const oari_ask *ask, oari_plan *plan)
{
    size_t first = oari_slice_first(ask->count, ask->ranks, ask->rank);
    size_t count = oari_slice_count(ask->count, ask->ranks, ask->rank);
    int apart;

    plan->shows_buffers = 1;
    oari_plan_meet(plan, 0, 0);
    apart = oari_plan_unless_reachable(plan, -1);
    oari_plan_reduce(plan, OARI_ALL_OUT, first, OARI_IN, first, 0, count);
    oari_plan_meet(plan, 0, 0);
    oari_plan_end(plan);
    oari_plan_land(plan, apart);
    if (ask->count <= ask->line_bytes / ask->element)
        oari_plan_line_all_reduce(ask, plan);
    else
        oari_plan_staged_all_reduce_rest(ask, plan);
}

void oari_plan_direct_broadcast(const oari_ask *ask, oari_plan *plan)
{
    int apart;

    plan->shows_buffers = 1;
    oari_plan_meet(plan, 0, 0);
    apart = oari_plan_unless_reachable(plan, ask->root);
    if (ask->rank != ask->root)
        oari_plan_copy(plan, OARI_OUT, 0, OARI_IN, ask->root, 0, ask->count);
    oari_plan_meet(plan, 0, 0);
    oari_plan_end(plan);
    oari_plan_land(plan, apart);
    if (ask->count <= ask->line_bytes / ask->element)
        oari_plan_line_broadcast(ask, plan);
    else
        oari_plan_staged_broadcast_rest(ask, plan);
}
