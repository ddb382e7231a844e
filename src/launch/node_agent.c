/* SPDX-License-Identifier: Apache-2.0 */
/* node_agent: the agent of this node, one of several. It writes its state to
 * the node server's store, reads what the node server decides (node_server.h),
 * and does that. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/status.h"
#include "launch/launch.h"
#include "launch/node_server.h"

enum {
    DEFAULT_JOIN_MS = 600000,
    DEFAULT_LEASE_MS = 5000,
    PROBE_MS = 1000,
    PAUSE_MS = 100,
    BEATS = 5 /* in the time of a lease */
};

struct launch_nodes {
    oar_store *store;
    int fd; /* to the node server, if that is our child */
    char id[AGENT_ID_ROOM], key[32];
    agent_record note;
    int64_t lease_ms, beat_ns;
    int lost;   /* the node server cannot be reached any more */
    int number; /* of the last round that this node was in; -1: none yet */
    char why[512];
};

/* ---- the store ----------------------------------------------------------- */

static oar_status write_note(launch_nodes *n)
{
    char text[AGENT_TEXT_ROOM];

    n->note.beat++;
    n->beat_ns = oari_deadline(n->lease_ms / BEATS);
    agent_record_write(&n->note, text);
    return oar_store_set(n->store, n->key, text, strlen(text));
}

/* Renews the lease, when it is time. */
static oar_status renew_lease(launch_nodes *n)
{
    return oari_now_ns() >= n->beat_ns ? write_note(n) : OAR_OK;
}

static oar_status set_state(launch_nodes *n, agent_state state)
{
    n->note.state = state;
    n->note.round = n->number;
    return write_note(n);
}

/* Gives the text of a key (oari_free it), "" if there is none. */
static oar_status read_key(launch_nodes *n, const char *key, char **text)
{
    void *value = NULL;
    size_t bytes;
    oar_status status = oar_store_get(n->store, key, 0, &value, &bytes);

    if (status == OAR_E_TIMEOUT) {
        *text = oari_strdup("");
        return *text != NULL ? OAR_OK : OAR_E_NOMEM;
    }
    *text = value;
    return status;
}

/* ---- joining the job ----------------------------------------------------- */

/* Fails. Without the node server the job cannot go on. */
static oar_status fail_lost(launch *l)
{
    char why[256];

    snprintf(why, sizeof why, "%s", oar_last_error_text());
    l->nodes->lost = 1;
    l->result.exit_code = 1;
    l->result.failed_rank = -1;
    return oari_fail(OAR_E_PEER,
                     "the launcher at %s, which keeps the register of nodes, "
                     "is gone: %s",
                     l->opts.endpoint, why);
}

/* Connects to the node server, trying until one serves at the endpoint. */
static oar_status connect_server(launch *l, launch_nodes *n)
{
    static const char *const word = "word"; /* exists as soon as it serves */
    int64_t join = l->opts.join_ms > 0 ? l->opts.join_ms : DEFAULT_JOIN_MS;
    int64_t until = oari_deadline(join);
    oar_store *probe = NULL;
    oar_status status;

    while (oar_store_create_tcp(l->opts.endpoint, PROBE_MS, &probe) != OAR_OK) {
        status = oar_last_error()->status;
        if (l->stop_signal != 0)
            return launch_fail_stopped(l);
        if (status == OAR_E_ARG || status == OAR_E_AUTH ||
            status == OAR_E_NOT_FOUND || oari_now_ns() > until)
            return status;
        launch_signals_wait(l, PAUSE_MS);
    }
    oar_store_destroy(probe);
    OARI_TRY(
        node_server_store(l->opts.endpoint, n->lease_ms, l->run_id, &n->store));
    status = oar_store_wait(n->store, 1, &word, n->lease_ms);
    return status != OAR_E_TIMEOUT
               ? status
               : oari_fail(OAR_E_STATE,
                           "what serves at %s has no job \"%s\": use another "
                           "endpoint, or the same --rdzv-id on all nodes",
                           l->opts.endpoint, l->run_id);
}

/* Gives the address by which other nodes reach this host, without a port. */
static oar_status find_host(const launch *l, char host[AGENT_HOST_ROOM])
{
    char address[OARI_SOCK_TEXT], *colon;
    const char *from = address;

    OARI_TRY(oari_sock_local(l->opts.endpoint, address));
    if ((colon = strrchr(address, ':')) != NULL)
        *colon = 0;
    if (address[0] == '[') {
        address[strcspn(address, "]")] = 0;
        from++;
    }
    snprintf(host, AGENT_HOST_ROOM, "%.127s", from);
    return OAR_OK;
}

