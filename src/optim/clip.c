/* SPDX-License-Identifier: Apache-2.0 */
/* clip: gradients cut one by one or scaled as a whole, as
 * torch.nn.utils.clip_grad_* do it. A parameter that is given twice counts
 * once. */
#include <math.h>

#include "base/alloc.h"
#include "base/status.h"
#include "optim/grads.h"
#include "optim/optim_gpu.h"
#include "tensor/tensor.h"

static oar_status check_limit(const char *what, double limit)
{
    if (!(limit >= 0))
        return oari_fail(OAR_E_ARG, "%s to %g: below zero", what, limit);
    return OAR_OK;
}

static oar_status check_grads(const char *what, int count,
                              oar_tensor *const *param)
{
    if (count < 0 || (count > 0 && param == NULL))
        return oari_fail(OAR_E_ARG, "%s over %d parameters: none given", what,
                         count);
    for (int i = 0; i < count; i++) {
        const oar_tensor *grad = oar_tensor_grad(param[i]);

        if (param[i] == NULL)
            return oari_null(what);
        OARI_TRY(oari_check_guard(what, i, param[i]));
        if (grad != NULL)
            OARI_TRY(oari_check_not_read_only(what, grad));
        else if (oar_tensor_requires_grad(param[i]))
            OARI_TRY(oari_check_present(what, i, param[i]));
    }
    return OAR_OK;
}

/* Returns the gradient of parameter i, or NULL if it has none or is in the list
 * before i, too. */
static oar_tensor *grad_of(oar_tensor *const *param, int i)
{
    for (int k = 0; k < i; k++)
        if (param[k] == param[i])
            return NULL;
    return oar_tensor_grad(param[i]);
}

/* The gradients of some parameters, each once. */
typedef struct grad_list {
    int count;
    oar_tensor **grad;
    oar_tensor *few[512]; /* so that most steps allocate nothing */
} grad_list;

/* Fills in a list, which free_list frees. */
static oar_status list_grads(const char *what, int count,
                             oar_tensor *const *param, grad_list *list)
{
    OARI_TRY(check_grads(what, count, param));
    list->count = 0;
    list->grad = list->few;
    if ((size_t)count > sizeof list->few / sizeof list->few[0])
        list->grad = oari_alloc((size_t)count, sizeof(oar_tensor *));
    if (list->grad == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < count; i++) {
        oar_tensor *grad = grad_of(param, i);

        if (grad != NULL)
            list->grad[list->count++] = grad;
    }
    return OAR_OK;
}

static void free_list(const grad_list *list)
{
    if (list->grad != list->few)
        oari_free(list->grad);
}

oar_status oar_clip_grad_value(int count, oar_tensor *const *param,
                               double limit)
{
    oar_status status = OAR_OK;
    grad_list list;

    OARI_TRY(check_limit("clip_grad_value", limit));
    OARI_TRY(list_grads("clip_grad_value", count, param, &list));
    for (int i = 0; i < list.count && status == OAR_OK; i++)
        status = oari_grad_clamp(list.grad[i], limit);
    free_list(&list);
    return status;
}

static oar_status scale_list(int grads, oar_tensor *const *grad, double factor)
{
    for (int i = 0; i < grads; i++)
        OARI_TRY(oari_grad_scale(grad[i], factor));
    return OAR_OK;
}

oar_status oar_grad_squares(int count, oar_tensor *const *param,
                            double *squares)
{
    oar_status status;
    grad_list list;
    double found;

    if (squares == NULL)
        return oari_null("grad_squares");
    OARI_TRY(list_grads("grad_squares", count, param, &list));
    status = oari_grads_squares(list.count, list.grad, &found);
    free_list(&list);
    if (status == OAR_OK)
        *squares = found;
    return status;
}

oar_status oar_grad_scale(int count, oar_tensor *const *param, double factor)
{
    oar_status status;
    grad_list list;

    OARI_TRY(list_grads("grad_scale", count, param, &list));
    status = scale_list(list.count, list.grad, factor);
    free_list(&list);
    return status;
}

/* Returns whether all gradients are on a GPU, and there is one at least. */
static int all_on_gpu(int grads, oar_tensor *const *grad)
{
    for (int i = 0; i < grads; i++)
        if (!oari_is_gpu(oar_tensor_device(grad[i])))
            return 0;
    return grads > 0;
}

static oar_status clip_list(int grads, oar_tensor *const *grad, double limit,
                            double *norm)
{
    const double guard = 1e-6; /* PyTorch's: keeps the result below limit */
    double squares, total, factor;

    if (all_on_gpu(grads, grad))
        return oari_gpu_clip(grads, grad, limit, norm);
    OARI_TRY(oari_grads_squares(grads, grad, &squares));
    total = sqrt(squares);
    factor = limit / (total + guard);
    if (isfinite(total) && factor < 1)
        OARI_TRY(scale_list(grads, grad, factor));
    if (norm != NULL)
        *norm = total;
    return OAR_OK;
}

oar_status oar_clip_grad_norm(int count, oar_tensor *const *param, double limit,
                              double *norm)
{
    oar_status status;
    grad_list list;

    OARI_TRY(check_limit("clip_grad_norm", limit));
    OARI_TRY(list_grads("clip_grad_norm", count, param, &list));
    status = clip_list(list.count, list.grad, limit, norm);
    free_list(&list);
    return status;
}
