/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on values that PyTorch's numbers do not cover: integers, bools,
 * NaN and infinity, ties, casts; on tensors without and with one element; and
 * tensors as text. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "unit/number_rows.h"

/* ---- making -------------------------------------------------------------- */

static void new_tensors_hold_what_was_asked(void **state)
{
    oar_tensor *many = oar_arange(NULL, OAR_I64, 1000, 0, 1);

    EXPECT(oar_ones(NULL, OAR_I8, OAR_SHAPE(3)), OAR_I8, 1, 1, 1);
    EXPECT(oar_arange(NULL, OAR_F32, 4, -1, 0.5), OAR_F32, -1, -0.5, 0, 0.5);
    EXPECT(oar_arange(NULL, OAR_U8, 3, 5, -2), OAR_U8, 5, 3, 1);
    EXPECT(oar_eye(NULL, OAR_F16, 2, 3), OAR_F16, 1, 0, 0, 0, 1, 0);
    EXPECT(oar_eye(NULL, OAR_BOOL, 3, 2), OAR_BOOL, 1, 0, 0, 1, 0, 0);
    assert_int_equal(((int64_t *)oar_tensor_data(many))[999], 999);
    RELEASE(many);
    many = oar_arange(NULL, OAR_F64, 0, 0, 1);
    assert_int_equal(oar_tensor_count(many), 0);
    RELEASE(many);
    assert_null(oar_arange(NULL, OAR_F64, -1, 0, 1));
    many = oar_eye(NULL, OAR_F32, 0, 3);
    assert_int_equal(oar_tensor_count(many), 0);
    RELEASE(many);
}

/* ---- integers ------------------------------------------------------------ */

static void integers_wrap(void **state)
{
    oar_tensor *a = ROW(OAR_I8, 100, -128, 7), *b = ROW(OAR_I8, 50, -1, 2);
    oar_tensor *u = ROW(OAR_U8, 3, 200), *v = ROW(OAR_U8, 5, 255);

    EXPECT(oar_sub(NULL, a, b), OAR_I8, 50, -127, 5);
    EXPECT(oar_sub(NULL, u, v), OAR_U8, 254, 201);
    EXPECT(oar_div(NULL, a, b), OAR_I8, 2, -128, 3);
    EXPECT(oar_div(NULL, v, u), OAR_U8, 1, 1);
    EXPECT(oar_minimum(NULL, a, b), OAR_I8, 50, -128, 2);
    EXPECT(oar_maximum(NULL, u, v), OAR_U8, 5, 255);
    EXPECT(oar_neg(NULL, a), OAR_I8, -100, -128, -7);
    EXPECT(oar_abs(NULL, b), OAR_I8, 50, 1, 2);
    EXPECT(oar_relu(NULL, a), OAR_I8, 100, 0, 7);
    EXPECT(oar_scale(NULL, a, 3), OAR_I8, 44, -128, 21);
    EXPECT(oar_shift(NULL, u, -4), OAR_U8, 255, 196);
    EXPECT(oar_power(NULL, u, 2), OAR_U8, 9, 64);
    EXPECT(oar_clamp(NULL, a, -9.5, INFINITY), OAR_I8, 100, -9, 7);
    RELEASE(a, b, u, v);
}

static void integer_powers_and_quotients_are_exact(void **state)
{
    oar_tensor *a = ROW(OAR_I64, 3, -2, 0), *b = ROW(OAR_I64, 40, 3, 0);
    oar_tensor *c = ROW(OAR_I32, -7, 7), *d = ROW(OAR_I32, 2, -2);

    EXPECT(oar_pow(NULL, a, b), OAR_I64, 12157665459056928801.0 - 0x1p64, -8,
           1);
    EXPECT(oar_div(NULL, c, d), OAR_I32, -3, -3);
    RELEASE(a, b, c, d);
}

