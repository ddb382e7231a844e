/* SPDX-License-Identifier: Apache-2.0 */
/* gather, scatter, all_gather, reduce_scatter and all_to_all on every backend,
 * in equal and in ragged parts, in and out of place; byte objects; and what is
 * refused. */
#include "support/ranks.h"

#include <stdlib.h>
#include <string.h>

#include <oarsong/memory.h>
#include <oarsong/shared.h>

#include "support/last_error.h"

enum { MOST = 8 };
static const int sizes[] = { 1, 2, 3, 5 };
static const size_t counts[] = { 0, 1, 3, 1000, 70001 };
enum {
    SIZES = sizeof sizes / sizeof *sizes,
    COUNTS = sizeof counts / sizeof *counts
};

/* What rank `from` has for rank `to` at place i. */
static int32_t number(int from, int to, size_t i)
{
    return (int32_t)(from * 1000003 + to * 7919 + (int)(i % 5003));
}

static void fill(int32_t *x, size_t count, int from, int to)
{
    for (size_t i = 0; i < count; i++)
        x[i] = number(from, to, i);
}

static int is(const int32_t *x, size_t count, int from, int to)
{
    for (size_t i = 0; i < count; i++)
        if (x[i] != number(from, to, i))
            return 0;
    return 1;
}

/* Parts of rank r: all alike, or growing with holes. */
static size_t part(int r, size_t each, int ragged)
{
    return !ragged ? each : r % 3 == 1 ? 0 : each * (size_t)(r + 1) / 2;
}

/* One case: its parts, and two rows with a fence behind each. */
typedef struct parts_case {
    int n, rank, ragged, shared;
    size_t each, count[MOST], first[MOST + 1];
    int32_t *in, *out;
} parts_case;

static int32_t *make(size_t count, int shared)
{
    void *memory = NULL;
    size_t bytes = (count + 1) * sizeof(int32_t);

    if (!shared)
        memory = malloc(bytes);
    else if (oar_shared_alloc(bytes, &memory) != OAR_OK)
        return NULL;
    memset(memory, 0x5a, bytes);
    return memory;
}

static void drop(int32_t *memory, int shared)
{
    if (shared)
        oar_shared_free(memory);
    else
        free(memory);
}

static oar_status open_row(parts_case *r, oar_group *g, size_t each, int how)
{
    r->n = oar_group_size(g);
    r->rank = oar_group_rank(g);
    r->each = each;
    r->ragged = how & 1;
    r->shared = how >> 1 & 1;
    r->first[0] = 0;
    for (int i = 0; i < r->n; i++) {
        r->count[i] = part(i, each, r->ragged);
        r->first[i + 1] = r->first[i] + r->count[i];
    }
    r->in = make(r->first[r->n], r->shared);
    r->out = make(r->first[r->n], r->shared);
    CHECK(r->in != NULL && r->out != NULL);
    return OAR_OK;
}

static oar_status close_row(parts_case *r)
{
    CHECK(r->in[r->first[r->n]] == 0x5a5a5a5a);
    CHECK(r->out[r->first[r->n]] == 0x5a5a5a5a);
    drop(r->in, r->shared);
    drop(r->out, r->shared);
    return OAR_OK;
}

static oar_span whole(const parts_case *r, int32_t *x)
{
    return oar_span_of(x, r->first[r->n], OAR_I32);
}

static oar_span piece(const parts_case *r, int32_t *x, int i)
{
    return oar_span_of(x + r->first[i], r->count[i], OAR_I32);
}

/* work: where the call, whose status this is, has put its handle. */
static oar_status finish(oar_status status, oar_work *const *work)
{
    if (status == OAR_OK && *work != NULL)
        status = oar_work_wait(*work);
    oar_work_release(*work);
    return status;
}

static oar_status gather(oar_group *g, parts_case *r, int root, int in_place)
{
    oar_span in = piece(r, in_place ? r->out : r->in, r->rank);
    oar_span out = r->rank == root ? whole(r, r->out) : oar_span_of(NULL, 0, 0);

    fill(in.data, in.count, r->rank, root);
    if (r->ragged)
        CHECK_OK(oar_gather_v(g, in, out, r->rank == root ? r->count : NULL,
                              root, NULL, NULL));
    else
        CHECK_OK(oar_gather(g, in, out, root, NULL, NULL));
    for (int i = 0; r->rank == root && i < r->n; i++)
        CHECK(is(r->out + r->first[i], r->count[i], i, root));
    return OAR_OK;
}

