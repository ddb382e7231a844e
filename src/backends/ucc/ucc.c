/* SPDX-License-Identifier: Apache-2.0 */
/* ucc: the backend `ucc`: collectives by the real UCC, over UCX.
 *
 * It has no messages: the links that the core makes beside it carry those,
 * notice peers that are gone, and compare what ranks call. A request that is in
 * flight when the group is aborted is abandoned: UCC cannot cancel it, so
 * nothing may progress its context any more, and close does not free it.
 */
#include <sched.h>
#include <stdio.h>

#include "backends/ucc/ucc_engine.h"
#include "base/alloc.h"
#include "base/clock.h"

/* ---- collectives --------------------------------------------------------- */

static void recycle_request(oari_ucc *u, oari_ucc_request *request)
{
    request->next = u->spare;
    u->spare = request;
}

static void finish_transfer(oar_transfer *done, oar_status status)
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

/* UCC often does not know why it failed: a peer is gone, or called something
 * else. So the request is not completed; progress reports that UCC failed, and
 * the core gives the links time to find the reason before it aborts. */
static void record_failure(oari_ucc *u, oari_ucc_request *request,
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

static oar_status post_collective(void *self, const oar_collective *call,
                                  oar_transfer *done)
{
    oari_ucc *u = self;
    oari_ucc_request *request;
    ucc_status_t status;
    oar_status why = (oar_status)u->why;

    if (why != OAR_OK || oari_ucc_is_empty(u, call)) {
        finish_transfer(done, why);
        return OAR_OK;
    }
    request = u->spare;
    if (request != NULL)
        u->spare = request->next;
    else if ((request = oari_alloc(1, sizeof *request +
                                          4 * (size_t)u->ranks *
                                              sizeof *request->parts)) == NULL)
        return OAR_E_NOMEM;
    request->done = done;
    request->kind = call->kind;
    request->next = NULL;
    *u->tail = request;
    u->tail = &request->next;
    status = start_request(u, call, request);
    if (status != UCC_OK)
        record_failure(u, request, status);
    return OAR_OK;
}

/* Completes the requests that UCC has done. */
static void reap_requests(oari_ucc *u)
{
    oari_ucc_request **at = &u->head;

    while (*at != NULL) {
        oari_ucc_request *request = *at;
        ucc_status_t status = request->handle == NULL
                                  ? UCC_INPROGRESS
                                  : ucc_collective_test(request->handle);

        if (status < 0)
            record_failure(u, request, status);
        if (status != UCC_OK) {
            at = &request->next;
            continue;
        }
        ucc_collective_finalize(request->handle);
        *at = request->next;
        finish_transfer(request->done, OAR_OK);
        recycle_request(u, request);
    }
    u->tail = at;
}

static oar_status progress_engine(void *self)
{
    oari_ucc *u = self;
    oar_status why = (oar_status)u->why;

    if (why != OAR_OK) { /* UCC may go on using the requests and buffers */
        for (oari_ucc_request *r = u->head; r != NULL; r = r->next)
            finish_transfer(r->done, why);
        u->head = NULL;
        u->tail = &u->head;
        return OAR_OK;
    }
    ucc_context_progress(u->made->context);
    reap_requests(u);
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
    return oari_ucc_context_create(env, &u->made);
}

enum { CLOSE_BARRIER_MS = 250 /* peers may close later, or not at all */ };

/* A barrier before the connections end: they would be reset under a peer that
 * is still in its last collective. */
static void wait_for_peers(oari_ucc *u)
{
    oar_collective barrier = { .kind = OAR_COLL_BARRIER };
    oar_transfer done = { 0 };
    int64_t deadline = oari_now_ns() + (int64_t)CLOSE_BARRIER_MS * 1000000;

    if (u->ranks == 1 || post_collective(u, &barrier, &done) != OAR_OK)
        return;
    while (!done.done && oari_now_ns() < deadline) {
        if (progress_engine(u) != OAR_OK)
            return;
        sched_yield();
    }
    if (!done.done)
        recycle_request(u, u->head); /* a barrier has no buffers of ours */
    u->head = NULL;
}

/* After an abort or a failure requests may be in flight: their context stays
 * until the process ends. */
static void close_engine(void *self)
{
    oari_ucc *u = self;
    int is_clean = u->why == OAR_OK && u->failed == OAR_OK && u->head == NULL;

    if (u->made != NULL && is_clean) {
        wait_for_peers(u);
        oari_ucc_context_destroy(u->made);
    }
    while (u->spare != NULL) {
        oari_ucc_request *next = u->spare->next;
        oari_free(u->spare);
        u->spare = next;
    }
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
    .progress = progress_engine,
    .abort = abort_engine,
    .takes = oari_ucc_takes,
    .post_count = OAR_COLL_COUNT,
    .post = {
        [OAR_COLL_BARRIER] = post_collective,
        [OAR_COLL_BROADCAST] = post_collective,
        [OAR_COLL_ALL_REDUCE] = post_collective,
        [OAR_COLL_REDUCE] = post_collective,
        [OAR_COLL_GATHER] = post_collective,
        [OAR_COLL_SCATTER] = post_collective,
        [OAR_COLL_ALL_GATHER] = post_collective,
        [OAR_COLL_REDUCE_SCATTER] = post_collective,
        [OAR_COLL_ALL_TO_ALL] = post_collective,
    },
};

OAR_API const oar_backend_ops *oar_backend_plugin(void);

const oar_backend_ops *oar_backend_plugin(void)
{
    return &table;
}
