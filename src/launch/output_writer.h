/* SPDX-License-Identifier: Apache-2.0 */
/* launch/output_writer.h: the output writer: writes lines of the ranks to
 * standard output or error.
 *
 * Bytes wait in memory of a fixed size and are written when the other end takes
 * them, so that a reader that does not read cannot block the launcher. */
#ifndef OARI_LAUNCH_OUTPUT_WRITER_H
#define OARI_LAUNCH_OUTPUT_WRITER_H

#include <oarsong/status.h>

typedef struct launch_writer {
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
} launch_writer;

/* Bytes that can wait in a sink at most. */
enum { LAUNCH_WRITER_ROOM = 1 << 18 };

oar_status launch_writer_open(launch_writer *sink, int fd);
void launch_writer_close(launch_writer *sink);

/* Returns whether two descriptors lead to the same file, terminal or pipe. */
int launch_same_file(int a, int b);

/* Return how many bytes there is room for, and how many wait. */
size_t launch_writer_free(const launch_writer *sink);
size_t launch_writer_waiting(const launch_writer *sink);

/* Adds bytes, for which there must be room. */
void launch_writer_put(launch_writer *sink, const void *bytes, size_t count);

/* Writes what can be written without blocking. */
void launch_writer_write(launch_writer *sink);

/* Blocks until all is written. */
void launch_writer_finish(launch_writer *sink);

#endif
