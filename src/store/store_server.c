/* SPDX-License-Identifier: Apache-2.0 */
/* store_server: one thread with one epoll for all clients. A connection has at
 * most one deadline; the thread looks through all connections when the earliest
 * deadline may have passed. */
#include "store/store_server.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/status.h"
#include "base/thread.h"

const oari_store_limits oari_store_default_limits = {
    .handshake_ms = 10000,
    .grace_ms = 250,
    .transfer_ms = 60000,
    .clients = 60000,
    .pending = 1024,
    .sessions = 16384,
    .kept_bytes = (size_t)1 << 30,
    .moving_bytes = (size_t)256 << 20,
};

enum {
    EVENTS = 64,
    ACCEPTS = 64,
    BACKLOG = 4096,
    PAUSE_MS = 50, /* between attempts to accept again */
    TURN = 16      /* requests of one client before those of others */
};

/* ---- connections --------------------------------------------------------- */

oari_connection *oari_connection_create(oar_store_server *server, int fd)
{
    oari_connection *c = oari_alloc(1, sizeof *c);
    oar_status wire;

    if (c == NULL) {
        oari_fork_close(fd);
        return NULL;
    }
    c->server = server;
    c->fd = fd;
    oari_stream_plain(&c->stream, fd);
    wire = oari_trust_protection(&server->trust, fd, &c->wire);
    c->far = wire != OAR_OK;
    if (wire == OAR_E_AUTH)
        oari_handshake_note_refusal(c);
    c->deadline_ns = OARI_NEVER;
    oari_list_append(&server->all, &c->all);
    server->connections++;
    oari_list_append(&server->pending, &c->pending);
    server->pending_count++;
    c->is_pending = 1;
    return c;
}

void oari_connection_destroy(oari_connection *conn)
{
    oar_store_server *s = conn->server;

    oari_request_cancel(conn);
    oari_session_leave(conn);
    oari_handshake_end(conn);
    oari_connection_drop_body(conn);
    oari_connection_drop_reply(conn);
    /* Closing alone leaves it in the set while a forked child has it open. */
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
    oari_stream_close(&conn->stream);
    oari_fork_close(conn->fd);
    oari_list_remove(&s->all, &conn->all);
    s->connections--;
    oari_free(conn);
}

/* Reads and handles the requests that have arrived. Bytes that TLS has read
 * already bring no event, so they are taken now. */
static void read_requests(oari_connection *c)
{
    oari_wire_message message;

    if (c->state == OARI_CONNECTION_FIRST || c->state == OARI_CONNECTION_TLS)
        oari_handshake_tls(c);
    if (c->state == OARI_CONNECTION_FIRST || c->state == OARI_CONNECTION_TLS)
        return;
    for (int i = 0; !c->dead; i++) {
        if (c->out != NULL || c->state == OARI_CONNECTION_PARKED)
            return;
        if (i >= TURN && !oari_stream_pending(&c->stream))
            return;
        if (!oari_connection_read(c, &message))
            return;
        if (c->state == OARI_CONNECTION_READY)
            oari_request_handle(c, &message);
        else
            oari_handshake_message(c, &message);
        if (c->state != OARI_CONNECTION_PARKED)
            oari_connection_drop_body(c);
    }
}

void oari_connection_event(oari_connection *conn, uint32_t events)
{
    if (conn->dead)
        return;
    if (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
        oari_connection_kill(conn);
        return;
    }
    if (events & EPOLLOUT)
        oari_connection_flush(conn);
    if (events & EPOLLIN || conn->state == OARI_CONNECTION_TLS ||
        oari_stream_pending(&conn->stream))
        read_requests(conn);
    if (!conn->dead)
        oari_connection_watch_next(conn);
}

/* Ends what has passed its deadline, and destroys the connections that are
 * dead. */
