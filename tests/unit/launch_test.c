/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as processes, from start to end. */
#include "support/ranks.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fork.h"
#include "base/status.h"
#include "base/thread.h"
#include "launch/store_process.h"
#include "support/last_error.h"
#include "support/leak_check.h"

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
    assert_last_error_has("rank 2 ended with code 9");
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
    leak_check before = leak_check_begin();
    sigset_t mask, after;

    sigprocmask(SIG_SETMASK, NULL, &mask);
    assert_int_equal(run_shell(2, "exit 7", NULL, NULL), OAR_E_PEER);
    sigprocmask(SIG_SETMASK, NULL, &after);
    for (int sig = 1; sig < 32; sig++)
        assert_int_equal(sigismember(&mask, sig), sigismember(&after, sig));
    assert_null(getenv("OARSONG_RANK"));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    leak_check_end(&before);
}

static oar_status launch_true(void *arg)
{
    return run_shell(1, "true", NULL, NULL);
}

static void without_memory_nothing_is_started_or_left(void **state)
{
    fail_each_allocation(launch_true, NULL);
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

/* ---- functions ----------------------------------------------------------- */

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
        assert_last_error_has("3 elements at NULL");
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
    assert_last_error_has("it is all wrong");
    assert_int_equal(files_left(), 0);
}

/* ---- signals ------------------------------------------------------------- */

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
            return 1; /* no process holds the other end any more */
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

/* A launcher in a child, with a pipe that its ranks have too. */
typedef struct child {
    pid_t pid;
    int fd;
} child;

static child start_launcher(int ranks, const char *format, oar_launch_opts *o,
                            void (*before)(void))
{
    int pipe_fd[2];
    char script[512];
    child c;

    assert_int_equal(pipe(pipe_fd), 0);
    if ((c.pid = fork()) == 0) {
        oar_launch_result r = oar_launch_result_init();
        close(pipe_fd[0]);
        if (before != NULL)
            before();
        dup2(pipe_fd[1], 9);
        close(pipe_fd[1]);
        snprintf(script, sizeof script, "%s", format);
        run_shell(ranks, script, o, &r);
        _exit(r.exit_code);
    }
    close(pipe_fd[1]);
    c.fd = pipe_fd[0];
    return c;
}

static void hear(child *c, int bytes)
{
    char one;

    for (int i = 0; i < bytes; i++)
        assert_int_equal(read(c->fd, &one, 1), 1);
}

static void expect_exit(child *c, int code)
{
    int how;

    assert_int_equal(waitpid(c->pid, &how, 0), c->pid);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), code);
    assert_true(wait_for_end(c->fd)); /* and no other is left */
    close(c->fd);
}

