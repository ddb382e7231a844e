// SPDX-License-Identifier: Apache-2.0
/* product_mma: products of matrices of halves by mma.sync, where there is no
 * cuBLASLt. A block of eight warps makes 128 x 128 numbers, 32 steps of k at a
 * time through three stages of shared memory. A side whose k has gaps is kept
 * as it lies and turned when it is read. */
#include "device/cuda/cuda_block.h"
#include "tensor/cuda/mma.h"
#include "tensor/cuda/product_value.h"

enum {
    TILE = OARI_PRODUCT_TILE,
    DEPTH = 32,
    STAGES = 3,
    THREADS = 256,
    LEAD = TILE + 4 /* of results in shared memory */
};

/* Where 8 halves lie in a tile: rows of 32 along k, or of 128 across. */
OARI_DEVICE int place_along(int row, int chunk)
{
    return row * DEPTH + ((chunk ^ (row >> 1 & 3)) << 3);
}
OARI_DEVICE int place_across(int row, int chunk)
{
    return row * TILE + ((chunk ^ (row & 7)) << 3);
}

/* How one thread loads its two parts of the tiles of a side: 8 halves each,
 * the second one `step` further. */
struct loader {
    const uint16_t *from; /* of the first tile; moves along k */
    int64_t step, next;   /* between parts, between tiles */
    int place[2];
    int bytes[2]; /* that are there across; 0: none */
    int along;    /* the part's first step of k in its tile */
    int turned, aligned;
};

OARI_DEVICE int bytes_left(int64_t left)
{
    return left >= 8 ? 16 : left > 0 ? (int)left * 2 : 0;
}

/* For tiles from row `first` on, of `rows` in all. */
OARI_DEVICE loader make_loader(const oari_cuda_side &s, int64_t first,
                               int64_t rows)
{
    const int i = (int)threadIdx.x;
    loader l;

    l.turned = s.turned;
    l.aligned = s.aligned;
    l.next = DEPTH * s.along;
    if (s.turned) {
        l.along = i / 16;
        l.step = 16 * s.along;
        l.from =
            (const uint16_t *)s.data + l.along * s.along + first + i % 16 * 8;
        for (int n = 0; n < 2; n++) {
            l.place[n] = place_across(i / 16 + n * 16, i % 16);
            l.bytes[n] = bytes_left(rows - first - i % 16 * 8);
        }
    } else {
        l.along = i % 4 * 8;
        l.step = 64 * s.across;
        l.from = (const uint16_t *)s.data + (first + i / 4) * s.across +
                 l.along * s.along;
        for (int n = 0; n < 2; n++) {
            l.place[n] = place_along(i / 4 + n * 64, i % 4);
            l.bytes[n] = first + i / 4 + n * 64 < rows ? 16 : 0;
        }
    }
    return l;
}

/* Loads 8 halves along k, of which `left` are there, one by one. */
OARI_DEVICE void load_single(uint16_t *to, const uint16_t *from, int64_t along,
                             int left)
{
    uint32_t word[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        word[i] = 2 * i < left ? from[2 * i * along] : 0;
        if (2 * i + 1 < left)
            word[i] |= (uint32_t)from[(2 * i + 1) * along] << 16;
    }
    *(uint4 *)to = make_uint4(word[0], word[1], word[2], word[3]);
}

/* Begins to load a tile; left: steps of k from its first on. at: of the sum. */
OARI_DEVICE void load_tile(uint16_t *tile, const loader &l,
                           const oari_cuda_side &s, int64_t at, int left)
{
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const uint16_t *from = l.from + at + n * l.step;

        if (l.turned) {
            int bytes = l.along + n * 16 < left ? l.bytes[n] : 0;

            oari_copy_16(tile + l.place[n],
                         bytes > 0 ? from : (const uint16_t *)s.data, bytes);
        } else {
            int bytes = l.bytes[n] > 0 ? bytes_left(left - l.along) : 0;

            if (l.aligned)
                oari_copy_16(tile + l.place[n],
                             bytes > 0 ? from : (const uint16_t *)s.data,
                             bytes);
            else
                load_single(tile + l.place[n], from, s.along, bytes / 2);
        }
    }
}

/* c [64, 32] of this warp += 32 steps of k. */
template <class T, bool a_turned, bool b_turned>
OARI_DEVICE void multiply_tile(float (*c)[4][4], const uint16_t *a,
                               const uint16_t *b)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    const int row = (warp >> 2) * 64, column = (warp & 3) * 32;
    const int low = lane & 15, high = lane >> 4;
    const int odd = (lane & 7) + (lane >> 4 << 3), next = lane >> 3 & 1;

#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        uint32_t x[4][4], y[2][4];

