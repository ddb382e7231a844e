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
#include "parallel/rpc/rpc_ref.h"

/* A number: 8 bits of the owner's life, 16 of the maker's rank, 8 of the
 * maker's life, and 32 that the maker counts; the last two are its serial. */
enum { OWNER_LIFE_SHIFT = 56, MAKER_SHIFT = 40, MAKER_LIFE_SHIFT = 32 };

typedef struct oari_rref_note {
    oari_link link;
    int to;
    oari_rpc_head head;
} oari_rref_note;

int oari_rref_is_own(const oar_rref *rref)
{
    return rref->owner == rref->agent->rank;
}

static oari_list *bucket_of(oar_rpc *agent, int owner, uint64_t id)
{
    return &agent->refs[(id * 31 + (uint64_t)owner) % OARI_RPC_BUCKETS];
}

/* Everything static below is called with refs_lock, unless it says so. */

oar_rref *oari_rref_find(oar_rpc *agent, int owner, uint64_t id)
{
    for (oari_link *l = bucket_of(agent, owner, id)->first; l != NULL;
         l = l->next) {
        oar_rref *r = OARI_CONTAINER_OF(l, oar_rref, link);

        if (r->owner == owner && r->id == id)
            return r;
    }
    return NULL;
}

oar_rref *oari_rref_add(oar_rpc *agent, int owner, uint64_t id)
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
    *(oari_rref_is_own(r) ? &agent->refs_owned : &agent->refs_held) += 1;
    if (!oari_rref_is_own(r)) {
        agent->peer[owner].values++;
        oari_rpc_lease_taken(agent);
    }
    return r;
}

static void remove_value(oar_rref *r)
{
    oari_list_remove(bucket_of(r->agent, r->owner, r->id), &r->link);
    *(oari_rref_is_own(r) ? &r->agent->refs_owned : &r->agent->refs_held) -= 1;
    r->agent->peer[r->owner].values -= !oari_rref_is_own(r);
}

/* ---- control messages ---------------------------------------------------- */

void oari_rref_add_note(oar_rpc *agent, int to, oari_rpc_kind kind, uint64_t id,
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
    note->head.life = agent->peer[to].life;
    note->head.call = kind == OARI_RPC_NOTED ? agent->peer[to].lapses
                                             : agent->peer[to].lapsed;
    oari_list_append(&agent->notes, &note->link);
    atomic_store(&agent->has_notes, 1);
}

