/* SPDX-License-Identifier: Apache-2.0 */
/* backends/gloo/gloo.h: the backend from the inside.
 *
 * Gloo's calls block, and the driver may not: so threads of ours make them, and
 * the driver finds in the hub what they have done. A lane does collectives, one
 * after the other; a watch waits for messages of one kind with one peer.
 *
 * A thread can be in Gloo for longer than the group lives (a peer that was
 * stopped, a bug): so the hub is counted, and whatever its threads use is in
 * it, or in a job or a note, never in the driver's self.
 */
#ifndef BACKENDS_GLOO_H
#define BACKENDS_GLOO_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "backends/gloo/gloo_shim.h"
#include "base/reduce/reduce.h"
#include "base/worker.h"
#include "link/relay.h"

enum {
    GLOO_LANES = 8,       /* at most */
    GLOO_QUIET_MS = 300,  /* for threads to leave Gloo after an abort */
    GLOO_LEAVE_MS = 2000, /* for messages to leave before the end */
    GLOO_CLOSE_MS = 600,  /* for all threads to end */
    GLOO_EAGER_BYTES = 16384
};

/* What all ranks of a group do alike: rank 0's. */
typedef struct gloo_choice {
    gloo_way way[OAR_COLL_COUNT];
    int lanes;
} gloo_choice;

/* ---- gloo_choice.c ------------------------------------------------------- */

/* Rank 0's environment, found in the store by the others. */
oar_status gloo_agree(const oar_backend_env *env, const char *prefix,
                      gloo_choice *choice);

/* ---- gloo_meet.c --------------------------------------------------------- */

oar_status gloo_meet(const oar_backend_env *env, const char *prefix,
                     const gloo_choice *choice, gloo_mesh **mesh);

/* ---- gloo_signal.c ------------------------------------------------------- */

/* Around calls of Gloo's by a thread that is not ours. */
void gloo_signal_block(sigset_t *before);
void gloo_signal_restore(const sigset_t *before);

/* ---- what is under way --------------------------------------------------- */

/* A collective. */
typedef struct gloo_job {
    oari_job job; /* the lane's worker's, until it is begun */
    struct gloo_lane *lane;
    struct gloo_job *next;  /* among those that are done */
    struct gloo_job *other; /* the driver's: the next that is not done */
    oar_transfer *done;     /* the driver's */
    gloo_task task;
    oar_reduce_op_kind op; /* as it is combined: a sum for averages too */
    oar_dtype dtype;
    oar_dtype half;   /* what the user's are, if they are summed in f32 */
    int widens;       /* they are: */
    const void *from; /* out of here, through the scratch, */
    void *into;       /* to there */
    int has_factor;
    double factor;  /* of what comes in */
    double divisor; /* of what comes out; 0: none */
    int failed;
    char why[GLOO_WHY];
    size_t counts[]; /* of in, then of out */
} gloo_job;

/* A block of a message. */
typedef struct gloo_note {
    struct gloo_note *next;
    oari_parcel *parcel; /* the driver's; NULL: given up */
    gloo_slip *slip;
    int silent; /* its failure is no fault: the peer may just have left */
    int failed;
    char why[GLOO_WHY];
} gloo_note;

/* ---- the hub ------------------------------------------------------------- */

typedef struct gloo_hub gloo_hub;

typedef struct gloo_lane {
    gloo_hub *hub;
    oari_worker *worker; /* NULL: not needed yet */
    void *scratch;
    size_t scratch_bytes;
} gloo_lane;

typedef struct gloo_watch {
    gloo_hub *hub;
    pthread_t thread;
    pthread_cond_t more;
    gloo_note *first, *last; /* the first is the one it waits for */
} gloo_watch;

enum { GLOO_HEADS, GLOO_DATA, GLOO_OUT, GLOO_WATCHES }; /* with each peer */

struct gloo_hub {
    _Atomic int holders;
    gloo_mesh *mesh;
    int ranks;
    pthread_mutex_t lock; /* guards all that follows but the atomics */
    pthread_cond_t changed;
    int stop;
    int inside;   /* threads that are in a collective of Gloo's */
    int spoiling; /* a thread is ending the connections */
    int spoiled;  /* they have ended */
    int closed;   /* the mesh is gone */
    gloo_lane lane[GLOO_LANES];
    gloo_lane guest;   /* has no thread: a caller's works there */
    gloo_job *offered; /* to the next caller; NULL: nothing is */
    gloo_job *jobs_done, **jobs_end;
    gloo_note *notes_done, **notes_end;
    _Atomic int news;  /* something is in those lists */
    _Atomic int armed; /* the driver sleeps on the eventfd */
    int event_fd;
    gloo_watch *watch[]; /* by peer and kind; NULL: not needed yet */
};

/* Takes the mesh, if it succeeds. */
oar_status gloo_hub_create(gloo_mesh *mesh, int ranks, gloo_hub **hub);
void gloo_hub_drop(gloo_hub *hub);

/* The driver sleeps, or any thread wants it to look. */
void gloo_hub_wake(gloo_hub *hub);

/* Ends all connections, by a thread of its own. Once. Any thread. */
void gloo_hub_spoil(gloo_hub *hub);
/* Waits, not for long, until no thread is in Gloo with a user's buffers. */
void gloo_hub_quiet(gloo_hub *hub);

/* Ends the threads and the mesh: waits for that GLOO_CLOSE_MS at most; what is
 * not done by then ends by itself. */
void gloo_hub_close(gloo_hub *hub);

/* Gives the job to a lane, which takes it, or runs it here. */
oar_status gloo_lane_give(gloo_hub *hub, int lane, gloo_job *job);
void gloo_lane_run(gloo_lane *lane, gloo_job *job);
/* Keeps the job for the next thread that calls gloo_lane_lend, which does it.
 */
void gloo_lane_offer(gloo_hub *hub, gloo_job *job);
void gloo_lane_lend(gloo_hub *hub);

/* Gives the note to the watch of that kind, which takes it. */
oar_status gloo_watch_give(gloo_hub *hub, int peer, int kind, gloo_note *note);

/* Under the lock: into the lists, and wakes the driver. */
void gloo_hub_job_done(gloo_hub *hub, gloo_job *job);
void gloo_hub_note_done(gloo_hub *hub, gloo_note *note);

/* ---- the driver's -------------------------------------------------------- */

typedef struct gloo {
    int rank, ranks;
    gloo_choice choice;
    int blocking;    /* collectives run in post itself */
    uint32_t number; /* of the collective posted last */
    gloo_hub *hub;
    gloo_job *jobs; /* not done; linked by `other` */
    oari_relay *relay;
    _Atomic int aborted; /* an oar_status; 0: no */
    int ended;           /* and everything has been told */
} gloo;

/* ---- gloo_call.c --------------------------------------------------------- */

int gloo_takes(void *self, const oar_collective *call);
oar_status gloo_post(void *self, const oar_collective *call,
                     oar_transfer *done);

/* ---- gloo_courier.c ------------------------------------------------------ */

oari_courier gloo_courier(gloo *g);

#endif
