/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution over one dim, transposed convolution, adaptive pooling and group
 * norm: against PyTorch, against differences, in halves, in a split backward,
 * without memory; their layers; and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <oarsong/layers.h>
#include <oarsong/memory.h>

#include "support/leak_check.h"
#include "unit/conv_norm_cases.h"
#include "unit/same_numbers.h"

/* ---- PyTorch and differences --------------------------------------------- */

static void operations_agree_with_pytorch(void **state)
{
    golden_check_all(goldens, GOLDENS, 0);
}

static void strided_views_give_the_same(void **state)
{
    golden_check_all(goldens, GOLDENS, 1);
}

static void gradients_agree_with_differences(void **state)
{
    gradcheck_all(checks, CHECKS, 1, -1);
    gradcheck_all(checks, CHECKS, 2, -1);
}

static void each_input_has_its_gradient_alone(void **state)
{
    for (int i = 0; i < GRADCHECK_LEAVES; i++)
        gradcheck_all(checks, CHECKS, 1, i);
}

/* ---- leaves in other dtypes, and other ways of backward ------------------ */

typedef struct conv_leaves {
    oar_tensor *in[GRADCHECK_LEAVES];
    int count;
} conv_leaves;

/* The same numbers in every dtype: they are a bf16's, and small. */
static conv_leaves leaves_of(const gradcheck *c, oar_dtype dtype)
{
    conv_leaves l = { .count = 0 };

    for (; l.count < GRADCHECK_LEAVES && c->shape[l.count].ndim >= 0;
         l.count++) {
        uint64_t seed = 3 + (uint64_t)l.count;
        oar_tensor *half =
            oar_normal(NULL, OAR_BF16, c->shape[l.count], seed, 0, 1);
        oar_tensor *leaf = oar_cast(NULL, half, dtype);

        OK(oar_tensor_require_grad(leaf, 1));
        oar_tensor_release(half);
        l.in[l.count] = leaf;
    }
    return l;
}

static void release_leaves(conv_leaves *l)
{
    for (int i = 0; i < l->count; i++)
        oar_tensor_release(l->in[i]);
}

/* Both rounded from the same f32, or a unit apart. */
static void check_half(const oar_tensor *half, const oar_tensor *single,
                       const char *name)
{
    double unit = oar_tensor_dtype(half) == OAR_F16 ? 0x1p-10 : 0x1p-7;
    double x[512], y[512];

    assert_true(oar_tensor_count(single) <= 512);
    OK(oar_tensor_read(half, OAR_F64, x));
    OK(oar_tensor_read(single, OAR_F64, y));
    for (int64_t i = 0; i < oar_tensor_count(single); i++)
        if (!(fabs(x[i] - y[i]) <= unit * fabs(y[i]) + 1e-5))
            fail_msg("%s [%ld]: %g, in f32 %g", name, i, x[i], y[i]);
}

static void check_dtype(const gradcheck *c, oar_dtype dtype)
{
    conv_leaves l = leaves_of(c, dtype), want = leaves_of(c, OAR_F32);
    oar_tensor *out, *single;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    out = c->fn(tape, l.in);
    single = c->fn(tape, want.in);
    assert_int_equal(oar_tensor_dtype(out), dtype);
    check_half(out, single, c->name);
    OK(oar_backward_from(tape, 1, &out, NULL));
    OK(oar_backward_from(tape, 1, &single, NULL));
    for (int i = 0; i < l.count; i++)
        check_half(oar_tensor_grad(l.in[i]), oar_tensor_grad(want.in[i]),
                   c->name);
    release_leaves(&l);
    release_leaves(&want);
    oar_tape_destroy(tape);
}

static void halves_are_computed_in_f32_and_rounded(void **state)
{
    for (int i = 0; i < CHECKS; i++) {
        check_dtype(&checks[i], OAR_F16);
        check_dtype(&checks[i], OAR_BF16);
    }
}

