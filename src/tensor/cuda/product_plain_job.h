/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/product_plain_job.h: the argument of the kernel of
 * product_plain.cu, for C and C++. */
#ifndef OARI_TENSOR_CUDA_PRODUCT_PLAIN_JOB_H
#define OARI_TENSOR_CUDA_PRODUCT_PLAIN_JOB_H

#include <stdint.h>

enum { OARI_PRODUCT_DIMS = 6, OARI_PRODUCT_TILE = 16 };

/* to [m, n] (+)= a [m, k] b [k, n], for each batch the sum over `sums` of them.
 * Strides are in elements. */
typedef struct oari_product_job {
    void *to;
    const void *a, *b;
    int to_dtype, a_dtype, b_dtype;
    int wide, add; /* computed in f64; added to what is there */
    int64_t m, n, k;
    int64_t to_row, to_column, a_row, a_column, b_row, b_column;
    int dims, sum_dims;
    int64_t batches, sums;
    int64_t dim[OARI_PRODUCT_DIMS], to_batch[OARI_PRODUCT_DIMS],
        a_batch[OARI_PRODUCT_DIMS], b_batch[OARI_PRODUCT_DIMS];
    int64_t sum_dim[OARI_PRODUCT_DIMS], a_sum[OARI_PRODUCT_DIMS],
        b_sum[OARI_PRODUCT_DIMS];
} oari_product_job;

#endif
