/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: what N ranks have saved M ranks load, bitwise, whatever the cut;
 * a run that stops and goes on is the run that did not. */
#include "support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/checkpoint.h>
#include <oarsong/layers.h>
#include <oarsong/ops.h>
#include <oarsong/tape.h>

#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/runs_folder.h"
#include "support/trained_net.h"

/* ---- from N ranks to M --------------------------------------------------- */

/* How a tensor is spread over ranks. */
typedef enum cut { REPLICATED, ROWS, COLUMNS, FLAT, CUTS } cut;

enum { DIMS_ROWS = 7, DIMS_COLUMNS = 10 };

/* Adds this rank's part of a tensor of these numbers, or of zeros. */
static oar_status add_cut(oar_group *g, oar_state *state, const char *name,
                          cut how, oar_dtype dtype, int filled,
                          oar_tensor **part)
{
    oar_shape whole = OAR_SHAPE(DIMS_ROWS, DIMS_COLUMNS), shape = whole;
    oar_tensor *all = oar_uniform(NULL, dtype, whole, 3, 0, 2), *view;
    oar_place place = { .size = sizeof place, .whole = whole };
    int rank = oar_group_rank(g), ranks = oar_group_size(g);

    view = oar_tensor_retain(all);
    if (how == ROWS || how == COLUMNS) {
        int dim = how == COLUMNS;

        CHECK_OK(oar_place_of_rank(whole, dim, rank, ranks, &place, &shape));
        oar_tensor_release(view);
        view = oar_narrow(NULL, all, dim, place.offset[dim], shape.dim[dim]);
    } else if (how == FLAT) {
        int64_t count = DIMS_ROWS * DIMS_COLUMNS, first = rank * count / ranks;
        int64_t end = (rank + 1) * count / ranks;
        oar_tensor *line = oar_reshape(NULL, all, OAR_SHAPE(count));

        oar_tensor_release(view);
        view = oar_narrow(NULL, line, 0, first, end - first);
        oar_tensor_release(line);
        place.flat = 1;
        place.first = first;
        shape = OAR_SHAPE(end - first);
    }
    *part = oar_zeros(NULL, dtype, shape);
    CHECK(*part != NULL && view != NULL);
    if (filled)
        CHECK_OK(oar_tensor_copy(*part, view));
    CHECK_OK(oar_state_add_tensor(state, "model", name, *part,
                                  how == REPLICATED ? NULL : &place));
    oar_tensor_release(view);
    oar_tensor_release(all);
    return OAR_OK;
}

typedef struct cuts_case {
    cut save, load;
    int64_t step;
} cuts_case;

static oar_status save_cuts(oar_group *g, void *arg)
{
    const cuts_case *c = arg;
    oar_checkpoint_opts opts = { .size = sizeof opts, .no_sync = 1 };
    oar_tensor *part[OAR_DTYPE_COUNT];
    oar_checkpoint *runs;
    oar_state *state;
    char name[16];

    CHECK_OK(oar_state_create(&state));
    for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
        snprintf(name, sizeof name, "t.%d", d);
        CHECK_OK(add_cut(g, state, name, c->save, (oar_dtype)d, 1, &part[d]));
    }
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &runs));
    CHECK_OK(oar_checkpoint_save(runs, state, c->step, NULL));
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    for (int d = 0; d < OAR_DTYPE_COUNT; d++)
        oar_tensor_release(part[d]);
    return OAR_OK;
}

static oar_status load_cuts(oar_group *g, void *arg)
{
    const cuts_case *c = arg;
    oar_checkpoint_opts opts = { .size = sizeof opts, .read_only = 1 };
    oar_tensor *part[OAR_DTYPE_COUNT], *want[OAR_DTYPE_COUNT];
    oar_checkpoint *runs;
    oar_state *state, *other;
    char name[16];

    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_create(&other));
    for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
        snprintf(name, sizeof name, "t.%d", d);
        CHECK_OK(add_cut(g, state, name, c->load, (oar_dtype)d, 0, &part[d]));
        CHECK_OK(add_cut(g, other, name, c->load, (oar_dtype)d, 1, &want[d]));
    }
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &runs));
    CHECK_OK(oar_checkpoint_load(runs, state, c->step, NULL));
    for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
        CHECK(memcmp(oar_tensor_data(part[d]), oar_tensor_data(want[d]),
                     (size_t)oar_tensor_count(part[d]) *
                         oar_dtype_size((oar_dtype)d)) == 0);
        oar_tensor_release(part[d]);
        oar_tensor_release(want[d]);
    }
    oar_checkpoint_close(runs);
    oar_state_destroy(other);
    oar_state_destroy(state);
    return OAR_OK;
}