/* In two parts, with an input that is no leaf. */
static void check_split(const gradcheck *c)
{
    conv_leaves whole = leaves_of(c, OAR_F64), parts = leaves_of(c, OAR_F64);
    oar_tensor *in[GRADCHECK_LEAVES], *out;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    out = c->fn(tape, whole.in);
    OK(oar_backward_from(tape, 1, &out, NULL));
    oar_tape_reset(tape);
    memcpy(in, parts.in, sizeof in);
    in[0] = oar_scale(tape, parts.in[0], 1);
    out = c->fn(tape, in);
    OK(oar_backward_inputs(tape, 1, &out, NULL));
    OK(oar_backward_weights(tape));
    for (int i = 0; i < whole.count; i++)
        assert_same(oar_tensor_retain(oar_tensor_grad(whole.in[i])),
                    oar_tensor_retain(oar_tensor_grad(parts.in[i])), 0);
    oar_tape_destroy(tape);
    release_leaves(&parts);
    release_leaves(&whole);
}

static void a_split_backward_leaves_the_same(void **state)
{
    for (int i = 0; i < CHECKS; i++)
        check_split(&checks[i]);
}

/* ---- memory -------------------------------------------------------------- */

/* Forward and backward with allocation n failing; whether it did. */
static int fails_at(const gradcheck *c, oar_dtype dtype, uint64_t n)
{
    conv_leaves l = leaves_of(c, dtype);
    oar_status status = OAR_OK;
    oar_tensor *out;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    oar_clear_error();
    oar_memory_fail_after(n);
    out = c->fn(tape, l.in);
    status = out != NULL ? oar_backward_from(tape, 1, &out, NULL)
                         : oar_last_error()->status;
    oar_memory_fail_after(0);
    if (status != OAR_OK && status != OAR_E_NOMEM)
        fail_msg("%s: %s", c->name, oar_last_error_text());
    release_leaves(&l);
    oar_tape_destroy(tape);
    return status != OAR_OK;
}

static void every_allocation_may_fail(void **state)
{
    for (int i = 0; i < CHECKS; i++) {
        oar_dtype dtype = i % 2 ? OAR_BF16 : OAR_F32;
        uint64_t before = memory_now().live, n = 1;

        while (fails_at(&checks[i], dtype, n))
            assert_true(n++ < 200);
        assert_true(n > 1);
        assert_int_equal(memory_now().live, before);
    }
}

/* ---- layers -------------------------------------------------------------- */

static void convolution_layers_compute_what_operations_do(void **state)
{
    oar_tensor *x = normal(OAR_SHAPE(2, 4, 5), 1);
    oar_tensor *image = normal(OAR_SHAPE(1, 4, 3, 2), 2);
    oar_tensor *w, *b;
    oar_module *m;

    OK(oar_conv1d_create(4, 6, 3, 7,
                         OAR_OPTS(oar_conv1d_layer_opts, .stride = 2,
                                  .padding = 3, .dilation = 2, .groups = 2),
                         &m));
    w = oar_module_find(m, "weight");
    b = oar_module_find(m, "bias");
    assert_int_equal(oar_tensor_shape(w).dim[1], 2);
    assert_same(oar_forward(NULL, m, x),
                conv1d_with(NULL, (oar_tensor *[]){ x, w, b }), 0);
    oar_module_release(m);
    OK(oar_conv_transpose1d_create(
        4, 6, 2, 7,
        OAR_OPTS(oar_conv_transpose1d_layer_opts, .stride = 3, .padding = 1,
                 .output_padding = 2, .dilation = 2, .groups = 2),
        &m));
    w = oar_module_find(m, "weight");
    b = oar_module_find(m, "bias");
    assert_int_equal(oar_tensor_shape(w).dim[0], 4);
    assert_same(oar_forward(NULL, m, x),
                transpose1d_with(NULL, (oar_tensor *[]){ x, w, b }), 0);
    oar_module_release(m);
    OK(oar_conv_transpose2d_create(
        4, 6, 3, 2, 7,
        OAR_OPTS(oar_conv_transpose2d_layer_opts, .stride = { 2, 3 },
                 .padding = { 1, 0 }, .output_padding = { 1, 2 },
                 .dilation = { 1, 2 }, .groups = 2, .dtype = OAR_F32),
        &m));
    w = oar_module_find(m, "weight");
    b = oar_module_find(m, "bias");
    assert_same(oar_forward(NULL, m, image),
                transpose2d_with(NULL, (oar_tensor *[]){ image, w, b }), 0);
    oar_module_release(m);
    OK(oar_conv1d_create(4, 2, 1, 7,
                         OAR_OPTS(oar_conv1d_layer_opts, .no_bias = 1), &m));
    assert_int_equal(oar_module_params(m), 1);
    assert_same(oar_forward(NULL, m, x),
                oar_conv1d(NULL, x, oar_module_param(m, 0), NULL, NULL), 0);
    oar_module_release(m);
    oar_tensor_release(image);
    oar_tensor_release(x);
}

