/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of three dies, stops, has a failing disk or a slow one while all open,
 * save or load a checkpoint. The others learn in time which rank it was, form a
 * group without it and open the folder again: what a crash left is gone, and
 * the newest generation is whole. An error of the disk is every rank's error,
 * with the same words, and all of them go on.
 *
 * The short form kills rank 0 at every file call of a save, and at some of the
 * others, and lets each call fail once.
 * With OARSONG_TEST_ALL=1, every rank dies before and after every call and at
 * every step of the operations between them, and each call of every rank fails
 * in every way. */
#include "support/test_job.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/log.h>

#include "base/clock.h"
#include "comm/exec/exec.h"
#include "parallel/checkpoint/checkpoint.h"
#include "support/faulty_disk.h"
#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/sample_state.h"

enum {
    RANKS = 3,
    MOST_CALLS = 200,
    NOTICED_MS = 2000,  /* a death, at the latest */
    TIMEOUT_MS = 30000, /* of the groups: not what ends these operations */
    STOP_MS = 600,      /* of the groups with a rank that stops or is slow */
    WORK_MS = 100,      /* and for work on files without progress */
    PARTS = 4,          /* processes that share the rows */
    SHRINK_MS = 8000,
    QUICK_MS = 700,     /* without a rank that is stopped */
    STOPPED_MS = 60000, /* for the others to leave it, at the latest */
    KILLED = 128 + SIGKILL
};

static int all_rows(void)
{
    return getenv("OARSONG_TEST_ALL") != NULL;
}

typedef enum phase { IN_OPEN, IN_SAVE, IN_LOAD, PHASES } phase;

static const char *const phase_names[PHASES] = { "an open", "a save",
                                                 "a load" };

/* One scenario. */
typedef struct rank_row {
    const char *backend;
    phase phase;
    int victim;       /* -1: no rank fails, calls and steps are counted */
    disk_fault fault; /* NONE: the victim dies at a step of an operation */
    long at;          /* the call or step, from 1 */
} rank_row;

/* What its ranks and their parent share. */
typedef struct rank_case {
    rank_row row;
    char path[FOLDER_PATH + 32];
    long calls[RANKS], steps[RANKS];
    char call[RANKS][MOST_CALLS][12];
    shared_flag go_on; /* survivors that have left a rank that stops */
} rank_case;

/* ---- steps of operations ------------------------------------------------- */

static long steps, die_at_step;
static uint64_t step_number;
static int step_at;

static void count_step(const oari_exec *exec)
{
    if (exec->number == step_number && exec->at == step_at)
        return; /* it is polled again */
    step_number = exec->number;
    step_at = exec->at;
    if (++steps == die_at_step)
        raise(SIGKILL);
}

/* ---- a rank -------------------------------------------------------------- */

typedef struct rank_run {
    oar_group *group;
    oar_checkpoint *runs;
    sample_state sample;
    int64_t timeout_ms;
} rank_run;

static oar_checkpoint_opts one_stays(void)
{
    oar_checkpoint_opts o = sample_checkpoint_opts();

    o.keep = 1;
    return o;
}

static oar_status run_phase(rank_run *r, const rank_case *k)
{
    oar_checkpoint_opts o = one_stays();

    switch (k->row.phase) {
    case IN_OPEN: return oar_checkpoint_open(r->group, k->path, &o, &r->runs);
    case IN_SAVE:
        sample_state_set(&r->sample, 2);
        return oar_checkpoint_save(r->runs, r->sample.state, 2, NULL);
    default:
        return oar_checkpoint_load(r->runs, r->sample.state, OAR_NEWEST, NULL);
    }
}

/* Makes a group, and the first generation of the folder. */
static int prepare(test_job *c, int rank, rank_run *r, const rank_case *k)
{
    oar_group_opts g = { .size = sizeof g, .backend = k->row.backend };
    oar_checkpoint_opts o = one_stays();

    g.timeout_ms = r->timeout_ms;
    faulty_disk_use(DISK_FAULT_NONE, 0, 0);
    RANK_OK(test_job_join(c, rank, &g, &r->group));
    RANK_OK(sample_state_make(&r->sample, rank, RANKS));
    RANK_OK(oar_checkpoint_open(r->group, k->path, &o, &r->runs));
    sample_state_set(&r->sample, 1);
    RANK_OK(oar_checkpoint_save(r->runs, r->sample.state, 1, NULL));
    if (k->row.phase == IN_OPEN) {
        oar_checkpoint_close(r->runs);
        r->runs = NULL;
    }
    RANK_OK(oar_barrier(r->group, NULL, NULL));
    return 0;
}

