/* SPDX-License-Identifier: Apache-2.0 */
/* Abort, from any thread, at any moment, while other threads run collectives
 * and messages: every call returns in bounded time with the same record, and
 * nothing is left of the group. Destroy needs no living peer. */
#include "support/test_job.h"

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <oarsong/p2p.h>
#include <oarsong/shared.h>

#include "base/clock.h"
#include "base/status.h"
#include "device/segment.h"
#include "support/operation_case.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 }; /* maps more memory as it likes */
#else
enum { SANITIZED = 0 };
#endif

enum {
    BOUND_MS = 1000, /* from the abort to the return of every call */
    RANKS = 3,
    ROUNDS = 200,
    WARM = 20, /* rounds before memory is measured */
    COUNT = 3000,
    MOMENTS = 30 /* operations before the abort, at most */
};

/* One abort. On a page that all ranks see. */
typedef struct abort_round {
    int number;
    _Atomic int64_t aborted_ns;
    shared_flag reported, ready;
    const char *backend;
    int hosts;
    char text[TEST_JOB_RANKS][sizeof((oar_error *)0)->text];
} abort_round;

/* What a rank's threads share. */
typedef struct rank_threads {
    oar_group *group;
    abort_round *round;
    int shared; /* memory; else private */
    _Atomic int operations, failures;
} rank_threads;

/* ---- what runs meanwhile ------------------------------------------------- */

/* Ends a thread: the error it got must be the group's. */
static void *check_end(rank_threads *c, oar_status status)
{
    oar_error record = { .size = sizeof record };
    char text[sizeof record.text];

    snprintf(text, sizeof text, "%s", oar_last_error_text());
    if (oar_group_fault(c->group, &record) != status ||
        status != OAR_E_ABORTED || strcmp(record.text, text) != 0) {
        fprintf(stderr, "%s: %s, not %s\n", oar_status_name(status), text,
                record.text);
        c->failures++;
    }
    return NULL;
}

static float *take(rank_threads *c)
{
    void *memory = NULL;

    if (!c->shared)
        memory = malloc(COUNT * sizeof(float));
    else if (oar_shared_alloc(COUNT * sizeof(float), &memory) != OAR_OK)
        abort();
    return memory;
}

static void give(rank_threads *c, float *memory)
{
    if (c->shared)
        oar_shared_free(memory);
    else
        free(memory);
}

static oar_status post_row(oar_group *g, float *x, float *y)
{
    oar_work *work[3] = { NULL };
    oar_status status = OAR_OK;

    for (int i = 0; i < 3 && status == OAR_OK; i++)
        status = oar_all_reduce_into(g, oar_span_of(x + 100 * i, 100, OAR_F32),
                                     oar_span_of(y + 100 * i, 100, OAR_F32),
                                     OAR_MAX, NULL, &work[i]);
    for (int i = 0; i < 3; i++) { /* also after a post that failed */
        if (work[i] != NULL && oar_work_wait(work[i]) != OAR_OK)
            status = oar_last_error()->status;
        oar_work_release(work[i]);
    }
    return status;
}

static oar_status run_one(oar_group *g, int number, float *x, float *y)
{
    oar_span all = oar_span_of(x, COUNT, OAR_F32);
    oar_span few = oar_span_of(x, 11, OAR_F32);
    int root = number % oar_group_size(g);

    switch (number % 6) {
    case 0: return oar_all_reduce(g, all, OAR_MAX, NULL, NULL);
    case 1: return oar_barrier(g, NULL, NULL);
    case 2: return oar_broadcast(g, all, root, NULL, NULL);
    case 3: return oar_all_reduce(g, few, OAR_MAX, NULL, NULL);
    case 4:
        return oar_all_reduce_into(g, all, oar_span_of(y, COUNT, OAR_F32),
                                   OAR_MAX, NULL, NULL);
    default: return post_row(g, x, y);
    }
}

