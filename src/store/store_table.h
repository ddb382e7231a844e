/* SPDX-License-Identifier: Apache-2.0 */
/* store/store_table.h: keys and values in memory, for the store of one process
 * and for the server. Zeroed is empty. Not locked. */
#ifndef OARI_STORE_STORE_TABLE_H
#define OARI_STORE_STORE_TABLE_H

#include "store/store.h"

typedef struct oari_table {
    struct oari_table_entry **bucket;
    size_t buckets, count;
    size_t bytes; /* of keys, values and what holds them */
} oari_table;

/* NULL: not there. Borrowed, until the table is changed. */
const oari_value *oari_table_find(const oari_table *table, const char *key);

oar_status oari_table_update(oari_table *table, const char *key,
                             oari_change_fn change, void *arg);

oar_status oari_table_list(const oari_table *table, const char *prefix,
                           oari_names *names);

/* Removes the keys that begin so. */
void oari_table_clear(oari_table *table, const char *prefix);

/* Removes everything and gives back all memory. */
void oari_table_drop(oari_table *table);

/* Of a key, for tables of one's own. */
uint64_t oari_key_hash(const char *key);

#endif
