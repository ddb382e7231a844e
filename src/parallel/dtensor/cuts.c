/* SPDX-License-Identifier: Apache-2.0 */
/* cuts: the arithmetic of cuts: orders, parts, boxes. */
#include "parallel/dtensor/cuts.h"

#include <string.h>

int oari_same_shape(oar_shape a, oar_shape b)
{
    return a.ndim == b.ndim &&
           memcmp(a.dim, b.dim, (size_t)a.ndim * sizeof *a.dim) == 0;
}

int oari_cut_same(const oari_cut *a, const oari_cut *b)
{
    return a->kind == b->kind && a->dim == b->dim && a->op == b->op &&
           a->sizes == b->sizes;
}

int oari_cuts_same(const oari_cuts *a, const oari_cuts *b, int dims)
{
    for (int m = 0; m < dims; m++)
        if (!oari_cut_same(&a->on[m], &b->on[m]) || a->order[m] != b->order[m])
            return 0;
    return 1;
}

int oari_cuts_has(const oari_cuts *layout, int dims, oar_placement_kind kind)
{
    for (int m = 0; m < dims; m++)
        if (layout->on[m].kind == kind)
            return 1;
    return 0;
}

/* ---- order --------------------------------------------------------------- */

/* Whether mesh dim `later` cuts what `earlier` has cut, if it is after it. */
static int cuts_the_same(const oari_cut *earlier, const oari_cut *later)
{
    if (later->kind == OAR_FLAT)
        return oari_cut_splits(earlier);
    return earlier->kind == OAR_SHARD && later->kind == OAR_SHARD &&
           earlier->dim == later->dim;
}

/* Whether a mesh dim must wait for one that is still in the list. */
static int waits(const oari_cuts *layout, int dims, const signed char *left,
                 int at)
{
    for (int i = 0; i < dims; i++) {
        if (left[i] < 0 || i == at)
            continue;
        if (i < at &&
            cuts_the_same(&layout->on[left[i]], &layout->on[left[at]]))
            return 1;
        if (layout->on[left[at]].kind == OAR_FLAT &&
            layout->on[left[i]].kind != OAR_FLAT)
            return 1;
    }
    return 0;
}

void oari_cuts_sort(oari_cuts *layout, int dims)
{
    signed char left[OAR_MESH_DIMS];
    unsigned seen = 0, twice = 0;

    for (int m = 0; m < dims; m++) {
        const oari_cut *cut = &layout->on[m];
        unsigned bit = cut->kind == OAR_SHARD ? 1u << cut->dim : 0;

        twice |= cut->kind == OAR_FLAT || (seen & bit);
        seen |= bit;
    }
    for (int m = 0; !twice && m < dims; m++)
        layout->order[m] = (signed char)m;
    if (!twice)
        return;
    memcpy(left, layout->order, sizeof left);
    for (int n = 0; n < dims; n++) {
        int next = -1;

        for (int i = 0; i < dims; i++)
            if (left[i] >= 0 && !waits(layout, dims, left, i) &&
                (next < 0 || left[i] < left[next]))
                next = i;
        layout->order[n] = left[next];
        left[next] = -1;
    }
}

void oari_cuts_put(oari_cuts *layout, int dims, int mesh_dim,
                   const oari_cut *cut)
{
    int to = 0;

    for (int i = 0; i < dims; i++)
        if (layout->order[i] != mesh_dim)
            layout->order[to++] = layout->order[i];
    layout->order[to] = (signed char)mesh_dim;
    layout->on[mesh_dim] = *cut;
    oari_cuts_sort(layout, dims);
}

int oari_cuts_is_innermost(const oari_cuts *layout, int dims, int mesh_dim)
{
    int after = 0;

    for (int i = 0; i < dims; i++) {
        int m = layout->order[i];

        if (after && cuts_the_same(&layout->on[mesh_dim], &layout->on[m]))
            return 0;
        after |= m == mesh_dim;
    }
    return 1;
}

/* ---- sizes --------------------------------------------------------------- */

static int64_t divide_up(int64_t count, int parts)
{
    return (count + parts - 1) / parts;
}

int oari_cuts_takes(const oari_grid *grid, oar_shape shape,
                    const oari_cuts *layout, const oari_cut *cut)
{
    int64_t length = 1;

    if (cut->sizes == NULL)
        return 1;
    if (cut->kind == OAR_SHARD)
        length = shape.dim[cut->dim];
    for (int d = 0; cut->kind == OAR_FLAT && d < shape.ndim; d++)
        length *= shape.dim[d];
    for (int i = 0; i < grid->dims; i++) {
        int m = layout->order[i];
        const oari_cut *before = &layout->on[m];

        if (!cuts_the_same(before, cut))
            continue;
        if (before->sizes != NULL ? !before->sizes->equal
                                  : length % grid->size[m] != 0)
            return 0;
        length /= grid->size[m];
    }
    return length == cut->sizes->total;
}

int64_t oari_cuts_largest(const oari_grid *grid, oar_shape shape,
                          const oari_cuts *layout)
{
    int64_t flat = -1, count = 1;

    for (int i = 0; i < grid->dims; i++) {
        int m = layout->order[i];
        const oari_cut *cut = &layout->on[m];
        int64_t *length = cut->kind == OAR_SHARD ? &shape.dim[cut->dim] : &flat;

        if (!oari_cut_splits(cut))
            continue;
        if (cut->kind == OAR_FLAT && flat < 0) {
            flat = 1;
            for (int d = 0; d < shape.ndim; d++)
                flat *= shape.dim[d];
        }
        *length = cut->sizes != NULL ? cut->sizes->largest
                                     : divide_up(*length, grid->size[m]);
    }
    if (flat >= 0)
        return flat;
    for (int d = 0; d < shape.ndim; d++)
        count *= shape.dim[d];
    return count;
}

