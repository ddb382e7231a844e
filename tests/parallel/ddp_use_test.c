/* SPDX-License-Identifier: Apache-2.0 */
/* Wrapped modules as users may use them: in whatever order things are made,
 * used and dropped, gradients are the mean or an error says why not. */
#include "support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/last_error.h"

enum { IN = 3, OUT = 2, NUMBERS = IN * OUT };

static oar_status make_linear(uint64_t seed, oar_module **net)
{
    oar_linear_opts l = oar_linear_opts_init();

    l.no_bias = 1;
    l.dtype = OAR_F64;
    return oar_linear_create(IN, OUT, seed, &l, net);
}

static oar_status make_net(oar_group *g, const oar_ddp_opts *o,
                           oar_module **net)
{
    CHECK_OK(make_linear(5, net));
    return oar_ddp_wrap(*net, g, o, net);
}

/* sum(W x) with all of x = value: its gradient is value, everywhere. */
static oar_tensor *loss_of(oar_tape *tape, oar_module *net, double value)
{
    oar_tensor *x = oar_full(tape, OAR_F64, OAR_SHAPE(1, IN), value);

    return oar_sum(tape, oar_forward(tape, net, x));
}

static oar_status pass(oar_module *net, double value)
{
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(oar_backward(tape, loss_of(tape, net, value)));
    oar_tape_destroy(tape);
    return OAR_OK;
}

/* Every number of a gradient; then it is cleared. */
static oar_status grad_was(oar_tensor *param, double want)
{
    double value[NUMBERS] = { NAN };

    CHECK(oar_tensor_count(param) == NUMBERS);
    CHECK_OK(oar_tensor_read(oar_tensor_grad(param), OAR_F64, value));
    for (int i = 0; i < NUMBERS; i++)
        CHECK(fabs(value[i] - want) < 1e-12);
    oar_tensor_clear_grad(param);
    return OAR_OK;
}

static oar_status grad_is(const oar_module *net, double want)
{
    return grad_was(oar_module_param(net, 0), want);
}

static double mean_rank(const oar_group *g)
{
    return (oar_group_size(g) - 1) / 2.0;
}

static int64_t passes_of(const oar_module *net)
{
    oar_ddp_stats stats = oar_ddp_stats_init();

    return oar_ddp_read_stats(net, &stats) == OAR_OK ? stats.passes : -1;
}

/* ---- where operations come from ------------------------------------------ */

/* How many of the newest operations of this rank were called from this line of
 * this file; stops at the first that was not. */
static int called_from(const oar_group *g, int line)
{
    oar_record r = oar_record_init();
    char wanted[64];
    int found = 0;

    snprintf(wanted, sizeof wanted, "ddp_use_test.c:%d", line);
    while (oar_recorder_read(g, oar_group_rank(g), found, &r) == OAR_OK &&
           strcmp(r.site, wanted) == 0)
        found++;
    return found;
}

