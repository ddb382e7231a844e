/* SPDX-License-Identifier: Apache-2.0 */
/* support/scenario.h: the table of the fault suite: who is struck, how, in
 * which phase of which operation, over what.
 *
 * Every rank of 2, 4 and 7 is struck in each of four ways in each phase; the
 * backends go round so that every three of backend, phase, way and rank meet.
 * A row has a number that never depends on a seed. The seed decides what the
 * rows leave open (the exact step, the memory, the root), and the order.
 */
#ifndef TESTS_SUPPORT_SCENARIO_H
#define TESTS_SUPPORT_SCENARIO_H

#include "support/deed.h"

typedef enum scenario_phase {
    IN_MEETING, /* while the ranks find each other */
    IN_FIRST,   /* in the first operation, which connects */
    INSIDE,     /* in the middle of an operation like one that went well */
    BETWEEN,    /* outside of all calls */
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
    deed deed; /* made of all that */
} scenario;

extern const char *const scenario_backends[SCENARIO_BACKENDS];
extern const oar_coll scenario_kinds[SCENARIO_KINDS];

/* How many rows the table has; and one of them, with what the seed decides. */
int scenario_count(void);
void scenario_make(scenario *s, int number, uint64_t seed);

/* "tcp, 7 ranks, KILL of rank 3 inside all_reduce, large". */
void scenario_name(const scenario *s, char *name, size_t bytes);

/* A number below `limit` that depends on the seed, the row and the purpose. */
int scenario_draw(const scenario *s, int purpose, int limit);

/* All rows in the order of the seed. Begins with rows in which any two values
 * of different columns meet (in as many rows as that takes); returns how many
 * those are. order has room for scenario_count() numbers. */
int scenario_order(uint64_t seed, int *order);

#endif
