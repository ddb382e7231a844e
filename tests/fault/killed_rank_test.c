/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies: at every step of every plan, while the ranks find each other,
 * and in other ways than by a signal. Every survivor learns in time which rank
 * it was, ends in good order, and leaves nothing behind. */
#include "support/test_job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <oarsong/p2p.h>

#include "base/clock.h"
#include "store/store_local.h"
#include "support/operation_case.h"

enum {
    NOTICED_MS = 2000,   /* a death, at the latest */
    TIMEOUT_MS = 30000,  /* of the groups: not what ends these operations */
    RENDEZVOUS_MS = 250, /* of the groups that are never complete */
    KILLED = 128 + SIGKILL
};

static void die(void *arg)
{
    raise(SIGKILL);
}

/* ---- at every step of every plan ----------------------------------------- */

typedef struct kill_case {
    const operation_case *operation;
    int victim, step; /* -1: no rank dies, the steps are counted */
    int steps[TEST_JOB_RANKS];
} kill_case;

static int check_record(test_job *c, int rank, const oar_group *g, int victim)
{
    oar_error record = { .size = sizeof record };
    char name[16];

    snprintf(name, sizeof name, "rank %d ", victim);
    RANK_CHECK(oar_group_fault(g, &record) == OAR_E_PEER);
    RANK_CHECK(record.peer == victim);
    RANK_CHECK(record.rank != victim);
    RANK_CHECK(strstr(record.text, name) != NULL);
    RANK_CHECK(strcmp(record.text, oar_last_error_text()) == 0);
    return 0;
}

/* If the victim had done its part, an operation is whole, and the next one that
 * waits for all ranks fails. */
static int survive(test_job *c, int rank, oar_group *g, operation_buffers *h,
                   int victim)
{
    oar_status status = OAR_OK;

    for (int i = 0; status == OAR_OK && i < 2; i++) {
        int64_t start = oari_now_ns();
        operation_buffers_fill(h);
        status = operation_run(h, g, 0);
        RANK_CHECK(is_in_time(start, NOTICED_MS));
        RANK_CHECK(status != OAR_OK || operation_result_is_right(h));
    }
    if (status == OAR_OK)
        status = oar_barrier(g, NULL, NULL);
    RANK_CHECK(status == OAR_E_PEER);
    return check_record(c, rank, g, victim);
}

static int run_case(test_job *c, int rank, void *arg)
{
    kill_case *p = arg;
    oar_group_opts o = operation_opts(p->operation, TIMEOUT_MS);
    operation_buffers h;
    oar_group *g;
    int failed = 0;

    RANK_CHECK(operation_buffers_alloc(&h, p->operation, rank, c->ranks) ==
               OAR_OK);
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
    step_hook_set(rank == p->victim ? p->step : -1, die, NULL);
    if (p->victim >= 0 && rank != p->victim)
        failed = survive(c, rank, g, &h, p->victim);
    else {
        RANK_CHECK(operation_run(&h, g, 0) == OAR_OK);
        RANK_CHECK(operation_result_is_right(&h));
        p->steps[rank] = step_hook_count();
    }
    oar_group_destroy(g);
    operation_buffers_free(&h);
    return failed;
}

static void count_steps(kill_case *p, int ranks)
{
    test_job c;

    p->victim = p->step = -1;
    test_job_start(&c, ranks, run_case, p, "%s, %d ranks", p->operation->name,
                   ranks);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

static void kill_at(kill_case *p, int ranks, int victim, int step)
{
    test_job c;

    p->victim = victim;
    p->step = step;
    test_job_start(&c, ranks, run_case, p,
                   "%s, %d ranks, rank %d dies at step %d", p->operation->name,
                   ranks, victim, step);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, r == victim ? KILLED : 0);
    test_job_end(&c);
}

