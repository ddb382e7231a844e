/* SPDX-License-Identifier: Apache-2.0 */
/* Replies that go straight into memory of the caller: what arrives there, what
 * does not fit, and that nothing is written after the call. */
#include <sched.h>
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

/* i64 count, i64 first -> i64 7, f32 tensor [count] from first on, f64 tensor
 * [2, 3], f32 tensor [5000] */
static oar_status give_arrays(void *arg, oar_rpc_call *call)
{
    int64_t count, first, shape[] = { 2, 3 };
    oar_rpc_message *reply = oar_rpc_reply(call);
    oar_tensor *t[3];
    oar_status status;

    if (oar_rpc_get_i64(oar_rpc_args(call), &count) != OAR_OK ||
        oar_rpc_get_i64(oar_rpc_args(call), &first) != OAR_OK)
        return OAR_E_DATA;
    t[0] = oar_arange(NULL, OAR_F32, count, (double)first, 1);
    t[1] = oar_full(NULL, OAR_F64, oar_shape_of(2, shape), 2.5);
    t[2] = oar_arange(NULL, OAR_F32, 5000, 0, 1);
    status = oar_rpc_put_i64(reply, 7);
    for (int i = 0; i < 3; i++) {
        if (status == OAR_OK)
            status = oar_rpc_put_tensor(reply, t[i]);
        oar_tensor_release(t[i]);
    }
    return status;
}

/* Replies as above, but only once nobody wants it any more. */
static oar_status give_late(void *arg, oar_rpc_call *call)
{
    while (!oar_rpc_cancelled(call))
        sched_yield();
    return give_arrays(arg, call);
}

static oar_status open_into(oar_group *group, oar_rpc **rpc)
{
    oar_rpc_function f = { .size = sizeof f, .fn = give_arrays };

    CHECK_OK(rpc_open(group, NULL, rpc));
    f.name = "arrays";
    CHECK_OK(oar_rpc_register(*rpc, &f));
    f.name = "late";
    f.fn = give_late;
    CHECK_OK(oar_rpc_register(*rpc, &f));
    return oar_barrier(group, NULL, NULL);
}

static oar_rpc_message *two(int64_t a, int64_t b)
{
    oar_rpc_message *m = rpc_message_of(a);

    oar_rpc_put_i64(m, b);
    return m;
}

/* ---- what arrives -------------------------------------------------------- */

static oar_status check_spans(oar_rpc *rpc, int to, int64_t count)
{
    static float numbers[300000];
    oar_rpc_call_opts opts = oar_rpc_call_opts_init();
    double pair[6] = { 0 };
    oar_span place[2] = { oar_span_of(numbers, (size_t)count, OAR_F32),
                          oar_span_of(pair, 6, OAR_F64) };
    int self = to == oar_rpc_rank(rpc);
    float *mine = numbers + 1000 * oar_rpc_rank(rpc); /* ranks may be threads */
    oar_rpc_message *reply;
    oar_span span;
    int64_t n;

    place[0].data = mine;
    opts.into_count = 2;
    opts.into = place;
    CHECK_OK(oar_rpc_sync(rpc, to, "arrays", two(count, to), &opts, &reply));
    for (int64_t i = 0; i < count; i++)
        CHECK(mine[i] == (float)(to + i));
    for (int i = 0; i < 6; i++)
        CHECK(pair[i] == 2.5);
    CHECK_OK(oar_rpc_get_i64(reply, &n));
    CHECK(n == 7);
    CHECK_OK(oar_rpc_get_span(reply, &span));
    CHECK(span.count == (size_t)count);
    CHECK((span.data == mine) == (4 * count > 4096 && !self));
    CHECK_OK(oar_rpc_get_span(reply, &span));
    CHECK_OK(oar_rpc_get_span(reply, &span)); /* one without a place */
    CHECK(span.count == 5000 && ((float *)span.data)[4999] == 4999);
    oar_rpc_message_destroy(reply);
    return OAR_OK;
}

