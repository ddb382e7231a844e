/* SPDX-License-Identifier: Apache-2.0 */
/* Each rank in turn is killed, stopped or slowed at each message of RPC that it
 * sends or receives, in one program that has all patterns: calls that wait and
 * that do not, nested calls, late answers, values made remotely, pipelined
 * calls, references passed on (HOLD, NOTED, HELD, DROP), the shutdown. Callers
 * get OAR_E_PEER or OAR_E_TIMEOUT in time; the others never notice; and no
 * function has run twice for a call.
 *
 * The linker sends the calls of oari_rpc_write_head and _read_head here
 * (tests/CMakeLists.txt). */
#include "support/test_job.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <oarsong/rpc.h>

#include "base/clock.h"
#include "parallel/rpc/rpc_wire.h"
#include "support/rpc_functions.h"

enum {
    RANKS = 3,
    MOST_MESSAGES = 200,
    COUNTED = 64,
    STOPPED_CALL_MS = 250, /* timeout of calls, where a rank is stopped */
    CALL_MS = 20000,
    SLOW_MS = 20,
    WAIT_MS = 20000
};

typedef enum fault_kind { KILL, STOP, SLOW } fault_kind;

typedef struct plan {
    fault_kind fault;
    int victim, at; /* the rank, and which of its messages */
    const char *backend;
    shared_flag struck;       /* it was reached */
    shared_flag through;      /* the victim is in the shutdown */
    shared_flag led;          /* rank 0 is through */
    shared_flag gone;         /* the victim is dead, if it was to die */
    shared_flag ran[COUNTED]; /* how often each call has run */
} plan;

static _Atomic(plan *) armed; /* in the victim */
static atomic_int messages;

static void strike(void)
{
    plan *p = atomic_load(&armed);

    if (p == NULL || atomic_fetch_add(&messages, 1) + 1 != p->at)
        return;
    shared_flag_raise(&p->struck);
    if (p->fault == SLOW)
        nanosleep(&(struct timespec){ 0, SLOW_MS * 1000000 }, NULL);
    else
        raise(p->fault == KILL ? SIGKILL : SIGSTOP);
}

size_t __real_oari_rpc_write_head(unsigned char *to, const oari_rpc_head *head);
size_t __wrap_oari_rpc_write_head(unsigned char *to, const oari_rpc_head *head);
size_t __wrap_oari_rpc_write_head(unsigned char *to, const oari_rpc_head *head)
{
    strike();
    return __real_oari_rpc_write_head(to, head);
}

oar_status __real_oari_rpc_read_head(const unsigned char *from, size_t bytes,
                                     uint64_t most, oari_rpc_head *head,
                                     size_t *behind);
oar_status __wrap_oari_rpc_read_head(const unsigned char *from, size_t bytes,
                                     uint64_t most, oari_rpc_head *head,
                                     size_t *behind);
oar_status __wrap_oari_rpc_read_head(const unsigned char *from, size_t bytes,
                                     uint64_t most, oari_rpc_head *head,
                                     size_t *behind)
{
    strike();
    return __real_oari_rpc_read_head(from, bytes, most, head, behind);
}

/* ---- functions ----------------------------------------------------------- */

/* Counts that the call with that number has run, and gives the number. */
static oar_status count(void *arg, oar_rpc_call *call)
{
    plan *p = arg;
    int64_t n;

    if (oar_rpc_get_i64(oar_rpc_args(call), &n) != OAR_OK)
        return OAR_E_DATA;
    shared_flag_raise(&p->ran[n % COUNTED]);
    return oar_rpc_put_i64(oar_rpc_reply(call), n);
}

/* The same, by the other server. */
static oar_status relay(void *arg, oar_rpc_call *call)
{
    oar_rpc *rpc = oar_rpc_of(call);
    int64_t n, out;

    (void)arg;
    if (oar_rpc_get_i64(oar_rpc_args(call), &n) != OAR_OK)
        return OAR_E_DATA;
    return rpc_number(rpc, 3 - oar_rpc_rank(rpc), "count", n, &out);
}

