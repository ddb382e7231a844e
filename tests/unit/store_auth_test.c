/* SPDX-License-Identifier: Apache-2.0 */
/* A store whose job has a secret: clients that know it are served, by proof or
 * by TLS; all others are refused, whatever they send and however many they are,
 * while an earlier client goes on working. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/log.h>
#include <oarsong/store.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "store/store_client.h"
#include "net/sock.h"
#include "support/raw_client.h"
#include "support/leak_check.h"
#include "support/last_error.h"

static const oari_secret ours = { .bytes = { 1, 2, 3 }, .known = 1 };
static const oari_secret theirs = { .bytes = { 1, 2, 4 }, .known = 1 };
static const oari_secret none = { .known = 0 };

enum { SHORT_MS = 300 /* for a caller that does not go on */ };

/* A server, and a client that is there before and after. */
typedef struct auth_server {
    oar_store_server *server;
    oar_store *client;
} auth_server;

static void set_wire(const char *wire)
{
    if (wire != NULL)
        setenv("OARSONG_WIRE", wire, 1);
    else
        unsetenv("OARSONG_WIRE");
}

static oar_status join(const auth_server *h, const char *wire,
                       const oari_secret *secret, oar_store **store)
{
    oar_status status;

    set_wire(wire);
    status = oari_store_connect(oar_store_server_address(h->server),
                                RAW_CLIENT_LIMIT_MS, secret, store);
    set_wire(NULL);
    return status;
}

static void start_server(auth_server *h, const char *wire,
                         const oari_secret *secret,
                         const oari_store_limits *limits)
{
    memset(h, 0, sizeof *h);
    set_wire(wire);
    OK(oari_store_serve("127.0.0.1:0", limits, secret, &h->server));
    OK(join(h, wire, secret, &h->client));
}

static oari_store_limits hurried(void)
{
    oari_store_limits limits = oari_store_default_limits;

    limits.handshake_ms = SHORT_MS;
    return limits;
}

static void assert_goes_on(const auth_server *h)
{
    int64_t before, after;

    OK(oar_store_add(h->client, "alive", 0, &before));
    OK(oar_store_add(h->client, "alive", 1, &after));
    assert_int_equal(after, before + 1);
}

static void stop_server(auth_server *h)
{
    assert_goes_on(h);
    oar_store_destroy(h->client);
    oar_store_server_destroy(h->server);
}

static void refuse(const auth_server *h, const char *wire,
                   const oari_secret *secret, const char *sentence)
{
    oar_store *store = NULL;

    assert_fails_with(join(h, wire, secret, &store), OAR_E_AUTH, sentence);
    assert_non_null(
        strstr(oar_last_error_text(), oar_store_server_address(h->server)));
    assert_null(store);
    assert_goes_on(h);
}

/* ---- which clients are served -------------------------------------------- */

static void clients_with_the_secret_get_in(void **state)
{
    static const char *const wires[][2] = {
        { NULL, NULL }, { "auto", "auth" }, { "tls", "tls" }, { "auth", "tls" }
    };
    leak_check before = leak_check_begin();

    for (int i = 0; i < 4; i++) {
        auth_server h;
        oar_store *other = NULL;
        start_server(&h, wires[i][0], &ours, &oari_store_default_limits);
        OK(join(&h, wires[i][1], &ours, &other));
        OK(oar_store_set(other, "key", "value", 5));
        OK(oar_store_wait(h.client, 1, &(const char *){ "key" }, 0));
        oar_store_destroy(other);
        stop_server(&h);
    }
    leak_check_end(&before);
}

static void clients_without_the_secret_are_refused_with_advice(void **state)
{
    auth_server h;

    start_server(&h, NULL, &ours, &oari_store_default_limits);
    refuse(&h, NULL, &none, "OARSONG_SECRET_FILE");
    assert_non_null(strstr(oar_last_error_text(), "oarsong run"));
    refuse(&h, NULL, &theirs, "another job");
    refuse(&h, "plain", &ours, "OARSONG_WIRE=plain");
    stop_server(&h);
}

