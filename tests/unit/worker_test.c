/* SPDX-License-Identifier: Apache-2.0 */
/* Workers: order, bounds, steps, signals, and how they begin and end. */
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/worker.h"
#include "support/leak_check.h"
#include "support/last_error.h"

static const int64_t MS = 1000000; /* in ns */

static oari_worker *worker_of(const oari_worker_opts *opts)
{
    oari_worker *worker;

    OK(oari_worker_create(opts, &worker));
    return worker;
}

/* ---- jobs ---------------------------------------------------------------- */

/* What the jobs of a test have done. */
typedef struct job_log {
    atomic_int count;
    int number[64];
    sem_t begun, may_go; /* of jobs that wait for the test */
} job_log;

typedef struct logged_job {
    oari_job job;
    job_log *log;
    int number;
} logged_job;

static job_log *log_open(job_log *d)
{
    memset(d, 0, sizeof *d);
    sem_init(&d->begun, 0, 0);
    sem_init(&d->may_go, 0, 0);
    return d;
}

static void log_job(void *arg)
{
    logged_job *t = arg;

    t->log->number[atomic_fetch_add(&t->log->count, 1)] = t->number;
}

static void wait_and_log_job(void *arg)
{
    logged_job *t = arg;

    sem_post(&t->log->begun);
    sem_wait(&t->log->may_go);
    log_job(arg);
}

static oari_job *job_of(logged_job *t, job_log *d, int number,
                        void (*run)(void *arg))
{
    *t = (logged_job){ .job = { .run = run, .arg = t },
                       .log = d,
                       .number = number };
    return &t->job;
}

static void jobs_are_done_in_order_and_before_the_end(void **state)
{
    leak_check before = leak_check_begin();
    oari_worker *w = worker_of(&(oari_worker_opts){ .name = "order" });
    job_log d;
    logged_job t[64];

    log_open(&d);
    for (int i = 0; i < 64; i++)
        OK(oari_worker_post(
            w, job_of(&t[i], &d, i, i == 0 ? wait_and_log_job : log_job),
            OARI_NEVER));
    sem_wait(&d.begun);
    assert_int_equal(atomic_load(&d.count), 0);
    sem_post(&d.may_go);
    oari_worker_destroy(w, NULL);
    assert_int_equal(atomic_load(&d.count), 64);
    for (int i = 0; i < 64; i++)
        assert_int_equal(d.number[i], i);
    leak_check_end(&before);
}

/* Three jobs that all wait need three threads; a fourth has to wait. */
static void a_pool_does_as_many_jobs_at_once_as_it_has_threads(void **state)
{
    oari_worker *w =
        worker_of(&(oari_worker_opts){ .name = "pool", .threads = 3 });
    job_log d;
    logged_job t[4];
    struct timespec soon;

    log_open(&d);
    for (int i = 0; i < 4; i++)
        OK(oari_worker_post(w, job_of(&t[i], &d, i, wait_and_log_job), 0));
    for (int i = 0; i < 3; i++)
        sem_wait(&d.begun);
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec += 50 * MS;
    soon.tv_sec += soon.tv_nsec / 1000000000;
    soon.tv_nsec %= 1000000000;
    assert_int_equal(sem_timedwait(&d.begun, &soon), -1);
    for (int i = 0; i < 4; i++)
        sem_post(&d.may_go);
    oari_worker_destroy(w, NULL);
    assert_int_equal(atomic_load(&d.count), 4);
}

/* ---- a full queue -------------------------------------------------------- */

/* A worker with two jobs that wait behind one that is held. */
static oari_worker *full_worker(job_log *d, logged_job t[3])
{
    oari_worker *w =
        worker_of(&(oari_worker_opts){ .name = "full", .capacity = 2 });

    log_open(d);
    OK(oari_worker_post(w, job_of(&t[0], d, 0, wait_and_log_job), 0));
    sem_wait(&d->begun);
    for (int i = 1; i < 3; i++)
        OK(oari_worker_post(w, job_of(&t[i], d, i, log_job), 0));
    return w;
}

