// SPDX-License-Identifier: Apache-2.0
/* rows: softmax and cross entropy, a block for each row. The largest number of
 * a row and the sum of exponentials are found in one pass: each thread keeps
 * both for what it has seen, and the block joins them in a fixed order. */
#include "tensor/cuda/element.cuh"
#include "tensor/cuda/rows_job.h"

/* For each pack of this thread: `at` is its first column. */
#define EACH_PACK(at, width)                                  \
    for (int64_t at = (int64_t)threadIdx.x * V; at < (width); \
         at += (int64_t)blockDim.x * V)

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

/* The largest number and the sum of exp(number - largest). */
template <class W> struct peak {
    W most, total;
};

/* All of a row are minus infinity: the sum is NaN, as it is on the host. */
template <class T, int V>
DEVICE peak<typename work_of<T>::type>
find_peak(const T *x, int64_t width, typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    W most = (W)-INFINITY, total = 0, all;

    EACH_PACK(at, width)
    {
        pack<T, V> a = load_pack<T, V>(x + at);
        W top = widen(a.x[0]);

        for (int k = 1; k < V; k++) {
            W y = widen(a.x[k]);

            top = y > top || y != y ? y : top;
        }
        if (top > most || top != top) {
            total =
                most == (W)-INFINITY ? (W)0 : total * exp_as(most - top, T());
            most = top;
        }
        if (most != (W)-INFINITY)
            for (int k = 0; k < V; k++)
                total += exp_as(widen(a.x[k]) - most, T());
    }
    all = block_max(most, room);
    total = most == (W)-INFINITY && all != most
                ? (W)0
                : total * exp_as(most - all, T());
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

            narrow(job.is_log ? y - share : exp_as(y, T()) * share, &a.x[k]);
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
        pack<T, V> y;

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

template <class T> DEVICE void softmax(const oari_softmax_job &job)
{
    OARI_SHARED_MEMORY(typename work_of<T>::type, room);

    if (job.grad == NULL && job.is_packed)
        softmax_row<T, in_pack<T>::count>(job, room);
    else if (job.grad == NULL)
        softmax_row<T, 1>(job, room);
    else if (job.is_packed)
        softmax_row_back<T, in_pack<T>::count>(job, room);
    else
        softmax_row_back<T, 1>(job, room);
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
    EACH_PACK(at, job.classes)
    {
        pack<T, V> a = load_pack<T, V>(x + at);
        pack<T, V> y;

        if (job.add)
            y = load_pack<T, V>(to + at);
        for (int k = 0; k < V; k++) {
            W d = exp_as(widen(a.x[k]) - lse, T()) * whole;

            if (job.smoothing > 0)
                d -= weight != NULL ? smooth * widen(weight[at + k]) : smooth;
            if (at + k == chosen)
                d -= factor * s.target;
            if (chosen < 0)
                d = 0;
            narrow(job.add ? widen(y.x[k]) + d : d, &y.x[k]);
        }
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
    int64_t chosen = target_of(job, row);
    shares<W> s = { 0, 0, 0, 0 };
    W lse = 0;

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
