/* SPDX-License-Identifier: Apache-2.0 */
/* nn_cases.h: the operations of layers with the inputs that make_nn.py gave
 * them, for the tests that go through all of them. For tests, one file each. */
#ifndef OARI_TESTS_NN_CASES_H
#define OARI_TESTS_NN_CASES_H

#include <oarsong/ops.h>

#include "golden/golden.h"

#define NN_CASE(name, expression)                                       \
    static oar_tensor *nn_##name(oar_tape *tape, oar_tensor *const *in) \
    {                                                                   \
        return expression;                                              \
    }

static oar_tensor *nn_cross_entropy_with(oar_tape *tape, oar_tensor *const *in)
{
    oar_cross_entropy_opts o = oar_cross_entropy_opts_init();

    o.has_ignore = 1;
    o.ignore = 2;
    o.label_smoothing = 0.1;
    return oar_cross_entropy_with(tape, in[0], in[1], &o);
}

static oar_tensor *nn_conv2d_with(oar_tape *tape, oar_tensor *const *in)
{
    oar_conv2d_opts o = oar_conv2d_opts_init();

    o.stride[0] = 2;
    o.padding[0] = 1;
    o.padding[1] = 2;
    o.dilation[1] = 2;
    o.groups = 2;
    return oar_conv2d(tape, in[0], in[1], in[2], &o);
}

static const oar_pool2d_opts nn_pooling = { .size = sizeof nn_pooling,
                                            .stride = { 2, 1 },
                                            .padding = { 1, 0 } };

static oar_tensor *nn_attention_causal(oar_tape *tape, oar_tensor *const *in)
{
    oar_attention_opts o = oar_attention_opts_init();

    o.causal = 1;
    o.scale = 0.7;
    return oar_attention(tape, in[0], in[1], in[2], &o);
}

NN_CASE(softmax, oar_softmax(tape, in[0]))
NN_CASE(softmax_over, oar_softmax_over(tape, in[0], 1))
NN_CASE(log_softmax, oar_log_softmax(tape, in[0], 0))
NN_CASE(log_softmax_last, oar_log_softmax(tape, in[0], -1))
NN_CASE(cross_entropy, oar_cross_entropy(tape, in[0], in[1]))
NN_CASE(mse, oar_mse(tape, in[0], in[1]))
NN_CASE(layer_norm, oar_layer_norm(tape, in[0], in[1], in[2], 1e-3))
NN_CASE(rms_norm, oar_rms_norm(tape, in[0], in[1], 1e-3))
NN_CASE(batch_norm,
        oar_batch_norm(tape, in[0], in[1], in[2], NULL, NULL, 1, 0.1, 1e-3))
NN_CASE(conv2d, oar_conv2d(tape, in[0], in[1], in[2], NULL))
NN_CASE(max_pool2d, oar_max_pool2d(tape, in[0], 3, 2, &nn_pooling))
NN_CASE(avg_pool2d, oar_avg_pool2d(tape, in[0], 3, 2, &nn_pooling))
NN_CASE(embedding, oar_embedding(tape, in[0], in[1]))
NN_CASE(rotary, oar_rotary(tape, in[0], 3, 100))
NN_CASE(attention, oar_attention(tape, in[0], in[1], in[2], NULL))

static oar_tensor *nn_running(oar_tape *tape, const oar_tensor *x, double value)
{
    oar_tensor *made = oar_full(tape, oar_tensor_dtype(x), OAR_SHAPE(4), value);

    return oar_to(tape, made, oar_tensor_device(x));
}

NN_CASE(batch_norm_eval,
        oar_batch_norm(tape, in[0], in[1], in[2], nn_running(tape, in[0], 0.25),
                       nn_running(tape, in[0], 1.5), 0, 0.1, 1e-3))
NN_CASE(conv2d_alone, oar_conv2d(tape, in[0], in[1], NULL, NULL))
NN_CASE(conv2d_groups, oar_conv2d(tape, in[0], in[1], in[2],
                                  OAR_OPTS(oar_conv2d_opts, .groups = 2)))
NN_CASE(conv2d_sparse,
        oar_conv2d(tape, in[0], in[1], in[2],
                   OAR_OPTS(oar_conv2d_opts, .stride = { 2, 1 })))

static const golden_case nn_cases[] = {
    { "softmax", nn_softmax },
    { "softmax_over", nn_softmax_over },
    { "log_softmax", nn_log_softmax },
    { "cross_entropy", nn_cross_entropy },
    { "cross_entropy_with", nn_cross_entropy_with },
    { "mse", nn_mse },
    { "layer_norm", nn_layer_norm },
    { "layer_norm_many", nn_layer_norm },
    { "rms_norm", nn_rms_norm },
    { "batch_norm", nn_batch_norm },
    { "conv2d", nn_conv2d },
    { "conv2d_with", nn_conv2d_with },
    { "max_pool2d", nn_max_pool2d },
    { "avg_pool2d", nn_avg_pool2d },
    { "embedding", nn_embedding },
    { "rotary", nn_rotary },
    { "attention", nn_attention },
    { "attention_causal", nn_attention_causal },
    { "batch_norm_flat", nn_batch_norm },
    { "batch_norm_line", nn_batch_norm },
    { "batch_norm_box", nn_batch_norm },
    { "batch_norm_eval", nn_batch_norm_eval },
    { "conv2d_point", nn_conv2d },
    { "conv2d_point_alone", nn_conv2d_alone },
    { "conv2d_point_groups", nn_conv2d_groups },
    { "conv2d_point_sparse", nn_conv2d_sparse },
    { "log_softmax_last", nn_log_softmax_last },
};

enum { NN_CASES = sizeof nn_cases / sizeof *nn_cases };

#endif
