/* SPDX-License-Identifier: Apache-2.0 */
/* file: see file.h. The signal comes to the thread whose call failed: so it is
 * held there for the time of the call, and taken away. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

typedef struct quiet {
    sigset_t signal, before;
    int pending; /* it was there already, and is somebody else's */
} quiet;

static void begin_quiet(quiet *q)
{
    sigset_t pending;

    sigemptyset(&q->signal);
    sigaddset(&q->signal, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &q->signal, &q->before);
    q->pending =
        sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
}

static void end_quiet(const quiet *q)
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
    quiet q;
    int result;

    begin_quiet(&q);
    result = ftruncate(fd, bytes);
    end_quiet(&q);
    return result;
}

int oari_file_reserve(int fd, off_t at, off_t bytes)
{
    quiet q;
    int result;

    begin_quiet(&q);
    result = posix_fallocate(fd, at, bytes);
    end_quiet(&q);
    return result;
}

ssize_t oari_file_write(int fd, const void *data, size_t bytes)
{
    quiet q;
    ssize_t result;

    begin_quiet(&q);
    result = write(fd, data, bytes);
    end_quiet(&q);
    return result;
}

const char *oari_file_limit(void)
{
    return errno == EFBIG ? " (ulimit -f)" : "";
}
