/* SPDX-License-Identifier: Apache-2.0 */
/* A run that stops in the middle of an epoch and goes on in new processes is
 * the run that did not stop, bit for bit: with dropout, gradient accumulation,
 * clipping and a learning-rate schedule, under every optimizer, with DDP and
 * with FSDP's stages 1 and 2, with batch norm; also if other numbers of ranks
 * have loaded and saved it in between. */
#include "support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/checkpoint.h>
#include <oarsong/ddp.h>
#include <oarsong/fsdp.h>
#include <oarsong/layers.h>
#include <oarsong/ops.h>
#include <oarsong/syncbn.h>
#include <oarsong/tape.h>

#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/runs_folder.h"

enum {
    SAMPLES = 120,
    SIDE = 4, /* of an image: a sample is [1, SIDE, SIDE] */
    HIDDEN = 300,
    CHANNELS = 130,
    BATCH = 2,
    MICRO = 2, /* batches for one step */
    STEPS = 11,
    STOP = 4
};

typedef enum optim_kind { SGD, ADAM, ADAMW, OPTIMS } optim_kind;

/* How a run is made. */
typedef struct run_kind {
    const char *backend;
    optim_kind optim;
    int stage;       /* 1 or 2, what FSDP spreads; 0: nothing, by DDP */
    int convolution; /* a CNN with batch norm; else linear layers, dropout */
} run_kind;

typedef struct resumable_run {
    const run_kind *kind;
    oar_group *group;
    oar_dataset *data;
    oar_loader *loader;
    oar_module *net; /* wrapped */
    oar_optim *optim;
    oar_state *state;
    oar_tensor **param; /* of the module */
    int64_t step;
} resumable_run;

/* ---- a run --------------------------------------------------------------- */

static oar_status make_linear(int rank, oar_module **net)
{
    oar_module *layer[5];

    CHECK_OK(oar_flatten_create(1, &layer[0]));
    CHECK_OK(oar_linear_create(SIDE * SIDE, HIDDEN, 1, NULL, &layer[1]));
    CHECK_OK(oar_relu_create(&layer[2]));
    CHECK_OK(oar_dropout_create(0.25, 1000 * (uint64_t)rank + 7, &layer[3]));
    CHECK_OK(oar_linear_create(HIDDEN, 2, 3, NULL, &layer[4]));
    return oar_sequential_create(5, layer, net);
}

static oar_status make_cnn(oar_module **net)
{
    oar_module *layer[5];

    CHECK_OK(oar_conv2d_create(1, CHANNELS, 3, 3, 5, NULL, &layer[0]));
    CHECK_OK(oar_batch_norm_create(2, CHANNELS, NULL, &layer[1]));
    CHECK_OK(oar_relu_create(&layer[2]));
    CHECK_OK(oar_flatten_create(1, &layer[3]));
    CHECK_OK(oar_linear_create(CHANNELS * 2 * 2, 2, 6, NULL, &layer[4]));
    return oar_sequential_create(5, layer, net);
}

static oar_status make_optim(optim_kind kind, int count,
                             oar_tensor *const *param, oar_optim **optim)
{
    oar_adam_opts adam = { .size = sizeof adam,
                           .lr = 0.01,
                           .weight_decay = 0.05 };
    oar_sgd_opts sgd = { .size = sizeof sgd, .lr = 0.05, .momentum = 0.9 };

    return kind == SGD    ? oar_sgd_create_over(count, param, &sgd, optim)
           : kind == ADAM ? oar_adam_create_over(count, param, &adam, optim)
                          : oar_adamw_create_over(count, param, &adam, optim);
}

static oar_status make_data(resumable_run *r)
{
    oar_tensor *field[2] = {
        oar_uniform(NULL, OAR_F32, OAR_SHAPE(SAMPLES, 1, SIDE, SIDE), 11, -1,
                    1),
        oar_uniform(NULL, OAR_F32, OAR_SHAPE(SAMPLES, 2), 12, -1, 1)
    };
    oar_loader_opts o = { .size = sizeof o,
                          .rank = oar_group_rank(r->group),
                          .ranks = oar_group_size(r->group),
                          .batch = BATCH,
                          .seed = 5 };

    CHECK_OK(oar_dataset_tensors(2, field, &r->data));
    oar_tensor_release(field[0]);
    oar_tensor_release(field[1]);
    CHECK_OK(oar_loader_create(r->data, &o, &r->loader));
    return oar_loader_start(r->loader, 0, 0);
}

