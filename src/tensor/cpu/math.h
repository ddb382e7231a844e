/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/math.h: functions of one f32 that a compiler can turn into
 * vectors: no branches, no calls, no tables. Within 2 units in the last place
 * of the true value, infinities and NaN included, unless said otherwise.
 *
 * OARI_EXP(x) and its like take an f32 to these and an f64 to libm. */
#ifndef OARI_TENSOR_CPU_MATH_H
#define OARI_TENSOR_CPU_MATH_H

#include <math.h>

#include "base/half.h"

/* a b + c in one rounding where the machine does it in one step, else in two.
 * OARI_FUSES: said by a file whose functions may use more than the baseline. */
#if defined(__aarch64__) || defined(OARI_FUSES)
#define OARI_MULADD(a, b, c) __builtin_fmaf(a, b, c)
#else
#define OARI_MULADD(a, b, c) ((a) * (b) + (c))
#endif

/* yes where take is not 0, else no; never a branch. */
static inline float oari_selectf(int take, float yes, float no)
{
    uint32_t mask = 0 - (uint32_t)(take != 0);

    return oari_bits_to_f32((oari_bits_from_f32(yes) & mask) |
                            (oari_bits_from_f32(no) & ~mask));
}

static inline float oari_absf(float x)
{
    return oari_bits_to_f32(oari_bits_from_f32(x) & 0x7fffffffu);
}

/* The size of x with the sign of s. */
static inline float oari_signf(float x, float s)
{
    uint32_t sign = oari_bits_from_f32(s) & 0x80000000u;

    return oari_bits_to_f32((oari_bits_from_f32(x) & 0x7fffffffu) | sign);
}

/* 2^n for n from -126 to 127. */
static inline float oari_two_to(int32_t n)
{
    return oari_bits_to_f32((uint32_t)(n + 127) << 23);
}

/* x = n ln 2 + r; e^r by a polynomial, its halves side by side; 2^n in two
 * factors, because 2^128 and 2^-149 are no normal numbers. */
static inline float oari_expf(float x)
{
    const float shift = 0x1.8p23f; /* adding it rounds to a whole number */
    float t, n, r, r2, low, high;
    int32_t whole, half;

    x = oari_selectf(x > 89.0f, 89.0f, x);
    x = oari_selectf(x < -104.0f, -104.0f, x);
    t = OARI_MULADD(x, 1.44269504f, shift);
    n = t - shift;
    whole = (int32_t)((oari_bits_from_f32(t) & 0x1ffu) ^ 0x100u) - 0x100;
    half = whole >> 1;
    r = OARI_MULADD(n, -0x1.62e4p-1f, x);
    r = OARI_MULADD(n, -0x1.7f7d1cp-20f, r);
    r2 = r * r;
    high = OARI_MULADD(r, 1.9875691500e-4f, 1.3981999507e-3f);
    high = OARI_MULADD(r2, high,
                       OARI_MULADD(r, 8.3334519073e-3f, 4.1665795894e-2f));
    low = OARI_MULADD(r, 1.6666665459e-1f, 5.0000001201e-1f);
    low = OARI_MULADD(r2, OARI_MULADD(r2, high, low), r) + 1.0f;
    return low * oari_two_to(half) * oari_two_to(whole - half);
}

/* e^x - 1: as above, but of 2^n e^r the 1 is taken off before it is rounded. */
static inline float oari_expm1f(float x)
{
    const float shift = 0x1.8p23f;
    float t, n, r, r2, low, high;
    int32_t whole, half;

    x = oari_selectf(x > 89.0f, 89.0f, x);
    x = oari_selectf(x < -20.0f, -20.0f, x);
    t = OARI_MULADD(x, 1.44269504f, shift);
    n = t - shift;
    whole = (int32_t)((oari_bits_from_f32(t) & 0x1ffu) ^ 0x100u) - 0x100;
    half = whole >> 1;
    r = OARI_MULADD(n, -0x1.62e4p-1f, x);
    r = OARI_MULADD(n, -0x1.7f7d1cp-20f, r);
    r2 = r * r;
    high = OARI_MULADD(r, 1.9875691500e-4f, 1.3981999507e-3f);
    high = OARI_MULADD(r2, high,
                       OARI_MULADD(r, 8.3334519073e-3f, 4.1665795894e-2f));
    low = OARI_MULADD(r, 1.6666665459e-1f, 5.0000001201e-1f);
    low = OARI_MULADD(r2, OARI_MULADD(r2, high, low), r);
    high = oari_two_to(whole - half);
    return (low * high + (high - oari_two_to(-half))) * oari_two_to(half);
}