static oar_status cite_ddp(oar_group *g, void *arg)
{
    oar_tape *tape;
    oar_module *net;
    oar_tensor *loss;
    oar_ddp_opts o = oar_ddp_opts_init();
    int active = 0;

    o.weighted = 1;
    o.broadcast_buffers = 1;
    CHECK_OK(oar_batch_norm_create(1, IN, NULL, &net));
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK(called_from(g, __LINE__ - 1) > 0);
    CHECK_OK(oar_ddp_join(net, 1, &active));
    CHECK(called_from(g, __LINE__ - 1) > 0);
    CHECK_OK(oar_tape_create(&tape));
    loss =
        oar_sum(tape, oar_forward(tape, net,
                                  oar_ones(tape, OAR_F32, OAR_SHAPE(2, IN))));
    CHECK(called_from(g, __LINE__ - 1) + called_from(g, __LINE__ - 2) > 0);
    CHECK_OK(oar_backward(tape, loss));
    CHECK(called_from(g, __LINE__ - 1) > 0);
    CHECK_OK(oar_ddp_check_replicas(net));
    CHECK(called_from(g, __LINE__ - 1) > 0);
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static oar_status cite_the_rest(oar_group *g, void *arg)
{
    float numbers[2] = { 1, 2 };
    oar_span array = oar_span_of(numbers, 2, OAR_F32);
    oar_group *other;
    oar_reducer *reducer;
    oar_module *norm;

    CHECK_OK(oar_group_dup(g, &other));
    CHECK(called_from(g, __LINE__ - 1) > 0);
    oar_group_destroy(other);
    CHECK_OK(oar_group_split(g, 0, 0, &other));
    CHECK(called_from(g, __LINE__ - 1) > 0);
    oar_group_destroy(other);
    CHECK_OK(oar_sync_batch_norm_create(1, IN, g, NULL, &norm));
    CHECK(called_from(g, __LINE__ - 1) > 0);
    oar_module_release(norm);
    CHECK_OK(oar_reducer_create(g, 1, &array, NULL, &reducer));
    CHECK_OK(oar_reducer_ready(reducer, 0));
    CHECK(called_from(g, __LINE__ - 1) > 0);
    CHECK_OK(oar_reducer_wait(reducer));
    CHECK_OK(oar_reducer_wait(reducer)); /* nothing was ready: it starts */
    CHECK(called_from(g, __LINE__ - 1) > 0);
    oar_reducer_destroy(reducer);
    return OAR_OK;
}

static void what_the_library_calls_is_called_from_the_users_line(void **state)
{
    ranks_all(2, cite_ddp, NULL);
    ranks_all(2, cite_the_rest, NULL);
}

/* A fault of a reduction names the call of the user that started it. */
static oar_status fault_in_backward(oar_group *g, void *arg)
{
    oar_tape *tape;
    oar_module *net;
    oar_status status;
    char site[64];

    CHECK_OK(make_net(g, NULL, &net));
    CHECK_OK(oar_tape_create(&tape));
    if (oar_group_rank(g) == 1)
        status = oar_barrier(g, NULL, NULL);
    else
        status = oar_backward(tape, loss_of(tape, net, 1));
    snprintf(site, sizeof site, "ddp_use_test.c:%d", __LINE__ - 1);
    CHECK(status == OAR_E_MISMATCH);
    /* Over messages alone a rank knows only its own call. */
    CHECK(strstr(oar_last_error_text(), site) != NULL ||
          strstr(oar_last_error_text(), "calls something else") != NULL);
    CHECK(strstr(oar_last_error_text(), "piece.c") == NULL);
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void a_fault_in_backward_cites_the_users_line(void **state)
{
    ranks_all(2, fault_in_backward, NULL);
}

/* ---- forwards and backwards ---------------------------------------------- */

static oar_status two_forwards(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g);
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_module *net;
    oar_tape *tape;

    o.accumulate = *(int *)arg;
    CHECK_OK(make_net(g, &o, &net));
    CHECK_OK(oar_tape_create(&tape));
    for (int i = 1; i <= 4; i++) {
        oar_tensor *a = loss_of(tape, net, rank), *b = loss_of(tape, net, 10);
        CHECK_OK(oar_backward(tape, oar_add(tape, a, b)));
        oar_tape_reset(tape);
        CHECK(passes_of(net) == i / o.accumulate);
        if (i % o.accumulate == 0)
            CHECK_OK(grad_is(net, o.accumulate * (mean_rank(g) + 10)));
    }
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void two_forwards_and_one_backward_are_one_pass(void **state)
{
    static int every[] = { 1, 2 };

    for (int i = 0; i < 2; i++)
        ranks_all(3, two_forwards, &every[i]);
}

/* As a pipeline does: what is decided about a pass is decided by its backward.
 */
static oar_status two_tapes(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g);
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_tape *a, *b;
    oar_tensor *first, *second;
    oar_module *net;

    o.accumulate = *(int *)arg;
    CHECK_OK(make_net(g, &o, &net));
    CHECK_OK(oar_tape_create(&a));
    CHECK_OK(oar_tape_create(&b));
    first = loss_of(a, net, rank);
    second = loss_of(b, net, 2 * rank);
    CHECK_OK(oar_backward(a, first));
    CHECK(passes_of(net) == (o.accumulate == 1));
    if (o.accumulate == 1)
        CHECK_OK(grad_is(net, mean_rank(g)));
    CHECK_OK(oar_backward(b, second));
    CHECK_OK(grad_is(net, (o.accumulate == 1 ? 2 : 3) * mean_rank(g)));
    CHECK(passes_of(net) == (o.accumulate == 1 ? 2 : 1));
    oar_tape_destroy(a);
    oar_tape_destroy(b);
    oar_module_release(net);
    return OAR_OK;
}

static void tapes_may_be_interleaved(void **state)
{
    static int every[] = { 1, 2 };

    for (int i = 0; i < 2; i++)
        ranks_all(3, two_tapes, &every[i]);
}

static oar_status twice(oar_group *g, void *arg)
{
    oar_module *net;
    oar_tensor *loss;
    oar_tape *tape;

    CHECK_OK(make_net(g, NULL, &net));
    CHECK_OK(oar_tape_create(&tape));
    loss = loss_of(tape, net, oar_group_rank(g));
    CHECK_OK(oar_backward(tape, loss));
    CHECK(fails_with(oar_backward(tape, loss), OAR_E_STATE, "a second time"));
    CHECK_OK(grad_is(net, mean_rank(g)));
    oar_tape_destroy(tape);
    CHECK_OK(pass(net, 2 * oar_group_rank(g)));
    CHECK_OK(grad_is(net, 2 * mean_rank(g)));
    oar_module_release(net);
    return OAR_OK;
}

static void a_second_backward_is_refused_and_does_no_harm(void **state)
{
    ranks_all(3, twice, NULL);
}

static oar_status refuse(oar_tensor *leaf, void *arg)
{
    return OAR_E_PEER;
}

/* Buckets that are under way when backward fails, on all ranks. */
static oar_status fails_in_the_middle(oar_group *g, void *arg)
{
    oar_module *layer[2] = { 0 }, *net;
    oar_linear_opts l = oar_linear_opts_init();
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_hook *hook;
    oar_tape *tape;

    l.no_bias = 1;
    l.dtype = OAR_F64;
    o.bucket_bytes = 64;
    CHECK_OK(make_linear(5, &layer[0]));
    CHECK_OK(oar_linear_create(OUT, OUT, 6, &l, &layer[1]));
    CHECK_OK(oar_tensor_fill(oar_module_param(layer[1], 0), 0.5));
    CHECK_OK(oar_sequential_create(2, layer, &net));
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(oar_tensor_on_grad(oar_module_param(net, 0), refuse, NULL, &hook));
    CHECK(oar_backward(tape, loss_of(tape, net, 1)) == OAR_E_PEER);
    oar_tape_reset(tape);
    oar_hook_remove(hook);
    oar_tensor_clear_grad(oar_module_param(net, 0));
    oar_tensor_clear_grad(oar_module_param(net, 1));
    CHECK_OK(oar_backward(tape, loss_of(tape, net, oar_group_rank(g))));
    CHECK_OK(grad_is(net, mean_rank(g)));
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void a_backward_that_failed_leaves_the_next_alone(void **state)
{
    ranks_all(3, fails_in_the_middle, NULL);
}

/* ---- around the wrapper -------------------------------------------------- */

/* The module itself, or another wrapper around it, is used in between. */
static oar_status around(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g);
    oar_module *inner, *one, *two;

    CHECK_OK(make_linear(5, &inner));
    CHECK_OK(oar_ddp_wrap(oar_module_retain(inner), g, NULL, &one));
    CHECK_OK(oar_ddp_wrap(oar_module_retain(inner), g, NULL, &two));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(pass(inner, rank)); /* nothing is reduced */
        CHECK_OK(grad_is(inner, rank));
        CHECK_OK(pass(one, rank));
        CHECK_OK(grad_is(inner, mean_rank(g)));
        CHECK_OK(pass(two, 2 * rank));
        CHECK_OK(grad_is(inner, 2 * mean_rank(g)));
        CHECK(passes_of(one) == i + 1 && passes_of(two) == i + 1);
    }
    oar_module_release(one);
    CHECK_OK(pass(two, rank));
    CHECK_OK(grad_is(inner, mean_rank(g)));
    oar_module_release(two);
    CHECK_OK(pass(inner, rank)); /* not referenced any more */
    CHECK_OK(grad_is(inner, rank));
    oar_module_release(inner);
    return OAR_OK;
}

