/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: the table of calls of this rank, and how they end. A call is in it from
 * before it is sent until its answer has come or its rank is gone, and counts
 * in the window of that rank for as long, whether or not anybody still waits
 * for it. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "parallel/rpc/rpc_into.h"
#include "parallel/rpc/rpc_map.h"
#include "parallel/rpc/rpc_stream.h"
#include "parallel/rpc/rpc_times.h"

enum { MOST_SPARES = 1024 }; /* of all kinds */

/* ---- spares -------------------------------------------------------------- */

void *oari_rpc_take_spare(oar_rpc *agent, void **list, size_t bytes)
{
    void *spare = *list;

    if (spare == NULL)
        return oari_alloc_aligned(16, bytes);
    memcpy(list, spare, sizeof *list);
    agent->spares--;
    return spare;
}

void oari_rpc_keep_spare(oar_rpc *agent, void **list, void *spare)
{
    if (agent->spares == MOST_SPARES || agent->closing) {
        oari_free(spare);
        return;
    }
    memcpy(spare, list, sizeof *list);
    *list = spare;
    agent->spares++;
}

void oari_rpc_free_spares(oar_rpc *agent)
{
    void **list[] = { &agent->spare_pending, &agent->spare_future,
                      &agent->spare_call };

    for (int i = 0; i < 3; i++)
        while (*list[i] != NULL)
            oari_free(oari_rpc_take_spare(agent, list[i], 0));
}

/* ---- the table ----------------------------------------------------------- */

#define EACH(p, agent, bucket)                                   \
    for (oari_rpc_pending *p = first_pending((agent), (bucket)), \
                          *next_ = NULL;                         \
         p != NULL && (next_ = next_pending(p), 1); p = next_)

static oari_rpc_pending *first_pending(oar_rpc *agent, int bucket)
{
    return OARI_CONTAINER_OF(agent->pending[bucket].first, oari_rpc_pending,
                             link);
}

static oari_rpc_pending *next_pending(oari_rpc_pending *p)
{
    return OARI_CONTAINER_OF(p->link.next, oari_rpc_pending, link);
}

oari_rpc_pending *oari_rpc_find_pending(oar_rpc *agent, uint64_t number)
{
    EACH(p, agent, (int)(number % OARI_RPC_BUCKETS))
        if (p->number == number)
            return p;
    return NULL;
}

void oari_rpc_add_pending(oar_rpc *agent, oari_rpc_pending *p)
{
    oari_rpc_peer *peer = &agent->peer[p->to];

    oari_list_append(&agent->pending[p->number % OARI_RPC_BUCKETS], &p->link);
    p->life = peer->life;
    peer->calls_out++;
    peer->bytes_out += p->bytes;
    agent->stats.pending++;
    agent->calls_outside += !p->inside;
    if (p->parent != NULL)
        p->parent->children++;
}

void oari_rpc_remove_pending(oar_rpc *agent, oari_rpc_pending *p)
{
    oari_rpc_peer *peer = &agent->peer[p->to];

    oari_list_remove(&agent->pending[p->number % OARI_RPC_BUCKETS], &p->link);
    peer->calls_out--;
    peer->bytes_out -= p->bytes;
    agent->stats.pending--;
    agent->calls_outside -= !p->inside;
    agent->cancels -= p->cancel;
    if (p->parent != NULL)
        p->parent->children--;
    oari_rpc_into_destroy(p->into);
    oari_rpc_keep_spare(agent, &agent->spare_pending, p);
}

/* ---- ending -------------------------------------------------------------- */

void oari_rpc_finish(oari_rpc_pending *p, const oar_error *error,
                     oar_rpc_message *reply)
{
    oar_future *future = p->future;

    p->future = NULL;
    if (future != NULL)
        oari_rpc_record_end(future->agent, p, error != NULL);
    if (future == NULL) {
        oar_rpc_message_destroy(reply);
        return;
    }
    oari_rpc_count_made(future->agent, p->name, oari_now_ns() - p->began_ns,
                        error != NULL);
    if (error != NULL)
        future->agent->stats.failed++;
    future->pending = NULL;
    oari_future_finish(future, error, reply);
    oari_future_drop(future);
}

void oari_rpc_fail_calls(oar_rpc *agent, int to, const oar_error *error)
{
    for (int b = 0; b < OARI_RPC_BUCKETS; b++)
        EACH(p, agent, b) {
            oar_error e = *error;

            if ((to >= 0 && p->to != to) || p->arriving)
                continue; /* the receives of those that arrive fail */
            snprintf(e.operation, sizeof e.operation, "%.31s", p->name);
            snprintf(e.site, sizeof e.site, "%s", p->site);
            oari_rpc_finish(p, &e, NULL);
            oari_rpc_remove_pending(agent, p);
        }
}

void oari_rpc_give_up(oari_rpc_pending *pending, const oar_error *error)
{
    oar_rpc *agent = pending->future->agent;

    oari_rpc_stream_clear(pending->future->stream);
    agent->stats.timed_out += error->status == OAR_E_TIMEOUT;
    agent->stats.cancelled += error->status == OAR_E_CANCELLED;
    oari_rpc_finish(pending, error, NULL);
    oari_rpc_tell(agent);
    pending->cancel = 1;
    agent->cancels++;
}

