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

/* One number p of a parameter, moved; state[k] is what state k holds for it. */
template <class W>
DEVICE W move_sgd(oari_step_rule rule, const factors_in<W> &f, W p, W g,
                  W *state)
{
    W d = g + f.decay * p, v;

    if (rule == OARI_STEP_SGD)
        return p - f.lr * d;
    v = f.momentum * state[0] + d;
    state[0] = v;
    return p - f.lr * (rule == OARI_STEP_NESTEROV ? d + f.momentum * v : v);
}

template <class W>
DEVICE W move_adam(oari_step_rule rule, const factors_in<W> &f, W p, W g,
                   W *state)
{
    W q = p * f.keep, first = state[0], second = state[1];

    g += f.decay * q;
    first = first + f.take1 * (g - first);
    second = second * f.beta2 + f.take2 * g * g;
    state[0] = first;
    state[1] = second;
    if (rule == OARI_STEP_AMSGRAD)
        state[2] = second = second <= state[2] ? state[2] : second;
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
DEVICE typename work_of<T>::type current_number(T here,
                                                typename work_of<T>::type kept)
{
    T rounded;

    narrow(kept, &rounded);
    return is_same(here, rounded) ? kept : widen(here);
}

/* N elements of T at once, at least 4 bytes. */
template <class T, int N> struct few {
    T x[N];
};

template <class U, class T, int N> DEVICE few<T, N> load_few_as(const T *from)
{
    few<T, N> made;
    U raw = *(const U *)from;

    memcpy(&made, &raw, sizeof made);
    return made;
}

template <class U, class T, int N>
DEVICE void store_few_as(T *to, const few<T, N> &made)
{
    U raw;

    memcpy(&raw, &made, sizeof made);
    *(U *)to = raw;
}

/* What moves so many bytes. */
template <int bytes> struct unit_of;
template <> struct unit_of<2> {
    typedef uint16_t type;
};
template <> struct unit_of<4> {
    typedef uint32_t type;
};
template <> struct unit_of<8> {
    typedef uint2 type;
};
template <> struct unit_of<16> {
    typedef uint4 type;
};

template <int N, class T> DEVICE few<T, N> load_few(const void *from, int64_t i)
{
    return load_few_as<typename unit_of<N * sizeof(T)>::type, T, N>(
        (const T *)from + i);
}

template <int N, class T>
DEVICE void store_few(void *to, int64_t i, const few<T, N> &made)
{
    store_few_as<typename unit_of<N * sizeof(T)>::type, T, N>((T *)to + i,
                                                              made);
}

/* How many states a rule has. */
DEVICE int states_of(oari_step_rule rule)
{
    return rule == OARI_STEP_SGD    ? 0
           : rule < OARI_STEP_ADAM  ? 1
           : rule == OARI_STEP_ADAM ? 2
                                    : 3;
}

/* Numbers i .. i+N-1. */
template <class T, int N>
DEVICE void move_few(const oari_step_job &job,
                     const factors_in<typename work_of<T>::type> &f,
                     typename work_of<T>::type scale,
                     const oari_step_stretch *s, int64_t i)
{
    typedef typename work_of<T>::type W;
    const int states = states_of(job.rule);
    few<T, N> param = load_few<N, T>(s->param, i), narrow_grad;
    few<W, N> master, grad, state[OARI_STEP_STATES];

    if (s->master != NULL)
        master = load_few<N, W>(s->master, i);
    if (s->is_wide)
        grad = load_few<N, W>(s->grad, i);
    else
        narrow_grad = load_few<N, T>(s->grad, i);
#pragma unroll
    for (int n = 0; n < OARI_STEP_STATES; n++)
        if (n < states)
            state[n] = load_few<N, W>(s->state[n], i);
#pragma unroll
    for (int k = 0; k < N; k++) {
        W p = s->master != NULL ? current_number<T>(param.x[k], master.x[k])
                                : widen(param.x[k]);
        W g = (s->is_wide ? grad.x[k] : widen(narrow_grad.x[k])) * scale;
        W here[OARI_STEP_STATES];

        for (int n = 0; n < OARI_STEP_STATES; n++)
            here[n] = n < states ? state[n].x[k] : (W)0;
        p = job.rule < OARI_STEP_ADAM ? move_sgd<W>(job.rule, f, p, g, here)
                                      : move_adam<W>(job.rule, f, p, g, here);
        for (int n = 0; n < OARI_STEP_STATES; n++)
            state[n].x[k] = here[n];
        master.x[k] = p;
        narrow(p, &param.x[k]);
    }
#pragma unroll
    for (int n = 0; n < OARI_STEP_STATES; n++)
        if (n < states)
            store_few<N, W>(s->state[n], i, state[n]);
    if (s->master != NULL)
        store_few<N, W>(s->master, i, master);
    store_few<N, T>(s->param, i, param);
}

template <class T> DEVICE void step_numbers(const oari_step_job &job)
{
    typedef typename work_of<T>::type W;
    const int N = in_pack<W>::count;
    factors_in<W> f = read_factors<W>(job.factors);
    W scale = job.scale != NULL ? (W)job.scale[0] : (W)1;
    int64_t first, end, rest;
    const oari_step_stretch *s =
        find_stretch(job.stretch, job.stretches, &first);

    if (scale < 0) /* a gradient was not finite */
        return;
    end = share_end(s, first);
    rest = s->is_packed ? end - (end - first) % N : first;
    for (int64_t i = first + threadIdx.x * N; i < rest;
         i += OARI_STEP_THREADS * N)
        move_few<T, N>(job, f, scale, s, i);
    for (int64_t i = rest + threadIdx.x; i < end; i += OARI_STEP_THREADS)
        move_few<T, 1>(job, f, scale, s, i);
}

OARI_KERNELS(oari_step, step_numbers, oari_step_job)

extern "C" __global__ void
oari_step_put_factors(const __grid_constant__ oari_step_factors_job job)
{
    oari_step_factors f;
    double before, number;

    if (threadIdx.x > 0)
        return;
    f = job.are_there ? *job.to : job.factors;
    if (job.skipped != NULL && *job.skipped > 0 && f.number > 0) {
        before = f.number;
        number = before - *job.skipped > 1 ? before - *job.skipped : 1;
        f.step *=
            (1 - pow(1 - f.take1, before)) / (1 - pow(1 - f.take1, number));
        f.root2 = sqrt(1 - pow(f.beta2, number));
        f.number = number;
    }
    *job.to = f;
}

/* ---- the norm of all gradients ------------------------------------------- */

template <class T> DEVICE void sum_squares(const oari_step_job &job)
{
    typedef typename work_of<T>::type W;
    const int N = in_pack<W>::count;
    OARI_SHARED_MEMORY(double, room);
    double sum = 0;
    int64_t first, end, rest;
    const oari_step_stretch *s =
        find_stretch(job.stretch, job.stretches, &first);

    end = share_end(s, first);
    rest = s->is_packed ? end - (end - first) % N : first;
#pragma unroll 4
    for (int64_t i = first + threadIdx.x * N; i < rest;
         i += OARI_STEP_THREADS * N) {
        W g[N];

        if (s->is_wide) {
            few<W, N> a = load_few<N, W>(s->grad, i);

            for (int k = 0; k < N; k++)
                g[k] = a.x[k];
        } else {
            few<T, N> a = load_few<N, T>(s->grad, i);

            for (int k = 0; k < N; k++)
                g[k] = widen(a.x[k]);
        }
        for (int k = 0; k < N; k++)
            sum += (double)g[k] * (double)g[k];
    }
    for (int64_t i = rest + threadIdx.x; i < end; i += OARI_STEP_THREADS) {
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

/* As optim/scaler.c does it. Returns what unscales. */
DEVICE double move_scale(const oari_clip_job &job, int is_finite)
{
    const float least = 2.3509887e-38f, most = 1.7014117e38f;
    oari_scaler_numbers now = *job.scaler;
    double unscale = 1 / (double)now.scale;

    if (!is_finite) {
        ++*job.skipped;
        now.good = 0;
        now.scale = now.scale > least ? now.scale / 2 : now.scale;
    } else if (++now.good >= job.interval) {
        now.good = 0;
        now.scale = now.scale < most ? now.scale * 2 : now.scale;
    }
    *job.scaler = now;
    return unscale;
}

/* Where the norm is not finite the gradients stay as they are. */
extern "C" __global__ void oari_clip(const __grid_constant__ oari_clip_job job)
{
    const double guard = 1e-6; /* as optim/clip.c */
    OARI_SHARED_MEMORY(double, room);
    double sum = 0, norm, factor, unscale = 1;
    int is_finite;

    for (int64_t i = threadIdx.x; i < job.blocks; i += blockDim.x)
        sum += job.partial[i];
    norm = sqrt(block_sum(sum, room));
    if (threadIdx.x > 0)
        return;
    is_finite = norm - norm == 0;
    if (job.scaler != NULL)
        unscale = move_scale(job, is_finite);
    norm *= unscale;
    factor = job.limit / (norm + guard);
    job.numbers[0] = norm;
    job.numbers[1] = (is_finite && factor < 1 ? factor : 1) * unscale;
    if (job.scaler != NULL && !is_finite)
        job.numbers[1] = -1;
    if (job.norm != NULL)
        *job.norm = (float)norm;
}
