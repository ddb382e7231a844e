/* SPDX-License-Identifier: Apache-2.0 */
/* store: the public calls, over any kind of store. Every change is one update
 * of one key; waiting is looking again after a pause. */
#include "comm/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/status.h"

oar_status oari_store_wrap(const oari_store_ops *ops, void *self,
                           oar_store **store)
{
    oar_store *made = oari_alloc(1, sizeof *made);

    if (made == NULL) {
        ops->destroy(self);
        return OAR_E_NOMEM;
    }
    made->ops = ops;
    made->self = self;
    atomic_store(&made->holders, 1);
    *store = made;
    return OAR_OK;
}

oar_status oari_value_copy(const void *data, size_t bytes, oari_value *value)
{
    unsigned char *copy = oari_alloc(bytes + 1, 1);

    if (copy == NULL)
        return OAR_E_NOMEM;
    if (bytes != 0)
        memcpy(copy, data, bytes);
    value->data = copy;
    value->bytes = bytes;
    return OAR_OK;
}

oar_store *oari_store_retain(oar_store *store)
{
    if (store != NULL)
        atomic_fetch_add(&store->holders, 1);
    return store;
}

void oar_store_destroy(oar_store *store)
{
    if (store == NULL || atomic_fetch_sub(&store->holders, 1) != 1)
        return;
    store->ops->destroy(store->self);
    oari_free(store);
}

static oar_status check_key(const oar_store *store, const char *key)
{
    if (store == NULL || key == NULL)
        return oari_fail(OAR_E_ARG, "store call without %s",
                         store == NULL ? "a store" : "a key");
    if (*key == 0 || strlen(key) > OAR_STORE_KEY_MAX)
        return oari_fail(OAR_E_ARG,
                         "store key of %zu bytes: 1 to %d are allowed",
                         strlen(key), OAR_STORE_KEY_MAX);
    return OAR_OK;
}

static oar_status check_value(const char *key, const void *value, size_t bytes)
{
    if (value == NULL && bytes != 0)
        return oari_fail(OAR_E_ARG, "no value for store key \"%s\"", key);
    if (bytes > OAR_STORE_VALUE_MAX)
        return oari_fail(OAR_E_ARG,
                         "value of %zu bytes for store key \"%s\": at most %d",
                         bytes, key, OAR_STORE_VALUE_MAX);
    return OAR_OK;
}

static oar_status change_to(void *arg, oari_value *value)
{
    const oari_value *wanted = arg;
    oari_value made;

    OARI_TRY(oari_value_copy(wanted->data, wanted->bytes, &made));
    oari_free(value->data);
    *value = made;
    return OAR_OK;
}

/* Values that are only read travel as this struct without const. */
static oari_value borrow(const void *data, size_t bytes)
{
    union {
        const void *in;
        void *out;
    } cast = { .in = data };

    return (oari_value){ cast.out, bytes };
}

oar_status oar_store_set(oar_store *store, const char *key, const void *value,
                         size_t bytes)
{
    oari_value wanted = borrow(value, bytes);

    OARI_TRY(check_key(store, key));
    OARI_TRY(check_value(key, value, bytes));
    return store->ops->update(store->self, key, change_to, &wanted);
}

oar_status oar_store_get(oar_store *store, const char *key, int64_t timeout_ms,
                         void **value, size_t *bytes)
{
    int64_t deadline = oari_deadline(timeout_ms);
    oari_value found = { 0 };

    OARI_TRY(check_key(store, key));
    if (value == NULL || bytes == NULL)
        return oari_fail(OAR_E_ARG,
                         "store get of \"%s\" with nowhere to put "
                         "it",
                         key);
    for (int tries = 0;; tries++) {
        OARI_TRY(store->ops->look(store->self, key, &found));
        if (found.data != NULL)
            break;
        if (oari_now_ns() >= deadline)
            return oari_fail(OAR_E_TIMEOUT,
                             "store key \"%s\" did not appear in %" PRId64
                             " ms",
                             key, timeout_ms);
        store->ops->pause(store->self, tries, deadline);
    }
    *value = found.data;
    *bytes = found.bytes;
    return OAR_OK;
}

typedef struct addition {
    const char *key;
    int64_t delta;
    int64_t sum;
} addition;

static oar_status change_by_adding(void *arg, oari_value *value)
{
    addition *a = arg;
    char text[32];
    int64_t old = 0;

    if (value->data != NULL)
        OARI_TRY(
            oari_parse_int(a->key, value->data, INT64_MIN, INT64_MAX, &old));
    if (__builtin_add_overflow(old, a->delta, &a->sum))
        return oari_fail(OAR_E_ARG, "store key \"%s\" would overflow", a->key);
    snprintf(text, sizeof text, "%" PRId64, a->sum);
    return change_to(&(oari_value){ text, strlen(text) }, value);
}

oar_status oar_store_add(oar_store *store, const char *key, int64_t delta,
                         int64_t *sum)
{
    addition a = { key, delta, 0 };

    OARI_TRY(check_key(store, key));
    OARI_TRY(store->ops->update(store->self, key, change_by_adding, &a));
    if (sum != NULL)
        *sum = a.sum;
    return OAR_OK;
}

typedef struct swap {
    oari_value expected, wanted;
    int swapped;
} swap;

static oar_status change_if_expected(void *arg, oari_value *value)
{
    swap *s = arg;
    int same;

    if (s->expected.data == NULL || value->data == NULL)
        same = s->expected.data == NULL && value->data == NULL;
    else
        same = s->expected.bytes == value->bytes &&
               memcmp(s->expected.data, value->data, value->bytes) == 0;
    if (!same)
        return OAR_OK;
    s->swapped = 1;
    return change_to(&s->wanted, value);
}

oar_status oar_store_compare_set(oar_store *store, const char *key,
                                 const void *expected, size_t expected_bytes,
                                 const void *wanted, size_t wanted_bytes,
                                 int *swapped)
{
    swap s = { borrow(expected, expected_bytes), borrow(wanted, wanted_bytes),
               0 };

    OARI_TRY(check_key(store, key));
    OARI_TRY(check_value(key, wanted, wanted_bytes));
    OARI_TRY(store->ops->update(store->self, key, change_if_expected, &s));
    if (swapped != NULL)
        *swapped = s.swapped;
    return OAR_OK;
}

static oar_status change_to_nothing(void *arg, oari_value *value)
{
    if (value->data == NULL)
        return oari_fail(OAR_E_NOT_FOUND, "store key \"%s\" is not there",
                         (const char *)arg);
    oari_free(value->data);
    *value = (oari_value){ 0 };
    return OAR_OK;
}

oar_status oar_store_delete(oar_store *store, const char *key)
{
    OARI_TRY(check_key(store, key));
    return store->ops->update(store->self, key, change_to_nothing,
                              borrow(key, 0).data);
}

oar_status oar_store_wait(oar_store *store, int count, const char *const *key,
                          int64_t timeout_ms)
{
    int64_t deadline = oari_deadline(timeout_ms);

    if (count < 0 || (count > 0 && key == NULL))
        return oari_fail(OAR_E_ARG, "store wait for %d keys", count);
    for (int i = 0; i < count; i++) {
        void *value;
        size_t bytes;
        OARI_TRY(oar_store_get(store, key[i], oari_deadline_left_ms(deadline),
                               &value, &bytes));
        oari_free(value);
    }
    return OAR_OK;
}

oar_status oar_store_clear(oar_store *store)
{
    if (store == NULL)
        return oari_fail(OAR_E_ARG, "store call without a store");
    return store->ops->clear(store->self);
}
