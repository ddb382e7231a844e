/* SPDX-License-Identifier: Apache-2.0 */
/* An external engine (plugins/store_engine.c) beside the library's links: it
 * runs the collectives that it takes, the rest is planned over the links, and
 * faults are reported as in any other group. */
#include "support/test_job.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/p2p.h>

#include "base/clock.h"

enum {
    RANKS = 3,
    ODD = 1003,
    REPORT_MS = 5000,
    COMPARED = 16 /* collectives, within which hosts compare */
};

typedef struct external_context {
    shared_flag ready;
    oar_error record[RANKS];
} external_context;

static const char *plugin(const char *name)
{
    static char path[512];
    const char *build = getenv("OARSONG_BUILD_DIR");

    snprintf(path, sizeof path, "%s/tests/plugins/lib%s.so",
             build != NULL ? build : "build/release", name);
    return path;
}

static const char *store_engine_path(void)
{
    return plugin("store_engine");
}

static oar_status join(const test_job *c, int rank, oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();

    o.backend = store_engine_path();
    o.timeout_ms = 20000;
    return test_job_join(c, rank, &o, g);
}

static oar_span fill(float *data, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++)
        data[i] = (float)(rank + 1) * (float)(i % 7);
    return oar_span_of(data, count, OAR_F32);
}

static void run(test_job_fn fn, const char *what)
{
    external_context *s = shared_page(sizeof *s);
    test_job c;

    test_job_start(&c, RANKS, fn, s, "%s", what);
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

/* ---- all is well --------------------------------------------------------- */

static int is_sum(const float *data, size_t count, float factor)
{
    for (size_t i = 0; i < count; i++)
        if (data[i] != factor * (float)(i % 7))
            return 0;
    return 1;
}

static int run_collectives(test_job *c, int rank, void *arg)
{
    float a[ODD], b[ODD], mine, got = -1;
    oar_work *first, *second;
    oar_group *g;

    RANK_CHECK(join(c, rank, &g) == OAR_OK);
    RANK_CHECK(strcmp(oar_group_backend(g), "store_engine") == 0);
    fill(a, ODD, rank);
    RANK_CHECK(oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, NULL, NULL) ==
               OAR_OK);
    RANK_CHECK(is_sum(a, ODD, 6));
    /* planned: it takes no maximum */
    RANK_CHECK(oar_all_reduce_into(g, fill(a, ODD, rank),
                                   oar_span_of(b, ODD, OAR_F32), OAR_MAX, NULL,
                                   NULL) == OAR_OK);
    RANK_CHECK(is_sum(b, ODD, 3));
    /* both kinds under way at once, and messages of the links */
    RANK_CHECK(oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, NULL, &first) ==
               OAR_OK);
    RANK_CHECK(oar_all_reduce(g, fill(b, 17, rank), OAR_MIN, NULL, &second) ==
               OAR_OK);
    mine = (float)rank;
    RANK_CHECK(
        oar_sendrecv(g, oar_span_of(&mine, 1, OAR_F32), (rank + 1) % RANKS, 7,
                     oar_span_of(&got, 1, OAR_F32), (rank + RANKS - 1) % RANKS,
                     7, NULL, NULL) == OAR_OK);
    RANK_CHECK(got == (float)((rank + RANKS - 1) % RANKS));
    RANK_CHECK(oar_work_wait(second) == OAR_OK && is_sum(b, 17, 1));
    RANK_CHECK(oar_work_wait(first) == OAR_OK && is_sum(a, ODD, 6));
    oar_work_release(first);
    oar_work_release(second);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    oar_group_destroy(g);
    return 0;
}

static void what_it_takes_it_does_and_the_rest_is_planned(void **state)
{
    run(run_collectives, "an engine");
}

/* ---- faults -------------------------------------------------------------- */

/* What every rank that is left was told is the same. */
static int note(test_job *c, int rank, external_context *s, oar_group *g,
                oar_status status)
{
    s->record[rank].size = sizeof s->record[rank];
    RANK_CHECK(oar_group_fault(g, &s->record[rank]) == status);
    oar_group_destroy(g);
    return 0;
}

