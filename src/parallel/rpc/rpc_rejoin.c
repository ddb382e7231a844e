/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: ranks that come back. A rank whose process was started again is in none
 * of the groups of its predecessor, so it meets each of the others in a group
 * of the two, which become nets (rpc_net.c). They meet at a store:
 *
 *     size, backend         of the group that the agents were made with
 *     lives/R               how often rank R has come back
 *     at/R                  its present life, with its name and limits
 *     meet/L.l.H.h/R        rank R is ready to meet: L in its life l with H in
 *                           its life h, L < H; the value says which ranks are
 *                           gone for R
 *
 * An agent looks for at/R while rank R is gone; one that has come back begins
 * with all others gone. So every rank does the same, and two that come back at
 * the same time find each other.
 *
 * A life is part of the numbers of calls and values, and of all that is kept
 * about a peer: what belongs to an earlier life ends with it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/call_site.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/status.h"
#include "base/thread.h"
#include "parallel/rpc/rpc_agent.h"

enum {
    LOOK_MS = 100,         /* how often the store is asked for a rank */
    LOOK_SLOWLY_MS = 1000, /* after it has been gone for PATIENCE_MS */
    PATIENCE_MS = 20000,
    MEET_MS = 30000,  /* within which the other rank says that it is ready */
    GROUP_MS = 15000, /* within which the group is made */
    MOST_LIVES = 255,
    MOST_RANKS = 1 << 16,
    NAME_BYTES = 64,
    KEY_BYTES = 160
};

/* The value of at/R. */
typedef struct rank_record {
    int32_t life;
    oari_rpc_limits limits;
} rank_record;

/* How this rank stands with another. With the lock. */
typedef struct meeting {
    oar_rpc *agent;
    int rank;
    int tried;     /* the last life that was tried, or is there */
    int met;       /* in some life */
    int said_gone; /* by a rank that had met it */
    int running, ended;
    int64_t gone_ns; /* since when it is looked for; 0: not */
    pthread_t thread;
    rank_record record; /* of the other */
    /* an arrival */
    oari_link link;
    oari_rpc_net *net;
    int same_host;
} meeting;

typedef struct oari_rpc_rejoin {
    oar_store *store, *opened; /* opened: it is this agent's */
    char name[NAME_BYTES], backend[NAME_BYTES];
    int life; /* of this rank */
    oari_worker *watcher;
    oari_list arrivals;
    meeting *with;
} oari_rpc_rejoin;

typedef struct store_key {
    char text[KEY_BYTES];
} store_key;

static store_key key_of(const oari_rpc_rejoin *j, const char *what)
{
    store_key key;

    snprintf(key.text, sizeof key.text, "rpc/%s/%s", j->name, what);
    return key;
}

static store_key rank_key(const oari_rpc_rejoin *j, const char *what, int rank)
{
    char text[48];

    snprintf(text, sizeof text, "%s/%d", what, rank);
    return key_of(j, text);
}

/* What two ranks call their meeting. */
static store_key meeting_key(const oari_rpc_rejoin *j, const meeting *m)
{
    int mine = m->agent->rank, low = m->rank < mine;
    char text[80];

    snprintf(text, sizeof text, "meet/%d.%d.%d.%d", low ? m->rank : mine,
             low ? m->record.life : j->life, low ? mine : m->rank,
             low ? j->life : m->record.life);
    return key_of(j, text);
}

/* Reads a value of exactly so many bytes. OAR_E_TIMEOUT: it is not there. */
static oar_status read_key(oari_rpc_rejoin *j, store_key key, int64_t wait_ms,
                           void *to, size_t bytes)
{
    oar_status status;
    size_t there;
    void *value;

    OARI_TRY(oar_store_get(j->store, key.text, wait_ms, &value, &there));
    status = there == bytes ? OAR_OK
                            : oari_fail(OAR_E_DATA,
                                        "the store's \"%s\" has %zu bytes, not "
                                        "%zu",
                                        key.text, there, bytes);
    if (status == OAR_OK)
        memcpy(to, value, bytes);
    oar_free(value);
    return status;
}

/* ---- a meeting ----------------------------------------------------------- */

