/* SPDX-License-Identifier: Apache-2.0 */
/* limits.h: what bench/limits, limits_private and limits_tcp share: N processes
 * that meet in shared memory, and the time that a piece of work takes them. */
#ifndef OARSONG_BENCH_LIMITS_H
#define OARSONG_BENCH_LIMITS_H

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <oarsong/oarsong.h>

enum { MAX_RANKS = 64, MAX_ITERS = 20000, MAX_SIZES = 16, WARM_UP = 3 };

#if defined(__x86_64__) && !defined(__clang__)
#define WIDE \
    __attribute__((noinline, target_clones("avx512f", "avx2", "default")))
#else
#define WIDE __attribute__((noinline))
#endif

/* What all processes share to meet, and their times. */
typedef struct meeting_area {
    _Alignas(128) _Atomic unsigned step[MAX_RANKS][64];
    double end[MAX_RANKS][MAX_ITERS + 1];
    size_t iters;
} meeting_area;

typedef struct bare {
    meeting_area *a;
    int rank, ranks, yields;
    unsigned turn;
    size_t bytes, count, part; /* part: elements of one rank's */
    struct floor_memory *memory;
} bare;

typedef struct settings {
    int ranks, sizes;
    size_t size[MAX_SIZES], largest, budget_ms;
    meeting_area *area;
    struct floor_memory *memory;
} settings;

/* What is timed. `parts`: bytes are divided among the ranks. `ops`: how many an
 * iteration is; 0: one for each root. */
typedef struct floor_op {
    const char *name;
    void (*run)(bare *);
    int parts, ops;
} floor_op;

static inline double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- meetings ------------------------------------------------------------ */

static inline void await(const bare *b, _Atomic unsigned *stamp, unsigned value)
{
    while ((int)(atomic_load_explicit(stamp, memory_order_acquire) - value) < 0)
        if (b->yields)
            sched_yield();
}

static inline void meet(bare *b)
{
    unsigned v = ++b->turn;

    atomic_store_explicit(b->a->step[b->rank], v, memory_order_release);
    for (int r = 0; r < b->ranks; r++)
        if (r != b->rank)
            await(b, b->a->step[r], v);
}

/* ---- timing -------------------------------------------------------------- */

static inline int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The quickest of a few tries: one disturbance must not decide. */
static inline double time_of(bare *b, void (*op)(bare *))
{
    double best = 1e30, start, each;

    for (int try = 0; try < 3; try++) {
        meet(b);
        start = now_us();
        for (int i = 0; i < WARM_UP; i++)
            op(b);
        each = (now_us() - start) / WARM_UP;
        if (each < best)
            best = each;
    }
    return best;
}

static inline void choose_iters(bare *b, void (*op)(bare *), size_t budget_ms)
{
    double each = time_of(b, op), wanted;

    wanted = (double)budget_ms * 1000 / (each > 0.05 ? each : 0.05);
    if (wanted < 10)
        wanted = 10;
    if (b->rank == 0)
        b->a->iters = wanted > MAX_ITERS ? MAX_ITERS : (size_t)wanted;
    meet(b);
}

/* The time of an iteration is from the last rank's end of one to that of the
 * next. */
static inline void report(const bare *b, const floor_op *op)
{
    size_t n = b->a->iters;
    double *end = b->a->end[0], p50, speed;
    double ops = op->ops == 0 ? b->ranks : op->ops;

    for (int r = 1; r < b->ranks; r++)
        for (size_t i = 0; i <= n; i++)
            if (b->a->end[r][i] > end[i])
                end[i] = b->a->end[r][i];
    for (size_t i = 0; i < n; i++)
        end[i] = (end[i + 1] - end[i]) / ops;
    qsort(end, n, sizeof *end, by_size);
    p50 = end[n / 2];
    speed = p50 > 0 ? (double)b->bytes / p50 * 1e-3 : 0;
    printf("floor,%s,f32,%d,%zu,%zu,%.3f,%.3f,%.4f,%.4f\n", op->name, b->ranks,
           b->bytes, n, p50, end[n / 10], speed, speed);
    fflush(stdout);
}

