/* SPDX-License-Identifier: Apache-2.0 */
/* plan/plan.h: what one rank does in one collective, as a list of steps.
 *
 * A planner is a pure function of the operation, rank, size and settings: it
 * knows no group, link or clock. One executor (exec.h) runs any plan; the tests
 * run all ranks' plans at once, symbolically, without either.
 *
 * There are two families of steps. Ranks that share memory take SYNC, then COPY
 * and REDUCE, which name other ranks' memory by their rank among those that
 * share it (their shm rank). Ranks that send messages take SEND and RECV, which
 * start a message, and WAIT, which ends when the oldest messages are done. A
 * plan may have both.
 *
 * There are three sizes of element. The user's buffers, slots, bounce buffers
 * and GATHER hold the user's elements; WORK holds partial results, which are
 * f32 for half types; words are 8 bytes.
 */
#ifndef OARI_PLAN_PLAN_H
#define OARI_PLAN_PLAN_H

#include <oarsong/backend.h>

typedef enum oari_step_kind {
    /* A sync point: publish my slot to all ranks that share memory with me, and
     * wait until theirs are published: all (OARI_PEER_ALL), that of shm rank
     * `peer` only, or none (OARI_PEER_NONE). count > 0: the slot carries that
     * many elements of my input, from from_at on. from == OARI_TABLE: it
     * carries my table of sizes, behind the addresses of my buffers. */
    OARI_SYNC,
    /* Go on at step `jump` unless the buffer `from` (OARI_IN or OARI_OUT) of
     * rank `peer` (-1: of every rank) can be reached. Follows the first SYNC.
     */
    OARI_UNLESS_REACHABLE,
    /* The same for the input, to be copied from: private memory will do, too,
     * if every rank can have the system copy that of all others. */
    OARI_UNLESS_READABLE,
    /* Go on at step `jump` unless every rank has what it copied so. Follows a
     * SYNC with all. */
    OARI_UNLESS_COPIED,
    /* to[to_at ..] = from[from_at ..], count elements. */
    OARI_COPY,
    /* to[to_at ..] = the operator applied to `from` of ranks 0, 1, 2, ... in
     * that order, from from_at on, count elements. The result is finished; if
     * `to` is WORK, it is partial. */
    OARI_REDUCE,
    /* to[to_at ..] = from[from_at ..] combined with with[with_at ..] in that
     * order. IN is a contribution, WORK a partial result. The result is partial
     * unless `finish` is set. */
    OARI_COMBINE,
    OARI_SEND,   /* from, to rank peer */
    OARI_RECV,   /* into `to`, from rank peer */
    OARI_WAIT,   /* for the `count` oldest messages in flight */
    OARI_REPLAN, /* all sizes are known now: go on with a second plan */
    OARI_POST,   /* an external engine does it all; the only step but END */
    OARI_END
} oari_step_kind;

/* The buffers that a step names. Those marked (peer) belong to shm rank `peer`
 * (as a destination: `to_peer`); as the source of a REDUCE, to all shm ranks in
 * turn. */
typedef enum oari_buffer {
    OARI_IN,             /* (peer) the input */
    OARI_OUT,            /* (peer) the output */
    OARI_ALL_OUT,        /* every rank's output (destination of a REDUCE) */
    OARI_SLOT,           /* (peer) what its slot carried at the last SYNC */
    OARI_BOUNCE,         /* (peer) its bounce buffer: shared, three chunks */
    OARI_OTHER_BOUNCES,  /* (source of a REDUCE) the bounce buffers of all other
                            ranks; mine is the input at with_at instead */
    OARI_BOUNCE_AND_OUT, /* (destination of a REDUCE) my bounce buffer, and my
                            output at with_at */
    OARI_GATHER,         /* my scratch. As the source of a REDUCE: gather_stride
                            elements for each of gather_ranks ranks, rank
                            `peer` first; mine is the input at with_at */
    OARI_WORK,           /* my scratch for partial results */
    OARI_FACTOR,         /* words: by rank, the factor of its contribution */
    OARI_TABLE,          /* words: by rank, a size */
    OARI_NOWHERE
} oari_buffer;