static void every_signal_that_ends_is_passed_on(void **state)
{
    static const int sig[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
    static const char *const name[] = { "INT", "TERM", "HUP", "QUIT" };
    char script[256];

    for (int i = 0; i < 4; i++) {
        child c;
        snprintf(script, sizeof script,
                 "trap 'printf %%s y >&9; exit 0' %s; printf x >&9; "
                 "while :; do sleep 0.02; done",
                 name[i]);
        c = start_launcher(2, script, NULL, NULL);
        hear(&c, 2);
        assert_int_equal(kill(c.pid, sig[i]), 0);
        hear(&c, 2);
        expect_exit(&c, 128 + sig[i]);
    }
}

static void a_second_signal_kills_at_once(void **state)
{
    oar_launch_opts o = oar_launch_opts_init();
    int64_t start = oari_now_ns();
    child c;

    o.grace_ms = 60000;
    c = start_launcher(2,
                       "trap 'printf y >&9' INT; trap '' TERM; printf x >&9; "
                       "while :; do sleep 0.02; done",
                       &o, NULL);
    hear(&c, 2);
    assert_int_equal(kill(c.pid, SIGINT), 0);
    hear(&c, 2);
    assert_int_equal(kill(c.pid, SIGINT), 0);
    expect_exit(&c, 128 + SIGINT);
    assert_true(oari_now_ns() - start < 30000000000);
}

static void ignore_hup(void)
{
    signal(SIGHUP, SIG_IGN);
}

static void a_signal_that_the_launcher_ignores_ends_no_rank(void **state)
{
    child c = start_launcher(1,
                             "trap 'exit 7' USR1; echo $$ >$TMPDIR/pid; "
                             "printf x >&9; while :; do sleep 0.02; done",
                             NULL, ignore_hup);
    char path[128];
    FILE *file;
    int pid = 0;

    hear(&c, 1);
    snprintf(path, sizeof path, "%s/pid", folder);
    file = fopen(path, "r");
    assert_int_equal(fscanf(file, "%d", &pid), 1);
    fclose(file);
    unlink(path);
    assert_int_equal(kill(c.pid, SIGHUP), 0);
    assert_int_equal(kill(pid, SIGUSR1), 0);
    expect_exit(&c, 7);
}

/* 'T' when it is stopped. */
static char state_of(int pid)
{
    char path[64], letter = '?';
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if ((file = fopen(path, "r")) != NULL) {
        if (fscanf(file, "%*d (%*[^)]) %c", &letter) != 1)
            letter = '?';
        fclose(file);
    }
    return letter;
}

static void wait_for_state(int pid, int stopped)
{
    int64_t patience = oari_deadline(20000);

    while ((state_of(pid) == 'T') != stopped && oari_now_ns() < patience)
        sched_yield();
    assert_int_equal(state_of(pid) == 'T', stopped);
}

static void a_launcher_that_is_stopped_stops_its_ranks(void **state)
{
    child c = start_launcher(1, "echo $$ >&9; exec sleep 50", NULL, NULL);
    FILE *said = fdopen(dup(c.fd), "r");
    int pid = 0, how;

    assert_int_equal(fscanf(said, "%d", &pid), 1);
    fclose(said);
    assert_int_equal(kill(c.pid, SIGTSTP), 0);
    assert_int_equal(waitpid(c.pid, &how, WUNTRACED), c.pid);
    assert_true(WIFSTOPPED(how));
    wait_for_state(pid, 1);
    assert_int_equal(kill(c.pid, SIGCONT), 0);
    wait_for_state(pid, 0);
    assert_int_equal(kill(pid, SIGUSR1), 0);
    expect_exit(&c, 128 + SIGUSR1);
}

/* ---- terminals ----------------------------------------------------------- */

typedef struct terminal {
    int fd;    /* the user's end */
    pid_t pid; /* what runs there, leading a session of its own */
    char text[4096];
    size_t bytes;
} terminal;

/* Runs fn in a new session on a new terminal. Skips where there are none. */
static void open_terminal(terminal *t, int (*fn)(void))
{
    char name[64];

    *t = (terminal){ .fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC) };
    if (t->fd < 0 || grantpt(t->fd) != 0 || unlockpt(t->fd) != 0 ||
        ptsname_r(t->fd, name, sizeof name) != 0)
        skip();
    if ((t->pid = fork()) == 0) {
        int fd;
        setsid();
        if ((fd = open(name, O_RDWR)) < 0 || ioctl(fd, TIOCSCTTY, 0) != 0)
            _exit(99);
        for (int i = 0; i < 3; i++)
            dup2(fd, i);
        _exit(fn());
    }
    assert_true(t->pid > 0);
}

static void type(terminal *t, const char *keys)
{
    assert_int_equal(write(t->fd, keys, strlen(keys)), strlen(keys));
}

static void wait_for_text(terminal *t, const char *text)
{
    int64_t patience = oari_deadline(60000);
    struct pollfd ready = { t->fd, POLLIN, 0 };

    while (strstr(t->text, text) == NULL) {
        ssize_t got = 0;
        if (oari_now_ns() > patience || t->bytes + 1 >= sizeof t->text)
            fail_msg("\"%s\" does not say \"%s\"", t->text, text);
        if (poll(&ready, 1, 100) == 1)
            got =
                read(t->fd, t->text + t->bytes, sizeof t->text - 1 - t->bytes);
        t->bytes += got > 0 ? (size_t)got : 0;
    }
}

