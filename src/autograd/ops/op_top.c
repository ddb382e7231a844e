/* SPDX-License-Identifier: Apache-2.0 */
/* op_top: the largest elements along a dim, or the smallest, and where they
 * are. */
#include <oarsong/ops.h>

#include "autograd/ops/picked.h"
#include "base/dtype.h"
#include "base/status.h"
#include "tensor/cpu/arith.h"
#include "tensor/operands.h"
#include "tensor/cpu/walk.h"

/* ---- what all of them share ---------------------------------------------- */

oar_status oari_check_dim(const char *name, oar_tape *tape, oar_tensor *a,
                          int *dim)
{
    int asked = *dim;

    OARI_TRY(oari_check_inputs(name, tape, 1, &a));
    if (oari_shape_dim(a->at.shape, dim))
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE, "%s of dim %d of %s: no such dim", name,
                     asked, oari_shape_text(a->at.shape).text);
}

oar_tensor *oari_rows_of_dim(oari_pool *pool, oar_tensor *a, int dim)
{
    oar_dtype dtype = a->dtype == OAR_BOOL ? OAR_U8 : oari_row_dtype(a->dtype);
    oar_dims order = { .count = a->at.shape.ndim };
    oari_array to, from = oari_array_of(a);
    oar_tensor *rows;

    for (int i = 0; i < order.count; i++)
        order.dim[i] = i < dim ? i : i + 1;
    order.dim[order.count - 1] = dim;
    from.at = oari_layout_permute(&a->at, order);
    if (dim == order.count - 1 && dtype == a->dtype &&
        oari_layout_is_rows(&a->at))
        return oar_tensor_retain(a);
    rows = oari_tensor_make_on(pool, from.device, dtype, from.at.shape);
    if (rows == NULL)
        return NULL;
    to = oari_array_of(rows);
    return oari_settle(pool, rows, OARI_KERNEL(&to, copy, &to, &from));
}

/* With the dim back, if the results were without it. */
static oari_array with_dim(const oar_tensor *t, const oari_extra *extra)
{
    oari_array a = oari_array_of(t);

    if (extra->picked.drops)
        a.at = oari_layout_insert(a.at, extra->picked.dim);
    return a;
}

oar_status oari_picked_back(oari_node *node, int i, const oari_array *to,
                            int add)
{
    oari_operands operands = { .pool = &node->tape->pool };
    oari_array index = with_dim(node->saved[0], &node->extra);
    oari_array given = with_dim(node->grad, &node->extra);
    const oari_array *grad = oari_operands_in(&operands, &given);
    const oari_array *y = oari_operands_out(&operands, to, add);

    if (operands.status == OAR_OK && !add)
        operands.status = OARI_KERNEL(y, fill, y, 0);
    if (operands.status == OAR_OK)
        operands.status = OARI_KERNEL(y, scatter_add, y, node->extra.picked.dim,
                                      &index, grad);
    return oari_operands_finish(&operands);
}

oar_status oari_emit_picked(oar_tape *tape, const oari_picked *made,
                            oar_tensor **value, oar_tensor **index)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *place = made->place, *first, *second;

    if (made->picked == NULL || place == NULL) {
        oari_tensor_drop(pool, made->picked);
        oari_tensor_drop(pool, place);
        return oar_last_error()->status; /* what made them has said it */
    }
    second = index != NULL ? oar_tensor_retain(place) : NULL;
    first = oari_emit(tape, made->picked,
                      &(oari_node_record){
                          .op = made->op,
                          .inputs = 1,
                          .input = { made->a },
                          .saved = { place },
                          .extra = { .picked = { made->dim, made->drops } } });
    oari_tensor_drop(pool, place);
    second = oari_keep(tape, second);
    if (first == NULL || (index != NULL && second == NULL))
        return OAR_E_NOMEM; /* only a tape can fail; it owns what is left */
    *value = first;
    if (index != NULL)
        *index = second;
    return OAR_OK;
}

/* ---- argmax and argmin --------------------------------------------------- */

typedef enum extreme { LARGEST, SMALLEST } extreme;

static oar_status check_extreme(const char *name, oar_tape *tape, oar_tensor *a,
                                int *dim)
{
    OARI_TRY(oari_check_dim(name, tape, a, dim));
    if (a->at.shape.dim[*dim] > 0)
        return OAR_OK;
    return oari_fail(OAR_E_SHAPE, "%s of dim %d of %s: it has no elements",
                     name, *dim, oari_shape_text(a->at.shape).text);
}

/* The places, not yet given to the tape. */
static oar_tensor *find_places(oari_pool *pool, oar_tensor *a, int dim,
                               int keep, extreme which)
{
    oari_layout at = keep ? oari_layout_narrow(a->at, dim, 0, 1)
                          : oari_layout_drop(a->at, dim);
    oar_tensor *rows = oari_rows_of_dim(pool, a, dim), *out;
    oari_array to, from;

    if (rows == NULL)
        return NULL;
    out = oari_tensor_make_on(pool, oari_device_of(a), OAR_I64, at.shape);
    if (out != NULL) {
        to = oari_array_of(out);
        from = oari_array_of(rows);
        out = oari_settle(pool, out,
                          which == LARGEST
                              ? OARI_KERNEL(&to, argmax, &to, &from)
                              : OARI_KERNEL(&to, argmin, &to, &from));
    }
    oari_tensor_drop(pool, rows);
    return out;
}

