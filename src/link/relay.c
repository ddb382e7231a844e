/* SPDX-License-Identifier: Apache-2.0 */
/* relay: see relay.h.
 *
 * A request is a chunk of the engine's that is under way, in one list: a header
 * with its eager data, or the data of an offer, which lies in the user's
 * buffer. A header receive is where headers come in: one for each peer, or one
 * for all. Every header carries the credit in its third word.
 *
 * Both sides use the lane of an offer in the order of the ACCEPTs: the receiver
 * asks for the chunk before it accepts, the sender puts it when it hears that.
 * So two offers on one lane do not meet.
 */
#include "link/relay.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "link/endpoint.h"

enum {
    HEARD_AT_ONCE = 64 /* headers of a peer, before anything else is done */
};

typedef struct request {
    oari_parcel chunk;
    struct request *next;
    oar_transfer *transfer; /* whose data it is; NULL: a header, or given up */
    int sends;              /* or else receives */
    unsigned char data[];   /* of a header */
} request;

typedef struct header_receive {
    oari_parcel chunk;
    unsigned char data[];
} header_receive;

struct oari_relay {
    oari_courier engine;
    oari_message_link link;
    int rank, ranks;
    size_t eager_bytes;
    oar_status aborted;
    int receives;             /* of headers */
    int armed;                /* so many of them are */
    header_receive **receive; /* by rank, or one for all */
    oari_endpoint *peer;      /* by rank */
    request *requests;
};

/* ---- requests ------------------------------------------------------------ */

static request *make_request(int peer, uint32_t lane, size_t room)
{
    request *made = oari_alloc(1, sizeof *made + room);

    if (made == NULL)
        return NULL;
    made->chunk.peer = peer;
    made->chunk.lane = lane;
    made->chunk.data = made->data;
    made->chunk.bytes = room;
    return made;
}

static oar_status end_request(request *ended, oar_status status)
{
    if (ended->transfer != NULL)
        oari_transfer_finish(ended->transfer, status);
    oari_free(ended);
    return status;
}

/* Starts it; one that could not be started is gone. */
static oar_status start_request(oari_relay *r, request *made)
{
    oar_status status = (made->sends ? r->engine.put : r->engine.get)(
        r->engine.self, &made->chunk);

    if (status != OAR_OK || made->chunk.done)
        return end_request(made,
                           status != OAR_OK ? status : made->chunk.status);
    made->next = r->requests;
    r->requests = made;
    return OAR_OK;
}

/* Ends those that are done. */
static oar_status end_requests(oari_relay *r)
{
    oar_status status = OAR_OK;
    request **at = &r->requests;

    while (*at != NULL) {
        request *each = *at;
        oar_status ended;
        if (!each->chunk.done) {
            at = &each->next;
            continue;
        }
        *at = each->next;
        ended = end_request(each, each->chunk.status);
        if (ended != OAR_OK)
            status = ended;
    }
    return status;
}

/* ---- the transport ------------------------------------------------------- */

/* An engine takes every header. The data is copied behind it. */
static enum oari_written write_header(oari_endpoint *e, oari_header *h,
                                      oar_transfer *t)
{
    oari_relay *r = e->link->self;
    size_t bytes = h->kind == OARI_HEADER_EAGER ? h->bytes : 0;
    request *made = make_request(e->rank, 0, sizeof *h + bytes);
    oar_status status = OAR_E_NOMEM;

    h->word[2] = oari_endpoint_told(e);
    if (made != NULL) {
        memcpy(made->data, h, sizeof *h);
        if (bytes != 0)
            memcpy(made->data + sizeof *h, t->data, bytes);
        made->sends = 1;
        status = start_request(r, made);
    }
    if (status != OAR_OK)
        r->link.failed = status;
    return OARI_WROTE_ALL;
}

static void flush(oari_endpoint *e)
{
    while (oari_endpoint_write_next(e, e->link->transport))
        ;
}

/* The data of an offer, out of or into the user's buffer. */
static oar_status move_data(oari_endpoint *e, oar_transfer *t, int sends)
{
    oari_relay *r = e->link->self;
    uint64_t lane = 1 + oari_scratch(t, 1) % (r->engine.lanes - 1);
    request *made = make_request(e->rank, (uint32_t)lane, 0);

    if (made == NULL) {
        oari_transfer_finish(t, OAR_E_NOMEM);
        return OAR_E_NOMEM;
    }
    made->chunk.data = t->data;
    made->chunk.bytes = t->bytes;
    made->transfer = t;
    made->sends = sends;
    return start_request(r, made);
}

