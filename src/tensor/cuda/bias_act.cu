// SPDX-License-Identifier: Apache-2.0
/* bias_act: what stands between two products of an MLP: a function of every
 * element, its gradient, and the sums of columns that are a bias's gradient, in
 * one pass. A block has a tile of columns and a chunk of rows, which its warps
 * take in turns; warps and then chunks are added up in their order. */
#include "tensor/cuda/bias_act_job.h"
#include "tensor/cuda/element.cuh"

/* ---- functions ----------------------------------------------------------- */

/* 1 / (1 + exp(-x)): for halves by short instructions. */
template <class T> DEVICE float sigmoid_as(float x, T)
{
#ifdef __CUDA_ARCH__
    return __fdividef(1, 1 + __expf(-x));
#else
    return 1 / (1 + exp_of(-x));
#endif
}

DEVICE float sigmoid_as(float x, float)
{
    return 1 / (1 + exp_of(-x));
}

DEVICE double sigmoid_as(double x, double)
{
    return 1 / (1 + exp_of(-x));
}

DEVICE float erfc_of(float x)
{
    return erfcf(x);
}

DEVICE double erfc_of(double x)
{
    return erfc(x);
}

/* gelu_tanh(x) = x sigmoid(2 u), u = scale (x + cubic x^3). */
#define GELU_SCALE 0.79788456080286535588
#define GELU_CUBIC 0.044715

template <class T, class W> DEVICE W gelu_gate(W x)
{
    return sigmoid_as((W)(2 * GELU_SCALE) * x * (1 + (W)GELU_CUBIC * x * x),
                      T());
}

template <class W> DEVICE W normal_cdf(W x)
{
    return (W)0.5 * erfc_of(-x * (W)0.70710678118654752440);
}

template <class T, class W> DEVICE W value_of(int kind, W x)
{
    switch (kind) {
    case OARI_ACT_GELU: return x * normal_cdf(x);
    case OARI_ACT_GELU_TANH: return x * gelu_gate<T>(x);
    case OARI_ACT_SILU: return x * sigmoid_as(x, T());
    }
    return x < 0 ? (W)0 : x; /* NaN stays */
}

/* The slope at x; *value gets the function itself. */
template <class T, class W> DEVICE W slope_of(int kind, W x, W *value)
{
    W gate;

    switch (kind) {
    case OARI_ACT_GELU:
        gate = normal_cdf(x);
        *value = x * gate;
        return gate +
               x * (W)0.39894228040143267794 * exp_as((W)-0.5 * x * x, T());
    case OARI_ACT_GELU_TANH:
        gate = gelu_gate<T>(x);
        *value = x * gate;
        return gate + *value * (1 - gate) * (W)(2 * GELU_SCALE) *
                          (1 + (W)(3 * GELU_CUBIC) * x * x);
    case OARI_ACT_SILU:
        gate = sigmoid_as(x, T());
        *value = x * gate;
        return gate + *value * (1 - gate);
    }
    *value = x < 0 ? (W)0 : x;
    return x > 0 ? (W)1 : (W)0;
}

/* ---- forward ------------------------------------------------------------- */

template <class T, int V> DEVICE void apply_packs(const oari_bias_act_job &job)
{
    const int64_t count = job.rows * job.width / V;
    const int64_t step = (int64_t)gridDim.x * blockDim.x;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += step) {
        pack<T, V> a = load_pack<T, V>((const T *)job.from + i * V);

        for (int k = 0; k < V; k++)
            narrow(value_of<T>(job.kind, widen(a.x[k])), &a.x[k]);
        store_pack<T, V>((T *)job.to + i * V, a);
    }
}

template <class T> DEVICE void apply_function(const oari_bias_act_job &job)
{
    if (job.is_packed)
        apply_packs<T, in_pack<T>::count>(job);
    else
        apply_packs<T, 1>(job);
}

OARI_KERNELS(oari_act, apply_function, oari_bias_act_job)

/* ---- backward ------------------------------------------------------------ */

enum { AHEAD = 4 }; /* rows of a warp that are loaded at a time */

/* Makes g, a pack of the gradient of place `at`, that of what the function was
 * of, p, and stores it. */