oar_tensor *oar_argmax(oar_tape *tape, oar_tensor *a, int dim, int keep)
{
    if (check_extreme("argmax", tape, a, &dim) != OAR_OK)
        return NULL;
    return oari_keep(tape,
                     find_places(oari_tape_pool(tape), a, dim, keep, LARGEST));
}

oar_tensor *oar_argmin(oar_tape *tape, oar_tensor *a, int dim, int keep)
{
    if (check_extreme("argmin", tape, a, &dim) != OAR_OK)
        return NULL;
    return oari_keep(tape,
                     find_places(oari_tape_pool(tape), a, dim, keep, SMALLEST));
}

/* ---- max and min with their index ---------------------------------------- */

/* The elements of a at these places, in their shape. */
static oar_tensor *gather_picked(oari_pool *pool, const oar_tensor *a, int dim,
                                 int keep, const oar_tensor *place)
{
    oari_extra along = { .picked = { dim, !keep } };
    oari_array to, from = oari_array_of(a), index;
    oar_tensor *out;

    if (place == NULL)
        return NULL;
    out =
        oari_tensor_make_on(pool, oari_device_of(a), a->dtype, place->at.shape);
    if (out == NULL)
        return NULL;
    to = with_dim(out, &along);
    index = with_dim(place, &along);
    return oari_settle(pool, out,
                       OARI_KERNEL(&to, gather, &to, &from, dim, &index));
}

static oar_status with_index(oar_tape *tape, const oari_op_class *op,
                             extreme which, oar_tensor *a, int dim, int keep,
                             oar_tensor **value, oar_tensor **index)
{
    oari_pool *pool = oari_tape_pool(tape);
    oari_picked made = { .op = op, .a = a, .drops = !keep };

    OARI_TRY(check_extreme(op->name, tape, a, &dim));
    if (value == NULL)
        return oari_fail(OAR_E_ARG, "%s of %s: nowhere to give the values",
                         op->name, oari_shape_text(a->at.shape).text);
    made.dim = dim;
    made.place = find_places(pool, a, dim, keep, which);
    made.picked = gather_picked(pool, a, dim, keep, made.place);
    return oari_emit_picked(tape, &made, value, index);
}

oar_status oar_max_with_index(oar_tape *tape, oar_tensor *a, int dim, int keep,
                              oar_tensor **value, oar_tensor **index)
{
    static const oari_op_class op = { .name = "max_with_index",
                                      .backward = oari_picked_back };

    return with_index(tape, &op, LARGEST, a, dim, keep, value, index);
}

oar_status oar_min_with_index(oar_tape *tape, oar_tensor *a, int dim, int keep,
                              oar_tensor **value, oar_tensor **index)
{
    static const oari_op_class op = { .name = "min_with_index",
                                      .backward = oari_picked_back };

    return with_index(tape, &op, SMALLEST, a, dim, keep, value, index);
}

/* ---- topk ---------------------------------------------------------------- */

static const oari_op_class topk_op = { .name = "topk",
                                       .backward = oari_picked_back };

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
    oar_tensor *rows = oari_rows_of_dim(pool, a, a->at.shape.ndim - 1);
    oar_tensor *wide =
        oari_tensor_make_on(pool, oari_device_of(a), dtype, value->at.shape);
    oar_status status = OAR_E_NOMEM;
    oari_array y, place, from, to = oari_array_of(value);

    if (rows != NULL && wide != NULL) {
        y = oari_array_of(wide);
        place = oari_array_of(index);
        from = oari_array_of(rows);
        status = OARI_KERNEL(&y, topk, &y, &place, &from);
        if (status == OAR_OK)
            status = OARI_KERNEL(&to, copy, &to, &y);
    }
    oari_tensor_drop(pool, wide);
    oari_tensor_drop(pool, rows);
    return status;
}

oar_status oar_topk(oar_tape *tape, oar_tensor *a, int64_t k,
                    oar_tensor **value, oar_tensor **index)
{
    oari_pool *pool = oari_tape_pool(tape);
    oari_picked made = { .op = &topk_op, .a = a };
    oar_shape shape;

    OARI_TRY(check_topk(tape, a, k, value, &shape));
    made.dim = shape.ndim - 1;
    made.picked = oari_tensor_make_on(pool, oari_device_of(a), a->dtype, shape);
    made.place = oari_tensor_make_on(pool, oari_device_of(a), OAR_I64, shape);
    if (made.picked != NULL && made.place != NULL &&
        compute_topk(pool, a, made.picked, made.place) != OAR_OK) {
        oari_tensor_drop(pool, made.picked);
        made.picked = NULL;
    }
    return oari_emit_picked(tape, &made, value, index);
}
