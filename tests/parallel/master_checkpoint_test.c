/* SPDX-License-Identifier: Apache-2.0 */
/* Master weights in checkpoints: a bf16 run that stops and goes on, plain or
 * over shards, on any number of ranks, is the run that did not stop. */
#include "support/ranks.h"

#include <stdio.h>
#include <string.h>

#include <oarsong/oarsong.h>

#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/runs_folder.h"

enum { WIDTH = 7, HIDDEN = 901, ROWS = 5, STOP = 6, STEPS = 15 };

typedef struct half_run {
    oar_module *net;
    oar_optim *optim;
    oar_state *state;
    int64_t step;
} half_run;

/* stage: 1 or 2, what FSDP spreads; 0: nothing, by DDP. */
static oar_status make_run(half_run *t, oar_group *g, int stage, uint64_t seed)
{
    const oar_adam_opts *adam =
        OAR_OPTS(oar_adam_opts, .lr = 1e-3, .master_weights = 1);
    oar_linear_opts half = { .size = sizeof half, .dtype = OAR_BF16 };
    oar_tensor *const *shard;
    oar_module *layer[3], *inner;
    int shards;

    *t = (half_run){ 0 };
    CHECK_OK(oar_linear_create(WIDTH, HIDDEN, seed, &half, &layer[0]));
    CHECK_OK(oar_relu_create(&layer[1]));
    CHECK_OK(oar_linear_create(HIDDEN, 3, seed + 2, &half, &layer[2]));
    CHECK_OK(oar_sequential_create(3, layer, &inner));
    CHECK_OK(stage == 0
                 ? oar_ddp_wrap(inner, g, NULL, &t->net)
                 : oar_fsdp_wrap(
                       inner, g,
                       OAR_OPTS(oar_fsdp_opts, .stage = (oar_zero_stage)stage),
                       &t->net));
    CHECK_OK(oar_state_create(&t->state));
    CHECK_OK(oar_state_add_module(t->state, t->net, NULL));
    shard = oar_fsdp_params(t->net, &shards);
    CHECK_OK(stage == 0
                 ? oar_adamw_create(t->net, adam, &t->optim)
                 : oar_adamw_create_over(shards, shard, adam, &t->optim));
    CHECK_OK(oar_state_add_optim(t->state, t->optim, t->net, NULL));
    return oar_state_add_i64(t->state, "step", &t->step);
}

static void drop_run(half_run *t)
{
    oar_state_destroy(t->state);
    oar_optim_destroy(t->optim);
    oar_module_release(t->net);
}

/* All ranks see the same rows, so that their mean is what each has. */
static oar_status train(half_run *t, int64_t end)
{
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    for (; t->step < end; t->step++) {
        oar_tensor *x = oar_uniform(tape, OAR_BF16, OAR_SHAPE(ROWS, WIDTH),
                                    10 + (uint64_t)t->step, -1, 1);
        oar_tensor *y = oar_uniform(tape, OAR_BF16, OAR_SHAPE(ROWS, 3),
                                    90 + (uint64_t)t->step, -1, 1);

        CHECK_OK(
            oar_backward(tape, oar_mse(tape, oar_forward(tape, t->net, x), y)));
        CHECK_OK(oar_optim_step(t->optim));
        oar_optim_zero_grad(t->optim);
        oar_tape_reset(tape);
    }
    oar_tape_destroy(tape);
    return OAR_OK;
}

static oar_status save_first_half(oar_group *g, void *arg)
{
    half_run t;
    oar_checkpoint *runs;

    CHECK_OK(make_run(&t, g, *(const int *)arg, 1));
    CHECK_OK(train(&t, STOP));
    CHECK_OK(oar_checkpoint_open(
        g, runs_path, OAR_OPTS(oar_checkpoint_opts, .no_sync = 1), &runs));
    CHECK_OK(oar_checkpoint_save(runs, t.state, t.step, NULL));
    oar_checkpoint_close(runs);
    drop_run(&t);
    return OAR_OK;
}

static oar_status finish_run(oar_group *g, void *arg)
{
    int stage = *(const int *)arg;
    half_run whole, t;
    oar_checkpoint *runs;

    CHECK_OK(make_run(&whole, g, 0, 1));
    CHECK_OK(train(&whole, STEPS));
    CHECK_OK(make_run(&t, g, stage, 77)); /* other numbers */
    CHECK_OK(oar_checkpoint_open(
        g, runs_path, OAR_OPTS(oar_checkpoint_opts, .read_only = 1), &runs));
    CHECK_OK(oar_checkpoint_load(runs, t.state, OAR_NEWEST, NULL));
    CHECK(t.step == STOP);
    CHECK_OK(train(&t, STEPS));
    if (stage != 0)
        CHECK_OK(oar_fsdp_unshard(t.net, NULL));
    for (int i = 0; i < oar_module_params(whole.net); i++) {
        const oar_tensor *a = oar_module_param(whole.net, i);
        const oar_tensor *b = oar_module_param(t.net, i);

        CHECK(memcmp(oar_tensor_const_data(a), oar_tensor_const_data(b),
                     (size_t)oar_tensor_count(a) * 2) == 0);
        if (stage == 0)
            CHECK(memcmp(oar_tensor_data(oar_optim_state(t.optim, i, 2)),
                         oar_tensor_data(oar_optim_state(whole.optim, i, 2)),
                         (size_t)oar_tensor_count(a) * sizeof(float)) == 0);
    }
    if (stage != 0)
        CHECK_OK(oar_fsdp_reshard(t.net, NULL));
    oar_checkpoint_close(runs);
    drop_run(&t);
    drop_run(&whole);
    return OAR_OK;
}

static void a_bf16_run_with_masters_goes_on_where_another_stopped(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++) {
        int stage = n % 3;

        assert_int_equal(ranks_run("sim", n, NULL, save_first_half, &stage),
                         OAR_OK);
        for (int m = 1; m <= 3; m++) {
            stage = (n + m) % 3;
            assert_int_equal(ranks_run("sim", m, NULL, finish_run, &stage),
                             OAR_OK);
        }
        runs_folder_renew();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            a_bf16_run_with_masters_goes_on_where_another_stopped,
            runs_folder_make, runs_folder_remove),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
