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
#include "base/status.h"
#include "parallel/reducer/agreement.h"
#include "parallel/tensor_parallel/tp_plan.h"

/* ---- the ranks agree ----------------------------------------------------- */

/* Describes a rule, or a parameter. */
static void describe_item(const void *of, int64_t index, char *line,
                          size_t bytes)
{
    const oari_tp_plan *p = of;
    const oar_tensor *param;
    char name[OARI_TP_NAME] = "", shape[96] = "";
    oar_shape s;

    if (index < p->rules) {
        const oar_tp_rule *rule = &p->rule[index];

        snprintf(line, bytes, "the rule \"%s\" %s%s", rule->name,
                 oari_tp_style_name(rule->style),
                 rule->gather ? ", gathered" : "");
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
                 (unsigned long long)oari_tp_key(param));
}

static oar_status agree_on_plan(const oari_tp_plan *p)
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
static oar_tensor *find_part(const oari_tp_plan *p, const oar_tensor *whole)
{
    for (int64_t k = 0; k < p->entry.count; k++) {
        const oari_tp_plan_entry *e = &p->entry.data[k];

        for (int i = 0; e->made != NULL && i < oar_module_params(e->made); i++)
            if (oar_module_param(e->module, i) == whole)
                return oar_module_param(e->made, i);
    }
    return NULL;
}

static oar_status add_part(const oari_tp_plan *p, const oari_tp_plan_entry *e,
                           oar_module *made, int i)
{
    oar_tensor *whole = oar_module_param(e->module, i);
    oar_tensor *part = oar_tensor_retain(find_part(p, whole));
    int trained = oar_tensor_requires_grad(whole);
    char name[OARI_TP_NAME];

    OARI_TRY(oar_module_param_name(e->module, i, name, sizeof name));
    if (part == NULL)
        OARI_TRY(oari_tp_cut_make(&e->layer.cut[i], whole, &part));
    OARI_TRY(oar_module_add_param(made, name, part));
    return oar_tensor_require_grad(part, trained);
}

static oar_status make_layer(const oari_tp_plan *p, oari_tp_plan_entry *e)
{
    oar_module *made = NULL;
    oar_status status;

    for (const oari_tp_plan_entry *k = p->entry.data; k < e; k++)
        if (k->module == e->module) { /* one module in two places */
            e->made = oar_module_retain(k->made);
            return OAR_OK;
        }
    if (oar_layer_kind_of(e->module) == OAR_LAYER_ATTENTION ||
        oar_layer_kind_of(e->module) == OAR_LAYER_DROPOUT)
        return OAR_OK;
    status = oari_tp_layer_create(p->tp, e->module, e->name, &e->layer, &made);
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
static oar_status realize_whole(const oari_tp_plan *p)
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

static oar_status make_layers(oari_tp_plan *p)
{
    for (int64_t k = 0; k < p->entry.count; k++)
        OARI_TRY(make_layer(p, &p->entry.data[k]));
    return realize_whole(p);
}

/* ---- putting them in place ----------------------------------------------- */

/* An optimizer that was made before has the whole tensors, and would train what
 * nothing uses. */
static void guard_wholes(const oari_tp_plan_entry *e)
{
    for (int i = 0; i < OARI_TP_PARAMS; i++)
        if (e->layer.cut[i].ranges > 0)
            oar_tensor_guard(oar_module_param(e->module, i),
                             "tp_parallelize has cut it: make optimizers "
                             "afterwards, of the parallel model");
}

static oar_status place_entry(const oari_tp_plan *p,
                              const oari_tp_plan_entry *e)
{
    for (const oari_tp_plan_entry *k = p->entry.data; k < e; k++)
        if (k->module == e->module && e->made == NULL)
            return OAR_OK; /* it is changed already */
    if (e->made != NULL) {
        guard_wholes(e);
        return oar_module_replace(p->root, e->name, oar_module_retain(e->made));
    }
    if (oar_layer_kind_of(e->module) == OAR_LAYER_ATTENTION)
        return oar_attention_keep_heads(e->module, e->first_head, e->heads);
    return oar_dropout_place_by(e->module, oari_tp_place_rows,
                                oari_tp_retain(p->tp), oari_tp_release);
}

/* ---- public -------------------------------------------------------------- */

/* status: of what came before; the ranks agree on it, too. */
static oar_status parallelize(oari_tp_plan *p, oar_status status)
{
    oar_group *group = p->tp->group;

    if (status == OAR_OK)
        status = oari_tp_plan_make(p);
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
    oari_tp_plan p = { .root = module, .rules = rules, .rule = rule };
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
    oari_tp_plan_drop(&p);
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
    oar_status status = oari_tp_refuse_wrapped(gpt);

    if (status == OAR_OK)
        status = oar_gpt_describe(gpt, &described);
    if (status == OAR_OK)
        status = oari_opts_read(&o, sizeof o, opts);
    return run_plan(gpt, group, gpt_rules(&described, o.sequence, rule), rule,
                    opts, status);
}
