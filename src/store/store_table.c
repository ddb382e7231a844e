/* SPDX-License-Identifier: Apache-2.0 */
/* store_table: a hash table with chains, doubled when it has as many entries as
 * buckets. */
#include "store/store_table.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

typedef struct oari_table_entry {
    struct oari_table_entry *next;
    uint64_t hash;
    oari_value value;
    char key[];
} entry;

enum { FIRST_BUCKETS = 64 };

uint64_t oari_key_hash(const char *key)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */

    for (; *key != 0; key++)
        h = (h ^ (unsigned char)*key) * 1099511628211u;
    return h ^ h >> 32;
}

/* Where the entry of the key is, or would be. The table has buckets. */
static entry **find(const oari_table *t, const char *key, uint64_t hash)
{
    entry **at = &t->bucket[hash & (t->buckets - 1)];

    while (*at != NULL && ((*at)->hash != hash || strcmp((*at)->key, key) != 0))
        at = &(*at)->next;
    return at;
}

const oari_value *oari_table_find(const oari_table *table, const char *key)
{
    entry *e;

    if (table->buckets == 0)
        return NULL;
    e = *find(table, key, oari_key_hash(key));
    return e != NULL ? &e->value : NULL;
}

static void rehash(oari_table *t, entry **bucket, size_t buckets)
{
    for (size_t i = 0; i < t->buckets; i++)
        while (t->bucket[i] != NULL) {
            entry *e = t->bucket[i];
            t->bucket[i] = e->next;
            e->next = bucket[e->hash & (buckets - 1)];
            bucket[e->hash & (buckets - 1)] = e;
        }
    oari_free(t->bucket);
    t->bucket = bucket;
    t->buckets = buckets;
}

/* Without memory to grow, long chains must do. */
static oar_status make_room(oari_table *t)
{
    size_t buckets = t->buckets != 0 ? 2 * t->buckets : FIRST_BUCKETS;
    entry **bucket;

    if (t->count < t->buckets)
        return OAR_OK;
    bucket = oari_alloc(buckets, sizeof(entry *));
    if (bucket != NULL)
        rehash(t, bucket, buckets);
    return t->buckets != 0 ? OAR_OK : OAR_E_NOMEM;
}

static size_t weight(const entry *e)
{
    return sizeof *e + strlen(e->key) + e->value.bytes;
}

static void remove_entry(oari_table *t, entry **at)
{
    entry *e = *at;

    *at = e->next;
    t->count--;
    oari_free(e->value.data);
    oari_free(e);
}

/* A new entry without a value at the end of a chain. */
static oar_status add_entry(oari_table *t, entry **at, const char *key,
                            uint64_t hash)
{
    size_t bytes = strlen(key) + 1;
    entry *e = oari_alloc(1, sizeof *e + bytes);

    if (e == NULL)
        return OAR_E_NOMEM;
    e->hash = hash;
    memcpy(e->key, key, bytes);
    *at = e;
    t->count++;
    return OAR_OK;
}

oar_status oari_table_update(oari_table *table, const char *key,
                             oari_change_fn change, void *arg)
{
    uint64_t hash = oari_key_hash(key);
    oar_status status;
    entry **at;

    OARI_TRY(make_room(table));
    at = find(table, key, hash);
    if (*at == NULL)
        OARI_TRY(add_entry(table, at, key, hash));
    else
        table->bytes -= weight(*at);
    status = change(arg, &(*at)->value);
    if ((*at)->value.data == NULL)
        remove_entry(table, at);
    else
        table->bytes += weight(*at);
    return status;
}

oar_status oari_table_list(const oari_table *table, const char *prefix,
                           oari_names *names)
{
    for (size_t i = 0; i < table->buckets; i++)
        for (entry *e = table->bucket[i]; e != NULL; e = e->next)
            if (oari_begins_with(e->key, prefix))
                OARI_TRY(oari_names_add(names, e->key));
    return OAR_OK;
}

void oari_table_clear(oari_table *table, const char *prefix)
{
    for (size_t i = 0; i < table->buckets; i++)
        for (entry **at = &table->bucket[i]; *at != NULL;)
            if (oari_begins_with((*at)->key, prefix)) {
                table->bytes -= weight(*at);
                remove_entry(table, at);
            } else
                at = &(*at)->next;
}

void oari_table_drop(oari_table *table)
{
    oari_table_clear(table, "");
    oari_free(table->bucket);
    *table = (oari_table){ 0 };
}
