/* SPDX-License-Identifier: Apache-2.0 */
/* launch/registrar.h: who is in the job, when its launchers run on several
 * nodes: agents, each with a process of `oarsong run`.
 *
 * The registrar is a process beside the agent that could listen at the
 * endpoint. It serves a store there, and it alone decides: agents write what
 * they are and do under a key each, again and again (that is their lease), and
 * read two keys of the registrar's.
 *
 *   agent/ID   "BEAT STATE ROUND RANKS ORDER CODE RANK HOST"
 *   round      "NUMBER RESTARTS NODES ID:RANKS ID:RANKS ...", by node
 *   word       "none", "over ROUND TEXT" or "end CODE RANK TEXT"
 *   store/N    of the round's first node: "STORE SECRET HOST PORT", for ranks
 */
#ifndef OARI_LAUNCH_REGISTRAR_H
#define OARI_LAUNCH_REGISTRAR_H

#include <stdint.h>
#include <sys/types.h>

#include <oarsong/launch.h>

enum {
    AGENT_ID_ROOM = 17,
    AGENT_HOST_ROOM = 128,
    AGENT_TEXT_ROOM = 512, /* of what an agent writes */
    REGISTRAR_PREFIX_ROOM = 96
};

typedef enum agent_state {
    AGENT_WAITS = 0, /* for a round after its last */
    AGENT_RUNS,
    AGENT_DONE,  /* its ranks ended well */
    AGENT_FAILED /* one of them did not */
} agent_state;

typedef struct agent_note {
    long long beat; /* changes every time */
    int state, round, ranks, order;
    int code, rank; /* of a failure */
    char host[AGENT_HOST_ROOM];
} agent_note;

/* Every text in the store is checked as if anybody had written it. */
int agent_note_read(const char *text, agent_note *note);
void agent_note_write(const agent_note *note, char text[AGENT_TEXT_ROOM]);

/* The keys of one job. */
oar_status registrar_store(const char *address, int64_t timeout_ms,
                           const char *run_id, oar_store **store);

/* Starts one; fails where somebody else listens, or the address is not ours.
 * fd: it ends the job when it reads a signal's number there, and itself at once
 * when that closes. */
oar_status registrar_start(const oar_launch_opts *opts, const char *run_id,
                           pid_t *pid, int *fd);

#endif
