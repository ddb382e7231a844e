/* SPDX-License-Identifier: Apache-2.0 */
/* Data-parallel training equals training in one process on the joined batch. */
#include "support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/oarsong.h>

enum { IN = 5, HIDDEN = 17, OUT = 3, BATCH = 24, STEPS = 20 };

typedef struct training_case {
    oar_dtype dtype;
    double momentum;
    size_t bucket_bytes;
    int buckets;      /* expected */
    double *expected; /* parameters after training, from one process */
    double tolerance;
} training_case;

static double sample(int step, int row, int column)
{
    return sin(step * 7.0 + row * 1.3 + column * 2.1);
}

static int64_t label(int step, int row)
{
    return (step + row * 2) % OUT;
}

static oar_status make_mlp(oar_dtype dtype, uint64_t seed, oar_module **mlp)
{
    oar_linear_opts o = oar_linear_opts_init();
    oar_module *layer[3] = { 0 };

    o.dtype = dtype;
    CHECK_OK(oar_linear_create(IN, HIDDEN, seed, &o, &layer[0]));
    CHECK_OK(oar_relu_create(&layer[1]));
    CHECK_OK(oar_linear_create(HIDDEN, OUT, seed + 9, &o, &layer[2]));
    return oar_sequential_create(3, layer, mlp);
}

/* Rows part, part + parts, part + 2 parts, ... of batch number `step`. */
static oar_tensor *loss_of(oar_tape *tape, oar_module *net, oar_dtype dtype,
                           int step, int part, int parts)
{
    int rows = BATCH / parts;
    double x[BATCH * IN];
    int64_t y[BATCH];
    oar_tensor *input, *target;

    for (int i = 0; i < rows; i++) {
        for (int c = 0; c < IN; c++)
            x[i * IN + c] = sample(step, i * parts + part, c);
        y[i] = label(step, i * parts + part);
    }
    input = oar_empty(tape, dtype, OAR_SHAPE(rows, IN));
    target = oar_from_data(tape, OAR_I64, OAR_SHAPE(rows), y);
    if (input == NULL || oar_tensor_write(input, OAR_F64, x) != OAR_OK)
        return NULL;
    return oar_cross_entropy(tape, oar_forward(tape, net, input), target);
}

static oar_status train(oar_module *net, const training_case *r, int part,
                        int parts)
{
    oar_sgd_opts o = oar_sgd_opts_init();
    oar_optim *sgd;
    oar_tape *tape;

    o.lr = 0.1;
    o.momentum = r->momentum;
    CHECK_OK(oar_sgd_create(net, &o, &sgd));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(oar_backward(tape,
                              loss_of(tape, net, r->dtype, step, part, parts)));
        CHECK_OK(oar_optim_step(sgd));
        oar_optim_zero_grad(sgd);
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_optim_destroy(sgd);
    return OAR_OK;
}

/* All parameters in a row, as f64; returns how many. */
static int read_params(const oar_module *net, double *out)
{
    int n = 0;

    for (int i = 0; i < oar_module_params(net); i++) {
        oar_tensor *p = oar_module_param(net, i);
        oar_tensor_read(p, OAR_F64, out + n);
        n += (int)oar_tensor_count(p);
    }
    return n;
}

static oar_status same_everywhere(oar_group *g, const double *mine, int n)
{
    double low[1024], high[1024];

    CHECK(n <= 1024);
    memcpy(low, mine, (size_t)n * sizeof *mine);
    memcpy(high, mine, (size_t)n * sizeof *mine);
    CHECK_OK(oar_all_reduce(g, oar_span_of(low, (size_t)n, OAR_F64), OAR_MIN,
                            NULL, NULL));
    CHECK_OK(oar_all_reduce(g, oar_span_of(high, (size_t)n, OAR_F64), OAR_MAX,
                            NULL, NULL));
    CHECK(memcmp(low, high, (size_t)n * sizeof *low) == 0);
    return OAR_OK;
}