static void what_n_ranks_saved_m_ranks_load_bitwise(void **state)
{
    int64_t step = 0;

    (void)state;
    for (int n = 1; n <= 8; n++)
        for (int how = 0; how < CUTS; how++) {
            cuts_case c = { .save = (cut)how, .step = step++ };

            assert_int_equal(ranks_run("sim", n, NULL, save_cuts, &c), OAR_OK);
            for (int m = 1; m <= 8; m++) {
                c.load = (cut)((how + m) % CUTS);
                assert_int_equal(ranks_run("sim", m, NULL, load_cuts, &c),
                                 OAR_OK);
            }
        }
}

/* ---- a run that stops and goes on ---------------------------------------- */

enum { WIDTH = 6, HIDDEN = 1100, STEPS = 14, STOP = 5 };

static oar_status stop_and_go_on(oar_group *g, void *arg)
{
    oar_checkpoint_opts opts = { .size = sizeof opts, .no_sync = 1 };
    int stage = *(const int *)arg;
    trained_net whole, first, second;
    oar_checkpoint *runs;

    CHECK_OK(trained_net_make(&whole, g, stage, WIDTH, HIDDEN));
    CHECK_OK(oar_loader_start(whole.loader, 0, 0));
    CHECK_OK(trained_net_train(&whole, STEPS));

    CHECK_OK(trained_net_make(&first, g, stage, WIDTH, HIDDEN));
    CHECK_OK(oar_loader_start(first.loader, 0, 0));
    CHECK_OK(trained_net_train(&first, STOP));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &runs));
    CHECK_OK(oar_checkpoint_save(runs, first.state, first.step, NULL));
    CHECK_OK(trained_net_train(&first,
                               STOP + 2)); /* what is saved stays as it was */
    trained_net_drop(&first);

    CHECK_OK(trained_net_make(&second, g, stage, WIDTH, HIDDEN));
    CHECK_OK(oar_checkpoint_load(runs, second.state, OAR_NEWEST, NULL));
    CHECK(second.step == STOP);
    CHECK_OK(trained_net_train(&second, STEPS));
    CHECK(trained_net_same_params(&whole, &second));
    oar_checkpoint_close(runs);
    trained_net_drop(&second);
    trained_net_drop(&whole);
    return OAR_OK;
}

static void a_run_that_stops_and_goes_on_is_the_run_that_did_not(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 2; stage++)
        for (int ranks = 1; ranks <= 3; ranks++) {
            assert_int_equal(
                ranks_run("sim", ranks, NULL, stop_and_go_on, &stage), OAR_OK);
            runs_folder_renew();
        }
    {
        int stage = 1;

        assert_int_equal(ranks_run("native", 2, NULL, stop_and_go_on, &stage),
                         OAR_OK);
    }
}

/* ---- what is refused ----------------------------------------------------- */

