// SPDX-License-Identifier: Apache-2.0
/* softmax: softmax of rows, its logarithm, and their gradients. Rows that can be
 * read in packs, and are not too long, stay in registers: each has a warp or, if
 * that is too little, a block. All others have a block. */
#include "tensor/cuda/rows.cuh"

template <class T, int V>
DEVICE void softmax_row(const oari_softmax_job &job,
                        typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const T *x = (const T *)job.x + (int64_t)blockIdx.x * job.width;
    T *to = (T *)job.to + (int64_t)blockIdx.x * job.width;
    peak<W> p = find_peak<T, V, 2>(x, job.width, room);
    W share = job.is_log ? log_of(p.total) : (W)1 / p.total;

    EACH_PACK(at, job.width)
    {
        pack<T, V> a = load_pack<T, V>(x + at);

        for (int k = 0; k < V; k++) {
            W y = widen(a.x[k]) - p.most;

            narrow(job.is_log ? y - share
                              : exp_below(widen(a.x[k]), p.most, T()) * share,
                   &a.x[k]);
        }
        store_pack<T, V>(to + at, a);
    }
}

template <class T, int V>
DEVICE void softmax_row_back(const oari_softmax_job &job,
                             typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const T *p = (const T *)job.x + (int64_t)blockIdx.x * job.width;
    const T *g = (const T *)job.grad + (int64_t)blockIdx.x * job.width;
    T *to = (T *)job.to + (int64_t)blockIdx.x * job.width;
    W dot = 0;

    EACH_PACK(at, job.width)
    {
        pack<T, V> a = load_pack<T, V>(p + at);
        pack<T, V> b = load_pack<T, V>(g + at);

        for (int k = 0; k < V; k++)
            dot += job.is_log ? widen(b.x[k]) : widen(b.x[k]) * widen(a.x[k]);
    }
    dot = block_sum(dot, room);
    EACH_PACK(at, job.width)
    {
        pack<T, V> a = load_pack<T, V>(p + at);
        pack<T, V> b = load_pack<T, V>(g + at);
        pack<T, V> y = {};

        if (job.add)
            y = load_pack<T, V>(to + at);
        for (int k = 0; k < V; k++) {
            W d = job.is_log ? widen(b.x[k]) - exp_as(widen(a.x[k]), T()) * dot
                             : widen(a.x[k]) * (widen(b.x[k]) - dot);

            narrow(job.add ? widen(y.x[k]) + d : d, &y.x[k]);
        }
        store_pack<T, V>(to + at, y);
    }
}

enum { PARTS = OARI_ROWS_PARTS, ROWS = 2 };
#define EACH_ROW(r) _Pragma("unroll") for (int r = 0; r < ROWS; r++)

/* The larger of both numbers over a warp, or over a block. */
template <class W>
DEVICE void group_maxes(const oari_softmax_job &job, W *x, W *room)
{
    if (job.by_block) {
        x[0] = block_max(x[0], room);
        x[1] = block_max(x[1], room);
        return;
    }
    for (int apart = WARP / 2; apart > 0; apart /= 2) {
        W first = __shfl_xor_sync(ALL_LANES, x[0], apart);
        W second = __shfl_xor_sync(ALL_LANES, x[1], apart);

        x[0] = larger(x[0], first);
        x[1] = larger(x[1], second);
    }
}