static void only_passes_through_a_wrapper_are_its_own(void **state)
{
    ranks_all(3, around, NULL);
}

/* Rank 0 alone looks at what it has so far. */
static oar_status evaluate(oar_group *g, void *arg)
{
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_module *net;
    oar_tape *tape;

    o.broadcast_buffers = 1;
    CHECK_OK(oar_batch_norm_create(
        1, IN, OAR_OPTS(oar_batch_norm_opts, .dtype = OAR_F64), &net));
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK_OK(oar_tape_create(&tape));
    if (oar_group_rank(g) == 0) {
        oar_module_train(net, 0);
        oar_tape_record(tape, 0);
        CHECK(loss_of(tape, net, 1) != NULL);
        oar_tape_record(tape, 1);
        oar_module_train(net, 1);
    }
    CHECK(passes_of(net) == 0);
    oar_module_release(net); /* what is not recorded does not keep it */
    {
        oar_tensor *x = oar_full(NULL, OAR_F64, OAR_SHAPE(2), 1);
        CHECK_OK(oar_tensor_require_grad(x, 1));
        CHECK_OK(oar_backward(tape, oar_sum(tape, oar_scale(tape, x, 2))));
        oar_tape_reset(tape);
        oar_tensor_release(x);
    }
    oar_tape_destroy(tape);
    return OAR_OK;
}

