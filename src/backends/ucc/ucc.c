/* SPDX-License-Identifier: Apache-2.0 */
/* ucc: the backend `ucc`: collectives by the real UCC, over UCX.
 *
 * It has no messages; the links that the core makes beside it carry those, find
 * peers that are gone, and compare what ranks call. A request that is under way
 * when the group is aborted is abandoned: UCC cannot take it back, so nothing
 * may drive its context any more, and close leaves it where it is.
 */
#include <sched.h>

#include "backends/ucc/engine.h"
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

static oar_status start_request(oari_ucc *u, const oar_collective *call,
                                oari_ucc_request *request)
{
    ucc_coll_args_t args = oari_ucc_arguments(u, call, request->parts);
    ucc_status_t status =
        ucc_collective_init(&args, &request->handle, u->made->team);

    if (status != UCC_OK)
        return oari_ucc_fail(status, oar_coll_name(call->kind));
    status = ucc_collective_post(request->handle);
    if (status >= 0)
        return OAR_OK;
    ucc_collective_finalize(request->handle);
    return oari_ucc_fail(status, oar_coll_name(call->kind));
}

static oar_status post(void *self, const oar_collective *call,
                       oar_transfer *done)
{
    oari_ucc *u = self;
    oari_ucc_request *request;
    oar_status status = (oar_status)u->why;

    if (status != OAR_OK || oari_ucc_is_empty(u, call)) {
        finish(done, status);
        return OAR_OK;
    }
    request = new_request(u);
    if (request == NULL)
        return OAR_E_NOMEM;
    request->done = done;
    request->kind = call->kind;
    request->next = NULL;
    status = start_request(u, call, request);
    if (status != OAR_OK) {
        put_aside(u, request);
        return status;
    }
    *u->tail = request;
    u->tail = &request->next;
    return OAR_OK;
}

/* Takes those that are done out of the list. The first that failed is what the
 * group ends with. */
static oar_status reap(oari_ucc *u)
{
    oari_ucc_request **at = &u->head;
    oar_status result = OAR_OK;

    while (*at != NULL) {
        oari_ucc_request *request = *at;
        ucc_status_t status = ucc_collective_test(request->handle);
        oar_status ours = OAR_OK;

        if (status > 0) {
            at = &request->next;
            continue;
        }
        ucc_collective_finalize(request->handle);
        if (status < 0)
            ours = oari_ucc_fail(status, oar_coll_name(request->kind));
        if (result == OAR_OK)
            result = ours;
        *at = request->next;
        finish(request->done, ours);
        put_aside(u, request);
    }
    u->tail = at;
    return result;
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
    return reap(u);
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

/* How long peers are waited for that close later, or not at all. */
enum { FAREWELL_MS = 250, DESTROY_MS = 1000 };

static int64_t in_ms(int64_t ms)
{
    return oari_now_ns() + ms * 1000000;
}

/* Ranks leave together if they can: a peer that is still in its last collective
 * may read from a connection that would be reset under it. */
static void say_farewell(oari_ucc *u)
{
    oar_collective barrier = { .kind = OAR_COLL_BARRIER };
    oar_transfer done = { 0 };
    int64_t until = in_ms(FAREWELL_MS);

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

static oar_status destroy_team(oari_ucc *u)
{
    int64_t until = in_ms(DESTROY_MS);
    ucc_status_t status;

    while ((status = ucc_team_destroy(u->made->team)) == UCC_INPROGRESS &&
           oari_now_ns() < until) {
        ucc_context_progress(u->made->context);
        sched_yield();
    }
    return status == UCC_OK ? OAR_OK : oari_ucc_fail(status, "ending a team");
}

static void free_spares(oari_ucc *u)
{
    while (u->spare != NULL) {
        oari_ucc_request *next = u->spare->next;
        oari_free(u->spare);
        u->spare = next;
    }
}

/* After an abort requests may be under way, and destroying a context waits for
 * every peer, the one that is gone among them: it stays until the process
 * ends. */
static void close_engine(void *self)
{
    oari_ucc *u = self;

    if (u->made != NULL && u->why == OAR_OK && u->head == NULL) {
        say_farewell(u);
        if (destroy_team(u) == OAR_OK) {
            ucc_context_destroy(u->made->context);
            oari_ucc_opening_free(u->made);
        }
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
