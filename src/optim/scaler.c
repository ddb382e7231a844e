/* SPDX-License-Identifier: Apache-2.0 */
/* scaler: a loss scale that finds its own size, as torch.amp.GradScaler does.
 * All ranks of a data-parallel run see the same gradients and so decide the
 * same; ranks that do not are told by oar_scaler_step_if what all found. */
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

oar_status oar_scaler_read(const oar_scaler *scaler, double *scale,
                           int64_t *good)
{
    if (scaler == NULL)
        return oari_null("scaler_read");
    if (scale != NULL)
        *scale = scaler->scale;
    if (good != NULL)
        *good = scaler->good;
    return OAR_OK;
}

oar_status oar_scaler_set(oar_scaler *scaler, double scale, int64_t good)
{
    if (scaler == NULL)
        return oari_null("scaler_set");
    if (!(scale > 0 && scale <= (double)FLT_MAX) || good < 0)
        return oari_fail(OAR_E_ARG,
                         "scaler_set to scale %g after %lld good steps: the "
                         "scale must be above 0 and fit an f32, the steps not "
                         "be negative",
                         scale, (long long)good);
    scaler->scale = scale;
    scaler->good = good;
    return OAR_OK;
}

/* Says whether all gradients are finite. For those on a GPU the host waits. */
static oar_status ask_finite(const oar_optim *optim, int *finite)
{
    oar_tensor **grad =
        oari_alloc((size_t)optim->params + 1, sizeof(oar_tensor *));
    oar_status status;
    int count = 0;

    if (grad == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < optim->params; i++) {
        grad[count] = oar_tensor_grad(optim->param[i].tensor);
        count += grad[count] != NULL;
    }
    status = oari_grads_finite(count, grad, finite);
    oari_free(grad);
    return status;
}

static oar_status divide_grads(const oar_scaler *scaler, const oar_optim *optim)
{
    for (int i = 0; i < optim->params; i++) {
        oar_tensor *grad = oar_tensor_grad(optim->param[i].tensor);

        if (grad != NULL)
            OARI_TRY(oari_grad_scale(grad, 1 / scaler->scale));
    }
    return OAR_OK;
}

oar_status oar_scaler_unscale(oar_scaler *scaler, oar_optim *optim, int *finite)
{
    if (scaler == NULL || optim == NULL)
        return oari_null("scaler_unscale");
    if (optim->unscaled_by != NULL)
        return oari_fail(OAR_E_STATE, "scaler_unscale of gradients that were "
                                      "unscaled already, before a step");
    OARI_TRY(oari_optim_ready(optim, 1));
    OARI_TRY(ask_finite(optim, &optim->was_finite));
    if (optim->was_finite)
        OARI_TRY(divide_grads(scaler, optim));
    optim->unscaled_by = scaler;
    if (finite != NULL)
        *finite = optim->was_finite;
    return OAR_OK;
}

/* Steps, or skips the step, and moves the scale. */
static oar_status end_step(oar_scaler *scaler, oar_optim *optim, int good,
                           int *stepped)
{
    if (good) {
        OARI_TRY(oari_optim_begin_step(optim));
        if (optim->unscaled_by == NULL)
            OARI_TRY(divide_grads(scaler, optim));
        OARI_TRY(oari_optim_finish_step(optim, 0, NULL));
    }
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

oar_status oar_scaler_found(const oar_scaler *scaler, const oar_optim *optim,
                            int *finite)
{
    if (scaler == NULL || optim == NULL || finite == NULL)
        return oari_null("scaler_found");
    if (optim->unscaled_by != NULL && optim->unscaled_by != scaler)
        return oari_fail(OAR_E_STATE, "scaler_step of gradients that another "
                                      "scaler has unscaled");
    OARI_TRY(oari_optim_ready(optim, 1));
    if (optim->unscaled_by == NULL)
        return ask_finite(optim, finite);
    *finite = optim->was_finite;
    return OAR_OK;
}

int oar_scaler_has_unscaled(const oar_scaler *scaler, const oar_optim *optim)
{
    return scaler != NULL && optim != NULL && optim->unscaled_by == scaler;
}

oar_status oar_scaler_step(oar_scaler *scaler, oar_optim *optim, int *stepped)
{
    int finite;

    if (scaler == NULL || optim == NULL)
        return oari_null("scaler_step");
    OARI_TRY(oar_scaler_found(scaler, optim, &finite));
    return end_step(scaler, optim, finite, stepped);
}

oar_status oar_scaler_step_if(oar_scaler *scaler, oar_optim *optim, int finite,
                              int *stepped)
{
    if (scaler == NULL || optim == NULL)
        return oari_null("scaler_step_if");
    if (optim->unscaled_by != scaler)
        return oari_fail(OAR_E_STATE, "scaler_step_if of gradients that this "
                                      "scaler has not unscaled");
    if (finite && !optim->was_finite)
        return oari_fail(OAR_E_STATE,
                         "scaler_step_if is told that all gradients were "
                         "finite, but on this rank they were not");
    OARI_TRY(oari_optim_ready(optim, 1));
    return end_step(scaler, optim, finite != 0, stepped);
}
