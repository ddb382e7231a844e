/* SPDX-License-Identifier: Apache-2.0 */
/* comm/store_auth.h: the step of the TCP store's handshake in which both ends
 * prove who they are. There is one method so far, OARI_AUTH_NONE: no proofs.
 * A further one is a number here and the bytes of its challenge and proofs in
 * these functions; the frames for them are exchanged in any case. */
#ifndef OARI_COMM_STORE_AUTH_H
#define OARI_COMM_STORE_AUTH_H

#include "comm/store_wire.h"

enum { OARI_AUTH_NONE = 0 };

/* What one end remembers between the steps. */
typedef struct oari_auth {
    uint32_t method;
    unsigned char challenge[OARI_WIRE_PROOF_MAX];
    unsigned char proof[OARI_WIRE_PROOF_MAX];
} oari_auth;

/* Client: fills method and challenge (expected) of its HELLO. */
oar_status oari_auth_open(oari_auth *auth, oari_wire_message *hello);
/* Server: reads a HELLO; fills method, challenge and its proof (value) of the
 * answer. OAR_E_AUTH: it cannot talk to this one. */
oar_status oari_auth_welcome(oari_auth *auth, const oari_wire_message *hello,
                             oari_wire_message *welcome);
/* Client: reads the answer, checks the server's proof; fills its own (value).
 */
oar_status oari_auth_answer(oari_auth *auth, const oari_wire_message *welcome,
                            oari_wire_message *proof);
/* Server: whether the client has proved itself. */
oar_status oari_auth_check(oari_auth *auth, const oari_wire_message *proof);

#endif
