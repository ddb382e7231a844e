// SPDX-License-Identifier: Apache-2.0
/* windows: the columns of convolutions, and pools. A thread writes one element
 * and gathers all that goes there, in the order of the windows: nothing is
 * added atomically, and the same input gives the same bits. */
#include "tensor/cuda/element.cuh"
#include "tensor/cuda/numbers.cuh"
#include "tensor/cuda/window_job.h"

/* Places are int32_t unless job.is_large: that is twice as fast. */
DEVICE int32_t divide(int32_t n, const oari_quick_divisor &d)
{
    return (int32_t)((uint64_t)(uint32_t)n * d.factor >> d.shift);
}

DEVICE int64_t divide(int64_t n, const oari_quick_divisor &d)
{
    return n / d.by;
}

/* ---- columns ------------------------------------------------------------- */

/* The number under element i of the columns. */
template <class T, class I>
DEVICE T under_column(const oari_window_job &job, I i)
{
    I row = divide(i, job.by_out_width), image = divide(row, job.by_rows);
    I depth = divide(image, job.by_images), channel = divide(depth, job.by_taps);
    I tap = depth - channel * (I)(job.kernel[0] * job.kernel[1]);
    I down = divide(tap, job.by_kernel);
    I plane = (image - depth * (I)job.images) * (I)job.channels + channel;
    I x = (i - row * (I)job.out_width) * (I)job.stride[1] - (I)job.padding[1] +
          (tap - down * (I)job.kernel[1]) * (I)job.dilation[1];
    I y = (row - image * (I)job.rows + (I)job.first) * (I)job.stride[0] -
          (I)job.padding[0] + down * (I)job.dilation[0];

    if (y < 0 || y >= (I)job.height || x < 0 || x >= (I)job.width)
        return 0;
    return ((const T *)job.from)[(plane * (I)job.height + y) * (I)job.width + x];
}

template <class T> DEVICE void fill_columns(const oari_window_job &job)
{
    EACH(i, job.count) {
        ((T *)job.to)[i] = job.is_large ? under_column<T>(job, (int64_t)i)
                                        : under_column<T>(job, (int32_t)i);
    }
}

/* By size alone. */
extern "C" __global__ void
oari_fill_columns(const __grid_constant__ oari_window_job job)
{
    if (job.bytes == 2)
        fill_columns<uint16_t>(job);
    else if (job.bytes == 4)
        fill_columns<uint32_t>(job);
    else
        fill_columns<uint64_t>(job);
}

/* Which result has its tap number `tap` at `at`; -1: none. */
template <class I>
DEVICE I result_at(const oari_window_job &job, int side, I at, I tap)
{
    I from = at + (I)job.padding[side] - tap * (I)job.dilation[side];
    I result = from >= 0 ? divide(from, job.by_stride[side]) : -1;

    return result * (I)job.stride[side] == from ? result : -1;
}

/* The sum of all taps of the columns that lie at element i of the planes. */
template <class T, class I>
DEVICE T sum_at(const oari_window_job &job, I i, T sum)
{
    I line = divide(i, job.by_width), plane = divide(line, job.by_height);
    I image = divide(plane, job.by_channels);
    I x = i - line * (I)job.width, y = line - plane * (I)job.height;
    I channel = plane - image * (I)job.channels;

    for (I ky = 0; ky < (I)job.kernel[0]; ky++) {
        I row = result_at(job, 0, y, ky) - (I)job.first;

        if (row < 0 || row >= (I)job.rows)
            continue;
        for (I kx = 0; kx < (I)job.kernel[1]; kx++) {
            I at = result_at(job, 1, x, kx);
            I depth = (channel * (I)job.kernel[0] + ky) * (I)job.kernel[1] + kx;

            if (at >= 0 && at < (I)job.out_width)
                sum += load_as<T>(
                    job.from, job.from_dtype,
                    (((int64_t)depth * job.images + image) * job.rows + row) *
                            job.out_width +
                        at);
        }
    }
    return sum;
}

template <class T> DEVICE void sum_columns(const oari_window_job &job)
{
    EACH(i, job.count) {
        T sum = job.add ? load_as<T>(job.to, job.to_dtype, (int64_t)i) : T(0);

        sum = job.is_large ? sum_at(job, (int64_t)i, sum)
                           : sum_at(job, (int32_t)i, sum);
        store_as(job.to, job.to_dtype, (int64_t)i, sum);
    }
}

extern "C" __global__ void
oari_sum_taps(const __grid_constant__ oari_window_job job)
{
    if (job.is_f64)
        sum_columns<double>(job);
    else
        sum_columns<float>(job);
}

/* ---- pools --------------------------------------------------------------- */

template <class I> struct reach {
    I from, to;
};