static int is_closing(oar_rpc *agent)
{
    int closing;

    pthread_mutex_lock(&agent->lock);
    closing = agent->closing;
    pthread_mutex_unlock(&agent->lock);
    return closing;
}

/* Says that this rank is ready, and which ranks are gone for it. */
static oar_status say_ready(oari_rpc_rejoin *j, const meeting *m, char *gone)
{
    oar_rpc *agent = m->agent;
    store_key key = meeting_key(j, m);
    size_t used = strlen(key.text);

    pthread_mutex_lock(&agent->lock);
    for (int r = 0; r < agent->ranks; r++)
        gone[r] = agent->peer[r].gone && j->with[r].met ? '1' : '0';
    pthread_mutex_unlock(&agent->lock);
    snprintf(key.text + used, sizeof key.text - used, "/%d", agent->rank);
    return oar_store_set(j->store, key.text, gone, (size_t)agent->ranks);
}

/* Waits until the other is ready, and notes who is gone for it. Follows it into
 * a later life. */
static oar_status await_ready(oari_rpc_rejoin *j, meeting *m, char *gone)
{
    oar_rpc *agent = m->agent;
    int64_t deadline = oari_deadline(MEET_MS);
    rank_record record;

    for (;;) {
        store_key key = meeting_key(j, m);
        size_t used = strlen(key.text);
        oar_status status;

        snprintf(key.text + used, sizeof key.text - used, "/%d", m->rank);
        status = read_key(j, key, LOOK_MS, gone, (size_t)agent->ranks);
        if (status == OAR_OK)
            break;
        if (status != OAR_E_TIMEOUT || is_closing(agent) ||
            oari_now_ns() > deadline)
            return status;
        if (read_key(j, rank_key(j, "at", m->rank), 0, &record,
                     sizeof record) == OAR_OK &&
            record.life > m->record.life) {
            pthread_mutex_lock(&agent->lock);
            m->record = record;
            m->tried = record.life;
            pthread_mutex_unlock(&agent->lock);
            OARI_TRY(say_ready(j, m, gone));
        }
    }
    pthread_mutex_lock(&agent->lock);
    for (int r = 0; r < agent->ranks; r++)
        j->with[r].said_gone |= gone[r] == '1';
    oari_rpc_tell(agent);
    pthread_mutex_unlock(&agent->lock);
    return OAR_OK;
}

/* Starts a net once the thread that pumps has taken the arrival. That thread
 * must not do it: it may not wait for one that drives the new group. */
static oar_status begin_using(meeting *m, oari_rpc_net *net)
{
    oari_rpc_head leaving = { .kind = OARI_RPC_LEAVING, .left_ms = -1 };
    oar_rpc *agent = m->agent;
    int tell, taken;

    pthread_mutex_lock(&agent->lock);
    while (m->net != NULL && !agent->closing)
        oari_rpc_wait_change(agent, oari_deadline(LOOK_MS));
    taken = m->net == NULL;
    tell = agent->told_leaving;
    leaving.life = m->record.life;
    pthread_mutex_unlock(&agent->lock);
    if (!taken)
        return OAR_E_ABORTED;
    OARI_TRY(oari_rpc_net_start(net));
    if (tell)
        oari_rpc_send(agent, m->rank, &leaving, NULL);
    return OAR_OK;
}

static oar_status hold_meeting(oari_rpc_rejoin *j, meeting *m, char *gone)
{
    oar_group_opts opts = oar_group_opts_init();
    oar_rpc *agent = m->agent;
    oar_group *group;
    oari_rpc_net *net;
    oar_status status;
    store_key name;
    int same_host;

    OARI_TRY(say_ready(j, m, gone));
    OARI_TRY(await_ready(j, m, gone));
    name = meeting_key(j, m);
    opts.name = name.text;
    opts.backend = j->backend;
    opts.timeout_ms = GROUP_MS;
    OARI_TRY(
        oar_group_create(j->store, m->rank < agent->rank, 2, &opts, &group));
    status = oari_rpc_net_open(agent, group, m->rank, &net);
    same_host = oar_group_host(group, 0) == oar_group_host(group, 1);
    oar_group_destroy(group);
    OARI_TRY(status);
    pthread_mutex_lock(&agent->lock);
    m->net = net;
    m->same_host = same_host;
    oari_list_append(&j->arrivals, &m->link);
    pthread_mutex_unlock(&agent->lock);
    oari_rpc_pump(agent);
    return begin_using(m, net);
}

