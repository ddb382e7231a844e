/* SPDX-License-Identifier: Apache-2.0 */
/* net/socket_stream.h: bytes over a connected non-blocking socket, plain or by
 * TLS 1.3.
 *
 * TLS has one narrow form here: an external key that both ends know
 * (psk_dhe_ke: data that was sent stays unreadable if the key becomes known
 * later), AES-128-GCM or ChaCha20-Poly1305 with SHA-256, no certificates, no
 * tickets, no resumption, no early data, no older version. When
 * oari_stream_handshake is done, the other end has proved that it knows the
 * key.
 *
 * A stream is small; its owner may copy it and also owns the descriptor. One
 * thread at a time uses it.
 */
#ifndef OARI_NET_SOCKET_STREAM_H
#define OARI_NET_SOCKET_STREAM_H

#include <sys/types.h>
#include <sys/uio.h>

#include <oarsong/status.h>

#include "net/secret.h"

enum { OARI_STREAM_IDENTITY = 128 }; /* bytes, zero byte included */

typedef struct oari_stream {
    int fd;
    struct ssl_st *tls;             /* NULL: plain */
    struct oari_stream_tls *secure; /* the state of tls */
} oari_stream;

/* Makes a stream without TLS. */
void oari_stream_plain(oari_stream *stream, int fd);

/* Begins TLS as the client. The identity is sent in clear and tells the server
 * which key it is. */
oar_status oari_stream_tls_client(oari_stream *stream, int fd,
                                  const char *identity,
                                  const unsigned char key[OARI_SECRET_BYTES]);

/* Gives the key of an identity and returns 1, or returns 0 if there is none.
 * The identity comes from an unauthenticated peer: a text of 1 to
 * OARI_STREAM_IDENTITY - 1 bytes with any content. */
typedef int (*oari_stream_key_fn)(void *arg, const char *identity,
                                  unsigned char key[OARI_SECRET_BYTES]);

/* Begins TLS as the server. oari_stream_handshake calls find. */
oar_status oari_stream_tls_server(oari_stream *stream, int fd,
                                  oari_stream_key_fn find, void *arg);

/* Continues the handshake: sets *done to 1, or to 0 and *want to what the
 * socket has to be first (POLLIN, POLLOUT or both). A plain stream is done at
 * once. OAR_E_AUTH: the other end does not know the key, or speaks another
 * protocol; OAR_E_CLOSED: it has closed the connection. */
oar_status oari_stream_handshake(oari_stream *stream, int *done, short *want);

/* Returns the client's identity; "" before it is known, or for a plain stream.
 */
const char *oari_stream_identity(const oari_stream *stream);

/* Reads like readv. Returns the bytes read, 0 when the other end has closed the
 * stream, or -1 and errno: EAGAIN if nothing has arrived, ECONNRESET if the
 * connection ended without TLS's closing message (an attacker who cuts it
 * cannot forge that), EBADMSG if the bytes were changed on the way. */
ssize_t oari_stream_read(oari_stream *stream, const struct iovec *part,
                         int parts);

/* Writes like writev, without SIGPIPE. Returns the bytes written, or -1 and
 * errno (EAGAIN if it would block). After a write that took less than it was
 * given, EAGAIN included, the next one must begin with the bytes that this one
 * did not take: TLS may have sent them already. A write may take less though
 * the socket has room, to bound the time of one call. */
ssize_t oari_stream_write(oari_stream *stream, const struct iovec *part,
                          int parts);

/* Returns whether a read would give bytes even if the socket has none. */
int oari_stream_pending(const oari_stream *stream);

/* Ends TLS, and sends its closing message if that does not block and fd is not
 * -1 (a child of fork sets it so). The descriptor stays open. Zeros and a
 * closed stream are fine. */
void oari_stream_close(oari_stream *stream);

/* The number of TLS records after which a direction changes its key: AES-GCM
 * allows only so many for one key. A test lowers it. */
extern uint64_t oari_stream_rekey_records;

#endif
