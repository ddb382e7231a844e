/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/rpc/rpc_agent.h: the parts of an agent, for the files of this
 * folder.
 *
 * One lock, agent->lock, guards everything here but what says otherwise. It is
 * never held while an operation is posted or a function of the program runs:
 * both may call back into the agent. An active message, which does not, is sent
 * with the lock. */
#ifndef OARI_PARALLEL_RPC_RPC_AGENT_H
#define OARI_PARALLEL_RPC_RPC_AGENT_H

#include <pthread.h>
#include <stdatomic.h>

#include <oarsong/p2p.h>
#include <oarsong/rpc.h>

#include "base/list.h"
#include "base/worker.h"
#include "parallel/rpc/rpc_holds.h"
#include "parallel/rpc/rpc_message.h"
#include "parallel/rpc/rpc_pool.h"

enum {
    OARI_RPC_AGENT_NAME = 64, /* bytes of a rank's name, with the zero */
    OARI_RPC_SLOTS = 16,      /* receives that are always posted, at most */
    OARI_RPC_BUCKETS = 256,   /* of the tables of calls and of references */
    OARI_RPC_NAME_BUCKETS = 64,
    OARI_RREF_KIND = 64 /* bytes of a kind, with the zero */
};

/* ---- between agents (rpc_link.c) ----------------------------------------- */

typedef struct oari_rpc_net oari_rpc_net;

/* A message on its way out. */
typedef struct oari_rpc_lent oari_rpc_lent; /* rpc_map.h */

typedef struct oari_rpc_out {
    oari_link link;
    oari_rpc_net *net; /* by which it goes, from when it is posted */
    int to;
    oar_rpc_message *message; /* what its arrays belong to; may be NULL */
    atomic_int parts_left;    /* sends that are not done */
    int apart;                /* the values go by themselves */
    oari_rpc_lent *lent;      /* what is mapped, not sent; or NULL */
    int mapped;               /* there is */
    size_t bytes;
    unsigned char byte[]; /* the head and what is behind it */
} oari_rpc_out;

/* A message on its way in, in the list of its peer from its head on. */
typedef struct oari_rpc_in {
    oari_link link;
    oari_rpc_net *net;
    int from;
    oari_rpc_head head;
    oar_rpc_message *message; /* NULL: there was no memory for it */
    atomic_int parts_left;    /* receives that are not done */
    oar_status status;        /* why it cannot be used */
    int skip;                 /* refused: only its number counts */
    int arriving;             /* into memory of the caller's, */
    int64_t deadline_ns;      /* until then */
} oari_rpc_in;

/* A posted receive. */
typedef struct oari_rpc_slot {
    oari_link link; /* in agent->ready */
    oari_rpc_net *net;
    oar_work *work;
    oar_message came;
    oar_status status;
    unsigned char *byte;
} oari_rpc_slot;

/* A loose group by which messages go: the one of all ranks that an agent is
 * made with, or one with a rank that has come back (rpc_rejoin.c). */
struct oari_rpc_net {
    oari_link link; /* in agent->nets */
    oar_rpc *agent;
    oar_group *group;
    int pair; /* the rank that it is shared with; -1: all of them */
    oari_rpc_slot slot[OARI_RPC_SLOTS];
    int slots, slots_posted;
    int parts;  /* sends and receives under way, besides the slots */
    int listed; /* in agent->nets */
    int left;   /* the rank that it is shared with is gone */
    int aborted, closing;
};

/* ---- another rank -------------------------------------------------------- */

typedef struct oari_rpc_limits {
    char name[OARI_RPC_AGENT_NAME];
    int64_t window_calls;
    uint64_t window_bytes, message_bytes, stream_bytes;
    int64_t lease_ms; /* below 0: for ever; 0: not known yet */
} oari_rpc_limits;

