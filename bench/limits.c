/* SPDX-License-Identifier: Apache-2.0 */
/* limits: what the bare machine needs for the work of each collective, with N
 * processes over shared memory and nothing of the library between them.
 *
 *   allreduce          meet, each sums its slice of all buffers into all, meet
 *   allreduce-private  the same through shared chunks, copied in and out
 *   reduce_scatter     meet, each sums its part of all buffers into its own
 *   allgather          meet, each copies everybody's part, meet
 *   alltoall           the same with other parts
 *   broadcast          meet, each copies the root's buffer, meet; every root
 *   p2p                a flag and a copy, there and back, one way
 *   barrier            each stores a flag and waits for the others'
 *
 * Up to 1 KiB data and flag travel together in one line each, two of them in
 * turn, so that one meeting is enough. With more processes than cores a waiting
 * one yields. Prints the csv of `oarsong bench`, with "floor" for the peer.
 *
 *   limits [--ranks N] [--sizes 8,1024,...] [--budget-ms 200]
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <oarsong/oarsong.h>

enum {
    MAX_RANKS = 16,
    MAX_ITERS = 20000,
    MAX_SIZES = 16,
    LINE_BYTES = 1024,
    CHUNK_BYTES = 256 << 10,
    WARM_UP = 10
};

#if defined(__x86_64__) && !defined(__clang__)
#define WIDE \
    __attribute__((noinline, target_clones("avx512f", "avx2", "default")))
#else
#define WIDE __attribute__((noinline))
#endif

typedef struct line {
    _Alignas(128) _Atomic unsigned stamp;
    float data[LINE_BYTES / 4];
} line;

/* What all processes share. */
typedef struct area {
    _Alignas(128) _Atomic unsigned step[MAX_RANKS][64];
    line line[MAX_RANKS][2];
    double end[MAX_RANKS][MAX_ITERS + 1];
    size_t iters;
    _Alignas(4096) unsigned char chunk[MAX_RANKS][2][CHUNK_BYTES];
} area;

typedef struct bare {
    area *a;
    int rank, ranks, yields;
    unsigned turn, exchange;
    size_t bytes, count, part, root; /* part: elements of one rank's */
    float *buffer[MAX_RANKS];        /* shared, one for each rank */
    float *mine;                     /* private */
} bare;

typedef struct settings {
    int ranks, sizes;
    size_t size[MAX_SIZES], largest, budget_ms;
    area *shared;
    float *buffer[MAX_RANKS];
} settings;

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- meetings ------------------------------------------------------------ */

static void await(const bare *b, _Atomic unsigned *stamp, unsigned value)
{
    while ((int)(atomic_load_explicit(stamp, memory_order_acquire) - value) < 0)
        if (b->yields)
            sched_yield();
}

static void meet(bare *b)
{
    unsigned v = ++b->turn;

    atomic_store_explicit(b->a->step[b->rank], v, memory_order_release);
    for (int r = 0; r < b->ranks; r++)
        if (r != b->rank)
            await(b, b->a->step[r], v);
}

/* Shows one line and waits for the others'; which of the two was used. */
static unsigned exchange(bare *b, const void *data, size_t bytes)
{
    unsigned v = ++b->exchange;
    line *shown = &b->a->line[b->rank][v & 1];

    memcpy(shown->data, data, bytes);
    atomic_store_explicit(&shown->stamp, v, memory_order_release);
    for (int r = 0; r < b->ranks; r++)
        if (r != b->rank)
            await(b, &b->a->line[r][v & 1].stamp, v);
    return v & 1;
}

/* ---- sums ---------------------------------------------------------------- */

WIDE static void sum_both(float *restrict x, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float v = x[i] + y[i];
        x[i] = v;
        y[i] = v;
    }
}

WIDE static void sum_to(float *restrict to, const float *restrict x,
                        const float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = x[i] + y[i];
}

WIDE static void add_to(float *restrict to, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += x[i];
}

