// SPDX-License-Identifier: Apache-2.0
/* product_any: products of matrices of any float dtype and any strides, by
 * plain multiplications in f32 or f64. A block of 256 threads makes 64 x 64
 * numbers, 16 steps of k at a time; a thread has 4 x 4 of them. */
#include "device/cuda/cuda_block.h"
#include "tensor/cuda/product_value.h"

enum { TILE = OARI_PRODUCT_SMALL, DEPTH = 16, LEAD = TILE + 1 };

/* Loads 64 x 16 numbers; threads follow the direction without gaps. */
template <class T>
OARI_DEVICE void load_tile(T *tile, const oari_cuda_side &s, int64_t offset,
                           int64_t first, int64_t rows, int64_t k,
                           int64_t depth)
{
#pragma unroll 1
    for (int step = 0; step < TILE * DEPTH / 256; step++) {
        int i = (int)threadIdx.x + step * 256;
        int row = s.turned ? i % TILE : i / DEPTH;
        int at = s.turned ? i / TILE : i % DEPTH;
        T x = 0;

        if (first + row < rows && k + at < depth)
            x = product_load<T>(s.data, s.dtype,
                                offset + (first + row) * s.across +
                                    (k + at) * s.along);
        tile[at * LEAD + row] = x;
    }
}

template <class T>
OARI_DEVICE void multiply(const oari_cuda_product &p, T *shared, int64_t batch)
{
    const block_place at = place_block(p, TILE);
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    T *a = shared, *b = shared + DEPTH * LEAD, c[4][4] = {};

    for (int64_t sum = 0; sum < p.sums; sum++) {
        int64_t left =
            place_batch(p, p.a.batch, batch) + place_sum(p, p.a.sum, sum);
        int64_t right =
            place_batch(p, p.b.batch, batch) + place_sum(p, p.b.sum, sum);

        for (int64_t k = 0; k < p.k; k += DEPTH) {
            load_tile(a, p.a, left, at.row, p.m, k, p.k);
            load_tile(b, p.b, right, at.column, p.n, k, p.k);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < DEPTH; i++)
#pragma unroll
                for (int m = 0; m < 4; m++)
#pragma unroll
                    for (int n = 0; n < 4; n++)
                        c[m][n] +=
                            a[i * LEAD + y + m * 16] * b[i * LEAD + x + n * 16];
            __syncthreads();
        }
    }
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            shared[(y + m * 16) * LEAD + x + n * 16] = c[m][n];
    __syncthreads();
    store_tile<T, 256>(p, batch, at.row, TILE, at.column, TILE, shared, LEAD);
    __syncthreads();
}

#define KERNEL(name, type)                                          \
    extern "C" __global__ void __launch_bounds__(256)               \
        oari_product_##name(oari_cuda_product p)                    \
    {                                                               \
        OARI_SHARED_MEMORY(type, shared);                           \
        for (int64_t i = blockIdx.y; i < p.batches; i += gridDim.y) \
            multiply<type>(p, shared, i);                           \
    }

KERNEL(any_f32, float)
KERNEL(any_f64, double)
