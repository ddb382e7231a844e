/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that authenticates and then sends frames that make no sense, and a
 * connection that changes bytes on the way. One rank is real and in this
 * process, the test is the other (support/fake_rank.h). OARSONG_TEST_LARGE=1
 * tries every bit instead of one in several. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fork.h"
#include "link/shm/control_page.h"
#include "comm/group/group.h"
#include "support/leak_check.h"
#include "support/test_job.h"
#include "support/last_error.h"
#include "support/real_rank.h"

enum {
    PATIENCE_MS = 10000,
    SOON_MS = 100,
    DATA = 1000,
    TAG = 17,
    RECORDS = 4096
};

/* The real rank 0, and rank 1. */
typedef struct bad_frame_context {
    real_rank real;
    fake_rank other;
    int fd; /* a connection from 1 to 0 */
    oar_transfer receive;
    unsigned char got[DATA];
} bad_frame_context;

static int bit_step(void)
{
    return getenv("OARSONG_TEST_LARGE") != NULL ? 1 : 11;
}

/* ---- opening the mesh ---------------------------------------------------- */

static oari_secret secret;

static void open_context(bad_frame_context *s)
{
    memset(s, 0, sizeof *s);
    OK(oari_secret_find(&secret));
    real_rank_init(&s->real, &secret, "127.0.0.1:1");
    OK(real_rank_open(&s->real, PATIENCE_MS));
    fake_rank_init(&s->other, s->real.store, REAL_RANK_PREFIX, 1, 2, &secret);
    s->fd = fake_rank_connect(&s->other, 0);
    assert_true(s->fd >= 0);
    s->receive = (oar_transfer){ .size = sizeof s->receive,
                                 .peer = 1,
                                 .tag = TAG,
                                 .data = s->got,
                                 .bytes = DATA };
    OK(oari_match_recv(s->real.match, &s->receive));
}

static void close_context(bad_frame_context *s)
{
    oari_fork_close(s->fd);
    real_rank_abort(&s->real);
    fake_rank_free(&s->other);
    real_rank_free(&s->real);
}

/* A message as rank 1 would push it. */
static void write_push(const bad_frame_context *s,
                       unsigned char raw[OARI_FRAME_BYTES])
{
    oari_frame push = { .kind = OARI_FRAME_PUSH,
                        .context = s->other.mesh.context,
                        .sequence = 1,
                        .source = 1,
                        .tag = TAG,
                        .bytes = DATA };

    oari_frame_write(&push, raw);
}

/* What becomes of it: the group's end, the peer's, or neither in a while. */
typedef enum link_outcome { ENDED, GONE, TAKEN, NOTHING } link_outcome;

static link_outcome await_outcome(bad_frame_context *s, int timeout_ms)
{
    int64_t deadline = oari_deadline(timeout_ms);

    while (oari_now_ns() < deadline) {
        if (tcp_progress(&s->real.mesh) != OAR_OK)
            return ENDED;
        if (s->receive.done)
            return TAKEN;
        if (s->real.mesh.peer[1].gone)
            return GONE;
    }
    return NOTHING;
}

/* The socket that waits since the beginning may have been given up by now. */
static void connect_again(bad_frame_context *s)
{
    oari_fork_close(s->fd);
    s->fd = fake_rank_connect(&s->other, 0);
    assert_true(s->fd >= 0);
}

static void complete_hello(bad_frame_context *s)
{
    unsigned char raw[FAKE_RANK_HELLO], answer[FAKE_RANK_HELLO];
    int64_t deadline = oari_deadline(PATIENCE_MS);
    int got = -1;

    fake_rank_hello(&s->other, 0, 0, raw);
    fake_rank_send(s->fd, raw, sizeof raw);
    while (got < 0 && oari_now_ns() < deadline) {
        OK(tcp_progress(&s->real.mesh));
        got = fake_rank_recv(s->fd, answer, sizeof answer, 0);
    }
    assert_int_equal(got, FAKE_RANK_HELLO);
}

/* ---- hellos -------------------------------------------------------------- */

/* The real one makes progress until it has hung up; 0 if it said something. */
static int hangs_up(bad_frame_context *s, int fd)
{
    int64_t deadline = oari_deadline(PATIENCE_MS);
    unsigned char byte;
    int got = -1;

    while (got < 0 && oari_now_ns() < deadline) {
        OK(tcp_progress(&s->real.mesh));
        got = fake_rank_recv(fd, &byte, 1, 0);
    }
    oari_fork_close(fd);
    return got == 0;
}