/* ---- parts --------------------------------------------------------------- */

/* Cuts a range, and leaves the part at a coordinate. */
static void cut_range(const oari_cut *cut, int parts, int at, int64_t *first,
                      int64_t *count)
{
    int64_t each = *count / parts, rest = *count % parts;

    if (cut->sizes != NULL) {
        *first += cut->sizes->start[at];
        *count = cut->sizes->size[at];
    } else {
        *first += each * at + (at < rest ? at : rest);
        *count = each + (at < rest);
    }
}

void oari_cuts_part(const oari_grid *grid, oar_shape shape,
                    const oari_cuts *layout, int rank, oari_part *part)
{
    oari_part p = { .box = oari_box_whole(shape) };

    for (int i = 0; i < grid->dims; i++) {
        int m = layout->order[i], n = grid->size[m];
        int at = oari_grid_coordinate(grid, rank, m);
        const oari_cut *cut = &layout->on[m];

        if (cut->kind == OAR_SHARD)
            cut_range(cut, n, at, &p.box.offset[cut->dim],
                      &p.box.extent[cut->dim]);
        if (cut->kind == OAR_FLAT && !p.flat) {
            p.flat = 1;
            p.count = oari_box_count(&p.box);
        }
        if (cut->kind == OAR_FLAT)
            cut_range(cut, n, at, &p.first, &p.count);
    }
    if (!p.flat)
        p.count = oari_box_count(&p.box);
    *part = p;
}

oar_shape oari_part_shape(const oari_part *part)
{
    return part->flat ? OAR_SHAPE(part->count)
                      : oar_shape_of(part->box.ndim, part->box.extent);
}

int oari_part_boxes(const oari_part *part, oari_box box[OARI_FLAT_BOXES])
{
    oar_shape shape = oar_shape_of(part->box.ndim, part->box.extent);
    int boxes;

    if (part->count == 0)
        return 0;
    if (!part->flat) {
        box[0] = part->box;
        return 1;
    }
    boxes = oari_flat_boxes(shape, part->first, part->count, box);
    for (int i = 0; i < boxes; i++)
        for (int d = 0; d < shape.ndim; d++)
            box[i].offset[d] += part->box.offset[d];
    return boxes;
}

int64_t oari_part_common(const oari_part *a, const oari_part *b)
{
    oari_box in_a[OARI_FLAT_BOXES], in_b[OARI_FLAT_BOXES], both;
    int boxes_a = oari_part_boxes(a, in_a), boxes_b = oari_part_boxes(b, in_b);
    int64_t count = 0;

    for (int i = 0; i < boxes_a; i++)
        for (int k = 0; k < boxes_b; k++)
            if (oari_box_meet(&in_a[i], &in_b[k], &both))
                count += oari_box_count(&both);
    return count;
}

/* ---- where a move goes --------------------------------------------------- */

/* Writes the mesh dims that cut a tensor dim (-1: flat), in order. */
static int list_cuts(const oari_cuts *layout, int dims, int dim, int *list)
{
    int count = 0;

    for (int i = 0; i < dims; i++) {
        const oari_cut *cut = &layout->on[layout->order[i]];
        int fits = dim < 0 ? cut->kind == OAR_FLAT
                           : cut->kind == OAR_SHARD && cut->dim == dim;
        if (fits)
            list[count++] = layout->order[i];
    }
    return count;
}

/* Adds the mesh dims of a tensor dim's cuts in `from` that `to` does not begin
 * with. */
static unsigned differing(const oari_cuts *from, const oari_cuts *to, int dims,
                          int dim, int *all_same)
{
    int a[OAR_MESH_DIMS], b[OAR_MESH_DIMS], same = 0;
    int count_a = list_cuts(from, dims, dim, a);
    int count_b = list_cuts(to, dims, dim, b);
    unsigned moved = 0;

    while (same < count_a && same < count_b && a[same] == b[same] &&
           oari_cut_same(&from->on[a[same]], &to->on[b[same]]))
        same++;
    for (int i = same; i < count_a; i++)
        moved |= 1u << a[i];
    if (same < count_a || same < count_b)
        *all_same = 0;
    return moved;
}

unsigned oari_cuts_moved_dims(const oari_cuts *from, const oari_cuts *to,
                              int dims)
{
    unsigned moved = 0, seen = 0;
    int all_same = 1, ignored, list[OAR_MESH_DIMS];

    for (int m = 0; m < dims; m++) { /* each tensor dim once */
        for (int side = 0; side < 2; side++) {
            const oari_cut *cut = &(side ? to : from)->on[m];

            if (cut->kind != OAR_SHARD || (seen >> cut->dim & 1))
                continue;
            seen |= 1u << cut->dim;
            moved |= differing(from, to, dims, cut->dim, &all_same);
        }
    }
    if (all_same)
        return moved | differing(from, to, dims, -1, &ignored);
    for (int i = list_cuts(from, dims, -1, list) - 1; i >= 0; i--)
        moved |= 1u << list[i];
    return moved;
}