static void expect_terminal_exit(terminal *t, int code)
{
    int how;

    assert_int_equal(waitpid(t->pid, &how, 0), t->pid);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), code);
    close(t->fd);
}

static int run_reader(void)
{
    oar_launch_result r = oar_launch_result_init();

    run_shell(1,
              "echo started; read line; echo \"got: $line\"; read line; "
              "echo \"then: $line\"",
              NULL, &r);
    return r.exit_code;
}

static void a_rank_alone_reads_from_the_terminal(void **state)
{
    terminal t;

    open_terminal(&t, run_reader);
    type(&t, "one\ntwo\n");
    wait_for_text(&t, "then: two");
    expect_terminal_exit(&t, 0);
}

static int run_with_restarts(void)
{
    oar_launch_opts o = oar_launch_opts_init();
    oar_launch_result r = oar_launch_result_init();
    oar_status status;

    o.max_restarts = 3;
    status = run_shell(1, "echo started; exec cat", &o, &r);
    if (status != OAR_E_ABORTED || tcgetpgrp(STDIN_FILENO) != getpgrp())
        return 98;
    return r.exit_code;
}

static void ctrl_c_ends_the_run_and_starts_nothing_again(void **state)
{
    terminal t;

    open_terminal(&t, run_with_restarts);
    wait_for_text(&t, "started");
    type(&t, "\003");
    expect_terminal_exit(&t, 128 + SIGINT);
}

/* What a shell does for a job: the foreground, and again after a stop. */
static int be_shell(void)
{
    pid_t job;
    int how;

    signal(SIGTTOU, SIG_IGN);
    if ((job = fork()) == 0) {
        setpgid(0, 0);
        tcsetpgrp(STDIN_FILENO, getpid());
        signal(SIGTTOU, SIG_DFL);
        _exit(run_reader());
    }
    setpgid(job, job); /* the job takes the terminal itself: done here it might
                          come late, and take it from the rank again */
    if (waitpid(job, &how, WUNTRACED) != job || !WIFSTOPPED(how))
        return 97;
    printf("stopped\n");
    fflush(stdout);
    tcsetpgrp(STDIN_FILENO, job);
    kill(-job, SIGCONT);
    if (waitpid(job, &how, WUNTRACED) != job || !WIFEXITED(how))
        return 96;
    return WEXITSTATUS(how);
}

static void ctrl_z_stops_rank_and_launcher_and_fg_goes_on(void **state)
{
    terminal t;

    open_terminal(&t, be_shell);
    wait_for_text(&t, "started");
    type(&t, "one\n");
    wait_for_text(&t, "got: one");
    type(&t, "\032");
    wait_for_text(&t, "stopped");
    type(&t, "two\n");
    wait_for_text(&t, "then: two");
    expect_terminal_exit(&t, 0);
}

static void ctrl_z_without_a_shell_stops_nothing(void **state)
{
    terminal t;

    open_terminal(&t, run_reader);
    wait_for_text(&t, "started");
    type(&t, "\032one\ntwo\n");
    wait_for_text(&t, "then: two");
    expect_terminal_exit(&t, 0);
}

/* -------------------------------------------------------------------------- */

static void what_ranks_started_ends_with_a_launcher_that_is_killed(void **state)
{
    child c = start_launcher(2, "sleep 50 & printf x >&9; wait", NULL, NULL);
    int how;

    hear(&c, 2);
    assert_int_equal(kill(c.pid, SIGKILL), 0);
    assert_int_equal(waitpid(c.pid, &how, 0), c.pid);
    assert_true(wait_for_end(c.fd));
    close(c.fd);
    assert_int_equal(files_left(), 0);
}

static pid_t start_group(void)
{
    pid_t pid = fork();

    if (pid == 0)
        for (;;)
            pause();
    assert_true(pid > 0);
    assert_int_equal(setpgid(pid, pid), 0);
    return pid;
}

