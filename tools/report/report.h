/* SPDX-License-Identifier: Apache-2.0 */
/* report.h: `oarsong report`: what is computed from a trace, and how it is
 * shown. */
#ifndef OARSONG_TOOL_REPORT_H
#define OARSONG_TOOL_REPORT_H

#include <stdio.h>

#include <oarsong/trace_read.h>

enum { REPORT_COLUMNS = 120 };         /* of the heat map */
#define REPORT_MEMORY "resident bytes" /* what traces call it */

/* One step of one rank, in ns. */
typedef struct report_step {
    int64_t number, start_ns, end_ns;
    int64_t comm_ns;    /* with at least one operation under way */
    int64_t exposed_ns; /* of that: the program waited for it */
} report_step;

typedef struct report_rank {
    int rank;
    report_step *step;
    int steps;
    int64_t operations;
    int64_t last;   /* in so many collectives it was the last */
    double late_ns; /* behind the first, the sum over collectives */
    double column[REPORT_COLUMNS]; /* mean lateness by time, ns */
    int64_t column_count[REPORT_COLUMNS];
} report_rank;

/* Where operations were called. */
typedef struct report_site {
    const char *name;
    oar_coll op;
    int64_t count;
    double bytes, total_ns, most_ns;
} report_site;

/* A number over time, of one rank. */
typedef struct report_metric {
    const char *name;
    int rank;
    double *time_s, *value;
    int points, room;
} report_metric;

/* What the machine reaches. */
typedef struct report_speed {
    char kind[32];
    double bytes, gb_s;
} report_speed;

typedef struct report {
    const oar_trace *trace;
    int64_t end_ns;
    report_rank *rank; /* by rank */
    int ranks;
    report_site *site; /* the longest first */
    int sites, site_room;
    report_metric *metric;
    int metrics;
    int64_t collectives; /* that all ranks were seen in */
    int64_t stages;      /* actions of pipelines */
    int64_t gpu_intervals;
    report_speed *speed;
    int speeds;
} report;

/* Computes all of it. Returns 0 without memory. */
int report_make(const oar_trace *trace, report *r);
void report_free(report *r);

/* Returns the rank that is late most, or NULL if none stands out: it is last in
 * two thirds of the collectives, and three times as late as the others are on
 * average. */
const report_rank *report_straggler(const report *r);

/* Reads what the machine reaches from a file. Returns 0 if there is nothing. */
int report_machine_read(report *r, const char *path);
/* Returns it for an operation of that size, in GB/s; 0: not known. */
double report_machine_speed(const report *r, oar_coll op, double bytes);

/* Writes the page. */
void report_write(const report *r, const char *folder, FILE *to);

/* Write parts of the page. */
void report_write_metrics(const report *r, FILE *to);
void report_write_steps(const report *r, FILE *to);
void report_write_heat(const report *r, FILE *to);
void report_write_sites(const report *r, FILE *to);
void report_write_lines(const report *r, FILE *to);
void report_write_memory(const report *r, FILE *to);
void report_write_pipeline(const report *r, FILE *to);
void report_write_autopsy(const char *folder, FILE *to);

/* Writes a text as HTML. */
void report_text(FILE *to, const char *text);

/* Writes a time as "1.2 ms". Returns a text that holds until the eighth call
 * from now. */
const char *report_time(double ns);

#endif
