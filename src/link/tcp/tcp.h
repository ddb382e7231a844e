/* SPDX-License-Identifier: Apache-2.0 */
/* link/tcp/tcp.h: links over TCP, to all ranks of a group or to those on other
 * hosts. docs/tcp.md says how they work.
 *
 * A mesh is one rank's side of it: a listener, a descriptor to sleep on, and
 * for every peer its sockets and what is on its way. Sockets are made at the
 * first use of a pair. All of it belongs to the driver, except tcp_wake,
 * tcp_abort, tcp_publish, tcp_published and tcp_settled.
 *
 * The files call each other downward only, in this order: mesh; in; fault,
 * council, lease; call; out, prove.
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
    TCP_SMALL = 4 << 10, /* data up to here is copied behind its head */
    TCP_PART = 1 << 20,  /* of a large message, in one frame */
    TCP_WIDE = 2 << 20,  /* messages that are spread over several sockets */
    TCP_SINK = 64 << 10, /* for what is drained */
    TCP_AHEAD = 8,       /* times eager_bytes: what a collective pushes to
                            another host */
    TCP_TOKEN = 16,      /* bytes that make a listener unlike any other */
    TCP_HELLO = 8 + OARI_MAC_BYTES,                /* what a hello carries */
    TCP_SEALED = OARI_FAULT_BYTES + OARI_SEAL_TAG, /* a fault on its own */
    TCP_FAULT_SLOT = -1,
    TCP_FAULTS = 16 /* told by peers that failed at one time */
};

typedef struct tcp_mesh tcp_mesh;

typedef enum tcp_state {
    TCP_CONNECTING, /* I call */
    TCP_CALLING,    /* I have said hello */
    TCP_ANSWERING,  /* somebody calls, and has to say hello */
    TCP_UP,
    TCP_DEAD /* closed; freed at the end of the round */
} tcp_state;

/* One socket. */
typedef struct tcp_conn {
    struct tcp_conn *next;
    tcp_mesh *mesh;
    int fd, peer; /* peer: -1 until it is known */
    oari_stream stream;
    int slot; /* which of the pair's; TCP_FAULT_SLOT: only for a fault */
    tcp_state state;
    int undecided;       /* it may yet begin with TLS */
    int shaking;         /* the handshake of TLS is under way */
    int claims;          /* the caller that TLS names; -1: none */
    int64_t since_ns;    /* it has been there */
    int64_t deadline_ns; /* to be up, or to have said hello */
    uint32_t asked;      /* questions without an answer, see tcp_lease.c */
    int64_t asked_first_ns, asked_ns; /* the first and the last of them */
    unsigned char hello[TCP_HELLO];   /* what the caller's carried */
    int watched;                      /* for room to write */
    int mute;                         /* nothing can be written any more */
    uint32_t sent, seen;              /* frames */

    /* out: bytes first, then the payload, which is not copied */
    size_t out_at, out_end;
    const unsigned char *payload;
    size_t payload_left;
    oar_transfer *paying; /* whose payload it is */

    /* in: bytes that have been read and not looked at, and the frame whose
     * payload is being read */
    size_t in_at, in_end;
    oari_frame now;
    int open; /* there is such a frame */
    int bulk; /* it was a large part: read heads alone */
    size_t left;
    unsigned char *target; /* NULL: drained */
    oari_inbound inbound;
    oar_transfer *take;
    unsigned char small[TCP_SEALED]; /* of a hello or a fault */
    unsigned char out[TCP_BUFFER], in[TCP_BUFFER];
} tcp_conn;

typedef struct tcp_peer {
    int64_t pid; /* where it is */
    char address[OARI_SOCK_TEXT];
    unsigned char token[TCP_TOKEN];  /* of its note */
    int apart;                       /* on another host, for all we know */
    oari_wire wire;                  /* what connections have to be */
    uint64_t calls;                  /* mine, counted */
    uint64_t newest, window;         /* of its: seen, see tcp_prove.c */
    tcp_conn *conn[TCP_SOCKETS_MAX]; /* over which I send */
    tcp_conn *theirs;                /* over which it sends; may be the same */
    int called;                      /* by me */
    int widened;                     /* its other sockets have been, too */
    int refused;                     /* attempts in a row */
    int shut;                        /* the same, of calls to tell something */
    int attempts;
    int64_t since_ns, again_ns; /* first attempt, next attempt */
    int64_t fading_ns;          /* a connection has ended: the others must, by
                                   then */
    int unsettled;              /* it has to be looked after */
    int farewell;               /* it has said goodbye */
    int vanished;               /* its host does not answer any more */
    int gone;                   /* OARI_PEER_DIED ... */
    oari_endpoint with;         /* messages */
    oari_transfer_list jobs;    /* sends whose data is being written */
    tcp_conn *over;             /* the socket that is being written */
    uint64_t says;              /* which fault, see tcp_fault.c; 0: none */
} tcp_peer;

