/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers, compared with ten training steps that PyTorch took; their groups
 * and state, and what they refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <oarsong/memory.h>

#include "support/leak_check.h"
#include "unit/mlp_cases.h"

static void ten_steps_agree_with_pytorch(void **state)
{
    for (int i = 0; i < MLP_RUNS; i++) {
        mlp_train(mlp_runs[i].kind, OAR_F32, &mlp_runs[i].opts);
        mlp_train(mlp_runs[i].kind, OAR_F64, &mlp_runs[i].opts);
    }
}

/* ---- the rest ------------------------------------------------------------ */

static void a_training_step_allocates_nothing_after_the_first(void **state)
{
    oar_module *net = mlp_create(OAR_F32);
    oar_optim *sgd;
    oar_tape *tape;
    uint64_t before = 0;

    OK(oar_sgd_create(net, OAR_OPTS(oar_sgd_opts, .momentum = 0.9), &sgd));
    OK(oar_tape_create(&tape));
    for (int step = 1; step <= MLP_STEPS; step++) {
        if (step == 2)
            before = memory_now().allocations;
        mlp_step(tape, net, sgd, step, OAR_F32);
    }
    assert_int_equal(memory_now().allocations, before);
    oar_tape_destroy(tape);
    oar_optim_destroy(sgd);
    oar_module_release(net);
}

static oar_tensor *leaf_of(double value)
{
    oar_tensor *leaf = oar_full(NULL, OAR_F64, OAR_SHAPE(3), value);

    OK(oar_tensor_require_grad(leaf, 1));
    return leaf;
}

/* One step along a gradient of ones. */
static void step_by_ones(oar_optim *sgd, oar_tensor *leaf)
{
    oar_tape *tape;

    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, oar_sum(tape, leaf)));
    OK(oar_optim_step(sgd));
    oar_tape_destroy(tape);
}

static double first_of(const oar_tensor *t)
{
    double value[3];

    OK(oar_tensor_read(t, OAR_F64, value));
    return value[0];
}

static void learning_rate_can_be_changed_and_defaults_to_a_hundredth(void **s)
{
    oar_tensor *leaf = leaf_of(1);
    oar_optim *sgd;

    OK(oar_sgd_create_over(1, &leaf, NULL, &sgd));
    assert_true(oar_optim_lr(sgd) == 0.01);
    OK(oar_optim_set_lr(sgd, 0.5));
    assert_true(oar_optim_lr(sgd) == 0.5);
    step_by_ones(sgd, leaf);
    assert_true(first_of(leaf) == 0.5);
    assert_int_equal(oar_optim_set_lr(sgd, -1), OAR_E_ARG);
    assert_true(oar_optim_lr(sgd) == 0.5);
    oar_optim_destroy(sgd);
    oar_tensor_release(leaf);
}

static void a_parameter_without_a_gradient_is_skipped(void **state)
{
    oar_tensor *leaf[2] = { leaf_of(1), leaf_of(2) };
    oar_optim *sgd;

    OK(oar_sgd_create_over(2, leaf, OAR_OPTS(oar_sgd_opts, .weight_decay = 1),
                           &sgd));
    step_by_ones(sgd, leaf[0]);
    assert_true(first_of(leaf[0]) != 1);
    assert_true(first_of(leaf[1]) == 2);
    oar_optim_zero_grad(sgd);
    assert_null(oar_tensor_grad(leaf[0]));
    OK(oar_optim_step(sgd));
    oar_optim_destroy(sgd);
    oar_tensor_release(leaf[0]);
    oar_tensor_release(leaf[1]);
}

static void a_parameter_given_twice_is_stepped_once(void **state)
{
    oar_tensor *leaf = leaf_of(1);
    oar_optim *sgd;

    OK(oar_sgd_create_over(2, (oar_tensor *[]){ leaf, leaf },
                           OAR_OPTS(oar_sgd_opts, .lr = 0.25), &sgd));
    step_by_ones(sgd, leaf);
    assert_true(first_of(leaf) == 0.75);
    oar_optim_destroy(sgd);
    oar_tensor_release(leaf);
}

