/* SPDX-License-Identifier: Apache-2.0 */
/* scaler: a loss scale that finds its own size, as torch.amp.GradScaler does.
 * All ranks of a data-parallel run see the same gradients and so decide the
 * same; ranks that do not are told by oar_scaler_step_if what all found.
 *
 * Once oar_optim_step_with has used it on a GPU its scale is there, and changes
 * there without the host. */
#include <float.h>
#include <string.h>

#include <oarsong/device.h>
#include <oarsong/ops.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/status.h"
#include "optim/grads.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

struct oar_scaler {
    double scale;
    int64_t interval;
    int64_t good; /* steps since the scale last changed */
    /* On a GPU, once a step there has used it: both are what is in its memory.
     */
    oar_device device;
    oar_storage *numbers; /* an oari_scaler_numbers; NULL: not there */
    oar_tensor *there;    /* its scale, f32 */
};

static const oar_device cpu = { OAR_CPU, 0 };

/* ---- on a GPU ------------------------------------------------------------ */

static oar_status write_numbers(const oar_scaler *scaler)
{
    oari_scaler_numbers now = { .scale = (float)scaler->scale,
                                .good = (double)scaler->good };

    return oar_device_copy(oar_storage_data(scaler->numbers), scaler->device,
                           &now, cpu, sizeof now,
                           oar_stream_current(scaler->device));
}

/* Brings what the host knows up to date, which waits for the GPU. */
static oar_status settle(oar_scaler *scaler)
{
    oari_scaler_numbers now;

    if (scaler->numbers == NULL)
        return OAR_OK;
    OARI_TRY(oar_device_copy(&now, cpu, oar_storage_const_data(scaler->numbers),
                             scaler->device, sizeof now,
                             oar_stream_current(scaler->device)));
    scaler->scale = (double)now.scale;
    scaler->good = (int64_t)now.good;
    return OAR_OK;
}

static void leave_gpu(oar_scaler *scaler)
{
    oar_tensor_release(scaler->there);
    oar_storage_release(scaler->numbers);
    scaler->there = NULL;
    scaler->numbers = NULL;
}

static oar_status live_on(oar_scaler *scaler, oar_device device)
{
    if (scaler->numbers != NULL && oari_device_equal(scaler->device, device))
        return OAR_OK;
    OARI_TRY(settle(scaler));
    leave_gpu(scaler);
    scaler->device = device;
    OARI_TRY(oar_storage_create_on(device, sizeof(oari_scaler_numbers),
                                   &scaler->numbers));
    scaler->there = oar_view_of(NULL, scaler->numbers, 0, OAR_F32, OAR_SCALAR);
    if (scaler->there == NULL)
        return oar_last_error()->status;
    return write_numbers(scaler);
}

oar_status oari_scaler_on_gpu(oar_scaler *scaler, oar_device device,
                              oari_scaler_numbers **numbers, int64_t *interval)
{
    OARI_TRY(live_on(scaler, device));
    *numbers = oar_storage_data(scaler->numbers);
    *interval = scaler->interval;
    return OAR_OK;
}

oar_tensor *oar_scaler_loss(oar_tape *tape, oar_scaler *scaler,
                            oar_tensor *loss)
{
    oar_tensor *wide, *scale;

    if (scaler == NULL || loss == NULL) {
        oari_null("scaler_loss");
        return NULL;
    }
    if (oar_tensor_device(loss).kind == OAR_CPU)
        return settle(scaler) == OAR_OK ? oar_scale(tape, loss, scaler->scale)
                                        : NULL;
    if (live_on(scaler, oar_tensor_device(loss)) != OAR_OK)
        return NULL;
    wide =
        oari_dtype_is_half(loss->dtype) ? oar_cast(tape, loss, OAR_F32) : loss;
    scale = wide != NULL && wide->dtype == OAR_F64
                ? oar_cast(tape, scaler->there, OAR_F64)
                : scaler->there;
    return wide != NULL && scale != NULL ? oar_mul(tape, wide, scale) : NULL;
}

/* -------------------------------------------------------------------------- */

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
    if (scaler != NULL)
        leave_gpu(scaler);
    oari_free(scaler);
}

double oar_scaler_scale(const oar_scaler *scaler)
{
    double scale = 0;

    return oar_scaler_read(scaler, &scale, NULL) == OAR_OK ? scale : 0;
}

oar_status oar_scaler_read(const oar_scaler *scaler, double *scale,
                           int64_t *good)
{
    oar_scaler *mine;

    if (scaler == NULL)
        return oari_null("scaler_read");
    memcpy(&mine, &scaler, sizeof mine);
    OARI_TRY(settle(mine));
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
    return scaler->numbers != NULL ? write_numbers(scaler) : OAR_OK;
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
    OARI_TRY(settle(scaler));
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
    OARI_TRY(settle(scaler));
    if (good) {
        OARI_TRY(oari_optim_begin_step(optim));
        if (optim->unscaled_by == NULL)
            OARI_TRY(divide_grads(scaler, optim));
        OARI_TRY(oari_optim_finish_step(optim, 0, NULL, NULL));
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
    return scaler->numbers != NULL ? write_numbers(scaler) : OAR_OK;
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
