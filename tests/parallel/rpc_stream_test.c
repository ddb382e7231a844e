/* SPDX-License-Identifier: Apache-2.0 */
/* Replies in parts: their order, what holds a function back, and every way in
 * which they end. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include <oarsong/ops.h>

#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/ranks.h"
#include "support/rpc_functions.h"

static const char *const backends[] = { "sim", "shm", "tcp" };

static void on_backends(int ranks, oar_rank_fn fn)
{
    for (int i = 0; i < 3; i++)
        if (ranks_run(backends[i], ranks, NULL, fn, NULL) != OAR_OK)
            fail_msg("%s: %s", backends[i], oar_last_error_text());
}

/* What the functions of one rank have done. */
typedef struct stream_counts {
    atomic_int sent, ended;
    atomic_int status; /* of the last part that was not sent */
} stream_counts;

/* A part: its number, and a tensor filled with it. */
static oar_rpc_message *make_part(int64_t number, int64_t count)
{
    oar_tensor *t =
        oar_full(NULL, OAR_F32, oar_shape_of(1, &count), (double)number);
    oar_rpc_message *m = NULL;

    if (t == NULL || oar_rpc_message_create(&m) != OAR_OK ||
        oar_rpc_put_i64(m, number) != OAR_OK ||
        oar_rpc_put_tensor(m, t) != OAR_OK) {
        oar_rpc_message_destroy(m);
        m = NULL;
    }
    oar_tensor_release(t);
    return m;
}

/* i64 parts, below 0: no end; i64 elements of each; i64 1: fails at the end ->
 * i64 parts. */
static oar_status send_parts(void *arg, oar_rpc_call *call)
{
    stream_counts *c = arg;
    int64_t n, count, fails;
    oar_status status = OAR_OK;

    if (oar_rpc_get_i64(oar_rpc_args(call), &n) != OAR_OK ||
        oar_rpc_get_i64(oar_rpc_args(call), &count) != OAR_OK ||
        oar_rpc_get_i64(oar_rpc_args(call), &fails) != OAR_OK)
        return OAR_E_DATA;
    for (int64_t i = 0; (n < 0 || i < n) && status == OAR_OK; i++) {
        status = oar_rpc_send_part(call, make_part(i, count));
        if (status == OAR_OK)
            atomic_fetch_add(&c->sent, 1);
    }
    if (status != OAR_OK) {
        atomic_store(&c->status, status);
        atomic_fetch_add(&c->ended, 1);
        return status;
    }
    if (fails)
        return oar_rpc_fail(call, OAR_E_SHAPE, "the last part is missing");
    return oar_rpc_put_i64(oar_rpc_reply(call), n);
}

/* -> i64 sent, i64 ended, i64 status */
static oar_status tell_counts(void *arg, oar_rpc_call *call)
{
    stream_counts *c = arg;
    oar_rpc_message *reply = oar_rpc_reply(call);
    oar_status status = oar_rpc_put_i64(reply, atomic_load(&c->sent));

    if (status == OAR_OK)
        status = oar_rpc_put_i64(reply, atomic_load(&c->ended));
    if (status == OAR_OK)
        status = oar_rpc_put_i64(reply, atomic_load(&c->status));
    return status;
}

static oar_status open_streams(oar_group *group, const oar_rpc_opts *opts,
                               stream_counts *c, oar_rpc **rpc)
{
    oar_rpc_function f = { .size = sizeof f, .fn = send_parts, .arg = c };

    CHECK_OK(rpc_open(group, opts, rpc));
    f.name = "parts";
    CHECK_OK(oar_rpc_register(*rpc, &f));
    f.name = "parts_inline";
    f.manner = OAR_RPC_INLINE;
    CHECK_OK(oar_rpc_register(*rpc, &f));
    f.name = "counts";
    f.fn = tell_counts;
    CHECK_OK(oar_rpc_register(*rpc, &f));
    return oar_barrier(group, NULL, NULL);
}

static oar_rpc_message *three(int64_t a, int64_t b, int64_t c)
{
    oar_rpc_message *m = rpc_message_of(a);

    oar_rpc_put_i64(m, b);
    oar_rpc_put_i64(m, c);
    return m;
}

static oar_status begin_stream(oar_rpc *rpc, int to, int64_t n, int64_t count,
                               int64_t fails, int ahead, int64_t timeout_ms,
                               oar_future **future)
{
    oar_rpc_call_opts opts = oar_rpc_call_opts_init();

    opts.parts = ahead;
    opts.timeout_ms = timeout_ms;
    return oar_rpc_async(rpc, to, "parts", three(n, count, fails), &opts,
                         future);
}

