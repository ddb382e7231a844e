/* SPDX-License-Identifier: Apache-2.0 */
/* keeper: it reads words of the launcher until its socket closes. WORD_LEAVE
 * says that the process groups are to be left alone; without it the launcher
 * has been killed. */
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
#include "link/rendezvous.h"

enum { GROUPS_MAX = 4096, REACH_MS = 500 };

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

typedef enum word_kind {
    WORD_WATCH,  /* this process group is not to outlive the launcher */
    WORD_FORGET, /* it has ended, and its number may be given to others */
    WORD_ENDED,  /* this rank has, with this code */
    WORD_LEAVE
} word_kind;

typedef struct word {
    int32_t kind, number, code;
} word;

typedef struct keeper_state {
    const launch_keeper_task *task;
    oar_store_server *server;
    const char *address; /* of the store; NULL: there is none any more */
    oar_store *store;    /* NULL: not needed yet */
    int32_t group[GROUPS_MAX];
    int groups;
} keeper_state;

static void forget_group(keeper_state *k, int32_t which)
{
    for (int i = 0; i < k->groups; i++)
        if (k->group[i] == which)
            k->group[i--] = k->group[--k->groups];
}

/* If the store cannot be reached, those that wait for the rank time out; most
 * likely the job is over. The launcher must not wait for this long. */
static oar_status tell_end(keeper_state *k, int rank, int code)
{
    char key[OARI_ENDED_KEY], text[16];

    if (k->store == NULL)
        OARI_TRY(oar_store_create_tcp(k->address, REACH_MS, &k->store));
    oari_ended_key(rank, key);
    snprintf(text, sizeof text, "%d", code);
    return oar_store_set(k->store, key, text, strlen(text));
}

static void obey(keeper_state *k, const word *w)
{
    if (w->kind == WORD_WATCH && w->number > 1 && k->groups < GROUPS_MAX)
        k->group[k->groups++] = w->number;
    else if (w->kind == WORD_FORGET)
        forget_group(k, w->number);
    else if (w->kind == WORD_ENDED && k->address != NULL &&
             tell_end(k, w->number, w->code) != OAR_OK)
        k->address = NULL;
}

static void serve_launcher(keeper_state *k, int fd)
{
    word next;
    ssize_t got;

    while ((got = recv(fd, &next, sizeof next, MSG_WAITALL)) != 0) {
        if (got < 0 && errno != EINTR)
            break;
        if (got != sizeof next)
            continue;
        if (next.kind == WORD_LEAVE)
            return;
        obey(k, &next);
    }
    for (int i = 0; i < k->groups; i++)
        kill(-k->group[i], SIGKILL);
}

static int be_keeper(void *arg, int fd)
{
    static keeper_state k;
    oar_status status = OAR_OK;

    k.task = arg;
    if (k.task->secret != NULL)
        setenv("OARSONG_SECRET", k.task->secret, 1);
    if (k.task->serve != NULL)
        status = oar_store_serve(k.task->serve, &k.server);
    k.address =
        k.server != NULL ? oar_store_server_address(k.server) : k.task->store;
    launch_answer_send(fd, status, oar_store_server_address(k.server));
    if (status == OAR_OK)
        serve_launcher(&k, fd);
    oar_store_destroy(k.store);
    oar_store_server_destroy(k.server);
    return 0;
}

oar_status launch_keeper_start(launch_keeper *keeper,
                               const launch_keeper_task *task,
                               char served[OARI_SOCK_TEXT])
{
    launch_keeper_task copy = *task;
    launch_answer answer;

    OARI_TRY(
        launch_beside(be_keeper, &copy, &keeper->pid, &keeper->fd, &answer));
    memcpy(served, answer.text, OARI_SOCK_TEXT);
    return OAR_OK;
}

static void say(const launch_keeper *keeper, word_kind kind, int number,
                int code)
{
    word w = { (int32_t)kind, number, code };

    if (keeper->pid > 0)
        send(keeper->fd, &w, sizeof w, MSG_NOSIGNAL);
}

void launch_keeper_note(const launch_keeper *keeper, pid_t group)
{
    say(keeper, WORD_WATCH, (int)group, 0);
}

void launch_keeper_forget(const launch_keeper *keeper, pid_t group)
{
    say(keeper, WORD_FORGET, (int)group, 0);
}

void launch_keeper_tell_end(const launch_keeper *keeper, int rank, int code)
{
    say(keeper, WORD_ENDED, rank, code);
}

void launch_keeper_stop(launch_keeper *keeper)
{
    if (keeper->pid <= 0)
        return;
    say(keeper, WORD_LEAVE, 0, 0);
    oari_fork_close(keeper->fd);
    while (waitpid(keeper->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    *keeper = (launch_keeper){ 0 };
}
