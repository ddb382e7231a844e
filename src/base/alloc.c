/* SPDX-License-Identifier: Apache-2.0 */
/* alloc: counts what malloc gives. The counters are relaxed atomics; a header
 * before each block holds its size, so that live bytes are exact. */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* The header just before the memory that is given out, which is aligned to a
 * cache line. */
typedef struct block {
    void *base; /* malloc's pointer */
    size_t bytes;
} block;

enum { MIN_ALIGN = 64 };

static atomic_uint_fast64_t allocations, live, live_bytes, fail_in;

int oari_alloc_allowed(size_t bytes)
{
    uint_fast64_t n = atomic_load_explicit(&fail_in, memory_order_relaxed);

    while (n != 0 && !atomic_compare_exchange_weak(&fail_in, &n, n - 1))
        ;
    if (n != 1)
        return 1;
    oari_fail(OAR_E_NOMEM, "out of memory: %zu bytes", bytes);
    return 0;
}

void *oari_alloc_aligned(size_t align, size_t bytes)
{
    unsigned char *base, *memory;
    block *head;

    if (align < MIN_ALIGN)
        align = MIN_ALIGN;
    if (!oari_alloc_allowed(bytes))
        return NULL;
    if (bytes > SIZE_MAX - 2 * align ||
        (base = malloc(bytes + align + sizeof(block))) == NULL) {
        oari_fail(OAR_E_NOMEM, "out of memory: %zu bytes", bytes);
        return NULL;
    }
    memory = base + sizeof(block);
    memory += (align - (uintptr_t)memory % align) % align;
    head = (block *)memory - 1;
    head->base = base;
    head->bytes = bytes;
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&live_bytes, bytes, memory_order_relaxed);
    return memory;
}

void *oari_alloc(size_t count, size_t size)
{
    void *memory;

    if (size != 0 && count > SIZE_MAX / size) {
        oari_fail(OAR_E_NOMEM, "out of memory: %zu times %zu bytes", count,
                  size);
        return NULL;
    }
    memory = oari_alloc_aligned(MIN_ALIGN, count * size);
    if (memory != NULL)
        memset(memory, 0, count * size);
    return memory;
}

char *oari_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = oari_alloc(bytes, 1);

    if (copy != NULL)
        memcpy(copy, text, bytes);
    return copy;
}

void oari_free(void *memory)
{
    block *head;

    if (memory == NULL)
        return;
    head = (block *)memory - 1;
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&live_bytes, head->bytes, memory_order_relaxed);
    free(head->base);
}

void oar_free(void *memory)
{
    oari_free(memory);
}

oar_status oar_memory_read(oar_memory_stats *stats)
{
    oar_memory_stats now = { .size = sizeof now,
                             .allocations = atomic_load(&allocations),
                             .live = atomic_load(&live),
                             .live_bytes = atomic_load(&live_bytes) };

    return oari_struct_give(stats, &now, sizeof now, "memory stats");
}

void oar_memory_fail_after(uint64_t n)
{
    atomic_store(&fail_in, n);
}
