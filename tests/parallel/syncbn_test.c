/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm over all ranks' batches is batch norm of the joined batch. */
#include "support/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

enum { CHANNELS = 3, MOST = 20, INNER = 4 };

/* Which rows of the joined batch a rank has: rank r has `rows[r]`. */
typedef struct batch_case {
    int rows[4];
    double offset;   /* added to all numbers */
    double momentum; /* below 0: cumulative average */
    int dims;        /* 1, 2 or 3 */
    int no_affine, no_input_grad, eval;
    oar_dtype dtype;
    double tolerance;
} batch_case;

static double number(int row, int channel, int inner)
{
    return sin(row * 1.7 + channel * 2.3 + inner * 0.9) + channel * 0.25;
}

static oar_shape shape_of(const batch_case *d, int rows)
{
    return d->dims == 1   ? OAR_SHAPE(rows, CHANNELS, INNER)
           : d->dims == 2 ? OAR_SHAPE(rows, CHANNELS, 2, INNER / 2)
                          : OAR_SHAPE(rows, CHANNELS, 1, 2, INNER / 2);
}

static oar_tensor *batch(oar_tape *tape, const batch_case *d, int first,
                         int rows)
{
    double x[MOST * CHANNELS * INNER];
    oar_tensor *made = oar_empty(NULL, d->dtype, shape_of(d, rows));
    int n = 0;

    for (int r = 0; r < rows; r++)
        for (int c = 0; c < CHANNELS; c++)
            for (int i = 0; i < INNER; i++)
                x[n++] = number(first + r, c, i) + d->offset;
    oar_tensor_write(made, OAR_F64, x);
    return made;
}

/* What a layer makes of a batch: result, gradients, running statistics. */
typedef struct batch_norm_result {
    double y[MOST * CHANNELS * INNER], dx[MOST * CHANNELS * INNER];
    double weight[CHANNELS], bias[CHANNELS], mean[CHANNELS], var[CHANNELS];
} batch_norm_result;

/* The loss weighs every number differently, so that no gradient is zero. */
static oar_tensor *loss_of(oar_tape *tape, oar_tensor *y, int first, int rows)
{
    double w[MOST * CHANNELS * INNER];
    int n = 0;
    oar_tensor *weights =
        oar_empty(tape, oar_tensor_dtype(y), oar_tensor_shape(y));

    for (int r = 0; r < rows; r++)
        for (int k = 0; k < CHANNELS * INNER; k++)
            w[n++] = cos((first + r) * 0.37 + k * 1.1);
    if (oar_tensor_write(weights, OAR_F64, w) != OAR_OK)
        return NULL;
    return oar_sum(tape, oar_mul(tape, y, weights));
}

static oar_status run(oar_module *layer, const batch_case *d, int first,
                      int rows, batch_norm_result *o)
{
    oar_tensor *x = batch(NULL, d, first, rows), *y;
    oar_tape *tape;

    memset(o, 0, sizeof *o);
    CHECK_OK(oar_tape_create(&tape));
    if (!d->no_input_grad)
        CHECK_OK(oar_tensor_require_grad(x, 1));
    for (int step = 0; step < 2; step++) { /* running statistics move twice */
        oar_module_train(layer, !(d->eval && step == 1));
        oar_tape_reset(tape);
        for (int i = 0; i < oar_module_params(layer); i++)
            oar_tensor_clear_grad(oar_module_param(layer, i));
        oar_tensor_clear_grad(x);
        y = oar_forward(tape, layer, x);
        CHECK(y != NULL);
        CHECK_OK(oar_tensor_read(y, OAR_F64, o->y));
        CHECK_OK(oar_backward(tape, loss_of(tape, y, first, rows)));
    }
    if (!d->no_input_grad)
        CHECK_OK(oar_tensor_read(oar_tensor_grad(x), OAR_F64, o->dx));
    if (!d->no_affine) {
        CHECK_OK(oar_tensor_read(oar_tensor_grad(oar_module_param(layer, 0)),
                                 OAR_F64, o->weight));
        CHECK_OK(oar_tensor_read(oar_tensor_grad(oar_module_param(layer, 1)),
                                 OAR_F64, o->bias));
    }
    CHECK_OK(oar_tensor_read(oar_module_buffer(layer, 0), OAR_F64, o->mean));
    CHECK_OK(oar_tensor_read(oar_module_buffer(layer, 1), OAR_F64, o->var));
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    return OAR_OK;
}

static oar_batch_norm_opts opts_of(const batch_case *d)
{
    oar_batch_norm_opts o = oar_batch_norm_opts_init();

    o.momentum = d->momentum;
    o.no_affine = d->no_affine;
    o.dtype = d->dtype;
    return o;
}

static int near(const double *a, const double *b, int n, double tolerance)
{
    for (int i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= tolerance * (1 + fabs(b[i]))))
            return 0;
    return 1;
}

