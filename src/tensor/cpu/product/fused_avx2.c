/* SPDX-License-Identifier: Apache-2.0 */
/* fused_avx2: x86-64 with AVX2 and FMA. */
#if defined(__x86_64__)

#include <immintrin.h>

#define OARI_FUSES
#define TARGET    __attribute__((target("avx2,fma")))
#define BYTES     32
#define REGISTERS 16
#define OWN_PART
#include "tensor/cpu/product/fused_product.h"
#include "tensor/cpu/product/fused_rows.h"

INLINE vec fuse(vec a, vec b, vec c)
{
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

INLINE __m256i mask_of(int64_t count)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE vec load_part(const float *from, int64_t count)
{
    return (vec)_mm256_maskload_ps(from, mask_of(count));
}

INLINE void store_part(float *to, vec x, int64_t count)
{
    _mm256_maskstore_ps(to, mask_of(count), (__m256)x);
}

const oari_fused_set oari_fused_avx2 = { .product = product,
                                         .exp_less = exp_less,
                                         .gelu = gelu,
                                         .gelu_back = gelu_back,
                                         .gelu_split = gelu_split };

#endif
