/* SPDX-License-Identifier: Apache-2.0 */
/* What an autopsy says about calls of RPC: a circle of serial functions in one
 * sentence, while it lasts and when all ranks are dead; and a function that
 * does not answer. */
#include "support/test_job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/autopsy.h>
#include <oarsong/rpc.h>

#include "base/clock.h"
#include "record/recorder_file.h"

enum { RANKS = 3, WAIT_MS = 15000 };

static int file[RANKS];

typedef struct calls {
    int circle;
    shared_flag done;
} calls;

/* Calls the next rank's, and waits. */
static oar_status pass_on(void *arg, oar_rpc_call *call)
{
    oar_rpc *rpc = oar_rpc_of(call);

    (void)arg;
    return oar_rpc_sync(rpc, (oar_rpc_rank(rpc) + 1) % RANKS, "pass_on", NULL,
                        NULL, NULL);
}

static oar_status sleep_long(void *arg, oar_rpc_call *call)
{
    (void)arg;
    while (!oar_rpc_cancelled(call))
        usleep(1000);
    return OAR_OK;
}

static int run_rank(test_job *c, int rank, void *arg)
{
    const oar_rpc_function functions[] = {
        { .size = sizeof *functions,
          .name = "pass_on",
          .fn = pass_on,
          .manner = OAR_RPC_SERIAL },
        { .size = sizeof *functions, .name = "sleep", .fn = sleep_long },
    };
    oar_rpc_opts opts = oar_rpc_opts_init();
    calls *k = arg;
    oar_group *group;
    char text[16];
    oar_rpc *rpc;

    snprintf(text, sizeof text, "%d", file[rank]);
    setenv("OARSONG_RECORDER_FD", text, 1);
    RANK_OK(test_job_join(c, rank, NULL, &group));
    opts.functions = functions;
    opts.function_count = 2;
    opts.timeout_ms = 600000;
    RANK_OK(oar_rpc_create(group, &opts, &rpc));
    RANK_OK(oar_barrier(group, NULL, NULL));
    if (rank == 0)
        oar_rpc_sync(rpc, 1, k->circle ? "pass_on" : "sleep", NULL, NULL, NULL);
    shared_flag_await(&k->done, 1, 10 * WAIT_MS);
    return 0;
}

/* Returns the text of the autopsy once it has this in it. */
static char *await_text(test_job *c, const char *part)
{
    int64_t deadline = oari_deadline(WAIT_MS);

    for (;;) {
        oar_autopsy *a = NULL;
        char *text = NULL;

        if (oar_autopsy_from_fds(file, RANKS, &a) == OAR_OK)
            oar_autopsy_text(a, &text);
        oar_autopsy_destroy(a);
        if (text != NULL && strstr(text, part) != NULL)
            return text;
        if (oari_now_ns() > deadline)
            test_job_give_up(c, "no \"%s\" in\n%s", part,
                             text != NULL ? text : oar_last_error_text());
        oar_free(text);
        usleep(10000);
    }
}

static void start(test_job *c, calls *k, const char *what)
{
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(oari_recorder_file_make(r, &file[r]), OAR_OK);
    test_job_start(c, RANKS, run_rank, k, "%s", what);
}

/* Kills all at one moment. */
static void kill_all(test_job *c)
{
    for (int r = 0; r < RANKS; r++)
        kill(c->pid[r], SIGSTOP);
    for (int r = 0; r < RANKS; r++)
        test_job_wait_stopped(c, r, 1000);
    for (int r = 0; r < RANKS; r++)
        kill(c->pid[r], SIGKILL);
    for (int r = 0; r < RANKS; r++)
        test_job_expect(c, r, 128 + SIGKILL);
}

static void check_circle(char *text)
{
    *strchr(text, '\n') = 0; /* one sentence */
    assert_int_equal(strncmp(text, "deadlock: ", 10), 0);
    assert_non_null(strstr(text, "rank 0 waits for rank 1 in call #"));
    assert_non_null(strstr(text, "of \"pass_on\" on rank 1"));
    assert_non_null(strstr(text, "rank 1 waits for rank 2 in call #"));
    assert_non_null(strstr(text, "of \"pass_on\" on rank 2, made by "
                                 "\"pass_on\", at rpc_autopsy_test.c:"));
    assert_non_null(strstr(text, "rank 2 waits for rank 0 in call #"));
    assert_non_null(strstr(text, " s at most)"));
    oar_free(text);
}

static void a_circle_of_calls_is_one_sentence(void **state)
{
    calls *k = shared_page(sizeof *k);
    test_job c;

    (void)state;
    k->circle = 1;
    start(&c, k, "serial functions call each other in a circle");
    check_circle(await_text(&c, "rank 2 waits for rank 0"));
    kill_all(&c);
    check_circle(await_text(&c, "rank 2 waits for rank 0"));
    test_job_end(&c);
    shared_page_free(k, sizeof *k);
}

static void a_function_that_does_not_answer_is_named(void **state)
{
    calls *k = shared_page(sizeof *k);
    char *text;
    test_job c;

    (void)state;
    start(&c, k, "a function sleeps");
    text = await_text(&c, "has not answered call #1 of \"sleep\" on rank 1");
    assert_int_equal(strncmp(text, "rank 1 (host ", 13), 0);
    assert_non_null(strstr(text, "rank 0 has waited "));
    oar_free(text);
    kill_all(&c);
    test_job_end(&c);
    shared_page_free(k, sizeof *k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_circle_of_calls_is_one_sentence),
        cmocka_unit_test(a_function_that_does_not_answer_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
