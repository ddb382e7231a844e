/* SPDX-License-Identifier: Apache-2.0 */
/* Save plans: every element has one writer, writers are balanced, what does not
 * fit together is refused, and a large job is planned soon. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include <oarsong/memory.h>

#include "base/clock.h"
#include "parallel/checkpoint/file_layout.h"
#include "parallel/checkpoint/tiling.h"
#include "planners/checkpoint_catalog.h"
#include "support/leak_check.h"

/* ---- lists by hand ------------------------------------------------------- */

static oari_ckpt_tensor tensor(const char *section, const char *name,
                               oar_shape whole)
{
    return (oari_ckpt_tensor){
        .section = section, .name = name, .dtype = OAR_F32, .whole = whole
    };
}

/* Adds a list with one box of a tensor. */
static void hold(oari_ckpt_lists *lists, int rank, oari_ckpt_tensor t,
                 oari_box box)
{
    oari_ckpt_part_list list = { 0 };

    OK(oari_ckpt_part_list_add_box(&list, &t, &box));
    OK(oari_ckpt_part_list_seal(&list));
    OK(oari_ckpt_lists_add(lists, rank, list.wire.data,
                           (size_t)list.wire.count));
    oari_ckpt_part_list_free(&list);
}

static void hold_rows(oari_ckpt_lists *lists, int rank, oari_ckpt_tensor t,
                      int64_t first, int64_t end)
{
    oari_box box = oari_box_whole(t.whole);

    box.offset[0] = first;
    box.extent[0] = end - first;
    hold(lists, rank, t, box);
}

/* Makes a plan that is refused, and frees the lists. */
static void expect_refusal(oari_ckpt_lists *lists, oar_status status,
                           const char *text)
{
    leak_check before = leak_check_begin();
    oari_ckpt_save_plan plan;

    assert_fails_with(oari_ckpt_save_plan_make(lists, NULL, &plan), status,
                      text);
    leak_check_end(&before);
    oari_ckpt_lists_free(lists);
}

/* ---- what is refused ----------------------------------------------------- */

static void parts_that_overlap_are_named(void **state)
{
    oari_ckpt_tensor t = tensor("model", "w", OAR_SHAPE(8, 8));
    oari_ckpt_lists lists = { .ranks = 3 };

    hold_rows(&lists, 0, t, 0, 5);
    hold_rows(&lists, 1, t, 0, 5);
    hold_rows(&lists, 2, t, 4, 8);
    expect_refusal(&lists, OAR_E_ARG,
                   "tensor \"model/w\": [0:5, 0:8] of rank 0 and [4:8, 0:8] "
                   "of rank 2 overlap and are not the same part");
}

static void a_gap_is_named_with_its_neighbours(void **state)
{
    oari_ckpt_tensor t = tensor("model", "w", OAR_SHAPE(8, 8));
    oari_ckpt_lists lists = { .ranks = 2 };

    hold_rows(&lists, 0, t, 0, 4);
    hold_rows(&lists, 1, t, 6, 8);
    expect_refusal(&lists, OAR_E_ARG,
                   "tensor \"model/w\" of shape [8, 8]: no rank has "
                   "[4:6, 0:8], between [0:4, 0:8] of rank 0 and [6:8, 0:8] "
                   "of rank 1");
    lists.ranks = 2;
    hold_rows(&lists, 1, t, 0, 4);
    expect_refusal(&lists, OAR_E_ARG,
                   "no rank has [4:8, 0:8], after [0:4, 0:8] of rank 1");
    lists.ranks = 2;
    hold_rows(&lists, 1, t, 4, 8);
    expect_refusal(&lists, OAR_E_ARG,
                   "no rank has [0:4, 0:8], before [4:8, 0:8] of rank 1");
    lists.ranks = 2;
    hold_rows(&lists, 1, t, 3, 3);
    expect_refusal(&lists, OAR_E_ARG,
                   "of shape [8, 8]: no rank has [0:8, 0:8]");
}