#pragma unroll
        for (int m = 0; m < 4; m++)
            if (a_turned)
                oari_load_4_turned(
                    x[m], a + place_across(k + odd, row / 8 + m * 2 + next));
            else
                oari_load_4(x[m],
                            a + place_along(row + m * 16 + low, k / 8 + high));
#pragma unroll
        for (int n = 0; n < 2; n++)
            if (b_turned)
                oari_load_4_turned(
                    y[n], b + place_across(k + low, column / 8 + n * 2 + high));
            else
                oari_load_4(
                    y[n], b + place_along(column + n * 16 + odd, k / 8 + next));
#pragma unroll
        for (int m = 0; m < 4; m++)
#pragma unroll
            for (int n = 0; n < 4; n++)
                oari_mma(c[m][n], x[m], y[n / 2][n % 2 * 2],
                         y[n / 2][n % 2 * 2 + 1], T());
    }
}

/* Puts this warp's part of 64 rows of results into shared memory. */
OARI_DEVICE void keep_numbers(float *to, const float (*c)[4][4])
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;

    to += (lane >> 2) * LEAD + (warp & 3) * 32 + (lane & 3) * 2;
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                to[(m * 16 + (i >> 1) * 8) * LEAD + n * 8 + (i & 1)] =
                    c[m][n][i];
}

/* Where the next tile of both sides comes from. */
struct tile_place {
    int64_t sum, a, b; /* of the sum, and where it is in a and b */
    int k;
};

/* Begins to load the next tile, if there is one. */
OARI_DEVICE void load_next(const oari_cuda_product &p, const loader &a,
                           const loader &b, int64_t first_a, int64_t first_b,
                           tile_place &at, uint16_t *stage)
{
    if (at.sum < p.sums) {
        load_tile(stage, a, p.a, at.a, (int)p.k - at.k);
        load_tile(stage + TILE * DEPTH, b, p.b, at.b, (int)p.k - at.k);
        at.a += a.next;
        at.b += b.next;
        at.k += DEPTH;
        if (at.k >= (int)p.k) {
            at.k = 0;
            at.sum++;
            at.a = first_a + place_sum(p, p.a.sum, at.sum);
            at.b = first_b + place_sum(p, p.b.sum, at.sum);
        }
    }
    oari_copy_commit();
}

template <class T>
OARI_DEVICE void multiply(const oari_cuda_product &p, uint16_t *shared,
                          int64_t batch)
{
    enum { STAGE = 2 * TILE * DEPTH };
    const int warp = (int)threadIdx.x >> 5;
    const block_place at = place_block(p, TILE);
    const int64_t all = (p.k + DEPTH - 1) / DEPTH * p.sums;
    const int64_t first_a = place_batch(p, p.a.batch, batch);
    const int64_t first_b = place_batch(p, p.b.batch, batch);
    const loader a = make_loader(p.a, at.row, p.m);
    const loader b = make_loader(p.b, at.column, p.n);
    tile_place next = { 0, first_a, first_b, 0 };
    float c[4][4][4] = {};
    int stage = 0, fill = STAGES - 1;

#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        load_next(p, a, b, first_a, first_b, next, shared + i * STAGE);
    for (int64_t i = 0; i < all; i++) {
        const uint16_t *from = shared + stage * STAGE;

        oari_copy_wait<STAGES - 2>();
        __syncthreads();
        load_next(p, a, b, first_a, first_b, next, shared + fill * STAGE);
        if (p.a.turned && p.b.turned)
            multiply_tile<T, true, true>(c, from, from + TILE * DEPTH);
        else if (p.a.turned)
            multiply_tile<T, true, false>(c, from, from + TILE * DEPTH);
        else if (p.b.turned)
            multiply_tile<T, false, true>(c, from, from + TILE * DEPTH);
        else
            multiply_tile<T, false, false>(c, from, from + TILE * DEPTH);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        fill = fill + 1 < STAGES ? fill + 1 : 0;
    }
    oari_copy_wait<0>();
    for (int half = 0; half < 2; half++) {
        __syncthreads();
        if (warp >> 2 == half)
            keep_numbers((float *)shared, c);
        __syncthreads();
        store_tile<float, THREADS>(p, batch, at.row + half * 64, 64, at.column,
                                   TILE, (const float *)shared, LEAD);
    }
    __syncthreads();
}

#define KERNEL(half)                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)        \
        oari_product_##half(oari_cuda_product p)                    \
    {                                                               \
        OARI_SHARED_MEMORY(uint16_t, shared);                       \
        for (int64_t i = blockIdx.y; i < p.batches; i += gridDim.y) \
            multiply<oari_##half>(p, shared, i);                    \
    }

KERNEL(bf16)
KERNEL(f16)