typedef struct oari_step {
    oari_step_kind kind;
    oari_buffer to, from, with;
    int peer, to_peer; /* -1: mine */
    int jump;
    int finish;
    size_t to_at, from_at, with_at, count; /* elements */
} oari_step;

typedef struct oari_plan {
    const char *algorithm;
    int steps;
    int64_t room;
    int failed; /* memory ran out while the plan was made */
    int shows;  /* OARI_SHOWS_ bits: peers are told where these buffers are */
    int slots_only;                  /* it uses no shared memory but slots */
    int gather_ranks;                /* ranks that a GATHER has room for */
    size_t gather_stride;            /* elements of each of them */
    size_t gather_count, work_count; /* elements of scratch */
    int posted, waited;              /* messages, while the plan is made */
    int max_in_flight;               /* messages at once */
    oari_step *step;
} oari_plan;

/* OARI_SHOWS_PRIVATE: an input in private memory, too, for peers to fetch. */
enum { OARI_SHOWS_IN = 1, OARI_SHOWS_OUT = 2, OARI_SHOWS_PRIVATE = 4 };
enum { OARI_PEER_ALL = -1, OARI_PEER_NONE = -2 }; /* of a SYNC */

/* A plan request: what a planner is told. Only what all ranks know alike may
 * decide the course of a plan. */
typedef struct oari_plan_request {
    oar_coll kind;
    int rank, ranks, root;
    int ragged;       /* parts of any size */
    int object;       /* and no rank knows the sizes of the others */
    int sizes_known;  /* by now every rank knows them */
    int weighted;     /* the operator needs every rank's factor */
    int mean;         /* and divides by their sum in the end */
    int promote;      /* a contribution must be promoted (widened, weighted) to
                         be a partial result */
    int widens;       /* elements of the output are wider than those of the
                         input: nothing finished can lie anywhere else */
    int canonical;    /* the caller wants the order of ranks */
    int crowded;      /* some ranks of a host share cores */
    size_t count;     /* elements of the vector; with equal parts, of one part;
                         else of this rank's own part */
    const size_t *at; /* ragged: where the parts of the row begin, and its end;
                         NULL: equal parts, or not known to this rank */
    const size_t *out_at;    /* all_to_all: where the parts of the output begin,
                               and its end (at: those of the input) */
    const size_t *their_at;  /* all_to_all, sizes known: where this rank's part
                               begins in each rank's input */
    size_t longest_part;     /* all_to_all, sizes known: of all ranks */
    size_t element, wide;    /* bytes of an element, and of a partial result */
    size_t small_bytes;      /* up to here data goes in the slot at once, or
                               up to a few times as much (choose.c) */
    size_t slot_bytes;       /* room in a slot */
    size_t stage_bytes;      /* of a chunk of a bounce buffer */
    size_t fetch_bytes;      /* from here on private memory is copied once */
    size_t chunk_bytes;      /* of a message */
    const int *hosts;        /* by rank; NULL: all on one */
    const int *shm_member;   /* by shm rank, the rank; NULL: the same */
    int shm_rank, shm_ranks; /* 0 ranks: no memory is shared */
    int sends;               /* ranks can send messages */
} oari_plan_request;

typedef void (*oari_planner)(const oari_plan_request *req, oari_plan *plan);

/* Makes a plan and adds END to it. plan: of zeros, or one that was made before,
 * whose memory is used again. */
oar_status oari_plan_make(const char *name, oari_planner planner,
                          const oari_plan_request *req, oari_plan *plan);
void oari_plan_clear(oari_plan *plan);

/* ---- for planners: append a step ----------------------------------------- */
/* A lack of memory shows in plan->failed. Steps of no elements are left out. */

void oari_plan_sync(oari_plan *plan, size_t from_at, size_t count);
/* Waits for one rank, or none, and shows count elements of the input. */
void oari_plan_sync_with(oari_plan *plan, int peer, size_t count);
void oari_plan_sync_table(oari_plan *plan);
/* Returns the index of the step, for oari_plan_jump_here. */
int oari_plan_unless_reachable(oari_plan *plan, oari_buffer what, int peer);
int oari_plan_unless_readable(oari_plan *plan, int peer);
int oari_plan_unless_copied(oari_plan *plan);
/* Makes step `jump` go on at the step that is appended next. */
void oari_plan_jump_here(oari_plan *plan, int jump);
void oari_plan_end(oari_plan *plan);
void oari_plan_replan(oari_plan *plan);
void oari_plan_copy(oari_plan *plan, oari_buffer to, size_t to_at,
                    oari_buffer from, int peer, size_t from_at, size_t count);
