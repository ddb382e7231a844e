/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/rows.cuh: what softmax and cross entropy have in common: the
 * largest number of a row, and the sum of exponentials. */
#ifndef OARI_TENSOR_CUDA_ROWS_CUH
#define OARI_TENSOR_CUDA_ROWS_CUH

#include "tensor/cuda/element.cuh"
#include "tensor/cuda/mma.h"
#include "tensor/cuda/rows_job.h"

/* For each pack of this thread: `at` is its first column. */
#define EACH_PACK(at, width)                                  \
    for (int64_t at = (int64_t)threadIdx.x * V; at < (width); \
         at += (int64_t)blockDim.x * V)

DEVICE float larger(float x, float y)
{
    return fmaxf(x, y);
}

DEVICE double larger(double x, double y)
{
    return fmax(x, y);
}

template <class W> DEVICE W block_max(W x, W *room)
{
    int warps = (int)blockDim.x / WARP;
    int lane = (int)threadIdx.x % WARP;

    x = warp_max(x);
    if (lane == 0)
        room[threadIdx.x / WARP] = x;
    __syncthreads();
    x = warp_max(lane < warps ? room[lane] : (W)-INFINITY);
    __syncthreads();
    return x;
}

/* exp(x - centre) of numbers that are T. */
template <class T> DEVICE float exp_below(float x, float centre, T)
{
    const float log2e = 1.4426950408889634f;

    return oari_exp2(x * log2e - centre * log2e);
}

DEVICE float exp_below(float x, float centre, float)
{
    return expf(x - centre);
}

DEVICE double exp_below(double x, double centre, double)
{
    return exp(x - centre);
}

/* The largest number and the sum of exp(number - largest). */
template <class W> struct peak {
    W most, total;
};

/* A thread's next packs of a row; behind its end there is minus infinity, which
 * changes neither the largest number nor the sum. */
template <class T, int V, int PACKS>
DEVICE void load_peak(const T *x, int64_t width, int64_t at, pack<T, V> *a)
{
#pragma unroll
    for (int n = 0; n < PACKS; n++, at += (int64_t)blockDim.x * V) {
        for (int k = 0; k < V; k++)
            narrow((typename work_of<T>::type) - INFINITY, &a[n].x[k]);
        if (at < width)
            a[n] = load_pack<T, V>(x + at);
    }
}

/* A thread takes PACKS at a time. All of a row are minus infinity: the sum is NaN,
 * as it is on the host. A NaN among the numbers is in the sum. */
template <class T, int V, int PACKS>
DEVICE peak<typename work_of<T>::type>
find_peak(const T *x, int64_t width, typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const int64_t step = (int64_t)blockDim.x * V * PACKS;
    W most = (W)-INFINITY, total = 0, all;
    pack<T, V> next[PACKS];

    load_peak<T, V, PACKS>(x, width, (int64_t)threadIdx.x * V, next);
    for (int64_t at = (int64_t)threadIdx.x * V; at < width; at += step) {
        W e[PACKS * V], top = (W)-INFINITY;

#pragma unroll
        for (int n = 0; n < PACKS; n++)
            widen_all(next[n], e + n * V);
        load_peak<T, V, PACKS>(x, width, at + step, next);
        for (int k = 0; k < PACKS * V; k++)
            top = larger(top, e[k]);
        if (top > most) {
            total = most == (W)-INFINITY ? total
                                         : total * exp_below(most, top, T());
            most = top;
        }
        if (most != (W)-INFINITY)
            for (int k = 0; k < PACKS * V; k++)
                total += exp_below(e[k], most, T());
        else
            for (int k = 0; k < PACKS * V; k++)
                total = e[k] != e[k] ? e[k] : total;
    }
    all = block_max(most, room);
    if (most != all)
        total = most == (W)-INFINITY ? total * 0
                                     : total * exp_below(most, all, T());
    else if (all == (W)-INFINITY)
        total = (W)NAN;
    return { all, block_sum(total, room) };
}

#endif
