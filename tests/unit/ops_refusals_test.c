/* SPDX-License-Identifier: Apache-2.0 */
/* What operations refuse: the status, and a sentence that names the operation
 * and the shapes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "support/last_error.h"
#include "tensor/tensor.h"

/* The tensors that the operations are tried on. */
static oar_tensor *a, *b, *wide, *whole, *flag, *index64, *vector, *deep;

static int make_tensors(void **state)
{
    a = oar_ones(NULL, OAR_F32, OAR_SHAPE(3, 4));
    b = oar_ones(NULL, OAR_F32, OAR_SHAPE(5, 6));
    wide = oar_ones(NULL, OAR_F64, OAR_SHAPE(3, 4));
    whole = oar_zeros(NULL, OAR_I32, OAR_SHAPE(3, 4));
    flag = oar_ones(NULL, OAR_BOOL, OAR_SHAPE(3, 4));
    index64 = oar_arange(NULL, OAR_I64, 7, 0, 1);
    vector = oar_ones(NULL, OAR_F32, OAR_SHAPE(4));
    deep = oar_ones(NULL, OAR_F32, OAR_SHAPE(1, 1, 1, 1, 1, 1, 1, 2));
    return deep == NULL;
}

static int release_tensors(void **state)
{
    oar_tensor *all[] = { a, b, wide, whole, flag, index64, vector, deep };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        oar_tensor_release(all[i]);
    return 0;
}

