/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation against PyTorch's numbers, forward and backward, in all four
 * float dtypes, and on strided views of the same numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "unit/ops_cases.h"

/* ---- f32 and f64 --------------------------------------------------------- */

/* The gradient of leaf i, in the shape of the input; the caller owns it. */
static oar_tensor *grad_of(const leaves *l, int i)
{
    oar_tensor *grad = oar_tensor_grad(l->leaf[i]);

    assert_non_null(grad);
    return l->spread ? golden_view(NULL, grad) : oar_tensor_retain(grad);
}

typedef void (*compare_fn)(const op_case *c, const char *part,
                           const oar_tensor *got);

static void compare_full(const op_case *c, const char *part,
                         const oar_tensor *got)
{
    golden_compare(golden_get(c->name, part), got);
}

static void check_case(const op_case *c, oar_dtype dtype, int spread,
                       compare_fn compare)
{
    leaves l = leaves_of(c->name, dtype, spread);
    oar_tensor *seed = golden_tensor(golden_get(c->name, "seed"), dtype);
    oar_tensor *out, *grad;
    oar_tape *tape;
    char part[16];

    OK(oar_tape_create(&tape));
    out = run_case(c, tape, &l);
    if (out == NULL)
        fail_msg("%s: %s", c->name, oar_last_error_text());
    compare(c, "out", out);
    OK(oar_backward_from(tape, 1, &out, &seed));
    for (int i = 0; i < MOST; i++) {
        if (golden_part(c->name, "grad", i) == NULL)
            continue;
        snprintf(part, sizeof part, "grad%d", i);
        grad = grad_of(&l, i);
        compare(c, part, grad);
        oar_tensor_release(grad);
    }
    release_leaves(&l);
    oar_tensor_release(seed);
    oar_tape_destroy(tape);
}

static void operations_agree_with_pytorch(void **state)
{
    for (int i = 0; i < OP_CASES; i++) {
        check_case(&op_cases[i], OAR_F64, 0, compare_full);
        check_case(&op_cases[i], OAR_F32, 0, compare_full);
    }
}

static void strided_views_give_the_same(void **state)
{
    for (int i = 0; i < OP_CASES; i++) {
        check_case(&op_cases[i], OAR_F64, 1, compare_full);
        check_case(&op_cases[i], OAR_F32, 1, compare_full);
    }
}

/* ---- halves -------------------------------------------------------------- */

/* One unit in the last place of a half around x. */
static double half_ulp(double x, oar_dtype dtype)
{
    int exponent, digits = dtype == OAR_F16 ? 11 : 8;
    int least = dtype == OAR_F16 ? -14 : -126;

    frexp(x, &exponent);
    exponent = exponent - 1 < least ? least : exponent - 1;
    return ldexp(1, exponent - digits + 1);
}

/* How far x is from record `want`, in such units. */
static double distance(const golden *want, size_t i, double x, oar_dtype dtype)
{
    if (want == NULL)
        return INFINITY;
    return fabs(x - want->number[i]) / half_ulp(want->number[i], dtype);
}

/* PyTorch's number, or what rounding once gives where it rounds in between. */
static void compare_half(const op_case *c, const char *part,
                         const oar_tensor *got)
{
    oar_dtype dtype = oar_tensor_dtype(got);
    const golden *want, *once;
    double number[64];
    char text[32];

    snprintf(text, sizeof text, "%s.%s", oar_dtype_name(dtype), part);
    want = golden_get(c->name, text);
    snprintf(text, sizeof text, "%s.once.%s", oar_dtype_name(dtype), part);
    once = golden_find(c->name, text);
    assert_int_equal(oar_tensor_count(got), want->count);
    assert_true(want->count <= 64);
    OK(oar_tensor_read(got, OAR_F64, number));
    for (size_t i = 0; i < want->count; i++)
        if (!(distance(want, i, number[i], dtype) <= 1 ||
              distance(once, i, number[i], dtype) <= 1))
            fail_msg("%s[%zu]: %.10g, PyTorch has %.10g, rounded once %.10g",
                     want->name, i, number[i], want->number[i],
                     once != NULL ? once->number[i] : NAN);
}

static void halves_agree_with_pytorch(void **state)
{
    for (int i = 0; i < OP_CASES; i++)
        for (int spread = 0; spread < 2; spread++) {
            check_case(&op_cases[i], OAR_F16, spread, compare_half);
            check_case(&op_cases[i], OAR_BF16, spread, compare_half);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_agree_with_pytorch),
        cmocka_unit_test(strided_views_give_the_same),
        cmocka_unit_test(halves_agree_with_pytorch),
    };

    return cmocka_run_group_tests(tests, load_ops, golden_close);
}
