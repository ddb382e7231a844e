/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_neon: what every 64-bit Arm has. */
#include "base/reduce/reduce_isa.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#define VEC 16
#define TARGET
#define ISA_TABLE oari_reduce_neon
#define ISA_NAME  "neon"
#define OWN_MIN_MAX
#include "base/reduce/reduce_vector.h"

/* FMIN and FMAX follow our rules for NaN and zeros to the letter. */
INLINE f32_acc f32_least(f32_acc a, f32_acc b)
{
    return (f32_acc)vminq_f32((float32x4_t)a, (float32x4_t)b);
}

INLINE f32_acc f32_most(f32_acc a, f32_acc b)
{
    return (f32_acc)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
}

INLINE f64_acc f64_least(f64_acc a, f64_acc b)
{
    return (f64_acc)vminq_f64((float64x2_t)a, (float64x2_t)b);
}

INLINE f64_acc f64_most(f64_acc a, f64_acc b)
{
    return (f64_acc)vmaxq_f64((float64x2_t)a, (float64x2_t)b);
}

INLINE f16_acc f16_load(const unsigned char *from)
{
    float16x8_t half = (float16x8_t)u16_load(from);

    return (f16_acc){ (f32_acc)vcvt_f32_f16(vget_low_f16(half)),
                      (f32_acc)vcvt_high_f32_f16(half) };
}

INLINE void f16_store(unsigned char *to, f16_acc x)
{
    float16x4_t low = vcvt_f16_f32((float32x4_t)x.a);

    u16_store(to, (u16_acc)vcvt_high_f16_f32(low, (float32x4_t)x.b));
}

static oari_reduce_fit fit(void)
{
    return OARI_ISA_WANTED;
}

#include "base/reduce/reduce_kernels.h"

#endif
