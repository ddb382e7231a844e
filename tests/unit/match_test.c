/* SPDX-License-Identifier: Apache-2.0 */
/* Which message goes to which receive: match.h, without a link. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "link/match.h"
#include "support/leak_check.h"
#include "support/test_job.h"

enum { RANKS = 5, ME = 2, EAGER = 1000 };
#define ANY_TAG UINT64_MAX

typedef struct match_context {
    oari_match *match;
    oari_taker taker;
    uint64_t taken[64]; /* word[0] of offers, in the order they were taken */
    int takes, refusals;
    leak_check before;
} match_context;

static void note_take(void *self, const oari_offer *offer, oar_transfer *t)
{
    match_context *b = self;

    b->taken[b->takes++ % 64] = offer->word[0];
    if (t == NULL) {
        b->refusals++;
        return;
    }
    if (t->bytes != 0)
        memset(t->data, (int)offer->word[1], t->bytes);
    oari_transfer_finish(t, OAR_OK);
}

static match_context open_context(void)
{
    match_context b = { .before = leak_check_begin() };

    assert_int_equal(oari_match_create(ME, RANKS, EAGER, &b.match), OAR_OK);
    return b;
}

static void close_context(match_context *b)
{
    oari_match_destroy(b->match);
    leak_check_end(&b->before);
}

static oar_transfer receive(int from, uint64_t tag, uint64_t any, void *data,
                            size_t bytes)
{
    return (oar_transfer){ .size = sizeof(oar_transfer),
                           .peer = from,
                           .tag = tag,
                           .any = any,
                           .data = data,
                           .bytes = bytes };
}

/* A message of one value, pushed. */
static void push(match_context *b, int source, uint64_t tag, int value)
{
    oari_inbound in;

    assert_int_equal(oari_match_begin(b->match, source, tag, sizeof value, &in),
                     OAR_OK);
    if (in.target != NULL)
        memcpy(in.target, &value, sizeof value);
    oari_match_end(b->match, &in);
}

static void offer(match_context *b, int source, uint64_t tag, size_t bytes,
                  uint64_t name)
{
    oari_offer o = { source, tag, bytes, { name, name } };

    b->taker = (oari_taker){ note_take, b };
    assert_int_equal(oari_match_offer(b->match, &o, &b->taker), OAR_OK);
}

/* ---- order --------------------------------------------------------------- */

static void messages_of_a_pair_and_tag_come_in_order(void **state)
{
    match_context b = open_context();

    for (int i = 0; i < 10; i++)
        push(&b, 1, 7, i);
    for (int i = 0; i < 10; i++) {
        int got = -1;
        oar_transfer t = receive(1, 7, 0, &got, sizeof got);
        assert_int_equal(oari_match_recv(b.match, &t), OAR_OK);
        assert_true(t.done && t.status == OAR_OK && got == i);
        assert_true(t.source == 1 && t.got_tag == 7 &&
                    t.got_bytes == sizeof got);
    }
    close_context(&b);
}

static void an_arrival_goes_to_the_receive_posted_first(void **state)
{
    match_context b = open_context();
    int got[4] = { -1, -1, -1, -1 };
    oar_transfer t[4] = {
        receive(-1, 0, ANY_TAG, &got[0], sizeof(int)),
        receive(1, 7, 0, &got[1], sizeof(int)),
        receive(-1, 7, 0, &got[2], sizeof(int)),
        receive(1, 0, ANY_TAG, &got[3], sizeof(int)),
    };

    for (int i = 0; i < 4; i++)
        oari_match_recv(b.match, &t[i]);
    for (int i = 0; i < 4; i++)
        push(&b, 1, 7, i);
    for (int i = 0; i < 4; i++)
        assert_true(t[i].done && got[i] == i);
    close_context(&b);
}

static void a_wildcard_takes_what_came_first(void **state)
{
    match_context b = open_context();
    static const int source[] = { 4, 0, 3, 1, 4 };

    for (int i = 0; i < 5; i++)
        push(&b, source[i], (uint64_t)i, i);
    for (int i = 0; i < 5; i++) {
        int got = -1;
        oar_transfer t = receive(-1, 0, ANY_TAG, &got, sizeof got);
        oari_match_recv(b.match, &t);
        assert_true(t.done && got == i && t.source == source[i]);
        assert_int_equal(t.got_tag, i);
    }
    close_context(&b);
}