static int call_something_else(test_job *c, int rank, void *arg)
{
    external_context *s = arg;
    float a[ODD];
    oar_group *g;
    oar_status status;

    RANK_CHECK(join(c, rank, &g) == OAR_OK);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    if (rank == 1)
        status = oar_broadcast(g, fill(a, ODD, rank), 1, NULL, NULL);
    else
        status = oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, NULL, NULL);
    if (status == OAR_OK) /* the root of a broadcast does not wait */
        status = oar_barrier(g, NULL, NULL);
    RANK_CHECK(status == OAR_E_MISMATCH);
    RANK_CHECK(strstr(oar_last_error_text(), "all_reduce") != NULL);
    RANK_CHECK(strstr(oar_last_error_text(), "broadcast") != NULL);
    RANK_CHECK(strstr(oar_last_error_text(), "external_engine_test.c:") !=
               NULL);
    return note(c, rank, s, g, status);
}

static void
a_rank_that_calls_something_else_is_found_with_both_sides(void **state)
{
    run(call_something_else, "another collective");
}

static int plan_while_engine_runs(test_job *c, int rank, void *arg)
{
    float a[17];
    oar_group *g;

    RANK_CHECK(join(c, rank, &g) == OAR_OK);
    RANK_CHECK(oar_all_reduce(g, fill(a, 17, rank),
                              rank == 2 ? OAR_MAX : OAR_SUM, NULL,
                              NULL) == OAR_E_MISMATCH);
    RANK_CHECK(strstr(oar_last_error_text(), "max") != NULL);
    RANK_CHECK(strstr(oar_last_error_text(), "sum") != NULL);
    return note(c, rank, arg, g, OAR_E_MISMATCH);
}

static void one_that_plans_what_others_give_to_the_engine_is_found(void **state)
{
    run(plan_while_engine_runs, "a plan among collectives of the engine");
}

static int fail_in_the_middle(test_job *c, int rank, void *arg)
{
    float a[ODD];
    oar_group *g;
    oar_status status;
    char who[24];

    setenv("STORE_ENGINE_FAILS", "1", 1);
    RANK_CHECK(join(c, rank, &g) == OAR_OK);
    status = oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, NULL, NULL);
    RANK_CHECK(status == OAR_E_SYSTEM);
    RANK_CHECK(strstr(oar_last_error_text(), "was told to fail") != NULL);
    snprintf(who, sizeof who, "rank %d: ", oar_last_error()->rank);
    RANK_CHECK(strncmp(oar_last_error_text(), who, strlen(who)) == 0);
    return note(c, rank, arg, g, status);
}

static void a_failure_of_the_engine_is_everybodys(void **state)
{
    run(fail_in_the_middle, "an engine that fails");
}

/* Two hosts, and a difference that the engine does not notice: an all_reduce
 * finds it, though it is the same everywhere. */
static int differ_unnoticed(test_job *c, int rank, void *arg)
{
    oar_status status = OAR_OK;
    float a[17];
    oar_group *g;
    int done = 0;

    setenv("OARSONG_HOST_ID", rank == 1 ? "there" : "here", 1);
    RANK_CHECK(join(c, rank, &g) == OAR_OK);
    RANK_CHECK(oar_broadcast(g,
                             oar_span_of(a, 17, rank == 1 ? OAR_I32 : OAR_F32),
                             0, NULL, NULL) == OAR_OK);
    while (status == OAR_OK && done++ < 2 * COMPARED)
        status = oar_all_reduce(g, fill(a, 17, rank), OAR_SUM, NULL, NULL);
    RANK_CHECK(status == OAR_E_MISMATCH);
    RANK_CHECK(strstr(oar_last_error_text(), "i32") != NULL);
    RANK_CHECK(strstr(oar_last_error_text(), "f32") != NULL);
    return note(c, rank, arg, g, status);
}

static void a_difference_between_hosts_is_found_in_time(void **state)
{
    run(differ_unnoticed, "two engines");
}

