/* SPDX-License-Identifier: Apache-2.0 */
/* op_math: arithmetic element by element, with broadcasting, and sums. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/status.h"
#include "tensor/kernels.h"

static oar_status check_pair(const char *name, oar_tape *tape, oar_tensor *a,
                             oar_tensor *b, oar_shape *shape)
{
    OARI_TRY(oari_check_inputs(name, tape, 2, (oar_tensor *[]){ a, b }));
    OARI_TRY(oari_check_same_dtype(name, a, b));
    OARI_TRY(oari_check_number(name, a));
    if (oari_shape_broadcast(a->at.shape, b->at.shape, shape))
        return OAR_OK;
    return oari_fail(
        OAR_E_SHAPE, "%s of %s and %s: the shapes do not broadcast", name,
        oari_shape_text(a->at.shape).text, oari_shape_text(b->at.shape).text);
}

/* ---- add ---------------------------------------------------------------- */

static oar_status add_back(oari_node *node, int i, const oari_array *to,
                           int add)
{
    oari_array grad = oari_array_of(node->grad);

    return oari_sum_to(&node->tape->pool, to, add, &grad);
}

static const oari_op add_op = { .name = "add",
                                .backward = add_back,
                                .in_place = 1 };

oar_tensor *oar_add(oar_tape *tape, oar_tensor *a, oar_tensor *b)
{
    oar_tensor *out;
    oari_array to, x, y;
    oar_shape shape;

    if (check_pair("add", tape, a, b, &shape) != OAR_OK)
        return NULL;
    out = oari_tensor_make(oari_tape_pool(tape), a->dtype, shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    x = oari_array_of(a);
    y = oari_array_of(b);
    oari_add(&to, 0, &x, &y);
    return oari_emit(
        tape, out,
        &(oari_recipe){ .op = &add_op, .inputs = 2, .input = { a, b } });
}

/* ---- mul ---------------------------------------------------------------- */

/* The gradient of one factor is the other times the result's, summed over what
 * was broadcast. */
static oar_status mul_back(oari_node *node, int i, const oari_array *to,
                           int add)
{
    oari_pool *pool = &node->tape->pool;
    oari_array grad = oari_array_of(node->grad), product;
    oari_array other = oari_array_of(node->saved[1 - i]);
    oar_tensor *scratch;
    oar_status status;

    if (oari_shape_equal(to->at.shape, grad.at.shape)) {
        oari_mul(to, add, &grad, &other);
        return OAR_OK;
    }
    scratch = oari_tensor_make(pool, grad.dtype, grad.at.shape);
    if (scratch == NULL)
        return OAR_E_NOMEM;
    product = oari_array_of(scratch);
    oari_mul(&product, 0, &grad, &other);
    status = oari_sum_to(pool, to, add, &product);
    oari_tensor_drop(pool, scratch);
    return status;
}

static const oari_op mul_op = { .name = "mul",
                                .backward = mul_back,
                                .in_place = 1 };

oar_tensor *oar_mul(oar_tape *tape, oar_tensor *a, oar_tensor *b)
{
    oar_tensor *out;
    oari_array to, x, y;
    oar_shape shape;

    if (check_pair("mul", tape, a, b, &shape) != OAR_OK)
        return NULL;
    out = oari_tensor_make(oari_tape_pool(tape), a->dtype, shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    x = oari_array_of(a);
    y = oari_array_of(b);
    oari_mul(&to, 0, &x, &y);
    return oari_emit(
        tape, out,
        &(oari_recipe){ .op = &mul_op,
                        .inputs = 2,
                        .input = { a, b },
                        .saved = { oari_wanted(tape, b) ? a : NULL,
                                   oari_wanted(tape, a) ? b : NULL } });
}

/* ---- scale -------------------------------------------------------------- */

static oar_status scale_back(oari_node *node, int i, const oari_array *to,
                             int add)
{
    oari_array grad = oari_array_of(node->grad);

    oari_scale(to, add, &grad, node->extra.factor);
    return OAR_OK;
}

static const oari_op scale_op = { .name = "scale",
                                  .backward = scale_back,
                                  .in_place = 1 };

oar_tensor *oar_scale(oar_tape *tape, oar_tensor *a, double factor)
{
    oar_tensor *out;
    oari_array to, from;

    if (oari_check_inputs("scale", tape, 1, &a) != OAR_OK ||
        oari_check_float("scale", a) != OAR_OK)
        return NULL;
    out = oari_tensor_make(oari_tape_pool(tape), a->dtype, a->at.shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    from = oari_array_of(a);
    oari_scale(&to, 0, &from, factor);
    return oari_emit(tape, out,
                     &(oari_recipe){ .op = &scale_op,
                                     .inputs = 1,
                                     .input = { a },
                                     .extra = { .factor = factor } });
}

/* ---- relu --------------------------------------------------------------- */

static oar_status relu_back(oari_node *node, int i, const oari_array *to,
                            int add)
{
    oari_array grad = oari_array_of(node->grad);
    oari_array result = oari_array_of(node->saved[0]);

    oari_relu_back(to, add, &grad, &result);
    return OAR_OK;
}

static const oari_op relu_op = { .name = "relu",
                                 .backward = relu_back,
                                 .in_place = 1 };

oar_tensor *oar_relu(oar_tape *tape, oar_tensor *a)
{
    oar_tensor *out;
    oari_array to, from;

    if (oari_check_inputs("relu", tape, 1, &a) != OAR_OK ||
        oari_check_number("relu", a) != OAR_OK)
        return NULL;
    out = oari_tensor_make(oari_tape_pool(tape), a->dtype, a->at.shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    from = oari_array_of(a);
    oari_relu(&to, &from);
    return oari_emit(
        tape, out,
        &(oari_recipe){
            .op = &relu_op, .inputs = 1, .input = { a }, .saved = { out } });
}

/* ---- sum and mean ------------------------------------------------------- */

/* Every element has the same share in the result. */
static oar_status sum_back(oari_node *node, int i, const oari_array *to,
                           int add)
{
    oari_array grad = oari_array_of(node->grad);

    oari_scale(to, add, &grad, node->extra.factor);
    return OAR_OK;
}

static const oari_op sum_op = { .name = "sum", .backward = sum_back };
static const oari_op mean_op = { .name = "mean", .backward = sum_back };

static oar_tensor *total(oar_tape *tape, oar_tensor *a, const oari_op *op,
                         double factor)
{
    oar_tensor *out =
        oari_tensor_make(oari_tape_pool(tape), a->dtype, OAR_SCALAR);
    oari_array to, from;

    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    from = oari_array_of(a);
    oari_sum_all(&to, &from, factor);
    return oari_emit(tape, out,
                     &(oari_recipe){ .op = op,
                                     .inputs = 1,
                                     .input = { a },
                                     .extra = { .factor = factor } });
}

oar_tensor *oar_sum(oar_tape *tape, oar_tensor *a)
{
    if (oari_check_inputs("sum", tape, 1, &a) != OAR_OK ||
        oari_check_number("sum", a) != OAR_OK)
        return NULL;
    return total(tape, a, &sum_op, 1);
}

oar_tensor *oar_mean(oar_tape *tape, oar_tensor *a)
{
    if (oari_check_inputs("mean", tape, 1, &a) != OAR_OK ||
        oari_check_float("mean", a) != OAR_OK)
        return NULL;
    return total(tape, a, &mean_op, 1.0 / (double)a->count);
}