/* Copies into another rank's output. */
void oari_plan_copy_out(oari_plan *plan, int to_peer, size_t to_at,
                        oari_buffer from, size_t from_at, size_t count);
void oari_plan_reduce(oari_plan *plan, oari_buffer to, size_t to_at,
                      oari_buffer from, size_t from_at, size_t count);
/* Appends a step whose fields the caller has all set. */
void oari_plan_step(oari_plan *plan, oari_step step);

typedef struct oari_location {
    oari_buffer buffer;
    size_t at;
} oari_location;

/* right.buffer == OARI_NOWHERE: promotes or finishes `left` alone. */
void oari_plan_combine(oari_plan *plan, oari_location to, oari_location left,
                       oari_location right, int finish, size_t count);
void oari_plan_send(oari_plan *plan, int peer, oari_buffer from, size_t from_at,
                    size_t count);
void oari_plan_recv(oari_plan *plan, int peer, oari_buffer to, size_t to_at,
                    size_t count);
/* Sends and receives a message without data. */
void oari_plan_signal(oari_plan *plan, int to, int from);
/* Waits for all messages, or for those that were posted when plan->posted had
 * this value. */
void oari_plan_wait(oari_plan *plan);
void oari_plan_wait_until(oari_plan *plan, int posted);

/* ---- partitions ---------------------------------------------------------- */

/* Return the first element and the length of slice r, when count elements are
 * divided over ranks. Slices begin on multiples of 64 elements, so that no two
 * share a cache line. */
size_t oari_slice_first(size_t count, int ranks, int r);
size_t oari_slice_count(size_t count, int ranks, int r);

/* A row divided over n ranks: into parts that are given, into equal parts, or
 * into slices of a vector. */
typedef struct oari_partition {
    int n;
    size_t count;     /* of the vector, or of one equal part */
    int slices;       /* count is the vector's */
    const size_t *at; /* the parts, if given */
} oari_partition;

oari_partition oari_partition_slices(size_t count, int n);
oari_partition oari_partition_parts(const oari_plan_request *req);
size_t oari_partition_first(const oari_partition *p, int r);
size_t oari_partition_count(const oari_partition *p, int r);
size_t oari_partition_longest(const oari_partition *p);

/* Returns where chunk `index` begins when count elements are cut into chunks of
 * `size`, and sets *got to its length, which is 0 beyond the end. */
size_t oari_chunk_first(size_t count, size_t size, size_t index, size_t *got);

/* Returns the elements of a chunk of a message of count elements of so many
 * bytes each: whole blocks of 64. A message that is long enough is cut into
 * four at least, so that combining overlaps sending. */
size_t oari_chunk_size(const oari_plan_request *req, size_t count,
                       size_t element);

/* Returns the elements of a chunk in a bounce buffer: whole blocks of 64, at
 * least one. */
size_t oari_stage_room(const oari_plan_request *req);

enum { OARI_WINDOW = 4 }; /* chunks in flight, in each direction */

/* Ranks that send each other messages, counted around a ring of their own. */
typedef struct oari_rank_ring {
    int n, me;
    int first;       /* the rank of member 0, if rank is NULL */
    const int *rank; /* by member; NULL: first, first + 1, ... around */
} oari_rank_ring;

oari_rank_ring oari_ring_all(const oari_plan_request *req);
/* Returns the ring of all ranks with rank `first` as member 0. */
oari_rank_ring oari_ring_from(const oari_plan_request *req, int first);
/* Returns the rank of a member, which may be any whole number. */
int oari_ring_rank(const oari_rank_ring *ring, int member);
/* Returns the number of a member, which may be any whole number, in 0 .. n-1.
 */
int oari_ring_wrap(const oari_rank_ring *ring, int member);

#endif
