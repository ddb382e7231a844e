/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a wrapped module: when to reduce, weights of ranks, ranks that
 * have run out of input, and the check that replicas are still the same. */
#include "support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/oarsong.h>

enum { IN = 3, OUT = 2, NUMBERS = IN * OUT };

/* y = W x: the gradient of sum(y) is x, in every row of W. */
static oar_status make_net(oar_group *g, const oar_ddp_opts *o,
                           oar_module **net)
{
    oar_linear_opts l = oar_linear_opts_init();

    l.no_bias = 1;
    l.dtype = OAR_F64;
    CHECK_OK(oar_linear_create(IN, OUT, 5, &l, net));
    return oar_ddp_wrap(*net, g, o, net);
}

/* Backward of sum(W x) with all of x = value, in `rows` rows, meaned. */
static oar_status pass(oar_module *net, double value, int rows)
{
    oar_tape *tape;
    oar_tensor *x;

    CHECK_OK(oar_tape_create(&tape));
    x = oar_full(tape, OAR_F64, OAR_SHAPE(rows, IN), value);
    CHECK_OK(oar_backward(
        tape,
        oar_scale(tape, oar_sum(tape, oar_forward(tape, net, x)), 1.0 / rows)));
    oar_tape_destroy(tape);
    return OAR_OK;
}

static oar_status grad_is(const oar_module *net, double want)
{
    oar_tensor *grad = oar_tensor_grad(oar_module_param(net, 0));
    double value[NUMBERS];

    CHECK(grad != NULL);
    CHECK_OK(oar_tensor_read(grad, OAR_F64, value));
    for (int i = 0; i < NUMBERS; i++)
        CHECK(fabs(value[i] - want) < 1e-12);
    return OAR_OK;
}

static double mean_rank(const oar_group *g)
{
    return (oar_group_size(g) - 1) / 2.0;
}

/* ---- accumulation -------------------------------------------------------- */

static oar_status accumulate(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g);
    oar_ddp_stats stats = oar_ddp_stats_init();
    oar_module *net;

    CHECK_OK(make_net(g, NULL, &net));
    CHECK_OK(oar_ddp_no_sync_begin(net));
    CHECK_OK(pass(net, rank, 1));
    CHECK_OK(grad_is(net, rank)); /* its own */
    CHECK_OK(pass(net, 10, 1));
    CHECK_OK(oar_ddp_no_sync_end(net));
    CHECK(oar_ddp_no_sync_end(net) == OAR_E_STATE);
    CHECK_OK(oar_ddp_read_stats(net, &stats));
    CHECK(stats.passes == 0);
    CHECK_OK(pass(net, 100, 1));
    CHECK_OK(grad_is(net, mean_rank(g) + 110));
    CHECK_OK(oar_ddp_read_stats(net, &stats));
    CHECK(stats.passes == 1 && stats.copied_bytes == 0);
    CHECK(stats.reduced_bytes >= NUMBERS * sizeof(double));
    CHECK_OK(oar_ddp_no_sync_begin(net)); /* again nothing is sent */
    CHECK_OK(pass(net, rank, 1));
    CHECK_OK(oar_ddp_no_sync_end(net));
    CHECK_OK(oar_ddp_read_stats(net, &stats));
    CHECK(stats.passes == 1 && stats.reduced_bytes == 0);
    CHECK(stats.communication_s == 0 && stats.exposed_s == 0);
    oar_module_release(net);
    return OAR_OK;
}

static oar_status accumulate_by_count(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g);
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_module *net;

    o.accumulate = 3;
    CHECK_OK(make_net(g, &o, &net));
    for (int round = 0; round < 2; round++) {
        oar_tensor_clear_grad(oar_module_param(net, 0));
        CHECK_OK(pass(net, rank, 1));
        CHECK_OK(pass(net, rank, 1));
        CHECK_OK(grad_is(net, 2 * rank));
        CHECK_OK(pass(net, rank, 1));
        CHECK_OK(grad_is(net, 3 * mean_rank(g)));
    }
    oar_module_release(net);
    return OAR_OK;
}

static void gradients_add_up_before_they_are_reduced(void **state)
{
    ranks_all(3, accumulate, NULL);
    ranks_all(3, accumulate_by_count, NULL);
}

/* ---- weights and running out --------------------------------------------- */

static oar_status weighted(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), ranks = oar_group_size(g);
    oar_ddp_opts o = oar_ddp_opts_init();
    double sum = 0, rows = 0;
    oar_module *net;

    o.weighted = 1;
    CHECK_OK(make_net(g, &o, &net));
    CHECK_OK(oar_ddp_weigh(net, rank + 1)); /* rows of its batch */
    CHECK_OK(pass(net, rank, rank + 1));
    for (int r = 0; r < ranks; r++) {
        sum += r * (r + 1);
        rows += r + 1;
    }
    CHECK_OK(grad_is(net, sum / rows));
    oar_module_release(net);
    return OAR_OK;
}

