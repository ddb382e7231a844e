/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_pool: caches device memory.
 *
 * The driver gives chunks by plain allocations, so that they can be exported to
 * other processes. A chunk is divided into blocks without gaps; free neighbours
 * are one block. Small blocks and large ones never share a chunk. A block that
 * is given back is free only when the stream that used it has reached an event.
 *
 * Each device has a lock that guards its pool. It is never held while the
 * driver may wait for the GPU: work on a stream may wait for another thread
 * that needs the pool.
 */
#include "device/cuda/cuda_pool.h"

#include <limits.h>
#include <pthread.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "device/cuda/driver.h"

#define UNIT        ((size_t)512)      /* all sizes and places are multiples */
#define SMALL       ((size_t)1 << 20)  /* the largest of the small blocks */
#define SMALL_CHUNK ((size_t)2 << 20)  /* for them */
#define LARGE_CHUNK ((size_t)20 << 20) /* for those up to half of it */
#define WAIT_MS     60000              /* for memory that is still in use */

enum { BINS = 64, BUCKETS = 1024, A_FEW = 16 };

typedef struct chunk {
    struct chunk *next;
    struct block *first;
    oari_cu_memory base;
    size_t bytes;
    int holds;
} chunk;

typedef enum state { FREE, USED, WAITING } state;

typedef struct block {
    chunk *home;
    struct block *left, *right; /* neighbours in the chunk */
    struct block *next, **link; /* in a bin, a bucket or the queue */
    oari_cu_memory at;
    size_t bytes;
    state state;
    oari_cu_event event; /* while it waits */
} block;

typedef struct pool {
    pthread_mutex_t lock;
    chunk *chunks;
    block *bins[2][BINS]; /* free ones: small or large, by their highest bit */
    block *used[BUCKETS]; /* by address */
    block *waiting, **last;
    oar_device_usage usage;
} pool;

static pool pools[OARI_CUDA_DEVICES] = {
    [0 ... OARI_CUDA_DEVICES - 1] = { .lock = PTHREAD_MUTEX_INITIALIZER }
};

/* ---- lists --------------------------------------------------------------- */

static void link_at(block **link, block *b)
{
    b->next = *link;
    b->link = link;
    if (b->next != NULL)
        b->next->link = &b->next;
    *link = b;
}

static void unlink_block(block *b)
{
    *b->link = b->next;
    if (b->next != NULL)
        b->next->link = b->link;
}

static int bin_of(size_t bytes)
{
    return 63 - __builtin_clzll(bytes);
}

static block **bucket_of(pool *p, oari_cu_memory at)
{
    return &p->used[at / UNIT * 2654435761u % BUCKETS];
}

/* ---- splitting and joining ----------------------------------------------- */

/* Makes the right neighbour a part of b. */
static void absorb_right(block *b)
{
    block *gone = b->right;

    b->bytes += gone->bytes;
    b->right = gone->right;
    if (b->right != NULL)
        b->right->left = b;
    oari_free(gone);
}

/* Makes b free and joins it with its free neighbours. */
static void set_free(pool *p, block *b)
{
    if (b->right != NULL && b->right->state == FREE) {
        unlink_block(b->right);
        absorb_right(b);
    }
    if (b->left != NULL && b->left->state == FREE) {
        b = b->left;
        unlink_block(b);
        absorb_right(b);
    }
    b->state = FREE;
    /* By the size of the chunk: a large chunk has small blocks at its end. */
    link_at(&p->bins[b->home->bytes > SMALL_CHUNK][bin_of(b->bytes)], b);
}

/* Splits b after `bytes` and frees the rest. Without memory for that b stays
 * whole, which only wastes some. */
static void split_block(pool *p, block *b, size_t bytes)
{
    block *rest = oari_alloc(1, sizeof *rest);

    if (rest == NULL)
        return;
    *rest = (block){ .home = b->home,
                     .left = b,
                     .right = b->right,
                     .at = b->at + bytes,
                     .bytes = b->bytes - bytes };
    if (rest->right != NULL)
        rest->right->left = rest;
    b->right = rest;
    b->bytes = bytes;
    set_free(p, rest);
}

/* ---- waiting blocks ------------------------------------------------------ */

/* Frees the waiting blocks whose event has happened, in the order in which they
 * were given back, until `limit` are found whose event has not. A block whose
 * event cannot be queried is never freed: a kernel may still write to it. */
static void free_finished(pool *p, int device, const oari_cuda *cu, int limit)
{
    block *b = p->waiting, *next;

    for (; b != NULL && limit > 0; b = next) {
        int result = cu->EventQuery(b->event);

        next = b->next;
        if (result == OARI_CU_NOT_READY) {
            limit--;
            continue;
        }
        if (p->last == &b->next)
            p->last = b->link;
        unlink_block(b);
        oari_cuda_event_give(device, b->event);
        b->event = NULL;
        if (result == OARI_CU_SUCCESS)
            set_free(p, b);
    }
}

/* ---- taking -------------------------------------------------------------- */

