/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogs: a generation without ranks. Tensors are put together whatever the
 * ranks and the cut; damage is found; exports and other numbers of ranks hold
 * the same numbers. */
#include "support/ranks.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <oarsong/checkpoint.h>
#include <oarsong/layers.h>
#include <oarsong/ops.h>
#include <oarsong/safetensors.h>

#include "support/last_error.h"
#include "support/leak_check.h"

enum { ROWS = 7, COLUMNS = 10, STEP = 100 };

static char folder[FOLDER_PATH], runs_path[FOLDER_PATH + 32],
    other_path[FOLDER_PATH + 32];

static int open_folder(void **state)
{
    (void)state;
    folder_make(folder);
    snprintf(runs_path, sizeof runs_path, "%s/runs", folder);
    snprintf(other_path, sizeof other_path, "%s/other", folder);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    return folder_remove(folder);
}

/* ---- what is saved ------------------------------------------------------- */

static oar_tensor *numbers_of(oar_dtype dtype)
{
    return oar_uniform(NULL, dtype, OAR_SHAPE(ROWS, COLUMNS), 3, 0, 2);
}

/* Adds this rank's rows, columns or flat part of a tensor: number % 3. */
static oar_status add_part(oar_group *g, oar_state *state, const char *name,
                           oar_dtype dtype, int number)
{
    oar_shape whole = OAR_SHAPE(ROWS, COLUMNS), part = whole;
    oar_place place = { .size = sizeof place, .whole = whole };
    int rank = oar_group_rank(g), ranks = oar_group_size(g), dim = number % 3;
    oar_tensor *all = numbers_of(dtype), *view, *copy;

    if (dim == 2) {
        int64_t first = rank * ROWS * COLUMNS / ranks;
        int64_t end = (rank + 1) * ROWS * COLUMNS / ranks;
        oar_tensor *line = oar_reshape(NULL, all, OAR_SHAPE(ROWS * COLUMNS));

        view = oar_narrow(NULL, line, 0, first, end - first);
        oar_tensor_release(line);
        place.flat = 1;
        place.first = first;
    } else {
        CHECK_OK(oar_place_of_rank(whole, dim, rank, ranks, &place, &part));
        view = oar_narrow(NULL, all, dim, place.offset[dim], part.dim[dim]);
    }
    copy = oar_contiguous(NULL, view);
    CHECK(copy != NULL);
    CHECK_OK(oar_state_add_tensor(state, "model", name, copy, &place));
    oar_tensor_release(copy);
    oar_tensor_release(view);
    oar_tensor_release(all);
    return OAR_OK;
}

/* Saves a tensor of each dtype in parts, a small whole one, an empty one and a
 * scalar, a matrix with two names, and a number. */
static oar_status save_parts(oar_group *g, void *arg)
{
    oar_checkpoint_opts opts = { .size = sizeof opts,
                                 .no_sync = 1,
                                 .block_bytes = 64 << 10 };
    float bias[3] = { 1, 2, 3 }, scalar = 5;
    int64_t step = STEP;
    oar_module *layer[2], *twice;
    oar_checkpoint *runs;
    oar_state *state;
    char name[16];

    (void)arg;
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_linear_create(2, 2, 1, NULL, &layer[0]));
    layer[1] = oar_module_retain(layer[0]);
    CHECK_OK(oar_sequential_create(2, layer, &twice));
    CHECK_OK(oar_state_add_module(state, twice, "twice."));
    oar_module_release(twice);
    for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
        snprintf(name, sizeof name, "t.%d", d);
        CHECK_OK(add_part(g, state, name, (oar_dtype)d, d));
    }
    CHECK_OK(oar_state_add_span(state, "optim", "bias",
                                oar_span_of(bias, 3, OAR_F32), OAR_SHAPE(3),
                                NULL));
    CHECK_OK(oar_state_add_span(state, "optim", "empty",
                                oar_span_of(bias, 0, OAR_F32), OAR_SHAPE(0, 2),
                                NULL));
    CHECK_OK(oar_state_add_span(state, "optim", "scalar",
                                oar_span_of(&scalar, 1, OAR_F32), OAR_SCALAR,
                                NULL));
    CHECK_OK(oar_state_add_i64(state, "step", &step));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &runs));
    CHECK_OK(oar_checkpoint_save(runs, state, STEP,
                                 OAR_OPTS(oar_save_opts, .note = "of parts")));
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    return OAR_OK;
}

