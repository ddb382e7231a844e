/* SPDX-License-Identifier: Apache-2.0 */
/* plan/plan.h: what one rank does in one collective, as a list of steps.
 *
 * A planner is a pure function of the operation, rank, size and settings: it
 * knows no group, link or clock. One executor (exec.h) runs any plan; the tests
 * run all ranks' plans at once, symbolically, without either.
 *
 * Two families of steps. Over memory that ranks of a board map: MEET, then COPY
 * and REDUCE that name other ranks' memory by their rank on the board. Over
 * messages: SEND and RECV, which are started, and WAIT, which ends when the
 * oldest of them are done. A plan may have both.
 *
 * Three sizes of element. Buffers, lines, stages and GATHER hold the user's;
 * WORK holds partial results, which for half types are f32; words are 8 bytes.
 */
#ifndef OARI_PLAN_PLAN_H
#define OARI_PLAN_PLAN_H

#include <oarsong/backend.h>

typedef enum oari_step_kind {
    /* Show my line to all of the board and wait for theirs. count > 0: elements
     * of my input from from_at on travel in it. from == OARI_TABLE: my table
     * does, behind the places of my buffers. */
    OARI_MEET,
    /* Go on at step `jump` unless buffers `from` (OARI_IN or OARI_OUT) of rank
     * `peer` (-1: of every rank) can be reached. Follows the first MEET. */
    OARI_UNLESS_REACHABLE,
    /* to[to_at ..] = from[from_at ..], count elements. */
    OARI_COPY,
    /* to[to_at ..] = the operator over `from` of ranks 0, 1, 2, ... in that
     * order, at from_at, count elements; the finished result, or, if `to` is
     * WORK, a partial one. */
    OARI_REDUCE,
    /* to[to_at ..] = from[from_at ..] combined with with[with_at ..] in that
     * order. IN is a contribution, WORK a partial result. The result is partial
     * unless `finish` is set. */
    OARI_COMBINE,
    OARI_SEND,   /* from, to rank peer */
    OARI_RECV,   /* into `to`, from rank peer */
    OARI_WAIT,   /* for the `count` oldest messages under way */
    OARI_SETTLE, /* all sizes are known now: go on with a second plan */
    OARI_POST,   /* the foreign engine does it all; the whole of such a plan */
    OARI_END
} oari_step_kind;

/* Places. Those marked (peer) belong to rank `peer` (as a destination:
 * `to_peer`) of the board; as the source of a REDUCE, to all its ranks in
 * turn. */
typedef enum oari_where {
    OARI_IN,           /* (peer) the input */
    OARI_OUT,          /* (peer) the output */
    OARI_ALL_OUT,      /* every rank's output (destination of a REDUCE) */
    OARI_LINE,         /* (peer) what travelled in its line, last MEET */
    OARI_STAGE,        /* (peer) its stage, a shared row of three chunks */
    OARI_OTHER_STAGES, /* (source of a REDUCE) the stages of all others; mine is
                          the input at with_at instead */
    OARI_STAGE_AND_OUT, /* (destination of a REDUCE) my stage, and my output at
                           with_at */
    OARI_GATHER,        /* scratch of mine. As the source of a REDUCE: one slot
                           of slot_count elements for each of `slots` ranks,
                           the first of them rank `peer`; mine is the input at
                           with_at instead */
    OARI_WORK,          /* scratch of mine for partial results */
    OARI_FACTOR,        /* words: by rank, the factor of its contribution */
    OARI_TABLE,         /* words: by rank, a size */
    OARI_NOWHERE
} oari_where;

typedef struct oari_step {
    oari_step_kind kind;
    oari_where to, from, with;
    int peer, to_peer; /* -1: mine */
    int jump;
    int finish;
    size_t to_at, from_at, with_at, count; /* elements */
} oari_step;

typedef struct oari_plan {
    const char *algorithm;
    int steps;
    int64_t room;
    int failed; /* out of memory while it was made */
    int shows;  /* OARI_SHOWS_ bits: peers are told where these are */
    int slots;  /* ranks in a GATHER */
    size_t slot_count;
    size_t gather_count, work_count; /* elements of scratch */
    int posted, waited;              /* messages, while it is made */
    int most;                        /* of them under way at once */
    oari_step *step;
} oari_plan;

enum { OARI_SHOWS_IN = 1, OARI_SHOWS_OUT = 2 };

/* What a planner is told. Only what all ranks know alike may decide about the
 * course of a plan. */
