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
 * Waiting has three stages: spin (only if every rank has a core), yield, sleep.
 * The lock guards the queues and the condition variable; it is never held while
 * driving.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <poll.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/group.h"

enum {
    YIELD_NS = 50000,        /* before going to sleep */
    NAP_NS = 100000000,      /* longest sleep between two looks around */
    BLIND_NAP_NS = 50000,    /* where the backend cannot wake us */
    MIN_DEADLINE_CHECK = 32, /* polls between two looks at the clock */
};

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

static void give_token(oari_engine *e)
{
    atomic_store(&e->token, 0);
    if (atomic_load(&e->waiters) != 0 || atomic_load(&e->posted) != 0)
        tell_everyone(e);
}

/* ---- faults
 * --------------------------------------------------------------------*/

static void timed_out(oar_group *g, const oar_work *work, int missing)
{
    int64_t limit =
        work->call.timeout_ms != 0 ? work->call.timeout_ms : g->timeout_ms;
    char who[256] = "the others";

    if (missing >= 0)
        oari_exec_missing(&g->exec, missing, who, sizeof who);
    oari_fail(OAR_E_TIMEOUT, "%s waited %" PRId64 " ms for %s",
              oar_coll_name(work->call.kind), limit, who);
    oari_group_break(g, work, missing);
}

static void peer_gone(oar_group *g, const oar_work *work, int rank)
{
    static const char *const how[] = {
        [OARI_PEER_DIED] = "has died",
        [OARI_PEER_LEFT] = "has left the group",
        [OARI_PEER_UNREACHABLE] = "cannot be reached any more",
    };
    char who[256];

    oari_exec_missing(&g->exec, rank, who, sizeof who);
    oari_fail(OAR_E_PEER, "%s %s", who, how[oari_group_gone(g, rank)]);
    oari_group_break(g, work, rank);
}

/* Whether a rank that is gone still owes the collective something. */
static int owes(const oar_group *g, int rank)
{
    const oari_board *b = g->board;
    const oari_exec *x = &g->exec;

    if (x->begun && oari_board_rank(b, rank) >= 0)
        return atomic_load(
                   &b->line[oari_board_rank(b, rank)][b->meeting & 1]->stamp) !=
               b->meeting;
    for (int i = 0; i < x->transfers; i++)
        if (x->transfer[i].peer == rank && !x->transfer[i].done)
            return 1;
    return 0;
}

/* The first rank the operation waits for that will never come, or -1. */
static int lost_rank(const oar_group *g, const oar_work *work)
{
    if (work != g->engine.current)
        return oari_group_gone(g, work->call.root) ? work->call.root : -1;
    for (int r = 0; r < g->ranks; r++)
        if (oari_group_gone(g, r) && owes(g, r))
            return r;
    return -1;
}

static void look_at_deadline(oar_group *g, oar_work *work)
{
    int64_t limit =
        work->call.timeout_ms != 0 ? work->call.timeout_ms : g->timeout_ms;

    if (work->deadline_ns == 0)
        work->deadline_ns = oari_deadline(limit);
    else if (oari_now_ns() >= work->deadline_ns)
        timed_out(g, work,
                  work == g->engine.current
                      ? (g->exec.begun ? oari_meet_missing(g->board) : -1)
                      : work->call.root);
}

static void look_at(oar_group *g, oar_work *work)
{
    int lost = lost_rank(g, work);

    if (lost >= 0)
        peer_gone(g, work, lost);
    else
        look_at_deadline(g, work);
}

/* Off the fast path: has anything gone wrong? */
static void look_around(oar_group *g)
{
    oari_engine *e = &g->engine;
    const oar_error *published;

    if ((published = oari_group_published(g)) != NULL)
        oari_group_adopt(g, published);
    if (!oari_group_broken(g) && e->current != NULL)
        look_at(g, e->current);
    for (oar_work *w = e->message; w != NULL; w = w->next)
        if (!oari_group_broken(g))
            look_at(g, w);
}

/* ---- driving
 * -------------------------------------------------------------------*/

static void finish(oar_group *g, oar_work *work, oar_status status)
{
    if (!work->mine)
        atomic_fetch_sub(&g->engine.posted, 1);
    oari_recorder_done(g->recorder, work->sequence,
                       status == OAR_OK ? OAR_RECORD_DONE : OAR_RECORD_FAILED);
    oari_work_finish(work, status);
}

/* Ends what is under way, after the group has broken. The backend lets go of
 * all transfers at its next progress. */
static void finish_broken(oar_group *g)
{
    oari_engine *e = &g->engine;
    oar_work *work;

    if (g->backend->abort != NULL)
        g->backend->abort(g->self, g->fault.status);
    if (g->backend->progress != NULL)
        g->backend->progress(g->self);
    if ((work = e->current) != NULL) {
        e->current = NULL;
        oari_exec_withdraw(&g->exec);
        finish(g, work, g->fault.status);
    }
    while ((work = e->message) != NULL) {
        e->message = work->next;
        finish(g, work, g->fault.status);
    }
}

