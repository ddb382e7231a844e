/* SPDX-License-Identifier: Apache-2.0 */
/* ucc: the backend `ucc`: collectives by the real UCC, over UCX.
 *
 * It has no messages; the links that the core makes beside it carry those, find
 * peers that are gone, and compare what ranks call. A request that is under way
 * when the group is aborted is abandoned: UCC cannot take it back, so nothing
 * may drive its context any more, and close leaves it where it is.
 */
#include <sched.h>
#include <stdio.h>

#include "backends/ucc/ucc_engine.h"
#include "base/alloc.h"
#include "base/clock.h"

/* ---- collectives --------------------------------------------------------- */

/* A spare one has room for the parts of any call of this group. */
static oari_ucc_request *new_request(oari_ucc *u)
{
    oari_ucc_request *request = u->spare;
    size_t room = 4 * (size_t)u->ranks * sizeof *request->parts;

    if (request == NULL)
        return oari_alloc(1, sizeof *request + room);
    u->spare = request->next;
    return request;
}

static void put_aside(oari_ucc *u, oari_ucc_request *request)
{
    request->next = u->spare;
    u->spare = request;
}

static void finish(oar_transfer *done, oar_status status)
{
    done->status = status;
    done->done = 1;
}

static ucc_status_t start_request(oari_ucc *u, const oar_collective *call,
                                  oari_ucc_request *request)
{
    ucc_coll_args_t args = oari_ucc_arguments(u, call, request->parts);
    ucc_status_t status =
        ucc_collective_init(&args, &request->handle, u->made->team);

    if (status != UCC_OK) {
        request->handle = NULL;
        return status;
    }
    status = ucc_collective_post(request->handle);
    return status < 0 ? status : UCC_OK;
}

/* Why it failed is often not UCC's to say: a peer is gone, or called something
 * else. So the request is not done; progress says that UCC failed, and the
 * core gives the links time to know better before it aborts. */
static void note_failure(oari_ucc *u, oari_ucc_request *request,
                         ucc_status_t status)
{
    if (request->handle != NULL &&
        ucc_collective_test(request->handle) != UCC_INPROGRESS)
        ucc_collective_finalize(request->handle);
    request->handle = NULL;
    if (u->failed != OAR_OK)
        return;
    u->failed = oari_ucc_fail(status, oar_coll_name(request->kind));
    snprintf(u->text, sizeof u->text, "%s", oar_last_error_text());
}

static oar_status post(void *self, const oar_collective *call,
                       oar_transfer *done)
{
    oari_ucc *u = self;
    oari_ucc_request *request;
    ucc_status_t status;
    oar_status why = (oar_status)u->why;

    if (why != OAR_OK || oari_ucc_is_empty(u, call)) {
        finish(done, why);
        return OAR_OK;
    }
    request = new_request(u);
    if (request == NULL)
        return OAR_E_NOMEM;
    request->done = done;
    request->kind = call->kind;
    request->next = NULL;
    *u->tail = request;
    u->tail = &request->next;
    status = start_request(u, call, request);
    if (status != UCC_OK)
        note_failure(u, request, status);
    return OAR_OK;
}

/* Takes those that are done out of the list. */
static void reap(oari_ucc *u)
{
    oari_ucc_request **at = &u->head;

    while (*at != NULL) {
        oari_ucc_request *request = *at;
        ucc_status_t status = request->handle == NULL
                                  ? UCC_INPROGRESS
                                  : ucc_collective_test(request->handle);

        if (status < 0)
            note_failure(u, request, status);
        if (status != UCC_OK) {
            at = &request->next;
            continue;
        }
        ucc_collective_finalize(request->handle);
        *at = request->next;
        finish(request->done, OAR_OK);
        put_aside(u, request);
    }
    u->tail = at;
}

/* UCC may still read and write what they point to, the parts included. */
static void abandon(oari_ucc *u, oar_status why)
{
    for (oari_ucc_request *r = u->head; r != NULL; r = r->next)
        finish(r->done, why);
    u->head = NULL;
    u->tail = &u->head;
}

static oar_status progress(void *self)
{
    oari_ucc *u = self;
    oar_status why = (oar_status)u->why;

    if (why != OAR_OK) {
        abandon(u, why);
        return OAR_OK;
    }
    ucc_context_progress(u->made->context);
    reap(u);
    return u->failed == OAR_OK ? OAR_OK
                               : oar_backend_fail(u->failed, "%s", u->text);
}

static void abort_engine(void *self, oar_status why)
{
    oari_ucc *u = self;
    int none = OAR_OK;

    atomic_compare_exchange_strong(&u->why, &none, (int)why);
}

/* ---- opening and closing ------------------------------------------------- */

static oar_status open_engine(void *self, const oar_backend_env *env)
{
    oari_ucc *u = self;

    u->rank = env->rank;
    u->ranks = env->ranks;
    u->tail = &u->head;
    return oari_ucc_opening_run(env, &u->made);
}

enum { FAREWELL_MS = 250 /* for peers that close later, or not at all */ };

/* Ranks leave together if they can: a peer that is still in its last collective
 * may read from a connection that would be reset under it. */
static void say_farewell(oari_ucc *u)
{
    oar_collective barrier = { .kind = OAR_COLL_BARRIER };
    oar_transfer done = { 0 };
    int64_t until = oari_now_ns() + (int64_t)FAREWELL_MS * 1000000;

    if (u->ranks == 1 || post(u, &barrier, &done) != OAR_OK)
        return;
    while (!done.done && oari_now_ns() < until) {
        if (progress(u) != OAR_OK)
            return;
        sched_yield();
    }
    if (!done.done)
        put_aside(u, u->head); /* UCC has nothing of ours with it */
    u->head = NULL;
}

static void free_spares(oari_ucc *u)
{
    while (u->spare != NULL) {
        oari_ucc_request *next = u->spare->next;
        oari_free(u->spare);
        u->spare = next;
    }
}

/* After an abort or a failure requests may be under way: what they are part of
 * stays until the process ends. */
static void close_engine(void *self)
{
    oari_ucc *u = self;
    int good = u->why == OAR_OK && u->failed == OAR_OK && u->head == NULL;

    if (u->made != NULL && good) {
        say_farewell(u);
        oari_ucc_opening_end(u->made);
    }
    free_spares(u);
}

/* ---- the table ----------------------------------------------------------- */

static const oar_backend_ops table = {
    .size = sizeof(oar_backend_ops),
    .abi = OAR_BACKEND_ABI,
    .name = "ucc",
    .self_size = sizeof(oari_ucc),
    .probe = oari_ucc_probe,
    .open = open_engine,
    .close = close_engine,
    .progress = progress,
    .abort = abort_engine,
    .takes = oari_ucc_takes,
    .post_count = OAR_COLL_COUNT,
    .post = {
        [OAR_COLL_BARRIER] = post,
        [OAR_COLL_BROADCAST] = post,
        [OAR_COLL_ALL_REDUCE] = post,
        [OAR_COLL_REDUCE] = post,
        [OAR_COLL_GATHER] = post,
        [OAR_COLL_SCATTER] = post,
        [OAR_COLL_ALL_GATHER] = post,
        [OAR_COLL_REDUCE_SCATTER] = post,
        [OAR_COLL_ALL_TO_ALL] = post,
    },
};

OAR_API const oar_backend_ops *oar_backend_plugin(void);

const oar_backend_ops *oar_backend_plugin(void)
{
    return &table;
}