static void a_forward_that_is_not_recorded_communicates_nothing(void **state)
{
    ranks_all(2, evaluate, NULL);
}

static oar_status recomputed(oar_group *g, void *arg)
{
    oar_module *net;
    oar_tape *tape;
    oar_tensor *x;

    CHECK_OK(make_net(g, NULL, &net));
    CHECK_OK(oar_tape_create(&tape));
    for (int i = 0; i < 3; i++) {
        x = oar_full(tape, OAR_F64, OAR_SHAPE(1, IN), oar_group_rank(g));
        CHECK_OK(
            oar_backward(tape, oar_sum(tape, oar_recompute(tape, net, x))));
        CHECK_OK(grad_is(net, mean_rank(g)));
        CHECK(passes_of(net) == i + 1);
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

/* A module that recomputes its child. */
static oar_tensor *again_forward(oar_tape *tape, oar_module *module,
                                 oar_tensor *x)
{
    return oar_recompute(tape, oar_module_child(module, 0), x);
}

static const oar_module_class again_class = { .size = sizeof again_class,
                                              .name = "again",
                                              .forward = again_forward };

/* What is recomputed has all its gradients in the first half, and is reduced
 * with the second; the wrapper is around the recomputation, or inside. */
static oar_status recomputed_in_halves(oar_group *g, void *arg)
{
    const int *inside = arg;
    oar_module *linear, *net;
    oar_tensor *x, *y;
    oar_tape *tape;

    CHECK_OK(make_linear(5, &linear));
    CHECK_OK(oar_module_create(&again_class, &net));
    if (*inside)
        CHECK_OK(oar_ddp_wrap(linear, g, NULL, &linear));
    CHECK_OK(oar_module_add_child(net, "inner", linear));
    if (!*inside)
        CHECK_OK(oar_ddp_wrap(net, g, NULL, &net));
    CHECK_OK(oar_tape_create(&tape));
    for (int i = 0; i < 3; i++) {
        x = oar_full(tape, OAR_F64, OAR_SHAPE(1, IN), oar_group_rank(g));
        y = oar_forward(tape, net, x);
        CHECK_OK(oar_backward_inputs(tape, 1, &y, NULL));
        CHECK_OK(oar_backward_weights(tape));
        CHECK_OK(grad_was(oar_module_param(net, 0), mean_rank(g)));
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void what_is_recomputed_in_halves_is_reduced(void **state)
{
    for (int inside = 0; inside < 2; inside++)
        ranks_all(3, recomputed_in_halves, &inside);
}

/* The rows of a stage of a zero-bubble pipeline: three micro-batches, each on
 * its own tape, of which the last to end reduces. */
static oar_status micro_batches_in_halves(oar_group *g, void *arg)
{
    enum { MICRO = 3 };
    static const struct {
        char act;
        int micro;
    } row[] = { { 'F', 0 }, { 'F', 1 }, { 'I', 0 }, { 'F', 2 }, { 'W', 0 },
                { 'I', 1 }, { 'I', 2 }, { 'W', 1 }, { 'W', 2 } };
    const int *recomputes = arg;
    oar_module *net;
    oar_tape *tape[MICRO];
    oar_tensor *y[MICRO];

    CHECK_OK(make_linear(5, &net));
    if (*recomputes) {
        oar_module *inner = net;

        CHECK_OK(oar_module_create(&again_class, &net));
        CHECK_OK(oar_module_add_child(net, "inner", inner));
    }
    CHECK_OK(oar_ddp_wrap(net, g, OAR_OPTS(oar_ddp_opts, .accumulate = MICRO),
                          &net));
    for (int m = 0; m < MICRO; m++)
        CHECK_OK(oar_tape_create(&tape[m]));
    for (int step = 0; step < 2; step++) {
        for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
            int m = row[i].micro;

            if (row[i].act == 'F') {
                oar_tensor *x = oar_full(tape[m], OAR_F64, OAR_SHAPE(1, IN),
                                         10 * oar_group_rank(g) + m);

                y[m] = oar_forward(tape[m], net, oar_tape_input(tape[m], x));
            } else if (row[i].act == 'I') {
                CHECK_OK(oar_backward_inputs(tape[m], 1, &y[m], NULL));
            } else {
                CHECK_OK(oar_backward_weights(tape[m]));
                oar_tape_reset(tape[m]);
            }
        }
        CHECK_OK(grad_is(net, MICRO * 10 * mean_rank(g) + 0 + 1 + 2));
        CHECK(passes_of(net) == step + 1);
    }
    for (int m = 0; m < MICRO; m++)
        oar_tape_destroy(tape[m]);
    oar_module_release(net);
    return OAR_OK;
}

static void micro_batches_in_halves_are_reduced_once(void **state)
{
    for (int recomputes = 0; recomputes < 2; recomputes++)
        ranks_all(2, micro_batches_in_halves, &recomputes);
}

static void a_wrapper_may_be_recomputed(void **state)
{
    ranks_all(3, recomputed, NULL);
}

/* ---- parameters ---------------------------------------------------------- */

static oar_tensor *both(oar_tape *tape, oar_module *module, oar_tensor *x)
{
    return oar_add(tape, oar_forward(tape, oar_module_child(module, 0), x),
                   oar_forward(tape, oar_module_child(module, 1), x));
}

static const oar_module_class both_class = { .size = sizeof both_class,
                                             .name = "both",
                                             .forward = both };

static oar_tensor *same_twice(oar_tape *tape, oar_module *module, oar_tensor *x)
{
    oar_tensor *w = oar_module_param(module, 0);

    return oar_linear(tape, x, w, NULL);
}

static const oar_module_class tied_class = { .size = sizeof tied_class,
                                             .name = "tied",
                                             .forward = same_twice };

/* One weight, registered in two modules. */
static oar_status shared_weight(oar_group *g, void *arg)
{
    oar_ddp_stats stats = oar_ddp_stats_init();
    oar_tensor *w = oar_full(NULL, OAR_F64, OAR_SHAPE(OUT, IN), 1);
    oar_module *net, *part;

    CHECK_OK(oar_module_create(&both_class, &net));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(oar_module_create(&tied_class, &part));
        CHECK_OK(oar_module_add_param(part, "weight", oar_tensor_retain(w)));
        CHECK_OK(oar_module_add_child(net, i == 0 ? "a" : "b", part));
    }
    CHECK_OK(oar_ddp_wrap(net, g, NULL, &net));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(pass(net, oar_group_rank(g)));
        CHECK_OK(grad_was(w, 2 * mean_rank(g)));
    }
    CHECK_OK(oar_ddp_read_stats(net, &stats));
    CHECK(stats.reduced_bytes == 128); /* a line of numbers, one of flags */
    oar_module_release(net);
    oar_tensor_release(w);
    return OAR_OK;
}

static void a_weight_in_two_places_is_reduced_once(void **state)
{
    ranks_all(3, shared_weight, NULL);
}

static oar_status make_pair(oar_module **net)
{
    oar_module *a, *b;

    CHECK_OK(oar_module_create(&both_class, net));
    CHECK_OK(make_linear(5, &a));
    CHECK_OK(make_linear(6, &b));
    CHECK_OK(oar_module_add_child(*net, "a", a));
    return oar_module_add_child(*net, "b", b);
}

/* Frozen before it is wrapped: is not reduced; it may not be trained later.
 * Frozen after that: it is left alone. */
static oar_status frozen(oar_group *g, void *arg)
{
    oar_ddp_stats stats = oar_ddp_stats_init();
    oar_module *net, *inner;
    oar_tape *tape;

    CHECK_OK(make_pair(&inner));
    CHECK_OK(oar_module_freeze(oar_module_child(inner, 1), 1));
    CHECK_OK(oar_ddp_wrap(oar_module_retain(inner), g, NULL, &net));
    CHECK_OK(pass(net, oar_group_rank(g)));
    CHECK_OK(grad_is(net, mean_rank(g)));
    CHECK(oar_tensor_grad(oar_module_param(net, 1)) == NULL);
    CHECK_OK(oar_ddp_read_stats(net, &stats));
    CHECK(stats.reduced_bytes == 128 && stats.unused == 0);
    CHECK_OK(oar_module_freeze(oar_module_child(inner, 1), 0));
    CHECK_OK(oar_tape_create(&tape));
    CHECK(fails_with(oar_backward(tape, loss_of(tape, net, 1)), OAR_E_STATE,
                     "parameter module.b.weight was frozen"));
    oar_tape_destroy(tape);
    oar_module_release(net);
    oar_tensor_clear_grad(oar_module_param(inner, 0));
    oar_tensor_clear_grad(oar_module_param(inner, 1));
    CHECK_OK(oar_ddp_wrap(inner, g, NULL, &net)); /* as it says */
    CHECK_OK(oar_module_freeze(oar_module_child(inner, 0), 1));
    CHECK_OK(pass(net, oar_group_rank(g)));
    CHECK(oar_tensor_grad(oar_module_param(net, 0)) == NULL);
    CHECK_OK(grad_was(oar_module_param(net, 1), mean_rank(g)));
    oar_module_release(net);
    return OAR_OK;
}

static void frozen_parameters_are_left_alone(void **state)
{
    ranks_all(3, frozen, NULL);
}

static oar_tensor *halve(oar_tape *tape, oar_module *module, oar_tensor *x)
{
    return oar_scale(tape, x, 0.5);
}

static const oar_module_class halve_class = { .size = sizeof halve_class,
                                              .name = "halve",
                                              .forward = halve };

static oar_status no_parameters(oar_group *g, void *arg)
{
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_ddp_stats stats = oar_ddp_stats_init();
    oar_tensor *x = oar_full(NULL, OAR_F64, OAR_SHAPE(1, 4), 3);
    oar_module *net;
    oar_tape *tape;

    o.check_every = 1;
    CHECK_OK(oar_module_create(&halve_class, &net));
    CHECK_OK(oar_ddp_wrap(net, g, &o, &net));
    CHECK_OK(oar_tensor_require_grad(x, 1));
    CHECK_OK(oar_tape_create(&tape));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(oar_backward(tape, oar_sum(tape, oar_forward(tape, net, x))));
        oar_tape_reset(tape);
    }
    CHECK_OK(oar_ddp_check_replicas(net));
    CHECK_OK(oar_ddp_read_stats(net, &stats));
    CHECK(stats.buckets == 0 && stats.reduced_bytes == 0);
    oar_tape_destroy(tape);
    oar_module_release(net);
    oar_tensor_release(x);
    return OAR_OK;
}

