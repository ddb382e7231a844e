/* SPDX-License-Identifier: Apache-2.0 */
/* optim: the part that does not depend on the rule. State is made with the
 * optimizer, so that a step allocates nothing. A step looks at all parameters
 * before it moves the first: it happens whole or not at all. */
#include "optim/optim.h"

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/vec.h"
#include "tensor/tensor.h"

enum { BLOCK = 1024 }; /* elements of a half type that are widened at once */

/* ---- making -------------------------------------------------------------- */

/* Returns the index of a parameter, or -1. */
static int find_param(const oar_optim *optim, const oar_tensor *tensor)
{
    for (int i = 0; i < optim->params; i++)
        if (optim->param[i].tensor == tensor)
            return i;
    return -1;
}

static void drop_param(oari_optim_param *p)
{
    oar_tensor_release(p->tensor);
    for (int k = 0; k < OARI_OPTIM_STATES; k++)
        oar_tensor_release(p->state[k]);
}

static oar_status add_param(oar_optim *optim, oar_tensor *tensor)
{
    oari_optim_param *p = &optim->param[optim->params];
    oar_dtype dtype;

    if (tensor == NULL)
        return oari_null(optim->kind->name);
    if (!oar_tensor_requires_grad(tensor))
        return oari_fail(
            OAR_E_ARG, "%s over a tensor %s that requires no gradient",
            optim->kind->name, oari_shape_text(tensor->at.shape).text);
    if (!oar_tensor_is_contiguous(tensor))
        return oari_fail(
            OAR_E_ARG, "%s over a tensor %s that is not contiguous",
            optim->kind->name, oari_shape_text(tensor->at.shape).text);
    if (oar_tensor_is_read_only(tensor))
        return oari_check_writable(optim->kind->name, tensor);
    if (find_param(optim, tensor) >= 0) /* shared by two modules */
        return OAR_OK;
    optim->params++;
    *p = (oari_optim_param){ .tensor = oar_tensor_retain(tensor),
                             .group = optim->groups };
    dtype = tensor->dtype == OAR_F64 ? OAR_F64 : OAR_F32;
    for (int k = 0; k < OARI_OPTIM_STATES; k++) {
        if (optim->kind->state_name[k] == NULL)
            break;
        p->state[k] = oar_zeros(NULL, dtype, tensor->at.shape);
        if (p->state[k] == NULL)
            return OAR_E_NOMEM;
    }
    return OAR_OK;
}

static oar_status add_group(oar_optim *optim, int count,
                            oar_tensor *const *param, oari_optim_group scales)
{
    oar_status status;
    int before = optim->params;

    OARI_TRY(oari_array_reserve(optim->param, optim->params, optim->param_room,
                                count));
    OARI_TRY(
        oari_array_reserve(optim->group, optim->groups, optim->group_room, 1));
    status = OAR_OK;
    for (int i = 0; i < count && status == OAR_OK; i++)
        status = add_param(optim, param[i]);
    if (status != OAR_OK) {
        while (optim->params > before)
            drop_param(&optim->param[--optim->params]);
        return status;
    }
    optim->group[optim->groups++] = scales;
    return OAR_OK;
}

oar_status oari_optim_make(const oari_optim_class *kind, double lr,
                           double weight_decay, int count,
                           oar_tensor *const *param, oar_optim **optim)
{
    oar_optim *made;
    oar_status status;

    if (optim == NULL)
        return oari_fail(OAR_E_ARG, "%s_create: nowhere to give it",
                         kind->name);
    if (count < 0 || (count > 0 && param == NULL))
        return oari_fail(OAR_E_ARG, "%s over %d parameters: none given",
                         kind->name, count);
    made = oari_alloc(1, sizeof *made);
    if (made == NULL)
        return OAR_E_NOMEM;
    made->kind = kind;
    made->lr = lr;
    made->weight_decay = weight_decay;
    status = add_group(made, count, param, (oari_optim_group){ 1, 1 });
    if (status != OAR_OK) {
        oar_optim_destroy(made);
        return status;
    }
    *optim = made;
    return OAR_OK;
}

oar_status oari_optim_list(const oar_module *module, int *count,
                           oar_tensor ***param)
{
    oar_tensor **list;
    int trained = 0;

    if (module == NULL)
        return oari_null("an optimizer");
    list =
        oari_alloc((size_t)oar_module_params(module) + 1, sizeof(oar_tensor *));
    if (list == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < oar_module_params(module); i++) {
        list[trained] = oar_module_param(module, i);
        trained += oar_tensor_requires_grad(list[trained]);
    }
    *count = trained;
    *param = list;
    return OAR_OK;
}

void oar_optim_destroy(oar_optim *optim)
{
    if (optim == NULL)
        return;
    for (int i = 0; i < optim->params; i++)
        drop_param(&optim->param[i]);
    oari_hooks_clear(&optim->before_step);
    oari_free(optim->param);
    oari_free(optim->group);
    oari_free(optim);
}

