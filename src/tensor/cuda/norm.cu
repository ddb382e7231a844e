// SPDX-License-Identifier: Apache-2.0
/* norm: layer norm and RMS norm over rows. Rows that can be read in packs, and
 * are not too long, stay in registers: two at a time have a warp or, if that is
 * too little, a block. Other rows are read again for each pass, by a warp. */
#include "tensor/cuda/element.cuh"
#include "tensor/cuda/norm_job.h"

/* ---- rows in registers --------------------------------------------------- */

enum { PARTS = OARI_NORM_PARTS, ROWS = OARI_NORM_ROWS };

/* This thread's part of two rows, which begin at `row`. */
template <class T> struct two_rows {
    pack<T, in_pack<T>::count> a[ROWS][PARTS];
    typename work_of<T>::type middle[ROWS], scale[ROWS];
    int64_t row, group, me;
    int rows; /* that there are */
};

#define EACH_ROW(r) _Pragma("unroll") for (int r = 0; r < ROWS; r++)

/* Sums of both rows over their group, a warp or the block. */
template <class W>
DEVICE void group_sums(const oari_norm_job &job, W *x, W *room)
{
    if (job.by_block)
        block_sums(x, room);
    else
        warp_sums(x);
}

/* Makes each row its sum with one of `more`, which is kept. */
template <class T>
DEVICE void add_more(const oari_norm_job &job, two_rows<T> *t)
{
    const int V = in_pack<T>::count;
    const int64_t group = t->group, me = t->me;
    pack<T, V> b[ROWS][PARTS];

    load_rows<T>(job, job.more, t->row, t->rows, group, me, b);
    EACH_ROW(r)
    EACH_PART(i, at)
    {
        typename work_of<T>::type x[V], y[V];

        if (r >= t->rows)
            continue;
        widen_all(t->a[r][i], x);
        widen_all(b[r][i], y);
        for (int k = 0; k < V; k++)
            x[k] += y[k];
        narrow_all(x, &t->a[r][i]);
        store_pack<T, V>((T *)job.sum + (t->row + r) * job.width + at,
                         t->a[r][i]);
    }
}

/* Finds mean and rstd of both rows. */
template <class T>
DEVICE void measure(const oari_norm_job &job, two_rows<T> *t,
                    typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const int V = in_pack<T>::count;
    const int64_t group = t->group, me = t->me;
    const W part = (W)1 / (W)job.width;
    W sum[ROWS] = { 0, 0 }, x[V];

    if (job.mean != NULL) {
        EACH_ROW(r)
        EACH_PART(i, at)
        {
            widen_all(t->a[r][i], x);
            for (int k = 0; k < V; k++)
                sum[r] += x[k];
        }
        group_sums(job, sum, room);
    }
    EACH_ROW(r)
    {
        t->middle[r] = sum[r] * part;
        sum[r] = 0;
        EACH_PART(i, at)
        {
            widen_all(t->a[r][i], x);
            for (int k = 0; k < V; k++)
                sum[r] += (x[k] - t->middle[r]) * (x[k] - t->middle[r]);
        }
    }
    group_sums(job, sum, room + 2 * MOST_WARPS);
    EACH_ROW(r)
    {
        t->scale[r] = (W)1 / root_of(sum[r] * part + (W)job.eps);
        if (me > 0 || r >= t->rows)
            continue;
        if (job.mean != NULL)
            ((W *)job.mean)[t->row + r] = t->middle[r];
        ((W *)job.rstd)[t->row + r] = t->scale[r];
    }
}

template <class T> DEVICE void recall(const oari_norm_job &job, two_rows<T> *t)
{
    typedef typename work_of<T>::type W;

    EACH_ROW(r)
    {
        t->middle[r] = t->scale[r] = 0;
        if (r < t->rows) {
            if (job.mean != NULL)
                t->middle[r] = ((const W *)job.mean)[t->row + r];
            t->scale[r] = ((const W *)job.rstd)[t->row + r];
        }
    }
}

