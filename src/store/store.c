/* SPDX-License-Identifier: Apache-2.0 */
/* store: the public calls, over any kind of store. */
#include "store/store.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
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
    atomic_init(&made->holders, 1);
    *store = made;
    return OAR_OK;
}

oar_store *oari_store_retain(oar_store *store)
{
    if (store != NULL)
        atomic_fetch_add(&store->holders, 1);
    return store;
}

const char *oari_store_address(const oar_store *store)
{
    return store != NULL && store->ops->address != NULL
               ? store->ops->address(store->self)
               : NULL;
}

void oari_store_take_server(oar_store *store, oar_store_server *server)
{
    store->server = server;
}

void oar_store_destroy(oar_store *store)
{
    if (store == NULL || atomic_fetch_sub(&store->holders, 1) != 1)
        return;
    store->ops->destroy(store->self);
    oar_store_server_destroy(store->server);
    oari_free(store);
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

/* ---- arguments ----------------------------------------------------------- */

static oar_status check_store(const oar_store *store)
{
    if (store == NULL)
        return oari_fail(OAR_E_ARG, "store call without a store");
    return OAR_OK;
}

static oar_status check_key(const oar_store *store, const char *key)
{
    OARI_TRY(check_store(store));
    if (key == NULL)
        return oari_fail(OAR_E_ARG, "store call without a key");
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

static oar_status too_late(const char *key, int64_t timeout_ms)
{
    return oari_fail(OAR_E_TIMEOUT,
                     "store key \"%s\" did not appear in %" PRId64 " ms", key,
                     timeout_ms);
}

/* ---- calls --------------------------------------------------------------- */

oar_status oar_store_set(oar_store *store, const char *key, const void *value,
                         size_t bytes)
{
    OARI_TRY(check_key(store, key));
    OARI_TRY(check_value(key, value, bytes));
    return store->ops->set(store->self, key, (oari_bytes){ value, bytes });
}

/* Between two looks: at first, and at most. */
enum { LOOK_NS = 10000000, LOOK_MAX_NS = 500000000 };

static _Thread_local struct {
    oari_look_fn look;
    void *arg;
} watch;

void oari_store_watch(oari_look_fn look, void *arg)
{
    watch.look = look;
    watch.arg = arg;
}

static oar_status get_watching(const oar_store *store, const char *key,
                               int64_t deadline, oari_value *found)
{
    int64_t nap = LOOK_NS;

    for (;;) {
        int64_t now = oari_now_ns();
        int64_t until = deadline - now < nap ? deadline : now + nap;
        oar_status status;

        status = store->ops->get(store->self, key, until, found);
        if (status != OAR_OK && status != OAR_E_CLOSED)
            return status;
        if (found->data != NULL || oari_now_ns() >= deadline)
            return status;
        if (watch.look(watch.arg) != OAR_OK) {
            oar_error why = *oar_last_error();

            if (status == OAR_OK)
                store->ops->get(store->self, key, 0, found);
            return found->data != NULL ? OAR_OK : oari_fail_with(&why);
        }
        if (status == OAR_E_CLOSED) /* it may come back, in its own time */
            return store->ops->get(store->self, key, deadline, found);
        nap = 2 * nap < LOOK_MAX_NS ? 2 * nap : LOOK_MAX_NS;
    }
}

static oar_status give_value(const oari_value *found, const char *key,
                             int64_t timeout_ms, void **value, size_t *bytes)
{
    if (found->data == NULL)
        return too_late(key, timeout_ms);
    *value = found->data;
    *bytes = found->bytes;
    return OAR_OK;
}

oar_status oar_store_get(oar_store *store, const char *key, int64_t timeout_ms,
                         void **value, size_t *bytes)
{
    oari_value found = { 0 };

    OARI_TRY(check_key(store, key));
    if (value == NULL || bytes == NULL)
        return oari_fail(OAR_E_ARG,
                         "store get of \"%s\" with nowhere to put it", key);
    if (watch.look != NULL && timeout_ms != 0)
        OARI_TRY(get_watching(store, key, oari_deadline(timeout_ms), &found));
    else
        OARI_TRY(store->ops->get(store->self, key, oari_deadline(timeout_ms),
                                 &found));
    return give_value(&found, key, timeout_ms, value, bytes);
}

oar_status oari_store_glance(oar_store *store, const char *key,
                             int64_t timeout_ms, void **value, size_t *bytes)
{
    oari_value found = { 0 };

    OARI_TRY(check_key(store, key));
    OARI_TRY(
        (store->ops->glance != NULL ? store->ops->glance : store->ops->get)(
            store->self, key, oari_deadline(timeout_ms), &found));
    return give_value(&found, key, timeout_ms, value, bytes);
}

oar_status oar_store_add(oar_store *store, const char *key, int64_t delta,
                         int64_t *sum)
{
    int64_t result = 0;

    OARI_TRY(check_key(store, key));
    OARI_TRY(store->ops->add(store->self, key, delta, &result));
    if (sum != NULL)
        *sum = result;
    return OAR_OK;
}

oar_status oar_store_compare_set(oar_store *store, const char *key,
                                 const void *expected, size_t expected_bytes,
                                 const void *wanted, size_t wanted_bytes,
                                 int *swapped)
{
    int did = 0;

    OARI_TRY(check_key(store, key));
    OARI_TRY(check_value(key, wanted, wanted_bytes));
    if (expected == NULL || expected_bytes <= OAR_STORE_VALUE_MAX)
        OARI_TRY(store->ops->compare_set(
            store->self, key, (oari_bytes){ expected, expected_bytes },
            (oari_bytes){ wanted, wanted_bytes }, &did));
    if (swapped != NULL)
        *swapped = did; /* no value is as large as that one */
    return OAR_OK;
}

oar_status oar_store_delete(oar_store *store, const char *key)
{
    OARI_TRY(check_key(store, key));
    return store->ops->remove(store->self, key);
}

oar_status oar_store_wait(oar_store *store, int count, const char *const *key,
                          int64_t timeout_ms)
{
    int missing = -1;

    OARI_TRY(check_store(store));
    if (count < 0 || (count > 0 && key == NULL))
        return oari_fail(OAR_E_ARG, "store wait for %d keys", count);
    for (int i = 0; i < count; i++)
        OARI_TRY(check_key(store, key[i]));
    if (count > 0)
        OARI_TRY(store->ops->wait(store->self, count, key,
                                  oari_deadline(timeout_ms), &missing));
    return missing < 0 ? OAR_OK : too_late(key[missing], timeout_ms);
}

oar_status oar_store_list(oar_store *store, const char *prefix, int *count,
                          char ***keys)
{
    oari_names names = { 0 };
    oar_status status;

    OARI_TRY(check_store(store));
    if (count == NULL || keys == NULL)
        return oari_fail(OAR_E_ARG, "store list with nowhere to put it");
    if (prefix == NULL)
        prefix = "";
    status = strlen(prefix) > OAR_STORE_KEY_MAX
                 ? OAR_OK /* no key is as long as that */
                 : store->ops->list(store->self, prefix, &names);
    if (status != OAR_OK) {
        oari_names_drop(&names);
        return status;
    }
    return oari_names_give(&names, count, keys);
}

oar_status oar_store_clear(oar_store *store)
{
    OARI_TRY(check_store(store));
    return store->ops->clear(store->self, "");
}