static oar_status refuse_wrong_uses(oar_group *g, void *arg)
{
    oar_checkpoint_opts opts = { .size = sizeof opts, .no_sync = 1 };
    float a[6] = { 1, 2, 3, 4, 5, 6 }, b[6];
    int64_t number = 10 + oar_group_rank(g);
    int rank = oar_group_rank(g);
    oar_place place = { .size = sizeof place, .whole = OAR_SHAPE(7) };
    oar_checkpoint *runs, *other;
    oar_state *good, *bad;
    int64_t step;

    (void)arg;
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &runs));
    CHECK(fails_with(oar_checkpoint_newest(runs, &step), OAR_E_NOT_FOUND,
                     "has no generation"));
    CHECK(fails_with(oar_checkpoint_open(g, runs_path, &opts, &other),
                     OAR_E_STATE, "is in use by another job: host "));
    CHECK_OK(oar_state_create(&good));
    CHECK_OK(oar_state_add_span(good, "model", "weight",
                                oar_span_of(a, 6, OAR_F32), OAR_SHAPE(2, 3),
                                NULL));
    CHECK_OK(oar_checkpoint_save(runs, good, 3, NULL));
    CHECK(fails_with(oar_checkpoint_save(runs, good, 3, NULL), OAR_E_STATE,
                     "has step 3 already"));
    CHECK(fails_with(oar_checkpoint_save(runs, good, -3, NULL), OAR_E_ARG,
                     "step -3"));
    CHECK(fails_with(oar_checkpoint_load(runs, good, 4, NULL), OAR_E_NOT_FOUND,
                     "no generation step-000000000004"));

    /* numbers that differ between ranks */
    CHECK_OK(oar_state_create(&bad));
    CHECK_OK(oar_state_add_i64(bad, "n", &number));
    CHECK(fails_with(oar_checkpoint_save(runs, bad, 5, NULL), OAR_E_MISMATCH,
                     "\"i64.n\" is 10 on rank 0, and 11 on rank 1"));
    oar_state_destroy(bad);

    /* parts with a gap */
    CHECK_OK(oar_state_create(&bad));
    place.offset[0] = 4 * rank;
    CHECK_OK(oar_state_add_span(bad, "model", "weight",
                                oar_span_of(a, 3, OAR_F32), OAR_SHAPE(3),
                                &place));
    CHECK(fails_with(oar_checkpoint_save(runs, bad, 5, NULL), OAR_E_ARG,
                     "weight"));
    oar_state_destroy(bad);

    /* another shape, a missing name, an unused one */
    CHECK_OK(oar_state_create(&bad));
    CHECK_OK(oar_state_add_span(bad, "model", "weight",
                                oar_span_of(b, 6, OAR_F32), OAR_SHAPE(3, 2),
                                NULL));
    CHECK(fails_with(oar_checkpoint_load(runs, bad, OAR_NEWEST, NULL),
                     OAR_E_SHAPE, "is [2, 3] in the checkpoint, and [3, 2]"));
    oar_state_destroy(bad);
    CHECK_OK(oar_state_create(&bad));
    CHECK_OK(oar_state_add_span(bad, "model", "weigth",
                                oar_span_of(b, 6, OAR_F32), OAR_SHAPE(2, 3),
                                NULL));
    CHECK(fails_with(oar_checkpoint_load(runs, bad, OAR_NEWEST, NULL),
                     OAR_E_NOT_FOUND,
                     "nearest name to the first is \"weight\""));
    oar_state_destroy(bad);
    CHECK_OK(oar_state_create(&bad));
    CHECK(fails_with(oar_checkpoint_load(runs, bad, OAR_NEWEST, NULL),
                     OAR_E_NOT_FOUND, "does not want: \"weight\""));
    CHECK_OK(oar_checkpoint_load(
        runs, bad, OAR_NEWEST,
        OAR_OPTS(oar_load_opts, .partial = OAR_LOAD_UNUSED)));
    oar_state_destroy(bad);

    /* the group and the checkpoint go on */
    memset(a, 0, sizeof a);
    CHECK_OK(oar_checkpoint_load(runs, good, OAR_NEWEST, NULL));
    CHECK(a[0] == 1 && a[5] == 6);
    oar_state_destroy(good);
    oar_checkpoint_close(runs);
    return oar_barrier(g, NULL, NULL);
}

static void wrong_uses_are_refused_on_all_ranks(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("sim", 2, NULL, refuse_wrong_uses, NULL),
                     OAR_OK);
}

