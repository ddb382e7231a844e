/* SPDX-License-Identifier: Apache-2.0 */
/* support/tested_engine.h: the external engines that the fault suites run on,
 * and what each can promise (the table of docs/engines.md).
 *
 * OARSONG_TEST_ENGINE names the one to run on. */
#ifndef TESTS_SUPPORT_TESTED_ENGINE_H
#define TESTS_SUPPORT_TESTED_ENGINE_H

#include "support/test_job.h"

typedef struct tested_engine {
    const char *name;     /* of the backend */
    const char *launcher; /* that must start the ranks; NULL: any */
    int dies_as_job;      /* the launcher ends all ranks when one dies: then no
                          rank may report anything wrong */
    int keeps_buffers;    /* after a fault it may still write to them */
    int keeps_memory;     /* and hold memory and descriptors */
    int keeps_waiting;    /* on a rank that was stopped, a thread may wait in it
                          for ever, with what it holds */
    int deaf_at_start;    /* a timeout cannot end its start */
} tested_engine;

/* Returns the engine to run on, or NULL. Its plugin is looked for in the
 * build. */
const tested_engine *tested_engine_get(void);

/* Returns whether the engine can be used here; prints why if not. */
int tested_engine_is_available(const tested_engine *e);

/* Does what test_job_start does, by the launcher that the engine needs. */
void tested_engine_start(const tested_engine *e, test_job *c, int ranks,
                         test_job_fn fn, void *page, const char *what);

#endif