static void *answer_later(void *call)
{
    nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    oar_rpc_answer(call, OAR_OK);
    return NULL;
}

/* The same, with an answer by another thread. */
static oar_status count_late(void *arg, oar_rpc_call *call)
{
    oar_status status = count(arg, call);
    pthread_t thread;

    if (status == OAR_OK)
        status = oar_rpc_keep(call);
    if (status == OAR_OK && pthread_create(&thread, NULL, answer_later, call))
        abort();
    if (status == OAR_OK)
        pthread_detach(thread);
    return status;
}

static oar_rref *_Atomic kept;

static oar_status keep_one(void *arg, oar_rpc_call *call)
{
    oar_rref *got = NULL;
    oar_status status;

    (void)arg;
    if (oar_rpc_message_bytes(oar_rpc_args(call)) > 0) {
        status = oar_rpc_get_rref(oar_rpc_args(call), &got);
        if (status != OAR_OK)
            return status;
    }
    oar_rref_release(atomic_exchange(&kept, got));
    return OAR_OK;
}

/* ---- what rank 0 does ---------------------------------------------------- */

/* Whether a call may have ended like that. */
static int is_allowed(const plan *p, oar_status status)
{
    if (status == OAR_OK)
        return 1;
    if (p->fault == SLOW)
        return 0;
    return status == OAR_E_PEER || status == OAR_E_NOT_FOUND ||
           (p->fault == STOP && status == OAR_E_TIMEOUT);
}

/* A call that counts; one that succeeds has run once. */
static int call_counted(test_job *c, int rank, plan *p, oar_rpc *rpc, int to,
                        const char *name, int n)
{
    oar_status status =
        oar_rpc_sync(rpc, to, name, rpc_message_of(n), NULL, NULL);

    RANK_CHECK(is_allowed(p, status));
    RANK_CHECK(status != OAR_OK || atomic_load(&p->ran[n]) == 1);
    RANK_CHECK(to == p->victim || strcmp(name, "relay") == 0 ||
               status == OAR_OK); /* the other does not notice */
    return 0;
}

static int call_async(test_job *c, int rank, plan *p, oar_rpc *rpc, int to,
                      int first)
{
    oar_future *future[4] = { NULL };

    for (int i = 0; i < 4; i++)
        RANK_CHECK(is_allowed(p, oar_rpc_async(rpc, to, "count",
                                               rpc_message_of(first + i), NULL,
                                               &future[i])));
    oar_future_cancel(future[3]);
    for (int i = 0; i < 4; i++)
        if (future[i] != NULL) {
            oar_status status = oar_future_wait(future[i], NULL);

            RANK_CHECK(is_allowed(p, status) ||
                       (i == 3 && status == OAR_E_CANCELLED));
            oar_future_release(future[i]);
        }
    return 0;
}

/* Makes a value on one rank, calls on it before it is there, gives it to the
 * other, has that one drop it, and fetches it. */
static int use_value(test_job *c, int rank, plan *p, oar_rpc *rpc, int owner,
                     int n)
{
    oar_rpc_message *m;
    oar_future *future = NULL;
    oar_rref *value = NULL;
    oar_status status =
        oar_rpc_remote(rpc, owner, "count", rpc_message_of(n), NULL, &value);

    RANK_CHECK(is_allowed(p, status));
    if (status != OAR_OK)
        return 0;
    status =
        oar_rref_call(value, "count", rpc_message_of(n + 1), NULL, &future);
    RANK_CHECK(is_allowed(p, status));
    RANK_OK(oar_rpc_message_create(&m));
    RANK_OK(oar_rpc_put_rref(m, value));
    RANK_CHECK(
        is_allowed(p, oar_rpc_sync(rpc, 3 - owner, "keep_one", m, NULL, NULL)));
    if (future != NULL)
        RANK_CHECK(is_allowed(p, oar_future_wait(future, NULL)));
    oar_future_release(future);
    RANK_CHECK(is_allowed(
        p, oar_rpc_sync(rpc, 3 - owner, "keep_one", NULL, NULL, NULL)));
    status = oar_rref_fetch(value, NULL, &m);
    RANK_CHECK(is_allowed(p, status));
    if (status == OAR_OK)
        oar_rpc_message_destroy(m);
    oar_rref_release(value);
    return 0;
}

