/* SPDX-License-Identifier: Apache-2.0 */
/* An engine of somebody else's beside our links (a simple one, choir): what it
 * takes it does, the rest is planned over the links; and whatever goes wrong is
 * told as in any other group. */
#include "support/crew.h"

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
    TOLD_MS = 5000,
    COMPARED = 16 /* collectives, within which hosts compare */
};

typedef struct scene {
    crew_flag ready;
    oar_error record[RANKS];
} scene;

static const char *plugin(const char *name)
{
    static char path[512];
    const char *build = getenv("OARSONG_BUILD_DIR");

    snprintf(path, sizeof path, "%s/tests/plugins/lib%s.so",
             build != NULL ? build : "build/release", name);
    return path;
}

static const char *choir(void)
{
    return plugin("choir");
}

static oar_status join(const crew *c, int rank, oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();

    o.backend = choir();
    o.timeout_ms = 20000;
    return crew_join(c, rank, &o, g);
}

static oar_span fill(float *data, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++)
        data[i] = (float)(rank + 1) * (float)(i % 7);
    return oar_span_of(data, count, OAR_F32);
}

static void run(crew_fn fn, const char *what)
{
    scene *s = crew_page(sizeof *s);
    crew c;

    crew_start(&c, RANKS, fn, s, "%s", what);
    for (int r = 0; r < RANKS; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
    crew_drop_page(s, sizeof *s);
}

/* ---- all is well --------------------------------------------------------- */

static int is_sum(const float *data, size_t count, float factor)
{
    for (size_t i = 0; i < count; i++)
        if (data[i] != factor * (float)(i % 7))
            return 0;
    return 1;
}

static int sing(crew *c, int rank, void *arg)
{
    float a[ODD], b[ODD], mine, got = -1;
    oar_work *first, *second;
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, &g) == OAR_OK);
    CREW_CHECK(c, rank, strcmp(oar_group_backend(g), "choir") == 0);
    fill(a, ODD, rank);
    CREW_CHECK(c, rank,
               oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, NULL, NULL) ==
                   OAR_OK);
    CREW_CHECK(c, rank, is_sum(a, ODD, 6));
    /* planned: it takes no maximum */
    CREW_CHECK(c, rank,
               oar_all_reduce_into(g, fill(a, ODD, rank),
                                   oar_span_of(b, ODD, OAR_F32), OAR_MAX, NULL,
                                   NULL) == OAR_OK);
    CREW_CHECK(c, rank, is_sum(b, ODD, 3));
    /* both kinds under way at once, and messages of the links */
    CREW_CHECK(c, rank,
               oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, NULL, &first) ==
                   OAR_OK);
    CREW_CHECK(c, rank,
               oar_all_reduce(g, fill(b, 17, rank), OAR_MIN, NULL, &second) ==
                   OAR_OK);
    mine = (float)rank;
    CREW_CHECK(
        c, rank,
        oar_sendrecv(g, oar_span_of(&mine, 1, OAR_F32), (rank + 1) % RANKS, 7,
                     oar_span_of(&got, 1, OAR_F32), (rank + RANKS - 1) % RANKS,
                     7, NULL, NULL) == OAR_OK);
    CREW_CHECK(c, rank, got == (float)((rank + RANKS - 1) % RANKS));
    CREW_CHECK(c, rank, oar_work_wait(second) == OAR_OK && is_sum(b, 17, 1));
    CREW_CHECK(c, rank, oar_work_wait(first) == OAR_OK && is_sum(a, ODD, 6));
    oar_work_release(first);
    oar_work_release(second);
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
    oar_group_destroy(g);
    return 0;
}

static void what_it_takes_it_does_and_the_rest_is_planned(void **state)
{
    run(sing, "a choir");
}

/* ---- faults -------------------------------------------------------------- */

/* What every rank that is left was told is the same. */
static int note(crew *c, int rank, scene *s, oar_group *g, oar_status status)
{
    s->record[rank].size = sizeof s->record[rank];
    CREW_CHECK(c, rank, oar_group_fault(g, &s->record[rank]) == status);
    oar_group_destroy(g);
    return 0;
}

static int sing_something_else(crew *c, int rank, void *arg)
{
    scene *s = arg;
    float a[ODD];
    oar_group *g;
    oar_status status;

    CREW_CHECK(c, rank, join(c, rank, &g) == OAR_OK);
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
    if (rank == 1)
        status = oar_broadcast(g, fill(a, ODD, rank), 1, NULL, NULL);
    else
        status = oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, NULL, NULL);
    if (status == OAR_OK) /* a broadcast waits for nobody */
        status = oar_barrier(g, NULL, NULL);
    CREW_CHECK(c, rank, status == OAR_E_MISMATCH);
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "all_reduce") != NULL);
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "broadcast") != NULL);
    CREW_CHECK(c, rank,
               strstr(oar_last_error_text(), "foreign_test.c:") != NULL);
    return note(c, rank, s, g, status);
}