static void assert_same(oar_tensor *got, oar_tensor *want)
{
    if (got == NULL)
        fail_msg("%s", oar_last_error_text());
    assert_int_equal(oar_tensor_dtype(got), oar_tensor_dtype(want));
    assert_int_equal(oar_tensor_count(got), oar_tensor_count(want));
    assert_memory_equal(oar_tensor_const_data(got), oar_tensor_const_data(want),
                        (size_t)oar_tensor_count(want) *
                            oar_dtype_size(oar_tensor_dtype(want)));
}

static void check_parts(oar_catalog *catalog)
{
    char name[16];

    assert_int_equal(oar_catalog_step(catalog), STEP);
    assert_int_equal(oar_catalog_tensors(catalog), OAR_DTYPE_COUNT + 7);
    for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
        oar_tensor *want = numbers_of((oar_dtype)d), *got;

        snprintf(name, sizeof name, "t.%d", d);
        got = oar_catalog_tensor(catalog, "model", name);
        assert_same(got, want);
        oar_tensor_release(got);
        oar_tensor_release(want);
    }
}

/* ---- tests --------------------------------------------------------------- */

static void tensors_are_put_together_whatever_the_ranks(void **state)
{
    (void)state;
    for (int n = 1; n <= 8; n++) {
        leak_check before;
        oar_catalog *catalog;

        assert_int_equal(ranks_run("sim", n, NULL, save_parts, NULL), OAR_OK);
        before = leak_check_begin();
        OK(oar_catalog_open(runs_path, &catalog));
        check_parts(catalog);
        OK(oar_catalog_verify(catalog, NULL, NULL));
        oar_catalog_close(catalog);
        leak_check_end(&before);
        close_folder(state);
        open_folder(state);
    }
}

static void entries_and_values_are_listed(void **state)
{
    oar_catalog_entry e = oar_catalog_entry_init();
    oar_generation g;
    oar_catalog *catalog;
    const char *name, *text;
    oar_tensor *got;

    (void)state;
    assert_int_equal(ranks_run("sim", 3, NULL, save_parts, NULL), OAR_OK);
    OK(oar_catalog_open(runs_path, &catalog));
    OK(oar_catalog_describe(catalog, &g));
    assert_int_equal(g.ranks, 3);
    assert_string_equal(g.note, "of parts");
    assert_string_equal(g.name, "step-000000000100");
    OK(oar_catalog_entry_at(catalog, 0, &e));
    assert_string_equal(e.section, "model");
    assert_string_equal(e.name, "t.0");
    assert_int_equal(e.shape.dim[1], COLUMNS);
    assert_true(e.chunks >= 3);
    OK(oar_catalog_find(catalog, "model", "twice.1.weight", &e));
    assert_string_equal(e.alias_of, "twice.0.weight");
    OK(oar_catalog_entry_at(catalog, oar_catalog_tensors(catalog) - 1, &e));
    assert_string_equal(e.name, "twice.1.weight");
    got = oar_catalog_tensor(catalog, "model", "twice.1.weight");
    assert_int_equal(oar_tensor_count(got), 4);
    oar_tensor_release(got);
    OK(oar_catalog_find(catalog, NULL, "scalar", &e));
    assert_null(e.alias_of);
    assert_string_equal(e.section, "optim");
    assert_int_equal(e.bytes, 4);
    got = oar_catalog_tensor(catalog, NULL, "empty");
    assert_int_equal(oar_tensor_shape(got).dim[1], 2);
    oar_tensor_release(got);
    assert_int_equal(oar_catalog_values(catalog), 1);
    OK(oar_catalog_value_at(catalog, 0, &name, &text));
    assert_string_equal(name, "i64.step");
    assert_string_equal(text, "100");
    assert_fails_with(oar_catalog_find(catalog, "model", "t.99", &e),
                      OAR_E_NOT_FOUND, "the nearest name is \"t.9\"");
    assert_fails_with(oar_catalog_entry_at(catalog, 99, &e), OAR_E_ARG, "99");
    assert_fails_with(oar_catalog_value_at(catalog, 1, &name, &text), OAR_E_ARG,
                      "value 1 of 1");
    assert_null(oar_catalog_tensor(catalog, "optim", "t.1"));
    oar_catalog_close(catalog);
}

