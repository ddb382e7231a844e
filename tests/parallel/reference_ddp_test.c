/* SPDX-License-Identifier: Apache-2.0 */
/* The cases that ferrotorch has for DDP and synchronised batch norm, with its
 * numbers, and the cases that it gets wrong. */
#include "support/ranks.h"

#include <math.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/last_error.h"

/* ---- DDP ----------------------------------------------------------------- */

/* y = sum(w x), so that the gradient of w is x. */
static oar_tensor *dot(oar_tape *tape, oar_module *module, oar_tensor *x)
{
    return oar_sum(tape, oar_mul(tape, oar_module_param(module, 0), x));
}

static const oar_module_class dot_class = { .size = sizeof dot_class,
                                            .name = "dot",
                                            .forward = dot };

static oar_status make_dot(const float w[3], oar_module **net)
{
    CHECK_OK(oar_module_create(&dot_class, net));
    return oar_module_add_param(*net, "weight",
                                oar_from_data(NULL, OAR_F32, OAR_SHAPE(3), w));
}

static oar_status param_is(oar_tensor *t, float a, float b, float c)
{
    float got[3], want[3] = { a, b, c };

    CHECK(oar_tensor_count(t) == 3);
    CHECK_OK(oar_tensor_read(t, OAR_F32, got));
    for (int i = 0; i < 3; i++)
        CHECK(fabsf(got[i] - want[i]) <= 1e-5f);
    return OAR_OK;
}

