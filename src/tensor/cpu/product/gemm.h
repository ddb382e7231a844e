/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/product/gemm.h: products of matrices that lie anywhere in memory,
 * for kernels that make many small ones. matmul.c is for whole arrays. */
#ifndef OARI_TENSOR_CPU_PRODUCT_GEMM_H
#define OARI_TENSOR_CPU_PRODUCT_GEMM_H

#include <oarsong/span.h>

/* A matrix whose rows lie `lead` elements apart; turned: its transpose is
 * meant. */
typedef struct oari_matrix {
    const void *data;
    int64_t lead;
    int turned;
} oari_matrix;

typedef struct oari_gemm_job {
    oar_dtype dtype; /* f32 or f64 */
    int64_t m, n, k;
    double factor;
    oari_matrix a, b; /* m x k and k x n, after turning */
    void *c;          /* m x n */
    int64_t lead;     /* of c */
    int add;
} oari_gemm_job;

/* c (+)= factor a b. Sizes fit an int; with k = 0 the product is zero. */
void oari_gemm(const oari_gemm_job *job);

#endif