static oar_status wrap_net(oar_group *g, int stage, oar_module **net)
{
    if (stage == 0)
        return oar_ddp_wrap(*net, g,
                            OAR_OPTS(oar_ddp_opts, .accumulate = MICRO), net);
    return oar_fsdp_wrap(
        *net, g, OAR_OPTS(oar_fsdp_opts, .stage = (oar_zero_stage)stage), net);
}

static oar_status make_run(oar_group *g, const run_kind *k, resumable_run *r)
{
    oar_tensor *const *shard;
    int params, shards;

    *r = (resumable_run){ .kind = k, .group = g };
    CHECK_OK(make_data(r));
    CHECK_OK(k->convolution ? make_cnn(&r->net)
                            : make_linear(oar_group_rank(g), &r->net));
    if (k->convolution)
        CHECK_OK(oar_sync_batch_norm_convert(r->net, g, NULL));
    CHECK_OK(wrap_net(g, k->stage, &r->net));
    params = oar_module_params(r->net);
    r->param = malloc((size_t)params * sizeof *r->param);
    CHECK(r->param != NULL);
    for (int i = 0; i < params; i++)
        r->param[i] = oar_module_param(r->net, i);
    CHECK_OK(oar_state_create(&r->state));
    CHECK_OK(oar_state_add_module(r->state, r->net, NULL));
    shard = oar_fsdp_params(r->net, &shards);
    CHECK_OK(make_optim(k->optim, shard != NULL ? shards : params,
                        shard != NULL ? shard : r->param, &r->optim));
    CHECK_OK(oar_state_add_optim(r->state, r->optim, r->net, NULL));
    CHECK_OK(oar_state_add_loader(r->state, "train", r->loader));
    return oar_state_add_i64(r->state, "step", &r->step);
}

static void drop_run(resumable_run *r)
{
    oar_state_destroy(r->state);
    oar_optim_destroy(r->optim);
    oar_module_release(r->net);
    oar_loader_destroy(r->loader);
    oar_dataset_destroy(r->data);
    free(r->param);
}

static oar_status next_batch(resumable_run *r, oar_tensor **field)
{
    uint64_t epoch;
    int64_t sample;
    int more;

    CHECK_OK(oar_loader_next(r->loader, field, &more));
    if (more)
        return OAR_OK;
    CHECK_OK(oar_loader_position(r->loader, &epoch, &sample));
    CHECK_OK(oar_loader_start(r->loader, epoch + 1, 0));
    CHECK_OK(oar_loader_next(r->loader, field, &more));
    CHECK(more);
    return OAR_OK;
}

/* One step of the optimizer, with the schedule's rate. */
static oar_status step_optim(resumable_run *r)
{
    oar_lr_schedule schedule = { .size = sizeof schedule,
                                 .kind = OAR_LR_COSINE,
                                 .warmup = 3,
                                 .steps = STEPS + 5,
                                 .final = 0.1 };

    CHECK_OK(oar_optim_set_lr(r->optim,
                              0.02 * oar_lr_schedule_at(&schedule, r->step)));
    CHECK_OK(r->kind->stage == 0 ? oar_clip_grad_norm(oar_module_params(r->net),
                                                      r->param, 0.5, NULL)
                                 : oar_fsdp_clip_grad_norm(r->net, 0.5, NULL));
    CHECK_OK(oar_optim_step(r->optim));
    oar_optim_zero_grad(r->optim);
    return OAR_OK;
}