static void a_module_without_parameters_is_wrapped_too(void **state)
{
    ranks_all(1, no_parameters, NULL);
    ranks_all(3, no_parameters, NULL);
}

/* ---- optimizers ---------------------------------------------------------- */

static oar_status train(oar_group *g, int wrap_first, double *params)
{
    oar_module *net;
    oar_optim *optim;

    CHECK_OK(make_linear(5 + (uint64_t)oar_group_rank(g), &net));
    if (wrap_first)
        CHECK_OK(oar_ddp_wrap(net, g, NULL, &net));
    CHECK_OK(oar_adam_create(net, OAR_OPTS(oar_adam_opts, .lr = 0.1), &optim));
    if (!wrap_first)
        CHECK_OK(oar_ddp_wrap(net, g, NULL, &net));
    for (int i = 0; i < 5; i++) {
        CHECK_OK(pass(net, oar_group_rank(g) + i));
        CHECK_OK(oar_optim_step(optim));
        oar_optim_zero_grad(optim);
    }
    CHECK_OK(oar_tensor_read(oar_module_param(net, 0), OAR_F64, params));
    oar_module_release(net); /* before the optimizer */
    oar_optim_destroy(optim);
    return OAR_OK;
}

static oar_status before_or_after(oar_group *g, void *arg)
{
    double a[NUMBERS], b[NUMBERS];

    CHECK_OK(train(g, 0, a));
    CHECK_OK(train(g, 1, b));
    CHECK(memcmp(a, b, sizeof a) == 0);
    return OAR_OK;
}