static oar_status check_tensors(oar_rpc *rpc, int to)
{
    oar_rpc_call_opts opts = oar_rpc_call_opts_init();
    int64_t shape[] = { 2, 3 };
    oar_tensor *t[3] = {
        oar_zeros(NULL, OAR_F32, oar_shape_of(1, &(int64_t){ 9000 })),
        oar_zeros(NULL, OAR_F64, oar_shape_of(2, shape)),
        oar_zeros(NULL, OAR_F32, oar_shape_of(1, &(int64_t){ 5000 }))
    };
    oar_future *future;

    opts.into_count = 3;
    opts.into_tensors = t;
    CHECK_OK(oar_rpc_async(rpc, to, "arrays", two(9000, 4), &opts, &future));
    CHECK_OK(oar_future_wait(future, NULL));
    oar_future_release(future);
    CHECK(((const float *)oar_tensor_const_data(t[0]))[8999] == 9003);
    CHECK(((const double *)oar_tensor_const_data(t[1]))[5] == 2.5);
    CHECK(((const float *)oar_tensor_const_data(t[2]))[4999] == 4999);
    for (int i = 0; i < 3; i++)
        oar_tensor_release(t[i]);
    return OAR_OK;
}

static oar_status run_arrives(oar_group *group, void *arg)
{
    static const int64_t counts[] = { 0, 1, 999, 100000 };
    oar_rpc *rpc;

    CHECK_OK(open_into(group, &rpc));
    for (int to = 0; to < oar_rpc_size(rpc); to++) {
        for (int i = 0; i < 3; i++)
            CHECK_OK(check_spans(rpc, to, counts[i]));
        CHECK_OK(check_tensors(rpc, to));
    }
    CHECK_OK(oar_barrier(group, NULL, NULL));
    for (int turn = 0; turn < oar_rpc_size(rpc); turn++) {
        if (turn == oar_rpc_rank(rpc)) /* the memory is one for all threads */
            CHECK_OK(
                check_spans(rpc, (turn + 1) % oar_rpc_size(rpc), counts[3]));
        CHECK_OK(oar_barrier(group, NULL, NULL));
    }
    return rpc_close(rpc);
}

static void arrays_arrive_in_the_callers_memory(void **state)
{
    (void)state;
    on_backends(2, run_arrives);
    on_backends(3, run_arrives);
}

/* ---- what does not ------------------------------------------------------- */

