/* SPDX-License-Identifier: Apache-2.0 */
/* drive: what the thread that holds the token (engine.c) does: it takes what is
 * queued, moves collectives and messages on, and waits. The layer above finds
 * out whether anything has gone wrong (engine.h).
 *
 * Waiting has three stages: spin (only if every rank has a core), yield, sleep.
 * Where spinning did not help lately, because other programs keep ranks from
 * their cores, yielding begins almost at once: the core may be what the rank
 * that is waited for needs. A rank that loses its core by yielding goes on
 * spinning the next time, for as long as it has earned by short waits.
 * The engine's thread, for which no caller waits, spins and yields only if
 * every rank has two cores.
 */
#include "comm/engine/drive.h"

#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/engine/engine.h"
#include "comm/engine/external_engine.h"
#include "comm/engine/message.h"
#include "comm/engine/work.h"

enum {
    SHORT_SPIN_NS = 2000,      /* where spinning did not help lately */
    USELESS_SPIN = 8,          /* what such a wait counts; a short one is 1 */
    USELESS_LIMIT = 16,        /* from which on spinning is short */
    USELESS_MOST = 64,         /* what is counted at most */
    CONTESTED_NS = 1000000000, /* the core, after others have had it */
    LOST_NS = 100000,          /* between two looks: others had the core */
    EARNED_NS = 400000,        /* of spinning, by a collective */
    MOST_SPENT_NS = 200000000, /* on that before any is earned */
    ENOUGH_NS = 20000000,      /* to begin again, once all was spent */
    YIELD_NS = 50000,          /* before going to sleep */
    PATIENT_NS = 5000000,      /* the same in a patient group */
    CALLER_NS = 200000,        /* where a peer may have to wake up to answer */
    GPU_YIELD_NS = 2000000,    /* where a GPU works, which wakes no thread */
    NAP_NS = 100000000,        /* longest sleep between two looks for faults */
    QUIET_NAP_NS = 1000000000, /* the same where everything wakes the thread */
    LOOK_ROUNDS = 256, /* in which something moved, to a look at deadlines */
    SHORT_NAP_NS = 10000000, /* longest sleep in a mismatch */
    BLIND_NAP_NS = 50000,    /* where the backend cannot wake this thread */
    PASSES = 32,             /* between two looks at the clock; */
    LONG_PASSES = 2,         /* those that poll a sync point many times */
    YIELDS = 8,              /* to a look, where ranks share cores */
    TURNS = 64,              /* the same, where spinning goes on */
};

/* ---- driving ------------------------------------------------------------- */

static void finish_work(oar_group *g, oar_work *work, oar_status status)
{
    if (!work->mine) {
        if (work->heavy)
            atomic_fetch_sub(&g->engine.heavy, 1);
        atomic_fetch_sub(&g->engine.posted, 1);
    }
    oari_recorder_done(g->recorder, work->sequence,
                       status == OAR_OK ? OAR_RECORD_DONE : OAR_RECORD_FAILED);
    oari_work_finish(work, status);
}

void oari_drive_finish(oar_group *g, oari_lane *lane, oar_status status)
{
    oar_work *work = lane->work;
    oari_engine *e = &g->engine;

    lane->work = NULL;
    work->lane = NULL;
    e->busy--;
    if (work->call.gpu != NULL)
        e->on_gpu--;
    if (atomic_load_explicit(&work->ordered, memory_order_relaxed))
        atomic_fetch_sub(&e->watched, 1);
    finish_work(g, work, status);
}

/* Ends what is under way, after the group has broken. The backend drops all
 * transfers at its next progress.
 *
 * A send that had given its data away is done. So is a receive that has come,
 * unless an external engine carries messages: it may have read the data from a
 * buffer that its owner had taken back (oari_external_too_late). */
