/* SPDX-License-Identifier: Apache-2.0 */
/* store_prefix: a namespace: the keys of another store that begin alike. */
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

static oar_status extend(const prefix_store *s, const char *key, full_key *full)
{
    size_t bytes = strlen(key);

    if (s->bytes + bytes > OAR_STORE_KEY_MAX)
        return oari_fail(OAR_E_ARG,
                         "store key \"%s\" behind the prefix \"%s\": more than "
                         "%d bytes",
                         key, s->prefix, OAR_STORE_KEY_MAX);
    memcpy(full->text, s->prefix, s->bytes);
    memcpy(full->text + s->bytes, key, bytes + 1);
    return OAR_OK;
}

static oar_status set(void *self, const char *key, oari_bytes value)
{
    prefix_store *s = self;
    full_key full;

    OARI_TRY(extend(s, key, &full));
    return s->parent->ops->set(s->parent->self, full.text, value);
}

static oar_status get(void *self, const char *key, int64_t deadline_ns,
                      oari_value *value)
{
    prefix_store *s = self;
    full_key full;

    OARI_TRY(extend(s, key, &full));
    return s->parent->ops->get(s->parent->self, full.text, deadline_ns, value);
}

static oar_status glance(void *self, const char *key, int64_t deadline_ns,
                         oari_value *value)
{
    prefix_store *s = self;
    const oari_store_ops *ops = s->parent->ops;
    full_key full;

    OARI_TRY(extend(s, key, &full));
    return (ops->glance != NULL ? ops->glance : ops->get)(
        s->parent->self, full.text, deadline_ns, value);
}

static oar_status add(void *self, const char *key, int64_t delta, int64_t *sum)
{
    prefix_store *s = self;
    full_key full;

    OARI_TRY(extend(s, key, &full));
    return s->parent->ops->add(s->parent->self, full.text, delta, sum);
}

static oar_status compare_set(void *self, const char *key, oari_bytes expected,
                              oari_bytes wanted, int *swapped)
{
    prefix_store *s = self;
    full_key full;

    OARI_TRY(extend(s, key, &full));
    return s->parent->ops->compare_set(s->parent->self, full.text, expected,
                                       wanted, swapped);
}

static oar_status remove_key(void *self, const char *key)
{
    prefix_store *s = self;
    full_key full;

    OARI_TRY(extend(s, key, &full));
    return s->parent->ops->remove(s->parent->self, full.text);
}

static oar_status wait_for(void *self, int count, const char *const *key,
                           int64_t deadline_ns, int *missing)
{
    prefix_store *s = self;
    full_key *full = oari_alloc((size_t)count, sizeof *full);
    const char **text = oari_alloc((size_t)count, sizeof *text);
    oar_status status = full != NULL && text != NULL ? OAR_OK : OAR_E_NOMEM;

    for (int i = 0; i < count && status == OAR_OK; i++) {
        status = extend(s, key[i], &full[i]);
        text[i] = full[i].text;
    }
    if (status == OAR_OK)
        status = s->parent->ops->wait(s->parent->self, count, text, deadline_ns,
                                      missing);
    oari_free(text);
    oari_free(full);
    return status;
}

/* The parent's names, without what all of them begin with. */
static oar_status shorten(const oari_names *found, size_t bytes,
                          oari_names *names)
{
    const char *key = found->text;

    for (int i = 0; i < found->count; i++, key += strlen(key) + 1)
        OARI_TRY(oari_names_add(names, key + bytes));
    return OAR_OK;
}

static oar_status list(void *self, const char *prefix, oari_names *names)
{
    prefix_store *s = self;
    oari_names found = { 0 };
    full_key full;
    oar_status status;

    if (s->bytes + strlen(prefix) > OAR_STORE_KEY_MAX)
        return OAR_OK; /* there can be none */
    OARI_TRY(extend(s, prefix, &full));
    status = s->parent->ops->list(s->parent->self, full.text, &found);
    if (status == OAR_OK)
        status = shorten(&found, s->bytes, names);
    oari_names_drop(&found);
    return status;
}

static oar_status clear(void *self, const char *prefix)
{
    prefix_store *s = self;
    full_key full;

    OARI_TRY(extend(s, prefix, &full));
    return s->parent->ops->clear(s->parent->self, full.text);
}

static void destroy(void *self)
{
    prefix_store *s = self;

    oar_store_destroy(s->parent);
    oari_free(s);
}

static const char *address_of(void *self)
{
    return oari_store_address(((prefix_store *)self)->parent);
}

static const oari_store_ops prefix_ops = {
    .set = set,
    .get = get,
    .glance = glance,
    .add = add,
    .compare_set = compare_set,
    .remove = remove_key,
    .wait = wait_for,
    .list = list,
    .clear = clear,
    .address = address_of,
    .destroy = destroy,
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
