/* SPDX-License-Identifier: Apache-2.0 */
/* record/trace_file.h: the files of a trace while it is read. */
#ifndef OARI_RECORD_TRACE_FILE_H
#define OARI_RECORD_TRACE_FILE_H

#include <oarsong/trace_read.h>

#include "base/trace.h"

/* One file, mapped. Everything in it is checked before it is used. */
typedef struct oari_trace_source {
    void *map;
    const oari_trace_file *file; /* the same */
    size_t bytes;
    char *text;        /* the names, then those of groups */
    char *group_name;  /* in `text` */
    const char **name; /* by number, in `text` */
    unsigned names, groups, chunks;
    int64_t *thread; /* their ids */
    int64_t thread_room;
    unsigned threads;
    oari_moment latest; /* of its own, after the head's */
    int host;           /* sources with the same one share a clock: */
    oari_moment base;
    double ticks_per_second;
    int64_t offset_ns; /* added to its times */
    int64_t error_ns;  /* oar_trace_process */
    uint64_t events;
} oari_trace_source;

/* Where an event is. */
typedef struct oari_trace_place {
    int64_t start_ns;
    uint16_t source, thread;
    uint32_t event; /* chunk * OARI_TRACE_EVENTS + number in it */
} oari_trace_place;

struct oar_trace {
    oari_trace_source *source;
    int sources, hosts;
    oari_trace_place *place; /* in the order of start_ns */
    uint64_t events;
    int64_t zero_ns; /* where the time line begins */
};

/* Returns the event at a place. */
static inline const oari_trace_event *
oari_trace_event_of(const oar_trace *trace, const oari_trace_place *place)
{
    const oari_trace_file *file = trace->source[place->source].file;

    return &file->chunk[place->event / OARI_TRACE_EVENTS]
                .event[place->event % OARI_TRACE_EVENTS];
}

/* Returns a time of a source's counter in ns of CLOCK_MONOTONIC of its host. */
int64_t oari_trace_ns(const oari_trace_source *source, uint64_t ticks);

/* Returns a number that a group has on all its ranks, and no other group. */
uint64_t oari_trace_group_hash(const oari_trace_group *group);

/* Maps a file and checks its head, names and groups. */
oar_status oari_trace_source_open(const char *path, oari_trace_source *source);
void oari_trace_source_close(oari_trace_source *source);

/* Sets the clocks of all sources: one for each host. */
void oari_trace_set_clocks(oar_trace *trace);

/* Sets offset_ns and error_ns of all sources, so that their times compare. The
 * places hold times without offsets. */
oar_status oari_trace_align(oar_trace *trace);

#endif
