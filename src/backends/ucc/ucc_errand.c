/* SPDX-License-Identifier: Apache-2.0 */
/* ucc_errand: something that UCC does and that may never end, done by a thread
 * of its own. If it is not back in time it is left alone: what it was given is
 * its own then, and it drops it when it comes back after all. */
#include <pthread.h>

#include "backends/ucc/ucc_engine.h"
#include "base/alloc.h"
#include "base/thread.h"

typedef struct errand {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int is_back, is_left;
    void (*what)(void *arg);
    void (*drop)(void *arg);
    void *arg;
} errand;

static void free_errand(errand *e)
{
    pthread_cond_destroy(&e->ended);
    pthread_mutex_destroy(&e->lock);
    oari_free(e);
}

static void *go(void *arg)
{
    errand *e = arg;
    int left;

    e->what(e->arg);
    pthread_mutex_lock(&e->lock);
    e->is_back = 1;
    left = e->is_left;
    pthread_cond_signal(&e->ended);
    pthread_mutex_unlock(&e->lock);
    if (left) {
        e->drop(e->arg);
        free_errand(e);
    }
    return NULL;
}

static int wait_for(errand *e, int64_t deadline_ns)
{
    int back;

    pthread_mutex_lock(&e->lock);
    while (!e->is_back && oari_cond_wait(&e->ended, &e->lock, deadline_ns))
        ;
    back = e->is_back;
    e->is_left = !back;
    pthread_mutex_unlock(&e->lock);
    return back;
}

oar_status oari_ucc_errand(void (*what)(void *arg), void (*drop)(void *arg),
                           void *arg, int64_t deadline_ns)
{
    errand *e = oari_alloc(1, sizeof *e);
    pthread_t thread;
    oar_status status;

    if (e == NULL)
        return OAR_E_NOMEM;
    pthread_mutex_init(&e->lock, NULL);
    oari_cond_init(&e->ended);
    e->what = what;
    e->drop = drop;
    e->arg = arg;
    status = oari_thread_start(&thread, "oar-ucc", go, e);
    if (status != OAR_OK) {
        free_errand(e);
        return status;
    }
    pthread_detach(thread);
    if (!wait_for(e, deadline_ns))
        return OAR_E_TIMEOUT;
    free_errand(e);
    return OAR_OK;
}
