/* SPDX-License-Identifier: Apache-2.0 */
#include "support/tested_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/backend.h>

#include "support/mpi_ranks.h"

static const tested_engine engines[] = {
    { .name = "gloo", .keeps_waiting = 1 },
    { .name = "ucc", .keeps_memory = 1 },
    { .name = "mpi-openmpi",
      .launcher = "mpirun.openmpi",
      .dies_as_job = 1,
      .keeps_buffers = 1,
      .keeps_memory = 1,
      .deaf_at_start = 1 },
    { .name = "mpi-mpich",
      .launcher = "mpiexec.mpich",
      .dies_as_job = 1,
      .keeps_buffers = 1,
      .keeps_memory = 1,
      .deaf_at_start = 1 },
};

const tested_engine *tested_engine_get(void)
{
    const char *name = getenv("OARSONG_TEST_ENGINE");

    for (size_t i = 0; name != NULL && i < sizeof engines / sizeof *engines;
         i++)
        if (strcmp(engines[i].name, name) == 0)
            return &engines[i];
    if (name != NULL)
        fail_msg("OARSONG_TEST_ENGINE=%s: no engine", name);
    return NULL;
}

int tested_engine_is_available(const tested_engine *e)
{
    const char *build = getenv("OARSONG_BUILD_DIR");
    char path[512];

    snprintf(path, sizeof path, "%s/lib",
             build != NULL ? build : "build/release");
    setenv("OARSONG_PLUGIN_PATH", path, 0);
    if (oar_backend_available(e->name, NULL) == OAR_OK)
        return 1;
    printf("skipped: %s\n", oar_last_error_text());
    return 0;
}

void tested_engine_start(const tested_engine *e, test_job *c, int ranks,
                         test_job_fn fn, void *page, const char *what)
{
    if (e != NULL && e->launcher != NULL)
        mpi_ranks_start(c, e->launcher, ranks, fn, page, "%s", what);
    else
        test_job_start(c, ranks, fn, page, "%s", what);
}
