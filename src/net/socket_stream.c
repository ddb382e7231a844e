/* SPDX-License-Identifier: Apache-2.0 */
/* socket_stream: reads and writes a socket with or without TLS.
 *
 * Under TLS a record for which the socket had no room is kept (stream_tls.c).
 * The caller is told that all of it but its last byte is written (owed). It
 * offers that byte again when there is room, and so the rest is sent. */
#include "net/socket_stream.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/status.h"
#include "net/stream_tls.h"

enum {
    RECORD = 16384,       /* bytes that TLS puts under one checksum */
    RECORDS_A_CALL = 64,  /* so that other connections have their turn */
    HANDSHAKE_MAX = 8192, /* bytes before the other end is authenticated */
    READ_BUFFER = 65536
};

uint64_t oari_stream_rekey_records = UINT64_C(1) << 23;

/* ---- opening and closing ------------------------------------------------- */

void oari_stream_plain(oari_stream *stream, int fd)
{
    *stream = (oari_stream){ .fd = fd };
}

static void free_tls(oari_stream_tls *t)
{
    if (t == NULL)
        return;
    OPENSSL_cleanse(t->key, sizeof t->key);
    oari_free(t->unsent);
    oari_free(t);
}

/* Takes t. */
static oar_status start_tls(oari_stream *stream, int fd, oari_stream_tls *t)
{
    SSL *tls;
    oar_status status;

    t->fd = fd;
    t->allowed = HANDSHAKE_MAX;
    status = oari_tls_make(t, &tls);
    if (status != OAR_OK) {
        free_tls(t);
        return status;
    }
    *stream = (oari_stream){ fd, tls, t };
    return OAR_OK;
}

oar_status oari_stream_tls_client(oari_stream *stream, int fd,
                                  const char *identity,
                                  const unsigned char key[OARI_SECRET_BYTES])
{
    oari_stream_tls *t;

    if (identity[0] == 0 || strlen(identity) >= sizeof t->identity)
        return oari_fail(OAR_E_INTERNAL, "\"%s\" cannot be an identity for TLS",
                         identity);
    if ((t = oari_alloc(1, sizeof *t)) == NULL)
        return OAR_E_NOMEM;
    memcpy(t->identity, identity, strlen(identity) + 1);
    memcpy(t->key, key, sizeof t->key);
    return start_tls(stream, fd, t);
}

oar_status oari_stream_tls_server(oari_stream *stream, int fd,
                                  oari_stream_key_fn find, void *arg)
{
    oari_stream_tls *t = oari_alloc(1, sizeof *t);

    if (t == NULL)
        return OAR_E_NOMEM;
    t->find = find;
    t->arg = arg;
    return start_tls(stream, fd, t);
}

const char *oari_stream_identity(const oari_stream *stream)
{
    return stream->tls != NULL ? stream->secure->identity : "";
}

void oari_stream_close(oari_stream *stream)
{
    oari_stream_tls *t = stream->secure;

    if (stream->tls == NULL)
        return;
    if (t->shaken && t->error == 0 && stream->fd >= 0 && oari_tls_flush(t))
        SSL_shutdown(stream->tls);
    SSL_free(stream->tls);
    ERR_clear_error();
    free_tls(t);
    stream->tls = NULL;
    stream->secure = NULL;
}

/* ---- the handshake ------------------------------------------------------- */

static oar_status fail_closed(const oari_stream_tls *t)
{
    return oari_fail(OAR_E_CLOSED, "the connection ended in its handshake: %s",
                     t->ended ? "the other end closed it" : strerror(t->error));
}

/* Says why OpenSSL does not continue the handshake. */
static oar_status fail_handshake(oari_stream_tls *t)
{
    const char *reason = ERR_reason_error_string(ERR_peek_error());

    if (t->ended || (t->error != 0 && t->error != EPROTO))
        return fail_closed(t);
    t->error = EPROTO;
    if (oari_openssl_starved())
        return oari_fail(OAR_E_NOMEM, "OpenSSL has no memory for TLS");
    return oari_fail(OAR_E_AUTH,
                     "the other end does not know this job's key, or does not "
                     "speak this kind of TLS (%s)",
                     reason != NULL ? reason : "it sent too many bytes");
}