static oar_status scatter(oar_group *g, parts_case *r, int root, int in_place)
{
    oar_span in = r->rank == root ? whole(r, r->in) : oar_span_of(NULL, 0, 0);
    oar_span out =
        piece(r, in_place && r->rank == root ? r->in : r->out, r->rank);

    for (int i = 0; i < r->n; i++)
        fill(r->in + r->first[i], r->count[i], root, i);
    if (r->ragged)
        CHECK_OK(oar_scatter_v(g, in, r->rank == root ? r->count : NULL, out,
                               root, NULL, NULL));
    else
        CHECK_OK(oar_scatter(g, in, out, root, NULL, NULL));
    CHECK(is(out.data, out.count, root, r->rank));
    return OAR_OK;
}

static oar_status all_gather(oar_group *g, parts_case *r, int in_place)
{
    oar_span in = piece(r, in_place ? r->out : r->in, r->rank);
    oar_work *work = NULL;

    fill(in.data, in.count, r->rank, 0);
    CHECK_OK(finish(oar_all_gather_v(g, in, whole(r, r->out),
                                     r->ragged ? r->count : NULL, NULL, &work),
                    &work));
    for (int i = 0; i < r->n; i++)
        CHECK(is(r->out + r->first[i], r->count[i], i, 0));
    return OAR_OK;
}

static oar_status reduce_scatter(oar_group *g, parts_case *r, int in_place)
{
    oar_span out = piece(r, in_place ? r->in : r->out, r->rank);

    for (int i = 0; i < r->n; i++)
        fill(r->in + r->first[i], r->count[i], r->rank, i);
    CHECK_OK(oar_reduce_scatter_v(g, whole(r, r->in),
                                  r->ragged ? r->count : NULL, out, OAR_SUM,
                                  NULL, NULL));
    for (size_t i = 0; i < out.count; i++) {
        int32_t sum = 0;

        for (int k = 0; k < r->n; k++)
            sum += number(k, r->rank, i);
        CHECK(((int32_t *)out.data)[i] == sum);
    }
    return OAR_OK;
}

/* Rank a sends rank b as many as part((a + 2 b) % n). */
static size_t pair_count(const parts_case *r, int a, int b)
{
    return r->ragged ? r->count[(a + 2 * b) % r->n] : r->each;
}

static oar_status all_to_all(oar_group *g, parts_case *r)
{
    size_t out_count[MOST], in_count[MOST], in_all = 0, out_all = 0, at = 0;
    int32_t *in, *out;

    for (int i = 0; i < r->n; i++) {
        in_all += in_count[i] = pair_count(r, r->rank, i);
        out_all += out_count[i] = pair_count(r, i, r->rank);
    }
    in = make(in_all, r->shared);
    out = make(out_all, r->shared);
    for (int i = 0; i < r->n; at += in_count[i++])
        fill(in + at, in_count[i], r->rank, i);
    CHECK_OK(oar_all_to_all_v(g, oar_span_of(in, in_all, OAR_I32),
                              r->ragged ? in_count : NULL,
                              oar_span_of(out, out_all, OAR_I32),
                              r->ragged ? out_count : NULL, NULL, NULL));
    at = 0;
    for (int i = 0; i < r->n; at += out_count[i++])
        CHECK(is(out + at, out_count[i], i, r->rank));
    CHECK(out[out_all] == 0x5a5a5a5a);
    drop(in, r->shared);
    drop(out, r->shared);
    return OAR_OK;
}

static oar_status run_rows(oar_group *g, void *arg)
{
    for (int c = 0; c < COUNTS; c++)
        for (int how = 0; how < 8; how++) {
            int in_place = how >> 2, n = oar_group_size(g);
            parts_case r;

            CHECK_OK(open_row(&r, g, counts[c], how));
            CHECK_OK(all_gather(g, &r, in_place));
            CHECK_OK(reduce_scatter(g, &r, in_place));
            CHECK_OK(all_to_all(g, &r));
            for (int root = 0; root < n; root++) {
                CHECK_OK(gather(g, &r, root, in_place && r.rank == root));
                CHECK_OK(scatter(g, &r, root, in_place));
            }
            CHECK_OK(oar_barrier(g, NULL, NULL));
            CHECK_OK(close_row(&r));
        }
    return OAR_OK;
}

static void every_part_ends_where_it_belongs(void **state)
{
    for (int i = 0; i < SIZES; i++)
        ranks_all(sizes[i], run_rows, NULL);
}

/* ---- reduce to one rank -------------------------------------------------- */

