/* SPDX-License-Identifier: Apache-2.0 */
/* state_optim: optimizers, over parameters or over FSDP's shards. Their state
 * is saved under the names that PyTorch gives it, as parts of tensors of the
 * parameter's shape, so that both load each other's. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "parallel/checkpoint/state/state.h"
#include "parallel/ddp/ddp.h"
#include "parallel/fsdp/fsdp.h"

enum { NAME_BYTES = OARI_CKPT_LONGEST_NAME + 1 };

/* Which array of an optimizer belongs to which parameter. */
typedef struct optim_source {
    oar_optim *optim;
    int params;        /* with arrays */
    int *index;        /* of each among the optimizer's */
    oar_tensor **step; /* of each: its steps as a float, as PyTorch has them */
    char label[24];    /* "optim.0" */
    oari_ckpt_copy_guard *guard;
    oar_hook *hook; /* its next step waits for the guard; or NULL */
} optim_source;

/* ---- values -------------------------------------------------------------- */

/* The numbers of the rule, which must be the same at the load. */
typedef struct rule_number {
    const char *name;
    size_t offset;
} rule_number;

static const rule_number rule[] = {
    { "weight_decay", offsetof(oar_optim_description, weight_decay) },
    { "momentum", offsetof(oar_optim_description, momentum) },
    { "beta1", offsetof(oar_optim_description, beta1) },
    { "beta2", offsetof(oar_optim_description, beta2) },
    { "eps", offsetof(oar_optim_description, eps) },
};
enum { RULE = sizeof rule / sizeof rule[0] };

static const rule_number flags[] = {
    { "nesterov", offsetof(oar_optim_description, nesterov) },
    { "amsgrad", offsetof(oar_optim_description, amsgrad) },
};
enum { FLAGS = sizeof flags / sizeof flags[0] };

static double rule_value(const oar_optim_description *d, const rule_number *r)
{
    return *(const double *)((const char *)d + r->offset);
}

static int flag_value(const oar_optim_description *d, const rule_number *r)
{
    return *(const int *)((const char *)d + r->offset);
}

static const char *value_name(const optim_source *o, const char *name,
                              char full[64])
{
    snprintf(full, 64, "%s.%s", o->label, name);
    return full;
}

static oar_status collect_optim(const oari_ckpt_source *source,
                                oari_ckpt_values *values)
{
    const optim_source *o = source->object;
    oar_optim_description d = { .size = sizeof d };
    char name[64];

    OARI_TRY(oar_optim_describe(o->optim, &d));
    OARI_TRY(oari_ckpt_add_text(values, value_name(o, "kind", name), d.kind));
    OARI_TRY(oari_ckpt_add_float(values, value_name(o, "lr", name), d.lr));
    for (int i = 0; i < RULE; i++)
        OARI_TRY(oari_ckpt_add_float(values, value_name(o, rule[i].name, name),
                                     rule_value(&d, &rule[i])));
    for (int i = 0; i < FLAGS; i++)
        OARI_TRY(oari_ckpt_add_number(values,
                                      value_name(o, flags[i].name, name),
                                      flag_value(&d, &flags[i])));
    OARI_TRY(oari_ckpt_add_number(values, value_name(o, "steps", name),
                                  oar_optim_steps(o->optim)));
    for (int i = 0; i < o->params; i++)
        OARI_TRY(oar_tensor_fill(
            o->step[i], (double)oar_optim_param_steps(o->optim, o->index[i])));
    return OAR_OK;
}

static oar_status check_optim(const oari_ckpt_source *source,
                              const oari_ckpt_found *found)
{
    const optim_source *o = source->object;
    oar_optim_description d = { .size = sizeof d };
    const char *kind;
    char name[64];
    double number;
    int64_t flag;

    OARI_TRY(oar_optim_describe(o->optim, &d));
    OARI_TRY(oari_ckpt_get_text(found, value_name(o, "kind", name), &kind));
    if (strcmp(kind, d.kind) != 0)
        return oari_fail(OAR_E_STATE,
                         "load: the checkpoint is of the optimizer %.40s, this "
                         "one is %s",
                         kind, d.kind);
    for (int i = 0; i < RULE; i++) {
        double mine = rule_value(&d, &rule[i]);

        OARI_TRY(oari_ckpt_get_float(found, value_name(o, rule[i].name, name),
                                     &number));
        if (number != mine)
            return oari_fail(OAR_E_STATE,
                             "load: the optimizer of the checkpoint has %s "
                             "%g, this one %g",
                             rule[i].name, number, mine);
    }
    for (int i = 0; i < FLAGS; i++) {
        OARI_TRY(oari_ckpt_get_number(found, value_name(o, flags[i].name, name),
                                      &flag));
        if ((flag != 0) != (flag_value(&d, &flags[i]) != 0))
            return oari_fail(OAR_E_STATE,
                             "load: the optimizer of the checkpoint is %s %s, "
                             "this one is not",
                             flag ? "with" : "without", flags[i].name);
    }
    return oari_ckpt_get_number(found, value_name(o, "steps", name), &flag);
}