static oar_status train_to(resumable_run *r, int64_t end)
{
    oar_tensor *field[2], *loss;
    oar_tape *tape;

    CHECK_OK(oar_tape_create(&tape));
    for (; r->step < end; r->step++) {
        for (int i = 0; i < MICRO; i++) {
            int adds_up = r->kind->stage != 0 && i < MICRO - 1;

            if (adds_up) /* DDP counts passes by itself */
                CHECK_OK(oar_fsdp_no_sync_begin(r->net));
            CHECK_OK(next_batch(r, field));
            loss = oar_mse(tape, oar_forward(tape, r->net, field[0]), field[1]);
            CHECK_OK(oar_backward(tape, loss));
            oar_tape_reset(tape);
            if (adds_up)
                CHECK_OK(oar_fsdp_no_sync_end(r->net));
        }
        CHECK_OK(step_optim(r));
    }
    oar_tape_destroy(tape);
    return OAR_OK;
}

/* ---- comparing ----------------------------------------------------------- */

static int same_bits(const oar_tensor *a, const oar_tensor *b)
{
    return oar_tensor_count(a) == oar_tensor_count(b) &&
           memcmp(oar_tensor_const_data(a), oar_tensor_const_data(b),
                  (size_t)oar_tensor_count(a) *
                      oar_dtype_size(oar_tensor_dtype(a))) == 0;
}

/* Makes what FSDP has spread whole, or lets go of it. */
static oar_status show_params(resumable_run *r, int whole)
{
    if (r->kind->stage == 0)
        return OAR_OK;
    return whole ? oar_fsdp_unshard(r->net, NULL)
                 : oar_fsdp_reshard(r->net, NULL);
}

/* Parameters, buffers, the optimizer's state, and the next batch. */
static oar_status compare(resumable_run *a, resumable_run *b)
{
    oar_optim *x = a->optim, *y = b->optim;
    oar_tensor *one[2], *two[2];

    CHECK(a->step == b->step);
    CHECK(oar_optim_steps(x) == oar_optim_steps(y));
    CHECK(oar_optim_lr(x) == oar_optim_lr(y));
    CHECK_OK(show_params(a, 1));
    CHECK_OK(show_params(b, 1));
    for (int i = 0; i < oar_module_params(a->net); i++)
        CHECK(same_bits(a->param[i], b->param[i]));
    CHECK_OK(show_params(a, 0));
    CHECK_OK(show_params(b, 0));
    for (int i = 0; i < oar_module_buffers(a->net); i++)
        CHECK(same_bits(oar_module_buffer(a->net, i),
                        oar_module_buffer(b->net, i)));
    for (int i = 0; i < oar_module_counters(a->net); i++)
        CHECK(*oar_module_counter(a->net, i) == *oar_module_counter(b->net, i));
    for (int i = 0; i < oar_optim_params(x); i++)
        for (int slot = 0; oar_optim_state_name(x, slot) != NULL; slot++)
            CHECK(same_bits(oar_optim_state(x, i, slot),
                            oar_optim_state(y, i, slot)));
    CHECK_OK(next_batch(a, one));
    CHECK_OK(next_batch(b, two));
    CHECK(same_bits(one[0], two[0]) && same_bits(one[1], two[1]));
    return OAR_OK;
}

/* ---- stopping and going on ----------------------------------------------- */

static const oar_checkpoint_opts quick = { .size = sizeof quick, .no_sync = 1 };

static oar_status train_and_save(oar_group *g, void *arg)
{
    oar_checkpoint *runs;
    resumable_run r;

    CHECK_OK(make_run(g, arg, &r));
    CHECK_OK(train_to(&r, STOP));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_save(runs, r.state, r.step, NULL));
    CHECK_OK(train_to(&r, STOP + 1)); /* what is saved stays as it was */
    oar_checkpoint_close(runs);
    drop_run(&r);
    return OAR_OK;
}

/* Goes on from what the newest generation has, and compares with a run that did
 * not stop. */
