/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions against a reference that takes one element at a time: every
 * operator on every dtype, on every instruction set this machine has, bit for
 * bit (NaNs count as equal). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/dtype.h"
#include "base/half.h"
#include "base/reduce/reduce.h"
#include "reduce_reference.h"

enum { MOST = 16, COUNT_MOST = 65537, GUARD = 0xa5 };

static const char *const isa_names[] = { "scalar",    "neon", "neon_f16",
                                         "neon_bf16", "sve",  "avx2",
                                         "avx512" };
enum { ISAS = sizeof isa_names / sizeof isa_names[0] };

static const oar_reduce_op_kind kinds[] = {
    OAR_REDUCE_OP_SUM, OAR_REDUCE_OP_PROD, OAR_REDUCE_OP_MIN,
    OAR_REDUCE_OP_MAX, OAR_REDUCE_OP_BAND, OAR_REDUCE_OP_BOR,
    OAR_REDUCE_OP_BXOR
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* ---- running a case ------------------------------------------------------ */

typedef struct reduce_case {
    oar_reduce_op_kind kind;
    oar_dtype dtype;
    size_t count;
    int sources, destinations;
    int in_place; /* destination i is source i, as far as there are both */
    const double *factor;
    double divisor;
} reduce_case;

static char pool[2 * MOST + 2][COUNT_MOST * 8 + 64];

/* Buffers at odd addresses, all different. */
static char *slot(int i)
{
    return pool[i] + 1 + i % 13;
}

static void fill_sources(const reduce_case *t)
{
    size_t size = oar_dtype_size(t->dtype);
    uint64_t seed = 99 + t->count + (uint64_t)t->kind * 31;

    for (int s = 0; s < t->sources; s++)
        for (size_t i = 0; i < t->count; i++)
            random_element(t->dtype, slot(s) + i * size, &seed);
}

static void check_result(const reduce_case *t, const char *isa, const char *got,
                         const char *want)
{
    size_t size = oar_dtype_size(t->dtype);

    for (size_t i = 0; i < t->count; i++)
        if (!same_element(t->dtype, got + i * size, want + i * size))
            fail_msg("%s of %s, %s, %d to %d, element %zu of %zu: %llx, not "
                     "%llx",
                     oar_reduce_op_name(t->kind), oar_dtype_name(t->dtype), isa,
                     t->sources, t->destinations, i, t->count,
                     (unsigned long long)raw_get(t->dtype, got + i * size),
                     (unsigned long long)raw_get(t->dtype, want + i * size));
    if (!t->in_place)
        assert_int_equal((unsigned char)got[t->count * size], GUARD);
}

static void run_on(const char *isa, const reduce_case *t, oari_reduction *r,
                   void **destination, const char *want)
{
    size_t bytes = t->count * oar_dtype_size(t->dtype);

    if (oari_reduce_use(isa) != OAR_OK)
        return;
    for (int i = 0; i < t->destinations; i++) {
        destination[i] = slot(MOST + i);
        if (t->in_place && i < t->sources)
            destination[i] = slot(i);
        else
            memset(destination[i], GUARD, bytes + 1);
    }
    if (t->in_place)
        fill_sources(t);
    oari_reduce(r, t->count);
    for (int i = 0; i < t->destinations; i++)
        check_result(t, isa, destination[i], want);
}

static void check(const reduce_case *t)
{
    static char want[COUNT_MOST * 8];
    const void *source[MOST];
    void *destination[MOST];
    oari_reduction r = { .kind = t->kind,
                         .dtype = t->dtype,
                         .sources = t->sources,
                         .source = source,
                         .factor = t->factor,
                         .divisor = t->divisor,
                         .destinations = t->destinations,
                         .destination = destination };

    for (int s = 0; s < t->sources; s++)
        source[s] = slot(s);
    fill_sources(t);
    reduce_reference(&r, t->count, want);
    for (int i = 0; i < ISAS; i++)
        run_on(isa_names[i], t, &r, destination, want);
}

/* Calls back for every dtype and every operator that suits it. */
static void for_every_operator(void (*body)(oar_reduce_op_kind, oar_dtype))
{
    for (int d = 0; d < OAR_DTYPE_COUNT; d++)
        for (int k = 0; k < KINDS; k++)
            if (oar_reduce_op_check(OAR_REDUCE_OP(kinds[k], 0), (oar_dtype)d) ==
                OAR_OK)
                body(kinds[k], (oar_dtype)d);
}

/* ---- the tests ----------------------------------------------------------- */

static void try_counts(oar_reduce_op_kind kind, oar_dtype dtype)
{
    static const size_t counts[] = { 0, 1, 3, 7, 17, 100, 1000, 65537 };

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        check(&(reduce_case){ kind, dtype, counts[i], .sources = 2,
                              .destinations = 1 });
}

static void any_count_works(void **state)
{
    for_every_operator(try_counts);
}

static void try_shapes(oar_reduce_op_kind kind, oar_dtype dtype)
{
    static const int numbers[] = { 1, 2, 3, 5, 8, 16 };

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        reduce_case t = { kind, dtype, .count = 211, .sources = numbers[i] };

        for (t.destinations = 1; t.destinations <= 3; t.destinations++)
            check(&t);
        t.destinations = t.sources;
        check(&t);
    }
}

