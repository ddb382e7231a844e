// SPDX-License-Identifier: Apache-2.0
/* rows: softmax and cross entropy. Rows of softmax that can be read in packs,
 * and are not too long, stay in registers: each has a warp or, if that is too
 * little, a block. All others have a block, and the largest number of a row and
 * the sum of exponentials are found in one pass: each thread keeps both for what
 * it has seen, and the block joins them in a fixed order. A row of a cross
 * entropy whose gradient is wanted too waits for it in shared memory. */
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

/* All of a row are minus infinity: the sum is NaN, as it is on the host. A NaN
 * among the numbers is in the sum. */
template <class T, int V>
DEVICE peak<typename work_of<T>::type>
find_peak(const T *x, int64_t width, typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    W most = (W)-INFINITY, total = 0, all;

    pack<T, V> next = {};

    if ((int64_t)threadIdx.x * V < width)
        next = load_pack<T, V>(x + (int64_t)threadIdx.x * V);
    EACH_PACK(at, width)
    {
        int64_t after = at + (int64_t)blockDim.x * V;
        W e[V], top;

        widen_all(next, e);
        top = e[0];
        if (after < width)
            next = load_pack<T, V>(x + after);
        for (int k = 1; k < V; k++)
            top = larger(top, e[k]);
        if (top > most) {
            total = most == (W)-INFINITY ? total
                                         : total * exp_below(most, top, T());
            most = top;
        }
        if (most != (W)-INFINITY)
            for (int k = 0; k < V; k++)
                total += exp_below(e[k], most, T());
        else if (top != top)
            total = top;
    }
    all = block_max(most, room);
    if (most != all)
        total = most == (W)-INFINITY ? total * 0
                                     : total * exp_below(most, all, T());
    else if (all == (W)-INFINITY)
        total = (W)NAN;
    return { all, block_sum(total, room) };
}

/* ---- softmax ------------------------------------------------------------- */

