/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h: the parts of `oarsong bench`. */
#ifndef OARSONG_BENCH_H
#define OARSONG_BENCH_H

#include <stdio.h>

#include <oarsong/oarsong.h>

enum { BENCH_MAX_RANKS = 64, BENCH_MAX_ITERS = 20000, BENCH_MAX_SIZES = 64 };

/* name, our spelling, that of other programs' csv. p2p is a ping-pong, one way;
 * stream is many messages under way from rank 0 to rank 1. */
#define BENCH_KIND_LIST(X)                                \
    X(ALL_REDUCE, "all_reduce", "allreduce")              \
    X(BROADCAST, "broadcast", "broadcast")                \
    X(REDUCE, "reduce", "reduce")                         \
    X(ALL_GATHER, "all_gather", "allgather")              \
    X(REDUCE_SCATTER, "reduce_scatter", "reduce_scatter") \
    X(ALL_TO_ALL, "all_to_all", "alltoall")               \
    X(GATHER, "gather", "gather")                         \
    X(SCATTER, "scatter", "scatter")                      \
    X(BARRIER, "barrier", "barrier")                      \
    X(P2P, "p2p", "p2p")                                  \
    X(STREAM, "stream", "stream")

typedef enum bench_kind {
#define X(name, text, csv) BENCH_##name,
    BENCH_KIND_LIST(X)
#undef X
        BENCH_KINDS
} bench_kind;

typedef enum bench_format {
    BENCH_NCCL,
    BENCH_OSU,
    BENCH_CSV,
    BENCH_JSON
} bench_format;

typedef struct bench_plan {
    bench_kind kind;
    int ranks;
    const char *peer, *backend, *algo;
    const char *hosts; /* NULL: all ranks on one */
    int host[BENCH_MAX_RANKS];
    int joined; /* one rank of a job that another launcher started */
    size_t min, max, factor, iters, warm_up, budget_ms;
    size_t sizes, size[BENCH_MAX_SIZES]; /* 0 of them: min, max and factor */
    oar_dtype dtype;
    oar_reduce_op op;
    int private_memory, check, bind;
    int gpu;    /* buffers on a GPU */
    size_t row; /* operations on a stream before it is waited for; 0: by size */
    bench_format format;
    double *end; /* rows of BENCH_MAX_ITERS + 1 times, shared by all ranks */
} bench_plan;

/* One size, on one rank. */
typedef struct bench_point {
    const bench_plan *p;
    oar_group *group;
    int rank, in_place;
    size_t bytes; /* of the larger buffer */
    size_t count; /* elements of the larger buffer, or of one part of it */
    void *first, *second;
    oar_span in, out;
    oar_device device; /* of the buffers */
    /* on a GPU: */
    void *stream, *mirror; /* host memory, as large as a buffer */
    size_t row;
} bench_point;

typedef struct bench_figures {
    size_t iters;                    /* 0: not measured */
    double p50, p10, p99, max, mean; /* us */
    long wrong;                      /* -1: not checked */
} bench_figures;

/* ---- bench_op.c: what is timed ------------------------------------------- */

const char *bench_kind_name(bench_kind kind);
const char *bench_kind_csv(bench_kind kind);
int bench_kind_folds(bench_kind kind);
int bench_kind_parts(bench_kind kind);
int bench_kind_rooted(bench_kind kind);
int bench_kind_in_place(bench_kind kind);

/* How many operations an iteration is: one for each root, or two ways; on a GPU
 * a row of them. */
double bench_ops(const bench_point *at);

/* Whether this rank takes part. */
int bench_takes_part(const bench_point *at);

/* Lays the spans over the two buffers for this many bytes, rounded down to
 * whole parts, at least one element each. */
void bench_lay_out(bench_point *at, size_t bytes);

/* One iteration. */
oar_status bench_operate(const bench_point *at);

/* ---- bench_gpu.c: buffers on a GPU, and its stream ----------------------- */

/* Both buffers, a stream that calls without one mean, and the mirror. Called in
 * the ranks: a process that forks them must leave the driver alone. */
oar_status bench_gpu_open(bench_point *at, size_t bytes);
void bench_gpu_close(bench_point *at);
/* How many operations before the stream is waited for. */
size_t bench_gpu_row(const bench_point *at);
/* A row of operations, done when they have run. */
oar_status bench_gpu_operate(const bench_point *at);
/* Between a span on the GPU and the mirror. */
oar_status bench_gpu_put(const bench_point *at, oar_span to);
oar_status bench_gpu_get(const bench_point *at, oar_span from);
oar_status bench_gpu_clear(const bench_point *at);

/* ---- bench_options.c ----------------------------------------------------- */

/* Says how it is called; returns the exit code. */
int bench_usage(void);
/* Whether all options were understood and make sense together. */
int bench_read_options(bench_plan *p, int argc, char **argv);

/* ---- bench_check.c ------------------------------------------------------- */

/* Runs one iteration on known numbers and counts the wrong ones here. */
oar_status bench_count_wrong(const bench_point *at, long *wrong);

/* ---- bench_print.c ------------------------------------------------------- */

void bench_print_header(const bench_plan *p);
void bench_print(const bench_point *at, const bench_figures f[2]);
double bench_bus_factor(const bench_plan *p);

/* bench_rpc.c: the kind "rpc", with options of its own. Returns the exit code.
 */
int bench_rpc(int argc, char **argv);

#endif
