/* SPDX-License-Identifier: Apache-2.0 */
#include "support/cards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cards_are_real(void)
{
    const char *text = getenv("OARSONG_TEST_GPU");

    return text != NULL && strcmp(text, "1") == 0;
}

void cards_begin(void)
{
    char most[8];

    snprintf(most, sizeof most, "%d", CARDS_MOST);
    setenv("STANDIN_DEVICES", most, 0);
}

int cards_count(void)
{
    const char *text = getenv("OARSONG_TEST_GPUS");
    int count = text != NULL ? atoi(text) : 1;

    if (!cards_are_real())
        return CARDS_MOST;
    return count < CARDS_MOST ? count : CARDS_MOST;
}

void cards_need(int ranks)
{
    if (ranks <= cards_count())
        return;
    printf("skipped: %d ranks need as many GPUs, and there are %d\n", ranks,
           cards_count());
    skip();
}

oar_device cards_device(int rank)
{
    return oar_device_of(OAR_CUDA, rank);
}

oar_status cards_join(const crew *c, int rank, const oar_group_opts *opts,
                      oar_group **group)
{
    oar_group_opts o = opts != NULL ? *opts : oar_group_opts_init();
    oar_device device = cards_device(rank);

    if (o.backend == NULL)
        o.backend = "nccl";
    if (o.device == NULL)
        o.device = &device;
    if (o.timeout_ms == 0)
        o.timeout_ms = CARDS_TIMEOUT_MS;
    return crew_join(c, rank, &o, group);
}

/* A failure here is not what any test is about. */
static void must(oar_status status, const char *what)
{
    if (status == OAR_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, oar_last_error_text());
    exit(99);
}

void *cards_put(int rank, const void *from, size_t bytes)
{
    oar_device device = cards_device(rank);
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

void cards_get(int rank, void *into, const void *memory, size_t bytes)
{
    if (bytes > 0)
        must(oar_device_copy(into, oar_device_of(OAR_CPU, 0), memory,
                             cards_device(rank), bytes, NULL),
             "copy from the GPU");
}

void cards_free(int rank, void *memory)
{
    oar_device_free(cards_device(rank), memory, NULL);
}

oar_span cards_span(int rank, void *memory, size_t count, oar_dtype dtype)
{
    oar_span span = oar_span_of(memory, count, dtype);

    span.device = cards_device(rank);
    return span;
}
