/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 1 is stopped (SIGSTOP) in the middle of an operation; the others give up
 * on it and use their buffers for something else; then rank 1 is continued and
 * writes to the addresses of the old operation. Not one byte of the others may
 * change. */
#include "support/test_job.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <oarsong/shared.h>

#include "base/clock.h"
#include "comm/group/group.h"
#include "device/segment.h"
#include "support/operation_case.h"

enum {
    STOPPED = 1,       /* the rank */
    TIMEOUT_MS = 200,  /* where the others give up by themselves */
    BOUND_MS = 1000,   /* beyond that, or after an abort */
    RUNS = 16,         /* until one fails: the first, or when mail is full */
    GUARD_BYTES = 5000 /* not a whole number of pages */
};

typedef struct stop_case {
    const operation_case *operation;
    int step;       /* at which rank 1 stops; -1: it does not */
    int by_timeout; /* else rank 0 aborts, from another thread */
    int threads;    /* the ranks are threads: rank 1 waits instead */
    int steps;      /* of rank 1 */
    shared_flag entered, give_up, refilled, go_on, went_on;
    _Atomic int64_t aborted_ns;
} stop_case;

/* What one rank has: its buffers between two guards that no other rank uses. */
typedef struct stop_rank {
    test_job *c;
    stop_case *context;
    int rank;
    operation_buffers buffers;
    unsigned char *guard[2];
    oari_segment_location place; /* of the output, if it is shared */
    oar_group *group;
} stop_rank;

/* ---- memory -------------------------------------------------------------- */

/* Of the output, and of the input. */
static size_t bytes_of(const stop_rank *s)
{
    return s->buffers.out_count * sizeof(float);
}

static size_t in_bytes_of(const stop_rank *s)
{
    return s->buffers.in_count * sizeof(float);
}

static size_t pages_of(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (bytes + page - 1) / page * page;
}

static int make_guard(stop_rank *s, int which)
{
    void *memory;

    JOB_CHECK(s->c, s->rank, oar_shared_alloc(GUARD_BYTES, &memory) == OAR_OK);
    s->guard[which] = memory;
    memset(memory, 0x11 << which, GUARD_BYTES);
    return 0;
}

static int make_memory(stop_rank *s)
{
    const unsigned char *out;

    if (make_guard(s, 0) != 0)
        return 1;
    JOB_CHECK(s->c, s->rank,
              operation_buffers_alloc(&s->buffers, s->context->operation,
                                      s->rank, s->c->ranks) == OAR_OK);
    if (make_guard(s, 1) != 0)
        return 1;
    if (!s->buffers.shared)
        return 0;
    out = (const unsigned char *)s->buffers.out;
    JOB_CHECK(s->c, s->rank,
              (const unsigned char *)s->buffers.in ==
                  s->guard[0] + pages_of(GUARD_BYTES));
    JOB_CHECK(s->c, s->rank, out + pages_of(bytes_of(s)) == s->guard[1]);
    JOB_CHECK(s->c, s->rank, oari_segment_find(out, bytes_of(s), &s->place));
    return 0;
}

static void drop_memory(stop_rank *s)
{
    operation_buffers_free(&s->buffers);
    oar_shared_free(s->guard[0]);
    oar_shared_free(s->guard[1]);
}

static unsigned char pattern(const stop_rank *s, size_t i, int out)
{
    return (unsigned char)(i * 7 + (size_t)s->rank * 31 + (size_t)out * 101);
}

static void refill(stop_rank *s)
{
    unsigned char *out = (unsigned char *)s->buffers.out;
    unsigned char *in = (unsigned char *)s->buffers.in;

    for (size_t i = 0; i < in_bytes_of(s); i++)
        in[i] = pattern(s, i, 0);
    for (size_t i = 0; i < bytes_of(s); i++)
        out[i] = pattern(s, i, in != out);
}

static int check_refill(const stop_rank *s)
{
    const unsigned char *out = (const unsigned char *)s->buffers.out;
    const unsigned char *in = (const unsigned char *)s->buffers.in;

    for (size_t i = 0; i < in_bytes_of(s); i++)
        JOB_CHECK(s->c, s->rank, in[i] == pattern(s, i, 0));
    for (size_t i = 0; i < bytes_of(s); i++)
        JOB_CHECK(s->c, s->rank, out[i] == pattern(s, i, in != out));
    return 0;
}

