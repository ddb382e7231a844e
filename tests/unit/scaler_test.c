/* SPDX-License-Identifier: Apache-2.0 */
/* The loss scaler: when it steps, when it does not, and how the scale
 * changes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <oarsong/optim.h>

#include "support/leak_check.h"
#include "support/last_error.h"

enum { COUNT = 5 };

typedef struct scaler_context {
    oar_tensor *param;
    oar_optim *sgd;
    oar_scaler *scaler;
} scaler_context;

static scaler_context context_make(oar_dtype dtype, const oar_scaler_opts *opts)
{
    scaler_context s;
    oar_tensor *home = oar_zeros(NULL, dtype, OAR_SHAPE(COUNT));

    s.param = oar_full(NULL, dtype, OAR_SHAPE(COUNT), 1);
    OK(oar_tensor_require_grad(s.param, 1));
    OK(oar_tensor_bind_grad(s.param, home));
    oar_tensor_release(home);
    OK(oar_sgd_create_over(1, &s.param, OAR_OPTS(oar_sgd_opts, .lr = 0.5),
                           &s.sgd));
    OK(oar_scaler_create(opts, &s.scaler));
    return s;
}

static void context_free(scaler_context *s)
{
    oar_scaler_destroy(s->scaler);
    oar_optim_destroy(s->sgd);
    oar_tensor_release(s->param);
}

/* Writes a gradient that is `value` in the last place, 1 elsewhere, times the
 * scale. */
static void grad_with(scaler_context *s, double value)
{
    double scale = oar_scaler_scale(s->scaler), number[COUNT];

    for (int i = 0; i < COUNT; i++)
        number[i] = (i == COUNT - 1 ? value : 1) * scale;
    OK(oar_tensor_mark_grad(s->param));
    OK(oar_tensor_write(oar_tensor_grad(s->param), OAR_F64, number));
}

/* Steps with that. Returns whether the step was taken. */
static int step_with(scaler_context *s, double value)
{
    int stepped = -1;

    grad_with(s, value);
    OK(oar_scaler_step(s->scaler, s->sgd, &stepped));
    return stepped;
}

static double last_of(const oar_tensor *t)
{
    double number[COUNT];

    OK(oar_tensor_read(t, OAR_F64, number));
    return number[COUNT - 1];
}

static void a_step_divides_by_the_scale(void **state)
{
    for (int dtype = OAR_F32; dtype <= OAR_BF16; dtype++) {
        scaler_context s = context_make(
            (oar_dtype)dtype, OAR_OPTS(oar_scaler_opts, .scale = 1024));

        assert_int_equal(step_with(&s, 0.5), 1);
        assert_true(last_of(s.param) == 0.75);
        assert_true(last_of(oar_tensor_grad(s.param)) == 0.5);
        assert_int_equal(oar_optim_steps(s.sgd), 1);
        context_free(&s);
    }
}

static void a_step_with_infinity_or_nan_is_skipped_and_halves(void **state)
{
    const double odd[] = { INFINITY, -INFINITY, NAN };

    for (int dtype = OAR_F32; dtype <= OAR_BF16; dtype++)
        for (int i = 0; i < 3; i++) {
            scaler_context s = context_make(
                (oar_dtype)dtype, OAR_OPTS(oar_scaler_opts, .scale = 16));

            assert_int_equal(step_with(&s, odd[i]), 0);
            assert_true(oar_scaler_scale(s.scaler) == 8);
            assert_true(last_of(s.param) == 1);
            assert_int_equal(oar_optim_steps(s.sgd), 0);
            context_free(&s);
        }
}

static void good_steps_in_a_row_double_the_scale(void **state)
{
    scaler_context s = context_make(
        OAR_F32, OAR_OPTS(oar_scaler_opts, .scale = 4, .interval = 3));
    const int good[] = { 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0 };
    const double after[] = { 4, 4, 2, 2, 2, 4, 4, 4, 8, 8, 4 };

    for (int i = 0; i < 11; i++) {
        assert_int_equal(step_with(&s, good[i] ? 1 : NAN), good[i]);
        assert_true(oar_scaler_scale(s.scaler) == after[i]);
    }
    context_free(&s);
}

static void the_scale_stays_a_finite_number_above_zero(void **state)
{
    scaler_context s = context_make(
        OAR_F64, OAR_OPTS(oar_scaler_opts, .scale = 1e38, .interval = 1));

    for (int i = 0; i < 10; i++)
        step_with(&s, 1);
    assert_true(isfinite((float)oar_scaler_scale(s.scaler)));
    for (int i = 0; i < 300; i++)
        step_with(&s, NAN);
    assert_true(oar_scaler_scale(s.scaler) > 0);
    assert_int_equal(step_with(&s, 1), 1);
    context_free(&s);
}

