/* SPDX-License-Identifier: Apache-2.0 */
/* chunk_link: see chunk_link.h.
 *
 * Headers arrive in inboxes: one for each peer, or one for all. Every other
 * chunk under way is in the pending list: a header that is sent, or the data of
 * an offer, which lies in the user's buffer.
 *
 * Both sides use the lane of an offer in the order of the GO headers: the
 * receiver posts the get before it sends GO, the sender puts when GO arrives.
 * So two offers on one lane do not meet.
 */
#include "link/chunk_link.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "link/match.h"

enum kind { EAGER = 1, OFFER, GO, CREDIT };
enum {
    HEADERS_AT_ONCE = 64 /* headers read from an inbox in one progress */
};

typedef struct header {
    uint32_t kind;
    uint32_t status; /* of a GO: OAR_E_SIZE: the receive had another size */
    uint64_t tag;
    uint64_t bytes;
    uint64_t serial; /* of an OFFER and its GO: the sender's */
    uint64_t credit; /* all that was given back, match.h */
} header;

typedef struct pending_chunk {
    oari_chunk chunk;
    struct pending_chunk *next;
    oar_transfer
        *transfer;        /* whose data it is; NULL: a header's, or given up */
    int put;              /* or else got */
    unsigned char data[]; /* of a header */
} pending_chunk;

typedef struct inbox {
    oari_chunk chunk;
    unsigned char data[];
} inbox;

typedef struct partner {
    oari_transfer_list
        offered; /* sends that wait for their GO; scratch[1]: serial */
    uint64_t serial;
    uint64_t spent, back; /* credit of ours there */
    uint64_t told;        /* credit of theirs that they know of */
} partner;

struct oari_chunk_link {
    oari_chunk_transport transport;
    int rank, ranks;
    size_t eager_bytes;
    oari_match *match;
    oari_taker taker;
    oar_status aborted;
    oar_status failed; /* what a call that cannot fail came to */
    int inboxes;
    int inboxes_posted; /* of them, how many have a get posted */
    int offers;         /* sends that wait for their GO */
    inbox **inbox;
    partner *peer;
    pending_chunk *pending_list;
};

static void take(void *self, const oari_offer *offer, oar_transfer *receive);

/* ---- creation ------------------------------------------------------------ */

static oar_status make_inboxes(oari_chunk_link *r)
{
    r->inboxes = r->ranks == 1 ? 0 : r->transport.mixed ? 1 : r->ranks;
    r->inbox = oari_alloc((size_t)r->inboxes, sizeof(inbox *));
    if (r->inbox == NULL)
        return OAR_E_NOMEM;
    for (int i = 0; i < r->inboxes; i++) {
        size_t bytes = sizeof(header) + r->eager_bytes;
        inbox *made = oari_alloc(1, sizeof *made + bytes);
        if (made == NULL)
            return OAR_E_NOMEM;
        r->inbox[i] = made;
        made->chunk.bytes = bytes;
        made->chunk.data = made->data;
    }
    return OAR_OK;
}

oar_status oari_chunk_link_create(const oari_chunk_transport *transport,
                                  int rank, int ranks, size_t eager_bytes,
                                  oari_chunk_link **link)
{
    oari_chunk_link *r = oari_alloc(1, sizeof *r);
    oar_status status;

    if (r == NULL)
        return OAR_E_NOMEM;
    r->transport = *transport;
    r->rank = rank;
    r->ranks = ranks;
    r->eager_bytes = eager_bytes;
    r->taker = (oari_taker){ take, r };
    status = oari_match_create(rank, ranks, eager_bytes, &r->match);
    if (status == OAR_OK &&
        (r->peer = oari_alloc((size_t)ranks, sizeof *r->peer)) == NULL)
        status = OAR_E_NOMEM;
    if (status == OAR_OK)
        status = make_inboxes(r);
    if (status != OAR_OK) {
        oari_chunk_link_destroy(r);
        return status;
    }
    *link = r;
    return OAR_OK;
}

/* Headers of peers can wait in the engine until somebody here wants messages:
 * so a group that only runs the engine's collectives has nothing to look after.
 */
