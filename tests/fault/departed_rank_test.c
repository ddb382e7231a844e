/* SPDX-License-Identifier: Apache-2.0 */
/* A rank leaves in good order when its part is done: what it sent before
 * counts, though the rank that waits for it sees that it is gone before it
 * reads that. */
#include "support/test_job.h"

#include <oarsong/collective.h>

#include "base/clock.h"
#include "base/thread.h"
#include "comm/comm.h"

enum { COUNT = 3000, TIMEOUT_MS = 10000, SPINS_NS = 1000000000 };

typedef struct departure {
    shared_flag looks; /* rank 0 is about to look for ranks that are gone */
} departure;

static departure *shared;
static const oari_shm_ops *real_ops;

/* Looks when the other rank has left, and not before. */
static void check_late(void *self)
{
    oari_shm *shm = self;
    int64_t deadline_ns = oari_deadline(TIMEOUT_MS);

    shared_flag_raise(&shared->looks);
    while (!atomic_load(&shm->control[1]->closed) &&
           oari_now_ns() < deadline_ns)
        oari_cpu_pause();
    real_ops->check(self);
}

/* Has rank 0 spin, as where other programs want the cores. */
static void look_late(oar_group *g)
{
    static oari_shm_ops late_ops;

    real_ops = g->shm->ops;
    late_ops = *real_ops;
    late_ops.check = check_late;
    g->shm->ops = &late_ops;
    g->shm->adapts = 1;
    g->engine.contested_until_ns = oari_now_ns() + INT64_C(10) * SPINS_NS;
}

static int send_and_leave(test_job *c, int rank, void *arg)
{
    static float data[COUNT];
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;

    o.timeout_ms = TIMEOUT_MS;
    o.algorithm = "binomial"; /* messages, and nothing else */
    o.eager_bytes = 64;       /* the root waits until its message was taken */
    RANK_OK(test_job_join(c, rank, &o, &g));
    RANK_OK(oar_barrier(g, NULL, NULL));
    if (rank == 0)
        look_late(g);
    else
        RANK_CHECK(shared_flag_await(&shared->looks, 1, TIMEOUT_MS));
    RANK_OK(oar_broadcast(g, oar_span_of(data, COUNT, OAR_F32), 0, NULL, NULL));
    oar_group_destroy(g);
    return 0;
}

static void what_a_rank_did_before_it_left_counts(void **state)
{
    test_job c;

    shared = shared_page(sizeof *shared);
    test_job_start(&c, 2, send_and_leave, NULL, "a rank leaves");
    test_job_expect(&c, 1, 0);
    test_job_expect(&c, 0, 0);
    test_job_end(&c);
    shared_page_free(shared, sizeof *shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_rank_did_before_it_left_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
