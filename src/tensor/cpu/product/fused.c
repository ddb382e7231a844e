/* SPDX-License-Identifier: Apache-2.0 */
/* fused: which set of kernels is in use: an atomic pointer, so that a test can
 * change it while others compute. */
#include "tensor/cpu/product/fused.h"

#include <stdatomic.h>
#include <stddef.h>

static const oari_fused_set *const sets[OARI_ISA_COUNT] = {
    [OARI_ISA_BASELINE] = &oari_fused_baseline,
#if defined(__x86_64__)
    [OARI_ISA_AVX2] = &oari_fused_avx2,
    [OARI_ISA_AVX512] = &oari_fused_avx512,
#endif
};

static _Atomic(const oari_fused_set *) in_use;

int oari_fused_use(oari_isa isa)
{
    if (isa > oari_isa_here())
        return 0;
    atomic_store(&in_use, sets[isa]);
    return 1;
}

const oari_fused_set *oari_fused(void)
{
    const oari_fused_set *set =
        atomic_load_explicit(&in_use, memory_order_acquire);

    if (set != NULL)
        return set;
    oari_fused_use(oari_isa_here());
    return atomic_load(&in_use);
}
