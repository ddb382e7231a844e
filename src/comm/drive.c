/* SPDX-License-Identifier: Apache-2.0 */
/* drive: what a driver does, token in hand (engine.c): takes what is queued,
 * moves collectives and messages on, looks whether anything has gone wrong, and
 * waits.
 *
 * Waiting has three stages: spin (only if every rank has a core), yield, sleep.
 */
#include "comm/drive.h"

#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/missed.h"
#include "comm/presence.h"

enum {
    YIELD_NS = 50000,        /* before going to sleep */
    NAP_NS = 100000000,      /* longest sleep between two looks around */
    BLIND_NAP_NS = 50000,    /* where the backend cannot wake us */
    MIN_DEADLINE_CHECK = 32, /* polls between two looks at the clock */
    FIRST_OPERATIONS = 3
};

/* ---- faults
 * --------------------------------------------------------------------*/

static void timed_out(oar_group *g, const oar_work *work, int missing)
{
    int64_t limit =
        work->call.timeout_ms != 0 ? work->call.timeout_ms : g->timeout_ms;
    char who[400] = "the others";

    if (missing >= 0)
        oari_presence_text(g, missing, who, sizeof who);
    oari_fail(OAR_E_TIMEOUT, "%s waited %" PRId64 " ms for %s",
              oar_coll_name(work->call.kind), limit, who);
    oari_group_break(g, work, missing);
}

/* A rank that has gone before it called anything may have given up while the
 * group was made, because of another. */
static int blames_another(oar_group *g, const oar_work *work, int rank)
{
    oar_error said;

    if (work->sequence > FIRST_OPERATIONS ||
        !oari_missed_word(g->store, g->name, g->rank, g->ranks, rank, &said))
        return 0;
    oari_fail_with(&said);
    oari_group_break(g, work, said.peer);
    return 1;
}

static void peer_gone(oar_group *g, const oar_work *work, int rank)
{
    static const char *const how[] = {
        [OARI_PEER_DIED] = "has died",
        [OARI_PEER_LEFT] = "has left the group",
        [OARI_PEER_UNREACHABLE] = "cannot be reached any more",
    };
    char who[400];

    if (blames_another(g, work, rank))
        return;
    oari_presence_text(g, rank, who, sizeof who);
    oari_fail(OAR_E_PEER, "%s %s", who, how[oari_group_gone(g, rank)]);
    oari_group_break(g, work, rank);
}

/* Whether a rank that is gone still owes the collective something. */
static int owes(const oari_exec *x, int rank)
{
    return oari_exec_owes_line(x, rank) || oari_exec_owes_message(x, rank);
}

/* A message from anybody is lost when nobody is left to send it. */
static int lost_peer(const oar_group *g, int peer)
{
    int last = -1;

    if (peer >= 0)
        return oari_group_gone(g, peer) ? peer : -1;
    for (int r = 0; r < g->ranks; r++) {
        if (r == g->rank)
            continue;
        if (!oari_group_gone(g, r))
            return -1;
        last = r;
    }
    return last;
}

/* A message of the library's own that may never be taken. */
static int is_notice(const oar_work *work)
{
    return work->call.wire_tag != 0 && work->call.kind == OAR_COLL_SEND;
}

/* The first rank the operation waits for that will never come, or -1. */
static int lost_rank(const oar_group *g, const oar_work *work)
{
    if (work->lane == NULL)
        return is_notice(work) ? -1 : lost_peer(g, work->call.root);
    for (int r = 0; r < g->ranks; r++)
        if (oari_group_gone(g, r) && owes(&work->lane->exec, r))
            return r;
    return -1;
}

/* Whether the operation waits for this rank, as far as can be told. */
static int is_missing(const oar_group *g, const oar_work *work, int rank)
{
    if (rank == g->rank)
        return 0;
    if (work->lane == NULL)
        return work->call.root < 0 || work->call.root == rank;
    return owes(&work->lane->exec, rank);
}

/* A rank may wait for one that itself waits for another. If somebody is stopped
 * that is who all of them wait for in the end. */
