/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_avx512: x86-64 with the AVX-512 of servers since 2017 (F, BW, DQ, VL).
 * AVX512_BF16 is left alone: it flushes subnormals, we do not. */
#include "base/isa.h"
#include "base/reduce/reduce_isa.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define VEC       64
#define TARGET    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define ISA_TABLE oari_reduce_avx512
#define ISA_NAME  "avx512"
#define OWN_BF16
#include "base/reduce/reduce_vector.h"

/* As in reduce_vector.h, with masks, which compilers do not find. */
INLINE __m512i round_bf16(f32_acc a)
{
    __m512i bits = (__m512i)a;
    __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i half = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    __mmask16 number = _mm512_cmp_ps_mask((__m512)a, (__m512)a, _CMP_ORD_Q);

    return _mm512_mask_add_epi32(bits, number, half, odd);
}

INLINE bf16_acc bf16_load(const unsigned char *from)
{
    u32_acc pair = u32_load(from);

    return (bf16_acc){ (f32_acc)(pair << 16), (f32_acc)(pair & 0xffff0000u) };
}

INLINE void bf16_store(unsigned char *to, bf16_acc x)
{
    __m512i even = _mm512_srli_epi32(round_bf16(x.a), 16);

    u32_store(
        to, (u32_acc)_mm512_mask_mov_epi16(even, 0xaaaaaaaau, round_bf16(x.b)));
}

INLINE f16_acc f16_load(const unsigned char *from)
{
    const __m256i_u *half = (const __m256i_u *)from;

    return (f16_acc){ (f32_acc)_mm512_cvtph_ps(_mm256_loadu_si256(half)),
                      (f32_acc)_mm512_cvtph_ps(_mm256_loadu_si256(half + 1)) };
}

INLINE void f16_store(unsigned char *to, f16_acc x)
{
    __m256i_u *half = (__m256i_u *)to;

    _mm256_storeu_si256(half, _mm512_cvtps_ph((__m512)x.a, 0));
    _mm256_storeu_si256(half + 1, _mm512_cvtps_ph((__m512)x.b, 0));
}

static oari_reduce_fit fit(void)
{
    return oari_isa_here() >= OARI_ISA_AVX512 ? OARI_ISA_WANTED
                                              : OARI_ISA_ABSENT;
}

#include "base/reduce/reduce_kernels.h"

#endif
