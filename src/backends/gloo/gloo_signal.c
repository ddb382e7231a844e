/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_signal: Gloo writes to sockets whose other end may be gone, and does not
 * keep the system from sending SIGPIPE for that, which would end the process.
 * So no thread is in Gloo without having it blocked: the library's own have all
 * blocked (base/thread.h), and a thread that Gloo makes inherits that. */
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

/* One that came meanwhile is ours, unless it was blocked all along. */
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
