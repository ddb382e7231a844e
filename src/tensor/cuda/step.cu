// SPDX-License-Identifier: Apache-2.0
/* step: an optimizer's step on many parameters at once, by the formulas of
 * optim/adam.c and optim/sgd.c; and the norm of all gradients. A block takes a
 * share of one stretch. */
#include "tensor/cuda/element.cuh"
#include "tensor/cuda/step_job.h"

/* The stretch of this block, and where its share begins. */
DEVICE const oari_step_stretch *find_stretch(const oari_step_stretch *stretch,
                                             int stretches, int64_t *first)
{
    int low = 0, high = stretches - 1;

    while (low < high) {
        int middle = (low + high + 1) / 2;

        if (stretch[middle].first_block <= blockIdx.x)
            low = middle;
        else
            high = middle - 1;
    }
    *first = (int64_t)(blockIdx.x - stretch[low].first_block) * OARI_STEP_SHARE;
    return &stretch[low];
}

DEVICE int64_t share_end(const oari_step_stretch *s, int64_t first)
{
    return first + OARI_STEP_SHARE < s->count ? first + OARI_STEP_SHARE
                                              : s->count;
}

/* The factors as numbers of the type that is computed in. */
template <class W> struct factors_in {
    W lr, decay, momentum, keep, take1, beta2, take2, root2, eps, step;
};

template <class W> DEVICE factors_in<W> read_factors(const oari_step_factors *f)
{
    return {
        (W)f->lr,    (W)f->decay, (W)f->momentum, (W)f->keep, (W)f->take1,
        (W)f->beta2, (W)f->take2, (W)f->root2,    (W)f->eps,  (W)-f->step
    };
}

template <class W>
DEVICE W move_sgd(oari_step_rule rule, const factors_in<W> &f, W p, W g,
                  const oari_step_stretch *s, int64_t i)
{
    W d = g + f.decay * p, v;

    if (rule == OARI_STEP_SGD)
        return p - f.lr * d;
    v = f.momentum * ((W *)s->state[0])[i] + d;
    ((W *)s->state[0])[i] = v;
    return p - f.lr * (rule == OARI_STEP_NESTEROV ? d + f.momentum * v : v);
}

template <class W>
DEVICE W move_adam(oari_step_rule rule, const factors_in<W> &f, W p, W g,
                   const oari_step_stretch *s, int64_t i)
{
    W *m = (W *)s->state[0], *v = (W *)s->state[1];
    W q = p * f.keep, first = m[i], second = v[i];

    g += f.decay * q;
    first = first + f.take1 * (g - first);
    second = second * f.beta2 + f.take2 * g * g;
    m[i] = first;
    v[i] = second;
    if (rule == OARI_STEP_AMSGRAD) {
        W *most = (W *)s->state[2];

        second = second <= most[i] ? most[i] : second;
        most[i] = second;
    }
    return q + f.step * first / (root_of(second) / f.root2 + f.eps);
}

DEVICE int is_same(float a, float b)
{
    return a == b;
}

DEVICE int is_same(double a, double b)
{
    return a == b;
}

template <class T> DEVICE int is_same(T a, T b)
{
    return a.bits == b.bits;
}

/* The number to move: that of the master, unless somebody has written to the
 * parameter, which is then no longer the master rounded. */
template <class T>
DEVICE typename work_of<T>::type current_number(const oari_step_stretch *s,
                                                int64_t i)
{
    typedef typename work_of<T>::type W;
    T here = ((const T *)s->param)[i], rounded;
    W kept;

    if (s->master == NULL)
        return widen(here);
    kept = ((const W *)s->master)[i];
    narrow(kept, &rounded);
    return is_same(here, rounded) ? kept : widen(here);
}

template <class T>
DEVICE void move_one(const oari_step_job &job,
                     const factors_in<typename work_of<T>::type> &f,
                     typename work_of<T>::type scale,
                     const oari_step_stretch *s, int64_t i)
{
    typedef typename work_of<T>::type W;
    W p = current_number<T>(s, i);
    W g = load_either<T>(s->grad, (int)s->is_wide, i) * scale;

    p = job.rule < OARI_STEP_ADAM ? move_sgd<W>(job.rule, f, p, g, s, i)
                                  : move_adam<W>(job.rule, f, p, g, s, i);
    if (s->master != NULL)
        ((W *)s->master)[i] = p;
    narrow(p, (T *)s->param + i);
}

template <class T> DEVICE void step_numbers(const oari_step_job &job)
{
    typedef typename work_of<T>::type W;
    factors_in<W> f = read_factors<W>(job.factors);
    W scale = job.scale != NULL ? (W)job.scale[0] : (W)1;
    int64_t first, end;
    const oari_step_stretch *s =
        find_stretch(job.stretch, job.stretches, &first);

    end = share_end(s, first);
#pragma unroll 4
    for (int64_t i = first + threadIdx.x; i < end; i += OARI_STEP_THREADS)
        move_one<T>(job, f, scale, s, i);
}

OARI_KERNELS(oari_step, step_numbers, oari_step_job)

extern "C" __global__ void
oari_step_put_factors(const __grid_constant__ oari_step_factors_job job)
{
    if (threadIdx.x == 0)
        *job.to = job.factors;
}

/* ---- the norm of all gradients ------------------------------------------- */

template <class T> DEVICE void sum_squares(const oari_step_job &job)
{
    OARI_SHARED_MEMORY(double, room);
    double sum = 0;
    int64_t first, end;
    const oari_step_stretch *s =
        find_stretch(job.stretch, job.stretches, &first);

    end = share_end(s, first);
#pragma unroll 4
    for (int64_t i = first + threadIdx.x; i < end; i += OARI_STEP_THREADS) {
        double g = (double)load_either<T>(s->grad, (int)s->is_wide, i);

        sum += g * g;
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        job.partial[blockIdx.x] = sum;
}

OARI_KERNELS(oari_grad_squares, sum_squares, oari_step_job)

template <class T> DEVICE void scale_numbers(const oari_step_job &job)
{
    typedef typename work_of<T>::type W;
    W scale = (W)job.scale[0];
    int64_t first, end;
    const oari_step_stretch *s =
        find_stretch(job.stretch, job.stretches, &first);

    end = share_end(s, first);
    if (scale == (W)1)
        return;
    for (int64_t i = first + threadIdx.x; i < end; i += OARI_STEP_THREADS)
        store_either<T>(s->grad, (int)s->is_wide, i,
                        load_either<T>(s->grad, (int)s->is_wide, i) * scale);
}

OARI_KERNELS(oari_scale_grads, scale_numbers, oari_step_job)

/* Where the norm is not finite the gradients stay as they are. */
extern "C" __global__ void oari_clip(const __grid_constant__ oari_clip_job job)
{
    const double guard = 1e-6; /* as optim/clip.c */
    OARI_SHARED_MEMORY(double, room);
    double sum = 0, norm, factor;

    for (int64_t i = threadIdx.x; i < job.blocks; i += blockDim.x)
        sum += job.partial[i];
    norm = sqrt(block_sum(sum, room));
    if (threadIdx.x > 0)
        return;
    factor = job.limit / (norm + guard);
    job.numbers[0] = norm;
    job.numbers[1] = norm - norm == 0 && factor < 1 ? factor : 1;
    if (job.norm != NULL)
        *job.norm = (float)norm;
}
