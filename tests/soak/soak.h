/* SPDX-License-Identifier: Apache-2.0 */
/* soak.h: a long program of everything at once, made from a seed.
 *
 * Every rank derives the same program: what an operation is follows from the
 * seed and its number alone (draw), how this rank goes about it (blocking or
 * not, where its buffers are, in which order it waits) from its own rank too
 * (own_draw). Inputs are a formula of the operation's number, the rank and the
 * index, so each rank knows what must come out without asking another rank. At
 * the warm-up and at the end all groups but the world are destroyed and what
 * the process holds is compared.
 */
#ifndef TESTS_SOAK_SOAK_H
#define TESTS_SOAK_SOAK_H

#include <stdatomic.h>
#include <stdint.h>

#include <oarsong/oarsong.h>

enum {
    SOAK_RANKS = 16,
    SOAK_SLOTS = 6,  /* the world, and others */
    SOAK_FLIGHT = 6, /* tasks at once */
    SOAK_FAN = 3,    /* messages of one rank in a fan */
    SOAK_GUARD = 32, /* bytes on either side of a buffer */
    SOAK_PARTS = 10, /* progress lines */
    SOAK_ARENA = 16 << 20,
    SOAK_MOST = 4 << 20 /* bytes of one buffer, unless asked otherwise */
};

/* What a rank is allowed to have more of at the end than after the warm-up. */
enum {
    SOAK_MORE_RSS = 8 << 20,
    SOAK_MORE_MAPPINGS = 32,
    SOAK_MORE_ALLOCATIONS = 512
};

/* name, how often, whether it combines, how plain it is: 1 if it may be in a
 * batch, 2 if it may be prepared, too */
#define SOAK_KIND_LIST(X)         \
    X(BARRIER, 3, 0, 2)           \
    X(MONITORED_BARRIER, 1, 0, 0) \
    X(BROADCAST, 8, 0, 2)         \
    X(ALL_REDUCE, 12, 1, 2)       \
    X(REDUCE, 6, 1, 2)            \
    X(GATHER, 4, 0, 2)            \
    X(GATHER_V, 4, 0, 2)          \
    X(SCATTER, 4, 0, 2)           \
    X(SCATTER_V, 4, 0, 2)         \
    X(ALL_GATHER, 5, 0, 2)        \
    X(ALL_GATHER_V, 4, 0, 2)      \
    X(REDUCE_SCATTER, 5, 1, 2)    \
    X(REDUCE_SCATTER_V, 4, 1, 2)  \
    X(ALL_TO_ALL, 4, 0, 2)        \
    X(ALL_TO_ALL_V, 4, 0, 2)      \
    X(BROADCAST_BYTES, 2, 0, 0)   \
    X(GATHER_BYTES, 2, 0, 0)      \
    X(SCATTER_BYTES, 2, 0, 0)     \
    X(ALL_GATHER_BYTES, 2, 0, 0)  \
    X(MESSAGE, 10, 0, 2)          \
    X(SENDRECV, 5, 0, 1)          \
    X(PROBE, 2, 0, 0)             \
    X(FAN, 2, 0, 0)

typedef enum soak_kind {
#define X(name, often, folds, plain) K_##name,
    SOAK_KIND_LIST(X)
#undef X
        KINDS
} soak_kind;

typedef struct soak_resources {
    int64_t rss, shared, mappings, descriptors, allocations, allocated_bytes;
} soak_resources;

/* What all ranks and their starter share. */
typedef struct soak_page {
    _Atomic int failed; /* 1 + the first rank that did */
    soak_resources warm[SOAK_RANKS];
    soak_resources end[SOAK_RANKS];
    _Atomic uint64_t by_kind[KINDS]; /* operations, as rank 0 counts them */
    _Atomic uint64_t groups;
} soak_page;

typedef struct soak_settings {
    const char *backend;
    int ranks, hosts, tight, quiet;
    uint64_t ops, seed;
    size_t most; /* bytes of the largest buffer */
    int64_t timeout_ms;
    uint64_t spoil; /* from this operation on the next output is made wrong, to
                       see that it is found */
    soak_page *ledger;
} soak_settings;

/* A group, or, after a split, one of several that are used alike; group is NULL
 * on ranks that are in none. */
struct soak_op;
typedef struct soak_group {
    int exists;
    oar_group *group;
    int size, rank;
    int world[SOAK_RANKS]; /* of its ranks */
    struct soak_op *kept;  /* prepared, to be started now and then */
} soak_group;