typedef struct oari_rpc_peer {
    oari_rpc_limits limits; /* what it takes */
    oari_rpc_net *net;      /* by which it is reached; NULL: this rank itself,
                               or it never was there */
    int life; /* how often it has come back: with lock and refs_lock, read with
                 either */
    int gone; /* 0, or an oar_gone */
    int leaving;             /* it has ended its calls */
    int calls_out, calls_in; /* unanswered: of this rank there, and the other
                                way */
    uint64_t bytes_out, bytes_in;
    /* out */
    oari_list outgoing;
    int maps;       /* 1: it can map windows of this rank */
    oari_list lent; /* to it */
    int sending;    /* a thread posts what is in the list */
    uint64_t sent;
    /* in, sorted by number */
    oari_list incoming;
    uint64_t expected;
    oari_link look; /* in agent->look */
    int looked_at;
    /* the last number of a value that this rank made there, and that it made
     * here; with refs_lock */
    uint64_t made_there, made_here, made_mask;
    /* leases (rpc_lease.c); with refs_lock */
    uint64_t heard;       /* messages of it; with lock */
    uint64_t lease_heard; /* as of the last tick: that, and sent */
    uint64_t lease_sent;
    int silent;      /* ticks without a message of it */
    int may_hold;    /* it was given a reference since its lease ended */
    int values;      /* of it that this rank holds */
    uint32_t lapses; /* its leases that this rank has ended, */
    uint32_t lapsed; /* and this rank's that it has */
} oari_rpc_peer;

/* ---- calls --------------------------------------------------------------- */

typedef struct oari_rpc_entry oari_rpc_entry;
typedef struct oari_rpc_stream oari_rpc_stream; /* rpc_stream.h */
typedef struct oari_rpc_into oari_rpc_into;     /* rpc_into.h */

/* Calls that run one after the other. */
typedef struct oari_rpc_strand {
    oari_list waiting;
    int busy;
} oari_rpc_strand;

/* A registered function. */
struct oari_rpc_entry {
    oari_link link;
    char name[OARI_RPC_NAME + 1];
    oar_rpc_fn fn;
    void *arg;
    oar_rpc_manner manner;
    unsigned char *callers; /* a byte for each rank; NULL: all may */
    size_t message_bytes;
    int users;  /* calls that wait or run */
    int closed; /* it is unregistered: the last of them tells */
    oari_rpc_strand strand;
    oar_rpc_times times; /* of calls that were answered */
};

/* TO_COME: another rank holds it already, but the call that makes it has not
 * come. PENDING: that call has not ended. */
typedef enum oari_rref_phase {
    OARI_RREF_TO_COME,
    OARI_RREF_PENDING,
    OARI_RREF_THERE,
    OARI_RREF_FAILED
} oari_rref_phase;

/* All this agent knows of a value: its own, or another rank's. One for each
 * (owner, id); a handle of the program is a pointer to it. In the table until
 * nobody needs it. Guarded by refs_lock, except the strand. */
struct oar_rref {
    oari_link link;
    oar_rpc *agent;
    int owner;
    uint64_t id;
    /* of this rank */
    oari_owned owned;
    char kind[OARI_RREF_KIND]; /* "": the reply of a call */
    void *value;
    void (*drop)(void *value);
    oar_rpc_message *message;
    oari_rref_phase phase;
    oari_rpc_strand strand; /* calls on it; with the agent's lock */
    /* of another rank */
    oari_held held;
    oar_broken_fn on_broken;
    void *on_broken_arg;
    int told_broken;
    int lapsed;         /* this rank's lease on it has ended */
    uint32_t lease;     /* by which this rank had it made */
    oar_error error;    /* why it is broken or has failed */
    oari_job job;       /* to drop it, or to run on_broken */
    uint32_t numbers[]; /* of owned and held */
};

struct oar_rpc_call {
    oari_link link;   /* in agent->serving */
    oari_link queued; /* in a strand */
    oari_job job;
    oar_rpc *agent;
    oari_rpc_entry *entry;
    int from, life;
    uint64_t number, bytes;
    int64_t deadline_ns, came_ns;
    int begun, children; /* children: pending calls that it has made */
    atomic_int cancelled;
    atomic_int uses;   /* the function, and the thread that keeps it */
    oar_status status; /* the first failure */
    oar_rpc_message *args, *reply;
    oar_rref *rref; /* what it is called on, with a handle; or NULL */
    int makes;      /* its reply becomes the value of rref */
    int parts;      /* of its reply that the caller takes ahead; 0: none */
    int parts_out;  /* for which it gave no credit */
    uint64_t part_bytes_out;
    oar_error error; /* status OAR_OK: none was set */
    char site[OARI_RPC_SITE + 1];
};

/* A function to run when a future is done. */
typedef struct oari_rpc_then {
    oari_link link;
    oari_job job;
    oar_future *future;
    oar_future_fn fn;
    void *arg;
} oari_rpc_then;