static void any_number_of_sources_and_destinations_works(void **state)
{
    for_every_operator(try_shapes);
}

static void try_in_place(oar_reduce_op_kind kind, oar_dtype dtype)
{
    static const int shapes[][2] = { { 1, 2 }, { 2, 1 }, { 2, 2 },
                                     { 2, 3 }, { 5, 1 }, { 5, 5 } };

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t count = 3; count < 1000; count += 330)
            check(&(reduce_case){ kind, dtype, count, .sources = shapes[i][0],
                                  .destinations = shapes[i][1],
                                  .in_place = 1 });
}

static void a_destination_may_be_a_source(void **state)
{
    for_every_operator(try_in_place);
}

static void try_scaling(oar_dtype dtype, const double *factor, double divisor)
{
    static const int shapes[][2] = { { 1, 1 }, { 2, 1 }, { 2, 2 }, { 5, 3 } };

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t count = 7; count < 1000; count += 480)
            check(&(reduce_case){ OAR_REDUCE_OP_SUM, dtype, count,
                                  .sources = shapes[i][0],
                                  .destinations = shapes[i][1],
                                  .factor = factor, .divisor = divisor });
}

static void factors_and_divisors_are_applied(void **state)
{
    static const double factors[] = { 0.3, -2, 1, 0.1, 1e6 };
    static const double divisors[] = { 0,  1,     2,   4,   3,      7,   -1,
                                       -3, 0.125, 0.3, 1e9, 0x1p40, -0.5 };

    for (int d = 0; d < OAR_BOOL; d++)
        for (size_t i = 0; i < sizeof divisors / sizeof divisors[0]; i++) {
            try_scaling((oar_dtype)d, factors, divisors[i]);
            try_scaling((oar_dtype)d, NULL, divisors[i]);
        }
}

/* Two sources of one dtype to one destination, on every instruction set. */
static void sum_two(oar_dtype dtype, oar_reduce_op_kind kind, const void *a,
                    const void *b, size_t count, double divisor,
                    const void *want)
{
    unsigned char got[64];
    size_t bytes = count * oar_dtype_size(dtype);
    oari_reduction r = { .kind = kind,
                         .dtype = dtype,
                         .sources = 2,
                         .source = (const void *[]){ a, b },
                         .divisor = divisor,
                         .destinations = 1,
                         .destination = (void *[]){ got } };

    for (int i = 0; i < ISAS; i++) {
        if (oari_reduce_use(isa_names[i]) != OAR_OK)
            continue;
        memset(got, GUARD, sizeof got);
        oari_reduce(&r, count);
        assert_memory_equal(got, want, bytes);
    }
}

static void integers_wrap(void **state)
{
    sum_two(OAR_I8, OAR_REDUCE_OP_SUM, (int8_t[]){ 127, -128, 100 },
            (int8_t[]){ 1, -1, 100 }, 3, 0, (int8_t[]){ -128, 127, -56 });
    sum_two(OAR_I64, OAR_REDUCE_OP_SUM, (int64_t[]){ INT64_MAX },
            (int64_t[]){ 2 }, 1, 0, (int64_t[]){ INT64_MIN + 1 });
    sum_two(OAR_U32, OAR_REDUCE_OP_PROD, (uint32_t[]){ 0x80000001u },
            (uint32_t[]){ 3 }, 1, 0, (uint32_t[]){ 0x80000003u });
    sum_two(OAR_I16, OAR_REDUCE_OP_PROD, (int16_t[]){ -300 },
            (int16_t[]){ 300 }, 1, 0, (int16_t[]){ (int16_t)-90000 });
}

