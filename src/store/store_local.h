/* SPDX-License-Identifier: Apache-2.0 */
/* store/store_local.h: kinds of store whose values this process can reach
 * itself: in its memory, or in a folder. Such a kind looks up and replaces
 * whole values and can wait a moment for a change; operations are made of that.
 */
#ifndef OARI_STORE_STORE_LOCAL_H
#define OARI_STORE_STORE_LOCAL_H

#include "store/store.h"

typedef struct oari_local_store_ops {
    /* Gives the value of key, or none if the key does not exist. */
    oar_status (*look)(void *self, const char *key, oari_value *value);
    /* Calls `change` on the value of key as one atomic step. */
    oar_status (*update)(void *self, const char *key, oari_change_fn change,
                         void *arg);
    /* Returns when something may have changed, at the latest at the deadline.
     * tries counts the earlier calls of the same get. */
    void (*pause)(void *self, int tries, int64_t deadline_ns);
} oari_local_store_ops;

/* The first member of each such kind's own struct. */
typedef struct oari_local_store {
    const oari_local_store_ops *ops;
} oari_local_store;

/* Operations that are made of the three above; a kind's oari_store_ops has them
 * and its own list, clear and destroy. */
oar_status oari_local_store_change(void *self, oari_change *change);
oar_status oari_local_store_get(void *self, const char *key,
                                int64_t deadline_ns, int once,
                                oari_value *value);
oar_status oari_local_store_wait(void *self, int count, const char *const *key,
                                 int64_t deadline_ns, int *missing);

#endif
