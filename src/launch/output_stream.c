/* SPDX-License-Identifier: Apache-2.0 */
/* output_stream: makes lines of bytes.
 *
 * On a terminal an unfinished line is shown as it grows, and is taken back when
 * another stream has a line, so that progress lines (with "\r") and prompts
 * work; what follows the last "\r" counts. Elsewhere every byte is passed on as
 * it arrived. */
#include "launch/output_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fork.h"
#include "base/status.h"

enum {
    PAUSE_MS = 200,      /* without bytes, ends a line in pieces for others */
    PIECES_MAX = 1 << 26 /* bytes, after which it ends too */
};

static const char wipe[] = "\r\033[K";

/* ---- opening ------------------------------------------------------------- */

/* Opens a pseudo-terminal for the rank: raw, so that bytes pass unchanged, and
 * of the real one's size. Returns 0 where there is none. */
static int open_terminal(launch_stream *s)
{
    char name[64];
    struct termios how;
    struct winsize size;
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), slave = -1;

    if (master < 0)
        return 0;
    if (grantpt(master) == 0 && unlockpt(master) == 0 &&
        ptsname_r(master, name, sizeof name) == 0)
        slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0) {
        close(master);
        return 0;
    }
    if (tcgetattr(slave, &how) == 0) {
        cfmakeraw(&how);
        tcsetattr(slave, TCSANOW, &how);
    }
    if (ioctl(s->sink->fd, TIOCGWINSZ, &size) == 0)
        ioctl(slave, TIOCSWINSZ, &size);
    s->fd = master;
    s->peer_fd = slave;
    return 1;
}

oar_status launch_stream_open(launch_stream *stream, launch_writer *sink,
                              int log_fd)
{
    int ends[2];

    stream->sink = sink;
    stream->log_fd = log_fd;
    stream->fd = stream->peer_fd = stream->slot = -1;
    stream->data = oari_alloc(LAUNCH_STREAM_ROOM, 1);
    if (stream->data == NULL)
        return OAR_E_NOMEM;
    if (sink == NULL || !sink->terminal || !open_terminal(stream)) {
        if (pipe2(ends, O_CLOEXEC) != 0)
            return oari_fail(OAR_E_SYSTEM, "make a pipe for a rank's output");
        stream->fd = ends[0];
        stream->peer_fd = ends[1];
    }
    oari_fork_guard(stream->fd);
    fcntl(stream->fd, F_SETFL, O_NONBLOCK);
    return OAR_OK;
}

void launch_stream_close(launch_stream *stream)
{
    oari_fork_close(stream->fd);
    oari_fork_close(stream->log_fd);
    if (stream->peer_fd >= 0)
        close(stream->peer_fd);
    oari_free(stream->data);
    *stream = (launch_stream){ .fd = -1, .peer_fd = -1, .log_fd = -1 };
}

/* ---- reading ------------------------------------------------------------- */

int launch_stream_wants(const launch_stream *stream)
{
    return stream->fd >= 0 && stream->have < LAUNCH_STREAM_ROOM;
}

/* Writes to the log file. A file that takes no more must not stop the job. */
static void write_log(launch_stream *s, const char *bytes, size_t count)
{
    while (s->log_fd >= 0 && count > 0) {
        ssize_t done = write(s->log_fd, bytes, count);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            s->log_errno = errno;
            oari_fork_close(s->log_fd);
            s->log_fd = -1;
            return;
        }
        bytes += done;
        count -= (size_t)done;
    }
}

void launch_stream_read(launch_stream *stream)
{
    char *at = stream->data + stream->have;
    ssize_t got;

    memmove(stream->data, stream->data + stream->from, stream->have);
    stream->from = 0;
    got = read(stream->fd, at, LAUNCH_STREAM_ROOM - stream->have);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) { /* EIO: a terminal that no rank has open */
        oari_fork_close(stream->fd);
        stream->fd = -1;
        return;
    }
    write_log(stream, at, (size_t)got);
    stream->heard_ns = oari_now_ns();
    stream->fresh = 1;
    if (stream->sink != NULL)
        stream->have += (size_t)got;
}

/* ---- passing on ---------------------------------------------------------- */

