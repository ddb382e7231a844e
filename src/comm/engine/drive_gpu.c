/* SPDX-License-Identifier: Apache-2.0 */
/* drive_gpu: operations on device memory. The caller holds the token
 * (engine.c).
 *
 * An operation begins when it is given to its engine, is ordered when the
 * engine has put all of it on a stream, and is done when its last event has
 * come. A call without a handle returns when the operation is ordered; the
 * operation stays in its lane until it is done, so that lost peers, mismatches
 * and deadlines are seen as on host memory.
 */
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/engine/drive.h"
#include "comm/engine/engine.h"
#include "comm/engine/gpu_events.h"
#include "comm/engine/message.h"
#include "comm/engine/external_engine.h"
#include "comm/exec/exec_run.h"

enum {
    EVENT_LOOKS = 4,    /* in one round */
    COMPARE_LOOKS = 64, /* at an operation, between two comparisons */
    DRAIN_MS = 500,     /* the most an abort may take on the device */
    DRAIN_NAP_NS = 100000
};

/* ---- beginning ----------------------------------------------------------- */

static oar_status set_batch(oari_external *f, int open)
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
        oari_external_fail(g, work->call.gpu);
    if (oari_exec_start(&lane->exec, &work->call, work->sequence, number) !=
        OAR_OK)
        oari_engine_broke(g, work, -1);
    if (!work->more && close_batches(g) != OAR_OK)
        oari_external_fail(g, work->call.gpu);
}

/* ---- going on ------------------------------------------------------------ */

static void progress_engine(oar_group *g, oari_external *f)
{
    if (f->opened && f->engine_failed_ns == 0 && f->ops->progress != NULL &&
        f->ops->progress(f->self) != OAR_OK)
        oari_external_fail(g, f);
}

void oari_gpu_progress(oar_group *g)
{
    progress_engine(g, &g->gpu);
    progress_engine(g, &g->hosted);
    g->engine.gpu_looks = EVENT_LOOKS;
    g->engine.gpu_turn = g->engine.gpu_missed;
    g->engine.gpu_missed = 0;
}

static void give_received(oar_work *work, const oari_exec *x)
{
    if (work->call.kind < OAR_COLL_SEND)
        return;
    work->transfer = x->post;
    oari_message_came(work);
}

/* To ask for an event costs a microsecond: a round asks for a few of them, and
 * the next round goes on with the first that was left out. */
oari_progress oari_drive_gpu(oar_group *g, oari_lane *lane)
{
    oari_engine *e = &g->engine;
    oar_work *work = lane->work;
    oari_exec *x = &lane->exec;

    if (!atomic_load_explicit(&work->ordered, memory_order_relaxed)) {
        oari_progress progress = oari_exec_poll(x);

        /* a message that did not fit is no fault of the group */
        if (progress == OARI_FAILED && work->call.kind >= OAR_COLL_SEND &&
            x->post.done &&
            (x->post.status == OAR_E_SIZE || x->post.status == OAR_E_DTYPE)) {
            give_received(work, x);
            oari_drive_finish(g, lane, x->post.status);
            return OARI_PENDING;
        }
        if (progress != OARI_DONE)
            return progress;
        give_received(work, x);
        atomic_fetch_add(&e->watched, 1);
        pthread_mutex_lock(&e->lock);
        atomic_store(&work->ordered, 1);
        if (atomic_load(&e->waiters) != 0)
            pthread_cond_broadcast(&e->changed);
        pthread_mutex_unlock(&e->lock);
    }
    if (++x->polls % COMPARE_LOOKS == 0 && oari_exec_posts_differ(x))
        return OARI_FAILED;
    if (e->gpu_looks-- <= 0) {
        if (e->gpu_missed == 0)
            e->gpu_missed = (int)(lane - e->lane) - e->host_lanes;
        return OARI_PENDING;
    }
    if (!oari_gpu_finished(work))
        return OARI_PENDING;
    /* a peer may have ended early what this was made of */
    progress_engine(g, x->external);
    return x->external->engine_failed_ns == 0 ? OARI_DONE : OARI_PENDING;
}

/* ---- after an abort ------------------------------------------------------ */

void oari_drive_gpu_drain(oar_group *g)
{
    oari_engine *e = &g->engine;
    int64_t deadline = oari_deadline(DRAIN_MS);

    if (e->on_gpu == 0)
        return;
    close_batches(g);
    for (int i = e->host_lanes; i < e->lanes; i++) {
        const oar_work *work = e->lane[i].work;

        if (work == NULL || !atomic_load(&work->ordered))
            continue;
        while (!oari_gpu_finished(work) && oari_now_ns() < deadline)
            nanosleep(&(struct timespec){ 0, DRAIN_NAP_NS }, NULL);
    }
}
