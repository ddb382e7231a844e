/* SPDX-License-Identifier: Apache-2.0 */
/* op_conv_transpose: transposed convolution over the last two dims, or over the
 * last one: then x is planes of height 1. It is a convolution from its result
 * to x, backward. */
#include <limits.h>

#include <oarsong/ops.h>

#include "autograd/ops/op_conv.h"
#include "base/status.h"
#include "tensor/cpu/nn/conv.h"
#include "tensor/operands.h"

enum { X, WEIGHT, BIAS };

/* The convolution that goes from planes of shape `large` to those of shape
 * `small`. Its windows may leave some of the larger planes out. */
static oari_conv conv_of(const oari_extra *e, oar_shape large, oar_shape small)
{
    oari_conv c = oari_conv_of(e, large, small.dim[1]);

    small = oari_planes_shape(small);
    c.window.out_height = small.dim[2];
    c.window.out_width = small.dim[3];
    return c;
}

/* ---- backward ------------------------------------------------------------ */

/* The gradient of x or of weight; the other one was saved. */
static oar_status transpose_back(oari_node *node, int i, const oari_array *to,
                                 int add)
{
    oari_operands operands = { .pool = &node->tape->pool };
    const oari_array *g, *other, *y;
    oari_conv c;

    if (i == BIAS)
        return oari_conv_bias_back(node, to, add);
    other = oari_operands_tensor(&operands, node->saved[1 - i]);
    g = oari_operands_tensor(&operands, node->grad);
    y = oari_operands_out(&operands, to, add);
    c = conv_of(&node->extra, g->at.shape,
                i == X ? to->at.shape : other->at.shape);
    c.pool = operands.pool;
    c.x = g;
    c.y = i == X ? y : other;
    c.weight = i == X ? other : y;
    if (operands.status == OAR_OK)
        operands.status = i == X ? OARI_KERNEL(y, conv_forward, &c, add, NULL)
                                 : OARI_KERNEL(y, conv_back_weight, &c, add);
    return oari_operands_finish(&operands);
}

#define READS                                  \
    {                                          \
        1u << WEIGHT, 1u << X, OARI_READS_NONE \
    }
static const oari_op_class line_op = { .name = "conv_transpose1d",
                                       .backward = transpose_back,
                                       .widens = 1,
                                       .reads = READS };
static const oari_op_class plane_op = { .name = "conv_transpose2d",
                                        .backward = transpose_back,
                                        .widens = 1,
                                        .reads = READS };

/* ---- checks -------------------------------------------------------------- */

/* Of the options with their defaults. */
static oar_status check_opts(const char *name,
                             const oar_conv_transpose2d_opts *o)
{
    for (int i = 0; i < 2; i++) {
        int more = o->output_padding[i];
        const char *why = NULL;

        if (o->stride[i] < 0 || o->padding[i] < 0 || o->dilation[i] < 0 ||
            more < 0 || o->groups < 0)
            why = "none may be negative";
        else if (more >= o->stride[i] && more >= o->dilation[i])
            why = "the output padding is below the stride or the dilation";
        if (why != NULL)
            return oari_fail(OAR_E_ARG,
                             "%s with stride %d, padding %d, output padding "
                             "%d, dilation %d, groups %d: %s",
                             name, o->stride[i], o->padding[i], more,
                             o->dilation[i], o->groups, why);
    }
    return OAR_OK;
}

