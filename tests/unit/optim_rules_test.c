/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the optimizers, number for number: twelve steps along given
 * gradients, as PyTorch took them (make_optim.py, make_adam.py); and continuing
 * from a copied state. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <oarsong/optim.h>

#include "golden/golden.h"
#include "support/last_error.h"

enum { STEPS = 12, PARAMS = 3 };

typedef oar_optim *make_fn(oar_tensor *const *param);

/* ---- parameters and their gradients -------------------------------------- */

static const char *part(const char *format, int i)
{
    static char text[32];

    snprintf(text, sizeof text, format, i);
    return text;
}

static void params_make(oar_dtype dtype, oar_tensor **param)
{
    for (int i = 0; i < PARAMS; i++) {
        param[i] = golden_tensor(golden_get("start", part("p%d", i)), dtype);
        OK(oar_tensor_require_grad(param[i], 1));
    }
}

static void params_drop(oar_tensor **param)
{
    for (int i = 0; i < PARAMS; i++)
        oar_tensor_release(param[i]);
}

/* Gives parameter i the gradient of a step. */
static void grad_set(oar_tensor *param, int i, int step)
{
    const golden *g = golden_get("grad", part("p%d", i));
    oar_tensor *home =
        oar_empty(NULL, oar_tensor_dtype(param), oar_tensor_shape(param));
    int64_t count = oar_tensor_count(param);

    oar_tensor_clear_grad(param);
    OK(oar_tensor_write(home, OAR_F64, g->number + step * count));
    OK(oar_tensor_bind_grad(param, home));
    OK(oar_tensor_mark_grad(param));
    oar_tensor_release(home);
}

static void grads_set(oar_tensor *const *param, int step)
{
    for (int i = 0; i < PARAMS; i++)
        grad_set(param[i], i, step);
}

/* ---- against PyTorch ----------------------------------------------------- */

static void compare(const char *run, const char *name, const oar_tensor *got)
{
    const golden *want = golden_get(run, name);
    double tolerance = oar_tensor_dtype(got) == OAR_F32 ? 1e-6 : 1e-10;
    double number[64];

    assert_int_equal(oar_tensor_count(got), want->count);
    OK(oar_tensor_read(got, OAR_F64, number));
    for (size_t i = 0; i < want->count; i++)
        if (!(fabs(number[i] - want->number[i]) <=
              tolerance * (1 + fabs(want->number[i]))))
            fail_msg("%s.%s[%zu]: %.17g, PyTorch has %.17g", run, name, i,
                     number[i], want->number[i]);
}

/* Every parameter and every state that PyTorch has too. */
static void compare_all(const char *run, oar_dtype dtype, oar_optim *optim)
{
    char full[64], name[64];

    snprintf(full, sizeof full, "%s.%s", run, oar_dtype_name(dtype));
    assert_int_equal(oar_optim_params(optim), PARAMS);
    for (int i = 0; i < PARAMS; i++) {
        compare(full, part("p%d", i), oar_optim_param(optim, i));
        for (int k = 0; oar_optim_state_name(optim, k) != NULL; k++) {
            snprintf(name, sizeof name, "p%d.%s", i,
                     oar_optim_state_name(optim, k));
            compare(full, name, oar_optim_state(optim, i, k));
        }
    }
}

static void run_as(const char *run, make_fn *make, oar_dtype dtype)
{
    oar_tensor *param[PARAMS];
    oar_optim *optim;

    params_make(dtype, param);
    optim = make(param);
    for (int step = 0; step < STEPS; step++) {
        grads_set(param, step);
        OK(oar_optim_step(optim));
    }
    assert_int_equal(oar_optim_steps(optim), STEPS);
    compare_all(run, dtype, optim);
    oar_optim_destroy(optim);
    params_drop(param);
}

