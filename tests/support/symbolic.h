/* SPDX-License-Identifier: Apache-2.0 */
/* support/symbolic.h: all ranks' plans at once, in one thread, without numbers.
 *
 * Every element is a symbol: a word that tells which rank's input it is, or
 * which contributions were combined, and in which order. Ranks take their steps
 * in an order drawn from a seed. The world sees to it that
 *   - nothing is read that was not written, and no place is left,
 *   - no contribution is combined twice, or with one of another element, and
 *     none before it is widened and weighted, or after it is finished,
 *   - two ranks never touch an element, one of them writing, unless a sync
 *     point or a message lies between (a vector clock per rank, an epoch per
 *     element),
 *   - a slot still has the sync point it is read for,
 *   - a buffer of a message is left alone while the message is in flight,
 *   - messages need no room between sender and receiver (a send ends when its
 *     receive is there), fit each other, and never wait in a cycle.
 * The user of each rank fills its buffers before an operation and reads them
 * after it, so the next operation finds what this one leaves behind.
 */
#ifndef TESTS_SUPPORT_SYMBOLIC_H
#define TESTS_SUPPORT_SYMBOLIC_H

#include "plan/choose.h"

/* A rank has two or three slots, by the seed: so that few operations use them
 * all. */
enum { SYMBOLIC_RANKS = 64, SYMBOLIC_OPS = 4, SYMBOLIC_SLOTS = 3 };

typedef struct symbolic_op {
    const oari_algorithm *algorithm;
    oari_plan_request
        req;        /* what all ranks have alike; count: of an equal part */
    uint64_t parts; /* ragged: the seed of their sizes, up to 2 count */
    uint64_t in_reach, out_reach; /* bit r: rank r's buffer can be reached */
    int fetches;     /* any rank can copy any input, in reach or not */
    uint64_t misses; /* bit r: but rank r gets nothing of those out of reach */
    uint64_t in_place; /* bit r: rank r's smaller buffer is its
                                     place in the larger one */
} symbolic_op;

typedef enum symbolic_order {
    SYMBOLIC_RANDOM, /* any rank that can */
    SYMBOLIC_EAGER,  /* one rank whenever it can */
    SYMBOLIC_LAZY,   /* one rank only when no other can */
    SYMBOLIC_ORDERS
} symbolic_order;

typedef struct symbolic_case {
    int ranks, ops;
    symbolic_op op[SYMBOLIC_OPS];
    symbolic_order order;
    uint64_t seed;
    int host[SYMBOLIC_RANKS]; /* several: each shares memory */
    int hosts;                /* 0: one, with all ranks */
    int careless; /* ranks begin a plan without completing the sync point
                     before, even if they must */
} symbolic_case;

/* What each rank did, over all operations. */
typedef struct symbolic_counts {
    size_t sent[SYMBOLIC_RANKS];     /* bytes of data and partial results */
    size_t words[SYMBOLIC_RANKS];    /* factors and sizes sent */
    size_t messages[SYMBOLIC_RANKS]; /* of data, sent */
    size_t syncs[SYMBOLIC_RANKS];    /* sync points */
    size_t rounds[SYMBOLIC_RANKS];   /* WAITs */
    size_t most[SYMBOLIC_RANKS];     /* messages in flight at once */
} symbolic_counts;

/* Runs a case. Returns NULL, or a sentence (valid until the next call) that
 * says what went wrong. counts may be NULL. */
const char *symbolic_run(const symbolic_case *c, symbolic_counts *counts);

/* ---- what an operation means: symbolic_op.c ------------------------------ */

/* Return the elements of rank r's part of the row; in an all_to_all, of the
 * part from r to q. */
size_t symbolic_part(const symbolic_op *o, int r);
size_t symbolic_pair(const symbolic_op *o, int r, int q);

typedef enum symbolic_memory { SYMBOLIC_IN, SYMBOLIC_OUT } symbolic_memory;

/* A buffer: in which of a rank's two memories, from where, how long. */
typedef struct symbolic_region {
    symbolic_memory memory;
    size_t base, count;
} symbolic_region;

symbolic_region symbolic_input(const symbolic_op *o, int rank);
symbolic_region symbolic_output(const symbolic_op *o, int rank);

int symbolic_reduces(oar_coll kind);

/* Which element of which rank's input is element i of a rank's output; of a
 * reduction, of all ranks' inputs. */
typedef struct symbolic_origin {
    int rank;
    size_t at;
} symbolic_origin;
symbolic_origin symbolic_origin_of(const symbolic_op *o, int rank, size_t i);

/* Returns the plan request of a rank, before or after all sizes are known.
 * Valid until the next call. */
oari_plan_request symbolic_request(const symbolic_op *o, int rank,
                                   int sizes_known);

#endif
