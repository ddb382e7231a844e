// SPDX-License-Identifier: Apache-2.0
/* arith: functions of elements, and their derivatives. Formulas are those of
 * tensor/cpu; halves are computed in f32 and rounded once. Every kernel takes
 * one job and goes through its elements in strides of the grid. */
#include <math.h>

#include "tensor/arith_kinds.h"
#include "tensor/cuda/numbers.cuh"

/* ---- functions of libm by type ------------------------------------------- */

#define OF_FLOATS(name)               \
    DEVICE float fn_##name(float x)   \
    {                                 \
        return name##f(x);            \
    }                                 \
    DEVICE double fn_##name(double x) \
    {                                 \
        return name(x);               \
    }
OF_FLOATS(exp)
OF_FLOATS(expm1)
OF_FLOATS(log)
OF_FLOATS(log1p)
OF_FLOATS(erf)
OF_FLOATS(erfc)
OF_FLOATS(sqrt)
OF_FLOATS(sin)
OF_FLOATS(cos)
OF_FLOATS(tanh)
OF_FLOATS(floor)
OF_FLOATS(ceil)
OF_FLOATS(rint)

DEVICE float fn_pow(float x, float y)
{
    return powf(x, y);
}
DEVICE double fn_pow(double x, double y)
{
    return pow(x, y);
}

template <class T> DEVICE T sigmoid(T x)
{
    return 1 / (1 + fn_exp(-x));
}

#define GELU_SCALE 0.79788456080286535588 /* sqrt(2/pi) */
#define GELU_CUBIC 0.044715

template <class T> DEVICE T gelu_tanh_of(T a)
{
    return fn_tanh((T)GELU_SCALE * (a + (T)GELU_CUBIC * a * a * a));
}

template <class T> DEVICE T normal_cdf(T a)
{
    return (T)0.5 * fn_erfc(-a * (T)0.70710678118654752440);
}

template <class T> DEVICE T normal_pdf(T a)
{
    return (T)0.39894228040143267794 * fn_exp((T)-0.5 * a * a);
}

/* ---- unary --------------------------------------------------------------- */

/* What there is for integers too. */
template <class T> DEVICE T whole_unary(int kind, T a)
{
    switch (kind) {
    case OARI_UNARY_neg: return -a;
    case OARI_UNARY_abs: return a > 0 ? a : 0 - a;
    case OARI_UNARY_relu: return a <= 0 ? (T)0 : a;
    case OARI_UNARY_sign: return a > 0 ? (T)1 : a == 0 || a != a ? (T)0 : (T)-1;
    }
    return a;
}

template <class T> DEVICE T unary_of(int kind, T a)
{
    switch (kind) {
    case OARI_UNARY_floor: return fn_floor(a);
    case OARI_UNARY_ceil: return fn_ceil(a);
    case OARI_UNARY_round: return fn_rint(a);
    case OARI_UNARY_exp: return fn_exp(a);
    case OARI_UNARY_expm1: return fn_expm1(a);
    case OARI_UNARY_log: return fn_log(a);
    case OARI_UNARY_log1p: return fn_log1p(a);
    case OARI_UNARY_erf: return fn_erf(a);
    case OARI_UNARY_sqrt: return fn_sqrt(a);
    case OARI_UNARY_rsqrt: return 1 / fn_sqrt(a);
    case OARI_UNARY_sin: return fn_sin(a);
    case OARI_UNARY_cos: return fn_cos(a);
    case OARI_UNARY_tanh: return fn_tanh(a);
    case OARI_UNARY_sigmoid: return sigmoid(a);
    case OARI_UNARY_gelu: return a * normal_cdf(a);
    case OARI_UNARY_gelu_tanh: return (T)0.5 * a * (1 + gelu_tanh_of(a));
    case OARI_UNARY_silu: return a * sigmoid(a);
    case OARI_UNARY_softplus:
        return (a <= 0 ? (T)0 : a) + fn_log1p(fn_exp(a > 0 ? -a : a));
    }
    return whole_unary(kind, a);
}

