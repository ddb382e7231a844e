/* SPDX-License-Identifier: Apache-2.0 */
/* backends/gloo/gloo.h: the backend's private header.
 *
 * Gloo's calls block, and the driver must not: so threads of ours make them and
 * report to the driver what is done. A worker runs collectives one after the
 * other; a waiter waits for blocks of messages of one kind with one peer.
 *
 * A thread can be in Gloo for longer than the group lives (a peer that was
 * stopped, a bug). So gloo_threads has a reference count, and all that its
 * threads use is in it, in an operation or in a block, never in struct gloo.
 */
#ifndef BACKENDS_GLOO_H
#define BACKENDS_GLOO_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "backends/gloo/gloo_shim.h"
#include "base/reduce/reduce.h"
#include "base/worker.h"
#include "link/chunk_link.h"

enum {
    GLOO_WORKERS_MAX = 8,
    GLOO_IDLE_MS = 300,   /* for threads to leave Gloo after an abort */
    GLOO_DRAIN_MS = 2000, /* for sent messages to be received before the end */
    GLOO_CLOSE_MS = 600,  /* for all threads to end */
    GLOO_EAGER_BYTES = 16384
};

/* What all ranks of a group must do alike. Rank 0 decides. */
typedef struct gloo_choice {
    gloo_algorithm algorithm[OAR_COLL_COUNT];
    int workers;
} gloo_choice;

/* ---- gloo_choice.c ------------------------------------------------------- */

/* Rank 0 reads the environment; the others read its choice from the store. */
oar_status gloo_choice_agree(const oar_backend_env *env, const char *prefix,
                             gloo_choice *choice);

/* ---- gloo_connect.c ------------------------------------------------------ */

/* Connects all ranks by Gloo; gives the mesh. */
oar_status gloo_connect(const oar_backend_env *env, const char *prefix,
                        gloo_mesh **mesh);

/* ---- gloo_signal.c ------------------------------------------------------- */

/* Block SIGPIPE around calls of Gloo by a thread that is not ours, and restore
 * the mask. */
void gloo_signal_block(sigset_t *before);
void gloo_signal_restore(const sigset_t *before);

/* ---- in flight ----------------------------------------------------------- */

/* A collective. */
typedef struct gloo_operation {
    oari_job job; /* its worker's, until it is started */
    struct gloo_worker *worker;
    struct gloo_operation *next;         /* in the list of completed ones */
    struct gloo_operation *next_pending; /* the driver's list */
    oar_transfer *done;                  /* the driver's; NULL: given up */
    gloo_task task;
    oar_reduce_op_kind reduce_op; /* the sum for averages too */
    oar_dtype dtype;
    oar_dtype half;   /* the user's dtype, if it is summed in f32, */
    int widens;       /* which this says: */
    const void *from; /* the user's input, converted into the scratch, */
    void *into;       /* the user's output, converted from it */
    int has_factor;
    double factor;  /* of the input */
    double divisor; /* of the output; 0: none */
    int failed;
    char why[GLOO_WHY];
    size_t counts[]; /* of the input, then of the output */
} gloo_operation;

/* A block of a message. */
typedef struct gloo_block {
    struct gloo_block *next;
    oari_chunk *chunk; /* the driver's; NULL: given up */
    gloo_request *request;
    int may_fail; /* without a fault: the peer may have left the group */
    int failed;
    char why[GLOO_WHY];
} gloo_block;

/* ---- threads ------------------------------------------------------------- */

typedef struct gloo_threads gloo_threads;

typedef struct gloo_worker {
    gloo_threads *threads;
    oari_worker *thread; /* NULL: not started yet */
    void *scratch;
    size_t scratch_bytes;
} gloo_worker;

typedef struct gloo_waiter {
    gloo_threads *threads;
    pthread_t thread;
    pthread_cond_t more;
    gloo_block *first, *last; /* it waits for the first */
} gloo_waiter;

/* The waiters of a peer: received headers, received data, sends. */
enum { GLOO_HEADERS, GLOO_DATA, GLOO_SENDS, GLOO_WAITERS };

/* All that the threads of a group share. */
struct gloo_threads {
    _Atomic int references;
    gloo_mesh *mesh;
    int ranks;
    pthread_mutex_t lock; /* guards all that follows but the atomics */
    pthread_cond_t changed;
    int stop;
    int in_gloo;       /* how many threads are in a collective of Gloo */
    int disconnecting; /* a thread is ending the connections */
    int disconnected;  /* the connections have ended */
    int closed;        /* the mesh is freed */
    gloo_worker worker[GLOO_WORKERS_MAX];
    gloo_worker inline_worker; /* has no thread: callers run there */
    gloo_operation *inline_op; /* for the next caller; NULL: none */
    gloo_operation *operations_done, **operations_end;
    gloo_block *blocks_done, **blocks_end;
    _Atomic int any_done; /* one of these two lists has an entry */
    _Atomic int armed;    /* the driver sleeps on the eventfd */
    int event_fd;
    gloo_waiter *waiters[]; /* by peer and kind; NULL: not started yet */
};

/* Takes the mesh, if it succeeds. */
oar_status gloo_threads_create(gloo_mesh *mesh, int ranks,
                               gloo_threads **threads);
/* Gives up a reference. NULL is fine. */
void gloo_threads_release(gloo_threads *threads);

/* Wakes the driver, if it sleeps. Any thread. */
void gloo_threads_wake_driver(gloo_threads *threads);

/* Lets another thread end all connections, once. Any thread. */
void gloo_threads_disconnect(gloo_threads *threads);
/* Waits until no thread is in Gloo with a user's buffers, but not longer than
 * GLOO_IDLE_MS. */
void gloo_threads_wait_idle(gloo_threads *threads);

/* Ends the threads and the mesh. Waits for GLOO_CLOSE_MS at most; the rest is
 * left to a thread that waits longer. */
void gloo_threads_close(gloo_threads *threads);

/* ---- gloo_worker.c ------------------------------------------------------- */

/* Gives the operation to a worker, which takes it. Only the driver. */
oar_status gloo_worker_post(gloo_threads *threads, int number,
                            gloo_operation *op);
/* Keeps the operation for the next thread that calls gloo_inline_run, which
 * runs it there. */
void gloo_inline_post(gloo_threads *threads, gloo_operation *op);
void gloo_inline_run(gloo_threads *threads);

/* Gives the block to the waiter of that kind, which takes it. Only the driver.
 */
oar_status gloo_waiter_post(gloo_threads *threads, int peer, int kind,
                            gloo_block *block);

/* Hand what is done to the driver and wake it. The caller holds the lock. */
void gloo_threads_report_operation(gloo_threads *threads, gloo_operation *op);
void gloo_threads_report_block(gloo_threads *threads, gloo_block *block);

/* ---- the driver ---------------------------------------------------------- */

typedef struct gloo {
    int rank, ranks;
    gloo_choice choice;
    uint32_t number; /* of the collective posted last */
    gloo_threads *threads;
    gloo_operation *operations; /* not done; linked by next_pending */
    oari_chunk_link *messages;
    _Atomic int aborted; /* an oar_status; 0: no */
    int ended;           /* every operation has been completed with it */
} gloo;

/* ---- gloo_call.c --------------------------------------------------------- */

int gloo_takes(void *self, const oar_collective *call);
oar_status gloo_post(void *self, const oar_collective *call,
                     oar_transfer *done);

/* ---- gloo_transport.c ---------------------------------------------------- */

/* Returns what link/chunk_link.h needs to move blocks over Gloo. */
oari_chunk_transport gloo_transport(gloo *g);

#endif