struct oar_future {
    oar_rpc *agent;
    int users; /* handles, the pending call, functions to run */
    atomic_int done;
    oar_status status;
    oar_rpc_message *reply;
    oari_rpc_stream *stream; /* NULL: the reply comes as one */
    oari_list then;
    struct oari_rpc_pending *pending; /* NULL once done */
    uint64_t record;                  /* its number in the recorder */
    oar_error error;                  /* if it has failed */
};

/* A call of this rank that is not answered. One that has timed out or was
 * cancelled stays until its answer comes, because it is in the window. */
typedef struct oari_rpc_pending {
    oari_link link;
    uint64_t number, bytes;
    int to, life;
    uint64_t record; /* its number in the recorder */
    int64_t deadline_ns, began_ns;
    oar_future *future;   /* NULL: nobody waits for it */
    oar_rpc_call *parent; /* the call that it was made from, or NULL */
    int inside;           /* made by a function */
    int cancel;           /* the other rank is to be told */
    oari_rpc_into *into;  /* where arrays of the reply go; NULL: anywhere */
    int arriving;         /* there, now */
    int parts, parts_out; /* of its reply: as in oar_rpc_call */
    uint64_t part_bytes_out;
    char name[OARI_RPC_NAME + 1];
    char site[OARI_RPC_SITE + 1];
} oari_rpc_pending;

struct oar_rpc {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a future is done, a window has room, ... */
    int rank, ranks;
    unsigned generation; /* of fork */
    oar_rpc_opts opts;
    oari_rpc_peer *peer;
    oari_rpc_pool *pool;
    oari_worker *timer;
    int64_t timer_ns; /* when it looks at deadlines next */
    int shutting;     /* oar_rpc_shutdown has begun */
    int closing;      /* oar_rpc_destroy has */
    int told_leaving;
    int draining; /* a thread waits until no calls are served */

    oari_list functions;
    oari_list serving; /* calls of others, until answered */
    oari_list pending[OARI_RPC_BUCKETS];
    /* what calls need, for the next ones: while it is kept, its first word
     * points to the next */
    void *spare_pending, *spare_future, *spare_call;
    int spares;
    uint64_t next_call;
    int calls_outside; /* pending calls that no function has made */
    int cancels;       /* pending calls with cancel set */
    int arriving;      /* pending calls that are */

    oari_rpc_net *net;   /* of all ranks; NULL: this one came back */
    oari_list nets;      /* all */
    atomic_int pairs;    /* of them with one rank each */
    atomic_int waits;    /* threads that drive the net of all ranks, waiting */
    atomic_uint changes; /* how often they were told */
    oari_list ready;     /* slots that have received */
    oari_list look;      /* peers of whom a message may be whole */
    int pumping;         /* a thread handles what came */
    int to_pump;         /* threads that wait to do so */

    /* taken alone or inside lock, never the other way */
    pthread_mutex_t refs_lock;
    oari_list refs[OARI_RPC_BUCKETS];
    oari_list notes; /* control messages to send */
    oari_list loans; /* of other ranks' windows; with a lock of rpc_map.c */
    oari_list kept;  /* windows of theirs; with lock */
    int kept_count;
    atomic_int has_notes;
    atomic_int leases; /* there may be some: the timer looks at them */
    int64_t lease_ns;  /* when next; the timer's */
    int sending_notes, refs_owned, refs_held;
    int refs_closed;                /* the pool takes no more jobs from here */
    struct oari_recorder *recorder; /* of the calls of this rank */
    uint64_t records;
    struct oari_rpc_rejoin *rejoin; /* NULL: no rank comes back */
    oar_rpc_stats stats;
    oari_list made[OARI_RPC_NAME_BUCKETS]; /* calls of this rank, by name */
    int made_names;
    oar_rpc_times all_made;
};

/* The call whose function runs on this thread; NULL: none. */
extern _Thread_local oar_rpc_call *oari_rpc_current;
/* Whether this thread handles messages, and so must not wait for one. */
extern _Thread_local int oari_rpc_pumping;

/* OAR_E_ARG for NULL, OAR_E_STATE in a child made by fork. */
oar_status oari_rpc_check(const oar_rpc *agent, const char *call);

/* Fills in the name and the limits of this rank, from its options. */
void oari_rpc_set_limits(oar_rpc *agent, const char *name);

/* Returns how many bytes a message to a rank may have. A rank that comes back
 * may say another number. Without the lock. */
uint64_t oari_rpc_message_limit(oar_rpc *agent, int rank);

