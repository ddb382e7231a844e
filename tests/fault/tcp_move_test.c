/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks have called each other, and the higher one moves over to the
 * connection of the other: its messages stay in order, whichever is read first.
 * Rank 0 is real and in this process, the test is rank 1. */
#include <string.h>

#include "base/clock.h"
#include "base/fork.h"
#include "support/last_error.h"
#include "support/real_rank.h"

enum { PATIENCE_MS = 10000, SOON_MS = 100, TAG = 17, RECEIVES = 2 };

typedef struct move_context {
    real_rank real;
    fake_rank other;
    int listener; /* of rank 1 */
    int own;      /* a connection from 1 to 0 */
    int called;   /* one from 0 to 1 */
    oar_transfer send, receive[RECEIVES];
    unsigned char got[RECEIVES], sent;
} move_context;

static oari_secret secret;

/* Gives `bytes` bytes that rank 0 has sent. */
static void read_sent(move_context *s, int fd, void *into, int bytes)
{
    int64_t deadline = oari_deadline(PATIENCE_MS);
    int at = 0;

    while (at < bytes && oari_now_ns() < deadline) {
        int got =
            fake_rank_recv(fd, (char *)into + at, (size_t)(bytes - at), 0);

        OK(tcp_progress(&s->real.mesh));
        assert_int_not_equal(got, 0);
        at += got > 0 ? got : 0;
    }
    assert_int_equal(at, bytes);
}

static void send_frame(move_context *s, int fd, oari_frame frame,
                       const void *data)
{
    unsigned char raw[OARI_FRAME_BYTES];

    frame.context = s->other.mesh.context;
    frame.source = 1;
    oari_frame_write(&frame, raw);
    fake_rank_send(fd, raw, sizeof raw);
    if (data != NULL)
        fake_rank_send(fd, data, frame.bytes);
}

static void push(move_context *s, int fd, uint32_t sequence, char what)
{
    oari_frame frame = {
        .kind = OARI_FRAME_PUSH, .sequence = sequence, .tag = TAG, .bytes = 1
    };

    send_frame(s, fd, frame, &what);
}

/* "I have sent that many frames over my own connection." */
static void move(move_context *s, int fd, uint32_t sequence, uint64_t frames)
{
    oari_frame frame = { .kind = OARI_FRAME_MOVE,
                         .sequence = sequence,
                         .handle = frames };

    send_frame(s, fd, frame, NULL);
}

/* Rank 0 sends a byte, so that it calls; rank 1 answers, without its hello. */
static void be_called(move_context *s, unsigned char answer[FAKE_RANK_HELLO])
{
    unsigned char hello[FAKE_RANK_HELLO], raw[OARI_FRAME_BYTES + 1];
    int64_t deadline = oari_deadline(PATIENCE_MS);

    s->send = (oar_transfer){ .size = sizeof s->send,
                              .peer = 1,
                              .tag = TAG,
                              .data = &s->sent,
                              .bytes = 1 };
    OK(tcp_send(&s->real.mesh, &s->send));
    s->called = -1;
    while (s->called < 0 && oari_now_ns() < deadline) {
        OK(oari_sock_accept(s->listener, &s->called));
        OK(tcp_progress(&s->real.mesh));
    }
    assert_true(s->called >= 0);
    read_sent(s, s->called, hello, sizeof hello);
    read_sent(s, s->called, raw, sizeof raw);
    fake_rank_answer(&s->other, 0, hello, answer);
}

static void call(move_context *s)
{
    unsigned char hello[FAKE_RANK_HELLO];

    s->own = fake_rank_connect(&s->other, 0);
    assert_true(s->own >= 0);
    fake_rank_hello(&s->other, 0, 0, hello);
    fake_rank_send(s->own, hello, sizeof hello);
    read_sent(s, s->own, hello, sizeof hello);
}

