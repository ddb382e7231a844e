/* SPDX-License-Identifier: Apache-2.0 */
/* move_plan: the cheapest way from a layout to another.
 *
 * Layouts are the nodes of a graph, steps its edges: along one mesh dim to any
 * cut that can help, or by an exchange to any other layout. Dijkstra's search
 * finds the cheapest way. Where there are too many layouts to list, an exchange
 * leads to the target only, or to the target cut further, which is gathered
 * afterwards.
 *
 * In the search a layout is a number for what each mesh dim does, and the order
 * of the cuts, and a step costs what tables say. The steps of the way that is
 * found come from move_step.c. */
#include <string.h>

#include "base/alloc.h"
#include "parallel/dtensor/move_search.h"

/* ---- steps --------------------------------------------------------------- */

/* Reaches a node by a step, if that is cheaper than what is known. */
static void reach(oari_move_search *s, int before, int reached, double us,
                  int mesh_dim)
{
    oari_move_node *n = &s->node[reached];

    us += s->node[before].us;
    if ((n->us >= 0 && n->us <= us) || s->node[before].depth == OAR_MOVES)
        return;
    if (s->node[s->target].us >= 0 && us + n->rest_us >= s->node[s->target].us)
        return;
    if (!n->is_open)
        s->opened[s->open++] = reached;
    n->is_open = 1;
    n->us = us;
    n->before = before;
    n->depth = s->node[before].depth + 1;
    n->exchanged = mesh_dim < 0;
    n->mesh_dim = mesh_dim;
}

static void exchange(oari_move_search *s, int at, int to)
{
    const oari_move_node *a = &s->node[at], *b = &s->node[to];
    unsigned moved = 0;

    if (a->partial != b->partial || b->done || at == to)
        return;
    for (int m = 0; m < s->dims; m++)
        moved |= (unsigned)(a->chain[m] != 0 && a->chain[m] != b->chain[m])
                 << m;
    reach(s, at, to, s->exchange[moved].us + b->bytes * s->exchange[moved].byte,
          -1);
}

/* Returns what the step along a mesh dim to another cut costs, and below 0 if
 * there is none. bytes: before and after. */
static double price_along(const oari_move_search *s, int m, int from, int to,
                          double before, double after)
{
    const oari_cut *a = &s->cut[m][from], *b = &s->cut[m][to];
    double us = s->step_us + s->gather[m].us;

    if (from == to)
        return -1;
    if (b->kind == OAR_PARTIAL && a->kind != OAR_REPLICATE &&
        (!oari_cut_splits(a) || b->op != OAR_REDUCE_OP_SUM))
        return -1;
    if (s->mover->grid->size[m] == 1 || b->kind == OAR_PARTIAL ||
        a->kind == OAR_REPLICATE)
        return s->step_us + after * s->copy;
    if (a->kind == OAR_PARTIAL && b->kind == OAR_REPLICATE)
        return us + s->gather[m].us + after * 2 * s->gather[m].byte;
    if (a->kind == OAR_PARTIAL)
        return us + before * (s->gather[m].byte +
                              (s->one_piece[m][to] ? 0 : s->copy));
    if (b->kind == OAR_REPLICATE)
        return us + after * (s->gather[m].byte +
                             (s->one_piece[m][from] ? 0 : s->copy));
    return s->exchange[1u << m].us + after * s->exchange[1u << m].byte;
}

static void follow_along(oari_move_search *s, int at, int m)
{
    const oari_layout_code now = s->node[at].layout;
    double limit = s->node[s->target].us, least = s->node[at].us + s->step_us;

    if (oari_cut_on(s, &now, m)->kind != OAR_REPLICATE &&
        s->to->on[m].kind != OAR_PARTIAL)
        least += s->gather[m].us;
    if (limit >= 0 && least >= limit)
        return;
    if (oari_cut_splits(oari_cut_on(s, &now, m)) &&
        !oari_code_is_innermost(s, &now, m))
        return;
    for (int i = 0; i < s->cuts[m]; i++) {
        oari_layout_code after = now;
        double us;
        int to;

        if (i == now.is.cut[m] ||
            (limit >= 0 && i != s->node[s->target].layout.is.cut[m] &&
             least + s->last_us >= limit) ||
            (s->cut[m][i].kind == OAR_PARTIAL &&
             !oari_cut_same(&s->cut[m][i], &s->to->on[m])) ||
            !oari_put_cut(s, &after, m, i))
            continue;
        to = oari_find_node(s, after);
        if (to < 0)
            continue;
        us = price_along(s, m, now.is.cut[m], i, s->node[at].bytes,
                         s->node[to].bytes);
        if (us >= 0)
            reach(s, at, to, us, m);
    }
}

