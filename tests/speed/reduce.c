/* SPDX-License-Identifier: Apache-2.0 */
/* speed/reduce: oari_reduce against loops written by hand with intrinsics, over
 * the same memory, in turns, in one run. Prints
 *
 *     what bytes ours_us hand_us ratio
 *
 * where bytes is the length of each buffer, the times are medians, and ratio is
 * hand / ours: 1.00 is a draw, less means that ours is slower. Exits with 1 if
 * any ratio is below 0.90, and with 77 (skipped) where there is no loop by hand
 * for this machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/reduce/reduce.h"

/* Sums a and b into to (and into also, for the loops of two). Bytes is a
 * multiple of 512. */
typedef void intrinsics_fn(const void *a, const void *b, void *to, void *also,
                           size_t bytes);

typedef struct intrinsics {
    const char *isa;
    intrinsics_fn *f32, *f32_two, *f64, *bf16, *f16;
} intrinsics;

#if defined(__aarch64__)

#include <arm_neon.h>
#include <sys/auxv.h>

/* Four vectors of one source plus four of the other. */
#define LOAD4(v, from, ld)                                                   \
    v##0 = ld(from), v##1 = ld((from) + step), v##2 = ld((from) + 2 * step), \
    v##3 = ld((from) + 3 * step)

static void neon_f32(const void *a, const void *b, void *to, void *also,
                     size_t bytes)
{
    enum { step = 4 };
    const float *x = a, *y = b, *end = x + bytes / 4;
    float *z = to;

    for (; x < end; x += 16, y += 16, z += 16) {
        float32x4_t LOAD4(p, x, vld1q_f32), LOAD4(q, y, vld1q_f32);

        vst1q_f32(z, vaddq_f32(p0, q0));
        vst1q_f32(z + 4, vaddq_f32(p1, q1));
        vst1q_f32(z + 8, vaddq_f32(p2, q2));
        vst1q_f32(z + 12, vaddq_f32(p3, q3));
    }
}

static void neon_f32_two(const void *a, const void *b, void *to, void *also,
                         size_t bytes)
{
    enum { step = 4 };
    const float *x = a, *y = b, *end = x + bytes / 4;
    float *z = to, *w = also;

    for (; x < end; x += 16, y += 16, z += 16, w += 16) {
        float32x4_t LOAD4(p, x, vld1q_f32), LOAD4(q, y, vld1q_f32);
        float32x4_t s0 = vaddq_f32(p0, q0), s1 = vaddq_f32(p1, q1);
        float32x4_t s2 = vaddq_f32(p2, q2), s3 = vaddq_f32(p3, q3);

        vst1q_f32(z, s0), vst1q_f32(z + 4, s1);
        vst1q_f32(z + 8, s2), vst1q_f32(z + 12, s3);
        vst1q_f32(w, s0), vst1q_f32(w + 4, s1);
        vst1q_f32(w + 8, s2), vst1q_f32(w + 12, s3);
    }
}

static void neon_f64(const void *a, const void *b, void *to, void *also,
                     size_t bytes)
{
    enum { step = 2 };
    const double *x = a, *y = b, *end = x + bytes / 8;
    double *z = to;

    for (; x < end; x += 8, y += 8, z += 8) {
        float64x2_t LOAD4(p, x, vld1q_f64), LOAD4(q, y, vld1q_f64);

        vst1q_f64(z, vaddq_f64(p0, q0));
        vst1q_f64(z + 2, vaddq_f64(p1, q1));
        vst1q_f64(z + 4, vaddq_f64(p2, q2));
        vst1q_f64(z + 6, vaddq_f64(p3, q3));
    }
}

static inline uint16x8_t neon_f16_sum(float16x8_t p, float16x8_t q)
{
    float32x4_t low =
        vaddq_f32(vcvt_f32_f16(vget_low_f16(p)), vcvt_f32_f16(vget_low_f16(q)));
    float32x4_t high = vaddq_f32(vcvt_high_f32_f16(p), vcvt_high_f32_f16(q));

    return (uint16x8_t)vcvt_high_f16_f32(vcvt_f16_f32(low), high);
}

