/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_signal: Gloo writes to sockets whose other end may be closed, without
 * suppressing SIGPIPE, which would end the process. So every thread has SIGPIPE
 * blocked while it is in Gloo: the library's own threads block all signals
 * (base/thread.h), and a thread that Gloo starts inherits that. */
#include <signal.h>
#include <time.h>

#include "backends/gloo/gloo.h"

void gloo_signal_block(sigset_t *before)
{
    sigset_t pipe;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, before);
}

/* Discards a SIGPIPE that came meanwhile, unless the caller had it blocked. */
void gloo_signal_restore(const sigset_t *before)
{
    const struct timespec now = { 0, 0 };
    sigset_t pipe;

    if (sigismember(before, SIGPIPE) == 1)
        return;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigtimedwait(&pipe, NULL, &now);
    pthread_sigmask(SIG_SETMASK, before, NULL);
}
