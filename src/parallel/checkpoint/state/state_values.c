/* SPDX-License-Identifier: Apache-2.0 */
/* state_values: numbers and texts of the index. A counter that differs between
 * ranks is a text of one number for each rank, "-" where a rank has none. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "parallel/checkpoint/state/state.h"

/* ---- collecting ---------------------------------------------------------- */

void oari_ckpt_values_free(oari_ckpt_values *values)
{
    for (int64_t i = 0; i < values->value.count; i++) {
        oari_free(values->value.data[i].section);
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

oar_status oari_ckpt_add_alias(oari_ckpt_values *values,
                               const oari_ckpt_alias *alias)
{
    oari_ckpt_own_value *v;

    OARI_TRY(add_value(values, alias->name, alias->of, 1, 0));
    v = &values->value.data[values->value.count - 1];
    v->section = oari_strdup(alias->section);
    return v->section != NULL ? OAR_OK : OAR_E_NOMEM;
}

int oari_ckpt_value_compare(const oari_ckpt_own_value *a,
                            const oari_ckpt_own_value *b)
{
    int order = (a->section != NULL) - (b->section != NULL);

    if (order == 0 && a->section != NULL)
        order = strcmp(a->section, b->section);
    return order != 0 ? order : strcmp(a->name, b->name);
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

static int count_numbers(const char *text)
{
    int count = 1;

    for (; *text != '\0'; text++)
        count += *text == ' ';
    return count;
}

/* A rank that was not there takes the counter of another one, far ahead, so
 * that no two ranks go on alike. */
oar_status oari_ckpt_get_counter(const oari_ckpt_found *found, const char *name,
                                 uint64_t *number)
{
    const oari_ckpt_value *value = oari_ckpt_index_value(found->index, name);
    int ranks, old;

    if (value == NULL || !value->is_text) {
        OARI_TRY(find_value(found, name, 0, &value));
        *number = strtoull(value->text, NULL, 10);
        return OAR_OK;
    }
    ranks = count_numbers(value->text);
    old = found->rank % ranks;
    if (!number_of_rank(value->text, old, number))
        return oari_fail(OAR_E_NOT_FOUND,
                         "the counter \"%s\" of step %" PRId64
                         " has no number of rank %d",
                         name, found->index->step, old);
    *number += (uint64_t)(found->rank / ranks) << 32;
    return OAR_OK;
}

oar_status oari_ckpt_keep_counters(oar_state *state,
                                   const oari_ckpt_found *found)
{
    oari_ckpt_values_free(&state->kept);
    for (int64_t i = 0; i < found->index->values; i++) {
        const oari_ckpt_value *v = &found->index->value[i];

        if (v->is_text && strncmp(v->name, "counter.", 8) == 0 &&
            count_numbers(v->text) > found->ranks)
            OARI_TRY(add_value(&state->kept, v->name, v->text, 1, 1));
    }
    return OAR_OK;
}

/* Makes the text of a counter of `ranks` ranks that of more: the others' are at
 * the end of the text that was kept. */
static oar_status add_others(oari_ckpt_own_value *v, const char *kept,
                             int ranks)
{
    oari_json_writer w = { 0 };

    for (int r = 0; r < (v->is_text ? 1 : ranks); r++)
        oari_json_add(&w, "%s%s", r > 0 ? " " : "", v->text);
    for (int r = 0; r < ranks && kept != NULL; r++) {
        kept = strchr(kept, ' ');
        kept += kept != NULL;
    }
    oari_json_add(&w, " %s", kept != NULL ? kept : "-");
    oari_json_fill(&w, 0, 1);
    if (w.status == OAR_OK) {
        char *text = oari_strdup(w.text.data);

        if (text == NULL)
            w.status = OAR_E_NOMEM;
        else
            oari_free(v->text);
        v->text = text != NULL ? text : v->text;
        v->is_text = 1;
    }
    oari_vec_free(&w.text);
    return w.status;
}

oar_status oari_ckpt_add_kept(const oar_state *state, int ranks,
                              oari_ckpt_values *values)
{
    for (int64_t i = 0; i < state->kept.value.count; i++) {
        const oari_ckpt_own_value *kept = &state->kept.value.data[i];

        for (int64_t k = 0; k < values->value.count; k++)
            if (strcmp(values->value.data[k].name, kept->name) == 0 &&
                count_numbers(kept->text) > ranks)
                OARI_TRY(add_others(&values->value.data[k], kept->text, ranks));
    }
    return OAR_OK;
}