static oar_status load_transposed(oar_group *g, void *arg)
{
    oar_checkpoint_opts opts = { .size = sizeof opts, .no_sync = 1 };
    static const oar_rename rules[] = { { "h.*.w", "blocks.*.weight", 1 } };
    float a[6] = { 1, 2, 3, 4, 5, 6 };
    double b[6] = { 0 };
    oar_checkpoint *runs;
    oar_state *state;

    (void)arg;
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &runs));
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_span(state, "model", "h.0.w",
                                oar_span_of(a, 6, OAR_F32), OAR_SHAPE(2, 3),
                                NULL));
    CHECK_OK(oar_checkpoint_save(runs, state, 1, NULL));
    oar_state_destroy(state);
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_span(state, "model", "blocks.0.weight",
                                oar_span_of(b, 6, OAR_F64), OAR_SHAPE(3, 2),
                                NULL));
    CHECK(fails_with(oar_checkpoint_load(runs, state, 1, NULL), OAR_E_NOT_FOUND,
                     "lacks 1"));
    CHECK(fails_with(
        oar_checkpoint_load(runs, state, 1,
                            OAR_OPTS(oar_load_opts, .renames = 1,
                                     .rename = rules, .no_convert = 1)),
        OAR_E_DTYPE, "is f32 in the checkpoint, and f64"));
    CHECK_OK(oar_checkpoint_load(
        runs, state, 1,
        OAR_OPTS(oar_load_opts, .renames = 1, .rename = rules)));
    CHECK(b[0] == 1 && b[1] == 4 && b[2] == 2 && b[3] == 5 && b[4] == 3 &&
          b[5] == 6);
    oar_state_destroy(state);
    oar_checkpoint_close(runs);
    return OAR_OK;
}

/* Numbers, bytes and a scaler come back; older generations are pruned. */
static oar_status save_small_things(oar_group *g, void *arg)
{
    oar_checkpoint_opts opts = { .size = sizeof opts,
                                 .keep = 2,
                                 .keep_every = 4 };
    oar_checkpoint_stats stats = { .size = sizeof stats };
    oar_scaler_opts scaling = { .size = sizeof scaling };
    char bytes[5] = "abcd";
    double number = 0.1, scale;
    oar_generation *list;
    oar_checkpoint *runs;
    oar_scaler *scaler;
    oar_state *state;
    int64_t good;
    int count;

    (void)arg;
    CHECK_OK(oar_scaler_create(&scaling, &scaler));
    CHECK_OK(oar_scaler_set(scaler, 1024, 3));
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_bytes(state, "bytes", bytes, sizeof bytes));
    CHECK_OK(oar_state_add_f64(state, "number", &number));
    CHECK_OK(oar_state_add_scaler(state, "scaler", scaler));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &runs));
    for (int64_t step = 3; step <= 8; step++)
        CHECK_OK(oar_checkpoint_save(
            runs, state, step,
            OAR_OPTS(oar_save_opts, .keep = step == 5, .note = "a note")));
    CHECK_OK(oar_checkpoint_read_stats(runs, &stats));
    CHECK(stats.step == 8 && stats.all_bytes == sizeof bytes);
    CHECK_OK(oar_barrier(g, NULL, NULL)); /* rank 0 has pruned */
    CHECK_OK(oar_generations(runs_path, &count, &list));
    CHECK(count == 4 && list[0].step == 4 && list[1].step == 5 &&
          list[2].step == 7 && list[3].step == 8);
    CHECK(list[3].complete && strcmp(list[3].note, "a note") == 0);
    oar_free(list);
    memset(bytes, 'x', sizeof bytes);
    number = 7;
    CHECK_OK(oar_scaler_set(scaler, 2, 0));
    CHECK_OK(oar_checkpoint_load(runs, state, 4, NULL));
    CHECK(memcmp(bytes, "abcd", 5) == 0 && number == 0.1);
    CHECK_OK(oar_scaler_read(scaler, &scale, &good));
    CHECK(scale == 1024 && good == 3);
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    oar_scaler_destroy(scaler);
    return OAR_OK;
}

static void small_things_come_back_and_old_generations_go(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("sim", 2, NULL, save_small_things, NULL),
                     OAR_OK);
}

static void renames_transposes_and_conversions(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("sim", 2, NULL, load_transposed, NULL), OAR_OK);
}

#define TEST(name) \
    cmocka_unit_test_setup_teardown(name, runs_folder_make, runs_folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_n_ranks_saved_m_ranks_load_bitwise),
        TEST(a_run_that_stops_and_goes_on_is_the_run_that_did_not),
        TEST(wrong_uses_are_refused_on_all_ranks),
        TEST(renames_transposes_and_conversions),
        TEST(small_things_come_back_and_old_generations_go),
    };

    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
