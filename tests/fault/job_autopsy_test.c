/* SPDX-License-Identifier: Apache-2.0 */
/* Autopsies of real jobs that go wrong in one way each, from recorder files
 * that the parent owns, as a launcher does, and from files in a folder. */
#include "support/test_job.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/autopsy.h>
#include <oarsong/p2p.h>

#include "base/clock.h"
#include "record/recorder_file.h"
#include "support/leak_check.h"
#include "support/last_error.h"

enum { RANKS = 4, COUNT = 1031, STALL_MS = 100, STOOD_US = 1200000 };

static int file[RANKS];
static char folder[FOLDER_PATH];
static int in_folder;      /* recorder files are there */
static shared_flag *flag;  /* raised: ranks that wait for it may end */
static shared_flag *ready; /* how many have ended the first six operations */

static test_job now; /* the one under test; its rest is ended in any case */

/* What a rank does when all have met. */
typedef int (*job_fn)(test_job *c, int rank, oar_group *g);

/* ---- ranks --------------------------------------------------------------- */

static oar_status reduce(oar_group *g)
{
    static float x[COUNT];
    oar_call_opts o = oar_call_opts_init();

    o.label = "gradients";
    return oar_all_reduce(g, oar_span_of(x, COUNT, OAR_F32), OAR_SUM, &o, NULL);
}

static void find_recorder_file(int rank)
{
    char text[16];

    if (in_folder) {
        setenv("OARSONG_RECORDER_DIR", folder, 1);
        return;
    }
    snprintf(text, sizeof text, "%d", file[rank]);
    setenv("OARSONG_RECORDER_FD", text, 1);
}

static int be_rank(test_job *c, int rank, void *arg)
{
    job_fn fn;
    oar_group *g = NULL;

    memcpy(&fn, arg, sizeof fn);
    find_recorder_file(rank);
    RANK_CHECK(test_job_join(c, rank, NULL, &g) == OAR_OK);
    for (int i = 0; i < 6; i++)
        RANK_CHECK(reduce(g) == OAR_OK);
    shared_flag_raise(ready);
    RANK_CHECK(shared_flag_await(ready, RANKS, TEST_JOB_LIMIT_MS));
    return fn(c, rank, g);
}

static int spin(void)
{
    shared_flag_raise(ready);
    while (atomic_load(flag) == 0)
        ;
    return 0;
}

static int die_before(test_job *c, int rank, oar_group *g)
{
    if (rank == 2)
        raise(SIGKILL);
    RANK_CHECK(reduce(g) == OAR_E_PEER);
    shared_flag_await(flag, 1, TEST_JOB_LIMIT_MS);
    oar_group_destroy(g);
    return 7;
}

static int stop_before(test_job *c, int rank, oar_group *g)
{
    if (rank == 2)
        raise(SIGSTOP);
    return reduce(g) != OAR_OK;
}

static int exit_before(test_job *c, int rank, oar_group *g)
{
    if (rank == 2)
        exit(0);
    RANK_CHECK(reduce(g) == OAR_E_PEER);
    return 7;
}

static int compute_before(test_job *c, int rank, oar_group *g)
{
    return rank == 2 ? spin() : reduce(g) != OAR_OK;
}

static int call_another(test_job *c, int rank, oar_group *g)
{
    if (rank == 1)
        oar_barrier(g, NULL, NULL);
    else
        reduce(g);
    shared_flag_await(flag, 1, TEST_JOB_LIMIT_MS);
    return 7;
}

static int receive_in_circle(test_job *c, int rank, oar_group *g)
{
    char x[17];

    return oar_recv(g, oar_span_of(x, 17, OAR_U8), (rank + 1) % RANKS, 7, NULL,
                    NULL) != OAR_OK;
}

/* Rank 1 sends nothing; what rank 0 received before does not hold it up. */
static int probes; /* for it before it receives it */
static int receive_nothing(test_job *c, int rank, oar_group *g)
{
    char x[17];
    oar_work *other;

    if (rank != 0)
        return spin();
    RANK_CHECK(oar_recv(g, oar_span_of(x, 17, OAR_U8), 3, 1, NULL, &other) ==
               OAR_OK);
    if (probes)
        return oar_probe_wait(g, 1, 99, 0, NULL) != OAR_OK;
    return oar_recv(g, oar_span_of(x, 17, OAR_U8), 1, 99, NULL, NULL) != OAR_OK;
}

