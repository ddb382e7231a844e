/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint refuses, on two ranks: each sentence says what, where, and
 * both sides of what does not fit, all ranks have the same one, and nothing has
 * changed. */
#include "support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/runs_folder.h"
#include "support/sample_state.h"

static const oar_checkpoint_opts quick = { .size = sizeof quick, .no_sync = 1 };

/* ---- states that do not fit together ------------------------------------- */

/* What a rank gives of a tensor. */
typedef struct rank_part {
    oar_dtype dtype;
    oar_shape whole;
    int64_t first, count; /* of dim 0 */
} rank_part;

typedef struct part_case {
    rank_part part[2];
    oar_status status;
    const char *text[3];
} part_case;

#define LINE(n) \
    {           \
        1,      \
        {       \
            n   \
        }       \
    }

static const part_case part_cases[] = {
    { { { OAR_F32, LINE(7), 0, 3 }, { OAR_F32, LINE(7), 4, 3 } },
      OAR_E_ARG,
      { "\"model/weight\" of shape [7]: no rank has [3:4]", "rank 0",
        "rank 1" } },
    { { { OAR_F32, LINE(7), 0, 5 }, { OAR_F32, LINE(7), 4, 3 } },
      OAR_E_ARG,
      { "\"model/weight\": [0:5] of rank 0 and [4:7] of rank 1 overlap", "",
        "" } },
    { { { OAR_F32, LINE(8), 0, 4 }, { OAR_F64, LINE(8), 4, 4 } },
      OAR_E_MISMATCH,
      { "\"model/weight\" is f32 on rank 0 and f64 on rank 1", "", "" } },
    { { { OAR_F32, LINE(8), 0, 4 }, { OAR_F32, LINE(9), 4, 4 } },
      OAR_E_MISMATCH,
      { "\"model/weight\" has the whole shape [8] on rank 0 and [9] on rank 1",
        "", "" } },
    { { { OAR_F32, { 2, { 4, 2 } }, 0, 4 }, { OAR_F32, LINE(8), 0, 8 } },
      OAR_E_MISMATCH,
      { "whole shape [8] on rank 1 and [4, 2] on rank 0", "", "" } },
};

static oar_status refuse_parts(oar_group *g, void *arg)
{
    const part_case *c = arg;
    const rank_part *p = &c->part[oar_group_rank(g)];
    oar_place place = { .size = sizeof place,
                        .whole = p->whole,
                        .offset = { p->first } };
    double numbers[16] = { 0 };
    oar_shape shape = p->whole;
    oar_checkpoint *runs;
    oar_state *state;
    int64_t step;

    shape.dim[0] = p->count;
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_span(
        state, "model", "weight",
        oar_span_of(numbers,
                    (size_t)(p->count * (shape.ndim > 1 ? shape.dim[1] : 1)),
                    p->dtype),
        shape, &place));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK(fails_with(oar_checkpoint_save(runs, state, 1, NULL), c->status,
                     c->text[0]));
    CHECK(last_error_has(c->text[1]) && last_error_has(c->text[2]));
    CHECK(fails_with(oar_checkpoint_newest(runs, &step), OAR_E_NOT_FOUND,
                     runs_path));
    CHECK(folder_names_with(runs_path, "step-") == 0);
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    return oar_barrier(g, NULL, NULL);
}

static void parts_that_do_not_fit(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof part_cases / sizeof part_cases[0]; i++) {
        part_case c = part_cases[i];

        assert_int_equal(ranks_run("sim", 2, NULL, refuse_parts, &c), OAR_OK);
    }
}

static oar_status refuse_lazy(oar_group *g, void *arg)
{
    oar_checkpoint *runs;
    oar_state *state;
    oar_module *net;

    (void)arg;
    oar_lazy(1);
    CHECK_OK(oar_linear_create(2, 3, 1, NULL, &net));
    oar_lazy(0);
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_module(state, net, NULL));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK(fails_with(oar_checkpoint_save(runs, state, 1, NULL), OAR_E_STATE,
                     "lazy"));
    CHECK(folder_names_with(runs_path, "step-") == 0);
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    oar_module_release(net);
    return oar_barrier(g, NULL, NULL);
}

static void a_model_that_is_lazy(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("sim", 2, NULL, refuse_lazy, NULL), OAR_OK);
}

/* ---- names --------------------------------------------------------------- */

