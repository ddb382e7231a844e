/* SPDX-License-Identifier: Apache-2.0 */
/* agree_plan: what this rank saves, and the plan and the values of all ranks.
 * Lists and values are sent only if they have changed or differ. */
#include <stdlib.h>
#include <string.h>

#include <oarsong/collective.h>

#include "base/dtype.h"
#include "base/hash.h"
#include "base/status.h"
#include "parallel/checkpoint/saving.h"

oar_dtype oari_ckpt_saved_dtype(const oari_ckpt_saving *s,
                                const oari_ckpt_item *item)
{
    oar_dtype dtype = oar_tensor_dtype(item->tensor);

    if (s->opts.has_dtype && oari_dtype_is_float(dtype) &&
        strcmp(item->section, OARI_CKPT_MODEL) == 0)
        return s->opts.dtype;
    return dtype;
}

static oar_status make_list(oari_ckpt_saving *s)
{
    for (int64_t i = 0; i < s->state->item.count; i++) {
        const oari_ckpt_item *item = &s->state->item.data[i];
        oari_ckpt_tensor tensor = { .section = item->section,
                                    .name = item->name,
                                    .dtype = oari_ckpt_saved_dtype(s, item),
                                    .flags = item->flags,
                                    .whole = item->whole };

        if (item->only_loaded)
            continue;
        s->list.items = i;
        if (item->flat)
            OARI_TRY(
                oari_ckpt_part_list_add_flat(&s->list, &tensor, item->first,
                                             oar_tensor_count(item->tensor)));
        else
            OARI_TRY(
                oari_ckpt_part_list_add_box(&s->list, &tensor, &item->box));
    }
    return oari_ckpt_part_list_seal(&s->list);
}

static int by_value_name(const void *a, const void *b)
{
    return oari_ckpt_value_compare(a, b);
}

static oar_status collect_values(oari_ckpt_saving *s)
{
    for (int64_t i = 0; i < s->state->source.count; i++) {
        const oari_ckpt_source *source = &s->state->source.data[i];

        OARI_TRY(source->class->collect(source, &s->values));
    }
    for (int64_t i = 0; i < s->state->alias.count; i++)
        OARI_TRY(oari_ckpt_add_alias(&s->values, &s->state->alias.data[i]));
    if (s->values.value.count > 0)
        qsort(s->values.value.data, (size_t)s->values.value.count,
              sizeof *s->values.value.data, by_value_name);
    for (int64_t i = 1; i < s->values.value.count; i++)
        if (by_value_name(&s->values.value.data[i - 1],
                          &s->values.value.data[i]) == 0)
            return oari_fail(OAR_E_ARG,
                             "state: the value \"%.100s\" is there "
                             "twice",
                             s->values.value.data[i].name);
    return OAR_OK;
}

enum { IS_TEXT = 1, MAY_DIFFER = 2, IS_ALIAS = 4 };

/* The values as bytes: section, zero, name, zero, text, zero, a byte of flags.
 */
static oar_status encode_values(const oari_ckpt_saving *s, oari_json_writer *w)
{
    for (int64_t i = 0; i < s->values.value.count; i++) {
        const oari_ckpt_own_value *v = &s->values.value.data[i];
        int flags = (v->is_text ? IS_TEXT : 0) |
                    (v->may_differ ? MAY_DIFFER : 0) |
                    (v->section != NULL ? IS_ALIAS : 0);

        oari_json_add(w, "%s", v->section != NULL ? v->section : "");
        oari_json_fill(w, 0, 1);
        oari_json_add(w, "%s", v->name);
        oari_json_fill(w, 0, 1);
        oari_json_add(w, "%s", v->text);
        oari_json_fill(w, 0, 1);
        oari_json_fill(w, (char)flags, 1);
    }
    return w->status;
}

/* A value of some rank. */
typedef struct rank_value {
    oari_ckpt_own_value is; /* its texts are borrowed */
    int rank;
} rank_value;

typedef struct rank_values {
    OARI_VEC(rank_value) value;
} rank_values;

