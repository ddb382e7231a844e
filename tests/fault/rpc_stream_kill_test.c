/* SPDX-License-Identifier: Apache-2.0 */
/* Replies in parts when a rank dies or stops before, between and after the
 * parts, on either side and over every transport: the other side is told in
 * time, and streams between the others go on. */
#include "support/test_job.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <oarsong/rpc.h>

#include "base/clock.h"
#include "support/rpc_functions.h"

enum {
    RANKS = 3,
    VICTIM = 2,
    NOTICED_MS = 5000,
    KILLED = 128 + SIGKILL,
    LARGE = 20000 /* floats: more than fits into the first message */
};

typedef struct stream_transport {
    const char *backend;
    int hosts;
} stream_transport;

static const stream_transport transports[] = { { "shm", 1 },
                                               { "tcp", 1 },
                                               { "native", 2 } };

typedef struct stream_kill {
    stream_transport by;
    int sends;  /* the victim sends parts; else it takes them */
    int parts;  /* before it ends */
    int signal; /* what ends it */
    shared_flag ready, reported;
} stream_kill;

static oar_rpc_message *make_part(int number)
{
    static float large[LARGE];
    oar_rpc_message *m = rpc_message_of(number);

    if (number % 2 == 1)
        oar_rpc_put_span(m, oar_span_of(large, LARGE, OAR_F32), NULL, NULL);
    return m;
}

/* i64 parts; the victim ends after those of its row. */
static oar_status send_parts(void *arg, oar_rpc_call *call)
{
    stream_kill *k = arg;
    int victim = oar_rpc_rank(oar_rpc_of(call)) == VICTIM;
    oar_status status = OAR_OK;
    int64_t n;

    if (oar_rpc_get_i64(oar_rpc_args(call), &n) != OAR_OK)
        return OAR_E_DATA;
    for (int i = 0; i < n && status == OAR_OK; i++) {
        if (victim && k->sends && i == k->parts)
            raise(k->signal);
        status = oar_rpc_send_part(call, make_part(i));
    }
    return status;
}

static int begin_stream(test_job *c, int rank, oar_rpc *rpc, int to, int n,
                        int64_t timeout_ms, oar_future **future)
{
    oar_rpc_call_opts opts = oar_rpc_call_opts_init();
    oar_status status;

    opts.parts = 3;
    opts.timeout_ms = timeout_ms;
    *future = NULL;
    status = oar_rpc_async(rpc, to, "parts", rpc_message_of(n), &opts, future);
    RANK_CHECK(status == OAR_OK || (to == VICTIM && status == OAR_E_PEER));
    return 0;
}

/* Takes at most n parts and gives how it went; each has the next number. */
static int take_parts(test_job *c, int rank, oar_future *future, int n,
                      int *taken, oar_status *status)
{
    oar_rpc_message *part;
    int64_t number;

    *status = OAR_OK;
    for (*taken = 0; *taken < n; ++*taken) {
        *status = oar_future_next(future, &part);
        if (*status != OAR_OK || part == NULL)
            break;
        RANK_OK(oar_rpc_get_i64(part, &number));
        RANK_CHECK(number == *taken);
        oar_rpc_message_destroy(part);
    }
    return 0;
}

/* What the victim does; it does not return. */
static int fall(test_job *c, int rank, stream_kill *k, oar_rpc *rpc)
{
    oar_future *f[2];
    oar_status status;
    int taken;

    if (!k->sends) {
        for (int to = 0; to < 2; to++)
            if (begin_stream(c, rank, rpc, to, 1000000, -1, &f[to]) != 0 ||
                take_parts(c, rank, f[to], k->parts, &taken, &status) != 0)
                return 1;
        RANK_CHECK(taken == k->parts);
    }
    shared_flag_raise(&k->ready);
    if (!k->sends)
        raise(k->signal);
    pause();
    return 1;
}

