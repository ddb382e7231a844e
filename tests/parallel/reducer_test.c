/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer: the caller's own arrays, averaged while they are being made. */
#include "support/ranks.h"

#include <math.h>
#include <string.h>

#include <oarsong/reducer.h>

enum { ARRAYS = 5, PASSES = 4 };

static const size_t counts[ARRAYS] = { 3, 1000, 17, 0, 129 };

static double number(int rank, int pass, int array, size_t i)
{
    return (rank + 1) * 0.5 + pass * 3 + array * 7 + (double)(i % 13);
}

static void fill(oar_span to, int rank, int pass, int array)
{
    for (size_t i = 0; i < to.count; i++) {
        double x = number(rank, pass, array, i);
        if (to.dtype == OAR_F32)
            ((float *)to.data)[i] = (float)x;
        else
            ((double *)to.data)[i] = x;
    }
}

static double element(oar_span from, size_t i)
{
    return from.dtype == OAR_F32 ? (double)((float *)from.data)[i]
                                 : ((double *)from.data)[i];
}

/* The mean over the ranks that had it. */
static oar_status is_mean(oar_span is, oar_group *g, int pass, int array,
                          int without)
{
    int ranks = oar_group_size(g);

    for (size_t i = 0; i < is.count; i++) {
        double want = 0;
        for (int r = 0; r < ranks; r++)
            want += r == without ? 0 : number(r, pass, array, i);
        CHECK(fabs(element(is, i) - want / ranks) < 1e-4);
    }
    return OAR_OK;
}

/* ---- in any order, in any buckets ---------------------------------------- */

typedef struct reducer_case {
    size_t bucket_bytes;
    int reorder, owned; /* owned: array 1 is the caller's own memory */
} reducer_case;

static oar_status run_passes(oar_group *g, void *arg)
{
    const reducer_case *p = arg;
    int rank = oar_group_rank(g);
    float own[1000];
    oar_span array[ARRAYS];
    oar_reducer_opts o = oar_reducer_opts_init();
    oar_reducer_stats stats = oar_reducer_stats_init();
    oar_reducer *r;

    for (int i = 0; i < ARRAYS; i++)
        array[i] = oar_span_of(i == 1 && p->owned ? own : NULL, counts[i],
                               i == 4 ? OAR_F64 : OAR_F32);
    o.bucket_bytes = p->bucket_bytes;
    o.reorder = p->reorder;
    CHECK_OK(oar_reducer_create(g, ARRAYS, array, &o, &r));
    for (int pass = 0; pass < PASSES; pass++) {
        for (int k = 0; k < ARRAYS; k++) {
            /* ranks get ready in different orders */
            int i = (k * 2 + rank + pass) % ARRAYS;
            fill(oar_reducer_span(r, i), rank, pass, i);
            CHECK_OK(oar_reducer_ready(r, i));
        }
        CHECK_OK(oar_reducer_wait(r));
        for (int i = 0; i < ARRAYS; i++) {
            CHECK_OK(is_mean(oar_reducer_span(r, i), g, pass, i, -1));
            CHECK(oar_reducer_used(r, i));
        }
        CHECK_OK(oar_reducer_read_stats(r, &stats));
        CHECK(stats.passes == pass + 1);
        CHECK(stats.copied_bytes == (p->owned ? 2 * sizeof own : 0));
        CHECK(stats.reduced_bytes >= 1149 * 4 + 129 * 4);
        CHECK(stats.exposed_s <= stats.communication_s);
    }
    CHECK(stats.buckets == (p->bucket_bytes == 64 ? 5 : 2));
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void arrays_become_their_mean_in_any_order(void **state)
{
    static reducer_case plans[] = {
        { 0, 0, 0 }, { SIZE_MAX, 0, 1 }, { 64, 0, 1 }, { 64, 1, 0 }, { 0, 1, 1 }
    };

    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        ranks_all(1, run_passes, &plans[i]);
        ranks_all(3, run_passes, &plans[i]);
    }
}

enum { MANY = 13, QUARTER_MIB = 65536 }; /* floats */

