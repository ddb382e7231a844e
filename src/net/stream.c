/* SPDX-License-Identifier: Apache-2.0 */
/* stream: a socket with or without TLS.
 *
 * OpenSSL reads and writes through a BIO of our own, which never raises
 * SIGPIPE, bounds what a stranger may send before it has proved itself, and
 * takes every record whole: what the socket has no room for is kept (unsent).
 * So OpenSSL never asks for a write to be repeated. The caller is told of such
 * a record but for its last byte (owed), which it will offer again when there
 * is room: that is how it learns that something is still to be written. */
#include "net/stream.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/status.h"

enum {
    RECORD = 16384,          /* bytes that TLS puts under one checksum */
    RECORDS_A_CALL = 64,     /* before others have their turn */
    STRANGER = 8192,         /* bytes before the other end is known */
    UNSENT_MAX = 4 * RECORD, /* more than any handshake or record */
    READ_BUFFER = 65536
};

uint64_t oari_stream_rekey_records = UINT64_C(1) << 23;

struct oari_stream_tls {
    int fd;
    oari_stream_key_fn find; /* of the end that was called; else NULL */
    void *arg;
    char identity[OARI_STREAM_IDENTITY];
    unsigned char key[OARI_SECRET_BYTES]; /* of the end that calls */
    size_t allowed;                       /* bytes that may still be read */
    int shaken, drained, ended, owed;
    int error; /* errno of what has broken it; 0: nothing */
    uint64_t records;
    unsigned char *unsent;
    size_t unsent_bytes, unsent_done;
};

/* ---- the socket ---------------------------------------------------------- */

