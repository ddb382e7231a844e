/* SPDX-License-Identifier: Apache-2.0 */
/* launch/keeper.h: a process beside the launcher that serves the store of the
 * ranks (or, on other nodes than the first, only writes to it), and that ends
 * what they started should the launcher be killed. */
#ifndef OARI_LAUNCH_KEEPER_H
#define OARI_LAUNCH_KEEPER_H

#include <sys/types.h>

#include <oarsong/status.h>

#include "net/sock.h"

typedef struct launch_keeper {
    pid_t pid; /* 0: none */
    int fd;    /* it lives as long as this is open */
} launch_keeper;

/* What it is to be. Texts are borrowed for launch_keeper_start. */
typedef struct launch_keeper_task {
    const char *serve;  /* it serves the store at this address; NULL: no */
    const char *store;  /* else where that is; NULL: there is none */
    const char *secret; /* of the store; NULL: that of the environment */
} launch_keeper_task;

/* served: where the store is that it serves; "" for none. */
oar_status launch_keeper_start(launch_keeper *keeper,
                               const launch_keeper_task *task,
                               char served[OARI_SOCK_TEXT]);

/* One more process group that is not to outlive the launcher. */
void launch_keeper_note(const launch_keeper *keeper, pid_t group);

/* That group has ended. Call it while its leader is not yet reaped: afterwards
 * the number may be another group's. */
void launch_keeper_forget(const launch_keeper *keeper, pid_t group);

/* A rank has ended: says so in the store, to those that wait for it there. */
void launch_keeper_tell_end(const launch_keeper *keeper, int rank, int code);

/* Ends it; the groups, which the launcher has ended, are left alone. */
void launch_keeper_stop(launch_keeper *keeper);

/* ---- processes beside the launcher --------------------------------------- */

/* What such a process says when it is ready, or cannot be. */
typedef struct launch_answer {
    oar_error error;
    char text[OARI_SOCK_TEXT];
} launch_answer;

/* Forks one that calls be(arg, fd) with its end of a socket pair, in a process
 * group of its own, and waits for its answer. */
oar_status launch_beside(int (*be)(void *arg, int fd), void *arg, pid_t *pid,
                         int *fd, launch_answer *answer);
/* In it. */
void launch_answer_send(int fd, oar_status status, const char *text);

#endif
