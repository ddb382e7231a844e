/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: futures. Everything in one but `done` is guarded by its agent's lock. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "parallel/rpc/rpc_stream.h"

void oari_future_drop(oar_future *future)
{
    if (--future->users > 0)
        return;
    oar_rpc_message_destroy(future->reply);
    oari_rpc_stream_destroy(future->stream);
    oari_rpc_keep_spare(future->agent, &future->agent->spare_future, future);
}

/* Runs a function of oar_future_then, on a thread of the pool. */
static void run_then(void *arg)
{
    oari_rpc_then *then = arg;
    oar_future *future = then->future;
    oar_rpc *agent = future->agent;

    then->fn(then->arg, future, future->status);
    oari_free(then);
    pthread_mutex_lock(&agent->lock);
    oari_future_drop(future);
    pthread_mutex_unlock(&agent->lock);
}

static void post_then(oar_rpc *agent, oari_rpc_then *then)
{
    then->job = (oari_job){ .run = run_then, .arg = then };
    oari_rpc_pool_post(agent->pool, &then->job);
}

void oari_future_finish(oar_future *future, const oar_error *error,
                        oar_rpc_message *reply)
{
    oari_link *link;

    future->status = error != NULL ? error->status : OAR_OK;
    if (error != NULL)
        future->error = *error;
    future->reply = reply;
    atomic_store(&future->done, 1);
    while ((link = oari_list_take(&future->then)) != NULL)
        post_then(future->agent, OARI_CONTAINER_OF(link, oari_rpc_then, link));
}

static int is_ready(const oar_future *f)
{
    return atomic_load(&f->done) ||
           (f->stream != NULL && atomic_load(&f->stream->count) > 0);
}

/* Returns the first that is done or has a part, or -1. */
static int find_done(int count, oar_future *const *future)
{
    for (int i = 0; i < count; i++)
        if (future[i] != NULL && is_ready(future[i]))
            return i;
    return -1;
}

typedef struct waited {
    int count;
    oar_future *const *future;
} waited;

static int has_done(void *arg)
{
    const waited *w = arg;

    return find_done(w->count, w->future) >= 0;
}

/* Notes in the recorder whether a thread waits for one call. */
static void note_wait(oar_rpc *agent, int count, oar_future *const *future,
                      int waits)
{
    if (count == 1)
        oari_rpc_record_wait(agent, future[0], waits);
}

oar_status oari_future_await(oar_rpc *agent, int count,
                             oar_future *const *future, int *index)
{
    waited w = { count, future };

    *index = find_done(count, future);
    if (*index >= 0)
        return OAR_OK;
    OARI_TRY(oari_rpc_check(agent, "future_wait"));
    if (oari_rpc_pumping)
        return oari_fail(OAR_E_STATE, "an inline function cannot wait for a "
                                      "call: register it as OAR_RPC_POOL");
    OARI_TRY(oari_rpc_pool_block_begin(agent->pool));
    note_wait(agent, count, future, 1);
    oari_rpc_wait(agent, has_done, &w, OARI_NEVER);
    *index = find_done(count, future);
    if (future[0] != NULL && future[0]->stream != NULL)
        note_wait(agent, count, future, 0); /* of the others it is the end */
    oari_rpc_pool_block_end(agent->pool);
    return OAR_OK;
}

oar_status oari_future_result(const oar_future *future)
{
    return future->status == OAR_OK ? OAR_OK : oari_fail_with(&future->error);
}

oar_status oari_future_end(oar_future *future, oar_rpc_message **reply)
{
    oar_rpc *agent = future->agent;
    oar_status status;
    int index;

    status = oari_future_await(agent, 1, &future, &index);
    if (status != OAR_OK) {
        oari_future_abandon(future); /* this thread may not wait */
        oar_future_release(future);
        return status;
    }
    status = oari_future_result(future);
    pthread_mutex_lock(&agent->lock);
    if (status == OAR_OK && reply != NULL) {
        *reply = future->reply;
        future->reply = NULL;
    }
    oari_future_drop(future);
    pthread_mutex_unlock(&agent->lock);
    return status;
}

