/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP store: what its server survives and what its clients repeat. What all
 * kinds of store promise is in store_test.c. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

#include <oarsong/store.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "store/store_client.h"
#include "store/store_server.h"
#include "net/sock.h"
#include "support/raw_client.h"
#include "support/leak_check.h"
#include "support/last_error.h"

enum { PATIENCE_MS = 20000 };

static oar_store_server *serve_with(const oari_store_limits *limits)
{
    oari_secret none = { .known = 0 };
    oar_store_server *server = NULL;

    assert_int_equal(oari_store_serve("127.0.0.1:0", limits, &none, &server),
                     OAR_OK);
    return server;
}

static oar_store_server *serve(void)
{
    return serve_with(&oari_store_default_limits);
}

static oar_store *join(const oar_store_server *server)
{
    oar_store *store = NULL;

    assert_int_equal(oar_store_create_tcp(oar_store_server_address(server),
                                          PATIENCE_MS, &store),
                     OAR_OK);
    return store;
}

static void assert_works(oar_store *store)
{
    int64_t before, after;

    assert_int_equal(oar_store_add(store, "alive", 0, &before), OAR_OK);
    assert_int_equal(oar_store_add(store, "alive", 1, &after), OAR_OK);
    assert_int_equal(after, before + 1);
}

/* ---- connections by hand ------------------------------------------------- */

static int connect_as(const oar_store_server *server, uint64_t id)
{
    int fd = raw_client_connect(server);
    oari_wire_message hello = { .head.kind = OARI_WIRE_HELLO, .id = id };
    oari_wire_message proof = { .head.kind = OARI_WIRE_PROOF }, reply;

    raw_client_send(fd, &hello);
    raw_client_recv(fd, &reply);
    assert_int_equal(reply.head.status, OAR_OK);
    raw_client_send(fd, &proof);
    raw_client_recv(fd, &reply);
    assert_int_equal(reply.head.status, OAR_OK);
    return fd;
}

static oari_wire_message request(int kind, uint64_t number, const char *key)
{
    return (oari_wire_message){ .head = { .kind = kind, .number = number },
                                .key = { key, strlen(key) } };
}

/* ---- making and ending --------------------------------------------------- */

static void a_server_and_its_clients_leave_nothing_behind(void **state)
{
    leak_check before = leak_check_begin();
    oar_store_server *server = serve();
    oar_store *store = join(server), *other = join(server);
    const char *address = oar_store_server_address(server);

    assert_memory_equal(address, "127.0.0.1:", 10);
    assert_string_equal(oar_store_server_address(NULL), "");
    assert_works(store);
    assert_works(other);
    oar_store_destroy(other);
    oar_store_server_destroy(server);
    oar_store_destroy(store);
    oar_store_server_destroy(NULL);
    leak_check_end(&before);
}

static void a_server_binds_what_it_is_asked_to(void **state)
{
    oar_store_server *server = serve(), *other = NULL;

    assert_fails_with(oar_store_serve(oar_store_server_address(server), &other),
                      OAR_E_SYSTEM, oar_store_server_address(server));
    assert_fails_with(oar_store_serve("192.0.2.1:0", &other), OAR_E_SYSTEM,
                      "192.0.2.1:0");
    assert_fails_with(oar_store_serve("somewhere", &other), OAR_E_ARG,
                      "somewhere");
    assert_null(other);
    oar_store_server_destroy(server);
}

static void a_store_that_is_nowhere_is_named(void **state)
{
    leak_check before = leak_check_begin();
    char address[OARI_SOCK_TEXT];
    oar_store *store = NULL;
    oar_store_server *server = serve();
    int64_t start = oari_now_ns();

    snprintf(address, sizeof address, "%s", oar_store_server_address(server));
    oar_store_server_destroy(server);
    assert_fails_with(oar_store_create_tcp(address, 0, &store), OAR_E_CLOSED,
                      address);
    assert_fails_with(oar_store_create_tcp(address, 50, &store), OAR_E_CLOSED,
                      "refused");
    assert_true(oari_now_ns() - start >= 50000000);
    assert_fails_with(oar_store_create_tcp("nonsense", -1, &store), OAR_E_ARG,
                      "nonsense");
    assert_null(store);
    leak_check_end(&before);
}

typedef struct late_server {
    const char *address;
    int listener; /* holds the port until the server comes */
    oar_store_server *server;
    oar_status status;
} late_server;

static void *serve_late(void *arg)
{
    late_server *l = arg;

    oari_fork_close(l->listener);
    l->status = oar_store_serve(l->address, &l->server);
    return NULL;
}

/* The listener takes connections and never answers; when it goes, they are
 * reset, and the client tries again. */
static void a_client_waits_for_its_server(void **state)
{
    char address[OARI_SOCK_TEXT];
    late_server l = { .address = address };
    oar_store *store = NULL;
    pthread_t thread;

    assert_int_equal(oari_sock_listen("127.0.0.1:0", 5, &l.listener), OAR_OK);
    assert_int_equal(oari_sock_name(l.listener, address), OAR_OK);
    assert_int_equal(pthread_create(&thread, NULL, serve_late, &l), 0);
    assert_int_equal(oar_store_create_tcp(address, PATIENCE_MS, &store),
                     OAR_OK);
    pthread_join(thread, NULL);
    assert_int_equal(l.status, OAR_OK);
    assert_works(store);
    oar_store_destroy(store);
    oar_store_server_destroy(l.server);
}

