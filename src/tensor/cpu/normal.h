/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cpu/normal.h: density and distribution of the normal distribution, for
 * gelu and its slope, from one exponential. f64 takes libm. For f32, measured
 * over numbers up to 20 in size, fused and not: the cdf is within 3.1e-7 of
 * the true value, and below zero, of its own size, within 6.6e-7 down to -3 and
 * 4.2e-6 down to -13, where the square in the exponent is rounded; gelu is
 * within 1e-7 (1 + its size), its slope within 3.2e-7. Written so that steps do
 * not wait for each other: a compiler turns loops over it into vectors. */
#ifndef OARI_TENSOR_CPU_NORMAL_H
#define OARI_TENSOR_CPU_NORMAL_H

#include <math.h>

#include "tensor/cpu/math.h"

/* The density times sqrt(2 pi): e^-(x^2/2), without numbers below e^-87. */
static inline float oari_normal_pdff(float x)
{
    const float shift = 0x1.8p23f; /* adding it rounds to a whole number */
    float v = -0.5f * x * x, t, n, r, r2, low, high;

    v = oari_selectf(v < -87.0f, -87.0f, v);
    t = OARI_MULADD(v, 1.44269504f, shift);
    n = t - shift;
    r = OARI_MULADD(n, -0x1.62e4p-1f, v);
    r = OARI_MULADD(n, -0x1.7f7d1cp-20f, r);
    r2 = r * r;
    low = OARI_MULADD(r2, 0.5f, 1.0f + r);
    high = OARI_MULADD(r2, OARI_MULADD(r, 1.3981999507e-3f, 8.3334519073e-3f),
                       OARI_MULADD(r, 4.1665795894e-2f, 1.6666665459e-1f));
    return OARI_MULADD(r2 * r, high, low) *
           oari_bits_to_f32((oari_bits_from_f32(t) << 23) + 0x3f800000u);
}

/* The cdf at -|x|, given pdf(x): that times a polynomial in
 * t = 1 / (1 + 0.42 |x| / sqrt 2), fitted for the relative error. */
static inline float oari_normal_tailf(float x, float pdf)
{
    float t = 1.0f / OARI_MULADD(oari_absf(x), 0.29698485f, 1.0f);
    float t2 = t * t, t4 = t2 * t2;
    float a = OARI_MULADD(t, 0.119791533f, 0.118412210f);
    float b = OARI_MULADD(t, 0.134344359f, 0.0973714339f);
    float c = OARI_MULADD(t, 0.220283192f, -0.0652133170f);
    float d = OARI_MULADD(t, 0.0351083671f, -0.160097863f);

    a = OARI_MULADD(t2, b, a);
    c = OARI_MULADD(t2, d, c);
    return OARI_MULADD(t4, c, a) * t * pdf;
}

static inline float oari_normal_cdff(float x)
{
    float tail = oari_normal_tailf(x, oari_normal_pdff(x));

    return oari_selectf(x < 0, tail, 1.0f - tail);
}

/* The slope of x cdf(x), given pdf(x) and cdf(x). A large x must not multiply a
 * pdf that stands at its floor. */
static inline float oari_gelu_slope_of(float x, float pdf, float cdf)
{
    float near = oari_selectf(oari_absf(x) > 20.0f, 0.0f, x);

    return OARI_MULADD(near * 0.398942280f, pdf, cdf);
}

static inline float oari_gelu_slopef(float x)
{
    float pdf = oari_normal_pdff(x), tail = oari_normal_tailf(x, pdf);

    return oari_gelu_slope_of(x, pdf, oari_selectf(x < 0, tail, 1.0f - tail));
}

static inline double oari_normal_cdf(double x)
{
    return 0.5 * erfc(x * -0.70710678118654752440);
}

static inline double oari_gelu_slope(double x)
{
    double pdf = exp(-0.5 * x * x);

    return oari_normal_cdf(x) +
           (pdf == 0 ? 0 : x * 0.39894228040143267794 * pdf);
}

#endif
