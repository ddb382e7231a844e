/* SPDX-License-Identifier: Apache-2.0 */
/* standin/nccl_reduce.c: arithmetic on the types of NCCL. Integers wrap; small
 * floats go through f32. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "standin/nccl.h"

size_t nccl_type_bytes(int type)
{
    static const unsigned char bytes[NCCL_TYPES] = { 1, 1, 4, 4, 8, 8,
                                                     2, 4, 8, 2, 1, 1 };
    return bytes[type];
}

/* ---- small floats -------------------------------------------------------- */

/* e4m3 has no infinity, and one NaN of each sign. */
static float f8_to_f32(unsigned char bits, int mantissa_bits)
{
    int bias = mantissa_bits == 3 ? 7 : 15;
    int mantissa = bits & ((1 << mantissa_bits) - 1);
    int exponent = (bits & 0x7f) >> mantissa_bits;
    float sign = bits & 0x80 ? -1.0f : 1.0f;
    if (mantissa_bits == 3 && (bits & 0x7f) == 0x7f)
        return NAN;
    if (mantissa_bits == 2 && exponent == 31)
        return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexpf((float)mantissa, 1 - bias - mantissa_bits);
    return sign * ldexpf((float)(mantissa + (1 << mantissa_bits)),
                         exponent - bias - mantissa_bits);
}

/* The nearest of all that are finite, the even one of two; as CUDA does it,
 * what is too large becomes the largest. */
static unsigned char f8_from_f32(float value, int mantissa_bits)
{
    unsigned char sign = signbit(value) ? 0x80 : 0, best = 0;
    unsigned char largest = mantissa_bits == 3 ? 0x7e : 0x7b;
    float size = fabsf(value);
    if (isnan(value))
        return (unsigned char)(sign | 0x7f);
    for (int i = 0; i <= largest; i++) {
        float old = fabsf(f8_to_f32(best, mantissa_bits) - size);
        float now = fabsf(f8_to_f32((unsigned char)i, mantissa_bits) - size);
        if (now < old || (now == old && i % 2 == 0))
            best = (unsigned char)i;
    }
    if (isinf(size))
        best = largest;
    return (unsigned char)(sign | best);
}

static float small_get(const char *at, int type)
{
    uint16_t half;
    if (type == NCCL_F8E4M3 || type == NCCL_F8E5M2)
        return f8_to_f32((unsigned char)*at, type == NCCL_F8E4M3 ? 3 : 2);
    memcpy(&half, at, 2);
    return type == NCCL_F16 ? oari_f16_bits_to_f32(half)
                            : oari_bf16_bits_to_f32(half);
}

static void small_put(char *at, int type, float value)
{
    uint16_t half;
    if (type == NCCL_F8E4M3 || type == NCCL_F8E5M2) {
        *at = (char)f8_from_f32(value, type == NCCL_F8E4M3 ? 3 : 2);
        return;
    }
    half = type == NCCL_F16 ? oari_f16_bits_from_f32(value)
                            : oari_bf16_bits_from_f32(value);
    memcpy(at, &half, 2);
}

/* ---- one operation on one type ------------------------------------------- */

#define FLOAT_PAIR(name, type)                         \
    static type name(type a, type b, int op)           \
    {                                                  \
        switch (op) {                                  \
        case NCCL_PROD: return a * b;                  \
        case NCCL_MAX: return a < b || b != b ? b : a; \
        case NCCL_MIN: return b < a || b != b ? b : a; \
        default: return a + b;                         \
        }                                              \
    }
FLOAT_PAIR(pair_f32, float)
FLOAT_PAIR(pair_f64, double)

#define INTEGER_PAIR(name, type, wide)                    \
    static type name(type a, type b, int op)              \
    {                                                     \
        switch (op) {                                     \
        case NCCL_PROD: return (type)((wide)a * (wide)b); \
        case NCCL_MAX: return a < b ? b : a;              \
        case NCCL_MIN: return b < a ? b : a;              \
        default: return (type)((wide)a + (wide)b);        \
        }                                                 \
    }