/* What a connection calls its mesh for; nothing below tcp_mesh.c calls upward
 * in any other way. */
typedef struct tcp_handlers {
    /* Something may be there to be read. */
    oar_status (*readable)(tcp_mesh *m, tcp_conn *c);
    /* A peer has called after the group's end: it is told how that came. */
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
    tcp_peer *peer;  /* by rank */
    int *host;       /* by rank, as in backend.h */
    tcp_conn *conns; /* all */
    int open_conns;  /* of them */
    int strangers;   /* of those: they have not said hello */
    int unsettled;   /* peers that have to be looked after */
    int dead;        /* conns to be freed */
    unsigned polls;
    uint64_t set_asked, ask_ticks; /* when, and how soon again */
    oar_status failed;             /* what a call that cannot fail came to */
    oar_status ended;              /* aborted, and all transfers ended */
    unsigned char *sink;
    _Atomic int aborted; /* an oar_status */
    _Atomic int mine;    /* OARI_FAULT_*: my fault, to be told */
    _Atomic int heard;   /* of those that peers told, the one that counts,
                            from 1; 0: none */
    int hearsay;         /* how many they are */
    uint64_t told;       /* the driver's: which one the peers have been told */
    _Atomic int unanimous; /* all peers say what I say */
    _Atomic int concluded; /* OARI_FAULT_*: with which fault */
    oari_fault last_word;
    oari_fault my_fault, their_fault[TCP_FAULTS];
    unsigned char settled[TCP_FAULTS]; /* of those: a peer has ended with it */
    struct tcp_seat *council;          /* by rank; NULL: no notes so far */
    unsigned notes;                    /* of mine, how many */
    unsigned char note[OARI_BALLOT_BYTES]; /* the last of them */
};

/* Makes whoever sleeps on the mesh look again. Any thread. */
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
    const char *host;   /* who this host is, see host.c */
    oari_match *match;
} tcp_setup;

/* Copes with everything zero; descriptors must be -1: tcp_init sees to that. */
void tcp_init(tcp_mesh *m);
oar_status tcp_open(tcp_mesh *m, const tcp_setup *setup);
/* A mesh of one: nobody to find, no listener. */
oar_status tcp_open_alone(tcp_mesh *m, const tcp_setup *setup);
void tcp_close(tcp_mesh *m);

oar_status tcp_send(tcp_mesh *m, oar_transfer *t);
/* A receive has been posted: peers that it needs are connected to. */
void tcp_expect(tcp_mesh *m, const oar_transfer *t);
oar_status tcp_progress(tcp_mesh *m);
/* 1 if progress would find something; else epoll_fd tells when. */
int tcp_arm(tcp_mesh *m);
void tcp_abort(tcp_mesh *m, oar_status why);

/* ---- tcp_meet.c ---------------------------------------------------------- */

/* What a rank publishes, under prefix/tcp/rank. Fixed size, checked field by
 * field; the magic also tells the byte order. */
typedef struct tcp_note {
    uint32_t magic, protocol;
    int32_t rank, ranks;
    uint64_t page, context; /* rank 0's context is the group's */
    int64_t pid;
    char host[NATIVE_HOST];
    char address[OARI_SOCK_TEXT];
    unsigned char token[TCP_TOKEN];
    uint32_t wire;   /* oari_wire, of connections within a host */
    uint32_t proves; /* that it knows the job's secret */
    unsigned char key[OARI_SECRET_BYTES]; /* if not: rank 0's is the group's */
    unsigned char proof[OARI_MAC_BYTES];  /* of all before it, see proof.h */
} tcp_note;

/* Listens, publishes where, and learns the same of all others. */
oar_status tcp_meet(tcp_mesh *m, const tcp_setup *setup);

/* ---- tcp_call.c: making and ending connections --------------------------- */

/* Connects to the peer, unless there is a connection or it is gone. */
void tcp_want(tcp_mesh *m, int peer);
/* The same if it does not call by itself soon. */
void tcp_want_later(tcp_mesh *m, int peer);
/* The same for one socket; slot as in tcp_conn. NULL if that fails at once. */
tcp_conn *tcp_call(tcp_mesh *m, int peer, int slot);
/* Tries again where it is time to, and gives up where it is too late. */
void tcp_look_after(tcp_mesh *m);
/* Makes the other sockets of a pair, once. */
void tcp_widen(tcp_mesh *m, int peer);
void tcp_accept(tcp_mesh *m);
/* The socket can be written: is the connection made? */
void tcp_connected(tcp_mesh *m, tcp_conn *c);
/* Takes the steps before a connection can be read: is it TLS, and has that
 * shaken hands? 1 when it has; it is lost if it cannot. */
