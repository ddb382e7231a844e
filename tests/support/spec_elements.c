/* SPDX-License-Identifier: Apache-2.0 */
#include "support/spec_elements.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

#include "parallel/dtensor/spec.h"

static void add_spec(spec_list *list, const oar_spec *spec)
{
    for (int i = 0; i < list->count; i++)
        if (list->spec[i] == spec)
            return;
    assert_true(list->count < SPEC_LIST_MOST);
    list->spec[list->count++] = spec;
}

/* Adds the spec of these placements in every order that there is. */
static void add_orders(spec_list *list, oar_mesh *mesh,
                       const oar_placement *placement, oar_shape shape)
{
    static const int order[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                     { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
    int dims = oar_mesh_dims(mesh);

    for (int i = 0; i < 6; i++) {
        oar_spec_opts o = oar_spec_opts_init();
        const oar_spec *spec;

        if (dims < 3 && order[i][2] != 2)
            continue;
        if (dims < 2 && order[i][1] != 1)
            continue;
        o.order = order[i];
        spec = oar_spec_of(mesh, dims, placement, shape, &o);
        if (spec != NULL)
            add_spec(list, spec);
        else /* a flat cut before a shard, or sizes in ragged parts */
            assert_true(oar_last_error()->status == OAR_E_ARG ||
                        oar_last_error()->status == OAR_E_SHAPE);
    }
}

/* Uneven parts, some empty: all but one row go to the last rank but one. */
static const int64_t *odd_sizes(int64_t length, int parts, int64_t *size)
{
    memset(size, 0, (size_t)parts * sizeof *size);
    size[parts - 1] = length > 0;
    size[parts > 1 ? parts - 2 : 0] += length - (length > 0);
    return size;
}

void spec_list_make(oar_mesh *mesh, oar_shape shape, int odd, spec_list *list)
{
    int dims = oar_mesh_dims(mesh), kinds = 3 + shape.ndim + odd;
    int total = 1;

    list->count = 0;
    for (int m = 0; m < dims; m++)
        total *= kinds;
    for (int n = 0; n < total; n++) {
        int64_t size[3][SPEC_MOST_PARTS];
        oar_placement p[3];

        for (int m = 0, rest = n; m < dims; m++, rest /= kinds) {
            int kind = rest % kinds;

            p[m] = kind == 0   ? oar_placement_replicate()
                   : kind == 1 ? oar_placement_partial(OAR_REDUCE_OP_SUM)
                   : kind == 2 ? oar_placement_flat()
                               : oar_placement_shard((kind - 3) % shape.ndim);
            if (kind == 3 + shape.ndim)
                p[m].sizes =
                    odd_sizes(shape.dim[0], oar_mesh_size(mesh, m), size[m]);
        }
        add_orders(list, mesh, p, shape);
    }
}

int64_t shape_count(oar_shape shape)
{
    int64_t count = 1;

    for (int d = 0; d < shape.ndim; d++)
        count *= shape.dim[d];
    return count;
}

int spec_has_element(const oar_spec *spec, int rank, int64_t element)
{
    const oari_cuts *cuts = &spec->layout;
    const oari_grid *grid = &spec->mesh->grid;
    int64_t low[8], high[8], index[8], at = 0, rest = element, count = 1;
    int64_t flat_low = 0, flat_high = -1;

    for (int d = spec->shape.ndim - 1; d >= 0; d--) {
        index[d] = rest % spec->shape.dim[d];
        rest /= spec->shape.dim[d];
        low[d] = 0;
        high[d] = spec->shape.dim[d];
    }
    for (int i = 0; i < grid->dims; i++) {
        int m = cuts->order[i], n = grid->size[m];
        int64_t *from = &low[cuts->on[m].dim], *to = &high[cuts->on[m].dim];
        int x = rank / grid->stride[m] % n;
        int64_t length, end = 0;

        if (!oari_cut_splits(&cuts->on[m]))
            continue;
        if (cuts->on[m].kind == OAR_FLAT) {
            if (flat_high < 0) {
                for (int d = 0; d < spec->shape.ndim; d++) {
                    at = at * (high[d] - low[d]) + (index[d] - low[d]);
                    count *= high[d] - low[d];
                }
                flat_high = count;
            }
            from = &flat_low;
            to = &flat_high;
        }
        length = *to - *from;
        for (int k = 0; k <= x; k++) { /* part by part */
            int64_t size = cuts->on[m].sizes != NULL
                               ? cuts->on[m].sizes->size[k]
                               : length / n + (k < length % n);
            end += size;
            if (k == x) {
                *to = *from + end;
                *from = *to - size;
            }
        }
    }
    for (int d = 0; d < spec->shape.ndim; d++)
        if (index[d] < low[d] || index[d] >= high[d])
            return 0;
    return flat_high < 0 || (at >= flat_low && at < flat_high);
}

int spec_summand_of(const oar_spec *spec, int rank)
{
    const oari_grid *grid = &spec->mesh->grid;
    int summand = 0;

    for (int m = 0; m < grid->dims; m++)
        if (spec->layout.on[m].kind == OAR_PARTIAL)
            summand = summand * grid->size[m] +
                      rank / grid->stride[m] % grid->size[m];
    return summand;
}

int spec_summands(const oar_spec *spec)
{
    int summands = 1;

    for (int m = 0; m < spec->mesh->grid.dims; m++)
        if (spec->layout.on[m].kind == OAR_PARTIAL)
            summands *= spec->mesh->grid.size[m];
    return summands;
}

int64_t spec_summand(int64_t element, int i)
{
    return (element + 1) * (i * 5 + 1) + i;
}
