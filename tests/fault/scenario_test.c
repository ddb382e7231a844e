/* SPDX-License-Identifier: Apache-2.0 */
/* The fault suite: every row of a table (support/scenario.h) with real
 * processes. One rank is killed, stopped or exits; the others must return the
 * same record, in time, that names it and the call that was running on the rank
 * that saw it first; use their buffers for something else without interference;
 * get the same record from every later call; leave in good order; and leave
 * nothing behind. A rank that was only stopped goes on afterwards, finds that
 * it is too late, and changes nothing.
 *
 *   scenario_test                  a sample with every pair of values
 *   scenario_test all              all rows; also OARSONG_TEST_ALL=1
 *   scenario_test NUMBER...        these rows
 * OARSONG_TEST_SEED is the seed (1).
 *
 * With OARSONG_TEST_ENGINE the rows run on an external engine;
 * support/tested_engine.h says what it cannot promise. Where a launcher ends
 * the whole job, no rank may have reported anything wrong, and autopsies that
 * name another rank than the one that died first are counted. */
#include "support/tested_engine.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <oarsong/memory.h>
#include <oarsong/p2p.h>

#include "base/clock.h"
#include "store/store_local.h"
#include "support/leak_check.h"
#include "support/mpi_ranks.h"
#include "support/rank_outcome.h"
#include "support/post_mortem.h"

enum {
    TIMEOUT_MS = 30000, /* of the groups: not what ends these operations */
    SAMPLE = 150,       /* rows, unless all are wanted */
    ENGINE_SAMPLE = 9,
    ENDED_MS = 15000, /* a job, after one of its ranks has died */
    DEAF_MS = 6000,   /* for an engine that does not hear of a timeout */
    SKIPPED = 77,
    RUNS = 3, /* that may succeed on some rank after the fault */
    EXIT_CODE = 7,
    FIRST_MOMENTS = 24 /* of the first operation, among which is chosen */
};

/* Limits, without and with an engine: that has to be found out about first. */
typedef struct limits {
    int64_t noticed_ms;   /* a death, at the latest */
    int64_t stopped_ms;   /* the timeout where a rank is stopped or missing */
    int64_t beyond_ms;    /* that timeout */
    int64_t joined_ms;    /* the timeout of those that have joined others that
                             have not */
    int64_t destroyed_ms; /* a group that is broken */
    int visits[4];        /* of the step at which a rank fails */
} limits;

static const limits of_links = { 2000, 300, 1000, 1200, 1000, { 0, 0, 1, 5 } };
static const limits of_engines = {
    6000, 1500, 2500, 4000, 3000, { 0, 1, 5, 60 }
};
static const limits *limit = &of_links;
static const tested_engine *on; /* NULL: none */

typedef struct scenario_page {
    scenario s;
    int moments[TEST_JOB_RANKS]; /* of a rendezvous in which no rank fails */
    _Atomic int64_t struck_ns;
    shared_flag warm;     /* ranks whose first operation went well */
    shared_flag reported; /* survivors that have their record */
    shared_flag woke;     /* the stopped rank has its own */
    rank_outcome of[TEST_JOB_RANKS];
} scenario_page;

/* What a rank acts with. */
typedef struct scenario_rank {
    test_job *c;
    scenario_page *g;
    rank_outcome *me;
    int rank;
    operation_buffers buffers;
    oar_group *group;
    char file[16];
    int64_t called_ns; /* the last call */
} scenario_rank;

/* ---- faults -------------------------------------------------------------- */