static oar_status run_reduce(oar_group *g, void *arg)
{
    int n = oar_group_size(g), rank = oar_group_rank(g);

    for (int c = 0; c < COUNTS; c++)
        for (int root = 0; root < n; root++) {
            int32_t *in = make(counts[c], 1), *out = make(counts[c], 0);
            oar_span to = rank == root ? oar_span_of(out, counts[c], OAR_I32)
                                       : oar_span_of(NULL, 0, OAR_I32);

            fill(in, counts[c], rank, 0);
            CHECK_OK(oar_reduce(g, oar_span_of(in, counts[c], OAR_I32), to,
                                OAR_SUM, root, NULL, NULL));
            for (size_t i = 0; rank == root && i < counts[c]; i++) {
                int32_t sum = 0;

                for (int k = 0; k < n; k++)
                    sum += number(k, 0, i);
                CHECK(out[i] == sum);
            }
            CHECK(is(in, counts[c], rank, 0));
            CHECK_OK(oar_barrier(g, NULL, NULL));
            drop(in, 1);
            drop(out, 0);
        }
    return OAR_OK;
}

static void reduce_leaves_the_sum_on_root_only(void **state)
{
    for (int i = 0; i < SIZES; i++)
        ranks_all(sizes[i], run_reduce, NULL);
}

/* ---- byte objects -------------------------------------------------------- */

static size_t object_bytes(int rank)
{
    return rank % 3 == 1 ? 0 : (size_t)(rank * rank) * 7001 + 5;
}

static unsigned char object_byte(int rank, size_t i)
{
    return (unsigned char)((size_t)rank * 37 + i * 11);
}

static unsigned char *object(int rank)
{
    unsigned char *made = malloc(object_bytes(rank) + 1);

    for (size_t i = 0; i < object_bytes(rank); i++)
        made[i] = object_byte(rank, i);
    return made;
}

static int is_object(const unsigned char *x, size_t bytes, int rank)
{
    if (bytes != object_bytes(rank))
        return 0;
    for (size_t i = 0; i < bytes; i++)
        if (x[i] != object_byte(rank, i))
            return 0;
    return 1;
}

static oar_status check_all(const unsigned char *all, const size_t *got, int n)
{
    for (int r = 0; r < n; all += got[r++])
        CHECK(is_object(all, got[r], r));
    return OAR_OK;
}

static oar_status run_gather_bytes(oar_group *g, int async)
{
    int n = oar_group_size(g), rank = oar_group_rank(g);
    unsigned char *mine = object(rank);
    size_t got[MOST], at_root[MOST];
    void *all = NULL, *there = NULL;
    oar_work *work = NULL;

    CHECK_OK(finish(oar_all_gather_bytes(g, mine, object_bytes(rank), &all, got,
                                         NULL, async ? &work : NULL),
                    &work));
    CHECK_OK(check_all(all, got, n));
    CHECK_OK(oar_gather_bytes(g, mine, object_bytes(rank), n - 1,
                              rank == n - 1 ? &there : NULL,
                              rank == n - 1 ? at_root : NULL, NULL, NULL));
    if (rank == n - 1)
        CHECK_OK(check_all(there, at_root, n));
    CHECK_OK(oar_barrier(g, NULL, NULL));
    oar_free(all);
    oar_free(there);
    free(mine);
    return OAR_OK;
}

static oar_status run_broadcast_bytes(oar_group *g, int root)
{
    int rank = oar_group_rank(g);
    unsigned char *mine = rank == root ? object(root) : NULL;
    size_t bytes = rank == root ? object_bytes(root) : 77;
    void *data = mine;

    CHECK_OK(oar_broadcast_bytes(g, &data, &bytes, root, NULL, NULL));
    CHECK(is_object(data, bytes, root));
    CHECK_OK(oar_barrier(g, NULL, NULL));
    if (rank != root)
        oar_free(data);
    free(mine);
    return OAR_OK;
}

static oar_status run_scatter_bytes(oar_group *g, int root)
{
    int n = oar_group_size(g), rank = oar_group_rank(g);
    unsigned char *all = NULL;
    size_t size[MOST], total = 0, bytes = 99;
    void *data = NULL;

    for (int r = 0; r < n; r++)
        total += size[r] = object_bytes(r);
    if (rank == root) {
        all = malloc(total + 1);
        for (size_t r = 0, at = 0; r < (size_t)n; at += size[r++])
            for (size_t i = 0; i < size[r]; i++)
                all[at + i] = object_byte((int)r, i);
    }
    CHECK_OK(oar_scatter_bytes(g, all, rank == root ? size : NULL, root, &data,
                               &bytes, NULL, NULL));
    CHECK(is_object(data, bytes, rank));
    CHECK_OK(oar_barrier(g, NULL, NULL));
    oar_free(data);
    free(all);
    return OAR_OK;
}

