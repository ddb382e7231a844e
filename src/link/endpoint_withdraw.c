/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_withdraw: takes one message back. See endpoint.h.
 *
 * An offer that is taken back gets exactly one answer: the one that was under
 * way when the REVOKE came, or else a DONE. The sender ignores it. */
#include <string.h>

#include "base/alloc.h"
#include "link/endpoint.h"

/* A transfer that the endpoint owns. */
typedef struct oari_leftover {
    struct oari_leftover *next;
    oar_transfer transfer;
    unsigned char data[];
} oari_leftover;

void oari_endpoint_sweep(oari_endpoint *e, int all)
{
    oari_leftover **at = &e->leftovers, *each;

    while ((each = *at) != NULL) {
        if (!all && !each->transfer.done) {
            at = &each->next;
            continue;
        }
        *at = each->next;
        oari_free(each);
    }
}

static oar_transfer *make_leftover(oari_endpoint *e, const oar_transfer *t,
                                   size_t room)
{
    oari_leftover *made;

    oari_endpoint_sweep(e, 0);
    if ((made = oari_alloc(1, sizeof *made + room)) == NULL)
        return NULL;
    made->transfer = *t;
    made->transfer.data = room != 0 ? made->data : NULL;
    made->next = e->leftovers;
    e->leftovers = made;
    return &made->transfer;
}

oar_transfer *oari_endpoint_copy_send(oari_endpoint *e, const oar_transfer *t,
                                      size_t at)
{
    oar_transfer *made = make_leftover(e, t, t->bytes);

    if (made != NULL)
        memcpy((unsigned char *)made->data + at,
               (const unsigned char *)t->data + at, t->bytes - at);
    return made;
}

oar_transfer *oari_endpoint_withdraw_arriving(oari_endpoint *e, oar_transfer *t)
{
    oar_transfer *made = NULL;

    if (oari_transfer_list_has(&e->arriving, t) &&
        (made = make_leftover(e, t, 0)) != NULL)
        oari_transfer_list_replace(&e->arriving, t, made);
    return made;
}

/* ---- sends --------------------------------------------------------------- */

/* The REVOKE goes behind the OFFER, so it is queued like a message. */
static int revoke_offer(oari_endpoint *e, oar_transfer *t)
{
    const oari_transport *by = e->link->transport;
    oar_transfer *header;

    if (!oari_transfer_list_has(&e->offered, t) ||
        oari_vec_reserve(&e->revoked, 1) != OAR_OK ||
        (header = make_leftover(e, t, 0)) == NULL)
        return 0;
    oari_transfer_list_drop(&e->offered, t);
    e->revoked.data[e->revoked.count++] = oari_scratch(t, 1);
    header->bytes = 0;
    oari_scratch_set(header, 2, OARI_HEADER_REVOKE);
    oari_transfer_list_push(&e->queue, header);
    if (by->revoke != NULL)
        by->revoke(e);
    by->flush(e);
    return 1;
}

int oari_endpoint_withdraw_send(oari_endpoint *e, oar_transfer *t, int gone)
{
    const oari_transport *by = e->link->transport;

    if (gone) {
        if (oari_transfer_list_drop(&e->queue, t))
            return 1;
        if (!oari_transfer_list_drop(&e->offered, t))
            return 0;
        if (by->revoke != NULL)
            by->revoke(e);
        return 1;
    }
    if (oari_scratch(t, 2) == OARI_HEADER_DATA)
        return 0;
    if (!oari_transfer_list_drop(&e->queue, t))
        return revoke_offer(e, t);
    if (oari_scratch(t, 2) == OARI_HEADER_EAGER)
        e->spent -= oari_credit_cost(t->bytes);
    return 1;
}

int oari_endpoint_was_revoked(oari_endpoint *e, uint64_t number)
{
    for (int64_t i = 0; i < e->revoked.count; i++)
        if (e->revoked.data[i] == number) {
            e->revoked.data[i] = e->revoked.data[--e->revoked.count];
            return 1;
        }
    return 0;
}

/* ---- what comes ---------------------------------------------------------- */

/* Returns the receive that waits for data of that offer, and takes it out of
 * its list; NULL: there is none. */
static oar_transfer *take_arriving(oari_endpoint *e, uint64_t offer)
{
    oar_transfer *t = e->arriving.first;

    while (t != NULL && (oari_scratch(t, 1) == 0 || oari_scratch(t, 3) != 0 ||
                         oari_scratch(t, 4) != offer))
        t = oari_transfer_list_next(t);
    if (t != NULL)
        oari_transfer_list_drop(&e->arriving, t);
    return t;
}

void oari_endpoint_hear_revoke(oari_endpoint *e, uint64_t number)
{
    const oari_transport *by = e->link->transport;
    oari_match *match = e->link->match;
    oari_header done = { .kind = OARI_HEADER_DONE, .number = number };
    oar_transfer *t = NULL;

    if (oari_match_revoke(match, e->rank, &e->taker, number) ||
        (by->forget != NULL && (t = by->forget(e, number)) != NULL))
        oari_endpoint_answer(e, &done);
    else
        t = take_arriving(e, number); /* its ACCEPT is the answer */
    if (t != NULL && t->data == NULL)
        oari_transfer_finish(t, OAR_OK); /* a leftover */
    else if (t != NULL)
        oari_match_repost(match, t);
}