static void the_optimizer_keeps_its_parameters_alive(void **state)
{
    oar_tensor *leaf = leaf_of(1);
    oar_optim *sgd;

    OK(oar_sgd_create_over(1, &leaf, NULL, &sgd));
    oar_tensor_release(leaf);
    OK(oar_optim_step(sgd));
    oar_optim_destroy(sgd);
    oar_optim_destroy(NULL);
}

static void bad_options_and_parameters_are_refused_with_a_sentence(void **state)
{
    oar_tensor *leaf = leaf_of(1);
    oar_tensor *plain = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3));
    oar_optim *sgd = NULL;

    assert_int_equal(oar_sgd_create_over(
                         1, &leaf, OAR_OPTS(oar_sgd_opts, .nesterov = 1), &sgd),
                     OAR_E_ARG);
    assert_int_equal(oar_sgd_create_over(1, &leaf,
                                         OAR_OPTS(oar_sgd_opts, .momentum = -1),
                                         &sgd),
                     OAR_E_ARG);
    assert_int_equal(oar_sgd_create_over(1, &plain, NULL, &sgd), OAR_E_ARG);
    assert_non_null(strstr(oar_last_error_text(), "[3]"));
    assert_int_equal(oar_sgd_create(NULL, NULL, &sgd), OAR_E_ARG);
    assert_null(sgd);
    oar_tensor_release(plain);
    oar_tensor_release(leaf);
}

static void a_step_on_a_detached_parameter_is_a_wrong_state(void **state)
{
    oar_tensor *leaf = leaf_of(1);
    oar_tape *tape;
    oar_optim *sgd;

    OK(oar_sgd_create_over(1, &leaf, NULL, &sgd));
    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, oar_sum(tape, leaf)));
    OK(oar_storage_detach(oar_tensor_storage(leaf)));
    assert_int_equal(oar_optim_step(sgd), OAR_E_STATE);
    oar_tape_destroy(tape);
    oar_optim_destroy(sgd);
    oar_tensor_release(leaf);
}

/* ---- groups and state ---------------------------------------------------- */

static void groups_scale_the_rate_and_the_decay(void **state)
{
    oar_tensor *leaf[2] = { leaf_of(1), leaf_of(1) };
    oar_optim *sgd;

    OK(oar_sgd_create_over(
        1, leaf, OAR_OPTS(oar_sgd_opts, .lr = 0.25, .weight_decay = 1), &sgd));
    OK(oar_optim_add_group(sgd, 1, leaf + 1, 2, 0));
    OK(oar_optim_add_group(sgd, 0, NULL, 1, 1));
    assert_int_equal(oar_optim_params(sgd), 2);
    step_by_ones(sgd, leaf[0]);
    assert_true(first_of(leaf[0]) == 0.5);
    oar_optim_zero_grad(sgd);
    step_by_ones(sgd, leaf[1]);
    assert_true(first_of(leaf[1]) == 0.5);
    assert_int_equal(oar_optim_steps(sgd), 2);
    oar_optim_destroy(sgd);
    oar_tensor_release(leaf[0]);
    oar_tensor_release(leaf[1]);
}

static void an_optimizer_of_a_module_leaves_frozen_parameters_out(void **state)
{
    oar_module *layer[2] = { 0 }, *net, *none;
    oar_optim *sgd;

    OK(oar_linear_create(3, 2, 1, NULL, &layer[0]));
    OK(oar_linear_create(2, 2, 2, NULL, &layer[1]));
    OK(oar_module_freeze(layer[0], 1));
    OK(oar_sequential_create(2, layer, &net));
    OK(oar_sgd_create(net, OAR_OPTS(oar_sgd_opts, .momentum = 0.9), &sgd));
    assert_int_equal(oar_tensor_count(oar_optim_state(sgd, 0, 0)), 4);
    assert_non_null(oar_optim_state(sgd, 1, 0));
    assert_null(oar_optim_state(sgd, 2, 0));
    OK(oar_optim_step(sgd));
    oar_optim_destroy(sgd);
    oar_module_release(net);
    OK(oar_relu_create(&none));
    OK(oar_adamw_create(none, NULL, &sgd));
    OK(oar_optim_step(sgd));
    oar_optim_destroy(sgd);
    oar_module_release(none);
}

