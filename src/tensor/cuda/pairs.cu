// SPDX-License-Identifier: Apache-2.0
/* pairs: losses that compare two arrays number by number, by the formulas of
 * cpu/nn/pair_loss.c. A sum is made by each block and then over the blocks, in
 * f64. */
#include "tensor/cuda/element.cuh"
#include "tensor/cuda/pairs_job.h"

/* As oari_pair_kind, which a launcher checks. */
enum { SQUARE, ABSOLUTE, HUBER, SMOOTH, BCE, KL, KL_LOG };

template <class W> DEVICE W size_of(W a)
{
    return a < 0 ? -a : a;
}

/* NaN stays. */
template <class W> DEVICE W sign_of(W a)
{
    return a > 0 ? (W)1 : a < 0 ? (W)-1 : a;
}

template <class W> DEVICE W cut(W a, W top)
{
    return a > top ? top : a < -top ? -top : a;
}

/* log(1 + e^-a) */
template <class W> DEVICE W soft(W a)
{
    return (a < 0 ? -a : (W)0) + log1p_of(exp_of(-size_of(a)));
}

/* One pair; v is its weight, p what positive adds to 1. */
template <class W> struct numbers {
    W a, b, v, p, edge;
};

template <class W> DEVICE W loss_of(int kind, const numbers<W> &n)
{
    W d = n.a - n.b, size = size_of(d);

    switch (kind) {
    case SQUARE: return d * d;
    case ABSOLUTE: return size;
    case HUBER:
        return size <= n.edge ? (W)0.5 * d * d
                              : n.edge * (size - (W)0.5 * n.edge);
    case SMOOTH:
        return size < n.edge ? (W)0.5 * d * d / n.edge : size - (W)0.5 * n.edge;
    case BCE: return n.v * ((1 - n.b) * n.a + (1 + n.p * n.b) * soft(n.a));
    case KL: return n.b == 0 ? (W)0 : n.b * (log_of(n.b) - n.a);
    default: return exp_of(n.b) == 0 ? (W)0 : exp_of(n.b) * (n.b - n.a);
    }
}

template <class W> DEVICE W slope_by_a(int kind, const numbers<W> &n)
{
    W d = n.a - n.b;

    switch (kind) {
    case SQUARE: return 2 * d;
    case ABSOLUTE: return sign_of(d);
    case HUBER: return cut(d, n.edge);
    case SMOOTH: return size_of(d) < n.edge ? d / n.edge : sign_of(d);
    case BCE: return n.v * ((1 - n.b) - (1 + n.p * n.b) / (1 + exp_of(n.a)));
    case KL: return -n.b;
    default: return -exp_of(n.b);
    }
}

template <class W> DEVICE W slope_by_b(int kind, const numbers<W> &n)
{
    switch (kind) {
    case BCE: return n.v * (n.p * soft(n.a) - n.a);
    case KL: return log_of(n.b) - n.a + 1;
    case KL_LOG: return exp_of(n.b) == 0 ? (W)0 : exp_of(n.b) * (n.b - n.a + 1);
    default: return -slope_by_a(kind, n);
    }
}

template <class T>
DEVICE numbers<typename work_of<T>::type> pair_at(const oari_pairs_job &job,
                                                  int64_t i)
{
    typedef typename work_of<T>::type W;

    return { widen(((const T *)job.a)[i]), widen(((const T *)job.b)[i]),
             job.weight != NULL ? widen(((const T *)job.weight)[i]) : (W)1,
             job.positive != NULL ? widen(((const T *)job.positive)[i]) - 1
                                  : (W)0,
             (W)job.edge };
}

template <class T> DEVICE void pair_loss(const oari_pairs_job &job)
{
    OARI_SHARED_MEMORY(double, room);
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    double sum = 0;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
         i < job.count; i += step) {
        typename work_of<T>::type loss = loss_of(job.kind, pair_at<T>(job, i));

        if (job.to != NULL)
            narrow(loss, (T *)job.to + i);
        sum += (double)loss;
    }
    if (job.to != NULL)
        return;
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        job.partial[blockIdx.x] = sum;
}

OARI_KERNELS(oari_pair_loss, pair_loss, oari_pairs_job)

template <class T> DEVICE void pair_back(const oari_pairs_job &job)
{
    typedef typename work_of<T>::type W;
    int64_t step = (int64_t)gridDim.x * blockDim.x;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
         i < job.count; i += step) {
        numbers<W> n = pair_at<T>(job, i);
        W slope = job.by_b ? slope_by_b(job.kind, n) : slope_by_a(job.kind, n);
        T *to = (T *)job.to + i;

        slope *= widen(((const T *)job.grad)[job.each ? i : 0]) * (W)job.factor;
        narrow(job.add ? widen(*to) + slope : slope, to);
    }
}

OARI_KERNELS(oari_pair_back, pair_back, oari_pairs_job)

template <class T> DEVICE void pair_total(const oari_pairs_total_job &job)
{
    typedef typename work_of<T>::type W;
    OARI_SHARED_MEMORY(double, room);
    double sum = 0;

    for (int64_t i = threadIdx.x; i < job.count; i += blockDim.x)
        sum += job.partial[i];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        narrow((W)(sum * job.factor), (T *)job.to);
}

OARI_KERNELS(oari_pair_total, pair_total, oari_pairs_total_job)