static oar_work *take_collective(oari_engine *e)
{
    oar_work *work;

    pthread_mutex_lock(&e->lock);
    work = e->first;
    if (work != NULL && (e->first = work->next) == NULL)
        e->last = NULL;
    pthread_mutex_unlock(&e->lock);
    return work;
}

static oar_work *take_messages(oari_engine *e)
{
    oar_work *newest, *oldest = NULL, *next;

    pthread_mutex_lock(&e->lock);
    newest = e->fresh;
    e->fresh = NULL;
    pthread_mutex_unlock(&e->lock);
    for (; newest != NULL; newest = next) {
        next = newest->next;
        newest->next = oldest;
        oldest = newest;
    }
    return oldest;
}

/* A plan that cannot be made leaves the ranks out of step: that ends the group.
 */
static void start_collective(oar_group *g, oar_work *work)
{
    g->engine.current = work;
    if (oari_exec_start(&g->exec, &work->call, work->sequence) != OAR_OK)
        oari_group_break(g, work, -1);
}

static void start_message(oar_group *g, oar_work *work)
{
    oari_engine *e = &g->engine;
    oar_transfer *t = &work->transfer;
    oar_work **end = &e->message;
    oar_status status;

    *t = (oar_transfer){ .size = sizeof *t,
                         .peer = work->call.root,
                         .tag = (uint64_t)work->call.tag | UINT64_C(1) << 63,
                         .data = work->call.out.data,
                         .bytes = oari_call_bytes(&work->call) };
    work->next = NULL;
    while (*end != NULL)
        end = &(*end)->next;
    *end = work;
    status = work->call.kind == OAR_COLL_SEND ? g->backend->send(g->self, t)
                                              : g->backend->recv(g->self, t);
    if (status != OAR_OK)
        oari_group_break(g, work, t->peer);
}

static int drive_messages(oar_group *g)
{
    oar_work **at = &g->engine.message, *work;
    int moved = 0;

    while ((work = *at) != NULL) {
        if (!work->transfer.done) {
            at = &work->next;
            continue;
        }
        *at = work->next;
        finish(g, work, work->transfer.status);
        moved = 1;
    }
    return moved;
}

static int drive_collective(oar_group *g)
{
    oar_work *work = g->engine.current;

    switch (oari_exec_poll(&g->exec)) {
    case OARI_PENDING: return 0;
    case OARI_DONE:
        g->engine.current = NULL;
        finish(g, work, OAR_OK);
        return 1;
    case OARI_FAILED: oari_group_break(g, work, -1); return 1;
    }
    return 0;
}

static void take_new_work(oar_group *g)
{
    oari_engine *e = &g->engine;
    oar_work *work, *next;

    for (work = take_messages(e); work != NULL; work = next) {
        next = work->next;
        start_message(g, work);
    }
    if (e->current == NULL && (work = take_collective(e)) != NULL)
        start_collective(g, work);
}

/* Whether anything beyond the collective under way is posted. */
static int more_posted(const oari_engine *e)
{
    return atomic_load_explicit(&e->posted, memory_order_relaxed) >
           (e->current != NULL && !e->current->mine);
}

/* One round. Returns whether anything moved. */
static int drive_once(oar_group *g)
{
    oari_engine *e = &g->engine;
    int moved = 0;

    if (more_posted(e))
        take_new_work(g);
    if (!oari_group_broken(g) && g->backend->progress != NULL &&
        (g->exec.board == NULL || g->exec.board->member != NULL ||
         e->message != NULL) &&
        g->backend->progress(g->self) != OAR_OK)
        oari_group_break(g, e->current, -1);
    if (!oari_group_broken(g) && e->current != NULL)
        moved = drive_collective(g);
    if (!oari_group_broken(g) && e->message != NULL)
        moved |= drive_messages(g);
    if (oari_group_broken(g)) {
        take_new_work(g);
        finish_broken(g);
        moved = 1;
    }
    return moved;
}

/* ---- waiting
 * -------------------------------------------------------------------*/

typedef struct idle {
    int64_t since; /* 0: not idle yet */
    int polls;
} idle;

static int64_t nearest_deadline(const oari_engine *e)
{
    int64_t nearest = oari_now_ns() + NAP_NS;

    if (e->current != NULL && e->current->deadline_ns != 0 &&
        e->current->deadline_ns < nearest)
        nearest = e->current->deadline_ns;
    for (const oar_work *w = e->message; w != NULL; w = w->next)
        if (w->deadline_ns != 0 && w->deadline_ns < nearest)
            nearest = w->deadline_ns;
    return nearest;
}

static void sleep_blind(void)
{
    nanosleep(&(struct timespec){ 0, BLIND_NAP_NS }, NULL);
}

