/* SPDX-License-Identifier: Apache-2.0 */
/* link/shm/shm_base.h: the base of all backends over shared memory: messages go
 * through its queues. Their self begins with this struct, their table has these
 * functions, and they add how the control pages are made. */
#ifndef OARI_LINK_SHM_SHM_BASE_H
#define OARI_LINK_SHM_SHM_BASE_H

#include "link/shm/control_page.h"
#include "link/shm/shm_messages.h"
#include "link/match.h"

typedef struct oari_shm_base {
    oari_shm shm;
    int rank; /* in the group */
    oari_match *match;
    oari_shm_messages *mail;
    _Atomic int aborted; /* an oar_status */
} oari_shm_base;

/* The last step of open: makes the queues of shared memory that is ready, in a
 * group of that many ranks. And the first step of close. */
oar_status oari_shm_base_open(oari_shm_base *b, int rank, int ranks,
                              size_t eager_bytes);
void oari_shm_base_close(oari_shm_base *b);

oar_status oari_shm_base_send(void *self, oar_transfer *transfer);
oar_status oari_shm_base_recv(void *self, oar_transfer *transfer);
int oari_shm_base_peek(void *self, int peer, uint64_t tag, uint64_t any,
                       oar_envelope *found);
oar_status oari_shm_base_progress(void *self);
void oari_shm_base_abort(void *self, oar_status why);
int oari_shm_base_withdraw(void *self, oar_transfer *transfer, int is_send,
                           int unmoved);
oari_shm *oari_shm_base_get(void *self);
int oari_shm_base_push(void *self, int rank, uint64_t tag, const void *data,
                       size_t bytes);
int oari_shm_base_take(void *self, int rank, const oari_direct_receive *receive,
                       int looks);
void oari_shm_base_await(void *self, const oar_transfer *receive);
struct oari_match *oari_shm_base_match(void *self);

/* The common part of the public tables. */
#define OARI_SHM_BASE_OPS                                             \
    .size = sizeof(oar_backend_ops), .abi = OAR_BACKEND_ABI,          \
    .self_size = sizeof(oari_shm_base), .send = oari_shm_base_send,   \
    .recv = oari_shm_base_recv, .peek = oari_shm_base_peek,           \
    .progress = oari_shm_base_progress, .abort = oari_shm_base_abort, \
    .post_count = OAR_COLL_COUNT

#endif
