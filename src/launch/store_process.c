/* SPDX-License-Identifier: Apache-2.0 */
/* store_process: it reads commands of the launcher until its socket closes.
 * COMMAND_LEAVE says that it must leave the process groups alone; without it
 * the launcher has been killed. */
#include "launch/store_process.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/store.h>

#include "base/fork.h"
#include "base/status.h"
#include "link/rendezvous.h"

enum { GROUPS_MAX = 4096, REACH_MS = 500 };

/* ---- helper processes ---------------------------------------------------- */

void launch_answer_send(int fd, oar_status status, const char *text)
{
    launch_answer answer = { 0 };

    if (status != OAR_OK)
        answer.error = *oar_last_error();
    snprintf(answer.text, sizeof answer.text, "%s", text);
    send(fd, &answer, sizeof answer, MSG_NOSIGNAL);
}

oar_status launch_helper_start(int (*body)(void *arg, int fd), void *arg,
                               pid_t *pid, int *fd, launch_answer *answer)
{
    int ends[2];
    ssize_t got = 0;
    oar_status status = OAR_OK;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return oari_fail(OAR_E_SYSTEM, "make a socket pair");
    oari_fork_guard(ends[0]); /* no child has it, or closing it says nothing */
    fflush(NULL);
    if ((*pid = fork()) == 0) {
        setpgid(0, 0); /* the terminal's signals are not for it */
        _exit(body(arg, ends[1]));
    }
    if (*pid < 0)
        status = oari_fail(OAR_E_SYSTEM, "fork");
    close(ends[1]);
    while (*pid > 0 &&
           (got = recv(ends[0], answer, sizeof *answer, MSG_WAITALL)) < 0 &&
           errno == EINTR)
        continue;
    if (*pid > 0 && got != sizeof *answer)
        status = oari_fail(OAR_E_SYSTEM, "start a helper process");
    else if (*pid > 0 && answer->error.status != OAR_OK)
        status = oari_fail_with(&answer->error);
    if (status == OAR_OK) {
        *fd = ends[0];
        return OAR_OK;
    }
    oari_fork_close(ends[0]);
    if (*pid > 0)
        waitpid(*pid, NULL, 0);
    *pid = 0;
    return status;
}

/* ---- the store process --------------------------------------------------- */

typedef enum command_kind {
    COMMAND_ADD,    /* this process group must not outlive the launcher */
    COMMAND_FORGET, /* it has ended, and its number may be given to others */
    COMMAND_ENDED,  /* this rank has ended, with this code */
    COMMAND_LEAVE
} command_kind;

typedef struct command {
    int32_t kind, number, code;
} command;

typedef struct store_process {
    const launch_store_task *task;
    oar_store_server *server;
    const char *address; /* of the store; NULL: there is none any more */
    oar_store *store;    /* NULL: not needed yet */
    int32_t group[GROUPS_MAX];
    int groups;
} store_process;

/* If the store cannot be reached, ranks that wait for this one time out; most
 * likely the job is over. The launcher must not wait for this long. */
static oar_status write_end(store_process *p, int rank, int code)
{
    char key[OARI_ENDED_KEY], text[16];

    if (p->store == NULL)
        OARI_TRY(oar_store_create_tcp(p->address, REACH_MS, &p->store));
    oari_ended_key(rank, key);
    snprintf(text, sizeof text, "%d", code);
    return oar_store_set(p->store, key, text, strlen(text));
}

static void read_commands(store_process *p, int fd)
{
    command c;
    ssize_t got;

    while ((got = recv(fd, &c, sizeof c, MSG_WAITALL)) != 0) {
        if (got < 0 && errno != EINTR)
            break;
        if (got != sizeof c)
            continue;
        if (c.kind == COMMAND_LEAVE)
            return;
        if (c.kind == COMMAND_ADD && c.number > 1 && p->groups < GROUPS_MAX)
            p->group[p->groups++] = c.number;
        for (int i = 0; c.kind == COMMAND_FORGET && i < p->groups; i++)
            if (p->group[i] == c.number)
                p->group[i--] = p->group[--p->groups];
        if (c.kind == COMMAND_ENDED && p->address != NULL &&
            write_end(p, c.number, c.code) != OAR_OK)
            p->address = NULL;
    }
    for (int i = 0; i < p->groups; i++)
        kill(-p->group[i], SIGKILL);
}

static int run_store_process(void *arg, int fd)
{
    static store_process p;
    oar_status status = OAR_OK;

    p.task = arg;
    if (p.task->secret != NULL)
        setenv("OARSONG_SECRET", p.task->secret, 1);
    if (p.task->serve != NULL)
        status = oar_store_serve(p.task->serve, &p.server);
    p.address =
        p.server != NULL ? oar_store_server_address(p.server) : p.task->store;
    launch_answer_send(fd, status, oar_store_server_address(p.server));
    if (status == OAR_OK)
        read_commands(&p, fd);
    oar_store_destroy(p.store);
    oar_store_server_destroy(p.server);
    return 0;
}

oar_status launch_store_process_start(launch_store_process *keeper,
                                      const launch_store_task *task,
                                      char served[OARI_SOCK_TEXT])
{
    launch_store_task copy = *task;
    launch_answer answer;

    OARI_TRY(launch_helper_start(run_store_process, &copy, &keeper->pid,
                                 &keeper->fd, &answer));
    memcpy(served, answer.text, OARI_SOCK_TEXT);
    return OAR_OK;
}

static void send_command(const launch_store_process *keeper, command_kind kind,
                         int number, int code)
{
    command c = { (int32_t)kind, number, code };

    if (keeper->pid > 0)
        send(keeper->fd, &c, sizeof c, MSG_NOSIGNAL);
}

void launch_store_process_add(const launch_store_process *keeper, pid_t group)
{
    send_command(keeper, COMMAND_ADD, (int)group, 0);
}

void launch_store_process_forget(const launch_store_process *keeper,
                                 pid_t group)
{
    send_command(keeper, COMMAND_FORGET, (int)group, 0);
}

void launch_store_process_tell_end(const launch_store_process *keeper, int rank,
                                   int code)
{
    send_command(keeper, COMMAND_ENDED, rank, code);
}

void launch_store_process_stop(launch_store_process *keeper)
{
    if (keeper->pid <= 0)
        return;
    send_command(keeper, COMMAND_LEAVE, 0, 0);
    oari_fork_close(keeper->fd);
    while (waitpid(keeper->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    *keeper = (launch_store_process){ 0 };
}
