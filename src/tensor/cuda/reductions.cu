// SPDX-License-Identifier: Apache-2.0
/* reductions: many elements into one, over any dims. Floats are added and
 * multiplied in f64, as on the cpu. Sums are made in a fixed order: a thread
 * takes its elements from the first to the last, threads of a block are joined
 * as a tree, segments of a result from the first to the last. */
#include <math.h>

#include "tensor/arith_kinds.h"
#include "tensor/cuda/numbers.cuh"

enum { BLOCK = 256 };

/* ---- where elements are -------------------------------------------------- */

/* The place of thing i in dims of these sizes and strides. */
DEVICE int64_t offset_of(uint64_t i, int dims, const int64_t *dim,
                         const int64_t *stride)
{
    int64_t at = 0;

#pragma unroll 1
    for (int d = dims - 1; d > 0; d--) {
        uint64_t rows = i / (uint64_t)dim[d];

        at += (int64_t)(i - rows * (uint64_t)dim[d]) * stride[d];
        i = rows;
    }
    return dims > 0 ? at + (int64_t)i * stride[0] : at;
}

/* ---- joining ------------------------------------------------------------- */

template <class A> DEVICE A first_of(int kind)
{
    return kind == OARI_REDUCE_PROD || kind == OARI_REDUCE_ALL ? (A)1 : (A)0;
}

DEVICE bool above(double x, double y, int)
{
    return x > y || x != x;
}
DEVICE bool above(int64_t x, int64_t y, int numbers)
{
    return numbers == OARI_JOB_UNSIGNED ? (uint64_t)x > (uint64_t)y : x > y;
}
DEVICE bool below(double x, double y, int)
{
    return x < y || x != x;
}
DEVICE bool below(int64_t x, int64_t y, int numbers)
{
    return numbers == OARI_JOB_UNSIGNED ? (uint64_t)x < (uint64_t)y : x < y;
}

template <class A> DEVICE A join(const oari_reduce_job &job, A x, A y)
{
    switch (job.kind) {
    case OARI_REDUCE_PROD: return x * y;
    case OARI_REDUCE_MAX: return above(y, x, job.numbers) && x == x ? y : x;
    case OARI_REDUCE_MIN: return below(y, x, job.numbers) && x == x ? y : x;
    case OARI_REDUCE_ANY: return x != 0 || y != 0;
    case OARI_REDUCE_ALL: return x != 0 && y != 0;
    }
    return x + y;
}

/* An element as it goes into the result. */
template <class A>
DEVICE A element(const oari_reduce_job &job, int64_t at, uint64_t result)
{
    A x = get<A>(job.a, at);

    switch (job.kind) {
    case OARI_REDUCE_ANY:
    case OARI_REDUCE_ALL:
    case OARI_REDUCE_SET: return x != 0;
    case OARI_JOB_SPREAD: x -= (A)job.centre[result]; return x * x;
    }
    return x;
}

/* Elements first, first + step, .. below end. Extremes begin with the first of
 * them; there is one for every thread that counts. */
template <class A>
DEVICE A join_elements(const oari_reduce_job &job, uint64_t result,
                       int64_t first, int64_t end, int64_t step)
{
    int64_t base = offset_of(result, job.kept_dims, job.kept, job.a.stride);
    A sum = first_of<A>(job.kind);
    int extreme = job.kind == OARI_REDUCE_MAX || job.kind == OARI_REDUCE_MIN;

    for (int64_t k = first; k < end; k += step) {
        int64_t at = base + offset_of((uint64_t)k, job.over_dims, job.over,
                                      job.over_stride);
        A x = element<A>(job, at, result);

        sum = extreme && k == first ? x : join(job, sum, x);
    }
    return sum;
}

/* ---- results ------------------------------------------------------------- */

template <class A>
DEVICE void finish(const oari_reduce_job &job, uint64_t result, A sum)
{
    int64_t at = offset_of(result, job.kept_dims, job.kept, job.to.stride);

    if (job.factor != 1)
        sum *= (A)job.factor;
    if (job.add)
        sum += get<A>(job.to, at);
    store_as(job.to.data, job.to.dtype, at, sum);
}

template <class A>
DEVICE void give(const oari_reduce_job &job, uint64_t result, int64_t segment,
                 A sum)
{
    if (job.segments == 1)
        finish(job, result, sum);
    else
        ((A *)job.partial)[segment * job.results + (int64_t)result] = sum;
}

/* The elements of a segment. */
struct range {
    int64_t first, end;
};
DEVICE range segment_range(const oari_reduce_job &job, int64_t segment)
{
    int64_t length = (job.each + job.segments - 1) / job.segments;
    range r = { segment * length, (segment + 1) * length };

    r.end = r.end < job.each ? r.end : job.each;
    return r;
}