/* Takes what the victim sends until it ends. */
static int outlive_sender(test_job *c, int rank, stream_kill *k, oar_rpc *rpc)
{
    int64_t began = oari_now_ns();
    int stopped = k->signal == SIGSTOP, taken = 0;
    oar_status status = OAR_E_PEER;
    oar_future *future;

    if (begin_stream(c, rank, rpc, VICTIM, 100, stopped ? 300 : 30000,
                     &future) != 0)
        return 1;
    if (future != NULL &&
        take_parts(c, rank, future, 100, &taken, &status) != 0)
        return 1;
    RANK_CHECK(status == (stopped ? OAR_E_TIMEOUT : OAR_E_PEER));
    RANK_CHECK(taken <= k->parts);
    RANK_CHECK(future == NULL || oar_last_error()->peer == VICTIM);
    RANK_CHECK(oari_now_ns() - began < NOTICED_MS * (int64_t)1000000);
    oar_future_release(future);
    return 0;
}

static int survive(test_job *c, int rank, stream_kill *k, oar_rpc *rpc)
{
    oar_rpc_stats stats = oar_rpc_stats_init();
    oar_future *future;
    oar_status status;
    int taken;

    RANK_CHECK(shared_flag_await(&k->ready, 1, NOTICED_MS));
    if (k->sends && outlive_sender(c, rank, k, rpc) != 0)
        return 1;
    if (begin_stream(c, rank, rpc, 1 - rank, 20, 30000, &future) != 0 ||
        take_parts(c, rank, future, 100, &taken, &status) != 0)
        return 1;
    RANK_CHECK(status == OAR_OK && taken == 20);
    oar_future_release(future);
    shared_flag_raise(&k->reported);
    RANK_CHECK(shared_flag_await(&k->reported, 3, 4 * NOTICED_MS));
    RANK_OK(oar_rpc_shutdown(rpc, 10000)); /* its functions here have ended */
    RANK_OK(oar_rpc_read_stats(rpc, &stats));
    RANK_CHECK(stats.pending == 0 && stats.running == 0);
    RANK_CHECK(stats.refused == 0);
    return 0;
}

static int run_rank(test_job *c, int rank, void *arg)
{
    stream_kill *k = arg;
    oar_group_opts o = { .size = sizeof o, .backend = k->by.backend };
    oar_rpc_function f = {
        .size = sizeof f, .name = "parts", .fn = send_parts, .arg = k
    };
    oar_group *group;
    oar_rpc *rpc;
    int failed;

    if (k->by.hosts > 1)
        setenv("OARSONG_HOST_ID", rank == VICTIM ? "far" : "near", 1);
    RANK_OK(test_job_join(c, rank, &o, &group));
    RANK_OK(rpc_open(group, NULL, &rpc));
    RANK_OK(oar_rpc_register(rpc, &f));
    RANK_OK(oar_barrier(group, NULL, NULL));
    if (rank == VICTIM)
        return fall(c, rank, k, rpc);
    failed = survive(c, rank, k, rpc);
    oar_rpc_destroy(rpc);
    oar_group_destroy(group);
    return failed;
}

static void run_case(stream_transport by, int sends, int parts, int signal)
{
    stream_kill *k = shared_page(sizeof *k);
    test_job c;

    k->by = by;
    k->sends = sends;
    k->parts = parts;
    k->signal = signal;
    test_job_start(&c, RANKS, run_rank, k, "%s, %d hosts, signal %d %s %d",
                   by.backend, by.hosts, signal,
                   sends ? "after sending" : "after taking", parts);
    if (signal == SIGSTOP) {
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

static void a_death_at_any_part_ends_that_stream_and_no_other(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof transports / sizeof *transports; t++)
        for (int parts = 0; parts < 8; parts = 2 * parts + 1)
            for (int sends = 0; sends < 2; sends++)
                run_case(transports[t], sends, parts, SIGKILL);
}

static void a_stopped_rank_times_out_its_consumers_only(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof transports / sizeof *transports; t++)
        for (int sends = 0; sends < 2; sends++)
            run_case(transports[t], sends, 2, SIGSTOP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_at_any_part_ends_that_stream_and_no_other),
        cmocka_unit_test(a_stopped_rank_times_out_its_consumers_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
