/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of what FSDP spreads over the ranks: a run that stops and goes on
 * is the run that did not stop, bit for bit, also if other numbers of ranks,
 * other holds and stages, DDP or a plain module have loaded and saved it in
 * between. */
#include "support/ranks.h"

#include <stdio.h>
#include <string.h>

#include <oarsong/checkpoint.h>
#include <oarsong/ddp.h>
#include <oarsong/fsdp.h>
#include <oarsong/layers.h>
#include <oarsong/models.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/runs_folder.h"

enum { VOCABULARY = 19, CONTEXT = 7, ROWS = 3, STOP = 3, STEPS = 6 };

typedef enum wrapping { FSDP, DDP, PLAIN } wrapping;

/* How a run is made. */
typedef struct spread_kind {
    wrapping wrap;
    oar_hold hold;
    oar_zero_stage stage;
    int lazy; /* saves copy while the run goes on */
    int freezes;
    uint64_t seed;
} spread_kind;

typedef struct spread_run {
    oar_group *group;
    oar_module *net; /* wrapped */
    oar_optim *optim;
    oar_state *state;
    int64_t step;
} spread_run;

/* ---- a run --------------------------------------------------------------- */

static oar_status make_gpt(const spread_kind *k, oar_module **gpt)
{
    oar_gpt_opts o = oar_gpt_opts_init();

    o.vocabulary = VOCABULARY;
    o.context = CONTEXT;
    o.width = 24;
    o.layers = 2;
    o.heads = 3;
    o.tied = 1;
    o.dropout = 0.1;
    o.seed = 5 + k->seed;
    CHECK_OK(oar_gpt_create(&o, gpt));
    if (k->freezes)
        CHECK_OK(
            oar_module_freeze(oar_module_find_module(*gpt, "blocks.1"), 1));
    return OAR_OK;
}

static oar_status wrap_gpt(const spread_kind *k, spread_run *r)
{
    oar_fsdp_opts o = oar_fsdp_opts_init();

    CHECK_OK(make_gpt(k, &r->net));
    if (k->wrap == PLAIN)
        return OAR_OK;
    if (k->wrap == DDP)
        return oar_ddp_wrap(r->net, r->group,
                            OAR_OPTS(oar_ddp_opts, .canonical = 1), &r->net);
    o.hold = k->hold;
    o.stage = k->stage;
    o.least_bytes = 1;
    o.canonical = 1;
    return oar_fsdp_wrap(r->net, r->group, &o, &r->net);
}

static oar_status make_run(oar_group *g, const spread_kind *k, spread_run *r)
{
    const oar_adam_opts *adam = OAR_OPTS(oar_adam_opts, .lr = 1e-2);
    oar_tensor *const *shard;
    int shards;

    *r = (spread_run){ .group = g };
    CHECK_OK(wrap_gpt(k, r));
    CHECK_OK(oar_state_create(&r->state));
    CHECK_OK(oar_state_add_module(r->state, r->net, NULL));
    shard = oar_fsdp_params(r->net, &shards);
    CHECK_OK(shard == NULL
                 ? oar_adamw_create(r->net, adam, &r->optim)
                 : oar_adamw_create_over(shards, shard, adam, &r->optim));
    CHECK_OK(oar_state_add_optim(r->state, r->optim, r->net, NULL));
    return oar_state_add_i64(r->state, "step", &r->step);
}

static void drop_run(spread_run *r)
{
    oar_state_destroy(r->state);
    oar_optim_destroy(r->optim);
    oar_module_release(r->net);
}

static oar_status train_to(spread_run *r, int64_t end)
{
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    for (; r->step < end; r->step++) {
        uint64_t seed = (uint64_t)(100 * r->step + oar_group_rank(r->group));
        oar_tensor *x = oar_uniform(tape, OAR_I64, OAR_SHAPE(ROWS, CONTEXT),
                                    seed, 0, VOCABULARY);
        oar_tensor *y = oar_uniform(tape, OAR_I64, OAR_SHAPE(ROWS * CONTEXT),
                                    seed + 50, 0, VOCABULARY);

        CHECK_OK(oar_backward(
            tape, oar_cross_entropy(tape, oar_forward(tape, r->net, x), y)));
        oar_tape_reset(tape);
        CHECK_OK(oar_optim_step(r->optim));
        oar_optim_zero_grad(r->optim);
    }
    oar_tape_destroy(tape);
    return OAR_OK;
}