/* The buffers are given back as soon as the call returns. */
static void *collect(void *arg)
{
    rank_threads *c = arg;
    oar_status status = OAR_OK;

    for (int i = 0; status == OAR_OK; i++) {
        float *x = take(c), *y = take(c);
        memset(x, 0, COUNT * sizeof *x);
        status = run_one(c->group, i, x, y);
        c->operations++;
        give(c, x);
        give(c, y);
    }
    return check_end(c, status);
}

static void *exchange_messages(void *arg)
{
    rank_threads *c = arg;
    int n = oar_group_size(c->group), rank = oar_group_rank(c->group);
    oar_status status = OAR_OK;

    for (int i = 0; status == OAR_OK; i++) {
        size_t count = i % 5 == 4 ? 20000 : 3;
        int32_t *out = calloc(count, 4), *in = calloc(count, 4);
        oar_work *work = NULL;
        status = oar_send(c->group, oar_span_of(out, count, OAR_I32),
                          (rank + 1) % n, 7, NULL, &work);
        if (status == OAR_OK)
            status = oar_recv(c->group, oar_span_of(in, count, OAR_I32),
                              (rank + n - 1) % n, 7, NULL, NULL);
        if (work != NULL && oar_work_wait(work) != OAR_OK)
            status = oar_last_error()->status;
        oar_work_release(work);
        free(out);
        free(in);
    }
    return check_end(c, status);
}

/* ---- aborting ------------------------------------------------------------ */

/* After so many operations, and a little later. */
static void await_moment(rank_threads *c, uint64_t *seed)
{
    int operations = (int)(next_random(seed) % MOMENTS);
    int64_t later = (int64_t)(next_random(seed) % 200000);
    int64_t deadline = oari_deadline(TEST_JOB_LIMIT_MS);

    while (c->operations < operations && oari_now_ns() < deadline)
        nanosleep(&(struct timespec){ 0, 20000 }, NULL);
    later += oari_now_ns();
    while (oari_now_ns() < later)
        continue;
}

static void *abort_too(void *arg)
{
    rank_threads *c = arg;

    oar_group_abort(c->group, "two");
    return NULL;
}

/* From this thread, or from two at once: one of them is first. */
static void abort_once(rank_threads *c, int twice)
{
    pthread_t thread;

    c->round->aborted_ns = oari_now_ns();
    if (twice && pthread_create(&thread, NULL, abort_too, c) != 0)
        abort();
    oar_group_abort(c->group, "one");
    if (twice)
        pthread_join(thread, NULL);
}

/* One rank's part of one round. The aborting rank, the moment and the number of
 * threads that abort follow from the number. */
static int run_all_threads(rank_threads *c)
{
    uint64_t seed = (uint64_t)c->round->number * 1000003;
    int rank = oar_group_rank(c->group), n = oar_group_size(c->group);
    int chosen = (int)(next_random(&seed) % (uint64_t)n);
    oar_error record = { .size = sizeof record };
    pthread_t collector, chatter;

    if (pthread_create(&collector, NULL, collect, c) != 0 ||
        pthread_create(&chatter, NULL, exchange_messages, c) != 0)
        abort();
    if (rank == chosen) {
        await_moment(c, &seed);
        abort_once(c, c->round->number % 2);
    }
    pthread_join(collector, NULL);
    pthread_join(chatter, NULL);
    if (!is_in_time(c->round->aborted_ns, BOUND_MS))
        c->failures++;
    oar_group_fault(c->group, &record);
    memcpy(c->round->text[rank], record.text, sizeof record.text);
    if (record.rank != chosen || record.status != OAR_E_ABORTED)
        c->failures++;
    return c->failures;
}

static int same_text(const abort_round *r, int ranks)
{
    for (int i = 1; i < ranks; i++)
        if (strcmp(r->text[0], r->text[i]) != 0)
            return 0;
    return r->text[0][0] != 0;
}

/* ---- as processes -------------------------------------------------------- */

typedef struct footprint {
    int descriptors, mappings;
    size_t heap, segments;
} footprint;