static void integer_averages_truncate_toward_zero(void **state)
{
    const int64_t big = ((int64_t)1 << 62) - 1;

    sum_two(OAR_I32, OAR_REDUCE_OP_SUM, (int32_t[]){ -3, 3, -1 },
            (int32_t[]){ -4, 4, 0 }, 3, 2, (int32_t[]){ -3, 3, 0 });
    sum_two(OAR_I64, OAR_REDUCE_OP_SUM, (int64_t[]){ big, -big },
            (int64_t[]){ 2, -2 }, 2, 2,
            (int64_t[]){ (big + 2) / 2, -((big + 2) / 2) });
    sum_two(OAR_U64, OAR_REDUCE_OP_SUM, (uint64_t[]){ UINT64_MAX - 2 },
            (uint64_t[]){ 2 }, 1, 3, (uint64_t[]){ UINT64_MAX / 3 });
    sum_two(OAR_I64, OAR_REDUCE_OP_SUM, (int64_t[]){ INT64_MIN },
            (int64_t[]){ 0 }, 1, -1, (int64_t[]){ INT64_MIN });
}

static void booleans_are_any_nonzero_byte(void **state)
{
    static const uint8_t a[] = { 0, 0, 2, 4 }, b[] = { 0, 128, 0, 3 };
    static const uint8_t some[] = { 0, 1, 1, 1 }, both[] = { 0, 0, 0, 1 };
    static const uint8_t one[] = { 0, 1, 1, 0 };

    sum_two(OAR_BOOL, OAR_REDUCE_OP_SUM, a, b, 4, 0, some);
    sum_two(OAR_BOOL, OAR_REDUCE_OP_MAX, a, b, 4, 0, some);
    sum_two(OAR_BOOL, OAR_REDUCE_OP_BOR, a, b, 4, 0, some);
    sum_two(OAR_BOOL, OAR_REDUCE_OP_PROD, a, b, 4, 0, both);
    sum_two(OAR_BOOL, OAR_REDUCE_OP_MIN, a, b, 4, 0, both);
    sum_two(OAR_BOOL, OAR_REDUCE_OP_BAND, a, b, 4, 0, both);
    sum_two(OAR_BOOL, OAR_REDUCE_OP_BXOR, a, b, 4, 0, one);
}

static void zeros_have_an_order_in_min_and_max(void **state)
{
    static const float a[] = { 0.0f, -0.0f, -0.0f, 0.0f, 1, -1 };
    static const float b[] = { -0.0f, 0.0f, -0.0f, 0.0f, 1, -1 };
    static const float low[] = { -0.0f, -0.0f, -0.0f, 0.0f, 1, -1 };
    static const float high[] = { 0.0f, 0.0f, -0.0f, 0.0f, 1, -1 };
    uint16_t h[4][6];

    sum_two(OAR_F32, OAR_REDUCE_OP_MIN, a, b, 6, 0, low);
    sum_two(OAR_F32, OAR_REDUCE_OP_MAX, a, b, 6, 0, high);
    for (oar_dtype d = OAR_F16; d <= OAR_BF16; d++) {
        oari_convert(h[0], d, a, OAR_F32, 6);
        oari_convert(h[1], d, b, OAR_F32, 6);
        oari_convert(h[2], d, low, OAR_F32, 6);
        oari_convert(h[3], d, high, OAR_F32, 6);
        sum_two(d, OAR_REDUCE_OP_MIN, h[0], h[1], 6, 0, h[2]);
        sum_two(d, OAR_REDUCE_OP_MAX, h[0], h[1], 6, 0, h[3]);
    }
}

static void either_nan_makes_min_and_max_nan(void **state)
{
    static const float a[] = { NAN, 1, NAN, NAN, -INFINITY };
    static const float b[] = { 1, NAN, NAN, INFINITY, NAN };
    float got[5];
    oari_reduction r = { .dtype = OAR_F32,
                         .sources = 2,
                         .source = (const void *[]){ a, b },
                         .destinations = 1,
                         .destination = (void *[]){ got } };

    for (int i = 0; i < ISAS; i++) {
        if (oari_reduce_use(isa_names[i]) != OAR_OK)
            continue;
        for (r.kind = OAR_REDUCE_OP_MIN; r.kind <= OAR_REDUCE_OP_MAX;
             r.kind++) {
            memset(got, 0, sizeof got);
            oari_reduce(&r, 5);
            for (int k = 0; k < 5; k++)
                assert_true(isnan(got[k]));
        }
    }
}

