/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as processes, from start to end. */
#include "support/ranks.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "support/census.h"

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
                               "test ${OARSONG_STORE#tcp:127.0.0.1:} -gt 0 && "
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

static void every_rank_has_its_own_number(void **state)
{
    char name[128];

    assert_int_equal(run_shell(3, "echo x >$TMPDIR/$OARSONG_RANK", NULL, NULL),
                     OAR_OK);
    assert_int_equal(files_left(), 3);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s/%d", folder, i);
        assert_int_equal(unlink(name), 0);
    }
}

static void without_grace_there_is_no_sigterm(void **state)
{
    oar_launch_opts o = oar_launch_opts_init();

    o.grace_ms = -1;
    assert_int_equal(run_shell(2,
                               "test $OARSONG_RANK = 1 && exit 3; "
                               "trap 'echo x >$TMPDIR/termed' TERM; "
                               "while :; do sleep 1; done",
                               &o, NULL),
                     OAR_E_PEER);
    assert_int_equal(files_left(), 0);
}

static void ranks_are_set_apart_as_if_on_hosts(void **state)
{
    static const int hosts[3] = { 5, 7, 5 };
    oar_launch_opts o = oar_launch_opts_init();

    o.hosts = hosts;
    assert_int_equal(run_shell(3,
                               "case $OARSONG_RANK in "
                               "1) test $OARSONG_HOST_ID = 7;; "
                               "*) test $OARSONG_HOST_ID = 5;; esac",
                               &o, NULL),
                     OAR_OK);
    assert_null(getenv("OARSONG_HOST_ID"));
}

static void the_launcher_is_left_as_it_was(void **state)
{
    census before = census_take();
    sigset_t mask, after;

    sigprocmask(SIG_SETMASK, NULL, &mask);
    assert_int_equal(run_shell(2, "exit 7", NULL, NULL), OAR_E_PEER);
    sigprocmask(SIG_SETMASK, NULL, &after);
    for (int sig = 1; sig < 32; sig++)
        assert_int_equal(sigismember(&mask, sig), sigismember(&after, sig));
    assert_null(getenv("OARSONG_RANK"));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    census_expect(&before);
}

static oar_status launch_true(void *arg)
{
    return run_shell(1, "true", NULL, NULL);
}

static void without_memory_nothing_is_started_or_left(void **state)
{
    census_fail_each(launch_true, NULL);
    assert_int_equal(files_left(), 0);
}

static void a_result_needs_its_size(void **state)
{
    oar_launch_result r = { .exit_code = 77 };

    assert_int_equal(run_shell(1, "exit 3", NULL, &r), OAR_E_ARG);
    assert_int_equal(r.exit_code, 77);
    assert_int_equal(
        run_shell(1, "true", &(oar_launch_opts){ .size = 1 }, NULL), OAR_E_ARG);
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

static oar_status return_a_failure(oar_group *g, void *arg)
{
    return oari_fail(OAR_E_DATA, "it is all wrong");
}

static void a_failed_function_exits_with_its_status(void **state)
{
    oar_launch_result r = oar_launch_result_init();

    assert_int_equal(oar_launch_fn(1, return_a_failure, NULL, NULL, NULL, &r),
                     OAR_E_PEER);
    assert_int_equal(r.failed_rank, 0);
    assert_int_equal(r.exit_code, OAR_E_DATA);
    assert_says("it is all wrong");
    assert_int_equal(files_left(), 0);
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

static int wait_for_end(int fd)
{
    struct pollfd wait = { fd, POLLIN, 0 };
    char more[16];

    while (poll(&wait, 1, 20000) == 1)
        if (read(fd, more, sizeof more) <= 0)
            return 1; /* nobody holds the other end any more */
    return 0;
}

/* What a launcher says that was told to end. */
static void a_run_ended_by_a_signal_is_aborted(void **state)
{
    static const int sig[] = { SIGTERM, SIGINT };
    int pipe_fd[2], how;
    char ready[1], script[128];

    for (int i = 0; i < 2; i++) {
        pid_t pid;
        assert_int_equal(pipe(pipe_fd), 0);
        if ((pid = fork()) == 0) {
            oar_launch_result r = oar_launch_result_init();
            snprintf(script, sizeof script, "echo >&%d; sleep 50", pipe_fd[1]);
            _exit(run_shell(2, script, NULL, &r) != OAR_E_ABORTED ||
                  r.failed_rank != -1 || r.exit_code != 128 + sig[i]);
        }
        close(pipe_fd[1]);
        assert_int_equal(read(pipe_fd[0], ready, 1), 1);
        assert_int_equal(kill(pid, sig[i]), 0);
        assert_int_equal(waitpid(pid, &how, 0), pid);
        assert_true(WIFEXITED(how));
        assert_int_equal(WEXITSTATUS(how), 0);
        assert_true(wait_for_end(pipe_fd[0]));
        close(pipe_fd[0]);
    }
    assert_int_equal(files_left(), 0);
}

static void ranks_end_with_a_launcher_that_is_killed(void **state)
{
    int pipe_fd[2], how;
    char ready[1], script[128];
    pid_t pid;

    assert_int_equal(pipe(pipe_fd), 0);
    if ((pid = fork()) == 0) {
        snprintf(script, sizeof script, "echo >&%d; exec sleep 50", pipe_fd[1]);
        _exit(run_shell(3, script, NULL, NULL) != OAR_OK);
    }
    close(pipe_fd[1]);
    assert_int_equal(read(pipe_fd[0], ready, 1), 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(wait_for_end(pipe_fd[0]));
    close(pipe_fd[0]);
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
        cmocka_unit_test(every_rank_has_its_own_number),
        cmocka_unit_test(without_grace_there_is_no_sigterm),
        cmocka_unit_test(ranks_are_set_apart_as_if_on_hosts),
        cmocka_unit_test(the_launcher_is_left_as_it_was),
        cmocka_unit_test(without_memory_nothing_is_started_or_left),
        cmocka_unit_test(a_result_needs_its_size),
        cmocka_unit_test(a_function_runs_on_every_rank_with_a_group),
        cmocka_unit_test(the_reason_of_a_failed_function_arrives),
        cmocka_unit_test(a_failed_function_exits_with_its_status),
        cmocka_unit_test(a_signal_for_the_launcher_reaches_the_ranks),
        cmocka_unit_test(a_run_ended_by_a_signal_is_aborted),
        cmocka_unit_test(ranks_end_with_a_launcher_that_is_killed),
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
