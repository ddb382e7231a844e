/* SPDX-License-Identifier: Apache-2.0 */
/* What the other ranks report of a rank that is late: that it is stopped, dead
 * or busy, and what it did last; and that they wait longer for a rank that has
 * announced to be slow. */
#include "support/test_job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/log.h>
#include <oarsong/p2p.h>

#include "base/clock.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWLY = 4 };
#else
enum { SLOWLY = 1 };
#endif

enum {
    LATE = 1, /* the rank that does not come */
    STALL_MS = 50,
    TIMEOUT_MS = 250 * SLOWLY,
    MISSED_MS = 1000 * SLOWLY, /* where those that come must come together */
    KILLED = 128 + SIGKILL
};

typedef enum late_reason { STOPS, COMPUTES, DIES } late_reason;

typedef struct stall_context {
    const char *backend;
    int hosts; /* the late rank is on another */
    late_reason how;
    int scope_ms;
    shared_flag joined, away, done, back;
    shared_flag warned; /* ranks that have complained of a stall */
} stall_context;

/* Of operations that run out of time, or would. */
static oar_call_opts within(int64_t timeout_ms)
{
    oar_call_opts o = oar_call_opts_init();

    o.timeout_ms = timeout_ms;
    return o;
}

/* All are in the group, and out of its first barrier. */
static int join(test_job *c, int rank, stall_context *s, oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();

    if (s->hosts && rank == LATE)
        setenv("OARSONG_HOST_ID", "another", 1);
    o.backend = s->backend;
    o.timeout_ms = TEST_JOB_LIMIT_MS;
    o.stall_ms = STALL_MS;
    RANK_CHECK(test_job_join(c, rank, &o, g) == OAR_OK);
    RANK_CHECK(oar_barrier(*g, NULL, NULL) == OAR_OK);
    shared_flag_raise(&s->joined);
    RANK_CHECK(
        shared_flag_await(&s->joined, (uint32_t)c->ranks, TEST_JOB_LIMIT_MS));
    return 0;
}

/* ---- stopped, running, dead ---------------------------------------------- */

/* The others have come and gone; the first may still be whole. */
static int is_late(oar_group *g)
{
    oar_call_opts o = within(TIMEOUT_MS);
    oar_status status = oar_barrier(g, &o, NULL);

    return (status == OAR_OK || status == OAR_E_TIMEOUT) &&
           oar_barrier(g, &o, NULL) == OAR_E_TIMEOUT;
}

static int be_away(test_job *c, stall_context *s, oar_group *g)
{
    if (s->how == DIES)
        raise(SIGKILL);
    if (s->how == STOPS)
        raise(SIGSTOP);
    JOB_CHECK(c, LATE, shared_flag_await(&s->back, 1, TEST_JOB_LIMIT_MS));
    JOB_CHECK(c, LATE, is_late(g));
    oar_group_destroy(g);
    return 0;
}

static const char *expected(const stall_context *s, int64_t pid, char *text,
                            size_t bytes)
{
    static const char *const word[] = { ", stopped", ", running", "" };

    if (s->hosts)
        snprintf(text, bytes, "rank %d (on another host", LATE);
    else
        snprintf(text, bytes, "rank %d (pid %lld%s", LATE, (long long)pid,
                 word[s->how]);
    return text;
}

static int run_away(test_job *c, int rank, void *arg)
{
    oar_call_opts o = within(TIMEOUT_MS);
    stall_context *s = arg;
    char text[80];
    oar_group *g;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    if (rank == LATE)
        return be_away(c, s, g);
    RANK_CHECK(shared_flag_await(&s->away, 1, TEST_JOB_LIMIT_MS));
    RANK_CHECK(oar_barrier(g, &o, NULL) ==
               (s->how == DIES ? OAR_E_PEER : OAR_E_TIMEOUT));
    expected(s, (int64_t)s->done, text, sizeof text);
    if (strstr(oar_last_error_text(), text) == NULL)
        fprintf(stderr, "not \"%s\": %s\n", text, oar_last_error_text());
    RANK_CHECK(strstr(oar_last_error_text(), text) != NULL);
    oar_group_destroy(g);
    return 0;
}

