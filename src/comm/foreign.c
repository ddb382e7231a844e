/* SPDX-License-Identifier: Apache-2.0 */
/* foreign: an engine of somebody else's (MPI, Gloo, UCC) beside our own links.
 *
 * It does collectives, and carries messages if it has them. The links find out
 * who is gone, tell faults, and hold disputes, as in any group. So it is moved
 * on at every turn, and the links only now and then.
 */
#include <poll.h>
#include <sched.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/drive.h"

enum {
    TURNS = 32,         /* of its, to one of the links */
    ILL_NS = 500000000, /* for the links to know better why it failed */
    POLLED_NS =
        1000000000,       /* one that only moves when asked is asked so long */
    BLIND_NAP_NS = 50000, /* and then so often */
    NAPS_TO_CHECK = 100,  /* whether everybody is still there */
    BEHIND_NS = 500000000 /* what comes of a rank after it has left */
};

oar_status oari_foreign_open(oar_group *group, const oar_backend_env *env)
{
    oari_foreign *f = &group->foreign;

    f->self = oari_alloc(1, f->ops->self_size);
    f->left_ns = oari_alloc((size_t)group->ranks, sizeof *f->left_ns);
    if (f->self == NULL || f->left_ns == NULL)
        return OAR_E_NOMEM;
    f->opened = 1;
    return f->ops->open(f->self, env);
}

void oari_foreign_close(oar_group *group)
{
    oari_foreign *f = &group->foreign;

    if (f->opened)
        f->ops->close(f->self);
    oari_free(f->self);
    oari_free(f->left_ns);
    *f = (oari_foreign){ .ops = f->ops };
}

void oari_foreign_fail(oar_group *group)
{
    oari_foreign *f = &group->foreign;

    if (f->ill_ns != 0)
        return;
    f->illness = *oar_last_error();
    f->ill_ns = oari_now_ns();
}

int oari_foreign_drive(oar_group *group)
{
    oari_foreign *f = &group->foreign;

    if (f->ill_ns != 0)
        return 1;
    if (f->ops->progress != NULL && f->ops->progress(f->self) != OAR_OK)
        oari_foreign_fail(group);
    return ++f->turns % TURNS == 0;
}

void oari_foreign_look(oar_group *group)
{
    const oari_foreign *f = &group->foreign;

    if (f->ill_ns == 0 || oari_now_ns() - f->ill_ns < ILL_NS ||
        oari_group_broken(group))
        return;
    oari_fail_with(&f->illness);
    oari_group_break(group, group->engine.lane->work, -1);
}

void oari_foreign_abort(oar_group *group)
{
    oari_foreign *f = &group->foreign;

    if (!f->opened)
        return;
    if (f->ops->abort != NULL)
        f->ops->abort(f->self, group->fault.status);
    if (f->ops->progress != NULL)
        f->ops->progress(f->self);
}

/* What a rank sent before it left may still be on its way. */
int oari_foreign_gone(const oar_group *group, int rank, int gone)
{
    _Atomic int64_t *since = &group->foreign.left_ns[rank];
    int64_t now;

    if (gone != OARI_PEER_LEFT || group->foreign.left_ns == NULL)
        return gone;
    now = oari_now_ns();
    if (atomic_load_explicit(since, memory_order_relaxed) == 0)
        atomic_store_explicit(since, now, memory_order_relaxed);
    return now - atomic_load_explicit(since, memory_order_relaxed) > BEHIND_NS
               ? gone
               : 0;
}

/* ---- sleeping ------------------------------------------------------------ */

/* It cannot wake us: asks it again after a nap. */
static void nap(oar_group *g, int64_t idle_ns)
{
    if (idle_ns < POLLED_NS) {
        sched_yield();
        return;
    }
    nanosleep(&(struct timespec){ 0, BLIND_NAP_NS }, NULL);
    if (g->board != NULL && ++g->foreign.naps % NAPS_TO_CHECK == 0)
        g->board->ops->check(g->board->self);
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