static void open_context(move_context *s)
{
    char address[OARI_SOCK_TEXT];
    unsigned char answer[FAKE_RANK_HELLO];

    memset(s, 0, sizeof *s);
    OK(oari_secret_find(&secret));
    OK(oari_sock_listen("127.0.0.1:0", 4, &s->listener));
    OK(oari_sock_name(s->listener, address));
    real_rank_init(&s->real, &secret, address);
    OK(real_rank_open(&s->real, PATIENCE_MS));
    fake_rank_init(&s->other, s->real.store, REAL_RANK_PREFIX, 1, 2, &secret);
    be_called(s, answer);
    call(s);
    fake_rank_send(s->called, answer, sizeof answer);
    for (int i = 0; i < RECEIVES; i++) {
        s->receive[i] = (oar_transfer){ .size = sizeof s->receive[i],
                                        .peer = 1,
                                        .tag = TAG,
                                        .data = &s->got[i],
                                        .bytes = 1 };
        OK(oari_match_recv(s->real.match, &s->receive[i]));
    }
}

static void close_context(move_context *s)
{
    oari_fork_close(s->own);
    oari_fork_close(s->called);
    oari_fork_close(s->listener);
    real_rank_abort(&s->real);
    fake_rank_free(&s->other);
    real_rank_free(&s->real);
}

/* Returns how many of the messages have come, at most `all`, in that time. */
static int await_messages(move_context *s, int all, int timeout_ms)
{
    int64_t deadline = oari_deadline(timeout_ms);
    int done = 0;

    while (done < all && oari_now_ns() < deadline) {
        OK(tcp_progress(&s->real.mesh));
        done = 0;
        for (int i = 0; i < RECEIVES; i++)
            done += s->receive[i].done != 0;
    }
    return done;
}

static void messages_do_not_overtake(void **state)
{
    move_context s;

    (void)state;
    open_context(&s);
    move(&s, s.called, 1, 2); /* the hello and a message, still on its way */
    push(&s, s.called, 2, 'b');
    assert_int_equal(await_messages(&s, 1, SOON_MS), 0);
    push(&s, s.own, 1, 'a');
    assert_int_equal(await_messages(&s, 2, PATIENCE_MS), 2);
    assert_int_equal(s.got[0], 'a');
    assert_int_equal(s.got[1], 'b');
    close_context(&s);
}

static void a_move_behind_everything_holds_nothing(void **state)
{
    move_context s;

    (void)state;
    open_context(&s);
    push(&s, s.own, 1, 'a');
    assert_int_equal(await_messages(&s, 1, PATIENCE_MS), 1);
    move(&s, s.called, 1, 2);
    push(&s, s.called, 2, 'b');
    assert_int_equal(await_messages(&s, 2, PATIENCE_MS), 2);
    assert_int_equal(s.got[1], 'b');
    close_context(&s);
}

/* What was sent before the other connection ended is lost, and so is the peer;
 * what is held must not keep rank 0 from seeing that. */
static void a_peer_that_ends_while_it_moves_is_gone(void **state)
{
    move_context s;
    int64_t deadline;

    (void)state;
    open_context(&s);
    move(&s, s.called, 1, 2);
    push(&s, s.called, 2, 'b');
    assert_int_equal(await_messages(&s, 1, SOON_MS), 0);
    oari_fork_close(s.own);
    oari_fork_close(s.called);
    s.own = s.called = -1;
    deadline = oari_deadline(PATIENCE_MS);
    while (!s.real.mesh.peer[1].gone && oari_now_ns() < deadline)
        OK(tcp_progress(&s.real.mesh));
    assert_int_equal(s.real.mesh.peer[1].gone, OARI_PEER_DIED);
    close_context(&s);
}

/* Over the rank's own connection, and twice. */
static void a_move_that_makes_no_sense_ends_the_group(void **state)
{
    (void)state;
    for (int twice = 0; twice < 2; twice++) {
        move_context s;
        int64_t deadline = oari_deadline(PATIENCE_MS);
        oar_status status = OAR_OK;

        open_context(&s);
        move(&s, twice ? s.called : s.own, 1, 1);
        if (twice)
            move(&s, s.called, 2, 1);
        while (status == OAR_OK && oari_now_ns() < deadline)
            status = tcp_progress(&s.real.mesh);
        assert_int_equal(status, OAR_E_DATA);
        assert_non_null(strstr(oar_last_error_text(), "makes no sense"));
        close_context(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_do_not_overtake),
        cmocka_unit_test(a_move_behind_everything_holds_nothing),
        cmocka_unit_test(a_peer_that_ends_while_it_moves_is_gone),
        cmocka_unit_test(a_move_that_makes_no_sense_ends_the_group),
    };

    return cmocka_run_group_tests_name("tcp_move", tests, NULL, NULL);
}
