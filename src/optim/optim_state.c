/* SPDX-License-Identifier: Apache-2.0 */
/* optim_state: reads and sets an optimizer's learning rate, and all that
 * another optimizer needs to go on where this one stopped; and says what the
 * optimizer is. */
#include <string.h>

#include "base/dtype.h"
#include "base/status.h"
#include "base/vec.h"
#include "optim/optim_gpu.h"
#include "tensor/tensor.h"

oar_status oar_optim_set_lr(oar_optim *optim, double lr)
{
    if (optim == NULL)
        return oari_null("set_lr");
    if (!(lr >= 0))
        return oari_fail(OAR_E_ARG, "a learning rate of %g", lr);
    optim->lr = lr;
    return OAR_OK;
}

double oar_optim_lr(const oar_optim *optim)
{
    return optim != NULL ? optim->lr : 0;
}

oar_status oar_optim_describe(const oar_optim *optim,
                              oar_optim_description *description)
{
    oar_optim_description d = { .size = sizeof d };

    if (optim == NULL)
        return oari_null("optim_describe");
    d.kind = optim->kind->name;
    d.lr = optim->lr;
    d.weight_decay = optim->weight_decay;
    d.master_weights = optim->master_weights;
    optim->kind->describe(optim, &d);
    return oari_struct_give(description, &d, sizeof d, "optimizer description");
}

int oar_optim_groups(const oar_optim *optim)
{
    return optim != NULL ? optim->groups : 0;
}

oar_status oar_optim_group_scales(const oar_optim *optim, int group,
                                  double *lr_scale, double *decay_scale)
{
    if (optim == NULL || lr_scale == NULL || decay_scale == NULL)
        return oari_null("optim_group_scales");
    if (group < 0 || group >= optim->groups)
        return oari_fail(OAR_E_ARG, "optim_group_scales of group %d of %d",
                         group, optim->groups);
    *lr_scale = optim->group[group].lr_scale;
    *decay_scale = optim->group[group].decay_scale;
    return OAR_OK;
}

int oar_optim_params(const oar_optim *optim)
{
    return optim != NULL ? optim->params : 0;
}

static oari_optim_param *param_of(const oar_optim *optim, int index)
{
    if (optim == NULL || index < 0 || index >= optim->params)
        return NULL;
    return &optim->param[index];
}

oar_tensor *oar_optim_param(const oar_optim *optim, int index)
{
    const oari_optim_param *p = param_of(optim, index);

    return p != NULL ? p->tensor : NULL;
}

oar_status oar_optim_param_group(const oar_optim *optim, int index, int *group)
{
    const oari_optim_param *p = param_of(optim, index);

    if (optim == NULL || group == NULL)
        return oari_null("optim_param_group");
    if (p == NULL)
        return oari_fail(OAR_E_ARG, "optim_param_group of parameter %d of %d",
                         index, optim->params);
    *group = p->group;
    return OAR_OK;
}

const char *oar_optim_state_name(const oar_optim *optim, int slot)
{
    if (optim == NULL || slot < 0)
        return NULL;
    if (slot < oari_optim_states(optim))
        return optim->kind->state_name[slot];
    return slot == oari_optim_states(optim) && optim->master_weights ? "master"
                                                                     : NULL;
}

oar_tensor *oar_optim_state(oar_optim *optim, int index, int slot)
{
    const oari_optim_param *p = param_of(optim, index);

    return p != NULL && slot >= 0 && slot < OARI_OPTIM_SLOTS ? p->state[slot]
                                                             : NULL;
}

/* Steps that a scaler has skipped on a GPU do not count. */
static void count_skipped(const oar_optim *optim)
{
    oar_optim *mine;

    memcpy(&mine, &optim, sizeof mine);
    if (optim != NULL)
        oari_optim_gpu_settle(mine);
}

int64_t oar_optim_steps(const oar_optim *optim)
{
    count_skipped(optim);
    return optim != NULL ? optim->steps : 0;
}

static oar_status check_steps(int64_t steps)
{
    if (steps < 0)
        return oari_fail(OAR_E_ARG, "set_steps to %lld", (long long)steps);
    return OAR_OK;
}

oar_status oar_optim_set_steps(oar_optim *optim, int64_t steps)
{
    if (optim == NULL)
        return oari_null("set_steps");
    OARI_TRY(check_steps(steps));
    count_skipped(optim);
    optim->steps = steps;
    for (int i = 0; i < optim->params; i++)
        optim->param[i].steps = steps;
    return OAR_OK;
}

int64_t oar_optim_param_steps(const oar_optim *optim, int index)
{
    const oari_optim_param *p = param_of(optim, index);

    count_skipped(optim);
    return p != NULL ? p->steps : 0;
}

