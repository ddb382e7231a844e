/* SPDX-License-Identifier: Apache-2.0 */
/* stream: lines out of bytes.
 *
 * On a terminal an unfinished line is shown as it grows and taken back when
 * somebody else has something to say, so that progress lines (with "\r") and
 * prompts work; what follows the last "\r" counts. Elsewhere every byte is
 * passed on as it came. */
#include "launch/stream.h"

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
    PAUSE_MS = 200,      /* then a line in pieces gives way to others */
    PIECES_MAX = 1 << 26 /* and then too */
};

static const char wipe[] = "\r\033[K";

/* ---- opening ------------------------------------------------------------- */

/* Bytes go through as they are; the size is that of the real one. */
static void make_raw(int slave, int real)
{
    struct termios how;
    struct winsize size;

    if (tcgetattr(slave, &how) == 0) {
        cfmakeraw(&how);
        tcsetattr(slave, TCSANOW, &how);
    }
    if (ioctl(real, TIOCGWINSZ, &size) == 0)
        ioctl(slave, TIOCSWINSZ, &size);
}

/* A terminal for the rank. Returns 0 where there are none. */
static int open_terminal(launch_stream *s)
{
    char name[64];
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
    make_raw(slave, s->sink->fd);
    s->fd = master;
    s->peer_fd = slave;
    return 1;
}

static oar_status open_ends(launch_stream *s)
{
    int ends[2];

    if (s->sink != NULL && s->sink->terminal && open_terminal(s))
        return OAR_OK;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return oari_fail(OAR_E_SYSTEM, "make a pipe for a rank's output");
    s->fd = ends[0];
    s->peer_fd = ends[1];
    return OAR_OK;
}

oar_status launch_stream_open(launch_stream *stream, launch_sink *sink,
                              int log_fd)
{
    stream->sink = sink;
    stream->log_fd = log_fd;
    stream->fd = stream->peer_fd = stream->slot = -1;
    stream->data = oari_alloc(LAUNCH_STREAM_ROOM, 1);
    if (stream->data == NULL)
        return OAR_E_NOMEM;
    OARI_TRY(open_ends(stream));
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

/* A file that takes no more is not a reason to stop the job. */
static void keep(launch_stream *s, const char *bytes, size_t count)
{
    while (s->log_fd >= 0 && count > 0) {
        ssize_t done = write(s->log_fd, bytes, count);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            oari_fork_close(s->log_fd);
            s->log_fd = -1;
            return;
        }
        bytes += done;
        count -= (size_t)done;
    }
}

static void end(launch_stream *s)
{
    oari_fork_close(s->fd);
    s->fd = -1;
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
    if (got <= 0) { /* a terminal without a rank is EIO */
        end(stream);
        return;
    }
    keep(stream, at, (size_t)got);
    stream->heard_ns = oari_now_ns();
    stream->fresh = 1;
    if (stream->sink != NULL)
        stream->have += (size_t)got;
}

/* ---- passing on ---------------------------------------------------------- */

static void drop(launch_stream *s, size_t count)
{
    s->from += count;
    s->have -= count;
}

/* Takes back what a terminal shows of an unfinished line. */
static void clear_shown(launch_sink *k)
{
    if (k->shown != NULL)
        launch_sink_put(k, wipe, sizeof wipe - 1);
    k->shown = NULL;
}

/* On a terminal: where what can be seen of it begins. */
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
    launch_sink *k = s->sink;
    size_t from = visible_from(s, count);
    const char *text = s->data + s->from;

    clear_shown(k);
    if (!s->midline)
        launch_sink_put(k, s->tag, strlen(s->tag));
    launch_sink_put(k, text + from, count - from);
    if (newline)
        launch_sink_put(k, "\n", 1);
    s->midline = !newline && text[count - 1] != '\n';
    s->passed = s->midline ? s->passed + count : 0;
    k->owner = s->midline ? s : NULL;
    drop(s, count);
}

/* How much of what is there goes on now; 0: nothing. */
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

/* Whether a line in pieces is to be ended here, so that others get through. */
static int give_way(const launch_stream *s)
{
    int64_t silent_ns = oari_now_ns() - s->heard_ns;

    return s->passed > PIECES_MAX ||
           (s->have == 0 &&
            (s->fd < 0 || silent_ns > PAUSE_MS * INT64_C(1000000)));
}

static void end_line(launch_stream *s)
{
    if (launch_sink_free(s->sink) == 0)
        return;
    launch_sink_put(s->sink, "\n", 1);
    s->midline = 0;
    s->passed = 0;
    s->sink->owner = NULL;
}

/* Shows the unfinished line, if it fits into one of the terminal's. */
static void show(launch_stream *s)
{
    launch_sink *k = s->sink;
    size_t from = visible_from(s, s->have), count;

    if (from > 1)
        drop(s, from - 1); /* overwritten by what follows */
    from = from > 0;
    count = s->have - from;
    if (strlen(s->tag) + count >= (size_t)k->width ||
        launch_sink_free(k) < sizeof wipe + LAUNCH_TAG_ROOM + count)
        return;
    launch_sink_put(k, wipe, sizeof wipe - 1);
    launch_sink_put(k, s->tag, strlen(s->tag));
    launch_sink_put(k, s->data + s->from + from, count);
    k->shown = s;
}

static void pump_lines(launch_stream *s)
{
    launch_sink *k = s->sink;
    size_t count;

    while (s->have > 0 && (k->owner == NULL || k->owner == s)) {
        int last = s->fd < 0;
        if ((count = next_piece(s)) == 0 ||
            launch_sink_free(k) < count + LAUNCH_TAG_ROOM + sizeof wipe)
            return;
        put_piece(s, count, last && s->data[s->from + count - 1] != '\n');
    }
}

/* Nobody reads there any more: the rank learns it as if it wrote there itself,
 * unless there is a file too. */
static void lose_sink(launch_stream *s)
{
    if (s->sink->owner == s)
        s->sink->owner = NULL;
    s->sink = NULL;
    s->have = s->from = 0;
    s->midline = 0;
    if (s->log_fd < 0 && s->fd >= 0)
        end(s);
}

static void pass_on(launch_stream *s)
{
    pump_lines(s);
    if (s->midline && give_way(s))
        end_line(s);
    if (s->sink->terminal && s->fresh && s->have > 0 && s->sink->owner == NULL)
        show(s);
    s->fresh = 0;
}

int launch_stream_pump(launch_stream *stream)
{
    if (stream->sink != NULL && stream->sink->broken)
        lose_sink(stream);
    else if (stream->sink != NULL)
        pass_on(stream);
    return stream->fd < 0 && stream->have == 0 && !stream->midline;
}
