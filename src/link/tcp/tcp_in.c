/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_in: reads frames. A read goes straight into the destination of the
 * payload under way, and what follows it into a buffer, in which headers are
 * found. A header is checked before anything is done as it says. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/status.h"
#include "link/tcp/tcp.h"

enum { READS = 8, BULK = 64 << 10 };

/* ---- frames -------------------------------------------------------------- */

static oar_status nonsense(const tcp_conn *c)
{
    return oari_fail(OAR_E_DATA,
                     "rank %d sent a frame of kind %d that makes no "
                     "sense",
                     c->peer, (int)c->now.kind);
}

/* The data of a send is wanted. */
static oar_status move_data(oari_endpoint *e, oar_transfer *send)
{
    tcp_mesh *m = e->link->self;

    oari_scratch_set(send, 3, 0);
    oari_scratch_set(send, 4, 0);
    oari_transfer_list_push(&m->peer[e->rank].jobs, send);
    if (send->bytes >= TCP_WIDE)
        tcp_widen(m, e->rank);
    tcp_pump(m, e->rank);
    return OAR_OK;
}

static void flush(oari_endpoint *e)
{
    tcp_pump(e->link->self, e->rank);
}

const oari_transport tcp_transport = { .write = tcp_write,
                                       .flush = flush,
                                       .move = move_data };

/* An offer, or the answer to one. */
static oar_status hear(tcp_mesh *m, const tcp_conn *c)
{
    const oari_frame *frame = &c->now;
    int offer = frame->kind == OARI_FRAME_OFFER;
    int refused = !offer && (frame->flags & OARI_FRAME_REFUSED) != 0;
    oari_header h = { .kind = offer     ? OARI_HEADER_OFFER
                              : refused ? OARI_HEADER_DONE
                                        : OARI_HEADER_ACCEPT,
                      .status = OAR_E_SIZE,
                      .bytes = frame->bytes,
                      .tag = frame->tag,
                      .number = frame->handle,
                      .word = { frame->tag } };

    return oari_endpoint_hear(&m->peer[c->peer].with, &h);
}

/* The peer's frames come over this socket from now on: its messages must not
 * overtake those that it has sent over its own. */
static oar_status hear_move(tcp_mesh *m, tcp_conn *c)
{
    tcp_peer *p = &m->peer[c->peer];

    if (c != p->conn[0] || c == p->theirs || p->moving != NULL ||
        m->rank > c->peer || c->now.handle > UINT32_MAX)
        return nonsense(c);
    p->moving = c;
    p->move_at = (uint32_t)c->now.handle;
    return OAR_OK;
}

static oar_status begin_frame(tcp_mesh *m, tcp_conn *c)
{
    oari_endpoint *e = c->peer >= 0 ? &m->peer[c->peer].with : NULL;
    oar_status status;

    c->target = c->small; /* of a hello or a fact */
    c->bulk = c->now.kind == OARI_FRAME_DATA && c->now.bytes >= BULK;
    switch (c->now.kind) {
    case OARI_FRAME_PUSH:
        status = oari_match_begin(m->link.match, c->peer, c->now.tag,
                                  c->now.bytes, &c->inbound);
        c->target = c->inbound.target;
        return status;
    case OARI_FRAME_DATA:
        c->take =
            oari_endpoint_arriving(e, c->now.handle, c->now.tag, c->now.bytes);
        if (c->take == NULL)
            return nonsense(c);
        c->target = c->take->data != NULL
                        ? (unsigned char *)c->take->data + c->now.tag
                        : NULL; /* taken back */
        return OAR_OK;
    case OARI_FRAME_OFFER:
    case OARI_FRAME_TAKE: return hear(m, c);
    case OARI_FRAME_REVOKE:
        oari_endpoint_hear_revoke(e, c->now.handle);
        return OAR_OK;
    case OARI_FRAME_MOVE: return hear_move(m, c);
    case OARI_FRAME_GOODBYE: m->peer[c->peer].goodbye = 1; return OAR_OK;
    case OARI_FRAME_HELLO:
    case OARI_FRAME_BULLETIN:
    case OARI_FRAME_CREDIT: return OAR_OK;
    case OARI_FRAME_KINDS: break;
    }
    return nonsense(c);
}

