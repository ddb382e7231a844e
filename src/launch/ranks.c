/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: each rank leads a process group, so that the processes it starts end
 * with it; and the system kills it when the launcher dies. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "launch/launch.h"

enum {
    DEFAULT_GRACE_MS = 2000,
    SETTLE_MS = 100,
    ORPHANS_MAX = 256,
    SWEEPS = 1000
};

/* ---- in the rank --------------------------------------------------------- */

static int run_rank_function(const launch *l, int local)
{
    oar_group *group = NULL;
    oar_status status = oar_group_from_env(l->group_opts, &group);

    if (status == OAR_OK)
        status = l->fn(group, l->arg);
    if (status != OAR_OK) /* where the launcher finds it */
        snprintf(l->reason[local], LAUNCH_REASON_ROOM, "%s",
                 oar_last_error_text());
    oar_group_destroy(group);
    return (int)status;
}

static _Noreturn void run_rank(const launch *l, int local, pid_t parent)
{
    int code;

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    launch_terminal_in_rank(l, parent);
    launch_output_in_rank(l, local);
    launch_recorders_in_rank(l, local);
    if (l->bound != NULL)
        sched_setaffinity(0, sizeof *l->bound, &l->bound[local]);
    setrlimit(RLIMIT_NOFILE, &l->files);
    launch_environment_set(l, local);
    sigprocmask(SIG_SETMASK, &l->before, NULL);
    if (l->argv == NULL)
        exit(run_rank_function(l,
                               local)); /* flushes what the function printed */
    execvp(l->argv[0], l->argv);
    code = errno == ENOENT ? 127 : 126; /* the codes of shells */
    fprintf(stderr, "oarsong: cannot start %s: %s\n", l->argv[0],
            strerror(errno));
    _exit(code);
}

/* ---- starting ------------------------------------------------------------ */

oar_status launch_rank_start(launch *l, int local)
{
    launch_rank *r = &l->rank[local];
    pid_t self = getpid(), pid;

    OARI_TRY(launch_output_rank(l, local));
    fflush(NULL); /* or the rank would print it again */
    if ((pid = fork()) == 0)
        run_rank(l, local, self);
    if (pid < 0)
        return oari_fail(OAR_E_SYSTEM, "start rank %d", l->epoch.first + local);
    setpgid(pid, pid); /* the rank does so too: one of the two is first */
    launch_store_process_add(&l->keeper, pid);
    launch_output_started(l, local);
    r->pid = pid;
    l->left++;
    launch_terminal_lend(l);
    return OAR_OK;
}

oar_status launch_ranks_start(launch *l)
{
    l->first_failed = l->culprit = -1;
    l->kill_ns = l->settle_ns = OARI_NEVER;
    l->killed = l->due = l->respawned = 0;
    l->over = NULL;
    for (int i = 0; i < l->ranks; i++) {
        l->rank[i].code = -1;
        l->rank[i].pid = 0;
        l->rank[i].respawns = 0;
        l->rank[i].due_ns = 0;
    }
    for (int i = 0; i < l->ranks; i++)
        OARI_TRY(launch_rank_start(l, i));
    return OAR_OK;
}

/* ---- ending -------------------------------------------------------------- */

launch_end_text launch_how_ended(int code)
{
    const char *name = code > 128 ? sigabbrev_np(code - 128) : NULL;
    launch_end_text how;

    if (name != NULL)
        snprintf(how.text, sizeof how.text, "was killed by SIG%s (code %d)",
                 name, code);
    else
        snprintf(how.text, sizeof how.text, "ended with code %d", code);
    return how;
}

void launch_ranks_signal(const launch *l, int sig)
{
    for (int i = 0; i < l->ranks; i++)
        if (l->rank[i].pid > 0)
            kill(-l->rank[i].pid, sig);
}

void launch_ranks_end(launch *l, int sig)
{
    int64_t grace = l->opts.grace_ms != 0 ? l->opts.grace_ms : DEFAULT_GRACE_MS;

    if (l->kill_ns != OARI_NEVER)
        return;
    if (grace > 0)
        launch_ranks_signal(l, sig);
    launch_ranks_signal(l, SIGCONT); /* a stopped rank cannot end */
    l->kill_ns = oari_deadline(grace > 0 ? grace : 0);
    l->settle_ns = OARI_NEVER;
}

