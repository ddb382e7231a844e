/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_mesh: what a backend does with a mesh. */
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
    FEW = 4,             /* sockets that are read without asking which, */
    ASK_US = 100,        /* for so long */
    LOOK_EVERY = 8,      /* at the clock */
    LINGER_MS = 400,     /* to leave in good order */
    LEASE_MS = 10000
};

/* ---- opening ------------------------------------------------------------- */

static oar_status readable(tcp_mesh *m, tcp_conn *c);

static const tcp_handlers handlers = {
    .readable = readable,
    .called_late = tcp_tell_late,
};

void tcp_init(tcp_mesh *m)
{
    m->listener = m->epoll_fd = m->event_fd = -1;
}

static oar_status watch(tcp_mesh *m, int *fd)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = fd };

    if (epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, *fd, &event) != 0)
        return oari_fail(OAR_E_SYSTEM, "watch a descriptor");
    return OAR_OK;
}

static oar_status make_set(tcp_mesh *m)
{
    m->epoll_fd = oari_fork_guard(epoll_create1(EPOLL_CLOEXEC));
    m->event_fd = oari_fork_guard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (m->epoll_fd < 0 || m->event_fd < 0)
        return oari_fail(OAR_E_SYSTEM, "make an eventfd");
    return watch(m, &m->event_fd);
}

static oar_status make_tables(tcp_mesh *m)
{
    size_t n = (size_t)m->ranks;

    m->peer = oari_alloc(n, sizeof *m->peer);
    m->host = oari_alloc(n, sizeof *m->host);
    m->sink = oari_alloc(1, TCP_SINK);
    if (m->peer == NULL || m->host == NULL || m->sink == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < m->ranks; r++)
        oari_endpoint_init(&m->peer[r].with, &m->link, r, r);
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
    OARI_TRY(make_tables(m));
    return make_set(m);
}

oar_status tcp_open(tcp_mesh *m, const tcp_setup *setup)
{
    OARI_TRY(tcp_open_alone(m, setup));
    OARI_TRY(tcp_meet(m, setup));
    return watch(m, &m->listener);
}

/* ---- messages ------------------------------------------------------------ */

/* Of a collective the receiver is likely to be at it, too: to ask it first
 * would cost the way there and back, behind whatever is being written both
 * ways. */
static size_t most_pushed(const tcp_mesh *m, const oar_transfer *t)
{
    return t->tag & OARI_USER_TAG ? m->eager_bytes : m->ahead_bytes;
}

