/* SPDX-License-Identifier: Apache-2.0 */
/* relay: see relay.h.
 *
 * Whatever is put or got, but for the gates, is a crate in one list: a head
 * with its data, or the data of an offer, which lies in the user's buffer.
 * A gate is where heads come in: one for each peer, or one for all.
 *
 * Both sides use the lane of an offer in the order of the go-heads: the
 * receiver asks for the block before it says go, the sender puts it when it
 * hears it. So two offers on one lane do not meet.
 */
#include "link/relay.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "link/match.h"

enum kind { PUSH = 1, OFFER, GO, CREDIT };
enum { HEARD_AT_ONCE = 64 /* heads of a gate, before looking around again */ };

typedef struct head {
    uint32_t kind;
    uint32_t status; /* of a GO: OAR_E_SIZE: the receive had another size */
    uint64_t tag;
    uint64_t bytes;
    uint64_t serial; /* of an OFFER and its GO: the sender's */
    uint64_t credit; /* all that was given back, match.h */
} head;

typedef struct crate {
    oari_parcel parcel;
    struct crate *next;
    oar_transfer *transfer; /* whose data it is; NULL: a head's, or given up */
    int put;                /* or else got */
    unsigned char data[];   /* of a head */
} crate;

typedef struct gate {
    oari_parcel parcel;
    unsigned char data[];
} gate;

typedef struct partner {
    oari_transfer_list
        offered; /* sends that wait for their GO; scratch[1]: serial */
    uint64_t serial;
    uint64_t spent, back; /* credit of ours there */
    uint64_t told;        /* credit of theirs that they know of */
} partner;

struct oari_relay {
    oari_courier courier;
    int rank, ranks;
    size_t eager_bytes;
    oari_match *match;
    oari_taker taker;
    oar_status aborted;
    oar_status failed; /* what a call that cannot fail came to */
    int gates;
    int armed;  /* so many of them are */
    int offers; /* sends that wait for their GO */
    gate **gate;
    partner *peer;
    crate *crates;
};

static void take(void *self, const oari_offer *offer, oar_transfer *receive);

/* ---- making -------------------------------------------------------------- */

static oar_status make_gates(oari_relay *r)
{
    r->gates = r->ranks == 1 ? 0 : r->courier.mixed ? 1 : r->ranks;
    r->gate = oari_alloc((size_t)r->gates, sizeof(gate *));
    if (r->gate == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < r->gates; i++) {
        size_t bytes = sizeof(head) + r->eager_bytes;
        gate *made = oari_alloc(1, sizeof *made + bytes);
        if (made == NULL)
            return OAR_E_NOMEM;
        r->gate[i] = made;
        made->parcel.bytes = bytes;
        made->parcel.data = made->data;
    }
    return OAR_OK;
}

oar_status oari_relay_create(const oari_courier *courier, int rank, int ranks,
                             size_t eager_bytes, oari_relay **relay)
{
    oari_relay *r = oari_alloc(1, sizeof *r);
    oar_status status;

    if (r == NULL)
        return OAR_E_NOMEM;
    r->courier = *courier;
    r->rank = rank;
    r->ranks = ranks;
    r->eager_bytes = eager_bytes;
    r->taker = (oari_taker){ take, r };
    status = oari_match_create(rank, ranks, eager_bytes, &r->match);
    if (status == OAR_OK &&
        (r->peer = oari_alloc((size_t)ranks, sizeof *r->peer)) == NULL)
        status = OAR_E_NOMEM;
    if (status == OAR_OK)
        status = make_gates(r);
    if (status != OAR_OK) {
        oari_relay_destroy(r);
        return status;
    }
    *relay = r;
    return OAR_OK;
}

/* Heads of peers can wait in the engine until somebody here wants messages: so
 * a group that only runs the engine's collectives has nothing to look after. */