void launch_ranks_stop(launch *l, int sig)
{
    if (l->kill_ns != OARI_NEVER) /* they are ending already */
        launch_ranks_signal(l, sig);
    if (l->stop_signal != 0)
        l->kill_ns = 0;
    l->stop_signal = sig;
    if (l->result.exit_code == 0)
        l->result.exit_code = 128 + sig;
    launch_ranks_end(l, sig);
}

oar_status launch_fail_stopped(const launch *l)
{
    return oari_fail(OAR_E_ABORTED, "ended by SIG%s",
                     sigabbrev_np(l->stop_signal));
}

/* Reaps a rank that has ended. Until then its process group is still its own,
 * and what it left running can be ended. */
static int reap_rank(launch *l, int local)
{
    launch_rank *r = &l->rank[local];
    siginfo_t info = { .si_pid = 0 };
    pid_t pid = r->pid;
    int how, sig;

    if (pid <= 0 ||
        waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid != pid)
        return 0;
    kill(-pid, SIGKILL);
    launch_store_process_forget(&l->keeper, pid);
    if (waitpid(pid, &how, 0) != pid)
        return 0;
    r->pid = 0;
    r->code = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    /* SIGKILL that the launcher has not sent killed it before: a large process
     * takes long to end. */
    r->late =
        l->kill_ns != OARI_NEVER && (r->code != 128 + SIGKILL || l->killed);
    l->left--;
    /* Ranks that make their group again wait for one that is started again. */
    if (!launch_respawn_may(l, local) && (l->left > 0 || l->epoch.nodes > 1))
        launch_store_process_tell_end(&l->keeper, l->epoch.first + local,
                                      r->code);
    if ((sig = launch_terminal_ended(l, how)) != 0)
        launch_ranks_stop(l, sig);
    return 1;
}

void launch_ranks_reap(launch *l)
{
    int failed = -1;

    for (int i = 0; i < l->ranks; i++) {
        const launch_rank *r = &l->rank[i];

        if (!reap_rank(l, i) || r->code == 0)
            continue;
        if (l->opts.keep_going && l->left > 0 && l->kill_ns == OARI_NEVER)
            launch_say(l, "rank %d %s; %d of %d ranks go on",
                       l->epoch.first + i, launch_how_ended(r->code).text,
                       l->left, l->ranks);
        /* Of several at once, a rank that a signal killed is more likely the
         * cause than one that gave up. */
        if (failed < 0 || (r->code > 128 && l->rank[failed].code <= 128))
            failed = i;
    }
    if (failed < 0 || l->kill_ns != OARI_NEVER)
        return; /* no failure, or the launcher has ended the ranks */
    if (l->first_failed < 0 || l->opts.keep_going)
        l->settle_ns = oari_deadline(SETTLE_MS);
    /* Only a rank that got SIGKILL takes the place of the first that was seen
     * to give up: a large process takes longer to end than others take to
     * notice, and no rank gets that signal because others gave up. */
    if (l->first_failed >= 0 &&
        (l->opts.keep_going || l->rank[failed].code != 128 + SIGKILL ||
         l->rank[l->first_failed].code > 128))
        return; /* a consequence, or later */
    l->first_failed = failed;
}

/* The other ranks get a moment to notice and to record it: which ranks only
 * left, and which waited for which, is clearer then. */
void launch_ranks_settle(launch *l)
{
    if (l->settle_ns == OARI_NEVER || l->kill_ns != OARI_NEVER ||
        (l->left > 0 && oari_now_ns() < l->settle_ns))
        return;
    launch_report(l, "a rank failed");
    if (!l->opts.keep_going) {
        launch_ranks_end(l, SIGTERM);
        return;
    }
    l->settle_ns = OARI_NEVER;
    launch_respawn_plan(l);
}

/* ---- orphans ------------------------------------------------------------- */

/* The ranks have ended: the other children became the launcher's when their
 * parents died. Its own helper processes stay. */
void launch_ranks_end_orphans(const launch *l)
{
    pid_t pid[ORPHANS_MAX];
    char path[64];
    int found = 1;

    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    for (int sweep = 0; l->opts.sole && found && sweep < SWEEPS; sweep++) {
        FILE *file = fopen(path, "re");
        int count = 0, number;

        while (file != NULL && count < ORPHANS_MAX &&
               fscanf(file, "%d", &number) == 1)
            pid[count++] = number;
        if (file != NULL)
            fclose(file);
        found = 0;
        for (int i = 0; i < count; i++)
            if (pid[i] != l->keeper.pid && pid[i] != l->node_server) {
                found = 1;
                kill(pid[i], SIGKILL);
                waitpid(pid[i], NULL, 0);
            }
    }
}
