/* SPDX-License-Identifier: Apache-2.0 */
/* dtypes and operators by name, half types bit by bit, and conversion between
 * any two dtypes against the slow way of numbers.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <oarsong/tensor.h>

#include "base/dtype.h"
#include "base/half.h"
#include "numbers.h"

static float f32_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- names and operators ------------------------------------------------- */

static void every_dtype_has_a_size_and_a_name(void **state)
{
#define X(name, value, bytes, text)                \
    assert_int_equal(oar_dtype_size(name), bytes); \
    assert_string_equal(oar_dtype_name(name), text);
    OAR_DTYPE_LIST(X)
    OAR_MOVED_DTYPE_LIST(X)
#undef X
    assert_int_equal(oar_dtype_size(OAR_DTYPE_COUNT_ALL), 0);
    assert_int_equal(oar_dtype_size((oar_dtype)-1), 0);
    assert_string_equal(oar_dtype_name(OAR_DTYPE_COUNT_ALL), "?");
    assert_string_equal(oar_dtype_name((oar_dtype)-1), "?");
}

static void a_name_finds_its_dtype(void **state)
{
    for (int i = 0; i < OAR_DTYPE_COUNT; i++) {
        oar_dtype found = OAR_DTYPE_COUNT;

        assert_int_equal(oar_dtype_parse(oar_dtype_name((oar_dtype)i), &found),
                         OAR_OK);
        assert_int_equal(found, i);
    }
}

static void a_wrong_name_leaves_the_result_alone(void **state)
{
    static const char *const wrong[] = { "", "f", "F32", "f322", "?", "half" };
    oar_dtype found = OAR_I16;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(oar_dtype_parse(wrong[i], &found), OAR_E_ARG);
    assert_int_equal(found, OAR_I16);
    assert_string_equal(oar_last_error_text(), "there is no dtype \"half\"");
    assert_int_equal(oar_dtype_parse(NULL, &found), OAR_E_ARG);
    assert_int_equal(oar_dtype_parse("f32", NULL), OAR_E_ARG);
}

static void every_operator_has_a_name(void **state)
{
#define X(name, value, text) \
    assert_string_equal(oar_reduce_op_name(name), text);
    OAR_REDUCE_OP_LIST(X)
#undef X
    assert_string_equal(oar_reduce_op_name(OAR_REDUCE_OP_COUNT), "?");
    assert_string_equal(oar_reduce_op_name((oar_reduce_op_kind)-1), "?");
}

static int suits(oar_reduce_op_kind kind, oar_dtype dtype)
{
    switch (kind) {
    case OAR_REDUCE_OP_AVG:
    case OAR_REDUCE_OP_PREMUL_SUM:
    case OAR_REDUCE_OP_WEIGHTED_MEAN: return dtype != OAR_BOOL;
    case OAR_REDUCE_OP_BAND:
    case OAR_REDUCE_OP_BOR:
    case OAR_REDUCE_OP_BXOR: return !is_float(dtype);
    default: return 1;
    }
}

static void operators_suit_the_dtypes_they_make_sense_on(void **state)
{
    for (int k = 0; k < OAR_REDUCE_OP_COUNT; k++)
        for (int d = 0; d < OAR_DTYPE_COUNT; d++) {
            oar_reduce_op op = OAR_REDUCE_OP((oar_reduce_op_kind)k, 1);
            int fine = suits(op.kind, (oar_dtype)d);

            oar_clear_error();
            assert_int_equal(oar_reduce_op_check(op, (oar_dtype)d),
                             fine ? OAR_OK : OAR_E_UNSUPPORTED);
            assert_int_equal(oar_last_error_text()[0] == 0, fine);
        }
    oar_reduce_op_check(OAR_BXOR, OAR_F16);
    assert_string_equal(oar_last_error_text(),
                        "bxor on f16: only integers and bool have bits");
}

