/* SPDX-License-Identifier: Apache-2.0 */
/* store_connection: the bytes of one connection of the server. It is read only
 * while its client may ask: one that does not take its reply, or whose request
 * is parked, has to wait. A body gets memory as its bytes arrive, not as its
 * length is announced; when the server holds too much, the connection is ended,
 * and its client connects again. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "store/store_server.h"

enum { FIRST_ROOM = 4096 };

void oari_connection_kill(oari_connection *conn)
{
    conn->dead = 1;
    conn->server->any_dead = 1;
}

void oari_connection_set_deadline(oari_connection *conn, int64_t timeout_ms)
{
    conn->deadline_ns = oari_deadline(timeout_ms);
    if (conn->deadline_ns < conn->server->next_deadline_ns)
        conn->server->next_deadline_ns = conn->deadline_ns;
}

void oari_connection_watch(oari_connection *conn, uint32_t events)
{
    struct epoll_event event = { .data.ptr = conn };

    event.events = events | EPOLLRDHUP;
    if (event.events == conn->events)
        return;
    if (epoll_ctl(conn->server->epoll_fd, EPOLL_CTL_MOD, conn->fd, &event) != 0)
        oari_connection_kill(conn);
    conn->events = event.events;
}

void oari_connection_watch_next(oari_connection *conn)
{
    if (conn->state == OARI_CONNECTION_TLS)
        return; /* oari_handshake_tls has set what TLS needs */
    if (conn->out != NULL)
        oari_connection_watch(conn, EPOLLOUT);
    else
        oari_connection_watch(
            conn, conn->state == OARI_CONNECTION_PARKED ? 0 : EPOLLIN);
}

/* ---- out ----------------------------------------------------------------- */

void oari_connection_drop_reply(oari_connection *conn)
{
    if (conn->out != NULL)
        conn->server->moving -= conn->out_bytes;
    oari_free(conn->out);
    conn->out = NULL;
}

void oari_connection_flush(oari_connection *conn)
{
    while (conn->out != NULL) {
        struct iovec rest = { conn->out + conn->out_done,
                              conn->out_bytes - conn->out_done };
        ssize_t put = oari_stream_write(&conn->stream, &rest, 1);

        if (put < 0 && errno != EAGAIN)
            oari_connection_kill(conn);
        if (put < 0)
            return;
        conn->out_done += (size_t)put;
        if (conn->out_done == conn->out_bytes)
            oari_connection_drop_reply(conn);
    }
    if (conn->state == OARI_CONNECTION_READY)
        conn->deadline_ns = OARI_NEVER;
}

void oari_connection_reply(oari_connection *conn, oari_wire_message *reply)
{
    oar_store_server *s = conn->server;
    size_t bytes;

    reply->head.kind = conn->head.kind | OARI_WIRE_REPLY;
    reply->head.number = conn->head.number;
    bytes = oari_wire_bytes(reply);
    if (s->moving + bytes > s->limits.moving_bytes ||
        oari_wire_frame(reply, &conn->out, &conn->out_bytes) != OAR_OK) {
        oari_connection_kill(conn);
        return;
    }
    s->moving += bytes;
    conn->out_done = 0;
    if (conn->state == OARI_CONNECTION_READY)
        oari_connection_set_deadline(conn, s->limits.transfer_ms);
    oari_connection_flush(conn);
    if (!conn->dead)
        oari_connection_watch_next(conn);
}

void oari_connection_refuse(oari_connection *conn, uint32_t flag)
{
    oari_wire_message reply = { .flag = flag };
    const char *text = oar_last_error_text();

    reply.head.status = oar_last_error()->status;
    reply.value = (oari_bytes){ text, strnlen(text, OARI_WIRE_TEXT_MAX) };
    oari_connection_reply(conn, &reply);
}

/* ---- in ------------------------------------------------------------------ */

/* Reads until all the bytes wanted have arrived; returns whether they have. */
static int read_bytes(oari_connection *c, unsigned char *into, size_t wanted,
                      size_t *have)
{
    while (*have < wanted) {
        struct iovec room = { into + *have, wanted - *have };
        ssize_t got = oari_stream_read(&c->stream, &room, 1);

        if (got == 0 || (got < 0 && errno != EAGAIN))
            oari_connection_kill(c);
        if (got <= 0)
            return 0;
        *have += (size_t)got;
    }
    return 1;
}

/* Returns whether the header has arrived. A request that has begun to arrive
 * gets a deadline; until the connection is ready, that of the handshake stands.
 */
static int read_head(oari_connection *c)
{
    int whole;

    if (c->head_have == OARI_WIRE_HEADER_BYTES)
        return 1;
    whole = read_bytes(c, c->head_bytes, OARI_WIRE_HEADER_BYTES, &c->head_have);
    if (c->head_have > 0 && c->state == OARI_CONNECTION_READY &&
        c->deadline_ns == OARI_NEVER)
        oari_connection_set_deadline(c, c->server->limits.transfer_ms);
    if (!oari_wire_plausible(c->head_bytes, c->head_have))
        oari_connection_kill(c);
    if (!whole || c->dead)
        return 0;
    switch (oari_wire_read_header(c->head_bytes, &c->head)) {
    case OAR_OK:
        if (c->head.kind >= OARI_WIRE_REPLY ||
            (c->state != OARI_CONNECTION_READY &&
             c->head.bytes > OARI_WIRE_HANDSHAKE_MAX))
            oari_connection_kill(c);
        return !c->dead;
    case OAR_E_UNSUPPORTED:
        /* The client is told which version this is, after the rest of its
         * hello: closing on unread bytes would take the reply back. */
        read_bytes(c, c->greeting, sizeof c->greeting, &c->body_have);
        c->head.kind = OARI_WIRE_HELLO;
        oari_connection_refuse(c, 0);
        oari_connection_kill(c);
        return 0;
    default: oari_connection_kill(c); return 0;
    }
}

/* Makes room for more of the body: for twice as much as has arrived. */
static int grow_body(oari_connection *c)
{
    oar_store_server *s = c->server;
    size_t room = c->body_room != 0 ? 2 * c->body_room : FIRST_ROOM;
    unsigned char *body;

    if (room > c->head.bytes)
        room = c->head.bytes;
    if (s->moving + room > s->limits.moving_bytes ||
        (body = oari_alloc(room, 1)) == NULL) {
        oari_connection_kill(c);
        return 0;
    }
    if (c->body_have != 0)
        memcpy(body, c->body, c->body_have);
    oari_connection_drop_body(c);
    c->body = body;
    c->body_room = room;
    s->moving += room;
    return 1;
}

int oari_connection_read(oari_connection *conn, oari_wire_message *message)
{
    int is_ready = conn->state == OARI_CONNECTION_READY;

    if (!read_head(conn))
        return 0;
    if (!is_ready &&
        !read_bytes(conn, conn->greeting, conn->head.bytes, &conn->body_have))
        return 0;
    while (is_ready && conn->body_have < conn->head.bytes) {
        if (conn->body_have == conn->body_room && !grow_body(conn))
            return 0;
        if (!read_bytes(conn, conn->body, conn->body_room, &conn->body_have))
            return 0;
    }
    if (oari_wire_read(&conn->head, is_ready ? conn->body : conn->greeting,
                       message) != OAR_OK) {
        oari_connection_kill(conn);
        return 0;
    }
    conn->head_have = conn->body_have = 0;
    return 1;
}

void oari_connection_drop_body(oari_connection *conn)
{
    conn->server->moving -= conn->body_room;
    oari_free(conn->body);
    conn->body = NULL;
    conn->body_room = 0;
}
