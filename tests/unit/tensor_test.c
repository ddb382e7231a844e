/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors: making, querying, reading and writing them, for every dtype. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/memory.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>
#include <oarsong/tensor.h>

#include "support/leak_check.h"
#include "support/last_error.h"

/* ---- making -------------------------------------------------------------- */

static void every_dtype_is_made_filled_copied_and_read(void **state)
{
    for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
        oar_tensor *a = oar_full(NULL, (oar_dtype)d, OAR_SHAPE(3, 5), 1);
        oar_tensor *b = oar_zeros(NULL, (oar_dtype)d, OAR_SHAPE(3, 5));
        oar_tensor *c = oar_empty(NULL, OAR_F64, OAR_SHAPE(3, 5));
        double got[15];

        assert_int_equal(oar_tensor_dtype(a), d);
        OK(oar_tensor_copy(b, a));
        OK(oar_tensor_copy(c, b));
        OK(oar_tensor_read(c, OAR_F64, got));
        for (int i = 0; i < 15; i++)
            assert_true(got[i] == 1);
        got[7] = 0;
        OK(oar_tensor_write(b, OAR_F64, got));
        OK(oar_tensor_fill(c, 9));
        OK(oar_tensor_read(b, OAR_F64, got));
        assert_true(got[6] == 1 && got[7] == 0);
        oar_tensor_release(a);
        oar_tensor_release(b);
        oar_tensor_release(c);
    }
}

static void shapes_of_every_rank_are_row_major(void **state)
{
    oar_shape shape = { .ndim = 0 };

    for (int ndim = 0; ndim <= OAR_MAX_DIMS; ndim++) {
        oar_tensor *a;

        if (ndim > 0)
            shape.dim[ndim - 1] = ndim % 3 + 1;
        shape.ndim = ndim;
        a = oar_zeros(NULL, OAR_F32, shape);
        assert_true(oar_tensor_is_contiguous(a));
        assert_int_equal(oar_tensor_shape(a).ndim, ndim);
        if (ndim > 0)
            assert_int_equal(oar_tensor_stride(a, -1), 1);
        oar_tensor_release(a);
    }
}

static void a_tensor_from_data_has_the_data(void **state)
{
    const int16_t data[6] = { 1, -2, 3, -4, 5, -6 };
    oar_tensor *a = oar_from_data(NULL, OAR_I16, OAR_SHAPE(2, 3), data);
    oar_tensor *none = oar_from_data(NULL, OAR_F32, OAR_SHAPE(0, 3), NULL);
    float got[6];

    assert_ptr_not_equal(oar_tensor_data(a), data);
    OK(oar_tensor_read(a, OAR_F32, got));
    for (int i = 0; i < 6; i++)
        assert_true(got[i] == data[i]);
    assert_int_equal(oar_tensor_count(none), 0);
    assert_null(oar_from_data(NULL, OAR_F32, OAR_SHAPE(3), NULL));
    assert_int_equal(oar_last_error()->status, OAR_E_ARG);
    oar_tensor_release(a);
    oar_tensor_release(none);
}

static void impossible_shapes_are_refused_with_a_sentence(void **state)
{
    oar_shape nine = { .ndim = 9 };

    assert_null(oar_empty(NULL, OAR_F32, OAR_SHAPE(3, -4)));
    assert_int_equal(oar_last_error()->status, OAR_E_ARG);
    assert_non_null(strstr(oar_last_error_text(), "[3, -4]"));
    assert_null(oar_empty(NULL, OAR_F32, nine));
    assert_int_equal(oar_last_error()->status, OAR_E_ARG);
    assert_null(oar_empty(NULL, (oar_dtype)99, OAR_SHAPE(3)));
    assert_int_equal(oar_last_error()->status, OAR_E_ARG);
    assert_null(oar_empty(NULL, OAR_F64, OAR_SHAPE(INT64_MAX, 3, 0)));
    assert_int_equal(oar_last_error()->status, OAR_E_ARG);
}

