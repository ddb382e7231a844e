/* SPDX-License-Identifier: Apache-2.0 */
/* base/half.h: converts f16 and bf16 to and from f32 in C without branches, so
 * that loops vectorise. The results are exact: nearest, ties to even, with
 * subnormals, infinity and NaN. They hold with denormals flushed to zero too,
 * as far as the f32 itself survives that. oari_odd_from_... convert wider
 * numbers to f32 such that a second rounding, to a half, gives the same as one
 * rounding would. */
#ifndef OARI_BASE_HALF_H
#define OARI_BASE_HALF_H

#include <stdint.h>
#include <string.h>

/* Kernels use the same code, so that a GPU gives the same bits. */
#ifdef __CUDACC__
#define OARI_INLINE static inline __host__ __device__
#else
#define OARI_INLINE static inline
#endif

OARI_INLINE uint32_t oari_bits_from_f32(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

OARI_INLINE float oari_bits_to_f32(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Returns yes if body < limit (both below 2^31), else no, in a form that no
 * compiler turns back into a branch, which would keep a loop from being
 * vectorised. */
OARI_INLINE uint32_t oari_bits_pick(uint32_t body, uint32_t limit, uint32_t yes,
                                    uint32_t no)
{
    uint32_t mask = 0 - ((body - limit) >> 31);

    return (yes & mask) | (no & ~mask);
}

OARI_INLINE float oari_f16_bits_to_f32(uint16_t half)
{
    const uint32_t least = 113u << 23; /* 2^-14, the least normal f16 */
    uint32_t sign = (half & 0x8000u) << 16;
    uint32_t body = (half & 0x7fffu) << 13;
    uint32_t normal = body + (112u << 23);
    uint32_t infinity = 31u << 23;
    uint32_t quiet = oari_bits_pick(infinity, body, 0x00400000u, 0);
    uint32_t special = (body + (224u << 23)) | quiet;
    float above = oari_bits_to_f32(body + least) - oari_bits_to_f32(least);
    uint32_t tiny = oari_bits_from_f32(above);
    uint32_t result = oari_bits_pick(body, 1u << 23, tiny, normal);

    result = oari_bits_pick(body, infinity, result, special);
    return oari_bits_to_f32(result | sign);
}

OARI_INLINE uint16_t oari_f16_bits_from_f32(float value)
{
    uint32_t bits = oari_bits_from_f32(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t body = bits & 0x7fffffffu;
    uint32_t odd = (body >> 13) & 1u;
    uint32_t normal = (body - (112u << 23) + 0x0fffu + odd) >> 13;
    /* One step of 0.5f is the least f16: the addition rounds to it. */
    float above = oari_bits_to_f32(body) + 0.5f;
    uint32_t tiny = oari_bits_from_f32(above) - oari_bits_from_f32(0.5f);
    uint32_t nan = 0x7e00u | ((body >> 13) & 0x03ffu);
    uint32_t special = oari_bits_pick(255u << 23, body, nan, 0x7c00u);
    uint32_t result = oari_bits_pick(body, 113u << 23, tiny, normal);

    result = oari_bits_pick(body, 143u << 23, result, special);
    return (uint16_t)(result | sign);
}

OARI_INLINE float oari_bf16_bits_to_f32(uint16_t brain)
{
    uint32_t bits = (uint32_t)brain << 16;

    bits |= (bits & 0x7fffffffu) > 0x7f800000u ? 0x00400000u : 0;
    return oari_bits_to_f32(bits);
}

OARI_INLINE uint16_t oari_bf16_bits_from_f32(float value)
{
    uint32_t bits = oari_bits_from_f32(value);
    uint32_t odd = (bits >> 16) & 1u;
    uint32_t rounded = bits + 0x7fffu + odd;
    uint32_t nan = bits | 0x00400000u;

    bits = (bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded;
    return (uint16_t)(bits >> 16);
}

/* Convert between f64 and f32 as hosts do: a NaN keeps its bits, quieted. GPUs
 * have one NaN only. */
OARI_INLINE float oari_f32_from_f64(double value)
{
#ifdef __CUDA_ARCH__
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    if (value != value)
        return oari_bits_to_f32(((uint32_t)(bits >> 32) & 0x80000000u) |
                                0x7fc00000u |
                                ((uint32_t)(bits >> 29) & 0x007fffffu));
#endif
    return (float)value;
}

OARI_INLINE double oari_f64_from_f32(float value)
{
#ifdef __CUDA_ARCH__
    uint64_t bits = oari_bits_from_f32(value);

    if (value != value) {
        bits = ((bits & 0x80000000u) << 32) | ((uint64_t)0x7ff80000u << 32) |
               ((bits & 0x007fffffu) << 29);
        return __longlong_as_double((long long)bits);
    }
#endif
    return (double)value;
}

/* Returns value if it is an f32, else the f32 next to it whose last bit is set.
 */
OARI_INLINE float oari_odd_from_f64(double value)
{
    float near = oari_f32_from_f64(value);
    uint32_t bits = oari_bits_from_f32(near);
    int above = value < 0 ? (double)near < value : (double)near > value;

    if ((double)near == value || value != value || (bits & 1) != 0)
        return near;
    return oari_bits_to_f32(above ? bits - 1 : bits + 1);
}

/* As f64 cannot hold them all, the low bits of a large value become one bit. */
OARI_INLINE float oari_odd_from_u64(uint64_t value)
{
    uint64_t low = value & 0xffff;

    if (value >> 53 != 0 && low != 0)
        value = (value - low) | 0x10000;
    return oari_odd_from_f64((double)value);
}

OARI_INLINE float oari_odd_from_i64(int64_t value)
{
    if (value < 0)
        return -oari_odd_from_u64(0 - (uint64_t)value);
    return oari_odd_from_u64((uint64_t)value);
}

#endif
