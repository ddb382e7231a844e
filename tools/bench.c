/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong bench: times an operation over ranks that it starts itself.
 *
 * Iterations are issued back to back. Every rank notes the time at which each
 * one ended; iteration i ends when it has ended on all ranks, and its duration
 * is the time since iteration i-1 ended. So the durations add up to the time of
 * the whole run, and no rank can hide another's work. An operation with a root
 * is done once for each root in every iteration, so that no rank runs ahead,
 * and its time is the iteration's divided by the roots.
 */
#include "bench.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tool.h"

enum { LEAST_ITERS = 10, HUGE_PAGE = 1 << 21 };

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- timing ---------------------------------------------------------------
 */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double percentile(const double *sorted, size_t n, double share)
{
    return sorted[(size_t)(share * (double)(n - 1) + 0.5)];
}

static double *row(const bench_plan *p, int rank)
{
    return p->end + (size_t)rank * (BENCH_MAX_ITERS + 1);
}

/* On rank 0, after all ranks have finished. */
static void summarise(const bench_plan *p, size_t iters, bench_figures *f)
{
    double *first = row(p, 0);

    for (size_t i = 0; i <= iters; i++)
        for (int r = 1; r < p->ranks; r++)
            if (row(p, r)[i] > first[i])
                first[i] = row(p, r)[i];
    for (size_t i = 0; i < iters; i++)
        first[i] = (first[i + 1] - first[i]) / bench_ops(p);
    qsort(first, iters, sizeof *first, by_size);
    f->iters = iters;
    f->p50 = percentile(first, iters, 0.5);
    f->p10 = percentile(first, iters, 0.1);
}

/* What an iteration takes: the quicker half of the warm-up, so that one
 * disturbance does not decide. */
static oar_status warm_up(const bench_point *at, double *each)
{
    size_t half = at->p->warm_up / 2 + 1;
    oar_status status = OAR_OK;

    *each = 1e30;
    for (int turn = 0; turn < 2; turn++) {
        double start = now_us(), took;
        for (size_t i = 0; i < half && status == OAR_OK; i++)
            status = bench_operate(at);
        took = (now_us() - start) / (double)half;
        if (took < *each)
            *each = took;
    }
    return status;
}

/* How many iterations fit the budget; the same on all ranks. */
static oar_status choose_iters(const bench_point *at, size_t *iters)
{
    const bench_plan *p = at->p;
    double each, wanted;
    oar_status status = warm_up(at, &each);

    if (status != OAR_OK)
        return status;
    wanted = (double)p->budget_ms * 1000 / (each > 0.05 ? each : 0.05);
    if (p->iters != 0)
        wanted = (double)p->iters;
    else if (wanted < LEAST_ITERS)
        wanted = LEAST_ITERS;
    if (wanted > BENCH_MAX_ITERS || !bench_takes_part(at))
        wanted = BENCH_MAX_ITERS;
    *iters = (size_t)wanted;
    return oar_all_reduce(at->group, oar_span_of(iters, 1, OAR_U64), OAR_MIN,
                          NULL, NULL);
}

static oar_status iterate(const bench_point *at, size_t iters)
{
    double *end = row(at->p, at->rank);
    oar_status status = OAR_OK;

    memset(end, 0, (iters + 1) * sizeof *end);
    if (!bench_takes_part(at))
        return OAR_OK;
    end[0] = now_us();
    for (size_t i = 0; i < iters && status == OAR_OK; i++) {
        status = bench_operate(at);
        end[i + 1] = now_us();
    }
    return status;
}

static oar_status measure(const bench_point *at, bench_figures *f)
{
    oar_status status;
    size_t iters;

    f->wrong = -1;
    if (at->p->check && (status = bench_count_wrong(at, &f->wrong)) != OAR_OK)
        return status;
    if ((status = choose_iters(at, &iters)) != OAR_OK ||
        (status = iterate(at, iters)) != OAR_OK ||
        (status = oar_barrier(at->group, NULL, NULL)) != OAR_OK)
        return status;
    f->iters = iters;
    if (at->rank == 0)
        summarise(at->p, iters, f);
    return oar_all_reduce(at->group, oar_span_of(&f->wrong, 1, OAR_I64),
                          OAR_MAX, NULL, NULL);
}

/* ---- one rank -------------------------------------------------------------
 */

