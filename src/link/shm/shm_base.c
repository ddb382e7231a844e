/* SPDX-License-Identifier: Apache-2.0 */
/* boarded: see shm_base.h. */
#include "link/shm/shm_base.h"

#include "base/status.h"

oar_status oari_shm_base_open(oari_shm_base *b, int rank, int ranks,
                              size_t eager_bytes)
{
    b->rank = rank;
    OARI_TRY(oari_match_create(rank, ranks, eager_bytes, &b->match));
    return oari_shm_messages_create(&b->shm, b->match, eager_bytes, &b->mail);
}

void oari_shm_base_close(oari_shm_base *b)
{
    oari_shm_messages_destroy(b->mail);
    oari_match_destroy(b->match);
    b->mail = NULL;
    b->match = NULL;
}

oar_status oari_shm_base_send(void *self, oar_transfer *transfer)
{
    oari_shm_base *b = self;

    if (transfer->peer == b->rank)
        return oari_match_send_self(b->match, transfer);
    return oari_shm_messages_send(b->mail, transfer,
                                  oari_shm_rank(&b->shm, transfer->peer));
}

oar_status oari_shm_base_recv(void *self, oar_transfer *transfer)
{
    return oari_match_recv(((oari_shm_base *)self)->match, transfer);
}

int oari_shm_base_peek(void *self, int peer, uint64_t tag, uint64_t any,
                       oar_envelope *found)
{
    return oari_match_peek(((oari_shm_base *)self)->match, peer, tag, any,
                           found);
}

oar_status oari_shm_base_progress(void *self)
{
    oari_shm_base *b = self;
    oar_status why =
        (oar_status)atomic_load_explicit(&b->aborted, memory_order_relaxed);

    if (why != OAR_OK) {
        oari_shm_messages_abort(b->mail, why);
        oari_match_abort(b->match, why);
    }
    return oari_shm_messages_progress(b->mail);
}

int oari_shm_base_withdraw(void *self, oar_transfer *transfer, int is_send,
                           int unmoved)
{
    oari_shm_base *b = self;
    int with = is_send ? transfer->peer : transfer->source;

    if (oari_match_withdraw(b->match, transfer))
        return 1;
    return with != b->rank &&
           oari_shm_messages_withdraw(b->mail, transfer,
                                      oari_shm_rank(&b->shm, with), is_send,
                                      unmoved);
}

void oari_shm_base_abort(void *self, oar_status why)
{
    atomic_store(&((oari_shm_base *)self)->aborted, (int)why);
}

oari_shm *oari_shm_base_get(void *self)
{
    return &((oari_shm_base *)self)->shm;
}

int oari_shm_base_push(void *self, int rank, uint64_t tag, const void *data,
                       size_t bytes)
{
    oari_shm_base *b = self;
    int to = oari_shm_rank(&b->shm, rank);

    return to >= 0 && rank != b->rank &&
           oari_shm_messages_push(b->mail, to, tag, data, bytes);
}

int oari_shm_base_take(void *self, int rank, const oari_direct_receive *receive,
                       int looks)
{
    oari_shm_base *b = self;
    int from = oari_shm_rank(&b->shm, rank);

    return from >= 0 && rank != b->rank &&
           oari_shm_messages_take(b->mail, from, receive, looks);
}

void oari_shm_base_await(void *self, const oar_transfer *receive)
{
    oari_shm_base *b = self;
    int from = receive->peer >= 0 && receive->peer != b->rank
                   ? oari_shm_rank(&b->shm, receive->peer)
                   : -1;

    if (from >= 0)
        oari_shm_messages_await(b->mail, from, receive);
}

struct oari_match *oari_shm_base_match(void *self)
{
    return ((oari_shm_base *)self)->match;
}