/* ---- a death ------------------------------------------------------------- */

static int die_in_the_middle(test_job *c, int rank, void *arg)
{
    external_context *s = arg;
    float a[ODD];
    int64_t start;
    oar_group *g;

    RANK_CHECK(join(c, rank, &g) == OAR_OK);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    shared_flag_raise(&s->ready);
    if (rank == 1) {
        shared_flag_await(&s->ready, RANKS, TEST_JOB_LIMIT_MS);
        raise(SIGKILL);
    }
    start = oari_now_ns();
    RANK_CHECK(oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, NULL, NULL) ==
               OAR_E_PEER);
    RANK_CHECK(is_in_time(start, REPORT_MS));
    RANK_CHECK(strstr(oar_last_error_text(), "rank 1") != NULL);
    RANK_CHECK(strstr(oar_last_error_text(), "died") != NULL);
    return note(c, rank, s, g, OAR_E_PEER);
}

static void lose_rank_1(void)
{
    external_context *s = shared_page(sizeof *s);
    test_job c;

    test_job_start(&c, RANKS, die_in_the_middle, s, "a singer dies");
    test_job_expect(&c, 1, 128 + SIGKILL);
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 2, 0);
    test_job_end(&c);
    assert_string_equal(s->record[0].text, s->record[2].text);
    shared_page_free(s, sizeof *s);
}

static void a_rank_that_dies_is_named(void **state)
{
    lose_rank_1();
}

/* ---- callers that work for it -------------------------------------------- */

static void callers_that_work_for_it_are_looked_after(void **state)
{
    setenv("STORE_ENGINE_INLINE", "1", 1);
    run(run_collectives, "callers that do the work");
    run(call_something_else, "callers with another collective");
    lose_rank_1();
    unsetenv("STORE_ENGINE_INLINE");
}

/* The others are in there, where no time is counted, when it runs out. */
static int wait_until_timeout(test_job *c, int rank, void *arg)
{
    external_context *s = arg;
    oar_call_opts o = oar_call_opts_init();
    float a[ODD];
    oar_group *g;

    o.timeout_ms = 700;
    RANK_CHECK(join(c, rank, &g) == OAR_OK);
    if (rank == 1)
        RANK_CHECK(shared_flag_await(&s->ready, 2, TEST_JOB_LIMIT_MS));
    else {
        RANK_CHECK(oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, &o, NULL) ==
                   OAR_E_TIMEOUT);
        shared_flag_raise(&s->ready);
    }
    oar_group_destroy(g);
    return 0;
}

static void time_is_counted_for_callers_that_work_for_it(void **state)
{
    setenv("STORE_ENGINE_INLINE", "1", 1);
    run(wait_until_timeout, "a caller that waits");
    unsetenv("STORE_ENGINE_INLINE");
}

/* ---- an engine that loses failures --------------------------------------- */

typedef struct false_result {
    shared_flag dead;
    int begins; /* the rank that dies has begun */
} false_result;

/* The engine drops rank 1's part and reports the call as done. The others begin
 * when rank 1 is dead; it has begun itself, or not. */
static int expect_no_result(test_job *c, int rank, void *arg)
{
    false_result *l = arg;
    float a[ODD];
    oar_group *g;

    setenv("STORE_ENGINE_LOSES_RANK", "1", 1);
    /* one that takes long is looked at again when it is done */
    setenv("STORE_ENGINE_POLLS", l->begins ? "1500" : "0", 1);
    RANK_CHECK(join(c, rank, &g) == OAR_OK);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    if (rank == 1 && !l->begins)
        raise(SIGKILL);
    if (rank != 1)
        RANK_CHECK(shared_flag_await(&l->dead, 1, TEST_JOB_LIMIT_MS));
    RANK_CHECK(oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, NULL, NULL) ==
               OAR_E_PEER);
    RANK_CHECK(strstr(oar_last_error_text(), "rank 1") != NULL);
    oar_group_destroy(g);
    return 0;
}