static void an_optimizer_may_be_made_before_or_after_wrapping(void **state)
{
    ranks_all(1, before_or_after, NULL);
    ranks_all(3, before_or_after, NULL);
}

/* ---- dropping ------------------------------------------------------------ */

/* The tape keeps what was recorded on it, the wrapper included. */
static oar_status dropped_early(oar_group *g, void *arg)
{
    oar_module *inner, *net;
    oar_tensor *loss;
    oar_tape *tape;

    CHECK_OK(make_linear(5, &inner));
    CHECK_OK(oar_ddp_wrap(oar_module_retain(inner), g, NULL, &net));
    CHECK_OK(oar_tape_create(&tape));
    loss = loss_of(tape, net, oar_group_rank(g));
    oar_module_release(net);
    CHECK_OK(oar_backward(tape, loss));
    CHECK_OK(grad_is(inner, mean_rank(g)));
    oar_tape_destroy(tape);
    oar_module_release(inner);
    return OAR_OK;
}

static void a_wrapper_may_be_dropped_before_its_backward(void **state)
{
    ranks_all(3, dropped_early, NULL);
}

static void a_group_may_be_destroyed_before_its_wrapper(void **state)
{
    oar_module *net = NULL;
    oar_group *one;

    OK(oar_group_create(NULL, 0, 1, NULL, &one));
    OK(oar_batch_norm_create(
        1, IN, OAR_OPTS(oar_batch_norm_opts, .dtype = OAR_F64), &net));
    OK(oar_sync_batch_norm_convert(net, one, NULL));
    OK(oar_ddp_wrap(net, one, NULL, &net));
    oar_group_destroy(one);
    oar_module_release(net);
}

