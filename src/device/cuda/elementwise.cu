// SPDX-License-Identifier: Apache-2.0
/* elementwise: copies, conversions, sums and multiples on a GPU, with the same
 * bits as on the host: conversions are those of base/convert.c, sums and
 * multiples those of tensor/cpu/elementwise.c. Every kernel takes one job and
 * goes through its elements in strides of the grid. Which dtype is asked
 * outside of the loops. */
#include <stdint.h>

#include <oarsong/span.h>

#include "base/half.h"
#include "device/cuda/cuda_elementwise_job.h"

#define DEVICE static inline __device__

/* ---- where elements are -------------------------------------------------- */

struct places {
    int64_t at[OARI_CUDA_ARRAYS];
};

/* Of element i in the first `arrays` arrays. */
template <int arrays> DEVICE places place(const oari_cuda_job &job, uint64_t i)
{
    places p = { { 0, 0, 0 } };

#pragma unroll 1
    for (int d = job.ndim - 1; d > 0; d--) {
        uint64_t rows = i / (uint64_t)job.dim[d];
        int64_t rest = (int64_t)(i - rows * (uint64_t)job.dim[d]);

        for (int k = 0; k < arrays; k++)
            p.at[k] += rest * job.stride[k][d];
        i = rows;
    }
    for (int k = 0; k < arrays; k++)
        p.at[k] += (int64_t)i * job.stride[k][0];
    return p;
}

#define EACH(i, job)                                                   \
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, \
                  step = (uint64_t)gridDim.x * blockDim.x;             \
         i < (uint64_t)(job).count; i += step)

/* ---- moving -------------------------------------------------------------- */

template <class T> DEVICE void move(const oari_cuda_job &job)
{
    T *to = (T *)job.data[0];
    const T *from = (const T *)job.data[1];

    EACH(i, job) {
        places p = place<2>(job, i);

        to[p.at[0]] = from[p.at[1]];
    }
}

extern "C" __global__ void oari_move(oari_cuda_job job)
{
    switch (job.to) {
    case 1: move<uint8_t>(job); break;
    case 2: move<uint16_t>(job); break;
    case 4: move<uint32_t>(job); break;
    case 8: move<uint64_t>(job); break;
    }
}

/* ---- converting ---------------------------------------------------------- */

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

extern "C" __global__ void oari_convert_any(oari_cuda_job job)
{
    EACH(i, job) {
        places p = place<2>(job, i);

        store(job.data[0], job.to, p.at[0],
              load(job.data[1], job.from, p.at[1]));
    }
}

/* The pairs that training uses, without gaps. */
#define LOOP(to_type, from_type, expression)                     \
    EACH(i, job) {                                               \
        const from_type x = ((const from_type *)job.data[1])[i]; \
        ((to_type *)job.data[0])[i] = (expression);              \
    }

extern "C" __global__ void oari_convert_half(oari_cuda_job job)
{
    if (job.to == OAR_F16)
        LOOP(uint16_t, float, oari_f16_bits_from_f32(x))
    else if (job.to == OAR_BF16)
        LOOP(uint16_t, float, oari_bf16_bits_from_f32(x))
    else if (job.from == OAR_F16)
        LOOP(float, uint16_t, oari_f16_bits_to_f32(x))
    else if (job.from == OAR_BF16)
        LOOP(float, uint16_t, oari_bf16_bits_to_f32(x))
}

/* ---- sums and multiples -------------------------------------------------- */

/* Three ways to compute: f32 for it and the halves, f64, and 64 bits without a
 * sign for integers, which wrap in it and are cut when they are stored. */

DEVICE float load_f32(const void *from, int dtype, int64_t at)
{
    const uint16_t *half = (const uint16_t *)from;

    return dtype == OAR_F16    ? oari_f16_bits_to_f32(half[at])
           : dtype == OAR_BF16 ? oari_bf16_bits_to_f32(half[at])
                               : ((const float *)from)[at];
}

DEVICE void store_f32(void *to, int dtype, int64_t at, float x)
{
    switch (dtype) {
    case OAR_F16: STORE(uint16_t, oari_f16_bits_from_f32(x));
    case OAR_BF16: STORE(uint16_t, oari_bf16_bits_from_f32(x));
    default: STORE(float, x);
    }
}

DEVICE double load_f64(const void *from, int dtype, int64_t at)
{
    return ((const double *)from)[at];
}

DEVICE void store_f64(void *to, int dtype, int64_t at, double x)
{
    ((double *)to)[at] = x;
}

DEVICE uint64_t load_u64(const void *from, int dtype, int64_t at)
{
    return load(from, dtype, at).u64;
}

DEVICE void store_u64(void *to, int dtype, int64_t at, uint64_t x)
{
    store(to, dtype, at, of_unsigned(x));
}

#define ADD(type, LOAD, STORE_AS)                       \
    EACH(i, job) {                                      \
        places p = place<3>(job, i);                    \
        type x = LOAD(job.data[1], job.to, p.at[1]);    \
                                                        \
        if (job.add)                                    \
            x = LOAD(job.data[0], job.to, p.at[0]) + x; \
        x = x + LOAD(job.data[2], job.to, p.at[2]);     \
        STORE_AS(job.data[0], job.to, p.at[0], x);      \
    }

#define SCALE(type, LOAD, STORE_AS, factor)                         \
    EACH(i, job) {                                                  \
        places p = place<2>(job, i);                                \
        type x = (type)(factor)*LOAD(job.data[1], job.to, p.at[1]); \
                                                                    \
        if (job.add)                                                \
            x = LOAD(job.data[0], job.to, p.at[0]) + x;             \
        STORE_AS(job.data[0], job.to, p.at[0], x);                  \
    }

DEVICE int is_f32(int dtype)
{
    return dtype == OAR_F32 || dtype == OAR_F16 || dtype == OAR_BF16;
}

/* Of booleans: or. */
extern "C" __global__ void oari_add_arrays(oari_cuda_job job)
{
    if (is_f32(job.to))
        ADD(float, load_f32, store_f32)
    else if (job.to == OAR_F64)
        ADD(double, load_f64, store_f64)
    else
        ADD(uint64_t, load_u64, store_u64)
}

/* Of booleans: unless the factor is zero. */
extern "C" __global__ void oari_scale_array(oari_cuda_job job)
{
    if (is_f32(job.to))
        SCALE(float, load_f32, store_f32, job.factor)
    else if (job.to == OAR_F64)
        SCALE(double, load_f64, store_f64, job.factor)
    else
        SCALE(uint64_t, load_u64, store_u64, job.whole)
}