static void finish_broken(oar_group *g)
{
    oari_engine *e = &g->engine;
    oar_work *work;

    if (g->backend->abort != NULL)
        g->backend->abort(g->self, g->fault.error.status);
    if (g->backend->progress != NULL)
        g->backend->progress(g->self);
    oari_external_abort(g);
    oari_drive_gpu_drain(g);
    for (int i = 0; i < e->lanes; i++)
        if (e->lane[i].work != NULL) {
            oar_status kept = oari_exec_withdraw(&e->lane[i].exec);
            oari_drive_finish(g, &e->lane[i],
                              kept == OAR_OK ? g->fault.error.status
                                             : OAR_E_INTERNAL);
        }
    atomic_fetch_sub(&e->posted, e->standing);
    e->standing = 0;
    while ((work = e->message) != NULL) {
        const oar_transfer *t = &work->transfer;
        oar_status status = work->alone ? t->status : g->fault.error.status;

        e->message = work->next;
        if (!work->alone &&
            (work->call.kind == OAR_COLL_SEND || !oari_external_carries(g)) &&
            t->done && (t->status == OAR_OK || t->status == OAR_E_SIZE)) {
            oari_message_came(work);
            status = oari_message_check(work);
        }
        finish_work(g, work, status);
    }
}

/* Returns a free lane, or NULL. Device memory has lanes of its own. */
static oari_lane *free_lane(const oari_engine *e, const oar_work *work)
{
    int on_gpu = work->call.gpu != NULL;
    int first = on_gpu ? e->host_lanes : 0;
    int end = on_gpu ? e->lanes : e->host_lanes;

    for (int i = first; i < end; i++)
        if (e->lane[i].work == NULL)
            return &e->lane[i];
    return NULL;
}

/* Returns the next collective that may begin, and its lane; NULL: none. A
 * barrier runs alone, after everything queued before it and before everything
 * queued after it. */
static oar_work *take_collective(oari_engine *e, oari_lane **lane)
{
    oar_work *work;

    if (e->busy != 0 && e->alone)
        return NULL;
    pthread_mutex_lock(&e->lock);
    work = e->first;
    if (work != NULL) {
        e->alone = work->call.kind == OAR_COLL_BARRIER;
        if ((e->alone && e->busy != 0) || (*lane = free_lane(e, work)) == NULL)
            work = NULL;
        else {
            atomic_fetch_sub_explicit(&e->queued, 1, memory_order_relaxed);
            if ((e->first = work->next) == NULL)
                e->last = NULL;
        }
    }
    pthread_mutex_unlock(&e->lock);
    return work;
}

/* Ends the group if the plan cannot be made: its rank would fall out of step.
 */
static void start_collective(oar_group *g, oari_lane *lane, oar_work *work)
{
    oari_engine *e = &g->engine;

    lane->work = work;
    work->lane = lane;
    e->busy++;
    if (work->call.gpu != NULL) {
        oari_drive_gpu_start(g, lane, work);
        return;
    }
    e->number++;
    if (work->call.ragged)
        oari_report_parts_keep(&e->parts, e->number,
                               work->call.in_counts != NULL
                                   ? work->call.in_counts
                                   : work->call.out_counts,
                               g->ranks);
    if (oari_exec_start(&lane->exec, &work->call, work->sequence, e->number) !=
        OAR_OK)
        oari_engine_broke(g, work, -1);
}

static void start_message(oar_group *g, oar_work *work)
{
    oari_engine *e = &g->engine;
    oar_transfer *t = &work->transfer;
    oar_work **end = &e->message;
    oar_status status;

    *t = (oar_transfer){ .size = sizeof *t,
                         .peer = work->call.root,
                         .tag = work->call.wire_tag,
                         .data = work->call.out.data,
                         .bytes = oari_span_bytes(&work->call.out),
                         .synchronous = work->call.synchronous,
                         .at_most = work->call.at_most };
    if (work->call.wire_tag == 0) {
        t->tag = oari_message_tag(work->call.tag);
        if (work->call.kind == OAR_COLL_SEND)
            t->tag |= oari_message_says(g, work->call.in.dtype, work->sequence);
        t->any = oari_message_any(g, work->call.tag);
    }
    work->next = NULL;
    while (*end != NULL)
        end = &(*end)->next;
    *end = work;
    status = work->call.kind == OAR_COLL_SEND
                 ? oari_carrier(g)->send(oari_carrier_self(g), t)
                 : oari_carrier(g)->recv(oari_carrier_self(g), t);
    if (status != OAR_OK && oari_external_carries(g))
        oari_external_fail(g, &g->external);
    else if (status != OAR_OK)
        oari_engine_broke(g, work, t->peer);
}

