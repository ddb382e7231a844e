/* SPDX-License-Identifier: Apache-2.0 */
/* On an external engine (OARSONG_TEST_ENGINE, support/tested_engine.h)
 * survivors form a new group, which opens the engine again. */
#include "support/tested_engine.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "support/mpi_ranks.h"
#include "support/post_mortem.h"

enum { RANKS = 4, ODD = 1003, SKIPPED = 77 };

typedef struct engine_shrink_context {
    shared_flag through; /* the first operation */
    int dies;            /* a rank; -1: none, but rank 0 aborts */
} engine_shrink_context;

static oar_status join(const test_job *c, int rank, oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();

    o.backend = tested_engine_get()->name;
    o.timeout_ms = TEST_JOB_LIMIT_MS;
    return test_job_join(c, rank, &o, g);
}

/* Sums 1 + rank of the old group over the ranks of g. */
static int sums_to(oar_group *g, int rank, float wanted)
{
    float data[ODD];

    for (size_t i = 0; i < ODD; i++)
        data[i] = (float)(rank + 1);
    if (oar_all_reduce(g, oar_span_of(data, ODD, OAR_F32), OAR_SUM, NULL,
                       NULL) != OAR_OK)
        return 0;
    for (size_t i = 0; i < ODD; i++)
        if (data[i] != wanted)
            return 0;
    return 1;
}

static int go_on(test_job *c, int rank, engine_shrink_context *s, oar_group *g)
{
    int left = RANKS - (s->dies >= 0);
    oar_group *rest = NULL;

    RANK_CHECK(oar_group_shrink(g, NULL, &rest) == OAR_OK);
    RANK_CHECK(oar_group_size(rest) == left);
    RANK_CHECK(strcmp(oar_group_backend(rest), tested_engine_get()->name) == 0);
    RANK_CHECK(
        sums_to(rest, rank, (float)(10 - (s->dies >= 0) * (s->dies + 1))));
    oar_group_destroy(rest);
    oar_group_destroy(g);
    return 0;
}

static int lose_one(test_job *c, int rank, void *arg)
{
    engine_shrink_context *s = arg;
    oar_group *g;
    float word = 0;

    post_mortem_keep(c);
    RANK_CHECK(join(c, rank, &g) == OAR_OK);
    RANK_CHECK(sums_to(g, rank, 10));
    shared_flag_raise(&s->through);
    RANK_CHECK(shared_flag_await(&s->through, RANKS, TEST_JOB_LIMIT_MS));
    if (rank == s->dies)
        raise(SIGKILL);
    if (rank == 0 && s->dies < 0)
        oar_group_abort(g, "let us begin again");
    RANK_CHECK(oar_all_reduce(g, oar_span_of(&word, 1, OAR_F32), OAR_SUM, NULL,
                              NULL) != OAR_OK);
    return go_on(c, rank, s, g);
}

static void all_ranks_go_on_after_an_abort(void **state)
{
    engine_shrink_context *s = shared_page(sizeof *s);
    test_job c;

    s->dies = -1;
    tested_engine_start(tested_engine_get(), &c, RANKS, lose_one, s,
                        "an abort");
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&c, r, 0);
    post_mortem_clear(&c);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

/* A job that dies as a whole: the survivors may even have gone on before they
 * were ended. */
static void expect_end(test_job *c, const engine_shrink_context *s)
{
    failure_text why = "";

    assert_true(mpi_ranks_await_end(c, TEST_JOB_LIMIT_MS));
    if (!post_mortem_names(c, s->dies, why)) /* rare: see scenario_test */
        print_message("%s\n", why);
}

static void survivors_go_on_after_a_death(void **state)
{
    const tested_engine *e = tested_engine_get();
    engine_shrink_context *s = shared_page(sizeof *s);
    test_job c;

    s->dies = 2;
    tested_engine_start(e, &c, RANKS, lose_one, s, "a death");
    if (e->dies_as_job)
        expect_end(&c, s);
    for (int r = 0; r < RANKS && !e->dies_as_job; r++)
        test_job_expect(&c, r, r == s->dies ? 128 + SIGKILL : 0);
    post_mortem_clear(&c);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

/* Rank 0 has sent its part and leaves; the last one comes when it has been gone
 * for longer than what it left behind is waited for. */
static int leave_early(test_job *c, int rank, void *arg)
{
    static const struct timespec later = { 0, 800000000 };
    engine_shrink_context *s = arg;
    float word = (float)rank, all[RANKS] = { 0 };
    oar_group *g;

    RANK_CHECK(join(c, rank, &g) == OAR_OK);
    RANK_CHECK(sums_to(g, rank, 10));
    if (rank == RANKS - 1) {
        RANK_CHECK(shared_flag_await(&s->through, 1, TEST_JOB_LIMIT_MS));
        nanosleep(&later, NULL);
    }
    RANK_CHECK(oar_gather(g, oar_span_of(&word, 1, OAR_F32),
                          oar_span_of(all, rank == 1 ? RANKS : 0, OAR_F32), 1,
                          NULL, NULL) == OAR_OK);
    for (int r = 0; rank == 1 && r < RANKS; r++)
        RANK_CHECK(all[r] == (float)r);
    oar_group_destroy(g);
    if (rank == 0)
        shared_flag_raise(&s->through);
    return 0;
}

/* Rank 0 sends a message, which is done at once, and leaves; it is received a
 * while later. */
static int leave_a_message(test_job *c, int rank, void *arg)
{
    static const struct timespec later = { 0, 800000000 };
    engine_shrink_context *s = arg;
    float word = rank == 0 ? 7 : 0;
    oar_span one = oar_span_of(&word, 1, OAR_F32);
    oar_group *g;

    RANK_CHECK(join(c, rank, &g) == OAR_OK);
    RANK_CHECK(sums_to(g, rank, 10));
    if (rank == 0) {
        RANK_CHECK(oar_send(g, one, 1, 3, NULL, NULL) == OAR_OK);
        shared_flag_raise(&s->through);
    } else if (rank == 1) {
        RANK_CHECK(shared_flag_await(&s->through, 1, TEST_JOB_LIMIT_MS));
        nanosleep(&later, NULL);
        RANK_CHECK(oar_recv(g, one, 0, 3, NULL, NULL) == OAR_OK);
        RANK_CHECK(word == 7);
    }
    oar_group_destroy(g);
    return 0;
}

static void run(test_job_fn fn, const char *what)
{
    engine_shrink_context *s = shared_page(sizeof *s);
    test_job c;

    tested_engine_start(tested_engine_get(), &c, RANKS, fn, s, what);
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

static void a_rank_that_has_done_its_part_may_leave(void **state)
{
    run(leave_early, "leaving");
}

static void what_was_sent_arrives_though_the_sender_leaves(void **state)
{
    run(leave_a_message, "a message left behind");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_has_done_its_part_may_leave),
        cmocka_unit_test(what_was_sent_arrives_though_the_sender_leaves),
        cmocka_unit_test(all_ranks_go_on_after_an_abort),
        cmocka_unit_test(survivors_go_on_after_a_death),
    };
    int code;

    if (mpi_ranks_run_child(&code))
        return code;
    if (tested_engine_get() == NULL) {
        printf("skipped: OARSONG_TEST_ENGINE names no engine\n");
        return SKIPPED;
    }
    if (!tested_engine_is_available(tested_engine_get()))
        return SKIPPED;
    return cmocka_run_group_tests_name(tested_engine_get()->name, tests, NULL,
                                       NULL);
}