/* The fault strikes this rank, unless no rank fails. Four calls of a slow disk
 * take longer than the group's timeout. */
static void arm(const rank_run *r, const rank_case *k, int victim)
{
    faulty_disk_use(victim ? k->row.fault : DISK_FAULT_NONE,
                    victim ? k->row.at : 0, (int)(r->timeout_ms / 4 + 1));
    steps = 0;
    step_number = 0;
    die_at_step = victim && k->row.fault == DISK_FAULT_NONE ? k->row.at : 0;
    oari_exec_hook = count_step;
}

static void note_calls(rank_case *k, int rank)
{
    k->calls[rank] = faulty_disk_calls();
    k->steps[rank] = steps;
    for (long n = 1; n <= k->calls[rank] && n <= MOST_CALLS; n++)
        snprintf(k->call[rank][n - 1], sizeof k->call[rank][0], "%s",
                 faulty_disk_call(n));
}

/* The folder opens again on the survivors, without what was left behind, and
 * has a whole generation; they can save the next one. */
static int check_folder(test_job *c, int rank, oar_group *g, const rank_case *k)
{
    oar_checkpoint_opts o = one_stays();
    oar_checkpoint *runs;
    sample_state s;

    RANK_OK(sample_state_make(&s, oar_group_rank(g), oar_group_size(g)));
    RANK_OK(oar_checkpoint_open(g, k->path, &o, &runs));
    RANK_CHECK(folder_names_with(k->path, ".part-") == 0);
    RANK_OK(oar_barrier(g, NULL, NULL));
    RANK_OK(oar_checkpoint_load(runs, s.state, OAR_NEWEST, NULL));
    RANK_CHECK(sample_state_is_whole(&s));
    RANK_CHECK(s.step == 1 || (s.step == 2 && k->row.phase == IN_SAVE));
    sample_state_set(&s, 3);
    RANK_OK(oar_checkpoint_save(runs, s.state, 3, NULL));
    sample_state_set(&s, 0);
    RANK_OK(oar_checkpoint_load(runs, s.state, 3, NULL));
    RANK_CHECK(s.step == 3 && sample_state_is_whole(&s));
    oar_checkpoint_close(runs);
    oar_state_destroy(s.state);
    return 0;
}

/* The victim may have done its part before: then the next operation on the
 * group that all were given fails. */
static int find_victim(test_job *c, int rank, rank_run *r, const rank_case *k,
                       oar_status status)
{
    int stops = k->row.fault == DISK_FAULT_STOP;

    if (status == OAR_OK)
        status = oar_barrier(r->group, NULL, NULL);
    RANK_CHECK(status == OAR_E_PEER || (stops && status == OAR_E_TIMEOUT));
    RANK_CHECK(strstr(oar_last_error_text(), " at ?") == NULL);
    RANK_CHECK(oar_last_error()->peer == k->row.victim);
    return 0;
}

static oar_status shrink(oar_group **g, int stops)
{
    oar_shrink_opts o = { .size = sizeof o,
                          .timeout_ms = stops ? busy_ms(QUICK_MS) : SHRINK_MS };
    oar_group *made;
    oar_status status = oar_group_shrink(*g, &o, &made);

    if (status != OAR_OK)
        return status;
    oar_group_destroy(*g);
    *g = made;
    return OAR_OK;
}

