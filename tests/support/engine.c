/* SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/backend.h>

#include "support/seats.h"

static const engine engines[] = {
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

const engine *engine_under_test(void)
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

int engine_is_there(const engine *e)
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

void engine_start(const engine *e, crew *c, int ranks, crew_fn fn, void *page,
                  const char *what)
{
    if (e != NULL && e->launcher != NULL)
        seats_start(c, e->launcher, ranks, fn, page, "%s", what);
    else
        crew_start(c, ranks, fn, page, "%s", what);
}
