/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a frame: what is written is read, anything else is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

#include "net/frame.h"
#include "support/test_job.h"

static const oari_frame sample = { .kind = OARI_FRAME_DATA,
                                   .flags = OARI_FRAME_REFUSED,
                                   .context = 0x0123456789abcdef,
                                   .sequence = 0xfedcba98,
                                   .source = 1023,
                                   .tag = 0x1122334455667788,
                                   .bytes = UINT64_C(5) << 32 | 17,
                                   .handle = 0x99aabbccddeeff00,
                                   .fingerprint = 0x5a5a5a5a00000001,
                                   .credit = 0x80000001 };

static void what_is_written_is_read(void **state)
{
    unsigned char raw[OARI_FRAME_BYTES];
    oari_frame got = { 0 };

    oari_frame_write(&sample, raw);
    assert_int_equal(oari_frame_read(raw, &got), OAR_OK);
    assert_int_equal(got.kind, sample.kind);
    assert_int_equal(got.flags, sample.flags);
    assert_true(got.context == sample.context && got.tag == sample.tag);
    assert_true(got.bytes == sample.bytes && got.handle == sample.handle);
    assert_true(got.fingerprint == sample.fingerprint);
    assert_int_equal(got.sequence, sample.sequence);
    assert_int_equal(got.source, sample.source);
    assert_int_equal(got.credit, sample.credit);
}

/* The layout of frame.h, byte by byte, on every machine. */
static void numbers_are_little_endian_at_their_places(void **state)
{
    static const unsigned char expected[60] = {
        'O',  'A',  'R',  'F',  6,    5,    1,    0,    0xef, 0xcd, 0xab, 0x89,
        0x67, 0x45, 0x23, 0x01, 0x98, 0xba, 0xdc, 0xfe, 0xff, 0x03, 0,    0,
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 17,   0,    0,    0,
        5,    0,    0,    0,    0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99,
        0x01, 0,    0,    0,    0x5a, 0x5a, 0x5a, 0x5a, 0x01, 0,    0,    0x80,
    };
    unsigned char raw[OARI_FRAME_BYTES];

    oari_frame_write(&sample, raw);
    assert_memory_equal(raw, expected, sizeof expected);
}

static void every_bit_flipped_is_refused(void **state)
{
    unsigned char raw[OARI_FRAME_BYTES];
    oari_frame got;

    for (int bit = 0; bit < OARI_FRAME_BYTES * 8; bit++) {
        oari_frame_write(&sample, raw);
        raw[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_int_equal(oari_frame_read(raw, &got), OAR_E_DATA);
    }
}

static void random_bytes_are_refused(void **state)
{
    unsigned char raw[OARI_FRAME_BYTES];
    uint64_t seed = 7;
    oari_frame got;

    for (int i = 0; i < 100000; i++) {
        for (size_t k = 0; k < sizeof raw; k++)
            raw[k] = (unsigned char)next_random(&seed);
        if (i % 2)
            memcpy(raw, "OARF\6", 5);
        assert_int_equal(oari_frame_read(raw, &got), OAR_E_DATA);
    }
}

/* With a right checksum too. */
static void unknown_kinds_flags_and_versions_are_refused(void **state)
{
    unsigned char raw[OARI_FRAME_BYTES];
    oari_frame odd = sample, got;

    odd.kind = (oari_frame_kind)0;
    oari_frame_write(&odd, raw);
    assert_int_equal(oari_frame_read(raw, &got), OAR_E_DATA);
    odd.kind = OARI_FRAME_KINDS;
    oari_frame_write(&odd, raw);
    assert_int_equal(oari_frame_read(raw, &got), OAR_E_DATA);
    odd = sample;
    odd.flags = 4;
    oari_frame_write(&odd, raw);
    assert_int_equal(oari_frame_read(raw, &got), OAR_E_DATA);
    oari_frame_write(&sample, raw);
    raw[4] = OARI_FRAME_VERSION + 1;
    for (int i = 0; i < 4; i++)
        raw[60 + i] = (unsigned char)(oari_crc32c(raw, 60) >> 8 * i);
    assert_int_equal(oari_frame_read(raw, &got), OAR_E_DATA);
    assert_non_null(strstr(oar_last_error_text(), "protocol 7"));
}

static void the_checksum_is_crc32c_by_either_way(void **state)
{
    unsigned char data[300];
    uint64_t seed = 3;

    assert_int_equal(oari_crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(oari_crc32c_plain("123456789", 9), 0xe3069283);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)next_random(&seed);
    for (size_t n = 0; n + 7 < sizeof data; n++)
        assert_int_equal(oari_crc32c(data + n % 7, n),
                         oari_crc32c_plain(data + n % 7, n));
}

static void a_fault_travels_whole(void **state)
{
    unsigned char raw[OARI_FAULT_BYTES];
    oari_fault sent = { .error = { .size = sizeof sent.error,
                                   .status = OAR_E_PEER,
                                   .rank = 3,
                                   .peer = -1,
                                   .sys_errno = 104,
                                   .pid = 123456,
                                   .sequence = UINT64_C(1) << 40,
                                   .operation = "all_reduce",
                                   .site = "a.c:5",
                                   .label = "step 7",
                                   .host = "h",
                                   .text = "rank 2 has died" } };
    oari_fault got;

    for (int e = 0; e < OARI_EVIDENCES; e++) {
        sent.evidence = (oari_evidence)e;
        oari_fault_write(&sent, raw);
        oari_fault_read(raw, &got);
        assert_memory_equal(&got.error, &sent.error, sizeof got.error);
        assert_int_equal(got.evidence, e);
    }
    memset(raw, 0xff, sizeof raw); /* texts without an end */
    oari_fault_read(raw, &got);
    assert_true(strlen(got.error.text) < sizeof got.error.text);
    assert_int_equal(got.evidence, OARI_EVIDENCE_TIMEOUT);
    memset(raw, 0, sizeof raw);
    oari_fault_read(raw, &got);
    assert_int_not_equal(got.error.status, OAR_OK);
    raw[0] = 200; /* an unknown status */
    oari_fault_read(raw, &got);
    assert_string_equal(oar_status_name(got.error.status), "OAR_E_PEER");
}

/* Control characters do not get through; other characters do. */
static void the_texts_of_a_fault_are_harmless(void **state)
{
    unsigned char raw[OARI_FAULT_BYTES];
    oari_fault sent = {
        .error = { .size = sizeof sent.error,
                   .status = OAR_E_ABORTED,
                   .label = "\x1b[2J\a",
                   .host = "a\r\nb\x7f",
                   .text = "gr\xc3\xbc\xc3\x9f \xc2\x9b 31m \xc2\xb5s" }
    };
    oari_fault got;

    oari_fault_write(&sent, raw);
    oari_fault_read(raw, &got);
    assert_string_equal(got.error.label, "?[2J?");
    assert_string_equal(got.error.host, "a??b?");
    assert_string_equal(got.error.text,
                        "gr\xc3\xbc\xc3\x9f ?\x9b 31m \xc2\xb5s");
    assert_int_equal(got.error.status, OAR_E_ABORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(numbers_are_little_endian_at_their_places),
        cmocka_unit_test(every_bit_flipped_is_refused),
        cmocka_unit_test(random_bytes_are_refused),
        cmocka_unit_test(unknown_kinds_flags_and_versions_are_refused),
        cmocka_unit_test(the_checksum_is_crc32c_by_either_way),
        cmocka_unit_test(a_fault_travels_whole),
        cmocka_unit_test(the_texts_of_a_fault_are_harmless),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
