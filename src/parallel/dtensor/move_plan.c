/* SPDX-License-Identifier: Apache-2.0 */
/* move_plan: the cheapest way from a layout to another.
 *
 * Layouts are the nodes of a graph, steps its edges: along one mesh dim to any
 * cut that can help, or at once to the target. Dijkstra's search finds the
 * cheapest way; what costs as much as a way that is known already is left out.
 * A node has one number for what each mesh dim does, and the order of the cuts.
 */
#include "parallel/dtensor/move_plan.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

enum {
    MOST_CUTS = 13, /* of a mesh dim: R, from, to, nine shards, spare */
    MOST_NODES = 500,
    MOST_LOOKS = 160, /* nodes whose edges are followed */
    HASH = 1024,
    FEW_DIMS = 3 /* up to so many dims of a tensor, any may be cut on the way */
};

typedef struct node {
    uint64_t key;
    double us;
    int before; /* the node it is reached from; -1: the first */
    int done, depth;
    oari_move_step step; /* that leads to it */
} node;

typedef struct search {
    const oari_mover *mover;
    const oari_cuts *to;
    int cuts[OAR_MESH_DIMS];
    oari_cut cut[OAR_MESH_DIMS][MOST_CUTS];
    int target; /* its node, or -1 */
    int nodes;
    node node[MOST_NODES];
    short slot[HASH]; /* a node's number + 1 */
} search;

/* ---- what may stand on the way ------------------------------------------- */

static void offer_cut(search *s, int mesh_dim, oari_cut cut)
{
    for (int i = 0; i < s->cuts[mesh_dim]; i++)
        if (oari_cut_same(&s->cut[mesh_dim][i], &cut))
            return;
    s->cut[mesh_dim][s->cuts[mesh_dim]++] = cut;
}

/* Returns the tensor dim that a mesh dim cuts into the smallest parts. */
static int best_dim(oar_shape shape, int parts)
{
    double least = 2;
    int best = 0;

    for (int d = 0; d < shape.ndim; d++) {
        int64_t length = shape.dim[d] > 0 ? shape.dim[d] : 1;
        int64_t part = (length + parts - 1) / parts;
        double share = (double)part / (double)length;

        if (share < least) {
            least = share;
            best = d;
        }
    }
    return best;
}

/* Lists what each mesh dim may do: nothing, what it does at either end, and
 * shards, which make what others move smaller. Of many dims those that either
 * end cuts, the first, whose parts lie in one piece, and the one with the
 * smallest parts. */
static void offer_cuts(search *s, const oari_cuts *from)
{
    oar_shape shape = s->mover->shape;
    int dims = s->mover->grid->dims;
    int flat = oari_cuts_has(from, dims, OAR_FLAT) ||
               oari_cuts_has(s->to, dims, OAR_FLAT);

    for (int m = 0; m < dims; m++) {
        offer_cut(s, m, (oari_cut){ .kind = OAR_REPLICATE });
        offer_cut(s, m, from->on[m]);
        offer_cut(s, m, s->to->on[m]);
        if (flat)
            offer_cut(s, m, (oari_cut){ .kind = OAR_FLAT });
        for (int d = 0; d < shape.ndim; d++) {
            int wanted = shape.ndim <= FEW_DIMS || d == 0 ||
                         d == best_dim(shape, s->mover->grid->size[m]);
            for (int k = 0; k < dims; k++)
                wanted |=
                    (from->on[k].kind == OAR_SHARD && from->on[k].dim == d) ||
                    (s->to->on[k].kind == OAR_SHARD && s->to->on[k].dim == d);
            if (wanted)
                offer_cut(s, m, (oari_cut){ .kind = OAR_SHARD, .dim = d });
        }
    }
}

/* ---- nodes --------------------------------------------------------------- */

static uint64_t key_of(const search *s, const oari_cuts *layout)
{
    uint64_t key = 0;

    for (int m = 0; m < s->mover->grid->dims; m++) {
        int i = 0;
        while (i < s->cuts[m] && !oari_cut_same(&s->cut[m][i], &layout->on[m]))
            i++;
        key = key << 8 | (unsigned)i << 4 | (unsigned)layout->order[m];
    }
    return key;
}