oar_status oar_future_wait(oar_future *future, oar_rpc_message **reply)
{
    oar_rpc_message *given = NULL;
    int index;

    if (future == NULL)
        return oari_fail(OAR_E_ARG, "future_wait: no future");
    if (future->stream != NULL)
        OARI_TRY(oari_rpc_stream_check_ended(future));
    OARI_TRY(oari_future_await(future->agent, 1, &future, &index));
    if (future->status == OAR_OK && reply != NULL) {
        pthread_mutex_lock(&future->agent->lock);
        given = future->reply;
        future->reply = NULL;
        pthread_mutex_unlock(&future->agent->lock);
        *reply = given;
    }
    return oari_future_result(future);
}

oar_status oar_future_test(oar_future *future, int *done)
{
    if (future == NULL || done == NULL)
        return oari_fail(OAR_E_ARG, "future_test: no %s",
                         future == NULL ? "future" : "place for the answer");
    if (!atomic_load(&future->done) && !oari_rpc_pumping)
        oari_rpc_drive(future->agent);
    *done = atomic_load(&future->done);
    return *done ? oari_future_result(future) : OAR_OK;
}

oar_status oar_future_wait_any(int count, oar_future *const *future, int *index)
{
    oar_rpc *agent = NULL;
    int found;

    if (count < 0 || index == NULL || (future == NULL && count > 0))
        return oari_fail(OAR_E_ARG, "future_wait_any: %s",
                         index == NULL ? "no place for the index"
                                       : "no futures");
    for (int i = 0; i < count; i++) {
        if (future[i] == NULL)
            continue;
        if (agent != NULL && future[i]->agent != agent)
            return oari_fail(
                OAR_E_ARG, "future_wait_any: future %d is another agent's", i);
        agent = future[i]->agent;
    }
    if (agent == NULL) {
        *index = -1;
        return OAR_OK;
    }
    OARI_TRY(oari_future_await(agent, count, future, &found));
    *index = found;
    return atomic_load(&future[found]->done) ? oari_future_result(future[found])
                                             : OAR_OK;
}

oar_status oar_future_then(oar_future *future, oar_future_fn fn, void *arg)
{
    oari_rpc_then *then;

    if (future == NULL || fn == NULL)
        return oari_fail(OAR_E_ARG, "future_then: no %s",
                         future == NULL ? "future" : "function");
    OARI_TRY(oari_rpc_check(future->agent, "future_then"));
    then = oari_alloc(1, sizeof *then);
    if (then == NULL)
        return OAR_E_NOMEM;
    then->future = future;
    then->fn = fn;
    then->arg = arg;
    pthread_mutex_lock(&future->agent->lock);
    future->users++;
    if (atomic_load(&future->done))
        post_then(future->agent, then);
    else
        oari_list_append(&future->then, &then->link);
    pthread_mutex_unlock(&future->agent->lock);
    return OAR_OK;
}

oar_status oar_future_cancel(oar_future *future)
{
    oar_error error;

    if (future == NULL)
        return oari_fail(OAR_E_ARG, "future_cancel: no future");
    OARI_TRY(oari_rpc_check(future->agent, "future_cancel"));
    pthread_mutex_lock(&future->agent->lock);
    if (!atomic_load(&future->done) && !future->pending->arriving) {
        oari_error_set(&error, OAR_E_CANCELLED,
                       "the call of \"%s\" on rank %d was cancelled",
                       future->pending->name, future->pending->to);
        error.rank = future->agent->rank;
        oari_rpc_give_up(future->pending, &error);
    }
    pthread_mutex_unlock(&future->agent->lock);
    oari_rpc_send_cancels(future->agent);
    return OAR_OK;
}

void oari_future_abandon(oar_future *future)
{
    oar_future_cancel(future);
    pthread_mutex_lock(&future->agent->lock);
    while (!atomic_load(&future->done) && !oari_rpc_pumping)
        oari_rpc_wait_change(future->agent, OARI_NEVER);
    pthread_mutex_unlock(&future->agent->lock);
}

void oar_future_release(oar_future *future)
{
    oar_rpc *agent;

    if (future == NULL)
        return;
    agent = future->agent;
    if (future->stream != NULL)
        oar_future_cancel(future); /* nobody can take its parts */
    pthread_mutex_lock(&agent->lock);
    oari_future_drop(future);
    pthread_mutex_unlock(&agent->lock);
}