/* ---- lost connections ---------------------------------------------------- */

/* A new server where the old one was. */
static void restart(oar_store_server **server)
{
    char address[OARI_SOCK_TEXT];

    snprintf(address, sizeof address, "%s", oar_store_server_address(*server));
    oar_store_server_destroy(*server);
    *server = NULL;
    assert_int_equal(oar_store_serve(address, server), OAR_OK);
}

static void a_client_outlives_its_server(void **state)
{
    oar_store_server *server = serve();
    oar_store *store = join(server);

    for (int i = 0; i < 5; i++) {
        int64_t sum = 0;
        assert_works(store);
        restart(&server);
        assert_int_equal(oar_store_add(store, "fresh", 1, &sum), OAR_OK);
        assert_int_equal(sum, 1);
    }
    oar_store_destroy(store);
    oar_store_server_destroy(server);
}

/* Waits until the server has this many requests parked under the key. */
static void await_parked(oar_store *store, int parked)
{
    int64_t seen = 0;

    while (seen < parked)
        assert_int_equal(oar_store_add(store, "parking", 0, &seen), OAR_OK);
}

typedef struct waiting_client {
    oar_store *store;
    oar_status status;
    char text[32];
    pthread_t thread;
} waiting_client;

static void *wait_for_it(void *arg)
{
    waiting_client *w = arg;
    void *value = NULL;
    size_t bytes = 0;

    w->status = oar_store_add(w->store, "parking", 1, NULL);
    if (w->status == OAR_OK)
        w->status = oar_store_get(w->store, "it", -1, &value, &bytes);
    if (w->status == OAR_OK)
        snprintf(w->text, sizeof w->text, "%s", (char *)value);
    oar_free(value);
    return NULL;
}

static void a_waiting_client_goes_on_waiting_at_a_new_server(void **state)
{
    oar_store_server *server = serve();
    oar_store *store = join(server);
    waiting_client w = { .store = join(server) };

    assert_int_equal(pthread_create(&w.thread, NULL, wait_for_it, &w), 0);
    await_parked(store, 1);
    restart(&server);
    assert_int_equal(oar_store_set(store, "it", "came", 4), OAR_OK);
    pthread_join(w.thread, NULL);
    assert_int_equal(w.status, OAR_OK);
    assert_string_equal(w.text, "came");
    oar_store_destroy(w.store);
    oar_store_destroy(store);
    oar_store_server_destroy(server);
}

static void a_server_that_stays_away_is_reported_in_time(void **state)
{
    oar_store_server *server = serve();
    oar_store *store = NULL;
    void *value;
    size_t bytes;
    int64_t start;

    assert_int_equal(
        oar_store_create_tcp(oar_store_server_address(server), 70, &store),
        OAR_OK);
    oar_store_server_destroy(server);
    start = oari_now_ns();
    assert_fails_with(oar_store_set(store, "k", "v", 1), OAR_E_CLOSED,
                      "no store at");
    assert_fails_with(oar_store_get(store, "k", -1, &value, &bytes),
                      OAR_E_CLOSED, "no store at");
    assert_true(oari_now_ns() - start < 10000000000);
    oar_store_destroy(store);
}

/* A server process, which tests may stop and kill. */
typedef struct server_process {
    pid_t pid;
    char address[OARI_SOCK_TEXT];
} server_process;

static void be_server(int out, const char *address)
{
    oar_store_server *server = NULL;

    if (oar_store_serve(address, &server) != OAR_OK ||
        write(out, oar_store_server_address(server), OARI_SOCK_TEXT) !=
            OARI_SOCK_TEXT)
        _exit(1);
    for (;;)
        pause();
}

static server_process start_process(const char *address)
{
    server_process p;
    int pipes[2];

    assert_int_equal(pipe(pipes), 0);
    if ((p.pid = fork()) == 0)
        be_server(pipes[1], address);
    close(pipes[1]);
    assert_int_equal(read(pipes[0], p.address, sizeof p.address),
                     sizeof p.address);
    close(pipes[0]);
    return p;
}

static void end_process(server_process *p)
{
    kill(p->pid, SIGKILL);
    assert_int_equal(waitpid(p->pid, NULL, 0), p->pid);
}

static void a_killed_server_may_be_started_again(void **state)
{
    server_process p = start_process("127.0.0.1:0");
    oar_store *store = NULL;

    assert_int_equal(oar_store_create_tcp(p.address, PATIENCE_MS, &store),
                     OAR_OK);
    assert_works(store);
    end_process(&p);
    p = start_process(p.address);
    assert_works(store);
    oar_store_destroy(store);
    end_process(&p);
}

static void a_stopped_server_is_a_timeout(void **state)
{
    server_process p = start_process("127.0.0.1:0");
    oar_store *store = NULL;
    int how;

    assert_int_equal(oar_store_create_tcp(p.address, 1000, &store), OAR_OK);
    kill(p.pid, SIGSTOP);
    assert_int_equal(waitpid(p.pid, &how, WUNTRACED), p.pid);
    assert_fails_with(oar_store_set(store, "k", "v", 1), OAR_E_TIMEOUT,
                      p.address);
    kill(p.pid, SIGCONT);
    oar_store_destroy(store);
    end_process(&p);
}