/* What the ranks that are left do, when the call has ended for them. */
static int survive(test_job *c, int rank, rank_run *r, rank_case *k,
                   oar_status status)
{
    oar_checkpoint_opts o = one_stays();
    int failed = find_victim(c, rank, r, k, status);

    if (failed != 0)
        return failed;
    oar_checkpoint_close(r->runs);
    r->runs = NULL;
    RANK_OK(shrink(&r->group, k->row.fault == DISK_FAULT_STOP));
    RANK_CHECK(oar_group_size(r->group) == RANKS - 1);
    if (k->row.fault == DISK_FAULT_STOP && k->row.victim == 0 &&
        k->row.phase != IN_OPEN) {
        /* A rank that is only stopped may go on: the folder is its own. */
        RANK_CHECK(
            fails_with(oar_checkpoint_open(r->group, k->path, &o, &r->runs),
                       OAR_E_STATE, "is in use by another job: host "));
    }
    if (k->row.fault == DISK_FAULT_STOP && k->row.victim == 0) {
        shared_flag_raise(&k->go_on);
        RANK_CHECK(shared_flag_await(&k->go_on, RANKS, busy_ms(STOPPED_MS)));
    }
    failed = check_folder(c, rank, r->group, k);
    shared_flag_raise(&k->go_on);
    return failed;
}

/* A slow rank is no dead one: nothing fails. */
static int wait_for_slow(test_job *c, int rank, rank_run *r, rank_case *k,
                         oar_status status)
{
    RANK_CHECK(status == OAR_OK);
    if (k->row.phase == IN_LOAD)
        RANK_CHECK(r->sample.step == 1 && sample_state_is_whole(&r->sample));
    return 0;
}

static int run_rank(test_job *c, int rank, void *arg)
{
    rank_case *k = arg;
    rank_run r = { .timeout_ms = TIMEOUT_MS };
    int stops = k->row.fault == DISK_FAULT_STOP, failed;
    int slow = k->row.fault == DISK_FAULT_SLOW;
    int64_t start;
    oar_status status;

    if (stops || slow)
        r.timeout_ms = busy_ms(STOP_MS);
    if (stops)
        oari_ckpt_slow_limits = (oari_ckpt_limits){ WORK_MS, WORK_MS, WORK_MS };
    failed = prepare(c, rank, &r, k);
    if (failed != 0)
        return failed;
    arm(&r, k, rank == k->row.victim);
    start = oari_now_ns();
    status = run_phase(&r, k);
    oari_exec_hook = NULL;
    note_calls(k, rank);
    if (slow) {
        failed = wait_for_slow(c, rank, &r, k, status);
    } else if (k->row.victim < 0) {
        RANK_CHECK(status == OAR_OK);
    } else if (rank == k->row.victim) {
        RANK_CHECK(stops); /* it goes on when the others have left it */
    } else {
        RANK_CHECK(is_in_time(start, NOTICED_MS + 2 * r.timeout_ms));
        failed = survive(c, rank, &r, k, status);
    }
    oar_checkpoint_close(r.runs);
    oar_state_destroy(r.sample.state);
    oar_group_destroy(r.group);
    return failed;
}

/* ---- jobs ---------------------------------------------------------------- */

typedef struct rank_job {
    test_job job;
    rank_case *k;
    char folder[FOLDER_PATH];
} rank_job;

static void start_job(rank_job *j, const rank_row *row)
{
    folder_make(j->folder);
    j->k = shared_page(sizeof *j->k);
    j->k->row = *row;
    snprintf(j->k->path, sizeof j->k->path, "%s/runs", j->folder);
    test_job_start(&j->job, RANKS, run_rank, j->k,
                   "%s: rank %d %s %s %ld of %s", row->backend, row->victim,
                   row->fault == DISK_FAULT_STOP         ? "stops before"
                   : row->fault == DISK_FAULT_SLOW       ? "is slow from"
                   : row->fault == DISK_FAULT_KILL_AFTER ? "dies after"
                                                         : "dies before",
                   row->fault == DISK_FAULT_NONE ? "step" : "call", row->at,
                   phase_names[row->phase]);
}

/* Lets a rank that has stopped go on when the others have left it. */
static void continue_victim(rank_job *j)
{
    int v = j->k->row.victim;

    if (!test_job_wait_stopped(&j->job, v, TEST_JOB_LIMIT_MS))
        test_job_give_up(&j->job, "the rank has not stopped");
    if (!shared_flag_await(&j->k->go_on, RANKS - 1, busy_ms(STOPPED_MS)))
        test_job_give_up(&j->job, "the others have not left it");
    kill(j->job.pid[v], SIGCONT);
    test_job_expect(&j->job, v, 0);
    shared_flag_raise(&j->k->go_on);
}

