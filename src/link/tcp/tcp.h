/* SPDX-License-Identifier: Apache-2.0 */
/* link/tcp/tcp.h: links over TCP, to all ranks of a group or to those on other
 * hosts. docs/tcp.md says how they work.
 *
 * A mesh is one rank's side of it: a listener, a descriptor to sleep on, and
 * for every peer its sockets and what is on its way. Sockets are made at the
 * first use of a pair. All of it belongs to the driver, except tcp_wake,
 * tcp_abort, tcp_publish, tcp_published and tcp_settled.
 *
 * The files call each other downward only, in this order: mesh; in, fault;
 * bulletin, lease; connect; out, auth.
 */
#ifndef OARI_NATIVE_TCP_H
#define OARI_NATIVE_TCP_H

#include <stdatomic.h>
#include <unistd.h>

#include "link/link.h"
#include "link/endpoint.h"
#include "net/frame.h"
#include "net/seal.h"
#include "net/secret.h"
#include "net/sock.h"
#include "net/socket_stream.h"
#include "link/host.h"

enum {
    TCP_SOCKETS_MAX = 8, /* of one pair */
    TCP_BUFFER = 16 << 10,
    TCP_SMALL = 4 << 10,  /* data up to here is copied behind its head */
    TCP_PART = 512 << 10, /* of a large message, in one frame */
    TCP_WIDE = 2 << 20,   /* messages that are spread over several sockets */
    TCP_SINK = 64 << 10,  /* for what is drained */
    TCP_AHEAD = 8,        /* times eager_bytes: what a collective pushes to
                            another host */
    TCP_TOKEN = 16,       /* bytes that make a listener unlike any other */
    TCP_HELLO = 8 + OARI_MAC_BYTES,                /* what a hello carries */
    TCP_SEALED = OARI_FAULT_BYTES + OARI_SEAL_TAG, /* the largest fact */
    TCP_BULLETIN_SLOT = -1
};

typedef struct tcp_mesh tcp_mesh;

typedef enum tcp_state {
    TCP_CONNECTING, /* I call */
    TCP_CALLING,    /* I have sent a hello */
    TCP_ANSWERING,  /* a caller that has not sent a hello */
    TCP_UP,
    TCP_DEAD /* closed; freed at the end of the round */
} tcp_state;

/* One socket. */
typedef struct tcp_conn {
    struct tcp_conn *next;
    tcp_mesh *mesh;
    int fd, peer; /* peer: -1 until it is known */
    oari_stream stream;
    int slot; /* which of the pair's; TCP_BULLETIN_SLOT: only for facts */
    tcp_state state;
    int maybe_tls;        /* it may begin with TLS */
    int in_tls_handshake; /* which is not finished */
    int tls_caller;       /* the caller that TLS names; -1: none */
    int64_t since_ns;     /* it has been there */
    int64_t deadline_ns;  /* to be up, or to send a hello */
    uint32_t asked;       /* questions without an answer (tcp_lease.c) */
    int64_t asked_first_ns, asked_ns; /* the first and the last of them */
    unsigned char hello[TCP_HELLO];   /* what the caller's carried */
    int watched;                      /* for room to write */
    int mute;                         /* nothing can be written any more */
    int idle;                         /* all frames go over another one */
    uint32_t sent, seen;              /* frames */

    /* out: bytes first, then the payload, which is not copied */
    size_t out_at, out_end;
    const unsigned char *payload;
    size_t payload_left;
    oar_transfer *paying; /* whose payload it is */

    /* in: bytes that have been read and not parsed, and the frame whose
     * payload is being read */
    size_t in_at, in_end;
    oari_frame now;
    int open; /* there is such a frame */
    int bulk; /* it was a large part: read heads alone */
    size_t left;
    unsigned char *target; /* NULL: drained */
    oari_inbound inbound;
    oar_transfer *take;
    unsigned char small[TCP_SEALED]; /* of a hello or a fact */
    unsigned char out[TCP_BUFFER], in[TCP_BUFFER];
} tcp_conn;

