/* SPDX-License-Identifier: Apache-2.0 */
/* What happens on NCCL when a rank dies, is missing, calls something else or
 * aborts: every rank gets the same record, in time, and nothing is left on the
 * GPU. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/nccl.h>
#include <oarsong/p2p.h>

#include "base/clock.h"
#include "support/gpu_ranks.h"
#include "support/last_error.h"

/* Longest that a failure may take, with four times as many processes as
 * cores. */
enum { BOUND_MS = 12000, DIES = 1, COUNT = 4099 };

static oar_span buffer(int rank)
{
    return gpu_span(rank, gpu_put(rank, NULL, COUNT * 4), COUNT, OAR_I32);
}

/* Whether what is on the group's stream is gone from the GPU. */
static int drains(oar_device device, void *stream)
{
    int64_t began = oari_now_ns();
    int done = 0;

    while (!done && ms_since(began) < BOUND_MS)
        if (oar_stream_query(device, stream, &done) != OAR_OK)
            return 0;
    return done;
}

static void run(int ranks, test_job_fn fn, void *arg, int killed,
                const char *what)
{
    test_job c;

    gpu_ranks_need(ranks);
    test_job_start(&c, ranks, fn, arg, "%s", what);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, r == killed ? 128 + SIGKILL : 0);
    test_job_end(&c);
}

/* ---- death --------------------------------------------------------------- */

/* All have summed once; then one dies where the others already wait. */
static int loses_a_rank(test_job *c, int rank, void *arg)
{
    shared_flag *waiting = arg;
    oar_span span = buffer(rank);
    oar_error fault;
    oar_work *work;
    oar_group *g;
    int64_t began;

    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    RANK_OK(oar_all_reduce(g, span, OAR_SUM, NULL, NULL));
    RANK_OK(oar_nccl_synchronize(g));
    if (rank == DIES) {
        shared_flag_await(waiting, (uint32_t)c->ranks - 1, TEST_JOB_LIMIT_MS);
        raise(SIGKILL);
    }
    RANK_OK(oar_all_reduce(g, span, OAR_SUM, NULL, &work));
    shared_flag_raise(waiting);
    began = oari_now_ns();
    RANK_CHECK(oar_work_wait(work) == OAR_E_PEER);
    RANK_CHECK(is_in_time(began, BOUND_MS));
    oar_work_release(work);
    RANK_CHECK(oar_group_fault(g, NULL) == OAR_E_PEER);
    fault = *oar_last_error();
    RANK_CHECK(fault.peer == DIES || strstr(fault.text, "rank 1") != NULL);
    RANK_CHECK(oar_all_reduce(g, span, OAR_SUM, NULL, NULL) == OAR_E_PEER);
    RANK_CHECK(oar_nccl_synchronize(g) == OAR_E_PEER);
    began = oari_now_ns();
    oar_group_destroy(g);
    RANK_CHECK(is_in_time(began, BOUND_MS));
    return 0;
}

static void a_rank_that_dies_is_named_and_ends_what_waits_for_it(void **state)
{
    shared_flag *waiting = shared_page(sizeof *waiting);

    gpu_ranks_need(3);
    run(3, loses_a_rank, waiting, DIES, "a death");
    shared_page_free(waiting, sizeof *waiting);
}

/* The caller has gone on, since all was on the stream; its own stream waits for
 * what can never come. */
static int has_gone_on(test_job *c, int rank, void *arg)
{
    shared_flag *waiting = arg;
    oar_device device = gpu_of_rank(rank);
    oar_call_opts opts = oar_call_opts_init();
    oar_span span = buffer(rank);
    oar_group *g;
    void *stream;

    RANK_OK(oar_stream_create(device, 0, &stream));
    opts.stream = stream;
    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    RANK_OK(oar_all_reduce(g, span, OAR_SUM, &opts, NULL));
    RANK_OK(oar_stream_synchronize(device, stream));
    if (rank == DIES) {
        shared_flag_await(waiting, (uint32_t)c->ranks - 1, TEST_JOB_LIMIT_MS);
        raise(SIGKILL);
    }
    RANK_OK(oar_all_reduce(g, span, OAR_SUM, &opts, NULL));
    shared_flag_raise(waiting);
    RANK_CHECK(drains(device, stream)); /* within the bound, by the abort */
    RANK_CHECK(oar_group_fault(g, NULL) == OAR_E_PEER);
    oar_group_destroy(g);
    oar_stream_destroy(device, stream);
    return 0;
}

