/* SPDX-License-Identifier: Apache-2.0 */
/* The cases that ferrotorch has for its distributed checkpoints, with its
 * numbers, and what it gets wrong. */
#include "support/ranks.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

#include "parallel/checkpoint/generation_index.h"
#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/runs_folder.h"

static const oar_checkpoint_opts quick = { .size = sizeof quick,
                                           .no_sync = 1,
                                           .block_bytes = 64 << 10 };

/* ---- from N ranks to M --------------------------------------------------- */

enum { MOST = 512 };

/* A tensor of 1, 2, 3, ..., cut along a dim by the ranks that save it and by
 * those that load it. */
typedef struct cut_case {
    const char *name;
    int rows, columns; /* columns 0: one dim */
    int dim, save, load;
    float want[4][6]; /* by rank that loads */
} cut_case;

static const cut_case cuts[] = {
    { "two ranks", 4, 0, 0, 2, 2, { { 1, 2 }, { 3, 4 } } },
    { "2 to 4", 8, 0, 0, 2, 4, { { 1, 2 }, { 3, 4 }, { 5, 6 }, { 7, 8 } } },
    { "4 to 2", 8, 0, 0, 4, 2, { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } } },
    { "rows, 2 to 4",
      4,
      3,
      0,
      2,
      4,
      { { 1, 2, 3 }, { 4, 5, 6 }, { 7, 8, 9 }, { 10, 11, 12 } } },
    { "columns, 2 to 4",
      2,
      4,
      1,
      2,
      4,
      { { 1, 5 }, { 2, 6 }, { 3, 7 }, { 4, 8 } } },
    { "3 to 2", 9, 0, 0, 3, 2, { { 1, 2, 3, 4, 5 }, { 6, 7, 8, 9 } } },
    { "1 to 4 each", 4, 0, 0, 2, 4, { { 1 }, { 2 }, { 3 }, { 4 } } },
    { "2 to 2", 4, 0, 0, 2, 2, { { 1, 2 }, { 3, 4 } } },
};

static oar_shape shape_of(const cut_case *c)
{
    return c->columns > 0 ? OAR_SHAPE(c->rows, c->columns) : OAR_SHAPE(c->rows);
}

/* Adds this rank's part as "weight", with its numbers or zeros. */
static oar_status add_part(oar_group *g, const cut_case *c, int filled,
                           oar_state *state, float *part, int64_t *count)
{
    oar_place place = { .size = sizeof place };
    oar_shape whole = shape_of(c), shape;
    int64_t columns;

    CHECK_OK(oar_place_of_rank(whole, c->dim, oar_group_rank(g),
                               oar_group_size(g), &place, &shape));
    columns = c->columns > 0 ? shape.dim[1] : 1;
    *count = shape.dim[0] * columns;
    for (int64_t i = 0; i < *count; i++) {
        int64_t row = place.offset[0] + i / columns;
        int64_t column = c->columns > 0 ? place.offset[1] + i % columns : 0;

        part[i] =
            !filled
                ? 0
                : (float)(1 + row * (c->columns > 0 ? c->columns : 1) + column);
    }
    return oar_state_add_span(state, "model", "weight",
                              oar_span_of(part, (size_t)*count, OAR_F32), shape,
                              &place);
}

static oar_status save_cut(oar_group *g, void *arg)
{
    float part[MOST];
    oar_checkpoint *runs;
    oar_state *state;
    int64_t count;

    CHECK_OK(oar_state_create(&state));
    CHECK_OK(add_part(g, arg, 1, state, part, &count));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_save(runs, state, 1, NULL));
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    return OAR_OK;
}

static oar_status load_cut(oar_group *g, void *arg)
{
    const cut_case *c = arg;
    float part[MOST];
    oar_checkpoint *runs;
    oar_state *state;
    int64_t count;

    CHECK_OK(oar_state_create(&state));
    CHECK_OK(add_part(g, c, 0, state, part, &count));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_load(runs, state, OAR_NEWEST, NULL));
    for (int64_t i = 0; i < count; i++)
        CHECK(part[i] == c->want[oar_group_rank(g)][i]);
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    return OAR_OK;
}

