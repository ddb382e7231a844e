// SPDX-License-Identifier: Apache-2.0
/* channel_norm: batch norm and group norm. Sums are f64, made by threads and
 * segments in an order that depends on shapes only. */
#include "tensor/cuda/channel_job.h"
#include "tensor/cuda/element.cuh"
#include "tensor/cuda/numbers.cuh"

/* ---- sums ---------------------------------------------------------------- */

struct two_sums {
    double first, second;
};

/* Where number k of a channel is: they go image by image. */
DEVICE int64_t place_of(const oari_channel_sums_job &job, int64_t channel,
                        int64_t k)
{
    int64_t image = job.inner == 1 ? k : k / job.inner;

    return (image * job.channels + channel) * job.inner + k - image * job.inner;
}

/* Of numbers from, from + step, .. below `to` of a channel. */
DEVICE two_sums add_up(const oari_channel_sums_job &job, int64_t channel,
                       int64_t from, int64_t to, int64_t step)
{
    int64_t first = channel * job.inner;
    double middle = job.grad != NULL
                        ? job.mean[channel / job.shared]
                        : load_as<double>(job.x, job.x_dtype, first);
    two_sums s = { 0, 0 };

    for (int64_t k = from; k < to; k += step) {
        int64_t at = place_of(job, channel, k);
        double far = load_as<double>(job.x, job.x_dtype, at) - middle;
        double g = job.grad != NULL
                       ? load_as<double>(job.grad, job.grad_dtype, at)
                       : far;

        s.first += g;
        s.second += g * far;
    }
    return s;
}

DEVICE void put_sums(const oari_channel_sums_job &job, int64_t segment,
                     int64_t channel, two_sums s)
{
    double *to = job.partial + segment * 2 * job.channels;

    to[channel] = s.first;
    to[job.channels + channel] = s.second;
}

DEVICE int64_t end_of(const oari_channel_sums_job &job, int64_t first)
{
    int64_t all = job.images * job.inner;

    return first + job.each < all ? first + job.each : all;
}

/* A block for each channel and segment: numbers of a channel lie together. */
extern "C" __global__ void
oari_channel_sums_blocks(const __grid_constant__ oari_channel_sums_job job)
{
    __shared__ double room[MOST_WARPS];
    int64_t channel = blockIdx.x, first = (int64_t)blockIdx.y * job.each;
    two_sums s = add_up(job, channel, first + threadIdx.x, end_of(job, first),
                        blockDim.x);

    s.first = block_sum(s.first, room);
    s.second = block_sum(s.second, room);
    if (threadIdx.x == 0)
        put_sums(job, blockIdx.y, channel, s);
}

/* What packs of a T are added up in first: as many numbers as a pack of halves
 * has may be added in f32. */
template <class T> struct pack_sum_of {
    typedef double type;
};
template <> struct pack_sum_of<f16> {
    typedef float type;
};
template <> struct pack_sum_of<bf16> {
    typedef float type;
};

/* The same with packs, which lie within an image. */
template <class T>
DEVICE two_sums add_up_packs(const oari_channel_sums_job &job, uint32_t channel,
                             uint32_t from, uint32_t to, uint32_t step)
{
    typedef typename work_of<T>::type W;
    typedef typename pack_sum_of<T>::type S;
    const int V = in_pack<T>::count;
    const uint32_t inner = (uint32_t)(job.inner / V);
    const S middle =
        job.grad != NULL
            ? (S)job.mean[channel / (uint32_t)job.shared]
            : (S)widen(((const T *)job.x)[(int64_t)channel * job.inner]);
    two_sums s = { 0, 0 };

#pragma unroll 4
    for (uint32_t k = from; k < to; k += step) {
        uint32_t image = k / inner;
        int64_t at = (((int64_t)image * job.channels + channel) * inner +
                      (k - image * inner)) *
                     V;
        S first = 0, second = 0;
        W x[V], g[V];

        load_numbers<T, V>(job.x, 0, at, x);
        if (job.grad != NULL)
            load_numbers<T, V>(job.grad, 0, at, g);
#pragma unroll
        for (int n = 0; n < V; n++) {
            S far = (S)x[n] - middle, one = job.grad != NULL ? (S)g[n] : far;

            first += one;
            second += one * far;
        }
        s.first += first;
        s.second += second;
    }
    return s;
}