/* Returns whether a message has failed, and not because both sides differ. Then
 * the group ends as soon as the cause is known, and the message with it. */
static int check_lost_message(oar_group *g, const oar_work *work)
{
    const oar_transfer *t = &work->transfer;

    if (t->status == OAR_OK || t->status == OAR_E_SIZE || work->alone ||
        oari_group_broken(g))
        return 0;
    oari_fail(t->status, "message with rank %d failed", t->peer);
    if (oari_external_carries(g))
        oari_external_fail(g, &g->external);
    else
        oari_engine_broke(g, work, t->peer);
    return 1;
}

void oari_drive_end_message(oar_group *g, oar_work *work)
{
    oar_work **at = &g->engine.message;

    while (*at != NULL && *at != work)
        at = &(*at)->next;
    if (*at == NULL)
        return;
    *at = work->next;
    finish_work(g, work, work->transfer.status);
}

static int drive_messages(oar_group *g)
{
    oar_work **at = &g->engine.message, *work;
    int moved = 0;

    while ((work = *at) != NULL) {
        if (!work->transfer.done || check_lost_message(g, work) ||
            !oari_message_settled(work)) {
            at = &work->next;
            continue;
        }
        if (work->call.kind == OAR_COLL_RECV && oari_external_too_late(g, work))
            return 1;
        *at = work->next;
        oari_message_came(work);
        finish_work(g, work, oari_message_check(work));
        moved = 1;
    }
    return moved;
}

static int drive_lane(oar_group *g, oari_lane *lane)
{
    switch (lane->work->call.gpu != NULL ? oari_drive_gpu(g, lane)
                                         : oari_exec_poll(&lane->exec)) {
    case OARI_PENDING: return 0;
    case OARI_DONE:
        if (!oari_external_too_late(g, lane->work))
            oari_drive_finish(g, lane, OAR_OK);
        return 1;
    case OARI_FAILED: break;
    }
    if (lane->exec.doubt.found && g->engine.events->mismatch(g, &lane->exec))
        return 1;
    if ((lane->exec.posted || oari_external_carries(g)) &&
        !lane->exec.doubt.found) {
        oari_external_fail(g, lane->exec.posted ? lane->exec.external
                                                : &g->external);
        return 0;
    }
    oari_engine_broke(g, lane->work, -1);
    return 1;
}

/* A plan cannot go on where the external engine that carries its messages has
 * failed; but an operation that the engine does itself is still compared with
 * what the other ranks do. */
static int drive_collectives(oar_group *g)
{
    oari_engine *e = &g->engine;
    int moved = 0, gpu_lanes = e->lanes - e->host_lanes;

    if (e->busy == 0 || e->halted)
        return 0;
    for (int i = 0; i < e->host_lanes && !oari_group_broken(g); i++)
        if (e->lane[i].work != NULL &&
            (g->external.engine_failed_ns == 0 || e->lane[i].exec.posted ||
             !oari_external_carries(g)))
            moved |= drive_lane(g, &e->lane[i]);
    for (int i = 0; e->on_gpu != 0 && i < gpu_lanes && !oari_group_broken(g);
         i++) {
        oari_lane *lane =
            &e->lane[e->host_lanes + (e->gpu_turn + i) % gpu_lanes];

        if (lane->work != NULL)
            moved |= drive_lane(g, lane);
    }
    return moved;
}