static int refuses(bad_frame_context *s, const void *hello, size_t bytes)
{
    int fd = fake_rank_connect(&s->other, 0);

    fake_rank_send(fd, hello, bytes);
    shutdown(fd, SHUT_WR);
    return hangs_up(s, fd);
}

static void put_sum_right(unsigned char head[OARI_FRAME_BYTES])
{
    uint32_t sum = oari_crc32c(head, 60);

    for (int i = 0; i < 4; i++)
        head[60 + i] = (unsigned char)(sum >> 8 * i);
}

/* With the checksum it had, and with the one it should have. */
static void a_hello_with_any_bit_changed_is_refused(void **state)
{
    unsigned char raw[FAKE_RANK_HELLO];
    bad_frame_context s;

    open_context(&s);
    for (int bit = 0; bit < FAKE_RANK_HELLO * 8; bit++)
        for (int right = 0; right < 2; right++) {
            fake_rank_hello(&s.other, 0, 1, raw);
            raw[bit / 8] ^= (unsigned char)(1 << bit % 8);
            if (right && bit < 60 * 8)
                put_sum_right(raw);
            assert_true(refuses(&s, raw, sizeof raw));
        }
    connect_again(&s);
    complete_hello(&s); /* as it would have been without them */
    close_context(&s);
}

static void a_hello_cut_anywhere_is_refused(void **state)
{
    unsigned char raw[FAKE_RANK_HELLO];
    bad_frame_context s;

    open_context(&s);
    for (size_t bytes = 0; bytes < sizeof raw; bytes++) {
        fake_rank_hello(&s.other, 0, 1, raw);
        assert_true(refuses(&s, raw, bytes));
    }
    connect_again(&s);
    complete_hello(&s);
    close_context(&s);
}

/* Sockets of a pair may be heard in another order than they called in. */
static void calls_count_once_in_any_order(void **state)
{
    unsigned char raw[3][FAKE_RANK_HELLO];
    int fd[3];
    bad_frame_context s;

    open_context(&s);
    for (int i = 0; i < 3; i++)
        fake_rank_hello(&s.other, 0, i, raw[i]);
    for (int i = 2; i >= 0; i--) {
        int64_t deadline = oari_deadline(PATIENCE_MS);
        fd[i] = fake_rank_connect(&s.other, 0);
        fake_rank_send(fd[i], raw[i], FAKE_RANK_HELLO);
        while (s.real.mesh.peer[1].conn[i] == NULL && oari_now_ns() < deadline)
            OK(tcp_progress(&s.real.mesh));
        assert_non_null(s.real.mesh.peer[1].conn[i]);
    }
    for (int i = 0; i < 3; i++)
        assert_true(refuses(&s, raw[i], FAKE_RANK_HELLO));
    close_context(&s);
    for (int i = 0; i < 3; i++)
        oari_fork_close(fd[i]);
}

/* ---- faults -------------------------------------------------------------- */

/* A fault as rank 1 would tell it over a connection of its own; the header says
 * that it is that fact. */
static void write_fault(bad_frame_context *s, oari_fact shown_as,
                        unsigned char *raw)
{
    tcp_conn *c = calloc(1, sizeof *c);
    oari_frame frame = { .kind = OARI_FRAME_BULLETIN,
                         .tag = (uint64_t)shown_as,
                         .context = s->other.mesh.context,
                         .sequence = 1,
                         .source = 1,
                         .bytes = TCP_SEALED };
    oari_fault fault = { .error = { .size = sizeof fault.error,
                                    .status = OAR_E_TIMEOUT,
                                    .rank = 1,
                                    .text = "enough of it" },
                         .evidence = OARI_EVIDENCE_STOPPED };
    unsigned char *sealed = raw + FAKE_RANK_HELLO + OARI_FRAME_BYTES;

    fake_rank_hello(&s->other, 0, TCP_BULLETIN_SLOT, raw);
    memcpy(c->hello, raw + OARI_FRAME_BYTES, TCP_HELLO);
    oari_frame_write(&frame, raw + FAKE_RANK_HELLO);
    oari_fault_write(&fault, sealed);
    c->sent = frame.sequence;
    OK(tcp_seal(&s->other.mesh, c, OARI_FACT_FAULT, sealed));
    free(c);
}

enum { FAULT = FAKE_RANK_HELLO + OARI_FRAME_BYTES + TCP_SEALED };