INTEGER_PAIR(pair_i8, int8_t, uint32_t)
INTEGER_PAIR(pair_u8, uint8_t, uint32_t)
INTEGER_PAIR(pair_i32, int32_t, uint32_t)
INTEGER_PAIR(pair_u32, uint32_t, uint32_t)
INTEGER_PAIR(pair_i64, int64_t, uint64_t)
INTEGER_PAIR(pair_u64, uint64_t, uint64_t)

#define COMBINE(type, pair, is_integer)                               \
    for (size_t i = 0; i < count; i++) {                              \
        type all, next;                                               \
        memcpy(&all, from[0] + i * sizeof all, sizeof all);           \
        for (int rank = 1; rank < ranks; rank++) {                    \
            memcpy(&next, from[rank] + i * sizeof next, sizeof next); \
            all = pair(all, next, op);                                \
        }                                                             \
        if (is_integer && op == NCCL_AVG)                             \
            all = (type)(all / (type)ranks);                          \
        memcpy(to + i * sizeof all, &all, sizeof all);                \
    }

static void combine_small(char *to, const char *const *from, int ranks,
                          size_t count, int type, int op)
{
    size_t each = nccl_type_bytes(type);
    for (size_t i = 0; i < count; i++) {
        float all = small_get(from[0] + i * each, type);
        for (int rank = 1; rank < ranks; rank++)
            all = pair_f32(all, small_get(from[rank] + i * each, type), op);
        small_put(to + i * each, type, all);
    }
}

void nccl_combine(char *to, const char *const *from, int ranks, size_t count,
                  int type, int op)
{
    switch (type) {
    case NCCL_I8: COMBINE(int8_t, pair_i8, 1) break;
    case NCCL_U8: COMBINE(uint8_t, pair_u8, 1) break;
    case NCCL_I32: COMBINE(int32_t, pair_i32, 1) break;
    case NCCL_U32: COMBINE(uint32_t, pair_u32, 1) break;
    case NCCL_I64: COMBINE(int64_t, pair_i64, 1) break;
    case NCCL_U64: COMBINE(uint64_t, pair_u64, 1) break;
    case NCCL_F32: COMBINE(float, pair_f32, 0) break;
    case NCCL_F64: COMBINE(double, pair_f64, 0) break;
    default: combine_small(to, from, ranks, count, type, op);
    }
}

/* ---- factors ------------------------------------------------------------- */

#define VALUE(type)                       \
    {                                     \
        type value;                       \
        memcpy(&value, at, sizeof value); \
        return (double)value;             \
    }

double nccl_value(const void *at, int type)
{
    switch (type) {
    case NCCL_I8: VALUE(int8_t)
    case NCCL_U8: VALUE(uint8_t)
    case NCCL_I32: VALUE(int32_t)
    case NCCL_U32: VALUE(uint32_t)
    case NCCL_I64: VALUE(int64_t)
    case NCCL_U64: VALUE(uint64_t)
    case NCCL_F32: VALUE(float)
    case NCCL_F64: VALUE(double)
    default: return small_get(at, type);
    }
}

#define SCALE(type)                                            \
    for (size_t i = 0; i < count; i++) {                       \
        type value;                                            \
        memcpy(&value, from + i * sizeof value, sizeof value); \
        value = (type)(value * (type)factor);                  \
        memcpy(to + i * sizeof value, &value, sizeof value);   \
    }

void nccl_scale(char *to, const char *from, size_t count, int type,
                double factor)
{
    size_t each = nccl_type_bytes(type);
    switch (type) {
    case NCCL_I8: SCALE(int8_t) return;
    case NCCL_U8: SCALE(uint8_t) return;
    case NCCL_I32: SCALE(int32_t) return;
    case NCCL_U32: SCALE(uint32_t) return;
    case NCCL_I64: SCALE(int64_t) return;
    case NCCL_U64: SCALE(uint64_t) return;
    case NCCL_F32: SCALE(float) return;
    case NCCL_F64: SCALE(double) return;
    default: break;
    }
    for (size_t i = 0; i < count; i++)
        small_put(to + i * each, type,
                  small_get(from + i * each, type) * (float)factor);
}
