/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_shim.h: what this backend needs of Gloo, as C.
 *
 * Gloo is C++: it throws, and its waits block. No exception leaves the shim:
 * what fails returns -1 and writes Gloo's own words into why. What blocks says
 * so; gloo_mesh_spoil ends such a wait from another thread.
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

/* How Gloo can do each collective: way, kind, name. "old" ones are Gloo's
 * first generation (classes), all others its second (functions with tags). */
#define GLOO_WAY_LIST(X)                                                   \
    X(GLOO_BARRIER_TREE, OAR_COLL_BARRIER, "dissemination")                \
    X(GLOO_BARRIER_ALL, OAR_COLL_BARRIER, "all_to_all")                    \
    X(GLOO_BARRIER_ONE, OAR_COLL_BARRIER, "all_to_one")                    \
    X(GLOO_BROADCAST_TREE, OAR_COLL_BROADCAST, "tree")                     \
    X(GLOO_BROADCAST_STAR, OAR_COLL_BROADCAST, "one_to_all")               \
    X(GLOO_ALLREDUCE_RING, OAR_COLL_ALL_REDUCE, "ring")                    \
    X(GLOO_ALLREDUCE_BCUBE, OAR_COLL_ALL_REDUCE, "bcube")                  \
    X(GLOO_ALLREDUCE_HALVING, OAR_COLL_ALL_REDUCE, "halving_doubling")     \
    X(GLOO_ALLREDUCE_CHUNKED, OAR_COLL_ALL_REDUCE, "ring_chunked")         \
    X(GLOO_ALLREDUCE_OLD_RING, OAR_COLL_ALL_REDUCE, "old_ring")            \
    X(GLOO_ALLREDUCE_OLD_BCUBE, OAR_COLL_ALL_REDUCE, "old_bcube")          \
    X(GLOO_REDUCE_RING, OAR_COLL_REDUCE, "ring")                           \
    X(GLOO_GATHER_DIRECT, OAR_COLL_GATHER, "direct")                       \
    X(GLOO_SCATTER_DIRECT, OAR_COLL_SCATTER, "direct")                     \
    X(GLOO_ALLGATHER_RING, OAR_COLL_ALL_GATHER, "ring")                    \
    X(GLOO_ALLGATHER_OLD_RING, OAR_COLL_ALL_GATHER, "old_ring")            \
    X(GLOO_SCATTERED_HALVING, OAR_COLL_REDUCE_SCATTER, "halving_doubling") \
    X(GLOO_SCATTERED_WHOLE, OAR_COLL_REDUCE_SCATTER, "all_reduce")         \
    X(GLOO_ALLTOALL_PAIRS, OAR_COLL_ALL_TO_ALL, "pairwise")

typedef enum gloo_way {
#define X(way, kind, name) way,
    GLOO_WAY_LIST(X)
#undef X
        GLOO_PLANNED /* none of Gloo's: the core plans it over messages */
} gloo_way;

/* ---- a mesh: this rank's connections to all others ----------------------- */

typedef struct gloo_mesh gloo_mesh;

typedef struct gloo_site {
    int rank, ranks;
    oar_store *store;
    const char *prefix;  /* of its keys there */
    const char *address; /* of this host: what its sockets are bound to */
    int64_t timeout_ms;  /* to find each other */
    int old;             /* it will run ways of the first generation */
} gloo_site;

/* "gloo 0.5.0": the library that this was compiled for. */
const char *gloo_version(void);

/* Connects to all others; blocks, up to the timeout. */
int gloo_mesh_open(const gloo_site *site, gloo_mesh **mesh, char why[GLOO_WHY]);

/* Ends all connections: who waits in this mesh fails, also later on. Takes some
 * milliseconds for each peer, of which none is needed. Any thread. */
void gloo_mesh_spoil(gloo_mesh *mesh);

/* Nobody may be in it any more. NULL is fine. As slow as spoil. */
void gloo_mesh_close(gloo_mesh *mesh);

/* ---- collectives --------------------------------------------------------- */

/* c[i] = a[i] op b[i]; c may be a. */
typedef void (*gloo_combine)(const void *how, void *c, const void *a,
                             const void *b, size_t count);

/* One collective. Counts are elements of `unit` bytes (1, 2, 4 or 8). in ==
 * out, or in as this rank's part of out (or the other way round), is in place.
 */
typedef struct gloo_task {
    gloo_way way;
    uint32_t tag; /* no other under way has it */
    int root;
    size_t unit;
    void *in, *out;
    size_t in_count, out_count;
    const size_t *in_counts, *out_counts; /* by rank; NULL: all the same */
    gloo_combine combine;
    const void *how;
    void *scratch; /* gloo_scratch_bytes of it */
} gloo_task;

size_t gloo_scratch_bytes(const gloo_mesh *mesh, const gloo_task *task);

/* Does it; blocks. Several threads may, but only one at a time with old ways,
 * and the same ones in the same order on all ranks. */
int gloo_mesh_run(gloo_mesh *mesh, const gloo_task *task, char why[GLOO_WHY]);

/* Whether it is of Gloo's first generation. */
int gloo_is_old(gloo_way way);

/* ---- messages ------------------------------------------------------------ */

/* One block under way. Blocks of a pair and slot arrive in their order. What is
 * sent may be smaller than what is received, never larger. */
typedef struct gloo_slip gloo_slip;

/* Begin; never block. NULL: failed. */
gloo_slip *gloo_mesh_send(gloo_mesh *mesh, int peer, uint32_t slot, void *data,
                          size_t bytes, char why[GLOO_WHY]);
gloo_slip *gloo_mesh_recv(gloo_mesh *mesh, int peer, uint32_t slot, void *data,
                          size_t bytes, char why[GLOO_WHY]);

/* Blocks until it is done (0), has failed (-1), or gloo_slip_wake ends the wait
 * (1). One thread. */
int gloo_slip_wait(gloo_slip *slip, char why[GLOO_WHY]);
/* Any thread, before the slip is freed. */
void gloo_slip_wake(gloo_slip *slip);
/* Gloo does not touch the data any more. */
void gloo_slip_free(gloo_slip *slip);

#ifdef __cplusplus
}
#endif

#endif
