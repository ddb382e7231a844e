/* SPDX-License-Identifier: Apache-2.0 */
/* Streams over a pair of sockets: TLS by a key that both ends know; everything
 * else is refused. One thread drives both ends; where bytes are to be changed
 * on their way, a relay lies between two pairs. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <oarsong/memory.h>

#include "net/socket_stream.h"

enum { ROUNDS = 64 /* more than any handshake has */ };

static const unsigned char good_key[32] = { 3, 1, 4, 1, 5, 9, 2, 6 };
static const unsigned char bad_key[32] = { 2, 7, 1, 8, 2, 8, 1, 8 };

/* Knows one identity. */
static int find_key(void *arg, const char *identity, unsigned char key[32])
{
    int *asked = arg;

    if (asked != NULL)
        ++*asked;
    if (strcmp(identity, "7/2/3") != 0)
        return 0;
    memcpy(key, good_key, 32);
    return 1;
}

typedef struct stream_ends {
    oari_stream caller, answerer;
    int fd[2];
    oar_status caller_says, answerer_says;
    int caller_done, answerer_done;
} stream_ends;

static void make_pair(int fd[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd),
                     0);
}

static void begin(stream_ends *e, const char *identity,
                  const unsigned char *key)
{
    memset(e, 0, sizeof *e);
    make_pair(e->fd);
    assert_int_equal(
        oari_stream_tls_client(&e->caller, e->fd[0], identity, key), OAR_OK);
    assert_int_equal(
        oari_stream_tls_server(&e->answerer, e->fd[1], find_key, NULL), OAR_OK);
}

static void end(stream_ends *e)
{
    oari_stream_close(&e->caller);
    oari_stream_close(&e->answerer);
    close(e->fd[0]);
    close(e->fd[1]);
}

static void step_handshake(oari_stream *s, oar_status *says, int *done)
{
    short want = 0;

    if (*says != OAR_OK || *done)
        return;
    *says = oari_stream_handshake(s, done, &want);
    if (*says == OAR_OK)
        assert_true(*done ? want == 0 : (want & (POLLIN | POLLOUT)) != 0);
}

static void shake_hands(stream_ends *e)
{
    for (int i = 0; i < ROUNDS; i++) {
        step_handshake(&e->caller, &e->caller_says, &e->caller_done);
        step_handshake(&e->answerer, &e->answerer_says, &e->answerer_done);
    }
}

static void begin_good(stream_ends *e)
{
    begin(e, "7/2/3", good_key);
    shake_hands(e);
    assert_int_equal(e->caller_says, OAR_OK);
    assert_int_equal(e->answerer_says, OAR_OK);
    assert_true(e->caller_done && e->answerer_done);
}

static ssize_t put(oari_stream *s, const void *data, size_t bytes)
{
    union {
        const void *from;
        void *to;
    } at = { data };

    return oari_stream_write(s, &(struct iovec){ at.to, bytes }, 1);
}

static ssize_t get(oari_stream *s, void *data, size_t bytes)
{
    return oari_stream_read(s, &(struct iovec){ data, bytes }, 1);
}

/* ---- which ends connect -------------------------------------------------- */

static void ends_with_the_same_key_talk(void **state)
{
    stream_ends e;
    char text[16] = "";

    begin_good(&e);
    assert_string_equal(oari_stream_identity(&e.answerer), "7/2/3");
    assert_int_equal(put(&e.caller, "hello", 5), 5);
    assert_int_equal(get(&e.answerer, text, sizeof text), 5);
    assert_string_equal(text, "hello");
    assert_int_equal(put(&e.answerer, "you too", 7), 7);
    assert_int_equal(get(&e.caller, text, sizeof text), 7);
    assert_int_equal(get(&e.caller, text, sizeof text), -1);
    assert_int_equal(errno, EAGAIN);
    end(&e);
}

