/* SPDX-License-Identifier: Apache-2.0 */
/* comm/mail.h: messages between ranks of a board.
 *
 * For every ordered pair there is a ring of bytes in the sender's control
 * block; the receiver keeps, in its own, how many bytes it has taken. A message
 * is a 16-byte head (bytes, tag) and its data, rounded up to 16; one longer
 * than the ring flows through it. It goes straight into the buffer of the
 * receive that matches, or, if none is posted yet, into memory set aside, up to
 * a limit: then it stays in the ring, and the sender waits.
 */
#ifndef OARI_COMM_MAIL_H
#define OARI_COMM_MAIL_H

#include "comm/board.h"

typedef struct oari_mail oari_mail;

oar_status oari_mail_create(oari_board *board, oari_mail **mail);
void oari_mail_destroy(oari_mail *mail); /* NULL is fine */

oar_status oari_mail_send(oari_mail *mail, oar_transfer *transfer);
oar_status oari_mail_recv(oari_mail *mail, oar_transfer *transfer);
oar_status oari_mail_progress(oari_mail *mail);

/* Ends every transfer under way. Called by the driver. */
void oari_mail_abort(oari_mail *mail, oar_status why);

#endif
