/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/sums_job.h: the arguments of the kernels of sums.cu, for C and
 * C++. */
#ifndef OARI_TENSOR_CUDA_SUMS_JOB_H
#define OARI_TENSOR_CUDA_SUMS_JOB_H

#include <stdint.h>

enum {
    OARI_SUMS_WARPS = 8,
    OARI_SUMS_COLUMNS = 256,  /* of a block */
    OARI_SUMS_SHORT = 4,      /* eights of a lane of a row that is a warp's */
    OARI_SUMS_PART_WARPS = 32 /* of a block that adds up segments */
};

/* `results` sums of `each` elements: of columns, which lie side by side, in
 * rows `stride` apart; or of rows, whose elements lie side by side. Elements of
 * a segment are `share`, the last one's fewer; sums of segments go to partial
 * [segments, results]. */
typedef struct oari_sums_job {
    const void *a;
    void *to;
    float *partial;
    int64_t results, each, stride, segments, share;
    int64_t to_stride; /* of results, in elements */
    double factor;
    int a_dtype, to_dtype;
    int add;      /* to what is there */
    int by_block; /* a row is a block's, not a warp's */
} oari_sums_job;

#endif
