/* SPDX-License-Identifier: Apache-2.0 */
/* rpc.h: call functions of other ranks by their names.
 *
 *     oar_rpc_create(world, NULL, &rpc);                     on every rank
 *     oar_rpc_register(rpc, OAR_OPTS(oar_rpc_function, .name = "add",
 *                                    .fn = add));
 *     oar_barrier(world, NULL, NULL);                        all have it
 *     oar_rpc_message_create(&args);
 *     oar_rpc_put_i64(args, 2);
 *     oar_rpc_put_i64(args, 3);
 *     oar_rpc_sync(rpc, 1, "add", args, NULL, &reply);       on any thread
 *     oar_rpc_get_i64(reply, &sum);
 *
 * No code travels: only names of functions that the other rank has registered.
 * A function runs at most once for a call. OAR_OK says that it has run and that
 * this is its reply. After OAR_E_TIMEOUT, OAR_E_PEER or OAR_E_CANCELLED it may
 * have run or not. A failure of the function itself is given as it was there:
 * status, sentence, rank, host, process, file and line (oar_last_error), with
 * the name of the function as the operation.
 *
 * A rank that dies fails the calls to it with OAR_E_PEER; the agents of the
 * others go on. No thread has to wait for calls: they are served by the
 * library's own.
 *
 * Threads: any thread may call these functions, also from inside a function
 * that is being called; one message is used by one thread at a time. A child
 * made by fork has no agent (OAR_E_STATE). */
#ifndef OARSONG_RPC_H
#define OARSONG_RPC_H

#include <oarsong/group.h>
#include <oarsong/tensor.h>
#include <oarsong/window.h>

OAR_BEGIN_DECLS

typedef struct oar_rpc oar_rpc;           /* one rank's side: an agent */
typedef struct oar_rpc_call oar_rpc_call; /* a call, as its function sees it */
typedef struct oar_future oar_future;     /* a call, as its caller sees it */
typedef struct oar_rref oar_rref;         /* a value that one rank owns */
typedef struct oar_rpc_message oar_rpc_message;

/* ---- what a function is ------------------------------------------------- */

/* Reads its arguments, fills its reply, and returns OAR_OK; or a failure, which
 * is the caller's with the thread's last error, or what oar_rpc_fail said. */
typedef oar_status (*oar_rpc_fn)(void *arg, oar_rpc_call *call);

typedef enum oar_rpc_manner {
    OAR_RPC_POOL = 0,   /* by any thread of the pool, several at once */
    OAR_RPC_SERIAL = 1, /* by the pool, one at a time, in the order they came */
    OAR_RPC_INLINE = 2  /* by the thread that reads the message, in the order
                           they came: quickest. Must not wait for a call
                           (OAR_E_STATE), and others wait while it runs */
} oar_rpc_manner;

typedef struct oar_rpc_function {
    size_t size;
    const char *name; /* 1 to 200 bytes, not beginning with "oar." */
    oar_rpc_fn fn;
    void *arg;
    oar_rpc_manner manner;
    const char *callers;  /* ranks that may call it, "0,4-7"; NULL: all. Others
                             get OAR_E_AUTH */
    size_t message_bytes; /* of its arguments; 0: the agent's */
} oar_rpc_function;
OAR_OPTS_INIT(oar_rpc_function);

/* ---- agents -------------------------------------------------------------- */

