/* SPDX-License-Identifier: Apache-2.0 */
/* link/endpoint.h: the protocol of messages with one peer, the same over every
 * transport that brings headers in order.
 *
 *   EAGER   a message with its data: up to a size, and within the credit
 *   OFFER   a message without its data
 *   ACCEPT  the answer to an offer: send its data to that receive
 *   DONE    the other answer: the data has been copied, or is refused
 *   DATA    data of an accepted message
 *   CREDIT  nothing but the credit that every header may carry
 *   REVOKE  an offer is taken back; its answer is DONE, unless one is under way
 *
 * A send is queued until its header is written. An eager one is done when its
 * data is written. An offered one waits for its answer; then its data moves.
 * A receive whose message was offered is arriving until all data has come.
 * When the group ends, every one of them is finished with the reason.
 *
 * One message can be taken back, too (endpoint_withdraw.c). Where the peer
 * still moves data for it, a leftover takes its place: a transfer of the
 * endpoint's own, with a copy of the data of a send, or for a receive without
 * memory, so that what comes is dropped.
 *
 * A sender counts what its eager messages cost, and the receiver what it has
 * received of them; the difference stays within the credit (match.h). Without
 * credit a message is offered, so nobody ever waits for credit.
 *
 * Scratch words of a send: 0 links it, 1 is its number, once accepted that of
 * the receive, 2 the kind of its header; of an arriving receive: 1 is its
 * number, 2 how much has come, 3 how much of that or on its way, 4 the number
 * of the offer. The others are the transport's, but 5 is the match's. Only the
 * driver touches an endpoint.
 */
#ifndef OARI_LINK_ENDPOINT_H
#define OARI_LINK_ENDPOINT_H

#include "base/vec.h"
#include "link/match.h"

enum oari_header_kind {
    OARI_HEADER_EAGER = 1,
    OARI_HEADER_OFFER,
    OARI_HEADER_DONE,
    OARI_HEADER_ACCEPT,
    OARI_HEADER_DATA,
    OARI_HEADER_CREDIT,
    OARI_HEADER_REVOKE
};

/* Shared memory brings it as it is; TCP has a frame of its own. */
typedef struct oari_header {
    uint32_t kind;
    uint32_t status; /* DONE: an oar_status; with data: the transport's */
    uint64_t bytes, tag;
    uint64_t number;  /* OFFER, its answer, REVOKE: the send's; DATA: the
                        receive's */
    uint64_t word[3]; /* ACCEPT: the first is the receive's number. OFFER: two
                         are the transport's, as is the third of any */
} oari_header;

typedef struct oari_endpoint oari_endpoint;

/* What a transport made of a header and its data. */
enum oari_written {
    OARI_WROTE_NOTHING, /* there is no room: it is asked again */
    OARI_WROTE_HEADER,  /* the transport will write the data, and finish t */
    OARI_WROTE_ALL
};

typedef struct oari_transport {
    /* Writes a header and, of EAGER and DATA, what it can of t's data. */
    enum oari_written (*write)(oari_endpoint *e, oari_header *h,
                               oar_transfer *t);
    /* Something is queued: writes it, by oari_endpoint_write_next, as far as
     * there is room, and wakes the peer. */
    void (*flush)(oari_endpoint *e);
    /* The receive of an offer is there: gets its data. (optional) default:
     * oari_endpoint_accept */
    void (*fetch)(oari_endpoint *e, const oari_offer *offer,
                  oar_transfer *receive);
    /* The data of a send is wanted. (optional) default: it is queued as DATA */
    oar_status (*move)(oari_endpoint *e, oar_transfer *send);
    /* Reads the credit that the peer has given back. (optional) default: it
     * comes with headers */
    uint64_t (*credit)(const oari_endpoint *e);
    /* An offer is being taken back: returns when the peer cannot use any more
     * what it reads of the data. (optional) default: the peer reads none */
    void (*revoke)(oari_endpoint *e);
    /* The peer takes an offer back: returns the receive that the transport gets
     * its data for, and forgets it; NULL: there is none. (optional) */
    oar_transfer *(*forget)(oari_endpoint *e, uint64_t offer);
} oari_transport;

/* What all endpoints of a link share. */
typedef struct oari_message_link {
    const oari_transport *transport;
    void *self;
    oari_match *match;
    oar_status failed; /* what a call that cannot fail came to */
} oari_message_link;

struct oari_endpoint {
    oari_message_link *link;
    int index, rank; /* the peer's, for the transport and in the group */
    oari_taker taker;
    uint64_t number;                 /* of the last send or receive */
    uint64_t spent, back;            /* credit of mine: since the beginning */
    uint64_t told;                   /* credit of the peer's that it knows of */
    oari_transfer_list queue;        /* sends whose header has to be written */
    oari_transfer_list offered;      /* sends that wait for an answer */
    oari_transfer_list arriving;     /* receives that wait for DATA */
    OARI_VEC(oari_header) answers;   /* to be written before the queue ... */
    int64_t answered;                /* ... of which so many are */
    struct oari_leftover *leftovers; /* endpoint_withdraw.c */
    OARI_VEC(uint64_t) revoked;      /* offers taken back, and not answered */
};

