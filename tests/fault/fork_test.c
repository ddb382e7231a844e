/* SPDX-License-Identifier: Apache-2.0 */
/* Fork while operations run. A child has no part in its parent's groups:
 * whatever it calls, the parent and its peers go on; it does not have the
 * shared memory; and while it lives it does not hide its parent's death.
 */
#include "support/test_job.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <oarsong/p2p.h>
#include <oarsong/recorder.h>
#include <oarsong/shared.h>

#include "base/clock.h"
#include "support/operation_case.h"

enum { NOTICED_MS = 2000, COUNT = 20000, FORKS = 300, KINDS = 6 };

/* How a child ended, as test_job_wait says it. */
static int wait_for(pid_t pid)
{
    int64_t deadline = oari_deadline(TEST_JOB_LIMIT_MS);
    int how;

    while (oari_now_ns() < deadline) {
        if (waitpid(pid, &how, WNOHANG) == pid)
            return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
        nanosleep(&(struct timespec){ 0, 200000 }, NULL);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return TEST_JOB_LATE;
}

/* ---- what a child may call ----------------------------------------------- */

static void never(void *arg, oar_status status)
{
    abort();
}

static int try_operations(test_job *c, oar_group *g)
{
    float x[3] = { 0 };
    oar_span s = oar_span_of(x, 3, OAR_F32);
    oar_work *work = NULL;

    for (int async = 0; async < 2; async++) {
        oar_work **w = async ? &work : NULL;
        JOB_CHECK(c, 0, oar_barrier(g, NULL, w) == OAR_E_STATE);
        JOB_CHECK(c, 0, oar_broadcast(g, s, 0, NULL, w) == OAR_E_STATE);
        JOB_CHECK(c, 0, oar_all_reduce(g, s, OAR_SUM, NULL, w) == OAR_E_STATE);
        JOB_CHECK(c, 0, oar_send(g, s, 1, 1, NULL, w) == OAR_E_STATE);
        JOB_CHECK(c, 0, oar_recv(g, s, 1, 1, NULL, w) == OAR_E_STATE);
    }
    JOB_CHECK(c, 0, work == NULL);
    return 0;
}

static int try_everything(test_job *c, oar_group *g, oar_work *pending)
{
    oar_error fault = { .size = sizeof fault };
    oar_record record = oar_record_init();
    int done = 0;

    JOB_CHECK(c, 0, oar_group_rank(g) == 0);
    JOB_CHECK(c, 0, oar_group_size(g) == c->ranks);
    JOB_CHECK(c, 0, strcmp(oar_group_backend(g), "shm") == 0);
    JOB_CHECK(c, 0, strcmp(oar_group_name(g), "world") == 0);
    JOB_CHECK(c, 0, oar_group_fault(g, &fault) == OAR_E_STATE);
    JOB_CHECK(c, 0, oar_group_abort(g, "a child") == OAR_E_STATE);
    JOB_CHECK(c, 0, oar_recorder_read(g, 0, 0, &record) == OAR_E_STATE);
    JOB_CHECK(c, 0, oar_recorder_read(g, 1, 0, &record) == OAR_E_STATE);
    JOB_CHECK(c, 0, oar_work_wait(pending) == OAR_E_STATE);
    JOB_CHECK(c, 0, oar_work_test(pending, &done) == OAR_E_STATE);
    JOB_CHECK(c, 0, oar_work_then(pending, never, NULL) == OAR_E_STATE);
    JOB_CHECK(c, 0, oar_work_wait_all(1, &pending) == OAR_E_STATE);
    if (try_operations(c, g) != 0)
        return 1;
    oar_work_release(pending);
    oar_group_destroy(g);
    return 0;
}

static oar_status sum_of_two(oar_group *g, void *arg)
{
    float x = 1;

    CHECK_OK(
        oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL, NULL));
    CHECK(x == 2);
    return OAR_OK;
}

/* Groups and shared memory of its own. */
static int make_own_group(test_job *c)
{
    void *memory = NULL;

    JOB_CHECK(c, 0, oar_shared_alloc(COUNT, &memory) == OAR_OK);
    memset(memory, 7, COUNT);
    JOB_CHECK(c, 0, oar_shared_reachable(memory, COUNT));
    JOB_CHECK(c, 0, oar_sim_run(2, sum_of_two, NULL) == OAR_OK);
    oar_shared_free(memory);
    return 0;
}

/* ---- forking in mid-run -------------------------------------------------- */

typedef struct forking_thread {
    test_job *c;
    oar_group *group;
    _Atomic int done, failed;
} forking_thread;

/* A child that does nothing, one that tries everything, one that starts
 * afresh; the last two leave by exit or by _exit. */
