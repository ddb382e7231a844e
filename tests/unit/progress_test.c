/* SPDX-License-Identifier: Apache-2.0 */
/* Which thread drives a posted operation: its caller if it waits soon, the
 * engine's thread if it does not; and what a caller that stops waiting leaves
 * behind. */
#include "support/ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include <oarsong/memory.h>
#include <oarsong/p2p.h>

#include "base/clock.h"
#include "support/last_error.h"
#include "support/leak_check.h"

enum { PATIENCE_MS = 20000, WAKE_NS = 50000 };

static oar_span one(float *x)
{
    return oar_span_of(x, 1, OAR_F32);
}

/* Waits for a flag without a call of the library. */
static int is_raised(_Atomic int *flag, int to)
{
    int64_t deadline = oari_deadline(PATIENCE_MS);

    while (atomic_load(flag) < to && oari_now_ns() < deadline)
        nanosleep(&(struct timespec){ 0, 20000 }, NULL);
    return atomic_load(flag) >= to;
}

/* ---- the thread is left asleep ------------------------------------------- */

static long sleeps(void)
{
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    return used.ru_nvcsw;
}

typedef oar_status (*post_call_fn)(oar_group *g, oar_work *prepared);

static oar_status call_async(oar_group *g, oar_work *prepared)
{
    float x = 1;
    oar_work *work = NULL;

    (void)prepared;
    CHECK_OK(oar_all_reduce(g, one(&x), OAR_SUM, NULL, &work));
    CHECK_OK(oar_work_wait(work));
    oar_work_release(work);
    return OAR_OK;
}

static oar_status call_prepared(oar_group *g, oar_work *prepared)
{
    (void)g;
    CHECK_OK(oar_work_start(prepared));
    return oar_work_wait(prepared);
}

static oar_status exchange(oar_group *g, oar_work *prepared)
{
    float x = 1, y = 0;

    (void)prepared;
    CHECK_OK(oar_sendrecv(g, one(&x), 0, 1, one(&y), 0, 1, NULL, NULL));
    CHECK(y == 1);
    return OAR_OK;
}

/* A group of one never waits, so every sleep is the thread's; it may look
 * around now and then, but not for each operation. */
static oar_status sleep_seldom(oar_group *g, void *arg)
{
    static const post_call_fn ways[] = { call_async, call_prepared, exchange };
    enum { TIMES = 4000 };
    oar_call_opts later = oar_call_opts_init();
    oar_work *prepared = NULL;
    float x = 1;

    (void)arg;
    later.prepare = 1;
    CHECK_OK(oar_all_reduce(g, one(&x), OAR_SUM, &later, &prepared));
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        int64_t begun = oari_now_ns();
        long before = sleeps();

        for (int i = 0; i < TIMES; i++)
            CHECK_OK(ways[w](g, prepared));
        CHECK(sleeps() - before <
              TIMES / 4 + (oari_now_ns() - begun) / WAKE_NS);
    }
    oar_work_release(prepared);
    return OAR_OK;
}

static void small_operations_do_not_wake_the_thread(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("native", 1, NULL, sleep_seldom, NULL), OAR_OK);
}

static oar_status exchange_without_memory(oar_group *g, void *arg)
{
    uint64_t before;

    (void)arg;
    CHECK_OK(exchange(g, NULL));
    before = memory_now().allocations;
    CHECK_OK(exchange(g, NULL));
    CHECK(memory_now().allocations == before);
    return OAR_OK;
}

static void a_sendrecv_allocates_nothing(void **state)
{
    (void)state;
    assert_int_equal(
        ranks_run("native", 1, NULL, exchange_without_memory, NULL), OAR_OK);
}

/* ---- it wakes by itself -------------------------------------------------- */

static void raise_flag(void *arg, oar_status status)
{
    _Atomic int *flag = arg;

    if (status == OAR_OK)
        atomic_fetch_add(flag, 1);
}

static void pause_ns(long ns)
{
    nanosleep(&(struct timespec){ 0, ns }, NULL);
}

/* Rank 0 posts two at once, of which the second can only begin when the first
 * is over, and calls nothing more until both are. Pauses lead the thread into
 * all of its states. */
