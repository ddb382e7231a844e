/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_ipc: all_reduce between ranks that share a GPU, beside what the GPU's
 * memory can do, measured in the same run.
 *
 *     gpu_ipc [--ranks N,...] [--mib M] [--share PERCENT]
 *
 * The bound: each rank's buffer is read once and written once, at the rate at
 * which the GPU copies memory (its driver's copy or our kernel's, whichever is
 * faster; bytes read and written both count). Prints for each number of ranks
 * the time of a small all_reduce (from the call until the result is there, and
 * one behind the other on a stream), and of a large one, with its share of the
 * bound. Exit 1 if that is below --share percent.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <oarsong/oarsong.h>

enum { ROUNDS = 30, SMALL_ROUNDS = 200, MAX_SIZES = 8 };

typedef struct settings {
    int ranks[MAX_SIZES], sizes;
    size_t bytes;
    double share;
    double *copy_us; /* the faster copy of so many bytes; all ranks share it */
} settings;

typedef struct bench {
    const settings *s;
    oar_group *group;
    oar_device gpu;
    int rank, ranks;
    void *stream, *from, *to; /* events */
    void *buffer, *other;
} bench;

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *time, int n)
{
    qsort(time, (size_t)n, sizeof *time, compare);
    return time[n / 2];
}

/* ---- one operation on the stream ----------------------------------------- */

typedef oar_status (*act)(bench *b, size_t bytes);

static oar_span span(const bench *b, void *data, size_t bytes)
{
    oar_span s = oar_span_of(data, bytes / 4, OAR_F32);

    s.device = b->gpu;
    return s;
}

static oar_status reduce(bench *b, size_t bytes)
{
    oar_call_opts o = oar_call_opts_init();

    o.stream = b->stream;
    return oar_all_reduce(b->group, span(b, b->buffer, bytes), OAR_SUM, &o,
                          NULL);
}

static oar_status copy_by_driver(bench *b, size_t bytes)
{
    return oar_device_copy(b->other, b->gpu, b->buffer, b->gpu, bytes,
                           b->stream);
}

/* In a group of one that is a copy, by our kernel. */
static oar_status copy_by_kernel(bench *b, size_t bytes)
{
    oar_call_opts o = oar_call_opts_init();

    o.stream = b->stream;
    return oar_all_gather(b->group, span(b, b->buffer, bytes),
                          span(b, b->other, bytes), &o, NULL);
}

/* All ranks are here when the clock starts. */
static oar_status align(bench *b)
{
    oar_status status = reduce(b, 4);

    if (status == OAR_OK)
        status = oar_stream_synchronize(b->gpu, b->stream);
    return status == OAR_OK ? oar_barrier(b->group, NULL, NULL) : status;
}

static oar_status time_one(bench *b, act what, size_t bytes, double *us)
{
    oar_status status = align(b);
    double ms = 0;

    if (status == OAR_OK)
        status = reduce(b, 4);
    if (status == OAR_OK)
        status = oar_event_record(b->gpu, b->from, b->stream);
    if (status == OAR_OK)
        status = what(b, bytes);
    if (status == OAR_OK)
        status = oar_event_record(b->gpu, b->to, b->stream);
    if (status == OAR_OK)
        status = oar_event_synchronize(b->gpu, b->to);
    if (status == OAR_OK)
        status = oar_event_elapsed(b->gpu, b->from, b->to, &ms);
    *us = ms * 1e3;
    return status;
}

static oar_status time_many(bench *b, act what, size_t bytes, double *least,
                            double *middle)
{
    double us[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        oar_status status = time_one(b, what, bytes, &us[i]);

        if (status != OAR_OK)
            return status;
    }
    *middle = median(us, ROUNDS);
    *least = us[0];
    return OAR_OK;
}

/* Several behind each other, by the events around all of them. */
static oar_status time_row(bench *b, act what, size_t bytes, int many,
                           double *us)
{
    oar_status status = align(b);
    double ms = 0;

    if (status == OAR_OK)
        status = reduce(b, 4);
    if (status == OAR_OK)
        status = oar_event_record(b->gpu, b->from, b->stream);
    for (int i = 0; i < many && status == OAR_OK; i++)
        status = what(b, bytes);
    if (status == OAR_OK)
        status = oar_event_record(b->gpu, b->to, b->stream);
    if (status == OAR_OK)
        status = oar_event_synchronize(b->gpu, b->to);
    if (status == OAR_OK)
        status = oar_event_elapsed(b->gpu, b->from, b->to, &ms);
    *us = ms * 1e3 / many;
    return status;
}

/* ---- tables -------------------------------------------------------------- */

static oar_status time_small(bench *b, size_t bytes)
{
    double us[SMALL_ROUNDS], row = 0;
    oar_status status = OAR_OK;

    for (int i = 0; i < SMALL_ROUNDS && status == OAR_OK; i++) {
        double start = now_us();

        status = reduce(b, bytes);
        if (status == OAR_OK)
            status = oar_stream_synchronize(b->gpu, b->stream);
        us[i] = now_us() - start;
    }
    if (status == OAR_OK)
        status = time_row(b, reduce, bytes, SMALL_ROUNDS, &row);
    if (status == OAR_OK && b->rank == 0)
        printf("%10zu B %12.1f us %12.1f us\n", bytes, median(us, SMALL_ROUNDS),
               row);
    return status;
}

