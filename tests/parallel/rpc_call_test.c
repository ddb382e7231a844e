/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of other ranks' functions: what they give, how they fail, and that
 * nothing that is used wrongly hangs. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include <oarsong/ops.h>

#include "base/clock.h"
#include "parallel/rpc/rpc_agent.h"
#include "parallel/rpc/rpc_times.h"
#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/ranks.h"
#include "support/rpc_functions.h"

static const char *const backends[] = { "sim", "shm", "tcp" };

static void on_backends(int backend_count, int ranks, oar_rank_fn fn)
{
    for (int i = 0; i < backend_count; i++)
        if (ranks_run(backends[i], ranks, NULL, fn, NULL) != OAR_OK)
            fail_msg("%s: %s", backends[i], oar_last_error_text());
}

static void nap_ms(int ms)
{
    struct timespec nap = { ms / 1000, ms % 1000 * 1000000 };

    nanosleep(&nap, NULL);
}

/* ---- what the original's tests call -------------------------------------- */

static oar_status run_original_calls(oar_group *group, void *arg)
{
    int rank = oar_group_rank(group), peer = 1 - rank;
    oar_rpc_message *args, *reply;
    oar_future *future;
    oar_rpc *rpc;
    const void *data;
    size_t bytes;
    int64_t n;
    double x;

    CHECK_OK(rpc_open(group, NULL, &rpc));
    CHECK(oar_rpc_rank(rpc) == rank && oar_rpc_size(rpc) == 2);
    CHECK_OK(rpc_number(rpc, peer, "add_one", 10, &n));
    CHECK(n == 11);
    CHECK_OK(oar_rpc_message_create(&args));
    CHECK_OK(oar_rpc_put_f64(args, 3.0));
    CHECK_OK(oar_rpc_sync(rpc, peer, "double", args, NULL, &reply));
    CHECK_OK(oar_rpc_get_f64(reply, &x));
    CHECK(x == 6.0);
    oar_rpc_message_destroy(reply);
    CHECK_OK(
        oar_rpc_async(rpc, peer, "square", rpc_message_of(7), NULL, &future));
    CHECK_OK(oar_future_wait(future, &reply));
    CHECK_OK(oar_rpc_get_i64(reply, &n));
    CHECK(n == 49);
    oar_rpc_message_destroy(reply);
    oar_future_release(future);
    for (int to = 0; to < 2; to++) { /* oneself too */
        CHECK_OK(oar_rpc_message_create(&args));
        CHECK_OK(oar_rpc_put_bytes(args, "hello", 5));
        CHECK_OK(oar_rpc_sync(rpc, to, "echo", args, NULL, &reply));
        CHECK_OK(oar_rpc_get_bytes(reply, &data, &bytes));
        CHECK(bytes == 5 && memcmp(data, "hello", 5) == 0);
        oar_rpc_message_destroy(reply);
        CHECK_OK(rpc_number(rpc, to, "quick", 1, &n));
        CHECK(n == 2);
    }
    CHECK(fails_with(oar_rpc_sync(rpc, 5, "echo", NULL, NULL, &reply),
                     OAR_E_RANK, "a call to rank 5 of 2"));
    return rpc_close(rpc);
}

static void original_calls(void **state)
{
    (void)state;
    on_backends(3, 2, run_original_calls);
}

static oar_status run_any_size(oar_group *group, void *arg)
{
    static const int64_t counts[] = { 0, 1, 1000, 1025, 10000, 300000 };
    int rank = oar_group_rank(group), peer = (rank + 1) % 3;
    oar_rpc *rpc;

    CHECK_OK(rpc_open(group, NULL, &rpc));
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        oar_tensor *a = oar_arange(NULL, OAR_F32, counts[i], rank, 1), *b;
        oar_rpc_message *args, *reply;
        const void *data;
        size_t bytes;

        CHECK_OK(oar_rpc_message_create(&args));
        CHECK_OK(oar_rpc_put_tensor(args, a));
        CHECK_OK(oar_rpc_put_bytes(args, oar_tensor_const_data(a),
                                   4 * (size_t)counts[i]));
        CHECK_OK(oar_rpc_put_tensor(args, a));
        CHECK_OK(oar_rpc_sync(rpc, peer, "echo", args, NULL, &reply));
        for (int j = 0; j < 3; j++) {
            if (j == 1) {
                CHECK_OK(oar_rpc_get_bytes(reply, &data, &bytes));
                CHECK(bytes == 4 * (size_t)counts[i]);
                continue;
            }
            CHECK_OK(oar_rpc_get_tensor(reply, &b));
            CHECK(oar_tensor_count(b) == counts[i]);
            CHECK(counts[i] == 0 ||
                  memcmp(oar_tensor_const_data(a), oar_tensor_const_data(b),
                         4 * (size_t)counts[i]) == 0);
            oar_tensor_release(b);
        }
        oar_rpc_message_destroy(reply);
        oar_tensor_release(a);
    }
    return rpc_close(rpc);
}