static int same_bits(const oar_tensor *a, const oar_tensor *b)
{
    return oar_tensor_count(a) == oar_tensor_count(b) &&
           memcmp(oar_tensor_const_data(a), oar_tensor_const_data(b),
                  (size_t)oar_tensor_count(a) *
                      oar_dtype_size(oar_tensor_dtype(a))) == 0;
}

static oar_status compare_params(oar_module *a, oar_module *b)
{
    CHECK_OK(oar_fsdp_unshard(a, NULL));
    CHECK_OK(oar_fsdp_unshard(b, NULL));
    for (int i = 0; i < oar_module_params(a); i++)
        CHECK(same_bits(oar_module_param(a, i), oar_module_param(b, i)));
    CHECK_OK(oar_fsdp_reshard(a, NULL));
    CHECK_OK(oar_fsdp_reshard(b, NULL));
    return OAR_OK;
}

static oar_status compare(spread_run *a, spread_run *b)
{
    CHECK(a->step == b->step);
    CHECK(oar_optim_steps(a->optim) == oar_optim_steps(b->optim));
    CHECK_OK(compare_params(a->net, b->net));
    for (int i = 0; i < oar_module_counters(a->net); i++)
        CHECK(*oar_module_counter(a->net, i) == *oar_module_counter(b->net, i));
    CHECK(oar_optim_params(a->optim) == oar_optim_params(b->optim));
    for (int i = 0; i < oar_optim_params(a->optim); i++)
        for (int slot = 0; oar_optim_state_name(a->optim, slot) != NULL; slot++)
            CHECK(same_bits(oar_optim_state(a->optim, i, slot),
                            oar_optim_state(b->optim, i, slot)));
    return OAR_OK;
}

/* ---- stopping and going on ----------------------------------------------- */

static const oar_checkpoint_opts quick = { .size = sizeof quick,
                                           .no_sync = 1,
                                           .check_replicas = 1 };

static oar_status train_and_save(oar_group *g, void *arg)
{
    const spread_kind *k = arg;
    oar_save_opts o = oar_save_opts_init();
    oar_checkpoint *runs;
    spread_run r;

    o.background = o.lazy = k->lazy;
    CHECK_OK(make_run(g, k, &r));
    CHECK_OK(train_to(&r, STOP));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_save(runs, r.state, r.step, &o));
    CHECK_OK(train_to(&r, STOP + 2)); /* what is saved stays as it was */
    CHECK_OK(oar_checkpoint_wait(runs));
    oar_checkpoint_close(runs);
    drop_run(&r);
    return OAR_OK;
}

/* Goes on from what the newest generation has, and compares with a run that did
 * not stop. */
static oar_status load_and_compare(oar_group *g, void *arg)
{
    spread_kind *k = arg, other = *k;
    oar_checkpoint *runs;
    spread_run whole, resumed;

    other.seed = 77;
    CHECK_OK(make_run(g, k, &whole));
    CHECK_OK(train_to(&whole, STEPS));
    CHECK_OK(make_run(g, &other, &resumed));
    CHECK_OK(train_to(&resumed, 1)); /* what is loaded replaces all of it */
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_load(runs, resumed.state, OAR_NEWEST, NULL));
    CHECK(resumed.step == STOP);
    CHECK_OK(train_to(&resumed, STEPS));
    CHECK_OK(compare(&whole, &resumed));
    oar_checkpoint_close(runs);
    drop_run(&resumed);
    drop_run(&whole);
    return OAR_OK;
}

/* Loads the newest and saves it again, on other ranks. */
static oar_status move(oar_group *g, void *arg)
{
    spread_kind other = *(spread_kind *)arg;
    oar_checkpoint *runs;
    int64_t step;
    spread_run r;

    other.seed = 77;
    CHECK_OK(make_run(g, &other, &r));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_newest(runs, &step));
    CHECK_OK(oar_checkpoint_load(runs, r.state, OAR_NEWEST, NULL));
    CHECK_OK(oar_checkpoint_save(runs, r.state, step + 1, NULL));
    oar_checkpoint_close(runs);
    drop_run(&r);
    return OAR_OK;
}