/* 0 and 1 wait for the others, of which 2 waits for 3 in a group of their own;
 * ranks there are numbered the other way round. */
static int wait_in_part(test_job *c, int rank, oar_group *g)
{
    oar_group *part = NULL;

    RANK_CHECK(oar_group_split(g, rank / 2, -rank, &part) == OAR_OK);
    if (rank == 3)
        return spin();
    return reduce(rank == 2 ? part : g) != OAR_OK;
}

static int wait_for_work(test_job *c, int rank, oar_group *g)
{
    static float x[COUNT];
    oar_work *work;

    if (rank == 2)
        return spin();
    RANK_CHECK(oar_all_reduce(g, oar_span_of(x, COUNT, OAR_F32), OAR_MAX, NULL,
                              &work) == OAR_OK);
    return oar_work_wait(work) != OAR_OK;
}

static int do_nothing_wrong(test_job *c, int rank, oar_group *g)
{
    RANK_CHECK(reduce(g) == OAR_OK);
    shared_flag_raise(flag);
    shared_flag_await(flag, RANKS, TEST_JOB_LIMIT_MS);
    oar_group_destroy(g);
    return 0;
}

/* ---- the parent ---------------------------------------------------------- */

/* At one moment: stopped first, or the last would see the first one die. */
static void kill_all(test_job *c)
{
    for (int r = 0; r < RANKS; r++)
        if (c->pid[r] != 0)
            kill(c->pid[r], SIGSTOP);
    for (int r = 0; r < RANKS; r++)
        if (c->pid[r] != 0)
            test_job_wait_stopped(c, r, 1000);
    for (int r = 0; r < RANKS; r++)
        if (c->pid[r] != 0)
            kill(c->pid[r], SIGKILL);
    for (int r = 0; r < RANKS; r++)
        if (c->pid[r] != 0)
            test_job_wait(c, r, TEST_JOB_LIMIT_MS);
}

static int set_up(void **state)
{
    flag = shared_page(2 * sizeof *flag);
    ready = flag + 1;
    in_folder = 0;
    for (int r = 0; r < RANKS; r++)
        OK(oari_recorder_file_make(r, &file[r]));
    folder_make(folder);
    return 0;
}

static int tear_down(void **state)
{
    kill_all(&now);
    for (int r = 0; r < RANKS; r++)
        close(file[r]);
    folder_remove(folder);
    shared_page_free(flag, 2 * sizeof *flag);
    return 0;
}

static void start(test_job *c, job_fn fn, const char *name)
{
    static job_fn what;

    what = fn;
    test_job_start(c, RANKS, be_rank, &what, "%s", name);
}

static oar_status look_once(oar_autopsy **a)
{
    return in_folder ? oar_autopsy_open(folder, a)
                     : oar_autopsy_from_fds(file, RANKS, a);
}

static oar_autopsy *look(void)
{
    oar_autopsy *a = NULL;

    OK(look_once(&a));
    return a;
}

/* Until a rank waits, be it for the group to be made. */
static void await_stall(test_job *c, oar_stall *stall)
{
    int64_t deadline = oari_deadline(TEST_JOB_LIMIT_MS);
    int found = 0;

    while (!found) {
        oar_autopsy *a = NULL;

        if (look_once(&a) == OAR_OK)
            found = oar_autopsy_stall(a, STALL_MS, stall);
        oar_autopsy_destroy(a);
        if (!found && oari_now_ns() > deadline)
            test_job_give_up(c, "nothing waits");
    }
}

/* Until a rank waits in an operation. */
static void await_stalled_call(test_job *c, oar_stall *stall)
{
    if (!shared_flag_await(ready, RANKS, TEST_JOB_LIMIT_MS))
        test_job_give_up(c, "the ranks do not begin");
    await_stall(c, stall);
}

/* Until the text has this in it. */
static oar_autopsy *await_text(test_job *c, const char *part)
{
    int64_t deadline = oari_deadline(TEST_JOB_LIMIT_MS);

    for (;;) {
        oar_autopsy *a = NULL;
        char *text = NULL;
        int found;

        if (look_once(&a) == OAR_OK)
            OK(oar_autopsy_text(a, &text));
        found = text != NULL && strstr(text, part) != NULL;
        if (!found && oari_now_ns() > deadline)
            test_job_give_up(c, "no \"%s\" in\n%s", part,
                             text != NULL ? text : oar_last_error_text());
        oar_free(text);
        if (found)
            return a;
        oar_autopsy_destroy(a);
    }
}

