/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_neon_f16: sums of exactly two f16 sources in f16 arithmetic, where the
 * machine has it. That is bit for bit what a sum in f32 rounded to f16 gives:
 * an f32 has 24 digits, which is twice the 11 of an f16 and two more, and then
 * the first rounding can never mislead the second (Figueroa, "When is double
 * rounding innocuous?"). With a third source it could. */
#include "base/reduce/reduce_isa.h"

#if defined(__aarch64__) && defined(OARI_REDUCE_HAS_ARM_EXTENSIONS)

#include <arm_neon.h>
#include <sys/auxv.h>

#define VEC    16
#define TARGET __attribute__((target("arch=armv8.2-a+fp16")))
#include "base/reduce/reduce_vector.h"

enum { HAS_F16 = 1 << 10 }; /* HWCAP_ASIMDHP of the kernel's interface */

typedef float16x8_t two_acc;
UNSCALED(two)

INLINE size_t two_unit(void)
{
    return VEC;
}

INLINE two_acc two_load(const unsigned char *from)
{
    return (two_acc)u16_load(from);
}

INLINE void two_store(unsigned char *to, two_acc a)
{
    u16_store(to, (u16_acc)a);
}

INLINE two_acc two_combine(oar_reduce_op_kind kind, two_acc a, two_acc b)
{
    return vaddq_f16(a, b);
}

#define E two
#include "base/reduce/reduce_loops.h"

OARI_KERNEL_OF_TWO(two, to_one, 1)
OARI_KERNEL_OF_TWO(two, to_two, 2)

static oari_reduce_fit fit(void)
{
    return getauxval(AT_HWCAP) & HAS_F16 ? OARI_ISA_WANTED : OARI_ISA_ABSENT;
}

/* clang-format off */
const oari_reduce_set oari_reduce_neon_f16 = {
    .name = "neon_f16",
    .fit = fit,
    .table.fn = {
        [OARI_TWO_TO_ONE] = { [OAR_REDUCE_OP_SUM] = { [OAR_F16] = two_to_one } },
        [OARI_TWO_TO_TWO] = { [OAR_REDUCE_OP_SUM] = { [OAR_F16] = two_to_two } },
    },
};
/* clang-format on */

#endif
