/* SPDX-License-Identifier: Apache-2.0 */
/* Groups on an engine of others (OARSONG_TEST_ENGINE, support/engine.h) that go
 * on with whoever is left: the new group opens the engine anew. */
#include "support/engine.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "support/seats.h"
#include "support/wreck.h"

enum { RANKS = 4, ODD = 1003, SKIPPED = 77 };

typedef struct scene {
    crew_flag through; /* the first operation */
    int dies;          /* a rank; -1: nobody, but rank 0 gives up */
} scene;

static oar_status join(const crew *c, int rank, oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();

    o.backend = engine_under_test()->name;
    o.timeout_ms = CREW_PATIENCE_MS;
    return crew_join(c, rank, &o, g);
}

/* The sum of 1 + rank of the old group over whoever is in g. */
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

static int go_on(crew *c, int rank, scene *s, oar_group *g)
{
    int left = RANKS - (s->dies >= 0);
    oar_group *rest = NULL;

    CREW_CHECK(c, rank, oar_group_shrink(g, NULL, &rest) == OAR_OK);
    CREW_CHECK(c, rank, oar_group_size(rest) == left);
    CREW_CHECK(c, rank,
               strcmp(oar_group_backend(rest), engine_under_test()->name) == 0);
    CREW_CHECK(
        c, rank,
        sums_to(rest, rank, (float)(10 - (s->dies >= 0) * (s->dies + 1))));
    oar_group_destroy(rest);
    oar_group_destroy(g);
    return 0;
}

static int lose_one(crew *c, int rank, void *arg)
{
    scene *s = arg;
    oar_group *g;
    float word = 0;

    wreck_keep_box(c);
    CREW_CHECK(c, rank, join(c, rank, &g) == OAR_OK);
    CREW_CHECK(c, rank, sums_to(g, rank, 10));
    crew_raise(&s->through);
    CREW_CHECK(c, rank, crew_await(&s->through, RANKS, CREW_PATIENCE_MS));
    if (rank == s->dies)
        raise(SIGKILL);
    if (rank == 0 && s->dies < 0)
        oar_group_abort(g, "let us begin again");
    CREW_CHECK(c, rank,
               oar_all_reduce(g, oar_span_of(&word, 1, OAR_F32), OAR_SUM, NULL,
                              NULL) != OAR_OK);
    return go_on(c, rank, s, g);
}

static void everybody_goes_on_after_an_abort(void **state)
{
    scene *s = crew_page(sizeof *s);
    crew c;

    s->dies = -1;
    engine_start(engine_under_test(), &c, RANKS, lose_one, s, "an abort");
    for (int r = 0; r < RANKS; r++)
        crew_expect(&c, r, 0);
    wreck_clear(&c);
    crew_end(&c);
    crew_drop_page(s, sizeof *s);
}

/* A job that dies as a whole: whoever is left may even have gone on before it
 * was ended. */
static void expect_end(crew *c, const scene *s)
{
    reason why = "";

    assert_true(seats_await_end(c, CREW_PATIENCE_MS));
    if (!wreck_names(c, s->dies, why)) /* rare: see scenario_test */
        print_message("%s\n", why);
}

static void whoever_is_left_goes_on_after_a_death(void **state)
{
    const engine *e = engine_under_test();
    scene *s = crew_page(sizeof *s);
    crew c;

    s->dies = 2;
    engine_start(e, &c, RANKS, lose_one, s, "a death");
    if (e->dies_as_job)
        expect_end(&c, s);
    for (int r = 0; r < RANKS && !e->dies_as_job; r++)
        crew_expect(&c, r, r == s->dies ? 128 + SIGKILL : 0);
    wreck_clear(&c);
    crew_end(&c);
    crew_drop_page(s, sizeof *s);
}

/* Rank 0 has sent its part and leaves; the last one comes when it has been gone
 * for longer than what it left behind is waited for. */
static int leave_early(crew *c, int rank, void *arg)
{
    static const struct timespec later = { 0, 800000000 };
    scene *s = arg;
    float word = (float)rank, all[RANKS] = { 0 };
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, &g) == OAR_OK);
    CREW_CHECK(c, rank, sums_to(g, rank, 10));
    if (rank == RANKS - 1) {
        CREW_CHECK(c, rank, crew_await(&s->through, 1, CREW_PATIENCE_MS));
        nanosleep(&later, NULL);
    }
    CREW_CHECK(c, rank,
               oar_gather(g, oar_span_of(&word, 1, OAR_F32),
                          oar_span_of(all, rank == 1 ? RANKS : 0, OAR_F32), 1,
                          NULL, NULL) == OAR_OK);
    for (int r = 0; rank == 1 && r < RANKS; r++)
        CREW_CHECK(c, rank, all[r] == (float)r);
    oar_group_destroy(g);
    if (rank == 0)
        crew_raise(&s->through);
    return 0;
}

/* Rank 0 sends a message, which is done at once, and leaves; it is received a
 * while later. */
static int leave_a_message(crew *c, int rank, void *arg)
{
    static const struct timespec later = { 0, 800000000 };
    scene *s = arg;
    float word = rank == 0 ? 7 : 0;
    oar_span one = oar_span_of(&word, 1, OAR_F32);
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, &g) == OAR_OK);
    CREW_CHECK(c, rank, sums_to(g, rank, 10));
    if (rank == 0) {
        CREW_CHECK(c, rank, oar_send(g, one, 1, 3, NULL, NULL) == OAR_OK);
        crew_raise(&s->through);
    } else if (rank == 1) {
        CREW_CHECK(c, rank, crew_await(&s->through, 1, CREW_PATIENCE_MS));
        nanosleep(&later, NULL);
        CREW_CHECK(c, rank, oar_recv(g, one, 0, 3, NULL, NULL) == OAR_OK);
        CREW_CHECK(c, rank, word == 7);
    }
    oar_group_destroy(g);
    return 0;
}

static void run(crew_fn fn, const char *what)
{
    scene *s = crew_page(sizeof *s);
    crew c;

    engine_start(engine_under_test(), &c, RANKS, fn, s, what);
    for (int r = 0; r < RANKS; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
    crew_drop_page(s, sizeof *s);
}

static void one_that_has_done_its_part_may_leave(void **state)
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
        cmocka_unit_test(one_that_has_done_its_part_may_leave),
        cmocka_unit_test(what_was_sent_arrives_though_the_sender_leaves),
        cmocka_unit_test(everybody_goes_on_after_an_abort),
        cmocka_unit_test(whoever_is_left_goes_on_after_a_death),
    };
    int code;

    if (seats_mine(&code))
        return code;
    if (engine_under_test() == NULL) {
        printf("skipped: OARSONG_TEST_ENGINE names no engine\n");
        return SKIPPED;
    }
    if (!engine_is_there(engine_under_test()))
        return SKIPPED;
    return cmocka_run_group_tests_name(engine_under_test()->name, tests, NULL,
                                       NULL);
}
