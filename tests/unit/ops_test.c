/* SPDX-License-Identifier: Apache-2.0 */
/* Operations: against PyTorch's numbers, forward and backward, in f32 and f64;
 * on integers, on empty tensors; and what they refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "golden/golden.h"
#include "support/last_error.h"

/* ---- golden cases -------------------------------------------------------- */

#define CASE(name, expression)                                           \
    static oar_tensor *run_##name(oar_tape *tape, oar_tensor *const *in) \
    {                                                                    \
        return expression;                                               \
    }

static oar_tensor *t(oar_tape *tape, oar_tensor *a)
{
    return oar_transpose(tape, a, 0, 1);
}

CASE(add, oar_add(tape, in[0], in[1]))
CASE(mul, oar_mul(tape, in[0], in[1]))
CASE(mul_views, oar_mul(tape, t(tape, in[0]), in[1]))
CASE(scale, oar_scale(tape, in[0], -1.75))
CASE(relu, oar_relu(tape, in[0]))
CASE(relu_view, oar_relu(tape, t(tape, in[0])))
CASE(sum, oar_sum(tape, in[0]))
CASE(mean, oar_mean(tape, in[0]))
CASE(reshape, oar_mul(tape, oar_reshape(tape, in[0], OAR_SHAPE(7, -1)),
                      oar_reshape(tape, in[0], OAR_SHAPE(7, -1))))
CASE(reshape_copy,
     oar_reshape(tape, oar_transpose(tape, in[0], 0, -1), OAR_SHAPE(5, -1)))
CASE(narrow, oar_narrow(tape, in[0], 1, 2, 3))
CASE(matmul, oar_matmul(tape, in[0], in[1]))
CASE(matmul_views, oar_matmul(tape, t(tape, in[0]), t(tape, in[1])))
CASE(linear, oar_linear(tape, in[0], in[1], in[2]))
CASE(linear_no_bias, oar_linear(tape, in[0], in[1], NULL))
CASE(softmax, oar_softmax(tape, in[0]))
CASE(cross_entropy, oar_cross_entropy(tape, in[0], in[1]))

static const golden_case golden_cases[] = {
    { "add", run_add },
    { "add_row", run_add },
    { "add_both", run_add },
    { "mul", run_mul },
    { "mul_views", run_mul_views },
    { "scale", run_scale },
    { "relu", run_relu },
    { "relu_view", run_relu_view },
    { "sum", run_sum },
    { "mean", run_mean },
    { "reshape", run_reshape },
    { "reshape_copy", run_reshape_copy },
    { "narrow", run_narrow },
    { "matmul", run_matmul },
    { "matmul_views", run_matmul_views },
    { "linear", run_linear },
    { "linear_deep", run_linear },
    { "linear_no_bias", run_linear_no_bias },
    { "softmax", run_softmax },
    { "cross_entropy", run_cross_entropy },
};

enum { GOLDEN_CASES = sizeof golden_cases / sizeof *golden_cases };

static void every_operation_agrees_with_pytorch(void **state)
{
    golden_check_all(golden_cases, GOLDEN_CASES, 0);
}

static void strided_views_give_the_same(void **state)
{
    golden_check_all(golden_cases, GOLDEN_CASES, 1);
}

/* ---- without a tape ------------------------------------------------------ */

static double item(const oar_tensor *a)
{
    double value = NAN;

    OK(oar_tensor_item(a, &value));
    return value;
}

static void expect(oar_tensor *a, int count, const double *want)
{
    double got[64];

    if (a == NULL)
        fail_msg("%s", oar_last_error_text());
    assert_int_equal(oar_tensor_count(a), count);
    OK(oar_tensor_read(a, OAR_F64, got));
    for (int i = 0; i < count; i++)
        if (got[i] != want[i])
            fail_msg("element %d is %g, not %g", i, got[i], want[i]);
    oar_tensor_release(a);
}

