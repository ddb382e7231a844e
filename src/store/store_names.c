/* SPDX-License-Identifier: Apache-2.0 */
/* store_names: lists of keys. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "store/store.h"
#include "base/status.h"
#include "base/vec.h"

oar_status oari_names_add(oari_names *names, const char *key)
{
    size_t bytes = strlen(key) + 1;

    OARI_TRY(oari_array_reserve(names->text, names->bytes, names->room,
                                (int64_t)bytes));
    memcpy(names->text + names->bytes, key, bytes);
    names->bytes += bytes;
    names->count++;
    return OAR_OK;
}

void oari_names_drop(oari_names *names)
{
    oari_free(names->text);
    *names = (oari_names){ 0 };
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Pointers to each of the texts behind each other, in order. */
static void point(char **key, char *text, int count)
{
    for (int i = 0; i < count; i++) {
        key[i] = text;
        text += strlen(text) + 1;
    }
    if (count > 1)
        qsort(key, (size_t)count, sizeof *key, by_bytes);
}

oar_status oari_names_sort(const oari_names *names, char ***order)
{
    char **made = oari_alloc((size_t)names->count + 1, sizeof *made);

    if (made == NULL)
        return OAR_E_NOMEM;
    point(made, names->text, names->count);
    *order = made;
    return OAR_OK;
}

oar_status oari_names_give(oari_names *names, int *count, char ***keys)
{
    size_t table = ((size_t)names->count + 1) * sizeof(char *);
    char **made = oari_alloc(1, table + names->bytes);

    if (made == NULL) {
        oari_names_drop(names);
        return OAR_E_NOMEM;
    }
    if (names->bytes != 0)
        memcpy((char *)made + table, names->text, names->bytes);
    point(made, (char *)made + table, names->count);
    *count = names->count;
    *keys = made;
    oari_names_drop(names);
    return OAR_OK;
}
