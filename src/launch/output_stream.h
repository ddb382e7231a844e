/* SPDX-License-Identifier: Apache-2.0 */
/* launch/output_stream.h: what one rank writes to one of its two outputs, on
 * its way to a sink and a file.
 *
 * A line goes into the sink as a whole. A line that is longer than a stream can
 * hold goes in pieces, and no other stream writes into the sink in between,
 * unless the rank pauses. */
#ifndef OARI_LAUNCH_OUTPUT_STREAM_H
#define OARI_LAUNCH_OUTPUT_STREAM_H

#include "launch/output_writer.h"

enum { LAUNCH_STREAM_ROOM = 1 << 16, LAUNCH_TAG_ROOM = 40 };

typedef struct launch_stream {
    int fd;        /* the launcher reads here; -1: it has ended, or is none */
    int peer_fd;   /* the rank writes here; -1: closed in the launcher */
    int log_fd;    /* -1: no file */
    int log_errno; /* why the file is not complete; 0: it is */
    launch_writer *sink; /* NULL: the output is not shown */
    char *data;
    size_t from, have;
    int fresh;        /* bytes have arrived since the last pump */
    int midline;      /* the sink has the beginning of this line */
    int64_t heard_ns; /* when bytes last arrived */
    size_t passed;    /* bytes of a line that goes in pieces */
    int slot;         /* in the array for poll; -1: not polled */
    char tag[LAUNCH_TAG_ROOM];
} launch_stream;

/* Opens a pipe, or where the sink is a terminal, a pseudo-terminal. */
oar_status launch_stream_open(launch_stream *stream, launch_writer *sink,
                              int log_fd);
void launch_stream_close(launch_stream *stream);

/* Returns whether the stream is open and has room. */
int launch_stream_wants(const launch_stream *stream);

/* Reads once. */
void launch_stream_read(launch_stream *stream);

/* Passes on to the sink what can go there. Returns whether all has gone and the
 * stream has ended. */
int launch_stream_pump(launch_stream *stream);

#endif
