/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/arith_job.h: the arguments of the kernels of arith.cu,
 * float_arith.cu, reductions.cu and lines.cu, for C and C++. */
#ifndef OARI_TENSOR_CUDA_ARITH_JOB_H
#define OARI_TENSOR_CUDA_ARITH_JOB_H

#include <stdint.h>

#include "device/cuda/index_error.h"

enum { OARI_JOB_DIMS = 8, OARI_JOB_ARRAYS = 4 };

/* What numbers are computed in. */
typedef enum oari_job_numbers {
    OARI_JOB_F32, /* of halves too */
    OARI_JOB_F64,
    OARI_JOB_SIGNED,  /* 64 bits; cut to the dtype when they are stored */
    OARI_JOB_UNSIGNED /* compares otherwise; bools too */
} oari_job_numbers;

enum {
    OARI_TILE_THREADS = 256, /* of a block of float_arith.cu, */
    OARI_TILE = 4096         /* and its elements */
};

/* How an array of a packed job lies beside the array that is written. */
typedef enum oari_job_lies {
    OARI_LIES_ALIKE,
    OARI_LIES_ROW,    /* the same in each row of job.width elements */
    OARI_LIES_COLUMN, /* the same all along each row */
    OARI_LIES_ONE     /* one number */
} oari_job_lies;

typedef struct oari_job_array {
    void *data;                    /* of the first element */
    int64_t stride[OARI_JOB_DIMS]; /* in elements; 0: repeated */
    uint64_t value;                /* of one element that came by value */
    int by_value;
    int dtype;
    int lies; /* an oari_job_lies */
} oari_job_array;

/* Element by element; array 0 is written. */
typedef struct oari_arith_job {
    oari_job_array array[OARI_JOB_ARRAYS];
    int64_t dim[OARI_JOB_DIMS]; /* the last varies fastest */
    int64_t count;              /* their product */
    int ndim;                   /* at least 1 */
    int numbers;                /* an oari_job_numbers */
    int kind, side;             /* of the family of functions */
    int add;                    /* to what array 0 holds */
    double number[2];
    /* Of float_arith.cu: 8, or 4 where all arrays are f32: elements that a
     * thread finds side by side; 0: one by one. */
    int packed;
    int all_halves; /* of all arrays that lie alike or are a row */
    int64_t width;  /* of a row, if an array is a row or a column: */
    int has_rows;
    uint32_t row_chunk, row_step; /* how far 128 elements, and a round of a
                                     block, lead along a row */
} oari_arith_job;

/* Quotients and powers of integers, which are not there for all. */
typedef struct oari_integer_job {
    oari_arith_job at;
    oari_index_check check;
} oari_integer_job;

/* Kinds of reductions besides those of oari_reduce_kind. */
enum { OARI_JOB_SPREAD = 100 /* the sum of squares of a - centre */ };

/* Many elements into one. Result i of `results` is made of `each` elements, of
 * which a thread or a block takes those of its segment; with several segments
 * the partial results go to `partial` [segments, results], 8 bytes each. */
typedef struct oari_reduce_job {
    oari_job_array to, a;        /* strides: of the kept dims */
    int64_t kept[OARI_JOB_DIMS]; /* sizes */
    int64_t over[OARI_JOB_DIMS]; /* sizes of the dims that go */
    int64_t over_stride[OARI_JOB_DIMS];
    int kept_dims, over_dims;
    int64_t results, each, segments;
    const double *centre; /* [results], of OARI_JOB_SPREAD */
    void *partial;
    int numbers, kind, add;
    double factor;
    /* Of the backward kernels: */
    oari_job_array grad, result;      /* strides: of the kept dims */
    int64_t to_stride[OARI_JOB_DIMS]; /* of `to`, of the dims that go */
} oari_reduce_job;

/* Lines along one dim: [before, at, after] of a row-major array. */
typedef struct oari_line_job {
    void *to;
    const void *a;
    const int64_t *index;
    int to_dtype, a_dtype;
    int64_t before, after;
    int64_t to_at, a_at, index_at; /* sizes along the dim */
    int64_t index_stride;
    int numbers, kind, add, from_end;
    /* Of gather and scatter: the dims of the index, the last fastest. */
    int64_t dim[OARI_JOB_DIMS], to_stride[OARI_JOB_DIMS],
        a_stride[OARI_JOB_DIMS], index_strides[OARI_JOB_DIMS];
    int ndim, along;
    int64_t lines;
} oari_line_job;

#endif
