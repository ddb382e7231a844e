/* SPDX-License-Identifier: Apache-2.0 */
/* step_with: a step with what usually comes before it: unscaling, clipping. On
 * a GPU the kernels that step clip, too. */
#include <math.h>

#include <oarsong/device.h>

#include "base/alloc.h"
#include "base/status.h"
#include "optim/optim_gpu.h"
#include "tensor/tensor.h"

static oar_status check_norm(const oar_optim *optim, const oar_tensor *norm)
{
    oar_device at;

    if (norm == NULL || optim->params == 0)
        return OAR_OK;
    at = oar_tensor_device(optim->param[0].tensor);
    if (norm->dtype != OAR_F32 || norm->count != 1 ||
        !oari_device_equal(oar_tensor_device(norm), at))
        return oari_fail(OAR_E_ARG,
                         "optim_step_with a norm %s %s on %s: it is one f32 on "
                         "%s",
                         oar_dtype_name(norm->dtype),
                         oari_shape_text(norm->at.shape).text,
                         oar_device_text(oar_tensor_device(norm)).text,
                         oar_device_text(at).text);
    return oari_check_writable("optim_step_with", norm);
}

/* Returns whether all gradients are on a GPU, and there is one at least. */
static int all_on_gpu(const oar_optim *optim)
{
    int found = 0;

    for (int i = 0; i < optim->params; i++) {
        const oar_tensor *param = optim->param[i].tensor;

        if (oar_tensor_grad(param) == NULL)
            continue;
        if (!oari_is_gpu(oar_tensor_device(param)))
            return 0;
        found = 1;
    }
    return found;
}

/* Clips as oar_clip_grad_norm does, all parameters of the optimizer. */
static oar_status clip_all(const oar_optim *optim, double limit,
                           oar_tensor *norm)
{
    oar_tensor **param =
        oari_alloc((size_t)optim->params + 1, sizeof(oar_tensor *));
    oar_status status;
    double squares = 0;

    if (param == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < optim->params; i++)
        param[i] = optim->param[i].tensor;
    if (limit > 0)
        status = oar_clip_grad_norm(optim->params, param, limit, &squares);
    else
        status = oar_grad_squares(optim->params, param, &squares);
    oari_free(param);
    if (status != OAR_OK || norm == NULL)
        return status;
    return oar_tensor_fill(norm, limit > 0 ? squares : sqrt(squares));
}

oar_status oar_optim_step_with(oar_optim *optim, const oar_step_opts *opts)
{
    oar_step_opts o;
    int finite = 1;

    if (optim == NULL)
        return oari_null("optim_step_with");
    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (!(o.clip >= 0))
        return oari_fail(OAR_E_ARG, "optim_step_with clip %g: below zero",
                         o.clip);
    OARI_TRY(check_norm(optim, o.norm));
    if (optim->unscaled_by == NULL && all_on_gpu(optim)) {
        OARI_TRY(oari_optim_begin_step(optim));
        return oari_optim_finish_step(optim, o.clip, o.norm, o.scaler);
    }
    if (o.scaler != NULL && !oar_scaler_has_unscaled(o.scaler, optim))
        OARI_TRY(oar_scaler_unscale(o.scaler, optim, &finite));
    if (finite && (o.clip > 0 || o.norm != NULL))
        OARI_TRY(clip_all(optim, o.clip, o.norm));
    if (o.scaler != NULL)
        return oar_scaler_step(o.scaler, optim, NULL);
    return oar_optim_step(optim);
}
