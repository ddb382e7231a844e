/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a mesh dies: rows that it is in fail and name it, other rows go on,
 * and nothing is left behind. */
#include "support/test_job.h"

#include <signal.h>
#include <string.h>

#include <oarsong/mesh.h>

enum { RANKS = 6, LOST = 4 }; /* 2 x 3: the rows of rank 4 are 1 4 and 3 4 5 */
enum { TIMEOUT_MS = 20000 };

typedef enum loss_moment { BEFORE_MESH, AFTER_MESH, BEFORE_SLICE } loss_moment;

typedef struct mesh_loss {
    const char *backend;
    loss_moment when;
    shared_flag asked; /* ranks that have tried all rows */
} mesh_loss;

static oar_status sum_ones(oar_group *g, int64_t *sum)
{
    *sum = 1;
    return oar_all_reduce(g, oar_span_of(sum, 1, OAR_I64), OAR_SUM, NULL, NULL);
}

/* Ranks that are told by another one that failed first get OAR_E_ABORTED. */
static int is_loss(oar_status status)
{
    return (status == OAR_E_PEER || status == OAR_E_ABORTED) &&
           strstr(oar_last_error()->text, "rank 4") != NULL;
}

static int check_rows(test_job *c, int rank, const oar_mesh *mesh)
{
    for (int d = 0; d < 2; d++) {
        int row[RANKS], hit = 0;
        oar_status status;
        int64_t sum;

        RANK_OK(oar_mesh_along(mesh, d, rank, row));
        for (int i = 0; i < oar_mesh_size(mesh, d); i++)
            hit |= row[i] == LOST;
        status = sum_ones(oar_mesh_group(mesh, d), &sum);
        if (hit)
            RANK_CHECK(is_loss(status));
        else
            RANK_CHECK(status == OAR_OK && sum == oar_mesh_size(mesh, d));
    }
    return 0;
}

static int lose_rank(test_job *c, int rank, void *arg)
{
    mesh_loss *l = arg;
    oar_group_opts o = oar_group_opts_init();
    oar_mesh *mesh = NULL, *slice = NULL;
    oar_status status;
    oar_group *world;

    o.backend = l->backend;
    o.timeout_ms = TIMEOUT_MS;
    RANK_OK(test_job_join(c, rank, &o, &world));
    if (rank == LOST && l->when == BEFORE_MESH)
        raise(SIGKILL);
    status = oar_mesh_create(world, 2, (int[]){ 2, 3 }, NULL, NULL, &mesh);
    if (l->when == BEFORE_MESH) {
        RANK_CHECK(is_loss(status) && mesh == NULL);
    } else {
        RANK_CHECK(status == OAR_OK);
        if (rank == LOST)
            raise(SIGKILL);
        if (l->when == AFTER_MESH)
            RANK_ZERO(check_rows(c, rank, mesh));
        RANK_CHECK(is_loss(oar_mesh_slice(mesh, "1,0", &slice)));
        RANK_CHECK(slice == NULL);
    }
    /* A rank that leaves is gone to those that still try their rows. */
    shared_flag_raise(&l->asked);
    RANK_CHECK(shared_flag_await(&l->asked, RANKS - 1, TEST_JOB_LIMIT_MS));
    oar_mesh_release(mesh);
    oar_group_destroy(world);
    return 0;
}

static void a_dead_rank_ends_its_rows_and_no_others(void **state)
{
    static const char *const backends[] = { "shm", "tcp", "native" };

    for (int b = 0; b < 3; b++)
        for (int when = BEFORE_MESH; when <= BEFORE_SLICE; when++) {
            mesh_loss *l = shared_page(sizeof *l);
            test_job job;

            l->backend = backends[b];
            l->when = (loss_moment)when;
            test_job_start(&job, RANKS, lose_rank, l, "%s, moment %d",
                           backends[b], when);
            for (int r = 0; r < RANKS; r++)
                test_job_expect(&job, r, r == LOST ? 128 + SIGKILL : 0);
            test_job_end(&job);
            shared_page_free(l, sizeof *l);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dead_rank_ends_its_rows_and_no_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
