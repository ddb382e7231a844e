/* SPDX-License-Identifier: Apache-2.0 */
/* What processes write into their traces, read back: by themselves, after their
 * death, from clocks that differ, thinned, and damaged. */
#include "support/ranks.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/checkpoint.h>
#include <oarsong/trace.h>
#include <oarsong/trace_read.h>

#include "base/clock.h"
#include "base/trace.h"
#include "support/last_error.h"

enum { FOLDER = 256 };

static char folder[FOLDER];

static oar_trace *open_trace(const char *path)
{
    oar_trace *t = NULL;

    if (oar_trace_open(path, &t) != OAR_OK)
        fail_msg("no trace: %s", oar_last_error_text());
    return t;
}

/* Returns the process with this pid, or -1. */
static int process_of(const oar_trace *t, int64_t pid, oar_trace_process *p)
{
    for (int i = 0; i < oar_trace_processes(t); i++) {
        *p = oar_trace_process_init();
        assert_int_equal(oar_trace_process_at(t, i, p), OAR_OK);
        if (p->pid == pid)
            return i;
    }
    return -1;
}

static oar_trace_event event_at(const oar_trace *t, uint64_t index)
{
    oar_trace_event e = oar_trace_event_init();

    assert_int_equal(oar_trace_event_at(t, index, &e), OAR_OK);
    return e;
}

/* Counts a process's events of a kind and name (NULL: any), and gives the last.
 */
static int count_of(const oar_trace *t, int process, oar_trace_kind kind,
                    const char *name, oar_trace_event *last)
{
    int count = 0;

    for (uint64_t i = 0; i < oar_trace_events(t); i++) {
        oar_trace_event e = event_at(t, i);

        if (e.process != process || e.kind != kind ||
            (name != NULL && strcmp(e.name, name) != 0))
            continue;
        *last = e;
        count++;
    }
    return count;
}

/* Runs fn in a child that ends by a signal or with 0; returns its pid. */
static pid_t in_child(void (*fn)(void *arg), void *arg)
{
    pid_t pid = fork();
    int state;

    assert_true(pid >= 0);
    if (pid == 0) {
        fn(arg);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &state, 0), pid);
    return pid;
}

/* Removes the traces of ranks: each launch is a job of its own. */
static void forget_ranks(void)
{
    char command[2 * FOLDER];

    snprintf(command, sizeof command, "rm -f '%s'/rank-*", folder);
    assert_int_equal(system(command), 0);
}

/* ---- what a program writes ----------------------------------------------- */

static void own_intervals_nest_and_numbers_are_kept(void **state)
{
    uint64_t outer = oar_trace_begin("outer"), inner;
    oar_trace_event a, b, loss, step;
    oar_trace_process p;
    oar_trace *t;
    int me;

    inner = oar_trace_begin("inner");
    assert_true(outer != 0 && inner != 0 && inner != outer);
    oar_metric("loss", 2.5);
    oar_trace_end(outer); /* and the inner one */
    oar_trace_end(inner); /* has ended: nothing */
    oar_step(41);
    oar_step(42);
    t = open_trace(folder);
    me = process_of(t, getpid(), &p);
    assert_true(me >= 0);
    assert_int_equal(count_of(t, me, OAR_TRACE_USER, "outer", &a), 1);
    assert_int_equal(count_of(t, me, OAR_TRACE_USER, "inner", &b), 1);
    assert_true(a.start_ns <= b.start_ns && b.end_ns <= a.end_ns);
    assert_int_equal(a.thread, b.thread);
    assert_int_equal(count_of(t, me, OAR_TRACE_METRIC, "loss", &loss), 1);
    assert_true(loss.value == 2.5);
    assert_int_equal(count_of(t, me, OAR_TRACE_STEP, NULL, &step), 2);
    assert_true(step.value == 42);
    assert_int_equal(p.one_in, 1);
    oar_trace_close(t);
}

