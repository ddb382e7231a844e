// SPDX-License-Identifier: Apache-2.0
/* lines: what goes along one dim, a line for each thread: sums from the start,
 * places of extremes, elements picked by an index and put back. A line is one
 * thread's from end to end, so sums have one order and need no atomics. */
#include "tensor/cuda/numbers.cuh"

/* Line i of [before, at, after]: where it begins in an array with `at` elements
 * along the dim. */
DEVICE int64_t line_start(const oari_line_job &job, uint64_t i, int64_t at)
{
    int64_t before = (int64_t)(i / (uint64_t)job.after);
    int64_t after = (int64_t)(i % (uint64_t)job.after);

    return before * at * job.after + after;
}

/* ---- places of extremes: after is 1 -------------------------------------- */

template <class T> DEVICE bool beats(const oari_line_job &job, T x, T best)
{
    return job.kind ? x < best : x > best;
}
template <>
inline __device__ bool beats<int64_t>(const oari_line_job &job, int64_t x,
                                      int64_t best)
{
    if (job.numbers == OARI_JOB_UNSIGNED)
        return job.kind ? (uint64_t)x < (uint64_t)best
                        : (uint64_t)x > (uint64_t)best;
    return job.kind ? x < best : x > best;
}

template <class T> DEVICE void run_extreme(const oari_line_job &job)
{
    EACH(i, job.lines) {
        int64_t start = (int64_t)i * job.a_at, found = 0;
        T best = load_as<T>(job.a, job.a_dtype, start);

        /* the first NaN is both */
        for (int64_t k = 1; k < job.a_at && best == best; k++) {
            T x = load_as<T>(job.a, job.a_dtype, start + k);

            if (beats(job, x, best) || x != x) {
                best = x;
                found = k;
            }
        }
        ((int64_t *)job.to)[i] = found;
    }
}

#define BY_NUMBERS(run)                   \
    if (job.numbers == OARI_JOB_F32)      \
        run<float>(job);                  \
    else if (job.numbers == OARI_JOB_F64) \
        run<double>(job);                 \
    else                                  \
        run<int64_t>(job)

/* Floats as doubles: exact, and one loop less to compile. */
#define BY_WIDE(run)                 \
    if (job.numbers <= OARI_JOB_F64) \
        run<double>(job);            \
    else                             \
        run<int64_t>(job)

extern "C" __global__ void oari_lines_extreme(oari_line_job job)
{
    BY_WIDE(run_extreme);
}

/* ---- sums from one end --------------------------------------------------- */

template <class T> DEVICE void run_cumsum(const oari_line_job &job)
{
    EACH(i, job.lines) {
        int64_t start = line_start(job, i, job.a_at);
        T sum = 0;

        for (int64_t k = 0; k < job.a_at; k++) {
            int64_t at =
                start + (job.from_end ? job.a_at - 1 - k : k) * job.after;

            sum += load_as<T>(job.a, job.a_dtype, at);
            store_as(job.to, job.to_dtype, at,
                     job.add ? load_as<T>(job.to, job.to_dtype, at) + sum
                             : sum);
        }
    }
}

extern "C" __global__ void oari_lines_cumsum(oari_line_job job)
{
    BY_WIDE(run_cumsum);
}

/* ---- one index for all lines --------------------------------------------- */

template <class T> DEVICE void run_index_add(const oari_line_job &job)
{
    EACH(i, job.lines) {
        int64_t to = line_start(job, i, job.to_at);
        int64_t from = line_start(job, i, job.a_at);

        for (int64_t k = 0; k < job.a_at; k++) {
            int64_t at = to + job.index[k * job.index_stride] * job.after;

            store_as(job.to, job.to_dtype, at,
                     load_as<T>(job.to, job.to_dtype, at) +
                         load_as<T>(job.a, job.a_dtype, from + k * job.after));
        }
    }
}

extern "C" __global__ void oari_lines_index_add(oari_line_job job)
{
    BY_NUMBERS(run_index_add);
}

/* ---- an index for each element ------------------------------------------- */

struct spots {
    int64_t to, a, index;
};

/* Of line i: all dims of the index but `along`. */
DEVICE spots line_spots(const oari_line_job &job, uint64_t i)
{
    spots s = { 0, 0, 0 };

#pragma unroll 1
    for (int d = job.ndim - 1; d >= 0; d--) {
        if (d == job.along)
            continue;
        uint64_t rows = i / (uint64_t)job.dim[d];
        int64_t rest = (int64_t)(i - rows * (uint64_t)job.dim[d]);

        s.to += rest * job.to_stride[d];
        s.a += rest * job.a_stride[d];
        s.index += rest * job.index_strides[d];
        i = rows;
    }
    return s;
}

/* to = a at the index, along the dim, by size alone. */
template <class T> DEVICE void run_gather(const oari_line_job &job)
{
    EACH(i, job.lines * job.index_at) {
        int64_t k = (int64_t)(i % (uint64_t)job.index_at);
        spots s = line_spots(job, i / (uint64_t)job.index_at);
        int64_t at = job.index[s.index + k * job.index_strides[job.along]];

        ((T *)job.to)[s.to + k * job.to_stride[job.along]] =
            ((const T *)job.a)[s.a + at * job.a_stride[job.along]];
    }
}

extern "C" __global__ void oari_lines_gather(oari_line_job job)
{
    switch (job.kind) { /* bytes of an element */
    case 1: run_gather<uint8_t>(job); break;
    case 2: run_gather<uint16_t>(job); break;
    case 4: run_gather<uint32_t>(job); break;
    case 8: run_gather<uint64_t>(job); break;
    }
}

/* to at the index += a. Lines have no place in common. */
template <class T> DEVICE void run_scatter(const oari_line_job &job)
{
    EACH(i, job.lines) {
        spots s = line_spots(job, i);

        for (int64_t k = 0; k < job.index_at; k++) {
            int64_t to = job.index[s.index + k * job.index_strides[job.along]];
            int64_t at = s.to + to * job.to_stride[job.along];

            store_as(job.to, job.to_dtype, at,
                     load_as<T>(job.to, job.to_dtype, at) +
                         load_as<T>(job.a, job.a_dtype,
                                    s.a + k * job.a_stride[job.along]));
        }
    }
}

extern "C" __global__ void oari_lines_scatter_add(oari_line_job job)
{
    BY_NUMBERS(run_scatter);
}
