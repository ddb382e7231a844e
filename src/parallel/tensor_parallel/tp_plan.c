/* SPDX-License-Identifier: Apache-2.0 */
/* tp_plan: a list of the modules that rules name, with the part of each that
 * this rank has; and whether all of that is possible. */
#include "parallel/tensor_parallel/tp_plan.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/name_match.h"
#include "base/status.h"
#include "parallel/ddp/ddp.h"
#include "parallel/fsdp/fsdp.h"

static const char *const style_names[] = {
    [OAR_TP_COLUMN] = "OAR_TP_COLUMN",
    [OAR_TP_ROW] = "OAR_TP_ROW",
    [OAR_TP_HEADS] = "OAR_TP_HEADS",
    [OAR_TP_VOCABULARY] = "OAR_TP_VOCABULARY",
    [OAR_TP_SEQUENCE] = "OAR_TP_SEQUENCE",
    [OAR_TP_LAST_NORM] = "OAR_TP_LAST_NORM",
};
enum { STYLES = sizeof style_names / sizeof *style_names };

const char *oari_tp_style_name(oar_tp_style style)
{
    return style_names[style];
}

void oari_tp_plan_drop(oari_tp_plan *p)
{
    for (int64_t i = 0; i < p->entry.count; i++) {
        oari_free(p->entry.data[i].name);
        oar_module_release(p->entry.data[i].made);
    }
    oari_free(p->entry.data);
    oari_tp_release(p->tp);
}

/* ---- the plan ------------------------------------------------------------ */

/* Which layers a style suits: bit i is for the kind i. */
static unsigned kinds_of(oar_tp_style style)
{
    unsigned norms = 1U << OAR_LAYER_LAYER_NORM | 1U << OAR_LAYER_RMS_NORM;

    switch (style) {
    case OAR_TP_COLUMN:
    case OAR_TP_ROW: return 1U << OAR_LAYER_LINEAR;
    case OAR_TP_HEADS: return 1U << OAR_LAYER_ATTENTION;
    case OAR_TP_VOCABULARY: return 1U << OAR_LAYER_EMBEDDING;
    case OAR_TP_SEQUENCE:
        return norms | 1U << OAR_LAYER_DROPOUT | 1U << OAR_LAYER_EMBEDDING;
    case OAR_TP_LAST_NORM: return norms;
    }
    return 0;
}

static oar_status check_style(const oar_module *module, const char *name,
                              oar_tp_style style)
{
    oar_layer_kind kind = oar_layer_kind_of(module);
    oar_embedding_opts table = oar_embedding_opts_init();

    if ((kinds_of(style) >> kind & 1) == 0)
        return oari_fail(OAR_E_ARG,
                         "tp_parallelize: %s does not suit \"%s\", which is a "
                         "%s",
                         style_names[style], name, oar_module_name(module));
    if (style != OAR_TP_VOCABULARY)
        return OAR_OK;
    OARI_TRY(oar_embedding_describe(module, &table));
    if (table.vocabulary > 0)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "tp_parallelize: \"%s\" has some rows of a vocabulary "
                         "already",
                         name);
    return OAR_OK;
}

/* Returns how each parameter of a module is cut by a style that suits it. */
static oari_tp_layer layer_for(const oari_tp_plan *p, const oar_module *module,
                               const oar_tp_rule *rule)
{
    oari_tp_layer l = { .style = rule->style, .gather = rule->gather };
    int dim = rule->style == OAR_TP_ROW ? 1 : 0;
    int cut = rule->style == OAR_TP_COLUMN ||
              rule->style == OAR_TP_VOCABULARY || rule->style == OAR_TP_ROW;

    for (int i = 0; cut && i < oar_module_params(module); i++)
        if (dim == 0 || i == 0)
            l.cut[i] =
                oari_tp_cut_part(oar_tensor_shape(oar_module_param(module, i)),
                                 dim, p->tp->rank, p->tp->ranks);
    return l;
}

static oar_status add_entry(oari_tp_plan *p, oar_module *module,
                            const char *name, const oari_tp_layer *layer)
{
    oari_tp_plan_entry *e;

    OARI_TRY(oari_vec_reserve(&p->entry, 1));
    e = &p->entry.data[p->entry.count];
    *e = (oari_tp_plan_entry){ .module = module, .layer = *layer };
    e->name = oari_strdup(name);
    if (e->name == NULL)
        return OAR_E_NOMEM;
    p->entry.count++;
    return OAR_OK;
}

/* Adds one of the two linear layers of an attention. */
static oar_status add_inside(oari_tp_plan *p, oar_module *attention,
                             const char *name, const char *child,
                             const oari_tp_layer *layer)
{
    oar_module *linear = oar_module_find_module(attention, child);
    char full[OARI_TP_NAME + 8];

    snprintf(full, sizeof full, "%.*s.%s", OARI_TP_NAME - 1, name, child);
    if (linear == NULL)
        return oari_fail(OAR_E_ARG, "tp_parallelize: there is no \"%s\"", full);
    OARI_TRY(check_style(linear, full, layer->style));
    return add_entry(p, linear, full, layer);
}

