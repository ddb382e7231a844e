/* SPDX-License-Identifier: Apache-2.0 */
/* optim: the part that does not depend on the rule. State is made with the
 * optimizer, so that a step allocates nothing. A step looks at all parameters
 * before it moves the first: it happens whole or not at all. */
#include "optim/optim.h"

#include <string.h>

#include <oarsong/device.h>
#include <oarsong/ops.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/trace.h"
#include "base/vec.h"
#include "optim/optim_gpu.h"
#include "tensor/tensor.h"

enum { BLOCK = 1024 }; /* elements of a half type that are widened at once */

/* ---- making -------------------------------------------------------------- */

/* Returns the index of a parameter, or -1. */
int oari_optim_find(const oar_optim *optim, const oar_tensor *tensor)
{
    for (int i = 0; i < optim->params; i++)
        if (optim->param[i].tensor == tensor)
            return i;
    return -1;
}

void oari_optim_drop_param(oari_optim_param *p)
{
    oar_tensor_release(p->tensor);
    for (int k = 0; k < OARI_OPTIM_SLOTS; k++)
        oar_tensor_release(p->state[k]);
}

int oari_optim_states(const oar_optim *optim)
{
    int count = 0;

    while (count < OARI_OPTIM_STATES && optim->kind->state_name[count] != NULL)
        count++;
    return count;
}

oar_status oari_check_guard(const char *what, int index,
                            const oar_tensor *param)
{
    if (param->guard == NULL)
        return OAR_OK;
    return oari_fail(OAR_E_STATE, "%s of parameter %d, a tensor %s: %s", what,
                     index, oari_shape_text(param->at.shape).text,
                     param->guard);
}

oar_status oari_check_present(const char *what, int index,
                              const oar_tensor *param)
{
    if (oari_tensor_attached(param))
        return OAR_OK;
    return oari_fail(OAR_E_STATE, "%s of parameter %d, a tensor %s %s", what,
                     index, oari_shape_text(param->at.shape).text,
                     oari_absence(param));
}

static oar_dtype state_dtype(const oar_tensor *param)
{
    return param->dtype == OAR_F64 ? OAR_F64 : OAR_F32;
}

/* Brings a state, whose reference it takes, to where its parameter is. */
static oar_tensor *state_beside(const oar_tensor *param, oar_tensor *state)
{
    oar_device at = oar_tensor_device(param);
    oar_tensor *there;

    if (state == NULL || !oari_is_gpu(at))
        return state;
    there = oar_to(NULL, state, at);
    oar_tensor_release(state);
    return there;
}

/* Never lazy: a step writes to it. */
static oar_tensor *make_state(const oar_tensor *param)
{
    int lazy = oar_lazy(0);
    oar_tensor *made = oar_zeros(NULL, state_dtype(param), param->at.shape);

    oar_lazy(lazy);
    return state_beside(param, made);
}

oar_tensor *oari_optim_make_master(const oar_tensor *param)
{
    oar_tensor *made =
        state_beside(param, oar_empty(NULL, OAR_F32, param->at.shape));

    if (made != NULL && oar_tensor_copy(made, param) == OAR_OK)
        return made;
    oar_tensor_release(made);
    return NULL;
}

oar_status oari_optim_set_master(oar_optim *optim, oari_optim_param *p,
                                 oar_tensor *master)
{
    p->state[oari_optim_states(optim)] = p->master = master;
    return oar_tensor_set_grad_dtype(p->tensor, OAR_F32);
}

static oar_status add_master(oar_optim *optim, int index, oari_optim_param *p)
{
    oar_tensor *master;

    if (!optim->master_weights || !oari_dtype_is_half(p->tensor->dtype))
        return OAR_OK;
    OARI_TRY(oari_check_present(optim->kind->name, index, p->tensor));
    master = oari_optim_make_master(p->tensor);
    if (master == NULL)
        return oar_last_error()->status;
    return oari_optim_set_master(optim, p, master);
}