static void ranks_that_disagree_are_named(void **state)
{
    oari_ckpt_tensor t = tensor("model", "w", OAR_SHAPE(8, 8)), other = t;
    oari_ckpt_lists lists = { .ranks = 2 };

    other.dtype = OAR_BF16;
    hold_rows(&lists, 0, t, 0, 4);
    hold_rows(&lists, 1, other, 4, 8);
    expect_refusal(&lists, OAR_E_MISMATCH,
                   "tensor \"model/w\" is f32 on rank 0 and bf16 on rank 1");
    other = t;
    other.whole = OAR_SHAPE(8, 9);
    lists.ranks = 2;
    hold_rows(&lists, 0, t, 0, 4);
    hold_rows(&lists, 1, other, 4, 4);
    expect_refusal(&lists, OAR_E_MISMATCH,
                   "tensor \"model/w\" has the whole shape [8, 8] on rank 0 "
                   "and [8, 9] on rank 1");
    other = t;
    other.flags = OARI_CKPT_COUNTER;
    lists.ranks = 3;
    hold_rows(&lists, 1, t, 0, 8);
    hold_rows(&lists, 2, other, 0, 8);
    expect_refusal(&lists, OAR_E_MISMATCH,
                   "\"model/w\" is a tensor on rank 1 and a counter on rank 2");
    other.flags = OARI_CKPT_BYTES;
    lists.ranks = 3;
    hold_rows(&lists, 1, t, 0, 8);
    hold_rows(&lists, 2, other, 0, 8);
    expect_refusal(&lists, OAR_E_MISMATCH, "and bytes on rank 2");
}

static void too_many_bytes_are_refused(void **state)
{
    oari_ckpt_tensor t = tensor("model", "a", OAR_SHAPE(1LL << 60));
    oari_ckpt_lists lists = { .ranks = 1 };

    hold_rows(&lists, 0, t, 0, 1LL << 60);
    t.name = "b";
    hold_rows(&lists, 0, t, 0, 1LL << 60);
    expect_refusal(&lists, OAR_E_ARG, "more bytes than an int64_t can count");
}

/* ---- what is planned ----------------------------------------------------- */

/* Each tensor is covered once, by ranks that hold what they write. */
static void check_plan(const catalog *c, const oari_ckpt_save_plan *plan)
{
    uint64_t load[64] = { 0 }, bytes = 0;
    int64_t next = 0;

    assert_int_equal(plan->tensor.count, c->tensors);
    for (int64_t i = 0; i < plan->tensor.count; i++) {
        const oari_ckpt_saved_tensor *t = &plan->tensor.data[i];
        oari_box whole = oari_box_whole(t->is.whole), *box;
        oari_ckpt_tiling tiling;
        assert_true(i == 0 || oari_ckpt_name_compare(&t[-1].is, &t->is) < 0);
        assert_int_equal(t->first, next);
        assert_true(t->chunks >= 1);
        box = calloc((size_t)t->chunks, sizeof *box);
        assert_non_null(box);
        for (int64_t j = 0; j < t->chunks; j++, next++) {
            const oari_ckpt_chunk *x = &plan->chunk.data[next];
            uint64_t size =
                (uint64_t)oari_box_count(&x->box) * oar_dtype_size(t->is.dtype);
            assert_int_equal(x->tensor, i);
            assert_true(j == 0 || oari_box_compare(&x[-1].box, &x->box) < 0);
            load[x->writer] += size;
            bytes += size;
            box[j] = x->box;
        }
        OK(oari_ckpt_tile(&whole, t->chunks, box, &tiling));
        assert_int_equal(tiling.kind, OARI_CKPT_TILED);
        free(box);
    }
    assert_int_equal(next, plan->chunk.count);
    assert_int_equal(bytes, plan->bytes);
    assert_memory_equal(load, plan->load, (size_t)plan->ranks * sizeof *load);
}

static void each_element_has_one_writer(void **state)
{
    catalog_random random = { 5 };
    catalog c;

    for (int i = 0; i < 300; i++) {
        oari_ckpt_save_opts opts = {
            .writers = (int)catalog_below(&random, 4),
            .whole_bytes = i % 2 ? 0 : 1,
        };
        oari_ckpt_lists lists;
        oari_ckpt_save_plan plan, again;
        catalog_fill(&c, &random, (int)catalog_below(&random, CATALOG_MOST), 7);
        OK(catalog_lists(&c, i % 8 + 1, &lists));
        OK(oari_ckpt_save_plan_make(&lists, &opts, &plan));
        check_plan(&c, &plan);
        OK(oari_ckpt_save_plan_make(&lists, &opts, &again));
        for (int64_t j = 0; j < plan.chunk.count; j++)
            assert_int_equal(plan.chunk.data[j].writer,
                             again.chunk.data[j].writer);
        oari_ckpt_lists_free(&lists);
        oari_ckpt_save_plan_free(&plan);
        oari_ckpt_save_plan_free(&again);
    }
}

