/* SPDX-License-Identifier: Apache-2.0 */
/* link/shm/mail.h: messages between ranks of a board: the protocol of
 * link/endpoint.h over queues in shared memory.
 *
 * For every ordered pair there is a queue in the sender's control block
 * (mail_ring.h); the receiver keeps, in its own, how many bytes it has taken
 * and what credit it has given back.
 *
 * The data of an offer is copied by the receiver, straight from the sender's
 * buffer: out of a segment both map, or by a system call that reads another
 * process (board->ops->fetch); then the answer is DONE. Only if neither can be
 * done is the offer accepted and its data sent through the queue. The receiver
 * never writes into the sender's memory. What it copied counts only if the
 * sender had not given up by then.
 */
#ifndef OARI_LINK_SHM_MAIL_H
#define OARI_LINK_SHM_MAIL_H

#include "link/shm/board.h"
#include "link/match.h"

typedef struct oari_mail oari_mail;

/* Peers of transfers are ranks of the group, as is everything the match sees.
 * Borrows board and match. */
oar_status oari_mail_create(oari_board *board, oari_match *match,
                            size_t eager_bytes, oari_mail **mail);
void oari_mail_destroy(oari_mail *mail); /* NULL is fine */

/* `to` is the peer's rank on the board. */
oar_status oari_mail_send(oari_mail *mail, oar_transfer *transfer, int to);
oar_status oari_mail_progress(oari_mail *mail);

/* Ends every transfer it was given. Called by the driver. */
void oari_mail_abort(oari_mail *mail, oar_status why);

#endif