oar_status launch_nodes_open(launch *l)
{
    launch_nodes *n = oari_alloc(1, sizeof *n);
    uint64_t id;

    if (n == NULL)
        return OAR_E_NOMEM;
    l->nodes = n;
    n->fd = n->number = -1;
    n->lease_ms = l->opts.lease_ms > 0 ? l->opts.lease_ms : DEFAULT_LEASE_MS;
    if (node_server_start(&l->opts, l->run_id, &l->node_server, &n->fd) !=
        OAR_OK)
        l->node_server = 0; /* another node serves */
    else
        launch_say(l, "the register of nodes is served here, at %s",
                   l->opts.endpoint);
    OARI_TRY(connect_server(l, n));
    if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id)
        return oari_fail(OAR_E_SYSTEM, "make an id for this node");
    snprintf(n->id, sizeof n->id, "%016llx", (unsigned long long)id);
    snprintf(n->key, sizeof n->key, "agent/%s", n->id);
    n->note.ranks = l->ranks;
    n->note.order = l->opts.node_order;
    n->note.rank = -1;
    OARI_TRY(find_host(l, n->note.host));
    return set_state(n, AGENT_WAITS);
}

/* ---- what the node server decides ---------------------------------------- */

/* OVER: the round of this node, or a later one, has ended. END: the job has
 * ended, and the result says how. */
typedef enum word { WORD_NONE, WORD_OVER, WORD_END } word;

static oar_status read_word(launch *l, word *what)
{
    launch_nodes *n = l->nodes;
    char *text = NULL;
    int number, code, rank, used = 0;

    *what = WORD_NONE;
    OARI_TRY(read_key(n, "word", &text));
    if (sscanf(text, "end %d %d %n", &code, &rank, &used) == 2 && used > 0) {
        *what = WORD_END;
        l->result.exit_code = code;
        l->result.failed_rank = rank;
    } else if (sscanf(text, "over %d %n", &number, &used) == 1 && used > 0 &&
               number >= n->number)
        *what = WORD_OVER;
    if (*what != WORD_NONE)
        snprintf(n->why, sizeof n->why, "%s", text + used);
    oari_free(text);
    return OAR_OK;
}

void launch_nodes_check(launch *l)
{
    launch_nodes *n = l->nodes;
    word what = WORD_NONE;
    oar_status status;

    if (n == NULL || l->over != NULL)
        return;
    if ((status = renew_lease(n)) == OAR_OK)
        status = read_word(l, &what);
    if (status != OAR_OK) {
        fail_lost(l);
        snprintf(n->why, sizeof n->why, "%s", oar_last_error_text());
    }
    if (status != OAR_OK || what != WORD_NONE) {
        l->over = n->why;
        launch_say(l, "epoch %d is over: %s", l->epoch.number, n->why);
        launch_ranks_end(l, SIGTERM);
    }
}

/* ---- a round ------------------------------------------------------------- */

/* Finds this node in "ID:RANKS ID:RANKS ...". Returns 0 if it is not there. */
static int find_self(launch *l, const char *text, int nodes)
{
    launch_epoch *e = &l->epoch;
    char id[AGENT_ID_ROOM];
    int ranks, used, found = 0;

    e->first = e->world = 0;
    e->nodes = nodes;
    for (int i = 0; i < nodes; i++, text += used) {
        if (sscanf(text, " %16[0-9a-f]:%d%n", id, &ranks, &used) != 2 ||
            ranks < 1)
            return 0;
        if (strcmp(id, l->nodes->id) == 0) {
            e->node = i;
            e->first = e->world;
            found = 1;
        }
        e->world += ranks;
    }
    return found;
}

/* Gives whether there is a new round that this node is in. */
static oar_status read_round(launch *l, int *in)
{
    launch_nodes *n = l->nodes;
    char *text = NULL;
    int number, restarts, nodes, used = 0;

    *in = 0;
    OARI_TRY(read_key(n, "round", &text));
    if (sscanf(text, "%d %d %d%n", &number, &restarts, &nodes, &used) == 3 &&
        used > 0 && number > n->number && find_self(l, text + used, nodes)) {
        n->number = l->epoch.number = number;
        l->epoch.restarts = restarts;
        *in = 1;
    }
    oari_free(text);
    return OAR_OK;
}

/* Waits until the first node has written where the store of the ranks is.
 * *over: the round ended before it began. */
static oar_status wait_for_store(launch *l, const char *key, int *over)
{
    launch_epoch *e = &l->epoch;
    launch_store_task task = { .store = e->store, .secret = e->secret };
    char served[OARI_SOCK_TEXT], *text = NULL;
    word what = WORD_NONE;
    int found = 0;

    while (!found && what == WORD_NONE && l->stop_signal == 0) {
        OARI_TRY(renew_lease(l->nodes));
        OARI_TRY(read_word(l, &what));
        OARI_TRY(read_key(l->nodes, key, &text));
        found = sscanf(text, "%271s %64[0-9a-f] %271s %d", e->store, e->secret,
                       e->master, &e->master_port) == 4;
        oari_free(text);
        if (!found)
            launch_signals_wait(l, PAUSE_MS / 2);
    }
    *over = !found;
    return found ? launch_store_process_start(&l->keeper, &task, served)
                 : OAR_OK;
}

