/* SPDX-License-Identifier: Apache-2.0 */
/* store/store_shelf.h: kinds of store whose values are in reach: a process's
 * memory, a folder. Such a kind looks up and swaps whole values and knows how
 * to wait a moment; every operation is made of that. */
#ifndef OARI_STORE_STORE_SHELF_H
#define OARI_STORE_STORE_SHELF_H

#include "store/store.h"

typedef struct oari_shelf_ops {
    /* Gives the value of key, or none. */
    oar_status (*look)(void *self, const char *key, oari_value *value);
    /* Calls `change` on the value under key as one step. */
    oar_status (*update)(void *self, const char *key, oari_change_fn change,
                         void *arg);
    /* Returns when something may have changed, or at the deadline. tries is
     * how often this wait has been called for one get. */
    void (*pause)(void *self, int tries, int64_t deadline_ns);
    /* As oari_store_ops has them. */
    oar_status (*list)(void *self, const char *prefix, oari_names *names);
    oar_status (*clear)(void *self, const char *prefix);
    void (*destroy)(void *self);
} oari_shelf_ops;

/* The first member of the kind's own struct. */
typedef struct oari_shelf {
    const oari_shelf_ops *ops;
} oari_shelf;

/* For oari_store_wrap, with a self that begins with an oari_shelf. */
extern const oari_store_ops oari_shelf_store;

#endif
