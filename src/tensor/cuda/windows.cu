// SPDX-License-Identifier: Apache-2.0
/* windows: the columns of convolutions, and pools. A thread writes one element
 * and gathers all that goes there, in the order of the windows: nothing is
 * added atomically, and the same input gives the same bits. */
#include "tensor/cuda/numbers.cuh"
#include "tensor/cuda/window_job.h"

/* ---- columns ------------------------------------------------------------- */

struct column {
    int64_t x, y, image, channel; /* x and y: of the tap, in the plane */
};

DEVICE column column_of(const oari_window_job &job, uint64_t i)
{
    uint64_t wide = (uint64_t)job.out_width, rows = (uint64_t)job.rows;
    uint64_t row = i / wide, image = row / rows;
    uint64_t depth = image / (uint64_t)job.images;
    uint64_t taps = (uint64_t)(job.kernel[0] * job.kernel[1]);
    int64_t tap = (int64_t)(depth % taps);
    column c;

    c.x = (int64_t)(i - row * wide) * job.stride[1] - job.padding[1] +
          tap % job.kernel[1] * job.dilation[1];
    c.y = ((int64_t)(row - image * rows) + job.first) * job.stride[0] -
          job.padding[0] + tap / job.kernel[1] * job.dilation[0];
    c.image = (int64_t)(image - depth * (uint64_t)job.images);
    c.channel = (int64_t)(depth / taps);
    return c;
}

template <class T> DEVICE void fill_columns(const oari_window_job &job)
{
    EACH(i, job.count) {
        column c = column_of(job, i);
        int64_t plane = c.image * job.channels + c.channel;
        T x = 0;

        if (c.y >= 0 && c.y < job.height && c.x >= 0 && c.x < job.width)
            x = ((const T *)
                     job.from)[(plane * job.height + c.y) * job.width + c.x];
        ((T *)job.to)[i] = x;
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
DEVICE int64_t result_at(const oari_window_job &job, int side, int64_t at,
                         int64_t tap)
{
    int64_t from = at + job.padding[side] - tap * job.dilation[side];

    return from >= 0 && from % job.stride[side] == 0 ? from / job.stride[side]
                                                     : -1;
}

/* The sum of all taps of the columns that lie at an element of the planes. */
template <class T> DEVICE void sum_columns(const oari_window_job &job)
{
    EACH(i, job.count) {
        int64_t x = (int64_t)(i % (uint64_t)job.width);
        int64_t line = (int64_t)(i / (uint64_t)job.width);
        int64_t y = line % job.height, plane = line / job.height;
        int64_t image = plane / job.channels, channel = plane % job.channels;
        T sum = job.add ? load_as<T>(job.to, job.to_dtype, (int64_t)i) : T(0);

        for (int64_t ky = 0; ky < job.kernel[0]; ky++) {
            int64_t row = result_at(job, 0, y, ky) - job.first;

            if (row < 0 || row >= job.rows)
                continue;
            for (int64_t kx = 0; kx < job.kernel[1]; kx++) {
                int64_t at = result_at(job, 1, x, kx);
                int64_t depth =
                    (channel * job.kernel[0] + ky) * job.kernel[1] + kx;

                if (at >= 0 && at < job.out_width)
                    sum += load_as<T>(job.from, job.from_dtype,
                                      ((depth * job.images + image) * job.rows +
                                       row) * job.out_width +
                                          at);
            }
        }
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

struct reach {
    int64_t from, to;
};

/* The part of window number i along one side that lies inside the plane. */
DEVICE reach window_reach(const oari_window_job &job, int side, int64_t i)
{
    int64_t size = side == 0 ? job.height : job.width;
    int64_t windows = side == 0 ? job.out_height : job.out_width;
    reach r;

    if (job.kind == OARI_POOL_COVER) {
        r.from = i * size / windows;
        r.to = ((i + 1) * size - 1) / windows + 1;
        return r;
    }
    r.from = i * job.stride[side] - job.padding[side];
    r.to = r.from + job.kernel[side];
    r.from = r.from > 0 ? r.from : 0;
    r.to = r.to < size ? r.to : size;
    return r;
}

/* The windows along one side that element number i of the plane is under. */
DEVICE reach windows_over(const oari_window_job &job, int side, int64_t i)
{
    int64_t size = side == 0 ? job.height : job.width;
    int64_t windows = side == 0 ? job.out_height : job.out_width;
    reach r;

    if (job.kind == OARI_POOL_COVER) {
        r.from = i * windows / size;
        r.to = ((i + 1) * windows - 1) / size + 1;
        return r;
    }
    i += job.padding[side];
    r.from = i < job.kernel[side]
                 ? 0
                 : (i - job.kernel[side]) / job.stride[side] + 1;
    r.to = i / job.stride[side] + 1;
    r.to = r.to < windows ? r.to : windows;
    return r;
}

/* What a mean is divided by. */
DEVICE int64_t window_count(const oari_window_job &job, reach down,
                            reach across)
{
    return job.kind == OARI_POOL_COVER
               ? (down.to - down.from) * (across.to - across.from)
               : job.kernel[0] * job.kernel[1];
}

template <class T> DEVICE void run_pool(const oari_window_job &job)
{
    EACH(i, job.count) {
        int64_t line = (int64_t)(i / (uint64_t)job.out_width);
        reach across = window_reach(job, 1, (int64_t)i - line * job.out_width);
        reach down = window_reach(job, 0, line % job.out_height);
        int64_t plane = line / job.out_height * job.height * job.width;
        int64_t best = -1;
        T made = job.kind == OARI_POOL_MAX ? (T)-INFINITY : T(0);

        for (int64_t y = down.from; y < down.to; y++)
            for (int64_t x = across.from; x < across.to; x++) {
                int64_t at = y * job.width + x;
                T a = load_as<T>(job.from, job.from_dtype, plane + at);

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
            made /= (T)window_count(job, down, across);
        store_as(job.to, job.to_dtype, (int64_t)i, made);
    }
}

extern "C" __global__ void
oari_pool_windows(const __grid_constant__ oari_window_job job)
{
    if (job.is_f64)
        run_pool<double>(job);
    else
        run_pool<float>(job);
}

template <class T> DEVICE void run_pool_back(const oari_window_job &job)
{
    EACH(i, job.count) {
        int64_t line = (int64_t)(i / (uint64_t)job.width);
        int64_t x = (int64_t)i - line * job.width, y = line % job.height;
        int64_t first = line / job.height * job.out_height * job.out_width;
        reach down = windows_over(job, 0, y), across = windows_over(job, 1, x);
        T sum = job.add ? load_as<T>(job.to, job.to_dtype, (int64_t)i) : T(0);

        for (int64_t r = down.from; r < down.to; r++)
            for (int64_t k = across.from; k < across.to; k++) {
                int64_t at = first + r * job.out_width + k;

                if (job.kind == OARI_POOL_MAX &&
                    job.pick[at] != y * job.width + x)
                    continue;
                T g = load_as<T>(job.from, job.from_dtype, at);

                if (job.kind != OARI_POOL_MAX)
                    g /= (T)window_count(job, window_reach(job, 0, r),
                                         window_reach(job, 1, k));
                sum += g;
            }
        store_as(job.to, job.to_dtype, (int64_t)i, sum);
    }
}

extern "C" __global__ void
oari_pool_windows_back(const __grid_constant__ oari_window_job job)
{
    if (job.is_f64)
        run_pool_back<double>(job);
    else
        run_pool_back<float>(job);
}
