/* SPDX-License-Identifier: Apache-2.0 */
/* An engine that waits for messages, with no caller that waits for it, wakes
 * about once a second: in a loose group with a watch for ranks that go, and in
 * any other group once it has asked the others what they do. */
#include "support/ranks.h"

#include <sys/resource.h>
#include <unistd.h>

#include <oarsong/p2p.h>
#include <oarsong/work.h>

enum {
    ASKED_US = 1500000, /* by then the engine has asked */
    IDLE_US = 2000000,
    WINDOWS = 5, /* on a busy machine the questions come late */
    MOST = 12    /* sleeps; two engines that look every 100 ms have 40 */
};

static long sleeps(void)
{
    struct rusage use;

    getrusage(RUSAGE_SELF, &use);
    return use.ru_nvcsw;
}

static void never(void *arg, int rank, oar_gone how)
{
}

static oar_status be_idle(oar_group *world, void *arg)
{
    oar_call_opts wait = { .size = sizeof wait, .timeout_ms = -1 };
    int value[2] = { 0, 0 }, given_up;
    oar_group *plain, *loose;
    oar_work *work[2];
    long slept = MOST + 1;

    CHECK_OK(oar_group_dup(world, &plain));
    CHECK_OK(
        oar_group_dup_with(world, OAR_OPTS(oar_dup_opts, .loose = 1), &loose));
    CHECK_OK(oar_group_on_gone(loose, never, NULL));
    CHECK_OK(oar_recv(plain, oar_span_of(&value[0], 1, OAR_I32), OAR_ANY_SOURCE,
                      1, &wait, &work[0]));
    CHECK_OK(oar_recv(loose, oar_span_of(&value[1], 1, OAR_I32), OAR_ANY_SOURCE,
                      1, &wait, &work[1]));
    usleep(ASKED_US);
    for (int k = 0; k < WINDOWS && slept > MOST; k++) {
        long before = sleeps();

        usleep(IDLE_US);
        slept = sleeps() - before;
        if (slept > MOST)
            print_message("slept %ld times in 2 s\n", slept);
    }
    CHECK(slept <= MOST);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(oar_work_cancel(work[i], &given_up));
        CHECK(given_up);
        oar_work_release(work[i]);
    }
    CHECK_OK(oar_barrier(world, NULL, NULL));
    oar_group_destroy(loose);
    oar_group_destroy(plain);
    return OAR_OK;
}

static void engines_wake_once_a_second_over_shared_memory(void **state)
{
    assert_int_equal(ranks_run("shm", 2, NULL, be_idle, NULL), OAR_OK);
}

static void engines_wake_once_a_second_over_tcp(void **state)
{
    assert_int_equal(ranks_run("tcp", 2, NULL, be_idle, NULL), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engines_wake_once_a_second_over_shared_memory),
        cmocka_unit_test(engines_wake_once_a_second_over_tcp),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
