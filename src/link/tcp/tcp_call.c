/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_call: how a connection comes to be, and how it ends.
 *
 * Whoever first needs a pair calls, and says hello with a proof (tcp_prove.c);
 * the other answers with one. Nothing is kept of a caller that does not say
 * hello in time, or says anything else.
 *
 * The caller goes on behind its hello without waiting for the answer: a small
 * message must not wait for a receiver that is busy elsewhere. (TLS has to
 * wait, for its handshake; until that is done the connection counts as not
 * made.) So a call is
 * never turned down because the other side calls, too: then the pair has two
 * connections, and each side keeps sending over its own. A side that has not
 * sent yet when it is called sends over that one.
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
    STRANGERS_MAX = 128,      /* that have not said hello */
    HELLO_MS = 5000,          /* to say it in */
    HELLO_MIN_NS = 100000000, /* even if others wait to be let in */
    CONNECT_MS = 10000,       /* for one attempt */
    REFUSED_MAX = 3,          /* attempts, then nobody is there */
    PAUSE_NS = 20000000,      /* before the second attempt; doubles ... */
    PAUSE_MAX_NS = 500000000, /* ... up to here */
    EXPECT_NS = 50000000,     /* for one that is to send, to call */
    FADE_NS = 1000000000, /* from the first connection's end to the last's */
    GRACE_NS = 20000000,  /* from the last's, for one that comes late */
    SURE_MS = 1000        /* beyond a lease */
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
    c->claims = -1;
    c->undecided = m->encrypts && state == TCP_ANSWERING;
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
    m->strangers += state == TCP_ANSWERING;
    return c;
}

static void hang_up(tcp_mesh *m, tcp_conn *c)
{
    if (c->state == TCP_DEAD)
        return;
    oari_stream_close(&c->stream);
    /* Closing alone leaves it in the set while a forked child has it open. */
    epoll_ctl(m->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    oari_fork_close(c->fd);
    c->fd = -1;
    m->strangers -= c->state == TCP_ANSWERING;
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

/* Has its kernel ask whether the other end is there (tcp_lease.c). */
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

/* Whether it has to be looked after: it is being called, or fades. */
static void set_unsettled(tcp_mesh *m, tcp_peer *p, int unsettled)
{
    m->unsettled += unsettled - p->unsettled;
    p->unsettled = unsettled;
}

static void give_up(tcp_mesh *m, tcp_peer *p, int how)
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

/* The connection is often made at once. */
static void call_first(tcp_mesh *m, int peer)
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
    call_first(m, peer);
}

/* Most often it will call by itself, and one connection is enough. */
void tcp_want_later(tcp_mesh *m, int peer)
{
    tcp_peer *p = &m->peer[peer];

    if (is_known(p) || p->unsettled)
        return;
    p->since_ns = oari_now_ns();
    p->again_ns = p->since_ns + EXPECT_NS;
    set_unsettled(m, p, 1);
}

/* A host that does not answer a call is not there: as with a lease. */
static int is_too_late(const tcp_mesh *m, const tcp_peer *p, int64_t now)
{
    int64_t limit = m->timeout_ms;

    if (p->apart && (limit < 0 || limit > m->lease_ms + SURE_MS))
        limit = m->lease_ms + SURE_MS;
    return limit >= 0 && now - p->since_ns > limit * 1000000;
}

/* An attempt that takes too long, or that has come to its end unseen. */
static void end_attempt(tcp_mesh *m, tcp_conn *c, int late)
{
    if (late)
        tcp_connected(m, c);
    if (c->state == TCP_CONNECTING && !c->shaking)
        tcp_lose(m, c);
}

static void look_after(tcp_mesh *m, int peer, int64_t now)
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
    if (c != NULL && c->state == TCP_CONNECTING && !c->shaking &&
        (late || now >= c->deadline_ns))
        end_attempt(m, c, late);
    if (p->conn[0] != NULL || p->gone)
        return;
    if (late && p->called)
        give_up(m, p, OARI_PEER_UNREACHABLE);
    else if (now >= p->again_ns)
        call_first(m, peer);
}

void tcp_look_after(tcp_mesh *m)
{
    int64_t now = oari_now_ns();

    for (int r = 0; r < m->ranks; r++)
        look_after(m, r, now);
}