/* Takes a part and compares it with what was sent. */
static oar_status take_part(oar_future *future, int64_t number, int64_t count)
{
    oar_rpc_message *part = NULL;
    oar_tensor *t;
    int64_t n;

    CHECK_OK(oar_future_next(future, &part));
    CHECK(part != NULL);
    CHECK_OK(oar_rpc_get_i64(part, &n));
    CHECK(n == number);
    CHECK_OK(oar_rpc_get_tensor(part, &t));
    CHECK(oar_tensor_count(t) == count);
    for (int64_t i = 0; i < count; i++)
        CHECK(((const float *)oar_tensor_const_data(t))[i] == (float)number);
    oar_tensor_release(t);
    oar_rpc_message_destroy(part);
    return OAR_OK;
}

static oar_status read_counts(oar_rpc *rpc, int to, int64_t *sent,
                              int64_t *ended, int64_t *status)
{
    oar_rpc_message *reply;

    CHECK_OK(oar_rpc_sync(rpc, to, "counts", NULL, NULL, &reply));
    CHECK_OK(oar_rpc_get_i64(reply, sent));
    CHECK_OK(oar_rpc_get_i64(reply, ended));
    CHECK_OK(oar_rpc_get_i64(reply, status));
    oar_rpc_message_destroy(reply);
    return OAR_OK;
}

/* Waits until functions of that rank have ended early, and gives why. */
static oar_status await_end(oar_rpc *rpc, int to, int ends, int64_t *status)
{
    int64_t sent, ended = 0;

    while (ended < ends) {
        CHECK_OK(read_counts(rpc, to, &sent, &ended, status));
        sched_yield();
    }
    CHECK(ended == ends);
    return OAR_OK;
}

/* ---- in order ------------------------------------------------------------ */

static oar_status run_order(oar_group *group, void *arg)
{
    static const int64_t counts[] = { 0, 1, 1500, 40000 };
    static const int ahead[] = { 1, 2, 7, 100 };
    stream_counts c = { 0 };
    oar_rpc_message *part, *reply;
    oar_future *future;
    int64_t n;
    oar_rpc *rpc;

    CHECK_OK(open_streams(group, NULL, &c, &rpc));
    for (int to = 0; to < oar_rpc_size(rpc); to++)
        for (int i = 0; i < 4; i++) {
            CHECK_OK(
                begin_stream(rpc, to, 20, counts[i], 0, ahead[i], 0, &future));
            for (int64_t p = 0; p < 20; p++)
                CHECK_OK(take_part(future, p, counts[i]));
            for (int again = 0; again < 2; again++) {
                CHECK_OK(oar_future_next(future, &part));
                CHECK(part == NULL);
            }
            CHECK_OK(oar_future_wait(future, &reply));
            CHECK_OK(oar_rpc_get_i64(reply, &n));
            CHECK(n == 20);
            oar_rpc_message_destroy(reply);
            oar_future_release(future);
        }
    return rpc_close(rpc);
}

static void parts_come_in_order(void **state)
{
    (void)state;
    on_backends(2, run_order);
    on_backends(3, run_order);
}

static oar_status run_two_streams(oar_group *group, void *arg)
{
    stream_counts c = { 0 };
    oar_future *f[2];
    int64_t came[2] = { 0 };
    oar_rpc *rpc;
    int index;

    CHECK_OK(open_streams(group, NULL, &c, &rpc));
    for (int i = 0; i < 2; i++)
        CHECK_OK(begin_stream(rpc, (oar_rpc_rank(rpc) + i) % 2, 30, 10, 0, 4, 0,
                              &f[i]));
    while (came[0] + came[1] < 60) {
        CHECK_OK(oar_future_wait_any(2, f, &index));
        if (came[index] < 30) {
            CHECK_OK(take_part(f[index], came[index], 10));
            came[index]++;
        } else {
            oar_future_release(f[index]);
            f[index] = NULL;
        }
    }
    oar_future_release(f[0]);
    oar_future_release(f[1]);
    return rpc_close(rpc);
}

static void several_streams_are_taken_as_they_come(void **state)
{
    (void)state;
    on_backends(2, run_two_streams);
}

/* ---- what holds a function back ------------------------------------------ */

