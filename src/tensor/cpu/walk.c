/* SPDX-License-Identifier: Apache-2.0 */
/* walk: an odometer over the merged dims; the last one is the row. */
#include "tensor/cpu/walk.h"

typedef struct plan {
    int ndim, arrays;
    int64_t dim[OAR_MAX_DIMS];
    int64_t stride[OAR_MAX_DIMS][OARI_WALK_ARRAYS]; /* elements */
    int64_t bytes[OARI_WALK_ARRAYS];                /* of one element */
} plan;

/* Adds a dim to the plan. If stepping over all of it is one step of the dim
 * before it, that dim is lengthened instead. */
static void add_dim(plan *p, int64_t dim, const int64_t *stride)
{
    int merges = p->ndim > 0;

    if (dim == 1)
        return;
    for (int k = 0; merges && k < p->arrays; k++)
        merges = p->stride[p->ndim - 1][k] == dim * stride[k];
    if (merges)
        p->dim[p->ndim - 1] *= dim;
    else
        p->dim[p->ndim++] = dim;
    for (int k = 0; k < p->arrays; k++)
        p->stride[p->ndim - 1][k] = stride[k];
}

static plan make_plan(oar_shape shape, int arrays,
                      const oari_array *const *array)
{
    plan p = { .arrays = arrays };
    oari_layout at[OARI_WALK_ARRAYS];

    for (int k = 0; k < arrays; k++) {
        at[k] = oari_layout_expand(&array[k]->at, shape);
        p.bytes[k] = (int64_t)oar_dtype_size(array[k]->dtype);
    }
    for (int i = 0; i < shape.ndim; i++) {
        int64_t stride[OARI_WALK_ARRAYS] = { 0 };

        for (int k = 0; k < arrays; k++)
            stride[k] = at[k].stride[i];
        add_dim(&p, shape.dim[i], stride);
    }
    if (p.ndim == 0) /* a single element */
        p.dim[p.ndim++] = 1;
    return p;
}

/* Moves the row to the next place of the outer dims; 0 after the last. */
static int advance_row(const plan *p, int64_t *index, oari_walk_row *row)
{
    for (int i = p->ndim - 2; i >= 0; i--) {
        int64_t steps = ++index[i] < p->dim[i] ? 1 : 1 - p->dim[i];

        for (int k = 0; k < p->arrays; k++)
            row->data[k] =
                (char *)row->data[k] + steps * p->stride[i][k] * p->bytes[k];
        if (steps == 1)
            return 1;
        index[i] = 0;
    }
    return 0;
}

void oari_walk(oar_shape shape, int arrays, const oari_array *const *array,
               oari_walk_fn fn, void *arg)
{
    int64_t index[OAR_MAX_DIMS] = { 0 };
    oari_walk_row row = { 0 };
    plan p;

    if (oari_shape_count(shape) == 0)
        return;
    p = make_plan(shape, arrays, array);
    row.count = p.dim[p.ndim - 1];
    for (int k = 0; k < arrays; k++) {
        row.data[k] = oari_array_data(array[k]);
        row.stride[k] = p.stride[p.ndim - 1][k];
    }
    do
        fn(&row, arg);
    while (advance_row(&p, index, &row));
}