void oari_drive_begin_messages(oar_group *g)
{
    oari_engine *e = &g->engine;
    oar_work *newest, *oldest = NULL, *next;

    pthread_mutex_lock(&e->lock);
    newest = e->fresh;
    e->fresh = NULL;
    pthread_mutex_unlock(&e->lock);
    for (; newest != NULL; newest = next) {
        atomic_fetch_sub_explicit(&e->queued, 1, memory_order_relaxed);
        next = newest->next;
        newest->next = oldest;
        oldest = newest;
    }
    for (; oldest != NULL; oldest = next) {
        next = oldest->next;
        start_message(g, oldest);
    }
}

static void take_new_work(oar_group *g)
{
    oari_engine *e = &g->engine;
    oar_work *work;
    oari_lane *lane;

    oari_drive_begin_messages(g);
    while ((work = take_collective(e, &lane)) != NULL)
        start_collective(g, lane, work);
}

/* Moves the external engine on, if there is one. Returns whether the links need
 * progress as well. */
static int links_need_progress(oar_group *g)
{
    const oari_engine *e = &g->engine;
    const oari_shm *b = e->lane->exec.shm;

    if (g->external.ops != NULL && !oari_external_drive(g))
        return 0;
    return b == NULL || b->member != NULL || e->message != NULL ||
           oari_exec_has_messages(&e->lane->exec);
}

/* Gives active messages that have come to their function. */
static int run_active(oar_group *g)
{
    oari_active a;

    if (!oari_match_has_active(g->active.match))
        return 0;
    oari_work_function_begin(g);
    while (oari_match_take_active(g->active.match, &a)) {
        g->active.fn(g->active.arg, a.source, a.data, a.bytes);
        oari_match_release_active(g->active.match, &a);
    }
    oari_work_function_end();
    return 1;
}

int oari_drive_once(oar_group *g)
{
    oari_engine *e = &g->engine;
    int moved = 0;

    e->unfinished = 0;
    if (atomic_load_explicit(&e->queued, memory_order_relaxed) != 0)
        take_new_work(g);
    if (e->on_gpu != 0 && !oari_group_broken(g))
        oari_gpu_progress(g);
    if (!oari_group_broken(g) && g->backend->progress != NULL &&
        links_need_progress(g) && g->backend->progress(g->self) != OAR_OK)
        oari_engine_broke(g, e->lane->work, -1);
    if (g->active.fn != NULL && !oari_group_broken(g))
        moved = run_active(g);
    if (!oari_group_broken(g))
        moved |= drive_collectives(g);
    if (!oari_group_broken(g) && e->message != NULL)
        moved |= drive_messages(g);
    if (oari_group_broken(g)) {
        take_new_work(g);
        finish_broken(g);
        moved = 1;
    }
    return moved;
}

/* ---- waiting ------------------------------------------------------------- */

typedef struct idle {
    int64_t since;  /* 0: not idle yet */
    int64_t looked; /* at the clock, since spinning did not suffice; or 0 */
    int spins_on;   /* it has gone on spinning */
    int turns;      /* in which it did */
    int passes;
    int outlasted; /* spinning did not suffice, */
    int useless;   /* and would not have, had it gone on for its usual time */
} idle;

static int64_t earlier_deadline(const oar_work *work, int64_t than)
{
    return work != NULL && work->deadline_ns != 0 && work->deadline_ns < than
               ? work->deadline_ns
               : than;
}

/* Returns when a message that waits is to be reported, if that is earlier. */
static int64_t earlier_warning(const oar_group *g, const oar_work *work,
                               int64_t than)
{
    int64_t at = work->since_ns + g->settings.stall_ms * 1000000;

    return g->settings.stall_ms > 0 && !work->warned && at < than ? at : than;
}

/* Everything wakes the thread but deadlines, where only messages are under way,
 * no caller waits for one, and other ranks need not be asked. */
