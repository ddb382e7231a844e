/* SPDX-License-Identifier: Apache-2.0 */
/* op_view: other ways of looking at the same elements. The gradient of a view
 * is the same view of the gradient. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/status.h"
#include "tensor/kernels.h"

static oar_tensor *view(oar_tape *tape, oar_tensor *a, const oari_layout *at,
                        const oari_op *op, oari_extra extra)
{
    oar_tensor *out =
        oari_tensor_over(oari_tape_pool(tape), a->storage, a->dtype, at);

    return oari_emit(
        tape, out,
        &(oari_recipe){
            .op = op, .inputs = 1, .input = { a }, .extra = extra });
}

/* ---- reshape ------------------------------------------------------------ */

static oar_status reshape_back(oari_node *node, int i, const oari_array *to,
                               int add)
{
    oari_array grad = oari_array_of(node->grad);

    if (!add && oari_array_data(&grad) == oari_array_data(to))
        return OAR_OK; /* it has taken over the memory */
    grad.at = oari_layout_rows(to->at.shape);
    oari_scale(to, add, &grad, 1);
    return OAR_OK;
}

static const oari_op reshape_op = { .name = "reshape",
                                    .backward = reshape_back,
                                    .in_place = 1 };

static oar_status reshape_mismatch(const oar_tensor *a, oar_shape shape)
{
    return oari_fail(
        OAR_E_SHAPE, "reshape of %s to %s: the counts of elements differ",
        oari_shape_text(a->at.shape).text, oari_shape_text(shape).text);
}

/* Puts what is left in place of the one dim that is -1. */
static oar_status fill_in(const oar_tensor *a, oar_shape *shape)
{
    oar_shape asked = *shape;
    int64_t known = 1;
    int open = -1;

    for (int i = 0; i < shape->ndim && i < OAR_MAX_DIMS; i++)
        if (shape->dim[i] == -1 && open < 0) {
            open = i;
            shape->dim[i] = 1;
        }
    OARI_TRY(oari_shape_check(*shape, a->dtype));
    known = oari_shape_count(*shape);
    if (open >= 0 && known > 0)
        shape->dim[open] = a->count / known;
    else if (open >= 0)
        return reshape_mismatch(a, asked);
    if (oari_shape_count(*shape) != a->count)
        return reshape_mismatch(a, asked);
    return OAR_OK;
}

/* A row-major copy, not recorded. */
static oar_tensor *copy_rows(oar_tape *tape, const oar_tensor *a,
                             oar_shape shape)
{
    oar_tensor *out = oari_tensor_make(oari_tape_pool(tape), a->dtype, shape);
    oari_array to, from;

    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    to.at = oari_layout_rows(a->at.shape);
    from = oari_array_of(a);
    oari_copy(&to, &from);
    return out;
}

oar_tensor *oar_reshape(oar_tape *tape, oar_tensor *a, oar_shape shape)
{
    oari_layout at;

    if (oari_check_inputs("reshape", tape, 1, &a) != OAR_OK ||
        fill_in(a, &shape) != OAR_OK)
        return NULL;
    if (oari_layout_reshape(&a->at, shape, &at))
        return view(tape, a, &at, &reshape_op, (oari_extra){ 0 });
    return oari_emit(
        tape, copy_rows(tape, a, shape),
        &(oari_recipe){ .op = &reshape_op, .inputs = 1, .input = { a } });
}

/* ---- transpose ---------------------------------------------------------- */

static oar_status transpose_back(oari_node *node, int i, const oari_array *to,
                                 int add)
{
    oari_array grad = oari_array_of(node->grad);

    grad.at = oari_layout_transpose(grad.at, node->extra.dims.d0,
                                    node->extra.dims.d1);
    oari_scale(to, add, &grad, 1);
    return OAR_OK;
}

static const oari_op transpose_op = { .name = "transpose",
                                      .backward = transpose_back };

oar_tensor *oar_transpose(oar_tape *tape, oar_tensor *a, int d0, int d1)
{
    oari_layout at;
    int from = d0, to = d1;

    if (oari_check_inputs("transpose", tape, 1, &a) != OAR_OK)
        return NULL;
    if (!oari_shape_dim(a->at.shape, &from) ||
        !oari_shape_dim(a->at.shape, &to)) {
        oari_fail(OAR_E_SHAPE, "transpose of dims %d and %d of %s: no such dim",
                  d0, d1, oari_shape_text(a->at.shape).text);
        return NULL;
    }
    at = oari_layout_transpose(a->at, from, to);
    return view(tape, a, &at, &transpose_op,
                (oari_extra){ .dims = { from, to } });
}

/* ---- narrow ------------------------------------------------------------- */

static oar_status narrow_back(oari_node *node, int i, const oari_array *to,
                              int add)
{
    oari_array grad = oari_array_of(node->grad), part = *to;

    part.at =
        oari_layout_narrow(to->at, node->extra.range.dim,
                           node->extra.range.start, node->extra.range.length);
    if (!add)
        oari_fill(to, 0);
    oari_scale(&part, add, &grad, 1);
    return OAR_OK;
}

static const oari_op narrow_op = { .name = "narrow", .backward = narrow_back };

oar_tensor *oar_narrow(oar_tape *tape, oar_tensor *a, int dim, int64_t start,
                       int64_t length)
{
    oari_layout at;
    int d = dim;

    if (oari_check_inputs("narrow", tape, 1, &a) != OAR_OK)
        return NULL;
    if (!oari_shape_dim(a->at.shape, &d)) {
        oari_fail(OAR_E_SHAPE, "narrow of dim %d of %s: no such dim", dim,
                  oari_shape_text(a->at.shape).text);
        return NULL;
    }
    if (start < 0 || length < 0 || start > a->at.shape.dim[d] ||
        length > a->at.shape.dim[d] - start) {
        oari_fail(OAR_E_SHAPE,
                  "narrow of dim %d of %s to %lld elements from %lld on: it "
                  "does not have them",
                  dim, oari_shape_text(a->at.shape).text, (long long)length,
                  (long long)start);
        return NULL;
    }
    at = oari_layout_narrow(a->at, d, start, length);
    return view(tape, a, &at, &narrow_op,
                (oari_extra){ .range = { d, start, length } });
}