/* 2048 + 1 + 1 is 2050 in f32, but stays 2048 if every sum is an f16. */
static void halves_are_rounded_once(void **state)
{
    uint16_t big = oari_f16_bits_from_f32(2048),
             one = oari_f16_bits_from_f32(1);
    uint16_t brain = oari_bf16_bits_from_f32(256);
    uint16_t brain_one = oari_bf16_bits_from_f32(1), got;
    oari_reduction r = { .sources = 3,
                         .destinations = 1,
                         .destination = (void *[]){ &got } };

    for (int i = 0; i < ISAS; i++) {
        if (oari_reduce_use(isa_names[i]) != OAR_OK)
            continue;
        r.dtype = OAR_F16;
        r.source = (const void *[]){ &big, &one, &one };
        oari_reduce(&r, 1);
        assert_true(oari_f16_bits_to_f32(got) == 2050);
        r.dtype = OAR_BF16;
        r.source = (const void *[]){ &brain, &brain_one, &brain_one };
        oari_reduce(&r, 1);
        assert_true(oari_bf16_bits_to_f32(got) == 258);
    }
}

/* Every f16 with a spread of others, against sums in f32 rounded by hand. */
static void sums_of_two_f16_are_those_of_f32(void **state)
{
    static uint16_t all[0x10000], other[0x10000], want[0x10000], got[0x10000];
    static float value[0x10000];
    oari_reduction r = { .dtype = OAR_F16,
                         .sources = 2,
                         .source = (const void *[]){ all, other },
                         .destinations = 1,
                         .destination = (void *[]){ got } };
    uint64_t seed = 5;

    for (int i = 0; i <= 0xffff; i++)
        all[i] = (uint16_t)i;
    oari_convert(value, OAR_F32, all, OAR_F16, 0x10000);
    for (int turn = 0; turn < 24; turn++) {
        for (int i = 0; i <= 0xffff; i++) {
            other[i] = (uint16_t)next_random(&seed);
            want[i] = oari_f16_bits_from_f32(value[i] + value[other[i]]);
        }
        for (int k = 0; k < ISAS; k++) {
            if (oari_reduce_use(isa_names[k]) != OAR_OK)
                continue;
            oari_reduce(&r, 0x10000);
            for (int i = 0; i <= 0xffff; i++)
                assert_true(got[i] == want[i] ||
                            same_element(OAR_F16, &got[i], &want[i]));
        }
    }
}

/* All the f32 that lie around the middle of two bf16, and all bf16. */
static void every_rounding_to_bf16_is_right(void **state)
{
    static uint16_t high[0x10000], low[0x10000], got[0x10000];
    oari_reduction r = { .dtype = OAR_BF16,
                         .sources = 2,
                         .source = (const void *[]){ high, low },
                         .destinations = 1,
                         .destination = (void *[]){ got } };

    for (int part = -2; part <= 2; part++)
        for (int k = 0; k < ISAS; k++) {
            if (oari_reduce_use(isa_names[k]) != OAR_OK)
                continue;
            for (int i = 0; i <= 0xffff; i++) {
                float x = oari_bf16_bits_to_f32((uint16_t)i);

                high[i] = (uint16_t)i;
                low[i] = oari_bf16_bits_from_f32(x * (float)part * 0x1p-9f);
            }
            oari_reduce(&r, 0x10000);
            for (int i = 0; i <= 0xffff; i++) {
                uint16_t want =
                    oari_bf16_bits_from_f32(oari_bf16_bits_to_f32(high[i]) +
                                            oari_bf16_bits_to_f32(low[i]));

                assert_true(same_element(OAR_BF16, &got[i], &want));
            }
        }
}

static void one_source_is_a_copy(void **state)
{
    static const uint16_t nan[] = { 0x7c01, 0xfe55, 0x7f81, 0x0001, 0x8000 };
    uint16_t got[2][5];
    oari_reduction r = { .kind = OAR_REDUCE_OP_MAX,
                         .sources = 1,
                         .source = (const void *[]){ nan },
                         .destination = (void *[]){ got[0], got[1] } };

    for (r.dtype = OAR_F16; r.dtype <= OAR_BF16; r.dtype++)
        for (r.destinations = 1; r.destinations <= 2; r.destinations++) {
            memset(got, 0, sizeof got);
            oari_reduce(&r, 5);
            for (int i = 0; i < r.destinations; i++)
                assert_memory_equal(got[i], nan, sizeof nan);
        }
}

