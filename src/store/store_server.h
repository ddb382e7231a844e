/* SPDX-License-Identifier: Apache-2.0 */
/* store/store_server.h: the TCP store's server from the inside. One thread runs
 * all of it, so nothing here is locked. Each file calls those below it only:
 *
 *   store_server.c     the thread: accepts, reads requests, ends what is late
 *   store_handshake.c  TLS, and proofs of who a client is
 *   store_requests.c       request handler: what the requests do
 *   store_session.c    clients, across their connections
 *   store_connection.c       bytes of one connection: requests in, a reply out
 */
#ifndef OARI_STORE_STORE_SERVER_H
#define OARI_STORE_STORE_SERVER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "store/store_auth.h"
#include "store/store_table.h"
#include "store/store_wire.h"
#include "net/sock.h"

typedef struct oari_store_limits {
    int64_t handshake_ms; /* for a client to authenticate */
    int64_t transfer_ms;  /* for a request to arrive, for a reply to leave */
    int64_t grace_ms;     /* of handshake_ms, what a client has in any case */
    int clients;          /* connections at a time */
    int pending;          /* connections at a time without authentication */
    int sessions;         /* clients without a connection that are remembered */
    size_t kept_bytes;    /* in the table */
    size_t moving_bytes;  /* of requests and replies under way */
} oari_store_limits;

/* A client, and its last change, so that a repeated request does not change
 * anything again. */
typedef struct oari_session {
    struct oari_session *next; /* in its bucket */
    oari_link detached;        /* among those without a connection */
    uint64_t id;
    struct oari_connection *conn; /* NULL: none now */
    uint64_t number;              /* of the last change; 0: none */
    oar_status status; /* of the reply to it, and what else was in it */
    int64_t amount;
    uint32_t flag;
    char text[160];
} oari_session;

typedef enum oari_connection_state {
    OARI_CONNECTION_FIRST, /* before the first byte */
    OARI_CONNECTION_TLS,   /* in the handshake of TLS */
    OARI_CONNECTION_HELLO, /* before HELLO */
    OARI_CONNECTION_PROOF, /* after HELLO, before PROOF */
    OARI_CONNECTION_READY, /* authenticated: requests are read */
    OARI_CONNECTION_PARKED /* its request waits for a key */
} oari_connection_state;

typedef struct oari_connection {
    struct oar_store_server *server;
    oari_link all;     /* among the server's connections */
    oari_link pending; /* among those that have not authenticated */
    int is_pending;
    int fd;
    oari_stream stream;
    oari_protection wire; /* what it has to be */
    int far;              /* it is from another host, which is not allowed */
    oari_connection_state state;
    int dead;            /* to be destroyed soon */
    uint32_t events;     /* that epoll waits for */
    int64_t deadline_ns; /* OARI_NEVER: none */
    uint64_t id;         /* of the client, as it says */
    oari_auth auth;
    oari_session *session; /* NULL until it is ready */

    unsigned char head_bytes[OARI_WIRE_HEADER_BYTES];
    size_t head_have;
    oari_wire_header head;
    unsigned char
        greeting[OARI_WIRE_HANDSHAKE_MAX]; /* body until it is ready */
    unsigned char *body;                   /* body after that */
    size_t body_room, body_have;

    unsigned char *out; /* a reply not yet sent; NULL: none */
    size_t out_bytes, out_done;

    oari_wire_message asked; /* the parked request; borrows from the body */
    size_t asked_at;         /* in asked.keys, behind the key it waits for */
    uint32_t asked_index;    /* of the key it waits for */
    char asked_key[OAR_STORE_KEY_MAX + 1];
    oari_link waiting; /* among those parked in the same bucket */
} oari_connection;

enum { OARI_WAIT_BUCKETS = 1024, OARI_SESSION_BUCKETS = 1024 };

