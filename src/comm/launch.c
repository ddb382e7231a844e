/* SPDX-License-Identifier: Apache-2.0 */
/* launch: N processes on this machine, from start to end.
 *
 * The ranks meet in a folder of their own, which is removed at the end. Each is
 * the leader of a process group, so that what it starts ends with it. A rank
 * whose launcher dies is killed by the system. While ranks run, SIGCHLD, SIGINT
 * and SIGTERM are blocked here and waited for, so no handler is installed.
 */
#include <oarsong/launch.h>

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/status.h"
#include "comm/board.h"

enum { DEFAULT_GRACE_MS = 2000, LOOK_MS = 100 };

typedef struct launch {
    int ranks, left;
    pid_t *pid; /* by rank; 0: not running */
    char folder[PATH_MAX];
    oar_store *store;
    sigset_t watched, before;
    int64_t deadline_ns, kill_ns;
    oar_launch_opts opts;
    oar_launch_result result;
    /* what a rank does: a program, or a function */
    char *const *argv;
    oar_rank_fn fn;
    void *arg;
    const oar_group_opts *group_opts;
} launch;

/* ---- in the rank
 * ---------------------------------------------------------------*/

static void set_number(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void set_environment(const launch *l, int rank)
{
    char store[PATH_MAX + 8];

    snprintf(store, sizeof store, "file:%s", l->folder);
    set_number("OARSONG_RANK", rank);
    set_number("OARSONG_SIZE", l->ranks);
    setenv("OARSONG_STORE", store, 1);
    if (l->opts.hosts != NULL)
        set_number("OARSONG_HOST_ID", l->opts.hosts[rank]);
}

static void error_key(int rank, char key[32])
{
    snprintf(key, 32, "error/%d", rank);
}

/* Leaves the reason of a failure where the launcher finds it. */
static void leave_reason(const launch *l, int rank)
{
    char key[32];

    error_key(rank, key);
    oar_store_set(l->store, key, oar_last_error_text(),
                  strlen(oar_last_error_text()));
}

static int run_function(const launch *l, int rank)
{
    oar_group *group = NULL;
    oar_status status = oar_group_from_env(l->group_opts, &group);

    if (status == OAR_OK)
        status = l->fn(group, l->arg);
    if (status != OAR_OK)
        leave_reason(l, rank);
    oar_group_destroy(group);
    return (int)status;
}

static _Noreturn void be_rank(const launch *l, int rank, pid_t parent)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    sigprocmask(SIG_SETMASK, &l->before, NULL);
    set_environment(l, rank);
    if (l->argv == NULL)
        exit(run_function(l, rank)); /* flushes what the function printed */
    execvp(l->argv[0], l->argv);
    fprintf(stderr, "oarsong: cannot start %s: %s\n", l->argv[0],
            strerror(errno));
    _exit(127);
}

/* ---- in the launcher
 * -----------------------------------------------------------*/

static oar_status make_folder(launch *l)
{
    const char *base = oari_env_text("TMPDIR");
    oar_status status;

    snprintf(l->folder, sizeof l->folder, "%s/oarsong-XXXXXX",
             base != NULL ? base : "/tmp");
    if (mkdtemp(l->folder) == NULL) {
        oari_fail(OAR_E_SYSTEM, "make a folder %s", l->folder);
        l->folder[0] = 0;
        return OAR_E_SYSTEM;
    }
    status = oar_store_create_file(l->folder, &l->store);
    if (status != OAR_OK)
        rmdir(l->folder);
    return status;
}

static oar_status start_ranks(launch *l)
{
    pid_t self = getpid();

    fflush(NULL); /* or the ranks would print it again */
    for (int r = 0; r < l->ranks; r++) {
        pid_t pid = fork();
        if (pid == 0)
            be_rank(l, r, self);
        if (pid < 0)
            return oari_fail(OAR_E_SYSTEM, "start rank %d", r);
        setpgid(pid, pid); /* whoever of us two is first */
        l->pid[r] = pid;
        l->left++;
    }
    return OAR_OK;
}

static void signal_all(const launch *l, int sig)
{
    for (int r = 0; r < l->ranks; r++)
        if (l->pid[r] > 0)
            kill(-l->pid[r], sig);
}

static void end_the_rest(launch *l)
{
    int64_t grace = l->opts.grace_ms != 0 ? l->opts.grace_ms : DEFAULT_GRACE_MS;

    if (l->kill_ns != OARI_NEVER)
        return;
    if (grace > 0)
        signal_all(l, SIGTERM);
    l->kill_ns = oari_deadline(grace > 0 ? grace : 0);
}

static void note_end(launch *l, int rank, int how)
{
    int code = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);

    l->pid[rank] = 0;
    l->left--;
    if (code == 0 || l->kill_ns != OARI_NEVER)
        return; /* good, or ended by us */
    l->result.failed_rank = rank;
    l->result.exit_code = code;
    end_the_rest(l);
}

/* A rank that has ended is looked at before it is reaped: until then its
 * process group is still its own, and what it left running can be ended. */