static ssize_t send_some(int fd, const void *bytes, size_t count)
{
    ssize_t put;

    do
        put = send(fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (put < 0 && errno == EINTR);
    if (put < 0 && (errno == EWOULDBLOCK || errno == ENOBUFS))
        errno = EAGAIN;
    return put;
}

/* Whether nothing is unsent any more. */
static int flush(struct oari_stream_tls *t)
{
    while (t->unsent != NULL && t->error == 0) {
        ssize_t put = send_some(t->fd, t->unsent + t->unsent_done,
                                t->unsent_bytes - t->unsent_done);
        if (put < 0 && errno != EAGAIN)
            t->error = errno;
        if (put < 0)
            break;
        t->unsent_done += (size_t)put;
        if (t->unsent_done == t->unsent_bytes) {
            oari_free(t->unsent);
            t->unsent = NULL;
        }
    }
    return t->unsent == NULL && t->error == 0;
}

/* Keeps bytes behind those that are unsent already. */
static int keep(struct oari_stream_tls *t, const char *bytes, size_t count)
{
    size_t have = t->unsent != NULL ? t->unsent_bytes - t->unsent_done : 0;
    unsigned char *all;

    if (have + count > UNSENT_MAX ||
        (all = oari_alloc(have + count, 1)) == NULL)
        return 0;
    if (have != 0)
        memcpy(all, t->unsent + t->unsent_done, have);
    memcpy(all + have, bytes, count);
    oari_free(t->unsent);
    t->unsent = all;
    t->unsent_bytes = have + count;
    t->unsent_done = 0;
    return 1;
}

static int bio_write(BIO *bio, const char *bytes, int count)
{
    struct oari_stream_tls *t = BIO_get_data(bio);
    ssize_t put = 0;

    BIO_clear_retry_flags(bio);
    if (flush(t))
        put = send_some(t->fd, bytes, (size_t)count);
    if (put < 0 && errno != EAGAIN)
        t->error = errno;
    if (t->error != 0)
        return -1;
    if (put < 0)
        put = 0;
    if (put < count && !keep(t, bytes + put, (size_t)(count - put))) {
        t->error = ENOBUFS;
        return -1;
    }
    return count;
}

static int bio_read(BIO *bio, char *into, int room)
{
    struct oari_stream_tls *t = BIO_get_data(bio);
    size_t most = (size_t)room < t->allowed ? (size_t)room : t->allowed;
    ssize_t got;

    BIO_clear_retry_flags(bio);
    if (most == 0) {
        t->error = EPROTO;
        return -1;
    }
    do
        got = recv(t->fd, into, most, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        BIO_set_retry_read(bio);
    else if (got < 0)
        t->error = errno;
    else if (got == 0)
        t->ended = 1;
    else if (!t->shaken)
        t->allowed -= (size_t)got;
    return (int)got;
}

static long bio_control(BIO *bio, int what, long number, void *arg)
{
    const struct oari_stream_tls *t = BIO_get_data(bio);

    if (what == BIO_CTRL_FLUSH)
        return 1;
    return what == BIO_CTRL_EOF && t->ended;
}

/* ---- what is made once --------------------------------------------------- */

/* Of a rank that calls, of one that is called; NULL: they cannot be made. */
static SSL_CTX *calling, *answering;
static BIO_METHOD *method;

static int make_method(void)
{
    method =
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "oarsong");
    return method != NULL && BIO_meth_set_write(method, bio_write) == 1 &&
           BIO_meth_set_read(method, bio_read) == 1 &&
           BIO_meth_set_ctrl(method, bio_control) == 1;
}

/* A key is told by its SHA-256; the cipher may be any that has that. */
static SSL_SESSION *session_of(SSL *tls, const unsigned char *key)
{
    static const unsigned char aes_128_gcm_sha256[] = { 0x13, 0x01 };
    const SSL_CIPHER *cipher = SSL_CIPHER_find(tls, aes_128_gcm_sha256);
    SSL_SESSION *session = SSL_SESSION_new();

    if (cipher != NULL && session != NULL &&
        SSL_SESSION_set1_master_key(session, key, OARI_SECRET_BYTES) == 1 &&
        SSL_SESSION_set_cipher(session, cipher) == 1 &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static int use_key(SSL *tls, const EVP_MD *hash, const unsigned char **identity,
                   size_t *bytes, SSL_SESSION **session)
{
    struct oari_stream_tls *t = SSL_get_app_data(tls);

    if ((*session = session_of(tls, t->key)) == NULL)
        return 0;
    *identity = (const unsigned char *)t->identity;
    *bytes = strlen(t->identity);
    return 1;
}

/* Without a session the handshake goes on as if no key had been offered, and
 * ends, because there is no other way. */
static int find_key(SSL *tls, const unsigned char *identity, size_t bytes,
                    SSL_SESSION **session)
{
    struct oari_stream_tls *t = SSL_get_app_data(tls);
    unsigned char key[OARI_SECRET_BYTES];

    *session = NULL;
    if (bytes == 0 || bytes >= sizeof t->identity ||
        memchr(identity, 0, bytes) != NULL)
        return 1;
    memcpy(t->identity, identity, bytes);
    t->identity[bytes] = 0;
    if (t->find(t->arg, t->identity, key))
        *session = session_of(tls, key);
    OPENSSL_cleanse(key, sizeof key);
    return 1;
}

static int restrict_to_our_kind(SSL_CTX *c)
{
    SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
                               SSL_OP_NO_COMPRESSION);
    SSL_CTX_clear_options(c, SSL_OP_ENABLE_MIDDLEBOX_COMPAT |
                                 SSL_OP_ALLOW_NO_DHE_KEX);
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_read_ahead(c, 1);
    return SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_num_tickets(c, 0) == 1 &&
           SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256:"
                                       "TLS_CHACHA20_POLY1305_SHA256") == 1 &&
           (SSL_CTX_set1_groups_list(c, "X25519:P-256") == 1 ||
            SSL_CTX_set1_groups_list(c, "P-256") == 1);
}

/* Not cleaned up at exit, when threads of ours may still be using it. */
static void make_contexts(void)
{
    OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL);
    calling = SSL_CTX_new(TLS_client_method());
    answering = SSL_CTX_new(TLS_server_method());
    if (calling == NULL || answering == NULL || !make_method() ||
        !restrict_to_our_kind(calling) || !restrict_to_our_kind(answering)) {
        SSL_CTX_free(calling);
        SSL_CTX_free(answering);
        calling = answering = NULL;
        return;
    }
    /* Nobody's certificate is good. */
    SSL_CTX_set_verify(calling, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_psk_use_session_callback(calling, use_key);
    SSL_CTX_set_psk_find_session_callback(answering, find_key);
}

static oar_status prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_contexts);
    ERR_clear_error();
    if (calling == NULL)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "OpenSSL is set up here in a way that has no TLS 1.3 "
                         "with SHA-256 and X25519 or P-256");
    return OAR_OK;
}

