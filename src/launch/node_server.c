/* SPDX-License-Identifier: Apache-2.0 */
/* node_server: rounds of agents. A round runs until one of its agents fails or
 * is gone, or a new agent waits and there is room; then all stop, and when the
 * remaining agents wait again, the next round is formed. A failure counts
 * against max_restarts, unless it came with the loss of a node of an elastic
 * job. With keep_going none of these ends a round. */
#include "launch/node_server.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "launch/launch.h"

enum {
    TICK_MS = 100,
    AGENTS_MAX = 1024,
    DEFAULT_JOIN_MS = 600000,
    DEFAULT_LAST_CALL_MS = 5000,
    DEFAULT_LEASE_MS = 5000
};

typedef struct agent {
    char id[AGENT_ID_ROOM];
    agent_record note;
    int64_t heard_ns; /* when its beat last changed */
    long arrival;
    int member; /* of the round that runs, or of the last one */
    int seen;   /* its record was read this time */
} agent;

typedef struct node_server {
    const oar_launch_opts *opts;
    const char *run_id;
    int64_t join_ms, last_call_ms, lease_ms;
    oar_store *store;
    agent *agents; /* AGENTS_MAX */
    int count;
    long arrivals;
    int round, running, restarts;
    int failed, lost; /* a rank or a node of the last round, so far */
    int fail_code, fail_rank;
    char why[256];
    int64_t enough_ns; /* since when there are enough nodes; 0: there are not */
    int64_t waiting_ns; /* since when a round is being formed */
    int ended;
} node_server;

/* ---- records ------------------------------------------------------------- */

int agent_record_read(const char *text, agent_record *n)
{
    return sscanf(text, "%lld %d %d %d %d %d %d %127s", &n->beat, &n->state,
                  &n->round, &n->ranks, &n->order, &n->code, &n->rank,
                  n->host) == 8 &&
           n->state >= AGENT_WAITS && n->state <= AGENT_FAILED &&
           n->ranks >= 1 && n->ranks <= 1024;
}

void agent_record_write(const agent_record *n, char text[AGENT_TEXT_ROOM])
{
    snprintf(text, AGENT_TEXT_ROOM, "%lld %d %d %d %d %d %d %s", n->beat,
             n->state, n->round, n->ranks, n->order, n->code, n->rank, n->host);
}

oar_status node_server_store(const char *address, int64_t timeout_ms,
                             const char *run_id, oar_store **store)
{
    char prefix[NODE_SERVER_PREFIX_ROOM];
    oar_store *all = NULL;
    oar_status status;

    OARI_TRY(oar_store_create_tcp(address, timeout_ms, &all));
    snprintf(prefix, sizeof prefix, "oarsong/%s/", run_id);
    status = oar_store_create_prefix(all, prefix, store);
    oar_store_destroy(all); /* the prefix store retains it */
    return status;
}

/* ---- what agents write --------------------------------------------------- */

static agent *find_agent(node_server *r, const char *id)
{
    for (int i = 0; i < r->count; i++)
        if (strcmp(r->agents[i].id, id) == 0)
            return &r->agents[i];
    if (r->count == AGENTS_MAX || strlen(id) >= AGENT_ID_ROOM)
        return NULL;
    r->agents[r->count] = (agent){ .arrival = r->arrivals++,
                                   .note.beat = -1,
                                   .heard_ns = oari_now_ns() };
    memcpy(r->agents[r->count].id, id, strlen(id) + 1);
    return &r->agents[r->count++];
}

static void read_agent(node_server *r, const char *key)
{
    agent *a = find_agent(r, key + strlen("agent/"));
    agent_record note;
    void *text = NULL;
    size_t bytes;

    if (a == NULL || oar_store_get(r->store, key, 0, &text, &bytes) != OAR_OK)
        return;
    if (agent_record_read(text, &note)) {
        a->seen = 1;
        if (note.beat != a->note.beat)
            a->heard_ns = oari_now_ns();
        a->note = note;
    }
    oari_free(text);
}

static void forget_agent(node_server *r, int i)
{
    char key[64];
    agent *a = &r->agents[i];

    snprintf(key, sizeof key, "agent/%s", a->id);
    oar_store_delete(r->store, key);
    if (a->member) {
        r->lost = 1;
        if (r->why[0] == 0)
            snprintf(r->why, sizeof r->why, "the node %s is gone",
                     a->note.host);
    }
    *a = r->agents[--r->count];
}

