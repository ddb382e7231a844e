/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint: offers, answers and credit. See endpoint.h. */
#include "link/endpoint.h"

#include "base/status.h"

/* The receive of an offer is there, or (NULL) has another size. */
static void take_offer(void *self, const oari_offer *offer,
                       oar_transfer *receive)
{
    oari_endpoint *e = self;
    oari_header refused = { .kind = OARI_HEADER_DONE,
                            .status = OAR_E_SIZE,
                            .number = offer->word[0] };

    if (receive == NULL)
        oari_endpoint_answer(e, &refused);
    else if (offer->bytes != 0 && e->link->transport->fetch != NULL)
        e->link->transport->fetch(e, offer, receive);
    else
        oari_endpoint_accept(e, offer->word[0], receive);
}

void oari_endpoint_init(oari_endpoint *e, oari_message_link *link, int index,
                        int rank)
{
    *e = (oari_endpoint){
        .link = link, .index = index, .rank = rank, .taker = { take_offer, e }
    };
}

void oari_endpoint_end(oari_endpoint *e, oar_status why)
{
    oari_transfer_list_finish(&e->queue, why);
    oari_transfer_list_finish(&e->offered, why);
    oari_transfer_list_finish(&e->arriving, why);
    e->answered = e->answers.count = 0;
}

void oari_endpoint_clear(oari_endpoint *e)
{
    oari_endpoint_sweep(e, 1);
    oari_free(e->revoked.data);
    oari_free(e->answers.data);
}

/* ---- answers ------------------------------------------------------------- */

void oari_endpoint_answer(oari_endpoint *e, const oari_header *h)
{
    oar_status status = oari_vec_push(&e->answers, *h);

    if (status != OAR_OK)
        e->link->failed = status;
    else
        e->link->transport->flush(e);
}

void oari_endpoint_accept(oari_endpoint *e, uint64_t offer,
                          oar_transfer *receive)
{
    oari_header h = { .kind = OARI_HEADER_ACCEPT,
                      .number = offer,
                      .word = { ++e->number } };

    oari_scratch_set(receive, 1, h.word[0]);
    oari_scratch_set(receive, 2, 0);
    oari_scratch_set(receive, 3, 0);
    oari_scratch_set(receive, 4, offer);
    if (receive->bytes == 0)
        oari_transfer_finish(receive, OAR_OK);
    else
        oari_transfer_list_push(&e->arriving, receive);
    oari_endpoint_answer(e, &h);
}

void oari_endpoint_give_credit(oari_endpoint *e)
{
    oari_match *match = e->link->match;
    uint64_t due = oari_match_received(match, e->rank) - e->told;

    if (due < oari_match_credit(match) / 4)
        return;
    e->told += due;
    oari_endpoint_answer(e, &(oari_header){ .kind = OARI_HEADER_CREDIT });
}

/* ---- what comes ---------------------------------------------------------- */

static oar_status hear_answer(oari_endpoint *e, const oari_header *h,
                              oar_transfer *t)
{
    const oari_transport *by = e->link->transport;

    if (h->kind == OARI_HEADER_DONE || t->bytes == 0) {
        oari_transfer_finish(
            t, h->kind == OARI_HEADER_DONE ? (oar_status)h->status : OAR_OK);
        return OAR_OK;
    }
    oari_scratch_set(t, 1, h->word[0]);
    oari_scratch_set(t, 2, OARI_HEADER_DATA);
    if (by->move != NULL)
        return by->move(e, t);
    oari_transfer_list_push(&e->queue, t);
    by->flush(e);
    return OAR_OK;
}

oar_status oari_endpoint_hear(oari_endpoint *e, const oari_header *h)
{
    oari_offer offer = { .source = e->rank,
                         .tag = h->tag,
                         .bytes = h->bytes,
                         .word = { h->number, h->word[0], h->word[1] } };
    int accepts = h->kind == OARI_HEADER_ACCEPT && h->word[0] != 0;
    oar_transfer *t = NULL;

    if (h->kind == OARI_HEADER_OFFER)
        return oari_match_offer(e->link->match, &offer, &e->taker);
    if (h->kind == OARI_HEADER_CREDIT)
        return OAR_OK;
    if (h->kind == OARI_HEADER_REVOKE) {
        oari_endpoint_hear_revoke(e, h->number);
        return OAR_OK;
    }
    if (accepts || h->kind == OARI_HEADER_DONE)
        t = oari_transfer_list_take(&e->offered, h->number);
    if (t != NULL)
        return hear_answer(e, h, t);
    if ((accepts || h->kind == OARI_HEADER_DONE) &&
        oari_endpoint_was_revoked(e, h->number))
        return OAR_OK;
    return oari_fail(OAR_E_DATA,
                     "rank %d sent a header of kind %u that makes no sense",
                     e->rank, h->kind);
}

oar_transfer *oari_endpoint_arriving(oari_endpoint *e, uint64_t number,
                                     uint64_t at, uint64_t bytes)
{
    oar_transfer *t = e->arriving.first;

    while (t != NULL && oari_scratch(t, 1) != number)
        t = oari_transfer_list_next(t);
    if (number == 0 || t == NULL || at > t->bytes || bytes > t->bytes - at ||
        bytes > t->bytes - oari_scratch(t, 3))
        return NULL;
    oari_scratch_set(t, 3, oari_scratch(t, 3) + bytes);
    return t;
}

void oari_endpoint_arrived(oari_endpoint *e, oar_transfer *t, uint64_t bytes)
{
    oari_scratch_set(t, 2, oari_scratch(t, 2) + bytes);
    if (oari_scratch(t, 2) != t->bytes)
        return;
    oari_transfer_list_take(&e->arriving, oari_scratch(t, 1));
    oari_transfer_finish(t, OAR_OK);
}