static void
a_server_without_a_secret_is_refused_by_those_who_have_one(void **state)
{
    auth_server h;

    start_server(&h, NULL, &none, &oari_store_default_limits);
    refuse(&h, NULL, &ours, "OARSONG_SECRET_FILE");
    refuse(&h, "tls", &ours, "TLS");
    stop_server(&h);
}

static void tls_and_plain_do_not_connect(void **state)
{
    auth_server h;

    start_server(&h, "tls", &ours, &oari_store_default_limits);
    refuse(&h, "auth", &ours, "asks for TLS");
    refuse(&h, "plain", &none, "asks for TLS");
    refuse(&h, "tls", &theirs, "TLS");
    stop_server(&h);
    start_server(&h, "plain", &ours, &oari_store_default_limits);
    refuse(&h, "tls", &ours, "TLS");
    refuse(&h, "auth", &ours, "OARSONG_WIRE");
    stop_server(&h);
}

static void a_refusal_comes_at_once(void **state)
{
    int64_t start = oari_now_ns();
    auth_server h;

    start_server(&h, NULL, &ours, &oari_store_default_limits);
    refuse(&h, NULL, &theirs, "secret");
    stop_server(&h);
    start_server(&h, "tls", &ours, &oari_store_default_limits);
    refuse(&h, "tls", &theirs, "TLS");
    stop_server(&h);
    assert_true(oari_now_ns() - start < RAW_CLIENT_LIMIT_MS * INT64_C(500000));
}

typedef struct log_lines {
    int count;
    char text[512];
} log_lines;

static void note_line(void *arg, oar_log_level level, const char *text)
{
    log_lines *l = arg;

    l->count++;
    snprintf(l->text, sizeof l->text, "%s", text);
}

/* Refused clients must not be able to fill a disk with log lines. */
static void refusals_are_logged_once(void **state)
{
    log_lines l = { 0 };
    auth_server h;

    start_server(&h, NULL, &ours, &oari_store_default_limits);
    oar_log_to(note_line, &l, OAR_LOG_WARN);
    for (int i = 0; i < 5; i++)
        refuse(&h, NULL, &none, "secret");
    stop_server(&h);
    oar_log_to(NULL, NULL, OAR_LOG_WARN);
    assert_int_equal(l.count, 1);
    assert_non_null(strstr(l.text, "127.0.0.1"));
}

/* A server that was asked to listen for other hosts does so, and says that it
 * will refuse them; clients of this host are served at any address. */
static void a_server_without_a_secret_is_for_this_host(void **state)
{
    char own[OARI_SOCK_TEXT];
    oar_store *store = NULL;
    log_lines l = { 0 };
    auth_server h = { 0 };

    setenv("OARSONG_SOCKET_IFNAME", "^lo", 1);
    if (oari_sock_local(NULL, own) != OAR_OK) {
        unsetenv("OARSONG_SOCKET_IFNAME");
        print_message("skipped: this host has only loopback\n");
        skip();
    }
    unsetenv("OARSONG_SOCKET_IFNAME");
    oar_log_to(note_line, &l, OAR_LOG_WARN);
    OK(oari_store_serve(own, &oari_store_default_limits, &none, &h.server));
    oar_log_to(NULL, NULL, OAR_LOG_WARN);
    assert_int_equal(l.count, 1);
    assert_non_null(strstr(l.text, "from this host only"));
    assert_non_null(strstr(l.text, "OARSONG_SECRET_FILE"));
    OK(join(&h, NULL, &none, &store));
    oar_store_destroy(store);
    OK(oari_store_refused(h.server));
    oar_store_server_destroy(h.server);
}

static void a_server_remembers_the_client_it_refused_first(void **state)
{
    auth_server h;

    start_server(&h, NULL, &ours, &oari_store_default_limits);
    OK(oari_store_refused(h.server));
    OK(oari_store_refused(NULL));
    refuse(&h, NULL, &none, "secret");
    assert_fails_with(oari_store_refused(h.server), OAR_E_AUTH, "127.0.0.1:");
    stop_server(&h);
}