/* Rank r has r + 1 batches. */
static oar_status run_out(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), ranks = oar_group_size(g), active, step;
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_optim *sgd;
    double w[NUMBERS], low[NUMBERS], high[NUMBERS];
    oar_module *net;

    o.weighted = 1;
    CHECK_OK(make_net(g, &o, &net));
    CHECK_OK(oar_sgd_create(net, OAR_OPTS(oar_sgd_opts, .lr = 0.5), &sgd));
    for (step = 0;; step++) {
        double want = 0;
        CHECK_OK(oar_ddp_join(net, step <= rank, &active));
        if (active == 0)
            break;
        CHECK(active == ranks - step);
        if (step <= rank)
            CHECK_OK(pass(net, rank + step, 1));
        for (int r = step; r < ranks; r++)
            want += (r + step) / (double)active;
        CHECK_OK(grad_is(net, want));
        CHECK_OK(oar_optim_step(sgd));
        oar_optim_zero_grad(sgd);
    }
    CHECK(step == ranks);
    CHECK_OK(oar_tensor_read(oar_module_param(net, 0), OAR_F64, w));
    memcpy(low, w, sizeof w);
    memcpy(high, w, sizeof w);
    CHECK_OK(oar_all_reduce(g, oar_span_of(low, NUMBERS, OAR_F64), OAR_MIN,
                            NULL, NULL));
    CHECK_OK(oar_all_reduce(g, oar_span_of(high, NUMBERS, OAR_F64), OAR_MAX,
                            NULL, NULL));
    CHECK(memcmp(low, high, sizeof low) == 0);
    oar_optim_destroy(sgd);
    oar_module_release(net);
    return OAR_OK;
}

static void batches_count_by_their_weight(void **state)
{
    ranks_all(1, weighted, NULL);
    ranks_all(4, weighted, NULL);
}

static void ranks_that_run_out_keep_the_others_going(void **state)
{
    ranks_all(1, run_out, NULL);
    ranks_all(3, run_out, NULL);
}

/* ---- parameters that no rank reaches ------------------------------------- */

static oar_tensor *first_only(oar_tape *tape, oar_module *module, oar_tensor *x)
{
    return oar_forward(tape, oar_module_child(module, 0), x);
}

static const oar_module_class lazy_class = { .size = sizeof lazy_class,
                                             .name = "lazy",
                                             .forward = first_only };

static char logged[400];

static void keep_log(void *arg, oar_log_level level, const char *text)
{
    if (strstr(text, "no rank's loss") != NULL)
        snprintf(logged + strlen(logged), sizeof logged - strlen(logged),
                 "%s\n", text);
}

static oar_status unused(oar_group *g, void *arg)
{
    oar_linear_opts l = oar_linear_opts_init();
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_ddp_stats stats = oar_ddp_stats_init();
    oar_module *net, *child;
    const char *second;

    l.no_bias = 1;
    l.dtype = OAR_F64;
    o.static_graph = *(int *)arg;
    CHECK_OK(oar_module_create(&lazy_class, &net));
    CHECK_OK(oar_linear_create(IN, OUT, 5, &l, &child));
    CHECK_OK(oar_module_add_child(net, "used", child));
    CHECK_OK(oar_linear_create(IN, OUT, 6, &l, &child));
    CHECK_OK(oar_module_add_child(net, "idle", child));
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    logged[0] = 0;
    oar_log_to(keep_log, NULL, OAR_LOG_WARN);
    for (int step = 0; step < 3; step++) {
        oar_tensor_clear_grad(oar_module_param(net, 0));
        CHECK_OK(pass(net, oar_group_rank(g), 1));
        CHECK_OK(grad_is(net, mean_rank(g)));
        CHECK(oar_tensor_grad(oar_module_param(net, 1)) == NULL);
        CHECK_OK(oar_ddp_read_stats(net, &stats));
        CHECK(stats.unused == 1);
    }
    oar_log_to(NULL, NULL, OAR_LOG_WARN);
    CHECK(strstr(logged, "module.idle.weight") != NULL);
    second = strchr(logged, '\n');
    CHECK(second != NULL && second[1] == 0); /* once */
    oar_module_release(net);
    return OAR_OK;
}

/* Processes only: the log is one for a process. */
static void what_no_rank_reaches_is_named_and_left_alone(void **state)
{
    for (int fixed = 0; fixed < 2; fixed++)
        assert_int_equal(ranks_run("shm", 3, NULL, unused, &fixed), OAR_OK);
}

/* ---- the same everywhere ------------------------------------------------- */

