/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers on a GPU against those of the cpu: every rule and dtype, master
 * weights, groups, clipping with and without the host, a scaler; parameters
 * that are moved after the optimizer was made. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/device.h>
#include <oarsong/layers.h>
#include <oarsong/ops.h>
#include <oarsong/optim.h>
#include <oarsong/tape.h>

#include "support/gpu_ranks.h"

static const oar_device cpu = { OAR_CPU, 0 }, gpu = { OAR_CUDA, 0 };

static void run(test_job_fn fn, const char *what)
{
    test_job c;

    test_job_start(&c, 1, fn, NULL, "%s", what);
    test_job_expect(&c, 0, 0);
    test_job_end(&c);
}

/* ---- some parameters and their gradients --------------------------------- */

enum { PARAMS = 70, MOST = 5000 }; /* more than fit one launch */

typedef struct param_set {
    oar_device device;
    oar_dtype dtype;
    oar_tensor *param[PARAMS];
} param_set;

/* One is longer than the share of a block, one is empty. */
static oar_shape shape_of(int i)
{
    return OAR_SHAPE(i == 3 ? 4999 : i == 5 ? 0 : 3 + i % 7);
}

static oar_tensor *numbers(const param_set *m, int i, uint64_t seed)
{
    oar_tensor *wide =
        oar_normal(NULL, OAR_F32, shape_of(i), seed + (uint64_t)i, 0, 1);
    oar_tensor *here = oar_cast(NULL, wide, m->dtype);
    oar_tensor *there = oar_to(NULL, here, m->device);

    oar_tensor_release(wide);
    oar_tensor_release(here);
    return there;
}

static int make_model(param_set *m, oar_device device, oar_dtype dtype)
{
    m->device = device;
    m->dtype = dtype;
    for (int i = 0; i < PARAMS; i++) {
        m->param[i] = numbers(m, i, 1000);
        if (m->param[i] == NULL ||
            oar_tensor_require_grad(m->param[i], 1) != OAR_OK)
            return 0;
    }
    return 1;
}

static void free_model(param_set *m)
{
    for (int i = 0; i < PARAMS; i++)
        oar_tensor_release(m->param[i]);
}

/* Gives parameters gradients of a step, but none to every ninth. */
static int give_grads(const param_set *m, int step)
{
    for (int i = 0; i < PARAMS; i++) {
        oar_tensor *grad = numbers(m, i, (uint64_t)(step + 1) * 7919);
        oar_tape *tape;
        int fine;

        if (i % 9 == 8 || (i % 9 == 4 && step == 0)) {
            oar_tensor_release(grad);
            continue;
        }
        if (grad == NULL || oar_tape_create(&tape) != OAR_OK)
            return 0;
        {
            oar_tensor *out = oar_scale(tape, m->param[i], 1);

            fine = out != NULL &&
                   oar_backward_from(tape, 1, &out, &grad) == OAR_OK;
        }
        oar_tape_destroy(tape);
        oar_tensor_release(grad);
        if (!fine)
            return 0;
    }
    return 1;
}

static int is_near(const oar_tensor *a, const oar_tensor *b, double limit,
                   const char *what)
{
    static double x[MOST], y[MOST];
    int64_t count = oar_tensor_count(a);

    if (oar_tensor_read(a, OAR_F64, x) != OAR_OK ||
        oar_tensor_read(b, OAR_F64, y) != OAR_OK)
        return 0;
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(x[i] - y[i]) <= limit * fmax(1, fabs(x[i])))) {
            fprintf(stderr, "%s: number %lld is %.9g on the cpu, %.9g there\n",
                    what, (long long)i, x[i], y[i]);
            return 0;
        }
    return 1;
}

/* ---- rules --------------------------------------------------------------- */

typedef oar_status (*optim_make_fn)(const param_set *m, int count,
                                    oar_tensor *const *param,
                                    oar_optim **optim);

static oar_status make_sgd(const param_set *m, int count,
                           oar_tensor *const *param, oar_optim **optim)
{
    oar_sgd_opts o = oar_sgd_opts_init();

    o.weight_decay = 0.1;
    return oar_sgd_create_over(count, param, &o, optim);
}

static oar_status make_nesterov(const param_set *m, int count,
                                oar_tensor *const *param, oar_optim **optim)
{
    oar_sgd_opts o = oar_sgd_opts_init();

    o.momentum = 0.9;
    o.nesterov = 1;
    return oar_sgd_create_over(count, param, &o, optim);
}

