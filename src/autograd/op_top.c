/* SPDX-License-Identifier: Apache-2.0 */
/* op_top: the largest elements along a dim, and where they are. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/dtype.h"
#include "base/status.h"
#include "tensor/arith.h"
#include "tensor/desk.h"
#include "tensor/walk.h"

/* a with `dim` last, row by row and no half: itself if it is so, or a copy.
 * Gives a reference. */
static oar_tensor *rows_along(oari_pool *pool, oar_tensor *a, int dim)
{
    oar_dims order = { .count = a->at.shape.ndim };
    oari_array to, from = oari_array_of(a);
    oar_tensor *rows;

    for (int i = 0; i < order.count; i++)
        order.dim[i] = i < dim ? i : i + 1;
    order.dim[order.count - 1] = dim;
    from.at = oari_layout_permute(&a->at, order);
    if (dim == order.count - 1 && !oari_dtype_is_half(a->dtype) &&
        oari_layout_is_rows(&a->at))
        return oar_tensor_retain(a);
    rows = oari_tensor_make(pool, oari_row_dtype(a->dtype), from.at.shape);
    if (rows == NULL)
        return NULL;
    to = oari_array_of(rows);
    oari_copy(&to, &from);
    return rows;
}

/* ---- argmax ------------------------------------------------------------- */

static oar_status check_argmax(oar_tape *tape, oar_tensor *a, int *dim)
{
    int asked = *dim;

    OARI_TRY(oari_check_inputs("argmax", tape, 1, &a));
    OARI_TRY(oari_check_number("argmax", a));
    if (!oari_shape_dim(a->at.shape, dim))
        return oari_fail(OAR_E_SHAPE, "argmax of dim %d of %s: no such dim",
                         asked, oari_shape_text(a->at.shape).text);
    if (a->at.shape.dim[*dim] > 0 || a->count > 0)
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE, "argmax of dim %d of %s: it has no elements",
                     asked, oari_shape_text(a->at.shape).text);
}

oar_tensor *oar_argmax(oar_tape *tape, oar_tensor *a, int dim, int keep)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *rows, *out;
    oari_array to, from;
    oari_layout at;

    if (check_argmax(tape, a, &dim) != OAR_OK)
        return NULL;
    at = keep ? oari_layout_narrow(a->at, dim, 0, 1)
              : oari_layout_drop(a->at, dim);
    rows = rows_along(pool, a, dim);
    if (rows == NULL)
        return NULL;
    out = oari_tensor_make(pool, OAR_I64, at.shape);
    if (out != NULL) {
        to = oari_array_of(out);
        from = oari_array_of(rows);
        oari_argmax(&to, &from);
    }
    oari_tensor_drop(pool, rows);
    return oari_keep(tape, out);
}

/* ---- topk --------------------------------------------------------------- */

/* The gradient goes back to where each element was. */
static oar_status topk_back(oari_node *node, int i, const oari_array *to,
                            int add)
{
    oari_desk desk = { .pool = &node->tape->pool };
    oari_array index = oari_array_of(node->saved[0]);
    const oari_array *grad = oari_desk_tensor(&desk, node->grad);
    const oari_array *y = oari_desk_out(&desk, to, add);

    if (desk.status == OAR_OK) {
        if (!add)
            oari_fill(y, 0);
        oari_scatter_add(y, to->at.shape.ndim - 1, &index, grad);
    }
    return oari_desk_clear(&desk);
}

static const oari_op topk_op = { .name = "topk", .backward = topk_back };

static oar_status check_topk(oar_tape *tape, oar_tensor *a, int64_t k,
                             oar_tensor *const *value, oar_shape *shape)
{
    OARI_TRY(oari_check_inputs("topk", tape, 1, &a));
    OARI_TRY(oari_check_number("topk", a));
    *shape = a->at.shape;
    if (value == NULL)
        return oari_fail(OAR_E_ARG, "topk of %s: nowhere to give the values",
                         oari_shape_text(*shape).text);
    if (shape->ndim < 1 || k < 0 || k > shape->dim[shape->ndim - 1])
        return oari_fail(OAR_E_SHAPE,
                         "topk of %s with k = %lld: the last dim does not have "
                         "as many",
                         oari_shape_text(*shape).text, (long long)k);
    shape->dim[shape->ndim - 1] = k;
    return OAR_OK;
}

/* Fills in both from a. */
static oar_status compute_topk(oari_pool *pool, oar_tensor *a,
                               const oar_tensor *value, const oar_tensor *index)
{
    oar_dtype dtype = oari_row_dtype(a->dtype);
    oar_tensor *rows = rows_along(pool, a, a->at.shape.ndim - 1);
    oar_tensor *wide = oari_tensor_make(pool, dtype, value->at.shape);
    oari_array y, place, from, to = oari_array_of(value);

    if (rows != NULL && wide != NULL) {
        y = oari_array_of(wide);
        place = oari_array_of(index);
        from = oari_array_of(rows);
        oari_topk(&y, &place, &from);
        oari_copy(&to, &y);
    }
    oari_tensor_drop(pool, wide);
    oari_tensor_drop(pool, rows);
    return rows != NULL && wide != NULL ? OAR_OK : OAR_E_NOMEM;
}

/* Hands both to the tape or the caller; index is not given if not wanted. */
static oar_status emit_topk(oar_tape *tape, oar_tensor *a, oar_tensor *best,
                            oar_tensor *place, oar_tensor **value,
                            oar_tensor **index)
{
    oar_tensor *second = index != NULL ? oar_tensor_retain(place) : NULL;
    oar_tensor *first = oari_emit(
        tape, best,
        &(oari_recipe){
            .op = &topk_op, .inputs = 1, .input = { a }, .saved = { place } });

    oari_tensor_drop(oari_tape_pool(tape), place);
    second = oari_keep(tape, second);
    if (first == NULL || (index != NULL && second == NULL))
        return OAR_E_NOMEM; /* only a tape can fail; it owns what is left */
    *value = first;
    if (index != NULL)
        *index = second;
    return OAR_OK;
}

oar_status oar_topk(oar_tape *tape, oar_tensor *a, int64_t k,
                    oar_tensor **value, oar_tensor **index)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *best, *place;
    oar_shape shape;

    OARI_TRY(check_topk(tape, a, k, value, &shape));
    best = oari_tensor_make(pool, a->dtype, shape);
    place = oari_tensor_make(pool, OAR_I64, shape);
    if (best != NULL && place != NULL &&
        compute_topk(pool, a, best, place) == OAR_OK)
        return emit_topk(tape, a, best, place, value, index);
    oari_tensor_drop(pool, best);
    oari_tensor_drop(pool, place);
    return OAR_E_NOMEM;
}
