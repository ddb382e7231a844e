/* SPDX-License-Identifier: Apache-2.0 */
/* state_values: numbers and texts of the index. A counter that differs between
 * ranks is a text of one number for each rank, "-" where a rank has none. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "parallel/checkpoint/state.h"

/* ---- collecting ---------------------------------------------------------- */

void oari_ckpt_values_free(oari_ckpt_values *values)
{
    for (int64_t i = 0; i < values->value.count; i++) {
        oari_free(values->value.data[i].name);
        oari_free(values->value.data[i].text);
    }
    oari_vec_free(&values->value);
}

static oar_status add_value(oari_ckpt_values *values, const char *name,
                            const char *text, int is_text, int may_differ)
{
    oari_ckpt_own_value v = { .is_text = is_text, .may_differ = may_differ };

    OARI_TRY(oari_vec_reserve(&values->value, 1));
    v.name = oari_strdup(name);
    v.text = oari_strdup(text);
    values->value.data[values->value.count++] = v;
    return v.name != NULL && v.text != NULL ? OAR_OK : OAR_E_NOMEM;
}

oar_status oari_ckpt_add_number(oari_ckpt_values *values, const char *name,
                                int64_t number)
{
    char text[32];

    snprintf(text, sizeof text, "%" PRId64, number);
    return add_value(values, name, text, 0, 0);
}

oar_status oari_ckpt_add_float(oari_ckpt_values *values, const char *name,
                               double number)
{
    char text[40];

    snprintf(text, sizeof text, "%a", number);
    return add_value(values, name, text, 1, 0);
}

oar_status oari_ckpt_add_text(oari_ckpt_values *values, const char *name,
                              const char *text)
{
    return add_value(values, name, text, 1, 0);
}

oar_status oari_ckpt_add_counter(oari_ckpt_values *values, const char *name,
                                 uint64_t number)
{
    char text[32];

    snprintf(text, sizeof text, "%" PRIu64, number);
    return add_value(values, name, text, 0, 1);
}

/* ---- finding ------------------------------------------------------------- */

static oar_status find_value(const oari_ckpt_found *found, const char *name,
                             int is_text, const oari_ckpt_value **value)
{
    *value = oari_ckpt_index_value(found->index, name);
    if (*value == NULL)
        return oari_fail(OAR_E_NOT_FOUND,
                         "the generation of step %" PRId64
                         " has no value \"%s\"",
                         found->index->step, name);
    if ((*value)->is_text != is_text)
        return oari_fail(OAR_E_DATA,
                         "the value \"%s\" of step %" PRId64 " is %s, not a %s",
                         name, found->index->step, (*value)->text,
                         is_text ? "text" : "number");
    return OAR_OK;
}

oar_status oari_ckpt_get_number(const oari_ckpt_found *found, const char *name,
                                int64_t *number)
{
    const oari_ckpt_value *value;
    long long read;

    OARI_TRY(find_value(found, name, 0, &value));
    errno = 0;
    read = strtoll(value->text, NULL, 10);
    if (errno != 0)
        return oari_fail(OAR_E_DATA, "the value \"%s\" is too large: %s", name,
                         value->text);
    *number = read;
    return OAR_OK;
}

oar_status oari_ckpt_get_text(const oari_ckpt_found *found, const char *name,
                              const char **text)
{
    const oari_ckpt_value *value;

    OARI_TRY(find_value(found, name, 1, &value));
    *text = value->text;
    return OAR_OK;
}

oar_status oari_ckpt_get_float(const oari_ckpt_found *found, const char *name,
                               double *number)
{
    const char *text;
    double read;
    char *end;

    OARI_TRY(oari_ckpt_get_text(found, name, &text));
    read = strtod(text, &end);
    if (end == text || *end != '\0')
        return oari_fail(OAR_E_DATA, "the value \"%s\" is no number: %.40s",
                         name, text);
    *number = read;
    return OAR_OK;
}

/* Gives the number of rank `rank` in a text of numbers. Returns whether it has
 * one. */
static int number_of_rank(const char *text, int rank, uint64_t *number)
{
    for (int i = 0; i < rank && *text != '\0'; i++) {
        text += strcspn(text, " ");
        text += *text == ' ';
    }
    if (*text < '0' || *text > '9')
        return 0;
    *number = strtoull(text, NULL, 10);
    return 1;
}

/* A rank that was not there takes the counter of another one, far ahead, so
 * that no two ranks go on alike. */
oar_status oari_ckpt_get_counter(const oari_ckpt_found *found, const char *name,
                                 uint64_t *number)
{
    const oari_ckpt_value *value = oari_ckpt_index_value(found->index, name);
    int ranks = found->index->ranks;
    int old = ranks > 0 ? found->rank % ranks : 0;

    if (value == NULL || !value->is_text) {
        OARI_TRY(find_value(found, name, 0, &value));
        *number = strtoull(value->text, NULL, 10);
        return OAR_OK;
    }
    if (!number_of_rank(value->text, old, number))
        return oari_fail(OAR_E_NOT_FOUND,
                         "the counter \"%s\" of step %" PRId64
                         " has no number of rank %d",
                         name, found->index->step, old);
    if (ranks > 0)
        *number += (uint64_t)(found->rank / ranks) << 32;
    return OAR_OK;
}