#define CREATE(name, kind, ...)                                           \
    static oar_optim *name##_make(oar_tensor *const *param)               \
    {                                                                     \
        oar_optim *optim;                                                 \
        OK(oar_##kind##_create_over(PARAMS, param, __VA_ARGS__, &optim)); \
        return optim;                                                     \
    }                                                                     \
    static void name##_agrees_with_pytorch(void **state)                  \
    {                                                                     \
        run_as(#name, name##_make, OAR_F32);                              \
        run_as(#name, name##_make, OAR_F64);                              \
    }
#define SGD(...)  OAR_OPTS(oar_sgd_opts, __VA_ARGS__)
#define ADAM(...) OAR_OPTS(oar_adam_opts, __VA_ARGS__)

CREATE(sgd, sgd, SGD(.lr = 0.1))
CREATE(sgd_decay, sgd, SGD(.lr = 0.1, .weight_decay = 0.03))
CREATE(momentum, sgd, SGD(.lr = 0.05, .momentum = 0.9))
CREATE(nesterov, sgd,
       SGD(.lr = 0.05, .momentum = 0.8, .weight_decay = 0.01, .nesterov = 1))
CREATE(adam, adam, ADAM(.lr = 0.01))
CREATE(adam_decay, adam,
       ADAM(.lr = 0.02, .beta1 = 0.8, .beta2 = 0.97, .eps = 1e-6,
            .weight_decay = 0.05))
CREATE(adamw, adamw, NULL)
CREATE(adamw_decay, adamw,
       ADAM(.lr = 0.02, .beta1 = 0.7, .beta2 = 0.95, .weight_decay = 0.2))
CREATE(adamw_none, adamw, ADAM(.lr = 0.02, .no_decay = 1))
CREATE(amsgrad, adam,
       ADAM(.lr = 0.02, .beta1 = 0.8, .beta2 = 0.3, .amsgrad = 1))
CREATE(amsgrad_w, adamw,
       ADAM(.lr = 0.02, .beta1 = 0.8, .beta2 = 0.3, .weight_decay = 0.1,
            .amsgrad = 1))
CREATE(beta1_zero, adam, ADAM(.lr = 0.01, .no_beta1 = 1, .beta2 = 0.9))
CREATE(beta2_zero, adamw, ADAM(.lr = 0.01, .no_beta2 = 1))
CREATE(eps_zero, adam, ADAM(.lr = 0.01, .no_eps = 1))

static oar_optim *groups_make(oar_tensor *const *param)
{
    oar_optim *optim;

    OK(oar_adamw_create_over(1, param, ADAM(.lr = 0.02, .weight_decay = 0.1),
                             &optim));
    OK(oar_optim_add_group(optim, 1, param + 1, 0.5, 0));
    OK(oar_optim_add_group(optim, 1, param + 2, 3, 2));
    return optim;
}

static void groups_agree_with_pytorch(void **state)
{
    run_as("groups", groups_make, OAR_F32);
    run_as("groups", groups_make, OAR_F64);
}

static void skip_as(oar_dtype dtype)
{
    oar_tensor *param[PARAMS];
    oar_optim *optim;

    params_make(dtype, param);
    OK(oar_adamw_create_over(PARAMS, param, ADAM(.lr = 0.02), &optim));
    for (int step = 0; step < STEPS; step++) {
        grads_set(param, step);
        if (step == 0 || step == 1 || step == 5)
            oar_tensor_clear_grad(param[1]);
        OK(oar_optim_step(optim));
    }
    assert_int_equal(oar_optim_param_steps(optim, 0), STEPS);
    assert_int_equal(oar_optim_param_steps(optim, 1), STEPS - 3);
    compare_all("skip", dtype, optim);
    oar_optim_destroy(optim);
    params_drop(param);
}

static void a_skipped_parameter_counts_its_own_steps(void **state)
{
    skip_as(OAR_F32);
    skip_as(OAR_F64);
}

static void schedule_as(oar_dtype dtype)
{
    const oar_lr_schedule *schedule =
        OAR_OPTS(oar_lr_schedule, .kind = OAR_LR_COSINE, .warmup = 4,
                 .steps = 20, .final = 0.1);
    oar_tensor *param[PARAMS];
    oar_optim *optim;

    params_make(dtype, param);
    OK(oar_adamw_create_over(PARAMS, param, NULL, &optim));
    for (int step = 0; step < STEPS; step++) {
        grads_set(param, step);
        OK(oar_optim_set_lr(optim, 0.05 * oar_lr_schedule_at(schedule, step)));
        OK(oar_optim_step(optim));
    }
    compare_all("scheduled", dtype, optim);
    oar_optim_destroy(optim);
    params_drop(param);
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
        cmocka_unit_test(sgd_agrees_with_pytorch),
        cmocka_unit_test(sgd_decay_agrees_with_pytorch),
        cmocka_unit_test(momentum_agrees_with_pytorch),
        cmocka_unit_test(nesterov_agrees_with_pytorch),
        cmocka_unit_test(adam_agrees_with_pytorch),
        cmocka_unit_test(adam_decay_agrees_with_pytorch),
        cmocka_unit_test(adamw_agrees_with_pytorch),
        cmocka_unit_test(adamw_decay_agrees_with_pytorch),
        cmocka_unit_test(adamw_none_agrees_with_pytorch),
        cmocka_unit_test(amsgrad_agrees_with_pytorch),
        cmocka_unit_test(amsgrad_w_agrees_with_pytorch),
        cmocka_unit_test(beta1_zero_agrees_with_pytorch),
        cmocka_unit_test(beta2_zero_agrees_with_pytorch),
        cmocka_unit_test(eps_zero_agrees_with_pytorch),
        cmocka_unit_test(groups_agree_with_pytorch),
        cmocka_unit_test(a_skipped_parameter_counts_its_own_steps),
        cmocka_unit_test(a_scheduled_rate_agrees_with_pytorch),
        cmocka_unit_test(training_goes_on_bitwise_from_a_copied_state),
        cmocka_unit_test(half_types_are_stepped_in_f32_and_rounded_once),
        cmocka_unit_test(long_half_parameters_are_stepped_to_their_end),
    };

    return cmocka_run_group_tests(tests, open_records, golden_close);
}
