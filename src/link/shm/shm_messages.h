/* SPDX-License-Identifier: Apache-2.0 */
/* link/shm/shm_messages.h: messages between ranks of shared memory: the
 * protocol of link/endpoint.h over queues in shared memory.
 *
 * For every ordered pair there is a queue in the sender's control block
 * (shm_queue.h); the receiver keeps, in its own, how many bytes it has taken
 * and what credit it has given back.
 *
 * A message that could be eager is offered, too, if its receiver shows that it
 * waits for it (awaited_message.c).
 *
 * The data of an offer is copied by the receiver, straight from the sender's
 * buffer: out of a segment both map, or by a system call that reads another
 * process (shm->ops->fetch); then the answer is DONE. Only if neither can be
 * done is the offer accepted and its data sent through the queue. The receiver
 * never writes into the sender's memory. What it copied counts only if the
 * sender had not given up by then.
 */
#ifndef OARI_LINK_SHM_SHM_MESSAGES_H
#define OARI_LINK_SHM_SHM_MESSAGES_H

#include "link/shm/control_page.h"
#include "link/match.h"

typedef struct oari_shm_messages oari_shm_messages;

/* Peers of transfers are ranks of the group, as is everything the match sees.
 * Borrows shm and match. */
oar_status oari_shm_messages_create(oari_shm *shm, oari_match *match,
                                    size_t eager_bytes,
                                    oari_shm_messages **mail);
void oari_shm_messages_destroy(oari_shm_messages *mail); /* NULL is fine */

/* `to` is the peer's rank in shared memory. */
oar_status oari_shm_messages_send(oari_shm_messages *mail,
                                  oar_transfer *transfer, int to);
/* Shows the peer that this rank waits for a message of its. If that message is
 * the next one, and can be copied from memory that this rank maps, it is
 * offered instead of being sent eagerly: it is copied once, and its sender
 * waits for no longer than that takes. */
void oari_shm_messages_await(oari_shm_messages *mail, int from,
                             const oar_transfer *receive);
oar_status oari_shm_messages_progress(oari_shm_messages *mail);

/* ---- small messages, without a transfer (direct_messages.c) -------------- */

/* Sends an eager message at once, if there is room for all of it: 1. */
int oari_shm_messages_push(oari_shm_messages *mail, int to, uint64_t tag,
                           const void *data, size_t bytes);
/* Waits for the next message of a peer, for so many looks, and takes it if it
 * has that tag, but for the open bits, and that size: 1. Returns 0 if it is
 * another, if a message of that peer waits, or if none has come; then nothing
 * has changed. No receive of the same tag may be posted. */
int oari_shm_messages_take(oari_shm_messages *mail, int from,
                           const oari_direct_receive *receive, int looks);

/* ---- taking back, and the end -------------------------------------------- */

/* Takes back a send, or a receive that has found its message, with the peer
 * that has that rank in shared memory: as oari_backend.withdraw. */
int oari_shm_messages_withdraw(oari_shm_messages *mail, oar_transfer *transfer,
                               int peer, int is_send, int unmoved);

/* Ends every transfer it was given. Called by the driver. */
void oari_shm_messages_abort(oari_shm_messages *mail, oar_status why);

#endif
