/* SPDX-License-Identifier: Apache-2.0 */
/* launch/stream.h: what one rank writes to one of its two outputs, on its way
 * to a sink and a file.
 *
 * A line goes into the sink as a whole. One that is longer than a stream can
 * hold goes in pieces, and nobody else writes into the sink in between, unless
 * its rank pauses. */
#ifndef OARI_LAUNCH_STREAM_H
#define OARI_LAUNCH_STREAM_H

#include "launch/sink.h"

enum { LAUNCH_STREAM_ROOM = 1 << 16, LAUNCH_TAG_ROOM = 40 };

typedef struct launch_stream {
    int fd;            /* we read here; -1: there is none, or it has ended */
    int peer_fd;       /* the rank writes here; -1: it has it, not we */
    int log_fd;        /* -1: no file */
    launch_sink *sink; /* NULL: it is not shown */
    char *data;
    size_t from, have;
    int fresh;        /* there is something new */
    int midline;      /* the sink has the beginning of this line */
    int64_t heard_ns; /* when it came */
    size_t passed;    /* bytes of a line that goes in pieces */
    int slot;         /* in what is polled; -1: not polled */
    char tag[LAUNCH_TAG_ROOM];
} launch_stream;

/* A pipe, or where the sink is a terminal, another terminal. */
oar_status launch_stream_open(launch_stream *stream, launch_sink *sink,
                              int log_fd);
void launch_stream_close(launch_stream *stream);

/* Whether there is room for what may come. */
int launch_stream_wants(const launch_stream *stream);

/* Takes what has come, once. */
void launch_stream_read(launch_stream *stream);

/* Passes on to the sink what can go there. Returns whether all has gone and
 * nothing more will come. */
int launch_stream_pump(launch_stream *stream);

#endif