/* The number of a process group that has ended may soon be used again. */
static void
the_store_process_ends_no_process_group_that_was_forgotten(void **state)
{
    launch_store_task task = { 0 };
    launch_store_process store_process = { 0 };
    char served[OARI_SOCK_TEXT];
    pid_t ended = start_group(), other = start_group();
    int how;

    assert_int_equal(launch_store_process_start(&store_process, &task, served),
                     OAR_OK);
    launch_store_process_add(&store_process, ended);
    launch_store_process_add(&store_process, other);
    launch_store_process_forget(&store_process, ended);
    oari_fork_close(store_process.fd); /* as if the launcher had been killed */
    assert_int_equal(waitpid(store_process.pid, &how, 0), store_process.pid);
    assert_int_equal(waitpid(other, &how, 0), other);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    assert_int_equal(kill(ended, SIGTERM), 0);
    assert_int_equal(waitpid(ended, &how, 0), ended);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGTERM);
}

static void what_hides_from_its_group_is_found(void **state)
{
    oar_launch_opts o = oar_launch_opts_init();
    child c;

    o.sole = 1;
    c = start_launcher(2,
                       "hide=$TMPDIR/hides.$RANK; export hide; "
                       "(setsid sh -c 'printf x >&9; touch $hide; "
                       "exec sleep 50' &); "
                       "until rm $hide 2>/dev/null; do sleep 0.01; done",
                       &o, NULL);
    hear(&c, 2);
    expect_exit(&c, 0);
}

/* ---- epochs -------------------------------------------------------------- */

static void a_job_is_restarted_in_a_new_epoch(void **state)
{
    oar_launch_result r = oar_launch_result_init();
    oar_launch_opts o = oar_launch_opts_init();
    char name[128];

    o.max_restarts = 3;
    assert_int_equal(
        run_shell(2,
                  "echo $OARSONG_STORE $OARSONG_SECRET "
                  ">$TMPDIR/$OARSONG_EPOCH.$RANK; "
                  "until test -s $TMPDIR/$OARSONG_EPOCH.0 && "
                  "test -s $TMPDIR/$OARSONG_EPOCH.1; do sleep 0.01; done; "
                  "test $OARSONG_EPOCH = $TORCHELASTIC_RESTART_COUNT && "
                  "test $TORCHELASTIC_MAX_RESTARTS = 3 && "
                  "test $OARSONG_EPOCH = 2",
                  &o, &r),
        OAR_OK);
    assert_int_equal(r.epoch, 2);
    assert_int_equal(r.failed_rank, -1);
    assert_int_equal(
        run_shell(1,
                  "cd $TMPDIR && cmp 2.0 2.1 && ! cmp 0.0 2.0 && "
                  "for e in 0 1 2; do cut -d' ' -f2 $e.0; done | sort -u | "
                  "wc -l | grep -qx 3",
                  NULL, NULL),
        OAR_OK);
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "%s/%d.%d", folder, i / 2, i % 2);
        unlink(name);
    }
}

static void when_restarts_are_used_up_the_failure_counts(void **state)
{
    oar_launch_result r = oar_launch_result_init();
    oar_launch_opts o = oar_launch_opts_init();

    o.max_restarts = 2;
    assert_int_equal(
        run_shell(3, "test $RANK != 1 || exit 9; sleep 50", &o, &r),
        OAR_E_PEER);
    assert_int_equal(r.epoch, 2);
    assert_int_equal(r.failed_rank, 1);
    assert_int_equal(r.exit_code, 9);
}

