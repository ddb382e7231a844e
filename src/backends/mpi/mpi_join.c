/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_join: who of MPI's world is in the group. Every rank leaves its place in
 * the world in the store; rank 0 reads all and leaves the row. When the row is
 * there all have come, and making the communicator waits for nobody. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "backends/mpi/mpi_engine.h"

enum { KEY = 256, JOB = 112 };

typedef struct place {
    int rank, size; /* in MPI's world */
    char job[JOB];  /* which world that is, as far as the launcher says */
} place;

static place my_place(void)
{
    static const char *const names[] = { "PMIX_NAMESPACE", "PMI_JOBID",
                                         "PMI_PORT" };
    place p = { 0 };

    mpi_enter();
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.size);
    mpi_leave();
    for (size_t i = 0; i < sizeof names / sizeof *names && p.job[0] == 0; i++)
        if (getenv(names[i]) != NULL)
            snprintf(p.job, sizeof p.job, "%s", getenv(names[i]));
    return p;
}

/* ---- through the store --------------------------------------------------- */

typedef struct table {
    const oar_backend_env *env;
    int64_t deadline_ns;
    place *row; /* by rank of the group */
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

static oar_status collect(const table *t, const char *all)
{
    int ranks = t->env->ranks;
    char key[KEY];

    for (int r = 1; r < ranks; r++) {
        snprintf(key, sizeof key, "mpi/%s/%d", t->env->name, r);
        OARI_TRY(read_key(t, key, &t->row[r], sizeof *t->row));
    }
    return oar_store_set(t->env->store, all, t->row,
                         (size_t)ranks * sizeof *t->row);
}

static oar_status exchange(const table *t)
{
    const oar_backend_env *env = t->env;
    size_t bytes = (size_t)env->ranks * sizeof *t->row;
    char key[KEY], all[KEY];

    t->row[env->rank] = my_place();
    snprintf(all, sizeof all, "mpi/%s/all", env->name);
    if (env->rank == 0)
        return collect(t, all);
    snprintf(key, sizeof key, "mpi/%s/%d", env->name, env->rank);
    OARI_TRY(
        oar_store_set(env->store, key, &t->row[env->rank], sizeof *t->row));
    return read_key(t, all, t->row, bytes);
}

/* ---- one world ----------------------------------------------------------- */

static oar_status check_place(const table *t, int r)
{
    const place *a = &t->row[0], *b = &t->row[r];

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

/* The same on all ranks, another for groups made at the same time. */
static int tag_of(const char *name)
{
    unsigned hash = 2166136261u;

    for (; *name != 0; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return (int)(hash % 32767);
}

static int make_comm(mpi_engine *e, const int *members, const char *name)
{
    MPI_Group world, group;
    int code = MPI_Comm_group(MPI_COMM_WORLD, &world);

    if (code != MPI_SUCCESS)
        return code;
    code = MPI_Group_incl(world, e->ranks, members, &group);
    MPI_Group_free(&world);
    if (code != MPI_SUCCESS)
        return code;
    code = MPI_Comm_create_group(MPI_COMM_WORLD, group, tag_of(name), &e->comm);
    MPI_Group_free(&group);
    if (code == MPI_SUCCESS) {
        e->joined = 1;
        code = MPI_Comm_set_errhandler(e->comm, MPI_ERRORS_RETURN);
    }
    return code;
}

static oar_status join_table(mpi_engine *e, const table *t, int *members)
{
    int code;

    OARI_TRY(exchange(t));
    for (int r = 0; r < e->ranks; r++) {
        OARI_TRY(check_place(t, r));
        members[r] = t->row[r].rank;
    }
    mpi_enter();
    code = make_comm(e, members, t->env->name);
    mpi_leave();
    return code == MPI_SUCCESS ? OAR_OK
                               : mpi_fail(code, "MPI_Comm_create_group");
}

oar_status mpi_join(mpi_engine *e, const oar_backend_env *env)
{
    table t = { env, oari_deadline(env->timeout_ms),
                oari_alloc((size_t)env->ranks, sizeof(place)) };
    int *members = oari_alloc((size_t)env->ranks, sizeof *members);
    oar_status status = OAR_E_NOMEM;

    if (t.row != NULL && members != NULL)
        status = join_table(e, &t, members);
    oari_free(members);
    oari_free(t.row);
    return status;
}
