/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/order_job.h: the arguments of the kernels of order.cu, for C and
 * C++. */
#ifndef OARI_TENSOR_CUDA_ORDER_JOB_H
#define OARI_TENSOR_CUDA_ORDER_JOB_H

#include <stdint.h>

#include "device/cuda/index_error.h"

enum { OARI_ORDER_THREADS = 256, OARI_ORDER_DIMS = 8 };

/* Where the elements of rows come from in order: the first `keep` of each. */
typedef struct oari_order_job {
    const void *from;  /* [rows, width] */
    int64_t *to;       /* [rows, keep] */
    uint64_t *scratch; /* [rows, 4, width]: keys and places, twice */
    int64_t rows, width, keep;
    int dtype, bytes; /* bytes of an element */
    int is_float, is_signed, descending;
} oari_order_job;

/* A copy of an index, row by row, with 0 for what is not below limit. */
typedef struct oari_checked_job {
    const int64_t *from;
    int64_t *to;
    int64_t count, limit;
    int64_t dim[OARI_ORDER_DIMS], stride[OARI_ORDER_DIMS];
    int ndim, op; /* op: an oari_index_op */
    oari_index_check check;
} oari_checked_job;

#endif
