/* SPDX-License-Identifier: Apache-2.0 */
/* FSDP as it is used and misused: lazy models, other branches on each rank,
 * evaluation, clipping, backward in halves, and what is refused. */
#include "support/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/ddp.h>
#include <oarsong/fsdp.h>
#include <oarsong/layers.h>
#include <oarsong/models.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "support/leak_check.h"
#include "support/spread_gpt.h"

/* ---- a model that takes one of two ways ---------------------------------- */

enum { WIDTH = 5, ROWS = 4 };

typedef struct fork_self {
    int way;
} fork_self;

static oar_tensor *fork_forward(oar_tape *tape, oar_module *module,
                                oar_tensor *x)
{
    const fork_self *self = oar_module_self(module);

    return oar_forward(tape, oar_module_child(module, self->way), x);
}

static const oar_module_class fork_class = {
    .size = sizeof(oar_module_class),
    .name = "fork",
    .self_size = sizeof(fork_self),
    .forward = fork_forward,
};

static oar_status make_fork(oar_module **fork)
{
    oar_module *way;

    CHECK_OK(oar_module_create(&fork_class, fork));
    CHECK_OK(oar_linear_create(WIDTH, WIDTH, 1, NULL, &way));
    CHECK_OK(oar_module_add_child(*fork, "left", way));
    CHECK_OK(oar_linear_create(WIDTH, WIDTH, 2, NULL, &way));
    CHECK_OK(oar_module_add_child(*fork, "right", way));
    return OAR_OK;
}

static oar_tensor *fork_loss(oar_tape *tape, oar_module *model, int rank)
{
    oar_tensor *x = oar_uniform(tape, OAR_F32, OAR_SHAPE(ROWS, WIDTH),
                                (uint64_t)(rank + 9), -1, 1);
    oar_tensor *y = oar_forward(tape, model, x);

    return oar_mean(tape, oar_mul(tape, y, y));
}

static oar_fsdp_opts small_units(oar_hold hold)
{
    oar_fsdp_opts o = oar_fsdp_opts_init();

    o.hold = hold;
    o.least_bytes = 1;
    o.canonical = 1;
    return o;
}

/* ---- what works ---------------------------------------------------------- */

static oar_status start_lazily(oar_group *g, void *arg)
{
    oar_fsdp_opts o = small_units(*(oar_hold *)arg);
    oar_gpt_opts gpt = oar_gpt_opts_init();
    oar_module *plain, *lazy;

    gpt.width = 24;
    gpt.layers = 2;
    gpt.vocabulary = 30;
    CHECK_OK(oar_gpt_create(&gpt, &plain));
    oar_lazy(1);
    CHECK_OK(oar_gpt_create(&gpt, &lazy));
    oar_lazy(0);
    CHECK_OK(oar_fsdp_wrap(lazy, g, &o, &lazy));
    CHECK(oar_fsdp_units(lazy) == 3 && oar_fsdp_units(plain) == 0);
    CHECK(strcmp(oar_fsdp_unit_name(lazy, 0), "") == 0);
    CHECK(strcmp(oar_fsdp_unit_name(lazy, 2), "blocks.1") == 0);
    CHECK(oar_fsdp_unit_name(lazy, 3) == NULL);
    CHECK(oar_shards_units(oar_fsdp_shards(lazy)) == 3);
    CHECK(oar_fsdp_shards(plain) == NULL);
    CHECK(oar_fsdp_param_index(lazy, 1) == 1);
    CHECK(oar_fsdp_param_index(lazy, oar_module_params(lazy)) == -1);
    CHECK_OK(oar_fsdp_unshard(lazy, NULL));
    for (int i = 0; i < oar_module_params(plain); i++) {
        const oar_tensor *a = oar_module_param(plain, i);
        const oar_tensor *b = oar_module_param(lazy, i);

        CHECK(memcmp(oar_tensor_const_data(a), oar_tensor_const_data(b),
                     (size_t)oar_tensor_count(a) * sizeof(float)) == 0);
    }
    CHECK_OK(oar_fsdp_reshard(lazy, NULL));
    oar_module_release(lazy);
    oar_module_release(plain);
    return OAR_OK;
}