/* ---- children ------------------------------------------------------------ */

static void ask_something(oari_store_client *link, char port[OARI_SOCK_TEXT])
{
    oari_wire_message add = { .head.kind = OARI_WIRE_ADD,
                              .amount = 1,
                              .key = { "n", 1 } };
    oari_request_limits patience = { RAW_CLIENT_LIMIT_MS,
                                     oari_deadline(RAW_CLIENT_LIMIT_MS), 0, 0 };
    oari_wire_message reply;

    OK(oari_store_client_ask(link, &add, &patience, &reply));
    OK(oari_sock_name(link->stream.fd, port));
}

/* A child that gives up what it inherited must not say goodbye in the name of
 * its parent, whose connection would have to be made again. */
static void a_child_does_not_end_its_parents_connection(void **state)
{
    char before[OARI_SOCK_TEXT], after[OARI_SOCK_TEXT];
    oari_store_client *link;
    oari_trust trust;
    auth_server h;
    pid_t child;
    int how;

    start_server(&h, "tls", &ours, &oari_store_default_limits);
    set_wire("tls");
    OK(oari_trust_make(&ours, &trust));
    set_wire(NULL);
    OK(oari_store_client_create(oar_store_server_address(h.server), &trust,
                                &link));
    ask_something(link, before);
    if ((child = fork()) == 0) {
        link->stream.fd = -1;
        oari_store_client_destroy(link);
        oar_store_destroy(h.client);
        oar_store_server_destroy(h.server);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    ask_something(link, after);
    assert_string_equal(before, after);
    oari_store_client_destroy(link);
    stop_server(&h);
}

/* A connection to the queue of a server that goes away is reset, and then has
 * no other end: that is not another host, which would be refused for good. */
static void a_reset_connection_is_not_one_to_another_host(void **state)
{
    struct pollfd wait = { -1, 0, 0 };
    char address[OARI_SOCK_TEXT];
    oari_trust trust;
    oari_wire wire;
    int listener, done = 0;

    set_wire(NULL);
    OK(oari_trust_make(&none, &trust));
    OK(oari_sock_listen("127.0.0.1:0", 1, &listener));
    OK(oari_sock_name(listener, address));
    OK(oari_sock_connect_again(address, 0, &wait.fd));
    while (!done)
        OK(oari_sock_connected(wait.fd, address, &done));
    OK(oari_trust_wire(&trust, wait.fd, &wire));
    oari_fork_close(listener);
    assert_int_equal(poll(&wait, 1, RAW_CLIENT_LIMIT_MS), 1);
    assert_int_equal(oari_trust_wire(&trust, wait.fd, &wire), OAR_E_CLOSED);
    oari_fork_close(wait.fd);
}

typedef struct busy_client {
    const auth_server *server_of;
    _Atomic int *done;
} busy_client;

/* New connections and old ones, without end. */
static void *stay_busy(void *arg)
{
    const busy_client *b = arg;

    for (;;) {
        oar_store *store = NULL;
        if (oari_store_connect(oar_store_server_address(b->server_of->server),
                               RAW_CLIENT_LIMIT_MS, &ours, &store) != OAR_OK ||
            oar_store_add(store, "busy", 1, NULL) != OAR_OK)
            _exit(2);
        oar_store_destroy(store);
        atomic_fetch_add(b->done, 1);
    }
    return NULL;
}

/* Leaves by exit, with all that the C library does then. */
static void exit_in_the_middle(int times)
{
    static _Atomic int done;
    static auth_server h;
    busy_client b = { &h, &done };
    pthread_t thread;

    set_wire("tls");
    if (oari_store_serve("127.0.0.1:0", &oari_store_default_limits, &ours,
                         &h.server) != OAR_OK ||
        pthread_create(&thread, NULL, stay_busy, &b) != 0)
        _exit(3);
    while (atomic_load(&done) < times)
        sched_yield();
    exit(0);
}

/* The thread of a server, and others that have a connection, may be in the
 * midst of TLS when the program ends. */
static void a_program_may_exit_with_a_busy_server(void **state)
{
    for (int times = 1; times <= 10; times++) {
        pid_t child;
        int how;
        if ((child = fork()) == 0)
            exit_in_the_middle(times);
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFEXITED(how));
        assert_int_equal(WEXITSTATUS(how), 0);
    }
}