static void any_size_arrives(void **state)
{
    (void)state;
    on_backends(3, 3, run_any_size);
}

/* ---- many at once -------------------------------------------------------- */

typedef struct caller {
    pthread_t thread;
    oar_rpc *rpc;
    int64_t first;
    int wrong;
} caller;

static void *call_often(void *arg)
{
    caller *c = arg;
    int peer = (oar_rpc_rank(c->rpc) + 1) % oar_rpc_size(c->rpc);

    for (int64_t i = c->first; i < c->first + 125; i++) {
        int64_t n = 0;

        if (rpc_number(c->rpc, peer, i % 3 == 0 ? "quick" : "add_one", i, &n) !=
                OAR_OK ||
            n != i + 1)
            c->wrong++;
    }
    return NULL;
}

static oar_status run_eight_threads(oar_group *group, void *arg)
{
    oar_rpc_stats stats = oar_rpc_stats_init();
    caller c[8];
    oar_rpc *rpc;

    CHECK_OK(rpc_open(group, NULL, &rpc));
    for (int t = 0; t < 8; t++) {
        c[t] = (caller){ .rpc = rpc, .first = 1000 * t };
        CHECK(pthread_create(&c[t].thread, NULL, call_often, &c[t]) == 0);
    }
    for (int t = 0; t < 8; t++) {
        pthread_join(c[t].thread, NULL);
        CHECK(c[t].wrong == 0);
    }
    CHECK_OK(oar_rpc_shutdown(rpc, 0));
    CHECK_OK(oar_rpc_read_stats(rpc, &stats));
    CHECK(stats.calls == 1000 && stats.served == 1000 && stats.failed == 0);
    CHECK(stats.pending == 0 && stats.refused == 0);
    CHECK(stats.most_threads <= 64);
    oar_rpc_destroy(rpc);
    return OAR_OK;
}

static void
a_thousand_calls_from_eight_threads_get_their_own_answers(void **state)
{
    (void)state;
    on_backends(2, 2, run_eight_threads);
}

/* ---- failures ------------------------------------------------------------ */

static oar_status reply_large(void *arg, oar_rpc_call *call)
{
    static const char bytes[4000];

    return oar_rpc_put_bytes(oar_rpc_reply(call), bytes, sizeof bytes);
}

