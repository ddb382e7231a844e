/* SPDX-License-Identifier: Apache-2.0 */
/* A backend outside the library, the example, when ranks die, leave and abort.
 * It knows nothing of that: the links beside it do. */
#include "support/crew.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/p2p.h>

#include "base/clock.h"

enum { RANKS = 3, ODD = 70003, TOLD_MS = 5000, TAG = 11 };

typedef struct scene {
    const char *plugin;
    crew_flag ready;
    oar_error record[RANKS];
} scene;

static oar_status join(const crew *c, int rank, const scene *s, oar_group **g)
{
    static char path[512];
    const char *build = getenv("OARSONG_BUILD_DIR");
    oar_group_opts o = oar_group_opts_init();

    snprintf(path, sizeof path, "%s/tests/plugins/lib%s.so",
             build != NULL ? build : "build/release", s->plugin);
    o.backend = path;
    o.timeout_ms = 20000;
    return crew_join(c, rank, &o, g);
}

/* All end well, except one that is to die (-1: none). */
static void run(const char *plugin, crew_fn fn, int dies, const char *what)
{
    scene *s = crew_page(sizeof *s);
    crew c;

    s->plugin = plugin;
    crew_start(&c, RANKS, fn, s, "%s over %s", what, plugin);
    for (int r = 0; r < RANKS; r++)
        crew_expect(&c, r, r == dies ? 128 + SIGKILL : 0);
    crew_end(&c);
    for (int r = 0; r < RANKS; r++)
        if (r != dies && r != (dies == 0))
            assert_string_equal(s->record[r].text, s->record[dies == 0].text);
    crew_drop_page(s, sizeof *s);
}

/* What a rank was told, and that it is told again. */
static int told(crew *c, int rank, scene *s, oar_group *g, oar_status status)
{
    oar_error *record = &s->record[rank];

    record->size = sizeof *record;
    CREW_CHECK(c, rank, oar_group_fault(g, record) == status);
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == status);
    oar_group_destroy(g);
    return 0;
}

/* ---- dying --------------------------------------------------------------- */

static int lose_rank_1(crew *c, int rank, void *arg)
{
    static float a[ODD];
    scene *s = arg;
    int64_t start;
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, s, &g) == OAR_OK);
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
    crew_raise(&s->ready);
    if (rank == 1) {
        crew_await(&s->ready, RANKS, CREW_PATIENCE_MS);
        raise(SIGKILL);
    }
    start = oari_now_ns();
    CREW_CHECK(c, rank,
               oar_all_reduce(g, oar_span_of(a, ODD, OAR_F32), OAR_SUM, NULL,
                              NULL) == OAR_E_PEER);
    CREW_CHECK(c, rank, crew_in_time(start, TOLD_MS));
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "rank 1") != NULL);
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "died") != NULL);
    return told(c, rank, s, g, OAR_E_PEER);
}

static void a_rank_that_dies_is_named_by_all_others(void **state)
{
    run("carrier", lose_rank_1, 1, "a death");
}

/* ---- aborting ------------------------------------------------------------ */

static int abort_on_rank_2(crew *c, int rank, void *arg)
{
    scene *s = arg;
    float x = 0;
    int64_t start;
    oar_work *work;
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, s, &g) == OAR_OK);
    CREW_CHECK(c, rank,
               oar_recv(g, oar_span_of(&x, 1, OAR_F32), (rank + 1) % RANKS, TAG,
                        NULL, &work) == OAR_OK);
    crew_raise(&s->ready);
    CREW_CHECK(c, rank, crew_await(&s->ready, RANKS, CREW_PATIENCE_MS));
    start = oari_now_ns();
    if (rank == 2)
        CREW_CHECK(c, rank, oar_group_abort(g, "enough") == OAR_OK);
    CREW_CHECK(c, rank, oar_work_wait(work) == OAR_E_ABORTED);
    CREW_CHECK(c, rank, crew_in_time(start, TOLD_MS));
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "enough") != NULL);
    oar_work_release(work);
    return told(c, rank, s, g, OAR_E_ABORTED);
}

static void an_abort_ends_what_all_ranks_wait_for(void **state)
{
    run("carrier", abort_on_rank_2, -1, "an abort");
}

/* ---- leaving ------------------------------------------------------------- */

/* Rank 0 is left alone with what the others sent before they went. */
static int send_and_leave(crew *c, int rank, void *arg)
{
    static float a[ODD];
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, arg, &g) == OAR_OK);
    for (int i = 0; i < ODD; i++)
        a[i] = (float)(rank * 7 + i % 5);
    if (rank != 0)
        CREW_CHECK(c, rank,
                   oar_send(g, oar_span_of(a, ODD, OAR_F32), 0, TAG, NULL,
                            NULL) == OAR_OK);
    for (int r = 1; rank == 0 && r < RANKS; r++) {
        CREW_CHECK(c, rank,
                   oar_recv(g, oar_span_of(a, ODD, OAR_F32), r, TAG, NULL,
                            NULL) == OAR_OK);
        for (int i = 0; i < ODD; i++)
            CREW_CHECK(c, rank, a[i] == (float)(r * 7 + i % 5));
    }
    oar_group_destroy(g);
    return 0;
}

static void a_message_outlives_its_sender(void **state)
{
    run("carrier", send_and_leave, -1, "messages of who left");
    run("late", send_and_leave, -1, "messages of who left");
}

static int gather_and_leave(crew *c, int rank, void *arg)
{
    float mine = (float)rank + 1, all[RANKS];
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, arg, &g) == OAR_OK);
    CREW_CHECK(c, rank,
               oar_gather(g, oar_span_of(&mine, 1, OAR_F32),
                          oar_span_of(all, rank == 0 ? RANKS : 0, OAR_F32), 0,
                          NULL, NULL) == OAR_OK);
    for (int r = 0; rank == 0 && r < RANKS; r++)
        CREW_CHECK(c, rank, all[r] == (float)r + 1);
    oar_group_destroy(g);
    return 0;
}

static void so_does_a_part_of_a_collective(void **state)
{
    run("late", gather_and_leave, -1, "parts of who left");
}

/* ---- waiting for nobody -------------------------------------------------- */

static int wait_for_who_left(crew *c, int rank, void *arg)
{
    float x = 0;
    int64_t start = oari_now_ns();
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, arg, &g) == OAR_OK);
    if (rank == 0) {
        CREW_CHECK(c, rank,
                   oar_recv(g, oar_span_of(&x, 1, OAR_F32), 1, TAG, NULL,
                            NULL) == OAR_E_PEER);
        CREW_CHECK(c, rank, crew_in_time(start, TOLD_MS));
        CREW_CHECK(c, rank, strstr(oar_last_error_text(), "rank 1") != NULL);
        CREW_CHECK(c, rank, strstr(oar_last_error_text(), "left") != NULL);
    }
    oar_group_destroy(g);
    return 0;
}

static void what_nobody_will_send_is_not_waited_for(void **state)
{
    run("carrier", wait_for_who_left, -1, "waiting for who left");
    run("late", wait_for_who_left, -1, "waiting for who left");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_dies_is_named_by_all_others),
        cmocka_unit_test(an_abort_ends_what_all_ranks_wait_for),
        cmocka_unit_test(a_message_outlives_its_sender),
        cmocka_unit_test(so_does_a_part_of_a_collective),
        cmocka_unit_test(what_nobody_will_send_is_not_waited_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
