/* SPDX-License-Identifier: Apache-2.0 */
/* unit/optim_rules_cases.h: twelve steps of each rule along given gradients, as
 * PyTorch took them (make_optim.py, make_adam.py), on any device. For tests,
 * one file each. */
#ifndef OARI_TESTS_OPTIM_RULES_CASES_H
#define OARI_TESTS_OPTIM_RULES_CASES_H

#include <oarsong/optim.h>

#include "golden/golden.h"
#include "support/last_error.h"

enum { STEPS = 12, PARAMS = 3 };

typedef oar_optim *make_fn(oar_tensor *const *param);

typedef struct optim_rule {
    const char *name;
    make_fn *make;
} optim_rule;

/* Where parameters are made. */
static oar_device rules_on;

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
        const golden *start = golden_get("start", part("p%d", i));

        param[i] = oar_empty_on(NULL, rules_on, dtype, start->shape);
        OK(oar_tensor_write(param[i], OAR_F64, start->number));
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
    oar_tensor *home = oar_empty_on(NULL, rules_on, oar_tensor_dtype(param),
                                    oar_tensor_shape(param));
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
    double near = oar_tensor_dtype(got) != OAR_F32 ? 1e-10
                  : rules_on.kind == OAR_CPU       ? 1e-6
                                                   : 1e-5;
    double number[64];

    assert_int_equal(oar_tensor_count(got), want->count);
    OK(oar_tensor_read(got, OAR_F64, number));
    for (size_t i = 0; i < want->count; i++)
        if (!(fabs(number[i] - want->number[i]) <=
              near * (1 + fabs(want->number[i]))))
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

static const optim_rule rules[] = {
    { "sgd", sgd_make },
    { "sgd_decay", sgd_decay_make },
    { "momentum", momentum_make },
    { "nesterov", nesterov_make },
    { "adam", adam_make },
    { "adam_decay", adam_decay_make },
    { "adamw", adamw_make },
    { "adamw_decay", adamw_decay_make },
    { "adamw_none", adamw_none_make },
    { "amsgrad", amsgrad_make },
    { "amsgrad_w", amsgrad_w_make },
    { "beta1_zero", beta1_zero_make },
    { "beta2_zero", beta2_zero_make },
    { "eps_zero", eps_zero_make },
    { "groups", groups_make },
};
enum { RULES = sizeof rules / sizeof *rules };

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

#endif
