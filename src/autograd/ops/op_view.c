/* SPDX-License-Identifier: Apache-2.0 */
/* op_view: other ways of looking at the same elements. The gradient of a view
 * is the same view of the gradient. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/status.h"
#include "tensor/kernel_table.h"

static oar_tensor *make_view(oar_tape *tape, oar_tensor *a,
                             const oari_layout *at, const oari_op_class *op,
                             oari_extra extra)
{
    oar_tensor *out =
        oari_tensor_over(oari_tape_pool(tape), a->storage, a->dtype, at);

    return oari_emit(
        tape, out,
        &(oari_node_record){
            .op = op, .inputs = 1, .input = { a }, .extra = extra });
}

/* ---- reshape ------------------------------------------------------------- */

static oar_status reshape_back(oari_node *node, int i, const oari_array *to,
                               int add)
{
    oari_array grad = oari_array_of(node->grad);

    if (!add && oari_array_data(&grad) == oari_array_data(to))
        return OAR_OK; /* it has taken over the memory */
    grad.at = oari_layout_rows(to->at.shape);
    return OARI_KERNEL(to, scale, to, add, &grad, 1);
}

static const oari_op_class reshape_op = { .name = "reshape",
                                          .backward = reshape_back,
                                          .in_place = 1 };

/* What cannot be made of a, as it was asked for. */
static oar_status refuse_shape(oar_status status, const char *name,
                               const oar_tensor *a, oar_shape asked,
                               const char *why)
{
    return oari_fail(status, "%s of %s to %s: %s", name,
                     oari_shape_text(a->at.shape).text,
                     oari_shape_text(asked).text, why);
}

/* Puts what is left in place of the one dim that is -1. */
static oar_status fill_open_dim(const oar_tensor *a, oar_shape *shape)
{
    oar_shape asked = *shape;
    int64_t known;
    int open = -1;

    for (int i = 0; i < shape->ndim && i < OAR_MAX_DIMS; i++) {
        if (shape->dim[i] >= 0)
            continue;
        if (shape->dim[i] != -1 || open >= 0)
            return refuse_shape(
                OAR_E_ARG, "reshape", a, asked,
                "only one dim may be -1, and no other negative");
        open = i;
        shape->dim[i] = 1;
    }
    OARI_TRY(oari_shape_check("reshape", *shape, a->dtype));
    known = oari_shape_count(*shape);
    if (open >= 0 && known > 0)
        shape->dim[open] = a->count / known;
    if ((open >= 0 && known == 0) || oari_shape_count(*shape) != a->count)
        return refuse_shape(OAR_E_SHAPE, "reshape", a, asked,
                            "the counts of elements differ");
    return OAR_OK;
}

/* A row-major copy, not recorded. */
static oar_tensor *copy_rows(oar_tape *tape, const oar_tensor *a,
                             oar_shape shape)
{
    oar_tensor *out = oari_tensor_make_on(oari_tape_pool(tape),
                                          oari_device_of(a), a->dtype, shape);
    oari_array to, from;

    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    to.at = oari_layout_rows(a->at.shape);
    from = oari_array_of(a);
    return oari_settle(oari_tape_pool(tape), out,
                       OARI_KERNEL(&to, copy, &to, &from));
}

oar_tensor *oar_reshape(oar_tape *tape, oar_tensor *a, oar_shape shape)
{
    oari_layout at;

    if (oari_check_inputs("reshape", tape, 1, &a) != OAR_OK ||
        fill_open_dim(a, &shape) != OAR_OK)
        return NULL;
    if (oari_layout_reshape(&a->at, shape, &at))
        return make_view(tape, a, &at, &reshape_op, (oari_extra){ 0 });
    return oari_emit(
        tape, copy_rows(tape, a, shape),
        &(oari_node_record){ .op = &reshape_op, .inputs = 1, .input = { a } });
}

/* ---- transpose ----------------------------------------------------------- */

static oar_status transpose_back(oari_node *node, int i, const oari_array *to,
                                 int add)
{
    oari_array grad = oari_array_of(node->grad);

    grad.at = oari_layout_transpose(grad.at, node->extra.dims.d0,
                                    node->extra.dims.d1);
    return OARI_KERNEL(to, scale, to, add, &grad, 1);
}

static const oari_op_class transpose_op = { .name = "transpose",
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
    return make_view(tape, a, &at, &transpose_op,
                     (oari_extra){ .dims = { from, to } });
}

/* ---- permute ------------------------------------------------------------- */

static oar_status permute_back(oari_node *node, int i, const oari_array *to,
                               int add)
{
    oari_array grad = oari_array_of(node->grad), turned = *to;

    turned.at = oari_layout_permute(&to->at, node->extra.order);
    return OARI_KERNEL(&turned, scale, &turned, add, &grad, 1);
}

