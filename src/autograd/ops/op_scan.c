/* SPDX-License-Identifier: Apache-2.0 */
/* op_scan: sums of everything up to a place; and dims in the opposite order. */
#include <oarsong/ops.h>

#include "autograd/ops/picked.h"
#include "base/dtype.h"
#include "base/status.h"
#include "tensor/cpu/arith.h"
#include "tensor/operands.h"

/* ---- cumsum -------------------------------------------------------------- */

/* An element is in every sum from its own place on. */
static oar_status cumsum_back(oari_node *node, int i, const oari_array *to,
                              int add)
{
    oari_operands operands = { .pool = &node->tape->pool };
    const oari_array *grad = oari_operands_tensor(&operands, node->grad);
    const oari_array *y = oari_operands_out(&operands, to, add);

    if (operands.status == OAR_OK)
        operands.status =
            OARI_KERNEL(y, cumsum, y, add, grad, node->extra.picked.dim, 1);
    return oari_operands_finish(&operands);
}

static const oari_op_class cumsum_op = { .name = "cumsum",
                                         .backward = cumsum_back };

oar_tensor *oar_cumsum(oar_tape *tape, oar_tensor *a, int dim)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *out;
    oari_array to, from;
    oari_operands operands = { .pool = pool };
    const oari_array *x = &to;
    const oari_array *y = &to;

    if (oari_check_dim("cumsum", tape, a, &dim) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(pool, oari_device_of(a),
                              a->dtype == OAR_BOOL ? OAR_I64 : a->dtype,
                              a->at.shape);
    if (out == NULL)
        return NULL;
    /* Integers are added up where the result will be; bools are i64 there. */
    to = oari_array_of(out);
    from = oari_array_of(a);
    if (oari_dtype_is_float(a->dtype)) {
        x = oari_operands_in(&operands, &from);
        y = oari_operands_out(&operands, &to, 0);
    } else {
        operands.status = OARI_KERNEL(&to, copy, &to, &from);
    }
    if (operands.status == OAR_OK)
        operands.status = OARI_KERNEL(y, cumsum, y, 0, x, dim, 0);
    if (oari_operands_finish(&operands) != OAR_OK) {
        oari_tensor_drop(pool, out);
        return NULL;
    }
    return oari_emit(tape, out,
                     &(oari_node_record){ .op = &cumsum_op,
                                          .inputs = 1,
                                          .input = { a },
                                          .extra = { .picked = { dim, 0 } } });
}

/* ---- flip ---------------------------------------------------------------- */

/* The same elements, these dims from their end; dims are in range. */
static oari_layout flipped(oari_layout at, oar_dims dims)
{
    for (int i = 0; i < dims.count; i++) {
        int dim = dims.dim[i];

        if (at.shape.dim[dim] > 0)
            at.offset += (at.shape.dim[dim] - 1) * at.stride[dim];
        at.stride[dim] = -at.stride[dim];
    }
    return at;
}

static oar_status flip_back(oari_node *node, int i, const oari_array *to,
                            int add)
{
    oari_array grad = oari_array_of(node->grad);

    grad.at = flipped(grad.at, node->extra.order);
    return OARI_KERNEL(to, scale, to, add, &grad, 1);
}

static const oari_op_class flip_op = { .name = "flip", .backward = flip_back };

/* Makes each dim count from the start; none listed: all. */
static oar_status check_flip(oar_tape *tape, oar_tensor *a, oar_dims *dims)
{
    int seen[OAR_MAX_DIMS] = { 0 };

    OARI_TRY(oari_check_inputs("flip", tape, 1, &a));
    if (dims->count < 0 || dims->count > OAR_MAX_DIMS)
        return oari_fail(OAR_E_ARG, "flip of %s over %d dims",
                         oari_shape_text(a->at.shape).text, dims->count);
    for (int i = 0; i < dims->count; i++) {
        OARI_TRY(oari_check_dim("flip", tape, a, &dims->dim[i]));
        if (seen[dims->dim[i]]++)
            return oari_fail(OAR_E_SHAPE,
                             "flip of dim %d of %s: it is listed twice",
                             dims->dim[i], oari_shape_text(a->at.shape).text);
    }
    if (dims->count > 0)
        return OAR_OK;
    dims->count = a->at.shape.ndim;
    for (int i = 0; i < dims->count; i++)
        dims->dim[i] = i;
    return OAR_OK;
}

oar_tensor *oar_flip(oar_tape *tape, oar_tensor *a, oar_dims dims)
{
    oar_tensor *out;
    oari_array to, from;

    if (check_flip(tape, a, &dims) != OAR_OK)
        return NULL;
    out = oari_tensor_make_on(oari_tape_pool(tape), oari_device_of(a), a->dtype,
                              a->at.shape);
    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    from = oari_array_of(a);
    from.at = flipped(from.at, dims);
    if (OARI_KERNEL(&to, copy, &to, &from) != OAR_OK)
        return oari_abandon(tape, out);
    return oari_emit(tape, out,
                     &(oari_node_record){ .op = &flip_op,
                                          .inputs = 1,
                                          .input = { a },
                                          .extra = { .order = dims } });
}