static oar_status post_inboxes(oari_chunk_link *r)
{
    for (; r->inboxes_posted < r->inboxes; r->inboxes_posted++) {
        oari_chunk *chunk = &r->inbox[r->inboxes_posted]->chunk;
        chunk->peer = r->transport.mixed ? -1 : r->inboxes_posted;
        chunk->lane = 0;
        if (chunk->peer != r->rank)
            OARI_TRY(r->transport.get(r->transport.self, chunk));
    }
    return OAR_OK;
}

/* ---- pending chunks ------------------------------------------------------ */

static pending_chunk *alloc_pending(int to, uint32_t lane, size_t room)
{
    pending_chunk *made = oari_alloc(1, sizeof *made + room);

    if (made == NULL)
        return NULL;
    made->chunk.peer = to;
    made->chunk.lane = lane;
    made->chunk.data = made->data;
    made->chunk.bytes = room;
    return made;
}

/* Starts a chunk; frees it if that fails or it is done at once. */
static oar_status start_chunk(oari_chunk_link *r, pending_chunk *c)
{
    oar_status status = c->put ? r->transport.put(r->transport.self, &c->chunk)
                               : r->transport.get(r->transport.self, &c->chunk);

    if (status != OAR_OK || c->chunk.done) {
        status = status != OAR_OK ? status : c->chunk.status;
        if (c->transfer != NULL)
            oari_transfer_finish(c->transfer, status);
        oari_free(c);
        return status;
    }
    c->next = r->pending_list;
    r->pending_list = c;
    return OAR_OK;
}

static oar_status send_header(oari_chunk_link *r, int to, header h,
                              const void *data)
{
    size_t bytes = data != NULL ? h.bytes : 0;
    pending_chunk *c = alloc_pending(to, 0, sizeof h + bytes);

    if (c == NULL)
        return OAR_E_NOMEM;
    h.credit = oari_match_received(r->match, to);
    r->peer[to].told = h.credit;
    memcpy(c->data, &h, sizeof h);
    if (bytes != 0)
        memcpy(c->data + sizeof h, data, bytes);
    c->put = 1;
    return start_chunk(r, c);
}

/* The data of an offer, out of or into the user's buffer. */
static oar_status move_data(oari_chunk_link *r, int with, uint64_t serial,
                            oar_transfer *t, int put)
{
    uint32_t lane = 1 + (uint32_t)(serial % (r->transport.lanes - 1));
    pending_chunk *c = alloc_pending(with, lane, 0);

    if (c == NULL) {
        oari_transfer_finish(t, OAR_E_NOMEM);
        return OAR_E_NOMEM;
    }
    c->chunk.data = t->data;
    c->chunk.bytes = t->bytes;
    c->transfer = t;
    c->put = put;
    return start_chunk(r, c);
}

/* Finishes the transfers of chunks that are done. */
static oar_status finish_chunks(oari_chunk_link *r)
{
    oar_status status = OAR_OK;
    pending_chunk **at = &r->pending_list;

    while (*at != NULL) {
        pending_chunk *c = *at;
        if (!c->chunk.done) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        if (c->chunk.status != OAR_OK)
            status = c->chunk.status;
        if (c->transfer != NULL)
            oari_transfer_finish(c->transfer, c->chunk.status);
        oari_free(c);
    }
    return status;
}

/* ---- headers that arrive ------------------------------------------------- */

static oar_status bad_header(int from, const header *h)
{
    return oari_fail(OAR_E_DATA,
                     "rank %d sent a header of kind %u that makes no sense",
                     from, h->kind);
}

/* Sends credit back to a peer when a quarter of it is due. */
static oar_status give_credit(oari_chunk_link *r, int to)
{
    uint64_t due = oari_match_received(r->match, to) - r->peer[to].told;

    if (due < oari_match_credit(r->match) / 4)
        return OAR_OK;
    return send_header(r, to, (header){ .kind = CREDIT }, NULL);
}

static oar_status handle_eager(oari_chunk_link *r, int from, const header *h,
                               const unsigned char *data)
{
    oari_inbound in;

    if (h->bytes > r->eager_bytes)
        return bad_header(from, h);
    OARI_TRY(oari_match_begin(r->match, from, h->tag, h->bytes, &in));
    if (in.target != NULL && h->bytes != 0)
        memcpy(in.target, data, h->bytes);
    oari_match_end(r->match, &in);
    return give_credit(r, from);
}

