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

/* Returns where the key's entry is, or would be. The table has buckets. */
static entry **find_entry(const oari_table *t, const char *key, uint64_t hash)
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
    e = *find_entry(table, key, oari_key_hash(key));
    return e != NULL ? &e->value : NULL;
}

/* Doubles the buckets when they are as many as the entries. Without memory for
 * that, the chains grow longer instead. */
static oar_status grow_table(oari_table *t)
{
    size_t buckets = t->buckets != 0 ? 2 * t->buckets : FIRST_BUCKETS;
    entry **bucket;

    if (t->count < t->buckets)
        return OAR_OK;
    if ((bucket = oari_alloc(buckets, sizeof(entry *))) == NULL)
        return t->buckets != 0 ? OAR_OK : OAR_E_NOMEM;
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
    return OAR_OK;
}

static size_t entry_bytes(const entry *e)
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

oar_status oari_table_update(oari_table *table, const char *key,
                             oari_change_fn change, void *arg)
{
    uint64_t hash = oari_key_hash(key);
    size_t bytes = strlen(key) + 1;
    oar_status status;
    entry **at, *made;

    OARI_TRY(grow_table(table));
    at = find_entry(table, key, hash);
    if (*at == NULL) {
        if ((made = oari_alloc(1, sizeof *made + bytes)) == NULL)
            return OAR_E_NOMEM;
        made->hash = hash;
        memcpy(made->key, key, bytes);
        *at = made;
        table->count++;
    } else
        table->bytes -= entry_bytes(*at);
    status = change(arg, &(*at)->value);
    if ((*at)->value.data == NULL)
        remove_entry(table, at);
    else
        table->bytes += entry_bytes(*at);
    return status;
}

oar_status oari_table_list(const oari_table *table, const char *prefix,
                           oari_key_list *keys)
{
    for (size_t i = 0; i < table->buckets; i++)
        for (entry *e = table->bucket[i]; e != NULL; e = e->next)
            if (oari_begins_with(e->key, prefix))
                OARI_TRY(oari_key_list_add(keys, e->key));
    return OAR_OK;
}

void oari_table_clear(oari_table *table, const char *prefix)
{
    for (size_t i = 0; i < table->buckets; i++)
        for (entry **at = &table->bucket[i]; *at != NULL;)
            if (oari_begins_with((*at)->key, prefix)) {
                table->bytes -= entry_bytes(*at);
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