static void neon_f16(const void *a, const void *b, void *to, void *also,
                     size_t bytes)
{
    enum { step = 8 };
    const uint16_t *x = a, *y = b, *end = x + bytes / 2;
    uint16_t *z = to;

    for (; x < end; x += 32, y += 32, z += 32) {
        uint16x8_t LOAD4(p, x, vld1q_u16), LOAD4(q, y, vld1q_u16);

        vst1q_u16(z, neon_f16_sum((float16x8_t)p0, (float16x8_t)q0));
        vst1q_u16(z + 8, neon_f16_sum((float16x8_t)p1, (float16x8_t)q1));
        vst1q_u16(z + 16, neon_f16_sum((float16x8_t)p2, (float16x8_t)q2));
        vst1q_u16(z + 24, neon_f16_sum((float16x8_t)p3, (float16x8_t)q3));
    }
}

static inline float32x4_t neon_bf16_low(uint16x8_t v)
{
    return (float32x4_t)vshll_n_u16(vget_low_u16(v), 16);
}

static inline float32x4_t neon_bf16_high(uint16x8_t v)
{
    return (float32x4_t)vshll_high_n_u16(v, 16);
}

static inline uint16x4_t neon_bf16_round(float32x4_t s)
{
    uint32x4_t bits = (uint32x4_t)s, number = vceqq_f32(s, s);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t add = vaddq_u32(odd, vdupq_n_u32(0x7fff));
    uint32x4_t nan = vorrq_u32(bits, vdupq_n_u32(0x00400000));

    return vshrn_n_u32(vbslq_u32(number, vaddq_u32(bits, add), nan), 16);
}

static void neon_bf16(const void *a, const void *b, void *to, void *also,
                      size_t bytes)
{
    const uint16_t *x = a, *y = b, *end = x + bytes / 2;
    uint16_t *z = to;

    for (; x < end; x += 8, y += 8, z += 8) {
        uint16x8_t p = vld1q_u16(x), q = vld1q_u16(y);
        float32x4_t low = vaddq_f32(neon_bf16_low(p), neon_bf16_low(q));
        float32x4_t high = vaddq_f32(neon_bf16_high(p), neon_bf16_high(q));

        vst1q_u16(z, vcombine_u16(neon_bf16_round(low), neon_bf16_round(high)));
    }
}

static const intrinsics neon_loops = { "neon",   neon_f32,  neon_f32_two,
                                       neon_f64, neon_bf16, neon_f16 };

#if !defined(__clang__) || __clang_major__ >= 16
/* With BFCVTN, which rounds in one instruction. */
__attribute__((target("arch=armv8.2-a+bf16"))) static void
neon_bf16_fast(const void *a, const void *b, void *to, void *also, size_t bytes)
{
    const uint16_t *x = a, *y = b, *end = x + bytes / 2;
    uint16_t *z = to;

    for (; x < end; x += 16, y += 16, z += 16)
        for (int i = 0; i < 16; i += 8) {
            uint16x8_t p = vld1q_u16(x + i), q = vld1q_u16(y + i);
            float32x4_t low = vaddq_f32(neon_bf16_low(p), neon_bf16_low(q));
            float32x4_t high = vaddq_f32(neon_bf16_high(p), neon_bf16_high(q));
            bfloat16x8_t half = vcvtq_low_bf16_f32(low);

            vst1q_u16(z + i, (uint16x8_t)vcvtq_high_bf16_f32(half, high));
        }
}

/* A sum of two f16 in f16 is what a sum in f32 rounds to. */
__attribute__((target("arch=armv8.2-a+fp16"))) static void
neon_f16_fast(const void *a, const void *b, void *to, void *also, size_t bytes)
{
    enum { step = 8 };
    const float16_t *x = a, *y = b, *end = x + bytes / 2;
    float16_t *z = to;

    for (; x < end; x += 32, y += 32, z += 32) {
        float16x8_t LOAD4(p, x, vld1q_f16), LOAD4(q, y, vld1q_f16);

        vst1q_f16(z, vaddq_f16(p0, q0));
        vst1q_f16(z + 8, vaddq_f16(p1, q1));
        vst1q_f16(z + 16, vaddq_f16(p2, q2));
        vst1q_f16(z + 24, vaddq_f16(p3, q3));
    }
}