static void a_generation_may_have_any_name_and_place(void **state)
{
    char command[3 * sizeof runs_path + 80];
    oar_catalog *catalog;

    (void)state;
    assert_int_equal(ranks_run("sim", 2, NULL, save_parts, NULL), OAR_OK);
    snprintf(command, sizeof command,
             "cp -r '%s/step-000000000100' '%s'; ln -s other '%s/link'",
             runs_path, other_path, folder);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, "%s/link/", folder);
    OK(oar_catalog_open(command, &catalog));
    check_parts(catalog);
    oar_catalog_close(catalog);
    assert_fails_with(oar_catalog_open(folder, &catalog), OAR_E_NOT_FOUND,
                      "has no generation");
    assert_fails_with(oar_catalog_open("/nowhere", &catalog), OAR_E_NOT_FOUND,
                      "/nowhere");
}

/* Changes a byte of a file of the only generation. */
static void damage(const char *file, off_t at)
{
    char path[sizeof runs_path + 120];
    unsigned char byte;
    int fd;

    snprintf(path, sizeof path, "%s/step-000000000100/%s", runs_path, file);
    fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

typedef struct verified {
    int files, damaged;
    char last[160];
} verified;

static void count_file(void *arg, const char *file, oar_status status)
{
    verified *v = arg;

    v->files++;
    if (status == OAR_OK)
        return;
    v->damaged++;
    snprintf(v->last, sizeof v->last, "%s", file);
}

static void damage_is_found_and_named(void **state)
{
    const char *file = "optim/optim-00001-of-00001.safetensors";
    char path[sizeof runs_path + 120];
    verified v = { 0 };
    oar_catalog *catalog;

    (void)state;
    assert_int_equal(ranks_run("sim", 2, NULL, save_parts, NULL), OAR_OK);
    OK(oar_catalog_open(runs_path, &catalog));
    OK(oar_catalog_verify(catalog, count_file, &v));
    assert_true(v.files >= 3 && v.damaged == 0);
    damage(file, 4096 + 5);
    assert_fails_with(oar_catalog_verify(catalog, count_file, &v), OAR_E_DATA,
                      "block 0 of optim/optim-00001-of-00001.safetensors (from "
                      "byte 0) is damaged: its checksum is ");
    assert_int_equal(v.damaged, 1);
    assert_string_equal(v.last, file);
    assert_null(oar_catalog_tensor(catalog, "optim", "bias"));
    assert_int_equal(oar_last_error()->status, OAR_E_DATA);
    assert_fails_with(oar_catalog_reshard(catalog, other_path, 2), OAR_E_DATA,
                      "is damaged");
    assert_fails_with(
        oar_catalog_export(catalog, other_path,
                           OAR_OPTS(oar_export_opts, .section = "optim")),
        OAR_E_STATE, "not empty"); /* the lock of reshard */
    damage(file, 4096 + 5);
    OK(oar_catalog_verify(catalog, NULL, NULL));
    snprintf(path, sizeof path, "%s/step-000000000100/%s", runs_path, file);
    assert_int_equal(truncate(path, 4096), 0);
    assert_fails_with(oar_catalog_verify(catalog, NULL, NULL), OAR_E_DATA,
                      "has 4096 bytes, not the ");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_fails_with(oar_catalog_verify(catalog, NULL, NULL), OAR_E_DATA,
                      "it is a symbolic link");
    oar_catalog_close(catalog);
    damage("index.json", 40);
    snprintf(path, sizeof path, "%s/step-000000000100", runs_path);
    assert_fails_with(oar_catalog_open(path, &catalog), OAR_E_DATA, "checksum");
}

static void other_ranks_have_the_same_numbers(void **state)
{
    oar_catalog *catalog, *again;
    oar_generation g;

    assert_int_equal(ranks_run("sim", 3, NULL, save_parts, NULL), OAR_OK);
    OK(oar_catalog_open(runs_path, &catalog));
    for (int ranks = 1; ranks <= 8; ranks++) {
        leak_check before = leak_check_begin();
        char command[sizeof other_path + 20];

        OK(oar_catalog_reshard(catalog, other_path, ranks));
        assert_fails_with(oar_catalog_reshard(catalog, other_path, ranks),
                          OAR_E_STATE, "has step 100 already");
        OK(oar_catalog_open(other_path, &again));
        check_parts(again);
        OK(oar_catalog_describe(again, &g));
        assert_int_equal(g.ranks, ranks);
        assert_string_equal(g.note, "of parts");
        assert_int_equal(oar_catalog_values(again), 1);
        OK(oar_catalog_verify(again, NULL, NULL));
        oar_catalog_close(again);
        leak_check_end(&before);
        snprintf(command, sizeof command, "rm -r '%s'", other_path);
        assert_int_equal(system(command), 0);
    }
    assert_fails_with(oar_catalog_reshard(catalog, other_path, 0), OAR_E_ARG,
                      "0 ranks");
    oar_catalog_close(catalog);
    (void)state;
}

static oar_status load_after_reshard(oar_group *g, void *arg)
{
    oar_checkpoint_opts opts = { .size = sizeof opts, .read_only = 1 };
    oar_checkpoint *runs;
    oar_state *state;
    oar_tensor *got = oar_zeros(NULL, OAR_F32, OAR_SHAPE(ROWS, COLUMNS));
    oar_tensor *want = numbers_of(OAR_F32);

    (void)arg;
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_tensor(state, "model", "t.0", got, NULL));
    CHECK_OK(oar_checkpoint_open(g, other_path, &opts, &runs));
    CHECK_OK(oar_checkpoint_load(
        runs, state, OAR_NEWEST,
        OAR_OPTS(oar_load_opts, .partial = OAR_LOAD_UNUSED)));
    CHECK(memcmp(oar_tensor_const_data(got), oar_tensor_const_data(want),
                 ROWS * COLUMNS * sizeof(float)) == 0);
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    oar_tensor_release(got);
    oar_tensor_release(want);
    return OAR_OK;
}

