/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: making an agent, its names, and its end. */
#include "parallel/rpc/rpc_map.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/fork.h"
#include "base/status.h"
#include "base/thread.h"
#include "parallel/rpc/rpc_memory.h"
#include "parallel/rpc/rpc_times.h"

oar_status oari_rpc_check(const oar_rpc *agent, const char *call)
{
    if (agent == NULL)
        return oari_fail(OAR_E_ARG, "%s: no agent", call);
    if (agent->generation != oari_fork_generation())
        return oari_fail(OAR_E_STATE,
                         "%s: the agent was made by the parent of this process",
                         call);
    return OAR_OK;
}

/* ---- what a rank does: for shutdown -------------------------------------- */

enum { STATUS_BYTES = 400 };

/* Appends one thing that a rank does to a text of STATUS_BYTES. */
static size_t add_deed(char *text, size_t used, const char *verb,
                       const char *name, int rank, int64_t since_ns)
{
    char took[32];

    if (used >= STATUS_BYTES - 100)
        return used;
    oari_duration_text(oari_now_ns() - since_ns, took, sizeof took);
    return used + (size_t)snprintf(text + used, STATUS_BYTES - used,
                                   "%s%s \"%.40s\" of rank %d for %s",
                                   used > 0 ? ", " : "", verb, name, rank,
                                   took);
}

/* The function "oar.status": what runs here, and what is waited for. */
static oar_status tell_status(void *arg, oar_rpc_call *self)
{
    oar_rpc *agent = arg;
    char text[STATUS_BYTES] = "";
    size_t used = 0;

    pthread_mutex_lock(&agent->lock);
    for (oari_link *l = agent->serving.first; l != NULL; l = l->next) {
        oar_rpc_call *call = OARI_CONTAINER_OF(l, oar_rpc_call, link);

        if (call != self && call->begun)
            used = add_deed(text, used, "runs the call", call->entry->name,
                            call->from, call->came_ns);
    }
    for (int b = 0; b < OARI_RPC_BUCKETS; b++)
        for (oari_link *l = agent->pending[b].first; l != NULL; l = l->next) {
            const oari_rpc_pending *p =
                OARI_CONTAINER_OF(l, oari_rpc_pending, link);

            used =
                add_deed(text, used, "waits for", p->name, p->to, p->began_ns);
        }
    if (used == 0)
        snprintf(text, sizeof text, "%s",
                 agent->shutting ? "is in oar_rpc_shutdown"
                                 : "has not called oar_rpc_shutdown");
    pthread_mutex_unlock(&agent->lock);
    return oar_rpc_put_text(oar_rpc_reply(self), text);
}

/* ---- making -------------------------------------------------------------- */

static oar_status read_opts(oar_rpc *agent, const oar_rpc_opts *opts)
{
    oar_rpc_opts *o = &agent->opts;
    int cpus = oari_cpus();

    OARI_TRY(oari_opts_read(o, sizeof *o, opts));
    if (o->threads < 0 || o->most_threads < 0 || o->window_calls < 0 ||
        o->function_count < 0)
        return oari_fail(OAR_E_ARG, "rpc_create: a number below 0");
    if (o->name != NULL &&
        (o->name[0] == '\0' || strlen(o->name) >= OARI_RPC_AGENT_NAME))
        return oari_fail(OAR_E_ARG, "rpc_create: a name has 1 to %d bytes",
                         OARI_RPC_AGENT_NAME - 1);
    if (o->threads == 0)
        o->threads = cpus > 4 ? 4 : cpus < 2 ? 2 : cpus;
    if (o->most_threads == 0)
        o->most_threads = o->threads > 64 ? o->threads : 64;
    if (o->most_threads < o->threads)
        return oari_fail(OAR_E_ARG, "rpc_create: %d threads, but at most %d",
                         o->threads, o->most_threads);
    if (o->timeout_ms == 0)
        o->timeout_ms = 60000;
    if (o->window_calls == 0)
        o->window_calls = 256;
    if (o->window_bytes == 0)
        o->window_bytes = (size_t)64 << 20;
    if (o->message_bytes == 0)
        o->message_bytes = (size_t)1 << 30;
    if (o->stream_bytes == 0)
        o->stream_bytes = (size_t)16 << 20;
    if (o->lease_ms == 0)
        o->lease_ms = 30000;
    if (o->lease_ms > 0 && o->lease_ms < 100)
        return oari_fail(OAR_E_ARG,
                         "rpc_create: a lease of %lld ms, at least 100",
                         (long long)o->lease_ms);
    return OAR_OK;
}