static int64_t longest_nap(const oar_group *g, int waited)
{
    const oari_engine *e = &g->engine;

    if (!waited && e->quiet && e->busy == 0 && g->external.ops == NULL &&
        (g->in_tree->restless == NULL || !g->in_tree->restless(g->self)))
        return QUIET_NAP_NS;
    return e->restless ? SHORT_NAP_NS : NAP_NS;
}

static int64_t nearest_deadline(const oar_group *g, int waited)
{
    const oari_engine *e = &g->engine;
    int64_t nearest = oari_now_ns() + longest_nap(g, waited);

    if (e->until_ns < nearest)
        nearest = e->until_ns;
    for (int i = 0; i < e->lanes; i++)
        nearest = earlier_deadline(e->lane[i].work, nearest);
    for (const oar_work *w = e->message; w != NULL; w = w->next)
        nearest = earlier_warning(g, w, earlier_deadline(w, nearest));
    return nearest;
}

static int is_reached(const oar_group *g, const oari_goal *goal)
{
    const oari_engine *e = &g->engine;

    if (goal->work != NULL)
        return oari_work_is_done(goal->work);
    if (goal->is_done != NULL)
        return goal->is_done(goal->arg);
    return atomic_load(&e->posted) == atomic_load(&e->watched) ||
           atomic_load(&e->waiters) != 0;
}

/* Sleeps unless something was posted that could begin now: the wake-up for it
 * may have come while the backend made progress, which consumes wake-ups. */
static int sleep_on_backend(oar_group *g, const oari_goal *goal, int waited)
{
    const oar_backend_ops *ops = g->backend;
    oari_engine *e = &g->engine;
    struct pollfd wait = { -1, POLLIN, 0 };
    int64_t until;
    int could_start;

    if (ops->wait_fd == NULL || (wait.fd = ops->wait_fd(g->self)) < 0) {
        nanosleep(&(struct timespec){ 0, BLIND_NAP_NS }, NULL);
        return 1;
    }
    if (ops->arm(g->self))
        return 1;
    pthread_mutex_lock(&e->lock);
    could_start = e->fresh != NULL ||
                  (e->first != NULL && free_lane(e, e->first) != NULL &&
                   !(e->busy != 0 && e->alone));
    pthread_mutex_unlock(&e->lock);
    if (could_start || (waited && is_reached(g, goal)))
        return 1;
    until = nearest_deadline(g, goal->work != NULL);
    if (!waited)
        return oari_engine_doze(g, wait.fd, until);
    poll(&wait, 1, oari_deadline_left_ms(until));
    return 1;
}

/* What is posted from now on wakes this thread, and a wake-up that came early
 * is not lost: only what peers did needs another look. */
static int sleep_on_shm(oar_group *g, const oari_goal *goal, int waited,
                        idle *i)
{
    int64_t until;

    oari_shm_arm(g->shm);
    if (oari_drive_once(g) || (waited && is_reached(g, goal))) {
        oari_shm_awake(g->shm);
        return 1;
    }
    until = nearest_deadline(g, goal->work != NULL);
    if (waited) {
        oari_shm_sleep(g->shm, -1, until);
        return 1;
    }
    if (!oari_engine_doze(g, g->shm->wait_fd, until))
        return 0;
    oari_shm_awake(g->shm);
    if (oari_drive_once(g)) /* what came is answered before all else */
        *i = (idle){ 0 };
    oari_shm_rise(g->shm);
    return 1;
}

/* Sleeps on the links. Returns 0 if a user has the token now. */
static int sleep_on_links(oar_group *g, const oari_goal *goal, int waited,
                          idle *i)
{
    oari_engine *e = &g->engine;
    int kept;

    /* before it looks for the last time (oari_engine_tell) */
    atomic_store(&e->driver_sleeps,
                 waited ? OARI_DRIVER_USER_SLEEPS : OARI_DRIVER_THREAD_SLEEPS);
    atomic_thread_fence(memory_order_seq_cst);
    kept = g->shm != NULL ? sleep_on_shm(g, goal, waited, i)
                          : sleep_on_backend(g, goal, waited);
    if (kept)
        atomic_store(&e->driver_sleeps, OARI_DRIVER_AWAKE);
    return kept;
}