static void integers_are_reduced_and_picked(void **state)
{
    oar_tensor *a = ROW(OAR_I32, 3, 9, 9, -4), *i = ROW(OAR_I64, 1, 1, 3);
    oar_tensor *more = ROW(OAR_I32, 5, 6, 7), *value, *index;

    EXPECT(oar_sum_over(NULL, a, OAR_NO_DIMS, 1), OAR_I32, 17);
    EXPECT(oar_prod_over(NULL, a, OAR_NO_DIMS, 0), OAR_I32, -972);
    EXPECT(oar_max_over(NULL, a, OAR_DIMS(0), 0), OAR_I32, 9);
    EXPECT(oar_min_over(NULL, a, OAR_DIMS(0), 0), OAR_I32, -4);
    EXPECT(oar_argmax(NULL, a, 0, 0), OAR_I64, 1);
    EXPECT(oar_index_select(NULL, a, 0, i), OAR_I32, 9, 9, -4);
    EXPECT(oar_take_along(NULL, a, 0, i), OAR_I32, 9, 9, -4);
    EXPECT(oar_tensor_scatter_add(NULL, a, 0, i, more), OAR_I32, 3, 20, 9, 3);
    OK(oar_topk(NULL, a, 3, &value, &index));
    EXPECT(value, OAR_I32, 9, 9, 3);
    EXPECT(index, OAR_I64, 1, 2, 0);
    RELEASE(a, i, more);
}

/* ---- true and false ------------------------------------------------------ */

static void comparisons_give_bools(void **state)
{
    oar_tensor *a = ROW(OAR_F32, 1, 2, 3, NAN), *b = ROW(OAR_F32, 2, 2, 2, 2);
    oar_tensor *h = ROW(OAR_BF16, 1, 2), *k = ROW(OAR_BF16, 2);
    oar_tensor *u = ROW(OAR_U64, 0, 0x1p63), *v = ROW(OAR_U64, 1);

    EXPECT(oar_eq(NULL, a, b), OAR_BOOL, 0, 1, 0, 0);
    EXPECT(oar_ne(NULL, a, b), OAR_BOOL, 1, 0, 1, 1);
    EXPECT(oar_lt(NULL, a, b), OAR_BOOL, 1, 0, 0, 0);
    EXPECT(oar_le(NULL, a, b), OAR_BOOL, 1, 1, 0, 0);
    EXPECT(oar_gt(NULL, a, b), OAR_BOOL, 0, 0, 1, 0);
    EXPECT(oar_ge(NULL, a, b), OAR_BOOL, 0, 1, 1, 0);
    EXPECT(oar_lt(NULL, h, k), OAR_BOOL, 1, 0);
    EXPECT(oar_gt(NULL, u, v), OAR_BOOL, 0, 1);
    RELEASE(a, b, h, k, u, v);
}

/* Rows go to CBLAS in pieces: small whole numbers tell every row apart. */
static void products_of_many_rows_are_exact(void **state)
{
    enum { ROWS = 1103, WIDTH = 301 };
    oar_shape shape = OAR_SHAPE(ROWS, WIDTH);
    oar_tensor *i = oar_uniform(NULL, OAR_I64, shape, 2, 0, 4);
    oar_tensor *a = oar_empty(NULL, OAR_F32, shape);
    oar_tensor *b = oar_full(NULL, OAR_F32, OAR_SHAPE(WIDTH, 2), 1);
    const float *got, *x = oar_tensor_data(a);
    oar_tensor *c;

    OK(oar_tensor_copy(a, i));
    c = oar_matmul(NULL, a, b);
    got = oar_tensor_data(c);
    for (int r = 0; r < ROWS; r++) {
        float sum = 0;

        for (int k = 0; k < WIDTH; k++)
            sum += x[r * WIDTH + k];
        assert_true(got[2 * r] == sum && got[2 * r + 1] == sum);
    }
    release_all(4, (oar_tensor *[]){ a, i, b, c });
}

