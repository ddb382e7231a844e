/* SPDX-License-Identifier: Apache-2.0 */
/* The generator against the known answers of Random123, and what the sequences
 * promise: no visible boundary, the right range, the right moments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"

enum { MANY = 200000 };

static const oari_rng rng = { .seed = 0x123456789abcdef0u, .stream = 42 };

static uint64_t pair(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

static void blocks_are_the_published_ones(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], word[4];
    } known[] = {
        { { 0 }, { 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
          { 0xffffffff, 0xffffffff },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const uint32_t *c = known[i].counter, *k = known[i].key;
        oari_rng at = { pair(k[0], k[1]), pair(c[2], c[3]) };
        uint32_t word[4];

        oari_rng_block(at, pair(c[0], c[1]), word);
        assert_memory_equal(word, known[i].word, sizeof word);
    }
}

/* The whole range at once, and in pieces of 0, 1, 2, 3, ... numbers. */
#define CHECK_CUT(fill, type)                                 \
    do {                                                      \
        static type whole[1000], cut[1000];                   \
        const uint64_t from = ((uint64_t)1 << 40) + 3;        \
        size_t piece = 0;                                     \
                                                              \
        fill(rng, from, whole, 1000);                         \
        for (size_t at = 0; at < 1000; at += piece++) {       \
            size_t n = piece < 1000 - at ? piece : 1000 - at; \
                                                              \
            fill(rng, from + at, cut + at, n);                \
        }                                                     \
        assert_memory_equal(whole, cut, sizeof whole);        \
    } while (0)

static void the_cut_does_not_show(void **state)
{
    CHECK_CUT(oari_rng_uniform_f32, float);
    CHECK_CUT(oari_rng_uniform_f64, double);
    CHECK_CUT(oari_rng_normal_f32, float);
    CHECK_CUT(oari_rng_normal_f64, double);
}

static void numbers_come_from_the_words_of_their_block(void **state)
{
    uint32_t word[4];
    float f32;
    double f64;

    oari_rng_block(rng, 5, word);
    oari_rng_uniform_f32(rng, 22, &f32, 1);
    assert_true(f32 == (float)(word[2] >> 8) / 16777216.0f);
    oari_rng_uniform_f64(rng, 11, &f64, 1);
    assert_true(f64 == (double)(pair(word[2], word[3]) >> 11) * 0x1p-53);
}

static void count_zero_writes_nothing(void **state)
{
    float f32 = 7;
    double f64 = 7;

    oari_rng_uniform_f32(rng, 1, &f32, 0);
    oari_rng_normal_f32(rng, 1, &f32, 0);
    oari_rng_uniform_f64(rng, 1, &f64, 0);
    oari_rng_normal_f64(rng, 1, &f64, 0);
    assert_true(f32 == 7 && f64 == 7);
}

static void seeds_and_streams_differ(void **state)
{
    oari_rng seed = { rng.seed + 1, rng.stream };
    oari_rng stream = { rng.seed, rng.stream + 1 };
    uint32_t a[4], b[4], c[4];

    oari_rng_block(rng, 0, a);
    oari_rng_block(seed, 0, b);
    oari_rng_block(stream, 0, c);
    assert_true(memcmp(a, b, sizeof a) != 0 && memcmp(a, c, sizeof a) != 0 &&
                memcmp(b, c, sizeof b) != 0);
}

/* The mean and the mean of squares, of f32 or f64 numbers made by fill. */
#define MOMENTS(fill, type, mean, square)                       \
    do {                                                        \
        static type made[MANY];                                 \
                                                                \
        fill(rng, 0, made, MANY);                               \
        mean = square = 0;                                      \
        for (int i = 0; i < MANY; i++) {                        \
            assert_true(isfinite(made[i]));                     \
            mean += (double)made[i] / MANY;                     \
            square += (double)made[i] * (double)made[i] / MANY; \
        }                                                       \
    } while (0)

static void uniform_numbers_fill_zero_to_one(void **state)
{
    static float f32[MANY];
    double mean, square;

    oari_rng_uniform_f32(rng, 0, f32, MANY);
    for (int i = 0; i < MANY; i++)
        assert_true(f32[i] >= 0 && f32[i] < 1);
    MOMENTS(oari_rng_uniform_f32, float, mean, square);
    assert_true(fabs(mean - 0.5) < 0.005 && fabs(square - 1 / 3.0) < 0.005);
    MOMENTS(oari_rng_uniform_f64, double, mean, square);
    assert_true(fabs(mean - 0.5) < 0.005 && fabs(square - 1 / 3.0) < 0.005);
}

static void normal_numbers_have_mean_zero_and_deviation_one(void **state)
{
    double mean, square;

    MOMENTS(oari_rng_normal_f32, float, mean, square);
    assert_true(fabs(mean) < 0.01 && fabs(square - 1) < 0.02);
    MOMENTS(oari_rng_normal_f64, double, mean, square);
    assert_true(fabs(mean) < 0.01 && fabs(square - 1) < 0.02);
}

static void normal_tails_have_their_share(void **state)
{
    static float made[MANY];
    int over[4] = { 0 };

    oari_rng_normal_f32(rng, 0, made, MANY);
    for (int i = 0; i < MANY; i++)
        for (int k = 1; k < 4; k++)
            over[k] += fabsf(made[i]) > (float)k;
    assert_true(abs(over[1] - (int)(0.31731 * MANY)) < MANY / 200);
    assert_true(abs(over[2] - (int)(0.04550 * MANY)) < MANY / 400);
    assert_true(abs(over[3] - (int)(0.00270 * MANY)) < MANY / 2000);
}

static void the_last_numbers_of_a_sequence_exist(void **state)
{
    float made[2];

    oari_rng_uniform_f32(rng, UINT64_MAX - 1, made, 2);
    assert_true(made[0] != made[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_the_published_ones),
        cmocka_unit_test(the_cut_does_not_show),
        cmocka_unit_test(numbers_come_from_the_words_of_their_block),
        cmocka_unit_test(count_zero_writes_nothing),
        cmocka_unit_test(seeds_and_streams_differ),
        cmocka_unit_test(uniform_numbers_fill_zero_to_one),
        cmocka_unit_test(normal_numbers_have_mean_zero_and_deviation_one),
        cmocka_unit_test(normal_tails_have_their_share),
        cmocka_unit_test(the_last_numbers_of_a_sequence_exist),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
