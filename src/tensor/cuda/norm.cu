// SPDX-License-Identifier: Apache-2.0
/* norm: layer norm and RMS norm over rows, a warp for each row. What a lane
 * reads first it finds in the cache when it reads it again. In backward a block
 * has its own stretch of rows; the gradients of weight and bias are summed by
 * columns in each block first and then over the blocks, in their order. */
#include "tensor/cuda/element.cuh"
#include "tensor/cuda/norm_job.h"

/* For each pack of this lane: `at` is its first column. */
#define EACH_PACK(at, width)                                           \
    for (int64_t at = (int64_t)(threadIdx.x % WARP) * V; at < (width); \
         at += (int64_t)WARP * V)

/* ---- forward ------------------------------------------------------------- */

/* sum = x + more, rounded. */
template <class T, int V>
DEVICE void add_row(const T *x, const T *more, T *sum, int64_t width)
{
    EACH_PACK(at, width)
    {
        pack<T, V> a = load_pack<T, V>(x + at);
        pack<T, V> b = load_pack<T, V>(more + at);

        for (int k = 0; k < V; k++)
            narrow(widen(a.x[k]) + widen(b.x[k]), &a.x[k]);
        store_pack<T, V>(sum + at, a);
    }
}

template <class T, int V>
DEVICE typename work_of<T>::type row_sum(const T *x, int64_t width)
{
    typename work_of<T>::type total = 0;

    EACH_PACK(at, width)
    {
        pack<T, V> a = load_pack<T, V>(x + at);

        for (int k = 0; k < V; k++)
            total += widen(a.x[k]);
    }
    return warp_sum(total);
}

template <class T, int V>
DEVICE typename work_of<T>::type
row_squares(const T *x, typename work_of<T>::type middle, int64_t width)
{
    typename work_of<T>::type total = 0;

    EACH_PACK(at, width)
    {
        pack<T, V> a = load_pack<T, V>(x + at);

        for (int k = 0; k < V; k++) {
            typename work_of<T>::type d = widen(a.x[k]) - middle;

            total += d * d;
        }
    }
    return warp_sum(total);
}

template <class T, int V>
DEVICE void normalise_row(const oari_norm_job &job, int64_t row)
{
    typedef typename work_of<T>::type W;
    const T *x = (const T *)job.x + row * job.width;
    T *to = (T *)job.to + row * job.width;
    W middle = 0, scale;

    if (job.more != NULL) {
        T *sum = (T *)job.sum + row * job.width;

        add_row<T, V>(x, (const T *)job.more + row * job.width, sum, job.width);
        x = sum; /* each lane reads what it has written */
    }
    if (job.again) {
        if (job.mean != NULL)
            middle = ((const W *)job.mean)[row];
        scale = ((const W *)job.rstd)[row];
    } else {
        if (job.mean != NULL)
            middle = row_sum<T, V>(x, job.width) / (W)job.width;
        scale = (W)1 /
                root_of(row_squares<T, V>(x, middle, job.width) / (W)job.width +
                        (W)job.eps);
        if (threadIdx.x % WARP == 0) {
            if (job.mean != NULL)
                ((W *)job.mean)[row] = middle;
            ((W *)job.rstd)[row] = scale;
        }
    }
    EACH_PACK(at, job.width)
    {
        pack<T, V> a = load_pack<T, V>(x + at);
        W y[V], w[V];

        for (int k = 0; k < V; k++)
            y[k] = (widen(a.x[k]) - middle) * scale;
        if (job.weight != NULL) {
            load_numbers<T, V>(job.weight, job.is_wide, at, w);
            for (int k = 0; k < V; k++)
                y[k] *= w[k];
        }
        if (job.bias != NULL) {
            load_numbers<T, V>(job.bias, job.is_wide, at, w);
            for (int k = 0; k < V; k++)
                y[k] += w[k];
        }
        for (int k = 0; k < V; k++)
            narrow(y[k], &a.x[k]);
        store_pack<T, V>(to + at, a);
    }
}

template <class T> DEVICE void normalise(const oari_norm_job &job)
{
    int64_t row =
        (int64_t)blockIdx.x * OARI_NORM_WARPS + (int64_t)(threadIdx.x / WARP);

    if (row >= job.rows)
        return;
    if (job.is_packed)
        normalise_row<T, in_pack<T>::count>(job, row);
    else
        normalise_row<T, 1>(job, row);
}

OARI_KERNELS(oari_layer_norm, normalise, oari_norm_job)

/* ---- backward ------------------------------------------------------------ */

/* One pack of a row: x normalised, h, and the gradient of that, v; g is the
 * gradient itself. */
