/* SPDX-License-Identifier: Apache-2.0 */
/* mail: messages through rings in shared memory. See mail.h.
 *
 * Only the driver touches this. Between processes there are two counters per
 * ring: `head`, bytes ever written, stored by the sender, and `taken`, bytes
 * ever read, stored by the receiver. Both are seq_cst, because after each the
 * other side's sleep flag is looked at (board.c).
 */
#include "comm/mail.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

enum {
    RING_HEAD = 128, /* the head counter has lines of its own */
    RING = OARI_MAIL_BYTES - RING_HEAD,
    ASIDE_MAX = 64 << 20, /* bytes of unexpected messages, all sources */
    ROUND = 16
};

typedef struct head {
    uint64_t bytes;
    uint64_t tag;
} head;

/* A message that came before its receive. */
typedef struct aside {
    struct aside *next;
    uint64_t tag;
    size_t bytes;
    int whole;
    oar_transfer *claimed; /* the receive that waits for the rest */
    unsigned char data[];
} aside;

typedef struct list {
    oar_transfer *first, *last;
} list;

typedef struct outbox {
    list queue;
    _Atomic uint64_t *head;
    const _Atomic uint64_t *taken;
    unsigned char *ring;
    size_t sent; /* of the first transfer, its head included */
} outbox;

typedef struct inbox {
    list posted;
    aside *kept, *filling;
    const _Atomic uint64_t *head;
    _Atomic uint64_t *taken;
    const unsigned char *ring;
    int open; /* a message is being read */
    head now;
    size_t got;            /* bytes of its data */
    oar_transfer *into;    /* its receive */
    unsigned char *target; /* NULL: drained */
} inbox;

struct oari_mail {
    oari_board *board;
    oar_status aborted;
    size_t kept_bytes;
    outbox *out;
    inbox *in;
};

/* ---- lists of transfers, linked through scratch[0] ------------------------
 */

static void push(list *l, oar_transfer *t)
{
    t->scratch[0] = NULL;
    if (l->last != NULL)
        l->last->scratch[0] = t;
    else
        l->first = t;
    l->last = t;
}

static oar_transfer *next_of(const oar_transfer *t)
{
    return t->scratch[0];
}

static oar_transfer *take_tag(list *l, uint64_t tag)
{
    oar_transfer *before = NULL, *t = l->first;

    while (t != NULL && t->tag != tag) {
        before = t;
        t = next_of(t);
    }
    if (t == NULL)
        return NULL;
    if (before != NULL)
        before->scratch[0] = next_of(t);
    else
        l->first = next_of(t);
    if (l->last == t)
        l->last = before;
    return t;
}

static void finish(oar_transfer *t, oar_status status)
{
    t->status = status;
    t->done = 1;
}

static void finish_all(list *l, oar_status status)
{
    oar_transfer *t = l->first, *next;

    for (; t != NULL; t = next) {
        next = next_of(t);
        finish(t, status);
    }
    l->first = l->last = NULL;
}

/* ---- making ---------------------------------------------------------------
 */

static void open_boxes(oari_mail *m, int peer)
{
    const oari_board *b = m->board;
    unsigned char *mine = (unsigned char *)b->control[b->rank];
    unsigned char *theirs = (unsigned char *)b->control[peer];
    unsigned char *to = mine + b->layout.mail + (size_t)peer * OARI_MAIL_BYTES;
    unsigned char *from =
        theirs + b->layout.mail + (size_t)b->rank * OARI_MAIL_BYTES;

    m->out[peer].head = (_Atomic uint64_t *)to;
    m->out[peer].ring = to + RING_HEAD;
    m->out[peer].taken =
        (const _Atomic uint64_t *)(theirs + b->layout.taken +
                                   (size_t)b->rank * OARI_LINE_ALIGN);
    m->in[peer].head = (const _Atomic uint64_t *)from;
    m->in[peer].ring = from + RING_HEAD;
    m->in[peer].taken = (_Atomic uint64_t *)(mine + b->layout.taken +
                                             (size_t)peer * OARI_LINE_ALIGN);
}

