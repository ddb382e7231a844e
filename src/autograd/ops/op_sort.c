/* SPDX-License-Identifier: Apache-2.0 */
/* op_sort: the elements along a dim in order, and where they were. */
#include <oarsong/ops.h>

#include "autograd/ops/picked.h"
#include "base/status.h"
#include "tensor/kernel_table.h"

static const oari_op_class sort_op = { .name = "sort",
                                       .backward = oari_picked_back };

/* Where the elements of a come from in order, row by row with `dim` last. */
static oar_tensor *sort_rows(oari_pool *pool, oar_tensor *a, int dim,
                             int descending)
{
    int64_t room = oari_device_of(a).kind == OAR_CPU
                       ? oari_sort_scratch(a->at.shape.dim[dim])
                       : 0; /* GPUs take their own */
    oar_tensor *rows = oari_rows_of_dim(pool, a, dim), *scratch, *order = NULL;
    oari_array to, from;

    if (rows == NULL)
        return NULL;
    scratch =
        oari_tensor_make_on(pool, oari_device_of(a), OAR_U64, OAR_SHAPE(room));
    if (scratch != NULL)
        order = oari_tensor_make_on(pool, oari_device_of(a), OAR_I64,
                                    rows->at.shape);
    if (order != NULL) {
        to = oari_array_of(order);
        from = oari_array_of(rows);
        order = oari_settle(pool, order,
                            OARI_KERNEL(&to, sort, &to, &from, descending,
                                        scratch->storage->data));
    }
    oari_tensor_drop(pool, scratch);
    oari_tensor_drop(pool, rows);
    return order;
}

/* The same in the shape of a. Takes the reference to order. */
static oar_tensor *put_back(oari_pool *pool, oar_tensor *order,
                            const oar_tensor *a, int dim)
{
    int last = a->at.shape.ndim - 1;
    oar_dims back = { .count = last + 1 };
    oari_array to, from;
    oar_tensor *place;

    if (order == NULL || dim == last)
        return order;
    place = oari_tensor_make_on(pool, oari_device_of(a), OAR_I64, a->at.shape);
    if (place != NULL) {
        for (int i = 0; i <= last; i++)
            back.dim[i] = i < dim ? i : i == dim ? last : i - 1;
        to = oari_array_of(place);
        from = oari_array_of(order);
        from.at = oari_layout_permute(&order->at, back);
        place = oari_settle(pool, place, OARI_KERNEL(&to, copy, &to, &from));
    }
    oari_tensor_drop(pool, order);
    return place;
}

oar_status oar_sort(oar_tape *tape, oar_tensor *a, int dim, int descending,
                    oar_tensor **value, oar_tensor **index)
{
    oari_pool *pool = oari_tape_pool(tape);
    oari_picked made = { .op = &sort_op, .a = a };
    oari_array to, from, place;

    OARI_TRY(oari_check_dim("sort", tape, a, &dim));
    if (value == NULL)
        return oari_fail(OAR_E_ARG, "sort of %s: nowhere to give the values",
                         oari_shape_text(a->at.shape).text);
    made.dim = dim;
    made.place = put_back(pool, sort_rows(pool, a, dim, descending), a, dim);
    if (made.place != NULL)
        made.picked =
            oari_tensor_make_on(pool, oari_device_of(a), a->dtype, a->at.shape);
    if (made.picked != NULL) {
        to = oari_array_of(made.picked);
        from = oari_array_of(a);
        place = oari_array_of(made.place);
        made.picked =
            oari_settle(pool, made.picked,
                        OARI_KERNEL(&to, gather, &to, &from, dim, &place));
    }
    return oari_emit_picked(tape, &made, value, index);
}
