/* SPDX-License-Identifier: Apache-2.0 */
/* op_conv: convolution over the last two dims, or over the last one: then x is
 * planes of height 1. */
#include <limits.h>

#include <oarsong/ops.h>

#include "autograd/ops/op_conv.h"
#include "autograd/ops/windows.h"
#include "base/status.h"
#include "tensor/cpu/nn/conv.h"
#include "tensor/operands.h"
#include "tensor/cpu/nn/nn_kernels.h"

enum { X, WEIGHT, BIAS };

/* ---- options ------------------------------------------------------------- */

static int or_one(int option)
{
    return option != 0 ? option : 1;
}

oari_extra oari_conv_extra(const oari_conv_operands *in, const int *stride,
                           const int *padding, const int *dilation, int groups)
{
    oar_shape shape = oari_planes_shape(in->weight->at.shape);
    oari_extra e = { .window = { .groups = or_one(groups) } };

    for (int i = 0; i < 2; i++) {
        e.window.kernel[i] = (int)shape.dim[2 + i];
        e.window.stride[i] = or_one(stride[i]);
        e.window.padding[i] = padding[i];
        e.window.dilation[i] = or_one(dilation[i]);
    }
    return e;
}

oari_conv oari_conv_of(const oari_extra *e, oar_shape x, int64_t out)
{
    oari_conv c = { .images = x.dim[0],
                    .in = x.dim[1],
                    .out = out,
                    .groups = e->window.groups };

    x = oari_planes_shape(x);
    for (int i = 0; i < 2; i++) {
        c.window.kernel[i] = e->window.kernel[i];
        c.window.stride[i] = e->window.stride[i];
        c.window.padding[i] = e->window.padding[i];
        c.window.dilation[i] = e->window.dilation[i];
    }
    oari_window_fit(&c.window, x.dim[2], x.dim[3]);
    return c;
}

/* ---- backward ------------------------------------------------------------ */

oar_status oari_conv_bias_back(oari_node *node, const oari_array *to, int add)
{
    oari_operands operands = { .pool = &node->tape->pool };
    const oari_array *g = oari_operands_tensor(&operands, node->grad);
    const oari_array *y = oari_operands_out(&operands, to, add);

    if (operands.status == OAR_OK)
        operands.status = OARI_KERNEL(y, sum_channels, y, add, g);
    return oari_operands_finish(&operands);
}

/* The gradient of x or of weight; the other one was saved. */
static oar_status conv_back(oari_node *node, int i, const oari_array *to,
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
    c = oari_conv_of(&node->extra, i == X ? to->at.shape : other->at.shape,
                     node->out->at.shape.dim[1]);
    c.pool = operands.pool;
    c.y = g;
    c.x = i == X ? y : other;
    c.weight = i == X ? other : y;
    if (operands.status == OAR_OK)
        operands.status = i == X ? OARI_KERNEL(y, conv_back_input, &c, add)
                                 : OARI_KERNEL(y, conv_back_weight, &c, add);
    return oari_operands_finish(&operands);
}

#define READS                                  \
    {                                          \
        1u << WEIGHT, 1u << X, OARI_READS_NONE \
    }
static const oari_op_class conv1d_op = {
    .name = "conv1d", .backward = conv_back, .widens = 1, .reads = READS
};
static const oari_op_class conv2d_op = {
    .name = "conv2d", .backward = conv_back, .widens = 1, .reads = READS
};

/* ---- checks -------------------------------------------------------------- */

oar_status oari_conv_mismatch(const oari_conv_operands *in, const char *why)
{
    const oar_tensor *bias = in->bias;

    return oari_fail(OAR_E_SHAPE, "%s of x %s, weight %s, bias %s: %s",
                     in->op->name, oari_shape_text(in->x->at.shape).text,
                     oari_shape_text(in->weight->at.shape).text,
                     bias ? oari_shape_text(bias->at.shape).text : "none", why);
}

oar_status oari_conv_check(oar_tape *tape, const oari_conv_operands *in)
{
    const char *name = in->op->name;
    oar_tensor *all[] = { in->x, in->weight, in->bias };

    OARI_TRY(oari_check_inputs(name, tape, in->bias != NULL ? 3 : 2, all));
    OARI_TRY(oari_check_same_dtype(name, in->x, in->weight));
    if (in->bias != NULL)
        OARI_TRY(oari_check_same_dtype(name, in->x, in->bias));
    return oari_check_float(name, in->x);
}

oar_status oari_check_conv_opts(const char *name, const oar_conv2d_opts *opts)
{
    for (int i = 0; i < 2; i++)
        if (opts->stride[i] < 0 || opts->padding[i] < 0 ||
            opts->dilation[i] < 0 || opts->groups < 0)
            return oari_fail(OAR_E_ARG,
                             "%s with stride %d, padding %d, dilation %d, "
                             "groups %d: none may be negative",
                             name, or_one(opts->stride[i]), opts->padding[i],
                             or_one(opts->dilation[i]), or_one(opts->groups));
    return OAR_OK;
}