/* ---- handshakes by hand -------------------------------------------------- */

typedef struct handshake_frames {
    oari_trust trust;
    oari_auth auth;
    oari_wire_message hello, proof;
} handshake_frames;

static void prepare(handshake_frames *g, const oari_secret *secret)
{
    memset(g, 0, sizeof *g);
    OK(oari_trust_make(secret, &g->trust));
    g->hello.head.kind = OARI_WIRE_HELLO;
    g->hello.id = 77;
    g->proof.head.kind = OARI_WIRE_PROOF;
    OK(oari_auth_open(&g->auth, OARI_WIRE_AUTH, &g->hello));
}

static size_t frame_of(const oari_wire_message *m, unsigned char *frame)
{
    oari_wire_write(m, frame);
    return oari_wire_bytes(m);
}

/* The server's proof, sent back as the client's own. */
static void a_proof_that_is_sent_back_is_refused(void **state)
{
    oari_wire_message welcome, reply;
    unsigned char echo[OARI_MAC_BYTES];
    handshake_frames g;
    auth_server h;
    int fd;

    start_server(&h, NULL, &ours, &oari_store_default_limits);
    prepare(&g, &none);
    g.hello.method = OARI_AUTH_HMAC;
    fd = raw_client_connect(h.server);
    raw_client_send(fd, &g.hello);
    raw_client_recv(fd, &welcome);
    assert_int_equal(welcome.head.status, OAR_OK);
    assert_int_equal(welcome.value.bytes, OARI_MAC_BYTES);
    memcpy(echo, welcome.value.data, sizeof echo);
    g.proof.value = (oari_bytes){ echo, sizeof echo };
    raw_client_send(fd, &g.proof);
    raw_client_recv(fd, &reply);
    assert_int_equal(reply.head.status, OAR_E_AUTH);
    assert_true(raw_client_is_closed(fd));
    oari_fork_close(fd);
    stop_server(&h);
}

/* What is asked for before one has proved oneself is not done. */
static void nothing_is_done_for_an_unauthenticated_client(void **state)
{
    oari_wire_message set = { .head = { .kind = OARI_WIRE_SET, .number = 1 },
                              .key = { "stolen", 6 },
                              .value = { "v", 1 } };
    oari_wire_message welcome;
    void *value;
    size_t bytes;
    handshake_frames g;
    auth_server h;

    start_server(&h, NULL, &ours, &oari_store_default_limits);
    for (int greets = 0; greets < 2; greets++) {
        int fd = raw_client_connect(h.server);
        prepare(&g, &ours);
        if (greets) {
            raw_client_send(fd, &g.hello);
            raw_client_recv(fd, &welcome);
        }
        raw_client_send(fd, &set);
        assert_true(raw_client_is_closed(fd));
        oari_fork_close(fd);
    }
    assert_int_equal(oar_store_get(h.client, "stolen", 0, &value, &bytes),
                     OAR_E_TIMEOUT);
    stop_server(&h);
}

