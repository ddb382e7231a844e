// SPDX-License-Identifier: Apache-2.0
/* norm: layer norm and RMS norm over rows. Rows that can be read in packs, and
 * are not too long, stay in registers: each has a warp or, if that is too
 * little, a block. In backward a block has its own stretch of rows, and each
 * thread of it the same columns of all of them; the gradients of weight and bias
 * are summed over the rows of a block first and then over the blocks, in their
 * order. Other rows are read again for each pass, by a warp. */
#include "tensor/cuda/element.cuh"
#include "tensor/cuda/norm_job.h"

/* For each column of this lane. */
#define EACH_COLUMN(at, width) \
    for (int64_t at = threadIdx.x % WARP; at < (width); at += WARP)

/* ---- forward ------------------------------------------------------------- */

enum { PARTS = OARI_NORM_PARTS };

/* Of a row of this thread's group, a warp or the block. */
template <class W> DEVICE W group_sum(const oari_norm_job &job, W x, W *room)
{
    return job.by_block ? block_sum(x, room) : warp_sum(x);
}

/* Packs of this thread: part i begins at column (i * group + me) * V. */
#define EACH_PART(i, at)                                               \
    _Pragma("unroll") for (int i = 0; i < PARTS;                       \
                           i++) if (int64_t at =                       \
                                        (i * group + me) * (int64_t)V; \
                                    at < job.width)

/* What a row is made of: x, or its sum with more, which is kept. */
template <class T>
DEVICE void add_more(const oari_norm_job &job, int64_t row, int64_t group,
                     int64_t me, pack<T, in_pack<T>::count> *a)
{
    const int V = in_pack<T>::count;
    pack<T, V> b[PARTS];

    EACH_PART(i, at)
    {
        b[i] = load_pack<T, V>((const T *)job.more + row * job.width + at);
    }
    EACH_PART(i, at)
    {
        typename work_of<T>::type x[V], y[V];

        widen_all(a[i], x);
        widen_all(b[i], y);
        for (int k = 0; k < V; k++)
            x[k] += y[k];
        narrow_all(x, &a[i]);
        store_pack<T, V>((T *)job.sum + row * job.width + at, a[i]);
    }
}

/* Finds mean and rstd of a row. */
template <class T>
DEVICE void
measure(const oari_norm_job &job, int64_t row, int64_t group, int64_t me,
        const pack<T, in_pack<T>::count> *a, typename work_of<T>::type *room,
        typename work_of<T>::type *middle, typename work_of<T>::type *scale)
{
    typedef typename work_of<T>::type W;
    const int V = in_pack<T>::count;
    const W part = (W)1 / (W)job.width;
    W sum = 0;

    if (job.mean != NULL) {
        EACH_PART(i, at)
        {
            W x[V];

            widen_all(a[i], x);
            for (int k = 0; k < V; k++)
                sum += x[k];
        }
        *middle = group_sum(job, sum, room) * part;
    }
    sum = 0;
    EACH_PART(i, at)
    {
        W x[V];

        widen_all(a[i], x);
        for (int k = 0; k < V; k++)
            sum += (x[k] - *middle) * (x[k] - *middle);
    }
    *scale = (W)1 / root_of(group_sum(job, sum, room) * part + (W)job.eps);
    if (me > 0)
        return;
    if (job.mean != NULL)
        ((W *)job.mean)[row] = *middle;
    ((W *)job.rstd)[row] = *scale;
}

template <class T>
DEVICE void give_normalised(const oari_norm_job &job, int64_t row,
                            int64_t group, int64_t me,
                            pack<T, in_pack<T>::count> *a,
                            typename work_of<T>::type middle,
                            typename work_of<T>::type scale)
{
    typedef typename work_of<T>::type W;
    const int V = in_pack<T>::count;

    EACH_PART(i, at)
    {
        W y[V], w[V];

        widen_all(a[i], y);
        for (int k = 0; k < V; k++)
            y[k] = (y[k] - middle) * scale;
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
        narrow_all(y, &a[i]);
        store_pack<T, V>((T *)job.to + row * job.width + at, a[i]);
    }
}

