/* SPDX-License-Identifier: Apache-2.0 */
/* optim: the part that does not depend on the rule. State is made with the
 * optimizer, so that a step allocates nothing. */
#include "optim/optim.h"

#include "base/alloc.h"
#include "base/status.h"
#include "tensor/tensor.h"

static oar_status check_param(const char *name, const oar_tensor *p)
{
    if (p == NULL)
        return oari_null(name);
    if (!oar_tensor_requires_grad(p))
        return oari_fail(OAR_E_ARG,
                         "%s over a tensor %s that requires no gradient", name,
                         oari_shape_text(p->at.shape).text);
    if (p->dtype != OAR_F32 && p->dtype != OAR_F64)
        return oari_fail(OAR_E_UNSUPPORTED, "%s over %s %s: only f32 and f64",
                         name, oar_dtype_name(p->dtype),
                         oari_shape_text(p->at.shape).text);
    if (!oar_tensor_is_contiguous(p))
        return oari_fail(OAR_E_ARG,
                         "%s over a tensor %s that is not contiguous", name,
                         oari_shape_text(p->at.shape).text);
    return OAR_OK;
}

static int has(const oar_optim *optim, const oar_tensor *tensor)
{
    for (int i = 0; i < optim->params; i++)
        if (optim->param[i].tensor == tensor)
            return 1;
    return 0;
}

static oar_status add_param(oar_optim *optim, oar_tensor *tensor, int states)
{
    oari_optim_param *p = &optim->param[optim->params];

    OARI_TRY(check_param(optim->kind->name, tensor));
    if (has(optim, tensor)) /* shared by two modules */
        return OAR_OK;
    optim->params++;
    p->tensor = oar_tensor_retain(tensor);
    for (int i = 0; i < states; i++) {
        p->state[i] = oar_zeros(NULL, tensor->dtype, tensor->at.shape);
        if (p->state[i] == NULL)
            return OAR_E_NOMEM;
    }
    return OAR_OK;
}

oar_status oari_optim_make(const oari_optim_class *kind, double lr, int states,
                           int count, oar_tensor *const *param,
                           oar_optim **optim)
{
    oar_optim *made;
    oar_status status = OAR_OK;

    if (count < 0 || (count > 0 && param == NULL) || optim == NULL)
        return oari_fail(OAR_E_ARG, "%s over %d parameters: none given",
                         kind->name, count);
    made = oari_alloc(1, sizeof *made);
    if (made == NULL)
        return OAR_E_NOMEM;
    made->kind = kind;
    made->lr = lr;
    made->param = oari_alloc((size_t)count, sizeof *made->param);
    if (made->param == NULL)
        status = OAR_E_NOMEM;
    for (int i = 0; i < count && status == OAR_OK; i++)
        status = add_param(made, param[i], states);
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

    if (module == NULL)
        return oari_null("an optimizer");
    *count = oar_module_params(module);
    list = oari_alloc((size_t)*count, sizeof(oar_tensor *));
    if (list == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < *count; i++)
        list[i] = oar_module_param(module, i);
    *param = list;
    return OAR_OK;
}

void oar_optim_destroy(oar_optim *optim)
{
    if (optim == NULL)
        return;
    for (int i = 0; i < optim->params; i++) {
        oar_tensor_release(optim->param[i].tensor);
        for (int k = 0; k < OARI_OPTIM_STATES; k++)
            oar_tensor_release(optim->param[i].state[k]);
    }
    oari_free(optim->param);
    oari_free(optim);
}

static oar_status check_attached(const oar_optim *optim, const oar_tensor *t)
{
    if (oari_tensor_attached(t))
        return OAR_OK;
    return oari_fail(OAR_E_STATE,
                     "%s step on a tensor %s whose storage is detached",
                     optim->kind->name, oari_shape_text(t->at.shape).text);
}

oar_status oar_optim_step(oar_optim *optim)
{
    if (optim == NULL)
        return oari_null("optim_step");
    for (int i = 0; i < optim->params; i++) {
        const oar_tensor *t = optim->param[i].tensor;
        const oar_tensor *grad = oar_tensor_grad(t);

        if (grad == NULL)
            continue;
        OARI_TRY(check_attached(optim, t));
        OARI_TRY(check_attached(optim, grad));
        optim->kind->step(optim, &optim->param[i]);
        optim->param[i].steps++;
    }
    return OAR_OK;
}

void oar_optim_zero_grad(oar_optim *optim)
{
    for (int i = 0; optim != NULL && i < optim->params; i++)
        oar_tensor_clear_grad(optim->param[i].tensor);
}

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