static oar_status refuse_names(oar_group *g, void *arg)
{
    static const struct {
        const char *section, *name, *text;
    } names[] = {
        { "model", "weight",
          "\"model/weight\" was added twice" }, /* it is there already */
        { "", "w", "\"\"" },
        { "../x", "w", "\"../x\"" },
        { "a/b", "w", "\"a/b\"" },
        { ".part", "w", "\".part\"" },
        { "model", "", "name" },
        { "model", "\xff\xfe", "UTF-8" },
        { "model", NULL, "1001" },
    };
    char longest[1002];
    float number = 1;
    oar_checkpoint *runs;

    (void)arg;
    memset(longest, 'x', 1001);
    longest[1001] = '\0';
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *name = names[i].name != NULL ? names[i].name : longest;
        oar_status status;
        oar_state *state;

        CHECK_OK(oar_state_create(&state));
        CHECK_OK(oar_state_add_span(state, "model", "weight",
                                    oar_span_of(&number, 1, OAR_F32),
                                    OAR_SHAPE(1), NULL));
        status = oar_state_add_span(state, names[i].section, name,
                                    oar_span_of(&number, 1, OAR_F32),
                                    OAR_SHAPE(1), NULL);
        if (status == OAR_OK)
            status = oar_checkpoint_save(runs, state, 1, NULL);
        CHECK(fails_with(status, OAR_E_ARG, names[i].text));
        oar_state_destroy(state);
    }
    CHECK(folder_names_with(runs_path, "step-") == 0);
    oar_checkpoint_close(runs);
    return oar_barrier(g, NULL, NULL);
}

static void names_that_are_none(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("sim", 2, NULL, refuse_names, NULL), OAR_OK);
}

/* The first names, how many there are, and the nearest one. */
static oar_status refuse_other_names(oar_group *g, void *arg)
{
    static const char *const saved[] = { "blocks.0.weight", "blocks.1.weight",
                                         "blocks.2.weight", "blocks.3.weight",
                                         "head.bias" };
    static const char *const wanted[] = { "block.3.weight", "block.2.weight",
                                          "block.1.weight", "block.0.weight" };
    float number[5] = { 1, 2, 3, 4, 5 }, other[4] = { 7, 7, 7, 7 };
    oar_state *state, *missing;
    oar_checkpoint *runs;

    (void)arg;
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_create(&missing));
    for (int i = 0; i < 5; i++)
        CHECK_OK(oar_state_add_span(state, "model", saved[i],
                                    oar_span_of(&number[i], 1, OAR_F32),
                                    OAR_SHAPE(1), NULL));
    for (int i = 0; i < 4; i++)
        CHECK_OK(oar_state_add_span(missing, "model", wanted[i],
                                    oar_span_of(&other[i], 1, OAR_F32),
                                    OAR_SHAPE(1), NULL));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_save(runs, state, 6, NULL));
    CHECK(fails_with(oar_checkpoint_load(runs, missing, OAR_NEWEST, NULL),
                     OAR_E_NOT_FOUND,
                     "step 6, lacks 4 of the state's names: "));
    CHECK(last_error_has("\"block.3.weight\", \"block.2.weight\", "
                         "\"block.1.weight\", ..."));
    CHECK(last_error_has("the nearest name to the first is "
                         "\"blocks.3.weight\""));
    CHECK(fails_with(oar_checkpoint_load(
                         runs, missing, OAR_NEWEST,
                         OAR_OPTS(oar_load_opts, .partial = OAR_LOAD_MISSING)),
                     OAR_E_NOT_FOUND,
                     "has 5 names that the state does not want: "));
    CHECK(last_error_has("\"blocks.0.weight\", \"blocks.1.weight\", "
                         "\"blocks.2.weight\", ..."));
    CHECK(other[0] == 7 && other[3] == 7); /* nothing was written */
    oar_checkpoint_close(runs);
    oar_state_destroy(missing);
    oar_state_destroy(state);
    return oar_barrier(g, NULL, NULL);
}

static void names_that_are_missing_or_unused(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("sim", 2, NULL, refuse_other_names, NULL),
                     OAR_OK);
}

/* ---- steps, folders, groups ---------------------------------------------- */

