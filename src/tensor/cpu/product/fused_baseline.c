/* SPDX-License-Identifier: Apache-2.0 */
/* fused_baseline: with the instructions that every machine of the kind has. Of
 * those aarch64 has what a product wants. */
#define TARGET
#include "tensor/cpu/product/fused_rows.h"

#ifdef __aarch64__
#include <arm_neon.h>

#define BYTES     16
#define REGISTERS 32
#include "tensor/cpu/product/fused_product.h"

INLINE vec fuse(vec a, vec b, vec c)
{
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#endif

const oari_fused_set oari_fused_baseline = {
#ifdef __aarch64__
    .product = product,
#endif
    .exp_less = exp_less,
    .gelu = gelu,
    .gelu_back = gelu_back,
    .gelu_split = gelu_split
};
