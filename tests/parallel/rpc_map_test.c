/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that lie in windows: mapped by ranks of the host, given back when they
 * are through, copied where they cannot be mapped. */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/ops.h>

#include "support/last_error.h"
#include "support/leak_check.h"
#include "support/ranks.h"
#include "support/rpc_functions.h"
#include "support/test_job.h"

enum { COUNT = 1 << 20 }; /* floats of a window */

static const char *const backends[] = { "sim", "shm", "tcp" };

static void on_backends(int ranks, oar_rank_fn fn)
{
    for (int i = 0; i < 3; i++)
        if (ranks_run(backends[i], ranks, NULL, fn, NULL) != OAR_OK)
            fail_msg("%s: %s", backends[i], oar_last_error_text());
}

/* One rank's side. */
typedef struct map_side {
    oar_tensor *held; /* what "hold" was given */
    oar_window *window;
    atomic_int drops;
} map_side;

static void count_drop(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

/* A tensor: keeps it -> i64 1 if it may only be read. */
static oar_status hold(void *arg, oar_rpc_call *call)
{
    map_side *s = arg;
    oar_status status = oar_rpc_get_tensor(oar_rpc_args(call), &s->held);

    return status == OAR_OK ? oar_rpc_put_i64(oar_rpc_reply(call),
                                              oar_tensor_is_read_only(s->held))
                            : status;
}

/* i64 index -> f64 that number of what is held */
static oar_status peek(void *arg, oar_rpc_call *call)
{
    map_side *s = arg;
    int64_t i;

    if (oar_rpc_get_i64(oar_rpc_args(call), &i) != OAR_OK)
        return OAR_E_DATA;
    return oar_rpc_put_f64(oar_rpc_reply(call),
                           ((const float *)oar_tensor_const_data(s->held))[i]);
}

static oar_status let_go(void *arg, oar_rpc_call *call)
{
    map_side *s = arg;

    (void)call;
    oar_tensor_release(s->held);
    s->held = NULL;
    return OAR_OK;
}

static float apart[3000]; /* 0, 2, 4, ... */

/* Puts an array that lies in the window, one that does not, one that is small,
 * and another of the window. */
static oar_status put_mixture(oar_rpc_message *m, map_side *s)
{
    float *in = oar_window_data(s->window);
    oar_span span = oar_span_of(in, 5000, OAR_F32);

    CHECK_OK(oar_rpc_message_map(m, s->window));
    CHECK_OK(oar_rpc_put_span(m, span, count_drop, &s->drops));
    CHECK_OK(
        oar_rpc_put_span(m, oar_span_of(apart, 3000, OAR_F32), NULL, NULL));
    CHECK_OK(oar_rpc_put_span(m, oar_span_of(in, 10, OAR_F32), NULL, NULL));
    span = oar_span_of(in + 1000, 5000, OAR_F32);
    return oar_rpc_put_span(m, span, NULL, NULL);
}

static oar_status check_mixture(oar_rpc_message *m, int mapped)
{
    static const size_t counts[] = { 5000, 3000, 10, 5000 };
    static const float factor[] = { 1, 2, 1, 1 };
    static const float first[] = { 0, 0, 0, 1000 };
    oar_span span;

    for (int a = 0; a < 4; a++) {
        CHECK_OK(oar_rpc_get_span(m, &span));
        CHECK(span.count == counts[a]);
        CHECK(span.read_only == (mapped && (a == 0 || a == 3)));
        for (size_t i = 0; i < span.count; i++)
            CHECK(((float *)span.data)[i] == first[a] + factor[a] * (float)i);
    }
    return OAR_OK;
}

/* -> the mixture; with i64 parts as arguments, as a part before. */
static oar_status give_mixture(void *arg, oar_rpc_call *call)
{
    oar_rpc_message *part;
    int64_t parts;

    if (oar_rpc_get_i64(oar_rpc_args(call), &parts) == OAR_OK)
        for (int64_t i = 0; i < parts; i++) {
            CHECK_OK(oar_rpc_message_create(&part));
            CHECK_OK(put_mixture(part, arg));
            CHECK_OK(oar_rpc_send_part(call, part));
        }
    return put_mixture(oar_rpc_reply(call), arg);
}

static oar_status open_map(oar_group *group, map_side *s, oar_rpc **rpc)
{
    const struct {
        const char *name;
        oar_rpc_fn fn;
    } functions[] = { { "hold", hold },
                      { "peek", peek },
                      { "let_go", let_go },
                      { "mixture", give_mixture } };

    CHECK_OK(oar_window_alloc(COUNT * sizeof(float), &s->window));
    for (int i = 0; i < COUNT; i++)
        ((float *)oar_window_data(s->window))[i] = (float)i;
    CHECK_OK(rpc_open(group, NULL, rpc));
    for (int i = 0; i < 4; i++)
        CHECK_OK(oar_rpc_register(
            *rpc, OAR_OPTS(oar_rpc_function, .name = functions[i].name,
                           .fn = functions[i].fn, .arg = s)));
    return oar_barrier(group, NULL, NULL);
}

static oar_status close_map(map_side *s, oar_rpc *rpc)
{
    CHECK_OK(rpc_close(rpc));
    oar_window_release(s->window);
    oar_tensor_release(s->held);
    return OAR_OK;
}

/* A message with the whole window as a tensor of two dims. */
static oar_status make_tensor_message(map_side *s, oar_rpc_message **message)
{
    int64_t shape[] = { 4, COUNT / 4 };
    oar_storage *storage;
    oar_tensor *t;

    CHECK_OK(oar_storage_create_detached(COUNT * sizeof(float), 0, &storage));
    CHECK_OK(oar_storage_attach(storage, oar_window_data(s->window), count_drop,
                                &s->drops));
    t = oar_view_of(NULL, storage, 0, OAR_F32, oar_shape_of(2, shape));
    CHECK(t != NULL);
    oar_storage_release(storage);
    CHECK_OK(oar_rpc_message_create(message));
    CHECK_OK(oar_rpc_message_map(*message, s->window));
    CHECK_OK(oar_rpc_put_tensor(*message, t));
    oar_tensor_release(t);
    return OAR_OK;
}

static oar_status read_peek(oar_rpc *rpc, int to, int64_t index, double *x)
{
    oar_rpc_message *reply;

    CHECK_OK(
        oar_rpc_sync(rpc, to, "peek", rpc_message_of(index), NULL, &reply));
    CHECK_OK(oar_rpc_get_f64(reply, x));
    oar_rpc_message_destroy(reply);
    return OAR_OK;
}

/* ---- mapped -------------------------------------------------------------- */

static oar_status run_mapped(oar_group *group, void *arg)
{
    int peer = (oar_group_rank(group) + 1) % oar_group_size(group);
    oar_rpc_stats stats = oar_rpc_stats_init();
    oar_rpc_message *m;
    map_side s = { 0 };
    int64_t read_only;
    oar_rpc *rpc;
    double x;

    CHECK_OK(open_map(group, &s, &rpc));
    for (int round = 1; round < 4; round++) {
        float *first = oar_window_data(s.window);

        CHECK_OK(make_tensor_message(&s, &m));
        CHECK_OK(oar_rpc_sync(rpc, peer, "hold", m, NULL, &m));
        CHECK_OK(oar_rpc_get_i64(m, &read_only));
        CHECK(read_only == 1);
        oar_rpc_message_destroy(m);
        CHECK_OK(read_peek(rpc, peer, COUNT - 1, &x));
        CHECK(x == COUNT - 1);
        first[1] = (float)(100 * round); /* it is the same memory */
        CHECK_OK(read_peek(rpc, peer, 1, &x));
        CHECK(x == 100 * round);
        CHECK(atomic_load(&s.drops) == round - 1);
        CHECK_OK(oar_rpc_sync(rpc, peer, "let_go", NULL, NULL, NULL));
        while (atomic_load(&s.drops) < round) /* it is given back */
            sched_yield();
    }
    CHECK_OK(oar_rpc_read_stats(rpc, &stats));
    CHECK(stats.bytes_out < 10000 && stats.refused == 0);
    CHECK_OK(make_tensor_message(&s, &m)); /* and held beyond the agents */
    CHECK_OK(oar_rpc_sync(rpc, peer, "hold", m, NULL, NULL));
    CHECK_OK(oar_barrier(group, NULL, NULL));
    oar_window_release(s.window);
    s.window = NULL;
    CHECK_OK(rpc_close(rpc));
    CHECK(atomic_load(&s.drops) == 4);
    CHECK(((const float *)oar_tensor_const_data(s.held))[COUNT - 1] ==
          COUNT - 1);
    CHECK(oar_tensor_shape(s.held).dim[0] == 4);
    oar_tensor_release(s.held);
    return OAR_OK;
}

static void an_array_in_a_window_is_mapped_and_given_back(void **state)
{
    (void)state;
    on_backends(2, run_mapped);
    on_backends(3, run_mapped);
}

static oar_status run_mixture(oar_group *group, void *arg)
{
    int rank = oar_group_rank(group), size = oar_group_size(group);
    oar_rpc_call_opts opts = oar_rpc_call_opts_init();
    oar_rpc_message *m;
    oar_future *future;
    map_side s = { 0 };
    float place[5000];
    oar_span into = oar_span_of(place, 5000, OAR_F32);
    oar_rpc *rpc;

    CHECK_OK(open_map(group, &s, &rpc));
    for (int to = 0; to < size; to++) {
        CHECK_OK(oar_rpc_sync(rpc, to, "mixture", NULL, NULL, &m));
        CHECK_OK(check_mixture(m, to != rank));
        oar_rpc_message_destroy(m);
        opts.parts = 2;
        CHECK_OK(oar_rpc_async(rpc, to, "mixture", rpc_message_of(5), &opts,
                               &future));
        for (int i = 0; i < 5; i++) {
            CHECK_OK(oar_future_next(future, &m));
            CHECK_OK(check_mixture(m, to != rank));
            oar_rpc_message_destroy(m);
        }
        oar_future_release(future);
        opts.parts = 0;
        opts.into = &into;
        opts.into_count = 1;
        memset(place, 0, sizeof place);
        CHECK_OK(oar_rpc_sync(rpc, to, "mixture", NULL, &opts, NULL));
        CHECK(place[4999] == 4999);
        opts.into_count = 0;
    }
    return close_map(&s, rpc);
}

static void mapped_arrays_are_among_others_in_any_message(void **state)
{
    (void)state;
    on_backends(2, run_mixture);
}

/* ---- copied -------------------------------------------------------------- */

static oar_status run_two_hosts(oar_group *group, void *arg)
{
    oar_rpc_message *m;
    map_side s = { 0 };
    oar_rpc *rpc;

    CHECK_OK(open_map(group, &s, &rpc));
    CHECK_OK(
        oar_rpc_sync(rpc, 1 - oar_rpc_rank(rpc), "mixture", NULL, NULL, &m));
    CHECK_OK(check_mixture(m, 0));
    oar_rpc_message_destroy(m);
    return close_map(&s, rpc);
}

static int on_two_hosts(test_job *c, int rank, void *arg)
{
    oar_group_opts o = { .size = sizeof o, .backend = "native" };
    oar_group *world;

    setenv("OARSONG_HOST_ID", rank == 0 ? "one" : "two", 1);
    RANK_OK(test_job_join(c, rank, &o, &world));
    RANK_OK(run_two_hosts(world, arg));
    oar_group_destroy(world);
    return 0;
}

static void between_hosts_they_are_copied(void **state)
{
    test_job job;

    (void)state;
    test_job_start(&job, 2, on_two_hosts, NULL, "two hosts");
    for (int r = 0; r < 2; r++)
        test_job_expect(&job, r, 0);
    test_job_end(&job);
}

/* ---- deaths -------------------------------------------------------------- */

/* Rank 1 dies, which has lent an array to rank 0, and borrowed one. */
static int outlive(test_job *c, int rank, void *arg)
{
    oar_group_opts o = { .size = sizeof o, .backend = arg };
    map_side s = { 0 };
    oar_rpc_message *m;
    oar_group *world;
    oar_rpc *rpc;

    RANK_OK(test_job_join(c, rank, &o, &world));
    RANK_OK(open_map(world, &s, &rpc));
    RANK_OK(make_tensor_message(&s, &m));
    RANK_OK(oar_rpc_sync(rpc, 1 - rank, "hold", m, NULL, NULL));
    RANK_OK(oar_barrier(world, NULL, NULL));
    if (rank == 1)
        raise(SIGKILL);
    while (atomic_load(&s.drops) == 0) /* what it had borrowed */
        sched_yield();
    for (int i = 0; i < COUNT; i++) /* what it had lent */
        RANK_CHECK(((const float *)oar_tensor_const_data(s.held))[i] ==
                   (float)i);
    RANK_OK(close_map(&s, rpc));
    oar_group_destroy(world);
    return 0;
}

static void memory_outlives_the_rank_that_lent_it(void **state)
{
    static const char *const by[] = { "shm", "tcp" };
    test_job job;

    (void)state;
    for (int i = 0; i < 2; i++) {
        test_job_start(&job, 2, outlive, (void *)(uintptr_t)by[i],
                       "%s: a death", by[i]);
        test_job_expect(&job, 1, 128 + SIGKILL);
        test_job_expect(&job, 0, 0);
        test_job_end(&job);
    }
}

/* ---- wrong use ----------------------------------------------------------- */

static oar_status run_wrong_use(oar_group *group, void *arg)
{
    oar_window *window;
    oar_rpc_message *m;

    CHECK_OK(oar_window_alloc(8192, &window));
    CHECK_OK(oar_rpc_message_create(&m));
    CHECK(fails_with(oar_rpc_message_map(NULL, window), OAR_E_ARG, "message"));
    CHECK(fails_with(oar_rpc_message_map(m, NULL), OAR_E_ARG, "window"));
    CHECK(fails_with(oar_window_alloc(1, NULL), OAR_E_ARG, "no place"));
    CHECK_OK(oar_rpc_message_map(m, window));
    oar_window_release(window);
    oar_rpc_message_destroy(m);
    return OAR_OK;
}

static void wrong_use_of_windows_is_named(void **state)
{
    (void)state;
    assert_int_equal(ranks_run("sim", 1, NULL, run_wrong_use, NULL), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_array_in_a_window_is_mapped_and_given_back),
        cmocka_unit_test(mapped_arrays_are_among_others_in_any_message),
        cmocka_unit_test(between_hosts_they_are_copied),
        cmocka_unit_test(memory_outlives_the_rank_that_lent_it),
        cmocka_unit_test(wrong_use_of_windows_is_named),
    };
    for (int i = 0; i < 3000; i++)
        apart[i] = (float)(2 * i);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