typedef struct tcp_peer {
    int64_t pid; /* where it is */
    char address[OARI_SOCK_TEXT];
    unsigned char token[TCP_TOKEN];  /* of its entry in the store */
    int apart;                       /* on another host, as far as is known */
    oari_protection wire;            /* what connections have to be */
    uint64_t calls;                  /* mine, counted */
    uint64_t newest, window;         /* of its: seen (tcp_auth.c) */
    tcp_conn *conn[TCP_SOCKETS_MAX]; /* over which I send */
    tcp_conn *theirs;                /* over which it sends; may be the same */
    tcp_conn *moving;                /* over which it sends next, not read
                                        until all of theirs is */
    uint32_t move_at;                /* frames of theirs by then */
    int called;                      /* by me */
    int widened;                     /* its other sockets have been, too */
    int refused;                     /* attempts in a row */
    int fact_refused;                /* the same, of calls for facts */
    int attempts;
    int64_t since_ns, again_ns; /* first attempt, next attempt */
    int64_t fading_ns;          /* a connection has ended: the others must, by
                                   then */
    int unsettled;              /* it needs attention (tcp_retry_peers) */
    int goodbye;                /* it has said that it leaves */
    int vanished;               /* its host does not answer any more */
    int gone;                   /* OARI_PEER_DIED ... */
    oari_endpoint with;         /* messages */
    oari_transfer_list jobs;    /* sends whose data is being written */
    tcp_conn *over;             /* the socket that is being written */
    oari_bulletin *bulletin;    /* what it shows; NULL: nothing so far */
    tcp_conn *ballot_conn;      /* over which I send it my ballots */
    unsigned ballots;           /* which of them it has been sent over that */
    int64_t ballot_again_ns;    /* not called before that */
} tcp_peer;

/* What a connection calls its mesh for; nothing below tcp_mesh.c calls upward
 * in any other way. */
typedef struct tcp_handlers {
    /* Something may be there to be read. */
    oar_status (*readable)(tcp_mesh *m, tcp_conn *c);
    /* A peer has called after the group's end: it is sent the fault. */
    void (*called_late)(tcp_mesh *m, tcp_conn *c);
} tcp_handlers;

struct tcp_mesh {
    const tcp_handlers *handlers;
    int rank, ranks;
    int sockets; /* for each pair */
    size_t eager_bytes;
    size_t ahead_bytes; /* the same for messages of collectives */
    int64_t timeout_ms;
    int64_t lease_ms; /* for a host not to answer */
    int64_t tick_ns;  /* next look at the leases */
    uint64_t context;
    oari_secret secret;     /* the job's, or one of the group's own */
    int apart;              /* from some peers */
    int encrypts;           /* with some peers */
    int again;              /* TLS has bytes that the sockets have not */
    oari_message_link link; /* its match is borrowed */
    int listener, epoll_fd, event_fd;
    tcp_peer *peer;      /* by rank */
    int *host;           /* by rank, as in backend.h */
    tcp_conn *conns;     /* all */
    int open_conns;      /* of them */
    int unauthenticated; /* of those: they have not sent a hello */
    int unsettled;       /* peers that need attention */
    int dead;            /* conns to be freed */
    unsigned polls;
    uint64_t set_asked, ask_ticks; /* when, and how soon again */
    oar_status failed; /* a failure inside a call that returns none */
    oar_status ended;  /* aborted, and all transfers ended */
    unsigned char *sink;
    _Atomic int aborted; /* an oar_status */
    oari_bulletin mine;  /* what this rank shows */
    oari_bulletin heard; /* of the faults that peers show, those that count */
    uint64_t told; /* the driver's: which fault the peers have been told */
    _Atomic int unanimous; /* all peers say what I say */
    int votes;             /* there has been a ballot, of mine or a peer's */
    unsigned ballots;      /* of mine, counted */
};

/* Wakes the thread that sleeps on the mesh. Any thread. */
static inline void tcp_wake(tcp_mesh *m)
{
    uint64_t one = 1;

    if (m->event_fd >= 0 && write(m->event_fd, &one, sizeof one) < 0)
        return; /* it is awake already */
}

/* ---- tcp_mesh.c: what a backend does with it ----------------------------- */

typedef struct tcp_setup {
    const oari_open *with;
    const char *prefix; /* of its keys in the store */
    const char *host;   /* the name of this host (host.c) */
    oari_match *match;
} tcp_setup;

/* Prepares a mesh of zeros, so that it can be closed at any time. */
void tcp_init(tcp_mesh *m);
oar_status tcp_open(tcp_mesh *m, const tcp_setup *setup);
/* Opens a mesh of one rank, without a listener. */
oar_status tcp_open_alone(tcp_mesh *m, const tcp_setup *setup);
void tcp_close(tcp_mesh *m);