static oar_status advance_handshake(oari_stream *stream)
{
    oari_stream_tls *t = stream->secure;
    int result;

    if (t->shaken)
        return OAR_OK;
    ERR_clear_error();
    result = SSL_do_handshake(stream->tls);
    if (result != 1)
        return SSL_get_error(stream->tls, result) == SSL_ERROR_WANT_READ
                   ? OAR_OK
                   : fail_handshake(t);
    /* A peer must have the key: a certificate does not do. */
    if (SSL_session_reused(stream->tls) != 1 ||
        SSL_version(stream->tls) != TLS1_3_VERSION)
        return fail_handshake(t);
    t->shaken = 1;
    t->allowed = SIZE_MAX;
    OPENSSL_cleanse(t->key, sizeof t->key);
    SSL_set_default_read_buffer_len(stream->tls, READ_BUFFER);
    return OAR_OK;
}

oar_status oari_stream_handshake(oari_stream *stream, int *done, short *want)
{
    oari_stream_tls *t = stream->secure;
    oar_status status;

    *want = 0;
    *done = stream->tls == NULL;
    if (*done)
        return OAR_OK;
    status = advance_handshake(stream);
    ERR_clear_error();
    OARI_TRY(status);
    *done = oari_tls_flush(t) && t->shaken;
    if (t->error != 0)
        return fail_closed(t);
    if (!*done)
        *want = (short)((t->shaken ? 0 : POLLIN) |
                        (t->unsent != NULL ? POLLOUT : 0));
    return OAR_OK;
}

/* ---- reading ------------------------------------------------------------- */

static ssize_t fail_errno(int error)
{
    errno = error;
    return -1;
}

/* Reads as many bytes into one buffer as there are. */
static ssize_t read_one(oari_stream *stream, const struct iovec *part)
{
    oari_stream_tls *t = stream->secure;
    size_t have = 0, got;

    ERR_clear_error();
    while (have < part->iov_len &&
           SSL_read_ex(stream->tls, (char *)part->iov_base + have,
                       part->iov_len - have, &got) == 1)
        have += got;
    if (have > 0 || part->iov_len == 0)
        return (ssize_t)have;
    switch (SSL_get_error(stream->tls, 0)) {
    case SSL_ERROR_WANT_READ: t->drained = 1; return fail_errno(EAGAIN);
    case SSL_ERROR_ZERO_RETURN: return 0;
    default:
        if (t->error == 0)
            t->error = t->ended ? ECONNRESET : EBADMSG;
        return fail_errno(t->error);
    }
}

static ssize_t read_secure(oari_stream *stream, const struct iovec *part,
                           int parts)
{
    oari_stream_tls *t = stream->secure;
    ssize_t total = 0;

    if (!t->shaken || t->error != 0)
        return fail_errno(t->error != 0 ? t->error : ENOTCONN);
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

/* A position in the parts of a write. */
typedef struct cursor {
    const struct iovec *part;
    int parts;
    size_t done; /* of the first part */
} cursor;

static void skip_bytes(cursor *c, size_t bytes)
{
    c->done += bytes;
    while (c->parts > 0 && c->done >= c->part->iov_len) {
        c->done -= c->part->iov_len;
        c->part++;
        c->parts--;
    }
}

/* Returns the bytes of the next record: in place if they are contiguous, else
 * copied into scratch. */
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
        skip_bytes(&c, some);
    }
    return scratch;
}

/* Returns how many bytes the caller may count as written; sets owed if the
 * caller has to write again. */
static size_t write_some(oari_stream *stream, cursor *c)
{
    oari_stream_tls *t = stream->secure;
    unsigned char scratch[RECORD];
    size_t total = 0, bytes;

    for (int i = 0; i < RECORDS_A_CALL && c->parts > 0; i++) {
        const void *data = next_record(*c, scratch, &bytes);
        size_t put = 0;

        ERR_clear_error();
        if (t->records++ >= oari_stream_rekey_records) {
            t->records = 0;
            SSL_key_update(stream->tls, SSL_KEY_UPDATE_NOT_REQUESTED);
        }
        if (SSL_write_ex(stream->tls, data, bytes, &put) != 1 || put != bytes) {
            ERR_clear_error();
            if (t->error == 0)
                t->error = EBADMSG;
            break;
        }
        skip_bytes(c, bytes);
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
    oari_stream_tls *t = stream->secure;
    cursor c = { part, parts, 0 };
    size_t total;

    if (!t->shaken)
        return fail_errno(ENOTCONN);
    if (!oari_tls_flush(t))
        return fail_errno(t->error != 0 ? t->error : EAGAIN);
    skip_bytes(&c, 0);
    if (c.parts == 0)
        return 0;
    total = (size_t)t->owed;
    skip_bytes(&c, total);
    t->owed = 0;
    total += write_some(stream, &c);
    if (total > 0)
        return (ssize_t)total;
    return fail_errno(t->error != 0 ? t->error : EAGAIN);
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
