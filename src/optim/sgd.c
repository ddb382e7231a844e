/* SPDX-License-Identifier: Apache-2.0 */
/* sgd: stochastic gradient descent, with momentum, Nesterov's momentum and
 * weight decay, by the same formulas as torch.optim.SGD. */
#include "base/alloc.h"
#include "base/status.h"
#include "optim/optim.h"
#include "tensor/cpu/target_clones.h"

/* The rules for one type: n numbers p, their gradients g, their velocities v.
 */
#define RULES(name, T)                                                        \
    OARI_TARGET_CLONES static void plain_##name(                              \
        T *restrict p, const T *restrict g, int64_t n, T lr, T decay)         \
    {                                                                         \
        for (int64_t i = 0; i < n; i++)                                       \
            p[i] -= lr * (g[i] + decay * p[i]);                               \
    }                                                                         \
    OARI_TARGET_CLONES static void heavy_##name(                              \
        T *restrict p, const T *restrict g, T *restrict v, int64_t n, T lr,   \
        T decay, T momentum)                                                  \
    {                                                                         \
        for (int64_t i = 0; i < n; i++) {                                     \
            v[i] = momentum * v[i] + (g[i] + decay * p[i]);                   \
            p[i] -= lr * v[i];                                                \
        }                                                                     \
    }                                                                         \
    OARI_TARGET_CLONES static void nesterov_##name(                           \
        T *restrict p, const T *restrict g, T *restrict v, int64_t n, T lr,   \
        T decay, T momentum)                                                  \
    {                                                                         \
        for (int64_t i = 0; i < n; i++) {                                     \
            T d = g[i] + decay * p[i];                                        \
            v[i] = momentum * v[i] + d;                                       \
            p[i] -= lr * (d + momentum * v[i]);                               \
        }                                                                     \
    }                                                                         \
    static void move_##name(const oar_sgd_opts *o,                            \
                            const oari_step_rates *pace,                      \
                            const oari_param_chunk *s)                        \
    {                                                                         \
        T lr = (T)pace->lr, decay = (T)pace->decay, m = (T)o->momentum;       \
        if (o->momentum == 0)                                                 \
            plain_##name(s->param, s->grad, s->count, lr, decay);             \
        else if (o->nesterov)                                                 \
            nesterov_##name(s->param, s->grad, s->state[0], s->count, lr,     \
                            decay, m);                                        \
        else                                                                  \
            heavy_##name(s->param, s->grad, s->state[0], s->count, lr, decay, \
                         m);                                                  \
    }

RULES(f32, float)
RULES(f64, double)

static void sgd_move(const oar_optim *optim, const oari_step_rates *pace,
                     const oari_param_chunk *s)
{
    if (s->dtype == OAR_F64)
        move_f64(&optim->of.sgd, pace, s);
    else
        move_f32(&optim->of.sgd, pace, s);
}

static oari_step_rule sgd_factors(const oar_optim *optim,
                                  const oari_step_rates *pace,
                                  oari_step_factors *to)
{
    const oar_sgd_opts *o = &optim->of.sgd;

    *to = (oari_step_factors){ .lr = pace->lr,
                               .decay = pace->decay,
                               .momentum = o->momentum };
    return o->momentum == 0 ? OARI_STEP_SGD
           : o->nesterov    ? OARI_STEP_NESTEROV
                            : OARI_STEP_MOMENTUM;
}

static void sgd_describe(const oar_optim *optim, oar_optim_description *d)
{
    d->momentum = optim->of.sgd.momentum;
    d->nesterov = optim->of.sgd.nesterov != 0;
}

static const oari_optim_class plain_class = { .name = "sgd",
                                              .step_name = "sgd step",
                                              .move = sgd_move,
                                              .factors = sgd_factors,
                                              .describe = sgd_describe };
static const oari_optim_class momentum_class = {
    .name = "sgd",
    .step_name = "sgd step",
    .state_name = { "momentum_buffer" },
    .move = sgd_move,
    .factors = sgd_factors,
    .describe = sgd_describe
};

oar_status oar_sgd_create_over(int count, oar_tensor *const *param,
                               const oar_sgd_opts *opts, oar_optim **optim)
{
    oar_sgd_opts o;
    oari_optim_rule rule;

    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (!(o.lr >= 0) || !(o.momentum >= 0) || !(o.weight_decay >= 0))
        return oari_fail(OAR_E_ARG,
                         "sgd with lr %g, momentum %g, weight decay %g: none "
                         "may be negative",
                         o.lr, o.momentum, o.weight_decay);
    if (o.nesterov && o.momentum == 0)
        return oari_fail(OAR_E_ARG, "sgd with nesterov needs a momentum");
    rule = (oari_optim_rule){ o.lr > 0 ? o.lr : 0.01, o.weight_decay,
                              o.master_weights };
    OARI_TRY(oari_optim_make(o.momentum > 0 ? &momentum_class : &plain_class,
                             &rule, count, param, optim));
    (*optim)->of.sgd = o;
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
