/* SPDX-License-Identifier: Apache-2.0 */
/* comm/store.h: what a kind of store is: a few functions on whole values. The
 * public calls check arguments, wait and keep numbers; a kind only looks up and
 * swaps. */
#ifndef OARI_COMM_STORE_H
#define OARI_COMM_STORE_H

#include <stdatomic.h>

#include <oarsong/store.h>

/* A value, owned by whoever holds it. data == NULL: there is none. */
typedef struct oari_value {
    void *data;
    size_t bytes;
} oari_value;

typedef struct oari_store_ops {
    /* Gives the value of key, or none. */
    oar_status (*look)(void *self, const char *key, oari_value *value);
    /* Calls `change` on the value under key as one step. */
    oar_status (*update)(void *self, const char *key,
                         oar_status (*change)(void *arg, oari_value *value),
                         void *arg);
    /* Returns when something may have changed, or at the deadline. tries is
     * how often this wait has been called for one get. */
    void (*pause)(void *self, int tries, int64_t deadline_ns);
    oar_status (*clear)(void *self);
    void (*destroy)(void *self);
} oari_store_ops;

struct oar_store {
    const oari_store_ops *ops;
    void *self;
    _Atomic int holders;
};

/* One more reference; NULL stays NULL. */
oar_store *oari_store_retain(oar_store *store);

/* Wraps self, which is destroyed through ops if this fails. */
oar_status oari_store_wrap(const oari_store_ops *ops, void *self,
                           oar_store **store);

/* A value with a copy of these bytes, and a zero byte behind them. */
oar_status oari_value_copy(const void *data, size_t bytes, oari_value *value);

#endif
