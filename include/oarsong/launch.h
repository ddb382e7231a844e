/* SPDX-License-Identifier: Apache-2.0 */
/* launch.h: start ranks as processes on this machine and see them through. */
#ifndef OARSONG_LAUNCH_H
#define OARSONG_LAUNCH_H

#include <oarsong/group.h>

OAR_BEGIN_DECLS

typedef struct oar_launch_opts {
    size_t size;
    int64_t timeout_ms; /* for the whole run; 0: none */
    int64_t grace_ms;   /* between SIGTERM and SIGKILL for the ranks that are
                           left when one fails; 0: 2 s, below 0: no SIGTERM */
    const int *hosts;   /* borrows a number for each rank: those with different
                           ones take each other for ranks of different hosts
                           (OARSONG_HOST_ID is set); NULL: all are on one */
} oar_launch_opts;
OAR_OPTS_INIT(oar_launch_opts);

/* How a run ended. */
typedef struct oar_launch_result {
    size_t size;
    int failed_rank; /* the first that failed; -1: none */
    int exit_code;   /* its exit code, or 128 + the signal that killed it */
} oar_launch_result;
OAR_OPTS_INIT(oar_launch_result);

/* Starts `ranks` processes of program argv (argv[0] is searched in PATH) with
 * OARSONG_RANK, OARSONG_SIZE and OARSONG_STORE set, waits for all of them, and
 * kills the rest when one fails. Signals SIGINT and SIGTERM that reach this
 * process meanwhile are passed on. OAR_OK when every rank exited with 0;
 * OAR_E_PEER when one did not, with *result saying which and how. */
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
