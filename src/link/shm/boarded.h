/* SPDX-License-Identifier: Apache-2.0 */
/* link/shm/boarded.h: the base of all backends over shared memory: messages go
 * through its queues. Their self begins with this struct, their table has these
 * functions, and they add how the control pages are made. */
#ifndef OARI_LINK_SHM_BOARDED_H
#define OARI_LINK_SHM_BOARDED_H

#include "link/shm/board.h"
#include "link/shm/mail.h"
#include "link/match.h"

typedef struct oari_boarded {
    oari_board board;
    int rank; /* in the group */
    oari_match *match;
    oari_mail *mail;
    _Atomic int aborted; /* an oar_status */
} oari_boarded;

/* The last step of open: makes the queues of a board that is ready, in a group
 * of that many ranks. And the first step of close. */
oar_status oari_boarded_open(oari_boarded *b, int rank, int ranks,
                             size_t eager_bytes);
void oari_boarded_close(oari_boarded *b);

oar_status oari_boarded_send(void *self, oar_transfer *transfer);
oar_status oari_boarded_recv(void *self, oar_transfer *transfer);
int oari_boarded_peek(void *self, int peer, uint64_t tag, uint64_t any,
                      oar_envelope *found);
oar_status oari_boarded_progress(void *self);
void oari_boarded_abort(void *self, oar_status why);
oari_board *oari_boarded_board(void *self);

/* The common part of the public tables. */
#define OARI_BOARDED_OPS                                            \
    .size = sizeof(oar_backend_ops), .abi = OAR_BACKEND_ABI,        \
    .self_size = sizeof(oari_boarded), .send = oari_boarded_send,   \
    .recv = oari_boarded_recv, .peek = oari_boarded_peek,           \
    .progress = oari_boarded_progress, .abort = oari_boarded_abort, \
    .post_count = OAR_COLL_COUNT

#endif
