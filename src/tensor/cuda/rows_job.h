/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/rows_job.h: the arguments of the kernels of softmax.cu and
 * rows.cu, for C and C++. Arrays are row by row, of the dtype in the kernel's
 * name unless said otherwise; W is what that is computed in. */
#ifndef OARI_TENSOR_CUDA_ROWS_JOB_H
#define OARI_TENSOR_CUDA_ROWS_JOB_H

#include <stdint.h>

#include "device/cuda/index_error.h"

enum {
    OARI_ROWS_WARPS = 8,         /* of a block of softmax in registers */
    OARI_ROWS_PARTS = 4,         /* packs of a thread there, at most */
    OARI_ROWS_PACK = 16,         /* bytes of a pack */
    OARI_ROWS_ROOM = 256,        /* bytes of shared memory before a row */
    OARI_ROWS_KEPT_THREADS = 768 /* of a row in shared memory, at most */
};

/* Softmax of rows, or their logarithm. In backward x is the result. */
typedef struct oari_softmax_job {
    const void *x, *grad; /* grad NULL: forward */
    void *to;
    int64_t rows, width;
    int add, is_log, is_packed;
    int in_registers; /* rows are packed, and not too long */
    int by_block;     /* then a row is a block's, not a warp's */
} oari_softmax_job;

/* Cross entropy, a block for each row. `lse` is computed unless has_lse, and
 * then the loss of each row, too; the gradient goes to `to` unless that is
 * NULL, which may be logits. It is that of the loss times grad: [rows] if each,
 * else one number, divided by sums[1] if by_weight; grad NULL: 1. */
typedef struct oari_entropy_job {
    const void *logits, *weight; /* weight [classes]; NULL: all are 1 */
    const int64_t *target;
    int64_t target_stride;
    void *lse, *loss;   /* [rows] of W; loss may be NULL */
    void *to;           /* [rows, classes] */
    const void *grad;   /* of the kernel's dtype */
    const double *sums; /* of losses and of weights; by_weight reads it */
    int64_t rows, classes, ignore;
    double smoothing;
    int has_ignore, has_lse, add, each, by_weight, is_packed;
    oari_index_check check;
} oari_entropy_job;

/* One block: sums[0] = all losses (none if loss is NULL), sums[1] = all
 * weights of targets; `to`, one number or NULL, = sums[0], divided by sums[1]
 * if by_weight. */
typedef struct oari_entropy_total_job {
    const void *loss, *weight;
    const int64_t *target;
    int64_t target_stride, rows, classes, ignore;
    double *sums;
    void *to;
    int has_ignore, by_weight;
} oari_entropy_total_job;

#endif
