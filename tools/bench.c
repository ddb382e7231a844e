/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong bench: times a collective over ranks that it starts itself.
 *
 * Operations are issued back to back. Every rank notes the time at which each
 * one ended; iteration i ends when it has ended on all ranks, and its duration
 * is the time since iteration i-1 ended. So the durations add up to the time of
 * the whole run, and no rank can hide another's work.
 */
#include "tool.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <oarsong/oarsong.h>

enum { MAX_RANKS = 64, MAX_ITERS = 20000, WARM_UP = 20 };

typedef enum format { NCCL, OSU, CSV, JSON } format;

typedef struct plan {
    const char *kind, *peer;
    int ranks;
    const char *backend, *algo;
    size_t min, max, iters, budget_ms;
    oar_dtype dtype;
    oar_op op;
    int private_memory, check, bind;
    format format;
    double *end; /* MAX_RANKS rows of MAX_ITERS + 1, shared by all ranks */
} plan;

/* One operation on one size. */
typedef struct point {
    const plan *p;
    oar_group *group;
    oar_span in, out;
} point;

typedef struct figures {
    size_t iters;
    double p50, p10; /* us */
    long wrong;      /* -1: not checked */
} figures;

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int is(const plan *p, const char *kind)
{
    return strcmp(p->kind, kind) == 0;
}

static oar_status operate(const point *at, size_t iteration)
{
    const plan *p = at->p;
    int root = (int)(iteration % (size_t)p->ranks);

    if (is(p, "barrier"))
        return oar_barrier(at->group, NULL, NULL);
    if (is(p, "broadcast"))
        return oar_broadcast(at->group, at->out, root, NULL, NULL);
    return oar_all_reduce_into(at->group, at->in, at->out, p->op, NULL, NULL);
}

/* ---- checking
 * ------------------------------------------------------------------*/

static void set_value(oar_span s, size_t i, double value)
{
    if (s.dtype == OAR_F32)
        ((float *)s.data)[i] = (float)value;
    else
        ((double *)s.data)[i] = value;
}

static double get_value(oar_span s, size_t i)
{
    return s.dtype == OAR_F32 ? (double)((float *)s.data)[i]
                              : ((double *)s.data)[i];
}

static double contribution(int rank, size_t i)
{
    return (double)((i + 3 * (size_t)rank) % 17) - 3;
}

static double expected(const plan *p, size_t i)
{
    double sum = contribution(0, i);

    if (is(p, "broadcast"))
        return sum;
    for (int r = 1; r < p->ranks; r++) {
        double x = contribution(r, i);
        switch (p->op.kind) {
        case OAR_OP_PROD: sum *= x; break;
        case OAR_OP_MIN: sum = x < sum ? x : sum; break;
        case OAR_OP_MAX: sum = x > sum ? x : sum; break;
        default: sum += x; break;
        }
    }
    return p->op.kind == OAR_OP_AVG ? sum / p->ranks : sum;
}

/* Runs one operation on known numbers and counts the wrong ones here. */
static oar_status count_wrong(const point *at, long *wrong)
{
    int rank = oar_group_rank(at->group);
    oar_status status;

    for (size_t i = 0; i < at->in.count; i++) {
        set_value(at->out, i, contribution(rank, i));
        set_value(at->in, i, contribution(rank, i));
    }
    status = operate(at, 0);
    *wrong = 0;
    for (size_t i = 0; i < at->out.count; i++) {
        double want = expected(at->p, i);
        double off = get_value(at->out, i) - want;
        double room = at->p->dtype == OAR_F32 ? 1e-6 : 1e-14;
        if (is(at->p, "barrier"))
            continue;
        *wrong += off > room * (1 + (want < 0 ? -want : want)) ||
                  -off > room * (1 + (want < 0 ? -want : want));
    }
    for (size_t i = 0; i < at->in.count; i++) {
        set_value(at->in, i, 0);
        set_value(at->out, i, 0);
    }
    return status;
}

/* ---- timing
 * --------------------------------------------------------------------*/

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double percentile(const double *sorted, size_t n, double share)
{
    return sorted[(size_t)(share * (double)(n - 1) + 0.5)];
}

static double *row(const plan *p, int rank)
{
    return p->end + (size_t)rank * (MAX_ITERS + 1);
}