static oar_status reduce_often(oar_group *g, void *arg)
{
    const int *times = arg;

    for (int i = 0; i < *times; i++) {
        float x = 1;

        CHECK_OK(oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL,
                                NULL));
    }
    return OAR_OK;
}

static void every_operation_of_every_rank_is_there(void **state)
{
    enum { TIMES = 100 };
    int times = TIMES, count[2] = { 0 }, seen[2][TIMES + 1] = { { 0 } };
    oar_group_opts o = oar_group_opts_init();
    oar_trace *t;

    o.name = "counted";
    assert_int_equal(ranks_run("shm", 2, &o, reduce_often, &times), OAR_OK);
    t = open_trace(folder);
    for (uint64_t i = 0; i < oar_trace_events(t); i++) {
        oar_trace_event e = event_at(t, i);

        if (e.kind != OAR_TRACE_OPERATION || e.op != OAR_COLL_ALL_REDUCE ||
            strcmp(e.group, "counted") != 0)
            continue;
        assert_in_range(e.rank, 0, 1);
        assert_in_range(e.number, 1, TIMES);
        assert_int_equal(e.bytes, sizeof(float));
        assert_false(e.failed);
        assert_non_null(strstr(e.name, "trace_test.c:"));
        assert_true(e.end_ns >= e.start_ns);
        count[e.rank]++;
        seen[e.rank][e.number]++;
    }
    for (int r = 0; r < 2; r++) {
        assert_int_equal(count[r], TIMES);
        for (int n = 1; n <= TIMES; n++)
            assert_int_equal(seen[r][n], 1);
    }
    oar_trace_close(t);
    forget_ranks();
}

static oar_status save_and_load(oar_group *g, void *arg)
{
    char path[FOLDER + 8];
    oar_checkpoint *runs;
    oar_state *state;
    int64_t number = 7;

    snprintf(path, sizeof path, "%s/runs", folder);
    CHECK_OK(oar_state_create(&state));
    CHECK_OK(oar_state_add_i64(state, "number", &number));
    CHECK_OK(oar_checkpoint_open(g, path, NULL, &runs));
    CHECK_OK(oar_checkpoint_save(runs, state, 1, NULL));
    CHECK_OK(oar_checkpoint_load(runs, state, OAR_NEWEST, NULL));
    CHECK_OK(oar_checkpoint_load(runs, state, 1, NULL));
    oar_checkpoint_close(runs);
    oar_state_destroy(state);
    return OAR_OK;
}

static void checkpoints_are_there_saved_and_loaded(void **state)
{
    oar_trace_event e;
    oar_trace_process p;
    oar_trace *t;
    int me;

    assert_int_equal(ranks_run("sim", 1, NULL, save_and_load, NULL), OAR_OK);
    t = open_trace(folder);
    me = process_of(t, getpid(), &p);
    assert_int_equal(count_of(t, me, OAR_TRACE_CHECKPOINT, "save", &e), 1);
    assert_int_equal(count_of(t, me, OAR_TRACE_CHECKPOINT, "load", &e), 2);
    oar_trace_close(t);
}

static void write_and_die(void *arg)
{
    for (int i = 0; i < 1000; i++)
        oar_trace_end(oar_trace_begin("before the end"));
    kill(getpid(), SIGKILL);
}

static void a_killed_process_leaves_all_it_wrote(void **state)
{
    pid_t pid = in_child(write_and_die, NULL);
    oar_trace *t = open_trace(folder);
    oar_trace_event e;
    oar_trace_process p;
    int child = process_of(t, pid, &p);

    assert_true(child >= 0);
    assert_int_equal(count_of(t, child, OAR_TRACE_USER, "before the end", &e),
                     1000);
    oar_trace_close(t);
}

/* ---- thinning ------------------------------------------------------------ */

enum { PER_STEP = 1000, STEPS = 1000 };

