// SPDX-License-Identifier: Apache-2.0
/* norm_back: gradients of layer norm and RMS norm. A block has its own stretch of
 * rows; those that can be read in packs are read ahead, and stay in registers. A
 * row that fits a warp has one, and each lane of all warps the same columns; a
 * longer one has the block. The gradients of weight and bias are
 * summed over the rows of a warp or thread first, then over the warps of a block,
 * and then over the blocks, in their order. Other rows are read again for each
 * pass, by a warp. */
#include "tensor/cuda/element.cuh"
#include "tensor/cuda/mma.h"
#include "tensor/cuda/norm_job.h"

/* For each column of this lane. */
#define EACH_COLUMN(at, width) \
    for (int64_t at = threadIdx.x % WARP; at < (width); at += WARP)

/* ---- rows in registers --------------------------------------------------- */

/* This thread's packs of a row as they are read, and the numbers of that row. */
template <class T, int PARTS> struct row_part {
    pack<T, in_pack<T>::count> x[1][PARTS], g[1][PARTS], y[1][PARTS];
    typename work_of<T>::type middle, scale;
};

template <class T, int PARTS>
DEVICE void read_part(const oari_norm_back_job &job, int64_t row, int64_t group,
                      int64_t me, row_part<T, PARTS> *p)
{
    typedef typename work_of<T>::type W;

    load_rows<T>(job, job.x, row, 1, group, me, p->x);
    load_rows<T>(job, job.grad, row, 1, group, me, p->g);
    if (job.add)
        load_rows<T>(job, job.dx, row, 1, group, me, p->y);
    if (job.mean != NULL)
        p->middle = ((const W *)job.mean)[row];
    p->scale = ((const W *)job.rstd)[row];
}

/* What a pack of a row gives: the row normalised, and the gradient of that. */
template <class T>
DEVICE void
open_pack(const oari_norm_back_job &job, int64_t at,
          const pack<T, in_pack<T>::count> &x,
          const pack<T, in_pack<T>::count> &g, typename work_of<T>::type middle,
          typename work_of<T>::type scale, typename work_of<T>::type *h,
          typename work_of<T>::type *v)
{
    const int V = in_pack<T>::count;
    typename work_of<T>::type w[V];

    widen_all(x, h);
    widen_all(g, v);
    for (int k = 0; k < V; k++)
        h[k] = (h[k] - middle) * scale;
    if (job.weight == NULL)
        return;
    load_numbers<T, V>(job.weight, job.is_wide, at, w);
    for (int k = 0; k < V; k++)
        v[k] *= w[k];
}

/* Sums over columns of this thread. */
template <class T, int PARTS> struct column_sums {
    typename work_of<T>::type dw[PARTS][in_pack<T>::count],
        db[PARTS][in_pack<T>::count];
};

/* Adds a row to the columns' sums; sum gets the thread's part of the row's. */
template <class T, int PARTS>
DEVICE void add_row(const oari_norm_back_job &job, int64_t group, int64_t me,
                    const row_part<T, PARTS> &p, column_sums<T, PARTS> *all,
                    typename work_of<T>::type *sum)
{
    typedef typename work_of<T>::type W;
    const int V = in_pack<T>::count;

    EACH_PART(i, at)
    {
        W h[V], v[V], g[V];

        open_pack<T>(job, at, p.x[0][i], p.g[0][i], p.middle, p.scale, h, v);
        widen_all(p.g[0][i], g);
        for (int k = 0; k < V; k++) {
            all->dw[i][k] += g[k] * h[k];
            all->db[i][k] += g[k];
            sum[0] += v[k];
            sum[1] += v[k] * h[k];
        }
    }
}

/* sum: of the gradient, and of it times the row normalised, over the row. */
template <class T, int PARTS>
DEVICE void give_dx(const oari_norm_back_job &job, int64_t row, int64_t group,
                    int64_t me, row_part<T, PARTS> *p,
                    const typename work_of<T>::type *sum)
{
    typedef typename work_of<T>::type W;
    const int V = in_pack<T>::count;
    const W part = p->scale / (W)job.width;
    const W flat = job.mean != NULL ? sum[0] * part : (W)0;
    const W tilt = sum[1] * part;

    EACH_PART(i, at)
    {
        W h[V], v[V];

        open_pack<T>(job, at, p->x[0][i], p->g[0][i], p->middle, p->scale, h,
                     v);
        for (int k = 0; k < V; k++)
            v[k] = v[k] * p->scale - flat - h[k] * tilt;
        if (job.add) {
            widen_all(p->y[0][i], h);
            for (int k = 0; k < V; k++)
                v[k] += h[k];
        }
        narrow_all(v, &p->y[0][i]);
        store_pack<T, V>((T *)job.dx + row * job.width + at, p->y[0][i]);
    }
}

