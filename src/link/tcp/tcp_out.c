/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_out: what is written. Small frames are gathered in a buffer and leave in
 * one call; data above TCP_SMALL is written from where it lies, behind the
 * buffer. Messages of a pair go over its first socket, in order; parts of large
 * ones over whichever has room.
 *
 * Scratch words of a transfer: 0 links it, 1 is its number, 2 its kind or, once
 * wanted, where its next part begins, 3 the receiver's number, 4 parts under
 * way.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/vec.h"
#include "link/tcp/tcp.h"

/* ---- one socket ---------------------------------------------------------- */

void tcp_watch_room(tcp_mesh *m, tcp_conn *c, int wanted)
{
    struct epoll_event event = { .events = EPOLLIN | (wanted ? EPOLLOUT : 0u),
                                 .data.ptr = c };

    if (c->watched == wanted)
        return;
    c->watched = wanted;
    epoll_ctl(m->epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

static size_t make_room(tcp_conn *c)
{
    if (c->out_at == c->out_end)
        c->out_at = c->out_end = 0;
    else if (c->out_at > TCP_BUFFER / 2) {
        memmove(c->out, c->out + c->out_at, c->out_end - c->out_at);
        c->out_end -= c->out_at;
        c->out_at = 0;
    }
    return TCP_BUFFER - c->out_end;
}

int tcp_put(tcp_mesh *m, tcp_conn *c, oari_frame frame, const void *data)
{
    size_t bytes = data != NULL ? frame.bytes : 0;

    if (c->mute || c->payload != NULL ||
        make_room(c) < OARI_FRAME_BYTES + bytes)
        return 0;
    frame.context = m->context;
    frame.source = (uint32_t)m->rank;
    frame.sequence = c->sent++;
    if (c->slot >= 0 && frame.kind != OARI_FRAME_HELLO) {
        frame.credit = (uint32_t)oari_match_received(m->match, c->peer);
        m->peer[c->peer].told = frame.credit;
    }
    oari_frame_write(&frame, c->out + c->out_end);
    if (bytes != 0)
        memcpy(c->out + c->out_end + OARI_FRAME_BYTES, data, bytes);
    c->out_end += OARI_FRAME_BYTES + bytes;
    return 1;
}

/* The payload is written: if it was the last of its message, that is done. */
static void end_payload(tcp_peer *p, tcp_conn *c)
{
    oar_transfer *t = c->paying;

    c->payload = NULL;
    c->paying = NULL;
    if (oari_scratch(t, 3) == 0) { /* pushed */
        oari_transfer_finish(t, OAR_OK);
        return;
    }
    oari_scratch_set(t, 4, oari_scratch(t, 4) - 1);
    if (oari_scratch(t, 2) != t->bytes || oari_scratch(t, 4) != 0)
        return;
    oari_row_take(&p->jobs, oari_scratch(t, 1));
    oari_transfer_finish(t, OAR_OK);
}

static void wrote(tcp_mesh *m, tcp_conn *c, size_t bytes)
{
    size_t head = c->out_end - c->out_at;
    size_t part = bytes < head ? bytes : head;

    c->out_at += part;
    bytes -= part;
    if (c->payload == NULL)
        return;
    c->payload += bytes;
    c->payload_left -= bytes;
    if (c->payload_left == 0)
        end_payload(&m->peer[c->peer], c);
}

/* What cannot be written any more does not say that nothing can be read: the
 * peer may have left behind what it had sent. */
static void go_mute(tcp_mesh *m, tcp_conn *c)
{
    c->mute = 1;
    tcp_watch_room(m, c, 0);
}

/* Most are plain: not even a call more for them. */
static inline ssize_t write_some(tcp_conn *c, struct iovec *piece, int n)
{
    struct msghdr message = { .msg_iov = piece, .msg_iovlen = (size_t)n };

    return c->stream.tls == NULL
               ? sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
               : oari_stream_write(&c->stream, piece, n);
}

int tcp_flush(tcp_mesh *m, tcp_conn *c)
{
    while (!c->mute && (c->out_at < c->out_end || c->payload != NULL)) {
        struct iovec piece[2] = { { c->out + c->out_at,
                                    c->out_end - c->out_at } };
        int pieces = 1;
        ssize_t put;
        if (c->payload != NULL) {
            memcpy(&piece[1].iov_base, &c->payload, sizeof c->payload);
            piece[1].iov_len = c->payload_left;
            pieces = 2;
        }
        put = write_some(c, piece, pieces);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0 && (errno == EAGAIN || errno == ENOBUFS)) {
            tcp_watch_room(m, c, 1);
            return 0;
        }
        if (put < 0) {
            if (errno == ETIMEDOUT && c->peer >= 0)
                m->peer[c->peer].vanished = 1;
            go_mute(m, c);
            return 0;
        }
        wrote(m, c, (size_t)put);
    }
    if (c->mute)
        return 0;
    tcp_watch_room(m, c, 0);
    return 1;
}

/* ---- what to write next -------------------------------------------------- */

static int put_answers(tcp_mesh *m, tcp_peer *p, tcp_conn *c)
{
    size_t n = 0;

    while (n < p->answers && tcp_put(m, c, p->answer[n], NULL))
        n++;
    if (n != 0) {
        p->answers -= n;
        memmove(p->answer, p->answer + n, p->answers * sizeof *p->answer);
    }
    return n != 0;
}

static void set_payload(tcp_conn *c, oar_transfer *t, size_t at, size_t bytes)
{
    c->payload = (const unsigned char *)t->data + at;
    c->payload_left = bytes;
    c->paying = t;
}

static int put_push(tcp_mesh *m, tcp_peer *p, tcp_conn *c, oar_transfer *t)
{
    oari_frame frame = { .kind = OARI_FRAME_PUSH,
                         .tag = t->tag,
                         .bytes = t->bytes };
    int small = t->bytes <= TCP_SMALL;

    if (!tcp_put(m, c, frame, small ? t->data : NULL))
        return 0;
    oari_row_remove(&p->queue, NULL, t);
    if (small)
        oari_transfer_finish(t, OAR_OK);
    else
        set_payload(c, t, 0, t->bytes);
    return 1;
}

static int put_offer(tcp_mesh *m, tcp_peer *p, tcp_conn *c, oar_transfer *t)
{
    oari_frame frame = { .kind = OARI_FRAME_OFFER,
                         .tag = t->tag,
                         .bytes = t->bytes,
                         .handle = oari_scratch(t, 1) };

    if (!tcp_put(m, c, frame, NULL))
        return 0;
    oari_row_remove(&p->queue, NULL, t);
    oari_row_push(&p->offered, t);
    return 1;
}

static int put_message(tcp_mesh *m, tcp_peer *p, tcp_conn *c)
{
    oar_transfer *t = p->queue.first;

    if (t == NULL)
        return 0;
    return oari_scratch(t, 2) == OARI_FRAME_PUSH ? put_push(m, p, c, t)
                                                 : put_offer(m, p, c, t);
}

/* The first message that has a part left. */
static int put_part(tcp_mesh *m, tcp_peer *p, tcp_conn *c)
{
    oar_transfer *t = p->jobs.first;
    oari_frame frame = { .kind = OARI_FRAME_DATA };
    uint64_t at;

    while (t != NULL && oari_scratch(t, 2) == t->bytes)
        t = oari_row_next(t);
    if (t == NULL)
        return 0;
    at = oari_scratch(t, 2);
    frame.handle = oari_scratch(t, 3);
    frame.tag = at;
    frame.bytes = t->bytes - at < TCP_PART ? t->bytes - at : TCP_PART;
    if (!tcp_put(m, c, frame, NULL))
        return 0;
    oari_scratch_set(t, 2, at + frame.bytes);
    oari_scratch_set(t, 4, oari_scratch(t, 4) + 1);
    set_payload(c, t, at, frame.bytes);
    return 1;
}

static int put_next(tcp_mesh *m, tcp_peer *p, tcp_conn *c)
{
    if (c->payload != NULL || c->mute)
        return 0;
    if (c->slot == 0 && (put_answers(m, p, c) || put_message(m, p, c)))
        return 1;
    return put_part(m, p, c);
}

/* Until there is no room, or nothing left. */
static void pump_conn(tcp_mesh *m, tcp_peer *p, tcp_conn *c)
{
    do
        while (put_next(m, p, c))
            ;
    while (tcp_flush(m, c) && put_next(m, p, c));
}

void tcp_pump(tcp_mesh *m, int peer)
{
    tcp_peer *p = &m->peer[peer];

    for (int i = 0; i < TCP_SOCKETS_MAX; i++)
        if (p->conn[i] != NULL && p->conn[i]->state != TCP_CONNECTING)
            pump_conn(m, p, p->conn[i]);
    if (p->answers != 0 && p->theirs != NULL && p->theirs != p->conn[0] &&
        put_answers(m, p, p->theirs))
        tcp_flush(m, p->theirs);
}

/* ---- answers ------------------------------------------------------------- */

oar_status tcp_answer(tcp_mesh *m, int peer, const oari_frame *frame)
{
    tcp_peer *p = &m->peer[peer];

    OARI_TRY(oari_array_reserve(p->answer, p->answers, p->answer_room, 1));
    p->answer[p->answers++] = *frame;
    tcp_pump(m, peer);
    return OAR_OK;
}

/* A peer that only sends hears of its credit when a quarter of it is due. */
void tcp_credit(tcp_mesh *m, int peer)
{
    tcp_peer *p = &m->peer[peer];
    uint32_t due = (uint32_t)oari_match_received(m->match, peer) - p->told;
    oari_frame frame = { .kind = OARI_FRAME_CREDIT };

    if ((p->conn[0] == NULL && p->theirs == NULL) ||
        due < oari_match_credit(m->match) / 4)
        return;
    p->told += due;
    if (tcp_answer(m, peer, &frame) != OAR_OK)
        m->failed = OAR_E_NOMEM;
}

/* ---- the end ------------------------------------------------------------- */

/* Data whose buffer is its owner's again cannot be sent to its end: nothing can
 * follow it on that socket. */
void tcp_end_out(tcp_mesh *m, tcp_peer *p, oar_status why)
{
    for (int i = 0; i < TCP_SOCKETS_MAX; i++) {
        tcp_conn *c = p->conn[i];
        if (c == NULL || c->payload == NULL)
            continue;
        if (oari_scratch(c->paying, 3) == 0)
            oari_transfer_finish(c->paying, why);
        c->payload = NULL;
        c->paying = NULL;
        go_mute(m, c);
    }
    oari_row_finish(&p->queue, why);
    oari_row_finish(&p->offered, why);
    oari_row_finish(&p->jobs, why);
    p->answers = 0;
}