static void *run_meeting(void *arg)
{
    meeting *m = arg;
    oar_rpc *agent = m->agent;
    char *gone = oari_alloc(1, (size_t)agent->ranks);

    if (gone != NULL)
        hold_meeting(agent->rejoin, m, gone);
    oari_free(gone);
    pthread_mutex_lock(&agent->lock);
    m->ended = 1;
    oari_rpc_await_arrivals(agent);
    oari_rpc_tell(agent);
    pthread_mutex_unlock(&agent->lock);
    return NULL;
}

/* ---- looking for ranks --------------------------------------------------- */

/* Joins the thread of a meeting that has ended. */
static void end_meeting(oar_rpc *agent, meeting *m, int wait)
{
    int join;

    pthread_mutex_lock(&agent->lock);
    join = m->running && (m->ended || wait);
    pthread_mutex_unlock(&agent->lock);
    if (!join)
        return;
    pthread_join(m->thread, NULL);
    pthread_mutex_lock(&agent->lock);
    m->running = m->ended = 0;
    pthread_mutex_unlock(&agent->lock);
}

/* Begins a meeting if a rank that is gone has come back. Returns when to look
 * again. */
static int64_t look_for(oar_rpc *agent, meeting *m)
{
    oari_rpc_rejoin *j = agent->rejoin;
    int64_t now = oari_now_ns();
    rank_record record;
    int looking;

    pthread_mutex_lock(&agent->lock);
    looking = agent->peer[m->rank].gone && !agent->closing;
    if (!looking)
        m->gone_ns = 0;
    else if (m->gone_ns == 0)
        m->gone_ns = now;
    looking = looking && !m->running && m->net == NULL;
    pthread_mutex_unlock(&agent->lock);
    if (!looking)
        return OARI_NEVER;
    if (read_key(j, rank_key(j, "at", m->rank), 0, &record, sizeof record) ==
            OAR_OK &&
        record.life > m->tried) {
        record.limits.name[OARI_RPC_AGENT_NAME - 1] = '\0';
        pthread_mutex_lock(&agent->lock);
        m->record = record;
        m->tried = record.life;
        m->running = oari_thread_start(&m->thread, "oar-rpc-meet", run_meeting,
                                       m) == OAR_OK;
        pthread_mutex_unlock(&agent->lock);
        return OARI_NEVER;
    }
    return now +
           INT64_C(1000000) * (now - m->gone_ns < PATIENCE_MS * INT64_C(1000000)
                                   ? LOOK_MS
                                   : LOOK_SLOWLY_MS);
}

/* Closes the net with a rank that is gone, if there is one. Returns 0: none. */
static int close_left(oar_rpc *agent)
{
    oari_rpc_net *left = NULL;

    pthread_mutex_lock(&agent->lock);
    for (oari_link *l = agent->nets.first; l != NULL; l = l->next) {
        oari_rpc_net *net = OARI_CONTAINER_OF(l, oari_rpc_net, link);

        if (net->left && !agent->closing)
            left = net;
    }
    if (left != NULL && agent->peer[left->pair].net == left)
        agent->peer[left->pair].net = NULL;
    pthread_mutex_unlock(&agent->lock);
    if (left != NULL)
        oari_rpc_net_close(left);
    return left != NULL;
}

/* The step of the watcher. */
static int64_t watch(void *arg)
{
    oar_rpc *agent = arg;
    int64_t next = OARI_NEVER;

    while (close_left(agent))
        ;
    for (int r = 0; r < agent->ranks; r++) {
        int64_t at;

        if (r == agent->rank)
            continue;
        end_meeting(agent, &agent->rejoin->with[r], 0);
        at = look_for(agent, &agent->rejoin->with[r]);
        next = at < next ? at : next;
    }
    return next;
}