/* With a store whose calls would wait for it for ever. */
static void a_glance_waits_for_no_server_that_is_stopped_or_gone(void **state)
{
    server_process p = start_process("127.0.0.1:0");
    oar_store *store = NULL;
    void *value;
    size_t bytes;
    int64_t start;
    int how;

    assert_int_equal(oar_store_create_tcp(p.address, -1, &store), OAR_OK);
    assert_int_equal(oar_store_set(store, "k", "v", 1), OAR_OK);
    assert_int_equal(oari_store_get_once(store, "k", 0, &value, &bytes),
                     OAR_OK);
    oar_free(value);
    assert_fails_with(oari_store_get_once(store, "none", 0, &value, &bytes),
                      OAR_E_TIMEOUT, "did not appear");
    start = oari_now_ns();
    kill(p.pid, SIGSTOP);
    assert_int_equal(waitpid(p.pid, &how, WUNTRACED), p.pid);
    assert_fails_with(oari_store_get_once(store, "k", 0, &value, &bytes),
                      OAR_E_TIMEOUT, p.address);
    end_process(&p);
    assert_int_not_equal(oari_store_get_once(store, "k", 0, &value, &bytes),
                         OAR_OK);
    assert_true(oari_now_ns() - start < PATIENCE_MS * INT64_C(1000000));
    oar_store_destroy(store);
}

static void a_change_that_is_repeated_is_done_once(void **state)
{
    oar_store_server *server = serve();
    oari_wire_message add = request(OARI_WIRE_ADD, 7, "n"), reply;
    oari_wire_message gone = request(OARI_WIRE_DELETE, 8, "nowhere");
    int fd = connect_as(server, 12345);

    add.amount = 5;
    raw_client_send(fd, &add); /* and its reply is lost */
    oari_fork_close(fd);
    for (int i = 0; i < 3; i++) {
        fd = connect_as(server, 12345);
        raw_client_send(fd, &add);
        raw_client_recv(fd, &reply);
        assert_int_equal(reply.head.number, 7);
        assert_int_equal(reply.head.status, OAR_OK);
        assert_int_equal(reply.amount, 5);
        oari_fork_close(fd);
    }
    for (int i = 0; i < 2; i++) {
        fd = connect_as(server, 12345);
        raw_client_send(fd, &gone);
        raw_client_recv(fd, &reply);
        assert_int_equal(reply.head.status, OAR_E_NOT_FOUND);
        assert_non_null(
            memmem(reply.value.data, reply.value.bytes, "nowhere", 7));
        oari_fork_close(fd);
    }
    fd = connect_as(server, 12345);
    raw_client_send(fd, &add); /* older than what it asked last */
    assert_true(raw_client_is_closed(fd));
    oari_fork_close(fd);
    oar_store_server_destroy(server);
}

static void a_client_that_comes_back_takes_over(void **state)
{
    oar_store_server *server = serve();
    oari_wire_message get = request(OARI_WIRE_GET, 1, "never");
    int old = connect_as(server, 777), fresh;

    get.amount = -1;
    raw_client_send(old, &get);
    fresh = connect_as(server, 777);
    assert_true(raw_client_is_closed(old));
    get.amount = 0;
    raw_client_send(fresh, &get);
    raw_client_recv(fresh, &get);
    assert_int_equal(get.head.status, OAR_E_TIMEOUT);
    oari_fork_close(old);
    oari_fork_close(fresh);
    oar_store_server_destroy(server);
}

/* Adds 1 under the request number 1, as this client. */
static int64_t add_as(oar_store_server *server, uint64_t id)
{
    oari_wire_message add = request(OARI_WIRE_ADD, 1, "n"), reply;
    int fd = connect_as(server, id);

    add.amount = 1;
    raw_client_send(fd, &add);
    raw_client_recv(fd, &reply);
    oari_fork_close(fd);
    return reply.amount;
}

static void forgotten_clients_are_the_oldest(void **state)
{
    oari_store_limits limits = oari_store_default_limits;
    oar_store_server *server;

    limits.sessions = 3;
    server = serve_with(&limits);
    for (int id = 1; id <= 9; id++)
        assert_int_equal(add_as(server, (uint64_t)id), id);
    assert_int_equal(add_as(server, 9), 9);
    assert_int_equal(add_as(server, 1), 10); /* that one is forgotten */
    oar_store_server_destroy(server);
}

/* Between a client and the server: of each of the first `thefts` connections
 * the third reply (after the two of the handshake) is kept, and the connection
 * cut. */
typedef struct reply_dropper {
    int listener, thefts, stolen;
    oar_store_server *server;
} reply_dropper;

/* Carries bytes of one connection until an end closes it or a reply is stolen.
 * Requests and replies alternate, so one read is one of them. */
static void carry(reply_dropper *t, int client, int server)
{
    struct pollfd wait[2] = { { client, POLLIN, 0 }, { server, POLLIN, 0 } };
    char bytes[1000];
    ssize_t got;

    for (int replies = 0;;) {
        if (poll(wait, 2, PATIENCE_MS) <= 0)
            return;
        for (int i = 0; i < 2; i++) {
            if (wait[i].revents == 0)
                continue;
            if ((got = recv(wait[i].fd, bytes, sizeof bytes, 0)) <= 0)
                return;
            replies += i;
            if (replies == 3 && t->stolen < t->thefts) {
                t->stolen++;
                return;
            }
            send(wait[!i].fd, bytes, (size_t)got, MSG_NOSIGNAL);
        }
    }
}