void oari_endpoint_init(oari_endpoint *e, oari_message_link *link, int index,
                        int rank);
/* Finishes all that it knows with that status. */
void oari_endpoint_end(oari_endpoint *e, oar_status why);
void oari_endpoint_clear(oari_endpoint *e); /* frees */

/* ---- taking back (endpoint_withdraw.c) ----------------------------------- */

/* Takes back a send none of whose data has been moved: 1. gone: the peer is, so
 * it may be in any list. Returns 0 if it is not one of those. */
int oari_endpoint_withdraw_send(oari_endpoint *e, oar_transfer *t, int gone);
/* Puts a leftover in the place of a receive whose data is coming, and returns
 * it; NULL: there is no such receive, or no memory. */
oar_transfer *oari_endpoint_withdraw_arriving(oari_endpoint *e,
                                              oar_transfer *t);
/* Makes a leftover of a send, with a copy of its data from `at` on; NULL: no
 * memory. */
oar_transfer *oari_endpoint_copy_send(oari_endpoint *e, const oar_transfer *t,
                                      size_t at);
/* Acts on a REVOKE. */
void oari_endpoint_hear_revoke(oari_endpoint *e, uint64_t number);
/* Returns whether the offer was taken back, and forgets that. */
int oari_endpoint_was_revoked(oari_endpoint *e, uint64_t number);
/* Frees leftovers that are done; all: every one. */
void oari_endpoint_sweep(oari_endpoint *e, int all);

/* Acts on a header that has come, of any kind but EAGER and DATA. OAR_E_DATA if
 * it makes no sense. */
oar_status oari_endpoint_hear(oari_endpoint *e, const oari_header *h);

/* Queues an answer before all messages. */
void oari_endpoint_answer(oari_endpoint *e, const oari_header *h);
/* Asks for the data of the offer with that number. */
void oari_endpoint_accept(oari_endpoint *e, uint64_t offer,
                          oar_transfer *receive);

/* Returns the receive of data that begins; NULL: there is none that lacks such
 * a part. And counts the part when it has come. */
oar_transfer *oari_endpoint_arriving(oari_endpoint *e, uint64_t number,
                                     uint64_t at, uint64_t bytes);
void oari_endpoint_arrived(oari_endpoint *e, oar_transfer *t, uint64_t bytes);

/* Sends a CREDIT when a quarter of the peer's credit is due: for a peer that
 * would not hear of it otherwise. */
void oari_endpoint_give_credit(oari_endpoint *e);

/* Returns the credit to be put into a header that is being written. */
static inline uint64_t oari_endpoint_told(oari_endpoint *e)
{
    return e->told = oari_match_received(e->link->match, e->rank);
}

/* Takes over the credit, or its lower half, of a header that has come; headers
 * may have overtaken each other. */
static inline void oari_endpoint_hear_credit(oari_endpoint *e, uint64_t credit)
{
    uint32_t more = (uint32_t)credit - (uint32_t)e->back;

    if (more <= e->spent - e->back)
        e->back += more;
}

/* ---- the fast path -------------------------------------------------------
 * `by` is link->transport; as a constant it costs no indirect call. */

/* Writes the next answer or message; 0: there is none, or no room. */
static inline int oari_endpoint_write_next(oari_endpoint *e,
                                           const oari_transport *by)
{
    oar_transfer *t = e->queue.first;
    oari_header h = { 0 };
    enum oari_written wrote;

    if (e->answers.count != 0) {
        h = e->answers.data[e->answered];
        if (by->write(e, &h, NULL) == OARI_WROTE_NOTHING)
            return 0;
        if (++e->answered == e->answers.count)
            e->answered = e->answers.count = 0;
        return 1;
    }
    if (t == NULL)
        return 0;
    h.kind = (uint32_t)oari_scratch(t, 2);
    h.bytes = t->bytes;
    h.tag = t->tag;
    h.number = oari_scratch(t, 1);
    wrote = by->write(e, &h, t);
    if (wrote == OARI_WROTE_NOTHING)
        return 0;
    oari_transfer_list_remove(&e->queue, NULL, t);
    if (oari_scratch(t, 2) == OARI_HEADER_OFFER)
        oari_transfer_list_push(&e->offered, t);
    else if (wrote == OARI_WROTE_ALL)
        oari_transfer_finish(t, OAR_OK);
    return 1;
}

/* Queues a send, eager up to that size, and flushes. */
static inline void oari_endpoint_send(oari_endpoint *e,
                                      const oari_transport *by, oar_transfer *t,
                                      size_t eager_bytes)
{
    const oari_match *match = e->link->match;
    int eager = !t->synchronous && t->bytes <= eager_bytes;

    if (eager && !oari_match_has_credit(match, e->spent, e->back, t->bytes)) {
        if (by->credit != NULL)
            e->back = by->credit(e);
        eager = by->credit != NULL &&
                oari_match_has_credit(match, e->spent, e->back, t->bytes);
    }
    if (eager)
        e->spent += oari_credit_cost(t->bytes);
    oari_scratch_set(t, 1, ++e->number);
    oari_scratch_set(t, 2, eager ? OARI_HEADER_EAGER : OARI_HEADER_OFFER);
    oari_transfer_list_push(&e->queue, t);
    by->flush(e);
}

#endif
