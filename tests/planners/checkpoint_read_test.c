/* SPDX-License-Identifier: Apache-2.0 */
/* From what N ranks hold to files, and from files to what M ranks want, with a
 * number in the place of each byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/checkpoint/file_layout.h"
#include "parallel/checkpoint/load/read_plan.h"
#include "planners/checkpoint_catalog.h"
#include "support/leak_check.h"

enum { HEADER = 4096, MOST_RANKS = 8 };

/* Bytes, each with a number of its own; 0: nothing was written there. */
typedef struct numbers {
    uint32_t *data;
    uint64_t bytes;
} numbers;

static numbers make_numbers(uint64_t bytes)
{
    numbers n = { calloc(bytes + 1, sizeof(uint32_t)), bytes };

    assert_non_null(n.data);
    return n;
}

/* The number of byte b of an element of a tensor of the catalog. */
static uint32_t number_of(int tensor, int64_t element, uint64_t b)
{
    assert_true(element < 1 << 20);
    return (uint32_t)((tensor * (1 << 20) + element) * 8 + (int64_t)b + 1);
}

/* The memory that a rank has for its part of a tensor. */
static numbers fill_part(const catalog *c, int tensor, const catalog_part *part)
{
    const oari_ckpt_tensor *t = &c->tensor[tensor].is;
    uint64_t size = oar_dtype_size(t->dtype);
    int64_t count = part->flat ? part->count : oari_box_count(&part->box);
    numbers n = make_numbers((uint64_t)count * size);

    for (int64_t i = 0; i < count; i++) {
        int64_t element = part->flat ? part->first + i
                                     : catalog_element(&part->box, t->whole, i);
        for (uint64_t b = 0; b < size; b++)
            n.data[(uint64_t)i * size + b] = number_of(tensor, element, b);
    }
    return n;
}

/* ---- saving -------------------------------------------------------------- */

typedef struct generation {
    oari_ckpt_save_plan plan;
    oari_ckpt_file_layout layout;
    numbers *file; /* without headers */
} generation;

static void write_chunk(generation *g, int64_t chunk, const numbers *from,
                        int64_t first)
{
    const oari_ckpt_chunk *x = &g->plan.chunk.data[chunk];
    const oari_ckpt_place *place = &g->layout.place[chunk];
    size_t size = oar_dtype_size(g->plan.tensor.data[x->tensor].is.dtype);
    numbers *file = &g->file[place->file];
    oari_box_runs runs;
    oari_box_run run;

    assert_int_equal(g->layout.file.data[place->file].writer, x->writer);
    assert_int_equal(place->at % size, 0);
    oari_box_runs_start(&runs, &x->box, &x->part, &x->box, size);
    while (oari_box_runs_next(&runs, &run))
        for (uint64_t b = 0; b < run.bytes; b++) {
            uint64_t at = (uint64_t)first * size + run.from + b;
            uint64_t to = place->at + run.to + b;
            assert_true(at < from->bytes && to < file->bytes);
            assert_int_equal(file->data[to], 0);
            file->data[to] = from->data[at];
        }
}

/* Writes what rank has to write, from the memory of its parts. */
static void write_rank(const catalog *c, int rank, int ranks, generation *g)
{
    int item[CATALOG_MOST];
    oari_ckpt_part_list list;

    OK(catalog_list(c, rank, ranks, &list, item));
    for (int64_t i = 0; i < g->plan.chunk.count; i++) {
        const oari_ckpt_chunk *x = &g->plan.chunk.data[i];
        const oari_ckpt_tensor *t = &g->plan.tensor.data[x->tensor].is;
        const oari_ckpt_part *p = list.part.data;
        const oari_ckpt_part *end = p + list.part.count;
        if (x->writer != rank || oari_box_count(&x->box) == 0)
            continue;
        while (p < end && (oari_ckpt_name_compare(&p->tensor, t) != 0 ||
                           oari_box_compare(&p->box, &x->part) != 0))
            p++;
        assert_true(p < end); /* a writer holds what it writes */
        catalog_part part =
            catalog_part_of(&c->tensor[item[p->item]], rank, ranks);
        numbers from = fill_part(c, item[p->item], &part);
        write_chunk(g, i, &from, p->first);
        free(from.data);
    }
    oari_ckpt_part_list_free(&list);
}

