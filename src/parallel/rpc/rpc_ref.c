/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: the table of values that references stand for, and the control messages
 * about them (rpc_holds.h says by which rules).
 *
 * Handles are dropped in places where nothing can be sent, so control messages
 * go into a list (notes) that is sent soon after, in its order. Numbers of
 * values made by a rank on another one grow, so the owner knows of a number
 * that it has not seen whether its value is yet to come.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fork.h"
#include "base/status.h"
#include "parallel/rpc/rpc_agent.h"

enum { MAKER_SHIFT = 40 };

typedef struct oari_rref_note {
    oari_link link;
    int to;
    oari_rpc_head head;
} oari_rref_note;

static int is_own(const oar_rref *rref)
{
    return rref->owner == rref->agent->rank;
}

static oari_list *bucket_of(oar_rpc *agent, int owner, uint64_t id)
{
    return &agent->refs[(id * 31 + (uint64_t)owner) % OARI_RPC_BUCKETS];
}

/* Everything static below is called with refs_lock, unless it says so. */

static oar_rref *find_value(oar_rpc *agent, int owner, uint64_t id)
{
    for (oari_link *l = bucket_of(agent, owner, id)->first; l != NULL;
         l = l->next) {
        oar_rref *r = OARI_CONTAINER_OF(l, oar_rref, link);

        if (r->owner == owner && r->id == id)
            return r;
    }
    return NULL;
}

static oar_rref *add_value(oar_rpc *agent, int owner, uint64_t id)
{
    size_t ranks = (size_t)agent->ranks;
    oar_rref *r = oari_alloc(1, sizeof *r + 2 * ranks * sizeof(uint32_t));

    if (r == NULL)
        return NULL;
    r->agent = agent;
    r->owner = owner;
    r->id = id;
    r->owned = (oari_owned){ .ranks = agent->ranks, .count = r->numbers };
    r->held = (oari_held){ .ranks = agent->ranks,
                           .owner = owner,
                           .waiting = r->numbers,
                           .owed = r->numbers + ranks };
    oari_list_append(bucket_of(agent, owner, id), &r->link);
    *(is_own(r) ? &agent->refs_owned : &agent->refs_held) += 1;
    return r;
}

static void remove_value(oar_rref *r)
{
    oari_list_remove(bucket_of(r->agent, r->owner, r->id), &r->link);
    *(is_own(r) ? &r->agent->refs_owned : &r->agent->refs_held) -= 1;
}

/* ---- control messages ---------------------------------------------------- */

static void add_note(oar_rpc *agent, int to, oari_rpc_kind kind, uint64_t id,
                     uint32_t number, unsigned flags)
{
    oari_rref_note *note = oari_alloc(1, sizeof *note);

    if (note == NULL)
        return; /* the value stays longer than it must */
    note->to = to;
    note->head.kind = kind;
    note->head.reference = id;
    note->head.status = number;
    note->head.flags = flags;
    note->head.left_ms = -1;
    oari_list_append(&agent->notes, &note->link);
}

void oari_rref_send_notes(oar_rpc *agent)
{
    oari_link *link;

    pthread_mutex_lock(&agent->refs_lock);
    if (!agent->sending_notes) {
        agent->sending_notes = 1;
        while ((link = oari_list_take(&agent->notes)) != NULL) {
            oari_rref_note *note =
                OARI_CONTAINER_OF(link, oari_rref_note, link);

            pthread_mutex_unlock(&agent->refs_lock);
            oari_rpc_send(agent, note->to, &note->head, NULL);
            oari_free(note);
            pthread_mutex_lock(&agent->refs_lock);
        }
        agent->sending_notes = 0;
    }
    pthread_mutex_unlock(&agent->refs_lock);
}

/* ---- the end of a value -------------------------------------------------- */

/* Frees a value that is in no table; without the lock. */
static void free_value(void *arg)
{
    oar_rref *r = arg;

    if (r->drop != NULL)
        r->drop(r->value);
    oar_rpc_message_destroy(r->message);
    oari_free(r);
}

/* After whatever may have been the last use of a value. */
static void settle(oar_rref *r)
{
    oar_rpc *agent = r->agent;

    if (is_own(r)) {
        if (agent->refs_closed || r->phase == OARI_RREF_TO_COME ||
            !oari_owned_is_free(&r->owned))
            return; /* at the end oari_rref_free_all does it */
        remove_value(r);
        r->job = (oari_job){ .run = free_value, .arg = r };
        oari_rpc_pool_post(agent->pool, &r->job);
    } else if (oari_held_is_over(&r->held)) {
        if (r->held.granted > 0 && !r->held.broken)
            add_note(agent, r->owner, OARI_RPC_DROP, r->id, r->held.granted, 0);
        remove_value(r);
        oari_free(r);
    }
}

