// SPDX-License-Identifier: Apache-2.0
/* sums: sums of rows and of columns of f32, f16 and bf16, eight elements at
 * once, in f32; what several blocks have found is added up in f64. Which sums a
 * thread adds, and in which order, follows from the shape alone. */
#include "tensor/cuda/eights.cuh"
#include "tensor/cuda/sums_job.h"

enum { WARPS = OARI_SUMS_WARPS, AHEAD = 4 };

DEVICE float load_one(const void *from, int dtype, int64_t i)
{
    return dtype == OAR_F32    ? ((const float *)from)[i]
           : dtype == OAR_BF16 ? widen(bf16{ ((const uint16_t *)from)[i] })
                               : widen(f16{ ((const uint16_t *)from)[i] });
}

DEVICE void store_one(void *to, int dtype, int64_t i, float x)
{
    if (dtype == OAR_F32)
        ((float *)to)[i] = x;
    else if (dtype == OAR_BF16)
        narrow(x, (bf16 *)to + i);
    else
        narrow(x, (f16 *)to + i);
}

DEVICE void finish(const oari_sums_job &job, int64_t result, double sum)
{
    int64_t at = result * job.to_stride;
    float y = (float)(sum * job.factor);

    if (job.add)
        y += load_one(job.to, job.to_dtype, at);
    store_one(job.to, job.to_dtype, at, y);
}

DEVICE void give(const oari_sums_job &job, int64_t result, float sum)
{
    if (job.segments == 1)
        finish(job, result, (double)sum);
    else
        job.partial[(int64_t)blockIdx.y * job.results + result] = sum;
}

struct range {
    int64_t first, end;
};

DEVICE range segment_range(const oari_sums_job &job)
{
    int64_t first = (int64_t)blockIdx.y * job.share;
    int64_t end = first + job.share;

    return { first, end < job.each ? end : job.each };
}

/* Adds elements at, at + step, .. of `count` eights to sum[8], each place for
 * itself. */
DEVICE void add_eights(const oari_sums_job &job, int64_t at, int64_t step,
                       int64_t count, float *sum)
{
    for (; count >= AHEAD; count -= AHEAD, at += AHEAD * step) {
        raw8 r[AHEAD];

#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            r[i] =
                load_raw(job.a, job.a_dtype, at + i * step, at + i * step + 4);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            float x[EIGHT];

            widen_raw(r[i], job.a_dtype, x);
            for (int k = 0; k < EIGHT; k++)
                sum[k] += x[k];
        }
    }
    for (; count > 0; count--, at += step) {
        float x[EIGHT];

        load_eight(job.a, job.a_dtype, at, x);
        for (int k = 0; k < EIGHT; k++)
            sum[k] += x[k];
    }
}

/* Results are columns, 256 of a block; the rows of its segment go round its
 * warps, which are added up in their order. */
extern "C" __global__ void __launch_bounds__(WARPS *WARP)
    oari_sum_columns(const __grid_constant__ oari_sums_job job)
{
    __shared__ float part[WARPS][WARP * EIGHT];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t begin = (int64_t)blockIdx.x * WARP * EIGHT;
    int64_t column = begin + lane * EIGHT;
    range r = segment_range(job);
    float sum[EIGHT] = { 0, 0, 0, 0, 0, 0, 0, 0 }, total = 0;

    r.first += warp;
    if (column < job.results)
        add_eights(job, r.first * job.stride + column, WARPS * job.stride,
                   r.first < r.end ? (r.end - r.first + WARPS - 1) / WARPS : 0,
                   sum);
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
        part[warp][lane * EIGHT + k] = sum[k];
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        total += part[w][threadIdx.x];
    if (begin + threadIdx.x < job.results)
        give(job, begin + threadIdx.x, total);
}

DEVICE float sum_eight(const float *x)
{
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

/* Results are rows: of a warp, or, if by_block, of a block and segment. */
extern "C" __global__ void __launch_bounds__(WARPS *WARP)
    oari_sum_rows(const __grid_constant__ oari_sums_job job)
{
    __shared__ float room[MOST_WARPS];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t result =
        job.by_block ? blockIdx.x : (int64_t)blockIdx.x * WARPS + warp;
    int64_t me = job.by_block ? (int64_t)threadIdx.x : lane;
    int64_t group = job.by_block ? WARPS * WARP : WARP;
    range r = segment_range(job);
    float sum[EIGHT] = { 0, 0, 0, 0, 0, 0, 0, 0 }, total;

    r.first += me * EIGHT;
    if (result < job.results && r.first < r.end)
        add_eights(job, result * job.stride + r.first, group * EIGHT,
                   (r.end - r.first + group * EIGHT - 1) / (group * EIGHT),
                   sum);
    total = sum_eight(sum);
    total = job.by_block ? block_sum(total, room) : warp_sum(total);
    if (me == 0 && result < job.results)
        give(job, result, total);
}

/* Lane k of each warp has result k of the block's; segments go round the warps,
 * which are added up in their order. */
extern "C" __global__ void __launch_bounds__(WARPS *WARP)
    oari_sum_parts(const __grid_constant__ oari_sums_job job)
{
    __shared__ double part[WARPS][WARP];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t result = (int64_t)blockIdx.x * WARP + lane;
    double sum = 0;

    if (result < job.results) {
#pragma unroll 4
        for (int64_t s = warp; s < job.segments; s += WARPS)
            sum += (double)job.partial[s * job.results + result];
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || result >= job.results)
        return;
    for (int w = 1; w < WARPS; w++)
        sum += part[w][lane];
    finish(job, result, sum);
}