static void said(oar_status status, const char *words)
{
    assert_int_equal(oar_last_error()->status, status);
    if (strstr(oar_last_error_text(), words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", oar_last_error_text(), words);
    oar_clear_error();
}

static void refuses(oar_tensor *result, oar_status status, const char *words)
{
    assert_null(result);
    said(status, words);
}

/* ---- making -------------------------------------------------------------- */

static void shapes_that_cannot_be_name_the_function(void **state)
{
    oar_shape minus = OAR_SHAPE(2, -1), huge = OAR_SHAPE(INT64_MAX, 2);
    oar_shape many = { .ndim = 9 };
    oar_storage *storage = oar_tensor_storage(a);
    oar_dtype f8 = OAR_F8E4M3, none = (oar_dtype)99;

    refuses(oar_empty(NULL, OAR_F32, minus), OAR_E_ARG,
            "empty of [2, -1]: dim 1 is negative");
    refuses(oar_zeros(NULL, OAR_F32, minus), OAR_E_ARG, "zeros of [2, -1]");
    refuses(oar_ones(NULL, OAR_F32, minus), OAR_E_ARG, "ones of [2, -1]");
    refuses(oar_full(NULL, OAR_F32, minus, 3), OAR_E_ARG, "full of [2, -1]");
    refuses(oar_from_data(NULL, OAR_F32, minus, ""), OAR_E_ARG,
            "from_data of [2, -1]");
    refuses(oar_uniform(NULL, OAR_F32, minus, 1, 0, 1), OAR_E_ARG,
            "uniform of [2, -1]");
    refuses(oar_normal(NULL, OAR_F32, minus, 1, 0, 1), OAR_E_ARG,
            "normal of [2, -1]");
    refuses(oar_view_of(NULL, storage, 0, OAR_F32, minus), OAR_E_ARG,
            "view of [2, -1]");
    refuses(oar_arange(NULL, OAR_F32, -1, 0, 1), OAR_E_ARG, "arange of [-1]");
    refuses(oar_eye(NULL, OAR_F32, -1, 2), OAR_E_ARG, "eye of [-1, 2]");
    refuses(oar_empty(NULL, OAR_F32, huge), OAR_E_ARG, "too many elements");
    refuses(oar_empty(NULL, OAR_F32, many), OAR_E_ARG, "empty of 9 dims");
    refuses(oar_empty(NULL, f8, OAR_SHAPE(2)), OAR_E_UNSUPPORTED,
            "empty of f8e4m3: there are no tensors of it");
    refuses(oar_cast(NULL, a, f8), OAR_E_UNSUPPORTED, "cast of f8e4m3");
    refuses(oar_zeros(NULL, none, OAR_SHAPE(2)), OAR_E_ARG,
            "zeros: there is no dtype 99");
}

static void reshape_and_expand_show_what_was_asked(void **state)
{
    refuses(oar_reshape(NULL, a, OAR_SHAPE(-1, -1)), OAR_E_ARG,
            "reshape of [3, 4] to [-1, -1]: only one dim may be -1");
    refuses(oar_reshape(NULL, a, OAR_SHAPE(-1, -2)), OAR_E_ARG,
            "reshape of [3, 4] to [-1, -2]");
    refuses(oar_reshape(NULL, a, OAR_SHAPE(-1, 5)), OAR_E_SHAPE,
            "reshape of [3, 4] to [-1, 5]: the counts");
    refuses(oar_expand(NULL, a, OAR_SHAPE(-1, -1, 4)), OAR_E_ARG,
            "expand of [3, 4] to [-1, -1, 4]");
    refuses(oar_expand(NULL, a, OAR_SHAPE(-2, 4)), OAR_E_ARG,
            "expand of [3, 4] to [-2, 4]");
}

/* ---- two inputs ---------------------------------------------------------- */

typedef oar_tensor *(*pair_fn)(oar_tape *tape, oar_tensor *x, oar_tensor *y);

static const struct pair {
    const char *name;
    pair_fn fn;
} pairs[] = {
    { "add", oar_add },         { "sub", oar_sub }, { "mul", oar_mul },
    { "div", oar_div },         { "pow", oar_pow }, { "minimum", oar_minimum },
    { "maximum", oar_maximum }, { "eq", oar_eq },   { "ne", oar_ne },
    { "lt", oar_lt },           { "le", oar_le },   { "gt", oar_gt },
    { "ge", oar_ge },
};

static void pairs_name_both_sides(void **state)
{
    char words[64];

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const struct pair *p = &pairs[i];

        snprintf(words, sizeof words, "%s of [3, 4] and [5, 6]", p->name);
        refuses(p->fn(NULL, a, b), OAR_E_SHAPE, words);
        snprintf(words, sizeof words, "%s of f32 [3, 4] and f64 [3, 4]",
                 p->name);
        refuses(p->fn(NULL, a, wide), OAR_E_DTYPE, words);
        snprintf(words, sizeof words, "%s of NULL", p->name);
        refuses(p->fn(NULL, a, NULL), OAR_E_ARG, words);
        refuses(p->fn(NULL, NULL, a), OAR_E_ARG, words);
    }
    refuses(oar_sub(NULL, flag, flag), OAR_E_DTYPE, "sub of bool [3, 4]");
    refuses(oar_div(NULL, whole, whole), OAR_E_ARG, "division by zero");
    refuses(oar_logical_and(NULL, a, a), OAR_E_DTYPE, "f32 [3, 4]");
    refuses(oar_logical_or(NULL, whole, whole), OAR_E_DTYPE, "i32 [3, 4]");
    refuses(oar_logical_xor(NULL, flag, NULL), OAR_E_ARG, "logical_xor");
    refuses(oar_logical_not(NULL, a), OAR_E_DTYPE, "f32 [3, 4]");
    refuses(oar_logical_not(NULL, NULL), OAR_E_ARG, "logical_not");
}

static void an_integer_to_a_negative_power_is_refused(void **state)
{
    oar_tensor *minus = oar_full(NULL, OAR_I32, OAR_SHAPE(4), -1);

    refuses(oar_pow(NULL, whole, minus), OAR_E_ARG, "negative power");
    refuses(oar_power(NULL, whole, -2), OAR_E_ARG, "negative power");
    oar_tensor_release(minus);
}

/* ---- one input ----------------------------------------------------------- */

static void single_inputs_are_named(void **state)
{
#define X(name) \
    refuses(oar_##name(NULL, flag), OAR_E_DTYPE, #name " of bool [3, 4]");
    OAR_UNARY_LIST(X)
#undef X
#define X(name) refuses(oar_##name(NULL, NULL), OAR_E_ARG, #name " of NULL");
    OAR_UNARY_LIST(X)
#undef X
    refuses(oar_exp(NULL, whole), OAR_E_DTYPE, "exp of i32 [3, 4]");
    refuses(oar_softplus(NULL, whole), OAR_E_DTYPE, "softplus of i32");
    refuses(oar_shift(NULL, whole, 0.5), OAR_E_ARG, "i32 [3, 4] with 0.5");
    refuses(oar_scale(NULL, whole, INFINITY), OAR_E_ARG, "whole numbers");
    refuses(oar_power(NULL, flag, 2), OAR_E_DTYPE, "power of bool");
    refuses(oar_clamp(NULL, a, NAN, 1), OAR_E_ARG, "[3, 4]");
    refuses(oar_clamp(NULL, NULL, 0, 1), OAR_E_ARG, "clamp of NULL");
}

/* ---- views --------------------------------------------------------------- */

static void views_name_what_is_not_there(void **state)
{
    refuses(oar_permute(NULL, a, OAR_DIMS(0)), OAR_E_SHAPE, "[3, 4]");
    refuses(oar_permute(NULL, a, OAR_DIMS(0, 0)), OAR_E_SHAPE, "[3, 4]");
    refuses(oar_permute(NULL, a, OAR_DIMS(0, 2)), OAR_E_SHAPE, "[3, 4]");
    refuses(oar_slice(NULL, a, 2, 0, 1, 1), OAR_E_SHAPE, "[3, 4]");
    refuses(oar_slice(NULL, a, 1, 0, 1, 0), OAR_E_ARG, "[3, 4]");
    refuses(oar_select(NULL, a, 1, 4), OAR_E_ARG, "[3, 4]");
    refuses(oar_select(NULL, a, 1, -5), OAR_E_ARG, "[3, 4]");
    refuses(oar_select(NULL, a, -3, 0), OAR_E_SHAPE, "[3, 4]");
    refuses(oar_expand(NULL, a, OAR_SHAPE(4)), OAR_E_SHAPE, "[3, 4] to [4]");
    refuses(oar_expand(NULL, a, OAR_SHAPE(2, 5, 4)), OAR_E_SHAPE,
            "[3, 4] to [2, 5, 4]");
    refuses(oar_expand(NULL, a, OAR_SHAPE(-1, 3, 4)), OAR_E_ARG, "negative");
    refuses(oar_squeeze(NULL, a, 0), OAR_E_SHAPE, "[3, 4]");
    refuses(oar_squeeze(NULL, a, 5), OAR_E_SHAPE, "[3, 4]");
    refuses(oar_unsqueeze(NULL, a, 3), OAR_E_SHAPE, "[3, 4]");
    refuses(oar_unsqueeze(NULL, a, -4), OAR_E_SHAPE, "[3, 4]");
    refuses(oar_unsqueeze(NULL, deep, 0), OAR_E_SHAPE, "no such place");
    refuses(oar_contiguous(NULL, NULL), OAR_E_ARG, "contiguous of NULL");
}

static void splits_name_the_piece(void **state)
{
    oar_tensor *piece[4] = { NULL };

    assert_int_equal(
        oar_tensor_split(NULL, a, 1, 2, (int64_t[]){ 3, 2 }, piece),
        OAR_E_SHAPE);
    said(OAR_E_SHAPE, "[3, 4]: no 2 elements for piece 1");
    assert_int_equal(oar_tensor_split(NULL, a, 1, 1, (int64_t[]){ 3 }, piece),
                     OAR_E_SHAPE);
    said(OAR_E_SHAPE, "1 elements are left over");
    assert_int_equal(oar_tensor_split(NULL, a, 1, 2, NULL, piece), OAR_E_ARG);
    assert_int_equal(oar_tensor_split(NULL, a, 4, 1, (int64_t[]){ 3 }, piece),
                     OAR_E_SHAPE);
    assert_int_equal(oar_chunk(NULL, a, 1, 0, piece), OAR_E_ARG);
    assert_int_equal(oar_chunk(NULL, a, 1, 2, NULL), OAR_E_ARG);
    oar_clear_error();
    assert_int_equal(oar_chunk(NULL, NULL, 1, 2, piece), OAR_E_ARG);
    said(OAR_E_ARG, "chunk of NULL");
    assert_null(piece[0]);
}

static void joins_name_the_two_that_differ(void **state)
{
    oar_tensor *ab[] = { a, b }, *aw[] = { a, wide }, *an[] = { a, NULL };
    oar_tensor *av[] = { a, vector };

    refuses(oar_cat(NULL, 2, ab, 0), OAR_E_SHAPE, "cat of [3, 4] and [5, 6]");
    refuses(oar_cat(NULL, 2, av, 0), OAR_E_SHAPE, "cat of [3, 4] and [4]");
    refuses(oar_cat(NULL, 2, aw, 0), OAR_E_DTYPE, "f64 [3, 4]");
    refuses(oar_cat(NULL, 2, an, 0), OAR_E_ARG, "cat of NULL");
    refuses(oar_cat(NULL, 0, ab, 0), OAR_E_ARG, "cat of 0 tensors");
    refuses(oar_cat(NULL, 1, NULL, 0), OAR_E_ARG, "cat of 1 tensors");
    refuses(oar_cat(NULL, 1, ab, 2), OAR_E_SHAPE, "dim 2 of [3, 4]");
    refuses(oar_stack(NULL, 2, ab, 0), OAR_E_SHAPE,
            "stack of [3, 4] and [5, 6]");
    refuses(oar_stack(NULL, 1, ab, 3), OAR_E_SHAPE, "dim 3 of [3, 4]");
    refuses(oar_stack(NULL, 1, &deep, 0), OAR_E_SHAPE, "stack");
    refuses(oar_cast(NULL, a, (oar_dtype)77), OAR_E_ARG, "77");
    refuses(oar_cast(NULL, NULL, OAR_F32), OAR_E_ARG, "cast of NULL");
}

/* ---- selections ---------------------------------------------------------- */

static void selections_name_the_mask(void **state)
{
    refuses(oar_where(NULL, a, a, a), OAR_E_DTYPE, "f32 [3, 4]: it is bool");
    refuses(oar_where(NULL, flag, a, b), OAR_E_SHAPE,
            "mask [3, 4], [3, 4] and [5, 6]");
    refuses(oar_where(NULL, flag, b, b), OAR_E_SHAPE, "[5, 6] and [5, 6]");
    refuses(oar_where(NULL, flag, a, wide), OAR_E_DTYPE, "f64 [3, 4]");
    refuses(oar_masked_fill(NULL, vector, flag, 0), OAR_E_SHAPE,
            "masked_fill of [4] with a mask [3, 4]");
    refuses(oar_masked_fill(NULL, a, whole, 0), OAR_E_DTYPE, "i32 [3, 4]");
    refuses(oar_tril(NULL, vector, 0), OAR_E_SHAPE, "tril of [4]");
    refuses(oar_triu(NULL, NULL, 0), OAR_E_ARG, "triu of NULL");
}

/* ---- reductions ---------------------------------------------------------- */

static void reductions_name_the_dim(void **state)
{
    oar_tensor *none = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3, 0)), *value = a;

    refuses(oar_sum_over(NULL, a, OAR_DIMS(2), 0), OAR_E_SHAPE,
            "sum_over of dim 2 of [3, 4]");
    refuses(oar_mean_over(NULL, a, OAR_DIMS(0, -2), 0), OAR_E_SHAPE, "twice");
    refuses(oar_mean_over(NULL, whole, OAR_NO_DIMS, 0), OAR_E_DTYPE, "i32");
    refuses(oar_var_over(NULL, whole, OAR_NO_DIMS, 0, 1), OAR_E_DTYPE, "i32");
    refuses(oar_mean_over(NULL, flag, OAR_NO_DIMS, 0), OAR_E_DTYPE, "bool");
    refuses(oar_var_over(NULL, flag, OAR_NO_DIMS, 0, 1), OAR_E_DTYPE, "bool");
    refuses(oar_sum_over(NULL, a, (oar_dims){ .count = 9 }, 0), OAR_E_ARG,
            "over 9 dims");
    refuses(oar_max_over(NULL, none, OAR_DIMS(1), 0), OAR_E_SHAPE,
            "max_over of [3, 0]");
    refuses(oar_min_over(NULL, none, OAR_NO_DIMS, 0), OAR_E_SHAPE,
            "min_over of [3, 0]");
    refuses(oar_argmax(NULL, none, 1, 0), OAR_E_SHAPE, "dim 1 of [3, 0]");
    refuses(oar_argmax(NULL, a, 2, 0), OAR_E_SHAPE, "dim 2 of [3, 4]");
    assert_int_equal(oar_topk(NULL, a, 5, &value, NULL), OAR_E_SHAPE);
    said(OAR_E_SHAPE, "topk of [3, 4] with k = 5");
    assert_int_equal(oar_topk(NULL, a, 1, NULL, NULL), OAR_E_ARG);
    assert_int_equal(oar_topk(NULL, flag, 1, &value, NULL), OAR_E_DTYPE);
    assert_ptr_equal(value, a);
    oar_tensor_release(none);
}

