/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/dtensor/move_search.h: the layouts that a search for a plan looks
 * at, in a form that is quick to make and to compare. */
#ifndef OARI_PARALLEL_DTENSOR_MOVE_SEARCH_H
#define OARI_PARALLEL_DTENSOR_MOVE_SEARCH_H

#include "parallel/dtensor/move_plan.h"

enum {
    OARI_SEARCH_CUTS = 13, /* of a mesh dim: R, from, to, flat, and shards */
    OARI_SEARCH_NODES = 500,
    OARI_SEARCH_LISTED = 256, /* layouts, of which each is tried after each */
    OARI_SEARCH_LOOKS = 160,  /* nodes whose edges are followed, else */
    OARI_SEARCH_HASH = 1024,
    OARI_SEARCH_MASKS = 1 << OAR_MESH_DIMS
};

/* What each mesh dim does, by its number in the list, and the order. */
typedef union oari_layout_code {
    struct {
        unsigned char cut[OAR_MESH_DIMS], order[OAR_MESH_DIMS];
    } is;
    uint64_t key;
} oari_layout_code;

static inline void oari_code_set_order(oari_layout_code *c)
{
    for (int m = 0; m < OAR_MESH_DIMS; m++)
        c->is.order[m] = (unsigned char)m;
}

typedef struct oari_move_node {
    oari_layout_code layout;
    double us, bytes; /* us below 0: not reached; bytes of the largest part */
    double rest_us;   /* from here to the target, at least */
    /* For each mesh dim that splits, a number that stands for its cut and all
     * that it cuts further: where it is the same, the parts are. 0: none. */
    uint64_t chain[OAR_MESH_DIMS];
    unsigned partial; /* mesh dims, as bits */
    int before;       /* the node it is reached from; -1: the first */
    int next;         /* with the same partial ones; -1: none */
    int is_open, done, depth, exchanged;
    int mesh_dim; /* of the step that leads to it, unless exchanged */
} oari_move_node;

/* What a step costs: us, and us for each byte. */
typedef struct oari_move_price {
    double us, byte;
} oari_move_price;

typedef struct oari_move_search {
    const oari_mover *mover;
    const oari_cuts *to;
    int dims, target, listed; /* listed: the nodes are all layouts */
    int cuts[OAR_MESH_DIMS];
    oari_cut cut[OAR_MESH_DIMS][OARI_SEARCH_CUTS];
    int one_piece[OAR_MESH_DIMS][OARI_SEARCH_CUTS];
    double step_us, copy; /* at least; for each byte that is copied */
    double last_us;       /* of the step to the target, at least */
    oari_move_price gather[OAR_MESH_DIMS], exchange[OARI_SEARCH_MASKS];
    int nodes, first[OARI_SEARCH_MASKS]; /* by the partial mesh dims, or -1 */
    int open, opened[OARI_SEARCH_NODES]; /* reached, edges not followed */
    oari_move_node node[OARI_SEARCH_NODES];
    short slot[OARI_SEARCH_HASH]; /* a node's number + 1 */
} oari_move_search;

static inline const oari_cut *
oari_cut_on(const oari_move_search *s, const oari_layout_code *c, int mesh_dim)
{
    return &s->cut[mesh_dim][c->is.cut[mesh_dim]];
}

/* Lists what each mesh dim may do: nothing, what it does at either end, and
 * shards, which make what others move smaller. Of many those that either end
 * has, the first, whose parts lie in one piece, and the one with the smallest
 * parts. */
void oari_offer_cuts(oari_move_search *s, const oari_cuts *from);

oari_cuts oari_layout_of_code(const oari_move_search *s,
                              const oari_layout_code *c);
oari_layout_code oari_code_of_layout(const oari_move_search *s,
                                     const oari_cuts *layout);

/* Puts a cut on a mesh dim, after all others. Returns 0 if it cannot stand
 * there together with them. */
int oari_put_cut(const oari_move_search *s, oari_layout_code *c, int mesh_dim,
                 int number);

/* Returns whether no other mesh dim cuts what this one has cut. */
int oari_code_is_innermost(const oari_move_search *s, const oari_layout_code *c,
                           int mesh_dim);

/* Returns the node of a layout, a new one if need be; -1 if there is no room.
 */
int oari_find_node(oari_move_search *s, oari_layout_code layout);

/* Lists the layouts with every cut on this mesh dim and those after it, in
 * every order in which they can be put. Returns 0 if they are too many. */
int oari_list_layouts(oari_move_search *s, oari_layout_code c, unsigned left);

#endif