oar_status tcp_send(tcp_mesh *m, oar_transfer *t);
/* Connects to the peers that a receive, which has been posted, needs. */
void tcp_expect(tcp_mesh *m, const oar_transfer *t);
/* As oari_backend.withdraw (link.h). */
int tcp_withdraw(tcp_mesh *m, oar_transfer *t, int is_send, int unmoved);
oar_status tcp_progress(tcp_mesh *m);
/* Returns 1 if progress would find something; else epoll_fd will be readable
 * when it does. */
int tcp_arm(tcp_mesh *m);
void tcp_abort(tcp_mesh *m, oar_status why);

/* ---- tcp_rendezvous.c ---------------------------------------------------- */

/* What a rank publishes in the store, under prefix/tcp/rank. Fixed size,
 * checked field by field; the magic also tells the byte order. */
typedef struct tcp_entry {
    uint32_t magic, protocol;
    int32_t rank, ranks;
    uint64_t page, context; /* rank 0's context is the group's */
    int64_t pid;
    char host[OARI_HOST_NAME_BYTES];
    char address[OARI_SOCK_TEXT];
    unsigned char token[TCP_TOKEN];
    uint32_t wire;   /* oari_protection, of connections within a host */
    uint32_t proves; /* that it knows the job's secret */
    unsigned char key[OARI_SECRET_BYTES]; /* if not: rank 0's is the group's */
    unsigned char proof[OARI_MAC_BYTES];  /* of all before it, see auth.h */
} tcp_entry;

/* Listens, publishes where, and reads the entries of all other ranks. */
oar_status tcp_find_peers(tcp_mesh *m, const tcp_setup *setup);

/* ---- tcp_connect.c: making and ending connections ------------------------ */

/* Connects to the peer, unless there is a connection or the peer is gone. */
void tcp_want(tcp_mesh *m, int peer);
/* The same if the peer does not call by itself soon. */
void tcp_want_later(tcp_mesh *m, int peer);
/* Begins to make one socket; slot as in tcp_conn. NULL if that fails at once.
 */
tcp_conn *tcp_call(tcp_mesh *m, int peer, int slot);
/* Calls peers again when it is time to, and gives up when it is too late. */
void tcp_retry_peers(tcp_mesh *m);
/* Makes the other sockets of a pair, once. */
void tcp_widen(tcp_mesh *m, int peer);
void tcp_accept(tcp_mesh *m);
/* Goes on with a call whose socket can be written: the connection may be made.
 */
void tcp_connected(tcp_mesh *m, tcp_conn *c);
/* Takes the steps before a connection can be read: finds out whether it is TLS,
 * and goes on with that handshake. Returns 1 when all is done; loses the
 * connection if it cannot be. */
int tcp_secure(tcp_mesh *m, tcp_conn *c);
/* A hello has been read: c->now and c->small. */
void tcp_hello_read(tcp_mesh *m, tcp_conn *c);
/* Ends a connection whose other end is gone, or breaks the rules. */
void tcp_lose(tcp_mesh *m, tcp_conn *c);
/* Ends all connections of a peer, which is gone. */
void tcp_drop(tcp_mesh *m, int peer);
/* The same for a peer whose host does not answer any more. */
void tcp_vanish(tcp_mesh *m, int peer);
/* Frees connections that have ended. */
void tcp_reap(tcp_mesh *m);
/* Drops callers that have not sent a hello in time. */
void tcp_drop_late_callers(tcp_mesh *m);
void tcp_say_hello(tcp_mesh *m, tcp_conn *c);

/* ---- tcp_auth.c: which callers are ranks --------------------------------- */

/* Makes what a hello of this rank has to carry. */
oar_status tcp_make_hello(tcp_mesh *m, tcp_conn *c, const oari_frame *hello,
                          unsigned char raw[TCP_HELLO]);
/* Returns whether a rank of this group has sent the hello in c->now and
 * c->small. */
int tcp_check_hello(tcp_mesh *m, tcp_conn *c);
/* Seals a fact that is sent behind the hello of a connection in
 * TCP_BULLETIN_SLOT, by the side that called: the payload of the next frame, or
 * of c->now. There is room for OARI_SEAL_TAG more behind it. */
oar_status tcp_seal(const tcp_mesh *m, const tcp_conn *c, oari_fact fact,
                    unsigned char *raw);
