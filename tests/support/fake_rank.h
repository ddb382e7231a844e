/* SPDX-License-Identifier: Apache-2.0 */
/* support/fake_rank.h: the test as a rank of a TCP mesh. It knows what a rank
 * knows, and sends what the test wants, byte by byte. */
#ifndef TESTS_SUPPORT_FAKE_RANK_H
#define TESTS_SUPPORT_FAKE_RANK_H

#include <oarsong/store.h>

#include "link/tcp/tcp.h"
#include "support/ranks.h"

enum { FAKE_RANK_HELLO = OARI_FRAME_BYTES + TCP_HELLO };

typedef struct fake_rank {
    tcp_mesh mesh;   /* only what authentication needs */
    tcp_entry *note; /* by rank */
} fake_rank;

/* Becomes `rank` of the group whose notes are under prefix; waits for those of
 * all other ranks. */
void fake_rank_init(fake_rank *i, oar_store *store, const char *prefix,
                    int rank, int ranks, const oari_secret *secret);
void fake_rank_free(fake_rank *i);

/* Publishes a note with an address for the fake rank; the others need it to
 * open. */
void fake_rank_publish(oar_store *store, const char *prefix, int rank,
                       int ranks, const oari_secret *secret,
                       const char *address);

/* Opens a non-blocking connection to a rank. Returns -1 if it is refused. */
int fake_rank_connect(const fake_rank *i, int to);

/* Writes the bytes of a valid hello, with the next number. */
void fake_rank_hello(fake_rank *i, int to, int slot,
                     unsigned char raw[FAKE_RANK_HELLO]);

/* Writes the bytes of the answer to a hello of rank `to`. */
void fake_rank_answer(fake_rank *i, int to,
                      const unsigned char hello[FAKE_RANK_HELLO],
                      unsigned char raw[FAKE_RANK_HELLO]);

/* Begins TLS with that rank over fd, which stays the caller's. */
oari_stream fake_rank_start_tls(fake_rank *i, int to, int fd);

/* ---- sockets ------------------------------------------------------------- */

/* Sends all of it, or as much as the other end takes. */
void fake_rank_send(int fd, const void *data, size_t bytes);

/* Receives until the deadline. Returns 0 when the other end has closed the
 * connection, else the bytes it has sent, up to room; -1: nothing. */
int fake_rank_recv(int fd, void *into, size_t room, int timeout_ms);

#endif
