/* SPDX-License-Identifier: Apache-2.0 */
/* store.h: a small key-value rendezvous, where ranks find each other.
 *
 * Keys are texts of 1 to 200 bytes (in a file store, whose keys are file names,
 * of at most 250 when all but letters, digits, '-' and '_' count for three),
 * values up to OAR_STORE_VALUE_MAX bytes. Any
 * thread may use a store; calls on one store never mix their effects. A timeout
 * below zero waits for ever, zero does not wait.
 */
#ifndef OARSONG_STORE_H
#define OARSONG_STORE_H

#include <oarsong/memory.h>

OAR_BEGIN_DECLS

enum { OAR_STORE_KEY_MAX = 200, OAR_STORE_VALUE_MAX = 1 << 20 };

typedef struct oar_store oar_store;

/* In this process only: for ranks that are threads. */
OAR_API oar_status oar_store_create_memory(oar_store **store);

/* A folder on a disk that all ranks see; it is made if it is not there. What
 * is stored stays until oar_store_clear: give every job a folder of its own. */
OAR_API oar_status oar_store_create_file(const char *folder, oar_store **store);

/* Gives up the handle. NULL is fine. Keys stay where they are. */
OAR_API void oar_store_destroy(oar_store *store);

/* Puts a value under a key, at once as a whole, over one that was there. */
OAR_API oar_status oar_store_set(oar_store *store, const char *key,
                                 const void *value, size_t bytes);

/* Waits until the key is there and gives its value (oar_free it; it ends in a
 * zero byte that is not counted). OAR_E_TIMEOUT names the key. */
OAR_API oar_status oar_store_get(oar_store *store, const char *key,
                                 int64_t timeout_ms, void **value,
                                 size_t *bytes);

/* Adds to the whole number under a key (0 if there is none), as one step, and
 * gives the sum. The value is kept as decimal text. */
OAR_API oar_status oar_store_add(oar_store *store, const char *key,
                                 int64_t delta, int64_t *sum);

/* Puts `wanted` under the key if it now holds `expected` (NULL: if it is not
 * there), as one step; *swapped says whether it did. */
OAR_API oar_status oar_store_compare_set(oar_store *store, const char *key,
                                         const void *expected,
                                         size_t expected_bytes,
                                         const void *wanted,
                                         size_t wanted_bytes, int *swapped);

/* Removes a key; OAR_E_NOT_FOUND if it is not there. */
OAR_API oar_status oar_store_delete(oar_store *store, const char *key);

/* Waits until all keys are there. OAR_E_TIMEOUT names the first that is not. */
OAR_API oar_status oar_store_wait(oar_store *store, int count,
                                  const char *const *key, int64_t timeout_ms);

/* Removes every key; a file store's folder too. */
OAR_API oar_status oar_store_clear(oar_store *store);

OAR_END_DECLS

#endif
