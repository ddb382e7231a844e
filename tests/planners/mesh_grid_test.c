/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of a mesh: where each rank of a grid is, and which ranks are
 * in its rows, compared with counting one by one. No groups. */
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

#include <oarsong/mesh.h>

#include "support/last_error.h"
#include "support/leak_check.h"

enum { MOST_RANKS = 5 * 5 * 5 * 5 };

static oar_mesh *make(int dims, const int *size, int rank)
{
    oar_mesh_opts o = oar_mesh_opts_init();
    oar_mesh *mesh = NULL;

    o.rank = rank;
    OK(oar_mesh_create(NULL, dims, size, NULL, &o, &mesh));
    return mesh;
}

/* Goes to the next coordinates. Returns 0 after the last. */
static int next_at(int dims, const int *size, int *at)
{
    for (int d = dims - 1; d >= 0; d--) {
        if (++at[d] < size[d])
            return 1;
        at[d] = 0;
    }
    return 0;
}

/* Calls fn with all sizes of 1 to 4 dims, each size 1, 2, 3 or 5. */
static void for_all_sizes(void (*fn)(int dims, const int *size))
{
    static const int choice[4] = { 1, 2, 3, 5 };

    for (int dims = 1; dims <= OAR_MESH_DIMS; dims++) {
        int four[4] = { 4, 4, 4, 4 }, pick[4] = { 0 }, size[4];

        do {
            for (int d = 0; d < dims; d++)
                size[d] = choice[pick[d]];
            fn(dims, size);
        } while (next_at(dims, four, pick));
    }
}

/* ---- coordinates and rows ------------------------------------------------ */

static void check_coordinates(int dims, const int *size)
{
    oar_mesh *mesh = make(dims, size, 0);
    int at[4] = { 0 }, found[4], rank = 0;

    assert_int_equal(oar_mesh_dims(mesh), dims);
    for (int d = 0; d < dims; d++)
        assert_int_equal(oar_mesh_size(mesh, d), size[d]);
    do {
        OK(oar_mesh_coordinates(mesh, rank, found));
        assert_memory_equal(found, at, (size_t)dims * sizeof *at);
        assert_int_equal(oar_mesh_rank_at(mesh, dims, at), rank);
        rank++;
    } while (next_at(dims, size, at));
    assert_int_equal(oar_mesh_size(mesh, -1), rank);
    assert_int_equal(oar_mesh_coordinates(mesh, rank, found), OAR_E_RANK);
    oar_mesh_release(mesh);
}

static void every_rank_is_where_counting_puts_it(void **state)
{
    for_all_sizes(check_coordinates);
}

/* Whether two ranks have the same coordinates but along dim. */
static int same_row(const oar_mesh *mesh, int dim, int a, int b)
{
    int at[4], other[4];

    OK(oar_mesh_coordinates(mesh, a, at));
    OK(oar_mesh_coordinates(mesh, b, other));
    for (int d = 0; d < oar_mesh_dims(mesh); d++)
        if (d != dim && at[d] != other[d])
            return 0;
    return 1;
}

/* The rows along dim cover every rank once, in the order of lowest ranks. */
static void check_rows_along(const oar_mesh *mesh, int dim)
{
    int row[MOST_RANKS], along[MOST_RANKS], last = -1;
    int ranks = oar_mesh_size(mesh, -1), size = oar_mesh_size(mesh, dim);
    unsigned char seen[MOST_RANKS] = { 0 };

    assert_int_equal(oar_mesh_rows(mesh, dim) * size, ranks);
    for (int i = 0; i < oar_mesh_rows(mesh, dim); i++) {
        OK(oar_mesh_row(mesh, dim, i, row));
        assert_true(row[0] > last);
        last = row[0];
        for (int k = 0; k < size; k++) {
            assert_false(seen[row[k]]++);
            assert_true(k == 0 || row[k] > row[k - 1]);
            assert_true(dim < 0 || same_row(mesh, dim, row[0], row[k]));
            OK(oar_mesh_along(mesh, dim, row[k], along));
            assert_memory_equal(along, row, (size_t)size * sizeof *row);
        }
    }
}

static void check_rows(int dims, const int *size)
{
    oar_mesh *mesh = make(dims, size, 0);

    for (int d = -1; d < dims && oar_mesh_size(mesh, -1) < 100; d++)
        check_rows_along(mesh, d);
    oar_mesh_release(mesh);
}