static void a_group_that_does_not_fit_is_refused_and_not_added(void **state)
{
    oar_tensor *leaf[2] = { leaf_of(1), leaf_of(1) };
    oar_tensor *plain = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3));
    oar_optim *sgd;

    OK(oar_sgd_create_over(1, leaf, NULL, &sgd));
    assert_fails_with(
        oar_optim_add_group(sgd, 2, (oar_tensor *[]){ leaf[1], leaf[0] }, 1, 1),
        OAR_E_ARG, "in group 0");
    assert_fails_with(
        oar_optim_add_group(sgd, 2, (oar_tensor *[]){ leaf[1], plain }, 1, 1),
        OAR_E_ARG, "requires no gradient");
    assert_fails_with(oar_optim_add_group(sgd, 1, leaf + 1, 0, 1), OAR_E_ARG,
                      "above 0");
    assert_fails_with(oar_optim_add_group(sgd, 1, leaf + 1, NAN, 1), OAR_E_ARG,
                      "nan");
    assert_fails_with(oar_optim_add_group(sgd, 1, leaf + 1, 1, -1), OAR_E_ARG,
                      "-1");
    assert_fails_with(oar_optim_add_group(sgd, 2, NULL, 1, 1), OAR_E_ARG,
                      "none");
    oar_clear_error();
    assert_fails_with(oar_optim_add_group(NULL, 0, NULL, 1, 1), OAR_E_ARG,
                      "NULL");
    assert_int_equal(oar_optim_params(sgd), 1);
    OK(oar_optim_add_group(sgd, 2, (oar_tensor *[]){ leaf[1], leaf[1] }, 1, 1));
    assert_int_equal(oar_optim_params(sgd), 2);
    assert_fails_with(oar_optim_add_group(sgd, 1, leaf + 1, 1, 1), OAR_E_ARG,
                      "in group 1");
    oar_optim_destroy(sgd);
    oar_tensor_release(plain);
    oar_tensor_release(leaf[0]);
    oar_tensor_release(leaf[1]);
}

static void state_has_names_and_the_shape_of_its_parameter(void **state)
{
    oar_module *net = mlp_create(OAR_F32);
    oar_optim *adam, *sgd, *plain;

    OK(oar_adam_create(net, NULL, &adam));
    OK(oar_sgd_create(net, OAR_OPTS(oar_sgd_opts, .momentum = 0.5), &sgd));
    OK(oar_sgd_create(net, NULL, &plain));
    assert_true(oar_optim_lr(adam) == 1e-3);
    assert_string_equal(oar_optim_state_name(adam, 0), "exp_avg");
    assert_string_equal(oar_optim_state_name(adam, 1), "exp_avg_sq");
    assert_null(oar_optim_state_name(adam, 2));
    assert_null(oar_optim_state_name(adam, -1));
    assert_string_equal(oar_optim_state_name(sgd, 0), "momentum_buffer");
    assert_null(oar_optim_state_name(sgd, 1));
    assert_null(oar_optim_state_name(plain, 0));
    assert_int_equal(oar_optim_params(adam), oar_module_params(net));
    for (int i = 0; i < oar_module_params(net); i++) {
        const oar_tensor *p = oar_module_param(net, i);

        assert_ptr_equal(oar_optim_param(adam, i), p);
        assert_int_equal(oar_tensor_count(oar_optim_state(adam, i, 1)),
                         oar_tensor_count(p));
        assert_null(oar_optim_state(adam, i, 2));
        assert_null(oar_optim_state(sgd, i, 1));
        assert_null(oar_optim_state(plain, i, 0));
    }
    assert_null(oar_optim_param(adam, oar_module_params(net)));
    assert_null(oar_optim_param(adam, -1));
    assert_null(oar_optim_state(adam, -1, 0));
    oar_optim_destroy(adam);
    oar_optim_destroy(sgd);
    oar_optim_destroy(plain);
    oar_module_release(net);
}

