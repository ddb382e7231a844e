/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes: flat ranges, intersections and runs element by element; and whether
 * boxes tile a whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/checkpoint/tiling.h"
#include "planners/checkpoint_catalog.h"
#include "support/leak_check.h"

enum { MOST = 4096 }; /* elements of a tensor here */

/* Lists the number, in the whole, of each element of a box. */
static int64_t list_elements(const oari_box *box, oar_shape whole,
                             int64_t index[MOST])
{
    int64_t n = oari_box_count(box);

    assert_true(n <= MOST);
    for (int64_t i = 0; i < n; i++)
        index[i] = catalog_element(box, whole, i);
    return n;
}

/* ---- shapes and boxes ---------------------------------------------------- */

static void shapes_that_cannot_be_are_refused(void **state)
{
    oar_shape large = OAR_SHAPE(1LL << 40, 1LL << 20);

    assert_true(oari_box_shape_fits(OAR_SCALAR, 8));
    assert_true(oari_box_shape_fits(OAR_SHAPE(0, 5), 8));
    assert_true(oari_box_shape_fits(large, 4));
    assert_false(oari_box_shape_fits(large, 8));
    assert_false(oari_box_shape_fits(OAR_SHAPE(0, INT64_MAX, 3), 1));
    assert_false(oari_box_shape_fits(OAR_SHAPE(3, -1), 4));
    assert_false(oari_box_shape_fits(OAR_SHAPE(3), 0));
    large.ndim = OAR_MAX_DIMS + 1;
    assert_false(oari_box_shape_fits(large, 1));
    large.ndim = -1;
    assert_false(oari_box_shape_fits(large, 1));
}

static void boxes_outside_of_a_shape_are_refused(void **state)
{
    oar_shape whole = OAR_SHAPE(4, 6);
    oari_box box = { 2, { 1, 2 }, { 3, 4 } };

    assert_true(oari_box_fits(&box, whole));
    assert_false(oari_box_fits(&box, OAR_SHAPE(4, 5)));
    assert_false(oari_box_fits(&box, OAR_SHAPE(4, 6, 1)));
    box.offset[0] = -1;
    assert_false(oari_box_fits(&box, whole));
    box = (oari_box){ 2, { 1, 2 }, { -1, 4 } };
    assert_false(oari_box_fits(&box, whole));
    box = (oari_box){ 2, { 1, 2 }, { INT64_MAX, 4 } };
    assert_false(oari_box_fits(&box, whole));
    box = (oari_box){ 2, { 4, 6 }, { 0, 0 } };
    assert_true(oari_box_fits(&box, whole));
    box.offset[0] = 5;
    assert_false(oari_box_fits(&box, whole));
}

static void texts_show_first_and_end(void **state)
{
    oari_box box = { 2, { 0, 2 }, { 4, 4 } }, none = { 0 };
    oari_box longest = { .ndim = OAR_MAX_DIMS };

    assert_string_equal(oari_box_text(&box).text, "[0:4, 2:6]");
    assert_string_equal(oari_box_text(&none).text, "[]");
    assert_string_equal(oari_box_shape_text(OAR_SHAPE(4, 0, 6)).text,
                        "[4, 0, 6]");
    assert_string_equal(oari_box_shape_text(OAR_SCALAR).text, "[]");
    for (int d = 0; d < OAR_MAX_DIMS; d++)
        longest.offset[d] = INT64_MIN;
    assert_int_equal(strlen(oari_box_text(&longest).text), 8 * 41 + 7 * 2 + 2);
}

/* ---- flat ranges --------------------------------------------------------- */

/* All ranges of all shapes of up to 4 dims of up to 3, and some with a 0. */
static void a_flat_range_is_at_most_2n_minus_1_boxes_in_order(void **state)
{
    static int64_t index[MOST];
    int worst[5] = { 0 };
    long tried = 0;

    /* The highest bit of code says how many dims follow, two bits each. */
    for (int code = 1; code < 512; code++) {
        oar_shape whole = { .ndim = (31 - __builtin_clz((unsigned)code)) / 2 };
        oari_box all, box[OARI_FLAT_BOXES];
        int64_t most;
        if (code >> 2 * whole.ndim != 1)
            continue;
        for (int d = 0; d < whole.ndim; d++)
            whole.dim[d] = code >> 2 * d & 3;
        all = oari_box_whole(whole);
        most = oari_box_count(&all);
        for (int64_t first = 0; first <= most; first++)
            for (int64_t count = 0; first + count <= most; count++, tried++) {
                int n = oari_flat_boxes(whole, first, count, box);
                int64_t at = first;
                if (most == 0) {
                    assert_int_equal(n, 1);
                    assert_int_equal(oari_box_compare(box, &all), 0);
                    continue;
                }
                assert_true(n <= (whole.ndim > 0 ? 2 * whole.ndim - 1 : 1));
                worst[whole.ndim] =
                    n > worst[whole.ndim] ? n : worst[whole.ndim];
                for (int b = 0; b < n; b++) {
                    int64_t have = list_elements(&box[b], whole, index);
                    assert_true(oari_box_fits(&box[b], whole));
                    assert_true(have > 0);
                    for (int64_t i = 0; i < have; i++)
                        assert_int_equal(index[i], at++);
                }
                assert_int_equal(at, first + count);
            }
        assert_int_equal(oari_flat_boxes(whole, 0, most + 1, box), -1);
        assert_int_equal(oari_flat_boxes(whole, -1, 1, box), -1);
        assert_int_equal(oari_flat_boxes(whole, 1, INT64_MAX, box), -1);
        assert_int_equal(oari_flat_boxes(whole, 0, -1, box), -1);
    }
    print_message("%ld flat ranges; most boxes by dims: %d %d %d %d %d\n",
                  tried, worst[0], worst[1], worst[2], worst[3], worst[4]);
    assert_int_equal(worst[3], 5);
    assert_int_equal(worst[4], 7);
}

