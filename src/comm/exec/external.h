/* SPDX-License-Identifier: Apache-2.0 */
/* comm/exec/external.h: an external engine, which has collectives of its own,
 * beside our links. */
#ifndef OARI_COMM_EXEC_EXTERNAL_H
#define OARI_COMM_EXEC_EXTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <oarsong/backend.h>

/* The thread that watches a caller which runs the engine inline (run_inline.c).
 */
enum { OARI_MONITOR_UNTRIED, OARI_MONITOR_RUNS, OARI_MONITOR_NONE };
typedef struct oari_inline_monitor {
    int state; /* the driver's: OARI_WATCH... */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int stop;               /* under lock */
    _Atomic int inside;     /* a caller runs the engine */
    _Atomic int asleep;     /* the thread waits until one does */
    _Atomic unsigned calls; /* so far */
} oari_inline_monitor;

typedef struct oari_external {
    const oar_backend_ops *ops; /* NULL: there is none */
    void *self;
    int opened;
    int batching;         /* the driver's: between batch(1) and batch(0) */
    unsigned turns;       /* the driver's */
    uint64_t while_ticks; /* how long one turn polls it */
    int64_t crowded_ns;   /* until when sleeping is better than yielding */
    int64_t check_ns;     /* when to check for missing ranks again */
    int64_t linked_ns;    /* when the links were last checked for faults */
    int64_t suspected_until_ns; /* until when its results are suspected */
    int64_t engine_failed_ns;   /* when it failed; 0: it has not */
    _Atomic int64_t *gone_ns;   /* by rank: when the rank was gone, or 0 */
    oar_error engine_error;
    oari_inline_monitor watch;
} oari_external;

#endif
