/* SPDX-License-Identifier: Apache-2.0 */
/* errand: something that UCC does and that may never end, done by a thread of
 * its own. If it is not back in time it is left alone: what it was given is its
 * own then, and it drops it when it comes back after all. */
#include <pthread.h>
#include <signal.h>

#include "backends/ucc/engine.h"
#include "base/alloc.h"
#include "base/clock.h"

typedef struct errand {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int is_back, is_left;
    void (*what)(void *arg);
    void (*drop)(void *arg);
    void *arg;
} errand;

static errand *new_errand(void)
{
    errand *e = oari_alloc(1, sizeof *e);
    pthread_condattr_t attributes;

    if (e == NULL)
        return NULL;
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&e->ended, &attributes);
    pthread_condattr_destroy(&attributes);
    return e;
}

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

/* It takes no signals that are meant for the program. */
static int send_thread(errand *e)
{
    sigset_t all, before;
    pthread_t thread;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, NULL, go, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        pthread_detach(thread);
    return error == 0;
}

static int wait_for(errand *e, int64_t deadline_ns)
{
    struct timespec at = { deadline_ns / 1000000000, deadline_ns % 1000000000 };
    int back;

    pthread_mutex_lock(&e->lock);
    while (!e->is_back && oari_now_ns() < deadline_ns)
        if (deadline_ns == OARI_NEVER)
            pthread_cond_wait(&e->ended, &e->lock);
        else
            pthread_cond_timedwait(&e->ended, &e->lock, &at);
    back = e->is_back;
    e->is_left = !back;
    pthread_mutex_unlock(&e->lock);
    return back;
}

oar_status oari_ucc_errand(void (*what)(void *arg), void (*drop)(void *arg),
                           void *arg, int64_t deadline_ns)
{
    errand *e = new_errand();

    if (e == NULL)
        return OAR_E_NOMEM;
    e->what = what;
    e->drop = drop;
    e->arg = arg;
    if (!send_thread(e)) {
        free_errand(e);
        return oar_backend_fail(OAR_E_SYSTEM, "a thread for UCC");
    }
    if (!wait_for(e, deadline_ns))
        return OAR_E_TIMEOUT;
    free_errand(e);
    return OAR_OK;
}