static oar_status usual_buckets(oar_group *g, void *arg)
{
    oar_reducer_stats stats = oar_reducer_stats_init();
    int32_t least, most;
    oar_span array[MANY];
    oar_reducer *r;

    least = most = oar_group_overlaps(g);
    if (strcmp(oar_group_backend(g), "tcp") == 0)
        CHECK(least); /* it waits for a wire */
    CHECK_OK(oar_all_reduce(g, oar_span_of(&least, 1, OAR_I32), OAR_MIN, NULL,
                            NULL));
    CHECK_OK(
        oar_all_reduce(g, oar_span_of(&most, 1, OAR_I32), OAR_MAX, NULL, NULL));
    CHECK(least == most);
    for (int i = 0; i < MANY; i++)
        array[i] = oar_span_of(NULL, QUARTER_MIB, OAR_F32);
    CHECK_OK(oar_reducer_create(g, MANY, array, NULL, &r));
    CHECK_OK(oar_reducer_read_stats(r, &stats));
    CHECK(stats.buckets == (least ? MANY : 1));
    for (int pass = 0; pass < 2; pass++) {
        for (int i = MANY - 1; i >= 0; i--) {
            fill(oar_reducer_span(r, i), oar_group_rank(g), pass, i);
            CHECK_OK(oar_reducer_ready(r, i));
        }
        CHECK_OK(oar_reducer_wait(r));
        for (int i = 0; i < MANY; i++)
            CHECK_OK(is_mean(oar_reducer_span(r, i), g, pass, i, -1));
    }
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void buckets_are_small_where_reducing_overlaps(void **state)
{
    assert_int_equal(oar_group_overlaps(NULL), 0);
    ranks_all(3, usual_buckets, NULL);
}

/* ---- arrays that are not always there ------------------------------------ */

/* Array 0 is missing on rank 0, array 2 everywhere. */
static oar_status some_missing(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g);
    oar_span array[3];
    oar_reducer_opts o = oar_reducer_opts_init();
    oar_reducer *r;

    for (int i = 0; i < 3; i++)
        array[i] = oar_span_of(NULL, 33, OAR_F32);
    o.static_graph = *(int *)arg;
    o.bucket_bytes = 256;
    CHECK_OK(oar_reducer_create(g, 3, array, &o, &r));
    for (int pass = 0; pass < PASSES; pass++) {
        for (int i = 1; i >= 0; i--) {
            if (i == 0 && rank == 0)
                continue;
            fill(oar_reducer_span(r, i), rank, pass, i);
            CHECK_OK(oar_reducer_ready(r, i));
        }
        CHECK_OK(oar_reducer_wait(r));
        CHECK_OK(is_mean(oar_reducer_span(r, 0), g, pass, 0, 0));
        CHECK_OK(is_mean(oar_reducer_span(r, 1), g, pass, 1, -1));
        CHECK(oar_reducer_used(r, 0) && oar_reducer_used(r, 1));
        CHECK(!oar_reducer_used(r, 2));
        for (size_t i = 0; i < 33; i++)
            CHECK(element(oar_reducer_span(r, 2), i) == 0);
    }
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void missing_arrays_count_as_zero_and_are_known(void **state)
{
    for (int fixed = 0; fixed < 2; fixed++)
        ranks_all(3, some_missing, &fixed);
}

static oar_status new_array_in_a_static_graph(oar_group *g, void *arg)
{
    oar_span array[2] = { oar_span_of(NULL, 5, OAR_F32),
                          oar_span_of(NULL, 5, OAR_F32) };
    oar_reducer_opts o = oar_reducer_opts_init();
    oar_reducer *r;

    o.static_graph = 1;
    o.bucket_bytes = 64;
    CHECK_OK(oar_reducer_create(g, 2, array, &o, &r));
    CHECK_OK(oar_reducer_ready(r, 0));
    CHECK_OK(oar_reducer_wait(r));
    CHECK_OK(oar_reducer_ready(r, 0));
    CHECK(oar_reducer_ready(r, 1) == OAR_E_STATE);
    CHECK(strstr(oar_last_error_text(), "static") != NULL);
    CHECK_OK(oar_reducer_wait(r));
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void an_array_that_a_static_graph_did_not_have_is_refused(void **state)
{
    ranks_all(2, new_array_in_a_static_graph, NULL);
}

/* ---- weights ------------------------------------------------------------- */

static oar_status weighted(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), ranks = oar_group_size(g);
    oar_span array = oar_span_of(NULL, 7, OAR_F64);
    oar_reducer_opts o = oar_reducer_opts_init();
    double sum = 0, weights = 0;
    oar_reducer *r;

    o.weighted = 1;
    CHECK_OK(oar_reducer_create(g, 1, &array, &o, &r));
    CHECK_OK(oar_reducer_weigh(r, rank)); /* rank 0 does not count */
    CHECK(oar_reducer_weigh(r, -1) == OAR_E_ARG);
    fill(oar_reducer_span(r, 0), rank, 0, 0);
    CHECK_OK(oar_reducer_ready(r, 0));
    CHECK(oar_reducer_ready(r, 0) == OAR_E_STATE);
    CHECK_OK(oar_reducer_wait(r));
    for (int k = 0; k < ranks; k++) {
        sum += k * number(k, 0, 0, 3);
        weights += k;
    }
    CHECK(fabs(element(oar_reducer_span(r, 0), 3) - sum / weights) < 1e-12);
    oar_reducer_destroy(r);
    return OAR_OK;
}

static void ranks_count_by_their_weights(void **state)
{
    ranks_all(2, weighted, NULL);
    ranks_all(4, weighted, NULL);
}

/* ---- hooks --------------------------------------------------------------- */

typedef struct hook_counts {
    int started, finished, forgotten;
} hook_counts;

static oar_status count_start(void *arg, oar_group *group,
                              const oar_bucket *bucket, oar_work **work)
{
    ((hook_counts *)arg)->started++;
    return oar_all_reduce(group, bucket->data, OAR_AVG, NULL, work);
}

static oar_status count_finish(void *arg, oar_group *group,
                               const oar_bucket *bucket)
{
    ((hook_counts *)arg)->finished++;
    return OAR_OK;
}

static void count_forget(void *arg, int for_good)
{
    ((hook_counts *)arg)->forgotten += for_good;
}

static oar_status with_hook(oar_group *g, oar_reduce_hook *hook,
                            double tolerance)
{
    int rank = oar_group_rank(g), ranks = oar_group_size(g);
    oar_span array[2] = { oar_span_of(NULL, 60, OAR_F32),
                          oar_span_of(NULL, 11, OAR_F64) };
    oar_reducer_opts o = oar_reducer_opts_init();
    oar_reducer *r;

    o.hook = hook;
    CHECK_OK(oar_reducer_create(g, 2, array, &o, &r));
    for (int pass = 0; pass < 3; pass++) {
        for (int i = 0; i < 2; i++) {
            fill(oar_reducer_span(r, i), rank, pass, i);
            CHECK_OK(oar_reducer_ready(r, i));
        }
        CHECK_OK(oar_reducer_wait(r));
        for (int i = 0; i < 2; i++)
            for (size_t k = 0; k < array[i].count; k++) {
                double want = 0;
                for (int q = 0; q < ranks; q++)
                    want += number(q, pass, i, k) / ranks;
                CHECK(fabs(element(oar_reducer_span(r, i), k) - want) <=
                      tolerance * fabs(want));
            }
    }
    oar_reducer_destroy(r);
    return OAR_OK;
}

static oar_status all_hooks(oar_group *g, void *arg)
{
    oar_reduce_hook hook = oar_reduce_hook_init();
    hook_counts t = { 0, 0, 0 };

    hook.arg = &t;
    hook.start = count_start;
    hook.finish = count_finish;
    hook.forget = count_forget;
    CHECK_OK(with_hook(g, &hook, 1e-6));
    CHECK(t.started == 6 && t.finished == 6 && t.forgotten == 1);
    hook = oar_reduce_hook_init();
    CHECK_OK(oar_hook_half(OAR_F16, &hook));
    CHECK_OK(with_hook(g, &hook, 1e-3));
    hook = oar_reduce_hook_init();
    CHECK_OK(oar_hook_half(OAR_BF16, &hook));
    CHECK_OK(with_hook(g, &hook, 8e-3));
    CHECK(oar_hook_half(OAR_F32, &hook) == OAR_E_ARG);
    return OAR_OK;
}

static void hooks_reduce_in_their_own_way(void **state)
{
    ranks_all(1, all_hooks, NULL);
    ranks_all(3, all_hooks, NULL);
}

/* A mean of rank 1 is carried exactly by PowerSGD of rank 1, also after passes
 * in full. What it cannot carry comes later: the sum over many passes is off by
 * no more than one pass can lose; without feedback by that of every pass. */
enum { ROWS = 12, COLUMNS = 9 };

static float entry(int rank, int pass, int i, int k, int simple)
{
    float x = (float)((i + 1) * (k + 2)) * (float)(rank + 1);

    return simple ? x : x + (float)((i * 5 + k * 3 + pass + rank) % 7);
}

static oar_status power_run(oar_group *g, int simple, int feedback, int passes,
                            double *error)
{
    static const int64_t shape[2][2] = { { ROWS, COLUMNS }, { 0, 0 } };
    int rank = oar_group_rank(g);
    int ranks = oar_group_size(g);
    oar_span array[2] = { oar_span_of(NULL, ROWS * COLUMNS, OAR_F32),
                          oar_span_of(NULL, 5, OAR_F32) };
    oar_power_sgd_opts p = oar_power_sgd_opts_init();
    oar_reducer_opts o = oar_reducer_opts_init();
    oar_reduce_hook hook = oar_reduce_hook_init();
    double got[ROWS * COLUMNS] = { 0 }, want[ROWS * COLUMNS] = { 0 };
    double scale = 0, off = 0;
    oar_reducer *r;

    p.start = 2;
    p.least = 1;
    p.no_feedback = !feedback;
    CHECK_OK(oar_hook_power_sgd(2, shape, &p, &hook));
    o.hook = &hook;
    CHECK_OK(oar_reducer_create(g, 2, array, &o, &r));
    for (int pass = 0; pass < passes; pass++) {
        float *m = oar_reducer_span(r, 0).data,
              *v = oar_reducer_span(r, 1).data;
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            m[i] = entry(rank, pass, i / COLUMNS, i % COLUMNS, simple);
            for (int q = 0; q < ranks; q++)
                want[i] += entry(q, pass, i / COLUMNS, i % COLUMNS, simple) /
                           (double)ranks;
        }
        for (int i = 0; i < 5; i++)
            v[i] = (float)(rank + i);
        CHECK_OK(oar_reducer_ready(r, 1));
        CHECK_OK(oar_reducer_ready(r, 0));
        CHECK_OK(oar_reducer_wait(r));
        for (int i = 0; i < ROWS * COLUMNS; i++)
            got[i] += oar_reducer_span(r, 0).data != NULL ? m[i] : 0;
        for (int i = 0; i < 5; i++)
            CHECK(fabs(v[i] - (i + (ranks - 1) / 2.0)) < 1e-5);
        CHECK(oar_reducer_used(r, 0) && oar_reducer_used(r, 1));
    }
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        scale += want[i] * want[i];
        off += (got[i] - want[i]) * (got[i] - want[i]);
    }
    *error = sqrt(off / scale);
    oar_reducer_destroy(r);
    return OAR_OK;
}