static oar_status run_slow(oar_group *group, void *arg)
{
    static const struct {
        int ahead;
        int64_t count;
        int sent;
    } rows[] = { { 3, 1, 3 }, { 100, 1000, 3 }, { 100, 50000, 1 } };
    int peer = 1 - oar_group_rank(group);
    oar_rpc_opts opts = oar_rpc_opts_init();
    stream_counts c = { 0 };
    int64_t sent, before = 0, ended, status, n;
    oar_future *future;
    oar_rpc *rpc;

    opts.stream_bytes = 10000;
    CHECK_OK(open_streams(group, &opts, &c, &rpc));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(begin_stream(rpc, peer, -1, rows[i].count, 0, rows[i].ahead, 0,
                              &future));
        do {
            sched_yield();
            CHECK_OK(read_counts(rpc, peer, &sent, &ended, &status));
        } while (sent - before < rows[i].sent);
        for (int j = 0; j < 100; j++) { /* nothing else waits */
            CHECK_OK(rpc_number(rpc, peer, "add_one", j, &n));
            CHECK(n == j + 1);
        }
        CHECK_OK(read_counts(rpc, peer, &sent, &ended, &status));
        CHECK(sent - before == rows[i].sent);
        for (int64_t p = 0; p < 10; p++)
            CHECK_OK(take_part(future, p, rows[i].count));
        oar_future_release(future); /* which cancels it */
        CHECK_OK(await_end(rpc, peer, i + 1, &status));
        CHECK(status == OAR_E_CANCELLED);
        CHECK_OK(read_counts(rpc, peer, &before, &ended, &status));
    }
    return rpc_close(rpc);
}

static void a_slow_consumer_holds_its_function_and_nothing_else(void **state)
{
    (void)state;
    on_backends(2, run_slow);
}

/* ---- ends ---------------------------------------------------------------- */

static oar_status run_ends(oar_group *group, void *arg)
{
    int rank = oar_group_rank(group), peer = 1 - rank;
    stream_counts c = { 0 };
    oar_rpc_message *part;
    oar_future *future;
    int64_t status;
    oar_rpc *rpc;

    CHECK_OK(open_streams(group, NULL, &c, &rpc));
    CHECK_OK(begin_stream(rpc, peer, 5, 2000, 1, 2, 0, &future));
    for (int64_t p = 0; p < 5; p++)
        CHECK_OK(take_part(future, p, 2000));
    for (int again = 0; again < 2; again++)
        CHECK(fails_with(oar_future_next(future, &part), OAR_E_SHAPE,
                         "the last part is missing"));
    CHECK(oar_last_error()->rank == peer && oar_last_error()->pid > 0);
    CHECK(strstr(oar_last_error()->site, "rpc_stream_test.c:") != NULL);
    CHECK(fails_with(oar_future_wait(future, NULL), OAR_E_SHAPE, "missing"));
    oar_future_release(future);

    CHECK_OK(begin_stream(rpc, peer, -1, 100, 0, 8, 0, &future));
    CHECK_OK(take_part(future, 0, 100));
    CHECK_OK(oar_future_cancel(future));
    CHECK(fails_with(oar_future_next(future, &part), OAR_E_CANCELLED,
                     "\"parts\" on rank"));
    oar_future_release(future);
    CHECK_OK(await_end(rpc, peer, 1, &status));
    CHECK(status == OAR_E_CANCELLED);

    CHECK_OK(begin_stream(rpc, peer, -1, 100, 0, 8, 100, &future));
    do { /* until its time is over */
        status = oar_future_next(future, &part);
        if (status == OAR_OK)
            oar_rpc_message_destroy(part);
    } while (status == OAR_OK);
    CHECK(status == OAR_E_TIMEOUT); /* here or there, whichever is first */
    oar_future_release(future);
    return rpc_close(rpc);
}

static void a_stream_ends_by_failure_cancel_or_time(void **state)
{
    (void)state;
    on_backends(2, run_ends);
}

/* ---- kept calls, references ---------------------------------------------- */

static void *produce(void *arg)
{
    oar_rpc_call *call = arg;
    oar_status status = OAR_OK;

    for (int64_t i = 0; i < 10 && status == OAR_OK; i++)
        status = oar_rpc_send_part(call, make_part(i, 3));
    oar_rpc_answer(call, status);
    return NULL;
}

static oar_status produce_later(void *arg, oar_rpc_call *call)
{
    pthread_t *thread = arg;
    oar_status status = oar_rpc_keep(call);

    if (status == OAR_OK && pthread_create(thread, NULL, produce, call) != 0)
        oar_rpc_answer(call, OAR_E_SYSTEM);
    return status;
}

