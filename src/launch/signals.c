/* SPDX-License-Identifier: Apache-2.0 */
/* signals: while the launcher runs, signals are blocked and read from a
 * descriptor, so no handler is installed. */
#include <errno.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/fork.h"
#include "launch/launch.h"

/* Signals that this process ignores (nohup) stay ignored. */
static void add_signal(launch *l, int sig)
{
    struct sigaction now;

    if (sigaction(sig, NULL, &now) == 0 && now.sa_handler != SIG_IGN)
        sigaddset(&l->signals, sig);
}

void launch_signals_block(launch *l)
{
    static const int signals[] = { SIGINT,  SIGTERM, SIGHUP, SIGQUIT,
                                   SIGTSTP, SIGCONT, SIGPIPE };

    sigemptyset(&l->signals);
    sigaddset(&l->signals, SIGCHLD);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        add_signal(l, signals[i]);
    if (l->terminal)
        add_signal(l, SIGTTOU);
    sigprocmask(SIG_BLOCK, &l->signals, &l->before);
    l->signal_fd =
        oari_fork_guard(signalfd(-1, &l->signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

/* A signal that arrived too late for the launcher must not end its caller. */
void launch_signals_restore(launch *l)
{
    struct timespec none = { 0, 0 };

    while (sigtimedwait(&l->signals, NULL, &none) > 0 || errno == EINTR)
        continue;
    oari_fork_close(l->signal_fd);
    l->signal_fd = -1;
    sigprocmask(SIG_SETMASK, &l->before, NULL);
}

void launch_signals_handle(launch *l)
{
    struct signalfd_siginfo info;

    while (read(l->signal_fd, &info, sizeof info) == sizeof info)
        switch ((int)info.ssi_signo) {
        case SIGCHLD:
        case SIGTTOU:
        case SIGPIPE: break;
        case SIGTSTP: /* Ctrl-Z stops the ranks as it would stop a program */
            launch_ranks_signal(l, SIGTSTP);
            raise(SIGSTOP);
            launch_ranks_signal(l, SIGCONT);
            break;
        case SIGCONT:
            launch_terminal_lend(l);
            launch_ranks_signal(l, SIGCONT);
            break;
        default: launch_ranks_stop(l, (int)info.ssi_signo);
        }
}

void launch_signals_wait(launch *l, int64_t ms)
{
    struct pollfd ready = { l->signal_fd, POLLIN, 0 };

    poll(&ready, 1, (int)ms);
    launch_signals_handle(l);
}
