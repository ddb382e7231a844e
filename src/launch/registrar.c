/* SPDX-License-Identifier: Apache-2.0 */
/* registrar: rounds of agents. A round runs until one of its agents fails, is
 * gone, or a new one waits though there is room; then all stop, and when those
 * that are left wait again, the next is formed. A failure counts against
 * max_restarts, unless it came with the loss of a node of an elastic job. With
 * keep_going none of these ends a round. */
#include "launch/registrar.h"

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
    agent_note note;
    int64_t heard_ns; /* when its beat last changed */
    long arrival;
    int member; /* of the round that runs or ran last */
    int seen;   /* in this tick */
} agent;

typedef struct registrar {
    const oar_launch_opts *opts;
    const char *run_id;
    int64_t join_ms, last_call_ms, lease_ms;
    oar_store *store;
    agent *agents; /* AGENTS_MAX */
    int count;
    long arrivals;
    int round, running, restarts;
    int failed, lost; /* how the last round ended, so far */
    int fail_code, fail_rank;
    char why[256];
    int64_t enough_ns;  /* since when there are enough; 0: there are not */
    int64_t waiting_ns; /* since when a round is being formed */
    int ended;
} registrar;

/* ---- notes --------------------------------------------------------------- */

int agent_note_read(const char *text, agent_note *n)
{
    return sscanf(text, "%lld %d %d %d %d %d %d %127s", &n->beat, &n->state,
                  &n->round, &n->ranks, &n->order, &n->code, &n->rank,
                  n->host) == 8 &&
           n->state >= AGENT_WAITS && n->state <= AGENT_FAILED &&
           n->ranks >= 1 && n->ranks <= 1024;
}

void agent_note_write(const agent_note *n, char text[AGENT_TEXT_ROOM])
{
    snprintf(text, AGENT_TEXT_ROOM, "%lld %d %d %d %d %d %d %s", n->beat,
             n->state, n->round, n->ranks, n->order, n->code, n->rank, n->host);
}

oar_status registrar_store(const char *address, int64_t timeout_ms,
                           const char *run_id, oar_store **store)
{
    char prefix[REGISTRAR_PREFIX_ROOM];
    oar_store *all = NULL;
    oar_status status;

    OARI_TRY(oar_store_create_tcp(address, timeout_ms, &all));
    snprintf(prefix, sizeof prefix, "oarsong/%s/", run_id);
    status = oar_store_create_prefix(all, prefix, store);
    oar_store_destroy(all); /* the other one keeps it */
    return status;
}

/* ---- what agents write --------------------------------------------------- */

static agent *find_agent(registrar *r, const char *id)
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

static void read_agent(registrar *r, const char *key)
{
    agent *a = find_agent(r, key + strlen("agent/"));
    agent_note note;
    void *text = NULL;
    size_t bytes;

    if (a == NULL || oar_store_get(r->store, key, 0, &text, &bytes) != OAR_OK)
        return;
    if (agent_note_read(text, &note)) {
        a->seen = 1;
        if (note.beat != a->note.beat)
            a->heard_ns = oari_now_ns();
        a->note = note;
    }
    oari_free(text);
}

static void forget(registrar *r, int i)
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

static oar_status read_agents(registrar *r)
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
            forget(r, i);
    return OAR_OK;
}

/* ---- what it says -------------------------------------------------------- */

static oar_status say(registrar *r, const char *format, ...) OAR_PRINTF(2, 3);
static oar_status say(registrar *r, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return oar_store_set(r->store, "word", text, strlen(text));
}

static oar_status end_job(registrar *r, int code, int rank, const char *why)
{
    r->ended = 1;
    return say(r, "end %d %d %s", code, rank, why);
}

/* ---- a round that runs --------------------------------------------------- */

static oar_status end_round(registrar *r)
{
    r->running = 0;
    r->enough_ns = 0;
    r->waiting_ns = oari_now_ns();
    return say(r, "over %d %s", r->round, r->why);
}

static void note_failure(registrar *r, const agent *a)
{
    r->failed = 1;
    r->fail_code = a->note.code;
    r->fail_rank = a->note.rank;
    snprintf(r->why, sizeof r->why, "rank %d on %s %s", a->note.rank,
             a->note.host, launch_how_ended(a->note.code).text);
}

/* Where ranks are to go on, a round ends when the last node has; how, the first
 * failure says, or the loss of a node. */
static oar_status watch_survivors(registrar *r, int running)
{
    if (running > 0)
        return OAR_OK;
    if (r->failed || r->lost)
        return end_job(r, r->failed ? r->fail_code : 1,
                       r->failed ? r->fail_rank : -1, r->why);
    return end_job(r, 0, -1, "all ranks ended well");
}

