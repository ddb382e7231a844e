/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of layers in half types; and what they refuse, with which
 * sentence. */
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/memory.h>
#include <oarsong/models.h>
#include <oarsong/tape.h>

#include "support/last_error.h"
#include "unit/same_numbers.h"

/* ---- halves -------------------------------------------------------------- */

typedef oar_tensor *(*op_fn)(oar_tape *tape, oar_tensor *const *in);

#define OP(name, expression)                                            \
    static oar_tensor *name##_op(oar_tape *tape, oar_tensor *const *in) \
    {                                                                   \
        return expression;                                              \
    }

static oar_tensor *first_row(oar_tape *tape)
{
    return oar_zeros(tape, OAR_I64, OAR_SHAPE(3));
}

OP(linear, oar_linear(tape, in[0], in[1], in[2]))
OP(softmax, oar_softmax_over(tape, in[0], 0))
OP(log_softmax, oar_log_softmax(tape, in[0], 1))
OP(entropy, oar_cross_entropy(tape, in[0], first_row(tape)))
OP(mse, oar_mse(tape, in[0], in[1]))
OP(dropout, oar_dropout(tape, in[0], 0.5, 1))
OP(layer_norm, oar_layer_norm(tape, in[0], in[1], in[2], 1e-5))
OP(rms_norm, oar_rms_norm(tape, in[0], in[1], 1e-5))
OP(batch_norm,
   oar_batch_norm(tape, in[0], in[1], in[2], NULL, NULL, 1, 0, 1e-5))
OP(conv2d, oar_conv2d(tape, in[0], in[1], in[2], NULL))
OP(max_pool, oar_max_pool2d(tape, in[0], 2, 2, NULL))
OP(avg_pool, oar_avg_pool2d(tape, in[0], 2, 2, NULL))
OP(embedding, oar_embedding(tape, in[0], first_row(tape)))
OP(rotary, oar_rotary(tape, in[0], 1, 10))
OP(attention, oar_attention(tape, in[0], in[1], in[2], NULL))

static const struct half_case {
    const char *name;
    op_fn fn;
    oar_shape shape[3];
} half_cases[] = {
#define D(n, ...)                         \
    {                                     \
        .ndim = n, .dim = { __VA_ARGS__ } \
    }
#define NONE       \
    {              \
        .ndim = -1 \
    }
    { "linear", linear_op, { D(2, 3, 5), D(2, 4, 5), D(1, 4) } },
    { "softmax", softmax_op, { D(2, 3, 5), NONE, NONE } },
    { "log_softmax", log_softmax_op, { D(2, 3, 5), NONE, NONE } },
    { "cross_entropy", entropy_op, { D(2, 3, 5), NONE, NONE } },
    { "mse", mse_op, { D(2, 3, 5), D(2, 3, 5), NONE } },
    { "dropout", dropout_op, { D(2, 3, 5), NONE, NONE } },
    { "layer_norm", layer_norm_op, { D(2, 3, 5), D(1, 5), D(1, 5) } },
    { "rms_norm", rms_norm_op, { D(2, 3, 5), D(1, 5), NONE } },
    { "batch_norm", batch_norm_op, { D(2, 7, 3), D(1, 3), D(1, 3) } },
    { "conv2d", conv2d_op, { D(4, 2, 2, 4, 3), D(4, 3, 2, 2, 2), D(1, 3) } },
    { "max_pool2d", max_pool_op, { D(4, 1, 2, 4, 5), NONE, NONE } },
    { "avg_pool2d", avg_pool_op, { D(4, 1, 2, 4, 5), NONE, NONE } },
    { "embedding", embedding_op, { D(2, 2, 5), NONE, NONE } },
    { "rotary", rotary_op, { D(3, 2, 3, 4), NONE, NONE } },
    { "attention",
      attention_op,
      { D(3, 2, 3, 4), D(3, 2, 5, 4), D(3, 2, 5, 3) } },
};

