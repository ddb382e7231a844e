/* SPDX-License-Identifier: Apache-2.0 */
/* oarsong bench: times an operation over ranks that it starts itself (those of
 * the backend mpi through mpirun), or as one rank of a job that was started
 * with OARSONG_RANK set.
 *
 * Iterations are issued back to back. Every rank notes the time at which each
 * one ended; iteration i ends when it has ended on all ranks, and its duration
 * is the time since iteration i-1 ended. So the durations add up to the time of
 * the whole run, and no rank can hide another's work. An operation with a root
 * is done once for each root in every iteration, so that no rank runs ahead,
 * and its time is the iteration's divided by the roots.
 *
 * Ranks that it starts note their times in memory that all share. Those of a
 * job may be on hosts with clocks of their own: they count from the end of a
 * barrier, which the first iteration's time is off by, and rank 0 gathers.
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

/* ---- timing -------------------------------------------------------------- */

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

/* The rows of a job's ranks, to rank 0. */
static oar_status gather_rows(const bench_point *at)
{
    const bench_plan *p = at->p;
    size_t width = BENCH_MAX_ITERS + 1;
    double *mine = row(p, at->rank), from = mine[0];
    oar_span all =
        oar_span_of(at->rank == 0 ? p->end : NULL,
                    at->rank == 0 ? width * (size_t)p->ranks : 0, OAR_F64);

    for (size_t i = 0; i < width; i++)
        mine[i] -= mine[i] != 0 ? from : 0;
    return oar_gather(at->group, oar_span_of(mine, width, OAR_F64), all, 0,
                      NULL, NULL);
}

/* On rank 0, after all ranks have finished. */
static void summarise(const bench_point *at, size_t iters, bench_figures *f)
{
    const bench_plan *p = at->p;
    double *first = row(p, 0);

    for (size_t i = 0; i <= iters; i++)
        for (int r = 1; r < p->ranks; r++)
            if (row(p, r)[i] > first[i])
                first[i] = row(p, r)[i];
    for (size_t i = 0; i < iters; i++)
        first[i] = (first[i + 1] - first[i]) / bench_ops(at);
    f->mean = 0;
    for (size_t i = 0; i < iters; i++)
        f->mean += first[i] / (double)iters;
    qsort(first, iters, sizeof *first, by_size);
    f->iters = iters;
    f->p50 = percentile(first, iters, 0.5);
    f->p10 = percentile(first, iters, 0.1);
    f->p99 = percentile(first, iters, 0.99);
    f->max = first[iters - 1];
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
            status = bench_gpu_operate(at);
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
    if (at->p->joined)
        status = oar_barrier(at->group, NULL, NULL);
    if (!bench_takes_part(at))
        return status;
    end[0] = now_us();
    for (size_t i = 0; i < iters && status == OAR_OK; i++) {
        status = bench_gpu_operate(at);
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
        (status = oar_barrier(at->group, NULL, NULL)) != OAR_OK ||
        (at->p->joined && (status = gather_rows(at)) != OAR_OK))
        return status;
    f->iters = iters;
    if (at->rank == 0)
        summarise(at, iters, f);
    return oar_all_reduce(at->group, oar_span_of(&f->wrong, 1, OAR_I64),
                          OAR_MAX, NULL, NULL);
}

/* ---- one rank ------------------------------------------------------------ */

static oar_status take_one(const bench_plan *p, size_t bytes, void **memory)
{
    if (!p->private_memory)
        return oar_shared_alloc(bytes, memory);
    bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    *memory = aligned_alloc(HUGE_PAGE, bytes);
    if (*memory == NULL)
        return OAR_E_NOMEM;
    madvise(*memory, bytes, MADV_HUGEPAGE);
    memset(*memory, 0, bytes);
    return OAR_OK;
}

static oar_status take_memory(bench_point *at, size_t bytes)
{
    oar_status status;

    if (at->p->gpu)
        return bench_gpu_open(at, bytes);
    status = take_one(at->p, bytes, &at->first);
    return status == OAR_OK ? take_one(at->p, bytes, &at->second) : status;
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
        at.row = bench_gpu_row(&at);
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

    if (!p->bind || p->gpu || sched_getaffinity(0, sizeof all, &all) != 0 ||
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

static void print_result(const bench_plan *p, long wrong)
{
    if (!p->check)
        printf("# Results were not checked\n");
    else
        printf("# Out of bounds values : %ld %s\n", wrong,
               wrong == 0 ? "OK" : "FAILED");
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
    status = take_memory(&at, bytes);
    if (status == OAR_OK)
        status = bench_sizes(at, &wrong);
    if (p->gpu && status == OAR_OK)
        bench_gpu_close(&at);
    if (status != OAR_OK)
        return tool_failed("bench"), status;
    if (at.rank == 0 && p->format == BENCH_NCCL)
        print_result(p, wrong);
    return wrong == 0 ? OAR_OK : OAR_E_DATA;
}

/* ---- all of them --------------------------------------------------------- */

/* Runs as one rank of a job that another launcher started. */
static oar_status join(bench_plan *p, const oar_group_opts *opts)
{
    oar_group *group = NULL;
    oar_status status = oar_group_from_env(opts, &group);

    if (status != OAR_OK)
        return status;
    p->joined = 1;
    p->bind = 0; /* the launcher decides where they run */
    p->ranks = oar_group_size(group);
    if (p->ranks <= BENCH_MAX_RANKS)
        status = bench_rank(group, p);
    else {
        fprintf(stderr, "oarsong bench: at most %d ranks\n", BENCH_MAX_RANKS);
        status = OAR_E_WORLD;
    }
    oar_group_destroy(group);
    return status;
}

static oar_status start(bench_plan *p, const oar_group_opts *opts)
{
    oar_launch_opts l = oar_launch_opts_init();
    oar_launch_result result = oar_launch_result_init();

    l.hosts = p->hosts != NULL ? p->host : NULL;
    return oar_launch_fn(p->ranks, bench_rank, p, opts, &l, &result);
}

static int run(bench_plan *p)
{
    size_t bytes = sizeof(double) * BENCH_MAX_RANKS * (BENCH_MAX_ITERS + 1);
    oar_group_opts opts = oar_group_opts_init();
    oar_status status;

    p->end = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p->end == MAP_FAILED)
        return TOOL_FAILED;
    opts.backend = p->backend;
    opts.algorithm = p->algo;
    status = getenv("OARSONG_RANK") != NULL || tool_under_mpirun(p->backend)
                 ? join(p, &opts)
                 : start(p, &opts);
    return status == OAR_OK ? TOOL_OK : tool_failed("bench");
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

    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        return bench_usage();
    if (argc > 1 && strcmp(argv[1], "rpc") == 0)
        return bench_rpc(argc - 1, argv + 1);
    if (!bench_read_options(&p, argc, argv))
        return TOOL_USAGE;
    if (p.gpu && p.backend == NULL)
        p.backend = "hybrid";
    if (tool_wants_mpirun(p.backend))
        return tool_mpirun(p.backend, p.ranks, argv);
    return run(&p);
}
