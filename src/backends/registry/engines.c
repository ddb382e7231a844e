/* SPDX-License-Identifier: Apache-2.0 */
/* engines: the plugins of this tree, their files, and what they need. There are
 * two files for `mpi`, since MPI libraries are not compatible with each other:
 * the one that fits the launcher is loaded. */
#include "backends/registry/engines.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/status.h"
#include "backends/registry/plugin.h"

/* Why the build left a plugin out; NULL: it was built. */
#ifndef OARSONG_WITHOUT_MPI_OPENMPI
#define OARSONG_WITHOUT_MPI_OPENMPI NULL
#endif
#ifndef OARSONG_WITHOUT_MPI_MPICH
#define OARSONG_WITHOUT_MPI_MPICH NULL
#endif
#ifndef OARSONG_WITHOUT_GLOO
#define OARSONG_WITHOUT_GLOO NULL
#endif
#ifndef OARSONG_WITHOUT_UCC
#define OARSONG_WITHOUT_UCC NULL
#endif

typedef struct engine {
    const char *name, *file, *without;
    const char *library; /* that it needs at run time */
} engine;

static const engine engines[] = {
    { "mpi", "mpi-openmpi", OARSONG_WITHOUT_MPI_OPENMPI, "Open MPI" },
    { "mpi", "mpi-mpich", OARSONG_WITHOUT_MPI_MPICH, "MPICH" },
    { "gloo", "gloo", OARSONG_WITHOUT_GLOO, "Gloo" },
    { "ucc", "ucc", OARSONG_WITHOUT_UCC, "UCC and UCX" },
};

enum { ENGINES = sizeof engines / sizeof *engines };

const char *oari_known_engine(int index)
{
    for (int i = 0; i < ENGINES; i++) {
        int again = i > 0 && strcmp(engines[i].name, engines[i - 1].name) == 0;

        if (!again && index-- == 0)
            return engines[i].name;
    }
    return NULL;
}

/* ---- which MPI ----------------------------------------------------------- */

/* Decides by the library that is loaded already (one that is not Open MPI has
 * MPICH's ABI), else by the launcher that started this process. Slurm may have
 * started either; then Open MPI's own variables decide. */
static int wants_mpich(void)
{
    if (dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world") != NULL)
        return 0;
    if (dlsym(RTLD_DEFAULT, "MPI_Init") != NULL)
        return 1;
    if (oari_env_text("OMPI_COMM_WORLD_SIZE") != NULL ||
        oari_env_text("PMIX_NAMESPACE") != NULL)
        return 0;
    return oari_env_text("HYDI_CONTROL_FD") != NULL ||
           oari_env_text("PMI_RANK") != NULL || oari_env_text("PMI_FD") != NULL;
}

/* Whether another engine of the same name is preferred. */
static int is_second(const engine *e)
{
    const char *flavour = oari_env_text("OARSONG_MPI");

    if (strcmp(e->name, "mpi") != 0)
        return 0;
    if (flavour != NULL)
        return strcmp(e->file + strlen("mpi-"), flavour) != 0;
    return wants_mpich() != (strcmp(e->file, "mpi-mpich") == 0);
}

/* ---- finding ------------------------------------------------------------- */

static oar_status load_engine(const engine *e, const oar_backend_ops **ops)
{
    oar_status status = oari_plugin_search(e->file, ops);
    char why[300];

    if (status == OAR_OK)
        return OAR_OK;
    if (status != OAR_E_NOT_FOUND) {
        snprintf(why, sizeof why, "%s", oar_last_error_text());
        return oari_fail(OAR_E_UNAVAILABLE, "%s (does this machine have %s?)",
                         why, e->library);
    }
    if (e->without != NULL)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "this library was built without %s: %s", e->file,
                         e->without);
    return oari_fail(OAR_E_UNAVAILABLE,
                     "there is no liboarsong-%s.so beside the library, in the "
                     "folder oarsong/ there, or in OARSONG_PLUGIN_PATH",
                     e->file);
}

oar_status oari_known_engine_find(const char *name, const oar_backend_ops **ops)
{
    const engine *first = NULL, *second = NULL;

    for (const engine *e = engines; e < engines + ENGINES; e++)
        if (strcmp(e->name, name) != 0 && strcmp(e->file, name) == 0)
            return load_engine(e, ops);
        else if (strcmp(e->name, name) == 0)
            *(is_second(e) ? &second : &first) = e;
    if (first == NULL && second == NULL)
        return OAR_E_NOT_FOUND;
    if (first == NULL)
        return oari_fail(OAR_E_ARG,
                         "OARSONG_MPI is \"%s\": openmpi or mpich is meant",
                         oari_env_text("OARSONG_MPI"));
    if (second == NULL || oari_env_text("OARSONG_MPI") != NULL ||
        oari_plugin_search(first->file, ops) != OAR_E_NOT_FOUND)
        return load_engine(first, ops);
    return load_engine(second, ops);
}
