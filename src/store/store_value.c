/* SPDX-License-Identifier: Apache-2.0 */
/* store_value: what the calls do to one value, wherever it is kept, and lists
 * of keys. The caller sees to it that no other thread or process touches the
 * value. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/status.h"
#include "base/vec.h"
#include "store/store.h"

/* ---- changes ------------------------------------------------------------- */

oar_status oari_value_copy(const void *data, size_t bytes, oari_value *value)
{
    unsigned char *copy = oari_alloc(bytes + 1, 1);

    if (copy == NULL)
        return OAR_E_NOMEM;
    if (bytes != 0)
        memcpy(copy, data, bytes);
    value->data = copy;
    value->bytes = bytes;
    return OAR_OK;
}

static oar_status replace_value(const void *data, size_t bytes,
                                oari_value *value)
{
    oari_value made;

    OARI_TRY(oari_value_copy(data, bytes, &made));
    oari_free(value->data);
    *value = made;
    return OAR_OK;
}

static oar_status add_to_value(oari_change *c, oari_value *value)
{
    char text[32];
    int64_t old = 0;

    if (value->data != NULL)
        OARI_TRY(
            oari_parse_int(c->key, value->data, INT64_MIN, INT64_MAX, &old));
    if (__builtin_add_overflow(old, c->delta, &c->sum))
        return oari_fail(OAR_E_ARG, "store key \"%s\" would overflow", c->key);
    snprintf(text, sizeof text, "%" PRId64, c->sum);
    return replace_value(text, strlen(text), value);
}

oar_status oari_change_apply(void *change, oari_value *value)
{
    oari_change *c = change;
    int same;

    switch (c->kind) {
    case OARI_CHANGE_SET:
        return replace_value(c->value.data, c->value.bytes, value);
    case OARI_CHANGE_ADD: return add_to_value(c, value);
    case OARI_CHANGE_COMPARE_SET:
        if (c->expected.data == NULL || value->data == NULL)
            same = c->expected.data == NULL && value->data == NULL;
        else
            same = c->expected.bytes == value->bytes &&
                   memcmp(c->expected.data, value->data, value->bytes) == 0;
        if (!same)
            return OAR_OK;
        OARI_TRY(replace_value(c->value.data, c->value.bytes, value));
        c->swapped = 1;
        return OAR_OK;
    default:
        if (value->data == NULL)
            return oari_fail(OAR_E_NOT_FOUND, "store key \"%s\" does not exist",
                             c->key);
        oari_free(value->data);
        *value = (oari_value){ 0 };
        return OAR_OK;
    }
}

/* ---- lists of keys ------------------------------------------------------- */

oar_status oari_key_list_add(oari_key_list *list, const char *key)
{
    size_t bytes = strlen(key) + 1;

    OARI_TRY(oari_array_reserve(list->text, list->bytes, list->room,
                                (int64_t)bytes));
    memcpy(list->text + list->bytes, key, bytes);
    list->bytes += bytes;
    list->count++;
    return OAR_OK;
}

void oari_key_list_drop(oari_key_list *list)
{
    oari_free(list->text);
    *list = (oari_key_list){ 0 };
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Points key[] at each of the texts, which lie one behind the other, and sorts
 * the pointers. */
static void sort_keys(char **key, char *text, int count)
{
    for (int i = 0; i < count; i++) {
        key[i] = text;
        text += strlen(text) + 1;
    }
    if (count > 1)
        qsort(key, (size_t)count, sizeof *key, compare_keys);
}

oar_status oari_key_list_sort(const oari_key_list *list, char ***sorted)
{
    char **made = oari_alloc((size_t)list->count + 1, sizeof *made);

    if (made == NULL)
        return OAR_E_NOMEM;
    sort_keys(made, list->text, list->count);
    *sorted = made;
    return OAR_OK;
}

oar_status oari_key_list_give(oari_key_list *list, int *count, char ***keys)
{
    size_t table = ((size_t)list->count + 1) * sizeof(char *);
    char **made = oari_alloc(1, table + list->bytes);

    if (made == NULL) {
        oari_key_list_drop(list);
        return OAR_E_NOMEM;
    }
    if (list->bytes != 0)
        memcpy((char *)made + table, list->text, list->bytes);
    sort_keys(made, (char *)made + table, list->count);
    *count = list->count;
    *keys = made;
    oari_key_list_drop(list);
    return OAR_OK;
}