static oar_status run_failures(oar_group *group, void *arg)
{
    int peer = 1 - oar_group_rank(group);
    oar_rpc_opts opts = oar_rpc_opts_init();
    oar_rpc_function again = { .size = sizeof again, .name = "echo" };
    oar_rpc_message *reply = NULL, *large;
    oar_future *future;
    char bytes[4000] = { 0 }, name[202];
    int64_t n;
    oar_rpc *rpc;

    opts.message_bytes = 3000;
    CHECK_OK(rpc_open(group, &opts, &rpc));
    CHECK(fails_with(oar_rpc_sync(rpc, peer, "fail", NULL, NULL, &reply),
                     OAR_E_SHAPE, "something went wrong"));
    CHECK(oar_last_error()->rank == peer && oar_last_error()->pid > 0);
    CHECK(oar_last_error()->host[0] != '\0');
    CHECK(strcmp(oar_last_error()->operation, "fail") == 0);
    CHECK(strstr(oar_last_error()->site, "rpc_functions.c:") != NULL);
    CHECK(fails_with(oar_rpc_sync(rpc, peer, "fail_inside", NULL, NULL, &reply),
                     OAR_E_ARG, "no text"));
    CHECK(fails_with(rpc_number(rpc, peer, "add_ome", 1, &n), OAR_E_NOT_FOUND,
                     "has no function \"add_ome\"; it has \"add_one\""));
    CHECK(fails_with(rpc_number(rpc, peer, "double", 1, &n), OAR_E_DATA,
                     "value 0 of the message is an i64, and was read as an "
                     "f64"));
    if (peer == 0)
        CHECK(fails_with(rpc_number(rpc, peer, "only_rank_0", 1, &n),
                         OAR_E_AUTH, "rank 1 may not call"));
    else
        CHECK_OK(rpc_number(rpc, peer, "only_rank_0", 1, &n));
    CHECK_OK(oar_rpc_message_create(&large));
    CHECK_OK(oar_rpc_put_bytes(large, bytes, sizeof bytes));
    CHECK(fails_with(oar_rpc_sync(rpc, peer, "echo", large, NULL, &reply),
                     OAR_E_SIZE, "takes 3000"));
    CHECK_OK(oar_rpc_message_create(&large));
    CHECK_OK(oar_rpc_put_bytes(large, bytes, 200));
    CHECK(fails_with(oar_rpc_sync(rpc, peer, "tiny", large, NULL, &reply),
                     OAR_E_SIZE, "which takes 100"));
    CHECK_OK(
        oar_rpc_register(rpc, OAR_OPTS(oar_rpc_function, .name = "large_reply",
                                       .fn = reply_large)));
    CHECK_OK(oar_barrier(group, NULL, NULL));
    CHECK(fails_with(oar_rpc_sync(rpc, peer, "large_reply", NULL, NULL, &reply),
                     OAR_E_SIZE,
                     "the reply of \"large_reply\" has 4009 bytes"));
    CHECK(strstr(oar_last_error_text(), "takes 3000") != NULL);
    memset(name, 'n', sizeof name);
    name[201] = '\0';
    CHECK(fails_with(rpc_number(rpc, peer, name, 1, &n), OAR_E_ARG, "not 201"));
    CHECK(fails_with(oar_rpc_register(rpc, &again), OAR_E_ARG, "no function"));
    again.fn = (oar_rpc_fn)1;
    CHECK(fails_with(oar_rpc_register(rpc, &again), OAR_E_STATE,
                     "\"echo\" is registered already"));
    again.name = "oar.mine";
    CHECK(fails_with(oar_rpc_register(rpc, &again), OAR_E_ARG, "library's"));
    again.name = "x";
    again.callers = "0,7-9";
    CHECK(fails_with(oar_rpc_register(rpc, &again), OAR_E_ARG, "0,7-9"));
    CHECK_OK(oar_rpc_async(rpc, peer, "fail", NULL, NULL, &future));
    for (int i = 0; i < 2; i++)
        CHECK(fails_with(oar_future_wait(future, NULL), OAR_E_SHAPE, "wrong"));
    oar_future_release(future);
    CHECK_OK(oar_barrier(group, NULL, NULL));
    CHECK_OK(oar_rpc_unregister(rpc, "echo"));
    CHECK(fails_with(oar_rpc_unregister(rpc, "echo"), OAR_E_NOT_FOUND, "echo"));
    CHECK_OK(oar_rpc_shutdown(rpc, 0));
    CHECK(fails_with(rpc_number(rpc, peer, "add_one", 1, &n), OAR_E_STATE,
                     "after oar_rpc_shutdown"));
    oar_rpc_destroy(rpc);
    return OAR_OK;
}

static void each_failure_has_its_own_status(void **state)
{
    (void)state;
    on_backends(2, 2, run_failures);
}

static oar_status run_names(oar_group *group, void *arg)
{
    int rank = oar_group_rank(group);
    oar_rpc_opts opts = oar_rpc_opts_init();
    oar_rpc *rpc;

    opts.name = "same";
    CHECK(fails_with(oar_rpc_create(group, &opts, &rpc), OAR_E_ARG,
                     "ranks 0 and 1 are both called \"same\""));
    opts.name = rank == 2 ? NULL : rank == 1 ? "worker" : "server";
    CHECK_OK(oar_rpc_create(group, &opts, &rpc));
    CHECK(oar_rpc_find(rpc, "server") == 0 && oar_rpc_find(rpc, "rank2") == 2);
    CHECK(oar_rpc_find(rpc, "nobody") == -1);
    CHECK(strcmp(oar_rpc_name(rpc, 1), "worker") == 0);
    CHECK(strcmp(oar_rpc_name(rpc, 3), "") == 0);
    return rpc_close(rpc);
}