static oar_status arm(oari_relay *r)
{
    for (; r->armed < r->gates; r->armed++) {
        oari_parcel *parcel = &r->gate[r->armed]->parcel;
        parcel->peer = r->courier.mixed ? -1 : r->armed;
        parcel->lane = 0;
        if (parcel->peer != r->rank)
            OARI_TRY(r->courier.get(r->courier.self, parcel));
    }
    return OAR_OK;
}

/* ---- crates -------------------------------------------------------------- */

static crate *make_crate(int to, uint32_t lane, size_t room)
{
    crate *made = oari_alloc(1, sizeof *made + room);

    if (made == NULL)
        return NULL;
    made->parcel.peer = to;
    made->parcel.lane = lane;
    made->parcel.data = made->data;
    made->parcel.bytes = room;
    return made;
}

/* Starts it; what could not be started is gone. */
static oar_status dispatch(oari_relay *r, crate *c)
{
    oar_status status = c->put ? r->courier.put(r->courier.self, &c->parcel)
                               : r->courier.get(r->courier.self, &c->parcel);

    if (status != OAR_OK || c->parcel.done) {
        status = status != OAR_OK ? status : c->parcel.status;
        if (c->transfer != NULL)
            oari_transfer_finish(c->transfer, status);
        oari_free(c);
        return status;
    }
    c->next = r->crates;
    r->crates = c;
    return OAR_OK;
}

static oar_status put_head(oari_relay *r, int to, head h, const void *data)
{
    size_t bytes = data != NULL ? h.bytes : 0;
    crate *c = make_crate(to, 0, sizeof h + bytes);

    if (c == NULL)
        return OAR_E_NOMEM;
    h.credit = oari_match_received(r->match, to);
    r->peer[to].told = h.credit;
    memcpy(c->data, &h, sizeof h);
    if (bytes != 0)
        memcpy(c->data + sizeof h, data, bytes);
    c->put = 1;
    return dispatch(r, c);
}

/* The data of an offer, out of or into the user's buffer. */
static oar_status move_data(oari_relay *r, int with, uint64_t serial,
                            oar_transfer *t, int put)
{
    uint32_t lane = 1 + (uint32_t)(serial % (r->courier.lanes - 1));
    crate *c = make_crate(with, lane, 0);

    if (c == NULL) {
        oari_transfer_finish(t, OAR_E_NOMEM);
        return OAR_E_NOMEM;
    }
    c->parcel.data = t->data;
    c->parcel.bytes = t->bytes;
    c->transfer = t;
    c->put = put;
    return dispatch(r, c);
}

/* Ends what has moved. */
static oar_status collect(oari_relay *r)
{
    oar_status status = OAR_OK;
    crate **at = &r->crates;

    while (*at != NULL) {
        crate *c = *at;
        if (!c->parcel.done) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        if (c->parcel.status != OAR_OK)
            status = c->parcel.status;
        if (c->transfer != NULL)
            oari_transfer_finish(c->transfer, c->parcel.status);
        oari_free(c);
    }
    return status;
}

/* ---- what comes ---------------------------------------------------------- */

static oar_status nonsense(int from, const head *h)
{
    return oari_fail(OAR_E_DATA,
                     "rank %d sent a head of kind %u that makes no sense", from,
                     h->kind);
}

/* Of a peer that only sends, it hears when a quarter is due. */
static oar_status give_credit(oari_relay *r, int to)
{
    uint64_t due = oari_match_received(r->match, to) - r->peer[to].told;

    if (due < oari_match_credit(r->match) / 4)
        return OAR_OK;
    return put_head(r, to, (head){ .kind = CREDIT }, NULL);
}

static oar_status hear_push(oari_relay *r, int from, const head *h,
                            const unsigned char *data)
{
    oari_inbound in;

    if (h->bytes > r->eager_bytes)
        return nonsense(from, h);
    OARI_TRY(oari_match_begin(r->match, from, h->tag, h->bytes, &in));
    if (in.target != NULL && h->bytes != 0)
        memcpy(in.target, data, h->bytes);
    oari_match_end(r->match, &in);
    return give_credit(r, from);
}