static oar_status send_data(oari_endpoint *e, oar_transfer *send)
{
    return move_data(e, send, 1);
}

/* Asks for the chunk before it accepts. */
static void fetch(oari_endpoint *e, const oari_offer *offer,
                  oar_transfer *receive)
{
    oari_header h = { .kind = OARI_HEADER_ACCEPT,
                      .number = offer->word[0],
                      .word = { ++e->number } };
    oar_status status;

    oari_scratch_set(receive, 1, h.word[0]);
    status = move_data(e, receive, 0);
    if (status != OAR_OK)
        e->link->failed = status;
    else
        oari_endpoint_answer(e, &h);
}

static const oari_transport transport = {
    .write = write_header, .flush = flush, .fetch = fetch, .move = send_data
};

/* ---- what comes ---------------------------------------------------------- */

/* Headers of peers can wait in the engine until somebody here wants messages:
 * so a group that only runs the engine's collectives has nothing to look
 * after. */
static oar_status arm(oari_relay *r)
{
    for (; r->armed < r->receives; r->armed++) {
        oari_parcel *chunk = &r->receive[r->armed]->chunk;
        chunk->peer = r->engine.mixed ? -1 : r->armed;
        chunk->lane = 0;
        if (chunk->peer != r->rank)
            OARI_TRY(r->engine.get(r->engine.self, chunk));
    }
    return OAR_OK;
}

static oar_status hear(oari_relay *r, int from, const unsigned char *data)
{
    oari_endpoint *e = &r->peer[from];
    oari_inbound in;
    oari_header h;

    memcpy(&h, data, sizeof h);
    oari_endpoint_hear_credit(e, h.word[2]);
    if (h.kind != OARI_HEADER_EAGER || h.bytes > r->eager_bytes)
        return oari_endpoint_hear(e, &h);
    OARI_TRY(oari_match_begin(r->link.match, from, h.tag, h.bytes, &in));
    if (in.target != NULL && h.bytes != 0)
        memcpy(in.target, data + sizeof h, h.bytes);
    oari_match_end(r->link.match, &in);
    oari_endpoint_give_credit(e);
    return OAR_OK;
}

static oar_status hear_some(oari_relay *r, header_receive *from)
{
    oari_parcel *chunk = &from->chunk;

    for (int i = 0; i < HEARD_AT_ONCE && chunk->done; i++) {
        OARI_TRY(chunk->status);
        if (chunk->peer < 0 || chunk->peer >= r->ranks ||
            chunk->peer == r->rank)
            return oari_fail(OAR_E_DATA, "a header came from rank %d",
                             chunk->peer);
        OARI_TRY(hear(r, chunk->peer, from->data));
        chunk->done = 0;
        chunk->bytes = sizeof(oari_header) + r->eager_bytes;
        if (r->engine.mixed)
            chunk->peer = -1;
        OARI_TRY(r->engine.get(r->engine.self, chunk));
    }
    return OAR_OK;
}

oar_status oari_relay_progress(oari_relay *relay)
{
    oar_status status = end_requests(relay);

    if (relay->aborted != OAR_OK)
        return OAR_OK;
    for (int i = 0; i < relay->armed && status == OAR_OK; i++)
        status = hear_some(relay, relay->receive[i]);
    return status != OAR_OK ? status : relay->link.failed;
}

/* ---- what is asked ------------------------------------------------------- */

oar_status oari_relay_send(oari_relay *relay, oar_transfer *transfer)
{
    oari_endpoint *e = &relay->peer[transfer->peer];

    if (relay->aborted != OAR_OK) {
        oari_transfer_finish(transfer, relay->aborted);
        return OAR_OK;
    }
    if (transfer->peer == relay->rank)
        return oari_match_send_self(relay->link.match, transfer);
    oari_endpoint_send(e, &transport, transfer, relay->eager_bytes);
    if (relay->link.failed == OAR_OK && !transfer->done)
        relay->link.failed = arm(relay); /* for the answer */
    if (relay->link.failed != OAR_OK)
        oari_transfer_list_take(&e->offered,
                                e->number); /* it is the caller's again */
    return relay->link.failed;
}

