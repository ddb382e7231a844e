/* SPDX-License-Identifier: Apache-2.0 */
/* launch/launch.h: one call of oar_launch, in parts: what it was asked for, the
 * epoch it is in, its ranks, their output, the process beside it.
 *
 * The launcher never has threads, so it may fork at any time; what needs one
 * (serving a store) is a process of its own. All waiting is one poll. */
#ifndef OARI_LAUNCH_LAUNCH_H
#define OARI_LAUNCH_LAUNCH_H

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <oarsong/launch.h>

#include "launch/keeper.h"
#include "launch/logs.h"
#include "launch/stream.h"

enum { LAUNCH_ID_ROOM = 64, LAUNCH_SECRET_ROOM = 65, LAUNCH_REASON_ROOM = 512 };

/* One membership: who is in the job, and where its ranks meet. */
typedef struct launch_epoch {
    int number, restarts; /* restarts: those after failures */
    int node, nodes;
    int first, world; /* the first rank of this node, ranks of all */
    char store[OARI_SOCK_TEXT];
    char secret[LAUNCH_SECRET_ROOM]; /* hexadecimal */
    char master[OARI_SOCK_TEXT];
    int master_port;
} launch_epoch;

typedef struct launch_rank {
    pid_t pid; /* 0: not running */
    int code;  /* how it ended; -1: it has not */
    int late;  /* it ended when it was told to */
    int box;   /* of its recorder; -1: none */
    launch_stream stream[2];
} launch_rank;

typedef struct launch_nodes launch_nodes;

typedef struct launch {
    oar_launch_opts opts;
    int ranks;         /* of this node */
    char *const *argv; /* what a rank does: a program, or a function */
    oar_rank_fn fn;
    void *arg;
    const oar_group_opts *group_opts;
    char run_id[LAUNCH_ID_ROOM];
    launch_logs logs;
    struct rlimit files;                /* descriptors a rank may have */
    cpu_set_t *bound;                   /* by local rank; NULL: not bound */
    char (*reason)[LAUNCH_REASON_ROOM]; /* of functions, shared with ranks */

    launch_epoch epoch;
    launch_keeper keeper;
    launch_nodes *nodes; /* NULL: there is only this one */
    launch_rank *rank;
    int left;         /* ranks that run */
    int first_failed; /* of this epoch, by local rank; -1: none */
    int culprit; /* the rank of the world that the report names; -1: none */
    int64_t settle_ns; /* when those that are left are told to end */
    int64_t kill_ns;   /* when those that are left are killed */
    const char *over;  /* why the epoch ends though no rank failed; NULL: not */

    launch_sink sink[2]; /* standard error's may be unused: it is the first */
    launch_sink *out, *err;
    struct pollfd *poll;
    int turn; /* whose output is looked at first */

    int terminal; /* the only rank shares our terminal, */
    int lent;     /* and its group is in the foreground there */

    sigset_t watched, before;
    int signal_fd;
    int told; /* the signal that ends all; 0: none */
    int64_t deadline_ns, look_ns;
    int64_t stall_look_ns;
    uint64_t stall_seen; /* the operation that was last reported */
    oar_launch_result result;
} launch;

/* ---- ranks.c: start, reap, end ------------------------------------------- */

/* "ended with code 7", "was killed by SIGSEGV (code 139)": 128 and the signal
 * is what shells make of it, too. */
typedef struct launch_end_text {
    char text[48];
} launch_end_text;
launch_end_text launch_how_ended(int code);

oar_status launch_ranks_start(launch *l);
void launch_ranks_reap(launch *l);
/* After a failure: ends the others when they had their moment. */
void launch_ranks_settle(launch *l);
void launch_ranks_signal(const launch *l, int sig);
/* The signal, and after the grace time SIGKILL, unless that has begun. */
void launch_ranks_end(launch *l, int sig);
/* Processes that escaped their group, where all children are ours. */
void launch_ranks_end_orphans(const launch *l);

/* ---- environment.c ------------------------------------------------------- */

/* In the rank: all that it is told. */
void launch_environment_set(const launch *l, int local);
/* A port that was free a moment ago; 0: none. */
int launch_free_port(void);

/* ---- output.c ------------------------------------------------------------ */

oar_status launch_output_open(launch *l); /* where lines go */
void launch_output_close(launch *l);
oar_status launch_output_rank(launch *l, int local); /* before its fork */
void launch_output_in_rank(const launch *l, int local);
void launch_output_started(launch *l, int local); /* after it, here */
int launch_output_poll(launch *l, int count);     /* adds what to poll for */
/* After the poll: nothing more will come; something may; something does. */
enum { LAUNCH_OUTPUT_DONE, LAUNCH_OUTPUT_SILENT, LAUNCH_OUTPUT_BUSY };
int launch_output_move(launch *l);
/* No more is read from the ranks; what was read goes out. */
void launch_output_end(launch *l);
/* A line of the launcher's own on standard error, if it is to narrate. */
void launch_say(launch *l, const char *format, ...) OAR_PRINTF(2, 3);
/* The same for a text of several lines. */
void launch_say_text(launch *l, const char *text);

/* ---- terminal.c ---------------------------------------------------------- */

/* Whether there is one to lend. */
void launch_terminal_find(launch *l);
/* In the rank, which leads its group by now. */
void launch_terminal_in_rank(const launch *l, pid_t launcher);
/* If this process has it. */
void launch_terminal_lend(launch *l);
/* Takes it back when the rank has ended, and says how (as waitpid does). */
void launch_terminal_ended(launch *l, int how);
/* If the rank was stopped by the terminal: stops with it. */
void launch_terminal_look(launch *l);

/* ---- watch.c ------------------------------------------------------------- */

void launch_signals_block(launch *l);
void launch_signals_restore(launch *l);
/* Until every rank has ended and all it wrote is passed on. */
void launch_watch(launch *l);
/* Ends the ranks, as the signal asks for; a second one kills them. */
void launch_told_to_end(launch *l, int sig);
/* OAR_E_ABORTED, with the signal's name. */
oar_status launch_fail_told(const launch *l);
/* Waits up to so long, only for signals. */
void launch_pause(launch *l, int64_t ms);

/* ---- restart.c ----------------------------------------------------------- */

/* Makes the secret and serves the store of an epoch, at an address of this
 * host. */
oar_status launch_epoch_serve(launch *l, const char *host);

/* Epochs, one after the other, until the job has ended. */
oar_status launch_epochs_run(launch *l);

/* ---- report.c: recorders ------------------------------------------------- */

void launch_boxes_make(launch *l);
void launch_boxes_drop(launch *l);
void launch_boxes_in_rank(const launch *l, int local);
void launch_report(launch *l, const char *why);
void launch_look_for_stall(launch *l);

/* ---- bind.c -------------------------------------------------------------- */

/* Cores for each of the ranks; *sets is NULL for "none" (oari_free it). */
oar_status launch_bind_plan(const char *how, int ranks, cpu_set_t **sets);

/* ---- nodes.c ------------------------------------------------------------- */

oar_status launch_nodes_open(launch *l);
/* Waits for a round that this node is in. *more 0: the job has ended, and the
 * result says how. */
oar_status launch_nodes_join(launch *l, int *more);
/* While ranks run, now and then. */
void launch_nodes_look(launch *l);
/* The ranks of this node have ended, well or not. */
void launch_nodes_ended(launch *l, oar_status status);
void launch_nodes_close(launch *l);
/* Whether the process is one of its own. */
int launch_nodes_owns(const launch *l, pid_t pid);

#endif