static size_t round_up(size_t bytes, size_t unit)
{
    return bytes == 0 ? unit : (bytes + unit - 1) / unit * unit;
}

/* Takes the smallest free block of at least as many bytes out of its bin;
 * returns NULL if there is none. */
static block *take_fit(pool *p, size_t bytes)
{
    block *found = NULL;

    for (int bin = bin_of(bytes); bin < BINS && found == NULL; bin++)
        for (block *b = p->bins[bytes > SMALL][bin]; b != NULL; b = b->next)
            if (b->bytes >= bytes && (found == NULL || b->bytes < found->bytes))
                found = b;
    if (found == NULL)
        return NULL;
    unlink_block(found);
    found->state = USED; /* or the rest of the split would join it again */
    if (found->bytes - bytes >= (bytes > SMALL ? SMALL : UNIT))
        split_block(p, found, bytes);
    return found;
}

/* Asks the driver for a chunk, as one free block. */
static oar_status add_chunk(pool *p, const oari_cuda *cu, size_t bytes)
{
    chunk *c = oari_alloc(1, sizeof *c);
    block *b = oari_alloc(1, sizeof *b);
    oar_status status = OAR_E_NOMEM;

    if (c == NULL || b == NULL || !oari_alloc_allowed(bytes))
        goto fail;
    status =
        oari_cuda_check(cu->MemAlloc(&c->base, bytes), "take memory of a GPU");
    if (status != OAR_OK)
        goto fail;
    c->bytes = bytes;
    c->first = b;
    c->next = p->chunks;
    p->chunks = c;
    *b = (block){ .home = c, .at = c->base, .bytes = bytes };
    set_free(p, b);
    p->usage.kept_bytes += bytes;
    p->usage.from_driver++;
    return OAR_OK;
fail:
    oari_free(c);
    oari_free(b);
    return status;
}

/* Takes a free block; if there is none and may_grow, one of a new chunk. */
static oar_status try_alloc(int device, const oari_cuda *cu, size_t bytes,
                            int may_grow, void **memory)
{
    pool *p = &pools[device];
    size_t chunk_bytes = bytes <= SMALL ? SMALL_CHUNK
                         : bytes <= LARGE_CHUNK / 2
                             ? LARGE_CHUNK
                             : round_up(bytes, SMALL_CHUNK);
    oar_status status = OAR_OK;
    block *b;

    pthread_mutex_lock(&p->lock);
    free_finished(p, device, cu, may_grow ? A_FEW : INT_MAX);
    b = take_fit(p, bytes);
    if (b == NULL && may_grow)
        status = add_chunk(p, cu, chunk_bytes);
    if (b == NULL && status == OAR_OK)
        b = take_fit(p, bytes);
    if (b != NULL) {
        link_at(bucket_of(p, b->at), b);
        p->usage.used_bytes += b->bytes;
        if (p->usage.used_bytes > p->usage.most_bytes)
            p->usage.most_bytes = p->usage.used_bytes;
        *memory = (void *)(uintptr_t)b->at;
    }
    pthread_mutex_unlock(&p->lock);
    return b != NULL ? OAR_OK : status != OAR_OK ? status : OAR_E_NOMEM;
}

/* The driver has no more memory: waits for blocks that streams still use, then
 * returns unused chunks to the driver, to make room for a larger one. */
static oar_status wait_for_memory(int device, const oari_cuda *cu, size_t bytes,
                                  void **memory)
{
    int64_t deadline = oari_deadline(WAIT_MS), since = 0;
    pool *p = &pools[device];
    int has_waiting;

    while (oari_now_ns() < deadline) {
        pthread_mutex_lock(&p->lock);
        has_waiting = p->waiting != NULL;
        pthread_mutex_unlock(&p->lock);
        if (!has_waiting)
            break;
        if (try_alloc(device, cu, bytes, 0, memory) == OAR_OK)
            return OAR_OK;
        oari_backoff(&since);
    }
    OARI_TRY(oari_cuda_pool_trim(device));
    return try_alloc(device, cu, bytes, 1, memory);
}

static oar_status fail_no_memory(int device, size_t bytes)
{
    oar_device_usage usage = oar_device_usage_init();
    size_t left = 0, total = 0;
    const oari_cuda *cu;

    if (oari_cuda_enter(device, &cu) == OAR_OK) {
        cu->MemGetInfo(&left, &total);
        oari_cuda_leave();
    }
    oari_cuda_pool_usage(device, &usage);
    return oari_fail(OAR_E_NOMEM,
                     "%zu bytes on cuda:%d: %zu of its %zu are free, %zu are "
                     "in use here",
                     bytes, device, left, total, usage.used_bytes);
}

