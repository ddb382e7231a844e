/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_threads: the threads that call Gloo for the driver: how they start,
 * report what is done, and end. */
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "backends/gloo/gloo.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"

static const int64_t MS = 1000000; /* in ns */

/* ---- making -------------------------------------------------------------- */

oar_status gloo_threads_create(gloo_mesh *mesh, int ranks,
                               gloo_threads **threads)
{
    size_t watches = (size_t)ranks * GLOO_WAITERS;
    gloo_threads *h = calloc(1, sizeof *h + watches * sizeof *h->waiters);

    if (h == NULL)
        return oar_backend_fail(OAR_E_NOMEM, "gloo: out of memory");
    atomic_init(&h->references, 1);
    h->ranks = ranks;
    h->operations_end = &h->operations_done;
    h->blocks_end = &h->blocks_done;
    pthread_mutex_init(&h->lock, NULL);
    oari_cond_init(&h->changed);
    for (int i = 0; i < GLOO_WORKERS_MAX; i++)
        h->worker[i].threads = h;
    h->inline_worker.threads = h;
    h->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->event_fd < 0) {
        gloo_threads_release(h);
        return oar_backend_fail(OAR_E_SYSTEM, "gloo: make an eventfd");
    }
    h->mesh = mesh;
    *threads = h;
    return OAR_OK;
}

void gloo_threads_release(gloo_threads *threads)
{
    gloo_operation *op;
    gloo_block *block;

    if (threads == NULL || atomic_fetch_sub(&threads->references, 1) != 1)
        return;
    while ((op = threads->operations_done) != NULL) {
        threads->operations_done = op->next;
        free(op);
    }
    while ((block = threads->blocks_done) != NULL) {
        threads->blocks_done = block->next;
        free(block);
    }
    for (int i = 0; i < GLOO_WORKERS_MAX; i++)
        free(threads->worker[i].scratch);
    free(threads->inline_worker.scratch);
    free(threads->inline_op);
    for (int i = 0; i < threads->ranks * GLOO_WAITERS; i++)
        free(threads->waiters[i]);
    if (threads->event_fd >= 0)
        close(threads->event_fd);
    pthread_cond_destroy(&threads->changed);
    pthread_mutex_destroy(&threads->lock);
    free(threads);
}

/* ---- reporting to the driver --------------------------------------------- */

void gloo_threads_wake_driver(gloo_threads *threads)
{
    uint64_t one = 1;

    if (write(threads->event_fd, &one, sizeof one) < 0)
        return; /* the counter is full, so it is readable */
}

static void report_done(gloo_threads *threads)
{
    atomic_store(&threads->any_done, 1);
    if (atomic_exchange(&threads->armed, 0))
        gloo_threads_wake_driver(threads);
}

void gloo_threads_report_operation(gloo_threads *threads, gloo_operation *op)
{
    op->next = NULL;
    *threads->operations_end = op;
    threads->operations_end = &op->next;
    report_done(threads);
}

void gloo_threads_report_block(gloo_threads *threads, gloo_block *block)
{
    block->next = NULL;
    *threads->blocks_end = block;
    threads->blocks_end = &block->next;
    report_done(threads);
}

/* ---- ending -------------------------------------------------------------- */

static void *disconnect_main(void *arg)
{
    gloo_threads *threads = arg;

    gloo_mesh_disconnect(threads->mesh);
    pthread_mutex_lock(&threads->lock);
    threads->disconnected = 1;
    threads->disconnecting = 0;
    pthread_cond_broadcast(&threads->changed);
    pthread_mutex_unlock(&threads->lock);
    gloo_threads_release(threads);
    return NULL;
}

void gloo_threads_disconnect(gloo_threads *threads)
{
    pthread_t thread;
    int starts;

    pthread_mutex_lock(&threads->lock);
    starts = !threads->disconnecting && !threads->disconnected &&
             !threads->closed && !threads->stop;
    if (starts)
        threads->disconnecting = 1;
    pthread_mutex_unlock(&threads->lock);
    if (!starts)
        return;
    atomic_fetch_add(&threads->references, 1);
    if (oari_thread_start(&thread, "oar-gloo-end", disconnect_main, threads) ==
        OAR_OK)
        pthread_detach(thread);
    else
        disconnect_main(threads);
}

void gloo_threads_wait_idle(gloo_threads *threads)
{
    int64_t deadline = oari_now_ns() + GLOO_IDLE_MS * MS;

    pthread_mutex_lock(&threads->lock);
    while ((threads->disconnecting || threads->in_gloo != 0) &&
           oari_cond_wait(&threads->changed, &threads->lock, deadline))
        ;
    pthread_mutex_unlock(&threads->lock);
}

/* A thread that is still in Gloo comes out only when the connections end. */
static void *close_main(void *arg)
{
    gloo_threads *threads = arg;
    int stuck;

    pthread_mutex_lock(&threads->lock);
    stuck = threads->in_gloo != 0 && !threads->disconnected;
    while (threads->disconnecting)
        pthread_cond_wait(&threads->changed, &threads->lock);
    pthread_mutex_unlock(&threads->lock);
    if (stuck)
        gloo_mesh_disconnect(threads->mesh);

    for (int i = 0; i < GLOO_WORKERS_MAX; i++)
        oari_worker_destroy(threads->worker[i].thread, NULL);
    for (int i = 0; i < threads->ranks * GLOO_WAITERS; i++)
        if (threads->waiters[i] != NULL) {
            pthread_join(threads->waiters[i]->thread, NULL);
            pthread_cond_destroy(&threads->waiters[i]->more);
        }
    gloo_mesh_close(threads->mesh);

    pthread_mutex_lock(&threads->lock);
    threads->closed = 1;
    pthread_cond_broadcast(&threads->changed);
    pthread_mutex_unlock(&threads->lock);
    gloo_threads_release(threads);
    return NULL;
}

static void stop_threads(gloo_threads *threads)
{
    pthread_mutex_lock(&threads->lock);
    threads->stop = 1;
    for (int i = 0; i < threads->ranks * GLOO_WAITERS; i++) {
        gloo_waiter *w = threads->waiters[i];
        if (w == NULL)
            continue;
        pthread_cond_broadcast(&w->more);
        for (gloo_block *block = w->first; block != NULL; block = block->next)
            gloo_request_wake(block->request);
    }
    pthread_mutex_unlock(&threads->lock);
}

void gloo_threads_close(gloo_threads *threads)
{
    int64_t deadline;
    pthread_t thread;
    int closed;

    stop_threads(threads);
    atomic_fetch_add(&threads->references, 1);
    if (oari_thread_start(&thread, "oar-gloo-end", close_main, threads) !=
        OAR_OK) {
        close_main(threads);
        return;
    }
    deadline = oari_now_ns() + GLOO_CLOSE_MS * MS;
    pthread_mutex_lock(&threads->lock);
    while (!threads->closed &&
           oari_cond_wait(&threads->changed, &threads->lock, deadline))
        ;
    closed = threads->closed;
    pthread_mutex_unlock(&threads->lock);
    if (closed)
        pthread_join(thread, NULL);
    else
        pthread_detach(thread);
}
