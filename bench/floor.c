/* SPDX-License-Identifier: Apache-2.0 */
/* floor: all_reduce at two ranks beside what the bare machine can do, measured
 * in turns in one run.
 *
 *   exchange   each rank writes one line (data and flag together, two of them
 *              in turn), waits for the other's, and adds the two: what the
 *              smallest all_reduce could be
 *   in place   meet, each rank sums half of both buffers into both, meet: what
 *              a large one could be
 *
 * Prints medians in microseconds, and for each size our distance from the floor
 * (small sizes) or the share of it that we reach. Exit 1 if a size is further
 * than --slack-us away or below --share percent.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <oarsong/oarsong.h>

enum { MAX_ITERS = 20000, ROUNDS = 5, MAX_BYTES = 64 << 20, LINE_BYTES = 1088 };

#if defined(__x86_64__) && !defined(__clang__)
#define WIDE \
    __attribute__((noinline, target_clones("avx512f", "avx2", "default")))
#else
#define WIDE __attribute__((noinline))
#endif

typedef struct line {
    _Alignas(128) _Atomic unsigned stamp;
    float data[LINE_BYTES / 4 - 1];
} line;

/* Shared by both processes. */
typedef struct area {
    _Alignas(128) _Atomic unsigned step[2][64];
    line line[2][2];
    double end[2][MAX_ITERS + 1];
    double p50[3][ROUNDS];
    int bad;
    _Alignas(4096) unsigned char buffer[2][MAX_BYTES];
} area;

typedef struct settings {
    area *shared;
    double slack_us, share;
} settings;

typedef struct bench {
    oar_group *group;
    area *a;
    int rank;
    unsigned turn, exchange;
    size_t bytes;
    float *ours, *result;
} bench;

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- the floors ---------------------------------------------------------- */

static void await(_Atomic unsigned *stamp, unsigned value)
{
    while ((int)(atomic_load_explicit(stamp, memory_order_acquire) - value) < 0)
        ;
}

static void bare_meet(bench *b)
{
    unsigned v = ++b->turn;

    atomic_store_explicit(b->a->step[b->rank], v, memory_order_release);
    await(b->a->step[!b->rank], v);
}

WIDE static void sum_both(float *restrict x, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float v = x[i] + y[i];
        x[i] = v;
        y[i] = v;
    }
}

WIDE static void sum_to(float *restrict to, const float *x, const float *y,
                        size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = x[i] + y[i];
}

static oar_status bare_exchange(bench *b)
{
    unsigned v = ++b->exchange;
    line *mine = &b->a->line[b->rank][v & 1];
    line *theirs = &b->a->line[!b->rank][v & 1];

    memcpy(mine->data, b->result, b->bytes);
    atomic_store_explicit(&mine->stamp, v, memory_order_release);
    await(&theirs->stamp, v);
    sum_to(b->result, mine->data, theirs->data, b->bytes / 4);
    return OAR_OK;
}

static oar_status in_place(bench *b)
{
    size_t n = b->bytes / 4, half = n / 2 / 16 * 16;
    float *x = (float *)b->a->buffer[0], *y = (float *)b->a->buffer[1];

    bare_meet(b);
    if (b->rank == 0)
        sum_both(x, y, half);
    else
        sum_both(x + half, y + half, n - half);
    bare_meet(b);
    return OAR_OK;
}

static oar_status ours(bench *b)
{
    return oar_all_reduce(b->group, oar_span_of(b->ours, b->bytes / 4, OAR_F32),
                          OAR_SUM, NULL, NULL);
}

