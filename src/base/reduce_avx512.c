/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_avx512: x86-64 with the AVX-512 of servers since 2017 (F, BW, DQ, VL).
 * AVX512_BF16 is left alone: it flushes subnormals, we do not. */
#include "base/reduce_isa.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define VEC       64
#define TARGET    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define ISA_TABLE oari_reduce_avx512
#define ISA_NAME  "avx512"
#include "base/reduce_vector.h"

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
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") &&
                   __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl")
               ? OARI_ISA_WANTED
               : OARI_ISA_ABSENT;
}

#include "base/reduce_kernels.h"

#endif
