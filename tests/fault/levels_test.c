/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on two hosts, with plans of two levels: some share memory, the others
 * are reached by TCP. One dies at a step of a plan, or calls something else;
 * all the others, on either host, are told in time who it was. */
#include "support/crew.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "support/deed.h"

enum {
    NOTICED_MS = 2000,  /* a death, at the latest */
    TIMEOUT_MS = 30000, /* of the groups: not what ends these operations */
    STRIDE = 3,         /* ranks begin at different steps, and skip two */
    KILLED = 128 + SIGKILL
};

/* Names without an algorithm: it must be chosen. */
static const deed deeds[] = {
    { .name = "barrier", .kind = OAR_COLL_BARRIER },
    { .name = "broadcast, shared",
      .kind = OAR_COLL_BROADCAST,
      .count = 700,
      .memory = DEED_SHARED },
    { .name = "broadcast, private, last root",
      .kind = OAR_COLL_BROADCAST,
      .count = 700,
      .last_root = 1 },
    { .name = "all_reduce, three", .kind = OAR_COLL_ALL_REDUCE, .count = 3 },
    { .name = "all_reduce, shared",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = 3001,
      .memory = DEED_SHARED },
    { .name = "all_reduce, mixed, weighted",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = 1501,
      .memory = DEED_MIXED,
      .weighted = 1 },
    { .name = NULL },
};

typedef struct plot {
    const deed *deed;
    int here;         /* ranks on the first host */
    int victim, step; /* -1: nobody dies, the steps are counted */
    int steps[CREW_MAX];
} plot;

static void die(void *arg)
{
    raise(SIGKILL);
}

static int join(crew *c, int rank, const plot *p, oar_group **g)
{
    oar_group_opts o = deed_opts(p->deed, TIMEOUT_MS);

    o.backend = "native";
    setenv("OARSONG_HOST_ID", rank < p->here ? "a" : "b", 1);
    return crew_join(c, rank, &o, g) == OAR_OK ? 0 : 1;
}

/* ---- death --------------------------------------------------------------- */

static int check_record(crew *c, int rank, const oar_group *g, int victim)
{
    oar_error record = { .size = sizeof record };
    char name[24];

    snprintf(name, sizeof name, "rank %d ", victim);
    CREW_CHECK(c, rank, oar_group_fault(g, &record) == OAR_E_PEER);
    CREW_CHECK(c, rank, record.peer == victim);
    CREW_CHECK(c, rank, record.rank != victim);
    CREW_CHECK(c, rank, strstr(record.text, name) != NULL);
    return 0;
}

/* If the victim had done its part, an operation is whole, and the next one that
 * waits for all ranks fails. */
static int survive(crew *c, int rank, oar_group *g, deed_hands *h, int victim)
{
    oar_status status = OAR_OK;
    int64_t start = oari_now_ns();

    for (int i = 0; status == OAR_OK && i < 2; i++) {
        deed_fill(h);
        status = deed_run(h, g, 0);
        CREW_CHECK(c, rank, status != OAR_OK || deed_right(h));
    }
    if (status == OAR_OK)
        status = oar_barrier(g, NULL, NULL);
    CREW_CHECK(c, rank, status == OAR_E_PEER);
    CREW_CHECK(c, rank, crew_in_time(start, NOTICED_MS));
    return check_record(c, rank, g, victim);
}

static int run_plot(crew *c, int rank, void *arg)
{
    plot *p = arg;
    deed_hands h;
    oar_group *g;
    int failed = 0;

    CREW_CHECK(c, rank, deed_take(&h, p->deed, rank, c->ranks) == OAR_OK);
    CREW_CHECK(c, rank, join(c, rank, p, &g) == 0);
    deed_watch(rank == p->victim ? p->step : -1, die, NULL);
    if (p->victim >= 0 && rank != p->victim)
        failed = survive(c, rank, g, &h, p->victim);
    else {
        CREW_CHECK(c, rank, deed_run(&h, g, 0) == OAR_OK);
        CREW_CHECK(c, rank, deed_right(&h));
        p->steps[rank] = deed_steps();
    }
    oar_group_destroy(g);
    deed_drop(&h);
    return failed;
}

static void act(plot *p, int ranks, int victim, int step)
{
    crew c;

    p->victim = victim;
    p->step = step;
    crew_start(&c, ranks, run_plot, p,
               "%s, %d of %d ranks on the first host, "
               "rank %d dies at step %d",
               p->deed->name, p->here, ranks, victim, step);
    for (int r = 0; r < ranks; r++)
        crew_expect(&c, r, r == victim ? KILLED : 0);
    crew_end(&c);
}

static void kill_everywhere(int ranks, int here)
{
    plot *p = crew_page(sizeof *p);
    int deaths = 0;

    p->here = here;
    for (p->deed = deeds; p->deed->name != NULL; p->deed++) {
        act(p, ranks, -1, -1);
        for (int victim = 0; victim < ranks; victim++)
            for (int step = victim % STRIDE; step < p->steps[victim];
                 step += STRIDE, deaths++)
                act(p, ranks, victim, step);
    }
    crew_drop_page(p, sizeof *p);
    print_message("%d deaths\n", deaths);
}

static void a_death_is_told_on_both_hosts(void **state)
{
    kill_everywhere(4, 2);
}

static void a_death_is_told_where_one_host_has_one_rank(void **state)
{
    kill_everywhere(3, 2);
}

/* ---- calls that do not fit ----------------------------------------------- */

/* All of the second host sums more than the first. */
static int sum_what_the_others_do_not(crew *c, int rank, void *arg)
{
    const plot *p = arg;
    float x[7] = { 0 };
    size_t count = rank < p->here ? 5 : 7;
    int64_t start;
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, p, &g) == 0);
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
    start = oari_now_ns();
    CREW_CHECK(c, rank,
               oar_all_reduce(g, oar_span_of(x, count, OAR_F32), OAR_SUM, NULL,
                              NULL) == OAR_E_MISMATCH);
    CREW_CHECK(c, rank, crew_in_time(start, NOTICED_MS));
    oar_group_destroy(g);
    return 0;
}

static void hosts_that_call_different_things_are_told(void **state)
{
    plot p = { .deed = deeds, .here = 2 };
    crew c;

    crew_start(&c, 5, sum_what_the_others_do_not, &p, "different counts");
    for (int r = 0; r < 5; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_is_told_on_both_hosts),
        cmocka_unit_test(a_death_is_told_where_one_host_has_one_rank),
        cmocka_unit_test(hosts_that_call_different_things_are_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
