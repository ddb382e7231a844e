// SPDX-License-Identifier: Apache-2.0
/* arith: functions of elements of f64 and of integers, and what only moves or
 * compares elements, of any dtype. Every kernel takes one job and goes through
 * its elements in strides of the grid. What is computed in f32 is in
 * float_arith.cu. */
#include "tensor/cuda/functions.cuh"

/* ---- unary --------------------------------------------------------------- */

template <class T> DEVICE void run_unary(const oari_arith_job &job)
{
    EACH(i, job.count) {
        places p = place<2>(job, i);
        T a = get<T>(job.array[1], p.at[1]);

        if (job.numbers != OARI_JOB_UNSIGNED || job.kind == OARI_UNARY_neg)
            a = unary_of(job.kind, a);
        else if (job.kind == OARI_UNARY_sign)
            a = a != 0;
        store_as(job.array[0].data, job.array[0].dtype, p.at[0], a);
    }
}

/* Runs a template for the numbers of the job. */
#define BY_WIDE(run)                 \
    if (job.numbers == OARI_JOB_F64) \
        run<double>(job);            \
    else                             \
        run<int64_t>(job)
#define BY_NUMBERS(run)                   \
    if (job.numbers == OARI_JOB_F32)      \
        run<float>(job);                  \
    else if (job.numbers == OARI_JOB_F64) \
        run<double>(job);                 \
    else                                  \
        run<int64_t>(job)
#define BY_FLOATS(run)               \
    if (job.numbers == OARI_JOB_F32) \
        run<float>(job);             \
    else                             \
        run<double>(job)

extern "C" __global__ void oari_arith_unary(oari_arith_job job)
{
    BY_WIDE(run_unary);
}

/* x (+)= to what is there. */
template <class T> DEVICE void put(const oari_arith_job &job, int64_t at, T x)
{
    if (job.add)
        x += load_as<T>(job.array[0].data, job.array[0].dtype, at);
    store_as(job.array[0].data, job.array[0].dtype, at, x);
}

template <class T> DEVICE void run_unary_back(const oari_arith_job &job)
{
    EACH(i, job.count) {
        places p = place<3>(job, i);

        put(job, p.at[0],
            unary_back_of(job.kind, get<T>(job.array[1], p.at[1]),
                          get<T>(job.array[2], p.at[2])));
    }
}

extern "C" __global__ void oari_arith_unary_back(oari_arith_job job)
{
    run_unary_back<double>(job);
}

/* ---- binary -------------------------------------------------------------- */

template <class T> DEVICE void run_binary(const oari_arith_job &job)
{
    EACH(i, job.count) {
        places p = place<3>(job, i);
        T a = get<T>(job.array[1], p.at[1]), b = get<T>(job.array[2], p.at[2]);

        store_as(job.array[0].data, job.array[0].dtype, p.at[0],
                 binary_of(job.kind, job.numbers, a, b));
    }
}

extern "C" __global__ void oari_arith_binary(oari_arith_job job)
{
    BY_WIDE(run_binary);
}

