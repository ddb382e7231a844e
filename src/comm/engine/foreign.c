/* SPDX-License-Identifier: Apache-2.0 */
/* foreign: an engine of somebody else's (MPI, Gloo, UCC) beside our own links.
 *
 * It does collectives, and carries messages if it has them. The links find out
 * who is gone, tell faults, and hold disputes, as in any group. So it is moved
 * on at every turn, and the links only now and then.
 */
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/fault/dispute.h"
#include "comm/engine/drive.h"
#include "comm/fault/missed.h"
#include "comm/fault/presence.h"

enum {
    SPIN_NS = 10000000,     /* beside one that only moves when asked */
    TURNS = 32,             /* of its, to one of the links */
    ASKS = 128,             /* in one turn, if it is all we wait for, */
    WHILE_US = 50,          /* which takes no longer than that */
    ILL_NS = 2000000000,    /* for the links to know better why it failed */
    POLLED_NS = 1000000000, /* it is asked so long, yielding */
    BLIND_NAP_NS = 50000,   /* and then so often */
    YIELD_NS = 1000000,     /* longer than that: others want the core, */
    CROWD_NS = 100000000,   /* and will for a while */
    CHECK_NS = 10000000,    /* between two looks whether everybody is there */
    BEHIND_NS = 500000000,  /* what comes of a rank when it is gone */
    LINKS_NS = 5000000,     /* between two looks at them for faults */
    DOUBT_NS = 500000000    /* for peers to say that they have given up */
};

/* ---- opening ------------------------------------------------------------- */

/* Of those that have not come through: one that is gone, rather than one that
 * is stopped, rather than the first. */
static int most_likely(const oar_group *g)
{
    int first = -1, stopped = -1;

    for (int r = g->ranks - 1; r >= 0; r--) {
        if (!g->missing[r])
            continue;
        first = r;
        if (oari_group_gone(g, r))
            return r;
        if (oari_presence_of(g, r) == OARI_PRESENCE_STOPPED)
            stopped = r;
    }
    return stopped >= 0 ? stopped : first;
}

/* An engine knows at best that somebody has not come; here it is said who. */
static oar_status blame(oar_group *g, oari_foreign *f, const oari_open *with)
{
    oar_error why = *oar_last_error();
    oar_status status;
    char who[300];
    int rank;

    f->ill_ns = oari_now_ns(); /* who is gone now is why */
    if (oari_missed_find(with->env.store, g->name, g->rank, g->ranks,
                         g->missing) == 0)
        return oari_fail_with(&why);
    if (g->board != NULL)
        g->board->ops->check(g->board->self);
    rank = most_likely(g);
    status = oari_group_gone(g, rank) ? OAR_E_PEER : OAR_E_TIMEOUT;
    oari_presence_text(g, rank, who, sizeof who);
    return oari_about(
        rank, oari_fail(status,
                        "%s did not come through the opening of %s in %" PRId64
                        " ms (%.200s)",
                        who, f->ops->name, with->env.timeout_ms, why.text));
}

oar_status oari_foreign_open(oar_group *group, oari_foreign *f,
                             const oari_open *with)
{
    oar_status status;

    f->self = oari_alloc(1, f->ops->self_size);
    f->gone_ns = oari_alloc((size_t)group->ranks, sizeof *f->gone_ns);
    if (f->self == NULL || f->gone_ns == NULL)
        return OAR_E_NOMEM;
    f->opened = 1;
    f->while_ticks = (uint64_t)(oari_ticks_per_second() * WHILE_US / 1e6);
    status = oari_backend_open(f->ops, f->self, with);
    if (with->env.store == NULL || group->missing == NULL || group->ranks == 1)
        return status;
    oari_missed_say_through(with->env.store, group->name, group->rank);
    return status != OAR_OK ? blame(group, f, with) : OAR_OK;
}

void oari_foreign_close(oari_foreign *f)
{
    oari_lend_end(f);
    if (f->opened)
        f->ops->close(f->self);
    oari_free(f->self);
    oari_free(f->gone_ns);
    *f = (oari_foreign){ .ops = f->ops };
}

void oari_foreign_fail(oar_group *group, oari_foreign *f)
{
    if (f->ill_ns != 0)
        return;
    f->illness = *oar_last_error();
    f->ill_ns = oari_now_ns();
    oari_dispute_ask_all(group);
}

/* Whether nothing but one collective of the engine's is under way, and that is
 * not over: then nobody else has anything to do. */
