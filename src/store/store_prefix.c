/* SPDX-License-Identifier: Apache-2.0 */
/* store_prefix: a namespace: the keys of another store that begin with one
 * prefix. */
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "store/store.h"

typedef struct prefix_store {
    oar_store *parent;
    size_t bytes;
    char prefix[OAR_STORE_KEY_MAX + 1];
} prefix_store;

typedef struct full_key {
    char text[OAR_STORE_KEY_MAX + 1];
} full_key;

static oar_status add_prefix(const prefix_store *s, const char *key,
                             full_key *full)
{
    size_t bytes = strlen(key);

    if (s->bytes + bytes > OAR_STORE_KEY_MAX)
        return oari_fail(OAR_E_ARG,
                         "store key \"%s\" with the prefix \"%s\": more than "
                         "%d bytes",
                         key, s->prefix, OAR_STORE_KEY_MAX);
    memcpy(full->text, s->prefix, s->bytes);
    memcpy(full->text + s->bytes, key, bytes + 1);
    return OAR_OK;
}

static oar_status change_value(void *self, oari_change *change)
{
    prefix_store *s = self;
    oari_change full_change = *change;
    full_key full;

    OARI_TRY(add_prefix(s, change->key, &full));
    full_change.key = full.text;
    OARI_TRY(s->parent->ops->change(s->parent->self, &full_change));
    change->sum = full_change.sum;
    change->swapped = full_change.swapped;
    return OAR_OK;
}

static oar_status get_value(void *self, const char *key, int64_t deadline_ns,
                            int once, oari_value *value)
{
    prefix_store *s = self;
    full_key full;

    OARI_TRY(add_prefix(s, key, &full));
    return s->parent->ops->get(s->parent->self, full.text, deadline_ns, once,
                               value);
}

static oar_status wait_for_keys(void *self, int count, const char *const *key,
                                int64_t deadline_ns, int *missing)
{
    prefix_store *s = self;
    full_key *full = oari_alloc((size_t)count, sizeof *full);
    const char **text = oari_alloc((size_t)count, sizeof *text);
    oar_status status = full != NULL && text != NULL ? OAR_OK : OAR_E_NOMEM;

    for (int i = 0; i < count && status == OAR_OK; i++) {
        status = add_prefix(s, key[i], &full[i]);
        text[i] = full[i].text;
    }
    if (status == OAR_OK)
        status = s->parent->ops->wait(s->parent->self, count, text, deadline_ns,
                                      missing);
    oari_free(text);
    oari_free(full);
    return status;
}

/* Lists the parent's keys without the prefix. */
static oar_status list_keys(void *self, const char *prefix, oari_key_list *keys)
{
    prefix_store *s = self;
    oari_key_list found = { 0 };
    const char *key;
    full_key full;
    oar_status status;

    if (s->bytes + strlen(prefix) > OAR_STORE_KEY_MAX)
        return OAR_OK; /* no key is that long */
    OARI_TRY(add_prefix(s, prefix, &full));
    status = s->parent->ops->list(s->parent->self, full.text, &found);
    key = found.text;
    for (int i = 0; i < found.count && status == OAR_OK; i++) {
        status = oari_key_list_add(keys, key + s->bytes);
        key += strlen(key) + 1;
    }
    oari_key_list_drop(&found);
    return status;
}

static oar_status clear_keys(void *self, const char *prefix)
{
    prefix_store *s = self;
    full_key full;

    OARI_TRY(add_prefix(s, prefix, &full));
    return s->parent->ops->clear(s->parent->self, full.text);
}

static void destroy_store(void *self)
{
    prefix_store *s = self;

    oar_store_destroy(s->parent);
    oari_free(s);
}

static const char *get_address(void *self)
{
    return oari_store_address(((prefix_store *)self)->parent);
}

static const oari_store_ops prefix_ops = {
    .change = change_value,
    .get = get_value,
    .wait = wait_for_keys,
    .list = list_keys,
    .clear = clear_keys,
    .address = get_address,
    .destroy = destroy_store,
};

oar_status oar_store_create_prefix(oar_store *parent, const char *prefix,
                                   oar_store **store)
{
    prefix_store *s;

    if (parent == NULL || prefix == NULL || store == NULL)
        return oari_fail(OAR_E_ARG, "store_create_prefix without %s",
                         parent == NULL   ? "a store"
                         : prefix == NULL ? "a prefix"
                                          : "a place for it");
    if (*prefix == 0 || strlen(prefix) >= OAR_STORE_KEY_MAX)
        return oari_fail(OAR_E_ARG,
                         "a store prefix of %zu bytes: 1 to %d are allowed",
                         strlen(prefix), OAR_STORE_KEY_MAX - 1);
    if ((s = oari_alloc(1, sizeof *s)) == NULL)
        return OAR_E_NOMEM;
    s->parent = oari_store_retain(parent);
    s->bytes = strlen(prefix);
    memcpy(s->prefix, prefix, s->bytes);
    return oari_store_wrap(&prefix_ops, s, store);
}