static void nothing_and_empty_tensors_are_planned(void **state)
{
    oari_ckpt_lists lists = { .ranks = 2 };
    oari_ckpt_save_plan plan;
    oari_ckpt_tensor t = tensor("model", "e", OAR_SHAPE(0, 3));

    OK(oari_ckpt_save_plan_make(&lists, NULL, &plan));
    assert_int_equal(plan.tensor.count + plan.chunk.count, 0);
    oari_ckpt_save_plan_free(&plan);
    hold_rows(&lists, 0, t, 0, 0);
    hold(&lists, 1, t, (oari_box){ 2, { 0, 1 }, { 0, 1 } });
    OK(oari_ckpt_save_plan_make(&lists, NULL, &plan));
    assert_int_equal(plan.chunk.count, 1);
    assert_int_equal(plan.chunk.data[0].replicas, 2);
    assert_true(oari_ckpt_is_whole(&plan, 0));
    oari_ckpt_save_plan_free(&plan);
    oari_ckpt_lists_free(&lists);
}

/* ---- balance ------------------------------------------------------------- */

static double largest_to_mean(const oari_ckpt_save_plan *plan, int writers)
{
    uint64_t largest = 0;

    for (int r = 0; r < plan->ranks; r++)
        largest = plan->load[r] > largest ? plan->load[r] : largest;
    return (double)largest * writers / (double)plan->bytes;
}

/* Tensors with many short rows, replicated or cut into equal rows. */
static void fill_even(catalog *c, catalog_random *random, int ranks)
{
    catalog_fill(c, random, 1 + (int)catalog_below(random, 20), 2);
    for (int i = 0; i < c->tensors; i++) {
        catalog_tensor *t = &c->tensor[i];
        int64_t rows = 1 + catalog_below(random, 1000);
        t->is.section = "optim";
        t->is.dtype = OAR_F32;
        t->cut = i == 0 || catalog_below(random, 3) > 0 ? CATALOG_REPLICATED
                                                        : CATALOG_ROWS;
        t->is.whole = OAR_SHAPE(64 * rows * ranks, 1 + rows % 5);
        if (t->cut == CATALOG_ROWS)
            t->is.whole.dim[0] = ranks * (1 + rows / 10);
    }
}

static void writers_are_balanced(void **state)
{
    catalog_random random = { 6 };
    double worst = 0;
    catalog c;

    for (int i = 0; i < 400; i++) {
        int ranks = 1 + (int)catalog_below(&random, 64);
        oari_ckpt_save_opts opts = { .whole_bytes = 1 };
        oari_ckpt_lists lists;
        oari_ckpt_save_plan plan;
        double found;
        fill_even(&c, &random, ranks);
        OK(catalog_lists(&c, ranks, &lists));
        OK(oari_ckpt_save_plan_make(&lists, &opts, &plan));
        check_plan(&c, &plan);
        found = largest_to_mean(&plan, ranks);
        worst = found > worst ? found : worst;
        oari_ckpt_lists_free(&lists);
        oari_ckpt_save_plan_free(&plan);
    }
    print_message("largest writer at most %.4f times the mean\n", worst);
    assert_true(worst <= 1.13);
}

/* One rank writes at most one chunk of a tensor that all hold. */
static void a_large_replica_is_one_chunk_for_each_writer(void **state)
{
    oari_ckpt_tensor t = tensor("model", "w", OAR_SHAPE(1, 4000003, 2));
    oari_ckpt_lists lists = { .ranks = 7 };
    oari_ckpt_save_plan plan;
    int64_t at = 0;

    for (int r = 0; r < 7; r++)
        hold_rows(&lists, r, t, 0, 1);
    OK(oari_ckpt_save_plan_make(&lists, NULL, &plan));
    assert_int_equal(plan.chunk.count, 7);
    for (int r = 0; r < 7; r++) {
        assert_int_equal(plan.chunk.data[r].writer, r);
        assert_int_equal(plan.chunk.data[r].replicas, 7);
        assert_int_equal(plan.chunk.data[r].box.offset[1], at);
        at += plan.chunk.data[r].box.extent[1];
    }
    assert_true(largest_to_mean(&plan, 7) < 1.13);
    oari_ckpt_save_plan_free(&plan);
    oari_ckpt_lists_free(&lists);
}

