/* SPDX-License-Identifier: Apache-2.0 */
/* rotary: pairs of numbers turned by an angle that grows with the position. */
#include <math.h>

#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/nn/nn_kernels.h"
#include "tensor/cpu/target_clones.h"

oar_status oari_rotary_angles(const oari_array *angle, int64_t first,
                              double base)
{
    int64_t rows = angle->at.shape.dim[0], half = angle->at.shape.dim[1] / 2;

    OARI_BY_FLOAT(angle->dtype, {
        T *y = oari_array_data(angle);
        for (int64_t k = 0; k < half; k++) {
            double speed = pow(base, -(double)k / (double)half);
            for (int64_t i = 0; i < rows; i++) {
                double turn = (double)(first + i) * speed;
                y[2 * half * i + k] = (T)cos(turn);
                y[2 * half * i + half + k] = (T)sin(turn);
            }
        }
    })
    return OAR_OK;
}

/* One head at one position: c and s are its cosines and sines. */
#define TURN(y, x, c, s, half, sign)                              \
    for (int64_t k = 0; k < (half); k++) {                        \
        T p = (x)[k];                                             \
        T q = (x)[(half) + k];                                    \
        T left = p * (c)[k] - (sign)*q * (s)[k];                  \
        T right = q * (c)[k] + (sign)*p * (s)[k];                 \
        (y)[k] = left + (add ? (y)[k] : (T)0);                    \
        (y)[(half) + k] = right + (add ? (y)[(half) + k] : (T)0); \
    }

OARI_TARGET_CLONES oar_status oari_rotary(const oari_array *to, int add,
                                          const oari_array *x,
                                          const oari_array *angle,
                                          int64_t turned, int back)
{
    int nd = x->at.shape.ndim;
    int64_t d = x->at.shape.dim[nd - 1], heads = x->at.shape.dim[nd - 2];
    int64_t rows = angle->at.shape.dim[0], half = d / 2;
    int64_t count = oari_shape_count(x->at.shape);

    OARI_BY_FLOAT(to->dtype, {
        const T *a = oari_array_data(x);
        const T *turn = oari_array_data(angle);
        const T sign = back ? (T)-1 : (T)1;
        T *y = oari_array_data(to);
        for (int64_t i = 0; i * d < count; i++, a += d, y += d) {
            const T *c = turn + i / heads % rows * d;
            if (i % heads < turned)
                TURN(y, a, c, c + half, half, sign)
            else
                for (int64_t k = 0; k < d; k++)
                    y[k] = a[k] + (add ? y[k] : (T)0);
        }
    })
    return OAR_OK;
}