/* The time timeout_ms from now; OARI_NEVER for a negative timeout. */
static inline int64_t oari_rpc_deadline(int64_t timeout_ms, int64_t now_ns)
{
    return timeout_ms < 0 || timeout_ms > (INT64_MAX - now_ns) / 1000000
               ? INT64_MAX
               : now_ns + timeout_ms * 1000000;
}

/* The milliseconds from now to a deadline, rounded up; below 0: no end. */
static inline int64_t oari_rpc_left_ms(int64_t deadline_ns, int64_t now_ns)
{
    if (deadline_ns == INT64_MAX)
        return -1;
    return deadline_ns > now_ns ? (deadline_ns - now_ns + 999999) / 1000000 : 0;
}

/* rpc_link.c */
/* Makes a net of a loose duplicate of the group, that is not used yet. */
oar_status oari_rpc_net_open(oar_rpc *agent, oar_group *parent, int pair,
                             oari_rpc_net **net);
/* Lets messages come. */
oar_status oari_rpc_net_start(oari_rpc_net *net);
/* Ends it, and frees it; needs no other rank. */
void oari_rpc_net_close(oari_rpc_net *net);
/* Ends what is sent and received by all nets, and waits until no reply is
 * arriving; with the lock. */
void oari_rpc_abort_nets(oar_rpc *agent);
/* A send or receive is done; no use of net may follow on this thread. */
void oari_rpc_end_part(oari_rpc_net *net);
/* Posts its receives. */
void oari_rpc_start_slots(oari_rpc_net *net);
/* Frees what came of a rank and was not handled. */
void oari_rpc_drop_incoming(oari_rpc_peer *peer);
/* Handles what has come, unless a thread is at it: that one goes on until there
 * is nothing. */
void oari_rpc_pump(oar_rpc *agent);
/* Gets an active message; arg is the net. */
void oari_rpc_take_active(void *arg, int from, const unsigned char *data,
                          size_t bytes);
/* The rank of a peer in the net's group, and the other way. */
int oari_rpc_rank_in(const oari_rpc_net *net, int rank);
int oari_rpc_rank_of(const oari_rpc_net *net, int rank_there);
/* The tag of what follows the head of a message. */
int64_t oari_rpc_tag_of(uint64_t sequence);

/* rpc_rejoin.c: ranks that come back. All of it does nothing without a name to
 * come back under. */
oar_status oari_rpc_rejoin_open(oar_rpc *agent);
/* Tells those that come back of this rank, and of the group's backend. */
oar_status oari_rpc_rejoin_tell(oar_rpc *agent, const char *backend);
/* Looks for ranks that are gone from now on. */
oar_status oari_rpc_rejoin_start(oar_rpc *agent);
/* Finds the agents that this rank comes back to: its size, life and name. */
oar_status oari_rpc_come_back(oar_rpc *agent, int rank);
/* Meets all that are there; blocks until then. */
oar_status oari_rpc_meet_all(oar_rpc *agent);
/* The name that ranks come back under. */
const char *oari_rpc_rejoin_name(const oar_rpc *agent);
/* Looks for no more. */
void oari_rpc_rejoin_close(oar_rpc *agent);
/* Looks for ranks that are gone now; with the lock. */
void oari_rpc_await_arrivals(oar_rpc *agent);
/* Lets a rank that has come back be called; with the lock, by the thread that
 * pumps. Returns 0 if there is none. */
int oari_rpc_take_arrival(oar_rpc *agent);

/* rpc_record.c: calls in the flight recorder. world: the ranks in the world, by
 * rank; NULL: this is the world. The others with the lock, but
 * oari_rpc_record_wait. */
oar_status oari_rpc_record_open(oar_rpc *agent, const char *name,
                                const int *world);
void oari_rpc_record_close(oar_rpc *agent);
/* awaited: the caller waits for the answer at once. */
void oari_rpc_record_begin(oar_rpc *agent, oari_rpc_pending *p,
                           const char *file, int line, int awaited);
void oari_rpc_record_wait(oar_rpc *agent, const oar_future *future, int waits);
void oari_rpc_record_end(oar_rpc *agent, const oari_rpc_pending *p, int failed);

/* rpc_send.c */
/* Sends a message; takes message (may be NULL). Its head's number, sizes and
 * flags for them are filled in here. OAR_E_NOMEM: nothing is sent. */
