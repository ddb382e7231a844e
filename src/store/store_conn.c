/* SPDX-License-Identifier: Apache-2.0 */
/* store_conn: one connection of the server. It is read only while it may ask:
 * a client that does not take its reply, or whose request is parked, waits. A
 * body gets memory as its bytes come, not as its length is announced; when the
 * server holds too much, the connection is cut, and its client comes again. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/status.h"
#include "store/store_server.h"

enum { FIRST_ROOM = 4096, TURN = 16 /* requests before others have theirs */ };

/* Remembered and said once: where many come, the log must not be theirs to
 * fill. */
static void note_refusal(oari_conn *c)
{
    oar_store_server *s = c->server;

    if (atomic_load(&s->refused))
        return;
    snprintf(s->refused_why, sizeof s->refused_why, "%s",
             oar_last_error_text());
    if (oari_sock_peer(c->fd, s->refused_at) != OAR_OK)
        snprintf(s->refused_at, sizeof s->refused_at, "an unknown address");
    atomic_store(&s->refused, 1);
    oari_log(OAR_LOG_WARN,
             "the store at %s refused a caller at %s (%s); further ones are "
             "not reported",
             s->address, s->refused_at, s->refused_why);
}

oari_conn *oari_conn_create(oar_store_server *server, int fd)
{
    oari_conn *c = oari_alloc(1, sizeof *c);
    oar_status wire;

    if (c == NULL) {
        oari_fork_close(fd);
        return NULL;
    }
    c->server = server;
    c->fd = fd;
    oari_stream_plain(&c->stream, fd);
    wire = oari_trust_wire(&server->trust, fd, &c->wire);
    c->far = wire != OAR_OK;
    if (wire == OAR_E_AUTH)
        note_refusal(c);
    c->deadline_ns = OARI_NEVER;
    oari_list_append(&server->all, &c->all);
    server->connections++;
    return c;
}

void oari_conn_drop_body(oari_conn *conn)
{
    conn->server->moving -= conn->body_room;
    oari_free(conn->body);
    conn->body = NULL;
    conn->body_room = 0;
}

static void drop_out(oari_conn *c)
{
    if (c->out != NULL)
        c->server->moving -= c->out_bytes;
    oari_free(c->out);
    c->out = NULL;
}

void oari_conn_destroy(oari_conn *conn)
{
    oar_store_server *s = conn->server;

    oari_desk_unpark(conn);
    oari_session_leave(conn);
    oari_conn_is_known(conn);
    oari_conn_drop_body(conn);
    drop_out(conn);
    /* Closing alone leaves it in the set while a forked child has it open. */
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
    oari_stream_close(&conn->stream);
    oari_fork_close(conn->fd);
    oari_list_remove(&s->all, &conn->all);
    s->connections--;
    oari_free(conn);
}

void oari_conn_kill(oari_conn *conn)
{
    conn->dead = 1;
    conn->server->any_dead = 1;
}

/* ---- out ----------------------------------------------------------------- */

static void watch_for(oari_conn *c, uint32_t wanted)
{
    struct epoll_event event = { .data.ptr = c };

    wanted |= EPOLLRDHUP;
    if (wanted == c->events)
        return;
    event.events = wanted;
    if (epoll_ctl(c->server->epoll_fd, EPOLL_CTL_MOD, c->fd, &event) != 0)
        oari_conn_kill(c);
    c->events = wanted;
}

static void watch(oari_conn *c)
{
    if (c->state == OARI_CONN_SHAKE)
        return; /* shake has seen to it */
    if (c->out != NULL)
        watch_for(c, EPOLLOUT);
    else
        watch_for(c, c->state == OARI_CONN_PARKED ? 0 : EPOLLIN);
}

static void push_out(oari_conn *c)
{
    while (c->out != NULL) {
        struct iovec rest = { c->out + c->out_done,
                              c->out_bytes - c->out_done };
        ssize_t put = oari_stream_write(&c->stream, &rest, 1);
        if (put < 0 && errno != EAGAIN)
            oari_conn_kill(c);
        if (put < 0)
            return;
        c->out_done += (size_t)put;
        if (c->out_done == c->out_bytes)
            drop_out(c);
    }
    if (c->state == OARI_CONN_READY)
        c->deadline_ns = OARI_NEVER;
}

void oari_conn_reply(oari_conn *conn, oari_wire_message *reply)
{
    oar_store_server *s = conn->server;
    size_t bytes;

    reply->head.kind = conn->head.kind | OARI_WIRE_REPLY;
    reply->head.number = conn->head.number;
    bytes = oari_wire_bytes(reply);
    if (s->moving + bytes > s->limits.moving_bytes ||
        oari_wire_frame(reply, &conn->out, &conn->out_bytes) != OAR_OK) {
        oari_conn_kill(conn);
        return;
    }
    s->moving += bytes;
    conn->out_done = 0;
    if (conn->state == OARI_CONN_READY)
        oari_conn_set_deadline(conn, s->limits.transfer_ms);
    push_out(conn);
    if (!conn->dead)
        watch(conn);
}