static void each_rank_has_its_part_again(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        cut_case c = cuts[i];

        if (ranks_run("sim", c.save, NULL, save_cut, &c) != OAR_OK ||
            ranks_run("sim", c.load, NULL, load_cut, &c) != OAR_OK)
            fail_msg("%s: %s", c.name, oar_last_error_text());
        runs_folder_renew();
    }
}

static oar_status save_and_load_two(oar_group *g, void *arg)
{
    float weight[4] = { 1, 2, 3, 4 }, bias[2] = { 0.1f, 0.2f };
    oar_checkpoint_stats stats = { .size = sizeof stats };
    oar_checkpoint *runs;
    oar_state *state;

    (void)arg;
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_span(state, "model", "weight",
                                oar_span_of(weight, 4, OAR_F32), OAR_SHAPE(4),
                                NULL));
    CHECK_OK(oar_state_add_span(state, "model", "bias",
                                oar_span_of(bias, 2, OAR_F32), OAR_SHAPE(2),
                                NULL));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_save(runs, state, 7, NULL));
    CHECK_OK(oar_checkpoint_read_stats(runs, &stats));
    CHECK(stats.step == 7 && stats.all_bytes == 24 && stats.bytes <= 24 &&
          stats.total_s >= stats.write_s);
    memset(weight, 0, sizeof weight);
    memset(bias, 0, sizeof bias);
    /* A strict load: these two entries, and no other. */
    CHECK_OK(oar_checkpoint_load(runs, state, OAR_NEWEST, NULL));
    CHECK(weight[0] == 1 && weight[1] == 2 && weight[2] == 3 && weight[3] == 4);
    CHECK(bias[0] == 0.1f && bias[1] == 0.2f);
    CHECK_OK(oar_checkpoint_read_stats(runs, &stats));
    CHECK(stats.step == 7 && stats.wanted_bytes == 24);
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    return OAR_OK;
}

static void one_rank_loads_what_it_saved(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("sim", 1, NULL, save_and_load_two, NULL),
                     OAR_OK);
    runs_folder_renew();
    assert_int_equal(save_and_load_two(NULL, NULL), OAR_OK); /* no group */
}

/* ---- parts of one's own -------------------------------------------------- */

/* One part of a tensor that one rank holds. */
typedef struct own_part {
    const char *name;
    int rank;
    oar_shape whole, shape;
    int64_t offset[2];
    int flat;
    float number[8];
} own_part;

typedef struct own_case {
    const char *what;
    own_part part[4];
    int64_t count; /* of the whole of the first name */
    float want[12];
    const char *second; /* another name, and its numbers */
    float want_second[6];
} own_case;

