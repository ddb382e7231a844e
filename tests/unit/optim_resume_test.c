/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint needs of an optimizer: its description, its groups, its
 * state without knowing its kind, and a hook before each step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/optim.h>

#include "support/leak_check.h"
#include "support/last_error.h"

enum { PARAMS = 3, COUNT = 7, KINDS = 6 };

typedef oar_optim_description description;

static oar_tensor *param_of(int seed)
{
    oar_tensor *made =
        oar_uniform(NULL, OAR_F32, OAR_SHAPE(COUNT), (uint64_t)seed, -1, 1);
    oar_tensor *home = oar_zeros(NULL, OAR_F32, OAR_SHAPE(COUNT));

    OK(oar_tensor_require_grad(made, 1));
    OK(oar_tensor_bind_grad(made, home));
    oar_tensor_release(home);
    return made;
}

/* An optimizer of any kind over three parameters, the last in its own group. */
typedef struct scene {
    oar_tensor *param[PARAMS];
    oar_optim *optim;
} scene;

static oar_status create_optim(int kind, oar_tensor *const *param,
                               oar_optim **optim)
{
    switch (kind) {
    case 0:
        return oar_sgd_create_over(
            2, param, OAR_OPTS(oar_sgd_opts, .weight_decay = 0.1), optim);
    case 1:
        return oar_sgd_create_over(
            2, param, OAR_OPTS(oar_sgd_opts, .lr = 0.5, .momentum = 0.9),
            optim);
    case 2:
        return oar_sgd_create_over(
            2, param,
            OAR_OPTS(oar_sgd_opts, .lr = 0.5, .momentum = 0.9, .nesterov = 1),
            optim);
    case 3:
        return oar_adam_create_over(
            2, param, OAR_OPTS(oar_adam_opts, .no_beta1 = 1, .eps = 1e-6),
            optim);
    case 4: return oar_adamw_create_over(2, param, NULL, optim);
    default:
        return oar_adamw_create_over(
            2, param, OAR_OPTS(oar_adam_opts, .amsgrad = 1, .beta2 = 0.5),
            optim);
    }
}

static scene make_scene(int kind)
{
    scene s = { .param = { param_of(1), param_of(2), param_of(3) } };

    OK(create_optim(kind, s.param, &s.optim));
    OK(oar_optim_add_group(s.optim, 1, s.param + 2, 0.5, 0));
    return s;
}

static void drop_scene(scene *s)
{
    oar_optim_destroy(s->optim);
    for (int i = 0; i < PARAMS; i++)
        oar_tensor_release(s->param[i]);
}

/* Writes the gradients of a step: not the same in any two. The second parameter
 * has none in every other step. */
static void write_grads(scene *s, int step)
{
    oar_optim_zero_grad(s->optim);
    for (int i = 0; i < PARAMS; i++) {
        double number[COUNT];

        if (i == 1 && step % 2 == 1)
            continue;
        for (int k = 0; k < COUNT; k++)
            number[k] = (double)((step * 31 + i * 7 + k * 13) % 17) / 8 - 1;
        OK(oar_tensor_mark_grad(s->param[i]));
        OK(oar_tensor_write(oar_tensor_grad(s->param[i]), OAR_F64, number));
    }
}

static void take_step(scene *s, int step)
{
    write_grads(s, step);
    OK(oar_optim_step(s->optim));
}

static description describe(const oar_optim *optim)
{
    description d = oar_optim_description_init();

    OK(oar_optim_describe(optim, &d));
    return d;
}

/* ---- what it is ---------------------------------------------------------- */