oar_status oar_optim_add_group(oar_optim *optim, int count,
                               oar_tensor *const *param, double lr_scale,
                               double decay_scale)
{
    oari_optim_group scales = { lr_scale, decay_scale };

    if (optim == NULL)
        return oari_null("add_group");
    if (count < 0 || (count > 0 && param == NULL))
        return oari_fail(OAR_E_ARG, "a group of %d parameters: none given",
                         count);
    if (!(scales.lr_scale > 0 && scales.lr_scale < 1e300) ||
        !(scales.decay_scale >= 0 && scales.decay_scale < 1e300))
        return oari_fail(OAR_E_ARG,
                         "a group with the learning rate times %g and the "
                         "weight decay times %g: the first must be above 0, "
                         "the second not below",
                         scales.lr_scale, scales.decay_scale);
    for (int i = 0; i < count; i++) {
        int at = param[i] != NULL ? find_param(optim, param[i]) : -1;

        if (at >= 0)
            return oari_fail(OAR_E_ARG,
                             "a group with a tensor %s that is in group %d",
                             oari_shape_text(param[i]->at.shape).text,
                             optim->param[at].group);
    }
    return add_group(optim, count, param, scales);
}

/* ---- stepping ------------------------------------------------------------ */

static oar_status check_attached(const oar_optim *optim, const oar_tensor *t)
{
    if (t == NULL || oari_tensor_attached(t))
        return OAR_OK;
    return oari_fail(OAR_E_STATE,
                     "%s step on a tensor %s whose storage is detached",
                     optim->kind->name, oari_shape_text(t->at.shape).text);
}

oar_status oari_optim_ready(const oar_optim *optim)
{
    for (int i = 0; i < optim->params; i++) {
        const oari_optim_param *p = &optim->param[i];
        const oar_tensor *grad = oar_tensor_grad(p->tensor);

        if (grad == NULL)
            continue;
        OARI_TRY(check_attached(optim, p->tensor));
        OARI_TRY(check_attached(optim, grad));
        for (int k = 0; k < OARI_OPTIM_STATES; k++)
            OARI_TRY(check_attached(optim, p->state[k]));
    }
    return OAR_OK;
}

/* Moves numbers first .. first+count-1 of a half parameter: computes in f32 and
 * rounds once. */
static void move_half(const oar_optim *optim, const oari_step_rates *pace,
                      const oari_param_chunk *all, int64_t first, int64_t count)
{
    float param[BLOCK], grad[BLOCK];
    uint16_t *p = (uint16_t *)all->param + first;
    const uint16_t *g = (const uint16_t *)all->grad + first;
    oari_param_chunk part = {
        .dtype = OAR_F32, .count = count, .param = param, .grad = grad
    };

    for (int k = 0; k < OARI_OPTIM_STATES; k++)
        if (all->state[k] != NULL)
            part.state[k] = (float *)all->state[k] + first;
    oari_convert(param, OAR_F32, p, all->dtype, (size_t)count);
    oari_convert(grad, OAR_F32, g, all->dtype, (size_t)count);
    optim->kind->move(optim, pace, &part);
    oari_convert(p, all->dtype, param, OAR_F32, (size_t)count);
}

static void move_stretch(const oar_optim *optim, const oari_step_rates *pace,
                         const oari_param_chunk *s)
{
    if (!oari_dtype_is_half(s->dtype)) {
        optim->kind->move(optim, pace, s);
        return;
    }
    for (int64_t i = 0; i < s->count; i += BLOCK)
        move_half(optim, pace, s, i,
                  s->count - i < BLOCK ? s->count - i : BLOCK);
}

oar_status oar_optim_on_step(oar_optim *optim, oar_optim_fn fn, void *arg,
                             oar_hook **hook)
{
    if (optim == NULL)
        return oari_null("optim_on_step");
    return oari_hook_add(&optim->before_step, (oari_hook_fn)fn, arg, hook);
}

oar_status oari_optim_begin_step(oar_optim *optim)
{
    OARI_EACH_HOOK(hook, following, &optim->before_step)
    {
        oar_status status = ((oar_optim_fn)hook->fn)(optim, hook->arg);

        if (status != OAR_OK)
            return oari_hook_failed("step", status);
    }
    return oari_optim_ready(optim);
}

void oari_optim_finish_step(oar_optim *optim)
{
    for (int i = 0; i < optim->params; i++) {
        oari_optim_param *p = &optim->param[i];
        const oari_optim_group *group = &optim->group[p->group];
        const oar_tensor *grad = oar_tensor_grad(p->tensor);
        oari_step_rates pace = { .lr = optim->lr * group->lr_scale,
                                 .decay =
                                     optim->weight_decay * group->decay_scale,
                                 .step = p->steps + 1 };
        oari_param_chunk s = { .dtype = oar_tensor_dtype(p->tensor),
                               .count = oar_tensor_count(p->tensor) };

        if (grad == NULL)
            continue;
        s.param = oar_tensor_data(p->tensor);
        s.grad = oar_tensor_data(grad);
        for (int k = 0; k < OARI_OPTIM_STATES; k++)
            s.state[k] = oar_tensor_data(p->state[k]);
        move_stretch(optim, &pace, &s);
        p->steps++;
        p->tensor->storage->version++;
    }
    optim->steps++;
    optim->unscaled_by = NULL;
}

oar_status oar_optim_step(oar_optim *optim)
{
    if (optim == NULL)
        return oari_null("optim_step");
    OARI_TRY(oari_optim_begin_step(optim));
    oari_optim_finish_step(optim);
    return OAR_OK;
}

void oar_optim_zero_grad(oar_optim *optim)
{
    if (optim == NULL)
        return;
    for (int i = 0; i < optim->params; i++)
        oar_tensor_clear_grad(optim->param[i].tensor);
    optim->unscaled_by = NULL;
}