static const own_case owns[] = {
    { "concat of one dim",
      { { "w", 0, { 1, { 5 } }, { 1, { 2 } }, { 0 }, 0, { 1, 2 } },
        { "w", 1, { 1, { 5 } }, { 1, { 3 } }, { 2 }, 0, { 3, 4, 5 } } },
      5,
      { 1, 2, 3, 4, 5 },
      NULL,
      { 0 } },
    { "concat of rows",
      { { "w", 0, { 2, { 2, 3 } }, { 2, { 1, 3 } }, { 0 }, 0, { 1, 2, 3 } },
        { "w", 1, { 2, { 2, 3 } }, { 2, { 1, 3 } }, { 1 }, 0, { 4, 5, 6 } } },
      6,
      { 1, 2, 3, 4, 5, 6 },
      NULL,
      { 0 } },
    { "concat of columns",
      { { "w", 0, { 2, { 2, 2 } }, { 2, { 2, 1 } }, { 0, 0 }, 0, { 1, 3 } },
        { "w", 1, { 2, { 2, 2 } }, { 2, { 2, 1 } }, { 0, 1 }, 0, { 2, 4 } } },
      4,
      { 1, 2, 3, 4 },
      NULL,
      { 0 } },
    { "two tensors, 2 to 1",
      { { "w", 0, { 1, { 4 } }, { 1, { 2 } }, { 0 }, 0, { 1, 2 } },
        { "w", 1, { 1, { 4 } }, { 1, { 2 } }, { 2 }, 0, { 3, 4 } },
        { "x", 0, { 1, { 6 } }, { 1, { 3 } }, { 0 }, 0, { 10, 20, 30 } },
        { "x", 1, { 1, { 6 } }, { 1, { 3 } }, { 3 }, 0, { 40, 50, 60 } } },
      4,
      { 1, 2, 3, 4 },
      "x",
      { 10, 20, 30, 40, 50, 60 } },
    { "flat parts, which keep the shape",
      { { "w", 0, { 2, { 3, 4 } }, { 1, { 3 } }, { 0 }, 1, { 1, 2, 3 } },
        { "w", 1, { 2, { 3, 4 } }, { 1, { 3 } }, { 3 }, 1, { 4, 5, 6 } },
        { "w", 2, { 2, { 3, 4 } }, { 1, { 3 } }, { 6 }, 1, { 7, 8, 9 } },
        { "w", 3, { 2, { 3, 4 } }, { 1, { 3 } }, { 9 }, 1, { 10, 11, 12 } } },
      12,
      { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 },
      NULL,
      { 0 } },
    { "a scalar, held by all",
      { { "w", 0, { 0, { 0 } }, { 0, { 0 } }, { 0 }, 0, { 42 } },
        { "w", 1, { 0, { 0 } }, { 0, { 0 } }, { 0 }, 0, { 42 } } },
      1,
      { 42 },
      NULL,
      { 0 } },
};

static int64_t count_of(oar_shape shape)
{
    int64_t count = 1;

    for (int i = 0; i < shape.ndim; i++)
        count *= shape.dim[i];
    return count;
}

static oar_status save_own(oar_group *g, void *arg)
{
    const own_case *c = arg;
    float number[4][8];
    oar_checkpoint *runs;
    oar_state *state;

    CHECK_OK(oar_state_create(&state));
    for (int i = 0; i < 4 && c->part[i].name != NULL; i++) {
        const own_part *p = &c->part[i];
        oar_place place = { .size = sizeof place,
                            .whole = p->whole,
                            .offset = { p->offset[0], p->offset[1] },
                            .flat = p->flat,
                            .first = p->offset[0] };

        if (p->rank != oar_group_rank(g))
            continue;
        memcpy(number[i], p->number, sizeof number[i]);
        CHECK_OK(oar_state_add_span(
            state, "model", p->name,
            oar_span_of(number[i], (size_t)count_of(p->shape), OAR_F32),
            p->shape, &place));
    }
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_save(runs, state, 1, NULL));
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    return OAR_OK;
}

/* One process loads all of it. */
static void load_own(const own_case *c)
{
    float number[12] = { 0 }, second[6] = { 0 };
    oar_checkpoint *runs;
    oar_state *state;

    OK(oar_state_create(&state));
    OK(oar_state_add_span(state, "model", "w",
                          oar_span_of(number, (size_t)c->count, OAR_F32),
                          c->part[0].whole, NULL));
    if (c->second != NULL)
        OK(oar_state_add_span(state, "model", c->second,
                              oar_span_of(second, 6, OAR_F32), OAR_SHAPE(6),
                              NULL));
    OK(oar_checkpoint_open(NULL, runs_path, &quick, &runs));
    OK(oar_checkpoint_load(runs, state, OAR_NEWEST, NULL));
    assert_memory_equal(number, c->want, (size_t)c->count * sizeof number[0]);
    if (c->second != NULL)
        assert_memory_equal(second, c->want_second, sizeof second);
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
}