/* Within 1/sqrt(fan in), and not all within half of it. */
static void weights_begin_as_those_of_pytorch(void **state)
{
    double least = 0, most = 0, number[4 * 3 * 2 * 5];
    oar_module *m;

    OK(oar_conv_transpose2d_create(4, 3, 2, 5, 1, NULL, &m));
    OK(oar_tensor_read(oar_module_param(m, 0), OAR_F64, number));
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        least = fmin(least, number[i]);
        most = fmax(most, number[i]);
    }
    assert_true(most <= 1 / sqrt(30) && least >= -1 / sqrt(30));
    assert_true(most > 0.5 / sqrt(30) && least < -0.5 / sqrt(30));
    oar_module_release(m);
}

static void other_layers_compute_what_operations_do(void **state)
{
    oar_tensor *x = normal(OAR_SHAPE(2, 6, 5), 1);
    oar_tensor *image = normal(OAR_SHAPE(2, 3, 5, 6), 2);
    oar_module *m;

    OK(oar_group_norm_create(3, 6, NULL, &m));
    assert_int_equal(oar_module_params(m), 2);
    assert_same(oar_forward(NULL, m, x),
                oar_group_norm(NULL, x, 3, NULL, NULL, 1e-5), 0);
    oar_module_release(m);
    OK(oar_group_norm_create(
        2, 6, OAR_OPTS(oar_group_norm_opts, .eps = 0.5, .no_affine = 1), &m));
    assert_int_equal(oar_module_params(m), 0);
    assert_same(oar_forward(NULL, m, x),
                oar_group_norm(NULL, x, 2, NULL, NULL, 0.5), 0);
    oar_module_release(m);
    OK(oar_adaptive_avg_pool1d_create(3, &m));
    assert_same(oar_forward(NULL, m, x), oar_adaptive_avg_pool1d(NULL, x, 3),
                0);
    oar_module_release(m);
    OK(oar_adaptive_avg_pool2d_create(2, 3, &m));
    assert_same(oar_forward(NULL, m, image),
                oar_adaptive_avg_pool2d(NULL, image, 2, 3), 0);
    oar_module_release(m);
    OK(oar_leaky_relu_create(0.2, &m));
    assert_same(oar_forward(NULL, m, x), oar_leaky_relu(NULL, x, 0.2), 0);
    oar_module_release(m);
    oar_tensor_release(image);
    oar_tensor_release(x);
}

/* All of them, one after the other. */
static oar_module *new_stack(void)
{
    oar_module *child[5], *stack;

    OK(oar_conv1d_create(2, 6, 3, 1, NULL, &child[0]));
    OK(oar_group_norm_create(3, 6, NULL, &child[1]));
    OK(oar_leaky_relu_create(0.1, &child[2]));
    OK(oar_conv_transpose1d_create(6, 2, 3, 2, NULL, &child[3]));
    OK(oar_adaptive_avg_pool1d_create(4, &child[4]));
    OK(oar_sequential_create(5, child, &stack));
    return stack;
}

