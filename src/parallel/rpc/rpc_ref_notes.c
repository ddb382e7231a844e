/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: references in messages that go and come, and the control messages about
 * them that come. Everything static is called with refs_lock. */
#include <string.h>

#include "base/status.h"
#include "parallel/rpc/rpc_ref.h"

/* ---- messages with references -------------------------------------------- */

oar_status oari_rref_check_all(const oar_rpc *agent,
                               const oar_rpc_message *message)
{
    for (int64_t i = 0; message != NULL && i < message->refs.count; i++)
        if (message->refs.data[i]->agent != agent)
            return oari_fail(OAR_E_ARG,
                             "reference %lld of the message is another agent's",
                             (long long)i);
    return OAR_OK;
}

/* Returns whether a value was made in this life of the rank. One of an earlier
 * life is gone: ranks that get it know that, and give no grants of it back. */
static int is_of_this_life(const oar_rpc *agent, uint64_t id)
{
    return oari_rref_owner_life(id) == agent->peer[agent->rank].life;
}

void oari_rref_send_all(oar_rpc *agent, int to, const oar_rpc_message *message)
{
    if (message == NULL || message->refs.count == 0)
        return;
    pthread_mutex_lock(&agent->refs_lock);
    for (int64_t i = 0; i < message->refs.count; i++) {
        oar_rref *r = message->refs.data[i];

        if (oari_rref_is_own(r) && !is_of_this_life(agent, r->id))
            continue;
        if (oari_rref_is_own(r))
            oari_owned_grant(&r->owned, to);
        else
            oari_held_pass(&r->held, to);
        oari_rpc_lease_given(agent, to);
    }
    pthread_mutex_unlock(&agent->refs_lock);
}

/* A value of this rank has come home; one that is gone is there as failed. */
static oar_rref *take_own(oar_rpc *agent, int from, uint64_t id)
{
    oar_rref *r = oari_rref_find_own(agent, id);

    if (r == NULL) {
        r = oari_rref_add(agent, agent->rank, id);
        if (r == NULL)
            return NULL;
        r->phase = OARI_RREF_FAILED;
        oari_error_set(&r->error, OAR_E_NOT_FOUND,
                       "the value %llu of rank %d is gone",
                       (unsigned long long)id, agent->rank);
    }
    oari_owned_grant(&r->owned, agent->rank);
    oari_rref_add_note(agent, from, OARI_RPC_HELD, id, (uint32_t)agent->rank,
                       0);
    return r;
}

/* A value of another rank has come. */
static oar_rref *take_held(oar_rpc *agent, int from, int owner, uint64_t id)
{
    oar_rref *r = oari_rref_find(agent, owner, id);

    if (r == NULL)
        r = oari_rref_add(agent, owner, id);
    if (r == NULL)
        return NULL;
    if ((agent->peer[owner].gone ||
         agent->peer[owner].life != oari_rref_owner_life(id)) &&
        !r->held.broken) {
        r->held.broken = 1;
        oari_error_set(&r->error, OAR_E_PEER,
                       "rank %d (%s), which owned the value, is gone", owner,
                       agent->peer[owner].limits.name);
        r->error.peer = owner;
    }
    if (from == owner) {
        oari_held_granted(&r->held);
        r->lapsed = 0;
        return r;
    }
    switch (oari_held_passed(&r->held, from)) {
    case OARI_HELD_ASK:
        oari_rref_add_note(agent, owner, OARI_RPC_HOLD, id, 0, 0);
        break;
    case OARI_HELD_CONFIRM:
        oari_rref_add_note(agent, from, OARI_RPC_HELD, id, (uint32_t)owner, 0);
        break;
    case OARI_HELD_NOTHING: break;
    }
    if (agent->peer[from].gone)
        r->held.owed[from] = 0; /* its next life waits for none */
    return r;
}

oar_status oari_rref_receive_all(oar_rpc *agent, int from,
                                 oar_rpc_message *message)
{
    oari_rpc_value v;
    oar_status status = OAR_OK;

    if (message->bytes == 0 ||
        memchr(message->values, OARI_RPC_REF, message->bytes) == NULL)
        return OAR_OK; /* none, without the lock */
    pthread_mutex_lock(&agent->refs_lock);
    for (size_t at = 0; at < message->bytes && status == OAR_OK; at = v.next) {
        oar_rref *r = NULL;

        status = oari_rpc_read_value(message->values, message->bytes, at, &v);
        if (status != OAR_OK)
            break;
        if (v.type != OARI_RPC_REF)
            continue;
        if (v.owner >= agent->ranks || oari_rref_maker(v.id) >= agent->ranks)
            status = oari_fail(OAR_E_DATA, "a reference to a value of rank %d",
                               v.owner);
        else if (oari_vec_reserve(&message->refs, 1) != OAR_OK)
            status = OAR_E_NOMEM;
        else
            r = v.owner == agent->rank ? take_own(agent, from, v.id)
                                       : take_held(agent, from, v.owner, v.id);
        if (r != NULL)
            message->refs.data[message->refs.count++] = r;
        else if (status == OAR_OK)
            status = OAR_E_NOMEM;
    }
    pthread_mutex_unlock(&agent->refs_lock);
    return status;
}