static void crash(const scenario *s)
{
    int signal_number = scenario_draw(s, 10, 2) ? SIGSEGV : SIGABRT;

    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void strike(void *arg)
{
    scenario_page *g = arg;

    if (atomic_load(&g->struck_ns) != 0)
        return;
    atomic_store(&g->struck_ns, oari_now_ns());
    switch (g->s.how) {
    case BY_KILL: raise(SIGKILL); break;
    case BY_STOP: raise(SIGSTOP); break;
    case BY_EXIT: exit(EXIT_CODE);
    default: crash(&g->s);
    }
}

static int code_of(const scenario *s)
{
    switch (s->how) {
    case BY_KILL: return 128 + SIGKILL;
    case BY_STOP: return 0;
    case BY_EXIT: return EXIT_CODE;
    default: return 128 + (scenario_draw(s, 10, 2) ? SIGSEGV : SIGABRT);
    }
}

/* ---- moments ------------------------------------------------------------- */

/* Everything that the library does to find its peers goes through here: changes
 * in the store, and these calls. Each has a moment before and one after. A
 * process that it forks (record/watchdog.c) is no rank. */
static int moments, strike_at = -1;
static scenario_page *struck_in;
static pid_t struck_pid;

static void pass_moment(void)
{
    if (moments++ == strike_at && getpid() == struck_pid)
        strike(struck_in);
}

static void watch_moments(scenario_page *g, int at)
{
    struck_in = g;
    struck_pid = getpid();
    moments = 0;
    strike_at = at;
}

#define WITH_MOMENTS(type, call) \
    do {                         \
        type result_;            \
        pass_moment();           \
        result_ = (type)(call);  \
        pass_moment();           \
        return result_;          \
    } while (0)

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    WITH_MOMENTS(int, syscall(SYS_connect, fd, address, length));
}

int accept4(int fd, struct sockaddr *restrict address,
            socklen_t *restrict length, int flags)
{
    WITH_MOMENTS(int, syscall(SYS_accept4, fd, address, length, flags));
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    WITH_MOMENTS(ssize_t, syscall(SYS_sendmsg, fd, message, flags));
}

ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    WITH_MOMENTS(ssize_t, syscall(SYS_sendto, fd, data, bytes, flags, NULL, 0));
}

ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
    WITH_MOMENTS(ssize_t,
                 syscall(SYS_recvfrom, fd, data, bytes, flags, NULL, NULL));
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    WITH_MOMENTS(ssize_t, syscall(SYS_recvmsg, fd, message, flags));
}

ssize_t readv(int fd, const struct iovec *piece, int pieces)
{
    WITH_MOMENTS(ssize_t, syscall(SYS_readv, fd, piece, pieces));
}

static oari_local_store_ops mortal_ops;
static const oari_local_store_ops *file_ops;

static oar_status mortal_update(void *self, const char *key,
                                oari_change_fn change, void *arg)
{
    WITH_MOMENTS(oar_status, file_ops->update(self, key, change, arg));
}

static oar_status mortal_store(const test_job *c, oar_store **store)
{
    oar_status status = test_job_store(c, store);
    oari_local_store *shelf;

    if (status != OAR_OK)
        return status;
    shelf = (*store)->self;
    file_ops = shelf->ops;
    mortal_ops = *file_ops;
    mortal_ops.update = mortal_update;
    shelf->ops = &mortal_ops;
    return OAR_OK;
}

/* ---- joining ------------------------------------------------------------- */

/* A rank that has joined waits longer than one that has not: those give up
 * first, and say why. */
static int64_t timeout_of(const scenario *s)
{
    return s->phase == IN_RENDEZVOUS ? limit->joined_ms
           : s->how == BY_STOP       ? limit->stopped_ms
                                     : TIMEOUT_MS;
}

/* Of "native": the first half of the ranks, rounded up, is on one host. So it
 * is in the same rows with an engine; Gloo has to be allowed it. */
static void choose_host(const scenario_rank *a)
{
    setenv("OARSONG_WIRE", "plain", on != NULL);
    if (strcmp(scenario_backends[a->g->s.backend], "native") == 0)
        setenv("OARSONG_HOST_ID", a->rank < (a->c->ranks + 1) / 2 ? "a" : "b",
               1);
}

static oar_status join_within(scenario_rank *a, int64_t timeout_ms)
{
    const scenario *s = &a->g->s;
    oar_group_opts o = operation_opts(&s->operation, timeout_ms);
    oar_store *store;
    oar_status status = mortal_store(a->c, &store);

    if (status != OAR_OK)
        return status;
    choose_host(a);
    o.backend = on != NULL ? on->name : scenario_backends[s->backend];
    a->called_ns = oari_now_ns();
    status = oar_group_create(store, a->rank, a->c->ranks, &o, &a->group);
    oar_store_destroy(store);
    return status;
}

static oar_status join(scenario_rank *a)
{
    int rendezvous = a->g->s.phase == IN_RENDEZVOUS;

    return join_within(a, rendezvous ? limit->stopped_ms : TEST_JOB_LIMIT_MS);
}