static void recomputed_layers_have_the_same_gradients(void **state)
{
    oar_module *plain = new_stack(), *again = new_stack();
    oar_tensor *x = normal(OAR_SHAPE(3, 2, 9), 4);
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, oar_sum(tape, oar_forward(tape, plain, x))));
    OK(oar_backward(tape, oar_sum(tape, oar_recompute(tape, again, x))));
    assert_int_equal(oar_module_params(again), 6);
    for (int i = 0; i < oar_module_params(again); i++)
        assert_same(
            oar_tensor_retain(oar_tensor_grad(oar_module_param(plain, i))),
            oar_tensor_retain(oar_tensor_grad(oar_module_param(again, i))), 0);
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    oar_module_release(plain);
    oar_module_release(again);
}

enum { LENGTH = 30000, IN = 8, OUT = 2, TAPS = 5 };

static oar_tensor *long_leaf(oar_shape shape, uint64_t seed)
{
    oar_tensor *leaf = oar_normal(NULL, OAR_F64, shape, seed, 0, 1);

    OK(oar_tensor_require_grad(leaf, 1));
    return leaf;
}

static void assert_near(oar_tape *tape, oar_tensor *a, oar_tensor *b)
{
    oar_shape flat = OAR_SHAPE(-1);
    oar_tensor *off =
        oar_sub(tape, oar_reshape(tape, a, flat), oar_reshape(tape, b, flat));
    double most;

    OK(oar_tensor_item(oar_max_over(tape, oar_abs(tape, off), OAR_NO_DIMS, 0),
                       &most));
    assert_true(most < 1e-8);
}

/* A row of results that is computed in several parts; and the same numbers as a
 * column, whose rows are short. */
static void long_rows_are_convolved_in_parts(void **state)
{
    oar_tensor *x = long_leaf(OAR_SHAPE(1, IN, LENGTH), 1);
    oar_tensor *w = long_leaf(OAR_SHAPE(OUT, IN, TAPS), 2);
    oar_tensor *high = long_leaf(OAR_SHAPE(1, IN, LENGTH, 1), 1);
    oar_tensor *tall = long_leaf(OAR_SHAPE(OUT, IN, TAPS, 1), 2);
    oar_tensor *out[2], *seed[2];
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    out[0] =
        oar_conv1d(tape, x, w, NULL, OAR_OPTS(oar_conv1d_opts, .padding = 2));
    out[1] = oar_conv2d(tape, high, tall, NULL,
                        OAR_OPTS(oar_conv2d_opts, .padding = { 2, 0 }));
    assert_near(tape, out[0], out[1]);
    for (int i = 0; i < 2; i++)
        seed[i] = oar_normal(tape, OAR_F64, oar_tensor_shape(out[i]), 3, 0, 1);
    OK(oar_backward_from(tape, 2, out, seed));
    assert_near(tape, oar_tensor_grad(x), oar_tensor_grad(high));
    assert_near(tape, oar_tensor_grad(w), oar_tensor_grad(tall));
    oar_tape_destroy(tape);
    oar_tensor_release(tall);
    oar_tensor_release(high);
    oar_tensor_release(w);
    oar_tensor_release(x);
}

/* ---- refusals ------------------------------------------------------------ */

static void refuses(oar_tensor *result, oar_status status, const char *words)
{
    assert_null(result);
    assert_fails_with(oar_last_error()->status, status, words);
    oar_clear_error();
}

