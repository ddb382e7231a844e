/* SPDX-License-Identifier: Apache-2.0 */
/* scaler: a loss scale that finds its own size, as torch.amp.GradScaler does.
 * All ranks of a data-parallel run see the same gradients and so decide the
 * same. */
#include <float.h>

#include "base/alloc.h"
#include "base/status.h"
#include "optim/grads.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

struct oar_scaler {
    double scale;
    int64_t interval;
    int64_t good; /* steps since the scale last changed */
};

oar_status oar_scaler_create(const oar_scaler_opts *opts, oar_scaler **scaler)
{
    oar_scaler_opts o;
    oar_scaler *made;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (scaler == NULL)
        return oari_fail(OAR_E_ARG, "scaler_create: nowhere to give it");
    if (!(o.scale >= 0 && o.scale <= (double)FLT_MAX) || o.interval < 0)
        return oari_fail(OAR_E_ARG,
                         "a scaler with scale %g and interval %lld: neither "
                         "may be negative",
                         o.scale, (long long)o.interval);
    made = oari_alloc(1, sizeof *made);
    if (made == NULL)
        return OAR_E_NOMEM;
    made->scale = o.scale > 0 ? o.scale : 65536;
    made->interval = o.interval > 0 ? o.interval : 2000;
    *scaler = made;
    return OAR_OK;
}

void oar_scaler_destroy(oar_scaler *scaler)
{
    oari_free(scaler);
}

double oar_scaler_scale(const oar_scaler *scaler)
{
    return scaler != NULL ? scaler->scale : 0;
}

/* Divides the gradients, unless one is not finite. Returns whether all were. */
static int unscale_grads(const oar_scaler *scaler, const oar_optim *optim)
{
    for (int i = 0; i < optim->params; i++) {
        const oar_tensor *grad = oar_tensor_grad(optim->param[i].tensor);

        if (grad != NULL && !oari_grad_finite(grad))
            return 0;
    }
    for (int i = 0; i < optim->params; i++) {
        oar_tensor *grad = oar_tensor_grad(optim->param[i].tensor);

        if (grad != NULL)
            oari_grad_scale(grad, 1 / scaler->scale);
    }
    return 1;
}

oar_status oar_scaler_unscale(oar_scaler *scaler, oar_optim *optim, int *finite)
{
    if (scaler == NULL || optim == NULL)
        return oari_null("scaler_unscale");
    if (optim->unscaled_by != NULL)
        return oari_fail(OAR_E_STATE, "scaler_unscale of gradients that were "
                                      "unscaled already, before a step");
    OARI_TRY(oari_optim_ready(optim));
    optim->was_finite = unscale_grads(scaler, optim);
    optim->unscaled_by = scaler;
    if (finite != NULL)
        *finite = optim->was_finite;
    return OAR_OK;
}

oar_status oar_scaler_step(oar_scaler *scaler, oar_optim *optim, int *stepped)
{
    int good;

    if (scaler == NULL || optim == NULL)
        return oari_null("scaler_step");
    if (optim->unscaled_by != NULL && optim->unscaled_by != scaler)
        return oari_fail(OAR_E_STATE, "scaler_step of gradients that another "
                                      "scaler has unscaled");
    OARI_TRY(oari_optim_ready(optim));
    good = optim->unscaled_by != NULL ? optim->was_finite
                                      : unscale_grads(scaler, optim);
    if (good)
        OARI_TRY(oar_optim_step(optim));
    optim->unscaled_by = NULL;
    /* The scale stays within what an f32 holds. */
    if (!good) {
        scaler->good = 0;
        if (scaler->scale > 2 * (double)FLT_MIN)
            scaler->scale /= 2;
    } else if (++scaler->good >= scaler->interval) {
        scaler->good = 0;
        if (scaler->scale < (double)FLT_MAX / 2)
            scaler->scale *= 2;
    }
    if (stepped != NULL)
        *stepped = good;
    return OAR_OK;
}
