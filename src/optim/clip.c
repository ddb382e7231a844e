/* SPDX-License-Identifier: Apache-2.0 */
/* clip: gradients cut one by one or scaled as a whole, as
 * torch.nn.utils.clip_grad_* do it. A parameter that is given twice counts
 * once. */
#include <math.h>

#include "base/status.h"
#include "optim/grads.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

static oar_status check_grads(const char *what, int count,
                              oar_tensor *const *param, double limit)
{
    if (count < 0 || (count > 0 && param == NULL))
        return oari_fail(OAR_E_ARG, "%s over %d parameters: none given", what,
                         count);
    if (!(limit >= 0))
        return oari_fail(OAR_E_ARG, "%s to %g: below zero", what, limit);
    for (int i = 0; i < count; i++) {
        const oar_tensor *grad = oar_tensor_grad(param[i]);

        if (param[i] == NULL)
            return oari_null(what);
        if (grad != NULL && !oari_tensor_attached(grad))
            return oari_fail(OAR_E_STATE,
                             "%s: the storage of the gradient of a tensor %s "
                             "is detached",
                             what, oari_shape_text(param[i]->at.shape).text);
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
    OARI_TRY(check_grads("clip_grad_value", count, param, limit));
    for (int i = 0; i < count; i++) {
        oar_tensor *grad = grad_of(param, i);

        if (grad != NULL)
            oari_grad_clamp(grad, limit);
    }
    return OAR_OK;
}

oar_status oar_clip_grad_norm(int count, oar_tensor *const *param, double limit,
                              double *norm)
{
    const double guard = 1e-6; /* PyTorch's: keeps the result below limit */
    double total, factor, sum = 0;

    OARI_TRY(check_grads("clip_grad_norm", count, param, limit));
    for (int i = 0; i < count; i++) {
        const oar_tensor *grad = grad_of(param, i);

        if (grad != NULL)
            sum += oari_grad_squares(grad);
    }
    total = sqrt(sum);
    factor = limit / (total + guard);
    for (int i = 0; i < count && isfinite(total) && factor < 1; i++) {
        oar_tensor *grad = grad_of(param, i);

        if (grad != NULL)
            oari_grad_scale(grad, factor);
    }
    if (norm != NULL)
        *norm = total;
    return OAR_OK;
}