static int find_stopped(const oar_group *g)
{
    for (int r = 0; r < g->ranks; r++)
        if (r != g->rank && strcmp(oari_presence_how(g, r), "stopped") == 0)
            return r;
    return -1;
}

/* Who the operation waits for, if one rank can be named. */
static int missing_rank(const oar_group *g, const oar_work *work)
{
    int rank = find_stopped(g);

    if (rank >= 0)
        return rank;
    if (work->lane == NULL)
        return work->call.root;
    rank = work->lane->exec.begun ? oari_meet_missing(g->board) : -1;
    if (rank >= 0)
        return g->board->member != NULL ? g->board->member[rank] : rank;
    for (int r = 0; r < g->ranks; r++)
        if (is_missing(g, work, r))
            return r;
    return -1;
}

/* Whether somebody it waits for, or this rank, is in a part that may be slow.
 */
static int is_slow(const oar_group *g, const oar_work *work)
{
    oari_scope scope;

    for (int r = 0; r < g->ranks; r++)
        if ((r == g->rank || is_missing(g, work, r)) &&
            oari_presence_scope(g, r, &scope))
            return 1;
    return 0;
}

/* Says once who is missing and what each did last. */
static void warn(const oar_group *g, oar_work *work)
{
    char text[700] = "", who[300], site[96], age[32];
    size_t used = 0;
    int missing = 0;

    for (int r = 0; r < g->ranks; r++) {
        if (!is_missing(g, work, r))
            continue;
        missing++;
        oari_presence_text(g, r, who, sizeof who);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s",
                                 missing > 1 ? ", " : "", who);
        if (used >= sizeof text)
            used = sizeof text - 1;
    }
    work->warned = 1;
    oari_site_text(work->call.file, work->call.line, site, sizeof site);
    oari_age_text(oari_now_ns() - work->since_ns, age, sizeof age);
    oari_log(OAR_LOG_WARN,
             "group \"%s\", rank %d: #%" PRIu64
             " %s at %s has waited %s for %d of %d ranks: %s",
             g->name, g->rank, work->sequence, oar_coll_name(work->call.kind),
             site, age, missing, g->ranks, text);
}

static void look_at_deadline(oar_group *g, oar_work *work)
{
    int64_t limit =
        work->call.timeout_ms != 0 ? work->call.timeout_ms : g->timeout_ms;
    int64_t stall = g->settings.stall_ms, now = oari_now_ns();

    if (work->deadline_ns == 0) {
        work->since_ns = now;
        work->deadline_ns = oari_deadline(limit);
        return;
    }
    if (!work->warned && !is_notice(work) && stall > 0 &&
        now - work->since_ns > stall * 1000000)
        warn(g, work);
    if (now < work->deadline_ns)
        return;
    if (is_slow(g, work)) {
        work->slow = 1;
        work->deadline_ns = now + NAP_NS; /* to look again */
    } else if (work->slow) {
        work->slow = 0;
        work->deadline_ns = oari_deadline(limit);
    } else
        timed_out(g, work, missing_rank(g, work));
}

static void look_at(oar_group *g, oar_work *work)
{
    int lost = lost_rank(g, work);

    if (lost >= 0)
        peer_gone(g, work, lost);
    else
        look_at_deadline(g, work);
}

static oar_work *any_work(const oari_engine *e)
{
    for (int i = 0; i < e->lanes; i++)
        if (e->lane[i].work != NULL)
            return e->lane[i].work;
    return e->message;
}

/* A peer gave up waiting, perhaps for one that waits itself. If from here it
 * can be seen who is stopped, that is said instead, and counts everywhere. */
static void hear(oar_group *g, const oar_error *published)
{
    const oar_work *work = any_work(&g->engine);
    int stopped =
        oari_fault_sure(published) || work == NULL ? -1 : find_stopped(g);

    if (stopped >= 0)
        timed_out(g, work, stopped);
    else
        oari_group_adopt(g, published);
}