static oar_status check_shapes(const oari_conv_operands *in, int groups)
{
    const oar_shape *a = &in->x->at.shape, *b = &in->weight->at.shape;
    const oar_tensor *bias = in->bias;
    int dims = in->op == &line_op ? 3 : 4;

    if (a->ndim != dims || b->ndim != dims)
        return oari_conv_mismatch(in, dims == 3
                                          ? "x and weight have three dims"
                                          : "x and weight have four dims");
    if (b->dim[0] != a->dim[1] || a->dim[1] % groups != 0)
        return oari_conv_mismatch(
            in, "weight has as many rows as x has channels, which "
                "the groups divide");
    for (int i = 0; i < dims; i++)
        if (a->dim[i] > INT_MAX / 2 || b->dim[i] > INT_MAX / 2 / groups)
            return oari_conv_mismatch(in, "CBLAS counts in 32 bits");
    if (bias != NULL && (bias->at.shape.ndim != 1 ||
                         bias->at.shape.dim[0] != b->dim[1] * groups))
        return oari_conv_mismatch(
            in, "bias has as many as weight has columns, times the "
                "groups");
    for (int i = 2; i < dims; i++)
        if (a->dim[i] < 1 || b->dim[i] < 1)
            return oari_conv_mismatch(in, "the planes or the kernel are empty");
    return OAR_OK;
}

/* The shape of the result, for what has been checked. */
static oar_status result_shape(const oari_conv_operands *in,
                               const oar_conv_transpose2d_opts *o,
                               oar_shape *shape)
{
    const oar_shape *kernel = &in->weight->at.shape;

    *shape = in->x->at.shape;
    shape->dim[1] = kernel->dim[1] * o->groups;
    for (int i = 2; i < shape->ndim; i++) {
        int k = i - shape->ndim + 2; /* the last dim is the width */
        int64_t span = o->dilation[k] * (kernel->dim[i] - 1) + 1;

        shape->dim[i] = (shape->dim[i] - 1) * o->stride[k] -
                        2 * (int64_t)o->padding[k] + span +
                        o->output_padding[k];
        if (shape->dim[i] < 1 || shape->dim[i] > INT_MAX / 2)
            return oari_conv_mismatch(in, shape->dim[i] < 1
                                              ? "the padding leaves nothing"
                                              : "CBLAS counts in 32 bits");
    }
    return OAR_OK;
}

/* ---- forward ------------------------------------------------------------- */

static oar_tensor *conv_transpose(oar_tape *tape, const oari_conv_operands *in,
                                  oar_conv_transpose2d_opts *o)
{
    oari_extra extra;
    oar_shape shape;

    for (int i = 0; i < 2; i++) {
        o->stride[i] = o->stride[i] != 0 ? o->stride[i] : 1;
        o->dilation[i] = o->dilation[i] != 0 ? o->dilation[i] : 1;
    }
    o->groups = o->groups != 0 ? o->groups : 1;
    if (oari_conv_check(tape, in) != OAR_OK ||
        check_opts(in->op->name, o) != OAR_OK ||
        check_shapes(in, o->groups) != OAR_OK ||
        result_shape(in, o, &shape) != OAR_OK)
        return NULL;
    extra = oari_conv_extra(in, o->stride, o->padding, o->dilation, o->groups);
    return oari_conv_apply(tape, in,
                           oari_tensor_make_on(oari_tape_pool(tape),
                                               oari_device_of(in->x),
                                               in->x->dtype, shape),
                           conv_of(&extra, shape, in->x->at.shape), 1, &extra);
}

oar_tensor *oar_conv_transpose2d(oar_tape *tape, oar_tensor *x,
                                 oar_tensor *weight, oar_tensor *bias,
                                 const oar_conv_transpose2d_opts *opts)
{
    oar_conv_transpose2d_opts o;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return NULL;
    return conv_transpose(
        tape, &(oari_conv_operands){ &plane_op, x, weight, bias }, &o);
}

oar_tensor *oar_conv_transpose1d(oar_tape *tape, oar_tensor *x,
                                 oar_tensor *weight, oar_tensor *bias,
                                 const oar_conv_transpose1d_opts *opts)
{
    oar_conv_transpose1d_opts o;
    oar_conv_transpose2d_opts planes = { .size = sizeof planes };

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return NULL;
    planes.stride[1] = o.stride;
    planes.padding[1] = o.padding;
    planes.output_padding[1] = o.output_padding;
    planes.dilation[1] = o.dilation;
    planes.groups = o.groups;
    return conv_transpose(
        tape, &(oari_conv_operands){ &line_op, x, weight, bias }, &planes);
}
