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
#include "link/shm/message_peer.h"

/* Bytes, before anything else is done: memcpy and the system choose how to copy
 * by the size. */
enum { COPIED_AT_ONCE = 16 << 20 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- writing ------------------------------------------------------------- */

/* The header, with as much data as there is room for. */
static enum oari_written write_header(oari_endpoint *e, oari_header *h,
                                      oar_transfer *t)
{
    message_peer *p = (message_peer *)e;
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
static int write_data(message_peer *p)
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
    return oari_message_peer_credit((const message_peer *)e);
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
    message_peer *p = (message_peer *)e;
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
    message_peer *p = &mail->peer[to];
    int offered = oari_message_is_awaited(mail, p, transfer);

    if (mail->aborted != OAR_OK)
        oari_transfer_finish(transfer, mail->aborted);
    else
        oari_endpoint_send(&p->with, &transport, transfer,
                           offered ? 0 : mail->eager_bytes);
    return OAR_OK;
}

/* ---- copying what was offered -------------------------------------------- */

/* The peer is gone: the receive is finished with the group. */
static void await_end(message_peer *p, oar_transfer *t)
{
    oari_scratch_set(t, 1, 0); /* no data is for it */
    oari_transfer_list_push(&p->with.arriving, t);
}

static void fetch(oari_endpoint *e, const oari_offer *offer, oar_transfer *t)
{
    oari_shm_messages *m = e->link->self;
    oari_shm *b = m->shm;
    message_peer *p = (message_peer *)e;
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
static int has_revoked(const message_peer *p)
{
    return atomic_load(p->revokes) != p->heard_revokes;
}

/* Copies a part. In one process the sender may not give up meanwhile. */
static oar_status copy_from(oari_shm_messages *m, const message_peer *p,
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
static oar_status copy_part(oari_shm_messages *m, const message_peer *p,
                            oar_transfer *t, size_t done, size_t bytes)
{
    oar_status status = copy_from(m, p, t, done, bytes);

    atomic_thread_fence(memory_order_acquire); /* after the copying */
    return has_revoked(p) ? OAR_E_STATE : status;
}

/* Copies on in the first offer that is being copied. */
static void copy_some(oari_shm_messages *m, message_peer *p)
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
static int read_header(oari_shm_messages *m, message_peer *p,
                       oar_status *status)
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
static int read_data(oari_shm_messages *m, message_peer *p)
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
        if (part < left) {
            oari_shm_queue_tell(&p->in); /* there is room for more */
            p->told_part = 1;
        }
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

static oar_status read_queue(oari_shm_messages *m, message_peer *p)
{
    oar_status status = OAR_OK;
    int moved = 0;

    while (status == OAR_OK &&
           (p->reading ? read_data(m, p) : read_header(m, p, &status)))
        moved = 1;
    if (p->in.at == p->in.told && !p->told_part)
        return status;
    if (!moved || p->told_part || oari_shm_queue_tell_due(&p->in)) {
        oari_shm_queue_tell(&p->in);
        oari_shm_notify(m->shm, p->with.index);
        p->told_part = 0;
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
        message_peer *p = &mail->peer[r];

        if (r == mail->shm->rank)
            continue;
        flush(&p->with);
        OARI_TRY(read_queue(mail, p));
        if (p->copying.first != NULL)
            copy_some(mail, p);
        copying |= p->copying.first != NULL && !has_revoked(p);
        if (p->with.leftovers != NULL)
            oari_endpoint_sweep(&p->with, 0);
        oari_message_peer_show_credit(
            p, oari_match_received(mail->link.match, p->with.rank));
    }
    mail->shm->copying = copying;
    return mail->link.failed;
}

/* ---- taking back --------------------------------------------------------- */

/* What a peer copies from now on does not count (copy_part), and no thread of
 * this process copies any more. */
static void revoke(oari_endpoint *e)
{
    message_peer *p = (message_peer *)e;
    const oari_shm *b = ((oari_shm_messages *)e->link->self)->shm;

    atomic_fetch_add(p->revoked, 1);
    atomic_thread_fence(memory_order_seq_cst); /* before any later store */
    if (b->ops->settle != NULL)
        b->ops->settle(b->self);
}

static oar_transfer *forget_offer(oari_endpoint *e, uint64_t offer)
{
    message_peer *p = (message_peer *)e;

    return oari_transfer_list_take(&p->copying, offer);
}

/* A send whose data is being written goes on from a copy. */
static int withdraw_send(message_peer *p, oar_transfer *t, int gone,
                         int unmoved)
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
static int withdraw_receive(message_peer *p, oar_transfer *t, int gone)
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
    message_peer *p = &m->peer[peer];
    unsigned char *mine = (unsigned char *)b->control[b->rank];
    unsigned char *theirs = (unsigned char *)b->control[peer];
    unsigned char *to = mine + at->mail + (size_t)peer * at->ring;
    unsigned char *from = theirs + at->mail + (size_t)b->rank * at->ring;
    unsigned char *shown = mine + at->taken + (size_t)peer * OARI_SLOT_ALIGN;
    unsigned char *seen =
        theirs + at->taken + (size_t)b->rank * OARI_SLOT_ALIGN;
    _Atomic uint64_t *counts = (_Atomic uint64_t *)shown;
    const _Atomic uint64_t *answers = (const _Atomic uint64_t *)seen;

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
    p->awaited = (oari_awaited *)(shown + OARI_SLOT_ALIGN / 2);
    p->awaits = (const oari_awaited *)(seen + OARI_SLOT_ALIGN / 2);
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
        message_peer *p = &mail->peer[r];
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
