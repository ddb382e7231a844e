/* SPDX-License-Identifier: Apache-2.0 */
/* entropy_part: cross entropy of logits of which this is a part of the classes.
 * By the formulas and in the order of loss.c, so that a part which has all
 * classes gives the same bits. What needs all classes is left in arrays of f64
 * that are merged with those of the other parts: the largest logit of each row
 * first, then sums over the classes. */
#include <math.h>

#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/math.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cpu/product/fused.h"
#include "tensor/cpu/target_clones.h"

enum { BLOCK = 256 }; /* elements */

/* The target of a row among all classes; -1: it does not count. */
static int64_t target_at(const oari_entropy_part *p, int64_t row)
{
    const int64_t *t = oari_array_data(p->target);
    int64_t chosen = t[row * p->target->at.stride[0]];

    return p->rule.has_ignore && chosen == p->rule.ignore ? -1 : chosen;
}

int64_t oari_entropy_part_sums_count(const oari_entropy_part *p, int64_t rows)
{
    int fields = 2 + (p->rule.smoothing > 0) + (p->rule.weight != NULL);

    return rows * fields + (p->rule.weight != NULL);
}

/* The arrays of one number per row in the sums, in this order; those that the
 * rule does not need are NULL. */
typedef struct row_sums {
    double *exponentials, *chosen, *smooth, *weight;
    double *total; /* of the weights of all classes */
} row_sums;

static row_sums sums_in(const oari_entropy_part *p, int64_t rows, double *sum)
{
    row_sums s = { .exponentials = sum, .chosen = sum + rows };

    sum += 2 * rows;
    if (p->rule.smoothing > 0) {
        s.smooth = sum;
        sum += rows;
    }
    if (p->rule.weight != NULL) {
        s.weight = sum;
        s.total = sum + rows;
    }
    return s;
}

OARI_TARGET_CLONES void oari_entropy_part_largest(const oari_entropy_part *p,
                                                  double *most)
{
    oari_rows r = oari_rows_of(p->logits->at.shape);

    OARI_BY_FLOAT(p->logits->dtype, {
        const T *x = oari_array_data(p->logits);
        for (int64_t i = 0; i < r.count; i++, x += r.width)
            most[i] = r.width > 0 ? (double)OARI_ROW_MAX(x, r.width)
                                  : -(double)INFINITY;
    })
}

OARI_TARGET_CLONES void oari_entropy_part_sums(const oari_entropy_part *p,
                                               const double *most, double *sum)
{
    oari_rows r = oari_rows_of(p->logits->at.shape);
    row_sums s = sums_in(p, r.count, sum);

    OARI_BY_FLOAT(p->logits->dtype, {
        const T *x = oari_array_data(p->logits);
        const T *w =
            p->rule.weight != NULL ? oari_array_data(p->rule.weight) : NULL;
        if (w != NULL)
            *s.total = (double)OARI_ROW_SUM(w, r.width);
        for (int64_t i = 0; i < r.count; i++, x += r.width) {
            int64_t chosen = target_at(p, i);
            int64_t own = chosen - p->first;
            int has = chosen >= 0 && own >= 0 && own < r.width;
            double total = 0;
            for (int64_t k = 0; k < r.width; k += BLOCK) {
                T block[BLOCK];
                int64_t m = r.width - k < BLOCK ? r.width - k : BLOCK;
                OARI_EXP_LESS(block, x + k, (T)most[i], m);
                total += (double)OARI_ROW_SUM(block, m);
            }
            s.exponentials[i] = total;
            s.chosen[i] = has ? (double)x[own] : 0;
            if (s.smooth != NULL && w != NULL)
                s.smooth[i] = (double)OARI_ROW_DOT(w, x, r.width);
            else if (s.smooth != NULL)
                s.smooth[i] = (double)OARI_ROW_SUM(x, r.width);
            if (s.weight != NULL)
                s.weight[i] = has ? (double)w[own] : 0;
        }
    })
}

oari_entropy_sums
oari_entropy_part_loss(const oari_entropy_part *p, const oari_array *to,
                       const oari_array *lse, const oari_array *weight,
                       const double *most, double *sum, double *total)
{
    oari_rows r = oari_rows_of(p->logits->at.shape);
    row_sums s = sums_in(p, r.count, sum);
    oari_entropy_sums all = { 0, 0 };

    *total = s.total != NULL ? *s.total : 0;
    OARI_BY_FLOAT(p->logits->dtype, {
        T *l = oari_array_data(lse);
        T *own = weight != NULL ? oari_array_data(weight) : NULL;
        T *y = to != NULL ? oari_array_data(to) : NULL;
        for (int64_t i = 0; i < r.count; i++) {
            double of = s.weight != NULL ? s.weight[i] : 1;
            double whole = log(s.exponentials[i]) + most[i];
            double loss = 0;
            l[i] = (T)whole;
            if (own != NULL)
                own[i] = (T)of;
            if (target_at(p, i) >= 0) {
                loss = (1 - p->rule.smoothing) * of * (whole - s.chosen[i]);
                if (s.smooth != NULL && s.weight != NULL)
                    loss += p->rule.smoothing / (double)p->classes *
                            (whole * *total - s.smooth[i]);
                else if (s.smooth != NULL)
                    loss += p->rule.smoothing *
                            (whole - s.smooth[i] / (double)p->classes);
                all.loss += loss;
                all.weight += of;
            }
            if (y != NULL)
                y[i] = (T)loss;
        }
    })
    return all;
}

OARI_TARGET_CLONES void
oari_entropy_part_back(const oari_entropy_part *p, const oari_array *to,
                       int add, double each, const oari_array *grad,
                       const oari_array *lse, const oari_array *weight,
                       double total)
{
    oari_rows r = oari_rows_of(to->at.shape);
    double smooth = p->rule.smoothing / (double)p->classes;

    OARI_BY_FLOAT(to->dtype, {
        const T *x = oari_array_data(p->logits);
        const T *l = oari_array_data(lse);
        const T *g = grad != NULL ? oari_array_data(grad) : NULL;
        const T *w =
            p->rule.weight != NULL ? oari_array_data(p->rule.weight) : NULL;
        const T *of = weight != NULL ? oari_array_data(weight) : NULL;
        T *y = oari_array_data(to);
        for (int64_t i = 0; i < r.count; i++, x += r.width, y += r.width) {
            int64_t chosen = target_at(p, i);
            int64_t own = chosen - p->first;
            if (chosen < 0) {
                for (int64_t k = 0; k < r.width && !add; k++)
                    y[k] = 0;
                continue;
            }
            const double row = g != NULL ? each * (double)g[i] : each;
            const double target =
                (1 - p->rule.smoothing) * (of != NULL ? (double)of[i] : 1);
            const T whole =
                (T)(row * (of != NULL ? target + smooth * total : 1));
            const T spread = (T)(row * smooth);
            for (int64_t k = 0; k < r.width; k++)
                y[k] = OARI_EXP(x[k] - l[i]) * whole -
                       spread * (w != NULL ? w[k] : (T)1) + (add ? y[k] : (T)0);
            if (own >= 0 && own < r.width)
                y[own] -= (T)(row * target);
        }
    })
}