/* seen: NULL, or for what the ranks have counted. */
static void end_job(rank_job *j, rank_case *seen)
{
    oar_checkpoint_opts o = sample_checkpoint_opts();
    oar_checkpoint *runs;
    sample_state s;

    int v = j->k->row.victim;

    if (v >= 0 && j->k->row.fault == DISK_FAULT_STOP)
        continue_victim(j);
    else if (v >= 0 && j->k->row.fault != DISK_FAULT_SLOW)
        test_job_expect(&j->job, v, KILLED);
    for (int r = 0; r < RANKS; r++)
        if (j->job.pid[r] > 0)
            test_job_expect(&j->job, r, 0);
    test_job_end(&j->job);
    /* A rank that went on has changed nothing. */
    OK(sample_state_make(&s, 0, 1));
    OK(oar_checkpoint_open(NULL, j->k->path, &o, &runs));
    OK(oar_checkpoint_load(runs, s.state, OAR_NEWEST, NULL));
    assert_true(sample_state_is_whole(&s));
    if (v >= 0 && j->k->row.fault != DISK_FAULT_SLOW)
        assert_int_equal(s.step, 3);
    oar_checkpoint_close(runs);
    oar_state_destroy(s.state);
    if (seen != NULL)
        *seen = *j->k;
    shared_page_free(j->k, sizeof *j->k);
    assert_int_equal(folder_remove(j->folder), 0);
}

/* ---- rows ---------------------------------------------------------------- */

static rank_row rows[4000];
static int row_count;

static void add_row(phase where, int victim, disk_fault fault, long at)
{
    static const char *const backends[] = { "native", "tcp" };

    assert_true(row_count < (int)(sizeof rows / sizeof rows[0]));
    rows[row_count] = (rank_row){ .backend = backends[row_count % 2],
                                  .phase = where,
                                  .victim = victim,
                                  .fault = fault,
                                  .at = at };
    row_count++;
}

/* Which of the rows this process runs; -1: it starts processes that do. */
static int part = -1;

static pid_t start_part(const char *test, int number)
{
    char text[16];
    pid_t pid;

    snprintf(text, sizeof text, "%d", number);
    fflush(NULL);
    pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (freopen("/dev/null", "w", stdout) != NULL)
        execl("/proc/self/exe", "checkpoint_rank_test", test, text, NULL);
    _exit(127);
}

/* Runs all rows of a test and forgets them. Returns how many. */
static int run_rows(const char *test)
{
    int count = row_count, ended;
    pid_t pid[PARTS];

    row_count = 0;
    if (part >= 0) {
        for (int i = part; i < count; i += PARTS) {
            rank_job job;

            start_job(&job, &rows[i]);
            end_job(&job, NULL);
        }
        return count;
    }
    for (int i = 0; i < PARTS; i++)
        pid[i] = start_part(test, i);
    for (int i = 0; i < PARTS; i++) {
        assert_int_equal(waitpid(pid[i], &ended, 0), pid[i]);
        assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
    }
    return count;
}

static rank_case counted[PHASES];

static int count_all(void **state)
{
    (void)state;
    for (int p = 0; p < PHASES; p++) {
        rank_row row = { .backend = "native", .phase = (phase)p, .victim = -1 };
        rank_job job;

        start_job(&job, &row);
        end_job(&job, &counted[p]);
    }
    return 0;
}

static void a_death_at_any_call_loses_nothing(void **state)
{
    int ranks = all_rows() ? RANKS : 1;

    (void)state;
    for (int p = 0; p < PHASES; p++)
        for (int victim = 0; victim < ranks; victim++)
            for (long at = 1; at <= counted[p].calls[victim];
                 at += all_rows() || p == IN_SAVE ? 1 : 3) {
                add_row((phase)p, victim, DISK_FAULT_KILL, at);
                if (all_rows())
                    add_row((phase)p, victim, DISK_FAULT_KILL_AFTER, at);
            }
    print_message("%d deaths at file calls\n", run_rows(__func__));
}

