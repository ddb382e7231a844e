/* SPDX-License-Identifier: Apache-2.0 */
/* What a bulletin promises to its readers. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <pthread.h>
#include <string.h>

#include "link/bulletin.h"

enum { WRITES = 20000 };

static void fill(unsigned char *ballot, int with)
{
    memset(ballot, with, OARI_BALLOT_BYTES);
}

static void nothing_is_read_before_it_is_shown(void **state)
{
    static oari_bulletin b;
    unsigned char raw[OARI_FAULT_BYTES];

    for (int f = 0; f < OARI_FACTS; f++) {
        assert_false(oari_bulletin_has(&b, f));
        assert_false(oari_bulletin_read(&b, f, raw));
        assert_true(oari_fact_bytes((uint64_t)f) <= sizeof raw);
    }
    assert_int_equal(oari_fact_bytes(OARI_FACTS), 0);
}

static void every_byte_of_every_fact_gets_through(void **state)
{
    static oari_bulletin b;
    unsigned char in[OARI_FAULT_BYTES], out[OARI_FAULT_BYTES + 1];

    for (int f = 0; f < OARI_FACTS; f++) {
        size_t bytes = oari_fact_bytes((uint64_t)f);

        for (size_t i = 0; i < bytes; i++)
            in[i] = (unsigned char)(i * 7 + (size_t)f);
        memset(out, 0xee, sizeof out);
        oari_bulletin_write(&b, f, in);
        assert_true(oari_bulletin_read(&b, f, out));
        assert_memory_equal(in, out, bytes);
        assert_int_equal(out[bytes], 0xee);
    }
}

static void the_first_of_two_faults_stays(void **state)
{
    static oari_bulletin b;
    oari_fault first = { .error = { .status = OAR_E_PEER, .text = "first" } };
    oari_fault second = { .error = { .status = OAR_E_PEER, .text = "2nd" } };
    oari_fault found;

    assert_true(oari_bulletin_write_fault(&b, OARI_FACT_FAULT, &first));
    assert_false(oari_bulletin_write_fault(&b, OARI_FACT_FAULT, &second));
    assert_true(oari_bulletin_read_fault(&b, OARI_FACT_FAULT, &found));
    assert_string_equal(found.error.text, "first");
}

/* A rank may be stopped or killed in the middle of a write. */
static void a_write_that_stops_half_way_leaves_the_value_before(void **state)
{
    static oari_bulletin b;
    unsigned char ballot[OARI_BALLOT_BYTES], found[OARI_BALLOT_BYTES];
    oari_fact_slot *s = &b.slot[OARI_FACT_BALLOT];

    for (int value = 1; value < 4; value++) {
        fill(ballot, value);
        oari_bulletin_write(&b, OARI_FACT_BALLOT, ballot);
        for (size_t i = 0; i < OARI_BALLOT_BYTES / 16; i++)
            atomic_store(&s->word[(atomic_load(&s->sequence) + 1) % 2][i], 99);
        assert_true(oari_bulletin_read(&b, OARI_FACT_BALLOT, found));
        assert_memory_equal(found, ballot, sizeof found);
    }
}

static void *write_many(void *arg)
{
    unsigned char ballot[OARI_BALLOT_BYTES];

    for (int i = 1; i <= WRITES; i++) {
        fill(ballot, i % 256);
        oari_bulletin_write(arg, OARI_FACT_BALLOT, ballot);
    }
    return NULL;
}

static void a_reader_never_sees_parts_of_two_writes(void **state)
{
    static oari_bulletin b;
    unsigned char found[OARI_BALLOT_BYTES], same[OARI_BALLOT_BYTES];
    uint64_t written = 0;
    pthread_t writer;

    assert_int_equal(pthread_create(&writer, NULL, write_many, &b), 0);
    while (written < WRITES) {
        written = atomic_load(&b.slot[OARI_FACT_BALLOT].sequence);
        if (!oari_bulletin_read(&b, OARI_FACT_BALLOT, found))
            continue;
        fill(same, found[0]);
        assert_memory_equal(found, same, sizeof found);
    }
    pthread_join(writer, NULL);
    assert_true(oari_bulletin_read(&b, OARI_FACT_BALLOT, found));
    assert_int_equal(found[0], WRITES % 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_read_before_it_is_shown),
        cmocka_unit_test(every_byte_of_every_fact_gets_through),
        cmocka_unit_test(the_first_of_two_faults_stays),
        cmocka_unit_test(a_write_that_stops_half_way_leaves_the_value_before),
        cmocka_unit_test(a_reader_never_sees_parts_of_two_writes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