/* Two rows, one after the other, that are read at once. */
template <class T>
DEVICE void normalise_in_registers(const oari_norm_job &job, int64_t row,
                                   typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const int V = in_pack<T>::count;
    const int64_t group = job.by_block ? (int64_t)blockDim.x : (int64_t)WARP;
    const int64_t me = (int64_t)threadIdx.x % group;
    const T *x = (const T *)job.x + row * job.width;
    const int rows = row + 1 < job.rows ? 2 : 1;
    pack<T, V> a[PARTS] = {}, next[PARTS] = {};

    EACH_PART(i, at)
    {
        a[i] = load_pack<T, V>(x + at);
    }
    if (rows == 2) {
        EACH_PART(i, at)
        {
            next[i] = load_pack<T, V>(x + job.width + at);
        }
    }
#pragma unroll 1
    for (int turn = 0; turn < rows; turn++, row++) {
        W middle = 0, scale;

        if (job.more != NULL)
            add_more<T>(job, row, group, me, a);
        if (job.again) {
            if (job.mean != NULL)
                middle = ((const W *)job.mean)[row];
            scale = ((const W *)job.rstd)[row];
        } else {
            measure<T>(job, row, group, me, a, room, &middle, &scale);
        }
        give_normalised<T>(job, row, group, me, a, middle, scale);
        for (int i = 0; i < PARTS; i++)
            a[i] = next[i];
    }
}

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

template <class T> DEVICE void normalise(const oari_norm_job &job)
{
    OARI_SHARED_MEMORY(typename work_of<T>::type, room);
    int64_t row = blockIdx.x;

    if (!job.by_block)
        row = row * OARI_NORM_WARPS + (int64_t)(threadIdx.x / WARP);
    if (job.in_registers)
        row *= 2;
    if (row >= job.rows)
        return;
    if (job.in_registers)
        normalise_in_registers<T>(job, row, room);
    else
        normalise_row<T>(job, row);
}

OARI_KERNELS_BOUND(OARI_NORM_WARPS *WARP, 3, oari_layer_norm, normalise,
                   oari_norm_job)

/* ---- backward ------------------------------------------------------------ */

/* A pack of a row as it is read, and the numbers of that row. */
template <class T> struct row_part {
    pack<T, in_pack<T>::count> x, g, y;
    typename work_of<T>::type middle, scale;
};

template <class T>
DEVICE void read_part(const oari_norm_back_job &job, int64_t row, int64_t at,
                      row_part<T> *p)
{
    typedef typename work_of<T>::type W;
    const int V = in_pack<T>::count;
    int64_t first = row * job.width + at;

    if (job.mean != NULL)
        p->middle = ((const W *)job.mean)[row];
    p->scale = ((const W *)job.rstd)[row];
    if (at >= job.width)
        return;
    p->x = load_pack<T, V>((const T *)job.x + first);
    p->g = load_pack<T, V>((const T *)job.grad + first);
    if (job.add)
        p->y = load_pack<T, V>((const T *)job.dx + first);
}

/* Sums of two numbers over the block; room has space for 2 * MOST_WARPS, and
 * the call after the next may use the same. */
template <class W> DEVICE void block_sums(W *a, W *b, W *room)
{
    int warps = (int)blockDim.x / WARP;

    *a = warp_sum(*a);
    *b = warp_sum(*b);
    if (warps == 1)
        return;
    if (threadIdx.x % WARP == 0) {
        room[threadIdx.x / WARP] = *a;
        room[MOST_WARPS + threadIdx.x / WARP] = *b;
    }
    __syncthreads();
    *a = *b = 0;
    for (int w = 0; w < warps; w++) {
        *a += room[w];
        *b += room[MOST_WARPS + w];
    }
}

/* Each thread has one pack of every row; it reads those of the next row before
 * it computes. */
