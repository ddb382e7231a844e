/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the optimizers, number for number: twelve steps along given
 * gradients, as PyTorch took them (make_optim.py, make_adam.py); and continuing
 * from a copied state. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "unit/optim_rules_cases.h"

/* ---- against PyTorch ----------------------------------------------------- */

static void every_rule_agrees_with_pytorch(void **state)
{
    for (int i = 0; i < RULES; i++) {
        run_as(rules[i].name, rules[i].make, OAR_F32);
        run_as(rules[i].name, rules[i].make, OAR_F64);
    }
}

static void a_skipped_parameter_counts_its_own_steps(void **state)
{
    skip_as(OAR_F32);
    skip_as(OAR_F64);
}

static void a_scheduled_rate_agrees_with_pytorch(void **state)
{
    schedule_as(OAR_F32);
    schedule_as(OAR_F64);
}

/* ---- going on ------------------------------------------------------------ */

static void bits_equal(const oar_tensor *a, const oar_tensor *b)
{
    assert_memory_equal(oar_tensor_data(a), oar_tensor_data(b),
                        (size_t)oar_tensor_count(a) *
                            oar_dtype_size(oar_tensor_dtype(a)));
}

/* Makes `to` what `from` is. */
static void copy_optim(oar_optim *to, oar_optim *from)
{
    OK(oar_optim_set_lr(to, oar_optim_lr(from)));
    OK(oar_optim_set_steps(to, oar_optim_steps(from)));
    for (int i = 0; i < oar_optim_params(from); i++) {
        OK(oar_tensor_copy(oar_optim_param(to, i), oar_optim_param(from, i)));
        OK(oar_optim_set_param_steps(to, i, oar_optim_param_steps(from, i)));
        for (int k = 0; oar_optim_state_name(from, k) != NULL; k++)
            OK(oar_tensor_copy(oar_optim_state(to, i, k),
                               oar_optim_state(from, i, k)));
    }
}

static void steps(oar_optim *optim, oar_tensor *const *param, int from, int to)
{
    for (int step = from; step < to; step++) {
        grads_set(param, step);
        if (step == 1)
            oar_tensor_clear_grad(param[1]);
        OK(oar_optim_step(optim));
    }
}

static void go_on_as(make_fn *make, oar_dtype dtype)
{
    oar_tensor *one[PARAMS], *two[PARAMS];
    oar_optim *first, *second;

    params_make(dtype, one);
    params_make(dtype, two);
    first = make(one);
    steps(first, one, 0, STEPS / 2);
    second = make(two);
    copy_optim(second, first);
    steps(first, one, STEPS / 2, STEPS);
    steps(second, two, STEPS / 2, STEPS);
    for (int i = 0; i < PARAMS; i++)
        bits_equal(one[i], two[i]);
    assert_int_equal(oar_optim_steps(second), STEPS);
    oar_optim_destroy(first);
    oar_optim_destroy(second);
    params_drop(one);
    params_drop(two);
}

static void training_goes_on_bitwise_from_a_copied_state(void **state)
{
    static make_fn *const make[] = { sgd_make,         momentum_make,
                                     nesterov_make,    adam_make,
                                     adam_decay_make,  adamw_make,
                                     adamw_decay_make, groups_make,
                                     amsgrad_w_make };

    for (size_t i = 0; i < sizeof make / sizeof *make; i++)
        for (int dtype = OAR_F32; dtype <= OAR_BF16; dtype++)
            go_on_as(make[i], (oar_dtype)dtype);
}

/* ---- half types ---------------------------------------------------------- */

/* A half step is an f32 step from the same numbers, rounded. */
static void half_as(make_fn *make, oar_dtype dtype)
{
    oar_tensor *half[PARAMS], *wide[PARAMS];
    oar_optim *a, *b;

    params_make(dtype, half);
    params_make(OAR_F32, wide);
    a = make(half);
    b = make(wide);
    for (int step = 0; step < STEPS; step++) {
        grads_set(half, step);
        for (int i = 0; i < PARAMS; i++) {
            grad_set(wide[i], i, step);
            OK(oar_tensor_copy(wide[i], half[i]));
            OK(oar_tensor_copy(oar_tensor_grad(wide[i]),
                               oar_tensor_grad(half[i])));
        }
        OK(oar_optim_step(a));
        OK(oar_optim_step(b));
        for (int i = 0; i < PARAMS; i++) {
            oar_tensor *rounded =
                oar_empty(NULL, dtype, oar_tensor_shape(half[i]));

            OK(oar_tensor_copy(rounded, wide[i]));
            bits_equal(half[i], rounded);
            oar_tensor_release(rounded);
            for (int k = 0; oar_optim_state_name(a, k) != NULL; k++) {
                assert_int_equal(oar_tensor_dtype(oar_optim_state(a, i, k)),
                                 OAR_F32);
                bits_equal(oar_optim_state(a, i, k), oar_optim_state(b, i, k));
            }
        }
    }
    oar_optim_destroy(a);
    oar_optim_destroy(b);
    params_drop(half);
    params_drop(wide);
}

static void half_types_are_stepped_in_f32_and_rounded_once(void **state)
{
    static make_fn *const make[] = { sgd_decay_make, nesterov_make,
                                     adam_decay_make, adamw_decay_make,
                                     amsgrad_make };

    for (size_t i = 0; i < sizeof make / sizeof *make; i++) {
        half_as(make[i], OAR_F16);
        half_as(make[i], OAR_BF16);
    }
}

/* More than one block of a half parameter, and an odd rest. */
static void long_half_parameters_are_stepped_to_their_end(void **state)
{
    enum { COUNT = 2500 };
    static float number[COUNT];
    oar_tensor *p = oar_full(NULL, OAR_BF16, OAR_SHAPE(COUNT), 1);
    oar_tensor *grad = oar_full(NULL, OAR_BF16, OAR_SHAPE(COUNT), 1);
    oar_optim *optim;

    OK(oar_tensor_require_grad(p, 1));
    OK(oar_tensor_bind_grad(p, grad));
    OK(oar_tensor_mark_grad(p));
    OK(oar_adam_create_over(1, &p, ADAM(.lr = 0.25), &optim));
    OK(oar_optim_step(optim));
    OK(oar_tensor_read(p, OAR_F32, number));
    for (int i = 0; i < COUNT; i++)
        assert_true(number[i] == 0.75f);
    oar_optim_destroy(optim);
    oar_tensor_release(grad);
    oar_tensor_release(p);
}

static int open_records(void **state)
{
    return golden_load("optim") + golden_load("adam");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_agrees_with_pytorch),
        cmocka_unit_test(a_skipped_parameter_counts_its_own_steps),
        cmocka_unit_test(a_scheduled_rate_agrees_with_pytorch),
        cmocka_unit_test(training_goes_on_bitwise_from_a_copied_state),
        cmocka_unit_test(half_types_are_stepped_in_f32_and_rounded_once),
        cmocka_unit_test(long_half_parameters_are_stepped_to_their_end),
    };

    return cmocka_run_group_tests(tests, open_records, golden_close);
}