oar_status oari_mail_create(oari_board *board, oari_mail **mail)
{
    oari_mail *m = oari_alloc(1, sizeof *m);

    if (m == NULL)
        return OAR_E_NOMEM;
    m->board = board;
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

static void drop_kept(inbox *in)
{
    while (in->kept != NULL) {
        aside *a = in->kept;
        in->kept = a->next;
        oari_free(a);
    }
}

void oari_mail_destroy(oari_mail *mail)
{
    if (mail == NULL)
        return;
    for (int r = 0; mail->in != NULL && r < mail->board->ranks; r++)
        drop_kept(&mail->in[r]);
    oari_free(mail->in);
    oari_free(mail->out);
    oari_free(mail);
}

/* ---- bytes through a ring --------------------------------------------------
 */

static size_t round_up(size_t bytes)
{
    return (bytes + ROUND - 1) / ROUND * ROUND;
}

static void ring_write(unsigned char *ring, uint64_t at, const void *from,
                       size_t bytes)
{
    size_t first = at % RING, part = RING - first;

    if (part > bytes)
        part = bytes;
    memcpy(ring + first, from, part);
    if (bytes > part)
        memcpy(ring, (const unsigned char *)from + part, bytes - part);
}

static void ring_read(const unsigned char *ring, uint64_t at, void *to,
                      size_t bytes)
{
    size_t first = at % RING, part = RING - first;

    if (part > bytes)
        part = bytes;
    memcpy(to, ring + first, part);
    if (bytes > part)
        memcpy((unsigned char *)to + part, ring, bytes - part);
}

/* ---- sending ---------------------------------------------------------------
 */

/* Writes as much of the first message as there is room for; whether any. */
static int write_some(outbox *out, oar_transfer *t)
{
    uint64_t at = atomic_load_explicit(out->head, memory_order_relaxed);
    uint64_t taken = atomic_load_explicit(out->taken, memory_order_acquire);
    size_t room = RING - (size_t)(at - taken), left, part;
    head h = { t->bytes, t->tag };

    if (out->sent == 0) {
        if (room < sizeof h)
            return 0;
        ring_write(out->ring, at, &h, sizeof h);
        out->sent = sizeof h;
        at += sizeof h;
        room -= sizeof h;
    }
    left = t->bytes - (out->sent - sizeof h);
    part = left < room ? left : room / ROUND * ROUND;
    if (part != 0)
        ring_write(out->ring, at,
                   (const unsigned char *)t->data + (t->bytes - left), part);
    out->sent += part;
    at += part == left ? round_up(part) : part;
    if (at == atomic_load_explicit(out->head, memory_order_relaxed))
        return 0;
    atomic_store_explicit(out->head, at, memory_order_seq_cst);
    return 1;
}

static void push_out(oari_mail *m, int peer)
{
    outbox *out = &m->out[peer];
    oar_transfer *t;
    int wrote = 0;

    while ((t = out->queue.first) != NULL) {
        wrote |= write_some(out, t);
        if (out->sent != sizeof(head) + t->bytes)
            break;
        out->sent = 0;
        out->queue.first = next_of(t);
        if (out->queue.first == NULL)
            out->queue.last = NULL;
        finish(t, OAR_OK);
    }
    if (wrote)
        oari_board_notify(m->board, peer);
}

oar_status oari_mail_send(oari_mail *mail, oar_transfer *transfer)
{
    if (mail->aborted != OAR_OK) {
        finish(transfer, mail->aborted);
        return OAR_OK;
    }
    push(&mail->out[transfer->peer].queue, transfer);
    push_out(mail, transfer->peer);
    return OAR_OK;
}

/* ---- receiving -------------------------------------------------------------
 */

static aside **find_kept(inbox *in, uint64_t tag)
{
    aside **at = &in->kept;

    while (*at != NULL && ((*at)->tag != tag || (*at)->claimed != NULL))
        at = &(*at)->next;
    return at;
}

/* Hands a whole message that was set aside to its receive. */
static void hand_over(oari_mail *m, aside **at, oar_transfer *t)
{
    aside *a = *at;

    if (a->bytes == t->bytes && a->bytes != 0)
        memcpy(t->data, a->data, a->bytes);
    finish(t, a->bytes == t->bytes ? OAR_OK : OAR_E_SIZE);
    *at = a->next;
    m->kept_bytes -= a->bytes;
    oari_free(a);
}

oar_status oari_mail_recv(oari_mail *mail, oar_transfer *transfer)
{
    inbox *in = &mail->in[transfer->peer];
    aside **at;

    if (mail->aborted != OAR_OK) {
        finish(transfer, mail->aborted);
        return OAR_OK;
    }
    at = find_kept(in, transfer->tag);
    if (*at == NULL)
        push(&in->posted, transfer);
    else if ((*at)->whole)
        hand_over(mail, at, transfer);
    else
        (*at)->claimed = transfer;
    return OAR_OK;
}

/* A place for a message without a receive; 0 when it must wait in the ring. */
static int set_aside(oari_mail *m, inbox *in, oar_status *status)
{
    aside *a, **end = &in->kept;

    if (in->now.bytes > ASIDE_MAX - m->kept_bytes)
        return 0;
    a = oari_alloc(1, sizeof *a + in->now.bytes);
    if (a == NULL) {
        *status = OAR_E_NOMEM;
        return 0;
    }
    a->tag = in->now.tag;
    a->bytes = in->now.bytes;
    while (*end != NULL)
        end = &(*end)->next;
    *end = a;
    m->kept_bytes += a->bytes;
    in->filling = a;
    in->target = a->data;
    return 1;
}

/* Reads the head of the next message and decides where it goes. 0: nothing
 * there, or it has to wait. */
static int open_message(oari_mail *m, inbox *in, oar_status *status)
{
    uint64_t at = atomic_load_explicit(in->taken, memory_order_relaxed);
    uint64_t end = atomic_load_explicit(in->head, memory_order_acquire);

    if (end - at < sizeof in->now)
        return 0;
    ring_read(in->ring, at, &in->now, sizeof in->now);
    in->filling = NULL;
    in->target = NULL;
    in->into = take_tag(&in->posted, in->now.tag);
    if (in->into == NULL && !set_aside(m, in, status))
        return 0;
    if (in->into != NULL && in->into->bytes == in->now.bytes)
        in->target = in->into->data;
    in->got = 0;
    in->open = 1;
    atomic_store_explicit(in->taken, at + sizeof in->now, memory_order_seq_cst);
    return 1;
}

static void close_message(oari_mail *m, inbox *in)
{
    aside *a = in->filling, **at = &in->kept;

    in->open = 0;
    if (in->into != NULL) {
        finish(in->into,
               in->into->bytes == in->now.bytes ? OAR_OK : OAR_E_SIZE);
        return;
    }
    a->whole = 1;
    if (a->claimed == NULL)
        return;
    while (*at != a)
        at = &(*at)->next;
    hand_over(m, at, a->claimed);
}

/* Reads on in the open message; whether it moved. */
static int read_some(oari_mail *m, inbox *in)
{
    uint64_t at = atomic_load_explicit(in->taken, memory_order_relaxed);
    uint64_t end = atomic_load_explicit(in->head, memory_order_acquire);
    size_t left = in->now.bytes - in->got, ready = (size_t)(end - at);
    size_t part = left < ready ? left : ready;

    if (part < left && part == 0)
        return 0;
    if (part != 0 && in->target != NULL)
        ring_read(in->ring, at, in->target + in->got, part);
    in->got += part;
    atomic_store_explicit(in->taken,
                          at + (part == left ? round_up(part) : part),
                          memory_order_seq_cst);
    if (in->got == in->now.bytes)
        close_message(m, in);
    return 1;
}

static oar_status pull_in(oari_mail *m, int peer)
{
    inbox *in = &m->in[peer];
    oar_status status = OAR_OK;
    int moved = 0;

    while (in->open || open_message(m, in, &status)) {
        if (!read_some(m, in))
            break;
        moved = 1;
    }
    if (moved)
        oari_board_notify(m->board, peer);
    return status;
}

oar_status oari_mail_progress(oari_mail *mail)
{
    if (mail->aborted != OAR_OK)
        return OAR_OK;
    for (int r = 0; r < mail->board->ranks; r++) {
        push_out(mail, r);
        OARI_TRY(pull_in(mail, r));
    }
    return OAR_OK;
}

void oari_mail_abort(oari_mail *mail, oar_status why)
{
    mail->aborted = why;
    for (int r = 0; r < mail->board->ranks; r++) {
        inbox *in = &mail->in[r];
        finish_all(&mail->out[r].queue, why);
        finish_all(&in->posted, why);
        if (in->open && in->into != NULL)
            finish(in->into, why);
        in->open = 0;
        for (aside *a = in->kept; a != NULL; a = a->next)
            if (a->claimed != NULL)
                finish(a->claimed, why);
        drop_kept(in);
    }
}
