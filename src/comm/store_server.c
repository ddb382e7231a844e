/* SPDX-License-Identifier: Apache-2.0 */
/* store_server: one thread with one epoll for all clients. A connection has at
 * most one deadline; all are looked through when the earliest may have come. */
#include "comm/store_server.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/status.h"

const oari_store_limits oari_store_default_limits = {
    .handshake_ms = 10000,
    .transfer_ms = 60000,
    .clients = 60000,
    .sessions = 16384,
    .kept_bytes = (size_t)1 << 30,
    .moving_bytes = (size_t)256 << 20,
};

enum { EVENTS = 64, ACCEPTS = 64, BACKLOG = 4096, REST_MS = 50 };

/* ---- time ---------------------------------------------------------------- */

static void expect_by(oar_store_server *s, int64_t when_ns)
{
    if (when_ns < s->next_deadline_ns)
        s->next_deadline_ns = when_ns;
}

void oari_conn_set_deadline(oari_conn *conn, int64_t timeout_ms)
{
    conn->deadline_ns = oari_deadline(timeout_ms);
    expect_by(conn->server, conn->deadline_ns);
}

static void time_is_up(oari_conn *c)
{
    if (c->state == OARI_CONN_PARKED)
        oari_desk_give_up(c);
    else
        oari_conn_kill(c);
}

static void expire(oar_store_server *s)
{
    int64_t now = oari_now_ns();

    if (now < s->next_deadline_ns)
        return;
    s->next_deadline_ns = OARI_NEVER;
    for (oari_conn *c = s->first; c != NULL; c = c->next) {
        if (!c->dead && c->deadline_ns <= now)
            time_is_up(c);
        if (!c->dead)
            expect_by(s, c->deadline_ns);
    }
}

static void bury(oar_store_server *s)
{
    oari_conn *next;

    if (!s->any_dead)
        return;
    s->any_dead = 0;
    for (oari_conn *c = s->first; c != NULL; c = next) {
        next = c->next;
        if (c->dead)
            oari_conn_destroy(c);
    }
}

/* ---- who connects -------------------------------------------------------- */

static int watch(oar_store_server *s, int fd, uint32_t events, void *what)
{
    struct epoll_event event = { .events = events, .data.ptr = what };

    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

/* Not listening for a moment: the connections wait in the kernel. */
static void rest(oar_store_server *s)
{
    s->deaf = 1;
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, s->listener, NULL);
}

static void listen_again(oar_store_server *s)
{
    if (s->deaf && s->connections < s->limits.clients &&
        watch(s, s->listener, EPOLLIN, s) == 0)
        s->deaf = 0;
}

static void welcome(oar_store_server *s, int fd)
{
    oari_conn *c = oari_conn_create(s, fd);

    if (c == NULL)
        return;
    c->events = EPOLLIN | EPOLLRDHUP;
    if (watch(s, fd, c->events, c) != 0)
        oari_conn_kill(c);
    oari_conn_set_deadline(c, s->limits.handshake_ms);
}

static void accept_some(oar_store_server *s)
{
    for (int i = 0; i < ACCEPTS; i++) {
        int fd;
        if (s->connections >= s->limits.clients ||
            oari_sock_accept(s->listener, &fd) != OAR_OK) {
            rest(s); /* too many, or no descriptors left */
            return;
        }
        if (fd < 0)
            return;
        welcome(s, fd);
    }
}

/* ---- the thread ---------------------------------------------------------- */

static int wait_ms(const oar_store_server *s)
{
    int left = oari_deadline_left_ms(s->next_deadline_ns);

    return s->deaf && (left < 0 || left > REST_MS) ? REST_MS : left;
}

static void *serve(void *arg)
{
    oar_store_server *s = arg;
    struct epoll_event event[EVENTS];

    while (!atomic_load(&s->stop)) {
        int n = epoll_wait(s->epoll_fd, event, EVENTS, wait_ms(s));
        for (int i = 0; i < n; i++)
            if (event[i].data.ptr == s)
                accept_some(s);
            else if (event[i].data.ptr != NULL)
                oari_conn_event(event[i].data.ptr, event[i].events);
        expire(s);
        bury(s);
        listen_again(s);
    }
    return NULL;
}

/* Signals are for the program's own threads. */
static oar_status start_thread(oar_store_server *s)
{
    sigset_t all, before;
    int failed;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&s->thread, NULL, serve, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        errno = failed;
        return oari_fail(OAR_E_SYSTEM, "start the thread of the store at %s",
                         s->address);
    }
    s->has_thread = 1;
    return OAR_OK;
}

/* ---- its life ------------------------------------------------------------ */

static oar_status open_all(oar_store_server *s, const char *address)
{
    OARI_TRY(oari_sock_listen(address, BACKLOG, &s->listener));
    OARI_TRY(oari_sock_name(s->listener, s->address));
    s->epoll_fd = oari_fork_guard(epoll_create1(EPOLL_CLOEXEC));
    s->wake_fd = oari_fork_guard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (s->epoll_fd < 0 || s->wake_fd < 0 ||
        watch(s, s->wake_fd, EPOLLIN, NULL) != 0 ||
        watch(s, s->listener, EPOLLIN, s) != 0 ||
        getrandom(&s->id, sizeof s->id, 0) != sizeof s->id)
        return oari_fail(OAR_E_SYSTEM, "serve a store at %s", s->address);
    return start_thread(s);
}

oar_status oari_store_serve(const char *address,
                            const oari_store_limits *limits,
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
    if (open_all(s, address) != OAR_OK) {
        oar_error why = *oar_last_error();
        oar_store_server_destroy(s);
        return oari_fail_with(&why);
    }
    *server = s;
    return OAR_OK;
}

oar_status oar_store_serve(const char *address, oar_store_server **server)
{
    if (address == NULL || server == NULL)
        return oari_fail(OAR_E_ARG, "store_serve without %s",
                         address == NULL ? "an address" : "a place for it");
    return oari_store_serve(address, &oari_store_default_limits, server);
}

const char *oar_store_server_address(const oar_store_server *server)
{
    return server != NULL ? server->address : "";
}

static void stop_thread(oar_store_server *s)
{
    uint64_t one = 1;

    atomic_store(&s->stop, 1);
    while (write(s->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
        continue;
    pthread_join(s->thread, NULL);
}

void oar_store_server_destroy(oar_store_server *server)
{
    if (server == NULL || server->generation != oari_fork_generation())
        return;
    if (server->has_thread)
        stop_thread(server);
    while (server->first != NULL)
        oari_conn_destroy(server->first);
    oari_session_drop_all(server);
    oari_table_drop(&server->table);
    oari_fork_close(server->listener);
    oari_fork_close(server->epoll_fd);
    oari_fork_close(server->wake_fd);
    oari_free(server);
}
