/* SPDX-License-Identifier: Apache-2.0 */
/* Running processes, looked at from outside: their numbers, steps, operations
 * and deaths. */
#include "support/ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/live.h>
#include <oarsong/trace.h>

#include "support/last_error.h"

/* A child and the pipe by which it says how far it is. */
typedef struct live_child {
    pid_t pid;
    int fd;
} live_child;

/* Runs fn, which writes a byte to the pipe when there is something to see. */
static live_child start(void (*fn)(int fd))
{
    live_child c;
    int ends[2];
    char byte;

    assert_int_equal(pipe(ends), 0);
    c.pid = fork();
    if (c.pid == 0) {
        fn(ends[1]);
        _exit(0);
    }
    c.fd = ends[0];
    close(ends[1]);
    assert_int_equal(read(c.fd, &byte, 1), 1);
    return c;
}

static void kill_child(live_child *c)
{
    kill(c->pid, SIGKILL);
    waitpid(c->pid, NULL, 0);
    close(c->fd);
}

static void say_and_wait(int fd)
{
    if (write(fd, "x", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

static oar_group *make_alone(void)
{
    oar_store *store = NULL;
    oar_group *g = NULL;

    if (oar_store_create_memory(&store) != OAR_OK ||
        oar_group_create(store, 0, 1, NULL, &g) != OAR_OK)
        _exit(1);
    return g;
}

static oar_live *open_child(const live_child *c)
{
    oar_live *live = NULL;
    char what[16];

    snprintf(what, sizeof what, "%d", (int)c->pid);
    if (oar_live_open(what, &live) != OAR_OK)
        fail_msg("%s", oar_last_error_text());
    return live;
}

static oar_live_rank rank_at(const oar_live *live, int rank)
{
    oar_live_rank r = oar_live_rank_init();

    assert_int_equal(oar_live_rank_at(live, rank, &r), OAR_OK);
    return r;
}

/* Returns the value of a number; fails if the rank has none of that name. */
static double value_of(const oar_live *live, int rank, const char *name)
{
    for (int i = 0; i < oar_live_metrics(live, rank); i++) {
        oar_live_metric m = oar_live_metric_init();

        assert_int_equal(oar_live_metric_at(live, rank, i, &m), OAR_OK);
        if (strcmp(m.name, name) == 0)
            return m.value;
    }
    fail_msg("there is no \"%s\"", name);
    return 0;
}

/* ---- numbers and steps --------------------------------------------------- */

static void tell(int fd)
{
    float x = 1;

    oar_metric("early", 0.25); /* before there is a recorder file */
    oar_group *g = make_alone();

    for (int i = 0; i < 100; i++) {
        char name[16];

        snprintf(name, sizeof name, "m%d", i);
        oar_metric(name, i);
    }
    oar_metric("m3", 33);
    for (int i = 0; i < 7; i++) {
        oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL, NULL);
        oar_step(10 + i);
    }
    say_and_wait(fd);
}

static void numbers_and_steps_are_seen_without_any_option(void **state)
{
    live_child c = start(tell);
    oar_live *live = open_child(&c);
    oar_live_rank r = rank_at(live, 0);

    assert_int_equal(oar_live_ranks(live), 1);
    assert_int_equal(r.state, OAR_LIVE_RUNS);
    assert_int_equal(r.pid, c.pid);
    assert_int_equal(r.step, 16);
    assert_int_equal(r.steps, 7);
    assert_int_equal(r.operations, 7);
    assert_true(r.step_s > 0 && r.memory_bytes > 0);
    assert_int_equal(r.kind, OAR_COLL_ALL_REDUCE);
    assert_non_null(strstr(r.site, "live_test.c"));
    assert_int_equal(oar_live_metrics(live, 0), 64); /* the rest is dropped */
    assert_true(value_of(live, 0, "early") == 0.25);
    assert_true(value_of(live, 0, "m3") == 33);
    assert_int_equal(oar_live_metrics(live, 1), 0);
    assert_non_null(strstr(oar_live_verdict(live), "nothing is wrong"));
    assert_false(oar_autopsy_wrong(oar_live_autopsy(live)));
    oar_live_close(live);
    kill_child(&c);
}

static void a_dead_process_keeps_its_numbers(void **state)
{
    live_child c = start(tell);
    oar_live *live = open_child(&c);

    kill_child(&c);
    assert_int_equal(oar_live_look(live), OAR_OK);
    assert_int_equal(rank_at(live, 0).state, OAR_LIVE_DEAD);
    assert_true(value_of(live, 0, "m3") == 33);
    oar_live_close(live);
}

/* ---- a fork -------------------------------------------------------------- */

static void fork_and_tell(int fd)
{
    make_alone();
    oar_metric("of", 1);
    if (fork() == 0) {
        oar_metric("of", 2); /* of the child: not in its parent's file */
        oar_step(5);
        _exit(0);
    }
    wait(NULL);
    say_and_wait(fd);
}

static void a_child_writes_nothing_into_its_parents_page(void **state)
{
    live_child c = start(fork_and_tell);
    oar_live *live = open_child(&c);

    assert_true(value_of(live, 0, "of") == 1);
    assert_int_equal(rank_at(live, 0).steps, 0);
    oar_live_close(live);
    kill_child(&c);
}

/* ---- what is not there --------------------------------------------------- */

static void what_is_no_job_is_said(void **state)
{
    oar_live *live = NULL;
    char pid[16];

    snprintf(pid, sizeof pid, "%d", (int)getppid());
    assert_int_equal(oar_live_open("no-such-run", &live), OAR_E_NOT_FOUND);
    assert_non_null(strstr(oar_last_error_text(), "no-such-run"));
    assert_int_equal(oar_live_open(pid, &live), OAR_E_NOT_FOUND);
    assert_int_equal(oar_live_open("/tmp", NULL), OAR_E_ARG);
    assert_int_equal(oar_live_look(NULL), OAR_E_ARG);
    assert_int_equal(oar_live_ranks(NULL), 0);
    assert_string_equal(oar_live_run(NULL), "");
    oar_live_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_and_steps_are_seen_without_any_option),
        cmocka_unit_test(a_dead_process_keeps_its_numbers),
        cmocka_unit_test(a_child_writes_nothing_into_its_parents_page),
        cmocka_unit_test(what_is_no_job_is_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
