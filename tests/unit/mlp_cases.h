/* SPDX-License-Identifier: Apache-2.0 */
/* unit/mlp_cases.h: an MLP that takes the ten steps that PyTorch took
 * (make_mlp.py), on any device. For tests, one file each. */
#ifndef OARI_TESTS_MLP_CASES_H
#define OARI_TESTS_MLP_CASES_H

#include <oarsong/layers.h>
#include <oarsong/ops.h>
#include <oarsong/optim.h>
#include <oarsong/tape.h>

#include "golden/golden.h"
#include "support/last_error.h"

enum {
    MLP_STEPS = 10,
    MLP_BATCH = 16,
    MLP_IN = 20,
    MLP_HIDDEN = 16,
    MLP_CLASSES = 10
};

static oar_device mlp_on; /* where the model and its batches are */

/* ---- the same data as make_mlp.py ---------------------------------------- */

static oar_tensor *mlp_x(oar_tape *tape, int step, oar_dtype dtype)
{
    oar_tensor *x =
        oar_empty_on(tape, mlp_on, dtype, OAR_SHAPE(MLP_BATCH, MLP_IN));
    double number[MLP_BATCH * MLP_IN];

    for (int64_t i = 0; i < MLP_BATCH * MLP_IN; i++)
        number[i] =
            (double)(((i + step * MLP_BATCH * MLP_IN) * 7919 + 13) % 1009) /
                504.5 -
            1;
    OK(oar_tensor_write(x, OAR_F64, number));
    return x;
}

static oar_tensor *mlp_y(oar_tape *tape, int step)
{
    oar_tensor *y = oar_empty_on(tape, mlp_on, OAR_I64, OAR_SHAPE(MLP_BATCH));
    int64_t number[MLP_BATCH];

    for (int64_t i = 0; i < MLP_BATCH; i++)
        number[i] = ((i + step * MLP_BATCH) * 31 + 7) % 101 % MLP_CLASSES;
    OK(oar_tensor_write(y, OAR_I64, number));
    return y;
}

static oar_module *mlp_create(oar_dtype dtype)
{
    oar_module *part[5], *net;
    const oar_linear_opts *opts = OAR_OPTS(oar_linear_opts, .dtype = dtype);

    OK(oar_linear_create(MLP_IN, MLP_HIDDEN, 1, opts, &part[0]));
    OK(oar_relu_create(&part[1]));
    OK(oar_linear_create(MLP_HIDDEN, MLP_HIDDEN, 3, opts, &part[2]));
    OK(oar_relu_create(&part[3]));
    OK(oar_linear_create(MLP_HIDDEN, MLP_CLASSES, 5, opts, &part[4]));
    OK(oar_sequential_create(5, part, &net));
    if (mlp_on.kind != OAR_CPU)
        OK(oar_module_to(net, mlp_on));
    return net;
}

/* Calls fn with each parameter and the golden record of its name. */
static void mlp_each_param(oar_module *net, const char *kind,
                           void (*fn)(const golden *g, oar_tensor *param))
{
    for (int i = 0; i < oar_module_params(net); i++) {
        char name[32];

        OK(oar_module_param_name(net, i, name, sizeof name));
        fn(golden_get(kind, name), oar_module_param(net, i));
    }
}

static void mlp_load(const golden *g, oar_tensor *param)
{
    OK(oar_tensor_write(param, OAR_F64, g->number));
}

static void mlp_compare(const golden *g, oar_tensor *param)
{
    golden_compare(g, param);
}

static double mlp_step(oar_tape *tape, oar_module *net, oar_optim *sgd,
                       int step, oar_dtype dtype)
{
    oar_tensor *loss = oar_cross_entropy(
        tape, oar_forward(tape, net, mlp_x(tape, step, dtype)),
        mlp_y(tape, step));
    double value;

    OK(oar_backward(tape, loss));
    OK(oar_optim_step(sgd));
    OK(oar_tensor_item(loss, &value));
    oar_optim_zero_grad(sgd);
    oar_tape_reset(tape);
    return value;
}

static void mlp_train(const char *kind, oar_dtype dtype,
                      const oar_sgd_opts *opts)
{
    oar_module *net = mlp_create(dtype);
    oar_optim *sgd;
    oar_tape *tape;

    mlp_each_param(net, "init", mlp_load);
    OK(oar_sgd_create(net, opts, &sgd));
    OK(oar_tape_create(&tape));
    for (int step = 0; step < MLP_STEPS; step++) {
        double want = golden_get(kind, "loss")->number[step];
        double got = mlp_step(tape, net, sgd, step, dtype);

        if (fabs(got - want) > golden_tolerance(dtype) * (1 + fabs(want)))
            fail_msg("%s, step %d: loss %.17g, PyTorch has %.17g", kind, step,
                     got, want);
    }
    mlp_each_param(net, kind, mlp_compare);
    oar_tape_destroy(tape);
    oar_optim_destroy(sgd);
    oar_module_release(net);
}

typedef struct mlp_run {
    const char *kind;
    oar_sgd_opts opts;
} mlp_run;

static const mlp_run mlp_runs[] = {
    { "plain", { .size = sizeof(oar_sgd_opts), .lr = 0.1 } },
    { "momentum",
      { .size = sizeof(oar_sgd_opts), .lr = 0.05, .momentum = 0.9 } },
    { "nesterov",
      { .size = sizeof(oar_sgd_opts),
        .lr = 0.05,
        .momentum = 0.9,
        .weight_decay = 0.01,
        .nesterov = 1 } },
};
enum { MLP_RUNS = sizeof mlp_runs / sizeof *mlp_runs };

#endif