static void rows_along_a_dim_have_every_rank_once(void **state)
{
    for_all_sizes(check_rows);
}

static void check_row_is(const oar_mesh *mesh, int dim, int rank, int count,
                         const int *wanted)
{
    int row[8];

    assert_int_equal(oar_mesh_size(mesh, dim), count);
    OK(oar_mesh_along(mesh, dim, rank, row));
    assert_memory_equal(row, wanted, (size_t)count * sizeof *row);
}

/* The cases of ferrotorch's device_mesh; its errors are below. */
static void the_cases_of_the_reference_hold(void **state)
{
    oar_mesh *mesh = make(2, (int[]){ 2, 4 }, 0);
    int at[3], row[4];

    for (int r = 0; r < 8; r++) {
        OK(oar_mesh_coordinates(mesh, r, at));
        assert_true(at[0] == r / 4 && at[1] == r % 4);
        assert_int_equal(oar_mesh_rank_at(mesh, 2, at), r);
    }
    check_row_is(mesh, 0, 5, 2, (int[]){ 1, 5 });
    check_row_is(mesh, 1, 5, 4, (int[]){ 4, 5, 6, 7 });
    assert_int_equal(oar_mesh_rows(mesh, 0), 4);
    assert_int_equal(oar_mesh_rows(mesh, 1), 2);
    OK(oar_mesh_row(mesh, 1, 0, row));
    assert_memory_equal(row, ((int[]){ 0, 1, 2, 3 }), sizeof row);
    OK(oar_mesh_row(mesh, 1, 1, row));
    assert_memory_equal(row, ((int[]){ 4, 5, 6, 7 }), sizeof row);
    oar_mesh_release(mesh);
    mesh = make(3, (int[]){ 2, 2, 3 }, 0);
    OK(oar_mesh_coordinates(mesh, 7, at));
    assert_true(at[0] == 1 && at[1] == 0 && at[2] == 1);
    assert_int_equal(oar_mesh_rank_at(mesh, 3, at), 7);
    check_row_is(mesh, 2, 7, 3, (int[]){ 6, 7, 8 });
    oar_mesh_release(mesh);
}

/* ---- sizes --------------------------------------------------------------- */

static void what_is_left_is_found(void **state)
{
    oar_mesh_opts o = oar_mesh_opts_init();
    oar_mesh *mesh;

    o.ranks = 30;
    for (int d = 0; d < 3; d++) {
        int size[3] = { 2, 3, 5 }, wanted = size[d];

        size[d] = -1;
        OK(oar_mesh_create(NULL, 3, size, NULL, &o, &mesh));
        assert_int_equal(oar_mesh_size(mesh, d), wanted);
        assert_int_equal(oar_mesh_size(mesh, -1), 30);
        oar_mesh_release(mesh);
    }
    OK(oar_mesh_create(NULL, 1, (int[]){ -1 }, NULL, &o, &mesh));
    assert_int_equal(oar_mesh_size(mesh, 0), 30);
    oar_mesh_release(mesh);
    OK(oar_mesh_create(NULL, 2, (int[]){ 30, -1 }, NULL, &o, &mesh));
    assert_int_equal(oar_mesh_size(mesh, 1), 1);
    oar_mesh_release(mesh);
}

static oar_status try_sizes(int ranks, int dims, const int *size)
{
    oar_mesh_opts o = oar_mesh_opts_init();
    oar_mesh *mesh = NULL;
    oar_status status;

    o.ranks = ranks;
    status = oar_mesh_create(NULL, dims, size, NULL, &o, &mesh);
    assert_true(status == OAR_OK || mesh == NULL);
    oar_mesh_release(mesh);
    return status;
}