static oar_status watch_round(registrar *r)
{
    const agent *comes = NULL;
    int members = 0, done = 0, failed = 0;

    for (int i = 0; i < r->count; i++) {
        const agent *a = &r->agents[i];
        int here = a->member && a->note.round == r->round;
        members += a->member;
        done += here && a->note.state == AGENT_DONE;
        failed += here && a->note.state == AGENT_FAILED;
        if (here && a->note.state == AGENT_FAILED && !r->failed)
            note_failure(r, a);
        if (!a->member && a->note.state == AGENT_WAITS)
            comes = a;
    }
    if (r->opts->keep_going)
        return watch_survivors(r, members - done - failed);
    if (r->failed || r->lost)
        return end_round(r);
    if (done == members)
        return end_job(r, 0, -1, "all ranks ended well");
    if (comes != NULL && done == 0 && members < r->opts->max_nodes) {
        snprintf(r->why, sizeof r->why, "the node %s joins", comes->note.host);
        return end_round(r);
    }
    return OAR_OK;
}

/* ---- a round that forms -------------------------------------------------- */

static int by_order(const void *a, const void *b)
{
    const agent *x = a, *y = b;

    if (x->note.order != y->note.order)
        return x->note.order < y->note.order ? -1 : 1;
    return x->arrival < y->arrival ? -1 : 1;
}

static int is_ready(const agent *a)
{
    return a->note.state == AGENT_WAITS;
}

/* Those that wait, first come first, up to the most there may be. */
static int pick_members(registrar *r)
{
    int nodes = 0;

    qsort(r->agents, (size_t)r->count, sizeof *r->agents, by_order);
    for (int i = 0; i < r->count; i++) {
        agent *a = &r->agents[i];
        a->member = is_ready(a) && nodes < r->opts->max_nodes;
        nodes += a->member;
    }
    return nodes;
}

static oar_status begin_round(registrar *r)
{
    enum { ROOM = 64 + AGENTS_MAX * 24 };
    char *text = oari_alloc(ROOM, 1);
    int nodes = pick_members(r);
    size_t used;
    oar_status status;

    if (text == NULL)
        return OAR_E_NOMEM;
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

/* Whether the end of the last round counts as a failure of the job. */
static int counts(const registrar *r)
{
    int elastic = r->opts->min_nodes < r->opts->max_nodes;

    return elastic ? r->failed && !r->lost : r->failed || r->lost;
}

/* All who were in the last round have stopped, or are gone. */
static oar_status settle_last(registrar *r)
{
    if (!counts(r))
        return OAR_OK;
    if (r->restarts >= r->opts->max_restarts)
        return end_job(r, r->failed ? r->fail_code : 1,
                       r->failed ? r->fail_rank : -1, r->why);
    r->restarts++;
    r->failed = r->lost = 0;
    return OAR_OK;
}

static oar_status form_round(registrar *r)
{
    int64_t now = oari_now_ns();
    int ready = 0, enough;

    for (int i = 0; i < r->count; i++) {
        if (r->agents[i].member && !is_ready(&r->agents[i]))
            return OAR_OK;
        ready += is_ready(&r->agents[i]);
    }
    OARI_TRY(settle_last(r));
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

static oar_status tick(registrar *r)
{
    OARI_TRY(read_agents(r));
    if (r->ended)
        return OAR_OK;
    return r->running ? watch_round(r) : form_round(r);
}

/* The agent beside it: says nothing, that all is to end, or is gone (0). */
static int hear(registrar *r, int fd)
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

/* Until the job has ended and every agent has left, having read that. */
static void keep_register(registrar *r, int fd)
{
    int64_t patience_ns = OARI_NEVER;

    while (hear(r, fd) && tick(r) == OAR_OK) {
        if (!r->ended)
            continue;
        if (r->count == 0 || oari_now_ns() > patience_ns)
            return;
        if (patience_ns == OARI_NEVER)
            patience_ns = oari_deadline(3 * r->lease_ms);
    }
}

static int64_t or_default(int64_t ms, int64_t otherwise)
{
    return ms > 0 ? ms : otherwise;
}

static oar_status open_register(registrar *r, oar_store_server **server)
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
    OARI_TRY(registrar_store(oar_store_server_address(*server), r->lease_ms,
                             r->run_id, &r->store));
    return say(r, "none");
}

static int be_registrar(void *arg, int fd)
{
    registrar *r = arg;
    oar_store_server *server = NULL;
    oar_status status = open_register(r, &server);

    launch_answer_send(fd, status, "");
    if (status == OAR_OK)
        keep_register(r, fd);
    oar_store_destroy(r->store);
    oar_store_server_destroy(server);
    oari_free(r->agents);
    return 0;
}

oar_status registrar_start(const oar_launch_opts *opts, const char *run_id,
                           pid_t *pid, int *fd)
{
    registrar r = { .opts = opts, .run_id = run_id };
    launch_answer answer;

    return launch_beside(be_registrar, &r, pid, fd, &answer);
}
