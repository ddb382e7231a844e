/* SPDX-License-Identifier: Apache-2.0 */
/* op_softmax: softmax and its logarithm over one dim. Over another than the
 * last they are computed on the transposed view. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/status.h"
#include "tensor/operands.h"
#include "tensor/cpu/nn/nn_kernels.h"

/* An array with `dim` and its last dim exchanged. */
static oari_array dim_last(oari_array a, int dim)
{
    if (a.at.shape.ndim > 1)
        a.at = oari_layout_transpose(a.at, dim, a.at.shape.ndim - 1);
    return a;
}

static oar_status softmax_back(oari_node *node, int i, const oari_array *to,
                               int add);

static const oari_op_class softmax_op = { .name = "softmax",
                                          .backward = softmax_back,
                                          .in_place = 1 };
static const oari_op_class log_softmax_op = { .name = "log_softmax",
                                              .backward = softmax_back,
                                              .in_place = 1 };

static oar_status softmax_back(oari_node *node, int i, const oari_array *to,
                               int add)
{
    int dim = node->extra.dims.d0;
    oari_array grad = dim_last(oari_array_of(node->grad), dim);
    oari_array result = dim_last(oari_array_of(node->saved[0]), dim);
    oari_array into = dim_last(*to, dim);
    oari_operands operands = { .pool = &node->tape->pool };
    const oari_array *g = oari_operands_in(&operands, &grad);
    const oari_array *r = oari_operands_in(&operands, &result);
    const oari_array *y = oari_operands_out(&operands, &into, add);

    if (operands.status == OAR_OK && node->op == &softmax_op)
        operands.status = OARI_KERNEL(y, softmax_back, y, add, g, r);
    else if (operands.status == OAR_OK)
        operands.status = OARI_KERNEL(y, log_softmax_back, y, add, g, r);
    return oari_operands_finish(&operands);
}

/* Makes dim count from the start. A single number has one dim here, its last.
 */
static oar_status check_softmax(const char *name, oar_tape *tape, oar_tensor *a,
                                int *dim)
{
    OARI_TRY(oari_check_inputs(name, tape, 1, &a));
    OARI_TRY(oari_check_float(name, a));
    if (a->at.shape.ndim == 0 && (*dim == 0 || *dim == -1)) {
        *dim = 0;
        return OAR_OK;
    }
    if (oari_shape_dim(a->at.shape, dim))
        return OAR_OK;
    return oari_fail(OAR_E_ARG, "%s of %s: there is no dim %d", name,
                     oari_shape_text(a->at.shape).text, *dim);
}

static oar_tensor *softmax_over(oar_tape *tape, oar_tensor *a, int dim,
                                const oari_op_class *op)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *out;
    oari_array to, from;
    oari_operands operands = { .pool = pool };
    const oari_array *x, *y;

    if (check_softmax(op->name, tape, a, &dim) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(pool, oari_device_of(a), a->dtype, a->at.shape);
    if (out == NULL)
        return NULL;
    to = dim_last(oari_array_of(out), dim);
    from = dim_last(oari_array_of(a), dim);
    x = oari_operands_in(&operands, &from);
    y = oari_operands_out(&operands, &to, 0);
    if (operands.status == OAR_OK && op == &softmax_op)
        operands.status = OARI_KERNEL(y, softmax, y, x);
    else if (operands.status == OAR_OK)
        operands.status = OARI_KERNEL(y, log_softmax, y, x);
    if (oari_operands_finish(&operands) != OAR_OK) {
        oari_tensor_drop(pool, out);
        return NULL;
    }
    return oari_emit(tape, out,
                     &(oari_node_record){ .op = op,
                                          .inputs = 1,
                                          .input = { a },
                                          .saved = { out },
                                          .extra = { .dims = { dim, 0 } } });
}

oar_tensor *oar_softmax(oar_tape *tape, oar_tensor *a)
{
    return softmax_over(tape, a, -1, &softmax_op);
}

oar_tensor *oar_softmax_over(oar_tape *tape, oar_tensor *a, int dim)
{
    return softmax_over(tape, a, dim, &softmax_op);
}

oar_tensor *oar_log_softmax(oar_tape *tape, oar_tensor *a, int dim)
{
    return softmax_over(tape, a, dim, &log_softmax_op);
}