static oar_status train_rank(oar_group *g, void *arg)
{
    const training_case *r = arg;
    oar_ddp_stats stats = oar_ddp_stats_init();
    oar_ddp_opts o = oar_ddp_opts_init();
    double mine[1024];
    oar_module *net;
    int n;

    /* other seeds than rank 0: its parameters must win */
    CHECK_OK(make_mlp(r->dtype, 3 + 100 * (uint64_t)oar_group_rank(g), &net));
    o.bucket_bytes = r->bucket_bytes;
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK_OK(train(net, r, oar_group_rank(g), oar_group_size(g)));
    n = read_params(net, mine);
    for (int i = 0; i < n; i++)
        CHECK(fabs(mine[i] - r->expected[i]) <= r->tolerance);
    CHECK_OK(same_everywhere(g, mine, n));
    CHECK_OK(oar_ddp_read_stats(net, &stats));
    CHECK(stats.buckets == r->buckets);
    CHECK(stats.copied_bytes == 0);
    CHECK(stats.reduced_bytes >= (uint64_t)n * oar_dtype_size(r->dtype));
    oar_module_release(net);
    return OAR_OK;
}

static void train_both_ways(oar_dtype dtype, double momentum,
                            size_t bucket_bytes, int buckets, double tolerance)
{
    double expected[1024];
    training_case r = { dtype,   momentum, bucket_bytes,
                        buckets, expected, tolerance };
    oar_module *net;

    assert_int_equal(make_mlp(dtype, 3, &net), OAR_OK);
    assert_int_equal(train(net, &r, 0, 1), OAR_OK);
    read_params(net, expected);
    oar_module_release(net);
    for (int n = 1; n <= 4; n++)
        ranks_all(n, train_rank, &r);
}

static void ranks_train_what_one_process_trains_in_f32(void **state)
{
    train_both_ways(OAR_F32, 0, 0, 1, 1e-5);
}

static void ranks_train_what_one_process_trains_in_f64(void **state)
{
    train_both_ways(OAR_F64, 0.9, 0, 1, 1e-11);
}

/* Peers sum the gradients where backward wrote them. */
static oar_status all_in_place(const oar_module *net)
{
    oar_ddp_stats stats = oar_ddp_stats_init();

    CHECK_OK(oar_ddp_read_stats(net, &stats));
    CHECK(stats.copied_bytes == 0 && stats.reduced_bytes > 0);
    for (int i = 0; i < oar_module_params(net); i++) {
        oar_tensor *param = oar_module_param(net, i);
        oar_tensor *grad = oar_tensor_grad(param);
        CHECK(grad != NULL);
        CHECK(oar_shared_reachable(oar_tensor_const_data(grad),
                                   (size_t)oar_tensor_count(grad) *
                                       sizeof(float)));
        oar_tensor_clear_grad(param);
    }
    return OAR_OK;
}

