/* SPDX-License-Identifier: Apache-2.0 */
/* support/engine.h: the engines of others that the fault suites run on, and
 * what each can and cannot promise (the table of docs/engines.md).
 *
 * OARSONG_TEST_ENGINE names the one to run on. */
#ifndef TESTS_SUPPORT_ENGINE_H
#define TESTS_SUPPORT_ENGINE_H

#include "support/crew.h"

typedef struct engine {
    const char *name;     /* of the backend */
    const char *launcher; /* that must start the ranks; NULL: any */
    int dies_as_job;   /* whoever is left is ended when one dies: then at least
                          nobody is told anything wrong */
    int keeps_buffers; /* after a fault it may still write to them */
    int keeps_memory;  /* and hold memory and descriptors */
    int keeps_waiting; /* of a rank that was stopped a thread may wait in it
                          for good, with what it holds */
    int deaf_at_start; /* a timeout cannot end its beginning */
} engine;

/* The one to run on, or NULL: none. Its plugin is looked for in the build. */
const engine *engine_under_test(void);

/* Whether it is there; if not, prints why. */
int engine_is_there(const engine *e);

/* crew_start, by the launcher that it needs. */
void engine_start(const engine *e, crew *c, int ranks, crew_fn fn, void *page,
                  const char *what);

#endif
