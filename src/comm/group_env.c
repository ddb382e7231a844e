/* SPDX-License-Identifier: Apache-2.0 */
/* group_env: who am I? Rank and size are looked for in one launcher's names
 * after another; the first that has both counts. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/status.h"
#include "comm/group.h"

static const struct {
    const char *rank, *size;
} names[] = {
    { "OARSONG_RANK", "OARSONG_SIZE" },
    { "RANK", "WORLD_SIZE" }, /* torchrun */
    { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" },
    { "PMI_RANK", "PMI_SIZE" }, /* MPICH */
    { "SLURM_PROCID", "SLURM_NTASKS" },
};

static oar_status find_rank(int *rank, int *size)
{
    int64_t r = 0, n = 1;

    if ((oari_env_text("OARSONG_RANK") == NULL) !=
        (oari_env_text("OARSONG_SIZE") == NULL))
        return oari_fail(OAR_E_ARG,
                         "of OARSONG_RANK and OARSONG_SIZE only one is set");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (oari_env_text(names[i].rank) == NULL ||
            oari_env_text(names[i].size) == NULL)
            continue;
        OARI_TRY(oari_env_int(names[i].size, 1, INT_MAX, &n));
        OARI_TRY(oari_env_int(names[i].rank, 0, n - 1, &r));
        break;
    }
    *rank = (int)r;
    *size = (int)n;
    return OAR_OK;
}

static oar_status find_store(int size, oar_store **store)
{
    const char *where = oari_env_text("OARSONG_STORE");

    if (size == 1)
        return OAR_OK;
    if (where == NULL)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "%d ranks, but OARSONG_STORE does not say where they "
                         "meet: start them with `oarsong run -n %d`, or set "
                         "it to file:FOLDER",
                         size, size);
    if (strncmp(where, "file:", 5) != 0)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "OARSONG_STORE is \"%s\", but should be file:FOLDER",
                         where);
    where += strncmp(where, "file://", 7) == 0 ? 7 : 5;
    return oar_store_create_file(where, store);
}

oar_status oar_group_from_env(const oar_group_opts *opts, oar_group **group)
{
    oar_store *store = NULL;
    oar_status status;
    int rank = 0, size = 1;

    if (group == NULL)
        return oari_fail(OAR_E_ARG, "group_from_env with nowhere to put it");
    OARI_TRY(find_rank(&rank, &size));
    OARI_TRY(find_store(size, &store));
    status = oar_group_create(store, rank, size, opts, group);
    oar_store_destroy(store);
    return status;
}
