/* SPDX-License-Identifier: Apache-2.0 */
/* support/symbolic.h: all ranks' plans at once, in one thread, without numbers.
 *
 * Every element is a symbol: a word that tells which rank's input it is, or
 * which symbols were combined in which order. Ranks take their steps in an
 * order drawn from a seed. The world sees to it that
 *   - nothing is read that was not written, and no place is left,
 *   - two ranks never touch an element, one of them writing, unless a meeting
 *     lies between (a vector clock per rank, an epoch per element),
 *   - a line still shows the meeting it is read for,
 *   - a buffer of a message is left alone while the message is under way,
 *   - messages need no room between sender and receiver (a send ends when its
 *     receive is there), fit each other, and never wait in a circle.
 * The user of each rank fills its buffers before an operation and reads them
 * after it, so what an operation leaves behind meets the next one.
 */
#ifndef TESTS_SUPPORT_SYMBOLIC_H
#define TESTS_SUPPORT_SYMBOLIC_H

#include "comm/plan.h"

enum { SYMBOLIC_RANKS = 64, SYMBOLIC_OPS = 4 };

typedef struct symbolic_op {
    const oari_algorithm *algorithm;
    oari_ask ask;      /* its rank is filled in for each rank */
    int reachable;     /* what UNLESS_REACHABLE finds */
    uint64_t in_place; /* bit r: rank r's input is its output */
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
} symbolic_case;

/* What each rank did, over all operations. */
typedef struct symbolic_counts {
    size_t sent[SYMBOLIC_RANKS];     /* elements of the buffer */
    size_t factors[SYMBOLIC_RANKS];  /* sent */
    size_t messages[SYMBOLIC_RANKS]; /* sent */
    size_t meetings[SYMBOLIC_RANKS];
    size_t rounds[SYMBOLIC_RANKS]; /* WAITs */
} symbolic_counts;

/* Runs it. NULL, or a sentence (valid until the next call) that says what went
 * wrong. counts may be NULL. */
const char *symbolic_run(const symbolic_case *c, symbolic_counts *counts);

#endif
