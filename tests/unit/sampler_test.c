/* SPDX-License-Identifier: Apache-2.0 */
/* The distributed sampler, against numbers that an independent Python program
 * computed from the description of ferrotorch's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <oarsong/data.h>
#include <oarsong/memory.h>

#include "support/leak_check.h"
#include "support/last_error.h"

typedef struct expected {
    int64_t samples;
    int rank, ranks;
    uint64_t seed, epoch;
    int64_t count;
    int64_t index[25];
} expected;

#define GOLDEN 0x9e3779b97f4a7c15u

static const expected shuffled[] = {
    { 10, 0, 3, 0, 0, 4, { 8, 7, 5, 6 } },
    { 10, 1, 3, 0, 0, 4, { 2, 1, 4, 8 } },
    { 10, 2, 3, 0, 0, 4, { 3, 9, 0, 2 } },
    { 10, 0, 3, 42, 1, 4, { 1, 4, 0, 8 } },
    { 10, 1, 3, 42, 1, 4, { 5, 9, 7, 1 } },
    { 10, 2, 3, 42, 1, 4, { 3, 2, 6, 5 } },
    { 7, 0, 2, 12345, 5, 4, { 0, 2, 1, 5 } },
    { 7, 1, 2, 12345, 5, 4, { 6, 4, 3, 0 } },
    { 3, 0, 5, 7, 2, 1, { 0 } }, /* fewer samples than ranks */
    { 3, 1, 5, 7, 2, 1, { 1 } },
    { 3, 2, 5, 7, 2, 1, { 2 } },
    { 3, 3, 5, 7, 2, 1, { 0 } },
    { 3, 4, 5, 7, 2, 1, { 1 } },
    { 1, 3, 4, 9, 9, 1, { 0 } },
    { 100, 0, 4, 42, 0, 25, { 81, 49, 23, 47, 68, 80, 38, 75, 18,
                              77, 62, 60, 86, 34, 74, 67, 16, 46,
                              13, 39, 35, 25, 71, 97, 15 } },
    { 100, 3, 4, 42, 0, 25, { 82, 90, 37, 76, 4,  27, 87, 50, 2,
                              70, 93, 78, 17, 14, 24, 54, 40, 20,
                              41, 5,  21, 28, 59, 29, 0 } },
    { 100, 0, 4, 42, 1, 25, { 6,  81, 49, 97, 80, 4,  74, 95, 8,
                              70, 53, 28, 63, 13, 65, 69, 30, 72,
                              26, 93, 71, 47, 78, 27, 9 } },
    { 100,
      3,
      4,
      42,
      1,
      25,
      { 59, 55, 94, 22, 20, 52, 23, 60, 44, 0,  90, 3, 96,
        88, 61, 40, 87, 35, 83, 21, 38, 2,  43, 36, 85 } },
    { 11,
      0,
      1,
      UINT64_MAX,
      (uint64_t)1 << 63,
      11,
      { 8, 0, 6, 1, 4, 2, 3, 9, 7, 10, 5 } },
    { 13, 0, 3, GOLDEN, 1, 5, { 4, 10, 3, 12, 7 } }, /* the mixed seed is 0 */
    { 13, 1, 3, GOLDEN, 1, 5, { 8, 5, 11, 6, 4 } },
    { 13, 2, 3, GOLDEN, 1, 5, { 0, 2, 9, 1, 8 } },
};

static const expected in_order[] = {
    { 10, 0, 3, 0, 0, 4, { 0, 3, 6, 9 } },
    { 10, 1, 3, 0, 0, 4, { 1, 4, 7, 0 } },
    { 10, 2, 3, 0, 0, 4, { 2, 5, 8, 1 } },
    { 12, 2, 4, 0, 0, 3, { 2, 6, 10 } },
    { 5, 0, 1, 0, 0, 5, { 0, 1, 2, 3, 4 } },
    { 2, 4, 5, 0, 3, 1, { 0 } },
    { 0, 0, 1, 0, 0, 0, { 0 } },
    { 0, 2, 3, 0, 0, 0, { 0 } },
};

