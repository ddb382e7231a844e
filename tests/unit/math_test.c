/* SPDX-License-Identifier: Apache-2.0 */
/* The f32 functions of tensor/cpu/math.h against libm in f64, over all sizes;
 * and operations on rows longer than the blocks they are computed in. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/ops.h>

#include "support/last_error.h"
#include "tensor/cpu/arith.h"
#include "tensor/cpu/math.h"

/* ---- accuracy ------------------------------------------------------------ */

enum { STRIDE = 9973 }; /* of the bit patterns that are tried */

/* How far got is from want, in units of the last place of an f32. */
static double ulps(float got, double want)
{
    int exponent;

    if (isnan(want))
        return isnan(got) ? 0 : INFINITY;
    if (isinf((float)want) || isinf(got))
        return (float)want == got ? 0 : INFINITY;
    frexp(want, &exponent);
    return fabs((double)got - want) / fmax(ldexp(1, exponent - 24), 0x1p-149);
}

static void check_function(const char *name, float (*fn)(float),
                           double (*truth)(double), float low, float high,
                           double most)
{
    for (uint64_t b = 0; b < 0x100000000u; b += STRIDE) {
        float x = oari_bits_to_f32((uint32_t)b);

        if (x < low || x > high)
            continue;
        if (!(ulps(fn(x), truth((double)x)) <= most))
            fail_msg("%s of %a is %a, not %a", name, (double)x, (double)fn(x),
                     truth((double)x));
    }
}

static void quick_functions_are_accurate(void **state)
{
    const float all = INFINITY;

    check_function("exp", oari_expf, exp, -all, all, 1.5);
    check_function("log", oari_logf, log, -all, all, 1.5);
    check_function("expm1", oari_expm1f, expm1, -all, all, 2);
    check_function("log1p", oari_log1pf, log1p, -all, all, 2);
    check_function("tanh", oari_tanhf, tanh, -all, all, 2);
    check_function("erf", oari_erff, erf, -all, all, 2);
    check_function("sin", oari_sinf, sin, -OARI_SINCOS_MAX, OARI_SINCOS_MAX, 2);
    check_function("cos", oari_cosf, cos, -OARI_SINCOS_MAX, OARI_SINCOS_MAX, 2);
    /* Below -80 it goes under where e^80 is still finite. */
    check_function("sigmoid", oari_sigmoidf, oari_sigmoid, -80, all, 2.5);
}

/* ---- long rows ----------------------------------------------------------- */

/* Longer than a block, a whole number of blocks, and one off. */
static const int64_t lengths[] = { 511, 512, 513, 1024, 1300 };
static const oar_dtype dtypes[] = { OAR_F32, OAR_F64, OAR_F16, OAR_BF16 };

/* Every second element of numbers between 0.5 and 1.5, as a view and as a
 * copy. */
static void make_both(oar_dtype dtype, int64_t length, uint64_t seed,
                      oar_tensor **view, oar_tensor **copy)
{
    oar_tensor *twice =
        oar_uniform(NULL, dtype, OAR_SHAPE(2 * length), seed, 0.5, 1.5);

    *view = oar_slice(NULL, twice, 0, 1, 2 * length, 2);
    *copy = oar_contiguous(NULL, *view);
    assert_false(oar_tensor_is_contiguous(*view));
    oar_tensor_release(twice);
}

/* Compares the bits, and releases both. */
static void same_bits(oar_tensor *a, oar_tensor *b)
{
    size_t bytes;

    assert_non_null(a);
    assert_non_null(b);
    bytes = (size_t)oar_tensor_count(a) * oar_dtype_size(oar_tensor_dtype(a));
    assert_memory_equal(oar_tensor_data(a), oar_tensor_data(b), bytes);
    oar_tensor_release(a);
    oar_tensor_release(b);
}