void oari_rpc_set_limits(oar_rpc *agent, const char *name)
{
    oari_rpc_limits *mine = &agent->peer[agent->rank].limits;

    memset(mine, 0, sizeof *mine);
    snprintf(mine->name, sizeof mine->name, "%s", name);
    mine->window_calls = agent->opts.window_calls;
    mine->window_bytes = agent->opts.window_bytes;
    mine->message_bytes = agent->opts.message_bytes;
    mine->stream_bytes = agent->opts.stream_bytes;
    mine->lease_ms = agent->opts.lease_ms;
    agent->opts.name = NULL; /* it was borrowed */
}

/* Tells all ranks the names and limits of all. */
static oar_status exchange_limits(oar_rpc *agent, oar_group *group)
{
    size_t bytes = sizeof(oari_rpc_limits);
    oari_rpc_limits mine, *all;
    char name[OARI_RPC_AGENT_NAME];
    oar_status status;

    snprintf(name, sizeof name, "rank%d", agent->rank);
    oari_rpc_set_limits(agent,
                        agent->opts.name != NULL ? agent->opts.name : name);
    mine = agent->peer[agent->rank].limits;
    all = oari_alloc((size_t)agent->ranks, bytes);
    if (all == NULL)
        return OAR_E_NOMEM;
    status = oar_all_gather(
        group, oar_span_of(&mine, bytes, OAR_U8),
        oar_span_of(all, bytes * (size_t)agent->ranks, OAR_U8), NULL, NULL);
    for (int r = 0; r < agent->ranks && status == OAR_OK; r++) {
        all[r].name[OARI_RPC_AGENT_NAME - 1] = '\0';
        agent->peer[r].limits = all[r];
        agent->peer[r].expected = 1;
        for (int o = 0; o < r && status == OAR_OK; o++)
            if (strcmp(all[o].name, all[r].name) == 0)
                status = oari_fail(OAR_E_ARG,
                                   "rpc_create: ranks %d and %d are both "
                                   "called \"%s\"",
                                   o, r, all[r].name);
    }
    oari_free(all);
    return status;
}

/* Makes the threads and the functions. */
static oar_status open_parts(oar_rpc *agent)
{
    oari_worker_opts timer = { .name = "oar-rpc-timer",
                               .step = oari_rpc_check_deadlines,
                               .arg = agent };
    oar_rpc_function status = oar_rpc_function_init();

    OARI_TRY(oari_rpc_pool_create(agent->opts.threads, agent->opts.most_threads,
                                  &agent->pool));
    status.name = "oar.status";
    status.fn = tell_status;
    status.arg = agent;
    status.manner = OAR_RPC_INLINE;
    OARI_TRY(oari_rpc_add_function(agent, &status));
    status.name = "oar.fetch";
    status.fn = oari_rref_give_value;
    status.manner = OAR_RPC_POOL;
    OARI_TRY(oari_rpc_add_function(agent, &status));
    for (int i = 0; i < agent->opts.function_count; i++)
        OARI_TRY(oar_rpc_register(agent, &agent->opts.functions[i]));
    agent->opts.functions = NULL; /* they were borrowed */
    agent->timer_ns = OARI_NEVER;
    return oari_worker_create(&timer, &agent->timer);
}

/* Gives the calls a place in the recorder, under a name that all ranks have. */
static oar_status record_calls(oar_rpc *agent, oar_group *group)
{
    int *world = oari_alloc((size_t)agent->ranks, sizeof *world);
    oar_status status = OAR_E_NOMEM;
    char name[220];

    if (agent->rejoin != NULL)
        snprintf(name, sizeof name, "calls of %s", oari_rpc_rejoin_name(agent));
    else
        snprintf(name, sizeof name, "calls of %.150s",
                 oar_group_name(agent->net->group));
    for (int r = 0; world != NULL && r < agent->ranks; r++)
        world[r] = group != NULL ? oar_group_to_world(group, r) : r;
    if (world != NULL)
        status = oari_rpc_record_open(agent, name, world);
    oari_free(world);
    return status;
}