static void eight_dims_give_fifteen_boxes(void **state)
{
    oar_shape whole = OAR_SHAPE(3, 3, 3, 3, 3, 3, 3, 3);
    oari_box box[OARI_FLAT_BOXES];
    int64_t at = 1;

    assert_int_equal(oari_flat_boxes(whole, 1, 6561 - 2, box), 15);
    for (int b = 0; b < 15; b++) {
        assert_int_equal(catalog_element(&box[b], whole, 0), at);
        at += oari_box_count(&box[b]);
    }
    assert_int_equal(at, 6560);
}

/* ---- two boxes ----------------------------------------------------------- */

static void what_boxes_have_in_common_is_what_both_have(void **state)
{
    catalog_random random = { 1 };
    static unsigned char has[MOST];
    static int64_t index[MOST];

    for (int i = 0; i < 3000; i++) {
        oar_shape whole = catalog_shape(&random, 5);
        oari_box a = catalog_box(&random, whole), b, common;
        int64_t n, met = 0;
        b = catalog_box(&random, whole);
        memset(has, 0, sizeof has);
        n = list_elements(&a, whole, index);
        for (int64_t e = 0; e < n; e++)
            has[index[e]] = 1;
        n = list_elements(&b, whole, index);
        for (int64_t e = 0; e < n; e++)
            met += has[index[e]]++;
        if (!oari_box_meet(&a, &b, &common)) {
            assert_int_equal(met, 0);
            continue;
        }
        assert_true(oari_box_fits(&common, whole));
        n = list_elements(&common, whole, index);
        assert_int_equal(n, met);
        for (int64_t e = 0; e < n; e++)
            assert_int_equal(has[index[e]], 2);
    }
}

/* Copies a random box from an array to another by its runs, byte by byte. */
static void runs_copy_each_byte_of_a_box_once(void **state)
{
    catalog_random random = { 2 };
    static int64_t from_index[MOST], to_index[MOST];
    int64_t fewer = 0;

    for (int i = 0; i < 3000; i++) {
        oar_shape whole = catalog_shape(&random, 5);
        oari_box from = catalog_box(&random, whole), to, what;
        size_t element = (size_t)1 << catalog_below(&random, 4);
        int64_t copied = 0, runs, last = -1;
        oari_box_runs walk;
        oari_box_run run;
        to =
            catalog_below(&random, 3) == 0 ? from : catalog_box(&random, whole);
        if (!oari_box_meet(&from, &to, &what))
            continue;
        list_elements(&from, whole, from_index);
        list_elements(&to, whole, to_index);
        runs = oari_box_runs_start(&walk, &what, &from, &to, element);
        fewer += oari_box_count(&what) - runs;
        for (; oari_box_runs_next(&walk, &run); runs--) {
            assert_true((int64_t)run.from > last);
            last = (int64_t)(run.from + run.bytes) - 1;
            assert_int_equal(
                run.from % element + run.to % element + run.bytes % element, 0);
            for (uint64_t b = 0; b < run.bytes; b += element, copied++)
                assert_int_equal(from_index[(run.from + b) / element],
                                 to_index[(run.to + b) / element]);
        }
        assert_int_equal(runs, 0);
        assert_int_equal(copied, oari_box_count(&what));
    }
    assert_true(fewer > 0);
}