static void parts_of_any_size_are_joined(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof owns / sizeof owns[0]; i++) {
        own_case c = owns[i];
        int ranks = c.part[2].flat ? 4 : 2;

        print_message("%s\n", c.what);
        assert_int_equal(ranks_run("sim", ranks, NULL, save_own, &c), OAR_OK);
        load_own(&c);
        runs_folder_renew();
    }
}

/* ---- sizes and slices ---------------------------------------------------- */

static void sizes_of_parts(void **state)
{
    static const struct {
        int total, ranks;
        int want[4];
    } rows[] = { { 8, 4, { 2, 2, 2, 2 } },
                 { 12, 3, { 4, 4, 4 } },
                 { 9, 2, { 5, 4 } },
                 { 10, 3, { 4, 3, 3 } },
                 { 7, 4, { 2, 2, 2, 1 } } };
    oar_place place = { .size = sizeof place };
    oar_shape part;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int64_t r = 0, at = 0; r < rows[i].ranks; r++) {
            OK(oar_place_of_rank(OAR_SHAPE(rows[i].total), 0, (int)r,
                                 rows[i].ranks, &place, &part));
            assert_int_equal(part.dim[0], rows[i].want[r]);
            assert_int_equal(place.offset[0], at);
            at += part.dim[0];
        }
    assert_fails_with(oar_place_of_rank(OAR_SHAPE(4), 0, 5, 2, &place, &part),
                      OAR_E_RANK, "rank 5 of 2");
    assert_fails_with(oar_place_of_rank(OAR_SHAPE(4), 1, 0, 2, &place, &part),
                      OAR_E_SHAPE, "dim 1 of 1");
}

/* Reads part of a file's tensor. */
static void slice_is(oar_safetensors *file, const char *name, int64_t row,
                     int64_t column, oar_shape shape, const float *want)
{
    int64_t offset[2] = { row, column };
    oar_tensor *into = oar_zeros(NULL, OAR_F32, shape);

    assert_non_null(into);
    OK(oar_safetensors_read(file, name, offset, into));
    assert_memory_equal(oar_tensor_data(into), want,
                        (size_t)oar_tensor_count(into) * sizeof *want);
    oar_tensor_release(into);
}

static void slices_of_a_file(void **state)
{
    static const char *const name[] = { "line", "rows", "columns" };
    oar_tensor *tensor[3] = {
        oar_arange(NULL, OAR_F32, 5, 1, 1),
        NULL,
        NULL,
    };
    oar_tensor *twelve = oar_arange(NULL, OAR_F32, 12, 1, 1);
    oar_tensor *eight = oar_arange(NULL, OAR_F32, 8, 1, 1);
    oar_safetensors *file;

    (void)state;
    tensor[1] = oar_reshape(NULL, twelve, OAR_SHAPE(4, 3));
    tensor[2] = oar_reshape(NULL, eight, OAR_SHAPE(2, 4));
    OK(oar_safetensors_save(runs_path, 3, name, tensor, 0, NULL));
    OK(oar_safetensors_open(runs_path, NULL, &file));
    slice_is(file, "line", 0, 0, OAR_SHAPE(2), (float[]){ 1, 2 });
    slice_is(file, "line", 2, 0, OAR_SHAPE(3), (float[]){ 3, 4, 5 });
    slice_is(file, "rows", 1, 0, OAR_SHAPE(2, 3),
             (float[]){ 4, 5, 6, 7, 8, 9 });
    slice_is(file, "columns", 0, 1, OAR_SHAPE(2, 2), (float[]){ 2, 3, 6, 7 });
    oar_safetensors_close(file);
    for (int i = 0; i < 3; i++)
        oar_tensor_release(tensor[i]);
    oar_tensor_release(twelve);
    oar_tensor_release(eight);
}

/* ---- what a generation says of itself ------------------------------------ */

