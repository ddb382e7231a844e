/* SPDX-License-Identifier: Apache-2.0 */
/* unit/nn_gradcheck_cases.h: the operations of layers on odd, strided, single
 * and empty shapes, for the tests that compare their gradients with differences
 * of their values. For tests, one file each. */
#ifndef OARI_TESTS_NN_GRADCHECK_CASES_H
#define OARI_TESTS_NN_GRADCHECK_CASES_H

#include "unit/gradcheck.h"

/* ---- views and other inputs ---------------------------------------------- */

static oar_tensor *t(oar_tape *tape, oar_tensor *a)
{
    return oar_transpose(tape, a, 0, 1);
}

/* Every second element of the last dim, and dims 0 and 1 swapped. */
static oar_tensor *gaps(oar_tape *tape, oar_tensor *a)
{
    oar_shape s = oar_tensor_shape(a);
    oar_tensor *view;

    s.dim[s.ndim - 1] /= 2;
    s.dim[s.ndim++] = 2;
    view = oar_narrow(tape, oar_reshape(tape, a, s), -1, 1, 1);
    s.ndim--;
    return t(tape, oar_reshape(tape, view, s));
}

static oar_tensor *index_for(oar_tape *tape, const oar_tensor *table)
{
    const int64_t number[] = { 2, 0, 2, 4, 2, 1 };

    return beside(tape, oar_from_data(tape, OAR_I64, OAR_SHAPE(2, 3), number),
                  table);
}

static oar_tensor *cross(oar_tape *tape, oar_tensor *logits)
{
    oar_cross_entropy_opts o = oar_cross_entropy_opts_init();

    o.has_ignore = 1;
    o.ignore = 0; /* the targets of rows 0 and, with 5 classes, all */
    o.label_smoothing = 0.1;
    return oar_cross_entropy_with(tape, logits, gradcheck_targets(tape, logits),
                                  &o);
}

static oar_tensor *attend(oar_tape *tape, oar_tensor *q, oar_tensor *k,
                          oar_tensor *v, int causal, double scale)
{
    oar_attention_opts o = oar_attention_opts_init();

    o.causal = causal;
    o.scale = scale;
    return oar_attention(tape, q, k, v, &o);
}

static oar_tensor *conv(oar_tape *tape, oar_tensor *const *in, int stride,
                        int padding, int dilation, int groups)
{
    oar_conv2d_opts o = oar_conv2d_opts_init();

    o.stride[0] = stride;
    o.stride[1] = stride + 1;
    o.padding[0] = padding;
    o.padding[1] = 1;
    o.dilation[1] = dilation;
    o.groups = groups;
    return oar_conv2d(tape, in[0], in[1], in[2], &o);
}

static oar_tensor *pool(oar_tape *tape, oar_tensor *x, int is_max)
{
    oar_pool2d_opts o = oar_pool2d_opts_init();

    o.stride[0] = 2;
    o.stride[1] = 1;
    o.padding[0] = 1;
    return is_max ? oar_max_pool2d(tape, x, 3, 2, &o)
                  : oar_avg_pool2d(tape, x, 3, 2, &o);
}

static oar_tensor *running(oar_tape *tape, const oar_tensor *x, double value)
{
    oar_shape shape = OAR_SHAPE(oar_tensor_shape(x).dim[1]);

    return beside(tape, oar_full(tape, OAR_F64, shape, value), x);
}

/* ---- what is checked ----------------------------------------------------- */

OP(linear, oar_linear(tape, in[0], in[1], in[2]))
OP(softmax_0, oar_softmax_over(tape, in[0], 0))
OP(softmax_1, oar_softmax_over(tape, in[0], -2))
OP(softmax_last, oar_softmax(tape, gaps(tape, in[0])))
OP(log_softmax, oar_log_softmax(tape, in[0], -1))
OP(log_softmax_0, oar_log_softmax(tape, gaps(tape, in[0]), 0))
OP(entropy, oar_cross_entropy(tape, in[0], gradcheck_targets(tape, in[0])))
OP(entropy_view, oar_cross_entropy(tape, t(tape, in[0]),
                                   gradcheck_targets(tape, t(tape, in[0]))))
OP(entropy_with, cross(tape, in[0]))
OP(mse, oar_mse(tape, in[0], in[1]))
OP(mse_view, oar_mse(tape, t(tape, in[0]), in[1]))
OP(dropout, oar_dropout(tape, in[0], 0.4, 5))
OP(dropout_view, oar_dropout(tape, gaps(tape, in[0]), 0.4, 5))
OP(layer_norm, oar_layer_norm(tape, in[0], in[1], in[2], 1e-3))
OP(layer_norm_bare, oar_layer_norm(tape, in[0], NULL, NULL, 1e-3))
OP(layer_norm_view, oar_layer_norm(tape, gaps(tape, in[0]), in[1], in[2], 1e-3))
OP(rms_norm, oar_rms_norm(tape, in[0], in[1], 1e-3))
OP(rms_norm_bare, oar_rms_norm(tape, gaps(tape, in[0]), NULL, 1e-3))
OP(batch_norm,
   oar_batch_norm(tape, in[0], in[1], in[2], NULL, NULL, 1, 0.1, 1e-3))
