/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_connect: how connections are made, and how they end.
 *
 * The rank that first needs a pair calls the other, and sends a hello that
 * authenticates it (tcp_auth.c); the other rank answers with its own. A caller
 * that does not send a hello in time, or sends anything else, is dropped.
 *
 * The caller goes on behind its hello without waiting for the answer: a small
 * message must not wait for a receiver that is busy elsewhere. (TLS has to wait
 * for its handshake; until that is done the connection counts as not made.) So
 * a call is never refused because the other side calls, too: then the pair has
 * two connections. Two that are used in one direction each are slow, since
 * nothing acknowledges on its way: the higher rank soon moves over to the
 * other's (tcp_out.c). A side that has not sent yet when it is called sends
 * over that one.
 *
 * A peer is gone a moment after all of its connections have ended, so that
 * nothing is lost that it had sent over one of them.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/status.h"
#include "link/tcp/tcp.h"

enum {
    UNAUTHENTICATED_MAX = 128, /* that have not sent a hello */
    HELLO_MS = 5000,           /* to send it in */
    HELLO_MIN_NS = 100000000,  /* even if other callers wait */
    CONNECT_MS = 10000,        /* for one attempt */
    REFUSED_MAX = 3,           /* attempts, then the peer is not there */
    PAUSE_NS = 20000000,       /* before the second attempt; doubles ... */
    PAUSE_MAX_NS = 500000000,  /* ... up to here */
    EXPECT_NS = 50000000,      /* for a peer that is to send, to call */
    FADE_NS = 1000000000, /* from the first connection's end to the last's */
    GRACE_NS = 20000000, /* from the last's, for one that is not accepted yet */
    SURE_MS = 1000       /* beyond a lease */
};

/* ---- sockets ------------------------------------------------------------- */

static tcp_conn *add_conn(tcp_mesh *m, int fd, int peer, int slot,
                          tcp_state state, int64_t limit_ms)
{
    struct epoll_event event = { .events = EPOLLIN };
    tcp_conn *c = oari_alloc_aligned(64, sizeof *c);

    if (c == NULL) {
        oari_fork_close(fd);
        return NULL;
    }
    memset(c, 0, offsetof(tcp_conn, out));
    oari_stream_plain(&c->stream, fd);
    c->mesh = m;
    c->fd = fd;
    c->peer = peer;
    c->slot = slot;
    c->state = state;
    c->tls_caller = -1;
    c->maybe_tls = m->encrypts && state == TCP_ANSWERING;
    c->since_ns = oari_now_ns();
    c->deadline_ns = oari_deadline(limit_ms);
    c->watched = state == TCP_CONNECTING;
    event.data.ptr = c;
    if (c->watched)
        event.events |= EPOLLOUT;
    if (epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        oari_fork_close(fd);
        oari_free(c);
        return NULL;
    }
    c->next = m->conns;
    m->conns = c;
    m->open_conns++;
    m->unauthenticated += state == TCP_ANSWERING;
    return c;
}

