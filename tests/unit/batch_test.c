/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of calls, prepared calls, waiting for the first of several; and the
 * barrier that names the missing ranks. */
#include "support/ranks.h"

#include <pthread.h>
#include <stdatomic.h>

#include <oarsong/p2p.h>

#include "base/clock.h"
#include "support/last_error.h"

static oar_span one(int64_t *x)
{
    return oar_span_of(x, 1, OAR_I64);
}

/* ---- batches ------------------------------------------------------------- */

/* Blocking calls that would deadlock one after the other: all ranks receive
 * before they send. */
static oar_status run_ring(oar_group *g, oar_work **work)
{
    int n = oar_group_size(g), rank = oar_group_rank(g);
    static _Thread_local int64_t got, mine, sum;

    got = -1;
    mine = sum = rank;
    CHECK_OK(oar_batch_begin(g));
    CHECK(fails_with(oar_batch_begin(g), OAR_E_STATE, "open already"));
    CHECK_OK(oar_recv(g, one(&got), (rank + n - 1) % n, 3, NULL, NULL));
    CHECK_OK(oar_all_reduce(g, one(&sum), OAR_SUM, NULL, NULL));
    CHECK_OK(oar_send(g, one(&mine), (rank + 1) % n, 3, NULL, NULL));
    CHECK(got == -1 && sum == rank); /* nothing has begun */
    CHECK_OK(oar_batch_end(g, work));
    if (work != NULL) {
        CHECK_OK(oar_work_wait(*work));
        oar_work_release(*work);
    }
    CHECK(got == (rank + n - 1) % n);
    CHECK(sum == n * (n - 1) / 2);
    return OAR_OK;
}

static oar_status run_knot(oar_group *g, void *arg)
{
    oar_work *work;

    CHECK_OK(run_ring(g, NULL));
    CHECK_OK(run_ring(g, &work));
    CHECK(fails_with(oar_batch_end(g, NULL), OAR_E_STATE, "without a batch"));
    CHECK_OK(oar_batch_begin(g));
    CHECK_OK(oar_batch_end(g, NULL));
    return oar_barrier(g, NULL, NULL);
}

static oar_status run_empty(oar_group *g, void *arg)
{
    oar_work *work = NULL;
    int done = 0;

    CHECK_OK(oar_batch_begin(g));
    CHECK_OK(oar_batch_end(g, &work));
    CHECK_OK(oar_work_test(work, &done));
    CHECK(done);
    CHECK_OK(oar_work_wait(work));
    oar_work_release(work);
    return OAR_OK;
}

static void an_empty_batch_is_done_at_once(void **state)
{
    ranks_all(1, run_empty, NULL);
    ranks_all(2, run_empty, NULL);
}

/* A new group is made by a collective whose outcome is needed at once. */
static oar_status split_in_batch(oar_group *g, void *arg)
{
    int64_t x = 1;
    oar_group *half = NULL;

    CHECK_OK(oar_batch_begin(g));
    CHECK_OK(oar_all_reduce(g, one(&x), OAR_SUM, NULL, NULL));
    CHECK(fails_with(oar_group_split(g, 0, 0, &half), OAR_E_STATE, "batch"));
    CHECK(fails_with(oar_group_dup(g, &half), OAR_E_STATE, "batch"));
    CHECK(half == NULL);
    CHECK_OK(oar_batch_end(g, NULL));
    CHECK(x == oar_group_size(g));
    CHECK_OK(oar_group_dup(g, &half));
    oar_group_destroy(half);
    return oar_barrier(g, NULL, NULL);
}

static void no_group_is_split_inside_a_batch(void **state)
{
    ranks_all(1, split_in_batch, NULL);
    ranks_all(3, split_in_batch, NULL);
}

/* Another thread's calls are not put off, whatever batches come and go. */
typedef struct batch_thread {
    oar_group *group;
    _Atomic int stop;
    oar_status status;
} batch_thread;

static void *batch_on(void *arg)
{
    batch_thread *b = arg;
    int64_t x = 1;

    while (!b->stop && b->status == OAR_OK) {
        b->status = oar_batch_begin(b->group);
        if (b->status == OAR_OK)
            b->status = oar_recv(b->group, one(&x), 0, 5, NULL, NULL);
        if (b->status == OAR_OK)
            b->status = oar_send(b->group, one(&x), 0, 5, NULL, NULL);
        if (b->status == OAR_OK)
            b->status = oar_batch_end(b->group, NULL);
    }
    return NULL;
}