static inline void time_one(bare *b, const floor_op *op, size_t budget_ms)
{
    double *end = b->a->end[b->rank];

    choose_iters(b, op->run, budget_ms);
    end[0] = now_us();
    for (size_t i = 0; i < b->a->iters; i++) {
        op->run(b);
        end[i + 1] = now_us();
    }
    meet(b);
    if (b->rank == 0)
        report(b, op);
    meet(b);
}

/* All of them at that size, rounded down to whole parts. */
static inline void time_size(bare *b, size_t bytes, const floor_op *op,
                             size_t ops, size_t budget_ms)
{
    for (size_t i = 0; i < ops; i++) {
        size_t unit = op[i].parts ? 4 * (size_t)b->ranks : 4;

        b->bytes = bytes / unit * unit > 0 ? bytes / unit * unit : unit;
        b->count = b->bytes / 4;
        b->part = b->count / (size_t)b->ranks;
        time_one(b, &op[i], budget_ms);
    }
}

/* ---- sums ---------------------------------------------------------------- */

WIDE static void add_to(float *restrict to, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += x[i];
}

/* Where a rank's slice of `count` elements begins. */
static inline size_t slice_at(const bare *b, size_t count, int rank)
{
    return rank == b->ranks ? count
                            : count / (size_t)b->ranks / 16 * 16 * (size_t)rank;
}

/* ---- ranks --------------------------------------------------------------- */

static inline void pin(bare *b)
{
    cpu_set_t all, one;
    int nth = 0;

    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    b->yields = b->ranks > CPU_COUNT(&all);
    if (b->yields)
        return;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && nth++ == b->rank)
            CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static inline void *map_shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED) {
        fprintf(stderr, "limits: no %zu bytes of shared memory\n", bytes);
        exit(1);
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

/* Memory of this process, in large pages. */
static inline void *take_private(size_t bytes)
{
    size_t huge = 1 << 21, room = (bytes / huge + 2) * huge;
    void *memory = aligned_alloc(huge, room);

    if (memory == NULL)
        exit(1);
    madvise(memory, room, MADV_HUGEPAGE);
    memset(memory, 0, room);
    return memory;
}

static inline void read_sizes(settings *s, const char *text)
{
    char *next;

    s->largest = 0;
    for (s->sizes = 0; *text != 0 && s->sizes < MAX_SIZES; text = next) {
        s->size[s->sizes] = (size_t)strtoull(text, &next, 10);
        if (next == text)
            break;
        if (s->size[s->sizes] > s->largest)
            s->largest = s->size[s->sizes];
        s->sizes++;
        next += *next == ',';
    }
}

/* Reads the options; ends the program if they make no sense. */
static inline void read_settings(settings *s, int argc, char **argv)
{
    *s = (settings){ .ranks = 2, .budget_ms = 200 };
    read_sizes(s, "8,1024,65536,1048576,16777216,67108864");
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--ranks") == 0)
            s->ranks = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--sizes") == 0)
            read_sizes(s, argv[i + 1]);
        if (strcmp(argv[i], "--budget-ms") == 0)
            s->budget_ms = (size_t)atoi(argv[i + 1]);
    }
    if (s->ranks < 1 || s->ranks > MAX_RANKS) {
        fprintf(stderr, "limits: 1 to %d ranks\n", MAX_RANKS);
        exit(2);
    }
    s->area = map_shared(sizeof *s->area);
}

static inline int run_ranks(settings *s, oar_rank_fn fn)
{
    if (oar_launch_fn(s->ranks, fn, s, NULL, NULL, NULL) == OAR_OK)
        return 0;
    fprintf(stderr, "limits: %s\n", oar_last_error_text());
    return 1;
}

#endif