/* ---- its life ------------------------------------------------------------ */

void oari_stream_plain(oari_stream *stream, int fd)
{
    *stream = (oari_stream){ .fd = fd };
}

static void drop(struct oari_stream_tls *t)
{
    if (t == NULL)
        return;
    OPENSSL_cleanse(t->key, sizeof t->key);
    oari_free(t->unsent);
    oari_free(t);
}

static SSL *make_tls(SSL_CTX *context, struct oari_stream_tls *t)
{
    SSL *tls = SSL_new(context);
    BIO *bio = tls != NULL ? BIO_new(method) : NULL;

    if (bio == NULL) {
        SSL_free(tls);
        return NULL;
    }
    BIO_set_data(bio, t);
    BIO_set_init(bio, 1);
    SSL_set_bio(tls, bio, bio);
    SSL_set_app_data(tls, t);
    return tls;
}

/* Takes t. */
static oar_status begin(oari_stream *stream, int fd, SSL_CTX *context,
                        struct oari_stream_tls *t)
{
    SSL *tls = make_tls(context, t);

    if (tls == NULL) {
        drop(t);
        return oari_fail(OAR_E_NOMEM, "no memory for TLS");
    }
    t->fd = fd;
    t->allowed = STRANGER;
    *stream = (oari_stream){ fd, tls, t };
    return OAR_OK;
}

oar_status oari_stream_call(oari_stream *stream, int fd, const char *identity,
                            const unsigned char key[OARI_SECRET_BYTES])
{
    struct oari_stream_tls *t;

    if (identity[0] == 0 || strlen(identity) >= sizeof t->identity)
        return oari_fail(OAR_E_INTERNAL, "no identity for TLS: \"%s\"",
                         identity);
    OARI_TRY(prepare());
    if ((t = oari_alloc(1, sizeof *t)) == NULL)
        return OAR_E_NOMEM;
    memcpy(t->identity, identity, strlen(identity) + 1);
    memcpy(t->key, key, sizeof t->key);
    OARI_TRY(begin(stream, fd, calling, t));
    SSL_set_connect_state(stream->tls);
    return OAR_OK;
}

oar_status oari_stream_answer(oari_stream *stream, int fd,
                              oari_stream_key_fn find, void *arg)
{
    struct oari_stream_tls *t;

    OARI_TRY(prepare());
    if ((t = oari_alloc(1, sizeof *t)) == NULL)
        return OAR_E_NOMEM;
    t->find = find;
    t->arg = arg;
    OARI_TRY(begin(stream, fd, answering, t));
    SSL_set_accept_state(stream->tls);
    return OAR_OK;
}

const char *oari_stream_identity(const oari_stream *stream)
{
    return stream->tls != NULL ? stream->secure->identity : "";
}

void oari_stream_close(oari_stream *stream)
{
    struct oari_stream_tls *t = stream->secure;

    if (stream->tls == NULL)
        return;
    if (t->shaken && t->error == 0 && stream->fd >= 0 && flush(t))
        SSL_shutdown(stream->tls);
    SSL_free(stream->tls);
    ERR_clear_error();
    drop(t);
    stream->tls = NULL;
    stream->secure = NULL;
}

/* ---- the handshake ------------------------------------------------------- */

static oar_status hung_up(const struct oari_stream_tls *t)
{
    return oari_fail(OAR_E_CLOSED, "the connection ended in its handshake: %s",
                     t->ended ? "the other end closed it" : strerror(t->error));
}