static oar_status handle_offer(oari_chunk_link *r, int from, const header *h)
{
    oari_offer offer = {
        .source = from, .tag = h->tag, .bytes = h->bytes, .word = { h->serial }
    };

    return oari_match_offer(r->match, &offer, &r->taker);
}

static oar_status handle_go(oari_chunk_link *r, int from, const header *h)
{
    oar_transfer *t =
        oari_transfer_list_take(&r->peer[from].offered, h->serial);

    if (t == NULL)
        return bad_header(from, h);
    r->offers--;
    if (h->status == OAR_OK && t->bytes != 0)
        return move_data(r, from, h->serial, t, 1);
    oari_transfer_finish(t, h->status == OAR_OK ? OAR_OK : OAR_E_SIZE);
    return OAR_OK;
}

static oar_status handle_header(oari_chunk_link *r, int from,
                                const unsigned char *data)
{
    header h;

    memcpy(&h, data, sizeof h);
    if (from < 0 || from >= r->ranks || from == r->rank)
        return bad_header(from, &h);
    if (h.credit > r->peer[from].back && h.credit <= r->peer[from].spent)
        r->peer[from].back = h.credit;
    switch (h.kind) {
    case EAGER: return handle_eager(r, from, &h, data + sizeof h);
    case OFFER: return handle_offer(r, from, &h);
    case GO: return handle_go(r, from, &h);
    case CREDIT: return OAR_OK;
    default: return bad_header(from, &h);
    }
}

static oar_status read_inbox(oari_chunk_link *r, inbox *g)
{
    oari_chunk *chunk = &g->chunk;

    for (int i = 0; i < HEADERS_AT_ONCE && chunk->done; i++) {
        OARI_TRY(chunk->status);
        OARI_TRY(handle_header(r, chunk->peer, g->data));
        chunk->done = 0;
        chunk->bytes = sizeof(header) + r->eager_bytes;
        if (r->transport.mixed)
            chunk->peer = -1;
        OARI_TRY(r->transport.get(r->transport.self, chunk));
    }
    return OAR_OK;
}

oar_status oari_chunk_link_progress(oari_chunk_link *link)
{
    oar_status status = finish_chunks(link);

    if (link->aborted != OAR_OK)
        return OAR_OK;
    for (int i = 0; i < link->inboxes_posted && status == OAR_OK; i++)
        status = read_inbox(link, link->inbox[i]);
    return status != OAR_OK ? status : link->failed;
}

/* ---- receives that match ------------------------------------------------- */

/* Posts the get, then sends GO. */
static oar_status fetch(oari_chunk_link *r, const oari_offer *offer,
                        oar_transfer *receive)
{
    header go = { .kind = GO, .serial = offer->word[0] };

    if (receive == NULL)
        go.status = OAR_E_SIZE;
    else if (offer->bytes == 0)
        oari_transfer_finish(receive, OAR_OK);
    else
        OARI_TRY(move_data(r, offer->source, go.serial, receive, 0));
    return send_header(r, offer->source, go, NULL);
}

static void take(void *self, const oari_offer *offer, oar_transfer *receive)
{
    oari_chunk_link *r = self;
    oar_status status = fetch(r, offer, receive);

    if (status != OAR_OK)
        r->failed = status;
}

/* ---- calls of the user --------------------------------------------------- */

static int may_send_eager(const oari_chunk_link *r, const oar_transfer *t)
{
    const partner *p = &r->peer[t->peer];

    return !t->synchronous && t->bytes <= r->eager_bytes &&
           oari_match_has_credit(r->match, p->spent, p->back, t->bytes);
}

static oar_status send_eager(oari_chunk_link *r, oar_transfer *t)
{
    header h = { .kind = EAGER, .tag = t->tag, .bytes = t->bytes };

    r->peer[t->peer].spent += oari_credit_cost(t->bytes);
    OARI_TRY(send_header(r, t->peer, h, t->data));
    oari_transfer_finish(t, OAR_OK);
    return OAR_OK;
}