oar_status oar_optim_set_param_steps(oar_optim *optim, int index, int64_t steps)
{
    oari_optim_param *p = param_of(optim, index);

    if (optim == NULL)
        return oari_null("set_param_steps");
    if (p == NULL)
        return oari_fail(OAR_E_ARG, "set_param_steps of parameter %d of %d",
                         index, optim->params);
    OARI_TRY(check_steps(steps));
    count_skipped(optim);
    p->steps = steps;
    return OAR_OK;
}

/* ---- other parameters ---------------------------------------------------- */

static oar_status check_state(const oar_optim *optim, int index,
                              const oar_optim_entry *e)
{
    oar_dtype dtype = e->param->dtype == OAR_F64 ? OAR_F64 : OAR_F32;
    int states = oari_optim_states(optim);
    int masters =
        optim->master_weights && oari_dtype_is_half(e->param->dtype) ? 1 : 0;

    for (int k = 0; k < OARI_OPTIM_SLOTS; k++) {
        const oar_tensor *state = e->state[k];

        if ((state != NULL) != (k < states + masters))
            return oari_fail(OAR_E_ARG,
                             "optim_replace: parameter %d of %s has %s state "
                             "%d",
                             index, optim->kind->name,
                             state != NULL ? "a" : "no", k);
        if (state != NULL && state->dtype != dtype)
            return oari_fail(OAR_E_DTYPE,
                             "optim_replace: state %d of parameter %d is %s, "
                             "not %s",
                             k, index, oar_dtype_name(state->dtype),
                             oar_dtype_name(dtype));
        if (state != NULL &&
            !oari_shape_equal(state->at.shape, e->param->at.shape))
            return oari_fail(OAR_E_SHAPE,
                             "optim_replace: state %d of parameter %d is %s, "
                             "the parameter %s",
                             k, index, oari_shape_text(state->at.shape).text,
                             oari_shape_text(e->param->at.shape).text);
    }
    return OAR_OK;
}

static oar_status check_entry(const oar_optim *optim, int index,
                              const oar_optim_entry *entry)
{
    const oar_optim_entry *e = &entry[index];

    if (e->param == NULL)
        return oari_null("optim_replace");
    OARI_TRY(oari_check_guard("optim_replace", index, e->param));
    if (!oar_tensor_requires_grad(e->param) ||
        !oar_tensor_is_contiguous(e->param))
        return oari_fail(
            OAR_E_ARG, "optim_replace: parameter %d, a tensor %s, %s", index,
            oari_shape_text(e->param->at.shape).text,
            oar_tensor_is_contiguous(e->param) ? "requires no gradient"
                                               : "is not contiguous");
    if (e->group < 0 || e->group >= optim->groups)
        return oari_fail(OAR_E_ARG,
                         "optim_replace: parameter %d is in group %d of %d",
                         index, e->group, optim->groups);
    for (int i = 0; i < index; i++)
        if (entry[i].param == e->param)
            return oari_fail(OAR_E_ARG,
                             "optim_replace: parameters %d and %d are one "
                             "tensor",
                             i, index);
    OARI_TRY(check_steps(e->steps));
    return check_state(optim, index, e);
}

/* The new references are taken before the old ones are given up: a tensor may
 * be in both lists. */
oar_status oar_optim_replace(oar_optim *optim, int count,
                             const oar_optim_entry *entry)
{
    int states;

    if (optim == NULL || count < 0 || (count > 0 && entry == NULL))
        return oari_null("optim_replace");
    for (int i = 0; i < count; i++)
        OARI_TRY(check_entry(optim, i, entry));
    if (count > optim->params)
        OARI_TRY(oari_array_reserve(optim->param, optim->params,
                                    optim->param_room, count - optim->params));
    for (int i = 0; i < count; i++) {
        oar_tensor_retain(entry[i].param);
        for (int k = 0; k < OARI_OPTIM_SLOTS; k++)
            oar_tensor_retain(entry[i].state[k]);
    }
    for (int i = 0; i < optim->params; i++)
        oari_optim_drop_param(&optim->param[i]);
    states = oari_optim_states(optim);
    for (int i = 0; i < count; i++) {
        oari_optim_param *p = &optim->param[i];

        *p = (oari_optim_param){ .tensor = entry[i].param,
                                 .group = entry[i].group,
                                 .steps = entry[i].steps };
        memcpy(p->state, entry[i].state, sizeof p->state);
        p->master = p->state[states];
    }
    optim->params = count;
    optim->unscaled_by = NULL;
    return OAR_OK;
}
