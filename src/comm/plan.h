/* SPDX-License-Identifier: Apache-2.0 */
/* comm/plan.h: what one rank does in one collective, as a list of steps.
 *
 * A planner is a pure function of the operation, rank, size and settings: it
 * knows no group, link or clock. One executor (exec.h) runs any plan; the tests
 * run all ranks' plans at once, symbolically, without either.
 *
 * Two families of steps. Over memory that all ranks map: MEET, then COPY and
 * REDUCE that name other ranks' memory. Over messages: SEND and RECV, which are
 * started, and WAIT, which ends when all started ones are done.
 */
#ifndef OARI_COMM_PLAN_H
#define OARI_COMM_PLAN_H

#include <oarsong/backend.h>

typedef enum oari_step_kind {
    /* Show my line to all and wait for theirs. count > 0: elements of my input
     * from from_at on travel in it. */
    OARI_MEET,
    /* Go on at step `jump` unless the input of rank `peer` (-1: input and
     * output of every rank) can be reached. Follows the first MEET. */
    OARI_UNLESS_REACHABLE,
    /* to[to_at ..] = from[from_at ..], count elements. */
    OARI_COPY,
    /* to[to_at ..] = the operator over `from` of ranks 0, 1, 2, ... in that
     * order, at from_at, count elements. */
    OARI_REDUCE,
    OARI_SEND, /* from, to rank peer */
    OARI_RECV, /* into `to`, from rank peer */
    OARI_WAIT,
    OARI_END
} oari_step_kind;

/* Places. Those marked (peer) belong to rank `peer` of the step; as the source
 * of a REDUCE, to all ranks in turn. */
typedef enum oari_where {
    OARI_IN,      /* (peer) the input */
    OARI_OUT,     /* (peer) the output */
    OARI_ALL_OUT, /* every rank's output (as a destination) */
    OARI_LINE,    /* (peer) what travelled in its line at the last MEET */
    OARI_STAGE,   /* (peer) its stage, a shared row of three chunks; `to` of a
                     REDUCE: my stage and my output at out_at */
    OARI_GATHER,  /* scratch of mine: one slot of slot_count elements a rank */
    OARI_FACTOR   /* one f64 a rank: the factor of its contribution */
} oari_where;

typedef struct oari_step {
    oari_step_kind kind;
    oari_where to, from;
    int peer; /* -1: mine */
    int jump;
    size_t to_at, from_at, out_at, count; /* elements */
} oari_step;

typedef struct oari_plan {
    const char *algorithm;
    int steps, room;
    int failed;        /* out of memory while it was made */
    int shows_buffers; /* peers are told where in and out are */
    size_t slot_count; /* elements of one GATHER slot; 0: no scratch */
    oari_step *step;
} oari_plan;

/* What a planner is told. */
typedef struct oari_ask {
    oar_coll kind;
    int rank, ranks, root;
    size_t count, element; /* elements, bytes of one */
    int weighted;          /* the operator needs every rank's factor */
    size_t small_bytes;    /* up to here data goes in the line at once */
    size_t line_bytes;     /* room in a line */
    size_t stage_bytes;
} oari_ask;

typedef void (*oari_planner)(const oari_ask *ask, oari_plan *plan);

/* A name, what it plans, and the planner; the table ends with a NULL name. */
typedef struct oari_algorithm {
    const char *name;
    oar_coll kind;
    int over_memory; /* else over messages */
    oari_planner plan;
} oari_algorithm;
extern const oari_algorithm oari_algorithms[];

/* Picks the row for an operation: the first that fits, or the one of that name
 * (NULL: none) if it plans such an operation. NULL with the last error set if
 * there is none. */
const oari_algorithm *oari_choose(const oari_ask *ask, int over_memory,
                                  const char *name);

/* What the algorithms of a name work over. */
enum { OARI_NO_ALGORITHM = -1, OARI_OVER_MESSAGES = 0, OARI_OVER_MEMORY = 1 };
int oari_algorithm_kind(const char *name);

/* Makes the plan; END is added. Frees it again. */
oar_status oari_plan_make(const oari_algorithm *algorithm, const oari_ask *ask,
                          oari_plan *plan);
void oari_plan_clear(oari_plan *plan);

/* ---- for planners: append a step (a full memory shows in plan->failed) ----
 */

void oari_plan_meet(oari_plan *plan, size_t from_at, size_t count);
int oari_plan_unless_reachable(oari_plan *plan, int peer); /* its index */
void oari_plan_land(oari_plan *plan, int jump); /* that jump comes here */
void oari_plan_end(oari_plan *plan);
void oari_plan_copy(oari_plan *plan, oari_where to, size_t to_at,
                    oari_where from, int peer, size_t from_at, size_t count);
void oari_plan_reduce(oari_plan *plan, oari_where to, size_t to_at,
                      oari_where from, size_t from_at, size_t out_at,
                      size_t count);
void oari_plan_send(oari_plan *plan, int peer, oari_where from, size_t from_at,
                    size_t count);
void oari_plan_recv(oari_plan *plan, int peer, oari_where to, size_t to_at,
                    size_t count);
void oari_plan_wait(oari_plan *plan);

/* Slice r of count elements cut over ranks: first and length. Slices begin on
 * multiples of 64 elements, so that no two share a cache line. */
size_t oari_slice_first(size_t count, int ranks, int r);
size_t oari_slice_count(size_t count, int ranks, int r);

#endif