/* Reads a file of a step; the byte behind it can be written. */
static char *read_text(int step, const char *name, size_t *bytes)
{
    char full[FOLDER_PATH + 120];
    FILE *file;
    long size;
    char *text;

    snprintf(full, sizeof full, "%s/step-%012d/%s", runs_path, step, name);
    file = fopen(full, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    size = ftell(file);
    rewind(file);
    text = oari_alloc((size_t)size + 1, 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)size, file), size);
    fclose(file);
    *bytes = (size_t)size;
    return text;
}

static oar_status save_large(oar_group *g, void *arg)
{
    oar_place place = { .size = sizeof place };
    float *weight = calloc(64 * 512, sizeof *weight), bias[64] = { 1 };
    oar_checkpoint *runs;
    oar_state *state;
    oar_shape part;

    CHECK(weight != NULL);
    for (int i = 0; i < 64 * 512; i++)
        weight[i] = (float)i;
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_place_of_rank(OAR_SHAPE(256, 512), 0, oar_group_rank(g),
                               oar_group_size(g), &place, &part));
    CHECK_OK(oar_state_add_span(state, "model", "weight",
                                oar_span_of(weight, 64 * 512, OAR_F32), part,
                                &place));
    CHECK_OK(oar_place_of_rank(OAR_SHAPE(256), 0, oar_group_rank(g),
                               oar_group_size(g), &place, &part));
    CHECK_OK(oar_state_add_span(state, "model", "bias",
                                oar_span_of(bias, 64, OAR_F32), part, &place));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &quick, &runs));
    CHECK_OK(oar_checkpoint_save(runs, state, *(int *)arg, NULL));
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    free(weight);
    return OAR_OK;
}

static void an_index_is_read_as_it_was_written(void **state)
{
    int step = 1;
    const oari_ckpt_index_tensor *t;
    oari_json_writer again = { 0 };
    oari_ckpt_index index;
    size_t bytes;
    char *text, *copy;

    (void)state;
    assert_int_equal(ranks_run("sim", 4, NULL, save_large, &step), OAR_OK);
    text = read_text(1, "index.json", &bytes);
    copy = read_text(1, "index.json", &bytes);
    OK(oari_ckpt_index_read("index.json", copy, bytes, &index));
    assert_int_equal(index.ranks, 4);
    t = oari_ckpt_index_find(&index, "model", "weight");
    assert_non_null(t);
    assert_int_equal(t->chunks, 4);
    assert_int_equal(oari_ckpt_index_shape(&index, t).dim[0], 256);
    for (int64_t i = 0; i < 4; i++)
        assert_int_equal(
            oari_ckpt_index_box(&index, t, &index.chunk[t->first + i])
                .extent[0],
            64);
    oari_ckpt_index_write(&again, &index);
    assert_int_equal(again.text.count, bytes);
    assert_memory_equal(again.text.data, text, bytes);
    oari_vec_free(&again.text);
    oari_ckpt_index_free(&index);
    oari_free(text);
}

/* Blanks what may differ: the id, checksums (headers have the id), the time and
 * the step. */
static void blank(char *text, size_t bytes)
{
    static const char *const keys[] = { "\"saved_unix_s\":", "\"step\":",
                                        "\"step\\\":" };

    for (size_t i = 0; i + 16 <= bytes; i++) {
        size_t n = 0;

        while (i + n < bytes && isxdigit((unsigned char)text[i + n]))
            n++;
        if (n >= 16)
            memset(text + i, 'x', n);
        i += n;
    }
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        char *at = memmem(text, bytes, keys[k], strlen(keys[k]));

        for (at = at != NULL ? at + strlen(keys[k]) : NULL;
             at != NULL && isdigit((unsigned char)*at); at++)
            *at = 'x';
    }
}