typedef struct oar_rpc_opts {
    size_t size;
    const char *name;     /* of this rank, unique in the group, at most 63
                             bytes; NULL: "rank3" */
    int threads;          /* that run functions; 0: as many as cores, at most 4
                             and at least 2 */
    int most_threads;     /* with those that take the place of threads which
                             wait for a call inside a function; 0: 64 */
    int64_t timeout_ms;   /* of a call that says nothing else; 0: 60 s, below 0:
                             none */
    int window_calls;     /* calls of one rank that may be unanswered here; 0:
                             256 */
    size_t window_bytes;  /* and bytes of their arguments; a larger one goes
                             when there is no other; 0: 64 MiB */
    size_t message_bytes; /* of one message to here, at most: others are refused
                             before they are sent, and before memory is taken
                             here; 0: 1 GiB */
    size_t stream_bytes;  /* of the parts of one reply that are here and not
                             taken, before the last of them; 0: 16 MiB */
    const oar_rpc_function *functions; /* that others can call from the
                                          beginning, as by oar_rpc_register */
    int function_count;
    const char *rejoin; /* a name of at most 63 bytes, alike on all ranks and
                           given to no other agents of the job: a rank that was
                           started again comes back under it (oar_rpc_rejoin).
                           NULL: none can */
    oar_store *store;   /* through which it does, borrowed until the agent is
                           destroyed; NULL: oar_store_from_env */
    int64_t lease_ms;   /* when this rank has heard nothing from another one for
                           that time (it is stopped, or cut off), the values
                           that the other one holds here are released; at
                           least 100; 0: 30 s, below 0: never */
} oar_rpc_opts;
OAR_OPTS_INIT(oar_rpc_opts);

/* Gives this rank's agent. All ranks of the group call it, in the same order
 * among the group's collectives; it blocks until they have. It makes a loose
 * group of these ranks for itself (group.h), and does not need the one given
 * afterwards. OAR_E_ARG, on all ranks, if two have the same name;
 * OAR_E_UNSUPPORTED where there are no loose groups (backends of others). */
#define oar_rpc_create(group, opts, rpc) \
    oar_rpc_create_at(OAR_HERE, group, opts, rpc)
OAR_API oar_status oar_rpc_create_at(const char *file, int line,
                                     oar_group *group, const oar_rpc_opts *opts,
                                     oar_rpc **rpc);

/* Gives a rank whose process was started again (`oarsong run --respawn`) an
 * agent among those of the ranks that live, which its predecessor was one of;
 * opts has the same rejoin and store as theirs, and the name, if any, that this
 * rank had. rank below 0: OARSONG_RANK. Blocks until the ranks that live have
 * met it (at most the timeout of opts), each in a group of two; from then on
 * they find it by its name, and calls to it succeed. Calls that its predecessor
 * made or was to answer, values that it owned and what it held stay gone: their
 * references are broken. OAR_E_NOT_FOUND: no agents of that name;
 * OAR_E_TIMEOUT: no other rank is there. A rank comes back at most 255 times.
 */
OAR_API oar_status oar_rpc_rejoin(int rank, const oar_rpc_opts *opts,
                                  oar_rpc **rpc);

/* Returns how often a rank has come back; -1 while it is gone. */
OAR_API int oar_rpc_incarnation(const oar_rpc *rpc, int rank);

/* Blocks until a rank that is gone has come back; at once if it is there.
 * OAR_E_TIMEOUT after timeout_ms (0: the agent's, below 0: none). */
OAR_API oar_status oar_rpc_await(oar_rpc *rpc, int rank, int64_t timeout_ms);

/* Every rank that still lives calls it: waits for the calls of this rank, and
 * then until all others have come as far or are gone. Until then calls of other
 * ranks are served; calls of this rank are OAR_E_STATE, except those made by
 * functions. OAR_E_TIMEOUT after timeout_ms (0: the agent's, below 0: none)
 * names the ranks that have not come, and what they still do; it can be called
 * again. The agent is then only good for oar_rpc_destroy. Not from inside a
 * function: OAR_E_STATE. */
OAR_API oar_status oar_rpc_shutdown(oar_rpc *rpc, int64_t timeout_ms);

/* Ends the agent here and now, and frees it; needs no other rank, to which this
 * one has then left. Calls that are not done fail with OAR_E_ABORTED. Waits for
 * functions that run here, which see oar_rpc_cancelled. Every future has been
 * released before. NULL is fine. Not from inside a function. */
OAR_API void oar_rpc_destroy(oar_rpc *rpc);