/* ---- picks and products -------------------------------------------------- */

static void picks_name_the_index(void **state)
{
    oar_tensor *far = oar_full(NULL, OAR_I64, OAR_SHAPE(3, 1), 4);
    oar_tensor *back = oar_full(NULL, OAR_I64, OAR_SHAPE(2), -1);

    refuses(oar_index_select(NULL, a, 1, index64), OAR_E_ARG,
            "[3, 4] by index [7]: it has 6");
    refuses(oar_index_select(NULL, a, 0, back), OAR_E_ARG, "it has -1");
    refuses(oar_index_select(NULL, a, 0, far), OAR_E_SHAPE, "index [3, 1]");
    refuses(oar_index_select(NULL, a, 2, index64), OAR_E_SHAPE, "dim 2");
    refuses(oar_index_select(NULL, a, 0, whole), OAR_E_DTYPE, "i32 [3, 4]");
    refuses(oar_take_along(NULL, a, 1, far), OAR_E_ARG, "it has 4");
    refuses(oar_take_along(NULL, a, 1, index64), OAR_E_SHAPE,
            "[3, 4] by index [7]");
    refuses(oar_take_along(NULL, vector, 1, index64), OAR_E_SHAPE,
            "dim 1 of [4]");
    refuses(oar_tensor_scatter_add(NULL, a, 1, far, a), OAR_E_SHAPE,
            "to [3, 4] by index [3, 1] of [3, 4]");
    refuses(oar_tensor_scatter_add(NULL, a, 1, far, wide), OAR_E_DTYPE, "f64");
    refuses(oar_tensor_scatter_add(NULL, a, 1, NULL, a), OAR_E_ARG,
            "scatter_add");
    oar_tensor_release(far);
    oar_tensor_release(back);
}