static void without_a_tape_the_caller_owns_the_result(void **state)
{
    oar_tensor *a = oar_full(NULL, OAR_F32, OAR_SHAPE(3), -2);

    OK(oar_tensor_require_grad(a, 1));
    expect(oar_relu(NULL, a), 3, (double[]){ 0, 0, 0 });
    expect(oar_softmax(NULL, a), 3, (double[]){ 1 / 3.f, 1 / 3.f, 1 / 3.f });
    expect(oar_reshape(NULL, a, OAR_SHAPE(3, 1)), 3, (double[]){ -2, -2, -2 });
    oar_tensor_release(a);
}

static void integers_are_added_and_multiplied_and_wrap(void **state)
{
    oar_tensor *a =
        oar_from_data(NULL, OAR_I8, OAR_SHAPE(3), (int8_t[]){ 100, -3, -128 });
    oar_tensor *b = oar_from_data(NULL, OAR_I8, OAR_SHAPE(1), (int8_t[]){ 50 });
    oar_tensor *c = oar_full(NULL, OAR_U64, OAR_SHAPE(5), 7);
    oar_tensor *sum;

    expect(oar_add(NULL, a, b), 3, (double[]){ -106, 47, -78 });
    expect(oar_mul(NULL, a, b), 3, (double[]){ -120, 106, 0 });
    expect(oar_relu(NULL, a), 3, (double[]){ 100, 0, 0 });
    sum = oar_sum(NULL, c);
    assert_int_equal(oar_tensor_dtype(sum), OAR_U64);
    assert_true(item(sum) == 35);
    oar_tensor_release(sum);
    oar_tensor_release(a);
    oar_tensor_release(b);
    oar_tensor_release(c);
}

static void empty_tensors_go_through_every_operation(void **state)
{
    oar_tape *tape;
    oar_tensor *a = oar_zeros(NULL, OAR_F32, OAR_SHAPE(0, 5));
    oar_tensor *w = oar_full(NULL, OAR_F32, OAR_SHAPE(3, 5), 1);
    oar_tensor *bias = oar_full(NULL, OAR_F32, OAR_SHAPE(3), 1);
    oar_tensor *y, *grad;

    OK(oar_tape_create(&tape));
    OK(oar_tensor_require_grad(w, 1));
    OK(oar_tensor_require_grad(bias, 1));
    y = oar_linear(tape, oar_relu(tape, oar_scale(tape, a, 2)), w, bias);
    assert_int_equal(oar_tensor_count(y), 0);
    y = oar_sum(tape, oar_softmax(tape, y));
    assert_true(item(y) == 0);
    OK(oar_backward(tape, y));
    grad = oar_tensor_grad(w);
    assert_non_null(grad);
    expect(oar_sum(NULL, oar_tensor_grad(bias)), 1, (double[]){ 0 });
    expect(oar_sum(NULL, grad), 1, (double[]){ 0 });
    y = oar_matmul(tape, oar_transpose(tape, a, 0, 1), a);
    expect(oar_tensor_retain(oar_sum(tape, y)), 1, (double[]){ 0 });
    assert_true(isnan(item(oar_mean(tape, a))));
    oar_tape_destroy(tape);
    oar_tensor_release(a);
    oar_tensor_release(w);
    oar_tensor_release(bias);
}

static void softmax_of_large_numbers_does_not_overflow(void **state)
{
    oar_tensor *a =
        oar_from_data(NULL, OAR_F32, OAR_SHAPE(1, 2), (float[]){ 1e4f, -1e4f });
    oar_tensor *target =
        oar_from_data(NULL, OAR_I64, OAR_SHAPE(1), (int64_t[]){ 1 });

    expect(oar_softmax(NULL, a), 2, (double[]){ 1, 0 });
    expect(oar_cross_entropy(NULL, a, target), 1, (double[]){ 2e4 });
    oar_tensor_release(a);
    oar_tensor_release(target);
}

