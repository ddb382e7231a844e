/* SPDX-License-Identifier: Apache-2.0 */
/* store/store_server.h: the TCP store's server from the inside. One thread runs
 * all of it, so nothing here is locked.
 *
 *   store_server.c   the thread: who connects, whose time is up, who is buried
 *   store_conn.c     bytes of one connection: frames in, a reply out
 *   store_session.c  who a client is, across its connections
 *   store_desk.c     what the requests do
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
    int64_t handshake_ms; /* for a connection to say who it is */
    int64_t transfer_ms;  /* for a request to come, for a reply to be taken */
    int64_t grace_ms;     /* of that, what nobody takes from it */
    int clients;          /* connections at a time */
    int strangers;        /* of them, those that have not proved themselves */
    int sessions;         /* clients without one that are remembered */
    size_t kept_bytes;    /* in the table */
    size_t moving_bytes;  /* of requests and replies under way */
} oari_store_limits;

/* What a client asked for last, so that asking again does not do it again. */
typedef struct oari_session {
    struct oari_session *next; /* in its bucket */
    oari_link lonely;          /* among those without a connection */
    uint64_t id;
    struct oari_conn *conn; /* NULL: none now */
    uint64_t number;        /* of the last change; 0: none */
    oar_status status;      /* and what the reply to it was */
    int64_t amount;
    uint32_t flag;
    char text[160];
} oari_session;

typedef enum oari_conn_state {
    OARI_CONN_FIRST, /* nothing has come */
    OARI_CONN_SHAKE, /* TLS begins */
    OARI_CONN_HELLO, /* nothing is known of it */
    OARI_CONN_PROOF, /* it has said who it is */
    OARI_CONN_READY, /* it may ask */
    OARI_CONN_PARKED /* it waits for a key */
} oari_conn_state;

typedef struct oari_conn {
    struct oar_store_server *server;
    oari_link all;       /* there are */
    oari_link strangers; /* if it is one */
    int stranger;
    int fd;
    oari_stream stream;
    oari_wire wire; /* what it has to be */
    int far;        /* it is from elsewhere, where nobody may be from */
    oari_conn_state state;
    int dead;            /* to be buried */
    uint32_t events;     /* what epoll watches for */
    int64_t deadline_ns; /* OARI_NEVER: none */
    uint64_t id;         /* the client's, as it says */
    oari_auth auth;
    oari_session *session; /* once it is ready */

    unsigned char head_bytes[OARI_WIRE_HEAD];
    size_t head_have;
    oari_wire_head head;
    unsigned char greeting[OARI_WIRE_GREETING_MAX]; /* body until it is ready */
    unsigned char *body;                            /* after that */
    size_t body_room, body_have;

    unsigned char *out; /* a reply not yet taken; NULL: none */
    size_t out_bytes, out_done;

    oari_wire_message asked; /* while parked; lies in the body */
    size_t asked_at;         /* behind the key it waits for */
    uint32_t asked_index;    /* the number of that key */
    char asked_key[OAR_STORE_KEY_MAX + 1];
    oari_link waiting; /* those whose keys hash alike */
} oari_conn;

enum { OARI_WAIT_BUCKETS = 1024, OARI_SESSION_BUCKETS = 1024 };

struct oar_store_server {
    oari_store_limits limits;
    oari_trust trust;
    _Atomic int refused; /* somebody who could not prove itself, and then: */
    char refused_at[OARI_SOCK_TEXT], refused_why[400];
    unsigned generation; /* of fork */
    char address[OARI_SOCK_TEXT];
    int listener, epoll_fd, wake_fd;
    int deaf; /* the listener is not watched: too many connections */
    pthread_t thread;
    int has_thread;
    _Atomic int stop;
    uint64_t id;
    int64_t next_deadline_ns; /* nobody's time is up before that */
    oari_list all;            /* connections */
    int connections;
    oari_list stranger; /* of them, the oldest first */
    int strangers;
    int any_dead;
    oari_table table;
    size_t moving;                        /* bytes of requests and replies */
    oari_list waiting[OARI_WAIT_BUCKETS]; /* connections, by key */
    oari_session *session[OARI_SESSION_BUCKETS];
    oari_list lonely; /* sessions without a connection, the oldest first */
    int lonelies;
};

/* As oar_store_serve, with limits and a secret of one's own: it may be unknown,
 * and is only read. */
oar_status oari_store_serve(const char *address,
                            const oari_store_limits *limits,
                            const oari_secret *secret,
                            oar_store_server **server);
extern const oari_store_limits oari_store_default_limits;

/* Whether somebody was refused for want of proof; then it fails with OAR_E_AUTH
 * and says who was first, and why. NULL is fine. Any thread. */
oar_status oari_store_refused(const oar_store_server *server);

/* ---- store_server.c ------------------------------------------------------ */

void oari_conn_set_deadline(oari_conn *conn, int64_t timeout_ms);
/* It is a stranger no more. */
void oari_conn_is_known(oari_conn *conn);

/* ---- store_conn.c -------------------------------------------------------- */

/* Takes the descriptor; NULL without memory. */
oari_conn *oari_conn_create(oar_store_server *server, int fd);
void oari_conn_destroy(oari_conn *conn);
/* It is not to be used any more; buried when the thread has a moment. */
void oari_conn_kill(oari_conn *conn);
void oari_conn_drop_body(oari_conn *conn);
/* Something happened to it, as epoll says. */
void oari_conn_event(oari_conn *conn, uint32_t events);
/* Ends its request with this reply. kind and number are filled in. */
void oari_conn_reply(oari_conn *conn, oari_wire_message *reply);
/* The same with a failure: this thread's last error. */
void oari_conn_refuse(oari_conn *conn, uint32_t flag);

/* ---- store_session.c ----------------------------------------------------- */

/* Gives the connection its client's session. An older connection of the same
 * client dies. */
oar_status oari_session_join(oari_conn *conn);
void oari_session_leave(oari_conn *conn);
void oari_session_drop_all(oar_store_server *server);

/* ---- store_desk.c -------------------------------------------------------- */

/* Does what a connection that is ready asks for. */
void oari_desk_serve(oari_conn *conn, const oari_wire_message *message);
/* The time of a parked connection is up. */
void oari_desk_give_up(oari_conn *conn);
/* It is parked no more; its request is forgotten. */
void oari_desk_unpark(oari_conn *conn);

#endif