static int waits_for_it_alone(const oar_group *g)
{
    const oari_engine *e = &g->engine;
    const oari_exec *x = &e->lane->exec;

    return e->busy == 1 && e->lane->work != NULL && e->message == NULL &&
           x->posted && !x->post.done;
}

/* An engine that moves only when it is asked, piece by piece, is asked for a
 * while, at most ASKS times, if nobody needs the core: what we do between two
 * of its pieces would be waited for at each of them. To ask may take long: some
 * yield the core each time, and then our links have waited, too. */
int oari_foreign_drive(oar_group *group)
{
    oari_foreign *f = &group->foreign;
    int asks = f->ops->wait_fd == NULL && group->spin_ns != 0 ? ASKS : 0;
    uint64_t begun = oari_ticks();

    if (f->ill_ns != 0)
        return 1;
    do {
        if (f->ops->progress != NULL && f->ops->progress(f->self) != OAR_OK) {
            oari_foreign_fail(group, f);
            return 1;
        }
        if (asks % 16 == 1 && oari_ticks() - begun > f->while_ticks)
            asks = 1;
    } while (--asks > 0 && waits_for_it_alone(group));
    return asks == 0 || ++f->turns % TURNS == 0 ||
           (asks < 0 && oari_ticks() - begun > f->while_ticks);
}

/* Nobody sleeps on the board while the engine is asked again and again, or has
 * failed: then nobody hears of deaths either. */
static void check_peers(oar_group *g, oari_foreign *f)
{
    int64_t now = oari_now_ns();

    if (g->board == NULL || now < f->check_ns)
        return;
    f->check_ns = now + CHECK_NS;
    g->board->ops->check(g->board->self);
}

/* Why it has failed: a rank that is gone, whether or not somebody waits for
 * that one. One that has left is the reason if there is no other. */
static int culprit(const oar_group *g, int late)
{
    int left = -1;

    for (int r = 0; r < g->ranks; r++) {
        int gone = r != g->rank ? oari_group_gone(g, r) : 0;

        if (gone == OARI_PEER_LEFT)
            left = r;
        else if (gone != 0)
            return r;
    }
    return late ? left : -1;
}

static void look_at(oar_group *group, oari_foreign *f)
{
    int rank, late;

    if (f->ops == NULL || oari_group_broken(group))
        return;
    check_peers(group, f);
    if (f->ill_ns == 0)
        return;
    late = oari_now_ns() - f->ill_ns >= ILL_NS;
    rank = culprit(group, late);
    if (rank >= 0)
        oari_peer_gone(group, oari_drive_any(group), rank);
    else if (late) {
        oari_fail_with(&f->illness);
        oari_group_break(group, oari_drive_any(group), -1);
    }
}

void oari_foreign_look(oar_group *group)
{
    look_at(group, &group->foreign);
    if (group->engine.on_gpu != 0) {
        look_at(group, &group->gpu);
        look_at(group, &group->hosted);
    }
}

static void abort_one(oar_group *group, oari_foreign *f)
{
    if (!f->opened)
        return;
    if (f->ops->abort != NULL)
        f->ops->abort(f->self, group->fault.error.status);
    if (f->ops->progress != NULL)
        f->ops->progress(f->self);
}

void oari_foreign_abort(oar_group *group)
{
    abort_one(group, &group->foreign);
    abort_one(group, &group->gpu);
    abort_one(group, &group->hosted);
}

/* The engine may need a rank longer than that needs it, and what it carries may
 * come when the sender is gone: a rank is missed only after a while; or when
 * the engine has failed, because that is then why. */
int oari_foreign_gone(const oar_group *group, int rank, int gone)
{
    const oari_foreign *f = group->foreign.opened ? &group->foreign
                            : group->gpu.opened   ? &group->gpu
                                                  : &group->hosted;
    int64_t now = oari_now_ns(), since;

    if (f->gone_ns == NULL || f->ill_ns != 0)
        return gone;
    since = atomic_load_explicit(&f->gone_ns[rank], memory_order_relaxed);
    if (since == 0) {
        since = now;
        atomic_store_explicit(&f->gone_ns[rank], now, memory_order_relaxed);
    }
    return now - since > BEHIND_NS ? gone : 0;
}

/* One that moves only when it is asked, piece by piece, is asked again at once,
 * as long as nobody needs the core. */
