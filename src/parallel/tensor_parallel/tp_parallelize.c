/* SPDX-License-Identifier: Apache-2.0 */
/* tp_parallelize: from rules to tensor parallel layers.
 *
 * It goes in three steps, after each of which the ranks agree: a plan is made
 * of the rules and checked; the new layers are made; they take the places of
 * the old ones. Before the last the model is as it was. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/name_match.h"
#include "base/status.h"
#include "base/vec.h"
#include "parallel/ddp/ddp.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/reducer/agreement.h"
#include "parallel/tensor_parallel/tensor_parallel.h"

enum { NAME = 256 };

/* A module that a rule names, or a linear layer inside one. */
typedef struct plan_entry {
    char *name;
    oar_module *module; /* borrowed: as it is now */
    oari_tp_layer layer;
    int heads, first_head; /* of an attention */
    oar_module *made;      /* what takes its place; NULL: it is changed */
} plan_entry;

typedef struct plan {
    oar_module *root;
    oari_tp *tp;
    int rules;
    const oar_tp_rule *rule;
    OARI_VEC(plan_entry) entry;
} plan;

static const char *const style_names[] = {
    [OAR_TP_COLUMN] = "OAR_TP_COLUMN",
    [OAR_TP_ROW] = "OAR_TP_ROW",
    [OAR_TP_HEADS] = "OAR_TP_HEADS",
    [OAR_TP_VOCABULARY] = "OAR_TP_VOCABULARY",
    [OAR_TP_SEQUENCE] = "OAR_TP_SEQUENCE",
    [OAR_TP_LAST_NORM] = "OAR_TP_LAST_NORM",
};
enum { STYLES = sizeof style_names / sizeof *style_names };

static void drop_plan(plan *p)
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