static footprint measure(void)
{
    footprint f = { open_descriptors(), memory_mappings(), 0, 0 };
    struct stat info;
    size_t bytes;
    int fd;

    f.heap = mallinfo2().uordblks;
    for (uint32_t i = 0; i < oari_segment_count(); i++)
        if (oari_segment_export(i, &fd, &bytes) == OAR_OK) {
            if (fstat(fd, &info) == 0)
                f.segments += (size_t)info.st_blocks * 512;
            close(fd);
        }
    return f;
}

/* A few more are fine: what counts is that 180 rounds do not add up. (What a
 * peer writes after its page was given back stays in the segment.) */
static int flat(const footprint *before, const footprint *after)
{
    return after->descriptors <= before->descriptors &&
           (SANITIZED || after->mappings <= before->mappings + 20) &&
           after->heap <= before->heap + (64 << 10) &&
           after->segments <= before->segments + (256 << 10);
}

static int run_round(test_job *c, int rank, abort_round *r)
{
    rank_threads work = { .round = r, .shared = r->number % 4 != 3 };
    oar_group_opts o = oar_group_opts_init();
    int64_t start;

    o.stage_bytes = 4096;
    o.timeout_ms = TEST_JOB_LIMIT_MS;
    RANK_CHECK(test_job_join(c, rank, &o, &work.group) == OAR_OK);
    RANK_CHECK(run_all_threads(&work) == 0);
    start = oari_now_ns();
    oar_group_destroy(work.group);
    RANK_CHECK(is_in_time(start, BOUND_MS));
    shared_flag_raise(&r->reported);
    RANK_CHECK(shared_flag_await(&r->reported, RANKS, TEST_JOB_LIMIT_MS));
    RANK_CHECK(same_text(r, RANKS));
    return 0;
}

static int run_rounds(test_job *c, int rank, void *arg)
{
    abort_round *rounds = arg;
    footprint before = { 0 }, after;

    for (int i = 0; i < ROUNDS; i++) {
        if (i == WARM)
            before = measure();
        if (run_round(c, rank, &rounds[i]) != 0)
            return 1;
    }
    after = measure();
    if (!flat(&before, &after))
        fprintf(stderr,
                "rank %d: %d to %d descriptors, %d to %d mappings, %zu to %zu "
                "bytes of heap, %zu to %zu of segments\n",
                rank, before.descriptors, after.descriptors, before.mappings,
                after.mappings, before.heap, after.heap, before.segments,
                after.segments);
    RANK_CHECK(flat(&before, &after));
    return 0;
}

static void an_abort_at_any_moment_ends_everything_in_time(void **state)
{
    abort_round *rounds = shared_page(ROUNDS * sizeof *rounds);
    test_job c;

    for (int i = 0; i < ROUNDS; i++)
        rounds[i].number = i;
    test_job_checks_leaks = 1;
    test_job_start(&c, RANKS, run_rounds, rounds, "abort at any moment");
    test_job_checks_leaks = 0;
    for (int r = 0; r < RANKS; r++) /* a sanitizer takes its time */
        if (test_job_wait(&c, r, 20 * TEST_JOB_LIMIT_MS) != 0)
            test_job_give_up(&c, "rank %d failed, or has not ended", r);
    test_job_end(&c);
    shared_page_free(rounds, ROUNDS * sizeof *rounds);
}

/* ---- as threads ---------------------------------------------------------- */

static oar_status sim_round(oar_group *g, void *arg)
{
    rank_threads work = { .group = g, .round = arg };

    CHECK(run_all_threads(&work) == 0);
    return OAR_OK;
}

static void an_abort_among_threads_ends_everything_in_time(void **state)
{
    for (int i = 0; i < ROUNDS / 2; i++) {
        abort_round *r = shared_page(sizeof *r);
        r->number = i;
        if (oar_sim_run(RANKS, sim_round, r) != OAR_OK)
            fail_msg("round %d: %s", i, oar_last_error_text());
        assert_true(same_text(r, RANKS));
        shared_page_free(r, sizeof *r);
    }
}

/* ---- two ranks at once --------------------------------------------------- */

/* Ranks that abort at the same instant all report the same one of the two, and
 * no rank changes its mind. */