static oar_status refuse_steps(oar_group *g, void *arg)
{
    oar_checkpoint *runs, *other = NULL;
    sample_state s;

    (void)arg;
    CHECK_OK(sample_state_make(&s, oar_group_rank(g), oar_group_size(g)));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK(fails_with(oar_checkpoint_save(runs, s.state, 1000000000000, NULL),
                     OAR_E_ARG, "step 1000000000000; 0 to 999,999,999,999"));
    CHECK(fails_with(oar_checkpoint_save(runs, s.state, -1, NULL), OAR_E_ARG,
                     "step -1; 0 to 999,999,999,999"));
    CHECK_OK(oar_checkpoint_save(runs, s.state, 999999999999, NULL));
    CHECK_OK(oar_checkpoint_save(runs, s.state, 0, NULL));
    CHECK(fails_with(oar_checkpoint_save(runs, s.state, 0, NULL), OAR_E_STATE,
                     "has step 0 already, saved "));
    CHECK(last_error_has(" ago"));
    CHECK(fails_with(oar_checkpoint_save(runs, NULL, 1, NULL), OAR_E_ARG,
                     "the state is NULL"));
    /* A step on one rank that is another on the other. */
    CHECK(fails_with(oar_checkpoint_load(runs, s.state, 5, NULL),
                     OAR_E_NOT_FOUND, "no generation step-000000000005"));

    /* An open batch on the group. */
    CHECK_OK(oar_batch_begin(g));
    CHECK(fails_with(oar_checkpoint_open(g, runs_path, &quick, &other),
                     OAR_E_STATE, "batch"));
    CHECK_OK(oar_batch_end(g, NULL));
    CHECK(other == NULL);
    CHECK(fails_with(oar_checkpoint_open(g, runs_path, &quick, &other),
                     OAR_E_STATE, " is in use by another job: host "));
    CHECK(last_error_has(", process ") && last_error_has(", since "));
    oar_checkpoint_close(runs);
    oar_state_destroy(s.state);
    return oar_barrier(g, NULL, NULL);
}

static void steps_and_folders(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("sim", 2, NULL, refuse_steps, NULL), OAR_OK);
}

/* Ranks that do not agree on a step or an option have made a mistake. */
static oar_status refuse_other_numbers(oar_group *g, void *arg)
{
    oar_checkpoint *runs;
    oar_checkpoint_opts other = quick;
    sample_state s;

    (void)arg;
    other.block_bytes = (size_t)(1 + oar_group_rank(g)) << 20;
    CHECK(fails_with(oar_checkpoint_open(g, runs_path, &other, &runs),
                     OAR_E_MISMATCH,
                     "different numbers for block_bytes: 1048576 and 2097152"));
    CHECK_OK(sample_state_make(&s, oar_group_rank(g), oar_group_size(g)));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK(fails_with(
        oar_checkpoint_load(runs, s.state, 5 + oar_group_rank(g), NULL),
        OAR_E_MISMATCH, "different numbers for step: 5 and 6"));
    CHECK(fails_with(
        oar_checkpoint_save(runs, s.state, 5 + oar_group_rank(g), NULL),
        OAR_E_MISMATCH, "the ranks give different steps"));
    CHECK(folder_names_with(runs_path, "step-") == 0);
    oar_checkpoint_close(runs);
    oar_state_destroy(s.state);
    return oar_barrier(g, NULL, NULL);
}

static void ranks_that_give_different_numbers(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("sim", 2, NULL, refuse_other_numbers, NULL),
                     OAR_OK);
}

