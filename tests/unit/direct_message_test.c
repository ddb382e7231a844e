/* SPDX-License-Identifier: Apache-2.0 */
/* Small messages that pass a queue of shared memory in one step, and messages
 * that are copied once because their receiver waits for them: by the links'
 * own functions, and by calls of ranks. */
#include "support/ranks.h"

#include <stdlib.h>
#include <string.h>

#include <oarsong/p2p.h>
#include <oarsong/shared.h>

#include "link/shm/inproc.h"
#include "link/shm/shm_messages.h"

enum { EAGER = 64 << 10, LARGE = 32 << 10, TAG = 7 };

/* ---- two ranks in one thread --------------------------------------------- */

typedef struct direct_pair {
    oari_world *world;
    oari_recorder *recorder[2];
    oari_shm shm[2];
    oari_match *match[2];
    oari_shm_messages *mail[2];
} direct_pair;

static void open_pair(direct_pair *d)
{
    assert_int_equal(oari_world_create(2, 512, 4096, &d->world), OAR_OK);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(
            oari_recorder_make(
                &(oari_ring_owner){ .group = "pair", .rank = r, .ranks = 2 },
                &d->recorder[r]),
            OAR_OK);
        assert_int_equal(
            oari_world_join(d->world, r, -1, d->recorder[r], &d->shm[r]),
            OAR_OK);
        assert_int_equal(oari_match_create(r, 2, EAGER, &d->match[r]), OAR_OK);
        assert_int_equal(oari_shm_messages_create(&d->shm[r], d->match[r],
                                                  EAGER, &d->mail[r]),
                         OAR_OK);
    }
}

static void close_pair(direct_pair *d)
{
    for (int r = 0; r < 2; r++) {
        oari_shm_messages_destroy(d->mail[r]);
        oari_match_destroy(d->match[r]);
        oari_world_leave(&d->shm[r]);
        oari_recorder_destroy(d->recorder[r]);
    }
    oari_world_release(d->world);
}

static int push(direct_pair *d, uint64_t tag, const void *data, size_t bytes)
{
    return oari_shm_messages_push(d->mail[0], 1, tag, data, bytes);
}

static int take(direct_pair *d, uint64_t tag, uint64_t any, void *data,
                size_t bytes)
{
    oari_direct_receive receive = { tag, any, data, bytes };

    return oari_shm_messages_take(d->mail[1], 0, &receive, 10);
}

static oar_transfer transfer_of(int peer, uint64_t tag, void *data,
                                size_t bytes)
{
    return (oar_transfer){ .size = sizeof(oar_transfer),
                           .peer = peer,
                           .tag = tag,
                           .data = data,
                           .bytes = bytes };
}

/* Receives by the match, as the driver does. */
static void receive_by_match(direct_pair *d, uint64_t tag, int expected)
{
    int got = 0;
    oar_transfer t = transfer_of(0, tag, &got, sizeof got);

    assert_int_equal(oari_match_recv(d->match[1], &t), OAR_OK);
    assert_int_equal(oari_shm_messages_progress(d->mail[1]), OAR_OK);
    assert_int_equal(t.done, 1);
    assert_int_equal(t.status, OAR_OK);
    assert_int_equal(got, expected);
}

static void a_message_is_taken_out_of_the_queue(void **state)
{
    direct_pair d = { 0 };
    int sent = 41, got = 0;

    open_pair(&d);
    assert_int_equal(take(&d, TAG, 0, &got, sizeof got), 0);
    assert_int_equal(push(&d, TAG | 3 << 4, &sent, sizeof sent), 1);
    assert_int_equal(take(&d, TAG, 0xf0, &got, sizeof got), 1);
    assert_int_equal(got, 41);
    assert_int_equal(take(&d, TAG, 0xf0, &got, sizeof got), 0);
    close_pair(&d);
}

static void what_is_not_wanted_stays_in_the_queue(void **state)
{
    direct_pair d = { 0 };
    int sent = 42, got = 0;
    char little;

    open_pair(&d);
    assert_int_equal(push(&d, TAG, &sent, sizeof sent), 1);
    assert_int_equal(take(&d, TAG + 1, 0, &got, sizeof got), 0);
    assert_int_equal(take(&d, TAG, 0, &little, sizeof little), 0);
    assert_int_equal(got, 0);
    receive_by_match(&d, TAG, 42);
    close_pair(&d);
}