static oar_status power(oar_group *g, void *arg)
{
    double exact, with[2], without[2];

    CHECK_OK(power_run(g, 1, 1, 5, &exact));
    CHECK(exact < 1e-5);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(power_run(g, 0, 1, 200 + 400 * i, &with[i]));
        CHECK_OK(power_run(g, 0, 0, 200 + 400 * i, &without[i]));
    }
    CHECK(with[0] < without[0] && with[1] < 0.6 * with[0]);
    CHECK(without[1] > 0.9 * without[0]);
    return OAR_OK;
}

static void power_sgd_loses_nothing_in_the_long_run(void **state)
{
    ranks_all(2, power, NULL);
    ranks_all(3, power, NULL);
}

/* ---- ranks that differ --------------------------------------------------- */

/* What rank 1 makes otherwise than the others, and what all are told. */
typedef struct differing_arrays {
    const char *says;
    int arrays;
    size_t counts[3];
    oar_dtype dtype;
    const char *names[3]; /* of all three, or none */
    size_t bucket_bytes;
} differing_arrays;

static const differing_arrays ours = { "",      3,     { 100, 200, 100 },
                                       OAR_F32, { 0 }, 4096 };
static const differing_arrays named = {
    "", 3, { 100, 200, 100 }, OAR_F32, { "a", "b", "c" }, 4096
};
static const differing_arrays others[] = {
    { "number 0 is 100 f32 on rank 0 and 200 f32 on rank 1",
      3,
      { 200, 100, 100 },
      OAR_F32,
      { 0 },
      4096 },
    { "number 0 is 100 f32 on rank 0 and 100 f64 on rank 1",
      3,
      { 100, 200, 100 },
      OAR_F64,
      { 0 },
      4096 },
    { "number 2 is 100 f32 on rank 0 and nothing on rank 1",
      2,
      { 100, 200 },
      OAR_F32,
      { 0 },
      4096 },
    { "number 0 is 100 f32 for a on rank 0 and 100 f32 for c on rank 1",
      3,
      { 100, 200, 100 },
      OAR_F32,
      { "c", "b", "a" },
      4096 },
    { "number 0 is 100 f32 on rank 0 and 100 i32 on rank 1",
      3,
      { 100, 200, 100 },
      OAR_I32,
      { 0 },
      4096 },
    { "the ranks make a reducer with different options: bucket_bytes 4096,",
      3,
      { 100, 200, 100 },
      OAR_F32,
      { 0 },
      8192 },
};