static void a_full_queue_refuses_or_gives_up(void **state)
{
    job_log d;
    logged_job t[4];
    oari_worker *w = full_worker(&d, t);
    int64_t since = oari_now_ns();

    job_of(&t[3], &d, 3, log_job);
    assert_fails_with(oari_worker_post(w, &t[3].job, 0), OAR_E_TIMEOUT,
                      "full: 2 jobs are waiting already");
    assert_fails_with(oari_worker_post(w, &t[3].job, since + 30 * MS),
                      OAR_E_TIMEOUT, "2 jobs");
    assert_true(oari_now_ns() >= since + 30 * MS);
    sem_post(&d.may_go);
    OK(oari_worker_post(w, &t[3].job, OARI_NEVER)); /* one leaves, some time */
    oari_worker_destroy(w, NULL);
    assert_int_equal(atomic_load(&d.count), 4);
}

typedef struct job_poster {
    oari_worker *worker;
    logged_job *task;
    oar_status status;
} job_poster;

static void *post_and_wait(void *arg)
{
    job_poster *p = arg;

    p->status = oari_worker_post(p->worker, &p->task->job, OARI_NEVER);
    sem_post(&p->task->log->begun);
    return NULL;
}

/* Of the last job that is dropped: the poster has been sent away by now, and
 * the job that is held may end. */
static void drop(void *arg)
{
    logged_job *t = arg;

    t->number += 100;
    log_job(t);
    if (t->number == 102) {
        sem_wait(&t->log->begun);
        sem_post(&t->log->may_go);
    }
}

static void the_end_drops_what_waits_and_sends_posters_away(void **state)
{
    static const int wanted[] = { 101, 102, 0 };
    leak_check before = leak_check_begin();
    job_log d;
    logged_job t[4];
    oari_worker *w = full_worker(&d, t);
    job_poster p = { w, &t[3], OAR_OK };
    pthread_t thread;

    job_of(&t[3], &d, 3, log_job);
    assert_int_equal(pthread_create(&thread, NULL, post_and_wait, &p), 0);
    usleep(20000); /* it waits for room by now; if not it is refused as well */
    oari_worker_destroy(w, drop);
    pthread_join(thread, NULL);
    assert_int_equal(p.status, OAR_E_STATE);
    assert_int_equal(atomic_load(&d.count), 3);
    assert_memory_equal(d.number, wanted, sizeof wanted);
    leak_check_end(&before);
}

/* ---- steps --------------------------------------------------------------- */

typedef struct step_counter {
    atomic_int steps, left; /* how often it wants to be called again */
    int64_t pause_ns;
    sem_t stepped;
} step_counter;

static int64_t count_step(void *arg)
{
    step_counter *c = arg;
    int again = atomic_load(&c->left) > 0;

    atomic_fetch_add(&c->steps, 1);
    if (again)
        atomic_fetch_sub(&c->left, 1);
    sem_post(&c->stepped);
    return again ? oari_now_ns() + c->pause_ns : OARI_NEVER;
}

static oari_worker *counter_start(step_counter *c, int left, int64_t pause_ns)
{
    memset(c, 0, sizeof *c);
    atomic_store(&c->left, left);
    c->pause_ns = pause_ns;
    sem_init(&c->stepped, 0, 0);
    return worker_of(
        &(oari_worker_opts){ .name = "steps", .step = count_step, .arg = c });
}

static void a_step_comes_when_it_said(void **state)
{
    step_counter c;
    int64_t since = oari_now_ns();
    oari_worker *w = counter_start(&c, 3, 10 * MS);

    for (int i = 0; i < 4; i++)
        sem_wait(&c.stepped);
    assert_true(oari_now_ns() - since >= 30 * MS);
    usleep(30000); /* now it sleeps */
    assert_int_equal(atomic_load(&c.steps), 4);
    oari_worker_destroy(w, NULL);
    assert_int_equal(atomic_load(&c.steps), 5); /* the last look */
}

static void a_step_comes_after_a_job_and_when_woken(void **state)
{
    step_counter c;
    oari_worker *w = counter_start(&c, 0, 0);
    job_log d;
    logged_job t;

    log_open(&d);
    sem_wait(&c.stepped);
    OK(oari_worker_post(w, job_of(&t, &d, 0, log_job), 0));
    sem_wait(&c.stepped);
    assert_int_equal(atomic_load(&d.count), 1);
    oari_worker_wake(w);
    sem_wait(&c.stepped);
    assert_int_equal(atomic_load(&c.steps), 3);
    oari_worker_destroy(w, NULL);
}

static void the_end_waits_until_step_wants_no_more(void **state)
{
    step_counter c;
    oari_worker *w = counter_start(&c, 0, 0);

    sem_wait(&c.stepped);
    atomic_store(&c.left, 7);
    oari_worker_destroy(w, NULL);
    assert_int_equal(atomic_load(&c.left), 0);
    assert_int_equal(atomic_load(&c.steps), 9);
}