static oar_status make_momentum(const param_set *m, int count,
                                oar_tensor *const *param, oar_optim **optim)
{
    oar_sgd_opts o = oar_sgd_opts_init();

    o.momentum = 0.8;
    o.master_weights = 1;
    return oar_sgd_create_over(count, param, &o, optim);
}

static oar_status make_adam(const param_set *m, int count,
                            oar_tensor *const *param, oar_optim **optim)
{
    oar_adam_opts o = oar_adam_opts_init();

    o.weight_decay = 0.1;
    o.amsgrad = 1;
    o.lr = 0.01;
    return oar_adam_create_over(count, param, &o, optim);
}

static oar_status make_adamw(const param_set *m, int count,
                             oar_tensor *const *param, oar_optim **optim)
{
    oar_adam_opts o = oar_adam_opts_init();

    o.lr = 0.01;
    o.master_weights = 1;
    return oar_adamw_create_over(count, param, &o, optim);
}

/* Half of the parameters are in a second group. */
static int make_optim(const param_set *m, optim_make_fn make, oar_optim **optim)
{
    return make(m, PARAMS / 2, m->param, optim) == OAR_OK &&
           oar_optim_add_group(*optim, PARAMS - PARAMS / 2,
                               m->param + PARAMS / 2, 0.5, 2) == OAR_OK;
}

static int take_steps(const param_set *m, oar_optim *optim,
                      const oar_step_opts *o)
{
    for (int step = 0; step < 3; step++) {
        oar_status status;

        if (!give_grads(m, step))
            return 0;
        status =
            o != NULL ? oar_optim_step_with(optim, o) : oar_optim_step(optim);
        oar_optim_zero_grad(optim);
        if (status != OAR_OK)
            return 0;
    }
    return 1;
}

static int compare_all(const param_set *here, const param_set *there,
                       oar_optim *a, oar_optim *b, const char *what)
{
    /* f32 states and halves of which both round alike, nearly always */
    double limit = here->dtype == OAR_F64   ? 1e-12
                   : here->dtype == OAR_F32 ? 1e-5
                   : here->dtype == OAR_F16 ? 2e-3
                                            : 1.6e-2;

    for (int i = 0; i < PARAMS; i++) {
        if (!is_near(here->param[i], there->param[i], limit, what) ||
            oar_optim_param_steps(a, i) != oar_optim_param_steps(b, i))
            return 0;
        for (int k = 0; oar_optim_state(a, i, k) != NULL; k++)
            if (oar_tensor_device(oar_optim_state(b, i, k)).kind != OAR_CUDA ||
                !is_near(oar_optim_state(a, i, k), oar_optim_state(b, i, k),
                         limit, what))
                return 0;
    }
    return 1;
}

static int rules_agree(test_job *c, int rank, void *arg)
{
    static const struct {
        const char *name;
        optim_make_fn make;
    } rules[] = { { "sgd", make_sgd },
                  { "nesterov", make_nesterov },
                  { "momentum with masters", make_momentum },
                  { "adam", make_adam },
                  { "adamw with masters", make_adamw } };

    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
        for (int d = OAR_F32; d <= OAR_BF16; d++) {
            param_set here, there;
            oar_optim *a, *b;

            RANK_CHECK(make_model(&here, cpu, (oar_dtype)d));
            RANK_CHECK(make_model(&there, gpu, (oar_dtype)d));
            RANK_CHECK(make_optim(&here, rules[r].make, &a));
            RANK_CHECK(make_optim(&there, rules[r].make, &b));
            RANK_CHECK(take_steps(&here, a, NULL));
            RANK_CHECK(take_steps(&there, b, NULL));
            RANK_CHECK(compare_all(&here, &there, a, b, rules[r].name));
            oar_optim_destroy(a);
            oar_optim_destroy(b);
            free_model(&here);
            free_model(&there);
        }
    return 0;
}

static void every_rule_is_the_cpus(void **state)
{
    run(rules_agree, "rules");
}

/* ---- clipping and scaling ------------------------------------------------ */