static oar_status read_agents(node_server *r)
{
    int64_t oldest = oari_now_ns() - r->lease_ms * 1000000;
    char **keys = NULL;
    int count = 0;

    for (int i = 0; i < r->count; i++)
        r->agents[i].seen = 0;
    OARI_TRY(oar_store_list(r->store, "agent/", &count, &keys));
    for (int i = 0; i < count; i++)
        read_agent(r, keys[i]);
    oari_free(keys);
    for (int i = r->count - 1; i >= 0; i--)
        if (!r->agents[i].seen || r->agents[i].heard_ns < oldest)
            forget_agent(r, i);
    return OAR_OK;
}

/* ---- decisions ----------------------------------------------------------- */

static oar_status set_word(node_server *r, const char *format, ...)
    OAR_PRINTF(2, 3);
static oar_status set_word(node_server *r, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return oar_store_set(r->store, "word", text, strlen(text));
}

static oar_status end_job(node_server *r, int code, int rank, const char *why)
{
    r->ended = 1;
    return set_word(r, "end %d %d %s", code, rank, why);
}

/* Ends the job as the first failure says, or the loss of a node. */
static oar_status fail_job(node_server *r)
{
    return end_job(r, r->failed ? r->fail_code : 1,
                   r->failed ? r->fail_rank : -1, r->why);
}

/* ---- a round that runs --------------------------------------------------- */

static oar_status end_round(node_server *r)
{
    r->running = 0;
    r->enough_ns = 0;
    r->waiting_ns = oari_now_ns();
    return set_word(r, "over %d %s", r->round, r->why);
}

static oar_status check_round(node_server *r)
{
    const agent *waits = NULL;
    int members = 0, done = 0, failed = 0;

    for (int i = 0; i < r->count; i++) {
        const agent *a = &r->agents[i];
        int here = a->member && a->note.round == r->round;

        members += a->member;
        done += here && a->note.state == AGENT_DONE;
        failed += here && a->note.state == AGENT_FAILED;
        if (here && a->note.state == AGENT_FAILED && !r->failed) {
            r->failed = 1;
            r->fail_code = a->note.code;
            r->fail_rank = a->note.rank;
            snprintf(r->why, sizeof r->why, "rank %d on %s %s", a->note.rank,
                     a->note.host, launch_how_ended(a->note.code).text);
        }
        if (!a->member && a->note.state == AGENT_WAITS)
            waits = a;
    }
    /* With keep_going a round ends when the last node has ended. */
    if (r->opts->keep_going && done + failed < members)
        return OAR_OK;
    if (r->failed || r->lost)
        return r->opts->keep_going ? fail_job(r) : end_round(r);
    if (done == members)
        return end_job(r, 0, -1, "all ranks ended well");
    if (waits != NULL && done == 0 && members < r->opts->max_nodes) {
        snprintf(r->why, sizeof r->why, "the node %s joins", waits->note.host);
        return end_round(r);
    }
    return OAR_OK;
}

/* ---- a round that forms -------------------------------------------------- */

static int compare_agents(const void *a, const void *b)
{
    const agent *x = a, *y = b;

    if (x->note.order != y->note.order)
        return x->note.order < y->note.order ? -1 : 1;
    return x->arrival < y->arrival ? -1 : 1;
}

/* Begins a round of the agents that wait, in order, as many as there may be. */
static oar_status begin_round(node_server *r)
{
    enum { ROOM = 64 + AGENTS_MAX * 24 };
    char *text = oari_alloc(ROOM, 1);
    int nodes = 0;
    size_t used;
    oar_status status;

    if (text == NULL)
        return OAR_E_NOMEM;
    qsort(r->agents, (size_t)r->count, sizeof *r->agents, compare_agents);
    for (int i = 0; i < r->count; i++) {
        agent *a = &r->agents[i];
        a->member = a->note.state == AGENT_WAITS && nodes < r->opts->max_nodes;
        nodes += a->member;
    }
    r->round++;
    r->running = 1;
    r->failed = r->lost = 0;
    r->why[0] = 0;
    used =
        (size_t)snprintf(text, ROOM, "%d %d %d", r->round, r->restarts, nodes);
    for (int i = 0; i < r->count; i++)
        if (r->agents[i].member)
            used += (size_t)snprintf(text + used, ROOM - used, " %s:%d",
                                     r->agents[i].id, r->agents[i].note.ranks);
    status = oar_store_set(r->store, "round", text, used);
    oari_free(text);
    return status;
}