static void impossible_sizes_are_refused(void **state)
{
    int many[5] = { 1, 1, 1, 1, 1 }, big = 65536;

    assert_fails_with(try_sizes(5, 2, (int[]){ 2, 3 }), OAR_E_WORLD,
                      "2 x 3 ranks cannot be made of 5");
    assert_fails_with(try_sizes(4, 2, (int[]){ 2, 3 }), OAR_E_WORLD, "of 4");
    assert_fails_with(try_sizes(0, 2, (int[]){ 2, 0 }), OAR_E_WORLD,
                      "2 x 0 ranks: a size is at least 1");
    assert_fails_with(try_sizes(6, 2, (int[]){ 2, -3 }), OAR_E_WORLD, "-3");
    assert_fails_with(try_sizes(6, 2, (int[]){ -1, -1 }), OAR_E_WORLD,
                      "only one size");
    assert_fails_with(try_sizes(7, 2, (int[]){ 2, -1 }), OAR_E_WORLD, "of 7");
    assert_fails_with(try_sizes(4, 2, (int[]){ 5, -1 }), OAR_E_WORLD, "of 4");
    assert_fails_with(try_sizes(0, 2, (int[]){ 2, -1 }), OAR_E_WORLD,
                      "how many ranks");
    assert_fails_with(try_sizes(-4, 1, (int[]){ -1 }), OAR_E_WORLD, "-4 ranks");
    assert_fails_with(try_sizes(4, 0, many), OAR_E_WORLD, "0 dims");
    assert_fails_with(try_sizes(4, -1, NULL), OAR_E_WORLD, "-1 dims");
    assert_fails_with(try_sizes(1, 5, many), OAR_E_WORLD, "5 dims");
    assert_fails_with(try_sizes(4, 2, NULL), OAR_E_ARG, "without sizes");
    assert_int_equal(try_sizes(1, 4, many), OAR_OK);
    /* A product that is 0, or small, when it overflows. */
    assert_fails_with(try_sizes(0, 2, (int[]){ big, big }), OAR_E_WORLD,
                      "more than");
    assert_fails_with(try_sizes(4, 4, (int[]){ big, big, big, big }),
                      OAR_E_WORLD, "more than");
    assert_fails_with(try_sizes(4, 3, (int[]){ INT_MAX, INT_MAX, -1 }),
                      OAR_E_WORLD, "more than");
    assert_int_equal(try_sizes(0, 2, (int[]){ big, big / 4 }), OAR_OK);
}

static void wrong_places_and_ranks_are_refused(void **state)
{
    oar_mesh_opts o = oar_mesh_opts_init();
    oar_mesh *mesh = NULL;
    int four = 4;

    assert_fails_with(oar_mesh_create(NULL, 1, &four, NULL, NULL, NULL),
                      OAR_E_ARG, "without a place");
    o.rank = 4;
    assert_fails_with(oar_mesh_create(NULL, 1, &four, NULL, &o, &mesh),
                      OAR_E_RANK, "rank 4 in a mesh of 4");
    o.rank = -1;
    assert_fails_with(oar_mesh_create(NULL, 1, &four, NULL, &o, &mesh),
                      OAR_E_RANK, "rank -1");
    o.rank = 0;
    o.latency_us = (double[]){ 0 };
    assert_fails_with(oar_mesh_create(NULL, 1, &four, NULL, &o, &mesh),
                      OAR_E_ARG, "dim \"0\" of a mesh has 0 us and 1 GB/s");
    o.latency_us = NULL;
    o.gb_per_s = (double[]){ -1 };
    assert_fails_with(oar_mesh_create(NULL, 1, &four, NULL, &o, &mesh),
                      OAR_E_ARG, "both must be above 0");
    o.size = 5;
    assert_int_equal(oar_mesh_create(NULL, 1, &four, NULL, &o, &mesh),
                     OAR_E_ARG);
    assert_null(mesh);
}

/* ---- names --------------------------------------------------------------- */

static void dims_are_found_by_name(void **state)
{
    const char *names[2] = { "dp", "tp" };
    oar_mesh *mesh;

    OK(oar_mesh_create(NULL, 2, (int[]){ 2, 4 }, names, NULL, &mesh));
    assert_int_equal(oar_mesh_dim(mesh, "dp"), 0);
    assert_int_equal(oar_mesh_dim(mesh, "tp"), 1);
    assert_string_equal(oar_mesh_name(mesh, 1), "tp");
    assert_ptr_not_equal(oar_mesh_name(mesh, 1), names[1]);
    assert_null(oar_mesh_name(mesh, 2));
    assert_null(oar_mesh_name(mesh, -1));
    assert_int_equal(oar_mesh_dim(mesh, "pp"), -1);
    assert_int_equal(oar_last_error()->status, OAR_E_NOT_FOUND);
    assert_last_error_has("no dim named \"pp\"");
    assert_int_equal(oar_mesh_dim(mesh, "d"), -1);
    assert_int_equal(oar_mesh_dim(mesh, "dp,tp"), -1);
    assert_int_equal(oar_mesh_dim(mesh, NULL), -1);
    oar_mesh_release(mesh);
    mesh = make(4, (int[]){ 1, 2, 1, 3 }, 0);
    assert_int_equal(oar_mesh_dim(mesh, "3"), 3);
    assert_string_equal(oar_mesh_name(mesh, 0), "0");
    oar_mesh_release(mesh);
}