static oar_status run_beside(oar_group *g, void *arg)
{
    batch_thread b = { .group = g };
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, batch_on, &b) == 0);
    for (int i = 0; i < 500; i++) {
        int64_t x = i;
        oar_status status = oar_all_reduce(g, one(&x), OAR_SUM, NULL, NULL);
        if (status != OAR_OK || x != i)
            b.status = OAR_E_INTERNAL;
    }
    b.stop = 1;
    pthread_join(thread, NULL);
    return b.status;
}

static void a_batch_is_its_threads_alone(void **state)
{
    ranks_all(1, run_beside, NULL);
}

static void a_batch_is_started_as_one(void **state)
{
    ranks_all(1, run_knot, NULL);
    ranks_all(2, run_knot, NULL);
    ranks_all(3, run_knot, NULL);
}

static oar_status leave_open(oar_group *g, void *arg)
{
    int64_t x = 1;

    CHECK_OK(oar_batch_begin(g));
    return oar_all_reduce(g, one(&x), OAR_SUM, NULL, NULL);
}

static void a_batch_left_open_is_dropped_with_its_group(void **state)
{
    ranks_all(2, leave_open, NULL);
}

static oar_status exchange_sizes(oar_group *g, void *arg)
{
    int64_t x[2] = { 1, 2 }, y[3] = { 0 };
    oar_call_opts opts = { .size = sizeof opts, .synchronous = 1 };
    oar_work *work = NULL;

    CHECK_OK(oar_batch_begin(g));
    if (oar_group_rank(g) == 0)
        CHECK_OK(oar_send(g, oar_span_of(x, 2, OAR_I64), 1, 0, &opts, NULL));
    else
        CHECK_OK(oar_recv(g, oar_span_of(y, 3, OAR_I64), 0, 0, NULL, NULL));
    CHECK_OK(oar_batch_end(g, &work));
    CHECK(oar_work_wait(work) == OAR_E_SIZE);
    oar_work_release(work);
    return oar_barrier(g, NULL, NULL); /* the group goes on */
}

static void a_part_that_fails_fails_the_batch_only(void **state)
{
    assert_int_equal(ranks_run("sim", 2, NULL, exchange_sizes, NULL), OAR_OK);
    assert_int_equal(ranks_run("shm", 2, NULL, exchange_sizes, NULL), OAR_OK);
    assert_int_equal(ranks_run("tcp", 2, NULL, exchange_sizes, NULL), OAR_OK);
}

/* ---- prepared ------------------------------------------------------------ */

static void count_up(void *arg, oar_status status)
{
    atomic_fetch_add((_Atomic int *)arg, status == OAR_OK);
}

static oar_status run_prepared(oar_group *g, void *arg)
{
    oar_call_opts opts = { .size = sizeof opts, .prepare = 1 };
    int n = oar_group_size(g);
    _Atomic int ended = 0;
    int64_t x = 0;
    oar_work *work, *plain;

    CHECK(fails_with(oar_all_reduce(g, one(&x), OAR_SUM, &opts, NULL),
                     OAR_E_ARG, "without a work"));
    CHECK_OK(oar_all_reduce(g, one(&x), OAR_SUM, &opts, &work));
    for (int i = 1; i <= 50; i++) {
        x = i;
        CHECK_OK(oar_work_start(work));
        CHECK_OK(oar_work_then(work, count_up, &ended));
        CHECK_OK(oar_work_wait(work));
        CHECK(x == (int64_t)i * n);
    }
    CHECK_OK(oar_barrier(g, NULL, &plain));
    CHECK(fails_with(oar_work_start(plain), OAR_E_STATE, "not prepared"));
    CHECK_OK(oar_work_wait(plain));
    oar_work_release(plain);
    oar_work_release(work);
    CHECK(atomic_load(&ended) == 50); /* each before its wait returned */
    return oar_barrier(g, NULL, NULL);
}

static void a_prepared_call_runs_as_often_as_it_is_started(void **state)
{
    ranks_all(2, run_prepared, NULL);
}

/* ---- the first of several ------------------------------------------------ */

