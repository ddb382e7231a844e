/* SPDX-License-Identifier: Apache-2.0 */
/* standin/memory.c: device memory and pinned memory of the stand-in.
 *
 * Fresh device memory is full of 0xa5. Behind its last byte comes more of that,
 * up to the page: if it has changed when the memory is freed, something wrote
 * past the end. Freeing waits for all that the device has to do, as with the
 * real driver. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "standin/driver.h"

enum { GARBAGE = 0xa5, GARBAGE_MOST = 16 << 20 };

static block *blocks;
static uint64_t last_id;
static size_t used_bytes[STANDIN_MOST_DEVICES];

size_t standin_page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t round_up(size_t bytes)
{
    size_t page = standin_page();
    return (bytes + page - 1) / page * page;
}

/* ---- the list ------------------------------------------------------------ */

void standin_list(block *b)
{
    b->id = ++last_id;
    b->next = blocks;
    blocks = b;
}

block *standin_unlist(uint64_t address, block_kind kind)
{
    for (block **link = &blocks; *link; link = &(*link)->next) {
        block *b = *link;
        if (b->address == address && b->kind == kind) {
            *link = b->next;
            return b;
        }
    }
    return NULL;
}

static int contains(uint64_t start, size_t size, uint64_t at, size_t bytes)
{
    return at >= start && at - start <= size && bytes <= size - (at - start);
}

/* 0 bytes at the end are in it too: a pointer behind the last element. */
block *standin_find(uint64_t address, size_t bytes)
{
    for (block *b = blocks; b; b = b->next)
        if (contains(b->address, b->bytes, address, bytes))
            return b;
    return NULL;
}

block *standin_find_host(const void *memory, size_t bytes)
{
    for (block *b = blocks; b; b = b->next)
        if ((b->kind == BLOCK_PINNED || b->kind == BLOCK_REGISTERED) &&
            contains((uint64_t)(uintptr_t)b->view, b->bytes,
                     (uint64_t)(uintptr_t)memory, bytes))
            return b;
    return NULL;
}

block *standin_find_key(uint64_t key)
{
    for (block *b = blocks; b; b = b->next)
        if (b->kind <= BLOCK_PEER && b->key == key)
            return b;
    return NULL;
}

void *standin_reach(uint64_t address, size_t bytes)
{
    block *b;
    void *at = NULL;
    pthread_mutex_lock(&standin_lock);
    b = standin_find(address, bytes);
    if (b)
        at = b->view + (address - b->address);
    pthread_mutex_unlock(&standin_lock);
    return at;
}

/* Whether the driver has given this memory out, and what it is a part of. */
int standin_knows(const void *memory, size_t bytes, const char **start,
                  const char **end)
{
    int known = 0;
    pthread_mutex_lock(&standin_lock);
    for (block *b = blocks; b && !known; b = b->next) {
        known = contains((uint64_t)(uintptr_t)b->view, b->bytes,
                         (uint64_t)(uintptr_t)memory, bytes);
        if (known) {
            *start = (const char *)b->view;
            *end = *start + b->bytes;
        }
    }
    pthread_mutex_unlock(&standin_lock);
    return known;
}

/* ---- mappings ------------------------------------------------------------ */

