// SPDX-License-Identifier: Apache-2.0
/* elementwise: copies and conversions on a GPU, with the same bits as on the
 * host. Every kernel takes one job and goes through its elements in strides of
 * the grid. */
#include "device/cuda/cuda_convert.h"
#include "device/cuda/cuda_elementwise_job.h"

/* ---- where elements are -------------------------------------------------- */

struct places {
    int64_t at[OARI_CUDA_ARRAYS];
};

/* Of element i in the first `arrays` arrays. */
template <int arrays> DEVICE places place(const oari_cuda_job &job, uint64_t i)
{
    places p = { { 0, 0 } };

#pragma unroll 1
    for (int d = job.ndim - 1; d > 0; d--) {
        uint64_t rows = i / (uint64_t)job.dim[d];
        int64_t rest = (int64_t)(i - rows * (uint64_t)job.dim[d]);

        for (int k = 0; k < arrays; k++)
            p.at[k] += rest * job.stride[k][d];
        i = rows;
    }
    for (int k = 0; k < arrays; k++)
        p.at[k] += (int64_t)i * job.stride[k][0];
    return p;
}

#define EACH(i, job)                                                   \
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, \
                  step = (uint64_t)gridDim.x * blockDim.x;             \
         i < (uint64_t)(job).count; i += step)

/* ---- moving -------------------------------------------------------------- */

template <class T> DEVICE void move(const oari_cuda_job &job)
{
    T *to = (T *)job.data[0];
    const T *from = (const T *)job.data[1];

    EACH(i, job) {
        places p = place<2>(job, i);

        to[p.at[0]] = from[p.at[1]];
    }
}

extern "C" __global__ void oari_move(oari_cuda_job job)
{
    switch (job.to) {
    case 1: move<uint8_t>(job); break;
    case 2: move<uint16_t>(job); break;
    case 4: move<uint32_t>(job); break;
    case 8: move<uint64_t>(job); break;
    }
}

/* ---- converting ---------------------------------------------------------- */

extern "C" __global__ void oari_convert_any(oari_cuda_job job)
{
    EACH(i, job) {
        places p = place<2>(job, i);

        store(job.data[0], job.to, p.at[0],
              load(job.data[1], job.from, p.at[1]));
    }
}

/* The pairs that training uses, without gaps. */
#define LOOP(to_type, from_type, expression)                     \
    EACH(i, job) {                                               \
        const from_type x = ((const from_type *)job.data[1])[i]; \
        ((to_type *)job.data[0])[i] = (expression);              \
    }

extern "C" __global__ void oari_convert_half(oari_cuda_job job)
{
    if (job.to == OAR_F16)
        LOOP(uint16_t, float, oari_f16_bits_from_f32(x))
    else if (job.to == OAR_BF16)
        LOOP(uint16_t, float, oari_bf16_bits_from_f32(x))
    else if (job.from == OAR_F16)
        LOOP(float, uint16_t, oari_f16_bits_to_f32(x))
    else if (job.from == OAR_BF16)
        LOOP(float, uint16_t, oari_bf16_bits_to_f32(x))
}