static int kill_everywhere(int ranks)
{
    kill_case *p = shared_page(sizeof *p);
    int scenarios = 0;

    for (const operation_case *d = operation_cases; d->name != NULL; d++) {
        if (!operation_is_chosen(d, ranks))
            continue;
        p->operation = d;
        count_steps(p, ranks);
        for (int victim = 0; victim < ranks; victim++)
            for (int step = 0; step < p->steps[victim]; step++, scenarios++)
                kill_at(p, ranks, victim, step);
    }
    shared_page_free(p, sizeof *p);
    return scenarios;
}

static void a_death_at_any_step_is_reported_by_the_other_of_two(void **state)
{
    print_message("%d deaths\n", kill_everywhere(2));
}

static void a_death_at_any_step_is_reported_by_the_others_of_three(void **state)
{
    print_message("%d deaths\n", kill_everywhere(3));
}

/* ---- while the ranks find each other ------------------------------------- */

/* Whatever the library does to meet its peers comes through here: changes in
 * the store, and these four calls. Each has a moment before and one after. */
static int moments, die_at = -1;

static void pass_moment(void)
{
    if (moments++ == die_at)
        die(NULL);
}

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    int result;

    pass_moment();
    result = (int)syscall(SYS_connect, fd, address, length);
    pass_moment();
    return result;
}

int accept4(int fd, struct sockaddr *restrict address,
            socklen_t *restrict length, int flags)
{
    int result;

    pass_moment();
    result = (int)syscall(SYS_accept4, fd, address, length, flags);
    pass_moment();
    return result;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t result;

    pass_moment();
    result = syscall(SYS_sendmsg, fd, message, flags);
    pass_moment();
    return result;
}

ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    ssize_t result;

    pass_moment();
    result = syscall(SYS_sendto, fd, data, bytes, flags, NULL, 0);
    pass_moment();
    return result;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t result;

    pass_moment();
    result = syscall(SYS_recvmsg, fd, message, flags);
    pass_moment();
    return result;
}

static oari_local_store_ops mortal_ops;
static const oari_local_store_ops *file_ops;

static oar_status mortal_update(void *self, const char *key,
                                oari_change_fn change, void *arg)
{
    oar_status status;

    pass_moment();
    status = file_ops->update(self, key, change, arg);
    pass_moment();
    return status;
}

static oar_status mortal_join(const test_job *c, int rank, int64_t timeout_ms,
                              oar_group **group)
{
    oar_group_opts o = oar_group_opts_init();
    char path[160];
    oar_store *store;
    oari_local_store *shelf;
    oar_status status;

    snprintf(path, sizeof path, "%s/store", c->folder);
    if ((status = oar_store_create_file(path, &store)) != OAR_OK)
        return status;
    shelf = store->self;
    file_ops = shelf->ops;
    mortal_ops = *file_ops;
    mortal_ops.update = mortal_update;
    shelf->ops = &mortal_ops;
    o.backend = "shm";
    o.timeout_ms = timeout_ms;
    status = oar_group_create(store, rank, c->ranks, &o, group);
    oar_store_destroy(store);
    return status;
}

typedef struct rendezvous_case {
    int victim, moment; /* -1: no rank dies, the moments are counted */
    int moments[TEST_JOB_RANKS];
    int named[TEST_JOB_RANKS];
    int met[TEST_JOB_RANKS]; /* no rank has died */
} rendezvous_case;

/* The group may be there before the victim dies: then it dies in the group. */
static oar_status join_or_fail(test_job *c, int rank, int64_t timeout_ms,
                               oar_group **g)
{
    oar_status status = mortal_join(c, rank, timeout_ms, g);

    return status == OAR_OK ? oar_barrier(*g, NULL, NULL) : status;
}

static int run_rendezvous(test_job *c, int rank, void *arg)
{
    rendezvous_case *t = arg;
    oar_group *g = NULL;
    int64_t start = oari_now_ns();
    oar_status status;
    char name[16];

    die_at = rank == t->victim ? t->moment : -1;
    status = join_or_fail(
        c, rank, t->victim < 0 ? TIMEOUT_MS : busy_ms(RENDEZVOUS_MS), &g);
    t->moments[rank] = moments;
    if (t->victim < 0)
        RANK_CHECK(status == OAR_OK);
    else if (status != OAR_OK) {
        RANK_CHECK(status == OAR_E_TIMEOUT || status == OAR_E_PEER);
        RANK_CHECK(is_in_time(start, RENDEZVOUS_MS + NOTICED_MS));
        snprintf(name, sizeof name, "rank %d ", t->victim);
        t->named[rank] = strstr(oar_last_error_text(), name) != NULL;
    }
    t->met[rank] = status == OAR_OK;
    oar_group_destroy(g);
    return 0;
}