static void *drop_reply(void *arg)
{
    reply_dropper *t = arg;
    int client = -1, server;

    for (int i = 0; i <= t->thefts; i++) {
        raw_client_await(t->listener, POLLIN);
        if (oari_sock_accept(t->listener, &client) != OAR_OK || client < 0)
            return arg;
        server = raw_client_connect(t->server);
        carry(t, client, server);
        oari_fork_close(client);
        oari_fork_close(server);
    }
    return NULL;
}

static void a_reply_that_is_lost_is_asked_for_again(void **state)
{
    reply_dropper t = { .thefts = 3, .server = serve() };
    char address[OARI_SOCK_TEXT];
    oar_store *store = NULL, *other = join(t.server);
    pthread_t thread;
    int64_t sum = 0;
    void *failed;

    assert_int_equal(oari_sock_listen("127.0.0.1:0", 5, &t.listener), OAR_OK);
    assert_int_equal(oari_sock_name(t.listener, address), OAR_OK);
    assert_int_equal(pthread_create(&thread, NULL, drop_reply, &t), 0);
    assert_int_equal(oar_store_create_tcp(address, PATIENCE_MS, &store),
                     OAR_OK);
    assert_int_equal(oar_store_add(store, "n", 5, &sum), OAR_OK);
    assert_int_equal(sum, 5);
    assert_int_equal(oar_store_add(other, "n", 0, &sum), OAR_OK);
    assert_int_equal(sum, 5);
    oar_store_destroy(store);
    pthread_join(thread, &failed);
    assert_null(failed);
    assert_int_equal(t.stolen, 3);
    oari_fork_close(t.listener);
    oar_store_destroy(other);
    oar_store_server_destroy(t.server);
}

/* ---- malicious and broken clients ---------------------------------------- */

static void assert_cut_after(oar_store_server *server, const void *bytes,
                             size_t count)
{
    int fd = raw_client_connect(server);

    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), count);
    assert_true(raw_client_is_closed(fd));
    oari_fork_close(fd);
}

static void garbage_is_cut_off_at_once(void **state)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    unsigned char noise[3000];
    oar_store_server *server = serve();
    oar_store *store = join(server);
    uint64_t dice = 99;

    assert_cut_after(server, http, sizeof http - 1);
    assert_cut_after(server, "\0", 1);
    assert_cut_after(server, "OARX", 4);
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < sizeof noise; i++) {
            dice = dice * 6364136223846793005u + 1442695040888963407u;
            noise[i] = (unsigned char)(dice >> 56);
        }
        memcpy(noise, "OARS\1\1\0\0", round & 1 ? 4 : 8);
        assert_cut_after(server, noise, sizeof noise);
    }
    assert_works(store);
    oar_store_destroy(store);
    oar_store_server_destroy(server);
}

/* A request to set "key" with one byte changed, from one that is welcome: only
 * another number and another key make sense. */
static void every_wrong_byte_of_a_request_is_found(void **state)
{
    static const unsigned char flip[] = { 0x01, 0x80, 0xff };
    oari_store_limits limits = oari_store_default_limits;
    oari_wire_message m = request(OARI_WIRE_SET, 1, "key"), reply;
    oar_store_server *server;
    unsigned char *frame;
    size_t bytes;

    limits.transfer_ms = 20; /* for those that announce more than comes */
    server = serve_with(&limits);
    assert_int_equal(oari_wire_frame(&m, &frame, &bytes), OAR_OK);
    assert_int_equal(bytes, OARI_WIRE_HEADER_BYTES + 4 + 3 + 4);
    for (size_t i = 0; i < 3 * bytes; i++) {
        size_t at = i / 3;
        int fd = connect_as(server, 1000 + i);
        frame[at] ^= flip[i % 3];
        assert_int_equal(send(fd, frame, bytes, MSG_NOSIGNAL), bytes);
        if ((at >= 16 && at < 24) || (at >= 28 && at < 31)) {
            raw_client_recv(fd, &reply);
            assert_int_equal(reply.head.status, OAR_OK);
        } else
            assert_true(raw_client_is_closed(fd));
        frame[at] ^= flip[i % 3];
        oari_fork_close(fd);
    }
    oari_free(frame);
    oar_store_server_destroy(server);
}

static void a_length_is_not_believed_before_the_bytes_come(void **state)
{
    oar_store_server *server = serve();
    oar_memory_stats stats = oar_memory_stats_init();
    oari_wire_message m = request(OARI_WIRE_SET, 1, "key");
    static char value[OAR_STORE_VALUE_MAX];
    enum { CLIENTS = 64 };
    int fd[CLIENTS];
    unsigned char *frame;
    uint64_t before;
    size_t bytes;
    oar_store *store = join(server);

    m.value = (oari_bytes){ value, sizeof value };
    assert_int_equal(oari_wire_frame(&m, &frame, &bytes), OAR_OK);
    for (int i = 0; i < CLIENTS; i++)
        fd[i] = connect_as(server, 500 + (uint64_t)i);
    assert_works(store);
    oar_memory_read(&stats);
    before = stats.live_bytes;
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(send(fd[i], frame, 100, MSG_NOSIGNAL), 100);
    assert_works(store);
    oar_memory_read(&stats);
    assert_true(stats.live_bytes < before + CLIENTS * 5000 + 10000);
    for (int i = 0; i < CLIENTS; i++)
        oari_fork_close(fd[i]);
    oari_free(frame);
    oar_store_destroy(store);
    oar_store_server_destroy(server);
}