static void
a_rank_that_calls_something_else_is_found_with_both_sides(void **state)
{
    run(sing_something_else, "a wrong song");
}

static int plan_while_others_sing(crew *c, int rank, void *arg)
{
    float a[17];
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, &g) == OAR_OK);
    CREW_CHECK(c, rank,
               oar_all_reduce(g, fill(a, 17, rank),
                              rank == 2 ? OAR_MAX : OAR_SUM, NULL,
                              NULL) == OAR_E_MISMATCH);
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "max") != NULL);
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "sum") != NULL);
    return note(c, rank, arg, g, OAR_E_MISMATCH);
}

static void one_that_plans_what_others_give_to_the_engine_is_found(void **state)
{
    run(plan_while_others_sing, "a plan among songs");
}

static int fail_in_the_middle(crew *c, int rank, void *arg)
{
    float a[ODD];
    oar_group *g;
    oar_status status;
    char who[24];

    setenv("CHOIR_FAILS", "1", 1);
    CREW_CHECK(c, rank, join(c, rank, &g) == OAR_OK);
    status = oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, NULL, NULL);
    CREW_CHECK(c, rank, status == OAR_E_SYSTEM);
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "hoarse") != NULL);
    snprintf(who, sizeof who, "rank %d: ", oar_last_error()->rank);
    CREW_CHECK(c, rank, strncmp(oar_last_error_text(), who, strlen(who)) == 0);
    return note(c, rank, arg, g, status);
}

static void a_failure_of_the_engine_is_everybodys(void **state)
{
    run(fail_in_the_middle, "a hoarse choir");
}

/* Two hosts, and a difference that the engine does not notice: an all_reduce
 * finds it, though it is the same everywhere. */
static int differ_unnoticed(crew *c, int rank, void *arg)
{
    oar_status status = OAR_OK;
    float a[17];
    oar_group *g;
    int done = 0;

    setenv("OARSONG_HOST_ID", rank == 1 ? "there" : "here", 1);
    CREW_CHECK(c, rank, join(c, rank, &g) == OAR_OK);
    CREW_CHECK(c, rank,
               oar_broadcast(g,
                             oar_span_of(a, 17, rank == 1 ? OAR_I32 : OAR_F32),
                             0, NULL, NULL) == OAR_OK);
    while (status == OAR_OK && done++ < 2 * COMPARED)
        status = oar_all_reduce(g, fill(a, 17, rank), OAR_SUM, NULL, NULL);
    CREW_CHECK(c, rank, status == OAR_E_MISMATCH);
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "i32") != NULL);
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "f32") != NULL);
    return note(c, rank, arg, g, status);
}

static void a_difference_between_hosts_is_found_in_time(void **state)
{
    run(differ_unnoticed, "two choirs");
}

/* ---- a death ------------------------------------------------------------- */

static int die_in_the_middle(crew *c, int rank, void *arg)
{
    scene *s = arg;
    float a[ODD];
    int64_t start;
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, &g) == OAR_OK);
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
    crew_raise(&s->ready);
    if (rank == 1) {
        crew_await(&s->ready, RANKS, CREW_PATIENCE_MS);
        raise(SIGKILL);
    }
    start = oari_now_ns();
    CREW_CHECK(c, rank,
               oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, NULL, NULL) ==
                   OAR_E_PEER);
    CREW_CHECK(c, rank, crew_in_time(start, TOLD_MS));
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "rank 1") != NULL);
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "died") != NULL);
    return note(c, rank, s, g, OAR_E_PEER);
}

static void lose_rank_1(void)
{
    scene *s = crew_page(sizeof *s);
    crew c;

    crew_start(&c, RANKS, die_in_the_middle, s, "a singer dies");
    crew_expect(&c, 1, 128 + SIGKILL);
    crew_expect(&c, 0, 0);
    crew_expect(&c, 2, 0);
    crew_end(&c);
    assert_string_equal(s->record[0].text, s->record[2].text);
    crew_drop_page(s, sizeof *s);
}

static void a_rank_that_dies_is_named(void **state)
{
    lose_rank_1();
}

/* ---- callers that work for it -------------------------------------------- */

static void callers_that_work_for_it_are_looked_after(void **state)
{
    setenv("CHOIR_LENDS", "1", 1);
    run(sing, "callers who sing");
    run(sing_something_else, "callers with a wrong song");
    lose_rank_1();
    unsetenv("CHOIR_LENDS");
}