/* Returns how each parameter of a module is cut by a style. */
static oari_tp_layer layer_for(const plan *p, const oar_module *module,
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

static oar_status add_entry(plan *p, oar_module *module, const char *name,
                            const oari_tp_layer *layer)
{
    plan_entry *e;

    OARI_TRY(oari_vec_reserve(&p->entry, 1));
    e = &p->entry.data[p->entry.count];
    *e = (plan_entry){ .module = module, .layer = *layer };
    e->name = oari_strdup(name);
    if (e->name == NULL)
        return OAR_E_NOMEM;
    p->entry.count++;
    return OAR_OK;
}

/* Adds one of the two linear layers of an attention. */
static oar_status add_inside(plan *p, oar_module *attention, const char *name,
                             const char *child, const oari_tp_layer *layer)
{
    oar_module *linear = oar_module_find_module(attention, child);
    char full[NAME + 8];

    snprintf(full, sizeof full, "%.*s.%s", NAME - 1, name, child);
    if (linear == NULL)
        return oari_fail(OAR_E_ARG, "tp_parallelize: there is no \"%s\"", full);
    OARI_TRY(check_style(linear, full, layer->style));
    return add_entry(p, linear, full, layer);
}

/* Adds an attention and what is in it: a rank has heads that share one of k and
 * v together, as q, k and v side by side in "qkv". */
static oar_status add_heads(plan *p, oar_module *attention, const char *name,
                            const oar_tp_rule *rule)
{
    oar_module *qkv = oar_module_find_module(attention, "qkv");
    oari_tp_layer in = { .style = OAR_TP_COLUMN },
                  out = { .style = OAR_TP_ROW };
    int heads = 0, kv_heads = 0;
    int64_t first, count, width, share;
    plan_entry *e;

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

static oar_status add_module(plan *p, oar_module *module, const char *name,
                             const oar_tp_rule *rule)
{
    oari_tp_layer layer = layer_for(p, module, rule);

    OARI_TRY(check_style(module, name, rule->style));
    if (rule->style == OAR_TP_HEADS)
        return add_heads(p, module, name, rule);
    return add_entry(p, module, name, &layer);
}

/* Adds what the rules name below a module. */
static oar_status visit_children(plan *p, const oar_module *module,
                                 const char *name, int *used)
{
    char below[NAME];

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
    char name[NEAREST][NAME];
    int count;
} nearest_names;

static void keep_nearest(nearest_names *n, const char *name, int distance)
{
    int at = n->count < NEAREST ? n->count++ : NEAREST;

    while (at > 0 && distance < n->distance[at - 1]) {
        if (at < NEAREST) {
            n->distance[at] = n->distance[at - 1];
            memcpy(n->name[at], n->name[at - 1], NAME);
        }
        at--;
    }
    if (at == NEAREST)
        return;
    n->distance[at] = distance;
    snprintf(n->name[at], NAME, "%s", name);
}

static void find_nearest(const oar_module *module, const char *name,
                         const char *pattern, nearest_names *n)
{
    char below[NAME];

    for (int i = 0; i < oar_module_children(module); i++) {
        snprintf(below, sizeof below, "%s%s%s", name, name[0] ? "." : "",
                 oar_module_child_name(module, i));
        keep_nearest(n, below,
                     oari_edit_distance(pattern, strlen(pattern), below));
        find_nearest(oar_module_child(module, i), below, pattern, n);
    }
}

static oar_status refuse_unused(const plan *p, const oar_tp_rule *rule)
{
    nearest_names n = { .count = 0 };
    char text[NEAREST * (NAME + 4)] = "";
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

static oar_status refuse_wrapped(const oar_module *module)
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
        OARI_TRY(refuse_wrapped(oar_module_child(module, i)));
    return OAR_OK;
}

static oar_status check_rules(const plan *p)
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
static oar_status check_tied(const plan *p, const plan_entry *e, int index)
{
    const oar_tensor *param = oar_module_param(e->module, index);
    int places = 0;

    for (int64_t k = 0; k < p->entry.count; k++) {
        const plan_entry *other = &p->entry.data[k];

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

static oar_status make_plan(plan *p)
{
    int *used;
    oar_status status;

    if (p->root == NULL)
        return oari_fail(OAR_E_ARG, "tp_parallelize of NULL");
    OARI_TRY(check_rules(p));
    OARI_TRY(refuse_wrapped(p->root));
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

/* ---- the ranks agree ----------------------------------------------------- */

/* Returns a number that other bytes hardly have. */
static uint64_t hash_numbers(const oar_tensor *t)
{
    const unsigned char *data = oar_tensor_const_data(t);
    size_t bytes =
        (size_t)oar_tensor_count(t) * oar_dtype_size(oar_tensor_dtype(t));
    uint64_t hash = 14695981039346656037U, word;

    for (size_t i = 0; data != NULL && i < bytes; i += sizeof word) {
        word = 0;
        memcpy(&word, data + i,
               bytes - i < sizeof word ? bytes - i : sizeof word);
        hash = (hash ^ word) * 1099511628211U;
        hash ^= hash >> 29;
    }
    return hash;
}

/* Describes a rule, or a parameter. */
static void describe_item(const void *of, int64_t index, char *line,
                          size_t bytes)
{
    const plan *p = of;
    const oar_tensor *param;
    char name[NAME] = "", shape[96] = "";
    oar_shape s;

    if (index < p->rules) {
        const oar_tp_rule *rule = &p->rule[index];

        snprintf(line, bytes, "the rule \"%s\" %s%s", rule->name,
                 style_names[rule->style], rule->gather ? ", gathered" : "");
        return;
    }
    index -= p->rules;
    param = oar_module_param(p->root, (int)index);
    s = oar_tensor_shape(param);
    oar_module_param_name(p->root, (int)index, name, sizeof name);
    for (int d = 0; d < s.ndim; d++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%lld",
                 d > 0 ? ", " : "", (long long)s.dim[d]);
    if (oar_tensor_is_lazy(param))
        snprintf(line, bytes, "%s %s [%s], lazy", name,
                 oar_dtype_name(oar_tensor_dtype(param)), shape);
    else
        snprintf(line, bytes, "%s %s [%s] with numbers %016llx", name,
                 oar_dtype_name(oar_tensor_dtype(param)), shape,
                 (unsigned long long)hash_numbers(param));
}

static oar_status agree_on_plan(const plan *p)
{
    char options[64];
    oari_manifest manifest = { .options = options,
                               .does = "parallelize",
                               .has = "rules or parameters",
                               .items = p->rules + oar_module_params(p->root),
                               .of = p,
                               .describe = describe_item };

    snprintf(options, sizeof options, "sequence %d, %d rules", p->tp->sequence,
             p->rules);
    return oari_agree(&manifest, p->tp->group);
}

/* ---- making the layers --------------------------------------------------- */

/* Returns the part that was made of this parameter before, or NULL. */
static oar_tensor *find_part(const plan *p, const oar_tensor *whole)
{
    for (int64_t k = 0; k < p->entry.count; k++) {
        const plan_entry *e = &p->entry.data[k];

        for (int i = 0; e->made != NULL && i < oar_module_params(e->made); i++)
            if (oar_module_param(e->module, i) == whole)
                return oar_module_param(e->made, i);
    }
    return NULL;
}

static oar_status add_part(const plan *p, const plan_entry *e, oar_module *made,
                           int i)
{
    oar_tensor *whole = oar_module_param(e->module, i);
    oar_tensor *part = oar_tensor_retain(find_part(p, whole));
    int trained = oar_tensor_requires_grad(whole);
    char name[NAME];

    OARI_TRY(oar_module_param_name(e->module, i, name, sizeof name));
    if (part == NULL)
        OARI_TRY(oari_tp_cut_make(&e->layer.cut[i], whole, &part));
    OARI_TRY(oar_module_add_param(made, name, part));
    return oar_tensor_require_grad(part, trained);
}

static oar_status make_layer(const plan *p, plan_entry *e)
{
    oar_module *made = NULL;
    oar_status status;

    for (const plan_entry *k = p->entry.data; k < e; k++)
        if (k->module == e->module) { /* one module in two places */
            e->made = oar_module_retain(k->made);
            return OAR_OK;
        }
    if (oar_layer_kind_of(e->module) == OAR_LAYER_ATTENTION ||
        oar_layer_kind_of(e->module) == OAR_LAYER_DROPOUT)
        return OAR_OK;
    status = oari_tp_layer_create(p->tp, e->module, &e->layer, &made);
    for (int i = 0; i < oar_module_params(e->module) && status == OAR_OK; i++)
        status = add_part(p, e, made, i);
    if (status != OAR_OK) {
        oar_module_release(made);
        return status;
    }
    e->made = made;
    return OAR_OK;
}

/* Gives lazy parameters that no rule cuts, and buffers, their numbers. */
static oar_status realize_whole(const plan *p)
{
    for (int i = 0; i < oar_module_params(p->root); i++) {
        oar_tensor *param = oar_module_param(p->root, i);
        const oar_tensor *part = find_part(p, param);

        if (part == NULL || part == param)
            OARI_TRY(oar_tensor_realize(param));
    }
    for (int i = 0; i < oar_module_buffers(p->root); i++)
        OARI_TRY(oar_tensor_realize(oar_module_buffer(p->root, i)));
    return OAR_OK;
}

static oar_status make_layers(plan *p)
{
    for (int64_t k = 0; k < p->entry.count; k++)
        OARI_TRY(make_layer(p, &p->entry.data[k]));
    return realize_whole(p);
}

/* ---- putting them in place ----------------------------------------------- */

static oar_status place_entry(const plan *p, const plan_entry *e)
{
    for (const plan_entry *k = p->entry.data; k < e; k++)
        if (k->module == e->module && e->made == NULL)
            return OAR_OK; /* it is changed already */
    if (e->made != NULL)
        return oar_module_replace(p->root, e->name, oar_module_retain(e->made));
    if (oar_layer_kind_of(e->module) == OAR_LAYER_ATTENTION)
        return oar_attention_keep_heads(e->module, e->first_head, e->heads);
    return oar_dropout_place_by(e->module, oari_tp_place_rows,
                                oari_tp_retain(p->tp), oari_tp_release);
}

/* ---- public -------------------------------------------------------------- */

/* status: of what came before; the ranks agree on it, too. */
static oar_status parallelize(plan *p, oar_status status)
{
    oar_group *group = p->tp->group;

    if (status == OAR_OK)
        status = make_plan(p);
    OARI_TRY(oari_agree_on_status(group, status, "tp_parallelize"));
    OARI_TRY(agree_on_plan(p));
    OARI_TRY(oari_agree_on_status(group, make_layers(p), "tp_parallelize"));
    for (int64_t k = 0; k < p->entry.count; k++)
        OARI_TRY(place_entry(p, &p->entry.data[k]));
    return OAR_OK;
}

static oar_status run_plan(oar_module *module, oar_group *group, int rules,
                           const oar_tp_rule *rule, const oar_tp_opts *opts,
                           oar_status status)
{
    plan p = { .root = module, .rules = rules, .rule = rule };
    oar_tp_opts o = { .size = 0 };

    if (group == NULL)
        return oari_fail(OAR_E_ARG, "tp_parallelize: the group is NULL");
    if (status == OAR_OK)
        status = oari_opts_read(&o, sizeof o, opts);
    p.tp = oari_alloc(1, sizeof *p.tp);
    if (p.tp == NULL)
        return OAR_E_NOMEM;
    *p.tp = (oari_tp){ .group = group,
                       .rank = oar_group_rank(group),
                       .ranks = oar_group_size(group),
                       .sequence = o.sequence != 0,
                       .users = 1 };
    status = parallelize(&p, status);
    drop_plan(&p);
    return status;
}

oar_status oar_tp_parallelize_at(const char *file, int line, oar_module *module,
                                 oar_group *group, int rules,
                                 const oar_tp_rule *rule,
                                 const oar_tp_opts *opts)
{
    OARI_CALLED_FROM(file, line);
    return run_plan(module, group, rules, rule, opts, OAR_OK);
}

enum { GPT_RULES = 16 };

/* Writes the rules for a GPT and returns how many there are. */
static int gpt_rules(const oar_gpt_opts *gpt, int sequence,
                     oar_tp_rule rule[GPT_RULES])
{
    static const oar_tp_rule cut[] = {
        { "tok", OAR_TP_VOCABULARY, 0 },
        { "blocks.*.attention", OAR_TP_HEADS, 0 },
        { "blocks.*.up", OAR_TP_COLUMN, 0 },
        { "blocks.*.down", OAR_TP_ROW, 0 },
    };
    static const char *const rows[] = { "drop",           "blocks.*.norm1",
                                        "blocks.*.norm2", "blocks.*.drop1",
                                        "blocks.*.drop2", "pos" };
    int n = 0;

    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++)
        rule[n++] = cut[i];
    for (size_t i = 0; sequence && i < sizeof rows / sizeof *rows; i++)
        if (!gpt->rotary || strcmp(rows[i], "pos") != 0)
            rule[n++] = (oar_tp_rule){ rows[i], OAR_TP_SEQUENCE, 0 };
    if (gpt->tied)
        rule[n++] = (oar_tp_rule){ "norm", OAR_TP_LAST_NORM, 0 };
    else
        rule[n++] = (oar_tp_rule){ "head", OAR_TP_COLUMN, 0 };
    if (!gpt->tied && sequence)
        rule[n++] = (oar_tp_rule){ "norm", OAR_TP_SEQUENCE, 0 };
    return n;
}

oar_status oar_tp_parallelize_gpt_at(const char *file, int line,
                                     oar_module *gpt, oar_group *group,
                                     const oar_tp_opts *opts)
{
    OARI_CALLED_FROM(file, line);
    oar_gpt_opts described = oar_gpt_opts_init();
    oar_tp_opts o = { .size = 0 };
    oar_tp_rule rule[GPT_RULES];
    oar_status status = refuse_wrapped(gpt);

    if (status == OAR_OK)
        status = oar_gpt_describe(gpt, &described);
    if (status == OAR_OK)
        status = oari_opts_read(&o, sizeof o, opts);
    return run_plan(gpt, group, gpt_rules(&described, o.sequence, rule), rule,
                    opts, status);
}
