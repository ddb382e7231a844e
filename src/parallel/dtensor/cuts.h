/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/dtensor/cuts.h: how the ranks of a grid hold a tensor, and which
 * elements each of them has.
 *
 * A layout is a list of cuts, in order. Each rank's part is a box: every shard
 * cuts the box that the cuts before it left. Flat cuts come last, and cut the
 * range of that box's elements. Nothing here allocates or sends. */
#ifndef OARI_PARALLEL_DTENSOR_CUTS_H
#define OARI_PARALLEL_DTENSOR_CUTS_H

#include <oarsong/dtensor.h>

#include "parallel/mesh/mesh.h"
#include "parallel/place/box.h"

/* Parts of given sizes. Equal ones of a mesh are the same pointer. */
typedef struct oari_sizes {
    struct oari_sizes *next;
    int parts, equal; /* equal: all have one size */
    int64_t total, largest;
    int64_t *size, *start; /* of each part; start has one more: the total */
} oari_sizes;

/* What one mesh dim does. dim and op are 0 where the kind has none. */
typedef struct oari_cut {
    oar_placement_kind kind;
    int dim;
    oar_reduce_op_kind op;
    const oari_sizes *sizes; /* NULL: nearly equal, the first ones larger */
} oari_cut;

typedef struct oari_cuts {
    oari_cut on[OAR_MESH_DIMS];
    signed char order[OAR_MESH_DIMS]; /* of the mesh dims; see sort */
} oari_cuts;

/* What a rank has: a box of the whole, or a range of its elements. */
typedef struct oari_part {
    oari_box box;
    int flat;
    int64_t first, count; /* count: of elements, flat or not */
} oari_part;

int oari_same_shape(oar_shape a, oar_shape b);
int oari_cut_same(const oari_cut *a, const oari_cut *b);
int oari_cuts_same(const oari_cuts *a, const oari_cuts *b, int dims);

static inline int oari_cut_splits(const oari_cut *cut)
{
    return cut->kind == OAR_SHARD || cut->kind == OAR_FLAT;
}

/* Puts the order into its one form: the smallest that leaves each tensor dim's
 * cuts in their order, and flat ones last. */
void oari_cuts_sort(oari_cuts *layout, int dims);

/* Puts another cut on a mesh dim, after all others. */
void oari_cuts_put(oari_cuts *layout, int dims, int mesh_dim,
                   const oari_cut *cut);

/* Returns whether no other mesh dim cuts what this one has cut. */
int oari_cuts_is_innermost(const oari_cuts *layout, int dims, int mesh_dim);

int oari_cuts_has(const oari_cuts *layout, int dims, oar_placement_kind kind);

/* Returns whether a cut with given sizes fits after all others: those before
 * it leave parts of one length, the sum of its sizes. */
int oari_cuts_takes(const oari_grid *grid, oar_shape shape,
                    const oari_cuts *layout, const oari_cut *cut);

/* Returns the number of elements of the largest part, at least. */
int64_t oari_cuts_largest(const oari_grid *grid, oar_shape shape,
                          const oari_cuts *layout);

void oari_cuts_part(const oari_grid *grid, oar_shape shape,
                    const oari_cuts *layout, int rank, oari_part *part);

/* Returns the shape of a part: that of its box, or one dim if it is flat. */
oar_shape oari_part_shape(const oari_part *part);

/* Cuts a part into boxes of the whole, which lie one behind the other in its
 * memory. Returns how many; empty ones are left out. */
int oari_part_boxes(const oari_part *part, oari_box box[OARI_FLAT_BOXES]);

/* Returns how many elements two parts have in common. */
int64_t oari_part_common(const oari_part *a, const oari_part *b);

/* Returns the mesh dims, as bits, along which a rank must look to find all that
 * it has in `to` among the parts of `from`: those that cut in `from`, but for
 * the first cuts of each tensor dim that both have. */
unsigned oari_cuts_moved_dims(const oari_cuts *from, const oari_cuts *to,
                              int dims);

#endif
