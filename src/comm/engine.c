/* SPDX-License-Identifier: Apache-2.0 */
/* engine: who drives a group's operations.
 *
 * One thread at a time holds the token and drives: everything of the driver's
 * (the collective under way, messages, backend, board) is guarded by it. A
 * caller that waits takes the token itself, so that in the common case no other
 * thread is involved. The engine's own thread is started by the first operation
 * that is not waited for at once; it drives only while no user wants to, and
 * hands the token over when one does.
 *
 * The lock guards the queues and the condition variable; it is never held while
 * driving.
 */
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/drive.h"

enum { WATCH_NS = 1000000 /* between two looks at what is on a stream */ };

/* ---- the token
 * ----------------------------------------------------------------*/

static int try_token(oari_engine *e)
{
    int free = 0;

    return atomic_compare_exchange_strong(&e->token, &free, 1);
}

static void tell_everyone(oari_engine *e)
{
    pthread_mutex_lock(&e->lock);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* Whether something is posted that nobody watches over yet. */
static int has_more(oari_engine *e)
{
    int posted = atomic_load(&e->posted);

    return posted != 0 &&
           !(posted == atomic_load(&e->watched) && atomic_load(&e->watching));
}

static void give_token(oari_engine *e)
{
    atomic_store(&e->token, 0);
    if (atomic_load(&e->waiters) != 0 || has_more(e))
        tell_everyone(e);
}

/* ---- users
 * ---------------------------------------------------------------------*/

/* Messages on device memory keep their place among the collectives. */
static void append(oari_engine *e, oar_work *work)
{
    atomic_fetch_add(&e->posted, 1);
    work->next = NULL;
    if (work->call.kind >= OAR_COLL_SEND && work->call.gpu == NULL) {
        work->next = e->fresh;
        e->fresh = work;
    } else {
        if (e->last != NULL)
            e->last->next = work;
        else
            e->first = work;
        e->last = work;
    }
}

static void enqueue(oar_group *g, oar_work *work)
{
    pthread_mutex_lock(&g->engine.lock);
    append(&g->engine, work);
    pthread_mutex_unlock(&g->engine.lock);
}

/* Waits for the token, while it may be had; 0: the work was done meanwhile, or
 * it was not to be had in time. */
static int want_token_by(oar_group *g, const oar_work *work,
                         int64_t deadline_ns)
{
    oari_engine *e = &g->engine;
    int mine = 0;

    if (try_token(e))
        return 1; /* nobody drives, so nobody sleeps */
    atomic_fetch_add(&e->waiters, 1);
    oari_engine_wake(g);
    pthread_mutex_lock(&e->lock);
    while (!(work != NULL && oari_work_is_done(work)) &&
           !(mine = try_token(e)) &&
           oari_cond_wait(&e->changed, &e->lock, deadline_ns))
        continue;
    pthread_mutex_unlock(&e->lock);
    atomic_fetch_sub(&e->waiters, 1);
    return mine;
}

static int want_token(oar_group *g, const oar_work *work)
{
    return want_token_by(g, work, OARI_NEVER);
}

void oari_engine_wait(oar_group *group, oar_work *work)
{
    oari_engine *e = &group->engine;

    if (oari_work_is_done(work))
        return;
    if (want_token(group, work)) {
        oari_drive(group, work);
        give_token(e);
    } else if (atomic_load(&e->posted) != 0)
        tell_everyone(e); /* the engine's thread stepped back for us */
}

/* With the token. */
static int peek(oar_group *group, int peer, uint64_t tag, uint64_t any,
                oar_envelope *found)
{
    oari_drive_once(group);
    oari_drive_look(group);
    if (!oari_group_broken(group) && group->backend->progress != NULL &&
        group->backend->progress(group->self) != OAR_OK)
        oari_group_break(group, NULL, -1);
    if (oari_foreign_carries(group))
        oari_foreign_drive(group);
    return !oari_group_broken(group) &&
           oari_carrier(group)->peek(oari_carrier_self(group), peer, tag, any,
                                     found);
}

int oari_engine_peek(oar_group *group, int peer, uint64_t tag, uint64_t any,
                     oar_envelope *found)
{
    int there;

    if (!want_token(group, NULL))
        return 0;
    there = peek(group, peer, tag, any, found);
    give_token(&group->engine);
    return there;
}

/* With the token. What a rank sent before it went is found by a second look,
 * after it is known to be gone. */
static int probe_once(oar_group *g, oar_work *probe, oar_envelope *found)
{
    const oari_call *call = &probe->call;
    uint64_t tag = oari_message_tag(call->tag);
    uint64_t any = oari_message_any(g, call->tag);
    int lost;

    if (peek(g, call->root, tag, any, found))
        return 1;
    if (oari_group_broken(g))
        return 0;
    if (g->board != NULL)
        g->board->ops->check(g->board->self);
    lost = oari_drive_lost(g, probe);
    if (lost < 0) {
        oari_drive_stalled(g, probe);
        return 0;
    }
    if (peek(g, call->root, tag, any, found))
        return 1;
    if (!oari_group_broken(g))
        oari_peer_gone(g, probe, lost);
    return 0;
}

int oari_engine_probe(oar_group *group, oar_work *probe, oar_envelope *found)
{
    int there;

    if (!want_token(group, NULL))
        return 0;
    there = probe_once(group, probe, found);
    give_token(&group->engine);
    return there;
}

int oari_engine_poll(oar_group *group, oar_work *probe, oar_envelope *found)
{
    oari_engine *e = &group->engine;
    const oari_call *call = &probe->call;
    int there;

    if (!want_token(group, NULL))
        return 0;
    if (e->polled.sequence == 0 ||
        e->polled.sequence != atomic_load(&group->sequence) ||
        e->polled.peer != call->root || e->polled.tag != call->tag) {
        e->polled.sequence = oari_work_record(group, call, OARI_POSTED);
        e->polled.peer = call->root;
        e->polled.tag = call->tag;
    }
    probe->sequence = e->polled.sequence;
    probe->warned = 1; /* it does not wait, so it does not stall */
    there = probe_once(group, probe, found);
    oari_recorder_done(group->recorder, probe->sequence,
                       oari_group_broken(group) ? OAR_RECORD_FAILED
                                                : OAR_RECORD_DONE);
    give_token(e);
    return there;
}

int oari_engine_hold_by(oar_group *group, int64_t deadline_ns)
{
    oari_engine *e = &group->engine;

    if (!want_token_by(group, NULL, deadline_ns)) {
        if (atomic_load(&e->posted) != 0)
            tell_everyone(e); /* the engine's thread stepped back for us */
        return 0;
    }
    oari_drive_once(group);
    oari_drive_look(group);
    if (group->board != NULL)
        group->board->ops->check(group->board->self);
    return 1;
}

void oari_engine_hold(oar_group *group)
{
    oari_engine_hold_by(group, OARI_NEVER);
}

int oari_engine_try_hold(oar_group *group)
{
    return try_token(&group->engine);
}

void oari_engine_let_go(oar_group *group)
{
    give_token(&group->engine);
}

/* Whether the engine has it, and waits for us to work on it. */
static int is_awaited(const oar_work *work)
{
    return work->call.awaited && work->lane != NULL &&
           work->lane->exec.posted && !work->lane->exec.post.done;
}

/* From here on anybody may drive it, so it counts as posted. Who drives the
 * operations of others is not told of it: it is in good hands. */
static void work_for_engine(oar_group *g, oar_work *work)
{
    oari_engine *e = &g->engine;

    work->mine = 0;
    e->alone = work->call.kind == OAR_COLL_BARRIER;
    atomic_fetch_add(&e->posted, 1);
    atomic_store(&e->token, 0);
    if (atomic_load(&e->waiters) != 0)
        tell_everyone(e);
    oari_lend(g);
    oari_engine_wait(g, work);
}

/* The fast path: nobody drives, nothing is queued. */
void oari_engine_run(oar_group *group, oar_work *work)
{
    oari_engine *e = &group->engine;

    if (try_token(e)) {
        if (atomic_load(&e->posted) == 0) {
            work->mine = 1;
            work->call.awaited = (unsigned char)oari_lends(group);
            oari_drive_start(group, work);
            if (is_awaited(work)) {
                work_for_engine(group, work);
                return;
            }
            oari_drive(group, work);
            give_token(e);
            return;
        }
        give_token(e);
    }
    enqueue(group, work);
    oari_engine_wait(group, work);
}

void oari_engine_nudge(oar_group *group)
{
    if (!try_token(&group->engine))
        return;
    oari_drive_once(group);
    oari_drive_look(group);
    give_token(&group->engine);
}

void oari_engine_wake(oar_group *group)
{
    if (group->board != NULL)
        oari_board_wake(group->board);
    else if (group->backend->wake != NULL)
        group->backend->wake(group->self);
}

/* ---- the engine's thread
 * -------------------------------------------------------*/

/* What is on a stream goes on by itself, and is only watched over: without the
 * token, so that whoever calls next gets it at once. */
static void nap(oari_engine *e)
{
    atomic_store(&e->watching, 1);
    oari_cond_wait(&e->changed, &e->lock, oari_now_ns() + WATCH_NS);
    atomic_store(&e->watching, 0);
}

static void look_after(oar_group *g)
{
    oari_drive_once(g);
    oari_drive_look(g);
}

static void *engine_thread(void *arg)
{
    oar_group *g = arg;
    oari_engine *e = &g->engine;

    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        int posted = atomic_load(&e->posted);
        int watch = posted != 0 && posted == atomic_load(&e->watched);

        if (watch)
            nap(e);
        if (e->stop)
            break;
        if (posted == 0 || atomic_load(&e->waiters) != 0 || !try_token(e)) {
            if (!watch)
                pthread_cond_wait(&e->changed, &e->lock);
            continue;
        }
        pthread_mutex_unlock(&e->lock);
        if (watch)
            look_after(g);
        else
            oari_drive(g, NULL);
        give_token(e);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

oar_status oari_engine_start(oar_group *group)
{
    oari_engine *e = &group->engine;
    int failed = 0;

    pthread_mutex_lock(&e->lock);
    if (!e->has_thread) {
        failed = pthread_create(&e->thread, NULL, engine_thread, group);
        e->has_thread = !failed;
    }
    pthread_mutex_unlock(&e->lock);
    if (failed)
        return oari_fail(OAR_E_SYSTEM, "start the engine's thread: %s",
                         strerror(failed));
    return OAR_OK;
}

void oari_engine_enqueue(oar_group *group, oar_work *work)
{
    oari_engine *e = &group->engine;
    oar_work *next;

    pthread_mutex_lock(&e->lock);
    for (; work != NULL; work = next) {
        next = work->next;
        append(e, work);
    }
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    if (atomic_load(&e->token)) /* who drives may be asleep */
        oari_engine_wake(group);
}

void oari_engine_queue(oar_group *group, oar_work *work)
{
    enqueue(group, work);
}

oar_status oari_engine_init(oari_engine *engine)
{
    pthread_mutex_init(&engine->lock, NULL);
    oari_cond_init(&engine->changed);
    return OAR_OK;
}

void oari_engine_close(oar_group *group)
{
    oari_engine *e = &group->engine;

    pthread_mutex_lock(&e->lock);
    e->stop = 1;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    if (e->has_thread) { /* else the backend may not even be open */
        oari_engine_wake(group);
        pthread_join(e->thread, NULL);
    }
    while (group->opened && atomic_load(&e->posted) != 0)
        oari_drive_once(group); /* it is broken: everything ends at once */
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
}