static void a_view_must_fit_its_storage(void **state)
{
    oar_storage *s;
    oar_tensor *a;

    OK(oar_storage_create(40, 0, &s));
    a = oar_view_of(NULL, s, 4, OAR_F32, OAR_SHAPE(2, 3));
    assert_ptr_equal(oar_tensor_data(a), (float *)oar_storage_data(s) + 4);
    assert_ptr_equal(oar_tensor_storage(a), s);
    assert_null(oar_view_of(NULL, s, 5, OAR_F32, OAR_SHAPE(2, 3)));
    assert_int_equal(oar_last_error()->status, OAR_E_ARG);
    assert_null(oar_view_of(NULL, s, -1, OAR_F32, OAR_SHAPE(1)));
    assert_null(oar_view_of(NULL, s, 0, OAR_F64, OAR_SHAPE(6)));
    assert_null(oar_view_of(NULL, NULL, 0, OAR_F64, OAR_SHAPE(6)));
    oar_tensor_release(a);
    a = oar_view_of(NULL, s, 10, OAR_F32, OAR_SHAPE(0));
    assert_non_null(a);
    oar_tensor_release(a);
    oar_storage_release(s);
}

/* ---- random numbers ------------------------------------------------------ */

/* ---- rebasing ------------------------------------------------------------ */

static oar_tensor *leaf_of(oar_dtype dtype, oar_shape shape, double value)
{
    oar_tensor *leaf = oar_full(NULL, dtype, shape, value);

    OK(oar_tensor_require_grad(leaf, 1));
    return leaf;
}

static void a_rebased_leaf_is_a_view_of_other_memory(void **state)
{
    leak_check before = leak_check_begin();
    oar_tensor *leaf = leaf_of(OAR_F32, OAR_SHAPE(2, 3), 1), *home, *part;
    oar_storage *s;
    oar_tape *tape;
    float got[6];

    home = oar_zeros(NULL, OAR_F32, OAR_SHAPE(2, 3));
    OK(oar_tensor_bind_grad(leaf, home));
    OK(oar_tape_create(&tape));
    OK(oar_backward(tape, oar_sum(tape, leaf)));
    assert_non_null(oar_tensor_grad(leaf));
    oar_tape_reset(tape);

    OK(oar_storage_create_detached(40, 0, &s));
    OK(oar_tensor_rebase(leaf, s, 3, OAR_BF16)); /* also while detached */
    assert_null(oar_tensor_grad(leaf));
    assert_ptr_equal(oar_tensor_storage(leaf), s);
    assert_int_equal(oar_tensor_dtype(leaf), OAR_BF16);
    assert_int_equal(oar_tensor_shape(leaf).dim[1], 3);
    assert_int_equal(oar_tensor_fill(leaf, 1), OAR_E_STATE);
    OK(oar_storage_attach(s, NULL, NULL, NULL));
    assert_ptr_equal(oar_tensor_data(leaf),
                     (uint16_t *)oar_storage_data(s) + 3);
    OK(oar_tensor_fill(leaf, 2));
    OK(oar_backward(tape, oar_sum(tape, oar_mul(tape, leaf, leaf))));
    assert_int_equal(oar_tensor_dtype(oar_tensor_grad(leaf)), OAR_BF16);
    assert_ptr_not_equal(oar_tensor_grad(leaf), home);
    OK(oar_tensor_read(oar_tensor_grad(leaf), OAR_F32, got));
    assert_true(got[0] == 4 && got[5] == 4);
    oar_tape_reset(tape);

    OK(oar_tensor_rebase(leaf, s, 4, OAR_F32)); /* the same storage */
    part = oar_view_of(NULL, s, 4, OAR_F32, OAR_SHAPE(6));
    OK(oar_tensor_fill(part, 5));
    OK(oar_tensor_read(leaf, OAR_F32, got));
    assert_true(got[5] == 5 && oar_tensor_requires_grad(leaf));
    oar_storage_release(s);
    oar_tape_destroy(tape);
    oar_tensor_release(part);
    oar_tensor_release(home);
    oar_tensor_release(leaf);
    leak_check_end(&before);
}