template <class T>
DEVICE void give_normalised(const oari_norm_job &job, two_rows<T> *t)
{
    typedef typename work_of<T>::type W;
    const int V = in_pack<T>::count;
    const int64_t group = t->group, me = t->me;

    EACH_PART(i, at)
    {
        W y[V], w[V], b[V];

        for (int k = 0; k < V; k++) {
            w[k] = 1;
            b[k] = 0;
        }
        if (job.weight != NULL)
            load_numbers<T, V>(job.weight, job.is_wide, at, w);
        if (job.bias != NULL)
            load_numbers<T, V>(job.bias, job.is_wide, at, b);
        EACH_ROW(r)
        {
            if (r >= t->rows)
                continue;
            widen_all(t->a[r][i], y);
            for (int k = 0; k < V; k++)
                y[k] = (y[k] - t->middle[r]) * t->scale[r] * w[k] + b[k];
            narrow_all(y, &t->a[r][i]);
            store_pack<T, V>((T *)job.to + (t->row + r) * job.width + at,
                             t->a[r][i]);
        }
    }
}

/* adds: there is more, which is added first. Without, a thread has few registers.
 */
template <class T, bool adds>
DEVICE void normalise_in_registers(const oari_norm_job &job, int64_t row,
                                   typename work_of<T>::type *room)
{
    two_rows<T> t = {};

    t.row = row;
    t.rows = row + 1 < job.rows ? 2 : 1;
    t.group = job.by_block ? (int64_t)blockDim.x : (int64_t)WARP;
    t.me = (int64_t)threadIdx.x % t.group;
    load_rows<T>(job, job.x, row, t.rows, t.group, t.me, t.a);
    if (adds)
        add_more(job, &t);
    if (job.again)
        recall(job, &t);
    else
        measure(job, &t, room);
    give_normalised(job, &t);
}

/* ---- other rows ---------------------------------------------------------- */

/* For each column of this lane. */
#define EACH_COLUMN(at, width) \
    for (int64_t at = threadIdx.x % WARP; at < (width); at += WARP)

/* Reads the row again for each pass. */
template <class T>
DEVICE void normalise_row(const oari_norm_job &job, int64_t row)
{
    typedef typename work_of<T>::type W;
    const T *x = (const T *)job.x + row * job.width;
    T *to = (T *)job.to + row * job.width;
    W middle = 0, scale, sum = 0;

    if (job.more != NULL) {
        T *both = (T *)job.sum + row * job.width;
        const T *more = (const T *)job.more + row * job.width;

        EACH_COLUMN(at, job.width)
        narrow(widen(x[at]) + widen(more[at]), both + at);
        x = both; /* each lane reads what it has written */
    }
    if (job.again) {
        if (job.mean != NULL)
            middle = ((const W *)job.mean)[row];
        scale = ((const W *)job.rstd)[row];
    } else {
        if (job.mean != NULL) {
            EACH_COLUMN(at, job.width)
            sum += widen(x[at]);
            middle = warp_sum(sum) / (W)job.width;
        }
        sum = 0;
        EACH_COLUMN(at, job.width)
        {
            W d = widen(x[at]) - middle;

            sum += d * d;
        }
        scale = (W)1 / root_of(warp_sum(sum) / (W)job.width + (W)job.eps);
        if (threadIdx.x % WARP == 0) {
            if (job.mean != NULL)
                ((W *)job.mean)[row] = middle;
            ((W *)job.rstd)[row] = scale;
        }
    }
    EACH_COLUMN(at, job.width)
    {
        W y = (widen(x[at]) - middle) * scale;

        if (job.weight != NULL)
            y *= load_either<T>(job.weight, job.is_wide, at);
        if (job.bias != NULL)
            y += load_either<T>(job.bias, job.is_wide, at);
        narrow(y, to + at);
    }
}

template <class T, bool adds>
DEVICE void normalise_rows(const oari_norm_job &job)
{
    OARI_SHARED_MEMORY(typename work_of<T>::type, room);
    int64_t row = blockIdx.x;

    if (!job.by_block)
        row = row * OARI_NORM_WARPS + (int64_t)(threadIdx.x / WARP);
    if (job.in_registers)
        row *= ROWS;
    if (row >= job.rows)
        return;
    if (job.in_registers)
        normalise_in_registers<T, adds>(job, row, room);
    else
        normalise_row<T>(job, row);
}

template <class T> DEVICE void normalise(const oari_norm_job &job)
{
    normalise_rows<T, false>(job);
}

OARI_KERNELS_BOUND(OARI_NORM_WARPS *WARP, 3, oari_layer_norm, normalise,
                   oari_norm_job)

template <class T> DEVICE void add_and_normalise(const oari_norm_job &job)
{
    normalise_rows<T, true>(job);
}

OARI_KERNELS_BOUND(OARI_NORM_WARPS *WARP, 3, oari_add_layer_norm,
                   add_and_normalise, oari_norm_job)