static int clips_alike(test_job *c, int rank, void *arg)
{
    oar_step_opts o = oar_step_opts_init(), p = oar_step_opts_init();
    param_set here, there;
    oar_optim *a, *b;
    double norm, other;

    RANK_CHECK(make_model(&here, cpu, OAR_F32));
    RANK_CHECK(make_model(&there, gpu, OAR_F32));
    RANK_CHECK(make_optim(&here, make_adamw, &a));
    RANK_CHECK(make_optim(&there, make_adamw, &b));
    o.clip = p.clip = 0.5;
    o.norm = oar_zeros(NULL, OAR_F32, OAR_SHAPE(1));
    p.norm = oar_to(NULL, o.norm, gpu);
    RANK_CHECK(take_steps(&here, a, &o) && take_steps(&there, b, &p));
    RANK_CHECK(is_near(o.norm, p.norm, 1e-6, "norm"));
    RANK_CHECK(compare_all(&here, &there, a, b, "clipped"));
    /* as the calls that an optimizer is not needed for */
    RANK_CHECK(give_grads(&here, 5) && give_grads(&there, 5));
    RANK_OK(oar_clip_grad_norm(PARAMS, here.param, 2, &norm));
    RANK_OK(oar_clip_grad_norm(PARAMS, there.param, 2, &other));
    RANK_CHECK(fabs(norm - other) < 1e-6 * norm);
    RANK_OK(oar_grad_squares(PARAMS, there.param, &other));
    RANK_CHECK(fabs(sqrt(other) - 2) < 1e-4);
    RANK_CHECK(is_near(oar_tensor_grad(here.param[3]),
                       oar_tensor_grad(there.param[3]), 1e-6, "gradient"));
    /* a norm elsewhere is refused, and nothing has moved */
    oar_tensor_release(p.norm);
    p.norm = o.norm;
    RANK_CHECK(oar_optim_step_with(b, &p) == OAR_E_ARG);
    RANK_CHECK(oar_optim_steps(b) == 3);
    oar_tensor_release(o.norm);
    oar_optim_destroy(a);
    oar_optim_destroy(b);
    free_model(&here);
    free_model(&there);
    return 0;
}

static void clipping_needs_no_host(void **state)
{
    run(clips_alike, "clipping");
}

static int skips_what_is_not_finite(test_job *c, int rank, void *arg)
{
    oar_step_opts o = oar_step_opts_init();
    oar_scaler *scaler;
    double before[16], after[16];
    param_set there;
    oar_optim *b;

    RANK_OK(oar_scaler_create(NULL, &scaler));
    RANK_CHECK(make_model(&there, gpu, OAR_F32));
    RANK_CHECK(make_optim(&there, make_sgd, &b));
    o.scaler = scaler;
    RANK_CHECK(give_grads(&there, 1));
    RANK_OK(oar_tensor_fill(oar_tensor_grad(there.param[0]), INFINITY));
    RANK_OK(oar_tensor_read(there.param[1], OAR_F64, before));
    RANK_OK(oar_optim_step_with(b, &o));
    RANK_OK(oar_tensor_read(there.param[1], OAR_F64, after));
    RANK_CHECK(before[0] == after[0] && oar_optim_steps(b) == 0);
    RANK_CHECK(oar_scaler_scale(scaler) == 32768);
    oar_optim_zero_grad(b);
    RANK_CHECK(give_grads(&there, 1));
    RANK_OK(oar_optim_step_with(b, &o));
    RANK_OK(oar_tensor_read(there.param[1], OAR_F64, after));
    RANK_CHECK(before[0] != after[0] && oar_optim_steps(b) == 1);
    oar_optim_destroy(b);
    oar_scaler_destroy(scaler);
    free_model(&there);
    return 0;
}

static void a_scaler_skips_a_step(void **state)
{
    run(skips_what_is_not_finite, "scaler");
}

/* ---- modules that are moved ---------------------------------------------- */

static int step_by_ones(oar_module *module, oar_optim *optim)
{
    for (int i = 0; i < oar_module_params(module); i++) {
        oar_tensor *out;
        oar_tape *tape;
        int fine;

        if (oar_tape_create(&tape) != OAR_OK)
            return 0;
        out = oar_scale(tape, oar_module_param(module, i), 1);
        fine =
            out != NULL &&
            oar_backward_from(tape, 1, &out, &(oar_tensor *){ NULL }) == OAR_OK;
        oar_tape_destroy(tape);
        if (!fine)
            return 0;
    }
    if (oar_optim_step(optim) != OAR_OK)
        return 0;
    oar_optim_zero_grad(optim);
    return 1;
}

