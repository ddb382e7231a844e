/* SPDX-License-Identifier: Apache-2.0 */
/* fused_avx512: x86-64 with AVX-512. */
#if defined(__x86_64__)

#include <immintrin.h>

#define OARI_FUSES
#define TARGET \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#define BYTES     64
#define REGISTERS 32
#define OWN_PART
#include "tensor/cpu/product/fused_product.h"
#include "tensor/cpu/product/fused_rows.h"

INLINE vec fuse(vec a, vec b, vec c)
{
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

INLINE vec load_part(const float *from, int64_t count)
{
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
}

INLINE void store_part(float *to, vec x, int64_t count)
{
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), (__m512)x);
}

const oari_fused_set oari_fused_avx512 = { .product = product,
                                           .exp_less = exp_less,
                                           .gelu = gelu,
                                           .gelu_back = gelu_back,
                                           .gelu_split = gelu_split };

#endif