static oar_status open_agent(oar_rpc *agent, oar_group *group,
                             const oar_rpc_opts *opts)
{
    oari_rpc_net *net = NULL;

    OARI_TRY(read_opts(agent, opts));
    agent->peer = oari_alloc((size_t)agent->ranks, sizeof *agent->peer);
    if (agent->peer == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(exchange_limits(agent, group));
    OARI_TRY(oari_rpc_map_agree(agent, group));
    OARI_TRY(oari_rpc_rejoin_open(agent));
    OARI_TRY(oari_rpc_rejoin_tell(agent, oar_group_backend(group)));
    OARI_TRY(open_parts(agent));
    if (agent->ranks == 1)
        return OAR_OK;
    OARI_TRY(oari_rpc_net_open(agent, group, -1, &net));
    for (int r = 0; r < agent->ranks; r++)
        agent->peer[r].net = r != agent->rank ? net : NULL;
    agent->net = net;
    OARI_TRY(record_calls(agent, group));
    OARI_TRY(oari_rpc_net_start(net));
    return oari_rpc_rejoin_start(agent);
}

static oar_status open_again(oar_rpc *agent, int rank, const oar_rpc_opts *opts)
{
    int64_t given = rank;

    OARI_TRY(read_opts(agent, opts));
    if (agent->opts.rejoin == NULL)
        return oari_fail(OAR_E_ARG,
                         "rpc_rejoin: oar_rpc_opts.rejoin is not set");
    if (rank < 0)
        OARI_TRY(oari_env_int("OARSONG_RANK", 0, INT32_MAX, &given));
    OARI_TRY(oari_rpc_rejoin_open(agent));
    OARI_TRY(oari_rpc_come_back(agent, (int)given));
    OARI_TRY(open_parts(agent));
    OARI_TRY(record_calls(agent, NULL));
    return oari_rpc_meet_all(agent);
}

/* An agent with nothing in it yet. */
static oar_rpc *make_agent(void)
{
    oar_rpc *agent;

    oari_fork_watch();
    agent = oari_alloc(1, sizeof *agent);
    if (agent == NULL)
        return NULL;
    agent->generation = oari_fork_generation();
    oari_rpc_memory_open();
    pthread_mutex_init(&agent->lock, NULL);
    pthread_mutex_init(&agent->refs_lock, NULL);
    oari_cond_init(&agent->changed);
    return agent;
}

/* Gives an agent that was opened with that status, or ends it. */
static oar_status give_agent(oar_rpc *agent, oar_status status, oar_rpc **rpc)
{
    oar_error error;

    if (status != OAR_OK) {
        error = *oar_last_error();
        oar_rpc_destroy(agent);
        return oari_fail_with(&error);
    }
    *rpc = agent;
    return OAR_OK;
}

oar_status oar_rpc_create_at(const char *file, int line, oar_group *group,
                             const oar_rpc_opts *opts, oar_rpc **rpc)
{
    oar_rpc *agent;
    OARI_CALLED_FROM(file, line);

    if (group == NULL || rpc == NULL)
        return oari_fail(OAR_E_ARG, "rpc_create: no %s",
                         group == NULL ? "group" : "place for the agent");
    agent = make_agent();
    if (agent == NULL)
        return OAR_E_NOMEM;
    agent->rank = oar_group_rank(group);
    agent->ranks = oar_group_size(group);
    return give_agent(agent, open_agent(agent, group, opts), rpc);
}

oar_status oar_rpc_rejoin(int rank, const oar_rpc_opts *opts, oar_rpc **rpc)
{
    oar_rpc *agent;

    if (opts == NULL || rpc == NULL)
        return oari_fail(OAR_E_ARG, "rpc_rejoin: no %s",
                         opts == NULL ? "options" : "place for the agent");
    agent = make_agent();
    if (agent == NULL)
        return OAR_E_NOMEM;
    return give_agent(agent, open_again(agent, rank, opts), rpc);
}

/* ---- the end ------------------------------------------------------------- */

/* Ends the timer and the pool, to which nothing is posted any more. */
static void end_threads(oar_rpc *rpc)
{
    oari_worker *timer = rpc->timer;

    pthread_mutex_lock(&rpc->refs_lock);
    rpc->timer = NULL;
    pthread_mutex_unlock(&rpc->refs_lock);
    oari_worker_destroy(timer, NULL);
    pthread_mutex_lock(&rpc->refs_lock);
    rpc->refs_closed = 1;
    pthread_mutex_unlock(&rpc->refs_lock);
    oari_rpc_pool_destroy(rpc->pool);
}

void oar_rpc_destroy(oar_rpc *rpc)
{
    oar_error error;

    if (rpc == NULL || rpc->generation != oari_fork_generation())
        return;
    oari_error_set(&error, OAR_E_ABORTED, "rank %d has ended its agent",
                   rpc->rank);
    error.rank = rpc->rank;
    pthread_mutex_lock(&rpc->lock);
    rpc->closing = 1;
    oari_rpc_fail_calls(rpc, -1, &error);
    oari_rpc_cancel_serving(rpc, -1);
    oari_rpc_tell(rpc);
    while (rpc->serving.first != NULL)
        oari_rpc_wait_change(rpc, OARI_NEVER);
    if (rpc->arriving > 0) /* then their receives end */
        oari_rpc_abort_nets(rpc);
    pthread_mutex_unlock(&rpc->lock);
    oari_rpc_rejoin_close(rpc);
    end_threads(rpc);
    while (rpc->nets.first != NULL)
        oari_rpc_net_close(
            OARI_CONTAINER_OF(rpc->nets.first, oari_rpc_net, link));
    for (int r = 0; rpc->peer != NULL && r < rpc->ranks; r++)
        oari_rpc_drop_incoming(&rpc->peer[r]);
    oari_rpc_map_close(rpc);
    oari_rref_free_all(rpc);
    oari_rpc_free_functions(rpc);
    oari_rpc_record_close(rpc);
    pthread_cond_destroy(&rpc->changed);
    pthread_mutex_destroy(&rpc->refs_lock);
    pthread_mutex_destroy(&rpc->lock);
    oari_rpc_free_spares(rpc);
    oari_rpc_free_times(rpc);
    oari_rpc_memory_close();
    oari_free(rpc->peer);
    oari_free(rpc);
}

/* Returns whether all others have come, or are gone; with the lock. */
static int all_have_come(const oar_rpc *rpc)
{
    for (int r = 0; r < rpc->ranks; r++)
        if (r != rpc->rank && !rpc->peer[r].leaving && !rpc->peer[r].gone)
            return 0;
    return 1;
}

/* Asks a rank what it does; for as long as half a second. */
static void ask_status(oar_rpc *rpc, int rank, char *text, size_t bytes)
{
    oar_rpc_call_opts opts = oar_rpc_call_opts_init();
    oar_rpc_call nobody = { .agent = rpc, .deadline_ns = OARI_NEVER };
    oar_rpc_message *reply = NULL;
    const char *said = "does not answer";

    opts.timeout_ms = 500;
    opts.detached = 1;
    oari_rpc_current = &nobody; /* calls from outside are over */
    if (oar_rpc_sync(rpc, rank, "oar.status", NULL, &opts, &reply) == OAR_OK)
        oar_rpc_get_text(reply, &said);
    oari_rpc_current = NULL;
    snprintf(text, bytes, "%s", said);
    oar_rpc_message_destroy(reply);
}

/* Names the ranks that have not come; at most four with what they do. */
static oar_status say_missing(oar_rpc *rpc)
{
    char text[440] = "";
    size_t used = 0;
    int missing = 0, first = -1;

    for (int r = 0; r < rpc->ranks; r++) {
        char said[100];
        int came;

        pthread_mutex_lock(&rpc->lock);
        came = r == rpc->rank || rpc->peer[r].leaving || rpc->peer[r].gone;
        pthread_mutex_unlock(&rpc->lock);
        if (came)
            continue;
        first = first < 0 ? r : first;
        if (++missing > 4)
            continue;
        ask_status(rpc, r, said, sizeof said);
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "%srank %d %s", used > 0 ? "; " : "", r, said);
        if (used >= sizeof text)
            used = sizeof text - 1;
    }
    return oari_about(
        first, oari_fail(OAR_E_TIMEOUT, "rpc_shutdown: %d rank%s not come: %s",
                         missing, missing == 1 ? " has" : "s have", text));
}