static void run_ranks(const char *backend, int ranks, oar_rank_fn fn,
                      spread_kind *k)
{
    if (ranks_run(backend, ranks, NULL, fn, k) != OAR_OK)
        fail_msg("%s, %d ranks, wrapping %d, hold %d, stage %d: %s", backend,
                 ranks, (int)k->wrap, (int)k->hold, (int)k->stage,
                 oar_last_error_text());
}

static void a_run_that_stops_and_goes_on_is_the_run_that_did_not(void **state)
{
    static const char *const backend[] = { "sim", "native" };

    for (int b = 0; b < 2; b++)
        for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
            for (int stage = 0; stage <= 2; stage++) {
                spread_kind k = { .hold = (oar_hold)h,
                                  .stage = (oar_zero_stage)stage,
                                  .lazy = (h + stage) % 2,
                                  .freezes = stage == 2 };

                run_ranks(backend[b], 3, train_and_save, &k);
                run_ranks(backend[b], 3, load_and_compare, &k);
                runs_folder_renew();
            }
}

static void n_ranks_to_m_and_back_go_on_bitwise(void **state)
{
    for (int n = 1; n <= 4; n++) {
        spread_kind k = { .hold = n % 2 ? OAR_HOLD_MAPPED : OAR_HOLD_OWN };

        run_ranks("sim", n, train_and_save, &k);
        for (int m = 1; m <= 4; m++) {
            spread_kind other = { .hold = (n + m) % 2 ? OAR_HOLD_MAPPED
                                                      : OAR_HOLD_OWN };

            run_ranks("sim", m, move, &other);
            run_ranks("sim", n, load_and_compare, &k);
        }
        runs_folder_renew();
    }
}

static void fsdp_to_others_and_back_goes_on_bitwise(void **state)
{
    static const struct {
        wrapping wrap;
        oar_zero_stage stage;
        int ranks;
    } stop[] = {
        { PLAIN, OAR_ZERO_STAGE_3, 1 }, { FSDP, OAR_ZERO_STAGE_3, 4 },
        { DDP, OAR_ZERO_STAGE_3, 2 },   { FSDP, OAR_ZERO_STAGE_1, 2 },
        { FSDP, OAR_ZERO_STAGE_2, 5 },  { FSDP, OAR_ZERO_STAGE_3, 1 }
    };

    for (int stage = 0; stage <= 2; stage++) {
        spread_kind k = { .hold = OAR_HOLD_OWN,
                          .stage = (oar_zero_stage)stage };

        run_ranks("sim", 3, train_and_save, &k);
        for (size_t i = 0; i < sizeof stop / sizeof stop[0]; i++) {
            spread_kind other = { .wrap = stop[i].wrap,
                                  .stage = stop[i].stage };

            run_ranks("sim", stop[i].ranks, move, &other);
        }
        run_ranks("sim", 3, load_and_compare, &k);
        runs_folder_renew();
    }
}

/* ---- parts of a state ---------------------------------------------------- */

static oar_status load_only_model(oar_group *g, void *arg)
{
    spread_kind k = *(spread_kind *)arg;
    oar_checkpoint *runs;
    spread_run r, fresh;

    CHECK_OK(make_run(g, &k, &r));
    CHECK_OK(train_to(&r, 2));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_save(runs, r.state, 2, NULL));
    k.seed = 99;
    CHECK_OK(make_run(g, &k, &fresh));
    CHECK_OK(oar_fsdp_unshard(fresh.net, NULL)); /* old numbers are here */
    CHECK_OK(oar_fsdp_reshard(fresh.net, NULL));
    CHECK_OK(oar_checkpoint_load(runs, fresh.state, 2,
                                 OAR_OPTS(oar_load_opts, .sections = "model",
                                          .partial = OAR_LOAD_UNUSED)));
    CHECK(fresh.step == 0);
    CHECK_OK(compare_params(r.net, fresh.net));
    oar_checkpoint_close(runs);
    drop_run(&fresh);
    drop_run(&r);
    return OAR_OK;
}

static void the_model_alone_is_loaded_and_published(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h++)
        for (int stage = 0; stage <= 2; stage++) {
            spread_kind k = { .hold = (oar_hold)h,
                              .stage = (oar_zero_stage)stage };

            run_ranks("sim", 3, load_only_model, &k);
            runs_folder_renew();
        }
}

/* Batch norm: every rank has other buffers, and rank 0's are saved. arg: two
 * groups of two ranks have all shards. */