/* ---- mistakes ------------------------------------------------------------ */

static oar_status wrong_shape(oar_group *g, void *arg)
{
    oar_module *net;
    oar_tape *tape;
    oar_tensor *x;

    CHECK_OK(make_net(g, NULL, &net));
    CHECK_OK(oar_tape_create(&tape));
    x = oar_full(tape, OAR_F64, OAR_SHAPE(1, IN + 1), 1);
    CHECK(oar_forward(tape, net, x) == NULL);
    CHECK(oar_last_error()->status == OAR_E_SHAPE);
    oar_clear_error();
    CHECK(oar_forward(tape, net, NULL) == NULL);
    CHECK(oar_last_error()->status == OAR_E_ARG);
    oar_tape_destroy(tape);
    CHECK_OK(pass(net, oar_group_rank(g)));
    CHECK_OK(grad_is(net, mean_rank(g)));
    oar_module_release(net);
    return OAR_OK;
}

static void a_wrong_input_is_refused_and_the_next_is_right(void **state)
{
    ranks_all(3, wrong_shape, NULL);
}

static void wrapping_twice_is_refused(void **state)
{
    oar_module *net = NULL, *again = NULL, *layer[1];
    oar_group *one;

    OK(oar_group_create(NULL, 0, 1, NULL, &one));
    OK(make_net(one, NULL, &net));
    assert_fails_with(oar_ddp_wrap(oar_module_retain(net), one, NULL, &again),
                      OAR_E_STATE, "wrapped already");
    layer[0] = net;
    OK(oar_sequential_create(1, layer, &net));
    assert_fails_with(oar_ddp_wrap(net, one, NULL, &again), OAR_E_STATE,
                      "wrapped already");
    assert_null(again);
    oar_group_destroy(one);
}

static void nothing_is_written_without_a_place_for_it(void **state)
{
    oar_ddp_opts o = oar_ddp_opts_init();
    oar_module *net = NULL, *plain = NULL;
    oar_group *one;
    int active;

    o.weighted = 1;
    OK(oar_group_create(NULL, 0, 1, NULL, &one));
    OK(make_linear(5, &plain));
    assert_int_equal(oar_ddp_wrap(plain, one, NULL, NULL), OAR_E_ARG);
    OK(make_net(one, &o, &net));
    OK(make_linear(5, &plain));
    assert_int_equal(oar_ddp_read_stats(net, NULL), OAR_E_ARG);
    assert_int_equal(oar_ddp_join(net, 1, NULL), OAR_E_ARG);
    assert_int_equal(oar_ddp_join(plain, 1, &active), OAR_E_ARG);
    assert_int_equal(oar_ddp_weigh(net, -1), OAR_E_ARG);
    assert_int_equal(oar_ddp_weigh(net, NAN), OAR_E_ARG);
    assert_int_equal(oar_ddp_weigh(plain, 1), OAR_E_ARG);
    assert_int_equal(oar_batch_norm_dims(plain), 0);
    assert_int_equal(oar_batch_norm_dims(NULL), 0);
    oar_module_release(plain);
    oar_module_release(net);
    oar_group_destroy(one);
}

