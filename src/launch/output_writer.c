/* SPDX-License-Identifier: Apache-2.0 */
/* output_writer: other processes share the launcher's standard output, so it
 * must not be made non-blocking: a pipe or a terminal is opened a second time
 * instead. A socket is sent to without blocking. Anything else is written in
 * pieces, after a poll. */
#include "launch/output_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fork.h"

/* Opens a pipe or a terminal a second time, so as not to block. */
static void open_again(launch_writer *s, int fd)
{
    struct stat info;
    char path[32];

    s->fd = fd;
    if (fstat(fd, &info) != 0)
        return;
    s->socket = S_ISSOCK(info.st_mode);
    if (!S_ISFIFO(info.st_mode) && !s->terminal)
        return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    fd = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0) {
        s->fd = oari_fork_guard(fd);
        s->own = 1;
    }
}

oar_status launch_writer_open(launch_writer *sink, int fd)
{
    struct winsize size;

    *sink = (launch_writer){ .terminal = isatty(fd) };
    open_again(sink, fd);
    sink->width = ioctl(sink->fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0
                      ? size.ws_col
                      : 80;
    sink->data = oari_alloc(LAUNCH_WRITER_ROOM, 1);
    if (sink->data != NULL)
        return OAR_OK;
    launch_writer_close(sink);
    return OAR_E_NOMEM;
}

void launch_writer_close(launch_writer *sink)
{
    if (sink->own)
        oari_fork_close(sink->fd);
    oari_free(sink->data);
    *sink = (launch_writer){ .fd = -1 };
}

int launch_same_file(int a, int b)
{
    struct stat one, two;

    return fstat(a, &one) == 0 && fstat(b, &two) == 0 &&
           one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}

size_t launch_writer_waiting(const launch_writer *sink)
{
    return sink->to - sink->from;
}

size_t launch_writer_free(const launch_writer *sink)
{
    return LAUNCH_WRITER_ROOM - launch_writer_waiting(sink);
}

void launch_writer_put(launch_writer *sink, const void *bytes, size_t count)
{
    if (sink->broken || count == 0)
        return;
    if (sink->lost && sink->torn && launch_writer_waiting(sink) == 0)
        sink->data[sink->to++] = '\n'; /* the rest of that line is lost */
    if (sink->to + count > LAUNCH_WRITER_ROOM) {
        memmove(sink->data, sink->data + sink->from,
                launch_writer_waiting(sink));
        sink->to -= sink->from;
        sink->from = 0;
    }
    memcpy(sink->data + sink->to, bytes, count);
    sink->to += count;
}

/* Returns how much can be written now without blocking: a pipe that polls as
 * writable takes PIPE_BUF. */
static size_t writable_bytes(const launch_writer *s)
{
    struct pollfd ready = { s->fd, POLLOUT, 0 };
    size_t waiting = launch_writer_waiting(s);

    if (s->own || s->socket)
        return waiting;
    if (poll(&ready, 1, 0) != 1)
        return 0;
    return waiting < PIPE_BUF ? waiting : PIPE_BUF;
}

void launch_writer_write(launch_writer *sink)
{
    size_t count;

    while (!sink->broken && (count = writable_bytes(sink)) > 0) {
        const char *at = sink->data + sink->from;
        ssize_t done = sink->socket ? send(sink->fd, at, count,
                                           MSG_DONTWAIT | MSG_NOSIGNAL)
                                    : write(sink->fd, at, count);

        if (done > 0) {
            sink->from += (size_t)done;
            sink->torn = sink->data[sink->from - 1] != '\n';
        } else if (done < 0 && errno == EINTR)
            continue;
        else if (done < 0 && errno != EAGAIN) {
            /* Text that cannot be written must not stop the job. Later text is
             * tried again, as the disk may have room by then, unless the reader
             * is gone. */
            if (sink->terminal || errno == EPIPE || errno == ECONNRESET ||
                errno == EBADF)
                sink->broken = errno;
            else
                sink->lost = errno;
            sink->from = sink->to = 0;
        } else
            break;
    }
    if (sink->from == sink->to)
        sink->from = sink->to = 0;
}

void launch_writer_finish(launch_writer *sink)
{
    struct pollfd ready = { sink->fd, POLLOUT, 0 };

    while (sink->fd >= 0 && !sink->broken && launch_writer_waiting(sink) > 0) {
        launch_writer_write(sink);
        if (!sink->broken && launch_writer_waiting(sink) > 0)
            poll(&ready, 1, -1);
    }
}