static oar_status hear_offer(oari_relay *r, int from, const head *h)
{
    oari_offer offer = {
        .source = from, .tag = h->tag, .bytes = h->bytes, .word = { h->serial }
    };

    return oari_match_offer(r->match, &offer, &r->taker);
}

static oar_status hear_go(oari_relay *r, int from, const head *h)
{
    oar_transfer *t =
        oari_transfer_list_take(&r->peer[from].offered, h->serial);

    if (t == NULL)
        return nonsense(from, h);
    r->offers--;
    if (h->status == OAR_OK && t->bytes != 0)
        return move_data(r, from, h->serial, t, 1);
    oari_transfer_finish(t, h->status == OAR_OK ? OAR_OK : OAR_E_SIZE);
    return OAR_OK;
}

static oar_status hear(oari_relay *r, int from, const unsigned char *data)
{
    head h;

    memcpy(&h, data, sizeof h);
    if (from < 0 || from >= r->ranks || from == r->rank)
        return nonsense(from, &h);
    if (h.credit > r->peer[from].back && h.credit <= r->peer[from].spent)
        r->peer[from].back = h.credit;
    switch (h.kind) {
    case PUSH: return hear_push(r, from, &h, data + sizeof h);
    case OFFER: return hear_offer(r, from, &h);
    case GO: return hear_go(r, from, &h);
    case CREDIT: return OAR_OK;
    default: return nonsense(from, &h);
    }
}

static oar_status watch_gate(oari_relay *r, gate *g)
{
    oari_parcel *parcel = &g->parcel;

    for (int i = 0; i < HEARD_AT_ONCE && parcel->done; i++) {
        OARI_TRY(parcel->status);
        OARI_TRY(hear(r, parcel->peer, g->data));
        parcel->done = 0;
        parcel->bytes = sizeof(head) + r->eager_bytes;
        if (r->courier.mixed)
            parcel->peer = -1;
        OARI_TRY(r->courier.get(r->courier.self, parcel));
    }
    return OAR_OK;
}

oar_status oari_relay_progress(oari_relay *relay)
{
    oar_status status = collect(relay);

    if (relay->aborted != OAR_OK)
        return OAR_OK;
    for (int i = 0; i < relay->armed && status == OAR_OK; i++)
        status = watch_gate(relay, relay->gate[i]);
    return status != OAR_OK ? status : relay->failed;
}

/* ---- what is taken ------------------------------------------------------- */

/* Asks for the block before it says go. */
static oar_status fetch(oari_relay *r, const oari_offer *offer,
                        oar_transfer *receive)
{
    head go = { .kind = GO, .serial = offer->word[0] };

    if (receive == NULL)
        go.status = OAR_E_SIZE;
    else if (offer->bytes == 0)
        oari_transfer_finish(receive, OAR_OK);
    else
        OARI_TRY(move_data(r, offer->source, go.serial, receive, 0));
    return put_head(r, offer->source, go, NULL);
}

static void take(void *self, const oari_offer *offer, oar_transfer *receive)
{
    oari_relay *r = self;
    oar_status status = fetch(r, offer, receive);

    if (status != OAR_OK)
        r->failed = status;
}

/* ---- what is asked ------------------------------------------------------- */

static int may_push(const oari_relay *r, const oar_transfer *t)
{
    const partner *p = &r->peer[t->peer];

    return !t->synchronous && t->bytes <= r->eager_bytes &&
           oari_match_has_credit(r->match, p->spent, p->back, t->bytes);
}

static oar_status push(oari_relay *r, oar_transfer *t)
{
    head h = { .kind = PUSH, .tag = t->tag, .bytes = t->bytes };

    r->peer[t->peer].spent += oari_credit_cost(t->bytes);
    OARI_TRY(put_head(r, t->peer, h, t->data));
    oari_transfer_finish(t, OAR_OK);
    return OAR_OK;
}

