/* SPDX-License-Identifier: Apache-2.0 */
/* record/metrics_page.h: the newest numbers and step of a process, in the first
 * unit of its recorder file. Other processes read it there while this one runs
 * and after it has died (oarsong/live.h). In a file that was written without
 * it, all of it is zero. */
#ifndef OARI_RECORD_METRICS_PAGE_H
#define OARI_RECORD_METRICS_PAGE_H

#include <stdatomic.h>
#include <stdint.h>

enum { OARI_METRICS = 64, OARI_METRIC_NAME = 44 };

/* A number. The name is written once, before `ready`. */
typedef struct oari_metric_slot {
    _Atomic uint32_t ready;
    char name[OARI_METRIC_NAME];
    _Atomic uint64_t value; /* the bits of a double */
    _Atomic uint64_t count; /* so often it was given */
} oari_metric_slot;

typedef struct oari_metrics_page {
    _Atomic int64_t step;         /* the number of the last step that ended */
    _Atomic uint64_t steps;       /* that have ended */
    _Atomic uint64_t step_ticks;  /* when it ended */
    _Atomic uint64_t step_length; /* ticks since the one before; 0: the first */
    oari_metric_slot slot[OARI_METRICS];
} oari_metrics_page;

_Static_assert(sizeof(oari_metric_slot) == 64, "a number is one cache line");

/* For the recorder file's handlers of fork, which hold its lock: this lock is
 * taken behind that one. A child has a page of its own. */
void oari_metrics_before_fork(void);
void oari_metrics_in_parent(void);
void oari_metrics_in_child(void);

/* Makes this the page that is written, with what was written so far. NULL: the
 * page is about to be unmapped, and later numbers are kept until there is one.
 */
void oari_metrics_attach(oari_metrics_page *page);

/* Keep a number and a step. A number whose name is the 65th is dropped. */
void oari_metrics_set(const char *name, double value);
void oari_metrics_step(int64_t step);

#endif
