/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_signal: Gloo writes to sockets whose other end may be gone, and does not
 * keep the system from sending SIGPIPE for that, which would end the process.
 * So no thread is in Gloo without having it blocked. A thread that Gloo makes
 * inherits that. Threads of ours leave all signals to the user's. */
#include <signal.h>
#include <time.h>

#include "backends/gloo/gloo.h"

void gloo_signal_block(gloo_mask *mask)
{
    sigset_t pipe, pending;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    mask->pending = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe, &mask->before);
}

/* One that came meanwhile is ours. */
void gloo_signal_restore(const gloo_mask *mask)
{
    const struct timespec now = { 0, 0 };
    sigset_t pipe, pending;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    if (!mask->pending && sigismember(&pending, SIGPIPE) == 1)
        sigtimedwait(&pipe, NULL, &now);
    pthread_sigmask(SIG_SETMASK, &mask->before, NULL);
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
