/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/attention_job.h: the argument of the kernels of attention_mma.cu,
 * attention_small.cu and attention_any.cu, for C and C++. */
#ifndef OARI_TENSOR_CUDA_ATTENTION_JOB_H
#define OARI_TENSOR_CUDA_ATTENTION_JOB_H

#include <stdint.h>

enum {
    OARI_ATTENTION_DIMS = 8,
    OARI_SMALL_SIDE = 64, /* attention_small.cu: positions and width at most */
    OARI_SMALL_WIDTH = 32,
    OARI_SMALL_THREADS = 256
};

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
    void *dscores; /* backward: [outer, heads, t, s], as lse; or NULL */
    double dropout;
    uint64_t seed;
    int64_t all_heads, first_head;
} oari_cuda_attention;

/* How a GPU's engine for copies finds tiles of an operand: the driver makes it
 * (CUtensorMap). */
typedef struct oari_cuda_map {
#ifdef __cplusplus
    alignas(128)
#else
    _Alignas(128)
#endif
        uint64_t opaque[16];
} oari_cuda_map;

/* What a block of those kernels takes, by the width of a head: dynamic shared
 * memory in bytes, threads and queries forward; the same backward. */
#define OARI_ATTEND_90_SHARED(width)  ((width) == 64 ? 130 << 10 : 194 << 10)
#define OARI_ATTEND_90_THREADS(width) ((width) == 64 ? 640 : 384)
#define OARI_ATTEND_90_ROWS(width)    ((width) == 64 ? 256 : 128)
#define OARI_ATTEND_90_KEYS(width)    ((width) == 64 ? 64 : 128)
#define OARI_BACK_90_SHARED(width)    ((width) == 64 ? 196 << 10 : 227 << 10)
#define OARI_BACK_90_THREADS(width)   ((width) == 64 ? 512 : 384)
enum { OARI_BACK_90_QUERIES = 64, OARI_BACK_90_KEYS = 128 };

/* The argument of the kernels of attention_sm90a.cu, attention_back_sm90a.cu
 * and attention_rows_sm90a.cu. */
typedef struct oari_cuda_attention_90 {
    oari_cuda_map q, k, v;
    oari_cuda_map out; /* backward: the result's gradient */
    oari_cuda_attention a;
    int items; /* forward: of work, for all blocks together */
    int pairs; /* forward: an item is a long and a short tile of queries */
} oari_cuda_attention_90;

#endif
