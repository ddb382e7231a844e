/* SPDX-License-Identifier: Apache-2.0 */
/* mail: messages through rings in shared memory. See mail.h.
 *
 * Only the driver touches this. Scratch words of a transfer: 0 links it, 1 is
 * its number (of an offer, for both sides), 2 what record it becomes or how
 * much of it is copied, 3 the other side's number or where the data is.
 */
#include "link/shm/mail.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/vec.h"

enum { PIECE = 1 << 20 /* copied at a time, before looking around again */ };

enum kind { PUSH = 1, OFFER, TAKEN, WANTED, STREAM };

/* Records. PUSH, OFFER: the message's tag and size; number: of the offer, the
 * sender's, or in a STREAM the receiver's. */
typedef oari_mail_head head;
enum {
    PLACE,
    ADDRESS
}; /* words of an OFFER: as in board.h, or 0; and in the
      sender's memory. PLACE of a WANTED: the receiver's
      number. `shown` of a TAKEN: an oar_status */

typedef struct outbox {
    oari_row queue;   /* what has to be written */
    oari_row offered; /* what waits for its receive */
    head *answer;     /* what has to be written before */
    size_t answers;
    int64_t answer_room;
    oari_mail_out ring;
    const _Atomic uint64_t *back; /* credit */
    uint64_t known;               /* of it */
    int begun;      /* the head of the first transfer is shown ... */
    size_t sent;    /* ... and so much of its data */
    uint64_t spent; /* credit */
    uint64_t number;
} outbox;

typedef struct inbox {
    oari_row copying;   /* offers being copied */
    oari_row streaming; /* offers whose data was asked for */
    oari_mail_in ring;
    _Atomic uint64_t *back;
    int open; /* a record's data is being read */
    head now;
    size_t got; /* bytes of it */
    oari_inbound in;
    oar_transfer *stream; /* its receive, if it is a STREAM */
} inbox;

struct oari_mail {
    oari_board *board;
    oari_match *match;
    size_t eager_bytes;
    oar_status aborted;
    oar_status failed; /* what a call that cannot fail came to */
    int no_fetch;      /* other processes cannot be read */
    uint64_t number;
    oari_taker taker;
    outbox *out; /* by rank on the board */
    inbox *in;
};

static void take(void *self, const oari_offer *offer, oar_transfer *receive);

static int group_rank(const oari_mail *m, int r)
{
    return m->board->member != NULL ? m->board->member[r] : r;
}

/* ---- making -------------------------------------------------------------- */

static void open_boxes(oari_mail *m, int peer)
{
    const oari_board *b = m->board;
    unsigned char *mine = (unsigned char *)b->control[b->rank];
    unsigned char *theirs = (unsigned char *)b->control[peer];
    unsigned char *to = mine + b->layout.mail + (size_t)peer * b->layout.ring;
    unsigned char *from =
        theirs + b->layout.mail + (size_t)b->rank * b->layout.ring;
    _Atomic uint64_t *counts =
        (_Atomic uint64_t *)(mine + b->layout.taken +
                             (size_t)peer * OARI_LINE_ALIGN);
    const _Atomic uint64_t *answers =
        (const _Atomic uint64_t *)(theirs + b->layout.taken +
                                   (size_t)b->rank * OARI_LINE_ALIGN);

    size_t bytes = b->layout.ring - OARI_MAIL_COUNTER;

    m->out[peer].ring = (oari_mail_out){ .ring = to + OARI_MAIL_COUNTER,
                                         .bytes = bytes,
                                         .key = b->control[b->rank]->mail_key,
                                         .head = (_Atomic uint64_t *)to,
                                         .taken = answers };
    m->out[peer].back = answers + 1;
    m->in[peer].ring = (oari_mail_in){ .ring = from + OARI_MAIL_COUNTER,
                                       .bytes = bytes,
                                       .key = b->control[peer]->mail_key,
                                       .head = (const _Atomic uint64_t *)from,
                                       .taken = counts };
    m->in[peer].back = counts + 1;
}