/* Why OpenSSL does not go on. */
static oar_status refused(struct oari_stream_tls *t)
{
    const char *reason = ERR_reason_error_string(ERR_peek_error());

    if (t->ended || (t->error != 0 && t->error != EPROTO))
        return hung_up(t);
    t->error = EPROTO;
    return oari_fail(OAR_E_AUTH,
                     "the other end does not know this job's key, or does not "
                     "speak TLS as we do (%s)",
                     reason != NULL ? reason : "it says too much");
}

/* Whoever has a certificate instead of the key is no peer of ours. */
static oar_status finish(oari_stream *stream)
{
    struct oari_stream_tls *t = stream->secure;

    if (SSL_session_reused(stream->tls) != 1 ||
        SSL_version(stream->tls) != TLS1_3_VERSION)
        return refused(t);
    t->shaken = 1;
    t->allowed = SIZE_MAX;
    OPENSSL_cleanse(t->key, sizeof t->key);
    SSL_set_default_read_buffer_len(stream->tls, READ_BUFFER);
    return OAR_OK;
}

static oar_status advance(oari_stream *stream)
{
    struct oari_stream_tls *t = stream->secure;
    int result;

    if (t->shaken)
        return OAR_OK;
    ERR_clear_error();
    result = SSL_do_handshake(stream->tls);
    if (result == 1)
        return finish(stream);
    if (SSL_get_error(stream->tls, result) == SSL_ERROR_WANT_READ)
        return OAR_OK;
    return refused(t);
}

oar_status oari_stream_shake(oari_stream *stream, int *done, short *want)
{
    struct oari_stream_tls *t = stream->secure;
    oar_status status;

    *want = 0;
    *done = stream->tls == NULL;
    if (*done)
        return OAR_OK;
    status = advance(stream);
    ERR_clear_error();
    OARI_TRY(status);
    *done = flush(t) && t->shaken;
    if (t->error != 0)
        return hung_up(t);
    if (!*done)
        *want = (short)((t->shaken ? 0 : POLLIN) |
                        (t->unsent != NULL ? POLLOUT : 0));
    return OAR_OK;
}

/* ---- reading ------------------------------------------------------------- */

static ssize_t fail_with(int error)
{
    errno = error;
    return -1;
}

/* What a read of nothing means. */
static ssize_t read_nothing(oari_stream *stream)
{
    struct oari_stream_tls *t = stream->secure;

    switch (SSL_get_error(stream->tls, 0)) {
    case SSL_ERROR_WANT_READ: t->drained = 1; return fail_with(EAGAIN);
    case SSL_ERROR_ZERO_RETURN: return 0;
    default:
        if (t->error == 0)
            t->error = t->ended ? ECONNRESET : EBADMSG;
        return fail_with(t->error);
    }
}

/* Into one buffer: as many bytes as are there. */
static ssize_t read_one(oari_stream *stream, const struct iovec *part)
{
    size_t have = 0, got;

    ERR_clear_error();
    while (have < part->iov_len &&
           SSL_read_ex(stream->tls, (char *)part->iov_base + have,
                       part->iov_len - have, &got) == 1)
        have += got;
    if (have > 0 || part->iov_len == 0)
        return (ssize_t)have;
    return read_nothing(stream);
}

static ssize_t read_secure(oari_stream *stream, const struct iovec *part,
                           int parts)
{
    struct oari_stream_tls *t = stream->secure;
    ssize_t total = 0;

    if (!t->shaken || t->error != 0)
        return fail_with(t->error != 0 ? t->error : ENOTCONN);
    t->drained = 0;
    for (int i = 0; i < parts; i++) {
        ssize_t got = read_one(stream, &part[i]);
        if (got < 0 && total == 0)
            total = -1;
        else if (got > 0)
            total += got;
        if (got < 0 || (size_t)got < part[i].iov_len)
            break;
    }
    if (total > 0)
        ERR_clear_error();
    return total;
}

ssize_t oari_stream_read(oari_stream *stream, const struct iovec *part,
                         int parts)
{
    ssize_t got;

    if (stream->tls != NULL)
        return read_secure(stream, part, parts);
    do
        got = readv(stream->fd, part, parts);
    while (got < 0 && errno == EINTR);
    return got;
}

