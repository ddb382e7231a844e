/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/product_job.h: the argument of the kernels of product_mma.cu and
 * product_any.cu, for C and C++. */
#ifndef OARI_TENSOR_CUDA_PRODUCT_JOB_H
#define OARI_TENSOR_CUDA_PRODUCT_JOB_H

#include <stdint.h>

enum {
    OARI_PRODUCT_DIMS = 8,
    OARI_PRODUCT_THREADS = 256,
    OARI_PRODUCT_TILE = 128,                    /* of results, product_mma.cu */
    OARI_PRODUCT_SHARED = 3 * 2 * 128 * 32 * 2, /* bytes: three stages */
    OARI_PRODUCT_SMALL = 64,                    /* the same, product_any.cu */
    OARI_PRODUCT_ANY_SHARED = 64 * 65           /* numbers */
};

/* One side. Strides in elements; `across` is that of m or n, `along` of k. */
typedef struct oari_cuda_side {
    const void *data;
    int64_t across, along;
    int64_t batch[OARI_PRODUCT_DIMS], sum[OARI_PRODUCT_DIMS];
    int dtype;   /* oar_dtype */
    int turned;  /* m or n without gaps, not k */
    int aligned; /* parts of 16 bytes can be copied as they are */
} oari_cuda_side;

/* c [m, n] of each batch (+)= the sum over all sums of a [m, k] b [k, n]. */
typedef struct oari_cuda_product {
    oari_cuda_side a, b;
    void *c;
    int64_t row; /* of c, whose columns lie without gaps */
    int64_t batch[OARI_PRODUCT_DIMS];
    void *bias; /* [n], added to every row; or NULL */
    void *aux;  /* for cuBLASLt: see oari_cuda_linear_act; or NULL */
    int c_type, bias_type, add;
    int64_t m, n, k, batches, sums;
    int dims, sum_dims;
    int64_t dim[OARI_PRODUCT_DIMS], sum_dim[OARI_PRODUCT_DIMS];
} oari_cuda_product;

#endif
