/* SPDX-License-Identifier: Apache-2.0 */
/* op_adaptive_pool: means under as many windows as are asked for, over the last
 * two dims or the last one: then x is planes of height 1. */
#include <oarsong/ops.h>

#include "autograd/record.h"
#include "base/status.h"
#include "tensor/cpu/nn/conv.h"
#include "tensor/operands.h"

/* From planes of shape x to those of shape y. */
static oari_window window_of(oar_shape x, oar_shape y)
{
    x = oari_planes_shape(x);
    y = oari_planes_shape(y);
    return (oari_window){ .height = x.dim[2],
                          .width = x.dim[3],
                          .out_height = y.dim[2],
                          .out_width = y.dim[3] };
}

static oar_status pool_back(oari_node *node, int i, const oari_array *to,
                            int add)
{
    oari_window w = window_of(to->at.shape, node->out->at.shape);
    oari_operands operands = { .pool = &node->tape->pool };
    const oari_array *g = oari_operands_tensor(&operands, node->grad);
    const oari_array *y = oari_operands_out(&operands, to, add);

    if (operands.status == OAR_OK)
        operands.status = OARI_KERNEL(y, adaptive_avg_pool_back, y, add, g, &w);
    return oari_operands_finish(&operands);
}

static const oari_op_class line_op = { .name = "adaptive_avg_pool1d",
                                       .backward = pool_back };
static const oari_op_class plane_op = { .name = "adaptive_avg_pool2d",
                                        .backward = pool_back };

/* size: of the result, for each dim behind the channels. */
static oar_status check_pool(oar_tape *tape, const oari_op_class *op,
                             oar_tensor *x, int dims, const int *size)
{
    OARI_TRY(oari_check_inputs(op->name, tape, 1, &x));
    OARI_TRY(oari_check_float(op->name, x));
    if (x->at.shape.ndim != 2 + dims)
        return oari_fail(OAR_E_SHAPE, "%s of %s: it is %s", op->name,
                         oari_shape_text(x->at.shape).text,
                         dims == 1 ? "[n, c, length]" : "[n, c, h, w]");
    for (int i = 0; i < dims; i++) {
        if (size[i] < 1)
            return oari_fail(OAR_E_ARG,
                             "%s of %s to a side of %d: at least one", op->name,
                             oari_shape_text(x->at.shape).text, size[i]);
        if (x->at.shape.dim[2 + i] < 1)
            return oari_fail(OAR_E_SHAPE, "%s of %s: dim %d has no elements",
                             op->name, oari_shape_text(x->at.shape).text,
                             2 + i);
    }
    return OAR_OK;
}

static oar_tensor *adaptive_avg_pool(oar_tape *tape, const oari_op_class *op,
                                     oar_tensor *x, int dims, const int *size)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *out;
    oar_shape shape;
    oari_window w;
    oari_array to;
    oari_operands operands = { .pool = pool };
    const oari_array *a, *y;

    if (check_pool(tape, op, x, dims, size) != OAR_OK)
        return NULL;
    shape = x->at.shape;
    for (int i = 0; i < dims; i++)
        shape.dim[2 + i] = size[i];
    out = oari_tensor_make_on(pool, oari_device_of(x), x->dtype, shape);
    if (out == NULL)
        return NULL;
    w = window_of(x->at.shape, out->at.shape);
    to = oari_array_of(out);
    a = oari_operands_tensor(&operands, x);
    y = oari_operands_out(&operands, &to, 0);
    if (operands.status == OAR_OK)
        operands.status = OARI_KERNEL(y, adaptive_avg_pool, y, a, &w);
    if (oari_operands_finish(&operands) != OAR_OK) {
        oari_tensor_drop(pool, out);
        return NULL;
    }
    return oari_emit(
        tape, out,
        &(oari_node_record){ .op = op, .inputs = 1, .input = { x } });
}

oar_tensor *oar_adaptive_avg_pool1d(oar_tape *tape, oar_tensor *x, int length)
{
    return adaptive_avg_pool(tape, &line_op, x, 1, &length);
}

oar_tensor *oar_adaptive_avg_pool2d(oar_tape *tape, oar_tensor *x, int height,
                                    int width)
{
    return adaptive_avg_pool(tape, &plane_op, x, 2,
                             (const int[]){ height, width });
}
