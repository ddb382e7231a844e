/* SPDX-License-Identifier: Apache-2.0 */
/* sgd: stochastic gradient descent, with momentum, Nesterov's momentum and
 * weight decay, by the same formulas as torch.optim.SGD. */
#include "base/alloc.h"
#include "base/status.h"
#include "optim/optim.h"
#include "tensor/dispatch.h"

enum { MOMENTUM }; /* the one state */

/* One parameter: n numbers p, their gradients g, their velocities v. */
#define PLAIN(p, g, n)                \
    for (int64_t i = 0; i < (n); i++) \
        (p)[i] -= lr * ((g)[i] + decay * (p)[i]);

#define WITH_MOMENTUM(p, g, v, n)                                   \
    for (int64_t i = 0; i < (n); i++) {                             \
        T d = (g)[i] + decay * (p)[i];                              \
        (v)[i] = momentum * (v)[i] + d;                             \
        (p)[i] -= lr * (nesterov ? d + momentum * (v)[i] : (v)[i]); \
    }

static void sgd_step(oar_optim *optim, oari_optim_param *param)
{
    const oar_sgd_opts *o = &optim->sgd;
    int64_t n = oar_tensor_count(param->tensor);
    int nesterov = o->nesterov;

    OARI_BY_FLOAT(oar_tensor_dtype(param->tensor), {
        T *p = oar_tensor_data(param->tensor);
        const T *g = oar_tensor_data(oar_tensor_grad(param->tensor));
        const T lr = (T)optim->lr;
        const T decay = (T)o->weight_decay;
        const T momentum = (T)o->momentum;
        if (o->momentum == 0) {
            PLAIN(p, g, n)
        } else {
            T *v = oar_tensor_data(param->state[MOMENTUM]);
            WITH_MOMENTUM(p, g, v, n)
        }
    })
}

static const oari_optim_class sgd_class = { .name = "sgd", .step = sgd_step };

static oar_status check_opts(const oar_sgd_opts *o)
{
    if (!(o->lr >= 0) || !(o->momentum >= 0) || !(o->weight_decay >= 0))
        return oari_fail(OAR_E_ARG,
                         "sgd with lr %g, momentum %g, weight decay %g: none "
                         "may be negative",
                         o->lr, o->momentum, o->weight_decay);
    if (o->nesterov && o->momentum == 0)
        return oari_fail(OAR_E_ARG, "sgd with nesterov needs a momentum");
    return OAR_OK;
}

oar_status oar_sgd_create_over(int count, oar_tensor *const *param,
                               const oar_sgd_opts *opts, oar_optim **optim)
{
    oar_sgd_opts o;
    oar_optim *made;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    OARI_TRY(check_opts(&o));
    if (optim == NULL)
        return oari_fail(OAR_E_ARG, "sgd_create: nowhere to give it");
    OARI_TRY(oari_optim_make(&sgd_class, o.lr > 0 ? o.lr : 0.01,
                             o.momentum > 0 ? 1 : 0, count, param, &made));
    made->sgd = o;
    *optim = made;
    return OAR_OK;
}

oar_status oar_sgd_create(const oar_module *module, const oar_sgd_opts *opts,
                          oar_optim **optim)
{
    oar_tensor **param;
    oar_status status;
    int count;

    OARI_TRY(oari_optim_list(module, &count, &param));
    status = oar_sgd_create_over(count, param, opts, optim);
    oari_free(param);
    return status;
}
