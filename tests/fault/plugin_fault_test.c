/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks die, leave and abort in groups over a backend outside the library, the
 * example. It knows nothing of faults: the links beside it do. */
#include "support/test_job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/p2p.h>

#include "base/clock.h"

enum { RANKS = 3, ODD = 70003, REPORT_MS = 5000, TAG = 11 };

typedef struct plugin_context {
    const char *plugin;
    shared_flag ready;
    oar_error record[RANKS];
} plugin_context;

static oar_status join(const test_job *c, int rank, const plugin_context *s,
                       oar_group **g)
{
    static char path[512];
    const char *build = getenv("OARSONG_BUILD_DIR");
    oar_group_opts o = oar_group_opts_init();

    snprintf(path, sizeof path, "%s/tests/plugins/lib%s.so",
             build != NULL ? build : "build/release", s->plugin);
    o.backend = path;
    o.timeout_ms = 20000;
    return test_job_join(c, rank, &o, g);
}

/* All end well, except one that is to die (-1: none). */
static void run(const char *plugin, test_job_fn fn, int dies, const char *what)
{
    plugin_context *s = shared_page(sizeof *s);
    test_job c;

    s->plugin = plugin;
    test_job_start(&c, RANKS, fn, s, "%s over %s", what, plugin);
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&c, r, r == dies ? 128 + SIGKILL : 0);
    test_job_end(&c);
    for (int r = 0; r < RANKS; r++)
        if (r != dies && r != (dies == 0))
            assert_string_equal(s->record[r].text, s->record[dies == 0].text);
    shared_page_free(s, sizeof *s);
}

/* What a rank was told, and that it is told again. */
static int reported(test_job *c, int rank, plugin_context *s, oar_group *g,
                    oar_status status)
{
    oar_error *record = &s->record[rank];

    record->size = sizeof *record;
    RANK_CHECK(oar_group_fault(g, record) == status);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == status);
    oar_group_destroy(g);
    return 0;
}

/* ---- dying --------------------------------------------------------------- */

static int lose_rank_1(test_job *c, int rank, void *arg)
{
    static float a[ODD];
    plugin_context *s = arg;
    int64_t start;
    oar_group *g;

    RANK_CHECK(join(c, rank, s, &g) == OAR_OK);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    shared_flag_raise(&s->ready);
    if (rank == 1) {
        shared_flag_await(&s->ready, RANKS, TEST_JOB_LIMIT_MS);
        raise(SIGKILL);
    }
    start = oari_now_ns();
    RANK_CHECK(oar_all_reduce(g, oar_span_of(a, ODD, OAR_F32), OAR_SUM, NULL,
                              NULL) == OAR_E_PEER);
    RANK_CHECK(is_in_time(start, REPORT_MS));
    RANK_CHECK(strstr(oar_last_error_text(), "rank 1") != NULL);
    RANK_CHECK(strstr(oar_last_error_text(), "died") != NULL);
    return reported(c, rank, s, g, OAR_E_PEER);
}

static void a_rank_that_dies_is_named_by_all_others(void **state)
{
    run("carrier", lose_rank_1, 1, "a death");
}

/* ---- aborting ------------------------------------------------------------ */

static int abort_on_rank_2(test_job *c, int rank, void *arg)
{
    plugin_context *s = arg;
    float x = 0;
    int64_t start;
    oar_work *work;
    oar_group *g;

    RANK_CHECK(join(c, rank, s, &g) == OAR_OK);
    RANK_CHECK(oar_recv(g, oar_span_of(&x, 1, OAR_F32), (rank + 1) % RANKS, TAG,
                        NULL, &work) == OAR_OK);
    shared_flag_raise(&s->ready);
    RANK_CHECK(shared_flag_await(&s->ready, RANKS, TEST_JOB_LIMIT_MS));
    start = oari_now_ns();
    if (rank == 2)
        RANK_CHECK(oar_group_abort(g, "enough") == OAR_OK);
    RANK_CHECK(oar_work_wait(work) == OAR_E_ABORTED);
    RANK_CHECK(is_in_time(start, REPORT_MS));
    RANK_CHECK(strstr(oar_last_error_text(), "enough") != NULL);
    oar_work_release(work);
    return reported(c, rank, s, g, OAR_E_ABORTED);
}