static void write_many_steps(void *arg)
{
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0; i < PER_STEP; i++)
            oar_trace_end(oar_trace_begin("one of many"));
        oar_step(s);
    }
}

/* A million events of 32 bytes do not fit in 8 MiB: whole steps are left out.
 * The first and the last chunk may hold parts of steps that were thinned. */
static void a_long_trace_keeps_whole_steps(void **state)
{
    static int of_step[STEPS + 1];
    pid_t pid = in_child(write_many_steps, NULL);
    oar_trace *t = open_trace(folder);
    oar_trace_process p;
    int child = process_of(t, pid, &p), whole = 0, some = 0;
    int64_t step_end[STEPS + 1], steps = 0;

    assert_true(child >= 0);
    assert_true(p.one_in >= 4 && p.one_in <= 64);
    assert_false(p.by_seconds);
    assert_true(p.events * sizeof(oari_trace_event) <= 8u << 20);
    for (uint64_t i = 0; i < oar_trace_events(t); i++) {
        oar_trace_event e = event_at(t, i);

        if (e.process != child)
            continue;
        if (e.kind == OAR_TRACE_STEP) {
            step_end[steps++] = e.end_ns;
            assert_true(e.end_ns - e.start_ns >= 0);
        }
    }
    for (uint64_t i = 0; i < oar_trace_events(t); i++) {
        oar_trace_event e = event_at(t, i);
        int64_t s = 0;

        if (e.process != child || e.kind != OAR_TRACE_USER)
            continue;
        while (s < steps && step_end[s] < e.end_ns)
            s++;
        of_step[s]++;
    }
    for (int64_t s = 0; s <= steps; s++) {
        whole += of_step[s] == PER_STEP;
        some += of_step[s] != 0 && of_step[s] != PER_STEP;
    }
    assert_true(whole >= STEPS / 64);
    assert_true(some <= 16 && some < whole);
    oar_trace_close(t);
}

static void write_without_steps(void *arg)
{
    for (int i = 0; i < STEPS * PER_STEP; i++)
        oar_trace_end(oar_trace_begin("one of many"));
}

/* Seconds are left out where there are no steps. The first one always stays:
 * if it fills the file, the trace ends there, and the program goes on. */