/* Returns the rank with that name; -1: none. */
OAR_API int oar_rpc_find(const oar_rpc *rpc, const char *name);
/* Returns the name of a rank, borrowed from the agent; "" if there is none. */
OAR_API const char *oar_rpc_name(const oar_rpc *rpc, int rank);
OAR_API int oar_rpc_rank(const oar_rpc *rpc); /* -1 for NULL */
OAR_API int oar_rpc_size(const oar_rpc *rpc); /* 0 for NULL */

/* What the agent has done. */
typedef struct oar_rpc_stats {
    size_t size;
    uint64_t calls;     /* made by this rank */
    uint64_t failed;    /* of them, for whatever reason */
    uint64_t timed_out; /* of them */
    uint64_t cancelled; /* of them */
    uint64_t served;    /* functions run here */
    uint64_t bytes_out; /* of messages, to other ranks */
    uint64_t bytes_in;
    uint64_t refused; /* messages from other ranks that were malformed, too
                           large, out of turn, or more than allowed */
    int pending;      /* calls of this rank that are not answered */
    int queued;       /* calls that wait here for a thread */
    int running;      /* functions */
    int threads;      /* now */
    int most_threads; /* there have been */
    int ranks_gone;
    int values_owned;   /* that references stand for */
    int values_held;    /* of other ranks */
    uint64_t parts_out; /* of replies: sent, and received */
    uint64_t parts_in;
} oar_rpc_stats;
OAR_OPTS_INIT(oar_rpc_stats);
OAR_API oar_status oar_rpc_read_stats(const oar_rpc *rpc, oar_rpc_stats *stats);

/* How long calls of one function have taken. Times are counted in buckets, four
 * to each doubling: p50 and p99 are the ends of theirs, at most 25 % too long,
 * and never more than the longest. Times beyond the last bucket are in it. */
enum { OAR_RPC_BUCKETS = 128 };
typedef enum oar_rpc_side {
    OAR_RPC_MADE = 0,  /* by this rank: from the call until its answer is here,
                          or it is given up */
    OAR_RPC_SERVED = 1 /* here: from when it came until its answer goes, with
                          the time for which it waited for a thread */
} oar_rpc_side;
typedef struct oar_rpc_times {
    size_t size;
    uint64_t count;                 /* calls that have ended */
    uint64_t errors;                /* of them, those that failed */
    int64_t p50_ns, p99_ns, max_ns; /* 0: there was none */
    uint64_t bucket[OAR_RPC_BUCKETS];
} oar_rpc_times;
OAR_OPTS_INIT(oar_rpc_times);
/* Gives them; name NULL: of all functions together. OAR_E_NOT_FOUND: none of
 * that name was called, or is registered. After 1024 names, further ones that
 * this rank calls are only counted together. */
OAR_API oar_status oar_rpc_read_times(const oar_rpc *rpc, oar_rpc_side side,
                                      const char *name, oar_rpc_times *times);
/* Returns the time at which a bucket ends, which is in the next; 0 if there is
 * none of that number. */
OAR_API int64_t oar_rpc_bucket_ns(int bucket);

/* ---- functions ----------------------------------------------------------- */

/* Lets other ranks call a function. Copies the texts. OAR_E_STATE if the name
 * is taken. A call that comes before is OAR_E_NOT_FOUND: let all ranks register
 * before the first calls, by a barrier. */
OAR_API oar_status oar_rpc_register(oar_rpc *rpc,
                                    const oar_rpc_function *function);

/* Blocks until no call of the function runs or waits here. Later calls are
 * OAR_E_NOT_FOUND. OAR_E_NOT_FOUND if there is none of that name. Not from
 * inside a function: OAR_E_STATE. */
OAR_API oar_status oar_rpc_unregister(oar_rpc *rpc, const char *name);

/* Inside a function. The messages are borrowed until it returns. */
OAR_API oar_rpc_message *oar_rpc_args(oar_rpc_call *call);
OAR_API oar_rpc_message *oar_rpc_reply(oar_rpc_call *call);
OAR_API oar_rpc *oar_rpc_of(const oar_rpc_call *call);
OAR_API int oar_rpc_caller(const oar_rpc_call *call);       /* its rank */
OAR_API const char *oar_rpc_site(const oar_rpc_call *call); /* its file:line */
/* Returns the milliseconds left to the caller's deadline; below 0: none. */
OAR_API int64_t oar_rpc_left_ms(const oar_rpc_call *call);
/* Returns whether nobody wants the reply any more: the caller has given up or
 * is gone, or this agent ends. */