/* On rank 0, after all ranks have finished. */
static void summarise(const plan *p, size_t iters, figures *f)
{
    double *first = row(p, 0);

    for (size_t i = 0; i <= iters; i++)
        for (int r = 1; r < p->ranks; r++)
            if (row(p, r)[i] > first[i])
                first[i] = row(p, r)[i];
    for (size_t i = 0; i < iters; i++)
        first[i] = first[i + 1] - first[i];
    qsort(first, iters, sizeof *first, by_size);
    f->iters = iters;
    f->p50 = percentile(first, iters, 0.5);
    f->p10 = percentile(first, iters, 0.1);
}

/* How many iterations fit the budget; the same on all ranks. */
static oar_status choose_iters(const point *at, size_t *iters)
{
    double start = now_us(), each;
    float wanted;

    for (size_t i = 0; i < WARM_UP; i++) {
        oar_status status = operate(at, i);
        if (status != OAR_OK)
            return status;
    }
    each = (now_us() - start) / WARM_UP;
    wanted =
        (float)((double)at->p->budget_ms * 1000 / (each > 0.05 ? each : 0.05));
    if (at->p->iters != 0)
        wanted = (float)at->p->iters;
    if (wanted < 10)
        wanted = 10;
    if (wanted > MAX_ITERS)
        wanted = MAX_ITERS;
    *iters = (size_t)wanted;
    return oar_all_reduce(at->group, oar_span_of(iters, 1, OAR_U64), OAR_MIN,
                          NULL, NULL);
}

static oar_status measure(const point *at, figures *f)
{
    double *end = row(at->p, oar_group_rank(at->group));
    oar_status status;
    size_t iters;

    f->wrong = -1;
    if (at->p->check && (status = count_wrong(at, &f->wrong)) != OAR_OK)
        return status;
    if ((status = choose_iters(at, &iters)) != OAR_OK)
        return status;
    end[0] = now_us();
    for (size_t i = 0; i < iters; i++) {
        if ((status = operate(at, i)) != OAR_OK)
            return status;
        end[i + 1] = now_us();
    }
    if ((status = oar_barrier(at->group, NULL, NULL)) != OAR_OK)
        return status;
    if (oar_group_rank(at->group) == 0)
        summarise(at->p, iters, f);
    return oar_all_reduce(at->group, oar_span_of(&f->wrong, 1, OAR_I64),
                          OAR_MAX, NULL, NULL);
}

/* ---- printing
 * ------------------------------------------------------------------*/

static double bus_factor(const plan *p)
{
    return is(p, "all_reduce") ? 2.0 * (p->ranks - 1) / p->ranks : 1;
}

static void print_header(const plan *p)
{
    if (p->format == OSU)
        printf("# Oarsong %s, %d ranks\n# Size       p50 Latency(us)\n",
               p->kind, p->ranks);
    if (p->format != NCCL)
        return;
    printf("# oarsong bench %s: %d ranks, backend %s, %s memory\n"
           "#%61s%-38s %s\n",
           p->kind, p->ranks, p->backend != NULL ? p->backend : "native",
           p->private_memory ? "private" : "shared", "", "out of place",
           "in place");
    printf("#%11s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  "
           "%6s\n",
           "size", "count", "type", "redop", "root", "time", "algbw", "busbw",
           "#wrong", "time", "algbw", "busbw", "#wrong");
    printf("#%11s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s\n",
           "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "",
           "(us)", "(GB/s)", "(GB/s)");
}

static void print_half(const plan *p, size_t bytes, const figures *f)
{
    double speed = f->p50 > 0 ? (double)bytes / f->p50 * 1e-3 : 0;

    printf("  %7.2f  %6.2f  %6.2f", f->p50, speed, speed * bus_factor(p));
    if (f->wrong < 0)
        printf("  %6s", "N/A");
    else
        printf("  %6ld", f->wrong);
}

static void print_nccl(const plan *p, size_t bytes, size_t count,
                       const figures f[2])
{
    printf("%12zu  %12zu  %8s  %6s  %6s", bytes, count,
           oar_dtype_name(p->dtype),
           is(p, "all_reduce") ? oar_op_name(p->op.kind) : "none",
           is(p, "broadcast") ? "all" : "-1");
    print_half(p, bytes, &f[0]);
    print_half(p, bytes, &f[1]);
    printf("\n");
}

/* The spelling of the second column that other programs use. */
static const char *csv_kind(const plan *p)
{
    return is(p, "all_reduce") ? "allreduce" : p->kind;
}

