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

/* Windows over planes of height x width, and out_height x out_width results of
 * each. Columns are [channels * kernel, images, rows * out_width], of result
 * rows first .. first + rows - 1. */
typedef struct oari_window_job {
    void *to;
    const void *from;
    int32_t *pick; /* of the largest, in its plane */
    int64_t count; /* of what is written */
    int64_t images, channels;
    int64_t height, width, out_height, out_width;
    int64_t first, rows;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    int to_dtype, from_dtype;
    int is_f64; /* computed in f64 */
    int bytes;  /* of an element that is copied */
    int add, kind;
} oari_window_job;

#endif