OAR_API int oar_rpc_cancelled(const oar_rpc_call *call);

/* Inside a function: the call is answered later, by oar_rpc_answer, which is
 * called once, from any thread, perhaps before the function returns OAR_OK. The
 * call and its messages stay until then, and it counts as running; an agent is
 * not destroyed before. OAR_E_STATE outside of the call's function, or twice.
 */
OAR_API oar_status oar_rpc_keep(oar_rpc_call *call);
/* Answers a call that is kept: with its reply, or with a failure (that of
 * oar_rpc_fail, or the thread's last error). NULL is fine. */
OAR_API void oar_rpc_answer(oar_rpc_call *call, oar_status status);

/* Sends one part of a reply that comes in parts; the rest is the reply. Takes
 * part, also on failure. Blocks while the caller has as many parts that it has
 * not taken as it asked for (oar_rpc_call_opts), or as many bytes (stream_bytes
 * of its agent). In the call's function, or by any thread while the call is
 * kept. OAR_E_CANCELLED: the caller has given up, or is gone; OAR_E_TIMEOUT:
 * the call's time is over; OAR_E_STATE: it asked for no parts, or an inline
 * function would wait; OAR_E_SIZE: it takes no such message. */
OAR_API oar_status oar_rpc_send_part(oar_rpc_call *call, oar_rpc_message *part);

/* Sets the failure of the call, with the line of this call as its site, and
 * returns status: return oar_rpc_fail(call, OAR_E_ARG, "no such key"). */
#define oar_rpc_fail(call, status, text) \
    oar_rpc_fail_at(OAR_HERE, call, status, text)
OAR_API oar_status oar_rpc_fail_at(const char *file, int line,
                                   oar_rpc_call *call, oar_status status,
                                   const char *text);

/* ---- calling ------------------------------------------------------------- */

typedef struct oar_rpc_call_opts {
    size_t size;
    int64_t timeout_ms; /* 0: the agent's, below 0: none; but inside a function
                           no more than its own call has left */
    int no_wait;        /* 1: OAR_E_BUSY instead of waiting while too much is
                           unanswered there */
    int detached;       /* 1: inside a function: not cancelled and not out of
                           time with the call it is made from */
    int parts;          /* above 0: the reply comes in parts (oar_future_next),
                           of which so many may be here and not taken, at most
                           65536 */
    int into_count;     /* the first arrays of the reply go straight into memory
                           of the caller, without a copy of large ones: */
    const oar_span *into;            /* there, in order; or */
    oar_tensor *const *into_tensors; /* there, with the same shapes. The memory
                           is the call's until it is done, also if its future
                           is released: wait for it. What does not fit is
                           OAR_E_SIZE, OAR_E_DTYPE or OAR_E_SHAPE; then, and
                           after any other failure, what is in the memory is
                           undefined. A reply that is arriving there is not
                           cancelled any more */
} oar_rpc_call_opts;
OAR_OPTS_INIT(oar_rpc_call_opts);

/* Calls a function of rank `to`, which may be this one. Takes args (NULL:
 * none), also on failure. Blocks until the reply is there, and gives it; reply
 * may be NULL. OAR_E_NOT_FOUND names the function and the nearest that there
 * is; OAR_E_SIZE: more than that rank takes; OAR_E_BUSY: inside a function, and
 * as many threads wait as may. */
#define oar_rpc_sync(rpc, to, name, args, opts, reply) \
    oar_rpc_sync_at(OAR_HERE, rpc, to, name, args, opts, reply)
OAR_API oar_status oar_rpc_sync_at(const char *file, int line, oar_rpc *rpc,
                                   int to, const char *name,
                                   oar_rpc_message *args,
                                   const oar_rpc_call_opts *opts,
                                   oar_rpc_message **reply);