static int check_guards(const stop_rank *s)
{
    for (int which = 0; which < 2; which++) {
        for (size_t i = 0; i < GUARD_BYTES; i++)
            JOB_CHECK(s->c, s->rank, s->guard[which][i] == 0x11 << which);
        JOB_CHECK(s->c, s->rank,
                  oar_shared_reachable(s->guard[which], GUARD_BYTES));
    }
    return 0;
}

/* Whether peers were told to write straight into the output. */
static int exposed(const stop_rank *s)
{
    const operation_case *d = s->buffers.operation;

    return d->kind == OAR_COLL_ALL_REDUCE && d->algorithm == NULL &&
           bytes_of(s) > 512 && s->buffers.shared;
}

static int check_reach(const stop_rank *s)
{
    const operation_buffers *h = &s->buffers;

    if (!h->shared || bytes_of(s) == 0)
        return 0;
    JOB_CHECK(s->c, s->rank,
              oar_shared_reachable(h->out, bytes_of(s)) == !exposed(s));
    if (h->in != h->out)
        JOB_CHECK(s->c, s->rank, oar_shared_reachable(h->in, in_bytes_of(s)));
    return 0;
}

/* What a late rank 1 leaves at place i of the others' old pages: the sum, or,
 * if their inputs were elsewhere and are used for something else by now, at
 * least not the zero that was there. */
static int was_written(const stop_rank *s, const float *old, size_t i)
{
    int n = s->c->ranks;

    return s->buffers.operation->apart
               ? old[i] != 0
               : old[i] ==
                     (float)(n * (n + 1) / 2) + (float)n * (float)(i % 97);
}

/* The late write must have happened, or the test shows nothing. */
static int check_late_write(const stop_rank *s)
{
    size_t count = s->buffers.operation->count, bytes;
    size_t first = oari_slice_first(count, s->c->ranks, STOPPED);
    size_t end = oari_slice_first(count, s->c->ranks, STOPPED + 1);
    const float *old;
    void *base;
    int fd, written;

    if (!exposed(s) || s->buffers.operation->memory != OPERATION_SHARED ||
        s->context->step > 2)
        return 0;
    JOB_CHECK(s->c, s->rank,
              oari_segment_export(s->place.segment, &fd, &bytes) == OAR_OK);
    base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    JOB_CHECK(s->c, s->rank, base != MAP_FAILED);
    old = (const float *)((const char *)base + s->place.offset);
    written = was_written(s, old, first) && was_written(s, old, end - 1);
    munmap(base, bytes);
    JOB_CHECK(s->c, s->rank, written);
    return 0;
}

/* ---- the ranks ----------------------------------------------------------- */

static void stop_here(void *arg)
{
    stop_case *sc = arg;

    if (!sc->threads) {
        raise(SIGSTOP);
        return;
    }
    shared_flag_raise(&sc->give_up);
    shared_flag_await(&sc->go_on, 1, TEST_JOB_LIMIT_MS);
}

/* Runs it until it fails: at once, unless rank 1 had done its part. */
static int run_until_failure(stop_rank *s, oar_status *status)
{
    int64_t limit = s->context->by_timeout ? TIMEOUT_MS : 0;

    *status = OAR_OK;
    for (int i = 0; i < RUNS && *status == OAR_OK; i++) {
        int64_t start = oari_now_ns();
        operation_buffers_fill(&s->buffers);
        *status = operation_run(&s->buffers, s->group, limit);
        if (s->rank != STOPPED && s->context->by_timeout)
            JOB_CHECK(s->c, s->rank, is_in_time(start, TIMEOUT_MS + BOUND_MS));
        JOB_CHECK(s->c, s->rank,
                  *status != OAR_OK || operation_result_is_right(&s->buffers));
    }
    JOB_CHECK(s->c, s->rank,
              *status ==
                  (s->context->by_timeout ? OAR_E_TIMEOUT : OAR_E_ABORTED));
    return 0;
}