template <> inline __device__ int64_t unary_of<int64_t>(int kind, int64_t a)
{
    return whole_unary(kind, a);
}

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
    BY_NUMBERS(run_unary);
}

/* x (+)= to what is there. */
template <class T> DEVICE void put(const oari_arith_job &job, int64_t at, T x)
{
    if (job.add)
        x += load_as<T>(job.array[0].data, job.array[0].dtype, at);
    store_as(job.array[0].data, job.array[0].dtype, at, x);
}

/* The slope times the gradient a; b is what was saved. */
template <class T> DEVICE T unary_back_of(int kind, T a, T b)
{
    T t;

    switch (kind) {
    case OARI_UNARY_neg: return -a;
    case OARI_UNARY_abs: return b > 0 ? a : b < 0 ? -a : (T)0;
    case OARI_UNARY_relu: return b <= 0 ? (T)0 : a;
    case OARI_UNARY_exp: return a * b;
    case OARI_UNARY_expm1: return a * (b + 1);
    case OARI_UNARY_log: return a / b;
    case OARI_UNARY_log1p: return a / (1 + b);
    case OARI_UNARY_erf:
        return a * (T)1.12837916709551257390 * fn_exp(-(b * b));
    case OARI_UNARY_sqrt: return a / (2 * b);
    case OARI_UNARY_rsqrt: return (T)-0.5 * a / (b * fn_sqrt(b));
    case OARI_UNARY_sin: return a * fn_cos(b);
    case OARI_UNARY_cos: return -a * fn_sin(b);
    case OARI_UNARY_tanh: return a * (1 - b * b);
    case OARI_UNARY_sigmoid: return a * b * (1 - b);
    case OARI_UNARY_gelu: return a * (normal_cdf(b) + b * normal_pdf(b));
    case OARI_UNARY_gelu_tanh:
        t = gelu_tanh_of(b);
        return a *
               ((T)0.5 * (1 + t) +
                (T)0.5 * b * (1 - t * t) *
                    ((T)GELU_SCALE + (T)(3 * GELU_SCALE * GELU_CUBIC) * b * b));
    case OARI_UNARY_silu: t = sigmoid(b); return a * (t * (1 + b * (1 - t)));
    case OARI_UNARY_softplus: return a * sigmoid(b);
    }
    return 0;
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
    BY_FLOATS(run_unary_back);
}

/* ---- binary -------------------------------------------------------------- */

DEVICE bool less(float a, float b, int)
{
    return a < b;
}
DEVICE bool less(double a, double b, int)
{
    return a < b;
}
DEVICE bool less(int64_t a, int64_t b, int numbers)
{
    return numbers == OARI_JOB_UNSIGNED ? (uint64_t)a < (uint64_t)b : a < b;
}

template <class T> DEVICE T quotient(int kind, T a, T b)
{
    return kind == OARI_DIV ? a / b : fn_pow(a, b);
}
template <> inline __device__ int64_t quotient<int64_t>(int, int64_t a, int64_t)
{
    return a; /* integers are refused before */
}

template <class T> DEVICE void run_binary(const oari_arith_job &job)
{
    EACH(i, job.count) {
        places p = place<3>(job, i);
        T a = get<T>(job.array[1], p.at[1]), b = get<T>(job.array[2], p.at[2]);
        T y;

        switch (job.kind) {
        case OARI_ADD: y = a + b; break;
        case OARI_SUB: y = a - b; break;
        case OARI_MUL: y = a * b; break;
        case OARI_MINIMUM: y = less(a, b, job.numbers) || a != a ? a : b; break;
        case OARI_MAXIMUM: y = less(b, a, job.numbers) || a != a ? a : b; break;
        default: y = quotient(job.kind, a, b);
        }
        store_as(job.array[0].data, job.array[0].dtype, p.at[0], y);
    }
}