static void a_description_has_the_kind_and_its_numbers(void **state)
{
    scene s[KINDS];
    description d[KINDS];

    for (int i = 0; i < KINDS; i++) {
        s[i] = make_scene(i);
        d[i] = describe(s[i].optim);
    }
    for (int i = 0; i < KINDS; i++)
        assert_string_equal(d[i].kind, i < 3    ? "sgd"
                                       : i == 3 ? "adam"
                                                : "adamw");
    assert_true(d[0].lr == 0.01 && d[0].weight_decay == 0.1);
    assert_true(d[0].momentum == 0 && d[0].beta1 == 0 && !d[0].nesterov);
    assert_true(d[1].lr == 0.5 && d[1].momentum == 0.9 && !d[1].nesterov);
    assert_true(d[2].nesterov == 1);
    assert_true(d[3].beta1 == 0 && d[3].beta2 == 0.999 && d[3].eps == 1e-6);
    assert_true(d[3].lr == 0.001 && d[3].weight_decay == 0 && !d[3].amsgrad);
    assert_true(d[4].beta1 == 0.9 && d[4].eps == 1e-8);
    assert_true(d[4].weight_decay == 0.01);
    assert_true(d[5].amsgrad == 1 && d[5].beta2 == 0.5);
    OK(oar_optim_set_lr(s[0].optim, 0));
    assert_true(describe(s[0].optim).lr == 0);
    for (int i = 0; i < KINDS; i++)
        drop_scene(&s[i]);
}

static void groups_can_be_listed(void **state)
{
    scene s = make_scene(0);
    const int want[PARAMS] = { 0, 0, 1 };
    double lr, decay;

    assert_int_equal(oar_optim_groups(s.optim), 2);
    OK(oar_optim_group_scales(s.optim, 0, &lr, &decay));
    assert_true(lr == 1 && decay == 1);
    OK(oar_optim_group_scales(s.optim, 1, &lr, &decay));
    assert_true(lr == 0.5 && decay == 0);
    for (int i = 0; i < PARAMS; i++) {
        int group = -1;

        OK(oar_optim_param_group(s.optim, i, &group));
        assert_int_equal(group, want[i]);
    }
    drop_scene(&s);
}

static void what_cannot_be_described_is_refused(void **state)
{
    scene s = make_scene(4);
    description d = { .size = 0 };
    double lr = 7, decay = 7;
    int group = 7;

    assert_fails_with(oar_optim_describe(s.optim, &d), OAR_E_ARG, "size");
    assert_fails_with(oar_optim_describe(s.optim, NULL), OAR_E_ARG, "NULL");
    assert_fails_with(oar_optim_group_scales(s.optim, 2, &lr, &decay),
                      OAR_E_ARG, "group 2 of 2");
    assert_fails_with(oar_optim_group_scales(s.optim, -1, &lr, &decay),
                      OAR_E_ARG, "group -1");
    assert_fails_with(oar_optim_param_group(s.optim, PARAMS, &group), OAR_E_ARG,
                      "parameter 3 of 3");
    assert_true(lr == 7 && decay == 7 && group == 7);
    assert_int_equal(oar_optim_groups(NULL), 0);
    oar_clear_error();
    assert_fails_with(oar_optim_describe(NULL, &d), OAR_E_ARG, "NULL");
    assert_fails_with(oar_optim_param_group(NULL, 0, &group), OAR_E_ARG,
                      "NULL");
    drop_scene(&s);
}

/* ---- going on ------------------------------------------------------------ */

/* Copies all that a checkpoint would save. Knows no kinds. */
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

static void an_optimizer_of_any_kind_goes_on_bitwise(void **state)
{
    for (int kind = 0; kind < KINDS; kind++) {
        scene whole = make_scene(kind), resumed = make_scene(kind);

        for (int step = 0; step < 5; step++)
            take_step(&whole, step);
        OK(oar_optim_set_lr(whole.optim, 0.125));
        copy_optim(resumed.optim, whole.optim);
        for (int step = 5; step < 11; step++) {
            take_step(&whole, step);
            take_step(&resumed, step);
        }
        for (int i = 0; i < PARAMS; i++)
            assert_memory_equal(oar_tensor_data(whole.param[i]),
                                oar_tensor_data(resumed.param[i]),
                                COUNT * sizeof(float));
        drop_scene(&whole);
        drop_scene(&resumed);
    }
}

/* ---- before a step ------------------------------------------------------- */

typedef struct watcher {
    const scene *s;
    oar_status answer;
    int calls;
    float first; /* what the first parameter had at the last call */
} watcher;