void oari_rpc_await_arrivals(oar_rpc *agent)
{
    if (agent->rejoin != NULL && agent->rejoin->watcher != NULL)
        oari_worker_wake(agent->rejoin->watcher);
}

/* Returns whether nothing that came of a rank is still being received. */
static int is_quiet(const oari_rpc_peer *peer)
{
    for (oari_link *l = peer->incoming.first; l != NULL; l = l->next)
        if (atomic_load(&OARI_CONTAINER_OF(l, oari_rpc_in, link)->parts_left))
            return 0;
    return 1;
}

/* Forgets the earlier life of a rank; with the lock. */
static void begin_life(oar_rpc *agent, meeting *m)
{
    oari_rpc_peer *peer = &agent->peer[m->rank];

    oari_rpc_drop_incoming(peer);
    peer->sent = 0;
    peer->expected = 1;
    peer->calls_in = 0;
    peer->bytes_in = 0;
    peer->leaving = 0;
    pthread_mutex_lock(&agent->refs_lock);
    peer->limits = m->record.limits;
    peer->life = m->record.life;
    peer->gone = 0;
    peer->may_hold = peer->silent = 0;
    peer->lapses = peer->lapsed = 0;
    pthread_mutex_unlock(&agent->refs_lock);
    peer->net = m->net;
    peer->maps = peer->maps && m->same_host;
    agent->stats.ranks_gone--;
}

int oari_rpc_take_arrival(oar_rpc *agent)
{
    oari_rpc_rejoin *j = agent->rejoin;
    oari_link *l = j != NULL ? j->arrivals.first : NULL;
    meeting *m;

    while (l != NULL &&
           !is_quiet(&agent->peer[OARI_CONTAINER_OF(l, meeting, link)->rank]))
        l = l->next;
    if (l == NULL || agent->closing)
        return 0;
    m = OARI_CONTAINER_OF(l, meeting, link);
    oari_list_remove(&j->arrivals, l);
    begin_life(agent, m);
    m->net = NULL;
    m->met = 1;
    oari_rpc_tell(agent);
    return 1;
}

/* ---- opening and closing ------------------------------------------------- */

oar_status oari_rpc_rejoin_open(oar_rpc *agent)
{
    oari_rpc_rejoin *j;

    if (agent->opts.rejoin == NULL)
        return OAR_OK;
    if (agent->opts.rejoin[0] == '\0' ||
        strlen(agent->opts.rejoin) >= NAME_BYTES)
        return oari_fail(OAR_E_ARG,
                         "rpc: a name to come back under has 1 to "
                         "%d bytes",
                         NAME_BYTES - 1);
    j = oari_alloc(1, sizeof *j);
    if (j == NULL)
        return OAR_E_NOMEM;
    agent->rejoin = j;
    snprintf(j->name, sizeof j->name, "%s", agent->opts.rejoin);
    j->store = agent->opts.store;
    agent->opts.rejoin = NULL; /* it was borrowed */
    if (j->store == NULL) {
        OARI_TRY(oar_store_from_env(&j->opened));
        j->store = j->opened;
    }
    return OAR_OK;
}

/* Makes the meetings, and begins to look for ranks that are gone. */
static oar_status start_watcher(oar_rpc *agent, int tried)
{
    oari_rpc_rejoin *j = agent->rejoin;
    oari_worker_opts watcher = { .name = "oar-rpc-back",
                                 .step = watch,
                                 .arg = agent };

    j->with = oari_alloc((size_t)agent->ranks, sizeof *j->with);
    if (j->with == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < agent->ranks; r++) {
        j->with[r].agent = agent;
        j->with[r].rank = r;
        j->with[r].tried = tried;
        j->with[r].met = tried >= 0;
    }
    return oari_worker_create(&watcher, &j->watcher);
}

static oar_status publish_record(oar_rpc *agent)
{
    oari_rpc_rejoin *j = agent->rejoin;
    rank_record mine;

    memset(&mine, 0, sizeof mine);
    mine.life = j->life;
    mine.limits = agent->peer[agent->rank].limits;
    return oar_store_set(j->store, rank_key(j, "at", agent->rank).text, &mine,
                         sizeof mine);
}