static void unknown_operators_and_dtypes_are_bad_arguments(void **state)
{
    oar_reduce_op none = OAR_REDUCE_OP(OAR_REDUCE_OP_COUNT, 0),
                  wild = OAR_REDUCE_OP((oar_reduce_op_kind)-3, 0);

    assert_int_equal(oar_reduce_op_check(none, OAR_F32), OAR_E_ARG);
    assert_int_equal(oar_reduce_op_check(wild, OAR_F32), OAR_E_ARG);
    assert_int_equal(oar_reduce_op_check(OAR_SUM, OAR_DTYPE_COUNT_ALL),
                     OAR_E_ARG);
    assert_int_equal(oar_reduce_op_check(OAR_SUM, (oar_dtype)-1), OAR_E_ARG);
}

/* ---- half types ---------------------------------------------------------- */

static void every_half_is_worth_what_its_bits_say(void **state)
{
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        float f16 = oari_f16_bits_to_f32((uint16_t)bits);
        float bf16 = oari_bf16_bits_to_f32((uint16_t)bits);
        float want_f16 = (float)half_value(format_f16, (uint16_t)bits);
        float want_bf16 = (float)half_value(format_bf16, (uint16_t)bits);

        assert_true(same_element(OAR_F32, &f16, &want_f16));
        assert_true(same_element(OAR_F32, &bf16, &want_bf16));
    }
}

static void every_half_survives_the_round_trip(void **state)
{
    for (uint32_t i = 0; i <= 0xffff; i++) {
        uint16_t bits = (uint16_t)i;
        uint16_t f16 = oari_f16_bits_from_f32(oari_f16_bits_to_f32(bits));
        uint16_t bf16 = oari_bf16_bits_from_f32(oari_bf16_bits_to_f32(bits));

        assert_true(same_element(OAR_F16, &f16, &bits));
        assert_true(same_element(OAR_BF16, &bf16, &bits));
    }
}

/* Between two neighbours: just below the middle, the middle, just above. */
static void check_between(half_format f, uint16_t (*from_f32)(float),
                          uint16_t low, int sign)
{
    long double a = half_value(f, low), b = half_value(f, low + 1);
    float middle =
        (float)((a + (isinf(b) ? 2 * a - half_value(f, low - 1) : b)) / 2);
    uint16_t even = low & 1 ? low + 1 : low, minus = sign < 0 ? 0x8000 : 0;
    float s = (float)sign;

    assert_int_equal(from_f32(s * nextafterf(middle, 0)), low | minus);
    assert_int_equal(from_f32(s * middle), even | minus);
    assert_int_equal(from_f32(s * nextafterf(middle, INFINITY)),
                     (low + 1) | minus);
}

static void halves_are_rounded_to_nearest_and_ties_to_even(void **state)
{
    for (int sign = -1; sign <= 1; sign += 2) {
        for (uint16_t low = 0; low < 0x7c00; low++)
            check_between(format_f16, oari_f16_bits_from_f32, low, sign);
        for (uint16_t low = 0; low < 0x7f80; low++)
            check_between(format_bf16, oari_bf16_bits_from_f32, low, sign);
    }
}

static void random_floats_round_as_they_should(void **state)
{
    uint64_t seed = 1;

    for (int i = 0; i < 300000; i++) {
        float value = f32_of((uint32_t)(next_random(&seed) >> 32));
        uint16_t f16 = oari_f16_bits_from_f32(value);
        uint16_t bf16 = oari_bf16_bits_from_f32(value);
        uint16_t want_f16 = half_bits(format_f16, value);
        uint16_t want_bf16 = half_bits(format_bf16, value);

        assert_true(same_element(OAR_F16, &f16, &want_f16));
        assert_true(same_element(OAR_BF16, &bf16, &want_bf16));
    }
}

static void a_nan_stays_a_quiet_nan(void **state)
{
    static const uint32_t nan[] = { 0x7f800001, 0x7fc00000, 0x7fffffff,
                                    0xff800001, 0x7f802000, 0x7f80ffff };

    for (size_t i = 0; i < sizeof nan / sizeof nan[0]; i++) {
        uint16_t f16 = oari_f16_bits_from_f32(f32_of(nan[i]));
        uint16_t bf16 = oari_bf16_bits_from_f32(f32_of(nan[i]));

        assert_int_equal(f16 & 0x7e00, 0x7e00);
        assert_int_equal(bf16 & 0x7fc0, 0x7fc0);
        assert_int_equal(f16 & 0x8000, nan[i] >> 16 & 0x8000);
        assert_int_equal(bf16 & 0x8000, nan[i] >> 16 & 0x8000);
    }
    assert_true(isnan(oari_f16_bits_to_f32(0x7c01)));
    assert_true(isnan(oari_bf16_bits_to_f32(0xff81)));
}

