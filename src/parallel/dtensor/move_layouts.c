/* SPDX-License-Identifier: Apache-2.0 */
/* move_layouts: the layouts that a search for a plan looks at. */
#include "parallel/dtensor/move_search.h"

#include <string.h>

/* ---- what may stand on the way ------------------------------------------- */

static void offer_cut(oari_move_search *s, int mesh_dim, oari_cut cut)
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

void oari_offer_cuts(oari_move_search *s, const oari_cuts *from)
{
    oar_shape shape = s->mover->shape;
    int flat = oari_cuts_has(from, s->dims, OAR_FLAT) ||
               oari_cuts_has(s->to, s->dims, OAR_FLAT);
    int few = shape.ndim <= (s->dims <= 2 ? 4 : 3);
    unsigned ends = 1;

    for (int m = 0; m < s->dims; m++) {
        if (from->on[m].kind == OAR_SHARD)
            ends |= 1u << from->on[m].dim;
        if (s->to->on[m].kind == OAR_SHARD)
            ends |= 1u << s->to->on[m].dim;
    }
    for (int m = 0; m < s->dims; m++) {
        unsigned wanted =
            few ? ~0u : ends | 1u << best_dim(shape, s->mover->grid->size[m]);

        offer_cut(s, m, (oari_cut){ .kind = OAR_REPLICATE });
        offer_cut(s, m, from->on[m]);
        offer_cut(s, m, s->to->on[m]);
        if (flat)
            offer_cut(s, m, (oari_cut){ .kind = OAR_FLAT });
        for (int d = 0; d < shape.ndim; d++)
            if (wanted >> d & 1)
                offer_cut(s, m, (oari_cut){ .kind = OAR_SHARD, .dim = d });
        for (int i = 0; i < s->cuts[m]; i++)
            s->one_piece[m][i] =
                oari_move_in_one_piece(s->mover, &s->cut[m][i]);
    }
}

/* ---- layouts ------------------------------------------------------------- */

oari_cuts oari_layout_of_code(const oari_move_search *s,
                              const oari_layout_code *c)
{
    oari_cuts layout;

    memset(&layout, 0, sizeof layout);
    for (int m = 0; m < s->dims; m++) {
        layout.on[m] = *oari_cut_on(s, c, m);
        layout.order[m] = (signed char)c->is.order[m];
    }
    return layout;
}

oari_layout_code oari_code_of_layout(const oari_move_search *s,
                                     const oari_cuts *layout)
{
    oari_layout_code c = { .key = 0 };

    oari_code_set_order(&c);
    for (int m = 0; m < s->dims; m++) {
        int i = 0;

        while (!oari_cut_same(&s->cut[m][i], &layout->on[m]))
            i++;
        c.is.cut[m] = (unsigned char)i;
        c.is.order[m] = (unsigned char)layout->order[m];
    }
    return c;
}

/* Puts the order into its one form, where `last` was put last. */
static void sort_cuts(const oari_move_search *s, oari_layout_code *c, int last)
{
    unsigned seen = 0, twice = 0;
    oari_cuts layout;

    for (int m = 0; m < s->dims; m++) {
        const oari_cut *cut = oari_cut_on(s, c, m);
        unsigned bit = cut->kind == OAR_SHARD ? 1u << cut->dim : 0;

        twice |= cut->kind == OAR_FLAT || (seen & bit);
        seen |= bit;
    }
    if (!twice || s->dims == 1)
        oari_code_set_order(c);
    if (twice && s->dims == 2) {
        if (oari_cut_on(s, c, 1 - last)->kind == OAR_FLAT &&
            oari_cut_on(s, c, last)->kind != OAR_FLAT)
            last = 1 - last;
        c->is.order[0] = (unsigned char)(1 - last);
        c->is.order[1] = (unsigned char)last;
    }
    if (!twice || s->dims <= 2)
        return;
    layout = oari_layout_of_code(s, c);
    oari_cuts_put(&layout, s->dims, last, oari_cut_on(s, c, last));
    for (int m = 0; m < s->dims && m < OAR_MESH_DIMS; m++)
        c->is.order[m] = (unsigned char)layout.order[m];
}

int oari_put_cut(const oari_move_search *s, oari_layout_code *c, int mesh_dim,
                 int number)
{
    const oari_cut *cut = &s->cut[mesh_dim][number];

    c->is.cut[mesh_dim] = 0; /* replicated */
    for (int m = 0; m < s->dims; m++) {
        const oari_cut *other = oari_cut_on(s, c, m);

        if ((other->kind == OAR_FLAT && cut->kind == OAR_SHARD) ||
            (other->kind == OAR_PARTIAL && cut->kind == OAR_PARTIAL &&
             other->op != cut->op))
            return 0;
    }
    if (cut->sizes != NULL) {
        oari_cuts layout = oari_layout_of_code(s, c);

        if (!oari_cuts_takes(s->mover->grid, s->mover->shape, &layout, cut))
            return 0;
    }
    c->is.cut[mesh_dim] = (unsigned char)number;
    sort_cuts(s, c, mesh_dim);
    return 1;
}