/* The bytes of a handshake that was good once. */
static void a_handshake_cannot_be_replayed(void **state)
{
    unsigned char hello[512], proof[512];
    size_t hello_bytes, proof_bytes;
    oari_wire_message reply;
    handshake_frames g;
    auth_server h;

    start_server(&h, NULL, &ours, &oari_store_default_limits);
    prepare(&g, &ours);
    for (int again = 0; again < 3; again++) {
        int fd = raw_client_connect(h.server);
        hello_bytes = frame_of(&g.hello, hello);
        raw_client_send_bytes(fd, hello, hello_bytes);
        raw_client_recv(fd, &reply);
        assert_int_equal(reply.head.status, OAR_OK);
        if (again == 0) {
            OK(oari_auth_answer(&g.auth, &g.trust, &reply, &g.proof));
            proof_bytes = frame_of(&g.proof, proof);
        }
        raw_client_send_bytes(fd, proof, proof_bytes);
        raw_client_recv(fd, &reply);
        assert_int_equal(reply.head.status, again == 0 ? OAR_OK : OAR_E_AUTH);
        if (again != 0)
            assert_true(raw_client_is_closed(fd));
        oari_fork_close(fd);
    }
    stop_server(&h);
}

/* A handshake in which `change` of the bytes that the client sends is done to
 * them, as a client sees it: whether it is let in. */
typedef struct changed_bit {
    int frame; /* 0: the hello, 1: the proof */
    size_t bit;
} changed_bit;

static int read_or_cut(int fd, oari_wire_message *m, uint64_t number, int kind)
{
    static unsigned char body[1024];
    unsigned char head_bytes[OARI_WIRE_HEADER_BYTES];
    oari_wire_header head;

    for (size_t have = 0, wanted = sizeof head_bytes; have < wanted;) {
        ssize_t got;
        raw_client_await(fd, POLLIN);
        if ((got = recv(fd, head_bytes + have, wanted - have, 0)) <= 0)
            return 0;
        have += (size_t)got;
    }
    assert_int_equal(oari_wire_read_header(head_bytes, &head), OAR_OK);
    raw_client_recv_bytes(fd, body, head.bytes);
    assert_int_equal(oari_wire_read(&head, body, m), OAR_OK);
    return head.status == OAR_OK && head.number == number &&
           head.kind == (kind | OARI_WIRE_REPLY);
}

static int is_let_in(const auth_server *h, const changed_bit *c, size_t bits[2])
{
    unsigned char frame[512];
    oari_wire_message reply;
    int fd = raw_client_connect(h->server), in;
    handshake_frames g;

    prepare(&g, &ours);
    bits[0] = 8 * frame_of(&g.hello, frame);
    if (c->frame == 0)
        frame[c->bit / 8] ^= (unsigned char)(1 << c->bit % 8);
    raw_client_send_bytes(fd, frame, bits[0] / 8);
    in = read_or_cut(fd, &reply, 0, OARI_WIRE_HELLO) &&
         oari_auth_answer(&g.auth, &g.trust, &reply, &g.proof) == OAR_OK;
    if (in) {
        bits[1] = 8 * frame_of(&g.proof, frame);
        if (c->frame == 1)
            frame[c->bit / 8] ^= (unsigned char)(1 << c->bit % 8);
        raw_client_send_bytes(fd, frame, bits[1] / 8);
        in = read_or_cut(fd, &reply, 0, OARI_WIRE_PROOF);
    }
    oari_fork_close(fd);
    return in;
}

static void every_bit_of_a_handshake_counts(void **state)
{
    oari_store_limits limits = hurried();
    size_t bits[2] = { 8, 8 };
    auth_server h;

    start_server(&h, NULL, &ours, &oari_store_default_limits);
    assert_true(is_let_in(&h, &(changed_bit){ 2, 0 }, bits));
    stop_server(&h);
    start_server(&h, NULL, &ours, &limits);
    for (changed_bit c = { 0, 0 }; c.frame < 2; c.frame++)
        for (c.bit = 0; c.bit < bits[c.frame]; c.bit++)
            if (is_let_in(&h, &c, bits))
                fail_msg("bit %zu of frame %d does not matter", c.bit, c.frame);
    stop_server(&h);
}

