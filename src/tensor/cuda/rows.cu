// SPDX-License-Identifier: Apache-2.0
/* rows: cross entropy. A row has a block; the largest number of a row and the sum
 * of exponentials are found in one pass. A row whose gradient is wanted too waits
 * for it in shared memory. */
#include "tensor/cuda/rows.cuh"

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

/* in_shared: a row waits in shared memory. Then two blocks are to fit a
 * processor, and a thread has few registers. */
template <class T, int V, bool in_shared>
DEVICE void entropy_row(const oari_entropy_job &job,
                        typename work_of<T>::type *room)
{
    typedef typename work_of<T>::type W;
    const int64_t row = blockIdx.x;
    const T *x = (const T *)job.logits + row * job.classes;
    T *kept = (T *)((char *)room + OARI_ROWS_ROOM);
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
            peak<W> p = find_peak < T, V,
                    in_shared ? 1 : 2 > (x, job.classes, room);

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
        entropy_row<T, in_pack<T>::count, false>(job, room);
    else
        entropy_row<T, 1, false>(job, room);
}

OARI_KERNELS(oari_cross_entropy, cross_entropy, oari_entropy_job)

template <class T> DEVICE void cross_entropy_kept(const oari_entropy_job &job)
{
    OARI_SHARED_MEMORY(typename work_of<T>::type, room);

    entropy_row<T, in_pack<T>::count, true>(job, room);
}

OARI_KERNELS_BOUND(OARI_ROWS_KEPT_THREADS, 2, oari_cross_entropy_kept,
                   cross_entropy_kept, oari_entropy_job)

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
