/* SPDX-License-Identifier: Apache-2.0 */
/* pool2d: the largest, or the mean, under each window of a plane. */
#include <math.h>

#include "tensor/cpu/nn/conv.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/kernels.h"
#include "tensor/cpu/lanes.h"

/* The part of window number i along one side that lies inside the plane. */
typedef struct reach {
    int64_t from, to;
} reach;

static reach reach_of(const oari_window *w, int side, int64_t i)
{
    int64_t size = side == 0 ? w->height : w->width;
    int64_t first = i * w->stride[side] - w->padding[side];
    int64_t end = first + w->kernel[side];

    return (reach){ first > 0 ? first : 0, end < size ? end : size };
}

/* Runs body for each result, number i, with the reach of its window in y and
 * x, and `plane`, the number of its plane. */
#define EACH_WINDOW(w, planes, body)                                     \
    for (int64_t plane = 0, i = 0; plane < (planes); plane++)            \
        for (int64_t row_ = 0; row_ < (w)->out_height; row_++)           \
            for (int64_t col_ = 0; col_ < (w)->out_width; col_++, i++) { \
                const reach down = reach_of(w, 0, row_);                 \
                const reach across = reach_of(w, 1, col_);               \
                body                                                     \
            }

static int64_t planes_of(const oari_array *a, const oari_window *w)
{
    int64_t plane = w->out_height * w->out_width;

    return plane > 0 ? oari_shape_count(a->at.shape) / plane : 0;
}

/* A NaN is larger than anything. */
oar_status oari_max_pool(const oari_array *to, const oari_array *pick,
                         const oari_array *x, const oari_window *w)
{
    int64_t planes = planes_of(to, w), size = w->height * w->width;

    OARI_BY_FLOAT(to->dtype, {
        const T *a = oari_array_data(x);
        T *y = oari_array_data(to);
        int32_t *place = oari_array_data(pick);
        EACH_WINDOW(w, planes, {
            const T *from = a + plane * size;
            int64_t best = -1;
            for (int64_t r = down.from; r < down.to; r++)
                for (int64_t k = r * w->width + across.from;
                     k < r * w->width + across.to; k++)
                    if (best < 0 || from[k] > from[best] || from[k] != from[k])
                        best = k;
            place[i] = (int32_t)best;
            y[i] = best < 0 ? (T)-INFINITY : from[best];
        })
    })
    return OAR_OK;
}

oar_status oari_max_pool_back(const oari_array *to, int add,
                              const oari_array *grad, const oari_array *pick,
                              const oari_window *w)
{
    int64_t planes = planes_of(grad, w), size = w->height * w->width;
    int64_t out = w->out_height * w->out_width;

    if (!add)
        oari_fill(to, 0);
    OARI_BY_FLOAT(to->dtype, {
        const T *g = oari_array_data(grad);
        T *y = oari_array_data(to);
        const int32_t *place = oari_array_data(pick);
        for (int64_t i = 0; i < planes * out; i++)
            if (place[i] >= 0)
                y[i / out * size + place[i]] += g[i];
    })
    return OAR_OK;
}

oar_status oari_avg_pool(const oari_array *to, const oari_array *x,
                         const oari_window *w)
{
    int64_t planes = planes_of(to, w), size = w->height * w->width;

    OARI_BY_FLOAT(to->dtype, {
        const T *a = oari_array_data(x);
        const T count = (T)(w->kernel[0] * w->kernel[1]);
        T *y = oari_array_data(to);
        EACH_WINDOW(w, planes, {
            T sum = 0;
            for (int64_t r = down.from; r < down.to; r++)
                for (int64_t k = across.from; k < across.to; k++)
                    sum += a[plane * size + r * w->width + k];
            y[i] = sum / count;
        })
    })
    return OAR_OK;
}

oar_status oari_avg_pool_back(const oari_array *to, int add,
                              const oari_array *grad, const oari_window *w)
{
    int64_t planes = planes_of(grad, w), size = w->height * w->width;

    if (!add)
        oari_fill(to, 0);
    OARI_BY_FLOAT(to->dtype, {
        const T *g = oari_array_data(grad);
        const T count = (T)(w->kernel[0] * w->kernel[1]);
        T *y = oari_array_data(to);
        EACH_WINDOW(w, planes, {
            const T share = g[i] / count;
            for (int64_t r = down.from; r < down.to; r++)
                for (int64_t k = across.from; k < across.to; k++)
                    y[plane * size + r * w->width + k] += share;
        })
    })
    return OAR_OK;
}

/* ---- windows that cover a plane ------------------------------------------ */

static reach cover_part(int64_t size, int64_t windows, int64_t i)
{
    return (reach){ i * size / windows, ((i + 1) * size - 1) / windows + 1 };
}

/* Runs body as EACH_WINDOW does, with the count of each window besides. */
#define EACH_COVER(w, planes, body)                                            \
    for (int64_t plane = 0, i = 0; plane < (planes); plane++)                  \
        for (int64_t row_ = 0; row_ < (w)->out_height; row_++) {               \
            const reach down = cover_part((w)->height, (w)->out_height, row_); \
            for (int64_t col_ = 0; col_ < (w)->out_width; col_++, i++) {       \
                const reach across =                                           \
                    cover_part((w)->width, (w)->out_width, col_);              \
                const T count =                                                \
                    (T)((down.to - down.from) * (across.to - across.from));    \
                body                                                           \
            }                                                                  \
        }

oar_status oari_adaptive_avg_pool(const oari_array *to, const oari_array *x,
                                  const oari_window *w)
{
    int64_t planes = planes_of(to, w), size = w->height * w->width;

    OARI_BY_FLOAT(to->dtype, {
        const T *a = oari_array_data(x);
        T *y = oari_array_data(to);
        EACH_COVER(w, planes, {
            int64_t rows = down.to - down.from;
            int64_t n = across.to - across.from;
            const T *from = a + plane * size + down.from * w->width;
            double sum = 0;
            if (n == w->width) { /* its rows lie together */
                n *= rows;
                rows = 1;
            }
            for (int64_t r = 0; r < rows; r++)
                sum +=
                    (double)OARI_ROW_SUM(from + r * w->width + across.from, n);
            y[i] = (T)sum / count;
        })
    })
    return OAR_OK;
}

oar_status oari_adaptive_avg_pool_back(const oari_array *to, int add,
                                       const oari_array *grad,
                                       const oari_window *w)
{
    int64_t planes = planes_of(grad, w), size = w->height * w->width;

    if (!add)
        oari_fill(to, 0);
    OARI_BY_FLOAT(to->dtype, {
        const T *g = oari_array_data(grad);
        T *y = oari_array_data(to);
        EACH_COVER(w, planes, {
            const T share = g[i] / count;
            for (int64_t r = down.from; r < down.to; r++)
                for (int64_t k = across.from; k < across.to; k++)
                    y[plane * size + r * w->width + k] += share;
        })
    })
    return OAR_OK;
}
