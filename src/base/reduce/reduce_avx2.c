/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_avx2: x86-64 with AVX2 and F16C. */
#include "base/isa.h"
#include "base/reduce/reduce_isa.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define VEC       32
#define TARGET    __attribute__((target("avx2,f16c")))
#define ISA_TABLE oari_reduce_avx2
#define ISA_NAME  "avx2"
#include "base/reduce/reduce_vector.h"

INLINE f16_acc f16_load(const unsigned char *from)
{
    const __m128i_u *half = (const __m128i_u *)from;

    return (f16_acc){ (f32_acc)_mm256_cvtph_ps(_mm_loadu_si128(half)),
                      (f32_acc)_mm256_cvtph_ps(_mm_loadu_si128(half + 1)) };
}

INLINE void f16_store(unsigned char *to, f16_acc x)
{
    __m128i_u *half = (__m128i_u *)to;

    _mm_storeu_si128(half, _mm256_cvtps_ph((__m256)x.a, 0));
    _mm_storeu_si128(half + 1, _mm256_cvtps_ph((__m256)x.b, 0));
}

static oari_reduce_fit fit(void)
{
    return oari_isa_here() >= OARI_ISA_AVX2 ? OARI_ISA_WANTED : OARI_ISA_ABSENT;
}

#include "base/reduce/reduce_kernels.h"

#endif