static void a_strided_leaf_is_rebased_row_by_row(void **state)
{
    oar_tensor *a = oar_arange(NULL, OAR_F32, 6, 0, 1), *turned, *matrix;
    oar_storage *s = oar_storage_retain(oar_tensor_storage(a));

    matrix = oar_reshape(NULL, a, OAR_SHAPE(2, 3));
    turned = oar_transpose(NULL, matrix, 0, 1);
    assert_false(oar_tensor_is_contiguous(turned));
    OK(oar_tensor_rebase(turned, s, 0, OAR_F32));
    assert_true(oar_tensor_is_contiguous(turned));
    assert_int_equal(oar_tensor_shape(turned).dim[0], 3);
    oar_storage_release(s);
    oar_tensor_release(a);
    oar_tensor_release(matrix);
    oar_tensor_release(turned);
}

static void backward_through_a_leaf_that_was_rebased_fails(void **state)
{
    oar_tensor *leaf = leaf_of(OAR_F32, OAR_SHAPE(1000), 1), *y;
    oar_storage *s, *own = oar_storage_retain(oar_tensor_storage(leaf));
    oar_tape *tape;

    OK(oar_storage_create(4000, 0, &s));
    OK(oar_tape_create(&tape));
    for (int saved = 0; saved < 2; saved++) {
        y = oar_sum(tape, saved ? oar_mul(tape, leaf, leaf)
                                : oar_add(tape, leaf, leaf));
        OK(oar_tensor_rebase(leaf, s, 0, OAR_BF16));
        assert_fails_with(oar_backward(tape, y), OAR_E_STATE, "rebase");
        assert_null(oar_tensor_grad(leaf));
        OK(oar_tensor_rebase(leaf, own, 0, OAR_F32)); /* and back */
        assert_fails_with(oar_backward(tape, y), OAR_E_STATE, "rebase");
        oar_tape_reset(tape);
        OK(oar_backward(tape, oar_sum(tape, leaf)));
        oar_tape_reset(tape);
        oar_tensor_clear_grad(leaf);
    }
    y = oar_sum(tape, oar_mul(tape, leaf, leaf));
    OK(oar_backward_inputs(tape, 1, &y, NULL));
    OK(oar_tensor_rebase(leaf, s, 0, OAR_BF16));
    assert_fails_with(oar_backward_weights(tape), OAR_E_STATE, "rebase");
    oar_tape_destroy(tape);
    oar_storage_release(s);
    oar_storage_release(own);
    oar_tensor_release(leaf);
}

static void what_was_saved_of_a_constant_that_was_rebased_is_gone(void **state)
{
    oar_tensor *leaf = leaf_of(OAR_F32, OAR_SHAPE(3), 1), *y;
    oar_tensor *constant = oar_ones(NULL, OAR_F32, OAR_SHAPE(3));
    oar_storage *s;
    oar_tape *tape;

    OK(oar_storage_create(12, 0, &s));
    OK(oar_tape_create(&tape));
    y = oar_sum(tape, oar_mul(tape, leaf, constant));
    OK(oar_tensor_rebase(constant, s, 0, OAR_F32));
    assert_fails_with(oar_backward(tape, y), OAR_E_STATE,
                      "changed after it was saved");
    oar_tape_destroy(tape);
    oar_storage_release(s);
    oar_tensor_release(constant);
    oar_tensor_release(leaf);
}

/* The hook of one leaf moves another, which is still owed a gradient. */
static oar_status move_other(oar_tensor *leaf, void *arg)
{
    oar_tensor *other = arg;

    return oar_tensor_rebase(other, oar_tensor_storage(other), 0, OAR_BF16);
}

static void a_hook_that_rebases_a_leaf_ends_backward(void **state)
{
    oar_tensor *first = leaf_of(OAR_F32, OAR_SHAPE(700), 1);
    oar_tensor *last = leaf_of(OAR_F32, OAR_SHAPE(700), 1);
    oar_tape *tape;

    OK(oar_tensor_on_grad(last, move_other, first, NULL));
    OK(oar_tape_create(&tape));
    assert_fails_with(
        oar_backward(tape,
                     oar_sum(tape, oar_add(tape, oar_neg(tape, first), last))),
        OAR_E_STATE, "rebase");
    oar_tape_destroy(tape);
    oar_tensor_release(first);
    oar_tensor_release(last);
}

