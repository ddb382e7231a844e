/* SPDX-License-Identifier: Apache-2.0 */
/* adam: Adam and AdamW, by the same formulas and in the same order as
 * torch.optim. One pass per parameter: it reads the gradient, both moments and
 * the parameter, and writes the last three. The compiler makes vectors of the
 * loop; the build says -fno-math-errno for the sake of its square root. */
#include <math.h>

#include "base/alloc.h"
#include "base/status.h"
#include "optim/optim.h"
#include "tensor/wide.h"

/* What is the same for all numbers of a step. */
typedef struct factors {
    double keep;  /* of the parameter: decay that goes past the gradient */
    double decay; /* of the parameter: decay that goes into the gradient */
    double take1; /* 1 - beta1 */
    double beta2, take2;
    double root2; /* of the second bias correction */
    double eps;
    double step; /* the learning rate over the first bias correction */
} factors;

static factors factors_of(const oar_adam_opts *o, const oari_pace *pace,
                          int decoupled)
{
    double t = (double)pace->step;

    return (factors){ .keep = decoupled ? 1 - pace->lr * pace->decay : 1,
                      .decay = decoupled ? 0 : pace->decay,
                      .take1 = 1 - o->beta1,
                      .beta2 = o->beta2,
                      .take2 = 1 - o->beta2,
                      .root2 = sqrt(1 - pow(o->beta2, t)),
                      .eps = o->eps,
                      .step = pace->lr / (1 - pow(o->beta1, t)) };
}

#define RULE(name, T, ROOT)                                                    \
    OARI_WIDE static void move_##name(T *restrict p, const T *restrict grad,   \
                                      T *restrict m, T *restrict v, int64_t n, \
                                      const factors *f)                        \
    {                                                                          \
        const T keep = (T)f->keep, decay = (T)f->decay, eps = (T)f->eps;       \
        const T take1 = (T)f->take1, take2 = (T)f->take2;                      \
        const T beta2 = (T)f->beta2, root2 = (T)f->root2, step = (T)-f->step;  \
        for (int64_t i = 0; i < n; i++) {                                      \
            T q = p[i] * keep;                                                 \
            T g = grad[i] + decay * q;                                         \
            m[i] = m[i] + take1 * (g - m[i]);                                  \
            v[i] = v[i] * beta2 + take2 * g * g;                               \
            p[i] = q + step * m[i] / (ROOT(v[i]) / root2 + eps);               \
        }                                                                      \
    }

RULE(f32, float, sqrtf)
RULE(f64, double, sqrt)

static void move(const factors *f, const oari_stretch *s)
{
    if (s->dtype == OAR_F64)
        move_f64(s->param, s->grad, s->state[0], s->state[1], s->count, f);
    else
        move_f32(s->param, s->grad, s->state[0], s->state[1], s->count, f);
}

static void adam_move(const oar_optim *optim, const oari_pace *pace,
                      const oari_stretch *s)
{
    factors f = factors_of(&optim->of.adam, pace, 0);

    move(&f, s);
}

static void adamw_move(const oar_optim *optim, const oari_pace *pace,
                       const oari_stretch *s)
{
    factors f = factors_of(&optim->of.adam, pace, 1);

    move(&f, s);
}

static const oari_optim_class adam_class = {
    .name = "adam", .state_name = { "exp_avg", "exp_avg_sq" }, .move = adam_move
};
static const oari_optim_class adamw_class = { .name = "adamw",
                                              .state_name = { "exp_avg",
                                                              "exp_avg_sq" },
                                              .move = adamw_move };

/* Fills in the defaults. decay: what a weight decay of 0 means. */
static oar_status read_opts(const oari_optim_class *kind,
                            const oar_adam_opts *opts, double decay,
                            oar_adam_opts *o)
{
    OARI_TRY(oari_opts_read(o, sizeof *o, opts));
    if (!(o->lr >= 0) || !(o->eps >= 0) || !(o->weight_decay >= 0))
        return oari_fail(OAR_E_ARG,
                         "%s with lr %g, eps %g, weight decay %g: none may be "
                         "negative",
                         kind->name, o->lr, o->eps, o->weight_decay);
    if (!(o->beta1 >= 0 && o->beta1 < 1) || !(o->beta2 >= 0 && o->beta2 < 1))
        return oari_fail(OAR_E_ARG,
                         "%s with betas %g and %g: they must be at least 0 and "
                         "below 1",
                         kind->name, o->beta1, o->beta2);
    if (o->no_decay && o->weight_decay != 0)
        return oari_fail(OAR_E_ARG, "%s with no_decay and a weight decay of %g",
                         kind->name, o->weight_decay);
    if (o->lr == 0)
        o->lr = 1e-3;
    if (o->beta1 == 0)
        o->beta1 = 0.9;
    if (o->beta2 == 0)
        o->beta2 = 0.999;
    if (o->eps == 0)
        o->eps = 1e-8;
    if (o->weight_decay == 0 && !o->no_decay)
        o->weight_decay = decay;
    return OAR_OK;
}

static oar_status create_over(const oari_optim_class *kind, double decay,
                              int count, oar_tensor *const *param,
                              const oar_adam_opts *opts, oar_optim **optim)
{
    oar_adam_opts o;

    OARI_TRY(read_opts(kind, opts, decay, &o));
    OARI_TRY(oari_optim_make(kind, o.lr, o.weight_decay, count, param, optim));
    (*optim)->of.adam = o;
    return OAR_OK;
}

static oar_status create(const oari_optim_class *kind, double decay,
                         const oar_module *module, const oar_adam_opts *opts,
                         oar_optim **optim)
{
    oar_tensor **param;
    oar_status status;
    int count;

    OARI_TRY(oari_optim_list(module, &count, &param));
    status = create_over(kind, decay, count, param, opts, optim);
    oari_free(param);
    return status;
}

oar_status oar_adam_create(const oar_module *module, const oar_adam_opts *opts,
                           oar_optim **optim)
{
    return create(&adam_class, 0, module, opts, optim);
}

oar_status oar_adam_create_over(int count, oar_tensor *const *param,
                                const oar_adam_opts *opts, oar_optim **optim)
{
    return create_over(&adam_class, 0, count, param, opts, optim);
}

oar_status oar_adamw_create(const oar_module *module, const oar_adam_opts *opts,
                            oar_optim **optim)
{
    return create(&adamw_class, 0.01, module, opts, optim);
}

oar_status oar_adamw_create_over(int count, oar_tensor *const *param,
                                 const oar_adam_opts *opts, oar_optim **optim)
{
    return create_over(&adamw_class, 0.01, count, param, opts, optim);
}