/* How often a rank has to look again is not the same every time: the last
 * moment that was counted may not come. Then all have met. */
static int nobody_died(const rendezvous_case *t, int ranks)
{
    int met = 0;

    for (int r = 0; r < ranks; r++)
        met += t->met[r];
    return met == ranks;
}

/* Of three ranks, one may have heard of the victim's death only through the
 * other, which left because of it. Returns whether the victim died. */
static int die_in_rendezvous(rendezvous_case *t, int ranks, int victim,
                             int moment)
{
    int named = 0, ended = 0, died;
    test_job c;

    memset(t->named, 0, sizeof t->named);
    memset(t->met, 0, sizeof t->met);
    t->victim = victim;
    t->moment = moment;
    test_job_start(&c, ranks, run_rendezvous, t,
                   "rendezvous of %d, rank %d dies at moment %d", ranks, victim,
                   moment);
    for (int r = 0; r < ranks; r++)
        if (r != victim)
            test_job_expect(&c, r, 0);
        else
            ended = test_job_wait(&c, r, TEST_JOB_LIMIT_MS);
    died = ended == KILLED;
    if (!died && !nobody_died(t, ranks))
        test_job_give_up(&c, "the victim ended with %d", ended);
    for (int r = 0; r < ranks; r++)
        named += t->named[r];
    if (died && named == 0)
        test_job_give_up(&c, "no rank named rank %d", victim);
    test_job_end(&c);
    return died;
}

static void count_moments(rendezvous_case *t, int ranks)
{
    test_job c;

    t->victim = t->moment = -1;
    test_job_start(&c, ranks, run_rendezvous, t, "rendezvous of %d", ranks);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
}

enum { UNREACHED = 3 }; /* moments of a rank, at most */

/* Each row waits for a timeout: so every third moment, others for each rank;
 * all of them with OARSONG_TEST_ALL=1. */
static void a_death_during_rendezvous_is_reported_in_time(void **state)
{
    rendezvous_case *t = shared_page(sizeof *t);
    int deaths = 0, step = getenv("OARSONG_TEST_ALL") != NULL ? 1 : 3;

    for (int ranks = 2; ranks <= 3; ranks++) {
        count_moments(t, ranks);
        for (int victim = 0; victim < ranks; victim++) {
            int counted = t->moments[victim], tried = 0, died = 0;
            for (int m = (ranks + victim) % step; m < counted; m += step) {
                died += die_in_rendezvous(t, ranks, victim, m);
                tried++;
            }
            assert_in_range(tried - died, 0, UNREACHED);
            deaths += died;
        }
    }
    print_message("%d deaths\n", deaths);
    shared_page_free(t, sizeof *t);
}

/* ---- other ends ---------------------------------------------------------- */

static void crash(void *arg)
{
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
}

static void leave_early(void *arg)
{
    exit(0);
}

typedef struct exit_way {
    const char *name;
    void (*end)(void *arg);
    int code;
} exit_way;

static const exit_way endings[] = {
    { "a crash", crash, 128 + SIGSEGV },
    { "an exit without destroy", leave_early, 0 },
};

typedef struct exit_case {
    const exit_way *ending;
    const operation_case *operation;
    int victim, step;
} exit_case;

static int run_exit_case(test_job *c, int rank, void *arg)
{
    exit_case *q = arg;
    oar_group_opts o = operation_opts(q->operation, TIMEOUT_MS);
    operation_buffers h;
    oar_group *g;
    int failed;

    RANK_CHECK(operation_buffers_alloc(&h, q->operation, rank, c->ranks) ==
               OAR_OK);
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
    if (rank == q->victim)
        step_hook_set(q->step, q->ending->end, NULL);
    failed = survive(c, rank, g, &h, q->victim);
    oar_group_destroy(g);
    operation_buffers_free(&h);
    return failed;
}