static intrinsics intrinsics_here(void)
{
    intrinsics h = neon_loops;

    if (getauxval(AT_HWCAP2) & 1 << 14)
        h.isa = "neon with bf16", h.bf16 = neon_bf16_fast;
    if (getauxval(AT_HWCAP) & 1 << 10)
        h.f16 = neon_f16_fast;
    return h;
}
#else
static intrinsics intrinsics_here(void)
{
    return neon_loops;
}
#endif

#elif defined(__x86_64__)

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,f16c"))) static inline
#define AVX512                                         \
    __attribute__((target("avx512f,avx512bw,avx512dq," \
                          "avx512vl"))) static inline

/* One loop by hand: four vectors a turn. SUM(p, i) adds the i-th vectors. */
#define LOOP4(attribute, name, vector, SUM, put)                            \
    attribute void name(const void *a, const void *b, void *to, void *also, \
                        size_t bytes)                                       \
    {                                                                       \
        const char *x = a, *y = b, *end = x + bytes;                        \
        char *z = to;                                                       \
        const size_t v = sizeof(vector);                                    \
                                                                            \
        for (; x < end; x += 4 * v, y += 4 * v, z += 4 * v) {               \
            vector s0 = SUM(x, y), s1 = SUM(x + v, y + v);                  \
            vector s2 = SUM(x + 2 * v, y + 2 * v);                          \
            vector s3 = SUM(x + 3 * v, y + 3 * v);                          \
                                                                            \
            put(z, s0), put(z + v, s1);                                     \
            put(z + 2 * v, s2), put(z + 3 * v, s3);                         \
        }                                                                   \
    }
#define LOOP4_TWO(attribute, name, vector, SUM, put)                        \
    attribute void name(const void *a, const void *b, void *to, void *also, \
                        size_t bytes)                                       \
    {                                                                       \
        const char *x = a, *y = b, *end = x + bytes;                        \
        char *z = to, *w = also;                                            \
        const size_t v = sizeof(vector);                                    \
                                                                            \
        for (; x < end; x += 4 * v, y += 4 * v, z += 4 * v, w += 4 * v) {   \
            vector s0 = SUM(x, y), s1 = SUM(x + v, y + v);                  \
            vector s2 = SUM(x + 2 * v, y + 2 * v);                          \
            vector s3 = SUM(x + 3 * v, y + 3 * v);                          \
                                                                            \
            put(z, s0), put(z + v, s1);                                     \
            put(z + 2 * v, s2), put(z + 3 * v, s3);                         \
            put(w, s0), put(w + v, s1);                                     \
            put(w + 2 * v, s2), put(w + 3 * v, s3);                         \
        }                                                                   \
    }

#define PS2(p)        _mm256_loadu_ps((const float *)(const void *)(p))
#define PD2(p)        _mm256_loadu_pd((const double *)(const void *)(p))
#define SI1(p)        _mm_loadu_si128((const __m128i *)(const void *)(p))
#define SI2(p)        _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define SUM_PS2(x, y) _mm256_add_ps(PS2(x), PS2(y))
#define SUM_PD2(x, y) _mm256_add_pd(PD2(x), PD2(y))
#define PUT_PS2(z, s) _mm256_storeu_ps((float *)(void *)(z), s)
#define PUT_PD2(z, s) _mm256_storeu_pd((double *)(void *)(z), s)
#define PUT_SI2(z, s) _mm256_storeu_si256((__m256i *)(void *)(z), s)

AVX2 __m256i avx2_round(__m256 s)
{
    __m256i bits = _mm256_castps_si256(s);
    __m256i odd =
        _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i add = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(s, s, _CMP_UNORD_Q));

    return _mm256_blendv_epi8(_mm256_add_epi32(bits, add), nan, is_nan);
}