static oar_status send_offer(oari_chunk_link *r, oar_transfer *t)
{
    partner *p = &r->peer[t->peer];
    header h = {
        .kind = OFFER, .tag = t->tag, .bytes = t->bytes, .serial = ++p->serial
    };

    OARI_TRY(post_inboxes(r));
    oari_scratch_set(t, 1, h.serial);
    OARI_TRY(send_header(r, t->peer, h, NULL));
    oari_transfer_list_push(&p->offered, t);
    r->offers++;
    return OAR_OK;
}

oar_status oari_chunk_link_send(oari_chunk_link *link, oar_transfer *transfer)
{
    if (link->aborted != OAR_OK) {
        oari_transfer_finish(transfer, link->aborted);
        return OAR_OK;
    }
    if (transfer->peer == link->rank)
        return oari_match_send_self(link->match, transfer);
    return may_send_eager(link, transfer) ? send_eager(link, transfer)
                                          : send_offer(link, transfer);
}

oar_status oari_chunk_link_recv(oari_chunk_link *link, oar_transfer *transfer)
{
    if (link->aborted == OAR_OK)
        OARI_TRY(post_inboxes(link));
    OARI_TRY(oari_match_recv(link->match, transfer));
    return link->failed;
}

int oari_chunk_link_peek(oari_chunk_link *link, int peer, uint64_t tag,
                         uint64_t any, oar_envelope *found)
{
    oar_status status = link->aborted == OAR_OK ? post_inboxes(link) : OAR_OK;

    if (status != OAR_OK)
        link->failed = status;
    return oari_match_peek(link->match, peer, tag, any, found);
}

int oari_chunk_link_idle(const oari_chunk_link *link)
{
    return link->pending_list == NULL && link->offers == 0 &&
           link->failed == OAR_OK && oari_match_posted(link->match) == 0;
}

int oari_chunk_link_leaving(const oari_chunk_link *link)
{
    int leaving = 0;

    for (const pending_chunk *c = link->pending_list; c != NULL; c = c->next)
        leaving += c->put && !c->chunk.done;
    return leaving;
}

/* ---- the end ------------------------------------------------------------- */

static int drop(oari_chunk_link *r, oari_chunk *chunk)
{
    return r->transport.drop == NULL ||
           r->transport.drop(r->transport.self, chunk);
}

/* Finishes the transfer of a pending chunk, after asking the transport to let
 * go of the buffer. */
static void give_up(oari_chunk_link *r, pending_chunk *c, oar_status why)
{
    oar_transfer *t = c->transfer;

    if (t == NULL)
        return;
    c->transfer = NULL;
    if (!c->chunk.done && drop(r, &c->chunk))
        c->chunk.done = 1;
    oari_transfer_finish(t, why);
}

void oari_chunk_link_abort(oari_chunk_link *link, oar_status why)
{
    if (link->aborted != OAR_OK)
        return;
    link->aborted = why;
    for (pending_chunk *c = link->pending_list; c != NULL; c = c->next)
        give_up(link, c, why);
    for (int i = 0; i < link->ranks; i++)
        oari_transfer_list_finish(&link->peer[i].offered, why);
    link->offers = 0;
    oari_match_abort(link->match, why);
}

static void drop_inboxes(oari_chunk_link *r)
{
    for (int i = 0; r->inbox != NULL && i < r->inboxes; i++) {
        inbox *g = r->inbox[i];
        int open = g != NULL && i < r->inboxes_posted &&
                   g->chunk.peer != r->rank && !g->chunk.done;

        if (!open || drop(r, &g->chunk))
            oari_free(g);
    }
    oari_free(r->inbox);
}

void oari_chunk_link_destroy(oari_chunk_link *link)
{
    if (link == NULL)
        return;
    while (link->pending_list != NULL) {
        pending_chunk *c = link->pending_list;
        link->pending_list = c->next;
        if (c->chunk.done || drop(link, &c->chunk))
            oari_free(c);
    }
    drop_inboxes(link);
    oari_match_destroy(link->match);
    oari_free(link->peer);
    oari_free(link);
}