static void test_away(const char *backend, int hosts, late_reason how)
{
    stall_context *s = shared_page(sizeof *s);
    test_job c;

    s->backend = backend;
    s->hosts = hosts;
    s->how = how;
    test_job_start(&c, 3, run_away, s, "%s over %s, %d hosts",
                   how == STOPS  ? "stopped"
                   : how == DIES ? "dead"
                                 : "running",
                   backend, 1 + hosts);
    s->done = (uint32_t)c.pid[LATE];
    if (how == STOPS && !test_job_wait_stopped(&c, LATE, TEST_JOB_LIMIT_MS))
        test_job_give_up(&c, "rank %d did not stop", LATE);
    if (how == DIES)
        test_job_expect(&c, LATE, KILLED);
    shared_flag_raise(&s->away);
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 2, 0);
    if (how == STOPS)
        kill(c.pid[LATE], SIGCONT);
    shared_flag_raise(&s->back);
    if (how != DIES)
        test_job_expect(&c, LATE, 0);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

static void
a_stopped_rank_is_distinguished_from_a_dead_and_a_busy_one(void **state)
{
    for (late_reason h = STOPS; h <= DIES; h++) {
        test_away("shm", 0, h);
        if (h != COMPUTES) /* there it may be one that waits for it */
            test_away("tcp", 0, h);
        if (h != DIES)
            test_away("native", 1, h);
    }
}

/* ---- which rank is believed ---------------------------------------------- */

enum { HALTED = 2 };

/* The texts of its faults have the name of this group in them. */
static int join_child(test_job *c, int rank, const stall_context *s,
                      oar_group **g, oar_group **child)
{
    oar_group_opts o = oar_group_opts_init();

    if (rank == 0)
        setenv("OARSONG_HOST_ID", "another", 1);
    o.name = "fallen, stopped";
    o.backend = s->backend;
    o.timeout_ms = TEST_JOB_LIMIT_MS;
    RANK_CHECK(test_job_join(c, rank, &o, g) == OAR_OK);
    RANK_CHECK(oar_group_dup(*g, child) == OAR_OK);
    RANK_CHECK(oar_barrier(*child, NULL, NULL) == OAR_OK);
    return 0;
}

/* Rank 0, which sees no other rank's process, gives up on rank 1. Rank 1 waits
 * for the rank that is stopped, and sees that it is. */
static int run_believed(test_job *c, int rank, void *arg)
{
    oar_call_opts o = within(rank == 0 ? TIMEOUT_MS : TEST_JOB_LIMIT_MS);
    oar_error fault = { .size = sizeof fault };
    stall_context *s = arg;
    oar_group *g, *child;
    char x = 0;

    RANK_CHECK(join_child(c, rank, s, &g, &child) == 0);
    shared_flag_raise(&s->joined);
    RANK_CHECK(shared_flag_await(&s->joined, 3, TEST_JOB_LIMIT_MS));
    if (rank == HALTED)
        raise(SIGSTOP);
    else {
        RANK_CHECK(shared_flag_await(&s->away, 1, TEST_JOB_LIMIT_MS));
        RANK_CHECK(oar_recv(child, oar_span_of(&x, 1, OAR_U8), rank + 1, 1, &o,
                            NULL) == OAR_E_TIMEOUT);
        RANK_CHECK(oar_group_fault(child, &fault) == OAR_E_TIMEOUT);
        if (fault.peer != HALTED)
            fprintf(stderr, "rank %d: %s\n", rank, fault.text);
        RANK_CHECK(fault.peer == HALTED);
    }
    oar_group_destroy(child);
    oar_group_destroy(g);
    return 0;
}

static void test_believed(const char *backend)
{
    stall_context *s = shared_page(sizeof *s);
    test_job c;

    s->backend = backend;
    test_job_start(&c, 3, run_believed, s, "which rank is believed over %s",
                   backend);
    if (!test_job_wait_stopped(&c, HALTED, TEST_JOB_LIMIT_MS))
        test_job_give_up(&c, "rank %d did not stop", HALTED);
    shared_flag_raise(&s->away);
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, 0);
    kill(c.pid[HALTED], SIGCONT);
    test_job_expect(&c, HALTED, 0);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