void oari_rpc_send_cancels(oar_rpc *agent)
{
    for (int b = 0; b < OARI_RPC_BUCKETS; b++) {
        oari_rpc_head head = { .kind = OARI_RPC_CANCEL, .left_ms = -1 };
        int to = -1;

        pthread_mutex_lock(&agent->lock);
        if (agent->cancels == 0)
            b = OARI_RPC_BUCKETS;
        else
            EACH(p, agent, b)
                if (p->cancel && to < 0) {
                    p->cancel = 0;
                    agent->cancels--;
                    head.call = p->number;
                    head.life = p->life;
                    to = p->to;
                }
        pthread_mutex_unlock(&agent->lock);
        if (to == agent->rank)
            oari_rpc_take_cancel(agent, to, head.call);
        else if (to >= 0)
            oari_rpc_send(agent, to, &head, NULL);
        b -= to >= 0; /* this bucket may have another */
    }
}

void oari_rpc_cancel_children(oar_rpc *agent, oar_rpc_call *parent)
{
    oar_error error;

    if (parent->children == 0)
        return;
    oari_error_set(&error, OAR_E_CANCELLED,
                   "the call that it was made from was cancelled");
    error.rank = agent->rank;
    for (int b = 0; b < OARI_RPC_BUCKETS; b++)
        EACH(p, agent, b)
            if (p->parent == parent && p->future != NULL && !p->arriving)
                oari_rpc_give_up(p, &error);
}

void oari_rpc_leave_children(oar_rpc *agent, oar_rpc_call *parent)
{
    for (int b = 0; b < OARI_RPC_BUCKETS && parent->children > 0; b++)
        EACH(p, agent, b)
            if (p->parent == parent) {
                p->parent = NULL;
                parent->children--;
            }
}

void oari_rpc_take_answer(oar_rpc *agent, int from, uint64_t number, int failed,
                          oar_rpc_message *reply, oar_status status)
{
    oari_rpc_pending *p;
    oar_error error;

    if (status == OAR_OK && failed) {
        status = oari_rpc_error_get(reply, &error);
        if (status == OAR_OK)
            status = error.status;
        else
            error = *oar_last_error();
    } else if (status != OAR_OK) {
        error = *oar_last_error();
        if (error.status != status)
            oari_error_set(
                &error, status, "the reply of rank %d (%s) is lost: %s", from,
                agent->peer[from].limits.name, oar_status_text(status));
        error.rank = agent->rank;
        error.peer = from;
    }
    p = oari_rpc_find_pending(agent, number);
    if (p == NULL || p->to != from) { /* its rank was gone before */
        oar_rpc_message_destroy(reply);
        return;
    }
    oari_rpc_into_end(agent, p);
    if (status == OAR_OK && p->into != NULL && p->future != NULL) {
        status = oari_rpc_into_fill(p->into, p->name, reply);
        if (status != OAR_OK)
            error = *oar_last_error();
    }
    if (status != OAR_OK) {
        agent->stats.timed_out += p->future != NULL && status == OAR_E_TIMEOUT;
        oar_rpc_message_destroy(reply);
        reply = NULL;
    }
    oari_rpc_finish(p, status != OAR_OK ? &error : NULL, reply);
    oari_rpc_remove_pending(agent, p);
    oari_rpc_tell(agent);
}

/* ---- deadlines ----------------------------------------------------------- */

/* Ends a call whose time is over; with the lock. */
static void time_out(oar_rpc *agent, oari_rpc_pending *p, int64_t now)
{
    oar_error error;
    char took[32];

    oari_duration_text(now - p->began_ns, took, sizeof took);
    oari_error_set(&error, OAR_E_TIMEOUT,
                   "rank %d (%s) has not answered \"%s\" for %s", p->to,
                   agent->peer[p->to].limits.name, p->name, took);
    error.rank = agent->rank;
    error.peer = p->to;
    snprintf(error.operation, sizeof error.operation, "%.31s", p->name);
    snprintf(error.site, sizeof error.site, "%s", p->site);
    oari_rpc_give_up(p, &error);
}

void oari_rpc_watch_deadline(oar_rpc *agent, int64_t deadline_ns)
{
    if (deadline_ns < agent->timer_ns) {
        agent->timer_ns = deadline_ns;
        oari_worker_wake(agent->timer);
    }
}

int64_t oari_rpc_check_deadlines(void *arg)
{
    oar_rpc *agent = arg;
    int64_t now = oari_now_ns(), next = OARI_NEVER, kept_ns, lease_ns;

    lease_ns = oari_rpc_check_leases(agent, now);

    pthread_mutex_lock(&agent->lock);
    for (int b = 0; b < OARI_RPC_BUCKETS; b++)
        EACH(p, agent, b) {
            if (p->future == NULL || p->arriving)
                continue;
            if (p->deadline_ns <= now)
                time_out(agent, p, now);
            else if (p->deadline_ns < next)
                next = p->deadline_ns;
        }
    kept_ns = oari_rpc_map_expire(agent, now);
    next = kept_ns < next ? kept_ns : next;
    next = lease_ns < next ? lease_ns : next;
    if (agent->closing)
        next = OARI_NEVER;
    agent->timer_ns = next;
    pthread_mutex_unlock(&agent->lock);
    oari_rpc_send_cancels(agent);
    oari_rref_send_notes(agent);
    return next;
}