static oar_status run_any(oar_group *g, void *arg)
{
    int64_t a = 0, b = 0, x = 7;
    oar_work *work[3] = { NULL };
    int first = 9;

    CHECK_OK(oar_work_wait_any(3, work, &first));
    CHECK(first == -1);
    if (oar_group_rank(g) == 1) {
        CHECK_OK(oar_recv(g, one(&a), 0, 1, NULL, &work[0]));
        CHECK_OK(oar_recv(g, one(&b), 0, 2, NULL, &work[2]));
        CHECK_OK(oar_barrier(g, NULL, NULL));
        CHECK_OK(oar_work_wait_any(3, work, &first));
        CHECK(first == 2 && b == 7);
        CHECK_OK(oar_send(g, one(&x), 0, 3, NULL, NULL));
        CHECK_OK(oar_work_wait(work[0]));
    } else {
        CHECK_OK(oar_barrier(g, NULL, NULL));
        CHECK_OK(oar_send(g, one(&x), 1, 2, NULL, NULL));
        CHECK_OK(oar_recv(g, one(&a), 1, 3, NULL, NULL));
        CHECK_OK(oar_send(g, one(&x), 1, 1, NULL, NULL));
    }
    oar_work_release(work[0]);
    oar_work_release(work[2]);
    return oar_barrier(g, NULL, NULL);
}

static void wait_any_gives_the_one_that_is_done(void **state)
{
    ranks_all(2, run_any, NULL);
}

/* ---- looking for a message ----------------------------------------------- */

static oar_status run_probe(oar_group *g, void *arg)
{
    oar_message m = oar_message_init();
    int64_t x = 5, y = 0;

    if (oar_group_rank(g) == 0) {
        CHECK(fails_with(oar_probe_wait(g, OAR_ANY_SOURCE, 7, 20, &m),
                         OAR_E_TIMEOUT, "20 ms"));
        CHECK_OK(oar_barrier(g, NULL, NULL));
        CHECK_OK(oar_probe_wait(g, OAR_ANY_SOURCE, OAR_ANY_TAG, 0, &m));
        CHECK(m.source == 1 && m.tag == 7 && m.bytes == sizeof x);
        CHECK_OK(oar_recv(g, one(&y), m.source, m.tag, NULL, NULL));
        CHECK(y == 5);
    } else {
        CHECK_OK(oar_barrier(g, NULL, NULL));
        CHECK_OK(oar_send(g, one(&x), 0, 7, NULL, NULL));
    }
    return oar_barrier(g, NULL, NULL);
}

static void a_probe_waits_for_its_message(void **state)
{
    const char *const able[] = { "sim", "shm", "tcp" };

    for (int i = 0; i < 3; i++)
        assert_int_equal(ranks_run(able[i], 2, NULL, run_probe, NULL), OAR_OK);
}

/* ---- missing ranks ------------------------------------------------------- */

static oar_status run_monitored(oar_group *g, void *arg)
{
    oar_call_opts brief = { .size = sizeof brief, .timeout_ms = 50 };
    int rank = oar_group_rank(g);
    int64_t x = 1;

    CHECK_OK(oar_monitored_barrier(g, NULL));
    if (rank != 2) {
        oar_status status = oar_monitored_barrier(g, &brief);
        CHECK(fails_with(status, OAR_E_TIMEOUT, "1 of 4 ranks missing: 2"));
        if (rank == 0)
            CHECK_OK(oar_send(g, one(&x), 2, 1, NULL, NULL));
    } else
        CHECK_OK(oar_recv(g, one(&x), 0, 1, NULL, NULL));
    CHECK_OK(oar_barrier(g, NULL, NULL)); /* the group goes on */
    if (rank == 2)
        CHECK_OK(oar_monitored_barrier(g, NULL)); /* late: all were there */
    CHECK_OK(oar_monitored_barrier(g, NULL));
    return oar_all_reduce(g, one(&x), OAR_SUM, NULL, NULL);
}

static void a_monitored_barrier_names_the_missing(void **state)
{
    const char *const able[] = { "sim", "shm", "tcp" };

    for (int i = 0; i < 3; i++)
        assert_int_equal(ranks_run(able[i], 4, NULL, run_monitored, NULL),
                         OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_is_started_as_one),
        cmocka_unit_test(an_empty_batch_is_done_at_once),
        cmocka_unit_test(no_group_is_split_inside_a_batch),
        cmocka_unit_test(a_batch_is_its_threads_alone),
        cmocka_unit_test(a_batch_left_open_is_dropped_with_its_group),
        cmocka_unit_test(a_part_that_fails_fails_the_batch_only),
        cmocka_unit_test(a_prepared_call_runs_as_often_as_it_is_started),
        cmocka_unit_test(wait_any_gives_the_one_that_is_done),
        cmocka_unit_test(a_probe_waits_for_its_message),
        cmocka_unit_test(a_monitored_barrier_names_the_missing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