/* ---- the threads --------------------------------------------------------- */

typedef struct thread_view {
    oari_job job;
    sigset_t blocked;
    char name[16];
} thread_view;

static void look_around(void *arg)
{
    thread_view *l = arg;

    pthread_sigmask(SIG_SETMASK, NULL, &l->blocked);
    while (strncmp(l->name, "a name of mo", 12) != 0) /* it comes a bit later */
        pthread_getname_np(pthread_self(), l->name, sizeof l->name);
}

static void threads_have_names_and_leave_signals_alone(void **state)
{
    oari_worker *w = worker_of(
        &(oari_worker_opts){ .name = "a name of more than 15 letters" });
    thread_view l = { .job = { .run = look_around, .arg = &l } };
    sigset_t mine;

    OK(oari_worker_post(w, &l.job, 0));
    oari_worker_destroy(w, NULL);
    assert_string_equal(l.name, "a name of more ");
    assert_true(sigismember(&l.blocked, SIGINT));
    assert_true(sigismember(&l.blocked, SIGCHLD));
    assert_true(sigismember(&l.blocked, SIGPIPE));
    assert_false(sigismember(&l.blocked, SIGSEGV));
    pthread_sigmask(SIG_SETMASK, NULL, &mine);
    assert_false(sigismember(&mine, SIGINT));
}

static oar_status make_three(void *arg)
{
    oari_worker *worker;

    OARI_TRY(oari_worker_create(
        &(oari_worker_opts){ .name = "three", .threads = 3 }, &worker));
    oari_worker_destroy(worker, NULL);
    return OAR_OK;
}

static void a_worker_is_made_whole_or_not_at_all(void **state)
{
    oari_worker *none = NULL;

    fail_each_allocation(make_three, NULL);
    assert_fails_with(
        oari_worker_create(
            &(oari_worker_opts){ .name = "wrong", .threads = -1 }, &none),
        OAR_E_ARG, "-1 threads");
    assert_fails_with(
        oari_worker_create(&(oari_worker_opts){ .name = "wrong",
                                                .threads = 2,
                                                .step = count_step },
                           &none),
        OAR_E_ARG, "with a step");
    oar_memory_fail_after(2); /* the first thread */
    assert_fails_with(
        oari_worker_create(&(oari_worker_opts){ .name = "none" }, &none),
        OAR_E_NOMEM, "the thread none");
    oar_memory_fail_after(0);
    assert_null(none);
    oari_worker_destroy(none, NULL);
}

/* Exits with 0 if the worker is refused and its end does not hang. */
static void be_a_child(oari_worker *w, oari_job *job)
{
    int refused;

    alarm(20);
    refused = oari_worker_post(w, job, OARI_NEVER) == OAR_E_STATE &&
              strstr(oar_last_error_text(), "parent") != NULL &&
              !oari_worker_is_here(w);
    oari_worker_wake(w);
    oari_worker_destroy(w, NULL);
    _exit(refused ? 0 : 1);
}

static void a_child_has_no_threads_of_it(void **state)
{
    job_log d;
    logged_job t[4];
    oari_worker *w = full_worker(&d, t);
    pid_t child;
    int status;

    job_of(&t[3], &d, 3, log_job);
    child = fork();
    assert_true(child >= 0);
    if (child == 0)
        be_a_child(w, &t[3].job);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(oari_worker_is_here(w));
    sem_post(&d.may_go);
    oari_worker_destroy(w, NULL);
    assert_int_equal(atomic_load(&d.count), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_are_done_in_order_and_before_the_end),
        cmocka_unit_test(a_pool_does_as_many_jobs_at_once_as_it_has_threads),
        cmocka_unit_test(a_full_queue_refuses_or_gives_up),
        cmocka_unit_test(the_end_drops_what_waits_and_sends_posters_away),
        cmocka_unit_test(a_step_comes_when_it_said),
        cmocka_unit_test(a_step_comes_after_a_job_and_when_woken),
        cmocka_unit_test(the_end_waits_until_step_wants_no_more),
        cmocka_unit_test(threads_have_names_and_leave_signals_alone),
        cmocka_unit_test(a_worker_is_made_whole_or_not_at_all),
        cmocka_unit_test(a_child_has_no_threads_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
