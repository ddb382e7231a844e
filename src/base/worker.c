/* SPDX-License-Identifier: Apache-2.0 */
/* worker: one lock guards the queue and the flags. `more` is signalled when a
 * thread has something to do, `room` when a job has left the queue. */
#include "base/worker.h"

#include <pthread.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/status.h"
#include "base/thread.h"

struct oari_worker {
    oari_worker_opts opts;
    unsigned generation; /* of fork */
    pthread_mutex_t lock;
    pthread_cond_t more, room;
    oari_list queue;
    int64_t waiting; /* jobs in the queue */
    int woken;       /* the thread has to call step */
    int stop;
    int posting; /* threads that wait for room */
    int threads; /* that have started */
    pthread_t thread[];
};

/* ---- the threads --------------------------------------------------------- */

static void *run_worker(void *arg)
{
    oari_worker *w = arg;
    int64_t due_ns = w->opts.step != NULL ? 0 : OARI_NEVER; /* the next step */

    pthread_mutex_lock(&w->lock);
    while (!w->stop || w->woken || w->queue.first != NULL ||
           due_ns != OARI_NEVER) {
        oari_link *link = oari_list_take(&w->queue);
        oari_job *job = OARI_CONTAINER_OF(link, oari_job, link);

        if (job != NULL) {
            w->waiting--;
            pthread_cond_signal(&w->room);
        } else if (!w->woken &&
                   (due_ns == OARI_NEVER || oari_now_ns() < due_ns)) {
            oari_cond_wait(&w->more, &w->lock, due_ns);
            continue;
        }
        w->woken = 0;
        pthread_mutex_unlock(&w->lock);
        if (job != NULL)
            job->run(job->arg);
        if (w->opts.step != NULL)
            due_ns = w->opts.step(w->opts.arg);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- making and ending --------------------------------------------------- */

oar_status oari_worker_create(const oari_worker_opts *opts,
                              oari_worker **worker)
{
    int threads = opts->threads != 0 ? opts->threads : 1;
    oari_worker *w;

    if (threads < 1 || opts->capacity < 0 ||
        (opts->step != NULL && threads > 1))
        return oari_fail(OAR_E_ARG, "a worker of %d threads and %lld jobs%s",
                         threads, (long long)opts->capacity,
                         opts->step != NULL ? " with a step" : "");
    w = oari_alloc(1, sizeof *w + (size_t)threads * sizeof *w->thread);
    if (w == NULL)
        return OAR_E_NOMEM;
    w->opts = *opts;
    oari_fork_watch();
    w->generation = oari_fork_generation();
    pthread_mutex_init(&w->lock, NULL);
    oari_cond_init(&w->more);
    oari_cond_init(&w->room);
    for (; w->threads < threads; w->threads++) {
        oar_status status = oari_thread_start(&w->thread[w->threads],
                                              opts->name, run_worker, w);

        if (status != OAR_OK) {
            oari_worker_destroy(w, NULL);
            return status;
        }
    }
    *worker = w;
    return OAR_OK;
}

int oari_worker_is_here(const oari_worker *worker)
{
    return worker->generation == oari_fork_generation();
}

void oari_worker_destroy(oari_worker *worker, void (*drop)(void *arg))
{
    oari_list dropped = { NULL, NULL };
    oari_link *link;

    if (worker == NULL || !oari_worker_is_here(worker))
        return;
    pthread_mutex_lock(&worker->lock);
    worker->stop = 1;
    worker->woken = worker->opts.step != NULL;
    if (drop != NULL) {
        dropped = worker->queue;
        worker->queue = (oari_list){ NULL, NULL };
    }
    pthread_cond_broadcast(&worker->more);
    pthread_cond_broadcast(&worker->room);
    pthread_mutex_unlock(&worker->lock);
    while ((link = oari_list_take(&dropped)) != NULL)
        drop(OARI_CONTAINER_OF(link, oari_job, link)->arg);
    for (int i = 0; i < worker->threads; i++)
        pthread_join(worker->thread[i], NULL);
    pthread_mutex_lock(&worker->lock);
    while (worker->posting > 0)
        pthread_cond_wait(&worker->room, &worker->lock);
    pthread_mutex_unlock(&worker->lock);
    pthread_cond_destroy(&worker->room);
    pthread_cond_destroy(&worker->more);
    pthread_mutex_destroy(&worker->lock);
    oari_free(worker);
}

/* ---- jobs ---------------------------------------------------------------- */

/* The caller has the lock. */
static oar_status await_room(oari_worker *w, int64_t deadline_ns)
{
    int64_t most = w->opts.capacity;
    int in_time = 1;

    w->posting++;
    while (most != 0 && w->waiting >= most && !w->stop && in_time)
        in_time = oari_cond_wait(&w->room, &w->lock, deadline_ns);
    w->posting--;
    if (w->stop) {
        pthread_cond_broadcast(&w->room); /* oari_worker_destroy may wait */
        return oari_fail(OAR_E_STATE, "%s: the worker is ending", w->opts.name);
    }
    if (most != 0 && w->waiting >= most)
        return oari_fail(OAR_E_TIMEOUT, "%s: %lld jobs are waiting already",
                         w->opts.name, (long long)most);
    return OAR_OK;
}

oar_status oari_worker_post(oari_worker *worker, oari_job *job,
                            int64_t deadline_ns)
{
    oar_status status;

    if (!oari_worker_is_here(worker))
        return oari_fail(OAR_E_STATE,
                         "%s: the parent of this process made the worker",
                         worker->opts.name);
    pthread_mutex_lock(&worker->lock);
    status = await_room(worker, deadline_ns);
    if (status == OAR_OK) {
        oari_list_append(&worker->queue, &job->link);
        worker->waiting++;
        pthread_cond_signal(&worker->more);
    }
    pthread_mutex_unlock(&worker->lock);
    return status;
}

void oari_worker_wake(oari_worker *worker)
{
    if (!oari_worker_is_here(worker))
        return;
    pthread_mutex_lock(&worker->lock);
    worker->woken = worker->opts.step != NULL;
    pthread_cond_signal(&worker->more);
    pthread_mutex_unlock(&worker->lock);
}