static void averages_may_be_named_as_such(void **state)
{
    static const oar_reduce_op_kind names[] = { OAR_REDUCE_OP_AVG,
                                                OAR_REDUCE_OP_PREMUL_SUM,
                                                OAR_REDUCE_OP_WEIGHTED_MEAN };

    for (int i = 0; i < 3; i++)
        sum_two(OAR_F64, names[i], (double[]){ 1, 2 }, (double[]){ 3, 5 }, 2, 2,
                (double[]){ 2, 3.5 });
}

static void the_cut_does_not_show(void **state)
{
    static float a[1000], b[1000], whole[1000], cut[1000];
    uint64_t seed = 3;
    oari_reduction r = { .kind = OAR_REDUCE_OP_SUM,
                         .dtype = OAR_F32,
                         .sources = 2,
                         .divisor = 3,
                         .destinations = 1 };

    for (int i = 0; i < 1000; i++) {
        a[i] = (float)next_random(&seed);
        b[i] = (float)next_random(&seed);
    }
    r.source = (const void *[]){ a, b };
    r.destination = (void *[]){ whole };
    oari_reduce(&r, 1000);
    for (size_t at = 0, n = 1; at < 1000; at += n++) {
        r.source = (const void *[]){ a + at, b + at };
        r.destination = (void *[]){ cut + at };
        oari_reduce(&r, n < 1000 - at ? n : 1000 - at);
    }
    assert_memory_equal(whole, cut, sizeof whole);
}

static void a_thousand_sources_are_summed_in_order(void **state)
{
    static float value[OARI_REDUCE_MAX];
    const void *source[OARI_REDUCE_MAX];
    float want = 0, got;
    oari_reduction r = { .kind = OAR_REDUCE_OP_SUM,
                         .dtype = OAR_F32,
                         .sources = OARI_REDUCE_MAX,
                         .source = source,
                         .destinations = 1,
                         .destination = (void *[]){ &got } };

    for (int i = 0; i < OARI_REDUCE_MAX; i++) {
        source[i] = &value[i];
        value[i] = 1.0f / (float)(i + 1);
        want = want + value[i];
    }
    oari_reduce(&r, 1);
    assert_memory_equal(&got, &want, sizeof got);
}

static void the_instruction_set_can_be_chosen(void **state)
{
    assert_int_equal(oari_reduce_use("scalar"), OAR_OK);
    assert_string_equal(oari_reduce_isa(), "scalar");
    assert_int_equal(oari_reduce_use("abacus"), OAR_E_UNAVAILABLE);
    assert_string_equal(oari_reduce_isa(), "scalar");
}

static int say_instruction_sets(void **state)
{
    print_message("chosen: %s; also here:", oari_reduce_isa());
    for (int i = 0; i < ISAS; i++)
        if (oari_reduce_use(isa_names[i]) == OAR_OK)
            print_message(" %s", isa_names[i]);
    print_message("\n");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_count_works),
        cmocka_unit_test(any_number_of_sources_and_destinations_works),
        cmocka_unit_test(a_destination_may_be_a_source),
        cmocka_unit_test(factors_and_divisors_are_applied),
        cmocka_unit_test(integers_wrap),
        cmocka_unit_test(integer_averages_truncate_toward_zero),
        cmocka_unit_test(booleans_are_any_nonzero_byte),
        cmocka_unit_test(zeros_have_an_order_in_min_and_max),
        cmocka_unit_test(either_nan_makes_min_and_max_nan),
        cmocka_unit_test(halves_are_rounded_once),
        cmocka_unit_test(sums_of_two_f16_are_those_of_f32),
        cmocka_unit_test(every_rounding_to_bf16_is_right),
        cmocka_unit_test(one_source_is_a_copy),
        cmocka_unit_test(averages_may_be_named_as_such),
        cmocka_unit_test(the_cut_does_not_show),
        cmocka_unit_test(a_thousand_sources_are_summed_in_order),
        cmocka_unit_test(the_instruction_set_can_be_chosen),
    };

    return cmocka_run_group_tests(tests, say_instruction_sets, NULL);
}