static void a_message_that_waits_is_not_overtaken(void **state)
{
    direct_pair d = { 0 };
    int first = 1, second = 2, got = 0;

    open_pair(&d);
    assert_int_equal(push(&d, TAG, &first, sizeof first), 1);
    assert_int_equal(oari_shm_messages_progress(d.mail[1]), OAR_OK);
    assert_int_equal(push(&d, TAG, &second, sizeof second), 1);
    assert_int_equal(take(&d, TAG, 0, &got, sizeof got), 0);
    receive_by_match(&d, TAG, 1);
    receive_by_match(&d, TAG, 2);
    close_pair(&d);
}

static void nothing_is_pushed_past_a_message_that_is_queued(void **state)
{
    static unsigned char data[EAGER];
    oar_transfer t[8];
    direct_pair d = { 0 };
    int small = 5;

    open_pair(&d);
    for (int i = 0; i < 8; i++) {
        t[i] = transfer_of(1, TAG, data, sizeof data);
        assert_int_equal(oari_shm_messages_send(d.mail[0], &t[i], 1), OAR_OK);
    }
    assert_int_equal(t[7].done, 0); /* the queue is full */
    assert_int_equal(push(&d, TAG, &small, sizeof small), 0);
    oari_shm_messages_abort(d.mail[0], OAR_E_ABORTED);
    close_pair(&d);
}

/* All sizes, often enough to go around the queue many times: room and credit
 * come back. */
static void messages_of_all_sizes_go_around_the_queue(void **state)
{
    static unsigned char sent[16 << 10], got[16 << 10];
    direct_pair d = { 0 };

    open_pair(&d);
    for (size_t i = 0; i < sizeof sent; i++)
        sent[i] = (unsigned char)(i * 7 + (i >> 8));
    for (size_t i = 0; i < 20000; i++) {
        size_t bytes = i % 8 == 0 ? i * 37 % (sizeof sent + 1) : i % 100;

        sent[0] = (unsigned char)i;
        memset(got, 0, 100);
        if (push(&d, TAG, sent, bytes) != 1 ||
            take(&d, TAG, 0, got, bytes) != 1 || memcmp(sent, got, bytes) != 0)
            fail_msg("message %zu, of %zu bytes", i, bytes);
    }
    close_pair(&d);
}

/* ---- copied once --------------------------------------------------------- */

/* Sends while the receiver waits for such a message; says whether the sender
 * was done at once, which is to say that the message was copied twice. */
static int is_copied_twice(direct_pair *d, uint64_t awaited_tag,
                           size_t awaited_bytes, int before)
{
    static unsigned char sent[LARGE], got[LARGE];
    static int number;
    oar_transfer receive = transfer_of(0, awaited_tag, got, awaited_bytes);
    oar_transfer send = transfer_of(1, TAG, sent, sizeof sent);
    oar_transfer other = transfer_of(1, TAG + 1, &number, sizeof number);
    int at_once;

    memset(sent, ++number, sizeof sent);
    assert_int_equal(oari_match_recv(d->match[1], &receive), OAR_OK);
    oari_shm_messages_await(d->mail[1], 0, &receive);
    for (int i = 0; i < before; i++)
        oari_shm_messages_send(d->mail[0], &other, 1);
    oari_shm_messages_send(d->mail[0], &send, 1);
    at_once = send.done;
    oari_shm_messages_progress(d->mail[1]);
    oari_shm_messages_progress(d->mail[0]);
    if (awaited_tag == TAG && awaited_bytes == sizeof sent) {
        assert_int_equal(send.done, 1);
        assert_int_equal(receive.done, 1);
        assert_int_equal(receive.status, OAR_OK);
        assert_memory_equal(got, sent, sizeof sent);
    } else if (!receive.done)
        oari_match_withdraw(d->match[1], &receive);
    return at_once;
}

static void a_message_that_is_waited_for_is_copied_once(void **state)
{
    direct_pair d = { 0 };

    open_pair(&d);
    assert_int_equal(is_copied_twice(&d, TAG, LARGE, 0), 0);
    assert_int_equal(is_copied_twice(&d, TAG, LARGE, 0), 0);
    /* what is under way may be what the receiver gets */
    assert_int_equal(is_copied_twice(&d, TAG, LARGE, 1), 1);
    close_pair(&d);
}