static oar_status abort_both(oar_group *g, void *arg)
{
    abort_round *r = arg;
    oar_error first = { .size = sizeof first }, again = first;
    int rank = oar_group_rank(g);

    CHECK_OK(oar_barrier(g, NULL, NULL));
    shared_flag_raise(&r->ready);
    CHECK(shared_flag_await(&r->ready, RANKS, TEST_JOB_LIMIT_MS));
    if (rank < 2)
        CHECK_OK(oar_group_abort(g, rank == 0 ? "left" : "right"));
    CHECK(oar_barrier(g, NULL, NULL) == OAR_E_ABORTED);
    CHECK(oar_group_fault(g, &first) == OAR_E_ABORTED);
    CHECK(strcmp(first.text, "rank 0 aborted: left") == 0 ||
          strcmp(first.text, "rank 1 aborted: right") == 0);
    CHECK_OK(oar_group_abort(g, "too late"));
    CHECK(oar_barrier(g, NULL, NULL) == OAR_E_ABORTED);
    CHECK(oar_group_fault(g, &again) == OAR_E_ABORTED);
    CHECK(memcmp(&first, &again, sizeof first) == 0);
    memcpy(r->text[rank], first.text, sizeof first.text);
    shared_flag_raise(&r->reported);
    CHECK(shared_flag_await(&r->reported, RANKS, TEST_JOB_LIMIT_MS));
    return OAR_OK;
}

static int run_both(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    abort_round *r = arg;
    oar_group *g;

    if (r->hosts && rank != 0)
        setenv("OARSONG_HOST_ID", "another", 1);
    o.backend = r->backend;
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
    RANK_CHECK(abort_both(g, arg) == OAR_OK);
    oar_group_destroy(g);
    return 0;
}

static void abort_at_once(const char *backend, int hosts, int time)
{
    abort_round *page = shared_page(sizeof *page);
    test_job c;

    page->backend = backend;
    page->hosts = hosts;
    if (backend == NULL)
        assert_int_equal(oar_sim_run(RANKS, abort_both, page), OAR_OK);
    else {
        test_job_start(&c, RANKS, run_both, page, "two aborts over %s, time %d",
                       backend, time);
        for (int r = 0; r < RANKS; r++)
            test_job_expect(&c, r, 0);
        test_job_end(&c);
    }
    if (!same_text(page, RANKS))
        fail_msg("%s, time %d: \"%s\", \"%s\" and \"%s\"",
                 backend != NULL ? backend : "sim", time, page->text[0],
                 page->text[1], page->text[2]);
    shared_page_free(page, sizeof *page);
}

static void ranks_that_abort_at_once_report_the_same(void **state)
{
    for (int i = 0; i < 8; i++) {
        abort_at_once(NULL, 0, i);
        abort_at_once("shm", 0, i);
        abort_at_once("tcp", 0, i);
        abort_at_once("native", 1, i);
    }
}

/* A rank that heard nothing yet and aborts later reports the first fault. */
static int run_late(test_job *c, int rank, void *arg)
{
    shared_flag *aborted = arg;
    oar_error record = { .size = sizeof record };
    oar_group *g;

    RANK_CHECK(test_job_join(c, rank, NULL, &g) == OAR_OK);
    if (rank != 0)
        RANK_CHECK(
            shared_flag_await(aborted, (uint32_t)rank, TEST_JOB_LIMIT_MS));
    RANK_CHECK(oar_group_abort(g, rank == 0 ? "first" : "later") == OAR_OK);
    shared_flag_raise(aborted);
    RANK_CHECK(oar_group_fault(g, &record) == OAR_E_ABORTED);
    RANK_CHECK(strcmp(record.text, "rank 0 aborted: first") == 0);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_E_ABORTED);
    oar_group_destroy(g);
    return 0;
}

static void the_first_of_several_aborts_is_the_one_reported(void **state)
{
    shared_flag *aborted = shared_page(sizeof *aborted);
    test_job c;

    test_job_start(&c, RANKS, run_late, aborted, "late aborts");
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    shared_page_free(aborted, sizeof *aborted);
}