/* A class of the user's own that is called what a wrapper's is, with as little
 * memory behind it as there can be. */
static oar_tensor *pass_on(oar_tape *tape, oar_module *module, oar_tensor *x)
{
    return oar_forward(tape, oar_module_child(module, 0), x);
}

static const oar_module_class same_name_class = { .size =
                                                      sizeof same_name_class,
                                                  .name = "ddp",
                                                  .self_size = 1,
                                                  .forward = pass_on };

static oar_status make_same_name(oar_module **module)
{
    oar_module *part;

    CHECK_OK(oar_module_create(&same_name_class, module));
    CHECK_OK(make_linear(5, &part));
    return oar_module_add_child(*module, "part", part);
}

static void a_users_class_may_be_called_ddp(void **state)
{
    oar_ddp_stats stats = oar_ddp_stats_init();
    oar_module *mine;
    int active;

    OK(make_same_name(&mine));
    assert_fails_with(oar_ddp_no_sync_begin(mine), OAR_E_ARG, "not wrapped");
    assert_fails_with(oar_ddp_no_sync_end(mine), OAR_E_ARG, "not wrapped");
    assert_fails_with(oar_ddp_weigh(mine, 1), OAR_E_ARG, "not wrapped");
    assert_fails_with(oar_ddp_join(mine, 1, &active), OAR_E_ARG, "not wrapped");
    assert_fails_with(oar_ddp_read_stats(mine, &stats), OAR_E_ARG,
                      "not wrapped");
    assert_fails_with(oar_ddp_check_replicas(mine), OAR_E_ARG, "not wrapped");
    oar_module_release(mine);
}

static oar_status wrap_same_name(oar_group *g, void *arg)
{
    oar_module *net;

    CHECK_OK(make_same_name(&net));
    CHECK_OK(oar_ddp_wrap(net, g, NULL, &net));
    CHECK_OK(pass(net, oar_group_rank(g)));
    CHECK_OK(grad_is(net, mean_rank(g)));
    oar_module_release(net);
    return OAR_OK;
}

static void a_users_class_called_ddp_may_be_wrapped(void **state)
{
    ranks_all(3, wrap_same_name, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_library_calls_is_called_from_the_users_line),
        cmocka_unit_test(a_fault_in_backward_cites_the_users_line),
        cmocka_unit_test(two_forwards_and_one_backward_are_one_pass),
        cmocka_unit_test(tapes_may_be_interleaved),
        cmocka_unit_test(a_second_backward_is_refused_and_does_no_harm),
        cmocka_unit_test(a_backward_that_failed_leaves_the_next_alone),
        cmocka_unit_test(only_passes_through_a_wrapper_are_its_own),
        cmocka_unit_test(a_forward_that_is_not_recorded_communicates_nothing),
        cmocka_unit_test(a_wrapper_may_be_recomputed),
        cmocka_unit_test(what_is_recomputed_in_halves_is_reduced),
        cmocka_unit_test(micro_batches_in_halves_are_reduced_once),
        cmocka_unit_test(a_weight_in_two_places_is_reduced_once),
        cmocka_unit_test(frozen_parameters_are_left_alone),
        cmocka_unit_test(a_module_without_parameters_is_wrapped_too),
        cmocka_unit_test(an_optimizer_may_be_made_before_or_after_wrapping),
        cmocka_unit_test(a_wrapper_may_be_dropped_before_its_backward),
        cmocka_unit_test(a_group_may_be_destroyed_before_its_wrapper),
        cmocka_unit_test(a_wrong_input_is_refused_and_the_next_is_right),
        cmocka_unit_test(wrapping_twice_is_refused),
        cmocka_unit_test(nothing_is_written_without_a_place_for_it),
        cmocka_unit_test(a_users_class_may_be_called_ddp),
        cmocka_unit_test(a_users_class_called_ddp_may_be_wrapped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