AVX2 __m256i avx2_bf16_sum(const char *x, const char *y)
{
    const __m256i top = _mm256_set1_epi32((int)0xffff0000u);
    __m256i p = SI2(x), q = SI2(y);
    __m256 even = _mm256_add_ps(_mm256_castsi256_ps(_mm256_slli_epi32(p, 16)),
                                _mm256_castsi256_ps(_mm256_slli_epi32(q, 16)));
    __m256 odd = _mm256_add_ps(_mm256_castsi256_ps(_mm256_and_si256(p, top)),
                               _mm256_castsi256_ps(_mm256_and_si256(q, top)));

    return _mm256_blend_epi16(_mm256_srli_epi32(avx2_round(even), 16),
                              avx2_round(odd), 0xaa);
}

AVX2 __m256i avx2_f16_sum(const char *x, const char *y)
{
    __m256 low =
        _mm256_add_ps(_mm256_cvtph_ps(SI1(x)), _mm256_cvtph_ps(SI1(y)));
    __m256 high = _mm256_add_ps(_mm256_cvtph_ps(SI1(x + 16)),
                                _mm256_cvtph_ps(SI1(y + 16)));

    return _mm256_set_m128i(_mm256_cvtps_ph(high, 0), _mm256_cvtps_ph(low, 0));
}

LOOP4(AVX2, avx2_f32, __m256, SUM_PS2, PUT_PS2)
LOOP4_TWO(AVX2, avx2_f32_two, __m256, SUM_PS2, PUT_PS2)
LOOP4(AVX2, avx2_f64, __m256d, SUM_PD2, PUT_PD2)
LOOP4(AVX2, avx2_bf16, __m256i, avx2_bf16_sum, PUT_SI2)
LOOP4(AVX2, avx2_f16, __m256i, avx2_f16_sum, PUT_SI2)

#define PS5(p)        _mm512_loadu_ps(p)
#define PD5(p)        _mm512_loadu_pd(p)
#define SUM_PS5(x, y) _mm512_add_ps(PS5(x), PS5(y))
#define SUM_PD5(x, y) _mm512_add_pd(PD5(x), PD5(y))
#define PUT_PS5(z, s) _mm512_storeu_ps(z, s)
#define PUT_PD5(z, s) _mm512_storeu_pd(z, s)
#define PUT_SI5(z, s) _mm512_storeu_si512(z, s)

AVX512 __m512i avx512_round(__m512 s)
{
    __m512i bits = _mm512_castps_si512(s);
    __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i add = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    __m512i sum = _mm512_add_epi32(bits, add);
    __mmask16 is_nan = _mm512_cmp_ps_mask(s, s, _CMP_UNORD_Q);

    return _mm512_mask_or_epi32(sum, is_nan, bits,
                                _mm512_set1_epi32(0x00400000));
}

AVX512 __m512i avx512_bf16_sum(const char *x, const char *y)
{
    const __m512i top = _mm512_set1_epi32((int)0xffff0000u);
    __m512i p = _mm512_loadu_si512(x), q = _mm512_loadu_si512(y);
    __m512 even = _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(p, 16)),
                                _mm512_castsi512_ps(_mm512_slli_epi32(q, 16)));
    __m512 odd = _mm512_add_ps(_mm512_castsi512_ps(_mm512_and_si512(p, top)),
                               _mm512_castsi512_ps(_mm512_and_si512(q, top)));

    return _mm512_mask_blend_epi16(0xaaaaaaaau,
                                   _mm512_srli_epi32(avx512_round(even), 16),
                                   avx512_round(odd));
}

AVX512 __m512i avx512_f16_sum(const char *x, const char *y)
{
    __m512 low =
        _mm512_add_ps(_mm512_cvtph_ps(SI2(x)), _mm512_cvtph_ps(SI2(y)));
    __m512 high = _mm512_add_ps(_mm512_cvtph_ps(SI2(x + 32)),
                                _mm512_cvtph_ps(SI2(y + 32)));

    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(low, 0)),
                              _mm512_cvtps_ph(high, 0), 1);
}

LOOP4(AVX512, avx512_f32, __m512, SUM_PS5, PUT_PS5)
LOOP4_TWO(AVX512, avx512_f32_two, __m512, SUM_PS5, PUT_PS5)
LOOP4(AVX512, avx512_f64, __m512d, SUM_PD5, PUT_PD5)
LOOP4(AVX512, avx512_bf16, __m512i, avx512_bf16_sum, PUT_SI5)
LOOP4(AVX512, avx512_f16, __m512i, avx512_f16_sum, PUT_SI5)