/* ---- destroy with peers that are stopped or dead ------------------------- */

typedef struct death_case {
    const operation_case *operation;
    int step, signal;
    shared_flag gone, destroyed;
} death_case;

static void die_at_step(void *arg)
{
    raise(((death_case *)arg)->signal);
}

/* Rank 2 stops or dies at some step; rank 0 posts it all and destroys the group
 * with operations under way. */
static int run_death_case(test_job *c, int rank, void *arg)
{
    death_case *l = arg;
    oar_group_opts o = operation_opts(l->operation, TEST_JOB_LIMIT_MS);
    float x[3] = { 0 };
    oar_work *work;
    operation_buffers h;
    oar_group *g;
    int64_t start;

    RANK_CHECK(operation_buffers_alloc(&h, l->operation, rank, c->ranks) ==
               OAR_OK);
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
    if (rank == 2) {
        step_hook_set(l->step, die_at_step, l);
        operation_run(&h, g, 0);
        oar_group_destroy(g);
        operation_buffers_free(&h);
        return 0;
    }
    RANK_CHECK(oar_recv(g, oar_span_of(x, 3, OAR_F32), 2, 1, NULL, &work) ==
               OAR_OK);
    oar_work_release(work);
    if (rank == 1) /* it waits: rank 0's destroy ends that */
        RANK_CHECK(operation_run(&h, g, 0) == OAR_OK ||
                   oar_group_fault(g, NULL) != OAR_OK);
    RANK_CHECK(shared_flag_await(&l->gone, 1, TEST_JOB_LIMIT_MS));
    start = oari_now_ns();
    oar_group_destroy(g);
    RANK_CHECK(is_in_time(start, BOUND_MS));
    shared_flag_raise(&l->destroyed);
    operation_buffers_free(&h);
    return 0;
}

static void run_with_death(const operation_case *d, int step, int sig)
{
    death_case *l = shared_page(sizeof *l);
    test_job c;

    l->operation = d;
    l->step = step;
    l->signal = sig;
    test_job_start(&c, RANKS, run_death_case, l, "%s, signal %d at step %d",
                   d->name, sig, step);
    if (sig == SIGKILL)
        test_job_expect(&c, 2, 128 + SIGKILL);
    else if (!test_job_wait_stopped(&c, 2, TEST_JOB_LIMIT_MS))
        test_job_give_up(&c, "rank 2 did not stop");
    shared_flag_raise(&l->gone);
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, 0);
    if (sig == SIGSTOP) {
        kill(c.pid[2], SIGCONT);
        test_job_expect(&c, 2, 0);
    }
    test_job_end(&c);
    shared_page_free(l, sizeof *l);
}

/* Rank 0 does not take part in the operation: only the first steps are reached.
 */
static void destroy_needs_no_living_peer(void **state)
{
    for (const operation_case *d = operation_cases; d->name != NULL; d++) {
        run_with_death(d, 0, SIGSTOP);
        run_with_death(d, 0, SIGKILL);
    }
}

/* ---- at every state ------------------------------------------------------ */

enum { BULK = 6 << 20 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LIMIT_MS = 4 * BOUND_MS };
#else
enum { LIMIT_MS = BOUND_MS };
#endif

typedef struct abort_state_case {
    const char *backend;
    int hosts, signal;
    int by_abort; /* else destroyed at once */
    shared_flag ready, gone, refilled, over;
} abort_state_case;

static oar_status join_case(test_job *c, int rank, const abort_state_case *s,
                            oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();

    if (s->hosts && rank == 2)
        setenv("OARSONG_HOST_ID", "another", 1);
    o.backend = s->backend;
    o.timeout_ms = 2 * TEST_JOB_LIMIT_MS;
    return test_job_join(c, rank, &o, g);
}

/* Everything that can be under way: collectives, messages that fill sockets and
 * rings, receives, and a batch that is not even begun. */
