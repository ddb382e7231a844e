/* SPDX-License-Identifier: Apache-2.0 */
/* store_memory: keys in a list of this process, for ranks that are threads. One
 * lock guards the list; every change wakes all who wait. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/store.h"

typedef struct entry {
    struct entry *next;
    char *key;
    oari_value value;
} entry;

typedef struct memory_store {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    entry *first;
} memory_store;

static entry **find(memory_store *s, const char *key)
{
    entry **at = &s->first;

    while (*at != NULL && strcmp((*at)->key, key) != 0)
        at = &(*at)->next;
    return at;
}

static oar_status look(void *self, const char *key, oari_value *value)
{
    memory_store *s = self;
    oar_status status = OAR_OK;
    entry *e;

    pthread_mutex_lock(&s->lock);
    e = *find(s, key);
    if (e != NULL)
        status = oari_value_copy(e->value.data, e->value.bytes, value);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static void remove_entry(entry **at)
{
    entry *e = *at;

    *at = e->next;
    oari_free(e->value.data);
    oari_free(e->key);
    oari_free(e);
}

/* A new entry without a value at the end of the list. */
static oar_status add_entry(entry **at, const char *key)
{
    entry *e = oari_alloc(1, sizeof *e);

    if (e == NULL || (e->key = oari_strdup(key)) == NULL) {
        oari_free(e);
        return OAR_E_NOMEM;
    }
    *at = e;
    return OAR_OK;
}

static oar_status update_locked(memory_store *s, const char *key,
                                oar_status (*change)(void *, oari_value *),
                                void *arg)
{
    entry **at = find(s, key);
    oar_status status;

    if (*at == NULL)
        OARI_TRY(add_entry(at, key));
    status = change(arg, &(*at)->value);
    if ((*at)->value.data == NULL)
        remove_entry(at);
    pthread_cond_broadcast(&s->changed);
    return status;
}

static oar_status update(void *self, const char *key,
                         oar_status (*change)(void *, oari_value *), void *arg)
{
    memory_store *s = self;
    oar_status status;

    pthread_mutex_lock(&s->lock);
    status = update_locked(s, key, change, arg);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* A change between the look and this pause is seen after a millisecond. */
static void pause_until_change(void *self, int tries, int64_t deadline_ns)
{
    memory_store *s = self;
    struct timespec until;
    int64_t wake = oari_now_ns() + 1000000;

    if (wake > deadline_ns)
        wake = deadline_ns;
    until.tv_sec = wake / 1000000000;
    until.tv_nsec = wake % 1000000000;
    pthread_mutex_lock(&s->lock);
    pthread_cond_timedwait(&s->changed, &s->lock, &until);
    pthread_mutex_unlock(&s->lock);
}

static oar_status clear(void *self)
{
    memory_store *s = self;

    pthread_mutex_lock(&s->lock);
    while (s->first != NULL)
        remove_entry(&s->first);
    pthread_mutex_unlock(&s->lock);
    return OAR_OK;
}

static void destroy(void *self)
{
    memory_store *s = self;

    clear(s);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    oari_free(s);
}

static const oari_store_ops memory_ops = {
    .look = look,
    .update = update,
    .pause = pause_until_change,
    .clear = clear,
    .destroy = destroy,
};

oar_status oar_store_create_memory(oar_store **store)
{
    memory_store *s;
    pthread_condattr_t attr;

    if (store == NULL)
        return oari_fail(OAR_E_ARG, "store_create_memory with nowhere to put "
                                    "it");
    if ((s = oari_alloc(1, sizeof *s)) == NULL)
        return OAR_E_NOMEM;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
    return oari_store_wrap(&memory_ops, s, store);
}