static void exit_at_step(const exit_case *q, int ranks)
{
    exit_case copy = *q;
    test_job c;

    test_job_start(&c, ranks, run_exit_case, &copy,
                   "%s, %d ranks, %s of rank %d at %d", q->operation->name,
                   ranks, q->ending->name, q->victim, q->step);
    for (int r = 0; r < ranks; r++)
        test_job_expect(&c, r, r == q->victim ? q->ending->code : 0);
    test_job_end(&c);
}

static void a_crash_or_an_exit_without_destroy_is_a_death(void **state)
{
    for (int e = 0; e < 2; e++)
        for (const operation_case *d = operation_cases; d->name != NULL; d++)
            for (int victim = 0; victim < 2; victim++)
                exit_at_step(&(exit_case){ &endings[e], d, victim, 1 },
                             2 + victim);
}

/* ---- messages ------------------------------------------------------------ */

/* A receive whose sender dies after half of the message; a send whose receiver
 * dies; a message that was whole before its sender died arrives. */
static int run_message(test_job *c, int rank, void *arg)
{
    enum { LONG = 100000 };
    shared_flag *sent = arg;
    static float x[LONG];
    oar_span s = oar_span_of(x, 3, OAR_F32);
    oar_span l = oar_span_of(x, LONG, OAR_F32);
    oar_group_opts o = oar_group_opts_init();
    oar_group *g;
    oar_work *work = NULL;

    o.timeout_ms = TIMEOUT_MS;
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
    if (rank == 1) {
        x[2] = 7;
        RANK_CHECK(oar_send(g, s, 0, 1, NULL, NULL) == OAR_OK);
        RANK_CHECK(oar_send(g, l, 0, 2, NULL, &work) == OAR_OK);
        shared_flag_raise(sent);
        RANK_CHECK(shared_flag_await(sent, 2, TEST_JOB_LIMIT_MS));
        die(NULL);
    }
    RANK_CHECK(shared_flag_await(sent, 1, TEST_JOB_LIMIT_MS));
    RANK_CHECK(oar_recv(g, s, 1, 1, NULL, NULL) == OAR_OK);
    RANK_CHECK(x[2] == 7);
    shared_flag_raise(sent);
    RANK_CHECK(oar_recv(g, l, 1, 3, NULL, &work) == OAR_OK);
    RANK_CHECK(oar_work_wait(work) == OAR_E_PEER);
    oar_work_release(work);
    RANK_CHECK(oar_send(g, l, 1, 4, NULL, NULL) == OAR_E_PEER);
    if (check_record(c, rank, g, 1) != 0)
        return 1;
    oar_group_destroy(g);
    return 0;
}

static void a_message_of_the_dead_arrives_or_fails(void **state)
{
    shared_flag *sent = shared_page(sizeof *sent);
    test_job c;

    test_job_start(&c, 2, run_message, sent, "messages of the dead");
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, KILLED);
    test_job_end(&c);
    shared_page_free(sent, sizeof *sent);
}

/* ---- operations in a row ------------------------------------------------- */

/* ---- probes -------------------------------------------------------------- */

/* Rank 0 asks for a message that never comes, after one that did. */
typedef struct receive_case {
    const char *backend;
    int source, polls, leaves; /* they poll, and the others leave */
    shared_flag asked;
} receive_case;

static oar_status receive_until_death(oar_group *g, const receive_case *q)
{
    int64_t start = oari_now_ns();
    oar_status status = OAR_OK;
    int found = 0;

    if (!q->polls)
        return oar_probe_wait(g, q->source, 5, 0, NULL);
    while (status == OAR_OK && !found && ms_since(start) < TIMEOUT_MS)
        status = oar_probe(g, q->source, 5, &found, NULL);
    return status;
}