oar_status oari_cuda_pool_alloc(int device, size_t bytes, void **memory)
{
    const oari_cuda *cu;
    size_t rounded;
    oar_status status;

    OARI_TRY(oari_cuda_enter(device, &cu));
    rounded = bytes > SIZE_MAX / 4 ? 0 : round_up(bytes, UNIT);
    status =
        rounded == 0 ? OAR_E_NOMEM : try_alloc(device, cu, rounded, 1, memory);
    if (status == OAR_E_NOMEM && rounded != 0)
        status = wait_for_memory(device, cu, rounded, memory);
    oari_cuda_leave();
    return status == OAR_E_NOMEM ? fail_no_memory(device, bytes) : status;
}

/* ---- giving back --------------------------------------------------------- */

static block *take_used(pool *p, oari_cu_memory at)
{
    block *b = *bucket_of(p, at);

    while (b != NULL && b->at != at)
        b = b->next;
    if (b == NULL)
        return NULL;
    unlink_block(b);
    p->usage.used_bytes -= b->bytes;
    return b;
}

/* Records an event after all work of the stream. Without an event it waits for
 * the whole GPU; the event is NULL then, and the status says whether that
 * worked. */
static oar_status record_end(int device, const oari_cuda *cu,
                             oari_cu_stream stream, oari_cu_event *event)
{
    *event = NULL;
    if (oari_cuda_event_take(device, event) == OAR_OK &&
        cu->EventRecord(*event, stream) == OARI_CU_SUCCESS)
        return OAR_OK;
    oari_cuda_event_give(device, *event);
    *event = NULL;
    return oari_cuda_check(cu->CtxSynchronize(), "take back memory of a GPU");
}

oar_status oari_cuda_pool_free(int device, void *memory, oari_cu_stream stream)
{
    const oari_cuda *cu;
    oari_cu_event event;
    oar_status status;
    pool *p;
    block *b;

    OARI_TRY(oari_cuda_enter(device, &cu));
    p = &pools[device];
    status = record_end(device, cu, stream, &event);
    pthread_mutex_lock(&p->lock);
    b = take_used(p, (uintptr_t)memory);
    if (b == NULL) {
        status = oari_fail(OAR_E_ARG, "%p is not given out on cuda:%d", memory,
                           device);
    } else if (event == NULL && status == OAR_OK) {
        set_free(p, b);
    } else {
        b->state = WAITING; /* for good if there is no event */
        b->event = event;
        if (p->waiting == NULL)
            p->last = &p->waiting;
        if (event != NULL) {
            link_at(p->last, b);
            p->last = &b->next;
        }
    }
    pthread_mutex_unlock(&p->lock);
    if (b == NULL)
        oari_cuda_event_give(device, event);
    oari_cuda_leave();
    return status;
}

/* ---- back to the driver -------------------------------------------------- */

/* Takes the unused chunks out of the pool. */
static chunk *take_idle(pool *p)
{
    chunk **link = &p->chunks, *idle = NULL, *c;

    while ((c = *link) != NULL) {
        if (c->holds > 0 || c->first->state != FREE ||
            c->first->right != NULL) {
            link = &c->next;
            continue;
        }
        *link = c->next;
        unlink_block(c->first);
        p->usage.kept_bytes -= c->bytes;
        c->next = idle;
        idle = c;
    }
    return idle;
}

oar_status oari_cuda_pool_trim(int device)
{
    const oari_cuda *cu;
    int result = OARI_CU_SUCCESS;
    chunk *idle, *next;
    pool *p;

    OARI_TRY(oari_cuda_enter(device, &cu));
    p = &pools[device];
    pthread_mutex_lock(&p->lock);
    free_finished(p, device, cu, INT_MAX);
    idle = take_idle(p);
    pthread_mutex_unlock(&p->lock);
    for (; idle != NULL; idle = next) {
        int freed = cu->MemFree(idle->base);

        next = idle->next;
        result = result == OARI_CU_SUCCESS ? freed : result;
        oari_free(idle->first);
        oari_free(idle);
    }
    oari_cuda_leave();
    return oari_cuda_check(result, "give a GPU's memory back");
}

oar_status oari_cuda_pool_usage(int device, oar_device_usage *usage)
{
    const oari_cuda *cu;
    pool *p;

    OARI_TRY(oari_cuda_known(device, &cu));
    p = &pools[device];
    pthread_mutex_lock(&p->lock);
    *usage = p->usage;
    pthread_mutex_unlock(&p->lock);
    return OAR_OK;
}

/* ---- chunks that peers have mapped --------------------------------------- */

static void change_holds(oari_cu_memory base, int by)
{
    int count = oar_device_count(OAR_CUDA); /* none in a child by fork */
    chunk *c = NULL;

    for (int i = 0; i < count && c == NULL; i++) {
        pthread_mutex_lock(&pools[i].lock);
        for (c = pools[i].chunks; c != NULL && c->base != base;)
            c = c->next;
        if (c != NULL && c->holds + by >= 0)
            c->holds += by;
        pthread_mutex_unlock(&pools[i].lock);
    }
}

void oari_cuda_hold(oari_cu_memory base)
{
    change_holds(base, 1);
}

void oari_cuda_unhold(oari_cu_memory base)
{
    change_holds(base, -1);
}