static oar_status watch_step(oar_optim *optim, void *arg)
{
    watcher *w = arg;

    assert_ptr_equal(optim, w->s->optim);
    w->calls++;
    w->first = *(float *)oar_tensor_data(w->s->param[0]);
    return w->answer;
}

static void a_hook_runs_before_a_step_changes_anything(void **state)
{
    for (int kind = 0; kind < KINDS; kind++) {
        scene s = make_scene(kind);
        watcher w = { .s = &s };
        oar_hook *hook;
        float before = *(float *)oar_tensor_data(s.param[0]);

        OK(oar_optim_on_step(s.optim, watch_step, &w, &hook));
        take_step(&s, 0);
        assert_int_equal(w.calls, 1);
        assert_true(w.first == before);
        assert_true(*(float *)oar_tensor_data(s.param[0]) != before);
        oar_hook_remove(hook);
        take_step(&s, 1);
        assert_int_equal(w.calls, 1);
        drop_scene(&s);
    }
}

static void a_hook_that_fails_ends_the_step_and_nothing_changes(void **state)
{
    scene s = make_scene(5);
    watcher first = { .s = &s, .answer = OAR_E_DATA }, second = { .s = &s };
    float before[COUNT];

    OK(oar_optim_on_step(s.optim, watch_step, &first, NULL));
    OK(oar_optim_on_step(s.optim, watch_step, &second, NULL));
    write_grads(&s, 0);
    memcpy(before, oar_tensor_data(s.param[0]), sizeof before);
    assert_fails_with(oar_optim_step(s.optim), OAR_E_DATA, "step hook");
    assert_int_equal(second.calls, 0);
    assert_memory_equal(before, oar_tensor_data(s.param[0]), sizeof before);
    assert_int_equal(oar_optim_steps(s.optim), 0);
    assert_int_equal(oar_optim_param_steps(s.optim, 0), 0);
    assert_true(*(float *)oar_tensor_data(oar_optim_state(s.optim, 0, 0)) == 0);
    first.answer = OAR_OK;
    OK(oar_optim_step(s.optim));
    assert_int_equal(second.calls, 1);
    assert_int_equal(oar_optim_steps(s.optim), 1);
    assert_fails_with(oar_optim_on_step(s.optim, NULL, NULL, NULL), OAR_E_ARG,
                      "function");
    oar_clear_error();
    assert_fails_with(oar_optim_on_step(NULL, watch_step, NULL, NULL),
                      OAR_E_ARG, "NULL");
    drop_scene(&s); /* with the hooks that are left */
}

/* The hook may bring back what the step needs. */
static oar_status attach_again(oar_optim *optim, void *arg)
{
    return oar_storage_attach(arg, NULL, NULL, NULL);
}

static void a_hook_may_attach_the_memory_that_the_step_needs(void **state)
{
    scene s = make_scene(1);
    oar_storage *away = oar_tensor_storage(oar_optim_state(s.optim, 0, 0));
    oar_hook *hook;

    OK(oar_optim_on_step(s.optim, attach_again, away, &hook));
    write_grads(&s, 0);
    OK(oar_storage_detach(away));
    OK(oar_optim_step(s.optim));
    oar_hook_remove(hook);
    drop_scene(&s);
}

static oar_status add_hook(void *arg)
{
    oar_hook *hook = NULL;
    oar_status status = oar_optim_on_step(arg, watch_step, NULL, &hook);

    oar_hook_remove(hook);
    return status;
}

static void a_hook_without_memory_is_not_added(void **state)
{
    scene s = make_scene(0);

    fail_each_allocation(add_hook, s.optim);
    take_step(&s, 0);
    drop_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_description_has_the_kind_and_its_numbers),
        cmocka_unit_test(groups_can_be_listed),
        cmocka_unit_test(what_cannot_be_described_is_refused),
        cmocka_unit_test(an_optimizer_of_any_kind_goes_on_bitwise),
        cmocka_unit_test(a_hook_runs_before_a_step_changes_anything),
        cmocka_unit_test(a_hook_that_fails_ends_the_step_and_nothing_changes),
        cmocka_unit_test(a_hook_may_attach_the_memory_that_the_step_needs),
        cmocka_unit_test(a_hook_without_memory_is_not_added),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
