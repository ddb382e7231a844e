/* SPDX-License-Identifier: Apache-2.0 */
/* engine: which thread drives a group's operations.
 *
 * One thread at a time holds the token and drives. The token guards everything
 * that belongs to the driver: collectives under way, messages, backend, shm.
 * A caller that waits takes the token itself, so that in the common case no
 * other thread is involved. The first operation that is not waited for at once
 * starts the engine's own thread, which drives only while no user wants to, and
 * hands the token over when one does.
 *
 * To wake that thread and to take the token back from it costs more than a
 * small operation. So the caller that posts a light operation begins it itself
 * and does not wake the thread: the thread naps, and drives what no user has
 * driven for the length of a nap. When it has seen nothing new for a few naps,
 * it parks until it is woken. A heavy operation wakes it at once.
 *
 * The lock guards the queues and the condition variables; it is never held
 * while driving.
 *
 * A thread that has the token, waits for it, or has works on its stack cannot
 * be cancelled (pthread_cancel) until it has finished: otherwise the token
 * would never be released. Where it passes no cancellation point, nothing has
 * to be done for that.
 */
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/engine/drive.h"
#include "comm/engine/engine.h"
#include "comm/engine/external_engine.h"
#include "comm/engine/work.h"

enum {
    STREAM_NAP_NS = 1000000, /* between two looks at what is on a stream */
    NAP_NS = 100000,         /* before the thread takes over what is idle */
    QUIET_NAPS = 4,          /* before the thread parks */
    HAND_OVER_NS = 5000,     /* within which a thread that drives steps back */
    LIGHT_BYTES = 32 << 10 /* take less time than it takes to wake the thread */
};

/* ---- the token ----------------------------------------------------------- */

/* Notes that a user drives while the engine's thread sleeps on the links: what
 * comes from now on need not wake it. */
static __attribute__((noinline)) void take_from_doze(oar_group *g)
{
    int alone = OARI_DOZE_ALONE;

    if (g->shm != NULL)
        oari_shm_awake(g->shm);
    atomic_store(&g->engine.driver_sleeps, OARI_DRIVER_AWAKE);
    atomic_compare_exchange_strong(&g->engine.dozing, &alone, OARI_DOZE_TAKEN);
}

/* Takes the token if it is free: 1. The calling thread cannot be cancelled. */
static int take_token(oar_group *g)
{
    oari_engine *e = &g->engine;
    int free = 0;

    if (!atomic_compare_exchange_strong(&e->token, &free, 1))
        return 0;
    if (atomic_load_explicit(&e->dozing, memory_order_relaxed) ==
        OARI_DOZE_ALONE)
        take_from_doze(g);
    return 1;
}