/* Copies a random box, and looks for each byte where it must be. */
static void a_copy_moves_a_box_and_nothing_else(void **state)
{
    catalog_random random = { 7 };
    static int64_t from_index[MOST], to_index[MOST];
    static unsigned char from_data[8 * MOST], to_data[8 * MOST + 1];
    static unsigned char has[MOST];

    for (int i = 0; i < 2000; i++) {
        oar_shape whole = catalog_shape(&random, 5);
        oari_box from = catalog_box(&random, whole), to, what;
        size_t element = (size_t)1 << catalog_below(&random, 4);
        int64_t from_count, to_count;

        to =
            catalog_below(&random, 3) == 0 ? from : catalog_box(&random, whole);
        if (!oari_box_meet(&from, &to, &what))
            continue;
        from_count = list_elements(&from, whole, from_index);
        to_count = list_elements(&to, whole, to_index);
        memset(has, 0, sizeof has);
        for (int64_t e = 0; e < from_count; e++) {
            has[from_index[e]] = 1;
            memset(from_data + (size_t)e * element, (int)(from_index[e] % 251),
                   element);
        }
        memset(to_data, 255, sizeof to_data);
        oari_box_copy(&what, &from, &to, element, from_data, to_data);
        for (int64_t e = 0; e < to_count; e++)
            for (size_t b = 0; b < element; b++)
                assert_int_equal(to_data[(size_t)e * element + b],
                                 has[to_index[e]] ? (int)(to_index[e] % 251)
                                                  : 255);
        assert_int_equal(to_data[(size_t)to_count * element], 255);
    }
}

static void runs_are_as_long_as_they_can_be(void **state)
{
    oari_box all = oari_box_whole(OAR_SHAPE(4, 5, 6));
    oari_box rows = { 3, { 1, 0, 0 }, { 2, 5, 6 } };
    oari_box columns = { 3, { 0, 2, 0 }, { 4, 2, 6 } };
    oari_box none = { 3, { 0, 2, 0 }, { 4, 0, 6 } }, one = { 0 };
    oari_box_runs runs;
    oari_box_run run;

    assert_int_equal(oari_box_runs_start(&runs, &rows, &all, &rows, 4), 1);
    assert_int_equal(oari_box_runs_next(&runs, &run), 1);
    assert_int_equal(run.from, 120);
    assert_int_equal(run.to, 0);
    assert_int_equal(run.bytes, 240);
    assert_int_equal(oari_box_runs_start(&runs, &columns, &all, &all, 4), 4);
    assert_int_equal(oari_box_runs_start(&runs, &none, &all, &all, 4), 0);
    assert_int_equal(oari_box_runs_next(&runs, &run), 0);
    assert_int_equal(oari_box_runs_start(&runs, &one, &one, &one, 8), 1);
    assert_int_equal(oari_box_runs_next(&runs, &run), 1);
    assert_int_equal(run.bytes, 8);
    assert_int_equal(oari_box_runs_next(&runs, &run), 0);
}

/* ---- tilings ------------------------------------------------------------- */

/* Divides a box in two, again and again: boxes that tile it. */
static int64_t divide(catalog_random *random, oari_box all, int64_t wanted,
                      oari_box *box)
{
    int64_t n = 1;

    box[0] = all;
    for (int64_t tries = 0; n < wanted && tries < 4 * wanted; tries++) {
        oari_box *cut = &box[catalog_below(random, n)];
        int d = all.ndim > 0 ? (int)catalog_below(random, all.ndim) : 0;
        int64_t rows;
        if (all.ndim == 0 || cut->extent[d] < 2)
            continue;
        rows = 1 + catalog_below(random, cut->extent[d] - 1);
        box[n] = *cut;
        box[n].offset[d] += rows;
        box[n++].extent[d] -= rows;
        cut->extent[d] = rows;
    }
    return n;
}

/* Checks an answer element by element. */
static void check_tiling(oar_shape whole, int64_t count, const oari_box *box,
                         const oari_ckpt_tiling *t)
{
    static int64_t index[MOST];
    static unsigned char times[MOST];
    oari_box all = oari_box_whole(whole), common;
    int64_t most = oari_box_count(&all), n, missing = -1, twice = 0;

    memset(times, 0, sizeof times);
    for (int64_t b = 0; b < count; b++) {
        n = list_elements(&box[b], whole, index);
        for (int64_t i = 0; i < n; i++)
            twice += times[index[i]]++ > 0;
    }
    for (int64_t e = most - 1; e >= 0; e--)
        if (times[e] == 0)
            missing = e;
    if (twice > 0) {
        assert_int_equal(t->kind, OARI_CKPT_OVERLAP);
        assert_true(t->box[0] < t->box[1]);
        assert_true(oari_box_meet(&box[t->box[0]], &box[t->box[1]], &common));
        assert_int_equal(oari_box_compare(&common, &t->where), 0);
    } else if (missing >= 0) {
        assert_int_equal(t->kind, OARI_CKPT_GAP);
        n = list_elements(&t->where, whole, index);
        assert_true(n > 0);
        assert_int_equal(index[0], missing);
        for (int64_t i = 0; i < n; i++)
            assert_int_equal(times[index[i]], 0);
    } else {
        assert_int_equal(t->kind, OARI_CKPT_TILED);
    }
}