/* Returns the node of a key, a new one if need be; -1 if there is no room. */
static int find_node(search *s, uint64_t key)
{
    uint64_t at = (key * 0x9e3779b97f4a7c15u) >> 54;

    for (;; at = (at + 1) % HASH) {
        int i = s->slot[at] - 1;

        if (i >= 0 && s->node[i].key == key)
            return i;
        if (i >= 0)
            continue;
        if (s->nodes == MOST_NODES)
            return -1;
        s->slot[at] = (short)(s->nodes + 1);
        s->node[s->nodes].key = key;
        s->node[s->nodes].us = -1;
        s->node[s->nodes].done = 0;
        return s->nodes++;
    }
}

/* Reaches a node by a step, if that is cheaper than what is known. */
static void reach(search *s, int before, const oari_move_step *step)
{
    double us = s->node[before].us + step->us;
    int reached;
    node *n;

    if (s->target >= 0 && us >= s->node[s->target].us)
        return;
    if (s->node[before].depth == OAR_MOVES)
        return;
    reached = find_node(s, key_of(s, &step->after));
    if (reached < 0)
        return;
    n = &s->node[reached];
    if (n->us >= 0 && n->us <= us)
        return;
    n->us = us;
    n->before = before;
    n->depth = s->node[before].depth + 1;
    n->step = *step;
    if (oari_cuts_same(&step->after, s->to, s->mover->grid->dims))
        s->target = reached;
}

/* Gives the target as a layout that is partial now can be exchanged to: what is
 * partial stays so, and what shall be partial is replicated. Returns 0 if there
 * is none: a cut that is left out is not the innermost one. */
static int exchange_target(const search *s, const oari_cuts *now, oari_cuts *to)
{
    int dims = s->mover->grid->dims;

    *to = *s->to;
    for (int i = dims - 1; i >= 0; i--) { /* innermost first */
        int m = s->to->order[i];

        if (now->on[m].kind != OAR_PARTIAL && to->on[m].kind != OAR_PARTIAL)
            continue;
        if (oari_cut_splits(&to->on[m]) && !oari_cuts_is_innermost(to, dims, m))
            return 0;
        to->on[m] = now->on[m].kind == OAR_PARTIAL
                        ? now->on[m]
                        : (oari_cut){ .kind = OAR_REPLICATE };
    }
    oari_cuts_sort(to, dims);
    return 1;
}

static void follow_edges(search *s, int at)
{
    oari_cuts now = s->node[at].step.after, to;
    oari_move_step step;

    if (exchange_target(s, &now, &to) &&
        !oari_cuts_same(&now, &to, s->mover->grid->dims) &&
        oari_move_exchange(s->mover, &now, &to, &step))
        reach(s, at, &step);
    for (int m = 0; m < s->mover->grid->dims; m++)
        for (int i = 0; i < s->cuts[m]; i++) {
            const oari_cut *cut = &s->cut[m][i];

            if (cut->kind == OAR_PARTIAL && !oari_cut_same(cut, &s->to->on[m]))
                continue;
            if (oari_move_along(s->mover, &now, m, cut, &step))
                reach(s, at, &step);
        }
}

/* Returns the cheapest node whose edges were not followed; -1 if it costs as
 * much as the target. */
static int next_node(const search *s)
{
    int next = -1;

    for (int i = 0; i < s->nodes; i++)
        if (!s->node[i].done && (next < 0 || s->node[i].us < s->node[next].us))
            next = i;
    if (next >= 0 && s->target >= 0 &&
        s->node[next].us >= s->node[s->target].us)
        return -1;
    return next;
}

/* ---- planning ------------------------------------------------------------ */

static int write_steps(const search *s, oari_move_step *step)
{
    int steps = s->node[s->target].depth;

    for (int at = s->target, i = steps - 1; i >= 0; i--) {
        step[i] = s->node[at].step;
        at = s->node[at].before;
    }
    return steps;
}

/* Takes a step that must be possible, if it is. Returns where it leads. */
static int take(search *s, int at, int possible, const oari_move_step *step)
{
    if (!possible)
        return at;
    reach(s, at, step);
    return find_node(s, key_of(s, &step->after));
}

/* Reduces what is partial, exchanges, and makes partial what shall be: a way
 * that there always is. */
static void go_straight(search *s, int at)
{
    const oari_cut replicate = { .kind = OAR_REPLICATE };
    int dims = s->mover->grid->dims, possible;
    oari_cuts now = s->node[at].step.after, to;
    oari_move_step step;

    for (int m = 0; m < dims; m++) {
        if (now.on[m].kind != OAR_PARTIAL ||
            oari_cut_same(&now.on[m], &s->to->on[m]))
            continue;
        possible = oari_move_along(s->mover, &now, m, &replicate, &step);
        at = take(s, at, possible, &step);
        now = s->node[at].step.after;
    }
    if (exchange_target(s, &now, &to) && !oari_cuts_same(&now, &to, dims)) {
        possible = oari_move_exchange(s->mover, &now, &to, &step);
        at = take(s, at, possible, &step);
    }
    for (int m = 0; m < dims; m++) {
        now = s->node[at].step.after;
        if (s->to->on[m].kind != OAR_PARTIAL || now.on[m].kind == OAR_PARTIAL)
            continue;
        possible = oari_move_along(s->mover, &now, m, &s->to->on[m], &step);
        at = take(s, at, possible, &step);
    }
}

