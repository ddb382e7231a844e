/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_floor: what one GPU's memory and its way to the host can do, which is the
 * bound of what `bench/gpu` measures.
 *
 *     gpu_floor [MIB]
 *
 * Prints four lines, NAME GB/s: device_copy (bytes read and bytes written both
 * count), host_down, host_up, and host_both (the bytes of one direction while
 * both go at once). Each is the best of some rounds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <oarsong/oarsong.h>

enum { ROUNDS = 12, PIECES = 4 /* copies in a round */ };

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

int main(int argc, char **argv)
{
    long mib = argc > 1 ? strtol(argv[1], NULL, 10) : 256;
    floor_bench b = { .gpu = oar_device_current(),
                      .host = oar_device_of(OAR_CPU, 0) };

    if (argc > 2 || mib < 1 || mib > 1 << 16) {
        fprintf(stderr, "gpu_floor [MIB]\n");
        return 2;
    }
    b.bytes = (size_t)mib << 20;
    if (prepare(&b) == OAR_OK &&
        measure(&b, "device_copy", copy_there, 2) == OAR_OK &&
        measure(&b, "host_down", copy_down, 1) == OAR_OK &&
        measure(&b, "host_up", copy_up, 1) == OAR_OK &&
        measure(&b, "host_both", copy_both, 1) == OAR_OK)
        return 0;
    fprintf(stderr, "gpu_floor: %s\n", oar_last_error_text());
    return 1;
}
