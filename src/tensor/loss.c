/* SPDX-License-Identifier: Apache-2.0 */
/* loss: cross entropy, square distance, and dropout. A cross entropy keeps one
 * number per row; its gradient is the softmax less the target, made from it in
 * one pass. */
#include "base/rng.h"
#include "tensor/dispatch.h"
#include "tensor/fused.h"
#include "tensor/lanes.h"
#include "tensor/math.h"
#include "tensor/nn_kernels.h"
#include "tensor/wide.h"

enum { BLOCK = 256 }; /* elements */

/* The target of a row; -1: it does not count. */
static int64_t target_at(const oari_array *target, int64_t row,
                         const oari_rule *rule)
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
        total += (double)OARI_SUM(block_, m_);        \
    }

OARI_WIDE int64_t oari_cross_entropy(const oari_array *to,
                                     const oari_array *lse,
                                     const oari_array *logits,
                                     const oari_array *target,
                                     const oari_rule *rule)
{
    oari_rows r = oari_rows_of(logits->at.shape);
    int64_t counted = 0;
    double loss = 0;

    OARI_BY_FLOAT(to->dtype, {
        const T *x = oari_array_data(logits);
        T *l = oari_array_data(lse);
        T *mean = oari_array_data(to);
        for (int64_t i = 0; i < r.count; i++, x += r.width) {
            int64_t chosen = target_at(target, i, rule);
            if (chosen < 0)
                continue;
            const T most = OARI_MOST(x, r.width);
            double total = 0;
            double whole;
            SUM_EXP(x, r.width, most, total)
            whole = log(total) + (double)most;
            l[i] = (T)whole;
            loss += (1 - rule->smoothing) * (whole - (double)x[chosen]);
            if (rule->smoothing > 0)
                loss += rule->smoothing *
                        (whole - (double)OARI_SUM(x, r.width) / r.width);
            counted++;
        }
        *mean = (T)(loss / (double)counted); /* of no rows: NaN */
    })
    return counted;
}

OARI_WIDE void oari_cross_entropy_back(const oari_array *to, int add,
                                       double each, const oari_array *lse,
                                       const oari_array *logits,
                                       const oari_array *target,
                                       const oari_rule *rule)
{
    oari_rows r = oari_rows_of(to->at.shape);

    OARI_BY_FLOAT(to->dtype, {
        const T *x = oari_array_data(logits);
        const T *l = oari_array_data(lse);
        T *y = oari_array_data(to);
        const T share = (T)(each * rule->smoothing / (double)r.width);
        for (int64_t i = 0; i < r.count; i++, x += r.width, y += r.width) {
            int64_t chosen = target_at(target, i, rule);
            if (chosen < 0) {
                for (int64_t k = 0; k < r.width && !add; k++)
                    y[k] = 0;
                continue;
            }
            for (int64_t k = 0; k < r.width; k++)
                y[k] = OARI_EXP(x[k] - l[i]) * (T)each - share +
                       (add ? y[k] : (T)0);
            y[chosen] -= (T)(each * (1 - rule->smoothing));
        }
    })
}

OARI_WIDE double oari_square_distance(const oari_array *a, const oari_array *b)
{
    int64_t count = oari_shape_count(a->at.shape);
    double sum = 0;

    OARI_BY_FLOAT(a->dtype, {
        const T *x = oari_array_data(a);
        const T *z = oari_array_data(b);
        for (int64_t i = 0; i < count; i += BLOCK) {
            T d[BLOCK];
            int64_t n = count - i < BLOCK ? count - i : BLOCK;
            for (int64_t k = 0; k < n; k++)
                d[k] = x[i + k] - z[i + k];
            sum += (double)OARI_DOT(d, d, n);
        }
    })
    return sum;
}

OARI_WIDE void oari_difference(const oari_array *to, int add, double factor,
                               const oari_array *a, const oari_array *b)
{
    int64_t count = oari_shape_count(to->at.shape);

    OARI_BY_FLOAT(to->dtype, {
        const T *x = oari_array_data(a);
        const T *z = oari_array_data(b);
        const T f = (T)factor;
        T *y = oari_array_data(to);
        for (int64_t i = 0; i < count; i++)
            y[i] = f * (x[i] - z[i]) + (add ? y[i] : (T)0);
    })
}

void oari_dropout(const oari_array *to, int add, const oari_array *a, double p,
                  uint64_t seed)
{
    int64_t count = oari_shape_count(to->at.shape);
    oari_rng rng = { .seed = seed };
    float drawn[BLOCK];

    OARI_BY_FLOAT(to->dtype, {
        const T *x = oari_array_data(a);
        const T factor = (T)(p < 1 ? 1 / (1 - p) : 0);
        T *y = oari_array_data(to);
        for (int64_t i = 0; i < count; i += BLOCK) {
            int64_t n = count - i < BLOCK ? count - i : BLOCK;
            oari_rng_uniform_f32(rng, (uint64_t)i, drawn, (size_t)n);
            for (int64_t k = 0; k < n; k++) {
                T kept = (double)drawn[k] >= p ? x[i + k] * factor : (T)0;
                y[i + k] = kept + (add ? y[i + k] : (T)0);
            }
        }
    })
}