static void ranks_have_names(void **state)
{
    (void)state;
    on_backends(1, 3, run_names);
}

/* ---- time, cancelling, windows ------------------------------------------- */

static oar_status run_deadlines(oar_group *group, void *arg)
{
    int rank = oar_group_rank(group);
    oar_rpc_stats stats = oar_rpc_stats_init();
    oar_rpc_call_opts opts = oar_rpc_call_opts_init();
    oar_rpc_message *args, *reply;
    oar_rpc *rpc;
    int64_t n;

    CHECK_OK(rpc_open(group, NULL, &rpc));
    if (rank == 0) {
        opts.timeout_ms = 30;
        CHECK(fails_with(oar_rpc_sync(rpc, 1, "wait", NULL, &opts, &reply),
                         OAR_E_TIMEOUT, "rank 1 (rank1) has not answered"));
        CHECK(oar_last_error()->peer == 1);
        CHECK(strstr(oar_last_error()->site, "rpc_call_test.c:") != NULL);
        opts.timeout_ms = 20000; /* 0 -> 1 -> 2, which sees what 0 has left */
        CHECK_OK(oar_rpc_message_create(&args));
        CHECK_OK(oar_rpc_put_i64(args, 2));
        CHECK_OK(oar_rpc_put_text(args, "left"));
        CHECK_OK(oar_rpc_sync(rpc, 1, "relay", args, &opts, &reply));
        CHECK_OK(oar_rpc_get_i64(reply, &n));
        CHECK(n > 0 && n <= 20000);
        oar_rpc_message_destroy(reply);
        CHECK_OK(oar_rpc_read_stats(rpc, &stats));
        CHECK(stats.timed_out == 1 && stats.failed == 1);
    }
    return rpc_close(rpc);
}

static void deadlines_nest(void **state)
{
    (void)state;
    on_backends(1, 3, run_deadlines);
}

static void count_then(void *arg, oar_future *future, oar_status status)
{
    (void)future;
    __atomic_add_fetch((int *)arg, status == OAR_E_CANCELLED ? 1 : 100,
                       __ATOMIC_SEQ_CST);
}

static oar_status run_cancel(oar_group *group, void *arg)
{
    int rank = oar_group_rank(group), done, then = 0, index;
    int begun = atomic_load(&rpc_waits_begun);
    oar_rpc_opts opts = oar_rpc_opts_init();
    oar_rpc_stats stats = oar_rpc_stats_init();
    oar_future *f[4] = { NULL };
    oar_rpc_message *args;
    oar_rpc *rpc;

    opts.threads = 1;
    CHECK_OK(rpc_open(group, &opts, &rpc));
    if (rank == 0) {
        CHECK_OK(oar_rpc_async(rpc, 1, "wait", NULL, NULL, &f[0]));
        CHECK_OK(oar_rpc_async(rpc, 1, "wait", NULL, NULL, &f[1])); /* queued */
        while (atomic_load(&rpc_waits_begun) ==
               begun) /* in this process, too */
            nap_ms(1);
        CHECK_OK(oar_future_test(f[0], &done));
        CHECK(!done);
        CHECK_OK(oar_future_then(f[0], count_then, &then));
        for (int i = 1; i >= 0; i--) {
            CHECK_OK(oar_future_cancel(f[i]));
            CHECK(fails_with(oar_future_wait(f[i], NULL), OAR_E_CANCELLED,
                             "was cancelled"));
            CHECK_OK(oar_future_cancel(f[i])); /* it is done */
        }
        CHECK(oar_future_wait_any(4, f, &index) == OAR_E_CANCELLED);
        CHECK(index == 0);
        CHECK_OK(oar_future_then(f[1], count_then, &then));
        /* what rank 1 waits for inside is cancelled with it */
        CHECK_OK(oar_rpc_message_create(&args));
        CHECK_OK(oar_rpc_put_i64(args, 0));
        CHECK_OK(oar_rpc_put_text(args, "wait"));
        CHECK_OK(oar_rpc_async(rpc, 1, "relay", args, NULL, &f[2]));
        do {
            CHECK_OK(oar_rpc_read_stats(rpc, &stats));
            nap_ms(1);
        } while (stats.running == 0);
        CHECK_OK(oar_future_cancel(f[2]));
        for (int i = 0; i < 3; i++)
            oar_future_release(f[i]);
        CHECK_OK(oar_rpc_shutdown(rpc, 0)); /* nothing is left running */
        while (__atomic_load_n(&then, __ATOMIC_SEQ_CST) != 2)
            nap_ms(1);
    } else {
        CHECK_OK(oar_rpc_shutdown(rpc, 0));
        CHECK_OK(oar_rpc_read_stats(rpc, &stats));
        CHECK(stats.served == 2); /* the queued one never ran */
    }
    oar_rpc_destroy(rpc);
    return OAR_OK;
}

