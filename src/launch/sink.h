/* SPDX-License-Identifier: Apache-2.0 */
/* launch/sink.h: the output writer: writes lines of the ranks to standard output
 * or error.
 *
 * Bytes wait in memory of a fixed size and are written when the other end takes
 * them, so that a reader that does not read cannot block the launcher. */
#ifndef OARI_LAUNCH_SINK_H
#define OARI_LAUNCH_SINK_H

#include <oarsong/status.h>

typedef struct launch_sink {
    int fd;       /* -1: not in use */
    int own;      /* fd is the launcher's alone and does not block */
    int socket;   /* fd is a socket */
    int terminal; /* fd is a terminal, */
    int width;    /* with so many columns */
    int broken;   /* errno of a write: the reader is gone; 0: it is not */
    int lost;   /* errno of the last write whose text is lost, though later ones
                   may succeed: a full disk; 0: nothing is lost */
    int warned; /* the user was told of that */
    int torn;   /* the last byte that was written did not end a line */
    char *data;
    size_t from, to;
    const void *owner; /* the stream that is in the middle of a line; or NULL */
    const void *shown; /* the stream whose unfinished line a terminal shows */
} launch_sink;

/* Bytes that can wait in a sink at most. */
enum { LAUNCH_SINK_ROOM = 1 << 18 };

oar_status launch_sink_open(launch_sink *sink, int fd);
void launch_sink_close(launch_sink *sink);

/* Returns whether two descriptors lead to the same file, terminal or pipe. */
int launch_same_file(int a, int b);

/* Return how many bytes there is room for, and how many wait. */
size_t launch_sink_free(const launch_sink *sink);
size_t launch_sink_waiting(const launch_sink *sink);

/* Adds bytes, for which there must be room. */
void launch_sink_put(launch_sink *sink, const void *bytes, size_t count);

/* Writes what can be written without blocking. */
void launch_sink_write(launch_sink *sink);

/* Blocks until all is written. */
void launch_sink_finish(launch_sink *sink);

#endif