static oar_status make_row(oar_group *g, const differing_arrays *row,
                           oar_reducer **r)
{
    oar_span array[3];
    oar_reducer_opts o = oar_reducer_opts_init();

    for (int i = 0; i < row->arrays; i++)
        array[i] = oar_span_of(NULL, row->counts[i], row->dtype);
    o.bucket_bytes = row->bucket_bytes;
    o.names = row->names[0] != NULL ? row->names : NULL;
    return oar_reducer_create(g, row->arrays, array, &o, r);
}

static oar_status differ(oar_group *g, void *arg)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const differing_arrays *all =
            others[i].names[0] != NULL ? &named : &ours;
        oar_reducer *r = NULL;

        CHECK(make_row(g, oar_group_rank(g) == 1 ? &others[i] : all, &r) ==
              OAR_E_MISMATCH);
        CHECK(strstr(oar_last_error_text(), others[i].says) != NULL);
        CHECK(r == NULL);
        CHECK_OK(make_row(g, all, &r));
        oar_reducer_destroy(r);
    }
    return OAR_OK;
}

static void arrays_that_differ_between_ranks_are_refused(void **state)
{
    ranks_all(2, differ, NULL);
    ranks_all(3, differ, NULL);
}

/* ---- errors -------------------------------------------------------------- */

