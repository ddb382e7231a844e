/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/low_rank_job.h: the argument of the kernels of low_rank.cu, for C
 * and C++. */
#ifndef OARI_TENSOR_CUDA_LOW_RANK_JOB_H
#define OARI_TENSOR_CUDA_LOW_RANK_JOB_H

#include <stdint.h>

enum {
    OARI_LOW_RANK_THREADS = 256,
    OARI_LOW_RANK_BLOCK = 512,  /* threads that make P orthonormal */
    OARI_LOW_RANK_COLUMNS = 32, /* of Q by a block */
    OARI_LOW_RANK_GROUPS = 16   /* of rows that the block adds up */
};

/* As oari_low_rank. */
typedef struct oari_low_rank_job {
    float *m, *lost, *p, *q;
    int64_t rows, columns;
    int rank;
} oari_low_rank_job;

#endif