/* A lock is gone with its process; a child of fork has no checkpoint. */
static void a_lock_ends_with_its_process(void **state)
{
    oar_checkpoint *runs;
    sample_state s;
    int ended, ready[2];
    pid_t child;
    char byte;

    (void)state;
    assert_int_equal(pipe(ready), 0);
    child = fork();
    if (child == 0) {
        if (oar_checkpoint_open(NULL, runs_path, &quick, &runs) == OAR_OK &&
            write(ready[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_fails_with(oar_checkpoint_open(NULL, runs_path, &quick, &runs),
                      OAR_E_STATE, "is in use by another job: host ");
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &ended, 0), child);
    OK(oar_checkpoint_open(NULL, runs_path, &quick, &runs));
    OK(sample_state_make(&s, 0, 1));
    child = fork();
    if (child == 0)
        _exit(oar_checkpoint_save(runs, s.state, 1, NULL) != OAR_E_STATE);
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
    OK(oar_checkpoint_save(runs, s.state, 1, NULL));
    oar_checkpoint_close(runs);
    oar_state_destroy(s.state);
    close(ready[0]);
    close(ready[1]);
}

/* ---- other optimizers and data ------------------------------------------- */

static oar_status refuse_other_objects(oar_group *g, void *arg)
{
    oar_tensor *data[2] = {
        oar_uniform(NULL, OAR_F32, OAR_SHAPE(10, 3), 1, 0, 1),
        oar_uniform(NULL, OAR_F32, OAR_SHAPE(12, 3), 1, 0, 1)
    };
    oar_loader_opts lo = { .size = sizeof lo, .seed = 1 };
    oar_adam_opts beta = { .size = sizeof beta, .beta1 = 0.5 };
    oar_optim *adam, *other, *sgd;
    oar_dataset *set[2];
    oar_loader *loader[3];
    oar_checkpoint *runs;
    oar_module *net;
    oar_state *state;

    (void)arg;
    CHECK_OK(oar_linear_create(3, 2, 1, NULL, &net));
    CHECK_OK(oar_adam_create(net, NULL, &adam));
    CHECK_OK(oar_adam_create(net, &beta, &other));
    CHECK_OK(oar_sgd_create(net, NULL, &sgd));
    for (int i = 0; i < 2; i++)
        CHECK_OK(oar_dataset_tensors(1, &data[i], &set[i]));
    CHECK_OK(oar_loader_create(set[0], &lo, &loader[0]));
    CHECK_OK(oar_loader_create(set[1], &lo, &loader[1]));
    lo.seed = 2;
    CHECK_OK(oar_loader_create(set[0], &lo, &loader[2]));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_optim(state, adam, net, NULL));
    CHECK_OK(oar_state_add_loader(state, "train", loader[0]));
    CHECK_OK(oar_checkpoint_save(runs, state, 1, NULL));
    oar_state_destroy(state);

    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_optim(state, other, net, NULL));
    CHECK(fails_with(oar_checkpoint_load(runs, state, 1,
                                         OAR_OPTS(oar_load_opts, .partial = 3)),
                     OAR_E_STATE, "beta1"));
    CHECK(last_error_has("0.9") && last_error_has("0.5"));
    oar_state_destroy(state);

    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_optim(state, sgd, net, NULL));
    CHECK(fails_with(oar_checkpoint_load(runs, state, 1,
                                         OAR_OPTS(oar_load_opts, .partial = 3)),
                     OAR_E_STATE, "adam"));
    CHECK(last_error_has("sgd"));
    oar_state_destroy(state);

    for (int i = 1; i < 3; i++) {
        CHECK_OK(oar_state_create(&state));
        CHECK_OK(oar_state_add_loader(state, "train", loader[i]));
        CHECK(fails_with(
            oar_checkpoint_load(runs, state, 1,
                                OAR_OPTS(oar_load_opts, .partial = 3)),
            OAR_E_STATE, "train"));
        oar_state_destroy(state);
    }
    oar_checkpoint_close(runs);
    for (int i = 0; i < 3; i++)
        oar_loader_destroy(loader[i]);
    for (int i = 0; i < 2; i++) {
        oar_dataset_destroy(set[i]);
        oar_tensor_release(data[i]);
    }
    oar_optim_destroy(sgd);
    oar_optim_destroy(other);
    oar_optim_destroy(adam);
    oar_module_release(net);
    return oar_barrier(g, NULL, NULL);
}

static void another_optimizer_and_other_data(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("sim", 2, NULL, refuse_other_objects, NULL),
                     OAR_OK);
}

/* Such an index could be written, and never be read. */
static void texts_that_are_not_utf8(void **state)
{
    oar_state *named, *plain;
    oar_checkpoint *runs;
    int64_t number = 1, newest;

    (void)state;
    assert_true(oar_state_create(&plain) == OAR_OK);
    assert_true(oar_state_create(&named) == OAR_OK);
    assert_true(oar_state_add_i64(named, "caf\xe9", &number) == OAR_OK);
    assert_true(oar_checkpoint_open(NULL, runs_path, NULL, &runs) == OAR_OK);
    assert_fails_with(
        oar_checkpoint_save(runs, plain, 1,
                            OAR_OPTS(oar_save_opts, .note = "caf\xe9")),
        OAR_E_ARG, "byte 3 of the text \"caf...\" is not UTF-8");
    assert_fails_with(oar_checkpoint_save(runs, named, 1, NULL), OAR_E_ARG,
                      "is not UTF-8");
    assert_fails_with(oar_checkpoint_load(runs, plain, -2, NULL), OAR_E_ARG,
                      "step -2; OAR_NEWEST and 0 to");
    assert_true(oar_checkpoint_newest(runs, &newest) == OAR_E_NOT_FOUND);
    assert_true(oar_checkpoint_save(runs, plain, 1, NULL) == OAR_OK);
    oar_checkpoint_close(runs);
    oar_state_destroy(named);
    oar_state_destroy(plain);
}

#define TEST(name) \
    cmocka_unit_test_setup_teardown(name, runs_folder_make, runs_folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(parts_that_do_not_fit),
        TEST(a_model_that_is_lazy),
        TEST(names_that_are_none),
        TEST(texts_that_are_not_utf8),
        TEST(names_that_are_missing_or_unused),
        TEST(steps_and_folders),
        TEST(ranks_that_give_different_numbers),
        TEST(a_lock_ends_with_its_process),
        TEST(another_optimizer_and_other_data),
    };

    return cmocka_run_group_tests_name("checkpoint refusals", tests, NULL,
                                       NULL);
}