oar_status oari_rpc_send(oar_rpc *agent, int to, oari_rpc_head *head,
                         oar_rpc_message *message);
/* Sends a small message at once, as an active one: 1. Returns 0 if that cannot
 * be done now. Borrows message (may be NULL). With the lock. */
int oari_rpc_push(oar_rpc *agent, int to, oari_rpc_head *head,
                  const oar_rpc_message *message);
/* Makes progress for a thread that waits without sleeping. */
void oari_rpc_drive(oar_rpc *agent);
/* Waits on agent->changed, with the lock held; 0 after the deadline. */
int oari_rpc_wait_change(oar_rpc *agent, int64_t deadline_ns);
/* The same for a thread that drives meanwhile. */
int oari_rpc_drive_change(oar_rpc *agent, int64_t deadline_ns);
/* Blocks until is_done(arg), driving; or the deadline: 0. Whatever makes it so
 * calls oari_rpc_tell. Without the lock. */
int oari_rpc_wait(oar_rpc *agent, int (*is_done)(void *arg), void *arg,
                  int64_t deadline_ns);
/* Wakes all threads that wait; with the lock. */
void oari_rpc_tell(oar_rpc *agent);

/* rpc_serve.c: messages as they come, in order. A call: with the lock, which is
 * released while its function runs or an answer is sent. */
void oari_rpc_take_call(oar_rpc *agent, int from, const oari_rpc_head *head,
                        oar_rpc_message *args, oar_status status);
/* Without the lock. */
void oari_rpc_take_cancel(oar_rpc *agent, int from, uint64_t number);
/* Whether the head of a call fits the window of its sender; with the lock. */
int oari_rpc_call_fits(const oar_rpc *agent, int from,
                       const oari_rpc_head *head);
/* Finds a call that is served, or NULL; with the lock. */
oar_rpc_call *oari_rpc_find_serving(oar_rpc *agent, int from, uint64_t number);
/* Cancels the calls of a rank (-1: any) that are served; with the lock. */
void oari_rpc_cancel_serving(oar_rpc *agent, int from);

/* rpc_function.c */
oar_status oari_rpc_add_function(oar_rpc *agent,
                                 const oar_rpc_function *function);
void oari_rpc_free_functions(oar_rpc *agent);
/* Finds a function, or NULL; with the lock. */
oari_rpc_entry *oari_rpc_find_function(const oar_rpc *agent, const char *name);
/* Returns the name that is nearest, or NULL; with the lock. */
const char *oari_rpc_find_nearest(const oar_rpc *agent, const char *name);

/* rpc_pending.c */
/* Put a call into the table and its window; take it out, and free it; end its
 * future; take its answer: with the lock. After the two in the middle the
 * caller tells those that wait (oari_rpc_tell). */
void oari_rpc_add_pending(oar_rpc *agent, oari_rpc_pending *pending);
void oari_rpc_remove_pending(oar_rpc *agent, oari_rpc_pending *pending);
void oari_rpc_finish(oari_rpc_pending *pending, const oar_error *error,
                     oar_rpc_message *reply);
void oari_rpc_take_answer(oar_rpc *agent, int from, uint64_t number, int failed,
                          oar_rpc_message *reply, oar_status status);
oari_rpc_pending *oari_rpc_find_pending(oar_rpc *agent, uint64_t number);
/* Ends calls to a rank (-1: any) with an error; with the lock. The caller tells
 * those that wait. */
void oari_rpc_fail_calls(oar_rpc *agent, int to, const oar_error *error);
/* A call that no one wants any more: ends its future, and marks it so that
 * oari_rpc_send_cancels, without the lock, tells the other rank; with the lock.
 */
void oari_rpc_give_up(oari_rpc_pending *pending, const oar_error *error);
void oari_rpc_send_cancels(oar_rpc *agent);
/* Gives up the calls that a call has made; with the lock. */
void oari_rpc_cancel_children(oar_rpc *agent, oar_rpc_call *parent);
/* The same, but they go on; the parent ends. */
void oari_rpc_leave_children(oar_rpc *agent, oar_rpc_call *parent);
/* Makes sure that the timer looks at a deadline; with the lock. */
void oari_rpc_watch_deadline(oar_rpc *agent, int64_t deadline_ns);
/* The step of the timer. */
int64_t oari_rpc_check_deadlines(void *agent);

/* rpc_pending.c: memory of that many bytes, of a list of spares or fresh, not
 * cleared (NULL: none); and back. With the lock. */