static void
a_death_releases_the_streams_of_callers_that_have_gone_on(void **state)
{
    shared_flag *waiting = shared_page(sizeof *waiting);

    gpu_ranks_need(2);
    run(2, has_gone_on, waiting, DIES, "gone on");
    shared_page_free(waiting, sizeof *waiting);
}

/* The links have met; then one dies on its way to NCCL. (It has asked for a
 * group without one, which meets in the same way.) */
static int dies_on_the_way(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *whole, *g = NULL;
    int64_t began = oari_now_ns();

    o.backend = "native";
    RANK_OK(gpu_ranks_join(c, rank, &o, &whole));
    if (rank == DIES) {
        o.backend = "native";
        o.name = "second";
        RANK_OK(
            gpu_ranks_join(c, rank, &o, &g)); /* the links of "second" only */
        raise(SIGKILL);
    }
    o.backend = "nccl";
    o.name = "second";
    RANK_CHECK(gpu_ranks_join(c, rank, &o, &g) == OAR_E_PEER);
    RANK_CHECK(last_error_has("rank 1") && oar_last_error()->peer == DIES);
    RANK_CHECK(is_in_time(began, BOUND_MS));
    oar_group_destroy(whole);
    return 0;
}

static void
a_rank_that_dies_before_it_comes_to_nccl_is_not_waited_for(void **state)
{
    gpu_ranks_need(3);
    run(3, dies_on_the_way, NULL, DIES, "died on the way");
}

/* ---- time ---------------------------------------------------------------- */

static int waits_for_nobody(test_job *c, int rank, void *arg)
{
    shared_flag *over = arg;
    oar_call_opts opts = oar_call_opts_init();
    oar_span span = buffer(rank);
    oar_group *g;
    int64_t began;

    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    RANK_OK(oar_all_reduce(g, span, OAR_SUM, NULL, NULL));
    RANK_OK(oar_nccl_synchronize(g));
    opts.timeout_ms = 700;
    began = oari_now_ns();
    if (rank != DIES) {
        oar_work *work;

        RANK_OK(oar_all_reduce(g, span, OAR_SUM, &opts, &work));
        RANK_CHECK(oar_work_wait(work) == OAR_E_TIMEOUT);
        RANK_CHECK(last_error_has("rank 1"));
        RANK_CHECK(oar_last_error()->peer == DIES);
        oar_work_release(work);
        shared_flag_raise(over);
    } else {
        RANK_CHECK(
            shared_flag_await(over, (uint32_t)c->ranks - 1, TEST_JOB_LIMIT_MS));
        oar_all_reduce(g, span, OAR_SUM, NULL, NULL); /* may be on a stream */
        RANK_CHECK(oar_nccl_synchronize(g) == OAR_E_TIMEOUT);
    }
    RANK_CHECK(is_in_time(began, BOUND_MS));
    oar_group_destroy(g);
    return 0;
}

static void a_rank_that_never_calls_is_named_at_the_deadline(void **state)
{
    shared_flag *over = shared_page(sizeof *over);

    gpu_ranks_need(3);
    run(3, waits_for_nobody, over, -1, "never called");
    shared_page_free(over, sizeof *over);
}

/* ---- abort --------------------------------------------------------------- */

static void *abort_soon(void *arg)
{
    oar_group_abort(arg, "enough");
    return NULL;
}