/* In the short form only in the first and the last operation. */
static void a_death_between_the_calls_loses_nothing(void **state)
{
    (void)state;
    for (int p = 0; p < PHASES; p++)
        for (int victim = 0; victim < RANKS; victim++) {
            long all = counted[p].steps[victim], by = all_rows() ? 1 : all - 1;

            for (long at = 1; at <= all; at += by > 0 ? by : 1)
                add_row((phase)p, victim, DISK_FAULT_NONE, at);
        }
    print_message("%d deaths in operations\n", run_rows(__func__));
}

/* A phase of a rank's work: its first call of this name, or its last. */
typedef struct work_phase {
    phase phase;
    int first; /* of the ranks; rank 0 has phases that the others have not */
    int last;
    const char *call;
    int is_last;
} work_phase;

static const work_phase work_phases[] = {
    { IN_OPEN, 0, 0, "make_folder", 0 }, { IN_OPEN, 0, 0, "lock", 0 },
    { IN_OPEN, 1, 2, "open_folder", 0 }, { IN_SAVE, 0, 0, "make_folder", 0 },
    { IN_SAVE, 0, 2, "open_folder", 0 }, { IN_SAVE, 0, 2, "write_at", 0 },
    { IN_SAVE, 0, 2, "sync", 0 },        { IN_SAVE, 0, 0, "write_at", 1 },
    { IN_SAVE, 0, 0, "rename", 0 },      { IN_SAVE, 0, 0, "remove", 0 },
    { IN_LOAD, 0, 0, "list", 0 },        { IN_LOAD, 0, 2, "read_at", 0 },
    { IN_LOAD, 0, 2, "read_at", 1 }
};

/* Returns the number of that call of a rank; 0: it has none. */
static long find_call(const work_phase *w, int rank)
{
    const rank_case *k = &counted[w->phase];
    long found = 0;

    for (long n = 1; n <= k->calls[rank] && n <= MOST_CALLS; n++)
        if (strcmp(k->call[rank][n - 1], w->call) == 0 &&
            (found == 0 || w->is_last))
            found = n;
    return found;
}

/* Adds the fault in each phase of each rank, over both backends; in the short
 * form one of `short_by`. */
static void add_phases(disk_fault fault, int short_by)
{
    int number = 0;

    for (size_t i = 0; i < sizeof work_phases / sizeof work_phases[0]; i++) {
        const work_phase *w = &work_phases[i];

        for (int rank = w->first; rank <= w->last; rank++) {
            long at = find_call(w, rank);

            assert_true(at > 0);
            if (all_rows())
                add_row(w->phase, rank, fault, at);
            if (all_rows() || number++ % short_by == 0)
                add_row(w->phase, rank, fault, at);
        }
    }
}

static void a_rank_that_stops_is_left_behind(void **state)
{
    (void)state;
    add_phases(DISK_FAULT_STOP, 3);
    print_message("%d ranks stopped\n", run_rows(__func__));
}

static void a_rank_that_is_slow_is_waited_for(void **state)
{
    (void)state;
    add_phases(DISK_FAULT_SLOW, 3);
    print_message("%d ranks slow\n", run_rows(__func__));
}

/* ---- calls that fail ----------------------------------------------------- */

/* The first of these is the short form. */
static const struct failing_way {
    disk_fault fault;
    int error;
} failing_ways[] = {
    { DISK_FAULT_ERROR, ENOSPC },    { DISK_FAULT_ERROR, EIO },
    { DISK_FAULT_ERROR, EDQUOT },    { DISK_FAULT_ERROR, EINTR },
    { DISK_FAULT_ERROR_AFTER, EIO }, { DISK_FAULT_SHORT, 0 },
};
enum { WAYS = sizeof failing_ways / sizeof failing_ways[0] };

typedef struct error_case {
    const char *backend;
    char path[FOLDER_PATH + 32];
    int faults, failures, silent; /* counted by rank 0 */
} error_case;

/* Where the loop over faults is, on every rank. */
typedef struct error_loop {
    rank_run run;
    phase phase;
    int victim;
    const struct failing_way *way;
    long at;
    int64_t step;      /* the last that was saved */
    char struck[16];   /* the victim's call that failed; "": none */
    oar_status status; /* of the phase */
    oar_error error;
} error_loop;