typedef struct oari_ask {
    oar_coll kind;
    int rank, ranks, root;
    int ragged;       /* parts of any size */
    int object;       /* and nobody knows the sizes of the others */
    int settled;      /* now everybody does */
    int weighted;     /* the operator needs every rank's factor */
    int mean;         /* and their sum in the end */
    int lift;         /* a contribution is not yet a partial result */
    int canonical;    /* the order of ranks is wanted */
    size_t count;     /* elements of the vector; with equal parts, of one part;
                         else of this rank's own part */
    const size_t *at; /* ragged: where the parts of the row begin, and its
                         end; NULL: equal, or not known here */
    const size_t *out_at; /* all_to_all: the same of the output (at: the input)
                           */
    const size_t *their_at; /* all_to_all, settled: where this rank's part
                               begins in each rank's input */
    size_t most;            /* all_to_all, settled: the longest part there is */
    size_t element, wide;   /* bytes of an element, and of a partial result */
    size_t small_bytes;     /* up to here data goes in the line at once */
    size_t line_bytes;      /* room in a line */
    size_t stage_bytes;
    size_t chunk_bytes;          /* of a message */
    const int *hosts;            /* by rank; NULL: all on one */
    const int *member;           /* ranks of my board; NULL: all */
    int board_rank, board_ranks; /* 0 ranks: there is no board */
    int sends;                   /* there are messages */
} oari_ask;

typedef void (*oari_planner)(const oari_ask *ask, oari_plan *plan);

/* Makes the plan; END is added. Frees it again. */
oar_status oari_plan_make(const char *name, oari_planner planner,
                          const oari_ask *ask, oari_plan *plan);
void oari_plan_clear(oari_plan *plan);

/* ---- for planners: append a step (a full memory shows in plan->failed).
 * Those of no elements are left out. ------------------------------------- */

void oari_plan_meet(oari_plan *plan, size_t from_at, size_t count);
void oari_plan_meet_table(oari_plan *plan);
int oari_plan_unless_reachable(oari_plan *plan, oari_where what,
                               int peer);       /* its index */
void oari_plan_land(oari_plan *plan, int jump); /* that jump comes here */
void oari_plan_end(oari_plan *plan);
void oari_plan_settle(oari_plan *plan);
void oari_plan_copy(oari_plan *plan, oari_where to, size_t to_at,
                    oari_where from, int peer, size_t from_at, size_t count);
/* Into another rank's output. */
void oari_plan_copy_out(oari_plan *plan, int to_peer, size_t to_at,
                        oari_where from, size_t from_at, size_t count);
void oari_plan_reduce(oari_plan *plan, oari_where to, size_t to_at,
                      oari_where from, size_t from_at, size_t count);
/* A REDUCE with every field its own. */
void oari_plan_step(oari_plan *plan, oari_step step);

typedef struct oari_spot {
    oari_where where;
    size_t at;
} oari_spot;

void oari_plan_combine(oari_plan *plan, oari_spot to, oari_spot left,
                       oari_spot right, int finish, size_t count);
void oari_plan_send(oari_plan *plan, int peer, oari_where from, size_t from_at,
                    size_t count);
void oari_plan_recv(oari_plan *plan, int peer, oari_where to, size_t to_at,
                    size_t count);
/* Messages without data. */
void oari_plan_signal(oari_plan *plan, int to, int from);
void oari_plan_wait(oari_plan *plan); /* for all */
/* For all that were posted when plan->posted was this. */
void oari_plan_wait_until(oari_plan *plan, int posted);

/* ---- cutting ------------------------------------------------------------- */

/* Slice r of count elements cut over ranks: first and length. Slices begin on
 * multiples of 64 elements, so that no two share a cache line. */
size_t oari_slice_first(size_t count, int ranks, int r);
size_t oari_slice_count(size_t count, int ranks, int r);

/* A row cut for n ranks: into parts that are given, into equal ones, or into
 * slices of a vector. */
typedef struct oari_cut {
    int n;
    size_t count;     /* of the vector, or of one equal part */
    int slices;       /* count is the vector's */
    const size_t *at; /* the parts, if given */
} oari_cut;

oari_cut oari_cut_slices(size_t count, int n);
oari_cut oari_cut_parts(const oari_ask *ask); /* the row of ask */
size_t oari_cut_first(const oari_cut *cut, int r);
size_t oari_cut_count(const oari_cut *cut, int r);
size_t oari_cut_most(const oari_cut *cut); /* the longest */

/* The part of [first, first + count) in piece `index` of `size` elements, as
 * an offset from first; *got is its length. */
size_t oari_piece(size_t count, size_t size, size_t index, size_t *got);

/* Elements of a chunk of a message of count elements of so many bytes: whole
 * blocks of 64. Messages that are long enough are cut at least in four, so that
 * combining overlaps sending. */
size_t oari_chunk(const oari_ask *ask, size_t count, size_t element);

enum { OARI_WINDOW = 4 }; /* chunks on their way, in each direction */

/* Ranks that send each other messages, in a circle of their own. */
typedef struct oari_circle {
    int n, me;
    int first;       /* the rank of member 0, if rank is NULL */
    const int *rank; /* by member; NULL: first, first + 1, ... around */
} oari_circle;

oari_circle oari_circle_all(const oari_ask *ask);
oari_circle oari_circle_from(const oari_ask *ask, int first);
int oari_circle_rank(const oari_circle *c, int member); /* any whole number */
int oari_circle_wrap(const oari_circle *c, int member); /* 0 .. n-1 */

#endif
