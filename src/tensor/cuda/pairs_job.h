/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/pairs_job.h: the arguments of the kernels of pairs.cu, for C and
 * C++. */
#ifndef OARI_TENSOR_CUDA_PAIRS_JOB_H
#define OARI_TENSOR_CUDA_PAIRS_JOB_H

#include <stdint.h>

enum { OARI_PAIRS_THREADS = 256, OARI_PAIRS_BLOCKS = 512 /* that sum */ };

/* kind is an oari_pair_kind. Forward: the loss of each pair goes to `to`, or
 * the sum of each block to partial. Backward: to (+)= factor times the slope
 * by a, or by b, times grad: one number for each pair if each, else one. */
typedef struct oari_pairs_job {
    const void *a, *b, *weight, *positive; /* the last two may be NULL */
    const void *grad;
    void *to;
    double *partial;
    int64_t count;
    double edge, factor;
    int kind, by_b, each, add;
} oari_pairs_job;

/* One block: `to`, one number, = factor times the sum of partial. */
typedef struct oari_pairs_total_job {
    const double *partial;
    void *to;
    int64_t count;
    double factor;
} oari_pairs_total_job;

#endif
