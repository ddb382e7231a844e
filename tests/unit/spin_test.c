/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks spin only while each has a core of its own: a core to which one rank
 * alone is bound counts, a core that two share does not. With two cores for
 * each rank, the threads of their engines have a core, too. */
#include "support/test_job.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "link/shm/board.h"
#include "comm/group/group.h"

/* Which core each of the two is bound to; -1: all there are. */
typedef struct core_binding {
    int core[2];
    int spins;
} core_binding;

static int nth_core(int n)
{
    cpu_set_t all;

    sched_getaffinity(0, sizeof all, &all);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && n-- == 0)
            return cpu;
    return 0;
}

static int bind_rank(test_job *c, int rank, void *arg)
{
    const core_binding *s = arg;
    oar_group_opts o = oar_group_opts_init();
    oar_group *g = NULL;
    cpu_set_t one;
    int spins;

    o.backend = "shm";
    CPU_ZERO(&one);
    CPU_SET(nth_core(s->core[rank]), &one);
    if (s->core[rank] >= 0)
        sched_setaffinity(0, sizeof one, &one);
    if (test_job_join(c, rank, &o, &g) != OAR_OK)
        return 1;
    spins = g->spin_ns != 0;
    oar_group_destroy(g);
    return spins == s->spins ? 0 : 2;
}

static void seat(int first, int second, int spins)
{
    core_binding *s = shared_page(sizeof *s);
    test_job c;

    *s = (core_binding){ { first, second }, spins };
    test_job_start(&c, 2, bind_rank, s, "cores %d and %d", first, second);
    for (int r = 0; r < 2; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

static void ranks_that_each_have_a_core_spin(void **state)
{
    if (oari_cpus() < 2)
        skip();
    seat(-1, -1, 1);
    seat(0, 1, 1);
    seat(1, -1, 1);
}

static void ranks_that_share_a_core_do_not_spin(void **state)
{
    seat(0, 0, 0);
}

/* ---- two cores for each -------------------------------------------------- */

enum { MOST = 8 };

/* Whether `ranks` ranks have cores to spare of which each may run on `width`:
 * rank r from core r * step on, and no more at a time than the quota. */
static int spares(int ranks, int step, int width, int quota)
{
    oari_board board = { .ranks = ranks };
    oari_control *c = calloc(MOST, sizeof *c);
    int spare;

    assert_non_null(c);
    assert_int_equal(oari_board_init(&board), OAR_OK);
    for (int r = 0; r < ranks; r++) {
        oari_control_init(&c[r], r, ranks, 64, 4096);
        c[r].cpus = quota;
        memset(c[r].core, 0, sizeof c[r].core);
        c[r].core[0] = ((UINT64_C(1) << width) - 1) << (r * step);
        board.control[r] = &c[r];
    }
    assert_int_equal(oari_board_ready(&board, 0), OAR_OK);
    spare = board.spare;
    oari_board_clear(&board);
    free(c);
    return spare;
}

static void two_cores_for_each_rank_are_one_to_spare(void **state)
{
    assert_true(spares(7, 0, 14, 14));
    assert_false(spares(7, 0, 13, 13));
    assert_true(spares(1, 0, 2, 2));
}

static void two_cores_to_which_a_rank_is_bound_are_one_to_spare(void **state)
{
    assert_true(spares(8, 2, 2, 2));
    assert_false(spares(8, 1, 1, 1));
    assert_false(spares(8, 0, 2, 2));
}

static void a_cpu_quota_is_shared_by_all_ranks(void **state)
{
    assert_true(spares(3, 0, 16, 6));
    assert_false(spares(3, 0, 16, 5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_each_have_a_core_spin),
        cmocka_unit_test(ranks_that_share_a_core_do_not_spin),
        cmocka_unit_test(two_cores_for_each_rank_are_one_to_spare),
        cmocka_unit_test(two_cores_to_which_a_rank_is_bound_are_one_to_spare),
        cmocka_unit_test(a_cpu_quota_is_shared_by_all_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