static void survivors_are_left_alone_if_they_are_to_go_on(void **state)
{
    oar_launch_result r = oar_launch_result_init();
    oar_launch_opts o = oar_launch_opts_init();

    o.keep_going = 1; /* rank 1 sees that rank 2 is reaped, then rank 0 ends */
    assert_int_equal(
        run_shell(3,
                  "cd $TMPDIR; case $RANK in 2) echo $$ >pid; kill -9 $$ ;; "
                  "1) until [ -s pid ] && ! kill -0 $(cat pid) 2>/dev/null; do "
                  "sleep 0.01; done; mv pid one; exit 6 ;; "
                  "0) until rm one 2>/dev/null; do sleep 0.01; done ;; esac",
                  &o, &r),
        OAR_E_PEER);
    assert_int_equal(r.failed_rank, 2);
    assert_int_equal(r.exit_code, 128 + SIGKILL);
    assert_last_error_has(
        "rank 2 was killed by SIGKILL (code 137); 1 of 3 ranks ended "
        "with code 0");
    o.max_restarts = 1;
    assert_int_equal(run_shell(1, "true", &o, &r), OAR_E_ARG);
    assert_int_equal(files_left(), 0);
}

static void a_rank_that_failed_is_started_again_alone(void **state)
{
    oar_launch_result r = oar_launch_result_init();
    oar_launch_opts o = oar_launch_opts_init();

    o.max_respawns = 2; /* rank 0 is one process until rank 1 ends well */
    assert_int_equal(
        run_shell(2,
                  "cd $TMPDIR; if test $RANK = 0; then "
                  "test $OARSONG_RESPAWN = 0 || exit 4; echo $$ >zero; "
                  "until rm one 2>/dev/null; do sleep 0.01; done; "
                  "test $(cat zero) = $$ && exec rm zero; fi; "
                  "test $OARSONG_EPOCH = 0 || exit 5; "
                  "test $OARSONG_RESPAWN = 2 || kill -9 $$; echo >one",
                  &o, &r),
        OAR_OK);
    assert_int_equal(r.failed_rank, -1);
    assert_int_equal(r.exit_code, 0);
    assert_int_equal(r.epoch, 0);
    assert_int_equal(files_left(), 0);
}

static void a_rank_is_started_again_so_often_and_no_more(void **state)
{
    oar_launch_result r = oar_launch_result_init();
    oar_launch_opts o = oar_launch_opts_init();

    o.max_respawns = 1; /* all fail at once; rank 2 recovers, rank 0 is well */
    assert_int_equal(run_shell(3,
                               "case $RANK$OARSONG_RESPAWN in 10) exit 6 ;; "
                               "11) exit 7 ;; 20) exit 8 ;; esac",
                               &o, &r),
                     OAR_E_PEER);
    assert_int_equal(r.failed_rank, 1);
    assert_int_equal(r.exit_code, 7);
    assert_last_error_has("rank 1 ended with code 7; 2 of 3 ranks ended with "
                          "code 0");
    o.max_restarts = 1;
    assert_int_equal(run_shell(1, "true", &o, &r), OAR_E_ARG);
    assert_last_error_has("respawn and max-restarts");
    o.max_restarts = 0;
    o.max_respawns = -1;
    assert_int_equal(run_shell(1, "true", &o, &r), OAR_E_ARG);
}

/* Whether rank 0 runs or has just failed when the time is over depends on the
 * machine. The run would go on for a day if it were started again after that.
 */
static void a_run_that_is_over_starts_no_rank_again(void **state)
{
    oar_launch_result r = oar_launch_result_init();
    oar_launch_opts o = oar_launch_opts_init();
    oar_status status;

    o.max_respawns = 1000000;
    o.timeout_ms = 300;
    status = run_shell(2, "test $RANK = 0 && exit 1; sleep 50", &o, &r);
    assert_true(status == OAR_E_TIMEOUT || status == OAR_E_PEER);
    assert_int_equal(r.exit_code, status == OAR_E_TIMEOUT ? 124 : 1);
}

static oar_status fail_at_first(oar_group *group, void *arg)
{
    const char *respawn = getenv("OARSONG_RESPAWN");

    return respawn != NULL && atoi(respawn) == 1
               ? OAR_OK
               : oari_fail(OAR_E_DATA, "the first time");
}

