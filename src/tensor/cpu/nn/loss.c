/* SPDX-License-Identifier: Apache-2.0 */
/* loss: cross entropy and dropout. A cross entropy keeps one number per row;
 * its gradient is the softmax less the target, made from it in one pass. */
#include "base/rng.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/product/fused.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/math.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cpu/target_clones.h"

enum { BLOCK = 256 }; /* elements */

/* The target of a row; -1: it does not count. */
static int64_t target_at(const oari_array *target, int64_t row,
                         const oari_entropy_rule *rule)
{
    const int64_t *t = oari_array_data(target);
    int64_t chosen = t[row * target->at.stride[0]];

    return rule->has_ignore && chosen == rule->ignore ? -1 : chosen;
}

/* The sum of exp(x - most), n of them, by way of a block. */
#define SUM_EXP(x, n, most, total)                    \
    for (int64_t i_ = 0; i_ < (n); i_ += BLOCK) {     \
        T block_[BLOCK];                              \
        int64_t m_ = (n)-i_ < BLOCK ? (n)-i_ : BLOCK; \
        OARI_EXP_LESS(block_, (x) + i_, most, m_);    \
        total += (double)OARI_ROW_SUM(block_, m_);    \
    }

/* What a row's loss takes of its classes: `target` of the target, and of class
 * k smooth times its weight; `whole` in all. */
typedef struct shares {
    double target, smooth, whole;
} shares;

/* total: the sum of all classes' weights. */
static shares shares_of(const oari_entropy_rule *rule, double weight,
                        double total, int64_t classes)
{
    shares s = { .target = (1 - rule->smoothing) * weight,
                 .smooth = rule->smoothing / (double)classes };

    s.whole = rule->weight != NULL ? s.target + s.smooth * total : 1;
    return s;
}

OARI_TARGET_CLONES oari_entropy_sums oari_cross_entropy(
    const oari_array *to, const oari_array *lse, const oari_array *logits,
    const oari_array *target, const oari_entropy_rule *rule)
{
    oari_rows r = oari_rows_of(logits->at.shape);
    oari_entropy_sums sum = { 0, 0 };

    OARI_BY_FLOAT(logits->dtype, {
        const T *x = oari_array_data(logits);
        const T *w =
            rule->weight != NULL ? oari_array_data(rule->weight) : NULL;
        const double total = w != NULL ? (double)OARI_ROW_SUM(w, r.width) : 0;
        T *l = oari_array_data(lse);
        T *y = to != NULL ? oari_array_data(to) : NULL;
        for (int64_t i = 0; i < r.count; i++, x += r.width) {
            int64_t chosen = target_at(target, i, rule);
            if (chosen < 0) {
                if (y != NULL)
                    y[i] = 0;
                continue;
            }
            const T most = OARI_ROW_MAX(x, r.width);
            const double weight = w != NULL ? (double)w[chosen] : 1;
            const shares s = shares_of(rule, weight, total, r.width);
            double sum_exp = 0;
            double whole;
            double loss;
            SUM_EXP(x, r.width, most, sum_exp)
            whole = log(sum_exp) + (double)most;
            l[i] = (T)whole;
            loss = s.target * (whole - (double)x[chosen]);
            if (rule->smoothing > 0 && w != NULL)
                loss += s.smooth *
                        (whole * total - (double)OARI_ROW_DOT(w, x, r.width));
            else if (rule->smoothing > 0)
                loss += rule->smoothing *
                        (whole - (double)OARI_ROW_SUM(x, r.width) / r.width);
            sum.loss += loss;
            sum.weight += weight;
            if (y != NULL)
                y[i] = (T)loss;
        }
    })
    return sum;
}

OARI_TARGET_CLONES void
oari_cross_entropy_back(const oari_array *to, int add, double each,
                        const oari_array *grad, const oari_array *lse,
                        const oari_array *logits, const oari_array *target,
                        const oari_entropy_rule *rule)
{
    oari_rows r = oari_rows_of(to->at.shape);

    OARI_BY_FLOAT(to->dtype, {
        const T *x = oari_array_data(logits);
        const T *l = oari_array_data(lse);
        const T *g = grad != NULL ? oari_array_data(grad) : NULL;
        const T *w =
            rule->weight != NULL ? oari_array_data(rule->weight) : NULL;
        const double total = w != NULL ? (double)OARI_ROW_SUM(w, r.width) : 0;
        T *y = oari_array_data(to);
        for (int64_t i = 0; i < r.count; i++, x += r.width, y += r.width) {
            int64_t chosen = target_at(target, i, rule);
            if (chosen < 0) {
                for (int64_t k = 0; k < r.width && !add; k++)
                    y[k] = 0;
                continue;
            }
            const double row = g != NULL ? each * (double)g[i] : each;
            const double weight = w != NULL ? (double)w[chosen] : 1;
            const shares s = shares_of(rule, weight, total, r.width);
            const T whole = (T)(row * s.whole);
            const T smooth = (T)(row * s.smooth);
            for (int64_t k = 0; k < r.width; k++)
                y[k] = OARI_EXP(x[k] - l[i]) * whole -
                       smooth * (w != NULL ? w[k] : (T)1) + (add ? y[k] : (T)0);
            y[chosen] -= (T)(row * s.target);
        }
    })
}

/* Drops elements at .. at+count-1, whose positions follow each other from
 * `first` on. */
static void drop_run(const oari_array *to, int add, const oari_array *a,
                     int64_t at, int64_t count, double p, oari_rng rng,
                     int64_t first)
{
    float drawn[BLOCK];

    OARI_BY_FLOAT(to->dtype, {
        const T *x = (const T *)oari_array_data(a) + at;
        const T factor = (T)(p < 1 ? 1 / (1 - p) : 0);
        T *y = (T *)oari_array_data(to) + at;
        for (int64_t i = 0; i < count; i += BLOCK) {
            int64_t n = count - i < BLOCK ? count - i : BLOCK;
            oari_rng_uniform_f32(rng, (uint64_t)(first + i), drawn, (size_t)n);
            for (int64_t k = 0; k < n; k++) {
                T kept = (double)drawn[k] >= p ? x[i + k] * factor : (T)0;
                y[i + k] = kept + (add ? y[i + k] : (T)0);
            }
        }
    })
}

oar_status oari_dropout(const oari_array *to, int add, const oari_array *a,
                        double p, uint64_t seed, int64_t first,
                        const int64_t *stride)
{
    const oar_shape *s = &to->at.shape;
    int64_t count = oari_shape_count(*s), run = 1, step[OAR_MAX_DIMS] = { 0 };
    oari_rng rng = { .seed = seed };
    int outer = s->ndim;

    /* the last dims, as long as positions follow each other */
    while (outer > 0 && (s->dim[outer - 1] == 1 || stride[outer - 1] == run))
        run *= s->dim[--outer];
    for (int64_t at = 0; at < count; at += run) {
        int64_t position = first;
        int dim = outer - 1;

        for (int i = 0; i < outer; i++)
            position += step[i] * stride[i];
        drop_run(to, add, a, at, run, p, rng, position);
        while (dim >= 0 && ++step[dim] == s->dim[dim])
            step[dim--] = 0;
    }
    return OAR_OK;
}