static void bad_arguments_are_refused(void **state)
{
    oar_span whole = oar_span_of(NULL, 3, OAR_I32);
    oar_reducer_stats stats = oar_reducer_stats_init();
    oar_reduce_hook hook = oar_reduce_hook_init();
    oar_power_sgd_opts p = oar_power_sgd_opts_init();
    oar_reducer *r = NULL;
    oar_group *one;

    assert_int_equal(oar_group_create(NULL, 0, 1, NULL, &one), OAR_OK);
    assert_int_equal(oar_reducer_create(one, 1, &whole, NULL, &r), OAR_E_DTYPE);
    assert_int_equal(oar_reducer_create(NULL, 0, NULL, NULL, &r), OAR_E_ARG);
    assert_int_equal(oar_reducer_create(one, 1, NULL, NULL, &r), OAR_E_ARG);
    assert_null(r);
    assert_int_equal(oar_reducer_wait(NULL), OAR_E_ARG);
    assert_int_equal(oar_reducer_read_stats(NULL, &stats), OAR_E_ARG);
    p.rank = 1000;
    assert_int_equal(oar_hook_power_sgd(0, NULL, &p, &hook), OAR_E_ARG);
    assert_int_equal(oar_reducer_create(one, 0, NULL, NULL, &r), OAR_OK);
    assert_int_equal(oar_reducer_ready(r, 0), OAR_E_ARG);
    assert_int_equal(oar_reducer_weigh(r, 2), OAR_E_ARG);
    assert_int_equal(oar_reducer_wait(r), OAR_OK);
    assert_int_equal(oar_reducer_span(r, 0).count, 0);
    oar_reducer_destroy(r);
    oar_group_destroy(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_become_their_mean_in_any_order),
        cmocka_unit_test(buckets_are_small_where_reducing_overlaps),
        cmocka_unit_test(missing_arrays_count_as_zero_and_are_known),
        cmocka_unit_test(an_array_that_a_static_graph_did_not_have_is_refused),
        cmocka_unit_test(ranks_count_by_their_weights),
        cmocka_unit_test(hooks_reduce_in_their_own_way),
        cmocka_unit_test(power_sgd_loses_nothing_in_the_long_run),
        cmocka_unit_test(arrays_that_differ_between_ranks_are_refused),
        cmocka_unit_test(bad_arguments_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