/* ---- calls --------------------------------------------------------------- */

static void begin_call(scenario_rank *a, oar_coll kind)
{
    a->me->kind = kind;
    a->buffers.file = a->file;
    a->buffers.line = ++a->me->calls;
    a->called_ns = oari_now_ns();
}

static oar_status run_operation(scenario_rank *a, int64_t timeout_ms)
{
    begin_call(a, a->buffers.operation->kind);
    operation_buffers_fill(&a->buffers);
    return operation_run(&a->buffers, a->group, timeout_ms);
}

static oar_status do_barrier(scenario_rank *a, int64_t timeout_ms)
{
    oar_call_opts o = oar_call_opts_init();

    o.timeout_ms = timeout_ms;
    begin_call(a, OAR_COLL_BARRIER);
    return oar_barrier_at(a->file, a->buffers.line, a->group, &o, NULL);
}

/* One that goes well on all ranks; its steps are counted. */
static int warm_up(scenario_rank *a)
{
    step_hook_set(-1, NULL, NULL);
    JOB_CHECK(a->c, a->rank, run_operation(a, TEST_JOB_LIMIT_MS) == OAR_OK);
    JOB_CHECK(a->c, a->rank, operation_result_is_right(&a->buffers));
    shared_flag_raise(&a->g->warm); /* a barrier could notice the fault */
    JOB_CHECK(a->c, a->rank,
              shared_flag_await(&a->g->warm, (uint32_t)a->c->ranks,
                                TEST_JOB_LIMIT_MS));
    return 0;
}

/* Returns whether a stop may have held up all ranks: then all succeed in the
 * end. */
static int is_deaf(const scenario *s)
{
    return on != NULL && on->deaf_at_start && s->phase == IN_RENDEZVOUS &&
           s->how == BY_STOP;
}

/* Where a rank had done its part before it failed, operations may succeed on
 * others; one that waits for all ranks fails. */
static int run_until_failure(scenario_rank *a)
{
    int64_t timeout_ms = timeout_of(&a->g->s);
    oar_status status = OAR_OK;

    for (int i = 0; i < RUNS && status == OAR_OK; i++) {
        status = run_operation(a, timeout_ms);
        JOB_CHECK(a->c, a->rank,
                  status != OAR_OK || operation_result_is_right(&a->buffers));
    }
    if (status == OAR_OK)
        status = do_barrier(a, timeout_ms);
    a->me->spared = status == OAR_OK && is_deaf(&a->g->s);
    JOB_CHECK(a->c, a->rank, status != OAR_OK || a->me->spared);
    a->me->status = status;
    return 0;
}

/* ---- the victim ---------------------------------------------------------- */

static void aim_inside(scenario_rank *a)
{
    const scenario *s = &a->g->s;
    int steps = step_hook_count();

    step_hook_set_waiting(scenario_draw(s, 11, steps > 0 ? steps : 1),
                          limit->visits[scenario_draw(s, 12, 4)], strike, a->g);
}

/* The first operation: at a step, or at a moment of making connections. */
static void aim_first(scenario_rank *a)
{
    const scenario *s = &a->g->s;

    if (s->backend == 0 || scenario_draw(s, 13, 3) == 0)
        step_hook_set(scenario_draw(s, 14, 8), strike, a->g);
    else
        watch_moments(a->g, scenario_draw(s, 15, FIRST_MOMENTS));
}

/* The chosen step may not exist: then the rank fails afterwards. A rank that is
 * continued after a stop gets an error of its own; or succeeds as all do, if it
 * held up all of them. */
static int be_victim(scenario_rank *a)
{
    scenario_page *g = a->g;

    if (g->s.phase == IN_FIRST)
        aim_first(a);
    else if (g->s.phase == INSIDE)
        aim_inside(a);
    else
        strike(g);
    if (!is_deaf(&g->s) && run_operation(a, timeout_of(&g->s)) == OAR_OK)
        strike(g);
    if (run_until_failure(a) != 0)
        return 1;
    shared_flag_raise(&g->woke);
    oar_group_destroy(a->group);
    return 0;
}

/* ---- survivors ----------------------------------------------------------- */

