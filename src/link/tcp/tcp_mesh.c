/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_mesh: what a backend calls of a mesh. */
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/fork.h"
#include "base/status.h"
#include "link/tcp/tcp.h"

enum {
    DEFAULT_SOCKETS = 2, /* measured, docs/tcp.md */
    FEW = 4,             /* sockets that are read without asking which */
    ASK_US = 100,        /* then the set is asked again */
    LOOK_EVERY = 8,      /* at the clock */
    LINGER_MS = 400,     /* to leave in good order */
    LEASE_MS = 10000
};

/* ---- opening ------------------------------------------------------------- */

static oar_status serve_readable(tcp_mesh *m, tcp_conn *c);

static const tcp_handlers handlers = {
    .readable = serve_readable,
    .called_late = tcp_tell_late,
};

void tcp_init(tcp_mesh *m)
{
    m->listener = m->epoll_fd = m->event_fd = -1;
}

static oar_status watch_fd(tcp_mesh *m, int *fd)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = fd };

    if (epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, *fd, &event) != 0)
        return oari_fail(OAR_E_SYSTEM, "watch a descriptor");
    return OAR_OK;
}

oar_status tcp_open_alone(tcp_mesh *m, const tcp_setup *setup)
{
    int64_t sockets = DEFAULT_SOCKETS, lease_ms = LEASE_MS;

    OARI_TRY(oari_env_int("OARSONG_TCP_SOCKETS", 1, TCP_SOCKETS_MAX, &sockets));
    OARI_TRY(oari_env_int("OARSONG_TCP_LEASE_MS", 1000, 3600000, &lease_ms));
    m->lease_ms = lease_ms;
    m->rank = setup->with->env.rank;
    m->ranks = setup->with->env.ranks;
    m->sockets = (int)sockets;
    m->eager_bytes = m->ahead_bytes = setup->with->eager_bytes;
    m->timeout_ms = setup->with->env.timeout_ms;
    m->ask_ticks = (uint64_t)(oari_ticks_per_second() * ASK_US / 1e6);
    m->handlers = &handlers;
    m->link = (oari_message_link){ .transport = &tcp_transport,
                                   .self = m,
                                   .match = setup->match };
    m->peer = oari_alloc((size_t)m->ranks, sizeof *m->peer);
    m->host = oari_alloc((size_t)m->ranks, sizeof *m->host);
    m->sink = oari_alloc(1, TCP_SINK);
    if (m->peer == NULL || m->host == NULL || m->sink == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < m->ranks; r++)
        oari_endpoint_init(&m->peer[r].with, &m->link, r, r);
    m->epoll_fd = oari_fork_guard(epoll_create1(EPOLL_CLOEXEC));
    m->event_fd = oari_fork_guard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (m->epoll_fd < 0 || m->event_fd < 0)
        return oari_fail(OAR_E_SYSTEM, "make an eventfd");
    return watch_fd(m, &m->event_fd);
}

oar_status tcp_open(tcp_mesh *m, const tcp_setup *setup)
{
    OARI_TRY(tcp_open_alone(m, setup));
    OARI_TRY(tcp_find_peers(m, setup));
    return watch_fd(m, &m->listener);
}

/* ---- messages ------------------------------------------------------------ */

/* More is pushed of a collective: its receiver is likely to be in it, too, and
 * to ask first would cost a round trip behind all that is being written. */
oar_status tcp_send(tcp_mesh *m, oar_transfer *t)
{
    size_t limit = t->tag & OARI_USER_TAG ? m->eager_bytes : m->ahead_bytes;

    if (m->ended != OAR_OK) {
        oari_transfer_finish(t, m->ended);
        return OAR_OK;
    }
    tcp_want(m, t->peer);
    oari_endpoint_send(&m->peer[t->peer].with, &tcp_transport, t, limit);
    return OAR_OK;
}