static void lose_a_rank(int begins)
{
    false_result *l = shared_page(sizeof *l);
    test_job c;

    l->begins = begins;
    test_job_start(&c, RANKS, expect_no_result, l,
                   "an engine that loses a rank");
    test_job_expect(&c, 1, 128 + SIGKILL);
    shared_flag_raise(&l->dead);
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 2, 0);
    test_job_end(&c);
    shared_page_free(l, sizeof *l);
}

static void
a_result_without_the_part_of_a_missing_rank_is_no_result(void **state)
{
    lose_a_rank(0);
}

static void
a_result_without_a_rank_that_died_in_the_middle_is_no_result(void **state)
{
    lose_a_rank(1);
}

/* Rank 1 calls when the others have given up, and their buffers may hold
 * anything by then; the engine does not notice. */
static int come_too_late(test_job *c, int rank, void *arg)
{
    external_context *s = arg;
    oar_call_opts o = oar_call_opts_init();
    float a[ODD];
    oar_group *g;

    setenv("STORE_ENGINE_LOSES_RANK", "7", 1); /* no rank */
    setenv("STORE_ENGINE_POLLS", rank == 1 ? "0" : "1000000000", 1);
    o.timeout_ms = 500;
    RANK_CHECK(join(c, rank, &g) == OAR_OK);
    if (rank == 1)
        RANK_CHECK(shared_flag_await(&s->ready, 2, TEST_JOB_LIMIT_MS));
    RANK_CHECK(oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, &o, NULL) ==
               OAR_E_TIMEOUT);
    shared_flag_raise(&s->ready);
    if (rank != 1)
        RANK_CHECK(shared_flag_await(&s->ready, RANKS, TEST_JOB_LIMIT_MS));
    return note(c, rank, s, g, OAR_E_TIMEOUT);
}

static void a_result_after_others_gave_up_is_no_result(void **state)
{
    run(come_too_late, "a singer comes late");
}

/* On another host, rank 1 was away for longer than its timeout: it listens
 * whether the others have given up, and as they have not, all is well. */
static int come_late(test_job *c, int rank, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    float a[17];
    oar_group *g;

    setenv("OARSONG_HOST_ID", rank == 1 ? "there" : "here", 1);
    RANK_CHECK(join(c, rank, &g) == OAR_OK);
    RANK_CHECK(oar_all_reduce(g, fill(a, 17, rank), OAR_SUM, NULL, NULL) ==
               OAR_OK);
    o.timeout_ms = rank == 1 ? 300 : 0;
    if (rank == 1)
        usleep(400000);
    RANK_CHECK(oar_all_reduce(g, fill(a, 17, rank), OAR_SUM, &o, NULL) ==
               OAR_OK);
    RANK_CHECK(is_sum(a, 17, 6));
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    oar_group_destroy(g);
    return 0;
}

static void a_rank_that_was_late_counts_in_the_end(void **state)
{
    run(come_late, "a singer from far is late");
}

static int lose_a_message(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    float a[17];
    oar_work *work;
    oar_group *g;

    o.backend = plugin("loses_messages");
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
    RANK_CHECK(oar_recv(g, fill(a, 17, rank), (rank + 1) % RANKS, 0, NULL,
                        &work) == OAR_OK);
    RANK_CHECK(oar_work_wait(work) == OAR_E_CLOSED);
    oar_work_release(work);
    return note(c, rank, arg, g, OAR_E_CLOSED);
}

static void a_message_that_it_loses_is_a_failure(void **state)
{
    run(lose_a_message, "a lost message");
}

/* ---- sends that are done ------------------------------------------------- */

static oar_group *sending;
static external_context *sent_context;

static void abort_here(void)
{
    oar_group_abort(sending, "enough");
}

/* Rank 0 aborts as soon as it knows that the data is on its way. */
static void await_abort_there(void)
{
    shared_flag_raise(&sent_context->ready);
    shared_flag_await(&sent_context->ready, 2, TEST_JOB_LIMIT_MS);
}

/* Rank 1 sends; the group ends after the engine has taken the data, and before
 * any thread has looked whether the send is done. */
