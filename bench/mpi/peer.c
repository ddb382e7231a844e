/* SPDX-License-Identifier: Apache-2.0 */
/* peer: MPI's blocking calls, timed as `oarsong bench` times ours, with the
 * same lines of csv or json:
 *     mpirun -n 2 peer -p NAME -c allreduce,p2p -s 8,1K -t MS [-i N] [-j]
 * -c: the kinds of `oarsong bench --format csv`; -t: the budget of a size; -i:
 * so many iterations instead; -j: json. An operation with a root is done once
 * for each root. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_ITERS = 20000, LEAST_ITERS = 10, WARM_UP = 4, TAG = 7 };

typedef struct point {
    const char *peer, *kind;
    int rank, ranks, json, iters;
    int part;  /* bytes of one rank's */
    int bytes; /* of the larger buffer */
    double budget_us;
    unsigned char *in, *out;
} point;

/* ---- operations ---------------------------------------------------------- */

static void all_reduce(const point *p)
{
    MPI_Allreduce(MPI_IN_PLACE, p->out, p->bytes / 4, MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
}

static void reduce_scatter(const point *p)
{
    MPI_Reduce_scatter_block(p->in, p->out, p->part / 4, MPI_FLOAT, MPI_SUM,
                             MPI_COMM_WORLD);
}

static void all_gather(const point *p)
{
    MPI_Allgather(p->in, p->part, MPI_BYTE, p->out, p->part, MPI_BYTE,
                  MPI_COMM_WORLD);
}

static void all_to_all(const point *p)
{
    MPI_Alltoall(p->in, p->part, MPI_BYTE, p->out, p->part, MPI_BYTE,
                 MPI_COMM_WORLD);
}

static void broadcast(const point *p)
{
    for (int root = 0; root < p->ranks; root++)
        MPI_Bcast(p->out, p->bytes, MPI_BYTE, root, MPI_COMM_WORLD);
}

static void reduce(const point *p)
{
    for (int root = 0; root < p->ranks; root++)
        MPI_Reduce(p->in, p->out, p->bytes / 4, MPI_FLOAT, MPI_SUM, root,
                   MPI_COMM_WORLD);
}

static void gather(const point *p)
{
    for (int root = 0; root < p->ranks; root++)
        MPI_Gather(p->in, p->part, MPI_BYTE, p->out, p->part, MPI_BYTE, root,
                   MPI_COMM_WORLD);
}

static void scatter(const point *p)
{
    for (int root = 0; root < p->ranks; root++)
        MPI_Scatter(p->in, p->part, MPI_BYTE, p->out, p->part, MPI_BYTE, root,
                    MPI_COMM_WORLD);
}

static void barrier(const point *p)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static void ping_pong(const point *p)
{
    if (p->rank == 0)
        MPI_Send(p->in, p->bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
    if (p->rank < 2)
        MPI_Recv(p->out, p->bytes, MPI_BYTE, !p->rank, TAG, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    if (p->rank == 1)
        MPI_Send(p->out, p->bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
}

typedef struct operation {
    const char *name;
    void (*run)(const point *p);
    enum { WHOLE, PARTS, SUMS, SUMS_PARTS, NOTHING } of;
    enum { ONE, EACH_ROOT, TWO_WAYS } ops; /* in an iteration */
} operation;

static const operation operations[] = {
    { "allreduce", all_reduce, SUMS, ONE },
    { "broadcast", broadcast, WHOLE, EACH_ROOT },
    { "reduce", reduce, SUMS, EACH_ROOT },
    { "allgather", all_gather, PARTS, ONE },
    { "reduce_scatter", reduce_scatter, SUMS_PARTS, ONE },
    { "alltoall", all_to_all, PARTS, ONE },
    { "gather", gather, PARTS, EACH_ROOT },
    { "scatter", scatter, PARTS, EACH_ROOT },
    { "barrier", barrier, NOTHING, ONE },
    { "p2p", ping_pong, WHOLE, TWO_WAYS },
};

/* ---- timing, as tools/bench/bench.c has it ------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int choose_iters(const point *p, const operation *o)
{
    double best = 1e30;
    int wanted;

    for (int turn = 0; turn < 2; turn++) {
        double start = MPI_Wtime(), took;

        for (int i = 0; i < WARM_UP / 2 + 1; i++)
            o->run(p);
        took = (MPI_Wtime() - start) * 1e6 / (WARM_UP / 2 + 1);
        best = took < best ? took : best;
    }
    wanted = (int)(p->budget_us / (best > 0.05 ? best : 0.05));
    wanted = wanted < LEAST_ITERS ? LEAST_ITERS : wanted;
    wanted = p->iters > 0 ? p->iters : wanted;
    wanted = wanted > MOST_ITERS ? MOST_ITERS : wanted;
    MPI_Bcast(&wanted, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return wanted;
}

static void report(const point *p, const operation *o, double *took, int n)
{
    const char *dtype = o->of == SUMS || o->of == SUMS_PARTS ? "f32" : "u8";
    double p10, p50, p99, speed;

    qsort(took, (size_t)n, sizeof *took, by_size);
    p10 = took[(int)(0.1 * (n - 1) + 0.5)];
    p50 = took[(int)(0.5 * (n - 1) + 0.5)];
    p99 = took[(int)(0.99 * (n - 1) + 0.5)];
    speed = p50 > 0 ? p->bytes / p50 * 1e-3 : 0;
    if (p->json)
        printf("{\"collective\":\"%s\",\"ranks\":%d,\"bytes\":%d,\"iters\":%d,"
               "\"p50_us\":%.3f,\"p10_us\":%.3f,\"p99_us\":%.3f,"
               "\"max_us\":%.3f}\n",
               o->name, p->ranks, p->bytes, n, p50, p10, p99, took[n - 1]);
    else
        printf("%s,%s,%s,%d,%d,%d,%.3f,%.3f,%.4f,%.4f\n", p->peer, o->name,
               dtype, p->ranks, p->bytes, n, p50, p10, speed, speed);
    fflush(stdout);
}

/* An iteration has ended when it has on all ranks, counted from a barrier. */
static void measure(const point *p, const operation *o)
{
    static double end[MOST_ITERS + 1], all[MOST_ITERS + 1];
    double ops = o->ops == EACH_ROOT ? p->ranks : o->ops == TWO_WAYS ? 2 : 1;
    int iters = choose_iters(p, o);
    double start;

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    end[0] = 0;
    for (int i = 0; i < iters; i++) {
        o->run(p);
        end[i + 1] = (MPI_Wtime() - start) * 1e6;
    }
    MPI_Reduce(end, all, iters + 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (p->rank != 0)
        return;
    for (int i = 0; i < iters; i++)
        all[i] = (all[i + 1] - all[i]) / ops;
    report(p, o, all, iters);
}

static void measure_size(point *p, const operation *o, long bytes)
{
    long unit = o->of == SUMS         ? 4
                : o->of == SUMS_PARTS ? 4L * p->ranks
                : o->of == PARTS      ? p->ranks
                                      : 1;

    p->bytes = (int)(bytes < unit ? unit : bytes / unit * unit);
    if (o->of == NOTHING)
        p->bytes = 0;
    p->part = p->bytes / p->ranks;
    measure(p, o);
}

/* ---- options ------------------------------------------------------------- */

static int is_in(const char *list, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = list; (at = strstr(at, name)) != NULL; at++)
        if ((at == list || at[-1] == ',') &&
            (at[length] == 0 || at[length] == ','))
            return 1;
    return 0;
}

/* The next size of a list; 0: there is none. */
static long next_size(const char **list)
{
    char *end;
    long size = strtol(*list, &end, 10);

    size *= *end == 'K' ? 1L << 10 : *end == 'M' ? 1L << 20 : 1;
    end += *end == 'K' || *end == 'M';
    *list = end + (*end == ',');
    return size;
}

static void *take_memory(long bytes)
{
    void *memory = NULL;

    if (posix_memalign(&memory, 1 << 21, (size_t)bytes) != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
    memset(memory, 0, (size_t)bytes);
    return memory;
}

int main(int argc, char **argv)
{
    const char *kinds = "allreduce", *sizes = "8,1K,64K,1M,16M,64M", *at;
    point p = { .peer = "mpi", .budget_us = 200e3 };
    long largest = 0, size;
    int option;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.ranks);
    while ((option = getopt(argc, argv, "p:c:s:t:i:j")) != -1)
        switch (option) {
        case 'p': p.peer = optarg; break;
        case 'c': kinds = optarg; break;
        case 's': sizes = optarg; break;
        case 't': p.budget_us = atof(optarg) * 1e3; break;
        case 'i': p.iters = atoi(optarg); break;
        case 'j': p.json = 1; break;
        default: MPI_Abort(MPI_COMM_WORLD, 2);
        }
    for (at = sizes; (size = next_size(&at)) > 0;)
        largest = size > largest ? size : largest;
    p.in = take_memory(largest + 4L * p.ranks);
    p.out = take_memory(largest + 4L * p.ranks);
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        const operation *o = &operations[i];

        if (!is_in(kinds, o->name) || (o->ops == TWO_WAYS && p.ranks != 2))
            continue;
        for (at = sizes; (size = next_size(&at)) > 0;) {
            measure_size(&p, o, size);
            if (o->of == NOTHING)
                break;
        }
    }
    free(p.in);
    free(p.out);
    MPI_Finalize();
    return 0;
}
