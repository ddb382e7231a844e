/* SPDX-License-Identifier: Apache-2.0 */
/* Losses with every reduction: against PyTorch, against differences of their
 * values, in halves, on empty tensors; and mistakes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/memory.h>

#include "unit/losses_cases.h"
#include "unit/same_numbers.h"

/* ---- against PyTorch and differences ------------------------------------- */

static void losses_agree_with_pytorch(void **state)
{
    golden_check_all(cases, LOSS_CASES, 0);
}

static void strided_views_give_the_same(void **state)
{
    golden_check_all(cases, LOSS_CASES, 1);
}

static void gradients_agree_with_differences(void **state)
{
    gradcheck_all(checks, COUNT, 1, -1);
}

static void gradients_of_two_passes_add_up(void **state)
{
    gradcheck_all(checks, COUNT, 2, -1);
}

static void each_input_has_its_gradient_alone(void **state)
{
    gradcheck_all(checks, COUNT, 1, 0);
    gradcheck_all(checks, COUNT, 1, 1);
}

/* ---- halves -------------------------------------------------------------- */

typedef struct loss_result {
    oar_tensor *out, *grad[2];
} loss_result;

/* The result and the gradients of a case in this dtype, from numbers that all
 * dtypes have. split: backward in two halves. */
static loss_result outcome_of(const golden_case *c, oar_dtype dtype, int split)
{
    oar_tensor *in[2] = { NULL, NULL }, *y;
    oar_tape *tape;
    loss_result got;

    OK(oar_tape_create(&tape));
    for (int i = 0; i < 2; i++) {
        oar_tensor *half = oar_uniform(NULL, OAR_BF16, OAR_SHAPE(7, 5),
                                       3 + (uint64_t)i, 0.25, 0.75);

        in[i] = oar_empty(NULL, dtype, OAR_SHAPE(7, 5));
        OK(oar_tensor_copy(in[i], half));
        OK(oar_tensor_require_grad(in[i], 1));
        oar_tensor_release(half);
    }
    if (strncmp(c->name, "entropy", 7) == 0) {
        oar_tensor_release(in[1]);
        in[1] = gradcheck_targets(NULL, in[0]);
    }
    y = c->fn(tape, in);
    if (y == NULL)
        fail_msg("%s: %s", c->name, oar_last_error_text());
    assert_int_equal(oar_tensor_dtype(y), dtype);
    if (split) {
        OK(oar_backward_inputs(tape, 1, &y, NULL));
        OK(oar_backward_weights(tape));
    } else {
        OK(oar_backward_from(tape, 1, &y, NULL));
    }
    got.out = oar_tensor_retain(y);
    for (int i = 0; i < 2; i++) {
        got.grad[i] = oar_tensor_retain(oar_tensor_grad(in[i]));
        oar_tensor_release(in[i]);
    }
    oar_tape_destroy(tape);
    return got;
}

static void compare(const loss_result *got, const loss_result *want,
                    double tolerance)
{
    assert_same(got->out, want->out, tolerance);
    for (int i = 0; i < 2; i++)
        if (want->grad[i] != NULL)
            assert_same(got->grad[i], want->grad[i], 3 * tolerance);
}

static void halves_are_computed_in_f32_and_rounded(void **state)
{
    for (size_t i = 0; i < LOSS_CASES; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            loss_result want = outcome_of(&cases[i], OAR_F32, 0);
            loss_result got =
                outcome_of(&cases[i], bf16 ? OAR_BF16 : OAR_F16, 0);

            compare(&got, &want, bf16 ? 0x1p-8 : 0x1p-11);
        }
}

static void backward_in_two_halves_leaves_the_same_bits(void **state)
{
    for (size_t i = 0; i < LOSS_CASES; i++) {
        loss_result want = outcome_of(&cases[i], OAR_F32, 0);
        loss_result got = outcome_of(&cases[i], OAR_F32, 1);

        compare(&got, &want, 0);
    }
}

/* ---- corners ------------------------------------------------------------- */