static void the_same_state_has_the_same_bytes(void **state)
{
    static const char *const names[] = {
        "index.json", "model/shard-00001-model-00001-of-00001.safetensors",
        "model/shard-00004-model-00001-of-00001.safetensors"
    };
    int step[] = { 1, 2 };

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(ranks_run("sim", 4, NULL, save_large, &step[i]),
                         OAR_OK);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t bytes[2];
        char *text[2] = { read_text(1, names[i], &bytes[0]),
                          read_text(2, names[i], &bytes[1]) };

        assert_int_equal(bytes[0], bytes[1]);
        blank(text[0], bytes[0]);
        blank(text[1], bytes[1]);
        assert_memory_equal(text[0], text[1], bytes[0]);
        oari_free(text[0]);
        oari_free(text[1]);
    }
}

/* ---- what it gets wrong -------------------------------------------------- */

/* Files of a larger world do not stay: a generation is a folder of its own. */
static void no_file_of_a_larger_world_is_read(void **state)
{
    cut_case many = cuts[2]; /* saved by 4 ranks */
    oar_generation *list;
    int count;

    (void)state;
    assert_int_equal(ranks_run("sim", 4, NULL, save_cut, &many), OAR_OK);
    {
        float part[8] = { 9, 9, 9, 9, 9, 9, 9, 9 };
        oar_checkpoint *runs;
        oar_state *s;

        OK(oar_state_create(&s));
        OK(oar_state_add_span(s, "model", "weight",
                              oar_span_of(part, 8, OAR_F32), OAR_SHAPE(8),
                              NULL));
        OK(oar_checkpoint_open(NULL, runs_path, &quick, &runs));
        OK(oar_checkpoint_save(runs, s, 2, NULL));
        memset(part, 0, sizeof part);
        OK(oar_checkpoint_load(runs, s, OAR_NEWEST, NULL));
        assert_true(part[0] == 9 && part[7] == 9);
        OK(oar_checkpoint_load(runs, s, 1, NULL));
        assert_true(part[0] == 1 && part[7] == 8);
        oar_checkpoint_close(runs);
        oar_state_destroy(s);
    }
    OK(oar_generations(runs_path, &count, &list));
    assert_int_equal(count, 2);
    assert_int_equal(list[0].ranks, 4);
    assert_int_equal(list[1].ranks, 1);
    oar_free(list);
}

/* The bytes that this process has read by any call. */
static uint64_t bytes_read(void)
{
    FILE *file = fopen("/proc/self/io", "r");
    unsigned long long bytes = 0;

    if (file != NULL) {
        if (fscanf(file, "rchar: %llu", &bytes) != 1)
            bytes = 0;
        fclose(file);
    }
    return bytes;
}

static oar_status load_own_rows(oar_group *g, void *arg)
{
    oar_place place = { .size = sizeof place };
    oar_checkpoint_opts opts = { .size = sizeof opts, .threads = 1 };
    oar_checkpoint_stats stats = { .size = sizeof stats };
    uint64_t block = 64 << 10, index = 4096, before_read, read;
    float *part = calloc(256 * 512, sizeof *part);
    oar_checkpoint *runs;
    oar_state *state;
    oar_shape shape;

    (void)arg;
    CHECK(part != NULL);
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_place_of_rank(OAR_SHAPE(256, 512), 0, oar_group_rank(g),
                               oar_group_size(g), &place, &shape));
    CHECK_OK(oar_state_add_span(
        state, "model", "weight",
        oar_span_of(part, (size_t)(shape.dim[0] * 512), OAR_F32), shape,
        &place));
    CHECK_OK(oar_checkpoint_open(g, runs_path, &opts, &runs));
    before_read = bytes_read();
    CHECK_OK(oar_checkpoint_load(
        runs, state, OAR_NEWEST,
        OAR_OPTS(oar_load_opts, .partial = OAR_LOAD_UNUSED)));
    read = bytes_read() - before_read;
    CHECK_OK(oar_checkpoint_read_stats(runs, &stats));
    CHECK(stats.wanted_bytes == (uint64_t)shape.dim[0] * 512 * 4);
    CHECK(stats.bytes <= stats.wanted_bytes + 4 * block);
    CHECK(before_read == 0 || read <= stats.bytes + 4 * index);
    for (int64_t i = 0; i < shape.dim[0] * 512; i++)
        CHECK(part[i] == (float)((place.offset[0] * 512 + i) % (64 * 512)));
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    free(part);
    return OAR_OK;
}

