/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_waiter: a thread that waits for blocks of messages, because Gloo has no
 * way to ask whether one has come. For each peer there is one for the headers
 * it sends, one for the data it sends, and one for what is sent to it; each is
 * started when it is first needed. Blocks of one kind complete in order, so to
 * wait for the oldest delays none of the others.
 */
#include <stdlib.h>

#include "backends/gloo/gloo.h"
#include "base/status.h"
#include "base/thread.h"

/* The block stays in the list while the thread waits for it, so that
 * gloo_threads_close finds it and can end the wait. */
static void *waiter_main(void *arg)
{
    gloo_waiter *w = arg;
    pthread_mutex_t *lock = &w->threads->lock;
    gloo_block *block;
    gloo_request *request;

    pthread_mutex_lock(lock);
    for (;;) {
        while (w->first == NULL && !w->threads->stop)
            pthread_cond_wait(&w->more, lock);
        if ((block = w->first) == NULL)
            break;
        request = block->request;
        pthread_mutex_unlock(lock);
        block->failed = gloo_request_wait(request, block->why);
        pthread_mutex_lock(lock);
        block->request = NULL;
        if ((w->first = block->next) == NULL)
            w->last = NULL;
        pthread_mutex_unlock(lock);
        gloo_request_free(request);
        pthread_mutex_lock(lock);
        gloo_threads_report_block(w->threads, block);
    }
    pthread_mutex_unlock(lock);
    return NULL;
}

static oar_status start_waiter(gloo_threads *threads, gloo_waiter **at)
{
    gloo_waiter *w = calloc(1, sizeof *w);
    oar_status status;

    if (w == NULL)
        return oar_backend_fail(OAR_E_NOMEM, "gloo: out of memory");
    w->threads = threads;
    pthread_cond_init(&w->more, NULL);
    status = oari_thread_start(&w->thread, "oar-gloo-wait", waiter_main, w);
    if (status != OAR_OK) {
        pthread_cond_destroy(&w->more);
        free(w);
        return status;
    }
    pthread_mutex_lock(&threads->lock);
    *at = w;
    pthread_mutex_unlock(&threads->lock);
    return OAR_OK;
}

oar_status gloo_waiter_post(gloo_threads *threads, int peer, int kind,
                            gloo_block *block)
{
    gloo_waiter **at = &threads->waiters[peer * GLOO_WAITERS + kind], *w;

    if (*at == NULL)
        OARI_TRY(start_waiter(threads, at));
    w = *at;
    pthread_mutex_lock(&threads->lock);
    if (w->first == NULL)
        w->first = block;
    else
        w->last->next = block;
    w->last = block;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&threads->lock);
    return OAR_OK;
}