/* Adds an attention and what is in it: a rank has heads that share one of k and
 * v together, as q, k and v side by side in "qkv". */
static oar_status add_heads(oari_tp_plan *p, oar_module *attention,
                            const char *name, const oar_tp_rule *rule)
{
    oar_module *qkv = oar_module_find_module(attention, "qkv");
    oari_tp_layer in = { .style = OAR_TP_COLUMN },
                  out = { .style = OAR_TP_ROW };
    int heads = 0, kv_heads = 0;
    int64_t first, count, width, share;
    oari_tp_plan_entry *e;

    OARI_TRY(oar_attention_heads(attention, &heads, &kv_heads));
    OARI_TRY(add_entry(p, attention, name,
                       &(oari_tp_layer){ .style = rule->style }));
    count = oar_tp_part(kv_heads, p->tp->rank, p->tp->ranks, &first);
    share = heads / kv_heads;
    e = &p->entry.data[p->entry.count - 1];
    e->heads = (int)(count * share);
    e->first_head = (int)(first * share);
    width = oar_tensor_shape(oar_module_param(qkv, 0)).dim[0] /
            (heads + 2 * (int64_t)kv_heads);
    for (int i = 0; i < oar_module_params(qkv); i++) {
        oari_tp_cut *cut = &in.cut[i];

        *cut = (oari_tp_cut){
            .ranges = 3,
            .whole = oar_tensor_shape(oar_module_param(qkv, i)),
            .first = { first * share * width, (heads + first) * width,
                       (heads + kv_heads + first) * width },
            .count = { count * share * width, count * width, count * width }
        };
    }
    out.cut[0] =
        (oari_tp_cut){ .ranges = 1,
                       .dim = 1,
                       .whole = oar_tensor_shape(oar_module_param(
                           oar_module_find_module(attention, "out"), 0)),
                       .first = { first * share * width },
                       .count = { count * share * width } };
    OARI_TRY(add_inside(p, attention, name, "qkv", &in));
    return add_inside(p, attention, name, "out", &out);
}

static oar_status add_module(oari_tp_plan *p, oar_module *module,
                             const char *name, const oar_tp_rule *rule)
{
    oari_tp_layer layer;

    OARI_TRY(check_style(module, name, rule->style));
    if (rule->style == OAR_TP_HEADS)
        return add_heads(p, module, name, rule);
    layer = layer_for(p, module, rule);
    return add_entry(p, module, name, &layer);
}

/* Adds what the rules name below a module. */
static oar_status visit_children(oari_tp_plan *p, const oar_module *module,
                                 const char *name, int *used)
{
    char below[OARI_TP_NAME];

    for (int i = 0; i < oar_module_children(module); i++) {
        oar_module *child = oar_module_child(module, i);
        const oar_tp_rule *found = NULL;

        snprintf(below, sizeof below, "%s%s%s", name, name[0] ? "." : "",
                 oar_module_child_name(module, i));
        for (int r = 0; r < p->rules; r++) {
            if (!oari_name_fits(p->rule[r].name, below, 0))
                continue;
            if (found != NULL)
                return oari_fail(OAR_E_ARG,
                                 "tp_parallelize: the rules \"%s\" and \"%s\" "
                                 "both name \"%s\"",
                                 found->name, p->rule[r].name, below);
            found = &p->rule[r];
            used[r] = 1;
        }
        if (found != NULL)
            OARI_TRY(add_module(p, child, below, found));
        OARI_TRY(visit_children(p, child, below, used));
    }
    return OAR_OK;
}

/* ---- rules that name nothing --------------------------------------------- */

enum { NEAREST = 3 };

typedef struct nearest_names {
    int distance[NEAREST];
    char name[NEAREST][OARI_TP_NAME];
    int count;
} nearest_names;

static void keep_nearest(nearest_names *n, const char *name, int distance)
{
    int at = n->count < NEAREST ? n->count++ : NEAREST;

    while (at > 0 && distance < n->distance[at - 1]) {
        if (at < NEAREST) {
            n->distance[at] = n->distance[at - 1];
            memcpy(n->name[at], n->name[at - 1], OARI_TP_NAME);
        }
        at--;
    }
    if (at == NEAREST)
        return;
    n->distance[at] = distance;
    snprintf(n->name[at], OARI_TP_NAME, "%s", name);
}

static void find_nearest(const oar_module *module, const char *name,
                         const char *pattern, nearest_names *n)
{
    char below[OARI_TP_NAME];

    for (int i = 0; i < oar_module_children(module); i++) {
        snprintf(below, sizeof below, "%s%s%s", name, name[0] ? "." : "",
                 oar_module_child_name(module, i));
        keep_nearest(n, below,
                     oari_edit_distance(pattern, strlen(pattern), below));
        find_nearest(oar_module_child(module, i), below, pattern, n);
    }
}