static void each_rank_reads_what_it_wants_only(void **state)
{
    int step = 1;

    (void)state;
    assert_int_equal(ranks_run("sim", 4, NULL, save_large, &step), OAR_OK);
    for (int ranks = 2; ranks <= 5; ranks++)
        assert_int_equal(ranks_run("native", ranks, NULL, load_own_rows, NULL),
                         OAR_OK);
}

/* A load needs its blocks, not the files. */
static void a_load_does_not_hold_the_files(void **state)
{
    enum { BYTES = 48 << 20 };
    float *part = malloc(BYTES);
    struct rusage before, after;
    oar_checkpoint *runs;
    oar_state *s;

    (void)state;
    assert_non_null(part);
    for (int i = 0; i < BYTES / 4; i++)
        part[i] = (float)i;
    OK(oar_state_create(&s));
    OK(oar_state_add_span(s, "model", "weight",
                          oar_span_of(part, BYTES / 4, OAR_F32),
                          OAR_SHAPE(BYTES / 4), NULL));
    OK(oar_checkpoint_open(NULL, runs_path, &quick, &runs));
    assert_int_equal(getrusage(RUSAGE_SELF, &before), 0);
    OK(oar_checkpoint_save(runs, s, 1, NULL));
    memset(part, 0, BYTES);
    OK(oar_checkpoint_load(runs, s, 1, NULL));
    assert_int_equal(getrusage(RUSAGE_SELF, &after), 0);
    assert_true(after.ru_maxrss - before.ru_maxrss < BYTES / 1024 / 3);
    assert_true(part[BYTES / 4 - 1] == (float)(BYTES / 4 - 1));
    oar_checkpoint_close(runs);
    oar_state_destroy(s);
    free(part);
}

/* Tensors of any strides, and of halves. */
static void a_view_is_saved_and_loaded(void **state)
{
    oar_tensor *all = oar_arange(NULL, OAR_F32, 12, 1, 1);
    oar_tensor *matrix = oar_reshape(NULL, all, OAR_SHAPE(3, 4));
    oar_tensor *turned = oar_transpose(NULL, matrix, 0, 1);
    oar_tensor *half = oar_full(NULL, OAR_BF16, OAR_SHAPE(3), 2.5);
    oar_tensor *number = oar_full(NULL, OAR_I64, OAR_SHAPE(2), 77);
    int64_t numbers[2];
    oar_checkpoint *runs;
    float halves[3];
    oar_state *s;

    (void)state;
    OK(oar_state_create(&s));
    OK(oar_state_add_tensor(s, "model", "turned", turned, NULL));
    OK(oar_state_add_tensor(s, "model", "half", half, NULL));
    OK(oar_state_add_tensor(s, "own", "number", number, NULL));
    OK(oar_checkpoint_open(NULL, runs_path, &quick, &runs));
    OK(oar_checkpoint_save(runs, s, 1, NULL));
    memset(oar_tensor_data(all), 0, 12 * sizeof(float));
    memset(oar_tensor_data(half), 0, 6);
    memset(oar_tensor_data(number), 0, 16);
    OK(oar_checkpoint_load(runs, s, 1, NULL));
    for (int i = 0; i < 12; i++)
        assert_true(((float *)oar_tensor_data(all))[i] == (float)(i + 1));
    OK(oar_tensor_read(half, OAR_F32, halves));
    OK(oar_tensor_read(number, OAR_I64, numbers));
    assert_true(halves[0] == 2.5f && halves[2] == 2.5f);
    assert_true(numbers[0] == 77 && numbers[1] == 77);
    oar_checkpoint_close(runs);
    oar_state_destroy(s);
    oar_tensor_release(number);
    oar_tensor_release(half);
    oar_tensor_release(turned);
    oar_tensor_release(matrix);
    oar_tensor_release(all);
}