void oari_rref_send_notes(oar_rpc *agent)
{
    oari_link *link;

    if (!atomic_load(&agent->has_notes))
        return;
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
        atomic_store(&agent->has_notes, 0);
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
void oari_rref_end(oar_rref *r)
{
    oar_rpc *agent = r->agent;

    if (oari_rref_is_own(r)) {
        if (agent->refs_closed || r->phase == OARI_RREF_TO_COME ||
            !oari_owned_is_free(&r->owned))
            return; /* at the end oari_rref_free_all does it */
        remove_value(r);
        r->job = (oari_job){ .run = free_value, .arg = r };
        oari_rpc_pool_post(agent->pool, &r->job);
    } else if (oari_held_is_over(&r->held)) {
        if (r->held.granted > 0 && !r->held.broken)
            oari_rref_add_note(agent, r->owner, OARI_RPC_DROP, r->id,
                               r->held.granted, 0);
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
    if ((!r->held.broken && !r->lapsed) || r->on_broken == NULL ||
        r->told_broken || r->agent->refs_closed)
        return;
    r->told_broken = 1;
    r->held.handles++;
    r->job = (oari_job){ .run = run_broken, .arg = r };
    oari_rpc_pool_post(r->agent->pool, &r->job);
}

void oari_rref_break(oar_rref *r, const oar_error *error)
{
    r->error = *error;
    oari_rref_tell_broken(r);
}

/* Sends the HELDs that were put off until NOTED. */
void oari_rref_confirm_owed(oar_rref *r)
{
    for (int to = 0; to < r->agent->ranks; to++)
        for (; r->held.owed[to] > 0; r->held.owed[to]--)
            oari_rref_add_note(r->agent, to, OARI_RPC_HELD, r->id,
                               (uint32_t)r->owner, 0);
}

oar_rref *oari_rref_add_handle(oar_rref *rref)
{
    pthread_mutex_lock(&rref->agent->refs_lock);
    if (oari_rref_is_own(rref))
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
    if (oari_rref_is_own(rref))
        oari_owned_drop(&rref->owned, rref->owner, 1);
    else
        rref->held.handles--;
    oari_rref_end(rref);
    if (agent->notes.first != NULL && agent->timer != NULL)
        oari_worker_wake(agent->timer); /* which sends them */
    pthread_mutex_unlock(&agent->refs_lock);
}

/* ---- values that another rank makes here --------------------------------- */

int oari_rref_maker(uint64_t id)
{
    return (int)(id >> MAKER_SHIFT & 0xffff);
}

int oari_rref_owner_life(uint64_t id)
{
    return (int)(id >> OWNER_LIFE_SHIFT);
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
oar_rref *oari_rref_find_own(oar_rpc *agent, uint64_t id)
{
    oar_rref *r = oari_rref_find(agent, agent->rank, id);
    int maker = oari_rref_maker(id);
    uint64_t serial = serial_of(id);
    const oari_rpc_peer *m;

    if (r != NULL || maker >= agent->ranks || serial == 0)
        return r;
    if (maker == agent->rank)
        return NULL; /* it was in the table from the beginning */
    m = &agent->peer[maker];
    if (m->gone || oari_rref_owner_life(id) != agent->peer[agent->rank].life ||
        (int)(serial >> MAKER_LIFE_SHIFT) != m->life ||
        (serial <= m->made_here &&
         (m->made_here - serial >= 64 ||
          (m->made_mask >> (m->made_here - serial) & 1) != 0)))
        return NULL;
    r = oari_rref_add(agent, agent->rank, id);
    if (r != NULL)
        r->strand.busy = 1; /* until the call that makes it has run */
    return r;
}

oar_status oari_rref_find_for(oar_rpc *agent, int from,
                              const oari_rpc_head *head, oar_rref **rref)
{
    int makes = (head->flags & OARI_RPC_REMOTE) != 0;
    uint64_t id = head->reference;
    oar_status status = OAR_OK;
    oar_rref *r;

    pthread_mutex_lock(&agent->refs_lock);
    r = oari_rref_find_own(agent, id);
    if (makes && (oari_rref_maker(id) != from || r == NULL ||
                  r->phase != OARI_RREF_TO_COME))
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
            /* the rank itself has a handle already; one whose lease has ended
             * meanwhile will hear that it holds nothing */
            if (from != agent->rank &&
                head->status == agent->peer[from].lapses) {
                oari_owned_grant(&r->owned, from);
                oari_rpc_lease_given(agent, from);
            }
        }
        oari_owned_grant(&r->owned, agent->rank);
        *rref = r;
    }
    pthread_mutex_unlock(&agent->refs_lock);
    return status;
}

oar_status oari_rref_promise(oar_rpc *agent, int owner, oar_rref **rref)
{
    uint64_t serial;
    oar_rref *r;

    pthread_mutex_lock(&agent->refs_lock);
    serial = (uint64_t)agent->peer[agent->rank].life << MAKER_LIFE_SHIFT |
             ++agent->peer[owner].made_there;
    r = oari_rref_add(agent, owner,
                      (uint64_t)agent->peer[owner].life << OWNER_LIFE_SHIFT |
                          (uint64_t)agent->rank << MAKER_SHIFT | serial);
    if (r != NULL && oari_rref_is_own(r)) {
        oari_owned_grant(&r->owned, owner);
        r->strand.busy = 1;
    } else if (r != NULL) {
        oari_held_granted(&r->held);
        r->lease = agent->peer[owner].lapsed;
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

/* ---- deaths and the end -------------------------------------------------- */

void oari_rref_each(oar_rpc *agent, void (*fn)(oar_rref *rref, void *arg),
                    void *arg)
{
    for (int b = 0; b < OARI_RPC_BUCKETS; b++)
        for (oari_link *l = agent->refs[b].first, *next; l != NULL; l = next) {
            next = l->next;
            fn(OARI_CONTAINER_OF(l, oar_rref, link), arg);
        }
}

typedef struct rank_end {
    int rank;
    const oar_error *error;
} rank_end;

static void forget_rank(oar_rref *r, void *arg)
{
    const rank_end *end = arg;
    const oar_error *error = end->error;
    int rank = end->rank;

    if (oari_rref_is_own(r)) {
        oari_owned_rank_gone(&r->owned, rank);
        if (r->phase == OARI_RREF_TO_COME && oari_rref_maker(r->id) == rank) {
            r->phase = OARI_RREF_FAILED;
            r->error = *error;
            oari_rpc_release_strand(r->agent, &r->strand);
        }
    } else {
        oari_held_rank_gone(&r->held, rank);
        if (rank == r->owner) {
            oari_rref_confirm_owed(r);
            oari_rref_break(r, error);
        }
    }
    oari_rref_end(r);
}

void oari_rref_rank_gone(oar_rpc *agent, int rank, const oar_error *error)
{
    rank_end end = { rank, error };

    pthread_mutex_lock(&agent->refs_lock);
    oari_rref_each(agent, forget_rank, &end);
    pthread_mutex_unlock(&agent->refs_lock);
}

/* A rank was silent for too long: it holds nothing here. */
static void forget_holds(oar_rref *r, void *arg)
{
    int rank = *(const int *)arg;

    if (oari_rref_is_own(r))
        oari_owned_rank_gone(&r->owned, rank);
    else
        r->held.waiting[rank] = 0;
    oari_rref_end(r);
}

void oari_rref_lapse(oar_rpc *agent, int rank)
{
    pthread_mutex_lock(&agent->refs_lock);
    oari_rref_each(agent, forget_holds, &rank);
    agent->peer[rank].lapses++;
    agent->peer[rank].may_hold = agent->peer[rank].silent = 0;
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
