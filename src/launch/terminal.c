/* SPDX-License-Identifier: Apache-2.0 */
/* terminal: a rank that runs alone has the launcher's own input. It leads a
 * process group, so on a terminal that group must be the one in the foreground,
 * or reading stops it (SIGTTIN). The launcher then does what a shell does: it
 * lends the terminal to the rank, takes it back when the rank stops or ends,
 * and stops when the rank does, so that the user's shell gets its turn.
 *
 * SIGTTOU is blocked meanwhile: a process in the background that does not block
 * it is stopped by tcsetpgrp. */
#include <sys/wait.h>
#include <unistd.h>

#include "launch/launch.h"

void launch_terminal_in_rank(const launch *l, pid_t launcher)
{
    if (l->terminal && tcgetpgrp(STDIN_FILENO) == getpgid(launcher))
        tcsetpgrp(STDIN_FILENO, getpid());
}

void launch_terminal_lend(launch *l)
{
    if (!l->terminal || l->rank[0].pid <= 0)
        return;
    if (tcgetpgrp(STDIN_FILENO) == getpgrp())
        tcsetpgrp(STDIN_FILENO, l->rank[0].pid);
    l->lent = tcgetpgrp(STDIN_FILENO) == l->rank[0].pid;
}

static void take_back_terminal(launch *l)
{
    if (l->lent)
        tcsetpgrp(STDIN_FILENO, getpgrp());
    l->lent = 0;
}

int launch_terminal_ended(launch *l, int how)
{
    int by_key = l->lent && WIFSIGNALED(how) &&
                 (WTERMSIG(how) == SIGINT || WTERMSIG(how) == SIGQUIT);

    take_back_terminal(l);
    return by_key ? WTERMSIG(how) : 0;
}

/* In the background the rank stays stopped until the user's shell sends
 * SIGCONT, which the launcher passes on. */
void launch_terminal_check(launch *l)
{
    siginfo_t info = { .si_pid = 0 };
    pid_t pid = l->rank[0].pid;
    sigset_t stop;

    if (!l->terminal || pid <= 0 ||
        waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOHANG) != 0 ||
        info.si_pid != pid || info.si_status == SIGSTOP)
        return;
    take_back_terminal(l);
    /* Stops this process and the rest of its group (a pipeline of the shell's),
     * as Ctrl-Z would have, until it is continued; where no shell could
     * continue it, this does nothing. */
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    kill(0, SIGTSTP); /* pending, because it is blocked */
    sigprocmask(SIG_UNBLOCK, &stop, NULL);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    launch_terminal_lend(l);
    if (l->lent && l->rank[0].pid > 0)
        kill(-l->rank[0].pid, SIGCONT);
}