/* x = 2^e m with m around 1; log m by a polynomial in m - 1. */
static inline float oari_logf(float x)
{
    const uint32_t middle = 0x3f3504f3u; /* sqrt(1/2) */
    int tiny = x < 0x1p-126f; /* perhaps no normal number: scaled first */
    uint32_t bits =
        oari_bits_from_f32(oari_selectf(tiny, x * 0x1p23f, x)) - middle;
    float e = (float)((int32_t)bits >> 23) - oari_selectf(tiny, 23.0f, 0.0f);
    float f = oari_bits_to_f32((bits & 0x007fffffu) + middle) - 1.0f;
    float z = f * f, p = 7.0376836292e-2f;

    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    p = p * f * z + e * -2.12194440e-4f - 0.5f * z;
    p = (f + p) + e * 0.693359375f;
    p = oari_selectf(x < INFINITY, p, x); /* both are their own logarithms */
    p = oari_selectf(x < 0.0f, NAN, p);
    return oari_selectf(x == 0.0f, -INFINITY, p);
}

/* log(1 + x): what 1 + x loses is made good to first order. */
static inline float oari_log1pf(float x)
{
    float u = 1.0f + x, lost = ((u - 1.0f) - x) / u;

    lost = oari_selectf(u > 0.0f && u < INFINITY, lost, 0.0f);
    return oari_logf(u) - lost;
}

static inline float oari_sigmoidf(float x)
{
    return 1.0f / (1.0f + oari_expf(-x));
}

/* A polynomial near zero, where 1 - 2/(e^2x + 1) would lose digits. */
static inline float oari_tanhf(float x)
{
    float size = oari_absf(x), z = x * x, p = -5.70498872745e-3f;
    float far = 1.0f - 2.0f / (oari_expf(2.0f * size) + 1.0f);

    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    p = p * z * x + x;
    return oari_selectf(size < 0.625f, p, oari_signf(far, x));
}

/* N. Juffa's: a polynomial near zero, 1 - e^polynomial elsewhere. */
static inline float oari_erff(float x)
{
    float t = oari_absf(x), s = x * x, near = -5.96761703e-4f, far, u;

    near = near * s + 4.99119423e-3f;
    near = near * s - 2.67681349e-2f;
    near = near * s + 1.12819925e-1f;
    near = near * s - 3.76125336e-1f;
    near = near * s + 1.28379166e-1f;
    near = near * x + x;
    t = oari_selectf(t > 4.0f, 4.0f, t);
    s = t * t;
    far = -1.72853470e-5f * t + 3.83197126e-4f;
    u = -3.88396438e-3f * t + 2.42546219e-2f;
    far = far * s + u;
    far = far * t - 1.06777877e-1f;
    far = far * t - 6.34846687e-1f;
    far = far * t - 1.28717512e-1f;
    far = 1.0f - oari_expf(far * t - t);
    return oari_selectf(t < 0.927734375f, near, oari_signf(far, x));
}

/* sin(x + quarter pi/2). Good up to OARI_SINCOS_MAX in size; beyond that use
 * libm. The turns are taken off in f64, which holds them exactly enough. */
#define OARI_SINCOS_MAX 1e6f

static inline float oari_sine(float x, int32_t quarter)
{
    const double shift = 0x1.8p52;
    double t = (double)x * 0.63661977236758134 + shift, n = t - shift;
    /* pi/2 in two parts, the first short enough for n times it to be exact */
    float r = (float)((double)x - n * 1.57079632673412561417 -
                      n * 6.07710050650619224932e-11);
    int32_t q = (int32_t)n + quarter;
    float z = r * r, s = -1.9515295891e-4f, c = 2.443315711809948e-5f, y;

    s = s * z + 8.3321608736e-3f;
    s = s * z - 1.6666654611e-1f;
    s = s * z * r + r;
    c = c * z - 1.388731625493765e-3f;
    c = c * z + 4.166664568298827e-2f;
    c = c * z * z - 0.5f * z + 1.0f;
    y = oari_selectf(q & 1, c, s);
    return oari_bits_to_f32(oari_bits_from_f32(y) ^ ((uint32_t)(q & 2) << 30));
}

static inline float oari_sinf(float x)
{
    return oari_sine(x, 0);
}

static inline float oari_cosf(float x)
{
    return oari_sine(x, 1);
}

static inline double oari_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

#define OARI_EXP(x)   _Generic((x), float : oari_expf, double : exp)(x)
#define OARI_EXPM1(x) _Generic((x), float : oari_expm1f, double : expm1)(x)
#define OARI_LOG(x)   _Generic((x), float : oari_logf, double : log)(x)
#define OARI_LOG1P(x) _Generic((x), float : oari_log1pf, double : log1p)(x)
#define OARI_TANH(x)  _Generic((x), float : oari_tanhf, double : tanh)(x)
#define OARI_ERF(x)   _Generic((x), float : oari_erff, double : erf)(x)
#define OARI_SIN(x)   _Generic((x), float : oari_sinf, double : sin)(x)
#define OARI_COS(x)   _Generic((x), float : oari_cosf, double : cos)(x)
#define OARI_SQRT(x)  _Generic((x), float : sqrtf, double : sqrt)(x)
#define OARI_SIGMOID(x) \
    _Generic((x), float : oari_sigmoidf, double : oari_sigmoid)(x)

#endif
