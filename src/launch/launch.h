/* SPDX-License-Identifier: Apache-2.0 */
/* launch/launch.h: one call of oar_launch, in parts: its options, the epoch it
 * is in, its ranks, their output, the helper processes.
 *
 * The launcher never has threads, so it may fork at any time; what needs a
 * thread (serving a store) is a process of its own. All waiting is one poll. */
#ifndef OARI_LAUNCH_LAUNCH_H
#define OARI_LAUNCH_LAUNCH_H

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <oarsong/launch.h>

#include "launch/store_process.h"
#include "launch/logs.h"
#include "launch/output_stream.h"

enum { LAUNCH_ID_ROOM = 64, LAUNCH_SECRET_ROOM = 65, LAUNCH_REASON_ROOM = 512 };

/* One membership of the job: its nodes and ranks, and where the ranks meet. */
typedef struct launch_epoch {
    int number, restarts; /* restarts: epochs that began after a failure */
    int node, nodes;
    int first, world; /* the first rank of this node, ranks of all */
    char store[OARI_SOCK_TEXT];
    char secret[LAUNCH_SECRET_ROOM]; /* hexadecimal */
    char master[OARI_SOCK_TEXT];
    int master_port;
} launch_epoch;

typedef struct launch_rank {
    pid_t pid;    /* 0: not running */
    int code;     /* exit code, or 128 and the signal; -1: it has not ended */
    int late;     /* it ended after the launcher began to end the ranks, by what
                  that sent or after it */
    int box;      /* descriptor of its recorder file; -1: none */
    int respawns; /* so often it was started again in this epoch */
    int64_t due_ns; /* it is started again when all that it wrote has been
                       passed on, or nothing more has come by this time; 0: it
                       is not */
    launch_stream stream[2];
} launch_rank;

typedef struct launch_nodes launch_nodes;

typedef struct launch {
    oar_launch_opts opts;
    int ranks;         /* of this node */
    char *const *argv; /* what a rank runs: a program, or a function */
    oar_rank_fn fn;
    void *arg;
    const oar_group_opts *group_opts;
    char run_id[LAUNCH_ID_ROOM];
    launch_logs logs;
    struct rlimit files;                /* descriptors a rank may have */
    cpu_set_t *bound;                   /* by local rank; NULL: not bound */
    char (*reason)[LAUNCH_REASON_ROOM]; /* why functions failed, shared */

    launch_epoch epoch;
    launch_store_process keeper;
    launch_nodes *nodes; /* NULL: this is the only node */
    pid_t node_server;   /* a child of this process; 0: on another node */
    launch_rank *rank;
    int left;          /* ranks that run */
    int first_failed;  /* local rank, in this epoch; -1: none */
    int culprit;       /* rank that the report names; -1: none */
    int64_t settle_ns; /* when the remaining ranks get SIGTERM */
    int64_t kill_ns;   /* when the remaining ranks get SIGKILL */
    int killed;        /* they have got it */
    int due;           /* ranks that are going to be started again */
    int respawned;     /* reports after which ranks were, in this epoch */
    const char *over;  /* why the epoch ends though no rank of this node failed;
                          NULL: it does not */

    launch_writer sink[2]; /* the second is unused if both outputs are one */
    launch_writer *out, *err;
    struct pollfd *poll;
    int turn; /* the stream that is looked at first */

    int terminal; /* the only rank shares the launcher's terminal */
    int lent;     /* the rank's group is in the foreground there */

    sigset_t signals, before;
    int signal_fd;
    int stop_signal; /* that ends the job; 0: none */
    int64_t deadline_ns, look_ns;
    int64_t stall_look_ns;
    uint64_t stall_seen; /* hash of the operation that was last reported */
    oar_launch_result result;
} launch;

/* ---- ranks.c: start, reap, end ------------------------------------------- */

typedef struct launch_end_text {
    char text[48];
} launch_end_text;

/* Returns "ended with code 7", or "was killed by SIGSEGV (code 139)" for 128
 * and a signal, which is what shells make of that too. */
launch_end_text launch_how_ended(int code);

oar_status launch_ranks_start(launch *l);
oar_status launch_rank_start(launch *l, int local);
/* Reaps the ranks that have ended, and sees whether one has failed. */
void launch_ranks_reap(launch *l);
/* Reports a failure when the other ranks have had their moment, and ends them
 * unless they are to go on. */
void launch_ranks_settle(launch *l);
void launch_ranks_signal(const launch *l, int sig);
/* Sends the signal, and after the grace time SIGKILL, unless that has begun. */
void launch_ranks_end(launch *l, int sig);
/* Ends the ranks because the launcher got this signal; a second one kills them.
 */
void launch_ranks_stop(launch *l, int sig);
/* Fails with OAR_E_ABORTED and the name of that signal. */
oar_status launch_fail_stopped(const launch *l);
/* Kills processes that escaped their group, where all children of this process
 * are the launcher's. */
void launch_ranks_end_orphans(const launch *l);