static void a_client_that_sends_nothing_is_closed_in_time(void **state)
{
    oari_store_limits limits = oari_store_default_limits;
    oari_wire_message hello = { .head.kind = OARI_WIRE_HELLO, .id = 5 };
    oar_store_server *server;
    oar_store *store;
    int silent, half, unproved, partial;

    limits.handshake_ms = 30;
    limits.transfer_ms = 30;
    server = serve_with(&limits);
    store = join(server);
    silent = raw_client_connect(server);
    half = raw_client_connect(server);
    assert_int_equal(send(half, "OA", 2, MSG_NOSIGNAL), 2);
    assert_true(raw_client_is_closed(silent));
    assert_true(raw_client_is_closed(half));
    unproved = raw_client_connect(server);
    raw_client_send(unproved, &hello);
    assert_true(raw_client_is_closed(unproved));
    partial = connect_as(server, 6);
    assert_int_equal(send(partial, "OARS", 4, MSG_NOSIGNAL), 4);
    assert_true(raw_client_is_closed(partial));
    oari_fork_close(silent);
    oari_fork_close(half);
    oari_fork_close(unproved);
    oari_fork_close(partial);
    assert_works(store); /* which was idle for longer than any of these */
    oar_store_destroy(store);
    oar_store_server_destroy(server);
}

/* It asks for a large value again and again, and reads none of it. */
static void a_client_that_does_not_read_its_replies_is_closed(void **state)
{
    static char value[OAR_STORE_VALUE_MAX];
    oari_store_limits limits = oari_store_default_limits;
    oari_wire_message get = request(OARI_WIRE_GET, 0, "large");
    oar_store_server *server;
    oar_store *store;
    int fd;

    limits.transfer_ms = 100;
    server = serve_with(&limits);
    store = join(server);
    assert_int_equal(oar_store_set(store, "large", value, sizeof value),
                     OAR_OK);
    fd = connect_as(server, 4);
    for (int i = 0; i < 64; i++) {
        get.head.number++;
        raw_client_send(fd, &get);
    }
    /* Hung up on, not just written to: a poll that does not read. */
    raw_client_await(fd, POLLERR | POLLHUP | POLLRDHUP);
    assert_works(store);
    oari_fork_close(fd);
    oar_store_destroy(store);
    oar_store_server_destroy(server);
}