static void unscaled_gradients_are_clipped_and_not_divided_again(void **state)
{
    for (int dtype = OAR_F32; dtype <= OAR_BF16; dtype++) {
        scaler_context s = context_make(
            (oar_dtype)dtype, OAR_OPTS(oar_scaler_opts, .scale = 1024));
        int finite = -1, stepped = -1;

        grad_with(&s, -4);
        OK(oar_scaler_unscale(s.scaler, s.sgd, &finite));
        assert_int_equal(finite, 1);
        assert_true(last_of(oar_tensor_grad(s.param)) == -4);
        OK(oar_clip_grad_value(1, &s.param, 2));
        OK(oar_scaler_step(s.scaler, s.sgd, &stepped));
        assert_int_equal(stepped, 1);
        assert_true(last_of(s.param) == 2);    /* 1 + 0.5 * 2 */
        assert_int_equal(step_with(&s, 1), 1); /* this one divides */
        assert_true(last_of(s.param) == 1.5);
        context_free(&s);
    }
}

static void clipping_does_not_hide_what_unscaling_found(void **state)
{
    scaler_context s =
        context_make(OAR_F32, OAR_OPTS(oar_scaler_opts, .scale = 16));
    int finite = -1, stepped = -1;

    grad_with(&s, INFINITY);
    OK(oar_scaler_unscale(s.scaler, s.sgd, &finite));
    assert_int_equal(finite, 0);
    OK(oar_clip_grad_value(1, &s.param, 2)); /* all are finite now */
    OK(oar_scaler_step(s.scaler, s.sgd, &stepped));
    assert_int_equal(stepped, 0);
    assert_true(last_of(s.param) == 1);
    assert_true(oar_scaler_scale(s.scaler) == 8);
    context_free(&s);
}

static void gradients_are_unscaled_once_and_by_one_scaler(void **state)
{
    scaler_context s = context_make(OAR_F32, NULL);
    oar_scaler *other;

    OK(oar_scaler_create(NULL, &other));
    grad_with(&s, 1);
    OK(oar_scaler_unscale(s.scaler, s.sgd, NULL));
    assert_fails_with(oar_scaler_unscale(s.scaler, s.sgd, NULL), OAR_E_STATE,
                      "already");
    assert_fails_with(oar_scaler_step(other, s.sgd, NULL), OAR_E_STATE,
                      "another scaler");
    OK(oar_optim_step(s.sgd));
    OK(oar_scaler_unscale(s.scaler, s.sgd, NULL));
    oar_optim_zero_grad(s.sgd);
    grad_with(&s, 1);
    OK(oar_scaler_unscale(s.scaler, s.sgd, NULL));
    oar_clear_error();
    assert_fails_with(oar_scaler_unscale(NULL, s.sgd, NULL), OAR_E_ARG, "NULL");
    oar_scaler_destroy(other);
    context_free(&s);
}

static void defaults_are_those_of_pytorch(void **state)
{
    scaler_context s = context_make(OAR_F32, NULL);

    assert_true(oar_scaler_scale(s.scaler) == 65536);
    for (int i = 0; i < 1999; i++)
        step_with(&s, 1);
    assert_true(oar_scaler_scale(s.scaler) == 65536);
    step_with(&s, 1);
    assert_true(oar_scaler_scale(s.scaler) == 131072);
    context_free(&s);
}

static void an_unwritten_gradient_is_not_looked_at(void **state)
{
    scaler_context s = context_make(OAR_F32, NULL);

    OK(oar_tensor_mark_grad(s.param));
    OK(oar_tensor_fill(oar_tensor_grad(s.param), NAN));
    oar_optim_zero_grad(s.sgd);
    OK(oar_scaler_step(s.scaler, s.sgd, NULL));
    assert_true(oar_scaler_scale(s.scaler) == 65536);
    assert_true(last_of(s.param) == 1);
    context_free(&s);
}

/* ---- going on ------------------------------------------------------------ */

