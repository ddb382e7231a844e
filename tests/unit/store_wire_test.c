/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP store's frames: every kind written and read, and every way to be
 * wrong. Bodies are read from memory of exactly their size, so that a sanitizer
 * sees a byte read too far. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "store/store_wire.h"
#include "support/last_error.h"

static const int kinds[] = {
#define X(name, number, request, reply) number, number | OARI_WIRE_REPLY,
    OARI_WIRE_LIST(X)
#undef X
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static unsigned char key_bytes[3 * 204];

/* A message with something in every field. */
static oari_wire_message full(int kind, oar_status status)
{
    size_t used = 0;

    used += oari_wire_put_key(key_bytes, "one");
    used += oari_wire_put_key(key_bytes + used, "2");
    used += oari_wire_put_key(key_bytes + used, "three and more");
    return (oari_wire_message){
        .head = { .kind = kind,
                  .status = status,
                  .number = 0x0102030405060708 },
        .id = UINT64_MAX - 5,
        .method = 0xfffffffe,
        .flag = 0x80000001,
        .amount = INT64_MIN + 3,
        .key = { "a key", 5 },
        .value = { "some\0value", 10 },
        .expected = { "", 0 },
        .after = { "\xff\x01", 2 },
        .count = 3,
        .keys = { key_bytes, used },
    };
}

/* The status in place of a copy of the body, of which only `bytes` are there.
 */
static oar_status read_part(const oari_wire_header *head,
                            const unsigned char *body, size_t bytes,
                            oari_wire_message *m)
{
    oari_wire_header cut = *head;
    unsigned char *copy = malloc(bytes > 0 ? bytes : 1);
    oar_status status;

    memcpy(copy, body, bytes);
    cut.bytes = (uint32_t)bytes;
    status = oari_wire_read(&cut, copy, m);
    free(copy);
    return status;
}

static void every_kind_is_read_as_it_was_written(void **state)
{
    for (int i = 0; i < 2 * KINDS; i++) {
        oar_status status = i < KINDS || kinds[i % KINDS] < OARI_WIRE_REPLY
                                ? OAR_OK
                                : OAR_E_TIMEOUT;
        oari_wire_message m = full(kinds[i % KINDS], status), got;
        unsigned char *frame, *again;
        size_t bytes, bytes_again;
        oari_wire_header head;

        assert_int_equal(oari_wire_frame(&m, &frame, &bytes), OAR_OK);
        assert_int_equal(oari_wire_read_header(frame, &head), OAR_OK);
        assert_int_equal(head.bytes, bytes - OARI_WIRE_HEADER_BYTES);
        assert_int_equal(head.number, m.head.number);
        assert_int_equal(head.status, status);
        assert_int_equal(
            oari_wire_read(&head, frame + OARI_WIRE_HEADER_BYTES, &got),
            OAR_OK);
        assert_int_equal(oari_wire_frame(&got, &again, &bytes_again), OAR_OK);
        assert_int_equal(bytes_again, bytes);
        assert_memory_equal(again, frame, bytes);
        oari_free(again);
        oari_free(frame);
    }
}

static void a_body_must_have_its_exact_length(void **state)
{
    for (int i = 0; i < KINDS; i++) {
        oari_wire_message m = full(kinds[i], OAR_OK), got;
        unsigned char *frame;
        size_t bytes;

        assert_int_equal(oari_wire_frame(&m, &frame, &bytes), OAR_OK);
        bytes -= OARI_WIRE_HEADER_BYTES;
        m.head.bytes = (uint32_t)bytes;
        for (size_t part = 0; part < bytes; part++)
            assert_fails_with(
                read_part(&m.head, frame + OARI_WIRE_HEADER_BYTES, part, &got),
                OAR_E_DATA, "");
        assert_int_equal(
            read_part(&m.head, frame + OARI_WIRE_HEADER_BYTES, bytes, &got),
            OAR_OK);
        memmove(frame, frame + OARI_WIRE_HEADER_BYTES, bytes);
        assert_fails_with(read_part(&m.head, frame, bytes + 1, &got),
                          OAR_E_DATA, "too many");
        oari_free(frame);
    }
}

static void a_head_is_checked_before_its_body(void **state)
{
    static const struct {
        int at, value;
        oar_status status;
    } wrong[] = {
        { 0, 'o', OAR_E_DATA },      { 3, 0, OAR_E_DATA },
        { 4, 2, OAR_E_UNSUPPORTED }, { 4, 0, OAR_E_UNSUPPORTED },
        { 5, 0, OAR_E_DATA },        { 5, 15, OAR_E_DATA },
        { 5, 24, OAR_E_DATA },       { 5, 0x80, OAR_E_DATA },
        { 6, 1, OAR_E_DATA }, /* a request has no status */
        { 11, 1, OAR_E_DATA },       { 12, 1, OAR_E_DATA },
        { 15, 1, OAR_E_DATA },
    };
    oari_wire_message m = full(OARI_WIRE_SET, OAR_OK);
    unsigned char frame[200], copy[200];
    oari_wire_header head;

    assert_true(oari_wire_bytes(&m) <= sizeof frame);
    oari_wire_write(&m, frame);
    assert_int_equal(oari_wire_read_header(frame, &head), OAR_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(copy, frame, sizeof copy);
        copy[wrong[i].at] = (unsigned char)wrong[i].value;
        assert_fails_with(oari_wire_read_header(copy, &head), wrong[i].status,
                          "");
    }
    memcpy(copy, frame, sizeof copy); /* a status that there is not */
    copy[5] |= OARI_WIRE_REPLY;
    copy[6] = OAR_E_INTERNAL + 1;
    assert_fails_with(oari_wire_read_header(copy, &head), OAR_E_DATA, "");
    assert_true(oari_wire_plausible(frame, 0));
    assert_true(oari_wire_plausible(frame, 3));
    assert_false(oari_wire_plausible((const unsigned char *)"OB", 2));
}

/* Reads a SET whose key and value are of these lengths. */
static oar_status read_set(size_t key, size_t value, int zero_at)
{
    oari_wire_message m = { .head.kind = OARI_WIRE_SET }, got;
    char *key_text = malloc(key + 1), *data = calloc(1, value + 1);
    oari_wire_header head;
    unsigned char *frame;
    size_t bytes;
    oar_status status;

    memset(key_text, 'k', key + 1);
    if (zero_at >= 0)
        key_text[zero_at] = 0;
    m.key = (oari_bytes){ key_text, key };
    m.value = (oari_bytes){ data, value };
    assert_int_equal(oari_wire_frame(&m, &frame, &bytes), OAR_OK);
    status = oari_wire_read_header(frame, &head);
    if (status == OAR_OK)
        status = oari_wire_read(&head, frame + OARI_WIRE_HEADER_BYTES, &got);
    oari_free(frame);
    free(key_text);
    free(data);
    return status;
}

static void fields_have_their_limits(void **state)
{
    assert_int_equal(read_set(1, 0, -1), OAR_OK);
    assert_int_equal(read_set(200, OAR_STORE_VALUE_MAX, -1), OAR_OK);
    assert_int_equal(read_set(0, 5, -1), OAR_E_DATA);
    assert_int_equal(read_set(201, 5, -1), OAR_E_DATA);
    assert_int_equal(read_set(5, OAR_STORE_VALUE_MAX + 1, -1), OAR_E_DATA);
    assert_int_equal(read_set(5, 3 * OAR_STORE_VALUE_MAX, -1), OAR_E_DATA);
    for (int i = 0; i < 7; i++)
        assert_int_equal(read_set(7, 1, i), OAR_E_DATA);
}

static void keys_are_read_one_by_one(void **state)
{
    static const char *const want[] = { "one", "2", "three and more" };
    oari_wire_message m = full(OARI_WIRE_WAIT, OAR_OK), got;
    unsigned char frame[200];
    oari_wire_header head;
    size_t at = 0;

    oari_wire_write(&m, frame);
    assert_int_equal(oari_wire_read_header(frame, &head), OAR_OK);
    assert_int_equal(
        oari_wire_read(&head, frame + OARI_WIRE_HEADER_BYTES, &got), OAR_OK);
    assert_int_equal(got.count, 3);
    for (int i = 0; i < 3; i++) {
        oari_bytes key = oari_wire_next_key(&got, &at);
        assert_int_equal(key.bytes, strlen(want[i]));
        assert_memory_equal(key.data, want[i], key.bytes);
    }
    assert_int_equal(at, got.keys.bytes);
    m.count = OARI_WIRE_KEYS_MAX + 1;
    oari_wire_write(&m, frame);
    assert_fails_with(
        oari_wire_read(&head, frame + OARI_WIRE_HEADER_BYTES, &got), OAR_E_DATA,
        "4097");
}

/* Whatever comes is refused or can be written again as it came. */
static void noise_is_refused_or_understood(void **state)
{
    uint64_t dice = 20261115;
    int understood = 0;

    for (int round = 0; round < 200000; round++) {
        oari_wire_message m = full(kinds[round % KINDS], OAR_OK), got;
        unsigned char frame[256], again[256];
        size_t bytes = oari_wire_bytes(&m);
        oari_wire_header head;

        assert_true(bytes <= sizeof frame);
        oari_wire_write(&m, frame);
        for (int flips = 0; flips < 3; flips++) {
            dice = dice * 6364136223846793005u + 1442695040888963407u;
            frame[(dice >> 40) % bytes] ^= (unsigned char)(1u << (dice >> 61));
        }
        if (oari_wire_read_header(frame, &head) != OAR_OK ||
            head.bytes > bytes - OARI_WIRE_HEADER_BYTES ||
            read_part(&head, frame + OARI_WIRE_HEADER_BYTES, head.bytes,
                      &got) != OAR_OK)
            continue;
        understood++;
        assert_int_equal(
            oari_wire_read(&head, frame + OARI_WIRE_HEADER_BYTES, &got),
            OAR_OK);
        assert_true(oari_wire_bytes(&got) <= bytes);
        oari_wire_write(&got, again);
        assert_memory_equal(again, frame, oari_wire_bytes(&got));
    }
    assert_true(understood > 1000 && understood < 199000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_read_as_it_was_written),
        cmocka_unit_test(a_body_must_have_its_exact_length),
        cmocka_unit_test(a_head_is_checked_before_its_body),
        cmocka_unit_test(fields_have_their_limits),
        cmocka_unit_test(keys_are_read_one_by_one),
        cmocka_unit_test(noise_is_refused_or_understood),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
