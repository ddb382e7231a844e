/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_out: writes frames. Small ones are gathered in a buffer and leave in
 * one call; data above TCP_SMALL is written from where it lies, behind the
 * buffer. Messages of a pair go over its first socket, in order; parts of large
 * ones over any that has room.
 *
 * Scratch words of a send whose data is wanted, besides those of endpoint.h: 3
 * is where its next part begins, 4 how many parts are under way.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "link/tcp/tcp.h"

enum {
    UNCACHED = 4 << 20 /* messages that the caches of a core do not hold */
};

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

int tcp_put(tcp_mesh *m, tcp_conn *c, oari_frame frame, const void *data)
{
    size_t bytes = data != NULL ? frame.bytes : 0;

    if (c->mute || c->payload != NULL)
        return 0;
    if (c->out_at == c->out_end)
        c->out_at = c->out_end = 0;
    else if (c->out_at > TCP_BUFFER / 2) {
        memmove(c->out, c->out + c->out_at, c->out_end - c->out_at);
        c->out_end -= c->out_at;
        c->out_at = 0;
    }
    if (TCP_BUFFER - c->out_end < OARI_FRAME_BYTES + bytes)
        return 0;
    frame.context = m->context;
    frame.source = (uint32_t)m->rank;
    frame.sequence = c->sent++;
    if (c->slot >= 0 && frame.kind != OARI_FRAME_HELLO)
        frame.credit = (uint32_t)oari_endpoint_told(&m->peer[c->peer].with);
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
    if (oari_scratch(t, 2) == OARI_HEADER_DATA) {
        oari_scratch_set(t, 4, oari_scratch(t, 4) - 1);
        if (oari_scratch(t, 3) != t->bytes || oari_scratch(t, 4) != 0)
            return;
        oari_transfer_list_take(&p->jobs, oari_scratch(t, 1));
    }
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

/* Ends writing. What the peer sent before it left can still be read. */
static void go_mute(tcp_mesh *m, tcp_conn *c)
{
    c->mute = 1;
    tcp_watch_room(m, c, 0);
}

/* Most sockets are plain, and small messages are one piece: for these send is
 * the quickest call. */
static inline ssize_t write_some(tcp_conn *c, struct iovec *piece, int n)
{
    struct msghdr message = { .msg_iov = piece, .msg_iovlen = (size_t)n };
    int flags = MSG_NOSIGNAL | MSG_DONTWAIT;

    if (c->stream.tls != NULL)
        return oari_stream_write(&c->stream, piece, n);
    return n == 1 ? send(c->fd, piece->iov_base, piece->iov_len, flags)
                  : sendmsg(c->fd, &message, flags);
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

static void set_payload(tcp_conn *c, oar_transfer *t, size_t at, size_t bytes)
{
    c->payload = (const unsigned char *)t->data + at;
    c->payload_left = bytes;
    c->paying = t;
}

/* Puts the frame of a header behind what is to be written. */
enum oari_written tcp_write(oari_endpoint *e, oari_header *h, oar_transfer *t)
{
    static const oari_frame_kind kinds[] = {
        [OARI_HEADER_EAGER] = OARI_FRAME_PUSH,
        [OARI_HEADER_OFFER] = OARI_FRAME_OFFER,
        [OARI_HEADER_DONE] = OARI_FRAME_TAKE,
        [OARI_HEADER_ACCEPT] = OARI_FRAME_TAKE,
        [OARI_HEADER_CREDIT] = OARI_FRAME_CREDIT,
        [OARI_HEADER_REVOKE] = OARI_FRAME_REVOKE
    };
    tcp_mesh *m = e->link->self;
    tcp_conn *c = m->peer[e->rank].over;
    oari_frame frame = { .kind = kinds[h->kind],
                         .tag = h->tag,
                         .bytes = h->bytes,
                         .handle = h->number };
    int eager = h->kind == OARI_HEADER_EAGER, small = h->bytes <= TCP_SMALL;

    if (h->kind == OARI_HEADER_ACCEPT)
        frame.tag = h->word[0];
    if (h->kind == OARI_HEADER_DONE)
        frame.flags = OARI_FRAME_REFUSED;
    if (!tcp_put(m, c, frame, eager && small ? t->data : NULL))
        return OARI_WROTE_NOTHING;
    if (!eager || small)
        return OARI_WROTE_ALL;
    set_payload(c, t, 0, t->bytes);
    return OARI_WROTE_HEADER;
}

/* Asks for the bytes of a part of a message that the caches do not hold. The
 * kernel copies them next, and would wait for memory line by line. The first
 * line of each of a few pages goes before the rest, so that the processor finds
 * where these lie at the same time. */
static void fetch_part(const unsigned char *part, size_t bytes)
{
#if defined(__aarch64__) /* not measured on others */
    enum { LINE = 64, PAGE = 4096, GROUP = 8 * PAGE };

    for (size_t at = 0; at + GROUP <= bytes; at += GROUP) {
        for (size_t i = 0; i < GROUP; i += PAGE)
            __builtin_prefetch(part + at + i, 0, 1);
        for (size_t i = 0; i < GROUP; i += LINE)
            __builtin_prefetch(part + at + i, 0, 1);
    }
#endif
}

/* Puts the next part of the first message that has one left. */
static int put_part(tcp_mesh *m, tcp_peer *p, tcp_conn *c)
{
    oar_transfer *t = p->jobs.first;
    oari_frame frame = { .kind = OARI_FRAME_DATA };
    uint64_t at;

    while (t != NULL && oari_scratch(t, 3) == t->bytes)
        t = oari_transfer_list_next(t);
    if (t == NULL)
        return 0;
    at = oari_scratch(t, 3);
    frame.handle = oari_scratch(t, 1);
    frame.tag = at;
    frame.bytes = t->bytes - at < TCP_PART ? t->bytes - at : TCP_PART;
    if (!tcp_put(m, c, frame, NULL))
        return 0;
    oari_scratch_set(t, 3, at + frame.bytes);
    oari_scratch_set(t, 4, oari_scratch(t, 4) + 1);
    set_payload(c, t, at, frame.bytes);
    if (t->bytes >= UNCACHED)
        fetch_part(c->payload, frame.bytes);
    return 1;
}

static int put_next(tcp_mesh *m, tcp_peer *p, tcp_conn *c)
{
    if (c->payload != NULL || c->mute)
        return 0;
    p->over = c;
    if (c->slot == 0 && oari_endpoint_write_next(&p->with, m->link.transport))
        return 1;
    return put_part(m, p, c);
}

/* Where both ranks have called, the higher one goes over to the other's
 * connection when all that it has sent over its own has left. */
static void move_over(tcp_mesh *m, tcp_peer *p)
{
    tcp_conn *mine = p->conn[0], *theirs = p->theirs;
    oari_frame move = { .kind = OARI_FRAME_MOVE, .handle = mine->sent };

    if (mine->state != TCP_UP || theirs->state != TCP_UP || p->fading_ns != 0 ||
        mine->mute || mine->payload != NULL || mine->out_at != mine->out_end ||
        !tcp_put(m, theirs, move, NULL))
        return;
    mine->idle = 1;
    p->conn[0] = theirs;
}

void tcp_pump(tcp_mesh *m, int peer)
{
    tcp_peer *p = &m->peer[peer];
    int answers = 0;

    if (p->conn[0] != p->theirs && p->conn[0] != NULL && p->theirs != NULL &&
        m->rank > peer)
        move_over(m, p);
    for (int i = 0; i < TCP_SOCKETS_MAX; i++) {
        tcp_conn *c = p->conn[i];
        if (c == NULL || c->state == TCP_CONNECTING)
            continue;
        do /* until there is no room, or nothing left */
            while (put_next(m, p, c))
                ;
        while (tcp_flush(m, c) && put_next(m, p, c));
    }
    if (p->with.leftovers != NULL)
        oari_endpoint_sweep(&p->with, 0);
    p->over = p->theirs;
    if (p->over == NULL || p->over == p->conn[0])
        return;
    while (p->with.answers.count != 0 &&
           oari_endpoint_write_next(&p->with, m->link.transport))
        answers = 1;
    if (answers)
        tcp_flush(m, p->over);
}

/* A peer that only sends hears of its credit, if there is a connection. */
void tcp_credit(tcp_mesh *m, int peer)
{
    tcp_peer *p = &m->peer[peer];

    if (p->conn[0] != NULL || p->theirs != NULL)
        oari_endpoint_give_credit(&p->with);
}

/* ---- taking back --------------------------------------------------------- */

static int is_gone(const tcp_peer *p)
{
    return p->gone || (p->bulletin != NULL &&
                       oari_bulletin_has(p->bulletin, OARI_FACT_FAULT));
}

static int is_being_written(const tcp_peer *p, const oar_transfer *t)
{
    for (int i = 0; i < TCP_SOCKETS_MAX; i++)
        if (p->conn[i] != NULL && p->conn[i]->paying == t)
            return 1;
    return oari_transfer_list_has(&p->jobs, t);
}

/* A send whose data is being written goes on from a copy. */
int tcp_withdraw_send(tcp_peer *p, oar_transfer *t, int unmoved)
{
    oar_transfer *copy;

    if (oari_endpoint_withdraw_send(&p->with, t, is_gone(p)))
        return 1;
    if (p->gone && oari_transfer_list_drop(&p->jobs, t))
        return 1;
    if (unmoved || !is_being_written(p, t) ||
        (copy = oari_endpoint_copy_send(&p->with, t, 0)) == NULL)
        return 0;
    if (oari_transfer_list_has(&p->jobs, t))
        oari_transfer_list_replace(&p->jobs, t, copy);
    for (int i = 0; i < TCP_SOCKETS_MAX; i++) {
        tcp_conn *c = p->conn[i];

        if (c == NULL || c->paying != t)
            continue;
        c->payload = (const unsigned char *)copy->data +
                     (c->payload - (const unsigned char *)t->data);
        c->paying = copy;
    }
    return 1;
}

/* ---- the end ------------------------------------------------------------- */

/* Data whose buffer is the user's again cannot be sent to its end, and nothing
 * can follow it on that socket. */
void tcp_end_out(tcp_mesh *m, tcp_peer *p, oar_status why)
{
    for (int i = 0; i < TCP_SOCKETS_MAX; i++) {
        tcp_conn *c = p->conn[i];
        if (c == NULL || c->payload == NULL)
            continue;
        if (oari_scratch(c->paying, 2) == OARI_HEADER_EAGER)
            oari_transfer_finish(c->paying, why);
        c->payload = NULL;
        c->paying = NULL;
        go_mute(m, c);
    }
    oari_endpoint_end(&p->with, why);
    oari_transfer_list_finish(&p->jobs, why);
}
