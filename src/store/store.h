/* SPDX-License-Identifier: Apache-2.0 */
/* store/store.h: what a kind of store is. The public calls in store.c check
 * arguments and word the failures; a kind does the rest. Kinds whose values
 * this process can reach itself share their operations, see store_local.h. */
#ifndef OARI_STORE_STORE_H
#define OARI_STORE_STORE_H

#include <stdatomic.h>

#include <oarsong/store.h>

/* A value, with memory that its holder owns. data == NULL: there is none. */
typedef struct oari_value {
    void *data;
    size_t bytes;
} oari_value;

/* Borrowed bytes, only to be read. */
typedef struct oari_bytes {
    const void *data;
    size_t bytes;
} oari_bytes;

/* A list of keys: texts one behind the other, each with its zero byte. */
typedef struct oari_key_list {
    char *text;
    size_t bytes;
    int64_t room;
    int count;
} oari_key_list;

/* One change of one value. */
typedef enum oari_change_kind {
    OARI_CHANGE_SET,
    OARI_CHANGE_ADD,
    OARI_CHANGE_COMPARE_SET,
    OARI_CHANGE_DELETE
} oari_change_kind;

typedef struct oari_change {
    oari_change_kind kind;
    const char *key;
    oari_bytes value;    /* SET, COMPARE_SET: the new value */
    oari_bytes expected; /* COMPARE_SET; data == NULL: the key must not exist */
    int64_t delta;       /* ADD */
    int64_t sum;         /* result of ADD */
    int swapped;         /* result of COMPARE_SET */
} oari_change;

/* One kind of store. The callers have checked keys and sizes. Deadlines are on
 * the clock of oari_now_ns. */
typedef struct oari_store_ops {
    oar_status (*change)(void *self, oari_change *change);
    /* Gives OAR_OK without a value if none appears by the deadline. once: does
     * not reconnect, but fails as soon as the store cannot be reached, and soon
     * after the deadline if the store is silent. */
    oar_status (*get)(void *self, const char *key, int64_t deadline_ns,
                      int once, oari_value *value);
    /* *missing: -1, or the first key that is missing at the deadline. */
    oar_status (*wait)(void *self, int count, const char *const *key,
                       int64_t deadline_ns, int *missing);
    /* Adds the keys that begin with prefix to the list. */
    oar_status (*list)(void *self, const char *prefix, oari_key_list *keys);
    /* Removes the keys that begin with prefix; "": all keys, and what held
     * them. */
    oar_status (*clear)(void *self, const char *prefix);
    /* (optional) Returns "host:port" of the server; NULL: it has none. */
    const char *(*address)(void *self);
    void (*destroy)(void *self);
} oari_store_ops;

struct oar_store {
    const oari_store_ops *ops;
    void *self;
    _Atomic int holders;
    oar_store_server *server; /* destroyed with the store; NULL: none */
};

/* Makes a store of ops and self, and takes self: a failure destroys it. */
oar_status oari_store_wrap(const oari_store_ops *ops, void *self,
                           oar_store **store);

/* Returns the store, which needs one more oar_store_destroy now. NULL is fine.
 * Any thread may call this. */
oar_store *oari_store_retain(oar_store *store);

/* Returns "host:port" of the store's server, borrowed; NULL: it has none. */
const char *oari_store_address(const oar_store *store);

/* Takes the server (may be NULL) and destroys it with the store. */
void oari_store_take_server(oar_store *store, oar_store_server *server);

/* Gets a value as oar_store_get does, but never reconnects: fails as soon as
 * the store cannot be reached, and at most half a second after the timeout. */
oar_status oari_store_get_once(oar_store *store, const char *key,
                               int64_t timeout_ms, void **value, size_t *bytes);

/* Makes every oar_store_get of this thread, on any store, call `look` from time
 * to time while it waits, and fail as `look` fails unless the value has
 * appeared by then. NULL ends that. */
typedef oar_status (*oari_wait_check_fn)(void *arg);
void oari_store_set_wait_check(oari_wait_check_fn look, void *arg);

/* Sets how long changes by this thread may wait for the lock of a store: until
 * a time of oari_now_ns, but at least for a moment in which other processes end
 * their changes, or, with 0, as long as the kind of store allows.
 * Returns the deadline that was set before, so that the caller can restore it.
 */
int64_t oari_store_set_lock_deadline(int64_t deadline_ns);

/* ---- store_value.c: lists of keys ---------------------------------------- */

oar_status oari_key_list_add(oari_key_list *list, const char *key);
void oari_key_list_drop(oari_key_list *list);

/* Gives the keys as one allocation, a sorted array of texts with a NULL at the
 * end, and drops the list, on failure too. */
oar_status oari_key_list_give(oari_key_list *list, int *count, char ***keys);

/* Gives sorted pointers into the list (oari_free the array). */
oar_status oari_key_list_sort(const oari_key_list *list, char ***sorted);

static inline int oari_begins_with(const char *key, const char *prefix)
{
    while (*prefix != 0)
        if (*key++ != *prefix++)
            return 0;
    return 1;
}

/* ---- store_value.c: one change of one value ------------------------------ */

/* Gives a copy of these bytes, with a zero byte behind them. */
oar_status oari_value_copy(const void *data, size_t bytes, oari_value *value);

/* Changes *value; on failure it keeps its old content. */
typedef oar_status (*oari_change_fn)(void *arg, oari_value *value);

/* Applies an oari_change: an oari_change_fn. */
oar_status oari_change_apply(void *change, oari_value *value);

#endif