/* ---- conversion ---------------------------------------------------------- */

/* What one element becomes, the slow way. */
static void expect_converted(oar_dtype to, void *into, oar_dtype from,
                             const void *element)
{
    if (!is_float(from) && !is_float(to) && to != OAR_BOOL)
        raw_set(to, into, integer_get(from, element));
    else
        value_set(to, into, value_get(from, element));
}

static void check_conversion(oar_dtype to, oar_dtype from, size_t count,
                             size_t offset)
{
    size_t to_bytes = oar_dtype_size(to), from_bytes = oar_dtype_size(from);
    unsigned char *in = malloc(count * from_bytes + offset + 1);
    unsigned char *out = malloc(count * to_bytes + offset + 1);
    uint64_t seed = 7 + count, want = 0;

    for (size_t i = 0; i < count; i++)
        random_element(from, in + offset + i * from_bytes, &seed);
    out[offset + count * to_bytes] = 0xa5;
    oari_convert(out + offset, to, in + offset, from, count);
    assert_int_equal(out[offset + count * to_bytes], 0xa5);
    for (size_t i = 0; i < count; i++) {
        unsigned char *got = out + offset + i * to_bytes;

        expect_converted(to, &want, from, in + offset + i * from_bytes);
        if (!same_element(to, got, &want))
            fail_msg("%s to %s, element %zu of %zu: %llx, not %llx",
                     oar_dtype_name(from), oar_dtype_name(to), i, count,
                     (unsigned long long)raw_get(to, got),
                     (unsigned long long)want);
    }
    free(in);
    free(out);
}

static void every_dtype_converts_to_every_other(void **state)
{
    static const size_t counts[] = { 0, 1, 3, 7, 17, 256, 1000 };

    for (int to = 0; to < OAR_DTYPE_COUNT; to++)
        for (int from = 0; from < OAR_DTYPE_COUNT; from++)
            for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
                check_conversion((oar_dtype)to, (oar_dtype)from, counts[i],
                                 i % 4);
}

static void conversion_in_bulk_agrees_with_one_by_one(void **state)
{
    static uint16_t half[0x10000], back[0x10000];
    static float wide[0x10000];

    for (int i = 0; i <= 0xffff; i++)
        half[i] = (uint16_t)i;
    oari_convert(wide, OAR_F32, half, OAR_F16, 0x10000);
    oari_convert(back, OAR_F16, wide, OAR_F32, 0x10000);
    for (int i = 0; i <= 0xffff; i++) {
        float one = oari_f16_bits_to_f32(half[i]);

        assert_memory_equal(&one, &wide[i], sizeof one);
        assert_true(same_element(OAR_F16, &back[i], &half[i]));
    }
}

static uint16_t convert_one(oar_dtype to, oar_dtype from, const void *value)
{
    uint16_t half;

    oari_convert(&half, to, value, from, 1);
    return half;
}

static void wide_numbers_are_rounded_to_halves_once(void **state)
{
    double above = 1 + 0x1p-11 + 0x1p-40; /* through f32: a tie, and down */
    double below = 1 + 3 * 0x1p-11 - 0x1p-40;
    double tiny = 0x1p-25 + 0x1p-60, vast = 65520 - 0x1p-30;
    int64_t whole = ((int64_t)1 << 62) + ((int64_t)1 << 54) + 1;
    int64_t minus = -whole;
    uint64_t big = ((uint64_t)1 << 63) + ((uint64_t)1 << 55) + 1;

    assert_int_equal(convert_one(OAR_F16, OAR_F64, &above), 0x3c01);
    assert_int_equal(convert_one(OAR_F16, OAR_F64, &below), 0x3c01);
    assert_int_equal(convert_one(OAR_F16, OAR_F64, &tiny), 0x0001);
    assert_int_equal(convert_one(OAR_F16, OAR_F64, &vast), 0x7bff);
    assert_int_equal(convert_one(OAR_BF16, OAR_I64, &whole), 0x5e81);
    assert_int_equal(convert_one(OAR_BF16, OAR_I64, &minus), 0xde81);
    assert_int_equal(convert_one(OAR_BF16, OAR_U64, &big), 0x5f01);
}

