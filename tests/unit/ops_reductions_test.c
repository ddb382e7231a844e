/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions, comparisons with numbers, sorting and sums along a dim, where
 * PyTorch's numbers do not cover them: integers, bools, NaN, ties, empty
 * tensors; and what they refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <oarsong/tape.h>

#include "unit/number_rows.h"

static const oar_dtype floats[] = { OAR_F32, OAR_F64, OAR_F16, OAR_BF16 };
static const oar_dtype integers[] = { OAR_I8,  OAR_U8,  OAR_I16, OAR_U16,
                                      OAR_I32, OAR_U32, OAR_I64, OAR_U64 };

static void refuses(oar_tensor *result, oar_status status, const char *words)
{
    assert_null(result);
    assert_fails_with(oar_last_error()->status, status, words);
    oar_clear_error();
}

/* a in two rows, as a view whose rows lie apart. Releases a. */
static oar_tensor *two_rows(oar_tensor *a)
{
    int64_t half = oar_tensor_count(a) / 2;
    oar_tensor *rows = oar_reshape(NULL, a, OAR_SHAPE(2, half));
    oar_tensor *turned = oar_transpose(NULL, rows, 0, 1), *copy, *view;

    copy = oar_contiguous(NULL, turned);
    view = oar_transpose(NULL, copy, 0, 1);
    RELEASE(a, rows, turned, copy);
    return view;
}

/* ---- bools --------------------------------------------------------------- */

static void bools_are_reduced(void **state)
{
    oar_tensor *a = two_rows(ROW(OAR_BOOL, 1, 0, 1, 1, 1, 1));

    EXPECT(oar_sum(NULL, a), OAR_I64, 5);
    EXPECT(oar_sum_over(NULL, a, OAR_DIMS(0), 0), OAR_I64, 2, 1, 2);
    EXPECT(oar_sum_over(NULL, a, OAR_DIMS(1), 1), OAR_I64, 2, 3);
    EXPECT(oar_prod_over(NULL, a, OAR_DIMS(1), 0), OAR_I64, 0, 1);
    EXPECT(oar_max_over(NULL, a, OAR_DIMS(0), 0), OAR_BOOL, 1, 1, 1);
    EXPECT(oar_min_over(NULL, a, OAR_DIMS(0), 0), OAR_BOOL, 1, 0, 1);
    EXPECT(oar_argmax(NULL, a, 0, 0), OAR_I64, 0, 1, 0);
    EXPECT(oar_argmin(NULL, a, 1, 1), OAR_I64, 1, 0);
    RELEASE(a);
}

/* More than a byte can count. */
static void a_thousand_bools_are_counted(void **state)
{
    oar_tensor *a = oar_ones(NULL, OAR_BOOL, OAR_SHAPE(1000, 3));

    EXPECT(oar_sum(NULL, a), OAR_I64, 3000);
    EXPECT(oar_sum_over(NULL, a, OAR_DIMS(0), 0), OAR_I64, 1000, 1000, 1000);
    RELEASE(a);
}

/* Any byte but zero is true, and counts as one. */
static void odd_bytes_are_true(void **state)
{
    const uint8_t byte[] = { 2, 0, 255, 1 };
    oar_tensor *a = oar_from_data(NULL, OAR_BOOL, OAR_SHAPE(4), byte), *value;

    EXPECT(oar_sum(NULL, a), OAR_I64, 3);
    EXPECT(oar_any_over(NULL, a, OAR_NO_DIMS, 0), OAR_BOOL, 1);
    EXPECT(oar_argmax(NULL, a, 0, 0), OAR_I64, 0);
    EXPECT(oar_cumsum(NULL, a, 0), OAR_I64, 1, 1, 2, 3);
    OK(oar_sort(NULL, a, 0, 0, &value, NULL));
    EXPECT(value, OAR_BOOL, 0, 1, 1, 1);
    RELEASE(a);
}

