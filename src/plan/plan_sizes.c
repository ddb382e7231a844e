/* SPDX-License-Identifier: Apache-2.0 */
/* plan_sizes: collectives in which a rank does not know all that it needs of
 * the others: parts that only root knows, rows of an all_to_all, objects. Sizes
 * go first; then all ranks settle on the same second plan. It is one
 * collective: nothing of another comes between.
 *
 * Over memory it is one meeting, the one that shows the buffers. Every line
 * tells the counts of both; a rank whose row has parts of its own also shows
 * where they begin. Where that table does not fit into a line it goes through
 * the stage, with a meeting before it, which keeps it from a slow reader of the
 * operation before, and one after it.
 */
#include "plan/planners.h"

/* Beginnings of all parts, the end, and the longest. */
size_t oari_table_words(const oari_ask *ask)
{
    int table = ask->kind == OAR_COLL_ALL_TO_ALL ||
                (ask->kind == OAR_COLL_SCATTER && ask->object);

    return table ? (size_t)ask->ranks + 2 : 0;
}

void oari_plan_sizes(const oari_ask *ask, oari_plan *plan)
{
    size_t words = oari_table_words(ask);
    int root = ask->rank == ask->root;

    plan->shows = OARI_SHOWS_IN;
    if (ask->kind == OAR_COLL_GATHER && !ask->object && root)
        plan->shows |= OARI_SHOWS_OUT;
    if (words == 0)
        oari_plan_meet(plan, 0, 0);
    else if (words <= ask->line_bytes / sizeof(uint64_t))
        oari_plan_meet_table(plan);
    else {
        oari_plan_meet(plan, 0, 0);
        oari_plan_meet_table(plan);
        oari_plan_meet(plan, 0, 0);
    }
    oari_plan_settle(plan);
}

/* Only objects need it: with messages a rank sends what it has, and the
 * receiver sees whether that is what it expects. */
static void size_from_root(const oari_ask *ask, oari_plan *plan)
{
    for (int r = 0; r < ask->ranks && ask->rank == ask->root; r++)
        if (r != ask->root)
            oari_plan_send(plan, r, OARI_TABLE, (size_t)r, 1);
    if (ask->rank != ask->root)
        oari_plan_recv(plan, ask->root, OARI_TABLE, (size_t)ask->rank, 1);
    oari_plan_wait(plan);
}

static void size_to_root(const oari_ask *ask, oari_plan *plan)
{
    for (int r = 0; r < ask->ranks && ask->rank == ask->root; r++)
        if (r != ask->root)
            oari_plan_recv(plan, r, OARI_TABLE, (size_t)r, 1);
    if (ask->rank != ask->root)
        oari_plan_send(plan, ask->root, OARI_TABLE, (size_t)ask->rank, 1);
    oari_plan_wait(plan);
}

void oari_plan_size_messages(const oari_ask *ask, oari_plan *plan)
{
    oari_circle circle = oari_circle_from(ask, ask->root);

    switch (ask->kind) {
    case OAR_COLL_GATHER: size_to_root(ask, plan); break;
    case OAR_COLL_ALL_GATHER: oari_bruck_words(ask, plan, OARI_TABLE); break;
    case OAR_COLL_BROADCAST:
        oari_tree_broadcast(&circle, plan,
                            (oari_spot){ OARI_TABLE, (size_t)ask->root }, 1);
        break;
    default: size_from_root(ask, plan); break;
    }
    oari_plan_settle(plan);
}