int64_t oari_foreign_spin(const oar_group *group, int64_t ns)
{
    const oar_backend_ops *f = group->foreign.ops;

    return f != NULL && f->wait_fd == NULL && ns != 0 ? SPIN_NS : ns;
}

/* ---- believing ----------------------------------------------------------- */

/* How long peers wait for this rank, as far as it knows. */
static int64_t patience_of(const oar_group *g, const oar_work *work)
{
    int64_t ms =
        work->call.timeout_ms != 0 ? work->call.timeout_ms : g->timeout_ms;

    return ms > 0 && ms < INT64_MAX / 1000000 ? ms * 1000000 : INT64_MAX;
}

/* What peers on other hosts say comes over the links, which are not looked at
 * all the time beside an engine. After this rank was held up for so long that
 * they may have given up, they have a moment to say it. */
static int is_in_doubt(oar_group *g, const oar_work *work)
{
    oari_foreign *f = &g->foreign;
    int64_t now, since;

    if (g->backend->progress == NULL)
        return 0;
    now = oari_now_ns();
    since = f->linked_ns != 0 ? now - f->linked_ns : 0;
    if (since >= patience_of(g, work))
        f->doubt_ns = now + DOUBT_NS;
    if (since == 0 || since >= LINKS_NS || now < f->doubt_ns) {
        f->linked_ns = now;
        if (g->backend->progress(g->self) != OAR_OK)
            oari_group_break(g, work, -1);
    }
    return now < f->doubt_ns;
}

/* An engine takes data out of users' buffers and cannot be called back: what it
 * brings after a peer has given up may be anything. The peer says that it gives
 * up before its buffers are its user's again. */
int oari_foreign_too_late(oar_group *g, const oar_work *work)
{
    int doubt;

    if (g->foreign.ops == NULL && work->call.gpu == NULL)
        return 0;
    if (g->board != NULL && g->board->member == NULL) {
        atomic_thread_fence(memory_order_acquire); /* after what it brought */
        return oari_board_published(g->board) != NULL && oari_drive_hear(g);
    }
    doubt = is_in_doubt(g, work);
    return oari_drive_hear(g) || oari_group_broken(g) || doubt;
}

/* ---- sleeping ------------------------------------------------------------ */

/* Lets others have the core. 0: they took it for long, lately. Who yields to
 * such gets hardly any of it, while who has slept gets it at once. */
static int yield(oari_foreign *f)
{
    int64_t begun = oari_now_ns();

    if (begun < f->crowded_ns)
        return 0;
    sched_yield();
    if (oari_now_ns() - begun > YIELD_NS)
        f->crowded_ns = begun + CROWD_NS;
    return 1;
}

/* It cannot wake us: asks it again after a nap. */
static void nap(oar_group *g, int64_t idle_ns)
{
    if (idle_ns < POLLED_NS && !oari_disputing(g->engine.dispute) &&
        yield(&g->foreign))
        return;
    nanosleep(&(struct timespec){ 0, BLIND_NAP_NS }, NULL);
}

/* On the board of this host, which the links across hosts wake as well. */
static void sleep_on_board(oar_group *g, int64_t deadline_ns)
{
    const oar_backend_ops *f = g->foreign.ops;

    oari_board_arm(g->board);
    if (f->arm(g->foreign.self) || g->backend->progress(g->self) != OAR_OK ||
        oari_drive_once(g))
        oari_board_awake(g->board);
    else
        oari_board_sleep(g->board, f->wait_fd(g->foreign.self), deadline_ns);
}

static void sleep_on_links(oar_group *g, int64_t deadline_ns)
{
    const oar_backend_ops *links = g->backend, *f = g->foreign.ops;
    struct pollfd wait[] = { { f->wait_fd(g->foreign.self), POLLIN, 0 },
                             { -1, POLLIN, 0 } };

    if (links->wait_fd != NULL) {
        wait[1].fd = links->wait_fd(g->self);
        if (links->arm(g->self))
            return;
    }
    if (!f->arm(g->foreign.self) && !oari_drive_once(g))
        poll(wait, 2, oari_deadline_left_ms(deadline_ns));
}

void oari_foreign_sleep(oar_group *group, int64_t idle_ns, int64_t deadline_ns)
{
    if (group->foreign.ops->wait_fd == NULL)
        nap(group, idle_ns);
    else if (group->board != NULL)
        sleep_on_board(group, deadline_ns);
    else
        sleep_on_links(group, deadline_ns);
}
