/* SPDX-License-Identifier: Apache-2.0 */
/* RPC when a rank dies or stops, at every moment of a call and over every
 * transport: callers get OAR_E_PEER or OAR_E_TIMEOUT in time with that rank
 * named, what it called is cancelled, and the others never notice. */
#include "support/test_job.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/rpc.h>

#include "base/clock.h"
#include "support/rpc_functions.h"

enum { RANKS = 3, VICTIM = 2, NOTICED_MS = 5000, KILLED = 128 + SIGKILL };

typedef enum kill_moment {
    IN_A_FUNCTION,  /* that others call */
    WHILE_IT_CALLS, /* a function of rank 0 runs for it */
    WHILE_IT_RELAYS,
    IN_A_LARGE_MESSAGE,
    IDLE,
    STOPPED,
    MOMENTS
} kill_moment;

static const char *const moments[] = {
    "in a function",      "while it calls", "while it relays",
    "in a large message", "idle",           "stopped"
};

typedef struct transport_row {
    const char *backend;
    int hosts;
} transport_row;

static const transport_row transports[] = { { "shm", 1 },
                                            { "tcp", 1 },
                                            { "native", 2 } };

typedef struct rpc_kill {
    transport_row by;
    kill_moment when;
    shared_flag ready;    /* the victim is about to */
    shared_flag reported; /* by the survivors */
} rpc_kill;

static oar_status end_here(void *arg, oar_rpc_call *call)
{
    rpc_kill *k = arg;

    (void)call;
    raise(k->when == STOPPED ? SIGSTOP : SIGKILL);
    return OAR_OK;
}

static int join_rpc(test_job *c, int rank, rpc_kill *k, oar_group **group,
                    oar_rpc **rpc)
{
    oar_group_opts o = { .size = sizeof o, .backend = k->by.backend };
    oar_rpc_function f = {
        .size = sizeof f, .name = "end", .fn = end_here, .arg = k
    };

    if (k->by.hosts > 1)
        setenv("OARSONG_HOST_ID", rank == VICTIM ? "far" : "near", 1);
    RANK_OK(test_job_join(c, rank, &o, group));
    RANK_OK(rpc_open(*group, NULL, rpc));
    RANK_OK(oar_rpc_register(*rpc, &f));
    RANK_OK(oar_barrier(*group, NULL, NULL));
    return 0;
}

/* What the victim does; it does not return. */
static int fall(test_job *c, int rank, rpc_kill *k, oar_rpc *rpc)
{
    static float large[1 << 20];
    oar_rpc_message *m;

    if (k->when == WHILE_IT_CALLS) {
        RANK_OK(oar_rpc_async(rpc, 0, "wait", NULL, NULL, NULL));
        RANK_OK(oar_rpc_async(rpc, 1, "wait", NULL, NULL, NULL));
        RANK_CHECK(rpc_number(rpc, 0, "add_one", 1, &(int64_t){ 0 }) == OAR_OK);
        RANK_CHECK(rpc_number(rpc, 1, "add_one", 1, &(int64_t){ 0 }) == OAR_OK);
    }
    if (k->when == IN_A_LARGE_MESSAGE)
        for (int to = 0; to < 2; to++) {
            RANK_OK(oar_rpc_message_create(&m));
            RANK_OK(oar_rpc_put_span(m, oar_span_of(large, 1 << 20, OAR_F32),
                                     NULL, NULL));
            RANK_OK(oar_rpc_async(rpc, to, "echo", m, NULL, NULL));
        }
    shared_flag_raise(&k->ready);
    if (k->when != IN_A_FUNCTION && k->when != STOPPED &&
        k->when != WHILE_IT_RELAYS)
        raise(SIGKILL);
    pause();
    return 1;
}

/* Calls the victim without waiting. The other survivor may have ended it. */
static int post_to_victim(oar_rpc *rpc, const char *name, oar_rpc_message *m,
                          const oar_rpc_call_opts *opts)
{
    oar_status status = oar_rpc_async(rpc, VICTIM, name, m, opts, NULL);

    return status == OAR_OK || status == OAR_E_PEER;
}

