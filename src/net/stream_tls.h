/* SPDX-License-Identifier: Apache-2.0 */
/* net/stream_tls.h: connects a stream with OpenSSL. For socket_stream.c and
 * stream_tls.c alone. */
#ifndef OARI_NET_STREAM_TLS_H
#define OARI_NET_STREAM_TLS_H

#include <openssl/ssl.h>

#include "net/socket_stream.h"

typedef struct oari_stream_tls {
    int fd;
    oari_stream_key_fn find; /* of a server; NULL: a client */
    void *arg;
    char identity[OARI_STREAM_IDENTITY];
    unsigned char key[OARI_SECRET_BYTES]; /* of a client */
    size_t allowed;                       /* bytes that may still be read */
    int shaken, drained, ended, owed;
    int error; /* errno of the failure that broke it; 0: none */
    uint64_t records;
    unsigned char *unsent;
    size_t unsent_bytes, unsent_done;
} oari_stream_tls;

/* Sends unsent bytes. Returns whether none are left and there is no error. */
int oari_tls_flush(oari_stream_tls *tls);

/* Makes an OpenSSL connection over t->fd, as a client (t->find NULL) or as a
 * server. */
oar_status oari_tls_make(oari_stream_tls *t, SSL **tls);

#endif