void tcp_say_hello(tcp_mesh *m, tcp_conn *c)
{
    oari_frame hello = { .kind = OARI_FRAME_HELLO,
                         .flags = c->slot < 0 ? OARI_FRAME_LAST : 0,
                         .tag = c->slot < 0 ? 0 : (uint64_t)c->slot,
                         .bytes = TCP_HELLO };
    unsigned char raw[TCP_HELLO];
    oar_status status = tcp_prove(m, c, &hello, raw);

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

/* Whether the socket is connected; it is lost if it cannot be. */
static int is_made(tcp_mesh *m, tcp_conn *c)
{
    tcp_peer *p = &m->peer[c->peer];
    int done;

    if (oari_sock_connected(c->fd, p->address, &done) == OAR_OK)
        return done;
    if (oar_last_error()->sys_errno == ECONNREFUSED)
        *(c->slot == 0 ? &p->refused : &p->shut) += c->slot <= 0;
    tcp_lose(m, c);
    return 0;
}

int tcp_secure(tcp_mesh *m, tcp_conn *c)
{
    int done = c->undecided ? tcp_decide(m, c) : 1;

    if (done > 0 && c->shaking)
        done = tcp_shake(m, c);
    if (done < 0)
        tcp_lose(m, c);
    return done > 0;
}

/* Whether it has shaken hands, where that is wanted. */
static int is_ready(tcp_mesh *m, tcp_conn *c)
{
    if (c->shaking)
        return tcp_secure(m, c);
    if (!is_made(m, c))
        return 0;
    if (c->slot < 0 || m->peer[c->peer].wire != OARI_WIRE_TLS)
        return 1;
    begin_lease(m, c); /* the other may take its time, but not its host */
    if (tcp_encrypt(m, c) == OAR_OK)
        return tcp_secure(m, c);
    tcp_lose(m, c);
    return 0;
}

void tcp_connected(tcp_mesh *m, tcp_conn *c)
{
    if (!is_ready(m, c))
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

void tcp_tidy_strangers(tcp_mesh *m)
{
    int64_t now = oari_now_ns();

    for (tcp_conn *c = m->conns; c != NULL && m->strangers != 0; c = c->next)
        if (c->state == TCP_ANSWERING && now >= c->deadline_ns)
            hang_up(m, c);
}

/* The oldest; of those that TLS knows by name only if there are no others. */
static tcp_conn *oldest_stranger(const tcp_mesh *m)
{
    tcp_conn *oldest = NULL;

    for (tcp_conn *c = m->conns; c != NULL; c = c->next)
        if (c->state == TCP_ANSWERING &&
            (oldest == NULL || c->claims < 0 || oldest->claims >= 0))
            oldest = c; /* new ones are put in front */
    return oldest;
}

/* Sends one away, but not one that has only come, nor one whose hello is here.
 */
static int make_room(tcp_mesh *m)
{
    tcp_conn *c = oldest_stranger(m);
    oar_status status;

    if (c == NULL || oari_now_ns() - c->since_ns < HELLO_MIN_NS)
        return 0;
    status = m->handlers->readable(m, c);
    if (status != OAR_OK)
        m->failed = status;
    if (c->state == TCP_ANSWERING)
        hang_up(m, c);
    return 1;
}

void tcp_accept(tcp_mesh *m)
{
    int fd;

    tcp_tidy_strangers(m);
    for (int i = 0; i < STRANGERS_MAX; i++) {
        if (m->strangers >= STRANGERS_MAX && !make_room(m))
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
        hang_up(m, c);
        return;
    }
    c->peer = (int)c->now.source;
    c->state = TCP_UP;
    m->strangers--;
    c->slot = (int)slot;
    if ((c->now.flags & OARI_FRAME_LAST) != 0) {
        c->slot = TCP_FAULT_SLOT;
        return;
    }
    if (m->ended != OAR_OK) { /* it has not heard */
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

void tcp_greeted(tcp_mesh *m, tcp_conn *c)
{
    if (!tcp_admits(m, c))
        tcp_lose(m, c);
    else if (c->state == TCP_ANSWERING)
        answer_call(m, c);
    else
        c->state = TCP_UP;
}

/* ---- ending -------------------------------------------------------------- */

/* Transfers that only the socket knew stay with the peer, to be ended when the
 * group is. */
static void keep_transfers(tcp_peer *p, tcp_conn *c)
{
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
}

static int is_open(const tcp_mesh *m, int peer)
{
    for (const tcp_conn *c = m->conns; c != NULL; c = c->next)
        if (c->peer == peer && c->slot >= 0 && c->state != TCP_DEAD &&
            c->state != TCP_CONNECTING)
            return 1;
    return 0;
}

static void end_conn(tcp_mesh *m, tcp_conn *c)
{
    tcp_peer *p = &m->peer[c->peer];

    keep_transfers(p, c);
    hang_up(m, c);
    if (p->conn[c->slot] == c)
        p->conn[c->slot] = NULL;
    if (p->theirs == c)
        p->theirs = NULL;
}

void tcp_drop(tcp_mesh *m, int peer)
{
    tcp_peer *p = &m->peer[peer];

    for (tcp_conn *c = m->conns; c != NULL; c = c->next)
        if (c->peer == peer && c->slot >= 0 && c->state != TCP_DEAD)
            end_conn(m, c);
    give_up(m, p,
            p->farewell   ? OARI_PEER_LEFT
            : p->vanished ? OARI_PEER_UNREACHABLE
                          : OARI_PEER_DIED);
}

/* Where only one way is cut, it still hears that this side has given up: not
 * behind what it has not acknowledged, but at once. */
void tcp_vanish(tcp_mesh *m, int peer)
{
    struct linger at_once = { 1, 0 };

    for (tcp_conn *c = m->conns; c != NULL; c = c->next)
        if (c->peer == peer && c->fd >= 0)
            setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    m->peer[peer].vanished = 1;
    tcp_drop(m, peer);
}

/* What else it has sent is still read: over its other connections, and over one
 * that it has made and that is not accepted yet. */
static void fade(tcp_mesh *m, tcp_conn *c)
{
    tcp_peer *p = &m->peer[c->peer];
    int64_t now = oari_now_ns();

    end_conn(m, c);
    if (!is_open(m, c->peer))
        p->fading_ns = now + GRACE_NS;
    else if (p->fading_ns == 0)
        p->fading_ns = now + FADE_NS;
    set_unsettled(m, p, 1);
}

/* An attempt that failed is repeated, unless nobody is there. */
static void lose_call(tcp_mesh *m, tcp_conn *c)
{
    tcp_peer *p = &m->peer[c->peer];

    hang_up(m, c);
    if (c->slot < 0)
        return;
    p->conn[c->slot] = NULL;
    if (c->slot > 0)
        return;
    if (p->refused >= REFUSED_MAX && p->theirs == NULL)
        give_up(m, p, OARI_PEER_UNREACHABLE);
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
        fade(m, c);
    else
        hang_up(m, c);
}
