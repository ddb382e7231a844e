/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: the groups by which messages go. An agent has one of all ranks, or, if
 * its rank was started again, one with each rank that lives; and one with each
 * rank that has come back since (rpc_rejoin.c). */
#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/active/active.h"
#include "parallel/rpc/rpc_map.h"

enum { FEW_SLOTS = 2 }; /* where most messages are active ones */

/* In a group of two, the lower rank is 0. */
int oari_rpc_rank_in(const oari_rpc_net *net, int rank)
{
    return net->pair < 0 ? rank : rank > net->agent->rank;
}

int oari_rpc_rank_of(const oari_rpc_net *net, int rank_there)
{
    return net->pair < 0 ? rank_there : net->pair;
}

/* ---- driving ------------------------------------------------------------- */

/* How often this thread waits by driving the net of an agent. */
typedef struct waiting {
    const oar_rpc *agent;
    int count;
} waiting;

static _Thread_local waiting waits_here;

/* Nets with one rank are driven by their engines' threads alone. */
void oari_rpc_drive(oar_rpc *agent)
{
    if (agent->net != NULL)
        oari_active_drive(agent->net->group);
}

int oari_rpc_wait_change(oar_rpc *agent, int64_t deadline_ns)
{
    return oari_cond_wait(&agent->changed, &agent->lock, deadline_ns);
}

/* What this thread waits for by driving, it asks for by itself after each
 * message: only others have to be told. */
void oari_rpc_tell(oar_rpc *agent)
{
    int mine = waits_here.agent == agent ? waits_here.count : 0;

    atomic_fetch_add(&agent->changes, 1);
    pthread_cond_broadcast(&agent->changed);
    if (atomic_load(&agent->waits) > mine)
        oari_active_tell(agent->net->group);
}

int oari_rpc_wait(oar_rpc *agent, int (*is_done)(void *arg), void *arg,
                  int64_t deadline_ns)
{
    int done = 0, in_time = 1;

    if (agent->net != NULL) {
        waiting outer = waits_here;

        waits_here.count = outer.agent == agent ? outer.count + 1 : 1;
        waits_here.agent = agent;
        atomic_fetch_add(&agent->waits, 1);
        done = oari_active_wait(agent->net->group, is_done, arg, deadline_ns);
        atomic_fetch_sub(&agent->waits, 1);
        waits_here = outer;
        return done;
    }
    pthread_mutex_lock(&agent->lock);
    while (!(done = is_done(arg)) && in_time)
        in_time = oari_rpc_wait_change(agent, deadline_ns);
    pthread_mutex_unlock(&agent->lock);
    return done;
}

typedef struct change {
    const atomic_uint *now;
    unsigned seen;
} change;

static int has_changed(void *arg)
{
    const change *c = arg;

    return atomic_load(c->now) != c->seen;
}

int oari_rpc_drive_change(oar_rpc *agent, int64_t deadline_ns)
{
    change c = { &agent->changes, atomic_load(&agent->changes) };
    int changed;

    pthread_mutex_unlock(&agent->lock);
    changed = oari_rpc_wait(agent, has_changed, &c, deadline_ns);
    pthread_mutex_lock(&agent->lock);
    return changed;
}

/* ---- ranks that go ------------------------------------------------------- */

static void rank_gone(void *arg, int rank_there, oar_gone how)
{
    static const char *const words[] = {
        [OAR_GONE_DIED] = "has died",
        [OAR_GONE_LEFT] = "has left",
        [OAR_GONE_UNREACHABLE] = "cannot be reached",
    };
    oari_rpc_net *net = arg;
    oar_rpc *agent = net->agent;
    int rank = oari_rpc_rank_of(net, rank_there);
    oari_rpc_peer *peer = &agent->peer[rank];
    oar_error error;

    pthread_mutex_lock(&agent->lock);
    net->left = net->pair >= 0;
    if (!peer->gone && peer->net == net) {
        peer->gone = how;
        agent->stats.ranks_gone++;
        oari_error_set(&error, OAR_E_PEER, "rank %d (%s) %s", rank,
                       peer->limits.name, words[how]);
        error.rank = agent->rank;
        error.peer = rank;
        oari_rpc_fail_calls(agent, rank, &error);
        oari_rpc_cancel_serving(agent, rank);
        oari_rref_rank_gone(agent, rank, &error);
        oari_rpc_tell(agent);
    }
    oari_rpc_await_arrivals(agent);
    pthread_mutex_unlock(&agent->lock);
    oari_rpc_map_rank_gone(agent, rank);
    oari_rpc_send_cancels(agent);
    oari_rref_send_notes(agent);
}

