/* SPDX-License-Identifier: Apache-2.0 */
/* launch/keeper.h: a process beside the launcher that serves the store of the
 * ranks, and that ends what they started should the launcher be killed. */
#ifndef OARI_LAUNCH_KEEPER_H
#define OARI_LAUNCH_KEEPER_H

#include <sys/types.h>

#include <oarsong/status.h>

#include "net/sock.h"

typedef struct launch_keeper {
    pid_t pid; /* 0: none */
    int fd;    /* it lives as long as this is open */
} launch_keeper;

/* address NULL: it serves nothing. secret: of the store, NULL for that of the
 * environment. served: where it is. */
oar_status launch_keeper_start(launch_keeper *keeper, const char *address,
                               const char *secret, char served[OARI_SOCK_TEXT]);

/* One more process group that is not to outlive the launcher. */
void launch_keeper_note(const launch_keeper *keeper, pid_t group);

/* That group has ended. Call it while its leader is not yet reaped: afterwards
 * the number may be another group's. */
void launch_keeper_forget(const launch_keeper *keeper, pid_t group);

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