/* Entries of a file: no holes, no name twice, larger elements first. */
static void check_file(const generation *g, int64_t index)
{
    const oari_ckpt_file *file = &g->layout.file.data[index];
    oari_ckpt_file_entry last = { 0 };
    uint64_t at = 0;

    assert_true(file->count > 0);
    for (int64_t i = 0; i < file->count; i++) {
        oari_ckpt_file_entry e =
            oari_ckpt_file_entry_at(&g->plan, &g->layout, index, i);
        const oari_ckpt_chunk *x = &g->plan.chunk.data[e.chunk];
        size_t size = oar_dtype_size(e.dtype), before;
        oari_box box = oari_box_whole(e.shape);
        assert_int_equal(e.begin, at);
        at = e.end;
        assert_int_equal(e.end - e.begin,
                         (uint64_t)oari_box_count(&box) * size);
        assert_memory_equal(e.offset, x->box.offset, sizeof e.offset);
        assert_true(file->shard || oari_ckpt_is_whole(&g->plan, x->tensor));
        before = i > 0 ? oar_dtype_size(last.dtype) : 8;
        assert_true(size <= before);
        if (i > 0 && size == before)
            assert_true(strcmp(last.name, e.name) < 0);
        last = e;
    }
    assert_int_equal(at, file->data_bytes);
    for (uint64_t b = 0; b < at; b++)
        assert_true(g->file[index].data[b] != 0);
}

static void save(const catalog *c, int ranks, generation *g)
{
    oari_ckpt_save_opts opts = { .whole_bytes = 1 };
    oari_ckpt_lists lists;
    uint64_t bytes = 0;

    OK(catalog_lists(c, ranks, &lists));
    OK(oari_ckpt_save_plan_make(&lists, &opts, &g->plan));
    oari_ckpt_lists_free(&lists);
    OK(oari_ckpt_file_layout_make(&g->plan, &g->layout));
    g->file = calloc((size_t)g->layout.file.count + 1, sizeof *g->file);
    assert_non_null(g->file);
    for (int64_t i = 0; i < g->layout.file.count; i++) {
        g->file[i] = make_numbers(g->layout.file.data[i].data_bytes);
        bytes += g->file[i].bytes;
    }
    assert_int_equal(bytes, g->plan.bytes);
    for (int r = 0; r < ranks; r++)
        write_rank(c, r, ranks, g);
    for (int64_t i = 0; i < g->layout.file.count; i++)
        check_file(g, i);
}

static void drop(generation *g)
{
    for (int64_t i = 0; i < g->layout.file.count; i++)
        free(g->file[i].data);
    free(g->file);
    oari_ckpt_file_layout_free(&g->layout);
    oari_ckpt_save_plan_free(&g->plan);
}

/* ---- loading ------------------------------------------------------------- */

/* Adds a rank's part of a tensor, as target `tensor`. */
static oar_status want_part(const generation *g, const catalog *c, int tensor,
                            const catalog_part *part, oari_ckpt_read_plan *plan)
{
    const oari_ckpt_tensor *t = &c->tensor[tensor].is;
    const oari_ckpt_saved_tensor *saved = g->plan.tensor.data;
    oari_ckpt_stored *stored;
    oari_box box[OARI_FLAT_BOXES] = { part->box };
    oari_ckpt_wanted wanted[OARI_FLAT_BOXES];
    uint64_t at = 0;
    int boxes = part->flat
                    ? oari_flat_boxes(t->whole, part->first, part->count, box)
                    : 1;
    oar_status status;

    while (oari_ckpt_name_compare(&saved->is, t) != 0)
        saved++;
    stored = calloc((size_t)saved->chunks, sizeof *stored);
    assert_non_null(stored);
    for (int64_t i = 0; i < saved->chunks; i++) {
        const oari_ckpt_place *place = &g->layout.place[saved->first + i];
        stored[i] = (oari_ckpt_stored){
            .box = g->plan.chunk.data[saved->first + i].box,
            .file = place->file,
            .at = HEADER + place->at,
        };
    }
    for (int i = 0; i < boxes; i++) {
        wanted[i] = (oari_ckpt_wanted){ box[i], tensor, at };
        at += (uint64_t)oari_box_count(&box[i]) * oar_dtype_size(t->dtype);
    }
    status =
        oari_ckpt_read_plan_add(plan, t, saved->chunks, stored, boxes, wanted);
    free(stored);
    return status;
}