/* The upper bits say what kind of message it is, and are not the user's. */
static void only_the_bits_that_may_be_anything_are_ignored(void **state)
{
    match_context b = open_context();
    int got = -1;
    oar_transfer t =
        receive(1, UINT64_C(1) << 63, UINT32_MAX, &got, sizeof got);

    oari_match_recv(b.match, &t);
    push(&b, 1, 5, 1);
    assert_false(t.done);
    push(&b, 1, UINT64_C(1) << 63 | 5, 2);
    assert_true(t.done && got == 2);
    close_context(&b);
}

static void a_probe_sees_what_a_receive_would_take(void **state)
{
    match_context b = open_context();
    oar_envelope e = { .size = sizeof e };
    int got;
    oar_transfer t = receive(-1, 0, ANY_TAG, &got, sizeof got);

    assert_false(oari_match_peek(b.match, -1, 0, ANY_TAG, &e));
    push(&b, 3, 9, 1);
    offer(&b, 1, 8, 12345678, 1);
    assert_true(oari_match_peek(b.match, -1, 0, ANY_TAG, &e));
    assert_true(e.source == 3 && e.tag == 9 && e.bytes == sizeof(int));
    assert_true(oari_match_peek(b.match, 1, 8, 0, &e));
    assert_true(e.source == 1 && e.tag == 8 && e.bytes == 12345678);
    assert_false(oari_match_peek(b.match, 1, 9, 0, &e));
    oari_match_recv(b.match, &t);
    assert_true(t.done && t.source == 3);
    assert_false(oari_match_peek(b.match, 3, 9, 0, NULL));
    close_context(&b);
}

/* ---- sizes --------------------------------------------------------------- */

static void another_size_fails_and_nothing_is_written(void **state)
{
    match_context b = open_context();
    unsigned char room[16];

    memset(room, 0x55, sizeof room);
    for (int early = 0; early < 2; early++)
        for (size_t bytes = 0; bytes <= 5; bytes++) {
            oar_transfer t = receive(1, 7, 0, room, bytes);
            if (bytes == sizeof(int))
                continue;
            if (early)
                push(&b, 1, 7, 1);
            oari_match_recv(b.match, &t);
            if (!early)
                push(&b, 1, 7, 1);
            assert_true(t.done && t.status == OAR_E_SIZE);
            assert_int_equal(t.got_bytes, sizeof(int));
            assert_int_equal(room[0], 0x55);
        }
    close_context(&b);
}

static void messages_of_no_bytes_match_too(void **state)
{
    match_context b = open_context();
    oari_inbound in;
    oar_transfer t = receive(1, 7, 0, NULL, 0);

    assert_int_equal(oari_match_begin(b.match, 1, 7, 0, &in), OAR_OK);
    oari_match_end(b.match, &in);
    oari_match_recv(b.match, &t);
    assert_true(t.done && t.status == OAR_OK && t.got_bytes == 0);
    close_context(&b);
}

/* ---- pushed and offered -------------------------------------------------- */

static void a_message_half_here_waits_for_its_rest(void **state)
{
    match_context b = open_context();
    oari_inbound in;
    char got[8] = "";
    oar_transfer t = receive(-1, 0, ANY_TAG, got, 8);
    oar_transfer other = receive(1, 7, 0, got, 8);

    oari_match_begin(b.match, 1, 7, 8, &in);
    memcpy(in.target, "abc", 3);
    oari_match_recv(b.match, &t);
    oari_match_recv(b.match, &other); /* must not get the same one */
    assert_false(t.done || other.done);
    memcpy(in.target + 3, "defg", 5);
    oari_match_end(b.match, &in);
    assert_true(t.done && !other.done);
    assert_string_equal(got, "abcdefg");
    oari_match_abort(b.match, OAR_E_ABORTED);
    assert_true(other.done && other.status == OAR_E_ABORTED);
    close_context(&b);
}