static void floats_saturate_as_integers(void **state)
{
    static const double in[] = { 1e30, -1e30, NAN, -0.9, 127.9, -128.9, 255.9 };
    static const int8_t want_i8[] = { 127, -128, 0, 0, 127, -128, 127 };
    static const uint8_t want_u8[] = { 255, 0, 0, 0, 127, 0, 255 };
    int8_t i8[7];
    uint8_t u8[7];
    int64_t i64[7];

    oari_convert(i8, OAR_I8, in, OAR_F64, 7);
    oari_convert(u8, OAR_U8, in, OAR_F64, 7);
    oari_convert(i64, OAR_I64, in, OAR_F64, 7);
    assert_memory_equal(i8, want_i8, sizeof i8);
    assert_memory_equal(u8, want_u8, sizeof u8);
    assert_true(i64[0] == INT64_MAX && i64[1] == INT64_MIN && i64[2] == 0);
}

static void anything_but_zero_is_true(void **state)
{
    const float in[] = { 0.0f, -0.0f, 1e-45f, NAN, -2 };
    unsigned char out[5], twice[5] = { 0, 1, 2, 128, 255 };

    oari_convert(out, OAR_BOOL, in, OAR_F32, 5);
    assert_memory_equal(out, ((unsigned char[]){ 0, 0, 1, 1, 1 }), 5);
    oari_convert(twice, OAR_BOOL, twice, OAR_BOOL, 5);
    assert_memory_equal(twice, ((unsigned char[]){ 0, 1, 1, 1, 1 }), 5);
}

static void the_same_buffer_of_the_same_dtype_stays(void **state)
{
    float in[] = { 1, -0.0f, 3 }, copy[3];

    memcpy(copy, in, sizeof in);
    oari_convert(in, OAR_F32, in, OAR_F32, 3);
    assert_memory_equal(in, copy, sizeof in);
    oari_convert(NULL, OAR_F32, NULL, OAR_I8, 0);
}

static void floats_of_8_bits_are_only_moved(void **state)
{
    oar_dtype found;

    assert_int_equal(oar_dtype_size(OAR_F8E4M3), 1);
    assert_string_equal(oar_dtype_name(OAR_F8E5M2), "f8e5m2");
    assert_int_equal(oar_dtype_parse("f8e4m3", &found), OAR_OK);
    assert_int_equal(found, OAR_F8E4M3);
    assert_int_equal(oar_reduce_op_check(OAR_SUM, OAR_F8E4M3),
                     OAR_E_UNSUPPORTED);
    assert_non_null(strstr(oar_last_error_text(), "NCCL"));
    assert_null(oar_empty(NULL, OAR_F8E4M3, OAR_SHAPE(3)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_has_a_size_and_a_name),
        cmocka_unit_test(a_name_finds_its_dtype),
        cmocka_unit_test(a_wrong_name_leaves_the_result_alone),
        cmocka_unit_test(every_operator_has_a_name),
        cmocka_unit_test(operators_suit_the_dtypes_they_make_sense_on),
        cmocka_unit_test(unknown_operators_and_dtypes_are_bad_arguments),
        cmocka_unit_test(every_half_is_worth_what_its_bits_say),
        cmocka_unit_test(every_half_survives_the_round_trip),
        cmocka_unit_test(halves_are_rounded_to_nearest_and_ties_to_even),
        cmocka_unit_test(random_floats_round_as_they_should),
        cmocka_unit_test(a_nan_stays_a_quiet_nan),
        cmocka_unit_test(every_dtype_converts_to_every_other),
        cmocka_unit_test(conversion_in_bulk_agrees_with_one_by_one),
        cmocka_unit_test(wide_numbers_are_rounded_to_halves_once),
        cmocka_unit_test(floats_saturate_as_integers),
        cmocka_unit_test(anything_but_zero_is_true),
        cmocka_unit_test(the_same_buffer_of_the_same_dtype_stays),
        cmocka_unit_test(floats_of_8_bits_are_only_moved),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