static void end_frame(tcp_mesh *m, tcp_conn *c)
{
    oar_transfer *receive = c->take;

    c->open = 0;
    switch (c->now.kind) {
    case OARI_FRAME_HELLO: tcp_hello_read(m, c); break;
    case OARI_FRAME_BULLETIN: tcp_hear_fact(m, c); break;
    case OARI_FRAME_PUSH:
        oari_match_end(m->link.match, &c->inbound);
        tcp_credit(m, c->peer);
        break;
    default:
        c->take = NULL;
        oari_endpoint_arrived(&m->peer[c->peer].with, receive, c->now.bytes);
    }
}

static int fits(const tcp_conn *c)
{
    const oari_frame *frame = &c->now;
    uint64_t seal = c->slot < 0 ? OARI_SEAL_TAG : 0;

    if (frame->kind == OARI_FRAME_BULLETIN)
        return frame->tag < OARI_FACTS &&
               frame->bytes == oari_fact_bytes(frame->tag) + seal;
    return frame->kind != OARI_FRAME_HELLO || frame->bytes == TCP_HELLO;
}

/* Whether this frame may come now, on this socket. A hello may have nothing
 * that its proof does not cover. */
static int in_place(const tcp_mesh *m, const tcp_conn *c)
{
    const oari_frame *f = &c->now;
    int hello = f->kind == OARI_FRAME_HELLO;
    int bare = f->handle == 0 && f->fingerprint == 0 && f->credit == 0;

    return f->context == m->context && fits(c) &&
           f->source < (uint32_t)m->ranks && f->sequence == c->seen &&
           hello == (c->state != TCP_UP) &&
           (hello ? bare : f->source == (uint32_t)c->peer) &&
           (c->slot >= 0 || hello || f->kind == OARI_FRAME_BULLETIN);
}

/* A peer that is not authenticated yet is only disconnected. */
static oar_status refuse_frame(tcp_mesh *m, tcp_conn *c, oar_status status)
{
    char what[128];

    if (c->state != TCP_UP || c->slot < 0) {
        tcp_lose(m, c);
        return OAR_OK;
    }
    if (status == OAR_OK)
        return nonsense(c);
    snprintf(what, sizeof what, "%s", oar_last_error_text());
    return oari_fail(status, "rank %d sent %s", c->peer, what);
}

static oar_status read_frame(tcp_mesh *m, tcp_conn *c)
{
    oar_status status = oari_frame_read(c->in + c->in_at, &c->now);
    oari_frame_kind kind = c->now.kind;

    if (status != OAR_OK || !in_place(m, c))
        return refuse_frame(m, c, status);
    c->in_at += OARI_FRAME_BYTES;
    c->seen++;
    if (c->state == TCP_UP && c->slot >= 0)
        oari_endpoint_hear_credit(&m->peer[c->peer].with, c->now.credit);
    c->open = kind == OARI_FRAME_HELLO || kind == OARI_FRAME_PUSH ||
              kind == OARI_FRAME_DATA ||
              kind == OARI_FRAME_BULLETIN; /* a payload follows */
    c->left = c->open ? c->now.bytes : 0;
    return begin_frame(m, c);
}

/* ---- bytes --------------------------------------------------------------- */

/* Whether what the peer has sent over its own socket must be read first. */
static inline int is_held(const tcp_mesh *m, const tcp_conn *c)
{
    return c->peer >= 0 && m->peer[c->peer].moving == c;
}

static oar_status parse(tcp_mesh *m, tcp_conn *c)
{
    while (c->state != TCP_DEAD) {
        size_t ready = c->in_end - c->in_at;
        size_t part = c->left < ready ? c->left : ready;

        if (!c->open) {
            if (ready < OARI_FRAME_BYTES || is_held(m, c))
                return OAR_OK;
            OARI_TRY(read_frame(m, c));
            continue;
        }
        if (c->target != NULL && part != 0) {
            memcpy(c->target, c->in + c->in_at, part);
            c->target += part;
        }
        c->in_at += part;
        c->left -= part;
        if (c->left != 0)
            return OAR_OK;
        end_frame(m, c);
    }
    return OAR_OK;
}