/* A thread of the pool runs on_broken; without the lock. */
static void run_broken(void *arg)
{
    oar_rref *r = arg;

    r->on_broken(r->on_broken_arg, &r->error);
    oari_rref_drop_handle(r);
}

void oari_rref_tell_broken(oar_rref *r)
{
    if (!r->held.broken || r->on_broken == NULL || r->told_broken ||
        r->agent->refs_closed)
        return;
    r->told_broken = 1;
    r->held.handles++;
    r->job = (oari_job){ .run = run_broken, .arg = r };
    oari_rpc_pool_post(r->agent->pool, &r->job);
}

static void break_value(oar_rref *r, const oar_error *error)
{
    r->error = *error;
    oari_rref_tell_broken(r);
}

/* Sends the HELDs that were put off until NOTED. */
static void confirm_owed(oar_rref *r)
{
    for (int to = 0; to < r->agent->ranks; to++)
        for (; r->held.owed[to] > 0; r->held.owed[to]--)
            add_note(r->agent, to, OARI_RPC_HELD, r->id, (uint32_t)r->owner, 0);
}

oar_rref *oari_rref_add_handle(oar_rref *rref)
{
    pthread_mutex_lock(&rref->agent->refs_lock);
    if (is_own(rref))
        oari_owned_grant(&rref->owned, rref->owner);
    else
        rref->held.handles++;
    pthread_mutex_unlock(&rref->agent->refs_lock);
    return rref;
}

void oari_rref_drop_handle(oar_rref *rref)
{
    oar_rpc *agent = rref->agent;

    pthread_mutex_lock(&agent->refs_lock);
    if (is_own(rref))
        oari_owned_drop(&rref->owned, rref->owner, 1);
    else
        rref->held.handles--;
    settle(rref);
    if (agent->notes.first != NULL && agent->timer != NULL)
        oari_worker_wake(agent->timer); /* which sends them */
    pthread_mutex_unlock(&agent->refs_lock);
}

/* ---- values that another rank makes here --------------------------------- */

static int maker_of(uint64_t id)
{
    return (int)(id >> MAKER_SHIFT);
}

static uint64_t serial_of(uint64_t id)
{
    return id & (((uint64_t)1 << MAKER_SHIFT) - 1);
}

/* Notes that a number has been used. made_mask has a bit for each of the 64 up
 * to the highest: calls of several threads may overtake each other. */
static void note_made(oari_rpc_peer *maker, uint64_t serial)
{
    if (serial > maker->made_here) {
        uint64_t by = serial - maker->made_here;

        maker->made_mask = by < 64 ? maker->made_mask << by | 1 : 1;
        maker->made_here = serial;
    } else if (maker->made_here - serial < 64) {
        maker->made_mask |= (uint64_t)1 << (maker->made_here - serial);
    }
}

/* Finds a value of this rank; if it is yet to be made, makes a place for it. */
static oar_rref *find_own(oar_rpc *agent, uint64_t id)
{
    oar_rref *r = find_value(agent, agent->rank, id);
    int maker = maker_of(id);
    uint64_t serial = serial_of(id);
    const oari_rpc_peer *m;

    if (r != NULL || maker >= agent->ranks || serial == 0)
        return r;
    m = &agent->peer[maker];
    if (m->gone || (serial <= m->made_here &&
                    (m->made_here - serial >= 64 ||
                     (m->made_mask >> (m->made_here - serial) & 1) != 0)))
        return NULL;
    r = add_value(agent, agent->rank, id);
    if (r != NULL)
        r->strand.busy = 1; /* until the call that makes it has run */
    return r;
}

oar_status oari_rref_find_for(oar_rpc *agent, int from, uint64_t id, int makes,
                              oar_rref **rref)
{
    oar_status status = OAR_OK;
    oar_rref *r;

    pthread_mutex_lock(&agent->refs_lock);
    r = find_own(agent, id);
    if (makes &&
        (maker_of(id) != from || r == NULL || r->phase != OARI_RREF_TO_COME))
        status = oari_fail(OAR_E_DATA, "rank %d made a value twice", from);
    else if (r == NULL)
        status = oari_fail(OAR_E_NOT_FOUND,
                           "the value %llu of rank %d is gone, or never was",
                           (unsigned long long)id, agent->rank);
    else if (r->phase == OARI_RREF_FAILED)
        status = oari_fail_with(&r->error);
    if (status == OAR_OK) {
        if (makes) {
            r->phase = OARI_RREF_PENDING;
            note_made(&agent->peer[from], serial_of(id));
            if (from != agent->rank) /* it has a handle already */
                oari_owned_grant(&r->owned, from);
        }
        oari_owned_grant(&r->owned, agent->rank);
        *rref = r;
    }
    pthread_mutex_unlock(&agent->refs_lock);
    return status;
}

