/* SPDX-License-Identifier: Apache-2.0 */
/* unit/losses_cases.h: losses with every reduction, with the inputs that
 * make_losses.py gave them, and on other shapes. For tests, one file each. */
#ifndef OARI_TESTS_LOSSES_CASES_H
#define OARI_TESTS_LOSSES_CASES_H

#include "golden/golden.h"
#include "unit/gradcheck.h"

/* As in make_losses.py: [count], or [count, 1]. */
static oar_tensor *weights(oar_tape *tape, const oar_tensor *of, int64_t count,
                           int column)
{
    oar_shape shape = column ? OAR_SHAPE(count, 1) : OAR_SHAPE(count);
    oar_tensor *made = oar_empty(tape, oar_tensor_dtype(of), shape);
    double number[256];

    for (int64_t i = 0; i < count; i++)
        number[i] = (double)(i % 5) * 0.375 + 0.25;
    OK(oar_tensor_write(made, OAR_F64, number));
    return beside(tape, made, of);
}

static oar_tensor *bce(oar_tape *tape, oar_tensor *const *in,
                       oar_loss_reduction how)
{
    oar_bce_opts o = oar_bce_opts_init();
    oar_shape s = oar_tensor_shape(in[0]);

    o.reduction = how;
    o.weight = weights(tape, in[0], s.dim[0], 1);
    o.positive_weight = weights(tape, in[0], s.dim[1], 0);
    return oar_bce_with_logits(tape, in[0], in[1], &o);
}

enum { PLAIN = 0, WEIGHTED = 1, SMOOTH = 2 };

static oar_tensor *entropy(oar_tape *tape, oar_tensor *const *in,
                           oar_loss_reduction how, int with)
{
    oar_cross_entropy_opts o = oar_cross_entropy_opts_init();

    o.reduction = how;
    if (with & WEIGHTED)
        o.weight = weights(tape, in[0], oar_tensor_shape(in[0]).dim[1], 0);
    if (with & SMOOTH) {
        o.has_ignore = 1;
        o.ignore = 2;
        o.label_smoothing = 0.3;
    }
    return oar_cross_entropy_with(tape, in[0], in[1], &o);
}

/* Every loss, by the reduction. LOSS(name, expression) */
#define REDUCE(kind) OAR_OPTS(kind, .reduction = how)
#define LOSSES(LOSS)                                                         \
    LOSS(mse, oar_mse_with(tape, in[0], in[1], REDUCE(oar_loss_opts)))       \
    LOSS(l1, oar_l1_loss(tape, in[0], in[1], REDUCE(oar_loss_opts)))         \
    LOSS(huber,                                                              \
         oar_huber_loss(tape, in[0], in[1], 0.7, REDUCE(oar_loss_opts)))     \
    LOSS(smooth,                                                             \
         oar_smooth_l1_loss(tape, in[0], in[1], 0.4, REDUCE(oar_loss_opts))) \
    LOSS(smooth_zero,                                                        \
         oar_smooth_l1_loss(tape, in[0], in[1], 0, REDUCE(oar_loss_opts)))   \
    LOSS(bce, oar_bce_with_logits(tape, in[0], in[1], REDUCE(oar_bce_opts))) \
    LOSS(bce_weighted, bce(tape, in, how))                                   \
    LOSS(kl, oar_kl_div(tape, in[0], in[1], REDUCE(oar_kl_div_opts)))        \
    LOSS(kl_log, oar_kl_div(tape, in[0], in[1],                              \
                            OAR_OPTS(oar_kl_div_opts, .reduction = how,      \
                                     .log_target = 1)))
#define ENTROPIES(LOSS)                                      \
    LOSS(entropy, entropy(tape, in, how, PLAIN))             \
    LOSS(entropy_weighted, entropy(tape, in, how, WEIGHTED)) \
    LOSS(entropy_smooth, entropy(tape, in, how, SMOOTH))     \
    LOSS(entropy_all, entropy(tape, in, how, WEIGHTED | SMOOTH))