/* ---- respawn.c ----------------------------------------------------------- */

/* Returns whether a rank has failed and may be started again. */
int launch_respawn_may(const launch *l, int local);
/* Plans to start the ranks again that have failed and may be. Their failures
 * have been reported. */
void launch_respawn_plan(launch *l);
/* Starts those of them whose output has been passed on. Starts none any more
 * when the launcher ends the ranks. */
void launch_respawn_start(launch *l);

/* ---- environment.c ------------------------------------------------------- */

/* Sets the rank's environment. Called in the rank. */
void launch_environment_set(const launch *l, int local);
/* Makes the secret and serves the store of an epoch, at an address of this
 * host. */
oar_status launch_epoch_serve(launch *l, const char *host);

/* ---- output.c ------------------------------------------------------------ */

/* Opens and closes what the ranks' lines go to. */
oar_status launch_output_open(launch *l);
void launch_output_close(launch *l);
/* Opens the streams of a rank, before its fork. */
oar_status launch_output_rank(launch *l, int local);
/* Makes the streams the rank's standard output and error. Called in the rank.
 */
void launch_output_in_rank(const launch *l, int local);
/* Closes the rank's ends of its streams here, after its fork. */
void launch_output_started(launch *l, int local);
/* Adds descriptors to l->poll, of which count are used; returns the new count.
 */
int launch_output_poll(launch *l, int count);
/* Reads and writes what the poll has found ready. Returns whether no more
 * output can come, some may come, or some does. */
enum { LAUNCH_OUTPUT_DONE, LAUNCH_OUTPUT_SILENT, LAUNCH_OUTPUT_BUSY };
int launch_output_move(launch *l);
/* Returns whether all that a rank that has ended wrote is passed on; after that
 * time also if a process that escaped could still write more. */
int launch_output_has_ended(launch *l, int local, int64_t until_ns);
/* Closes the streams of such a rank. */
void launch_output_end_rank(launch *l, int local);
/* Stops reading from the ranks, and writes what was read. */
void launch_output_end(launch *l);
/* Writes a line of the launcher's own to standard error, if it narrates. */
void launch_say(launch *l, const char *format, ...) OAR_PRINTF(2, 3);
/* Writes a text of several lines there. */
void launch_say_text(launch *l, const char *text);

/* ---- terminal.c ---------------------------------------------------------- */

/* Takes the terminal for the rank, which leads its group. Called in the rank.
 */
void launch_terminal_in_rank(const launch *l, pid_t launcher);
/* Lends the terminal to the rank, if this process has it. */
void launch_terminal_lend(launch *l);
/* Takes the terminal back when the rank has ended, as waitpid says how. Returns
 * the signal of a key that ended the rank and is meant for the whole run; 0:
 * none. */
int launch_terminal_ended(launch *l, int how);
/* Stops this process too, if the terminal has stopped the rank. */
void launch_terminal_check(launch *l);

/* ---- signals.c ----------------------------------------------------------- */

void launch_signals_block(launch *l);
void launch_signals_restore(launch *l);
/* Does what the signals that have arrived ask for. */
void launch_signals_handle(launch *l);
/* Waits up to this time for signals only, and handles them. */
void launch_signals_wait(launch *l, int64_t ms);

/* ---- event_loop.c -------------------------------------------------------- */

/* Runs the event loop until every rank has ended and all output is passed on.
 */
void launch_event_loop(launch *l);

/* ---- epochs.c ------------------------------------------------------------ */

/* Runs epochs, one after the other, until the job has ended. */
oar_status launch_epochs_run(launch *l);

/* ---- report.c: recorders ------------------------------------------------- */

/* Makes the recorder files of the ranks, and closes them. */
void launch_recorders_make(launch *l);
void launch_recorders_drop(launch *l);
/* Gives a rank an empty recorder file in place of the one it had. */
void launch_recorders_renew(launch *l, int local);
/* Keeps the rank's own recorder file only. Called in the rank. */
void launch_recorders_in_rank(const launch *l, int local);
/* Says why, and what the ranks did last. */
void launch_report(launch *l, const char *why);
/* Reports an operation that has waited for too long, once. */
void launch_check_stall(launch *l);

/* ---- bind.c -------------------------------------------------------------- */

/* Gives the cores of each rank; NULL for "none" (oari_free them). */
oar_status launch_bind_plan(const char *how, int ranks, cpu_set_t **sets);

/* ---- node_agent.c: the node agent ---------------------------------------- */

oar_status launch_nodes_open(launch *l);
/* Waits for a round that this node is in. *more 0: the job has ended, and the
 * result says how. */
oar_status launch_nodes_join(launch *l, int *more);
/* Renews this node's lease and reads whether the round is over. Called from
 * time to time while ranks run. */
void launch_nodes_check(launch *l);
/* Tells the other nodes that the ranks of this node have ended. */
void launch_nodes_ended(launch *l, oar_status status);
void launch_nodes_close(launch *l);

#endif