static void what_cannot_be_rebased_stays_what_it_was(void **state)
{
    oar_tensor *leaf = leaf_of(OAR_F32, OAR_SHAPE(2, 3), 1), *made;
    oar_storage *s, *own = oar_tensor_storage(leaf);
    oar_tape *tape;

    OK(oar_storage_create(32, 0, &s));
    OK(oar_tape_create(&tape));
    oar_clear_error();
    assert_int_equal(oar_tensor_rebase(NULL, s, 0, OAR_F32), OAR_E_ARG);
    assert_int_equal(oar_tensor_rebase(leaf, NULL, 0, OAR_F32), OAR_E_ARG);
    assert_fails_with(oar_tensor_rebase(leaf, s, 3, OAR_F32), OAR_E_ARG,
                      "room for 8 elements");
    assert_fails_with(oar_tensor_rebase(leaf, s, -1, OAR_F32), OAR_E_ARG,
                      "room");
    assert_fails_with(oar_tensor_rebase(leaf, s, 0, OAR_F64), OAR_E_ARG,
                      "room for 4 elements");
    assert_int_equal(oar_tensor_rebase(leaf, s, 0, (oar_dtype)99), OAR_E_ARG);
    assert_fails_with(oar_tensor_rebase(leaf, s, 0, OAR_I32), OAR_E_DTYPE,
                      "gradient");
    made = oar_scale(tape, leaf, 2);
    assert_fails_with(oar_tensor_rebase(made, s, 0, OAR_F32), OAR_E_STATE,
                      "an operation made");
    oar_tape_reset(tape);
    assert_fails_with(oar_tensor_rebase(made, s, 0, OAR_F32), OAR_E_STATE,
                      "oar_tape_reset");
    assert_ptr_equal(oar_tensor_storage(leaf), own);
    assert_int_equal(oar_tensor_dtype(leaf), OAR_F32);
    OK(oar_tensor_require_grad(leaf, 0));
    OK(oar_tensor_rebase(leaf, s, 2, OAR_I32));
    oar_tape_destroy(tape);
    oar_storage_release(s);
    oar_tensor_release(leaf);
}

/* ---- random numbers ------------------------------------------------------ */

static void random_numbers_depend_on_seed_and_position_only(void **state)
{
    oar_tensor *a = oar_uniform(NULL, OAR_F32, OAR_SHAPE(1000), 5, -2, 3);
    oar_tensor *b = oar_uniform(NULL, OAR_F32, OAR_SHAPE(7, 11), 5, -2, 3);
    oar_tensor *c = oar_uniform(NULL, OAR_F32, OAR_SHAPE(7, 11), 6, -2, 3);
    const float *x = oar_tensor_data(a), *y = oar_tensor_data(b);

    assert_memory_equal(x, y, 77 * sizeof(float));
    assert_memory_not_equal(x, oar_tensor_data(c), 77 * sizeof(float));
    for (int i = 0; i < 1000; i++)
        assert_true(x[i] >= -2 && x[i] < 3);
    oar_tensor_release(a);
    oar_tensor_release(b);
    oar_tensor_release(c);
}

static void normal_numbers_have_their_mean_and_deviation(void **state)
{
    oar_dtype dtypes[] = { OAR_F32, OAR_F64, OAR_BF16 };

    for (int d = 0; d < 3; d++) {
        oar_tensor *a = oar_normal(NULL, dtypes[d], OAR_SHAPE(40000), 1, 5, 2);
        static double x[40000];
        double sum = 0, squares = 0;

        OK(oar_tensor_read(a, OAR_F64, x));
        for (int i = 0; i < 40000; i++) {
            sum += x[i];
            squares += (x[i] - 5) * (x[i] - 5);
        }
        assert_true(fabs(sum / 40000 - 5) < 0.05);
        assert_true(fabs(sqrt(squares / 40000) - 2) < 0.05);
        oar_tensor_release(a);
    }
    assert_null(oar_normal(NULL, OAR_I32, OAR_SHAPE(3), 1, 0, 1));
    assert_int_equal(oar_last_error()->status, OAR_E_DTYPE);
}