static oar_status post_each(oar_group *g, unsigned char *x, oar_work **work)
{
    oar_span all = oar_span_of(x, BULK, OAR_U8);
    oar_span few = oar_span_of(x, 3, OAR_U8);

    OARI_TRY(oar_send(g, all, 1, 1, NULL, &work[0]));
    OARI_TRY(oar_send(g, all, 2, 1, NULL, &work[1]));
    OARI_TRY(oar_recv(g, few, 2, 2, NULL, &work[2]));
    OARI_TRY(oar_all_reduce(g, all, OAR_MAX, NULL, &work[3]));
    OARI_TRY(oar_barrier(g, NULL, &work[4]));
    OARI_TRY(oar_batch_begin(g));
    OARI_TRY(oar_send(g, few, 1, 3, NULL, NULL));
    return OAR_OK;
}

/* That the others are dead may be found out in the middle. */
static oar_status post_all(oar_group *g, unsigned char *x, oar_work **work)
{
    oar_status status;

    for (int i = 0; i < 5; i++)
        work[i] = NULL;
    status = post_each(g, x, work);
    return status == OAR_E_PEER ? OAR_OK : status;
}

/* What is still to come ends, bounded, with or without an abort before. */
static int end_all(test_job *c, const abort_state_case *s, oar_group *g,
                   oar_work **work)
{
    int64_t start = oari_now_ns();

    if (s->by_abort) {
        JOB_CHECK(c, 0, oar_group_abort(g, "enough") == OAR_OK);
        for (int i = 0; i < 5; i++)
            JOB_CHECK(c, 0, oar_work_wait(work[i]) != OAR_OK || i < 2);
        JOB_CHECK(c, 0, is_in_time(start, LIMIT_MS));
        start = oari_now_ns();
    }
    for (int i = 0; i < 5; i++)
        oar_work_release(work[i]);
    oar_group_destroy(g);
    JOB_CHECK(c, 0, is_in_time(start, LIMIT_MS));
    return 0;
}

static int wait_until_over(test_job *c, abort_state_case *s, oar_group *g,
                           oar_group *half)
{
    unsigned char *x = malloc(BULK);
    oar_work *work[2][5];
    void *shared;
    size_t same = 0;

    JOB_CHECK(c, 0, oar_shared_alloc(BULK, &shared) == OAR_OK);
    memset(x, 7, BULK);
    memset(shared, 7, BULK);
    JOB_CHECK(c, 0, post_all(g, shared, work[0]) == OAR_OK);
    JOB_CHECK(c, 0, post_all(half, x, work[1]) == OAR_OK);
    if (end_all(c, s, half, work[1]) != 0 || end_all(c, s, g, work[0]) != 0)
        return 1;
    memset(x, 9, BULK);
    memset(shared, 9, BULK);
    shared_flag_raise(&s->refilled);
    JOB_CHECK(c, 0, shared_flag_await(&s->over, 1, TEST_JOB_LIMIT_MS));
    for (size_t i = 0; i < BULK; i++)
        same += x[i] == 9 && ((unsigned char *)shared)[i] == 9;
    JOB_CHECK(c, 0, same == BULK);
    oar_shared_free(shared);
    free(x);
    return 0;
}

static int run_state_case(test_job *c, int rank, void *arg)
{
    abort_state_case *s = arg;
    oar_group *g, *half;
    float y = 1;

    RANK_CHECK(join_case(c, rank, s, &g) == OAR_OK);
    RANK_CHECK(oar_group_dup(g, &half) == OAR_OK);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    shared_flag_raise(&s->ready);
    if (rank == 0) {
        RANK_CHECK(shared_flag_await(&s->gone, 1, TEST_JOB_LIMIT_MS));
        return wait_until_over(c, s, g, half);
    }
    raise(s->signal);
    RANK_CHECK(/* all peers are gone */
               oar_all_reduce(g, oar_span_of(&y, 1, OAR_F32), OAR_SUM, NULL,
                              NULL) != OAR_OK);
    oar_group_destroy(half);
    oar_group_destroy(g);
    return 0;
}