static oar_status load_and_compare(oar_group *g, void *arg)
{
    oar_checkpoint *runs;
    resumable_run whole, resumed;

    CHECK_OK(make_run(g, arg, &whole));
    CHECK_OK(train_to(&whole, STEPS));
    CHECK_OK(make_run(g, arg, &resumed));
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
    oar_checkpoint *runs;
    int64_t step;
    resumable_run r;

    CHECK_OK(make_run(g, arg, &r));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_newest(runs, &step));
    CHECK_OK(oar_checkpoint_load(runs, r.state, OAR_NEWEST, NULL));
    CHECK_OK(oar_checkpoint_save(runs, r.state, step + 1, NULL));
    oar_checkpoint_close(runs);
    drop_run(&r);
    return OAR_OK;
}

static void run_ranks(int ranks, oar_rank_fn fn, run_kind *k)
{
    if (ranks_run(k->backend, ranks, NULL, fn, k) != OAR_OK)
        fail_msg("%s, %d ranks, optimizer %d, stage %d%s: %s", k->backend,
                 ranks, (int)k->optim, k->stage, k->convolution ? ", CNN" : "",
                 oar_last_error_text());
}

static void a_run_that_stops_and_goes_on_is_the_run_that_did_not(void **state)
{
    (void)state;
    for (int optim = 0; optim < OPTIMS; optim++)
        for (int how = 0; how < 4; how++) {
            run_kind k = { .backend = how == 1 ? "native" : "sim",
                           .optim = (optim_kind)optim,
                           .stage = how % 2 + how / 3,
                           .convolution = how / 2 };
            int ranks = 1 + (optim + how) % 3;

            run_ranks(ranks, train_and_save, &k);
            run_ranks(ranks, load_and_compare, &k);
            runs_folder_renew();
        }
}

static void n_to_m_to_n_goes_on_bitwise(void **state)
{
    static const int between[] = { 3, 1, 5 };

    (void)state;
    for (int i = 0; i < 6; i++) {
        run_kind k = { .backend = "sim",
                       .optim = (optim_kind)(i % OPTIMS),
                       .stage = i % 2 ? 1 + i / 2 % 2 : 0,
                       .convolution = i == 5 };

        run_ranks(4, train_and_save, &k);
        run_ranks(between[i % 3], move, &k);
        run_ranks(4, load_and_compare, &k);
        runs_folder_renew();
    }
}

static void shards_into_whole_parameters_and_back(void **state)
{
    (void)state;
    for (int optim = 0; optim < OPTIMS; optim++) {
        run_kind first = { .backend = "sim",
                           .optim = (optim_kind)optim,
                           .stage = 1 + optim % 2 };
        run_kind second = first, whole = first;

        second.stage = 3 - first.stage;
        whole.stage = 0;
        run_ranks(3, train_and_save, &first);
        run_ranks(1, move, &whole);
        run_ranks(5, move, &second);
        run_ranks(2, move, &whole);
        run_ranks(4, move, &first);
        run_ranks(3, load_and_compare, &first);
        runs_folder_renew();
    }
}

/* ---- the rows of a batch ------------------------------------------------- */

enum { ROWS_PER_STEP = 840, ROWS = 3000 }; /* 840: for 1 to 8 ranks */

/* The rows that all ranks together take in each step, from a position on. */
typedef struct row_case {
    int64_t saved_at; /* in batches of an epoch, or beyond it */
    int steps;
    int *count; /* [steps][ROWS], shared by the ranks: threads */
} row_case;

static oar_status make_rows(oar_group *g, int ranks, oar_loader **loader,
                            oar_dataset **data)
{
    oar_loader_opts o = { .size = sizeof o,
                          .rank = oar_group_rank(g),
                          .ranks = ranks,
                          .batch = ROWS_PER_STEP / ranks,
                          .seed = 9 };
    oar_tensor *number = oar_arange(NULL, OAR_F32, ROWS, 0, 1);

    CHECK(number != NULL);
    CHECK_OK(oar_dataset_tensors(1, &number, data));
    oar_tensor_release(number);
    return oar_loader_create(*data, &o, loader);
}