static void uniform_integers_stay_in_range(void **state)
{
    oar_tensor *a = oar_uniform(NULL, OAR_I64, OAR_SHAPE(500), 3, -3, 4);
    const int64_t *x = oar_tensor_data(a);
    int seen[7] = { 0 };

    for (int i = 0; i < 500; i++) {
        assert_in_range(x[i] + 3, 0, 6);
        seen[x[i] + 3]++;
    }
    for (int i = 0; i < 7; i++)
        assert_true(seen[i] > 30);
    assert_null(oar_uniform(NULL, OAR_F32, OAR_SHAPE(3), 1, 2, 1));
    oar_tensor_release(a);
}

/* What high is in the dtype does not occur, nor anything above it, even where
 * most numbers are rounded up to it. */
static void uniform_numbers_stay_below_high(void **state)
{
    enum { COUNT = 40000 };
    static const struct {
        oar_dtype dtype;
        double low, high;
    } cases[] = {
        { OAR_F32, 0, 1 },           { OAR_F32, 1, 1.000001 },
        { OAR_F32, 0.5, 0.7 },       { OAR_F32, -1, -0.99999994 },
        { OAR_F16, 0, 1 },           { OAR_F16, -0.125, 0.125 },
        { OAR_F16, 60000, 70000 },   { OAR_BF16, 0, 1 },
        { OAR_BF16, -0.125, 0.125 }, { OAR_BF16, -1, 0 },
        { OAR_F64, 1, 1 + 1e-15 },   { OAR_F64, -3, -1 },
        { OAR_I64, -3, 4 },          { OAR_U8, 0, 2 },
    };

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        static double got[COUNT];
        oar_dtype dtype = cases[k].dtype;
        oar_tensor *a = oar_uniform(NULL, dtype, OAR_SHAPE(COUNT), k + 1,
                                    cases[k].low, cases[k].high);
        oar_tensor *end = oar_full(NULL, dtype, OAR_SCALAR, cases[k].high);
        double high = 0;

        OK(oar_tensor_read(a, OAR_F64, got));
        OK(oar_tensor_item(end, &high));
        for (int i = 0; i < COUNT; i++)
            if (!(got[i] >= cases[k].low && got[i] < cases[k].high &&
                  got[i] < high))
                fail_msg("case %zu: %.17g", k, got[i]);
        oar_tensor_release(a);
        oar_tensor_release(end);
    }
}

/* Where the dtype has one number there, or none. */
static void a_narrow_range_keeps_to_the_number_below_high(void **state)
{
    oar_tensor *a = oar_uniform(NULL, OAR_BF16, OAR_SHAPE(9), 1, 1, 1.001);
    oar_tensor *b = oar_uniform(NULL, OAR_BF16, OAR_SHAPE(9), 1, 1.999, 1.9999);
    oar_tensor *c = oar_uniform(NULL, OAR_F32, OAR_SHAPE(9), 1, 2, 2);
    double got[9];

    OK(oar_tensor_read(a, OAR_F64, got));
    assert_true(got[0] == 1 && got[8] == 1);
    OK(oar_tensor_read(b, OAR_F64, got));
    assert_true(got[0] == 1.9921875 && got[8] == 1.9921875);
    OK(oar_tensor_read(c, OAR_F64, got));
    assert_true(got[0] == 2 && got[8] == 2);
    assert_null(oar_uniform(NULL, OAR_F32, OAR_SHAPE(3), 1, 0, INFINITY));
    assert_fails_with(oar_last_error()->status, OAR_E_ARG,
                      "uniform in [0, inf)");
    oar_tensor_release(a);
    oar_tensor_release(b);
    oar_tensor_release(c);
}

/* ---- shared memory ------------------------------------------------------- */