oar_status oar_rpc_shutdown(oar_rpc *rpc, int64_t timeout_ms)
{
    oari_rpc_head head = { .kind = OARI_RPC_LEAVING, .left_ms = -1 };
    int64_t deadline;
    int in_time = 1, tell, mine;

    OARI_TRY(oari_rpc_check(rpc, "rpc_shutdown"));
    if (oari_rpc_current != NULL || oari_rpc_pumping)
        return oari_fail(OAR_E_STATE, "rpc_shutdown inside a function");
    deadline =
        oari_deadline(timeout_ms != 0 ? timeout_ms : rpc->opts.timeout_ms);
    pthread_mutex_lock(&rpc->lock);
    rpc->shutting = 1;
    while (in_time && (mine = rpc->stats.pending) > 0)
        in_time = oari_rpc_wait_change(rpc, deadline);
    mine = rpc->stats.pending;
    tell = mine == 0 && !rpc->told_leaving;
    rpc->told_leaving |= tell;
    pthread_mutex_unlock(&rpc->lock);
    if (mine > 0)
        return oari_fail(OAR_E_TIMEOUT,
                         "rpc_shutdown: %d calls of this rank are not answered",
                         mine);
    for (int r = 0; r < rpc->ranks && tell; r++) {
        pthread_mutex_lock(&rpc->lock);
        head.life = rpc->peer[r].life;
        pthread_mutex_unlock(&rpc->lock);
        if (r != rpc->rank)
            oari_rpc_send(rpc, r, &head, NULL);
    }
    pthread_mutex_lock(&rpc->lock);
    while (in_time && (!(rpc->draining = all_have_come(rpc)) ||
                       rpc->serving.first != NULL))
        in_time = oari_rpc_wait_change(rpc, deadline);
    tell = all_have_come(rpc);
    pthread_mutex_unlock(&rpc->lock);
    if (in_time)
        return OAR_OK;
    return tell ? oari_fail(OAR_E_TIMEOUT,
                            "rpc_shutdown: functions still run here")
                : say_missing(rpc);
}

