/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_floor: what one GPU's memory and its way to the host can do, which is the
 * bound of what `bench/gpu` measures.
 *
 *     gpu_floor [MIB [PROCESSES [sums]]]
 *
 * Prints four lines, NAME GB/s: device_copy (bytes read and bytes written both
 * count), host_down, host_up, and host_both (the bytes of one direction while
 * both go at once). Each is the best of some rounds. With PROCESSES, only
 * host_both: of all of them together, for half a second, a few copies of MIB
 * under way in each. With sums each adds up beside them as much as its share of
 * an all_reduce of PROCESSES ranks is.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <oarsong/oarsong.h>

enum {
    ROUNDS = 12,
    PIECES = 4, /* copies in a round */
    WINDOW_US = 500000,
    BLOCK = 2048 /* elements that stay in the first cache */
};

typedef struct floor_bench {
    oar_device gpu, host;
    size_t bytes;
    void *stream, *other;
    void *first, *second; /* on the GPU */
    void *down, *up;      /* pinned */
} floor_bench;

typedef oar_status (*act)(const floor_bench *b);

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static oar_status copy_there(const floor_bench *b)
{
    return oar_device_copy(b->second, b->gpu, b->first, b->gpu, b->bytes,
                           b->stream);
}

static oar_status copy_down(const floor_bench *b)
{
    return oar_device_copy(b->down, b->host, b->first, b->gpu, b->bytes,
                           b->stream);
}

static oar_status copy_up(const floor_bench *b)
{
    return oar_device_copy(b->second, b->gpu, b->up, b->host, b->bytes,
                           b->other);
}

static oar_status copy_both(const floor_bench *b)
{
    oar_status status = copy_down(b);

    return status == OAR_OK ? copy_up(b) : status;
}

static oar_status wait_all(const floor_bench *b)
{
    oar_status status = oar_stream_synchronize(b->gpu, b->stream);

    return status == OAR_OK ? oar_stream_synchronize(b->gpu, b->other) : status;
}

/* times: how often a byte counts. */
static oar_status measure(const floor_bench *b, const char *name, act what,
                          double times)
{
    double best = 0;

    for (int round = 0; round < ROUNDS; round++) {
        oar_status status = wait_all(b);
        double start = now_us(), took;

        for (int i = 0; i < PIECES && status == OAR_OK; i++)
            status = what(b);
        if (status == OAR_OK)
            status = wait_all(b);
        if (status != OAR_OK)
            return status;
        took = (now_us() - start) / PIECES;
        if (round == 0 || took < best)
            best = took;
    }
    printf("%-12s %10.2f\n", name, times * (double)b->bytes / best * 1e-3);
    fflush(stdout);
    return OAR_OK;
}

static oar_status prepare(floor_bench *b)
{
    oar_status status;

    if ((status = oar_stream_create(b->gpu, 0, &b->stream)) != OAR_OK ||
        (status = oar_stream_create(b->gpu, 0, &b->other)) != OAR_OK ||
        (status = oar_device_alloc(b->gpu, b->bytes, &b->first)) != OAR_OK ||
        (status = oar_device_alloc(b->gpu, b->bytes, &b->second)) != OAR_OK ||
        (status = oar_pinned_alloc(b->bytes, &b->down)) != OAR_OK ||
        (status = oar_pinned_alloc(b->bytes, &b->up)) != OAR_OK)
        return status;
    return OAR_OK;
}

/* ---- several processes --------------------------------------------------- */

typedef struct together {
    _Atomic int here, failed;
    _Atomic long copies;
    int sums;
} together;

/* As many sources as ranks, a share of a piece each. */
static void add_up(const floor_bench *b, int ranks)
{
    size_t share = b->bytes / sizeof(float) / (size_t)ranks;
    const float *from = b->down;
    float *to = b->up;

    for (size_t at = 0; at < share; at += BLOCK) {
        size_t end = share - at < BLOCK ? share : at + BLOCK;

        for (size_t i = at; i < end; i++)
            to[i] = from[i];
        for (int r = 1; r < ranks; r++)
            for (size_t i = at; i < end; i++)
                to[i] += from[(size_t)r * share + i];
    }
}

static oar_status copy_for_a_while(const floor_bench *b, together *t, int all)
{
    oar_status status = OAR_OK;
    double start;

    atomic_fetch_add(&t->here, 1);
    while (atomic_load(&t->here) < all && !atomic_load(&t->failed))
        ;
    for (start = now_us(); now_us() - start < WINDOW_US;) {
        for (int i = 0; i < PIECES && status == OAR_OK; i++)
            status = copy_both(b);
        for (int i = 0; i < PIECES && t->sums; i++)
            add_up(b, all);
        if (status == OAR_OK)
            status = wait_all(b);
        if (status != OAR_OK)
            return status;
        atomic_fetch_add(&t->copies, PIECES);
    }
    return OAR_OK;
}

static int run_one(floor_bench *b, together *t, int all)
{
    b->gpu = oar_device_current();
    if (prepare(b) == OAR_OK && copy_for_a_while(b, t, all) == OAR_OK)
        return 0;
    atomic_store(&t->failed, 1);
    fprintf(stderr, "gpu_floor: %s\n", oar_last_error_text());
    return 1;
}

static int run_together(floor_bench *b, int all, int sums)
{
    together *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (t == MAP_FAILED)
        return 1;
    t->sums = sums;
    for (int i = 0; i < all; i++)
        if (fork() == 0)
            _exit(run_one(b, t, all));
    while (wait(NULL) > 0)
        ;
    printf("%-12s %10.2f\n", "host_both",
           (double)atomic_load(&t->copies) * (double)b->bytes / WINDOW_US *
               1e-3);
    return atomic_load(&t->failed);
}

/* ---- one ----------------------------------------------------------------- */

static int run_alone(floor_bench *b)
{
    b->gpu = oar_device_current();
    if (prepare(b) == OAR_OK &&
        measure(b, "device_copy", copy_there, 2) == OAR_OK &&
        measure(b, "host_down", copy_down, 1) == OAR_OK &&
        measure(b, "host_up", copy_up, 1) == OAR_OK &&
        measure(b, "host_both", copy_both, 1) == OAR_OK)
        return 0;
    fprintf(stderr, "gpu_floor: %s\n", oar_last_error_text());
    return 1;
}

int main(int argc, char **argv)
{
    long mib = argc > 1 ? strtol(argv[1], NULL, 10) : 256;
    long processes = argc > 2 ? strtol(argv[2], NULL, 10) : 0;
    floor_bench b = { .host = oar_device_of(OAR_CPU, 0) };

    if (argc > 4 || (argc == 4 && strcmp(argv[3], "sums") != 0) || mib < 1 ||
        mib > 1 << 16 || processes < 0 || processes > 64) {
        fprintf(stderr, "gpu_floor [MIB [PROCESSES [sums]]]\n");
        return 2;
    }
    b.bytes = (size_t)mib << 20;
    return processes > 0 ? run_together(&b, (int)processes, argc == 4)
                         : run_alone(&b);
}