static void a_replicated_model_stays_whole_if_it_can(void **state)
{
    static const char *const name[] = { "a", "b", "c", "d", "e" };
    oari_ckpt_lists lists = { .ranks = 4 };
    oari_ckpt_save_plan plan;

    for (int r = 0; r < 4; r++)
        for (int i = 0; i < 5; i++)
            hold_rows(&lists, r,
                      tensor("model", name[i], OAR_SHAPE(100000 + i, 8)), 0,
                      100000 + i);
    OK(oari_ckpt_save_plan_make(&lists, NULL, &plan));
    assert_int_equal(plan.chunk.count, 5);
    for (int i = 0; i < 5; i++)
        assert_true(oari_ckpt_is_whole(&plan, i));
    oari_ckpt_save_plan_free(&plan);
    for (int r = 0; r < 4; r++)
        hold_rows(&lists, r, tensor("model", "large", OAR_SHAPE(1000000, 8)), 0,
                  1000000);
    OK(oari_ckpt_save_plan_make(&lists, NULL, &plan));
    assert_true(plan.chunk.count > 6);
    assert_true(largest_to_mean(&plan, 4) < 1.13);
    oari_ckpt_save_plan_free(&plan);
    oari_ckpt_lists_free(&lists);
}

/* The ranks that write are spread over all; what one rank alone has stays with
 * it. */
static void the_number_of_writers_is_kept(void **state)
{
    oari_ckpt_lists lists = { .ranks = 8 };
    oari_ckpt_save_opts opts = { .writers = 3 };
    oari_ckpt_save_plan plan;

    for (int r = 0; r < 8; r++)
        hold_rows(&lists, r, tensor("optim", "all", OAR_SHAPE(1000000)), 0,
                  1000000);
    OK(oari_ckpt_save_plan_make(&lists, &opts, &plan));
    for (int r = 0; r < 8; r++)
        assert_int_equal(plan.load[r] > 0, r == 0 || r == 3 || r == 6);
    assert_true(largest_to_mean(&plan, 3) < 1.13);
    oari_ckpt_save_plan_free(&plan);
    hold_rows(&lists, 5, tensor("optim", "own", OAR_SHAPE(3)), 0, 3);
    hold_rows(&lists, 1, tensor("optim", "two", OAR_SHAPE(3)), 0, 3);
    hold_rows(&lists, 2, tensor("optim", "two", OAR_SHAPE(3)), 0, 3);
    OK(oari_ckpt_save_plan_make(&lists, &opts, &plan));
    assert_int_equal(plan.load[5], 12);
    assert_int_equal(plan.load[1], 12);
    assert_int_equal(plan.load[2], 0);
    oari_ckpt_save_plan_free(&plan);
    oari_ckpt_lists_free(&lists);
}

/* ---- a large job --------------------------------------------------------- */

enum { RANKS = 1024, TENSORS = 10000 };

static oari_ckpt_tensor large_tensor(const char *section, int i, char name[64])
{
    snprintf(name, 64, "blocks.%d.attention.%d.weight", i / 16, i % 16);
    return tensor(section, name, OAR_SHAPE(1000 + i % 77, 512));
}

static void send_list(oari_ckpt_lists *lists, int first, int end,
                      oari_ckpt_part_list *list)
{
    OK(oari_ckpt_part_list_seal(list));
    for (int r = first; r < end; r++)
        OK(oari_ckpt_lists_add(lists, r, list->wire.data,
                               (size_t)list->wire.count));
    oari_ckpt_part_list_free(list);
}

static void add_replicated(oari_ckpt_lists *lists, const char *section)
{
    static char name[TENSORS][64];
    oari_ckpt_part_list list = { 0 };

    for (int i = 0; i < TENSORS; i++) {
        oari_ckpt_tensor t = large_tensor(section, i, name[i]);
        oari_box box = oari_box_whole(t.whole);
        OK(oari_ckpt_part_list_add_box(&list, &t, &box));
    }
    send_list(lists, 0, RANKS, &list);
}