static void any_and_all_take_every_dtype(void **state)
{
    for (int dtype = 0; dtype <= OAR_BOOL; dtype++) {
        oar_tensor *a = two_rows(ROW((oar_dtype)dtype, 0, 0, 1, 0, 1, 1));

        EXPECT(oar_any_over(NULL, a, OAR_DIMS(0), 0), OAR_BOOL, 0, 1, 1);
        EXPECT(oar_all_over(NULL, a, OAR_DIMS(0), 1), OAR_BOOL, 0, 0, 1);
        EXPECT(oar_any_over(NULL, a, OAR_DIMS(-1), 0), OAR_BOOL, 1, 1);
        EXPECT(oar_all_over(NULL, a, OAR_NO_DIMS, 0), OAR_BOOL, 0);
        RELEASE(a);
    }
}

static void what_is_not_zero_is_true(void **state)
{
    for (int i = 0; i < 4; i++) {
        oar_tensor *a = two_rows(ROW(floats[i], NAN, 0x1p-14, -0.0, 0.0));

        EXPECT(oar_any_over(NULL, a, OAR_DIMS(1), 0), OAR_BOOL, 1, 0);
        EXPECT(oar_all_over(NULL, a, OAR_DIMS(1), 0), OAR_BOOL, 1, 0);
        RELEASE(a);
    }
    for (int i = 2; i < 8; i++) { /* the low byte is zero */
        oar_tensor *a = ROW(integers[i], 256, 256);

        EXPECT(oar_all_over(NULL, a, OAR_NO_DIMS, 0), OAR_BOOL, 1);
        RELEASE(a);
    }
}

static void nothing_is_any_of_none_and_all_of_none(void **state)
{
    oar_tensor *a = oar_zeros(NULL, OAR_F32, OAR_SHAPE(2, 0));

    EXPECT(oar_any_over(NULL, a, OAR_DIMS(1), 0), OAR_BOOL, 0, 0);
    EXPECT(oar_all_over(NULL, a, OAR_DIMS(1), 0), OAR_BOOL, 1, 1);
    EXPECT(oar_all_over(NULL, a, OAR_NO_DIMS, 0), OAR_BOOL, 1);
    RELEASE(a);
    a = oar_zeros(NULL, OAR_BOOL, OAR_SHAPE(0));
    EXPECT(oar_sum(NULL, a), OAR_I64, 0);
    RELEASE(a);
}

/* ---- the largest and the smallest ---------------------------------------- */

static void the_first_of_equals_is_picked(void **state)
{
    oar_tensor *a = two_rows(ROW(OAR_I16, 3, -4, 3, -4, 5, 5)), *value, *index;

    EXPECT(oar_argmin(NULL, a, 1, 0), OAR_I64, 1, 0);
    OK(oar_max_with_index(NULL, a, 1, 0, &value, &index));
    EXPECT(value, OAR_I16, 3, 5);
    EXPECT(index, OAR_I64, 0, 1);
    OK(oar_min_with_index(NULL, a, 0, 1, &value, &index));
    assert_int_equal(oar_tensor_shape(value).ndim, 2);
    EXPECT(value, OAR_I16, -4, -4, 3);
    EXPECT(index, OAR_I64, 1, 0, 0);
    RELEASE(a);
}

static void a_nan_is_largest_and_smallest(void **state)
{
    for (int i = 0; i < 4; i++) {
        oar_tensor *a = ROW(floats[i], 1, NAN, -INFINITY, NAN), *value, *index;

        EXPECT(oar_argmin(NULL, a, 0, 0), OAR_I64, 1);
        OK(oar_max_with_index(NULL, a, 0, 0, &value, &index));
        EXPECT(value, floats[i], NAN);
        EXPECT(index, OAR_I64, 1);
        OK(oar_min_with_index(NULL, a, 0, 0, &value, &index));
        EXPECT(value, floats[i], NAN);
        EXPECT(index, OAR_I64, 1);
        RELEASE(a);
    }
}

/* ---- numbers ------------------------------------------------------------- */

