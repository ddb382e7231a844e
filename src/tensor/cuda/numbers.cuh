/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/numbers.cuh: how kernels read and write elements of any dtype,
 * and where those are. What a kernel computes in is float, double or int64_t;
 * which dtype is asked for each element, by a branch that all threads take. */
#ifndef OARI_TENSOR_CUDA_NUMBERS_CUH
#define OARI_TENSOR_CUDA_NUMBERS_CUH

#include "device/cuda/cuda_convert.h"
#include "tensor/cuda/arith_job.h"

template <class T> DEVICE T load_as(const void *from, int dtype, int64_t at);

template <>
inline __device__ float load_as<float>(const void *from, int dtype, int64_t at)
{
    const uint16_t *half = (const uint16_t *)from;

    return dtype == OAR_F32    ? ((const float *)from)[at]
           : dtype == OAR_BF16 ? oari_bf16_bits_to_f32(half[at])
           : dtype == OAR_F16  ? oari_f16_bits_to_f32(half[at])
                               : (float)((const double *)from)[at];
}

template <>
inline __device__ double load_as<double>(const void *from, int dtype,
                                         int64_t at)
{
    return dtype == OAR_F64 ? ((const double *)from)[at]
                            : (double)load_as<float>(from, dtype, at);
}

template <>
inline __device__ int64_t load_as<int64_t>(const void *from, int dtype,
                                           int64_t at)
{
    return load(from, dtype, at).i64;
}

DEVICE void store_as(void *to, int dtype, int64_t at, float x)
{
    switch (dtype) {
    case OAR_F32: ((float *)to)[at] = x; break;
    case OAR_BF16: ((uint16_t *)to)[at] = oari_bf16_bits_from_f32(x); break;
    case OAR_F16: ((uint16_t *)to)[at] = oari_f16_bits_from_f32(x); break;
    case OAR_F64: ((double *)to)[at] = x; break;
    }
}

DEVICE void store_as(void *to, int dtype, int64_t at, double x)
{
    if (dtype == OAR_F64)
        ((double *)to)[at] = x;
    else
        store(to, dtype, at, of_float(x));
}

DEVICE void store_as(void *to, int dtype, int64_t at, int64_t x)
{
    store(to, dtype, at, of_signed(x));
}

template <class T> DEVICE T get(const oari_job_array &a, int64_t at)
{
    return a.by_value ? load_as<T>(&a.value, a.dtype, 0)
                      : load_as<T>(a.data, a.dtype, at);
}

struct places {
    int64_t at[OARI_JOB_ARRAYS];
};

/* Of element i in the first `arrays` arrays. */
template <int arrays> DEVICE places place(const oari_arith_job &job, uint64_t i)
{
    places p = { { 0, 0, 0, 0 } };

#pragma unroll 1
    for (int d = job.ndim - 1; d > 0; d--) {
        uint64_t rows = i / (uint64_t)job.dim[d];
        int64_t rest = (int64_t)(i - rows * (uint64_t)job.dim[d]);

        for (int k = 0; k < arrays; k++)
            p.at[k] += rest * job.array[k].stride[d];
        i = rows;
    }
    for (int k = 0; k < arrays; k++)
        p.at[k] += (int64_t)i * job.array[k].stride[0];
    return p;
}

#define EACH(i, count_)                                                \
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, \
                  step_ = (uint64_t)gridDim.x * blockDim.x;            \
         i < (uint64_t)(count_); i += step_)

#endif