static void wrong_convolutions_are_refused(void **state)
{
    oar_tensor *x = normal(OAR_SHAPE(2, 4, 5), 1), *none;
    oar_tensor *w = normal(OAR_SHAPE(4, 3, 2), 2), *b = normal(OAR_SHAPE(9), 3);

    none = oar_zeros(NULL, OAR_F32, OAR_SHAPE(2, 4, 0));
    refuses(oar_conv1d(NULL, x, w, NULL, NULL), OAR_E_SHAPE,
            "conv1d of x [2, 4, 5], weight [4, 3, 2], bias none");
    refuses(oar_conv1d(NULL, x, b, NULL, NULL), OAR_E_SHAPE,
            "x and weight have three dims");
    refuses(
        oar_conv1d(NULL, x, x, NULL, OAR_OPTS(oar_conv1d_opts, .stride = -1)),
        OAR_E_ARG, "conv1d with stride -1");
    refuses(oar_conv1d(NULL, NULL, w, NULL, NULL), OAR_E_ARG, "conv1d of NULL");
    refuses(oar_conv2d(NULL, x, w, NULL, NULL), OAR_E_SHAPE,
            "conv2d of x [2, 4, 5], weight [4, 3, 2], bias none: x and weight "
            "have four dims");
    refuses(oar_conv_transpose1d(NULL, x, w, b, NULL), OAR_E_SHAPE,
            "conv_transpose1d of x [2, 4, 5], weight [4, 3, 2], bias [9]");
    refuses(oar_conv_transpose1d(NULL, none, w, NULL, NULL), OAR_E_SHAPE,
            "the planes or the kernel are empty");
    refuses(oar_conv_transpose1d(NULL, x, w, NULL,
                                 OAR_OPTS(oar_conv_transpose1d_opts,
                                          .stride = 2, .output_padding = 2)),
            OAR_E_ARG, "the output padding is below the stride or");
    refuses(
        oar_conv_transpose1d(NULL, x, w, NULL,
                             OAR_OPTS(oar_conv_transpose1d_opts, .padding = 3)),
        OAR_E_SHAPE, "the padding leaves nothing");
    refuses(
        oar_conv_transpose1d(NULL, x, w, NULL,
                             OAR_OPTS(oar_conv_transpose1d_opts, .groups = 3)),
        OAR_E_SHAPE, "the groups divide");
    refuses(oar_conv_transpose2d(NULL, x, w, NULL, NULL), OAR_E_SHAPE,
            "conv_transpose2d of x [2, 4, 5]");
    refuses(oar_conv_transpose2d(
                NULL, x, w, NULL,
                OAR_OPTS(oar_conv_transpose2d_opts, .dilation = { 1, -2 })),
            OAR_E_ARG, "none may be negative");
    oar_tensor_release(none);
    oar_tensor_release(b);
    oar_tensor_release(w);
    oar_tensor_release(x);
}

static void wrong_pools_and_norms_are_refused(void **state)
{
    oar_tensor *x = normal(OAR_SHAPE(2, 4, 5), 1), *w = normal(OAR_SHAPE(5), 2);
    oar_tensor *whole = oar_zeros(NULL, OAR_I32, OAR_SHAPE(2, 4, 5));
    oar_tensor *none = oar_zeros(NULL, OAR_F32, OAR_SHAPE(2, 4, 0));

    refuses(oar_adaptive_avg_pool1d(NULL, x, 0), OAR_E_ARG,
            "adaptive_avg_pool1d of [2, 4, 5] to a side of 0");
    refuses(oar_adaptive_avg_pool2d(NULL, x, 1, 1), OAR_E_SHAPE,
            "adaptive_avg_pool2d of [2, 4, 5]: it is [n, c, h, w]");
    refuses(oar_adaptive_avg_pool1d(NULL, none, 2), OAR_E_SHAPE,
            "dim 2 has no elements");
    refuses(oar_adaptive_avg_pool1d(NULL, whole, 2), OAR_E_DTYPE,
            "adaptive_avg_pool1d of i32");
    refuses(oar_group_norm(NULL, x, 3, NULL, NULL, 1e-5), OAR_E_SHAPE,
            "group_norm of [2, 4, 5] in 3 groups: they divide the channels");
    refuses(oar_group_norm(NULL, x, 0, NULL, NULL, 1e-5), OAR_E_ARG,
            "in 0 groups");
    refuses(oar_group_norm(NULL, x, 2, w, NULL, 1e-5), OAR_E_SHAPE,
            "group_norm of [2, 4, 5] with weight [5]: it is [4]");
    refuses(oar_group_norm(NULL, w, 1, NULL, NULL, 1e-5), OAR_E_SHAPE,
            "it is [n, channels, ..]");
    refuses(oar_group_norm(NULL, whole, 1, NULL, NULL, 1e-5), OAR_E_DTYPE,
            "group_norm of i32");
    oar_tensor_release(none);
    oar_tensor_release(whole);
    oar_tensor_release(w);
    oar_tensor_release(x);
}

