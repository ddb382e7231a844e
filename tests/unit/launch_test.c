/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as processes, from start to end. */
#include "support/ranks.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

/* Everything goes into a folder of the test's own, to be found empty. */
static char folder[64];

static int files_left(void)
{
    DIR *d = opendir(folder);
    struct dirent *item;
    int n = 0;

    while ((item = readdir(d)) != NULL)
        n += item->d_name[0] != '.';
    closedir(d);
    return n;
}

static oar_status run_shell(int ranks, const char *script,
                            const oar_launch_opts *opts,
                            oar_launch_result *result)
{
    char shell[] = "sh", option[] = "-c", text[512];
    char *argv[] = { shell, option, text, NULL };

    snprintf(text, sizeof text, "%s", script);
    return oar_launch(ranks, argv, opts, result);
}

static void assert_says(const char *text)
{
    if (strstr(oar_last_error_text(), text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", oar_last_error_text(), text);
}

static void all_good_ranks_are_a_good_run(void **state)
{
    oar_launch_result r = oar_launch_result_init();

    assert_int_equal(run_shell(3,
                               "test $OARSONG_SIZE = 3 && "
                               "test -d ${OARSONG_STORE#file:} && "
                               "test $OARSONG_RANK -lt 3",
                               NULL, &r),
                     OAR_OK);
    assert_int_equal(r.failed_rank, -1);
    assert_int_equal(r.exit_code, 0);
    assert_int_equal(files_left(), 0);
}

static void the_first_failure_is_named_and_the_rest_are_ended(void **state)
{
    oar_launch_result r = oar_launch_result_init();
    int64_t start = oari_now_ns();

    assert_int_equal(
        run_shell(4, "test $OARSONG_RANK != 2 || exit 9; sleep 50", NULL, &r),
        OAR_E_PEER);
    assert_int_equal(r.failed_rank, 2);
    assert_int_equal(r.exit_code, 9);
    assert_says("rank 2 ended with code 9");
    assert_true(oari_now_ns() - start < 20000000000);
    assert_int_equal(files_left(), 0);
}

static void a_signal_counts_as_128_and_its_number(void **state)
{
    oar_launch_result r = oar_launch_result_init();

    assert_int_equal(
        run_shell(2, "test $OARSONG_RANK = 0 || kill -SEGV $$; sleep 50", NULL,
                  &r),
        OAR_E_PEER);
    assert_int_equal(r.failed_rank, 1);
    assert_int_equal(r.exit_code, 128 + SIGSEGV);
}

static void a_rank_that_ignores_sigterm_is_killed(void **state)
{
    oar_launch_result r = oar_launch_result_init();
    oar_launch_opts o = oar_launch_opts_init();
    int64_t start = oari_now_ns();

    o.grace_ms = 200;
    assert_int_equal(run_shell(2,
                               "trap '' TERM; test $OARSONG_RANK = 1 && exit "
                               "3; while :; do sleep 1; done",
                               &o, &r),
                     OAR_E_PEER);
    assert_int_equal(r.exit_code, 3);
    assert_true(oari_now_ns() - start < 20000000000);
}

static void what_a_rank_leaves_running_ends_with_it(void **state)
{
    int64_t start = oari_now_ns();

    assert_int_equal(run_shell(1, "sleep 50 & exit 0", NULL, NULL), OAR_OK);
    assert_true(oari_now_ns() - start < 20000000000);
}

static void a_run_that_takes_too_long_is_ended(void **state)
{
    oar_launch_result r = oar_launch_result_init();
    oar_launch_opts o = oar_launch_opts_init();

    o.timeout_ms = 100;
    assert_int_equal(run_shell(2, "sleep 50", &o, &r), OAR_E_TIMEOUT);
    assert_true(r.exit_code != 0);
    assert_int_equal(files_left(), 0);
}

static void a_program_that_is_not_there_is_127(void **state)
{
    oar_launch_result r = oar_launch_result_init();
    char name[] = "/nowhere/at/all";
    char *argv[] = { name, NULL };

    assert_int_equal(oar_launch(1, argv, NULL, &r), OAR_E_PEER);
    assert_int_equal(r.exit_code, 127);
}

static void bad_arguments_are_refused(void **state)
{
    char name[] = "true";
    char *argv[] = { name, NULL }, *none[] = { NULL };

    assert_int_equal(oar_launch(0, argv, NULL, NULL), OAR_E_WORLD);
    assert_int_equal(oar_launch(100000, argv, NULL, NULL), OAR_E_WORLD);
    assert_int_equal(oar_launch(1, NULL, NULL, NULL), OAR_E_ARG);
    assert_int_equal(oar_launch(1, none, NULL, NULL), OAR_E_ARG);
    assert_int_equal(oar_launch_fn(1, NULL, NULL, NULL, NULL, NULL), OAR_E_ARG);
}

/* ---- functions -------------------------------------------------------------
 */

static oar_status meet(oar_group *g, void *arg)
{
    CHECK(oar_group_size(g) == *(int *)arg);
    return oar_barrier(g, NULL, NULL);
}

static void a_function_runs_on_every_rank_with_a_group(void **state)
{
    for (int n = 1; n <= 3; n++)
        assert_int_equal(oar_launch_fn(n, meet, &n, NULL, NULL, NULL), OAR_OK);
    assert_int_equal(files_left(), 0);
}

static oar_status refuse(oar_group *g, void *arg)
{
    if (oar_group_rank(g) == 1)
        return oar_all_reduce(g, oar_span_of(NULL, 3, OAR_F32), OAR_SUM, NULL,
                              NULL);
    return oar_barrier(g, NULL, NULL);
}

static void the_reason_of_a_failed_function_arrives(void **state)
{
    oar_launch_result r = oar_launch_result_init();

    assert_int_equal(oar_launch_fn(2, refuse, NULL, NULL, NULL, &r),
                     OAR_E_PEER);
    assert_true(r.failed_rank == 1 || r.failed_rank == 0);
    if (r.failed_rank == 1)
        assert_says("3 elements at NULL");
}

/* ---- signals ---------------------------------------------------------------
 */

/* A launcher in a child of its own, so that it can be ended. */
static void a_signal_for_the_launcher_reaches_the_ranks(void **state)
{
    int pipe_fd[2], how;
    char ready[1];
    char script[128];
    pid_t pid;

    assert_int_equal(pipe(pipe_fd), 0);
    pid = fork();
    if (pid == 0) {
        snprintf(script, sizeof script,
                 "trap 'exit 5' TERM; echo >&%d; while :; do sleep 1; done",
                 pipe_fd[1]);
        _exit(run_shell(2, script, NULL, NULL) == OAR_OK ? 0 : 42);
    }
    assert_int_equal(read(pipe_fd[0], ready, 1), 1);
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 42);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
    assert_int_equal(files_left(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_good_ranks_are_a_good_run),
        cmocka_unit_test(the_first_failure_is_named_and_the_rest_are_ended),
        cmocka_unit_test(a_signal_counts_as_128_and_its_number),
        cmocka_unit_test(a_rank_that_ignores_sigterm_is_killed),
        cmocka_unit_test(what_a_rank_leaves_running_ends_with_it),
        cmocka_unit_test(a_run_that_takes_too_long_is_ended),
        cmocka_unit_test(a_program_that_is_not_there_is_127),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(a_function_runs_on_every_rank_with_a_group),
        cmocka_unit_test(the_reason_of_a_failed_function_arrives),
        cmocka_unit_test(a_signal_for_the_launcher_reaches_the_ranks),
    };
    int failed;

    snprintf(folder, sizeof folder, "/tmp/launch-test-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 1;
    setenv("TMPDIR", folder, 1);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