static void check_long(oar_dtype dtype, int64_t length)
{
    oar_tensor *a, *b, *x, *y, *m, *n;

    make_both(dtype, length, 1, &a, &x);
    make_both(dtype, length, 2, &b, &y);
#define X(name) same_bits(oar_##name(NULL, a), oar_##name(NULL, x));
    OAR_UNARY_LIST(X)
#undef X
#define SAME(fn) same_bits(fn(NULL, a, b), fn(NULL, x, y))
    SAME(oar_add);
    SAME(oar_sub);
    SAME(oar_mul);
    SAME(oar_div);
    SAME(oar_pow);
    SAME(oar_minimum);
    SAME(oar_maximum);
#define X(name) SAME(oar_##name);
    OAR_COMPARE_LIST(X)
#undef X
    m = oar_lt(NULL, a, y);
    n = oar_lt(NULL, x, b);
    same_bits(oar_where(NULL, m, a, b), oar_where(NULL, n, x, y));
    same_bits(oar_masked_fill(NULL, a, m, 2), oar_masked_fill(NULL, x, n, 2));
    same_bits(oar_clamp(NULL, a, 0.7, 1), oar_clamp(NULL, x, 0.7, 1));
    same_bits(oar_power(NULL, a, 1.5), oar_power(NULL, x, 1.5));
    same_bits(oar_scale(NULL, a, 1.5), oar_scale(NULL, x, 1.5));
    same_bits(oar_max_over(NULL, a, OAR_NO_DIMS, 0),
              oar_max_over(NULL, x, OAR_NO_DIMS, 0));
    same_bits(oar_argmax(NULL, a, 0, 0), oar_argmax(NULL, x, 0, 0));
    same_bits(oar_cast(NULL, a, OAR_F32), oar_cast(NULL, x, OAR_F32));
    oar_tensor_release(m);
    oar_tensor_release(n);
    oar_tensor_release(a);
    oar_tensor_release(b);
    oar_tensor_release(x);
    oar_tensor_release(y);
}

static void long_rows_go_block_by_block(void **state)
{
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            check_long(dtypes[d], lengths[i]);
}

/* The sum of `length` numbers, one by one in f64. */
static double sum_of(const oar_tensor *a)
{
    double number[1300], sum = 0;

    OK(oar_tensor_read(a, OAR_F64, number));
    for (int64_t i = 0; i < oar_tensor_count(a); i++)
        sum += number[i];
    return sum;
}

static void check_sum(oar_tensor *made, double want, oar_dtype dtype)
{
    static const double precision[] = {
        [OAR_F32] = 1e-7, [OAR_F64] = 1e-14, [OAR_F16] = 5e-4, [OAR_BF16] = 4e-3
    };
    double got;

    OK(oar_tensor_item(made, &got));
    assert_true(fabs(got - want) <= precision[dtype] * fabs(want));
    oar_tensor_release(made);
}

static void long_sums_are_rounded_once(void **state)
{
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            oar_tensor *a, *x;
            double sum;

            make_both(dtypes[d], lengths[i], 3, &a, &x);
            sum = sum_of(x);
            check_sum(oar_sum(NULL, a), sum, dtypes[d]);
            check_sum(oar_sum(NULL, x), sum, dtypes[d]);
            check_sum(oar_sum_over(NULL, a, OAR_DIMS(0), 0), sum, dtypes[d]);
            check_sum(oar_mean(NULL, a), sum / (double)lengths[i], dtypes[d]);
            oar_tensor_release(a);
            oar_tensor_release(x);
        }
}

/* In place, as gradients are computed. */
static void results_may_lie_where_inputs_do(void **state)
{
    oar_tensor *a = oar_uniform(NULL, OAR_F32, OAR_SHAPE(1300), 4, -1, 1);
    oar_tensor *y = oar_exp(NULL, a), *z = oar_mul(NULL, a, y);
    oari_array in = oari_array_of(a), other = oari_array_of(y);

    oari_binary(OARI_MUL, &other, &in, &other);
    same_bits(oar_tensor_retain(y), z);
    oari_unary(OARI_UNARY_tanh, &other, &other);
    oari_unary(OARI_UNARY_exp, &in, &in);
    for (int i = 0; i < 1300; i++)
        assert_true(((float *)oar_tensor_data(a))[i] > 0.36f);
    oar_tensor_release(a);
    oar_tensor_release(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quick_functions_are_accurate),
        cmocka_unit_test(long_rows_go_block_by_block),
        cmocka_unit_test(long_sums_are_rounded_once),
        cmocka_unit_test(results_may_lie_where_inputs_do),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
