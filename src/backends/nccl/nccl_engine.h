/* SPDX-License-Identifier: Apache-2.0 */
/* backends/nccl/nccl_engine.h: the private header of the backend nccl.
 *
 * A group has one communicator of NCCL, non-blocking, and works on one stream.
 * Calls wait in a queue: NCCL accepts the next only when the last is on the
 * stream, which progress finds out. One driver at a time calls into a group's
 * engine. Any thread may abort it, so the communicator is an object of its own
 * with locks, which outlives the engine if NCCL does not return from ending it.
 */
#ifndef OARI_BACKENDS_NCCL_NCCL_ENGINE_H
#define OARI_BACKENDS_NCCL_NCCL_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "backends/nccl/nccl_symbols.h"
#include "device/cuda/cuda.h"
#include "link/link.h"

/* ---- nccl_library.c ------------------------------------------------------ */

/* Gives NCCL, which is loaded once per process; a failure is kept, and returned
 * every time. Any thread. */
oar_status oari_nccl_load(const oari_nccl **lib);

/* Returns "2.28.9". */
typedef struct oari_nccl_version_text {
    char text[24];
} oari_nccl_version_text;
oari_nccl_version_text oari_nccl_version(int version);

/* Returns OAR_OK for success and for "in progress"; else sets the last error to
 * what, and NCCL's text. comm: whose last error NCCL is asked for, or NULL. */
oar_status oari_nccl_check(const oari_nccl *lib, int result,
                           oari_nccl_handle comm, const char *what);

/* ---- nccl_types.c -------------------------------------------------------- */

/* Return NCCL's number, or -1 if it has none: of a dtype that it can reduce,
 * and of an operator on it (the premultiplied sum has none: it is made each
 * time).
 */
int oari_nccl_type(oar_dtype dtype);
int oari_nccl_operator(oar_reduce_op_kind op, oar_dtype dtype);

/* Whether NCCL can do it as we promise it; the same on all ranks. */
int oari_nccl_takes(void *self, const oar_collective *call);

/* A factor in the dtype's own format, as NCCL reads it. */
typedef union oari_nccl_factor {
    float f32;
    double f64;
    uint16_t half;
} oari_nccl_factor;
oari_nccl_factor oari_nccl_factor_make(double factor, oar_dtype dtype);

/* ---- nccl_communicator.c ------------------------------------------------- */

/* The engine has a reference, and the thread that ends it. */
typedef struct oari_nccl_comm {
    const oari_nccl *lib;
    int device;
    int has_fp8;             /* every rank's GPU, and NCCL, reduce in fp8 */
    void *stream;            /* on which it works */
    int owns_stream;         /* destroyed with the last reference */
    pthread_mutex_t use;     /* held while NCCL is called with the handle */
    oari_nccl_handle handle; /* NULL: none, or being ended */
    pthread_mutex_t lock;    /* guards what is below */
    pthread_cond_t changed;
    int references, ending, ended;
    int aborts; /* ending it is an abort */
} oari_nccl_comm;

oar_status oari_nccl_comm_create(const oari_nccl *lib, int device,
                                 oari_nccl_comm **comm);
void oari_nccl_comm_release(oari_nccl_comm *comm);

/* Sets its stream: the caller's, or a new one if that is NULL. */
oar_status oari_nccl_comm_set_stream(oari_nccl_comm *comm, void *stream);

/* Returns NCCL's state: OARI_NCCL_IN_PROGRESS, ... The caller holds `use`. */
int oari_nccl_comm_state(oari_nccl_comm *comm);

/* Start to end it, in a thread; only the first call has an effect. Any thread.
 * finalize: by ncclCommFinalize, for half a second, then by an abort. */
void oari_nccl_comm_abort(oari_nccl_comm *comm);
void oari_nccl_comm_finalize(oari_nccl_comm *comm);
/* Waits until it has ended; returns 0 if it has not by the deadline. */
int oari_nccl_comm_wait(oari_nccl_comm *comm, int64_t deadline_ns);

/* ---- nccl_comm_init.c ---------------------------------------------------- */

/* Returns a rank that is gone, as the group's links see it; -1: none. group may
 * be NULL. Only the driver, or while there is none. */
int oari_nccl_find_lost(const oar_group *group, int rank, int ranks);

/* Makes the communicator of all ranks. After a failure the caller still
 * releases it. */
oar_status oari_nccl_comm_init(oari_nccl_comm *comm, const oari_open *with,
                               const oari_nccl_id *id, int64_t deadline_ns);
/* Makes the communicator of the ranks that give the same colour (NULL: a colour
 * below 0). */
struct oari_nccl_engine;
oar_status oari_nccl_comm_split(const struct oari_nccl_engine *e, int colour,
                                int key, oari_nccl_comm **child);

/* ---- nccl_rendezvous.c --------------------------------------------------- */

/* What ranks agree on in the store before NCCL is called. */
typedef struct oari_nccl_terms {
    oari_nccl_id id;
    int has_fp8;
} oari_nccl_terms;
oar_status oari_nccl_rendezvous(const oari_nccl *lib, const oari_open *with,
                                int64_t deadline_ns, oari_nccl_terms *terms);

/* ---- nccl_calls.c -------------------------------------------------------- */

/* An engine, and the calls in flight. */
typedef struct oari_nccl_engine {
    int rank, ranks, device;
    int64_t timeout_ms;
    const oari_nccl *lib;
    const oar_group *group; /* NULL: none */
    oari_nccl_comm *comm;
    int opened;
    oar_transfer *first, **last;       /* posted, not started */
    oar_transfer *in_flight;           /* NCCL is putting them on the stream */
    oar_transfer *to_self, *from_self; /* messages that wait for their match */
    int batching;
    int64_t check_ns;  /* when to check for errors next */
    int64_t ending_ns; /* when the driver saw the abort; 0: it has not */
    _Atomic int why;   /* an oar_status: aborted; OAR_OK: not */
    oar_status failed; /* of the first call that failed */
    char text[400];
} oari_nccl_engine;

/* Makes the NCCL calls of one collective, in an open group of NCCL. The caller
 * holds `use`, and the device is current. */
oar_status oari_nccl_call(oari_nccl_engine *e, const oar_collective *call);

/* ---- nccl_queue.c -------------------------------------------------------- */

/* Keeps the first failure and its text: progress then fails with it. */
void oari_nccl_record_failure(oari_nccl_engine *e, oar_status status);

oar_status oari_nccl_post(void *self, const oar_collective *call,
                          oar_transfer *done);
oar_status oari_nccl_batch(void *self, int open);
oar_status oari_nccl_progress(void *self);
/* Completes everything that is left with `why`. */
void oari_nccl_end_all(oari_nccl_engine *e, oar_status why);
/* Whether nothing is queued or in flight. */
int oari_nccl_is_idle(const oari_nccl_engine *e);

#endif