static void a_resharded_generation_is_loaded_by_ranks(void **state)
{
    oar_catalog *catalog;

    (void)state;
    assert_int_equal(ranks_run("sim", 3, NULL, save_parts, NULL), OAR_OK);
    OK(oar_catalog_open(runs_path, &catalog));
    OK(oar_catalog_reshard(catalog, other_path, 5));
    oar_catalog_close(catalog);
    assert_int_equal(ranks_run("sim", 2, NULL, load_after_reshard, NULL),
                     OAR_OK);
}

/* Tensors that are large enough to be cut, in several blocks. */
static void large_tensors_are_cut_and_put_together_again(void **state)
{
    oar_checkpoint_opts opts = { .size = sizeof opts,
                                 .no_sync = 1,
                                 .block_bytes = 64 << 10 };
    oar_tensor *large =
        oar_uniform(NULL, OAR_F32, OAR_SHAPE(701, 211), 3, 0, 2);
    char path[sizeof runs_path + 20];
    oar_checkpoint *runs;
    oar_state *saved;

    (void)state;
    OK(oar_state_create(&saved));
    OK(oar_state_add_tensor(saved, "model", "large", large, NULL));
    OK(oar_checkpoint_open(NULL, runs_path, &opts, &runs));
    OK(oar_checkpoint_save(runs, saved, 1, NULL));
    oar_checkpoint_close(runs);
    oar_state_destroy(saved);
    snprintf(path, sizeof path, "%s", runs_path);
    for (int ranks = 8; ranks >= 1; ranks--) { /* each from the one before */
        oar_catalog_entry e = oar_catalog_entry_init();
        oar_catalog *catalog, *again;
        oar_tensor *got;

        OK(oar_catalog_open(path, &catalog));
        snprintf(path, sizeof path, "%s/of-%d", folder, ranks);
        OK(oar_catalog_reshard(catalog, path, ranks));
        oar_catalog_close(catalog);
        OK(oar_catalog_open(path, &again));
        OK(oar_catalog_find(again, "model", "large", &e));
        assert_int_equal(e.chunks, ranks);
        got = oar_catalog_tensor(again, "model", "large");
        assert_same(got, large);
        oar_tensor_release(got);
        oar_catalog_close(again);
    }
    oar_tensor_release(large);
}

/* ---- exports ------------------------------------------------------------- */