static char *text_of(const oar_autopsy *a)
{
    char *text = NULL;

    OK(oar_autopsy_text(a, &text));
    return text;
}

#define assert_has(text, part) assert_has_at(__LINE__, text, part)
static void assert_has_at(int line, const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("line %d: no \"%s\" in\n%s", line, part, text);
}

#define assert_begins(text, part) assert_begins_at(__LINE__, text, part)
static void assert_begins_at(int line, const char *text, const char *part)
{
    if (strncmp(text, part, strlen(part)) != 0)
        fail_msg("line %d: it does not begin with \"%s\":\n%s", line, part,
                 text);
}

static void assert_not_in(const char *text, const char *part)
{
    if (strstr(text, part) != NULL)
        fail_msg("\"%s\" in\n%s", part, text);
}

/* The line of a table that begins with this rank and state has this too. */
static void assert_row(const char *text, int rank, const char *here,
                       const char *part)
{
    char begin[64], row[256];
    const char *at;

    snprintf(begin, sizeof begin, "\n  %-11d  %-8s", rank, here);
    at = strstr(text, begin);
    if (at == NULL)
        fail_msg("no row of rank %d that %s in\n%s", rank, here, text);
    snprintf(row, sizeof row, "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
    assert_has(row, part);
    assert_true(strlen(row) <= 120);
}

/* Until these ranks wait in the seventh operation, as the table has it. */
static oar_autopsy *await_waiting(test_job *c, const char *ranks)
{
    oar_autopsy *a = NULL;
    char row[64];

    for (; *ranks != 0; ranks++) {
        oar_autopsy_destroy(a);
        snprintf(row, sizeof row, "\n  %-11c  waits     all_reduce #7 ",
                 *ranks);
        a = await_text(c, row);
    }
    return a;
}

/* Returns the first line only. */
static void first_line(const char *text, char *line, size_t bytes)
{
    snprintf(line, bytes, "%.*s", (int)strcspn(text, "\n"), text);
}

/* ---- JSON ---------------------------------------------------------------- */

static json_t *json_of(const oar_autopsy *a, int last)
{
    char *text = NULL;
    json_error_t error;
    json_t *json;

    OK(last >= 0 ? oar_autopsy_json_last(a, last, &text)
                 : oar_autopsy_json(a, &text));
    json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (json == NULL)
        fail_msg("%s at line %d of\n%s", error.text, error.line, text);
    oar_free(text);
    assert_string_equal(json_string_value(json_object_get(json, "schema")),
                        "oarsong-autopsy");
    assert_int_equal(json_integer_value(json_object_get(json, "version")), 1);
    return json;
}

static const char *json_text(json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL ? text : "(none)";
}

static json_t *group_named(json_t *json, const char *name)
{
    json_t *groups = json_object_get(json, "groups"), *group;
    size_t i;

    json_array_foreach(groups, i, group) if (strcmp(json_text(group, "name"),
                                                    name) == 0) return group;
    fail_msg("no group %s", name);
    return NULL;
}

/* ---- tests --------------------------------------------------------------- */

static void a_killed_rank_is_named_with_the_call_it_missed(void **s)
{
    oar_autopsy *a;
    json_t *json, *group, *member;
    char who[128], *text;
    pid_t pid;

    start(&now, die_before, "rank 2 is killed before an all_reduce");
    pid = now.pid[2];
    test_job_expect(&now, 2, 128 + SIGKILL);
    oar_autopsy_destroy(await_text(&now, "\n  0            failed"));
    oar_autopsy_destroy(await_text(&now, "\n  1            failed"));
    a = await_text(&now, "\n  3            failed");
    OK(oar_autopsy_note(a, 2, "killed by SIGKILL"));
    text = text_of(a);
    snprintf(who, sizeof who,
             "pid %d) was killed by SIGKILL before all_reduce "
             "#7 at job_autopsy_test.c:",
             (int)pid);
    assert_begins(text, "rank 2 (host ");
    assert_has(text, who);
    assert_has(text, "ranks 0, 1 and 3 waited ");
    assert_has(text, "all_reduce #7, 1031 f32 (4.0 KiB), sum, at ");
    assert_has(text, "\"gradients\"");
    assert_row(text, 2, "missing", "all_reduce #6 at job_autopsy_test.c:");
    assert_row(text, 2, "missing", "killed by SIGKILL");
    assert_row(text, 0, "failed", "all_reduce #7 at job_autopsy_test.c:");
    assert_has(text, "fault: OAR_E_PEER");
    assert_true(oar_autopsy_wrong(a));
    assert_false(oar_autopsy_stall(a, 0, NULL)); /* no rank waits any more */
    json = json_of(a, 3);
    group = group_named(json, "world");
    member = json_array_get(json_object_get(group, "members"), 2);
    assert_string_equal(json_text(member, "here"), "missing");
    assert_int_equal(json_array_size(json_object_get(member, "records")), 3);
    assert_string_equal(json_text(json_object_get(member, "last"), "kind"),
                        "all_reduce");
    assert_int_equal(json_integer_value(json_object_get(
                         json_object_get(group, "operation"), "number")),
                     7);
    assert_string_equal(
        json_text(json_array_get(json_object_get(json, "ranks"), 2), "note"),
        "killed by SIGKILL");
    assert_string_equal(json_text(json_object_get(group, "fault"), "status"),
                        "OAR_E_PEER");
    json_decref(json);
    oar_free(text);
    oar_autopsy_destroy(a);
    shared_flag_raise(flag);
    for (int r = 0; r < RANKS; r++)
        if (r != 2)
            test_job_expect(&now, r, 7);
    test_job_end(&now);
}

/* The three of one kind: rank 2 has not come, and why. */
static void expect_missing(job_fn fn, const char *name, const char *verdict,
                           const char *process)
{
    oar_autopsy *a;
    oar_stall stall = oar_stall_init();
    char *text;

    start(&now, fn, name);
    if (fn == stop_before)
        assert_true(test_job_wait_stopped(&now, 2, TEST_JOB_LIMIT_MS));
    else
        assert_true(shared_flag_await(ready, RANKS + 1, TEST_JOB_LIMIT_MS));
    await_stalled_call(&now, &stall);
    assert_string_equal(stall.group, "world");
    assert_int_equal(stall.kind, OAR_COLL_ALL_REDUCE);
    assert_int_equal(stall.number, 7);
    assert_int_equal(stall.missing, 2);
    assert_int_equal(stall.missing_count, 1);
    assert_true(stall.rank != 2 && stall.waiting_ms >= STALL_MS);
    assert_has(stall.site, "job_autopsy_test.c:");
    assert_has(stall.text, verdict);
    a = await_waiting(&now, "013");
    text = text_of(a);
    assert_row(text, 2, "missing", "all_reduce #6 at job_autopsy_test.c:");
    assert_row(text, 2, "missing", process);
    assert_row(text, 0, "waits", "all_reduce #7 at job_autopsy_test.c:");
    assert_row(text, 1, "waits", "all_reduce #7");
    assert_row(text, 3, "waits", "all_reduce #7");
    oar_free(text);
    oar_autopsy_destroy(a);
    kill_all(&now);
    test_job_end(&now);
}

static void a_stopped_rank_is_not_taken_for_a_dead_one(void **state)
{
    expect_missing(stop_before, "rank 2 is stopped",
                   "is stopped before all_reduce #7", "stopped");
}

static void a_rank_that_computes_is_seen_to_run(void **state)
{
    expect_missing(compute_before, "rank 2 computes for ever",
                   "has not called all_reduce #7", "running");
}

static void a_wait_after_posting_is_a_stall_too(void **state)
{
    oar_stall stall = oar_stall_init();

    start(&now, wait_for_work, "ranks wait for a work");
    await_stalled_call(&now, &stall);
    assert_int_equal(stall.missing, 2);
    kill_all(&now);
    test_job_end(&now);
}

static void a_rank_that_exits_early_is_reported_as_exited(void **state)
{
    oar_autopsy *a;
    char *text;

    start(&now, exit_before, "rank 2 exits before an all_reduce");
    test_job_expect(&now, 2, 0);
    test_job_expect(&now, 0, 7);
    test_job_expect(&now, 1, 7);
    test_job_expect(&now, 3, 7);
    a = look();
    text = text_of(a);
    assert_has(text, "exited before all_reduce #7");
    assert_row(text, 2, "missing", "exited");
    oar_free(text);
    OK(oar_autopsy_note(a, 2, "exit code 0"));
    OK(oar_autopsy_note(a, 0, "exit code 7"));
    text = text_of(a);
    assert_row(text, 0, "failed", "exit code 7");
    oar_free(text);
    oar_autopsy_destroy(a);
    test_job_end(&now);
}

static void ranks_that_call_different_things_are_named_with_both(void **state)
{
    oar_autopsy *a;
    char *text, line[1100];

    start(&now, call_another, "rank 1 calls a barrier");
    oar_autopsy_destroy(await_text(&now, "ranks 0, 2 and 3 call all_reduce"));
    a = await_text(&now, "\n  1            failed");
    text = text_of(a);
    oar_autopsy_destroy(a);
    first_line(text, line, sizeof line);
    assert_begins(line, "ranks disagree in group \"world\": ");
    assert_has(line, "rank 1 calls barrier #7 at job_autopsy_test.c:");
    assert_has(line, "ranks 0, 2 and 3 call all_reduce #7 (1031 f32, sum) at "
                     "job_autopsy_test.c:");
    assert_has(text, "\n  1            failed    barrier #7");
    oar_free(text);
    shared_flag_raise(flag);
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&now, r, 7);
    test_job_end(&now);
}