/* The same without waiting for the reply: gives a future. Blocks only while too
 * much is unanswered there (oar_rpc_opts), until the timeout. future NULL: the
 * call goes on by itself, and its reply is dropped. */
#define oar_rpc_async(rpc, to, name, args, opts, future) \
    oar_rpc_async_at(OAR_HERE, rpc, to, name, args, opts, future)
OAR_API oar_status oar_rpc_async_at(const char *file, int line, oar_rpc *rpc,
                                    int to, const char *name,
                                    oar_rpc_message *args,
                                    const oar_rpc_call_opts *opts,
                                    oar_future **future);

/* Blocks until the call is done and returns its status, every time. The first
 * that asks for the reply is given it (reply may be NULL); later ones get NULL.
 * OAR_E_STATE for a reply in parts of which some are to come. */
OAR_API oar_status oar_future_wait(oar_future *future, oar_rpc_message **reply);

/* Blocks until the next part of a reply in parts is there, and gives it, in the
 * order in which they were sent; NULL after the last, when oar_future_wait
 * gives the reply itself. A failure of the call comes after the parts that came
 * before it, except that a call which is out of time or cancelled gives no
 * more. One thread at a time: OAR_E_STATE; so for a call without parts. */
OAR_API oar_status oar_future_next(oar_future *future, oar_rpc_message **part);

/* Says in *done whether the call is done; if so, returns its status. */
OAR_API oar_status oar_future_test(oar_future *future, int *done);

/* Blocks until one of them is done, or has a part that is not taken, says which
 * in *index and returns its status (OAR_OK: a part). NULL futures are skipped;
 * *index is -1 if all are. All are of one agent. */
OAR_API oar_status oar_future_wait_any(int count, oar_future *const *future,
                                       int *index);

/* Runs fn(arg, future, status) once when the call is done, or soon if it is, on
 * a thread of the pool; several may be added. The future is borrowed for the
 * time of fn. */
typedef void (*oar_future_fn)(void *arg, oar_future *future, oar_status status);
OAR_API oar_status oar_future_then(oar_future *future, oar_future_fn fn,
                                   void *arg);

/* Gives the call up: it is done with OAR_E_CANCELLED, unless it is done
 * already. Its function does not run if it has not begun, and is told if it has
 * (oar_rpc_cancelled); so are the calls that it has made. Never blocks. */
OAR_API oar_status oar_future_cancel(oar_future *future);

/* Gives up the caller's handle. Legal before the call is done: it goes on, but
 * one whose reply comes in parts is cancelled. NULL is fine. */
OAR_API void oar_future_release(oar_future *future);

/* ---- references ---------------------------------------------------------- */

/* A reference stands for a value that one rank owns. It can be put into
 * messages to any rank; the owner knows which ranks hold it, and drops the
 * value when none does any more, or those that did have died or were not heard
 * of for a while (oar_rpc_opts.lease_ms; a rank that runs is: docs/rpc.md). The
 * references of such a rank are broken when it goes on (OAR_E_NOT_FOUND).
 * Circles of references between ranks are not found. Every handle is released
 * once, before its agent is destroyed. */

/* Gives a reference to a value of this rank. drop(value) runs on a thread of
 * the pool when no rank holds it any more, at the latest when the agent is
 * destroyed; it may be NULL. kind (1 to 63 bytes) is what oar_rref_local must
 * repeat: a reference is no way to reach anything but what it was made for. */
OAR_API oar_status oar_rref_create(oar_rpc *rpc, const char *kind, void *value,
                                   void (*drop)(void *value), oar_rref **rref);

OAR_API oar_rref *oar_rref_retain(oar_rref *rref); /* one more handle */
OAR_API void oar_rref_release(oar_rref *rref);     /* NULL is fine */
OAR_API int oar_rref_owner(const oar_rref *rref);  /* -1 for NULL */
/* Returns its number among those of its owner; 0 for NULL. */
OAR_API uint64_t oar_rref_id(const oar_rref *rref);

