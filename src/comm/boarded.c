/* SPDX-License-Identifier: Apache-2.0 */
/* boarded: the mail of a board behind the table of a backend. */
#include "comm/boarded.h"

oar_status oari_boarded_open(oari_boarded *b)
{
    return oari_mail_create(&b->board, &b->mail);
}

void oari_boarded_close(oari_boarded *b)
{
    oari_mail_destroy(b->mail);
    b->mail = NULL;
}

oar_status oari_boarded_send(void *self, oar_transfer *transfer)
{
    return oari_mail_send(((oari_boarded *)self)->mail, transfer);
}

oar_status oari_boarded_recv(void *self, oar_transfer *transfer)
{
    return oari_mail_recv(((oari_boarded *)self)->mail, transfer);
}

oar_status oari_boarded_progress(void *self)
{
    oari_boarded *b = self;
    oar_status why =
        (oar_status)atomic_load_explicit(&b->aborted, memory_order_relaxed);

    if (why != OAR_OK)
        oari_mail_abort(b->mail, why);
    return oari_mail_progress(b->mail);
}

void oari_boarded_abort(void *self, oar_status why)
{
    atomic_store(&((oari_boarded *)self)->aborted, (int)why);
}

oari_board *oari_boarded_board(void *self)
{
    return &((oari_boarded *)self)->board;
}