static void bools_know_logic(void **state)
{
    oar_tensor *a = ROW(OAR_BOOL, 0, 0, 1, 1), *b = ROW(OAR_BOOL, 0, 1, 0, 1);

    EXPECT(oar_logical_and(NULL, a, b), OAR_BOOL, 0, 0, 0, 1);
    EXPECT(oar_logical_or(NULL, a, b), OAR_BOOL, 0, 1, 1, 1);
    EXPECT(oar_logical_xor(NULL, a, b), OAR_BOOL, 0, 1, 1, 0);
    EXPECT(oar_logical_not(NULL, a), OAR_BOOL, 1, 1, 0, 0);
    EXPECT(oar_eq(NULL, a, b), OAR_BOOL, 1, 0, 0, 1);
    EXPECT(oar_where(NULL, a, b, a), OAR_BOOL, 0, 0, 0, 1);
    RELEASE(a, b);
}

/* ---- numbers that are none ----------------------------------------------- */

static void nan_stays(void **state)
{
    oar_tensor *a = ROW(OAR_F32, 1, NAN, -3), *b = ROW(OAR_F32, NAN, 2, -4);
    oar_tensor *value;

    EXPECT(oar_minimum(NULL, a, b), OAR_F32, NAN, NAN, -4);
    EXPECT(oar_maximum(NULL, a, b), OAR_F32, NAN, NAN, -3);
    EXPECT(oar_clamp(NULL, a, -1, 1), OAR_F32, 1, NAN, -1);
    EXPECT(oar_relu(NULL, a), OAR_F32, 1, NAN, 0);
    EXPECT(oar_max_over(NULL, a, OAR_NO_DIMS, 0), OAR_F32, NAN);
    EXPECT(oar_min_over(NULL, a, OAR_NO_DIMS, 0), OAR_F32, NAN);
    EXPECT(oar_argmax(NULL, a, 0, 1), OAR_I64, 1);
    OK(oar_topk(NULL, a, 2, &value, NULL));
    EXPECT(value, OAR_F32, NAN, 1);
    RELEASE(a, b);
}

static void functions_hold_at_their_ends(void **state)
{
    oar_tensor *a = ROW(OAR_F32, -INFINITY, -200, 0, 200, INFINITY, NAN);

    EXPECT(oar_exp(NULL, a), OAR_F32, 0, 0, 1, INFINITY, INFINITY, NAN);
    EXPECT(oar_tanh(NULL, a), OAR_F32, -1, -1, 0, 1, 1, NAN);
    EXPECT(oar_sigmoid(NULL, a), OAR_F32, 0, 0, 0.5, 1, 1, NAN);
    EXPECT(oar_log(NULL, a), OAR_F32, NAN, NAN, -INFINITY, (double)logf(200),
           INFINITY, NAN);
    EXPECT(oar_rsqrt(NULL, a), OAR_F32, NAN, NAN, INFINITY,
           (double)(1 / sqrtf(200)), 0, NAN);
    EXPECT(oar_sqrt(NULL, a), OAR_F32, NAN, NAN, 0, (double)sqrtf(200),
           INFINITY, NAN);
    RELEASE(a);
    a = ROW(OAR_F32, -200, 0, 200, NAN);
    EXPECT(oar_softplus(NULL, a), OAR_F32, 0, (double)logf(2), 200, NAN);
    EXPECT(oar_gelu_tanh(NULL, a), OAR_F32, 0, 0, 200, NAN);
    EXPECT(oar_silu(NULL, a), OAR_F32, 0, 0, 200, NAN);
    RELEASE(a);
    a = ROW(OAR_F32, 0, 200, NAN);
    EXPECT(oar_gelu(NULL, a), OAR_F32, 0, 200, NAN);
    RELEASE(a);
}

/* The gradient of an input of y, which starts from ones. */
static oar_tensor *gradient(oar_tape *tape, oar_tensor *y, oar_tensor *input)
{
    oar_tensor *grad;

    OK(oar_backward_from(tape, 1, &y, NULL));
    grad = oar_tensor_retain(oar_tensor_grad(input));
    OK(oar_tensor_require_grad(input, 0));
    oar_tape_reset(tape);
    return grad;
}

