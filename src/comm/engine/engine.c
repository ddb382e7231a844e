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
 * Waking that thread and taking the token back from it costs more than a small
 * operation takes. So the caller that posts a light operation begins it itself,
 * and the thread is not told: it naps, and drives what no user has driven for
 * the length of a nap. Only when it has seen nothing new for a few naps it
 * parks, until it is told. Heavy operations are worth its while at once.
 *
 * The lock guards the queues and the condition variables; it is never held
 * while driving.
 *
 * A thread that has the token, waits for it, or has works on its stack cannot
 * be cancelled (pthread_cancel) until it is through: what it holds would never
 * be given back.
 */
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/engine/drive.h"
#include "comm/engine/engine.h"
#include "comm/engine/foreign_engine.h"

enum {
    WATCH_NS = 1000000,    /* between two looks at what is on a stream */
    NAP_NS = 100000,       /* before what nobody drives is taken over */
    QUIET_NAPS = 4,        /* before the thread parks */
    LIGHT_BYTES = 32 << 10 /* take less than waking the thread costs */
};

/* ---- the token ----------------------------------------------------------- */

/* For a thread that cannot be cancelled. */
static int take_token(oari_engine *e)
{
    int free = 0;

    return atomic_compare_exchange_strong(&e->token, &free, 1);
}

static int try_token(oari_engine *e)
{
    if (!take_token(e))
        return 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &e->cancel_state);
    return 1;
}

static void tell_users(oari_engine *e)
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

/* Wakes the engine's thread if there is something for it that it would not look
 * for by itself, or not soon. The caller has stored what is new, or that the
 * token is free; the thread stores that it parks, and then looks for both. All
 * of it is seq_cst, so one of the two sees the other. */
static void rouse(oari_engine *e)
{
    if (!has_more(e) ||
        (atomic_load(&e->heavy) == 0 && !atomic_load(&e->parked)))
        return;
    pthread_mutex_lock(&e->lock);
    pthread_cond_signal(&e->roused);
    pthread_mutex_unlock(&e->lock);
}

/* What take_token took. */
static void drop_token(oari_engine *e)
{
    atomic_store(&e->token, 0);
    if (atomic_load(&e->waiters) != 0)
        tell_users(e);
    else
        rouse(e);
}

static void give_token(oari_engine *e)
{
    int cancel_state = e->cancel_state;

    drop_token(e);
    pthread_setcancelstate(cancel_state, NULL);
}

/* ---- users --------------------------------------------------------------- */

/* Whether the engine's thread is worth waking for it. */
static int is_heavy(const oar_group *g, const oar_work *work)
{
    return work->call.gpu != NULL || g->foreign.ops != NULL ||
           oari_call_bytes(&work->call) > LIGHT_BYTES;
}

/* Under the lock. Messages on device memory keep their place among the
 * collectives. */