static void run_search(search *s, const oari_cuts *from)
{
    int looks = 0, at;

    memset(s->cuts, 0, sizeof s->cuts);
    memset(s->slot, 0, sizeof s->slot);
    s->nodes = 0;
    s->target = -1;
    offer_cuts(s, from);
    at = find_node(s, key_of(s, from));
    s->node[at].us = 0;
    s->node[at].before = -1;
    s->node[at].depth = 0;
    s->node[at].step.after = *from;
    go_straight(s, at);
    for (; (at = next_node(s)) >= 0 && looks < MOST_LOOKS; looks++) {
        s->node[at].done = 1;
        follow_edges(s, at);
    }
}

oar_status oari_plan_move(const oari_mover *mover, const oari_cuts *from,
                          const oari_cuts *to, oari_move_step step[OAR_MOVES],
                          int *steps)
{
    search *s;

    *steps = 0;
    if (oari_cuts_same(from, to, mover->grid->dims))
        return OAR_OK;
    s = oari_alloc_aligned(sizeof(uint64_t), sizeof *s);
    if (s == NULL)
        return OAR_E_NOMEM;
    s->mover = mover;
    s->to = to;
    run_search(s, from);
    *steps = write_steps(s, step);
    oari_free(s);
    return OAR_OK;
}

/* ---- paths that a mesh keeps --------------------------------------------- */

void oari_move_paths_free(oari_move_path *path)
{
    while (path != NULL) {
        oari_move_path *next = path->next;
        oari_free(path);
        path = next;
    }
}

/* Writes "redistribute [5, 3] S(0) R to R R". Returns its length. */
static size_t write_label(const oar_spec *from, const oar_spec *to, char *text,
                          size_t bytes)
{
    const oari_grid *grid = &from->mesh->grid;
    size_t at = oari_spec_text_add(text, bytes, 0, "redistribute %s ",
                                   oari_box_shape_text(from->shape).text);

    at = oari_cuts_text(grid, &from->layout, text, bytes, at);
    at = oari_spec_text_add(text, bytes, at, " to ");
    return oari_cuts_text(grid, &to->layout, text, bytes, at);
}

static oari_move_path *plan_path(const oar_spec *from, const oar_spec *to,
                                 size_t element)
{
    oari_mover mover = { &from->mesh->grid, from->shape, element };
    oari_move_step step[OAR_MOVES];
    size_t bytes, label = write_label(from, to, NULL, 0) + 1;
    oari_move_path *path;
    int steps;

    if (oari_plan_move(&mover, &from->layout, &to->layout, step, &steps) !=
        OAR_OK)
        return NULL;
    bytes = (size_t)steps * sizeof *step;
    path = oari_alloc(1, sizeof *path + bytes + label);
    if (path == NULL)
        return NULL;
    path->from = from;
    path->to = to;
    path->element = element;
    path->key = (from->hash * 3 + to->hash + element) | 1;
    path->steps = steps;
    memcpy(path->step, step, bytes);
    path->label = (char *)path->step + bytes;
    write_label(from, to, path->label, label);
    for (int i = 0; i < steps; i++)
        path->us += step[i].us;
    return path;
}

oari_move_path *oari_move_path_of(const oar_spec *from, const oar_spec *to,
                                  size_t element)
{
    size_t at = (from->hash * 7 + to->hash + element) % OARI_SPEC_ROWS;
    oar_mesh *mesh = from->mesh;
    oari_spec_table *table;
    oari_move_path *path;

    pthread_mutex_lock(&mesh->lock);
    table = oari_spec_table_of(mesh); /* there is one, of these specs */
    path = table->path[at];
    while (path != NULL &&
           (path->from != from || path->to != to || path->element != element))
        path = path->next;
    if (path == NULL) {
        path = plan_path(from, to, element);
        if (path != NULL) {
            path->next = table->path[at];
            table->path[at] = path;
        }
    }
    pthread_mutex_unlock(&mesh->lock);
    return path;
}