static void another_version_is_recognised(void **state)
{
    static const unsigned char hello[OARI_WIRE_HEADER_BYTES] = { 'O', 'A', 'R',
                                                                 'S', 9,   1 };
    oar_store_server *server = serve();
    oari_wire_message reply;
    int fd = raw_client_connect(server);

    assert_int_equal(send(fd, hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
    raw_client_recv(fd, &reply);
    assert_int_equal(reply.head.status, OAR_E_UNSUPPORTED);
    assert_non_null(
        memmem(reply.value.data, reply.value.bytes, "version 9", 9));
    assert_true(raw_client_is_closed(fd));
    oari_fork_close(fd);
    oar_store_server_destroy(server);
}

static void proofs_that_are_not_known_are_refused(void **state)
{
    oari_wire_message hello = { .head.kind = OARI_WIRE_HELLO,
                                .id = 5,
                                .method = 77 };
    oar_store_server *server = serve();
    oari_wire_message reply;
    int fd = raw_client_connect(server);

    raw_client_send(fd, &hello);
    raw_client_recv(fd, &reply);
    assert_int_equal(reply.head.status, OAR_E_AUTH);
    assert_true(raw_client_is_closed(fd));
    oari_fork_close(fd);
    oar_store_server_destroy(server);
}

/* Sends something to the first client that connects, and closes the
 * connection. */
static void *answer_wrongly(void *arg)
{
    int listener = *(int *)arg, fd;
    char bytes[200];

    raw_client_await(listener, POLLIN);
    if (oari_sock_accept(listener, &fd) != OAR_OK || fd < 0)
        return arg;
    raw_client_await(fd, POLLIN);
    if (recv(fd, bytes, sizeof bytes, 0) <= 0 ||
        send(fd, "220 mail.example ready\r\n\r\n", 26, MSG_NOSIGNAL) != 26)
        return arg;
    raw_client_is_closed(fd);
    oari_fork_close(fd);
    return NULL;
}

static void a_server_that_is_no_store_is_recognised(void **state)
{
    char address[OARI_SOCK_TEXT];
    oar_store *store = NULL;
    pthread_t thread;
    void *failed;
    int listener;

    assert_int_equal(oari_sock_listen("127.0.0.1:0", 5, &listener), OAR_OK);
    assert_int_equal(oari_sock_name(listener, address), OAR_OK);
    assert_int_equal(pthread_create(&thread, NULL, answer_wrongly, &listener),
                     0);
    assert_fails_with(oar_store_create_tcp(address, PATIENCE_MS, &store),
                      OAR_E_DATA, address);
    pthread_join(thread, &failed);
    assert_null(failed);
    oari_fork_close(listener);
}

/* ---- a secret that is given ---------------------------------------------- */

static void a_store_with_a_secret_wants_that_secret(void **state)
{
    char secret[65], other[65];
    oar_store_opts with = { .size = sizeof with, .secret = secret };
    oar_store_opts another = { .size = sizeof another, .secret = other };
    oar_store_opts short_one = { .size = sizeof short_one, .secret = "ab" };
    oar_store_server *server;
    oar_store *store = NULL;
    const char *address;

    snprintf(secret, sizeof secret, "%064d", 7);
    snprintf(other, sizeof other, "%064d", 8);
    assert_int_equal(oar_store_serve_with("127.0.0.1:0", &with, &server),
                     OAR_OK);
    address = oar_store_server_address(server);
    assert_fails_with(oar_store_create_tcp_with(address, &another, &store),
                      OAR_E_AUTH, "secret");
    assert_fails_with(oar_store_create_tcp_with(address, NULL, &store),
                      OAR_E_AUTH, "secret");
    assert_fails_with(oar_store_create_tcp_with(address, &short_one, &store),
                      OAR_E_ARG, "64 hex digits");
    assert_null(store);
    assert_int_equal(oar_store_create_tcp_with(address, &with, &store), OAR_OK);
    assert_int_equal(oar_store_set(store, "a", "1", 1), OAR_OK);
    oar_store_destroy(store);
    oar_store_server_destroy(server);
    assert_fails_with(oar_store_serve_with("127.0.0.1:0", &short_one, &server),
                      OAR_E_ARG, "64 hex digits");
}

/* ---- bounds -------------------------------------------------------------- */

static void a_full_store_says_so(void **state)
{
    oari_store_limits limits = oari_store_default_limits;
    oar_store_server *server;
    oar_store *store;
    char value[1000] = { 0 };
    int kept = 0;

    limits.kept_bytes = 100000;
    server = serve_with(&limits);
    store = join(server);
    for (;; kept++) {
        char key[32];
        snprintf(key, sizeof key, "%d", kept);
        if (oar_store_set(store, key, value, sizeof value) != OAR_OK)
            break;
    }
    assert_true(kept > 50 && kept < 100);
    assert_fails_with(oar_store_set(store, "more", value, sizeof value),
                      OAR_E_NOMEM, "full");
    assert_int_equal(oar_store_delete(store, "0"), OAR_OK);
    assert_int_equal(oar_store_delete(store, "1"), OAR_OK);
    assert_int_equal(oar_store_set(store, "more", value, sizeof value), OAR_OK);
    oar_store_destroy(store);
    oar_store_server_destroy(server);
}

typedef struct writing_client {
    oar_store *store;
    int who;
    oar_status status;
    pthread_t thread;
} writing_client;

static void *write_large(void *arg)
{
    writing_client *w = arg;
    char *value = calloc(1, OAR_STORE_VALUE_MAX), key[32];

    memset(value, 'a' + w->who, OAR_STORE_VALUE_MAX);
    for (int i = 0; i < 5 && w->status == OAR_OK; i++) {
        snprintf(key, sizeof key, "large %d %d", w->who, i);
        w->status = oar_store_set(w->store, key, value, OAR_STORE_VALUE_MAX);
    }
    free(value);
    return NULL;
}

/* Room for two requests, and eight are made: those that do not fit are cut off
 * and come again. */
static void too_much_at_once_is_done_in_turn(void **state)
{
    enum { WRITERS = 8 };
    oari_store_limits limits = oari_store_default_limits;
    oar_store_server *server;
    writing_client w[WRITERS] = { 0 };
    char **keys = NULL;
    int count = 0;

    limits.moving_bytes = (size_t)4 << 20;
    server = serve_with(&limits);
    for (int i = 0; i < WRITERS; i++) {
        w[i].store = join(server);
        w[i].who = i;
        assert_int_equal(pthread_create(&w[i].thread, NULL, write_large, &w[i]),
                         0);
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].status, OAR_OK);
    }
    assert_int_equal(oar_store_list(w[0].store, "large", &count, &keys),
                     OAR_OK);
    assert_int_equal(count, 5 * WRITERS);
    oar_free(keys);
    for (int i = 0; i < WRITERS; i++)
        oar_store_destroy(w[i].store);
    oar_store_server_destroy(server);
}

static void too_many_clients_wait_for_their_turn(void **state)
{
    oari_store_limits limits = oari_store_default_limits;
    oar_store_server *server;
    oar_store *first, *second;
    int third;
    struct pollfd wait;

    limits.clients = 2;
    server = serve_with(&limits);
    first = join(server);
    second = join(server);
    third = raw_client_connect(server);
    raw_client_send(
        third, &(oari_wire_message){ .head.kind = OARI_WIRE_HELLO, .id = 3 });
    assert_works(first);
    wait = (struct pollfd){ third, POLLIN, 0 };
    assert_int_equal(poll(&wait, 1, 0), 0);
    oar_store_destroy(second);
    raw_client_await(third, POLLIN); /* it is its turn */
    assert_works(first);
    oari_fork_close(third);
    oar_store_destroy(first);
    oar_store_server_destroy(server);
}