static void products_name_both_shapes(void **state)
{
    oar_tensor *two = oar_ones(NULL, OAR_F32, OAR_SHAPE(2, 4, 3));
    oar_tensor *three = oar_ones(NULL, OAR_F32, OAR_SHAPE(3, 3, 4));

    refuses(oar_matmul(NULL, a, b), OAR_E_SHAPE,
            "matmul of [3, 4] and [5, 6]: inner sizes 4 and 5 differ");
    refuses(oar_matmul(NULL, two, three), OAR_E_SHAPE,
            "[2, 4, 3] and [3, 3, 4]: the leading dims do not broadcast");
    refuses(oar_matmul(NULL, a, vector), OAR_E_SHAPE, "[3, 4] and [4]");
    refuses(oar_matmul(NULL, whole, whole), OAR_E_DTYPE, "i32");
    oar_tensor_release(two);
    oar_tensor_release(three);
}

static void mixed_devices_are_refused(void **state)
{
    oar_tensor *far = oar_ones(NULL, OAR_F32, OAR_SHAPE(3));

    far->storage->device.kind = OAR_CUDA;
    refuses(oar_add(NULL, vector, far), OAR_E_DEVICE,
            "add of [4] on cpu and [3] on cuda:0");
    refuses(oar_add(NULL, far, vector), OAR_E_DEVICE,
            "add of [3] on cuda:0 and [4] on cpu");
    far->storage->device.kind = OAR_CPU;
    oar_tensor_release(far);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_that_cannot_be_name_the_function),
        cmocka_unit_test(reshape_and_expand_show_what_was_asked),
        cmocka_unit_test(pairs_name_both_sides),
        cmocka_unit_test(an_integer_to_a_negative_power_is_refused),
        cmocka_unit_test(single_inputs_are_named),
        cmocka_unit_test(views_name_what_is_not_there),
        cmocka_unit_test(splits_name_the_piece),
        cmocka_unit_test(joins_name_the_two_that_differ),
        cmocka_unit_test(selections_name_the_mask),
        cmocka_unit_test(reductions_name_the_dim),
        cmocka_unit_test(picks_name_the_index),
        cmocka_unit_test(products_name_both_shapes),
        cmocka_unit_test(mixed_devices_are_refused),
    };

    oar_clear_error();
    return cmocka_run_group_tests(tests, make_tensors, release_tensors);
}
