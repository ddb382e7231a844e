/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: replies in parts (rpc_stream.h has the rules). */
#include "parallel/rpc/rpc_stream.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "parallel/rpc/rpc_map.h"

/* ---- the caller ---------------------------------------------------------- */

oari_rpc_stream *oari_rpc_stream_create(int room)
{
    oari_rpc_stream *s =
        oari_alloc(1, sizeof *s + (size_t)room * sizeof s->part[0]);

    if (s != NULL)
        s->room = room;
    return s;
}

/* Takes the next part; NULL: there is none. With the lock. */
static oar_rpc_message *take_first(oari_rpc_stream *s)
{
    oar_rpc_message *part = NULL;

    if (atomic_load(&s->count) > 0) {
        part = s->part[s->first];
        s->first = (s->first + 1) % s->room;
        atomic_fetch_sub(&s->count, 1);
    }
    return part;
}

void oari_rpc_stream_clear(oari_rpc_stream *stream)
{
    oar_rpc_message *part;

    while (stream != NULL && (part = take_first(stream)) != NULL)
        oar_rpc_message_destroy(part);
}

void oari_rpc_stream_destroy(oari_rpc_stream *stream)
{
    oari_rpc_stream_clear(stream);
    oari_free(stream);
}

oar_status oari_rpc_refuse_parts(int parts, const char *call)
{
    if (parts != 0)
        return oari_fail(OAR_E_ARG,
                         "%s: a reply in parts is taken from a future: call by "
                         "oar_rpc_async or oar_rref_call",
                         call);
    return OAR_OK;
}

oar_status oari_rpc_stream_check_ended(oar_future *future)
{
    int ended;

    pthread_mutex_lock(&future->agent->lock);
    ended =
        atomic_load(&future->done) &&
        (future->status != OAR_OK || atomic_load(&future->stream->count) == 0);
    pthread_mutex_unlock(&future->agent->lock);
    if (!ended)
        return oari_fail(OAR_E_STATE,
                         "future_wait: the reply comes in parts: take them by "
                         "oar_future_next until there is none");
    return OAR_OK;
}

int oari_rpc_part_fits(oar_rpc *agent, int from, const oari_rpc_head *head)
{
    const oari_rpc_pending *p = oari_rpc_find_pending(agent, head->call);

    return p != NULL && p->to == from && p->parts_out < p->parts &&
           p->part_bytes_out < agent->opts.stream_bytes;
}

void oari_rpc_count_part(oar_rpc *agent, uint64_t number, uint64_t bytes)
{
    oari_rpc_pending *p = oari_rpc_find_pending(agent, number);

    if (p != NULL) {
        p->parts_out++;
        p->part_bytes_out += bytes;
    }
}

/* Ends a call of which a part could not be received; with the lock. */
static void lose_part(oari_rpc_pending *p, oar_status status)
{
    oar_error error = *oar_last_error();

    if (error.status != status)
        oari_error_set(&error, status, "a part of the reply of rank %d is lost",
                       p->to);
    error.peer = p->to;
    oari_rpc_give_up(p, &error);
}

void oari_rpc_take_part(oar_rpc *agent, int from, uint64_t number,
                        oar_rpc_message *part, oar_status status)
{
    oari_rpc_pending *p;

    pthread_mutex_lock(&agent->lock);
    p = oari_rpc_find_pending(agent, number);
    if (p != NULL && p->to == from && p->future != NULL) {
        oari_rpc_stream *s = p->future->stream;

        agent->stats.parts_in++;
        if (status != OAR_OK) {
            lose_part(p, status);
        } else if (s != NULL && s->count < s->room) {
            s->part[(s->first + s->count) % s->room] = part;
            part = NULL;
            atomic_fetch_add(&s->count, 1);
            oari_rpc_tell(agent);
        }
    }
    pthread_mutex_unlock(&agent->lock);
    oar_rpc_message_destroy(part); /* nobody waits for it any more */
    oari_rpc_send_cancels(agent);
}

/* Notes that a part was taken, and fills in the head of the message that gives
 * credit if it is time; with the lock. Returns whether it is. */
static int owe_credit(oar_future *future, const oar_rpc_message *part,
                      oari_rpc_head *head, int *to)
{
    oari_rpc_stream *s = future->stream;
    oari_rpc_pending *p = future->pending;

    s->paid_later++;
    s->paid_bytes += oar_rpc_message_bytes(part) - part->mapped_bytes;
    if (p == NULL || (2 * s->paid_later < s->room &&
                      2 * s->paid_bytes < future->agent->opts.stream_bytes))
        return 0;
    *head = (oari_rpc_head){ .kind = OARI_RPC_CREDIT,
                             .life = p->life,
                             .call = p->number,
                             .status = (uint32_t)s->paid_later,
                             .reference = s->paid_bytes,
                             .left_ms = -1 };
    *to = p->to;
    p->parts_out -= s->paid_later;
    p->part_bytes_out -= s->paid_bytes;
    s->paid_later = 0;
    s->paid_bytes = 0;
    return 1;
}

/* Makes this thread the one that takes parts. */
static oar_status begin_taking(oar_future *future, oar_rpc_message **part)
{
    int taken;

    if (future == NULL || part == NULL)
        return oari_fail(OAR_E_ARG, "future_next: no %s",
                         future == NULL ? "future" : "place for the part");
    OARI_TRY(oari_rpc_check(future->agent, "future_next"));
    if (future->stream == NULL)
        return oari_fail(OAR_E_STATE, "future_next: the call asked for no "
                                      "parts: set parts in its options");
    pthread_mutex_lock(&future->agent->lock);
    taken = future->stream->taking;
    future->stream->taking = 1;
    pthread_mutex_unlock(&future->agent->lock);
    if (taken)
        return oari_fail(OAR_E_STATE,
                         "future_next: another thread takes the parts of this "
                         "reply now");
    return OAR_OK;
}

