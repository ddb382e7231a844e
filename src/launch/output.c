/* SPDX-License-Identifier: Apache-2.0 */
/* output: what all ranks write, by one poll. Each pass looks at every stream
 * once, at another one first each time, and takes at most one buffer from each.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/fork.h"
#include "base/status.h"
#include "launch/launch.h"

enum { SINK_HIGH = LAUNCH_WRITER_ROOM / 2, COLOURS = 6 };

/* ---- where lines go ------------------------------------------------------ */

oar_status launch_output_open(launch *l)
{
    l->sink[0].fd = l->sink[1].fd = -1;
    l->poll = oari_alloc((size_t)l->ranks * 2 + 4, sizeof *l->poll);
    if (l->poll == NULL)
        return OAR_E_NOMEM;
    if (!l->opts.lines)
        return OAR_OK;
    l->out = l->err = &l->sink[0];
    OARI_TRY(launch_writer_open(&l->sink[0], STDOUT_FILENO));
    if (launch_same_file(STDOUT_FILENO, STDERR_FILENO))
        return OAR_OK;
    l->err = &l->sink[1];
    return launch_writer_open(&l->sink[1], STDERR_FILENO);
}

/* Warns once of output that could not be written, for instance because the disk
 * is full. That the reader is gone needs no warning. */
static void warn_of_loss(launch *l, int i)
{
    launch_writer *k = &l->sink[i];
    int why = k->lost != 0 ? k->lost : k->broken;

    if (why == 0 || why == EPIPE || k->warned)
        return;
    k->warned = 1;
    launch_say(l, "what ranks wrote to standard %s is not complete: %s",
               i == 0 ? "output" : "error", strerror(why));
}

void launch_output_close(launch *l)
{
    for (int i = 0; i < 2; i++) {
        if (l->stop_signal == 0)
            launch_writer_finish(&l->sink[i]);
        warn_of_loss(l, i);
    }
    for (int i = 0; i < 2; i++) {
        if (l->stop_signal == 0)
            launch_writer_finish(&l->sink[i]);
        launch_writer_close(&l->sink[i]);
    }
    l->out = l->err = NULL;
    oari_free(l->poll);
    l->poll = NULL;
}

/* ---- one rank ------------------------------------------------------------ */

static void make_tag(const launch *l, int local, launch_stream *s)
{
    static const int colour[COLOURS] = { 36, 32, 33, 35, 34, 31 };
    int rank = l->epoch.first + local;

    s->tag[0] = 0;
    if (!l->opts.tags)
        return;
    if (s->sink != NULL && s->sink->terminal &&
        oari_env_text("NO_COLOR") == NULL)
        snprintf(s->tag, sizeof s->tag, "\033[%dm[%d]\033[0m ",
                 colour[rank % COLOURS], rank);
    else
        snprintf(s->tag, sizeof s->tag, "[%d] ", rank);
}

/* Opens one of a rank's outputs: a file alone, which the rank then writes
 * itself; nothing; or a stream to the launcher. */
static oar_status open_stream(launch *l, int local, int which)
{
    launch_stream *s = &l->rank[local].stream[which];
    int bit = which == 0 ? LAUNCH_STDOUT : LAUNCH_STDERR, log_fd = -1;
    launch_writer *sink = which == 0 ? l->out : l->err;

    if (l->logs.file[local] & bit) {
        int chosen = l->logs.chosen;

        OARI_TRY(launch_logs_open(&l->logs, l->epoch.number,
                                  l->epoch.first + local, which,
                                  l->rank[local].respawns > 0, &log_fd));
        if (!chosen && strcmp(strrchr(l->logs.folder, '/') + 1, l->run_id) != 0)
            launch_say(l,
                       "logs of an earlier run are there already; those of "
                       "this one go to %s",
                       l->logs.folder);
    }
    s->peer_fd = log_fd;
    if (l->logs.only[local] & bit) {
        oari_fork_forget(log_fd); /* the rank has it, not the launcher */
        return OAR_OK;
    }
    if (!l->logs.shown[local]) {
        sink = NULL;
        if (log_fd < 0) {
            s->peer_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
            return s->peer_fd >= 0 ? OAR_OK
                                   : oari_fail(OAR_E_SYSTEM, "open /dev/null");
        }
    }
    s->peer_fd = -1;
    return launch_stream_open(s, sink, log_fd);
}

oar_status launch_output_rank(launch *l, int local)
{
    for (int which = 0; which < 2; which++) {
        l->rank[local].stream[which] =
            (launch_stream){ .fd = -1, .peer_fd = -1, .log_fd = -1 };
        if (l->opts.lines) {
            OARI_TRY(open_stream(l, local, which));
            make_tag(l, local, &l->rank[local].stream[which]);
        }
    }
    return OAR_OK;
}