static int lead(test_job *c, int rank, plan *p, oar_rpc *rpc)
{
    for (int to = 1; to < RANKS; to++) {
        int n = to * 20;

        RANK_ZERO(call_counted(c, rank, p, rpc, to, "count", n));
        RANK_ZERO(call_counted(c, rank, p, rpc, to, "count_late", n + 1));
        RANK_ZERO(call_counted(c, rank, p, rpc, to, "relay", n + 2));
        RANK_ZERO(call_async(c, rank, p, rpc, to, n + 3));
        RANK_ZERO(use_value(c, rank, p, rpc, to, n + 7));
    }
    return 0;
}

/* ---- every rank ---------------------------------------------------------- */

static int open_rpc(test_job *c, int rank, plan *p, oar_rpc **rpc)
{
    const oar_rpc_function functions[] = {
        { .size = sizeof *functions, .name = "count", .fn = count, .arg = p },
        { .size = sizeof *functions, .name = "relay", .fn = relay },
        { .size = sizeof *functions,
          .name = "count_late",
          .fn = count_late,
          .arg = p },
        { .size = sizeof *functions, .name = "keep_one", .fn = keep_one },
    };
    oar_group_opts o = { .size = sizeof o, .backend = p->backend };
    oar_rpc_opts opts = oar_rpc_opts_init();
    oar_group *group;

    opts.functions = functions;
    opts.function_count = 4;
    opts.timeout_ms = p->fault == STOP ? STOPPED_CALL_MS : CALL_MS;
    RANK_OK(test_job_join(c, rank, &o, &group));
    RANK_OK(oar_rpc_create(group, &opts, rpc));
    RANK_OK(oar_barrier(group, NULL, NULL));
    oar_group_destroy(group);
    return 0;
}

/* The survivors call each other, and find that nothing is left. */
static int go_on(test_job *c, int rank, plan *p, oar_rpc *rpc)
{
    oar_rpc_stats stats = oar_rpc_stats_init();
    oar_rpc_call_opts opts = oar_rpc_call_opts_init();

    opts.timeout_ms = CALL_MS;
    for (int to = 0; to < RANKS; to++)
        if (to != rank && (to != p->victim || p->fault == SLOW))
            for (int i = 0; i < 3; i++)
                RANK_OK(oar_rpc_sync(rpc, to, "count", rpc_message_of(63),
                                     &opts, NULL));
    if (p->fault != SLOW && rank != p->victim)
        RANK_CHECK(shared_flag_await(&p->gone, 1, WAIT_MS));
    oar_rref_release(atomic_exchange(&kept, NULL));
    if (rank == p->victim)
        shared_flag_raise(&p->through);
    RANK_OK(oar_rpc_shutdown(rpc, WAIT_MS));
    for (int64_t began = oari_now_ns();;) {
        RANK_OK(oar_rpc_read_stats(rpc, &stats));
        if (stats.values_held == 0 && stats.values_owned == 0)
            break;
        RANK_CHECK(ms_since(began) < WAIT_MS);
        usleep(200);
    }
    RANK_CHECK(stats.pending == 0 && stats.running == 0 && stats.refused == 0);
    return 0;
}

