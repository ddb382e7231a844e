/* SPDX-License-Identifier: Apache-2.0 */
/* backends/mpi/mpi_engine.h: the parts of the backend mpi.
 *
 * One group is one communicator. Collectives are MPI's own, non-blocking;
 * messages, and what is planned over them, go through a relay (link/relay.h)
 * over MPI's point to point. Everything but `abort` is the driver's.
 */
#ifndef OARI_MPI_ENGINE_H
#define OARI_MPI_ENGINE_H

/* What another compiler is told about C++ does not concern us. */
#define OMPI_SKIP_MPICXX  1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <stdatomic.h>

#include <oarsong/backend.h>

#include "link/relay.h"

/* From MPI 4 on counts may be as large as memory. */
#if MPI_VERSION >= 4
typedef MPI_Count mpi_count;
typedef MPI_Aint mpi_offset;
#define MPI_LARGE(call) call##_c
#define MPI_COUNT_MOST  INT64_MAX
#else
typedef int mpi_count;
typedef int mpi_offset;
#define MPI_LARGE(call) call
#define MPI_COUNT_MOST  INT32_MAX
#endif

/* A collective under way. */
typedef struct mpi_post {
    struct mpi_post *next;
    const oar_collective *call;
    oar_transfer *done;
    int requests;
    int over; /* so many of them are */
    int room; /* for requests */
    MPI_Request *request;
    MPI_Request one;      /* most need no more */
    MPI_Datatype type;    /* made for it, or MPI_DATATYPE_NULL */
    void *scratch;        /* operands that had to be made, or NULL */
    void *copy;           /* of operands that the result would replace */
    const void *result;   /* where in there the result is */
    oar_dtype made;       /* the dtype of it */
    mpi_count *counts[2]; /* of parts sent and received, or NULL */
    mpi_offset *at[2];
    oar_status refused; /* by ourselves, before MPI was asked */
} mpi_post;

/* A block under way for the relay: request i is that of parcel i. */
typedef struct mpi_cargo {
    int count, room;
    MPI_Request *request;
    oari_parcel **parcel;
    int *index; /* as much room, for MPI_Testsome */
    MPI_Status *status;
} mpi_cargo;

typedef struct mpi_engine {
    int rank, ranks;
    int joined; /* comm is there */
    MPI_Comm comm;
    int blocking;    /* collectives are done in post */
    int64_t chunk;   /* most elements of one reduction */
    mpi_post *first; /* in the order posted */
    mpi_post **last;
    mpi_post *spare;
    oari_relay *relay;
    mpi_cargo cargo;
    _Atomic int why;   /* it was aborted: an oar_status */
    oar_status ended;  /* and that has been acted on */
    oar_status failed; /* what a call that cannot fail came to */
} mpi_engine;

/* ---- library.c: MPI in this process -------------------------------------- */

/* Initialises MPI unless somebody has. blocking: collectives will be waited for
 * in MPI, so no lock may be held around them. */
oar_status mpi_start(int ranks, int blocking);

/* Groups that are open, and that leave something behind: MPI is finalised at
 * exit only if none of either is there. */
void mpi_count_open(int more);
void mpi_count_ruin(void);

/* Around calls of MPI: one thread at a time where it cannot bear more. */
void mpi_enter(void);
void mpi_leave(void);
int mpi_is_shared(void); /* it can */

/* Whether the program has finalised MPI, after which no call of it may be made;
 * and the error that says so. */
int mpi_is_over(void);
oar_status mpi_fail_over(void);

/* The last error, with MPI's text; what: the call. */
oar_status mpi_fail(int code, const char *what);

/* "Open MPI 4.1.4"; NULL, with the last error set, if the library that is
 * loaded is not the one this was made for. */
const char *mpi_version(void);

/* Operators of ours: min and max of floats, with our rules for NaN and zeros,
 * and of unsigned integers; sums of unsigned integers. Halves are of the types
 * mpi_half gives. */
MPI_Op mpi_own(oar_reduce_op_kind kind);
MPI_Datatype mpi_half(oar_dtype dtype);

/* ---- mpi_join.c ---------------------------------------------------------- */

/* The communicator of the group's ranks. */
oar_status mpi_join(mpi_engine *e, const oar_backend_env *env);

/* ---- mpi_fold.c: reductions ---------------------------------------------- */

/* How MPI does one. */
typedef struct mpi_fold {
    MPI_Datatype type;
    MPI_Op op;
    oar_dtype dtype; /* of the operands; another than the span's: they are made,
                        as for a premultiplied sum */
    int made;
} mpi_fold;

/* 0: it does not. */
int mpi_fold_of(const oar_collective *call, mpi_fold *fold);

/* Writes what this rank contributes to `count` elements. */
void mpi_fold_make(const oar_collective *call, const mpi_fold *fold, void *to);

/* Finishes what MPI has left in `from`, elements of `dtype`, into the call's
 * out: the division of an average, the rounding of halves. */
void mpi_fold_finish(const mpi_engine *e, const oar_collective *call,
                     const void *from, oar_dtype dtype);

/* ---- post.c: collectives ------------------------------------------------- */

int mpi_takes(void *self, const oar_collective *call);
oar_status mpi_post_barrier(void *, const oar_collective *, oar_transfer *);
oar_status mpi_post_broadcast(void *, const oar_collective *, oar_transfer *);
oar_status mpi_post_fold(void *, const oar_collective *, oar_transfer *);
oar_status mpi_post_reduce_scatter(void *, const oar_collective *,
                                   oar_transfer *);
oar_status mpi_post_gather(void *, const oar_collective *, oar_transfer *);
oar_status mpi_post_scatter(void *, const oar_collective *, oar_transfer *);
oar_status mpi_post_all_gather(void *, const oar_collective *, oar_transfer *);
oar_status mpi_post_all_to_all(void *, const oar_collective *, oar_transfer *);

/* ---- mpi_flight.c: what is under way ------------------------------------- */

/* A post, not yet in the list; NULL: no memory. */
mpi_post *mpi_post_begin(mpi_engine *e, const oar_collective *call,
                         oar_transfer *done);
/* Where the next request goes; NULL: no memory. */
MPI_Request *mpi_post_request(mpi_post *p);
/* It has been started, code is what MPI said: it is in the list, or over. */
oar_status mpi_post_started(mpi_engine *e, mpi_post *p, int code,
                            const char *what);
/* Ends those that are done. */
oar_status mpi_posts_test(mpi_engine *e);
/* Ends all, done or not; MPI may still be at them. */
void mpi_posts_abandon(mpi_engine *e, oar_status why);
void mpi_posts_free(mpi_engine *e); /* the spare ones */

/* ---- mpi_carry.c: blocks for the relay ----------------------------------- */

oar_status mpi_carry_open(mpi_engine *e, size_t eager_bytes);
oar_status mpi_carry_test(mpi_engine *e);
void mpi_carry_close(mpi_engine *e);

/* ---- types.c ------------------------------------------------------------- */

/* Elements that are only moved. */
MPI_Datatype mpi_plain(oar_dtype dtype);

/* A type of `count` elements in a row, any number. Committed; the caller's. */
int mpi_row_type(size_t count, MPI_Datatype element, MPI_Datatype *row);

#endif