/* A call with the victim that must fail, and in time. */
static int call_victim(test_job *c, int rank, rpc_kill *k, oar_rpc *rpc)
{
    oar_rpc_call_opts opts = oar_rpc_call_opts_init();
    oar_rpc_message *m = NULL;
    int64_t began = oari_now_ns();
    oar_status status;
    int to = VICTIM;

    opts.timeout_ms = k->when == STOPPED ? 300 : 30000;
    if (k->when == WHILE_IT_RELAYS) { /* 0 -> 2 -> 1, where it waits */
        RANK_OK(oar_rpc_message_create(&m));
        RANK_OK(oar_rpc_put_i64(m, 1 - rank));
        RANK_OK(oar_rpc_put_text(m, "wait"));
        RANK_CHECK(post_to_victim(rpc, "relay", m, &opts));
        RANK_CHECK(post_to_victim(rpc, "end", NULL, &opts));
        m = NULL;
    }
    status = oar_rpc_sync(rpc, to, "end", m, &opts, NULL);
    RANK_CHECK(status == (k->when == STOPPED ? OAR_E_TIMEOUT : OAR_E_PEER));
    RANK_CHECK(oar_last_error()->peer == VICTIM);
    RANK_CHECK(strstr(oar_last_error_text(), "rank 2 (rank2)") != NULL);
    RANK_CHECK(oari_now_ns() - began < NOTICED_MS * (int64_t)1000000);
    return 0;
}

static int survive(test_job *c, int rank, rpc_kill *k, oar_rpc *rpc)
{
    oar_rpc_stats stats = oar_rpc_stats_init();
    int other = 1 - rank;
    int64_t n;

    RANK_CHECK(shared_flag_await(&k->ready, 1, NOTICED_MS));
    if (call_victim(c, rank, k, rpc) != 0)
        return 1;
    for (int i = 0; i < 50; i++) {
        RANK_OK(rpc_number(rpc, other, i % 2 ? "quick" : "add_one", i, &n));
        RANK_CHECK(n == i + 1);
    }
    shared_flag_raise(&k->reported);
    RANK_CHECK(shared_flag_await(&k->reported, 3, 4 * NOTICED_MS));
    RANK_OK(oar_rpc_shutdown(rpc, 10000)); /* the functions it called ended */
    RANK_OK(oar_rpc_read_stats(rpc, &stats));
    RANK_CHECK(stats.pending == 0 && stats.running == 0);
    RANK_CHECK(stats.ranks_gone == 1 || stats.ranks_gone == 2);
    return 0;
}

static int run_rank(test_job *c, int rank, void *arg)
{
    rpc_kill *k = arg;
    oar_group *group;
    oar_rpc *rpc;
    int failed;

    if (join_rpc(c, rank, k, &group, &rpc) != 0)
        return 1;
    if (rank == VICTIM)
        return fall(c, rank, k, rpc);
    failed = survive(c, rank, k, rpc);
    oar_rpc_destroy(rpc);
    oar_group_destroy(group);
    return failed;
}

static void run_case(transport_row by, kill_moment when)
{
    rpc_kill *k = shared_page(sizeof *k);
    test_job c;

    k->by = by;
    k->when = when;
    test_job_start(&c, RANKS, run_rank, k, "%s, %d hosts, killed %s",
                   by.backend, by.hosts, moments[when]);
    if (when == STOPPED) {
        assert_true(shared_flag_await(&k->reported, 2, 4 * NOTICED_MS));
        kill(c.pid[VICTIM], SIGKILL);
    }
    test_job_expect(&c, VICTIM, KILLED);
    shared_flag_raise(&k->reported);
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 1, 0);
    test_job_end(&c);
    shared_page_free(k, sizeof *k);
}

static void a_death_fails_the_calls_with_that_rank_and_no_others(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof transports / sizeof *transports; t++)
        for (int when = 0; when < STOPPED; when++)
            run_case(transports[t], (kill_moment)when);
}

static void a_stopped_rank_times_out_its_callers_only(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof transports / sizeof *transports; t++)
        run_case(transports[t], STOPPED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_fails_the_calls_with_that_rank_and_no_others),
        cmocka_unit_test(a_stopped_rank_times_out_its_callers_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