static void an_abort_ends_what_all_ranks_wait_for(void **state)
{
    run("carrier", abort_on_rank_2, -1, "an abort");
}

/* ---- leaving ------------------------------------------------------------- */

/* Rank 0 is left alone with what the others sent before they went. */
static int send_and_leave(test_job *c, int rank, void *arg)
{
    static float a[ODD];
    oar_group *g;

    RANK_CHECK(join(c, rank, arg, &g) == OAR_OK);
    for (int i = 0; i < ODD; i++)
        a[i] = (float)(rank * 7 + i % 5);
    if (rank != 0)
        RANK_CHECK(oar_send(g, oar_span_of(a, ODD, OAR_F32), 0, TAG, NULL,
                            NULL) == OAR_OK);
    for (int r = 1; rank == 0 && r < RANKS; r++) {
        RANK_CHECK(oar_recv(g, oar_span_of(a, ODD, OAR_F32), r, TAG, NULL,
                            NULL) == OAR_OK);
        for (int i = 0; i < ODD; i++)
            RANK_CHECK(a[i] == (float)(r * 7 + i % 5));
    }
    oar_group_destroy(g);
    return 0;
}

static void a_message_outlives_its_sender(void **state)
{
    run("carrier", send_and_leave, -1, "messages of a rank that has left");
    run("slow_progress", send_and_leave, -1,
        "messages of a rank that has left");
}

static int gather_and_leave(test_job *c, int rank, void *arg)
{
    float mine = (float)rank + 1, all[RANKS];
    oar_group *g;

    RANK_CHECK(join(c, rank, arg, &g) == OAR_OK);
    RANK_CHECK(oar_gather(g, oar_span_of(&mine, 1, OAR_F32),
                          oar_span_of(all, rank == 0 ? RANKS : 0, OAR_F32), 0,
                          NULL, NULL) == OAR_OK);
    for (int r = 0; rank == 0 && r < RANKS; r++)
        RANK_CHECK(all[r] == (float)r + 1);
    oar_group_destroy(g);
    return 0;
}

static void a_part_of_a_collective_outlives_its_sender(void **state)
{
    run("slow_progress", gather_and_leave, -1, "parts of a rank that has left");
}

/* ---- waiting for a rank that has left ------------------------------------ */

static int wait_for_who_left(test_job *c, int rank, void *arg)
{
    float x = 0;
    int64_t start = oari_now_ns();
    oar_group *g;

    RANK_CHECK(join(c, rank, arg, &g) == OAR_OK);
    if (rank == 0) {
        RANK_CHECK(oar_recv(g, oar_span_of(&x, 1, OAR_F32), 1, TAG, NULL,
                            NULL) == OAR_E_PEER);
        RANK_CHECK(is_in_time(start, REPORT_MS));
        RANK_CHECK(strstr(oar_last_error_text(), "rank 1") != NULL);
        RANK_CHECK(strstr(oar_last_error_text(), "left") != NULL);
    }
    oar_group_destroy(g);
    return 0;
}

static void a_message_that_no_rank_will_send_is_not_waited_for(void **state)
{
    run("carrier", wait_for_who_left, -1, "waiting for a rank that has left");
    run("slow_progress", wait_for_who_left, -1,
        "waiting for a rank that has left");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_dies_is_named_by_all_others),
        cmocka_unit_test(an_abort_ends_what_all_ranks_wait_for),
        cmocka_unit_test(a_message_outlives_its_sender),
        cmocka_unit_test(a_part_of_a_collective_outlives_its_sender),
        cmocka_unit_test(a_message_that_no_rank_will_send_is_not_waited_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
