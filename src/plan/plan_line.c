/* SPDX-License-Identifier: Apache-2.0 */
/* plan_line: small operations. Each rank shows its data in its exchange line;
 * one meeting later everybody reads what it needs of everybody's. n lines read,
 * one written, no second meeting: lines are double-buffered. */
#include "plan/planners.h"

static void broadcast(const oari_ask *ask, oari_plan *plan)
{
    oari_plan_meet(plan, 0, ask->rank == ask->root ? ask->count : 0);
    if (ask->rank != ask->root)
        oari_plan_copy(plan, OARI_OUT, 0, OARI_LINE, ask->root, 0, ask->count);
}

static void all_reduce(const oari_ask *ask, oari_plan *plan)
{
    oari_plan_meet(plan, 0, ask->count);
    oari_plan_reduce(plan, OARI_OUT, 0, OARI_LINE, 0, ask->count);
}

static void reduce(const oari_ask *ask, oari_plan *plan)
{
    oari_plan_meet(plan, 0, ask->count);
    if (ask->rank == ask->root)
        oari_plan_reduce(plan, OARI_OUT, 0, OARI_LINE, 0, ask->count);
}

static void gather(const oari_ask *ask, oari_plan *plan)
{
    oari_cut row = oari_cut_parts(ask);

    oari_plan_meet(plan, 0, oari_cut_count(&row, ask->rank));
    for (int r = 0; r < ask->ranks; r++)
        if (ask->kind == OAR_COLL_ALL_GATHER || ask->rank == ask->root)
            oari_plan_copy(plan, OARI_OUT, oari_cut_first(&row, r),
                           r == ask->rank ? OARI_IN : OARI_LINE, r, 0,
                           oari_cut_count(&row, r));
}

static void scatter(const oari_ask *ask, oari_plan *plan)
{
    oari_cut row = oari_cut_parts(ask);
    int root = ask->rank == ask->root;

    oari_plan_meet(plan, 0, root ? oari_cut_first(&row, ask->ranks) : 0);
    oari_plan_copy(plan, OARI_OUT, 0, root ? OARI_IN : OARI_LINE, ask->root,
                   oari_cut_first(&row, ask->rank),
                   oari_cut_count(&row, ask->rank));
}

static void reduce_scatter(const oari_ask *ask, oari_plan *plan)
{
    oari_cut row = oari_cut_parts(ask);

    oari_plan_meet(plan, 0, oari_cut_first(&row, ask->ranks));
    oari_plan_reduce(plan, OARI_OUT, 0, OARI_LINE,
                     oari_cut_first(&row, ask->rank),
                     oari_cut_count(&row, ask->rank));
}

/* Equal parts only: nobody knows the rows of the others before a meeting. */
static void all_to_all(const oari_ask *ask, oari_plan *plan)
{
    size_t count = ask->count, mine = count * (size_t)ask->rank;

    oari_plan_meet(plan, 0, count * (size_t)ask->ranks);
    for (int r = 0; r < ask->ranks; r++)
        oari_plan_copy(plan, OARI_OUT, count * (size_t)r,
                       r == ask->rank ? OARI_IN : OARI_LINE, r, mine, count);
}

void oari_plan_line(const oari_ask *ask, oari_plan *plan)
{
    switch (ask->kind) {
    case OAR_COLL_BARRIER: oari_plan_meet(plan, 0, 0); break;
    case OAR_COLL_BROADCAST: broadcast(ask, plan); break;
    case OAR_COLL_ALL_REDUCE: all_reduce(ask, plan); break;
    case OAR_COLL_REDUCE: reduce(ask, plan); break;
    case OAR_COLL_GATHER:
    case OAR_COLL_ALL_GATHER: gather(ask, plan); break;
    case OAR_COLL_SCATTER: scatter(ask, plan); break;
    case OAR_COLL_REDUCE_SCATTER: reduce_scatter(ask, plan); break;
    default: all_to_all(ask, plan); break;
    }
}

size_t oari_line_count(const oari_ask *ask)
{
    oari_cut row = oari_cut_parts(ask);

    switch (ask->kind) {
    case OAR_COLL_GATHER:
    case OAR_COLL_ALL_GATHER: return oari_cut_most(&row);
    case OAR_COLL_SCATTER:
    case OAR_COLL_REDUCE_SCATTER:
    case OAR_COLL_ALL_TO_ALL: return oari_cut_first(&row, ask->ranks);
    default: return ask->count;
    }
}