static const oari_op_class permute_op = { .name = "permute",
                                          .backward = permute_back };

oar_tensor *oar_permute(oar_tape *tape, oar_tensor *a, oar_dims order)
{
    int seen[OAR_MAX_DIMS] = { 0 }, good;
    oari_layout at;

    if (oari_check_inputs("permute", tape, 1, &a) != OAR_OK)
        return NULL;
    good = order.count == a->at.shape.ndim;
    for (int i = 0; good && i < order.count; i++)
        good =
            oari_shape_dim(a->at.shape, &order.dim[i]) && !seen[order.dim[i]]++;
    if (!good) {
        oari_fail(OAR_E_SHAPE,
                  "permute of %s by %d dims: each dim has to be there once",
                  oari_shape_text(a->at.shape).text, order.count);
        return NULL;
    }
    at = oari_layout_permute(&a->at, order);
    return make_view(tape, a, &at, &permute_op, (oari_extra){ .order = order });
}

/* ---- expand -------------------------------------------------------------- */

static oar_status expand_back(oari_node *node, int i, const oari_array *to,
                              int add)
{
    oari_array grad = oari_array_of(node->grad);

    return OARI_KERNEL(to, sum_to, &node->tape->pool, to, add, &grad);
}

static const oari_op_class expand_op = { .name = "expand",
                                         .backward = expand_back };

oar_tensor *oar_expand(oar_tape *tape, oar_tensor *a, oar_shape shape)
{
    oar_shape asked = shape, both;
    oari_layout at;
    int shift;

    if (oari_check_inputs("expand", tape, 1, &a) != OAR_OK)
        return NULL;
    shift = shape.ndim - a->at.shape.ndim;
    for (int i = 0; i < shape.ndim && i < OAR_MAX_DIMS; i++) {
        if (shape.dim[i] == -1 && i >= shift)
            shape.dim[i] = a->at.shape.dim[i - shift];
        if (shape.dim[i] < 0) {
            refuse_shape(OAR_E_ARG, "expand", a, asked,
                         "-1 keeps an existing dim, and no other is negative");
            return NULL;
        }
    }
    if (oari_shape_check("expand", shape, a->dtype) != OAR_OK)
        return NULL;
    if (!oari_shape_broadcast(a->at.shape, shape, &both) ||
        !oari_shape_equal(both, shape)) {
        refuse_shape(OAR_E_SHAPE, "expand", a, asked,
                     "only dims of size 1 repeat");
        return NULL;
    }
    at = oari_layout_expand(&a->at, shape);
    return make_view(tape, a, &at, &expand_op, (oari_extra){ 0 });
}

/* ---- squeeze and unsqueeze ----------------------------------------------- */

oar_tensor *oar_squeeze(oar_tape *tape, oar_tensor *a, int dim)
{
    oari_layout at;
    int d = dim;

    if (oari_check_inputs("squeeze", tape, 1, &a) != OAR_OK)
        return NULL;
    if (!oari_shape_dim(a->at.shape, &d) || a->at.shape.dim[d] != 1) {
        oari_fail(OAR_E_SHAPE, "squeeze of dim %d of %s: no dim of size 1", dim,
                  oari_shape_text(a->at.shape).text);
        return NULL;
    }
    at = oari_layout_drop(a->at, d);
    return make_view(tape, a, &at, &reshape_op, (oari_extra){ 0 });
}

oar_tensor *oar_unsqueeze(oar_tape *tape, oar_tensor *a, int dim)
{
    oari_layout at;
    int d;

    if (oari_check_inputs("unsqueeze", tape, 1, &a) != OAR_OK)
        return NULL;
    d = dim < 0 ? dim + a->at.shape.ndim + 1 : dim;
    if (d < 0 || d > a->at.shape.ndim || a->at.shape.ndim == OAR_MAX_DIMS) {
        oari_fail(OAR_E_SHAPE, "unsqueeze of %s at dim %d: no such place",
                  oari_shape_text(a->at.shape).text, dim);
        return NULL;
    }
    at = oari_layout_insert(a->at, d);
    return make_view(tape, a, &at, &reshape_op, (oari_extra){ 0 });
}

/* ---- contiguous ---------------------------------------------------------- */

/* Without a tape the caller owns what comes back, so a has one more reference.
 */
oar_tensor *oar_contiguous(oar_tape *tape, oar_tensor *a)
{
    if (oari_check_inputs("contiguous", tape, 1, &a) != OAR_OK)
        return NULL;
    if (oari_layout_is_rows(&a->at))
        return tape != NULL ? a : oar_tensor_retain(a);
    return oari_emit(
        tape, copy_rows(tape, a, a->at.shape),
        &(oari_node_record){ .op = &reshape_op, .inputs = 1, .input = { a } });
}