/* Cut off at each byte, and left alone there: the server does not mind. */
static void a_handshake_may_end_anywhere(void **state)
{
    unsigned char frame[512];
    size_t bytes = 1;
    handshake_frames g;
    auth_server h;

    start_server(&h, NULL, &ours, &oari_store_default_limits);
    for (int proving = 0; proving < 2; proving++)
        for (size_t cut = 0; cut < bytes; cut++) {
            int fd = raw_client_connect(h.server);
            oari_wire_message reply;
            prepare(&g, &ours);
            bytes = frame_of(&g.hello, frame);
            if (proving) {
                raw_client_send_bytes(fd, frame, bytes);
                raw_client_recv(fd, &reply);
                OK(oari_auth_answer(&g.auth, &g.trust, &reply, &g.proof));
                bytes = frame_of(&g.proof, frame);
            }
            raw_client_send_bytes(fd, frame, cut);
            shutdown(fd, SHUT_WR);
            assert_true(raw_client_is_closed(fd));
            oari_fork_close(fd);
        }
    stop_server(&h);
}

/* ---- TLS by hand --------------------------------------------------------- */

/* What a client says first. */
static size_t first_flight(unsigned char *flight, size_t room)
{
    oari_stream stream;
    oari_trust trust;
    int fd[2], done;
    short want;
    ssize_t bytes;

    OK(oari_trust_make(&ours, &trust));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd),
                     0);
    OK(oari_trust_start_tls(&trust, fd[0], &stream));
    OK(oari_stream_handshake(&stream, &done, &want));
    bytes = recv(fd[1], flight, room, 0);
    assert_true(bytes > 64);
    oari_stream_close(&stream);
    close(fd[0]);
    close(fd[1]);
    return (size_t)bytes;
}

/* Says it, and waits to be cut off: it cannot go on, not knowing the key of
 * that hello. Whether the server went as far as to answer it. */
static int say_and_be_cut(const auth_server *h, const void *bytes, size_t count)
{
    enum { HANDSHAKE = 22 };
    int fd = raw_client_connect(h->server);
    unsigned char answer[4096];
    int answered = 0;
    ssize_t got;

    raw_client_send_bytes(fd, bytes, count);
    do {
        raw_client_await(fd, POLLIN);
        got = recv(fd, answer, sizeof answer, 0);
        answered |= got > 0 && answer[0] == HANDSHAKE;
    } while (got > 0);
    oari_fork_close(fd);
    return answered;
}

/* The first flight of a good client, again: the server answers it, as it must,
 * but a client that cannot go on is not served. */
static void a_replayed_tls_client_gets_nowhere(void **state)
{
    oari_store_limits limits = hurried();
    unsigned char flight[2048];
    size_t bytes = first_flight(flight, sizeof flight);
    auth_server h;

    start_server(&h, "tls", &ours, &limits);
    assert_true(say_and_be_cut(&h, flight, bytes));
    assert_true(say_and_be_cut(&h, flight, bytes));
    stop_server(&h);
}

/* All but the record's version, which is not checked. Bytes that make the
 * server wait for more are waited for briefly. */