/* A float holds steps exactly up to 2^24. A parameter that was never skipped
 * has the optimizer's own steps, which are exact. */
static oar_status apply_optim(const oari_ckpt_source *source,
                              const oari_ckpt_found *found)
{
    const optim_source *o = source->object;
    char name[64];
    int64_t steps;
    double lr, step;

    OARI_TRY(oari_ckpt_get_number(found, value_name(o, "steps", name), &steps));
    OARI_TRY(oari_ckpt_get_float(found, value_name(o, "lr", name), &lr));
    OARI_TRY(oar_optim_set_steps(o->optim, steps));
    OARI_TRY(oar_optim_set_lr(o->optim, lr));
    for (int i = 0; i < o->params; i++) {
        OARI_TRY(oar_tensor_item(o->step[i], &step));
        if (step != (double)(float)steps)
            OARI_TRY(oar_optim_set_param_steps(o->optim, o->index[i],
                                               (int64_t)step));
    }
    return OAR_OK;
}

static void drop_optim(oari_ckpt_source *source)
{
    optim_source *o = source->object;

    if (o == NULL)
        return;
    oar_hook_remove(o->hook);
    for (int i = 0; o->step != NULL && i < o->params; i++)
        oar_tensor_release(o->step[i]);
    oari_free(o->step);
    oari_free(o->index);
    oari_free(o);
}

/* One wait is enough: the next lazy save adds the hook again. */
static oar_status wait_for_copy(oar_optim *optim, void *arg)
{
    optim_source *o = arg;

    (void)optim;
    oari_ckpt_copy_guard_wait(o->guard);
    oar_hook_remove(o->hook);
    o->hook = NULL;
    return OAR_OK;
}

static oar_status guard_optim(const oari_ckpt_source *source,
                              oari_ckpt_copy_guard *guard)
{
    optim_source *o = source->object;

    o->guard = guard;
    if (o->hook != NULL)
        return OAR_OK;
    return oar_optim_on_step(o->optim, wait_for_copy, o, &o->hook);
}

static const oari_ckpt_source_class optim_class = { .collect = collect_optim,
                                                    .check = check_optim,
                                                    .apply = apply_optim,
                                                    .guard = guard_optim,
                                                    .drop = drop_optim };

/* ---- arrays -------------------------------------------------------------- */

/* Writes the name that the module gives parameter `index`, behind prefix. */
static oar_status name_param(const oar_module *named, const char *prefix,
                             int index, char name[NAME_BYTES])
{
    size_t length = strlen(prefix);

    if (length >= NAME_BYTES)
        return oari_fail(OAR_E_ARG, "state: a prefix of %zu bytes", length);
    memcpy(name, prefix, length + 1);
    return oar_module_param_name(named, index, name + length,
                                 NAME_BYTES - length);
}

/* Adds "state.NAME.WHAT". cut: of the parameter, which `place` is in then. */
static oar_status add_array(oar_state *state, const char *name,
                            const char *what, oar_tensor *tensor,
                            const oar_place *place, const oari_tp_cut *cut)
{
    char full[NAME_BYTES];
    int n = snprintf(full, sizeof full, "state.%s.%s", name, what);

    if (n < 0 || n >= NAME_BYTES)
        return oari_fail(OAR_E_ARG, "state: the name \"%.40s...\" is too long",
                         full);
    if (cut != NULL)
        return oari_state_add_cut(state, "optim", full, tensor,
                                  place != NULL ? place->first : 0, cut);
    return oari_state_add(state, "optim", full, tensor, place, 0);
}

/* Adds the arrays of one parameter of the optimizer, which is all of `param`
 * or, with a place, a part of it. named: the module that has `param`. */
static oar_status add_param(oar_state *state, optim_source *o, int index,
                            const oar_module *named, const oar_tensor *param,
                            const char *name, const oar_place *place)
{
    const oari_tp_cut *cut = oari_tp_cut_of(named, param);
    const char *what;

    for (int slot = 0; (what = oar_optim_state_name(o->optim, slot)) != NULL;
         slot++) {
        oar_tensor *tensor = oar_optim_state(o->optim, index, slot);

        if (tensor == NULL)
            continue;
        OARI_TRY(add_array(state, name, what, tensor, place, cut));
        if (place != NULL && cut == NULL)
            oari_state_save_by_first(state, named);
    }
    o->index[o->params] = index;
    o->step[o->params] =
        oar_from_data(NULL, OAR_F32, OAR_SCALAR, &(float){ 0 });
    if (o->step[o->params] == NULL)
        return oar_last_error()->status;
    OARI_TRY(add_array(state, name, "step", o->step[o->params++], NULL, NULL));
    state->item.data[state->item.count - 1].at_once = 1; /* collect fills it */
    return OAR_OK;
}