static int run_rank(test_job *c, int rank, void *arg)
{
    plan *p = arg;
    oar_rpc *rpc;

    RANK_ZERO(open_rpc(c, rank, p, &rpc));
    if (rank == p->victim)
        atomic_store(&armed, p);
    if (rank == 0) {
        RANK_ZERO(lead(c, rank, p, rpc));
        shared_flag_raise(&p->led);
    } else if (p->victim == 0 && p->fault != SLOW) {
        while (atomic_load(&p->struck) == 0 && atomic_load(&p->led) == 0)
            usleep(200);
    } else {
        RANK_CHECK(shared_flag_await(&p->led, 1, WAIT_MS));
    }
    RANK_ZERO(go_on(c, rank, p, rpc));
    oar_rpc_destroy(rpc);
    return 0;
}

/* ---- the table ----------------------------------------------------------- */

/* Returns 0 if the victim is in the shutdown, and stays there. */
static int await_strike(plan *p)
{
    int64_t began = oari_now_ns();

    while (ms_since(began) < WAIT_MS && atomic_load(&p->struck) == 0 &&
           atomic_load(&p->through) == 0)
        usleep(200);
    return shared_flag_await(&p->struck, 1, 300);
}

/* Returns whether the victim had so many messages. */
static int run_case(const char *backend, fault_kind fault, int victim, int at)
{
    static const char *const words[] = { "killed", "stopped", "slowed" };
    plan *p = shared_page(sizeof *p);
    int struck, dies;
    test_job c;

    *p = (plan){ .fault = fault, .victim = victim, .at = at };
    p->backend = backend;
    test_job_start(&c, RANKS, run_rank, p, "%s, rank %d is %s at message %d",
                   backend, victim, words[fault], at);
    dies = fault != SLOW;
    if (dies && !await_strike(p))
        kill(c.pid[victim], SIGKILL); /* it had fewer messages */
    if (fault == STOP && atomic_load(&p->struck) > 0) {
        if (victim != 0) /* the leader has met it */
            assert_true(shared_flag_await(&p->led, 1, 4 * WAIT_MS));
        kill(c.pid[victim], SIGKILL);
    }
    struck = atomic_load(&p->struck) > 0;
    if (dies) {
        test_job_expect(&c, victim, 128 + SIGKILL);
        shared_flag_raise(&p->gone);
    }
    for (int r = 0; r < RANKS; r++)
        if (!dies || r != victim)
            test_job_expect(&c, r, 0);
    if (!dies)
        struck = atomic_load(&p->struck) > 0;
    for (int i = 0; i < COUNTED - 1; i++)
        assert_true(atomic_load(&p->ran[i]) <= 1); /* at most once */
    test_job_end(&c);
    shared_page_free(p, sizeof *p);
    return struck;
}

static int is_long(void)
{
    return getenv("OARSONG_TEST_ALL") != NULL;
}

static void run_table(const char *backend, fault_kind fault, int stride)
{
    for (int victim = 0; victim < RANKS; victim++)
        for (int at = 1 + victim % stride; at < MOST_MESSAGES; at += stride)
            if (!run_case(backend, fault, victim, at))
                break;
}

static void a_rank_killed_at_any_message_is_named(void **state)
{
    (void)state;
    run_table("shm", KILL, is_long() ? 1 : 5);
    if (is_long())
        run_table("tcp", KILL, 1);
}

static void a_rank_stopped_at_any_message_runs_out_of_time(void **state)
{
    (void)state;
    run_table("shm", STOP, is_long() ? 1 : 20);
    if (is_long())
        run_table("tcp", STOP, 3);
}

static void a_rank_slowed_at_any_message_is_waited_for(void **state)
{
    (void)state;
    run_table("shm", SLOW, is_long() ? 1 : 9);
    if (is_long())
        run_table("tcp", SLOW, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_killed_at_any_message_is_named),
        cmocka_unit_test(a_rank_stopped_at_any_message_runs_out_of_time),
        cmocka_unit_test(a_rank_slowed_at_any_message_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
