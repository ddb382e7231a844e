/* SPDX-License-Identifier: Apache-2.0 */
/* store_server: one thread with one epoll for all clients. A connection has at
 * most one deadline; all are looked through when the earliest may have come. */
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
    .strangers = 1024,
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
    for (oari_link *l = s->all.first; l != NULL; l = l->next) {
        oari_conn *c = OARI_HOLDER(l, oari_conn, all);

        if (!c->dead && c->deadline_ns <= now)
            time_is_up(c);
        if (!c->dead)
            expect_by(s, c->deadline_ns);
    }
}

static void bury(oar_store_server *s)
{
    oari_link *next;

    if (!s->any_dead)
        return;
    s->any_dead = 0;
    for (oari_link *l = s->all.first; l != NULL; l = next) {
        oari_conn *c = OARI_HOLDER(l, oari_conn, all);

        next = l->next;
        if (c->dead)
            oari_conn_destroy(c);
    }
}

/* ---- strangers: in the order in which they came -------------------------- */

static void add_stranger(oar_store_server *s, oari_conn *c)
{
    c->stranger = 1;
    oari_list_append(&s->stranger, &c->strangers);
    s->strangers++;
}

void oari_conn_is_known(oari_conn *conn)
{
    oar_store_server *s = conn->server;

    if (!conn->stranger)
        return;
    conn->stranger = 0;
    oari_list_remove(&s->stranger, &conn->strangers);
    s->strangers--;
}

/* Those who have been here longest without proving themselves go, so that many
 * who say nothing keep nobody out. Whether anybody went. */
static int make_room(oar_store_server *s)
{
    int64_t left = s->limits.handshake_ms - s->limits.grace_ms;
    int64_t now = oari_now_ns();
    int gone = 0;

    for (oari_link *l = s->stranger.first; l != NULL && gone < ACCEPTS;
         l = l->next) {
        oari_conn *c = OARI_HOLDER(l, oari_conn, strangers);

        if (!c->dead && c->deadline_ns - left * 1000000 > now)
            break;
        oari_conn_kill(c);
        gone++;
    }
    return gone > 0;
}

/* ---- who connects -------------------------------------------------------- */

static int watch(oar_store_server *s, int fd, uint32_t events, void *what)
{
    struct epoll_event event = { .events = events, .data.ptr = what };

    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static int is_full(const oar_store_server *s)
{
    return s->connections >= s->limits.clients ||
           s->strangers >= s->limits.strangers;
}

/* Not listening for a moment: the connections wait in the kernel. */
static void rest(oar_store_server *s)
{
    s->deaf = 1;
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, s->listener, NULL);
}

static void listen_again(oar_store_server *s)
{
    if (s->deaf && (!is_full(s) || make_room(s)) &&
        watch(s, s->listener, EPOLLIN, s) == 0)
        s->deaf = 0;
}

static void welcome(oar_store_server *s, int fd)
{
    oari_conn *c = oari_conn_create(s, fd);

    if (c == NULL)
        return;
    add_stranger(s, c);
    c->events = EPOLLIN | EPOLLRDHUP;
    if (watch(s, fd, c->events, c) != 0)
        oari_conn_kill(c);
    oari_conn_set_deadline(c, s->limits.handshake_ms);
}

static void accept_some(oar_store_server *s)
{
    for (int i = 0; i < ACCEPTS; i++) {
        int fd;
        if (is_full(s) || oari_sock_accept(s->listener, &fd) != OAR_OK) {
            if (!make_room(s)) /* too many, or no descriptors left */
                rest(s);
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

/* ---- its life ------------------------------------------------------------ */

/* It was asked to be there, and is; but whoever it was for cannot come. */
static void warn_of_strangers(const oar_store_server *s)
{
    if (s->trust.not_far && !oari_sock_names_loopback(s->address))
        oari_log(OAR_LOG_WARN,
                 "the store at %s takes callers from this host only, because "
                 "the job has no secret: start it with `oarsong run`, or set "
                 "OARSONG_SECRET_FILE, or OARSONG_WIRE=plain",
                 s->address);
}

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
    warn_of_strangers(s);
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
        open_all(s, address) != OAR_OK) {
        oar_error why = *oar_last_error();
        oar_store_server_destroy(s);
        return oari_fail_with(&why);
    }
    *server = s;
    return OAR_OK;
}

oar_status oar_store_serve(const char *address, oar_store_server **server)
{
    oari_secret secret;
    oar_status status;

    if (address == NULL || server == NULL)
        return oari_fail(OAR_E_ARG, "store_serve without %s",
                         address == NULL ? "an address" : "a place for it");
    OARI_TRY(oari_secret_find(&secret));
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
    while (server->all.first != NULL)
        oari_conn_destroy(OARI_HOLDER(server->all.first, oari_conn, all));
    oari_session_drop_all(server);
    oari_table_drop(&server->table);
    oari_fork_close(server->listener);
    oari_fork_close(server->epoll_fd);
    oari_fork_close(server->wake_fd);
    oari_trust_forget(&server->trust);
    oari_free(server);
}