static oar_status as_joined(oar_group *g, void *arg)
{
    const batch_case *d = arg;
    int rank = oar_group_rank(g), first = 0, all = 0;
    int width = CHANNELS * INNER;
    oar_batch_norm_opts o = opts_of(d);
    batch_norm_result *mine = malloc(2 * sizeof *mine), *whole = mine + 1;
    oar_module *synced, *plain;

    CHECK(mine != NULL);
    for (int r = 0; r < oar_group_size(g); r++) {
        first += r < rank ? d->rows[r] : 0;
        all += d->rows[r];
    }
    CHECK_OK(oar_sync_batch_norm_create(d->dims, CHANNELS, g, &o, &synced));
    CHECK_OK(oar_batch_norm_create(d->dims, CHANNELS, &o, &plain));
    CHECK_OK(run(plain, d, 0, all, whole));
    CHECK_OK(run(synced, d, first, d->rows[rank], mine));
    CHECK(near(mine->y, whole->y + first * width, d->rows[rank] * width,
               d->tolerance));
    CHECK(near(mine->dx, whole->dx + first * width, d->rows[rank] * width,
               d->tolerance));
    CHECK(near(mine->mean, whole->mean, CHANNELS, d->tolerance));
    CHECK(near(mine->var, whole->var, CHANNELS, d->tolerance));
    /* gradients of weight and bias are this rank's part of the sum */
    CHECK_OK(oar_all_reduce(g, oar_span_of(mine->weight, 2 * CHANNELS, OAR_F64),
                            OAR_SUM, NULL, NULL));
    CHECK(near(mine->weight, whole->weight, 2 * CHANNELS, 10 * d->tolerance));
    oar_module_release(synced);
    oar_module_release(plain);
    free(mine);
    return OAR_OK;
}

static void uneven_batches_are_normed_as_one(void **state)
{
    static batch_case deals[] = {
        { { 5, 2, 7 }, 0, 0.1, 2, 0, 0, 0, OAR_F64, 1e-12 },
        { { 4, 0, 1 }, 0, 0.3, 1, 0, 0, 0, OAR_F64, 1e-12 },
        { { 1, 1, 1 }, 0, -1, 3, 0, 0, 0, OAR_F64, 1e-12 },
        { { 6, 3, 2 }, 0, 0.1, 2, 0, 0, 0, OAR_F32, 2e-5 },
        { { 2, 5, 3 }, 0, 0.1, 2, 1, 0, 0, OAR_F64, 1e-12 },
        { { 3, 4, 2 }, 0, 0.1, 2, 0, 1, 0, OAR_F64, 1e-12 },
        { { 3, 4, 2 }, 0, 0.1, 2, 0, 0, 1, OAR_F64, 1e-12 },
    };

    for (size_t i = 0; i < sizeof deals / sizeof *deals; i++) {
        ranks_all(1, as_joined, &deals[i]);
        ranks_all(3, as_joined, &deals[i]);
    }
}

static void large_means_leave_no_negative_variance(void **state)
{
    static batch_case far = {
        { 5, 2, 7 }, 1e7, 0.1, 2, 0, 0, 0, OAR_F64, 1e-6
    };
    static batch_case far32 = {
        { 5, 2, 7 }, 1e4, 0.1, 2, 0, 0, 0, OAR_F32, 2e-2
    };

    ranks_all(3, as_joined, &far);
    ranks_all(3, as_joined, &far32);
}

/* The case of the original: (i - 24) / 10 for i < 48 as [4, 3, 2, 2]. */
static oar_status known_numbers(oar_group *g, void *arg)
{
    static const double mean[3] = { -0.045, -0.005, 0.035 };
    float x[24];
    double got[3];
    oar_module *layer;
    oar_tensor *in;

    for (int i = 0; i < 24; i++)
        x[i] = (float)(i + 24 * oar_group_rank(g) - 24) / 10;
    CHECK_OK(oar_sync_batch_norm_create(2, 3, g, NULL, &layer));
    in = oar_from_data(NULL, OAR_F32, OAR_SHAPE(2, 3, 2, 2), x);
    oar_tensor_release(oar_forward(NULL, layer, in));
    CHECK_OK(oar_tensor_read(oar_module_buffer(layer, 0), OAR_F64, got));
    CHECK(near(got, mean, 3, 1e-6));
    CHECK_OK(oar_tensor_read(oar_module_buffer(layer, 1), OAR_F64, got));
    for (int c = 0; c < 3; c++)
        CHECK(fabs(got[c] - 1.0933333) < 1e-5);
    oar_tensor_release(in);
    oar_module_release(layer);
    return OAR_OK;
}

static void the_numbers_are_known(void **state)
{
    ranks_all(2, known_numbers, NULL);
}

/* ---- converting ---------------------------------------------------------- */

