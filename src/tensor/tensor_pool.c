/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_pool: free tensors and storages are linked through `next`; owned
 * tensors are in an array. A pool belongs to one tape, and so to one thread at
 * a time. */
#include "tensor/tensor_pool.h"

#include <string.h>

#include <oarsong/device.h>
#include <oarsong/shared.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/vec.h"

enum { SMALLEST = 64 }; /* bytes */

/* The free storages of one GPU. All that used them has been put on `stream`. */
typedef struct oari_pool_gpu {
    int index;
    void *stream;
    oar_storage *free[OARI_POOL_CLASSES];
    struct oari_pool_gpu *next;
} oari_pool_gpu;

/* Rounds bytes up to the size of their class and returns the class. */
static int size_class(size_t *bytes)
{
    size_t n = *bytes > SMALLEST ? *bytes : SMALLEST;
    int shift = 63 - __builtin_clzll(n - 1) - 2; /* n - 1 has 3 bits above */
    size_t quarters = (n + ((size_t)1 << shift) - 1) >> shift; /* 4 to 8 */

    *bytes = quarters << shift;
    return (shift * 4 + (int)quarters) % OARI_POOL_CLASSES;
}

static void list_push(oari_pool_list *list, oar_tensor *t)
{
    t->next = list->first;
    list->first = t;
    if (list->last == NULL)
        list->last = t;
}

oar_tensor *oari_pool_take_tensor(oari_pool *pool)
{
    oar_tensor *t = pool != NULL ? pool->free_tensors : NULL;

    if (t != NULL) {
        pool->free_tensors = t->next;
        memset(t, 0, sizeof *t);
        return t;
    }
    t = oari_alloc(1, sizeof *t);
    if (t == NULL || pool == NULL)
        return t;
    /* The others stand in for the first one while it rests. */
    for (int i = 0; i < OARI_POOL_RESTS; i++) {
        oar_tensor *other = oari_alloc(1, sizeof *other);

        if (other == NULL) {
            oari_free(t);
            return NULL;
        }
        list_push(&pool->resting[i], other);
    }
    return t;
}

/* Returns the lists of a GPU, which it makes for a new one; NULL if there is no
 * memory. */
static oari_pool_gpu *gpu_lists(oari_pool *pool, oar_device device)
{
    oari_pool_gpu *gpu = pool->gpus;

    while (gpu != NULL && gpu->index != device.index)
        gpu = gpu->next;
    if (gpu != NULL || (gpu = oari_alloc(1, sizeof *gpu)) == NULL)
        return gpu;
    gpu->index = device.index;
    gpu->stream = oar_stream_current(device);
    gpu->next = pool->gpus;
    pool->gpus = gpu;
    return gpu;
}

/* Makes the current stream wait for the one that the free storages were used
 * on, if that is another one. */
static oar_status follow_stream(oari_pool_gpu *gpu, oar_device device)
{
    void *stream = oar_stream_current(device), *event;
    oar_status status;

    if (stream == gpu->stream)
        return OAR_OK;
    OARI_TRY(oar_event_create(device, 0, &event));
    status = oar_event_record(device, event, gpu->stream);
    if (status == OAR_OK)
        status = oar_stream_wait(device, stream, event);
    oar_event_destroy(device, event);
    if (status == OAR_OK)
        gpu->stream = stream;
    return status;
}

/* The lists of free storages of this kind on a device; NULL if there is no
 * memory for them. */
static oar_storage **free_lists(oari_pool *pool, oar_device device,
                                oari_memory_kind kind)
{
    oari_pool_gpu *gpu;

    if (device.kind == OAR_CPU)
        return kind == OARI_SHARED ? pool->free_shared : pool->free_storages;
    gpu = gpu_lists(pool, device);
    if (gpu == NULL || follow_stream(gpu, device) != OAR_OK)
        return NULL;
    return gpu->free;
}

/* Empties the oldest tensor on offer that has a storage of this class. */
static void accept_offer(oari_pool *pool, oar_device device,
                         oari_memory_kind kind, int class)
{
    oar_tensor *before = NULL;

    for (oar_tensor *t = pool->offer; t != NULL; before = t, t = t->next) {
        size_t capacity = t->storage != NULL ? t->storage->capacity : 0;

        /* It may have been retained, or shared, since it was offered. */
        if (t->storage == NULL || t->rebuilt || oari_tensor_retained(t) ||
            !oari_storage_alone(t->storage) || t->storage->kind != kind ||
            !oari_device_equal(t->storage->device, device) ||
            size_class(&capacity) != class)
            continue;
        *(before != NULL ? &before->next : &pool->offer) = t->next;
        if (pool->last_offer == t)
            pool->last_offer = before;
        oari_tensor_empty(pool, t);
        return;
    }
}

void oari_pool_offer(oari_pool *pool, oar_tensor *tensor)
{
    tensor->next = NULL;
    *(pool->offer != NULL ? &pool->last_offer->next : &pool->offer) = tensor;
    pool->last_offer = tensor;
}