static void every_bit_of_a_tls_hello_counts(void **state)
{
    oari_store_limits limits = hurried();
    unsigned char flight[2048];
    size_t bytes = first_flight(flight, sizeof flight);
    auth_server h;

    start_server(&h, "tls", &ours, &limits);
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        if (bit / 8 == 1 || bit / 8 == 2)
            continue;
        flight[bit / 8] ^= (unsigned char)(1 << bit % 8);
        if (say_and_be_cut(&h, flight, bytes))
            fail_msg("bit %zu does not matter", bit);
        flight[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    stop_server(&h);
}

static void a_tls_hello_may_end_anywhere(void **state)
{
    unsigned char flight[2048];
    size_t bytes = first_flight(flight, sizeof flight);
    auth_server h;

    start_server(&h, "tls", &ours, &oari_store_default_limits);
    for (size_t cut = 0; cut < bytes; cut++) {
        int fd = raw_client_connect(h.server);
        raw_client_send_bytes(fd, flight, cut);
        shutdown(fd, SHUT_WR);
        assert_true(raw_client_is_closed(fd));
        oari_fork_close(fd);
    }
    stop_server(&h);
}

/* ---- false servers ------------------------------------------------------- */

typedef struct fake_server {
    int listener;
    size_t body; /* of its answer, announced */
    int proved;  /* it was shown a proof */
    pthread_t thread;
} fake_server;

/* Answers a hello with a proof that it made up, and hopes for one. */
static void *run_fake_server(void *arg)
{
    fake_server *p = arg;
    unsigned char junk[OARI_MAC_BYTES] = { 9 }, frame[512];
    oari_wire_message hello, welcome = { .id = 5,
                                         .method = OARI_AUTH_HMAC,
                                         .expected = { junk, sizeof junk },
                                         .value = { junk, sizeof junk } };
    size_t bytes;
    int fd;

    raw_client_await(p->listener, POLLIN);
    if (oari_sock_accept(p->listener, &fd) != OAR_OK || fd < 0)
        return NULL;
    raw_client_recv(fd, &hello);
    welcome.head.kind = OARI_WIRE_HELLO | OARI_WIRE_REPLY;
    bytes = frame_of(&welcome, frame);
    if (p->body != 0)
        for (int i = 0; i < 4; i++)
            frame[8 + i] = (unsigned char)(p->body >> 8 * i);
    raw_client_send_bytes(fd, frame, bytes);
    raw_client_await(fd, POLLIN);
    p->proved = recv(fd, frame, sizeof frame, 0) > 0;
    oari_fork_close(fd);
    return NULL;
}

static void connect_to_fake_server(fake_server *p, oar_status status,
                                   const char *text)
{
    char address[OARI_SOCK_TEXT];
    oar_store *store = NULL;

    OK(oari_sock_listen("127.0.0.1:0", 5, &p->listener));
    OK(oari_sock_name(p->listener, address));
    assert_int_equal(pthread_create(&p->thread, NULL, run_fake_server, p), 0);
    assert_fails_with(
        oari_store_connect(address, RAW_CLIENT_LIMIT_MS, &ours, &store), status,
        text);
    pthread_join(p->thread, NULL);
    oari_fork_close(p->listener);
    assert_false(p->proved);
}

static void a_false_server_is_shown_no_proof(void **state)
{
    fake_server p = { 0 };

    connect_to_fake_server(&p, OAR_E_AUTH, "does not know this job's secret");
}

/* Nor is memory taken on its word. */
static void a_false_server_may_not_announce_much(void **state)
{
    fake_server p = { .body = 1 << 20 };

    connect_to_fake_server(&p, OAR_E_DATA, "1048576");
}

/* ---- many ---------------------------------------------------------------- */

static size_t resident_bytes(void)
{
    unsigned long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &all, &resident), 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* What it may grow by: sanitizers keep what is freed. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { GROWTH_MIB = 512 };
#else
enum { GROWTH_MIB = 96 };
#endif

/* So many callers say this and no more, and stay. */
static void open_many_connections(const char *wire, int callers,
                                  const void *said, size_t bytes)
{
    oari_store_limits limits = oari_store_default_limits;
    size_t before = resident_bytes(), during;
    int *fd = calloc((size_t)callers, sizeof *fd);
    oar_store *late = NULL;
    auth_server h;

    assert_non_null(fd);
    limits.grace_ms = 20;
    start_server(&h, wire, &ours, &limits);
    for (int i = 0; i < callers; i++) {
        fd[i] = raw_client_connect(h.server);
        if (bytes != 0)
            send(fd[i], said, bytes, MSG_NOSIGNAL);
        if (i % 1000 == 999)
            assert_goes_on(&h);
    }
    during = resident_bytes();
    OK(join(&h, wire, &ours, &late)); /* and a new one gets in */
    OK(oar_store_set(late, "late", "", 0));
    oar_store_destroy(late);
    for (int i = 0; i < callers; i++)
        oari_fork_close(fd[i]);
    free(fd);
    print_message("%d callers: %zu KiB more\n", callers,
                  during > before ? (during - before) / 1024 : 0);
    assert_true(during < before + ((size_t)GROWTH_MIB << 20));
    stop_server(&h);
}

static void ten_thousand_silent_connections_keep_no_client_out(void **state)
{
    raw_client_need_descriptors(10000 + 1024 + 100);
    open_many_connections(NULL, 10000, "", 0);
}

static void thousands_of_half_handshakes_keep_no_client_out(void **state)
{
    unsigned char said[2048];
    handshake_frames g;
    size_t bytes;

    raw_client_need_descriptors(3000 + 1024 + 100);
    prepare(&g, &ours);
    bytes = frame_of(&g.hello, said);
    open_many_connections(NULL, 3000, said, bytes - 1);
    bytes = first_flight(said, sizeof said);
    open_many_connections("tls", 3000, said, bytes - 1);
    open_many_connections("tls", 1500, said, bytes);
}

/* ---- without memory ------------------------------------------------------ */

typedef struct auth_attempt {
    const auth_server *server_of;
    const char *wire;
} auth_attempt;

static oar_status join_without(void *arg)
{
    const auth_attempt *a = arg;
    oar_store *store = NULL;
    oar_status status = join(a->server_of, a->wire, &ours, &store);

    oar_store_destroy(store);
    return status;
}

/* Client and server are one process here: where the server's allocation is the
 * one that fails, the client comes again. */
static void without_memory_no_other_client_is_harmed(void **state)
{
    static const char *const wire[] = { "auth", "tls" };

    for (int i = 0; i < 2; i++) {
        auth_server h;
        start_server(&h, wire[i], &ours, &oari_store_default_limits);
        for (uint64_t n = 1; n < 30; n++) {
            oar_status status;
            oar_memory_fail_after(n);
            status = join_without(&(auth_attempt){ &h, wire[i] });
            oar_memory_fail_after(0);
            if (status != OAR_OK)
                assert_int_equal(status, OAR_E_NOMEM);
            assert_goes_on(&h);
        }
        stop_server(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_with_the_secret_get_in),
        cmocka_unit_test(clients_without_the_secret_are_refused_with_advice),
        cmocka_unit_test(
            a_server_without_a_secret_is_refused_by_those_who_have_one),
        cmocka_unit_test(tls_and_plain_do_not_connect),
        cmocka_unit_test(a_refusal_comes_at_once),
        cmocka_unit_test(refusals_are_logged_once),
        cmocka_unit_test(a_server_without_a_secret_is_for_this_host),
        cmocka_unit_test(a_server_remembers_the_client_it_refused_first),
        cmocka_unit_test(a_child_does_not_end_its_parents_connection),
        cmocka_unit_test(a_reset_connection_is_not_one_to_another_host),
        cmocka_unit_test(a_program_may_exit_with_a_busy_server),
        cmocka_unit_test(a_proof_that_is_sent_back_is_refused),
        cmocka_unit_test(nothing_is_done_for_an_unauthenticated_client),
        cmocka_unit_test(a_handshake_cannot_be_replayed),
        cmocka_unit_test(every_bit_of_a_handshake_counts),
        cmocka_unit_test(a_handshake_may_end_anywhere),
        cmocka_unit_test(a_replayed_tls_client_gets_nowhere),
        cmocka_unit_test(every_bit_of_a_tls_hello_counts),
        cmocka_unit_test(a_tls_hello_may_end_anywhere),
        cmocka_unit_test(a_false_server_is_shown_no_proof),
        cmocka_unit_test(a_false_server_may_not_announce_much),
        cmocka_unit_test(ten_thousand_silent_connections_keep_no_client_out),
        cmocka_unit_test(thousands_of_half_handshakes_keep_no_client_out),
        cmocka_unit_test(without_memory_no_other_client_is_harmed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