static oar_status add_param(oar_optim *optim, int index, oar_tensor *tensor)
{
    oari_optim_param *p = &optim->param[optim->params];

    if (tensor == NULL)
        return oari_null(optim->kind->name);
    OARI_TRY(oari_check_guard(optim->kind->name, index, tensor));
    if (oar_tensor_is_lazy(tensor))
        OARI_TRY(oari_check_present(optim->kind->name, index, tensor));
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
    if (oari_optim_find(optim, tensor) >= 0) /* shared by two modules */
        return OAR_OK;
    optim->params++;
    *p = (oari_optim_param){ .tensor = oar_tensor_retain(tensor),
                             .group = optim->groups };
    for (int k = 0; k < oari_optim_states(optim); k++) {
        p->state[k] = make_state(tensor);
        if (p->state[k] == NULL)
            return OAR_E_NOMEM;
    }
    return add_master(optim, index, p);
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
        status = add_param(optim, i, param[i]);
    if (status != OAR_OK) {
        while (optim->params > before)
            oari_optim_drop_param(&optim->param[--optim->params]);
        return status;
    }
    optim->group[optim->groups++] = scales;
    return OAR_OK;
}

oar_status oari_optim_make(const oari_optim_class *kind,
                           const oari_optim_rule *rule, int count,
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
    made->lr = rule->lr;
    made->weight_decay = rule->weight_decay;
    made->master_weights = rule->master_weights != 0;
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
        oari_optim_drop_param(&optim->param[i]);
    oari_optim_gpu_close(optim);
    oari_hooks_clear(&optim->before_step);
    oari_hooks_clear(&optim->after_step);
    oari_hooks_clear(&optim->on_move);
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
        int at = param[i] != NULL ? oari_optim_find(optim, param[i]) : -1;

        if (at >= 0)
            return oari_fail(OAR_E_ARG,
                             "a group with a tensor %s that is in group %d",
                             oari_shape_text(param[i]->at.shape).text,
                             optim->param[at].group);
    }
    return add_group(optim, count, param, scales);
}

/* ---- stepping ------------------------------------------------------------ */

/* Checks what a step on parameter i, which has a gradient, reads and writes. */
static oar_status check_written(const char *what, const oari_optim_param *p,
                                const oar_tensor *grad, int scales)
{
    oar_dtype dtype = state_dtype(p->tensor);

    OARI_TRY(oari_check_not_read_only(what, p->tensor));
    if (p->state[0] != NULL && p->state[0]->dtype != dtype)
        return oari_fail(OAR_E_STATE,
                         "%s of a tensor %s that was rebased to %s: the state "
                         "is %s",
                         what, oari_shape_text(p->tensor->at.shape).text,
                         oar_dtype_name(p->tensor->dtype),
                         oar_dtype_name(p->state[0]->dtype));
    if (!oari_tensor_attached(grad))
        return oari_fail(OAR_E_STATE, "%s with a gradient %s %s", what,
                         oari_shape_text(grad->at.shape).text,
                         oari_absence(grad));
    if (scales)
        OARI_TRY(oari_check_not_read_only(what, grad));
    for (int k = 0; k < OARI_OPTIM_SLOTS; k++)
        if (p->state[k] != NULL)
            OARI_TRY(oari_check_not_read_only(what, p->state[k]));
    return OAR_OK;
}

oar_status oari_optim_ready(const oar_optim *optim, int scales)
{
    const char *what = optim->kind->step_name;

    for (int i = 0; i < optim->params; i++) {
        const oari_optim_param *p = &optim->param[i];
        const oar_tensor *grad = oar_tensor_grad(p->tensor);

        OARI_TRY(oari_check_guard(what, i, p->tensor));
        OARI_TRY(oari_check_present(what, i, p->tensor));
        if (grad != NULL)
            OARI_TRY(check_written(what, p, grad, scales));
    }
    return OAR_OK;
}

/* Where a half parameter is no longer its master rounded, somebody has written
 * to it: the master takes those numbers over. */
static void follow_param(float *master, const uint16_t *param, oar_dtype dtype,
                         int64_t count)
{
    uint16_t rounded[BLOCK];

    oari_convert(rounded, dtype, master, OAR_F32, (size_t)count);
    if (memcmp(rounded, param, (size_t)count * sizeof *param) == 0)
        return;
    for (int64_t i = 0; i < count; i++)
        if (rounded[i] != param[i])
            oari_convert(&master[i], OAR_F32, &param[i], dtype, 1);
}

/* A half parameter that a step moves. */
typedef struct half_param {
    uint16_t *param;
    oar_dtype dtype, grad_dtype;
    const void *grad;
    float *master; /* or NULL */
    void *const *state;
} half_param;

