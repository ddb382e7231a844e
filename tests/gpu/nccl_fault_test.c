/* SPDX-License-Identifier: Apache-2.0 */
/* What happens on NCCL when a rank dies, does not come, calls something else or
 * gives up: everybody gets the same record, in time, and nothing is left on the
 * GPU. 2.18 of the original: no watchdog, no abort, no timeout. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/nccl.h>
#include <oarsong/p2p.h>

#include "base/clock.h"
#include "support/cards.h"

#define TRY_(condition) CREW_CHECK(c, rank, condition)
#define OK(call)        TRY_((call) == OAR_OK)

/* Longest that a failure may take, with four times as many processes as
 * cores. */
enum { BOUND_MS = 12000, DIES = 1, COUNT = 4099 };

static int says(const char *word)
{
    return strstr(oar_last_error_text(), word) != NULL;
}

static oar_span buffer(int rank)
{
    return cards_span(rank, cards_put(rank, NULL, COUNT * 4), COUNT, OAR_I32);
}

/* Whether what is on the group's stream is gone from the GPU. */
static int drains(oar_device device, void *stream)
{
    int64_t began = oari_now_ns();
    int done = 0;

    while (!done && crew_ms_since(began) < BOUND_MS)
        if (oar_stream_query(device, stream, &done) != OAR_OK)
            return 0;
    return done;
}

static void run(int ranks, crew_fn fn, void *arg, int killed, const char *what)
{
    crew c;

    cards_need(ranks);
    crew_start(&c, ranks, fn, arg, "%s", what);
    for (int r = 0; r < ranks; r++)
        crew_expect(&c, r, r == killed ? 128 + SIGKILL : 0);
    crew_end(&c);
}

/* ---- death --------------------------------------------------------------- */

/* All have summed once; then one dies where the others already wait. */
static int loses_a_rank(crew *c, int rank, void *arg)
{
    crew_flag *waiting = arg;
    oar_span span = buffer(rank);
    oar_error fault;
    oar_work *work;
    oar_group *g;
    int64_t began;

    OK(cards_join(c, rank, NULL, &g));
    OK(oar_all_reduce(g, span, OAR_SUM, NULL, NULL));
    OK(oar_nccl_synchronize(g));
    if (rank == DIES) {
        crew_await(waiting, (uint32_t)c->ranks - 1, CREW_PATIENCE_MS);
        raise(SIGKILL);
    }
    OK(oar_all_reduce(g, span, OAR_SUM, NULL, &work));
    crew_raise(waiting);
    began = oari_now_ns();
    TRY_(oar_work_wait(work) == OAR_E_PEER);
    TRY_(crew_in_time(began, BOUND_MS));
    oar_work_release(work);
    TRY_(oar_group_fault(g, NULL) == OAR_E_PEER);
    fault = *oar_last_error();
    TRY_(fault.peer == DIES || strstr(fault.text, "rank 1") != NULL);
    TRY_(oar_all_reduce(g, span, OAR_SUM, NULL, NULL) == OAR_E_PEER);
    TRY_(oar_nccl_synchronize(g) == OAR_E_PEER);
    began = oari_now_ns();
    oar_group_destroy(g);
    TRY_(crew_in_time(began, BOUND_MS));
    return 0;
}

static void a_rank_that_dies_is_named_and_ends_what_waits_for_it(void **state)
{
    crew_flag *waiting = crew_page(sizeof *waiting);

    cards_need(3);
    run(3, loses_a_rank, waiting, DIES, "a death");
    crew_drop_page(waiting, sizeof *waiting);
}

/* The caller has gone on, since all was on the stream; its own stream waits for
 * what can never come. */