static void ranks_that_wait_in_a_circle_are_a_deadlock(void **state)
{
    oar_autopsy *a;
    json_t *json;
    char *text, line[1100];

    start(&now, receive_in_circle, "each rank receives from the next");
    a = await_text(&now, "rank 3 waits for rank 0");
    json = json_of(a, 0);
    assert_int_equal(json_array_size(json_object_get(json, "circle")), RANKS);
    json_decref(json);
    text = text_of(a);
    first_line(text, line, sizeof line);
    assert_begins(line, "deadlock");
    assert_has(line, "rank 0 waits for rank 1 in recv #7 from rank 1, tag 7, "
                     "at job_autopsy_test.c:");
    assert_has(line, "rank 3 waits for rank 0");
    assert_row(text, 2, "waits", "recv #7 from rank 3, tag 7, at");
    oar_free(text);
    oar_autopsy_destroy(a);
    kill_all(&now);
    a = look(); /* and afterwards as well */
    text = text_of(a);
    assert_begins(text, "deadlock");
    oar_free(text);
    oar_autopsy_destroy(a);
    test_job_end(&now);
}

static void test_message(oar_coll kind, const char *says)
{
    oar_stall stall = oar_stall_init();

    probes = kind == OAR_COLL_PROBE;
    start(&now, receive_nothing, "rank 1 sends nothing");
    await_stalled_call(&now, &stall);
    assert_int_equal(stall.kind, kind);
    assert_int_equal(stall.rank, 0);
    assert_int_equal(stall.missing, 1);
    assert_int_equal(stall.number, 8);
    assert_has(stall.text, says);
    shared_flag_raise(flag);
    for (int r = 1; r < RANKS; r++)
        test_job_wait(&now, r, TEST_JOB_LIMIT_MS);
    kill_all(&now);
    test_job_end(&now);
}