static void a_rank_that_sees_which_one_is_stopped_is_believed(void **state)
{
    test_believed("native");
    test_believed("tcp");
}

/* ---- all of them at once ------------------------------------------------- */

/* Of five ranks 1 is dead, 2 stopped and 3 busy; the group goes on. */
static int run_missing(test_job *c, int rank, void *arg)
{
    oar_call_opts o = within(MISSED_MS);
    stall_context *s = arg;
    oar_status status;
    oar_group *g;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    if (rank == 1)
        raise(SIGKILL);
    if (rank == 2)
        raise(SIGSTOP);
    RANK_CHECK(shared_flag_await(rank == 3 ? &s->back : &s->away, 1,
                                 TEST_JOB_LIMIT_MS));
    status = oar_monitored_barrier(g, &o);
    if (rank == 0 || rank == 4) {
        RANK_CHECK(status == OAR_E_TIMEOUT);
        if (strstr(oar_last_error_text(), "3 of 5 ranks missing: 1 (dead), "
                                          "2 (stopped), 3 (running)") == NULL) {
            fprintf(stderr, "%s\n", oar_last_error_text());
            return 1;
        }
        RANK_CHECK(oar_group_fault(g, NULL) == OAR_OK);
        shared_flag_raise(&s->done);
        RANK_CHECK(shared_flag_await(&s->back, 1, TEST_JOB_LIMIT_MS));
    } else
        RANK_CHECK(status != OAR_OK);
    oar_group_destroy(g);
    return 0;
}

static void
a_monitored_barrier_reports_the_state_of_each_missing_rank(void **state)
{
    static const char *const backend[] = { "shm", "tcp" };

    for (int i = 0; i < 2; i++) {
        stall_context *s = shared_page(sizeof *s);
        test_job c;

        s->backend = backend[i];
        test_job_start(&c, 5, run_missing, s, "missing over %s", backend[i]);
        test_job_expect(&c, 1, KILLED);
        if (!test_job_wait_stopped(&c, 2, TEST_JOB_LIMIT_MS))
            test_job_give_up(&c, "rank 2 did not stop");
        shared_flag_raise(&s->away);
        if (!shared_flag_await(&s->done, 2, TEST_JOB_LIMIT_MS))
            test_job_give_up(&c, "no rank gave up");
        kill(c.pid[2], SIGCONT);
        shared_flag_raise(&s->back);
        for (int r = 0; r < 5; r++)
            if (r != 1)
                test_job_expect(&c, r, 0);
        test_job_end(&c);
        shared_page_free(s, sizeof *s);
    }
}

/* Where only the dead are missing, there is nothing to wait for. */
static int run_only_dead(test_job *c, int rank, void *arg)
{
    stall_context *s = arg;
    int64_t start;
    oar_group *g;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    RANK_CHECK(oar_monitored_barrier(g, NULL) == OAR_OK);
    if (rank == LATE)
        raise(SIGKILL);
    start = oari_now_ns();
    RANK_CHECK(oar_monitored_barrier(g, NULL) == OAR_E_PEER);
    RANK_CHECK(is_in_time(start, 2000));
    oar_group_destroy(g);
    return 0;
}

static void a_monitored_barrier_does_not_wait_for_the_dead(void **state)
{
    stall_context *s = shared_page(sizeof *s);
    test_job c;

    s->backend = "shm";
    test_job_start(&c, 3, run_only_dead, s, "only the dead are missing");
    test_job_expect(&c, LATE, KILLED);
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 2, 0);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

/* ---- stalls -------------------------------------------------------------- */

static struct {
    char line[1024];
    _Atomic int lines;
} warned;

static void listen_to(void *arg, oar_log_level level, const char *line)
{
    stall_context *s = arg;

    if (level != OAR_LOG_WARN || warned.lines++ != 0)
        return;
    snprintf(warned.line, sizeof warned.line, "%s", line);
    shared_flag_raise(&s->warned);
}