static void floats_are_compared_with_numbers(void **state)
{
    for (int i = 0; i < 4; i++) {
        oar_tensor *a = ROW(floats[i], 0.1, -1, NAN, INFINITY);

        EXPECT(oar_eq_scalar(NULL, a, 0.1), OAR_BOOL, 1, 0, 0, 0);
        EXPECT(oar_ne_scalar(NULL, a, 0.1), OAR_BOOL, 0, 1, 1, 1);
        EXPECT(oar_lt_scalar(NULL, a, 0.1), OAR_BOOL, 0, 1, 0, 0);
        EXPECT(oar_le_scalar(NULL, a, 0.1), OAR_BOOL, 1, 1, 0, 0);
        EXPECT(oar_gt_scalar(NULL, a, -1), OAR_BOOL, 1, 0, 0, 1);
        EXPECT(oar_ge_scalar(NULL, a, INFINITY), OAR_BOOL, 0, 0, 0, 1);
        EXPECT(oar_ne_scalar(NULL, a, NAN), OAR_BOOL, 1, 1, 1, 1);
        RELEASE(a);
    }
}

static void integers_are_compared_with_any_number(void **state)
{
    for (int i = 0; i < 8; i++) {
        oar_tensor *a = ROW(integers[i], 1, 2, 3);

        EXPECT(oar_eq_scalar(NULL, a, 2), OAR_BOOL, 0, 1, 0);
        EXPECT(oar_eq_scalar(NULL, a, 2.5), OAR_BOOL, 0, 0, 0);
        EXPECT(oar_ne_scalar(NULL, a, 2.5), OAR_BOOL, 1, 1, 1);
        EXPECT(oar_lt_scalar(NULL, a, 2.5), OAR_BOOL, 1, 1, 0);
        EXPECT(oar_le_scalar(NULL, a, 1.5), OAR_BOOL, 1, 0, 0);
        EXPECT(oar_gt_scalar(NULL, a, 2.5), OAR_BOOL, 0, 0, 1);
        EXPECT(oar_ge_scalar(NULL, a, 1.5), OAR_BOOL, 0, 1, 1);
        EXPECT(oar_gt_scalar(NULL, a, -0.5), OAR_BOOL, 1, 1, 1);
        EXPECT(oar_le_scalar(NULL, a, -0.5), OAR_BOOL, 0, 0, 0);
        EXPECT(oar_lt_scalar(NULL, a, INFINITY), OAR_BOOL, 1, 1, 1);
        EXPECT(oar_ge_scalar(NULL, a, -INFINITY), OAR_BOOL, 1, 1, 1);
        EXPECT(oar_le_scalar(NULL, a, NAN), OAR_BOOL, 0, 0, 0);
        EXPECT(oar_ne_scalar(NULL, a, NAN), OAR_BOOL, 1, 1, 1);
        RELEASE(a);
    }
}

/* Where a dtype ends, and one beyond. */
static void the_ends_of_a_dtype_are_compared(void **state)
{
    const uint64_t most = UINT64_MAX;
    const int64_t ends[] = { INT64_MIN, INT64_MAX };
    oar_tensor *u = oar_from_data(NULL, OAR_U64, OAR_SHAPE(1), &most);
    oar_tensor *a = oar_from_data(NULL, OAR_I64, OAR_SHAPE(2), ends);
    oar_tensor *b = ROW(OAR_U8, 0, 255), *flag = ROW(OAR_BOOL, 0, 1);

    EXPECT(oar_lt_scalar(NULL, u, 0x1p64), OAR_BOOL, 1);
    EXPECT(oar_eq_scalar(NULL, u, 0x1p64), OAR_BOOL, 0);
    EXPECT(oar_ge_scalar(NULL, a, -0x1p63), OAR_BOOL, 1, 1);
    EXPECT(oar_eq_scalar(NULL, a, -0x1p63), OAR_BOOL, 1, 0);
    EXPECT(oar_ge_scalar(NULL, a, 0x1p63), OAR_BOOL, 0, 0);
    EXPECT(oar_lt_scalar(NULL, b, 256), OAR_BOOL, 1, 1);
    EXPECT(oar_eq_scalar(NULL, b, -1), OAR_BOOL, 0, 0);
    EXPECT(oar_gt_scalar(NULL, b, 254.5), OAR_BOOL, 0, 1);
    EXPECT(oar_eq_scalar(NULL, flag, 1), OAR_BOOL, 0, 1);
    EXPECT(oar_lt_scalar(NULL, flag, 0.5), OAR_BOOL, 1, 0);
    EXPECT(oar_eq_scalar(NULL, flag, 2), OAR_BOOL, 0, 0);
    RELEASE(u, a, b, flag);
}

