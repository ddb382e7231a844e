/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/draw_job.h: the arguments of the kernels of draw.cu, for C and
 * C++. */
#ifndef OARI_TENSOR_CUDA_DRAW_JOB_H
#define OARI_TENSOR_CUDA_DRAW_JOB_H

#include <stdint.h>

enum {
    OARI_DRAW_DIMS = 8,
    OARI_DROPOUT_PACKS = 2 /* of a thread, of a packed dropout */
};

/* Leaves out elements of x, as oari_dropout does. The number of an element is
 * first plus its steps along each dim times that dim's stride. */
typedef struct oari_dropout_job {
    const void *x;
    void *to;
    int64_t count, first;
    int64_t dim[OARI_DRAW_DIMS], stride[OARI_DRAW_DIMS];
    uint64_t seed;
    const uint64_t *salt; /* device memory, added to the seed; NULL: 0 */
    uint32_t least;       /* of the 24 bits drawn: an element is kept */
    uint32_t bound;       /* packed: of the 32 bits drawn */
    double factor;        /* of what is kept */
    int ndim;             /* 0: positions follow each other */
    int is_packed;        /* and elements can be moved by 16 bytes */
    int add;
} oari_dropout_job;

/* angle [t, d]: d/2 cosines and d/2 sines a row, of what the dtype is computed
 * in. */
typedef struct oari_angles_job {
    void *angle;
    int64_t t, d, first;
    double base;
    int is_f64;
} oari_angles_job;

/* Turns heads [.., t, heads, d] by the angles of their positions: `turned`
 * heads of each, and copies the others. */
typedef struct oari_rotary_job {
    const void *x, *angle;
    void *to;
    int64_t count; /* pairs of numbers: half of all */
    int64_t t, heads, d, turned;
    int is_packed; /* halves of heads are packs of 16 bytes */
    int add, back;
} oari_rotary_job;

#endif