static void relu_keeps_a_nan(void **state)
{
    oar_tensor *a = oar_full(NULL, OAR_F64, OAR_SCALAR, NAN);
    oar_tensor *y = oar_relu(NULL, a);

    assert_true(isnan(item(y)));
    oar_tensor_release(y);
    oar_tensor_release(a);
}

static void reshape_views_where_strides_allow_and_copies_elsewhere(void **s)
{
    oar_tensor *a = oar_uniform(NULL, OAR_F32, OAR_SHAPE(2, 3, 1, 4), 1, 0, 1);
    oar_tensor *part = oar_narrow(NULL, a, 1, 1, 2);
    oar_tensor *view = oar_reshape(NULL, part, OAR_SHAPE(2, 8, 1));
    oar_tensor *copy = oar_reshape(NULL, part, OAR_SHAPE(-1));

    assert_false(oar_tensor_is_contiguous(view));
    assert_ptr_equal(oar_tensor_storage(view), oar_tensor_storage(a));
    assert_int_equal(oar_tensor_stride(view, 0), 12);
    assert_true(oar_tensor_is_contiguous(copy));
    assert_ptr_not_equal(oar_tensor_storage(copy), oar_tensor_storage(a));
    oar_tensor_release(copy);
    oar_tensor_release(view);
    oar_tensor_release(part);
    oar_tensor_release(a);
}

/* ---- saying no ----------------------------------------------------------- */

static void refuses(oar_tensor *result, oar_status status, const char *words)
{
    assert_null(result);
    assert_int_equal(oar_last_error()->status, status);
    if (strstr(oar_last_error_text(), words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", oar_last_error_text(), words);
    oar_clear_error();
}

static void shapes_that_do_not_fit_are_named(void **state)
{
    oar_tensor *a = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3, 4));
    oar_tensor *b = oar_zeros(NULL, OAR_F32, OAR_SHAPE(5, 6));
    oar_tensor *c = oar_zeros(NULL, OAR_F32, OAR_SHAPE(4));

    refuses(oar_matmul(NULL, a, b), OAR_E_SHAPE,
            "matmul of [3, 4] and [5, 6]: inner sizes 4 and 5 differ");
    refuses(oar_matmul(NULL, a, c), OAR_E_SHAPE, "[3, 4] and [4]");
    refuses(oar_add(NULL, a, b), OAR_E_SHAPE, "add of [3, 4] and [5, 6]");
    refuses(oar_mul(NULL, b, a), OAR_E_SHAPE, "mul of [5, 6] and [3, 4]");
    refuses(oar_linear(NULL, a, b, NULL), OAR_E_SHAPE,
            "linear of x [3, 4], weight [5, 6], bias none");
    refuses(oar_linear(NULL, a, a, c), OAR_E_SHAPE, "bias [4]");
    refuses(oar_reshape(NULL, a, OAR_SHAPE(5, -1)), OAR_E_SHAPE,
            "reshape of [3, 4] to [5, -1]");
    refuses(oar_reshape(NULL, a, OAR_SHAPE(-1, -1)), OAR_E_ARG, "negative");
    refuses(oar_transpose(NULL, a, 0, 2), OAR_E_SHAPE, "[3, 4]");
    refuses(oar_transpose(NULL, a, -3, 0), OAR_E_SHAPE, "[3, 4]");
    refuses(oar_narrow(NULL, a, 1, 2, 3), OAR_E_SHAPE, "[3, 4]");
    refuses(oar_narrow(NULL, a, 7, 0, 1), OAR_E_SHAPE, "[3, 4]");
    oar_tensor_release(a);
    oar_tensor_release(b);
    oar_tensor_release(c);
}