static oar_status take_memory(const bench_plan *p, size_t bytes, void **memory)
{
    if (!p->private_memory)
        return oar_shared_alloc(bytes, memory);
    *memory = aligned_alloc(HUGE_PAGE,
                            (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (*memory == NULL)
        return OAR_E_NOMEM;
    madvise(*memory, bytes, MADV_HUGEPAGE);
    memset(*memory, 0, bytes);
    return OAR_OK;
}

/* nccl-tests show both; other formats what their readers compare: an all_reduce
 * in place, the rest out of place where there is a choice. */
static int is_measured(const bench_plan *p, int in_place)
{
    if (p->kind == BENCH_BROADCAST)
        return in_place;
    if (in_place && !bench_kind_in_place(p->kind))
        return 0;
    if (p->format == BENCH_NCCL)
        return 1;
    return in_place == (p->kind == BENCH_ALL_REDUCE);
}

static oar_status bench_size(bench_point at, size_t bytes, long *wrong)
{
    bench_figures f[2] = { { .wrong = -1 }, { .wrong = -1 } };
    oar_status status = OAR_OK;

    for (int in_place = 0; in_place < 2 && status == OAR_OK; in_place++) {
        at.in_place = in_place;
        bench_lay_out(&at, bytes);
        if (is_measured(at.p, in_place))
            status = measure(&at, &f[in_place]);
    }
    if (status == OAR_OK && at.rank == 0)
        bench_print(&at, f);
    *wrong += (f[0].wrong > 0) + (f[1].wrong > 0);
    return status;
}

static void bind_to_core(const bench_plan *p, int rank)
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

static oar_status bench_sizes(bench_point at, long *wrong)
{
    const bench_plan *p = at.p;
    oar_status status = OAR_OK;

    for (size_t i = 0; status == OAR_OK && i < p->sizes; i++)
        status = bench_size(at, p->size[i], wrong);
    if (p->sizes > 0)
        return status;
    for (size_t bytes = p->min; status == OAR_OK && bytes <= p->max;
         bytes = bytes != 0 ? bytes * p->factor : 8)
        status = bench_size(at, bytes, wrong);
    return status;
}

static oar_status bench_rank(oar_group *group, void *arg)
{
    const bench_plan *p = arg;
    bench_point at = { .p = p, .group = group, .rank = oar_group_rank(group) };
    size_t bytes = p->max + 8 * BENCH_MAX_RANKS; /* one element a rank */
    long wrong = 0;
    oar_status status;

    bind_to_core(p, at.rank);
    if (at.rank == 0)
        bench_print_header(p);
    status = take_memory(p, bytes, &at.first);
    if (status == OAR_OK)
        status = take_memory(p, bytes, &at.second);
    if (status == OAR_OK)
        status = bench_sizes(at, &wrong);
    if (status != OAR_OK)
        return tool_failed("bench"), status;
    if (at.rank == 0 && p->format == BENCH_NCCL)
        printf("# Out of bounds values : %ld %s\n", wrong,
               wrong == 0 ? "OK" : "FAILED");
    return wrong == 0 ? OAR_OK : OAR_E_DATA;
}

/* ---- the command line -----------------------------------------------------
 */

static int usage(FILE *to)
{
    fprintf(to, "oarsong bench KIND [options]\n\nKIND is one of");
    for (int k = 0; k < BENCH_KINDS; k++)
        fprintf(to, " %s", bench_kind_name((bench_kind)k));
    fprintf(
        to,
        "\n(p2p: a ping-pong, one way; stream: many messages from rank 0 to "
        "rank 1).\n\n"
        "  --ranks N         processes to start (2)\n"
        "  --backend B       native, shm, tcp, or the path of a plugin\n"
        "  --min B, --max B  sizes in bytes (8 to 64M)\n"
        "  --step-factor N   from one size to the next (2)\n"
        "  --dtype T         f32, bf16, i8, ... (f32)\n"
        "  --op O            sum, avg, prod, min, max, band, bor, bxor (sum)"
        "\n"
        "  --memory M        shared or private (shared)\n"
        "  --algo A          force an algorithm by name\n"
        "  --iters N         iterations a size (as many as fit 200 ms)\n"
        "  --budget-ms N     instead of 200\n"
        "  --warmup N        iterations before (20)\n"
        "  --no-check        do not compare results\n"
        "  --no-bind         do not bind ranks to cores\n"
        "  --peer NAME       first column of csv (oarsong)\n"
        "  --format F        nccl, osu, csv or json (nccl)\n");
    return to == stdout ? TOOL_OK : TOOL_USAGE;
}

static int read_kind(const char *text, bench_kind *kind)
{
    for (int k = 0; k < BENCH_KINDS; k++)
        if (strcmp(text, bench_kind_name((bench_kind)k)) == 0) {
            *kind = (bench_kind)k;
            return 1;
        }
    return 0;
}

static int read_op(const char *text, oar_op *op)
{
    for (int k = 0; k <= OAR_OP_BXOR; k++)
        if (strcmp(text, oar_op_name((oar_op_kind)k)) == 0) {
            *op = OAR_OP((oar_op_kind)k, 0);
            return 1;
        }
    return 0;
}

static int read_format(const char *text, bench_format *f)
{
    static const char *const names[] = { "nccl", "osu", "csv", "json" };

    for (int i = 0; i < 4; i++)
        if (strcmp(text, names[i]) == 0) {
            *f = (bench_format)i;
            return 1;
        }
    return 0;
}

static int read_memory(const char *text, int *private_memory)
{
    *private_memory = strcmp(text, "private") == 0;
    return *private_memory || strcmp(text, "shared") == 0;
}

/* "8,1K,64K". The largest becomes the maximum. */
static int read_sizes(bench_plan *p, const char *text)
{
    char one[32];
    size_t length;

    p->min = p->max = 0;
    for (p->sizes = 0; p->sizes < BENCH_MAX_SIZES; text += length + 1) {
        length = strcspn(text, ",");
        snprintf(one, sizeof one, "%.*s", (int)length, text);
        if (length >= sizeof one ||
            !tool_number(one, 0, (size_t)1 << 40, &p->size[p->sizes]))
            return 0;
        if (p->size[p->sizes] > p->max)
            p->max = p->size[p->sizes];
        p->sizes++;
        if (text[length] == 0)
            return 1;
    }
    return 0;
}

/* A number; whether the option was one and the value good. */
static int read_number(bench_plan *p, const char *name, const char *value)
{
    const struct {
        const char *name;
        size_t low, high, *to;
    } numbers[] = {
        { "--min", 0, (size_t)1 << 40, &p->min },
        { "--max", 0, (size_t)1 << 40, &p->max },
        { "--step-factor", 2, 1 << 20, &p->factor },
        { "--iters", 1, BENCH_MAX_ITERS, &p->iters },
        { "--warmup", 1, BENCH_MAX_ITERS, &p->warm_up },
        { "--budget-ms", 1, 100000, &p->budget_ms },
    };

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(name, numbers[i].name) == 0)
            return tool_number(value, numbers[i].low, numbers[i].high,
                               numbers[i].to);
    return 0;
}

/* An option with a value; whether it was understood. */
static int read_option(bench_plan *p, const char *name, const char *value)
{
    size_t ranks = 0;
    int good = 1;

    if (strcmp(name, "--ranks") == 0) {
        good = tool_number(value, 1, BENCH_MAX_RANKS, &ranks);
        p->ranks = (int)ranks;
    } else if (strcmp(name, "--backend") == 0)
        p->backend = value;
    else if (strcmp(name, "--algo") == 0)
        p->algo = value;
    else if (strcmp(name, "--peer") == 0)
        p->peer = value;
    else if (strcmp(name, "--memory") == 0)
        good = read_memory(value, &p->private_memory);
    else if (strcmp(name, "--dtype") == 0)
        good = oar_dtype_parse(value, &p->dtype) == OAR_OK;
    else if (strcmp(name, "--op") == 0)
        good = read_op(value, &p->op);
    else if (strcmp(name, "--sizes") == 0)
        good = read_sizes(p, value);
    else if (strcmp(name, "--format") == 0)
        good = read_format(value, &p->format);
    else
        good = read_number(p, name, value);
    return good;
}

/* What only together makes no sense. */
static int fits(bench_plan *p)
{
    if (p->kind == BENCH_BARRIER)
        p->min = p->max = p->sizes = 0;
    if ((p->kind == BENCH_P2P || p->kind == BENCH_STREAM) && p->ranks < 2)
        return 0;
    if (bench_kind_folds(p->kind) && oar_op_check(p->op, p->dtype) != OAR_OK) {
        tool_failed("bench");
        return 0;
    }
    return p->min <= p->max;
}

static int read_options(bench_plan *p, int argc, char **argv)
{
    if (argc < 2 || !read_kind(argv[1], &p->kind))
        return 0;
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
    return fits(p);
}

int tool_bench(int argc, char **argv)
{
    bench_plan p = { .ranks = 2,
                     .peer = "oarsong",
                     .min = 8,
                     .max = 64 << 20,
                     .factor = 2,
                     .warm_up = 20,
                     .budget_ms = 200,
                     .dtype = OAR_F32,
                     .op = OAR_SUM,
                     .check = 1,
                     .bind = 1 };
    oar_group_opts opts = oar_group_opts_init();
    oar_launch_result result = oar_launch_result_init();
    size_t bytes = sizeof(double) * BENCH_MAX_RANKS * (BENCH_MAX_ITERS + 1);

    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        return usage(stdout);
    if (!read_options(&p, argc, argv))
        return usage(stderr);
    p.end = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p.end == MAP_FAILED)
        return TOOL_FAILED;
    opts.backend = p.backend;
    opts.algorithm = p.algo;
    if (oar_launch_fn(p.ranks, bench_rank, &p, &opts, NULL, &result) == OAR_OK)
        return TOOL_OK;
    return tool_failed("bench");
}
