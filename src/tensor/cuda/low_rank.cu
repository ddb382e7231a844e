// SPDX-License-Identifier: Apache-2.0
/* low_rank: the arithmetic of PowerSGD. Every sum has one order that depends on
 * the shape only, so ranks that have the same P and Q get the same bits. */
#include "tensor/cuda/element.cuh"
#include "tensor/cuda/low_rank_job.h"

enum { AT_ONCE = 4, ROWS_AT_ONCE = 8 }; /* columns of P, rows of M */

/* M += lost. A thread adds what it reads later. */
DEVICE void add_lost(const oari_low_rank_job &job, int64_t row, int lane)
{
    float *m = job.m + row * job.columns;
    const float *lost = job.lost + row * job.columns;

    for (int64_t k = lane; k < job.columns; k += WARP)
        m[k] += lost[k];
}

/* A warp takes a row of M. */
extern "C" __global__ void oari_low_rank_project(oari_low_rank_job job)
{
    int warps = (int)blockDim.x / WARP, lane = (int)threadIdx.x % WARP;
    int64_t first = (int64_t)blockIdx.x * warps + threadIdx.x / WARP;

    for (int64_t row = first; row < job.rows;
         row += (int64_t)gridDim.x * warps) {
        const float *m = job.m + row * job.columns;

        if (job.lost != NULL)
            add_lost(job, row, lane);
        for (int c = 0; c < job.rank; c += AT_ONCE) {
            float sum[AT_ONCE] = { 0, 0, 0, 0 };

            for (int64_t k = lane; k < job.columns; k += WARP)
#pragma unroll
                for (int n = 0; n < AT_ONCE; n++)
                    if (c + n < job.rank)
                        sum[n] += m[k] * job.q[(c + n) * job.columns + k];
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) {
                sum[n] = warp_sum(sum[n]);
                if (lane == 0 && c + n < job.rank)
                    job.p[(c + n) * job.rows + row] = sum[n];
            }
        }
    }
}

/* ---- Gram-Schmidt, by one block ------------------------------------------ */

DEVICE float block_dot(const float *a, const float *b, int64_t n, float *room)
{
    float sum = 0;

    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += a[i] * b[i];
    return block_sum(sum, room);
}

/* A thread has the same rows of all columns. */
extern "C" __global__ void oari_low_rank_orthonormal(oari_low_rank_job job)
{
    __shared__ float room[MOST_WARPS];

    for (int c = 0; c < job.rank; c++) {
        float *column = job.p + c * job.rows, length;

        for (int j = 0; j < c; j++) {
            const float *other = job.p + j * job.rows;
            float along = block_dot(other, column, job.rows, room);

            for (int64_t i = threadIdx.x; i < job.rows; i += blockDim.x)
                column[i] -= along * other[i];
        }
        length = sqrtf(block_dot(column, column, job.rows, room));
        for (int64_t i = threadIdx.x; i < job.rows; i += blockDim.x)
            column[i] = length > 1e-30f ? column[i] / length : 0;
    }
}

/* ---- Q ------------------------------------------------------------------- */

/* A block has 32 columns of M; each group of its rows has a warp, and the sums
 * of the groups are added in their order. */
extern "C" __global__ void oari_low_rank_columns(oari_low_rank_job job)
{
    __shared__ float room[OARI_LOW_RANK_GROUPS][WARP];
    int lane = (int)threadIdx.x % WARP, group = (int)threadIdx.x / WARP;
    int64_t k = (int64_t)blockIdx.x * OARI_LOW_RANK_COLUMNS + lane;

    for (int c = 0; c < job.rank; c += AT_ONCE) {
        float sum[AT_ONCE] = { 0, 0, 0, 0 };

        if (k < job.columns)
#pragma unroll ROWS_AT_ONCE
            for (int64_t r = group; r < job.rows; r += OARI_LOW_RANK_GROUPS) {
                float m = job.m[r * job.columns + k];

#pragma unroll
                for (int n = 0; n < AT_ONCE; n++)
                    if (c + n < job.rank)
                        sum[n] += m * job.p[(c + n) * job.rows + r];
            }
        for (int n = 0; n < AT_ONCE && c + n < job.rank; n++) {
            room[group][lane] = sum[n];
            __syncthreads();
            if (group == 0 && k < job.columns) {
                float all = 0;

                for (int g = 0; g < OARI_LOW_RANK_GROUPS; g++)
                    all += room[g][lane];
                job.q[(c + n) * job.columns + k] = all;
            }
            __syncthreads();
        }
    }
}

/* ---- back ---------------------------------------------------------------- */

extern "C" __global__ void oari_low_rank_rebuild(oari_low_rank_job job)
{
    uint64_t count = (uint64_t)(job.rows * job.columns);
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
         i < count; i += step) {
        int64_t row = (int64_t)(i / (uint64_t)job.columns);
        int64_t k = (int64_t)(i % (uint64_t)job.columns);
        float made = 0;

        for (int c = 0; c < job.rank; c++)
            made += job.q[c * job.columns + k] * job.p[c * job.rows + row];
        if (job.lost != NULL)
            job.lost[i] = job.m[i] - made;
        job.m[i] = made;
    }
}
