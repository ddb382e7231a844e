/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_signal: Gloo writes to sockets whose other end may be gone, and does not
 * keep the system from sending SIGPIPE for that, which would end the process.
 * So no thread is in Gloo without having it blocked. A thread that Gloo makes
 * inherits that. Threads of ours leave all signals to the user's. */
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

int gloo_thread(pthread_t *thread, void *(*body)(void *), void *arg)
{
    static const int kept[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
    sigset_t all, before;
    int failed;

    sigfillset(&all);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        sigdelset(&all, kept[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(thread, NULL, body, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}
