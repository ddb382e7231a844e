/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies, is stopped or aborts before, during and after the making of a
 * window. The others end in time with an error that names it, and nothing is
 * left: no descriptor, no mapping, no name. A window that is made outlives the
 * ranks that die. */
#include "support/test_job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/window.h>

#include "base/clock.h"
#include "comm/group/group.h"

enum {
    RANKS = 3,
    STEPS = 5, /* collectives of one oar_window_create */
    BYTES = 5 * 4096 + 11,
    NOTICED_MS = 2000,  /* a death or an abort, at the latest */
    STOPPED_MS = 1000,  /* the timeout where a rank is stopped */
    BEYOND_MS = 2000,   /* that timeout */
    TIMEOUT_MS = 30000, /* where it is not what ends the call */
    KILLED = 128 + SIGKILL
};

typedef enum fault_way { DIES, STOPS, ABORTS } fault_way;

typedef struct window_case {
    fault_way way;
    int victim, step, hosts;
    shared_flag reported; /* by the others */
} window_case;

/* ---- while it is made ---------------------------------------------------- */

static const window_case *struck; /* the rank's own case */

static void strike(const oar_group *g, int step)
{
    if (oar_group_rank(g) != struck->victim || step != struck->step)
        return;
    switch (struck->way) {
    case DIES: raise(SIGKILL); break;
    case STOPS: raise(SIGSTOP); break;
    case ABORTS: oar_group_abort((oar_group *)(uintptr_t)g, "enough"); break;
    }
}

static oar_status expected(fault_way way)
{
    return way == DIES     ? OAR_E_PEER
           : way == ABORTS ? OAR_E_ABORTED
                           : OAR_E_TIMEOUT;
}

/* How often this process has the memory of a window mapped. */
static int window_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int found = 0;

    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        found += strstr(line, "oarsong-window-") != NULL;
    if (maps == NULL || fclose(maps) != 0)
        return -1;
    return found;
}

static int survive(test_job *c, int rank, oar_group *g, window_case *p)
{
    int64_t limit = p->way == STOPS ? STOPPED_MS + BEYOND_MS : NOTICED_MS;
    int64_t start = oari_now_ns();
    oar_window_opts o = oar_window_opts_init();
    oar_window *w = NULL;
    char name[16];

    if (p->way == STOPS)
        o.timeout_ms = STOPPED_MS;
    RANK_CHECK(oar_window_create(g, BYTES, &o, &w) == expected(p->way));
    RANK_CHECK(w == NULL && is_in_time(start, limit));
    snprintf(name, sizeof name, "rank %d", p->victim);
    RANK_CHECK(strstr(oar_last_error_text(), name) != NULL);
    RANK_CHECK(oar_window_create(g, BYTES, NULL, &w) == expected(p->way));
    return 0;
}

static int be_rank(test_job *c, int rank, void *arg)
{
    window_case *p = arg;
    oar_group_opts o = oar_group_opts_init();
    int descriptors, failed;
    oar_group *g;
    oar_window *w = NULL;

    if (p->hosts > 1)
        setenv("OARSONG_HOST_ID", rank < 2 ? "a" : "b", 1);
    o.backend = "native";
    o.timeout_ms = TIMEOUT_MS;
    RANK_OK(test_job_join(c, rank, &o, &g));
    RANK_OK(oar_barrier(g, NULL, NULL));
    descriptors = open_descriptors();
    struck = p;
    oari_window_hook = strike;
    if (rank != p->victim) {
        failed = survive(c, rank, g, p);
        shared_flag_raise(&p->reported);
    } else {
        /* one that was stopped just before the end may not have missed it */
        failed = oar_window_create(g, BYTES, NULL, &w) == OAR_OK;
        RANK_CHECK(!failed || (p->way == STOPS && p->step == STEPS - 1));
        RANK_CHECK(oar_barrier(g, NULL, NULL) != OAR_OK);
        oar_window_release(w);
        failed = 0;
    }
    if (p->hosts == 1)
        RANK_CHECK(open_descriptors() <= descriptors);
    RANK_CHECK(window_mappings() == 0);
    oar_group_destroy(g);
    return failed;
}

static void run_case(window_case *p)
{
    static const char *const way[] = { "dies", "is stopped", "aborts" };
    test_job c;

    atomic_store(&p->reported, 0);
    test_job_start(&c, RANKS, be_rank, p, "%d hosts: rank %d %s at step %d",
                   p->hosts, p->victim, way[p->way], p->step);
    if (p->way == STOPS) {
        assert_true(test_job_wait_stopped(&c, p->victim, TEST_JOB_LIMIT_MS));
        assert_true(shared_flag_await(&p->reported, RANKS - 1,
                                      (int)busy_ms(TEST_JOB_LIMIT_MS)));
        kill(c.pid[p->victim], SIGCONT);
    }
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&c, r, p->way == DIES && r == p->victim ? KILLED : 0);
    test_job_end(&c);
}