static void slopes_hold_at_their_ends(void **state)
{
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    for (int d = 0; d < 2; d++) {
        oar_dtype dtype = d == 0 ? OAR_F32 : OAR_F64;
        oar_tensor *a =
            ROW(dtype, -INFINITY, -3e38, -1e34, 100, 1e34, 3e38, INFINITY, NAN);

        OK(oar_tensor_require_grad(a, 1));
        EXPECT(gradient(tape, oar_gelu(tape, a), a), dtype, 0, 0, 0, 1, 1, 1, 1,
               NAN);
        RELEASE(a);
    }
    oar_tape_destroy(tape);
}

/* -a / b^2, of divisors so small that 1 / b is no number any more. */
static void quotients_by_the_least_numbers_have_slopes(void **state)
{
    oar_tensor *a = ROW(OAR_F32, 0, 0x1p-145, -0x1p-140, 6, 1, 1);
    oar_tensor *b =
        ROW(OAR_F32, 0x1p-130, 0x1p-130, 0x1p-130, 2, 0x1p-130, 0x1p-130);
    oar_tensor *g = ROW(OAR_F32, 1, 1, 1, 1, 0x1p-140, 0); /* of the quotient */
    oar_tensor *c = ROW(OAR_F64, 0, 0x1p-1070, 6);
    oar_tensor *d = ROW(OAR_F64, 0x1p-1026, 0x1p-1026, 2);
    oar_tensor *y;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    OK(oar_tensor_require_grad(b, 1));
    OK(oar_tensor_require_grad(d, 1));
    y = oar_div(tape, a, b);
    OK(oar_backward_from(tape, 1, &y, &g));
    EXPECT(oar_tensor_retain(oar_tensor_grad(b)), OAR_F32, 0, -0x1p115, 0x1p120,
           -1.5, -0x1p120, 0);
    oar_tape_reset(tape);
    EXPECT(gradient(tape, oar_div(tape, c, d), d), OAR_F64, 0, -0x1p982, -1.5);
    RELEASE(a, b, c, d, g);
    oar_tape_destroy(tape);
}

/* docs/differences-from-torch.md: PyTorch says something else to each. */
static void slopes_and_values_that_differ_from_pytorch(void **state)
{
    oar_tensor *a = ROW(OAR_F64, 20.5), *b, *c;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    EXPECT(oar_softplus(NULL, a), OAR_F64, 20.5 + log1p(exp(-20.5)));
    RELEASE(a);
    a = ROW(OAR_F32, NAN, 2, 1, -1);
    OK(oar_tensor_require_grad(a, 1));
    EXPECT(gradient(tape, oar_clamp(tape, a, -1, 1), a), OAR_F32, 1, 0, 1, 1);
    OK(oar_tensor_require_grad(a, 1));
    EXPECT(gradient(tape, oar_max_over(tape, a, OAR_NO_DIMS, 0), a), OAR_F32, 1,
           0, 0, 0);
    b = ROW(OAR_F32, 3, NAN, 1, NAN);
    OK(oar_tensor_require_grad(a, 1));
    EXPECT(gradient(tape, oar_maximum(tape, a, b), a), OAR_F32, 0, 0, 0.5, 0);
    RELEASE(a, b);
    a = ROW(OAR_F32, INFINITY, NAN, 1);
    EXPECT(oar_dropout(NULL, a, 1, 1), OAR_F32, 0, 0, 0);
    RELEASE(a);
    a = ROW(OAR_F32, 300, -5, NAN, INFINITY, -INFINITY, -2.7);
    EXPECT(oar_cast(NULL, a, OAR_U8), OAR_U8, 255, 0, 0, 255, 0, 0);
    EXPECT(oar_cast(NULL, a, OAR_I8), OAR_I8, 127, -5, 0, 127, -128, -2);
    RELEASE(a);
    a = ROW(OAR_I32, 2147483647, 1);
    EXPECT(oar_sum(NULL, a), OAR_I32, -2147483648.0);
    EXPECT(oar_clamp(NULL, a, 0, 9.5), OAR_I32, 9, 1);
    RELEASE(a);
    a = oar_full(NULL, OAR_F16, OAR_SHAPE(4), 60000);
    EXPECT(oar_mean(NULL, a), OAR_F16, 60000);
    b = oar_ones(NULL, OAR_F32, OAR_SHAPE(101));
    c = oar_narrow(NULL, b, 0, 0, 1);
    OK(oar_tensor_fill(c, 1e8));
    EXPECT(oar_sum(NULL, b), OAR_F32, 100000096);
    RELEASE(a, b, c);
    oar_tape_destroy(tape);
}