static void two_thousand_clients_are_served(void **state)
{
    enum { CLIENTS = 2000 };
    leak_check before = leak_check_begin();
    oar_store_server *server;
    oar_store **client;
    int64_t sum = 0;
    int64_t start = oari_now_ns();

    raw_client_need_descriptors(2 * CLIENTS + 100);
    server = serve();
    client = calloc(CLIENTS, sizeof *client);
    for (int i = 0; i < CLIENTS; i++)
        client[i] = join(server);
    for (int i = 0; i < CLIENTS; i++) {
        assert_int_equal(oar_store_add(client[i], "sum", i, &sum), OAR_OK);
        assert_int_equal(sum, (int64_t)i * (i + 1) / 2);
    }
    print_message("%d clients, two requests each: %lld ms\n", CLIENTS,
                  (long long)(oari_now_ns() - start) / 1000000);
    for (int i = 0; i < CLIENTS; i++)
        oar_store_destroy(client[i]);
    free(client);
    oar_store_server_destroy(server);
    leak_check_end(&before);
}

static void two_thousand_waiting_clients_are_woken_by_one(void **state)
{
    enum { CLIENTS = 2000 };
    oar_store_server *server;
    oari_wire_message get = request(OARI_WIRE_GET, 1, "it"), reply;
    oar_store *store;
    int *fd;

    raw_client_need_descriptors(2 * CLIENTS + 100);
    server = serve();
    store = join(server);
    fd = calloc(CLIENTS, sizeof *fd);
    get.amount = PATIENCE_MS;
    for (int i = 0; i < CLIENTS; i++) {
        fd[i] = connect_as(server, 10 + (uint64_t)i);
        raw_client_send(fd[i], &get);
    }
    assert_works(store);
    assert_int_equal(oar_store_set(store, "it", "came", 4), OAR_OK);
    for (int i = 0; i < CLIENTS; i++) {
        raw_client_recv(fd[i], &reply);
        assert_int_equal(reply.head.status, OAR_OK);
        assert_int_equal(reply.value.bytes, 4);
        assert_memory_equal(reply.value.data, "came", 4);
        oari_fork_close(fd[i]);
    }
    free(fd);
    oar_store_destroy(store);
    oar_store_server_destroy(server);
}

static void threads_that_wait_do_not_hold_up_others(void **state)
{
    enum { WAITERS = 17 };
    oar_store_server *server = serve();
    oar_store *store = join(server);
    waiting_client w[WAITERS];

    for (int i = 0; i < WAITERS; i++) {
        w[i] = (waiting_client){ .store = store };
        assert_int_equal(pthread_create(&w[i].thread, NULL, wait_for_it, &w[i]),
                         0);
    }
    await_parked(store, WAITERS);
    assert_int_equal(oar_store_set(store, "it", "here", 4), OAR_OK);
    for (int i = 0; i < WAITERS; i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].status, OAR_OK);
        assert_string_equal(w[i].text, "here");
    }
    oar_store_destroy(store);
    oar_store_server_destroy(server);
}

/* ---- children ------------------------------------------------------------ */

static int use_inherited(oar_store_server *server, oar_store *store)
{
    char address[OARI_SOCK_TEXT];
    oar_store *mine = NULL;

    snprintf(address, sizeof address, "%s", oar_store_server_address(server));
    if (!fails_with(oar_store_set(store, "child", "", 0), OAR_E_STATE,
                    "forked"))
        return 1;
    oar_store_destroy(store);
    oar_store_server_destroy(server);
    if (oar_store_create_tcp(address, PATIENCE_MS, &mine) != OAR_OK ||
        oar_store_set(mine, "child", "", 0) != OAR_OK)
        return 2;
    oar_store_destroy(mine);
    return 0;
}

static void a_child_makes_its_own_store(void **state)
{
    oar_store_server *server = serve();
    oar_store *store = join(server);
    const char *key = "child";
    pid_t child;
    int how;

    assert_works(store);
    if ((child = fork()) == 0)
        _exit(use_inherited(server, store));
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
    assert_works(store);
    assert_int_equal(oar_store_wait(store, 1, &key, 0), OAR_OK);
    oar_store_destroy(store);
    oar_store_server_destroy(server);
}

/* A child made without fork handlers keeps the server's side of a connection
 * open after the server has closed it: it must not come back as an event. */
static void a_connection_that_a_child_holds_is_over_all_the_same(void **state)
{
    oar_store_server *server = serve();
    oar_store *store = join(server);
    int raw = raw_client_connect(server);
    clock_t before;
    void *value;
    size_t bytes;
    pid_t child;

    assert_works(store); /* by now the other one is accepted */
    if ((child = _Fork()) == 0) {
        close(raw);
        alarm(20); /* should the test fail */
        for (;;)
            pause();
    }
    oari_fork_close(raw);
    assert_works(store);
    before = clock();
    assert_int_equal(oar_store_get(store, "never", 300, &value, &bytes),
                     OAR_E_TIMEOUT);
    assert_true(clock() - before < CLOCKS_PER_SEC / 8); /* no thread spins */
    assert_works(store);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    oar_store_destroy(store);
    oar_store_server_destroy(server);
}

