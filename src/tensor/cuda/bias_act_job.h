/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/bias_act_job.h: the arguments of the kernels of bias_act.cu, for
 * C and C++. Matrices are [rows, width], row by row, of the dtype in the
 * kernel's name; partial sums are of what that is computed in. */
#ifndef OARI_TENSOR_CUDA_BIAS_ACT_JOB_H
#define OARI_TENSOR_CUDA_BIAS_ACT_JOB_H

#include <stdint.h>

enum {
    OARI_BIAS_WARPS = 8,   /* of a block */
    OARI_BIAS_COLUMNS = 32 /* of a block that adds up partial sums */
};

/* The functions that there are. */
enum { OARI_ACT_RELU, OARI_ACT_GELU, OARI_ACT_GELU_TANH, OARI_ACT_SILU };

typedef struct oari_bias_act_job {
    const void *from; /* what the function is of, or backward: the gradient */
    const void *pre;  /* backward: what the function was of */
    void *to;         /* the result: may be `from`; NULL: none */
    void *again;      /* backward: gets the function's result: may be `pre`, or
                         NULL */
    void *partial;    /* [chunks, width]; NULL: one chunk, straight to sums */
    void *sums;       /* [width]: of the columns of the result; or NULL */
    int64_t rows, width;
    int64_t tiles;    /* of columns, each a warp's width of packs */
    int64_t chunk;    /* rows of a block */
    int64_t chunks;   /* in all */
    int kind;         /* OARI_ACT_.. */
    int is_wide, add; /* sums are of the wider dtype; are added to */
    int is_packed;    /* rows can be read in packs of 16 bytes */
} oari_bias_act_job;

#endif