static void a_lazy_model_starts_with_the_same_bits(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int ranks = 1; ranks <= 3; ranks++) {
            assert_int_equal(ranks_run("native", ranks, NULL, start_lazily, &h),
                             OAR_OK);
            assert_int_equal(ranks_run("sim", ranks, NULL, start_lazily, &h),
                             OAR_OK);
        }
}

/* The gradient of each way is the mean over all ranks, those that went the
 * other way count as zero. arg: the hold; where units are gathered, all ranks
 * take the other way in every other step, which is not what was prefetched. */
static oar_status take_other_ways(oar_group *g, void *arg)
{
    oar_fsdp_opts o = small_units(*(const oar_hold *)arg);
    int by_rank = o.hold == OAR_HOLD_MAPPED;
    int rank = oar_group_rank(g), count;
    fork_self *first, *second;
    oar_module *ddp, *net;
    oar_tape *tape;
    oar_optim *a, *b;

    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(make_fork(&ddp));
    CHECK_OK(
        oar_ddp_wrap(ddp, g, OAR_OPTS(oar_ddp_opts, .canonical = 1), &ddp));
    CHECK_OK(make_fork(&net));
    o.prefetch = 2;
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    CHECK(oar_fsdp_units(net) == 3);
    first = oar_module_self(oar_module_child(ddp, 0));
    second = oar_module_self(oar_module_child(net, 0));
    CHECK_OK(oar_sgd_create(ddp, OAR_OPTS(oar_sgd_opts, .lr = 0.1), &a));
    oar_tensor *const *param = oar_fsdp_params(net, &count);
    CHECK_OK(oar_sgd_create_over(count, param,
                                 OAR_OPTS(oar_sgd_opts, .lr = 0.1), &b));
    for (int step = 0; step < 4; step++) {
        first->way = second->way = (by_rank ? rank : step) % 2;
        CHECK_OK(oar_backward(tape, fork_loss(tape, ddp, rank)));
        oar_tape_reset(tape);
        CHECK_OK(oar_optim_step(a));
        oar_optim_zero_grad(a);
        CHECK_OK(oar_backward(tape, fork_loss(tape, net, rank)));
        oar_tape_reset(tape);
        CHECK_OK(oar_optim_step(b));
        oar_optim_zero_grad(b);
    }
    CHECK_OK(oar_fsdp_unshard(net, NULL));
    for (int i = 0; i < oar_module_params(net); i++) {
        const oar_tensor *p = oar_module_param(net, i);
        CHECK(memcmp(oar_tensor_const_data(p),
                     oar_tensor_const_data(oar_module_param(ddp, i)),
                     (size_t)oar_tensor_count(p) * sizeof(float)) == 0);
    }
    CHECK_OK(oar_fsdp_reshard(net, NULL));
    oar_optim_destroy(a);
    oar_optim_destroy(b);
    oar_module_release(net);
    oar_module_release(ddp);
    oar_tape_destroy(tape);
    return OAR_OK;
}

static void ranks_take_other_ways_where_parameters_are_mapped(void **state)
{
    oar_hold hold = OAR_HOLD_MAPPED;

    assert_int_equal(ranks_run("native", 3, NULL, take_other_ways, &hold),
                     OAR_OK);
    assert_int_equal(ranks_run("sim", 2, NULL, take_other_ways, &hold), OAR_OK);
}

static void a_unit_that_was_not_expected_is_gathered_all_the_same(void **state)
{
    for (int h = OAR_HOLD_HOST; h <= OAR_HOLD_OWN; h++) {
        assert_int_equal(ranks_run("native", 3, NULL, take_other_ways, &h),
                         OAR_OK);
        assert_int_equal(ranks_run("sim", 2, NULL, take_other_ways, &h),
                         OAR_OK);
    }
}