/* Returns where the part begins that a terminal shows in the end. */
static size_t visible_from(const launch_stream *s, size_t count)
{
    const char *text = s->data + s->from;

    if (!s->sink->terminal || s->midline)
        return 0;
    while (count > 0 && (text[count - 1] == '\n' || text[count - 1] == '\r'))
        count--;
    while (count > 0 && text[count - 1] != '\r')
        count--;
    return count;
}

static void put_piece(launch_stream *s, size_t count, int newline)
{
    launch_writer *k = s->sink;
    size_t from = visible_from(s, count);
    const char *text = s->data + s->from;

    if (k->shown != NULL) /* takes back an unfinished line */
        launch_writer_put(k, wipe, sizeof wipe - 1);
    k->shown = NULL;
    if (!s->midline)
        launch_writer_put(k, s->tag, strlen(s->tag));
    launch_writer_put(k, text + from, count - from);
    if (newline)
        launch_writer_put(k, "\n", 1);
    s->midline = !newline && text[count - 1] != '\n';
    s->passed = s->midline ? s->passed + count : 0;
    k->owner = s->midline ? s : NULL;
    s->from += count;
    s->have -= count;
}

/* Returns how many bytes can be passed on now: a line, or a part of one that
 * must be; 0: none. */
static size_t next_piece(const launch_stream *s)
{
    const char *text = s->data + s->from;
    const char *newline = memchr(text, '\n', s->have);

    if (newline != NULL)
        return (size_t)(newline - text) + 1;
    if (s->fd < 0 || s->have == LAUNCH_STREAM_ROOM || s->midline)
        return s->have;
    return 0;
}

/* Returns whether a line in pieces must end here, for other streams' lines. */
static int must_yield(const launch_stream *s)
{
    int64_t silent_ns = oari_now_ns() - s->heard_ns;

    return s->passed > PIECES_MAX ||
           (s->have == 0 &&
            (s->fd < 0 || silent_ns > PAUSE_MS * INT64_C(1000000)));
}

/* Shows the unfinished line, if it fits into one line of the terminal. */
static void show_unfinished(launch_stream *s)
{
    launch_writer *k = s->sink;
    size_t from = visible_from(s, s->have), count;

    if (from > 1) { /* overwritten by what follows */
        s->from += from - 1;
        s->have -= from - 1;
    }
    from = from > 0;
    count = s->have - from;
    if (strlen(s->tag) + count >= (size_t)k->width ||
        launch_writer_free(k) < sizeof wipe + LAUNCH_TAG_ROOM + count)
        return;
    launch_writer_put(k, wipe, sizeof wipe - 1);
    launch_writer_put(k, s->tag, strlen(s->tag));
    launch_writer_put(k, s->data + s->from + from, count);
    k->shown = s;
}

static void pass_on(launch_stream *s)
{
    launch_writer *k = s->sink;
    size_t count;

    while (s->have > 0 && (k->owner == NULL || k->owner == s)) {
        int last = s->fd < 0;
        if ((count = next_piece(s)) == 0 ||
            launch_writer_free(k) < count + LAUNCH_TAG_ROOM + sizeof wipe)
            break;
        put_piece(s, count, last && s->data[s->from + count - 1] != '\n');
    }
    if (s->midline && must_yield(s) && launch_writer_free(k) > 0) {
        launch_writer_put(k, "\n", 1);
        s->midline = 0;
        s->passed = 0;
        k->owner = NULL;
    }
    if (k->terminal && s->fresh && s->have > 0 && k->owner == NULL)
        show_unfinished(s);
    s->fresh = 0;
}

int launch_stream_pump(launch_stream *stream)
{
    if (stream->sink != NULL && stream->sink->broken) {
        /* The reader is gone: unless there is a file too, the rank sees that as
         * if it wrote there itself. */
        if (stream->sink->owner == stream)
            stream->sink->owner = NULL;
        stream->sink = NULL;
        stream->have = stream->from = 0;
        stream->midline = 0;
        if (stream->log_fd < 0 && stream->fd >= 0) {
            oari_fork_close(stream->fd);
            stream->fd = -1;
        }
    } else if (stream->sink != NULL)
        pass_on(stream);
    return stream->fd < 0 && stream->have == 0 && !stream->midline;
}