/* ---- timing -------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_size);
    return v[n / 2];
}

/* The median duration of an iteration, which ends when both ranks have. */
static oar_status time_one(bench *b, oar_status (*op)(bench *), size_t iters,
                           double *p50)
{
    double *mine = b->a->end[b->rank], *all = b->a->end[0];
    oar_status status;

    for (size_t i = 0; i < iters / 10 + 2; i++)
        if ((status = op(b)) != OAR_OK)
            return status;
    mine[0] = now_us();
    for (size_t i = 0; i < iters; i++) {
        if ((status = op(b)) != OAR_OK)
            return status;
        mine[i + 1] = now_us();
    }
    bare_meet(b);
    if (b->rank == 0) {
        for (size_t i = 0; i <= iters; i++)
            if (b->a->end[1][i] > all[i])
                all[i] = b->a->end[1][i];
        for (size_t i = 0; i < iters; i++)
            all[i] = all[i + 1] - all[i];
        *p50 = median(all, iters);
    }
    bare_meet(b);
    return OAR_OK;
}

static void report(bench *b, const settings *s)
{
    area *a = b->a;
    double exchange = median(a->p50[0], ROUNDS);
    double place = median(a->p50[1], ROUNDS);
    double us = median(a->p50[2], ROUNDS);
    int small = b->bytes <= 1024;
    double floor_us = small && exchange < place ? exchange : place;

    printf("%10zu %12.3f %12.3f %12.3f %12.3f us %9.0f %%\n", b->bytes,
           b->bytes <= 1024 ? exchange : 0, place, us, us - floor_us,
           100 * floor_us / us);
    fflush(stdout);
    if (small ? us - floor_us > s->slack_us : 100 * floor_us / us < s->share)
        a->bad = 1;
}

static oar_status bench_size(bench *b, const settings *s)
{
    size_t iters = b->bytes <= 65536 ? MAX_ITERS : (256u << 20) / b->bytes + 20;
    oar_status status = OAR_OK;

    if (iters > MAX_ITERS)
        iters = MAX_ITERS;
    for (int round = 0; round < ROUNDS && status == OAR_OK; round++) {
        if (b->bytes <= 1024)
            status = time_one(b, bare_exchange, iters, &b->a->p50[0][round]);
        if (status == OAR_OK)
            status = time_one(b, in_place, iters, &b->a->p50[1][round]);
        if (status == OAR_OK)
            status = time_one(b, ours, iters, &b->a->p50[2][round]);
    }
    if (status == OAR_OK && b->rank == 0)
        report(b, s);
    return status;
}

/* ---- ranks --------------------------------------------------------------- */

static void pin(int rank)
{
    cpu_set_t all, one;
    int nth = 0;

    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && nth++ == rank)
            CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static oar_status run_rank(oar_group *group, void *arg)
{
    static const size_t sizes[] = {
        8, 1024, 65536, 1 << 20, 16 << 20, 64 << 20
    };
    static float result[LINE_BYTES / 4];
    const settings *s = arg;
    bench b = { .group = group,
                .a = s->shared,
                .rank = oar_group_rank(group),
                .result = result };
    void *memory;
    oar_status status = oar_shared_alloc(MAX_BYTES, &memory);

    pin(b.rank);
    if (status != OAR_OK)
        return status;
    b.ours = memory;
    memset(b.ours, 0, MAX_BYTES);
    memset(b.a->buffer[b.rank], 0, MAX_BYTES);
    if (b.rank == 0)
        printf("# all_reduce f32 sum, 2 ranks, shared memory; medians of %d "
               "rounds, us\n#%9s %12s %12s %12s %15s %11s\n",
               ROUNDS, "bytes", "exchange", "in place", "oarsong",
               "above the floor", "of floor");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && status == OAR_OK;
         i++) {
        b.bytes = sizes[i];
        status = bench_size(&b, s);
    }
    oar_shared_free(memory);
    return status;
}

int main(int argc, char **argv)
{
    settings s = { .slack_us = 0.15, .share = 70 };

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--slack-us") == 0)
            s.slack_us = atof(argv[i + 1]);
        if (strcmp(argv[i], "--share") == 0)
            s.share = atof(argv[i + 1]);
    }
    s.shared = mmap(NULL, sizeof(area), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s.shared == MAP_FAILED)
        return 1;
    if (oar_launch_fn(2, run_rank, &s, NULL, NULL, NULL) != OAR_OK) {
        fprintf(stderr, "floor: %s\n", oar_last_error_text());
        return 1;
    }
    return s.shared->bad;
}