static void close_conn(tcp_mesh *m, tcp_conn *c)
{
    if (c->state == TCP_DEAD)
        return;
    oari_stream_close(&c->stream);
    /* closing alone leaves it in the set while a forked child has it open */
    epoll_ctl(m->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    oari_fork_close(c->fd);
    c->fd = -1;
    m->unauthenticated -= c->state == TCP_ANSWERING;
    c->state = TCP_DEAD;
    m->open_conns--;
    m->dead++;
}

void tcp_reap(tcp_mesh *m)
{
    tcp_conn **at = &m->conns, *c;

    while (m->dead != 0 && (c = *at) != NULL) {
        if (c->state != TCP_DEAD) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        oari_free(c);
        m->dead--;
    }
}

/* Lets the kernel ask whether the other end is there (tcp_lease.c). */
static void begin_lease(const tcp_mesh *m, const tcp_conn *c)
{
    if (m->peer[c->peer].apart)
        oari_sock_keep_alive(c->fd, m->lease_ms);
}

/* ---- calling ------------------------------------------------------------- */

tcp_conn *tcp_call(tcp_mesh *m, int peer, int slot)
{
    tcp_peer *p = &m->peer[peer];
    int fd;

    if (oari_sock_connect_again(p->address, (unsigned)p->attempts, &fd) !=
        OAR_OK)
        return NULL;
    return add_conn(m, fd, peer, slot, TCP_CONNECTING, CONNECT_MS);
}

/* Sets whether the peer needs attention: it is being called, or fades. */
static void set_unsettled(tcp_mesh *m, tcp_peer *p, int unsettled)
{
    m->unsettled += unsettled - p->unsettled;
    p->unsettled = unsettled;
}

static void give_up_peer(tcp_mesh *m, tcp_peer *p, int how)
{
    set_unsettled(m, p, 0);
    p->gone = how;
}

static void call_later(tcp_peer *p)
{
    int64_t pause = PAUSE_NS;

    for (int i = 0; i < p->attempts && pause < PAUSE_MAX_NS; i++)
        pause *= 2;
    p->attempts++;
    p->again_ns = oari_now_ns() + pause;
}

/* Begins a call, which is often made at once. */
static void call_peer(tcp_mesh *m, int peer)
{
    tcp_peer *p = &m->peer[peer];

    p->called = 1;
    p->conn[0] = tcp_call(m, peer, 0);
    if (p->conn[0] != NULL)
        tcp_connected(m, p->conn[0]);
    else
        call_later(p);
}

static int is_known(const tcp_peer *p)
{
    return p->called || p->gone || p->conn[0] != NULL || p->fading_ns != 0;
}

void tcp_want(tcp_mesh *m, int peer)
{
    tcp_peer *p = &m->peer[peer];

    if (is_known(p))
        return;
    p->since_ns = oari_now_ns();
    set_unsettled(m, p, 1);
    call_peer(m, peer);
}

/* Most often the peer calls by itself, and one connection is enough. */
void tcp_want_later(tcp_mesh *m, int peer)
{
    tcp_peer *p = &m->peer[peer];

    if (is_known(p) || p->unsettled)
        return;
    p->since_ns = oari_now_ns();
    p->again_ns = p->since_ns + EXPECT_NS;
    set_unsettled(m, p, 1);
}

/* Returns whether a peer has not been reached in time. A host that does not
 * answer a call for a lease is not there. */
static int is_too_late(const tcp_mesh *m, const tcp_peer *p, int64_t now)
{
    int64_t limit = m->timeout_ms;

    if (p->apart && (limit < 0 || limit > m->lease_ms + SURE_MS))
        limit = m->lease_ms + SURE_MS;
    return limit >= 0 && now - p->since_ns > limit * 1000000;
}

static void retry_peer(tcp_mesh *m, int peer, int64_t now)
{
    tcp_peer *p = &m->peer[peer];
    tcp_conn *c = p->conn[0];
    int late = is_too_late(m, p, now);

    if (!p->unsettled)
        return;
    if (p->fading_ns != 0) {
        if (now >= p->fading_ns)
            tcp_drop(m, peer);
        return;
    }
    if (c != NULL && c->state == TCP_CONNECTING && !c->in_tls_handshake &&
        (late || now >= c->deadline_ns)) {
        if (late)
            tcp_connected(m, c); /* it may be made, unseen so far */
        if (c->state == TCP_CONNECTING && !c->in_tls_handshake)
            tcp_lose(m, c);
    }
    if (p->conn[0] != NULL || p->gone)
        return;
    if (late && p->called)
        give_up_peer(m, p, OARI_PEER_UNREACHABLE);
    else if (now >= p->again_ns)
        call_peer(m, peer);
}

void tcp_retry_peers(tcp_mesh *m)
{
    int64_t now = oari_now_ns();

    for (int r = 0; r < m->ranks; r++)
        retry_peer(m, r, now);
}

void tcp_say_hello(tcp_mesh *m, tcp_conn *c)
{
    oari_frame hello = { .kind = OARI_FRAME_HELLO,
                         .flags = c->slot < 0 ? OARI_FRAME_LAST : 0,
                         .tag = c->slot < 0 ? 0 : (uint64_t)c->slot,
                         .bytes = TCP_HELLO };
    unsigned char raw[TCP_HELLO];
    oar_status status = tcp_make_hello(m, c, &hello, raw);

    if (status != OAR_OK) {
        m->failed = status;
        return;
    }
    begin_lease(m, c);
    tcp_put(m, c, hello, raw);
    tcp_flush(m, c);
}

void tcp_widen(tcp_mesh *m, int peer)
{
    tcp_peer *p = &m->peer[peer];

    if (p->widened)
        return;
    p->widened = 1;
    for (int slot = 1; slot < m->sockets; slot++) {
        if (p->conn[slot] != NULL)
            continue;
        p->conn[slot] = tcp_call(m, peer, slot);
        if (p->conn[slot] != NULL)
            tcp_connected(m, p->conn[slot]);
    }
}

int tcp_secure(tcp_mesh *m, tcp_conn *c)
{
    int done = c->maybe_tls ? tcp_detect_tls(m, c) : 1;

    if (done > 0 && c->in_tls_handshake)
        done = tcp_step_tls(m, c);
    if (done < 0)
        tcp_lose(m, c);
    return done > 0;
}

/* Returns whether the connection is made, with TLS where that is agreed; loses
 * it if it cannot be. */
static int is_made(tcp_mesh *m, tcp_conn *c)
{
    tcp_peer *p = &m->peer[c->peer];
    int done;

    if (c->in_tls_handshake)
        return tcp_secure(m, c);
    if (oari_sock_connected(c->fd, p->address, &done) != OAR_OK) {
        if (oar_last_error()->sys_errno == ECONNREFUSED)
            *(c->slot == 0 ? &p->refused : &p->fact_refused) += c->slot <= 0;
        tcp_lose(m, c);
        return 0;
    }
    if (!done || c->slot < 0 || p->wire != OARI_PROTECTION_TLS)
        return done;
    begin_lease(m, c); /* the peer may be slow, but not its host */
    if (tcp_encrypt(m, c) == OAR_OK)
        return tcp_secure(m, c);
    tcp_lose(m, c);
    return 0;
}

void tcp_connected(tcp_mesh *m, tcp_conn *c)
{
    if (!is_made(m, c))
        return;
    c->state = TCP_CALLING;
    tcp_say_hello(m, c);
    if (c->slot < 0)
        return;
    if (c->slot == 0)
        set_unsettled(m, &m->peer[c->peer], 0);
    tcp_pump(m, c->peer);
}

/* ---- answering ----------------------------------------------------------- */

void tcp_drop_late_callers(tcp_mesh *m)
{
    int64_t now = oari_now_ns();

    for (tcp_conn *c = m->conns; c != NULL && m->unauthenticated != 0;
         c = c->next)
        if (c->state == TCP_ANSWERING && now >= c->deadline_ns)
            close_conn(m, c);
}

/* Drops the oldest caller without a hello; one that has authenticated by TLS
 * only if there are no others. Keeps one that has only just come, or whose
 * hello is here. Returns 0 if there is none to drop. */
static int make_room(tcp_mesh *m)
{
    tcp_conn *c = NULL;
    oar_status status;

    for (tcp_conn *at = m->conns; at != NULL; at = at->next)
        if (at->state == TCP_ANSWERING &&
            (c == NULL || at->tls_caller < 0 || c->tls_caller >= 0))
            c = at; /* new ones are put in front */
    if (c == NULL || oari_now_ns() - c->since_ns < HELLO_MIN_NS)
        return 0;
    status = m->handlers->readable(m, c);
    if (status != OAR_OK)
        m->failed = status;
    if (c->state == TCP_ANSWERING)
        close_conn(m, c);
    return 1;
}

void tcp_accept(tcp_mesh *m)
{
    int fd;

    tcp_drop_late_callers(m);
    for (int i = 0; i < UNAUTHENTICATED_MAX; i++) {
        if (m->unauthenticated >= UNAUTHENTICATED_MAX && !make_room(m))
            return;
        if (oari_sock_accept(m->listener, &fd) != OAR_OK || fd < 0)
            return;
        add_conn(m, fd, -1, 0, TCP_ANSWERING, HELLO_MS);
    }
}

static void answer_call(tcp_mesh *m, tcp_conn *c)
{
    uint64_t slot = c->now.tag;
    tcp_peer *p = &m->peer[c->now.source];

    if (slot >= TCP_SOCKETS_MAX || p->gone) {
        close_conn(m, c);
        return;
    }
    c->peer = (int)c->now.source;
    c->state = TCP_UP;
    m->unauthenticated--;
    c->slot = (int)slot;
    if ((c->now.flags & OARI_FRAME_LAST) != 0) {
        c->slot = TCP_BULLETIN_SLOT;
        return;
    }
    if (m->ended != OAR_OK) { /* the caller has not heard of that */
        m->handlers->called_late(m, c);
        return;
    }
    if (p->conn[slot] == NULL)
        p->conn[slot] = c;
    if (p->fading_ns != 0)
        p->fading_ns = oari_now_ns() + FADE_NS;
    else if (slot == 0)
        set_unsettled(m, p, 0);
    if (slot == 0)
        p->theirs = c;
    tcp_say_hello(m, c);
    tcp_pump(m, c->peer);
}

void tcp_hello_read(tcp_mesh *m, tcp_conn *c)
{
    if (!tcp_check_hello(m, c))
        tcp_lose(m, c);
    else if (c->state == TCP_ANSWERING)
        answer_call(m, c);
    else
        c->state = TCP_UP;
}

/* ---- ending -------------------------------------------------------------- */

/* Transfers that only the socket knew stay with the peer, and end with the
 * group. */
static void end_conn(tcp_mesh *m, tcp_conn *c)
{
    tcp_peer *p = &m->peer[c->peer];

    if (c->paying != NULL && oari_scratch(c->paying, 2) == OARI_HEADER_EAGER)
        oari_transfer_list_push(&p->with.queue, c->paying);
    if (c->inbound.into != NULL) {
        oari_scratch_set(c->inbound.into, 1, 0); /* no data is for it */
        oari_transfer_list_push(&p->with.arriving, c->inbound.into);
    }
    c->paying = NULL;
    c->payload = NULL;
    c->inbound = (oari_inbound){ 0 };
    c->take = NULL;
    close_conn(m, c);
    if (p->conn[c->slot] == c)
        p->conn[c->slot] = NULL;
    if (p->theirs == c)
        p->theirs = NULL;
    if (p->moving == c)
        p->moving = NULL;
}

void tcp_drop(tcp_mesh *m, int peer)
{
    tcp_peer *p = &m->peer[peer];

    for (tcp_conn *c = m->conns; c != NULL; c = c->next)
        if (c->peer == peer && c->slot >= 0 && c->state != TCP_DEAD)
            end_conn(m, c);
    give_up_peer(m, p,
                 p->goodbye    ? OARI_PEER_LEFT
                 : p->vanished ? OARI_PEER_UNREACHABLE
                               : OARI_PEER_DIED);
}

/* Where only one direction is cut, the peer still learns that this side has
 * given up: by a reset, which does not queue behind unacknowledged data. */
void tcp_vanish(tcp_mesh *m, int peer)
{
    struct linger at_once = { 1, 0 };

    for (tcp_conn *c = m->conns; c != NULL; c = c->next)
        if (c->peer == peer && c->fd >= 0)
            setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    m->peer[peer].vanished = 1;
    tcp_drop(m, peer);
}

/* Ends a connection, and soon the peer. Until then what the peer has sent is
 * read: over its other connections, and over one that it has made and that is
 * not accepted yet. */
static void fade_peer(tcp_mesh *m, tcp_conn *c)
{
    tcp_peer *p = &m->peer[c->peer];
    int64_t now = oari_now_ns();
    int open = 0;

    end_conn(m, c);
    for (const tcp_conn *at = m->conns; at != NULL; at = at->next)
        open |= at->peer == c->peer && at->slot >= 0 && at->state != TCP_DEAD &&
                at->state != TCP_CONNECTING;
    if (!open)
        p->fading_ns = now + GRACE_NS;
    else if (p->fading_ns == 0)
        p->fading_ns = now + FADE_NS;
    set_unsettled(m, p, 1);
}

/* Ends a call that failed. It is repeated, unless the peer is not there. */
static void lose_call(tcp_mesh *m, tcp_conn *c)
{
    tcp_peer *p = &m->peer[c->peer];

    close_conn(m, c);
    if (c->slot < 0)
        return;
    p->conn[c->slot] = NULL;
    if (c->slot > 0)
        return;
    if (p->refused >= REFUSED_MAX && p->theirs == NULL)
        give_up_peer(m, p, OARI_PEER_UNREACHABLE);
    else
        call_later(p);
}

void tcp_lose(tcp_mesh *m, tcp_conn *c)
{
    if (c->state == TCP_DEAD)
        return;
    if (c->state == TCP_CONNECTING)
        lose_call(m, c);
    else if (c->peer >= 0 && c->slot >= 0)
        fade_peer(m, c);
    else
        close_conn(m, c);
}
