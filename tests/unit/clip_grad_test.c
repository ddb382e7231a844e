/* SPDX-License-Identifier: Apache-2.0 */
/* Clipping of gradients, against PyTorch. */
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <oarsong/optim.h>

#include "golden/golden.h"
#include "support/leak_check.h"
#include "support/last_error.h"

enum { PARAMS = 3, LAST = 11 };

/* A parameter whose gradient is these numbers. */
static oar_tensor *param_of(oar_dtype dtype, oar_shape shape,
                            const double *grad)
{
    oar_tensor *p = oar_full(NULL, dtype, shape, 1);
    oar_tensor *home = oar_empty(NULL, dtype, shape);

    OK(oar_tensor_write(home, OAR_F64, grad));
    OK(oar_tensor_require_grad(p, 1));
    OK(oar_tensor_bind_grad(p, home));
    OK(oar_tensor_mark_grad(p));
    oar_tensor_release(home);
    return p;
}

static void params_make(oar_dtype dtype, oar_tensor **param)
{
    for (int i = 0; i < PARAMS; i++) {
        char name[16];
        const golden *start, *grad;

        snprintf(name, sizeof name, "p%d", i);
        start = golden_get("start", name);
        grad = golden_get("grad", name);
        param[i] = param_of(dtype, start->shape,
                            grad->number + (size_t)LAST * start->count);
    }
}

static void params_drop(oar_tensor **param)
{
    for (int i = 0; i < PARAMS; i++)
        oar_tensor_release(param[i]);
}

static double tolerance_of(oar_dtype dtype)
{
    return dtype == OAR_F64   ? 1e-10
           : dtype == OAR_F32 ? 1e-6
           : dtype == OAR_F16 ? 1e-3
                              : 1e-2;
}

static void compare(const char *run, oar_tensor *const *param)
{
    for (int i = 0; i < PARAMS; i++) {
        char name[16];
        const golden *want;
        const oar_tensor *got = oar_tensor_grad(param[i]);
        double tolerance = tolerance_of(oar_tensor_dtype(got)), number[64];

        snprintf(name, sizeof name, "p%d", i);
        want = golden_get(run, name);
        OK(oar_tensor_read(got, OAR_F64, number));
        for (size_t k = 0; k < want->count; k++)
            if (!(fabs(number[k] - want->number[k]) <=
                  tolerance * (1 + fabs(want->number[k]))))
                fail_msg("%s.%s[%zu] (%s): %.17g, PyTorch has %.17g", run, name,
                         k, oar_dtype_name(oar_tensor_dtype(got)), number[k],
                         want->number[k]);
    }
}

static void by_norm_as(const char *run, double limit)
{
    for (int dtype = OAR_F32; dtype <= OAR_BF16; dtype++) {
        double norm = 0, want = golden_get(run, "norm")->number[0];
        oar_tensor *param[PARAMS];

        params_make((oar_dtype)dtype, param);
        OK(oar_clip_grad_norm(PARAMS, param, limit, &norm));
        assert_true(fabs(norm - want) <=
                    tolerance_of((oar_dtype)dtype) * (1 + want));
        compare(run, param);
        params_drop(param);
    }
}

static void clipping_by_norm_agrees_with_pytorch(void **state)
{
    by_norm_as("clip", 0.5);
    by_norm_as("clip_not", 1e3);
}

static void clipping_by_value_agrees_with_pytorch(void **state)
{
    for (int dtype = OAR_F32; dtype <= OAR_BF16; dtype++) {
        oar_tensor *param[PARAMS];

        params_make((oar_dtype)dtype, param);
        OK(oar_clip_grad_value(PARAMS, param, 0.75));
        compare("clip_value", param);
        params_drop(param);
    }
}

static void the_norm_is_summed_in_f64(void **state)
{
    oar_tensor *p =
        param_of(OAR_F32, OAR_SHAPE(2), (double[]){ 1e30, 1e30 }); /* squares */
    double norm = 0, number[2];

    OK(oar_clip_grad_norm(1, &p, 1, &norm));
    assert_true(fabs(norm / (1e30 * sqrt(2)) - 1) < 1e-6);
    OK(oar_tensor_read(oar_tensor_grad(p), OAR_F64, number));
    assert_true(fabs(number[0] - sqrt(0.5)) < 1e-6);
    oar_tensor_release(p);
}

static void every_length_is_summed_and_scaled_to_its_end(void **state)
{
    double ones[2100];

    for (int i = 0; i < 2100; i++)
        ones[i] = 1;
    for (int dtype = OAR_F32; dtype <= OAR_BF16; dtype++)
        for (int64_t n = 0; n < 2100; n = n < 20 ? n + 1 : n * 3 + 1) {
            oar_tensor *p = param_of((oar_dtype)dtype, OAR_SHAPE(n), ones);
            double norm = -1, number[2100];

            OK(oar_clip_grad_norm(1, &p, 0.25, &norm));
            assert_true(fabs(norm - sqrt((double)n)) < 1e-12);
            OK(oar_clip_grad_value(1, &p, 0));
            OK(oar_tensor_read(oar_tensor_grad(p), OAR_F64, number));
            for (int64_t i = 0; i < n; i++)
                assert_true(number[i] == 0);
            oar_tensor_release(p);
        }
}