/* ---- control messages that come ------------------------------------------ */

static int take_noted(oar_rpc *agent, int from, const oari_rpc_head *head)
{
    oar_rref *r = oari_rref_find(agent, from, head->reference);
    int found = (head->flags & OARI_RPC_FAILED) == 0;
    oar_error error;

    if (r == NULL || !r->held.asked)
        return 0;
    if (found && head->call != agent->peer[from].lapsed) {
        oari_rref_add_note(agent, from, OARI_RPC_HOLD, r->id, 0, 0);
        return 1; /* it was of a lease that has ended */
    }
    oari_held_noted(&r->held, found);
    r->lapsed = 0;
    if (!found) {
        oari_error_set(&error, OAR_E_NOT_FOUND,
                       "the value %llu of rank %d is gone: a rank that passed "
                       "it on died",
                       (unsigned long long)r->id, from);
        error.peer = from;
        oari_rref_break(r, &error);
    }
    oari_rref_confirm_owed(r);
    oari_rref_end(r);
    return 1;
}

static int take_hold(oar_rpc *agent, int from, const oari_rpc_head *head)
{
    oar_rref *r = is_of_this_life(agent, head->reference)
                      ? oari_rref_find_own(agent, head->reference)
                      : NULL;

    if (r != NULL) {
        oari_owned_grant(&r->owned, from);
        oari_rpc_lease_given(agent, from);
    }
    oari_rref_add_note(agent, from, OARI_RPC_NOTED, head->reference, 0,
                       r != NULL ? 0 : OARI_RPC_FAILED);
    return 1;
}

static int take_drop(oar_rpc *agent, int from, const oari_rpc_head *head)
{
    oar_rref *r = oari_rref_find(agent, agent->rank, head->reference);

    if (head->call != agent->peer[from].lapses)
        return 1; /* of grants that are forgotten */
    if (r == NULL || !oari_owned_drop(&r->owned, from, head->status))
        return 0;
    oari_rref_end(r);
    return 1;
}

static int take_confirmation(oar_rpc *agent, int from,
                             const oari_rpc_head *head)
{
    oar_rref *r =
        head->status < (uint32_t)agent->ranks
            ? oari_rref_find(agent, (int)head->status, head->reference)
            : NULL;

    if (head->call != agent->peer[from].lapses)
        return 1; /* this rank did not wait so long */
    if (r == NULL || oari_rref_is_own(r) ||
        !oari_held_confirmed(&r->held, from))
        return 0;
    oari_rref_end(r);
    return 1;
}

typedef struct lease_end {
    int rank;
    oar_error error;
} lease_end;

static void lose_grants(oar_rref *r, void *arg)
{
    const lease_end *end = arg;

    if (oari_rref_is_own(r) || !oari_held_lapsed(&r->held, end->rank))
        return;
    r->lapsed = 1;
    oari_rref_break(r, &end->error);
}

static int take_lapsed(oar_rpc *agent, int from, const oari_rpc_head *head)
{
    oari_rpc_peer *peer = &agent->peer[from];
    lease_end end = { .rank = from };

    if (head->call != (uint64_t)peer->lapsed + 1)
        return 0;
    peer->lapsed++;
    oari_error_set(&end.error, OAR_E_NOT_FOUND,
                   "rank %d (%s) heard nothing of rank %d for %lld ms: its "
                   "lease on values of that rank has ended",
                   from, peer->limits.name, agent->rank,
                   (long long)peer->limits.lease_ms);
    end.error.rank = agent->rank;
    end.error.peer = from;
    oari_rref_each(agent, lose_grants, &end);
    return 1;
}

void oari_rref_take_note(oar_rpc *agent, int from, const oari_rpc_head *head)
{
    int good = 0;

    pthread_mutex_lock(&agent->refs_lock);
    if (agent->peer[from].gone)
        good = 1; /* what it held is forgotten already */
    else if (head->kind == OARI_RPC_HOLD)
        good = take_hold(agent, from, head);
    else if (head->kind == OARI_RPC_NOTED)
        good = take_noted(agent, from, head);
    else if (head->kind == OARI_RPC_HELD)
        good = take_confirmation(agent, from, head);
    else if (head->kind == OARI_RPC_DROP)
        good = take_drop(agent, from, head);
    else if (head->kind == OARI_RPC_LAPSED)
        good = take_lapsed(agent, from, head);
    else if (head->kind == OARI_RPC_RENEW)
        good = 1; /* that it came is all there is to it */
    pthread_mutex_unlock(&agent->refs_lock);
    if (!good) {
        pthread_mutex_lock(&agent->lock);
        agent->stats.refused++;
        pthread_mutex_unlock(&agent->lock);
    }
}