/* The first node serves the store of the ranks and writes where that is. */
static oar_status begin_round(launch *l, int *over)
{
    launch_epoch *e = &l->epoch;
    char key[32], text[1024];

    *over = 0;
    snprintf(key, sizeof key, "store/%d", e->number);
    OARI_TRY(set_state(l->nodes, AGENT_RUNS));
    if (e->node == 0) {
        OARI_TRY(launch_epoch_serve(l, l->nodes->note.host));
        snprintf(text, sizeof text, "%s %s %s %d", e->store, e->secret,
                 e->master, e->master_port);
        OARI_TRY(oar_store_set(l->nodes->store, key, text, strlen(text)));
    } else
        OARI_TRY(wait_for_store(l, key, over));
    if (!*over)
        launch_say(l, "epoch %d: node %d of %d, ranks %d to %d of %d",
                   e->number, e->node, e->nodes, e->first,
                   e->first + l->ranks - 1, e->world);
    return OAR_OK;
}

/* ---- between rounds ------------------------------------------------------ */

static oar_status next_round(launch *l, int *more)
{
    launch_nodes *n = l->nodes;
    int in, over;
    word what;

    for (;;) {
        if (l->stop_signal != 0)
            return launch_fail_stopped(l);
        OARI_TRY(renew_lease(n));
        OARI_TRY(read_word(l, &what));
        if (what == WORD_END)
            return l->result.exit_code == 0
                       ? OAR_OK
                       : oari_fail(OAR_E_PEER, "%s", n->why);
        if (what == WORD_OVER && n->note.state != AGENT_WAITS)
            OARI_TRY(set_state(n, AGENT_WAITS));
        in = 0;
        if (n->note.state == AGENT_WAITS)
            OARI_TRY(read_round(l, &in));
        if (in) {
            OARI_TRY(begin_round(l, &over));
            if (!over) {
                *more = 1;
                return OAR_OK;
            }
            OARI_TRY(set_state(n, AGENT_WAITS));
        }
        launch_signals_wait(l, PAUSE_MS);
    }
}

oar_status launch_nodes_join(launch *l, int *more)
{
    oar_status status;

    *more = 0;
    if (l->nodes->lost)
        return oari_fail(OAR_E_PEER, "%s", l->nodes->why);
    if (l->nodes->note.state == AGENT_RUNS && l->stop_signal == 0 &&
        set_state(l->nodes, AGENT_WAITS) != OAR_OK)
        return fail_lost(l);
    l->result.exit_code = l->stop_signal != 0 ? 128 + l->stop_signal : 0;
    l->result.failed_rank = -1;
    status = next_round(l, more);
    return status == OAR_E_CLOSED || status == OAR_E_TIMEOUT ? fail_lost(l)
                                                             : status;
}

void launch_nodes_ended(launch *l, oar_status status)
{
    launch_nodes *n = l->nodes;

    if (l->over != NULL || l->stop_signal != 0)
        return; /* stopped by others: the next state is to wait, or to leave */
    n->note.code = l->result.exit_code;
    n->note.rank = l->result.failed_rank;
    if (status != OAR_OK)
        launch_say(l, "%s", oar_last_error_text());
    set_state(n, status == OAR_OK ? AGENT_DONE : AGENT_FAILED);
}

/* ---- leaving the job ----------------------------------------------------- */

/* Waits for the node server, which tells the other nodes if the job ends here.
 */
static void end_node_server(launch *l)
{
    launch_nodes *n = l->nodes;
    struct pollfd wait = { n->fd, POLLIN, 0 };
    unsigned char sig = (unsigned char)l->stop_signal;

    if (sig != 0 && write(n->fd, &sig, 1) != 1)
        sig = 0;
    if (n->store != NULL)
        poll(&wait, 1, (int)(3 * n->lease_ms));
    oari_fork_close(n->fd);
    while (waitpid(l->node_server, NULL, 0) < 0 && errno == EINTR)
        continue;
    l->node_server = 0;
}

void launch_nodes_close(launch *l)
{
    launch_nodes *n = l->nodes;

    if (n == NULL)
        return;
    if (n->store != NULL && n->key[0] != 0 && !n->lost)
        oar_store_delete(n->store, n->key);
    if (l->node_server > 0)
        end_node_server(l);
    oar_store_destroy(n->store);
    oari_free(n);
    l->nodes = NULL;
}