/* Two rows in registers, of a warp or of a block. */
template <class T>
DEVICE void softmax_in_registers(const oari_softmax_job &job, int64_t row,
                                 typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const int V = in_pack<T>::count;
    const int64_t group = job.by_block ? (int64_t)blockDim.x : (int64_t)WARP;
    const int64_t me = (int64_t)threadIdx.x % group;
    const int rows = row + 1 < job.rows ? 2 : 1;
    pack<T, V> a[ROWS][PARTS] = {};
    W e[V], most[ROWS] = { (W)-INFINITY, (W)-INFINITY }, total[ROWS] = { 0, 0 };

    load_rows<T>(job, job.x, row, rows, group, me, a);
    EACH_ROW(r)
    EACH_PART(i, at)
    {
        widen_all(a[r][i], e);
        for (int k = 0; k < V; k++)
            most[r] = larger(most[r], e[k]);
    }
    group_maxes(job, most, room);
    EACH_ROW(r)
    EACH_PART(i, at)
    {
        widen_all(a[r][i], e);
        for (int k = 0; k < V; k++)
            total[r] += exp_below(e[k], most[r], T());
    }
    if (job.by_block)
        block_sums(total, room + 2 * MOST_WARPS);
    else
        warp_sums(total);
    EACH_ROW(r)
    {
        const W share =
            job.is_log ? log_of(total[r]) + most[r] : (W)1 / total[r];
        T *to = (T *)job.to + (row + r) * job.width;

        if (r >= rows)
            continue;
        EACH_PART(i, at)
        {
            widen_all(a[r][i], e);
            for (int k = 0; k < V; k++)
                e[k] = job.is_log ? e[k] - share
                                  : exp_below(e[k], most[r], T()) * share;
            narrow_all(e, &a[r][i]);
            store_pack<T, V>(to + at, a[r][i]);
        }
    }
}

template <class T>
DEVICE void softmax_back_in_registers(const oari_softmax_job &job, int64_t row,
                                      typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const int V = in_pack<T>::count;
    const int64_t group = job.by_block ? (int64_t)blockDim.x : (int64_t)WARP;
    const int64_t me = (int64_t)threadIdx.x % group;
    const T *p = (const T *)job.x + row * job.width;
    const T *g = (const T *)job.grad + row * job.width;
    T *to = (T *)job.to + row * job.width;
    pack<T, V> a[PARTS], b[PARTS];
    W dot = 0;

    EACH_PART(i, at)
    {
        a[i] = load_pack<T, V>(p + at);
        b[i] = load_pack<T, V>(g + at);
    }
    EACH_PART(i, at)
    {
        for (int k = 0; k < V; k++)
            dot += job.is_log ? widen(b[i].x[k])
                              : widen(b[i].x[k]) * widen(a[i].x[k]);
    }
    dot = job.by_block ? block_sum(dot, room) : warp_sum(dot);
    EACH_PART(i, at)
    {
        pack<T, V> y = {};

        if (job.add)
            y = load_pack<T, V>(to + at);
        for (int k = 0; k < V; k++) {
            W q = widen(a[i].x[k]), d = widen(b[i].x[k]);

            d = job.is_log ? d - exp_below(q, (W)0, T()) * dot : q * (d - dot);
            narrow(job.add ? widen(y.x[k]) + d : d, &y.x[k]);
        }
        store_pack<T, V>(to + at, y);
    }
}

template <class T> DEVICE void softmax(const oari_softmax_job &job)
{
    OARI_SHARED_MEMORY(typename work_of<T>::type, room);
    int64_t row = blockIdx.x;

    if (job.in_registers) {
        if (!job.by_block)
            row = row * (blockDim.x / WARP) + threadIdx.x / WARP;
        if (job.grad == NULL)
            row *= 2;
        if (row >= job.rows)
            return;
        if (job.grad == NULL)
            softmax_in_registers<T>(job, row, room);
        else
            softmax_back_in_registers<T>(job, row, room);
    } else if (job.grad == NULL && job.is_packed) {
        softmax_row<T, in_pack<T>::count>(job, room);
    } else if (job.grad == NULL) {
        softmax_row<T, 1>(job, room);
    } else if (job.is_packed) {
        softmax_row_back<T, in_pack<T>::count>(job, room);
    } else {
        softmax_row_back<T, 1>(job, room);
    }
}

OARI_KERNELS_BOUND(256, 4, oari_softmax, softmax, oari_softmax_job)
