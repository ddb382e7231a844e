/* SPDX-License-Identifier: Apache-2.0 */
/* store_shelf: every change is one update of one key; waiting is looking again
 * after a pause. */
#include "store/store_shelf.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"

static const oari_shelf_ops *ops_of(void *self)
{
    return ((oari_shelf *)self)->ops;
}

static oar_status set(void *self, const char *key, oari_bytes value)
{
    return ops_of(self)->update(self, key, oari_change_to, &value);
}

static oar_status get(void *self, const char *key, int64_t deadline_ns,
                      oari_value *value)
{
    for (int tries = 0;; tries++) {
        OARI_TRY(ops_of(self)->look(self, key, value));
        if (value->data != NULL || oari_now_ns() >= deadline_ns)
            return OAR_OK;
        ops_of(self)->pause(self, tries, deadline_ns);
    }
}

static oar_status add(void *self, const char *key, int64_t delta, int64_t *sum)
{
    oari_addition a = { key, delta, 0 };

    OARI_TRY(ops_of(self)->update(self, key, oari_change_by_adding, &a));
    *sum = a.sum;
    return OAR_OK;
}

static oar_status compare_set(void *self, const char *key, oari_bytes expected,
                              oari_bytes wanted, int *swapped)
{
    oari_swap s = { expected, wanted, 0 };

    OARI_TRY(ops_of(self)->update(self, key, oari_change_if_expected, &s));
    *swapped = s.swapped;
    return OAR_OK;
}

static oar_status remove_key(void *self, const char *key)
{
    return ops_of(self)->update(self, key, oari_change_to_nothing,
                                &(oari_removal){ key });
}

static oar_status wait_for(void *self, int count, const char *const *key,
                           int64_t deadline_ns, int *missing)
{
    *missing = -1;
    for (int i = 0; i < count; i++) {
        oari_value found = { 0 };
        OARI_TRY(get(self, key[i], deadline_ns, &found));
        if (found.data == NULL) {
            *missing = i;
            break;
        }
        oari_free(found.data);
    }
    return OAR_OK;
}

static oar_status list(void *self, const char *prefix, oari_names *names)
{
    return ops_of(self)->list(self, prefix, names);
}

static oar_status clear(void *self, const char *prefix)
{
    return ops_of(self)->clear(self, prefix);
}

static void destroy(void *self)
{
    ops_of(self)->destroy(self);
}

const oari_store_ops oari_shelf_store = {
    .set = set,
    .get = get,
    .add = add,
    .compare_set = compare_set,
    .remove = remove_key,
    .wait = wait_for,
    .list = list,
    .clear = clear,
    .destroy = destroy,
};