/* The sum over all ranks' elements from `at` on, in pieces that stay in the
 * first cache. */
static void sum_all(const bare *b, float *const *from, size_t at, float *to,
                    size_t n)
{
    enum { PIECE = 2048 };

    for (size_t done = 0; done < n; done += PIECE) {
        size_t m = n - done < PIECE ? n - done : PIECE;
        const float *first = from[0] + at + done;
        if (b->ranks == 1)
            memcpy(to + done, first, m * sizeof *to);
        else
            sum_to(to + done, first, from[1] + at + done, m);
        for (int r = 2; r < b->ranks; r++)
            add_to(to + done, from[r] + at + done, m);
    }
}

/* A rank's slice of `count` elements. */
static size_t slice_at(const bare *b, size_t count, int rank)
{
    return rank == b->ranks ? count
                            : count / (size_t)b->ranks / 16 * 16 * (size_t)rank;
}

/* ---- the floors ---------------------------------------------------------- */

static void small_all_reduce(bare *b)
{
    float *from[MAX_RANKS];
    unsigned which = exchange(b, b->mine, b->bytes);

    for (int r = 0; r < b->ranks; r++)
        from[r] = b->a->line[r][which].data;
    sum_all(b, from, 0, b->mine, b->count);
}

static void sum_slice(const bare *b, float *const *buffer, size_t count)
{
    enum { PIECE = 2048 };
    size_t at = slice_at(b, count, b->rank);
    size_t end = slice_at(b, count, b->rank + 1);
    float sum[PIECE];

    if (b->ranks == 2) {
        sum_both(buffer[0] + at, buffer[1] + at, end - at);
        return;
    }
    for (; at < end; at += PIECE) {
        size_t n = end - at < PIECE ? end - at : PIECE;
        sum_all(b, buffer, at, sum, n);
        for (int r = 0; r < b->ranks; r++)
            memcpy(buffer[r] + at, sum, n * sizeof *sum);
    }
}

static void all_reduce(bare *b)
{
    if (b->bytes <= LINE_BYTES) {
        small_all_reduce(b);
        return;
    }
    meet(b);
    sum_slice(b, b->buffer, b->count);
    meet(b);
}

/* Each copies what the others sum of this chunk to where they see it, sums its
 * own slice of all, shows it, and copies the others' back. Chunks are used in
 * turn, so that nobody waits before filling the next. */
static void staged_chunk(bare *b, size_t at, size_t n, int turn)
{
    float *own = b->mine + at, *shown = (float *)b->a->chunk[b->rank][turn];
    size_t start = slice_at(b, n, b->rank), end = slice_at(b, n, b->rank + 1);

    memcpy(shown, own, start * sizeof *own);
    memcpy(shown + end, own + end, (n - end) * sizeof *own);
    meet(b);
    for (int r = 0; r < b->ranks; r++)
        if (r != b->rank)
            add_to(own + start, (float *)b->a->chunk[r][turn] + start,
                   end - start);
    memcpy(shown + start, own + start, (end - start) * sizeof *own);
    meet(b);
    for (int r = 0; r < b->ranks; r++)
        if (r != b->rank)
            memcpy(own + slice_at(b, n, r),
                   (float *)b->a->chunk[r][turn] + slice_at(b, n, r),
                   (slice_at(b, n, r + 1) - slice_at(b, n, r)) * sizeof *own);
}

static void all_reduce_private(bare *b)
{
    size_t step = CHUNK_BYTES / sizeof(float);
    int turn = 0;

    if (b->bytes <= LINE_BYTES) {
        small_all_reduce(b);
        return;
    }
    for (size_t at = 0; at < b->count; at += step, turn ^= 1)
        staged_chunk(b, at, b->count - at < step ? b->count - at : step, turn);
}