static void end_connections(oar_store_server *s)
{
    int64_t now = oari_now_ns();
    oari_link *next;

    if (now >= s->next_deadline_ns) {
        s->next_deadline_ns = OARI_NEVER;
        for (oari_link *l = s->all.first; l != NULL; l = l->next) {
            oari_connection *c = OARI_CONTAINER_OF(l, oari_connection, all);
            int is_late = !c->dead && c->deadline_ns <= now;

            if (is_late && c->state == OARI_CONNECTION_PARKED)
                oari_request_time_out(c);
            else if (is_late)
                oari_connection_kill(c);
            if (!c->dead && c->deadline_ns < s->next_deadline_ns)
                s->next_deadline_ns = c->deadline_ns;
        }
    }
    if (!s->any_dead)
        return;
    s->any_dead = 0;
    for (oari_link *l = s->all.first; l != NULL; l = next) {
        oari_connection *c = OARI_CONTAINER_OF(l, oari_connection, all);

        next = l->next;
        if (c->dead)
            oari_connection_destroy(c);
    }
}

/* ---- accepting ----------------------------------------------------------- */

static int add_to_epoll(oar_store_server *s, int fd, uint32_t events,
                        void *what)
{
    struct epoll_event event = { .events = events, .data.ptr = what };

    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static int is_full(const oar_store_server *s)
{
    return s->connections >= s->limits.clients ||
           s->pending_count >= s->limits.pending;
}

/* Ends the connections that have gone longest without a proof, so that many
 * silent clients keep no other out. Returns whether there were any. */
static int drop_oldest_pending(oar_store_server *s)
{
    int64_t left = s->limits.handshake_ms - s->limits.grace_ms;
    int64_t now = oari_now_ns();
    int gone = 0;

    for (oari_link *l = s->pending.first; l != NULL && gone < ACCEPTS;
         l = l->next) {
        oari_connection *c = OARI_CONTAINER_OF(l, oari_connection, pending);

        if (!c->dead && c->deadline_ns - left * 1000000 > now)
            break;
        oari_connection_kill(c);
        gone++;
    }
    return gone > 0;
}

static void accept_some(oar_store_server *s)
{
    for (int i = 0; i < ACCEPTS; i++) {
        oari_connection *c;
        int fd;

        if (is_full(s) || oari_sock_accept(s->listener, &fd) != OAR_OK) {
            /* Too many, or no descriptors left: they wait in the kernel. */
            if (!drop_oldest_pending(s)) {
                s->paused = 1;
                epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, s->listener, NULL);
            }
            return;
        }
        if (fd < 0)
            return;
        if ((c = oari_connection_create(s, fd)) == NULL)
            continue;
        c->events = EPOLLIN | EPOLLRDHUP;
        if (add_to_epoll(s, fd, c->events, c) != 0)
            oari_connection_kill(c);
        oari_connection_set_deadline(c, s->limits.handshake_ms);
    }
}

/* ---- the thread ---------------------------------------------------------- */

static void *serve(void *arg)
{
    oar_store_server *s = arg;
    struct epoll_event event[EVENTS];

    while (!atomic_load(&s->stop)) {
        int left = oari_deadline_left_ms(s->next_deadline_ns), n;

        if (s->paused && (left < 0 || left > PAUSE_MS))
            left = PAUSE_MS;
        n = epoll_wait(s->epoll_fd, event, EVENTS, left);
        for (int i = 0; i < n; i++)
            if (event[i].data.ptr == s)
                accept_some(s);
            else if (event[i].data.ptr != NULL)
                oari_connection_event(event[i].data.ptr, event[i].events);
        end_connections(s);
        if (s->paused && (!is_full(s) || drop_oldest_pending(s)) &&
            add_to_epoll(s, s->listener, EPOLLIN, s) == 0)
            s->paused = 0;
    }
    return NULL;
}

/* ---- making and ending a server ------------------------------------------ */

