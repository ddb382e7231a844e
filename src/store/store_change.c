/* SPDX-License-Identifier: Apache-2.0 */
/* store_change: what the calls do to one value, wherever it is kept. Whoever
 * calls these sees to it that nobody else touches the value. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/status.h"
#include "store/store.h"

oar_status oari_change_to(void *bytes, oari_value *value)
{
    const oari_bytes *wanted = bytes;
    oari_value made;

    OARI_TRY(oari_value_copy(wanted->data, wanted->bytes, &made));
    oari_free(value->data);
    *value = made;
    return OAR_OK;
}

oar_status oari_change_by_adding(void *addition, oari_value *value)
{
    oari_addition *a = addition;
    char text[32];
    int64_t old = 0;

    if (value->data != NULL)
        OARI_TRY(
            oari_parse_int(a->key, value->data, INT64_MIN, INT64_MAX, &old));
    if (__builtin_add_overflow(old, a->delta, &a->sum))
        return oari_fail(OAR_E_ARG, "store key \"%s\" would overflow", a->key);
    snprintf(text, sizeof text, "%" PRId64, a->sum);
    return oari_change_to(&(oari_bytes){ text, strlen(text) }, value);
}

oar_status oari_change_if_expected(void *swap, oari_value *value)
{
    oari_swap *s = swap;
    int same;

    if (s->expected.data == NULL || value->data == NULL)
        same = s->expected.data == NULL && value->data == NULL;
    else
        same = s->expected.bytes == value->bytes &&
               memcmp(s->expected.data, value->data, value->bytes) == 0;
    if (!same)
        return OAR_OK;
    OARI_TRY(oari_change_to(&s->wanted, value));
    s->swapped = 1;
    return OAR_OK;
}

oar_status oari_change_to_nothing(void *removal, oari_value *value)
{
    const oari_removal *r = removal;

    if (value->data == NULL)
        return oari_fail(OAR_E_NOT_FOUND, "store key \"%s\" is not there",
                         r->key);
    oari_free(value->data);
    *value = (oari_value){ 0 };
    return OAR_OK;
}