/* The result and the gradients, two passes long, of a case in this dtype. */
static void run_half(const struct half_case *c, oar_dtype dtype,
                     oar_tensor **out, oar_tensor **grad)
{
    oar_tensor *in[3] = { NULL };
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    for (int i = 0; i < 3 && c->shape[i].ndim >= 0; i++) {
        oar_tensor *half =
            oar_normal(NULL, OAR_BF16, c->shape[i], (uint64_t)i + 1, 0, 1);

        in[i] = oar_empty(NULL, dtype, c->shape[i]);
        OK(oar_tensor_copy(in[i], half)); /* exactly */
        OK(oar_tensor_require_grad(in[i], 1));
        oar_tensor_release(half);
    }
    for (int pass = 0; pass < 2; pass++) {
        oar_tensor *y = c->fn(tape, in);

        if (y == NULL)
            fail_msg("%s: %s", c->name, oar_last_error_text());
        assert_int_equal(oar_tensor_dtype(y), dtype);
        OK(oar_backward_from(tape, 1, &y, NULL));
        if (pass == 1)
            *out = oar_tensor_retain(y);
        oar_tape_reset(tape);
    }
    for (int i = 0; i < 3; i++) {
        grad[i] =
            in[i] != NULL ? oar_tensor_retain(oar_tensor_grad(in[i])) : NULL;
        oar_tensor_release(in[i]);
    }
    oar_tape_destroy(tape);
}

static void halves_are_computed_in_f32_and_rounded(void **state)
{
    for (size_t k = 0; k < sizeof half_cases / sizeof *half_cases; k++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            oar_tensor *want[3], *got[3], *y, *z;
            double ulp = bf16 ? 0x1p-8 : 0x1p-11;

            run_half(&half_cases[k], OAR_F32, &y, want);
            run_half(&half_cases[k], bf16 ? OAR_BF16 : OAR_F16, &z, got);
            assert_same(z, y, ulp);
            for (int i = 0; i < 3; i++)
                if (want[i] != NULL)
                    assert_same(got[i], want[i], 3 * ulp);
        }
}

/* ---- large logits -------------------------------------------------------- */

enum { POSITIONS = 19, WIDTH = 8 };

/* The gradients of q, k and v in this dtype. All scores are near 4096, and
 * exact in f32. */
static void attend_with_large_logits(oar_dtype dtype, oar_tensor **grad)
{
    oar_shape shape = OAR_SHAPE(POSITIONS, WIDTH);
    oar_attention_opts causal = oar_attention_opts_init();
    oar_tensor *in[3], *y, *seed;
    oar_tape *tape;

    causal.causal = 1;
    causal.scale = 1;
    OK(oar_tape_create(&tape));
    for (int i = 0; i < 3; i++) {
        double number[POSITIONS * WIDTH];

        for (int k = 0; k < POSITIONS * WIDTH; k++)
            number[k] = (double)((k * k + 7 * i * k) % 13 - 6) / 8;
        for (int k = 0; i < 2 && k < POSITIONS * WIDTH; k += WIDTH)
            number[k] = i == 0 ? 4096 : 1;
        in[i] = oar_empty(NULL, dtype, shape);
        OK(oar_tensor_write(in[i], OAR_F64, number));
        OK(oar_tensor_require_grad(in[i], 1));
    }
    y = oar_attention(tape, in[0], in[1], in[2], &causal);
    seed = oar_arange(tape, dtype, POSITIONS * WIDTH, -1, 1.0 / 64);
    seed = oar_reshape(tape, seed, shape);
    OK(oar_backward_from(tape, 1, &y, &seed));
    for (int i = 0; i < 3; i++) {
        grad[i] = oar_tensor_retain(oar_tensor_grad(in[i]));
        oar_tensor_release(in[i]);
    }
    oar_tape_destroy(tape);
}

