/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_neon_bf16: Arm's own rounding to bf16 (BFCVTN), which rounds as we do
 * and replaces seven instructions. All but bf16 is reduce_neon's. */
#include "base/reduce/reduce_isa.h"

#if defined(__aarch64__) && defined(OARI_REDUCE_HAS_ARM_EXTENSIONS)

#include <arm_neon.h>
#include <sys/auxv.h>

#define VEC    16
#define TARGET __attribute__((target("arch=armv8.2-a+bf16")))
#define OWN_BF16
#include "base/reduce/reduce_vector.h"

enum { HAS_BF16 = 1 << 14 }; /* HWCAP2_BF16 of the kernel's interface */

INLINE bf16_acc bf16_load(const unsigned char *from)
{
    uint16x8_t half = (uint16x8_t)u16_load(from);

    return (bf16_acc){ (f32_acc)vshll_n_u16(vget_low_u16(half), 16),
                       (f32_acc)vshll_high_n_u16(half, 16) };
}

INLINE void bf16_store(unsigned char *to, bf16_acc x)
{
    bfloat16x8_t low = vcvtq_low_bf16_f32((float32x4_t)x.a);

    u16_store(to, (u16_acc)vcvtq_high_bf16_f32(low, (float32x4_t)x.b));
}

#define E bf16
#include "base/reduce/reduce_loops.h"

OARI_FLOAT_KERNELS(bf16)

static oari_reduce_fit fit(void)
{
    return getauxval(AT_HWCAP2) & HAS_BF16 ? OARI_ISA_WANTED : OARI_ISA_ABSENT;
}

/* clang-format off */
const oari_reduce_set oari_reduce_neon_bf16 = {
    .name = "neon_bf16",
    .fit = fit,
    .table.fn = {
        [OARI_ANY_SHAPE] = {
            [OAR_REDUCE_OP_SUM] = { [OAR_BF16] = bf16_sum },
            [OAR_REDUCE_OP_PROD] = { [OAR_BF16] = bf16_prod },
            [OAR_REDUCE_OP_MIN] = { [OAR_BF16] = bf16_min },
            [OAR_REDUCE_OP_MAX] = { [OAR_BF16] = bf16_max },
        },
        [OARI_TWO_TO_ONE] = { [OAR_REDUCE_OP_SUM] = { [OAR_BF16] = bf16_two_to_one } },
        [OARI_TWO_TO_TWO] = { [OAR_REDUCE_OP_SUM] = { [OAR_BF16] = bf16_two_to_two } },
        [OARI_SCALED] = { [OAR_REDUCE_OP_SUM] = { [OAR_BF16] = bf16_scaled } },
    },
};
/* clang-format on */

#endif