void launch_output_in_rank(const launch *l, int local)
{
    const launch_stream *s = l->rank[local].stream;
    int fd;

    if (!l->opts.lines)
        return;
    /* Only the first rank may read the launcher's input, and only if that is
     * no terminal. */
    if ((l->epoch.first + local != 0 || isatty(STDIN_FILENO)) &&
        (fd = open("/dev/null", O_RDONLY)) > STDIN_FILENO) {
        dup2(fd, STDIN_FILENO);
        close(fd);
    }
    if (s[0].peer_fd >= 0)
        dup2(s[0].peer_fd, STDOUT_FILENO);
    if (s[1].peer_fd >= 0)
        dup2(s[1].peer_fd, STDERR_FILENO);
    for (int i = 0; i < 2; i++)
        if (s[i].peer_fd > STDERR_FILENO)
            close(s[i].peer_fd);
}

void launch_output_started(launch *l, int local)
{
    for (int which = 0; which < 2; which++) {
        launch_stream *s = &l->rank[local].stream[which];
        if (s->peer_fd >= 0)
            close(s->peer_fd);
        s->peer_fd = -1;
    }
}

/* ---- moving -------------------------------------------------------------- */

static int may_read(const launch_stream *s)
{
    return launch_stream_wants(s) &&
           (s->sink == NULL || launch_writer_waiting(s->sink) < SINK_HIGH);
}

int launch_output_poll(launch *l, int count)
{
    for (int i = 0; i < l->ranks * 2; i++) {
        launch_stream *s = &l->rank[i / 2].stream[i % 2];
        s->slot = may_read(s) ? count : -1;
        if (s->slot >= 0)
            l->poll[count++] = (struct pollfd){ s->fd, POLLIN, 0 };
    }
    for (int i = 0; i < 2; i++)
        if (l->sink[i].fd >= 0 && launch_writer_waiting(&l->sink[i]) > 0)
            l->poll[count++] = (struct pollfd){ l->sink[i].fd, POLLOUT, 0 };
    return count;
}

int launch_output_move(launch *l)
{
    int streams = l->ranks * 2, state = LAUNCH_OUTPUT_DONE;

    if (!l->opts.lines)
        return state;
    l->turn = (l->turn + 1) % streams;
    for (int k = 0; k < streams; k++) {
        int i = (l->turn + k) % streams, one;
        launch_stream *s = &l->rank[i / 2].stream[i % 2];
        int heard =
            s->slot >= 0 && l->poll[s->slot].revents != 0 && may_read(s);

        if (heard)
            launch_stream_read(s);
        s->slot = -1;
        if (launch_stream_pump(s))
            continue; /* done: what was heard may be the end */
        one = heard || s->have > 0 ? LAUNCH_OUTPUT_BUSY : LAUNCH_OUTPUT_SILENT;
        state = one > state ? one : state;
    }
    for (int i = 0; i < 2; i++) {
        if (l->sink[i].fd < 0)
            continue;
        launch_writer_write(&l->sink[i]);
        warn_of_loss(l, i);
        if (launch_writer_waiting(&l->sink[i]) > 0)
            state = LAUNCH_OUTPUT_BUSY;
    }
    return state;
}

static void end_stream(launch *l, int local, launch_stream *s)
{
    oari_fork_close(s->fd);
    s->fd = -1;
    while (l->stop_signal == 0 && !launch_stream_pump(s))
        launch_writer_finish(s->sink);
    if (s->log_errno != 0)
        launch_say(l, "the log of rank %d is not complete: %s",
                   l->epoch.first + local, strerror(s->log_errno));
    launch_stream_close(s);
}

int launch_output_has_ended(launch *l, int local, int64_t until_ns)
{
    int late = oari_now_ns() >= until_ns, ended = 1;

    for (int which = 0; which < 2; which++) {
        launch_stream *s = &l->rank[local].stream[which];

        ended &= launch_stream_pump(s) || (late && s->have == 0);
    }
    return ended;
}

void launch_output_end_rank(launch *l, int local)
{
    for (int which = 0; which < 2; which++)
        end_stream(l, local, &l->rank[local].stream[which]);
}

void launch_output_end(launch *l)
{
    for (int i = 0; i < l->ranks; i++)
        launch_output_end_rank(l, i);
}

/* ---- the launcher's own lines -------------------------------------------- */

/* Writes a line between those of the ranks; directly, if the sink is full. */
static void say_line(launch *l, const char *line, size_t bytes)
{
    launch_writer *k = l->err;

    if (k == NULL || k->broken || launch_writer_free(k) < bytes + 64) {
        if (k != NULL)
            launch_writer_finish(k);
        fwrite(line, 1, bytes, stderr);
        return;
    }
    if (k->owner != NULL)
        launch_writer_put(k, "\n", 1);
    if (k->shown != NULL)
        launch_writer_put(k, "\r\033[K", 4);
    k->shown = NULL;
    launch_writer_put(k, line, bytes);
    launch_writer_write(k);
}

void launch_say_text(launch *l, const char *text)
{
    if (!l->opts.narrate)
        return;
    while (*text != 0) {
        size_t bytes = strcspn(text, "\n");
        bytes += text[bytes] == '\n';
        say_line(l, text, bytes);
        text += bytes;
    }
}

void launch_say(launch *l, const char *format, ...)
{
    char what[1024], line[1100];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(line, sizeof line, "oarsong run: %s\n", what);
    launch_say_text(l, line);
}
