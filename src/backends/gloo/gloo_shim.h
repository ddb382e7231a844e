/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_shim.h: the part of Gloo that this backend uses, with a C interface.
 *
 * Gloo is C++: it throws exceptions, and its waits block. No exception leaves
 * the shim: a function that fails returns -1 and writes Gloo's message into
 * why. Functions that block say so; gloo_mesh_disconnect ends such a wait from
 * another thread.
 */
#ifndef BACKENDS_GLOO_SHIM_H
#define BACKENDS_GLOO_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include <oarsong/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { GLOO_WHY = 320 };

/* Gloo's algorithms: enumerator, collective, name. All are of Gloo's second
 * generation (functions with tags); its first (classes) is not used. */
#define GLOO_ALGORITHM_LIST(X)                                              \
    X(GLOO_BARRIER_TREE, OAR_COLL_BARRIER, "dissemination")                 \
    X(GLOO_BROADCAST_TREE, OAR_COLL_BROADCAST, "tree")                      \
    X(GLOO_ALLREDUCE_RING, OAR_COLL_ALL_REDUCE, "ring")                     \
    X(GLOO_ALLREDUCE_BCUBE, OAR_COLL_ALL_REDUCE, "bcube")                   \
    X(GLOO_REDUCE_RING, OAR_COLL_REDUCE, "ring")                            \
    X(GLOO_GATHER_DIRECT, OAR_COLL_GATHER, "direct")                        \
    X(GLOO_SCATTER_DIRECT, OAR_COLL_SCATTER, "direct")                      \
    X(GLOO_ALLGATHER_RING, OAR_COLL_ALL_GATHER, "ring")                     \
    X(GLOO_REDUCE_SCATTER_ALLREDUCE, OAR_COLL_REDUCE_SCATTER, "all_reduce") \
    X(GLOO_ALLTOALL_PAIRS, OAR_COLL_ALL_TO_ALL, "pairwise")

typedef enum gloo_algorithm {
#define X(algorithm, kind, name) algorithm,
    GLOO_ALGORITHM_LIST(X)
#undef X
        GLOO_PLANNED /* not done by Gloo: planned by the core, over messages */
} gloo_algorithm;

/* ---- a mesh: this rank's connections to all others ----------------------- */

typedef struct gloo_mesh gloo_mesh;

typedef struct gloo_mesh_opts {
    int rank, ranks;
    oar_store *store;
    const char *prefix;  /* of the keys in the store */
    const char *address; /* of this host, to which the sockets are bound */
    int64_t timeout_ms;  /* for all ranks to connect; 0: for ever */
} gloo_mesh_opts;

/* Returns the version of the headers this was compiled with: "gloo 0.5.0". */
const char *gloo_version(void);

/* Connects to all other ranks. Blocks until that is done or the timeout has
 * passed. */
int gloo_mesh_open(const gloo_mesh_opts *opts, gloo_mesh **mesh,
                   char why[GLOO_WHY]);

/* Ends all connections: every wait in this mesh fails, now and later. Takes a
 * few milliseconds for each peer, but does not need the peers. Any thread. */
void gloo_mesh_disconnect(gloo_mesh *mesh);

/* No thread may be using the mesh. NULL is fine. As slow as disconnecting. */
void gloo_mesh_close(gloo_mesh *mesh);

/* ---- collectives --------------------------------------------------------- */

/* c[i] = a[i] op b[i]; c may be a. */
typedef void (*gloo_combine)(const void *arg, void *c, const void *a,
                             const void *b, size_t count);

/* One collective. Counts are in elements of `unit` bytes (1, 2, 4 or 8). It is
 * in place if in == out, or if one is this rank's part of the other. */
typedef struct gloo_task {
    gloo_algorithm algorithm;
    uint32_t tag; /* no other collective in flight has it */
    int root;
    size_t unit;
    void *in, *out;
    size_t in_count, out_count;
    const size_t *in_counts, *out_counts; /* by rank; NULL: all equal */
    gloo_combine combine;
    const void *combine_arg;
    void *scratch; /* of gloo_scratch_bytes */
} gloo_task;

size_t gloo_scratch_bytes(const gloo_task *task);

/* Runs the collective; blocks until it is done. Several threads may call it. */
int gloo_mesh_run(gloo_mesh *mesh, const gloo_task *task, char why[GLOO_WHY]);

/* ---- messages ------------------------------------------------------------ */

/* A send or a receive of one block, in flight. Blocks of a pair of ranks and a
 * slot arrive in order. A block may be smaller than its receive, not larger. */
typedef struct gloo_request gloo_request;

/* Starts a send or a receive; does not block. NULL: it failed. */
gloo_request *gloo_mesh_start(gloo_mesh *mesh, int sends, int peer,
                              uint32_t slot, void *data, size_t bytes,
                              char why[GLOO_WHY]);

/* Blocks until the request is done (0) or has failed (-1), or until
 * gloo_request_wake ends the wait (1). Only one thread may wait. */
int gloo_request_wait(gloo_request *request, char why[GLOO_WHY]);
/* Any thread, before the request is freed. */
void gloo_request_wake(gloo_request *request);
/* After this Gloo does not use the block's memory. */
void gloo_request_free(gloo_request *request);

#ifdef __cplusplus
}
#endif

#endif