static int has_gone_on(crew *c, int rank, void *arg)
{
    crew_flag *waiting = arg;
    oar_device device = cards_device(rank);
    oar_call_opts opts = oar_call_opts_init();
    oar_span span = buffer(rank);
    oar_group *g;
    void *stream;

    OK(oar_stream_create(device, 0, &stream));
    opts.stream = stream;
    OK(cards_join(c, rank, NULL, &g));
    OK(oar_all_reduce(g, span, OAR_SUM, &opts, NULL));
    OK(oar_stream_synchronize(device, stream));
    if (rank == DIES) {
        crew_await(waiting, (uint32_t)c->ranks - 1, CREW_PATIENCE_MS);
        raise(SIGKILL);
    }
    OK(oar_all_reduce(g, span, OAR_SUM, &opts, NULL));
    crew_raise(waiting);
    TRY_(drains(device, stream)); /* within the bound, by the abort */
    TRY_(oar_group_fault(g, NULL) == OAR_E_PEER);
    oar_group_destroy(g);
    oar_stream_destroy(device, stream);
    return 0;
}

static void
a_death_releases_the_streams_of_callers_that_have_gone_on(void **state)
{
    crew_flag *waiting = crew_page(sizeof *waiting);

    cards_need(2);
    run(2, has_gone_on, waiting, DIES, "gone on");
    crew_drop_page(waiting, sizeof *waiting);
}

/* The links have met; then one dies on its way to NCCL. (It has asked for a
 * group without one, which meets in the same way.) */
static int dies_on_the_way(crew *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    oar_group *whole, *g = NULL;
    int64_t began = oari_now_ns();

    o.backend = "native";
    OK(cards_join(c, rank, &o, &whole));
    if (rank == DIES) {
        o.backend = "native";
        o.name = "second";
        OK(cards_join(c, rank, &o, &g)); /* the links of "second" only */
        raise(SIGKILL);
    }
    o.backend = "nccl";
    o.name = "second";
    TRY_(cards_join(c, rank, &o, &g) == OAR_E_PEER);
    TRY_(says("rank 1") && oar_last_error()->peer == DIES);
    TRY_(crew_in_time(began, BOUND_MS));
    oar_group_destroy(whole);
    return 0;
}

static void
a_rank_that_dies_before_it_comes_to_nccl_is_not_waited_for(void **state)
{
    cards_need(3);
    run(3, dies_on_the_way, NULL, DIES, "died on the way");
}

/* ---- time ---------------------------------------------------------------- */

static int waits_for_nobody(crew *c, int rank, void *arg)
{
    crew_flag *over = arg;
    oar_call_opts opts = oar_call_opts_init();
    oar_span span = buffer(rank);
    oar_group *g;
    int64_t began;

    OK(cards_join(c, rank, NULL, &g));
    OK(oar_all_reduce(g, span, OAR_SUM, NULL, NULL));
    OK(oar_nccl_synchronize(g));
    opts.timeout_ms = 700;
    began = oari_now_ns();
    if (rank != DIES) {
        oar_work *work;

        OK(oar_all_reduce(g, span, OAR_SUM, &opts, &work));
        TRY_(oar_work_wait(work) == OAR_E_TIMEOUT);
        TRY_(says("rank 1"));
        TRY_(oar_last_error()->peer == DIES);
        oar_work_release(work);
        crew_raise(over);
    } else {
        TRY_(crew_await(over, (uint32_t)c->ranks - 1, CREW_PATIENCE_MS));
        oar_all_reduce(g, span, OAR_SUM, NULL, NULL); /* may be on a stream */
        TRY_(oar_nccl_synchronize(g) == OAR_E_TIMEOUT);
    }
    TRY_(crew_in_time(began, BOUND_MS));
    oar_group_destroy(g);
    return 0;
}

static void a_rank_that_never_calls_is_named_at_the_deadline(void **state)
{
    crew_flag *over = crew_page(sizeof *over);

    cards_need(3);
    run(3, waits_for_nobody, over, -1, "never called");
    crew_drop_page(over, sizeof *over);
}

/* ---- abort --------------------------------------------------------------- */

static void *abort_soon(void *arg)
{
    oar_group_abort(arg, "enough");
    return NULL;
}