int oari_stream_pending(const oari_stream *stream)
{
    return stream->tls != NULL && stream->secure->shaken &&
           !stream->secure->drained && SSL_has_pending(stream->tls);
}

/* ---- writing ------------------------------------------------------------- */

/* Where in the parts of a write it is. */
typedef struct cursor {
    const struct iovec *part;
    int parts;
    size_t done; /* of the first part */
} cursor;

static void skip(cursor *c, size_t bytes)
{
    c->done += bytes;
    while (c->parts > 0 && c->done >= c->part->iov_len) {
        c->done -= c->part->iov_len;
        c->part++;
        c->parts--;
    }
}

/* The bytes of the next record: where they are if they lie together, else
 * copied. */
static const void *next_record(cursor c, unsigned char *scratch, size_t *bytes)
{
    size_t left = c.part->iov_len - c.done;

    *bytes = left < RECORD ? left : RECORD;
    if (left >= RECORD || c.parts == 1)
        return (const char *)c.part->iov_base + c.done;
    *bytes = 0;
    while (c.parts > 0 && *bytes < RECORD) {
        size_t some = c.part->iov_len - c.done;
        if (some > RECORD - *bytes)
            some = RECORD - *bytes;
        if (some > 0)
            memcpy(scratch + *bytes, (const char *)c.part->iov_base + c.done,
                   some);
        *bytes += some;
        skip(&c, some);
    }
    return scratch;
}

static int write_record(oari_stream *stream, const void *data, size_t bytes)
{
    struct oari_stream_tls *t = stream->secure;
    size_t put = 0;

    ERR_clear_error();
    if (t->records++ >= oari_stream_rekey_records) {
        t->records = 0;
        SSL_key_update(stream->tls, SSL_KEY_UPDATE_NOT_REQUESTED);
    }
    if (SSL_write_ex(stream->tls, data, bytes, &put) == 1 && put == bytes)
        return 1;
    ERR_clear_error();
    if (t->error == 0)
        t->error = EBADMSG;
    return 0;
}

/* Bytes the caller may count as written; sets owed if it is to come again. */
static size_t write_some(oari_stream *stream, cursor *c)
{
    struct oari_stream_tls *t = stream->secure;
    unsigned char scratch[RECORD];
    size_t total = 0, bytes;

    for (int i = 0; i < RECORDS_A_CALL && c->parts > 0; i++) {
        const void *data = next_record(*c, scratch, &bytes);
        if (!write_record(stream, data, bytes))
            break;
        skip(c, bytes);
        total += bytes;
        if (t->unsent != NULL) {
            t->owed = 1;
            return total - 1;
        }
    }
    return total;
}

static ssize_t write_secure(oari_stream *stream, const struct iovec *part,
                            int parts)
{
    struct oari_stream_tls *t = stream->secure;
    cursor c = { part, parts, 0 };
    size_t total;

    if (!t->shaken)
        return fail_with(ENOTCONN);
    if (!flush(t))
        return fail_with(t->error != 0 ? t->error : EAGAIN);
    skip(&c, 0);
    if (c.parts == 0)
        return 0;
    total = (size_t)t->owed;
    skip(&c, total);
    t->owed = 0;
    total += write_some(stream, &c);
    if (total > 0)
        return (ssize_t)total;
    return fail_with(t->error != 0 ? t->error : EAGAIN);
}

ssize_t oari_stream_write(oari_stream *stream, const struct iovec *part,
                          int parts)
{
    struct msghdr message = { .msg_iovlen = (size_t)parts };
    union {
        const struct iovec *from;
        struct iovec *to;
    } list = { part };
    ssize_t put;

    if (stream->tls != NULL)
        return write_secure(stream, part, parts);
    message.msg_iov = list.to;
    do
        put = sendmsg(stream->fd, &message, MSG_NOSIGNAL);
    while (put < 0 && errno == EINTR);
    return put;
}