/* ---- asking -------------------------------------------------------------- */

uint64_t oari_rpc_message_limit(oar_rpc *agent, int rank)
{
    uint64_t most;

    if (agent->rejoin == NULL)
        return agent->peer[rank].limits.message_bytes;
    pthread_mutex_lock(&agent->lock);
    most = agent->peer[rank].limits.message_bytes;
    pthread_mutex_unlock(&agent->lock);
    return most;
}

int oar_rpc_find(const oar_rpc *rpc, const char *name)
{
    for (int r = 0; rpc != NULL && name != NULL && r < rpc->ranks; r++)
        if (strcmp(rpc->peer[r].limits.name, name) == 0)
            return r;
    return -1;
}

const char *oar_rpc_name(const oar_rpc *rpc, int rank)
{
    return rpc != NULL && rank >= 0 && rank < rpc->ranks
               ? rpc->peer[rank].limits.name
               : "";
}

int oar_rpc_rank(const oar_rpc *rpc)
{
    return rpc != NULL ? rpc->rank : -1;
}

int oar_rpc_size(const oar_rpc *rpc)
{
    return rpc != NULL ? rpc->ranks : 0;
}

oar_status oar_rpc_read_stats(const oar_rpc *rpc, oar_rpc_stats *stats)
{
    oar_rpc *agent = (oar_rpc *)(uintptr_t)rpc;
    oar_rpc_stats s;

    OARI_TRY(oari_rpc_check(rpc, "rpc_read_stats"));
    pthread_mutex_lock(&agent->lock);
    s = agent->stats;
    pthread_mutex_unlock(&agent->lock);
    pthread_mutex_lock(&agent->refs_lock);
    s.values_owned = agent->refs_owned;
    s.values_held = agent->refs_held;
    pthread_mutex_unlock(&agent->refs_lock);
    oari_rpc_pool_count(agent->pool, &s.threads, &s.most_threads, &s.queued);
    return oari_struct_give(stats, &s, sizeof s, "rpc_read_stats");
}