/* Counts from the fault or from the call, whichever was later. */
static int in_time(const scenario_rank *a)
{
    const scenario *s = &a->g->s;
    int64_t struck = atomic_load(&a->g->struck_ns);
    int64_t since = struck > a->called_ns ? struck : a->called_ns;
    int64_t most = !a->me->joined      ? limit->stopped_ms + limit->beyond_ms
                   : s->how == BY_STOP ? timeout_of(s) + limit->beyond_ms
                                       : limit->noticed_ms;

    return is_deaf(s) || is_in_time(since, most);
}

static unsigned char pattern(const scenario_rank *a, size_t i, int out)
{
    return (unsigned char)(i * 7 + (size_t)a->rank * 31 + (size_t)out * 101);
}

static void refill(scenario_rank *a)
{
    operation_buffers *h = &a->buffers;
    unsigned char *in = (unsigned char *)h->in, *out = (unsigned char *)h->out;

    for (size_t i = 0; i < h->in_count * sizeof(float); i++)
        in[i] = pattern(a, i, 0);
    for (size_t i = 0; in != out && i < h->out_count * sizeof(float); i++)
        out[i] = pattern(a, i, 1);
}

static int is_undisturbed(const scenario_rank *a)
{
    const operation_buffers *h = &a->buffers;
    const unsigned char *in = (const unsigned char *)h->in;
    const unsigned char *out = (const unsigned char *)h->out;

    for (size_t i = 0; i < h->in_count * sizeof(float); i++)
        if (in[i] != pattern(a, i, 0))
            return 0;
    for (size_t i = 0; in != out && i < h->out_count * sizeof(float); i++)
        if (out[i] != pattern(a, i, 1))
            return 0;
    return 1;
}

/* Every later call returns the same. */
static int check_later_calls(scenario_rank *a)
{
    const rank_outcome *me = a->me;
    float x = 0;
    oar_span one = oar_span_of(&x, 1, OAR_F32);
    int next = (a->rank + 1) % a->c->ranks;

    JOB_CHECK(a->c, a->rank, oar_barrier(a->group, NULL, NULL) == me->status);
    JOB_CHECK(a->c, a->rank,
              strcmp(oar_last_error_text(), me->record.text) == 0);
    JOB_CHECK(a->c, a->rank,
              oar_send(a->group, one, next, 9, NULL, NULL) == me->status);
    JOB_CHECK(a->c, a->rank,
              strcmp(oar_last_error_text(), me->record.text) == 0);
    return 0;
}

static int leave(scenario_rank *a)
{
    int64_t start = oari_now_ns();

    oar_group_destroy(a->group);
    JOB_CHECK(a->c, a->rank, is_in_time(start, limit->destroyed_ms));
    a->group = NULL;
    return 0;
}

/* Waits until no other rank can write to the buffers any more; but not for
 * ranks that an engine holds up in its start. */
static int await_others(scenario_rank *a)
{
    scenario_page *g = a->g;

    if (is_deaf(&g->s))
        return 0;
    JOB_CHECK(a->c, a->rank,
              shared_flag_await(&g->reported, (uint32_t)a->c->ranks - 1,
                                TEST_JOB_LIMIT_MS));
    if (g->s.how == BY_STOP)
        JOB_CHECK(a->c, a->rank,
                  shared_flag_await(&g->woke, 1, TEST_JOB_LIMIT_MS));
    return 0;
}

/* By the seed, the group is there or gone when the others end theirs. */
static int live_on(scenario_rank *a)
{
    int early = scenario_draw(&a->g->s, 16, 2);

    refill(a);
    if (early && (check_later_calls(a) || leave(a)))
        return 1;
    shared_flag_raise(&a->g->reported);
    if (await_others(a) != 0)
        return 1;
    JOB_CHECK(a->c, a->rank,
              (on != NULL && on->keeps_buffers) || is_undisturbed(a));
    return early ? 0 : check_later_calls(a) || leave(a);
}

static int survive(scenario_rank *a)
{
    rank_outcome *me = a->me;

    if (run_until_failure(a) != 0)
        return 1;
    if (me->spared)
        return shared_flag_raise(&a->g->reported), leave(a);
    JOB_CHECK(a->c, a->rank, in_time(a));
    me->record.size = sizeof me->record;
    JOB_CHECK(a->c, a->rank,
              oar_group_fault(a->group, &me->record) == me->status);
    me->failed = 1;
    return live_on(a);
}