/* On the owner: gives the value that oar_rref_create was given, borrowed while
 * the reference is held. OAR_E_RANK on other ranks, OAR_E_ARG for another kind
 * or for the reply of a call (oar_rpc_remote). */
OAR_API oar_status oar_rref_local(const oar_rref *rref, const char *kind,
                                  void **value);

/* Like oar_rpc_async, but the reply stays with that rank, and a reference to it
 * is given at once, before the function has run. A failure of the function is
 * that of every later use of the reference. */
#define oar_rpc_remote(rpc, to, name, args, opts, rref) \
    oar_rpc_remote_at(OAR_HERE, rpc, to, name, args, opts, rref)
OAR_API oar_status oar_rpc_remote_at(const char *file, int line, oar_rpc *rpc,
                                     int to, const char *name,
                                     oar_rpc_message *args,
                                     const oar_rpc_call_opts *opts,
                                     oar_rref **rref);

/* Calls a function of the owner on the value: what a method of an actor is. The
 * function finds the reference by oar_rpc_self. Calls on one reference run one
 * at a time, in the order in which they came, whatever the function's manner; a
 * value that is not there yet makes them wait at the owner, not here.
 * OAR_E_PEER if the owner is gone, OAR_E_NOT_FOUND if the value is. */
#define oar_rref_call(rref, name, args, opts, future) \
    oar_rref_call_at(OAR_HERE, rref, name, args, opts, future)
OAR_API oar_status oar_rref_call_at(const char *file, int line, oar_rref *rref,
                                    const char *name, oar_rpc_message *args,
                                    const oar_rpc_call_opts *opts,
                                    oar_future **future);

/* Inside a function that was called on a reference: that reference, and what
 * the reply of oar_rpc_remote was, both borrowed; else NULL. */
OAR_API oar_rref *oar_rpc_self(const oar_rpc_call *call);
OAR_API oar_rpc_message *oar_rpc_self_message(const oar_rpc_call *call);

/* Blocks until the value of oar_rpc_remote is there, and gives a copy of it.
 * The calls made before on the reference have run. OAR_E_ARG for a value of
 * oar_rref_create: only its owner's functions know what it is. */
#define oar_rref_fetch(rref, opts, value) \
    oar_rref_fetch_at(OAR_HERE, rref, opts, value)
OAR_API oar_status oar_rref_fetch_at(const char *file, int line, oar_rref *rref,
                                     const oar_rpc_call_opts *opts,
                                     oar_rpc_message **value);

/* Runs fn(arg, why) once, on a thread of the pool, if the reference breaks,
 * because its owner is gone, the value is, or this rank's lease has ended; soon
 * if it is broken. One for each
 * reference of an agent: OAR_E_STATE. OAR_E_RANK on the owner. */
typedef void (*oar_broken_fn)(void *arg, const oar_error *why);
OAR_API oar_status oar_rref_on_broken(oar_rref *rref, oar_broken_fn fn,
                                      void *arg);

/* Put a reference into a message, and read one: gives a handle. The message
 * keeps a handle of its own until it is destroyed. A message goes to ranks of
 * the reference's agent only (OAR_E_ARG). */
OAR_API oar_status oar_rpc_put_rref(oar_rpc_message *message, oar_rref *rref);
OAR_API oar_status oar_rpc_get_rref(oar_rpc_message *message, oar_rref **rref);

/* ---- messages ------------------------------------------------------------ */

/* Values are read in the order in which they were put. A value that is read as
 * another type is OAR_E_DATA with a sentence that names both types; so is
 * reading past the last one. What came from another rank has been checked as a
 * whole before it can be read. */

/* Gives an empty message. */
OAR_API oar_status oar_rpc_message_create(oar_rpc_message **message);

/* Frees it, and drops the memory that was put into it. NULL is fine. */
OAR_API void oar_rpc_message_destroy(oar_rpc_message *message);

/* Returns how many bytes its values and arrays have. 0 for NULL. */
OAR_API size_t oar_rpc_message_bytes(const oar_rpc_message *message);

/* Makes the next read begin with the first value again. NULL is fine. */
OAR_API void oar_rpc_message_rewind(oar_rpc_message *message);