static oar_status run_kept(oar_group *group, void *arg)
{
    oar_rpc_function f = { .size = sizeof f, .name = "later" };
    oar_rpc_call_opts opts = oar_rpc_call_opts_init();
    stream_counts c = { 0 };
    oar_rpc_message *part;
    oar_future *future;
    oar_rref *rref;
    pthread_t thread;
    oar_rpc *rpc;

    f.fn = produce_later;
    f.arg = &thread;
    opts.parts = 2;
    CHECK_OK(open_streams(group, NULL, &c, &rpc));
    CHECK_OK(oar_rpc_register(rpc, &f));
    CHECK_OK(oar_barrier(group, NULL, NULL));
    if (oar_rpc_rank(rpc) == 0) {
        CHECK_OK(oar_rpc_async(rpc, 1, "later", NULL, &opts, &future));
        for (int64_t p = 0; p < 10; p++)
            CHECK_OK(take_part(future, p, 3));
        CHECK_OK(oar_future_next(future, &part));
        CHECK(part == NULL);
        oar_future_release(future);
        CHECK_OK(oar_rpc_remote(rpc, 1, "add_one", rpc_message_of(1), NULL,
                                &rref)); /* an actor streams, too */
        CHECK_OK(oar_rref_call(rref, "parts", three(4, 5, 0), &opts, &future));
        for (int64_t p = 0; p < 4; p++)
            CHECK_OK(take_part(future, p, 5));
        oar_future_release(future);
        oar_rref_release(rref);
    }
    CHECK_OK(rpc_close(rpc));
    if (oar_group_rank(group) == 1)
        pthread_join(thread, NULL);
    return OAR_OK;
}

static void other_threads_and_actors_send_parts(void **state)
{
    (void)state;
    on_backends(2, run_kept);
}

/* ---- wrong use ----------------------------------------------------------- */

typedef struct consumer {
    pthread_t thread;
    oar_future *future;
    atomic_int *returned;
    oar_status status;
} consumer;

static void *consume(void *arg)
{
    consumer *c = arg;
    oar_rpc_message *part;

    c->status = oar_future_next(c->future, &part);
    atomic_fetch_add(c->returned, 1);
    return NULL;
}

/* Two threads want parts of one reply of which none comes: the second is
 * refused. */
static oar_status run_two_consumers(oar_rpc *rpc, int peer)
{
    oar_rpc_call_opts opts = oar_rpc_call_opts_init();
    atomic_int returned = 0;
    oar_future *future;
    consumer c[2];

    opts.parts = 1;
    CHECK_OK(oar_rpc_async(rpc, peer, "wait", NULL, &opts, &future));
    for (int i = 0; i < 2; i++) {
        c[i] = (consumer){ .future = future, .returned = &returned };
        CHECK(pthread_create(&c[i].thread, NULL, consume, &c[i]) == 0);
    }
    while (atomic_load(&returned) == 0)
        sched_yield();
    CHECK_OK(oar_future_cancel(future));
    for (int i = 0; i < 2; i++)
        pthread_join(c[i].thread, NULL);
    CHECK(c[0].status + c[1].status == OAR_E_STATE + OAR_E_CANCELLED);
    CHECK(c[0].status == OAR_E_STATE || c[1].status == OAR_E_STATE);
    oar_future_release(future);
    return OAR_OK;
}

