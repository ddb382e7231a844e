/* SPDX-License-Identifier: Apache-2.0 */
/* mail: messages through queues in shared memory. See shm_messages.h.
 *
 * Only the driver touches this. Words of an OFFER: where the data is (as in
 * control_page.h, or 0), and its address in the sender's memory. Scratch words
 * of a receive that is being copied: 1 is the offer's number, 2 how much is
 * copied, 3 the address in the sender's memory, or 0: then 4 is the address
 * here.
 */
#include "link/shm/shm_messages.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "link/endpoint.h"

enum { COPIED_AT_ONCE = 1 << 20 /* bytes, before anything else is done */ };

typedef struct shm_peer {
    oari_endpoint with; /* first: the transport is called with it */
    oari_shm_queue_out out;
    const _Atomic uint64_t *back; /* credit, as the peer shows it */
    _Atomic uint64_t *revoked;    /* offers to the peer that I took back */
    oar_transfer *sending;        /* its header is shown ... */
    size_t sent;                  /* ... and so much of its data */

    oari_shm_queue_in in;
    _Atomic uint64_t *shown_back;    /* credit, as I show it */
    oari_transfer_list copying;      /* offers being copied */
    const _Atomic uint64_t *revokes; /* offers that the peer took back ... */
    uint64_t heard_revokes;          /* ... of which I have heard */
    int reading;                     /* the data of a record */
    oari_header now;
    size_t got; /* bytes of it */
    oari_inbound inbound;
    oar_transfer *receive; /* of a DATA */
} shm_peer;

struct oari_shm_messages {
    oari_shm *shm;
    oari_message_link link;
    size_t eager_bytes;
    oar_status aborted;
    int no_fetch;   /* other processes cannot be read */
    shm_peer *peer; /* by rank in shared memory */
};

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- writing ------------------------------------------------------------- */

/* The header, with as much data as there is room for. */
static enum oari_written write_header(oari_endpoint *e, oari_header *h,
                                      oar_transfer *t)
{
    shm_peer *p = (shm_peer *)e;
    oari_shm *b = ((oari_shm_messages *)e->link->self)->shm;
    int has_data = h->kind == OARI_HEADER_EAGER || h->kind == OARI_HEADER_DATA;
    size_t bytes = has_data ? h->bytes : 0, line = OARI_SHM_QUEUE_LINE, part;
    size_t room = oari_shm_queue_room(&p->out, line + least(bytes, line));

    if (room < line)
        return OARI_WROTE_NOTHING;
    if (h->kind == OARI_HEADER_OFFER && h->bytes != 0) {
        h->word[0] = b->ops->place(b->self, t->data, t->bytes);
        h->word[1] = (uint64_t)(uintptr_t)t->data;
    }
    if (bytes <= OARI_SHM_QUEUE_INLINE) {
        if (bytes != 0)
            memcpy(h->word, t->data, bytes);
        oari_shm_queue_put(&p->out, h, NULL, 0, 1);
        return OARI_WROTE_ALL;
    }
    part = least(bytes, least(room - line, OARI_SHM_QUEUE_SHARE));
    h->status = (uint32_t)part;
    oari_shm_queue_put(&p->out, h, t->data, part, part == bytes);
    if (part == bytes)
        return OARI_WROTE_ALL;
    p->sending = t;
    p->sent = part;
    return OARI_WROTE_HEADER;
}

/* More of the data under way; 0: there is no room. */
static int write_data(shm_peer *p)
{
    oar_transfer *t = p->sending;
    size_t left = t->bytes - p->sent;
    size_t room =
        oari_shm_queue_room(&p->out, least(left, OARI_SHM_QUEUE_SHARE));
    size_t part = least(left, least(room, OARI_SHM_QUEUE_SHARE));

    if (part == 0)
        return 0;
    oari_shm_queue_put_data(&p->out, (const unsigned char *)t->data + p->sent,
                            part, part == left);
    p->sent += part;
    if (part == left) {
        p->sending = NULL;
        oari_transfer_finish(t, OAR_OK);
    }
    return 1;
}

static void flush(oari_endpoint *e);
static void fetch(oari_endpoint *e, const oari_offer *offer, oar_transfer *t);