/* ---- opening and closing ------------------------------------------------- */

static void free_net(oari_rpc_net *net)
{
    for (int i = 0; i < OARI_RPC_SLOTS; i++)
        oari_free(net->slot[i].byte);
    oari_free(net);
}

oar_status oari_rpc_net_open(oar_rpc *agent, oar_group *parent, int pair,
                             oari_rpc_net **net)
{
    oar_dup_opts opts = oar_dup_opts_init();
    oari_rpc_net *n = oari_alloc(1, sizeof *n);
    oar_status status = n != NULL ? OAR_OK : OAR_E_NOMEM;

    for (int i = 0; i < OARI_RPC_SLOTS && status == OAR_OK; i++) {
        n->slot[i].net = n;
        n->slot[i].byte = oari_alloc_aligned(64, OARI_RPC_EAGER);
        if (n->slot[i].byte == NULL)
            status = OAR_E_NOMEM;
    }
    opts.name = "rpc";
    opts.timeout_ms = opts.stall_ms = -1;
    opts.loose = 1;
    if (status == OAR_OK)
        status = oar_group_dup_with(parent, &opts, &n->group);
    if (status != OAR_OK) {
        if (n != NULL)
            free_net(n);
        return status;
    }
    n->agent = agent;
    n->pair = pair;
    *net = n;
    return OAR_OK;
}

oar_status oari_rpc_net_start(oari_rpc_net *net)
{
    oar_rpc *agent = net->agent;
    oar_status status;

    pthread_mutex_lock(&agent->lock);
    net->listed = 1;
    oari_list_append(&agent->nets, &net->link);
    if (net->pair >= 0)
        atomic_fetch_add(&agent->pairs, 1);
    else
        agent->net = net;
    pthread_mutex_unlock(&agent->lock);
    net->slots = oari_active_open(net->group, oari_rpc_take_active, net)
                     ? FEW_SLOTS
                     : OARI_RPC_SLOTS;
    oari_rpc_start_slots(net);
    status = oar_group_on_gone(net->group, rank_gone, net);
    if (status != OAR_OK && net->pair >= 0)
        rank_gone(net, oari_rpc_rank_in(net, net->pair), OAR_GONE_UNREACHABLE);
    return status;
}

/* Takes a net that is not aborted yet; with the lock. */
static oari_rpc_net *next_to_abort(const oar_rpc *agent)
{
    for (oari_link *l = agent->nets.first; l != NULL; l = l->next) {
        oari_rpc_net *net = OARI_CONTAINER_OF(l, oari_rpc_net, link);

        if (!net->aborted && !net->closing)
            return net;
    }
    return NULL;
}

void oari_rpc_abort_nets(oar_rpc *agent)
{
    oari_rpc_net *net;

    while ((net = next_to_abort(agent)) != NULL) {
        net->aborted = 1;
        pthread_mutex_unlock(&agent->lock);
        oar_group_abort(net->group, "this rank has ended its RPC agent");
        pthread_mutex_lock(&agent->lock);
    }
    while (agent->arriving > 0) {
        pthread_mutex_unlock(&agent->lock);
        oari_rpc_drive(agent);
        pthread_mutex_lock(&agent->lock);
        if (agent->arriving > 0)
            oari_rpc_wait_change(agent, oari_deadline(10));
    }
}

/* Whether anything of the net is under way; with the lock. */
static int is_busy(const oari_rpc_net *net)
{
    return net->slots_posted > 0 || net->parts > 0 || net->agent->pumping ||
           (net->pair < 0 && atomic_load(&net->agent->waits) > 0);
}

void oari_rpc_net_close(oari_rpc_net *net)
{
    oar_rpc *agent = net->agent;

    pthread_mutex_lock(&agent->lock);
    net->closing = 1;
    pthread_mutex_unlock(&agent->lock);
    oar_group_abort(net->group, "this rank has ended its RPC agent");
    pthread_mutex_lock(&agent->lock);
    while (is_busy(net)) {
        pthread_mutex_unlock(&agent->lock);
        oari_active_drive(net->group);
        pthread_mutex_lock(&agent->lock);
        if (is_busy(net))
            oari_rpc_wait_change(agent, oari_deadline(10));
    }
    if (net->listed)
        oari_list_remove(&agent->nets, &net->link);
    if (net->listed && net->pair >= 0)
        atomic_fetch_sub(&agent->pairs, 1);
    pthread_mutex_unlock(&agent->lock);
    oar_group_destroy(net->group);
    free_net(net);
}
