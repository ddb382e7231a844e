/* SPDX-License-Identifier: Apache-2.0 */
/* store_handshake: a connection of the server until its client has proved
 * itself: TLS where the client begins it, then HELLO and PROOF. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/status.h"
#include "store/store_server.h"

void oari_handshake_end(oari_connection *conn)
{
    oar_store_server *s = conn->server;

    if (!conn->is_pending)
        return;
    conn->is_pending = 0;
    oari_list_remove(&s->pending, &conn->pending);
    s->pending_count--;
}

void oari_handshake_note_refusal(oari_connection *conn)
{
    oar_store_server *s = conn->server;

    if (atomic_load(&s->refused))
        return;
    snprintf(s->refused_why, sizeof s->refused_why, "%s",
             oar_last_error_text());
    if (oari_sock_peer(conn->fd, s->refused_at) != OAR_OK)
        snprintf(s->refused_at, sizeof s->refused_at, "an unknown address");
    atomic_store(&s->refused, 1);
    oari_log(OAR_LOG_WARN,
             "the store at %s refused a caller at %s (%s); further ones are "
             "not reported",
             s->address, s->refused_at, s->refused_why);
}

/* ---- TLS ----------------------------------------------------------------- */

/* Sends the alert "handshake failure" to a client that begins TLS where there
 * can be none, after reading what the client has sent: the client must not take
 * this for a lost connection and try again. */
static void refuse_tls(oari_connection *c)
{
    static const unsigned char alert[] = { 21, 3, 3, 0, 2, 2, 40 };
    char hello[2048];

    while (recv(c->fd, hello, sizeof hello, MSG_DONTWAIT) > 0)
        continue;
    send(c->fd, alert, sizeof alert, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (c->far)
        oari_wire_fail_no_secret();
    else
        oari_fail(OAR_E_AUTH, "it began TLS, and there is no secret here, or "
                              "OARSONG_WIRE=plain");
    oari_handshake_note_refusal(c);
    oari_connection_kill(c);
}

/* The first byte tells TLS from a HELLO. TLS is accepted wherever there is a
 * key for it, also where the connection may do without. */
static void check_first_byte(oari_connection *c)
{
    enum { TLS_HANDSHAKE = 22 };
    unsigned char first;
    ssize_t got = recv(c->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);

    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        oari_connection_kill(c);
    if (got <= 0)
        return;
    if (first != TLS_HANDSHAKE)
        c->state = OARI_CONNECTION_HELLO;
    else if (c->far || c->wire == OARI_PROTECTION_PLAIN)
        refuse_tls(c);
    else if (oari_trust_accept_tls(&c->server->trust, c->fd, &c->stream) !=
             OAR_OK)
        oari_connection_kill(c);
    else
        c->state = OARI_CONNECTION_TLS;
}

void oari_handshake_tls(oari_connection *conn)
{
    int done = 0;
    short want = 0;

    if (conn->state == OARI_CONNECTION_FIRST)
        check_first_byte(conn);
    if (conn->state != OARI_CONNECTION_TLS || conn->dead)
        return;
    if (oari_stream_handshake(&conn->stream, &done, &want) != OAR_OK) {
        if (oar_last_error()->status == OAR_E_AUTH)
            oari_handshake_note_refusal(conn);
        oari_connection_kill(conn);
    } else if (done)
        conn->state = OARI_CONNECTION_HELLO;
    else
        oari_connection_watch(conn, (want & POLLIN ? EPOLLIN : 0) |
                                        (want & POLLOUT ? EPOLLOUT : 0));
}

/* ---- HELLO and PROOF ----------------------------------------------------- */

/* Checks that the connection is what it has to be, whatever its client. */
static oar_status check_wire(const oari_connection *c)
{
    if (c->far)
        return oari_wire_fail_no_secret();
    if (c->wire == OARI_PROTECTION_TLS && c->stream.tls == NULL)
        return oari_fail(OAR_E_AUTH,
                         "this store asks for TLS, and the caller did not "
                         "begin it: set the same OARSONG_WIRE and "
                         "OARSONG_SECRET_FILE for all, or start all with one "
                         "`oarsong run`");
    return OAR_OK;
}

void oari_handshake_message(oari_connection *conn,
                            const oari_wire_message *message)
{
    oar_store_server *s = conn->server;
    int is_hello = conn->state == OARI_CONNECTION_HELLO;
    oari_wire_message reply = { 0 };
    oar_status status;

    if (message->head.kind != (is_hello ? OARI_WIRE_HELLO : OARI_WIRE_PROOF) ||
        (is_hello && message->id == 0)) {
        oari_connection_kill(conn);
        return;
    }
    if (is_hello) {
        conn->id = message->id;
        reply.id = s->id;
        status = check_wire(conn);
        if (status == OAR_OK)
            status = oari_auth_welcome(&conn->auth, &s->trust, conn->wire,
                                       message, &reply);
    } else {
        status = oari_auth_check(&conn->auth, &s->trust, message);
        if (status == OAR_OK)
            status = oari_session_join(conn);
    }
    if (status != OAR_OK) {
        if (oar_last_error()->status == OAR_E_AUTH)
            oari_handshake_note_refusal(conn);
        oari_connection_refuse(conn, 0);
        oari_connection_kill(conn);
        return;
    }
    if (!is_hello)
        oari_handshake_end(conn);
    conn->state = is_hello ? OARI_CONNECTION_PROOF : OARI_CONNECTION_READY;
    oari_connection_reply(conn, &reply);
}