static void assert_numbers(const oar_tensor *a, int count, const float *want)
{
    float got[16];

    OK(oar_tensor_read(a, OAR_F32, got));
    for (int i = 0; i < count; i++)
        if (got[i] != want[i])
            fail_msg("element %d is %g, not %g", i, (double)got[i],
                     (double)want[i]);
}

static void a_copy_between_tensors_that_overlap_is_right(void **state)
{
    oar_tensor *a = oar_arange(NULL, OAR_F32, 6, 0, 1);
    oar_tensor *low = oar_narrow(NULL, a, 0, 0, 5);
    oar_tensor *high = oar_narrow(NULL, a, 0, 1, 5);
    oar_tensor *line = oar_arange(NULL, OAR_F32, 9, 0, 1);
    oar_tensor *square = oar_reshape(NULL, line, OAR_SHAPE(3, 3));
    oar_tensor *turned = oar_transpose(NULL, square, 0, 1);
    oar_tensor *wide =
        oar_view_of(NULL, oar_tensor_storage(a), 0, OAR_F64, OAR_SHAPE(3));
    oar_tensor *front = oar_narrow(NULL, a, 0, 3, 3);

    OK(oar_tensor_copy(high, low));
    assert_numbers(a, 6, (float[]){ 0, 0, 1, 2, 3, 4 });
    OK(oar_tensor_copy(low, high));
    assert_numbers(a, 6, (float[]){ 0, 1, 2, 3, 4, 4 });
    OK(oar_tensor_copy(a, a));
    assert_numbers(a, 6, (float[]){ 0, 1, 2, 3, 4, 4 });
    OK(oar_tensor_copy(square, turned));
    assert_numbers(square, 9, (float[]){ 0, 3, 6, 1, 4, 7, 2, 5, 8 });
    OK(oar_tensor_copy(wide, front)); /* another dtype over the same bytes */
    assert_numbers(wide, 3, (float[]){ 3, 4, 4 });
    oar_tensor_release(a);
    oar_tensor_release(low);
    oar_tensor_release(high);
    oar_tensor_release(line);
    oar_tensor_release(square);
    oar_tensor_release(turned);
    oar_tensor_release(wide);
    oar_tensor_release(front);
}

static void an_expanded_view_cannot_be_written(void **state)
{
    float numbers[6] = { 1, 2, 3, 4, 5, 6 };
    oar_tensor *a = oar_zeros(NULL, OAR_F32, OAR_SHAPE(1, 3)), *view[3];
    oar_tensor *from = oar_ones(NULL, OAR_F32, OAR_SHAPE(2, 3));

    view[0] = oar_expand(NULL, a, OAR_SHAPE(2, 3));
    assert_fails_with(oar_tensor_write(view[0], OAR_F32, numbers), OAR_E_ARG,
                      "write of a tensor [2, 3]");
    assert_fails_with(oar_tensor_copy(view[0], from), OAR_E_ARG,
                      "expanded view");
    assert_fails_with(oar_tensor_fill(view[0], 1), OAR_E_ARG, "expanded view");
    assert_non_null(oar_tensor_data(view[0])); /* reading is fine */
    view[1] = oar_narrow(NULL, view[0], 0, 1, 1);
    OK(oar_tensor_write(view[1], OAR_F32, numbers)); /* one row of it */
    view[2] = oar_transpose(NULL, from, 0, 1);
    OK(oar_tensor_fill(view[2], 7));
    assert_numbers(a, 3, numbers);
    for (int i = 0; i < 3; i++)
        oar_tensor_release(view[i]);
    oar_tensor_release(a);
    oar_tensor_release(from);
}

/* ---- asking -------------------------------------------------------------- */