/* Copies what a range has to where it is wanted. */
static void read_range(const generation *g, const oari_ckpt_read_plan *plan,
                       const oari_ckpt_range *range, numbers *target)
{
    const numbers *file = &g->file[range->file];

    assert_true(range->at >= HEADER);
    assert_true(range->at - HEADER + range->bytes <= file->bytes);
    for (int64_t i = 0; i < range->count; i++) {
        const oari_ckpt_fetch *f = &plan->fetch.data[range->first + i];
        numbers *to = &target[f->to.target];
        oari_box_runs runs;
        oari_box_run run;
        uint64_t end = 0;
        assert_int_equal(f->from.file, range->file);
        assert_true(f->at >= range->at &&
                    f->at + f->bytes <= range->at + range->bytes);
        oari_box_runs_start(&runs, &f->box, &f->from.box, &f->to.box,
                            f->element);
        while (oari_box_runs_next(&runs, &run)) {
            uint64_t at = f->from.at + run.from;
            assert_true(at >= f->at && at + run.bytes <= f->at + f->bytes);
            end = at + run.bytes;
            for (uint64_t b = 0; b < run.bytes; b++) {
                uint64_t into = f->to.at + run.to + b;
                assert_true(into < to->bytes);
                assert_int_equal(to->data[into], 0);
                to->data[into] = file->data[at - HEADER + b];
            }
        }
        assert_int_equal(end, f->at + f->bytes);
    }
}

/* Ranges of a file are further apart than the gap, and rise. */
static void check_ranges(const oari_ckpt_read_plan *plan)
{
    int64_t fetches = 0;

    for (int64_t i = 0; i < plan->range.count; i++) {
        const oari_ckpt_range *r = &plan->range.data[i];
        assert_int_equal(r->first, fetches);
        fetches += r->count;
        if (i == 0 || r[-1].file != r->file)
            continue;
        assert_true(r->at > r[-1].at + r[-1].bytes);
        assert_true(r->at - r[-1].at - r[-1].bytes >= plan->gap);
    }
    assert_int_equal(fetches, plan->fetch.count);
    assert_true(plan->read_bytes >= plan->wanted_bytes);
    if (plan->gap <= 1)
        assert_int_equal(plan->read_bytes, plan->wanted_bytes);
}

static void load_rank(const generation *g, const catalog *c, int rank,
                      int ranks, uint64_t gap)
{
    numbers target[CATALOG_MOST], expected[CATALOG_MOST];
    oari_ckpt_read_plan plan = { .gap = gap };

    for (int i = 0; i < c->tensors; i++) {
        catalog_part part = catalog_part_of(&c->tensor[i], rank, ranks);
        if (!part.there)
            part = (catalog_part){ .flat = 1 };
        expected[i] = fill_part(c, i, &part);
        target[i] = make_numbers(expected[i].bytes);
        OK(want_part(g, c, i, &part, &plan));
    }
    OK(oari_ckpt_read_plan_finish(&plan));
    check_ranges(&plan);
    for (int64_t i = 0; i < plan.range.count; i++)
        read_range(g, &plan, &plan.range.data[i], target);
    for (int i = 0; i < c->tensors; i++) {
        assert_memory_equal(target[i].data, expected[i].data,
                            expected[i].bytes * sizeof(uint32_t));
        free(target[i].data);
        free(expected[i].data);
    }
    oari_ckpt_read_plan_free(&plan);
}

/* Every N and M; each tensor is cut in another way when it is loaded. */
static void what_n_ranks_save_m_ranks_load(void **state)
{
    static const uint64_t gaps[] = { 0, 1, 16, 100, 1 << 18 };
    leak_check before = leak_check_begin();
    catalog_random random = { 8 };
    catalog c, other;
    int loads = 0;

    for (int n = 1; n <= MOST_RANKS; n++)
        for (int m = 1; m <= MOST_RANKS; m++) {
            generation g = { 0 };
            catalog_fill(&c, &random,
                         1 + (int)catalog_below(&random, CATALOG_MOST), 7);
            save(&c, n, &g);
            other = c;
            for (int i = 0; i < other.tensors; i++) {
                other.tensor[i].is.name = other.tensor[i].name;
                other.tensor[i].cut =
                    (catalog_cut)catalog_below(&random, CATALOG_CUTS);
            }
            for (int r = 0; r < m; r++)
                load_rank(&g, &other, r, m, gaps[loads++ % 5]);
            drop(&g);
        }
    print_message("%d loads of what 1 to %d ranks saved\n", loads,
                  (int)MOST_RANKS);
    leak_check_end(&before);
}

/* Each cut alone, to each cut: which tensor it is does not matter. */
static void every_cut_is_loaded_as_every_cut(void **state)
{
    catalog_random random = { 9 };
    catalog c;

    for (int from = 0; from < CATALOG_CUTS; from++)
        for (int to = 0; to < CATALOG_CUTS; to++) {
            generation g = { 0 };
            catalog_fill(&c, &random, 8, 9);
            for (int i = 0; i < c.tensors; i++)
                c.tensor[i].cut = (catalog_cut)from;
            save(&c, 5, &g);
            for (int i = 0; i < c.tensors; i++)
                c.tensor[i].cut = (catalog_cut)to;
            for (int r = 0; r < 3; r++)
                load_rank(&g, &c, r, 3, 32);
            drop(&g);
        }
}