static uint64_t read_credit(const oari_endpoint *e)
{
    return atomic_load_explicit(((const shm_peer *)e)->back,
                                memory_order_relaxed);
}

static void revoke(oari_endpoint *e);
static oar_transfer *forget_offer(oari_endpoint *e, uint64_t offer);

static const oari_transport transport = { .write = write_header,
                                          .flush = flush,
                                          .fetch = fetch,
                                          .credit = read_credit,
                                          .revoke = revoke,
                                          .forget = forget_offer };

static void flush(oari_endpoint *e)
{
    shm_peer *p = (shm_peer *)e;
    int wrote = 0;

    while (p->sending != NULL ? write_data(p)
                              : oari_endpoint_write_next(e, &transport))
        wrote = 1;
    if (wrote)
        oari_shm_notify(((oari_shm_messages *)e->link->self)->shm, e->index);
}

oar_status oari_shm_messages_send(oari_shm_messages *mail,
                                  oar_transfer *transfer, int to)
{
    if (mail->aborted != OAR_OK)
        oari_transfer_finish(transfer, mail->aborted);
    else
        oari_endpoint_send(&mail->peer[to].with, &transport, transfer,
                           mail->eager_bytes);
    return OAR_OK;
}

int oari_shm_messages_push(oari_shm_messages *mail, int to, uint64_t tag,
                           const void *data, size_t bytes)
{
    shm_peer *p = &mail->peer[to];
    oari_endpoint *e = &p->with;
    oar_transfer t = { .size = sizeof t,
                       .peer = e->rank,
                       .tag = tag,
                       .data = (void *)(uintptr_t)data,
                       .bytes = bytes };
    size_t all = bytes + 2 * (size_t)OARI_SHM_QUEUE_LINE;

    if (mail->aborted != OAR_OK || p->sending != NULL ||
        e->queue.first != NULL || e->answers.count != 0 ||
        bytes > mail->eager_bytes || bytes > OARI_SHM_QUEUE_SHARE ||
        oari_shm_queue_room(&p->out, all) < all)
        return 0;
    if (!oari_match_has_credit(mail->link.match, e->spent, e->back, bytes)) {
        e->back = read_credit(e);
        if (!oari_match_has_credit(mail->link.match, e->spent, e->back, bytes))
            return 0;
    }
    oari_endpoint_send(e, &transport, &t, mail->eager_bytes);
    return t.done;
}

/* ---- copying what was offered -------------------------------------------- */

/* The peer is gone: the receive is finished with the group. */
static void await_end(shm_peer *p, oar_transfer *t)
{
    oari_scratch_set(t, 1, 0); /* no data is for it */
    oari_transfer_list_push(&p->with.arriving, t);
}

static void fetch(oari_endpoint *e, const oari_offer *offer, oar_transfer *t)
{
    oari_shm_messages *m = e->link->self;
    oari_shm *b = m->shm;
    shm_peer *p = (shm_peer *)e;
    uint64_t place = offer->word[1];
    const void *from = b->ops->resolve(b->self, e->index, place, offer->bytes);

    if (place != 0 && from == NULL) {
        if (oar_last_error()->status != OAR_E_CLOSED)
            m->link.failed = oar_last_error()->status;
        await_end(p, t);
    } else if (from == NULL && (b->ops->fetch == NULL || m->no_fetch))
        oari_endpoint_accept(e, offer->word[0], t);
    else {
        oari_scratch_set(t, 1, offer->word[0]);
        oari_scratch_set(t, 2, 0);
        oari_scratch_set(t, 3, from != NULL ? 0 : offer->word[2]);
        memcpy(&t->scratch[4], &from, sizeof from);
        oari_transfer_list_push(&p->copying, t); /* by the next progress */
    }
}

/* Returns whether the peer has taken an offer back that this rank has not heard
 * of yet: until it has, it may be any of them. */
static int has_revoked(const shm_peer *p)
{
    return atomic_load(p->revokes) != p->heard_revokes;
}