static oar_status post_and_turn_away(oar_group *g, void *arg)
{
    enum { TIMES = 120 };
    unsigned seed = 1;

    (void)arg;
    for (int i = 0; i < TIMES; i++) {
        float x[2] = { 1, 2 };
        oar_work *work[2] = { NULL };
        _Atomic int done = 0;

        pause_ns(rand_r(&seed) % 700000);
        if (oar_group_rank(g) != 0) {
            CHECK_OK(oar_all_reduce(g, one(&x[0]), OAR_SUM, NULL, NULL));
            CHECK_OK(oar_all_reduce(g, one(&x[1]), OAR_SUM, NULL, NULL));
            continue;
        }
        for (int k = 0; k < 2; k++) {
            CHECK_OK(oar_all_reduce(g, one(&x[k]), OAR_SUM, NULL, &work[k]));
            CHECK_OK(oar_work_then(work[k], raise_flag, &done));
        }
        CHECK(is_raised(&done, 2));
        CHECK(x[0] == 2 && x[1] == 4);
        CHECK_OK(oar_work_wait_all(2, work));
        oar_work_release(work[0]);
        oar_work_release(work[1]);
    }
    return OAR_OK;
}

static void an_operation_without_a_waiter_goes_on(void **state)
{
    (void)state;
    ranks_all(2, post_and_turn_away, NULL);
}

/* One user leaves what another posted. */
static void *wait_for_it(void *work)
{
    return (void *)(intptr_t)oar_work_wait(work);
}

static oar_status leave_to_the_thread(oar_group *g, void *arg)
{
    enum { TIMES = 60 };
    int me = oar_group_rank(g);

    (void)arg;
    for (int i = 0; i < TIMES; i++) {
        float first = 0, second = 0;
        oar_work *work[2] = { NULL };
        _Atomic int done = 0;
        pthread_t waiter;
        void *status;

        if (me != 0) {
            CHECK_OK(oar_send(g, one(&first), 0, 1, NULL, NULL));
            CHECK_OK(oar_barrier(g, NULL, NULL));
            CHECK_OK(oar_send(g, one(&second), 0, 2, NULL, NULL));
            continue;
        }
        CHECK_OK(oar_recv(g, one(&first), 1, 1, NULL, &work[0]));
        CHECK_OK(oar_recv(g, one(&second), 1, 2, NULL, &work[1]));
        CHECK_OK(oar_work_then(work[1], raise_flag, &done));
        CHECK(pthread_create(&waiter, NULL, wait_for_it, work[0]) == 0);
        pthread_join(waiter, &status);
        CHECK((intptr_t)status == OAR_OK);
        CHECK_OK(oar_barrier(g, NULL, NULL));
        CHECK(is_raised(&done, 1));
        CHECK_OK(oar_work_wait(work[1]));
        oar_work_release(work[0]);
        oar_work_release(work[1]);
    }
    return OAR_OK;
}

static void a_user_that_leaves_hands_over(void **state)
{
    (void)state;
    ranks_all(2, leave_to_the_thread, NULL);
}

/* ---- posting runs no functions ------------------------------------------- */

static _Thread_local int posting;

typedef struct callback_counts {
    _Atomic int calls, wrong;
} callback_counts;

static void note_who_runs_it(void *arg, oar_status status)
{
    callback_counts *a = arg;

    (void)status;
    atomic_fetch_add(&a->wrong, posting);
    atomic_fetch_add(&a->calls, 1);
}

/* The caller may hold a lock that the function takes. */
static oar_status post_among_functions(oar_group *g, void *arg)
{
    enum { TIMES = 300 };
    int peer = 1 - oar_group_rank(g);
    callback_counts a = { 0 };

    (void)arg;
    for (int i = 0; i < TIMES; i++) {
        float x = 1, y = 1, in = 0, out = 1;
        oar_work *work[4] = { NULL };

        CHECK_OK(oar_all_reduce(g, one(&x), OAR_SUM, NULL, &work[0]));
        CHECK_OK(oar_work_then(work[0], note_who_runs_it, &a));
        CHECK_OK(oar_recv(g, one(&in), peer, 1, NULL, &work[1]));
        CHECK_OK(oar_work_then(work[1], note_who_runs_it, &a));
        posting = 1;
        CHECK_OK(oar_send(g, one(&out), peer, 1, NULL, &work[2]));
        CHECK_OK(oar_all_reduce(g, one(&y), OAR_SUM, NULL, &work[3]));
        posting = 0;
        CHECK_OK(oar_work_wait_all(4, work));
        for (int k = 0; k < 4; k++)
            oar_work_release(work[k]);
    }
    CHECK(atomic_load(&a.calls) == 2 * TIMES && atomic_load(&a.wrong) == 0);
    return OAR_OK;
}

