// SPDX-License-Identifier: Apache-2.0
/* attention_rows_sm90a: what comes before and after attention_back_sm90a.cu:
 * sums over rows, and dq from its sums. */
#include "tensor/cuda/attention_90.cuh"

enum { KEYS = OARI_BACK_90_KEYS, QUERIES = OARI_BACK_90_QUERIES };

/* The sum of the products of 8 halves. */
template <class T> OARI_DEVICE float multiply(const uint4 &x, const uint4 &y)
{
    const uint32_t *p = &x.x, *q = &y.x;
    float sum = 0;

#pragma unroll
    for (int k = 0; k < 4; k++)
        sum +=
            oari_widen((uint16_t)p[k], T()) * oari_widen((uint16_t)q[k], T()) +
            oari_widen((uint16_t)(p[k] >> 16), T()) *
                oari_widen((uint16_t)(q[k] >> 16), T());
    return sum;
}

/* For each tile of queries its lse, for powers of 2, and each row's sum of the
 * result times its gradient. Rows that are none have no probability. */
template <class T, int width>
OARI_DEVICE void sum_rows(const oari_cuda_attention &a)
{
    enum { SHARES = width / 16 }; /* threads of a row */
    const int padded = (int)a.tiles * QUERIES;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t row = i / SHARES, rows = (int64_t)a.outer * a.heads * padded;
    int head = (int)(row % a.heads), at = (int)(row / a.heads % padded);
    int outer = (int)(row / a.heads / padded), share = (int)(i % SHARES);
    float sum = 0;

    if (row < rows && at < a.t) {
        const uint4 *x =
            (const uint4 *)(head_of(a.out, outer, head) + at * a.out.row) +
            share;
        const uint4 *y = (const uint4 *)(head_of(a.result, outer, head) +
                                         at * a.result.row) +
                         share;
        uint4 x0 = x[0], x1 = x[SHARES], y0 = y[0], y1 = y[SHARES];

        sum = multiply<T>(x0, y0) + multiply<T>(x1, y1);
    }
#pragma unroll
    for (int k = SHARES / 2; k > 0; k /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, k);
    if (row < rows && share == 0) {
        float *to = (float *)a.delta +
                    tile_number(a, outer, head, at / QUERIES) * 2 * QUERIES +
                    at % QUERIES;
        int64_t from = ((int64_t)outer * a.heads + head) * a.t + at;

        to[0] = at < a.t ? ((const float *)a.lse)[from] * LOG2_E : INFINITY;
        to[QUERIES] = sum;
    }
}

/* dq of a tile = the sums of all parts, in their order. The tiles that were
 * computed last come first: they may still be in the cache. */
template <class T, int width>
OARI_DEVICE void add_parts(const oari_cuda_attention &a)
{
    enum { NUMBERS = width / 16, PITCH = width / 2 + 4, CHUNKS = width / 8 };
    __shared__ uint32_t rows[QUERIES][PITCH];
    const unsigned number = gridDim.x - 1 - blockIdx.x;
    const int tile = (int)(number % (unsigned)a.tiles);
    const int which = (int)(number / (unsigned)a.tiles);
    const int outer = which / a.heads, head = which % a.heads;
    const int lane = (int)threadIdx.x & 31, group = (int)threadIdx.x >> 7;
    const int row = ((int)threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
    float4 dq[NUMBERS] = {};

    for (int part = 0; part < a.parts; part++) {
        const float4 *from =
            (const float4 *)sums_at<width>(a, part, outer, head, tile) +
            group * (NUMBERS * 128) + (threadIdx.x & 127);

        if (part * KEYS >= a.s || (a.causal && first_tile(a, part) > tile))
            break;
#pragma unroll
        for (int n = 0; n < NUMBERS; n++) {
            float4 more = __ldcs(from + n * 128);

            dq[n].x += more.x;
            dq[n].y += more.y;
            dq[n].z += more.z;
            dq[n].w += more.w;
        }
    }
#pragma unroll
    for (int n = 0; n < NUMBERS; n++) {
        const float scale = (float)a.scale;
        int at = (group * NUMBERS + n) * 4 + (lane & 3);

        rows[row][at] = oari_pack(dq[n].x * scale, dq[n].y * scale, T());
        rows[row + 8][at] = oari_pack(dq[n].z * scale, dq[n].w * scale, T());
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < QUERIES * CHUNKS / 256; i++) {
        int r = (int)(threadIdx.x + i * 256) / CHUNKS;
        int c = (int)(threadIdx.x + i * 256) % CHUNKS;
        uint4 *to = (uint4 *)(head_of(a.dq, outer, head) +
                              (int64_t)(tile * QUERIES + r) * a.dq.row) +
                    c;
        uint4 made = *(const uint4 *)&rows[r][c * 4];

        if (tile * QUERIES + r < a.t)
            *to = a.add_q ? add_halves<T>(*to, made) : made;
    }
}

/* ---- kernels ------------------------------------------------------------- */

#define KERNELS(half, width)                                         \
    extern "C" __global__ void oari_attend_rows_90_##half##_##width( \
        const __grid_constant__ oari_cuda_attention_90 job)          \
    {                                                                \
        sum_rows<oari_##half, width>(job.a);                         \
    }                                                                \
    extern "C" __global__ void __launch_bounds__(256)                \
        oari_attend_parts_90_##half##_##width(                       \
            const __grid_constant__ oari_cuda_attention_90 job)      \
    {                                                                \
        add_parts<oari_##half, width>(job.a);                        \
    }

KERNELS(bf16, 64)
KERNELS(bf16, 128)
KERNELS(f16, 64)
KERNELS(f16, 128)