static int is_heard(bad_frame_context *s, const unsigned char raw[FAULT])
{
    int64_t deadline = oari_deadline(PATIENCE_MS);
    int fd = fake_rank_connect(&s->other, 0);
    unsigned char byte;
    oari_fault heard;

    fake_rank_send(fd, raw, FAULT);
    shutdown(fd, SHUT_WR);
    while (!tcp_published(&s->real.mesh, &heard) && oari_now_ns() < deadline &&
           fake_rank_recv(fd, &byte, 1, 0) != 0)
        OK(tcp_progress(&s->real.mesh));
    oari_fork_close(fd);
    return tcp_published(&s->real.mesh, &heard);
}

/* Also where all else goes by TLS: it is sealed by itself, and not readable. */
static void a_fault_is_accepted_only_as_it_was_sealed(void **state)
{
    unsigned char raw[FAULT];
    oari_fault heard;
    bad_frame_context s;

    for (int tls = 0; tls < 2; tls++) {
        setenv("OARSONG_WIRE", tls ? "tls" : "auth", 1);
        open_context(&s);
        for (int bit = 0; bit < TCP_SEALED * 8; bit += bit_step()) {
            write_fault(&s, OARI_FACT_FAULT, raw);
            raw[FAULT - TCP_SEALED + bit / 8] ^= (unsigned char)(1 << bit % 8);
            assert_false(is_heard(&s, raw));
        }
        write_fault(&s, OARI_FACT_FINAL_FAULT, raw);
        assert_false(is_heard(&s, raw));
        write_fault(&s, OARI_FACT_FAULT, raw);
        assert_null(memmem(raw, sizeof raw, "enough", 6));
        assert_true(is_heard(&s, raw));
        assert_true(tcp_published(&s.real.mesh, &heard));
        assert_string_equal(heard.error.text, "enough of it");
        assert_int_equal(heard.evidence, OARI_EVIDENCE_STOPPED);
        close_context(&s);
    }
    unsetenv("OARSONG_WIRE");
}

/* ---- heads --------------------------------------------------------------- */

static void a_right_message_is_taken(void **state)
{
    unsigned char raw[OARI_FRAME_BYTES + DATA];
    bad_frame_context s;

    memset(raw, 7, sizeof raw);
    open_context(&s);
    complete_hello(&s);
    write_push(&s, raw);
    fake_rank_send(s.fd, raw, sizeof raw);
    assert_int_equal(await_outcome(&s, PATIENCE_MS), TAKEN);
    assert_int_equal(s.receive.status, OAR_OK);
    assert_int_equal(s.got[DATA - 1], 7);
    close_context(&s);
}

static link_outcome send_changed(int bit, int right_sum)
{
    unsigned char raw[OARI_FRAME_BYTES + DATA] = { 0 };
    link_outcome came;
    bad_frame_context s;

    open_context(&s);
    complete_hello(&s);
    write_push(&s, raw);
    raw[bit / 8] ^= (unsigned char)(1 << bit % 8);
    if (right_sum)
        put_sum_right(raw);
    fake_rank_send(s.fd, raw, sizeof raw);
    shutdown(s.fd, SHUT_WR);
    came = await_outcome(&s, PATIENCE_MS);
    close_context(&s);
    return came;
}

static void
a_head_with_any_bit_changed_ends_the_group_and_names_the_rank(void **state)
{
    for (int bit = 0; bit < OARI_FRAME_BYTES * 8; bit++) {
        assert_int_equal(send_changed(bit, 0), ENDED);
        assert_int_equal(oar_last_error()->status, OAR_E_DATA);
        assert_non_null(strstr(oar_last_error_text(), "rank 1 sent"));
    }
}

/* A rank that means it: whatever comes of it, it comes soon, and nothing is
 * left. That its own message has another tag or size is its own affair. */
static void a_rank_that_sends_something_else_does_no_harm(void **state)
{
    leak_check before = leak_check_begin();

    for (int bit = 0; bit < 60 * 8; bit += (bit_step() + 3) / 4)
        assert_int_not_equal(send_changed(bit, 1), NOTHING);
    leak_check_end(&before);
}

/* ---- a wire that changes things ------------------------------------------ */

/* The other rank's TLS goes through this: what it says is passed on, with one
 * bit changed behind the first `after` bytes, counted from the handshake's end;
 * -1: none. */
typedef struct tls_relay {
    oari_stream stream; /* rank 1's, over pair[0] */
    int pair[2];
    int64_t bit;
    int counting;
    int64_t passed; /* bits since counting */
} tls_relay;