static void posting_runs_no_function_of_another(void **state)
{
    (void)state;
    ranks_all(2, post_among_functions, NULL);
}

/* ---- waiting for a while ------------------------------------------------- */

static void *receive_the_last(void *group)
{
    float x = 0;

    return (void *)(intptr_t)oar_recv(group, one(&x), 1, 3, NULL, NULL);
}

/* With and without another thread that drives meanwhile. */
static oar_status wait_a_while(oar_group *g, void *arg)
{
    float x = 0, y = 0;
    oar_work *work = NULL, *other = NULL;
    pthread_t waiter;
    void *status;

    (void)arg;
    if (oar_group_rank(g) != 0) {
        x = 7;
        for (int tag = 1; tag <= 3; tag++) {
            CHECK_OK(oar_recv(g, one(&y), 0, 4, NULL, NULL));
            CHECK_OK(oar_send(g, one(&x), 0, tag, NULL, NULL));
        }
        return OAR_OK;
    }
    CHECK_OK(oar_recv(g, one(&x), 1, 1, NULL, &work));
    CHECK(fails_with(oar_work_wait_for(work, 20), OAR_E_TIMEOUT,
                     "recv at progress_test.c"));
    CHECK(oar_group_fault(g, NULL) == OAR_OK);
    CHECK_OK(oar_send(g, one(&y), 1, 4, NULL, NULL));
    CHECK_OK(oar_work_wait_for(work, -1));
    CHECK(x == 7);
    CHECK_OK(oar_work_wait_for(work, 1)); /* it is done */
    CHECK(pthread_create(&waiter, NULL, receive_the_last, g) == 0);
    CHECK_OK(oar_recv(g, one(&y), 1, 2, NULL, &other));
    CHECK(oar_work_wait_for(other, 20) == OAR_E_TIMEOUT);
    CHECK_OK(oar_send(g, one(&y), 1, 4, NULL, NULL));
    CHECK_OK(oar_work_wait_for(other, 0)); /* the group's timeout */
    CHECK_OK(oar_send(g, one(&y), 1, 4, NULL, NULL));
    pthread_join(waiter, &status);
    CHECK((intptr_t)status == OAR_OK);
    oar_work_release(work);
    oar_work_release(other);
    return OAR_OK;
}

static void a_wait_may_end_before_the_operation(void **state)
{
    (void)state;
    ranks_all(2, wait_a_while, NULL);
    assert_fails_with(oar_work_wait_for(NULL, 1), OAR_E_ARG, "NULL");
}

/* ---- threads that are cancelled ------------------------------------------ */

typedef struct cancelled_thread {
    oar_group *group;
    _Atomic int inside;
    oar_status status;
} cancelled_thread;

static void *receive_and_end(void *arg)
{
    cancelled_thread *v = arg;
    float x = 0;

    atomic_store(&v->inside, 1);
    v->status = oar_recv(v->group, one(&x), 1, 1, NULL, NULL);
    atomic_store(&v->inside, 2);
    pthread_testcancel();
    return NULL;
}

/* A thread that drives, and one that waits to. */
static oar_status cancel_two(oar_group *g, void *arg)
{
    cancelled_thread v[2] = { { .group = g, .status = OAR_E_INTERNAL },
                              { .group = g, .status = OAR_E_INTERNAL } };
    pthread_t thread[2];
    float x = 1;
    void *end;

    (void)arg;
    if (oar_group_rank(g) != 0) {
        CHECK_OK(oar_all_reduce(g, one(&x), OAR_SUM, NULL, NULL));
        CHECK_OK(oar_send(g, one(&x), 0, 1, NULL, NULL));
        CHECK_OK(oar_send(g, one(&x), 0, 1, NULL, NULL));
        return oar_barrier(g, NULL, NULL);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&thread[i], NULL, receive_and_end, &v[i]) == 0);
        CHECK(is_raised(&v[i].inside, 1));
        pause_ns(5000000); /* it is asleep by now, most likely */
        pthread_cancel(thread[i]);
    }
    CHECK_OK(oar_all_reduce(g, one(&x), OAR_SUM, NULL, NULL));
    CHECK(x == 2);
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], &end);
        CHECK(end == PTHREAD_CANCELED && v[i].inside == 2);
        CHECK_OK(v[i].status);
    }
    return oar_barrier(g, NULL, NULL);
}