void *oari_rpc_take_spare(oar_rpc *agent, void **list, size_t bytes);
void oari_rpc_keep_spare(oar_rpc *agent, void **list, void *spare);
void oari_rpc_free_spares(oar_rpc *agent);

/* rpc_future.c, with the lock. error NULL: it has succeeded. Takes reply. The
 * caller tells those that wait. */
void oari_future_finish(oar_future *future, const oar_error *error,
                        oar_rpc_message *reply);
void oari_future_drop(oar_future *future);
/* Blocks until one of the futures is done or has a part; without the lock. */
oar_status oari_future_await(oar_rpc *agent, int count,
                             oar_future *const *future, int *index);
/* Blocks until the only handle's call is done, gives its reply, and releases
 * it; without the lock. */
oar_status oari_future_end(oar_future *future, oar_rpc_message **reply);
/* Cancels one; waits only while its reply arrives in the caller's memory. */
void oari_future_abandon(oar_future *future);
/* Returns the status of one that is done, with its error as the thread's. */
oar_status oari_future_result(const oar_future *future);

/* rpc_error.c: an error as a message and back. */
oar_status oari_rpc_error_put(oar_rpc_message *message, const oar_error *error);
oar_status oari_rpc_error_get(oar_rpc_message *message, oar_error *error);

/* rpc_ref.c */
/* Counts the references of a message that goes to a rank; with the lock. */
void oari_rref_send_all(oar_rpc *agent, int to, const oar_rpc_message *message);
/* Gives a message that came its references. OAR_E_DATA: one is impossible. */
oar_status oari_rref_receive_all(oar_rpc *agent, int from,
                                 oar_rpc_message *message);
/* OAR_E_ARG if a reference in the message is of another agent. */
oar_status oari_rref_check_all(const oar_rpc *agent,
                               const oar_rpc_message *message);
/* A control message came. */
void oari_rref_take_note(oar_rpc *agent, int from, const oari_rpc_head *head);
/* Sends control messages that wait; without the lock. */
void oari_rref_send_notes(oar_rpc *agent);
/* A rank is gone; with the lock. */
void oari_rref_rank_gone(oar_rpc *agent, int rank, const oar_error *error);
void oari_rref_free_all(oar_rpc *agent);
/* Finds the value that a call from a rank is on, or makes it, and adds a handle
 * for the call; with the lock. */
oar_status oari_rref_find_for(oar_rpc *agent, int from,
                              const oari_rpc_head *head, oar_rref **rref);
/* Gives a reference to the value that a call to that rank will make. */
oar_status oari_rref_promise(oar_rpc *agent, int owner, oar_rref **rref);
/* The same, when that call could not be made; drops the handle. */
void oari_rref_unpromise(oar_rref *rref);
/* The lease of a rank ends; with the lock. */
void oari_rref_lapse(oar_rpc *agent, int rank);
/* Has on_broken run if it is time; with refs_lock. */
void oari_rref_tell_broken(oar_rref *rref);
/* The call that makes a value has ended; takes message. */
void oari_rref_settle(oar_rref *rref, oar_rpc_message *message,
                      const oar_error *error);

/* rpc_lease.c: a step of the timer. Returns when to look again. */
int64_t oari_rpc_check_leases(oar_rpc *agent, int64_t now_ns);
/* A rank was given a reference, or waits for one to be confirmed; this rank
 * holds one. With refs_lock. */
void oari_rpc_lease_given(oar_rpc *agent, int rank);
void oari_rpc_lease_taken(oar_rpc *agent);

/* The function "oar.fetch", rpc_ref_call.c. */
oar_status oari_rref_give_value(void *arg, oar_rpc_call *call);

/* rpc_serve.c: lets the calls on a value run whose own call never came; with
 * the lock. */
void oari_rpc_release_strand(oar_rpc *agent, oari_rpc_strand *strand);

/* rpc_call.c: a call, perhaps on a reference (id not 0). */
typedef struct oari_rpc_on {
    uint64_t id;
    unsigned flags;
    uint32_t lease; /* of a value that it makes */
} oari_rpc_on;
oar_status oari_rpc_begin(const char *file, int line, oar_rpc *rpc, int to,
                          const char *name, oar_rpc_message *args,
                          const oar_rpc_call_opts *opts, oari_rpc_on on,
                          oar_future **future);

#endif