static void an_offer_is_taken_once_with_its_receive(void **state)
{
    match_context b = open_context();
    unsigned char got[9];
    oar_transfer t = receive(1, 7, 0, got, sizeof got);
    oar_transfer wrong = receive(1, 7, 0, got, 3);

    offer(&b, 1, 7, sizeof got, 41);
    offer(&b, 1, 7, sizeof got, 42);
    assert_int_equal(b.takes, 0);
    oari_match_recv(b.match, &t);
    assert_true(t.done && got[8] == 41 && b.takes == 1);
    oari_match_recv(b.match, &wrong);
    assert_true(wrong.done && wrong.status == OAR_E_SIZE);
    assert_true(b.takes == 2 && b.refusals == 1 && b.taken[1] == 42);
    close_context(&b);
}

static void offers_and_pushed_messages_keep_their_order(void **state)
{
    match_context b = open_context();
    int got;

    push(&b, 1, 7, 0);
    offer(&b, 1, 7, sizeof got, 1);
    push(&b, 1, 7, 2);
    for (int i = 0; i < 3; i++) {
        oar_transfer t = receive(1, 7, 0, &got, sizeof got);
        oari_match_recv(b.match, &t);
        assert_true(t.done);
        assert_int_equal(got, i == 1 ? 0x01010101 : i);
    }
    close_context(&b);
}

/* ---- credit -------------------------------------------------------------- */

static void a_source_cannot_push_more_than_its_credit(void **state)
{
    match_context b = open_context();
    uint64_t spent = 0, back = 0;
    oari_inbound in;
    oar_transfer t;
    static char data[100000];

    while (oari_match_has_credit(b.match, spent, back, sizeof data)) {
        assert_int_equal(oari_match_begin(b.match, 1, 7, sizeof data, &in),
                         OAR_OK);
        oari_match_end(b.match, &in);
        spent += oari_credit_cost(sizeof data);
    }
    assert_true(spent * OARI_CREDIT_UNIT > 10 << 20);
    assert_true(spent * OARI_CREDIT_UNIT <= 64 << 20);
    /* one that does not keep to it is found out, and others are not touched */
    assert_int_equal(oari_match_begin(b.match, 1, 7, sizeof data, &in),
                     OAR_E_DATA);
    push(&b, 3, 7, 1);
    t = receive(1, 7, 0, data, sizeof data);
    oari_match_recv(b.match, &t);
    back = oari_match_received(b.match, 1);
    assert_true(t.done && back == oari_credit_cost(sizeof data));
    assert_true(oari_match_has_credit(b.match, spent, back, sizeof data));
    close_context(&b);
}

/* ---- to oneself ---------------------------------------------------------- */

static void messages_to_oneself_are_copied_or_wait(void **state)
{
    match_context b = open_context();
    unsigned char from[2 * EAGER], to[2 * EAGER] = { 0 };
    oar_transfer small = receive(ME, 3, 0, from, EAGER);
    oar_transfer large = receive(ME, 3, 0, from, 2 * EAGER);
    oar_transfer rendezvous = receive(ME, 3, 0, from, 1);
    oar_transfer in[3] = { receive(ME, 3, 0, to, EAGER),
                           receive(-1, 3, 0, to, 2 * EAGER),
                           receive(ME, 0, ANY_TAG, to, 7) };

    memset(from, 9, sizeof from);
    rendezvous.synchronous = 1;
    assert_int_equal(oari_match_send_self(b.match, &small), OAR_OK);
    assert_int_equal(oari_match_send_self(b.match, &large), OAR_OK);
    assert_int_equal(oari_match_send_self(b.match, &rendezvous), OAR_OK);
    assert_true(small.done && !large.done && !rendezvous.done);
    for (int i = 0; i < 3; i++)
        oari_match_recv(b.match, &in[i]);
    assert_true(in[0].done && in[1].done && large.done);
    assert_memory_equal(from, to, sizeof to);
    assert_true(in[2].status == OAR_E_SIZE && rendezvous.status == OAR_E_SIZE);
    close_context(&b);
}