static void a_receive_names_the_rank_it_waits_for(void **state)
{
    test_message(OAR_COLL_RECV,
                 "recv #8 from rank 1, tag 99, at job_autopsy_test.c:");
}

static void a_probe_names_the_rank_it_waits_for(void **state)
{
    test_message(OAR_COLL_PROBE,
                 "probe #8 from rank 1, tag 99, at job_autopsy_test.c:");
}

static void a_row_of_waits_is_followed_to_its_end(void **state)
{
    oar_autopsy *a;
    oar_stall stall = oar_stall_init();
    char *text, line[1100];

    start(&now, wait_in_part, "rank 3 is waited for in a part");
    assert_true(shared_flag_await(ready, RANKS + 1, TEST_JOB_LIMIT_MS));
    a = await_text(&now, "rank 3 (host "); /* a second later */
    assert_true(oar_autopsy_stall(a, STALL_MS, &stall));
    text = text_of(a);
    first_line(text, line, sizeof line);
    assert_begins(line, "rank 3 (host ");
    assert_has(line, "has not called all_reduce #1");
    assert_has(line, "rank 2 has waited ");
    assert_has(stall.text, "rank 3 (host ");
    assert_has(text, "group \"world\", 4 ranks");
    assert_has(text, "group \"world.1c1\", 2 ranks");
    assert_row(text, 3, "missing", "running");
    oar_free(text);
    oar_autopsy_destroy(a);
    kill_all(&now);
    test_job_end(&now);
}

