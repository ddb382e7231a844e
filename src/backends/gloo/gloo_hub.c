/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_hub: the threads that are in Gloo for the driver: how they begin, tell
 * what they have done, and end. */
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "backends/gloo/gloo.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"

static const int64_t MS = 1000000; /* in ns */

/* ---- making -------------------------------------------------------------- */

oar_status gloo_hub_create(gloo_mesh *mesh, int ranks, gloo_hub **hub)
{
    size_t watches = (size_t)ranks * GLOO_WATCHES;
    gloo_hub *h = calloc(1, sizeof *h + watches * sizeof *h->watch);

    if (h == NULL)
        return oar_backend_fail(OAR_E_NOMEM, "gloo: out of memory");
    atomic_init(&h->holders, 1);
    h->ranks = ranks;
    h->jobs_end = &h->jobs_done;
    h->notes_end = &h->notes_done;
    pthread_mutex_init(&h->lock, NULL);
    oari_cond_init(&h->changed);
    for (int i = 0; i < GLOO_LANES; i++)
        h->lane[i].hub = h;
    h->guest.hub = h;
    h->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->event_fd < 0) {
        gloo_hub_drop(h);
        return oar_backend_fail(OAR_E_SYSTEM, "gloo: make an eventfd");
    }
    h->mesh = mesh;
    *hub = h;
    return OAR_OK;
}

static void free_lists(gloo_hub *hub)
{
    gloo_job *job;
    gloo_note *note;

    while ((job = hub->jobs_done) != NULL) {
        hub->jobs_done = job->next;
        free(job);
    }
    while ((note = hub->notes_done) != NULL) {
        hub->notes_done = note->next;
        free(note);
    }
}

void gloo_hub_drop(gloo_hub *hub)
{
    if (hub == NULL || atomic_fetch_sub(&hub->holders, 1) != 1)
        return;
    free_lists(hub);
    for (int i = 0; i < GLOO_LANES; i++)
        free(hub->lane[i].scratch);
    free(hub->guest.scratch);
    free(hub->offered);
    for (int i = 0; i < hub->ranks * GLOO_WATCHES; i++)
        free(hub->watch[i]);
    if (hub->event_fd >= 0)
        close(hub->event_fd);
    pthread_cond_destroy(&hub->changed);
    pthread_mutex_destroy(&hub->lock);
    free(hub);
}

/* ---- telling the driver -------------------------------------------------- */

void gloo_hub_wake(gloo_hub *hub)
{
    uint64_t one = 1;

    if (write(hub->event_fd, &one, sizeof one) < 0)
        return; /* it is full, and so readable */
}

static void tell(gloo_hub *hub)
{
    atomic_store(&hub->news, 1);
    if (atomic_exchange(&hub->armed, 0))
        gloo_hub_wake(hub);
}

void gloo_hub_job_done(gloo_hub *hub, gloo_job *job)
{
    job->next = NULL;
    *hub->jobs_end = job;
    hub->jobs_end = &job->next;
    tell(hub);
}

void gloo_hub_note_done(gloo_hub *hub, gloo_note *note)
{
    note->next = NULL;
    *hub->notes_end = note;
    hub->notes_end = &note->next;
    tell(hub);
}

/* ---- ending -------------------------------------------------------------- */

static void *spoil_main(void *arg)
{
    gloo_hub *hub = arg;

    gloo_mesh_spoil(hub->mesh);
    pthread_mutex_lock(&hub->lock);
    hub->spoiled = 1;
    hub->spoiling = 0;
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
    gloo_hub_drop(hub);
    return NULL;
}

void gloo_hub_spoil(gloo_hub *hub)
{
    pthread_t thread;
    int begins;

    pthread_mutex_lock(&hub->lock);
    begins = !hub->spoiling && !hub->spoiled && !hub->closed && !hub->stop;
    if (begins)
        hub->spoiling = 1;
    pthread_mutex_unlock(&hub->lock);
    if (!begins)
        return;
    atomic_fetch_add(&hub->holders, 1);
    if (oari_thread_start(&thread, "oar-gloo-end", spoil_main, hub) == OAR_OK)
        pthread_detach(thread);
    else
        spoil_main(hub);
}

void gloo_hub_quiet(gloo_hub *hub)
{
    int64_t deadline = oari_now_ns() + GLOO_QUIET_MS * MS;

    pthread_mutex_lock(&hub->lock);
    while ((hub->spoiling || hub->inside != 0) &&
           oari_cond_wait(&hub->changed, &hub->lock, deadline))
        ;
    pthread_mutex_unlock(&hub->lock);
}

/* Tells all threads to end, as far as they listen. */
static void stop_threads(gloo_hub *hub)
{
    pthread_mutex_lock(&hub->lock);
    hub->stop = 1;
    for (int i = 0; i < hub->ranks * GLOO_WATCHES; i++) {
        gloo_watch *w = hub->watch[i];
        if (w == NULL)
            continue;
        pthread_cond_broadcast(&w->more);
        for (gloo_note *note = w->first; note != NULL; note = note->next)
            gloo_slip_wake(note->slip);
    }
    pthread_mutex_unlock(&hub->lock);
}

/* Somebody is in Gloo, and only the end of the connections brings him out. */
static void drive_out(gloo_hub *hub)
{
    int stuck;

    pthread_mutex_lock(&hub->lock);
    stuck = hub->inside != 0 && !hub->spoiled;
    while (hub->spoiling)
        pthread_cond_wait(&hub->changed, &hub->lock);
    pthread_mutex_unlock(&hub->lock);
    if (stuck)
        gloo_mesh_spoil(hub->mesh);
}

static void join_threads(gloo_hub *hub)
{
    for (int i = 0; i < GLOO_LANES; i++)
        oari_worker_destroy(hub->lane[i].worker, NULL);
    for (int i = 0; i < hub->ranks * GLOO_WATCHES; i++)
        if (hub->watch[i] != NULL) {
            pthread_join(hub->watch[i]->thread, NULL);
            pthread_cond_destroy(&hub->watch[i]->more);
        }
}

static void *close_main(void *arg)
{
    gloo_hub *hub = arg;

    drive_out(hub);
    join_threads(hub);
    gloo_mesh_close(hub->mesh);
    pthread_mutex_lock(&hub->lock);
    hub->closed = 1;
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->lock);
    gloo_hub_drop(hub);
    return NULL;
}

static int is_closed_in_time(gloo_hub *hub)
{
    int64_t deadline = oari_now_ns() + GLOO_CLOSE_MS * MS;
    int closed;

    pthread_mutex_lock(&hub->lock);
    while (!hub->closed && oari_cond_wait(&hub->changed, &hub->lock, deadline))
        ;
    closed = hub->closed;
    pthread_mutex_unlock(&hub->lock);
    return closed;
}

void gloo_hub_close(gloo_hub *hub)
{
    pthread_t thread;

    stop_threads(hub);
    atomic_fetch_add(&hub->holders, 1);
    if (oari_thread_start(&thread, "oar-gloo-end", close_main, hub) != OAR_OK)
        close_main(hub);
    else if (is_closed_in_time(hub))
        pthread_join(thread, NULL);
    else
        pthread_detach(thread);
}