static oar_status run_misfits(oar_group *group, void *arg)
{
    int peer = 1 - oar_group_rank(group);
    oar_rpc_call_opts opts = oar_rpc_call_opts_init();
    float numbers[9000];
    oar_span place[4] = { oar_span_of(numbers, 2000, OAR_F32) };
    int64_t wrong[] = { 3, 2 };
    oar_tensor *t[2];
    oar_future *future;
    oar_rref *rref;
    oar_rpc *rpc;

    CHECK_OK(open_into(group, &rpc));
    opts.into = place;
    opts.into_count = 1;
    CHECK(fails_with(
        oar_rpc_sync(rpc, peer, "arrays", two(2001, 0), &opts, NULL),
        OAR_E_SIZE,
        "array 0 of the reply of \"arrays\" is f32[2001], and its place in the "
        "caller's memory is f32[2000]"));
    CHECK(fails_with(oar_rpc_sync(rpc, peer, "arrays", two(3, 0), &opts, NULL),
                     OAR_E_SIZE, "is f32[3]"));
    place[0] = oar_span_of(numbers, 2000, OAR_I32);
    CHECK(
        fails_with(oar_rpc_sync(rpc, peer, "arrays", two(2000, 0), &opts, NULL),
                   OAR_E_DTYPE, "i32[2000]"));
    place[0] = oar_span_of(numbers, 2000, OAR_F32);
    place[1] = oar_span_of(numbers + 4000, 6, OAR_F64);
    place[2] = oar_span_of(numbers + 4000, 5000, OAR_F32);
    opts.into_count = 4;
    place[3] = place[1];
    CHECK(
        fails_with(oar_rpc_sync(rpc, peer, "arrays", two(2000, 0), &opts, NULL),
                   OAR_E_SIZE, "has 3 arrays, and places for 4 were named"));
    opts.into = NULL;
    opts.into_tensors = t;
    opts.into_count = 2;
    t[0] = oar_zeros(NULL, OAR_F32, oar_shape_of(1, &(int64_t){ 2000 }));
    t[1] = oar_zeros(NULL, OAR_F64, oar_shape_of(2, wrong));
    CHECK(
        fails_with(oar_rpc_sync(rpc, peer, "arrays", two(2000, 0), &opts, NULL),
                   OAR_E_SHAPE, "is f64[2, 3], and its place"));
    CHECK(fails_with(
        oar_rpc_remote(rpc, peer, "arrays", two(2000, 0), &opts, &rref),
        OAR_E_ARG, "whose reply is not taken"));
    CHECK(fails_with(oar_rpc_async(rpc, peer, "arrays", NULL, &opts, NULL),
                     OAR_E_ARG, "whose reply is not taken"));
    opts.into = place;
    CHECK(fails_with(oar_rpc_async(rpc, peer, "arrays", NULL, &opts, &future),
                     OAR_E_ARG, "either into or into_tensors"));
    opts.into_tensors = NULL;
    opts.into_count = -1;
    CHECK(fails_with(oar_rpc_async(rpc, peer, "arrays", NULL, &opts, &future),
                     OAR_E_ARG, "-1 places"));
    opts.into_count = 1;
    place[0].read_only = 1;
    CHECK(fails_with(oar_rpc_async(rpc, peer, "arrays", NULL, &opts, &future),
                     OAR_E_ARG, "may only be read"));
    place[0].data = NULL;
    CHECK(fails_with(oar_rpc_async(rpc, peer, "arrays", NULL, &opts, &future),
                     OAR_E_ARG, "has no memory"));
    oar_tensor_release(t[0]);
    oar_tensor_release(t[1]);
    return rpc_close(rpc);
}

static void what_does_not_fit_is_named(void **state)
{
    (void)state;
    on_backends(2, run_misfits);
}

static oar_status run_late(oar_group *group, void *arg)
{
    int peer = 1 - oar_group_rank(group);
    oar_rpc_call_opts opts = oar_rpc_call_opts_init();
    float numbers[9000];
    oar_span place = oar_span_of(numbers, 9000, OAR_F32);
    oar_future *future;
    oar_rpc *rpc;

    CHECK_OK(open_into(group, &rpc));
    opts.into = &place;
    opts.into_count = 1;
    opts.timeout_ms = 20;
    CHECK(fails_with(oar_rpc_sync(rpc, peer, "late", two(9000, 0), &opts, NULL),
                     OAR_E_TIMEOUT, "has not answered"));
    opts.timeout_ms = 0;
    CHECK_OK(oar_rpc_async(rpc, peer, "late", two(9000, 0), &opts, &future));
    CHECK_OK(oar_future_cancel(future));
    CHECK(fails_with(oar_future_wait(future, NULL), OAR_E_CANCELLED, "late"));
    oar_future_release(future);
    memset(numbers, 0x11, sizeof numbers);
    CHECK_OK(oar_rpc_shutdown(rpc, 0)); /* both replies have come */
    for (size_t i = 0; i < sizeof numbers; i++)
        CHECK(((unsigned char *)numbers)[i] == 0x11);
    oar_rpc_destroy(rpc);
    return OAR_OK;
}

static void a_late_reply_leaves_the_memory_alone(void **state)
{
    (void)state;
    on_backends(2, run_late);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_arrive_in_the_callers_memory),
        cmocka_unit_test(what_does_not_fit_is_named),
        cmocka_unit_test(a_late_reply_leaves_the_memory_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