/* ---- ranges -------------------------------------------------------------- */

static oari_ckpt_tensor matrix(int64_t rows, int64_t columns)
{
    return (oari_ckpt_tensor){ .section = "model",
                               .name = "w",
                               .dtype = OAR_F32,
                               .whole = OAR_SHAPE(rows, columns) };
}

/* Columns of a large chunk are one fetch, if the gap allows it, or one for each
 * row; the plan stays small. */
static void columns_are_fetched_together_or_row_by_row(void **state)
{
    oari_ckpt_tensor t = matrix(1 << 20, 1024);
    oari_ckpt_stored stored = { oari_box_whole(t.whole), 3, HEADER };
    oari_ckpt_wanted wanted = { { 2, { 0, 10 }, { 1 << 20, 2 } }, 0, 0 };
    oari_ckpt_read_plan plan = { .gap = 256 << 10 };

    OK(oari_ckpt_read_plan_add(&plan, &t, 1, &stored, 1, &wanted));
    OK(oari_ckpt_read_plan_finish(&plan));
    assert_int_equal(plan.fetch.count, 1);
    assert_int_equal(plan.range.data[0].at, HEADER + 40);
    assert_int_equal(plan.read_bytes, ((1LL << 30) - 1022) * 4);
    assert_int_equal(plan.wanted_bytes, 8 << 20);
    oari_ckpt_read_plan_free(&plan);
    wanted.box.extent[0] = 5;
    plan.gap = 4096 - 8;
    OK(oari_ckpt_read_plan_add(&plan, &t, 1, &stored, 1, &wanted));
    OK(oari_ckpt_read_plan_finish(&plan));
    assert_int_equal(plan.range.count, 5);
    assert_int_equal(plan.read_bytes, plan.wanted_bytes);
    oari_ckpt_read_plan_free(&plan);
    plan.gap = 4096 - 7;
    OK(oari_ckpt_read_plan_add(&plan, &t, 1, &stored, 1, &wanted));
    OK(oari_ckpt_read_plan_finish(&plan));
    assert_int_equal(plan.range.count, 1);
    oari_ckpt_read_plan_free(&plan);
}

/* ---- what is refused ----------------------------------------------------- */

static void refuse(const oari_ckpt_tensor *t, int64_t chunks,
                   const oari_ckpt_stored *stored, oari_box box,
                   oar_status status, const char *text)
{
    oari_ckpt_wanted wanted = { box, 0, 0 };
    oari_ckpt_read_plan plan = { .gap = 0 };

    assert_fails_with(
        oari_ckpt_read_plan_add(&plan, t, chunks, stored, 1, &wanted), status,
        text);
    oari_ckpt_read_plan_free(&plan);
}

static void chunks_that_are_not_what_is_wanted_are_refused(void **state)
{
    oari_ckpt_tensor t = matrix(8, 4);
    oari_box all = oari_box_whole(t.whole);
    oari_ckpt_stored s[2] = { { { 2, { 0, 0 }, { 4, 4 } }, 0, 0 },
                              { { 2, { 5, 0 }, { 3, 4 } }, 0, 64 } };

    refuse(&t, 2, s, all, OAR_E_DATA,
           "tensor \"model/w\": no chunk has [4:5, 0:4]");
    refuse(&t, 0, NULL, all, OAR_E_DATA, "no chunk has [0:8, 0:4]");
    s[1].box = (oari_box){ 2, { 3, 0 }, { 5, 4 } };
    refuse(&t, 2, s, all, OAR_E_DATA,
           "tensor \"model/w\": two chunks have [3:4, 0:4]");
    /* As many elements as are wanted, but one twice and one not at all. */
    s[0].box = (oari_box){ 2, { 1, 0 }, { 4, 4 } };
    s[1].box = (oari_box){ 2, { 4, 0 }, { 4, 4 } };
    refuse(&t, 2, s, all, OAR_E_DATA, "two chunks have [4:5, 0:4]");
    s[1].box = (oari_box){ 2, { 0, 0 }, { 1, 4 } };
    refuse(&t, 2, s, all, OAR_E_DATA, "chunk 1, [0:1, 0:4], is not in order");
    s[1].box = (oari_box){ 2, { 5, 0 }, { 4, 4 } };
    refuse(&t, 2, s, all, OAR_E_DATA, "chunk 1 is not within [8, 4]");
    s[1] = (oari_ckpt_stored){ { 2, { 5, 0 }, { 3, 4 } }, 0, UINT64_MAX - 46 };
    refuse(&t, 2, s, all, OAR_E_DATA, "[5:8, 0:4], ends in no file");
    all.extent[1] = 5;
    refuse(&t, 1, s, all, OAR_E_SHAPE,
           "has the shape [8, 4]: [0:8, 0:5], which is wanted, is not within");
    t.dtype = OAR_DTYPE_COUNT_ALL;
    refuse(&t, 1, s, all, OAR_E_DATA, "a dtype or a shape that cannot be");
}