oar_status oar_future_next(oar_future *future, oar_rpc_message **part)
{
    oar_rpc_message *given = NULL;
    oari_rpc_head head;
    oar_status status;
    oar_rpc *agent;
    int index, to, pay = 0;

    OARI_TRY(begin_taking(future, part));
    agent = future->agent;
    status = oari_future_await(agent, 1, &future, &index);
    pthread_mutex_lock(&agent->lock);
    if (status == OAR_OK)
        given = take_first(future->stream);
    if (given != NULL)
        pay = owe_credit(future, given, &head, &to);
    if (pay)
        head.life = agent->peer[to].life;
    future->stream->taking = 0;
    pthread_mutex_unlock(&agent->lock);
    if (pay && to == agent->rank)
        oari_rpc_take_credit(agent, to, &head);
    else if (pay)
        oari_rpc_send(agent, to, &head, NULL);
    if (status == OAR_OK && given == NULL)
        status = oari_future_result(future);
    if (status == OAR_OK)
        *part = given;
    return status;
}

/* ---- the function -------------------------------------------------------- */

void oari_rpc_take_credit(oar_rpc *agent, int from, const oari_rpc_head *head)
{
    oar_rpc_call *call;

    pthread_mutex_lock(&agent->lock);
    call = oari_rpc_find_serving(agent, from, head->call);
    if (call != NULL && (uint64_t)call->parts_out >= head->status &&
        call->part_bytes_out >= head->reference) {
        call->parts_out -= (int)head->status;
        call->part_bytes_out -= head->reference;
        oari_rpc_tell(agent);
    } else if (call != NULL) {
        agent->stats.refused++;
    }
    pthread_mutex_unlock(&agent->lock);
}

/* Says what is wrong with a part, before anything is waited for. */
static oar_status check_part(const oar_rpc_call *call,
                             const oar_rpc_message *part)
{
    const oari_rpc_limits *limits = &call->agent->peer[call->from].limits;
    size_t bytes = oar_rpc_message_bytes(part);

    if (call->parts == 0)
        return oari_fail(OAR_E_STATE,
                         "rpc_send_part: rank %d, at %s, called for a reply in "
                         "one: it must set parts in its options",
                         call->from, call->site);
    if (part == NULL)
        return oari_fail(OAR_E_ARG, "rpc_send_part: no part");
    if (bytes > limits->message_bytes)
        return oari_fail(OAR_E_SIZE,
                         "rpc_send_part: a part of %zu bytes; rank %d takes "
                         "%llu",
                         bytes, call->from,
                         (unsigned long long)limits->message_bytes);
    return oari_rref_check_all(call->agent, part);
}

/* Waits until the caller takes one more part; with the lock. */
static oar_status await_credit(oar_rpc_call *call)
{
    oar_rpc *agent = call->agent;
    uint64_t most = agent->peer[call->from].limits.stream_bytes;
    oar_status status = OAR_OK;

    for (;;) {
        if (atomic_load(&call->cancelled))
            return oari_fail(OAR_E_CANCELLED,
                             "rpc_send_part: rank %d takes no more parts",
                             call->from);
        if (call->parts_out < call->parts && call->part_bytes_out < most)
            return OAR_OK;
        if (oari_rpc_pumping)
            return oari_fail(OAR_E_STATE,
                             "an inline function cannot wait until rank %d has "
                             "taken parts: register it as OAR_RPC_POOL",
                             call->from);
        OARI_TRY(oari_rpc_pool_block_begin(agent->pool));
        if (!oari_rpc_drive_change(agent, call->deadline_ns))
            status = oari_about(call->from,
                                oari_fail(OAR_E_TIMEOUT,
                                          "rpc_send_part: rank %d has not "
                                          "taken %d parts in time",
                                          call->from, call->parts_out));
        oari_rpc_pool_block_end(agent->pool);
        OARI_TRY(status);
    }
}

/* Sends a part that has credit. Takes it. */
static oar_status post_part(oar_rpc_call *call, oar_rpc_message *part)
{
    oar_rpc *agent = call->agent;
    oari_rpc_head head = { .kind = OARI_RPC_PART,
                           .call = call->number,
                           .life = call->life,
                           .left_ms = -1 };
    oar_rpc_message *copy;
    oar_status status;

    if (call->from != agent->rank)
        return oari_rpc_send(agent, call->from, &head, part);
    status = oari_rpc_message_copy(part, &copy);
    oar_rpc_message_destroy(part);
    OARI_TRY(status);
    pthread_mutex_lock(&agent->lock);
    oari_rpc_count_part(agent, call->number, oar_rpc_message_bytes(copy));
    pthread_mutex_unlock(&agent->lock);
    oari_rpc_take_part(agent, agent->rank, call->number, copy, OAR_OK);
    return OAR_OK;
}

oar_status oar_rpc_send_part(oar_rpc_call *call, oar_rpc_message *part)
{
    oar_status status;

    if (call == NULL)
        status = oari_fail(OAR_E_ARG, "rpc_send_part: no call");
    else
        status = check_part(call, part);
    if (status == OAR_OK) {
        pthread_mutex_lock(&call->agent->lock);
        status = await_credit(call);
        if (status == OAR_OK) {
            call->parts_out++;
            call->part_bytes_out += oar_rpc_message_bytes(part);
            if (oari_rpc_map_applies(call->agent, call->from, part))
                call->part_bytes_out -= part->mapped_bytes;
            call->agent->stats.parts_out++;
        }
        pthread_mutex_unlock(&call->agent->lock);
    }
    if (status == OAR_OK)
        return post_part(call, part);
    oar_rpc_message_destroy(part);
    return status;
}