/* Gives the target as a layout can be exchanged to: what is partial stays so,
 * and what shall be partial is replicated. keep: what the target does not cut
 * stays cut. Returns 0 if there is none: a cut that is left out is not the
 * innermost one. */
static int exchange_target(const oari_move_search *s,
                           const oari_layout_code *now, int keep,
                           oari_layout_code *to)
{
    oari_layout_code end = s->node[s->target].layout;

    to->key = 0;
    oari_code_set_order(to);
    for (int i = 0; i < s->dims; i++) {
        int m = end.is.order[i];
        const oari_cut *cut = oari_cut_on(s, &end, m);

        if (oari_cut_on(s, now, m)->kind == OAR_PARTIAL) {
            if (oari_cut_splits(cut) && !oari_code_is_innermost(s, &end, m))
                return 0;
            to->is.cut[m] = now->is.cut[m];
        } else if (oari_cut_splits(cut) &&
                   !oari_put_cut(s, to, m, end.is.cut[m])) {
            return 0;
        }
    }
    for (int i = 0; i < s->dims && keep; i++) {
        int m = now->is.order[i];

        if (oari_cut_splits(oari_cut_on(s, now, m)) &&
            !oari_cut_splits(oari_cut_on(s, &end, m)) &&
            !oari_put_cut(s, to, m, now->is.cut[m]))
            return 0;
    }
    return 1;
}

static void follow_edges(oari_move_search *s, int at)
{
    oari_layout_code to;

    for (int m = 0; m < s->dims; m++)
        follow_along(s, at, m);
    for (int i = s->listed ? s->first[s->node[at].partial] : -1; i >= 0;
         i = s->node[i].next)
        exchange(s, at, i);
    for (int keep = 0; keep < 2 && !s->listed; keep++)
        if (exchange_target(s, &s->node[at].layout, keep, &to)) {
            int reached = oari_find_node(s, to);

            if (reached >= 0)
                exchange(s, at, reached);
        }
}

/* Takes the cheapest node whose edges were not followed; -1 if no way through
 * one of them is cheaper than the one that is known. */
static int next_node(oari_move_search *s)
{
    double most = s->node[s->target].us;
    int next = -1, kept = 0;

    for (int i = 0; i < s->open; i++) {
        oari_move_node *n = &s->node[s->opened[i]];

        n->is_open = s->node[s->target].us < 0 ||
                     n->us + n->rest_us < s->node[s->target].us;
        if (!n->is_open)
            continue;
        s->opened[kept++] = s->opened[i];
        if (next < 0 || n->us < most) {
            next = kept - 1;
            most = n->us;
        }
    }
    s->open = kept;
    if (next < 0)
        return -1;
    kept = s->opened[next];
    s->opened[next] = s->opened[--s->open];
    return kept;
}

/* ---- planning ------------------------------------------------------------ */

/* Reduces what is partial, exchanges, and makes partial what shall be: a way
 * that there always is. */