static void a_cancelled_call_does_not_begin_or_is_told(void **state)
{
    (void)state;
    on_backends(1, 2, run_cancel);
}

static oar_status run_windows(oar_group *group, void *arg)
{
    int rank = oar_group_rank(group);
    oar_rpc_opts opts = oar_rpc_opts_init();
    oar_rpc_call_opts now = oar_rpc_call_opts_init();
    oar_rpc_call_opts soon = oar_rpc_call_opts_init();
    oar_future *f[3];
    oar_rpc *rpc;

    opts.window_calls = 2;
    now.no_wait = 1;
    soon.timeout_ms = 20;
    CHECK_OK(rpc_open(group, &opts, &rpc));
    if (rank == 0) {
        CHECK_OK(oar_rpc_async(rpc, 1, "wait", NULL, NULL, &f[0]));
        CHECK_OK(oar_rpc_async(rpc, 1, "wait", NULL, NULL, &f[1]));
        CHECK(fails_with(oar_rpc_async(rpc, 1, "wait", NULL, &now, &f[2]),
                         OAR_E_BUSY, "2 calls with 0 bytes are unanswered"));
        CHECK(fails_with(oar_rpc_async(rpc, 1, "wait", NULL, &soon, &f[2]),
                         OAR_E_TIMEOUT, "too many unanswered calls"));
        CHECK_OK(oar_future_cancel(f[0]));
        CHECK_OK(oar_rpc_async(rpc, 1, "add_one", rpc_message_of(1), NULL,
                               &f[2])); /* waits for room */
        CHECK_OK(oar_future_wait(f[2], NULL));
        CHECK_OK(oar_future_cancel(f[1]));
        for (int i = 0; i < 3; i++)
            oar_future_release(f[i]);
    }
    return rpc_close(rpc);
}

static void a_full_window_waits_or_says_busy(void **state)
{
    (void)state;
    on_backends(1, 2, run_windows);
}

/* ---- manners ------------------------------------------------------------- */

static int64_t order[200];
static int order_count;

static oar_status note_order(void *arg, oar_rpc_call *call)
{
    int64_t n;

    if (oar_rpc_get_i64(oar_rpc_args(call), &n) == OAR_OK)
        order[order_count++] = n; /* serial: no lock */
    return OAR_OK;
}

static oar_status run_manners(oar_group *group, void *arg)
{
    int rank = oar_group_rank(group);
    oar_rpc_function f = oar_rpc_function_init();
    oar_rpc_opts opts = oar_rpc_opts_init();
    oar_rpc_message *args, *reply;
    oar_future *last = NULL;
    oar_rpc *rpc;

    opts.threads = opts.most_threads = 2;
    f.name = "order";
    f.fn = note_order;
    f.manner = OAR_RPC_SERIAL;
    CHECK_OK(rpc_open(group, &opts, &rpc));
    if (rank == 1)
        CHECK_OK(oar_rpc_register(rpc, &f));
    CHECK_OK(oar_barrier(group, NULL, NULL));
    if (rank == 0) {
        for (int i = 0; i < 200; i++) {
            oar_future_release(last);
            CHECK_OK(
                oar_rpc_async(rpc, 1, "order", rpc_message_of(i), NULL, &last));
        }
        CHECK_OK(oar_future_wait(last, NULL));
        oar_future_release(last);
        for (int i = 0; i < 200; i++)
            CHECK(order[i] == i);
        CHECK_OK(oar_rpc_message_create(&args));
        CHECK_OK(oar_rpc_put_i64(args, 0));
        CHECK_OK(oar_rpc_put_text(args, "add_one"));
        CHECK(
            fails_with(oar_rpc_sync(rpc, 1, "relay_inline", args, NULL, &reply),
                       OAR_E_STATE, "an inline function cannot wait"));
        /* 0 -> 1 -> 1: its second thread would wait, too */
        CHECK_OK(oar_rpc_message_create(&args));
        CHECK_OK(oar_rpc_put_i64(args, 1));
        CHECK_OK(oar_rpc_put_text(args, "relay"));
        CHECK(oar_rpc_sync(rpc, 1, "relay", args, NULL, &reply) != OAR_OK);
        CHECK_OK(oar_rpc_message_create(&args));
        CHECK_OK(oar_rpc_put_i64(args, 1));
        CHECK_OK(oar_rpc_put_text(args, "add_one"));
        CHECK_OK(oar_rpc_sync(rpc, 1, "relay", args, NULL, NULL));
    }
    return rpc_close(rpc);
}

