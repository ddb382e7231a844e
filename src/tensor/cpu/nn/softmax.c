/* SPDX-License-Identifier: Apache-2.0 */
/* softmax: over the last dim. The largest entry of a row is taken off first, so
 * nothing overflows. */
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/product/fused.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/math.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cpu/target_clones.h"

oari_rows oari_rows_of(oar_shape shape)
{
    oari_rows r = { 1, shape.ndim > 0 ? shape.dim[shape.ndim - 1] : 1 };

    for (int i = 0; i + 1 < shape.ndim; i++)
        r.count *= shape.dim[i];
    return r;
}

/* Runs body for each row of a, with x the row, y its result, which holds
 * exp(x - most), `most` the largest of x, `total` the sum of y. */
#define EXP_ROWS(to, a, body)                                                \
    do {                                                                     \
        const oari_rows r_ = oari_rows_of((to)->at.shape);                   \
        const int64_t n = r_.width;                                          \
        T *y = oari_array_data(to);                                          \
        const T *x = oari_array_data(a);                                     \
        for (int64_t i_ = 0; n > 0 && i_ < r_.count; i_++, y += n, x += n) { \
            const T most = OARI_ROW_MAX(x, n);                               \
            OARI_EXP_LESS(y, x, most, n);                                    \
            const T total = OARI_ROW_SUM(y, n);                              \
            body                                                             \
        }                                                                    \
    } while (0)

OARI_TARGET_CLONES oar_status oari_softmax(const oari_array *to,
                                           const oari_array *a)
{
    OARI_BY_FLOAT(to->dtype, {
        EXP_ROWS(to, a, {
            const T share = 1 / total;
            for (int64_t k = 0; k < n; k++)
                y[k] *= share;
        });
    })
    return OAR_OK;
}

OARI_TARGET_CLONES
oar_status oari_softmax_back(const oari_array *to, int add,
                             const oari_array *grad, const oari_array *result)
{
    oari_rows r = oari_rows_of(to->at.shape);

    OARI_BY_FLOAT(to->dtype, {
        T *y = oari_array_data(to);
        const T *g = oari_array_data(grad);
        const T *p = oari_array_data(result);
        for (int64_t i = 0; i < r.count; i++) {
            const T dot = OARI_ROW_DOT(g, p, r.width);
            for (int64_t k = 0; k < r.width; k++)
                y[k] = p[k] * (g[k] - dot) + (add ? y[k] : (T)0);
            y += r.width;
            g += r.width;
            p += r.width;
        }
    })
    return OAR_OK;
}

OARI_TARGET_CLONES oar_status oari_log_softmax(const oari_array *to,
                                               const oari_array *a)
{
    OARI_BY_FLOAT(to->dtype, {
        EXP_ROWS(to, a, {
            const T rest = (T)log((double)total);
            for (int64_t k = 0; k < n; k++)
                y[k] = (x[k] - most) - rest;
        });
    })
    return OAR_OK;
}

OARI_TARGET_CLONES
oar_status oari_log_softmax_back(const oari_array *to, int add,
                                 const oari_array *grad,
                                 const oari_array *result)
{
    oari_rows r = oari_rows_of(to->at.shape);

    OARI_BY_FLOAT(to->dtype, {
        T *y = oari_array_data(to);
        const T *g = oari_array_data(grad);
        const T *l = oari_array_data(result);
        for (int64_t i = 0; i < r.count; i++) {
            const T total = OARI_ROW_SUM(g, r.width);
            for (int64_t k = 0; k < r.width; k++)
                y[k] = g[k] - OARI_EXP(l[k]) * total + (add ? y[k] : (T)0);
            y += r.width;
            g += r.width;
            l += r.width;
        }
    })
    return OAR_OK;
}