void tcp_expect(tcp_mesh *m, const oar_transfer *t)
{
    if (t->done) {
        if (t->source != m->rank)
            tcp_credit(m, t->source);
        return;
    }
    if (t->peer >= 0 && t->peer != m->rank)
        tcp_want_later(m, t->peer);
    for (int r = 0; t->peer < 0 && r < m->ranks; r++)
        if (r != m->rank && m->peer[r].address[0] != 0)
            tcp_want_later(m, r);
}

int tcp_withdraw(tcp_mesh *m, oar_transfer *t, int is_send, int unmoved)
{
    if (oari_match_withdraw(m->link.match, t))
        return 1;
    if (is_send)
        return t->peer != m->rank &&
               tcp_withdraw_send(&m->peer[t->peer], t, unmoved);
    return !unmoved && t->source != m->rank && tcp_withdraw_receive(m, t);
}

/* Serves one socket as the events say. */
static oar_status serve_conn(tcp_mesh *m, tcp_conn *c, uint32_t events)
{
    if (c->state == TCP_DEAD)
        return OAR_OK;
    if (c->state == TCP_CONNECTING) {
        tcp_connected(m, c);
        return OAR_OK;
    }
    if ((c->maybe_tls || c->in_tls_handshake) && !tcp_secure(m, c))
        return OAR_OK;
    if (m->ended != OAR_OK && c->peer >= 0 && c->slot >= 0) {
        epoll_ctl(m->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
        return OAR_OK; /* nothing on it counts any more */
    }
    if ((events & EPOLLOUT) != 0) {
        tcp_flush(m, c);
        if (c->peer >= 0 && c->slot >= 0)
            tcp_pump(m, c->peer);
    }
    if ((events & ~(uint32_t)EPOLLOUT) != 0)
        return tcp_read(m, c);
    return OAR_OK;
}

static oar_status serve_readable(tcp_mesh *m, tcp_conn *c)
{
    return serve_conn(m, c, EPOLLIN);
}

static oar_status serve_set(tcp_mesh *m)
{
    struct epoll_event event[32];
    int found = epoll_wait(m->epoll_fd, event, 32, 0);
    uint64_t drained;

    for (int i = 0; i < found; i++) {
        if (event[i].data.ptr == &m->listener)
            tcp_accept(m);
        else if (event[i].data.ptr != &m->event_fd)
            OARI_TRY(serve_conn(m, event[i].data.ptr, event[i].events));
        else if (read(m->event_fd, &drained, sizeof drained) < 0)
            continue; /* it has been read already */
    }
    return OAR_OK;
}

/* With few sockets it is quicker to read them all than to ask the set first.
 * But only the set shows new callers: it is asked after a while, however many
 * polls that is. The set does not show what TLS has read already. */
static oar_status serve_mesh(tcp_mesh *m)
{
    uint64_t now = oari_ticks();
    int few;

    if (m->unsettled != 0)
        tcp_retry_peers(m);
    if (++m->polls % LOOK_EVERY == 0 && (m->apart || m->unauthenticated != 0))
        tcp_check_leases(m);
    few = m->open_conns <= FEW && m->unsettled == 0 &&
          now - m->set_asked < m->ask_ticks;
    if (few || m->again) {
        m->again = 0;
        for (tcp_conn *c = m->conns; c != NULL; c = c->next)
            if (!c->idle || c->stream.tls != NULL)
                OARI_TRY(serve_conn(
                    m, c, EPOLLIN | (c->watched ? (uint32_t)EPOLLOUT : 0u)));
    }
    if (!few) {
        m->set_asked = now;
        OARI_TRY(serve_set(m));
    }
    if (m->again)
        tcp_wake(m); /* no thread may sleep on the set now */
    return OAR_OK;
}

oar_status tcp_progress(tcp_mesh *m)
{
    oar_status why = (oar_status)atomic_load(&m->aborted), status;

    if (why != OAR_OK && m->ended == OAR_OK) {
        m->ended = why;
        tcp_end_in(m, why);
        for (int r = 0; r < m->ranks; r++)
            tcp_end_out(m, &m->peer[r], why);
    }
    tcp_tell(m);
    if (m->ended != OAR_OK && !m->votes)
        return OAR_OK;
    status = m->ended == OAR_OK ? serve_mesh(m) : serve_set(m);
    if (oari_bulletin_has(&m->mine, OARI_FACT_FAULT))
        tcp_compare(m);
    tcp_spread_ballot(m);
    tcp_reap(m);
    if (m->ended != OAR_OK)
        return OAR_OK;
    if (status == OAR_OK)
        status = m->failed;
    return status != OAR_OK ? status : m->link.failed;
}

int tcp_arm(tcp_mesh *m)
{
    uint64_t rings;

    return read(m->event_fd, &rings, sizeof rings) > 0;
}

void tcp_abort(tcp_mesh *m, oar_status why)
{
    int none = OAR_OK;

    if (atomic_compare_exchange_strong(&m->aborted, &none, (int)why))
        tcp_wake(m);
}

/* ---- leaving ------------------------------------------------------------- */

/* Returns whether the peer's kernel may not have all that was sent. Reads what
 * there is: to close a socket with something unread would throw away what is
 * still to be sent. */
static int has_unsent(tcp_mesh *m, tcp_conn *c)
{
    ssize_t got;
    int left = 0;

    if (c->fd < 0 || c->mute || c->state == TCP_CONNECTING ||
        c->state == TCP_ANSWERING)
        return 0;
    tcp_flush(m, c);
    while ((got = recv(c->fd, m->sink, TCP_SINK, MSG_DONTWAIT)) > 0)
        ;
    if (got == 0 || (errno != EAGAIN && errno != EINTR))
        return 0; /* the peer cannot read it any more */
    return c->out_at < c->out_end || c->payload != NULL ||
           (ioctl(c->fd, SIOCOUTQ, &left) == 0 && left > 0);
}

/* Says goodbye to all peers, and waits until their kernels have it. */
static void leave_peers(tcp_mesh *m)
{
    int64_t deadline = oari_deadline(LINGER_MS);
    oari_frame goodbye = { .kind = OARI_FRAME_GOODBYE };
    int unsent;

    for (tcp_conn *c = m->conns; c != NULL; c = c->next) {
        if ((c->state != TCP_UP && c->state != TCP_CALLING) || c->slot < 0)
            continue;
        tcp_flush(m, c);
        tcp_put(m, c, goodbye, NULL);
        tcp_flush(m, c);
    }
    do {
        unsent = 0;
        for (tcp_conn *c = m->conns; c != NULL; c = c->next)
            unsent |= has_unsent(m, c);
    } while (unsent && oari_now_ns() < deadline && poll(NULL, 0, 1) <= 0);
}

void tcp_close(tcp_mesh *m)
{
    if (m->peer != NULL && m->epoll_fd >= 0) {
        tcp_tell(m);
        leave_peers(m);
    }
    for (tcp_conn *c = m->conns, *next; c != NULL; c = next) {
        next = c->next;
        oari_stream_close(&c->stream);
        oari_fork_close(c->fd);
        c->fd = -1;
    }
    for (int r = 0; m->peer != NULL && r < m->ranks; r++) {
        tcp_end_out(m, &m->peer[r], OAR_E_CLOSED);
        oari_endpoint_clear(&m->peer[r].with);
        oari_free(m->peer[r].bulletin);
    }
    for (tcp_conn *c = m->conns, *next; c != NULL; c = next) {
        next = c->next;
        oari_free(c);
    }
    m->conns = NULL;
    oari_fork_close(m->listener);
    oari_fork_close(m->epoll_fd);
    oari_fork_close(m->event_fd);
    oari_free(m->peer);
    oari_free(m->host);
    oari_free(m->sink);
    oari_secret_forget(&m->secret);
}