static int join_without_last(test_job *c, int rank, void *arg)
{
    oar_group *g = NULL;

    find_recorder_file(rank);
    if (rank == 3)
        return spin();
    return test_job_join(c, rank, NULL, &g) != OAR_OK;
}

static void a_group_that_is_not_made_names_the_missing_rank(void **state)
{
    oar_stall stall = oar_stall_init();
    oar_autopsy *a;
    char *text;

    test_job_start(&now, RANKS, join_without_last, NULL,
                   "rank 3 does not join");
    await_stall(&now, &stall);
    assert_int_equal(stall.kind, OAR_COLL_COUNT);
    assert_int_equal(stall.missing, 3);
    assert_has(stall.text, "rank 3 has not created a group yet");
    assert_has(stall.text, "\"world\"");
    a = look();
    text = text_of(a);
    assert_has(text, ": being created");
    assert_row(text, 3, "not yet", "no call yet");
    oar_free(text);
    oar_autopsy_destroy(a);
    kill_all(&now);
    test_job_end(&now);
}

static void after_all_are_killed_the_table_is_still_right(void **state)
{
    for (in_folder = 0; in_folder < 2; in_folder++) {
        oar_autopsy *a;
        pid_t pid;
        char *text, here[64];

        atomic_store(ready, 0);
        start(&now, compute_before, "all are killed");
        oar_autopsy_destroy(await_waiting(&now, "013"));
        usleep(STOOD_US); /* then it does not matter which died first */
        pid = now.pid[2];
        kill_all(&now);
        a = look();
        text = text_of(a);
        assert_begins(text, "rank 2 (host ");
        /* or "died before", if it happened to be the first that was killed */
        if (strstr(text, "died before all_reduce #7 at ") == NULL)
            assert_has(text, "had not called all_reduce #7 at ");
        assert_has(text, "ranks 0, 1 and 3 waited for it");
        assert_row(text, 0, "waits", "dead");
        assert_row(text, 2, "missing", "all_reduce #6");
        snprintf(here, sizeof here, ":%d", (int)pid);
        assert_row(text, 2, "missing", here);
        assert_true(oar_autopsy_wrong(a));
        assert_false(oar_autopsy_stall(a, 0, NULL));
        oar_free(text);
        oar_autopsy_destroy(a);
        test_job_end(&now);
    }
}

/* As a launcher does it: looked at while they hang, read much later. */
static void saved_files_give_the_same_text_when_all_ranks_are_gone(void **state)
{
    oar_autopsy *a, *again = NULL;
    char *before, *after;

    start(&now, stop_before, "saved while rank 2 is stopped");
    assert_true(test_job_wait_stopped(&now, 2, TEST_JOB_LIMIT_MS));
    a = await_waiting(&now, "013");
    OK(oar_autopsy_note(a, 1, "killed by SIGSEGV"));
    before = text_of(a);
    OK(oar_autopsy_save(a, folder));
    oar_autopsy_destroy(a);
    kill_all(&now);
    assert_int_equal(folder_entries(folder), RANKS);
    OK(oar_autopsy_open(folder, &again));
    after = text_of(again);
    assert_string_equal(before, after);
    assert_row(after, 2, "missing", "stopped");
    assert_row(after, 1, "waits", "killed by SIGSEGV");
    oar_free(before);
    oar_free(after);
    oar_autopsy_destroy(again);
    test_job_end(&now);
}

static void
a_rank_without_a_recorder_file_is_unknown_and_not_left_out(void **state)
{
    oar_autopsy *a = NULL;
    oar_stall stall = oar_stall_init();
    json_t *json, *rank;
    char *text;
    int some[RANKS];

    start(&now, compute_before, "rank 2 has no recorder file");
    oar_autopsy_destroy(await_waiting(&now, "013"));
    await_stalled_call(&now, &stall);
    memcpy(some, file, sizeof some);
    some[2] = -1;
    OK(oar_autopsy_from_fds(some, RANKS, &a));
    assert_true(oar_autopsy_stall(a, STALL_MS, &stall));
    assert_int_equal(stall.missing, 2);
    assert_has(stall.text, "rank 2, about which nothing is known");
    text = text_of(a);
    assert_row(text, 2, "unknown", "-");
    assert_has(text, "rank 2 is unknown: it has no recorder file here");
    json = json_of(a, 0);
    rank = json_array_get(json_object_get(json, "ranks"), 2);
    assert_true(json_is_false(json_object_get(rank, "known")));
    json_decref(json);
    oar_free(text);
    oar_autopsy_destroy(a);
    kill_all(&now);
    test_job_end(&now);
}