static void reduce_scatter(bare *b)
{
    float *from[MAX_RANKS];

    if (b->bytes <= LINE_BYTES) {
        unsigned which = exchange(b, b->buffer[b->rank], b->bytes);
        for (int r = 0; r < b->ranks; r++)
            from[r] = b->a->line[r][which].data;
        sum_all(b, from, (size_t)b->rank * b->part, b->mine, b->part);
        return;
    }
    meet(b);
    sum_all(b, b->buffer, (size_t)b->rank * b->part, b->mine, b->part);
    meet(b);
}

/* Each part from its rank, at 0 or, when parts are dealt out, at ours. */
static void copy_parts(bare *b, size_t at, size_t shown)
{
    size_t bytes = b->part * sizeof(float);
    int small = b->bytes <= LINE_BYTES;
    unsigned which = 0;

    if (small)
        which = exchange(b, b->buffer[b->rank], shown);
    else
        meet(b);
    for (int i = 0; i < b->ranks; i++) {
        int r = (b->rank + i) % b->ranks; /* not all from one at once */
        const float *from = small ? b->a->line[r][which].data : b->buffer[r];
        memcpy(b->mine + (size_t)r * b->part, from + at, bytes);
    }
    if (!small)
        meet(b);
}

static void all_gather(bare *b)
{
    copy_parts(b, 0, b->part * sizeof(float));
}

static void all_to_all(bare *b)
{
    copy_parts(b, (size_t)b->rank * b->part, b->bytes);
}

/* Into the buffer that is sent when it is this rank's turn: as with one buffer
 * a rank, what is copied was written by another core. */
static void broadcast_from(bare *b, int root)
{
    if (b->bytes <= LINE_BYTES) {
        unsigned which =
            exchange(b, b->buffer[root], b->rank == root ? b->bytes : 0);
        if (b->rank != root)
            memcpy(b->mine, b->a->line[root][which].data, b->bytes);
        return;
    }
    meet(b);
    if (b->rank != root)
        memcpy(b->buffer[b->rank], b->buffer[root], b->bytes);
    meet(b);
}

static void broadcast(bare *b)
{
    for (int root = 0; root < b->ranks; root++)
        broadcast_from(b, root);
}

static void ping_pong(bare *b)
{
    unsigned v = ++b->turn;
    int peer = !b->rank;

    if (b->rank > 1)
        return;
    if (b->rank == 0)
        atomic_store_explicit(b->a->step[0], v, memory_order_release);
    await(b, b->a->step[peer], v);
    memcpy(b->mine, b->buffer[peer], b->bytes);
    if (b->rank == 1)
        atomic_store_explicit(b->a->step[1], v, memory_order_release);
}

/* ---- timing -------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The quickest of a few tries: one disturbance must not decide. */
static double time_of(bare *b, void (*op)(bare *))
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

static void choose_iters(bare *b, void (*op)(bare *), size_t budget_ms)
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
static void report(const bare *b, const char *name, double ops)
{
    size_t n = b->a->iters;
    double *end = b->a->end[0], p50, speed;

    for (int r = 1; r < b->ranks; r++)
        for (size_t i = 0; i <= n; i++)
            if (b->a->end[r][i] > end[i])
                end[i] = b->a->end[r][i];
    for (size_t i = 0; i < n; i++)
        end[i] = (end[i + 1] - end[i]) / ops;
    qsort(end, n, sizeof *end, by_size);
    p50 = end[n / 2];
    speed = p50 > 0 ? (double)b->bytes / p50 * 1e-3 : 0;
    printf("floor,%s,f32,%d,%zu,%zu,%.3f,%.3f,%.4f,%.4f\n", name, b->ranks,
           b->bytes, n, p50, end[n / 10], speed, speed);
    fflush(stdout);
}

static void time_one(bare *b, void (*op)(bare *), const char *name, double ops,
                     size_t budget_ms)
{
    double *end = b->a->end[b->rank];

    choose_iters(b, op, budget_ms);
    end[0] = now_us();
    for (size_t i = 0; i < b->a->iters; i++) {
        op(b);
        end[i + 1] = now_us();
    }
    meet(b);
    if (b->rank == 0)
        report(b, name, ops);
    meet(b);
}