static oar_status run_objects(oar_group *g, void *arg)
{
    CHECK_OK(run_gather_bytes(g, 0));
    CHECK_OK(run_gather_bytes(g, 1));
    for (int root = 0; root < oar_group_size(g); root++) {
        CHECK_OK(run_broadcast_bytes(g, root));
        CHECK_OK(run_scatter_bytes(g, root));
    }
    return OAR_OK;
}

static void objects_of_unknown_size_arrive_whole(void **state)
{
    for (int i = 0; i < SIZES; i++)
        ranks_all(sizes[i], run_objects, NULL);
}

/* ---- refusals ------------------------------------------------------------ */

static oar_status run_refusals(oar_group *g, void *arg)
{
    float x[12] = { 0 }, y[12] = { 0 };
    size_t two[] = { 1, 2 };
    int rank = oar_group_rank(g);

    CHECK(fails_with(oar_all_gather(g, oar_span_of(x, 3, OAR_F32),
                                    oar_span_of(y, 7, OAR_F32), NULL, NULL),
                     OAR_E_ARG, "a row of 7 elements"));
    CHECK(fails_with(oar_all_gather_v(g, oar_span_of(x, 5, OAR_F32),
                                      oar_span_of(y, 3, OAR_F32), two, NULL,
                                      NULL),
                     OAR_E_ARG, "but the counts give rank"));
    CHECK(fails_with(oar_reduce_scatter(g, oar_span_of(x, 4, OAR_F32),
                                        oar_span_of(y, 2, OAR_F64), OAR_SUM,
                                        NULL, NULL),
                     OAR_E_DTYPE, "4 f32 into 2 f64"));
    CHECK(
        fails_with(oar_reduce_scatter(g, oar_span_of(x, 4, OAR_F32),
                                      oar_span_of(x + 2 * rank + 1, 2, OAR_F32),
                                      OAR_SUM, NULL, NULL),
                   OAR_E_ARG, "overlap"));
    CHECK(fails_with(oar_all_to_all(g, oar_span_of(x, 5, OAR_F32),
                                    oar_span_of(y, 5, OAR_F32), NULL, NULL),
                     OAR_E_ARG, "2 equal parts"));
    CHECK(fails_with(oar_all_to_all(g, oar_span_of(x, 4, OAR_F32),
                                    oar_span_of(x, 4, OAR_F32), NULL, NULL),
                     OAR_E_ARG, "the same"));
    CHECK(fails_with(oar_gather(g, oar_span_of(x, 1, OAR_F32),
                                oar_span_of(y, 2, OAR_F32), 2, NULL, NULL),
                     OAR_E_RANK, "rank 2 in a group of 2"));
    if (rank == 0)
        CHECK(fails_with(oar_gather_v(g, oar_span_of(x, 1, OAR_F32),
                                      oar_span_of(y, 2, OAR_F32), NULL, 0, NULL,
                                      NULL),
                         OAR_E_ARG, "no counts"));
    CHECK(fails_with(oar_broadcast_bytes(g, NULL, NULL, 0, NULL, NULL),
                     OAR_E_ARG, "nowhere"));
    return oar_barrier(g, NULL, NULL);
}

static void wrong_rows_are_refused_and_the_group_goes_on(void **state)
{
    ranks_all(2, run_refusals, NULL);
}

static oar_status run_uneven(oar_group *g, void *arg)
{
    float x[4] = { 0 }, y[8] = { 0 };
    size_t n = 1 + (size_t)oar_group_rank(g);

    CHECK(oar_all_gather(g, oar_span_of(x, n, OAR_F32),
                         oar_span_of(y, 2 * n, OAR_F32), NULL,
                         NULL) == OAR_E_MISMATCH);
    return OAR_OK;
}

static void parts_of_different_size_are_a_mismatch(void **state)
{
    const char *const boards[] = { "sim", "shm" };

    for (int i = 0; i < 2; i++)
        assert_int_equal(ranks_run(boards[i], 2, NULL, run_uneven, NULL),
                         OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_ends_where_it_belongs),
        cmocka_unit_test(reduce_leaves_the_sum_on_root_only),
        cmocka_unit_test(objects_of_unknown_size_arrive_whole),
        cmocka_unit_test(wrong_rows_are_refused_and_the_group_goes_on),
        cmocka_unit_test(parts_of_different_size_are_a_mismatch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
