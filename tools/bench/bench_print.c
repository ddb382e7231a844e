/* SPDX-License-Identifier: Apache-2.0 */
/* bench_print: results as nccl-tests, OSU, csv or json print them. */
#include "bench.h"

#include <stdio.h>

double bench_bus_factor(const bench_plan *p)
{
    double n = p->ranks;

    switch (p->kind) {
    case BENCH_ALL_REDUCE: return 2 * (n - 1) / n;
    case BENCH_ALL_GATHER:
    case BENCH_REDUCE_SCATTER:
    case BENCH_ALL_TO_ALL: return (n - 1) / n;
    default: return 1;
    }
}

static void print_nccl_header(const bench_plan *p)
{
    printf("# oarsong bench %s: %d ranks, backend %s, %s memory\n"
           "#%61s%-38s %s\n",
           bench_kind_name(p->kind), p->ranks,
           p->backend != NULL ? p->backend : "native",
           p->gpu              ? "cuda"
           : p->private_memory ? "private"
                               : "shared",
           "", "out of place", "in place");
    printf("#%11s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  "
           "%6s\n",
           "size", "count", "type", "redop", "root", "time", "algbw", "busbw",
           "#wrong", "time", "algbw", "busbw", "#wrong");
    printf("#%11s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s\n",
           "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "",
           "(us)", "(GB/s)", "(GB/s)");
}

void bench_print_header(const bench_plan *p)
{
    if (p->format == BENCH_OSU)
        printf("# Oarsong %s, %d ranks\n# Size       p50 Latency(us)\n",
               bench_kind_name(p->kind), p->ranks);
    if (p->format == BENCH_NCCL)
        print_nccl_header(p);
}

static double speed_of(size_t bytes, const bench_figures *f)
{
    return f->p50 > 0 ? (double)bytes / f->p50 * 1e-3 : 0;
}

static void print_half(const bench_point *at, const bench_figures *f)
{
    double speed = speed_of(at->bytes, f);

    if (f->iters == 0) {
        printf("  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    printf("  %7.2f  %6.2f  %6.2f", f->p50, speed,
           speed * bench_bus_factor(at->p));
    if (f->wrong < 0)
        printf("  %6s", "N/A");
    else
        printf("  %6ld", f->wrong);
}

static void print_nccl(const bench_point *at, const bench_figures f[2])
{
    const bench_plan *p = at->p;

    printf("%12zu  %12zu  %8s  %6s  %6s", at->bytes, at->count,
           oar_dtype_name(p->dtype),
           bench_kind_folds(p->kind) ? oar_reduce_op_name(p->op.kind) : "none",
           bench_kind_rooted(p->kind) ? "all" : "-1");
    print_half(at, &f[0]);
    print_half(at, &f[1]);
    printf("\n");
}

static void print_json(const bench_point *at, const bench_figures *f)
{
    const bench_plan *p = at->p;
    double speed = speed_of(at->bytes, f);

    printf("{\"collective\":\"%s\",\"dtype\":\"%s\",\"ranks\":%d,\"bytes\":"
           "%zu,\"iters\":%zu,\"p50_us\":%.3f,\"p10_us\":%.3f,\"p99_us\":%.3f,"
           "\"max_us\":%.3f,\"mean_us\":%.3f,\"algbw_GBps\":%.4f,\"busbw_"
           "GBps\":%.4f,\"wrong\":%ld}\n",
           bench_kind_name(p->kind), oar_dtype_name(p->dtype), p->ranks,
           at->bytes, f->iters, f->p50, f->p10, f->p99, f->max, f->mean, speed,
           speed * bench_bus_factor(p), f->wrong);
}

static void print_csv(const bench_point *at, const bench_figures *f)
{
    const bench_plan *p = at->p;
    double speed = speed_of(at->bytes, f);

    printf("%s,%s,%s,%d,%zu,%zu,%.3f,%.3f,%.4f,%.4f\n", p->peer,
           bench_kind_csv(p->kind), oar_dtype_name(p->dtype), p->ranks,
           at->bytes, f->iters, f->p50, f->p10, speed,
           speed * bench_bus_factor(p));
}

/* One column of figures: the one that was measured. */
void bench_print(const bench_point *at, const bench_figures f[2])
{
    const bench_figures *one = f[1].iters != 0 ? &f[1] : &f[0];

    switch (at->p->format) {
    case BENCH_NCCL: print_nccl(at, f); break;
    case BENCH_OSU: printf("%-12zu %14.2f\n", at->bytes, one->p50); break;
    case BENCH_CSV: print_csv(at, one); break;
    case BENCH_JSON: print_json(at, one); break;
    }
    fflush(stdout);
}