static void large_angles_are_turned_right(void **state)
{
    float far[] = { 1e9f, -3.5e20f, 12345.678f, 1e6f };
    oar_tensor *a = oar_from_data(NULL, OAR_F32, OAR_SHAPE(4), far);
    oar_tensor *s = oar_sin(NULL, a), *c = oar_cos(NULL, a);

    for (int i = 0; i < 4; i++) {
        double x = (double)far[i];

        assert_true(fabs((double)((float *)oar_tensor_data(s))[i] - sin(x)) <
                    2e-7);
        assert_true(fabs((double)((float *)oar_tensor_data(c))[i] - cos(x)) <
                    2e-7);
    }
    RELEASE(a, s, c);
}

/* ---- ties ---------------------------------------------------------------- */

static void the_first_of_equals_gets_the_gradient(void **state)
{
    oar_tensor *a = ROW(OAR_F32, 2, 5, 5, 1, 1);
    oar_tensor *value;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    OK(oar_tensor_require_grad(a, 1));
    OK(oar_backward(tape, oar_max_over(tape, a, OAR_NO_DIMS, 0)));
    expect(oar_tensor_retain(oar_tensor_grad(a)), OAR_F32, 5,
           (double[]){ 0, 1, 0, 0, 0 });
    oar_tape_reset(tape);
    OK(oar_backward(tape, oar_min_over(tape, a, OAR_NO_DIMS, 0)));
    expect(oar_tensor_retain(oar_tensor_grad(a)), OAR_F32, 5,
           (double[]){ 0, 1, 0, 1, 0 });
    oar_tape_reset(tape);
    OK(oar_topk(tape, a, 1, &value, NULL));
    OK(oar_backward(tape, oar_sum(tape, value)));
    expect(oar_tensor_retain(oar_tensor_grad(a)), OAR_F32, 5,
           (double[]){ 0, 2, 0, 1, 0 });
    oar_tape_destroy(tape);
    RELEASE(a);
}

/* ---- casts --------------------------------------------------------------- */

static void casts_convert_and_pass_gradients_between_floats(void **state)
{
    oar_tensor *a = ROW(OAR_F32, 1.5, -2.75, 300), *y;
    oar_tape *tape;

    EXPECT(oar_cast(NULL, a, OAR_I8), OAR_I8, 1, -2, 127);
    EXPECT(oar_cast(NULL, a, OAR_BF16), OAR_BF16, 1.5, -2.75, 300);
    EXPECT(oar_cast(NULL, a, OAR_BOOL), OAR_BOOL, 1, 1, 1);
    OK(oar_tape_create(&tape));
    OK(oar_tensor_require_grad(a, 1));
    y = oar_cast(tape, oar_cast(tape, a, OAR_F16), OAR_F64);
    OK(oar_backward(tape, oar_sum(tape, oar_mul(tape, y, y))));
    expect(oar_tensor_retain(oar_tensor_grad(a)), OAR_F32, 3,
           (double[]){ 3, -5.5, 600 });
    oar_tape_reset(tape);
    OK(oar_backward(tape, oar_sum(tape, oar_cast(tape, a, OAR_F64))));
    expect(oar_tensor_retain(oar_tensor_grad(a)), OAR_F32, 3,
           (double[]){ 4, -4.5, 601 });
    assert_false(oar_tensor_requires_grad(oar_cast(tape, a, OAR_I64)));
    oar_tape_destroy(tape);
    RELEASE(a);
}

/* ---- none and one -------------------------------------------------------- */