int oari_code_is_innermost(const oari_move_search *s, const oari_layout_code *c,
                           int mesh_dim)
{
    const oari_cut *cut = oari_cut_on(s, c, mesh_dim);

    for (int i = s->dims - 1; c->is.order[i] != mesh_dim; i--) {
        const oari_cut *later = oari_cut_on(s, c, c->is.order[i]);

        if (later->kind == OAR_FLAT ||
            (later->kind == OAR_SHARD && cut->kind == OAR_SHARD &&
             later->dim == cut->dim))
            return 0;
    }
    return 1;
}

/* ---- nodes --------------------------------------------------------------- */

/* Numbers the cuts of a layout: what cuts the same in the same order gets the
 * same numbers. Flat cuts cut what all shards leave. */
static void number_cuts(const oari_move_search *s, oari_move_node *n)
{
    const uint64_t mix = 0x9e3779b97f4a7c15u;
    uint64_t all = 1, flat = 0;

    for (int i = 0; i < s->dims; i++) {
        int m = n->layout.is.order[i];
        const oari_cut *cut = oari_cut_on(s, &n->layout, m);
        uint64_t own =
            ((unsigned)m * OARI_SEARCH_CUTS + n->layout.is.cut[m] + 1) * mix;

        n->chain[m] = 0;
        if (cut->kind == OAR_SHARD) {
            for (int k = 0; k < i; k++) {
                int earlier = n->layout.is.order[k];
                const oari_cut *e = oari_cut_on(s, &n->layout, earlier);

                if (e->kind == OAR_SHARD && e->dim == cut->dim)
                    own += n->chain[earlier] * 3;
            }
            n->chain[m] = own | 1;
            all += n->chain[m] * mix;
        } else if (cut->kind == OAR_FLAT) {
            flat = flat * 3 + own + all;
            n->chain[m] = flat | 1;
        } else if (cut->kind == OAR_PARTIAL) {
            n->partial |= 1u << m;
        }
    }
}

/* Returns what the way to the target costs at least: a last step, and one along
 * each mesh dim that is partial at one end only. */
static double rest_of(const oari_move_search *s, const oari_move_node *n,
                      const oari_cuts *cuts)
{
    double us = 0;
    int steps = 0;

    if (oari_cuts_same(cuts, s->to, s->dims))
        return 0;
    for (int m = 0; m < s->dims; m++) {
        int is = n->partial >> m & 1, shall = s->to->on[m].kind == OAR_PARTIAL;

        steps += is != shall;
        if (is && !shall)
            us += s->gather[m].us;
    }
    return s->last_us + us + (steps > 1 ? steps - 1 : 0) * s->step_us;
}

static void make_node(const oari_move_search *s, oari_move_node *n,
                      oari_layout_code layout)
{
    oari_cuts cuts = oari_layout_of_code(s, &layout);

    memset(n, 0, sizeof *n);
    n->layout = layout;
    n->us = -1;
    n->before = -1;
    n->bytes = oari_move_bytes(s->mover, &cuts);
    number_cuts(s, n);
    n->rest_us = rest_of(s, n, &cuts);
}

int oari_find_node(oari_move_search *s, oari_layout_code layout)
{
    uint64_t at = (layout.key * 0x9e3779b97f4a7c15u) >> 54;

    for (;; at = (at + 1) % OARI_SEARCH_HASH) {
        int i = s->slot[at] - 1;

        if (i >= 0 && s->node[i].layout.key == layout.key)
            return i;
        if (i >= 0)
            continue;
        if (s->nodes == OARI_SEARCH_NODES)
            return -1;
        s->slot[at] = (short)(s->nodes + 1);
        make_node(s, &s->node[s->nodes], layout);
        s->node[s->nodes].next = s->first[s->node[s->nodes].partial];
        s->first[s->node[s->nodes].partial] = s->nodes;
        return s->nodes++;
    }
}

int oari_list_layouts(oari_move_search *s, oari_layout_code c, unsigned left)
{
    if (left == 0)
        return oari_find_node(s, c) >= 0 && s->nodes <= OARI_SEARCH_LISTED;
    for (int m = 0; m < s->dims; m++)
        for (int i = 0; (left >> m & 1) && i < s->cuts[m]; i++) {
            oari_layout_code with = c;

            /* What does not split has no place in the order. */
            if (!oari_cut_splits(&s->cut[m][i]) && (left & ((1u << m) - 1)))
                continue;
            if (oari_put_cut(s, &with, m, i) &&
                !oari_list_layouts(s, with, left & ~(1u << m)))
                return 0;
        }
    return 1;
}