static void a_cancelled_thread_ends_its_call_first(void **state)
{
    (void)state;
    ranks_all(2, cancel_two, NULL);
}

/* ---- how long it spins --------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 }; /* everything takes longer */
#else
enum { SANITIZED = 0 };
#endif
enum { WAITS = 21, SPIN_US = 50, LATE_NS = 2000000 };

static int64_t thread_cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Rank 1 is late each time. Rank 0 spins and yields for 50 us each, then it
 * sleeps. Now and then a wait costs more, where others use the cores. */
static oar_status wait_for_late_rank(oar_group *g, void *arg)
{
    int64_t cpu[2][WAITS];
    float x = 1;

    (void)arg;
    for (int i = 0; i < 2 * WAITS; i++) {
        int64_t before;

        CHECK_OK(oar_barrier(g, NULL, NULL));
        if (oar_group_rank(g) == 1)
            pause_ns(LATE_NS);
        before = thread_cpu_ns();
        if (i < WAITS)
            CHECK_OK(oar_all_reduce(g, one(&x), OAR_MAX, NULL, NULL));
        else if (oar_group_rank(g) == 0)
            CHECK_OK(oar_recv(g, one(&x), 1, 0, NULL, NULL));
        else
            CHECK_OK(oar_send(g, one(&x), 0, 0, NULL, NULL));
        cpu[i / WAITS][i % WAITS] = thread_cpu_ns() - before;
    }
    for (int i = 0; i < 2; i++) {
        qsort(cpu[i], WAITS, sizeof cpu[i][0], by_size);
        CHECK(SANITIZED || cpu[i][WAITS / 4] < 6000 * (int64_t)SPIN_US);
    }
    return OAR_OK;
}

static void a_rank_that_waits_spins_for_a_moment_only(void **state)
{
    oar_group_opts o = oar_group_opts_init();

    (void)state;
    o.spin_us = SPIN_US;
    for (const char *const *b = ranks_backends(); *b != NULL; b++)
        assert_int_equal(ranks_run(*b, 2, &o, wait_for_late_rank, NULL),
                         OAR_OK);
}

/* ---- where others want the cores ----------------------------------------- */

enum {
    LATE_ROUNDS = 200,
    LATER_NS = 5000000,
    MOST_CPU_NS = 450000000 /* it may spin for 200 ms that it has not earned */
};

static void *keep_core_busy(void *stop)
{
    while (!atomic_load((_Atomic int *)stop))
        continue;
    return NULL;
}

/* Rank 1 is late each time, and a thread of each rank wants a core. */
static oar_status wait_among_others(oar_group *g, void *arg)
{
    int64_t before = thread_cpu_ns();
    _Atomic int stop = 0;
    pthread_t busy;
    float x = 1;

    (void)arg;
    CHECK(pthread_create(&busy, NULL, keep_core_busy, &stop) == 0);
    for (int i = 0; i < LATE_ROUNDS; i++) {
        if (oar_group_rank(g) == 1)
            pause_ns(LATER_NS);
        CHECK_OK(oar_all_reduce(g, one(&x), OAR_MAX, NULL, NULL));
    }
    CHECK(SANITIZED || thread_cpu_ns() - before < MOST_CPU_NS);
    atomic_store(&stop, 1);
    pthread_join(busy, NULL);
    return OAR_OK;
}

static void spinning_among_others_has_an_end(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("shm", 2, NULL, wait_among_others, NULL),
                     OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_operations_do_not_wake_the_thread),
        cmocka_unit_test(a_sendrecv_allocates_nothing),
        cmocka_unit_test(an_operation_without_a_waiter_goes_on),
        cmocka_unit_test(a_user_that_leaves_hands_over),
        cmocka_unit_test(posting_runs_no_function_of_another),
        cmocka_unit_test(a_wait_may_end_before_the_operation),
        cmocka_unit_test(a_cancelled_thread_ends_its_call_first),
        cmocka_unit_test(a_rank_that_waits_spins_for_a_moment_only),
        cmocka_unit_test(spinning_among_others_has_an_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