template <class W, int V> struct row_part {
    W h[V], v[V], g[V];
};

template <class T, int V>
DEVICE row_part<typename work_of<T>::type, V>
read_part(const oari_norm_back_job &job, const T *x, const T *g,
          typename work_of<T>::type middle, typename work_of<T>::type scale,
          int64_t at)
{
    typedef typename work_of<T>::type W;
    pack<T, V> a = load_pack<T, V>(x + at);
    pack<T, V> b = load_pack<T, V>(g + at);
    row_part<W, V> p;
    W w[V];

    if (job.weight != NULL)
        load_numbers<T, V>(job.weight, job.is_wide, at, w);
    for (int k = 0; k < V; k++) {
        p.h[k] = (widen(a.x[k]) - middle) * scale;
        p.g[k] = widen(b.x[k]);
        p.v[k] = job.weight != NULL ? p.g[k] * w[k] : p.g[k];
    }
    return p;
}

/* The part of dx. */
template <class T, int V>
DEVICE void give_part(const oari_norm_back_job &job, T *dx,
                      const row_part<typename work_of<T>::type, V> &p,
                      typename work_of<T>::type flat,
                      typename work_of<T>::type tilt,
                      typename work_of<T>::type scale, int64_t at)
{
    pack<T, V> y;

    if (job.add)
        y = load_pack<T, V>(dx + at);
    for (int k = 0; k < V; k++) {
        typename work_of<T>::type d = (p.v[k] - flat - p.h[k] * tilt) * scale;

        narrow(job.add ? widen(y.x[k]) + d : d, &y.x[k]);
    }
    store_pack<T, V>(dx + at, y);
}

template <class T, int V>
DEVICE void give_row(const oari_norm_back_job &job, int64_t row)
{
    typedef typename work_of<T>::type W;
    const T *g = (const T *)job.grad + row * job.width;
    const T *x = (const T *)job.x + row * job.width;
    T *dx = (T *)job.dx + row * job.width;
    W middle = job.mean != NULL ? ((const W *)job.mean)[row] : (W)0;
    W scale = ((const W *)job.rstd)[row];
    W flat = 0, tilt = 0;

    EACH_PACK(at, job.width)
    {
        row_part<W, V> p = read_part<T, V>(job, x, g, middle, scale, at);

        for (int k = 0; k < V; k++) {
            flat += p.v[k];
            tilt += p.v[k] * p.h[k];
        }
    }
    flat = job.mean != NULL ? warp_sum(flat) / (W)job.width : (W)0;
    tilt = warp_sum(tilt) / (W)job.width;
    EACH_PACK(at, job.width)
    {
        row_part<W, V> p = read_part<T, V>(job, x, g, middle, scale, at);

        give_part<T, V>(job, dx, p, flat, tilt, scale, at);
    }
}

/* Adds rows first .. end-1 to the block's sums. A thread has its columns for
 * itself. */
template <class T>
DEVICE void gather_rows(const oari_norm_back_job &job, int64_t first,
                        int64_t end, typename work_of<T>::type *sums)
{
    typedef typename work_of<T>::type W;

    for (int64_t i = threadIdx.x; i < job.width; i += blockDim.x) {
        W dw = sums[i], db = sums[job.width + i];

        for (int64_t row = first; row < end; row++) {
            W middle = job.mean != NULL ? ((const W *)job.mean)[row] : (W)0;
            W scale = ((const W *)job.rstd)[row];
            W g = widen(((const T *)job.grad)[row * job.width + i]);
            W x = widen(((const T *)job.x)[row * job.width + i]);

            dw += g * ((x - middle) * scale);
            db += g;
        }
        sums[i] = dw;
        sums[job.width + i] = db;
    }
}

/* Rows of at most PARTS packs a lane: what a lane has seen of its columns stays
 * in registers, and memory is read once. The warps are added up in shared
 * memory, in their order. */
enum { PARTS = OARI_NORM_PARTS };