static void a_parameter_given_twice_counts_once(void **state)
{
    oar_tensor *p = param_of(OAR_F64, OAR_SHAPE(2), (double[]){ 3, 4 });
    oar_tensor *twice[2] = { p, p };
    double norm = 0, number[2];

    OK(oar_clip_grad_norm(2, twice, 2.5, &norm));
    assert_true(norm == 5);
    OK(oar_tensor_read(oar_tensor_grad(p), OAR_F64, number));
    assert_true(fabs(number[1] - 2) < 1e-5);
    oar_tensor_release(p);
}

static void an_unwritten_gradient_does_not_count(void **state)
{
    oar_tensor *p[2] = { param_of(OAR_F64, OAR_SHAPE(2), (double[]){ 3, 4 }),
                         param_of(OAR_F64, OAR_SHAPE(1), (double[]){ 12 }) };
    double norm = 0;

    oar_tensor_clear_grad(p[1]);
    OK(oar_clip_grad_norm(2, p, 100, &norm));
    assert_true(norm == 5);
    OK(oar_clip_grad_norm(2, p, 100, NULL));
    OK(oar_clip_grad_value(2, p, 100));
    OK(oar_clip_grad_norm(0, NULL, 1, &norm));
    assert_true(norm == 0);
    oar_tensor_release(p[0]);
    oar_tensor_release(p[1]);
}

static void gradients_that_are_not_finite_are_kept_and_reported(void **state)
{
    oar_tensor *p =
        param_of(OAR_F32, OAR_SHAPE(3), (double[]){ 3, INFINITY, -7 });
    double norm = 0, number[3];

    OK(oar_clip_grad_norm(1, &p, 1, &norm));
    assert_true(isinf(norm));
    OK(oar_tensor_read(oar_tensor_grad(p), OAR_F64, number));
    assert_true(number[0] == 3 && isinf(number[1]) && number[2] == -7);
    OK(oar_tensor_write(oar_tensor_grad(p), OAR_F64,
                        (double[]){ NAN, INFINITY, -7 }));
    OK(oar_clip_grad_value(1, &p, 2));
    OK(oar_tensor_read(oar_tensor_grad(p), OAR_F64, number));
    assert_true(isnan(number[0]) && number[1] == 2 && number[2] == -2);
    oar_tensor_release(p);
}

static void bad_arguments_are_refused_with_a_sentence(void **state)
{
    oar_tensor *p = param_of(OAR_F64, OAR_SHAPE(2), (double[]){ 3, 4 });
    oar_tensor *none = NULL;

    assert_fails_with(oar_clip_grad_norm(1, &p, -1, NULL), OAR_E_ARG, "-1");
    assert_fails_with(oar_clip_grad_norm(1, &p, NAN, NULL), OAR_E_ARG, "nan");
    assert_fails_with(oar_clip_grad_value(1, &p, -1), OAR_E_ARG, "-1");
    assert_fails_with(oar_clip_grad_value(-1, &p, 1), OAR_E_ARG,
                      "-1 parameters");
    assert_fails_with(oar_clip_grad_norm(2, NULL, 1, NULL), OAR_E_ARG,
                      "2 param");
    oar_clear_error();
    assert_fails_with(oar_clip_grad_norm(1, &none, 1, NULL), OAR_E_ARG, "NULL");
    OK(oar_storage_detach(oar_tensor_storage(oar_tensor_grad(p))));
    assert_fails_with(oar_clip_grad_norm(1, &p, 1, NULL), OAR_E_STATE, "[2]");
    assert_fails_with(oar_clip_grad_value(1, &p, 1), OAR_E_STATE, "[2]");
    oar_tensor_release(p);
}

static int open_records(void **state)
{
    return golden_load("optim");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clipping_by_norm_agrees_with_pytorch),
        cmocka_unit_test(clipping_by_value_agrees_with_pytorch),
        cmocka_unit_test(the_norm_is_summed_in_f64),
        cmocka_unit_test(every_length_is_summed_and_scaled_to_its_end),
        cmocka_unit_test(a_parameter_given_twice_counts_once),
        cmocka_unit_test(an_unwritten_gradient_does_not_count),
        cmocka_unit_test(gradients_that_are_not_finite_are_kept_and_reported),
        cmocka_unit_test(bad_arguments_are_refused_with_a_sentence),
    };

    return cmocka_run_group_tests(tests, open_records, golden_close);
}
