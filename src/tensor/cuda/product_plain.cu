// SPDX-License-Identifier: Apache-2.0
/* product_plain: matrix products of any strides and floats, in tiles. Halves
 * are multiplied and added up in f32, from the first element to the last. */
#include "tensor/cuda/numbers.cuh"
#include "tensor/cuda/product_plain_job.h"

enum { TILE = OARI_PRODUCT_TILE };

/* Where batch i is, in dims of these sizes and strides. */
DEVICE int64_t batch_at(uint64_t i, int dims, const int64_t *dim,
                        const int64_t *stride)
{
    int64_t at = 0;

#pragma unroll 1
    for (int d = dims - 1; d >= 0; d--) {
        uint64_t rows = i / (uint64_t)dim[d];

        at += (int64_t)(i - rows * (uint64_t)dim[d]) * stride[d];
        i = rows;
    }
    return at;
}

template <class T>
DEVICE void run_product(const oari_product_job &job, T *left, T *right)
{
    int x = (int)threadIdx.x, y = (int)threadIdx.y;
    int64_t row = (int64_t)blockIdx.y * TILE + y;
    int64_t column = (int64_t)blockIdx.x * TILE + x;
    uint64_t batch = blockIdx.z;
    int64_t to = batch_at(batch, job.dims, job.dim, job.to_batch);
    int64_t a0 = batch_at(batch, job.dims, job.dim, job.a_batch);
    int64_t b0 = batch_at(batch, job.dims, job.dim, job.b_batch);
    T sum = 0;

    for (int64_t s = 0; s < job.sums; s++) {
        int64_t a =
            a0 + batch_at((uint64_t)s, job.sum_dims, job.sum_dim, job.a_sum);
        int64_t b =
            b0 + batch_at((uint64_t)s, job.sum_dims, job.sum_dim, job.b_sum);

        for (int64_t k = 0; k < job.k; k += TILE) {
            left[y * TILE + x] =
                row < job.m && k + x < job.k
                    ? load_as<T>(job.a, job.a_dtype,
                                 a + row * job.a_row + (k + x) * job.a_column)
                    : (T)0;
            right[y * TILE + x] = column < job.n && k + y < job.k
                                      ? load_as<T>(job.b, job.b_dtype,
                                                   b + (k + y) * job.b_row +
                                                       column * job.b_column)
                                      : (T)0;
            __syncthreads();
            for (int i = 0; i < TILE; i++)
                sum += left[y * TILE + i] * right[i * TILE + x];
            __syncthreads();
        }
    }
    if (row >= job.m || column >= job.n)
        return;
    to += row * job.to_row + column * job.to_column;
    if (job.add)
        sum += load_as<T>(job.to, job.to_dtype, to);
    store_as(job.to, job.to_dtype, to, sum);
}

extern "C" __global__ void __launch_bounds__(TILE *TILE)
    oari_product_plain(oari_product_job job)
{
    __shared__ double left[TILE * TILE];
    __shared__ double right[TILE * TILE];

    if (job.wide)
        run_product<double>(job, left, right);
    else
        run_product<float>(job, (float *)left, (float *)right);
}