static oar_status save_buffers(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), hybrid = *(int *)arg;
    oar_group *row = NULL, *column = NULL;
    oar_module *cnn, *plain;
    oar_checkpoint *runs;
    oar_state *state, *other;

    CHECK_OK(oar_cnn_create(OAR_OPTS(oar_cnn_opts, .image = 8), &cnn));
    if (hybrid) {
        CHECK_OK(oar_group_split(g, rank / 2, rank, &row));
        CHECK_OK(oar_group_split(g, rank % 2, rank, &column));
    }
    CHECK_OK(oar_fsdp_wrap(cnn, hybrid ? row : g,
                           OAR_OPTS(oar_fsdp_opts, .replicas = column), &cnn));
    CHECK(oar_module_buffers(cnn) > 0);
    for (int i = 0; i < oar_module_buffers(cnn); i++)
        CHECK_OK(oar_tensor_fill(oar_module_buffer(cnn, i), 10 * i + rank));
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_module(state, cnn, "net."));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_save(runs, state, 0, NULL));
    CHECK_OK(
        oar_cnn_create(OAR_OPTS(oar_cnn_opts, .image = 8, .seed = 9), &plain));
    CHECK_OK(oar_state_create(&other));
    CHECK_OK(oar_state_add_module(other, plain, "net."));
    CHECK_OK(oar_checkpoint_load(runs, other, 0, NULL));
    CHECK_OK(oar_checkpoint_load(runs, state, 0, NULL));
    CHECK_OK(oar_fsdp_unshard(cnn, NULL));
    for (int i = 0; i < oar_module_params(cnn); i++)
        CHECK(same_bits(oar_module_param(cnn, i), oar_module_param(plain, i)));
    CHECK_OK(oar_fsdp_reshard(cnn, NULL));
    for (int i = 0; i < oar_module_buffers(cnn); i++) {
        CHECK(
            same_bits(oar_module_buffer(cnn, i), oar_module_buffer(plain, i)));
        CHECK_OK(oar_tensor_fill(oar_module_buffer(cnn, i), 10 * i));
        CHECK(
            same_bits(oar_module_buffer(cnn, i), oar_module_buffer(plain, i)));
    }
    oar_state_destroy(other);
    oar_state_destroy(state);
    oar_checkpoint_close(runs);
    oar_module_release(plain);
    oar_module_release(cnn);
    oar_group_destroy(row);
    oar_group_destroy(column);
    return OAR_OK;
}

static void buffers_are_saved_as_rank_0_has_them(void **state)
{
    for (int hybrid = 0; hybrid < 2; hybrid++) {
        assert_int_equal(
            ranks_run("sim", hybrid ? 4 : 3, NULL, save_buffers, &hybrid),
            OAR_OK);
        runs_folder_renew();
    }
}

/* Two places with one parameter, and one without elements. */
static oar_tensor *twins_forward(oar_tape *tape, oar_module *module,
                                 oar_tensor *x)
{
    return x;
}

static const oar_module_class twins_class = {
    .size = sizeof(oar_module_class),
    .name = "twins",
    .forward = twins_forward,
};

static oar_status make_twins(int tied, double value, oar_module **twins)
{
    enum { SIDE = 41 };
    oar_tensor *param = oar_full(NULL, OAR_F32, OAR_SHAPE(SIDE, SIDE), value);
    oar_tensor *other =
        tied ? oar_tensor_retain(param)
             : oar_full(NULL, OAR_F32, OAR_SHAPE(SIDE, SIDE), value);
    oar_module *below;

    CHECK(param != NULL && other != NULL);
    CHECK_OK(oar_module_create(&twins_class, twins));
    CHECK_OK(oar_module_create(&twins_class, &below));
    CHECK_OK(oar_module_add_param(*twins, "one", param));
    CHECK_OK(oar_module_add_param(below, "two", other));
    CHECK_OK(oar_module_add_param(below, "none",
                                  oar_zeros(NULL, OAR_F32, OAR_SHAPE(0, 3))));
    return oar_module_add_child(*twins, "below", below);
}