static void change(tls_relay *r, unsigned char *data, int bytes)
{
    int64_t at = r->bit - r->passed;

    if (!r->counting)
        return;
    if (r->bit >= 0 && at >= 0 && at < (int64_t)bytes * 8)
        data[at / 8] ^= (unsigned char)(1 << at % 8);
    r->passed += (int64_t)bytes * 8;
}

static void pass_on(bad_frame_context *s, tls_relay *r)
{
    unsigned char data[RECORDS];
    int got;

    while ((got = fake_rank_recv(r->pair[1], data, sizeof data, 0)) > 0) {
        change(r, data, got);
        fake_rank_send(s->fd, data, (size_t)got);
    }
    while ((got = fake_rank_recv(s->fd, data, sizeof data, 0)) > 0)
        fake_rank_send(r->pair[1], data, (size_t)got);
}

static int shake_hands(bad_frame_context *s, tls_relay *r, int timeout_ms)
{
    int64_t deadline = oari_deadline(timeout_ms);
    short want;
    int done = 0;

    while (!done && oari_now_ns() < deadline) {
        if (oari_stream_handshake(&r->stream, &done, &want) != OAR_OK)
            return 0;
        pass_on(s, r);
        OK(tcp_progress(&s->real.mesh));
    }
    return done;
}

static void open_relay(bad_frame_context *s, tls_relay *r)
{
    *r = (tls_relay){ .bit = -1 };
    assert_int_equal(socketpair(AF_UNIX,
                                SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                                r->pair),
                     0);
    r->stream = fake_rank_start_tls(&s->other, 0, r->pair[0]);
}

static void close_relay(tls_relay *r)
{
    oari_stream_close(&r->stream);
    close(r->pair[0]);
    close(r->pair[1]);
}

/* Hello, and a message, in two records. */
static void say_by_tls(bad_frame_context *s, tls_relay *r)
{
    unsigned char hello[FAKE_RANK_HELLO], push[OARI_FRAME_BYTES + DATA];
    struct iovec part[2] = { { hello, sizeof hello }, { push, sizeof push } };

    fake_rank_hello(&s->other, 0, 0, hello);
    memset(push, 9, sizeof push);
    write_push(s, push);
    assert_int_equal(oari_stream_write(&r->stream, part, 1), sizeof hello);
    assert_int_equal(oari_stream_write(&r->stream, part + 1, 1), sizeof push);
    pass_on(s, r);
}

/* Bits that crossed, if none was changed. */
static int64_t open_tls_relay(int64_t bit, link_outcome *came)
{
    bad_frame_context s;
    tls_relay r;

    open_context(&s);
    open_relay(&s, &r);
    assert_true(shake_hands(&s, &r, PATIENCE_MS));
    r.bit = bit;
    r.counting = 1;
    say_by_tls(&s, &r);
    *came = await_outcome(&s, PATIENCE_MS);
    if (*came == TAKEN)
        assert_true(s.got[0] == 9 && s.got[DATA - 1] == 9);
    close_relay(&r);
    close_context(&s);
    return r.passed;
}

/* As if no peer had connected. */
static int turned_away(bad_frame_context *s, tls_relay *r)
{
    int64_t deadline = oari_deadline(PATIENCE_MS);
    unsigned char byte;

    while (oari_now_ns() < deadline) {
        OK(tcp_progress(&s->real.mesh));
        if (fake_rank_recv(s->fd, &byte, 1, 0) == 0)
            return !s->receive.done && !s->real.mesh.peer[1].gone;
    }
    return 0;
}

static void a_wire_that_changes_a_bit_under_tls_breaks_the_link(void **state)
{
    link_outcome came;
    int64_t bits;

    setenv("OARSONG_WIRE", "tls", 1);
    bits = open_tls_relay(-1, &came);
    assert_int_equal(came, TAKEN);
    for (int64_t bit = (FAKE_RANK_HELLO + 22) * 8; bit < bits;
         bit += 16 * bit_step() + 1) {
        open_tls_relay(bit, &came);
        assert_int_equal(came, GONE);
    }
    unsetenv("OARSONG_WIRE");
}

static void a_hello_changed_under_tls_is_refused(void **state)
{
    setenv("OARSONG_WIRE", "tls", 1);
    for (int64_t bit = 0; bit < (FAKE_RANK_HELLO + 22) * 8; bit += bit_step()) {
        bad_frame_context s;
        tls_relay r;
        open_context(&s);
        open_relay(&s, &r);
        assert_true(shake_hands(&s, &r, PATIENCE_MS));
        r.bit = bit;
        r.counting = 1;
        say_by_tls(&s, &r);
        assert_true(turned_away(&s, &r));
        close_relay(&r);
        close_context(&s);
    }
    unsetenv("OARSONG_WIRE");
}

