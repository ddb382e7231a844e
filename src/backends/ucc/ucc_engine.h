/* SPDX-License-Identifier: Apache-2.0 */
/* backends/ucc/ucc_engine.h: the private header of the backend ucc.
 *
 * A group has a UCC context and a UCC team of its own; the process has one UCC
 * library (docs/decisions/0023). The names begin with oari_ucc_, since ucc_ is
 * the library's. One driver at a time calls into a group's engine; a lock in
 * ucc_library.c guards what the groups share.
 */
#ifndef OARI_BACKENDS_UCC_UCC_ENGINE_H
#define OARI_BACKENDS_UCC_UCC_ENGINE_H

#include <stdatomic.h>
#include <ucc/api/ucc.h>

#include <oarsong/backend.h>

enum { OARI_UCC_OPENING = 1, OARI_UCC_OPEN, OARI_UCC_ENDING };

/* UCC's out-of-band all-gather, by which it finds its peers: over the store.
 * All ranks make them in the same order, so they are numbered. */
typedef struct oari_ucc_oob {
    _Atomic int state; /* the store may be used only while opening */
    oar_store *store;  /* NULL in a group of one */
    char name[152];    /* the group's, at most 150 bytes */
    int rank, ranks;
    int64_t deadline_ns, timeout_ms;
    int64_t linger_ms; /* how long ending connections waits for the peers */
    unsigned number;   /* of all-gathers so far */
    oar_status status; /* of the one that failed; its text is the last error */
} oari_ucc_oob;

/* The UCC context and team of a group. Its address does not change, because UCC
 * keeps pointers to the oob. */
typedef struct oari_ucc_context {
    oari_ucc_oob oob;
    int takes_bf16; /* rank 0 wants bf16 reduced by UCC */
    ucc_context_h context;
    ucc_team_h team;
    oar_status status; /* of making it, and the text if that failed */
    char text[400];
} oari_ucc_context;

/* A collective in flight. */
typedef struct oari_ucc_request {
    struct oari_ucc_request *next;
    ucc_coll_req_h handle; /* NULL: it failed, and waits for the abort */
    oar_transfer *done;
    oar_coll kind;
    uint64_t parts[]; /* counts and displacements, where UCC wants arrays */
} oari_ucc_request;

typedef struct oari_ucc {
    int rank, ranks;
    oari_ucc_context *made; /* NULL: it did not open */
    oari_ucc_request *head; /* in flight, oldest first */
    oari_ucc_request **tail;
    oari_ucc_request *spare; /* used again: posting allocates nothing */
    oar_status failed;       /* of the first request that failed */
    char text[400];
    _Atomic int why; /* an oar_status: aborted; OAR_OK: not */
} oari_ucc;

/* ---- ucc_library.c ------------------------------------------------------- */

/* Gives the process's UCC library, which is made once and never freed. Any
 * thread. */
oar_status oari_ucc_library(ucc_lib_h *library);

/* Finds out what `oarsong info` prints, without starting UCC. */
oar_status oari_ucc_probe(oar_backend_caps *caps);

/* Sets the last error to "what: UCC's text" and returns the matching status. */
oar_status oari_ucc_fail(ucc_status_t status, const char *what);

/* ---- ucc_oob.c ----------------------------------------------------------- */

/* Borrows the store until the state is OARI_UCC_OPEN. */
void oari_ucc_oob_init(oari_ucc_oob *oob, const oar_backend_env *env);

/* Returns the functions that UCC calls. Valid as long as the oob. */
ucc_oob_coll_t oari_ucc_oob_calls(oari_ucc_oob *oob);

/* An all-gather for this backend itself; waits until it is done. */
oar_status oari_ucc_oob_exchange(oari_ucc_oob *oob, void *part, void *row,
                                 size_t bytes);

/* ---- ucc_context.c ------------------------------------------------------- */

/* Makes context and team. Returns at env->timeout_ms, even if UCC does not. */
oar_status oari_ucc_context_create(const oar_backend_env *env,
                                   oari_ucc_context **context);

/* Takes the context. No request may be in flight. Returns soon, even if UCC
 * does not. */
void oari_ucc_context_destroy(oari_ucc_context *context);

/* ---- ucc_arguments.c ----------------------------------------------------- */

/* Whether UCC can do it as we promise it; the same on all ranks. */
int oari_ucc_takes(void *self, const oar_collective *call);

/* Whether there is nothing to move or to wait for; the same on all ranks. */
int oari_ucc_is_empty(const oari_ucc *u, const oar_collective *call);

/* Returns the arguments of UCC for a call. parts has room for 4 numbers for
 * each rank, and lives as long as the request. */
ucc_coll_args_t oari_ucc_arguments(const oari_ucc *u,
                                   const oar_collective *call, uint64_t *parts);

#endif
