/* SPDX-License-Identifier: Apache-2.0 */
/* plan_direct: large operations over memory that every rank can reach. The
 * first meeting tells all ranks where all buffers are; then everyone works on
 * them in place; the last meeting says that everyone has finished.
 *
 * Where some buffer cannot be reached, the data goes through the lines if it
 * fits, else through the stages.
 *
 * all_reduce, reduce: rank r combines slice r of all inputs and stores it
 * straight into all outputs, or root's: not one copy.
 * reduce_scatter: rank r combines its part of all inputs.
 * gather: every rank stores its part into root's output; if that is private,
 * root fetches the parts. The others fetch what is theirs: one copy.
 */
#include "plan/planners.h"

static void reduce_slice(const oari_ask *ask, oari_plan *plan)
{
    size_t first = oari_slice_first(ask->count, ask->ranks, ask->rank);
    oari_step step = { .kind = OARI_REDUCE,
                       .to = ask->root < 0 ? OARI_ALL_OUT : OARI_OUT,
                       .from = OARI_IN,
                       .peer = -1,
                       .to_peer = ask->root,
                       .to_at = first,
                       .from_at = first,
                       .count = oari_slice_count(ask->count, ask->ranks,
                                                 ask->rank) };

    if (step.count != 0)
        oari_plan_step(plan, step);
}

static void reduce_part(const oari_ask *ask, oari_plan *plan)
{
    oari_cut row = oari_cut_parts(ask);

    oari_plan_reduce(plan, OARI_OUT, 0, OARI_IN,
                     oari_cut_first(&row, ask->rank),
                     oari_cut_count(&row, ask->rank));
}

static void fetch_buffer(const oari_ask *ask, oari_plan *plan)
{
    if (ask->rank != ask->root)
        oari_plan_copy(plan, OARI_OUT, 0, OARI_IN, ask->root, 0, ask->count);
}

/* Beginning with my own, so that not all ask the same rank at once. */
static void fetch_parts(const oari_ask *ask, oari_plan *plan)
{
    oari_cut row = oari_cut_parts(ask);

    for (int i = 0; i < ask->ranks; i++) {
        int r = (ask->rank + i) % ask->ranks;
        oari_plan_copy(plan, OARI_OUT, oari_cut_first(&row, r), OARI_IN, r, 0,
                       oari_cut_count(&row, r));
    }
}

static void fetch_my_part(const oari_ask *ask, oari_plan *plan)
{
    oari_cut row = oari_cut_parts(ask);

    oari_plan_copy(plan, OARI_OUT, 0, OARI_IN, ask->root,
                   oari_cut_first(&row, ask->rank),
                   oari_cut_count(&row, ask->rank));
}

static void store_my_part(const oari_ask *ask, oari_plan *plan)
{
    oari_cut row = oari_cut_parts(ask);

    oari_plan_copy_out(plan, ask->root, oari_cut_first(&row, ask->rank),
                       OARI_IN, 0, oari_cut_count(&row, ask->rank));
}

static void fetch_my_parts(const oari_ask *ask, oari_plan *plan)
{
    oari_cut out = { ask->ranks, ask->count, 0, ask->out_at };

    for (int i = 0; i < ask->ranks; i++) {
        int r = (ask->rank + i) % ask->ranks;
        size_t at = ask->their_at != NULL ? ask->their_at[r]
                                          : (size_t)ask->rank * ask->count;
        oari_plan_copy(plan, OARI_OUT, oari_cut_first(&out, r), OARI_IN, r, at,
                       oari_cut_count(&out, r));
    }
}

static void work_in_place(const oari_ask *ask, oari_plan *plan)
{
    switch (ask->kind) {
    case OAR_COLL_BROADCAST: fetch_buffer(ask, plan); break;
    case OAR_COLL_ALL_REDUCE:
    case OAR_COLL_REDUCE: reduce_slice(ask, plan); break;
    case OAR_COLL_REDUCE_SCATTER: reduce_part(ask, plan); break;
    case OAR_COLL_GATHER: store_my_part(ask, plan); break;
    case OAR_COLL_SCATTER: fetch_my_part(ask, plan); break;
    case OAR_COLL_ALL_GATHER: fetch_parts(ask, plan); break;
    default: fetch_my_parts(ask, plan); break;
    }
    oari_plan_meet(plan, 0, 0);
    oari_plan_end(plan);
}

/* The other way when root's output is private: root fetches. */
static void gather_by_root(const oari_ask *ask, oari_plan *plan)
{
    if (ask->rank == ask->root)
        fetch_parts(ask, plan);
    oari_plan_meet(plan, 0, 0);
    oari_plan_end(plan);
}

static int root_sends(const oari_ask *ask)
{
    return ask->kind == OAR_COLL_BROADCAST || ask->kind == OAR_COLL_SCATTER;
}

static int writes_to_peers(const oari_ask *ask)
{
    return ask->kind == OAR_COLL_ALL_REDUCE || ask->kind == OAR_COLL_REDUCE ||
           ask->kind == OAR_COLL_GATHER;
}

static void work_apart(const oari_ask *ask, oari_plan *plan)
{
    int ragged = ask->ragged && ask->kind == OAR_COLL_ALL_TO_ALL;

    if (!ragged && oari_line_count(ask) <= ask->line_bytes / ask->element)
        oari_plan_line(ask, plan);
    else
        oari_plan_staged_rest(ask, plan);
}

void oari_plan_direct_rest(const oari_ask *ask, oari_plan *plan)
{
    int pull = ask->kind == OAR_COLL_GATHER, in = -1, out = -1;

    if (!pull)
        in = oari_plan_unless_reachable(plan, OARI_IN,
                                        root_sends(ask) ? ask->root : -1);
    if (writes_to_peers(ask))
        out = oari_plan_unless_reachable(plan, OARI_OUT, ask->root);
    work_in_place(ask, plan);
    if (out >= 0)
        oari_plan_land(plan, out);
    if (pull) {
        in = oari_plan_unless_reachable(plan, OARI_IN, -1);
        gather_by_root(ask, plan);
    }
    oari_plan_land(plan, in);
    work_apart(ask, plan);
}

void oari_plan_direct(const oari_ask *ask, oari_plan *plan)
{
    plan->shows = OARI_SHOWS_IN;
    if (writes_to_peers(ask) && (ask->root < 0 || ask->root == ask->rank))
        plan->shows |= OARI_SHOWS_OUT;
    oari_plan_meet(plan, 0, 0);
    oari_plan_direct_rest(ask, plan);
}