static void run_cases(fault_way way, int hosts)
{
    window_case *p = shared_page(sizeof *p);

    p->way = way;
    p->hosts = hosts;
    for (p->victim = 0; p->victim < (way == STOPS ? 2 : RANKS); p->victim++)
        for (p->step = 0; p->step < STEPS; p->step++)
            run_case(p);
    shared_page_free(p, sizeof *p);
}

static void a_death_at_any_step_is_reported(void **state)
{
    run_cases(DIES, 1);
}

static void a_death_on_either_of_two_hosts_is_reported(void **state)
{
    run_cases(DIES, 2);
}

static void a_stop_at_any_step_is_reported(void **state)
{
    run_cases(STOPS, 1);
}

static void an_abort_at_any_step_is_reported(void **state)
{
    run_cases(ABORTS, 1);
}

/* ---- when it is made ----------------------------------------------------- */

typedef struct made_case {
    fault_way way;
    int victim;
    shared_flag made, checked;
} made_case;

/* The victim has written its part and made a page read-only; what it wrote
 * stays, and the others may write to that page. */
static int outlive(test_job *c, int rank, void *arg)
{
    made_case *p = arg;
    oar_group_opts o = oar_group_opts_init();
    oar_call_opts call = oar_call_opts_init();
    oar_group *g;
    oar_window *w;
    unsigned char *data;

    o.backend = "native";
    o.timeout_ms = TIMEOUT_MS;
    RANK_OK(test_job_join(c, rank, &o, &g));
    RANK_OK(oar_window_create(g, BYTES, NULL, &w));
    RANK_CHECK(window_mappings() == 1);
    data = oar_window_data(w);
    data[rank] = (unsigned char)(rank + 1);
    shared_flag_raise(&p->made);
    RANK_CHECK(shared_flag_await(&p->made, RANKS, TEST_JOB_LIMIT_MS));
    if (rank == p->victim) {
        RANK_OK(oar_window_protect(w, 0, BYTES, 0));
        raise(p->way == DIES ? SIGKILL : SIGSTOP);
        RANK_CHECK(data[BYTES - 1] != 0); /* it goes on too late */
        oar_group_destroy(g);
        oar_window_release(w);
        return 0;
    }
    if (p->way == STOPS)
        call.timeout_ms = STOPPED_MS;
    RANK_CHECK(oar_barrier(g, &call, NULL) == expected(p->way));
    oar_group_destroy(g);
    for (int r = 0; r < RANKS; r++)
        RANK_CHECK(data[r] == r + 1);
    data[BYTES - 1] = 5;
    shared_flag_raise(&p->checked);
    RANK_CHECK(shared_flag_await(&p->checked, RANKS - 1, TEST_JOB_LIMIT_MS));
    oar_window_release(w);
    return 0;
}

static void a_window_outlives_ranks_that_die_or_stop(void **state)
{
    made_case *p = shared_page(sizeof *p);

    for (p->way = DIES; p->way <= STOPS; p->way++)
        for (p->victim = 0; p->victim < RANKS; p->victim++) {
            test_job c;

            atomic_store(&p->made, 0);
            atomic_store(&p->checked, 0);
            test_job_start(&c, RANKS, outlive, p, "rank %d %s", p->victim,
                           p->way == DIES ? "dies" : "is stopped");
            if (p->way == STOPS) {
                assert_true(
                    test_job_wait_stopped(&c, p->victim, TEST_JOB_LIMIT_MS));
                assert_true(shared_flag_await(&p->checked, RANKS - 1,
                                              TEST_JOB_LIMIT_MS));
                kill(c.pid[p->victim], SIGCONT);
            }
            for (int r = 0; r < RANKS; r++)
                test_job_expect(&c, r,
                                p->way == DIES && r == p->victim ? KILLED : 0);
            test_job_end(&c);
        }
    shared_page_free(p, sizeof *p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_at_any_step_is_reported),
        cmocka_unit_test(a_death_on_either_of_two_hosts_is_reported),
        cmocka_unit_test(a_stop_at_any_step_is_reported),
        cmocka_unit_test(an_abort_at_any_step_is_reported),
        cmocka_unit_test(a_window_outlives_ranks_that_die_or_stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
