/* SPDX-License-Identifier: Apache-2.0 */
#include "support/gpu_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int gpu_ranks_are_real(void)
{
    const char *text = getenv("OARSONG_TEST_GPU");

    return text != NULL && strcmp(text, "1") == 0;
}

void gpu_ranks_init(void)
{
    char most[8];

    snprintf(most, sizeof most, "%d", GPU_RANKS_MAX);
    setenv("STANDIN_DEVICES", most, 0);
}

int gpu_ranks_max(void)
{
    const char *text = getenv("OARSONG_TEST_GPUS");
    int count = text != NULL ? atoi(text) : 1;

    if (!gpu_ranks_are_real())
        return GPU_RANKS_MAX;
    return count < GPU_RANKS_MAX ? count : GPU_RANKS_MAX;
}

void gpu_ranks_need(int ranks)
{
    if (ranks <= gpu_ranks_max())
        return;
    printf("skipped: %d ranks need as many GPUs, and there are %d\n", ranks,
           gpu_ranks_max());
    skip();
}

oar_device gpu_of_rank(int rank)
{
    return oar_device_of(OAR_CUDA, rank);
}

oar_status gpu_ranks_join(const test_job *c, int rank,
                          const oar_group_opts *opts, oar_group **group)
{
    oar_group_opts o = opts != NULL ? *opts : oar_group_opts_init();
    oar_device device = gpu_of_rank(rank);

    if (o.backend == NULL)
        o.backend = "nccl";
    if (o.device == NULL)
        o.device = &device;
    if (o.timeout_ms == 0)
        o.timeout_ms = GPU_RANKS_TIMEOUT_MS;
    return test_job_join(c, rank, &o, group);
}

/* A failure here is not what any test is about. */
static void must(oar_status status, const char *what)
{
    if (status == OAR_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, oar_last_error_text());
    exit(99);
}

void *gpu_put(int rank, const void *from, size_t bytes)
{
    oar_device device = gpu_of_rank(rank);
    void *memory = NULL, *empty = NULL;

    must(oar_device_alloc(device, bytes, &memory), "alloc");
    if (from == NULL) {
        empty = malloc(bytes + 1);
        from = memset(empty, 0xee, bytes + 1);
    }
    if (bytes > 0)
        must(oar_device_copy(memory, device, from, oar_device_of(OAR_CPU, 0),
                             bytes, NULL),
             "copy to the GPU");
    free(empty);
    return memory;
}

void gpu_get(int rank, void *into, const void *memory, size_t bytes)
{
    if (bytes > 0)
        must(oar_device_copy(into, oar_device_of(OAR_CPU, 0), memory,
                             gpu_of_rank(rank), bytes, NULL),
             "copy from the GPU");
}

void gpu_free(int rank, void *memory)
{
    oar_device_free(gpu_of_rank(rank), memory, NULL);
}

oar_span gpu_span(int rank, void *memory, size_t count, oar_dtype dtype)
{
    oar_span span = oar_span_of(memory, count, dtype);

    span.device = gpu_of_rank(rank);
    return span;
}