static double item(oar_tensor *loss)
{
    double value;

    if (loss == NULL)
        fail_msg("%s", oar_last_error_text());
    OK(oar_tensor_item(loss, &value));
    oar_tensor_release(loss);
    return value;
}

static void losses_of_nothing_are_nan_or_zero_or_nothing(void **state)
{
    oar_tensor *a = oar_zeros(NULL, OAR_F32, OAR_SHAPE(0, 5));
    oar_tensor *none;
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    OK(oar_tensor_require_grad(a, 1));
    assert_true(isnan(item(oar_l1_loss(NULL, a, a, NULL))));
    assert_true(item(oar_huber_loss(
                    NULL, a, a, 1,
                    OAR_OPTS(oar_loss_opts, .reduction = OAR_LOSS_SUM))) == 0);
    none = oar_bce_with_logits(
        tape, a, a, OAR_OPTS(oar_bce_opts, .reduction = OAR_LOSS_NONE));
    assert_int_equal(oar_tensor_count(none), 0);
    OK(oar_backward_from(tape, 1, &none, NULL));
    assert_non_null(oar_tensor_grad(a));
    oar_tensor_release(a);
    oar_tape_destroy(tape);
}

static void large_logits_and_sure_targets_give_finite_losses(void **state)
{
    const float logit[] = { 200, -200, 200, -200 };
    const float probability[] = { 1, 0, 0, 1 }, none[] = { 0, 1, 0, 0 };
    const float log_none[] = { -INFINITY, 0, -INFINITY, -INFINITY };
    oar_shape shape = OAR_SHAPE(4);
    oar_tensor *x = oar_from_data(NULL, OAR_F32, shape, logit);
    oar_tensor *p = oar_from_data(NULL, OAR_F32, shape, probability);
    oar_tensor *q = oar_from_data(NULL, OAR_F32, shape, none);
    oar_tensor *l = oar_from_data(NULL, OAR_F32, shape, log_none);

    assert_true(item(oar_bce_with_logits(NULL, x, p, NULL)) == 100);
    assert_true(item(oar_kl_div(NULL, x, q, NULL)) == 50);
    assert_true(item(oar_kl_div(NULL, x, l,
                                OAR_OPTS(oar_kl_div_opts, .log_target = 1))) ==
                50);
    oar_tensor_release(x);
    oar_tensor_release(p);
    oar_tensor_release(q);
    oar_tensor_release(l);
}

static void a_small_beta_is_nearly_none(void **state)
{
    oar_tensor *a = normal(OAR_SHAPE(7), 1), *b = normal(OAR_SHAPE(7), 2);

    assert_true(item(oar_smooth_l1_loss(NULL, a, b, 1e-42, NULL)) ==
                item(oar_l1_loss(NULL, a, b, NULL)));
    oar_tensor_release(a);
    oar_tensor_release(b);
}

static void ignored_rows_have_no_loss_and_no_weight(void **state)
{
    oar_tensor *x = normal(OAR_SHAPE(3, 5), 1);
    oar_tensor *t = oar_full(NULL, OAR_I64, OAR_SHAPE(3), 2);
    oar_tensor *in[] = { x, t };

    assert_true(isnan(item(entropy(NULL, in, OAR_LOSS_MEAN, SMOOTH))));
    assert_true(item(entropy(NULL, in, OAR_LOSS_SUM, SMOOTH)) == 0);
    assert_same(entropy(NULL, in, OAR_LOSS_NONE, SMOOTH),
                oar_zeros(NULL, OAR_F32, OAR_SHAPE(3)), 0);
    oar_tensor_release(x);
    oar_tensor_release(t);
}

/* ---- mistakes ------------------------------------------------------------ */

