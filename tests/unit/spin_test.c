/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks spin only while each has a core of its own: one to which it is bound
 * alone counts, one that two share does not. */
#include "support/crew.h"

#include <sched.h>

#include "base/thread.h"
#include "comm/group.h"

/* Which core each of the two is bound to; -1: all there are. */
typedef struct seats {
    int core[2];
    int spins;
} seats;

static int nth_core(int n)
{
    cpu_set_t all;

    sched_getaffinity(0, sizeof all, &all);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && n-- == 0)
            return cpu;
    return 0;
}

static int take_seat(crew *c, int rank, void *arg)
{
    const seats *s = arg;
    oar_group_opts o = oar_group_opts_init();
    oar_group *g = NULL;
    cpu_set_t one;
    int spins;

    o.backend = "shm";
    CPU_ZERO(&one);
    CPU_SET(nth_core(s->core[rank]), &one);
    if (s->core[rank] >= 0)
        sched_setaffinity(0, sizeof one, &one);
    if (crew_join(c, rank, &o, &g) != OAR_OK)
        return 1;
    spins = g->spin_ns != 0;
    oar_group_destroy(g);
    return spins == s->spins ? 0 : 2;
}

static void seat(int first, int second, int spins)
{
    seats *s = crew_page(sizeof *s);
    crew c;

    *s = (seats){ { first, second }, spins };
    crew_start(&c, 2, take_seat, s, "cores %d and %d", first, second);
    for (int r = 0; r < 2; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
    crew_drop_page(s, sizeof *s);
}

static void ranks_that_each_have_a_core_spin(void **state)
{
    if (oari_cpus() < 2)
        skip();
    seat(-1, -1, 1);
    seat(0, 1, 1);
    seat(1, -1, 1);
}

static void ranks_that_share_a_core_do_not(void **state)
{
    seat(0, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_each_have_a_core_spin),
        cmocka_unit_test(ranks_that_share_a_core_do_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