static void a_second_that_fills_the_trace_ends_it(void **state)
{
    pid_t pid = fork();
    oar_trace *t;
    oar_trace_process p;
    int how;

    assert_true(pid >= 0);
    if (pid == 0) {
        write_without_steps(NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
    t = open_trace(folder);
    assert_true(process_of(t, pid, &p) >= 0);
    assert_true(p.events > 0);
    assert_true(p.events * sizeof(oari_trace_event) <= 8u << 20);
    assert_true(p.one_in > 1 && p.by_seconds);
    oar_trace_close(t);
}

/* ---- clocks -------------------------------------------------------------- */

static void copy_file(const char *from, const char *to)
{
    char command[5 * FOLDER];

    snprintf(command, sizeof command, "cp '%s' '%s'", from, to);
    assert_int_equal(system(command), 0);
}

static oari_trace_file *map_file(const char *path, size_t *bytes)
{
    int fd = open(path, O_RDWR);
    struct stat st;
    void *at;

    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    *bytes = (size_t)st.st_size;
    at = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(at != MAP_FAILED);
    close(fd);
    return at;
}

enum { HOSTS = 3 }; /* with a rank each */

static oar_status reduce_at_leisure(oar_group *g, void *arg)
{
    for (int i = 0; i < 50; i++) {
        float x = 1;

        usleep(oar_group_rank(g) == i % HOSTS ? 300 : 0);
        CHECK_OK(oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL,
                                NULL));
    }
    return OAR_OK;
}

/* Finds the trace that a process wrote. */
static void find_file_of(int64_t pid, char path[2 * FOLDER])
{
    DIR *all = opendir(folder);
    struct dirent *entry;
    int found = 0;

    assert_non_null(all);
    while (!found && (entry = readdir(all)) != NULL) {
        oari_trace_file *f;
        size_t bytes;

        if (strstr(entry->d_name, OARI_TRACE_SUFFIX) == NULL)
            continue;
        snprintf(path, 2 * FOLDER, "%s/%s", folder, entry->d_name);
        f = map_file(path, &bytes);
        found = f->head.pid == pid;
        munmap(f, bytes);
    }
    closedir(all);
    assert_true(found);
}

/* Copies the traces of the group's ranks into a folder of their own. */
static void ranks_apart(const char *group, const char *into)
{
    oar_trace *t = open_trace(folder);
    int64_t pids[HOSTS] = { 0 };

    for (uint64_t i = 0; i < oar_trace_events(t); i++) {
        oar_trace_event e = event_at(t, i);

        if (strcmp(e.group, group) == 0) {
            oar_trace_process p = oar_trace_process_init();

            assert_int_equal(oar_trace_process_at(t, e.process, &p), OAR_OK);
            pids[e.rank] = p.pid;
        }
    }
    oar_trace_close(t);
    for (int r = 0; r < HOSTS; r++)
        assert_true(pids[r] != 0 && pids[r] != pids[(r + 1) % HOSTS]);
    mkdir(into, 0777);
    for (int r = 0; r < HOSTS; r++) {
        char from[2 * FOLDER], to[2 * FOLDER];

        find_file_of(pids[r], from);
        snprintf(to, sizeof to, "%s/rank-%d" OARI_TRACE_SUFFIX, into, r);
        copy_file(from, to);
    }
}

/* Returns how much later a rank posts than rank 0, the mean over all. */
static double mean_lateness(const oar_trace *t, const char *group, int rank)
{
    double sum = 0;
    int count = 0;

    for (uint64_t i = 0; i < oar_trace_events(t); i++) {
        oar_trace_event e = event_at(t, i);

        if (e.kind != OAR_TRACE_OPERATION || strcmp(e.group, group) != 0 ||
            e.op != OAR_COLL_ALL_REDUCE || (e.rank != 0 && e.rank != rank))
            continue;
        sum += (double)e.start_ns * (e.rank == rank ? 1 : -1);
        count++;
    }
    assert_int_equal(count, 100);
    return sum / 50;
}

/* Makes the trace of a rank one of another host, whose clock is not this one's
 * and whose calendar is not right. */
static void move_to_host(const char *path, int host, int64_t shift)
{
    size_t bytes;
    oari_trace_file *f = map_file(path, &bytes);

    f->head.base_ns += shift;
    f->head.boot[0] ^= (char)host;
    f->head.wall_ns -= 77777777;
    munmap(f, bytes);
}

static void clocks_of_three_hosts_are_aligned_as_well_as_it_says(void **state)
{
    static const int64_t shift[HOSTS] = { 0, 123456789012, -98765432101 };
    char apart[FOLDER], path[2 * FOLDER];
    oar_group_opts o = oar_group_opts_init();
    double before[HOSTS];
    oar_trace *t;

    o.name = "far";
    assert_int_equal(ranks_run("shm", HOSTS, &o, reduce_at_leisure, NULL),
                     OAR_OK);
    snprintf(apart, sizeof apart, "%.200s-apart", folder);
    ranks_apart("far", apart);
    forget_ranks();
    t = open_trace(apart);
    for (int r = 1; r < HOSTS; r++)
        before[r] = mean_lateness(t, "far", r);
    oar_trace_close(t);

    for (int r = 1; r < HOSTS; r++) {
        snprintf(path, sizeof path, "%s/rank-%d" OARI_TRACE_SUFFIX, apart, r);
        move_to_host(path, r, shift[r]);
    }
    t = open_trace(apart);
    for (int r = 1; r < HOSTS; r++) {
        oar_trace_process p = oar_trace_process_init();

        assert_int_equal(oar_trace_process_at(t, r, &p), OAR_OK);
        assert_true(p.error_ns > 0 && p.error_ns < 100000000);
        assert_true(fabs(mean_lateness(t, "far", r) - before[r]) <=
                    (double)p.error_ns + 1000);
    }
    oar_trace_close(t);
    snprintf(path, sizeof path, "rm -r '%s'", apart);
    assert_int_equal(system(path), 0);
}

static void processes_of_a_host_share_a_clock(void **state)
{
    char apart[FOLDER], path[2 * FOLDER];
    oar_group_opts o = oar_group_opts_init();
    uint64_t first = UINT64_MAX;
    double before[HOSTS];
    oar_trace *t;

    o.name = "near";
    assert_int_equal(ranks_run("shm", HOSTS, &o, reduce_at_leisure, NULL),
                     OAR_OK);
    snprintf(apart, sizeof apart, "%.200s-apart", folder);
    ranks_apart("near", apart);
    forget_ranks();
    t = open_trace(apart);
    for (int r = 1; r < HOSTS; r++)
        before[r] = mean_lateness(t, "near", r);
    oar_trace_close(t);

    /* The clocks of all but the first to begin are wrong. */
    for (int pass = 0; pass < 2; pass++)
        for (int r = 0; r < HOSTS; r++) {
            oari_trace_file *f;
            size_t bytes;

            snprintf(path, sizeof path, "%s/rank-%d" OARI_TRACE_SUFFIX, apart,
                     r);
            f = map_file(path, &bytes);
            if (pass == 0 && f->head.base_ticks < first)
                first = f->head.base_ticks;
            if (pass == 1 && f->head.base_ticks != first) {
                f->head.base_ns += 5000000;
                f->head.ticks_per_second *= 1.005;
            }
            munmap(f, bytes);
        }
    t = open_trace(apart);
    for (int r = 1; r < HOSTS; r++)
        assert_true(mean_lateness(t, "near", r) == before[r]);
    oar_trace_close(t);
    snprintf(path, sizeof path, "rm -r '%s'", apart);
    assert_int_equal(system(path), 0);
}

static void *begin_and_end(void *arg)
{
    oar_trace_end(oar_trace_begin("nothing"));
    return NULL;
}

typedef struct slept {
    int64_t least, most; /* ns */
} slept;

static void sleep_before_a_thread(void *arg)
{
    int64_t began, begun, woke;
    uint64_t token;
    slept *s = arg;
    pthread_t thread;

    begin_and_end(NULL); /* and the file is there */
    began = oari_now_ns();
    token = oar_trace_begin("sleep");
    begun = oari_now_ns();
    usleep(100000);
    woke = oari_now_ns();
    oar_trace_end(token);
    *s = (slept){ woke - begun, oari_now_ns() - began };
    if (pthread_create(&thread, NULL, begin_and_end, NULL) == 0)
        pthread_join(thread, NULL);
}

static void the_rate_of_the_counter_is_measured_over_the_trace(void **state)
{
    slept *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char path[2 * FOLDER];
    oar_trace_event e;
    oar_trace_process p;
    oari_trace_file *f;
    size_t bytes;
    oar_trace *t;
    double ns;
    pid_t pid;

    assert_true(s != MAP_FAILED);
    pid = in_child(sleep_before_a_thread, s);
    find_file_of(pid, path);
    f = map_file(path, &bytes);
    f->head.ticks_per_second *= 1.005; /* which is wrong by 500 us */
    f->head.boot[0] ^= 1;              /* no other process tells the rate */
    munmap(f, bytes);
    t = open_trace(folder);
    assert_int_equal(
        count_of(t, process_of(t, pid, &p), OAR_TRACE_USER, "sleep", &e), 1);
    ns = (double)(e.end_ns - e.start_ns);
    assert_true(ns >= (double)s->least * 0.9999 &&
                ns <= (double)s->most * 1.0001);
    oar_trace_close(t);
    unlink(path);
    munmap(s, sizeof *s);
}

/* ---- damage -------------------------------------------------------------- */

static void expect_refused(const char *path, const char *text)
{
    oar_trace *t = NULL;

    assert_int_equal(oar_trace_open(path, &t), OAR_E_DATA);
    assert_last_error_has(text);
}

static void traces_of_two_jobs_are_refused(void **state)
{
    int times = 1;

    assert_int_equal(ranks_run("shm", 2, NULL, reduce_often, &times), OAR_OK);
    assert_int_equal(ranks_run("shm", 2, NULL, reduce_often, &times), OAR_OK);
    expect_refused(folder, "several jobs");
    forget_ranks();
}

static void what_is_no_trace_is_refused(void **state)
{
    char bad[FOLDER], path[2 * FOLDER];
    oari_trace_file *f;
    oar_trace *t = NULL;
    size_t bytes;
    FILE *file;

    snprintf(bad, sizeof bad, "%.200s-bad", folder);
    assert_int_equal(mkdir(bad, 0777), 0);
    assert_int_equal(oar_trace_open(bad, &t), OAR_E_NOT_FOUND);
    assert_int_equal(oar_trace_open("/no/such/folder", &t), OAR_E_NOT_FOUND);
    snprintf(path, sizeof path, "%s/rank-0" OARI_TRACE_SUFFIX, bad);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs("something else", file);
    fclose(file);
    expect_refused(bad, "too short");
    assert_int_equal(truncate(path, 16 << 20), 0);
    expect_refused(bad, "begins otherwise");
    f = map_file(path, &bytes);
    memcpy(f->head.magic, oari_trace_magic, sizeof f->head.magic);
    f->head.version = OARI_TRACE_VERSION + 1;
    expect_refused(bad, "version");
    f->head.version = OARI_TRACE_VERSION;
    f->head.ticks_per_second = 1e9;
    atomic_store(&f->head.taken, 1 << 20);
    expect_refused(bad, "shorter than it says");
    atomic_store(&f->head.taken, 1);
    atomic_store(&f->head.names, OARI_TRACE_NAME_BYTES + 1);
    expect_refused(bad, "names");
    memset(f, 0, 64);
    munmap(f, bytes);
    unlink(path);
    rmdir(bad);
}

/* A trace is written only if the variable was there when the program began. */
static void begin_again(char **argv)
{
    snprintf(folder, sizeof folder, "/tmp/oarsong-trace-XXXXXX");
    if (mkdtemp(folder) == NULL)
        exit(1);
    setenv("OARSONG_TRACE", folder, 1);
    setenv("OARSONG_TRACE_BYTES", "8M", 1);
    execv("/proc/self/exe", argv);
    exit(1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_intervals_nest_and_numbers_are_kept),
        cmocka_unit_test(every_operation_of_every_rank_is_there),
        cmocka_unit_test(checkpoints_are_there_saved_and_loaded),
        cmocka_unit_test(a_killed_process_leaves_all_it_wrote),
        cmocka_unit_test(a_long_trace_keeps_whole_steps),
        cmocka_unit_test(a_second_that_fills_the_trace_ends_it),
        cmocka_unit_test(clocks_of_three_hosts_are_aligned_as_well_as_it_says),
        cmocka_unit_test(processes_of_a_host_share_a_clock),
        cmocka_unit_test(the_rate_of_the_counter_is_measured_over_the_trace),
        cmocka_unit_test(traces_of_two_jobs_are_refused),
        cmocka_unit_test(what_is_no_trace_is_refused),
    };
    char command[2 * FOLDER];
    int failed;

    if (getenv("OARSONG_TRACE") == NULL)
        begin_again(argv);
    snprintf(folder, sizeof folder, "%s", getenv("OARSONG_TRACE"));
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) == 0 ? failed : 1;
}