static oar_status try_names(const char *first, const char *second)
{
    const char *names[2] = { first, second };
    oar_mesh *mesh = NULL;
    oar_status status =
        oar_mesh_create(NULL, 2, (int[]){ 2, 2 }, names, NULL, &mesh);

    assert_true(status == OAR_OK || mesh == NULL);
    oar_mesh_release(mesh);
    return status;
}

static void wrong_names_are_refused(void **state)
{
    char longest[64], longer[65];

    memset(longest, 'a', sizeof longest);
    memset(longer, 'a', sizeof longer);
    longest[63] = longer[64] = 0;
    assert_fails_with(try_names("dp", NULL), OAR_E_ARG, "dim 1");
    assert_fails_with(try_names(NULL, "dp"), OAR_E_ARG, "dim 0");
    assert_fails_with(try_names("dp", ""), OAR_E_ARG, "1 to 63 bytes");
    assert_fails_with(try_names("d,p", "tp"), OAR_E_ARG, "no comma");
    assert_fails_with(try_names("dp", "dp"), OAR_E_ARG, "two dims");
    assert_fails_with(try_names("dp", longer), OAR_E_ARG, "1 to 63 bytes");
    assert_int_equal(try_names("dp", longest), OAR_OK);
    assert_int_equal(try_names("1", "0"), OAR_OK);
}

/* ---- wrong questions ----------------------------------------------------- */

static void wrong_questions_are_refused(void **state)
{
    oar_mesh *mesh = make(2, (int[]){ 2, 2 }, 3);
    int at[3] = { 0, 5, 0 }, row[4];

    assert_int_equal(oar_mesh_rank(mesh), 3);
    assert_int_equal(oar_mesh_rank_at(mesh, 2, at), -1);
    assert_int_equal(oar_last_error()->status, OAR_E_RANK);
    assert_last_error_has("coordinate 5 along dim \"1\"");
    at[1] = -1;
    assert_int_equal(oar_mesh_rank_at(mesh, 2, at), -1);
    assert_int_equal(oar_last_error()->status, OAR_E_RANK);
    for (int count = -1; count <= 3; count += 2) {
        assert_int_equal(oar_mesh_rank_at(mesh, count, at), -1);
        assert_int_equal(oar_last_error()->status, OAR_E_ARG);
    }
    assert_int_equal(oar_mesh_rank_at(mesh, 2, NULL), -1);
    assert_int_equal(oar_last_error()->status, OAR_E_ARG);
    assert_fails_with(oar_mesh_coordinates(mesh, 4, at), OAR_E_RANK,
                      "rank 4 in a mesh of 2 x 2");
    assert_fails_with(oar_mesh_coordinates(mesh, -1, at), OAR_E_RANK, "-1");
    assert_fails_with(oar_mesh_coordinates(mesh, 0, NULL), OAR_E_ARG, "place");
    assert_fails_with(oar_mesh_along(mesh, 2, 0, row), OAR_E_ARG, "dim 2");
    assert_fails_with(oar_mesh_along(mesh, -2, 0, row), OAR_E_ARG, "dim -2");
    assert_fails_with(oar_mesh_along(mesh, 0, 4, row), OAR_E_RANK, "rank 4");
    assert_fails_with(oar_mesh_along(mesh, -1, 4, row), OAR_E_RANK, "rank 4");
    assert_fails_with(oar_mesh_along(mesh, 0, 0, NULL), OAR_E_ARG, "place");
    assert_fails_with(oar_mesh_row(mesh, 2, 0, row), OAR_E_ARG, "dim 2");
    assert_fails_with(oar_mesh_row(mesh, 0, 2, row), OAR_E_ARG, "row 2 of 2");
    assert_fails_with(oar_mesh_row(mesh, 0, -1, row), OAR_E_ARG, "row -1");
    assert_fails_with(oar_mesh_row(mesh, 0, 0, NULL), OAR_E_ARG, "place");
    assert_int_equal(oar_mesh_size(mesh, 2), 0);
    assert_int_equal(oar_mesh_size(mesh, -2), 0);
    assert_int_equal(oar_mesh_rows(mesh, 2), 0);
    assert_null(oar_mesh_group(mesh, 0));
    assert_null(oar_mesh_group(mesh, -1));
    assert_null(oar_mesh_group(mesh, 9));
    oar_mesh_release(mesh);
}

