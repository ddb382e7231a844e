/* SPDX-License-Identifier: Apache-2.0 */
/* nccl/engine.h: what the files of the backend `nccl` share.
 *
 * A group has one communicator of NCCL, non-blocking, and works on one stream.
 * Calls wait in a queue: NCCL takes the next only when the last is on the
 * stream, which progress finds out. One driver at a time calls into a group's
 * engine; abort may come from any thread, so the communicator is an object of
 * its own with locks, which outlives the engine if NCCL does not come back from
 * ending it.
 */
#ifndef OARI_BACKENDS_NCCL_NCCL_ENGINE_H
#define OARI_BACKENDS_NCCL_NCCL_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "backends/nccl/nccl_symbols.h"
#include "device/cuda/cuda.h"
#include "link/link.h"

/* ---- library.c ----------------------------------------------------------- */

/* NCCL, found once per process; a failure is kept, and said again in the same
 * words. Any thread. */
oar_status oari_nccl_load(const oari_nccl **lib);

/* "2.28.9" */
typedef struct oari_nccl_version_text {
    char text[24];
} oari_nccl_version_text;
oari_nccl_version_text oari_nccl_version(int version);

/* OAR_OK for success and for "in progress"; else what NCCL says, after ours.
 * comm: whose last error to ask for, or NULL. */
oar_status oari_nccl_check(const oari_nccl *lib, int result,
                           oari_nccl_handle comm, const char *what);

/* ---- types.c ------------------------------------------------------------- */

/* NCCL's number, or -1 if it has none: of a dtype that it can compute with, and
 * of an operator on it (the premultiplied sum has none: it is made each time).
 */
int oari_nccl_type(oar_dtype dtype);
int oari_nccl_operator(oar_reduce_op_kind op, oar_dtype dtype);

/* Whether NCCL can do it as we promise it; the same on all ranks. */
int oari_nccl_takes(void *self, const oar_collective *call);

/* The factor in that dtype's own bytes, as NCCL reads it. */
typedef union oari_nccl_factor {
    float f32;
    double f64;
    uint16_t half;
} oari_nccl_factor;
oari_nccl_factor oari_nccl_factor_of(double factor, oar_dtype dtype);

/* ---- nccl_communicator.c ------------------------------------------------- */

/* Two hold it: the engine, and the thread that ends it. */
typedef struct oari_nccl_comm {
    const oari_nccl *lib;
    int device;
    int has_fp8;             /* every rank's GPU, and NCCL, reduce in fp8 */
    void *stream;            /* what it works on */
    int owns_stream;         /* it is destroyed with the last holder */
    pthread_mutex_t use;     /* held while NCCL is called with the handle */
    oari_nccl_handle handle; /* NULL: none, or being ended */
    pthread_mutex_t lock;    /* guards what is below */
    pthread_cond_t changed;
    int holders, ending, ended;
} oari_nccl_comm;

oar_status oari_nccl_comm_create(const oari_nccl *lib, int device,
                                 oari_nccl_comm **comm);
void oari_nccl_comm_release(oari_nccl_comm *comm);

/* Gives it a stream: the caller's, or one of its own if that is NULL. */
oar_status oari_nccl_comm_stream(oari_nccl_comm *comm, void *stream);

/* NCCL's state of it: OARI_NCCL_IN_PROGRESS, ... Under `use`. */
int oari_nccl_comm_state(oari_nccl_comm *comm);

/* Begins to end it, by a thread; the first of them counts, any thread. finish:
 * with NCCL's own farewell, for half a second, then as abort. */
void oari_nccl_comm_abort(oari_nccl_comm *comm);
void oari_nccl_comm_finish(oari_nccl_comm *comm);
/* Waits until it has ended: 0 if it has not by then. */
int oari_nccl_comm_wait(oari_nccl_comm *comm, int64_t deadline_ns);

/* ---- opening.c ----------------------------------------------------------- */

/* Who of the group's other ranks is gone, as its links see it; -1: nobody.
 * group may be NULL. The driver's, or while nobody drives. */
int oari_nccl_lost(const oar_group *group, int rank, int ranks);

/* Joins the ranks' communicator; a failure leaves it to be released. */
oar_status oari_nccl_join(oari_nccl_comm *comm, const oari_open *with,
                          const oari_nccl_id *id, int64_t deadline_ns);
/* One of those that give the same colour, into *child (NULL: colour below 0).
 */
struct oari_nccl_engine;
oar_status oari_nccl_split_comm(const struct oari_nccl_engine *e, int colour,
                                int key, oari_nccl_comm **child);

/* ---- meeting.c ----------------------------------------------------------- */

/* What ranks agree on in the store before NCCL is called. */
typedef struct oari_nccl_terms {
    oari_nccl_id id;
    int has_fp8;
} oari_nccl_terms;
oar_status oari_nccl_meet(const oari_nccl *lib, const oari_open *with,
                          int64_t deadline_ns, oari_nccl_terms *terms);

/* ---- nccl_calls.c -------------------------------------------------------- */

/* An engine, and what is under way in it. */
typedef struct oari_nccl_engine {
    int rank, ranks, device;
    int64_t timeout_ms;
    const oari_nccl *lib;
    const oar_group *group; /* NULL: none */
    oari_nccl_comm *comm;
    int opened;
    oar_transfer *first, **last;       /* posted, not begun (nccl_queue.c) */
    oar_transfer *flying;              /* begun: NCCL is putting them there */
    oar_transfer *to_self, *from_self; /* messages without their other end */
    int batching;
    int64_t look_ns;   /* when to look for errors next */
    int64_t ending_ns; /* when this driver saw the abort; 0: it has not */
    _Atomic int why;   /* an oar_status: aborted; OAR_OK: not */
    oar_status failed; /* of the first call that did */
    char text[400];
} oari_nccl_engine;

/* Gives NCCL the calls of one collective, in an open group. Under `use`, with
 * the device current. */
oar_status oari_nccl_call(oari_nccl_engine *e, const oar_collective *call);

/* ---- nccl_own.c ---------------------------------------------------------- */

/* What the caller has before it, and behind it. The device is current. */
oar_status oari_nccl_wait_ready(const oari_cuda *cu, void *stream,
                                const oar_collective *call);
oar_status oari_nccl_record_finished(const oari_cuda *cu, void *stream,
                                     const oar_collective *call);

int oari_nccl_is_to_self(const oari_nccl_engine *e, const oar_collective *call);
void oari_nccl_post_to_self(oari_nccl_engine *e, oar_transfer *t);

/* ---- nccl_queue.c -------------------------------------------------------- */

/* A transfer is a link of a list: the next one, and what is to be done. */
static inline oar_transfer *oari_nccl_next(const oar_transfer *t)
{
    return t->scratch[0];
}

static inline const oar_collective *oari_nccl_posted(const oar_transfer *t)
{
    return t->scratch[1];
}

static inline void oari_nccl_done(oar_transfer *t, oar_status status)
{
    t->status = status;
    t->done = 1; /* from here on it is not ours */
}

/* Keeps the last error as what progress fails with, if it is the first. */
void oari_nccl_note_failure(oari_nccl_engine *e, oar_status status);

oar_status oari_nccl_post(void *self, const oar_collective *call,
                          oar_transfer *done);
oar_status oari_nccl_batch(void *self, int open);
oar_status oari_nccl_progress(void *self);
/* Ends everything that is left, as this. */
void oari_nccl_drop_all(oari_nccl_engine *e, oar_status why);
/* Nothing is queued or being put on the stream. */
int oari_nccl_is_idle(const oari_nccl_engine *e);

#endif