static int is_aborted(test_job *c, int rank, void *arg)
{
    shared_flag *waiting = arg;
    oar_span span = buffer(rank);
    oar_group *g;
    oar_work *work;
    pthread_t thread;
    int64_t began;

    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    if (rank != 0) { /* it fails, and learns why */
        RANK_CHECK(shared_flag_await(waiting, 1, TEST_JOB_LIMIT_MS));
        RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_E_ABORTED &&
                   last_error_has("enough"));
        oar_group_destroy(g);
        return 0;
    }
    RANK_OK(oar_all_reduce(g, span, OAR_SUM, NULL, &work));
    began = oari_now_ns();
    RANK_CHECK(pthread_create(&thread, NULL, abort_soon, g) == 0);
    shared_flag_raise(waiting);
    RANK_CHECK(oar_work_wait(work) == OAR_E_ABORTED &&
               last_error_has("enough"));
    RANK_CHECK(is_in_time(began, BOUND_MS));
    pthread_join(thread, NULL);
    oar_group_abort(g, "again"); /* exactly one reaches NCCL */
    RANK_CHECK(oar_nccl_synchronize(g) == OAR_E_ABORTED);
    oar_work_release(work);
    oar_group_destroy(g);
    RANK_CHECK(is_in_time(began, BOUND_MS));
    gpu_free(rank, span.data);
    return 0;
}

static void an_abort_from_another_thread_ends_what_waits(void **state)
{
    shared_flag *waiting = shared_page(sizeof *waiting);

    gpu_ranks_need(2);
    run(2, is_aborted, waiting, -1, "an abort");
    shared_page_free(waiting, sizeof *waiting);
}

/* ---- disagreement -------------------------------------------------------- */

static int disagrees(test_job *c, int rank, void *arg)
{
    oar_span span = buffer(rank);
    oar_work *work;
    oar_group *g;

    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    RANK_OK(oar_all_reduce(g, span, OAR_SUM, NULL, NULL));
    span.count -= (size_t)rank;
    RANK_OK(oar_all_reduce(g, span, OAR_SUM, NULL, &work));
    RANK_CHECK(oar_work_wait(work) == OAR_E_MISMATCH);
    oar_work_release(work);
    oar_group_destroy(g);
    return 0;
}

static void ranks_that_call_different_things_get_a_mismatch(void **state)
{
    gpu_ranks_need(2);
    run(2, disagrees, NULL, -1, "a mismatch");
}

/* ---- NCCL itself fails --------------------------------------------------- */

static int fails_strangely(test_job *c, int rank, void *arg)
{
    oar_span span = buffer(rank);
    oar_group *g;

    setenv("STANDIN_NCCL_FAIL", "AllReduce:42", 1);
    RANK_OK(gpu_ranks_join(c, rank, NULL, &g));
    RANK_CHECK(oar_all_reduce(g, span, OAR_SUM, NULL, NULL) == OAR_E_GPU);
    RANK_CHECK(last_error_has("result 42") && last_error_has("all_reduce"));
    RANK_CHECK(oar_group_fault(g, NULL) == OAR_E_GPU);
    oar_group_destroy(g);
    return 0;
}

static void
a_result_code_of_a_newer_nccl_ends_the_group_with_a_sentence(void **state)
{
    if (gpu_ranks_are_real())
        skip(); /* only the stand-in can be told to fail */
    run(1, fails_strangely, NULL, -1, "result 42");
}

/* As above, but NCCL itself notices that a connection is closed. */
static int notices(test_job *c, int rank, void *arg)
{
    setenv("STANDIN_NCCL_NOTICE", "1", 1);
    return loses_a_rank(c, rank, arg);
}

static void
an_asynchronous_error_of_nccl_comes_out_as_the_rank_that_died(void **state)
{
    shared_flag *waiting = shared_page(sizeof *waiting);

    gpu_ranks_need(3);
    run(3, notices, waiting, DIES, "noticed");
    shared_page_free(waiting, sizeof *waiting);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_dies_is_named_and_ends_what_waits_for_it),
        cmocka_unit_test(
            a_death_releases_the_streams_of_callers_that_have_gone_on),
        cmocka_unit_test(
            a_rank_that_dies_before_it_comes_to_nccl_is_not_waited_for),
        cmocka_unit_test(a_rank_that_never_calls_is_named_at_the_deadline),
        cmocka_unit_test(an_abort_from_another_thread_ends_what_waits),
        cmocka_unit_test(ranks_that_call_different_things_get_a_mismatch),
        cmocka_unit_test(
            a_result_code_of_a_newer_nccl_ends_the_group_with_a_sentence),
        cmocka_unit_test(
            an_asynchronous_error_of_nccl_comes_out_as_the_rank_that_died),
    };

    gpu_ranks_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