OP(batch_norm_view, oar_batch_norm(tape, gaps(tape, in[0]), in[1], in[2], NULL,
                                   NULL, 1, 0.1, 1e-3))
OP(batch_norm_bare,
   oar_batch_norm(tape, in[0], NULL, NULL, NULL, NULL, 1, 0.1, 1e-3))
OP(batch_norm_fixed,
   oar_batch_norm(tape, in[0], in[1], in[2], running(tape, in[0], 0.3),
                  running(tape, in[0], 1.7), 0, 0.1, 1e-3))
OP(conv_plain, oar_conv2d(tape, in[0], in[1], in[2], NULL))
OP(conv_point, oar_conv2d(tape, in[0], in[1], in[2],
                          OAR_OPTS(oar_conv2d_opts, .groups = 2)))
OP(conv_strided, conv(tape, in, 2, 2, 2, 0))
OP(conv_groups, conv(tape, in, 1, 0, 1, 3))
OP(conv_view, oar_conv2d(tape, t(tape, in[0]), gaps(tape, in[1]), NULL, NULL))
OP(max_pool, oar_max_pool2d(tape, in[0], 2, 2, NULL))
OP(max_pool_padded, pool(tape, in[0], 1))
OP(avg_pool, oar_avg_pool2d(tape, gaps(tape, in[0]), 2, 3, NULL))
OP(avg_pool_padded, pool(tape, in[0], 0))
OP(embedding, oar_embedding(tape, in[0], index_for(tape, in[0])))
OP(embedding_view,
   oar_embedding(tape, t(tape, in[0]), t(tape, index_for(tape, in[0]))))
OP(rotary, oar_rotary(tape, in[0], 3, 100))
OP(rotary_view, oar_rotary(tape, gaps(tape, in[0]), 0, 100))
OP(attention, oar_attention(tape, in[0], in[1], in[2], NULL))
OP(attention_causal, attend(tape, in[0], in[1], in[2], 1, 0.7))
OP(attention_view,
   attend(tape, t(tape, in[0]), t(tape, in[1]), t(tape, in[2]), 1, 0))
OP(attention_gaps,
   attend(tape, gaps(tape, in[0]), gaps(tape, in[1]), gaps(tape, in[2]), 0, 0))
OP(attention_self, attend(tape, in[0], in[0], in[0], 1, 0))