static void targets_outside_the_classes_are_named(void **state)
{
    oar_tensor *logits = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3, 4));
    oar_tensor *target =
        oar_from_data(NULL, OAR_I64, OAR_SHAPE(3), (int64_t[]){ 0, 4, 1 });
    oar_tensor *few = oar_zeros(NULL, OAR_I64, OAR_SHAPE(2));
    oar_tensor *floats = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3));

    refuses(oar_cross_entropy(NULL, logits, target), OAR_E_ARG,
            "target 4 of row 1");
    refuses(oar_cross_entropy(NULL, logits, few), OAR_E_SHAPE,
            "[3, 4] and target [2]");
    refuses(oar_cross_entropy(NULL, logits, floats), OAR_E_DTYPE, "i64");
    oar_tensor_release(logits);
    oar_tensor_release(target);
    oar_tensor_release(few);
    oar_tensor_release(floats);
}

static void dtypes_that_do_not_fit_are_named(void **state)
{
    oar_tensor *f32 = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3));
    oar_tensor *f64 = oar_zeros(NULL, OAR_F64, OAR_SHAPE(3));
    oar_tensor *flag = oar_zeros(NULL, OAR_BOOL, OAR_SHAPE(3));
    oar_tensor *i32 = oar_zeros(NULL, OAR_I32, OAR_SHAPE(3));

    refuses(oar_add(NULL, f32, f64), OAR_E_DTYPE, "f32 [3] and f64 [3]");
    refuses(oar_relu(NULL, flag), OAR_E_DTYPE, "relu of bool [3]");
    refuses(oar_add(NULL, flag, flag), OAR_E_DTYPE, "add of bool [3]");
    refuses(oar_scale(NULL, i32, 0.5), OAR_E_ARG, "i32 [3] with 0.5");
    refuses(oar_mean(NULL, i32), OAR_E_DTYPE, "i32");
    refuses(oar_softmax(NULL, i32), OAR_E_DTYPE, "i32");
    oar_tensor_release(f32);
    oar_tensor_release(f64);
    oar_tensor_release(flag);
    oar_tensor_release(i32);
}

static void a_chain_keeps_its_first_error(void **state)
{
    oar_tensor *a = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3, 4));
    oar_tensor *chain;

    oar_clear_error();
    refuses(oar_relu(NULL, NULL), OAR_E_ARG, "relu of NULL");
    refuses(oar_linear(NULL, a, NULL, NULL), OAR_E_ARG, "linear of NULL");
    chain = oar_sum(
        NULL,
        oar_mul(NULL, a, oar_relu(NULL, oar_reshape(NULL, a, OAR_SHAPE(5)))));
    refuses(chain, OAR_E_SHAPE, "reshape of [3, 4] to [5]");
    oar_tensor_release(a);
}

static void an_operation_on_detached_data_is_a_wrong_state(void **state)
{
    oar_tensor *a = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3, 3));

    OK(oar_storage_detach(oar_tensor_storage(a)));
    refuses(oar_relu(NULL, a), OAR_E_STATE, "relu of a tensor [3, 3]");
    refuses(oar_matmul(NULL, a, a), OAR_E_STATE, "detached");
    refuses(oar_transpose(NULL, a, 0, 1), OAR_E_STATE, "detached");
    oar_tensor_release(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_agrees_with_pytorch),
        cmocka_unit_test(strided_views_give_the_same),
        cmocka_unit_test(without_a_tape_the_caller_owns_the_result),
        cmocka_unit_test(integers_are_added_and_multiplied_and_wrap),
        cmocka_unit_test(empty_tensors_go_through_every_operation),
        cmocka_unit_test(softmax_of_large_numbers_does_not_overflow),
        cmocka_unit_test(relu_keeps_a_nan),
        cmocka_unit_test(
            reshape_views_where_strides_allow_and_copies_elsewhere),
        cmocka_unit_test(shapes_that_do_not_fit_are_named),
        cmocka_unit_test(targets_outside_the_classes_are_named),
        cmocka_unit_test(dtypes_that_do_not_fit_are_named),
        cmocka_unit_test(a_chain_keeps_its_first_error),
        cmocka_unit_test(an_operation_on_detached_data_is_a_wrong_state),
    };

    return cmocka_run_group_tests(tests, golden_open, golden_close);
}