/* Waits until all ranks but rank 1 sleep, waiting for it. */
static int await_sleepers(const stop_rank *s)
{
    oari_control_page **control = s->group->shm->control;
    int64_t deadline = oari_deadline(TEST_JOB_LIMIT_MS);

    for (int r = 0; r < s->c->ranks; r++)
        while (r != STOPPED && !atomic_load(&control[r]->sleeping))
            if (oari_now_ns() > deadline || sched_yield() != 0)
                return 0;
    return 1;
}

static void *abort_when_told(void *arg)
{
    stop_rank *s = arg;

    if (shared_flag_await(&s->context->give_up, 1, TEST_JOB_LIMIT_MS) &&
        await_sleepers(s)) {
        atomic_store(&s->context->aborted_ns, oari_now_ns());
        oar_group_abort(s->group, "tired of waiting");
    }
    return NULL;
}

static int give_up_in_time(stop_rank *s)
{
    oar_status status;
    pthread_t thread;
    int aborts = s->rank == 0 && !s->context->by_timeout, failed;

    if (s->context->by_timeout)
        JOB_CHECK(
            s->c, s->rank,
            shared_flag_await(&s->context->entered, 1, TEST_JOB_LIMIT_MS));
    if (aborts)
        JOB_CHECK(s->c, s->rank,
                  pthread_create(&thread, NULL, abort_when_told, s) == 0);
    failed = run_until_failure(s, &status);
    if (aborts)
        pthread_join(thread, NULL);
    if (failed)
        return 1;
    if (!s->context->by_timeout)
        JOB_CHECK(s->c, s->rank, is_in_time(s->context->aborted_ns, BOUND_MS));
    return 0;
}

static int be_patient(stop_rank *s)
{
    if (give_up_in_time(s) != 0)
        return 1;
    refill(s);
    shared_flag_raise(&s->context->refilled);
    JOB_CHECK(s->c, s->rank,
              shared_flag_await(&s->context->went_on, 1, TEST_JOB_LIMIT_MS));
    return check_refill(s) || check_guards(s) || check_reach(s) ||
           check_late_write(s);
}

static int be_stopped(stop_rank *s)
{
    oar_status status;
    int failed;

    step_hook_set(s->context->step, stop_here, s->context);
    shared_flag_raise(&s->context->entered);
    failed = run_until_failure(s, &status);
    shared_flag_raise(&s->context->went_on);
    return failed || check_guards(s) || check_reach(s);
}

/* The same buffers, in a group that is whole. */
static int use_again(stop_rank *s)
{
    oar_group_opts o = operation_opts(s->buffers.operation, TEST_JOB_LIMIT_MS);

    o.name = "again";
    JOB_CHECK(s->c, s->rank,
              test_job_join(s->c, s->rank, &o, &s->group) == OAR_OK);
    operation_buffers_fill(&s->buffers);
    JOB_CHECK(s->c, s->rank, operation_run(&s->buffers, s->group, 0) == OAR_OK);
    JOB_CHECK(s->c, s->rank, operation_result_is_right(&s->buffers));
    oar_group_destroy(s->group);
    return check_guards(s);
}

static int run_case(test_job *c, int rank, void *arg)
{
    stop_rank s = { .c = c, .context = arg, .rank = rank };
    oar_group_opts o = operation_opts(s.context->operation, TEST_JOB_LIMIT_MS);
    int failed;

    if (make_memory(&s) != 0)
        return 1;
    RANK_CHECK(test_job_join(c, rank, &o, &s.group) == OAR_OK);
    failed = rank == STOPPED ? be_stopped(&s) : be_patient(&s);
    oar_group_destroy(s.group);
    failed = failed || use_again(&s);
    drop_memory(&s);
    return failed;
}

static int count_case(test_job *c, int rank, void *arg)
{
    stop_rank s = { .c = c, .context = arg, .rank = rank };
    oar_group_opts o = operation_opts(s.context->operation, TEST_JOB_LIMIT_MS);

    if (make_memory(&s) != 0)
        return 1;
    RANK_CHECK(test_job_join(c, rank, &o, &s.group) == OAR_OK);
    step_hook_set(-1, NULL, NULL);
    RANK_CHECK(operation_run(&s.buffers, s.group, 0) == OAR_OK);
    RANK_CHECK(operation_result_is_right(&s.buffers));
    if (rank == STOPPED)
        s.context->steps = step_hook_count();
    oar_group_destroy(s.group);
    drop_memory(&s);
    return 0;
}

