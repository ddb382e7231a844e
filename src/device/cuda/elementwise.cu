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

/* The same where both arrays, and all lines of them, are aligned to 16 bytes. A
 * thread turns a square of V rows and columns in its registers: a warp reads
 * lines of 128 bytes. The packs go through shared memory, where a place is mixed
 * with its row so that neither side meets a bank twice, and are written in lines
 * of 512 bytes. */
template <class T> DEVICE void turn_packs(const oari_cuda_job &job, uint4 *tile)
{
    const int V = 16 / sizeof(T), d = job.ndim - 2;
    const int DOWN = OARI_CUDA_TURN_DOWN, ACROSS = OARI_CUDA_TURN_ACROSS;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int down = lane % DOWN, across = warp * (32 / DOWN) + lane / DOWN;
    const int64_t rows = job.dim[d], columns = job.dim[d + 1];
    const int64_t high = (rows + DOWN * V - 1) / (DOWN * V);
    const int64_t wide = (columns + ACROSS * V - 1) / (ACROSS * V);
    const int64_t part = (int64_t)blockIdx.x / (wide * high);
    const int64_t i0 = (int64_t)blockIdx.x % high * DOWN * V;
    const int64_t j0 = (int64_t)blockIdx.x / high % wide * ACROSS * V;
    const int64_t i = i0 + down * V, j = j0 + across * V;
    T *to = (T *)job.data[0] + (d > 0 ? part * job.stride[0][0] : 0);
    const T *from =
        (const T *)job.data[1] + (d > 0 ? part * job.stride[1][0] : 0);
    uint4 raw[V] = {};
    T x[V][V], y[V];

    if (i < rows && j < columns) {
#pragma unroll
        for (int k = 0; k < V; k++)
            raw[k] =
                *(const uint4 *)(from + (j + k) * job.stride[1][d + 1] + i);
    }
#pragma unroll
    for (int k = 0; k < V; k++)
        memcpy(x[k], &raw[k], sizeof raw[k]);
#pragma unroll
    for (int k = 0; k < V; k++) {
#pragma unroll
        for (int n = 0; n < V; n++)
            y[n] = x[n][k];
        memcpy(&raw[0], y, sizeof y);
        tile[(down * V + k) * ACROSS + (across ^ down)] = raw[0];
    }
    __syncthreads();
    if (j0 + lane * V >= columns)
        return;
#pragma unroll
    for (int r = warp; r < DOWN * V; r += TURN_ROWS)
        if (i0 + r < rows)
            *(uint4 *)(to + (i0 + r) * job.stride[0][d] + j0 + lane * V) =
                tile[r * ACROSS + (lane ^ (r / V))];
}

extern "C" __global__ void __launch_bounds__(OARI_CUDA_TURN_THREADS)
    oari_turn_packs(oari_cuda_job job)
{
    __shared__ uint4 tile[OARI_CUDA_TURN_DOWN * 8 * OARI_CUDA_TURN_ACROSS];

    switch (job.to) {
    case 2: turn_packs<uint16_t>(job, tile); break;
    case 4: turn_packs<uint32_t>(job, tile); break;
    case 8: turn_packs<uint64_t>(job, tile); break;
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

/* The pairs that training uses, without gaps: if both arrays are aligned, four
 * elements at once as far as there are four, and several fours a thread, so that
 * a warp reads and writes lines without gaps. */
enum { FOUR = 4, FOURS = OARI_CUDA_CONVERT_FOURS };

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

/* Fours i, i + apart, .. of `count`. */
DEVICE void narrow_fours(const oari_cuda_job &job, uint64_t i, uint64_t apart,
                         uint64_t count)
{
    uint4 from[FOURS];

#pragma unroll
    for (int n = 0; n < FOURS; n++)
        if (i + n * apart < count)
            from[n] = ((const uint4 *)job.data[1])[i + n * apart];
#pragma unroll
    for (int n = 0; n < FOURS; n++) {
        float x[FOUR];
        uint16_t y[FOUR];
        uint2 made;

        if (i + n * apart >= count)
            continue;
        memcpy(x, &from[n], sizeof x);
        for (int k = 0; k < FOUR; k++)
            y[k] = half_of(x[k], job.to);
        memcpy(&made, y, sizeof made);
        ((uint2 *)job.data[0])[i + n * apart] = made;
    }
}

DEVICE void widen_fours(const oari_cuda_job &job, uint64_t i, uint64_t apart,
                        uint64_t count)
{
    uint2 from[FOURS];

#pragma unroll
    for (int n = 0; n < FOURS; n++)
        if (i + n * apart < count)
            from[n] = ((const uint2 *)job.data[1])[i + n * apart];
#pragma unroll
    for (int n = 0; n < FOURS; n++) {
        uint16_t x[FOUR];
        float y[FOUR];
        uint4 made;

        if (i + n * apart >= count)
            continue;
        memcpy(x, &from[n], sizeof x);
        for (int k = 0; k < FOUR; k++)
            y[k] = float_of(x[k], job.from);
        memcpy(&made, y, sizeof made);
        ((uint4 *)job.data[0])[i + n * apart] = made;
    }
}

extern "C" __global__ void oari_convert_half(oari_cuda_job job)
{
    const bool widens = job.to == OAR_F32;
    const bool aligned =
        ((uintptr_t)job.data[0] | (uintptr_t)job.data[1]) % 16 == 0;
    uint64_t apart = blockDim.x;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    uint64_t count = (uint64_t)job.count;
    uint64_t fours = aligned ? count / FOUR : 0;

    for (uint64_t i = (uint64_t)blockIdx.x * FOURS * apart + threadIdx.x;
         i < fours; i += FOURS * step)
        if (widens)
            widen_fours(job, i, apart, fours);
        else
            narrow_fours(job, i, apart, fours);
    for (uint64_t i = fours * FOUR + blockIdx.x * apart + threadIdx.x;
         i < count; i += step)
        if (widens)
            ((float *)job.data[0])[i] =
                float_of(((const uint16_t *)job.data[1])[i], job.from);
        else
            ((uint16_t *)job.data[0])[i] =
                half_of(((const float *)job.data[1])[i], job.to);
}