static void layers_that_cannot_be_are_refused(void **state)
{
    oar_module *m = NULL;

    assert_fails_with(
        oar_conv1d_create(3, 4, 2, 0,
                          OAR_OPTS(oar_conv1d_layer_opts, .groups = 2), &m),
        OAR_E_ARG, "conv1d from 3 to 4 channels in 2 groups");
    assert_fails_with(
        oar_conv1d_create(3, 4, 2, 0,
                          OAR_OPTS(oar_conv1d_layer_opts, .stride = -1), &m),
        OAR_E_ARG, "conv1d with kernel 2, stride -1");
    assert_fails_with(oar_conv1d_create(3, 4, 2, 0, NULL, NULL), OAR_E_ARG,
                      "conv1d_create: nowhere to give it");
    assert_fails_with(
        oar_conv1d_create(
            3, 4, 2, 0, OAR_OPTS(oar_conv1d_layer_opts, .dtype = OAR_I32), &m),
        OAR_E_DTYPE, "conv1d of i32");
    assert_fails_with(
        oar_conv_transpose1d_create(
            3, 4, 2, 0,
            OAR_OPTS(oar_conv_transpose1d_layer_opts, .output_padding = 1), &m),
        OAR_E_ARG, "output padding 1");
    assert_fails_with(oar_conv_transpose2d_create(3, 4, 0, 2, 0, NULL, &m),
                      OAR_E_ARG, "conv_transpose2d with kernel 0");
    assert_int_not_equal(
        oar_conv_transpose2d_create(INT64_MAX, INT64_MAX, 3, 3, 0, NULL, &m),
        OAR_OK);
    assert_fails_with(oar_adaptive_avg_pool1d_create(0, &m), OAR_E_ARG,
                      "adaptive_avg_pool1d to");
    assert_fails_with(oar_adaptive_avg_pool2d_create(1, 1, NULL), OAR_E_ARG,
                      "nowhere to give it");
    assert_fails_with(oar_group_norm_create(4, 6, NULL, &m), OAR_E_ARG,
                      "group_norm of 6 channels in 4 groups");
    assert_fails_with(oar_group_norm_create(
                          2, 6, OAR_OPTS(oar_group_norm_opts, .eps = -1), &m),
                      OAR_E_ARG, "group_norm with eps -1");
    assert_fails_with(oar_leaky_relu_create(0.1, NULL), OAR_E_ARG,
                      "leaky_relu_create: nowhere to give it");
    assert_null(m);
}

static int load(void **state)
{
    return golden_load("layers");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_agree_with_pytorch),
        cmocka_unit_test(strided_views_give_the_same),
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(each_input_has_its_gradient_alone),
        cmocka_unit_test(halves_are_computed_in_f32_and_rounded),
        cmocka_unit_test(a_split_backward_leaves_the_same),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(convolution_layers_compute_what_operations_do),
        cmocka_unit_test(weights_begin_as_those_of_pytorch),
        cmocka_unit_test(other_layers_compute_what_operations_do),
        cmocka_unit_test(recomputed_layers_have_the_same_gradients),
        cmocka_unit_test(long_rows_are_convolved_in_parts),
        cmocka_unit_test(wrong_convolutions_are_refused),
        cmocka_unit_test(wrong_pools_and_norms_are_refused),
        cmocka_unit_test(layers_that_cannot_be_are_refused),
    };

    return cmocka_run_group_tests(tests, load, golden_close);
}
