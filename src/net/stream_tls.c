/* SPDX-License-Identifier: Apache-2.0 */
/* stream_tls: uses OpenSSL for streams.
 *
 * OpenSSL reads and writes through a BIO of this file, which never raises
 * SIGPIPE, bounds the bytes that an unauthenticated peer may send, and takes
 * every record whole: bytes for which the socket has no room are kept (unsent).
 * So OpenSSL never asks for a write to be repeated. */
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

/* Keeps bytes after those that are unsent already. */
static int keep_unsent(oari_stream_tls *t, const char *bytes, size_t count)
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
    if (put < count && !keep_unsent(t, bytes + put, (size_t)(count - put))) {
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

/* ---- contexts, made once ------------------------------------------------- */

/* NULL: they cannot be made. */
static SSL_CTX *client, *server;
static BIO_METHOD *bio_method;

/* The session stands for the key. Its cipher only says that the hash is
 * SHA-256; the connection may choose any cipher with that hash. */
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

/* Without a session the handshake continues as if the client had offered no
 * key, and fails, because the server has no certificate. */
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

static int restrict_context(SSL_CTX *c)
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
    bio_method =
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "oarsong");
    client = SSL_CTX_new(TLS_client_method());
    server = SSL_CTX_new(TLS_server_method());
    if (client == NULL || server == NULL || bio_method == NULL ||
        BIO_meth_set_write(bio_method, bio_write) != 1 ||
        BIO_meth_set_read(bio_method, bio_read) != 1 ||
        BIO_meth_set_ctrl(bio_method, bio_control) != 1 ||
        !restrict_context(client) || !restrict_context(server)) {
        SSL_CTX_free(client);
        SSL_CTX_free(server);
        client = server = NULL;
        return;
    }
    /* No certificate is accepted. */
    SSL_CTX_set_verify(client, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_psk_use_session_callback(client, use_key);
    SSL_CTX_set_psk_find_session_callback(server, find_key);
}

/* ---- a connection -------------------------------------------------------- */

oar_status oari_tls_make(oari_stream_tls *t, SSL **tls)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    SSL *made;
    BIO *bio;

    pthread_once(&once, make_contexts);
    ERR_clear_error();
    if (client == NULL)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "OpenSSL is set up here in a way that has no TLS 1.3 "
                         "with SHA-256 and X25519 or P-256");
    made = SSL_new(t->find != NULL ? server : client);
    bio = made != NULL ? BIO_new(bio_method) : NULL;
    if (bio == NULL) {
        SSL_free(made);
        return oari_fail(OAR_E_NOMEM, "no memory for TLS");
    }
    BIO_set_data(bio, t);
    BIO_set_init(bio, 1);
    SSL_set_bio(made, bio, bio);
    SSL_set_app_data(made, t);
    if (t->find != NULL)
        SSL_set_accept_state(made);
    else
        SSL_set_connect_state(made);
    *tls = made;
    return OAR_OK;
}