template <class T>
DEVICE void back_in_registers(const oari_norm_back_job &job, int64_t first,
                              int64_t end, typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const int V = in_pack<T>::count;
    const int64_t at = (int64_t)threadIdx.x * V;
    const bool mine = at < job.width;
    const W part = (W)1 / (W)job.width;
    W dw[V], db[V], w[V];
    row_part<T> next = {};

    next.middle = 0;
    for (int k = 0; k < V; k++) {
        dw[k] = db[k] = 0;
        w[k] = 1;
    }
    if (job.weight != NULL && mine)
        load_numbers<T, V>(job.weight, job.is_wide, at, w);
    read_part(job, first, at, &next);
#pragma unroll 1
    for (int64_t row = first; row < end; row++) {
        row_part<T> p = next;
        W flat = 0, tilt = 0, h[V], v[V];

        if (row + 1 < end)
            read_part(job, row + 1, at, &next);
        if (mine) {
            widen_all(p.x, h);
            widen_all(p.g, v);
            for (int k = 0; k < V; k++) {
                h[k] = (h[k] - p.middle) * p.scale;
                dw[k] += v[k] * h[k];
                db[k] += v[k];
                v[k] *= w[k];
                flat += v[k];
                tilt += v[k] * h[k];
            }
        }
        if (job.dx == NULL)
            continue;
        block_sums(&flat, &tilt, room + (row & 1) * 2 * MOST_WARPS);
        flat = job.mean != NULL ? flat * part * p.scale : (W)0;
        tilt *= part * p.scale;
        if (!mine)
            continue;
        for (int k = 0; k < V; k++)
            v[k] = v[k] * p.scale - flat - h[k] * tilt;
        if (job.add) {
            widen_all(p.y, h);
            for (int k = 0; k < V; k++)
                v[k] += h[k];
        }
        narrow_all(v, &p.y);
        store_pack<T, V>((T *)job.dx + row * job.width + at, p.y);
    }
    if (job.sums == NULL || !mine)
        return;
    W *out = (W *)job.sums + (int64_t)blockIdx.x * 2 * job.width + at;

    for (int k = 0; k < V; k++) {
        out[k] = dw[k];
        out[job.width + k] = db[k];
    }
}

template <class T>
DEVICE void give_row(const oari_norm_back_job &job, int64_t row)
{
    typedef typename work_of<T>::type W;
    const T *g = (const T *)job.grad + row * job.width;
    const T *x = (const T *)job.x + row * job.width;
    T *dx = (T *)job.dx + row * job.width;
    W middle = job.mean != NULL ? ((const W *)job.mean)[row] : (W)0;
    W scale = ((const W *)job.rstd)[row];
    W flat = 0, tilt = 0;

    EACH_COLUMN(at, job.width)
    {
        W v = widen(g[at]);

        if (job.weight != NULL)
            v *= load_either<T>(job.weight, job.is_wide, at);
        flat += v;
        tilt += v * ((widen(x[at]) - middle) * scale);
    }
    flat = job.mean != NULL ? warp_sum(flat) / (W)job.width : (W)0;
    tilt = warp_sum(tilt) / (W)job.width;
    EACH_COLUMN(at, job.width)
    {
        W v = widen(g[at]), d;

        if (job.weight != NULL)
            v *= load_either<T>(job.weight, job.is_wide, at);
        d = (v - flat - (widen(x[at]) - middle) * scale * tilt) * scale;
        narrow(job.add ? widen(dx[at]) + d : d, dx + at);
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
        back_in_registers<T>(job, first, end, room);
        return;
    }
    for (int64_t i = threadIdx.x; out != NULL && i < job.width; i += blockDim.x)
        sums[i] = sums[job.width + i] = 0;
    for (; first < end; first += OARI_NORM_WARPS) {
        int64_t row = first + (int64_t)(threadIdx.x / WARP);
        int64_t last =
            first + OARI_NORM_WARPS < end ? first + OARI_NORM_WARPS : end;

        if (out != NULL) {
            gather_rows<T>(job, first, last, sums);
            __syncthreads();
        }
        if (job.dx != NULL && row < end)
            give_row<T>(job, row);
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
