/* SPDX-License-Identifier: Apache-2.0 */
/* numbers: reading, writing and rounding numbers of every float dtype,
 * from their definitions and not with the library's conversions. */
#include "numbers.h"

#include <math.h>
#include <string.h>

typedef struct float_form {
    int digits; /* of the significand, after the point */
    int least;  /* exponent of the smallest normal number */
    int most;   /* exponent of the largest number */
} float_form;

static float_form form_of(oar_dtype dtype)
{
    switch (dtype) {
    case OAR_F64: return (float_form){ 52, -1022, 1023 };
    case OAR_F16: return (float_form){ 10, -14, 15 };
    case OAR_BF16: return (float_form){ 7, -126, 127 };
    default: return (float_form){ 23, -126, 127 };
    }
}

static uint64_t bits_of(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double from_bits(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static int exponent_of(double value)
{
    return (int)(bits_of(value) >> 52 & 2047) - 1023;
}

int float_digits(oar_dtype dtype)
{
    return form_of(dtype).digits;
}

double float_ulp(oar_dtype dtype, double at)
{
    float_form f = form_of(dtype);
    int exponent = exponent_of(at);

    if (exponent < f.least)
        exponent = f.least;
    if (exponent > f.most)
        exponent = f.most;
    if (exponent - f.digits < -1022)
        return ldexp(1, exponent - f.digits);
    return from_bits((uint64_t)(exponent - f.digits + 1023) << 52);
}

/* To nearest, ties to even: of a number too small or too large to be normal. */
static double rounded_slowly(oar_dtype dtype, double value)
{
    float_form f = form_of(dtype);
    double unit = float_ulp(dtype, value);
    double most = ldexp(2 - ldexp(1, -f.digits), f.most);

    if (isnan(value) || isinf(value) || value == 0)
        return value;
    value = nearbyint(value / unit) * unit;
    return fabs(value) > most ? copysign(INFINITY, value) : value;
}

double float_rounded(oar_dtype dtype, double value)
{
    float_form f = form_of(dtype);
    int exponent = exponent_of(value), spare = 52 - f.digits;
    uint64_t bits = bits_of(value);

    if (spare == 0)
        return value;
    if (exponent < f.least || exponent >= f.most)
        return rounded_slowly(dtype, value);
    bits += (1ull << (spare - 1)) - 1 + (bits >> spare & 1);
    return from_bits(bits >> spare << spare);
}

/* Of a number that f16 has. */
static uint16_t f16_bits(double value)
{
    uint64_t bits = bits_of(value);
    uint16_t sign = (uint16_t)(bits >> 63 << 15);
    int exponent = exponent_of(value);

    if (isnan(value))
        return sign | 0x7e00;
    if (isinf(value))
        return sign | 0x7c00;
    if (exponent < -14)
        return sign | (uint16_t)(fabs(value) * 0x1p24);
    return (uint16_t)(sign | (exponent + 15) << 10 | (bits >> 42 & 1023));
}

static double f16_value(uint16_t bits)
{
    uint64_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size;

    if (exponent == 31)
        size = fraction != 0 ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        size = (double)fraction * 0x1p-24;
    else
        size = from_bits((exponent + 1023 - 15) << 52 | fraction << 42);
    return bits & 0x8000 ? -size : size;
}

double float_read(oar_dtype dtype, const void *element)
{
    uint32_t word = 0;
    uint16_t half;
    float f32;
    double f64;

    switch (dtype) {
    case OAR_F64: memcpy(&f64, element, 8); return f64;
    case OAR_F32: memcpy(&f32, element, 4); return (double)f32;
    case OAR_F16: memcpy(&half, element, 2); return f16_value(half);
    default:
        memcpy(&half, element, 2);
        word = (uint32_t)half << 16;
        memcpy(&f32, &word, 4);
        return (double)f32;
    }
}

void float_write(oar_dtype dtype, double value, void *element)
{
    float f32 = (float)value;
    uint32_t word;
    uint16_t half;

    switch (dtype) {
    case OAR_F64: memcpy(element, &value, 8); break;
    case OAR_F32: memcpy(element, &f32, 4); break;
    case OAR_F16:
        half = f16_bits(float_rounded(dtype, value));
        memcpy(element, &half, 2);
        break;
    default:
        f32 = (float)float_rounded(dtype, value);
        memcpy(&word, &f32, 4);
        half = (uint16_t)(word >> 16);
        memcpy(element, &half, 2);
        break;
    }
}

uint64_t value_mix(uint64_t a, uint64_t b)
{
    uint64_t x = a + 0x9e3779b97f4a7c15u * (b + 1);

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