static void numbers_bound_and_replace(void **state)
{
    oar_tensor *a = ROW(OAR_I8, -3, 5), *x = ROW(OAR_F32, NAN, 1);
    oar_tensor *mask = ROW(OAR_BOOL, 0, 1), *one = ROW(OAR_I32, 7);

    EXPECT(oar_minimum_scalar(NULL, a, 2), OAR_I8, -3, 2);
    EXPECT(oar_maximum_scalar(NULL, a, -1), OAR_I8, -1, 5);
    EXPECT(oar_maximum_scalar(NULL, x, 2), OAR_F32, NAN, 2);
    EXPECT(oar_minimum_scalar(NULL, x, NAN), OAR_F32, NAN, NAN);
    EXPECT(oar_where_scalar(NULL, mask, a, 9), OAR_I8, 9, 5);
    EXPECT(oar_where_scalar(NULL, mask, one, -1), OAR_I32, -1, 7);
    EXPECT(oar_where_scalar(NULL, mask, mask, 1), OAR_BOOL, 1, 1);
    RELEASE(a, x, mask, one);
}

/* ---- one element at a time ----------------------------------------------- */

static void halves_are_rounded_to_even(void **state)
{
    for (int i = 0; i < 4; i++) {
        oar_tensor *a =
            ROW(floats[i], -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, NAN, INFINITY);

        EXPECT(oar_round(NULL, a), floats[i], -2, -2, 0, 0, 2, 2, NAN,
               INFINITY);
        EXPECT(oar_floor(NULL, a), floats[i], -3, -2, -1, 0, 1, 2, NAN,
               INFINITY);
        EXPECT(oar_ceil(NULL, a), floats[i], -2, -1, 0, 1, 2, 3, NAN, INFINITY);
        EXPECT(oar_sign(NULL, a), floats[i], -1, -1, -1, 1, 1, 1, 0, 1);
        RELEASE(a);
    }
}

static void integers_are_whole_already(void **state)
{
    oar_tensor *a = ROW(OAR_I32, -7, 0, 7), *u = ROW(OAR_U8, 0, 200);

    EXPECT(oar_round(NULL, a), OAR_I32, -7, 0, 7);
    EXPECT(oar_floor(NULL, a), OAR_I32, -7, 0, 7);
    EXPECT(oar_ceil(NULL, u), OAR_U8, 0, 200);
    EXPECT(oar_sign(NULL, a), OAR_I32, -1, 0, 1);
    EXPECT(oar_sign(NULL, u), OAR_U8, 0, 1);
    RELEASE(a, u);
}

static void functions_have_their_limits(void **state)
{
    for (int i = 0; i < 2; i++) {
        oar_tensor *a = ROW(floats[i], -INFINITY, -1, 0, INFINITY, NAN);

        EXPECT(oar_expm1(NULL, a), floats[i], -1,
               i == 0 ? (double)(float)expm1(-1) : expm1(-1), 0, INFINITY, NAN);
        EXPECT(oar_log1p(NULL, a), floats[i], NAN, -INFINITY, 0, INFINITY, NAN);
        EXPECT(oar_leaky_relu(NULL, a, 0.5), floats[i], -INFINITY, -0.5, 0,
               INFINITY, NAN);
        RELEASE(a);
    }
}

/* ---- sorting ------------------------------------------------------------- */

static void sorting_keeps_the_order_of_equals(void **state)
{
    for (int k = 0; k <= OAR_BOOL; k++) {
        oar_dtype dtype = (oar_dtype)k;
        oar_tensor *a = ROW(dtype, 1, 0, 1, 0, 1), *value, *index;

        OK(oar_sort(NULL, a, 0, 0, &value, &index));
        EXPECT(value, dtype, 0, 0, 1, 1, 1);
        EXPECT(index, OAR_I64, 1, 3, 0, 2, 4);
        OK(oar_sort(NULL, a, 0, 1, &value, &index));
        EXPECT(value, dtype, 1, 1, 1, 0, 0);
        EXPECT(index, OAR_I64, 0, 2, 4, 1, 3);
        RELEASE(a);
    }
}