static void a_function_is_run_again_too(void **state)
{
    oar_launch_result r = oar_launch_result_init();
    oar_launch_opts o = oar_launch_opts_init();

    o.max_respawns = 1;
    assert_int_equal(oar_launch_fn(1, fail_at_first, NULL, NULL, &o, &r),
                     OAR_OK);
}

static void ranks_that_left_before_are_reported(void **state)
{
    assert_int_equal(
        run_shell(2,
                  "cd $TMPDIR; if test $RANK = 0; then echo $$ >p; mv p pid; "
                  "exit 0; fi; until test -s pid; do sleep 0.01; done; "
                  "while kill -0 $(cat pid) 2>&-; do sleep 0.01; done; "
                  "rm pid; exit 3",
                  NULL, NULL),
        OAR_E_PEER);
    assert_last_error_has(
        "rank 1 ended with code 3; had left with code 0: rank 0");
}

/* ---- what ranks are told and given --------------------------------------- */

static void ranks_have_the_names_of_torchrun(void **state)
{
    static const char *const env[] = { "GREETING=a b=c", "EMPTY=", NULL };
    oar_launch_opts o = oar_launch_opts_init();

    o.env = env;
    o.role = "trainer";
    o.run_id = "run-7";
    unsetenv("OMP_NUM_THREADS");
    assert_int_equal(
        run_shell(2,
                  "test $RANK$WORLD_SIZE$LOCAL_RANK$LOCAL_WORLD_SIZE = "
                  "${OARSONG_RANK}2${OARSONG_LOCAL_RANK}2 && "
                  "test $GROUP_RANK$GROUP_WORLD_SIZE = 01 && "
                  "test $ROLE_RANK$ROLE_WORLD_SIZE$ROLE_NAME = "
                  "${RANK}2trainer && test $TORCHELASTIC_RUN_ID = run-7 && "
                  "test $MASTER_ADDR = 127.0.0.1 && test $MASTER_PORT -gt 0 "
                  "&& test $OMP_NUM_THREADS = 1 && test \"$GREETING\" = 'a "
                  "b=c' && test \"${EMPTY-x}\" = ''",
                  &o, NULL),
        OAR_OK);
    assert_int_equal(run_shell(1, "test -z \"$OMP_NUM_THREADS\"", NULL, NULL),
                     OAR_OK);
    setenv("OMP_NUM_THREADS", "3", 1);
    assert_int_equal(run_shell(2, "test $OMP_NUM_THREADS = 3", NULL, NULL),
                     OAR_OK);
    unsetenv("OMP_NUM_THREADS");
}

static oar_status count_cores(oar_group *g, void *arg)
{
    cpu_set_t set;
    unsigned char mine[1024] = { 0 }, all[1024];
    oar_span sum = oar_span_of(mine, 1024, OAR_U8);

    CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
    for (int i = 0; i < 1024; i++)
        mine[i] = CPU_ISSET(i, &set) != 0;
    CHECK(CPU_COUNT(&set) >= 1);
    CHECK_OK(oar_all_reduce(g, sum, OAR_SUM, NULL, NULL));
    memcpy(all, mine, sizeof all);
    for (int i = 0; i < 1024; i++)
        CHECK(all[i] <= *(int *)arg);
    return OAR_OK;
}

/* At most so many ranks on a core. */
static void ranks_are_bound_to_cores(void **state)
{
    static const char *const way[] = { "none",        "core", "socket",
                                       "exclusive",   "numa", "node",
                                       "core-complex" };
    oar_launch_opts o = oar_launch_opts_init();
    int cores = oari_cpus(), ranks = cores < 3 ? cores : 3;

    for (size_t i = 0; i < sizeof way / sizeof *way; i++) {
        int most = i == 1 || i == 3 ? 1 : ranks;
        oar_status status;
        o.bind = way[i];
        status = oar_launch_fn(ranks, count_cores, &most, NULL, &o, NULL);
        if (status == OAR_E_UNAVAILABLE && i == 1)
            skip(); /* built without hwloc */
        if (status != OAR_OK)
            fail_msg("%s: %s", way[i], oar_last_error_text());
    }
    o.bind = "chewing-gum";
    assert_int_equal(run_shell(1, "true", &o, NULL), OAR_E_ARG);
    assert_last_error_has("no binding \"chewing-gum\"");
    o.bind = "exclusive";
    assert_int_equal(run_shell(1000, "true", &o, NULL), OAR_E_UNAVAILABLE);
}