/* ---- ranks as threads ---------------------------------------------------- */

/* Rank 1 came too late to read: it must not have what the root has now. */
static int check_unread(stop_rank *s)
{
    stop_rank root = { .rank = s->buffers.operation->last_root ? s->c->ranks - 1
                                                               : 0 };
    const unsigned char *out = (const unsigned char *)s->buffers.out;
    size_t same = 0;

    if (s->buffers.operation->kind != OAR_COLL_BROADCAST ||
        root.rank == s->rank)
        return 0;
    for (size_t i = 0; i < bytes_of(s); i++)
        same += out[i] == pattern(&root, i, 0);
    JOB_CHECK(s->c, s->rank, same < bytes_of(s) / 2);
    return 0;
}

static int be_late_thread(stop_rank *s)
{
    oar_status status;
    int failed;

    step_hook_set(s->context->step, stop_here, s->context);
    failed = run_until_failure(s, &status) || check_unread(s);
    shared_flag_raise(&s->context->went_on);
    return failed;
}

static int be_patient_thread(stop_rank *s)
{
    if (give_up_in_time(s) != 0)
        return 1;
    refill(s);
    shared_flag_raise(&s->context->refilled);
    JOB_CHECK(s->c, s->rank,
              shared_flag_await(&s->context->refilled,
                                (uint32_t)s->c->ranks - 1, TEST_JOB_LIMIT_MS));
    shared_flag_raise(&s->context->go_on);
    JOB_CHECK(s->c, s->rank,
              shared_flag_await(&s->context->went_on, 1, TEST_JOB_LIMIT_MS));
    return check_refill(s);
}

static oar_status run_thread(oar_group *g, void *arg)
{
    stop_rank s = { .context = arg, .rank = oar_group_rank(g), .group = g };
    test_job c = { .ranks = oar_group_size(g) };
    int failed;

    s.c = &c;
    snprintf(c.what, sizeof c.what, "%s, %d threads, stop at step %d",
             s.context->operation->name, c.ranks, s.context->step);
    CHECK_OK(operation_buffers_alloc(&s.buffers, s.context->operation, s.rank,
                                     c.ranks));
    step_hook_set(-1, NULL, NULL);
    failed = s.rank == STOPPED ? be_late_thread(&s) : be_patient_thread(&s);
    CHECK(!failed);
    operation_buffers_free(&s.buffers);
    return OAR_OK;
}

static oar_status count_thread(oar_group *g, void *arg)
{
    stop_case *sc = arg;
    operation_buffers h;

    CHECK_OK(operation_buffers_alloc(&h, sc->operation, oar_group_rank(g),
                                     oar_group_size(g)));
    step_hook_set(-1, NULL, NULL);
    CHECK_OK(operation_run(&h, g, 0));
    CHECK(operation_result_is_right(&h));
    if (oar_group_rank(g) == STOPPED)
        sc->steps = step_hook_count();
    operation_buffers_free(&h);
    return OAR_OK;
}

static void test_threads(const operation_case *d, int ranks, int step,
                         int *steps)
{
    oar_group_opts o = operation_opts(d, TEST_JOB_LIMIT_MS);
    stop_case *sc = shared_page(sizeof *sc);

    sc->operation = d;
    sc->step = step;
    sc->threads = 1;
    step_hook_set(-1, NULL, NULL); /* before there are threads */
    if (oar_sim_run_with(ranks, &o, steps != NULL ? count_thread : run_thread,
                         sc) != OAR_OK)
        fail_msg("%s, %d threads, step %d: %s", d->name, ranks, step,
                 oar_last_error_text());
    if (steps != NULL)
        *steps = sc->steps;
    shared_page_free(sc, sizeof *sc);
}

static void a_late_thread_neither_reads_nor_writes(void **state)
{
    int scenarios = 0;

    for (int ranks = 2; ranks <= 3; ranks++)
        for (const operation_case *d = operation_cases; d->name != NULL; d++) {
            int steps;
            test_threads(d, ranks, -1, &steps);
            for (int step = 0; step < steps - 1; step++, scenarios++)
                test_threads(d, ranks, step, NULL);
        }
    unsetenv("OARSONG_ALGO");
    print_message("%d stops\n", scenarios);
}