static void no_mesh_has_no_answers(void **state)
{
    int at[4] = { 0 };

    oar_mesh_release(NULL);
    assert_null(oar_mesh_retain(NULL));
    assert_int_equal(oar_mesh_dims(NULL), 0);
    assert_int_equal(oar_mesh_size(NULL, -1), 0);
    assert_int_equal(oar_mesh_rows(NULL, 0), 0);
    assert_int_equal(oar_mesh_rank(NULL), -1);
    assert_null(oar_mesh_name(NULL, 0));
    assert_null(oar_mesh_group(NULL, 0));
    assert_int_equal(oar_mesh_dim(NULL, "dp"), -1);
    assert_int_equal(oar_mesh_rank_at(NULL, 0, at), -1);
    assert_int_equal(oar_mesh_coordinates(NULL, 0, at), OAR_E_ARG);
    assert_int_equal(oar_mesh_along(NULL, 0, 0, at), OAR_E_ARG);
    assert_int_equal(oar_mesh_row(NULL, 0, 0, at), OAR_E_ARG);
}

/* ---- slices -------------------------------------------------------------- */

/* Lists of different dims, in any order, as digits: "20" is dims 2 and 0. */
static const char *const lists[] = { "0",   "1",   "2",   "01",  "10",
                                     "12",  "20",  "012", "210", "102",
                                     "201", "120", "02",  "21",  "021" };
enum { LISTS = sizeof lists / sizeof *lists };

/* Writes the names of a list; returns how many ranks its dims have. */
static int name_list(const oar_mesh *mesh, const char *list, char *names)
{
    int ranks = 1;

    *names = 0;
    for (const char *c = list; *c != 0; c++) {
        if (c != list)
            strcat(names, ",");
        strcat(names, oar_mesh_name(mesh, *c - '0'));
        ranks *= oar_mesh_size(mesh, *c - '0');
    }
    return ranks;
}

static void check_slice(oar_mesh *mesh, const char *list)
{
    char names[80];
    int at[3], found[3], rank = 0, ranks = name_list(mesh, list, names);
    oar_mesh *slice, *flat;

    OK(oar_mesh_slice(mesh, names, &slice));
    OK(oar_mesh_flatten(mesh, names, "one", &flat));
    OK(oar_mesh_coordinates(mesh, oar_mesh_rank(mesh), at));
    OK(oar_mesh_coordinates(slice, oar_mesh_rank(slice), found));
    assert_int_equal(oar_mesh_dims(slice), strlen(list));
    for (int i = 0; list[i] != 0; i++) {
        int dim = list[i] - '0';

        assert_int_equal(oar_mesh_size(slice, i), oar_mesh_size(mesh, dim));
        assert_string_equal(oar_mesh_name(slice, i), oar_mesh_name(mesh, dim));
        assert_int_equal(found[i], at[dim]);
        rank = rank * oar_mesh_size(mesh, dim) + at[dim];
    }
    assert_int_equal(oar_mesh_rank(slice), rank);
    assert_int_equal(oar_mesh_size(slice, -1), ranks);
    assert_int_equal(oar_mesh_dims(flat), 1);
    assert_int_equal(oar_mesh_size(flat, 0), ranks);
    assert_int_equal(oar_mesh_rank(flat), rank);
    assert_string_equal(oar_mesh_name(flat, 0), "one");
    oar_mesh_release(flat);
    oar_mesh_release(slice);
}

static void slices_have_the_coordinates_of_their_dims(void **state)
{
    static const char *const names[3] = { "pp", "dp", "tp" };

    for (int rank = 0; rank < 2 * 3 * 5; rank++) {
        oar_mesh_opts o = oar_mesh_opts_init();
        oar_mesh *mesh;

        o.rank = rank;
        OK(oar_mesh_create(NULL, 3, (int[]){ 2, 3, 5 }, names, &o, &mesh));
        for (int i = 0; i < LISTS; i++)
            check_slice(mesh, lists[i]);
        oar_mesh_release(mesh);
    }
}