static _Noreturn void be_child(forking_thread *f, oar_work *pending, int number)
{
    int code = 0;

    prctl(PR_SET_PDEATHSIG,
          SIGKILL); /* it must not outlive a test that fails */
    if (number % 3 == 1)
        code = try_everything(f->c, f->group, pending);
    if (number % 3 == 2)
        code = make_own_group(f->c);
    if (number % 2 == 0)
        exit(code);
    _exit(code);
}

/* As often as there is time for: a sanitizer makes forking slow. */
static void *fork_often(void *arg)
{
    forking_thread *f = arg;
    int64_t deadline = oari_deadline(TEST_JOB_LIMIT_MS / 2);
    int i = 0;
    float x;
    oar_work *pending = NULL;

    if (oar_recv(f->group, oar_span_of(&x, 1, OAR_F32), 1, 99, NULL,
                 &pending) != OAR_OK)
        f->failed++;
    for (; i < FORKS && !f->failed && oari_now_ns() < deadline; i++) {
        pid_t pid = fork();
        if (pid == 0)
            be_child(f, pending, i);
        if (pid < 0 || wait_for(pid) != 0)
            f->failed++;
    }
    if (i < KINDS)
        f->failed++;
    f->done = 1;
    if (pending == NULL || oar_work_wait(pending) != OAR_OK || x != 5)
        f->failed++;
    oar_work_release(pending);
    return NULL;
}

static int sum_once(test_job *c, int rank, oar_group *g, float *x, int round)
{
    int n = c->ranks;
    oar_work *work = NULL;

    for (int i = 0; i < COUNT; i++)
        x[i] = (float)(rank + i % 50 + round % 7);
    RANK_CHECK(oar_all_reduce(g, oar_span_of(x, COUNT, OAR_F32), OAR_SUM, NULL,
                              round % 2 ? &work : NULL) == OAR_OK);
    if (work != NULL)
        RANK_CHECK(oar_work_wait(work) == OAR_OK);
    oar_work_release(work);
    for (int i = 0; i < COUNT; i++)
        RANK_CHECK(x[i] == (float)(n * (n - 1) / 2 + n * (i % 50 + round % 7)));
    return 0;
}

/* Sums until rank 0 has forked enough; what is freed and taken again meanwhile
 * holds the lock that fork has to find open. */
static int sum_while_forking(test_job *c, int rank, oar_group *g,
                             forking_thread *f)
{
    int32_t stop = 0;
    void *memory, *other;

    RANK_CHECK(oar_shared_alloc(COUNT * 4, &memory) == OAR_OK);
    for (int round = 0; !stop; round++) {
        if (sum_once(c, rank, g, memory, round) != 0)
            return 1;
        RANK_CHECK(oar_shared_alloc(100, &other) == OAR_OK);
        oar_shared_free(other);
        stop = rank == 0 && f->done;
        RANK_CHECK(oar_all_reduce(g, oar_span_of(&stop, 1, OAR_I32), OAR_MAX,
                                  NULL, NULL) == OAR_OK);
    }
    oar_shared_free(memory);
    return 0;
}

static int run_forking(test_job *c, int rank, void *arg)
{
    forking_thread f = { .c = c };
    oar_group *g;
    pthread_t thread;
    float five = 5;
    int failed;

    RANK_CHECK(test_job_join(c, rank, NULL, &g) == OAR_OK);
    f.group = g;
    if (rank == 0)
        RANK_CHECK(pthread_create(&thread, NULL, fork_often, &f) == 0);
    failed = sum_while_forking(c, rank, g, &f);
    if (rank == 1)
        RANK_CHECK(oar_send(g, oar_span_of(&five, 1, OAR_F32), 0, 99, NULL,
                            NULL) == OAR_OK);
    if (rank == 0)
        pthread_join(thread, NULL);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    oar_group_destroy(g);
    return failed || f.failed;
}

static void forking_in_mid_run_disturbs_no_rank(void **state)
{
    for (int ranks = 2; ranks <= 3; ranks++) {
        test_job c;
        test_job_start(&c, ranks, run_forking, NULL, "forking, %d ranks",
                       ranks);
        for (int r = 0; r < ranks; r++)
            test_job_expect(&c, r, 0);
        test_job_end(&c);
    }
}

/* ---- a child that lives on ----------------------------------------------- */

typedef struct child_case {
    int by_hand;  /* the child is made without fork handlers */
    int destroys; /* rank 0 leaves in good order instead of dying */
    pid_t child;
    shared_flag over;
} child_case;

static void die(void *arg)
{
    raise(SIGKILL);
}