/* ---- the parent ---------------------------------------------------------- */

static int count_steps(const operation_case *d, int ranks)
{
    stop_case *sc = shared_page(sizeof *sc);
    int steps;
    test_job c;

    sc->operation = d;
    test_job_start(&c, ranks, count_case, sc, "%s, %d ranks", d->name, ranks);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    steps = sc->steps;
    shared_page_free(sc, sizeof *sc);
    return steps;
}

static void stop_at_step(const operation_case *d, int ranks, int step,
                         int by_timeout)
{
    stop_case *sc = shared_page(sizeof *sc);
    test_job c;

    sc->operation = d;
    sc->step = step;
    sc->by_timeout = by_timeout;
    test_job_start(&c, ranks, run_case, sc, "%s, %d ranks, stop at step %d, %s",
                   d->name, ranks, step, by_timeout ? "timeout" : "abort");
    if (!test_job_wait_stopped(&c, STOPPED, TEST_JOB_LIMIT_MS))
        test_job_give_up(&c, "rank %d did not stop", STOPPED);
    shared_flag_raise(&sc->give_up);
    if (!shared_flag_await(&sc->refilled, (uint32_t)ranks - 1,
                           TEST_JOB_LIMIT_MS))
        test_job_give_up(&c, "the others did not give up");
    kill(c.pid[STOPPED], SIGCONT);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    shared_page_free(sc, sizeof *sc);
}

/* Every step but the END, after which there is nothing to be late with. */
static void stop_everywhere(int ranks)
{
    int scenarios = 0;

    for (const operation_case *d = operation_cases; d->name != NULL; d++) {
        int steps = operation_is_chosen(d, ranks) ? count_steps(d, ranks) : 0;
        for (int step = 0; step < steps - 1; step++, scenarios++)
            stop_at_step(d, ranks, step, 0);
    }
    print_message("%d stops\n", scenarios);
}

static void a_late_writer_changes_nothing_after_an_abort(void **state)
{
    stop_everywhere(2);
}

static void
a_late_writer_cannot_hurt_the_two_others_after_an_abort(void **state)
{
    stop_everywhere(3);
}

static const operation_case *find_operation(const char *name)
{
    for (const operation_case *d = operation_cases; d->name != NULL; d++)
        if (strcmp(d->name, name) == 0)
            return d;
    fail_msg("there is no %s", name);
    return NULL;
}

/* Before the first meeting, after it, and before the last one. */
static void a_late_writer_changes_nothing_after_a_timeout(void **state)
{
    static const char *const names[] = { "all_reduce, direct",
                                         "all_reduce, direct, apart",
                                         "all_reduce, direct, private",
                                         "broadcast, direct, last root" };

    for (int i = 0; i < 4; i++)
        for (int ranks = 2; ranks <= 3; ranks++) {
            const operation_case *d = find_operation(names[i]);
            int last = count_steps(d, ranks) - 2;
            stop_at_step(d, ranks, 0, 1);
            stop_at_step(d, ranks, 2, 1);
            if (last > 2)
                stop_at_step(d, ranks, last, 1);
        }
}

static void a_small_operation_times_out_without_a_sync_point(void **state)
{
    stop_at_step(find_operation("all_reduce, line"), 2, 0, 1);
    stop_at_step(find_operation("all_reduce, line, shared, apart"), 3, 0, 1);
    stop_at_step(find_operation("barrier, line"), 3, 0, 1);
    stop_at_step(find_operation("all_reduce, staged, shared"), 2, 1, 1);
    stop_at_step(find_operation("all_reduce, exchange"), 3, 3, 1);
}

/* An argument is a pattern: only the tests that fit it are run. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_writer_changes_nothing_after_an_abort),
        cmocka_unit_test(
            a_late_writer_cannot_hurt_the_two_others_after_an_abort),
        cmocka_unit_test(a_late_writer_changes_nothing_after_a_timeout),
        cmocka_unit_test(a_late_thread_neither_reads_nor_writes),
        cmocka_unit_test(a_small_operation_times_out_without_a_sync_point),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