/* With that bit of what the caller says in its handshake changed (-1: none):
 * whether it comes about, and how many bits there are. */
static int admits_changed(int64_t bit, int64_t *bits)
{
    bad_frame_context s;
    tls_relay r;
    int admitted;

    open_context(&s);
    open_relay(&s, &r);
    r.bit = bit;
    r.counting = 1;
    admitted = shake_hands(&s, &r, bit < 0 ? PATIENCE_MS : SOON_MS);
    *bits = r.passed;
    if (admitted)
        say_by_tls(&s, &r);
    if (bit >= 0)
        shutdown(s.fd, SHUT_WR); /* it may wait for more: a changed length */
    admitted = bit < 0 ? await_outcome(&s, PATIENCE_MS) == TAKEN
                       : !turned_away(&s, &r);
    close_relay(&r);
    close_context(&s);
    return admitted;
}

/* All but the head of the first record, which says nothing that matters. */
static void a_handshake_changed_on_its_way_fails(void **state)
{
    int64_t bits, seen;

    setenv("OARSONG_WIRE", "tls", 1);
    assert_true(admits_changed(-1, &bits));
    assert_true(bits > 8 * 200);
    for (int64_t bit = 5 * 8; bit < bits; bit += bit_step())
        if (admits_changed(bit, &seen))
            fail_msg("admitted with bit %d changed", (int)bit);
    unsetenv("OARSONG_WIRE");
}

/* ---- notes --------------------------------------------------------------- */

static oar_status open_with(const oari_secret *theirs, int change_at)
{
    const char *key = REAL_RANK_PREFIX "/tcp/1";
    unsigned char *note;
    void *value;
    size_t bytes;
    real_rank real;
    oar_status status;

    real_rank_init(&real, theirs, "127.0.0.1:1");
    OK(oar_store_get(real.store, key, 0, &value, &bytes));
    note = value;
    if (change_at >= 0)
        note[change_at] ^= 1;
    OK(oar_store_set(real.store, key, value, bytes));
    oar_free(value);
    status = real_rank_open(&real, PATIENCE_MS);
    real_rank_free(&real);
    return status;
}

static void a_process_that_writes_to_the_store_cannot_forge_a_note(void **state)
{
    oari_secret another, none = { .known = 0 };

    OK(oari_secret_find(&secret));
    OK(oari_secret_make(&another));
    OK(open_with(&secret, -1));
    assert_fails_with(open_with(&another, -1), OAR_E_AUTH,
                      "another job secret");
    assert_fails_with(open_with(&none, -1), OAR_E_AUTH,
                      "rank 1 has no job secret");
    for (int i = 16; i < (int)sizeof(tcp_entry); i += bit_step())
        assert_int_equal(open_with(&secret, i), OAR_E_AUTH);
}

static void ranks_with_different_wires_get_an_error(void **state)
{
    oari_secret none = { .known = 0 };

    setenv("OARSONG_WIRE", "plain", 1);
    assert_fails_with(open_with(&secret, -1), OAR_E_AUTH,
                      "rank 1 has a job secret");
    OK(open_with(&none, -1));
    unsetenv("OARSONG_WIRE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hello_with_any_bit_changed_is_refused),
        cmocka_unit_test(a_hello_cut_anywhere_is_refused),
        cmocka_unit_test(calls_count_once_in_any_order),
        cmocka_unit_test(a_fault_is_accepted_only_as_it_was_sealed),
        cmocka_unit_test(a_right_message_is_taken),
        cmocka_unit_test(
            a_head_with_any_bit_changed_ends_the_group_and_names_the_rank),
        cmocka_unit_test(a_rank_that_sends_something_else_does_no_harm),
        cmocka_unit_test(a_wire_that_changes_a_bit_under_tls_breaks_the_link),
        cmocka_unit_test(a_hello_changed_under_tls_is_refused),
        cmocka_unit_test(a_handshake_changed_on_its_way_fails),
        cmocka_unit_test(
            a_process_that_writes_to_the_store_cannot_forge_a_note),
        cmocka_unit_test(ranks_with_different_wires_get_an_error),
    };
    char text[OARI_SECRET_HEX];

    if (oari_secret_make(&secret) != OAR_OK)
        return 1;
    oari_secret_text(&secret, text);
    setenv("OARSONG_SECRET", text, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