/* Reserves addresses without access, with one more page at the end. */
static void *reserve(size_t bytes)
{
    void *at = mmap(NULL, bytes + standin_page(), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

void standin_unmap(block *b)
{
    size_t page = standin_page();
    if (b->address)
        munmap((void *)(uintptr_t)b->address, b->mapped_bytes + page);
    if (b->view)
        munmap(b->view, b->mapped_bytes + page);
    if (b->ledger)
        munmap(b->ledger, page);
    if (b->fd >= 0)
        close(b->fd);
}

static int map_ledger(block *b)
{
    void *at = mmap(NULL, standin_page(), PROT_READ | PROT_WRITE, MAP_SHARED,
                    b->fd, (off_t)b->mapped_bytes);
    if (at == MAP_FAILED)
        return OARI_CU_OUT_OF_MEMORY;
    b->ledger = at;
    return 0;
}

int standin_map(block *b)
{
    b->mapped_bytes = round_up(b->bytes);
    b->address = (uint64_t)(uintptr_t)reserve(b->mapped_bytes);
    b->view = reserve(b->mapped_bytes);
    if (!b->address || !b->view)
        return OARI_CU_OUT_OF_MEMORY;
    if (mmap(b->view, b->mapped_bytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, b->fd, 0) == MAP_FAILED)
        return OARI_CU_OUT_OF_MEMORY;
    return map_ledger(b);
}

/* ---- device memory ------------------------------------------------------- */

static size_t total_bytes(void)
{
    return (size_t)standin_setting("STANDIN_MEMORY_MB", 4096) << 20;
}

static void spoil(block *b)
{
    size_t tail = b->mapped_bytes - b->bytes;
    size_t head = b->bytes < GARBAGE_MOST ? b->bytes : GARBAGE_MOST;
    memset(b->view, GARBAGE, head);
    memset(b->view + b->bytes, GARBAGE, tail);
}

static int make_backing(block *b)
{
    b->fd = memfd_create("standin-device", MFD_CLOEXEC);
    if (b->fd < 0 ||
        ftruncate(b->fd, (off_t)(round_up(b->bytes) + standin_page())))
        return OARI_CU_OUT_OF_MEMORY;
    if (getrandom(&b->key, sizeof b->key, 0) != (ssize_t)sizeof b->key)
        return OARI_CU_OUT_OF_MEMORY;
    return standin_map(b);
}

static block *make_device(context *c, size_t bytes)
{
    block *b = calloc(1, sizeof *b);
    b->kind = BLOCK_DEVICE;
    b->bytes = bytes;
    b->owner = c;
    if (make_backing(b)) {
        standin_unmap(b);
        free(b);
        return NULL;
    }
    b->ledger->key = b->key;
    spoil(b);
    return b;
}

int cuMemAlloc_v2(oari_cu_memory *memory, size_t bytes)
{
    context *c;
    block *b = NULL;
    int bad = standin_enter(&c);
    bad = bad ? bad : standin_unsafe();
    if (bad)
        return bad;
    if (bytes == 0)
        return OARI_CU_INVALID_VALUE;
    pthread_mutex_lock(&standin_lock);
    if (bytes <= total_bytes() - used_bytes[c->device])
        b = make_device(c, bytes);
    if (b) {
        used_bytes[c->device] += bytes;
        standin_list(b);
    }
    pthread_mutex_unlock(&standin_lock);
    if (b)
        *memory = b->address;
    return b ? OARI_CU_SUCCESS : OARI_CU_OUT_OF_MEMORY;
}

static void check_end(const block *b)
{
    for (size_t i = b->bytes; i < b->mapped_bytes; i++)
        if ((unsigned char)b->view[i] != GARBAGE)
            standin_die("something wrote %zu bytes behind the end of an "
                        "allocation of %zu",
                        i - b->bytes + 1, b->bytes);
}

/* Defined in ipc.c. */
void standin_check_unshared(const block *b);

int cuMemFree_v2(oari_cu_memory memory)
{
    context *c;
    block *b;
    int bad = standin_enter(&c);
    bad = bad ? bad : standin_unsafe();
    if (bad)
        return bad;
    if (memory == 0)
        return OARI_CU_SUCCESS;
    pthread_mutex_lock(&standin_lock);
    b = standin_unlist(memory, BLOCK_DEVICE);
    if (b)
        standin_check_graphs(b);
    pthread_mutex_unlock(&standin_lock);
    if (!b)
        return OARI_CU_INVALID_VALUE;
    standin_drain(b->owner);
    check_end(b);
    standin_check_unshared(b);
    b->ledger->freed = 1;
    pthread_mutex_lock(&standin_lock);
    used_bytes[b->owner->device] -= b->bytes;
    pthread_mutex_unlock(&standin_lock);
    standin_unmap(b);
    free(b);
    return OARI_CU_SUCCESS;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    context *c;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    *total = total_bytes();
    *free_bytes = *total - used_bytes[c->device];
    pthread_mutex_unlock(&standin_lock);
    return OARI_CU_SUCCESS;
}

int cuMemGetAddressRange_v2(oari_cu_memory *base, size_t *bytes,
                            oari_cu_memory memory)
{
    context *c;
    block *b;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    b = standin_find(memory, 1);
    if (b && base)
        *base = b->address;
    if (b && bytes)
        *bytes = b->bytes;
    pthread_mutex_unlock(&standin_lock);
    return b ? OARI_CU_SUCCESS : CU_NOT_FOUND;
}

/* ---- host memory --------------------------------------------------------- */

int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    context *c;
    block *b;
    int bad = standin_enter(&c);
    bad = bad ? bad : standin_unsafe();
    if (bad)
        return bad;
    if (bytes == 0 || flags & ~7u)
        return OARI_CU_INVALID_VALUE;
    b = calloc(1, sizeof *b);
    b->kind = BLOCK_PINNED;
    b->fd = -1;
    b->bytes = bytes;
    b->mapped_bytes = round_up(bytes);
    b->owner = c;
    b->view = mmap(NULL, b->mapped_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->view == MAP_FAILED) {
        free(b);
        return OARI_CU_OUT_OF_MEMORY;
    }
    b->address = (uint64_t)(uintptr_t)b->view;
    pthread_mutex_lock(&standin_lock);
    standin_list(b);
    pthread_mutex_unlock(&standin_lock);
    *memory = b->view;
    return OARI_CU_SUCCESS;
}

int cuMemFreeHost(void *memory)
{
    context *c;
    block *b;
    int bad = standin_enter(&c);
    bad = bad ? bad : standin_unsafe();
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    b = standin_unlist((uint64_t)(uintptr_t)memory, BLOCK_PINNED);
    if (b)
        standin_check_graphs(b);
    pthread_mutex_unlock(&standin_lock);
    if (!b)
        return OARI_CU_INVALID_VALUE;
    standin_drain(b->owner);
    munmap(b->view, b->mapped_bytes);
    free(b);
    return OARI_CU_SUCCESS;
}

/* Locked. */
static int overlaps(const void *memory, size_t bytes)
{
    uintptr_t at = (uintptr_t)memory;
    for (block *b = blocks; b; b = b->next) {
        uintptr_t start = (uintptr_t)b->view;
        if (b->kind >= BLOCK_PINNED && at < start + b->bytes &&
            start < at + bytes)
            return 1;
    }
    return 0;
}

/* Its address on the device is another one, at the same place in a page. */
static block *make_registered(context *c, void *memory, size_t bytes)
{
    size_t within = (uintptr_t)memory % standin_page();
    block *b = calloc(1, sizeof *b);
    char *at;
    b->kind = BLOCK_REGISTERED;
    b->fd = -1;
    b->view = memory;
    b->bytes = bytes;
    b->mapped_bytes = round_up(bytes + within);
    b->owner = c;
    at = reserve(b->mapped_bytes);
    b->address = (uint64_t)(uintptr_t)(at + within);
    if (!at) {
        free(b);
        return NULL;
    }
    return b;
}

int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    context *c;
    int bad = standin_enter(&c);
    bad = bad ? bad : standin_unsafe();
    if (bad)
        return bad;
    if (!memory || bytes == 0 || flags & ~15u)
        return OARI_CU_INVALID_VALUE;
    pthread_mutex_lock(&standin_lock);
    if (overlaps(memory, bytes))
        bad = CU_HOST_MEMORY_ALREADY_REGISTERED;
    else {
        block *b = make_registered(c, memory, bytes);
        if (b)
            standin_list(b);
        bad = b ? OARI_CU_SUCCESS : OARI_CU_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&standin_lock);
    return bad;
}