static int run_receive_case(test_job *c, int rank, void *arg)
{
    receive_case *q = arg;
    oar_group_opts o = oar_group_opts_init();
    oar_span none = oar_span_of(NULL, 0, OAR_F32);
    oar_message m = oar_message_init();
    oar_error record = { .size = sizeof record };
    int64_t start;
    oar_group *g;

    o.backend = q->backend;
    o.timeout_ms = TIMEOUT_MS;
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
    if (rank != 0) {
        RANK_CHECK(oar_send(g, none, 0, 4, NULL, NULL) == OAR_OK);
        RANK_CHECK(shared_flag_await(&q->asked, 1, TEST_JOB_LIMIT_MS));
        if (!q->leaves)
            die(NULL);
        oar_group_destroy(g);
        return 0;
    }
    JOB_CHECK(c, 0, oar_probe_wait(g, 1, 5, 1, &m) == OAR_E_TIMEOUT);
    JOB_CHECK(c, 0, oar_probe_wait(g, q->source, 4, 0, &m) == OAR_OK);
    shared_flag_raise(&q->asked);
    start = oari_now_ns();
    JOB_CHECK(c, 0, receive_until_death(g, q) == OAR_E_PEER);
    JOB_CHECK(c, 0, ms_since(start) < NOTICED_MS);
    JOB_CHECK(c, 0, oar_group_fault(g, &record) == OAR_E_PEER);
    JOB_CHECK(c, 0, q->source < 0 || record.peer == q->source);
    JOB_CHECK(c, 0, strcmp(record.operation, "probe") == 0);
    JOB_CHECK(c, 0, strncmp(record.site, "killed_rank_test.c:", 12) == 0);
    oar_group_destroy(g);
    return 0;
}

static void a_probe_does_not_wait_for_ranks_that_are_gone(void **state)
{
    static const char *const backend[] = { "shm", "tcp", "native" };

    for (int row = 0; row < 3 * 2 * 2 * 2; row++) {
        receive_case *q = shared_page(sizeof *q);
        test_job c;

        q->backend = backend[row % 3];
        q->source = row / 3 % 2 == 0 ? 1 : OAR_ANY_SOURCE;
        q->polls = row / 6 % 2;
        q->leaves = row / 12 % 2;
        test_job_start(&c, 3, run_receive_case, q,
                       "%s of rank %d over %s, which %s",
                       q->polls ? "polls" : "a probe", q->source, q->backend,
                       q->leaves ? "leaves" : "dies");
        for (int r = 0; r < 3; r++)
            test_job_expect(&c, r, r == 0 || q->leaves ? 0 : KILLED);
        test_job_end(&c);
        shared_page_free(q, sizeof *q);
    }
}

enum { ROW = 5 };

static void count_failed(void *arg, oar_status status)
{
    if (status == OAR_E_PEER)
        shared_flag_raise(arg);
}

/* No caller waits for them: the engine's thread has to notice. */
static int run_row(test_job *c, int rank, void *arg)
{
    static shared_flag failed;
    static float x[ROW];
    oar_work *work[ROW + 1];
    oar_group *g;

    RANK_CHECK(test_job_join(c, rank, NULL, &g) == OAR_OK);
    if (rank == 1) {
        RANK_CHECK(shared_flag_await(arg, 1, TEST_JOB_LIMIT_MS));
        die(NULL);
    }
    for (int i = 0; i < ROW; i++)
        RANK_CHECK(oar_all_reduce(g, oar_span_of(&x[i], 1, OAR_F32), OAR_SUM,
                                  NULL, &work[i]) == OAR_OK);
    RANK_CHECK(oar_recv(g, oar_span_of(x, 0, OAR_F32), 1, 1, NULL,
                        &work[ROW]) == OAR_OK);
    for (int i = 0; i <= ROW; i++)
        RANK_CHECK(oar_work_then(work[i], count_failed, &failed) == OAR_OK);
    shared_flag_raise(arg);
    RANK_CHECK(shared_flag_await(&failed, ROW + 1, NOTICED_MS));
    for (int i = 0; i <= ROW; i++)
        oar_work_release(work[i]);
    if (check_record(c, rank, g, 1) != 0)
        return 1;
    oar_group_destroy(g);
    return 0;
}