/* Moves numbers first .. first+count-1: computes in f32, in the master if there
 * is one, and rounds once. */
static void move_half(const oar_optim *optim, const oari_step_rates *pace,
                      const half_param *all, int64_t first, int64_t count)
{
    float param[BLOCK], grad[BLOCK];
    uint16_t *p = all->param + first;
    oari_param_chunk part = {
        .dtype = OAR_F32, .count = count, .param = param, .grad = grad
    };

    for (int k = 0; k < OARI_OPTIM_STATES; k++)
        if (all->state[k] != NULL)
            part.state[k] = (float *)all->state[k] + first;
    if (all->master != NULL) {
        part.param = all->master + first;
        follow_param(part.param, p, all->dtype, count);
    } else {
        oari_convert(param, OAR_F32, p, all->dtype, (size_t)count);
    }
    if (all->grad_dtype == OAR_F32)
        part.grad = (const float *)all->grad + first;
    else
        oari_convert(grad, OAR_F32, (const uint16_t *)all->grad + first,
                     all->grad_dtype, (size_t)count);
    optim->kind->move(optim, pace, &part);
    oari_convert(p, all->dtype, part.param, OAR_F32, (size_t)count);
}

static unsigned char *at_element(const oar_tensor *tensor, int64_t index)
{
    return (unsigned char *)oar_tensor_data(tensor) +
           (size_t)index * oar_dtype_size(tensor->dtype);
}

/* Moves elements of a parameter, from `first` on, by their gradients. */
static void move_elements(const oar_optim *optim, const oari_optim_param *p,
                          int64_t first, oar_span grad)
{
    const oari_optim_group *group = &optim->group[p->group];
    oari_step_rates pace = { .lr = optim->lr * group->lr_scale,
                             .decay = optim->weight_decay * group->decay_scale,
                             .step = p->steps + 1 };
    oari_param_chunk s = { .dtype = p->tensor->dtype,
                           .count = (int64_t)grad.count,
                           .param = at_element(p->tensor, first),
                           .grad = grad.data };
    half_param half = { .dtype = s.dtype,
                        .grad_dtype = grad.dtype,
                        .grad = grad.data,
                        .state = s.state };

    for (int k = 0; k < oari_optim_states(optim); k++)
        s.state[k] = at_element(p->state[k], first);
    if (!oari_dtype_is_half(s.dtype)) {
        optim->kind->move(optim, &pace, &s);
        return;
    }
    half.param = s.param;
    if (p->master != NULL)
        half.master = (float *)(void *)at_element(p->master, first);
    for (int64_t k = 0; k < s.count; k += BLOCK)
        move_half(optim, &pace, &half, k,
                  s.count - k < BLOCK ? s.count - k : BLOCK);
}

static void mark_written(const oari_optim_param *p)
{
    for (int k = 0; k < OARI_OPTIM_SLOTS; k++)
        if (p->state[k] != NULL)
            p->state[k]->storage->version++;
    p->tensor->storage->version++;
}

/* Moves one parameter by its gradient: all at once, or, if somebody wants to
 * know, in chunks. */
static void move_param(oar_optim *optim, int index, const oar_tensor *grad)
{
    const oari_optim_param *p = &optim->param[index];
    int64_t count = oar_tensor_count(p->tensor);
    int64_t most = optim->on_move.first != NULL ? OAR_OPTIM_CHUNK : count;
    size_t size = oar_dtype_size(grad->dtype);
    const unsigned char *data = oar_tensor_const_data(grad);

    for (int64_t first = 0; first < count; first += most) {
        int64_t n = count - first < most ? count - first : most;

        OARI_EACH_HOOK(hook, following, &optim->on_move)
        {
            ((oar_optim_move_fn)hook->fn)(optim, index, first, n, hook->arg);
        }
        move_elements(optim, p, first,
                      oar_span_of_const(data + (size_t)first * size, (size_t)n,
                                        grad->dtype));
    }
    mark_written(p);
}

