/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_scatter of half types into f32: the result is what the same call gives
 * on inputs that were widened before, on every backend and by every algorithm.
 */
#include "support/test_job.h"

#include <stdlib.h>
#include <string.h>

#include <oarsong/shared.h>

#include "base/dtype.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { RANKS = 3, LARGEST = 20001 };
static const int ranks_tried[] = { 1, 3 };
#else
enum { RANKS = 3, LARGEST = 70001 };
static const int ranks_tried[] = { 1, 2, 3, 5 };
#endif

static const oar_dtype halves[] = { OAR_F16, OAR_BF16 };

typedef struct widening_case {
    size_t part;    /* elements of rank 0's part */
    int ragged;     /* the others' are 7, 14, ... longer */
    int shared;     /* the input is in shared memory */
    oar_dtype from; /* f16 or bf16 */
    oar_reduce_op op;
    int canonical;
} widening_case;

/* Whole numbers up to 255 are exact in both halves; their sums are not, but are
 * in f32, in any order. Others need the order of ranks. */
static float value_of(const widening_case *t, int rank, size_t i)
{
    float whole = (float)((i * 13 + (size_t)rank * 101) % 256);

    return t->canonical ? whole / 3 - 40 : whole;
}

static size_t lay_out(const widening_case *t, int ranks, size_t *counts)
{
    size_t all = 0;

    for (int r = 0; r < ranks; r++)
        all += counts[r] = t->part + (t->ragged ? 7 * (size_t)r : 0);
    return all;
}

/* Runs the call on halves, and on the same numbers in f32. */
static oar_status compare(oar_group *g, const widening_case *t)
{
    int rank = oar_group_rank(g), n = oar_group_size(g);
    size_t counts[8], all = lay_out(t, n, counts), mine = counts[rank];
    const size_t *given = t->ragged ? counts : NULL;
    float *wide = malloc((all + 1) * sizeof *wide);
    float *got = malloc((mine + 1) * sizeof *got);
    float *want = malloc((mine + 1) * sizeof *want);
    oar_call_opts o = oar_call_opts_init();
    void *half;

    o.canonical = t->canonical;
    o.weight = rank + 1;
    CHECK(wide != NULL && got != NULL && want != NULL);
    if (t->shared)
        CHECK_OK(oar_shared_alloc(all * 2 + 1, &half));
    else
        CHECK((half = malloc(all * 2 + 1)) != NULL);
    for (size_t i = 0; i < all; i++)
        wide[i] = value_of(t, rank, i);
    oari_convert(half, t->from, wide, OAR_F32, all);
    oari_convert(wide, OAR_F32, half, t->from, all);
    got[mine] = 17;
    CHECK_OK(oar_reduce_scatter_v(g, oar_span_of(half, all, t->from), given,
                                  oar_span_of(got, mine, OAR_F32), t->op, &o,
                                  NULL));
    CHECK_OK(oar_reduce_scatter_v(g, oar_span_of(wide, all, OAR_F32), given,
                                  oar_span_of(want, mine, OAR_F32), t->op, &o,
                                  NULL));
    CHECK(memcmp(got, want, mine * sizeof *got) == 0 && got[mine] == 17);
    for (size_t i = 0; i < mine && t->op.kind == OAR_REDUCE_OP_SUM; i++) {
        size_t at = 0;
        float sum = 0;

        for (int r = 0; r < rank; r++)
            at += counts[r];
        for (int r = 0; r < n && !t->canonical; r++)
            sum += value_of(t, r, at + i);
        CHECK(t->canonical || got[i] == sum);
    }
    if (t->shared)
        oar_shared_free(half);
    else
        free(half);
    free(wide);
    free(got);
    free(want);
    return OAR_OK;
}

static const oar_reduce_op operators[] = {
    { .kind = OAR_REDUCE_OP_SUM },
    { .kind = OAR_REDUCE_OP_AVG },
    { .kind = OAR_REDUCE_OP_MIN },
    { .kind = OAR_REDUCE_OP_MAX },
    { .kind = OAR_REDUCE_OP_PROD },
    { .kind = OAR_REDUCE_OP_WEIGHTED_MEAN },
    { .kind = OAR_REDUCE_OP_PREMUL_SUM, .scalar = 2.5 }
};
enum { OPERATORS = sizeof operators / sizeof *operators };

/* Every size with sums; every operator with one size. */
static oar_status try_all(oar_group *g, void *arg)
{
    static const size_t parts[] = { 0, 1, 5, 333, 1025, 9000, LARGEST };

    for (int h = 0; h < 2; h++)
        for (int bits = 0; bits < 8; bits++) {
            widening_case t = { .ragged = bits & 1,
                                .shared = bits >> 1 & 1,
                                .canonical = bits >> 2,
                                .from = halves[h],
                                .op = OAR_SUM };

            for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
                t.part = parts[i];
                CHECK_OK(compare(g, &t));
            }
            t.part = 1234;
            t.canonical = 1;
            for (int i = 0; i < OPERATORS; i++) {
                t.op = operators[i];
                CHECK_OK(compare(g, &t));
            }
        }
    return OAR_OK;
}

static void halves_are_summed_in_f32(void **state)
{
    for (size_t i = 0; i < sizeof ranks_tried / sizeof *ranks_tried; i++)
        ranks_all(ranks_tried[i], try_all, NULL);
}

