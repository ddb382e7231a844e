// SPDX-License-Identifier: Apache-2.0
/* sums: sums of rows and of columns of f32, f16 and bf16, eight elements at
 * once, in f32; what several blocks have found is added up in f64. Which sums a
 * thread adds, and in which order, follows from the shape alone. */
#include "tensor/cuda/eights.cuh"
#include "tensor/cuda/sums_job.h"

enum { WARPS = OARI_SUMS_WARPS, PART_WARPS = OARI_SUMS_PART_WARPS };

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

DEVICE void add_eight(const raw8 &r, int dtype, float *sum)
{
    float x[EIGHT];

    widen_raw(r, dtype, x);
    for (int k = 0; k < EIGHT; k++)
        sum[k] += x[k];
}

/* Adds elements at, at + step, .. of `count` eights to sum[8], each place for
 * itself. Several are read at a time. */
template <bool halves>
DEVICE void add_eights(const oari_sums_job &job, int64_t at, int64_t step,
                       int64_t count, float *sum)
{
    const int AHEAD = 4;
    const int dtype = !halves                   ? OAR_F32
                      : job.a_dtype == OAR_BF16 ? OAR_BF16
                                                : OAR_F16;

    for (; count >= AHEAD; count -= AHEAD, at += AHEAD * step) {
        raw8 r[AHEAD];

#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            r[i] = load_raw(job.a, dtype, at + i * step, at + i * step + 4);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            add_eight(r[i], dtype, sum);
    }
    if (count > 0) { /* the rest, at once too */
        raw8 r[AHEAD - 1] = {};

#pragma unroll
        for (int i = 0; i < AHEAD - 1; i++)
            if (i < count)
                r[i] = load_raw(job.a, dtype, at + i * step, at + i * step + 4);
#pragma unroll
        for (int i = 0; i < AHEAD - 1; i++)
            add_eight(r[i], dtype, sum);
    }
}

/* Results are columns, 256 of a block; the rows of its segment go round its
 * warps, which are added up in their order. */
template <bool halves> DEVICE void sum_columns(const oari_sums_job &job)
{
    __shared__ float part[WARPS][WARP * EIGHT];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t begin = (int64_t)blockIdx.x * WARP * EIGHT;
    int64_t column = begin + lane * EIGHT;
    range r = segment_range(job);
    float sum[EIGHT] = { 0, 0, 0, 0, 0, 0, 0, 0 }, total = 0;

    r.first += warp;
    if (column < job.results && r.first < r.end)
        add_eights<halves>(job, r.first * job.stride + column,
                           WARPS * job.stride,
                           (r.end - r.first + WARPS - 1) / WARPS, sum);
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

/* Results are short rows, two of a warp, which are read at once. */
template <bool halves> DEVICE void sum_two_rows(const oari_sums_job &job)
{
    const int dtype = !halves                   ? OAR_F32
                      : job.a_dtype == OAR_BF16 ? OAR_BF16
                                                : OAR_F16;
    const int64_t lane = threadIdx.x % WARP;
    const int64_t first =
        2 * ((int64_t)blockIdx.x * WARPS + (int64_t)(threadIdx.x / WARP));
    raw8 r[2][OARI_SUMS_SHORT];
    float total[2] = { 0, 0 };

#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < OARI_SUMS_SHORT; i++) {
            const int64_t at = (i * WARP + lane) * EIGHT;
            const int64_t from = (first + n) * job.stride + at;

            r[n][i] = raw8{ { 0, 0, 0, 0 }, { 0, 0, 0, 0 } };
            if (first + n < job.results && at < job.each)
                r[n][i] = load_raw(job.a, dtype, from, from + 4);
        }
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < OARI_SUMS_SHORT; i++) {
            float x[EIGHT];

            if (i * WARP * EIGHT < job.each) {
                widen_raw(r[n][i], dtype, x);
                total[n] += sum_eight(x);
            }
        }
    warp_sums(total);
    if (lane < 2 && first + lane < job.results)
        give(job, first + lane, lane == 0 ? total[0] : total[1]);
}

/* Results are rows of a block and segment. */
template <bool halves> DEVICE void sum_rows(const oari_sums_job &job)
{
    __shared__ float room[MOST_WARPS];
    const int64_t group = WARPS * WARP;
    range r = segment_range(job);
    float sum[EIGHT] = { 0, 0, 0, 0, 0, 0, 0, 0 }, total;

    if (!job.by_block) {
        sum_two_rows<halves>(job);
        return;
    }
    r.first += (int64_t)threadIdx.x * EIGHT;
    if (r.first < r.end)
        add_eights<halves>(
            job, blockIdx.x * job.stride + r.first, group * EIGHT,
            (r.end - r.first + group * EIGHT - 1) / (group * EIGHT), sum);
    total = block_sum(sum_eight(sum), room);
    if (threadIdx.x == 0)
        give(job, blockIdx.x, total);
}

#define KERNEL(name, function)                                 \
    extern "C" __global__ void __launch_bounds__(WARPS *WARP)  \
        oari_##name(const __grid_constant__ oari_sums_job job) \
    {                                                          \
        function(job);                                         \
    }
KERNEL(sum_columns_f32, sum_columns<false>)
KERNEL(sum_columns_half, sum_columns<true>)
KERNEL(sum_rows_f32, sum_rows<false>)
KERNEL(sum_rows_half, sum_rows<true>)

/* Lane k of each warp has result k of the block's; segments go round the warps,
 * which are added up in their order. */
extern "C" __global__ void __launch_bounds__(PART_WARPS *WARP)
    oari_sum_parts(const __grid_constant__ oari_sums_job job)
{
    const int AHEAD = 8;
    __shared__ double part[PART_WARPS][WARP];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t result = (int64_t)blockIdx.x * WARP + lane;
    double sum = 0;

    if (result < job.results) {
        for (int64_t s = warp; s < job.segments; s += AHEAD * PART_WARPS) {
            float x[AHEAD];

#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                x[i] = s + i * PART_WARPS < job.segments
                           ? job.partial[(s + i * PART_WARPS) * job.results +
                                         result]
                           : 0.0f;
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                sum += (double)x[i];
        }
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || result >= job.results)
        return;
    for (int w = 1; w < PART_WARPS; w++)
        sum += part[w][lane];
    finish(job, result, sum);
}