static void a_death_ends_operations_that_no_caller_waits_for(void **state)
{
    shared_flag *posted = shared_page(sizeof *posted);
    test_job c;

    test_job_start(&c, 2, run_row, posted, "a row of operations");
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, KILLED);
    test_job_end(&c);
    shared_page_free(posted, sizeof *posted);
}

/* ---- the rank that serves the store -------------------------------------- */

/* Rank 0 serves the store and goes before its operation number `after`. */
typedef struct store_case {
    const char *backend;
    int64_t timeout_ms;
    int after, leaves; /* it destroys its group and exits, rather than dies */
    char address[64];
    shared_flag serves, joined;
} store_case;

static oar_status join_store_of_rank_0(test_job *c, int rank, store_case *h,
                                       oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();
    oar_store_server *server = NULL;
    oar_store *store;
    oar_status status;

    if (rank == 0) {
        if ((status = oar_store_serve("127.0.0.1:0", &server)) != OAR_OK)
            return status;
        snprintf(h->address, sizeof h->address, "%s",
                 oar_store_server_address(server));
        shared_flag_raise(&h->serves);
    }
    if (!shared_flag_await(&h->serves, 1, TEST_JOB_LIMIT_MS))
        return OAR_E_TIMEOUT;
    if (rank > 1 && strcmp(h->backend, "native") == 0)
        setenv("OARSONG_HOST_ID", "another", 1);
    o.backend = h->backend;
    o.timeout_ms = h->timeout_ms;
    status = oar_store_create_tcp(h->address, h->timeout_ms, &store);
    if (status == OAR_OK)
        status = oar_group_create(store, rank, c->ranks, &o, g);
    if (status == OAR_OK)
        oar_store_destroy(store);
    return status;
}

static int lose_store(test_job *c, int rank, void *arg)
{
    store_case *h = arg;
    oar_status status = OAR_OK;
    float x = 1;
    oar_group *g;
    int64_t start = 0;

    RANK_CHECK(join_store_of_rank_0(c, rank, h, &g) == OAR_OK);
    shared_flag_raise(&h->joined);
    RANK_CHECK(
        shared_flag_await(&h->joined, (uint32_t)c->ranks, TEST_JOB_LIMIT_MS));
    /* what rank 0 has done its part of may be the one that fails elsewhere */
    for (int i = 0; i < h->after + (rank != 0) && status == OAR_OK; i++) {
        start = oari_now_ns();
        status =
            oar_all_reduce(g, oar_span_of(&x, 1, OAR_F32), OAR_SUM, NULL, NULL);
    }
    if (rank == 0) {
        RANK_CHECK(status == OAR_OK);
        if (!h->leaves)
            die(NULL);
        oar_group_destroy(g);
        _exit(0); /* and the server with it */
    }
    RANK_CHECK(status == OAR_E_PEER);
    RANK_CHECK(ms_since(start) < NOTICED_MS);
    if (check_record(c, rank, g, 0) != 0)
        return 1;
    oar_group_destroy(g);
    return 0;
}

static void a_death_of_the_rank_that_serves_the_store_is_reported(void **state)
{
    static const char *const backend[] = { "shm", "tcp", "native" };
    static const int64_t timeout_ms[] = { TIMEOUT_MS, -1 };

    for (int row = 0; row < 3 * 2 * 2 * 4; row++) {
        store_case *h = shared_page(sizeof *h);
        test_job c;

        h->backend = backend[row % 3];
        h->timeout_ms = timeout_ms[row / 3 % 2];
        h->leaves = row / 6 % 2;
        h->after = row / 12;
        test_job_start(&c, 4, lose_store, h,
                       "rank 0 %s with the store after %d operations, %s, %s",
                       h->leaves ? "leaves" : "dies", h->after, h->backend,
                       h->timeout_ms < 0 ? "no timeout" : "a timeout");
        for (int r = 0; r < 4; r++)
            test_job_expect(&c, r, r == 0 && !h->leaves ? KILLED : 0);
        test_job_end(&c);
        shared_page_free(h, sizeof *h);
    }
}