static void strided_tensors_are_read_and_written_row_by_row(void **state)
{
    float data[12], got[12];
    oar_tensor *a, *b, *t;

    for (int i = 0; i < 12; i++)
        data[i] = (float)i;
    a = oar_from_data(NULL, OAR_F32, OAR_SHAPE(3, 4), data);
    t = oar_transpose(NULL, a, 0, 1);
    b = oar_empty(NULL, OAR_F16, OAR_SHAPE(4, 3));
    assert_false(oar_tensor_is_contiguous(t));
    assert_int_equal(oar_tensor_stride(t, 0), 1);
    assert_int_equal(oar_tensor_stride(t, 1), 4);
    assert_int_equal(oar_tensor_stride(t, 2), 0);
    OK(oar_tensor_copy(b, t));
    OK(oar_tensor_read(b, OAR_F32, got));
    for (int i = 0; i < 12; i++)
        assert_true(got[i] == (float)(i % 3 * 4 + i / 3));
    OK(oar_tensor_write(t, OAR_F32, data));
    OK(oar_tensor_read(a, OAR_F32, got));
    for (int i = 0; i < 12; i++)
        assert_true(got[i] == (float)(i % 4 * 3 + i / 4));
    oar_tensor_release(a);
    oar_tensor_release(b);
    oar_tensor_release(t);
}

/* More elements than one block of the conversion. */
static void long_strided_rows_are_converted(void **state)
{
    enum { N = 700 };
    oar_tensor *a = oar_uniform(NULL, OAR_I32, OAR_SHAPE(N, 3), 1, -99, 99);
    oar_tensor *column = oar_narrow(NULL, a, 1, 1, 1);
    const int32_t *x = oar_tensor_data(a);
    double got[N];

    OK(oar_tensor_read(column, OAR_F64, got));
    for (int i = 0; i < N; i++)
        assert_true(got[i] == x[3 * i + 1]);
    oar_tensor_release(column);
    oar_tensor_release(a);
}

static void a_span_needs_contiguous_memory(void **state)
{
    oar_tensor *a = oar_zeros(NULL, OAR_F64, OAR_SHAPE(3, 5));
    oar_tensor *rows = oar_narrow(NULL, a, 0, 1, 2);
    oar_tensor *columns = oar_narrow(NULL, a, 1, 1, 2);
    oar_span span;

    OK(oar_tensor_span(rows, &span));
    assert_ptr_equal(span.data, (double *)oar_tensor_data(a) + 5);
    assert_int_equal(span.count, 10);
    assert_int_equal(span.dtype, OAR_F64);
    assert_int_equal(span.device.kind, OAR_CPU);
    assert_int_equal(oar_tensor_span(columns, &span), OAR_E_ARG);
    assert_non_null(strstr(oar_last_error_text(), "[3, 2]"));
    OK(oar_storage_detach(oar_tensor_storage(a)));
    assert_int_equal(oar_tensor_span(rows, &span), OAR_E_STATE);
    oar_tensor_release(columns);
    oar_tensor_release(rows);
    oar_tensor_release(a);
}

static void an_item_is_the_only_element(void **state)
{
    oar_tensor *a = oar_full(NULL, OAR_BF16, OAR_SHAPE(1, 1), 3);
    oar_tensor *b = oar_zeros(NULL, OAR_F32, OAR_SHAPE(2));
    double value = 8;

    assert_int_equal(oar_tensor_item(b, &value), OAR_E_SHAPE);
    assert_true(value == 8);
    OK(oar_tensor_item(a, &value));
    assert_true(value == 3);
    oar_tensor_release(a);
    oar_tensor_release(b);
}