static void as_many_ranks_as_cores_if_it_is_asked_to(void **state)
{
    oar_launch_opts o = oar_launch_opts_init();
    char expected[32];
    const char *env[] = { expected, NULL };

    snprintf(expected, sizeof expected, "EXPECTED=%d", oari_cpus());
    o.env = env;
    assert_int_equal(oar_launch(OAR_LAUNCH_AUTO,
                                (char *[]){ (char[]){ "sh" }, (char[]){ "-c" },
                                            (char[]){ "test $WORLD_SIZE = "
                                                      "$EXPECTED" },
                                            NULL },
                                &o, NULL),
                     OAR_OK);
}

static void options_that_make_no_sense_are_named(void **state)
{
    static const char *const env[] = { "nothing", NULL };
    oar_launch_opts o = oar_launch_opts_init();

    o.env = env;
    assert_int_equal(run_shell(1, "true", &o, NULL), OAR_E_ARG);
    assert_last_error_has("\"nothing\" is not NAME=VALUE");
    o = oar_launch_opts_init();
    o.redirects = "3";
    assert_int_equal(run_shell(1, "true", &o, NULL), OAR_E_ARG);
    assert_last_error_has("log-dir");
    o = oar_launch_opts_init();
    o.run_id = "../up";
    assert_int_equal(run_shell(1, "true", &o, NULL), OAR_E_ARG);
    o = oar_launch_opts_init();
    o.min_nodes = 2;
    o.max_nodes = 3;
    assert_int_equal(run_shell(1, "true", &o, NULL), OAR_E_ARG);
    assert_last_error_has("endpoint");
    o.max_nodes = 1;
    assert_int_equal(run_shell(1, "true", &o, NULL), OAR_E_ARG);
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
        cmocka_unit_test(every_signal_that_ends_is_passed_on),
        cmocka_unit_test(a_second_signal_kills_at_once),
        cmocka_unit_test(a_signal_that_the_launcher_ignores_ends_no_rank),
        cmocka_unit_test(a_launcher_that_is_stopped_stops_its_ranks),
        cmocka_unit_test(a_rank_alone_reads_from_the_terminal),
        cmocka_unit_test(ctrl_c_ends_the_run_and_starts_nothing_again),
        cmocka_unit_test(ctrl_z_stops_rank_and_launcher_and_fg_goes_on),
        cmocka_unit_test(ctrl_z_without_a_shell_stops_nothing),
        cmocka_unit_test(
            what_ranks_started_ends_with_a_launcher_that_is_killed),
        cmocka_unit_test(
            the_store_process_ends_no_process_group_that_was_forgotten),
        cmocka_unit_test(what_hides_from_its_group_is_found),
        cmocka_unit_test(a_job_is_restarted_in_a_new_epoch),
        cmocka_unit_test(when_restarts_are_used_up_the_failure_counts),
        cmocka_unit_test(survivors_are_left_alone_if_they_are_to_go_on),
        cmocka_unit_test(a_rank_that_failed_is_started_again_alone),
        cmocka_unit_test(a_rank_is_started_again_so_often_and_no_more),
        cmocka_unit_test(a_run_that_is_over_starts_no_rank_again),
        cmocka_unit_test(a_function_is_run_again_too),
        cmocka_unit_test(ranks_that_left_before_are_reported),
        cmocka_unit_test(ranks_have_the_names_of_torchrun),
        cmocka_unit_test(ranks_are_bound_to_cores),
        cmocka_unit_test(as_many_ranks_as_cores_if_it_is_asked_to),
        cmocka_unit_test(options_that_make_no_sense_are_named),
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