static oar_status train_in_place(oar_group *g, void *arg)
{
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_module *net;
    oar_tape *tape;

    o.bucket_bytes = *(size_t *)arg;
    CHECK_OK(make_mlp(OAR_F32, 3, &net));
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 0; step < 3; step++) { /* the first makes new buckets */
        oar_tensor *loss = loss_of(tape, net, OAR_F32, step, oar_group_rank(g),
                                   oar_group_size(g));
        CHECK_OK(oar_backward(tape, loss));
        CHECK_OK(all_in_place(net));
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void no_gradient_is_copied_over_shared_memory(void **state)
{
    size_t bucket_bytes[] = { 0, 64, 1000 };

    for (int i = 0; i < 3; i++)
        for (int n = 2; n <= 3; n++)
            assert_int_equal(
                ranks_run("shm", n, NULL, train_in_place, &bucket_bytes[i]),
                OAR_OK);
}

static void many_small_buckets_train_the_same(void **state)
{
    train_both_ways(OAR_F64, 0.9, 64, 4, 1e-11);
}

/* ---- disagreement -------------------------------------------------------- */

static oar_status wrap_other_shapes(oar_group *g, void *arg)
{
    oar_module *layer[2] = { 0 }, *net, *wrapped = NULL;
    int64_t odd = oar_group_rank(g) == 1 ? 4 : 3;

    CHECK_OK(oar_linear_create(2, 3, 1, NULL, &layer[0]));
    CHECK_OK(oar_linear_create(3, odd, 2, NULL, &layer[1]));
    CHECK_OK(oar_sequential_create(2, layer, &net));
    CHECK(oar_ddp_wrap(net, g, NULL, &wrapped) == OAR_E_MISMATCH);
    CHECK(wrapped == NULL);
    CHECK(strstr(oar_last_error_text(), "number 2 is parameter") != NULL);
    CHECK(strstr(oar_last_error_text(), "1.weight") != NULL);
    if (oar_group_rank(g) == 1)
        CHECK(strstr(oar_last_error_text(), "[4, 3]") != NULL);
    CHECK_OK(oar_barrier(g, NULL, NULL)); /* the group goes on */
    return OAR_OK;
}

static void different_models_are_named_on_every_rank(void **state)
{
    ranks_all(3, wrap_other_shapes, NULL);
}

static oar_status wrap_without_memory(oar_group *g, void *arg)
{
    oar_module *net, *wrapped = NULL;
    const char *word = "rank 1 has a parameter";

    CHECK_OK(oar_linear_create(2, 3, 1, NULL, &net));
    if (oar_group_rank(g) == 1) {
        CHECK_OK(
            oar_storage_detach(oar_tensor_storage(oar_module_param(net, 1))));
        word = "a tensor [3] whose storage is detached";
    }
    CHECK(oar_ddp_wrap(net, g, NULL, &wrapped) == OAR_E_STATE);
    CHECK(wrapped == NULL);
    CHECK(strstr(oar_last_error_text(), word) != NULL);
    CHECK_OK(oar_barrier(g, NULL, NULL));
    return OAR_OK;
}

static void a_parameter_that_cannot_be_written_stops_every_rank(void **state)
{
    ranks_all(3, wrap_without_memory, NULL);
}

static oar_status wrap_lazy(oar_group *g, void *arg)
{
    oar_module *net, *wrapped = NULL;
    oar_optim *sgd = NULL;

    oar_lazy(1);
    CHECK_OK(oar_linear_create(2, 3, 1, NULL, &net));
    oar_lazy(0);
    CHECK(oar_ddp_wrap(net, g, NULL, &wrapped) == OAR_E_STATE);
    CHECK(strstr(oar_last_error_text(), "lazy") != NULL);
    oar_lazy(1);
    CHECK_OK(oar_linear_create(2, 3, 1, NULL, &net));
    oar_lazy(0);
    CHECK_OK(oar_ddp_wrap(net, g, OAR_OPTS(oar_ddp_opts, .no_broadcast = 1),
                          &wrapped));
    CHECK(oar_sgd_create(wrapped, NULL, &sgd) == OAR_E_STATE);
    CHECK(strstr(oar_last_error_text(), "lazy") != NULL);
    CHECK(sgd == NULL);
    oar_module_release(wrapped);
    return oar_barrier(g, NULL, NULL);
}

static void a_lazy_model_is_trained_by_no_rank(void **state)
{
    ranks_all(1, wrap_lazy, NULL);
    ranks_all(3, wrap_lazy, NULL);
}

/* ---- parameters that are not always used --------------------------------- */

typedef struct half_used {
    int use;
} half_used;

static oar_tensor *half_forward(oar_tape *tape, oar_module *module,
                                oar_tensor *x)
{
    half_used *h = oar_module_self(module);

    x = oar_forward(tape, oar_module_child(module, 0), x);
    return h->use ? oar_forward(tape, oar_module_child(module, 1), x) : x;
}

static const oar_module_class half_class = { .size = sizeof half_class,
                                             .name = "half",
                                             .self_size = sizeof(half_used),
                                             .forward = half_forward };

static oar_status unused_on_one_rank(oar_group *g, void *arg)
{
    oar_module *net, *a, *b;
    oar_tensor *x, *grad;
    oar_tape *tape;
    double value[4];

    CHECK_OK(oar_module_create(&half_class, &net));
    ((half_used *)oar_module_self(net))->use = oar_group_rank(g) == 0;
    CHECK_OK(oar_linear_create(2, 2, 1, NULL, &a));
    CHECK_OK(oar_linear_create(2, 2, 2, NULL, &b));
    CHECK_OK(oar_module_add_child(net, "a", a));
    CHECK_OK(oar_module_add_child(net, "b", b));
    CHECK_OK(oar_ddp_wrap(net, g, NULL, &net));
    CHECK_OK(oar_tape_create(&tape));
    x = oar_full(tape, OAR_F32, OAR_SHAPE(1, 2), 1);
    CHECK_OK(oar_backward(tape, oar_sum(tape, oar_forward(tape, net, x))));
    grad = oar_tensor_grad(oar_module_param(net, 3)); /* b.bias */
    CHECK(grad != NULL);
    CHECK_OK(oar_tensor_read(grad, OAR_F64, value));
    CHECK(value[0] == (double)(1.0f / (float)oar_group_size(g)));
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void a_parameter_unused_on_one_rank_counts_as_zero_there(void **state)
{
    ranks_all(2, unused_on_one_rank, NULL);
    ranks_all(3, unused_on_one_rank, NULL);
}

/* ---- gradients that the user moved --------------------------------------- */

/* One pass whose weight gradient is rank + 1 everywhere; gives the stats. The
 * input has a gradient too, so that backward always has a way. */
static oar_status pass_once(oar_group *g, oar_module *net, oar_ddp_stats *stats)
{
    oar_tensor *x =
        oar_full(NULL, OAR_F32, OAR_SHAPE(1, 3), oar_group_rank(g) + 1);
    oar_tape *tape;

    CHECK_OK(oar_tensor_require_grad(x, 1));
    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(oar_backward(tape, oar_sum(tape, oar_forward(tape, net, x))));
    oar_tape_destroy(tape);
    oar_tensor_release(x);
    return oar_ddp_read_stats(net, stats);
}

static oar_status weight_grad_is(const oar_module *net, double want)
{
    oar_tensor *grad = oar_tensor_grad(oar_module_param(net, 0));
    double value[15];

    CHECK(oar_tensor_count(grad) == 15);
    CHECK_OK(oar_tensor_read(grad, OAR_F64, value));
    for (int i = 0; i < 15; i++)
        CHECK(fabs(value[i] - want) < 1e-6);
    return OAR_OK;
}

static oar_status moved_gradient(oar_group *g, void *arg)
{
    oar_ddp_stats stats = oar_ddp_stats_init();
    double mean = (oar_group_size(g) + 1) / 2.0;
    oar_tensor *weight, *away = oar_zeros(NULL, OAR_F32, OAR_SHAPE(5, 3));
    oar_module *net;

    CHECK_OK(oar_linear_create(3, 5, 1, NULL, &net));
    CHECK_OK(oar_ddp_wrap(net, g, NULL, &net));
    weight = oar_module_param(net, 0);
    CHECK_OK(pass_once(g, net, &stats));
    CHECK(stats.copied_bytes == 0);
    CHECK_OK(weight_grad_is(net, mean));
    CHECK_OK(oar_tensor_bind_grad(weight, away));
    CHECK_OK(pass_once(g, net, &stats)); /* adds to what was there */
    CHECK(stats.copied_bytes == 2 * 15 * sizeof(float));
    CHECK(oar_tensor_grad(weight) == away);
    CHECK_OK(weight_grad_is(net, 2 * mean));
    oar_tensor_clear_grad(weight);
    CHECK_OK(oar_tensor_bind_grad(weight, NULL));
    CHECK_OK(pass_once(g, net, &stats));
    CHECK(stats.copied_bytes == 2 * 15 * sizeof(float));
    CHECK_OK(weight_grad_is(net, mean));
    oar_module_release(net);
    oar_tensor_release(away);
    return OAR_OK;
}

static void a_gradient_bound_elsewhere_is_copied_and_counted(void **state)
{
    ranks_all(1, moved_gradient, NULL);
    ranks_all(3, moved_gradient, NULL);
}

/* A forward that reaches no parameter of its child at all. */
static oar_tensor *around_forward(oar_tape *tape, oar_module *module,
                                  oar_tensor *x)
{
    half_used *h = oar_module_self(module);

    return h->use ? oar_forward(tape, oar_module_child(module, 0), x)
                  : oar_scale(tape, x, 2);
}

static const oar_module_class around_class = { .size = sizeof around_class,
                                               .name = "around",
                                               .self_size = sizeof(half_used),
                                               .forward = around_forward };

static oar_status unreached_and_moved(oar_group *g, void *arg)
{
    oar_ddp_stats stats = oar_ddp_stats_init();
    double want = (oar_group_size(g) + 1) / 2.0 - 1.0 / oar_group_size(g);
    oar_module *net, *child;

    CHECK_OK(oar_module_create(&around_class, &net));
    ((half_used *)oar_module_self(net))->use = oar_group_rank(g) > 0;
    CHECK_OK(oar_linear_create(3, 5, 1, NULL, &child));
    CHECK_OK(oar_module_add_child(net, "child", child));
    CHECK_OK(oar_ddp_wrap(net, g, NULL, &net));
    CHECK_OK(oar_tensor_bind_grad(oar_module_param(net, 0), NULL));
    CHECK_OK(oar_tensor_require_grad(oar_module_param(net, 1), 0));
    oar_clear_error();
    CHECK_OK(pass_once(g, net, &stats));
    CHECK(oar_last_error()->status == OAR_OK);
    CHECK_OK(weight_grad_is(net, want));
    CHECK(oar_tensor_grad(oar_module_param(net, 1)) == NULL);
    oar_module_release(net);
    return OAR_OK;
}

static void an_unreached_gradient_moves_back_into_its_bucket(void **state)
{
    ranks_all(3, unreached_and_moved, NULL);
}

static void bad_arguments_are_refused(void **state)
{
    oar_ddp_stats stats = oar_ddp_stats_init();
    oar_module *net = NULL, *wrapped = NULL;
    oar_group *one;

    assert_int_equal(oar_group_create(NULL, 0, 1, NULL, &one), OAR_OK);
    assert_int_equal(oar_ddp_wrap(NULL, one, NULL, &wrapped), OAR_E_ARG);
    assert_int_equal(make_mlp(OAR_F32, 1, &net), OAR_OK);
    assert_int_equal(oar_ddp_read_stats(net, &stats), OAR_E_ARG);
    assert_int_equal(oar_ddp_wrap(net, NULL, NULL, &wrapped), OAR_E_ARG);
    assert_null(wrapped);
    oar_group_destroy(one);
}

/* Every allocation of wrapping fails once. */
static void every_failed_allocation_is_a_clean_error(void **state)
{
    oar_memory_stats before = oar_memory_stats_init();
    oar_memory_stats after = oar_memory_stats_init();
    oar_status status = OAR_E_NOMEM;

    oar_memory_read(&before);
    for (uint64_t n = 1; status != OAR_OK; n++) {
        oar_module *net = NULL, *wrapped = NULL;
        oar_group *one;
        assert_int_equal(oar_group_create(NULL, 0, 1, NULL, &one), OAR_OK);
        assert_int_equal(make_mlp(OAR_F32, 1, &net), OAR_OK);
        oar_memory_fail_after(n);
        status = oar_ddp_wrap(net, one, NULL, &wrapped);
        oar_memory_fail_after(0);
        if (status != OAR_OK) {
            assert_int_equal(status, OAR_E_NOMEM);
            assert_null(wrapped);
        }
        oar_module_release(wrapped);
        oar_group_destroy(one);
        oar_memory_read(&after);
        assert_int_equal(after.live, before.live);
        assert_true(n < 1000);
    }
}

/* The agreement on parameters needs answers, which a batch puts off. */
static oar_status wrap_in_a_batch(oar_group *g, void *arg)
{
    oar_module *mlp, *wrapped = NULL;

    CHECK_OK(make_mlp(OAR_F32, 3, &mlp));
    CHECK_OK(oar_batch_begin(g));
    CHECK(oar_batch_is_open(g));
    CHECK(oar_ddp_wrap(mlp, g, NULL, &wrapped) == OAR_E_STATE);
    CHECK(wrapped == NULL);
    CHECK_OK(oar_batch_end(g, NULL));
    CHECK(!oar_batch_is_open(g) && !oar_batch_is_open(NULL));
    CHECK_OK(make_mlp(OAR_F32, 3, &mlp));
    CHECK_OK(oar_ddp_wrap(mlp, g, NULL, &wrapped));
    oar_module_release(wrapped);
    return OAR_OK;
}

static void nothing_is_wrapped_inside_a_batch(void **state)
{
    assert_int_equal(oar_sim_run(3, wrap_in_a_batch, NULL), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_wrapped_inside_a_batch),
        cmocka_unit_test(ranks_train_what_one_process_trains_in_f32),
        cmocka_unit_test(ranks_train_what_one_process_trains_in_f64),
        cmocka_unit_test(no_gradient_is_copied_over_shared_memory),
        cmocka_unit_test(many_small_buckets_train_the_same),
        cmocka_unit_test(different_models_are_named_on_every_rank),
        cmocka_unit_test(a_parameter_that_cannot_be_written_stops_every_rank),
        cmocka_unit_test(a_lazy_model_is_trained_by_no_rank),
        cmocka_unit_test(a_parameter_unused_on_one_rank_counts_as_zero_there),
        cmocka_unit_test(a_gradient_bound_elsewhere_is_copied_and_counted),
        cmocka_unit_test(an_unreached_gradient_moves_back_into_its_bucket),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(every_failed_allocation_is_a_clean_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
