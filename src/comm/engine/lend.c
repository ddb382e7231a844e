/* SPDX-License-Identifier: Apache-2.0 */
/* lend: a caller that waits for a collective works for an engine whose own
 * calls block (Gloo), instead of handing it over to a thread of the engine's
 * and back, which costs two changes of threads.
 *
 * While it is in there it does not drive, and has given the token back. So a
 * thread of ours watches: if a caller stays for a while, it takes the token now
 * and then and looks whether everybody is there, what the others have called,
 * and what time it is. It is not told of every call, that would cost what is
 * saved: it looks by itself as long as there are calls now and then, and only
 * when there were none for a while it sleeps until it is told.
 */
#include "base/clock.h"
#include "base/thread.h"
#include "comm/engine/drive.h"
#include "comm/engine/engine.h"
#include "comm/engine/foreign_engine.h"

enum {
    LOOK_NS = 5000000, /* a caller that stays longer is looked after */
    LOOKS_IN_VAIN = 40 /* without any call, before it sleeps */
};

/* ---- watching ------------------------------------------------------------ */

static void look_after(oar_group *g)
{
    if (!oari_engine_try_hold(g))
        return; /* somebody drives */
    oari_drive_once(g);
    if (!oari_group_broken(g) && g->backend->progress != NULL &&
        g->backend->progress(g->self) != OAR_OK)
        oari_engine_broke(g, g->engine.lane->work, -1);
    oari_engine_look(g);
    if (oari_group_broken(g))
        oari_drive_once(g); /* so that the caller comes back */
    oari_engine_let_go(g);
}

/* Under the lock. The caller says that it is in there, and then looks whether
 * the watch sleeps; the watch does it the other way round. */
static void sleep_until_told(oari_watch *w)
{
    atomic_store(&w->asleep, 1);
    while (!atomic_load(&w->inside) && !w->stop)
        pthread_cond_wait(&w->changed, &w->lock);
    atomic_store(&w->asleep, 0);
}

static void *watch(void *arg)
{
    oar_group *g = arg;
    oari_watch *w = &g->foreign.watch;
    unsigned seen = 0;
    int vain = 0;

    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        unsigned calls;

        oari_cond_wait(&w->changed, &w->lock, oari_now_ns() + LOOK_NS);
        calls = atomic_load(&w->calls);
        vain = calls == seen ? vain + 1 : 0;
        if (atomic_load(&w->inside) && calls == seen && !w->stop) {
            vain = 0;
            pthread_mutex_unlock(&w->lock);
            look_after(g);
            pthread_mutex_lock(&w->lock);
        }
        seen = calls;
        if (vain > LOOKS_IN_VAIN)
            sleep_until_told(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static int start_watch(oar_group *g)
{
    oari_watch *w = &g->foreign.watch;
    int failed;

    pthread_mutex_init(&w->lock, NULL);
    oari_cond_init(&w->changed);
    failed = oari_thread_start(&w->thread, "oar-watch", watch, g) != OAR_OK;
    w->state = failed ? OARI_WATCH_NONE : OARI_WATCHES;
    if (failed) {
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->lock);
    }
    return !failed;
}

void oari_lend_end(oari_foreign *foreign)
{
    oari_watch *w = &foreign->watch;

    if (w->state != OARI_WATCHES)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = 1;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    w->state = OARI_WATCH_UNTRIED;
}

/* ---- lending ------------------------------------------------------------- */

int oari_lends(oar_group *group)
{
    oari_foreign *f = &group->foreign;

    if (f->ops == NULL || f->ops->lend == NULL ||
        f->watch.state == OARI_WATCH_NONE)
        return 0;
    return f->watch.state == OARI_WATCHES || start_watch(group);
}

void oari_lend(oar_group *group)
{
    oari_foreign *f = &group->foreign;
    oari_watch *w = &f->watch;

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