static void every_dtype_is_exported_and_read_back(void **state)
{
    char path[sizeof other_path + 40], name[16];
    oar_safetensors *file;
    oar_catalog *catalog;
    leak_check before;

    (void)state;
    assert_int_equal(ranks_run("sim", 3, NULL, save_parts, NULL), OAR_OK);
    before = leak_check_begin();
    OK(oar_catalog_open(runs_path, &catalog));
    OK(oar_catalog_export(catalog, other_path, NULL));
    assert_fails_with(oar_catalog_export(catalog, other_path, NULL),
                      OAR_E_STATE, "is there already and not empty");
    snprintf(path, sizeof path, "%s/model.safetensors", other_path);
    OK(oar_safetensors_open(path, NULL, &file));
    assert_int_equal(oar_safetensors_count(file), OAR_DTYPE_COUNT + 2);
    for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
        oar_tensor *want = numbers_of((oar_dtype)d), *got;

        snprintf(name, sizeof name, "t.%d", d);
        got = oar_safetensors_tensor(NULL, file, name);
        assert_same(got, want);
        oar_tensor_release(got);
        oar_tensor_release(want);
    }
    oar_safetensors_close(file);
    oar_catalog_close(catalog);
    leak_check_end(&before);
}

static void exports_rename_transpose_convert_and_split(void **state)
{
    const oar_rename rename[] = { { "t.0", "turned", 1 }, { "t.*", "x.*", 0 } };
    char path[sizeof other_path + 60];
    oar_tensor *want = numbers_of(OAR_F32), *got;
    oar_catalog *catalog, *again;
    oar_shape shape;

    (void)state;
    assert_int_equal(ranks_run("sim", 3, NULL, save_parts, NULL), OAR_OK);
    OK(oar_catalog_open(runs_path, &catalog));
    OK(oar_catalog_export(catalog, other_path,
                          OAR_OPTS(oar_export_opts, .file_bytes = 600,
                                   .has_dtype = 1, .dtype = OAR_F64,
                                   .renames = 2, .rename = rename)));
    oar_catalog_close(catalog);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", other_path);
    assert_int_equal(access(path, R_OK), 0);
    /* read back by way of an import, which reads the index */
    snprintf(path, sizeof path, "%s/again", folder);
    OK(oar_checkpoint_import(other_path, path, 7, NULL));
    OK(oar_catalog_open(path, &again));
    assert_int_equal(oar_catalog_step(again), 7);
    assert_int_equal(oar_catalog_tensors(again), OAR_DTYPE_COUNT + 2);
    got = oar_catalog_tensor(again, "model", "turned");
    shape = oar_tensor_shape(got);
    assert_true(shape.dim[0] == COLUMNS && shape.dim[1] == ROWS);
    assert_int_equal(oar_tensor_dtype(got), OAR_F64);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        assert_true(((const double *)oar_tensor_const_data(
                        got))[i % COLUMNS * ROWS + i / COLUMNS] ==
                    ((const float *)oar_tensor_const_data(want))[i]);
    oar_tensor_release(got);
    oar_tensor_release(want);
    got = oar_catalog_tensor(again, "model", "x.4");
    want = numbers_of((oar_dtype)4);
    assert_same(got, want);
    oar_tensor_release(got);
    oar_tensor_release(want);
    oar_catalog_close(again);
}

static void wrong_exports_are_refused(void **state)
{
    const oar_rename same[] = { { "t.0", "t.1", 0 } },
                     turn[] = { { "bias", "b", 1 } };
    oar_catalog *catalog;

    (void)state;
    assert_int_equal(ranks_run("sim", 1, NULL, save_parts, NULL), OAR_OK);
    OK(oar_catalog_open(runs_path, &catalog));
    assert_fails_with(oar_catalog_export(catalog, other_path,
                                         OAR_OPTS(oar_export_opts, .renames = 1,
                                                  .rename = same)),
                      OAR_E_ARG, "both become \"t.1\"");
    assert_fails_with(
        oar_catalog_export(catalog, other_path,
                           OAR_OPTS(oar_export_opts, .section = "optim",
                                    .renames = 1, .rename = turn)),
        OAR_E_SHAPE, "not a matrix");
    assert_fails_with(
        oar_catalog_export(catalog, other_path,
                           OAR_OPTS(oar_export_opts, .section = "own")),
        OAR_E_NOT_FOUND, "no tensors in \"own\"");
    assert_fails_with(
        oar_catalog_export(
            catalog, other_path,
            OAR_OPTS(oar_export_opts, .has_dtype = 1, .dtype = OAR_I8)),
        OAR_E_DTYPE, "floats as i8");
    assert_int_not_equal(access(other_path, F_OK), 0);
    assert_fails_with(oar_catalog_export(catalog, "/nowhere/at/all", NULL),
                      OAR_E_SYSTEM, "/nowhere/at");
    oar_catalog_close(catalog);
}