template <class T, int V>
DEVICE void softmax_row(const oari_softmax_job &job,
                        typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const T *x = (const T *)job.x + (int64_t)blockIdx.x * job.width;
    T *to = (T *)job.to + (int64_t)blockIdx.x * job.width;
    peak<W> p = find_peak<T, V>(x, job.width, room);
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

/* Packs of this thread: part i begins at column (i * group + me) * V. */
enum { PARTS = OARI_ROWS_PARTS };
#define EACH_PART(i, at)                                               \
    _Pragma("unroll") for (int i = 0; i < PARTS;                       \
                           i++) if (int64_t at =                       \
                                        (i * group + me) * (int64_t)V; \
                                    at < job.width)

/* Two rows in registers, of a warp or of a block, one after the other, that are
 * read at once. */
template <class T>
DEVICE void softmax_in_registers(const oari_softmax_job &job, int64_t row,
                                 typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const int V = in_pack<T>::count;
    const int64_t group = job.by_block ? (int64_t)blockDim.x : (int64_t)WARP;
    const int64_t me = (int64_t)threadIdx.x % group;
    const T *x = (const T *)job.x + row * job.width;
    T *to = (T *)job.to + row * job.width;
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
    for (int turn = 0; turn < rows; turn++, to += job.width) {
        W e[V], most = (W)-INFINITY, total = 0, share;

        EACH_PART(i, at)
        {
            widen_all(a[i], e);
            for (int k = 0; k < V; k++)
                most = larger(most, e[k]);
        }
        most = job.by_block ? block_max(most, room) : warp_max(most);
        EACH_PART(i, at)
        {
            widen_all(a[i], e);
            for (int k = 0; k < V; k++)
                total += exp_below(e[k], most, T());
        }
        total = job.by_block ? block_sum(total, room) : warp_sum(total);
        share = job.is_log ? log_of(total) + most : (W)1 / total;
        EACH_PART(i, at)
        {
            widen_all(a[i], e);
            for (int k = 0; k < V; k++)
                e[k] = job.is_log ? e[k] - share
                                  : exp_below(e[k], most, T()) * share;
            narrow_all(e, &a[i]);
            store_pack<T, V>(to + at, a[i]);
        }
        for (int i = 0; i < PARTS; i++)
            a[i] = next[i];
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

OARI_KERNELS(oari_softmax, softmax, oari_softmax_job)

/* ---- cross entropy ------------------------------------------------------- */

/* The target of a row; -1: it does not count. A bad one is reported, and does
 * not count either. */
template <class Job> DEVICE int64_t target_of(const Job &job, int64_t row)
{
    int64_t chosen = job.target[row * job.target_stride];

    if (job.has_ignore && chosen == job.ignore)
        return -1;
    return chosen >= 0 && chosen < job.classes ? chosen : -1;
}

DEVICE void check_target(const oari_entropy_job &job, int64_t row)
{
    int64_t chosen = job.target[row * job.target_stride];

    if ((job.has_ignore && chosen == job.ignore) ||
        (chosen >= 0 && chosen < job.classes))
        return;
    oari_index_report(job.check, OARI_INDEX_CROSS_ENTROPY, row, chosen,
                      job.classes);
}

/* What a row's loss takes of its classes: `target` of the target, and of class
 * k smooth times its weight; `whole` in all. `total`: all classes' weights. */
template <class W> struct shares {
    W target, smooth, whole, total;
};

template <class T>
DEVICE shares<typename work_of<T>::type>
shares_of(const oari_entropy_job &job, int64_t chosen,
          typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const T *weight = (const T *)job.weight;
    shares<W> s = { (W)(1 - job.smoothing), 0, 1, (W)job.classes };

    if (job.smoothing > 0)
        s.smooth = (W)(job.smoothing / (double)job.classes);
    if (weight == NULL)
        return s;
    s.target *= widen(weight[chosen]);
    s.total = 0;
    if (job.smoothing > 0) {
        for (int64_t k = threadIdx.x; k < job.classes; k += blockDim.x)
            s.total += widen(weight[k]);
        s.total = block_sum(s.total, room);
    }
    s.whole = s.target + s.smooth * s.total;
    return s;
}

/* The sum of the classes' weights times their logits. */
template <class T>
DEVICE typename work_of<T>::type weigh_row(const oari_entropy_job &job,
                                           const T *x,
                                           typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const T *weight = (const T *)job.weight;
    W sum = 0;

    for (int64_t k = threadIdx.x; k < job.classes; k += blockDim.x)
        sum += weight != NULL ? widen(weight[k]) * widen(x[k]) : widen(x[k]);
    return block_sum(sum, room);
}

/* The factor of the row's gradient. */
template <class T>
DEVICE typename work_of<T>::type row_factor(const oari_entropy_job &job,
                                            int64_t row)
{
    typedef typename work_of<T>::type W;
    W factor = 1;

    if (job.grad != NULL)
        factor = widen(((const T *)job.grad)[job.each ? row : 0]);
    if (job.by_weight)
        factor = (W)((double)factor / job.sums[1]);
    return factor;
}

/* chosen -1: all is 0. */
template <class T, int V>
DEVICE void entropy_grad(const oari_entropy_job &job, const T *x,
                         int64_t chosen, typename work_of<T>::type lse,
                         const shares<typename work_of<T>::type> &s)
{
    typedef typename work_of<T>::type W;
    const int64_t row = blockIdx.x;
    const T *weight = (const T *)job.weight;
    T *to = (T *)job.to + row * job.classes;
    W factor = chosen >= 0 ? row_factor<T>(job, row) : (W)0;
    W whole = factor * s.whole, smooth = factor * s.smooth;

    if (chosen < 0 && job.add)
        return;
#pragma unroll 2
    EACH_PACK(at, job.classes)
    {
        pack<T, V> a = load_pack<T, V>(x + at);
        pack<T, V> y = {};
        W d[V];

        widen_all(a, d);
        for (int k = 0; k < V; k++)
            d[k] = exp_below(d[k], lse, T()) * whole;
        if (job.smoothing > 0)
            for (int k = 0; k < V; k++)
                d[k] -=
                    weight != NULL ? smooth * widen(weight[at + k]) : smooth;
        if ((uint64_t)(chosen - at) < (uint64_t)V)
            for (int k = 0; k < V; k++)
                d[k] -= at + k == chosen ? factor * s.target : (W)0;
        if (job.add || chosen < 0) {
            if (job.add)
                y = load_pack<T, V>(to + at);
            for (int k = 0; k < V; k++)
                d[k] = chosen < 0 ? (W)0 : widen(y.x[k]) + d[k];
        }
        narrow_all(d, &y);
        store_pack<T, V>(to + at, y);
    }
}

template <class T, int V>
DEVICE void entropy_row(const oari_entropy_job &job,
                        typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const int64_t row = blockIdx.x;
    const T *x = (const T *)job.logits + row * job.classes;
    T *kept = (T *)((char *)room + OARI_ROWS_ROOM);
    const bool in_shared = V > 1 && job.in_shared;
    shares<W> s = { 0, 0, 0, 0 };
    int64_t chosen;
    W lse = 0;

    if (in_shared) {
        EACH_PACK(at, job.classes)
        oari_copy_16(kept + at, x + at, OARI_ROWS_PACK);
        oari_copy_commit();
    }
    chosen = target_of(job, row);
    if (in_shared) {
        oari_copy_wait<0>();
        __syncthreads();
        x = kept;
    }
    if (chosen >= 0)
        s = shares_of<T>(job, chosen, room);
    if (job.has_lse) {
        lse = ((const W *)job.lse)[row];
    } else {
        W loss = 0;

        if (chosen >= 0) {
            peak<W> p = find_peak<T, V>(x, job.classes, room);

            lse = log_of(p.total) + p.most;
            loss = s.target * (lse - widen(x[chosen]));
            if (job.smoothing > 0)
                loss += s.smooth * (lse * s.total - weigh_row<T>(job, x, room));
        }
        if (threadIdx.x == 0) {
            check_target(job, row);
            ((W *)job.lse)[row] = lse;
            if (job.loss != NULL)
                ((W *)job.loss)[row] = loss;
        }
    }
    if (job.to == NULL)
        return;
    __syncthreads(); /* all have read x[chosen], which `to` may be */
    entropy_grad<T, V>(job, x, chosen, lse, s);
}

template <class T> DEVICE void cross_entropy(const oari_entropy_job &job)
{
    OARI_SHARED_MEMORY(typename work_of<T>::type, room);

    if (job.is_packed)
        entropy_row<T, in_pack<T>::count>(job, room);
    else
        entropy_row<T, 1>(job, room);
}

OARI_KERNELS(oari_cross_entropy, cross_entropy, oari_entropy_job)

template <class T> DEVICE void entropy_total(const oari_entropy_total_job &job)
{
    typedef typename work_of<T>::type W;
    OARI_SHARED_MEMORY(double, room);
    double loss = 0, weight = 0;

    for (int64_t row = threadIdx.x; row < job.rows; row += blockDim.x) {
        int64_t chosen = target_of(job, row);

        if (job.loss != NULL)
            loss += (double)((const W *)job.loss)[row];
        if (chosen >= 0)
            weight += job.weight != NULL
                          ? (double)widen(((const T *)job.weight)[chosen])
                          : 1.0;
    }
    loss = block_sum(loss, room);
    weight = block_sum(weight, room);
    if (threadIdx.x > 0)
        return;
    job.sums[0] = loss;
    job.sums[1] = weight;
    if (job.to != NULL) /* of no rows the mean is NaN */
        narrow((W)(job.by_weight ? loss / weight : loss), (T *)job.to);
}

OARI_KERNELS(oari_entropy_total, entropy_total, oari_entropy_total_job)
