/* SPDX-License-Identifier: Apache-2.0 */
/* external_engine: an external engine (MPI, Gloo, UCC) beside our own links.
 *
 * The external engine does collectives, and carries messages if it can. The
 * links find out which ranks are gone, publish faults, and exchange what is
 * needed to explain a mismatch, as in any group. So the engine is moved on in
 * every turn, and the links only now and then.
 */
#include <poll.h>
#include <sched.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/engine/drive.h"
#include "comm/engine/engine.h"
#include "comm/engine/external_engine.h"

enum {
    SPIN_NS = 10000000,     /* beside an engine that has to be polled */
    TURNS = 32,             /* of the engine, to one of the links */
    POLLS = 128,            /* in one turn, if nothing else is waited for */
    POLLED_NS = 1000000000, /* it is polled, yielding, for this time */
    BLIND_NAP_NS = 50000,   /* then it is polled after each such nap */
    YIELD_NS = 1000000,     /* a longer yield means: others want the core */
    CROWD_NS = 100000000,   /* and will for this time */
    LINKS_NS = 5000000,     /* between two looks at the links for faults */
    SUSPECT_NS = 500000000  /* for peers to say that they have given up */
};

void oari_external_close(oari_external *f)
{
    oari_run_inline_end(f);
    if (f->opened)
        f->ops->close(f->self);
    oari_free(f->self);
    oari_free(f->gone_ns);
    *f = (oari_external){ .ops = f->ops };
}

void oari_external_fail(oar_group *group, oari_external *f)
{
    if (f->engine_failed_ns != 0)
        return;
    f->engine_error = *oar_last_error();
    f->engine_failed_ns = oari_now_ns();
    group->engine.events->engine_failed(group);
}

/* Returns whether nothing is under way but one collective of the engine's,
 * which is not over: then no other thread has anything to do. */
static int waits_for_engine_only(const oar_group *g)
{
    const oari_engine *e = &g->engine;
    const oari_exec *x = &e->lane->exec;

    return e->busy == 1 && e->lane->work != NULL && e->message == NULL &&
           x->posted && !x->post.done;
}

/* An engine that moves only when it is polled, piece by piece, is polled for a
 * while, at most POLLS times, if no other thread needs the core: otherwise each
 * of its pieces would wait for what we do in between. A poll may take long,
 * because some engines yield the core in it; then the links have waited, too.
 */
int oari_external_drive(oar_group *group)
{
    oari_external *f = &group->external;
    int polls = f->ops->wait_fd == NULL && group->spin_ns != 0 ? POLLS : 0;
    uint64_t begun = oari_ticks();

    if (f->engine_failed_ns != 0)
        return 1;
    do {
        if (f->ops->progress != NULL && f->ops->progress(f->self) != OAR_OK) {
            oari_external_fail(group, f);
            return 1;
        }
        if (polls % 16 == 1 && oari_ticks() - begun > f->while_ticks)
            polls = 1;
    } while (--polls > 0 && waits_for_engine_only(group));
    return polls == 0 || ++f->turns % TURNS == 0 ||
           (polls < 0 && oari_ticks() - begun > f->while_ticks);
}

void oari_external_abort(oar_group *group)
{
    oari_external *every[] = { &group->external, &group->gpu, &group->hosted };

    for (int i = 0; i < 3; i++) {
        oari_external *f = every[i];

        if (!f->opened)
            continue;
        if (f->ops->abort != NULL)
            f->ops->abort(f->self, group->fault.error.status);
        if (f->ops->progress != NULL)
            f->ops->progress(f->self);
    }
}

/* An engine that moves only when it is polled is polled again at once, as long
 * as no other thread needs the core. */
int64_t oari_external_spin(const oar_group *group, int64_t ns)
{
    const oar_backend_ops *f = group->external.ops;

    return f != NULL && f->wait_fd == NULL && ns != 0 ? SPIN_NS : ns;
}

/* ---- results that come too late ------------------------------------------ */

/* Returns whether this rank's results are suspected. What peers on other hosts
 * say comes over the links, which are looked at only now and then beside an
 * engine. If this rank was held up until peers may have given up,
 * they have a moment to say so. */
static int is_suspected(oar_group *g, const oar_work *work)
{
    oari_external *f = &g->external;
    int64_t limit_ms =
        work->call.timeout_ms != 0 ? work->call.timeout_ms : g->timeout_ms;
    int64_t now, since;

    if (g->backend->progress == NULL)
        return 0;
    now = oari_now_ns();
    since = f->linked_ns != 0 ? now - f->linked_ns : 0;
    if (limit_ms > 0 && since / 1000000 >= limit_ms)
        f->suspected_until_ns = now + SUSPECT_NS;
    if (since == 0 || since >= LINKS_NS || now < f->suspected_until_ns) {
        f->linked_ns = now;
        if (g->backend->progress(g->self) != OAR_OK)
            oari_engine_broke(g, work, -1);
    }
    return now < f->suspected_until_ns;
}

/* An engine takes data out of users' buffers and cannot be called back: what it
 * brings after a peer has given up may be anything. The peer says that it gives
 * up before its buffers are its user's again. */
int oari_external_too_late(oar_group *g, const oar_work *work)
{
    oari_fault published;
    int suspected;

    if (g->external.ops == NULL && work->call.gpu == NULL)
        return 0;
    if (g->shm != NULL && g->shm->member == NULL) {
        atomic_thread_fence(memory_order_acquire); /* after what it brought */
        return oari_shm_published(g->shm, OARI_FACT_FAULT, &published) &&
               g->engine.events->hear(g);
    }
    suspected = is_suspected(g, work);
    return g->engine.events->hear(g) || oari_group_broken(g) || suspected;
}

/* ---- sleeping ------------------------------------------------------------ */

/* Lets other threads have the core, beside an engine that cannot wake this one.
 * If they kept it for long lately, this one naps instead: a thread that yields
 * to such threads gets hardly any of the core, while one that has slept gets it
 * at once. */
static void yield_or_nap(oar_group *g, int64_t idle_ns)
{
    oari_external *f = &g->external;
    int64_t begun = oari_now_ns();

    if (idle_ns >= POLLED_NS || g->engine.halted || begun < f->crowded_ns) {
        nanosleep(&(struct timespec){ 0, BLIND_NAP_NS }, NULL);
        return;
    }
    sched_yield();
    if (oari_now_ns() - begun > YIELD_NS)
        f->crowded_ns = begun + CROWD_NS;
}

/* Where there is shared memory the thread sleeps on it: the links to other
 * hosts wake that, too. */
void oari_external_sleep(oar_group *group, int64_t idle_ns, int64_t deadline_ns)
{
    const oar_backend_ops *links = group->backend, *ops = group->external.ops;
    void *self = group->external.self;
    struct pollfd wait[] = { { -1, POLLIN, 0 }, { -1, POLLIN, 0 } };

    if (ops->wait_fd == NULL) {
        yield_or_nap(group, idle_ns);
        return;
    }
    wait[0].fd = ops->wait_fd(self);
    if (group->shm != NULL) {
        oari_shm_arm(group->shm);
        if (ops->arm(self) || links->progress(group->self) != OAR_OK ||
            oari_drive_once(group))
            oari_shm_awake(group->shm);
        else
            oari_shm_sleep(group->shm, wait[0].fd, deadline_ns);
        return;
    }
    if (links->wait_fd != NULL) {
        wait[1].fd = links->wait_fd(group->self);
        if (links->arm(group->self))
            return;
    }
    if (!ops->arm(self) && !oari_drive_once(group))
        poll(wait, 2, oari_deadline_left_ms(deadline_ns));
}
