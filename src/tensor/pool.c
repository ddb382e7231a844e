/* SPDX-License-Identifier: Apache-2.0 */
/* pool: what is free is linked through `next`; what is owned is in an array.
 * A pool belongs to one tape, and so to one thread at a time. */
#include "tensor/pool.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/vec.h"

enum {
    SMALLEST = 64, /* bytes */
    LARGER = 3     /* classes that lend: all less than twice as large */
};

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

/* A tensor, and those that stand in for it while it rests. */
static oar_tensor *make_tensors(oari_pool *pool)
{
    oar_tensor *t = oari_alloc(1, sizeof *t);

    for (int i = 0; t != NULL && i < OARI_POOL_RESTS; i++) {
        oar_tensor *other = oari_alloc(1, sizeof *other);

        if (other == NULL) {
            oari_free(t);
            return NULL;
        }
        list_push(&pool->resting[i], other);
    }
    return t;
}

oar_tensor *oari_pool_take_tensor(oari_pool *pool)
{
    oar_tensor *t;

    if (pool == NULL)
        return oari_alloc(1, sizeof *t);
    t = pool->free_tensors;
    if (t == NULL)
        return make_tensors(pool);
    pool->free_tensors = t->next;
    memset(t, 0, sizeof *t);
    return t;
}

/* The list of a class that has a free storage, or of a larger one that lends;
 * NULL: there is none. */
static oar_storage **find_free(oari_pool *pool, int class)
{
    int last = pool->lends ? class + LARGER : class;

    for (int i = class; i <= last && i < OARI_POOL_CLASSES; i++)
        if (pool->free_storages[i] != NULL)
            return &pool->free_storages[i];
    return NULL;
}

/* Whether an offer still stands, and is of this class. */
static int stands(const oar_tensor *t, int class)
{
    size_t capacity;

    if (t->storage == NULL || t->rebuilt || oari_tensor_retained(t) ||
        !oari_storage_alone(t->storage))
        return 0;
    capacity = t->storage->capacity;
    return size_class(&capacity) == class;
}

/* Empties the oldest tensor on offer that has a storage of this class. */
static void accept_offer(oari_pool *pool, int class)
{
    oar_tensor *before = NULL;

    for (oar_tensor *t = pool->offer; t != NULL; before = t, t = t->next) {
        if (!stands(t, class))
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

oar_status oari_pool_take_storage(oari_pool *pool, size_t bytes,
                                  oar_storage **storage)
{
    size_t capacity = bytes;
    oar_storage **list;
    int class;

    if (pool == NULL)
        return oari_storage_make(bytes, bytes, OARI_PRIVATE, storage);
    class = size_class(&capacity);
    if (pool->free_storages[class] == NULL && !pool->lends)
        accept_offer(pool, class);
    list = find_free(pool, class);
    if (list == NULL) {
        OARI_TRY(oari_storage_make(bytes, capacity, OARI_PRIVATE, storage));
        (*storage)->recyclable = 1;
        return OAR_OK;
    }
    *storage = *list;
    *list = (*list)->next;
    (*storage)->bytes = bytes;
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

/* Frees for use what has rested longest. */
static void wake_tensors(oari_pool *pool)
{
    oari_pool_list *list = &pool->resting[pool->resets % OARI_POOL_RESTS];

    if (list->first == NULL)
        return;
    list->last->next = pool->free_tensors;
    pool->free_tensors = list->first;
    *list = (oari_pool_list){ NULL, NULL };
}

void oari_pool_keep_storage(oari_pool *pool, oar_storage *storage)
{
    oar_storage **list;
    size_t capacity;

    if (storage == NULL)
        return;
    if (!storage->recyclable || !storage->attached || storage->foreign ||
        !oari_storage_alone(storage)) {
        oar_storage_release(storage);
        return;
    }
    capacity = storage->capacity;
    list = &pool->free_storages[size_class(&capacity)];
    storage->used = pool->resets;
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
static void trim(oar_storage **list, uint64_t since)
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

void oari_pool_reset(oari_pool *pool)
{
    wake_tensors(pool);
    while (pool->count > 0) {
        oar_tensor *t = pool->owned[--pool->count];

        t->node =
            NULL; /* if it is retained, it is a plain tensor from now on */
        t->owner = NULL;
        oari_tensor_retire(pool, t);
    }
    pool->offer = pool->last_offer = NULL;
    pool->resets++;
    if (pool->resets % OARI_POOL_PATIENCE == 0)
        for (int i = 0; i < OARI_POOL_CLASSES; i++)
            trim(&pool->free_storages[i], pool->resets - OARI_POOL_PATIENCE);
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
        trim(&pool->free_storages[i], UINT64_MAX);
    oari_free(pool->owned);
    memset(pool, 0, sizeof *pool);
}