static void null_is_answered_and_keeps_the_error_there_is(void **state)
{
    oar_tensor *a = oar_zeros(NULL, OAR_F32, OAR_SHAPE(2));
    oar_tensor *b = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3));
    double value;

    assert_int_equal(oar_tensor_shape(NULL).ndim, 0);
    assert_int_equal(oar_tensor_dtype(NULL), OAR_F32);
    assert_int_equal(oar_tensor_count(NULL), 0);
    assert_int_equal(oar_tensor_stride(NULL, 0), 0);
    assert_int_equal(oar_tensor_is_contiguous(NULL), 0);
    assert_null(oar_tensor_storage(NULL));
    assert_null(oar_tensor_data(NULL));
    assert_null(oar_tensor_retain(NULL));
    assert_null(oar_tensor_grad(NULL));
    assert_int_equal(oar_tensor_requires_grad(NULL), 0);
    oar_tensor_release(NULL);
    assert_int_equal(oar_tensor_copy(a, b), OAR_E_SHAPE);
    assert_int_equal(oar_tensor_item(NULL, &value), OAR_E_ARG);
    assert_int_equal(oar_tensor_fill(NULL, 0), OAR_E_ARG);
    assert_int_equal(oar_tensor_read(NULL, OAR_F32, &value), OAR_E_ARG);
    assert_int_equal(oar_tensor_write(NULL, OAR_F32, &value), OAR_E_ARG);
    assert_non_null(strstr(oar_last_error_text(), "copy to [2] from [3]"));
    oar_clear_error();
    assert_int_equal(oar_tensor_span(NULL, NULL), OAR_E_ARG);
    assert_int_equal(oar_last_error()->status, OAR_E_ARG);
    oar_tensor_release(a);
    oar_tensor_release(b);
}

static void a_released_tensor_gives_everything_back(void **state)
{
    uint64_t before = leak_check_begin().live;
    oar_tensor *a = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3, 3));
    oar_tensor *t = oar_transpose(NULL, a, 0, 1);

    assert_ptr_equal(oar_tensor_retain(a), a);
    oar_tensor_release(a);
    oar_tensor_release(a);
    OK(oar_tensor_fill(t, 1)); /* the view holds the storage */
    oar_tensor_release(t);
    assert_int_equal(leak_check_begin().live, before);
}

static void a_failed_allocation_gives_null_and_leaks_nothing(void **state)
{
    uint64_t before = leak_check_begin().live;
    oar_tensor *made = NULL;

    for (int n = 1; made == NULL; n++) {
        oar_clear_error();
        oar_memory_fail_after((uint64_t)n);
        made = oar_normal(NULL, OAR_F32, OAR_SHAPE(3, 3), 1, 0, 1);
        oar_memory_fail_after(0);
        if (made != NULL)
            break;
        assert_int_equal(oar_last_error()->status, OAR_E_NOMEM);
        assert_int_equal(leak_check_begin().live, before);
        assert_true(n < 10);
    }
    oar_tensor_release(made);
    assert_int_equal(leak_check_begin().live, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_is_made_filled_copied_and_read),
        cmocka_unit_test(shapes_of_every_rank_are_row_major),
        cmocka_unit_test(a_tensor_from_data_has_the_data),
        cmocka_unit_test(impossible_shapes_are_refused_with_a_sentence),
        cmocka_unit_test(a_view_must_fit_its_storage),
        cmocka_unit_test(a_rebased_leaf_is_a_view_of_other_memory),
        cmocka_unit_test(a_strided_leaf_is_rebased_row_by_row),
        cmocka_unit_test(backward_through_a_leaf_that_was_rebased_fails),
        cmocka_unit_test(what_was_saved_of_a_constant_that_was_rebased_is_gone),
        cmocka_unit_test(a_hook_that_rebases_a_leaf_ends_backward),
        cmocka_unit_test(what_cannot_be_rebased_stays_what_it_was),
        cmocka_unit_test(random_numbers_depend_on_seed_and_position_only),
        cmocka_unit_test(normal_numbers_have_their_mean_and_deviation),
        cmocka_unit_test(uniform_integers_stay_in_range),
        cmocka_unit_test(uniform_numbers_stay_below_high),
        cmocka_unit_test(a_narrow_range_keeps_to_the_number_below_high),
        cmocka_unit_test(a_copy_between_tensors_that_overlap_is_right),
        cmocka_unit_test(an_expanded_view_cannot_be_written),
        cmocka_unit_test(strided_tensors_are_read_and_written_row_by_row),
        cmocka_unit_test(long_strided_rows_are_converted),
        cmocka_unit_test(a_span_needs_contiguous_memory),
        cmocka_unit_test(an_item_is_the_only_element),
        cmocka_unit_test(null_is_answered_and_keeps_the_error_there_is),
        cmocka_unit_test(a_released_tensor_gives_everything_back),
        cmocka_unit_test(a_failed_allocation_gives_null_and_leaks_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