int oari_engine_try_hold(oar_group *group)
{
    oari_engine *e = &group->engine;

    if (!take_token(group))
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

/* Wakes the engine's thread if there is something for it that it would not look
 * for by itself, or not soon. What is on a stream only has to be watched: if
 * there is nothing else, a thread that watches is not woken.
 *
 * The caller has stored what is new, or that the token is free; the thread
 * stores that it parks, and then looks for both. All of it is seq_cst, so one
 * of the two sees the other. */
static void rouse_thread(oar_group *g)
{
    oari_engine *e = &g->engine;
    int posted = atomic_load(&e->posted), dozing = atomic_load(&e->dozing);

    if (posted == 0 ||
        (posted == atomic_load(&e->watched) && atomic_load(&e->watching)))
        return;
    if (dozing != OARI_DOZE_NONE) {
        if (dozing != OARI_DOZE_RUNG &&
            atomic_compare_exchange_strong(&e->dozing, &dozing,
                                           OARI_DOZE_RUNG) &&
            eventfd_write(e->doze_fd, 1) != 0)
            return; /* full: it will wake anyway */
        return;
    }
    if (atomic_load(&e->heavy) == 0 && !atomic_load(&e->parked))
        return;
    pthread_mutex_lock(&e->lock);
    pthread_cond_signal(&e->roused);
    pthread_mutex_unlock(&e->lock);
}

/* Tells those that want to drive that the token is free. */
static void tell_others(oar_group *g)
{
    if (atomic_load(&g->engine.waiters) != 0)
        tell_users(&g->engine);
    else
        rouse_thread(g);
}

/* Releases the token that take_token took. */
static void drop_token(oar_group *g)
{
    atomic_store(&g->engine.token, 0);
    tell_others(g);
}

int oari_engine_enter(oar_group *group)
{
    if (!take_token(group))
        return 0;
    if (atomic_load_explicit(&group->engine.posted, memory_order_relaxed) == 0)
        return 1;
    drop_token(group);
    return 0;
}

void oari_engine_leave(oar_group *group)
{
    drop_token(group);
}

void oari_engine_let_go(oar_group *group)
{
    int cancel_state = group->engine.cancel_state;

    drop_token(group);
    pthread_setcancelstate(cancel_state, NULL);
}

/* A user that finds the token free notes at once that it has taken it. What
 * wakes a driver that sleeps may be used up by a user that sleeps as well, so
 * the thread has a descriptor of its own to be woken by. */
int oari_engine_doze(oar_group *group, int fd, int64_t until_ns)
{
    oari_engine *e = &group->engine;
    struct pollfd wait[] = { { fd, POLLIN, 0 }, { e->doze_fd, POLLIN, 0 } };
    eventfd_t drained;
    int kept = 0;

    pthread_setcancelstate(e->cancel_state, NULL);
    atomic_store(&e->dozing, OARI_DOZE_ALONE);
    atomic_store(&e->token, 0);
    if (atomic_load(&e->waiters) != 0)
        tell_users(e);
    else
        poll(wait, 2, oari_deadline_left_ms(until_ns));
    if (wait[1].revents != 0 && eventfd_read(e->doze_fd, &drained) != 0)
        drained = 0; /* another thread has read it */
    while (atomic_load(&e->dozing) == OARI_DOZE_ALONE &&
           !(kept = oari_engine_try_hold(group)))
        sched_yield();
    atomic_store(&e->dozing, OARI_DOZE_NONE);
    return kept;
}

/* ---- users --------------------------------------------------------------- */

/* Whether an operation is worth waking the engine's thread. */
static int is_heavy(const oar_group *g, const oar_work *work)
{
    return work->call.gpu != NULL || g->external.ops != NULL ||
           oari_call_bytes(&work->call) > LIGHT_BYTES;
}

/* Returns whether a caller without the token need not wait for it. */
static int is_over(const oari_goal *goal)
{
    return goal->work != NULL      ? oari_work_is_done(goal->work)
           : goal->is_done != NULL ? goal->is_done(goal->arg)
                                   : 0;
}

/* Waits for the token. A thread that drives and does not sleep hands it over
 * within a microsecond, which is less than it takes to go to sleep for it.
 * Returns 0 if the goal was reached meanwhile, or the time is up. */
static int wait_for_token(oar_group *g, oari_goal goal, int64_t until_ns)
{
    oari_engine *e = &g->engine;
    int mine = 0, late = 0, over = 0, cancel_state;
    int64_t spin_until;

    if (oari_engine_try_hold(g))
        return 1; /* no thread drives, so none sleeps */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    atomic_fetch_add(&e->waiters, 1);
    atomic_thread_fence(memory_order_seq_cst); /* oari_work_finish */
    if (g->spin_ns != 0 &&
        atomic_load(&e->driver_sleeps) != OARI_DRIVER_USER_SLEEPS) {
        spin_until = oari_now_ns() + HAND_OVER_NS;
        while (!(over = is_over(&goal)) &&
               !(mine = !atomic_load(&e->token) && oari_engine_try_hold(g)) &&
               oari_now_ns() < spin_until)
            oari_cpu_pause();
    }
    if (!over && !mine) {
        oari_engine_wake(g);
        pthread_mutex_lock(&e->lock);
        while (!is_over(&goal) && !(mine = oari_engine_try_hold(g)) && !late)
            late = !oari_cond_wait(&e->changed, &e->lock, until_ns);
        pthread_mutex_unlock(&e->lock);
    }
    atomic_fetch_sub(&e->waiters, 1);
    if (mine)
        e->cancel_state = cancel_state; /* for oari_engine_let_go */
    else
        pthread_setcancelstate(cancel_state, NULL);
    return mine;
}

/* Waits for a goal that is not reached yet. */
static void wait_for(oar_group *g, oari_goal goal, int64_t until_ns)
{
    oari_engine *e = &g->engine;

    if (wait_for_token(g, goal, until_ns)) {
        oari_drive_until(g, goal, until_ns);
        atomic_store_explicit(&e->driven, e->driven + 1, memory_order_relaxed);
        oari_engine_let_go(g);
    } else
        rouse_thread(g); /* the engine's thread stepped back for us */
}

int oari_engine_wait(oar_group *group, oar_work *work, int64_t until_ns)
{
    if (!oari_work_is_done(work))
        wait_for(group, (oari_goal){ .work = work }, until_ns);
    return oari_work_is_done(work);
}

int oari_engine_wait_until(oar_group *group, int (*is_done)(void *arg),
                           void *arg, int64_t until_ns)
{
    if (!is_done(arg))
        wait_for(group, (oari_goal){ .is_done = is_done, .arg = arg },
                 until_ns);
    return is_done(arg);
}

/* A thread that goes to sleep says so, and then asks whether it must. */
void oari_engine_tell(oar_group *group)
{
    oari_engine *e = &group->engine;

    atomic_thread_fence(memory_order_seq_cst); /* after what has come */
    if (atomic_load_explicit(&e->waiters, memory_order_relaxed) != 0)
        tell_users(e);
    if (atomic_load_explicit(&e->driver_sleeps, memory_order_relaxed) ==
        OARI_DRIVER_USER_SLEEPS)
        oari_engine_wake(group);
}

int oari_engine_peek_held(oar_group *group, int peer, uint64_t tag,
                          uint64_t any, oar_envelope *found)
{
    oari_drive_once(group);
    oari_engine_look(group);
    if (!oari_group_broken(group) && group->backend->progress != NULL &&
        group->backend->progress(group->self) != OAR_OK)
        oari_engine_broke(group, NULL, -1);
    if (oari_external_carries(group))
        oari_external_drive(group);
    return !oari_group_broken(group) &&
           oari_carrier(group)->peek(oari_carrier_self(group), peer, tag, any,
                                     found);
}

int oari_engine_peek(oar_group *group, int peer, uint64_t tag, uint64_t any,
                     oar_envelope *found)
{
    int there;

    if (!wait_for_token(group, (oari_goal){ 0 }, OARI_NEVER))
        return 0;
    there = oari_engine_peek_held(group, peer, tag, any, found);
    oari_engine_let_go(group);
    return there;
}

int oari_engine_hold_by(oar_group *group, int64_t deadline_ns)
{
    if (!wait_for_token(group, (oari_goal){ 0 }, deadline_ns)) {
        rouse_thread(group); /* the engine's thread stepped back for us */
        return 0;
    }
    oari_drive_once(group);
    oari_engine_look(group);
    if (group->shm != NULL)
        group->shm->ops->check(group->shm->self);
    return 1;
}

void oari_engine_hold(oar_group *group)
{
    oari_engine_hold_by(group, OARI_NEVER);
}

void oari_engine_take(oar_group *group)
{
    wait_for_token(group, (oari_goal){ 0 }, OARI_NEVER);
}

/* Runs the external engine's call inline, without the token. From here on any
 * thread may drive the work, so it counts as posted. Threads that drive the
 * operations of others are not woken for it: this one sees to it. */
static void run_inline(oar_group *g, oar_work *work)
{
    oari_engine *e = &g->engine;

    work->mine = 0;
    e->alone = work->call.kind == OAR_COLL_BARRIER;
    atomic_fetch_add(&e->posted, 1);
    atomic_store(&e->token, 0);
    if (atomic_load(&e->waiters) != 0)
        tell_users(e);
    oari_run_inline(g);
    oari_engine_wait(g, work, OARI_NEVER);
}

/* The fast path, with the token: nothing is posted. All messages are begun
 * before any is waited for. */
static void run_mine(oar_group *g, int count, oar_work *work)
{
    for (int i = 0; i < count; i++) {
        work[i].mine = 1;
        work[i].call.awaited = (unsigned char)oari_can_run_inline(g);
        oari_drive_start(g, &work[i]);
        if (work[i].call.kind == OAR_COLL_RECV && !g->loose &&
            g->in_tree->await != NULL && g->external.ops == NULL)
            g->in_tree->await(g->self, &work[i].transfer);
    }
    /* the external engine has it, and waits for a thread to run it */
    if (work->call.awaited && work->lane != NULL && work->lane->exec.posted &&
        !work->lane->exec.post.done) {
        run_inline(g, work);
        return;
    }
    for (int i = 0; i < count; i++)
        oari_drive(g, &work[i], OARI_NEVER);
    drop_token(g);
}

/* Messages on device memory keep their place among the collectives. */
void oari_engine_queue(oar_group *group, oar_work *work)
{
    oari_engine *e = &group->engine;
    oar_work *next;

    pthread_mutex_lock(&e->lock);
    for (; work != NULL; work = next) {
        next = work->next;
        work->heavy = is_heavy(group, work);
        atomic_fetch_add(&e->heavy, work->heavy);
        atomic_fetch_add(&e->posted, 1);
        atomic_fetch_add(&e->queued, 1);
        work->next = NULL;
        if (work->call.kind >= OAR_COLL_SEND && work->call.gpu == NULL) {
            work->next = e->fresh;
            e->fresh = work;
            continue;
        }
        if (e->last != NULL)
            e->last->next = work;
        else
            e->first = work;
        e->last = work;
    }
    pthread_mutex_unlock(&e->lock);
}

/* Returns whether a call goes over slots alone, where nothing can be cancelled:
 * there are no messages, no engine, no segments to map and no user's functions.
 */
static int is_slots_only(const oar_group *g, const oar_work *work)
{
    return work->call.kind < OAR_COLL_SEND && g->shm != NULL &&
           g->shm->member == NULL && g->external.ops == NULL &&
           work->call.gpu == NULL && !g->loose && !oari_group_broken(g);
}

/* Tries to run a small collective to its end, with the token. This is the
 * shortest way: the thread passes no cancellation point, so it need not be kept
 * from being cancelled, and what else the driver does is left out. Returns 0 if
 * the collective has begun but has not ended. */
static int run_at_once(oar_group *g, oar_work *work)
{
    oari_engine *e = &g->engine;
    const oari_exec *x = &e->lane->exec;

    work->mine = 1;
    work->call.awaited = 0;
    oari_drive_start(g, work);
    if (work->lane == NULL || oari_group_broken(g) || !x->plan->slots_only ||
        oari_exec_poll(&e->lane->exec) != OARI_DONE)
        return 0;
    oari_drive_finish(g, e->lane, OAR_OK);
    return 1;
}

/* Goes on with a collective that run_at_once has begun. */
static void go_on(oar_group *g, oar_work *work)
{
    oari_drive(g, work, OARI_NEVER);
    drop_token(g);
}

void oari_engine_run(oar_group *group, int count, oar_work *work)
{
    oari_engine *e = &group->engine;
    int mine = take_token(group), begun = 0, cancel_state;

    if (mine && count == 1 && is_slots_only(group, work) &&
        atomic_load(&e->posted) == 0) {
        if (run_at_once(group, work)) {
            atomic_store(&e->token, 0);
            if (atomic_load(&e->waiters) == 0 && atomic_load(&e->posted) == 0)
                return;
            pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
            tell_others(group);
            pthread_setcancelstate(cancel_state, NULL);
            return;
        }
        begun = 1;
    }
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    if (begun)
        go_on(group, work);
    else if (mine && atomic_load(&e->posted) == 0)
        run_mine(group, count, work);
    else {
        if (mine)
            drop_token(group);
        for (int i = 0; i < count; i++)
            oari_engine_queue(group, &work[i]);
        for (int i = 0; i < count; i++)
            oari_engine_wait(group, &work[i], OARI_NEVER);
    }
    pthread_setcancelstate(cancel_state, NULL);
}

void oari_engine_nudge(oar_group *group)
{
    if (!oari_engine_try_hold(group))
        return;
    oari_drive_once(group);
    oari_engine_look(group);
    oari_engine_let_go(group);
}

void oari_engine_wake(oar_group *group)
{
    if (group->shm != NULL)
        oari_shm_wake(group->shm);
    else if (group->backend->wake != NULL)
        group->backend->wake(group->self);
}

void oari_engine_stir(oar_group *group, int to)
{
    int rank = group->shm != NULL ? oari_shm_rank(group->shm, to) : -1;

    if (rank >= 0 && rank != group->shm->rank)
        oari_shm_stir(group->shm, rank);
}

/* ---- the engine's thread ------------------------------------------------- */

/* Waits until woken, or for the length of a nap: 1. With the lock. */
static int nap_or_park(oari_engine *e, int watch, int park)
{
    int64_t nap = watch ? STREAM_NAP_NS : NAP_NS;
    int napped = 0;

    atomic_store(&e->watching, watch);
    if (park)
        pthread_cond_wait(&e->roused, &e->lock);
    else
        napped = !oari_cond_wait(&e->roused, &e->lock, oari_now_ns() + nap);
    atomic_store(&e->watching, 0);
    return napped;
}

/* Takes the token if what is posted has waited long enough for a user to drive
 * it: 1. With the lock. */
static int take_over(oar_group *g, int due)
{
    oari_engine *e = &g->engine;

    return atomic_load(&e->posted) != 0 && atomic_load(&e->waiters) == 0 &&
           (due || atomic_load(&e->heavy) != 0) && oari_engine_try_hold(g);
}

/* What is on a stream goes on by itself: the thread only looks at it now and
 * then, and naps without the token, so that the next caller gets it at once.
 *
 * The thread parks if there is nothing to drive, or a user drives or will: that
 * user wakes a parked thread when it leaves. */
static void *run_engine_thread(void *arg)
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
        int due = napped && driven == seen, park, kept;

        if (napped)
            quiet = due ? quiet + 1 : 0;
        seen = driven;
        park = !watch && (quiet >= QUIET_NAPS || atomic_load(&e->heavy) != 0);
        atomic_store(&e->parked, park); /* before it looks */
        if ((!watch || due) && take_over(g, due)) {
            atomic_store(&e->parked, 0);
            pthread_mutex_unlock(&e->lock);
            kept = 1;
            if (watch) {
                oari_drive_once(g);
                oari_engine_look(g);
            } else
                kept = oari_drive_until(g, (oari_goal){ 0 }, OARI_NEVER);
            if (kept)
                oari_engine_let_go(g);
            pthread_mutex_lock(&e->lock);
            quiet = kept ? QUIET_NAPS : 0; /* nobody was about to wait for it */
            napped = 0;
            if (kept || atomic_load(&e->heavy) != 0)
                continue;
            seen = atomic_load(&e->driven);
            napped = nap_or_park(e, 0, 0);
            continue;
        }
        park = park &&
               (atomic_load(&e->posted) == 0 || atomic_load(&e->waiters) != 0 ||
                atomic_load(&e->token) != 0);
        napped = nap_or_park(e, watch, park);
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
        e->doze_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (e->doze_fd < 0)
            status = oari_fail(OAR_E_SYSTEM, "make an eventfd");
        else if ((status = oari_thread_start(&e->thread, "oar-engine",
                                             run_engine_thread, group)) !=
                 OAR_OK)
            close(e->doze_fd);
        atomic_store(&e->has_thread, status == OAR_OK);
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* What was posted before does not end here: the caller may hold a lock that a
 * function of it (oar_work_then) takes. */
void oari_engine_enqueue(oar_group *group, oar_work *work)
{
    oari_engine *e = &group->engine;
    int light = 1, none = 0;

    for (const oar_work *w = work; w != NULL && light; w = w->next)
        light = !is_heavy(group, w);
    if (light && oari_engine_try_hold(group)) {
        if (work->next == NULL &&
            atomic_compare_exchange_strong(&e->posted, &none, 1)) {
            work->heavy = 0;
            oari_drive_begin(group, work); /* alone, it needs no queue */
        } else {
            oari_engine_queue(group, work);
            oari_drive_begin_messages(group);
        }
        oari_engine_let_go(group);
        return;
    }
    oari_engine_queue(group, work);
    if (oari_work_function_runs(group))
        return; /* this thread drives, and takes it next */
    if (!atomic_load(&e->token))
        rouse_thread(group);
    else if (atomic_load(&e->driver_sleeps) || group->external.ops != NULL)
        oari_engine_wake(group);
}

oar_status oari_engine_init(oari_engine *engine,
                            const oari_engine_events *events)
{
    engine->events = events;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_mutex_init(&engine->spare_lock, NULL);
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
    /* without a thread the backend may not even be open */
    if (atomic_load(&e->has_thread)) {
        oari_engine_wake(group);
        pthread_join(e->thread, NULL);
    }
    while (group->opened && atomic_load(&e->posted) != 0)
        oari_drive_once(group); /* the group is broken: this ends all */
    if (atomic_load(&e->has_thread))
        close(e->doze_fd);
    pthread_cond_destroy(&e->changed);
    pthread_cond_destroy(&e->roused);
    pthread_mutex_destroy(&e->lock);
}
