/* SPDX-License-Identifier: Apache-2.0 */
/* comm/engine/engine.h: which thread drives a group's operations, and what the
 * engine tells the layers above. engine.c says how. */
#ifndef OARI_COMM_ENGINE_ENGINE_H
#define OARI_COMM_ENGINE_ENGINE_H

#include "comm/comm.h"

/* What the engine calls upward. The calling thread holds the token. */
typedef struct oari_engine_events {
    /* Ends the group with this thread's last error: in which operation (NULL:
     * none), and because of which rank (-1: none). */
    void (*broke)(oar_group *group, const oar_work *work, int peer);
    /* Looks, off the fast path, whether anything has gone wrong. */
    void (*look)(oar_group *group);
    /* Returns whether a peer has published a fault; then the group has ended.
     */
    int (*hear)(oar_group *group);
    /* Finds out what another rank does that an operation suspects of a mismatch
     * (exec->doubt). Returns 0 if that cannot be found out; the last error says
     * what is known. */
    int (*mismatch)(oar_group *group, const oari_exec *exec);
    /* Notes that an external engine has failed. */
    void (*engine_failed)(oar_group *group);
    /* Asks the sender of a message that did not fit for its call. */
    void (*inquire)(oar_group *group, const oar_transfer *misfit);
} oari_engine_events;

static inline void oari_engine_broke(oar_group *group, const oar_work *work,
                                     int peer)
{
    int cancel_state;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    group->engine.events->broke(group, work, peer);
    pthread_setcancelstate(cancel_state, NULL);
}

static inline void oari_engine_look(oar_group *group)
{
    group->engine.events->look(group);
}

oar_status oari_engine_init(oari_engine *engine,
                            const oari_engine_events *events);
/* Ends the thread, and every operation left with the group's fault. */
void oari_engine_close(oar_group *group);

/* The engine's thread sleeps on the links without the token, so that a user
 * gets the token at once. The user that takes it tells the peers that this rank
 * is awake, and wakes the thread when it leaves. */
enum {
    OARI_DOZE_NONE,
    OARI_DOZE_ALONE, /* what comes wakes the thread */
    OARI_DOZE_TAKEN, /* a user has taken the token since */
    OARI_DOZE_RUNG   /* and the thread was woken */
};

/* Whether what drives sleeps on the links. */
enum { OARI_DRIVER_AWAKE, OARI_DRIVER_USER_SLEEPS, OARI_DRIVER_THREAD_SLEEPS };

/* ---- operations ---------------------------------------------------------- */

/* Runs one operation, or several messages at once, to the end. The works may be
 * on the caller's stack. */
void oari_engine_run(oar_group *group, int count, oar_work *work);
/* Starts the engine's thread if need be, so that what is queued goes on without
 * a caller. */
oar_status oari_engine_start(oar_group *group);
/* Queues works that are linked by next, for a caller that drives them itself.
 */
void oari_engine_queue(oar_group *group, oar_work *work);
/* Posts works that are linked by next, all at once, and begins the light ones.
 */
void oari_engine_enqueue(oar_group *group, oar_work *work);
/* Drives until the work is done, or the time is up: 0. */
int oari_engine_wait(oar_group *group, oar_work *work, int64_t until_ns);
/* Drives until the function says that what it waits for has come, or the time
 * is up: 0. What makes it come calls oari_engine_tell. */
int oari_engine_wait_until(oar_group *group, int (*is_done)(void *arg),
                           void *arg, int64_t until_ns);
/* Wakes the threads in oari_engine_wait_until, to ask again. Any thread. */
void oari_engine_tell(oar_group *group);
/* Drives for a moment, if no other thread does. */
void oari_engine_nudge(oar_group *group);
/* Wakes the thread that drives, if it sleeps. Any thread may call this. */
void oari_engine_wake(oar_group *group);
/* Wakes a rank of this host that sleeps. Any thread. */
void oari_engine_stir(oar_group *group, int to);
/* Returns whether such a message waits (oar_backend_ops.peek), after a round of
 * driving. */
int oari_engine_peek(oar_group *group, int peer, uint64_t tag, uint64_t any,
                     oar_envelope *found);
/* Does what oari_engine_peek does, for a caller that holds the token. */
int oari_engine_peek_held(oar_group *group, int peer, uint64_t tag,
                          uint64_t any, oar_envelope *found);

/* ---- messages without a work (direct.c) ---------------------------------- */

/* Sends or receives a small message at once, in a call that waits: 1. Returns 0
 * if that cannot be done: then nothing has happened. sequence: the call's. */
int oari_direct_send(oar_group *group, const oari_call *call,
                     uint64_t sequence);
int oari_direct_recv(oar_group *group, const oari_call *call,
                     uint64_t sequence);

/* ---- the token ----------------------------------------------------------- */

/* Waits for the token, drives for a moment, and keeps it: the caller may use
 * what belongs to the driver until it lets go. */
void oari_engine_hold(oar_group *group);
/* Does what oari_engine_hold does, until the deadline. Returns 0 if the token
 * could not be had. */
int oari_engine_hold_by(oar_group *group, int64_t deadline_ns);
/* Waits for the token and keeps it, without driving. */
void oari_engine_take(oar_group *group);
/* Takes the token if no thread has it: 1. */
int oari_engine_try_hold(oar_group *group);
/* Takes the token if no thread has it and nothing is under way: 1. For a caller
 * that reaches no point at which it could be cancelled until it leaves. */
int oari_engine_enter(oar_group *group);
/* Releases the token of oari_engine_enter. */
void oari_engine_leave(oar_group *group);
/* Releases the token. */
void oari_engine_let_go(oar_group *group);
/* The engine's thread releases the token and sleeps until the descriptor is
 * readable or the time is up. Returns 1 if it has the token again, 0 if a user
 * has taken it meanwhile. */
int oari_engine_doze(oar_group *group, int fd, int64_t until_ns);

/* ---- running an external engine's calls inline (run_inline.c) ------------ */

/* Returns whether a caller that waits can run the engine's call itself. The
 * caller holds the token. */
int oari_can_run_inline(oar_group *group);
/* Runs what the engine has for this thread, without the token. */
void oari_run_inline(oar_group *group);
/* Ends the monitor thread. */
void oari_run_inline_end(oari_external *external);

#endif