static void what_is_said_cannot_be_read_on_the_wire(void **state)
{
    static const char said[] = "a sentence that nobody else is to know";
    stream_ends e;
    char raw[512] = "";

    begin_good(&e);
    assert_int_equal(put(&e.caller, said, sizeof said), (ssize_t)sizeof said);
    assert_true(recv(e.fd[1], raw, sizeof raw, 0) > (ssize_t)sizeof said);
    assert_null(memmem(raw, sizeof raw, said, 8));
    end(&e);
}

static void refused_both(const char *identity, const unsigned char *key)
{
    char byte;
    stream_ends e;

    begin(&e, identity, key);
    shake_hands(&e);
    assert_false(e.caller_done || e.answerer_done);
    assert_int_equal(e.answerer_says, OAR_E_AUTH);
    assert_int_equal(e.caller_says, OAR_E_AUTH);
    assert_int_equal(put(&e.caller, "x", 1), -1);
    assert_int_equal(get(&e.answerer, &byte, 1), -1);
    end(&e);
}

static void a_wrong_key_is_refused_on_both_ends(void **state)
{
    refused_both("7/2/3", bad_key);
}

static void an_unknown_identity_is_refused_on_both_ends(void **state)
{
    char longest[OARI_STREAM_IDENTITY];

    refused_both("7/3/2", good_key);
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    refused_both(longest, good_key);
}

static void identities_that_are_none_are_not_sent(void **state)
{
    char long_one[OARI_STREAM_IDENTITY + 1];
    oari_stream s;

    memset(long_one, 'x', sizeof long_one - 1);
    long_one[sizeof long_one - 1] = 0;
    assert_int_equal(oari_stream_tls_client(&s, 0, long_one, good_key),
                     OAR_E_INTERNAL);
    assert_int_equal(oari_stream_tls_client(&s, 0, "", good_key),
                     OAR_E_INTERNAL);
}

/* ---- others' TLS --------------------------------------------------------- */

/* Answers with a client of OpenSSL's at the other end. */
static oar_status answer_to(SSL_CTX *context)
{
    oari_stream answerer;
    oar_status says = OAR_OK;
    int fd[2], done = 0;
    SSL *client = SSL_new(context);

    assert_non_null(client);
    make_pair(fd);
    SSL_set_fd(client, fd[0]);
    SSL_set_connect_state(client);
    assert_int_equal(oari_stream_tls_server(&answerer, fd[1], find_key, NULL),
                     OAR_OK);
    for (int i = 0; i < ROUNDS && says == OAR_OK && !done; i++) {
        SSL_do_handshake(client);
        step_handshake(&answerer, &says, &done);
    }
    assert_false(done);
    oari_stream_close(&answerer);
    SSL_free(client);
    close(fd[0]);
    close(fd[1]);
    return says;
}

static unsigned int old_key(SSL *tls, const char *hint, char *identity,
                            unsigned int identity_room, unsigned char *key,
                            unsigned int key_room)
{
    memcpy(identity, "7/2/3", 6);
    memcpy(key, good_key, 32);
    return 32;
}

static void tls_1_2_is_refused_even_with_the_key(void **state)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());

    assert_non_null(context);
    SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_psk_client_callback(context, old_key);
    assert_int_equal(answer_to(context), OAR_E_AUTH);
    SSL_CTX_free(context);
}

static void a_client_without_a_key_is_refused(void **state)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());

    assert_non_null(context);
    assert_int_equal(answer_to(context), OAR_E_AUTH);
    SSL_CTX_free(context);
}

/* One that signs for itself. */
static void use_certificate(SSL_CTX *context)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *own = X509_new();

    assert_true(key != NULL && own != NULL);
    X509_gmtime_adj(X509_getm_notBefore(own), 0);
    X509_gmtime_adj(X509_getm_notAfter(own), 3600);
    assert_int_equal(X509_set_pubkey(own, key), 1);
    assert_true(X509_sign(own, key, EVP_sha256()) > 0);
    assert_int_equal(SSL_CTX_use_certificate(context, own), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(context, key), 1);
    X509_free(own);
    EVP_PKEY_free(key);
}