static void steps_are_set_for_all_or_for_one(void **state)
{
    oar_tensor *leaf[2] = { leaf_of(1), leaf_of(1) };
    oar_optim *adamw;

    OK(oar_adamw_create_over(2, leaf, NULL, &adamw));
    OK(oar_optim_set_steps(adamw, 7));
    OK(oar_optim_set_param_steps(adamw, 1, 5));
    assert_int_equal(oar_optim_steps(adamw), 7);
    assert_int_equal(oar_optim_param_steps(adamw, 0), 7);
    assert_int_equal(oar_optim_param_steps(adamw, 1), 5);
    assert_fails_with(oar_optim_set_steps(adamw, -1), OAR_E_ARG, "-1");
    assert_fails_with(oar_optim_set_param_steps(adamw, 0, -2), OAR_E_ARG, "-2");
    assert_fails_with(oar_optim_set_param_steps(adamw, 2, 0), OAR_E_ARG,
                      "2 of 2");
    assert_int_equal(oar_optim_param_steps(adamw, 2), 0);
    oar_clear_error();
    assert_fails_with(oar_optim_set_steps(NULL, 1), OAR_E_ARG, "NULL");
    assert_int_equal(oar_optim_set_param_steps(NULL, 0, 1), OAR_E_ARG);
    assert_int_equal(oar_optim_steps(NULL), 0);
    assert_int_equal(oar_optim_params(NULL), 0);
    oar_optim_destroy(adamw);
    oar_tensor_release(leaf[0]);
    oar_tensor_release(leaf[1]);
}

static void a_step_happens_whole_or_not_at_all(void **state)
{
    oar_tensor *leaf[2] = { leaf_of(1), leaf_of(1) };
    oar_optim *adam;
    oar_tape *tape;

    OK(oar_adam_create_over(2, leaf, NULL, &adam));
    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, oar_sum(tape, oar_add(tape, leaf[0], leaf[1]))));
    OK(oar_storage_detach(oar_tensor_storage(oar_optim_state(adam, 1, 1))));
    assert_fails_with(oar_optim_step(adam), OAR_E_STATE, "detached");
    assert_true(first_of(leaf[0]) == 1);
    assert_int_equal(oar_optim_steps(adam), 0);
    oar_tape_destroy(tape);
    oar_optim_destroy(adam);
    oar_tensor_release(leaf[0]);
    oar_tensor_release(leaf[1]);
}

static void a_step_over_detached_parameters_is_no_success(void **state)
{
    oar_tensor *leaf[2] = { leaf_of(1), leaf_of(1) };
    oar_scaler *scaler;
    oar_optim *sgd;
    double norm = -1;
    int stepped = -1;

    OK(oar_storage_detach(oar_tensor_storage(leaf[1])));
    OK(oar_sgd_create_over(2, leaf, NULL, &sgd)); /* it may come back */
    OK(oar_scaler_create(NULL, &scaler));
    assert_fails_with(oar_optim_step(sgd), OAR_E_STATE, "parameter 1");
    assert_last_error_has("sgd step");
    assert_last_error_has("detached");
    assert_fails_with(oar_scaler_step(scaler, sgd, &stepped), OAR_E_STATE,
                      "parameter 1");
    assert_fails_with(oar_scaler_unscale(scaler, sgd, &stepped), OAR_E_STATE,
                      "parameter 1");
    assert_fails_with(oar_clip_grad_norm(2, leaf, 1, &norm), OAR_E_STATE,
                      "clip_grad_norm of parameter 1");
    assert_fails_with(oar_clip_grad_value(2, leaf, 1), OAR_E_STATE,
                      "parameter 1");
    assert_true(norm == -1 && stepped == -1 && oar_optim_steps(sgd) == 0);
    OK(oar_storage_attach(oar_tensor_storage(leaf[1]), NULL, NULL, NULL));
    OK(oar_optim_step(sgd));
    OK(oar_clip_grad_norm(2, leaf, 1, &norm));
    assert_true(norm == 0);
    oar_scaler_destroy(scaler);
    oar_optim_destroy(sgd);
    oar_tensor_release(leaf[0]);
    oar_tensor_release(leaf[1]);
}

static void clipping_needs_gradients_and_not_parameters(void **state)
{
    oar_tensor *leaf[2] = { leaf_of(1), leaf_of(1) };
    oar_tape *tape;
    double norm;

    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, oar_sum(tape, leaf[0])));
    OK(oar_storage_detach(oar_tensor_storage(leaf[0])));
    OK(oar_tensor_require_grad(leaf[1], 0));
    OK(oar_storage_detach(oar_tensor_storage(leaf[1]))); /* and never has one */
    OK(oar_clip_grad_norm(2, leaf, 1, &norm));
    assert_true(norm > 0);
    oar_tape_destroy(tape);
    oar_tensor_release(leaf[0]);
    oar_tensor_release(leaf[1]);
}