static void large_logits_cost_attention_no_precision(void **state)
{
    oar_tensor *want[3], *got[3];

    attend_with_large_logits(OAR_F64, want);
    attend_with_large_logits(OAR_F32, got);
    for (int i = 0; i < 3; i++) {
        double x[POSITIONS * WIDTH], y[POSITIONS * WIDTH], most = 0, off = 0;

        OK(oar_tensor_read(want[i], OAR_F64, x));
        OK(oar_tensor_read(got[i], OAR_F64, y));
        for (int k = 0; k < POSITIONS * WIDTH; k++) {
            most = fmax(most, fabs(x[k]));
            off = fmax(off, fabs(x[k] - y[k]));
        }
        if (!(off <= 1e-6 * most))
            fail_msg("gradient %d: %g off, the largest is %g", i, off, most);
        oar_tensor_release(want[i]);
        oar_tensor_release(got[i]);
    }
}

/* ---- mistakes ------------------------------------------------------------ */

static void wrong_shapes_are_refused_with_both_of_them(void **state)
{
    oar_tensor *a = normal(OAR_SHAPE(3, 5), 1), *b = normal(OAR_SHAPE(7), 2);
    oar_tensor *image = normal(OAR_SHAPE(1, 2, 3, 3), 3);
    oar_tensor *weight = normal(OAR_SHAPE(2, 3, 2, 2), 3);
    oar_tensor *i = oar_zeros(NULL, OAR_I64, OAR_SHAPE(4));

    assert_refused(oar_linear(NULL, a, a, b), OAR_E_SHAPE, "[7]");
    assert_refused(oar_softmax_over(NULL, a, 2), OAR_E_ARG, "[3, 5]");
    assert_refused(oar_log_softmax(NULL, a, -3), OAR_E_ARG, "[3, 5]");
    assert_refused(oar_cross_entropy(NULL, a, i), OAR_E_SHAPE, "[4]");
    assert_refused(oar_mse(NULL, a, b), OAR_E_SHAPE, "[7]");
    assert_refused(oar_layer_norm(NULL, a, b, NULL, 0), OAR_E_SHAPE, "[7]");
    assert_refused(oar_rms_norm(NULL, a, b, 0), OAR_E_SHAPE, "[3, 5]");
    assert_refused(oar_batch_norm(NULL, a, b, NULL, NULL, NULL, 1, 0.1, 0),
                   OAR_E_SHAPE, "[7]");
    assert_refused(oar_batch_norm(NULL, a, NULL, NULL, NULL, NULL, 0, 0.1, 0),
                   OAR_E_ARG, "[3, 5]");
    assert_refused(oar_conv2d(NULL, image, weight, NULL, NULL), OAR_E_SHAPE,
                   "[2, 3, 2, 2]");
    assert_refused(oar_max_pool2d(NULL, image, 4, 1, NULL), OAR_E_SHAPE,
                   "[1, 2, 3, 3]");
    assert_refused(oar_avg_pool2d(NULL, a, 1, 1, NULL), OAR_E_SHAPE, "[3, 5]");
    assert_refused(oar_embedding(NULL, b, i), OAR_E_SHAPE, "[4]");
    assert_refused(oar_rotary(NULL, a, 0, 10), OAR_E_SHAPE, "[3, 5]");
    assert_refused(oar_attention(NULL, a, a, image, NULL), OAR_E_SHAPE,
                   "[1, 2, 3, 3]");
    assert_refused(oar_dropout(NULL, a, 1.5, 0), OAR_E_ARG, "1.5");
    oar_tensor_release(a);
    oar_tensor_release(b);
    oar_tensor_release(image);
    oar_tensor_release(weight);
    oar_tensor_release(i);
}