static int is_aborted(crew *c, int rank, void *arg)
{
    crew_flag *waiting = arg;
    oar_span span = buffer(rank);
    oar_group *g;
    oar_work *work;
    pthread_t thread;
    int64_t began;

    OK(cards_join(c, rank, NULL, &g));
    if (rank != 0) { /* it comes to nothing, and hears of it */
        TRY_(crew_await(waiting, 1, CREW_PATIENCE_MS));
        TRY_(oar_barrier(g, NULL, NULL) == OAR_E_ABORTED && says("enough"));
        oar_group_destroy(g);
        return 0;
    }
    OK(oar_all_reduce(g, span, OAR_SUM, NULL, &work));
    began = oari_now_ns();
    TRY_(pthread_create(&thread, NULL, abort_soon, g) == 0);
    crew_raise(waiting);
    TRY_(oar_work_wait(work) == OAR_E_ABORTED && says("enough"));
    TRY_(crew_in_time(began, BOUND_MS));
    pthread_join(thread, NULL);
    oar_group_abort(g, "again"); /* exactly one reaches NCCL */
    TRY_(oar_nccl_synchronize(g) == OAR_E_ABORTED);
    oar_work_release(work);
    oar_group_destroy(g);
    TRY_(crew_in_time(began, BOUND_MS));
    cards_free(rank, span.data);
    return 0;
}

static void an_abort_from_another_thread_ends_what_waits(void **state)
{
    crew_flag *waiting = crew_page(sizeof *waiting);

    cards_need(2);
    run(2, is_aborted, waiting, -1, "an abort");
    crew_drop_page(waiting, sizeof *waiting);
}

/* ---- disagreement -------------------------------------------------------- */

static int disagrees(crew *c, int rank, void *arg)
{
    oar_span span = buffer(rank);
    oar_work *work;
    oar_group *g;

    OK(cards_join(c, rank, NULL, &g));
    OK(oar_all_reduce(g, span, OAR_SUM, NULL, NULL));
    span.count -= (size_t)rank;
    OK(oar_all_reduce(g, span, OAR_SUM, NULL, &work));
    TRY_(oar_work_wait(work) == OAR_E_MISMATCH);
    oar_work_release(work);
    oar_group_destroy(g);
    return 0;
}

static void ranks_that_call_different_things_are_told(void **state)
{
    cards_need(2);
    run(2, disagrees, NULL, -1, "a mismatch");
}

/* ---- NCCL itself fails --------------------------------------------------- */

static int fails_strangely(crew *c, int rank, void *arg)
{
    oar_span span = buffer(rank);
    oar_group *g;

    setenv("STANDIN_NCCL_FAIL", "AllReduce:42", 1);
    OK(cards_join(c, rank, NULL, &g));
    TRY_(oar_all_reduce(g, span, OAR_SUM, NULL, NULL) == OAR_E_GPU);
    TRY_(says("result 42") && says("all_reduce"));
    TRY_(oar_group_fault(g, NULL) == OAR_E_GPU);
    oar_group_destroy(g);
    return 0;
}

static void a_result_code_of_a_newer_nccl_ends_the_group_in_words(void **state)
{
    if (cards_are_real())
        skip(); /* only the stand-in can be told to fail */
    run(1, fails_strangely, NULL, -1, "result 42");
}

/* As above, but NCCL itself notices that a connection is closed. */
static int notices(crew *c, int rank, void *arg)
{
    setenv("STANDIN_NCCL_NOTICE", "1", 1);
    return loses_a_rank(c, rank, arg);
}

static void
an_asynchronous_error_of_nccl_comes_out_as_the_rank_that_died(void **state)
{
    crew_flag *waiting = crew_page(sizeof *waiting);

    cards_need(3);
    run(3, notices, waiting, DIES, "noticed");
    crew_drop_page(waiting, sizeof *waiting);
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
        cmocka_unit_test(ranks_that_call_different_things_are_told),
        cmocka_unit_test(a_result_code_of_a_newer_nccl_ends_the_group_in_words),
        cmocka_unit_test(
            an_asynchronous_error_of_nccl_comes_out_as_the_rank_that_died),
    };

    cards_begin();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
