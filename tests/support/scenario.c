/* SPDX-License-Identifier: Apache-2.0 */
#include "support/scenario.h"

#include <stdio.h>
#include <string.h>

#include "support/test_job.h"

const char *const scenario_backends[SCENARIO_BACKENDS] = { "shm", "tcp",
                                                           "native" };

const oar_coll scenario_kinds[SCENARIO_KINDS] = {
    OAR_COLL_BARRIER,    OAR_COLL_BROADCAST,      OAR_COLL_ALL_REDUCE,
    OAR_COLL_REDUCE,     OAR_COLL_GATHER,         OAR_COLL_SCATTER,
    OAR_COLL_ALL_GATHER, OAR_COLL_REDUCE_SCATTER, OAR_COLL_ALL_TO_ALL,
    OAR_COLL_SEND,
};

static const char *const phase_names[SCENARIO_PHASES] = {
    [IN_RENDEZVOUS] = "in the rendezvous before",
    [IN_FIRST] = "in the first",
    [INSIDE] = "inside",
    [BETWEEN] = "before",
};

static const char *const way_names[SCENARIO_WAYS] = {
    [BY_KILL] = "KILL",
    [BY_STOP] = "STOP",
    [BY_EXIT] = "exit",
    [BY_CRASH] = "crash",
};

/* Inside each kind at both sizes (a barrier has none), and each other phase. */
enum {
    INSIDE_CELLS = 2 * SCENARIO_KINDS - 1,
    CELLS = INSIDE_CELLS + SCENARIO_PHASES - 1,
    VICTIMS = 2 + 4 + 7,
    ROWS = CELLS * SCENARIO_WAYS * VICTIMS
};

enum { SMALL = 3, LARGE = 60013, LARGE_PART = 9001 }; /* of f32 */

int scenario_count(void)
{
    return ROWS;
}

/* ---- rows ---------------------------------------------------------------- */

static void set_victim(scenario *s, int v)
{
    s->ranks = v < 2 ? 2 : v < 6 ? 4 : 7;
    s->victim = v < 2 ? v : v < 6 ? v - 2 : v - 6;
}

/* The phases that are not inside go through kinds and sizes with the rows. */
static void set_cell(scenario *s, int cell)
{
    static const scenario_phase others[] = { IN_RENDEZVOUS, IN_FIRST, BETWEEN };

    if (cell < INSIDE_CELLS) {
        s->phase = INSIDE;
        s->kind = (cell + 1) / 2;
        s->large = (cell + 1) % 2;
        return;
    }
    s->phase = others[cell - INSIDE_CELLS];
    s->kind = s->number % SCENARIO_KINDS;
    s->large = s->number / SCENARIO_KINDS % 2;
}

static int has_parts(oar_coll kind)
{
    return kind >= OAR_COLL_GATHER && kind <= OAR_COLL_ALL_TO_ALL;
}

static void set_operation(scenario *s)
{
    oar_coll kind = scenario_kinds[s->kind];

    s->operation =
        (operation_case){ .name = "scenario",
                          .kind = kind,
                          .memory = (operation_memory)scenario_draw(s, 1, 3),
                          .apart = scenario_draw(s, 2, 2),
                          .last_root = scenario_draw(s, 3, 2) };
    if (kind != OAR_COLL_BARRIER)
        s->operation.count = !s->large         ? SMALL
                             : has_parts(kind) ? LARGE_PART
                                               : LARGE;
}

void scenario_make(scenario *s, int number, uint64_t seed)
{
    int v = number % VICTIMS, how = number / VICTIMS % SCENARIO_WAYS;
    int cell = number / VICTIMS / SCENARIO_WAYS;

    memset(s, 0, sizeof *s);
    s->number = number;
    s->seed = seed;
    s->how = (scenario_how)how;
    s->backend = (cell + how + v) % SCENARIO_BACKENDS;
    set_victim(s, v);
    set_cell(s, cell);
    set_operation(s);
}

void scenario_name(const scenario *s, char *name, size_t bytes)
{
    oar_coll kind = scenario_kinds[s->kind];

    snprintf(name, bytes, "%s, %d ranks, %s of rank %d %s %s%s",
             scenario_backends[s->backend], s->ranks, way_names[s->how],
             s->victim, phase_names[s->phase],
             kind == OAR_COLL_SEND ? "ring of messages" : oar_coll_name(kind),
             kind == OAR_COLL_BARRIER ? ""
             : s->large               ? ", large"
                                      : ", small");
}

int scenario_draw(const scenario *s, int purpose, int limit)
{
    uint64_t state =
        s->seed * 1000003 + (uint64_t)s->number * 101 + (uint64_t)purpose;

    return (int)(next_random(&state) % (uint64_t)limit);
}

/* ---- order --------------------------------------------------------------- */

/* Columns: backend, size of the group, victim, phase, way, kind, size. */
enum { COLUMNS = 7, VALUES = 10 };

typedef unsigned char pairs[COLUMNS][VALUES][COLUMNS][VALUES];

static void columns_of(int number, int column[COLUMNS])
{
    scenario s;

    scenario_make(&s, number, 0);
    column[0] = s.backend;
    column[1] = s.ranks;
    column[2] = s.victim;
    column[3] = (int)s.phase;
    column[4] = (int)s.how;
    column[5] = s.kind;
    column[6] = s.large;
}

/* How many pairs of values the row has that were not met before. */
static int mark_pairs(int number, pairs met)
{
    int column[COLUMNS], fresh = 0;

    columns_of(number, column);
    for (int a = 0; a < COLUMNS; a++)
        for (int b = a + 1; b < COLUMNS; b++) {
            unsigned char *seen = &met[a][column[a]][b][column[b]];
            fresh += !*seen;
            *seen = 1;
        }
    return fresh;
}

static void shuffle(uint64_t seed, int *order)
{
    for (int i = 0; i < ROWS; i++)
        order[i] = i;
    for (int i = ROWS - 1; i > 0; i--) {
        int j = (int)(next_random(&seed) % (uint64_t)(i + 1));
        int taken = order[i];
        order[i] = order[j];
        order[j] = taken;
    }
}

int scenario_order(uint64_t seed, int *order)
{
    static pairs met;
    static int shuffled[ROWS], rest[ROWS];
    int first = 0, others = 0;

    memset(met, 0, sizeof met);
    shuffle(seed, shuffled);
    for (int i = 0; i < ROWS; i++)
        if (mark_pairs(shuffled[i], met) != 0)
            order[first++] = shuffled[i];
        else
            rest[others++] = shuffled[i];
    memcpy(order + first, rest, (size_t)others * sizeof *rest);
    return first;
}
