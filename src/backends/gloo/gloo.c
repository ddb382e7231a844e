/* SPDX-License-Identifier: Apache-2.0 */
/* gloo: the table of the backend, and its driver's side. */
#include "backends/gloo/gloo.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/group/group.h"

/* ---- opening ------------------------------------------------------------- */

static oar_status gloo_probe(oar_backend_caps *caps)
{
    caps->note = gloo_version();
    caps->can =
        OAR_CAN_ANY | OAR_CAN_PROBE | OAR_CAN_SYNCHRONOUS | OAR_WANTS_LINKS;
    return OAR_OK;
}

/* Joins are counted, so that a name can be used again. */
static oar_status make_prefix(const oar_backend_env *env, char *prefix,
                              size_t bytes)
{
    char key[OAR_STORE_KEY_MAX];
    int64_t times;

    snprintf(key, sizeof key, "%s/gloo/join/%d", env->name, env->rank);
    OARI_TRY(oar_store_add(env->store, key, 1, &times));
    snprintf(prefix, bytes, "%s/gloo/%" PRId64, env->name, times);
    return OAR_OK;
}

static oar_status join(gloo *g, const oar_backend_env *env)
{
    char prefix[OAR_STORE_KEY_MAX];
    gloo_mesh *mesh;
    oar_status status;

    OARI_TRY(make_prefix(env, prefix, sizeof prefix));
    OARI_TRY(gloo_agree(env, prefix, &g->choice));
    OARI_TRY(gloo_meet(env, prefix, &g->choice, &mesh));
    status = gloo_hub_create(mesh, env->ranks, &g->hub);
    if (status != OAR_OK)
        gloo_mesh_close(mesh);
    return status;
}

static oar_status gloo_open(void *self, const oar_backend_env *env)
{
    gloo *g = self;
    const char *blocking = getenv("OARSONG_GLOO_BLOCKING");
    oari_courier courier = gloo_courier(g);

    g->rank = env->rank;
    g->ranks = env->ranks;
    g->blocking = blocking != NULL && strcmp(blocking, "1") == 0;
    if (env->ranks > 1)
        OARI_TRY(join(g, env));
    return oari_relay_create(&courier, env->rank, env->ranks, GLOO_EAGER_BYTES,
                             &g->relay);
}

/* ---- driving ------------------------------------------------------------- */

static void forget(gloo *g, const gloo_job *job)
{
    gloo_job **at = &g->jobs;

    while (*at != NULL && *at != job)
        at = &(*at)->other;
    if (*at != NULL)
        *at = job->other;
}

static void finish_job(gloo *g, gloo_job *job)
{
    oar_transfer *done = job->done;

    if (done == NULL) /* given up */
        return;
    forget(g, job);
    done->status = OAR_OK;
    if (job->failed)
        done->status = oar_backend_fail(OAR_E_CLOSED, "gloo: %s", job->why);
    done->done = 1;
}

/* What a peer that is gone leaves undone is the core's to find out. */
static oar_status finish_note(gloo_note *note)
{
    oari_parcel *parcel = note->parcel;

    if (parcel == NULL)
        return OAR_OK;
    parcel->scratch[0] = NULL;
    if (note->failed == 0) {
        parcel->status = OAR_OK;
        parcel->done = 1;
        return OAR_OK;
    }
    if (note->silent || note->failed == 1)
        return OAR_OK;
    return oar_backend_fail(OAR_E_CLOSED, "gloo: %s", note->why);
}

static oar_status take_news(gloo *g)
{
    gloo_hub *hub = g->hub;
    gloo_job *job, *next_job;
    gloo_note *note, *next_note;
    oar_status status = OAR_OK;

    if (hub == NULL || !atomic_load_explicit(&hub->news, memory_order_acquire))
        return OAR_OK;
    pthread_mutex_lock(&hub->lock);
    atomic_store(&hub->news, 0);
    job = hub->jobs_done;
    note = hub->notes_done;
    hub->jobs_done = NULL;
    hub->jobs_end = &hub->jobs_done;
    hub->notes_done = NULL;
    hub->notes_end = &hub->notes_done;
    pthread_mutex_unlock(&hub->lock);
    for (; note != NULL; note = next_note) {
        next_note = note->next;
        if (finish_note(note) != OAR_OK)
            status = OAR_E_CLOSED;
        free(note);
    }
    for (; job != NULL; job = next_job) {
        next_job = job->next;
        finish_job(g, job);
        free(job);
    }
    return status;
}