static void wrong_dtypes_and_indices_are_refused(void **state)
{
    oar_tensor *a = normal(OAR_SHAPE(3, 5), 1);
    oar_tensor *i = oar_full(NULL, OAR_I64, OAR_SHAPE(3), 5);
    oar_tensor *d = oar_zeros(NULL, OAR_F64, OAR_SHAPE(5));
    oar_cross_entropy_opts o = oar_cross_entropy_opts_init();

    assert_refused(oar_softmax(NULL, i), OAR_E_DTYPE, "i64");
    assert_refused(oar_layer_norm(NULL, a, d, NULL, 0), OAR_E_DTYPE, "f64");
    assert_refused(oar_cross_entropy(NULL, a, d), OAR_E_DTYPE, "f64");
    assert_refused(oar_cross_entropy(NULL, a, i), OAR_E_ARG, "target 5");
    assert_refused(oar_embedding(NULL, a, i), OAR_E_ARG, "is 5");
    assert_refused(oar_embedding(NULL, a, d), OAR_E_DTYPE, "f64");
    o.label_smoothing = 2;
    assert_refused(oar_cross_entropy_with(NULL, a, i, &o), OAR_E_ARG,
                   "label_smoothing");
    oar_tensor_release(a);
    oar_tensor_release(i);
    oar_tensor_release(d);
}

static void ignoring_every_row_gives_nan(void **state)
{
    oar_tensor *a = normal(OAR_SHAPE(3, 5), 1), *loss;
    oar_tensor *i = oar_full(NULL, OAR_I64, OAR_SHAPE(3), -100);
    oar_cross_entropy_opts o = oar_cross_entropy_opts_init();
    double value = 0;

    o.has_ignore = 1;
    o.ignore = -100;
    loss = oar_cross_entropy_with(NULL, a, i, &o);
    OK(oar_tensor_item(loss, &value));
    assert_true(isnan(value));
    oar_tensor_release(loss);
    oar_tensor_release(a);
    oar_tensor_release(i);
}

/* In memory that held NaN before. */
static void batch_norm_of_nothing_has_no_gradient(void **state)
{
    oar_tensor *x = oar_zeros(NULL, OAR_F64, OAR_SHAPE(1, 4, 0)), *y;
    oar_tensor *w = oar_ones(NULL, OAR_F64, OAR_SHAPE(4));
    oar_tensor *b = oar_ones(NULL, OAR_F64, OAR_SHAPE(4));
    double got[4];
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    OK(oar_tensor_require_grad(w, 1));
    OK(oar_tensor_require_grad(b, 1));
    for (int i = 0; i < 8; i++)
        oar_full(tape, OAR_F64, OAR_SHAPE(4), NAN);
    oar_tape_reset(tape);
    y = oar_batch_norm(tape, x, w, b, NULL, NULL, 1, 0.1, 1e-5);
    OK(oar_backward_from(tape, 1, &y, NULL));
    for (int i = 0; i < 2; i++) {
        OK(oar_tensor_read(oar_tensor_grad(i ? b : w), OAR_F64, got));
        for (int k = 0; k < 4; k++)
            assert_true(got[k] == 0);
    }
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_tensor_release(w);
    oar_tensor_release(b);
}

/* Products of sizes that are no numbers any more. */
static void models_that_cannot_be_counted_are_refused(void **state)
{
    oar_cnn_opts cnn = oar_cnn_opts_init();
    oar_gpt_opts gpt = oar_gpt_opts_init();
    oar_module *m = NULL;

    for (int i = 0; i < 2; i++) {
        cnn.image = i == 0 ? INT64_MAX : INT64_C(1) << 33;
        assert_fails_with(oar_cnn_create(&cnn, &m), OAR_E_ARG,
                          "cnn of 10 classes");
    }
    cnn.image = 28;
    cnn.width = INT64_MAX / 2 + 3;
    assert_fails_with(oar_cnn_create(&cnn, &m), OAR_E_ARG, "cnn of 10 classes");
    gpt.width = INT64_MAX / 2 + 3;
    assert_fails_with(oar_gpt_create(&gpt, &m), OAR_E_ARG, "gpt with");
    gpt.width = INT64_MIN;
    assert_fails_with(oar_gpt_create(&gpt, &m), OAR_E_ARG, "gpt with");
    assert_fails_with(oar_attention_create(INT64_MAX, 1, 0, NULL, &m),
                      OAR_E_ARG, "attention of width 9223372036854775807");
    assert_int_equal(
        oar_conv2d_create(INT64_MAX, 1, INT_MAX, INT_MAX, 0, NULL, &m),
        OAR_E_ARG);
    assert_null(m);
}

