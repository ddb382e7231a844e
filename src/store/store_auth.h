/* SPDX-License-Identifier: Apache-2.0 */
/* store/store_auth.h: how the two ends of a TCP store prove to each other that
 * they belong to one job.
 *
 * Where a job has a secret, both ends show that they know it before they send
 * anything else: each answers a fresh random challenge of the other with an
 * HMAC under a key of its role. A recording of that is worth nothing later, nor
 * is a proof that is sent back to its author. Between hosts TLS lies below
 * that. docs/security.md has the bytes. */
#ifndef OARI_STORE_STORE_AUTH_H
#define OARI_STORE_STORE_AUTH_H

#include "store/store_wire.h"
#include "net/socket_stream.h"

enum {
    OARI_AUTH_NONE = 0, /* no proofs */
    OARI_AUTH_HMAC = 1  /* challenges and HMAC-SHA256 */
};

/* What one end knows, and what it asks of connections. */
typedef struct oari_trust {
    int known; /* there is a secret, and the keys below are of it */
    unsigned char client[OARI_SECRET_BYTES], server[OARI_SECRET_BYTES],
        tls[OARI_SECRET_BYTES];
    oari_protection near,
        far;     /* what connections within and between hosts must be */
    int not_far; /* connections between hosts are refused */
} oari_trust;

/* Makes the keys and reads OARSONG_WIRE. The secret may be unknown, but not
 * NULL. */
oar_status oari_trust_make(const oari_secret *secret, oari_trust *trust);
void oari_trust_forget(oari_trust *trust);

/* Gives what a connection has to be. OAR_E_AUTH: it is not allowed, and the
 * text says why. OAR_E_CLOSED: it is gone. */
oar_status oari_trust_protection(const oari_trust *trust, int fd,
                                 oari_protection *wire);

/* Begins TLS on a connection: the first as client, the second as server. */
oar_status oari_trust_start_tls(const oari_trust *trust, int fd,
                                oari_stream *stream);
oar_status oari_trust_accept_tls(oari_trust *trust, int fd,
                                 oari_stream *stream);

/* ---- the handshake ------------------------------------------------------- */

/* What one end remembers between the steps of a handshake. */
typedef struct oari_auth {
    uint32_t method;
    uint64_t client, server;                    /* ids, as they say */
    unsigned char challenge[2][OARI_MAC_BYTES]; /* the client's, the server's
                                                   */
    unsigned char proof[OARI_MAC_BYTES];
} oari_auth;

/* Client: fills in the method and the challenge (expected) of its HELLO. */
oar_status oari_auth_open(oari_auth *auth, oari_protection wire,
                          oari_wire_message *hello);
/* Server: reads a HELLO and fills in method, challenge and proof (value) of the
 * answer. OAR_E_AUTH: it must not talk to this client. */
oar_status oari_auth_welcome(oari_auth *auth, const oari_trust *trust,
                             oari_protection wire,
                             const oari_wire_message *hello,
                             oari_wire_message *welcome);
/* Client: reads the answer, checks the server's proof and fills in its own
 * (value). */
oar_status oari_auth_answer(oari_auth *auth, const oari_trust *trust,
                            const oari_wire_message *welcome,
                            oari_wire_message *proof);
/* Server: checks the client's proof. OAR_E_AUTH: it is wrong. */
oar_status oari_auth_check(oari_auth *auth, const oari_trust *trust,
                           const oari_wire_message *proof);

#endif
