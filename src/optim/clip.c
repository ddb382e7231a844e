/* SPDX-License-Identifier: Apache-2.0 */
/* clip: gradients cut one by one or scaled as a whole, as
 * torch.nn.utils.clip_grad_* do it. A parameter that is given twice counts
 * once. */
#include <math.h>

#include "base/status.h"
#include "optim/grads.h"
#include "optim/optim.h"
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

oar_status oar_clip_grad_value(int count, oar_tensor *const *param,
                               double limit)
{
    OARI_TRY(check_limit("clip_grad_value", limit));
    OARI_TRY(check_grads("clip_grad_value", count, param));
    for (int i = 0; i < count; i++) {
        oar_tensor *grad = grad_of(param, i);

        if (grad != NULL)
            oari_grad_clamp(grad, limit);
    }
    return OAR_OK;
}

/* Scales the gradients, which were checked. */
static void scale_grads(int count, oar_tensor *const *param, double factor)
{
    for (int i = 0; i < count; i++) {
        oar_tensor *grad = grad_of(param, i);

        if (grad != NULL)
            oari_grad_scale(grad, factor);
    }
}

static double sum_squares(int count, oar_tensor *const *param)
{
    double sum = 0;

    for (int i = 0; i < count; i++) {
        const oar_tensor *grad = grad_of(param, i);

        if (grad != NULL)
            sum += oari_grad_squares(grad);
    }
    return sum;
}

oar_status oar_grad_squares(int count, oar_tensor *const *param,
                            double *squares)
{
    if (squares == NULL)
        return oari_null("grad_squares");
    OARI_TRY(check_grads("grad_squares", count, param));
    *squares = sum_squares(count, param);
    return OAR_OK;
}

oar_status oar_grad_scale(int count, oar_tensor *const *param, double factor)
{
    OARI_TRY(check_grads("grad_scale", count, param));
    scale_grads(count, param, factor);
    return OAR_OK;
}

oar_status oar_clip_grad_norm(int count, oar_tensor *const *param, double limit,
                              double *norm)
{
    const double guard = 1e-6; /* PyTorch's: keeps the result below limit */
    double total, factor;

    OARI_TRY(check_limit("clip_grad_norm", limit));
    OARI_TRY(check_grads("clip_grad_norm", count, param));
    total = sqrt(sum_squares(count, param));
    factor = limit / (total + guard);
    if (isfinite(total) && factor < 1)
        scale_grads(count, param, factor);
    if (norm != NULL)
        *norm = total;
    return OAR_OK;
}