static void serial_functions_keep_the_order_and_full_pools_say_so(void **state)
{
    (void)state;
    on_backends(1, 2, run_manners);
}

static oar_status call_itself(void *arg, oar_rpc_call *call)
{
    int64_t depth;

    if (oar_rpc_get_i64(oar_rpc_args(call), &depth) != OAR_OK)
        return OAR_E_DATA;
    if (depth == 0)
        return OAR_OK;
    return oar_rpc_sync(oar_rpc_of(call), 1 - oar_rpc_rank(oar_rpc_of(call)),
                        "deep", rpc_message_of(depth - 1), NULL, NULL);
}

static oar_status run_deep(oar_group *group, void *arg)
{
    oar_rpc_function f = { .size = sizeof f,
                           .name = "deep",
                           .fn = call_itself };
    oar_rpc_opts opts = oar_rpc_opts_init();
    oar_rpc_stats stats = oar_rpc_stats_init();
    oar_rpc *rpc;

    opts.threads = 1;
    opts.most_threads = 6;
    CHECK_OK(rpc_open(group, &opts, &rpc));
    CHECK_OK(oar_rpc_register(rpc, &f));
    CHECK_OK(oar_barrier(group, NULL, NULL));
    if (oar_group_rank(group) == 0) {
        CHECK_OK(oar_rpc_sync(rpc, 1, "deep", rpc_message_of(9), NULL, NULL));
        CHECK(fails_with(
            oar_rpc_sync(rpc, 1, "deep", rpc_message_of(30), NULL, NULL),
            OAR_E_BUSY, "threads that may run functions wait"));
    }
    CHECK_OK(oar_rpc_shutdown(rpc, 0));
    CHECK_OK(oar_rpc_read_stats(rpc, &stats));
    CHECK(stats.most_threads <= 6);
    oar_rpc_destroy(rpc);
    return OAR_OK;
}

static void threads_stay_within_their_bound_and_nothing_hangs(void **state)
{
    (void)state;
    on_backends(1, 2, run_deep);
}

static void *answer_later(void *arg)
{
    oar_rpc_call *call = arg;
    int64_t n = 0;

    oar_rpc_get_i64(oar_rpc_args(call), &n);
    if (n < 0)
        oar_rpc_answer(call, oar_rpc_fail(call, OAR_E_ARG, "below zero"));
    else
        oar_rpc_answer(call, oar_rpc_put_i64(oar_rpc_reply(call), n + 1));
    return NULL;
}

static oar_status keep_call(void *arg, oar_rpc_call *call)
{
    pthread_t thread;

    if (oar_rpc_keep(call) != OAR_OK || oar_rpc_keep(call) != OAR_E_STATE ||
        pthread_create(&thread, NULL, answer_later, call) != 0)
        return OAR_E_INTERNAL;
    pthread_detach(thread);
    return OAR_OK;
}

static oar_status run_keep(oar_group *group, void *arg)
{
    oar_rpc_function f = { .size = sizeof f,
                           .name = "later",
                           .fn = keep_call,
                           .manner = OAR_RPC_SERIAL };
    oar_rpc *rpc;
    int64_t n;

    CHECK_OK(rpc_open(group, NULL, &rpc));
    CHECK_OK(oar_rpc_register(rpc, &f));
    CHECK_OK(oar_barrier(group, NULL, NULL));
    for (int i = 0; i < 50; i++) {
        CHECK_OK(rpc_number(rpc, i % 2, "later", i, &n));
        CHECK(n == i + 1);
    }
    CHECK(fails_with(rpc_number(rpc, 1, "later", -1, &n), OAR_E_ARG,
                     "below zero"));
    CHECK(fails_with(oar_rpc_keep(NULL), OAR_E_ARG, "no call"));
    oar_rpc_answer(NULL, OAR_OK);
    return rpc_close(rpc);
}