/* Copies a part. In one process the sender may not give up meanwhile. */
static oar_status copy_from(oari_shm_messages *m, const shm_peer *p,
                            oar_transfer *t, size_t done, size_t bytes)
{
    const oari_shm *b = m->shm;
    unsigned char *to = (unsigned char *)t->data + done;
    uint64_t address = oari_scratch(t, 3);

    if (address != 0)
        OARI_TRY(
            b->ops->fetch(b->self, p->with.index, address + done, to, bytes));
    else {
        if (b->ops->enter != NULL && !b->ops->enter(b->self))
            return OAR_E_CLOSED;
        if (!has_revoked(p))
            memcpy(to, (const unsigned char *)t->scratch[4] + done, bytes);
        if (b->ops->leave != NULL)
            b->ops->leave(b->self);
    }
    /* What was copied counts only if the sender is still in it: it publishes
     * its fault before it uses the buffer for something else. */
    atomic_thread_fence(memory_order_acquire); /* after the copying */
    return oari_bulletin_has(oari_shm_bulletin(b, p->with.index),
                             OARI_FACT_FAULT)
               ? OAR_E_CLOSED
               : OAR_OK;
}

/* What was copied does not count if the offer may have been taken back
 * meanwhile: OAR_E_STATE. */
static oar_status copy_part(oari_shm_messages *m, const shm_peer *p,
                            oar_transfer *t, size_t done, size_t bytes)
{
    oar_status status = copy_from(m, p, t, done, bytes);

    atomic_thread_fence(memory_order_acquire); /* after the copying */
    return has_revoked(p) ? OAR_E_STATE : status;
}

/* Copies on in the first offer that is being copied. */
static void copy_some(oari_shm_messages *m, shm_peer *p)
{
    oar_transfer *t = p->copying.first;
    uint64_t offer = oari_scratch(t, 1);
    size_t done = oari_scratch(t, 2), left = t->bytes - done;
    size_t bytes = least(left, COPIED_AT_ONCE);
    oar_status status = copy_part(m, p, t, done, bytes);

    if (status == OAR_E_STATE)
        return; /* the REVOKE is on its way */
    if (status == OAR_OK && bytes < left)
        oari_scratch_set(t, 2, done + bytes);
    else {
        oari_transfer_list_remove(&p->copying, NULL, t);
        if (status == OAR_OK) {
            oari_header h = { .kind = OARI_HEADER_DONE, .number = offer };
            oari_endpoint_answer(&p->with, &h);
            oari_transfer_finish(t, OAR_OK);
        } else if (status == OAR_E_UNSUPPORTED) {
            m->no_fetch = 1;
            oari_endpoint_accept(&p->with, offer, t);
        } else
            await_end(p, t);
    }
    if (p->copying.first != NULL)
        oari_shm_wake(m->shm); /* do not sleep over it */
}

/* ---- reading ------------------------------------------------------------- */

/* Acts on the next header; 0: there is none. */
static int read_header(oari_shm_messages *m, shm_peer *p, oar_status *status)
{
    if (!oari_shm_queue_get(&p->in, &p->now))
        return 0;
    p->got = 0;
    p->reading = 1;
    p->receive = NULL;
    if (p->now.kind == OARI_HEADER_EAGER)
        *status = oari_match_begin(m->link.match, p->with.rank, p->now.tag,
                                   p->now.bytes, &p->inbound);
    else if (p->now.kind == OARI_HEADER_DATA &&
             (p->receive = oari_endpoint_arriving(&p->with, p->now.number, 0,
                                                  p->now.bytes)) != NULL)
        p->inbound = (oari_inbound){ .target = p->receive->data };
    else {
        p->reading = 0;
        p->heard_revokes += p->now.kind == OARI_HEADER_REVOKE;
        *status = oari_endpoint_hear(&p->with, &p->now);
    }
    return 1;
}

/* Reads on in the data under way; 0: there is none now. */
static int read_data(oari_shm_messages *m, shm_peer *p)
{
    size_t left = p->now.bytes - p->got, part = left;
    unsigned char *to = p->inbound.target;

    if (to != NULL)
        to += p->got;
    if (p->now.bytes <= OARI_SHM_QUEUE_INLINE) {
        if (to != NULL && left != 0)
            memcpy(to, p->now.word, left);
    } else {
        part = oari_shm_queue_ready(&p->in, least(left, OARI_SHM_QUEUE_SHARE));
        if (part == 0)
            return 0;
        oari_shm_queue_get_data(&p->in, to, part, part == left);
        if (part < left)
            oari_shm_queue_tell(&p->in); /* there is room for more */
    }
    p->got += part;
    if (part < left)
        return 1;
    p->reading = 0;
    if (p->receive != NULL)
        oari_endpoint_arrived(&p->with, p->receive, p->now.bytes);
    else
        oari_match_end(m->link.match, &p->inbound);
    return 1;
}

