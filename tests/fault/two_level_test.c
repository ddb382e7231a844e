/* SPDX-License-Identifier: Apache-2.0 */
/* Two-level plans: ranks on two hosts, of which some share memory and the
 * others are connected by TCP. One rank dies at a step of a plan, or calls
 * something else; all others, on both hosts, learn in time which rank it
 * was. */
#include "support/test_job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "support/operation_case.h"

enum {
    NOTICED_MS = 2000,  /* a death, at the latest */
    TIMEOUT_MS = 30000, /* of the groups: not what ends these operations */
    STRIDE = 3,         /* ranks begin at different steps, and skip two */
    KILLED = 128 + SIGKILL
};

/* Names without an algorithm: it must be chosen. */
static const operation_case deeds[] = {
    { .name = "barrier", .kind = OAR_COLL_BARRIER },
    { .name = "broadcast, shared",
      .kind = OAR_COLL_BROADCAST,
      .count = 700,
      .memory = OPERATION_SHARED },
    { .name = "broadcast, private, last root",
      .kind = OAR_COLL_BROADCAST,
      .count = 700,
      .last_root = 1 },
    { .name = "all_reduce, three", .kind = OAR_COLL_ALL_REDUCE, .count = 3 },
    { .name = "all_reduce, shared",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = 3001,
      .memory = OPERATION_SHARED },
    { .name = "all_reduce, mixed, weighted",
      .kind = OAR_COLL_ALL_REDUCE,
      .count = 1501,
      .memory = OPERATION_MIXED,
      .weighted = 1 },
    { .name = NULL },
};

typedef struct two_level_case {
    const operation_case *operation;
    int here;         /* ranks on the first host */
    int victim, step; /* -1: no rank dies, the steps are counted */
    int steps[TEST_JOB_RANKS];
} two_level_case;

static void die(void *arg)
{
    raise(SIGKILL);
}

static int join(test_job *c, int rank, const two_level_case *p, oar_group **g)
{
    oar_group_opts o = operation_opts(p->operation, TIMEOUT_MS);

    o.backend = "native";
    setenv("OARSONG_HOST_ID", rank < p->here ? "a" : "b", 1);
    return test_job_join(c, rank, &o, g) == OAR_OK ? 0 : 1;
}

/* ---- death --------------------------------------------------------------- */

static int check_record(test_job *c, int rank, const oar_group *g, int victim)
{
    oar_error record = { .size = sizeof record };
    char name[24];

    snprintf(name, sizeof name, "rank %d ", victim);
    RANK_CHECK(oar_group_fault(g, &record) == OAR_E_PEER);
    RANK_CHECK(record.peer == victim);
    RANK_CHECK(record.rank != victim);
    RANK_CHECK(strstr(record.text, name) != NULL);
    return 0;
}

/* If the victim had done its part, an operation is whole, and the next one that
 * waits for all ranks fails. */
static int survive(test_job *c, int rank, oar_group *g, operation_buffers *h,
                   int victim)
{
    oar_status status = OAR_OK;
    int64_t start = oari_now_ns();

    for (int i = 0; status == OAR_OK && i < 2; i++) {
        operation_buffers_fill(h);
        status = operation_run(h, g, 0);
        RANK_CHECK(status != OAR_OK || operation_result_is_right(h));
    }
    if (status == OAR_OK)
        status = oar_barrier(g, NULL, NULL);
    RANK_CHECK(status == OAR_E_PEER);
    RANK_CHECK(is_in_time(start, NOTICED_MS));
    return check_record(c, rank, g, victim);
}

static int run_case(test_job *c, int rank, void *arg)
{
    two_level_case *p = arg;
    operation_buffers h;
    oar_group *g;
    int failed = 0;

    RANK_CHECK(operation_buffers_alloc(&h, p->operation, rank, c->ranks) ==
               OAR_OK);
    RANK_CHECK(join(c, rank, p, &g) == 0);
    step_hook_set(rank == p->victim ? p->step : -1, die, NULL);
    if (p->victim >= 0 && rank != p->victim)
        failed = survive(c, rank, g, &h, p->victim);
    else {
        RANK_CHECK(operation_run(&h, g, 0) == OAR_OK);
        RANK_CHECK(operation_result_is_right(&h));
        p->steps[rank] = step_hook_count();
    }
    oar_group_destroy(g);
    operation_buffers_free(&h);
    return failed;
}

static void run_rank(two_level_case *p, int ranks, int victim, int step)
{
    test_job c;

    p->victim = victim;
    p->step = step;
    test_job_start(&c, ranks, run_case, p,
                   "%s, %d of %d ranks on the first host, "
                   "rank %d dies at step %d",
                   p->operation->name, p->here, ranks, victim, step);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, r == victim ? KILLED : 0);
    test_job_end(&c);
}

static void kill_everywhere(int ranks, int here)
{
    two_level_case *p = shared_page(sizeof *p);
    int deaths = 0;

    p->here = here;
    for (p->operation = deeds; p->operation->name != NULL; p->operation++) {
        run_rank(p, ranks, -1, -1);
        for (int victim = 0; victim < ranks; victim++)
            for (int step = victim % STRIDE; step < p->steps[victim];
                 step += STRIDE, deaths++)
                run_rank(p, ranks, victim, step);
    }
    shared_page_free(p, sizeof *p);
    print_message("%d deaths\n", deaths);
}

static void a_death_is_reported_on_both_hosts(void **state)
{
    kill_everywhere(4, 2);
}

static void a_death_is_reported_where_one_host_has_one_rank(void **state)
{
    kill_everywhere(3, 2);
}

/* ---- calls that do not fit ----------------------------------------------- */

/* All of the second host sums more than the first. */
static int sum_what_the_others_do_not(test_job *c, int rank, void *arg)
{
    const two_level_case *p = arg;
    float x[7] = { 0 };
    size_t count = rank < p->here ? 5 : 7;
    int64_t start;
    oar_group *g;

    RANK_CHECK(join(c, rank, p, &g) == 0);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    start = oari_now_ns();
    RANK_CHECK(oar_all_reduce(g, oar_span_of(x, count, OAR_F32), OAR_SUM, NULL,
                              NULL) == OAR_E_MISMATCH);
    RANK_CHECK(is_in_time(start, NOTICED_MS));
    oar_group_destroy(g);
    return 0;
}

static void hosts_that_call_different_things_get_a_mismatch(void **state)
{
    two_level_case p = { .operation = deeds, .here = 2 };
    test_job c;

    test_job_start(&c, 5, sum_what_the_others_do_not, &p, "different counts");
    for (int r = 0; r < 5; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_is_reported_on_both_hosts),
        cmocka_unit_test(a_death_is_reported_where_one_host_has_one_rank),
        cmocka_unit_test(hosts_that_call_different_things_get_a_mismatch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
