/* SPDX-License-Identifier: Apache-2.0 */
/* base/worker.h: threads that run jobs in the order in which they are posted,
 * or call a step function from time to time, or both.
 *
 * The threads sleep when there is nothing to do. They leave signals to the
 * program (base/thread.h). A child made by fork has the worker's memory but not
 * its threads: there posting fails, and the other functions do nothing. */
#ifndef OARI_BASE_WORKER_H
#define OARI_BASE_WORKER_H

#include <stdint.h>

#include <oarsong/status.h>

#include "base/list.h"
#include "base/plugin_export.h"

typedef struct oari_worker oari_worker;

/* A job lies in the caller's memory and belongs to the worker from the post
 * until its function is called, which may free it. */
typedef struct oari_job {
    oari_link link;
    void (*run)(void *arg);
    void *arg;
} oari_job;

typedef struct oari_worker_opts {
    const char *name; /* of its threads, borrowed; 15 characters are kept */
    int threads;      /* 0: one */
    int64_t capacity; /* jobs that may wait; 0: no bound */

    /* (optional, with one thread) Called by the thread when it begins, after
     * each job, after oari_worker_wake, and at the time that the last call
     * returned: nanoseconds of oari_now_ns, 0: at once, OARI_NEVER: only for
     * one of the other reasons. */
    int64_t (*step)(void *arg);
    void *arg;
} oari_worker_opts;

/* Starts the threads: all of them, or none and a status that says why. */
OARI_FOR_PLUGINS oar_status oari_worker_create(const oari_worker_opts *opts,
                                               oari_worker **worker);

/* Gives the worker a job. If the queue is full, blocks until a job is begun;
 * OAR_E_TIMEOUT if the deadline passes first (0: at once). OAR_E_STATE: the
 * worker is being destroyed, or was made by the parent of this process. */
OARI_FOR_PLUGINS oar_status oari_worker_post(oari_worker *worker, oari_job *job,
                                             int64_t deadline_ns);

/* Makes the thread call step soon. Any thread may call this. */
void oari_worker_wake(oari_worker *worker);

/* Returns whether the worker's threads are in this process: a parent's are not.
 */
int oari_worker_is_here(const oari_worker *worker);

/* Ends the worker and joins its threads; NULL is fine. The jobs that still wait
 * are run first; with `drop`, it is called with their arguments instead, in
 * order. Then step is called until it returns OARI_NEVER. A post that waits for
 * room fails; no call may begin after this one. A job or a step must not call
 * this. */
OARI_FOR_PLUGINS void oari_worker_destroy(oari_worker *worker,
                                          void (*drop)(void *arg));

#endif