/* A thread for each result and segment. */
template <class A> DEVICE void run_threads(const oari_reduce_job &job)
{
    EACH(i, job.results * job.segments) {
        uint64_t result = i % (uint64_t)job.results;
        int64_t segment = (int64_t)(i / (uint64_t)job.results);
        range r = segment_range(job, segment);

        give(job, result, segment,
             join_elements<A>(job, result, r.first, r.end, 1));
    }
}

extern "C" __global__ void oari_reduce_threads(oari_reduce_job job)
{
    if (job.numbers <= OARI_JOB_F64)
        run_threads<double>(job);
    else
        run_threads<int64_t>(job);
}

/* A block for each result and segment. */
template <class A> DEVICE void run_block(const oari_reduce_job &job, A *part)
{
    uint64_t result = blockIdx.x;
    int64_t segment = blockIdx.y;
    range r = segment_range(job, segment);
    int me = (int)threadIdx.x;

    part[me] =
        join_elements<A>(job, result, r.first + me, r.end, (int64_t)BLOCK);
    __syncthreads();
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        if (me < half && r.first + me + half < r.end)
            part[me] = join(job, part[me], part[me + half]);
        __syncthreads();
    }
    if (me == 0)
        give(job, result, segment, part[0]);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    oari_reduce_blocks(oari_reduce_job job)
{
    __shared__ int64_t part[BLOCK];

    if (job.numbers <= OARI_JOB_F64)
        run_block<double>(job, (double *)part);
    else
        run_block<int64_t>(job, part);
}

/* The partial results of all segments. */
template <class A> DEVICE void run_segments(const oari_reduce_job &job)
{
    const A *partial = (const A *)job.partial;

    EACH(i, job.results) {
        A sum = partial[i];

        for (int64_t s = 1; s < job.segments; s++)
            sum = join(job, sum, partial[s * job.results + (int64_t)i]);
        finish(job, i, sum);
    }
}

extern "C" __global__ void oari_reduce_segments(oari_reduce_job job)
{
    if (job.kind == OARI_REDUCE_SET || job.kind == OARI_JOB_SPREAD)
        job.kind = OARI_REDUCE_SUM; /* of what is there now */
    if (job.numbers <= OARI_JOB_F64)
        run_segments<double>(job);
    else
        run_segments<int64_t>(job);
}

/* ---- backward ------------------------------------------------------------ */

DEVICE void give_element(const oari_reduce_job &job, uint64_t result, int64_t k,
                         double x)
{
    int64_t at = offset_of(result, job.kept_dims, job.kept, job.to.stride) +
                 offset_of((uint64_t)k, job.over_dims, job.over, job.to_stride);

    if (job.add)
        x += get<double>(job.to, at);
    store_as(job.to.data, job.to.dtype, at, x);
}

DEVICE double get_element(const oari_reduce_job &job, uint64_t result,
                          int64_t k)
{
    return get<double>(
        job.a,
        offset_of(result, job.kept_dims, job.kept, job.a.stride) +
            offset_of((uint64_t)k, job.over_dims, job.over, job.over_stride));
}

/* The first element that equals its result gets the gradient. */
extern "C" __global__ void oari_reduce_extreme_back(oari_reduce_job job)
{
    EACH(i, job.results) {
        double left = get<double>(
            job.grad, offset_of(i, job.kept_dims, job.kept, job.grad.stride));
        double best =
            get<double>(job.result, offset_of(i, job.kept_dims, job.kept,
                                              job.result.stride));

        for (int64_t k = 0; k < job.each; k++) {
            double x = get_element(job, i, k);
            bool is = x == best || (x != x && best != best);

            give_element(job, i, k, is ? left : 0);
            left = is ? 0 : left;
        }
    }
}

/* One zero alone has a slope, beside two nothing has. */
extern "C" __global__ void oari_reduce_prod_back(oari_reduce_job job)
{
    EACH(i, job.results) {
        double product = get<double>(
            job.grad, offset_of(i, job.kept_dims, job.kept, job.grad.stride));
        int64_t zeros = 0;

        for (int64_t k = 0; k < job.each; k++) {
            double x = get_element(job, i, k);

            zeros += x == 0;
            product *= x == 0 ? 1 : x;
        }
        for (int64_t k = 0; k < job.each; k++) {
            double x = get_element(job, i, k);
            double others = x == 0 ? product : product / x;

            give_element(job, i, k, zeros == (x == 0) ? others : 0);
        }
    }
}
