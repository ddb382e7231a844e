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

static oar_status fail_late(const char *key, int64_t timeout_ms)
{
    return oari_fail(OAR_E_TIMEOUT,
                     "store key \"%s\" did not appear in %" PRId64 " ms", key,
                     timeout_ms);
}

/* ---- calls --------------------------------------------------------------- */

oar_status oar_store_set(oar_store *store, const char *key, const void *value,
                         size_t bytes)
{
    oari_change change = { .kind = OARI_CHANGE_SET, .key = key };

    OARI_TRY(check_key(store, key));
    OARI_TRY(check_value(key, value, bytes));
    change.value = (oari_bytes){ value, bytes };
    return store->ops->change(store->self, &change);
}

/* The time between two calls of the thread's check: at first, and at most. */
enum { CHECK_NS = 10000000, CHECK_MAX_NS = 500000000 };

static _Thread_local struct {
    oari_wait_check_fn look;
    void *arg;
} wait_check;

void oari_store_set_wait_check(oari_wait_check_fn look, void *arg)
{
    wait_check.look = look;
    wait_check.arg = arg;
}

static oar_status get_with_check(const oar_store *store, const char *key,
                                 int64_t deadline, oari_value *found)
{
    int64_t nap = CHECK_NS;

    for (;;) {
        int64_t now = oari_now_ns();
        int64_t until = deadline - now < nap ? deadline : now + nap;
        oar_status status;

        status = store->ops->get(store->self, key, until, 0, found);
        if (status != OAR_OK && status != OAR_E_CLOSED)
            return status;
        if (found->data != NULL || oari_now_ns() >= deadline)
            return status;
        if (wait_check.look(wait_check.arg) != OAR_OK) {
            oar_error why = *oar_last_error();

            if (status == OAR_OK)
                store->ops->get(store->self, key, 0, 0, found);
            return found->data != NULL ? OAR_OK : oari_fail_with(&why);
        }
        if (status == OAR_E_CLOSED) /* the server may come back */
            return store->ops->get(store->self, key, deadline, 0, found);
        nap = 2 * nap < CHECK_MAX_NS ? 2 * nap : CHECK_MAX_NS;
    }
}

static oar_status give_value(const oari_value *found, const char *key,
                             int64_t timeout_ms, void **value, size_t *bytes)
{
    if (found->data == NULL)
        return fail_late(key, timeout_ms);
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
                         "store get of \"%s\" with nowhere to put the value",
                         key);
    if (wait_check.look != NULL && timeout_ms != 0)
        OARI_TRY(get_with_check(store, key, oari_deadline(timeout_ms), &found));
    else
        OARI_TRY(store->ops->get(store->self, key, oari_deadline(timeout_ms), 0,
                                 &found));
    return give_value(&found, key, timeout_ms, value, bytes);
}

oar_status oari_store_get_once(oar_store *store, const char *key,
                               int64_t timeout_ms, void **value, size_t *bytes)
{
    oari_value found = { 0 };

    OARI_TRY(check_key(store, key));
    OARI_TRY(store->ops->get(store->self, key, oari_deadline(timeout_ms), 1,
                             &found));
    return give_value(&found, key, timeout_ms, value, bytes);
}

oar_status oar_store_add(oar_store *store, const char *key, int64_t delta,
                         int64_t *sum)
{
    oari_change change = { .kind = OARI_CHANGE_ADD, .key = key };

    OARI_TRY(check_key(store, key));
    change.delta = delta;
    OARI_TRY(store->ops->change(store->self, &change));
    if (sum != NULL)
        *sum = change.sum;
    return OAR_OK;
}

oar_status oar_store_compare_set(oar_store *store, const char *key,
                                 const void *expected, size_t expected_bytes,
                                 const void *wanted, size_t wanted_bytes,
                                 int *swapped)
{
    oari_change change = { .kind = OARI_CHANGE_COMPARE_SET, .key = key };

    OARI_TRY(check_key(store, key));
    OARI_TRY(check_value(key, wanted, wanted_bytes));
    change.value = (oari_bytes){ wanted, wanted_bytes };
    change.expected = (oari_bytes){ expected, expected_bytes };
    if (expected == NULL || expected_bytes <= OAR_STORE_VALUE_MAX)
        OARI_TRY(store->ops->change(store->self, &change));
    if (swapped != NULL)
        *swapped =
            change.swapped; /* 0 if no value can be as large as expected */
    return OAR_OK;
}

oar_status oar_store_delete(oar_store *store, const char *key)
{
    oari_change change = { .kind = OARI_CHANGE_DELETE, .key = key };

    OARI_TRY(check_key(store, key));
    return store->ops->change(store->self, &change);
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
    return missing < 0 ? OAR_OK : fail_late(key[missing], timeout_ms);
}

oar_status oar_store_list(oar_store *store, const char *prefix, int *count,
                          char ***keys)
{
    oari_key_list list = { 0 };
    oar_status status;

    OARI_TRY(check_store(store));
    if (count == NULL || keys == NULL)
        return oari_fail(OAR_E_ARG, "store list with nowhere to put the keys");
    if (prefix == NULL)
        prefix = "";
    status = strlen(prefix) > OAR_STORE_KEY_MAX
                 ? OAR_OK /* no key is that long */
                 : store->ops->list(store->self, prefix, &list);
    if (status != OAR_OK) {
        oari_key_list_drop(&list);
        return status;
    }
    return oari_key_list_give(&list, count, keys);
}

oar_status oar_store_clear(oar_store *store)
{
    OARI_TRY(check_store(store));
    return store->ops->clear(store->self, "");
}
