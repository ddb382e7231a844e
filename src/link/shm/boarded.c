/* SPDX-License-Identifier: Apache-2.0 */
/* boarded: see boarded.h. */
#include "link/shm/boarded.h"

#include "base/status.h"

oar_status oari_boarded_open(oari_boarded *b, int rank, int ranks,
                             size_t eager_bytes)
{
    b->rank = rank;
    OARI_TRY(oari_match_create(rank, ranks, eager_bytes, &b->match));
    return oari_mail_create(&b->board, b->match, eager_bytes, &b->mail);
}

void oari_boarded_close(oari_boarded *b)
{
    oari_mail_destroy(b->mail);
    oari_match_destroy(b->match);
    b->mail = NULL;
    b->match = NULL;
}

oar_status oari_boarded_send(void *self, oar_transfer *transfer)
{
    oari_boarded *b = self;

    if (transfer->peer == b->rank)
        return oari_match_send_self(b->match, transfer);
    return oari_mail_send(b->mail, transfer,
                          oari_board_rank(&b->board, transfer->peer));
}

oar_status oari_boarded_recv(void *self, oar_transfer *transfer)
{
    return oari_match_recv(((oari_boarded *)self)->match, transfer);
}

int oari_boarded_peek(void *self, int peer, uint64_t tag, uint64_t any,
                      oar_envelope *found)
{
    return oari_match_peek(((oari_boarded *)self)->match, peer, tag, any,
                           found);
}

oar_status oari_boarded_progress(void *self)
{
    oari_boarded *b = self;
    oar_status why =
        (oar_status)atomic_load_explicit(&b->aborted, memory_order_relaxed);

    if (why != OAR_OK) {
        oari_mail_abort(b->mail, why);
        oari_match_abort(b->match, why);
    }
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