static void an_abort_ends_everything_that_waits(void **state)
{
    match_context b = open_context();
    char data[2 * EAGER];
    oar_transfer t[4] = { receive(1, 1, 0, data, 1), receive(-1, 1, 0, data, 1),
                          receive(ME, 9, 0, data, sizeof data) };

    for (int i = 0; i < 2; i++)
        oari_match_recv(b.match, &t[i]);
    oari_match_send_self(b.match, &t[2]);
    push(&b, 3, 7, 1);
    oari_match_abort(b.match, OAR_E_PEER);
    t[3] = receive(3, 7, 0, data, sizeof(int));
    oari_match_recv(b.match, &t[3]);
    for (int i = 0; i < 4; i++)
        assert_true(t[i].done && t[i].status == OAR_E_PEER);
    close_context(&b);
}

/* ---- against a model ----------------------------------------------------- */

/* The same rules, as simply as they can be said: two lists in order of time. */
typedef struct model_entry {
    int source; /* -1: any */
    uint64_t tag, any;
    int value, gone;
    oar_transfer t;
} model_entry;

enum { THINGS = 4000 };

static int wants(const model_entry *recv, const model_entry *message)
{
    return !recv->gone && !message->gone &&
           (recv->source < 0 || recv->source == message->source) &&
           ((recv->tag ^ message->tag) & ~recv->any) == 0;
}

static model_entry random_entry(uint64_t *seed, int wildcards)
{
    uint64_t r = next_random(seed);

    return (model_entry){ .source = wildcards && r % 4 == 0
                                        ? -1
                                        : (int)(r / 4 % RANKS),
                          .tag = r / 64 % 3,
                          .any = wildcards && r / 256 % 4 == 0 ? ANY_TAG : 0 };
}

static void random_traffic_is_matched_as_the_model_says(void **state)
{
    for (uint64_t run = 1; run <= 20; run++) {
        match_context b = open_context();
        model_entry *recvs = calloc(THINGS, sizeof *recvs);
        model_entry *sends = calloc(THINGS, sizeof *sends);
        int n = 0, m = 0, expected[THINGS];
        uint64_t seed = run;
        while (n < THINGS && m < THINGS) {
            int found = -1;
            if (next_random(&seed) % 2) {
                model_entry *s = &sends[m];
                *s = random_entry(&seed, 0);
                s->value = m++;
                for (int i = 0; i < n && found < 0; i++)
                    if (wants(&recvs[i], s))
                        found = i;
                push(&b, s->source, s->tag, s->value);
                if (found >= 0) {
                    expected[found] = s->value;
                    recvs[found].gone = s->gone = 1;
                }
            } else {
                model_entry *r = &recvs[n];
                *r = random_entry(&seed, 1);
                r->value = -1;
                r->t = receive(r->source, r->tag, r->any, &r->value,
                               sizeof r->value);
                for (int i = 0; i < m && found < 0; i++)
                    if (wants(r, &sends[i]))
                        found = i;
                oari_match_recv(b.match, &r->t);
                if (found >= 0) {
                    expected[n] = found;
                    sends[found].gone = r->gone = 1;
                }
                n++;
            }
        }
        for (int i = 0; i < n; i++) {
            assert_int_equal(recvs[i].t.done, recvs[i].gone);
            if (recvs[i].gone)
                assert_int_equal(recvs[i].value, expected[i]);
        }
        oari_match_abort(b.match, OAR_E_ABORTED);
        close_context(&b);
        free(recvs);
        free(sends);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_a_pair_and_tag_come_in_order),
        cmocka_unit_test(an_arrival_goes_to_the_receive_posted_first),
        cmocka_unit_test(a_wildcard_takes_what_came_first),
        cmocka_unit_test(only_the_bits_that_may_be_anything_are_ignored),
        cmocka_unit_test(a_probe_sees_what_a_receive_would_take),
        cmocka_unit_test(another_size_fails_and_nothing_is_written),
        cmocka_unit_test(messages_of_no_bytes_match_too),
        cmocka_unit_test(a_message_half_here_waits_for_its_rest),
        cmocka_unit_test(an_offer_is_taken_once_with_its_receive),
        cmocka_unit_test(offers_and_pushed_messages_keep_their_order),
        cmocka_unit_test(a_source_cannot_push_more_than_its_credit),
        cmocka_unit_test(messages_to_oneself_are_copied_or_wait),
        cmocka_unit_test(an_abort_ends_everything_that_waits),
        cmocka_unit_test(random_traffic_is_matched_as_the_model_says),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
