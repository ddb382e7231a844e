/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda_convert.h: numbers of any dtype in kernels, with the same
 * bits as base/convert.c gives. For CUDA's compiler and the stand-in's. */
#ifndef OARI_DEVICE_CUDA_CUDA_CONVERT_H
#define OARI_DEVICE_CUDA_CUDA_CONVERT_H

#include <stdint.h>

#include <oarsong/span.h>

#include "base/half.h"

#define DEVICE static inline __device__

/* A value of any dtype, exactly. */
struct wide {
    enum { F64, I64, U64 } form;
    union {
        double f64;
        int64_t i64;
        uint64_t u64;
    };
};

DEVICE wide of_float(double x)
{
    wide w;

    w.form = wide::F64;
    w.f64 = x;
    return w;
}

DEVICE wide of_signed(int64_t x)
{
    wide w;

    w.form = wide::I64;
    w.i64 = x;
    return w;
}

DEVICE wide of_unsigned(uint64_t x)
{
    wide w;

    w.form = wide::U64;
    w.u64 = x;
    return w;
}

DEVICE wide load(const void *from, int dtype, int64_t at)
{
    switch (dtype) {
    case OAR_F32: return of_float(oari_f64_from_f32(((const float *)from)[at]));
    case OAR_F64: return of_float(((const double *)from)[at]);
    case OAR_F16:
        return of_float(oari_f64_from_f32(
            oari_f16_bits_to_f32(((const uint16_t *)from)[at])));
    case OAR_BF16:
        return of_float(oari_f64_from_f32(
            oari_bf16_bits_to_f32(((const uint16_t *)from)[at])));
    case OAR_I8: return of_signed(((const int8_t *)from)[at]);
    case OAR_U8: return of_unsigned(((const uint8_t *)from)[at]);
    case OAR_I16: return of_signed(((const int16_t *)from)[at]);
    case OAR_U16: return of_unsigned(((const uint16_t *)from)[at]);
    case OAR_I32: return of_signed(((const int32_t *)from)[at]);
    case OAR_U32: return of_unsigned(((const uint32_t *)from)[at]);
    case OAR_I64: return of_signed(((const int64_t *)from)[at]);
    case OAR_U64: return of_unsigned(((const uint64_t *)from)[at]);
    }
    return of_unsigned(((const uint8_t *)from)[at] != 0);
}

/* Floats truncate and saturate, NaN is 0; over: the first that is too great. */
template <class T> DEVICE T to_whole(wide x, T least, T most, double over)
{
    if (x.form != wide::F64)
        return (T)x.u64;
    return x.f64 != x.f64             ? (T)0
           : x.f64 <= (double)(least) ? least
           : x.f64 >= over            ? most
                                      : (T)x.f64;
}

DEVICE float to_f32(wide x)
{
    return x.form == wide::F64   ? oari_f32_from_f64(x.f64)
           : x.form == wide::I64 ? (float)x.i64
                                 : (float)x.u64;
}

DEVICE double to_f64(wide x)
{
    return x.form == wide::F64   ? x.f64
           : x.form == wide::I64 ? (double)x.i64
                                 : (double)x.u64;
}

/* On the way to a half, which rounds a second time. */
DEVICE float to_odd(wide x)
{
    return x.form == wide::F64   ? oari_odd_from_f64(x.f64)
           : x.form == wide::I64 ? oari_odd_from_i64(x.i64)
                                 : oari_odd_from_u64(x.u64);
}

DEVICE uint8_t to_bool(wide x)
{
    return x.form == wide::F64 ? x.f64 != 0 : x.u64 != 0;
}

#define STORE(type, value)      \
    ((type *)to)[at] = (value); \
    break

DEVICE void store(void *to, int dtype, int64_t at, wide x)
{
    switch (dtype) {
    case OAR_F32: STORE(float, to_f32(x));
    case OAR_F64: STORE(double, to_f64(x));
    case OAR_F16: STORE(uint16_t, oari_f16_bits_from_f32(to_odd(x)));
    case OAR_BF16: STORE(uint16_t, oari_bf16_bits_from_f32(to_odd(x)));
    case OAR_I8: STORE(int8_t, to_whole<int8_t>(x, INT8_MIN, INT8_MAX, 0x1p7));
    case OAR_U8: STORE(uint8_t, to_whole<uint8_t>(x, 0, UINT8_MAX, 0x1p8));
    case OAR_I16:
        STORE(int16_t, to_whole<int16_t>(x, INT16_MIN, INT16_MAX, 0x1p15));
    case OAR_U16: STORE(uint16_t, to_whole<uint16_t>(x, 0, UINT16_MAX, 0x1p16));
    case OAR_I32:
        STORE(int32_t, to_whole<int32_t>(x, INT32_MIN, INT32_MAX, 0x1p31));
    case OAR_U32: STORE(uint32_t, to_whole<uint32_t>(x, 0, UINT32_MAX, 0x1p32));
    case OAR_I64:
        STORE(int64_t, to_whole<int64_t>(x, INT64_MIN, INT64_MAX, 0x1p63));
    case OAR_U64: STORE(uint64_t, to_whole<uint64_t>(x, 0, UINT64_MAX, 0x1p64));
    case OAR_BOOL: STORE(uint8_t, to_bool(x));
    }
}

#endif
