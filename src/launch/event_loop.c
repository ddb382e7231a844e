/* SPDX-License-Identifier: Apache-2.0 */
/* event_loop: one poll for signals, for what ranks write, and for
 * time that passes. */
#include "base/clock.h"
#include "launch/launch.h"

enum {
    LOOK_MS = 200,
    LINGER_MS = 1000,
    KILL_AGAIN_MS = 100,
    TIMED_OUT = 124 /* the exit code of timeout(1) */
};

static void wait_until(launch *l, int64_t when_ns)
{
    int count = 1;

    l->poll[0] = (struct pollfd){ l->signal_fd, POLLIN, 0 };
    count = launch_output_poll(l, count);
    poll(l->poll, (nfds_t)count, oari_deadline_left_ms(when_ns));
    launch_signals_handle(l);
}

static void check_deadlines(launch *l)
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
        l->killed = 1;
        l->kill_ns = oari_deadline(KILL_AGAIN_MS);
    }
    if (now >= l->look_ns) {
        l->look_ns = oari_deadline(l->opts.monitor_ms > 0 ? l->opts.monitor_ms
                                                          : LOOK_MS);
        launch_check_stall(l);
        launch_nodes_check(l);
    }
}

/* Passes on what the last ranks wrote. Does not wait for a pipe that an escaped
 * process keeps open without writing to it. */
static void drain_output(launch *l)
{
    int64_t linger_ns = oari_deadline(LINGER_MS);
    int before = l->stop_signal, state;

    while ((state = launch_output_move(l)) != LAUNCH_OUTPUT_DONE &&
           l->stop_signal == before) {
        if (state == LAUNCH_OUTPUT_BUSY)
            linger_ns = oari_deadline(LINGER_MS);
        if (oari_now_ns() > linger_ns)
            break;
        wait_until(l, linger_ns);
    }
    launch_output_end(l);
}

void launch_event_loop(launch *l)
{
    l->look_ns = oari_now_ns();
    while (l->left > 0 || l->due > 0) {
        int64_t next_ns = l->look_ns;

        if (l->settle_ns < next_ns)
            next_ns = l->settle_ns;
        if (l->kill_ns < next_ns)
            next_ns = l->kill_ns;
        if (l->deadline_ns < next_ns)
            next_ns = l->deadline_ns;
        wait_until(l, next_ns);
        launch_output_move(l);
        launch_ranks_reap(l);
        launch_terminal_check(l);
        launch_ranks_settle(l);
        launch_respawn_start(l);
        check_deadlines(l);
    }
    drain_output(l);
}
