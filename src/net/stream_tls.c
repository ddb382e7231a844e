/* SPDX-License-Identifier: Apache-2.0 */
/* stream_tls: OpenSSL as streams use it.
 *
 * It reads and writes through a BIO of our own, which never raises SIGPIPE,
 * bounds what a stranger may send before it has proved itself, and takes every
 * record whole: what the socket has no room for is kept (unsent). So OpenSSL
 * never asks for a write to be repeated. */
#include "net/stream_tls.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/status.h"

enum { UNSENT_MAX = 1 << 16 /* more than any handshake or record */ };

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

int oari_tls_flush(oari_stream_tls *tls)
{
    while (tls->unsent != NULL && tls->error == 0) {
        ssize_t put = send_some(tls->fd, tls->unsent + tls->unsent_done,
                                tls->unsent_bytes - tls->unsent_done);
        if (put < 0 && errno != EAGAIN)
            tls->error = errno;
        if (put < 0)
            break;
        tls->unsent_done += (size_t)put;
        if (tls->unsent_done == tls->unsent_bytes) {
            oari_free(tls->unsent);
            tls->unsent = NULL;
        }
    }
    return tls->unsent == NULL && tls->error == 0;
}

/* Keeps bytes behind those that are unsent already. */
static int keep(oari_stream_tls *t, const char *bytes, size_t count)
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
    oari_stream_tls *t = BIO_get_data(bio);
    ssize_t put = 0;

    BIO_clear_retry_flags(bio);
    if (oari_tls_flush(t))
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
    oari_stream_tls *t = BIO_get_data(bio);
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
    const oari_stream_tls *t = BIO_get_data(bio);

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
    oari_stream_tls *t = SSL_get_app_data(tls);

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
    oari_stream_tls *t = SSL_get_app_data(tls);
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

static void make_contexts(void)
{
    oari_secret_prepare();
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

/* ---- a connection -------------------------------------------------------- */

static SSL *make(SSL_CTX *context, oari_stream_tls *t)
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

oar_status oari_tls_make(oari_stream_tls *t, SSL **tls)
{
    SSL *made;

    OARI_TRY(prepare());
    made = make(t->find != NULL ? answering : calling, t);
    if (made == NULL)
        return oari_fail(OAR_E_NOMEM, "no memory for TLS");
    if (t->find != NULL)
        SSL_set_accept_state(made);
    else
        SSL_set_connect_state(made);
    *tls = made;
    return OAR_OK;
}
