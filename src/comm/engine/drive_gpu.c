/* SPDX-License-Identifier: Apache-2.0 */
/* drive_gpu: operations on device memory, token in hand (engine.c).
 *
 * One begins when its engine is given it, is ordered when the engine has put
 * all of it on a stream, and done when its last event has come. Whoever called
 * without a handle goes on when it is ordered; it stays in its lane until it is
 * done, so that peers that are gone, ranks that disagree and deadlines are seen
 * as ever.
 */
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/engine/drive.h"
#include "comm/engine/engine.h"
#include "comm/engine/gpu_events.h"
#include "comm/engine/message.h"
#include "comm/engine/foreign_engine.h"
#include "comm/exec/exec_run.h"

enum {
    LOOKS = 4,      /* at events, in one round */
    COMPARE = 64,   /* looks at an operation between two comparisons */
    DRAIN_MS = 500, /* what an abort may take on the device */
    DRAIN_NAP_NS = 100000
};

/* ---- beginning ----------------------------------------------------------- */

static oar_status set_batch(oari_foreign *f, int open)
{
    if (f->ops == NULL || f->ops->batch == NULL || f->batching == open)
        return OAR_OK;
    f->batching = open;
    return f->ops->batch(f->self, open);
}

static oar_status close_batches(oar_group *g)
{
    oar_status first = set_batch(&g->gpu, 0), second = set_batch(&g->hosted, 0);

    return first != OAR_OK ? first : second;
}

void oari_drive_gpu_start(oar_group *g, oari_lane *lane, oar_work *work)
{
    oari_engine *e = &g->engine;
    uint64_t number = work->call.kind < OAR_COLL_SEND ? ++e->number : 0;

    e->on_gpu++;
    if (work->more && set_batch(work->call.gpu, 1) != OAR_OK)
        oari_foreign_fail(g, work->call.gpu);
    if (oari_exec_start(&lane->exec, &work->call, work->sequence, number) !=
        OAR_OK)
        oari_engine_broke(g, work, -1);
    if (!work->more && close_batches(g) != OAR_OK)
        oari_foreign_fail(g, work->call.gpu);
}

/* ---- going on ------------------------------------------------------------ */

static void progress_one(oar_group *g, oari_foreign *f)
{
    if (f->opened && f->ill_ns == 0 && f->ops->progress != NULL &&
        f->ops->progress(f->self) != OAR_OK)
        oari_foreign_fail(g, f);
}

void oari_gpu_progress(oar_group *g)
{
    progress_one(g, &g->gpu);
    progress_one(g, &g->hosted);
    g->engine.gpu_looks = LOOKS;
    g->engine.gpu_turn = g->engine.gpu_missed;
    g->engine.gpu_missed = 0;
}

/* A message that did not fit is no fault of the group's. */
static int is_refused(const oar_work *work, const oari_exec *x)
{
    return work->call.kind >= OAR_COLL_SEND && x->post.done &&
           (x->post.status == OAR_E_SIZE || x->post.status == OAR_E_DTYPE);
}

static void note_what_came(oar_work *work, const oari_exec *x)
{
    if (work->call.kind < OAR_COLL_SEND)
        return;
    work->transfer = x->post;
    oari_message_came(work);
}

static void mark_ordered(oar_group *g, oar_work *work)
{
    oari_engine *e = &g->engine;

    atomic_fetch_add(&e->watched, 1);
    pthread_mutex_lock(&e->lock);
    atomic_store(&work->ordered, 1);
    if (atomic_load(&e->waiters) != 0)
        pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* Asking after an event costs a microsecond: a round asks after a few, and the
 * next one goes on with the first that was left out. */
static int may_look(oar_group *g, const oari_lane *lane)
{
    oari_engine *e = &g->engine;

    if (e->gpu_looks-- > 0)
        return 1;
    if (e->gpu_missed == 0)
        e->gpu_missed = (int)(lane - e->lane) - e->host_lanes;
    return 0;
}

oari_progress oari_drive_gpu(oar_group *g, oari_lane *lane)
{
    oar_work *work = lane->work;
    oari_exec *x = &lane->exec;

    if (!atomic_load_explicit(&work->ordered, memory_order_relaxed)) {
        oari_progress progress = oari_exec_poll(x);

        if (progress == OARI_FAILED && is_refused(work, x)) {
            note_what_came(work, x);
            oari_drive_finish(g, lane, x->post.status);
            return OARI_PENDING;
        }
        if (progress != OARI_DONE)
            return progress;
        note_what_came(work, x);
        mark_ordered(g, work);
    }
    if (++x->polls % COMPARE == 0 && oari_exec_is_doubtful(x))
        return OARI_FAILED;
    if (!may_look(g, lane) || !oari_gpu_finished(work))
        return OARI_PENDING;
    /* a peer may have ended early what this was made of */
    progress_one(g, x->foreign);
    return x->foreign->ill_ns == 0 ? OARI_DONE : OARI_PENDING;
}

/* ---- after an abort ------------------------------------------------------ */

static int still_runs(const oari_engine *e)
{
    for (int i = e->host_lanes; i < e->lanes; i++) {
        const oar_work *work = e->lane[i].work;

        if (work != NULL && atomic_load(&work->ordered) &&
            !oari_gpu_finished(work))
            return 1;
    }
    return 0;
}

void oari_drive_gpu_drain(oar_group *g)
{
    int64_t deadline = oari_deadline(DRAIN_MS);

    if (g->engine.on_gpu == 0)
        return;
    close_batches(g);
    while (still_runs(&g->engine) && oari_now_ns() < deadline)
        nanosleep(&(struct timespec){ 0, DRAIN_NAP_NS }, NULL);
}
