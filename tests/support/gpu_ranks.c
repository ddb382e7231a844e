/* SPDX-License-Identifier: Apache-2.0 */
#include "support/gpu_ranks.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/ops.h>

int gpu_ranks_are_real(void)
{
    const char *text = getenv("OARSONG_TEST_GPU");

    return text != NULL && strcmp(text, "1") == 0;
}

void gpu_ranks_init(void)
{
    char most[8];

    cmocka_set_test_filter(getenv("OARSONG_TEST_FILTER"));
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

oar_status gpu_ranks_open(const test_job *c, int rank, const char *backend,
                          oar_device *device, oar_group **group)
{
    oar_status status;

    *device = oar_device_of(OAR_CUDA, strcmp(backend, "nccl") == 0 ? rank : 0);
    status = oar_device_set_current(*device);
    if (status != OAR_OK)
        return status;
    return gpu_ranks_join(
        c, rank, OAR_OPTS(oar_group_opts, .backend = backend, .device = device),
        group);
}

int gpu_same_on_all(oar_group *group, const double *mine, int count)
{
    size_t n = (size_t)count;
    double *low = malloc(n * sizeof *low), *high = malloc(n * sizeof *high);
    int same;

    assert_true(low != NULL && high != NULL);
    memcpy(low, mine, n * sizeof *low);
    memcpy(high, mine, n * sizeof *high);
    same = oar_all_reduce(group, oar_span_of(low, n, OAR_F64), OAR_MIN, NULL,
                          NULL) == OAR_OK &&
           oar_all_reduce(group, oar_span_of(high, n, OAR_F64), OAR_MAX, NULL,
                          NULL) == OAR_OK &&
           memcmp(low, high, n * sizeof *low) == 0;
    free(low);
    free(high);
    return same;
}

long gpu_host_waits(void)
{
    void *library = gpu_ranks_are_real()
                        ? NULL
                        : dlopen(getenv("OARSONG_CUDA_LIBRARY"), RTLD_NOW);
    long (*count)(void) = NULL;

    if (library != NULL)
        *(void **)&count = dlsym(library, "standin_waits");
    return count != NULL ? count() : 0;
}

/* A failure here is not what any test is about. */
static void must(oar_status status, const char *what)
{
    if (status == OAR_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, oar_last_error_text());
    exit(99);
}

size_t gpu_used_bytes(oar_device device)
{
    oar_device_usage usage = oar_device_usage_init();
    oar_tensor *here = oar_full(NULL, OAR_F32, OAR_SHAPE(8, 8), 1);
    oar_tensor *a = oar_to(NULL, here, device);
    oar_tensor *index = oar_empty_on(NULL, device, OAR_I64, OAR_SHAPE(1));
    oar_tensor *product = oar_matmul(NULL, a, a), *row;

    must(oar_tensor_fill(index, 0), "fill");
    row = oar_index_select(NULL, product, 0, index);
    must(row != NULL ? OAR_OK : oar_last_error()->status, "index_select");
    oar_tensor_release(row);
    oar_tensor_release(product);
    oar_tensor_release(index);
    oar_tensor_release(a);
    oar_tensor_release(here);
    must(oar_stream_synchronize(device, oar_stream_current(device)), "wait");
    must(oar_device_trim(device), "trim");
    must(oar_device_memory(device, &usage), "memory");
    return usage.used_bytes;
}

oar_device gpu_of_rank(int rank)
{
    return oar_device_of(OAR_CUDA, rank);
}

/* Under a tool, or with kernels that are looked at. */
static int times_slower(void)
{
    const char *slower = getenv("OARSONG_TEST_SLOWER");

    return slower != NULL && atoi(slower) > 1 ? atoi(slower) : 1;
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
        o.timeout_ms = GPU_RANKS_TIMEOUT_MS * times_slower();
    return test_job_join(c, rank, &o, group);
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