static int by_name_and_rank(const void *a, const void *b)
{
    const rank_value *x = a, *y = b;
    int order = oari_ckpt_value_compare(&x->is, &y->is);

    return order != 0 ? order : x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Returns the text at *at, and moves behind its zero byte; NULL if there is
 * none before the end. */
static char *take_text(char **at, char *end)
{
    char *text = *at;
    char *zero = text < end ? memchr(text, 0, (size_t)(end - text)) : NULL;

    *at = zero != NULL ? zero + 1 : end;
    return zero != NULL ? text : NULL;
}

/* Reads what encode_values wrote on a rank. */
static oar_status decode_values(char *bytes, size_t size, int rank,
                                rank_values *all)
{
    char *at = bytes, *end = bytes + size;

    while (at < end) {
        rank_value v = { .rank = rank };

        v.is.section = take_text(&at, end);
        v.is.name = take_text(&at, end);
        v.is.text = take_text(&at, end);
        if (v.is.text == NULL || at >= end)
            return oari_fail(OAR_E_DATA,
                             "rank %d sent values that are cut short", rank);
        v.is.is_text = (*at & IS_TEXT) != 0;
        v.is.may_differ = (*at & MAY_DIFFER) != 0;
        if (!(*at++ & IS_ALIAS))
            v.is.section = NULL;
        OARI_TRY(oari_vec_push(&all->value, v));
    }
    return OAR_OK;
}

/* Joins the different counters of ranks: "17 - 19". */
static oar_status join_counters(const rank_value *v, int64_t count, int ranks,
                                char **text)
{
    oari_json_writer w = { 0 };
    int64_t i = 0;

    for (int r = 0; r < ranks; r++) {
        int has = i < count && v[i].rank == r;

        oari_json_add(&w, "%s%s", r > 0 ? " " : "", has ? v[i].is.text : "-");
        i += has;
    }
    oari_json_fill(&w, 0, 1);
    *text = w.status == OAR_OK ? oari_strdup(w.text.data) : NULL;
    oari_vec_free(&w.text);
    return *text != NULL ? OAR_OK : OAR_E_NOMEM;
}

/* Adds the one value that the ranks have under a name. */
static oar_status merge_one(const rank_value *v, int64_t count, int ranks,
                            oari_ckpt_values *into)
{
    oari_ckpt_own_value merged = { .is_text = v->is.is_text };
    int64_t other = 1;

    while (other < count && strcmp(v[other].is.text, v->is.text) == 0)
        other++;
    if (other < count && !v->is.may_differ)
        return oari_fail(OAR_E_MISMATCH,
                         "the %s \"%.100s\" is %.80s on rank %d, and %.80s "
                         "on rank %d",
                         v->is.section != NULL ? "alias" : "value", v->is.name,
                         v->is.text, v->rank, v[other].is.text, v[other].rank);
    OARI_TRY(oari_vec_reserve(&into->value, 1));
    if (other < count) {
        merged.is_text = 1;
        OARI_TRY(join_counters(v, count, ranks, &merged.text));
    } else {
        merged.text = oari_strdup(v->is.text);
    }
    merged.name = oari_strdup(v->is.name);
    if (v->is.section != NULL)
        merged.section = oari_strdup(v->is.section);
    into->value.data[into->value.count++] = merged;
    return merged.name != NULL && merged.text != NULL &&
                   (v->is.section == NULL || merged.section != NULL)
               ? OAR_OK
               : OAR_E_NOMEM;
}

/* Puts the values of all ranks together, on all ranks. */
static oar_status merge_values(oari_ckpt_saving *s,
                               const oari_json_writer *mine)
{
    oar_checkpoint *c = s->c;
    size_t *sizes = oari_alloc((size_t)c->ranks, sizeof *sizes);
    oari_ckpt_values merged = { { 0 } };
    rank_values all = { { 0 } };
    void *bytes = NULL;
    char *at;
    oar_status status = sizes == NULL ? OAR_E_NOMEM : OAR_OK;

    status = oari_ckpt_agree(c, status);
    if (status == OAR_OK)
        status = oar_all_gather_bytes(c->group, mine->text.data,
                                      (size_t)mine->text.count, &bytes, sizes,
                                      NULL, NULL);
    at = bytes;
    for (int r = 0; r < c->ranks && status == OAR_OK; r++) {
        status = decode_values(at, sizes[r], r, &all);
        at += sizes[r];
    }
    if (status == OAR_OK && all.value.count > 0)
        qsort(all.value.data, (size_t)all.value.count, sizeof *all.value.data,
              by_name_and_rank);
    for (int64_t i = 0, n; i < all.value.count && status == OAR_OK; i += n) {
        for (n = 1; i + n < all.value.count &&
                    oari_ckpt_value_compare(&all.value.data[i].is,
                                            &all.value.data[i + n].is) == 0;)
            n++;
        status = merge_one(&all.value.data[i], n, c->ranks, &merged);
    }
    oari_vec_free(&all.value);
    oar_free(bytes);
    oari_free(sizes);
    oari_ckpt_values_free(&s->values);
    s->values = merged;
    return status;
}

/* Makes the plan of all ranks' lists. */
static oar_status make_plan(oari_ckpt_saving *s)
{
    oar_checkpoint *c = s->c;
    size_t *sizes = oari_alloc((size_t)c->ranks, sizeof *sizes);
    oari_ckpt_lists lists = { .ranks = c->ranks };
    oari_ckpt_save_opts opts = { .writers = c->opts.writers };
    void *bytes = NULL;
    const char *at = (const char *)s->list.wire.data;
    oar_status status = sizes == NULL ? OAR_E_NOMEM : OAR_OK;

    oari_ckpt_file_layout_free(&c->layout);
    oari_ckpt_save_plan_free(&c->plan);
    c->planned = 0;
    status = oari_ckpt_agree(c, status);
    if (status == OAR_OK && c->group != NULL) {
        status = oar_all_gather_bytes(c->group, s->list.wire.data,
                                      (size_t)s->list.wire.count, &bytes, sizes,
                                      NULL, NULL);
        at = bytes;
    } else if (status == OAR_OK) {
        sizes[0] = (size_t)s->list.wire.count;
    }
    for (int r = 0; r < c->ranks && status == OAR_OK; r++) {
        status = oari_ckpt_lists_add(&lists, r, at, sizes[r]);
        at += sizes[r];
    }
    if (status == OAR_OK)
        status = oari_ckpt_save_plan_make(&lists, &opts, &c->plan);
    if (status == OAR_OK)
        status = oari_ckpt_file_layout_make(&c->plan, &c->layout);
    oari_ckpt_lists_free(&lists);
    oar_free(bytes);
    oari_free(sizes);
    if (status == OAR_OK) {
        c->planned = 1;
        memcpy(c->list_hash, s->list.hash, sizeof c->list_hash);
    }
    return status;
}

oar_status oari_ckpt_agree_plan(oari_ckpt_saving *s)
{
    oar_checkpoint *c = s->c;
    oari_json_writer values = { 0 };
    oar_status status = make_list(s);
    uint64_t word[2], hash = 0, same;

    if (status == OAR_OK)
        status = collect_values(s);
    if (status == OAR_OK)
        status = encode_values(s, &values);
    if (status == OAR_OK)
        hash = oari_hash64(values.text.data, (size_t)values.text.count, 0) | 1;
    same = c->planned &&
           memcmp(c->list_hash, s->list.hash, sizeof c->list_hash) == 0;
    word[0] = status == OAR_OK && same ? hash : 0;
    word[1] = ~hash;
    if (c->group != NULL && status == OAR_OK)
        status = oar_all_reduce(c->group, oar_span_of(word, 2, OAR_U64),
                                OAR_MIN, NULL, NULL);
    else if (c->group != NULL) {
        oar_error why = *oar_last_error();

        (void)oar_all_reduce(c->group, oar_span_of(word, 2, OAR_U64), OAR_MIN,
                             NULL, NULL);
        status = oari_fail_with(&why);
    }
    if (word[0] == hash && word[1] == ~hash && status == OAR_OK) {
        oari_vec_free(&values.text);
        return OAR_OK;
    }
    status = oari_ckpt_agree(c, status);
    if (status == OAR_OK)
        status = oari_ckpt_agree(c, make_plan(s));
    if (status == OAR_OK && c->group != NULL)
        status = oari_ckpt_agree(c, merge_values(s, &values));
    oari_vec_free(&values.text);
    return status;
}