int tcp_secure(tcp_mesh *m, tcp_conn *c);
/* The other end has said hello: c->now and c->small. */
void tcp_greeted(tcp_mesh *m, tcp_conn *c);
/* The other end is gone, or has to go. */
void tcp_lose(tcp_mesh *m, tcp_conn *c);
/* The peer is gone. */
void tcp_drop(tcp_mesh *m, int peer);
/* Its host is. */
void tcp_vanish(tcp_mesh *m, int peer);
void tcp_reap(tcp_mesh *m);
/* Sends away strangers that are too late. */
void tcp_tidy_strangers(tcp_mesh *m);
void tcp_say_hello(tcp_mesh *m, tcp_conn *c);

/* ---- tcp_prove.c: who is a rank ------------------------------------------ */

/* What a hello of mine has to carry. */
oar_status tcp_prove(tcp_mesh *m, tcp_conn *c, const oari_frame *hello,
                     unsigned char raw[TCP_HELLO]);
/* How many ways there are to tell a stranger from a rank: one. c->now and
 * c->small are a hello. */
int tcp_admits(tcp_mesh *m, tcp_conn *c);
/* What is said behind the hello of a connection in TCP_FAULT_SLOT, by the one
 * that called: the payload of the next frame, or of c->now. Room for
 * OARI_SEAL_TAG more is behind it. */
oar_status tcp_seal(const tcp_mesh *m, const tcp_conn *c, unsigned char *raw,
                    size_t bytes);
oar_status tcp_unseal(const tcp_mesh *m, const tcp_conn *c, unsigned char *raw,
                      size_t bytes);
/* Begins TLS, as the one that calls or is called. */
oar_status tcp_encrypt(tcp_mesh *m, tcp_conn *c);
/* Sees whether a stranger begins TLS: 1; 0 if that cannot be told yet; -1 if it
 * has to go. */
int tcp_decide(tcp_mesh *m, tcp_conn *c);
/* One step of the handshake: 1 when it is done, 0 if not yet; -1 if the other
 * end has to go. */
int tcp_shake(tcp_mesh *m, tcp_conn *c);

/* ---- tcp_lease.c --------------------------------------------------------- */

/* Looks from time to time for hosts that do not answer any more. */
void tcp_look_at_leases(tcp_mesh *m);
/* The group ends: those that do not seem to answer are hung up on. Where only
 * one way is cut, that is all that still gets through. */
void tcp_end_doubtful(tcp_mesh *m);

/* ---- tcp_out.c ----------------------------------------------------------- */

/* Puts a frame and its small payload behind what is to be written; 0 if there
 * is no room for it now. */
int tcp_put(tcp_mesh *m, tcp_conn *c, oari_frame frame, const void *data);
/* Whether to be told of room to write. */
void tcp_watch_room(tcp_mesh *m, tcp_conn *c, int wanted);
/* 1: all is written; 0: no room, or broken. */
int tcp_flush(tcp_mesh *m, tcp_conn *c);
/* Writes what there is for the peer, as far as there is room. */
void tcp_pump(tcp_mesh *m, int peer);
enum oari_written tcp_write(oari_endpoint *e, oari_header *h, oar_transfer *t);
void tcp_credit(tcp_mesh *m, int peer);
void tcp_end_out(tcp_mesh *m, tcp_peer *p, oar_status why);

/* ---- tcp_in.c ------------------------------------------------------------ */

oar_status tcp_read(tcp_mesh *m, tcp_conn *c);
void tcp_end_in(tcp_mesh *m, oar_status why);
extern const oari_transport tcp_transport;

/* ---- tcp_fault.c --------------------------------------------------------- */

/* Any thread. */
void tcp_publish(tcp_mesh *m, const oari_fault *fault);
const oari_fault *tcp_published(const tcp_mesh *m);
/* This rank ends with that one. Once. */
void tcp_conclude(tcp_mesh *m, const oari_fault *fault);
/* The driver's: tells the peers, in bounded time. */
void tcp_tell(tcp_mesh *m);
void tcp_hear(tcp_mesh *m, tcp_conn *c);
/* The driver's: do all say the same now? */
void tcp_compare(tcp_mesh *m);
/* Whether a peer has ended with the fault that counts; then it is final. Any
 * thread. */
int tcp_settled(const tcp_mesh *m);
/* Tells it to one that calls when all is over. */
void tcp_tell_late(tcp_mesh *m, tcp_conn *c);

/* ---- tcp_presence.c ------------------------------------------------------ */

/* As in backend.h. */
int64_t tcp_pid(const tcp_mesh *m, int peer);
int64_t tcp_answered(const tcp_mesh *m, int peer);

/* ---- tcp_council.c: notes of comm/group/membership.h --------------------- */

void tcp_note_say(tcp_mesh *m, const void *note);
int tcp_note_of(const tcp_mesh *m, int peer, void *note);
void tcp_note_hear(tcp_mesh *m, tcp_conn *c);
/* Calls whoever has not heard my last one, and looks who cannot be. */
void tcp_note_spread(tcp_mesh *m);

#endif
