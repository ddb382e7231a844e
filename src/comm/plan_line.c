/* SPDX-License-Identifier: Apache-2.0 */
/* plan_line: small operations. Each rank shows its data in its exchange line;
 * one meeting later everybody reads everybody's. n lines read, one written, no
 * second meeting: lines are double-buffered. */
#include "comm/planners.h"

void oari_plan_line_barrier(const oari_ask *ask, oari_plan *plan)
{
    oari_plan_meet(plan, 0, 0);
}

void oari_plan_line_broadcast(const oari_ask *ask, oari_plan *plan)
{
    oari_plan_meet(plan, 0, ask->rank == ask->root ? ask->count : 0);
    if (ask->rank != ask->root)
        oari_plan_copy(plan, OARI_OUT, 0, OARI_LINE, ask->root, 0, ask->count);
}

void oari_plan_line_all_reduce(const oari_ask *ask, oari_plan *plan)
{
    oari_plan_meet(plan, 0, ask->count);
    oari_plan_reduce(plan, OARI_OUT, 0, OARI_LINE, 0, 0, ask->count);
}