static void a_guarded_leaf_is_stepped_by_nobody(void **state)
{
    static const char why[] = "its shards are stepped instead";
    oar_tensor *leaf[2] = { leaf_of(1), leaf_of(1) };
    oar_optim *before, *none = NULL;
    oar_scaler *scaler;
    oar_tape *tape;

    OK(oar_adam_create_over(2, leaf, NULL, &before));
    OK(oar_scaler_create(NULL, &scaler));
    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, oar_sum(tape, leaf[0])));
    oar_tensor_guard(leaf[1], why);
    assert_fails_with(oar_optim_step(before), OAR_E_STATE, why);
    assert_last_error_has("adam step of parameter 1");
    assert_true(first_of(leaf[0]) == 1);
    assert_fails_with(oar_scaler_step(scaler, before, NULL), OAR_E_STATE, why);
    assert_fails_with(oar_scaler_unscale(scaler, before, NULL), OAR_E_STATE,
                      why);
    assert_fails_with(oar_sgd_create_over(2, leaf, NULL, &none), OAR_E_STATE,
                      why);
    assert_fails_with(oar_adamw_create_over(2, leaf, NULL, &none), OAR_E_STATE,
                      why);
    assert_null(none);
    OK(oar_sgd_create_over(1, leaf, NULL, &none));
    assert_fails_with(oar_optim_add_group(none, 1, leaf + 1, 1, 1), OAR_E_STATE,
                      why);
    assert_fails_with(oar_clip_grad_norm(2, leaf, 1, NULL), OAR_E_STATE, why);
    assert_fails_with(oar_clip_grad_value(2, leaf, 1), OAR_E_STATE, why);
    oar_tensor_guard(leaf[1], NULL);
    oar_tensor_guard(NULL, why);
    OK(oar_clip_grad_norm(2, leaf, 1, NULL));
    OK(oar_optim_step(before));
    oar_tape_destroy(tape);
    oar_scaler_destroy(scaler);
    oar_optim_destroy(before);
    oar_optim_destroy(none);
    oar_tensor_release(leaf[0]);
    oar_tensor_release(leaf[1]);
}

static void a_parameter_rebased_to_another_width_is_not_stepped(void **state)
{
    oar_tensor *leaf = oar_ones(NULL, OAR_F32, OAR_SHAPE(3));
    oar_storage *s;
    oar_optim *adam;
    oar_tape *tape;

    OK(oar_storage_create(4096, 0, &s));
    OK(oar_tensor_require_grad(leaf, 1));
    /* its state is f32 */
    OK(oar_adam_create_over(1, &leaf, OAR_OPTS(oar_adam_opts, .lr = 0.5),
                            &adam));
    OK(oar_tensor_rebase(leaf, s, 0, OAR_F64));
    OK(oar_tensor_fill(leaf, 1));
    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, oar_sum(tape, leaf)));
    assert_fails_with(oar_optim_step(adam), OAR_E_STATE, "rebased to f64");
    oar_tape_reset(tape);
    OK(oar_tensor_rebase(leaf, s, 1, OAR_BF16));
    OK(oar_tensor_fill(leaf, 1));
    OK(oar_backward(tape, oar_sum(tape, leaf)));
    OK(oar_optim_step(adam));
    assert_true(first_of(leaf) < 1);
    oar_tape_destroy(tape);
    oar_optim_destroy(adam);
    oar_storage_release(s);
    oar_tensor_release(leaf);
}