static int has_ended(pid_t pid, int *how)
{
    siginfo_t info = { .si_pid = 0 };

    if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid != pid)
        return 0;
    kill(-pid, SIGKILL);
    return waitpid(pid, how, 0) == pid;
}

static void reap(launch *l)
{
    int how;

    for (int r = 0; r < l->ranks; r++)
        if (l->pid[r] > 0 && has_ended(l->pid[r], &how))
            note_end(l, r, how);
}

/* Waits a moment for a child's end or a signal for us. */
static void wait_a_moment(launch *l)
{
    struct timespec moment = { 0, LOOK_MS * 1000000 };
    int sig = sigtimedwait(&l->watched, NULL, &moment);

    if (sig == SIGINT || sig == SIGTERM) {
        signal_all(l, sig);
        if (l->result.exit_code == 0)
            l->result.exit_code = 128 + sig;
        end_the_rest(l);
    }
}

static void see_through(launch *l)
{
    while (l->left > 0) {
        reap(l);
        if (l->left == 0)
            break;
        if (oari_now_ns() >= l->deadline_ns) {
            l->deadline_ns = OARI_NEVER;
            if (l->result.exit_code == 0)
                l->result.exit_code = 124; /* as timeout(1) says */
            end_the_rest(l);
        }
        if (oari_now_ns() >= l->kill_ns)
            signal_all(l, SIGKILL);
        wait_a_moment(l);
    }
}

static oar_status rank_failed(const launch *l)
{
    char key[32];
    void *reason = NULL;
    size_t bytes;

    error_key(l->result.failed_rank, key);
    if (oar_store_get(l->store, key, 0, &reason, &bytes) != OAR_OK)
        reason = NULL;
    oari_fail(OAR_E_PEER, "rank %d ended with code %d%s%s",
              l->result.failed_rank, l->result.exit_code,
              reason != NULL ? ": " : "",
              reason != NULL ? (const char *)reason : "");
    oari_free(reason);
    return OAR_E_PEER;
}

static oar_status outcome(const launch *l)
{
    if (l->result.failed_rank >= 0)
        return rank_failed(l);
    if (l->result.exit_code == 124)
        return oari_fail(OAR_E_TIMEOUT, "the ranks did not end in time");
    if (l->result.exit_code != 0)
        return oari_fail(OAR_E_ABORTED, "ended by signal %d",
                         l->result.exit_code - 128);
    return OAR_OK;
}

static void block_signals(launch *l)
{
    sigemptyset(&l->watched);
    sigaddset(&l->watched, SIGCHLD);
    sigaddset(&l->watched, SIGINT);
    sigaddset(&l->watched, SIGTERM);
    sigprocmask(SIG_BLOCK, &l->watched, &l->before);
}

static oar_status run(launch *l)
{
    oar_status status = make_folder(l);

    if (status != OAR_OK)
        return status;
    block_signals(l);
    status = start_ranks(l);
    if (status != OAR_OK)
        end_the_rest(l);
    see_through(l);
    sigprocmask(SIG_SETMASK, &l->before, NULL);
    return status == OAR_OK ? outcome(l) : status;
}

static oar_status launch_all(launch *l, const oar_launch_opts *opts,
                             oar_launch_result *result)
{
    oar_status status;

    if (l->ranks < 1 || l->ranks > OARI_MAX_RANKS)
        return oari_fail(OAR_E_WORLD, "%d ranks: 1 to %d", l->ranks,
                         OARI_MAX_RANKS);
    OARI_TRY(oari_opts_read(&l->opts, sizeof l->opts, opts));
    l->result.size = sizeof l->result;
    l->result.failed_rank = -1;
    l->deadline_ns =
        l->opts.timeout_ms > 0 ? oari_deadline(l->opts.timeout_ms) : OARI_NEVER;
    l->kill_ns = OARI_NEVER;
    l->pid = oari_alloc((size_t)l->ranks, sizeof *l->pid);
    if (l->pid == NULL)
        return OAR_E_NOMEM;
    status = run(l);
    if (l->store != NULL)
        oar_store_clear(l->store);
    oar_store_destroy(l->store);
    oari_free(l->pid);
    if (result != NULL && status != OAR_E_ARG) {
        oar_error why = *oar_last_error();
        OARI_TRY(oari_struct_give(result, &l->result, sizeof l->result,
                                  "launch result"));
        if (status != OAR_OK)
            return oari_fail_with(&why);
    }
    return status;
}

oar_status oar_launch(int ranks, char *const *argv, const oar_launch_opts *opts,
                      oar_launch_result *result)
{
    launch l = { .ranks = ranks, .argv = argv };

    if (argv == NULL || argv[0] == NULL)
        return oari_fail(OAR_E_ARG, "launch without a program");
    return launch_all(&l, opts, result);
}

oar_status oar_launch_fn(int ranks, oar_rank_fn fn, void *arg,
                         const oar_group_opts *group_opts,
                         const oar_launch_opts *opts, oar_launch_result *result)
{
    launch l = {
        .ranks = ranks, .fn = fn, .arg = arg, .group_opts = group_opts
    };

    if (fn == NULL)
        return oari_fail(OAR_E_ARG, "launch without a function");
    return launch_all(&l, opts, result);
}
