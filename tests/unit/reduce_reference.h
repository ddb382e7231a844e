/* SPDX-License-Identifier: Apache-2.0 */
/* unit/reduce_reference.h: what a reduction should give, one element at a time,
 * written without regard to speed. */
#ifndef TEST_UNIT_REDUCE_REFERENCE_H
#define TEST_UNIT_REDUCE_REFERENCE_H

#include "base/reduce/reduce.h"
#include "numbers.h"

static inline double pick_float(oar_reduce_op_kind kind, double a, double b)
{
    int a_first;

    if (isnan(a) || isnan(b))
        return NAN;
    a_first = a < b || (a == b && signbit(a));
    return (kind == OAR_REDUCE_OP_MIN) == a_first ? a : b;
}

static inline float combine_f32(oar_reduce_op_kind kind, float a, float b)
{
    switch (kind) {
    case OAR_REDUCE_OP_SUM: return a + b;
    case OAR_REDUCE_OP_PROD: return a * b;
    default: return (float)pick_float(kind, a, b);
    }
}

static inline double combine_f64(oar_reduce_op_kind kind, double a, double b)
{
    switch (kind) {
    case OAR_REDUCE_OP_SUM: return a + b;
    case OAR_REDUCE_OP_PROD: return a * b;
    default: return pick_float(kind, a, b);
    }
}

/* In f32, whose results are exact as a double. */
static inline double reduce_small_float(const oari_reduction *r, size_t at)
{
    size_t size = oar_dtype_size(r->dtype);
    float sum = 0;

    for (int s = 0; s < r->sources; s++) {
        const char *from = (const char *)r->source[s] + at * size;
        float x = (float)value_get(r->dtype, from);

        if (r->factor != NULL)
            x = x * (float)r->factor[s];
        sum = s == 0 ? x : combine_f32(r->kind, sum, x);
    }
    return (double)(r->divisor != 0 ? sum / (float)r->divisor : sum);
}

static inline double reduce_f64(const oari_reduction *r, size_t at)
{
    double sum = 0;

    for (int s = 0; s < r->sources; s++) {
        const char *from = (const char *)r->source[s] + at * sizeof(double);
        double x = (double)value_get(OAR_F64, from);

        if (r->factor != NULL)
            x = x * r->factor[s];
        sum = s == 0 ? x : combine_f64(r->kind, sum, x);
    }
    return r->divisor != 0 ? sum / r->divisor : sum;
}

static inline int is_less(oar_dtype dtype, uint64_t a, uint64_t b)
{
    return is_signed(dtype) ? (int64_t)a < (int64_t)b : a < b;
}

static inline uint64_t combine_integer(oar_reduce_op_kind kind, oar_dtype dtype,
                                       uint64_t a, uint64_t b)
{
    switch (kind) {
    case OAR_REDUCE_OP_SUM: return dtype == OAR_BOOL ? a | b : a + b;
    case OAR_REDUCE_OP_PROD: return a * b;
    case OAR_REDUCE_OP_MIN: return is_less(dtype, a, b) ? a : b;
    case OAR_REDUCE_OP_MAX: return is_less(dtype, a, b) ? b : a;
    case OAR_REDUCE_OP_BAND: return a & b;
    case OAR_REDUCE_OP_BOR: return a | b;
    default: return a ^ b;
    }
}

static inline uint64_t wrapped(oar_dtype dtype, uint64_t value)
{
    return integer_get(dtype, &value);
}

static inline uint64_t divide_integer(oar_dtype dtype, uint64_t sum, double by)
{
    __int128 wide = is_signed(dtype) ? (__int128)(int64_t)sum : (__int128)sum;

    if (by == trunc(by) && (by > 0 || is_signed(dtype)))
        return wrapped(dtype, (uint64_t)(wide / (__int128)by));
    return integer_of(dtype, (long double)((double)wide / by));
}

static inline uint64_t reduce_integer(const oari_reduction *r, size_t at)
{
    size_t size = oar_dtype_size(r->dtype);
    uint64_t sum = 0;

    for (int s = 0; s < r->sources; s++) {
        const char *from = (const char *)r->source[s] + at * size;
        uint64_t x = integer_get(r->dtype, from);

        if (r->factor != NULL)
            x = integer_of(r->dtype,
                           (long double)((double)value_get(r->dtype, from) *
                                         r->factor[s]));
        sum = s == 0 ? x : combine_integer(r->kind, r->dtype, sum, x);
        sum = wrapped(r->dtype, sum);
    }
    return r->divisor != 0 ? divide_integer(r->dtype, sum, r->divisor) : sum;
}

static inline void reduce_reference(const oari_reduction *r, size_t count,
                                    char *into)
{
    size_t size = oar_dtype_size(r->dtype);

    for (size_t i = 0; i < count; i++)
        if (r->dtype == OAR_F64)
            value_set(r->dtype, into + i * size, (long double)reduce_f64(r, i));
        else if (is_float(r->dtype))
            value_set(r->dtype, into + i * size,
                      (long double)reduce_small_float(r, i));
        else
            raw_set(r->dtype, into + i * size, reduce_integer(r, i));
}

#endif