static oar_status check_shapes(const oari_conv_operands *in, int groups)
{
    const oar_shape *a = &in->x->at.shape, *b = &in->weight->at.shape;
    const oar_tensor *bias = in->bias;
    int dims = in->op == &conv1d_op ? 3 : 4;

    if (a->ndim != dims || b->ndim != dims)
        return oari_conv_mismatch(in, dims == 3
                                          ? "x and weight have three dims"
                                          : "x and weight have four dims");
    if (a->dim[1] % groups != 0 || a->dim[1] / groups != b->dim[1] ||
        b->dim[0] % groups != 0)
        return oari_conv_mismatch(
            in, "the channels of x are weight's times the groups, "
                "which divide the results");
    if (bias != NULL &&
        (bias->at.shape.ndim != 1 || bias->at.shape.dim[0] != b->dim[0]))
        return oari_conv_mismatch(in, "bias has as many as weight has rows");
    for (int i = 0; i < dims; i++)
        if (a->dim[i] > INT_MAX / 2 || b->dim[i] > INT_MAX / 2)
            return oari_conv_mismatch(in, "CBLAS counts in 32 bits");
    if (b->dim[2] < 1 || b->dim[dims - 1] < 1)
        return oari_conv_mismatch(in, "the kernel is empty");
    return OAR_OK;
}

/* ---- forward ------------------------------------------------------------- */

oar_tensor *oari_conv_apply(oar_tape *tape, const oari_conv_operands *in,
                            oar_tensor *out, oari_conv c, int transposed,
                            const oari_extra *extra)
{
    oari_pool *pool = oari_tape_pool(tape);
    oari_operands operands = { .pool = pool };
    const oari_array *x, *w, *b, *y;
    oari_array to;

    if (out == NULL)
        return NULL;
    to = oari_array_of(out);
    x = oari_operands_tensor(&operands, in->x);
    w = oari_operands_tensor(&operands, in->weight);
    b = oari_operands_tensor(&operands, in->bias);
    y = oari_operands_out(&operands, &to, 0);
    c.pool = pool;
    c.x = transposed ? y : x;
    c.weight = w;
    c.y = transposed ? x : y;
    if (operands.status == OAR_OK)
        operands.status = transposed ? OARI_KERNEL(y, conv_transpose, &c, b)
                                     : OARI_KERNEL(y, conv_forward, &c, 0, b);
    if (oari_operands_finish(&operands) != OAR_OK) {
        oari_tensor_drop(pool, out);
        return NULL;
    }
    return oari_emit(
        tape, out,
        &(oari_node_record){
            .op = in->op,
            .inputs = 3,
            .input = { in->x, in->weight, in->bias },
            .saved = { oari_grad_wanted(tape, in->weight) ? in->x : NULL,
                       oari_grad_wanted(tape, in->x) ? in->weight : NULL },
            .extra = *extra });
}

static oar_tensor *conv(oar_tape *tape, const oari_conv_operands *in,
                        const oar_conv2d_opts *o)
{
    int is_line = in->op == &conv1d_op;
    oari_extra extra;
    oar_shape shape;
    oari_conv c;

    if (oari_conv_check(tape, in) != OAR_OK ||
        oari_check_conv_opts(in->op->name, o) != OAR_OK ||
        check_shapes(in, or_one(o->groups)) != OAR_OK)
        return NULL;
    extra = oari_conv_extra(in, o->stride, o->padding, o->dilation, o->groups);
    c = oari_conv_of(&extra, in->x->at.shape, in->weight->at.shape.dim[0]);
    if (c.window.out_height < 1 || c.window.out_width < 1) {
        oari_conv_mismatch(in, is_line ? "the kernel is longer than the row"
                                       : "the kernel is larger than the image");
        return NULL;
    }
    shape = is_line ? OAR_SHAPE(c.images, c.out, c.window.out_width)
                    : OAR_SHAPE(c.images, c.out, c.window.out_height,
                                c.window.out_width);
    return oari_conv_apply(tape, in,
                           oari_tensor_make_on(oari_tape_pool(tape),
                                               oari_device_of(in->x),
                                               in->x->dtype, shape),
                           c, 0, &extra);
}

oar_tensor *oar_conv2d(oar_tape *tape, oar_tensor *x, oar_tensor *weight,
                       oar_tensor *bias, const oar_conv2d_opts *opts)
{
    oar_conv2d_opts o;

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return NULL;
    return conv(tape, &(oari_conv_operands){ &conv2d_op, x, weight, bias }, &o);
}

oar_tensor *oar_conv1d(oar_tape *tape, oar_tensor *x, oar_tensor *weight,
                       oar_tensor *bias, const oar_conv1d_opts *opts)
{
    oar_conv1d_opts o;
    oar_conv2d_opts planes = { .size = sizeof planes };

    if (oari_opts_read(&o, sizeof o, opts) != OAR_OK)
        return NULL;
    planes.stride[1] = o.stride;
    planes.padding[1] = o.padding;
    planes.dilation[1] = o.dilation;
    planes.groups = o.groups;
    return conv(tape, &(oari_conv_operands){ &conv1d_op, x, weight, bias },
                &planes);
}