/* The user's buffers are the user's again after this. */
static void end_all(gloo *g, oar_status why)
{
    gloo_job *job;

    g->ended = 1;
    if (g->hub != NULL)
        gloo_hub_quiet(g->hub);
    while ((job = g->jobs) != NULL) {
        g->jobs = job->other;
        job->done->status = why;
        job->done->done = 1;
        job->done = NULL;
    }
    oari_relay_abort(g->relay, why);
}

static oar_status gloo_progress(void *self)
{
    gloo *g = self;
    int why = atomic_load_explicit(&g->aborted, memory_order_acquire);
    oar_status status;

    if (why != 0) {
        if (!g->ended)
            end_all(g, (oar_status)why);
        return OAR_OK;
    }
    status = take_news(g);
    return status != OAR_OK ? status : oari_relay_progress(g->relay);
}

static oar_status gloo_send(void *self, oar_transfer *transfer)
{
    return oari_relay_send(((gloo *)self)->relay, transfer);
}

static oar_status gloo_recv(void *self, oar_transfer *transfer)
{
    return oari_relay_recv(((gloo *)self)->relay, transfer);
}

static int gloo_peek(void *self, int peer, uint64_t tag, uint64_t any,
                     oar_envelope *found)
{
    return oari_relay_peek(((gloo *)self)->relay, peer, tag, any, found);
}

/* ---- sleeping ------------------------------------------------------------ */

static int gloo_wait_fd(void *self)
{
    const gloo *g = self;

    return g->hub != NULL ? g->hub->event_fd : -1;
}

static int gloo_arm(void *self)
{
    gloo_hub *hub = ((gloo *)self)->hub;
    uint64_t drained;

    if (hub == NULL)
        return 0;
    if (read(hub->event_fd, &drained, sizeof drained) < 0)
        drained = 0; /* nothing there */
    atomic_store(&hub->armed, 1);
    return atomic_load(&hub->news) || atomic_load(&((gloo *)self)->aborted);
}

static void gloo_wake(void *self)
{
    gloo_hub *hub = ((gloo *)self)->hub;

    if (hub != NULL)
        gloo_hub_wake(hub);
}

/* ---- callers that work --------------------------------------------------- */

static void gloo_lend(void *self)
{
    gloo_hub *hub = ((gloo *)self)->hub;

    if (hub != NULL)
        gloo_lane_lend(hub);
}

/* ---- ending -------------------------------------------------------------- */

static void gloo_abort(void *self, oar_status why)
{
    gloo *g = self;
    int none = 0;

    if (!atomic_compare_exchange_strong(&g->aborted, &none, (int)why))
        return;
    if (g->hub != NULL) {
        gloo_hub_spoil(g->hub);
        gloo_hub_wake(g->hub);
    }
}

/* Messages that were sent, as far as anybody takes them. */
static void let_leave(gloo *g)
{
    int64_t deadline = oari_now_ns() + GLOO_LEAVE_MS * (int64_t)1000000;

    while (oari_relay_leaving(g->relay) > 0 && gloo_progress(g) == OAR_OK &&
           oari_now_ns() < deadline)
        usleep(100);
}

static void gloo_close(void *self)
{
    gloo *g = self;

    if (g->hub != NULL && g->relay != NULL && !atomic_load(&g->aborted))
        let_leave(g);
    if (g->hub != NULL)
        gloo_hub_close(g->hub);
    oari_relay_destroy(g->relay);
    gloo_hub_drop(g->hub);
}

static const oar_backend_ops table = {
    .size = sizeof table,
    .abi = OAR_BACKEND_ABI,
    .name = "gloo",
    .self_size = sizeof(gloo),
    .probe = gloo_probe,
    .open = gloo_open,
    .close = gloo_close,
    .send = gloo_send,
    .recv = gloo_recv,
    .progress = gloo_progress,
    .wait_fd = gloo_wait_fd,
    .arm = gloo_arm,
    .wake = gloo_wake,
    .abort = gloo_abort,
    .peek = gloo_peek,
    .takes = gloo_takes,
    .lend = gloo_lend,
    .post_count = OAR_COLL_COUNT,
    .post = { [OAR_COLL_BARRIER] = gloo_post,
              [OAR_COLL_BROADCAST] = gloo_post,
              [OAR_COLL_ALL_REDUCE] = gloo_post,
              [OAR_COLL_REDUCE] = gloo_post,
              [OAR_COLL_GATHER] = gloo_post,
              [OAR_COLL_SCATTER] = gloo_post,
              [OAR_COLL_ALL_GATHER] = gloo_post,
              [OAR_COLL_REDUCE_SCATTER] = gloo_post,
              [OAR_COLL_ALL_TO_ALL] = gloo_post },
};

__attribute__((visibility("default"))) const oar_backend_ops *
oar_backend_plugin(void);
const oar_backend_ops *oar_backend_plugin(void)
{
    return &table;
}