/* A channel is a block's or, if it is short, a warp's. */
template <class T> DEVICE void sum_packs(const oari_channel_sums_job &job)
{
    const int V = in_pack<T>::count;
    const uint32_t group = job.is_short ? (uint32_t)WARP : blockDim.x;
    const uint32_t me = threadIdx.x % group;
    const uint32_t channel =
        blockIdx.x * (blockDim.x / group) + threadIdx.x / group;
    __shared__ double room[MOST_WARPS];
    int64_t first = (int64_t)blockIdx.y * job.each;
    two_sums s = { 0, 0 };

    if (channel < job.channels)
        s = add_up_packs<T>(job, channel, (uint32_t)(first / V) + me,
                            (uint32_t)(end_of(job, first) / V), group);
    if (job.is_short) {
        s.first = warp_sum(s.first);
        s.second = warp_sum(s.second);
    } else {
        s.first = block_sum(s.first, room);
        s.second = block_sum(s.second, room);
    }
    if (me == 0 && channel < job.channels)
        put_sums(job, blockIdx.y, channel, s);
}

OARI_KERNELS(oari_channel_sums_packs, sum_packs, oari_channel_sums_job)

/* A thread for each channel and segment: channels lie side by side. */
extern "C" __global__ void
oari_channel_sums_threads(const __grid_constant__ oari_channel_sums_job job)
{
    EACH(i, job.channels * job.segments) {
        int64_t segment = (int64_t)(i / (uint64_t)job.channels);
        int64_t channel = (int64_t)(i % (uint64_t)job.channels);
        int64_t first = segment * job.each;

        put_sums(job, segment, channel,
                 add_up(job, channel, first, end_of(job, first), 1));
    }
}

/* Of all segments of a channel. */
DEVICE two_sums join_segments(const double *partial, int64_t channels,
                              int64_t segments, int64_t channel)
{
    two_sums s = { 0, 0 };

    for (int64_t k = 0; k < segments; k++) {
        s.first += partial[k * 2 * channels + channel];
        s.second += partial[(k * 2 + 1) * channels + channel];
    }
    return s;
}

/* ---- moments ------------------------------------------------------------- */

extern "C" __global__ void
oari_channel_moments(const __grid_constant__ oari_channel_moments_job job)
{
    double count = (double)(job.images * job.inner);

    EACH(i, job.channels) {
        int64_t c = (int64_t)i;
        two_sums s = join_segments(job.partial, job.channels, job.segments, c);
        double shift =
            count > 0 ? load_as<double>(job.x, job.x_dtype, c * job.inner) : 0;
        double spread = count > 0 ? s.second - s.first / count * s.first : 0;

        if (c == 0)
            job.stats[0] = count;
        job.stats[1 + c] = count > 0 ? shift + s.first / count : 0;
        job.stats[1 + job.channels + c] = spread < 0 ? 0 : spread;
    }
}

/* Chan et al.: from (count, mean, spread) of two parts to that of both. */
extern "C" __global__ void
oari_merge_moments(const __grid_constant__ oari_merge_moments_job job)
{
    EACH(i, job.channels) {
        int64_t c = (int64_t)i;
        double count = 0, mean = 0, spread = 0;

        for (int64_t p = 0; p < job.parts; p++) {
            const double *part = job.all + p * (1 + 2 * job.channels);
            double n = part[0], total = count + n;
            double far = part[1 + c] - mean;

            if (n == 0)
                continue;
            mean += far * (n / total);
            spread +=
                part[1 + job.channels + c] + far * far * (count * n / total);
            count = total;
        }
        if (c == 0)
            job.stats[0] = count;
        job.stats[1 + c] = mean;
        job.stats[1 + job.channels + c] = spread;
    }
}

DEVICE void move_running(void *running, int dtype, int64_t c, double momentum,
                         double fresh)
{
    store_as(running, dtype, c,
             (1 - momentum) * load_as<double>(running, dtype, c) +
                 momentum * fresh);
}