oar_status oari_rpc_rejoin_tell(oar_rpc *agent, const char *backend)
{
    oari_rpc_rejoin *j = agent->rejoin;
    int32_t ranks = agent->ranks;

    if (j == NULL)
        return OAR_OK;
    snprintf(j->backend, sizeof j->backend, "%s", backend);
    OARI_TRY(oar_store_set(j->store, key_of(j, "backend").text, j->backend,
                           sizeof j->backend));
    OARI_TRY(
        oar_store_set(j->store, key_of(j, "size").text, &ranks, sizeof ranks));
    return publish_record(agent);
}

oar_status oari_rpc_rejoin_start(oar_rpc *agent)
{
    return agent->rejoin != NULL ? start_watcher(agent, 0) : OAR_OK;
}

const char *oari_rpc_rejoin_name(const oar_rpc *agent)
{
    return agent->rejoin->name;
}

void oari_rpc_rejoin_close(oar_rpc *agent)
{
    oari_rpc_rejoin *j = agent->rejoin;
    oari_worker *watcher;

    if (j == NULL)
        return;
    pthread_mutex_lock(&agent->lock);
    watcher = j->watcher;
    j->watcher = NULL; /* from now on nobody wakes it */
    pthread_mutex_unlock(&agent->lock);
    oari_worker_destroy(watcher, NULL);
    for (int r = 0; j->with != NULL && r < agent->ranks; r++) {
        end_meeting(agent, &j->with[r], 1);
        if (j->with[r].net != NULL)
            oari_rpc_net_close(j->with[r].net);
    }
    pthread_mutex_lock(&agent->lock);
    agent->rejoin = NULL;
    pthread_mutex_unlock(&agent->lock);
    oar_store_destroy(j->opened);
    oari_free(j->with);
    oari_free(j);
}

/* ---- coming back --------------------------------------------------------- */

/* Reads how many ranks there are, and gives this one its life. */
static oar_status find_agents(oari_rpc_rejoin *j, int rank, int64_t timeout_ms,
                              int32_t *ranks)
{
    int64_t life;

    if (read_key(j, key_of(j, "size"), timeout_ms, ranks, sizeof *ranks) !=
        OAR_OK)
        return oari_fail(OAR_E_NOT_FOUND,
                         "rpc_rejoin: no agents that ranks come back to as "
                         "\"%s\" (%.200s)",
                         j->name, oar_last_error()->text);
    OARI_TRY(read_key(j, key_of(j, "backend"), timeout_ms, j->backend,
                      sizeof j->backend));
    if (rank < 0 || rank >= *ranks || *ranks > MOST_RANKS)
        return oari_fail(OAR_E_RANK, "rpc_rejoin: rank %d of %d", rank, *ranks);
    OARI_TRY(
        oar_store_add(j->store, rank_key(j, "lives", rank).text, 1, &life));
    if (life > MOST_LIVES)
        return oari_fail(OAR_E_UNSUPPORTED,
                         "rpc_rejoin: rank %d has come back %d times, and "
                         "cannot once more",
                         rank, MOST_LIVES);
    j->life = (int)life;
    return OAR_OK;
}

/* Gives this rank the name that it had. */
static oar_status keep_name(oar_rpc *agent, int64_t timeout_ms)
{
    oari_rpc_rejoin *j = agent->rejoin;
    rank_record before;

    OARI_TRY(read_key(j, rank_key(j, "at", agent->rank), timeout_ms, &before,
                      sizeof before));
    before.limits.name[OARI_RPC_AGENT_NAME - 1] = '\0';
    if (agent->opts.name != NULL &&
        strcmp(agent->opts.name, before.limits.name) != 0)
        return oari_fail(OAR_E_ARG,
                         "rpc_rejoin: rank %d was \"%s\" before, not \"%s\"",
                         agent->rank, before.limits.name, agent->opts.name);
    oari_rpc_set_limits(agent, before.limits.name);
    return OAR_OK;
}

