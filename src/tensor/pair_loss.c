/* SPDX-License-Identifier: Apache-2.0 */
/* pair_loss: losses that compare two arrays number by number, block by block:
 * first what each pair gives, then the sum or the store. */
#include "tensor/dispatch.h"
#include "tensor/lanes.h"
#include "tensor/math.h"
#include "tensor/nn_kernels.h"
#include "tensor/wide.h"

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

/* What the expressions below are made of. */
#define OPERANDS                                      \
    const T *a = PART(s->of->a), *b = PART(s->of->b); \
    const T *weight = PART(s->of->weight);            \
    const T *positive = PART(s->of->positive);        \
    const T edge = (T)s->of->edge;                    \
    T *y = to;

#define EACH(expression)                                            \
    for (int64_t k = 0; k < s->n; k++) {                            \
        const T A = a[k], B = b[k], D = A - B;                      \
        const T V = weight != NULL ? weight[k] : (T)1;              \
        const T P = (positive != NULL ? positive[k] : (T)1) - (T)1; \
        (void)D, (void)V, (void)P;                                  \
        y[k] = (expression);                                        \
    }                                                               \
    break

/* The loss of each pair. In KL a pair whose probability is 0 gives 0. */
OARI_WIDE static void losses(const stretch *s, void *to){
    OARI_BY_FLOAT(s->of->a->dtype,
                  {
                      OPERANDS
                      switch (s->of->kind) {
                      case OARI_SQUARE: EACH(D *D) ;
                      case OARI_ABSOLUTE: EACH(SIZE(D)) ;
                      case OARI_HUBER:
                          EACH(SIZE(D) <= edge
                                   ? (T)0.5 * D * D
                                   : edge * (SIZE(D) - (T)0.5 * edge))
                              ;
                      case OARI_BCE:
                          EACH(V *((1 - B) * A + (1 + P * B) * SOFT(A)))
                              ;
                      case OARI_KL:
                          EACH(B == 0 ? (T)0 : B * (OARI_LOG(B) - A))
                              ;
                      case OARI_KL_LOG:
                          EACH(OARI_EXP(B) == 0 ? (T)0 : OARI_EXP(B) * (B - A))
                              ;
                      }
                  })
}

/* How the loss of each pair grows with its a. */
OARI_WIDE static void slopes_by_a(const stretch *s, void *to){
    OARI_BY_FLOAT(s->of->a->dtype,
                  {
                      OPERANDS
                      switch (s->of->kind) {
                      case OARI_SQUARE: EACH(2 * D) ;
                      case OARI_ABSOLUTE: EACH(SIGN(D)) ;
                      case OARI_HUBER: EACH(CUT(D, edge)) ;
                      case OARI_BCE:
                          EACH(V *((1 - B) - (1 + P * B) * OARI_SIGMOID(-A)))
                              ;
                      case OARI_KL: EACH(-B) ;
                      case OARI_KL_LOG: EACH(-OARI_EXP(B)) ;
                      }
                  })
}

/* How it grows with its b. */
OARI_WIDE static void slopes_by_b(const stretch *s, void *to)
{
    OARI_BY_FLOAT(s->of->a->dtype, {
        OPERANDS
        switch (s->of->kind) {
        case OARI_SQUARE: EACH(-2 * D) ;
        case OARI_ABSOLUTE: EACH(-SIGN(D)) ;
        case OARI_HUBER: EACH(-CUT(D, edge)) ;
        case OARI_BCE: EACH(V *(P * SOFT(A) - A)) ;
        case OARI_KL: EACH(OARI_LOG(B) - A + 1) ;
        case OARI_KL_LOG:
            EACH(OARI_EXP(B) == 0 ? (T)0 : OARI_EXP(B) * (B - A + 1))
                ;
        }
    })
}

double oari_pair_loss(const oari_pairs *p, double factor, const oari_array *to)
{
    int64_t count = oari_shape_count(p->a->at.shape);
    double sum = 0;

    OARI_BY_FLOAT(p->a->dtype, {
        T *y = to != NULL ? oari_array_data(to) : NULL;
        for (int64_t i = 0; i < count; i += BLOCK) {
            stretch s = { p, i, count - i < BLOCK ? count - i : BLOCK };
            T loss[BLOCK];
            losses(&s, loss);
            if (y == NULL)
                sum += (double)OARI_SUM(loss, s.n);
            for (int64_t k = 0; y != NULL && k < s.n; k++)
                y[i + k] = loss[k] * (T)factor;
        }
    })
    return sum * factor;
}

OARI_WIDE void oari_pair_loss_back(const oari_pairs *p, int by_b,
                                   const oari_array *to, int add,
                                   const oari_array *grad, double factor)
{
    int64_t count = oari_shape_count(to->at.shape);

    OARI_BY_FLOAT(to->dtype, {
        const T *g = grad != NULL ? oari_array_data(grad) : NULL;
        T *y = oari_array_data(to);
        for (int64_t i = 0; i < count; i += BLOCK) {
            stretch s = { p, i, count - i < BLOCK ? count - i : BLOCK };
            T slope[BLOCK];
            if (by_b)
                slopes_by_b(&s, slope);
            else
                slopes_by_a(&s, slope);
            for (int64_t k = 0; g != NULL && k < s.n; k++)
                slope[k] *= g[i + k];
            for (int64_t k = 0; k < s.n; k++)
                y[i + k] = slope[k] * (T)factor + (add ? y[i + k] : (T)0);
        }
    })
}
