/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/attention_job.h: the argument of the kernels of attention_mma.cu
 * and attention_any.cu, for C and C++. */
#ifndef OARI_TENSOR_CUDA_ATTENTION_JOB_H
#define OARI_TENSOR_CUDA_ATTENTION_JOB_H

#include <stdint.h>

enum { OARI_ATTENTION_DIMS = 8 };

/* Where the heads of one operand lie: [outer, head, position, width], the last
 * without gaps. Strides in elements. */
typedef struct oari_cuda_heads {
    void *data; /* NULL: not wanted */
    int64_t outer, head, row;
} oari_cuda_heads;

typedef struct oari_cuda_attention {
    oari_cuda_heads q, k, v;
    oari_cuda_heads out;    /* the result, in backward its gradient */
    oari_cuda_heads result; /* in backward: the result */
    oari_cuda_heads dq, dk, dv;
    void *lse;     /* [outer, heads, t]: f32, f64 for f64 */
    void *delta;   /* the same: each row's sum of result times gradient */
    float *sums;   /* of dq: [parts, outer, heads, tiles, a tile] */
    int64_t tiles; /* of queries a head */
    int outer, heads;
    int shared; /* heads that use one head of k and v */
    int t, s, d, e;
    int parts; /* of the keys of a head, each with sums of its own */
    int causal;
    int add_q, add_k, add_v;
    double scale;
    /* attention_any.cu only */
    int dtype; /* oar_dtype */
    int mask_dtype;
    const void *mask; /* [.., heads, t, s]; NULL: none */
    int64_t mask_stride[OARI_ATTENTION_DIMS], mask_dim[OARI_ATTENTION_DIMS];
    int mask_dims;
    double dropout;
    uint64_t seed;
    int64_t all_heads, first_head;
} oari_cuda_attention;

#endif
