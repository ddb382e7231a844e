/* SPDX-License-Identifier: Apache-2.0 */
/* overlap: computing while numbers travel.
 *     oarsong run -n 2 --backend tcp overlap
 *
 * Eight arrays are computed one after the other and summed over all ranks, in
 * two ways: waiting for each, and posting each and waiting at the end. The
 * engine's thread moves what is posted while the program computes.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <oarsong/oarsong.h>

#define TRY(call)                 \
    do {                          \
        oar_status try_ = (call); \
        if (try_ != OAR_OK)       \
            return try_;          \
    } while (0)

enum { ARRAYS = 8, COUNT = 1 << 18, ROUNDS = 5 };

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void compute(float *array, int which)
{
    for (int i = 0; i < COUNT; i++)
        array[i] = sinf((float)(i + which)) + cosf((float)(i - which));
}

static oar_status one_by_one(oar_group *world, float *memory)
{
    for (int a = 0; a < ARRAYS; a++) {
        float *array = memory + (size_t)a * COUNT;
        compute(array, a);
        TRY(oar_all_reduce(world, oar_span_of(array, COUNT, OAR_F32), OAR_SUM,
                           NULL, NULL));
    }
    return OAR_OK;
}

static oar_status overlapped(oar_group *world, float *memory)
{
    oar_work *work[ARRAYS];
    oar_status status;

    for (int a = 0; a < ARRAYS; a++) {
        float *array = memory + (size_t)a * COUNT;
        compute(array, a);
        TRY(oar_all_reduce(world, oar_span_of(array, COUNT, OAR_F32), OAR_SUM,
                           NULL, &work[a]));
    }
    status = oar_work_wait_all(ARRAYS, work);
    for (int a = 0; a < ARRAYS; a++)
        oar_work_release(work[a]);
    return status;
}

/* The best of a few rounds. */
static oar_status measure(oar_group *world, float *memory,
                          oar_status (*way)(oar_group *, float *), double *best)
{
    *best = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        double start;
        TRY(oar_barrier(world, NULL, NULL));
        start = seconds();
        TRY(way(world, memory));
        *best = fmin(*best, seconds() - start);
    }
    return OAR_OK;
}

static oar_status run(oar_group *world)
{
    double waiting, posting, expected;
    void *memory;
    const float *last;

    TRY(oar_shared_alloc((size_t)ARRAYS * COUNT * sizeof(float), &memory));
    TRY(measure(world, memory, one_by_one, &waiting));
    TRY(measure(world, memory, overlapped, &posting));
    last = (float *)memory + (size_t)(ARRAYS - 1) * COUNT;
    expected = (double)(sinf(5 + ARRAYS - 1) + cosf(5 - (ARRAYS - 1))) *
               oar_group_size(world);
    if (fabs(last[5] - expected) > 1e-4)
        return OAR_E_INTERNAL;
    if (oar_group_rank(world) == 0)
        printf("waiting for each %.1f ms, posting all %.1f ms\n", waiting * 1e3,
               posting * 1e3);
    oar_shared_free(memory);
    return OAR_OK;
}

int main(void)
{
    oar_group *world;
    oar_status status = oar_group_from_env(NULL, &world);

    if (status == OAR_OK) {
        status = run(world);
        oar_group_destroy(world);
    }
    if (status != OAR_OK)
        fprintf(stderr, "overlap: %s\n", oar_last_error_text());
    return status == OAR_OK ? 0 : 1;
}