static void a_scaler_that_is_set_goes_on_alike(void **state)
{
    const oar_scaler_opts *o =
        OAR_OPTS(oar_scaler_opts, .scale = 4, .interval = 3);
    const int good[] = { 1, 1, 1, 1, 0, 1, 1, 1, 1 };

    for (int stop = 0; stop < 9; stop++) {
        scaler_context whole = context_make(OAR_F32, o),
                       resumed = context_make(OAR_F32, o);
        double scale = 0;
        int64_t steps = -1;

        for (int i = 0; i < stop; i++)
            step_with(&whole, good[i] ? 1 : NAN);
        OK(oar_scaler_read(whole.scaler, &scale, &steps));
        OK(oar_scaler_read(whole.scaler, NULL, NULL));
        OK(oar_scaler_set(resumed.scaler, scale, steps));
        for (int i = stop; i < 9; i++) {
            step_with(&whole, good[i] ? 1 : NAN);
            step_with(&resumed, good[i] ? 1 : NAN);
            assert_true(oar_scaler_scale(whole.scaler) ==
                        oar_scaler_scale(resumed.scaler));
        }
        context_free(&whole);
        context_free(&resumed);
    }
}

static void a_scaler_is_not_set_to_what_it_cannot_be(void **state)
{
    scaler_context s =
        context_make(OAR_F32, OAR_OPTS(oar_scaler_opts, .interval = 5));
    const double bad[] = { 0, -1, NAN, INFINITY, 1e39 };
    double scale;
    int64_t good;

    for (int i = 0; i < 5; i++)
        assert_fails_with(oar_scaler_set(s.scaler, bad[i], 0), OAR_E_ARG,
                          "scale");
    assert_fails_with(oar_scaler_set(s.scaler, 1, -1), OAR_E_ARG, "-1");
    OK(oar_scaler_read(s.scaler, &scale, &good));
    assert_true(scale == 65536 && good == 0);
    OK(oar_scaler_set(s.scaler, 2, 100)); /* of a longer interval */
    step_with(&s, 1);
    assert_true(oar_scaler_scale(s.scaler) == 4);
    oar_clear_error();
    assert_fails_with(oar_scaler_set(NULL, 1, 0), OAR_E_ARG, "NULL");
    assert_fails_with(oar_scaler_read(NULL, &scale, &good), OAR_E_ARG, "NULL");
    context_free(&s);
}

/* ---- deciding together --------------------------------------------------- */

static void ranks_step_if_all_of_them_can(void **state)
{
    const double value[2][2] = { { 1, 1 }, { 1, NAN } };

    for (int way = 0; way < 2; way++) {
        scaler_context rank[2];
        int finite[2], stepped[2] = { -1, -1 };

        for (int i = 0; i < 2; i++) {
            rank[i] =
                context_make(OAR_F32, OAR_OPTS(oar_scaler_opts, .scale = 8));
            grad_with(&rank[i], value[way][i]);
            OK(oar_scaler_unscale(rank[i].scaler, rank[i].sgd, &finite[i]));
        }
        for (int i = 0; i < 2; i++) {
            OK(oar_scaler_step_if(rank[i].scaler, rank[i].sgd,
                                  finite[0] && finite[1], &stepped[i]));
            assert_int_equal(stepped[i], way == 0);
            assert_true(last_of(rank[i].param) == (way == 0 ? 0.5 : 1));
            assert_true(oar_scaler_scale(rank[i].scaler) == (way == 0 ? 8 : 4));
            assert_int_equal(step_with(&rank[i], 1), 1); /* divides again */
            context_free(&rank[i]);
        }
    }
}

static void a_step_that_ranks_decide_needs_gradients_of_this_scaler(void **s_)
{
    scaler_context s =
        context_make(OAR_F32, OAR_OPTS(oar_scaler_opts, .scale = 8));
    oar_scaler *other;
    int finite;

    OK(oar_scaler_create(NULL, &other));
    grad_with(&s, NAN);
    assert_fails_with(oar_scaler_step_if(s.scaler, s.sgd, 1, NULL), OAR_E_STATE,
                      "not unscaled");
    OK(oar_scaler_unscale(s.scaler, s.sgd, &finite));
    assert_fails_with(oar_scaler_step_if(other, s.sgd, 0, NULL), OAR_E_STATE,
                      "not unscaled");
    assert_fails_with(oar_scaler_step_if(s.scaler, s.sgd, 1, NULL), OAR_E_STATE,
                      "on this rank they were not");
    assert_true(oar_scaler_scale(s.scaler) == 8 && last_of(s.param) == 1);
    OK(oar_scaler_step_if(s.scaler, s.sgd, 0, NULL));
    assert_true(oar_scaler_scale(s.scaler) == 4 && last_of(s.param) == 1);
    oar_clear_error();
    assert_fails_with(oar_scaler_step_if(NULL, s.sgd, 1, NULL), OAR_E_ARG,
                      "NULL");
    oar_scaler_destroy(other);
    context_free(&s);
}

/* ---- hooks --------------------------------------------------------------- */

typedef struct refusal {
    oar_status answer;
    int calls;
} refusal;