static void print_line(const plan *p, size_t bytes, size_t count,
                       const figures f[2])
{
    double speed = f[1].p50 > 0 ? (double)bytes / f[1].p50 * 1e-3 : 0;

    switch (p->format) {
    case NCCL: print_nccl(p, bytes, count, f); break;
    case OSU: printf("%-12zu %14.2f\n", bytes, f[1].p50); break;
    case CSV:
        printf("%s,%s,%s,%d,%zu,%zu,%.3f,%.3f,%.4f,%.4f\n", p->peer,
               csv_kind(p), oar_dtype_name(p->dtype), p->ranks, bytes,
               f[1].iters, f[1].p50, f[1].p10, speed, speed * bus_factor(p));
        break;
    case JSON:
        printf("{\"collective\":\"%s\",\"dtype\":\"%s\",\"ranks\":%d,\"bytes\":"
               "%zu,\"iters\":%zu,\"p50_us\":%.3f,\"p10_us\":%.3f,\"algbw_GBps"
               "\":%.4f,\"busbw_GBps\":%.4f,\"wrong\":%ld}\n",
               p->kind, oar_dtype_name(p->dtype), p->ranks, bytes, f[1].iters,
               f[1].p50, f[1].p10, speed, speed * bus_factor(p), f[1].wrong);
        break;
    }
    fflush(stdout);
}

/* ---- one rank
 * ------------------------------------------------------------------*/

static oar_status take_memory(const plan *p, size_t bytes, void **memory)
{
    if (!p->private_memory)
        return oar_shared_alloc(bytes, memory);
    *memory = aligned_alloc(1 << 21, (bytes + (1 << 21) - 1) >> 21 << 21);
    if (*memory == NULL)
        return OAR_E_NOMEM;
    madvise(*memory, bytes, MADV_HUGEPAGE);
    memset(*memory, 0, bytes);
    return OAR_OK;
}

static oar_status bench_size(const plan *p, oar_group *group, size_t bytes,
                             void *in, void *out, long *wrong)
{
    size_t count = bytes / oar_dtype_size(p->dtype);
    point at = { p, group, oar_span_of(in, count, p->dtype),
                 oar_span_of(out, count, p->dtype) };
    figures f[2] = { { .wrong = -1 }, { .wrong = -1 } };
    oar_status status = OAR_OK;

    if (p->format == NCCL)
        status = measure(&at, &f[0]);
    at.in = at.out;
    if (status == OAR_OK)
        status = measure(&at, &f[1]);
    if (status == OAR_OK && oar_group_rank(group) == 0)
        print_line(p, bytes, count, f);
    *wrong += (f[0].wrong > 0) + (f[1].wrong > 0);
    return status;
}

static void bind_to_core(const plan *p, int rank)
{
    cpu_set_t all, one;
    int nth = 0;

    if (!p->bind || sched_getaffinity(0, sizeof all, &all) != 0 ||
        p->ranks > CPU_COUNT(&all))
        return;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && nth++ == rank)
            CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static oar_status bench_rank(oar_group *group, void *arg)
{
    const plan *p = arg;
    void *in = NULL, *out = NULL;
    long wrong = 0;
    oar_status status;

    bind_to_core(p, oar_group_rank(group));
    if (oar_group_rank(group) == 0)
        print_header(p);
    status = take_memory(p, p->max, &in);
    if (status == OAR_OK)
        status = take_memory(p, p->max, &out);
    for (size_t bytes = p->min; status == OAR_OK && bytes <= p->max;
         bytes = bytes != 0 ? bytes * 2 : 8)
        status = bench_size(p, group, bytes, in, out, &wrong);
    if (status != OAR_OK)
        return tool_failed("bench"), status;
    if (oar_group_rank(group) == 0 && p->format == NCCL)
        printf("# Out of bounds values : %ld %s\n", wrong,
               wrong == 0 ? "OK" : "FAILED");
    return wrong == 0 ? OAR_OK : OAR_E_DATA;
}

/* ---- the command line
 * ----------------------------------------------------------*/

static int usage(FILE *to)
{
    fprintf(to,
            "oarsong bench KIND [options]\n\n"
            "KIND is all_reduce, broadcast or barrier.\n\n"
            "  --ranks N         processes to start (2)\n"
            "  --backend B       native, shm, or the path of a plugin\n"
            "  --min B, --max B  sizes in bytes, doubling (8 to 64M)\n"
            "  --dtype T         f32 or f64 (f32)\n"
            "  --op O            sum, avg, prod, min, max (sum)\n"
            "  --memory M        shared or private (shared)\n"
            "  --algo A          force an algorithm by name\n"
            "  --iters N         iterations a size (as many as fit 200 ms)\n"
            "  --budget-ms N     instead of 200\n"
            "  --no-check        do not compare results\n"
            "  --no-bind         do not bind ranks to cores\n"
            "  --peer NAME       first column of csv (oarsong)\n"
            "  --format F        nccl, osu, csv or json (nccl)\n");
    return to == stdout ? TOOL_OK : TOOL_USAGE;
}