typedef struct soak {
    const soak_settings *s;
    uint64_t op; /* operations so far */
    int rank;    /* in the world */
    soak_group slot[SOAK_SLOTS];
    unsigned char *arena[2]; /* shared, private */
    size_t used[2];
    int spoiled;
} soak;

/* Memory of one buffer, between guards. */
typedef struct soak_buffer {
    unsigned char *block; /* what to free; NULL: of an arena */
    int shared;
    unsigned char *data;
    size_t bytes;
} soak_buffer;

/* One operation, as this rank takes part in it. */
typedef struct soak_op {
    uint64_t op;    /* its number: says what it is */
    uint64_t value; /* number that its inputs follow from */
    soak_kind kind;
    const soak_group *c;
    oar_dtype dtype;
    oar_reduce_op_kind fold;
    size_t count; /* elements of a buffer, or of one part */
    int root;     /* or the sender */
    int to;
    int64_t tag;
    int in_place;
    oar_span in, out;
    size_t in_counts[SOAK_RANKS], out_counts[SOAK_RANKS];
    soak_buffer area[2];
    oar_call_opts opts;
    oar_message message;
    oar_work *work;
    void *given; /* by a call for bytes */
    size_t given_bytes, sizes[SOAK_RANKS];
} soak_op;

/* ---- value.c ------------------------------------------------------------- */

uint64_t mix(uint64_t a, uint64_t b);
uint64_t draw(const soak *k, uint64_t op, int field);
uint64_t own_draw(const soak *k, uint64_t op, int field);

int value_makes_sense(oar_reduce_op_kind op, oar_dtype dtype);

/* The factor or weight of a rank of the task's group. */
double value_factor(const soak_op *t, int rank);

/* That rank's inputs from element `start` on. */
void value_fill(const soak *k, const soak_op *t, int rank, size_t start,
                size_t count, void *to);

/* The first of the elements that is not that rank's input from `start` on, or,
 * where rank is below 0, not the reduction of all; count if there is none. */
size_t value_find_wrong(const soak *k, const soak_op *t, int rank, size_t start,
                        size_t count, const void *data);

/* ---- groups.c ------------------------------------------------------------ */

oar_status group_open_world(soak *k, oar_group *world);
/* Destroys one of the others and makes another in its place. */
oar_status group_change(soak *k);
/* Destroys all but the world. */
oar_status group_close_all(soak *k);

/* ---- operation.c --------------------------------------------------------- */

int kind_reduces(soak_kind which);
int kind_is_plain(soak_kind which, int plain);
const char *kind_name(soak_kind which);

/* What operation number op is, on that crowd; allocates its buffers unless this
 * rank is not in it. It is at least that plain. */
oar_status op_make(soak *k, soak_op *t, const soak_group *c, uint64_t op,
                   int plain);
void op_free(soak_op *t);
void op_describe(const soak_op *t, char *text, size_t bytes);

/* Fills in the inputs of one more use. */
void op_fill(soak *k, soak_op *t, uint64_t value);
/* Posts it; blocking if work is NULL. */
oar_status op_post(soak *k, soak_op *t, oar_work **work);
oar_status op_check(soak *k, const soak_op *t);

/* Says what is wrong, where, with everything needed to repeat it. */
oar_status op_fail(const soak *k, const soak_op *t, const char *format, ...)
    OAR_PRINTF(3, 4);

/* ---- layout.c: buffers --------------------------------------------------- */

oar_status layout_make(soak *k, soak_op *t);
size_t layout_start(const size_t *counts, int rank);
/* Elements that `from` sends to `to` in an all_to_all_v. */
size_t layout_between(const soak *k, const soak_op *t, int from, int to);
int layout_guards_hold(const soak_op *t);
/* Bytes of a rank in a call for bytes. */
size_t layout_bytes(const soak *k, const soak_op *t, int rank);

/* ---- message.c ----------------------------------------------------------- */

oar_status message_post(soak *k, soak_op *t, oar_work **work);
oar_status message_check(soak *k, const soak_op *t);
oar_status message_fan(soak *k, soak_op *t);
oar_status message_probe(soak *k, soak_op *t);

/* ---- bytes.c ------------------------------------------------------------- */

oar_status bytes_post(soak *k, soak_op *t, oar_work **work);
oar_status bytes_check(soak *k, const soak_op *t);

/* ---- round.c ------------------------------------------------------------- */

/* The whole program, as one rank. */
oar_status soak_rank(oar_group *world, void *arg);

/* ---- resources.c --------------------------------------------------------- */

soak_resources resources_read(void);
/* Whether `end` is flat; says in text what is not. */
int resources_are_flat(const soak_resources *warm, const soak_resources *end,
                       char *text, size_t bytes);

#endif