static oar_status convert_tree(oar_group *g, void *arg)
{
    oar_module *layer[3] = { 0 }, *net, *inner;
    oar_tensor *weight;
    int converted = -1;

    CHECK_OK(oar_linear_create(2, 3, 1, NULL, &layer[0]));
    CHECK_OK(oar_batch_norm_create(1, 3, NULL, &layer[1]));
    weight = oar_module_param(layer[1], 0);
    CHECK_OK(oar_batch_norm_create(1, 3, NULL, &layer[2]));
    CHECK_OK(oar_sequential_create(1, &layer[2], &inner));
    layer[2] = inner;
    CHECK_OK(oar_sequential_create(3, layer, &net));
    CHECK_OK(oar_sync_batch_norm_convert(net, g, &converted));
    CHECK(converted == 2);
    CHECK(oar_module_param(net, 2) == weight);
    CHECK(oar_batch_norm_merge_by(net, NULL, NULL) == OAR_E_ARG);
    CHECK(oar_batch_norm_merge_of(net) == NULL);
    CHECK(oar_batch_norm_merge_of(oar_module_child(net, 1)) != NULL);
    /* one row a rank: only together have they a variance */
    {
        float row[2] = { (float)oar_group_rank(g), 1 };
        oar_tensor *x = oar_from_data(NULL, OAR_F32, OAR_SHAPE(1, 2), row);
        oar_tensor *y = oar_forward(NULL, net, x);
        CHECK(oar_group_size(g) == 1 ? y == NULL : y != NULL);
        oar_tensor_release(x);
        oar_tensor_release(y);
    }
    oar_module_release(net);
    return OAR_OK;
}

static void batch_norms_of_a_tree_are_converted_in_place(void **state)
{
    ranks_all(1, convert_tree, NULL);
    ranks_all(2, convert_tree, NULL);
}

static oar_tensor *pass_on(oar_tape *tape, oar_module *module, oar_tensor *x)
{
    return x;
}

static const oar_module_class same_name_class = { .size =
                                                      sizeof same_name_class,
                                                  .name = "batch_norm",
                                                  .self_size = 1,
                                                  .forward = pass_on };

/* Classes are told apart by their address, not by their name. */
static void a_users_class_called_batch_norm_is_left_alone(void **state)
{
    static const oar_batch_norm_merge merge;
    oar_module *mine;
    oar_group *one;
    int converted = -1;

    assert_int_equal(oar_group_create(NULL, 0, 1, NULL, &one), OAR_OK);
    assert_int_equal(oar_module_create(&same_name_class, &mine), OAR_OK);
    assert_int_equal(oar_sync_batch_norm_convert(mine, one, &converted),
                     OAR_OK);
    assert_int_equal(converted, 0);
    assert_int_equal(oar_batch_norm_merge_by(mine, &merge, NULL), OAR_E_ARG);
    assert_int_equal(oar_batch_norm_dims(mine), 0);
    assert_null(oar_batch_norm_merge_of(mine));
    oar_module_release(mine);
    oar_group_destroy(one);
}

static void one_rank_alone_is_a_plain_batch_norm(void **state)
{
    float a[24], b[24];
    oar_tensor *x = oar_uniform(NULL, OAR_F32, OAR_SHAPE(4, 2, 3), 5, -1, 1);
    oar_tensor *plain =
        oar_batch_norm(NULL, x, NULL, NULL, NULL, NULL, 1, 0, 1e-5);
    oar_tensor *merged = oar_batch_norm_merged(NULL, x, NULL, NULL, NULL, NULL,
                                               1, 0, 1e-5, NULL);

    assert_int_equal(oar_tensor_read(plain, OAR_F32, a), OAR_OK);
    assert_int_equal(oar_tensor_read(merged, OAR_F32, b), OAR_OK);
    assert_memory_equal(a, b, sizeof a);
    oar_tensor_release(x);
    oar_tensor_release(plain);
    oar_tensor_release(merged);
}

static void bad_arguments_are_refused(void **state)
{
    oar_module *layer = NULL;
    oar_group *one;

    assert_int_equal(oar_group_create(NULL, 0, 1, NULL, &one), OAR_OK);
    assert_int_equal(oar_sync_batch_norm_create(2, 0, one, NULL, &layer),
                     OAR_E_ARG);
    assert_int_equal(oar_sync_batch_norm_create(2, 3, NULL, NULL, &layer),
                     OAR_E_ARG);
    assert_int_equal(oar_sync_batch_norm_convert(NULL, one, NULL), OAR_E_ARG);
    assert_null(layer);
    oar_group_destroy(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uneven_batches_are_normed_as_one),
        cmocka_unit_test(large_means_leave_no_negative_variance),
        cmocka_unit_test(the_numbers_are_known),
        cmocka_unit_test(batch_norms_of_a_tree_are_converted_in_place),
        cmocka_unit_test(a_users_class_called_batch_norm_is_left_alone),
        cmocka_unit_test(one_rank_alone_is_a_plain_batch_norm),
        cmocka_unit_test(bad_arguments_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