/* ---- files --------------------------------------------------------------- */

static void expect_paths(const oari_ckpt_file_layout *layout, int count,
                         const char *const *path)
{
    assert_int_equal(layout->file.count, count);
    for (int i = 0; i < count; i++)
        assert_string_equal(layout->file.data[i].path, path[i]);
}

/* Whole tensors in one section, parts in another, of which rank 1 has three of
 * one name: a part of a row, rows, and a part of a row. */
static void files_have_the_names_that_others_expect(void **state)
{
    static const char *const path[] = {
        "extra/extra-00001-of-00001.safetensors",
        "model/model-00001-of-00003.safetensors",
        "model/model-00002-of-00003.safetensors",
        "model/model-00003-of-00003.safetensors",
        "optim/shard-00001-optim-00001-of-00002.safetensors",
        "optim/shard-00001-optim-00002-of-00002.safetensors",
        "optim/shard-00002-optim-00001-of-00003.safetensors",
        "optim/shard-00002-optim-00002-of-00003.safetensors",
        "optim/shard-00002-optim-00003-of-00003.safetensors",
        "optim/shard-00003-optim-00001-of-00002.safetensors",
        "optim/shard-00003-optim-00002-of-00002.safetensors",
    };
    static const char *const section[] = { "model", "model", "model", "optim",
                                           "extra" };
    generation g = { 0 };
    catalog c = { .tensors = 5 };

    for (int i = 0; i < 5; i++) {
        catalog_tensor *t = &c.tensor[i];
        snprintf(t->name, sizeof t->name, "t%d", i);
        t->is = matrix(8, 8);
        t->is.section = section[i];
        t->is.name = t->name;
    }
    c.tensor[3].cut = CATALOG_FLAT;
    c.tensor[4].cut = CATALOG_ONE;
    save(&c, 3, &g);
    expect_paths(&g.layout, 11, path);
    for (int i = 0; i < 11; i++)
        assert_int_equal(g.layout.file.data[i].shard, i >= 4);
    drop(&g);
}

/* ---- memory -------------------------------------------------------------- */

typedef struct without {
    generation *g;
    catalog *c;
} without;

static oar_status load_without(void *arg)
{
    const without *w = arg;
    oari_ckpt_read_plan plan = { .gap = 4 };
    oar_status status = OAR_OK;

    for (int i = 0; status == OAR_OK && i < w->c->tensors; i++) {
        catalog_part part = catalog_part_of(&w->c->tensor[i], 1, 3);
        if (part.there)
            status = want_part(w->g, w->c, i, &part, &plan);
    }
    if (status == OAR_OK)
        status = oari_ckpt_read_plan_finish(&plan);
    oari_ckpt_read_plan_free(&plan);
    return status;
}

static oar_status lay_out_without(void *arg)
{
    const without *w = arg;
    oari_ckpt_file_layout layout;
    oar_status status = oari_ckpt_file_layout_make(&w->g->plan, &layout);

    if (status == OAR_OK)
        oari_ckpt_file_layout_free(&layout);
    return status;
}

static void without_memory_a_load_fails_whole(void **state)
{
    catalog_random random = { 10 };
    generation g = { 0 };
    catalog c;
    without w = { &g, &c };

    catalog_fill(&c, &random, 12, 6);
    save(&c, 5, &g);
    fail_each_allocation(lay_out_without, &w);
    fail_each_allocation(load_without, &w);
    drop(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_n_ranks_save_m_ranks_load),
        cmocka_unit_test(every_cut_is_loaded_as_every_cut),
        cmocka_unit_test(columns_are_fetched_together_or_row_by_row),
        cmocka_unit_test(chunks_that_are_not_what_is_wanted_are_refused),
        cmocka_unit_test(files_have_the_names_that_others_expect),
        cmocka_unit_test(without_memory_a_load_fails_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
