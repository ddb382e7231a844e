/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of layers, and ten steps of two models, against PyTorch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <oarsong/models.h>
#include <oarsong/optim.h>
#include <oarsong/tape.h>

#include "golden/golden.h"

#define OK(call)                                              \
    do {                                                      \
        if ((call) != OAR_OK)                                 \
            fail_msg("%s: %s", #call, oar_last_error_text()); \
    } while (0)

enum { MOST = 4, STEPS = 10, BATCH = 3, CONTEXT = 8, VOCABULARY = 11 };

/* ---- operations --------------------------------------------------------- */

#define OP(name, expression)                                       \
    static oar_tensor *name(oar_tape *tape, oar_tensor *const *in) \
    {                                                              \
        return expression;                                         \
    }

static oar_tensor *cross_entropy_with(oar_tape *tape, oar_tensor *const *in)
{
    oar_cross_entropy_opts o = oar_cross_entropy_opts_init();

    o.has_ignore = 1;
    o.ignore = 2;
    o.label_smoothing = 0.1;
    return oar_cross_entropy_with(tape, in[0], in[1], &o);
}

static oar_tensor *conv2d_with(oar_tape *tape, oar_tensor *const *in)
{
    oar_conv2d_opts o = oar_conv2d_opts_init();

    o.stride[0] = 2;
    o.padding[0] = 1;
    o.padding[1] = 2;
    o.dilation[1] = 2;
    o.groups = 2;
    return oar_conv2d(tape, in[0], in[1], in[2], &o);
}

static const oar_pool2d_opts pooling = { .size = sizeof pooling,
                                         .stride = { 2, 1 },
                                         .padding = { 1, 0 } };

static oar_tensor *attention_causal(oar_tape *tape, oar_tensor *const *in)
{
    oar_attention_opts o = oar_attention_opts_init();

    o.causal = 1;
    o.scale = 0.7;
    return oar_attention(tape, in[0], in[1], in[2], &o);
}

OP(softmax, oar_softmax(tape, in[0]))
OP(softmax_over, oar_softmax_over(tape, in[0], 1))
OP(log_softmax, oar_log_softmax(tape, in[0], 0))
OP(cross_entropy, oar_cross_entropy(tape, in[0], in[1]))
OP(mse, oar_mse(tape, in[0], in[1]))
OP(layer_norm, oar_layer_norm(tape, in[0], in[1], in[2], 1e-3))
OP(rms_norm, oar_rms_norm(tape, in[0], in[1], 1e-3))
OP(batch_norm,
   oar_batch_norm(tape, in[0], in[1], in[2], NULL, NULL, 1, 0.1, 1e-3))
OP(conv2d, oar_conv2d(tape, in[0], in[1], in[2], NULL))
OP(max_pool2d, oar_max_pool2d(tape, in[0], 3, 2, &pooling))
OP(avg_pool2d, oar_avg_pool2d(tape, in[0], 3, 2, &pooling))
OP(embedding, oar_embedding(tape, in[0], in[1]))
OP(rotary, oar_rotary(tape, in[0], 3, 100))
OP(attention, oar_attention(tape, in[0], in[1], in[2], NULL))

static const struct golden_case {
    const char *name;
    oar_tensor *(*fn)(oar_tape *tape, oar_tensor *const *in);
} golden_cases[] = {
    { "softmax", softmax },
    { "softmax_over", softmax_over },
    { "log_softmax", log_softmax },
    { "cross_entropy", cross_entropy },
    { "cross_entropy_with", cross_entropy_with },
    { "mse", mse },
    { "layer_norm", layer_norm },
    { "layer_norm_many", layer_norm },
    { "rms_norm", rms_norm },
    { "batch_norm", batch_norm },
    { "conv2d", conv2d },
    { "conv2d_with", conv2d_with },
    { "max_pool2d", max_pool2d },
    { "avg_pool2d", avg_pool2d },
    { "embedding", embedding },
    { "rotary", rotary },
    { "attention", attention },
    { "attention_causal", attention_causal },
};

/* Input i of a case: a leaf if it has a gradient, else whole numbers. NULL:
 * there is none. */
static oar_tensor *input_of(const char *name, int i, oar_dtype dtype)
{
    char part[16];
    const golden *g;
    oar_tensor *made;

    snprintf(part, sizeof part, "in%d", i);
    g = golden_find(name, part);
    if (g == NULL)
        return NULL;
    snprintf(part, sizeof part, "grad%d", i);
    if (golden_find(name, part) == NULL)
        return golden_tensor(g, OAR_I64);
    made = golden_tensor(g, dtype);
    OK(oar_tensor_require_grad(made, 1));
    return made;
}

static void check_case(const struct golden_case *c, oar_dtype dtype)
{
    oar_tensor *in[MOST] = { NULL }, *seed, *out;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    for (int i = 0; i < MOST; i++)
        in[i] = input_of(c->name, i, dtype);
    seed = golden_tensor(golden_get(c->name, "seed"), dtype);
    out = c->fn(tape, in);
    golden_compare(golden_get(c->name, "out"), out);
    OK(oar_backward_from(tape, 1, &out, &seed));
    for (int i = 0; i < MOST; i++) {
        char part[16];

        snprintf(part, sizeof part, "grad%d", i);
        if (in[i] != NULL && oar_tensor_requires_grad(in[i]))
            golden_compare(golden_get(c->name, part), oar_tensor_grad(in[i]));
        oar_tensor_release(in[i]);
    }
    oar_tensor_release(seed);
    oar_tape_destroy(tape);
}

static void operations_agree_with_pytorch(void **state)
{
    for (size_t i = 0; i < sizeof golden_cases / sizeof *golden_cases; i++) {
        check_case(&golden_cases[i], OAR_F32);
        check_case(&golden_cases[i], OAR_F64);
    }
}

/* ---- models ------------------------------------------------------------- */

/* As in make_nn.py. */
static double number(int64_t i, int64_t which)
{
    return (double)((i * 7919 + which * 104729 + 13) % 1009) / 504.5 - 1;
}

static void set_params(oar_module *net)
{
    for (int k = 0; k < oar_module_params(net); k++) {
        oar_tensor *p = oar_module_param(net, k);
        double start[2048];

        assert_true(oar_tensor_count(p) <= 2048);
        for (int64_t i = 0; i < oar_tensor_count(p); i++)
            start[i] =
                0.3 * number(i, k) + (oar_tensor_shape(p).ndim == 1 ? 1 : 0);
        OK(oar_tensor_write(p, OAR_F64, start));
    }
}

static oar_tensor *tokens_of(int step)
{
    int64_t token[BATCH * CONTEXT];

    for (int64_t i = 0; i < BATCH * CONTEXT; i++)
        token[i] = ((i + step * BATCH * CONTEXT) * 31 + 7) % 101 % VOCABULARY;
    return oar_from_data(NULL, OAR_I64, OAR_SHAPE(BATCH, CONTEXT), token);
}

static oar_tensor *next_of(int step)
{
    int64_t token[BATCH * CONTEXT];

    for (int64_t i = 0; i < BATCH * CONTEXT; i++)
        token[i] = ((i + step * BATCH * CONTEXT) * 17 + 3) % 97 % VOCABULARY;
    return oar_from_data(NULL, OAR_I64, OAR_SHAPE(BATCH * CONTEXT), token);
}

static oar_tensor *images_of(int step, oar_dtype dtype)
{
    oar_tensor *x = oar_empty(NULL, dtype, OAR_SHAPE(BATCH, 2, 9, 9));
    double pixel[BATCH * 2 * 81];

    for (int64_t i = 0; i < BATCH * 2 * 81; i++)
        pixel[i] = number(i, step);
    OK(oar_tensor_write(x, OAR_F64, pixel));
    return x;
}

static oar_tensor *classes_of(int step)
{
    int64_t of[BATCH];

    for (int64_t i = 0; i < BATCH; i++)
        of[i] = (i + step) % 5;
    return oar_from_data(NULL, OAR_I64, OAR_SHAPE(BATCH), of);
}

static void check_loss(const char *kind, int step, const oar_tensor *loss)
{
    const golden *want = golden_get(kind, "loss");
    golden one = { .count = 1, .number = want->number + step };

    snprintf(one.name, sizeof one.name, "%s.loss %d", kind, step);
    golden_compare(&one, loss);
}

/* Those that the file has; it has the token table at least. */
static void check_state(const char *kind, oar_module *net)
{
    char name[64];

    for (int i = 0; i < oar_module_params(net); i++) {
        OK(oar_module_param_name(net, i, name, sizeof name));
        if (golden_find(kind, name) != NULL)
            golden_compare(golden_get(kind, name), oar_module_param(net, i));
    }
    for (int i = 0; i < oar_module_buffers(net); i++) {
        OK(oar_module_buffer_name(net, i, name, sizeof name));
        if (oar_tensor_dtype(oar_module_buffer(net, i)) != OAR_I64)
            golden_compare(golden_get(kind, name), oar_module_buffer(net, i));
    }
}

/* Takes the reference to net. */
static void train(const char *kind, oar_module *net, oar_dtype dtype,
                  int images, double lr)
{
    oar_sgd_opts o = oar_sgd_opts_init();
    oar_optim *sgd;
    oar_tape *tape;

    o.lr = lr;
    OK(oar_tape_create(&tape));
    OK(oar_sgd_create(net, &o, &sgd));
    set_params(net);
    for (int step = 0; step < STEPS; step++) {
        oar_tensor *x = images ? images_of(step, dtype) : tokens_of(step);
        oar_tensor *y = images ? classes_of(step) : next_of(step);
        oar_tensor *loss =
            oar_cross_entropy(tape, oar_forward(tape, net, x), y);

        check_loss(kind, step, loss);
        OK(oar_backward(tape, loss));
        OK(oar_optim_step(sgd));
        oar_optim_zero_grad(sgd);
        oar_tape_reset(tape);
        oar_tensor_release(x);
        oar_tensor_release(y);
    }
    check_state(kind, net);
    oar_optim_destroy(sgd);
    oar_tape_destroy(tape);
    oar_module_release(net);
}

static oar_module *new_gpt(oar_dtype dtype, int tied, int recompute)
{
    oar_gpt_opts o = oar_gpt_opts_init();
    oar_module *net;

    o.vocabulary = VOCABULARY;
    o.context = CONTEXT;
    o.width = 16;
    o.heads = 2;
    o.layers = 2;
    o.hidden = 32;
    o.dtype = dtype;
    o.tied = o.rotary = tied;
    o.recompute = recompute;
    OK(oar_gpt_create(&o, &net));
    return net;
}

static oar_module *new_cnn(oar_dtype dtype)
{
    oar_cnn_opts o = oar_cnn_opts_init();
    oar_module *net;

    o.channels = 2;
    o.image = 9;
    o.classes = 5;
    o.width = 3;
    o.dtype = dtype;
    OK(oar_cnn_create(&o, &net));
    return net;
}

static void ten_steps_of_a_cnn_agree_with_pytorch(void **state)
{
    train("cnn", new_cnn(OAR_F32), OAR_F32, 1, 0.05);
    train("cnn", new_cnn(OAR_F64), OAR_F64, 1, 0.05);
}

static void ten_steps_of_a_gpt_agree_with_pytorch(void **state)
{
    train("gpt", new_gpt(OAR_F32, 0, 0), OAR_F32, 0, 0.1);
    train("gpt", new_gpt(OAR_F64, 0, 0), OAR_F64, 0, 0.1);
}

static void ten_steps_with_rotary_and_tied_tables_agree(void **state)
{
    train("tied", new_gpt(OAR_F32, 1, 0), OAR_F32, 0, 0.1);
    train("tied", new_gpt(OAR_F64, 1, 0), OAR_F64, 0, 0.1);
}

static void ten_steps_with_recomputation_agree_with_pytorch(void **state)
{
    train("gpt", new_gpt(OAR_F64, 0, 1), OAR_F64, 0, 0.1);
}

static int open_golden(void **state)
{
    return golden_load("nn");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_agree_with_pytorch),
        cmocka_unit_test(ten_steps_of_a_cnn_agree_with_pytorch),
        cmocka_unit_test(ten_steps_of_a_gpt_agree_with_pytorch),
        cmocka_unit_test(ten_steps_with_rotary_and_tied_tables_agree),
        cmocka_unit_test(ten_steps_with_recomputation_agree_with_pytorch),
    };

    return cmocka_run_group_tests(tests, open_golden, golden_close);
}