static oar_status offer(oari_relay *r, oar_transfer *t)
{
    partner *p = &r->peer[t->peer];
    head h = {
        .kind = OFFER, .tag = t->tag, .bytes = t->bytes, .serial = ++p->serial
    };

    OARI_TRY(arm(r));
    oari_scratch_set(t, 1, h.serial);
    OARI_TRY(put_head(r, t->peer, h, NULL));
    oari_transfer_list_push(&p->offered, t);
    r->offers++;
    return OAR_OK;
}

oar_status oari_relay_send(oari_relay *relay, oar_transfer *transfer)
{
    if (relay->aborted != OAR_OK) {
        oari_transfer_finish(transfer, relay->aborted);
        return OAR_OK;
    }
    if (transfer->peer == relay->rank)
        return oari_match_send_self(relay->match, transfer);
    return may_push(relay, transfer) ? push(relay, transfer)
                                     : offer(relay, transfer);
}

oar_status oari_relay_recv(oari_relay *relay, oar_transfer *transfer)
{
    if (relay->aborted == OAR_OK)
        OARI_TRY(arm(relay));
    OARI_TRY(oari_match_recv(relay->match, transfer));
    return relay->failed;
}

int oari_relay_peek(oari_relay *relay, int peer, uint64_t tag, uint64_t any,
                    oar_envelope *found)
{
    oar_status status = relay->aborted == OAR_OK ? arm(relay) : OAR_OK;

    if (status != OAR_OK)
        relay->failed = status;
    return oari_match_peek(relay->match, peer, tag, any, found);
}

int oari_relay_idle(const oari_relay *relay)
{
    return relay->crates == NULL && relay->offers == 0 &&
           relay->failed == OAR_OK && oari_match_posted(relay->match) == 0;
}

int oari_relay_leaving(const oari_relay *relay)
{
    int leaving = 0;

    for (const crate *c = relay->crates; c != NULL; c = c->next)
        leaving += c->put && !c->parcel.done;
    return leaving;
}

/* ---- the end ------------------------------------------------------------- */

static int drop(oari_relay *r, oari_parcel *parcel)
{
    return r->courier.drop == NULL || r->courier.drop(r->courier.self, parcel);
}

/* The buffer is its owner's again, so far as the engine lets go of it. */
static void give_up(oari_relay *r, crate *c, oar_status why)
{
    oar_transfer *t = c->transfer;

    if (t == NULL)
        return;
    c->transfer = NULL;
    if (!c->parcel.done && drop(r, &c->parcel))
        c->parcel.done = 1;
    oari_transfer_finish(t, why);
}

void oari_relay_abort(oari_relay *relay, oar_status why)
{
    if (relay->aborted != OAR_OK)
        return;
    relay->aborted = why;
    for (crate *c = relay->crates; c != NULL; c = c->next)
        give_up(relay, c, why);
    for (int i = 0; i < relay->ranks; i++)
        oari_transfer_list_finish(&relay->peer[i].offered, why);
    relay->offers = 0;
    oari_match_abort(relay->match, why);
}

static void drop_gates(oari_relay *r)
{
    for (int i = 0; r->gate != NULL && i < r->gates; i++) {
        gate *g = r->gate[i];
        int open = g != NULL && i < r->armed && g->parcel.peer != r->rank &&
                   !g->parcel.done;

        if (!open || drop(r, &g->parcel))
            oari_free(g);
    }
    oari_free(r->gate);
}

void oari_relay_destroy(oari_relay *relay)
{
    if (relay == NULL)
        return;
    while (relay->crates != NULL) {
        crate *c = relay->crates;
        relay->crates = c->next;
        if (c->parcel.done || drop(relay, &c->parcel))
            oari_free(c);
    }
    drop_gates(relay);
    oari_match_destroy(relay->match);
    oari_free(relay->peer);
    oari_free(relay);
}