static oar_status refuse_step(oar_optim *optim, void *arg)
{
    refusal *r = arg;

    r->calls++;
    return r->answer;
}

static void a_hook_that_fails_leaves_scale_and_gradients(void **state)
{
    scaler_context s = context_make(
        OAR_F32, OAR_OPTS(oar_scaler_opts, .scale = 8, .interval = 1));
    refusal r = { .answer = OAR_E_DATA };
    int stepped = -1;

    OK(oar_optim_on_step(s.sgd, refuse_step, &r, NULL));
    grad_with(&s, NAN);
    OK(oar_scaler_step(s.scaler, s.sgd, NULL)); /* skipped: not called */
    assert_int_equal(r.calls, 0);
    grad_with(&s, 1);
    assert_fails_with(oar_scaler_step(s.scaler, s.sgd, &stepped), OAR_E_DATA,
                      "hook");
    assert_true(oar_scaler_scale(s.scaler) == 4 && last_of(s.param) == 1);
    assert_true(last_of(oar_tensor_grad(s.param)) == 4); /* not divided */
    assert_int_equal(stepped, -1);
    OK(oar_scaler_unscale(s.scaler, s.sgd, NULL));
    assert_fails_with(oar_scaler_step_if(s.scaler, s.sgd, 1, NULL), OAR_E_DATA,
                      "hook");
    r.answer = OAR_OK;
    OK(oar_scaler_step(s.scaler, s.sgd, &stepped)); /* does not divide twice */
    assert_int_equal(stepped, 1);
    assert_true(last_of(s.param) == 0.5 && oar_scaler_scale(s.scaler) == 8);
    assert_int_equal(r.calls, 3);
    context_free(&s);
}

static oar_status create_and_destroy(void *arg)
{
    oar_scaler *scaler = NULL;
    oar_status status = oar_scaler_create(NULL, &scaler);

    oar_scaler_destroy(scaler);
    return status;
}

static void bad_arguments_are_refused_with_a_sentence(void **state)
{
    scaler_context s = context_make(OAR_F32, NULL);
    oar_scaler *none = NULL;

    assert_fails_with(
        oar_scaler_create(OAR_OPTS(oar_scaler_opts, .scale = -1), &none),
        OAR_E_ARG, "-1");
    assert_fails_with(
        oar_scaler_create(OAR_OPTS(oar_scaler_opts, .scale = INFINITY), &none),
        OAR_E_ARG, "inf");
    assert_fails_with(
        oar_scaler_create(OAR_OPTS(oar_scaler_opts, .interval = -2), &none),
        OAR_E_ARG, "-2");
    assert_fails_with(oar_scaler_create(NULL, NULL), OAR_E_ARG, "nowhere");
    assert_null(none);
    assert_true(oar_scaler_scale(NULL) == 0);
    oar_scaler_destroy(NULL);
    oar_clear_error();
    assert_fails_with(oar_scaler_step(NULL, s.sgd, NULL), OAR_E_ARG, "NULL");
    assert_fails_with(oar_scaler_step(s.scaler, NULL, NULL), OAR_E_ARG, "NULL");
    OK(oar_tensor_mark_grad(s.param));
    OK(oar_storage_detach(oar_tensor_storage(s.param)));
    assert_fails_with(oar_scaler_step(s.scaler, s.sgd, NULL), OAR_E_STATE,
                      "[5]");
    fail_each_allocation(create_and_destroy, NULL);
    context_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_divides_by_the_scale),
        cmocka_unit_test(a_step_with_infinity_or_nan_is_skipped_and_halves),
        cmocka_unit_test(good_steps_in_a_row_double_the_scale),
        cmocka_unit_test(the_scale_stays_a_finite_number_above_zero),
        cmocka_unit_test(unscaled_gradients_are_clipped_and_not_divided_again),
        cmocka_unit_test(clipping_does_not_hide_what_unscaling_found),
        cmocka_unit_test(gradients_are_unscaled_once_and_by_one_scaler),
        cmocka_unit_test(defaults_are_those_of_pytorch),
        cmocka_unit_test(an_unwritten_gradient_is_not_looked_at),
        cmocka_unit_test(a_scaler_that_is_set_goes_on_alike),
        cmocka_unit_test(a_scaler_is_not_set_to_what_it_cannot_be),
        cmocka_unit_test(ranks_step_if_all_of_them_can),
        cmocka_unit_test(
            a_step_that_ranks_decide_needs_gradients_of_this_scaler),
        cmocka_unit_test(a_hook_that_fails_leaves_scale_and_gradients),
        cmocka_unit_test(bad_arguments_are_refused_with_a_sentence),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