/* ---- ranks --------------------------------------------------------------- */

static void pin(int rank, int ranks)
{
    cpu_set_t all, one;
    int nth = 0;

    if (sched_getaffinity(0, sizeof all, &all) != 0 || ranks > CPU_COUNT(&all))
        return;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && nth++ == rank)
            CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static void time_size(bare *b, const settings *s)
{
    static const struct {
        const char *name;
        void (*op)(bare *);
        int parts;
    } floors[] = {
        { "allreduce", all_reduce, 0 },
        { "allreduce-private", all_reduce_private, 0 },
        { "reduce_scatter", reduce_scatter, 1 },
        { "allgather", all_gather, 1 },
        { "alltoall", all_to_all, 1 },
        { "broadcast", broadcast, 0 },
    };
    size_t bytes = b->bytes;

    for (size_t i = 0; i < sizeof floors / sizeof *floors; i++) {
        size_t unit = floors[i].parts ? 4 * (size_t)b->ranks : 4;
        b->bytes = bytes / unit * unit > 0 ? bytes / unit * unit : unit;
        b->count = b->bytes / 4;
        b->part = b->count / (size_t)b->ranks;
        time_one(b, floors[i].op, floors[i].name,
                 floors[i].op == broadcast ? b->ranks : 1, s->budget_ms);
    }
    b->bytes = bytes;
    if (b->ranks == 2)
        time_one(b, ping_pong, "p2p", 2, s->budget_ms);
}

static oar_status run_rank(oar_group *group, void *arg)
{
    const settings *s = arg;
    bare b = { .a = s->shared,
               .rank = oar_group_rank(group),
               .ranks = s->ranks };
    cpu_set_t cores;
    void *memory = aligned_alloc(1 << 21, (s->largest >> 21 << 21) + (2 << 21));

    if (memory == NULL)
        return OAR_E_NOMEM;
    madvise(memory, s->largest, MADV_HUGEPAGE);
    memset(memory, 0, s->largest + 4096);
    b.mine = memory;
    memcpy(b.buffer, s->buffer, sizeof b.buffer);
    memset(b.buffer[b.rank], 0, s->largest + 4096);
    b.yields = sched_getaffinity(0, sizeof cores, &cores) == 0 &&
               b.ranks > CPU_COUNT(&cores);
    pin(b.rank, b.ranks);
    meet(&b);
    time_one(&b, meet, "barrier", 1, s->budget_ms);
    for (int i = 0; i < s->sizes; i++) {
        b.bytes = s->size[i];
        time_size(&b, s);
    }
    free(memory);
    return OAR_OK;
}

static void *map_shared(size_t bytes)
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

static void read_sizes(settings *s, const char *text)
{
    char *next;

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

int main(int argc, char **argv)
{
    settings s = { .ranks = 2, .budget_ms = 200 };

    read_sizes(&s, "8,1024,65536,1048576,16777216,67108864");
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--ranks") == 0)
            s.ranks = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--sizes") == 0)
            read_sizes(&s, argv[i + 1]);
        if (strcmp(argv[i], "--budget-ms") == 0)
            s.budget_ms = (size_t)atoi(argv[i + 1]);
    }
    if (s.ranks < 1 || s.ranks > MAX_RANKS) {
        fprintf(stderr, "limits: 1 to %d ranks\n", MAX_RANKS);
        return 2;
    }
    s.shared = map_shared(sizeof(area));
    for (int r = 0; r < s.ranks; r++)
        s.buffer[r] = map_shared(s.largest + 4096);
    if (oar_launch_fn(s.ranks, run_rank, &s, NULL, NULL, NULL) == OAR_OK)
        return 0;
    fprintf(stderr, "limits: %s\n", oar_last_error_text());
    return 1;
}