/* Makes the source, with room for all parameters of the optimizer. */
static oar_status make_source(oar_state *state, oar_optim *optim,
                              optim_source **made)
{
    size_t params = (size_t)oar_optim_params(optim);
    optim_source *o = oari_alloc(1, sizeof *o);
    oar_status status;

    if (o == NULL)
        return OAR_E_NOMEM;
    o->optim = optim;
    snprintf(o->label, sizeof o->label, "optim.%d", state->optims);
    status = oari_state_add_source(state, &optim_class, o, o->label);
    if (status != OAR_OK) {
        oari_free(o);
        return status;
    }
    state->optims++;
    o->index = oari_alloc(params, sizeof *o->index);
    o->step = oari_alloc(params, sizeof *o->step);
    if (o->index == NULL || o->step == NULL)
        return OAR_E_NOMEM;
    *made = o;
    return OAR_OK;
}

/* If *param is a shard of what FSDP wraps, gives the parameter that it is a
 * part of, and its place. */
static oar_status find_shard(const oari_fsdp *fsdp, const oar_tensor **param,
                             oar_place *place)
{
    int array = fsdp != NULL ? oari_fsdp_array_of_shard(fsdp, *param) : -1;
    oar_shard shard = oar_shard_init();

    if (array < 0)
        return OAR_OK;
    OARI_TRY(oari_fsdp_shard_of(fsdp, array, &shard));
    *param = fsdp->param[array].tensor;
    place->whole = oar_tensor_shape(*param);
    place->flat = 1;
    place->first = (int64_t)shard.first;
    return OAR_OK;
}

/* Adds the arrays of parameter `index` of the optimizer if a module has it.
 * *found says whether. */
static oar_status add_if_named(oar_state *state, optim_source *o, int index,
                               const oar_module *named, const char *prefix,
                               int *found)
{
    const oari_fsdp *fsdp = oari_fsdp_of(named);
    oar_place place = { .size = sizeof place };
    const oar_tensor *param = oar_optim_param(o->optim, index);
    char name[NAME_BYTES];

    *found = 0;
    if (oari_ddp_of(named) != NULL || fsdp != NULL)
        named = oar_module_child(named, 0);
    OARI_TRY(find_shard(fsdp, &param, &place));
    for (int i = 0; i < oar_module_params(named) && !*found; i++) {
        *found = oar_module_param(named, i) == param;
        if (*found)
            OARI_TRY(name_param(named, prefix, i, name));
    }
    if (!*found)
        return OAR_OK;
    return add_param(state, o, index, named, param, name,
                     place.flat ? &place : NULL);
}

/* named NULL: by the modules of the state. */
static oar_status add_each_param(oar_state *state, optim_source *o, int index,
                                 const oar_module *named, const char *prefix)
{
    const oar_tensor *param = oar_optim_param(o->optim, index);
    int found = 0;

    if (named != NULL)
        OARI_TRY(add_if_named(state, o, index, named, prefix, &found));
    for (int64_t i = 0; named == NULL && i < state->module.count && !found; i++)
        OARI_TRY(add_if_named(state, o, index, state->module.data[i].module,
                              state->module.data[i].prefix, &found));
    if (found)
        return OAR_OK;
    return oari_fail(OAR_E_NOT_FOUND,
                     "state: a parameter %s of the optimizer is not one of %s",
                     oari_box_shape_text(oar_tensor_shape(param)).text,
                     named != NULL ? "the module that names them"
                                   : "the modules that were added before it");
}

oar_status oar_state_add_optim(oar_state *state, oar_optim *optim,
                               const oar_module *named, const char *prefix)
{
    optim_source *o;

    if (state == NULL || optim == NULL)
        return oari_fail(OAR_E_ARG, "state_add_optim: %s is NULL",
                         state == NULL ? "the state" : "the optimizer");
    if (named == NULL && prefix != NULL)
        return oari_fail(
            OAR_E_ARG,
            "state_add_optim: a prefix \"%.40s\" without a module; "
            "those of the state have theirs",
            prefix);
    OARI_TRY(make_source(state, optim, &o));
    for (int i = 0; i < oar_optim_params(optim); i++)
        OARI_TRY(
            add_each_param(state, o, i, named, prefix != NULL ? prefix : ""));
    return OAR_OK;
}
