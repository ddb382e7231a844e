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
    case 16: move<uint4>(job); break;
    }
}

/* ---- turning ------------------------------------------------------------- */

enum {
    TURN_ROWS = OARI_CUDA_TURN_THREADS / 32,
    TILE = OARI_CUDA_TURN_TILE,
    PITCH = TILE + 1 /* so that columns are in different banks */
};

/* The last two dims are (i, j): i is without gaps in `from`, j in `to`. A block
 * reads a tile along i, and writes it along j. */
template <class T> DEVICE void turn(const oari_cuda_job &job, T *tile)
{
    const int d = job.ndim - 2, lane = (int)threadIdx.x % 32;
    const int64_t rows = job.dim[d], columns = job.dim[d + 1];
    const int64_t across = (columns + TILE - 1) / TILE;
    const int64_t down = (rows + TILE - 1) / TILE;
    const int64_t part = (int64_t)blockIdx.x / (across * down);
    const int64_t i0 = (int64_t)blockIdx.x / across % down * TILE;
    const int64_t j0 = (int64_t)blockIdx.x % across * TILE;
    T *to = (T *)job.data[0] + (d > 0 ? part * job.stride[0][0] : 0);
    const T *from =
        (const T *)job.data[1] + (d > 0 ? part * job.stride[1][0] : 0);

#pragma unroll
    for (int r = (int)threadIdx.x / 32; r < TILE; r += TURN_ROWS)
#pragma unroll
        for (int k = lane; k < TILE; k += 32)
            if (i0 + k < rows && j0 + r < columns)
                tile[r * PITCH + k] =
                    from[i0 + k + (j0 + r) * job.stride[1][d + 1]];
    __syncthreads();
#pragma unroll
    for (int r = (int)threadIdx.x / 32; r < TILE; r += TURN_ROWS)
#pragma unroll
        for (int k = lane; k < TILE; k += 32)
            if (i0 + r < rows && j0 + k < columns)
                to[(i0 + r) * job.stride[0][d] + j0 + k] = tile[k * PITCH + r];
}

extern "C" __global__ void oari_turn(oari_cuda_job job)
{
    __shared__ uint64_t tile[TILE * PITCH];

    switch (job.to) {
    case 1: turn<uint8_t>(job, (uint8_t *)tile); break;
    case 2: turn<uint16_t>(job, (uint16_t *)tile); break;
    case 4: turn<uint32_t>(job, (uint32_t *)tile); break;
    case 8: turn<uint64_t>(job, (uint64_t *)tile); break;
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

/* The pairs that training uses, without gaps: eight elements at once, as far as
 * there are eight, if both arrays are aligned. */
enum { EIGHT = 8 };

DEVICE uint16_t half_of(float x, int dtype)
{
    return dtype == OAR_F16 ? oari_f16_bits_from_f32(x)
                            : oari_bf16_bits_from_f32(x);
}

DEVICE float float_of(uint16_t x, int dtype)
{
    return dtype == OAR_F16 ? oari_f16_bits_to_f32(x)
                            : oari_bf16_bits_to_f32(x);
}

DEVICE void narrow_eight(const oari_cuda_job &job, uint64_t i)
{
    const uint4 *from = (const uint4 *)job.data[1] + 2 * i;
    uint4 low = from[0], high = from[1], made;
    float x[EIGHT];
    uint16_t y[EIGHT];

    memcpy(x, &low, sizeof low);
    memcpy(x + 4, &high, sizeof high);
    for (int k = 0; k < EIGHT; k++)
        y[k] = half_of(x[k], job.to);
    memcpy(&made, y, sizeof made);
    ((uint4 *)job.data[0])[i] = made;
}

DEVICE void widen_eight(const oari_cuda_job &job, uint64_t i)
{
    uint4 *to = (uint4 *)job.data[0] + 2 * i;
    uint4 from = ((const uint4 *)job.data[1])[i], low, high;
    uint16_t x[EIGHT];
    float y[EIGHT];

    memcpy(x, &from, sizeof from);
    for (int k = 0; k < EIGHT; k++)
        y[k] = float_of(x[k], job.from);
    memcpy(&low, y, sizeof low);
    memcpy(&high, y + 4, sizeof high);
    to[0] = low;
    to[1] = high;
}

extern "C" __global__ void oari_convert_half(oari_cuda_job job)
{
    const bool widens = job.to == OAR_F32;
    const bool aligned =
        ((uintptr_t)job.data[0] | (uintptr_t)job.data[1]) % 16 == 0;
    uint64_t first = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    uint64_t count = (uint64_t)job.count;
    uint64_t eights = aligned ? count / EIGHT : 0;

    for (uint64_t i = first; i < eights; i += step)
        if (widens)
            widen_eight(job, i);
        else
            narrow_eight(job, i);
    for (uint64_t i = eights * EIGHT + first; i < count; i += step)
        if (widens)
            ((float *)job.data[0])[i] =
                float_of(((const uint16_t *)job.data[1])[i], job.from);
        else
            ((uint16_t *)job.data[0])[i] =
                half_of(((const float *)job.data[1])[i], job.to);
}