static oar_status differ_where_gathered(oar_group *g, void *arg)
{
    oar_fsdp_opts o = small_units(OAR_HOLD_OWN);
    int rank = oar_group_rank(g);
    oar_module *net;
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(make_fork(&net));
    ((fork_self *)oar_module_self(net))->way = rank % 2;
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    CHECK(fork_loss(tape, net, rank) == NULL);
    CHECK(oar_last_error()->status == OAR_E_MISMATCH);
    CHECK(strstr(oar_last_error_text(), "unit \"left\"") != NULL);
    CHECK(strstr(oar_last_error_text(), "unit \"right\"") != NULL);
    oar_tape_destroy(tape);
    oar_module_release(net);
    return oar_barrier(g, NULL, NULL);
}

static void other_ways_are_a_mismatch_where_units_are_gathered(void **state)
{
    assert_int_equal(ranks_run("native", 2, NULL, differ_where_gathered, NULL),
                     OAR_OK);
}

/* Rank 1 runs forward on its own, recorded or not, and nobody waits. */
static oar_status evaluate_alone(oar_group *g, void *arg)
{
    oar_fsdp_opts o = small_units(OAR_HOLD_MAPPED);
    int rank = oar_group_rank(g);
    oar_module *net;
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(make_fork(&net));
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    for (int i = 0; rank == 1 && i < 3; i++) {
        CHECK(fork_loss(tape, net, rank) != NULL);
        oar_tape_reset(tape);
        oar_tape_record(tape, 0);
        CHECK(fork_loss(tape, net, rank) != NULL);
        oar_tape_record(tape, 1);
        oar_tape_reset(tape);
    }
    CHECK_OK(oar_backward(tape, fork_loss(tape, net, rank)));
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void one_rank_may_evaluate_alone(void **state)
{
    assert_int_equal(ranks_run("native", 3, NULL, evaluate_alone, NULL),
                     OAR_OK);
}

/* Leaves the gradients of two models, one trained in halves, in their
 * shards. */
static oar_status run_halves(oar_group *g, void *arg)
{
    oar_fsdp_opts o = small_units(*(oar_hold *)arg);
    int rank = oar_group_rank(g), count[2];
    oar_tensor *const *param[2];
    double norm[2];
    oar_module *net[2];
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    for (int i = 0; i < 2; i++) {
        oar_tensor *loss;

        CHECK_OK(make_fork(&net[i]));
        CHECK_OK(oar_fsdp_wrap(net[i], g, &o, &net[i]));
        loss = fork_loss(tape, net[i], rank);
        if (i == 0) {
            CHECK_OK(oar_backward(tape, loss));
        } else {
            CHECK_OK(oar_backward_inputs(tape, 1, &loss, NULL));
            CHECK_OK(oar_backward_weights(tape));
        }
        oar_tape_reset(tape);
        param[i] = oar_fsdp_params(net[i], &count[i]);
        CHECK_OK(oar_fsdp_clip_grad_norm(net[i], 1e-3, &norm[i]));
    }
    CHECK(count[0] == count[1] && norm[0] == norm[1] && norm[0] > 1e-3);
    for (int k = 0; k < count[0]; k++) {
        const oar_tensor *a = oar_tensor_grad(param[0][k]);
        const oar_tensor *b = oar_tensor_grad(param[1][k]);

        CHECK((a == NULL) == (b == NULL));
        CHECK(a == NULL ||
              memcmp(oar_tensor_const_data(a), oar_tensor_const_data(b),
                     (size_t)oar_tensor_count(a) * sizeof(float)) == 0);
    }
    oar_module_release(net[0]);
    oar_module_release(net[1]);
    oar_tape_destroy(tape);
    return OAR_OK;
}

static void backward_in_halves_leaves_the_same(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        assert_int_equal(ranks_run("native", 2, NULL, run_halves, &h), OAR_OK);
}

/* The norm is that of all gradients, as DDP's is. */
static oar_status clip(oar_group *g, void *arg)
{
    oar_fsdp_opts o = small_units(OAR_HOLD_AUTO);
    int rank = oar_group_rank(g);
    double ours, ddps, all = 0;
    oar_tensor *param[8];
    oar_module *ddp, *net;
    oar_tape *tape;
    int count;

    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(make_fork(&ddp));
    CHECK_OK(
        oar_ddp_wrap(ddp, g, OAR_OPTS(oar_ddp_opts, .canonical = 1), &ddp));
    CHECK_OK(make_fork(&net));
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    CHECK_OK(oar_backward(tape, fork_loss(tape, ddp, rank)));
    oar_tape_reset(tape);
    CHECK_OK(oar_backward(tape, fork_loss(tape, net, rank)));
    for (int i = 0; i < oar_module_params(ddp); i++)
        param[i] = oar_module_param(ddp, i);
    CHECK_OK(oar_clip_grad_norm(oar_module_params(ddp), param, 0.01, &ddps));
    CHECK_OK(oar_fsdp_clip_grad_norm(net, 0.01, &ours));
    CHECK(fabs(ours - ddps) < 1e-6 * ddps);
    oar_tensor *const *piece = oar_fsdp_params(net, &count);
    for (int i = 0; i < count; i++) {
        double squares = 0;
        if (oar_tensor_grad(piece[i]) != NULL)
            CHECK_OK(oar_grad_squares(1, &piece[i], &squares));
        all += squares;
    }
    CHECK_OK(
        oar_all_reduce(g, oar_span_of(&all, 1, OAR_F64), OAR_SUM, NULL, NULL));
    CHECK(fabs(sqrt(all) - 0.01) < 1e-6);
    oar_tape_destroy(tape);
    oar_module_release(net);
    oar_module_release(ddp);
    return OAR_OK;
}

static void clipping_counts_all_shards(void **state)
{
    ranks_all(3, clip, NULL);
}

enum { INS = 41, OUTS = 61 }; /* more than two pages */

/* Says no on every rank, once. */
static oar_status refuse_once(oar_optim *optim, void *arg)
{
    int *calls = arg;

    return ++*calls == 1 ? OAR_E_DATA : OAR_OK;
}

/* Makes Adam over the shards; all ranks together have its state once. */
static oar_status make_adam(oar_group *g, const oar_module *net,
                            oar_optim **adam)
{
    double numbers = 0, own;
    int count;
    oar_tensor *const *shard = oar_fsdp_params(net, &count);

    CHECK_OK(oar_adam_create_over(count, shard, NULL, adam));
    for (int i = 0; i < count; i++) {
        const oar_tensor *state = oar_optim_state(*adam, i, 0);

        CHECK(oar_tensor_count(state) == oar_tensor_count(shard[i]));
        numbers += (double)oar_tensor_count(state);
    }
    own = numbers;
    CHECK_OK(oar_all_reduce(g, oar_span_of(&numbers, 1, OAR_F64), OAR_SUM, NULL,
                            NULL));
    CHECK(numbers == INS * OUTS + OUTS);
    CHECK(own <= numbers / oar_group_size(g) + 2048); /* cut at pages */
    return OAR_OK;
}

static oar_status refuse_a_step(oar_group *g, void *arg)
{
    float before[INS * OUTS], after[INS * OUTS];
    int calls = 0;
    oar_optim *adam;
    oar_module *net;
    oar_hook *hook;
    oar_tape *tape;

    CHECK_OK(oar_linear_create(INS, OUTS, 3, NULL, &net));
    CHECK_OK(oar_fsdp_wrap(net, g, arg, &net));
    CHECK_OK(make_adam(g, net, &adam));
    CHECK_OK(oar_optim_on_step(adam, refuse_once, &calls, &hook));
    CHECK_OK(oar_fsdp_read_param(net, "weight", OAR_F32, before));
    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(oar_backward(
        tape, oar_sum(tape, oar_forward(tape, net,
                                        oar_ones(tape, OAR_F32,
                                                 OAR_SHAPE(ROWS, INS))))));
    CHECK(oar_optim_step(adam) == OAR_E_DATA);
    CHECK_OK(oar_fsdp_read_param(net, "weight", OAR_F32, after));
    CHECK(memcmp(before, after, sizeof before) == 0);
    CHECK_OK(oar_barrier(g, NULL, NULL)); /* all ranks have looked */
    CHECK_OK(oar_optim_step(adam));
    CHECK(calls == 2 && oar_optim_steps(adam) == 1);
    CHECK_OK(oar_shards_publish(oar_fsdp_shards(net))); /* after the look */
    CHECK_OK(oar_fsdp_read_param(net, "weight", OAR_F32, after));
    for (int i = 0; i < INS * OUTS; i++) /* one step, as the gradients agree */
        CHECK(fabsf(before[i] - after[i] - 1e-3f) < 1e-6f);
    oar_tape_destroy(tape);
    oar_hook_remove(hook);
    oar_optim_destroy(adam);
    oar_module_release(net);
    return OAR_OK;
}

static void a_step_that_a_hook_refuses_changes_nothing(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int stage = 0; stage <= 2; stage++) {
            oar_fsdp_opts o = small_units((oar_hold)h);

            o.stage = (oar_zero_stage)stage;
            assert_int_equal(ranks_run("native", 3, NULL, refuse_a_step, &o),
                             OAR_OK);
        }
}