static intrinsics intrinsics_here(void)
{
    if (__builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return (intrinsics){ "avx512",   avx512_f32,  avx512_f32_two,
                             avx512_f64, avx512_bf16, avx512_f16 };
    if (__builtin_cpu_supports("avx2"))
        return (intrinsics){ "avx2",   avx2_f32,  avx2_f32_two,
                             avx2_f64, avx2_bf16, avx2_f16 };
    return (intrinsics){ 0 };
}

#else

static intrinsics intrinsics_here(void)
{
    return (intrinsics){ 0 };
}

#endif

/* ---- timing -------------------------------------------------------------- */

enum { ROUNDS = 31 };

typedef struct reduce_comparison {
    const char *what;
    oar_dtype dtype;
    int destinations;
    intrinsics_fn *by_hand;
} reduce_comparison;

static unsigned char *buffer[4]; /* two sources, two destinations */

static void reduce_ours(const reduce_comparison *c, size_t bytes)
{
    const void *source[] = { buffer[0], buffer[1] };
    void *destination[] = { buffer[2], buffer[3] };
    oari_reduction r = { .kind = OAR_REDUCE_OP_SUM,
                         .dtype = c->dtype,
                         .sources = 2,
                         .source = source,
                         .destinations = c->destinations,
                         .destination = destination };

    oari_reduce(&r, bytes / oar_dtype_size(c->dtype));
}

static double time_us(const reduce_comparison *c, size_t bytes, int turns,
                      int ours)
{
    int64_t start = oari_now_ns();

    for (int i = 0; i < turns; i++)
        if (ours)
            reduce_ours(c, bytes);
        else
            c->by_hand(buffer[0], buffer[1], buffer[2], buffer[3], bytes);
    return (double)(oari_now_ns() - start) / 1e3 / turns;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *value)
{
    qsort(value, ROUNDS, sizeof *value, compare);
    return value[ROUNDS / 2];
}

/* Returns whether ours is fast enough. */
static int run(const reduce_comparison *c, size_t bytes)
{
    int turns = bytes < (1 << 20) ? (1 << 20) / (int)bytes : 1;
    double ours[ROUNDS], by_hand[ROUNDS], ratio;

    time_us(c, bytes, turns, 1);
    for (int i = 0; i < ROUNDS; i++) {
        ours[i] = time_us(c, bytes, turns, 1);
        by_hand[i] = time_us(c, bytes, turns, 0);
    }
    ratio = median(by_hand) / median(ours);
    printf("%-10s %9zu %10.2f %10.2f %6.2f\n", c->what, bytes, ours[ROUNDS / 2],
           by_hand[ROUNDS / 2], ratio);
    return ratio >= 0.90;
}

int main(void)
{
    static const size_t bytes[] = { 16 << 10, 1 << 20, 64 << 20 };
    intrinsics h = intrinsics_here();
    const reduce_comparison contests[] = {
        { "f32 2->1", OAR_F32, 1, h.f32 },
        { "f32 2->2", OAR_F32, 2, h.f32_two },
        { "f64 2->1", OAR_F64, 1, h.f64 },
        { "bf16 2->1", OAR_BF16, 1, h.bf16 },
        { "f16 2->1", OAR_F16, 1, h.f16 },
    };
    int slow = 0;

    if (h.isa == NULL) {
        printf("skipped: no loop by hand for this machine\n");
        return 77;
    }
    for (int i = 0; i < 4; i++) {
        buffer[i] = aligned_alloc(4096, 64 << 20);
        if (buffer[i] == NULL)
            return 2;
        memset(buffer[i], 0x3c, 64 << 20);
    }
    printf("# ours: %s; by hand: %s\n", oari_reduce_isa(), h.isa);
    printf("%-10s %9s %10s %10s %6s\n", "what", "bytes", "ours_us", "hand_us",
           "ratio");
    for (size_t i = 0; i < sizeof contests / sizeof contests[0]; i++)
        for (size_t k = 0; k < sizeof bytes / sizeof bytes[0]; k++)
            slow += !run(&contests[i], bytes[k]);
    return slow != 0;
}
