/* SPDX-License-Identifier: Apache-2.0 */
/* comm/engine/engine.h: who drives a group's operations, and what it tells
 * the layers above. engine.c says how. */
#ifndef OARI_COMM_ENGINE_ENGINE_H
#define OARI_COMM_ENGINE_ENGINE_H

#include "comm/comm.h"

/* What the engine calls upward, with the token in hand. */
typedef struct oari_engine_events {
    /* The group ends with this thread's last error; in which operation (NULL:
     * none), and because of which rank (-1: none). */
    void (*broke)(oar_group *group, const oar_work *work, int peer);
    /* Off the fast path: has anything gone wrong? */
    void (*look)(oar_group *group);
    /* Whether a peer has published a fault; then the group has ended. */
    int (*hear)(oar_group *group);
    /* An operation has come to doubt what another rank does (exec->doubt). 0:
     * that cannot be found out; the last error says what is known. */
    int (*mismatch)(oar_group *group, const oari_exec *exec);
    /* An engine of somebody else's has failed. */
    void (*engine_failed)(oar_group *group);
    /* A message did not fit: its sender is to be asked where it sent it. */
    void (*inquire)(oar_group *group, const oar_transfer *misfit);
} oari_engine_events;

static inline void oari_engine_broke(oar_group *group, const oar_work *work,
                                     int peer)
{
    group->engine.events->broke(group, work, peer);
}

static inline void oari_engine_look(oar_group *group)
{
    group->engine.events->look(group);
}

oar_status oari_engine_init(oari_engine *engine,
                            const oari_engine_events *events);
/* Ends the thread and every operation left, with the group's fault. */
void oari_engine_close(oar_group *group);

/* Runs the operation, or several messages at once, to the end. The works may be
 * on the caller's stack. */
void oari_engine_run(oar_group *group, int count, oar_work *work);
/* Makes sure that what is queued goes on by itself. */
oar_status oari_engine_start(oar_group *group);
/* Several, linked by next, at one go. Begins what is light. */
void oari_engine_enqueue(oar_group *group, oar_work *work);
/* The same with one, which the caller drives itself. */
void oari_engine_queue(oar_group *group, oar_work *work);
/* Drives until it is done, or the time is up: 0. */
int oari_engine_wait(oar_group *group, oar_work *work, int64_t until_ns);
/* Drives for a moment, if nobody does. */
void oari_engine_nudge(oar_group *group);
/* Whether such a message waits (oar_backend_ops.peek), after a look around. */
int oari_engine_peek(oar_group *group, int peer, uint64_t tag, uint64_t any,
                     oar_envelope *found);
/* The same for a caller that holds the token. */
int oari_engine_peek_held(oar_group *group, int peer, uint64_t tag,
                          uint64_t any, oar_envelope *found);
/* Makes whoever sleeps look again. Any thread. */
void oari_engine_wake(oar_group *group);
/* Waits for the token, drives for a moment, and keeps it: what is the driver's
 * may be used until it is let go. */
void oari_engine_hold(oar_group *group);
/* The same, if it is to be had in time: 1. */
int oari_engine_hold_by(oar_group *group, int64_t deadline_ns);
/* The same without driving. */
void oari_engine_take(oar_group *group);
/* The same, if nobody has it: 1. */
int oari_engine_try_hold(oar_group *group);
void oari_engine_let_go(oar_group *group);

/* ---- lend.c -------------------------------------------------------------- */

/* Whether a caller that waits can work for the engine. The driver's. */
int oari_lends(oar_group *group);
/* It does. Without the token; returns when the engine has nothing for it. */
void oari_lend(oar_group *group);
/* Nobody looks any more. */
void oari_lend_end(oari_foreign *foreign);

#endif