/* One block. */
extern "C" __global__ void
oari_channel_stats(const __grid_constant__ oari_channel_stats_job job)
{
    double momentum = job.momentum, count = job.stats ? job.stats[0] : 1;
    int64_t batches = job.batches != NULL ? *job.batches + 1 : 0;

    if (job.batches != NULL && momentum < 0)
        momentum = 1 / (double)batches;
    for (int64_t c = threadIdx.x; c < job.channels; c += blockDim.x) {
        double mean, var;

        if (job.stats == NULL) {
            mean = load_as<double>(job.running_mean, job.mean_dtype, c);
            var = load_as<double>(job.running_var, job.var_dtype, c);
        } else {
            mean = job.stats[1 + c];
            var = job.stats[1 + job.channels + c] / count;
            if (job.running_mean != NULL && count > 1) {
                move_running(job.running_mean, job.mean_dtype, c, momentum,
                             mean);
                move_running(job.running_var, job.var_dtype, c, momentum,
                             var * (count / (count - 1)));
            }
        }
        job.mean[c] = mean;
        job.rstd[c] = 1 / sqrt(var + job.eps);
    }
    __syncthreads();
    if (threadIdx.x == 0 && job.batches != NULL)
        *job.batches = batches;
}

/* ---- element by element -------------------------------------------------- */

template <class T> DEVICE T param_of(const void *from, int dtype, int64_t c)
{
    return from != NULL ? load_as<T>(from, dtype, c) : T(1);
}

/* What the numbers of a plane, which is of channel c, have in common. */
template <class T> struct plane_line {
    T mean, factor, bias;

    __device__ T of(T x) const
    {
        return (x - mean) * factor + bias;
    }
};

template <class T>
DEVICE plane_line<T> line_of(const oari_channel_norm_job &job, int64_t plane,
                             int64_t c)
{
    int64_t s = job.wide > 0 ? plane / job.wide : c;
    plane_line<T> f;

    f.mean = (T)job.mean[s];
    f.factor =
        (T)(job.rstd[s] * param_of<double>(job.weight, job.param_dtype, c));
    f.bias = job.bias != NULL ? load_as<T>(job.bias, job.param_dtype, c) : T(0);
    return f;
}

/* The same for gradients. */
template <class T> struct plane_slope {
    T mean, before, level, tilt, factor;

    __device__ T of(T g, T x) const
    {
        return (g * before - (level + (x - mean) * tilt)) * factor;
    }
};

/* share: of each of the numbers that share a mean. */
template <class T>
DEVICE plane_slope<T> slope_of(const oari_channel_norm_job &job, int64_t plane,
                               int64_t c, double share)
{
    int64_t s = job.wide > 0 ? plane / job.wide : c;
    double rstd = job.rstd[s];
    double w = param_of<double>(job.weight, job.param_dtype, c);
    plane_slope<T> f;

    f.mean = (T)job.mean[s];
    f.before = job.wide > 0 ? (T)w : T(1); /* in a batch norm it is factored out */
    f.level = job.sum != NULL ? (T)(job.sum[s] * share) : T(0);
    f.tilt = job.sum != NULL ? (T)(job.tilt[s] * rstd * share) : T(0);
    f.factor = (T)(job.wide > 0 ? rstd : rstd * w);
    return f;
}

template <class T> DEVICE void run_norm(const oari_channel_norm_job &job)
{
    EACH(i, job.elements) {
        int64_t plane = (int64_t)i / job.inner, c = plane % job.channels;
        T x = load_as<T>(job.x, job.x_dtype, (int64_t)i);

        store_as(job.to, job.to_dtype, (int64_t)i,
                 line_of<T>(job, plane, c).of(x));
    }
}

template <class T> DEVICE void run_norm_back(const oari_channel_norm_job &job)
{
    const double share = job.sum != NULL ? 1 / *job.count_at : 0;

    EACH(i, job.elements) {
        int64_t plane = (int64_t)i / job.inner, c = plane % job.channels;
        plane_slope<T> f = slope_of<T>(job, plane, c, share);
        T g = load_as<T>(job.grad, job.grad_dtype, (int64_t)i), x = 0;

        if (job.sum != NULL)
            x = load_as<T>(job.x, job.x_dtype, (int64_t)i);
        g = f.of(g, x);
        if (job.add)
            g += load_as<T>(job.to, job.to_dtype, (int64_t)i);
        store_as(job.to, job.to_dtype, (int64_t)i, g);
    }
}