oar_status oari_mail_create(oari_board *board, oari_match *match,
                            size_t eager_bytes, oari_mail **mail)
{
    oari_mail *m = oari_alloc(1, sizeof *m);

    if (m == NULL)
        return OAR_E_NOMEM;
    m->board = board;
    m->match = match;
    m->eager_bytes = eager_bytes;
    m->taker = (oari_taker){ take, m };
    m->out = oari_alloc((size_t)board->ranks, sizeof *m->out);
    m->in = oari_alloc((size_t)board->ranks, sizeof *m->in);
    if (m->out == NULL || m->in == NULL) {
        oari_mail_destroy(m);
        return OAR_E_NOMEM;
    }
    for (int r = 0; r < board->ranks; r++)
        open_boxes(m, r);
    *mail = m;
    return OAR_OK;
}

void oari_mail_destroy(oari_mail *mail)
{
    if (mail == NULL)
        return;
    for (int r = 0; mail->out != NULL && r < mail->board->ranks; r++)
        oari_free(mail->out[r].answer);
    oari_free(mail->in);
    oari_free(mail->out);
    oari_free(mail);
}

/* ---- writing ------------------------------------------------------------- */

static oar_status push_answer(outbox *out, const head *h)
{
    OARI_TRY(
        oari_array_reserve(out->answer, out->answers, out->answer_room, 1));
    out->answer[out->answers++] = *h;
    return OAR_OK;
}

static int write_answers(outbox *out)
{
    size_t n = 0;

    for (; n < out->answers &&
           oari_mail_room(&out->ring, sizeof(head)) >= sizeof(head);
         n++)
        oari_mail_put(&out->ring, &out->answer[n], NULL, 0, 1);
    if (n == 0)
        return 0;
    out->answers -= n;
    memmove(out->answer, out->answer + n, out->answers * sizeof(head));
    return 1;
}

/* The record that a transfer becomes. */
static head head_of(oari_mail *m, const oar_transfer *t)
{
    oari_board *b = m->board;
    head h = { .kind = (uint32_t)oari_scratch(t, 2),
               .bytes = t->bytes,
               .tag = t->tag,
               .number = oari_scratch(t, 1) };

    if (h.kind == STREAM)
        h.number = oari_scratch(t, 3);
    if (h.kind == OFFER && t->bytes != 0) {
        h.is.word[PLACE] = b->ops->place(b->self, t->data, t->bytes);
        h.is.word[ADDRESS] = (uint64_t)(uintptr_t)t->data;
    }
    return h;
}