static oar_status read_queue(oari_shm_messages *m, shm_peer *p)
{
    oar_status status = OAR_OK;
    int moved = 0;

    while (status == OAR_OK &&
           (p->reading ? read_data(m, p) : read_header(m, p, &status)))
        moved = 1;
    if (moved) {
        oari_shm_queue_tell(&p->in);
        oari_shm_notify(m->shm, p->with.index);
    }
    return status;
}

oar_status oari_shm_messages_progress(oari_shm_messages *mail)
{
    int copying = 0;

    mail->shm->copying = 0;
    if (mail->aborted != OAR_OK)
        return OAR_OK;
    for (int r = 0; r < mail->shm->ranks; r++) {
        shm_peer *p = &mail->peer[r];
        uint64_t back;

        if (r == mail->shm->rank)
            continue;
        flush(&p->with);
        OARI_TRY(read_queue(mail, p));
        if (p->copying.first != NULL)
            copy_some(mail, p);
        copying |= p->copying.first != NULL && !has_revoked(p);
        if (p->with.leftovers != NULL)
            oari_endpoint_sweep(&p->with, 0);
        /* Nobody waits for credit: without it messages are offered. */
        back = oari_match_received(mail->link.match, p->with.rank);
        if (atomic_load_explicit(p->shown_back, memory_order_relaxed) != back)
            atomic_store_explicit(p->shown_back, back, memory_order_relaxed);
    }
    mail->shm->copying = copying;
    return mail->link.failed;
}

/* ---- taking back --------------------------------------------------------- */

/* What a peer copies from now on does not count (copy_part), and no thread of
 * this process copies any more. */
static void revoke(oari_endpoint *e)
{
    shm_peer *p = (shm_peer *)e;
    const oari_shm *b = ((oari_shm_messages *)e->link->self)->shm;

    atomic_fetch_add(p->revoked, 1);
    atomic_thread_fence(memory_order_seq_cst); /* before any later store */
    if (b->ops->settle != NULL)
        b->ops->settle(b->self);
}

static oar_transfer *forget_offer(oari_endpoint *e, uint64_t offer)
{
    shm_peer *p = (shm_peer *)e;

    return oari_transfer_list_take(&p->copying, offer);
}

/* A send whose data is being written goes on from a copy. */
static int withdraw_send(shm_peer *p, oar_transfer *t, int gone, int unmoved)
{
    oari_endpoint *e = &p->with;
    oar_transfer *copy;

    if (oari_endpoint_withdraw_send(e, t, gone))
        return 1;
    if (unmoved)
        return 0;
    if (p->sending == t) {
        if ((copy = oari_endpoint_copy_send(e, t, p->sent)) == NULL)
            return 0;
        p->sending = copy;
        return 1;
    }
    if (!oari_transfer_list_has(&e->queue, t) ||
        (copy = oari_endpoint_copy_send(e, t, 0)) == NULL)
        return 0;
    oari_transfer_list_replace(&e->queue, t, copy);
    return 1;
}

/* What comes of the message is dropped. */
static int withdraw_receive(shm_peer *p, oar_transfer *t, int gone)
{
    oari_header done = { .kind = OARI_HEADER_DONE,
                         .number = oari_scratch(t, 1) };
    oar_transfer *rest;

    if (p->reading && p->inbound.into == t) {
        p->inbound = (oari_inbound){ 0 };
        return 1;
    }
    if (oari_transfer_list_drop(&p->copying, t)) {
        if (!gone)
            oari_endpoint_answer(&p->with, &done);
        return 1;
    }
    if ((rest = oari_endpoint_withdraw_arriving(&p->with, t)) == NULL)
        return 0;
    if (p->reading && p->receive == t) {
        p->receive = rest;
        p->inbound = (oari_inbound){ 0 };
    }
    return 1;
}