static void check(const expected *e, int no_shuffle)
{
    int64_t *index, count;

    OK(oar_sampler_indices(
        e->samples, e->rank, e->ranks, e->epoch,
        OAR_OPTS(oar_sampler_opts, .seed = e->seed, .no_shuffle = no_shuffle),
        &index, &count));
    assert_int_equal(count, e->count);
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(index[i], e->index[i]);
    oar_free(index);
}

static void shuffled_orders_are_those_of_the_reference(void **state)
{
    for (size_t i = 0; i < sizeof shuffled / sizeof *shuffled; i++)
        check(&shuffled[i], 0);
}

static void unshuffled_orders_are_those_of_the_reference(void **state)
{
    for (size_t i = 0; i < sizeof in_order / sizeof *in_order; i++)
        check(&in_order[i], 1);
}

static void a_long_order_is_that_of_the_reference(void **state)
{
    int64_t *index, count;
    uint64_t hash = 0;

    OK(oar_sampler_indices(100003, 0, 1, 3,
                           OAR_OPTS(oar_sampler_opts, .seed = 42), &index,
                           &count));
    assert_int_equal(count, 100003);
    for (int64_t i = 0; i < count; i++)
        hash = hash * 31 + (uint64_t)index[i];
    assert_true(hash == 0x532fa61555005a69u);
    oar_free(index);
}

static void shuffling_with_seed_zero_is_the_default(void **state)
{
    int64_t *index, count;

    OK(oar_sampler_indices(10, 0, 3, 0, NULL, &index, &count));
    assert_memory_equal(index, shuffled[0].index, 4 * sizeof *index);
    oar_free(index);
}

static void ranks_together_see_every_sample(void **state)
{
    enum { N = 103, RANKS = 7 };
    int seen[N] = { 0 };

    for (int rank = 0; rank < RANKS; rank++) {
        int64_t *index, count;

        OK(oar_sampler_indices(N, rank, RANKS, 5, NULL, &index, &count));
        assert_int_equal(count, 15);
        for (int64_t i = 0; i < count; i++)
            seen[index[i]]++;
        oar_free(index);
    }
    for (int i = 0, twice = 0; i < N; i++) {
        assert_in_range(seen[i], 1, 2);
        twice += seen[i] - 1;
        if (i == N - 1)
            assert_int_equal(twice, 15 * RANKS - N);
    }
}

static oar_status indices(void *arg)
{
    int64_t *index = NULL, count;
    oar_status status = oar_sampler_indices(10, 0, 3, 0, NULL, &index, &count);

    oar_free(index);
    return status;
}

static void bad_arguments_are_refused_with_a_sentence(void **state)
{
    int64_t *index = NULL, count = 77;

    assert_fails_with(oar_sampler_indices(10, 3, 3, 0, NULL, &index, &count),
                      OAR_E_RANK, "rank 3 of 3");
    assert_fails_with(oar_sampler_indices(10, -1, 3, 0, NULL, &index, &count),
                      OAR_E_RANK, "rank -1");
    assert_fails_with(oar_sampler_indices(10, 0, 0, 0, NULL, &index, &count),
                      OAR_E_WORLD, "0 ranks");
    assert_fails_with(oar_sampler_indices(-1, 0, 1, 0, NULL, &index, &count),
                      OAR_E_ARG, "-1 samples");
    assert_fails_with(oar_sampler_indices(10, 0, 1, 0, NULL, NULL, &count),
                      OAR_E_ARG, "nowhere");
    assert_fails_with(oar_sampler_indices(10, 0, 1, 0, NULL, &index, NULL),
                      OAR_E_ARG, "nowhere");
    assert_null(index);
    assert_int_equal(count, 77);
    fail_each_allocation(indices, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shuffled_orders_are_those_of_the_reference),
        cmocka_unit_test(unshuffled_orders_are_those_of_the_reference),
        cmocka_unit_test(a_long_order_is_that_of_the_reference),
        cmocka_unit_test(shuffling_with_seed_zero_is_the_default),
        cmocka_unit_test(ranks_together_see_every_sample),
        cmocka_unit_test(bad_arguments_are_refused_with_a_sentence),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