/* ---- waiting where others want the core -----------------------------------
 *
 * A thread that gives its core to another program has it back milliseconds
 * later, in which ranks could have done thousands of small collectives. So a
 * rank that has lost its core to others goes on spinning. That helps if the
 * rank that is waited for is about to run again, on its own core. If both ranks
 * are on one core, it gives the system time to part them: of two threads that
 * hand the core to each other every few microseconds it moves neither.
 *
 * Spinning is paid for: each collective that waited for less than the usual
 * time earns some. A rank that waits for long each time has nothing to spend,
 * and sleeps. */

/* How often others have had the core of this thread without its sleeping. */
static long core_losses(void)
{
    struct rusage use;

    return getrusage(RUSAGE_THREAD, &use) == 0 ? use.ru_nivcsw : 0;
}

static void yield_core(oari_engine *e, int64_t now)
{
    long before = core_losses();

    sched_yield();
    if (core_losses() != before)
        e->contested_until_ns = now + CONTESTED_NS;
}

/* Takes off what the collectives before this one have earned. */
static void earn(oari_engine *e)
{
    if (e->number <= e->paid + 1)
        return;
    e->spent_ns -= (int64_t)(e->number - 1 - e->paid) * EARNED_NS;
    e->paid = e->number - 1;
    if (e->spent_ns < 0)
        e->spent_ns = 0;
    if (e->spent_ns <= MOST_SPENT_NS - ENOUGH_NS)
        e->impatient = 0;
}

/* Returns whether a rank goes on spinning. Time in which others had the core is
 * not spent. It looks for faults less often than one that yields, and for
 * peers that are gone, of which a rank that sleeps is told. */
static int spins_on(oar_group *g, idle *i, int64_t now)
{
    oari_engine *e = &g->engine;
    int64_t gap = i->looked != 0 ? now - i->looked : 0;

    i->looked = now;
    if (gap >= LOST_NS)
        e->contested_until_ns = now + CONTESTED_NS;
    if (now >= e->contested_until_ns)
        return 0;
    if (i->spins_on)
        e->spent_ns += gap < LOST_NS ? gap : LOST_NS;
    else
        earn(e);
    if (e->spent_ns >= MOST_SPENT_NS)
        e->impatient = 1;
    i->spins_on = !e->impatient;
    if (i->spins_on && ++i->turns % TURNS == 0) {
        oari_engine_look(g);
        /* Last: what a rank sent before it went is read before a look. */
        g->shm->ops->check(g->shm->self);
    }
    return i->spins_on;
}

/* Spins on, yields or sleeps, because nothing moved. The engine's thread sleeps
 * at once if it would keep a core from the threads that compute. Returns 0 if a
 * user has the token now. */