static void an_answer_may_come_later_from_another_thread(void **state)
{
    (void)state;
    on_backends(1, 2, run_keep);
}

/* ---- the end ------------------------------------------------------------- */

static oar_status run_shutdown(oar_group *group, void *arg)
{
    int rank = oar_group_rank(group);
    oar_future *future;
    oar_rpc *rpc;

    CHECK_OK(rpc_open(group, NULL, &rpc));
    if (rank == 2) {
        CHECK_OK(oar_rpc_async(rpc, 2, "wait", NULL, NULL, &future));
        CHECK_OK(oar_barrier(group, NULL, NULL));
        CHECK_OK(oar_barrier(group, NULL, NULL));
        CHECK(fails_with(oar_rpc_shutdown(rpc, 5), OAR_E_TIMEOUT,
                         "1 calls of this rank are not answered"));
        CHECK_OK(oar_future_cancel(future));
        oar_future_release(future);
    } else {
        CHECK_OK(oar_barrier(group, NULL, NULL));
        CHECK(fails_with(oar_rpc_shutdown(rpc, 50), OAR_E_TIMEOUT, "rank 2 "));
        CHECK(strstr(oar_last_error_text(), "\"wait\"") != NULL);
        CHECK_OK(oar_barrier(group, NULL, NULL));
    }
    return rpc_close(rpc);
}

static void shutdown_says_who_has_not_come_and_what_it_does(void **state)
{
    (void)state;
    on_backends(1, 3, run_shutdown);
}

static oar_status call_oneself(oar_group *group)
{
    oar_future *future;
    int64_t n;
    oar_rpc *rpc;

    CHECK_OK(rpc_open(group, NULL, &rpc));
    CHECK_OK(rpc_number(rpc, 0, "square", 7, &n));
    CHECK(n == 49);
    CHECK_OK(oar_rpc_async(rpc, 0, "wait", NULL, NULL, &future));
    CHECK_OK(oar_rpc_async(rpc, 0, "add_one", rpc_message_of(1), NULL, NULL));
    oar_future_release(future);
    oar_rpc_destroy(rpc); /* ends what runs */
    return OAR_OK;
}

static oar_status run_alone(oar_group *group, void *arg)
{
    oar_rpc_message *reply = NULL;
    leak_check before;

    CHECK_OK(call_oneself(group)); /* names of files are kept for good */
    before = leak_check_begin();
    CHECK_OK(call_oneself(group));
    leak_check_end(&before);
    oar_rpc_destroy(NULL);
    CHECK(oar_rpc_rank(NULL) == -1 && oar_rpc_size(NULL) == 0);
    CHECK(oar_rpc_sync(NULL, 0, "x", NULL, NULL, &reply) == OAR_E_ARG);
    CHECK(oar_rpc_args(NULL) == NULL && oar_rpc_caller(NULL) == -1);
    CHECK(strcmp(oar_rpc_site(NULL), "") == 0);
    return OAR_OK;
}

/* ---- times --------------------------------------------------------------- */

enum { NAP_NS = 20000000 };

static oar_status take_nap(void *arg, oar_rpc_call *call)
{
    (void)arg;
    (void)call;
    nap_ms(NAP_NS / 1000000);
    return OAR_OK;
}

/* 1 to 100 ms, of which a tenth failed. */
static void count_known(oar_rpc *rpc)
{
    pthread_mutex_lock(&rpc->lock);
    for (int ms = 1; ms <= 100; ms++)
        oari_rpc_count_made(rpc, "known", ms * INT64_C(1000000), ms % 10 == 0);
    oari_rpc_count_made(rpc, "short", 3, 0);
    oari_rpc_count_made(rpc, "long", INT64_MAX, 0);
    pthread_mutex_unlock(&rpc->lock);
}