oar_status oar_optim_move(oar_optim *optim, int index, int64_t first,
                          oar_span grad)
{
    const oari_optim_param *p;
    int64_t count = (int64_t)grad.count, all;

    if (optim == NULL || index < 0 || index >= optim->params)
        return oari_fail(OAR_E_ARG, "optim_move of parameter %d of %d", index,
                         oar_optim_params(optim));
    p = &optim->param[index];
    all = oar_tensor_count(p->tensor);
    if (first < 0 || first > all || count > all - first ||
        (count > 0 && grad.data == NULL))
        return oari_fail(OAR_E_ARG,
                         "optim_move of %lld elements from %lld on, of %lld",
                         (long long)count, (long long)first, (long long)all);
    if (grad.dtype != p->tensor->dtype &&
        !(grad.dtype == OAR_F32 && oari_dtype_is_half(p->tensor->dtype)))
        return oari_fail(OAR_E_DTYPE, "optim_move of a %s by a gradient in %s",
                         oar_dtype_name(p->tensor->dtype),
                         oar_dtype_name(grad.dtype));
    OARI_TRY(oari_check_guard("optim_move", index, p->tensor));
    OARI_TRY(oari_check_present("optim_move", index, p->tensor));
    OARI_TRY(oari_check_not_read_only("optim_move", p->tensor));
    if (oari_is_gpu(oar_tensor_device(p->tensor)))
        return oari_fail(OAR_E_DEVICE,
                         "optim_move of a parameter on %s: only "
                         "on the cpu",
                         oar_device_text(oar_tensor_device(p->tensor)).text);
    move_elements(optim, p, first, grad);
    mark_written(p);
    return OAR_OK;
}

oar_status oar_optim_on_step(oar_optim *optim, oar_optim_fn fn, void *arg,
                             oar_hook **hook)
{
    if (optim == NULL)
        return oari_null("optim_on_step");
    return oari_hook_add(&optim->before_step, (oari_hook_fn)fn, arg, hook);
}

oar_status oar_optim_after_step(oar_optim *optim, oar_optim_stepped_fn fn,
                                void *arg, oar_hook **hook)
{
    if (optim == NULL)
        return oari_null("optim_after_step");
    return oari_hook_add(&optim->after_step, (oari_hook_fn)fn, arg, hook);
}

oar_status oar_optim_on_move(oar_optim *optim, oar_optim_move_fn fn, void *arg,
                             oar_hook **hook)
{
    if (optim == NULL)
        return oari_null("optim_on_move");
    return oari_hook_add(&optim->on_move, (oari_hook_fn)fn, arg, hook);
}

oar_status oari_optim_begin_step(oar_optim *optim)
{
    OARI_EACH_HOOK(hook, following, &optim->before_step)
    {
        oar_status status = ((oar_optim_fn)hook->fn)(optim, hook->arg);

        if (status != OAR_OK)
            return oari_hook_failed("step", status);
    }
    OARI_TRY(oari_optim_gpu_ready(optim));
    return oari_optim_ready(optim, 0);
}

oar_status oari_optim_finish_step(oar_optim *optim, double clip,
                                  oar_tensor *norm, oar_scaler *scaler)
{
    OARI_TRACED(OARI_TRACE_OPTIMIZER, "optimizer step");
    int moved;

    OARI_TRY(oari_optim_gpu_step(optim, clip, norm, scaler, &moved));
    for (int i = 0; i < optim->params; i++) {
        const oar_tensor *grad = oar_tensor_grad(optim->param[i].tensor);

        if (grad == NULL ||
            oari_is_gpu(oar_tensor_device(optim->param[i].tensor)))
            continue;
        move_param(optim, i, grad);
        optim->param[i].steps++;
    }
    optim->steps++;
    optim->unscaled_by = NULL;
    OARI_EACH_HOOK(hook, following, &optim->after_step)
    {
        ((oar_optim_stepped_fn)hook->fn)(optim, hook->arg);
    }
    return OAR_OK;
}

oar_status oar_optim_step(oar_optim *optim)
{
    if (optim == NULL)
        return oari_null("optim_step");
    OARI_TRY(oari_optim_begin_step(optim));
    return oari_optim_finish_step(optim, 0, NULL, NULL);
}

void oar_optim_zero_grad(oar_optim *optim)
{
    if (optim == NULL)
        return;
    for (int i = 0; i < optim->params; i++)
        oar_tensor_clear_grad(optim->param[i].tensor);
    optim->unscaled_by = NULL;
}