static int be_idle(oar_group *g, idle *i, const oari_goal *goal)
{
    int waited = goal->work != NULL || goal->is_done != NULL;
    int64_t most = waited || g->spare ? g->spin_ns : 0, now;
    int64_t spin =
        g->engine.useless_spins >= USELESS_LIMIT && most > SHORT_SPIN_NS
            ? SHORT_SPIN_NS
            : most;
    /* a nap takes as long as several small operations of a GPU */
    int64_t yield_ns = g->spin_ns == 0                  ? YIELD_NS
                       : waited && g->patient           ? PATIENT_NS
                       : waited && g->active.fn != NULL ? CALLER_NS
                       : g->engine.on_gpu != 0          ? GPU_YIELD_NS
                                                        : YIELD_NS;
    int may_spin_on;

    /* An external engine that can wake this thread works in threads of its own:
     * they need the cores on which this one would spin. */
    if (g->external.ops != NULL && g->external.ops->wait_fd != NULL &&
        g->engine.on_gpu == 0) {
        oari_engine_look(g);
        oari_external_sleep(g, 0, nearest_deadline(g, waited));
        return 1;
    }
    if (g->shm != NULL && g->shm->copying) { /* a part a round */
        if (++i->passes % PASSES == 0)
            oari_engine_look(g);
        return 1;
    }
    /* A look takes as long as handing the core to another rank. */
    if (spin == 0 && waited && g->external.ops == NULL &&
        ++i->passes % YIELDS != 0) {
        sched_yield();
        return 1;
    }
    i->passes +=
        oari_exec_is_at_sync(&g->engine.lane->exec) ? PASSES / LONG_PASSES : 1;
    if (spin != 0 && i->passes < PASSES)
        return 1;
    i->passes = 0;
    now = oari_now_ns();
    if (i->since == 0)
        i->since = now;
    if (now - i->since < spin)
        return 1;
    i->outlasted = 1;
    if (most != 0 && !i->useless && now - i->since >= most) {
        i->useless = 1;
        earn(&g->engine);
        g->engine.paid = g->engine.number; /* this one earns nothing */
        if (g->engine.useless_spins < USELESS_MOST)
            g->engine.useless_spins += USELESS_SPIN;
    }
    may_spin_on = waited && g->shm != NULL && g->shm->adapts &&
                  g->external.ops == NULL && g->engine.on_gpu == 0;
    if (may_spin_on && spins_on(g, i, now))
        return 1;
    oari_engine_look(g);
    if (g->engine.unfinished ||
        ((waited || g->spare) && now - i->since < most + yield_ns)) {
        if (may_spin_on)
            yield_core(&g->engine, now);
        else
            sched_yield();
    } else if (g->engine.on_gpu != 0)
        nanosleep(&(struct timespec){ 0, BLIND_NAP_NS }, NULL);
    else if (g->external.ops != NULL)
        oari_external_sleep(g, now - i->since, nearest_deadline(g, waited));
    else {
        i->looked = 0;
        return sleep_on_links(g, goal, waited, i);
    }
    return 1;
}

int oari_drive_until(oar_group *g, oari_goal goal, int64_t until_ns)
{
    oari_engine *e = &g->engine;
    idle i = { 0 };

    e->until_ns = until_ns;
    for (;;) {
        if (oari_drive_once(g)) {
            i = (idle){ .outlasted = i.outlasted, .useless = i.useless };
            if (g->loose && ++e->rounds % LOOK_ROUNDS == 0)
                oari_engine_look(g);
        }
        if (is_reached(g, &goal) ||
            (until_ns != OARI_NEVER && oari_now_ns() >= until_ns)) {
            if (e->useless_spins > 0 && !i.outlasted)
                e->useless_spins--;
            return 1;
        }
        if (!be_idle(g, &i, &goal))
            return 0;
    }
}

void oari_drive_start(oar_group *g, oar_work *work)
{
    if (work->call.kind < OAR_COLL_SEND || work->call.gpu != NULL)
        start_collective(g, g->engine.lane, work);
    else
        start_message(g, work);
}

void oari_drive_begin(oar_group *g, oar_work *work)
{
    oari_engine *e = &g->engine;

    e->alone = work->call.kind == OAR_COLL_BARRIER;
    oari_drive_start(g, work);
    e->lane->exec.never_waits = 1;
    if (!oari_group_broken(g)) {
        drive_collectives(g);
        drive_messages(g);
    }
    e->lane->exec.never_waits = 0;
}

void oari_drive_last(oar_group *g)
{
    drive_collectives(g);
}

oar_work *oari_drive_any(const oar_group *g)
{
    const oari_engine *e = &g->engine;

    for (int i = 0; i < e->lanes; i++)
        if (e->lane[i].work != NULL)
            return e->lane[i].work;
    return e->message;
}