static void windows_that_cannot_be_are_refused_by_their_layers(void **state)
{
    oar_conv2d_layer_opts conv = oar_conv2d_layer_opts_init();
    oar_pool2d_opts pool = oar_pool2d_opts_init();
    oar_tensor *image = normal(OAR_SHAPE(1, 2, 3, 3), 3);
    oar_module *m = NULL;

    conv.stride[1] = -1;
    assert_fails_with(oar_conv2d_create(1, 1, 3, 3, 0, &conv, &m), OAR_E_ARG,
                      "stride -1");
    assert_fails_with(oar_max_pool2d_create(0, 1, NULL, &m), OAR_E_ARG,
                      "max_pool2d with window [0, 1]");
    assert_refused(oar_max_pool2d(NULL, image, 0, 1, NULL), OAR_E_ARG,
                   "the window is at least 1");
    pool.stride[0] = -1;
    assert_fails_with(oar_avg_pool2d_create(2, 2, &pool, &m), OAR_E_ARG,
                      "may not be negative");
    pool.stride[0] = 0;
    pool.padding[1] = 2;
    assert_fails_with(oar_avg_pool2d_create(2, 2, &pool, &m), OAR_E_ARG,
                      "half the window");
    assert_null(m);
    oar_tensor_release(image);
}

/* Not the sizes, which are fine. */
static void a_layer_without_an_output_pointer_is_refused(void **state)
{
    static const char *const nowhere = "nowhere to give it";

    assert_fails_with(oar_linear_create(3, 4, 0, NULL, NULL), OAR_E_ARG,
                      nowhere);
    assert_fails_with(oar_conv2d_create(1, 1, 3, 3, 0, NULL, NULL), OAR_E_ARG,
                      nowhere);
    assert_fails_with(oar_embedding_create(2, 3, 0, 0, OAR_F32, NULL),
                      OAR_E_ARG, nowhere);
    assert_fails_with(oar_layer_norm_create(2, 0, OAR_F32, NULL), OAR_E_ARG,
                      nowhere);
    assert_fails_with(oar_batch_norm_create(1, 2, NULL, NULL), OAR_E_ARG,
                      nowhere);
    assert_fails_with(oar_dropout_create(0.5, 0, NULL), OAR_E_ARG, nowhere);
    assert_fails_with(oar_flatten_create(1, NULL), OAR_E_ARG, nowhere);
    assert_fails_with(oar_max_pool2d_create(2, 2, NULL, NULL), OAR_E_ARG,
                      nowhere);
    assert_fails_with(oar_relu_create(NULL), OAR_E_ARG, "nowhere to give it");
    assert_fails_with(oar_sequential_create(0, NULL, NULL), OAR_E_ARG, nowhere);
    assert_fails_with(oar_cnn_create(NULL, NULL), OAR_E_ARG, nowhere);
}

/* What was left at 0 is shown as what it means. */
static void defaults_are_shown_as_they_are(void **state)
{
    oar_batch_norm_opts norm = oar_batch_norm_opts_init();
    oar_cnn_opts cnn = oar_cnn_opts_init();
    oar_gpt_opts gpt = oar_gpt_opts_init();
    oar_pool2d_opts pool = oar_pool2d_opts_init();
    oar_module *m = NULL;

    cnn.image = 3;
    assert_fails_with(
        oar_cnn_create(&cnn, &m), OAR_E_ARG,
        "cnn of 10 classes from 1 channels 3 wide, with width 16");
    gpt.heads = -1;
    gpt.width = 8;
    assert_fails_with(oar_gpt_create(&gpt, &m), OAR_E_ARG,
                      "heads -1, hidden 32");
    pool.padding[0] = 5;
    assert_fails_with(oar_max_pool2d_create(2, 3, &pool, &m), OAR_E_ARG,
                      "stride [2, 3]");
    assert_fails_with(oar_batch_norm_create(4, 3, &norm, &m), OAR_E_ARG,
                      "with eps 1e-05");
    assert_fails_with(oar_layer_norm_create(-1, 0, OAR_F32, &m), OAR_E_ARG,
                      "with eps 1e-05");
    assert_null(m);
}