int cuMemHostUnregister(void *memory)
{
    context *c;
    block *b;
    size_t within = (uintptr_t)memory % standin_page();
    int bad = standin_enter(&c);
    bad = bad ? bad : standin_unsafe();
    if (bad)
        return bad;
    standin_drain(c);
    pthread_mutex_lock(&standin_lock);
    b = standin_find_host(memory, 1);
    b = b && b->kind == BLOCK_REGISTERED && b->view == memory
            ? standin_unlist(b->address, BLOCK_REGISTERED)
            : NULL;
    pthread_mutex_unlock(&standin_lock);
    if (!b)
        return CU_HOST_MEMORY_NOT_REGISTERED;
    munmap((void *)(uintptr_t)(b->address - within),
           b->mapped_bytes + standin_page());
    free(b);
    return OARI_CU_SUCCESS;
}

int cuMemHostGetDevicePointer_v2(oari_cu_memory *device, void *memory,
                                 unsigned flags)
{
    context *c;
    block *b;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    b = flags == 0 ? standin_find_host(memory, 1) : NULL;
    if (b)
        *device = b->address + (uint64_t)((char *)memory - b->view);
    pthread_mutex_unlock(&standin_lock);
    return b ? OARI_CU_SUCCESS : OARI_CU_INVALID_VALUE;
}

/* ---- what a pointer is --------------------------------------------------- */

static int tell(const block *b, int attribute, uint64_t address, void *value)
{
    uint64_t within = address - b->address;
    switch (attribute) {
    case 1: *(void **)value = b->owner; break;
    case 2:
        *(unsigned *)value =
            b->kind >= BLOCK_PINNED ? OARI_CU_HOST : OARI_CU_DEVICE;
        break;
    case 3: *(uint64_t *)value = address; break;
    case 4:
        if (b->kind < BLOCK_PINNED)
            return OARI_CU_INVALID_VALUE;
        *(void **)value = b->view + within;
        break;
    case 7: *(uint64_t *)value = b->id; break;
    case 8: *(unsigned *)value = 0; break;
    case 9: *(int *)value = b->owner->device; break;
    case 10: *(unsigned *)value = b->kind == BLOCK_DEVICE; break;
    case 11: *(uint64_t *)value = b->address; break;
    case 12: *(size_t *)value = b->bytes; break;
    case 13: *(unsigned *)value = 1; break;
    default: return OARI_CU_INVALID_VALUE;
    }
    return OARI_CU_SUCCESS;
}

int cuPointerGetAttribute(void *value, int attribute, oari_cu_memory memory)
{
    context *c;
    block *b;
    int bad = standin_enter(&c);
    if (bad)
        return bad;
    pthread_mutex_lock(&standin_lock);
    b = standin_find(memory, 1);
    if (!b && (b = standin_find_host((void *)(uintptr_t)memory, 1)))
        memory = b->address + (memory - (uint64_t)(uintptr_t)b->view);
    bad = b ? tell(b, attribute, memory, value) : OARI_CU_INVALID_VALUE;
    pthread_mutex_unlock(&standin_lock);
    return bad;
}