static oar_status divergence(oar_group *g, void *arg)
{
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_tape *tape;
    oar_tensor *x;
    double *w;
    oar_module *net;

    o.check_every = 2;
    CHECK_OK(make_net(g, &o, &net));
    CHECK_OK(pass(net, 1, 1));
    CHECK_OK(pass(net, 1, 1));
    CHECK_OK(oar_ddp_check_replicas(net));
    w = oar_tensor_data(oar_module_param(net, 0));
    if (oar_group_rank(g) == 2)
        w[4] = nextafter(w[4], 9); /* a bit flips */
    CHECK(oar_ddp_check_replicas(net) == OAR_E_MISMATCH);
    CHECK_OK(pass(net, 1, 1)); /* not looked at in this one */
    CHECK_OK(oar_tape_create(&tape));
    x = oar_full(tape, OAR_F64, OAR_SHAPE(1, IN), 1);
    CHECK(oar_backward(tape, oar_sum(tape, oar_forward(tape, net, x))) ==
          OAR_E_MISMATCH);
    CHECK(strstr(oar_last_error_text(), "rank 2") != NULL);
    CHECK(strstr(oar_last_error_text(), "module.weight") != NULL);
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void replicas_that_diverge_are_named(void **state)
{
    ranks_all(3, divergence, NULL);
}

/* Passes that look at the replicas while ranks differ in what they reach: the
 * look must have the same place among the buckets on all of them. */
static oar_tensor *every_other(oar_tape *tape, oar_module *module,
                               oar_tensor *x)
{
    const int *skips = oar_module_self(module);

    for (int i = 0; i < oar_module_children(module); i++)
        if (i != *skips)
            x = oar_forward(tape, oar_module_child(module, i), x);
    return x;
}

static const oar_module_class skip_class = { .size = sizeof skip_class,
                                             .name = "skip",
                                             .self_size = sizeof(int),
                                             .forward = every_other };

static oar_status checked_while_uneven(oar_group *g, void *arg)
{
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_module *net, *layer;
    oar_tape *tape;

    CHECK_OK(oar_module_create(&skip_class, &net));
    *(int *)oar_module_self(net) = oar_group_rank(g);
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "l%d", i);
        CHECK_OK(oar_linear_create(IN, IN, 5 + (uint64_t)i, NULL, &layer));
        CHECK_OK(oar_module_add_child(net, name, layer));
    }
    o.bucket_bytes = 64;
    o.check_every = 1;
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 0; step < 5; step++) {
        oar_tensor *x = oar_full(tape, OAR_F32, OAR_SHAPE(1, IN), 1);
        CHECK_OK(oar_backward(tape, oar_sum(tape, oar_forward(tape, net, x))));
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void
replicas_are_compared_while_ranks_reach_different_parts(void **state)
{
    ranks_all(3, checked_while_uneven, NULL);
}

/* ---- order --------------------------------------------------------------- */

/* Layers are used in another order than they were registered. */
static oar_tensor *backwards(oar_tape *tape, oar_module *module, oar_tensor *x)
{
    for (int i = oar_module_children(module) - 1; i >= 0; i--)
        x = oar_forward(tape, oar_module_child(module, i), x);
    return x;
}

static const oar_module_class back_class = { .size = sizeof back_class,
                                             .name = "back",
                                             .forward = backwards };

static oar_status reordered(oar_group *g, void *arg)
{
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_ddp_stats stats = oar_ddp_stats_init();
    oar_tensor *held = NULL, *now;
    oar_module *net, *layer;
    oar_tape *tape;

    CHECK_OK(oar_module_create(&back_class, &net));
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "l%d", i);
        CHECK_OK(oar_linear_create(IN, IN, 5 + (uint64_t)i, NULL, &layer));
        CHECK_OK(oar_module_add_child(net, name, layer));
    }
    o.bucket_bytes = 64;
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK_OK(oar_tape_create(&tape));
    for (int step = 0; step < 3; step++) {
        oar_tensor *x = oar_full(tape, OAR_F32, OAR_SHAPE(1, IN), 1);
        CHECK_OK(oar_backward(tape, oar_sum(tape, oar_forward(tape, net, x))));
        CHECK_OK(oar_ddp_read_stats(net, &stats));
        CHECK(stats.copied_bytes == 0 && stats.buckets == 8);
        now = oar_tensor_grad(oar_module_param(net, 0));
        if (step == 1)
            held = now;
        CHECK(step < 2 || now == held); /* moved once, after the first pass */
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void buckets_are_rebuilt_once(void **state)
{
    ranks_all(2, reordered, NULL);
}

/* ---- hooks --------------------------------------------------------------- */

/* A row of four layers, trained for a few steps. */
enum { DEEP = 4, WIDE = 7, DEEP_NUMBERS = DEEP * (WIDE * WIDE + WIDE) };

static oar_status make_deep(oar_module **net)
{
    oar_module *layer[DEEP] = { 0 };
    oar_linear_opts l = oar_linear_opts_init();

    l.dtype = OAR_F64;
    for (int i = 0; i < DEEP; i++)
        CHECK_OK(
            oar_linear_create(WIDE, WIDE, 3 + 2 * (uint64_t)i, &l, &layer[i]));
    return oar_sequential_create(DEEP, layer, net);
}

static oar_status deep_pass(oar_group *g, oar_module *net, int step)
{
    double x[2 * WIDE];
    oar_tape *tape;

    for (int i = 0; i < 2 * WIDE; i++)
        x[i] = sin(i * 1.3 + oar_group_rank(g) * 0.7 + step);
    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(oar_backward(
        tape,
        oar_mean(tape, oar_forward(tape, net,
                                   oar_from_data(tape, OAR_F64,
                                                 OAR_SHAPE(2, WIDE), x)))));
    oar_tape_destroy(tape);
    return OAR_OK;
}

static void read_deep(const oar_module *net, double *out)
{
    for (int i = 0; i < oar_module_params(net); i++) {
        oar_tensor_read(oar_module_param(net, i), OAR_F64, out);
        out += oar_tensor_count(oar_module_param(net, i));
    }
}

static oar_status train_deep(oar_group *g, const oar_ddp_opts *o,
                             double *params)
{
    oar_module *net;
    oar_optim *optim;

    CHECK_OK(make_deep(&net));
    CHECK_OK(oar_ddp_wrap(net, g, o, &net));
    CHECK_OK(oar_adam_create(net, OAR_OPTS(oar_adam_opts, .lr = 0.01), &optim));
    for (int step = 0; step < 5; step++) {
        CHECK_OK(deep_pass(g, net, step));
        CHECK_OK(oar_optim_step(optim));
        oar_optim_zero_grad(optim);
    }
    read_deep(net, params);
    oar_optim_destroy(optim);
    oar_module_release(net);
    return OAR_OK;
}

static oar_status hooked(oar_group *g, void *arg)
{
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_power_sgd_opts p = oar_power_sgd_opts_init();
    oar_reduce_hook hook = oar_reduce_hook_init();
    double whole[DEEP_NUMBERS], half[DEEP_NUMBERS], power[DEEP_NUMBERS];
    oar_module *net;

    CHECK_OK(train_deep(g, &o, whole));
    CHECK_OK(oar_hook_half(OAR_BF16, &hook));
    o.hook = &hook;
    CHECK_OK(train_deep(g, &o, half));
    hook = oar_reduce_hook_init();
    CHECK_OK(make_deep(&net));
    p.start = -1;
    CHECK_OK(oar_hook_power_sgd_for(net, &p, &hook));
    CHECK_OK(train_deep(g, &o, power)); /* f64 travels in full */
    for (int i = 0; i < DEEP_NUMBERS; i++) {
        CHECK(fabs(whole[i] - half[i]) < 0.02);
        CHECK(fabs(whole[i] - power[i]) < 1e-12);
    }
    oar_module_release(net);
    return OAR_OK;
}

static void hooks_travel_with_the_wrapper(void **state)
{
    ranks_all(3, hooked, NULL);
}

/* ---- errors -------------------------------------------------------------- */

static void bad_arguments_are_refused(void **state)
{
    oar_module *net;
    oar_group *one;
    int active;

    assert_int_equal(oar_group_create(NULL, 0, 1, NULL, &one), OAR_OK);
    assert_int_equal(oar_ddp_no_sync_begin(NULL), OAR_E_ARG);
    assert_int_equal(oar_ddp_no_sync_end(NULL), OAR_E_ARG);
    assert_int_equal(oar_ddp_check_replicas(NULL), OAR_E_ARG);
    assert_int_equal(make_net(one, NULL, &net), OAR_OK);
    assert_int_equal(oar_ddp_weigh(net, 2), OAR_E_ARG);
    assert_int_equal(oar_ddp_join(net, 1, &active), OAR_E_ARG);
    oar_module_release(net);
    oar_group_destroy(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_add_up_before_they_are_reduced),
        cmocka_unit_test(batches_count_by_their_weight),
        cmocka_unit_test(ranks_that_run_out_keep_the_others_going),
        cmocka_unit_test(what_no_rank_reaches_is_named_and_left_alone),
        cmocka_unit_test(replicas_that_diverge_are_named),
        cmocka_unit_test(
            replicas_are_compared_while_ranks_reach_different_parts),
        cmocka_unit_test(buckets_are_rebuilt_once),
        cmocka_unit_test(hooks_travel_with_the_wrapper),
        cmocka_unit_test(bad_arguments_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