extern "C" __global__ void oari_arith_binary(oari_arith_job job)
{
    BY_NUMBERS(run_binary);
}

/* a is the gradient, b and c the inputs. */
template <class T> DEVICE T quotient_slope(T a, T b, T c)
{
    T both = (a / c) * (b / c);

    if (both - both == 0)
        return both;
    return a / c - a / c == 0 ? b * (a / c / c) : a * (b / c / c);
}

template <class T> DEVICE T share(bool wins, bool ties, T a)
{
    return wins ? a : ties ? a / 2 : (T)0;
}

template <class T> DEVICE T binary_back_of(int kind, int side, T a, T b, T c)
{
    switch (kind) {
    case OARI_SUB: return side ? -a : a;
    case OARI_MUL: return a * (side ? b : c);
    case OARI_DIV: return side ? -quotient_slope(a, b, c) : a / c;
    case OARI_POW:
        if (side == 0)
            return c == 0 ? (T)0 : a * c * fn_pow(b, c - 1);
        return b == 0 && c >= 0 ? (T)0 : a * fn_pow(b, c) * fn_log(b);
    case OARI_MINIMUM: return share(side ? c < b : b < c, b == c, a);
    case OARI_MAXIMUM: return share(side ? c > b : b > c, b == c, a);
    }
    return a;
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
    BY_FLOATS(run_binary_back);
}

/* ---- with numbers -------------------------------------------------------- */

template <class T> DEVICE T scalar_of(const oari_arith_job &job, T a)
{
    T first = (T)job.number[0], second = (T)job.number[1];

    switch (job.kind) {
    case OARI_SHIFT: return a + first;
    case OARI_POWER:
        return job.number[0] == 2   ? a * a
               : job.number[0] == 3 ? a * a * a
                                    : fn_pow(a, first);
    case OARI_CLAMP: a = a < first ? first : a; return a > second ? second : a;
    case OARI_LEAKY_RELU: return a > 0 ? a : a * first;
    }
    return a;
}

DEVICE int64_t whole_number(double number)
{
    return number >= 0x1p63    ? INT64_MAX
           : number <= -0x1p63 ? INT64_MIN
                               : (int64_t)number;
}

template <>
inline __device__ int64_t scalar_of<int64_t>(const oari_arith_job &job,
                                             int64_t a)
{
    uint64_t power = 1, base = (uint64_t)a;
    double low, high;

    switch (job.kind) {
    case OARI_SHIFT: return a + whole_number(job.number[0]);
    case OARI_POWER:
        for (uint64_t n = (uint64_t)whole_number(job.number[0]); n > 0;
             n >>= 1, base *= base)
            if (n & 1)
                power *= base;
        return (int64_t)power;
    case OARI_CLAMP: low = ceil(job.number[0]); high = floor(job.number[1]);
#define AS_DOUBLE(x) \
    (job.numbers == OARI_JOB_UNSIGNED ? (double)(uint64_t)(x) : (double)(x))
        a = AS_DOUBLE(a) < low ? whole_number(low) : a;
        return AS_DOUBLE(a) > high ? whole_number(high) : a;
    }
    return a;
}

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
    BY_NUMBERS(run_scalar);
}

/* a is the gradient, b the input. */
template <class T> DEVICE T scalar_back_of(const oari_arith_job &job, T a, T b)
{
    T first = (T)job.number[0], second = (T)job.number[1];

    switch (job.kind) {
    case OARI_POWER:
        return job.number[0] == 0   ? a * 0
               : job.number[0] == 2 ? a * 2 * b
               : job.number[0] == 3 ? a * 3 * b * b
                                    : a * first * fn_pow(b, first - 1);
    case OARI_CLAMP: return b < first || b > second ? (T)0 : a;
    case OARI_LEAKY_RELU: return b > 0 ? a : a * first;
    }
    return a;
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
    BY_FLOATS(run_scalar_back);
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
    BY_NUMBERS(run_scale);
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