static void wrong_inputs_are_refused_with_a_sentence(void **state)
{
    oar_tensor *a = normal(OAR_SHAPE(3, 5), 1), *b = normal(OAR_SHAPE(5), 2);
    oar_tensor *d = oar_zeros(NULL, OAR_F64, OAR_SHAPE(3, 5));
    oar_tensor *i = oar_zeros(NULL, OAR_I64, OAR_SHAPE(3, 5));
    oar_tensor *one = normal(OAR_SCALAR, 1);
    oar_loss_opts odd = oar_loss_opts_init(), batch = odd;

    odd.reduction = (oar_loss_reduction)4;
    batch.reduction = OAR_LOSS_BATCH_MEAN;
    assert_refused(oar_l1_loss(NULL, a, b, NULL), OAR_E_SHAPE, "[3, 5]");
    assert_refused(oar_l1_loss(NULL, a, d, NULL), OAR_E_DTYPE, "f64");
    assert_refused(oar_kl_div(NULL, i, i, NULL), OAR_E_DTYPE, "i64");
    assert_refused(oar_mse_with(NULL, a, a, &odd), OAR_E_ARG, "reduction 4");
    assert_refused(oar_mse_with(NULL, one, one, &batch), OAR_E_ARG,
                   "reduction 3");
    assert_refused(oar_huber_loss(NULL, a, a, 0, NULL), OAR_E_ARG, "delta 0");
    assert_refused(oar_smooth_l1_loss(NULL, a, a, -1, NULL), OAR_E_ARG,
                   "beta -1");
    oar_tensor_release(a);
    oar_tensor_release(b);
    oar_tensor_release(d);
    oar_tensor_release(i);
    oar_tensor_release(one);
}

static void wrong_weights_are_refused_with_a_sentence(void **state)
{
    oar_tensor *a = normal(OAR_SHAPE(3, 5), 1), *b = normal(OAR_SHAPE(4), 2);
    oar_tensor *t = oar_zeros(NULL, OAR_I64, OAR_SHAPE(3));
    oar_tensor *d = oar_zeros(NULL, OAR_F64, OAR_SHAPE(5));
    oar_cross_entropy_opts o = oar_cross_entropy_opts_init();
    oar_bce_opts w = oar_bce_opts_init();
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    o.weight = w.weight = b;
    assert_refused(oar_cross_entropy_with(NULL, a, t, &o), OAR_E_SHAPE, "[4]");
    assert_refused(oar_bce_with_logits(NULL, a, a, &w), OAR_E_SHAPE, "[4]");
    o.weight = w.weight = d;
    assert_refused(oar_cross_entropy_with(NULL, a, t, &o), OAR_E_DTYPE, "f64");
    assert_refused(oar_bce_with_logits(NULL, a, a, &w), OAR_E_DTYPE, "f64");
    o.weight = NULL;
    o.reduction = OAR_LOSS_BATCH_MEAN;
    assert_refused(oar_cross_entropy_with(NULL, a, t, &o), OAR_E_ARG,
                   "mean, sum or none");
    w.weight = NULL;
    w.positive_weight = a;
    OK(oar_tensor_require_grad(a, 1));
    assert_refused(oar_bce_with_logits(tape, a, a, &w), OAR_E_ARG,
                   "none by weights");
    oar_tape_destroy(tape);
    oar_tensor_release(a);
    oar_tensor_release(b);
    oar_tensor_release(t);
    oar_tensor_release(d);
}

static int open_golden(void **state)
{
    return golden_load("losses");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_agree_with_pytorch),
        cmocka_unit_test(strided_views_give_the_same),
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(gradients_of_two_passes_add_up),
        cmocka_unit_test(each_input_has_its_gradient_alone),
        cmocka_unit_test(halves_are_computed_in_f32_and_rounded),
        cmocka_unit_test(backward_in_two_halves_leaves_the_same_bits),
        cmocka_unit_test(losses_of_nothing_are_nan_or_zero_or_nothing),
        cmocka_unit_test(large_logits_and_sure_targets_give_finite_losses),
        cmocka_unit_test(a_small_beta_is_nearly_none),
        cmocka_unit_test(ignored_rows_have_no_loss_and_no_weight),
        cmocka_unit_test(wrong_inputs_are_refused_with_a_sentence),
        cmocka_unit_test(wrong_weights_are_refused_with_a_sentence),
    };

    return cmocka_run_group_tests(tests, open_golden, golden_close);
}
