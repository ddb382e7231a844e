/* SPDX-License-Identifier: Apache-2.0 */
/* launch/sink.h: where lines of the ranks go: standard output or error.
 *
 * Bytes wait in memory of a fixed size and are written when the other end takes
 * them, so that nobody who does not read can keep the launcher from its other
 * duties. */
#ifndef OARI_LAUNCH_SINK_H
#define OARI_LAUNCH_SINK_H

#include <oarsong/status.h>

typedef struct launch_sink {
    int fd;       /* -1: not in use */
    int own;      /* fd is ours alone and does not block */
    int socket;   /* sent, not written */
    int terminal; /* and how wide it is */
    int width;
    int broken; /* errno of a write: nobody reads there any more; 0: none */
    int lost;   /* errno of the last write whose text is lost, though later ones
                   may succeed: a full disk; 0: nothing is lost */
    int told;   /* the user knows of it */
    int torn;   /* the last byte that was written did not end a line */
    char *data;
    size_t from, to;
    const void *owner; /* who is in the middle of a line; NULL: nobody */
    const void *shown; /* whose unfinished line a terminal shows */
} launch_sink;

/* What can wait in a sink at most. */
enum { LAUNCH_SINK_ROOM = 1 << 18 };

oar_status launch_sink_open(launch_sink *sink, int fd);
void launch_sink_close(launch_sink *sink);

/* Whether two descriptors lead to the same file, terminal or pipe. */
int launch_same_file(int a, int b);

/* How many bytes there is room for. */
size_t launch_sink_free(const launch_sink *sink);
size_t launch_sink_waiting(const launch_sink *sink);

/* There must be room for them. */
void launch_sink_put(launch_sink *sink, const void *bytes, size_t count);

/* Writes what can be written without waiting. */
void launch_sink_write(launch_sink *sink);

/* Writes all, however long it takes. */
void launch_sink_finish(launch_sink *sink);

#endif
