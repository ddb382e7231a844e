/* SPDX-License-Identifier: Apache-2.0 */
/* pair_loss: losses that compare two arrays number by number, block by block:
 * first what each pair gives, then the sum or the store. */
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/math.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cpu/target_clones.h"

enum { BLOCK = 256 }; /* elements */

/* Pairs number at .. at+n-1. */
typedef struct stretch {
    const oari_pairs *of;
    int64_t at, n;
} stretch;

#define SIZE(a)     ((a) < 0 ? -(a) : (a))
#define SIGN(a)     ((a) > 0 ? (T)1 : (a) < 0 ? (T)-1 : (a)) /* NaN stays */
#define CUT(a, top) ((a) > (top) ? (top) : (a) < -(top) ? -(top) : (a))
/* log(1 + e^-a) */
#define SOFT(a) (((a) < 0 ? -(a) : (T)0) + OARI_LOG1P(OARI_EXP(-SIZE(a))))

#define PART(array) \
    ((array) != NULL ? (const T *)oari_array_data(array) + s->at : NULL)

/* Defines a function that makes a number of each pair: of A and B, their
 * difference D, the edge, the weight V, and what positive adds to 1, P. */
#define EACH(name, expression)                                              \
    OARI_TARGET_CLONES static void name(const stretch *s, void *to)         \
    {                                                                       \
        OARI_BY_FLOAT(s->of->a->dtype, {                                    \
            const T *a = PART(s->of->a);                                    \
            const T *b = PART(s->of->b);                                    \
            const T *weight = PART(s->of->weight);                          \
            const T *positive = PART(s->of->positive);                      \
            const T edge = (T)s->of->edge;                                  \
            T *y = to;                                                      \
            (void)edge;                                                     \
            for (int64_t k = 0; k < s->n; k++) {                            \
                const T A = a[k];                                           \
                const T B = b[k];                                           \
                const T D = A - B;                                          \
                const T V = weight != NULL ? weight[k] : (T)1;              \
                const T P = (positive != NULL ? positive[k] : (T)1) - (T)1; \
                (void)A, (void)D, (void)V, (void)P;                         \
                y[k] = (expression);                                        \
            }                                                               \
        })                                                                  \
    }

/* The loss, and how it grows with a and with b. */
#define LOSS(name, loss, by_a, by_b) \
    EACH(name##_loss, loss)          \
        EACH(name##_by_a, by_a)      \
            EACH(name##_by_b, by_b)

LOSS(square, D *D, 2 * D, -2 * D)
LOSS(absolute, SIZE(D), SIGN(D), -SIGN(D))
LOSS(huber, SIZE(D) <= edge ? (T)0.5 * D * D : edge * (SIZE(D) - (T)0.5 * edge),
     CUT(D, edge), -CUT(D, edge))
LOSS(smooth, SIZE(D) < edge ? (T)0.5 * D * D / edge : SIZE(D) - (T)0.5 * edge,
     SIZE(D) < edge ? D / edge : SIGN(D), SIZE(D) < edge ? -D / edge : -SIGN(D))
LOSS(bce, V *((1 - B) * A + (1 + P * B) * SOFT(A)),
     V *((1 - B) - (1 + P * B) * OARI_SIGMOID(-A)), V *(P *SOFT(A) - A))
/* What has probability 0 gives 0. */
LOSS(kl, B == 0 ? (T)0 : B * (OARI_LOG(B) - A), -B, OARI_LOG(B) - A + 1)
LOSS(kl_log, OARI_EXP(B) == 0 ? (T)0 : OARI_EXP(B) * (B - A), -OARI_EXP(B),
     OARI_EXP(B) == 0 ? (T)0 : OARI_EXP(B) * (B - A + 1))

typedef void each_fn(const stretch *s, void *to);

#define FUNCTIONS(name)              \
    {                                \
        name##_loss,                 \
        {                            \
            name##_by_a, name##_by_b \
        }                            \
    }

static const struct {
    each_fn *loss, *slope[2];
} functions[] = {
    [OARI_SQUARE] = FUNCTIONS(square), [OARI_ABSOLUTE] = FUNCTIONS(absolute),
    [OARI_HUBER] = FUNCTIONS(huber),   [OARI_SMOOTH] = FUNCTIONS(smooth),
    [OARI_BCE] = FUNCTIONS(bce),       [OARI_KL] = FUNCTIONS(kl),
    [OARI_KL_LOG] = FUNCTIONS(kl_log),
};

double oari_pair_loss(const oari_pairs *p, const oari_array *to)
{
    int64_t count = oari_shape_count(p->a->at.shape);
    double sum = 0;

    OARI_BY_FLOAT(p->a->dtype, {
        T *y = to != NULL ? oari_array_data(to) : NULL;
        for (int64_t i = 0; i < count; i += BLOCK) {
            stretch s = { p, i, count - i < BLOCK ? count - i : BLOCK };
            T loss[BLOCK];
            functions[p->kind].loss(&s, y != NULL ? y + i : loss);
            if (y == NULL)
                sum += (double)OARI_ROW_SUM(loss, s.n);
        }
    })
    return sum;
}

OARI_TARGET_CLONES void oari_pair_loss_back(const oari_pairs *p, int by_b,
                                            const oari_array *to, int add,
                                            const oari_array *grad,
                                            double factor)
{
    int64_t count = oari_shape_count(to->at.shape);

    OARI_BY_FLOAT(to->dtype, {
        const T *g = grad != NULL ? oari_array_data(grad) : NULL;
        T *y = oari_array_data(to);
        for (int64_t i = 0; i < count; i += BLOCK) {
            stretch s = { p, i, count - i < BLOCK ? count - i : BLOCK };
            T slope[BLOCK];
            functions[p->kind].slope[by_b](&s, slope);
            for (int64_t k = 0; g != NULL && k < s.n; k++)
                slope[k] *= g[i + k];
            for (int64_t k = 0; k < s.n; k++)
                y[i + k] = slope[k] * (T)factor + (add ? y[i + k] : (T)0);
        }
    })
}