static void a_message_that_is_not_waited_for_does_not_wait(void **state)
{
    direct_pair d = { 0 };

    open_pair(&d);
    assert_int_equal(is_copied_twice(&d, TAG + 2, LARGE, 0), 1);
    close_pair(&d);
    open_pair(&d);
    assert_int_equal(is_copied_twice(&d, TAG, LARGE - 8, 0), 1);
    close_pair(&d);
}

/* ---- ranks --------------------------------------------------------------- */

/* Both send first; then the receiver takes what came in another order, while
 * the sender sends what nobody waits for yet. */
static oar_status send_before_receiving(oar_group *g, void *arg)
{
    size_t bytes = *(const size_t *)arg;
    int rank = oar_group_rank(g), peer = 1 - rank;
    unsigned char *memory = NULL;
    oar_span out, in;

    CHECK_OK(oar_shared_alloc(2 * bytes, (void **)&memory));
    out = oar_span_of(memory, bytes, OAR_U8);
    in = oar_span_of(memory + bytes, bytes, OAR_U8);
    for (int i = 0; i < 200; i++) {
        memset(memory, i + rank, bytes);
        CHECK_OK(oar_send(g, out, peer, 1, NULL, NULL));
        CHECK_OK(oar_recv(g, in, peer, 1, NULL, NULL));
        CHECK(memory[bytes] == (unsigned char)(i + peer));
        CHECK(memory[2 * bytes - 1] == (unsigned char)(i + peer));
        for (int64_t tag = 2; rank == 0 && tag <= 3; tag++) {
            memset(memory, (int)tag, bytes);
            CHECK_OK(oar_send(g, out, peer, tag, NULL, NULL));
        }
        for (int64_t tag = 3; rank == 1 && tag >= 2; tag--) {
            CHECK_OK(oar_recv(g, in, peer, tag, NULL, NULL));
            CHECK(memory[2 * bytes - 1] == tag);
        }
    }
    oar_shared_free(memory);
    return OAR_OK;
}

static void sends_do_not_wait_for_receives_of_other_messages(void **state)
{
    static const size_t sizes[] = { 8, 1000, 16 << 10, 30000, 64 << 10 };

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        ranks_all(2, send_before_receiving, (void *)(uintptr_t)&sizes[i]);
}

static oar_status receive_another_size(oar_group *g, void *arg)
{
    uint64_t data[4] = { 0 };

    if (oar_group_rank(g) == 0) {
        CHECK_OK(oar_send(g, oar_span_of(data, 1, OAR_U64), 1, 1, NULL, NULL));
        CHECK_OK(oar_send(g, oar_span_of(data, 1, OAR_I64), 1, 1, NULL, NULL));
    } else {
        CHECK(oar_recv(g, oar_span_of(data, 2, OAR_U64), 0, 1, NULL, NULL) ==
              OAR_E_SIZE);
        CHECK(oar_recv(g, oar_span_of(data, 1, OAR_F64), 0, 1, NULL, NULL) ==
              OAR_E_DTYPE);
    }
    return oar_barrier(g, NULL, NULL);
}

/* Not every plugin can carry dtypes. */
static void a_small_message_that_does_not_fit_fails(void **state)
{
    static const char *const backends[] = { "sim", "shm", "native", "tcp" };

    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        assert_int_equal(
            ranks_run(backends[i], 2, NULL, receive_another_size, NULL),
            OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_is_taken_out_of_the_queue),
        cmocka_unit_test(what_is_not_wanted_stays_in_the_queue),
        cmocka_unit_test(a_message_that_waits_is_not_overtaken),
        cmocka_unit_test(nothing_is_pushed_past_a_message_that_is_queued),
        cmocka_unit_test(messages_of_all_sizes_go_around_the_queue),
        cmocka_unit_test(a_message_that_is_waited_for_is_copied_once),
        cmocka_unit_test(a_message_that_is_not_waited_for_does_not_wait),
        cmocka_unit_test(sends_do_not_wait_for_receives_of_other_messages),
        cmocka_unit_test(a_small_message_that_does_not_fit_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
