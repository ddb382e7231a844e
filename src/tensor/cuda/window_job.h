/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/window_job.h: the arguments of the kernels of windows.cu, for C
 * and C++. */
#ifndef OARI_TENSOR_CUDA_WINDOW_JOB_H
#define OARI_TENSOR_CUDA_WINDOW_JOB_H

#include <stdint.h>

typedef enum oari_pool_kind {
    OARI_POOL_MAX,
    OARI_POOL_AVG,
    OARI_POOL_COVER /* means of windows that cover the plane */
} oari_pool_kind;

/* Division by d, at least 1, of numbers below 2^31, by a product. */
typedef struct oari_quick_divisor {
    uint32_t factor, shift;
    int64_t by;
} oari_quick_divisor;

static inline oari_quick_divisor oari_quick_divisor_of(int64_t d)
{
    oari_quick_divisor q = { 0, 31, d };

    if (d > INT32_MAX) /* the quotient is 0 */
        return q;
    while (d > (int64_t)1 << (q.shift - 31))
        q.shift++;
    q.factor =
        (uint32_t)((((uint64_t)1 << q.shift) + (uint64_t)d - 1) / (uint64_t)d);
    return q;
}

/* Windows over planes of height x width, and out_height x out_width results of
 * each. Columns are [channels * kernel, images, rows * out_width], of result
 * rows first .. first + rows - 1. */
typedef struct oari_window_job {
    void *to;
    const void *from;
    int32_t *pick;  /* of the largest, in its plane */
    int64_t count;  /* of what is written */
    int64_t places; /* of what is read */
    int64_t images, channels;
    int64_t height, width, out_height, out_width;
    int64_t first, rows;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    oari_quick_divisor by_images, by_channels, by_height, by_width, by_rows;
    oari_quick_divisor by_out_height, by_out_width, by_taps, by_kernel;
    oari_quick_divisor by_stride[2];
    int is_large; /* places need 64 bits */
    int to_dtype, from_dtype;
    int is_f64; /* computed in f64 */
    int bytes;  /* of an element that is copied */
    int add, kind;
} oari_window_job;

#endif