static void a_job_without_faults_is_reported_as_such(void **state)
{
    oar_autopsy *a;
    char *text;

    start(&now, do_nothing_wrong, "nothing is wrong");
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&now, r, 0);
    a = look();
    text = text_of(a);
    assert_has(text, "nothing is wrong: 4 ranks");
    assert_not_in(text, "group \"world\"");
    assert_false(oar_autopsy_wrong(a));
    oar_free(text);
    oar_autopsy_destroy(a);
    test_job_end(&now);
}

/* ---- the command --------------------------------------------------------- */

/* Its exit code, and what it printed. */
static int run_command(const char *args, char *out, size_t bytes)
{
    const char *build = getenv("OARSONG_BUILD_DIR");
    char line[512];
    size_t n;
    FILE *pipe;
    int how;

    snprintf(line, sizeof line, "'%s/bin/oarsong' autopsy %s 2>&1", build,
             args);
    pipe = popen(line, "r");
    assert_non_null(pipe);
    n = fread(out, 1, bytes - 1, pipe);
    out[n] = 0;
    how = pclose(pipe);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}

static void
the_command_reads_a_folder_and_returns_whether_all_is_well(void **state)
{
    static char out[1 << 18];
    const char *build = getenv("OARSONG_BUILD_DIR");
    char args[FOLDER_PATH + 32], path[512];
    oar_stall stall = oar_stall_init();
    json_t *json;

    snprintf(path, sizeof path, "%s/bin/oarsong", build != NULL ? build : "");
    if (access(path, X_OK) != 0)
        skip();
    in_folder = 1;
    start(&now, do_nothing_wrong, "a job that ends well");
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&now, r, 0);
    test_job_end(&now);
    assert_int_equal(run_command(folder, out, sizeof out), 0);
    assert_begins(out, "nothing is wrong: 4 ranks");
    atomic_store(ready, 0);
    atomic_store(flag, 0);
    start(&now, compute_before, "a job that hangs");
    await_stalled_call(&now, &stall);
    usleep(STOOD_US);
    kill_all(&now);
    test_job_end(&now);
    assert_int_equal(run_command(folder, out, sizeof out), 1);
    assert_begins(out, "rank 2 (host ");
    snprintf(args, sizeof args, "%s --json --last 2", folder);
    assert_int_equal(run_command(args, out, sizeof out), 1);
    json = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(json);
    assert_begins(json_text(json, "verdict"), "rank 2 (host ");
    json_decref(json);
    assert_int_equal(run_command("", out, sizeof out), 2);
    assert_int_equal(run_command("/no/such/folder", out, sizeof out), 2);
    assert_has(out, "/no/such/folder");
    assert_int_equal(run_command("--last 2 x", out, sizeof out), 2);
    assert_int_equal(run_command("--help", out, sizeof out), 0);
    assert_has(out, "--json");
}

#define RECORDER_FILES(test) \
    cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        RECORDER_FILES(a_killed_rank_is_named_with_the_call_it_missed),
        RECORDER_FILES(a_stopped_rank_is_not_taken_for_a_dead_one),
        RECORDER_FILES(a_rank_that_computes_is_seen_to_run),
        RECORDER_FILES(a_wait_after_posting_is_a_stall_too),
        RECORDER_FILES(a_rank_that_exits_early_is_reported_as_exited),
        RECORDER_FILES(ranks_that_call_different_things_are_named_with_both),
        RECORDER_FILES(ranks_that_wait_in_a_circle_are_a_deadlock),
        RECORDER_FILES(a_receive_names_the_rank_it_waits_for),
        RECORDER_FILES(a_probe_names_the_rank_it_waits_for),
        RECORDER_FILES(a_row_of_waits_is_followed_to_its_end),
        RECORDER_FILES(a_group_that_is_not_made_names_the_missing_rank),
        RECORDER_FILES(after_all_are_killed_the_table_is_still_right),
        RECORDER_FILES(saved_files_give_the_same_text_when_all_ranks_are_gone),
        RECORDER_FILES(
            a_rank_without_a_recorder_file_is_unknown_and_not_left_out),
        RECORDER_FILES(a_job_without_faults_is_reported_as_such),
        RECORDER_FILES(
            the_command_reads_a_folder_and_returns_whether_all_is_well),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