struct oar_store_server {
    oari_store_limits limits;
    oari_trust trust;
    _Atomic int refused; /* a client was; where from and why: */
    char refused_at[OARI_SOCK_TEXT], refused_why[400];
    unsigned generation; /* of fork */
    char address[OARI_SOCK_TEXT];
    int listener, epoll_fd, wake_fd;
    int paused; /* it does not accept: there are too many connections */
    pthread_t thread;
    int has_thread;
    _Atomic int stop;
    uint64_t id;
    int64_t next_deadline_ns; /* no connection is late before that */
    oari_list all;            /* connections */
    int connections;
    oari_list pending; /* connections not authenticated, the oldest first */
    int pending_count;
    int any_dead;
    oari_table table;
    size_t moving;                        /* bytes of requests and replies */
    oari_list waiting[OARI_WAIT_BUCKETS]; /* connections, by key */
    oari_session *session[OARI_SESSION_BUCKETS];
    oari_list detached; /* sessions without a connection, the oldest first */
    int detached_count;
};

/* Serves as oar_store_serve does, with these limits and this secret, which may
 * be unknown and is only read. */
oar_status oari_store_serve(const char *address,
                            const oari_store_limits *limits,
                            const oari_secret *secret,
                            oar_store_server **server);
extern const oari_store_limits oari_store_default_limits;

/* Fails with OAR_E_AUTH if a client was refused because it could not prove
 * itself; the text says where the first was and why. NULL is fine. Any thread
 * may call this. */
oar_status oari_store_refused(const oar_store_server *server);

/* ---- store_server.c ------------------------------------------------------ */

/* Takes the descriptor of a new connection; returns NULL without memory. */
oari_connection *oari_connection_create(oar_store_server *server, int fd);
void oari_connection_destroy(oari_connection *conn);
/* Handles the events that epoll reports of a connection. */
void oari_connection_event(oari_connection *conn, uint32_t events);

/* ---- store_handshake.c --------------------------------------------------- */

/* Goes on with the handshake of TLS, if the client begins one: until the state
 * is OARI_CONNECTION_HELLO. */
void oari_handshake_tls(oari_connection *conn);
/* Handles a HELLO or a PROOF; after the latter the connection is ready. */
void oari_handshake_message(oari_connection *conn,
                            const oari_wire_message *message);
/* Takes a connection off the list of those that have not authenticated. */
void oari_handshake_end(oari_connection *conn);
/* Remembers this thread's last error as the reason of a refusal, and logs it
 * once: many refusals must not fill the log. */
void oari_handshake_note_refusal(oari_connection *conn);

/* ---- store_requests.c ---------------------------------------------------- */

/* Does what a connection that is ready asks for. */
void oari_request_handle(oari_connection *conn,
                         const oari_wire_message *message);
/* Replies to a parked connection that its time is over. */
void oari_request_time_out(oari_connection *conn);
/* Forgets the request of a parked connection. Others are left alone. */
void oari_request_cancel(oari_connection *conn);

/* ---- store_session.c ----------------------------------------------------- */

/* Gives the connection its client's session, and ends an older connection of
 * the same client. */
oar_status oari_session_join(oari_connection *conn);
void oari_session_leave(oari_connection *conn);
void oari_session_drop_all(oar_store_server *server);

/* ---- store_connection.c -------------------------------------------------- */

/* Marks a connection as dead: it is used no more, and the thread destroys it
 * soon. */
void oari_connection_kill(oari_connection *conn);
void oari_connection_set_deadline(oari_connection *conn, int64_t timeout_ms);
/* Makes epoll wait for these events. */
void oari_connection_watch(oari_connection *conn, uint32_t events);
/* Makes epoll wait for what the connection's state needs. */
void oari_connection_watch_next(oari_connection *conn);
/* Reads what has arrived of a request. Returns 1 and the message, which borrows
 * from the connection, when all of it has. */
int oari_connection_read(oari_connection *conn, oari_wire_message *message);
void oari_connection_drop_body(oari_connection *conn);
/* Ends the connection's request with this reply, and fills in kind and number.
 */
void oari_connection_reply(oari_connection *conn, oari_wire_message *reply);
/* Ends the connection's request with a failure: this thread's last error. */
void oari_connection_refuse(oari_connection *conn, uint32_t flag);
/* Sends what the client takes of the reply now. */
void oari_connection_flush(oari_connection *conn);
void oari_connection_drop_reply(oari_connection *conn);

#endif