/* ---- without memory ------------------------------------------------------ */

static oar_status serve_without(void *arg)
{
    oar_store_server *server = NULL;
    oar_status status = oar_store_serve("127.0.0.1:0", &server);

    oar_store_server_destroy(server);
    return status;
}

static oar_status join_without(void *arg)
{
    oar_store *store = NULL;
    oar_status status = oar_store_create_tcp(arg, PATIENCE_MS, &store);

    oar_store_destroy(store);
    return status;
}

static oar_status use_without(void *arg)
{
    static const char *const key[] = { "there", "there" };
    oar_store *store = arg;
    void *value = NULL;
    size_t bytes;
    char **keys = NULL;
    int count;
    oar_status status = oar_store_set(store, "k", "v", 1);

    if (status == OAR_OK)
        status = oar_store_get(store, "there", 0, &value, &bytes);
    if (status == OAR_OK)
        status = oar_store_wait(store, 2, key, 0);
    if (status == OAR_OK)
        status = oar_store_list(store, "", &count, &keys);
    oar_free(value);
    oar_free(keys);
    return status;
}

/* Between calls a link keeps the last reply, so that what is held is not the
 * same each time: counted over the store's whole life. */
static oar_status live_without(void *arg)
{
    oar_store *store = NULL;
    oar_status status = oar_store_create_tcp(arg, PATIENCE_MS, &store);

    if (status == OAR_OK)
        status = use_without(store);
    oar_store_destroy(store);
    return status;
}

/* The server is another process: these are the client's allocations. */
static void without_memory_a_client_fails_whole(void **state)
{
    server_process p = start_process("127.0.0.1:0");
    oar_store *store = NULL;

    assert_int_equal(oar_store_create_tcp(p.address, PATIENCE_MS, &store),
                     OAR_OK);
    assert_int_equal(oar_store_set(store, "there", "v", 1), OAR_OK);
    fail_each_allocation(serve_without, NULL);
    fail_each_allocation(join_without, p.address);
    fail_each_allocation(live_without, p.address);
    assert_works(store);
    oar_store_destroy(store);
    end_process(&p);
}

/* An allocation of either side fails: the call says so or is repeated, and the
 * server goes on. */
static void without_memory_a_server_goes_on(void **state)
{
    leak_check before = leak_check_begin();

    for (uint64_t n = 1; n < 60; n++) {
        oar_store_server *server = serve();
        oar_store *store = join(server);
        oar_status status;
        assert_int_equal(oar_store_set(store, "there", "v", 1), OAR_OK);
        oar_memory_fail_after(n);
        status =
            live_without((void *)(uintptr_t)oar_store_server_address(server));
        oar_memory_fail_after(0);
        if (status != OAR_OK)
            assert_int_equal(status, OAR_E_NOMEM);
        assert_works(store);
        oar_store_destroy(store);
        oar_store_server_destroy(server);
    }
    leak_check_end(&before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_and_its_clients_leave_nothing_behind),
        cmocka_unit_test(a_server_binds_what_it_is_asked_to),
        cmocka_unit_test(a_store_that_is_nowhere_is_named),
        cmocka_unit_test(a_client_waits_for_its_server),
        cmocka_unit_test(a_client_outlives_its_server),
        cmocka_unit_test(a_waiting_client_goes_on_waiting_at_a_new_server),
        cmocka_unit_test(a_server_that_stays_away_is_reported_in_time),
        cmocka_unit_test(a_killed_server_may_be_started_again),
        cmocka_unit_test(a_stopped_server_is_a_timeout),
        cmocka_unit_test(a_glance_waits_for_no_server_that_is_stopped_or_gone),
        cmocka_unit_test(a_change_that_is_repeated_is_done_once),
        cmocka_unit_test(a_reply_that_is_lost_is_asked_for_again),
        cmocka_unit_test(a_client_that_comes_back_takes_over),
        cmocka_unit_test(forgotten_clients_are_the_oldest),
        cmocka_unit_test(garbage_is_cut_off_at_once),
        cmocka_unit_test(every_wrong_byte_of_a_request_is_found),
        cmocka_unit_test(a_length_is_not_believed_before_the_bytes_come),
        cmocka_unit_test(a_client_that_sends_nothing_is_closed_in_time),
        cmocka_unit_test(a_client_that_does_not_read_its_replies_is_closed),
        cmocka_unit_test(another_version_is_recognised),
        cmocka_unit_test(proofs_that_are_not_known_are_refused),
        cmocka_unit_test(a_server_that_is_no_store_is_recognised),
        cmocka_unit_test(a_full_store_says_so),
        cmocka_unit_test(too_much_at_once_is_done_in_turn),
        cmocka_unit_test(too_many_clients_wait_for_their_turn),
        cmocka_unit_test(two_thousand_clients_are_served),
        cmocka_unit_test(two_thousand_waiting_clients_are_woken_by_one),
        cmocka_unit_test(threads_that_wait_do_not_hold_up_others),
        cmocka_unit_test(a_child_makes_its_own_store),
        cmocka_unit_test(a_connection_that_a_child_holds_is_over_all_the_same),
        cmocka_unit_test(a_store_with_a_secret_wants_that_secret),
        cmocka_unit_test(without_memory_a_client_fails_whole),
        cmocka_unit_test(without_memory_a_server_goes_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
