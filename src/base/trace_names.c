/* SPDX-License-Identifier: Apache-2.0 */
/* trace_names: the names of a trace, each once, found by a hash table that is
 * read without a lock. */
#include "base/trace_parts.h"

#include <string.h>

static uint32_t hash_of(const char *text)
{
    uint32_t h = 2166136261u;

    for (; *text != 0; text++)
        h = (h ^ (unsigned char)*text) * 16777619u;
    return h;
}

unsigned oari_trace_name_find(const oari_trace_names *t,
                              const oari_trace_file *file, const char *text,
                              uint32_t *at)
{
    uint32_t i = hash_of(text) % OARI_TRACE_NAMES, found;

    while ((found = atomic_load_explicit(&t->hash_at[i],
                                         memory_order_acquire)) != 0) {
        if (strcmp(&file->name[t->offset_of[found]], text) == 0)
            break;
        i = (i + 1) % OARI_TRACE_NAMES;
    }
    *at = i;
    return found;
}

unsigned oari_trace_name_enter(oari_trace_names *t, oari_trace_file *file,
                               const char *text)
{
    uint32_t at = 0, used = atomic_load(&file->head.names);
    size_t bytes = strlen(text) + 1;
    unsigned n = oari_trace_name_find(t, file, text, &at);

    if (n != 0 || bytes == 1 || t->count == OARI_TRACE_NAMES / 2 ||
        used + bytes > OARI_TRACE_NAME_BYTES)
        return n;
    n = t->count++;
    t->offset_of[n] = used;
    memcpy(&file->name[used], text, bytes);
    atomic_store(&file->head.names, used + (uint32_t)bytes);
    atomic_store_explicit(&t->hash_at[at], n, memory_order_release);
    return n;
}
