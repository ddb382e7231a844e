/* SPDX-License-Identifier: Apache-2.0 */
/* gloo: the backend's table, and what the driver calls. */
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
    caps->can = OAR_CAN_ANY | OAR_CAN_PROBE | OAR_CAN_SYNCHRONOUS |
                OAR_CAN_AT_MOST | OAR_WANTS_LINKS;
    return OAR_OK;
}

static oar_status join_ranks(gloo *g, const oar_backend_env *env)
{
    char key[OAR_STORE_KEY_MAX], prefix[OAR_STORE_KEY_MAX];
    int64_t times;
    gloo_mesh *mesh;
    oar_status status;

    /* A number in the prefix, so that a group's name can be used again. */
    snprintf(key, sizeof key, "%s/gloo/join/%d", env->name, env->rank);
    OARI_TRY(oar_store_add(env->store, key, 1, &times));
    snprintf(prefix, sizeof prefix, "%s/gloo/%" PRId64, env->name, times);
    OARI_TRY(gloo_choice_agree(env, prefix, &g->choice));
    OARI_TRY(gloo_connect(env, prefix, &mesh));
    status = gloo_threads_create(mesh, env->ranks, &g->threads);
    if (status != OAR_OK)
        gloo_mesh_close(mesh);
    return status;
}

static oar_status gloo_open(void *self, const oar_backend_env *env)
{
    gloo *g = self;
    oari_chunk_transport transport = gloo_transport(g);

    g->rank = env->rank;
    g->ranks = env->ranks;
    if (env->ranks > 1)
        OARI_TRY(join_ranks(g, env));
    return oari_chunk_link_create(&transport, env->rank, env->ranks,
                                  GLOO_EAGER_BYTES, &g->messages);
}

/* ---- driving ------------------------------------------------------------- */

static void finish_operation(gloo *g, gloo_operation *op)
{
    gloo_operation **at = &g->operations;
    oar_transfer *done = op->done;

    if (done == NULL) /* given up */
        return;
    while (*at != NULL && *at != op)
        at = &(*at)->next_pending;
    if (*at != NULL)
        *at = op->next_pending;
    done->status = OAR_OK;
    if (op->failed)
        done->status = oar_backend_fail(OAR_E_CLOSED, "gloo: %s", op->why);
    done->done = 1;
}

/* Blocks that a peer leaves undone when it goes stay so: the core finds out. */
static oar_status finish_block(gloo_block *block)
{
    oari_chunk *chunk = block->chunk;

    if (chunk == NULL)
        return OAR_OK;
    chunk->scratch[0] = NULL;
    if (block->failed == 0) {
        chunk->status = OAR_OK;
        chunk->done = 1;
        return OAR_OK;
    }
    if (block->may_fail || block->failed == 1)
        return OAR_OK;
    return oar_backend_fail(OAR_E_CLOSED, "gloo: %s", block->why);
}

static oar_status take_done(gloo *g)
{
    gloo_threads *threads = g->threads;
    gloo_operation *op, *next_op;
    gloo_block *block, *next_block;
    oar_status status = OAR_OK;

    if (threads == NULL ||
        !atomic_load_explicit(&threads->any_done, memory_order_acquire))
        return OAR_OK;
    pthread_mutex_lock(&threads->lock);
    atomic_store(&threads->any_done, 0);
    op = threads->operations_done;
    block = threads->blocks_done;
    threads->operations_done = NULL;
    threads->operations_end = &threads->operations_done;
    threads->blocks_done = NULL;
    threads->blocks_end = &threads->blocks_done;
    pthread_mutex_unlock(&threads->lock);
    for (; block != NULL; block = next_block) {
        next_block = block->next;
        if (finish_block(block) != OAR_OK)
            status = OAR_E_CLOSED;
        free(block);
    }
    for (; op != NULL; op = next_op) {
        next_op = op->next;
        finish_operation(g, op);
        free(op);
    }
    return status;
}

/* After this the user may use the buffers again. */
static void end_operations(gloo *g, oar_status why)
{
    gloo_operation *op;

    g->ended = 1;
    if (g->threads != NULL)
        gloo_threads_wait_idle(g->threads);
    while ((op = g->operations) != NULL) {
        g->operations = op->next_pending;
        op->done->status = why;
        op->done->done = 1;
        op->done = NULL;
    }
    oari_chunk_link_abort(g->messages, why);
}

static oar_status gloo_progress(void *self)
{
    gloo *g = self;
    int why = atomic_load_explicit(&g->aborted, memory_order_acquire);
    oar_status status;

    if (why != 0) {
        if (!g->ended)
            end_operations(g, (oar_status)why);
        return OAR_OK;
    }
    status = take_done(g);
    return status != OAR_OK ? status : oari_chunk_link_progress(g->messages);
}

static oar_status gloo_send(void *self, oar_transfer *transfer)
{
    return oari_chunk_link_send(((gloo *)self)->messages, transfer);
}

static oar_status gloo_recv(void *self, oar_transfer *transfer)
{
    return oari_chunk_link_recv(((gloo *)self)->messages, transfer);
}

static int gloo_peek(void *self, int peer, uint64_t tag, uint64_t any,
                     oar_envelope *found)
{
    return oari_chunk_link_peek(((gloo *)self)->messages, peer, tag, any,
                                found);
}

/* ---- sleeping ------------------------------------------------------------ */

static int gloo_wait_fd(void *self)
{
    const gloo *g = self;

    return g->threads != NULL ? g->threads->event_fd : -1;
}

static int gloo_arm(void *self)
{
    gloo_threads *threads = ((gloo *)self)->threads;
    uint64_t drained;

    if (threads == NULL)
        return 0;
    if (read(threads->event_fd, &drained, sizeof drained) < 0)
        drained = 0; /* nothing there */
    atomic_store(&threads->armed, 1);
    return atomic_load(&threads->any_done) ||
           atomic_load(&((gloo *)self)->aborted);
}

static void gloo_wake(void *self)
{
    gloo_threads *threads = ((gloo *)self)->threads;

    if (threads != NULL)
        gloo_threads_wake_driver(threads);
}

/* ---- in the caller's thread ---------------------------------------------- */

static void gloo_lend(void *self)
{
    gloo_threads *threads = ((gloo *)self)->threads;

    if (threads != NULL)
        gloo_inline_run(threads);
}

/* ---- ending -------------------------------------------------------------- */

static void gloo_abort(void *self, oar_status why)
{
    gloo *g = self;
    int none = 0;

    if (!atomic_compare_exchange_strong(&g->aborted, &none, (int)why))
        return;
    if (g->threads != NULL) {
        gloo_threads_disconnect(g->threads);
        gloo_threads_wake_driver(g->threads);
    }
}

static void gloo_close(void *self)
{
    gloo *g = self;
    int64_t deadline = oari_now_ns() + GLOO_DRAIN_MS * (int64_t)1000000;

    if (g->threads != NULL && g->messages != NULL && !atomic_load(&g->aborted))
        while (oari_chunk_link_leaving(g->messages) > 0 &&
               gloo_progress(g) == OAR_OK && oari_now_ns() < deadline)
            usleep(100);
    if (g->threads != NULL)
        gloo_threads_close(g->threads);
    oari_chunk_link_destroy(g->messages);
    gloo_threads_release(g->threads);
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