static oar_tensor *through_all(oar_tape *tape, oar_tensor *a)
{
    oar_tensor *b = a, *mask = oar_gt(tape, a, oar_scale(tape, a, 2));

#define X(name) b = oar_add(tape, b, oar_##name(tape, a));
    OAR_UNARY_LIST(X)
#undef X
    b = oar_where(tape, mask, oar_sub(tape, b, a), oar_mul(tape, a, b));
    b = oar_masked_fill(tape, oar_div(tape, b, a), mask, 3);
    b = oar_maximum(tape, b, oar_minimum(tape, a, oar_pow(tape, a, a)));
    b = oar_clamp(tape, oar_power(tape, oar_shift(tape, b, 1), 2), -9, 9);
    b = oar_add(tape, b, oar_sum_over(tape, b, OAR_NO_DIMS, 1));
    b = oar_add(tape, b, oar_prod_over(tape, b, OAR_NO_DIMS, 1));
    b = oar_add(tape, b, oar_mean_over(tape, b, OAR_NO_DIMS, 1));
    b = oar_add(tape, b, oar_var_over(tape, b, OAR_NO_DIMS, 1, 0));
    return oar_cast(tape, oar_cast(tape, b, OAR_F64), OAR_F32);
}

static void go_through_all(oar_shape shape)
{
    oar_tensor *a = oar_full(NULL, OAR_F32, shape, 0.5), *y;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    OK(oar_tensor_require_grad(a, 1));
    y = through_all(tape, a);
    if (y == NULL)
        fail_msg("%s", oar_last_error_text());
    assert_int_equal(oar_tensor_count(y), oar_tensor_count(a));
    OK(oar_backward(tape, oar_sum(tape, y)));
    assert_int_equal(oar_tensor_count(oar_tensor_grad(a)), oar_tensor_count(a));
    oar_tape_destroy(tape);
    RELEASE(a);
}

static void tensors_of_none_and_of_one_go_through(void **state)
{
    go_through_all(OAR_SCALAR);
    go_through_all(OAR_SHAPE(1));
    go_through_all(OAR_SHAPE(1, 1, 1));
    go_through_all(OAR_SHAPE(0));
    go_through_all(OAR_SHAPE(3, 0, 5));
}

static void empty_tensors_are_joined_split_and_picked(void **state)
{
    oar_tensor *a = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3, 0)), *y, *part[2];
    oar_tensor *b = oar_ones(NULL, OAR_F32, OAR_SHAPE(3, 2));
    oar_tensor *none = oar_zeros(NULL, OAR_I64, OAR_SHAPE(0));

    EXPECT(oar_cat(NULL, 2, (oar_tensor *[]){ a, b }, 1), OAR_F32, 1, 1, 1, 1,
           1, 1);
    y = oar_index_select(NULL, b, 1, none);
    assert_int_equal(oar_tensor_shape(y).dim[1], 0);
    RELEASE(y);
    part[0] = oar_reshape(NULL, a, OAR_SHAPE(0, 3));
    y = oar_matmul(NULL, a, part[0]);
    RELEASE(part[0]);
    EXPECT(y, OAR_F32, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    EXPECT(oar_sum_over(NULL, a, OAR_DIMS(1), 0), OAR_F32, 0, 0, 0);
    EXPECT(oar_prod_over(NULL, a, OAR_DIMS(1), 0), OAR_F32, 1, 1, 1);
    EXPECT(oar_mean_over(NULL, a, OAR_DIMS(1), 0), OAR_F32, NAN, NAN, NAN);
    EXPECT(oar_var_over(NULL, a, OAR_DIMS(1), 0, 1), OAR_F32, NAN, NAN, NAN);
    y = oar_max_over(NULL, a, OAR_DIMS(0), 0);
    assert_int_equal(oar_tensor_count(y), 0);
    RELEASE(y);
    OK(oar_chunk(NULL, none, 0, 2, part));
    assert_int_equal(oar_tensor_count(part[1]), 0);
    RELEASE(part[0], part[1]);
    y = oar_slice(NULL, b, 0, 2, 1, 1);
    assert_int_equal(oar_tensor_count(y), 0);
    RELEASE(y);
    RELEASE(a, b, none);
}

