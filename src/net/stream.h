/* SPDX-License-Identifier: Apache-2.0 */
/* net/stream.h: bytes over a connected non-blocking socket, plain or by TLS
 * 1.3.
 *
 * TLS here is one narrow thing: an external key that both ends know
 * (psk_dhe_ke: what was sent stays unreadable when the key becomes known
 * later), AES-128-GCM or ChaCha20-Poly1305 with SHA-256, no certificates, no
 * tickets, no resumption, no early data, nothing older. When oari_stream_shake
 * says done, the other end has proved that it knows the key.
 *
 * A stream is small and may be copied about by its owner, who also owns the
 * descriptor. One thread at a time.
 */
#ifndef OARI_NET_STREAM_H
#define OARI_NET_STREAM_H

#include <sys/types.h>
#include <sys/uio.h>

#include <oarsong/status.h>

#include "net/secret.h"

enum { OARI_STREAM_IDENTITY = 128 }; /* bytes, zero byte included */

typedef struct oari_stream {
    int fd;
    struct ssl_st *tls;             /* NULL: plain */
    struct oari_stream_tls *secure; /* what belongs to it */
} oari_stream;

void oari_stream_plain(oari_stream *stream, int fd);

/* Begins TLS as the end that called. The identity is sent in clear and says
 * which key it is. */
oar_status oari_stream_call(oari_stream *stream, int fd, const char *identity,
                            const unsigned char key[OARI_SECRET_BYTES]);

/* Gives the key that goes with an identity: 1, or 0 if there is none. The
 * identity is what a stranger says: a text of 1 to OARI_STREAM_IDENTITY - 1
 * bytes, of which nothing else is known. */
typedef int (*oari_stream_key_fn)(void *arg, const char *identity,
                                  unsigned char key[OARI_SECRET_BYTES]);

/* Begins TLS as the end that was called. find is called during
 * oari_stream_shake. */
oar_status oari_stream_answer(oari_stream *stream, int fd,
                              oari_stream_key_fn find, void *arg);

/* Goes on with the handshake: *done is 1, or 0 until the socket is what *want
 * says (POLLIN, POLLOUT or both). A plain stream is done at once. OAR_E_AUTH:
 * the other end does not know the key, or speaks something else; OAR_E_CLOSED:
 * it has hung up. */
oar_status oari_stream_shake(oari_stream *stream, int *done, short *want);

/* The identity that the caller gave; "" before it is known, or if plain. */
const char *oari_stream_identity(const oari_stream *stream);

/* As readv: bytes read, 0 at the end that the other end has made, or -1 and
 * errno: EAGAIN when nothing has come, ECONNRESET at an end that it did not
 * make (TLS says goodbye; whoever cuts a line cannot), EBADMSG when the bytes
 * were changed on their way. */
ssize_t oari_stream_read(oari_stream *stream, const struct iovec *part,
                         int parts);

/* As writev: bytes written, or -1 and errno (EAGAIN when it would block). Never
 * SIGPIPE. After a write that took less than it was given, EAGAIN included, the
 * next one must begin with the bytes that this one did not take: under TLS they
 * may be on their way already. It may take less though the socket has room, so
 * as not to take for ever. */
ssize_t oari_stream_write(oari_stream *stream, const struct iovec *part,
                          int parts);

/* Whether a read gives more though the socket may have nothing. */
int oari_stream_pending(const oari_stream *stream);

/* Ends TLS, with a goodbye if it can be said at once and fd is not -1 by now (a
 * child of fork sets it so). The descriptor stays open. Zeros and a closed
 * stream are fine. */
void oari_stream_close(oari_stream *stream);

/* TLS records written before a direction changes its key: AES-GCM may not be
 * used for ever. A test lowers it. */
extern uint64_t oari_stream_rekey_records;

#endif
