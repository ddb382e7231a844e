/* SPDX-License-Identifier: Apache-2.0 */
/* op_rotary: positions as angles. Backward turns the other way. */
#include <oarsong/ops.h>

#include "autograd/ops/packed.h"
#include "autograd/record.h"
#include "base/status.h"
#include "tensor/operands.h"
#include "tensor/cpu/nn/nn_kernels.h"

/* An array [.., t, heads d] as [.., t, heads, d]. Row-major. */
static oari_array with_heads(oari_array a, int64_t heads)
{
    oar_shape s = a.at.shape;
    int64_t offset = a.at.offset;
    int64_t width = s.dim[s.ndim - 1] / heads, t = s.dim[s.ndim - 2], outer = 1;

    for (int i = 0; i < s.ndim - 2; i++)
        outer *= s.dim[i];
    a.at = oari_layout_rows(OAR_SHAPE(outer, t, heads, width));
    a.at.offset = offset;
    return a;
}

/* to (+)= from, turned by the angles of its positions, or back. */
static oar_status rotate_heads(oari_pool *pool, const oari_array *to, int add,
                               const oari_array *from, const oari_extra *extra,
                               int back)
{
    const oar_shape *s = &from->at.shape;
    int64_t heads = extra->rotary.heads;
    oari_operands operands = { .pool = pool };
    const oari_array *in = oari_operands_in(&operands, from);
    const oari_array *out = oari_operands_out(&operands, to, add);
    void *scratch = oari_operands_scratch(
        &operands, from->device, oari_work_dtype(from->dtype),
        s->dim[s->ndim - 2] * s->dim[s->ndim - 1]);
    oari_array x, y, angle;

    if (operands.status == OAR_OK) {
        x = with_heads(*in, heads);
        y = with_heads(*out, heads);
        angle = (oari_array){ scratch, oari_work_dtype(x.dtype),
                              oari_layout_rows(OAR_SHAPE(x.at.shape.dim[1],
                                                         x.at.shape.dim[3])),
                              x.device };
        operands.status = OARI_KERNEL(&angle, rotary_angles, &angle,
                                      extra->rotary.first, extra->rotary.base);
        if (operands.status == OAR_OK)
            operands.status = OARI_KERNEL(&y, rotary, &y, add, &x, &angle,
                                          extra->rotary.turned, back);
    }
    return oari_operands_finish(&operands);
}

static oar_status rotary_back(oari_node *node, int i, const oari_array *to,
                              int add)
{
    oari_array grad = oari_array_of(node->grad);

    return rotate_heads(&node->tape->pool, to, add, &grad, &node->extra, 1);
}

static const oari_op_class rotary_op = { .name = "rotary",
                                         .backward = rotary_back,
                                         .in_place = 1 };

static oar_tensor *record_rotary(oar_tape *tape, oar_tensor *x,
                                 oari_extra extra)
{
    oari_pool *pool = oari_tape_pool(tape);
    oar_tensor *out =
        oari_tensor_make_on(pool, oari_device_of(x), x->dtype, x->at.shape);
    oari_array to, from = oari_array_of(x);

    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    if (rotate_heads(pool, &to, 0, &from, &extra, 0) != OAR_OK) {
        oari_tensor_drop(pool, out);
        return NULL;
    }
    return oari_emit(
        tape, out,
        &(oari_node_record){
            .op = &rotary_op, .inputs = 1, .input = { x }, .extra = extra });
}

static oar_status check_rotary(oar_tape *tape, oar_tensor *x, int64_t parts,
                               double base)
{
    oar_shape s = oar_tensor_shape(x);

    OARI_TRY(oari_check_inputs("rotary", tape, 1, &x));
    OARI_TRY(oari_check_float("rotary", x));
    if (s.ndim < 2 || s.dim[s.ndim - 1] % (2 * parts) != 0)
        return oari_fail(OAR_E_SHAPE,
                         "rotary of %s: it is [.., t, d] with an "
                         "even d",
                         oari_shape_text(s).text);
    if (base > 0)
        return OAR_OK;
    return oari_fail(OAR_E_ARG, "rotary of %s with base %g: it is above 0",
                     oari_shape_text(s).text, base);
}

oar_tensor *oar_rotary(oar_tape *tape, oar_tensor *x, int64_t first,
                       double base)
{
    if (check_rotary(tape, x, 1, base) != OAR_OK)
        return NULL;
    return record_rotary(tape, x,
                         (oari_extra){ .rotary = { .base = base,
                                                   .first = first,
                                                   .heads = 1,
                                                   .turned = 1 } });
}

oar_tensor *oari_packed_rotary(oar_tape *tape, oar_tensor *qkv, int heads,
                               int kv_heads, double base)
{
    int all = heads + 2 * kv_heads;

    if (check_rotary(tape, qkv, all, base) != OAR_OK)
        return NULL;
    return record_rotary(
        tape, qkv,
        (oari_extra){ .rotary = { .base = base,
                                  .heads = all,
                                  .turned = heads + kv_heads } });
}