/* Counts the rows of some steps from where the loader is; epochs follow. */
static oar_status take_rows(oar_loader *loader, int steps, int *count)
{
    oar_tensor *field;
    uint64_t epoch;
    int64_t sample;
    int more;

    for (int s = 0; s < steps; s++) {
        CHECK_OK(oar_loader_next(loader, &field, &more));
        if (!more) {
            CHECK_OK(oar_loader_position(loader, &epoch, &sample));
            CHECK_OK(oar_loader_start(loader, epoch + 1, 0));
            CHECK_OK(oar_loader_next(loader, &field, &more));
            CHECK(more);
        }
        for (int64_t i = 0; i < oar_tensor_count(field); i++)
            __atomic_fetch_add(
                &count[s * ROWS + (int)((float *)oar_tensor_data(field))[i]], 1,
                __ATOMIC_RELAXED);
    }
    return OAR_OK;
}

static oar_status save_position(oar_group *g, void *arg)
{
    const row_case *c = arg;
    oar_checkpoint *runs;
    oar_loader *loader;
    oar_dataset *data;
    oar_state *state;
    int *nothing = calloc((size_t)c->saved_at + 1, ROWS * sizeof *nothing);

    CHECK(nothing != NULL);
    CHECK_OK(make_rows(g, oar_group_size(g), &loader, &data));
    CHECK_OK(oar_loader_start(loader, 0, 0));
    CHECK_OK(take_rows(loader, (int)c->saved_at, nothing));
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_loader(state, "rows", loader));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_save(runs, state, c->saved_at, NULL));
    CHECK_OK(take_rows(loader, c->steps, c->count));
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    oar_loader_destroy(loader);
    oar_dataset_destroy(data);
    free(nothing);
    return OAR_OK;
}

static oar_status load_position(oar_group *g, void *arg)
{
    const row_case *c = arg;
    oar_checkpoint *runs;
    oar_loader *loader;
    oar_dataset *data;
    oar_state *state;

    CHECK_OK(make_rows(g, oar_group_size(g), &loader, &data));
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_loader(state, "rows", loader));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_load(runs, state, c->saved_at, NULL));
    CHECK_OK(take_rows(loader, c->steps, c->count));
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    oar_loader_destroy(loader);
    oar_dataset_destroy(data);
    return OAR_OK;
}

/* An epoch is 3000 rows: three steps of 840 and one of 480, which every number
 * of ranks from 1 to 6 and 8 divides; so nothing is padded. With 7 it is filled
 * up from the epoch's start: its last step may have a few rows more. */
static void the_rows_of_a_batch_do_not_depend_on_the_ranks(void **state)
{
    enum { TAKEN = 6 };
    int *saved = calloc(TAKEN, ROWS * sizeof *saved);
    int *loaded = calloc(TAKEN, ROWS * sizeof *loaded);

    (void)state;
    assert_non_null(saved);
    assert_non_null(loaded);
    for (int64_t at = 0; at <= 5; at++) {
        row_case c = { at, TAKEN, saved };

        memset(saved, 0, TAKEN * ROWS * sizeof *saved);
        assert_int_equal(ranks_run("sim", 3, NULL, save_position, &c), OAR_OK);
        for (int ranks = 1; ranks <= 8; ranks++) {
            row_case other = { at, TAKEN, loaded };

            memset(loaded, 0, TAKEN * ROWS * sizeof *loaded);
            assert_int_equal(
                ranks_run("sim", ranks, NULL, load_position, &other), OAR_OK);
            for (int i = 0; i < TAKEN * ROWS; i++) {
                int last = ranks == 7 && (at + i / ROWS) % 4 == 3;

                if (last ? loaded[i] < saved[i] : loaded[i] != saved[i])
                    fail_msg("%d ranks from step %d: row %d %d times, not %d",
                             ranks, (int)at, i, loaded[i], saved[i]);
            }
        }
    }
    free(loaded);
    free(saved);
}

#define TEST(name) \
    cmocka_unit_test_setup_teardown(name, runs_folder_make, runs_folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_run_that_stops_and_goes_on_is_the_run_that_did_not),
        TEST(n_to_m_to_n_goes_on_bitwise),
        TEST(shards_into_whole_parameters_and_back),
        TEST(the_rows_of_a_batch_do_not_depend_on_the_ranks),
    };

    return cmocka_run_group_tests_name("resume", tests, NULL, NULL);
}
