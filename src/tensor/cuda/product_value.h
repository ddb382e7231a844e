/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/product_value.h: what both kinds of products share: where a block
 * and a batch are, and how numbers are stored. For CUDA's C++ only. */
#ifndef OARI_TENSOR_CUDA_PRODUCT_VALUE_H
#define OARI_TENSOR_CUDA_PRODUCT_VALUE_H

#include <oarsong/span.h>

#include "base/half.h"
#include "tensor/cuda/product_job.h"

#ifndef OARI_DEVICE
#define OARI_DEVICE static inline __device__
#endif

OARI_DEVICE int64_t place_batch(const oari_cuda_product &p,
                                const int64_t *stride, int64_t i)
{
    int64_t at = 0;

    for (int d = p.dims - 1; d >= 0; d--) {
        at += i % p.dim[d] * stride[d];
        i /= p.dim[d];
    }
    return at;
}

OARI_DEVICE int64_t place_sum(const oari_cuda_product &p, const int64_t *stride,
                              int64_t i)
{
    int64_t at = 0;

    for (int d = p.sum_dims - 1; d >= 0; d--) {
        at += i % p.sum_dim[d] * stride[d];
        i /= p.sum_dim[d];
    }
    return at;
}

/* The first row and column of this block, whose tiles are square. Blocks that
 * run at a time have few different rows and columns. */
struct block_place {
    int64_t row, column;
};

OARI_DEVICE block_place place_block(const oari_cuda_product &p, int tile)
{
    const int64_t rows = (p.m + tile - 1) / tile,
                  columns = (p.n + tile - 1) / tile;
    const int64_t band = 8 * columns, i = blockIdx.x;
    const int64_t first = i / band * 8;
    const int64_t high = rows - first < 8 ? rows - first : 8;
    block_place at;

    at.row = (first + i % band % high) * tile;
    at.column = i % band / high * tile;
    return at;
}

template <class T>
OARI_DEVICE T product_load(const void *data, int dtype, int64_t i)
{
    switch (dtype) {
    case OAR_F16: return (T)oari_f16_bits_to_f32(((const uint16_t *)data)[i]);
    case OAR_BF16: return (T)oari_bf16_bits_to_f32(((const uint16_t *)data)[i]);
    case OAR_F64: return (T)((const double *)data)[i];
    }
    return (T)((const float *)data)[i];
}

template <class T>
OARI_DEVICE void product_store(void *data, int dtype, int64_t i, T x)
{
    switch (dtype) {
    case OAR_F16:
        ((uint16_t *)data)[i] = oari_f16_bits_from_f32((float)x);
        break;
    case OAR_BF16:
        ((uint16_t *)data)[i] = oari_bf16_bits_from_f32((float)x);
        break;
    case OAR_F64: ((double *)data)[i] = (double)x; break;
    default: ((float *)data)[i] = (float)x;
    }
}

/* Stores rows x columns results, which lie in shared memory, from (row, column)
 * on. */
template <class T, int threads>
OARI_DEVICE void store_tile(const oari_cuda_product &p, int64_t batch,
                            int64_t row, int rows, int64_t column, int columns,
                            const T *from, int lead)
{
    const int64_t first = place_batch(p, p.batch, batch);

#pragma unroll 1
    for (int i = (int)threadIdx.x; i < rows * columns; i += threads) {
        int64_t y = row + i / columns, x = column + i % columns;
        int64_t at = first + y * p.row + x;
        T made = from[i / columns * lead + i % columns];

        if (y >= p.m || x >= p.n)
            continue;
        if (p.bias != NULL)
            made += product_load<T>(p.bias, p.bias_type, x);
        if (p.add)
            made += product_load<T>(p.c, p.c_type, at);
        product_store<T>(p.c, p.c_type, at, made);
    }
}

#endif