/* The others are in there, where no time is counted, when it runs out. */
static int wait_in_vain(crew *c, int rank, void *arg)
{
    scene *s = arg;
    oar_call_opts o = oar_call_opts_init();
    float a[ODD];
    oar_group *g;

    o.timeout_ms = 700;
    CREW_CHECK(c, rank, join(c, rank, &g) == OAR_OK);
    if (rank == 1)
        CREW_CHECK(c, rank, crew_await(&s->ready, 2, CREW_PATIENCE_MS));
    else {
        CREW_CHECK(c, rank,
                   oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, &o, NULL) ==
                       OAR_E_TIMEOUT);
        crew_raise(&s->ready);
    }
    oar_group_destroy(g);
    return 0;
}

static void time_is_counted_for_callers_that_work_for_it(void **state)
{
    setenv("CHOIR_LENDS", "1", 1);
    run(wait_in_vain, "a caller who waits");
    unsetenv("CHOIR_LENDS");
}

/* ---- an engine that loses failures --------------------------------------- */

typedef struct lie {
    crew_flag dead;
    int begins; /* the rank that dies has begun */
} lie;

/* The choir gives up rank 1's part and calls that done. The others begin when
 * rank 1 is dead; it has begun itself, or not. */
static int believe(crew *c, int rank, void *arg)
{
    lie *l = arg;
    float a[ODD];
    oar_group *g;

    setenv("CHOIR_LIES", "1", 1);
    /* one that takes long is looked at again when it is done */
    setenv("CHOIR_PATIENCE", l->begins ? "1500" : "0", 1);
    CREW_CHECK(c, rank, join(c, rank, &g) == OAR_OK);
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
    if (rank == 1 && !l->begins)
        raise(SIGKILL);
    if (rank != 1)
        CREW_CHECK(c, rank, crew_await(&l->dead, 1, CREW_PATIENCE_MS));
    CREW_CHECK(c, rank,
               oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, NULL, NULL) ==
                   OAR_E_PEER);
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "rank 1") != NULL);
    oar_group_destroy(g);
    return 0;
}

static void lose_a_rank(int begins)
{
    lie *l = crew_page(sizeof *l);
    crew c;

    l->begins = begins;
    crew_start(&c, RANKS, believe, l, "a choir that lies");
    crew_expect(&c, 1, 128 + SIGKILL);
    crew_raise(&l->dead);
    crew_expect(&c, 0, 0);
    crew_expect(&c, 2, 0);
    crew_end(&c);
    crew_drop_page(l, sizeof *l);
}

static void a_result_without_a_rank_that_never_came_is_no_result(void **state)
{
    lose_a_rank(0);
}

static void
a_result_without_a_rank_that_died_in_the_middle_is_no_result(void **state)
{
    lose_a_rank(1);
}

/* Rank 1 comes when the others have given up, and what they gave may be
 * anything by then; the choir does not mind. */
static int come_too_late(crew *c, int rank, void *arg)
{
    scene *s = arg;
    oar_call_opts o = oar_call_opts_init();
    float a[ODD];
    oar_group *g;

    setenv("CHOIR_LIES", "7", 1); /* nobody */
    setenv("CHOIR_PATIENCE", rank == 1 ? "0" : "1000000000", 1);
    o.timeout_ms = 500;
    CREW_CHECK(c, rank, join(c, rank, &g) == OAR_OK);
    if (rank == 1)
        CREW_CHECK(c, rank, crew_await(&s->ready, 2, CREW_PATIENCE_MS));
    CREW_CHECK(c, rank,
               oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, &o, NULL) ==
                   OAR_E_TIMEOUT);
    crew_raise(&s->ready);
    if (rank != 1)
        CREW_CHECK(c, rank, crew_await(&s->ready, RANKS, CREW_PATIENCE_MS));
    return note(c, rank, s, g, OAR_E_TIMEOUT);
}

static void a_result_that_comes_when_others_gave_up_is_no_result(void **state)
{
    run(come_too_late, "a singer comes late");
}

/* On another host, rank 1 was away for longer than its timeout: it listens
 * whether the others have given up, and as they have not, all is well. */
static int come_late(crew *c, int rank, void *arg)
{
    oar_call_opts o = oar_call_opts_init();
    float a[17];
    oar_group *g;

    setenv("OARSONG_HOST_ID", rank == 1 ? "there" : "here", 1);
    CREW_CHECK(c, rank, join(c, rank, &g) == OAR_OK);
    CREW_CHECK(c, rank,
               oar_all_reduce(g, fill(a, 17, rank), OAR_SUM, NULL, NULL) ==
                   OAR_OK);
    o.timeout_ms = rank == 1 ? 300 : 0;
    if (rank == 1)
        usleep(400000);
    CREW_CHECK(c, rank,
               oar_all_reduce(g, fill(a, 17, rank), OAR_SUM, &o, NULL) ==
                   OAR_OK);
    CREW_CHECK(c, rank, is_sum(a, 17, 6));
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
    oar_group_destroy(g);
    return 0;
}

