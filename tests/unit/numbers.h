/* SPDX-License-Identifier: Apache-2.0 */
/* unit/numbers.h: the value of an element, computed the slow and obvious way,
 * for tests to compare the library's conversions and reductions with. A long
 * double holds every value of every dtype exactly, on both architectures.
 */
#ifndef TEST_UNIT_NUMBERS_H
#define TEST_UNIT_NUMBERS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <oarsong/span.h>

#include "support/test_job.h"

/* A floating-point format: digits of the significand, exponent of the least
 * subnormal, bits of infinity. */
typedef struct half_format {
    int digits, least, infinity;
} half_format;

static const half_format format_f16 = { 11, -24, 0x7c00 };
static const half_format format_bf16 = { 8, -133, 0x7f80 };

static inline long double half_value(half_format f, uint16_t bits)
{
    int body = bits & 0x7fff, fraction = body & ((1 << (f.digits - 1)) - 1);
    int exponent = body >> (f.digits - 1);
    long double value;

    if (body > f.infinity)
        return NAN;
    if (body == f.infinity)
        value = INFINITY;
    else if (exponent == 0)
        value = ldexpl(fraction, f.least);
    else
        value =
            ldexpl(fraction + (1 << (f.digits - 1)), f.least + exponent - 1);
    return bits & 0x8000 ? -value : value;
}

static inline uint16_t half_bits(half_format f, long double value)
{
    int sign = signbit(value) ? 0x8000 : 0, exponent, unit;
    long double bits;

    if (isnan(value))
        return (uint16_t)(f.infinity + 1);
    if (value == 0 || isinf(value))
        return (uint16_t)(sign | (value == 0 ? 0 : f.infinity));
    frexpl(value, &exponent);
    unit = exponent - f.digits > f.least ? exponent - f.digits : f.least;
    bits = ldexpl(unit - f.least, f.digits - 1) +
           rintl(ldexpl(fabsl(value), -unit));
    return (uint16_t)(sign | (bits < f.infinity ? (int)bits : f.infinity));
}

static inline int is_float(oar_dtype dtype)
{
    return dtype == OAR_F32 || dtype == OAR_F64 || dtype == OAR_F16 ||
           dtype == OAR_BF16;
}

static inline int is_signed(oar_dtype dtype)
{
    return dtype == OAR_I8 || dtype == OAR_I16 || dtype == OAR_I32 ||
           dtype == OAR_I64;
}

/* The bytes of an element as a number, whatever it means. */
static inline uint64_t raw_get(oar_dtype dtype, const void *element)
{
    uint64_t raw = 0;

    memcpy(&raw, element, oar_dtype_size(dtype)); /* little-endian */
    return raw;
}

static inline void raw_set(oar_dtype dtype, void *element, uint64_t raw)
{
    memcpy(element, &raw, oar_dtype_size(dtype));
}

/* An integer element, sign extended to 64 bits. */
static inline uint64_t integer_get(oar_dtype dtype, const void *element)
{
    int unused = 64 - 8 * (int)oar_dtype_size(dtype);
    uint64_t raw = raw_get(dtype, element);

    if (dtype == OAR_BOOL)
        return raw != 0;
    if (is_signed(dtype))
        return (uint64_t)((int64_t)(raw << unused) >> unused);
    return raw;
}

static inline long double value_get(oar_dtype dtype, const void *element)
{
    float f32;
    double f64;

    switch (dtype) {
    case OAR_F32: memcpy(&f32, element, sizeof f32); return f32;
    case OAR_F64: memcpy(&f64, element, sizeof f64); return f64;
    case OAR_F16: return half_value(format_f16, raw_get(dtype, element));
    case OAR_BF16: return half_value(format_bf16, raw_get(dtype, element));
    default: break;
    }
    if (is_signed(dtype))
        return (int64_t)integer_get(dtype, element);
    return integer_get(dtype, element);
}

/* Truncated toward zero and saturated; NaN is 0. */
static inline uint64_t integer_of(oar_dtype dtype, long double value)
{
    int bits = 8 * (int)oar_dtype_size(dtype) - is_signed(dtype);
    long double over = ldexpl(1, bits);
    long double least = is_signed(dtype) ? -over : 0;

    if (isnan(value))
        return 0;
    value = truncl(value);
    if (value >= over)
        return UINT64_MAX >> (64 - bits);
    if (value < least)
        value = least;
    return value < 0 ? 0 - (uint64_t)-value : (uint64_t)value;
}

static inline void value_set(oar_dtype dtype, void *element, long double value)
{
    float f32 = (float)value;
    double f64 = (double)value;

    switch (dtype) {
    case OAR_F32: memcpy(element, &f32, sizeof f32); break;
    case OAR_F64: memcpy(element, &f64, sizeof f64); break;
    case OAR_F16: raw_set(dtype, element, half_bits(format_f16, value)); break;
    case OAR_BF16:
        raw_set(dtype, element, half_bits(format_bf16, value));
        break;
    case OAR_BOOL: raw_set(dtype, element, value != 0); break;
    default: raw_set(dtype, element, integer_of(dtype, value)); break;
    }
}

/* The same bits, or both NaN. */
static inline int same_element(oar_dtype dtype, const void *a, const void *b)
{
    if (raw_get(dtype, a) == raw_get(dtype, b))
        return 1;
    return is_float(dtype) && isnan(value_get(dtype, a)) &&
           isnan(value_get(dtype, b));
}

/* Fills an element: mostly ordinary numbers, now and then a zero of either
 * sign, an infinity, a NaN, a subnormal, an extreme. */
static inline void random_element(oar_dtype dtype, void *element,
                                  uint64_t *state)
{
    static const double odd[] = { 0.0,   -0.0,     INFINITY, -INFINITY,
                                  NAN,   0x1p-140, 0x1p-24,  0x1p-20,
                                  65504, 3e38,     -3e38,    0x1p-1060 };
    uint64_t bits = next_random(state);

    if (!is_float(dtype))
        raw_set(dtype, element,
                bits % 16 == 0 ? bits >> 62 : next_random(state));
    else if (bits % 64 == 0)
        value_set(dtype, element, (long double)odd[(bits >> 8) % 12]);
    else
        value_set(dtype, element,
                  (long double)ldexp((double)(int64_t)bits,
                                     (int)(bits >> 20) % 9 - 63));
}

#endif
