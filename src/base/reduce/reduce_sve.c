/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_sve: f32, f64 and f16 in Arm's vectors of unknown length. All else is
 * NEON's, bf16 too, whose rounding has an instruction there that few SVE
 * machines lack. Worth it where a vector is longer than NEON's 16 bytes. */
#include "base/reduce/reduce_isa.h"

#if defined(__aarch64__) && defined(OARI_REDUCE_HAS_ARM_EXTENSIONS)

#include <string.h>
#include <sys/auxv.h>

#define TARGET   __attribute__((target("arch=armv8.2-a+sve")))
#define INLINE   static inline __attribute__((always_inline, unused)) TARGET
#define UNIT_MAX 256 /* bytes: the architecture's longest vector */

#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+sve")
#endif
#include <arm_sve.h>

enum { HAS_SVE = 1 << 22 }; /* HWCAP_SVE of the kernel's interface */

/* Same rules as NEON: FMIN and FMAX are ours to the letter. */
#define ARITHMETIC(E, vector, all, type, suffix)                              \
    typedef vector E##_acc;                                                   \
    INLINE E##_acc E##_combine(oar_reduce_op_kind kind, E##_acc a, E##_acc b) \
    {                                                                         \
        switch (kind) {                                                       \
        case OAR_REDUCE_OP_SUM: return svadd_##suffix##_x(all(), a, b);       \
        case OAR_REDUCE_OP_PROD: return svmul_##suffix##_x(all(), a, b);      \
        case OAR_REDUCE_OP_MIN: return svmin_##suffix##_x(all(), a, b);       \
        default: return svmax_##suffix##_x(all(), a, b);                      \
        }                                                                     \
    }                                                                         \
    INLINE E##_acc E##_scale(E##_acc a, double x)                             \
    {                                                                         \
        return svmul_n_##suffix##_x(all(), a, (type)x);                       \
    }                                                                         \
    INLINE E##_acc E##_divide(E##_acc a, double x)                            \
    {                                                                         \
        return svdiv_n_##suffix##_x(all(), a, (type)x);                       \
    }

ARITHMETIC(f32, svfloat32_t, svptrue_b32, float, f32)
ARITHMETIC(f64, svfloat64_t, svptrue_b64, double, f64)
ARITHMETIC(f16, svfloat32_t, svptrue_b32, float, f32)

/* Through byte vectors, which need no alignment. */
INLINE size_t f32_unit(void)
{
    return svcntb();
}

INLINE f32_acc f32_load(const unsigned char *from)
{
    return svreinterpret_f32_u8(svld1_u8(svptrue_b8(), from));
}

INLINE void f32_store(unsigned char *to, f32_acc a)
{
    svst1_u8(svptrue_b8(), to, svreinterpret_u8_f32(a));
}

INLINE size_t f64_unit(void)
{
    return svcntb();
}

INLINE f64_acc f64_load(const unsigned char *from)
{
    return svreinterpret_f64_u8(svld1_u8(svptrue_b8(), from));
}

INLINE void f64_store(unsigned char *to, f64_acc a)
{
    svst1_u8(svptrue_b8(), to, svreinterpret_u8_f64(a));
}

/* One f16 in the lower half of each 32-bit lane, where FCVT looks for it. */
INLINE size_t f16_unit(void)
{
    return svcnth();
}

INLINE f16_acc f16_load(const unsigned char *from)
{
    const uint16_t *half = (const void *)from;
    svuint32_t lane = svld1uh_u32(svptrue_b32(), half);

    return svcvt_f32_f16_x(svptrue_b32(), svreinterpret_f16_u32(lane));
}

INLINE void f16_store(unsigned char *to, f16_acc a)
{
    svfloat16_t half = svcvt_f16_f32_x(svptrue_b32(), a);

    svst1h_u32(svptrue_b32(), (uint16_t *)(void *)to,
               svreinterpret_u32_f16(half));
}

/* Sums of two, in f16 itself: see reduce_neon_f16.c. */
ARITHMETIC(two, svfloat16_t, svptrue_b16, float16_t, f16)

INLINE size_t two_unit(void)
{
    return svcntb();
}

INLINE two_acc two_load(const unsigned char *from)
{
    return svreinterpret_f16_u8(svld1_u8(svptrue_b8(), from));
}

INLINE void two_store(unsigned char *to, two_acc a)
{
    svst1_u8(svptrue_b8(), to, svreinterpret_u8_f16(a));
}

#define E f32
#include "base/reduce/reduce_loops.h"
#define E f64
#include "base/reduce/reduce_loops.h"
#define E f16
#include "base/reduce/reduce_loops.h"
#define E two
#include "base/reduce/reduce_loops.h"

OARI_FLOAT_KERNELS(f32)
OARI_FLOAT_KERNELS(f64)
OARI_FLOAT_KERNELS_BUT_TWO(f16)
OARI_KERNEL_OF_TWO(two, to_one, 1)
OARI_KERNEL_OF_TWO(two, to_two, 2)

static TARGET size_t vector_bytes(void)
{
    return svcntb();
}

#if !defined(__clang__)
#pragma GCC pop_options
#endif

static oari_reduce_fit fit(void)
{
    if (!(getauxval(AT_HWCAP) & HAS_SVE))
        return OARI_ISA_ABSENT;
    return vector_bytes() > 16 ? OARI_ISA_WANTED : OARI_ISA_USABLE;
}

#define FLOATS(op)                                                       \
    {                                                                    \
        [OAR_F32] = f32_##op, [OAR_F64] = f64_##op, [OAR_F16] = f16_##op \
    }

/* clang-format off */
const oari_reduce_set oari_reduce_sve = {
    .name = "sve",
    .fit = fit,
    .table.fn = {
        [OARI_ANY_SHAPE] = {
            [OAR_REDUCE_OP_SUM] = FLOATS(sum),
            [OAR_REDUCE_OP_PROD] = FLOATS(prod),
            [OAR_REDUCE_OP_MIN] = FLOATS(min),
            [OAR_REDUCE_OP_MAX] = FLOATS(max),
        },
        [OARI_TWO_TO_ONE] = { [OAR_REDUCE_OP_SUM] = { [OAR_F32] = f32_two_to_one,
                                               [OAR_F64] = f64_two_to_one,
                                               [OAR_F16] = two_to_one } },
        [OARI_TWO_TO_TWO] = { [OAR_REDUCE_OP_SUM] = { [OAR_F32] = f32_two_to_two,
                                               [OAR_F64] = f64_two_to_two,
                                               [OAR_F16] = two_to_two } },
        [OARI_SCALED] = { [OAR_REDUCE_OP_SUM] = FLOATS(scaled) },
    },
};
/* clang-format on */

#endif
