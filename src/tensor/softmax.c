/* SPDX-License-Identifier: Apache-2.0 */
/* softmax: over the last dim, and the cross entropy made from it. The largest
 * entry of a row is taken off first, so nothing overflows; sums are f64. */
#include <math.h>

#include "tensor/dispatch.h"
#include "tensor/kernels.h"

/* Rows of the last dim; a single number is one row of one. */
typedef struct rows {
    int64_t count, width;
} rows;

static rows rows_of(oar_shape shape)
{
    rows r = { 1, shape.ndim > 0 ? shape.dim[shape.ndim - 1] : 1 };

    for (int i = 0; i + 1 < shape.ndim; i++)
        r.count *= shape.dim[i];
    return r;
}

#define EXP(x) \
    (sizeof(x) == sizeof(float) ? expf((float)(x)) : exp((double)(x)))

/* Takes the largest of a row y of n off and makes it exponentials; most is the
 * largest, sum the sum of the result. */
#define EXP_ROW(y, n, most, sum)                               \
    do {                                                       \
        for (int64_t i_ = 0; i_ < (n); i_++)                   \
            most = i_ == 0 || (y)[i_] > most ? (y)[i_] : most; \
        for (int64_t i_ = 0; i_ < (n); i_++) {                 \
            (y)[i_] = (T)EXP((y)[i_] - most);                  \
            sum += (double)(y)[i_];                            \
        }                                                      \
    } while (0)

#define SCALE_ROW(y, n, factor)          \
    for (int64_t i_ = 0; i_ < (n); i_++) \
        (y)[i_] *= (T)(factor);

void oari_softmax(const oari_array *to, const oari_array *a)
{
    rows r = rows_of(to->at.shape);

    if (to->data != a->data)
        oari_copy(to, a);
    if (r.width == 0)
        return;
    OARI_BY_FLOAT(to->dtype, {
        T *y = oari_array_data(to);
        for (int64_t i = 0; i < r.count; i++, y += r.width) {
            T most = 0;
            double sum = 0;
            EXP_ROW(y, r.width, most, sum);
            SCALE_ROW(y, r.width, 1 / sum);
        }
    })
}

void oari_softmax_back(const oari_array *to, int add, const oari_array *grad,
                       const oari_array *result)
{
    rows r = rows_of(to->at.shape);

    OARI_BY_FLOAT(to->dtype, {
        T *y = oari_array_data(to);
        const T *g = oari_array_data(grad);
        const T *p = oari_array_data(result);
        for (int64_t i = 0; i < r.count * r.width; i += r.width) {
            double dot = 0;
            for (int64_t k = i; k < i + r.width; k++)
                dot += (double)g[k] * (double)p[k];
            for (int64_t k = i; k < i + r.width; k++)
                y[k] = p[k] * (g[k] - (T)dot) + (add ? y[k] : (T)0);
        }
    })
}

static int64_t target_at(const oari_array *target, int64_t row)
{
    const int64_t *t = oari_array_data(target);

    return t[row * target->at.stride[0]];
}

void oari_cross_entropy(const oari_array *to, const oari_array *prob,
                        const oari_array *logits, const oari_array *target)
{
    rows r = rows_of(logits->at.shape);
    double loss = 0;

    oari_copy(prob, logits);
    OARI_BY_FLOAT(to->dtype, {
        T *y = oari_array_data(prob);
        T *mean = oari_array_data(to);
        for (int64_t i = 0; i < r.count; i++, y += r.width) {
            T most = 0;
            T chosen = y[target_at(target, i)];
            double sum = 0;
            EXP_ROW(y, r.width, most, sum);
            loss += log(sum) + ((double)most - (double)chosen);
            SCALE_ROW(y, r.width, 1 / sum);
        }
        *mean = (T)(loss / (double)r.count); /* of no rows: NaN */
    })
}

void oari_cross_entropy_back(const oari_array *to, int add,
                             const oari_array *grad, const oari_array *prob,
                             const oari_array *target)
{
    rows r = rows_of(to->at.shape);

    OARI_BY_FLOAT(to->dtype, {
        T *y = oari_array_data(to);
        const T *p = oari_array_data(prob);
        const T *g = oari_array_data(grad);
        const T each = (T)((double)*g / (double)r.count);
        for (int64_t i = 0; i < r.count; i++, y += r.width, p += r.width) {
            int64_t chosen = target_at(target, i);
            for (int64_t k = 0; k < r.width; k++)
                y[k] = p[k] * each + (add ? y[k] : (T)0);
            y[chosen] -= each;
        }
    })
}