oar_status oari_rref_promise(oar_rpc *agent, int owner, oar_rref **rref)
{
    oar_rref *r;

    pthread_mutex_lock(&agent->refs_lock);
    r = add_value(agent, owner,
                  ((uint64_t)agent->rank << MAKER_SHIFT) |
                      ++agent->peer[owner].made_there);
    if (r != NULL && is_own(r)) {
        oari_owned_grant(&r->owned, owner);
        r->strand.busy = 1;
    } else if (r != NULL) {
        oari_held_granted(&r->held);
    }
    pthread_mutex_unlock(&agent->refs_lock);
    if (r == NULL)
        return OAR_E_NOMEM;
    *rref = r;
    return OAR_OK;
}

void oari_rref_unpromise(oar_rref *rref)
{
    pthread_mutex_lock(&rref->agent->refs_lock);
    rref->phase = OARI_RREF_FAILED;
    rref->held.granted = 0; /* the owner never heard of it */
    pthread_mutex_unlock(&rref->agent->refs_lock);
    oari_rref_drop_handle(rref);
}

void oari_rref_settle(oar_rref *rref, oar_rpc_message *message,
                      const oar_error *error)
{
    pthread_mutex_lock(&rref->agent->refs_lock);
    rref->phase = error != NULL ? OARI_RREF_FAILED : OARI_RREF_THERE;
    if (error != NULL)
        rref->error = *error;
    else
        rref->message = message;
    pthread_mutex_unlock(&rref->agent->refs_lock);
    if (error != NULL)
        oar_rpc_message_destroy(message);
}

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

void oari_rref_send_all(oar_rpc *agent, int to, const oar_rpc_message *message)
{
    if (message == NULL || message->refs.count == 0)
        return;
    pthread_mutex_lock(&agent->refs_lock);
    for (int64_t i = 0; i < message->refs.count; i++) {
        oar_rref *r = message->refs.data[i];

        if (is_own(r))
            oari_owned_grant(&r->owned, to);
        else
            oari_held_pass(&r->held, to);
    }
    pthread_mutex_unlock(&agent->refs_lock);
}

/* A value of this rank has come home; one that is gone is there as failed. */
static oar_rref *take_own(oar_rpc *agent, int from, uint64_t id)
{
    oar_rref *r = find_own(agent, id);

    if (r == NULL) {
        r = add_value(agent, agent->rank, id);
        if (r == NULL)
            return NULL;
        r->phase = OARI_RREF_FAILED;
        oari_error_set(&r->error, OAR_E_NOT_FOUND,
                       "the value %llu of rank %d is gone",
                       (unsigned long long)id, agent->rank);
    }
    oari_owned_grant(&r->owned, agent->rank);
    add_note(agent, from, OARI_RPC_HELD, id, (uint32_t)agent->rank, 0);
    return r;
}

/* A value of another rank has come. */
static oar_rref *take_held(oar_rpc *agent, int from, int owner, uint64_t id)
{
    oar_rref *r = find_value(agent, owner, id);

    if (r == NULL)
        r = add_value(agent, owner, id);
    if (r == NULL)
        return NULL;
    if (agent->peer[owner].gone && !r->held.broken) {
        r->held.broken = 1;
        oari_error_set(&r->error, OAR_E_PEER,
                       "rank %d (%s), which owned the value, is gone", owner,
                       agent->peer[owner].limits.name);
        r->error.peer = owner;
    }
    if (from == owner) {
        oari_held_granted(&r->held);
        return r;
    }
    switch (oari_held_passed(&r->held, from)) {
    case OARI_HELD_ASK: add_note(agent, owner, OARI_RPC_HOLD, id, 0, 0); break;
    case OARI_HELD_CONFIRM:
        add_note(agent, from, OARI_RPC_HELD, id, (uint32_t)owner, 0);
        break;
    case OARI_HELD_NOTHING: break;
    }
    return r;
}