/* One algorithm that is forced, small and large, in an order of its own. */
static oar_status try_sums(oar_group *g, void *arg)
{
    for (int h = 0; h < 2; h++)
        for (int ragged = 0; ragged < 2; ragged++)
            for (int large = 0; large < 2; large++) {
                widening_case t = { .part = large ? LARGEST : 41,
                                    .ragged = ragged,
                                    .from = halves[h],
                                    .op = OAR_SUM };

                CHECK_OK(compare(g, &t));
                t.op = OAR_MAX;
                CHECK_OK(compare(g, &t));
            }
    return OAR_OK;
}

static void every_algorithm_widens(void **state)
{
    static const struct {
        const char *backend, *algorithm;
    } of[] = { { "shm", "staged" },   { "shm", "direct" },
               { "shm", "exchange" }, { "shm", "ring" },
               { "tcp", "exchange" }, { "tcp", "ring" },
               { "sim", "ring" } };

    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        oar_group_opts o = oar_group_opts_init();

        o.algorithm = of[i].algorithm;
        if (ranks_run(of[i].backend, RANKS, &o, try_sums, NULL) != OAR_OK)
            fail_msg("%s, %s: %s", of[i].backend, of[i].algorithm,
                     oar_last_error_text());
    }
}

/* Two hosts of two and one ranks. */
static int be_on_hosts(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;

    setenv("OARSONG_HOST_ID", rank < 2 ? "a" : "b", 1);
    o.backend = "native";
    o.timeout_ms = 30000;
    RANK_OK(test_job_join(c, rank, &o, &g));
    RANK_OK(try_sums(g, NULL));
    oar_group_destroy(g);
    return 0;
}

static void ranks_of_two_hosts_widen(void **state)
{
    test_job c;

    test_job_start(&c, RANKS, be_on_hosts, NULL, "two hosts");
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

/* ---- wrong calls --------------------------------------------------------- */

static oar_status disagree(oar_group *g, void *arg)
{
    const char *const *says = arg;
    float in[4] = { 0 }, out[2];
    oar_dtype odd;

    CHECK_OK(oar_dtype_parse(says[0], &odd));
    CHECK(oar_reduce_scatter(
              g, oar_span_of(in, 4, oar_group_rank(g) == 1 ? odd : OAR_BF16),
              oar_span_of(out, 2, OAR_F32), OAR_SUM, NULL,
              NULL) == OAR_E_MISMATCH);
    CHECK(strstr(oar_last_error_text(), "passes input bf16") != NULL);
    CHECK(strstr(oar_last_error_text(), says[1]) != NULL);
    return OAR_OK;
}

static void ranks_with_other_inputs_are_named(void **state)
{
    static const char *odd[2][2] = { { "f16", "passes input f16" },
                                     { "f32", "passes input f32" } };

    for (int i = 0; i < 2; i++)
        for (const char *const *b = ranks_backends(); *b != NULL; b++)
            if (strchr(*b, '/') == NULL && /* plugins compare sizes alone */
                ranks_run(*b, 2, NULL, disagree, odd[i]) != OAR_OK)
                fail_msg("%s: %s", *b, oar_last_error_text());
}

static void only_halves_widen_to_f32_and_apart(void **state)
{
    static const oar_dtype wrong[][2] = { { OAR_F32, OAR_BF16 },
                                          { OAR_F16, OAR_F64 },
                                          { OAR_F16, OAR_BF16 },
                                          { OAR_I32, OAR_F32 } };
    double in[4] = { 0 }, out[4];
    oar_group *g;

    assert_int_equal(oar_group_create(NULL, 0, 1, NULL, &g), OAR_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(oar_reduce_scatter(g, oar_span_of(in, 2, wrong[i][0]),
                                            oar_span_of(out, 2, wrong[i][1]),
                                            OAR_SUM, NULL, NULL),
                         OAR_E_DTYPE);
    assert_int_equal(oar_all_gather(g, oar_span_of(in, 2, OAR_BF16),
                                    oar_span_of(out, 2, OAR_F32), NULL, NULL),
                     OAR_E_DTYPE);
    assert_int_equal(oar_reduce_scatter(g, oar_span_of(in, 2, OAR_BF16),
                                        oar_span_of(in, 2, OAR_F32), OAR_SUM,
                                        NULL, NULL),
                     OAR_E_ARG);
    assert_int_equal(
        oar_reduce_scatter(g, oar_span_of(in, 4, OAR_BF16),
                           oar_span_of((char *)in - 12, 4, OAR_F32), OAR_SUM,
                           NULL, NULL),
        OAR_E_ARG);
    assert_int_equal(oar_reduce_scatter(g, oar_span_of(in, 2, OAR_BF16),
                                        oar_span_of(out, 3, OAR_F32), OAR_SUM,
                                        NULL, NULL),
                     OAR_E_ARG);
    oar_group_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_are_summed_in_f32),
        cmocka_unit_test(every_algorithm_widens),
        cmocka_unit_test(ranks_of_two_hosts_widen),
        cmocka_unit_test(ranks_with_other_inputs_are_named),
        cmocka_unit_test(only_halves_widen_to_f32_and_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
