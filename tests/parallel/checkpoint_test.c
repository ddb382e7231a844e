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

static char folder[FOLDER_PATH], path[FOLDER_PATH + 32];

static int open_folder(void **state)
{
    (void)state;
    folder_make(folder);
    snprintf(path, sizeof path, "%s/runs", folder);
    return 0;
}

static int close_folder(void **state)
{
    char command[FOLDER_PATH + 40];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

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
    CHECK_OK(oar_checkpoint_open(g, path, &opts, &runs));
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
    CHECK_OK(oar_checkpoint_open(g, path, &opts, &runs));
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

#define TEST(name) \
    cmocka_unit_test_setup_teardown(name, open_folder, close_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_n_ranks_saved_m_ranks_load_bitwise),
    };

    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
