/* SPDX-License-Identifier: Apache-2.0 */
/* watch: one poll for signals, for what ranks write, and for time that passes.
 * Signals are blocked meanwhile and read from a descriptor, so no handler is
 * installed. */
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fork.h"
#include "base/status.h"
#include "launch/launch.h"

enum {
    LOOK_MS = 200,
    LINGER_MS = 1000,
    KILL_AGAIN_MS = 100,
    TIMED_OUT = 124 /* as timeout(1) says */
};

/* ---- signals ------------------------------------------------------------- */

/* Those that somebody has decided to ignore (nohup) we ignore too. */
static void watch_for(launch *l, int sig)
{
    struct sigaction now;

    if (sigaction(sig, NULL, &now) == 0 && now.sa_handler != SIG_IGN)
        sigaddset(&l->watched, sig);
}

void launch_signals_block(launch *l)
{
    static const int ending[] = { SIGINT,  SIGTERM, SIGHUP, SIGQUIT,
                                  SIGTSTP, SIGCONT, SIGPIPE };

    sigemptyset(&l->watched);
    sigaddset(&l->watched, SIGCHLD);
    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++)
        watch_for(l, ending[i]);
    if (l->terminal)
        watch_for(l, SIGTTOU);
    sigprocmask(SIG_BLOCK, &l->watched, &l->before);
    l->signal_fd =
        oari_fork_guard(signalfd(-1, &l->watched, SFD_CLOEXEC | SFD_NONBLOCK));
}

/* One that came too late for us is not to end the caller. */
void launch_signals_restore(launch *l)
{
    struct timespec none = { 0, 0 };

    while (sigtimedwait(&l->watched, NULL, &none) > 0 || errno == EINTR)
        continue;
    oari_fork_close(l->signal_fd);
    l->signal_fd = -1;
    sigprocmask(SIG_SETMASK, &l->before, NULL);
}

/* A second one means it. */
void launch_told_to_end(launch *l, int sig)
{
    if (l->kill_ns != OARI_NEVER) /* they were to end before */
        launch_ranks_signal(l, sig);
    if (l->told != 0)
        l->kill_ns = 0;
    l->told = sig;
    if (l->result.exit_code == 0)
        l->result.exit_code = 128 + sig;
    launch_ranks_end(l, sig);
}

oar_status launch_fail_told(const launch *l)
{
    return oari_fail(OAR_E_ABORTED, "ended by SIG%s", sigabbrev_np(l->told));
}

/* What Ctrl-Z does to a program, to all of them. */
static void be_stopped(launch *l)
{
    launch_ranks_signal(l, SIGTSTP);
    raise(SIGSTOP);
    launch_ranks_signal(l, SIGCONT);
}

static void take_signal(launch *l, int sig)
{
    switch (sig) {
    case SIGCHLD:
    case SIGTTOU:
    case SIGPIPE: break;
    case SIGTSTP: be_stopped(l); break;
    case SIGCONT:
        launch_terminal_lend(l);
        launch_ranks_signal(l, SIGCONT);
        break;
    default: launch_told_to_end(l, sig);
    }
}

static void take_signals(launch *l)
{
    struct signalfd_siginfo info;

    while (read(l->signal_fd, &info, sizeof info) == sizeof info)
        take_signal(l, (int)info.ssi_signo);
}

/* ---- time ---------------------------------------------------------------- */

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void see_what_time_it_is(launch *l)
{
    int64_t now = oari_now_ns();

    if (now >= l->deadline_ns) {
        l->deadline_ns = OARI_NEVER;
        if (l->result.exit_code == 0)
            l->result.exit_code = TIMED_OUT;
        launch_report(l, "the time is over");
        launch_ranks_end(l, SIGTERM);
    }
    if (now >= l->kill_ns && l->left > 0) {
        launch_ranks_signal(l, SIGKILL);
        l->kill_ns = oari_deadline(KILL_AGAIN_MS);
    }
    if (now >= l->look_ns) {
        l->look_ns = oari_deadline(l->opts.monitor_ms > 0 ? l->opts.monitor_ms
                                                          : LOOK_MS);
        launch_look_for_stall(l);
        launch_nodes_look(l);
    }
}

/* ---- the loop ------------------------------------------------------------ */

static void wait_until(launch *l, int64_t when_ns)
{
    int count = 1;

    l->poll[0] = (struct pollfd){ l->signal_fd, POLLIN, 0 };
    count = launch_output_poll(l, count);
    poll(l->poll, (nfds_t)count, oari_deadline_left_ms(when_ns));
    take_signals(l);
}

static int64_t next_time(const launch *l)
{
    return earlier(earlier(l->look_ns, l->settle_ns),
                   earlier(l->kill_ns, l->deadline_ns));
}

static void watch_ranks(launch *l)
{
    while (l->left > 0) {
        wait_until(l, next_time(l));
        launch_output_move(l);
        launch_ranks_reap(l);
        launch_terminal_look(l);
        launch_ranks_settle(l);
        see_what_time_it_is(l);
    }
}

/* What the last ones wrote. A pipe that somebody who got away keeps open and
 * does not write to is not waited for. */
static void watch_output(launch *l)
{
    int64_t linger_ns = oari_deadline(LINGER_MS);
    int before = l->told, state;

    while ((state = launch_output_move(l)) != LAUNCH_OUTPUT_DONE &&
           l->told == before) {
        if (state == LAUNCH_OUTPUT_BUSY)
            linger_ns = oari_deadline(LINGER_MS);
        if (oari_now_ns() > linger_ns)
            break;
        wait_until(l, linger_ns);
    }
    launch_output_end(l);
}

void launch_watch(launch *l)
{
    l->look_ns = oari_now_ns();
    watch_ranks(l);
    watch_output(l);
}

void launch_pause(launch *l, int64_t ms)
{
    struct pollfd ready = { l->signal_fd, POLLIN, 0 };

    poll(&ready, 1, (int)ms);
    take_signals(l);
}