int oari_shm_messages_withdraw(oari_shm_messages *mail, oar_transfer *t,
                               int peer, int is_send, int unmoved)
{
    const oari_shm *b = mail->shm;
    int gone = b->gone[peer] ||
               oari_bulletin_has(oari_shm_bulletin(b, peer), OARI_FACT_FAULT);

    if (!is_send && unmoved)
        return 0;
    return is_send ? withdraw_send(&mail->peer[peer], t, gone, unmoved)
                   : withdraw_receive(&mail->peer[peer], t, gone);
}

/* ---- making and ending --------------------------------------------------- */

static void open_peer(oari_shm_messages *m, int peer)
{
    const oari_shm *b = m->shm;
    const oari_control_layout *at = &b->layout;
    shm_peer *p = &m->peer[peer];
    unsigned char *mine = (unsigned char *)b->control[b->rank];
    unsigned char *theirs = (unsigned char *)b->control[peer];
    unsigned char *to = mine + at->mail + (size_t)peer * at->ring;
    unsigned char *from = theirs + at->mail + (size_t)b->rank * at->ring;
    _Atomic uint64_t *counts =
        (_Atomic uint64_t *)(mine + at->taken + (size_t)peer * OARI_SLOT_ALIGN);
    const _Atomic uint64_t *answers =
        (const _Atomic uint64_t *)(theirs + at->taken +
                                   (size_t)b->rank * OARI_SLOT_ALIGN);

    oari_endpoint_init(&p->with, &m->link, peer,
                       b->member != NULL ? b->member[peer] : peer);
    p->out = (oari_shm_queue_out){ .ring = to + OARI_SHM_QUEUE_COUNTER,
                                   .bytes = at->ring - OARI_SHM_QUEUE_COUNTER,
                                   .key = b->control[b->rank]->queue_key,
                                   .head = (_Atomic uint64_t *)to,
                                   .taken = answers };
    p->back = answers + 1;
    p->revoked = counts + 2;
    p->revokes = answers + 2;
    p->in = (oari_shm_queue_in){ .ring = from + OARI_SHM_QUEUE_COUNTER,
                                 .bytes = at->ring - OARI_SHM_QUEUE_COUNTER,
                                 .key = b->control[peer]->queue_key,
                                 .head = (const _Atomic uint64_t *)from,
                                 .taken = counts };
    p->shown_back = counts + 1;
}

oar_status oari_shm_messages_create(oari_shm *shm, oari_match *match,
                                    size_t eager_bytes,
                                    oari_shm_messages **mail)
{
    oari_shm_messages *m = oari_alloc(1, sizeof *m);

    if (m == NULL)
        return OAR_E_NOMEM;
    m->shm = shm;
    m->link = (oari_message_link){ &transport, m, match, OAR_OK };
    m->eager_bytes = eager_bytes;
    m->peer = oari_alloc((size_t)shm->ranks, sizeof *m->peer);
    if (m->peer == NULL) {
        oari_shm_messages_destroy(m);
        return OAR_E_NOMEM;
    }
    for (int r = 0; r < shm->ranks; r++)
        open_peer(m, r);
    *mail = m;
    return OAR_OK;
}

void oari_shm_messages_destroy(oari_shm_messages *mail)
{
    if (mail == NULL)
        return;
    for (int r = 0; mail->peer != NULL && r < mail->shm->ranks; r++)
        oari_endpoint_clear(&mail->peer[r].with);
    oari_free(mail->peer);
    oari_free(mail);
}

void oari_shm_messages_abort(oari_shm_messages *mail, oar_status why)
{
    const oari_shm *b = mail->shm;

    if (mail->aborted != OAR_OK)
        return;
    mail->aborted = why;
    for (int r = 0; r < b->ranks; r++) {
        shm_peer *p = &mail->peer[r];
        /* Peers that are threads may be reading what was offered: they are
         * waited for before the buffers are the user's again. */
        if (p->with.offered.first != NULL)
            b->ops->detach(b->self, p->with.offered.first->data, 0);
        if (p->sending != NULL)
            oari_transfer_finish(p->sending, why);
        oari_endpoint_end(&p->with, why);
        oari_transfer_list_finish(&p->copying, why);
        oari_match_drop(&p->inbound, why);
        p->sending = NULL;
        p->reading = 0;
    }
}