oar_status oari_pool_take_storage(oari_pool *pool, oar_device device,
                                  size_t bytes, oar_storage **storage)
{
    size_t capacity = bytes;
    oar_storage **lists;
    oari_memory_kind kind;
    int class, last;

    if (pool == NULL)
        return oari_storage_make(device, bytes, bytes, OARI_PRIVATE, storage);
    kind = pool->share_from > 0 && bytes >= pool->share_from &&
                   device.kind == OAR_CPU
               ? OARI_SHARED
               : OARI_PRIVATE;
    class = size_class(&capacity);
    lists = free_lists(pool, device, kind);
    if (lists == NULL)
        return OAR_E_NOMEM;
    if (lists[class] == NULL && !pool->lends)
        accept_offer(pool, device, kind, class);
    last = class + (int)pool->lends;
    for (int i = class; i <= last && i < OARI_POOL_CLASSES; i++) {
        oar_storage *s = lists[i];

        if (s == NULL)
            continue;
        lists[i] = s->next;
        s->bytes = bytes;
        *storage = s;
        return OAR_OK;
    }
    OARI_TRY(oari_storage_make(device, bytes, capacity, kind, storage));
    (*storage)->recyclable = 1;
    return OAR_OK;
}

void oari_pool_keep_tensor(oari_pool *pool, oar_tensor *tensor)
{
    tensor->next = pool->free_tensors;
    pool->free_tensors = tensor;
}

void oari_pool_rest_tensor(oari_pool *pool, oar_tensor *tensor)
{
    list_push(&pool->resting[pool->resets % OARI_POOL_RESTS], tensor);
}

/* Whether a storage can be used again as what it is: memory that peers cannot
 * reach any more (an aborted operation had it) is shared no longer. */
static int can_reuse(const oar_storage *s)
{
    return s->recyclable && s->attached && !s->external &&
           oari_storage_alone(s) &&
           (s->kind != OARI_SHARED ||
            oar_shared_reachable(s->data, s->capacity));
}

void oari_pool_keep_storage(oari_pool *pool, oar_storage *storage)
{
    oar_storage **list;
    size_t capacity;

    if (storage == NULL)
        return;
    list = can_reuse(storage) ? free_lists(pool, storage->device, storage->kind)
                              : NULL;
    if (list == NULL) {
        oar_storage_release(storage);
        return;
    }
    capacity = storage->capacity;
    list += size_class(&capacity);
    storage->used = pool->resets;
    storage->absence = NULL; /* the text may not outlive this use */
    storage->next = *list;
    *list = storage;
}

oar_status oari_pool_own(oari_pool *pool, oar_tensor *tensor)
{
    if (oari_array_reserve(pool->owned, pool->count, pool->room, 1) != OAR_OK) {
        oari_tensor_drop(pool, tensor);
        return OAR_E_NOMEM;
    }
    pool->owned[pool->count++] = tensor;
    tensor->owner = pool;
    return OAR_OK;
}

/* Gives the storages of a list that have not been in use since the reset
 * numbered `since` back to the system. */
static void trim_list(oar_storage **list, uint64_t since)
{
    while (*list != NULL) {
        oar_storage *s = *list;

        if (s->used >= since) {
            list = &s->next;
            continue;
        }
        *list = s->next;
        oar_storage_release(s);
    }
}

static void trim_class(oari_pool *pool, int class, uint64_t since)
{
    trim_list(&pool->free_storages[class], since);
    trim_list(&pool->free_shared[class], since);
    for (oari_pool_gpu *gpu = pool->gpus; gpu != NULL; gpu = gpu->next)
        trim_list(&gpu->free[class], since);
}

void oari_pool_reset(oari_pool *pool)
{
    oari_pool_list *rested = &pool->resting[pool->resets % OARI_POOL_RESTS];

    if (rested->first != NULL) {
        rested->last->next = pool->free_tensors;
        pool->free_tensors = rested->first;
        *rested = (oari_pool_list){ NULL, NULL };
    }
    while (pool->count > 0) {
        oar_tensor *t = pool->owned[--pool->count];

        t->node = NULL; /* a retained one is a plain tensor from now on */
        t->owner = NULL;
        oari_tensor_retire(pool, t);
    }
    pool->offer = pool->last_offer = NULL;
    pool->resets++;
    if (pool->resets % OARI_POOL_PATIENCE == 0)
        for (int i = 0; i < OARI_POOL_CLASSES; i++)
            trim_class(pool, i, pool->resets - OARI_POOL_PATIENCE);
}

void oari_pool_close(oari_pool *pool)
{
    for (int i = 0; i <= OARI_POOL_RESTS; i++)
        oari_pool_reset(pool);
    while (pool->free_tensors != NULL) {
        oar_tensor *t = pool->free_tensors;

        pool->free_tensors = t->next;
        oari_free(t);
    }
    for (int i = 0; i < OARI_POOL_CLASSES; i++)
        trim_class(pool, i, UINT64_MAX);
    while (pool->gpus != NULL) {
        oari_pool_gpu *gpu = pool->gpus;

        pool->gpus = gpu->next;
        oari_free(gpu);
    }
    oari_free(pool->owned);
    memset(pool, 0, sizeof *pool);
}