static int said(const char *text)
{
    if (strstr(warned.line, text) != NULL)
        return 1;
    fprintf(stderr, "not \"%s\": %s\n", text, warned.line);
    return 0;
}

/* Rank 1 comes when the others have complained: they do so once, and then the
 * operation is done as if nothing had been. */
static int run_stall(test_job *c, int rank, void *arg)
{
    stall_context *s = arg;
    float x = 1;
    oar_group *g;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    oar_log_to(listen_to, s, OAR_LOG_WARN);
    if (rank == LATE) {
        RANK_CHECK(shared_flag_await(&s->warned, 2, TEST_JOB_LIMIT_MS));
        usleep(3000 * STALL_MS); /* time for a second complaint */
    }
    RANK_CHECK(oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL,
                              NULL) == OAR_OK);
    RANK_CHECK(x == 3);
    if (rank != LATE) {
        RANK_CHECK(warned.lines == 1);
        RANK_CHECK(said("all_reduce at stall_test.c:"));
        RANK_CHECK(said("for 1 of 3 ranks: rank 1 ("));
        RANK_CHECK(s->hosts || said(", running"));
        RANK_CHECK(strcmp(s->backend, "shm") != 0 ||
                   said("its last operation was #1 barrier at "
                        "stall_test.c:"));
    }
    oar_group_destroy(g);
    return 0;
}