static void imports_refuse_what_they_cannot_read(void **state)
{
    char path[sizeof other_path + 20];
    int fd;

    (void)state;
    assert_int_equal(mkdir(other_path, 0777), 0);
    assert_fails_with(oar_checkpoint_import(other_path, runs_path, 0, NULL),
                      OAR_E_NOT_FOUND, "neither model.safetensors nor");
    snprintf(path, sizeof path, "%s/.metadata", other_path);
    fd = open(path, O_CREAT | O_WRONLY, 0666);
    assert_true(fd >= 0 && close(fd) == 0);
    assert_fails_with(oar_checkpoint_import(other_path, runs_path, 0, NULL),
                      OAR_E_UNSUPPORTED, "dcp_to_torch");
    assert_int_not_equal(access(runs_path, F_OK), 0);
}

static oar_status open_catalog(void *arg)
{
    oar_catalog *catalog = NULL;
    oar_status status = oar_catalog_open(runs_path, &catalog);

    (void)arg;
    oar_catalog_close(catalog);
    return status;
}

static oar_status export_catalog(void *arg)
{
    char command[sizeof other_path + 20];
    const oar_rename rename[] = { { "t.0", "turned", 1 } };
    oar_status status = oar_catalog_export(
        arg, other_path,
        OAR_OPTS(oar_export_opts, .file_bytes = 1000, .has_dtype = 1,
                 .dtype = OAR_F64, .renames = 1, .rename = rename));

    snprintf(command, sizeof command, "rm -rf '%s'*", other_path);
    return system(command) == 0 ? status : OAR_E_SYSTEM;
}

static oar_status reshard_catalog(void *arg)
{
    oar_status status = oar_catalog_reshard(arg, other_path, 2);

    return folder_remove(other_path) == 0 ? status : OAR_E_SYSTEM;
}

static void every_failing_allocation_is_reported(void **state)
{
    oar_catalog *catalog;

    (void)state;
    assert_int_equal(ranks_run("sim", 2, NULL, save_parts, NULL), OAR_OK);
    fail_each_allocation(open_catalog, NULL);
    OK(oar_catalog_open(runs_path, &catalog));
    fail_each_allocation(export_catalog, catalog);
    fail_each_allocation(reshard_catalog, catalog);
    oar_catalog_close(catalog);
}

/* ---- pruning ------------------------------------------------------------- */

static void note_step(void *arg, int64_t step)
{
    int64_t *sum = arg;

    *sum += step;
}

static void an_incomplete_generation_does_not_count_as_kept(void **state)
{
    oar_checkpoint_opts opts = { .size = sizeof opts, .no_sync = 1 };
    char path[sizeof runs_path + 60];
    int64_t number = 1, sum = 0;
    oar_generation *list;
    oar_checkpoint *runs;
    oar_state *saved;
    int count;

    (void)state;
    OK(oar_state_create(&saved));
    OK(oar_state_add_i64(saved, "number", &number));
    OK(oar_checkpoint_open(NULL, runs_path, &opts, &runs));
    for (int64_t step = 1; step <= 5; step++)
        OK(oar_checkpoint_save(runs, saved, step,
                               OAR_OPTS(oar_save_opts, .keep = step == 1)));
    oar_checkpoint_close(runs);
    oar_state_destroy(saved);
    snprintf(path, sizeof path, "%s/step-000000000005/index.json", runs_path);
    assert_int_equal(truncate(path, 10), 0);
    opts.keep = 1;
    opts.keep_every = 3;
    opts.read_only = 1;
    OK(oar_checkpoint_open(NULL, runs_path, &opts, &runs));
    OK(oar_checkpoint_prune(runs, note_step, &sum));
    oar_checkpoint_close(runs);
    assert_int_equal(sum, 2);
    OK(oar_generations(runs_path, &count, &list));
    assert_int_equal(count, 5);
    assert_true(list[0].keep && !list[1].keep);
    oar_free(list);
    opts.read_only = 0;
    OK(oar_checkpoint_open(NULL, runs_path, &opts, &runs));
    OK(oar_checkpoint_prune(runs, NULL, NULL));
    oar_checkpoint_close(runs);
    OK(oar_generations(runs_path, &count, &list));
    assert_int_equal(count, 4);
    assert_true(list[1].step == 3 && list[2].step == 4 && list[2].complete &&
                !list[3].complete);
    oar_free(list);
}