static void append(oar_group *g, oar_work *work)
{
    oari_engine *e = &g->engine;

    work->heavy = is_heavy(g, work);
    atomic_fetch_add(&e->heavy, work->heavy);
    atomic_fetch_add(&e->posted, 1);
    atomic_fetch_add(&e->queued, 1);
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

/* Waits for the token, while it may be had; 0: the work was done meanwhile, or
 * the time is up. */
static int want_token(oar_group *g, const oar_work *work, int64_t until_ns)
{
    oari_engine *e = &g->engine;
    int mine = 0, late = 0, cancel_state;

    if (try_token(e))
        return 1; /* nobody drives, so nobody sleeps */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    atomic_fetch_add(&e->waiters, 1);
    atomic_thread_fence(memory_order_seq_cst); /* oari_work_finish */
    oari_engine_wake(g);
    pthread_mutex_lock(&e->lock);
    while (!(work != NULL && oari_work_is_done(work)) &&
           !(mine = try_token(e)) && !late)
        late = !oari_cond_wait(&e->changed, &e->lock, until_ns);
    pthread_mutex_unlock(&e->lock);
    atomic_fetch_sub(&e->waiters, 1);
    if (mine)
        e->cancel_state = cancel_state; /* for give_token */
    else
        pthread_setcancelstate(cancel_state, NULL);
    return mine;
}

int oari_engine_wait(oar_group *group, oar_work *work, int64_t until_ns)
{
    oari_engine *e = &group->engine;

    if (oari_work_is_done(work))
        return 1;
    if (want_token(group, work, until_ns)) {
        oari_drive(group, work, until_ns);
        atomic_store_explicit(&e->driven, e->driven + 1, memory_order_relaxed);
        give_token(e);
    } else
        rouse(e); /* the engine's thread stepped back for us */
    return oari_work_is_done(work);
}

int oari_engine_peek_held(oar_group *group, int peer, uint64_t tag,
                          uint64_t any, oar_envelope *found)
{
    oari_drive_once(group);
    oari_engine_look(group);
    if (!oari_group_broken(group) && group->backend->progress != NULL &&
        group->backend->progress(group->self) != OAR_OK)
        oari_engine_broke(group, NULL, -1);
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

    if (!want_token(group, NULL, OARI_NEVER))
        return 0;
    there = oari_engine_peek_held(group, peer, tag, any, found);
    give_token(&group->engine);
    return there;
}

int oari_engine_hold_by(oar_group *group, int64_t deadline_ns)
{
    oari_engine *e = &group->engine;

    if (!want_token(group, NULL, deadline_ns)) {
        rouse(e); /* the engine's thread stepped back for us */
        return 0;
    }
    oari_drive_once(group);
    oari_engine_look(group);
    if (group->board != NULL)
        group->board->ops->check(group->board->self);
    return 1;
}

void oari_engine_hold(oar_group *group)
{
    oari_engine_hold_by(group, OARI_NEVER);
}

void oari_engine_take(oar_group *group)
{
    want_token(group, NULL, OARI_NEVER);
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
        tell_users(e);
    oari_lend(g);
    oari_engine_wait(g, work, OARI_NEVER);
}

/* The fast path, with the token: nothing is posted. Messages are begun all
 * before any is waited for. */
static void run_mine(oar_group *g, int count, oar_work *work)
{
    for (int i = 0; i < count; i++) {
        work[i].mine = 1;
        work[i].call.awaited = (unsigned char)oari_lends(g);
        oari_drive_start(g, &work[i]);
    }
    if (is_awaited(work)) {
        work_for_engine(g, work);
        return;
    }
    for (int i = 0; i < count; i++)
        oari_drive(g, &work[i], OARI_NEVER);
    drop_token(&g->engine);
}

static void run_queued(oar_group *g, int count, oar_work *work)
{
    for (int i = 0; i < count; i++)
        oari_engine_queue(g, &work[i]);
    for (int i = 0; i < count; i++)
        oari_engine_wait(g, &work[i], OARI_NEVER);
}

void oari_engine_run(oar_group *group, int count, oar_work *work)
{
    oari_engine *e = &group->engine;
    int cancel_state;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    if (!take_token(e))
        run_queued(group, count, work);
    else if (atomic_load(&e->posted) == 0)
        run_mine(group, count, work);
    else {
        drop_token(e);
        run_queued(group, count, work);
    }
    pthread_setcancelstate(cancel_state, NULL);
}

void oari_engine_nudge(oar_group *group)
{
    if (!try_token(&group->engine))
        return;
    oari_drive_once(group);
    oari_engine_look(group);
    give_token(&group->engine);
}

void oari_engine_wake(oar_group *group)
{
    if (group->board != NULL)
        oari_board_wake(group->board);
    else if (group->backend->wake != NULL)
        group->backend->wake(group->self);
}

/* ---- the engine's thread ------------------------------------------------- */

/* Sleeps until told, or for the length of a nap: 1. What is on a stream goes on
 * by itself, and is only watched over: without the token, so that the next
 * thread that calls gets it at once. */
static int rest(oari_engine *e, int watch, int park)
{
    int64_t nap = watch ? WATCH_NS : NAP_NS;
    int napped = 0;

    atomic_store(&e->watching, watch);
    if (park)
        pthread_cond_wait(&e->roused, &e->lock);
    else
        napped = !oari_cond_wait(&e->roused, &e->lock, oari_now_ns() + nap);
    atomic_store(&e->watching, 0);
    return napped;
}

static void drive_for_all(oar_group *g, int watch)
{
    if (watch) {
        oari_drive_once(g);
        oari_engine_look(g);
    } else
        oari_drive(g, NULL, OARI_NEVER);
    give_token(&g->engine);
}

/* Whether what is posted has waited long enough for a user to drive it. With
 * the lock; if so the thread has the token. */
static int take_over(oari_engine *e, int due)
{
    return atomic_load(&e->posted) != 0 && atomic_load(&e->waiters) == 0 &&
           (due || atomic_load(&e->heavy) != 0) && try_token(e);
}

/* Whether a user drives, or will, and looks on leaving whether the thread is
 * parked; or there is nothing to drive. */
static int may_park(oari_engine *e)
{
    return atomic_load(&e->posted) == 0 || atomic_load(&e->waiters) != 0 ||
           atomic_load(&e->token) != 0;
}

static void *engine_thread(void *arg)
{
    oar_group *g = arg;
    oari_engine *e = &g->engine;
    unsigned seen = 0;
    int napped = 0, quiet = 0; /* naps in which no user drove */

    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        int posted = atomic_load(&e->posted);
        int watch = posted != 0 && posted == atomic_load(&e->watched);
        unsigned driven = atomic_load(&e->driven);
        int due = napped && driven == seen, park;

        if (napped)
            quiet = due ? quiet + 1 : 0;
        seen = driven;
        park = !watch && (quiet >= QUIET_NAPS || atomic_load(&e->heavy) != 0);
        atomic_store(&e->parked, park); /* before it looks */
        if ((!watch || due) && take_over(e, due)) {
            atomic_store(&e->parked, 0);
            pthread_mutex_unlock(&e->lock);
            drive_for_all(g, watch);
            pthread_mutex_lock(&e->lock);
            quiet = QUIET_NAPS; /* it was not about to be waited for */
            napped = 0;
            continue;
        }
        napped = rest(e, watch, park && may_park(e));
        atomic_store(&e->parked, 0);
        if (!napped)
            quiet = 0;
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

oar_status oari_engine_start(oar_group *group)
{
    oari_engine *e = &group->engine;
    oar_status status = OAR_OK;

    if (atomic_load_explicit(&e->has_thread, memory_order_acquire))
        return OAR_OK;
    pthread_mutex_lock(&e->lock);
    if (!atomic_load(&e->has_thread)) {
        status =
            oari_thread_start(&e->thread, "oar-engine", engine_thread, group);
        atomic_store(&e->has_thread, status == OAR_OK);
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* Whether the caller may as well begin them itself. */
static int are_light(const oar_group *g, const oar_work *work)
{
    for (; work != NULL; work = work->next)
        if (is_heavy(g, work))
            return 0;
    return 1;
}

/* With the token: one that is alone needs no queue. */
static int begin_alone(oar_group *g, oar_work *work)
{
    int none = 0;

    if (work->next != NULL ||
        !atomic_compare_exchange_strong(&g->engine.posted, &none, 1))
        return 0;
    work->heavy = 0;
    oari_drive_begin(g, work);
    return 1;
}

static void append_all(oar_group *g, oar_work *work)
{
    oari_engine *e = &g->engine;
    oar_work *next;

    pthread_mutex_lock(&e->lock);
    for (; work != NULL; work = next) {
        next = work->next;
        append(g, work);
    }
    pthread_mutex_unlock(&e->lock);
}

/* What was posted before does not end here: the caller may hold a lock that a
 * function of it (oar_work_then) takes. */
void oari_engine_enqueue(oar_group *group, oar_work *work)
{
    oari_engine *e = &group->engine;

    if (are_light(group, work) && try_token(e)) {
        if (!begin_alone(group, work)) {
            append_all(group, work);
            oari_drive_begin_messages(group);
        }
        give_token(e);
        return;
    }
    append_all(group, work);
    if (atomic_load(&e->token))
        oari_engine_wake(group); /* who drives may be asleep */
    else
        rouse(e);
}

void oari_engine_queue(oar_group *group, oar_work *work)
{
    pthread_mutex_lock(&group->engine.lock);
    append(group, work);
    pthread_mutex_unlock(&group->engine.lock);
}

oar_status oari_engine_init(oari_engine *engine,
                            const oari_engine_events *events)
{
    engine->events = events;
    pthread_mutex_init(&engine->lock, NULL);
    oari_cond_init(&engine->changed);
    oari_cond_init(&engine->roused);
    return OAR_OK;
}

void oari_engine_close(oar_group *group)
{
    oari_engine *e = &group->engine;

    pthread_mutex_lock(&e->lock);
    e->stop = 1;
    pthread_cond_signal(&e->roused);
    pthread_mutex_unlock(&e->lock);
    if (atomic_load(
            &e->has_thread)) { /* else the backend may not even be open */
        oari_engine_wake(group);
        pthread_join(e->thread, NULL);
    }
    while (group->opened && atomic_load(&e->posted) != 0)
        oari_drive_once(group); /* it is broken: everything ends at once */
    pthread_cond_destroy(&e->changed);
    pthread_cond_destroy(&e->roused);
    pthread_mutex_destroy(&e->lock);
}
