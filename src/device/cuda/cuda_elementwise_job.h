/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda_elementwise_job.h: the argument of the kernels of
 * elementwise.cu, for C and C++. */
#ifndef OARI_DEVICE_CUDA_CUDA_ELEMENTWISE_JOB_H
#define OARI_DEVICE_CUDA_CUDA_ELEMENTWISE_JOB_H

#include <stdint.h>

enum {
    OARI_CUDA_DIMS = 8,
    OARI_CUDA_ARRAYS = 2,
    OARI_CUDA_TURN_TILE = 64, /* rows and columns of a block that turns */
    OARI_CUDA_TURN_THREADS = 256,
    OARI_CUDA_TURN_DOWN =
        8, /* packs of 16 bytes of a block that turns packs, */
    OARI_CUDA_TURN_ACROSS = 32, /* along both dims */
    OARI_CUDA_CONVERT_FOURS = 4 /* fours of elements that a thread converts */
};

/* data[0] is written. Strides are in elements; the last dim varies fastest. */
typedef struct oari_cuda_job {
    void *data[OARI_CUDA_ARRAYS];
    int64_t stride[OARI_CUDA_ARRAYS][OARI_CUDA_DIMS];
    int64_t dim[OARI_CUDA_DIMS];
    int64_t count; /* the product of dim */
    int ndim;      /* 1: flat */
    int to, from;  /* oar_dtype; moves: bytes of an element in both */
} oari_cuda_job;

#endif
