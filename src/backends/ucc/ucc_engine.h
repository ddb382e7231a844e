/* SPDX-License-Identifier: Apache-2.0 */
/* ucc/engine.h: what the files of the backend `ucc` share.
 *
 * A group has a UCC context and a UCC team of its own; the process has one UCC
 * library (docs/decisions/0023). The names begin with oari_ucc_, since ucc_ is
 * the library's. One driver at a time calls into a group's engine; what the
 * groups share is guarded by library.c.
 */
#ifndef OARI_BACKENDS_UCC_UCC_ENGINE_H
#define OARI_BACKENDS_UCC_UCC_ENGINE_H

#include <stdatomic.h>
#include <ucc/api/ucc.h>

#include <oarsong/backend.h>

/* Where ranks exchange what UCC needs to find its peers: an all-gather over the
 * store, with a number for each, since all ranks make them in one order. */
enum { OARI_UCC_OPENING = 1, OARI_UCC_OPEN, OARI_UCC_ENDING };

typedef struct oari_ucc_meeting {
    _Atomic int state; /* only while opening is there a store */
    oar_store *store;  /* NULL in a group of one */
    char name[152];    /* the group's, at most 150 bytes */
    int rank, ranks;
    int64_t deadline_ns, timeout_ms;
    int64_t linger_ms; /* what ending connections waits for peers' ends */
    unsigned number;   /* of all-gathers so far */
    oar_status status; /* of the one that failed; its text is the last error */
} oari_ucc_meeting;

/* What is made for a group. It stays where it is, and is there as long as the
 * context. */
typedef struct oari_ucc_opening {
    oari_ucc_meeting meeting;
    int takes_bf16; /* rank 0 wants it as UCC does it */
    ucc_context_h context;
    ucc_team_h team;
    oar_status status; /* of making it, and the text if that failed */
    char text[400];
} oari_ucc_opening;

/* A collective under way, in memory of its own until it is done. */
typedef struct oari_ucc_request {
    struct oari_ucc_request *next;
    ucc_coll_req_h handle; /* NULL: it failed, and waits for the abort */
    oar_transfer *done;
    oar_coll kind;
    uint64_t parts[]; /* counts and places of parts, where UCC wants arrays */
} oari_ucc_request;

typedef struct oari_ucc {
    int rank, ranks;
    oari_ucc_opening *made; /* NULL: it did not open */
    oari_ucc_request *head; /* under way, oldest first */
    oari_ucc_request **tail;
    oari_ucc_request *spare; /* used again: posting allocates nothing */
    oar_status failed;       /* of the first request that did */
    char text[400];
    _Atomic int why; /* an oar_status: aborted; OAR_OK: not */
} oari_ucc;

/* ---- library.c ----------------------------------------------------------- */

/* The process's UCC library: made once, kept for good. Any thread. */
oar_status oari_ucc_library(ucc_lib_h *library);

/* What `oarsong info` says, without starting anything. */
oar_status oari_ucc_probe(oar_backend_caps *caps);

/* Writes "what: UCC's text" and gives what it is in our words. */
oar_status oari_ucc_fail(ucc_status_t status, const char *what);

/* ---- meeting.c ----------------------------------------------------------- */

/* Borrows the store until oari_ucc_meeting_end. */
void oari_ucc_meeting_begin(oari_ucc_meeting *meeting,
                            const oar_backend_env *env);
void oari_ucc_meeting_end(oari_ucc_meeting *meeting);

/* How UCC is to call it. Valid as long as the meeting's memory. */
ucc_oob_coll_t oari_ucc_meeting_calls(oari_ucc_meeting *meeting);

/* The same for ourselves: every rank's part to all, waiting for it. */
oar_status oari_ucc_meeting_exchange(oari_ucc_meeting *meeting, void *part,
                                     void *row, size_t bytes);

/* ---- agree.c ------------------------------------------------------------- */

/* Sees that all ranks have one version of UCC, and takes rank 0's wishes. */
oar_status oari_ucc_agree(oari_ucc_opening *o);

/* ---- opening.c ----------------------------------------------------------- */

/* Makes context and team; returns at env->timeout_ms whatever UCC does. */
oar_status oari_ucc_opening_run(const oar_backend_env *env,
                                oari_ucc_opening **opening);

/* Takes it. No request may be under way. Returns soon, whatever UCC does. */
void oari_ucc_opening_end(oari_ucc_opening *opening);

/* ---- ucc_errand.c -------------------------------------------------------- */

/* Runs what(arg) in a thread. OAR_E_TIMEOUT: it is not back at the deadline;
 * then arg is its own, and it calls drop(arg) if it ever is. */
oar_status oari_ucc_errand(void (*what)(void *arg), void (*drop)(void *arg),
                           void *arg, int64_t deadline_ns);

/* ---- ucc_arguments.c ----------------------------------------------------- */

/* Whether UCC can do it as we promise it; the same on all ranks. */
int oari_ucc_takes(void *self, const oar_collective *call);

/* Whether there is nothing to move or to wait for, which all ranks see alike.
 */
int oari_ucc_is_empty(const oari_ucc *u, const oar_collective *call);

/* How many numbers oari_ucc_arguments wants to have room for. */
size_t oari_ucc_parts(const oari_ucc *u, const oar_collective *call);

/* The call in UCC's words. parts lives as long as the request. */
ucc_coll_args_t oari_ucc_arguments(const oari_ucc *u,
                                   const oar_collective *call, uint64_t *parts);

#endif