static void test_stall(const char *backend)
{
    stall_context *s = shared_page(sizeof *s);
    test_job c;

    s->backend = backend;
    test_job_start(&c, 3, run_stall, s, "a stall over %s", backend);
    for (int r = 0; r < 3; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

static void a_stall_is_reported_once_with_the_missing_ranks(void **state)
{
    test_stall("shm");
    test_stall("tcp");
}

/* The same of a probe that waits. */
static int run_stalled_probe(test_job *c, int rank, void *arg)
{
    stall_context *s = arg;
    oar_group_opts o = oar_group_opts_init();
    oar_span none = oar_span_of(NULL, 0, OAR_F32);
    oar_group *g;

    oar_log_to(listen_to, s, OAR_LOG_WARN);
    o.timeout_ms = TEST_JOB_LIMIT_MS;
    o.stall_ms = STALL_MS;
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
    warned.lines = 0;
    if (rank == LATE) {
        RANK_CHECK(shared_flag_await(&s->back, 1, TEST_JOB_LIMIT_MS));
        RANK_CHECK(oar_send(g, none, 0, 5, NULL, NULL) == OAR_OK);
    } else {
        RANK_CHECK(oar_probe_wait(g, LATE, 5, 4 * STALL_MS, NULL) ==
                   OAR_E_TIMEOUT);
        RANK_CHECK(warned.lines == 1);
        RANK_CHECK(said("probe at stall_test.c:"));
        RANK_CHECK(said("for 1 of 2 ranks: rank 1 ("));
        shared_flag_raise(&s->back);
        RANK_CHECK(oar_probe_wait(g, LATE, 5, TEST_JOB_LIMIT_MS, NULL) ==
                   OAR_OK);
    }
    oar_group_destroy(g);
    return 0;
}

static void a_stalled_probe_is_reported(void **state)
{
    stall_context *s = shared_page(sizeof *s);
    test_job c;

    test_job_start(&c, 2, run_stalled_probe, s, "a stalled probe");
    for (int r = 0; r < 2; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

/* ---- scopes -------------------------------------------------------------- */

/* Rank 1 is slow for longer than the timeout, and says so; then again, for
 * longer than it had said. */
static int be_slow(test_job *c, stall_context *s, oar_group *g)
{
    oar_call_opts o = within(TIMEOUT_MS);
    oar_timeout_scope *slow, *inner;

    JOB_CHECK(c, LATE,
              oar_timeout_scope_begin(g, "checkpoint", s->scope_ms, &slow) ==
                  OAR_OK);
    JOB_CHECK(c, LATE,
              oar_timeout_scope_begin(g, "inner", 1, &inner) == OAR_OK);
    oar_timeout_scope_end(inner);
    shared_flag_raise(&s->away);
    if (s->scope_ms > TIMEOUT_MS) {
        JOB_CHECK(c, LATE, shared_flag_await(&s->warned, 2, TEST_JOB_LIMIT_MS));
        usleep(1000 * 3 * TIMEOUT_MS); /* what the others put up with */
        JOB_CHECK(c, LATE, oar_barrier(g, &o, NULL) == OAR_OK);
    } else {
        JOB_CHECK(c, LATE, shared_flag_await(&s->done, 2, TEST_JOB_LIMIT_MS));
        JOB_CHECK(c, LATE, is_late(g));
    }
    oar_timeout_scope_end(slow);
    oar_group_destroy(g);
    return 0;
}

static int run_slow(test_job *c, int rank, void *arg)
{
    oar_call_opts o = within(TIMEOUT_MS);
    stall_context *s = arg;
    oar_group *g;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    oar_log_to(listen_to, s, OAR_LOG_WARN);
    if (rank == LATE)
        return be_slow(c, s, g);
    RANK_CHECK(shared_flag_await(&s->away, 1, TEST_JOB_LIMIT_MS));
    if (s->scope_ms > TIMEOUT_MS) {
        RANK_CHECK(oar_barrier(g, &o, NULL) == OAR_OK);
        RANK_CHECK(said("in scope \"checkpoint\" for "));
        RANK_CHECK(said("(up to 20 s)"));
    } else {
        RANK_CHECK(oar_barrier(g, &o, NULL) == OAR_E_TIMEOUT);
        shared_flag_raise(&s->done);
    }
    oar_group_destroy(g);
    return 0;
}

static void test_slow(const char *backend, int scope_ms)
{
    stall_context *s = shared_page(sizeof *s);
    test_job c;

    s->backend = backend;
    s->scope_ms = scope_ms;
    test_job_start(&c, 3, run_slow, s, "a scope of %d ms over %s", scope_ms,
                   backend);
    for (int r = 0; r < 3; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

static void the_others_are_patient_for_a_scope_and_no_longer(void **state)
{
    test_slow("shm", 20000);
    test_slow("shm", TIMEOUT_MS / 2);
    test_slow("tcp", 20000);
    test_slow("tcp", TIMEOUT_MS / 2);
}

/* Without a board: every rank that waits has said that it may. */
static oar_status wait_in_scope(oar_group *g, void *arg)
{
    oar_call_opts o = within(TIMEOUT_MS);
    oar_timeout_scope *slow;

    CHECK_OK(oar_barrier(g, NULL, NULL));
    CHECK_OK(oar_timeout_scope_begin(g, NULL, -1, &slow));
    if (oar_group_rank(g) == LATE)
        usleep(1000 * 3 * TIMEOUT_MS);
    CHECK_OK(oar_barrier(g, &o, NULL));
    oar_timeout_scope_end(slow);
    CHECK(oar_timeout_scope_begin(g, "", 0, &slow) == OAR_E_ARG);
    CHECK(oar_timeout_scope_begin(NULL, "", 1, &slow) == OAR_E_ARG);
    oar_timeout_scope_end(NULL);
    return OAR_OK;
}

static void a_scope_on_all_ranks_works_over_any_link(void **state)
{
    assert_int_equal(ranks_run("sim", 3, NULL, wait_in_scope, NULL), OAR_OK);
    assert_int_equal(ranks_run("tcp", 3, NULL, wait_in_scope, NULL), OAR_OK);
}

/* An argument is a pattern: only the tests that fit it are run. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_stopped_rank_is_distinguished_from_a_dead_and_a_busy_one),
        cmocka_unit_test(a_rank_that_sees_which_one_is_stopped_is_believed),
        cmocka_unit_test(
            a_monitored_barrier_reports_the_state_of_each_missing_rank),
        cmocka_unit_test(a_monitored_barrier_does_not_wait_for_the_dead),
        cmocka_unit_test(a_stall_is_reported_once_with_the_missing_ranks),
        cmocka_unit_test(a_stalled_probe_is_reported),
        cmocka_unit_test(the_others_are_patient_for_a_scope_and_no_longer),
        cmocka_unit_test(a_scope_on_all_ranks_works_over_any_link),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