/* ---- errors, and its conformance ----------------------------------------- */

static void nothing_to_load_and_nothing_to_save(void **state)
{
    oar_checkpoint_opts read_only = { .size = sizeof read_only,
                                      .read_only = 1 };
    oar_checkpoint *runs = NULL;
    oar_state *empty;
    char index[FOLDER_PATH + 80];
    FILE *file;

    (void)state;
    OK(oar_state_create(&empty));
    assert_fails_with(oar_checkpoint_open(NULL, runs_path, &read_only, &runs),
                      OAR_E_NOT_FOUND, runs_path);
    OK(oar_checkpoint_open(NULL, runs_path, &quick, &runs));
    assert_fails_with(oar_checkpoint_load(runs, empty, OAR_NEWEST, NULL),
                      OAR_E_NOT_FOUND, "has no generation");
    OK(oar_checkpoint_save(runs, empty, 1, NULL));
    OK(oar_checkpoint_load(runs, empty, OAR_NEWEST, NULL));
    snprintf(index, sizeof index, "%s/step-000000000001/index.json", runs_path);
    file = fopen(index, "w");
    assert_non_null(file);
    fputs("{\"num_ranks\": 2, \"tensor_specs\": ", file);
    fclose(file);
    assert_fails_with(oar_checkpoint_load(runs, empty, 1, NULL), OAR_E_DATA,
                      "step-000000000001/index.json");
    assert_int_equal(unlink(index), 0);
    assert_fails_with(oar_checkpoint_load(runs, empty, 1, NULL), OAR_E_DATA,
                      "index.json: it is missing");
    oar_checkpoint_close(runs);
    oar_state_destroy(empty);
}

/* 100 elements on each of 4 ranks are 400; 25 on each are 100; on one rank 100
 * are 100. */
static void equal_parts_are_one_whole(void **state)
{
    static const struct {
        int ranks, total;
    } rows[] = { { 4, 400 }, { 4, 100 }, { 1, 100 } };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cut_case c = { "", rows[i].total, 0, 0, rows[i].ranks, 1, { { 0 } } };
        float number[400] = { 0 };
        oar_checkpoint *runs;
        oar_state *s;

        assert_int_equal(ranks_run("sim", c.save, NULL, save_cut, &c), OAR_OK);
        OK(oar_state_create(&s));
        OK(oar_state_add_span(
            s, "model", "weight",
            oar_span_of(number, (size_t)rows[i].total, OAR_F32),
            OAR_SHAPE(rows[i].total), NULL));
        OK(oar_checkpoint_open(NULL, runs_path, &quick, &runs));
        OK(oar_checkpoint_load(runs, s, OAR_NEWEST, NULL));
        for (int k = 0; k < rows[i].total; k++)
            assert_true(number[k] == (float)(k + 1));
        oar_checkpoint_close(runs);
        oar_state_destroy(s);
        runs_folder_renew();
    }
}

#define TEST(name) \
    cmocka_unit_test_setup_teardown(name, runs_folder_make, runs_folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_rank_loads_what_it_saved),
        TEST(each_rank_has_its_part_again),
        TEST(parts_of_any_size_are_joined),
        TEST(sizes_of_parts),
        TEST(slices_of_a_file),
        TEST(an_index_is_read_as_it_was_written),
        TEST(the_same_state_has_the_same_bytes),
        TEST(no_file_of_a_larger_world_is_read),
        TEST(each_rank_reads_what_it_wants_only),
        TEST(a_load_does_not_hold_the_files),
        TEST(a_view_is_saved_and_loaded),
        TEST(nothing_to_load_and_nothing_to_save),
        TEST(equal_parts_are_one_whole),
    };

    return cmocka_run_group_tests_name("reference checkpoint", tests, NULL,
                                       NULL);
}