static oar_status save_twins(oar_group *g, void *arg)
{
    oar_module *net[3]; /* wrapped; plain; with two parameters */
    oar_state *state[3];
    oar_checkpoint *runs;

    CHECK_OK(make_twins(1, 5, &net[0]));
    CHECK_OK(oar_fsdp_wrap(
        net[0], g, OAR_OPTS(oar_fsdp_opts, .hold = *(oar_hold *)arg), &net[0]));
    CHECK_OK(make_twins(1, 6, &net[1]));
    CHECK_OK(make_twins(0, 7, &net[2]));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(oar_state_create(&state[i]));
        CHECK_OK(oar_state_add_module(state[i], net[i], "x."));
    }
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_save(runs, state[0], 1, NULL));
    CHECK_OK(oar_checkpoint_load(runs, state[1], 1, NULL));
    CHECK_OK(oar_checkpoint_load(runs, state[2], 1, NULL));
    for (int i = 1; i < 3; i++) {
        const float *one = oar_tensor_data(oar_module_find(net[i], "one"));
        const float *two =
            oar_tensor_data(oar_module_find(net[i], "below.two"));

        CHECK(one[0] == 5 && one[1680] == 5 && two[0] == 5 && two[1680] == 5);
    }
    CHECK_OK(oar_checkpoint_save(runs, state[1], 2, NULL));
    CHECK_OK(oar_checkpoint_load(runs, state[0], 2, NULL));
    for (int i = 0; i < 3; i++) {
        oar_state_destroy(state[i]);
        oar_module_release(net[i]);
    }
    oar_checkpoint_close(runs);
    return OAR_OK;
}

static void a_parameter_in_two_places_is_saved_once(void **state)
{
    for (int h = OAR_HOLD_MAPPED; h <= OAR_HOLD_OWN; h += 2)
        for (int ranks = 1; ranks <= 3; ranks++) {
            assert_int_equal(ranks_run("sim", ranks, NULL, save_twins, &h),
                             OAR_OK);
            runs_folder_renew();
        }
}

/* ---- refusals ------------------------------------------------------------ */

static oar_status refuse_strangers(oar_group *g, void *arg)
{
    spread_kind k = { .hold = OAR_HOLD_OWN };
    oar_optim *adam;
    oar_module *other;
    oar_state *state;
    spread_run r;

    CHECK_OK(make_run(g, &k, &r));
    CHECK_OK(make_gpt(&k, &other));
    CHECK_OK(oar_adamw_create(other, NULL, &adam));
    CHECK_OK(oar_state_create(&state));
    CHECK(oar_state_add_optim(state, adam, r.net, NULL) == OAR_E_NOT_FOUND);
    CHECK(oar_state_add_optim(state, r.optim, other, NULL) == OAR_E_NOT_FOUND);
    oar_state_destroy(state);
    oar_optim_destroy(adam);
    oar_module_release(other);
    drop_run(&r);
    return OAR_OK;
}

static void parameters_of_other_modules_have_no_name(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, refuse_strangers, NULL), OAR_OK);
}

static oar_status add_all(void *arg)
{
    const spread_run *r = arg;
    oar_state *state;
    oar_status status = oar_state_create(&state);

    if (status != OAR_OK)
        return status;
    status = oar_state_add_module(state, r->net, "a.");
    if (status == OAR_OK)
        status = oar_state_add_optim(state, r->optim, r->net, "a.");
    oar_state_destroy(state);
    return status;
}

static oar_status add_without_memory(oar_group *g, void *arg)
{
    spread_kind k = { .hold = OAR_HOLD_OWN };
    spread_run r;

    CHECK_OK(make_run(g, &k, &r));
    fail_each_allocation(add_all, &r);
    drop_run(&r);
    return OAR_OK;
}

static void a_state_without_memory_leaves_nothing(void **state)
{
    assert_int_equal(ranks_run("sim", 1, NULL, add_without_memory, NULL),
                     OAR_OK);
}

#define TEST(name) \
    cmocka_unit_test_setup_teardown(name, runs_folder_make, runs_folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_run_that_stops_and_goes_on_is_the_run_that_did_not),
        TEST(n_ranks_to_m_and_back_go_on_bitwise),
        TEST(fsdp_to_others_and_back_goes_on_bitwise),
        TEST(the_model_alone_is_loaded_and_published),
        TEST(buffers_are_saved_as_rank_0_has_them),
        TEST(a_parameter_in_two_places_is_saved_once),
        TEST(parameters_of_other_modules_have_no_name),
        TEST(a_state_without_memory_leaves_nothing),
    };

    return cmocka_run_group_tests_name("fsdp_checkpoint", tests, NULL, NULL);
}
