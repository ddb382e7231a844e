/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/norm_job.h: the arguments of the kernels of norm.cu and
 * norm_back.cu, for C and C++. Arrays are row by row, of the dtype in the
 * kernel's name; mean, rstd and sums of what it is computed in. */
#ifndef OARI_TENSOR_CUDA_NORM_JOB_H
#define OARI_TENSOR_CUDA_NORM_JOB_H

#include <stdint.h>

enum {
    OARI_NORM_WARPS = 8,      /* of a block, unless a row needs another one */
    OARI_NORM_BLOCKS = 792,   /* at most, that share the rows in backward */
    OARI_NORM_ROWS = 2,       /* in registers at once, in forward */
    OARI_NORM_PARTS = 3,      /* packs of a row of a thread, at most */
    OARI_NORM_BACK_WARPS = 4, /* of a block of backward, a row each; of which */
    OARI_NORM_BACK_BLOCKS = 528, /* there are so many at most */
    OARI_NORM_ARRAYS = 3, /* of which a warp has rows in shared memory, */
    OARI_NORM_STAGES = 3, /* so many of each */
    OARI_NORM_RING = OARI_NORM_STAGES * OARI_NORM_ARRAYS * OARI_NORM_PARTS *
                     32 * 16,   /* bytes */
    OARI_NORM_TOTAL_WARPS = 32, /* of a block that adds up what blocks found */
    OARI_NORM_THREADS = 512, /* at most, of a longer row; a pack or two each */
    OARI_NORM_COLUMNS = 32,  /* of a block that adds up what those found */
    OARI_NORM_SHARED = 48 << 10 /* bytes; wider rows are added up outside */
};

typedef struct oari_norm_job {
    const void *x, *more;      /* more: added to x first; NULL: nothing */
    const void *weight, *bias; /* NULL: none */
    void *sum;                 /* gets x + more */
    void *to, *mean, *rstd;    /* mean NULL: there is no centre */
    int64_t rows, width;
    double eps;
    int again;        /* mean and rstd are there */
    int is_wide;      /* weight and bias are of the wider dtype */
    int in_registers; /* rows can be read in packs of 16 bytes, and fit */
    int by_block;     /* then a row is a block's, not a warp's */
} oari_norm_job;

typedef struct oari_norm_back_job {
    const void *grad, *x, *weight, *mean, *rstd;
    void *dx;   /* or NULL */
    void *sums; /* [blocks, 2, width]: gradient times x normalised, and the
                   gradient; NULL: nobody asks */
    int64_t rows, width;
    int64_t share; /* rows of each block */
    int add;       /* to dx */
    int is_wide;
    int in_shared; /* sums of a block of other rows fit its shared memory */
} oari_norm_back_job;

typedef struct oari_norm_total_job {
    const void *sums;
    void *dweight, *dbias; /* or NULL */
    int64_t blocks, width;
    int is_wide;
} oari_norm_total_job;

#endif