static void go_straight(oari_move_search *s, int at)
{
    oari_layout_code now = s->node[at].layout, to;
    int next;

    for (int stage = 0; stage < 2; stage++) {
        for (int m = 0; m < s->dims; m++) {
            int end = s->node[s->target].layout.is.cut[m];
            int partial = oari_cut_on(s, &now, m)->kind == OAR_PARTIAL;
            int wanted = s->to->on[m].kind == OAR_PARTIAL;

            if (now.is.cut[m] == end || (stage == 0 ? !partial : !wanted))
                continue;
            to = now;
            if (!oari_put_cut(s, &to, m, stage == 0 ? 0 : end) ||
                (next = oari_find_node(s, to)) < 0)
                return;
            reach(s, at, next,
                  price_along(s, m, now.is.cut[m], to.is.cut[m],
                              s->node[at].bytes, s->node[next].bytes),
                  m);
            at = next;
            now = to;
        }
        if (stage == 0 && exchange_target(s, &now, 0, &to) &&
            to.key != now.key && (next = oari_find_node(s, to)) >= 0) {
            exchange(s, at, next);
            at = next;
            now = to;
        }
    }
}

static void set_prices(oari_move_search *s)
{
    const oari_grid *grid = s->mover->grid;
    double least;

    s->step_us = oari_move_least_us;
    s->copy = 1 / oari_move_copied_in_us;
    for (int m = 0; m < s->dims; m++)
        oari_move_price_gather(grid, m, &s->gather[m].us, &s->gather[m].byte);
    least = s->copy;
    for (int m = 0; m < s->dims; m++)
        if (grid->size[m] > 1 && s->gather[m].byte < least)
            least = s->gather[m].byte;
    s->last_us = s->step_us + least * oari_move_bytes(s->mover, s->to);
    for (unsigned mask = 0; mask < 1u << s->dims; mask++)
        oari_move_price_exchange(grid, mask, &s->exchange[mask].us,
                                 &s->exchange[mask].byte);
}

static void run_search(oari_move_search *s, const oari_cuts *from)
{
    oari_layout_code replicated = { .key = 0 };
    int start, looks = 0, all = 1, at;

    memset(s->cuts, 0, sizeof s->cuts);
    memset(s->slot, 0, sizeof s->slot);
    memset(s->first, -1, sizeof s->first);
    s->nodes = s->open = 0;
    oari_offer_cuts(s, from);
    set_prices(s);
    start = oari_find_node(s, oari_code_of_layout(s, from));
    s->target = oari_find_node(s, oari_code_of_layout(s, s->to));
    s->node[start].us = 0;
    s->opened[s->open++] = start;
    go_straight(s, start);
    oari_code_set_order(&replicated);
    for (int m = 0; m < s->dims; m++)
        all *= s->cuts[m];
    s->listed = all <= OARI_SEARCH_LISTED &&
                oari_list_layouts(s, replicated, (1u << s->dims) - 1);
    while ((at = next_node(s)) >= 0 &&
           (s->listed || looks++ < OARI_SEARCH_LOOKS)) {
        s->node[at].done = 1;
        follow_edges(s, at);
    }
}

/* Writes the steps of the way that was found. */
static int write_steps(const oari_move_search *s, oari_move_step *step)
{
    int steps = s->node[s->target].depth;

    for (int at = s->target, i = steps - 1; i >= 0; i--) {
        const oari_move_node *n = &s->node[at], *before = &s->node[n->before];
        oari_cuts from = oari_layout_of_code(s, &before->layout);
        oari_cuts to = oari_layout_of_code(s, &n->layout);

        if (n->exchanged)
            oari_move_exchange(s->mover, &from, &to, &step[i]);
        else
            oari_move_along(s->mover, &from, n->mesh_dim, &to.on[n->mesh_dim],
                            &step[i]);
        at = n->before;
    }
    return steps;
}

oar_status oari_plan_move(const oari_mover *mover, const oari_cuts *from,
                          const oari_cuts *to, oari_move_step step[OAR_MOVES],
                          int *steps)
{
    oari_move_search *s;

    *steps = 0;
    if (oari_cuts_same(from, to, mover->grid->dims))
        return OAR_OK;
    s = oari_alloc_aligned(sizeof(uint64_t), sizeof *s);
    if (s == NULL)
        return OAR_E_NOMEM;
    s->mover = mover;
    s->to = to;
    s->dims = mover->grid->dims;
    run_search(s, from);
    *steps = write_steps(s, step);
    oari_free(s);
    return OAR_OK;
}