static int send_before(test_job *c, int rank, external_context *s,
                       void (*then)(void))
{
    void (**hook)(void), *library;
    float word = 3;

    oar_group_opts o = oar_group_opts_init();
    o.backend = plugin("loses_messages");
    RANK_CHECK(test_job_join(c, rank, &o, &sending) == OAR_OK);
    if (rank == 0 && then == await_abort_there) {
        RANK_CHECK(shared_flag_await(&s->ready, 1, TEST_JOB_LIMIT_MS));
        oar_group_abort(sending, "enough");
        shared_flag_raise(&s->ready);
    }
    if (rank == 1) {
        library = dlopen(o.backend, RTLD_NOW);
        RANK_CHECK(library != NULL);
        hook = dlsym(library, "loses_messages_sent");
        RANK_CHECK(hook != NULL);
        sent_context = s;
        *hook = then;
        RANK_CHECK(oar_send(sending, oar_span_of(&word, 1, OAR_F32), 0, 0, NULL,
                            NULL) == OAR_OK);
        RANK_CHECK(oar_barrier(sending, NULL, NULL) == OAR_E_ABORTED);
        dlclose(library);
    }
    oar_group_destroy(sending);
    return 0;
}

static int send_and_abort(test_job *c, int rank, void *arg)
{
    return send_before(c, rank, arg, abort_here);
}

static int send_and_be_aborted(test_job *c, int rank, void *arg)
{
    return send_before(c, rank, arg, await_abort_there);
}

static void
a_send_whose_data_was_taken_is_done_though_its_rank_aborts(void **state)
{
    run(send_and_abort, "a send, then an abort here");
}

static void
a_send_whose_data_was_taken_is_done_though_a_peer_aborts(void **state)
{
    run(send_and_be_aborted, "a send, then an abort there");
}

/* ---- groups of groups ---------------------------------------------------- */

static int split(test_job *c, int rank, void *arg)
{
    float a[17];
    oar_group *g, *half;

    RANK_CHECK(join(c, rank, &g) == OAR_OK);
    RANK_CHECK(oar_group_split(g, rank == 1, 0, &half) == OAR_OK);
    RANK_CHECK(oar_all_reduce(half, fill(a, 17, rank), OAR_SUM, NULL, NULL) ==
               OAR_OK);
    RANK_CHECK(is_sum(a, 17, rank == 1 ? 2 : 4));
    RANK_CHECK(rank == 1 ||
               strcmp(oar_group_backend(half), "store_engine") == 0);
    oar_group_destroy(half);
    oar_group_destroy(g);
    return 0;
}

static void a_child_group_uses_the_engine_too(void **state)
{
    run(split, "a part of a group");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_takes_it_does_and_the_rest_is_planned),
        cmocka_unit_test(
            a_rank_that_calls_something_else_is_found_with_both_sides),
        cmocka_unit_test(
            one_that_plans_what_others_give_to_the_engine_is_found),
        cmocka_unit_test(a_failure_of_the_engine_is_everybodys),
        cmocka_unit_test(a_difference_between_hosts_is_found_in_time),
        cmocka_unit_test(a_rank_that_dies_is_named),
        cmocka_unit_test(callers_that_work_for_it_are_looked_after),
        cmocka_unit_test(time_is_counted_for_callers_that_work_for_it),
        cmocka_unit_test(
            a_result_without_the_part_of_a_missing_rank_is_no_result),
        cmocka_unit_test(
            a_result_without_a_rank_that_died_in_the_middle_is_no_result),
        cmocka_unit_test(a_result_after_others_gave_up_is_no_result),
        cmocka_unit_test(a_rank_that_was_late_counts_in_the_end),
        cmocka_unit_test(a_message_that_it_loses_is_a_failure),
        cmocka_unit_test(
            a_send_whose_data_was_taken_is_done_though_its_rank_aborts),
        cmocka_unit_test(
            a_send_whose_data_was_taken_is_done_though_a_peer_aborts),
        cmocka_unit_test(a_child_group_uses_the_engine_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