/* ---- many tensors -------------------------------------------------------- */

/* Seconds of processors: the machine may be busy with other things. */
static double used_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void a_hundred_thousand_tensors_are_listed_in_a_second(void **state)
{
    enum { MANY = 100000 };
    oar_checkpoint_opts opts = { .size = sizeof opts, .no_sync = 1 };
    float *numbers = calloc(MANY, sizeof *numbers);
    double start, saved_s, opened_s, listed_s;
    oar_generation *list;
    oar_checkpoint *runs;
    oar_catalog *catalog;
    oar_state *saved;
    oar_tensor *got;
    char name[60];
    int count;

    (void)state;
    OK(oar_state_create(&saved));
    for (int i = 0; i < MANY; i++) {
        numbers[i] = (float)i;
        snprintf(name, sizeof name, "blocks.%d.attention.qkv.weight", i);
        OK(oar_state_add_span(saved, "model", name,
                              oar_span_of(&numbers[i], 1, OAR_F32),
                              OAR_SHAPE(1, 1), NULL));
    }
    OK(oar_checkpoint_open(NULL, runs_path, &opts, &runs));
    start = used_s();
    OK(oar_checkpoint_save(runs, saved, 1, NULL));
    saved_s = used_s() - start;
    oar_checkpoint_close(runs);
    oar_state_destroy(saved);
    free(numbers);

    start = used_s();
    OK(oar_catalog_open(runs_path, &catalog));
    opened_s = used_s() - start;
    assert_int_equal(oar_catalog_tensors(catalog), MANY);
    start = used_s();
    OK(oar_generations(runs_path, &count, &list));
    listed_s = used_s() - start;
    oar_free(list);
    got = oar_catalog_tensor(catalog, "model",
                             "blocks.99999.attention.qkv.weight");
    assert_true(got != NULL && *(float *)oar_tensor_data(got) == MANY - 1);
    oar_tensor_release(got);
    OK(oar_catalog_export(
        catalog, other_path,
        OAR_OPTS(oar_export_opts, .has_dtype = 1, .dtype = OAR_BF16)));
    oar_catalog_close(catalog);
    print_message("%d tensors: saved in %.2f s, opened in %.2f s, listed in "
                  "%.2f s\n",
                  MANY, saved_s, opened_s, listed_s);
#if defined __OPTIMIZE__ && !defined __SANITIZE_ADDRESS__ && \
    !defined __SANITIZE_THREAD__
    assert_true(opened_s < 1 && listed_s < 1);
#endif
}

#define TEST(name) \
    cmocka_unit_test_setup_teardown(name, open_folder, close_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(tensors_are_put_together_whatever_the_ranks),
        TEST(entries_and_values_are_listed),
        TEST(a_generation_may_have_any_name_and_place),
        TEST(damage_is_found_and_named),
        TEST(other_ranks_have_the_same_numbers),
        TEST(large_tensors_are_cut_and_put_together_again),
        TEST(a_resharded_generation_is_loaded_by_ranks),
        TEST(every_dtype_is_exported_and_read_back),
        TEST(exports_rename_transpose_convert_and_split),
        TEST(wrong_exports_are_refused),
        TEST(imports_refuse_what_they_cannot_read),
        TEST(every_failing_allocation_is_reported),
        TEST(an_incomplete_generation_does_not_count_as_kept),
        TEST(a_hundred_thousand_tensors_are_listed_in_a_second),
    };

    return cmocka_run_group_tests_name("catalog", tests, NULL, NULL);
}