void oari_drive_look(oar_group *g)
{
    oari_engine *e = &g->engine;
    const oar_error *published;

    if ((published = oari_group_published(g)) != NULL && !oari_group_broken(g))
        hear(g, published);
    for (int i = 0; i < e->lanes; i++)
        if (!oari_group_broken(g) && e->lane[i].work != NULL)
            look_at(g, e->lane[i].work);
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

static void finish_lane(oar_group *g, oari_lane *lane, oar_status status)
{
    oar_work *work = lane->work;

    lane->work = NULL;
    work->lane = NULL;
    g->engine.busy--;
    finish(g, work, status);
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
    for (int i = 0; i < e->lanes; i++)
        if (e->lane[i].work != NULL) {
            oar_status kept = oari_exec_withdraw(&e->lane[i].exec);
            finish_lane(g, &e->lane[i],
                        kept == OAR_OK ? g->fault.status : OAR_E_INTERNAL);
        }
    while ((work = e->message) != NULL) {
        e->message = work->next;
        finish(g, work, g->fault.status);
    }
}

/* The next one that may begin. A barrier is a point in the order: it runs
 * alone, after all before it and before all after it. */
static oar_work *take_collective(oari_engine *e)
{
    oar_work *work;

    if (e->busy != 0 && e->alone)
        return NULL;
    pthread_mutex_lock(&e->lock);
    work = e->first;
    if (work != NULL) {
        e->alone = work->call.kind == OAR_COLL_BARRIER;
        if (e->alone && e->busy != 0)
            work = NULL;
        else if ((e->first = work->next) == NULL)
            e->last = NULL;
    }
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
static void start_collective(oar_group *g, oari_lane *lane, oar_work *work)
{
    oari_engine *e = &g->engine;

    lane->work = work;
    work->lane = lane;
    e->busy++;
    if (oari_exec_start(&lane->exec, &work->call, work->sequence,
                        ++e->number) != OAR_OK)
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
                         .tag = work->call.wire_tag != 0
                                    ? work->call.wire_tag
                                    : oari_message_tag(work->call.tag),
                         .any = oari_message_any(work->call.tag),
                         .data = work->call.out.data,
                         .bytes = oari_span_bytes(&work->call.out),
                         .synchronous = work->call.synchronous };
    work->next = NULL;
    while (*end != NULL)
        end = &(*end)->next;
    *end = work;
    status = work->call.kind == OAR_COLL_SEND ? g->backend->send(g->self, t)
                                              : g->backend->recv(g->self, t);
    if (status != OAR_OK)
        oari_group_break(g, work, t->peer);
}

static void say_what_came(const oar_work *work)
{
    const oar_transfer *t = &work->transfer;
    oar_message came = { .size = sizeof came,
                         .source = t->source,
                         .tag = (int64_t)(t->got_tag & UINT32_MAX),
                         .bytes = t->got_bytes };

    if (work->call.kind == OAR_COLL_RECV && work->call.message != NULL &&
        (t->status == OAR_OK || t->status == OAR_E_SIZE))
        oari_struct_give(work->call.message, &came, sizeof came, "message");
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
        say_what_came(work);
        finish(g, work, work->transfer.status);
        moved = 1;
    }
    return moved;
}

static int drive_lane(oar_group *g, oari_lane *lane)
{
    switch (oari_exec_poll(&lane->exec)) {
    case OARI_PENDING: return 0;
    case OARI_DONE: finish_lane(g, lane, OAR_OK); return 1;
    case OARI_FAILED: oari_group_break(g, lane->work, -1); return 1;
    }
    return 0;
}

static int drive_collectives(oar_group *g)
{
    oari_engine *e = &g->engine;
    int moved = 0;

    if (e->busy == 0)
        return 0;
    for (int i = 0; i < e->lanes && !oari_group_broken(g); i++)
        if (e->lane[i].work != NULL)
            moved |= drive_lane(g, &e->lane[i]);
    return moved;
}

static oari_lane *free_lane(oari_engine *e)
{
    for (int i = 0; e->busy < e->lanes && i < e->lanes; i++)
        if (e->lane[i].work == NULL)
            return &e->lane[i];
    return NULL;
}