template <class T, int V>
DEVICE void slope_pack(const oari_bias_act_job &job, int64_t at, pack<T, V> *g,
                       const pack<T, V> &p)
{
    typedef typename work_of<T>::type W;
    pack<T, V> y;

    for (int k = 0; k < V; k++) {
        W value, slope = slope_of<T>(job.kind, widen(p.x[k]), &value);

        narrow(widen(g->x[k]) * slope, &g->x[k]);
        narrow(value, &y.x[k]);
    }
    store_pack<T, V>((T *)job.to + at, *g);
    if (job.again != NULL)
        store_pack<T, V>((T *)job.again + at, y);
}

/* Goes through the rows of a warp, some of them loaded at a time, and adds up a
 * lane's columns. */
template <class T, int V>
DEVICE void slope_rows(const oari_bias_act_job &job, int64_t row, int64_t end,
                       int64_t column, typename work_of<T>::type *sum)
{
    for (; row < end; row += AHEAD * OARI_BIAS_WARPS) {
        pack<T, V> g[AHEAD], p[AHEAD];

#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int64_t at = row + u * OARI_BIAS_WARPS;

            if (at >= end)
                continue;
            g[u] =
                load_pack<T, V>((const T *)job.from + at * job.width + column);
            p[u] =
                load_pack<T, V>((const T *)job.pre + at * job.width + column);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int64_t at = row + u * OARI_BIAS_WARPS;

            if (at >= end)
                continue;
            slope_pack<T, V>(job, at * job.width + column, &g[u], p[u]);
            for (int k = 0; k < V; k++)
                sum[k] += widen(g[u].x[k]);
        }
    }
}

template <class T>
DEVICE void store_sum(const oari_bias_act_job &job, int64_t column, double sum)
{
    typedef typename work_of<T>::type W;

    if (job.add)
        sum += (double)load_either<T>(job.sums, job.is_wide, column);
    store_either<T>(job.sums, job.is_wide, column, (W)sum);
}

template <class T, int V>
DEVICE void slope_block(const oari_bias_act_job &job,
                        typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t tile = blockIdx.x % job.tiles, chunk = blockIdx.x / job.tiles;
    const int64_t column = (tile * WARP + lane) * V;
    const int64_t first = chunk * job.chunk;
    const int64_t end =
        first + job.chunk < job.rows ? first + job.chunk : job.rows;
    W sum[V];

    for (int k = 0; k < V; k++)
        sum[k] = 0;
    if (column < job.width)
        slope_rows<T, V>(job, first + warp, end, column, sum);
    if (job.sums == NULL)
        return;
    for (int k = 0; k < V; k++)
        room[(warp * V + k) * WARP + lane] = sum[k];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < V * WARP; i += (int)blockDim.x) {
        /* place i of a warp's room: lane i % WARP, element i / WARP */
        const int64_t at = (tile * WARP + i % WARP) * V + i / WARP;
        W total = 0;

        for (int w = 0; w < OARI_BIAS_WARPS; w++)
            total += room[w * V * WARP + i];
        if (at < job.width && job.partial != NULL)
            ((W *)job.partial)[chunk * job.width + at] = total;
        else if (at < job.width)
            store_sum<T>(job, at, (double)total);
    }
}

template <class T> DEVICE void slope_columns(const oari_bias_act_job &job)
{
    typedef typename work_of<T>::type W;
    OARI_SHARED_MEMORY(W, room); /* [warps, elements of a pack, lanes] */

    if (job.is_packed)
        slope_block<T, in_pack<T>::count>(job, room);
    else
        slope_block<T, 1>(job, room);
}

OARI_KERNELS(oari_act_back, slope_columns, oari_bias_act_job)

/* Chunks are added up by warps side by side, each every eighth, and then the
 * warps in their order. Lane k of a warp has column k of the block's. */
template <class T> DEVICE void total_chunks(const oari_bias_act_job &job)
{
    typedef typename work_of<T>::type W;
    OARI_SHARED_MEMORY(double, room); /* [warps, columns] */
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t column = (int64_t)blockIdx.x * OARI_BIAS_COLUMNS + lane;
    double sum = 0;

    if (column < job.width)
        for (int64_t i = warp; i < job.chunks; i += OARI_BIAS_WARPS)
            sum += (double)((const W *)job.partial)[i * job.width + column];
    room[warp * WARP + lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= job.width)
        return;
    for (int w = 1; w < OARI_BIAS_WARPS; w++)
        sum += room[w * WARP + lane];
    store_sum<T>(job, column, sum);
}

OARI_KERNELS(oari_bias_total, total_chunks, oari_bias_act_job)
