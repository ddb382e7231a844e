/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/hash_job.h: the argument of the kernel of hash.cu, for C and C++.
 */
#ifndef OARI_TENSOR_CUDA_HASH_JOB_H
#define OARI_TENSOR_CUDA_HASH_JOB_H

#include <stdint.h>

enum { OARI_HASH_THREADS = 256, OARI_HASH_BLOCKS = 1024 };

/* Adds to *to a number that depends on each of `count` words of `bytes` bytes
 * (1, 2, 4 or 8) and its place, and on the seed. */
typedef struct oari_hash_job {
    const void *data;
    unsigned long long *to;
    uint64_t count, seed;
    int bytes;
} oari_hash_job;

#endif
