// SPDX-License-Identifier: Apache-2.0
/* hash: a number that tells arrays apart: the sum of a hash of each word and
 * its place. Integers are added, so that the order does not matter. */
#include "device/cuda/cuda_convert.h"
#include "tensor/cuda/hash_job.h"

enum { WARP = 32 };

/* splitmix64 */
DEVICE uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

DEVICE uint64_t word_at(const oari_hash_job &job, uint64_t i)
{
    return job.bytes == 8   ? ((const uint64_t *)job.data)[i]
           : job.bytes == 4 ? ((const uint32_t *)job.data)[i]
           : job.bytes == 2 ? ((const uint16_t *)job.data)[i]
                            : ((const uint8_t *)job.data)[i];
}

extern "C" __global__ void oari_hash_words(oari_hash_job job)
{
    uint64_t first = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x, sum = 0;

    for (uint64_t i = first; i < job.count; i += step)
        sum += mix(word_at(job, i) ^
                   mix(job.seed + (i + 1) * 0x9e3779b97f4a7c15u));
    for (int with = WARP / 2; with > 0; with /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, with);
    if (threadIdx.x % WARP == 0)
        atomicAdd(job.to, (unsigned long long)sum);
}