oar_status oari_rref_receive_all(oar_rpc *agent, int from,
                                 oar_rpc_message *message)
{
    oari_rpc_value v;
    oar_status status = OAR_OK;

    pthread_mutex_lock(&agent->refs_lock);
    for (size_t at = 0; at < message->bytes && status == OAR_OK; at = v.next) {
        oar_rref *r = NULL;

        status = oari_rpc_read_value(message->values, message->bytes, at, &v);
        if (status != OAR_OK)
            break;
        if (v.type != OARI_RPC_REF)
            continue;
        if (v.owner >= agent->ranks || maker_of(v.id) >= agent->ranks)
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
    oar_rref *r = find_value(agent, from, head->reference);
    int found = (head->flags & OARI_RPC_FAILED) == 0;
    oar_error error;

    if (r == NULL || !r->held.asked)
        return 0;
    oari_held_noted(&r->held, found);
    if (!found) {
        oari_error_set(&error, OAR_E_NOT_FOUND,
                       "the value %llu of rank %d is gone: a rank that passed "
                       "it on died",
                       (unsigned long long)r->id, from);
        error.peer = from;
        break_value(r, &error);
    }
    confirm_owed(r);
    settle(r);
    return 1;
}

static int take_hold(oar_rpc *agent, int from, const oari_rpc_head *head)
{
    oar_rref *r = find_own(agent, head->reference);

    if (r != NULL)
        oari_owned_grant(&r->owned, from);
    add_note(agent, from, OARI_RPC_NOTED, head->reference, 0,
             r != NULL ? 0 : OARI_RPC_FAILED);
    return 1;
}

static int take_drop(oar_rpc *agent, int from, const oari_rpc_head *head)
{
    oar_rref *r = find_value(agent, agent->rank, head->reference);

    if (r == NULL || !oari_owned_drop(&r->owned, from, head->status))
        return 0;
    settle(r);
    return 1;
}

static int take_confirmation(oar_rpc *agent, int from,
                             const oari_rpc_head *head)
{
    oar_rref *r = head->status < (uint32_t)agent->ranks
                      ? find_value(agent, (int)head->status, head->reference)
                      : NULL;

    if (r == NULL || is_own(r) || !oari_held_confirmed(&r->held, from))
        return 0;
    settle(r);
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
    pthread_mutex_unlock(&agent->refs_lock);
    if (!good) {
        pthread_mutex_lock(&agent->lock);
        agent->stats.refused++;
        pthread_mutex_unlock(&agent->lock);
    }
}

/* ---- deaths and the end -------------------------------------------------- */

static void forget_rank(oar_rref *r, int rank, const oar_error *error)
{
    if (is_own(r)) {
        oari_owned_rank_gone(&r->owned, rank);
        if (r->phase == OARI_RREF_TO_COME && maker_of(r->id) == rank) {
            r->phase = OARI_RREF_FAILED;
            r->error = *error;
            oari_rpc_release_strand(r->agent, &r->strand);
        }
    } else {
        oari_held_rank_gone(&r->held, rank);
        if (rank == r->owner) {
            confirm_owed(r);
            break_value(r, error);
        }
    }
    settle(r);
}

void oari_rref_rank_gone(oar_rpc *agent, int rank, const oar_error *error)
{
    pthread_mutex_lock(&agent->refs_lock);
    for (int b = 0; b < OARI_RPC_BUCKETS; b++)
        for (oari_link *l = agent->refs[b].first, *next; l != NULL; l = next) {
            next = l->next;
            forget_rank(OARI_CONTAINER_OF(l, oar_rref, link), rank, error);
        }
    pthread_mutex_unlock(&agent->refs_lock);
}

/* Returns a value of this rank whose message is still there, and takes that. */
static oar_rpc_message *take_message(oar_rpc *agent)
{
    for (int b = 0; b < OARI_RPC_BUCKETS; b++)
        for (oari_link *l = agent->refs[b].first; l != NULL; l = l->next) {
            oar_rref *r = OARI_CONTAINER_OF(l, oar_rref, link);
            oar_rpc_message *message = r->message;

            r->message = NULL;
            if (message != NULL)
                return message;
        }
    return NULL;
}

void oari_rref_free_all(oar_rpc *agent)
{
    oar_rpc_message *message;
    oari_link *link;

    while ((message = take_message(agent)) != NULL)
        oar_rpc_message_destroy(message); /* may hold other values */
    for (int b = 0; b < OARI_RPC_BUCKETS; b++)
        while ((link = oari_list_take(&agent->refs[b])) != NULL)
            free_value(OARI_CONTAINER_OF(link, oar_rref, link));
    while ((link = oari_list_take(&agent->notes)) != NULL)
        oari_free(OARI_CONTAINER_OF(link, oari_rref_note, link));
}
