/* SPDX-License-Identifier: Apache-2.0 */
/* comm/exec/exec.h: runs the plan of one collective at a time, over shared
 * memory, over a backend's messages, or both. It never blocks. Several may be
 * in progress at once over the messages of one backend, each in an oari_exec of
 * its own. */
#ifndef OARI_COMM_EXEC_EXEC_H
#define OARI_COMM_EXEC_EXEC_H

#include "link/shm/control_page.h"
#include "comm/exec/call.h"
#include "plan/choose.h"
#include "comm/exec/external.h"
#include "record/history.h"
#include "plan/plan.h"

enum { OARI_PLAN_CACHE = 16 };

/* A plan, and everything in the call that it depends on. */
typedef struct oari_cached_plan {
    uint64_t shape, agreed;
    oar_coll kind;
    oar_dtype dtype;
    oar_reduce_op_kind op;
    int root, canonical;
    oari_plan plan; /* no steps: empty */
} oari_cached_plan;

/* Why another rank seems to be in a different operation. */
typedef struct oari_exec_mismatch {
    int found;
    int peer;
    char claim[176]; /* what does not fit; "": only the fingerprints differ */
} oari_exec_mismatch;

typedef struct oari_exec {
    /* set once, by the owner */
    int rank, ranks;
    oari_shm *shm; /* NULL: none. With members: the one of my host */
    const oar_backend_ops *backend; /* that carries messages */
    void *self;
    oari_external *external; /* an external engine with collectives of its own
                              (exec_post.c); NULL: none */
    oari_shm
        *compared_on; /* where its collectives are compared; NULL: nowhere */
    size_t small_bytes, stage_bytes, chunk_bytes;
    const int *hosts;        /* by rank; NULL: all on one */
    const oari_rules *rules; /* outlives this; NULL: the normal ones */
    int checks_tags; /* the backend can receive with bits of a tag left open */
    oari_history *history; /* of the group, outlives this; NULL: none */

    oari_cached_plan cache[OARI_PLAN_CACHE];
    oari_plan once, second; /* plans that are not kept */

    /* the operation in progress */
    const oari_call *call;
    uint64_t sequence, shape;
    uint64_t link; /* what peers compare: history.h */
    uint64_t
        number; /* of the collective on this group: the same on all ranks */
    oari_exec_mismatch
        doubt; /* why it failed, if another rank has to be asked */
    const oari_plan *plan;
    oari_plan_request request; /* of a plan that is not kept, for REPLAN */
    int never_waits; /* the caller does not wait: sync points are only begun */
    int at;          /* step */
    int settles;     /* the last sync point is to be completed first */
    int begun;       /* of the step: its sync point has begun */
    int syncs;       /* sync points so far */
    int shows;       /* OARI_SHOWS_ bits */
    int exposed;     /* of these: peers know where they are and may use them */
    int fetches;     /* every rank can fetch private memory of all others */
    int missed;      /* a rank could not have what it had to fetch */
    int lost; /* the shm rank that went while it was copied from, or -1 */
    size_t element, out_element; /* bytes: of the input and of all memory but
                                    the output; of the output */
    unsigned char *in_data, *out_data; /* mine */
    void *block; /* made for the result of an object; the call's when done */

    /* by shm rank */
    void **in, **out;             /* where their buffers are here */
    size_t *in_count, *out_count; /* elements */
    uint64_t *in_private; /* addresses of inputs to be fetched; 0: none */
    const void **source;  /* for a reduction */
    void **destination;
    double *scale; /* factors of the sources */

    /* by rank */
    double *factor;
    uint64_t *table;                     /* sizes, or where parts begin */
    size_t *part_at, *out_at, *their_at; /* for ragged requests */

    unsigned char *gather, *work;
    size_t gather_bytes, work_bytes;
    oar_transfer *transfer; /* ring buffer: those in flight, oldest first */
    int transfers, oldest, transfer_room;
    int waiting; /* of the step: messages still to be done */

    /* of a collective that the external engine does */
    int posted;     /* the engine does this one */
    int agreed;     /* all ranks that share memory have begun the same */
    unsigned polls; /* of it */
    oar_collective engine_call;
    oar_transfer post;
} oari_exec;

typedef enum oari_progress {
    OARI_PENDING = 0,
    OARI_DONE = 1,
    OARI_FAILED = 2 /* the last error says why */
} oari_progress;

oar_status oari_exec_init(oari_exec *exec);
void oari_exec_clear(oari_exec *exec);

/* Finds the plan of a call. sequence: of the operation on this rank, for texts.
 * number: of the collective, the same on all ranks; two in progress differ in
 * the lower 32 bits (0: a message on device memory, which concerns no other
 * rank). On failure no peer has seen anything of the call. */
oar_status oari_exec_start(oari_exec *exec, const oari_call *call,
                           uint64_t sequence, uint64_t number);
oari_progress oari_exec_poll(oari_exec *exec);

/* Takes the buffers out of the peers' reach after a failure, when the backend
 * holds no message any more, and frees a result that was begun. If it fails,
 * which is logged too, peers may still write to the output. */
oar_status oari_exec_withdraw(oari_exec *exec);

/* Whether the operation waits for a message of this rank, or for its slot at a
 * sync point (a rank of the group). */
int oari_exec_awaits_message(const oari_exec *exec, int rank);
int oari_exec_awaits_slot(const oari_exec *exec, int rank);

/* Whether a rank has posted something else to the engine. Then reports the
 * mismatch. */
int oari_exec_posts_differ(oari_exec *exec);

/* Whether the external engine does the operation and may wait for this rank of
 * the group, which has not begun it as far as can be seen. */
int oari_exec_awaits_post(const oari_exec *exec, int rank);

/* Whether the external engine's collective is complete on this rank of the
 * group, as far as can be seen. */
int oari_exec_has_completed(const oari_exec *exec, int rank);

/* Whether the backend must make progress for the operation. */
static inline int oari_exec_has_messages(const oari_exec *exec)
{
    return exec->transfers != 0;
}

/* Whether the operation waits at a sync point. */
static inline int oari_exec_is_at_sync(const oari_exec *exec)
{
    return exec->begun || exec->settles;
}

/* For tests: called before every step. */
extern void (*oari_exec_hook)(const oari_exec *exec);

#endif
