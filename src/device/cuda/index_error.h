/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/index_error.h: indices, and divisors and exponents of integers,
 * that kernels check, since the host does not wait for them. The first kernel
 * of a device that meets a bad one writes it to a page of pinned memory; it is
 * the error of the next call that waits for that device
 * (oar_stream_synchronize, a copy to memory that is not pinned), or of the next
 * step of an optimizer, and is then forgotten. OARSONG_GPU_CHECK=1: operations
 * wait for their own check.
 *
 * For C and for CUDA's C++. */
#ifndef OARI_DEVICE_CUDA_INDEX_ERROR_H
#define OARI_DEVICE_CUDA_INDEX_ERROR_H

#include <stdint.h>

/* The operations that check; their names are in index_error.c. */
typedef enum oari_index_op {
    OARI_INDEX_EMBEDDING,
    OARI_INDEX_CROSS_ENTROPY,
    OARI_INDEX_SELECT,
    OARI_INDEX_GATHER,
    OARI_INDEX_SCATTER,
    OARI_INDEX_DIV, /* element `at` of the result is divided by 0 */
    OARI_INDEX_POW, /* or is a power whose exponent is `value` */
    OARI_INDEX_OPS
} oari_index_op;

/* What a kernel says: element `at` of the indices is `value`, but it has to be
 * from 0 to limit - 1. */
typedef struct oari_index_record {
    int64_t op, at, value, limit;
    uint32_t is_set; /* written last */
} oari_index_record;

/* A kernel's argument. */
typedef struct oari_index_check {
    unsigned *taken;           /* device memory; 0: the record is free */
    oari_index_record *record; /* pinned memory */
} oari_index_check;

#ifdef __cplusplus

static inline __device__ void oari_index_report(const oari_index_check &check,
                                                oari_index_op op, int64_t at,
                                                int64_t value, int64_t limit)
{
    volatile oari_index_record *record = check.record;

    if (atomicCAS(check.taken, 0u, 1u) != 0u)
        return;
    record->op = op;
    record->at = at;
    record->value = value;
    record->limit = limit;
    __threadfence_system();
    record->is_set = 1;
}

#else

#include <oarsong/status.h>

/* Gives what kernels on that device are given; the first call makes it. */
oar_status oari_index_check_of(int device, oari_index_check *check);

/* Returns OAR_E_ARG, with a text, if a kernel that has run has reported an
 * index, and lets the next one be reported. Costs nothing otherwise, also where
 * no kernel has ever checked. */
oar_status oari_index_error(int device);

/* Called by an operation that has started a kernel with a check: waits for the
 * stream and returns oari_index_error if OARSONG_GPU_CHECK is set. */
oar_status oari_index_checked(int device, void *stream);

#endif

#endif
