/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_communicator: finds which processes of MPI_COMM_WORLD are in the group,
 * and makes their communicator. Every rank writes its rank in MPI_COMM_WORLD to
 * the store; rank 0 reads them all and writes the list. When the list is there
 * all ranks have come, so making the communicator waits for none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "backends/mpi/mpi_engine.h"

enum { KEY = 256, JOB = 112 };

typedef struct world_rank {
    int rank, size; /* in MPI's world */
    char job[JOB];  /* the launcher's name of the job, or empty */
} world_rank;

/* ---- through the store --------------------------------------------------- */

typedef struct table {
    const oar_backend_env *env;
    int64_t deadline_ns;
    world_rank *row; /* by rank of the group */
} table;

static oar_status read_key(const table *t, const char *key, void *into,
                           size_t bytes)
{
    void *value = NULL;
    size_t got = 0;

    OARI_TRY(oar_store_get(t->env->store, key,
                           oari_deadline_left_ms(t->deadline_ns), &value,
                           &got));
    if (got == bytes)
        memcpy(into, value, bytes);
    oar_free(value);
    return got == bytes ? OAR_OK
                        : oari_fail(OAR_E_DATA, "%s: %zu bytes, not %zu", key,
                                    got, bytes);
}

static oar_status exchange_world_ranks(const table *t)
{
    static const char *const jobs[] = { "PMIX_NAMESPACE", "PMI_JOBID",
                                        "PMI_PORT" };
    const oar_backend_env *env = t->env;
    world_rank *mine = &t->row[env->rank];
    size_t bytes = (size_t)env->ranks * sizeof *t->row;
    char key[KEY], all[KEY];

    mpi_lock();
    MPI_Comm_rank(MPI_COMM_WORLD, &mine->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mine->size);
    mpi_unlock();
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs && mine->job[0] == 0; i++)
        if (getenv(jobs[i]) != NULL)
            snprintf(mine->job, sizeof mine->job, "%s", getenv(jobs[i]));
    snprintf(all, sizeof all, "mpi/%s/all", env->name);
    if (env->rank != 0) {
        snprintf(key, sizeof key, "mpi/%s/%d", env->name, env->rank);
        OARI_TRY(oar_store_set(env->store, key, mine, sizeof *mine));
        return read_key(t, all, t->row, bytes);
    }
    for (int r = 1; r < env->ranks; r++) {
        snprintf(key, sizeof key, "mpi/%s/%d", env->name, r);
        OARI_TRY(read_key(t, key, &t->row[r], sizeof *t->row));
    }
    return oar_store_set(env->store, all, t->row, bytes);
}

/* ---- the communicator ---------------------------------------------------- */

static oar_status check_world_rank(const table *t, int r)
{
    const world_rank *a = &t->row[0], *b = &t->row[r];

    if (a->size != b->size || strcmp(a->job, b->job) != 0)
        return oari_fail(OAR_E_UNAVAILABLE,
                         "ranks 0 and %d are not of one MPI job; start all by "
                         "one mpirun",
                         r);
    for (int other = 0; other < r; other++)
        if (t->row[other].rank == b->rank)
            return oari_fail(OAR_E_UNAVAILABLE,
                             "MPI says that ranks %d and %d are one process; "
                             "start them by the mpirun of this MPI (%s)",
                             other, r, mpi_version());
    return OAR_OK;
}

/* The tag is the same on all ranks of the group, and most likely another in
 * groups that are made at the same time. */
static int make_comm(mpi_engine *e, const int *members, const char *name)
{
    MPI_Group world, group;
    int code = MPI_Comm_group(MPI_COMM_WORLD, &world);
    unsigned hash = 2166136261u;

    for (; *name != 0; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    if (code != MPI_SUCCESS)
        return code;
    code = MPI_Group_incl(world, e->ranks, members, &group);
    MPI_Group_free(&world);
    if (code != MPI_SUCCESS)
        return code;
    code = MPI_Comm_create_group(MPI_COMM_WORLD, group, (int)(hash % 32767),
                                 &e->comm);
    MPI_Group_free(&group);
    if (code == MPI_SUCCESS) {
        e->joined = 1;
        code = MPI_Comm_set_errhandler(e->comm, MPI_ERRORS_RETURN);
    }
    return code;
}

static oar_status join_ranks(mpi_engine *e, const table *t, int *members)
{
    int code;

    OARI_TRY(exchange_world_ranks(t));
    for (int r = 0; r < e->ranks; r++) {
        OARI_TRY(check_world_rank(t, r));
        members[r] = t->row[r].rank;
    }
    mpi_lock();
    code = make_comm(e, members, t->env->name);
    mpi_unlock();
    return code == MPI_SUCCESS ? OAR_OK
                               : mpi_fail(code, "MPI_Comm_create_group");
}

oar_status mpi_make_communicator(mpi_engine *e, const oar_backend_env *env)
{
    table t = { env, oari_deadline(env->timeout_ms),
                oari_alloc((size_t)env->ranks, sizeof(world_rank)) };
    int *members = oari_alloc((size_t)env->ranks, sizeof *members);
    oar_status status = OAR_E_NOMEM;

    if (t.row != NULL && members != NULL)
        status = join_ranks(e, &t, members);
    oari_free(members);
    oari_free(t.row);
    return status;
}