static int run_child_case(test_job *c, int rank, void *arg)
{
    child_case *l = arg;
    oar_group *g;
    int64_t start;

    RANK_CHECK(test_job_join(c, rank, NULL, &g) == OAR_OK);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    if (rank == 0) {
        pid_t pid = l->by_hand ? _Fork() : fork();
        if (pid == 0)
            alarm(2 * TEST_JOB_LIMIT_MS / 1000); /* should the test fail */
        while (pid == 0)
            pause();
        l->child = pid;
        if (!l->destroys)
            die(NULL);
        oar_group_destroy(g);
        return !shared_flag_await(&l->over, 1, TEST_JOB_LIMIT_MS);
    }
    start = oari_now_ns();
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_E_PEER);
    RANK_CHECK(is_in_time(start, NOTICED_MS));
    RANK_CHECK(oar_last_error()->peer == 0);
    shared_flag_raise(&l->over);
    oar_group_destroy(g);
    return 0;
}

static void leave_a_child(int by_hand, int destroys)
{
    child_case *l = shared_page(sizeof *l);
    test_job c;
    int alive;

    l->by_hand = by_hand;
    l->destroys = destroys;
    test_job_start(&c, 2, run_child_case, l, "a child lives on (%s, %s)",
                   by_hand ? "no handlers" : "fork",
                   destroys ? "its parent leaves" : "its parent dies");
    test_job_expect(&c, 0, destroys ? 0 : 128 + SIGKILL);
    test_job_expect(&c, 1, 0);
    if (l->child <= 0)
        test_job_give_up(&c, "there is no child");
    alive = waitpid(l->child, NULL, WNOHANG) == 0; /* it is ours by now */
    kill(l->child, SIGKILL);
    test_job_end(&c);
    assert_true(alive);
    shared_page_free(l, sizeof *l);
}

static void a_living_child_does_not_hide_its_parents_death(void **state)
{
    leave_a_child(0, 0);
    leave_a_child(0, 1);
}

/* Such a child holds every descriptor of its parent: the pidfd tells. */
static void a_child_without_fork_handlers_hides_no_death_either(void **state)
{
    leave_a_child(1, 0);
    leave_a_child(1, 1);
}

/* ---- what a child does not have ------------------------------------------ */

static int maps_ours(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int found = 0;

    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        found |= strstr(line, "memfd:oarsong") != NULL;
    if (maps != NULL)
        fclose(maps);
    return found;
}

static int faults(const volatile char *memory)
{
    pid_t pid = fork();

    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(memory[0] != 0);
    }
    return wait_for(pid) == 128 + SIGSEGV;
}

/* before: descriptors that the process had before it had a group. The folder of
 * the store, which the group keeps, is the only one more: a store may be used
 * in a child. */
static int look_at_child(test_job *c, int rank, int before, const char *memory)
{
    pid_t pid = fork();

    if (pid == 0) {
        int ok = !maps_ours() && open_descriptors() == before + 1 &&
                 faults(memory) && faults(memory + COUNT - 1) &&
                 !oar_shared_reachable(memory, 1);
        _exit(!ok);
    }
    RANK_CHECK(pid > 0 && wait_for(pid) == 0);
    return 0;
}

static int run_bare(test_job *c, int rank, void *arg)
{
    int before = open_descriptors();
    oar_group *g;
    oar_span s;
    void *memory;

    RANK_CHECK(oar_shared_alloc(COUNT, &memory) == OAR_OK);
    RANK_CHECK(test_job_join(c, rank, NULL, &g) == OAR_OK);
    s = oar_span_of(memory, COUNT / 4, OAR_F32);
    RANK_CHECK(oar_all_reduce(g, s, OAR_SUM, NULL, NULL) == OAR_OK);
    if (look_at_child(c, rank, before, memory) != 0)
        return 1;
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    if (rank == 0) /* rank 1 does not come: the pages are replaced */
        RANK_CHECK(oar_all_reduce(g, s, OAR_SUM,
                                  OAR_OPTS(oar_call_opts, .timeout_ms = 50),
                                  NULL) != OAR_OK);
    if (rank == 0)
        RANK_CHECK(!oar_shared_reachable(memory, COUNT));
    if (look_at_child(c, rank, before, memory) != 0)
        return 1;
    oar_group_destroy(g);
    oar_shared_free(memory);
    return 0;
}

static void a_child_has_none_of_the_shared_memory(void **state)
{
    test_job c;

    test_job_start(&c, 2, run_bare, NULL, "what a child has");
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, 0);
    test_job_end(&c);
}

/* An argument is a pattern: only the tests that fit it are run. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forking_in_mid_run_disturbs_no_rank),
        cmocka_unit_test(a_living_child_does_not_hide_its_parents_death),
        cmocka_unit_test(a_child_without_fork_handlers_hides_no_death_either),
        cmocka_unit_test(a_child_has_none_of_the_shared_memory),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