static oar_status start_server(oar_store_server *s, const char *address)
{
    OARI_TRY(oari_sock_listen(address, BACKLOG, &s->listener));
    OARI_TRY(oari_sock_name(s->listener, s->address));
    s->epoll_fd = oari_fork_guard(epoll_create1(EPOLL_CLOEXEC));
    s->wake_fd = oari_fork_guard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (s->epoll_fd < 0 || s->wake_fd < 0 ||
        add_to_epoll(s, s->wake_fd, EPOLLIN, NULL) != 0 ||
        add_to_epoll(s, s->listener, EPOLLIN, s) != 0 ||
        getrandom(&s->id, sizeof s->id, 0) != sizeof s->id)
        return oari_fail(OAR_E_SYSTEM, "serve a store at %s", s->address);
    if (s->trust.not_far && !oari_sock_names_loopback(s->address))
        oari_log(OAR_LOG_WARN,
                 "the store at %s takes callers from this host only, because "
                 "the job has no secret: start it with `oarsong run`, or set "
                 "OARSONG_SECRET_FILE, or OARSONG_WIRE=plain",
                 s->address);
    OARI_TRY(oari_thread_start(&s->thread, "oar-store", serve, s));
    s->has_thread = 1;
    return OAR_OK;
}

oar_status oari_store_serve(const char *address,
                            const oari_store_limits *limits,
                            const oari_secret *secret,
                            oar_store_server **server)
{
    oar_store_server *s = oari_alloc(1, sizeof *s);

    if (s == NULL)
        return OAR_E_NOMEM;
    s->limits = *limits;
    s->listener = s->epoll_fd = s->wake_fd = -1;
    s->next_deadline_ns = OARI_NEVER;
    oari_fork_watch();
    s->generation = oari_fork_generation();
    if (oari_trust_make(secret, &s->trust) != OAR_OK ||
        start_server(s, address) != OAR_OK) {
        oar_error why = *oar_last_error();
        oar_store_server_destroy(s);
        return oari_fail_with(&why);
    }
    *server = s;
    return OAR_OK;
}

oar_status oar_store_serve(const char *address, oar_store_server **server)
{
    return oar_store_serve_with(address, NULL, server);
}

oar_status oar_store_serve_with(const char *address, const oar_store_opts *opts,
                                oar_store_server **server)
{
    oar_store_opts o;
    oari_secret secret;
    oar_status status;

    if (address == NULL || server == NULL)
        return oari_fail(OAR_E_ARG, "store_serve without %s",
                         address == NULL ? "an address"
                                         : "a place for the server");
    OARI_TRY(oari_opts_read(&o, sizeof o, opts));
    OARI_TRY(oari_secret_given(o.secret, &secret));
    status =
        oari_store_serve(address, &oari_store_default_limits, &secret, server);
    oari_secret_forget(&secret);
    return status;
}

oar_status oari_store_refused(const oar_store_server *server)
{
    if (server == NULL || !atomic_load(&server->refused))
        return OAR_OK;
    return oari_fail(OAR_E_AUTH, "the store at %s refused a caller at %s: %s",
                     server->address, server->refused_at, server->refused_why);
}

const char *oar_store_server_address(const oar_store_server *server)
{
    return server != NULL ? server->address : "";
}

void oar_store_server_destroy(oar_store_server *server)
{
    uint64_t one = 1;

    if (server == NULL || server->generation != oari_fork_generation())
        return;
    if (server->has_thread) {
        atomic_store(&server->stop, 1);
        while (write(server->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
            continue;
        pthread_join(server->thread, NULL);
    }
    while (server->all.first != NULL)
        oari_connection_destroy(
            OARI_CONTAINER_OF(server->all.first, oari_connection, all));
    oari_session_drop_all(server);
    oari_table_drop(&server->table);
    oari_fork_close(server->listener);
    oari_fork_close(server->epoll_fd);
    oari_fork_close(server->wake_fd);
    oari_trust_forget(&server->trust);
    oari_free(server);
}
