/* SPDX-License-Identifier: Apache-2.0 */
/* adam: Adam and AdamW, with or without AMSGrad, by the same formulas and in
 * the same order as torch.optim. One pass per parameter: it reads the gradient,
 * the moments and the parameter, and writes all but the gradient. The compiler
 * makes vectors of the loop; the build says -fno-math-errno for the sake of its
 * square root. */
#include <math.h>

#include "base/alloc.h"
#include "base/status.h"
#include "optim/optim.h"
#include "tensor/cpu/target_clones.h"

/* What is the same for all numbers of a step. */
typedef struct factors {
    double keep;  /* of the parameter: decay that goes past the gradient */
    double decay; /* of the parameter: decay that goes into the gradient */
    double take1; /* 1 - beta1 */
    double beta2, take2;
    double root2; /* of the second bias correction */
    double eps;
    double step; /* the learning rate over the first bias correction */
    double number;
} factors;

static factors factors_of(const oar_adam_opts *o, const oari_step_rates *pace,
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
                      .step = pace->lr / (1 - pow(o->beta1, t)),
                      .number = t };
}

/* One function for each type and rule. LARGEST, the expression of the second
 * moment to divide by, may use x, the largest so far. */
#define RULE(name, T, ROOT, LARGEST)                                          \
    OARI_TARGET_CLONES static void move_##name(                               \
        T *restrict p, const T *restrict grad, T *restrict m, T *restrict v,  \
        T *restrict x, int64_t n, const factors *f)                           \
    {                                                                         \
        const T keep = (T)f->keep, decay = (T)f->decay, eps = (T)f->eps;      \
        const T take1 = (T)f->take1, take2 = (T)f->take2;                     \
        const T beta2 = (T)f->beta2, root2 = (T)f->root2, step = (T)-f->step; \
        for (int64_t i = 0; i < n; i++) {                                     \
            T q = p[i] * keep;                                                \
            T g = grad[i] + decay * q;                                        \
            m[i] = m[i] + take1 * (g - m[i]);                                 \
            v[i] = v[i] * beta2 + take2 * g * g;                              \
            p[i] = q + step * m[i] / (ROOT(LARGEST) / root2 + eps);           \
        }                                                                     \
    }

/* A NaN in v stays. */
#define AMSGRAD (x[i] = v[i] <= x[i] ? x[i] : v[i])

RULE(f32, float, sqrtf, v[i])
RULE(f64, double, sqrt, v[i])
RULE(amsgrad_f32, float, sqrtf, AMSGRAD)
RULE(amsgrad_f64, double, sqrt, AMSGRAD)

#define MOVE(name, s, f)                                             \
    move_##name((s)->param, (s)->grad, (s)->state[0], (s)->state[1], \
                (s)->state[2], (s)->count, f)

static void move_chunk(const factors *f, const oari_param_chunk *s)
{
    int amsgrad = s->state[2] != NULL;

    if (s->dtype == OAR_F64 && amsgrad)
        MOVE(amsgrad_f64, s, f);
    else if (s->dtype == OAR_F64)
        MOVE(f64, s, f);
    else if (amsgrad)
        MOVE(amsgrad_f32, s, f);
    else
        MOVE(f32, s, f);
}

static oari_step_rule give_factors(const oar_optim *optim, const factors *f,
                                   oari_step_factors *to)
{
    *to = (oari_step_factors){ .keep = f->keep,
                               .decay = f->decay,
                               .take1 = f->take1,
                               .beta2 = f->beta2,
                               .take2 = f->take2,
                               .root2 = f->root2,
                               .eps = f->eps,
                               .step = f->step,
                               .number = f->number };
    return optim->of.adam.amsgrad ? OARI_STEP_AMSGRAD : OARI_STEP_ADAM;
}

static oari_step_rule adam_factors(const oar_optim *optim,
                                   const oari_step_rates *pace,
                                   oari_step_factors *to)
{
    factors f = factors_of(&optim->of.adam, pace, 0);

    return give_factors(optim, &f, to);
}

static oari_step_rule adamw_factors(const oar_optim *optim,
                                    const oari_step_rates *pace,
                                    oari_step_factors *to)
{
    factors f = factors_of(&optim->of.adam, pace, 1);

    return give_factors(optim, &f, to);
}

static void adam_move(const oar_optim *optim, const oari_step_rates *pace,
                      const oari_param_chunk *s)
{
    factors f = factors_of(&optim->of.adam, pace, 0);

    move_chunk(&f, s);
}

static void adamw_move(const oar_optim *optim, const oari_step_rates *pace,
                       const oari_param_chunk *s)
{
    factors f = factors_of(&optim->of.adam, pace, 1);

    move_chunk(&f, s);
}