static void
a_server_with_a_certificate_instead_of_the_key_is_refused(void **state)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    SSL *server;
    stream_ends e;

    assert_non_null(context);
    use_certificate(context);
    server = SSL_new(context);
    begin(&e, "7/2/3", good_key);
    oari_stream_close(&e.answerer);
    SSL_set_fd(server, e.fd[1]);
    SSL_set_accept_state(server);
    for (int i = 0; i < ROUNDS; i++) {
        step_handshake(&e.caller, &e.caller_says, &e.caller_done);
        SSL_do_handshake(server);
    }
    assert_int_equal(e.caller_says, OAR_E_AUTH);
    assert_false(e.caller_done);
    SSL_free(server);
    SSL_CTX_free(context);
    end(&e);
}

/* ---- changed on its way -------------------------------------------------- */

typedef struct relayed_ends {
    stream_ends e;
    int near[2], far[2]; /* the caller's pair, the answerer's */
} relayed_ends;

static void open_relayed(relayed_ends *w)
{
    memset(w, 0, sizeof *w);
    make_pair(w->near);
    make_pair(w->far);
    assert_int_equal(
        oari_stream_tls_client(&w->e.caller, w->near[0], "7/2/3", good_key),
        OAR_OK);
    assert_int_equal(
        oari_stream_tls_server(&w->e.answerer, w->far[1], find_key, NULL),
        OAR_OK);
}

static void take_up(relayed_ends *w)
{
    oari_stream_close(&w->e.caller);
    oari_stream_close(&w->e.answerer);
    for (int i = 0; i < 2; i++) {
        close(w->near[i]);
        close(w->far[i]);
    }
}

/* Carries what there is. */
static void carry(int from, int to)
{
    char bytes[4096];
    ssize_t got = recv(from, bytes, sizeof bytes, 0);

    if (got > 0)
        assert_int_equal(send(to, bytes, (size_t)got, MSG_NOSIGNAL), got);
}

static void run(relayed_ends *w)
{
    for (int i = 0; i < ROUNDS; i++) {
        step_handshake(&w->e.caller, &w->e.caller_says, &w->e.caller_done);
        carry(w->near[1], w->far[0]);
        step_handshake(&w->e.answerer, &w->e.answerer_says,
                       &w->e.answerer_done);
        carry(w->far[0], w->near[1]);
    }
}

static size_t first_flight(relayed_ends *w, unsigned char *flight, size_t room)
{
    ssize_t got;

    step_handshake(&w->e.caller, &w->e.caller_says, &w->e.caller_done);
    got = recv(w->near[1], flight, room, 0);
    assert_true(got > 64);
    return (size_t)got;
}

/* The two bytes of the record's version are, by the standard, ignored and under
 * no checksum; all else is. */
static void every_bit_of_the_first_flight_counts(void **state)
{
    unsigned char flight[2048];
    size_t bytes = 64;

    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        relayed_ends w;
        open_relayed(&w);
        bytes = first_flight(&w, flight, sizeof flight);
        flight[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_int_equal(send(w.far[0], flight, bytes, MSG_NOSIGNAL),
                         (ssize_t)bytes);
        run(&w);
        if (bit / 8 != 1 && bit / 8 != 2)
            assert_false(w.e.answerer_done || w.e.caller_done);
        take_up(&w);
    }
}

/* The caller's second flight, by which it proves that it knows the key. Its
 * length may make the answerer wait for more, for ever. */
static void every_bit_of_the_second_flight_counts(void **state)
{
    unsigned char flight[2048];
    size_t bytes = 5;

    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        ssize_t got;
        relayed_ends w;
        open_relayed(&w);
        step_handshake(&w.e.caller, &w.e.caller_says, &w.e.caller_done);
        carry(w.near[1], w.far[0]);
        step_handshake(&w.e.answerer, &w.e.answerer_says, &w.e.answerer_done);
        carry(w.far[0], w.near[1]);
        step_handshake(&w.e.caller, &w.e.caller_says, &w.e.caller_done);
        got = recv(w.near[1], flight, sizeof flight, 0);
        assert_true(w.e.caller_done && got > 5);
        bytes = (size_t)got;
        flight[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_int_equal(send(w.far[0], flight, bytes, MSG_NOSIGNAL), got);
        run(&w);
        assert_false(w.e.answerer_done);
        take_up(&w);
    }
}