static void gaps_and_overlaps_are_found(void **state)
{
    catalog_random random = { 3 };
    oari_box box[64];
    oari_ckpt_tiling t;
    long kinds[3] = { 0 };

    for (int i = 0; i < 6000; i++) {
        oar_shape whole = catalog_shape(&random, 5);
        oari_box all = oari_box_whole(whole);
        int64_t n = divide(&random, all, 1 + catalog_below(&random, 20), box);
        int64_t at = catalog_below(&random, n);
        switch (catalog_below(&random, 4)) {
        case 0: box[at] = box[--n]; break;
        case 1: box[at] = catalog_box(&random, whole); break;
        case 2: box[n++] = catalog_box(&random, whole); break;
        default: break;
        }
        OK(oari_ckpt_tile(&all, n, box, &t));
        check_tiling(whole, n, box, &t);
        kinds[t.kind]++;
    }
    for (int k = 0; k < 3; k++)
        assert_true(kinds[k] > 300);
}

static void a_gap_has_the_neighbours_that_are_there(void **state)
{
    oari_box all = oari_box_whole(OAR_SHAPE(8, 4));
    oari_box box[2] = { { 2, { 0, 0 }, { 3, 4 } }, { 2, { 5, 0 }, { 3, 4 } } };
    oari_ckpt_tiling t;

    OK(oari_ckpt_tile(&all, 2, box, &t));
    assert_string_equal(oari_box_text(&t.where).text, "[3:5, 0:4]");
    assert_true(t.box[0] == 0 && t.box[1] == 1);
    OK(oari_ckpt_tile(&all, 1, box, &t));
    assert_string_equal(oari_box_text(&t.where).text, "[3:8, 0:4]");
    assert_true(t.box[0] == 0 && t.box[1] == -1);
    OK(oari_ckpt_tile(&all, 1, box + 1, &t));
    assert_string_equal(oari_box_text(&t.where).text, "[0:5, 0:4]");
    assert_true(t.box[0] == -1 && t.box[1] == 0);
    OK(oari_ckpt_tile(&all, 0, NULL, &t));
    assert_string_equal(oari_box_text(&t.where).text, "[0:8, 0:4]");
    assert_true(t.box[0] == -1 && t.box[1] == -1);
}

/* 10,000 rows, columns or squares: comparing all pairs would take seconds. */
static void many_boxes_do_not_take_all_pairs(void **state)
{
    enum { SIDE = 100, MANY = SIDE * SIDE };
    static oari_box box[MANY];
    oari_box all = oari_box_whole(OAR_SHAPE(MANY, MANY));
    oari_ckpt_tiling t;

    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < MANY; i++)
            box[i] = kind == 0 ? (oari_box){ 2, { i, 0 }, { 1, MANY } }
                     : kind == 1
                         ? (oari_box){ 2, { 0, i }, { MANY, 1 } }
                         : (oari_box){ 2,
                                       { i / SIDE * SIDE, i % SIDE * SIDE },
                                       { SIDE, SIDE } };
        OK(oari_ckpt_tile(&all, MANY, box, &t));
        assert_int_equal(t.kind, OARI_CKPT_TILED);
        OK(oari_ckpt_tile(&all, MANY - 1, box, &t));
        assert_int_equal(t.kind, OARI_CKPT_GAP);
        assert_int_equal(oari_box_compare(&t.where, &box[MANY - 1]), 0);
    }
}

static oar_status tile_without(void *arg)
{
    oari_box all = oari_box_whole(OAR_SHAPE(8, 4));
    oari_ckpt_tiling t;

    return oari_ckpt_tile(&all, 0, NULL, &t);
}

static void without_memory_a_tiling_fails(void **state)
{
    fail_each_allocation(tile_without, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_that_cannot_be_are_refused),
        cmocka_unit_test(boxes_outside_of_a_shape_are_refused),
        cmocka_unit_test(texts_show_first_and_end),
        cmocka_unit_test(a_flat_range_is_at_most_2n_minus_1_boxes_in_order),
        cmocka_unit_test(eight_dims_give_fifteen_boxes),
        cmocka_unit_test(what_boxes_have_in_common_is_what_both_have),
        cmocka_unit_test(runs_copy_each_byte_of_a_box_once),
        cmocka_unit_test(a_copy_moves_a_box_and_nothing_else),
        cmocka_unit_test(runs_are_as_long_as_they_can_be),
        cmocka_unit_test(gaps_and_overlaps_are_found),
        cmocka_unit_test(a_gap_has_the_neighbours_that_are_there),
        cmocka_unit_test(many_boxes_do_not_take_all_pairs),
        cmocka_unit_test(without_memory_a_tiling_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