/* ---- what is refused ----------------------------------------------------- */

static oar_status misuse(oar_group *g, void *arg)
{
    static const char *const nowhere[] = { "middle", NULL };
    oar_fsdp_opts o = small_units(OAR_HOLD_OWN);
    int rank = oar_group_rank(g), count;
    oar_tensor *x, *loss;
    oar_module *net, *again = NULL;
    oar_optim *sgd = NULL;
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    CHECK(oar_fsdp_wrap(NULL, g, NULL, &again) == OAR_E_ARG);
    CHECK_OK(make_fork(&net));
    o.units = nowhere;
    CHECK(oar_fsdp_wrap(net, g, &o, &again) == OAR_E_NOT_FOUND);
    CHECK(strstr(oar_last_error_text(), "middle") != NULL && again == NULL);
    o.units = NULL;
    CHECK_OK(make_fork(&net));
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    oar_module_retain(net);
    CHECK(oar_fsdp_wrap(net, g, &o, &again) == OAR_E_STATE);
    oar_module_retain(net);
    CHECK(oar_ddp_wrap(net, g, NULL, &again) == OAR_E_STATE);
    CHECK(oar_sgd_create(net, NULL, &sgd) == OAR_E_STATE);
    CHECK(strstr(oar_last_error_text(), "oar_fsdp_params") != NULL);
    /* a parameter outside its unit */
    x = oar_uniform(tape, OAR_F32, OAR_SHAPE(2, WIDTH), 1, 0, 1);
    CHECK(oar_matmul(tape, x, oar_module_param(net, 0)) == NULL);
    CHECK(oar_last_error()->status == OAR_E_STATE);
    CHECK(strstr(oar_last_error_text(), "unit \"left\"") != NULL);
    CHECK(oar_fsdp_unshard(net, "middle") == OAR_E_NOT_FOUND);
    CHECK(oar_fsdp_reshard(net, "left") == OAR_E_STATE);
    CHECK(oar_fsdp_no_sync_end(net) == OAR_E_STATE);
    CHECK(oar_fsdp_params(oar_module_child(net, 0), &count) == NULL);
    /* stepped between forward and backward */
    oar_tensor *const *param = oar_fsdp_params(net, &count);
    CHECK_OK(oar_sgd_create_over(count, param, OAR_OPTS(oar_sgd_opts, .lr = 1),
                                 &sgd));
    CHECK_OK(oar_backward(tape, fork_loss(tape, net, rank)));
    oar_tape_reset(tape);
    loss = fork_loss(tape, net, rank);
    CHECK_OK(oar_optim_step(sgd));
    CHECK(oar_backward(tape, loss) == OAR_E_STATE || count == 0);
    oar_optim_destroy(sgd);
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void wrong_use_is_refused(void **state)
{
    assert_int_equal(ranks_run("native", 1, NULL, misuse, NULL), OAR_OK);
}

/* A module whose forward fails on one rank: the others are told why. */
static oar_status fail_on_one(oar_group *g, void *arg)
{
    oar_fsdp_opts o = small_units(*(oar_hold *)arg);
    int rank = oar_group_rank(g);
    oar_status status = OAR_OK;
    oar_tensor *x, *loss;
    oar_module *net;
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    CHECK_OK(make_fork(&net));
    CHECK_OK(oar_fsdp_wrap(net, g, &o, &net));
    x = oar_uniform(tape, OAR_F32, OAR_SHAPE(2, rank == 1 ? WIDTH + 1 : WIDTH),
                    1, 0, 1);
    loss = oar_forward(tape, net, x);
    if (rank == 1)
        CHECK(loss == NULL && oar_last_error()->status == OAR_E_SHAPE);
    for (int i = 0; i < 3 && status == OAR_OK && rank != 1; i++) {
        if (i > 0 || loss == NULL)
            loss = fork_loss(tape, net, rank);
        else
            loss = oar_mean(tape, loss);
        status =
            loss != NULL ? oar_backward(tape, loss) : oar_last_error()->status;
        oar_tape_reset(tape);
    }
    CHECK(rank == 1 || status != OAR_OK);
    oar_tape_destroy(tape);
    oar_module_release(net);
    return OAR_OK;
}

static void a_failure_on_one_rank_ends_the_pass_on_all(void **state)
{
    oar_hold hold = OAR_HOLD_OWN;

    assert_int_equal(ranks_run("native", 3, NULL, fail_on_one, &hold), OAR_OK);
    assert_int_equal(ranks_run("sim", 3, NULL, fail_on_one, &hold), OAR_OK);
}

/* One rank's units are nowhere in its model. */
static oar_status refuse_on_one(oar_group *g, void *arg)
{
    static const char *const nowhere[] = { "middle", NULL };
    oar_fsdp_opts o = small_units(OAR_HOLD_AUTO);
    int rank = oar_group_rank(g);
    oar_module *net, *wrapped = NULL;
    oar_status status;

    CHECK_OK(make_fork(&net));
    o.units = rank == 1 ? nowhere : NULL;
    status = oar_fsdp_wrap(net, g, &o, &wrapped);
    CHECK(status == OAR_E_NOT_FOUND);
    CHECK(strstr(oar_last_error_text(), rank == 1 ? "middle" : "rank 1"));
    CHECK(wrapped == NULL);
    return oar_barrier(g, NULL, NULL); /* the group goes on */
}

static void a_rank_that_cannot_wrap_is_named_to_the_others(void **state)
{
    ranks_all(3, refuse_on_one, NULL);
}

static oar_status wrap_alone(void *arg)
{
    oar_fsdp_opts o = small_units(*(oar_hold *)arg);

    return fsdp_train_alone(&o, 1);
}

static void every_failing_allocation_is_reported(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h += 2) {
        assert_int_equal(wrap_alone(&h), OAR_OK); /* segments are kept */
        fail_each_allocation(wrap_alone, &h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lazy_model_starts_with_the_same_bits),
        cmocka_unit_test(ranks_take_other_ways_where_parameters_are_mapped),
        cmocka_unit_test(a_unit_that_was_not_expected_is_gathered_all_the_same),
        cmocka_unit_test(other_ways_are_a_mismatch_where_units_are_gathered),
        cmocka_unit_test(one_rank_may_evaluate_alone),
        cmocka_unit_test(backward_in_halves_leaves_the_same),
        cmocka_unit_test(clipping_counts_all_shards),
        cmocka_unit_test(a_step_that_a_hook_refuses_changes_nothing),
        cmocka_unit_test(wrong_use_is_refused),
        cmocka_unit_test(a_failure_on_one_rank_ends_the_pass_on_all),
        cmocka_unit_test(a_rank_that_cannot_wrap_is_named_to_the_others),
        cmocka_unit_test(every_failing_allocation_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