static void signs_zeros_and_nans_are_sorted(void **state)
{
    for (int i = 0; i < 4; i++) {
        oar_tensor *a =
            ROW(floats[i], 1, NAN, 0.0, -0.0, -INFINITY, -2, INFINITY, NAN);
        oar_tensor *value, *index;

        OK(oar_sort(NULL, a, 0, 0, &value, &index));
        EXPECT(value, floats[i], -INFINITY, -2, 0, 0, 1, INFINITY, NAN, NAN);
        EXPECT(index, OAR_I64, 4, 5, 2, 3, 0, 6, 1, 7);
        OK(oar_sort(NULL, a, 0, 1, &value, &index));
        EXPECT(index, OAR_I64, 1, 7, 6, 0, 2, 3, 5, 4);
        oar_tensor_release(value);
        RELEASE(a);
    }
}

/* Longer than what is sorted by insertion, with many equal ones. */
static void check_long_row(oar_dtype dtype, int64_t count, int descending)
{
    int is_unsigned = dtype == OAR_U8 || dtype == OAR_U16 || dtype == OAR_U32 ||
                      dtype == OAR_U64;
    oar_tensor *wide = oar_uniform(NULL, OAR_F64, OAR_SHAPE(count), 3,
                                   is_unsigned ? 0 : -120, 120);
    oar_tensor *a = oar_cast(NULL, wide, dtype), *value, *index;
    double *in = malloc((size_t)count * sizeof *in);
    double *out = malloc((size_t)count * sizeof *out);
    const int64_t *at;

    OK(oar_sort(NULL, a, 0, descending, &value, &index));
    OK(oar_tensor_read(a, OAR_F64, in));
    OK(oar_tensor_read(value, OAR_F64, out));
    at = oar_tensor_const_data(index);
    for (int64_t i = 0; i < count; i++)
        assert_true(out[i] == in[at[i]]);
    for (int64_t i = 1; i < count; i++) {
        double rise = descending ? out[i - 1] - out[i] : out[i] - out[i - 1];

        assert_true(rise > 0 || (rise == 0 && at[i - 1] < at[i]));
    }
    free(in);
    free(out);
    RELEASE(wide, a, value, index);
}

static void long_rows_are_sorted(void **state)
{
    const int64_t counts[] = { 48, 49, 3001 };

    for (int k = 0; k < OAR_BOOL; k++)
        for (int c = 0; c < 3; c++) {
            check_long_row((oar_dtype)k, counts[c], 0);
            check_long_row((oar_dtype)k, counts[c], 1);
        }
}

/* All 64 bits of a key count. */
static void large_integers_are_sorted(void **state)
{
    enum { COUNT = 60 };
    oar_tensor *a =
        oar_uniform(NULL, OAR_I64, OAR_SHAPE(COUNT), 5, -0x1p62, 0x1p62);
    oar_tensor *value, *index;
    const int64_t *number;

    OK(oar_sort(NULL, a, 0, 0, &value, &index));
    number = oar_tensor_const_data(value);
    for (int i = 1; i < COUNT; i++)
        assert_true(number[i - 1] <= number[i]);
    RELEASE(a, value, index);
}

/* ---- along a dim --------------------------------------------------------- */

static void integers_are_summed_along_a_dim(void **state)
{
    oar_tensor *a = two_rows(ROW(OAR_I8, 100, 100, 1, -1, -2, -3));
    oar_tensor *u = ROW(OAR_U64, 1, 2, 3);

    EXPECT(oar_cumsum(NULL, a, 1), OAR_I8, 100, -56, -55, -1, -3, -6);
    EXPECT(oar_cumsum(NULL, a, 0), OAR_I8, 100, 100, 1, 99, 98, -2);
    EXPECT(oar_cumsum(NULL, u, -1), OAR_U64, 1, 3, 6);
    RELEASE(a, u);
}