static void contiguous_gives_the_same_tensor_if_it_is(void **state)
{
    oar_tensor *a = oar_ones(NULL, OAR_F32, OAR_SHAPE(2, 3));
    oar_tensor *same = oar_contiguous(NULL, a);
    oar_tensor *view = oar_transpose(NULL, a, 0, 1);
    oar_tensor *copy = oar_contiguous(NULL, view);

    assert_ptr_equal(same, a);
    assert_ptr_not_equal(copy, view);
    assert_true(oar_tensor_is_contiguous(copy));
    RELEASE(same, copy, view, a);
}

/* ---- text ---------------------------------------------------------------- */

static void expect_text(oar_tensor *a, const char *want)
{
    char text[512];
    size_t length = oar_tensor_text(a, text, sizeof text);

    assert_string_equal(text, want);
    assert_int_equal(length, strlen(want));
    assert_int_equal(oar_tensor_text(a, NULL, 0), length);
    assert_int_equal(oar_tensor_text(a, text, 5), length);
    assert_int_equal(strlen(text), 4);
    oar_tensor_release(a);
}

static void tensors_print_well(void **state)
{
    oar_tensor *a = ROW(OAR_F32, 1, -2.5, 30, 0.125, NAN, 1e9);
    oar_tensor *m = oar_reshape(NULL, a, OAR_SHAPE(2, 3));

    expect_text(m, "f32 [2, 3]\n[[    1,  -2.5,    30],\n"
                   " [0.125,   nan, 1e+09]]");
    RELEASE(a);
    expect_text(oar_full(NULL, OAR_F16, OAR_SCALAR, 1.5), "f16 []\n1.5");
    expect_text(ROW(OAR_BOOL, 1, 0), "bool [2]\n[ true, false]");
    expect_text(ROW(OAR_U64, 0x1p63), "u64 [1]\n[9223372036854775808]");
    expect_text(oar_zeros(NULL, OAR_I8, OAR_SHAPE(0)), "i8 [0]\n[]");
    expect_text(oar_arange(NULL, OAR_I64, 2000, 0, 1),
                "i64 [2000]\n[   0,    1,    2, ..., 1997, 1998, 1999]");
    expect_text(NULL, "no tensor");
}

static void long_tensors_leave_out_the_middle(void **state)
{
    oar_tensor *a = oar_zeros(NULL, OAR_I32, OAR_SHAPE(300, 2, 2));
    char text[512];

    oar_tensor_text(a, text, sizeof text);
    assert_string_equal(text, "i32 [300, 2, 2]\n[[[0, 0],\n  [0, 0]],\n"
                              " [[0, 0],\n  [0, 0]],\n [[0, 0],\n  [0, 0]],\n"
                              " ...,\n [[0, 0],\n  [0, 0]],\n [[0, 0],\n"
                              "  [0, 0]],\n [[0, 0],\n  [0, 0]]]");
    OK(oar_storage_detach(oar_tensor_storage(a)));
    expect_text(a, "i32 [300, 2, 2] detached");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_tensors_hold_what_was_asked),
        cmocka_unit_test(integers_wrap),
        cmocka_unit_test(integer_powers_and_quotients_are_exact),
        cmocka_unit_test(integers_are_reduced_and_picked),
        cmocka_unit_test(comparisons_give_bools),
        cmocka_unit_test(products_of_many_rows_are_exact),
        cmocka_unit_test(bools_know_logic),
        cmocka_unit_test(nan_stays),
        cmocka_unit_test(functions_hold_at_their_ends),
        cmocka_unit_test(slopes_hold_at_their_ends),
        cmocka_unit_test(quotients_by_the_least_numbers_have_slopes),
        cmocka_unit_test(slopes_and_values_that_differ_from_pytorch),
        cmocka_unit_test(large_angles_are_turned_right),
        cmocka_unit_test(the_first_of_equals_gets_the_gradient),
        cmocka_unit_test(casts_convert_and_pass_gradients_between_floats),
        cmocka_unit_test(tensors_of_none_and_of_one_go_through),
        cmocka_unit_test(empty_tensors_are_joined_split_and_picked),
        cmocka_unit_test(contiguous_gives_the_same_tensor_if_it_is),
        cmocka_unit_test(tensors_print_well),
        cmocka_unit_test(long_tensors_leave_out_the_middle),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
