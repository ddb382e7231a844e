/* SPDX-License-Identifier: Apache-2.0 */
/* keeper: it reads numbers of process groups until its socket closes: n for one
 * that it has to watch over, -n when that one has ended and its number may be
 * given to others. A 0 says that all are to be left alone; without one the
 * launcher has been killed. */
#include "launch/keeper.h"

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

enum { GROUPS_MAX = 4096 };

/* ---- beside -------------------------------------------------------------- */

void launch_answer_send(int fd, oar_status status, const char *text)
{
    launch_answer answer = { 0 };

    if (status != OAR_OK)
        answer.error = *oar_last_error();
    snprintf(answer.text, sizeof answer.text, "%s", text);
    send(fd, &answer, sizeof answer, MSG_NOSIGNAL);
}

static oar_status read_answer(int fd, launch_answer *answer)
{
    ssize_t got;

    do
        got = recv(fd, answer, sizeof *answer, MSG_WAITALL);
    while (got < 0 && errno == EINTR);
    if (got != sizeof *answer)
        return oari_fail(OAR_E_SYSTEM, "start a process beside the launcher");
    return answer->error.status != OAR_OK ? oari_fail_with(&answer->error)
                                          : OAR_OK;
}

oar_status launch_beside(int (*be)(void *arg, int fd), void *arg, pid_t *pid,
                         int *fd, launch_answer *answer)
{
    int ends[2];
    oar_status status;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return oari_fail(OAR_E_SYSTEM, "make a socket pair");
    oari_fork_guard(ends[0]); /* ours alone, or its closing says nothing */
    fflush(NULL);
    if ((*pid = fork()) == 0) {
        setpgid(0, 0); /* the terminal's signals are not for it */
        _exit(be(arg, ends[1]));
    }
    close(ends[1]);
    status = *pid < 0 ? oari_fail(OAR_E_SYSTEM, "fork")
                      : read_answer(ends[0], answer);
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

/* ---- the keeper ---------------------------------------------------------- */

typedef struct task {
    const char *address, *secret;
} task;

static void end_groups(const int32_t *group, int groups)
{
    for (int i = 0; i < groups; i++)
        kill(-group[i], SIGKILL);
}

static int forget_group(int32_t *group, int groups, int32_t which)
{
    for (int i = 0; i < groups; i++)
        if (group[i] == which)
            group[i--] = group[--groups];
    return groups;
}

static void watch_over_groups(int fd)
{
    int32_t group[GROUPS_MAX], next;
    int groups = 0;
    ssize_t got;

    while ((got = recv(fd, &next, sizeof next, MSG_WAITALL)) != 0) {
        if (got < 0 && errno != EINTR)
            break;
        if (got != sizeof next)
            continue;
        if (next == 0)
            return;
        if (next < 0)
            groups = forget_group(group, groups, -next);
        else if (next > 1 && groups < GROUPS_MAX)
            group[groups++] = next;
    }
    end_groups(group, groups);
}

static int be_keeper(void *arg, int fd)
{
    const task *t = arg;
    oar_store_server *server = NULL;
    oar_status status = OAR_OK;

    if (t->secret != NULL)
        setenv("OARSONG_SECRET", t->secret, 1);
    if (t->address != NULL)
        status = oar_store_serve(t->address, &server);
    launch_answer_send(fd, status, oar_store_server_address(server));
    if (status == OAR_OK)
        watch_over_groups(fd);
    oar_store_server_destroy(server);
    return 0;
}

oar_status launch_keeper_start(launch_keeper *keeper, const char *address,
                               const char *secret, char served[OARI_SOCK_TEXT])
{
    task t = { address, secret };
    launch_answer answer;

    OARI_TRY(launch_beside(be_keeper, &t, &keeper->pid, &keeper->fd, &answer));
    memcpy(served, answer.text, OARI_SOCK_TEXT);
    return OAR_OK;
}

static void send_number(const launch_keeper *keeper, int32_t number)
{
    if (keeper->pid > 0)
        send(keeper->fd, &number, sizeof number, MSG_NOSIGNAL);
}

void launch_keeper_note(const launch_keeper *keeper, pid_t group)
{
    send_number(keeper, (int32_t)group);
}

void launch_keeper_forget(const launch_keeper *keeper, pid_t group)
{
    send_number(keeper, -(int32_t)group);
}

void launch_keeper_stop(launch_keeper *keeper)
{
    if (keeper->pid <= 0)
        return;
    send_number(keeper, 0);
    oari_fork_close(keeper->fd);
    while (waitpid(keeper->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    *keeper = (launch_keeper){ 0 };
}