/* A pack at a time, which lies within a plane. All arrays are of T. */
template <class T> DEVICE void norm_packs(const oari_channel_norm_job &job)
{
    typedef typename work_of<T>::type W;
    const int V = in_pack<T>::count;
    const uint32_t packs = (uint32_t)(job.elements / V);
    const uint32_t inner = (uint32_t)(job.inner / V);
    const uint32_t step = gridDim.x * blockDim.x;
    const double share = job.sum != NULL ? 1 / *job.count_at : 0;

    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < packs;
         i += step) {
        uint32_t plane = i / inner, c = plane % (uint32_t)job.channels;
        int64_t at = (int64_t)i * V;
        W x[V] = {}, g[V];

        if (job.grad == NULL || job.sum != NULL)
            load_numbers<T, V>(job.x, 0, at, x);
        if (job.grad == NULL) {
            plane_line<W> f = line_of<W>(job, plane, c);

#pragma unroll
            for (int k = 0; k < V; k++)
                g[k] = f.of(x[k]);
        } else {
            plane_slope<W> f = slope_of<W>(job, plane, c, share);

            load_numbers<T, V>(job.grad, 0, at, g);
#pragma unroll
            for (int k = 0; k < V; k++)
                g[k] = f.of(g[k], x[k]);
        }
        if (job.add) {
            load_numbers<T, V>(job.to, 0, at, x);
#pragma unroll
            for (int k = 0; k < V; k++)
                g[k] += x[k];
        }
        store_numbers<T, V>(job.to, 0, at, g);
    }
}

OARI_KERNELS(oari_channel_norm_packs, norm_packs, oari_channel_norm_job)

extern "C" __global__ void
oari_channel_norm(const __grid_constant__ oari_channel_norm_job job)
{
    if (job.grad != NULL && job.is_f64)
        run_norm_back<double>(job);
    else if (job.grad != NULL)
        run_norm_back<float>(job);
    else if (job.is_f64)
        run_norm<double>(job);
    else
        run_norm<float>(job);
}

/* ---- gradients of parameters --------------------------------------------- */

/* tilt and sum of what shares a mean, by a warp. */
extern "C" __global__ void
oari_channel_total(const __grid_constant__ oari_channel_total_job job)
{
    int64_t wide = job.wide > 0 ? job.wide : 1;

    EACH(thread, job.planes / wide * WARP) {
        int64_t i = (int64_t)(thread / WARP);
        double tilt = 0, sum = 0;

        for (int64_t k = (int64_t)(thread % WARP); k < wide; k += WARP) {
            int64_t plane = i * wide + k;
            two_sums s =
                join_segments(job.partial, job.planes, job.segments, plane);
            double w = job.wide > 0
                           ? param_of<double>(job.weight, job.param_dtype,
                                              plane % job.channels)
                           : 1;

            sum += w * s.first;
            tilt += w * s.second;
        }
        sum = warp_sum(sum);
        tilt = warp_sum(tilt);
        if (thread % WARP == 0) {
            job.sum[i] = sum;
            job.tilt[i] = tilt * job.rstd[i];
        }
    }
}

/* A warp for each channel. */
extern "C" __global__ void
oari_channel_params(const __grid_constant__ oari_channel_total_job job)
{
    int64_t shared = job.wide > 0 ? job.wide : 1;

    EACH(thread, job.channels * WARP) {
        int64_t i = (int64_t)(thread / WARP);
        double dweight = 0, dbias = 0;

        for (int64_t plane = i + (int64_t)(thread % WARP) * job.channels;
             plane < job.planes; plane += WARP * job.channels) {
            two_sums s =
                join_segments(job.partial, job.planes, job.segments, plane);

            dbias += s.first;
            dweight += s.second * job.rstd[plane / shared];
        }
        dweight = warp_sum(dweight);
        dbias = warp_sum(dbias);
        if (thread % WARP != 0)
            continue;
        if (job.dweight != NULL)
            store_as(job.dweight, job.dweight_dtype, i, dweight);
        if (job.dbias != NULL)
            store_as(job.dbias, job.dbias_dtype, i, dbias);
    }
}
