/* SPDX-License-Identifier: Apache-2.0 */
/* trace.h: `oarsong trace`: the rows of a time line, and what writes it. */
#ifndef OARSONG_TOOL_TRACE_H
#define OARSONG_TOOL_TRACE_H

#include <stdio.h>

#include <oarsong/trace_read.h>

/* A row of the time line. Intervals of one row never overlap but by nesting. */
typedef struct trace_row {
    int process, rank;
    int64_t thread;   /* of the program; -1: a row of operations */
    const char *name; /* of a metric; else NULL */
    const char *gpu;  /* its stream; NULL: not of a GPU */
    int lane;         /* of operations: how many are beside each other */
    int64_t busy_until_ns;
} trace_row;

typedef struct trace_rows {
    trace_row *row;
    int count, room;
} trace_rows;

/* Returns the number of the row that an event belongs on, which may be a new
 * one; -1 without memory. Call it in the order of time. */
int trace_row_of(trace_rows *rows, const oar_trace_event *event);

/* Writes what a row is called. */
void trace_row_name(const trace_row *row, char *text, size_t room);

/* Writes what an event is called. */
void trace_event_name(const oar_trace_event *event, char *text, size_t room);

/* Returns the word for the kind of an event. */
const char *trace_kind_word(oar_trace_kind kind);

/* Write a time line. begin returns 0 if there is no memory or no room on the
 * disk; so does end. */
typedef struct trace_writer {
    void (*begin)(FILE *to);
    void (*row)(FILE *to, int number, const trace_row *row);
    void (*event)(FILE *to, int row, const oar_trace_event *event);
    void (*end)(FILE *to);
    int bytes; /* of an event, about */
} trace_writer;
extern const trace_writer trace_chrome, trace_perfetto;

#endif