static oar_status run_times(oar_group *group, void *arg)
{
    int peer = 1 - oar_group_rank(group);
    oar_rpc_times t = oar_rpc_times_init();
    int64_t since = oari_now_ns();
    oar_rpc *rpc;
    int b = 0;

    CHECK_OK(rpc_open(group, NULL, &rpc));
    CHECK_OK(oar_rpc_register(
        rpc, OAR_OPTS(oar_rpc_function, .name = "nap", .fn = take_nap)));
    CHECK_OK(oar_barrier(group, NULL, NULL));
    for (int i = 0; i < 3; i++)
        CHECK_OK(oar_rpc_sync(rpc, peer, "nap", NULL, NULL, NULL));
    CHECK(oar_rpc_sync(rpc, peer, "fail", NULL, NULL, NULL) == OAR_E_SHAPE);
    CHECK_OK(oar_barrier(group, NULL, NULL));
    since = oari_now_ns() - since;
    for (int side = OAR_RPC_MADE; side <= OAR_RPC_SERVED; side++) {
        CHECK_OK(oar_rpc_read_times(rpc, (oar_rpc_side)side, "nap", &t));
        CHECK(t.count == 3 && t.errors == 0);
        CHECK(t.p50_ns >= NAP_NS && t.p99_ns >= t.p50_ns);
        CHECK(t.max_ns >= t.p99_ns && t.max_ns <= since);
        CHECK_OK(oar_rpc_read_times(rpc, (oar_rpc_side)side, "fail", &t));
        CHECK(t.count == 1 && t.errors == 1);
        CHECK_OK(oar_rpc_read_times(rpc, (oar_rpc_side)side, NULL, &t));
        CHECK(t.count == 4 && t.errors == 1);
    }
    count_known(rpc);
    CHECK_OK(oar_rpc_read_times(rpc, OAR_RPC_MADE, "known", &t));
    CHECK(t.count == 100 && t.errors == 10 && t.max_ns == 100000000);
    CHECK(t.p50_ns >= 50000000 && t.p50_ns <= 62500000);
    CHECK(t.p99_ns >= 99000000 && t.p99_ns <= 100000000);
    CHECK_OK(oar_rpc_read_times(rpc, OAR_RPC_MADE, "short", &t));
    CHECK(t.bucket[0] == 1 && t.p50_ns == 3);
    CHECK_OK(oar_rpc_read_times(rpc, OAR_RPC_MADE, "long", &t));
    CHECK(t.bucket[OAR_RPC_BUCKETS - 1] == 1 && t.max_ns == INT64_MAX);
    while (b + 1 < OAR_RPC_BUCKETS &&
           oar_rpc_bucket_ns(b) < oar_rpc_bucket_ns(b + 1))
        b++;
    CHECK(b + 1 == OAR_RPC_BUCKETS && oar_rpc_bucket_ns(0) == 80);
    CHECK(oar_rpc_bucket_ns(-1) == 0 && oar_rpc_bucket_ns(b + 1) == 0);
    CHECK(fails_with(oar_rpc_read_times(rpc, OAR_RPC_MADE, "nop", &t),
                     OAR_E_NOT_FOUND, "no call of \"nop\""));
    CHECK(fails_with(oar_rpc_read_times(rpc, OAR_RPC_SERVED, "nop", &t),
                     OAR_E_NOT_FOUND, "no function \"nop\""));
    CHECK(oar_rpc_read_times(rpc, (oar_rpc_side)2, NULL, &t) == OAR_E_ARG);
    return rpc_close(rpc);
}

static void times_of_calls_are_counted(void **state)
{
    (void)state;
    on_backends(2, 2, run_times);
}

static void a_group_of_one_calls_itself(void **state)
{
    (void)state;
    on_backends(1, 1, run_alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(original_calls),
        cmocka_unit_test(any_size_arrives),
        cmocka_unit_test(
            a_thousand_calls_from_eight_threads_get_their_own_answers),
        cmocka_unit_test(each_failure_has_its_own_status),
        cmocka_unit_test(ranks_have_names),
        cmocka_unit_test(deadlines_nest),
        cmocka_unit_test(a_cancelled_call_does_not_begin_or_is_told),
        cmocka_unit_test(a_full_window_waits_or_says_busy),
        cmocka_unit_test(serial_functions_keep_the_order_and_full_pools_say_so),
        cmocka_unit_test(threads_stay_within_their_bound_and_nothing_hangs),
        cmocka_unit_test(an_answer_may_come_later_from_another_thread),
        cmocka_unit_test(shutdown_says_who_has_not_come_and_what_it_does),
        cmocka_unit_test(a_group_of_one_calls_itself),
        cmocka_unit_test(times_of_calls_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