static int follows_its_module(test_job *c, int rank, void *arg)
{
    oar_module *stays, *goes;
    oar_optim *a, *b;
    oar_tensor *weight;

    RANK_OK(oar_linear_create(5, 3, 1, NULL, &stays));
    RANK_OK(oar_linear_create(5, 3, 1, NULL, &goes));
    RANK_OK(oar_adam_create(stays, NULL, &a));
    RANK_OK(oar_adam_create(goes, NULL, &b));
    RANK_CHECK(step_by_ones(stays, a) && step_by_ones(goes, b));
    weight = oar_module_param(goes, 0);
    RANK_OK(oar_module_to(goes, gpu));
    RANK_CHECK(oar_module_param(goes, 0) == weight &&
               oar_tensor_device(weight).kind == OAR_CUDA);
    RANK_CHECK(step_by_ones(stays, a) && step_by_ones(goes, b));
    RANK_CHECK(oar_tensor_device(oar_optim_state(b, 0, 0)).kind == OAR_CUDA);
    RANK_CHECK(is_near(oar_module_param(stays, 0), weight, 1e-6, "weight"));
    RANK_CHECK(is_near(oar_optim_state(a, 0, 1), oar_optim_state(b, 0, 1), 1e-6,
                       "state"));
    RANK_OK(oar_module_to(goes, cpu)); /* and back */
    RANK_CHECK(step_by_ones(stays, a) && step_by_ones(goes, b));
    RANK_CHECK(is_near(oar_module_param(stays, 0), weight, 1e-6, "weight"));
    RANK_OK(oar_module_cast(goes, OAR_BF16, 0));
    RANK_CHECK(oar_tensor_dtype(weight) == OAR_BF16);
    RANK_CHECK(is_near(oar_module_param(stays, 0), weight, 8e-3, "bf16"));
    RANK_CHECK(oar_module_cast(goes, OAR_I32, 0) == OAR_E_DTYPE);
    oar_optim_destroy(a);
    oar_optim_destroy(b);
    oar_module_release(stays);
    oar_module_release(goes);
    return 0;
}

/* Steps by ones are the same for both: the master has what stays has. */
static int keeps_all_digits(test_job *c, int rank, void *arg)
{
    oar_adam_opts o = { .size = sizeof o, .master_weights = 1 };
    oar_module *stays, *goes;
    oar_optim *a, *b;

    RANK_OK(oar_linear_create(5, 3, 1, NULL, &stays));
    RANK_OK(oar_linear_create(5, 3, 1, NULL, &goes));
    RANK_OK(oar_adamw_create(stays, &o, &a));
    RANK_OK(oar_adamw_create(goes, &o, &b));
    RANK_OK(oar_module_to(goes, gpu));
    RANK_CHECK(step_by_ones(stays, a) && step_by_ones(goes, b));
    RANK_OK(oar_optim_cast(b, goes, OAR_BF16, 0));
    RANK_CHECK(oar_tensor_dtype(oar_module_param(goes, 0)) == OAR_BF16);
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 2; i++) {
            oar_tensor *whole = oar_module_param(stays, i);
            oar_tensor *master = oar_optim_state(b, i, 2);

            RANK_CHECK(oar_tensor_device(master).kind == OAR_CUDA);
            RANK_CHECK(is_near(whole, master, 1e-6, "master"));
            RANK_CHECK(is_near(whole, oar_module_param(goes, i), 8e-3, "bf16"));
        }
        RANK_CHECK(step_by_ones(stays, a) && step_by_ones(goes, b));
    }
    oar_optim_destroy(a);
    oar_optim_destroy(b);
    oar_module_release(stays);
    oar_module_release(goes);
    return 0;
}

static void masters_keep_what_a_cast_rounds(void **state)
{
    run(keeps_all_digits, "optim_cast");
}

static void states_follow_a_module_that_is_moved(void **state)
{
    run(follows_its_module, "module_to");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_is_the_cpus),
        cmocka_unit_test(clipping_needs_no_host),
        cmocka_unit_test(a_scaler_skips_a_step),
        cmocka_unit_test(states_follow_a_module_that_is_moved),
        cmocka_unit_test(masters_keep_what_a_cast_rounds),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
