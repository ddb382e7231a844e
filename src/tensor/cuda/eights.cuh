/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/cuda/eights.cuh: eight elements of f32, f16 or bf16 at once, as
 * numbers in f32. Which dtype is asked for all eight, by a branch that all
 * threads take: one kernel is for all three. */
#ifndef OARI_TENSOR_CUDA_EIGHTS_CUH
#define OARI_TENSOR_CUDA_EIGHTS_CUH

#include <oarsong/span.h>

#include "tensor/cuda/element.cuh"

enum { EIGHT = 8 };

/* As they lie in memory; a half needs `low` alone. */
struct raw8 {
    uint4 low, high;
};

/* Elements low .. low+3 and high .. high+3; of a half, high is low+4. All are
 * aligned to 16 bytes. */
DEVICE raw8 load_raw(const void *from, int dtype, int64_t low, int64_t high)
{
    raw8 r = { { 0, 0, 0, 0 }, { 0, 0, 0, 0 } };

    if (dtype == OAR_F32) {
        r.low = *(const uint4 *)((const float *)from + low);
        r.high = *(const uint4 *)((const float *)from + high);
    } else {
        r.low = *(const uint4 *)((const uint16_t *)from + low);
    }
    return r;
}

DEVICE void widen_pair(uint32_t both, int dtype, float *x)
{
    if (dtype == OAR_BF16)
        widen_two(both, x, bf16());
    else
        widen_two(both, x, f16());
}

DEVICE uint32_t narrow_pair(const float *x, int dtype)
{
    return dtype == OAR_BF16 ? narrow_two(x, bf16()) : narrow_two(x, f16());
}

DEVICE void widen_raw(const raw8 &r, int dtype, float *x)
{
    if (dtype == OAR_F32) {
        memcpy(x, &r.low, sizeof r.low);
        memcpy(x + 4, &r.high, sizeof r.high);
    } else {
        widen_pair(r.low.x, dtype, x);
        widen_pair(r.low.y, dtype, x + 2);
        widen_pair(r.low.z, dtype, x + 4);
        widen_pair(r.low.w, dtype, x + 6);
    }
}

DEVICE void store_eight(void *to, int dtype, int64_t low, int64_t high,
                        const float *x)
{
    uint4 raw;

    if (dtype == OAR_F32) {
        memcpy(&raw, x, sizeof raw);
        *(uint4 *)((float *)to + low) = raw;
        memcpy(&raw, x + 4, sizeof raw);
        *(uint4 *)((float *)to + high) = raw;
    } else {
        raw.x = narrow_pair(x, dtype);
        raw.y = narrow_pair(x + 2, dtype);
        raw.z = narrow_pair(x + 4, dtype);
        raw.w = narrow_pair(x + 6, dtype);
        *(uint4 *)((uint16_t *)to + low) = raw;
    }
}

/* Eight elements from i on. */
DEVICE void load_eight(const void *from, int dtype, int64_t i, float *x)
{
    widen_raw(load_raw(from, dtype, i, i + 4), dtype, x);
}

#endif
