/* SPDX-License-Identifier: Apache-2.0 */
/* file: SIGXFSZ goes to the thread whose call failed. So the thread blocks it
 * during the call and then discards it. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

typedef struct blocked_signal {
    sigset_t signal, before;
    int pending; /* before the call: it belongs to the program */
} blocked_signal;

static void block_sigxfsz(blocked_signal *q)
{
    sigset_t pending;

    sigemptyset(&q->signal);
    sigaddset(&q->signal, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &q->signal, &q->before);
    q->pending =
        sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
}

static void unblock_sigxfsz(const blocked_signal *q)
{
    static const struct timespec at_once = { 0, 0 };
    int saved = errno;

    if (!q->pending)
        sigtimedwait(&q->signal, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &q->before, NULL);
    errno = saved;
}

int oari_file_resize(int fd, off_t bytes)
{
    blocked_signal q;
    int result;

    block_sigxfsz(&q);
    result = ftruncate(fd, bytes);
    unblock_sigxfsz(&q);
    return result;
}

int oari_file_reserve(int fd, off_t at, off_t bytes)
{
    blocked_signal q;
    int result;

    block_sigxfsz(&q);
    result = posix_fallocate(fd, at, bytes);
    unblock_sigxfsz(&q);
    return result;
}

void oari_file_preallocate(int fd, off_t bytes)
{
    blocked_signal q;

    block_sigxfsz(&q);
    (void)fallocate(fd, 0, 0, bytes);
    unblock_sigxfsz(&q);
}

ssize_t oari_file_write(int fd, const void *data, size_t bytes)
{
    blocked_signal q;
    ssize_t result;

    block_sigxfsz(&q);
    result = write(fd, data, bytes);
    unblock_sigxfsz(&q);
    return result;
}

ssize_t oari_file_write_at(int fd, const void *data, size_t bytes, off_t at)
{
    blocked_signal q;
    ssize_t result;

    block_sigxfsz(&q);
    result = pwrite(fd, data, bytes, at);
    unblock_sigxfsz(&q);
    return result;
}

const char *oari_file_limit(void)
{
    return errno == EFBIG ? " (ulimit -f)" : "";
}