oar_status oari_rpc_come_back(oar_rpc *agent, int rank)
{
    oari_rpc_rejoin *j = agent->rejoin;
    int64_t timeout_ms = agent->opts.timeout_ms;
    int32_t ranks;

    OARI_TRY(find_agents(j, rank, timeout_ms, &ranks));
    agent->rank = rank;
    agent->ranks = ranks;
    agent->peer = oari_alloc((size_t)ranks, sizeof *agent->peer);
    if (agent->peer == NULL)
        return OAR_E_NOMEM;
    for (int r = 0; r < ranks; r++) {
        agent->peer[r].expected = 1;
        agent->peer[r].gone = r == rank ? 0 : OAR_GONE_LEFT;
        agent->peer[r].limits.message_bytes = UINT64_MAX; /* unknown yet */
        snprintf(agent->peer[r].limits.name, OARI_RPC_AGENT_NAME, "rank%d", r);
    }
    agent->peer[rank].life = j->life;
    agent->next_call = (uint64_t)j->life << 48;
    agent->stats.ranks_gone = ranks - 1;
    return keep_name(agent, timeout_ms);
}

oar_status oari_rpc_meet_all(oar_rpc *agent)
{
    oari_rpc_rejoin *j = agent->rejoin;
    int64_t deadline = oari_deadline(agent->opts.timeout_ms);
    int met = 0, left = 1, in_time = 1;

    OARI_TRY(publish_record(agent));
    OARI_TRY(start_watcher(agent, -1));
    pthread_mutex_lock(&agent->lock);
    while (left > 0 && in_time) {
        met = left = 0;
        for (int r = 0; r < agent->ranks; r++) {
            met += r != agent->rank && !agent->peer[r].gone;
            left += agent->peer[r].gone && !j->with[r].said_gone;
        }
        if (left > 0)
            in_time = oari_rpc_wait_change(agent, deadline);
    }
    pthread_mutex_unlock(&agent->lock);
    if (met > 0 || agent->ranks == 1)
        return OAR_OK;
    return oari_fail(
        OAR_E_TIMEOUT,
        "rpc_rejoin: none of the %d other ranks of \"%s\" is there",
        agent->ranks - 1, j->name);
}

/* ---- asking -------------------------------------------------------------- */

int oar_rpc_incarnation(const oar_rpc *rpc, int rank)
{
    oar_rpc *agent = (oar_rpc *)(uintptr_t)rpc;
    int life = -1;

    if (rpc == NULL || rank < 0 || rank >= rpc->ranks)
        return -1;
    pthread_mutex_lock(&agent->lock);
    if (!agent->peer[rank].gone)
        life = agent->peer[rank].life;
    pthread_mutex_unlock(&agent->lock);
    return life;
}

oar_status oar_rpc_await(oar_rpc *rpc, int rank, int64_t timeout_ms)
{
    int64_t deadline;
    int there, in_time = 1;

    OARI_TRY(oari_rpc_check(rpc, "rpc_await"));
    if (rank < 0 || rank >= rpc->ranks)
        return oari_fail(OAR_E_RANK, "rpc_await: rank %d of %d", rank,
                         rpc->ranks);
    if (oari_rpc_pumping)
        return oari_fail(OAR_E_STATE, "rpc_await in an inline function");
    deadline =
        oari_deadline(timeout_ms != 0 ? timeout_ms : rpc->opts.timeout_ms);
    OARI_TRY(oari_rpc_pool_block_begin(rpc->pool));
    pthread_mutex_lock(&rpc->lock);
    while ((there = !rpc->peer[rank].gone) == 0 && in_time && !rpc->closing)
        in_time = oari_rpc_wait_change(rpc, deadline);
    pthread_mutex_unlock(&rpc->lock);
    oari_rpc_pool_block_end(rpc->pool);
    if (there)
        return OAR_OK;
    return oari_about(rank,
                      oari_fail(in_time ? OAR_E_ABORTED : OAR_E_TIMEOUT,
                                "rpc_await: rank %d (%s) has not come "
                                "back%s",
                                rank, rpc->peer[rank].limits.name,
                                rpc->rejoin == NULL ? ", and cannot without "
                                                      "oar_rpc_opts.rejoin"
                                                    : ""));
}