static void take_new_work(oar_group *g)
{
    oari_engine *e = &g->engine;
    oar_work *work, *next;
    oari_lane *lane;

    for (work = take_messages(e); work != NULL; work = next) {
        next = work->next;
        start_message(g, work);
    }
    while ((lane = free_lane(e)) != NULL && (work = take_collective(e)) != NULL)
        start_collective(g, lane, work);
}

/* Whether anything beyond the collectives under way is posted. One that a
 * caller drives by itself is not counted as posted. */
static int more_posted(const oari_engine *e)
{
    int mine = e->busy != 0 && e->lane->work != NULL && e->lane->work->mine;

    return atomic_load_explicit(&e->posted, memory_order_relaxed) >
           e->busy - mine;
}

int oari_drive_once(oar_group *g)
{
    oari_engine *e = &g->engine;
    int moved = 0;

    if (more_posted(e))
        take_new_work(g);
    if (!oari_group_broken(g) && g->backend->progress != NULL &&
        (e->lane->exec.board == NULL || e->lane->exec.board->member != NULL ||
         e->message != NULL || oari_exec_has_messages(&e->lane->exec)) &&
        g->backend->progress(g->self) != OAR_OK)
        oari_group_break(g, e->lane->work, -1);
    if (!oari_group_broken(g))
        moved = drive_collectives(g);
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

static int64_t sooner(const oar_work *work, int64_t than)
{
    return work != NULL && work->deadline_ns != 0 && work->deadline_ns < than
               ? work->deadline_ns
               : than;
}

static int64_t nearest_deadline(const oari_engine *e)
{
    int64_t nearest = oari_now_ns() + NAP_NS;

    for (int i = 0; i < e->lanes; i++)
        nearest = sooner(e->lane[i].work, nearest);
    for (const oar_work *w = e->message; w != NULL; w = w->next)
        nearest = sooner(w, nearest);
    return nearest;
}

static void sleep_blind(void)
{
    nanosleep(&(struct timespec){ 0, BLIND_NAP_NS }, NULL);
}

/* Whether something was posted since the last look. The ring that told of it
 * may have come while the backend made progress, which takes rings for its own.
 */
static int could_start(oari_engine *e)
{
    int found;

    pthread_mutex_lock(&e->lock);
    found = e->fresh != NULL || (e->first != NULL && free_lane(e) != NULL &&
                                 !(e->busy != 0 && e->alone));
    pthread_mutex_unlock(&e->lock);
    return found;
}

static void sleep_on_backend(oar_group *g)
{
    const oar_backend_ops *ops = g->backend;
    struct pollfd wait = { -1, POLLIN, 0 };

    if (ops->wait_fd == NULL || (wait.fd = ops->wait_fd(g->self)) < 0) {
        sleep_blind();
        return;
    }
    if (!ops->arm(g->self) && !could_start(&g->engine))
        poll(&wait, 1, oari_deadline_left_ms(nearest_deadline(&g->engine)));
}

/* What is posted from now on rings, and a ring that came early is not lost:
 * only what peers do has to be looked for once more. */
static void sleep_on_board(oar_group *g)
{
    oari_board_arm(g->board);
    if (oari_drive_once(g))
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
    oari_drive_look(g);
    if (now - i->since < spin + YIELD_NS)
        sched_yield();
    else if (g->board != NULL)
        sleep_on_board(g);
    else
        sleep_on_backend(g);
}

void oari_drive(oar_group *g, const oar_work *work)
{
    oari_engine *e = &g->engine;
    idle i = { 0 };

    for (;;) {
        if (oari_drive_once(g))
            i = (idle){ 0 };
        if (work != NULL
                ? oari_work_is_done(work)
                : atomic_load(&e->posted) == 0 || atomic_load(&e->waiters) != 0)
            return;
        be_idle(g, &i);
    }
}

void oari_drive_start(oar_group *g, oar_work *work)
{
    if (work->call.kind < OAR_COLL_SEND)
        start_collective(g, g->engine.lane, work);
    else
        start_message(g, work);
}
