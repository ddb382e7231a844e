/* SPDX-License-Identifier: Apache-2.0 */
/* direct: MPI's own calls, timed as `oarsong bench --format csv` times ours, to
 * see what our layer costs:
 *     mpirun -n 2 direct_mpi_openmpi [blocking|test] [KIND] [BYTES]
 * Each collective is the non-blocking call and MPI_Wait; or the blocking call;
 * or the non-blocking call and MPI_Test until it is done, which is the least
 * that anybody can do who must be able to stop waiting.
 * KIND is allreduce (in place, f32 sum), broadcast, allgather or alltoall. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST_ITERS = 20000, LEAST_ITERS = 10, WARM_UP = 20, LARGEST = 16 << 20 };
static const double budget_us = 200e3;
static const size_t sizes[] = { 8,       64,      1 << 10, 8 << 10, 64 << 10,
                                1 << 18, 1 << 20, 4 << 20, LARGEST };

typedef struct point {
    const char *kind;
    int blocking, rank, ranks;
    size_t bytes;
    unsigned char *in, *out;
} point;

static int tests; /* instead of waiting */

static void wait_for(MPI_Request *request)
{
    int over = 0;

    while (tests && !over)
        MPI_Test(request, &over, MPI_STATUS_IGNORE);
    if (!tests)
        MPI_Wait(request, MPI_STATUS_IGNORE);
}

static void reduce(const point *p)
{
    int n = (int)(p->bytes / sizeof(float));
    MPI_Request r;

    if (p->blocking) {
        MPI_Allreduce(MPI_IN_PLACE, p->out, n, MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
        return;
    }
    MPI_Iallreduce(MPI_IN_PLACE, p->out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD,
                   &r);
    wait_for(&r);
}

static void broadcast(const point *p)
{
    int n = (int)(p->bytes / sizeof(float));
    MPI_Request r;

    for (int root = 0; root < p->ranks; root++) {
        if (p->blocking) {
            MPI_Bcast(p->out, n, MPI_FLOAT, root, MPI_COMM_WORLD);
            continue;
        }
        MPI_Ibcast(p->out, n, MPI_FLOAT, root, MPI_COMM_WORLD, &r);
        wait_for(&r);
    }
}

static void gather_all(const point *p)
{
    int n = (int)(p->bytes / sizeof(float)) / p->ranks;
    MPI_Request r;

    if (p->blocking) {
        MPI_Allgather(p->in, n, MPI_FLOAT, p->out, n, MPI_FLOAT,
                      MPI_COMM_WORLD);
        return;
    }
    MPI_Iallgather(p->in, n, MPI_FLOAT, p->out, n, MPI_FLOAT, MPI_COMM_WORLD,
                   &r);
    wait_for(&r);
}

static void all_to_all(const point *p)
{
    int n = (int)(p->bytes / sizeof(float)) / p->ranks;
    MPI_Request r;

    if (p->blocking) {
        MPI_Alltoall(p->in, n, MPI_FLOAT, p->out, n, MPI_FLOAT, MPI_COMM_WORLD);
        return;
    }
    MPI_Ialltoall(p->in, n, MPI_FLOAT, p->out, n, MPI_FLOAT, MPI_COMM_WORLD,
                  &r);
    wait_for(&r);
}

static void operate(const point *p)
{
    if (strcmp(p->kind, "broadcast") == 0)
        broadcast(p);
    else if (strcmp(p->kind, "allgather") == 0)
        gather_all(p);
    else if (strcmp(p->kind, "alltoall") == 0)
        all_to_all(p);
    else
        reduce(p);
}

/* ---- timing, as tools/bench/bench.c has it ------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int choose_iters(const point *p)
{
    double best = 1e30;
    int wanted;

    for (int turn = 0; turn < 2; turn++) {
        double start = MPI_Wtime(), took;
        for (int i = 0; i < WARM_UP / 2 + 1; i++)
            operate(p);
        took = (MPI_Wtime() - start) * 1e6 / (WARM_UP / 2 + 1);
        best = took < best ? took : best;
    }
    wanted = (int)(budget_us / (best > 0.05 ? best : 0.05));
    wanted = wanted < LEAST_ITERS ? LEAST_ITERS : wanted;
    wanted = wanted > MOST_ITERS ? MOST_ITERS : wanted;
    MPI_Allreduce(MPI_IN_PLACE, &wanted, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return wanted;
}

/* An iteration has ended when it has on all ranks, counted from a barrier. */
static void measure(const point *p)
{
    static double end[MOST_ITERS + 1], all[MOST_ITERS + 1];
    int iters = choose_iters(p), each = strcmp(p->kind, "broadcast") == 0;
    double start;

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    end[0] = 0;
    for (int i = 0; i < iters; i++) {
        operate(p);
        end[i + 1] = (MPI_Wtime() - start) * 1e6;
    }
    MPI_Reduce(end, all, iters + 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (p->rank != 0)
        return;
    for (int i = 0; i < iters; i++)
        all[i] = (all[i + 1] - all[i]) / (each ? p->ranks : 1);
    qsort(all, (size_t)iters, sizeof *all, by_size);
    printf("direct%s,%s,f32,%d,%zu,%d,%.3f,%.3f\n",
           p->blocking ? "-blocking"
           : tests     ? "-test"
                       : "",
           p->kind, p->ranks, p->bytes, iters,
           all[(size_t)(0.5 * (iters - 1) + 0.5)],
           all[(size_t)(0.1 * (iters - 1) + 0.5)]);
    fflush(stdout);
}

/* As `oarsong bench --memory private` does. */
static void *take_memory(void)
{
    void *memory = aligned_alloc(1 << 21, LARGEST);

    if (memory == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    madvise(memory, LARGEST, MADV_HUGEPAGE);
    memset(memory, 0, LARGEST);
    return memory;
}

int main(int argc, char **argv)
{
    point p = { .kind = "allreduce" };
    size_t only = 0;
    int level;

    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "blocking") == 0)
            p.blocking = 1;
        else if (strcmp(argv[i], "test") == 0)
            tests = 1;
        else if (atol(argv[i]) > 0)
            only = (size_t)atol(argv[i]);
        else
            p.kind = argv[i];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.ranks);
    p.in = take_memory();
    p.out = take_memory();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        p.bytes = sizes[i];
        if (only == 0 || only == p.bytes)
            measure(&p);
    }
    free(p.in);
    free(p.out);
    MPI_Finalize();
    return 0;
}
