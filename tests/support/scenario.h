/* SPDX-License-Identifier: Apache-2.0 */
/* support/scenario.h: the table of the fault suite: which rank fails, how, in
 * which phase of which operation, over which backend.
 *
 * Every rank of 2, 4 and 7 fails in each of four ways in each phase; backends
 * take turns so that every three of backend, phase, way and rank occur
 * together. A row has a number that never depends on a seed. The seed decides
 * what the rows leave open (the exact step, the memory, the root), and the
 * order.
 */
#ifndef TESTS_SUPPORT_SCENARIO_H
#define TESTS_SUPPORT_SCENARIO_H

#include "support/operation_case.h"

typedef enum scenario_phase {
    IN_RENDEZVOUS, /* while the ranks find each other */
    IN_FIRST,      /* in the first operation, which connects */
    INSIDE,        /* in the middle of an operation like one that went well */
    BETWEEN,       /* outside of all calls */
    SCENARIO_PHASES
} scenario_phase;

typedef enum scenario_how {
    BY_KILL,
    BY_STOP,
    BY_EXIT,
    BY_CRASH, /* SIGSEGV or abort, by the seed */
    SCENARIO_WAYS
} scenario_how;

enum { SCENARIO_BACKENDS = 3, SCENARIO_KINDS = 10, SCENARIO_MOST = 2000 };

typedef struct scenario {
    int number;
    int backend; /* of scenario_backends */
    int ranks, victim;
    scenario_phase phase;
    scenario_how how;
    int kind;  /* of scenario_kinds */
    int large; /* else small */
    uint64_t seed;
    operation_case operation; /* made of all that */
} scenario;

extern const char *const scenario_backends[SCENARIO_BACKENDS];
extern const oar_coll scenario_kinds[SCENARIO_KINDS];

/* Returns how many rows the table has. */
int scenario_count(void);
/* Makes one row, with what the seed decides. */
void scenario_make(scenario *s, int number, uint64_t seed);

/* Writes "tcp, 7 ranks, KILL of rank 3 inside all_reduce, large". */
void scenario_name(const scenario *s, char *name, size_t bytes);

/* Returns a number below `limit` that depends on seed, row and purpose. */
int scenario_draw(const scenario *s, int purpose, int limit);

/* Writes all rows in the order of the seed. The first ones contain every pair
 * of values of different columns; returns how many those are. order has room
 * for scenario_count() numbers. */
int scenario_order(uint64_t seed, int *order);

#endif