static oar_status mean_of_ranks(oar_group *g, void *arg)
{
    static const float w[3] = { 1, 2, 3 };
    oar_module *net;
    oar_tape *tape;
    oar_tensor *x;

    CHECK_OK(make_dot(w, &net));
    CHECK_OK(oar_ddp_wrap(net, g, NULL, &net));
    CHECK_OK(oar_tape_create(&tape));
    x = oar_full(tape, OAR_F32, OAR_SHAPE(3), oar_group_rank(g));
    CHECK_OK(oar_backward(tape, oar_forward(tape, net, x)));
    CHECK_OK(
        param_is(oar_tensor_grad(oar_module_param(net, 0)), 1.5f, 1.5f, 1.5f));
    CHECK_OK(param_is(oar_module_param(net, 0), 1, 2, 3));
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void gradients_0_to_3_become_their_mean(void **state)
{
    ranks_all(4, mean_of_ranks, NULL);
}

/* The parameter stays the same tensor; and is left alone if asked. */
static oar_status from_rank_0(oar_group *g, void *arg)
{
    static const float first[3] = { 10, 20, 30 }, zero[3] = { 0, 0, 0 };
    oar_ddp_opts o = oar_ddp_opts_init();
    int rank = oar_group_rank(g);
    oar_module *net;
    oar_tensor *before;

    o.no_broadcast = *(int *)arg;
    CHECK_OK(make_dot(rank == 0 ? first : zero, &net));
    before = oar_module_param(net, 0);
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK(oar_module_param(net, 0) == before);
    if (rank == 0 || !o.no_broadcast)
        CHECK_OK(param_is(before, 10, 20, 30));
    else
        CHECK_OK(param_is(before, 0, 0, 0));
    oar_module_release(net);
    return OAR_OK;
}

static void parameters_are_those_of_rank_0(void **state)
{
    for (int stay = 0; stay < 2; stay++)
        ranks_all(3, from_rank_0, &stay);
}

/* The wrapper passes on what a module is asked: also buffers and children. */
static oar_status delegates(oar_group *g, void *arg)
{
    oar_module *net;
    char name[40];

    CHECK_OK(oar_batch_norm_create(1, 3, NULL, &net));
    CHECK_OK(oar_ddp_wrap(net, g, NULL, &net));
    CHECK(oar_module_training(net));
    oar_module_train(net, 0);
    CHECK(!oar_module_training(net));
    CHECK(!oar_module_training(oar_module_child(net, 0)));
    oar_module_train(net, 1);
    CHECK(oar_module_training(oar_module_child(net, 0)));
    CHECK(oar_module_params(net) == 2 && oar_module_buffers(net) == 3);
    CHECK_OK(oar_module_param_name(net, 0, name, sizeof name));
    CHECK(strcmp(name, "module.weight") == 0);
    CHECK_OK(oar_module_buffer_name(net, 0, name, sizeof name));
    CHECK(strcmp(name, "module.running_mean") == 0);
    CHECK(oar_module_find(net, "module.running_var") ==
          oar_module_buffer(net, 1));
    oar_module_release(net);
    return OAR_OK;
}

static void a_wrapper_is_the_module_it_wraps(void **state)
{
    ranks_all(1, delegates, NULL);
}

/* Buckets of one size, ready in another order on every rank: their messages
 * must not be swapped. */
static oar_status equal_buckets(oar_group *g, void *arg)
{
    enum { ARRAYS = 7, COUNT = 16 };
    int rank = oar_group_rank(g);
    oar_reducer_opts o = oar_reducer_opts_init();
    oar_reducer_stats stats = oar_reducer_stats_init();
    oar_span array[ARRAYS];
    oar_reducer *r;

    for (int i = 0; i < ARRAYS; i++)
        array[i] = oar_span_of(NULL, COUNT, OAR_F32);
    o.bucket_bytes = 64;
    CHECK_OK(oar_reducer_create(g, ARRAYS, array, &o, &r));
    for (int pass = 0; pass < 10; pass++) {
        for (int k = 0; k < ARRAYS; k++) {
            int i = (k * 3 + rank * 2 + pass) % ARRAYS;
            float *to = oar_reducer_span(r, i).data;
            for (int e = 0; e < COUNT; e++)
                to[e] = (float)(100 * i + rank);
            CHECK_OK(oar_reducer_ready(r, i));
        }
        CHECK_OK(oar_reducer_wait(r));
        for (int i = 0; i < ARRAYS; i++)
            CHECK(((float *)oar_reducer_span(r, i).data)[COUNT - 1] ==
                  (float)(100 * i) + (float)(oar_group_size(g) - 1) / 2);
    }
    CHECK_OK(oar_reducer_read_stats(r, &stats));
    CHECK(stats.buckets == ARRAYS);
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void buckets_of_one_size_are_not_swapped(void **state)
{
    ranks_all(3, equal_buckets, NULL);
}

/* Three quarters of a MiB each. Where nothing is said and operations overlap,
 * as in a group of one, a bucket holds a sixteenth of all: one array each. One
 * fits into the first bucket, which is small, the others into the next. */
static void the_first_bucket_is_small(void **state)
{
    static const struct {
        size_t bytes, first;
        int buckets;
    } want[] = {
        { 0, 0, 4 },       { 25 << 20, 0, 2 }, { 0, 25 << 20, 4 },
        { 1 << 20, 0, 4 }, { SIZE_MAX, 0, 1 }, { 2 << 20, 3 << 19, 2 }
    };
    oar_reducer_stats stats = oar_reducer_stats_init();
    oar_span array[4];
    oar_reducer *r;
    oar_group *one;

    OK(oar_group_create(NULL, 0, 1, NULL, &one));
    for (int i = 0; i < 4; i++)
        array[i] = oar_span_of(NULL, 3 << 16, OAR_F32);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        oar_reducer_opts o = oar_reducer_opts_init();
        o.bucket_bytes = want[i].bytes;
        o.first_bucket_bytes = want[i].first;
        OK(oar_reducer_create(one, 4, array, &o, &r));
        OK(oar_reducer_read_stats(r, &stats));
        assert_int_equal(stats.buckets, want[i].buckets);
        oar_reducer_destroy(r);
    }
    oar_group_destroy(one);
}

static const oar_dtype dtypes[] = { OAR_F32, OAR_BF16, OAR_F64, OAR_F16 };
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static oar_tensor *each_doubled(oar_tape *tape, oar_module *module,
                                oar_tensor *x)
{
    oar_tensor *sum = NULL;

    for (int i = 0; i < DTYPES; i++) {
        oar_tensor *w = oar_module_param(module, i);
        oar_tensor *y =
            oar_sum(tape, oar_mul(tape, oar_cast(tape, w, OAR_F64), x));
        sum = sum == NULL ? y : oar_add(tape, sum, y);
    }
    return sum;
}

static const oar_module_class mixed_class = { .size = sizeof mixed_class,
                                              .name = "mixed",
                                              .forward = each_doubled };

static oar_status mixed_dtypes(oar_group *g, void *arg)
{
    oar_module *net;
    oar_tape *tape;
    oar_tensor *x;
    double got[5];

    CHECK_OK(oar_module_create(&mixed_class, &net));
    for (int i = 0; i < DTYPES; i++)
        CHECK_OK(
            oar_module_add_param(net, oar_dtype_name(dtypes[i]),
                                 oar_full(NULL, dtypes[i], OAR_SHAPE(5), 1)));
    CHECK_OK(oar_ddp_wrap(net, g, NULL, &net));
    CHECK_OK(oar_tape_create(&tape));
    x = oar_full(tape, OAR_F64, OAR_SHAPE(5), 2 * oar_group_rank(g));
    CHECK_OK(oar_backward(tape, oar_forward(tape, net, x)));
    for (int i = 0; i < DTYPES; i++) {
        oar_tensor *grad = oar_tensor_grad(oar_module_param(net, i));
        CHECK(oar_tensor_dtype(grad) == dtypes[i]);
        CHECK_OK(oar_tensor_read(grad, OAR_F64, got));
        CHECK(got[0] == oar_group_size(g) - 1 && got[4] == got[0]);
    }
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void dtypes_may_be_mixed(void **state)
{
    ranks_all(3, mixed_dtypes, NULL);
}

/* A parameter that no rank reaches has no gradient, not one of zeros: neither
 * momentum nor decay moves it. */
static oar_tensor *first_only(oar_tape *tape, oar_module *module, oar_tensor *x)
{
    return oar_forward(tape, oar_module_child(module, 0), x);
}

static const oar_module_class lazy_class = { .size = sizeof lazy_class,
                                             .name = "lazy",
                                             .forward = first_only };

static oar_status unreached(oar_group *g, void *arg)
{
    static const float w[3] = { 1, 2, 3 };
    oar_module *net, *part;
    oar_optim *adamw;
    oar_tape *tape;
    oar_tensor *x;

    CHECK_OK(oar_module_create(&lazy_class, &net));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(make_dot(w, &part));
        CHECK_OK(oar_module_add_child(net, i == 0 ? "used" : "idle", part));
    }
    CHECK_OK(oar_ddp_wrap(net, g, NULL, &net));
    CHECK_OK(oar_adamw_create(
        net, OAR_OPTS(oar_adam_opts, .lr = 0.1, .weight_decay = 0.5), &adamw));
    CHECK_OK(oar_tape_create(&tape));
    for (int i = 0; i < 3; i++) {
        x = oar_full(tape, OAR_F32, OAR_SHAPE(3), oar_group_rank(g) + 1);
        CHECK_OK(oar_backward(tape, oar_forward(tape, net, x)));
        CHECK_OK(oar_optim_step(adamw));
        oar_optim_zero_grad(adamw);
        oar_tape_reset(tape);
    }
    CHECK_OK(param_is(oar_module_param(net, 1), 1, 2, 3));
    CHECK(oar_tensor_grad(oar_module_param(net, 1)) == NULL);
    oar_tape_destroy(tape);
    oar_optim_destroy(adamw);
    oar_module_release(net);
    return OAR_OK;
}

static void a_parameter_that_no_rank_reaches_is_not_moved(void **state)
{
    ranks_all(2, unreached, NULL);
}

/* ---- synchronised batch norm --------------------------------------------- */

enum { C = 3 };

/* (from + i) / 10 as [rows, 3, 2, 2]. */
static oar_tensor *counted(int rows, int from)
{
    float x[48];

    for (int i = 0; i < rows * C * 4; i++)
        x[i] = (float)(from + i) / 10;
    return oar_from_data(NULL, OAR_F32, OAR_SHAPE(rows, C, 2, 2), x);
}

static oar_status forward(oar_module *layer, oar_tensor *x, float *to)
{
    oar_tensor *y = oar_forward(NULL, layer, x);

    CHECK(y != NULL);
    CHECK_OK(oar_tensor_read(y, OAR_F32, to));
    oar_tensor_release(y);
    return OAR_OK;
}

static oar_status near(const float *a, const float *b, int n, float tolerance)
{
    for (int i = 0; i < n; i++)
        CHECK(fabsf(a[i] - b[i]) <= tolerance);
    return OAR_OK;
}

static oar_status running(const oar_module *layer, float to[2 * C])
{
    CHECK_OK(oar_tensor_read(oar_module_buffer(layer, 0), OAR_F32, to));
    return oar_tensor_read(oar_module_buffer(layer, 1), OAR_F32, to + C);
}

/* One rank: as plain batch norm. Two: halves of a batch, as plain batch norm of
 * all of it; running statistics the same everywhere. */
static oar_status halves(oar_group *g, void *arg)
{
    int ranks = oar_group_size(g), from = ranks == 1 ? 0 : -24, n = 24;
    float mine[24], whole[48], stats[2 * C], plainly[2 * C], first[2 * C];
    oar_tensor *part = counted(2, from + n * oar_group_rank(g));
    oar_tensor *all = counted(2 * ranks, from);
    oar_module *synced, *plain;

    CHECK_OK(oar_sync_batch_norm_create(2, C, g, NULL, &synced));
    CHECK_OK(oar_batch_norm_create(2, C, NULL, &plain));
    CHECK_OK(forward(synced, part, mine));
    CHECK_OK(forward(plain, all, whole));
    CHECK_OK(near(mine, whole + n * oar_group_rank(g), n,
                  ranks == 1 ? 1e-5f : 1e-4f));
    CHECK_OK(running(synced, stats));
    CHECK_OK(running(plain, plainly));
    CHECK_OK(near(stats, plainly, 2 * C, 1e-4f));
    memcpy(first, stats, sizeof first);
    CHECK_OK(
        oar_broadcast(g, oar_span_of(first, 2 * C, OAR_F32), 0, NULL, NULL));
    CHECK_OK(near(stats, first, 2 * C, 0));
    oar_module_release(synced);
    oar_module_release(plain);
    oar_tensor_release(part);
    oar_tensor_release(all);
    return OAR_OK;
}

static void a_batch_in_halves_is_normed_as_a_whole(void **state)
{
    ranks_all(1, halves, NULL);
    ranks_all(2, halves, NULL);
}

/* Outside of training nothing is sent, forward or backward: one rank alone. */
static oar_status warm_then_eval(oar_group *g, void *arg)
{
    oar_module *layer;
    oar_tape *tape;
    oar_tensor *x = counted(1, 0), *far, *y;
    float got[12];

    CHECK_OK(oar_sync_batch_norm_create(2, C, g, NULL, &layer));
    for (int i = 0; i < 3; i++)
        CHECK_OK(forward(layer, x, got));
    oar_module_train(layer, 0);
    far = oar_full(NULL, OAR_F32, OAR_SHAPE(1, C, 2, 2), 100);
    if (oar_group_rank(g) == 0) {
        CHECK_OK(oar_tensor_require_grad(far, 1));
        CHECK_OK(oar_tape_create(&tape));
        y = oar_forward(tape, layer, far);
        CHECK_OK(oar_tensor_read(y, OAR_F32, got));
        for (int i = 0; i < 12; i++)
            CHECK(isfinite(got[i]) && got[i] > 50);
        CHECK_OK(oar_backward(tape, oar_sum(tape, y)));
        CHECK_OK(oar_tensor_read(oar_tensor_grad(far), OAR_F32, got));
        for (int i = 0; i < 12; i++) /* by the running variance alone */
            CHECK(isfinite(got[i]) && got[i] > 0.5f);
        oar_tape_destroy(tape);
    }
    oar_tensor_release(x);
    oar_tensor_release(far);
    oar_module_release(layer);
    return OAR_OK;
}

static void eval_is_by_running_statistics_and_alone(void **state)
{
    ranks_all(2, warm_then_eval, NULL);
}

/* Without running statistics eval is by those of all ranks' batches, too. */
static oar_status no_running(oar_group *g, void *arg)
{
    oar_batch_norm_opts o = oar_batch_norm_opts_init();
    oar_tensor *part = counted(2, 24 * oar_group_rank(g));
    oar_tensor *all = counted(4, 0);
    float mine[24], whole[48];
    oar_module *synced, *plain;

    o.no_running = 1;
    CHECK_OK(oar_sync_batch_norm_create(2, C, g, &o, &synced));
    CHECK_OK(oar_batch_norm_create(2, C, &o, &plain));
    CHECK(oar_module_buffers(synced) == 0);
    for (int train = 0; train < 2; train++) {
        oar_module_train(synced, train);
        oar_module_train(plain, train);
        CHECK_OK(forward(synced, part, mine));
        CHECK_OK(forward(plain, all, whole));
        CHECK_OK(near(mine, whole + 24 * oar_group_rank(g), 24, 1e-5f));
    }
    oar_module_release(synced);
    oar_module_release(plain);
    oar_tensor_release(part);
    oar_tensor_release(all);
    return OAR_OK;
}

static void statistics_need_not_be_kept(void **state)
{
    ranks_all(2, no_running, NULL);
}

/* [2, 3, 2, 2] with strides that are not those of rows. */
static oar_status strided(oar_group *g, void *arg)
{
    oar_tensor *x = counted(2, 24 * oar_group_rank(g));
    oar_tensor *turned = oar_transpose(NULL, x, 2, 3);
    oar_tensor *flat = oar_contiguous(NULL, turned);
    float a[24], b[24];
    oar_module *layer;

    CHECK(!oar_tensor_is_contiguous(turned));
    CHECK_OK(oar_sync_batch_norm_create(2, C, g, NULL, &layer));
    CHECK_OK(forward(layer, turned, a));
    CHECK_OK(forward(layer, flat, b));
    CHECK_OK(near(a, b, 24, 1e-6f));
    oar_module_release(layer);
    oar_tensor_release(x);
    oar_tensor_release(turned);
    oar_tensor_release(flat);
    return OAR_OK;
}

static void an_input_need_not_be_contiguous(void **state)
{
    ranks_all(2, strided, NULL);
}

static void shapes_that_do_not_fit_are_refused(void **state)
{
    oar_module *layer = NULL;
    oar_tensor *flat = oar_zeros(NULL, OAR_F32, OAR_SHAPE(3));
    oar_tensor *other = oar_zeros(NULL, OAR_F32, OAR_SHAPE(2, 4, 2, 2));
    oar_group *one;

    OK(oar_group_create(NULL, 0, 1, NULL, &one));
    assert_fails_with(oar_sync_batch_norm_create(2, 0, one, NULL, &layer),
                      OAR_E_ARG, "0 channels");
    OK(oar_sync_batch_norm_create(2, C, one, NULL, &layer));
    assert_null(oar_forward(NULL, layer, flat));
    assert_int_equal(oar_last_error()->status, OAR_E_SHAPE);
    oar_clear_error();
    assert_null(oar_forward(NULL, layer, other));
    assert_int_equal(oar_last_error()->status, OAR_E_SHAPE);
    oar_module_release(layer);
    oar_tensor_release(flat);
    oar_tensor_release(other);
    oar_group_destroy(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_0_to_3_become_their_mean),
        cmocka_unit_test(parameters_are_those_of_rank_0),
        cmocka_unit_test(a_wrapper_is_the_module_it_wraps),
        cmocka_unit_test(buckets_of_one_size_are_not_swapped),
        cmocka_unit_test(the_first_bucket_is_small),
        cmocka_unit_test(dtypes_may_be_mixed),
        cmocka_unit_test(a_parameter_that_no_rank_reaches_is_not_moved),
        cmocka_unit_test(a_batch_in_halves_is_normed_as_a_whole),
        cmocka_unit_test(eval_is_by_running_statistics_and_alone),
        cmocka_unit_test(statistics_need_not_be_kept),
        cmocka_unit_test(an_input_need_not_be_contiguous),
        cmocka_unit_test(shapes_that_do_not_fit_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