oar_status tcp_send(tcp_mesh *m, oar_transfer *t)
{
    if (m->ended != OAR_OK) {
        oari_transfer_finish(t, m->ended);
        return OAR_OK;
    }
    tcp_want(m, t->peer);
    oari_endpoint_send(&m->peer[t->peer].with, &tcp_transport, t,
                       most_pushed(m, t));
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

/* Does for one socket what the events say. */
static oar_status serve_conn(tcp_mesh *m, tcp_conn *c, uint32_t events)
{
    if (c->state == TCP_DEAD)
        return OAR_OK;
    if (c->state == TCP_CONNECTING) {
        tcp_connected(m, c);
        return OAR_OK;
    }
    if ((c->undecided || c->shaking) && !tcp_secure(m, c))
        return OAR_OK;
    if (m->ended != OAR_OK && c->peer >= 0 && c->slot >= 0) {
        epoll_ctl(m->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
        return OAR_OK; /* what came over it is over */
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

static oar_status readable(tcp_mesh *m, tcp_conn *c)
{
    return serve_conn(m, c, EPOLLIN);
}

static void drain_event(tcp_mesh *m)
{
    uint64_t drained;

    if (read(m->event_fd, &drained, sizeof drained) < 0)
        return; /* nobody rang */
}

static oar_status serve_set(tcp_mesh *m)
{
    struct epoll_event event[32];
    int found = epoll_wait(m->epoll_fd, event, 32, 0);

    for (int i = 0; i < found; i++) {
        if (event[i].data.ptr == &m->listener)
            tcp_accept(m);
        else if (event[i].data.ptr == &m->event_fd)
            drain_event(m);
        else
            OARI_TRY(serve_conn(m, event[i].data.ptr, event[i].events));
    }
    return OAR_OK;
}

static oar_status serve_all(tcp_mesh *m)
{
    for (tcp_conn *c = m->conns; c != NULL; c = c->next)
        OARI_TRY(
            serve_conn(m, c, EPOLLIN | (c->watched ? (uint32_t)EPOLLOUT : 0u)));
    return OAR_OK;
}

static void end_all(tcp_mesh *m, oar_status why)
{
    m->ended = why;
    tcp_end_in(m, why);
    for (int r = 0; r < m->ranks; r++)
        tcp_end_out(m, &m->peer[r], why);
}

/* With few sockets it is quicker to read them all than to ask first. But only
 * the set tells of callers: it is asked after a while, however many polls that
 * is. What TLS has read already, the set does not tell of. */
static oar_status serve_some(tcp_mesh *m)
{
    uint64_t now = oari_ticks();
    int few = m->open_conns <= FEW && m->unsettled == 0 &&
              now - m->set_asked < m->ask_ticks;
    oar_status status = OAR_OK;

    if (few || m->again) {
        m->again = 0;
        status = serve_all(m);
    }
    if (!few && status == OAR_OK) {
        m->set_asked = now;
        status = serve_set(m);
    }
    if (m->again)
        tcp_wake(m); /* nobody sleeps on it */
    return status;
}

static oar_status serve(tcp_mesh *m)
{
    if (m->unsettled != 0)
        tcp_look_after(m);
    if (++m->polls % LOOK_EVERY == 0 && (m->apart || m->strangers != 0))
        tcp_look_at_leases(m);
    return serve_some(m);
}

oar_status tcp_progress(tcp_mesh *m)
{
    oar_status why = (oar_status)atomic_load(&m->aborted), status;

    if (why != OAR_OK && m->ended == OAR_OK)
        end_all(m, why);
    if (atomic_load_explicit(&m->mine, memory_order_relaxed) != OARI_FAULT_NONE)
        tcp_tell(m);
    if (m->ended != OAR_OK && m->council == NULL)
        return OAR_OK;
    status = m->ended == OAR_OK ? serve(m) : serve_set(m);
    if (atomic_load_explicit(&m->mine, memory_order_relaxed) != OARI_FAULT_NONE)
        tcp_compare(m);
    if (m->council != NULL)
        tcp_note_spread(m);
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

static void say_goodbye(tcp_mesh *m, tcp_conn *c)
{
    oari_frame goodbye = { .kind = OARI_FRAME_GOODBYE };

    if ((c->state != TCP_UP && c->state != TCP_CALLING) || c->slot < 0)
        return;
    tcp_flush(m, c);
    tcp_put(m, c, goodbye, NULL);
    tcp_flush(m, c);
}

/* Closing a socket with something unread in it would throw away what is still
 * to be sent. */
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
        return 0; /* nobody is there to read it */
    return c->out_at < c->out_end || c->payload != NULL ||
           (ioctl(c->fd, SIOCOUTQ, &left) == 0 && left > 0);
}

static int anything_unsent(tcp_mesh *m)
{
    int unsent = 0;

    for (tcp_conn *c = m->conns; c != NULL; c = c->next)
        unsent |= has_unsent(m, c);
    return unsent;
}

static void linger(tcp_mesh *m)
{
    int64_t deadline = oari_deadline(LINGER_MS);

    for (tcp_conn *c = m->conns; c != NULL; c = c->next)
        say_goodbye(m, c);
    while (anything_unsent(m) && oari_now_ns() < deadline)
        poll(NULL, 0, 1);
}

void tcp_close(tcp_mesh *m)
{
    if (m->peer != NULL && m->epoll_fd >= 0) {
        tcp_tell(m);
        linger(m);
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
    oari_free(m->council);
    oari_free(m->host);
    oari_free(m->sink);
    oari_secret_forget(&m->secret);
}