/* Ends a move when all of the other socket has been read. */
static oar_status end_move(tcp_mesh *m, tcp_peer *p)
{
    tcp_conn *to = p->moving, *from = p->theirs;

    if (from != NULL && (from->open || (int32_t)(from->seen - p->move_at) < 0))
        return OAR_OK;
    if (from != NULL)
        from->idle = 1;
    p->theirs = to;
    p->moving = NULL;
    return parse(m, to);
}

/* Says where the next bytes go, and in how many pieces. */
static int aim(tcp_mesh *m, tcp_conn *c, struct iovec piece[2])
{
    size_t head = c->in_end - c->in_at;
    int n = 0;

    memmove(c->in, c->in + c->in_at, head);
    c->in_at = 0;
    c->in_end = head;
    if (c->left != 0) {
        size_t sink = c->left < TCP_SINK ? c->left : TCP_SINK;
        piece[n++] = c->target != NULL ? (struct iovec){ c->target, c->left }
                                       : (struct iovec){ m->sink, sink };
        if (c->target == NULL && sink < c->left)
            return n;
    }
    piece[n++] = (struct iovec){ c->in + head, c->bulk ? OARI_FRAME_BYTES - head
                                                       : TCP_BUFFER - head };
    return n;
}

/* Most sockets are plain, and most reads of one piece: for these recv is the
 * quickest call. */
static inline ssize_t read_some(tcp_conn *c, const struct iovec *piece, int n)
{
    if (c->stream.tls != NULL)
        return oari_stream_read(&c->stream, piece, n);
    return n == 1 ? recv(c->fd, piece->iov_base, piece->iov_len, MSG_DONTWAIT)
                  : readv(c->fd, piece, n);
}

/* Whether TLS has read ahead: the socket does not tell of that. */
static inline int has_more(const tcp_conn *c)
{
    return c->stream.tls != NULL && oari_stream_pending(&c->stream);
}

/* Reads what there is, as far as it is fair to other sockets. */
static oar_status read_socket(tcp_mesh *m, tcp_conn *c)
{
    for (int i = 0; i < READS && c->state != TCP_DEAD && !is_held(m, c); i++) {
        struct iovec piece[2];
        int n = aim(m, c, piece);
        size_t asked = piece[0].iov_len + (n == 2 ? piece[1].iov_len : 0);
        ssize_t got = read_some(c, piece, n);
        size_t part;

        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return OAR_OK;
        if (got < 0 && errno == ETIMEDOUT && c->peer >= 0 && c->slot >= 0 &&
            c->state != TCP_CONNECTING) {
            tcp_vanish(m, c->peer);
            return OAR_OK;
        }
        if (got <= 0) {
            tcp_lose(m, c);
            return OAR_OK;
        }
        part = c->left < (size_t)got ? c->left : (size_t)got;
        if (c->target != NULL)
            c->target += part;
        c->left -= part;
        c->in_end += (size_t)got - part;
        OARI_TRY(parse(m, c));
        if ((size_t)got < asked && !has_more(c))
            return OAR_OK;
    }
    m->again |= has_more(c);
    return OAR_OK;
}

oar_status tcp_read(tcp_mesh *m, tcp_conn *c)
{
    OARI_TRY(read_socket(m, c));
    if (c->peer >= 0 && m->peer[c->peer].moving != NULL)
        return end_move(m, &m->peer[c->peer]);
    return OAR_OK;
}

void tcp_end_in(tcp_mesh *m, oar_status why)
{
    for (tcp_conn *c = m->conns; c != NULL; c = c->next) {
        oari_match_drop(&c->inbound, why);
        c->take = NULL;
        c->target = NULL;
    }
}

int tcp_withdraw_receive(tcp_mesh *m, oar_transfer *t)
{
    tcp_peer *p = &m->peer[t->source];
    oar_transfer *rest;

    for (tcp_conn *c = m->conns; c != NULL; c = c->next)
        if (c->inbound.into == t) {
            c->inbound = (oari_inbound){ 0 };
            c->target = NULL;
            return 1;
        }
    if ((rest = oari_endpoint_withdraw_arriving(&p->with, t)) == NULL)
        return 0;
    for (tcp_conn *c = m->conns; c != NULL; c = c->next)
        if (c->take == t) {
            c->take = rest;
            c->target = NULL;
        }
    return 1;
}
