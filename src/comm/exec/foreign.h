/* SPDX-License-Identifier: Apache-2.0 */
/* comm/exec/foreign.h: an engine with collectives of its own, beside our
 * links. */
#ifndef OARI_COMM_EXEC_FOREIGN_H
#define OARI_COMM_EXEC_FOREIGN_H

#include <pthread.h>
#include <stdatomic.h>

#include <oarsong/backend.h>

/* Who looks after a caller that works for the engine (lend.c). */
enum { OARI_WATCH_UNTRIED, OARI_WATCHES, OARI_WATCH_NONE };
typedef struct oari_watch {
    int state; /* the driver's: OARI_WATCH... */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int stop;               /* under lock */
    _Atomic int inside;     /* a caller works for the engine */
    _Atomic int asleep;     /* the watch waits to be told of one */
    _Atomic unsigned calls; /* so far */
} oari_watch;

typedef struct oari_foreign {
    const oar_backend_ops *ops; /* NULL: there is none */
    void *self;
    int opened;
    int batching;             /* the driver's: between batch(1) and batch(0) */
    unsigned turns;           /* the driver's */
    uint64_t while_ticks;     /* so long it is asked in one turn */
    int64_t crowded_ns;       /* until when it is better to sleep than yield */
    int64_t check_ns;         /* the next look whether everybody is there */
    int64_t linked_ns;        /* when the links were looked at for faults */
    int64_t doubt_ns;         /* until when nothing it brought is believed */
    int64_t ill_ns;           /* since when it has failed; 0: it has not */
    _Atomic int64_t *gone_ns; /* by rank: since when it is gone, or 0 */
    oar_error illness;
    oari_watch watch;
} oari_foreign;

#endif