/* Opens the folder if it is not, with the disk as it is. */
static oar_status open_runs(error_loop *l, const error_case *e)
{
    oar_checkpoint_opts o = one_stays();

    return l->run.runs != NULL
               ? OAR_OK
               : oar_checkpoint_open(l->run.group, e->path, &o, &l->run.runs);
}

/* Runs the phase with the fault on one rank. */
static int strike_once(test_job *c, int rank, error_loop *l, error_case *e)
{
    oar_group *g = l->run.group;
    const char *struck;
    oar_status status;

    faulty_disk_use(DISK_FAULT_NONE, 0, 0);
    if (l->phase == IN_OPEN) {
        oar_checkpoint_close(l->run.runs);
        l->run.runs = NULL;
        RANK_OK(oar_barrier(g, NULL, NULL)); /* rank 0 has left the folder */
    }
    if (rank == l->victim)
        faulty_disk_use(l->way->fault, l->at, l->way->error);
    sample_state_set(&l->run.sample, l->step + 1);
    status = l->phase == IN_OPEN ? open_runs(l, e)
             : l->phase == IN_SAVE
                 ? oar_checkpoint_save(l->run.runs, l->run.sample.state,
                                       l->step + 1, NULL)
                 : oar_checkpoint_load(l->run.runs, l->run.sample.state,
                                       OAR_NEWEST, NULL);
    l->status = status;
    l->error = *oar_last_error();
    struck = faulty_disk_struck();
    snprintf(l->struck, sizeof l->struck, "%s", struck != NULL ? struck : "");
    faulty_disk_use(DISK_FAULT_NONE, 0, 0);
    RANK_OK(oar_broadcast(g, oar_span_of(l->struck, sizeof l->struck, OAR_U8),
                          l->victim, NULL, NULL));
    return 0;
}

/* Whether a call must get by without a word: the library tries again. */
static int is_finished_silently(const error_loop *l)
{
    int moves =
        strcmp(l->struck, "write_at") == 0 || strcmp(l->struck, "read_at") == 0;

    return l->way->fault == DISK_FAULT_SHORT ||
           (l->way->error == EINTR &&
            (moves || strcmp(l->struck, "close") == 0));
}

/* Whether its failure must end a save: something was not written. */
static int must_fail(const error_loop *l)
{
    return l->phase == IN_SAVE && !is_finished_silently(l) &&
           (strcmp(l->struck, "write_at") == 0 ||
            strcmp(l->struck, "sync") == 0 ||
            strcmp(l->struck, "make_folder") == 0);
}

/* All ranks have the same status and, if it is a failure, the same record: that
 * of the victim's call. */
static int check_agreement(test_job *c, int rank, error_loop *l)
{
    oar_error first = l->error;

    if (l->status != OAR_OK) {
        RANK_CHECK(l->status == OAR_E_SYSTEM || l->status == OAR_E_DATA);
        RANK_CHECK(l->error.rank == l->victim);
        RANK_CHECK(l->status != OAR_E_SYSTEM ||
                   l->error.sys_errno == l->way->error);
        RANK_CHECK(l->struck[0] != '\0');
    }
    RANK_OK(oar_broadcast(l->run.group,
                          oar_span_of(&first, sizeof first, OAR_U8), 0, NULL,
                          NULL));
    RANK_CHECK(l->status == OAR_OK || strcmp(first.text, l->error.text) == 0);
    RANK_CHECK(l->status == OAR_OK || first.status == l->error.status);
    return 0;
}

/* The newest generation is whole, and is the new one if the save succeeded. A
 * save that failed may have got as far as its name. */
static int check_newest(test_job *c, int rank, error_loop *l, error_case *e)
{
    sample_state *s = &l->run.sample;
    int64_t wanted = l->step + (l->phase == IN_SAVE && l->status == OAR_OK);
    char part_name[32];

    RANK_OK(open_runs(l, e));
    sample_state_set(s, 0);
    RANK_OK(oar_checkpoint_load(l->run.runs, s->state, OAR_NEWEST, NULL));
    RANK_CHECK(sample_state_is_whole(s));
    RANK_CHECK(s->step == wanted ||
               (l->phase == IN_SAVE && s->step == l->step + 1));
    l->step = s->step;
    if (l->status != OAR_OK) {
        snprintf(part_name, sizeof part_name, "%012d.part-", (int)wanted + 1);
        RANK_CHECK(folder_names_with(e->path, part_name) == 0);
    }
    RANK_OK(oar_barrier(l->run.group, NULL, NULL));
    return 0;
}