static void flatten_wants_the_dim_it_starts_from(void **state)
{
    oar_tensor *a = normal(OAR_SHAPE(3, 5), 1), *y;
    oar_module *m = NULL;

    for (int from = 2; from < OAR_MAX_DIMS; from += 5) {
        OK(oar_flatten_create(from, &m));
        assert_refused(oar_forward(NULL, m, a), OAR_E_SHAPE,
                       "flatten of [3, 5] from dim");
        oar_module_release(m);
    }
    OK(oar_flatten_create(1, &m));
    y = oar_forward(NULL, m, a);
    assert_int_equal(oar_tensor_shape(y).ndim, 2);
    oar_module_release(m);
    oar_tensor_release(y);
    oar_tensor_release(a);
}

static void layers_that_cannot_be_are_refused(void **state)
{
    oar_conv2d_layer_opts groups = oar_conv2d_layer_opts_init();
    oar_attention_layer_opts rotary = oar_attention_layer_opts_init();
    oar_module *m = NULL;

    groups.groups = 2;
    rotary.rotary_base = 10;
    assert_int_equal(oar_conv2d_create(3, 4, 3, 3, 0, &groups, &m), OAR_E_ARG);
    assert_int_equal(oar_attention_create(8, 3, 0, NULL, &m), OAR_E_ARG);
    assert_int_equal(oar_attention_create(9, 3, 0, &rotary, &m), OAR_E_ARG);
    assert_int_equal(oar_embedding_create(-1, 3, 0, 0, OAR_F32, &m), OAR_E_ARG);
    assert_int_equal(oar_embedding_create(2, 3, 0, 0, OAR_I64, &m),
                     OAR_E_DTYPE);
    assert_int_equal(oar_layer_norm_create(-1, 0, OAR_F32, &m), OAR_E_ARG);
    assert_int_equal(oar_rms_norm_create(3, -1, OAR_F32, &m), OAR_E_ARG);
    assert_int_equal(oar_batch_norm_create(4, 3, NULL, &m), OAR_E_ARG);
    assert_int_equal(oar_dropout_create(-0.1, 0, &m), OAR_E_ARG);
    assert_int_equal(oar_flatten_create(-1, &m), OAR_E_ARG);
    assert_int_equal(oar_max_pool2d_create(0, 1, NULL, &m), OAR_E_ARG);
    assert_int_equal(oar_avg_pool2d_create(1, 0, NULL, &m), OAR_E_ARG);
    assert_null(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_are_computed_in_f32_and_rounded),
        cmocka_unit_test(large_logits_cost_attention_no_precision),
        cmocka_unit_test(wrong_shapes_are_refused_with_both_of_them),
        cmocka_unit_test(wrong_dtypes_and_indices_are_refused),
        cmocka_unit_test(ignoring_every_row_gives_nan),
        cmocka_unit_test(batch_norm_of_nothing_has_no_gradient),
        cmocka_unit_test(models_that_cannot_be_counted_are_refused),
        cmocka_unit_test(windows_that_cannot_be_are_refused_by_their_layers),
        cmocka_unit_test(a_layer_without_an_output_pointer_is_refused),
        cmocka_unit_test(defaults_are_shown_as_they_are),
        cmocka_unit_test(flatten_wants_the_dim_it_starts_from),
        cmocka_unit_test(layers_that_cannot_be_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