static void adam_describe(const oar_optim *optim, oar_optim_description *d)
{
    d->beta1 = optim->of.adam.beta1;
    d->beta2 = optim->of.adam.beta2;
    d->eps = optim->of.adam.eps;
    d->amsgrad = optim->of.adam.amsgrad != 0;
}

/* By whether the decay is decoupled, and by whether there is AMSGrad. */
static const oari_optim_class classes[2][2] = {
    { { .name = "adam",
        .step_name = "adam step",
        .state_name = { "exp_avg", "exp_avg_sq" },
        .move = adam_move,
        .factors = adam_factors,
        .describe = adam_describe },
      { .name = "adam",
        .step_name = "adam step",
        .state_name = { "exp_avg", "exp_avg_sq", "max_exp_avg_sq" },
        .move = adam_move,
        .factors = adam_factors,
        .describe = adam_describe } },
    { { .name = "adamw",
        .step_name = "adamw step",
        .state_name = { "exp_avg", "exp_avg_sq" },
        .move = adamw_move,
        .factors = adamw_factors,
        .describe = adam_describe },
      { .name = "adamw",
        .step_name = "adamw step",
        .state_name = { "exp_avg", "exp_avg_sq", "max_exp_avg_sq" },
        .move = adamw_move,
        .factors = adamw_factors,
        .describe = adam_describe } },
};

/* Makes a number what it means: the default if it is 0, unless is_zero says
 * that 0 is meant. */
static oar_status fill_default(const char *kind, const char *name, int is_zero,
                               double otherwise, double *number)
{
    if (is_zero && *number != 0)
        return oari_fail(OAR_E_ARG, "%s with no_%s and a %s of %g", kind, name,
                         name, *number);
    if (*number == 0 && !is_zero)
        *number = otherwise;
    return OAR_OK;
}

static oar_status create_adam_over(int decoupled, int count,
                                   oar_tensor *const *param,
                                   const oar_adam_opts *opts, oar_optim **optim)
{
    oar_adam_opts o;
    const char *kind = classes[decoupled][0].name;
    oari_optim_rule rule;

    /* Fills in the defaults. */
    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    if (!(o.lr >= 0) || !(o.eps >= 0) || !(o.weight_decay >= 0))
        return oari_fail(OAR_E_ARG,
                         "%s with lr %g, eps %g, weight decay %g: none may be "
                         "negative",
                         kind, o.lr, o.eps, o.weight_decay);
    if (!(o.beta1 >= 0 && o.beta1 < 1) || !(o.beta2 >= 0 && o.beta2 < 1))
        return oari_fail(OAR_E_ARG,
                         "%s with betas %g and %g: they must be at least 0 and "
                         "below 1",
                         kind, o.beta1, o.beta2);
    OARI_TRY(fill_default(kind, "lr", 0, 1e-3, &o.lr));
    OARI_TRY(fill_default(kind, "beta1", o.no_beta1, 0.9, &o.beta1));
    OARI_TRY(fill_default(kind, "beta2", o.no_beta2, 0.999, &o.beta2));
    OARI_TRY(fill_default(kind, "eps", o.no_eps, 1e-8, &o.eps));
    OARI_TRY(fill_default(kind, "decay", o.no_decay, decoupled ? 0.01 : 0,
                          &o.weight_decay));
    rule = (oari_optim_rule){ o.lr, o.weight_decay, o.master_weights };
    OARI_TRY(oari_optim_make(&classes[decoupled][o.amsgrad != 0], &rule, count,
                             param, optim));
    (*optim)->of.adam = o;
    return OAR_OK;
}

static oar_status create_adam(int decoupled, const oar_module *module,
                              const oar_adam_opts *opts, oar_optim **optim)
{
    oar_tensor **param;
    oar_status status;
    int count;

    OARI_TRY(oari_optim_list(module, &count, &param));
    status = create_adam_over(decoupled, count, param, opts, optim);
    oari_free(param);
    return status;
}

oar_status oar_adam_create(const oar_module *module, const oar_adam_opts *opts,
                           oar_optim **optim)
{
    return create_adam(0, module, opts, optim);
}

oar_status oar_adam_create_over(int count, oar_tensor *const *param,
                                const oar_adam_opts *opts, oar_optim **optim)
{
    return create_adam_over(0, count, param, opts, optim);
}

oar_status oar_adamw_create(const oar_module *module, const oar_adam_opts *opts,
                            oar_optim **optim)
{
    return create_adam(1, module, opts, optim);
}

oar_status oar_adamw_create_over(int count, oar_tensor *const *param,
                                 const oar_adam_opts *opts, oar_optim **optim)
{
    return create_adam_over(1, count, param, opts, optim);
}