/* Rows first .. end-1 of a block. */
template <class T, int PARTS>
DEVICE void run_rows(const oari_norm_back_job &job, int64_t first, int64_t end,
                     int64_t group, int64_t me, column_sums<T, PARTS> *all,
                     typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    row_part<T, PARTS> next = {};

    if (first < end)
        read_part(job, first, group, me, &next);
#pragma unroll 1
    for (int64_t row = first; row < end; row++) {
        row_part<T, PARTS> p = next;
        W sum[2] = { 0, 0 };

        if (row + 1 < end)
            read_part(job, row + 1, group, me, &next);
        add_row(job, group, me, p, all, sum);
        if (job.dx == NULL)
            continue;
        block_sums(sum, room + (row & 1) * 2 * MOST_WARPS);
        give_dx(job, row, group, me, &p, sum);
    }
}

/* A warp's rows on their way through shared memory, STAGES at a time. A lane
 * reads only what it has copied itself. */
enum { PARTS = OARI_NORM_PARTS, STAGES = OARI_NORM_STAGES };

template <class T>
DEVICE pack<T, in_pack<T>::count> *place_of(char *ring, int stage, int array,
                                            int part)
{
    return (pack<T, in_pack<T>::count>
                *)(void *)(ring + (((stage * OARI_NORM_ARRAYS + array) * PARTS +
                                    part) *
                                       WARP +
                                   (int)threadIdx.x % WARP) *
                                      16);
}

/* Begins to copy a row; nothing if there is none, but it counts. */
template <class T>
DEVICE void copy_row(const oari_norm_back_job &job, int64_t row, int64_t end,
                     int64_t me, char *ring, int stage)
{
    const int V = in_pack<T>::count;
    const int64_t group = WARP, first = row * job.width;

    if (row < end)
        EACH_PART(i, at)
        {
            oari_copy_16(place_of<T>(ring, stage, 0, i),
                         (const T *)job.x + first + at, 16);
            oari_copy_16(place_of<T>(ring, stage, 1, i),
                         (const T *)job.grad + first + at, 16);
            if (job.add)
                oari_copy_16(place_of<T>(ring, stage, 2, i),
                             (const T *)job.dx + first + at, 16);
        }
    oari_copy_commit();
}

template <class T>
DEVICE void take_row(const oari_norm_back_job &job, int64_t me, char *ring,
                     int stage, row_part<T, PARTS> *p)
{
    const int V = in_pack<T>::count;
    const int64_t group = WARP;

    EACH_PART(i, at)
    {
        p->x[0][i] = *place_of<T>(ring, stage, 0, i);
        p->g[0][i] = *place_of<T>(ring, stage, 1, i);
        if (job.add)
            p->y[0][i] = *place_of<T>(ring, stage, 2, i);
    }
}

/* Rows first, first + warps, .. of a warp. */
template <class T>
DEVICE void run_ring(const oari_norm_back_job &job, int64_t first, int64_t end,
                     int64_t me, char *ring, column_sums<T, PARTS> *all)
{
    typedef typename work_of<T>::type W;
    const int64_t step = OARI_NORM_BACK_WARPS;
    W middle = 0, scale = 0;
    int stage = 0;

    for (int s = 0; s < STAGES - 1; s++)
        copy_row<T>(job, first + s * step, end, me, ring, s);
    if (first < end) {
        middle = job.mean != NULL ? ((const W *)job.mean)[first] : (W)0;
        scale = ((const W *)job.rstd)[first];
    }
#pragma unroll 1
    for (int64_t row = first; row < end; row += step) {
        row_part<T, PARTS> p = {};
        W sum[2] = { 0, 0 };

        p.middle = middle;
        p.scale = scale;
        if (row + step < end) {
            if (job.mean != NULL)
                middle = ((const W *)job.mean)[row + step];
            scale = ((const W *)job.rstd)[row + step];
        }
        oari_copy_wait<STAGES - 2>();
        take_row<T>(job, me, ring, stage, &p);
        copy_row<T>(job, row + (STAGES - 1) * step, end, me, ring,
                    stage > 0 ? stage - 1 : STAGES - 1);
        stage = stage < STAGES - 1 ? stage + 1 : 0;
        add_row(job, WARP, me, p, all, sum);
        if (job.dx == NULL)
            continue;
        warp_sums(sum);
        give_dx(job, row, WARP, me, &p, sum);
    }
    oari_copy_wait<0>();
}