static void a_flight_cut_short_gets_nowhere(void **state)
{
    unsigned char flight[2048];
    size_t bytes = 64;

    for (size_t cut = 0; cut < bytes; cut++) {
        relayed_ends w;
        open_relayed(&w);
        bytes = first_flight(&w, flight, sizeof flight);
        send(w.far[0], flight, cut, MSG_NOSIGNAL);
        shutdown(w.far[0], SHUT_WR);
        for (int i = 0; i < ROUNDS; i++)
            step_handshake(&w.e.answerer, &w.e.answerer_says,
                           &w.e.answerer_done);
        assert_int_equal(w.e.answerer_says, OAR_E_CLOSED);
        take_up(&w);
    }
}

/* Everything that a caller has sent, to another answerer. */
static void a_recorded_handshake_is_refused(void **state)
{
    unsigned char all[4096];
    size_t bytes;
    oari_stream again;
    oar_status says = OAR_OK;
    int fd[2], done = 0;
    ssize_t more;
    relayed_ends w;

    open_relayed(&w);
    bytes = first_flight(&w, all, sizeof all);
    send(w.far[0], all, bytes, MSG_NOSIGNAL);
    step_handshake(&w.e.answerer, &w.e.answerer_says, &w.e.answerer_done);
    carry(w.far[0], w.near[1]);
    step_handshake(&w.e.caller, &w.e.caller_says, &w.e.caller_done);
    assert_true(w.e.caller_done);
    assert_int_equal(put(&w.e.caller, "order", 5), 5);
    more = recv(w.near[1], all + bytes, sizeof all - bytes, 0);
    assert_true(more > 0);
    bytes += (size_t)more;

    make_pair(fd);
    assert_int_equal(oari_stream_tls_server(&again, fd[1], find_key, NULL),
                     OAR_OK);
    assert_int_equal(send(fd[0], all, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
    for (int i = 0; i < ROUNDS; i++)
        step_handshake(&again, &says, &done);
    assert_int_equal(says, OAR_E_AUTH);
    assert_false(done);
    oari_stream_close(&again);
    close(fd[0]);
    close(fd[1]);
    take_up(&w);
}

static void bytes_that_are_no_tls_are_refused(void **state)
{
    static const char *const said[] = { "GET / HTTP/1.1\r\n\r\n",
                                        "OARS and sixteen bytes more" };
    for (int i = 0; i < 2; i++) {
        stream_ends e;
        begin(&e, "7/2/3", good_key);
        send(e.fd[0], said[i], strlen(said[i]), MSG_NOSIGNAL);
        for (int j = 0; j < ROUNDS; j++)
            step_handshake(&e.answerer, &e.answerer_says, &e.answerer_done);
        assert_int_equal(e.answerer_says, OAR_E_AUTH);
        end(&e);
    }
}

/* A record that is never whole, and records without end that mean nothing. */
static void an_unauthenticated_peer_may_send_little(void **state)
{
    unsigned char hello[16384 + 5] = { 22, 3, 1, 0x3f, 0xff, 1, 0, 0x3f, 0xfb };
    size_t sent = 0;
    stream_ends e;

    begin(&e, "7/2/3", good_key);
    while (sent < sizeof hello && e.answerer_says == OAR_OK) {
        ssize_t some =
            send(e.fd[0], hello + sent, sizeof hello - sent, MSG_NOSIGNAL);
        sent += some > 0 ? (size_t)some : 0;
        step_handshake(&e.answerer, &e.answerer_says, &e.answerer_done);
    }
    step_handshake(&e.answerer, &e.answerer_says, &e.answerer_done);
    assert_int_equal(e.answerer_says, OAR_E_AUTH);
    end(&e);
}

/* ---- bytes --------------------------------------------------------------- */

static void fill(unsigned char *data, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        data[i] = (unsigned char)(seed >> 56);
    }
}

/* Writes all of it in parts of odd sizes, as a caller would that is told how
 * much went, and reads it in other ones. */
static void carry_all(oari_stream *from, oari_stream *to,
                      const unsigned char *data, unsigned char *got,
                      size_t bytes)
{
    size_t put_bytes = 0, got_bytes = 0;
    int partial = 0;

    while (got_bytes < bytes) {
        size_t head = bytes - put_bytes < 64 ? bytes - put_bytes : 64;
        size_t body = (bytes - put_bytes - head) % 70001;
        union {
            const unsigned char *from;
            unsigned char *to;
        } at = { data + put_bytes };
        struct iovec part[3] = { { at.to, head },
                                 { at.to + head, 0 },
                                 { at.to + head, body } };
        ssize_t put_now =
            put_bytes < bytes ? oari_stream_write(from, part, 3) : 0;
        size_t room = bytes - got_bytes < 30011 ? bytes - got_bytes : 30011;
        ssize_t got_now;

        if (put_now < 0)
            assert_int_equal(errno, EAGAIN);
        else
            put_bytes += (size_t)put_now;
        partial += put_now < (ssize_t)(head + body);
        got_now = get(to, got + got_bytes, room);
        if (got_now < 0)
            assert_int_equal(errno, EAGAIN);
        else
            got_bytes += (size_t)got_now;
        assert_true(got_bytes <= put_bytes + 1);
    }
    assert_int_equal(put_bytes, bytes);
    assert_true(partial > 0);
}

static void large_data_goes_in_parts(void **state)
{
    enum { BYTES = 5000011 };
    unsigned char *data = malloc(BYTES), *got = calloc(1, BYTES);
    int small = 4096;
    stream_ends e;

    assert_true(data != NULL && got != NULL);
    for (int secure = 0; secure < 2; secure++) {
        if (secure)
            begin_good(&e);
        else {
            memset(&e, 0, sizeof e);
            make_pair(e.fd);
            oari_stream_plain(&e.caller, e.fd[0]);
            oari_stream_plain(&e.answerer, e.fd[1]);
        }
        setsockopt(e.fd[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
        setsockopt(e.fd[1], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
        fill(data, BYTES, 17);
        carry_all(&e.caller, &e.answerer, data, got, BYTES);
        assert_memory_equal(data, got, BYTES);
        memset(got, 0, BYTES);
        carry_all(&e.answerer, &e.caller, data, got, 100003);
        assert_memory_equal(data, got, 100003);
        end(&e);
    }
    free(data);
    free(got);
}

/* What a caller sees that has one byte left to say: it is told to come again
 * until the last of it is on its way, so nothing is forgotten in between. */
static void a_write_is_not_whole_before_its_record_is_sent(void **state)
{
    enum { BYTES = 300007 };
    unsigned char *data = malloc(BYTES), *got = calloc(1, BYTES);
    size_t put_bytes = 0, got_bytes = 0;
    int small = 4096;
    ssize_t some;
    stream_ends e;

    assert_true(data != NULL && got != NULL);
    fill(data, BYTES, 3);
    begin_good(&e);
    setsockopt(e.fd[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    while (put_bytes < BYTES) {
        some = put(&e.caller, data + put_bytes, BYTES - put_bytes);
        if (some > 0)
            put_bytes += (size_t)some;
        else if ((some = get(&e.answerer, got + got_bytes, BYTES - got_bytes)) >
                 0)
            got_bytes += (size_t)some;
    }
    /* Nothing is written any more: all must be there to be read. */
    while ((some = get(&e.answerer, got + got_bytes, BYTES - got_bytes)) > 0)
        got_bytes += (size_t)some;
    assert_int_equal(got_bytes, BYTES);
    assert_memory_equal(data, got, BYTES);
    end(&e);
    free(data);
    free(got);
}

static void what_is_here_already_is_pending(void **state)
{
    struct pollfd socket;
    char text[8];
    stream_ends e;

    begin_good(&e);
    socket = (struct pollfd){ e.fd[1], POLLIN, 0 };
    assert_false(oari_stream_pending(&e.answerer));
    assert_int_equal(put(&e.caller, "abcde", 5), 5);
    assert_int_equal(put(&e.caller, "fgh", 3), 3);
    assert_int_equal(poll(&socket, 1, 0), 1);
    assert_int_equal(get(&e.answerer, text, 2), 2);
    assert_int_equal(poll(&socket, 1, 0), 0);
    assert_true(oari_stream_pending(&e.answerer));
    assert_int_equal(get(&e.answerer, text, 8), 6);
    assert_memory_equal(text, "cdefgh", 6);
    assert_int_equal(get(&e.answerer, text, 8), -1);
    assert_false(oari_stream_pending(&e.answerer));
    end(&e);
}

/* Half a record is here: reading gives nothing, and must not be asked for again
 * and again. */
static void half_a_record_is_not_pending(void **state)
{
    unsigned char raw[256];
    char text[64];
    ssize_t bytes;
    relayed_ends w;

    open_relayed(&w);
    run(&w);
    assert_true(w.e.answerer_done);
    assert_int_equal(put(&w.e.caller, "0123456789", 10), 10);
    bytes = recv(w.near[1], raw, sizeof raw, 0);
    assert_true(bytes > 12);
    send(w.far[0], raw, 12, MSG_NOSIGNAL);
    assert_int_equal(get(&w.e.answerer, text, sizeof text), -1);
    assert_int_equal(errno, EAGAIN);
    assert_false(oari_stream_pending(&w.e.answerer));
    send(w.far[0], raw + 12, (size_t)bytes - 12, MSG_NOSIGNAL);
    assert_int_equal(get(&w.e.answerer, text, sizeof text), 10);
    take_up(&w);
}

static void every_changed_bit_of_a_record_is_noticed(void **state)
{
    unsigned char raw[256];
    ssize_t bytes = 5;

    for (ssize_t bit = 8 * 5; bit < 8 * bytes; bit++) {
        char text[64];
        relayed_ends w;
        open_relayed(&w);
        run(&w);
        assert_int_equal(put(&w.e.caller, "abc", 3), 3);
        bytes = recv(w.near[1], raw, sizeof raw, 0);
        assert_true(bytes > 5);
        raw[bit / 8] ^= (unsigned char)(1 << bit % 8);
        send(w.far[0], raw, (size_t)bytes, MSG_NOSIGNAL);
        assert_int_equal(get(&w.e.answerer, text, sizeof text), -1);
        assert_int_equal(errno, EBADMSG);
        assert_int_equal(get(&w.e.answerer, text, sizeof text), -1);
        assert_int_equal(errno, EBADMSG);
        take_up(&w);
    }
}

static void keys_change_as_often_as_they_must(void **state)
{
    uint64_t before = oari_stream_rekey_records;
    char text[8];
    stream_ends e;

    oari_stream_rekey_records = 2;
    begin_good(&e);
    for (int i = 0; i < 500; i++) {
        assert_int_equal(put(&e.caller, "abc", 3), 3);
        assert_int_equal(get(&e.answerer, text, 8), 3);
        assert_int_equal(put(&e.answerer, "defg", 4), 4);
        assert_int_equal(get(&e.caller, text, 8), 4);
    }
    end(&e);
    oari_stream_rekey_records = before;
}

/* ---- ends ---------------------------------------------------------------- */

static void a_goodbye_is_an_end_and_a_cut_is_not(void **state)
{
    char byte;
    stream_ends e;

    begin_good(&e);
    oari_stream_close(&e.caller);
    assert_int_equal(get(&e.answerer, &byte, 1), 0);
    assert_int_equal(get(&e.answerer, &byte, 1), 0);
    end(&e);
    begin_good(&e);
    shutdown(e.fd[0], SHUT_WR);
    assert_int_equal(get(&e.answerer, &byte, 1), -1);
    assert_int_equal(errno, ECONNRESET);
    end(&e);
}

/* SIGPIPE would end the program. */
static void writing_to_a_closed_end_is_an_error(void **state)
{
    for (int secure = 0; secure < 2; secure++) {
        stream_ends e;
        if (secure)
            begin_good(&e);
        else {
            memset(&e, 0, sizeof e);
            make_pair(e.fd);
            oari_stream_plain(&e.caller, e.fd[0]);
        }
        close(e.fd[1]);
        assert_int_equal(put(&e.caller, "x", 1), -1);
        assert_int_equal(errno, EPIPE);
        oari_stream_close(&e.caller);
        e.answerer.fd = -1;
        oari_stream_close(&e.answerer);
        close(e.fd[0]);
    }
}

static void a_plain_stream_needs_no_handshake(void **state)
{
    oari_stream s;
    int done = 0;
    short want = 1;

    oari_stream_plain(&s, -1);
    assert_int_equal(oari_stream_handshake(&s, &done, &want), OAR_OK);
    assert_true(done == 1 && want == 0);
    assert_false(oari_stream_pending(&s));
    assert_string_equal(oari_stream_identity(&s), "");
    oari_stream_close(&s);
}

static void a_stream_may_be_copied_about(void **state)
{
    oari_stream moved;
    char text[8];
    stream_ends e;

    begin(&e, "7/2/3", good_key);
    step_handshake(&e.caller, &e.caller_says, &e.caller_done);
    moved = e.caller;
    memset(&e.caller, 0x5a, sizeof e.caller);
    e.caller = moved;
    shake_hands(&e);
    assert_true(e.caller_done && e.answerer_done);
    assert_int_equal(put(&e.caller, "abc", 3), 3);
    assert_int_equal(get(&e.answerer, text, 8), 3);
    end(&e);
}

static void no_memory_is_a_failure_and_no_leak(void **state)
{
    int fd[2];
    oar_status status = OAR_E_NOMEM;

    make_pair(fd);
    for (uint64_t n = 1; status == OAR_E_NOMEM && n < 50; n++) {
        oari_stream s;
        oar_memory_fail_after(n);
        status = oari_stream_tls_client(&s, fd[0], "7/2/3", good_key);
        oar_memory_fail_after(0);
        if (status == OAR_OK)
            oari_stream_close(&s);
    }
    assert_int_equal(status, OAR_OK);
    close(fd[0]);
    close(fd[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_with_the_same_key_talk),
        cmocka_unit_test(what_is_said_cannot_be_read_on_the_wire),
        cmocka_unit_test(a_wrong_key_is_refused_on_both_ends),
        cmocka_unit_test(an_unknown_identity_is_refused_on_both_ends),
        cmocka_unit_test(identities_that_are_none_are_not_sent),
        cmocka_unit_test(tls_1_2_is_refused_even_with_the_key),
        cmocka_unit_test(a_client_without_a_key_is_refused),
        cmocka_unit_test(
            a_server_with_a_certificate_instead_of_the_key_is_refused),
        cmocka_unit_test(every_bit_of_the_first_flight_counts),
        cmocka_unit_test(every_bit_of_the_second_flight_counts),
        cmocka_unit_test(a_flight_cut_short_gets_nowhere),
        cmocka_unit_test(a_recorded_handshake_is_refused),
        cmocka_unit_test(bytes_that_are_no_tls_are_refused),
        cmocka_unit_test(an_unauthenticated_peer_may_send_little),
        cmocka_unit_test(large_data_goes_in_parts),
        cmocka_unit_test(a_write_is_not_whole_before_its_record_is_sent),
        cmocka_unit_test(what_is_here_already_is_pending),
        cmocka_unit_test(half_a_record_is_not_pending),
        cmocka_unit_test(every_changed_bit_of_a_record_is_noticed),
        cmocka_unit_test(keys_change_as_often_as_they_must),
        cmocka_unit_test(a_goodbye_is_an_end_and_a_cut_is_not),
        cmocka_unit_test(writing_to_a_closed_end_is_an_error),
        cmocka_unit_test(a_plain_stream_needs_no_handshake),
        cmocka_unit_test(a_stream_may_be_copied_about),
        cmocka_unit_test(no_memory_is_a_failure_and_no_leak),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
