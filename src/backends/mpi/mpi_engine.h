/* SPDX-License-Identifier: Apache-2.0 */
/* backends/mpi/mpi_engine.h: the private header of the backend mpi.
 *
 * One group is one communicator. Collectives are MPI's own, non-blocking;
 * messages, and what is planned over them, go through a chunk link
 * (link/chunk_link.h) over MPI's point to point. Only the driver calls these,
 * except `abort`.
 */
#ifndef OARI_MPI_ENGINE_H
#define OARI_MPI_ENGINE_H

/* Without MPI's C++ bindings. */
#define OMPI_SKIP_MPICXX  1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <stdatomic.h>

#include <oarsong/backend.h>

#include "link/chunk_link.h"

/* Since MPI 4 counts may be as large as memory. */
#if MPI_VERSION >= 4
typedef MPI_Count mpi_count;
typedef MPI_Aint mpi_offset;
#define MPI_LARGE(call)   call##_c
#define MPI_COUNT_LARGEST INT64_MAX
#else
typedef int mpi_count;
typedef int mpi_offset;
#define MPI_LARGE(call)   call
#define MPI_COUNT_LARGEST INT32_MAX
#endif

/* A collective in flight. */
typedef struct mpi_operation {
    struct mpi_operation *next;
    const oar_collective *call;
    oar_transfer *done;
    int requests;
    int requests_done;
    int room; /* for requests */
    MPI_Request *request;
    MPI_Request one;      /* most operations need only one */
    MPI_Datatype type;    /* made for it, or MPI_DATATYPE_NULL */
    void *scratch;        /* converted or scaled operands, or NULL */
    void *copy;           /* of operands that the result would replace */
    const void *result;   /* where in the scratch the result is */
    oar_dtype made;       /* the dtype of the result */
    mpi_count *counts[2]; /* of parts sent and received, or NULL */
    mpi_offset *at[2];
    oar_status refused; /* by this backend, before MPI was called */
} mpi_operation;

/* Blocks in flight for the chunk link: request i is that of chunk i. */
typedef struct mpi_blocks {
    int count, room;
    MPI_Request *request;
    oari_chunk **chunk;
    int *index; /* as long, for MPI_Testsome */
    MPI_Status *status;
} mpi_blocks;

typedef struct mpi_engine {
    int rank, ranks;
    int joined; /* comm is valid */
    MPI_Comm comm;
    int blocking;         /* post waits until a collective is done */
    int64_t chunk_max;    /* most elements of one reduction */
    mpi_operation *first; /* in the order posted */
    mpi_operation **last;
    mpi_operation *spare; /* to be used again */
    oari_chunk_link *messages;
    mpi_blocks blocks;
    _Atomic int why;   /* it was aborted: an oar_status */
    oar_status ended;  /* all operations have been completed with it */
    oar_status failed; /* in a call that cannot return a status */
} mpi_engine;

/* ---- mpi_library.c: MPI in this process ---------------------------------- */

/* Initialises MPI unless it is initialised. blocking: collectives will wait in
 * MPI, so no lock may be held around them; fails where one is needed. */
oar_status mpi_start(int ranks, int blocking);

/* Count groups that are open, and operations that were abandoned: MPI is
 * finalised at exit only if there are none of either. */
void mpi_count_open(int more);
void mpi_count_abandoned(void);

/* Around calls of MPI: a lock where only one thread at a time may call it. */
void mpi_lock(void);
void mpi_unlock(void);

/* Whether the program has finalised MPI, after which nothing of MPI may be
 * called; and the error that says so. */
int mpi_is_finalized(void);
oar_status mpi_fail_finalized(void);

/* Sets the last error to MPI's text for code; what names the call. */
oar_status mpi_fail(int code, const char *what);

/* Returns "Open MPI 4.1.4"; or NULL, with the last error set, if the library
 * that is loaded is not the one this was compiled for. */
const char *mpi_version(void);

/* Operators of ours: min and max of floats, with our rules for NaN and zeros,
 * and of unsigned integers; sums of unsigned integers. For half types they need
 * the types that mpi_half_type returns. */
MPI_Op mpi_custom_op(oar_reduce_op_kind kind);
MPI_Datatype mpi_half_type(oar_dtype dtype);

/* ---- mpi_communicator.c -------------------------------------------------- */

/* Makes the communicator of the group's ranks. */
oar_status mpi_make_communicator(mpi_engine *e, const oar_backend_env *env);

/* ---- mpi_reduction.c ----------------------------------------------------- */

/* How MPI does a reduction. */
typedef struct mpi_reduction {
    MPI_Datatype type;
    MPI_Op op;
    oar_dtype dtype; /* of the operands */
    int made;        /* the operands must be made: converted, or scaled */
} mpi_reduction;

/* Returns 0 if MPI cannot do it. */
int mpi_reduction_find(const oar_collective *call, mpi_reduction *reduction);

/* Writes this rank's operands, converted and scaled. */
void mpi_reduction_operands(const oar_collective *call,
                            const mpi_reduction *reduction, void *to);

/* Writes MPI's result, elements of `dtype` in `from`, into the call's out:
 * divides for an average, rounds to a half type. */
void mpi_reduction_finish(const mpi_engine *e, const oar_collective *call,
                          const void *from, oar_dtype dtype);

/* ---- mpi_post.c: collectives --------------------------------------------- */

int mpi_takes(void *self, const oar_collective *call);
oar_status mpi_post(void *self, const oar_collective *call, oar_transfer *done);

/* ---- mpi_operation.c: collectives in flight ------------------------------ */

/* Makes an operation that is not in the list yet; NULL: no memory. */
mpi_operation *mpi_operation_create(mpi_engine *e, const oar_collective *call,
                                    oar_transfer *done);
/* Returns where the next request goes; NULL: no memory. */
MPI_Request *mpi_operation_request(mpi_operation *p);
/* Puts an operation that was started into the list, or completes it. code is
 * what MPI returned. */
oar_status mpi_operation_started(mpi_engine *e, mpi_operation *p, int code,
                                 const char *what);
/* Completes those that MPI has done. */
oar_status mpi_operations_test(mpi_engine *e);
/* Completes all with `why`; MPI may go on using their buffers. */
void mpi_operations_abandon(mpi_engine *e, oar_status why);

/* ---- mpi_transport.c: blocks for the chunk link -------------------------- */

oar_status mpi_transport_open(mpi_engine *e);
oar_status mpi_transport_test(mpi_engine *e);
void mpi_transport_close(mpi_engine *e);

/* ---- mpi_types.c --------------------------------------------------------- */

/* Returns a type for elements that are only moved. */
MPI_Datatype mpi_type_of(oar_dtype dtype);

/* Makes and commits a type of `count` elements in a row; the caller frees it.
 */
int mpi_make_row_type(size_t count, MPI_Datatype element, MPI_Datatype *row);

#endif