/* The one quotient that does not fit its type wraps. */
DEVICE int64_t divide(int numbers, int64_t a, int64_t b)
{
    if (numbers == OARI_JOB_UNSIGNED)
        return (int64_t)((uint64_t)a / (uint64_t)b);
    return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

DEVICE int64_t whole_power(uint64_t base, uint64_t exponent)
{
    uint64_t power = 1;

    for (; exponent > 0; exponent >>= 1, base *= base)
        if (exponent & 1)
            power *= base;
    return (int64_t)power;
}

/* What has no result is reported, and is 0. */
extern "C" __global__ void oari_arith_integer(oari_integer_job job)
{
    bool divides = job.at.kind == OARI_DIV;

    EACH(i, job.at.count) {
        places p = place<3>(job.at, i);
        int64_t a = get<int64_t>(job.at.array[1], p.at[1]);
        int64_t b = get<int64_t>(job.at.array[2], p.at[2]), result = 0;

        if (divides ? b == 0 : b < 0 && job.at.numbers == OARI_JOB_SIGNED)
            oari_index_report(job.check,
                              divides ? OARI_INDEX_DIV : OARI_INDEX_POW, i, b,
                              0);
        else
            result = divides ? divide(job.at.numbers, a, b)
                             : whole_power((uint64_t)a, (uint64_t)b);
        store_as(job.at.array[0].data, job.at.array[0].dtype, p.at[0], result);
    }
}

template <class T> DEVICE void run_binary_back(const oari_arith_job &job)
{
    EACH(i, job.count) {
        places p = place<4>(job, i);

        put(job, p.at[0],
            binary_back_of(job.kind, job.side, get<T>(job.array[1], p.at[1]),
                           get<T>(job.array[2], p.at[2]),
                           get<T>(job.array[3], p.at[3])));
    }
}

extern "C" __global__ void oari_arith_binary_back(oari_arith_job job)
{
    run_binary_back<double>(job);
}

/* ---- with numbers -------------------------------------------------------- */

template <class T> DEVICE void run_scalar(const oari_arith_job &job)
{
    EACH(i, job.count) {
        places p = place<2>(job, i);

        store_as(job.array[0].data, job.array[0].dtype, p.at[0],
                 scalar_of(job, get<T>(job.array[1], p.at[1])));
    }
}

extern "C" __global__ void oari_arith_scalar(oari_arith_job job)
{
    BY_WIDE(run_scalar);
}

template <class T> DEVICE void run_scalar_back(const oari_arith_job &job)
{
    EACH(i, job.count) {
        places p = place<3>(job, i);

        put(job, p.at[0],
            scalar_back_of(job, get<T>(job.array[1], p.at[1]),
                           get<T>(job.array[2], p.at[2])));
    }
}

extern "C" __global__ void oari_arith_scalar_back(oari_arith_job job)
{
    run_scalar_back<double>(job);
}

/* A multiple; of integers by a whole factor. */
template <class T> DEVICE void run_scale(const oari_arith_job &job)
{
    T factor = (T)job.number[0];

    EACH(i, job.count) {
        places p = place<2>(job, i);

        put(job, p.at[0], (T)(factor * get<T>(job.array[1], p.at[1])));
    }
}

extern "C" __global__ void oari_arith_scale(oari_arith_job job)
{
    BY_WIDE(run_scale);
}

/* ---- compare and select -------------------------------------------------- */

template <class T> DEVICE void run_compare(const oari_arith_job &job)
{
    EACH(i, job.count) {
        places p = place<3>(job, i);
        T a = get<T>(job.array[1], p.at[1]), b = get<T>(job.array[2], p.at[2]);
        bool yes = false;

        switch (job.kind) {
        case OARI_COMPARE_eq: yes = a == b; break;
        case OARI_COMPARE_ne: yes = a != b; break;
        case OARI_COMPARE_lt: yes = less(a, b, job.numbers); break;
        case OARI_COMPARE_le: yes = less(a, b, job.numbers) || a == b; break;
        case OARI_COMPARE_gt: yes = less(b, a, job.numbers); break;
        case OARI_COMPARE_ge: yes = less(b, a, job.numbers) || a == b; break;
        case OARI_COMPARE_and: yes = a != 0 && b != 0; break;
        case OARI_COMPARE_or: yes = a != 0 || b != 0; break;
        case OARI_COMPARE_xor: yes = (a != 0) != (b != 0); break;
        }
        ((uint8_t *)job.array[0].data)[p.at[0]] = yes;
    }
}

extern "C" __global__ void oari_arith_compare(oari_arith_job job)
{
    BY_NUMBERS(run_compare);
}

/* By size alone: a selected element keeps its bits. */
template <class T> DEVICE void run_select(const oari_arith_job &job)
{
    EACH(i, job.count) {
        places p = place<4>(job, i);
        const uint8_t *mask = (const uint8_t *)job.array[1].data;
        const oari_job_array &from = job.array[mask[p.at[1]] != 0 ? 2 : 3];
        int64_t at = p.at[mask[p.at[1]] != 0 ? 2 : 3];

        ((T *)job.array[0].data)[p.at[0]] =
            from.by_value ? (T)from.value : ((const T *)from.data)[at];
    }
}

extern "C" __global__ void oari_arith_select(oari_arith_job job)
{
    switch (job.kind) { /* bytes of an element */
    case 1: run_select<uint8_t>(job); break;
    case 2: run_select<uint16_t>(job); break;
    case 4: run_select<uint32_t>(job); break;
    case 8: run_select<uint64_t>(job); break;
    }
}

template <class T> DEVICE void run_select_back(const oari_arith_job &job)
{
    EACH(i, job.count) {
        places p = place<3>(job, i);
        bool set = ((const uint8_t *)job.array[2].data)[p.at[2]] != 0;

        put(job, p.at[0],
            set == (job.side != 0) ? get<T>(job.array[1], p.at[1]) : (T)0);
    }
}

extern "C" __global__ void oari_arith_select_back(oari_arith_job job)
{
    BY_FLOATS(run_select_back);
}

/* [rows, columns] of bool; the diagonal is number[0]. */
extern "C" __global__ void oari_arith_triangle(oari_arith_job job)
{
    int64_t columns = job.dim[1], diagonal = (int64_t)job.number[0];

    EACH(i, job.count) {
        int64_t off = (int64_t)i % columns - (int64_t)i / columns;

        ((uint8_t *)job.array[0].data)[i] =
            job.side ? off < diagonal : off > diagonal;
    }
}

/* ---- fill ---------------------------------------------------------------- */

template <class T> DEVICE void run_fill(const oari_arith_job &job)
{
    EACH(i, job.count)
        ((T *)job.array[0].data)[place<1>(job, i).at[0]] =
            (T)job.array[1].value;
}

extern "C" __global__ void oari_arith_fill(oari_arith_job job)
{
    switch (job.kind) { /* bytes of an element */
    case 1: run_fill<uint8_t>(job); break;
    case 2: run_fill<uint16_t>(job); break;
    case 4: run_fill<uint32_t>(job); break;
    case 8: run_fill<uint64_t>(job); break;
    }
}

/* ---- backward of the variance -------------------------------------------- */

/* gradient * number[0] (a - mean) */
template <class T> DEVICE void run_var_back(const oari_arith_job &job)
{
    EACH(i, job.count) {
        places p = place<4>(job, i);
        double off = get<double>(job.array[2], p.at[2]) -
                     get<double>(job.array[3], p.at[3]);

        put(job, p.at[0],
            get<T>(job.array[1], p.at[1]) * (T)(job.number[0] * off));
    }
}

extern "C" __global__ void oari_arith_var_back(oari_arith_job job)
{
    BY_FLOATS(run_var_back);
}
