/* SPDX-License-Identifier: Apache-2.0 */
/* net/stream_tls.h: what lies between a stream and OpenSSL. For stream.c and
 * stream_tls.c alone. */
#ifndef OARI_NET_STREAM_TLS_H
#define OARI_NET_STREAM_TLS_H

#include <openssl/ssl.h>

#include "net/stream.h"

typedef struct oari_stream_tls {
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
} oari_stream_tls;

/* Writes what is unsent; whether nothing is any more. */
int oari_tls_flush(oari_stream_tls *tls);

/* A connection of OpenSSL's over t->fd, for the end that calls (t->find NULL)
 * or the one that was called. */
oar_status oari_tls_make(oari_stream_tls *t, SSL **tls);

#endif
