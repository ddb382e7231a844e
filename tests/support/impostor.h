/* SPDX-License-Identifier: Apache-2.0 */
/* support/impostor.h: a rank that a test plays towards the others of a mesh. It
 * knows what a rank knows, and says what the test wants, byte by byte. */
#ifndef TESTS_SUPPORT_IMPOSTOR_H
#define TESTS_SUPPORT_IMPOSTOR_H

#include <oarsong/store.h>

#include "link/tcp/tcp.h"
#include "support/ranks.h"

enum { IMPOSTOR_HELLO = OARI_FRAME_BYTES + TCP_HELLO };

typedef struct impostor {
    tcp_mesh mesh;  /* as much of one as proofs take */
    tcp_note *note; /* by rank */
} impostor;

/* Plays `rank` of the group whose notes are under prefix; those of all others
 * must come in the time a test has. */
void impostor_learn(impostor *i, oar_store *store, const char *prefix, int rank,
                    int ranks, const oari_secret *secret);
void impostor_forget(impostor *i);

/* Publishes a note for the rank it plays, with an address; before the others
 * can be opened. */
void impostor_publish(oar_store *store, const char *prefix, int rank, int ranks,
                      const oari_secret *secret, const char *address);

/* A connection to that rank, non-blocking; -1 if it is not taken. */
int impostor_connect(const impostor *i, int to);

/* The bytes of a right hello, with the next number. */
void impostor_hello(impostor *i, int to, int slot,
                    unsigned char raw[IMPOSTOR_HELLO]);

/* Begins TLS with that rank over fd, which is not given away. */
oari_stream impostor_encrypt(impostor *i, int to, int fd);

/* ---- sockets ------------------------------------------------------------- */

/* All of it, or as far as the other end takes it. */
void impostor_say(int fd, const void *data, size_t bytes);

/* What comes of it until the deadline: 0, the other end has hung up; else the
 * bytes it has sent, up to room; -1: nothing. */
int impostor_hear(int fd, void *into, size_t room, int timeout_ms);

#endif
