/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/functions.cuh: functions of elements, and their derivatives, of
 * float, double and int64_t. Formulas are those of tensor/cpu. */
#ifndef OARI_TENSOR_CUDA_FUNCTIONS_CUH
#define OARI_TENSOR_CUDA_FUNCTIONS_CUH

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
    return a; /* integers have a kernel of their own */
}

template <class T> DEVICE T binary_of(int kind, int numbers, T a, T b)
{
    switch (kind) {
    case OARI_ADD: return a + b;
    case OARI_SUB: return a - b;
    case OARI_MUL: return a * b;
    case OARI_MINIMUM: return less(a, b, numbers) || a != a ? a : b;
    case OARI_MAXIMUM: return less(b, a, numbers) || a != a ? a : b;
    }
    return quotient(kind, a, b);
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

#endif