/* Fails each call of a rank in a phase, in one way. */
static int fail_each_call(test_job *c, int rank, error_loop *l, error_case *e)
{
    int failed = 0;

    for (l->at = 1; failed == 0; l->at++) {
        int open = l->phase == IN_OPEN ? -1 : open_descriptors();

        failed = strike_once(c, rank, l, e);
        if (failed == 0)
            failed = check_agreement(c, rank, l);
        if (failed == 0)
            RANK_CHECK(open < 0 || open == open_descriptors());
        if (failed == 0)
            failed = check_newest(c, rank, l, e);
        if (l->struck[0] == '\0')
            break;
        RANK_CHECK(!is_finished_silently(l) || l->status == OAR_OK);
        RANK_CHECK(!must_fail(l) || l->status != OAR_OK);
        if (rank == 0) {
            e->faults++;
            e->failures += l->status != OAR_OK;
            e->silent += is_finished_silently(l);
        }
    }
    return failed;
}

/* That an old generation stays is only said in the log. */
static void ignore_log(void *arg, oar_log_level level, const char *text)
{
    (void)arg;
    (void)level;
    (void)text;
}

static int run_errors(test_job *c, int rank, void *arg)
{
    error_case *e = arg;
    error_loop l = { .run = { .timeout_ms = TIMEOUT_MS }, .step = 1 };
    rank_case k = { .row = { .backend = e->backend } };
    int failed;

    oar_log_to(ignore_log, NULL, OAR_LOG_WARN);
    snprintf(k.path, sizeof k.path, "%s", e->path);
    failed = prepare(c, rank, &l.run, &k);
    for (int w = 0; w < (all_rows() ? WAYS : 1); w++)
        for (int p = 0; p < PHASES; p++)
            for (int victim = 0; victim < RANKS && failed == 0; victim++) {
                l.way = &failing_ways[w];
                l.phase = (phase)p;
                l.victim = victim;
                failed = fail_each_call(c, rank, &l, e);
            }
    oar_checkpoint_close(l.run.runs);
    oar_state_destroy(l.run.sample.state);
    oar_group_destroy(l.run.group);
    return failed;
}

static void a_call_that_fails_is_every_ranks_failure(void **state)
{
    static const char *const backends[] = { "native", "tcp" };
    char folder[FOLDER_PATH];

    (void)state;
    for (int b = 0; b < (all_rows() ? 2 : 1); b++) {
        error_case *e = shared_page(sizeof *e);
        test_job job;

        folder_make(folder);
        e->backend = backends[b];
        snprintf(e->path, sizeof e->path, "%s/runs", folder);
        test_job_start(&job, RANKS, run_errors, e, "%s: calls that fail",
                       e->backend);
        for (int r = 0; r < RANKS; r++)
            if (test_job_wait(&job, r, 10 * TEST_JOB_LIMIT_MS) != 0)
                test_job_give_up(&job, "rank %d has failed", r);
        test_job_end(&job);
        print_message("%d calls failed: %d failures, %d tried again\n",
                      e->faults, e->failures, e->silent);
        assert_true(e->failures > 30);
        shared_page_free(e, sizeof *e);
        assert_int_equal(folder_remove(folder), 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_at_any_call_loses_nothing),
        cmocka_unit_test(a_death_between_the_calls_loses_nothing),
        cmocka_unit_test(a_rank_that_stops_is_left_behind),
        cmocka_unit_test(a_rank_that_is_slow_is_waited_for),
        cmocka_unit_test(a_call_that_fails_is_every_ranks_failure),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (argc > 2)
        part = atoi(argv[2]);
    return cmocka_run_group_tests_name("checkpoint ranks", tests, count_all,
                                       NULL);
}