/* Ends the job, or counts a restart, if the end of the last round was a failure
 * of the job. All its agents have stopped, or are gone. */
static oar_status count_failure(node_server *r)
{
    int elastic = r->opts->min_nodes < r->opts->max_nodes;

    if (elastic ? !r->failed || r->lost : !r->failed && !r->lost)
        return OAR_OK;
    if (r->restarts >= r->opts->max_restarts)
        return fail_job(r);
    r->restarts++;
    r->failed = r->lost = 0;
    return OAR_OK;
}

static oar_status form_round(node_server *r)
{
    int64_t now = oari_now_ns();
    int ready = 0, enough;

    for (int i = 0; i < r->count; i++) {
        if (r->agents[i].member && r->agents[i].note.state != AGENT_WAITS)
            return OAR_OK;
        ready += r->agents[i].note.state == AGENT_WAITS;
    }
    OARI_TRY(count_failure(r));
    if (r->ended)
        return OAR_OK;
    enough = ready >= r->opts->min_nodes;
    if (!enough)
        r->enough_ns = 0;
    else if (r->enough_ns == 0)
        r->enough_ns = now;
    if (ready >= r->opts->max_nodes ||
        (enough && now - r->enough_ns >= r->last_call_ms * 1000000))
        return begin_round(r);
    if (!enough && now - r->waiting_ns >= r->join_ms * 1000000) {
        snprintf(r->why, sizeof r->why, "%d of at least %d nodes came in time",
                 ready, r->opts->min_nodes);
        return end_job(r, 1, -1, r->why);
    }
    return OAR_OK;
}

/* ---- the process --------------------------------------------------------- */

/* Reads what the agent that started this process says: nothing, that the job
 * must end, or that it is gone (0). */
static int read_parent(node_server *r, int fd)
{
    struct pollfd wait = { fd, POLLIN, 0 };
    unsigned char sig;

    if (poll(&wait, 1, TICK_MS) <= 0)
        return 1;
    if (read(fd, &sig, 1) != 1)
        return 0;
    if (!r->ended)
        end_job(r, 128 + sig, -1,
                "the launcher at the endpoint was told to end");
    return 1;
}

/* Forms rounds until the job has ended and every agent has read that and left.
 */
static void run_rounds(node_server *r, int fd)
{
    int64_t leave_ns = OARI_NEVER;
    oar_status status = OAR_OK;

    while (status == OAR_OK && read_parent(r, fd)) {
        status = read_agents(r);
        if (status == OAR_OK && !r->ended)
            status = r->running ? check_round(r) : form_round(r);
        if (status != OAR_OK || !r->ended)
            continue;
        if (r->count == 0 || oari_now_ns() > leave_ns)
            return;
        if (leave_ns == OARI_NEVER)
            leave_ns = oari_deadline(3 * r->lease_ms);
    }
}

static int64_t or_default(int64_t ms, int64_t otherwise)
{
    return ms > 0 ? ms : otherwise;
}

static oar_status open_store(node_server *r, oar_store_server **server)
{
    const oar_launch_opts *o = r->opts;

    r->round = -1;
    r->join_ms = or_default(o->join_ms, DEFAULT_JOIN_MS);
    r->last_call_ms = or_default(o->last_call_ms, DEFAULT_LAST_CALL_MS);
    r->lease_ms = or_default(o->lease_ms, DEFAULT_LEASE_MS);
    r->waiting_ns = oari_now_ns();
    r->agents = oari_alloc(AGENTS_MAX, sizeof *r->agents);
    if (r->agents == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(oar_store_serve(o->endpoint, server));
    OARI_TRY(node_server_store(oar_store_server_address(*server), r->lease_ms,
                               r->run_id, &r->store));
    return set_word(r, "none");
}

static int run_node_server(void *arg, int fd)
{
    node_server *r = arg;
    oar_store_server *server = NULL;
    oar_status status = open_store(r, &server);

    launch_answer_send(fd, status, "");
    if (status == OAR_OK)
        run_rounds(r, fd);
    oar_store_destroy(r->store);
    oar_store_server_destroy(server);
    oari_free(r->agents);
    return 0;
}

oar_status node_server_start(const oar_launch_opts *opts, const char *run_id,
                             pid_t *pid, int *fd)
{
    node_server r = { .opts = opts, .run_id = run_id };
    launch_answer answer;

    return launch_helper_start(run_node_server, &r, pid, fd, &answer);
}