static size_t data_bytes(const oar_transfer *t)
{
    return oari_scratch(t, 2) == OFFER ? 0 : t->bytes;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The head with as much data as there is room for. */
static int write_head(oari_mail *m, outbox *out, oar_transfer *t)
{
    size_t bytes = data_bytes(t), line = sizeof(head), part;
    size_t room = oari_mail_room(&out->ring, line + least(bytes, line));
    head h;

    if (room < line)
        return 0;
    h = head_of(m, t);
    out->begun = 1;
    if (bytes <= OARI_MAIL_INLINE) {
        if (bytes != 0)
            memcpy(h.is.data, t->data, bytes);
        oari_mail_put(&out->ring, &h, NULL, 0, 1);
        out->sent = bytes;
        return 1;
    }
    part = least(bytes, least(room - line, OARI_MAIL_SHARE));
    h.shown = (uint32_t)part;
    oari_mail_put(&out->ring, &h, t->data, part, part == bytes);
    out->sent = part;
    return 1;
}

/* More of its data. */
static int write_data(outbox *out, const oar_transfer *t)
{
    size_t left = t->bytes - out->sent;
    size_t room = oari_mail_room(&out->ring, least(left, OARI_MAIL_SHARE));
    size_t part = least(left, least(room, OARI_MAIL_SHARE));

    if (part == 0)
        return 0;
    oari_mail_put_data(&out->ring, (const unsigned char *)t->data + out->sent,
                       part, part == left);
    out->sent += part;
    return 1;
}

/* A record is written: an offer waits for its answer, the rest is done. */
static void end_record(outbox *out, oar_transfer *t)
{
    oari_row_remove(&out->queue, NULL, t);
    out->sent = 0;
    out->begun = 0;
    if (oari_scratch(t, 2) == OFFER)
        oari_row_push(&out->offered, t);
    else
        oari_transfer_finish(t, OAR_OK);
}

static void push_out(oari_mail *m, int peer)
{
    outbox *out = &m->out[peer];
    oar_transfer *t;
    int wrote = 0;

    if (out->answers != 0 && !out->begun)
        wrote = write_answers(out);
    while ((t = out->queue.first) != NULL &&
           (out->begun ? write_data(out, t) : write_head(m, out, t))) {
        wrote = 1;
        if (out->sent == data_bytes(t))
            end_record(out, t);
    }
    if (wrote)
        oari_board_notify(m->board, peer);
}

/* Asks what was given back only when what is known does not do. */
static int has_credit(const oari_mail *m, outbox *out, size_t bytes)
{
    if (oari_match_may_push(m->match, out->spent, out->known, bytes))
        return 1;
    out->known = atomic_load_explicit(out->back, memory_order_relaxed);
    return oari_match_may_push(m->match, out->spent, out->known, bytes);
}

static int may_push(const oari_mail *m, outbox *out, const oar_transfer *t)
{
    return !t->synchronous && t->bytes <= m->eager_bytes &&
           has_credit(m, out, t->bytes);
}

oar_status oari_mail_send(oari_mail *mail, oar_transfer *transfer, int to)
{
    outbox *out = &mail->out[to];
    int push = may_push(mail, out, transfer);

    if (mail->aborted != OAR_OK) {
        oari_transfer_finish(transfer, mail->aborted);
        return OAR_OK;
    }
    oari_scratch_set(transfer, 2, push ? PUSH : OFFER);
    oari_scratch_set(transfer, 1, ++out->number);
    if (push)
        out->spent += oari_credit_cost(transfer->bytes);
    oari_row_push(&out->queue, transfer);
    push_out(mail, to);
    return OAR_OK;
}

/* ---- taking what was offered --------------------------------------------- */

static void answer(oari_mail *m, int peer, const head *h)
{
    oar_status status = push_answer(&m->out[peer], h);

    if (status != OAR_OK)
        m->failed = status;
    else
        push_out(m, peer);
}

static void say_taken(oari_mail *m, int peer, uint64_t number,
                      oar_status status)
{
    head h = { .kind = TAKEN, .shown = (uint32_t)status, .number = number };

    answer(m, peer, &h);
}

/* The data has to come through the ring. */
static void ask_for(oari_mail *m, int peer, oar_transfer *t, uint64_t number)
{
    head h = { .kind = WANTED, .number = number };

    h.is.word[PLACE] = ++m->number;
    oari_scratch_set(t, 1, m->number);
    oari_row_push(&m->in[peer].streaming, t);
    answer(m, peer, &h);
}

/* word: the offer's number, place and address. */
static void start_copy(oari_mail *m, int peer, const oari_offer *offer,
                       oar_transfer *t)
{
    oari_board *b = m->board;
    const void *from =
        b->ops->resolve(b->self, peer, offer->word[1], offer->bytes);

    if (offer->word[1] != 0 && from == NULL) {
        if (oar_last_error()->status != OAR_E_CLOSED)
            m->failed = oar_last_error()->status;
        oari_scratch_set(t, 1, 0); /* ended when the group is */
        oari_row_push(&m->in[peer].streaming, t);
        return;
    }
    if (from == NULL && (b->ops->fetch == NULL || m->no_fetch)) {
        ask_for(m, peer, t, offer->word[0]);
        return;
    }
    oari_scratch_set(t, 1, offer->word[0]);
    oari_scratch_set(t, 2, 0);
    oari_scratch_set(t, 3, from != NULL ? 0 : offer->word[2]);
    memcpy(&t->scratch[4], &from, sizeof from);
    oari_row_push(&m->in[peer].copying, t); /* by the next progress */
}

static void take(void *self, const oari_offer *offer, oar_transfer *receive)
{
    oari_mail *m = self;
    int peer = oari_board_rank(m->board, offer->source);

    if (receive == NULL)
        say_taken(m, peer, offer->word[0], OAR_E_SIZE);
    else if (offer->bytes != 0)
        start_copy(m, peer, offer, receive);
    else {
        oari_transfer_finish(receive, OAR_OK);
        say_taken(m, peer, offer->word[0], OAR_OK);
    }
}

/* Out of a segment. In one process the sender may not give up meanwhile. */
static oar_status copy_mapped(oari_mail *m, void *to, const void *from,
                              size_t bytes)
{
    const oari_board_ops *ops = m->board->ops;

    if (ops->enter != NULL && !ops->enter(m->board->self))
        return OAR_E_CLOSED;
    memcpy(to, from, bytes);
    if (ops->leave != NULL)
        ops->leave(m->board->self);
    return OAR_OK;
}

static oar_status copy_piece(oari_mail *m, int peer, oar_transfer *t,
                             size_t done, size_t bytes)
{
    const oari_board *b = m->board;
    unsigned char *to = (unsigned char *)t->data + done;
    uint64_t address = oari_scratch(t, 3);

    if (address == 0)
        return copy_mapped(m, to, (const unsigned char *)t->scratch[4] + done,
                           bytes);
    return b->ops->fetch(b->self, peer, address + done, to, bytes);
}

/* What was copied counts only if the sender is still in it: it publishes its
 * fault before it uses the buffer for something else. */
static int stayed(const oari_mail *m, int peer)
{
    atomic_thread_fence(memory_order_acquire); /* after the copying */
    return !oari_bulletin_has(oari_board_bulletin(m->board, peer),
                              OARI_FACT_FAULT);
}

/* A copy that cannot go on: through the ring, or, when the peer is gone, not at
 * all: whoever watches over the peers ends the operation. */
static void give_up_copy(oari_mail *m, int peer, oar_transfer *t,
                         oar_status status)
{
    oari_row_remove(&m->in[peer].copying, NULL, t);
    if (status == OAR_E_UNSUPPORTED) {
        m->no_fetch = 1;
        ask_for(m, peer, t, oari_scratch(t, 1));
    } else {
        oari_scratch_set(t, 1, 0); /* no number: it is never streamed */
        oari_row_push(&m->in[peer].streaming, t);
    }
}

/* Copies on in the first offer that is being copied. */
static void copy_some(oari_mail *m, int peer)
{
    oar_transfer *t = m->in[peer].copying.first;
    size_t done = oari_scratch(t, 2), left = t->bytes - done;
    size_t bytes = left < PIECE ? left : PIECE;
    oar_status status = copy_piece(m, peer, t, done, bytes);

    if (status == OAR_OK && !stayed(m, peer))
        status = OAR_E_CLOSED;
    if (status != OAR_OK)
        give_up_copy(m, peer, t, status);
    else if (bytes < left)
        oari_scratch_set(t, 2, done + bytes);
    else {
        oari_row_remove(&m->in[peer].copying, NULL, t);
        say_taken(m, peer, oari_scratch(t, 1), OAR_OK);
        oari_transfer_finish(t, OAR_OK);
    }
    if (m->in[peer].copying.first != NULL)
        oari_board_wake(m->board); /* do not sleep over it */
}

/* ---- reading ------------------------------------------------------------- */

static oar_status bad_record(const oari_mail *m, int peer, const head *h)
{
    return oari_fail(OAR_E_DATA, "rank %d sent a record %u out of place",
                     group_rank(m, peer), h->kind);
}

static oar_status read_offer(oari_mail *m, int peer, const head *h)
{
    oari_offer offer = { .source = group_rank(m, peer),
                         .tag = h->tag,
                         .bytes = h->bytes,
                         .word = { h->number, h->is.word[PLACE],
                                   h->is.word[ADDRESS] } };

    return oari_match_offer(m->match, &offer, &m->taker);
}

static oar_status read_answer(oari_mail *m, int peer, const head *h)
{
    outbox *out = &m->out[peer];
    oar_transfer *t = oari_row_take(&out->offered, h->number);

    if (t == NULL)
        return bad_record(m, peer, h);
    if (h->kind == TAKEN) {
        oari_transfer_finish(t, (oar_status)h->shown);
        return OAR_OK;
    }
    oari_scratch_set(t, 2, STREAM);
    oari_scratch_set(t, 3, h->is.word[PLACE]);
    oari_row_push(&out->queue, t);
    push_out(m, peer);
    return OAR_OK;
}

static oar_status begin_stream(oari_mail *m, int peer)
{
    inbox *in = &m->in[peer];

    in->stream = oari_row_take(&in->streaming, in->now.number);
    if (in->stream == NULL || in->stream->bytes != in->now.bytes ||
        in->now.number == 0)
        return bad_record(m, peer, &in->now);
    in->in =
        (oari_inbound){ .target = in->stream->data, .bytes = in->now.bytes };
    return OAR_OK;
}

/* Acts on a head; a record with data is open from now on. */
static oar_status begin_record(oari_mail *m, int peer)
{
    inbox *in = &m->in[peer];

    in->got = 0;
    in->open = in->now.kind == PUSH || in->now.kind == STREAM;
    in->stream = NULL;
    switch (in->now.kind) {
    case PUSH:
        return oari_match_begin(m->match, group_rank(m, peer), in->now.tag,
                                in->now.bytes, &in->in);
    case OFFER: return read_offer(m, peer, &in->now);
    case TAKEN:
    case WANTED: return read_answer(m, peer, &in->now);
    case STREAM: return begin_stream(m, peer);
    default: return bad_record(m, peer, &in->now);
    }
}

/* 0: there is none. */
static int read_head(oari_mail *m, int peer, oar_status *status)
{
    inbox *in = &m->in[peer];

    if (!oari_mail_get(&in->ring, &in->now))
        return 0;
    *status = begin_record(m, peer);
    return 1;
}

static void end_data(oari_mail *m, inbox *in)
{
    in->open = 0;
    if (in->stream != NULL)
        oari_transfer_finish(in->stream, OAR_OK);
    else
        oari_match_end(m->match, &in->in);
    in->stream = NULL;
}

/* Reads on in the open record; whether it moved. */
static int read_some(oari_mail *m, inbox *in)
{
    size_t left = in->now.bytes - in->got, part;
    unsigned char *to = in->in.target != NULL ? in->in.target + in->got : NULL;

    if (in->now.bytes <= OARI_MAIL_INLINE) {
        if (to != NULL && left != 0)
            memcpy(to, in->now.is.data, left);
        end_data(m, in);
        return 1;
    }
    part = oari_mail_ready(&in->ring, least(left, OARI_MAIL_SHARE));
    if (part == 0)
        return 0;
    oari_mail_get_data(&in->ring, to, part, part == left);
    if (part < left)
        oari_mail_tell(&in->ring); /* there is room for more */
    in->got += part;
    if (part == left)
        end_data(m, in);
    return 1;
}

static oar_status pull_in(oari_mail *m, int peer)
{
    inbox *in = &m->in[peer];
    oar_status status = OAR_OK;
    int moved = 0;

    while (status == OAR_OK &&
           (in->open ? read_some(m, in) : read_head(m, peer, &status)))
        moved = 1;
    if (moved) {
        oari_mail_tell(&in->ring);
        oari_board_notify(m->board, peer);
    }
    return status;
}

/* Nobody waits for credit: without it messages are offered. */
static void give_credit(oari_mail *m, int peer)
{
    uint64_t back = oari_match_received(m->match, group_rank(m, peer));
    _Atomic uint64_t *shown = m->in[peer].back;

    if (atomic_load_explicit(shown, memory_order_relaxed) != back)
        atomic_store_explicit(shown, back, memory_order_relaxed);
}

oar_status oari_mail_progress(oari_mail *mail)
{
    if (mail->aborted != OAR_OK)
        return OAR_OK;
    for (int r = 0; r < mail->board->ranks; r++) {
        if (r == mail->board->rank)
            continue;
        push_out(mail, r);
        OARI_TRY(pull_in(mail, r));
        if (mail->in[r].copying.first != NULL)
            copy_some(mail, r);
        give_credit(mail, r);
    }
    return mail->failed;
}

/* ---- the end ------------------------------------------------------------- */

/* Peers that are threads may be reading what was offered: they are waited for
 * before the buffers are the user's again. */
static void withdraw(oari_mail *m, const outbox *out)
{
    const oari_board *b = m->board;

    if (out->offered.first != NULL)
        b->ops->detach(b->self, out->offered.first->data, 0);
}

void oari_mail_abort(oari_mail *mail, oar_status why)
{
    if (mail->aborted != OAR_OK)
        return;
    mail->aborted = why;
    for (int r = 0; r < mail->board->ranks; r++) {
        inbox *in = &mail->in[r];
        outbox *out = &mail->out[r];
        withdraw(mail, out);
        oari_row_finish(&out->queue, why);
        oari_row_finish(&out->offered, why);
        oari_row_finish(&in->copying, why);
        oari_row_finish(&in->streaming, why);
        if (in->stream != NULL)
            oari_transfer_finish(in->stream, why);
        oari_match_drop(&in->in, why);
        in->stream = NULL;
        in->open = 0;
    }
}