oar_status oari_relay_recv(oari_relay *relay, oar_transfer *transfer)
{
    if (relay->aborted == OAR_OK)
        OARI_TRY(arm(relay));
    OARI_TRY(oari_match_recv(relay->link.match, transfer));
    return relay->link.failed;
}

int oari_relay_peek(oari_relay *relay, int peer, uint64_t tag, uint64_t any,
                    oar_envelope *found)
{
    oar_status status = relay->aborted == OAR_OK ? arm(relay) : OAR_OK;

    if (status != OAR_OK)
        relay->link.failed = status;
    return oari_match_peek(relay->link.match, peer, tag, any, found);
}

int oari_relay_idle(const oari_relay *relay)
{
    return relay->requests == NULL && relay->link.offered == 0 &&
           relay->link.failed == OAR_OK &&
           oari_match_posted(relay->link.match) == 0;
}

int oari_relay_leaving(const oari_relay *relay)
{
    int leaving = 0;

    for (const request *each = relay->requests; each != NULL; each = each->next)
        leaving += each->sends && !each->chunk.done;
    return leaving;
}

/* ---- making and ending --------------------------------------------------- */

oar_status oari_relay_create(const oari_courier *courier, int rank, int ranks,
                             size_t eager_bytes, oari_relay **relay)
{
    size_t bytes = sizeof(oari_header) + eager_bytes;
    oari_relay *r = oari_alloc(1, sizeof *r);

    if (r == NULL)
        return OAR_E_NOMEM;
    r->engine = *courier;
    r->link = (oari_message_link){ .transport = &transport, .self = r };
    r->rank = rank;
    r->ranks = ranks;
    r->eager_bytes = eager_bytes;
    r->receives = ranks == 1 ? 0 : courier->mixed ? 1 : ranks;
    if (oari_match_create(rank, ranks, eager_bytes, &r->link.match) != OAR_OK)
        goto fail;
    r->peer = oari_alloc((size_t)ranks, sizeof *r->peer);
    r->receive = oari_alloc((size_t)r->receives, sizeof *r->receive);
    if (r->peer == NULL || r->receive == NULL)
        goto fail;
    for (int i = 0; i < ranks; i++)
        oari_endpoint_init(&r->peer[i], &r->link, i, i);
    for (int i = 0; i < r->receives; i++) {
        header_receive *made = oari_alloc(1, sizeof *made + bytes);
        if (made == NULL)
            goto fail;
        r->receive[i] = made;
        made->chunk.bytes = bytes;
        made->chunk.data = made->data;
    }
    *relay = r;
    return OAR_OK;

fail:
    oari_relay_destroy(r);
    return OAR_E_NOMEM;
}

static int drop(oari_relay *r, oari_parcel *chunk)
{
    return r->engine.drop == NULL || r->engine.drop(r->engine.self, chunk);
}

void oari_relay_abort(oari_relay *relay, oar_status why)
{
    if (relay->aborted != OAR_OK)
        return;
    relay->aborted = why;
    for (request *each = relay->requests; each != NULL; each = each->next) {
        oar_transfer *t = each->transfer;
        if (t == NULL)
            continue;
        /* The buffer is its owner's again, as far as the engine lets go. */
        each->transfer = NULL;
        if (!each->chunk.done && drop(relay, &each->chunk))
            each->chunk.done = 1;
        oari_transfer_finish(t, why);
    }
    for (int i = 0; i < relay->ranks; i++)
        oari_endpoint_end(&relay->peer[i], why);
    relay->link.offered = 0;
    oari_match_abort(relay->link.match, why);
}

void oari_relay_destroy(oari_relay *relay)
{
    if (relay == NULL)
        return;
    while (relay->requests != NULL) {
        request *each = relay->requests;
        relay->requests = each->next;
        if (each->chunk.done || drop(relay, &each->chunk))
            oari_free(each);
    }
    for (int i = 0; relay->receive != NULL && i < relay->receives; i++) {
        header_receive *each = relay->receive[i];
        int open = each != NULL && i < relay->armed &&
                   each->chunk.peer != relay->rank && !each->chunk.done;

        if (!open || drop(relay, &each->chunk))
            oari_free(each);
    }
    oari_free(relay->receive);
    for (int i = 0; relay->peer != NULL && i < relay->ranks; i++)
        oari_endpoint_clear(&relay->peer[i]);
    oari_match_destroy(relay->link.match);
    oari_free(relay->peer);
    oari_free(relay);
}