static int read_op(const char *text, oar_op *op)
{
    for (int k = 0; k <= OAR_OP_MAX; k++)
        if (strcmp(text, oar_op_name((oar_op_kind)k)) == 0) {
            *op = OAR_OP((oar_op_kind)k, 0);
            return 1;
        }
    return 0;
}

static int read_format(const char *text, format *f)
{
    static const char *const names[] = { "nccl", "osu", "csv", "json" };

    for (int i = 0; i < 4; i++)
        if (strcmp(text, names[i]) == 0) {
            *f = (format)i;
            return 1;
        }
    return 0;
}

static int read_dtype(const char *text, oar_dtype *dtype)
{
    return oar_dtype_parse(text, dtype) == OAR_OK &&
           (*dtype == OAR_F32 || *dtype == OAR_F64);
}

/* An option with a value; whether it was understood. */
static int read_option(plan *p, const char *name, const char *value)
{
    size_t ranks;

    if (strcmp(name, "--ranks") == 0) {
        if (!tool_number(value, 1, MAX_RANKS, &ranks))
            return 0;
        p->ranks = (int)ranks;
    } else if (strcmp(name, "--backend") == 0)
        p->backend = value;
    else if (strcmp(name, "--algo") == 0)
        p->algo = value;
    else if (strcmp(name, "--peer") == 0)
        p->peer = value;
    else if (strcmp(name, "--memory") == 0) {
        p->private_memory = strcmp(value, "private") == 0;
        return p->private_memory || strcmp(value, "shared") == 0;
    } else if (strcmp(name, "--min") == 0)
        return tool_number(value, 0, (size_t)1 << 40, &p->min);
    else if (strcmp(name, "--max") == 0)
        return tool_number(value, 0, (size_t)1 << 40, &p->max);
    else if (strcmp(name, "--iters") == 0)
        return tool_number(value, 1, MAX_ITERS, &p->iters);
    else if (strcmp(name, "--budget-ms") == 0)
        return tool_number(value, 1, 100000, &p->budget_ms);
    else if (strcmp(name, "--dtype") == 0)
        return read_dtype(value, &p->dtype);
    else if (strcmp(name, "--op") == 0)
        return read_op(value, &p->op);
    else if (strcmp(name, "--format") == 0)
        return read_format(value, &p->format);
    else
        return 0;
    return 1;
}

static int read_options(plan *p, int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--no-check") == 0)
            p->check = 0;
        else if (strcmp(argv[i], "--check") == 0)
            p->check = 1;
        else if (strcmp(argv[i], "--no-bind") == 0)
            p->bind = 0;
        else if (i + 1 == argc || !read_option(p, argv[i], argv[i + 1]))
            return 0;
        else
            i++;
    }
    if (is(p, "barrier"))
        p->min = p->max = 0;
    return p->min <= p->max &&
           (is(p, "all_reduce") || is(p, "broadcast") || is(p, "barrier"));
}

int tool_bench(int argc, char **argv)
{
    plan p = { .ranks = 2,
               .peer = "oarsong",
               .min = 8,
               .max = 64 << 20,
               .budget_ms = 200,
               .dtype = OAR_F32,
               .op = OAR_SUM,
               .check = 1,
               .bind = 1 };
    oar_group_opts opts = oar_group_opts_init();
    oar_launch_result result = oar_launch_result_init();
    size_t bytes = sizeof(double) * MAX_RANKS * (MAX_ITERS + 1);

    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        return usage(stdout);
    p.kind = argc > 1 ? argv[1] : "";
    if (!read_options(&p, argc, argv))
        return usage(stderr);
    if (p.algo != NULL)
        setenv("OARSONG_ALGO", p.algo, 1);
    p.end = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p.end == MAP_FAILED)
        return TOOL_FAILED;
    opts.backend = p.backend;
    if (oar_launch_fn(p.ranks, bench_rank, &p, &opts, NULL, &result) == OAR_OK)
        return TOOL_OK;
    return tool_failed("bench");
}
