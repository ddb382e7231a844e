/* SPDX-License-Identifier: Apache-2.0 */
/* launch/store_process.h: the store process: a helper process of the launcher
 * that serves the store of the ranks (on nodes other than the first it only
 * writes to that store), and that ends the ranks' processes if the launcher is
 * killed.
 */
#ifndef OARI_LAUNCH_STORE_PROCESS_H
#define OARI_LAUNCH_STORE_PROCESS_H

#include <sys/types.h>

#include <oarsong/status.h>

#include "net/sock.h"

typedef struct launch_store_process {
    pid_t pid; /* 0: none */
    int fd;    /* the process lives as long as this is open */
} launch_store_process;

/* What the process does. launch_store_process_start borrows the texts. */
typedef struct launch_store_task {
    const char
        *serve; /* address where it serves the store; NULL: it does not */
    const char *store;  /* else the address of the store; NULL: there is none */
    const char *secret; /* of the store; NULL: that of the environment */
} launch_store_task;

/* Starts the process. Gives the address of the store it serves; "": none. */
oar_status launch_store_process_start(launch_store_process *keeper,
                                      const launch_store_task *task,
                                      char served[OARI_SOCK_TEXT]);

/* Adds a process group that must not outlive the launcher. */
void launch_store_process_add(const launch_store_process *keeper, pid_t group);

/* Removes a group that has ended. Must be called before its leader is reaped:
 * after that the number may be another group's. */
void launch_store_process_forget(const launch_store_process *keeper,
                                 pid_t group);

/* Writes to the store that a rank has ended, for ranks that wait for it there.
 */
void launch_store_process_tell_end(const launch_store_process *keeper, int rank,
                                   int code);

/* Ends the process, and leaves the groups alone: the launcher has ended them.
 */
void launch_store_process_stop(launch_store_process *keeper);

/* ---- helper processes ---------------------------------------------------- */

/* What a helper process sends when it is ready, or has failed. */
typedef struct launch_answer {
    oar_error error;
    char text[OARI_SOCK_TEXT];
} launch_answer;

/* Forks a helper process, which runs body(arg, fd) with its end of a socket
 * pair in a process group of its own, and waits for its answer. */
oar_status launch_helper_start(int (*body)(void *arg, int fd), void *arg,
                               pid_t *pid, int *fd, launch_answer *answer);
/* Sends the answer. Called in the helper process. */
void launch_answer_send(int fd, oar_status status, const char *text);

#endif