static void bad_adam_options_are_refused_with_a_sentence(void **state)
{
    oar_tensor *leaf = leaf_of(1);
    oar_optim *adam = NULL;
    const oar_adam_opts *const bad[] = {
        OAR_OPTS(oar_adam_opts, .lr = -1),
        OAR_OPTS(oar_adam_opts, .eps = -1),
        OAR_OPTS(oar_adam_opts, .weight_decay = -1),
        OAR_OPTS(oar_adam_opts, .beta1 = 1),
        OAR_OPTS(oar_adam_opts, .beta2 = -0.5),
        OAR_OPTS(oar_adam_opts, .lr = NAN),
        OAR_OPTS(oar_adam_opts, .no_decay = 1, .weight_decay = 0.1),
        OAR_OPTS(oar_adam_opts, .no_beta1 = 1, .beta1 = 0.1),
        OAR_OPTS(oar_adam_opts, .no_beta2 = 1, .beta2 = 0.1),
        OAR_OPTS(oar_adam_opts, .no_eps = 1, .eps = 1e-3),
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_fails_with(oar_adam_create_over(1, &leaf, bad[i], &adam),
                          OAR_E_ARG, "adam with");
        assert_fails_with(oar_adamw_create_over(1, &leaf, bad[i], &adam),
                          OAR_E_ARG, "adamw with");
    }
    assert_fails_with(oar_adam_create_over(1, &leaf, NULL, NULL), OAR_E_ARG,
                      "nowhere");
    assert_fails_with(oar_adam_create_over(-1, &leaf, NULL, &adam), OAR_E_ARG,
                      "-1");
    oar_clear_error();
    assert_fails_with(oar_adamw_create(NULL, NULL, &adam), OAR_E_ARG, "NULL");
    assert_null(adam);
    oar_tensor_release(leaf);
}

typedef oar_status create_fn(const oar_module *net, oar_optim **optim);

static oar_status make_sgd(const oar_module *net, oar_optim **optim)
{
    return oar_sgd_create(net, OAR_OPTS(oar_sgd_opts, .momentum = 0.9), optim);
}

static oar_status make_adamw(const oar_module *net, oar_optim **optim)
{
    return oar_adamw_create(net, NULL, optim);
}

typedef struct making {
    const oar_module *net;
    oar_tensor *more;
    create_fn *create;
} making;

static oar_status make_with_two_groups(void *arg)
{
    const making *m = arg;
    oar_optim *optim = NULL;
    oar_status status = m->create(m->net, &optim);
    int params = oar_optim_params(optim);

    if (status == OAR_OK) {
        status = oar_optim_add_group(optim, 1, &m->more, 1, 1);
        assert_int_equal(oar_optim_params(optim), params + (status == OAR_OK));
    }
    if (status == OAR_OK)
        status = oar_optim_step(optim);
    oar_optim_destroy(optim);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    oar_module *net = mlp_create(OAR_F32);
    making m = { net, leaf_of(1), make_sgd };

    fail_each_allocation(make_with_two_groups, &m);
    m.create = make_adamw;
    fail_each_allocation(make_with_two_groups, &m);
    oar_tensor_release(m.more);
    oar_module_release(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_steps_agree_with_pytorch),
        cmocka_unit_test(a_training_step_allocates_nothing_after_the_first),
        cmocka_unit_test(
            learning_rate_can_be_changed_and_defaults_to_a_hundredth),
        cmocka_unit_test(a_parameter_without_a_gradient_is_skipped),
        cmocka_unit_test(a_parameter_given_twice_is_stepped_once),
        cmocka_unit_test(the_optimizer_keeps_its_parameters_alive),
        cmocka_unit_test(
            bad_options_and_parameters_are_refused_with_a_sentence),
        cmocka_unit_test(a_step_on_a_detached_parameter_is_a_wrong_state),
        cmocka_unit_test(groups_scale_the_rate_and_the_decay),
        cmocka_unit_test(an_optimizer_of_a_module_leaves_frozen_parameters_out),
        cmocka_unit_test(a_group_that_does_not_fit_is_refused_and_not_added),
        cmocka_unit_test(state_has_names_and_the_shape_of_its_parameter),
        cmocka_unit_test(steps_are_set_for_all_or_for_one),
        cmocka_unit_test(a_step_happens_whole_or_not_at_all),
        cmocka_unit_test(a_step_over_detached_parameters_is_no_success),
        cmocka_unit_test(clipping_needs_gradients_and_not_parameters),
        cmocka_unit_test(a_guarded_leaf_is_stepped_by_nobody),
        cmocka_unit_test(a_parameter_rebased_to_another_width_is_not_stepped),
        cmocka_unit_test(bad_adam_options_are_refused_with_a_sentence),
        cmocka_unit_test(every_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, golden_open, golden_close);
}