template <class T, int V>
DEVICE void back_in_registers(const oari_norm_back_job &job, int64_t first,
                              int64_t end, typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const int64_t lane = threadIdx.x % WARP;
    const int warp = (int)threadIdx.x / WARP;
    W dw[PARTS][V], db[PARTS][V];

    for (int i = 0; i < PARTS; i++)
        for (int k = 0; k < V; k++)
            dw[i][k] = db[i][k] = 0;
    for (int64_t row = first + warp; row < end; row += OARI_NORM_WARPS) {
        const T *g = (const T *)job.grad + row * job.width;
        const T *x = (const T *)job.x + row * job.width;
        W middle = job.mean != NULL ? ((const W *)job.mean)[row] : (W)0;
        W scale = ((const W *)job.rstd)[row];
        W flat = 0, tilt = 0;

#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            int64_t at = (i * WARP + lane) * V;

            if (at < job.width) {
                row_part<W, V> p =
                    read_part<T, V>(job, x, g, middle, scale, at);

                for (int k = 0; k < V; k++) {
                    flat += p.v[k];
                    tilt += p.v[k] * p.h[k];
                    dw[i][k] += p.g[k] * p.h[k];
                    db[i][k] += p.g[k];
                }
            }
        }
        flat = job.mean != NULL ? warp_sum(flat) / (W)job.width : (W)0;
        tilt = warp_sum(tilt) / (W)job.width;
        if (job.dx == NULL)
            continue;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            int64_t at = (i * WARP + lane) * V;

            if (at < job.width) {
                row_part<W, V> p =
                    read_part<T, V>(job, x, g, middle, scale, at);

                give_part<T, V>(job, (T *)job.dx + row * job.width, p, flat,
                                tilt, scale, at);
            }
        }
    }
    for (int w = 0; w < OARI_NORM_WARPS; w++) {
        if (warp == w) {
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                int64_t at = (i * WARP + lane) * V;

                for (int k = 0; k < V && at < job.width; k++) {
                    W *sum = room + at + k;

                    sum[0] = (w > 0 ? sum[0] : (W)0) + dw[i][k];
                    sum[job.width] = (w > 0 ? sum[job.width] : (W)0) + db[i][k];
                }
            }
        }
        __syncthreads();
    }
}

/* dx may be grad, so columns are read before rows are written. */
template <class T> DEVICE void normalise_back(const oari_norm_back_job &job)
{
    typedef typename work_of<T>::type W;
    OARI_SHARED_MEMORY(W, room);
    W *out = job.sums != NULL
                 ? (W *)job.sums + (int64_t)blockIdx.x * 2 * job.width
                 : NULL;
    W *sums = job.in_shared ? room : out;
    int64_t first = (int64_t)blockIdx.x * job.share;
    int64_t end = first + job.share < job.rows ? first + job.share : job.rows;

    if (job.in_registers) {
        back_in_registers<T, in_pack<T>::count>(job, first, end, room);
        first = end;
    } else {
        for (int64_t i = threadIdx.x; out != NULL && i < job.width;
             i += blockDim.x)
            sums[i] = sums[job.width + i] = 0;
    }
    for (; first < end; first += OARI_NORM_WARPS) {
        int64_t row = first + (int64_t)(threadIdx.x / WARP);
        int64_t last =
            first + OARI_NORM_WARPS < end ? first + OARI_NORM_WARPS : end;

        if (out != NULL) {
            gather_rows<T>(job, first, last, sums);
            __syncthreads();
        }
        if (job.dx == NULL || row >= end)
            continue;
        if (job.is_packed)
            give_row<T, in_pack<T>::count>(job, row);
        else
            give_row<T, 1>(job, row);
    }
    for (int64_t i = threadIdx.x; job.in_shared && i < job.width;
         i += blockDim.x) {
        out[i] = sums[i];
        out[job.width + i] = sums[job.width + i];
    }
}

OARI_KERNELS(oari_layer_norm_back, normalise_back, oari_norm_back_job)

/* Blocks are added up by warps side by side, each every eighth, and then the
 * warps in their order. Lane k of a warp has column k of the block's. */
template <class T> DEVICE void total_columns(const oari_norm_total_job &job)
{
    typedef typename work_of<T>::type W;
    OARI_SHARED_MEMORY(W, room); /* [warps, 2, columns] */
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t column = (int64_t)blockIdx.x * OARI_NORM_COLUMNS + lane;
    const W *sums = (const W *)job.sums;
    W dw = 0, db = 0;

    if (column < job.width)
        for (int64_t b = warp; b < job.blocks; b += OARI_NORM_WARPS) {
            dw += sums[2 * b * job.width + column];
            db += sums[(2 * b + 1) * job.width + column];
        }
    room[(2 * warp) * WARP + lane] = dw;
    room[(2 * warp + 1) * WARP + lane] = db;
    __syncthreads();
    if (warp > 0 || column >= job.width)
        return;
    for (int k = 1; k < OARI_NORM_WARPS; k++) {
        dw += room[(2 * k) * WARP + lane];
        db += room[(2 * k + 1) * WARP + lane];
    }
    if (job.dweight != NULL)
        store_either<T>(job.dweight, job.is_wide, column, dw);
    if (job.dbias != NULL)
        store_either<T>(job.dbias, job.is_wide, column, db);
}

OARI_KERNELS(oari_layer_norm_total, total_columns, oari_norm_total_job)