static const gradcheck checks[] = {
    { "linear", linear, { S(2, 5, 7), S(3, 7), S(3) } },
    { "softmax over 0", softmax_0, { S(3, 5, 2), END } },
    { "softmax over 1", softmax_1, { S(3, 5, 2), END } },
    { "softmax number", softmax_0, { NUMBER, END } },
    { "softmax nothing", softmax_0, { S(0, 3), END } },
    { "softmax last", softmax_last, { S(3, 5, 14), END } },
    { "log softmax", log_softmax, { S(3, 19), END } },
    { "log softmax over 0", log_softmax_0, { S(3, 5, 4), END } },
    { "cross entropy", entropy, { S(7, 19), END } },
    { "cross entropy view", entropy_view, { S(3, 5), END } },
    { "cross entropy with", entropy_with, { S(7, 3), END } },
    { "mse", mse, { S(3, 5), S(3, 5), END } },
    { "mse number", mse, { NUMBER, NUMBER, END } },
    { "mse view", mse_view, { S(3, 5), S(5, 3), END } },
    { "dropout", dropout, { S(3, 11), END } },
    { "dropout nothing", dropout, { S(3, 0), END } },
    { "dropout view", dropout_view, { S(3, 5, 4), END } },
    { "layer norm", layer_norm, { S(3, 5, 19), S(19), S(19) } },
    { "layer norm many", layer_norm, { S(35, 3), S(3), S(3) } },
    { "layer norm of one", layer_norm, { S(3, 1), S(1), S(1) } },
    { "layer norm nothing", layer_norm, { S(0, 5), S(5), S(5) } },
    { "layer norm bare", layer_norm_bare, { S(3, 7), END } },
    { "layer norm view", layer_norm_view, { S(2, 3, 10), S(5), S(5) } },
    { "rms norm", rms_norm, { S(3, 5, 7), S(7), END } },
    { "rms norm bare", rms_norm_bare, { S(3, 2, 10), END } },
    { "batch norm", batch_norm, { S(3, 5, 2, 3), S(5), S(5) } },
    { "batch norm flat", batch_norm, { S(7, 3), S(3), S(3) } },
    { "batch norm flat bare", batch_norm_bare, { S(5, 3), END } },
    { "batch norm flat view", batch_norm_view, { S(3, 14), S(3), S(3) } },
    { "batch norm flat fixed", batch_norm_fixed, { S(5, 3), S(3), S(3) } },
    { "batch norm flat nothing", batch_norm, { S(0, 3), S(3), S(3) } },
    { "batch norm one", batch_norm, { S(1, 2, 3), S(2), S(2) } },
    { "batch norm nothing", batch_norm, { S(0, 2, 3), S(2), S(2) } },
    { "batch norm view", batch_norm_view, { S(3, 2, 4), S(3), S(3) } },
    { "batch norm bare", batch_norm_bare, { S(2, 3, 5), END } },
    { "batch norm fixed", batch_norm_fixed, { S(2, 3, 5), S(3), S(3) } },
    { "conv", conv_plain, { S(2, 3, 5, 4), S(4, 3, 3, 2), S(4) } },
    { "conv 1x1", conv_plain, { S(2, 3, 5, 4), S(2, 3, 1, 1), S(2) } },
    { "conv 1x1 groups", conv_point, { S(2, 4, 3, 5), S(6, 2, 1, 1), S(6) } },
    { "conv 1x1 view", conv_view, { S(2, 3, 4, 5), S(2, 3, 1, 2), END } },
    { "conv 1x1 nothing", conv_plain, { S(0, 2, 3, 1), S(3, 2, 1, 1), S(3) } },
    { "conv of one", conv_plain, { S(1, 1, 1, 1), S(1, 1, 1, 1), S(1) } },
    { "conv nothing", conv_plain, { S(0, 1, 3, 3), S(1, 1, 2, 2), S(1) } },
    { "conv strided", conv_strided, { S(2, 2, 7, 6), S(3, 2, 3, 2), S(3) } },
    { "conv groups", conv_groups, { S(2, 3, 5, 4), S(6, 1, 2, 3), S(6) } },
    { "conv view", conv_view, { S(2, 3, 4, 5), S(2, 3, 2, 4), END } },
    { "max pool", max_pool, { S(2, 3, 5, 4), END } },
    { "max pool padded", max_pool_padded, { S(1, 2, 5, 7), END } },
    { "max pool nothing", max_pool, { S(0, 2, 4, 4), END } },
    { "avg pool", avg_pool, { S(2, 3, 5, 14), END } },
    { "avg pool padded", avg_pool_padded, { S(1, 2, 5, 7), END } },
    { "embedding", embedding, { S(5, 3), END } },
    { "embedding view", embedding_view, { S(3, 5), END } },
    { "rotary", rotary, { S(2, 5, 6), END } },
    { "rotary nothing", rotary, { S(2, 0, 6), END } },
    { "rotary view", rotary_view, { S(3, 2, 8), END } },
    { "attention", attention, { S(2, 3, 5), S(2, 7, 5), S(2, 7, 4) } },
    { "attention flat", attention, { S(3, 5), S(7, 5), S(7, 2) } },
    { "attention of one", attention, { S(1, 1), S(1, 1), S(1, 1) } },
    { "attention empty", attention, { S(0, 3, 5), S(0, 2, 5), S(0, 2, 4) } },
    { "attention no rows", attention, { S(2, 0, 5), S(2, 3, 5), S(2, 3, 1) } },
    { "attention no keys", attention, { S(2, 3, 5), S(2, 0, 5), S(2, 0, 1) } },
    { "attention causal",
      attention_causal,
      { S(2, 5, 3), S(2, 5, 3), S(2, 5, 2) } },
    { "attention causal long",
      attention_causal,
      { S(1, 7, 2), S(1, 4, 2), S(1, 4, 3) } },
    { "attention causal wide",
      attention_causal,
      { S(1, 3, 2), S(1, 6, 2), S(1, 6, 3) } },
    { "attention blocks",
      attention_causal,
      { S(1, 67, 2), S(1, 67, 2), S(1, 67, 1) } },
    { "attention view",
      attention_view,
      { S(5, 2, 3), S(4, 2, 3), S(4, 2, 2) } },
    { "attention gaps",
      attention_gaps,
      { S(5, 2, 6), S(4, 2, 6), S(4, 2, 4) } },
    { "attention deep",
      attention,
      { S(2, 1, 2, 3, 2), S(2, 1, 2, 2, 2), S(2, 1, 2, 2, 2) } },
    { "attention self", attention_self, { S(2, 5, 4), END } },
};

enum { CHECKS = sizeof checks / sizeof *checks };

#endif
