/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_hash: starts the kernel of hash.cu. This file has no state. */
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/cuda_start.h"
#include "tensor/cuda/hash_job.h"

oar_status oari_cuda_hash_add(const oari_array *to, const oari_array *a,
                              uint64_t seed)
{
    static oari_cuda_kernel_ref hash = { .file = "hash",
                                         .name = "oari_hash_words" };
    uint64_t bytes =
        (uint64_t)oari_shape_count(a->at.shape) * oar_dtype_size(a->dtype);
    uintptr_t odd = (uintptr_t)oari_array_data(a) | (uintptr_t)bytes | 8;
    oari_hash_job job = { .data = oari_array_data(a),
                          .to = oari_array_data(to),
                          .bytes = (int)(odd & (0 - odd)),
                          .seed = seed };
    int64_t blocks;

    job.count = bytes / (uint64_t)job.bytes;
    blocks = oari_blocks_for((int64_t)job.count, OARI_HASH_THREADS);
    return oari_start_one(&hash, to,
                          blocks < OARI_HASH_BLOCKS ? blocks : OARI_HASH_BLOCKS,
                          OARI_HASH_THREADS, 0, &job);
}