/* In f32 the ones would be lost. */
static void sums_along_a_dim_run_in_f64(void **state)
{
    oar_tensor *a = ROW(OAR_F32, 0x1p24, 1, 1, -0x1p24);

    EXPECT(oar_cumsum(NULL, a, 0), OAR_F32, 0x1p24, 0x1p24, 0x1p24 + 2, 2);
    RELEASE(a);
}

/* More columns than are summed side by side. */
static void many_columns_are_summed(void **state)
{
    oar_tensor *a = oar_arange(NULL, OAR_F32, 3 * 131, 0, 1), *rows, *sum;
    float got[3 * 131];

    rows = oar_reshape(NULL, a, OAR_SHAPE(3, 131));
    sum = oar_cumsum(NULL, rows, 0);
    OK(oar_tensor_read(sum, OAR_F32, got));
    for (int i = 0; i < 131; i++) {
        assert_true(got[131 + i] == (float)(131 + 2 * i));
        assert_true(got[262 + i] == (float)(3 * 131 + 3 * i));
    }
    RELEASE(a, rows, sum);
}

static void every_dtype_is_flipped(void **state)
{
    for (int k = 0; k <= OAR_BOOL; k++) {
        oar_tensor *a = two_rows(ROW((oar_dtype)k, 1, 0, 0, 1, 1, 0));

        EXPECT(oar_flip(NULL, a, OAR_DIMS(1)), (oar_dtype)k, 0, 0, 1, 0, 1, 1);
        EXPECT(oar_flip(NULL, a, OAR_DIMS(-2)), (oar_dtype)k, 1, 1, 0, 1, 0, 0);
        EXPECT(oar_flip(NULL, a, OAR_NO_DIMS), (oar_dtype)k, 0, 1, 1, 0, 0, 1);
        RELEASE(a);
    }
}

/* ---- nothing, and refusals ----------------------------------------------- */

static void tensors_of_no_element_go_through(void **state)
{
    oar_tensor *a = oar_zeros(NULL, OAR_F32, OAR_SHAPE(2, 0, 3));
    oar_tensor *one = oar_full(NULL, OAR_F32, OAR_SCALAR, 4), *value, *index;

    OK(oar_sort(NULL, a, 1, 0, &value, &index));
    assert_int_equal(oar_tensor_count(value), 0);
    assert_int_equal(oar_tensor_shape(index).ndim, 3);
    RELEASE(value, index);
    OK(oar_max_with_index(NULL, a, 2, 0, &value, &index));
    assert_int_equal(oar_tensor_shape(value).ndim, 2);
    RELEASE(value, index);
    value = oar_cumsum(NULL, a, 1);
    index = oar_flip(NULL, a, OAR_NO_DIMS);
    assert_int_equal(oar_tensor_count(value), 0);
    assert_int_equal(oar_tensor_count(index), 0);
    RELEASE(value, index);
    EXPECT(oar_flip(NULL, one, OAR_NO_DIMS), OAR_F32, 4);
    EXPECT(oar_any_over(NULL, one, OAR_NO_DIMS, 0), OAR_BOOL, 1);
    RELEASE(a, one);
}