static oar_status run_wrong_use(oar_group *group, void *arg)
{
    int peer = 1 - oar_group_rank(group);
    oar_rpc_call_opts with = oar_rpc_call_opts_init();
    oar_rpc_opts opts = oar_rpc_opts_init();
    oar_rpc_message *m = NULL;
    stream_counts c = { 0 };
    oar_future *future = NULL;
    oar_rref *rref;
    oar_rpc *rpc;

    opts.message_bytes = 3000;
    CHECK_OK(open_streams(group, &opts, &c, &rpc));
    CHECK_OK(run_two_consumers(rpc, peer));
    with.parts = -1;
    CHECK(fails_with(oar_rpc_async(rpc, peer, "parts", NULL, &with, &future),
                     OAR_E_ARG, "a call with -1 parts"));
    with.parts = 65537;
    CHECK(fails_with(oar_rpc_async(rpc, peer, "parts", NULL, &with, &future),
                     OAR_E_ARG, "a call with 65537 parts"));
    with.parts = 2;
    CHECK(fails_with(
        oar_rpc_sync(rpc, peer, "parts", three(1, 1, 0), &with, &m), OAR_E_ARG,
        "rpc_sync: a reply in parts is taken from a future"));
    CHECK(fails_with(
        oar_rpc_async(rpc, peer, "parts", three(1, 1, 0), &with, NULL),
        OAR_E_ARG, "from a future"));
    CHECK(fails_with(
        oar_rpc_remote(rpc, peer, "parts", three(1, 1, 0), &with, &rref),
        OAR_E_ARG, "from a future"));
    CHECK(fails_with(oar_rpc_sync(rpc, peer, "parts", three(1, 1, 0), NULL, &m),
                     OAR_E_STATE, "it must set parts in its options"));
    CHECK_OK(
        oar_rpc_remote(rpc, peer, "add_one", rpc_message_of(1), NULL, &rref));
    CHECK(fails_with(oar_rref_fetch(rref, &with, &m), OAR_E_ARG, "rref_fetch"));
    oar_rref_release(rref);

    CHECK_OK(
        oar_rpc_async(rpc, peer, "add_one", rpc_message_of(1), NULL, &future));
    CHECK(fails_with(oar_future_next(future, &m), OAR_E_STATE,
                     "asked for no parts"));
    oar_future_release(future);
    CHECK_OK(begin_stream(rpc, peer, 1, 1, 0, 2, 0, &future));
    CHECK(fails_with(oar_future_wait(future, &m), OAR_E_STATE,
                     "take them by oar_future_next"));
    CHECK(fails_with(oar_future_next(future, NULL), OAR_E_ARG, "no place"));
    oar_future_release(future);
    CHECK_OK(begin_stream(rpc, peer, 1, 900, 0, 2, 0, &future));
    CHECK(fails_with(oar_future_next(future, &m), OAR_E_SIZE,
                     "rpc_send_part: a part of 36"));
    oar_future_release(future);
    CHECK_OK(oar_rpc_async(rpc, peer, "parts_inline", three(3, 1, 0), &with,
                           &future));
    CHECK_OK(take_part(future, 0, 1));
    CHECK_OK(take_part(future, 1, 1));
    CHECK(fails_with(oar_future_next(future, &m), OAR_E_STATE,
                     "an inline function cannot wait"));
    oar_future_release(future);
    CHECK(fails_with(oar_rpc_send_part(NULL, rpc_message_of(1)), OAR_E_ARG,
                     "no call"));
    CHECK(fails_with(oar_future_next(NULL, &m), OAR_E_ARG, "no future"));
    return rpc_close(rpc);
}

static void wrong_use_is_named(void **state)
{
    (void)state;
    on_backends(2, run_wrong_use);
}

/* A pool of two whose functions both wait for credit still answers. */
static oar_status run_full_pool(oar_group *group, void *arg)
{
    int peer = 1 - oar_group_rank(group);
    oar_rpc_opts opts = oar_rpc_opts_init();
    stream_counts c = { 0 };
    oar_future *f[3];
    oar_rpc_message *m;
    int64_t n, status;
    oar_rpc *rpc;
    int busy = 0;

    opts.threads = opts.most_threads = 2;
    CHECK_OK(open_streams(group, &opts, &c, &rpc));
    for (int i = 0; i < 3; i++)
        CHECK_OK(begin_stream(rpc, peer, -1, 1, 0, 1, 0, &f[i]));
    CHECK_OK(await_end(rpc, peer, 2, &status));
    CHECK(status == OAR_E_BUSY);
    CHECK_OK(rpc_number(rpc, peer, "add_one", 1, &n));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(take_part(f[i], 0, 1));
        if (oar_future_test(f[i], &(int){ 0 }) == OAR_E_BUSY) {
            CHECK(fails_with(oar_future_next(f[i], &m), OAR_E_BUSY,
                             "set most_threads higher"));
            busy++;
        }
        oar_future_release(f[i]);
    }
    CHECK(busy == 2);
    return rpc_close(rpc);
}

static void functions_that_wait_for_credit_do_not_fill_the_pool(void **state)
{
    (void)state;
    on_backends(2, run_full_pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_come_in_order),
        cmocka_unit_test(several_streams_are_taken_as_they_come),
        cmocka_unit_test(a_slow_consumer_holds_its_function_and_nothing_else),
        cmocka_unit_test(a_stream_ends_by_failure_cancel_or_time),
        cmocka_unit_test(other_threads_and_actors_send_parts),
        cmocka_unit_test(wrong_use_is_named),
        cmocka_unit_test(functions_that_wait_for_credit_do_not_fill_the_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
