/* SPDX-License-Identifier: Apache-2.0 */
/* store/store.h: what a kind of store is. The public calls in store.c check
 * arguments and word what went wrong; a kind does the rest. Kinds that keep
 * their values in reach are made of a few functions more, see store_shelf.h. */
#ifndef OARI_STORE_STORE_H
#define OARI_STORE_STORE_H

#include <stdatomic.h>

#include <oarsong/store.h>

/* A value, owned by whoever holds it. data == NULL: there is none. */
typedef struct oari_value {
    void *data;
    size_t bytes;
} oari_value;

/* The same, only to be read. */
typedef struct oari_bytes {
    const void *data;
    size_t bytes;
} oari_bytes;

/* Keys that a list is made of: texts one behind the other. */
typedef struct oari_names {
    char *text;
    size_t bytes;
    int64_t room;
    int count;
} oari_names;

/* Keys and sizes have been checked. Deadlines are of oari_now_ns. */
typedef struct oari_store_ops {
    oar_status (*set)(void *self, const char *key, oari_bytes value);
    /* OAR_OK without a value: it did not come in time. */
    oar_status (*get)(void *self, const char *key, int64_t deadline_ns,
                      oari_value *value);
    /* (optional: get) The same of a store that may be gone: fails as soon as
     * it cannot be reached, and soon after the deadline if it is silent. */
    oar_status (*glance)(void *self, const char *key, int64_t deadline_ns,
                         oari_value *value);
    oar_status (*add)(void *self, const char *key, int64_t delta, int64_t *sum);
    /* expected.data == NULL: the key is not to be there. */
    oar_status (*compare_set)(void *self, const char *key, oari_bytes expected,
                              oari_bytes wanted, int *swapped);
    oar_status (*remove)(void *self, const char *key);
    /* *missing: -1, or the first that did not come in time. */
    oar_status (*wait)(void *self, int count, const char *const *key,
                       int64_t deadline_ns, int *missing);
    /* Adds the keys that begin so. */
    oar_status (*list)(void *self, const char *prefix, oari_names *names);
    /* Removes the keys that begin so; "": all, and what held them. */
    oar_status (*clear)(void *self, const char *prefix);
    /* (optional) Where its server is, "host:port"; NULL: nowhere. */
    const char *(*address)(void *self);
    void (*destroy)(void *self);
} oari_store_ops;

struct oar_store {
    const oari_store_ops *ops;
    void *self;
    _Atomic int holders;
    oar_store_server *server; /* goes with it; NULL: none */
};

/* Wraps self, which is destroyed through ops if this fails. */
oar_status oari_store_wrap(const oari_store_ops *ops, void *self,
                           oar_store **store);

/* One more oar_store_destroy is needed. Gives back the store. NULL is fine. Any
 * thread. */
oar_store *oari_store_retain(oar_store *store);

/* Where its server is; NULL: it has none. Borrowed. */
const char *oari_store_address(const oar_store *store);

/* Takes the server (may be NULL): it is destroyed with the store. */
void oari_store_take_server(oar_store *store, oar_store_server *server);

/* Like oar_store_get, but does not wait for a store that is gone: fails as soon
 * as the store cannot be reached, and at most half a second after the timeout.
 */
oar_status oari_store_glance(oar_store *store, const char *key,
                             int64_t timeout_ms, void **value, size_t *bytes);

/* While this thread makes a group, its oar_store_get, on whatever store, also
 * asks `look` every now and then, and fails as that does, unless the value has
 * come meanwhile. NULL: no more. */
typedef oar_status (*oari_look_fn)(void *arg);
void oari_store_watch(oari_look_fn look, void *arg);

/* Until when changes that this thread makes may wait for those of other
 * processes: a deadline of oari_now_ns, or 0: as long as the kind of store
 * takes to be enough. Gives the one before, to be set again. */
int64_t oari_store_until(int64_t deadline_ns);

/* A value with a copy of these bytes, and a zero byte behind them. */
oar_status oari_value_copy(const void *data, size_t bytes, oari_value *value);

/* ---- store_names.c ------------------------------------------------------- */

oar_status oari_names_add(oari_names *names, const char *key);
void oari_names_drop(oari_names *names);

/* Turns them, dropped in any case, into one allocation: a sorted array of texts
 * with a NULL behind it. */
oar_status oari_names_give(oari_names *names, int *count, char ***keys);

/* Sorted pointers into them (oari_free the array). */
oar_status oari_names_sort(const oari_names *names, char ***order);

static inline int oari_begins_with(const char *key, const char *prefix)
{
    while (*prefix != 0)
        if (*key++ != *prefix++)
            return 0;
    return 1;
}

/* ---- store_change.c: one step on one value ------------------------------- */

/* Makes *value what it is to be; on failure it is what it was. */
typedef oar_status (*oari_change_fn)(void *arg, oari_value *value);

typedef struct oari_addition {
    const char *key;
    int64_t delta;
    int64_t sum;
} oari_addition;

typedef struct oari_swap {
    oari_bytes expected, wanted;
    int swapped;
} oari_swap;

typedef struct oari_removal {
    const char *key;
} oari_removal;

/* With a pointer to oari_bytes and to the structs above. */
oar_status oari_change_to(void *bytes, oari_value *value);
oar_status oari_change_by_adding(void *addition, oari_value *value);
oar_status oari_change_if_expected(void *swap, oari_value *value);
oar_status oari_change_to_nothing(void *removal, oari_value *value);

#endif
