/* SPDX-License-Identifier: Apache-2.0 */
/* store/store_table.h: keys and values in memory, for the memory store and for
 * the server. A zeroed table is empty. The caller locks. */
#ifndef OARI_STORE_STORE_TABLE_H
#define OARI_STORE_STORE_TABLE_H

#include "store/store.h"

typedef struct oari_table {
    struct oari_table_entry **bucket;
    size_t buckets, count;
    size_t bytes; /* of keys, values and entries */
} oari_table;

/* Returns the value of key, borrowed until the table changes; NULL: there is
 * none. */
const oari_value *oari_table_find(const oari_table *table, const char *key);

/* Calls `change` on the value of key, and removes the key if that leaves none.
 */
oar_status oari_table_update(oari_table *table, const char *key,
                             oari_change_fn change, void *arg);

/* Adds the keys that begin with prefix to the list. */
oar_status oari_table_list(const oari_table *table, const char *prefix,
                           oari_key_list *keys);

/* Removes the keys that begin with prefix. */
void oari_table_clear(oari_table *table, const char *prefix);

/* Removes all keys and frees all memory. */
void oari_table_drop(oari_table *table);

/* Returns the hash of a key, for other tables by key. */
uint64_t oari_key_hash(const char *key);

#endif
