/* SPDX-License-Identifier: Apache-2.0 */
/* store_memory: keys in a table of this process, for ranks that are threads.
 * One lock guards the table; every change wakes all threads that wait. */
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "store/store_local.h"
#include "store/store_table.h"

typedef struct memory_store {
    oari_local_store local;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    oari_table table;
} memory_store;

static oar_status look_up(void *self, const char *key, oari_value *value)
{
    memory_store *s = self;
    oar_status status = OAR_OK;
    const oari_value *found;

    pthread_mutex_lock(&s->lock);
    found = oari_table_find(&s->table, key);
    if (found != NULL)
        status = oari_value_copy(found->data, found->bytes, value);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static oar_status update_value(void *self, const char *key,
                               oari_change_fn change, void *arg)
{
    memory_store *s = self;
    oar_status status;

    pthread_mutex_lock(&s->lock);
    status = oari_table_update(&s->table, key, change, arg);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Sees a change between the look-up and this pause after a millisecond. */
static void pause_until_change(void *self, int tries, int64_t deadline_ns)
{
    memory_store *s = self;
    int64_t wake = oari_now_ns() + 1000000;

    pthread_mutex_lock(&s->lock);
    oari_cond_wait(&s->changed, &s->lock,
                   wake < deadline_ns ? wake : deadline_ns);
    pthread_mutex_unlock(&s->lock);
}

static oar_status list_keys(void *self, const char *prefix, oari_key_list *keys)
{
    memory_store *s = self;
    oar_status status;

    pthread_mutex_lock(&s->lock);
    status = oari_table_list(&s->table, prefix, keys);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static oar_status clear_keys(void *self, const char *prefix)
{
    memory_store *s = self;

    pthread_mutex_lock(&s->lock);
    if (*prefix == 0)
        oari_table_drop(&s->table);
    else
        oari_table_clear(&s->table, prefix);
    pthread_mutex_unlock(&s->lock);
    return OAR_OK;
}

static void destroy_store(void *self)
{
    memory_store *s = self;

    oari_table_drop(&s->table);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    oari_free(s);
}

static const oari_local_store_ops memory_local_ops = {
    .look = look_up,
    .update = update_value,
    .pause = pause_until_change,
};

static const oari_store_ops memory_ops = {
    .change = oari_local_store_change,
    .get = oari_local_store_get,
    .wait = oari_local_store_wait,
    .list = list_keys,
    .clear = clear_keys,
    .destroy = destroy_store,
};

oar_status oar_store_create_memory(oar_store **store)
{
    memory_store *s;

    if (store == NULL)
        return oari_fail(OAR_E_ARG, "store_create_memory with nowhere to put "
                                    "the store");
    if ((s = oari_alloc(1, sizeof *s)) == NULL)
        return OAR_E_NOMEM;
    s->local.ops = &memory_local_ops;
    pthread_mutex_init(&s->lock, NULL);
    oari_cond_init(&s->changed);
    return oari_store_wrap(&memory_ops, s, store);
}