static void end_in_state(abort_state_case plan)
{
    abort_state_case *s = shared_page(sizeof *s);
    test_job c;

    *s = plan;
    test_job_start(&c, RANKS, run_state_case, s, "%s, %d hosts, signal %d%s",
                   s->backend, 1 + s->hosts, s->signal,
                   s->by_abort ? ", abort" : "");
    for (int r = 1; r < RANKS; r++)
        if (s->signal == SIGKILL)
            test_job_expect(&c, r, 128 + SIGKILL);
        else if (!test_job_wait_stopped(&c, r, TEST_JOB_LIMIT_MS))
            test_job_give_up(&c, "rank %d did not stop", r);
    shared_flag_raise(&s->gone);
    if (!shared_flag_await(&s->refilled, 1, TEST_JOB_LIMIT_MS))
        test_job_give_up(&c, "rank 0 did not get there");
    for (int r = 1; r < RANKS && s->signal == SIGSTOP; r++)
        kill(c.pid[r], SIGCONT);
    for (int r = 1; r < RANKS && s->signal == SIGSTOP; r++)
        test_job_expect(&c, r, 0);
    shared_flag_raise(&s->over);
    test_job_expect(&c, 0, 0);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

static void abort_and_destroy_are_bounded_at_every_state(void **state)
{
    static const abort_state_case where[] = { { .backend = "shm" },
                                              { .backend = "tcp" },
                                              { .backend = "native",
                                                .hosts = 1 } };

    for (int i = 0; i < 12; i++) {
        abort_state_case s = where[i % 3];
        s.signal = i < 6 ? SIGSTOP : SIGKILL;
        s.by_abort = i / 3 % 2;
        end_in_state(s);
    }
}

/* ---- no memory left ------------------------------------------------------ */

/* Rank 1 does not call the second sum; rank 0 gives up, and finds no memory to
 * put in the place of what rank 1 may still write to. */
static int run_unwilling(test_job *c, int rank, void *arg)
{
    shared_flag *given_up = arg;
    oar_group_opts o = oar_group_opts_init();
    void *x;
    oar_span s;
    oar_group *g;

    RANK_CHECK(oar_shared_alloc(COUNT * 4, &x) == OAR_OK);
    memset(x, 0, COUNT * 4);
    s = oar_span_of(x, COUNT, OAR_F32);
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
    RANK_CHECK(oar_all_reduce(g, s, OAR_SUM, NULL, NULL) == OAR_OK);
    if (rank == 0) {
        oar_memory_fail_after(1);
        RANK_CHECK(oar_all_reduce(g, s, OAR_SUM,
                                  OAR_OPTS(oar_call_opts, .timeout_ms = 200),
                                  NULL) == OAR_E_NOMEM);
        RANK_CHECK(strstr(oar_last_error_text(), "waited 200 ms") != NULL);
        RANK_CHECK(oar_group_fault(g, NULL) == OAR_E_TIMEOUT);
        shared_flag_raise(given_up);
    }
    RANK_CHECK(shared_flag_await(given_up, 1, TEST_JOB_LIMIT_MS));
    oar_group_destroy(g);
    oar_shared_free(x);
    return 0;
}

static void a_buffer_that_cannot_be_taken_back_is_named(void **state)
{
    shared_flag *given_up = shared_page(sizeof *given_up);
    test_job c;

    test_job_start(&c, 2, run_unwilling, given_up, "no memory to take back");
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, 0);
    test_job_end(&c);
    shared_page_free(given_up, sizeof *given_up);
}

/* An argument is a pattern: only the tests that fit it are run. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_abort_at_any_moment_ends_everything_in_time),
        cmocka_unit_test(an_abort_among_threads_ends_everything_in_time),
        cmocka_unit_test(ranks_that_abort_at_once_report_the_same),
        cmocka_unit_test(the_first_of_several_aborts_is_the_one_reported),
        cmocka_unit_test(destroy_needs_no_living_peer),
        cmocka_unit_test(a_buffer_that_cannot_be_taken_back_is_named),
        cmocka_unit_test(abort_and_destroy_are_bounded_at_every_state),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