#define ONE(name, how_, expression)                                         \
    static oar_tensor *name##_##how_(oar_tape *tape, oar_tensor *const *in) \
    {                                                                       \
        const oar_loss_reduction how = OAR_LOSS_##how_;                     \
        return expression;                                                  \
    }
#define FUNCTIONS(name, expression) \
    ONE(name, MEAN, expression)     \
    ONE(name, SUM, expression)      \
    ONE(name, NONE, expression)
LOSSES(FUNCTIONS)
ENTROPIES(FUNCTIONS)
ONE(kl, BATCH_MEAN, oar_kl_div(tape, in[0], in[1], REDUCE(oar_kl_div_opts)))

/* ---- against PyTorch ----------------------------------------------------- */

#define CASES(name, expression)                                   \
    { #name "_mean", name##_MEAN }, { #name "_sum", name##_SUM }, \
        { #name "_none", name##_NONE },

static const golden_case cases[] = { LOSSES(CASES) ENTROPIES(CASES){
    "kl_batch", kl_BATCH_MEAN } };

enum { LOSS_CASES = sizeof cases / sizeof *cases };

/* ---- against differences ------------------------------------------------- */

/* Targets for entropies, probabilities for KL and BCE, from any leaf. */
static oar_tensor *sure(oar_tape *tape, oar_tensor *a)
{
    return oar_sigmoid(tape, a);
}

#define CHECKED(name, how)                                                     \
    static oar_tensor *check_##name##_##how(oar_tape *tape,                    \
                                            oar_tensor *const *in)             \
    {                                                                          \
        return name##_##how(tape,                                              \
                            (oar_tensor *[]){ in[0], sure(tape, in[1]) });     \
    }                                                                          \
    static oar_tensor *view_##name##_##how(oar_tape *tape,                     \
                                           oar_tensor *const *in)              \
    {                                                                          \
        return name##_##how(                                                   \
            tape,                                                              \
            (oar_tensor *[]){ oar_transpose(tape, in[0], 0, 1),                \
                              sure(tape, oar_transpose(tape, in[1], 0, 1)) }); \
    }
#define CHECKED_ALL(name, expression) \
    CHECKED(name, MEAN)               \
    CHECKED(name, SUM)                \
    CHECKED(name, NONE)
LOSSES(CHECKED_ALL)
CHECKED(kl, BATCH_MEAN)

#define CHECKS_OF(name, how)                                             \
    { #name " " #how, check_##name##_##how, { S(3, 5), S(3, 5), END } }, \
        { #name " " #how " long",                                        \
          check_##name##_##how,                                          \
          { S(2, 150), S(2, 150), END } },                               \
        { #name " " #how " view",                                        \
          view_##name##_##how,                                           \
          { S(3, 7), S(3, 7), END } },
#define CHECKS(name, expression) \
    CHECKS_OF(name, MEAN) CHECKS_OF(name, SUM) CHECKS_OF(name, NONE)

#define TARGETED(name, how)                                               \
    static oar_tensor *check_##name##_##how(oar_tape *tape,               \
                                            oar_tensor *const *in)        \
    {                                                                     \
        oar_tensor *logits = oar_transpose(tape, in[0], 0, 1);            \
        return name##_##how(                                              \
            tape,                                                         \
            (oar_tensor *[]){ logits, gradcheck_targets(tape, logits) }); \
    }
#define TARGETED_ALL(name, expression) \
    TARGETED(name, MEAN)               \
    TARGETED(name, SUM)                \
    TARGETED(name, NONE)
ENTROPIES(TARGETED_ALL)

#define TARGET_CHECKS_OF(name, how) \
    { #name " " #how, check_##name##_##how, { S(19, 7), END } },
#define TARGET_CHECKS(name, expression) \
    TARGET_CHECKS_OF(name, MEAN)        \
    TARGET_CHECKS_OF(name, SUM) TARGET_CHECKS_OF(name, NONE)

static const gradcheck checks[] = { LOSSES(CHECKS) CHECKS_OF(kl, BATCH_MEAN)
                                        ENTROPIES(TARGET_CHECKS) };

enum { COUNT = sizeof checks / sizeof *checks };

#endif