/* ---- groups of ranks of a group ------------------------------------------ */

/* Rank 1 goes when the others are about to make a group with it, or before. */
typedef struct member_case {
    const char *backend;
    int before, leaves;
    shared_flag called, gone;
} member_case;

static int lose_member(test_job *c, int rank, void *arg)
{
    static const int member[] = { 0, 1, 2 };
    member_case *l = arg;
    oar_group_opts o = oar_group_opts_init();
    oar_span none = oar_span_of(NULL, 0, OAR_F32);
    oar_group *g, *part = NULL;
    oar_work *posted;
    int64_t start;

    o.backend = l->backend;
    o.timeout_ms = TIMEOUT_MS;
    if (rank == 2 && strcmp(l->backend, "native") == 0)
        setenv("OARSONG_HOST_ID", "another", 1);
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    if (rank == 1) {
        RANK_CHECK(l->before ||
                   shared_flag_await(&l->called, 2, TEST_JOB_LIMIT_MS));
        if (!l->leaves)
            die(NULL);
        oar_group_destroy(g);
        return 0;
    }
    /* something is under way meanwhile */
    RANK_CHECK(oar_recv(g, none, 2 - rank, 1, NULL, &posted) == OAR_OK);
    shared_flag_raise(&l->called);
    RANK_CHECK(!l->before || shared_flag_await(&l->gone, 1, TEST_JOB_LIMIT_MS));
    start = oari_now_ns();
    RANK_CHECK(oar_group_subset(g, 3, member, &part) == OAR_E_PEER);
    RANK_CHECK(ms_since(start) < TIMEOUT_MS / 3);
    RANK_CHECK(strstr(oar_last_error_text(), "rank 1 ") != NULL);
    RANK_CHECK(part == NULL);
    /* the group itself goes on */
    RANK_CHECK(oar_send(g, none, 2 - rank, 1, NULL, NULL) == OAR_OK);
    RANK_CHECK(oar_work_wait(posted) == OAR_OK);
    oar_work_release(posted);
    oar_group_destroy(g);
    return 0;
}

static void a_dead_member_does_not_keep_a_subset_waiting(void **state)
{
    static const char *const backend[] = { "shm", "tcp", "native" };

    for (int row = 0; row < 3 * 2 + 1; row++) {
        member_case *l = shared_page(sizeof *l);
        test_job c;

        l->backend = backend[row % 3];
        l->before = row / 3 % 2;
        l->leaves = row / 6;
        test_job_start(&c, 3, lose_member, l, "rank 1 %s %s a subset, %s",
                       l->leaves ? "leaves" : "dies",
                       l->before ? "before" : "in", l->backend);
        test_job_expect(&c, 1, l->leaves ? 0 : KILLED);
        shared_flag_raise(&l->gone);
        test_job_expect(&c, 0, 0);
        test_job_expect(&c, 2, 0);
        test_job_end(&c);
        shared_page_free(l, sizeof *l);
    }
}

/* An argument is a pattern: only the tests that fit it are run. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_at_any_step_is_reported_by_the_other_of_two),
        cmocka_unit_test(
            a_death_at_any_step_is_reported_by_the_others_of_three),
        cmocka_unit_test(a_death_during_rendezvous_is_reported_in_time),
        cmocka_unit_test(a_crash_or_an_exit_without_destroy_is_a_death),
        cmocka_unit_test(a_message_of_the_dead_arrives_or_fails),
        cmocka_unit_test(a_probe_does_not_wait_for_ranks_that_are_gone),
        cmocka_unit_test(a_death_ends_operations_that_no_caller_waits_for),
        cmocka_unit_test(a_death_of_the_rank_that_serves_the_store_is_reported),
        cmocka_unit_test(a_dead_member_does_not_keep_a_subset_waiting),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