static oar_status refuse_unused(const oari_tp_plan *p, const oar_tp_rule *rule)
{
    nearest_names n = { .count = 0 };
    char text[NEAREST * (OARI_TP_NAME + 4)] = "";
    size_t used = 0;

    find_nearest(p->root, "", rule->name, &n);
    for (int i = 0; i < n.count; i++) {
        snprintf(text + used, sizeof text - used, "%s\"%s\"",
                 i > 0 ? ", " : "; the nearest: ", n.name[i]);
        used = strlen(text);
    }
    return oari_fail(OAR_E_NOT_FOUND,
                     "tp_parallelize: no part of the model fits \"%s\"%s",
                     rule->name, text);
}

/* ---- what can be parallelized -------------------------------------------- */

oar_status oari_tp_refuse_wrapped(const oar_module *module)
{
    if (oari_ddp_of(module) != NULL || oari_fsdp_of(module) != NULL)
        return oari_fail(OAR_E_STATE, "tp_parallelize of a module that is "
                                      "wrapped already, or has a part that "
                                      "is: first parallelize, then wrap");
    if (oari_tp_layer_of(module) != NULL)
        return oari_fail(OAR_E_STATE, "tp_parallelize of a module that is "
                                      "tensor parallel already, or has a part "
                                      "that is");
    for (int i = 0; i < oar_module_children(module); i++)
        OARI_TRY(oari_tp_refuse_wrapped(oar_module_child(module, i)));
    return OAR_OK;
}

static oar_status check_rules(const oari_tp_plan *p)
{
    if (p->rules < 0 || (p->rules > 0 && p->rule == NULL))
        return oari_fail(OAR_E_ARG, "tp_parallelize with %d rules%s", p->rules,
                         p->rule == NULL ? " at NULL" : "");
    for (int r = 0; r < p->rules; r++) {
        const oar_tp_rule *rule = &p->rule[r];

        if (rule->name == NULL || (int)rule->style < 1 ||
            (int)rule->style >= STYLES)
            return oari_fail(OAR_E_ARG, "tp_parallelize: rule %d has %s", r,
                             rule->name == NULL ? "no name" : "no such style");
        if (rule->style == OAR_TP_SEQUENCE && !p->tp->sequence)
            return oari_fail(OAR_E_ARG,
                             "tp_parallelize: the rule for \"%s\" is "
                             "OAR_TP_SEQUENCE, without `sequence` in the "
                             "options",
                             rule->name);
        if (rule->gather && rule->style != OAR_TP_COLUMN)
            return oari_fail(OAR_E_ARG,
                             "tp_parallelize: the rule for \"%s\" gathers, "
                             "which only OAR_TP_COLUMN does",
                             rule->name);
    }
    return OAR_OK;
}

/* Counts the places of a parameter below a module. */
static int places_of(const oar_module *module, const oar_tensor *param)
{
    int places = 0;

    for (int i = 0; i < oar_module_params(module); i++)
        places += oar_module_param(module, i) == param;
    return places;
}

/* Checks that a parameter that is cut is cut alike wherever it is used. */
static oar_status check_tied(const oari_tp_plan *p, const oari_tp_plan_entry *e,
                             int index)
{
    const oar_tensor *param = oar_module_param(e->module, index);
    int places = 0;

    for (int64_t k = 0; k < p->entry.count; k++) {
        const oari_tp_plan_entry *other = &p->entry.data[k];

        for (int i = 0; i < oar_module_params(other->module); i++) {
            if (oar_module_param(other->module, i) != param ||
                oar_layer_kind_of(other->module) == OAR_LAYER_ATTENTION)
                continue;
            places++;
            if (!oari_tp_cut_equal(&other->layer.cut[i], &e->layer.cut[index]))
                return oari_fail(OAR_E_UNSUPPORTED,
                                 "tp_parallelize: \"%s\" and \"%s\" share a "
                                 "parameter that they cut in two ways",
                                 e->name, other->name);
        }
    }
    if (places != places_of(p->root, param))
        return oari_fail(OAR_E_UNSUPPORTED,
                         "tp_parallelize: a parameter of \"%s\" is also used "
                         "by a layer that no rule names",
                         e->name);
    return OAR_OK;
}

oar_status oari_tp_plan_make(oari_tp_plan *p)
{
    int *used;
    oar_status status;

    if (p->root == NULL)
        return oari_fail(OAR_E_ARG, "tp_parallelize of NULL");
    OARI_TRY(check_rules(p));
    OARI_TRY(oari_tp_refuse_wrapped(p->root));
    used = oari_alloc((size_t)p->rules + 1, sizeof *used);
    if (used == NULL)
        return OAR_E_NOMEM;
    status = visit_children(p, p->root, "", used);
    for (int r = 0; r < p->rules && status == OAR_OK; r++)
        if (!used[r])
            status = refuse_unused(p, &p->rule[r]);
    oari_free(used);
    OARI_TRY(status);
    for (int64_t k = 0; k < p->entry.count; k++)
        for (int i = 0; i < OARI_TP_PARAMS; i++)
            if (p->entry.data[k].layer.cut[i].ranges > 0)
                OARI_TRY(check_tied(p, &p->entry.data[k], i));
    return OAR_OK;
}