oar_status tcp_unseal(const tcp_mesh *m, const tcp_conn *c, oari_fact fact,
                      unsigned char *raw);
/* Begins TLS, as caller or as listener. */
oar_status tcp_encrypt(tcp_mesh *m, tcp_conn *c);
/* Finds out whether a caller begins TLS, and if so begins it, too: 1; 0 if that
 * is not known yet; -1 if it has failed. */
int tcp_detect_tls(tcp_mesh *m, tcp_conn *c);
/* Takes one step of the TLS handshake: 1 when it is done, 0 if not yet; -1 if
 * it has failed. */
int tcp_step_tls(tcp_mesh *m, tcp_conn *c);

/* ---- tcp_lease.c --------------------------------------------------------- */

/* Drops, from time to time, hosts that do not answer any more. */
void tcp_check_leases(tcp_mesh *m);
/* Resets the connections to hosts that do not seem to answer, when the group
 * ends. Where only one direction is cut, that is all that still gets through.
 */
void tcp_drop_suspected(tcp_mesh *m);
/* As restless of oari_backend (link.h). */
int tcp_restless(const tcp_mesh *m);
/* As pid and answered of oari_backend (link.h). */
int64_t tcp_pid(const tcp_mesh *m, int peer);
int64_t tcp_answered(const tcp_mesh *m, int peer);

/* ---- tcp_out.c ----------------------------------------------------------- */

/* Puts a frame and its small payload behind what is to be written; 0 if there
 * is no room for it now. */
int tcp_put(tcp_mesh *m, tcp_conn *c, oari_frame frame, const void *data);
/* Sets whether the mesh is woken when there is room to write. */
void tcp_watch_room(tcp_mesh *m, tcp_conn *c, int wanted);
/* 1: all is written; 0: no room, or broken. */
int tcp_flush(tcp_mesh *m, tcp_conn *c);
/* Writes what there is for the peer, as far as there is room. */
void tcp_pump(tcp_mesh *m, int peer);
enum oari_written tcp_write(oari_endpoint *e, oari_header *h, oar_transfer *t);
void tcp_credit(tcp_mesh *m, int peer);
void tcp_end_out(tcp_mesh *m, tcp_peer *p, oar_status why);
/* Takes back a send to the peer, or a receive that has found its message: as
 * oari_backend.withdraw. */
int tcp_withdraw_send(tcp_peer *p, oar_transfer *t, int unmoved);

/* ---- tcp_in.c ------------------------------------------------------------ */

oar_status tcp_read(tcp_mesh *m, tcp_conn *c);
void tcp_end_in(tcp_mesh *m, oar_status why);
int tcp_withdraw_receive(tcp_mesh *m, oar_transfer *t);
extern const oari_transport tcp_transport;

/* ---- tcp_fault.c --------------------------------------------------------- */

/* Publishes a fault of this rank, once. Any thread. */
void tcp_publish(tcp_mesh *m, const oari_fault *fault);
/* Gives the fault that counts; returns 0 if there is none. Any thread. */
int tcp_published(const tcp_mesh *m, oari_fault *fault);
/* This rank ends with that fault. Once. */
void tcp_conclude(tcp_mesh *m, const oari_fault *fault);
/* The driver's: tells the peers, in bounded time. */
void tcp_tell(tcp_mesh *m);
/* The driver's: finds out whether all peers show the same fault. */
void tcp_compare(tcp_mesh *m);
/* Returns whether a peer has ended with the fault that counts; then it is
 * final. Any thread. */
int tcp_settled(const tcp_mesh *m);
/* Sends the fault to a peer that calls after the group's end. */
void tcp_tell_late(tcp_mesh *m, tcp_conn *c);

/* ---- tcp_bulletin.c ------------------------------------------------------ */

/* Sends a fact over a connection: 1; 0: there is no room, or it is broken. */
int tcp_put_fact(tcp_mesh *m, tcp_conn *c, oari_fact fact, const void *data);
/* A fact has been read: c->now and c->small. */
void tcp_hear_fact(tcp_mesh *m, tcp_conn *c);
/* Sends this rank's ballot to all peers. */
void tcp_show_ballot(tcp_mesh *m, const void *ballot);
/* Sends the newest one to peers that do not have it, and notes which peers
 * cannot be reached any more. */
void tcp_spread_ballot(tcp_mesh *m);

#endif