static oar_status small_table(bench *b)
{
    if (b->rank == 0)
        printf("\nall_reduce of f32, %d ranks on one GPU\n"
               "%12s %15s %15s\n",
               b->ranks, "", "with the wait", "in a row");
    for (size_t bytes = 8; bytes <= 64 << 10; bytes *= 2) {
        oar_status status = time_small(b, bytes);

        if (status != OAR_OK)
            return status;
    }
    return OAR_OK;
}

static oar_status large_line(bench *b)
{
    size_t bytes = b->s->bytes;
    double least, middle, row, bound, share;
    oar_status status = time_many(b, reduce, bytes, &least, &middle);

    if (status == OAR_OK)
        status = time_row(b, reduce, bytes, 10, &row);
    if (status != OAR_OK || b->rank != 0)
        return status;
    bound = *b->s->copy_us * b->ranks;
    share = 100 * bound / middle;
    printf("%zu MiB in place, %d ranks: %.1f us (best %.1f, in a row %.1f); "
           "bound %.1f us: %.1f %% (best %.1f, in a row %.1f)\n",
           bytes >> 20, b->ranks, middle, least, row, bound, share,
           100 * bound / least, 100 * bound / row);
    fflush(stdout);
    if (share >= b->s->share)
        return OAR_OK;
    printf("below %.0f %%\n", b->s->share);
    return OAR_E_STATE;
}

/* ---- ranks --------------------------------------------------------------- */

static oar_status begin(bench *b, oar_group *group, const settings *s)
{
    oar_status status;

    b->s = s;
    b->group = group;
    b->rank = oar_group_rank(group);
    b->ranks = oar_group_size(group);
    b->gpu = oar_device_of(OAR_CUDA, 0);
    status = oar_stream_create(b->gpu, 0, &b->stream);
    if (status == OAR_OK)
        status = oar_event_create(b->gpu, 1, &b->from);
    if (status == OAR_OK)
        status = oar_event_create(b->gpu, 1, &b->to);
    if (status == OAR_OK)
        status = oar_device_alloc(b->gpu, s->bytes, &b->buffer);
    if (status == OAR_OK)
        status = oar_device_fill(span(b, b->buffer, s->bytes), 1, b->stream);
    return status;
}

static oar_status run_rank(oar_group *group, void *arg)
{
    bench b = { 0 };
    oar_status status = begin(&b, group, arg);

    if (status == OAR_OK)
        status = small_table(&b);
    if (status == OAR_OK)
        status = large_line(&b);
    return status;
}

static oar_status run_copies(oar_group *group, void *arg)
{
    const settings *s = arg;
    bench b = { 0 };
    oar_status status = begin(&b, group, s);
    double driver, kernel, middle;

    if (status == OAR_OK)
        status = oar_device_alloc(b.gpu, s->bytes, &b.other);
    if (status == OAR_OK)
        status = time_many(&b, copy_by_driver, s->bytes, &driver, &middle);
    if (status == OAR_OK)
        status = time_many(&b, copy_by_kernel, s->bytes, &kernel, &middle);
    if (status != OAR_OK)
        return status;
    printf("copy of %zu MiB: driver %.1f us, our kernel %.1f us: %.3f TB/s "
           "read and written\n",
           s->bytes >> 20, driver, kernel,
           2e-6 * (double)s->bytes / (driver < kernel ? driver : kernel));
    *s->copy_us = driver < kernel ? driver : kernel;
    return OAR_OK;
}

/* ---- the program --------------------------------------------------------- */

static int read_options(int argc, char **argv, settings *s)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--mib") == 0)
            s->bytes = (size_t)atoi(argv[i + 1]) << 20;
        else if (strcmp(argv[i], "--share") == 0)
            s->share = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--ranks") == 0)
            for (char *at = strtok(argv[i + 1], ",");
                 at != NULL && s->sizes < MAX_SIZES; at = strtok(NULL, ","))
                s->ranks[s->sizes++] = atoi(at);
        else
            return 0;
    }
    return argc % 2 == 1;
}

static int run_on(int ranks, oar_rank_fn fn, settings *s)
{
    oar_group_opts o = oar_group_opts_init();

    o.backend = "ipc";
    if (oar_launch_fn(ranks, fn, s, &o, NULL, NULL) == OAR_OK)
        return 0;
    fprintf(stderr, "%d ranks: %s\n", ranks, oar_last_error_text());
    return 1;
}

int main(int argc, char **argv)
{
    settings s = { .bytes = (size_t)256 << 20 };
    int failed = 0;

    if (!read_options(argc, argv, &s)) {
        fprintf(stderr,
                "gpu_ipc [--ranks N,...] [--mib M] [--share PERCENT]\n");
        return 2;
    }
    if (s.sizes == 0) {
        s.ranks[0] = 2;
        s.ranks[1] = 4;
        s.sizes = 2;
    }
    s.copy_us = mmap(NULL, sizeof *s.copy_us, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s.copy_us == MAP_FAILED || run_on(1, run_copies, &s) != 0)
        return 1;
    for (int i = 0; i < s.sizes; i++)
        failed |= run_on(s.ranks[i], run_rank, &s);
    return failed;
}
