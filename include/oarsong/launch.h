/* SPDX-License-Identifier: Apache-2.0 */
/* launch.h: start ranks as processes and see them through. docs/launcher.md
 * has the same from the side of a user of `oarsong run`. */
#ifndef OARSONG_LAUNCH_H
#define OARSONG_LAUNCH_H

#include <oarsong/group.h>

OAR_BEGIN_DECLS

/* As many ranks as there are cores for this process, or as the hostfile says.
 */
enum { OAR_LAUNCH_AUTO = -1 };

/* Texts are borrowed for the call; NULL leaves the default. */
typedef struct oar_launch_opts {
    size_t size;
    int64_t timeout_ms; /* for the whole run; 0: none */
    int64_t grace_ms;   /* between SIGTERM and SIGKILL for the ranks that are
                           left when one fails; 0: 2 s, below 0: no SIGTERM */
    const int *hosts;   /* borrows a number for each rank: those with different
                           ones take each other for ranks of different hosts
                           (OARSONG_HOST_ID is set); NULL: all are on one */

    /* What the ranks write. */
    int lines;   /* 0: they write where this process does. Else this process
                    passes on what they write, in whole lines, and only the
                    first rank has its standard input (none has, if that is a
                    terminal) */
    int tags;    /* each line begins with "[rank] ", in colour on a terminal */
    int narrate; /* says on standard error what happens: restarts, who left, and
                    an autopsy when a rank fails or all are stalled */
    const char *log_dir;   /* files LOG_DIR/RUN_ID/attempt_N/RANK/stdout.log and
                              stderr.log, and .../attempt_N/recorder for
                              `oarsong autopsy` */
    const char *redirects; /* what goes to a file only: "0" nothing, "1"
                              standard output, "2" standard error, "3" both, or
                              by local rank: "0:1,2:3" */
    const char *tee;       /* the same: what goes to a file as well. With
                              log_dir and neither of them: all */
    const char *show_ranks; /* only what these local ranks write is passed on:
                               "0,3" */

    /* What the ranks are told and given. */
    const char *run_id;     /* default: a random one */
    const char *role;       /* ROLE_NAME; default: "default" */
    const char *const *env; /* "NAME=VALUE" and so on, ended by NULL */
    const char *bind;       /* cores for each rank: none, core, socket, numa (or
                               node), core-complex (what shares a cache), or
                               exclusive (the cores shared out) */
    const char *hostfile;   /* with OAR_LAUNCH_AUTO: the slots of this host */
    const char
        *master_addr; /* MASTER_ADDR and MASTER_PORT, for programs that */
    int master_port;  /* meet there; default: loopback, a free port */

    /* When something is wrong. */
    int max_restarts;   /* so often all ranks are started again when one fails,
                           in a new epoch (OARSONG_EPOCH) */
    int keep_going;     /* a rank that fails does not end the others: they may
                           shrink their group, or serve on. Without restarts */
    int64_t stall_ms;   /* an operation that waits longer for a rank is
                           reported; 0: 30 s, below 0: never */
    int64_t monitor_ms; /* how often stalls and nodes are looked at; 0: 200 ms
                         */
    int sole; /* this process has no other children: what its ranks leave
                 running is ended, in whichever process group it hides */

    /* Several nodes: one call on each, with the same of these. */
    int min_nodes, max_nodes; /* 0: one */
    int node_order;           /* nodes are numbered in this order, those with
                                 the same by arrival */
    const char *endpoint;     /* "host:port" where they meet; who can listen
                                 there serves */
    int64_t join_ms;          /* for enough nodes to come; 0: 600 s */
    int64_t last_call_ms;     /* for more, once enough have come; 0: 5 s */
    int64_t lease_ms; /* a node that is silent for longer is gone; 0: 5 s */

    int max_respawns; /* so often each rank that fails is started again by
                         itself, in the same epoch (OARSONG_RESPAWN), while the
                         others go on as with keep_going. Without restarts */
} oar_launch_opts;
OAR_OPTS_INIT(oar_launch_opts);

/* How a run ended. */
typedef struct oar_launch_result {
    size_t size;
    int failed_rank; /* the first that failed, or the one that the report
                        of the ranks' records names; -1: none */
    int exit_code;   /* its exit code, or 128 + the signal that killed it; also
                        when the others went on and ended well. A process in
                        whose place its rank was started again does not count */
    int epoch;       /* the last one; they begin with 0 */
} oar_launch_result;
OAR_OPTS_INIT(oar_launch_result);

/* Starts `ranks` processes of program argv (argv[0] is searched in PATH) with
 * OARSONG_RANK, OARSONG_SIZE, OARSONG_STORE and the names of torchrun set,
 * waits for all of them, and ends the rest when one fails (but keep_going).
 * Signals SIGINT, SIGTERM, SIGHUP and SIGQUIT that reach this process meanwhile
 * are passed on, unless it ignores them; a second one kills. OAR_OK when every
 * rank exited with 0, if need be as the last of its respawns; OAR_E_PEER when
 * one did not, with *result saying which and how. If this process is killed the
 * ranks and what they started end too. */
OAR_API oar_status oar_launch(int ranks, char *const *argv,
                              const oar_launch_opts *opts,
                              oar_launch_result *result);

/* The same, but each rank is a fork of this process that runs fn with a group
 * made from the environment above, and exits with 0 if it returned OAR_OK. Call
 * it before this process has threads or groups of its own. */
OAR_API oar_status oar_launch_fn(int ranks, oar_rank_fn fn, void *arg,
                                 const oar_group_opts *group_opts,
                                 const oar_launch_opts *opts,
                                 oar_launch_result *result);

OAR_END_DECLS

#endif
