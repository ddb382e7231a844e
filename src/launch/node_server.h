/* SPDX-License-Identifier: Apache-2.0 */
/* launch/node_server.h: the membership of a job whose launchers run on several
 * nodes: agents, each a process of `oarsong run`.
 *
 * The node server is a helper process of the agent that could listen at the
 * endpoint. It serves a store there, and it alone decides. Each agent writes
 * its state under a key of its own, again and again (that is its lease), and
 * reads two keys of the node server.
 *
 *   agent/ID   "BEAT STATE ROUND RANKS ORDER CODE RANK HOST"
 *   round      "NUMBER RESTARTS NODES ID:RANKS ID:RANKS ...", by node
 *   word       "none", "over ROUND TEXT" or "end CODE RANK TEXT"
 *   store/N    "STORE SECRET HOST PORT" for ranks, by the round's first node
 */
#ifndef OARI_LAUNCH_NODE_SERVER_H
#define OARI_LAUNCH_NODE_SERVER_H

#include <stdint.h>
#include <sys/types.h>

#include <oarsong/launch.h>

enum {
    AGENT_ID_ROOM = 17,
    AGENT_HOST_ROOM = 128,
    AGENT_TEXT_ROOM = 512, /* of an agent's record */
    NODE_SERVER_PREFIX_ROOM = 96
};

typedef enum agent_state {
    AGENT_WAITS = 0, /* for the next round */
    AGENT_RUNS,
    AGENT_DONE,  /* its ranks ended well */
    AGENT_FAILED /* one of its ranks failed */
} agent_state;

/* What an agent writes. */
typedef struct agent_record {
    long long beat; /* another number each time */
    int state, round, ranks, order;
    int code, rank; /* of a failure */
    char host[AGENT_HOST_ROOM];
} agent_record;

/* Reads a record, which may hold anything; returns whether it is one. */
int agent_record_read(const char *text, agent_record *note);
void agent_record_write(const agent_record *note, char text[AGENT_TEXT_ROOM]);

/* Gives the keys of one job in the store at this address. */
oar_status node_server_store(const char *address, int64_t timeout_ms,
                             const char *run_id, oar_store **store);

/* Starts a node server; fails where another process listens, or the address is
 * another host's. fd: a byte with a signal's number makes it end the job; when
 * this is closed it ends at once. */
oar_status node_server_start(const oar_launch_opts *opts, const char *run_id,
                             pid_t *pid, int *fd);

#endif