/* There is no group: its own last error is all a rank has. */
static int survive_rendezvous(scenario_rank *a)
{
    a->me->record = *oar_last_error();
    JOB_CHECK(a->c, a->rank, in_time(a));
    a->me->failed = 1;
    shared_flag_raise(&a->g->reported);
    return await_others(a);
}

/* ---- a rank -------------------------------------------------------------- */

static int run_rank(scenario_rank *a)
{
    const scenario *s = &a->g->s;
    int victim = a->rank == s->victim;

    watch_moments(a->g, victim && s->phase == IN_RENDEZVOUS
                            ? scenario_draw(s, 17, a->g->moments[a->rank])
                            : -1);
    a->me->status = join(a);
    watch_moments(a->g, -1);
    a->me->joined = a->me->status == OAR_OK;
    JOB_CHECK(a->c, a->rank, a->me->joined || s->phase == IN_RENDEZVOUS);
    if (victim && !a->me->joined)
        return shared_flag_raise(&a->g->woke), 0;
    if (!a->me->joined)
        return survive_rendezvous(a);
    if ((s->phase == INSIDE || s->phase == BETWEEN) && warm_up(a) != 0)
        return 1;
    return victim ? be_victim(a) : survive(a);
}

/* An engine may have threads that are a little late. */
static int has_given_back(int descriptors, uint64_t live)
{
    int64_t deadline = oari_deadline(on != NULL ? limit->beyond_ms : 0);

    while (open_descriptors() != descriptors || memory_now().live != live) {
        if (oari_now_ns() >= deadline)
            return 0;
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
    return 1;
}

static void choose_engine(void)
{
    on = tested_engine_get();
    limit = on != NULL ? &of_engines : &of_links;
}

static int run_scenario(test_job *c, int rank, void *arg)
{
    scenario_page *g = arg;
    scenario_rank a = { .c = c, .g = g, .rank = rank, .me = &g->of[rank] };
    int descriptors;
    uint64_t live;

    snprintf(a.file, sizeof a.file, "rank%d.c", rank);
    choose_engine();
    if (on != NULL && on->dies_as_job)
        post_mortem_keep(c);
    RANK_CHECK(operation_buffers_alloc(&a.buffers, &g->s.operation, rank,
                                       c->ranks) == OAR_OK);
    descriptors = open_descriptors();
    live = memory_now().live;
    if (run_rank(&a) != 0)
        return 1;
    if (on != NULL &&
        (on->keeps_memory || (on->keeps_waiting && rank == g->s.victim)))
        return 0;
    RANK_CHECK(has_given_back(descriptors, live));
    operation_buffers_free(&a.buffers);
    return 0;
}

/* Returns how many moments a rendezvous has if no rank fails. */
static int count(test_job *c, int rank, void *arg)
{
    scenario_page *g = arg;
    scenario_rank a = { .c = c, .g = g, .rank = rank };

    choose_engine();
    RANK_CHECK(join_within(&a, TEST_JOB_LIMIT_MS) == OAR_OK);
    g->moments[rank] = moments;
    RANK_CHECK(oar_barrier(a.group, NULL, NULL) == OAR_OK);
    oar_group_destroy(a.group);
    return 0;
}

/* ---- a row --------------------------------------------------------------- */

/* A survivor that has ended otherwise than it should has failed; where all goes
 * well, one may have ended before another. */
static int await_survivors(test_job *c, scenario_page *g, failure_text why)
{
    int64_t deadline = oari_deadline(TEST_JOB_LIMIT_MS);
    int code;

    while (!shared_flag_await(&g->reported, (uint32_t)c->ranks - 1, 20)) {
        for (int r = 0; r < c->ranks; r++)
            if (r != g->s.victim && c->pid[r] != 0 &&
                (code = test_job_wait(c, r, 0)) != TEST_JOB_LATE && code != 0)
                return failure_write(why, "rank %d ended with %d", r, code);
        if (oari_now_ns() > deadline)
            return failure_write(why, "%d of %d survivors have reported",
                                 (int)atomic_load(&g->reported), c->ranks - 1);
    }
    return 1;
}

static int await_end(test_job *c, int rank, int code, failure_text why)
{
    int ended;

    if (c->pid[rank] == 0)
        return 1;
    ended = test_job_wait(c, rank, TEST_JOB_LIMIT_MS);
    if (ended == code)
        return 1;
    return failure_write(why, "rank %d ended with %d, not %d", rank, ended,
                         code);
}

static int let_go_on(test_job *c, int victim, failure_text why)
{
    if (!test_job_wait_stopped(c, victim, TEST_JOB_LIMIT_MS))
        return failure_write(why, "the victim was not stopped");
    kill(c->pid[victim], SIGCONT);
    return 1;
}

/* Returns whether all survivors have ended by themselves. */
static int are_through(test_job *c, int victim)
{
    for (int r = 0; r < c->ranks; r++)
        if (r != victim && test_job_wait(c, r, 0) != 0)
            return 0;
    return 1;
}

/* In the engine's own beginning, which nothing of ours can end. */
static int is_held_up(test_job *c, const scenario *s)
{
    if (!on->deaf_at_start || s->phase != IN_RENDEZVOUS)
        return 0;
    for (int r = 0; r < c->ranks; r++)
        if (test_job_wait(c, r, 0) == TEST_JOB_LATE) {
            kill(c->pid[r], SIGKILL);
            test_job_wait(c, r, DEAF_MS);
        }
    return 1;
}

/* With the first of them all end, at the latest soon; unless it died before the
 * launcher counted on it: then the others are told. */
static int follow_job(test_job *c, const scenario_page *g, failure_text why)
{
    int64_t deadline = oari_deadline(ENDED_MS);
    int victim = g->s.victim, code, over;

    while (!(over = mpi_ranks_await_end(c, 20)) && !are_through(c, victim))
        if (oari_now_ns() > deadline)
            return is_held_up(c, &g->s) ||
                   failure_write(why, "the job lives on");
    for (int r = 0; r < c->ranks; r++)
        if (r != victim && (code = test_job_wait(c, r, 0)) > 0)
            return failure_write(why, "rank %d ended with %d", r, code);
    if (!outcomes_check_partial(&g->s, g->of, why))
        return 0;
    return !over || post_mortem_names(c, victim, why);
}

/* One that comes when the others have given up waits for them until it is
 * ended, as a launcher does. */
static void end_deaf(test_job *c, int victim)
{
    if (test_job_wait(c, victim, DEAF_MS / 2) != TEST_JOB_LATE)
        return;
    kill(c->pid[victim], SIGKILL);
    test_job_wait(c, victim, DEAF_MS);
}

/* One that was told ends well; one that was not may be held up with the victim,
 * or with those that came when others had given up, but only in the beginning.
 */
static int end_survivor(test_job *c, const scenario_page *g, int rank,
                        failure_text why)
{
    const rank_outcome *w = &g->of[rank];
    int held_up = !w->joined && !w->failed, code;

    if (!held_up)
        return await_end(c, rank, 0, why);
    if ((code = test_job_wait(c, rank, 0)) > 0)
        return failure_write(why, "rank %d ended with %d", rank, code);
    end_deaf(c, rank);
    return 1;
}

/* The victim is stopped in the engine's beginning. It goes on when all others
 * have been told, or have had the time for it. */
static int follow_deaf(test_job *c, scenario_page *g, failure_text why)
{
    uint32_t others = (uint32_t)c->ranks - 1;
    int victim = g->s.victim,
        all = shared_flag_await(&g->reported, others, DEAF_MS);

    if (mpi_ranks_is_stopped(c, victim) && !let_go_on(c, victim, why))
        return 0;
    all = all || shared_flag_await(&g->reported, others, DEAF_MS);
    for (int r = 0; r < c->ranks; r++)
        if (r != victim && !end_survivor(c, g, r, why))
            return 0;
    end_deaf(c, victim);
    return all ? outcomes_check(&g->s, g->of, why)
               : outcomes_check_partial(&g->s, g->of, why);
}

static int follow(test_job *c, scenario_page *g, failure_text why)
{
    int victim = g->s.victim;

    if (on != NULL && on->dies_as_job && g->s.how != BY_STOP)
        return follow_job(c, g, why);
    if (is_deaf(&g->s))
        return follow_deaf(c, g, why);
    if (!await_survivors(c, g, why))
        return 0;
    if (g->s.how == BY_STOP && !let_go_on(c, victim, why))
        return 0;
    for (int r = 0; r < c->ranks; r++)
        if (!await_end(c, r, r == victim ? code_of(&g->s) : 0, why))
            return 0;
    return outcomes_check(&g->s, g->of, why);
}

/* Of each backend and size, counted when first needed. */
static void find_moments(scenario_page *g)
{
    static int known[SCENARIO_BACKENDS][TEST_JOB_RANKS + 1][TEST_JOB_RANKS];
    int *mine = known[g->s.backend][g->s.ranks];
    test_job c;

    if (mine[0] == 0) {
        tested_engine_start(on, &c, g->s.ranks, count, g,
                            "moments of a rendezvous");
        for (int r = 0; r < c.ranks; r++)
            test_job_expect(&c, r, 0);
        test_job_end(&c);
        memcpy(mine, g->moments, sizeof g->moments);
    }
    memcpy(g->moments, mine, sizeof g->moments);
}

/* 1 if all was as it must be. */
static int run_row(int number, uint64_t seed)
{
    scenario_page *g = shared_page(sizeof *g);
    char name[128], what[160];
    failure_text why = "";
    const char *rest;
    test_job c;

    scenario_make(&g->s, number, seed);
    scenario_name(&g->s, name, sizeof name);
    if (g->s.phase == IN_RENDEZVOUS)
        find_moments(g);
    snprintf(what, sizeof what, "%d: %s", number, name);
    tested_engine_start(on, &c, g->s.ranks, run_scenario, g, what);
    follow(&c, g, why);
    post_mortem_clear(&c);
    rest = test_job_close(&c);
    if (why[0] != 0 && on != NULL && on->launcher != NULL)
        mpi_ranks_print_output();
    if (why[0] == 0 && rest != NULL)
        failure_write(why, "%s", rest);
    if (why[0] != 0)
        print_message("scenario %d (%s) with seed %llu: %s\n", number, name,
                      (unsigned long long)seed, why);
    shared_page_free(g, sizeof *g);
    return why[0] == 0;
}

/* ---- the tests ----------------------------------------------------------- */

static uint64_t seed = 1;
static int wanted[SCENARIO_MOST], wanted_count;

static void a_rank_that_fails_is_named_by_all_survivors(void **state)
{
    int64_t start = oari_now_ns();
    int failed = 0;

    for (int i = 0; i < wanted_count; i++)
        failed += !run_row(wanted[i], seed);
    print_message("%d of %d scenarios, seed %llu, %lld ms: %d failed\n",
                  wanted_count, scenario_count(), (unsigned long long)seed,
                  (long long)ms_since(start), failed);
    assert_int_equal(failed, 0);
}

static void every_pair_of_values_occurs_in_the_table(void **state)
{
    static int order[SCENARIO_MOST];
    int first;

    assert_in_range(scenario_count(), 300, SCENARIO_MOST);
    first = scenario_order(seed, order);
    assert_in_range(first, 40, SAMPLE);
}

static void choose_rows(int argc, char **argv)
{
    const char *given = getenv("OARSONG_TEST_SEED");
    const char *all = getenv("OARSONG_TEST_ALL");

    if (given != NULL)
        seed = strtoull(given, NULL, 10);
    scenario_order(seed, wanted);
    wanted_count = on != NULL ? ENGINE_SAMPLE : SAMPLE;
    if ((all != NULL && strcmp(all, "1") == 0) ||
        (argc == 2 && strcmp(argv[1], "all") == 0))
        wanted_count = scenario_count();
    else if (argc > 1)
        wanted_count = 0;
    for (int i = 1; wanted_count < i && i < argc; i++)
        wanted[wanted_count++] = atoi(argv[i]) % scenario_count();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_values_occurs_in_the_table),
        cmocka_unit_test(a_rank_that_fails_is_named_by_all_survivors),
    };

    int code;

    if (mpi_ranks_run_child(&code))
        return code;
    choose_engine();
    if (on != NULL && !tested_engine_is_available(on))
        return SKIPPED;
    choose_rows(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
