/* SPDX-License-Identifier: Apache-2.0 */
/* alone: see alone.h. */
#include "comm/fault/alone.h"

#include <stdio.h>
#include <unistd.h>

#include <oarsong/work.h>

#include "base/alloc.h"
#include "base/status.h"
#include "comm/engine/drive.h"
#include "comm/engine/work.h"
#include "comm/fault/fault.h"
#include "comm/fault/mismatch.h"

oar_status oari_group_loosen(oar_group *g)
{
    if (g->external.ops != NULL || g->in_tree->withdraw == NULL)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "a loose group over backend \"%s\", whose messages "
                         "cannot be taken back",
                         oari_group_backend_name(g));
    g->loose = 1;
    g->engine.quiet = 1;
    /* there are no collectives to compare */
    oari_mismatch_destroy(g->engine.mismatch);
    g->engine.mismatch = NULL;
    return OAR_OK;
}

/* ---- messages ------------------------------------------------------------ */

/* Keeps this thread's last error as the work's. */
static void keep_error(oar_group *g, oar_work *work, int peer)
{
    oar_error *e = oari_alloc(1, sizeof *e), why = *oar_last_error();

    oari_fault_fill(g, work, peer, &why);
    oari_fail_with(&why);
    oari_free(work->error);
    if (e != NULL)
        *e = why;
    work->error = e;
}

int oari_fail_alone(oar_group *g, oar_work *work, int peer, int unmoved)
{
    oar_status status = oar_last_error()->status;

    if (g->in_tree->withdraw == NULL ||
        !g->in_tree->withdraw(g->self, &work->transfer,
                              work->call.kind == OAR_COLL_SEND, unmoved))
        return 0;
    keep_error(g, work, peer);
    work->alone = 1;
    work->transfer.status = status;
    work->transfer.done = 1;
    g->engine.unfinished = 1;
    return 1;
}

oar_status oar_work_cancel(oar_work *work, int *given_up)
{
    oar_group *g;
    int held, done = 0;

    if (work == NULL || given_up == NULL)
        return oari_fail(OAR_E_ARG, "work_cancel without a %s",
                         work == NULL ? "work" : "place for the answer");
    g = work->group;
    OARI_TRY(oari_group_owned(g));
    if (work->call.gpu != NULL ||
        (work->call.kind != OAR_COLL_SEND && work->call.kind != OAR_COLL_RECV))
        return oari_fail(OAR_E_ARG, "work_cancel of anything but one message "
                                    "on host memory");
    if (g->external.ops != NULL || g->in_tree->withdraw == NULL)
        return oari_fail(OAR_E_UNSUPPORTED, "work_cancel over backend \"%s\"",
                         oari_group_backend_name(g));
    held = oari_work_function_runs(g);
    if (!held)
        oari_engine_take(g);
    oari_drive_begin_messages(g);
    if (!atomic_load(&work->done) && !work->transfer.done &&
        !oari_group_broken(g)) {
        oari_fail(OAR_E_ABORTED, "this %s was given up",
                  oar_coll_name(work->call.kind));
        done = oari_fail_alone(g, work, work->call.root, 1);
    }
    if (done && !held)
        oari_drive_end_message(g, work);
    if (!held)
        oari_engine_let_go(g);
    *given_up = done;
    return OAR_OK;
}

/* ---- ranks that go ------------------------------------------------------- */

struct oari_gone_watch {
    oar_gone_fn fn;
    void *arg;
    unsigned char told[]; /* by rank */
};

void oari_gone_look(oar_group *g)
{
    struct oari_gone_watch *w = g->watch;

    for (int r = 0; w != NULL && r < g->ranks; r++) {
        int how = r != g->rank && !w->told[r] ? oari_group_gone(g, r) : 0;

        if (how == 0)
            continue;
        w->told[r] = 1;
        oari_work_function_begin(g);
        w->fn(w->arg, r, (oar_gone)how);
        oari_work_function_end();
        g->engine.unfinished = 1;
    }
}

void oari_gone_unwatch(struct oari_gone_watch *watch)
{
    oari_free(watch);
}

/* The group counts as having an operation posted from now on, so that the
 * engine's thread drives it while nothing else is under way. */
oar_status oar_group_on_gone(oar_group *group, oar_gone_fn fn, void *arg)
{
    struct oari_gone_watch *w;
    int taken;

    if (group == NULL || fn == NULL)
        return oari_fail(OAR_E_ARG, "group_on_gone without a %s",
                         group == NULL ? "group" : "function");
    OARI_TRY(oari_group_check(group));
    if (!group->loose)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "group_on_gone: group \"%s\" is not loose; the end of "
                         "a rank ends it",
                         group->name);
    w = oari_alloc(1, sizeof *w + (size_t)group->ranks);
    if (w == NULL)
        return OAR_E_NOMEM;
    w->fn = fn;
    w->arg = arg;
    if (oari_engine_start(group) != OAR_OK) {
        oari_free(w);
        return oar_last_error()->status;
    }
    oari_engine_take(group);
    taken = group->watch != NULL;
    if (!taken) {
        group->watch = w;
        group->engine.standing = 1;
        atomic_fetch_add(&group->engine.posted, 1);
        if (group->in_tree->watch != NULL)
            group->in_tree->watch(group->self);
    }
    oari_engine_let_go(group);
    if (!taken)
        return OAR_OK;
    oari_free(w);
    return oari_fail(OAR_E_STATE, "group \"%s\" has such a function already",
                     group->name);
}