/* All tensors one behind the other are cut into one range for each rank. */
static void add_ranges(oari_ckpt_lists *lists, const char *section)
{
    static char name[TENSORS][64];
    int64_t all = 0, at = 0;
    int tensor_of = 0;

    for (int i = 0; i < TENSORS; i++)
        all += (1000 + i % 77) * 512;
    for (int r = 0; r < RANKS; r++) {
        oari_ckpt_part_list list = { 0 };
        int64_t first, count;
        catalog_divide(all, r, RANKS, &first, &count);
        for (int i = tensor_of; i < TENSORS && at < first + count; i++) {
            oari_ckpt_tensor t = large_tensor(section, i, name[i]);
            int64_t size = t.whole.dim[0] * t.whole.dim[1];
            int64_t low = first > at ? first - at : 0;
            int64_t high =
                first + count < at + size ? first + count - at : size;
            OK(oari_ckpt_part_list_add_flat(&list, &t, low, high - low));
            tensor_of = i;
            if (high < size)
                break;
            at += size;
            tensor_of = i + 1;
        }
        send_list(lists, r, r + 1, &list);
    }
}

static void plan_large(const char *what, oari_ckpt_lists *lists)
{
    oar_memory_stats memory = { .size = sizeof memory };
    struct rusage usage;
    oari_ckpt_save_plan plan;
    oari_ckpt_file_layout layout;
    int64_t start = oari_now_ns();
    double seconds;

    OK(oari_ckpt_save_plan_make(lists, NULL, &plan));
    OK(oari_ckpt_file_layout_make(&plan, &layout));
    seconds = (double)(oari_now_ns() - start) * 1e-9;
    OK(oar_memory_read(&memory));
    getrusage(RUSAGE_SELF, &usage);
    print_message("%d ranks, %d tensors, %s: %lld chunks in %lld files, "
                  "%.3f s, %.1f MB held, at most %.1f MB by the process\n",
                  (int)RANKS, (int)TENSORS, what, (long long)plan.chunk.count,
                  (long long)layout.file.count, seconds,
                  (double)memory.live_bytes * 1e-6,
                  (double)usage.ru_maxrss * 1024e-6);
    assert_true(seconds < 60);
    assert_true(memory.live_bytes < 200000000);
    assert_true(largest_to_mean(&plan, RANKS) < 1.13);
    oari_ckpt_save_plan_free(&plan);
    oari_ckpt_file_layout_free(&layout);
    oari_ckpt_lists_free(lists);
}

static void a_large_job_is_planned_soon(void **state)
{
    oari_ckpt_lists lists = { .ranks = RANKS };

    add_replicated(&lists, "optim");
    plan_large("replicated", &lists);
    lists.ranks = RANKS;
    add_ranges(&lists, "optim");
    plan_large("in flat ranges", &lists);
    lists.ranks = RANKS;
    add_replicated(&lists, "model");
    add_ranges(&lists, "optim");
    plan_large("both", &lists);
}

/* ---- memory -------------------------------------------------------------- */

static oar_status plan_without(void *arg)
{
    const catalog *c = arg;
    oari_ckpt_save_opts opts = { .whole_bytes = 1 };
    oari_ckpt_lists lists;
    oari_ckpt_save_plan plan;
    oar_status status = catalog_lists(c, 3, &lists);

    if (status != OAR_OK)
        return status;
    status = oari_ckpt_save_plan_make(&lists, &opts, &plan);
    if (status == OAR_OK)
        oari_ckpt_save_plan_free(&plan);
    oari_ckpt_lists_free(&lists);
    return status;
}

static void without_memory_a_plan_fails_whole(void **state)
{
    catalog_random random = { 7 };
    catalog c;

    catalog_fill(&c, &random, 12, 6);
    fail_each_allocation(plan_without, &c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_that_overlap_are_named),
        cmocka_unit_test(a_gap_is_named_with_its_neighbours),
        cmocka_unit_test(ranks_that_disagree_are_named),
        cmocka_unit_test(too_many_bytes_are_refused),
        cmocka_unit_test(each_element_has_one_writer),
        cmocka_unit_test(nothing_and_empty_tensors_are_planned),
        cmocka_unit_test(writers_are_balanced),
        cmocka_unit_test(a_large_replica_is_one_chunk_for_each_writer),
        cmocka_unit_test(a_replicated_model_stays_whole_if_it_can),
        cmocka_unit_test(the_number_of_writers_is_kept),
        cmocka_unit_test(a_large_job_is_planned_soon),
        cmocka_unit_test(without_memory_a_plan_fails_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