static void a_slice_of_a_slice_is_a_slice(void **state)
{
    oar_mesh *mesh = make(4, (int[]){ 2, 3, 1, 5 }, 17), *a, *b, *kept;

    OK(oar_mesh_slice(mesh, "3,1,2", &a));
    OK(oar_mesh_slice(a, "1", &b));
    assert_int_equal(oar_mesh_size(b, 0), 3);
    assert_int_equal(oar_mesh_rank(b), 0); /* 17 = (1, 0, 0, 2) */
    assert_int_equal(oar_mesh_rank(a), 2 * 3 + 0);
    kept = oar_mesh_retain(a);
    assert_ptr_equal(kept, a);
    oar_mesh_release(a);
    oar_mesh_release(mesh);
    assert_string_equal(oar_mesh_name(kept, 0), "3");
    oar_mesh_release(kept);
    oar_mesh_release(b);
}

static void wrong_lists_of_names_are_refused(void **state)
{
    static const struct {
        const char *names;
        oar_status status;
        const char *says;
    } wrong[] = {
        { "", OAR_E_ARG, "is empty" },
        { ",", OAR_E_ARG, "is empty" },
        { "0,", OAR_E_ARG, "is empty" },
        { ",0", OAR_E_ARG, "is empty" },
        { "0,,1", OAR_E_ARG, "is empty" },
        { "0,0", OAR_E_ARG, "names dim \"0\" twice" },
        { "0,1,2,3,0", OAR_E_ARG, "twice" },
        { "dp", OAR_E_NOT_FOUND, "no dim named \"dp\"" },
        { "0, 1", OAR_E_NOT_FOUND, "no dim named \" 1\"" },
        { NULL, OAR_E_ARG, "without names" },
    };
    oar_mesh *mesh = make(4, (int[]){ 2, 3, 1, 5 }, 0), *slice = NULL;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_fails_with(oar_mesh_slice(mesh, wrong[i].names, &slice),
                          wrong[i].status, wrong[i].says);
        assert_fails_with(oar_mesh_flatten(mesh, wrong[i].names, "x", &slice),
                          wrong[i].status, wrong[i].says);
    }
    assert_fails_with(oar_mesh_flatten(mesh, "0,1", NULL, &slice), OAR_E_ARG,
                      "1 to 63 bytes");
    assert_fails_with(oar_mesh_flatten(mesh, "0,1", "a,b", &slice), OAR_E_ARG,
                      "no comma");
    assert_fails_with(oar_mesh_slice(NULL, "0", &slice), OAR_E_ARG, "a mesh");
    assert_fails_with(oar_mesh_slice(mesh, "0", NULL), OAR_E_ARG, "place");
    assert_fails_with(oar_mesh_flatten(mesh, "0", "a", NULL), OAR_E_ARG,
                      "place");
    assert_null(slice);
    oar_mesh_release(mesh);
}

static oar_status make_all(void *arg)
{
    oar_mesh *mesh = NULL, *slice = NULL, *flat = NULL;
    oar_status status =
        oar_mesh_create(NULL, 2, (int[]){ 2, 3 }, NULL, NULL, &mesh);

    if (status == OAR_OK)
        status = oar_mesh_slice(mesh, "1", &slice);
    if (status == OAR_OK)
        status = oar_mesh_flatten(mesh, "0,1", "all", &flat);
    oar_mesh_release(mesh);
    oar_mesh_release(slice);
    oar_mesh_release(flat);
    return status;
}

static void every_failing_allocation_is_reported(void **state)
{
    fail_each_allocation(make_all, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_is_where_counting_puts_it),
        cmocka_unit_test(rows_along_a_dim_have_every_rank_once),
        cmocka_unit_test(the_cases_of_the_reference_hold),
        cmocka_unit_test(what_is_left_is_found),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(wrong_places_and_ranks_are_refused),
        cmocka_unit_test(dims_are_found_by_name),
        cmocka_unit_test(wrong_names_are_refused),
        cmocka_unit_test(wrong_questions_are_refused),
        cmocka_unit_test(no_mesh_has_no_answers),
        cmocka_unit_test(slices_have_the_coordinates_of_their_dims),
        cmocka_unit_test(a_slice_of_a_slice_is_a_slice),
        cmocka_unit_test(wrong_lists_of_names_are_refused),
        cmocka_unit_test(every_failing_allocation_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