/* A row for each warp: of columns, the warps are added up in their order. */
template <class T> DEVICE void back_by_warp(const oari_norm_back_job &job)
{
    typedef typename work_of<T>::type W;
    OARI_SHARED_MEMORY(char, ring); /* then sums [warps, 2, width] */
    W *room = (W *)(void *)ring;
    const int V = in_pack<T>::count;
    const int64_t group = WARP, me = (int64_t)threadIdx.x % WARP;
    const int64_t warp = (int64_t)threadIdx.x / WARP;
    const int64_t first = (int64_t)blockIdx.x * job.share;
    const int64_t end =
        first + job.share < job.rows ? first + job.share : job.rows;
    column_sums<T, PARTS> all = {};

    run_ring<T>(job, first + warp, end, me, ring + warp * OARI_NORM_RING, &all);
    if (job.sums == NULL)
        return;
    __syncthreads(); /* all are through with the ring */
    EACH_PART(i, at)
    {
        W *mine = room + warp * 2 * job.width + at;

        for (int k = 0; k < V; k++) {
            mine[k] = all.dw[i][k];
            mine[job.width + k] = all.db[i][k];
        }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < 2 * job.width; i += blockDim.x) {
        W sum = room[i];

        for (int w = 1; w < OARI_NORM_BACK_WARPS; w++)
            sum += room[w * 2 * job.width + i];
        ((W *)job.sums)[(int64_t)blockIdx.x * 2 * job.width + i] = sum;
    }
}

OARI_KERNELS_BOUND(OARI_NORM_BACK_WARPS *WARP, 4, oari_norm_back, back_by_warp,
                   oari_norm_back_job)

/* A row for the block. */
template <class T, int PARTS>
DEVICE void back_by_block(const oari_norm_back_job &job)
{
    typedef typename work_of<T>::type W;
    OARI_SHARED_MEMORY(W, room);
    const int V = in_pack<T>::count;
    const int64_t group = blockDim.x, me = threadIdx.x;
    const int64_t first = (int64_t)blockIdx.x * job.share;
    const int64_t end =
        first + job.share < job.rows ? first + job.share : job.rows;
    column_sums<T, PARTS> all = {};

    run_rows<T, PARTS>(job, first, end, group, me, &all, room);
    if (job.sums == NULL)
        return;
    EACH_PART(i, at)
    {
        W *out = (W *)job.sums + (int64_t)blockIdx.x * 2 * job.width + at;

        for (int k = 0; k < V; k++) {
            out[k] = all.dw[i][k];
            out[job.width + k] = all.db[i][k];
        }
    }
}

template <class T> DEVICE void back_wide(const oari_norm_back_job &job)
{
    back_by_block<T, 1>(job);
}

OARI_KERNELS_BOUND(OARI_NORM_THREADS, 1, oari_norm_back_wide, back_wide,
                   oari_norm_back_job)

template <class T> DEVICE void back_wider(const oari_norm_back_job &job)
{
    back_by_block<T, 2>(job);
}

OARI_KERNELS_BOUND(OARI_NORM_THREADS, 1, oari_norm_back_wider, back_wider,
                   oari_norm_back_job)

/* ---- other rows ---------------------------------------------------------- */

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
template <class T> DEVICE void back_again(const oari_norm_back_job &job)
{
    typedef typename work_of<T>::type W;
    OARI_SHARED_MEMORY(W, room);
    W *out = job.sums != NULL
                 ? (W *)job.sums + (int64_t)blockIdx.x * 2 * job.width
                 : NULL;
    W *sums = job.in_shared ? room : out;
    int64_t first = (int64_t)blockIdx.x * job.share;
    int64_t end = first + job.share < job.rows ? first + job.share : job.rows;

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

OARI_KERNELS(oari_norm_back_any, back_again, oari_norm_back_job)

/* ---- all blocks ---------------------------------------------------------- */

/* Blocks are added up by warps side by side, each every 32nd, and then the warps
 * in their order. Lane k of a warp has column k of the block's. */
template <class T> DEVICE void total_columns(const oari_norm_total_job &job)
{
    typedef typename work_of<T>::type W;
    OARI_SHARED_MEMORY(W, room); /* [warps, 2, columns] */
    const int AHEAD = 8;
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t column = (int64_t)blockIdx.x * OARI_NORM_COLUMNS + lane;
    const W *sums = (const W *)job.sums;
    W dw = 0, db = 0;

    if (column < job.width)
        for (int64_t b = warp; b < job.blocks;
             b += AHEAD * OARI_NORM_TOTAL_WARPS) {
            W x[AHEAD], y[AHEAD];

#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                int64_t from = b + i * OARI_NORM_TOTAL_WARPS;
                bool is = from < job.blocks;

                x[i] = is ? sums[2 * from * job.width + column] : (W)0;
                y[i] = is ? sums[(2 * from + 1) * job.width + column] : (W)0;
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                dw += x[i];
                db += y[i];
            }
        }
    room[(2 * warp) * WARP + lane] = dw;
    room[(2 * warp + 1) * WARP + lane] = db;
    __syncthreads();
    if (warp > 0 || column >= job.width)
        return;
    for (int k = 1; k < OARI_NORM_TOTAL_WARPS; k++) {
        dw += room[(2 * k) * WARP + lane];
        db += room[(2 * k + 1) * WARP + lane];
    }
    if (job.dweight != NULL)
        store_either<T>(job.dweight, job.is_wide, column, dw);
    if (job.dbias != NULL)
        store_either<T>(job.dbias, job.is_wide, column, db);
}

OARI_KERNELS(oari_norm_total, total_columns, oari_norm_total_job)