void oari_conn_refuse(oari_conn *conn, uint32_t flag)
{
    oari_wire_message reply = { .flag = flag };
    const char *text = oar_last_error_text();

    reply.head.status = oar_last_error()->status;
    reply.value = (oari_bytes){ text, strnlen(text, OARI_WIRE_TEXT_MAX) };
    oari_conn_reply(conn, &reply);
}

/* ---- in ------------------------------------------------------------------ */

/* Whether all bytes wanted are there now. */
static int fill(oari_conn *c, unsigned char *into, size_t wanted, size_t *have)
{
    while (*have < wanted) {
        struct iovec room = { into + *have, wanted - *have };
        ssize_t got = oari_stream_read(&c->stream, &room, 1);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            oari_conn_kill(c);
        if (got <= 0)
            return 0;
        *have += (size_t)got;
    }
    return 1;
}

/* One that speaks another version is told which this is: after the rest of its
 * greeting, because closing on unread bytes takes back what was said. */
static void bad_head(oari_conn *c)
{
    if (oar_last_error()->status == OAR_E_UNSUPPORTED) {
        fill(c, c->greeting, sizeof c->greeting, &c->body_have);
        c->head.kind = OARI_WIRE_HELLO;
        oari_conn_refuse(c, 0);
    }
    oari_conn_kill(c);
}

/* A request that has begun must come to its end; until a connection is ready
 * its greeting's deadline stands. */
static void begin_request(oari_conn *c)
{
    if (c->state == OARI_CONN_READY && c->deadline_ns == OARI_NEVER)
        oari_conn_set_deadline(c, c->server->limits.transfer_ms);
}

static int read_head(oari_conn *c)
{
    int whole;

    if (c->head_have == OARI_WIRE_HEAD)
        return 1;
    whole = fill(c, c->head_bytes, OARI_WIRE_HEAD, &c->head_have);
    if (c->head_have > 0)
        begin_request(c);
    if (!oari_wire_plausible(c->head_bytes, c->head_have))
        oari_conn_kill(c);
    if (!whole || c->dead)
        return 0;
    if (oari_wire_read_head(c->head_bytes, &c->head) != OAR_OK) {
        bad_head(c);
        return 0;
    }
    if (c->head.kind >= OARI_WIRE_REPLY ||
        (c->state != OARI_CONN_READY && c->head.bytes > OARI_WIRE_GREETING_MAX))
        oari_conn_kill(c);
    return !c->dead;
}

/* Room for more of the body: twice as much as has come. */
static int grow_body(oari_conn *c)
{
    oar_store_server *s = c->server;
    size_t room = c->body_room != 0 ? 2 * c->body_room : FIRST_ROOM;
    unsigned char *body;

    if (room > c->head.bytes)
        room = c->head.bytes;
    if (s->moving + room > s->limits.moving_bytes ||
        (body = oari_alloc(room, 1)) == NULL) {
        oari_conn_kill(c);
        return 0;
    }
    if (c->body_have != 0)
        memcpy(body, c->body, c->body_have);
    oari_conn_drop_body(c);
    c->body = body;
    c->body_room = room;
    s->moving += room;
    return 1;
}

static int read_body(oari_conn *c)
{
    if (c->state != OARI_CONN_READY)
        return fill(c, c->greeting, c->head.bytes, &c->body_have);
    while (c->body_have < c->head.bytes) {
        if (c->body_have == c->body_room && !grow_body(c))
            return 0;
        if (!fill(c, c->body, c->body_room, &c->body_have))
            return 0;
    }
    return 1;
}

/* ---- TLS ----------------------------------------------------------------- */

/* To one who begins TLS where it cannot be: "handshake failure", as TLS says
 * it, after what it has sent is read. It must not think it worth another try.
 */
