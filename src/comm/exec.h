/* SPDX-License-Identifier: Apache-2.0 */
/* comm/exec.h: runs the plan of one collective at a time, over a board or over
 * a backend's messages. It never blocks. */
#ifndef OARI_COMM_EXEC_H
#define OARI_COMM_EXEC_H

#include "comm/board.h"
#include "comm/call.h"
#include "comm/plan.h"

enum { OARI_PLAN_CACHE = 16 };

typedef struct oari_cached_plan {
    oari_ask ask;
    const oari_algorithm *algorithm; /* NULL: empty */
    oari_plan plan;
} oari_cached_plan;

typedef struct oari_exec {
    /* set once */
    int rank, ranks;
    oari_board *board; /* NULL: messages */
    const oar_backend_ops *backend;
    void *self;
    size_t small_bytes, stage_bytes;
    const char *algorithm; /* forced by name; NULL: choose */
    oari_cached_plan cache[OARI_PLAN_CACHE];

    /* the operation under way */
    const oari_call *call;
    uint64_t sequence, fingerprint;
    const oari_plan *plan;
    int at;      /* step */
    int begun;   /* of the step: its meeting has begun */
    int met;     /* meetings so far */
    int exposed; /* peers know where the buffers are and may use them */
    size_t element;
    uint64_t
        number; /* of the collective on this group: the same on all ranks */

    /* by rank */
    void **in, **out; /* where their buffers are here */
    double *factor;
    const void **source; /* for a reduction */
    void **destination;

    unsigned char *gather;
    size_t gather_bytes;
    oar_transfer *transfer; /* room for all that one WAIT waits for */
    int transfers, transfer_room;
} oari_exec;

typedef enum oari_progress {
    OARI_PENDING = 0,
    OARI_DONE = 1,
    OARI_FAILED = 2 /* the last error says why */
} oari_progress;

oar_status oari_exec_init(oari_exec *exec);
void oari_exec_clear(oari_exec *exec);

/* Finds the plan. On failure nothing has been shown to any peer. */
oar_status oari_exec_start(oari_exec *exec, const oari_call *call,
                           uint64_t sequence, uint64_t number);
oari_progress oari_exec_poll(oari_exec *exec);

/* After a failure: takes the buffers out of the peers' reach. */
void oari_exec_withdraw(oari_exec *exec);

/* Writes who is missing and what it did last: "rank 2 (pid 77; its last
 * operation was #3 barrier at a.c:5)". */
void oari_exec_missing(const oari_exec *exec, int rank, char *text,
                       size_t bytes);

/* For tests: called before every step. */
extern void (*oari_exec_hook)(const oari_exec *exec);

#endif