static void one_that_was_late_is_believed_in_the_end(void **state)
{
    run(come_late, "a singer from far is late");
}

static int lose_a_message(crew *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    float a[17];
    oar_work *work;
    oar_group *g;

    o.backend = plugin("mute");
    CREW_CHECK(c, rank, crew_join(c, rank, &o, &g) == OAR_OK);
    CREW_CHECK(c, rank,
               oar_recv(g, fill(a, 17, rank), (rank + 1) % RANKS, 0, NULL,
                        &work) == OAR_OK);
    CREW_CHECK(c, rank, oar_work_wait(work) == OAR_E_CLOSED);
    oar_work_release(work);
    return note(c, rank, arg, g, OAR_E_CLOSED);
}

static void a_message_that_it_loses_is_a_failure(void **state)
{
    run(lose_a_message, "a lost message");
}

/* ---- sends that are done ------------------------------------------------- */

static oar_group *sending;
static scene *sent_scene;

static void abort_here(void)
{
    oar_group_abort(sending, "enough");
}

/* Rank 0 aborts as soon as it knows that the data is on its way. */
static void await_abort_there(void)
{
    crew_raise(&sent_scene->ready);
    crew_await(&sent_scene->ready, 2, CREW_PATIENCE_MS);
}

/* Rank 1 sends; the group ends after the engine has taken the data, and before
 * anybody has looked whether the send is done. */
static int send_before(crew *c, int rank, scene *s, void (*then)(void))
{
    void (**hook)(void), *library;
    float word = 3;

    oar_group_opts o = oar_group_opts_init();
    o.backend = plugin("mute");
    CREW_CHECK(c, rank, crew_join(c, rank, &o, &sending) == OAR_OK);
    if (rank == 0 && then == await_abort_there) {
        CREW_CHECK(c, rank, crew_await(&s->ready, 1, CREW_PATIENCE_MS));
        oar_group_abort(sending, "enough");
        crew_raise(&s->ready);
    }
    if (rank == 1) {
        library = dlopen(o.backend, RTLD_NOW);
        CREW_CHECK(c, rank, library != NULL);
        hook = dlsym(library, "mute_sent");
        CREW_CHECK(c, rank, hook != NULL);
        sent_scene = s;
        *hook = then;
        CREW_CHECK(c, rank,
                   oar_send(sending, oar_span_of(&word, 1, OAR_F32), 0, 0, NULL,
                            NULL) == OAR_OK);
        CREW_CHECK(c, rank, oar_barrier(sending, NULL, NULL) == OAR_E_ABORTED);
        dlclose(library);
    }
    oar_group_destroy(sending);
    return 0;
}

static int send_and_abort(crew *c, int rank, void *arg)
{
    return send_before(c, rank, arg, abort_here);
}

static int send_and_be_aborted(crew *c, int rank, void *arg)
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

static int split(crew *c, int rank, void *arg)
{
    float a[17];
    oar_group *g, *half;

    CREW_CHECK(c, rank, join(c, rank, &g) == OAR_OK);
    CREW_CHECK(c, rank, oar_group_split(g, rank == 1, 0, &half) == OAR_OK);
    CREW_CHECK(c, rank,
               oar_all_reduce(half, fill(a, 17, rank), OAR_SUM, NULL, NULL) ==
                   OAR_OK);
    CREW_CHECK(c, rank, is_sum(a, 17, rank == 1 ? 2 : 4));
    CREW_CHECK(c, rank,
               rank == 1 || strcmp(oar_group_backend(half), "choir") == 0);
    oar_group_destroy(half);
    oar_group_destroy(g);
    return 0;
}

static void a_part_of_the_group_sings_too(void **state)
{
    run(split, "a part of a choir");
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
        cmocka_unit_test(a_result_without_a_rank_that_never_came_is_no_result),
        cmocka_unit_test(
            a_result_without_a_rank_that_died_in_the_middle_is_no_result),
        cmocka_unit_test(a_result_that_comes_when_others_gave_up_is_no_result),
        cmocka_unit_test(one_that_was_late_is_believed_in_the_end),
        cmocka_unit_test(a_message_that_it_loses_is_a_failure),
        cmocka_unit_test(
            a_send_whose_data_was_taken_is_done_though_its_rank_aborts),
        cmocka_unit_test(
            a_send_whose_data_was_taken_is_done_though_a_peer_aborts),
        cmocka_unit_test(a_part_of_the_group_sings_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
