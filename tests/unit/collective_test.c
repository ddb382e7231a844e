/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on every backend, with values checked against what the numbers
 * must be. */
#include "support/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/shared.h>

static const int sizes[] = { 1, 2, 3, 4, 7 };
static const size_t counts[] = { 0, 1, 3, 17, 1000, 1025, 65537, 400003 };
enum {
    SIZES = sizeof sizes / sizeof *sizes,
    COUNTS = sizeof counts / sizeof *counts
};

/* Memory for a test's buffer, shared or private, filled with a value that
 * depends on rank and place. */
static float *make_buffer(size_t count, int shared, int rank)
{
    void *memory = NULL;

    if (!shared)
        memory = malloc(count * sizeof(float) + 1);
    else if (oar_shared_alloc(count * sizeof(float), &memory) != OAR_OK)
        return NULL;
    for (size_t i = 0; i < count; i++)
        ((float *)memory)[i] = (float)(rank + 1) + (float)(i % 100);
    return memory;
}

static void drop_buffer(float *memory, int shared)
{
    if (shared)
        oar_shared_free(memory);
    else
        free(memory);
}

static float expected_sum(size_t i, int n)
{
    return (float)(n * (n + 1) / 2) + (float)n * (float)(i % 100);
}

static oar_status sum_one(oar_group *g, size_t count, int shared, int async)
{
    int n = oar_group_size(g);
    float *x = make_buffer(count, shared, oar_group_rank(g));
    oar_span s = oar_span_of(x, count, OAR_F32);
    oar_work *work = NULL;

    CHECK(x != NULL);
    CHECK_OK(oar_all_reduce(g, s, OAR_SUM, NULL, async ? &work : NULL));
    if (async) {
        CHECK_OK(oar_work_wait(work));
        oar_work_release(work);
    }
    for (size_t i = 0; i < count; i++)
        CHECK(x[i] == expected_sum(i, n));
    CHECK_OK(oar_barrier(g, NULL, NULL));
    drop_buffer(x, shared);
    return OAR_OK;
}

static oar_status sum_all_counts(oar_group *g, void *arg)
{
    for (int c = 0; c < COUNTS; c++)
        for (int how = 0; how < 4; how++)
            CHECK_OK(sum_one(g, counts[c], how & 1, how >> 1));
    return OAR_OK;
}

static void all_reduce_sums_every_count_and_memory_kind(void **state)
{
    for (int i = 0; i < SIZES; i++)
        ranks_all(sizes[i], sum_all_counts, NULL);
}

static oar_status broadcast_all_roots(oar_group *g, void *arg)
{
    int n = oar_group_size(g), rank = oar_group_rank(g);

    for (int c = 0; c < COUNTS; c++)
        for (int root = 0; root < n; root++) {
            int shared = (root + c) & 1;
            float *x = make_buffer(counts[c], shared, rank);
            CHECK(x != NULL);
            CHECK_OK(oar_broadcast(g, oar_span_of(x, counts[c], OAR_F32), root,
                                   NULL, NULL));
            for (size_t i = 0; i < counts[c]; i++)
                CHECK(x[i] == (float)(root + 1) + (float)(i % 100));
            CHECK_OK(oar_barrier(g, NULL, NULL));
            drop_buffer(x, shared);
        }
    return OAR_OK;
}

static void broadcast_reaches_everyone_from_every_root(void **state)
{
    for (int i = 0; i < SIZES; i++)
        ranks_all(sizes[i], broadcast_all_roots, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_reduce_sums_every_count_and_memory_kind),
        cmocka_unit_test(broadcast_reaches_everyone_from_every_root),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