static void refusals_name_the_operation(void **state)
{
    oar_tensor *a = oar_ones(NULL, OAR_F32, OAR_SHAPE(3, 4)), *value = NULL;
    oar_tensor *whole = oar_ones(NULL, OAR_I32, OAR_SHAPE(3, 4));
    oar_tensor *none = oar_ones(NULL, OAR_F32, OAR_SHAPE(3, 0));
    oar_tensor *flag = oar_ones(NULL, OAR_BOOL, OAR_SHAPE(5));

    refuses(oar_any_over(NULL, a, OAR_DIMS(2), 0), OAR_E_SHAPE,
            "any_over of dim 2 of [3, 4]");
    refuses(oar_all_over(NULL, a, OAR_DIMS(0, 0), 0), OAR_E_SHAPE,
            "listed twice");
    refuses(oar_any_over(NULL, NULL, OAR_NO_DIMS, 0), OAR_E_ARG,
            "any_over of NULL");
    refuses(oar_argmin(NULL, none, 1, 0), OAR_E_SHAPE, "argmin of dim 1");
    assert_fails_with(oar_max_with_index(NULL, a, -3, 0, &value, NULL),
                      OAR_E_SHAPE, "max_with_index of dim -3 of [3, 4]");
    assert_fails_with(oar_min_with_index(NULL, none, 1, 0, &value, NULL),
                      OAR_E_SHAPE,
                      "min_with_index of dim 1 of [3, 0]: it has no elements");
    assert_fails_with(oar_max_with_index(NULL, a, 0, 0, NULL, NULL), OAR_E_ARG,
                      "max_with_index of [3, 4]: nowhere to give the values");
    assert_fails_with(oar_sort(NULL, a, 2, 0, &value, NULL), OAR_E_SHAPE,
                      "sort of dim 2 of [3, 4]");
    assert_fails_with(oar_sort(NULL, a, 1, 0, NULL, NULL), OAR_E_ARG,
                      "sort of [3, 4]: nowhere to give the values");
    assert_null(value);
    oar_clear_error();
    refuses(oar_cumsum(NULL, a, 2), OAR_E_SHAPE, "cumsum of dim 2 of [3, 4]");
    refuses(oar_flip(NULL, a, OAR_DIMS(1, -1)), OAR_E_SHAPE,
            "flip of dim 1 of [3, 4]: it is listed twice");
    refuses(oar_flip(NULL, a, (oar_dims){ .count = 9 }), OAR_E_ARG,
            "flip of [3, 4] over 9 dims");
    refuses(oar_leaky_relu(NULL, whole, 0.1), OAR_E_DTYPE,
            "leaky_relu of i32 [3, 4]");
    refuses(oar_erf(NULL, whole), OAR_E_DTYPE, "erf of i32 [3, 4]");
    refuses(oar_minimum_scalar(NULL, whole, 0.5), OAR_E_ARG,
            "minimum_scalar of i32 [3, 4] with 0.5");
    refuses(oar_maximum_scalar(NULL, flag, 1), OAR_E_DTYPE,
            "maximum_scalar of bool");
    refuses(oar_where_scalar(NULL, flag, a, 0), OAR_E_SHAPE,
            "where_scalar of mask [5] and [3, 4]");
    refuses(oar_where_scalar(NULL, a, a, 0), OAR_E_DTYPE, "it is bool");
    refuses(oar_where_scalar(NULL, flag, whole, 0.5), OAR_E_ARG,
            "where_scalar of i32 [3, 4] with 0.5");
    refuses(oar_lt_scalar(NULL, NULL, 1), OAR_E_ARG, "lt_scalar of NULL");
    RELEASE(a, whole, none, flag);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bools_are_reduced),
        cmocka_unit_test(a_thousand_bools_are_counted),
        cmocka_unit_test(odd_bytes_are_true),
        cmocka_unit_test(any_and_all_take_every_dtype),
        cmocka_unit_test(what_is_not_zero_is_true),
        cmocka_unit_test(nothing_is_any_of_none_and_all_of_none),
        cmocka_unit_test(the_first_of_equals_is_picked),
        cmocka_unit_test(a_nan_is_largest_and_smallest),
        cmocka_unit_test(floats_are_compared_with_numbers),
        cmocka_unit_test(integers_are_compared_with_any_number),
        cmocka_unit_test(the_ends_of_a_dtype_are_compared),
        cmocka_unit_test(numbers_bound_and_replace),
        cmocka_unit_test(halves_are_rounded_to_even),
        cmocka_unit_test(integers_are_whole_already),
        cmocka_unit_test(functions_have_their_limits),
        cmocka_unit_test(sorting_keeps_the_order_of_equals),
        cmocka_unit_test(signs_zeros_and_nans_are_sorted),
        cmocka_unit_test(long_rows_are_sorted),
        cmocka_unit_test(large_integers_are_sorted),
        cmocka_unit_test(integers_are_summed_along_a_dim),
        cmocka_unit_test(sums_along_a_dim_run_in_f64),
        cmocka_unit_test(many_columns_are_summed),
        cmocka_unit_test(every_dtype_is_flipped),
        cmocka_unit_test(tensors_of_no_element_go_through),
        cmocka_unit_test(refusals_name_the_operation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