static void sleep_on_backend(oar_group *g)
{
    const oar_backend_ops *ops = g->backend;
    struct pollfd wait = { -1, POLLIN, 0 };

    if (ops->wait_fd == NULL || (wait.fd = ops->wait_fd(g->self)) < 0) {
        sleep_blind();
        return;
    }
    if (!ops->arm(g->self))
        poll(&wait, 1, oari_deadline_left_ms(nearest_deadline(&g->engine)));
}

/* What is posted from now on rings, and a ring that came early is not lost:
 * only what peers do has to be looked for once more. */
static void sleep_on_board(oar_group *g)
{
    oari_board_arm(g->board);
    if (drive_once(g))
        oari_board_awake(g->board);
    else
        oari_board_sleep(g->board, nearest_deadline(&g->engine));
}

/* Nothing moved: spin on, yield, or sleep. */
static void be_idle(oar_group *g, idle *i)
{
    int64_t spin = g->spin_ns, now;

    if (spin != 0 && ++i->polls % MIN_DEADLINE_CHECK != 0)
        return;
    now = oari_now_ns();
    if (i->since == 0)
        i->since = now;
    if (now - i->since < spin)
        return;
    look_around(g);
    if (now - i->since < spin + YIELD_NS)
        sched_yield();
    else if (g->board != NULL)
        sleep_on_board(g);
    else
        sleep_on_backend(g);
}

static int is_done(const oar_work *work)
{
    return atomic_load_explicit(&work->done, memory_order_acquire);
}

/* Drives, token in hand, until the work is done; NULL: until there is nothing
 * left, or a user wants the token. */
static void drive(oar_group *g, const oar_work *work)
{
    oari_engine *e = &g->engine;
    idle i = { 0 };

    for (;;) {
        if (drive_once(g))
            i = (idle){ 0 };
        if (work != NULL
                ? is_done(work)
                : atomic_load(&e->posted) == 0 || atomic_load(&e->waiters) != 0)
            return;
        be_idle(g, &i);
    }
}

/* ---- users
 * ---------------------------------------------------------------------*/

static void enqueue(oar_group *g, oar_work *work)
{
    oari_engine *e = &g->engine;

    pthread_mutex_lock(&e->lock);
    atomic_fetch_add(&e->posted, 1);
    work->next = NULL;
    if (work->call.kind >= OAR_COLL_SEND) {
        work->next = e->fresh;
        e->fresh = work;
    } else {
        if (e->last != NULL)
            e->last->next = work;
        else
            e->first = work;
        e->last = work;
    }
    pthread_mutex_unlock(&e->lock);
}

void oari_engine_wait(oar_group *group, oar_work *work)
{
    oari_engine *e = &group->engine;
    int driving = 0;

    if (is_done(work))
        return;
    atomic_fetch_add(&e->waiters, 1);
    oari_engine_wake(group);
    pthread_mutex_lock(&e->lock);
    while (!is_done(work) && !(driving = try_token(e)))
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    atomic_fetch_sub(&e->waiters, 1);
    if (driving) {
        drive(group, work);
        give_token(e);
    } else if (atomic_load(&e->posted) != 0)
        tell_everyone(e); /* the engine's thread stepped back for us */
}

/* The fast path: nobody drives, nothing is queued. */
void oari_engine_run(oar_group *group, oar_work *work)
{
    oari_engine *e = &group->engine;

    if (work->call.kind < OAR_COLL_SEND && try_token(e)) {
        if (atomic_load(&e->posted) == 0) {
            work->mine = 1;
            start_collective(group, work);
            drive(group, work);
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
    drive_once(group);
    look_around(group);
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

static void *engine_thread(void *arg)
{
    oar_group *g = arg;
    oari_engine *e = &g->engine;

    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        if (atomic_load(&e->posted) == 0 || atomic_load(&e->waiters) != 0 ||
            !try_token(e)) {
            pthread_cond_wait(&e->changed, &e->lock);
            continue;
        }
        pthread_mutex_unlock(&e->lock);
        drive(g, NULL);
        give_token(e);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

static oar_status start_thread(oar_group *g)
{
    oari_engine *e = &g->engine;
    int failed = 0;

    pthread_mutex_lock(&e->lock);
    if (!e->has_thread) {
        failed = pthread_create(&e->thread, NULL, engine_thread, g);
        e->has_thread = !failed;
    }
    pthread_mutex_unlock(&e->lock);
    if (failed)
        return oari_fail(OAR_E_SYSTEM, "start the engine's thread: %s",
                         strerror(failed));
    return OAR_OK;
}

oar_status oari_engine_post(oar_group *group, oar_work *work)
{
    OARI_TRY(start_thread(group));
    enqueue(group, work);
    tell_everyone(&group->engine);
    oari_engine_wake(group);
    return OAR_OK;
}

oar_status oari_engine_init(oari_engine *engine)
{
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->changed, NULL);
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
        drive_once(group); /* it is broken: everything ends at once */
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
}
