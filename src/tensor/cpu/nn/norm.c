/* SPDX-License-Identifier: Apache-2.0 */
/* norm: rows brought to mean 0 and deviation 1, or to root mean square 1. The
 * backward pass goes over the rows once; its column sums run in f32 for a few
 * rows at a time, and in f64 over those. */
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/math.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cpu/target_clones.h"

enum { ROWS = 32 }; /* whose column sums are added up at once */

/* One row, from its mean and the inverse of its deviation. Separate loops where
 * there is no weight or bias: one with a choice inside would load from NULL
 * under a mask, which is allowed but slow. */
#define NORMALISE_ROW(T, y, a, w, b, middle, scale, n)                \
    if ((w) != NULL && (b) != NULL) {                                 \
        for (int64_t k = 0; k < (n); k++)                             \
            (y)[k] = ((a)[k] - (middle)) * (scale) * (w)[k] + (b)[k]; \
    } else {                                                          \
        for (int64_t k = 0; k < (n); k++)                             \
            (y)[k] = ((a)[k] - (middle)) * (scale);                   \
        for (int64_t k = 0; (w) != NULL && k < (n); k++)              \
            (y)[k] *= (w)[k];                                         \
        for (int64_t k = 0; (b) != NULL && k < (n); k++)              \
            (y)[k] += (b)[k];                                         \
    }

OARI_TARGET_CLONES oar_status
oari_layer_norm(const oari_array *to, const oari_array *mean,
                const oari_array *rstd, const oari_array *x,
                const oari_array *weight, const oari_array *bias, double eps)
{
    oari_rows r = oari_rows_of(x->at.shape);

    if (r.width == 0)
        return OAR_OK;
    OARI_BY_FLOAT(to->dtype, {
        const T *a = oari_array_data(x);
        const T *w = oari_data_or_null(weight);
        const T *b = oari_data_or_null(bias);
        T *m = oari_data_or_null(mean);
        T *s = oari_array_data(rstd);
        T *restrict y = oari_array_data(to);
        for (int64_t i = 0; i < r.count; i++, a += r.width, y += r.width) {
            const T middle = m ? OARI_ROW_SUM(a, r.width) / (T)r.width : (T)0;
            const T var = OARI_ROW_SQUARES(a, middle, r.width) / (T)r.width;
            const T scale = 1 / OARI_SQRT(var + (T)eps);
            if (m != NULL)
                m[i] = middle;
            s[i] = scale;
            NORMALISE_ROW(T, y, a, w, b, middle, scale, r.width)
        }
    })
    return OAR_OK;
}

OARI_TARGET_CLONES oar_status oari_layer_norm_again(
    const oari_array *to, const oari_array *mean, const oari_array *rstd,
    const oari_array *x, const oari_array *weight, const oari_array *bias)
{
    oari_rows r = oari_rows_of(x->at.shape);

    OARI_BY_FLOAT(to->dtype, {
        const T *a = oari_array_data(x);
        const T *w = oari_data_or_null(weight);
        const T *b = oari_data_or_null(bias);
        const T *m = oari_data_or_null(mean);
        const T *s = oari_array_data(rstd);
        T *restrict y = oari_array_data(to);
        for (int64_t i = 0; i < r.count; i++, a += r.width, y += r.width) {
            const T middle = m != NULL ? m[i] : (T)0;
            NORMALISE_ROW(T, y, a, w, b, middle, s[i], r.width)
        }
    })
    return OAR_OK;
}

/* One row: h is x normalised, v the gradient of h; and the column sums. Then
 * the gradient of x. As functions, because only of their parameters does the
 * compiler believe that they do not overlap. */
#define ROWS_OF(T, name)                                                      \
    static inline void gather_##name(                                         \
        const T *g, const T *x, const T *w, T middle, T scale, T *restrict h, \
        T *restrict v, T *restrict dw, T *restrict db, int64_t n)             \
    {                                                                         \
        for (int64_t k = 0; k < n; k++) {                                     \
            h[k] = (x[k] - middle) * scale;                                   \
            v[k] = w != NULL ? g[k] * w[k] : g[k];                            \
            dw[k] += g[k] * h[k];                                             \
            db[k] += g[k];                                                    \
        }                                                                     \
    }                                                                         \
    static inline void give_##name(T *restrict y, int add, const T *h,        \
                                   const T *v, T flat, T tilt, T scale,       \
                                   int64_t n)                                 \
    {                                                                         \
        if (add)                                                              \
            for (int64_t k = 0; k < n; k++)                                   \
                y[k] += (v[k] - flat - h[k] * tilt) * scale;                  \
        else                                                                  \
            for (int64_t k = 0; k < n; k++)                                   \
                y[k] = (v[k] - flat - h[k] * tilt) * scale;                   \
    }

ROWS_OF(float, f32)
ROWS_OF(double, f64)

#define GATHER_ROW(h) _Generic(*(h), float : gather_f32, double : gather_f64)
#define GIVE_ROW(h)   _Generic(*(h), float : give_f32, double : give_f64)

#define FLUSH(T, n)                         \
    for (int64_t k = 0; k < (n); k++) {     \
        n_->sums[k] += (double)dw[k];       \
        n_->sums[(n) + k] += (double)db[k]; \
        dw[k] = db[k] = 0;                  \
    }

OARI_TARGET_CLONES static void run_rows(const oari_norm_back *n_, oari_rows r)
{
    const int64_t n = r.width;

    OARI_BY_FLOAT(n_->x->dtype, {
        const T *g = oari_array_data(n_->grad);
        const T *x = oari_array_data(n_->x);
        const T *w = oari_data_or_null(n_->weight);
        const T *m = oari_data_or_null(n_->mean);
        const T *s = oari_array_data(n_->rstd);
        T *y = oari_data_or_null(n_->dx);
        T *h = n_->scratch;
        T *v = h + n;
        T *dw = v + n;
        T *db = dw + n;
        for (int64_t k = 0; k < n; k++)
            dw[k] = db[k] = 0;
        for (int64_t i = 0; i < r.count; i++, g += n, x += n) {
            const T middle = m != NULL ? m[i] : (T)0;
            if (w != NULL)
                GATHER_ROW(h)(g, x, w, middle, s[i], h, v, dw, db, n);
            else
                GATHER_ROW(h)(g, x, NULL, middle, s[i], h, v, dw, db, n);
            if (i % ROWS == ROWS - 1)
                FLUSH(T, n)
            if (y == NULL)
                continue;
            const T flat = m != NULL ? OARI_ROW_SUM(v, n) / (T)n : (T)0;
            const T tilt = OARI_ROW_DOT(v, h, n) / (T)n;
            GIVE_ROW(h)(y, n_->add, h, v, flat, tilt, s[i], n);
            y += n;
        }
        FLUSH(T, n)
    })
}

oar_status oari_layer_norm_back(const oari_norm_back *n)
{
    oari_rows r = oari_rows_of(n->x->at.shape);

    for (int64_t k = 0; k < 2 * r.width; k++)
        n->sums[k] = 0;
    run_rows(n, r);
    oari_store_sums(n->dweight, n->sums, r.width);
    oari_store_sums(n->dbias, n->sums + r.width, r.width);
    return OAR_OK;
}
