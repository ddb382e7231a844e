/* SPDX-License-Identifier: Apache-2.0 */
/* run_inline: a caller that waits for a collective runs the blocking call of an
 * external engine (Gloo) inline, instead of handing the collective over to a
 * thread of the engine's and back, which costs two thread switches.
 *
 * While the caller is in there it does not drive, and has released the token.
 * So a monitor thread of ours takes the token now and then, once a caller has
 * stayed for a while, and looks for lost peers, mismatches and deadlines. To
 * wake it for every call would cost what is saved: it looks by itself as long
 * as there are calls now and then, and sleeps until it is woken only when there
 * were none for a while.
 */
#include "base/clock.h"
#include "base/thread.h"
#include "comm/engine/drive.h"
#include "comm/engine/engine.h"
#include "comm/engine/external_engine.h"

enum {
    LOOK_NS = 5000000, /* a caller that stays longer is monitored */
    QUIET_LOOKS = 40   /* without any call, before the monitor sleeps */
};

/* ---- the monitor thread -------------------------------------------------- */

static void look_for_faults(oar_group *g)
{
    if (!oari_engine_try_hold(g))
        return; /* another thread drives */
    oari_drive_once(g);
    if (!oari_group_broken(g) && g->backend->progress != NULL &&
        g->backend->progress(g->self) != OAR_OK)
        oari_engine_broke(g, g->engine.lane->work, -1);
    oari_engine_look(g);
    if (oari_group_broken(g))
        oari_drive_once(g); /* so that the caller returns */
    oari_engine_let_go(g);
}

/* A caller stores that it is inside, and then looks whether the monitor sleeps;
 * the monitor does it the other way round, so that one of them sees the other.
 */
static void *run_monitor(void *arg)
{
    oar_group *g = arg;
    oari_inline_monitor *w = &g->external.watch;
    unsigned seen = 0;
    int quiet = 0;

    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        unsigned calls;

        oari_cond_wait(&w->changed, &w->lock, oari_now_ns() + LOOK_NS);
        calls = atomic_load(&w->calls);
        quiet = calls == seen ? quiet + 1 : 0;
        if (atomic_load(&w->inside) && calls == seen && !w->stop) {
            quiet = 0;
            pthread_mutex_unlock(&w->lock);
            look_for_faults(g);
            pthread_mutex_lock(&w->lock);
        }
        seen = calls;
        if (quiet <= QUIET_LOOKS)
            continue;
        atomic_store(&w->asleep, 1);
        while (!atomic_load(&w->inside) && !w->stop)
            pthread_cond_wait(&w->changed, &w->lock);
        atomic_store(&w->asleep, 0);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

void oari_run_inline_end(oari_external *external)
{
    oari_inline_monitor *w = &external->watch;

    if (w->state != OARI_MONITOR_RUNS)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = 1;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    w->state = OARI_MONITOR_UNTRIED;
}

/* ---- the caller ---------------------------------------------------------- */

int oari_can_run_inline(oar_group *group)
{
    oari_external *f = &group->external;
    oari_inline_monitor *w = &f->watch;

    if (f->ops == NULL || f->ops->lend == NULL)
        return 0;
    if (w->state != OARI_MONITOR_UNTRIED)
        return w->state == OARI_MONITOR_RUNS;
    pthread_mutex_init(&w->lock, NULL);
    oari_cond_init(&w->changed);
    if (oari_thread_start(&w->thread, "oar-watch", run_monitor, group) ==
        OAR_OK) {
        w->state = OARI_MONITOR_RUNS;
        return 1;
    }
    w->state = OARI_MONITOR_NONE;
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    return 0;
}

void oari_run_inline(oar_group *group)
{
    oari_external *f = &group->external;
    oari_inline_monitor *w = &f->watch;

    atomic_fetch_add_explicit(&w->calls, 1, memory_order_relaxed);
    atomic_store(&w->inside, 1);
    if (atomic_load(&w->asleep)) {
        pthread_mutex_lock(&w->lock);
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
    }
    f->ops->lend(f->self);
    atomic_store(&w->inside, 0);
}