/* The part of window number i along one side that lies inside the plane. */
template <class I>
DEVICE reach<I> window_reach(const oari_window_job &job, int side, I i)
{
    int64_t size = side == 0 ? job.height : job.width;
    int64_t windows = side == 0 ? job.out_height : job.out_width;
    reach<I> r;

    if (job.kind == OARI_POOL_COVER) {
        r.from = (I)(i * size / windows);
        r.to = (I)(((i + 1) * size - 1) / windows + 1);
        return r;
    }
    r.from = i * (I)job.stride[side] - (I)job.padding[side];
    r.to = r.from + (I)job.kernel[side];
    r.from = r.from > 0 ? r.from : 0;
    r.to = r.to < (I)size ? r.to : (I)size;
    return r;
}

/* The windows along one side that element number i of the plane is under. */
template <class I>
DEVICE reach<I> windows_over(const oari_window_job &job, int side, I i)
{
    int64_t size = side == 0 ? job.height : job.width;
    int64_t windows = side == 0 ? job.out_height : job.out_width;
    I kernel = (I)job.kernel[side];
    reach<I> r;

    if (job.kind == OARI_POOL_COVER) {
        r.from = (I)(i * windows / size);
        r.to = (I)(((i + 1) * windows - 1) / size + 1);
        return r;
    }
    i += (I)job.padding[side];
    r.from = i < kernel ? 0 : divide(i - kernel, job.by_stride[side]) + 1;
    r.to = divide(i, job.by_stride[side]) + 1;
    r.to = r.to < (I)windows ? r.to : (I)windows;
    return r;
}

/* What a mean is divided by. */
template <class I>
DEVICE int64_t window_count(const oari_window_job &job, reach<I> down,
                            reach<I> across)
{
    return job.kind == OARI_POOL_COVER
               ? (int64_t)(down.to - down.from) * (across.to - across.from)
               : job.kernel[0] * job.kernel[1];
}

/* Result i. */
template <class T, class I> DEVICE void pool_at(const oari_window_job &job, I i)
{
    typedef typename work_of<T>::type W;
    I line = divide(i, job.by_out_width);
    I plane = divide(line, job.by_out_height);
    reach<I> across = window_reach(job, 1, i - line * (I)job.out_width);
    reach<I> down = window_reach(job, 0, line - plane * (I)job.out_height);
    const T *from = (const T *)job.from + plane * job.height * job.width;
    I best = -1;
    W made = job.kind == OARI_POOL_MAX ? (W)-INFINITY : W(0);

    for (I y = down.from; y < down.to; y++)
        for (I x = across.from; x < across.to; x++) {
            I at = y * (I)job.width + x;
            W a = widen(from[at]);

            if (job.kind != OARI_POOL_MAX) {
                made += a;
            } else if (best < 0 || a > made || a != a) {
                made = a;
                best = at;
            }
        }
    if (job.kind == OARI_POOL_MAX)
        job.pick[i] = (int32_t)best;
    else
        made /= (W)window_count(job, down, across);
    narrow(made, (T *)job.to + i);
}

template <class T> DEVICE void run_pool(const oari_window_job &job)
{
    EACH(i, job.count) {
        if (job.is_large)
            pool_at<T>(job, (int64_t)i);
        else
            pool_at<T>(job, (int32_t)i);
    }
}

OARI_KERNELS(oari_pool_windows, run_pool, oari_window_job)

/* The gradient of element i. */
template <class T, class I>
DEVICE void pool_back_at(const oari_window_job &job, I i)
{
    typedef typename work_of<T>::type W;
    I line = divide(i, job.by_width), plane = divide(line, job.by_height);
    I x = i - line * (I)job.width, y = line - plane * (I)job.height;
    I place = y * (I)job.width + x;
    int64_t first = plane * job.out_height * job.out_width;
    reach<I> down = windows_over(job, 0, y), across = windows_over(job, 1, x);
    T *to = (T *)job.to + i;
    W sum = job.add ? widen(*to) : W(0);

    for (I r = down.from; r < down.to; r++)
        for (I k = across.from; k < across.to; k++) {
            int64_t at = first + r * (I)job.out_width + k;

            if (job.kind == OARI_POOL_MAX && job.pick[at] != place)
                continue;
            W g = widen(((const T *)job.from)[at]);

            if (job.kind != OARI_POOL_MAX)
                g /= (W)window_count(job, window_reach(job, 0, r),
                                     window_reach(job, 1, k));
            sum += g;
        }
    narrow(sum, to);
}

template <class T> DEVICE void run_pool_back(const oari_window_job &job)
{
    EACH(i, job.count) {
        if (job.is_large)
            pool_back_at<T>(job, (int64_t)i);
        else
            pool_back_at<T>(job, (int32_t)i);
    }
}

OARI_KERNELS(oari_pool_windows_back, run_pool_back, oari_window_job)
