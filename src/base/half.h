/* SPDX-License-Identifier: Apache-2.0 */
/* base/half.h: f16 and bf16 to and from f32, in C without branches, so that
 * loops over them vectorise. Exact: nearest, ties to even; subnormals, infinity
 * and NaN included. They hold with denormals flushed to zero too, as far as the
 * f32 itself survives that. */
#ifndef OARI_BASE_HALF_H
#define OARI_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t oari_bits_from_f32(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float oari_bits_to_f32(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* yes where body < limit (both below 2^31), else no. In a way that no compiler
 * turns back into a branch, which would keep a loop from being vectorised. */
static inline uint32_t oari_bits_pick(uint32_t body, uint32_t limit,
                                      uint32_t yes, uint32_t no)
{
    uint32_t mask = 0 - ((body - limit) >> 31);

    return (yes & mask) | (no & ~mask);
}

static inline float oari_half_to_f32(uint16_t half)
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

static inline uint16_t oari_half_from_f32(float value)
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

static inline float oari_brain_to_f32(uint16_t brain)
{
    uint32_t bits = (uint32_t)brain << 16;

    bits |= (bits & 0x7fffffffu) > 0x7f800000u ? 0x00400000u : 0;
    return oari_bits_to_f32(bits);
}

static inline uint16_t oari_brain_from_f32(float value)
{
    uint32_t bits = oari_bits_from_f32(value);
    uint32_t odd = (bits >> 16) & 1u;
    uint32_t rounded = bits + 0x7fffu + odd;
    uint32_t nan = bits | 0x00400000u;

    bits = (bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded;
    return (uint16_t)(bits >> 16);
}

#endif