static void refuse_tls(oari_conn *c)
{
    static const unsigned char alert[] = { 21, 3, 3, 0, 2, 2, 40 };
    char hello[2048];

    while (recv(c->fd, hello, sizeof hello, MSG_DONTWAIT) > 0)
        continue;
    send(c->fd, alert, sizeof alert, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (c->far)
        oari_wire_refuse();
    else
        oari_fail(OAR_E_AUTH, "it began TLS, and there is no secret here, or "
                              "OARSONG_WIRE=plain");
    note_refusal(c);
    oari_conn_kill(c);
}

static void shake(oari_conn *c)
{
    int done = 0;
    short want = 0;

    if (oari_stream_shake(&c->stream, &done, &want) != OAR_OK) {
        if (oar_last_error()->status == OAR_E_AUTH)
            note_refusal(c);
        oari_conn_kill(c);
    } else if (done)
        c->state = OARI_CONN_HELLO;
    else
        watch_for(c, (want & POLLIN ? EPOLLIN : 0) |
                         (want & POLLOUT ? EPOLLOUT : 0));
}

/* The first byte tells TLS from a greeting of ours. TLS is welcome wherever
 * there is a key for it, also where less would do. */
static void look_at_first(oari_conn *c)
{
    enum { TLS_HANDSHAKE = 22 };
    unsigned char first;
    ssize_t got = recv(c->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);

    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        oari_conn_kill(c);
    if (got <= 0)
        return;
    if (first != TLS_HANDSHAKE)
        c->state = OARI_CONN_HELLO;
    else if (c->far || c->wire == OARI_WIRE_PLAIN)
        refuse_tls(c);
    else if (oari_trust_answer(&c->server->trust, c->fd, &c->stream) != OAR_OK)
        oari_conn_kill(c);
    else
        c->state = OARI_CONN_SHAKE;
}

/* ---- greetings ----------------------------------------------------------- */

static void turn_away(oari_conn *c)
{
    if (oar_last_error()->status == OAR_E_AUTH)
        note_refusal(c);
    oari_conn_refuse(c, 0);
    oari_conn_kill(c);
}

/* Whether the connection is what it has to be, whoever is at its end. */
static oar_status check_wire(const oari_conn *c)
{
    if (c->far)
        return oari_wire_refuse();
    if (c->wire == OARI_WIRE_TLS && c->stream.tls == NULL)
        return oari_fail(OAR_E_AUTH,
                         "this store asks for TLS, and the caller did not "
                         "begin it: set the same OARSONG_WIRE and "
                         "OARSONG_SECRET_FILE for all, or start all with one "
                         "`oarsong run`");
    return OAR_OK;
}

static void greet(oari_conn *c, const oari_wire_message *hello)
{
    oar_store_server *s = c->server;
    oari_wire_message welcome = { .id = s->id };

    if (hello->head.kind != OARI_WIRE_HELLO || hello->id == 0) {
        oari_conn_kill(c);
        return;
    }
    c->id = hello->id;
    if (check_wire(c) != OAR_OK ||
        oari_auth_welcome(&c->auth, &s->trust, c->wire, hello, &welcome) !=
            OAR_OK) {
        turn_away(c);
        return;
    }
    c->state = OARI_CONN_PROOF;
    oari_conn_reply(c, &welcome);
}

static void admit(oari_conn *c, const oari_wire_message *proof)
{
    if (proof->head.kind != OARI_WIRE_PROOF) {
        oari_conn_kill(c);
        return;
    }
    if (oari_auth_check(&c->auth, &c->server->trust, proof) != OAR_OK ||
        oari_session_join(c) != OAR_OK) {
        turn_away(c);
        return;
    }
    oari_conn_is_known(c);
    c->state = OARI_CONN_READY;
    oari_conn_reply(c, &(oari_wire_message){ 0 });
}

static void handle(oari_conn *c)
{
    oari_wire_message message;
    const unsigned char *body =
        c->state == OARI_CONN_READY ? c->body : c->greeting;

    if (oari_wire_read(&c->head, body, &message) != OAR_OK) {
        oari_conn_kill(c);
        return;
    }
    c->head_have = c->body_have = 0;
    if (c->state == OARI_CONN_HELLO)
        greet(c, &message);
    else if (c->state == OARI_CONN_PROOF)
        admit(c, &message);
    else
        oari_desk_serve(c, &message);
    if (c->state != OARI_CONN_PARKED)
        oari_conn_drop_body(c);
}

/* Bytes that TLS has read already bring no event: they are taken now. */
static void pull_in(oari_conn *c)
{
    if (c->state == OARI_CONN_FIRST)
        look_at_first(c);
    if (c->state == OARI_CONN_SHAKE && !c->dead)
        shake(c);
    if (c->state == OARI_CONN_FIRST || c->state == OARI_CONN_SHAKE)
        return;
    for (int i = 0; !c->dead; i++) {
        if (c->out != NULL || c->state == OARI_CONN_PARKED)
            return;
        if (i >= TURN && !oari_stream_pending(&c->stream))
            return;
        if (!read_head(c) || !read_body(c))
            return;
        handle(c);
    }
}

void oari_conn_event(oari_conn *conn, uint32_t events)
{
    if (conn->dead)
        return;
    if (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
        oari_conn_kill(conn);
        return;
    }
    if (events & EPOLLOUT)
        push_out(conn);
    if (events & EPOLLIN || conn->state == OARI_CONN_SHAKE ||
        oari_stream_pending(&conn->stream))
        pull_in(conn);
    if (!conn->dead)
        watch(conn);
}