/* Append one value each. Bytes and text are copied; text is at most 2^31-1
 * bytes, and data may be NULL if bytes is 0. OAR_E_STATE if the message came
 * from another rank: make a new one. */
OAR_API oar_status oar_rpc_put_i64(oar_rpc_message *message, int64_t value);
OAR_API oar_status oar_rpc_put_f64(oar_rpc_message *message, double value);
OAR_API oar_status oar_rpc_put_text(oar_rpc_message *message, const char *text);
OAR_API oar_status oar_rpc_put_bytes(oar_rpc_message *message, const void *data,
                                     size_t bytes);

/* Appends an array of host memory, which is borrowed, not copied, until
 * drop(arg) is called, on any thread, when the message is destroyed; at once if
 * the array is small (4 KiB) and was copied. On failure drop is not called.
 * drop may be NULL. Memory of a GPU is copied now into pinned memory, in the
 * order of the device's current stream (oar_stream_current), for which the call
 * waits; then it is dropped. OAR_E_DEVICE says why it cannot be. */
OAR_API oar_status oar_rpc_put_span(oar_rpc_message *message, oar_span span,
                                    void (*drop)(void *arg), void *arg);

/* Has arrays and tensors that are put after this and lie in the window (of more
 * than 4 KiB, from a multiple of 16 bytes on) mapped by ranks of this host, not
 * copied: that takes as long for any size. They read what is in the window at
 * the time; so leave it as it is until the array is dropped (oar_rpc_put_span;
 * a tensor is released), which is when the other rank has destroyed the message
 * and released its tensors, or is gone. Other hosts, calls of this rank to
 * itself, and ranks that may not map memory of this one get a copy. Keeps a
 * reference to the window. */
OAR_API oar_status oar_rpc_message_map(oar_rpc_message *message,
                                       oar_window *window);

/* Appends a tensor with its shape; on the other side it is on the cpu. Keeps a
 * reference to it, and its numbers are read when the message goes: leave them
 * as they are until then. A tensor that is on a GPU or not contiguous is copied
 * now. OAR_E_STATE if it has no numbers (lazy, detached). */
OAR_API oar_status oar_rpc_put_tensor(oar_rpc_message *message,
                                      oar_tensor *tensor);

/* Read the next value. Text, bytes and spans are borrowed until the message is
 * destroyed; text ends in a zero byte. A span's memory is aligned for its
 * dtype, and read-only if it is mapped. On failure the next value stays the
 * next. */
OAR_API oar_status oar_rpc_get_i64(oar_rpc_message *message, int64_t *value);
OAR_API oar_status oar_rpc_get_f64(oar_rpc_message *message, double *value);
OAR_API oar_status oar_rpc_get_text(oar_rpc_message *message,
                                    const char **text);
OAR_API oar_status oar_rpc_get_bytes(oar_rpc_message *message,
                                     const void **data, size_t *bytes);
OAR_API oar_status oar_rpc_get_span(oar_rpc_message *message, oar_span *span);

/* Copies the next array into memory of the caller, of the host or of a GPU: in
 * the order of its current stream, and the message may be destroyed afterwards.
 * OAR_E_SIZE and OAR_E_DTYPE if the span has other numbers; OAR_E_DEVICE says
 * why that memory cannot be reached. Then the array stays the next. */
OAR_API oar_status oar_rpc_get_into(oar_rpc_message *message, oar_span span);

/* Gives a tensor (one reference) with the shape that was put; an array put by
 * oar_rpc_put_span has one dim. A large one that came from another rank is not
 * copied: it shares the memory it was received into, and keeps it. */
OAR_API oar_status oar_rpc_get_tensor(oar_rpc_message *message,
                                      oar_tensor **tensor);

/* The same, on a device: of a GPU it is a copy, in the order of the device's
 * current stream. */
OAR_API oar_status oar_rpc_get_tensor_on(oar_rpc_message *message,
                                         oar_device device,
                                         oar_tensor **tensor);

OAR_END_DECLS

#endif
