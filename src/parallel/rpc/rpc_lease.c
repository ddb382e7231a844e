/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: leases of references. A rank that holds values of another one sends it
 * something at least every second tick: whatever it sends anyway, or RENEW. A
 * rank that hears nothing of a holder for as many ticks as its lease has takes
 * back what the holder has, and says so (LAPSED); the holder hears that before
 * anything that it is given later.
 *
 * Ticks are counted, not time: a rank that was stopped itself does not take its
 * own silence for that of others. Leases of a pair have numbers, from 0: how
 * many have ended before. A message about grants carries the number that its
 * sender knew, and counts for that lease only. */
#include "base/clock.h"
#include "parallel/rpc/rpc_ref.h"

enum { TICKS = 4 }; /* of the shortest lease */

void oari_rpc_lease_taken(oar_rpc *agent)
{
    if (!atomic_load(&agent->leases) && agent->timer != NULL) {
        atomic_store(&agent->leases, 1);
        oari_worker_wake(agent->timer);
    }
}

void oari_rpc_lease_given(oar_rpc *agent, int rank)
{
    agent->peer[rank].may_hold = 1;
    agent->peer[rank].silent = 0;
    oari_rpc_lease_taken(agent);
}

static int64_t find_tick_ms(const oar_rpc *agent)
{
    int64_t least = INT64_MAX;

    for (int r = 0; r < agent->ranks; r++) {
        int64_t ms = agent->peer[r].limits.lease_ms;

        if (ms > 0 && ms < least)
            least = ms;
    }
    return least == INT64_MAX ? 0 : least / TICKS;
}

typedef struct search {
    int rank, found;
} search;

static void look_for_holds(oar_rref *r, void *arg)
{
    search *s = arg;

    s->found |= oari_rref_is_own(r) ? r->owned.count[s->rank] > 0
                                    : r->held.waiting[s->rank] > 0;
}

/* Decides what to send to a rank; 0: nothing. With both locks. */
static oari_rpc_kind check_rank(oar_rpc *agent, int rank, int64_t tick_ms,
                                int *watched)
{
    oari_rpc_peer *peer = &agent->peer[rank];
    int64_t lease_ms = agent->opts.lease_ms;
    oari_rpc_kind kind = 0;

    if (peer->may_hold && lease_ms > 0) {
        search s = { .rank = rank };

        peer->silent = peer->heard != peer->lease_heard ? 0 : peer->silent + 1;
        if (peer->silent > (lease_ms + tick_ms - 1) / tick_ms) {
            oari_rref_each(agent, look_for_holds, &s);
            peer->may_hold = s.found;
            kind = s.found ? OARI_RPC_LAPSED : 0;
        }
        *watched |= peer->may_hold;
    }
    if (peer->values > 0 && peer->limits.lease_ms > 0) {
        if (kind == 0 && peer->sent == peer->lease_sent)
            kind = OARI_RPC_RENEW;
        *watched = 1;
    }
    peer->lease_heard = peer->heard;
    peer->lease_sent = peer->sent;
    return kind;
}

int64_t oari_rpc_check_leases(oar_rpc *agent, int64_t now_ns)
{
    int64_t tick_ms;
    int watched = 0;

    if (!atomic_load(&agent->leases))
        return OARI_NEVER;
    if (now_ns < agent->lease_ns)
        return agent->lease_ns;
    atomic_store(&agent->leases, 0); /* what is given from now on sets it */
    pthread_mutex_lock(&agent->lock);
    tick_ms = find_tick_ms(agent);
    for (int r = 0; r < agent->ranks && tick_ms > 0; r++) {
        oari_rpc_head head = { .left_ms = -1 };

        if (r == agent->rank || agent->peer[r].gone)
            continue;
        pthread_mutex_lock(&agent->refs_lock);
        head.kind = check_rank(agent, r, tick_ms, &watched);
        head.call = (uint64_t)agent->peer[r].lapses + 1; /* of LAPSED */
        head.life = agent->peer[r].life;
        pthread_mutex_unlock(&agent->refs_lock);
        if (head.kind == 0)
            continue;
        pthread_mutex_unlock(&agent->lock);
        oari_rpc_send(agent, r, &head, NULL);
        pthread_mutex_lock(&agent->lock);
    }
    pthread_mutex_unlock(&agent->lock);
    agent->lease_ns = now_ns + tick_ms * 1000000;
    if (!watched)
        return OARI_NEVER;
    atomic_store(&agent->leases, 1);
    return agent->lease_ns;
}
