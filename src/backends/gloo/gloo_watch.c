/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_watch: a thread that waits for blocks of messages, because Gloo has no
 * way to ask whether one is there. There is one for the heads that come from a
 * peer, one for the data that come from it, and one for what goes to it, when
 * first needed: each of these comes, or goes, in the order it was asked for, so
 * to wait for the oldest keeps none of the others.
 */
#include <stdlib.h>

#include "backends/gloo/gloo.h"
#include "base/status.h"
#include "base/thread.h"

/* Under the lock. NULL: it is over. */
static gloo_note *next_note(gloo_watch *w)
{
    while (w->first == NULL && !w->hub->stop)
        pthread_cond_wait(&w->more, &w->hub->lock);
    return w->first;
}

/* Under the lock, which it lets go meanwhile. The note stays in the list while
 * it is waited for: whoever ends the wait finds it there. */
static void await(gloo_watch *w, gloo_note *note)
{
    gloo_slip *slip = note->slip;

    pthread_mutex_unlock(&w->hub->lock);
    note->failed = gloo_slip_wait(slip, note->why);
    pthread_mutex_lock(&w->hub->lock);
    note->slip = NULL;
    if ((w->first = note->next) == NULL)
        w->last = NULL;
    pthread_mutex_unlock(&w->hub->lock);
    gloo_slip_free(slip);
    pthread_mutex_lock(&w->hub->lock);
}

static void *watch_main(void *arg)
{
    gloo_watch *w = arg;
    gloo_hub *hub = w->hub;
    gloo_note *note;

    pthread_mutex_lock(&hub->lock);
    while ((note = next_note(w)) != NULL) {
        await(w, note);
        gloo_hub_note_done(hub, note);
    }
    pthread_mutex_unlock(&hub->lock);
    return NULL;
}

/* Only the driver starts threads. */
static oar_status start(gloo_hub *hub, gloo_watch **at)
{
    gloo_watch *w = calloc(1, sizeof *w);
    oar_status status;

    if (w == NULL)
        return oar_backend_fail(OAR_E_NOMEM, "gloo: out of memory");
    w->hub = hub;
    pthread_cond_init(&w->more, NULL);
    status = oari_thread_start(&w->thread, "oar-gloo-wait", watch_main, w);
    if (status != OAR_OK) {
        pthread_cond_destroy(&w->more);
        free(w);
        return status;
    }
    pthread_mutex_lock(&hub->lock);
    *at = w;
    pthread_mutex_unlock(&hub->lock);
    return OAR_OK;
}

oar_status gloo_watch_give(gloo_hub *hub, int peer, int kind, gloo_note *note)
{
    gloo_watch **at = &hub->watch[peer * GLOO_WATCHES + kind], *w;

    if (*at == NULL)
        OARI_TRY(start(hub, at));
    w = *at;
    pthread_mutex_lock(&hub->lock);
    if (w->first == NULL)
        w->first = note;
    else
        w->last->next = note;
    w->last = note;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&hub->lock);
    return OAR_OK;
}
