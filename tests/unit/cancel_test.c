/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that are given up, works that their own function starts again, and
 * what a loose group refuses. */
#include "support/ranks.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <oarsong/p2p.h>
#include <oarsong/work.h>

static const char *const backends[] = { "sim", "shm", "tcp", NULL };

static void run_all(oar_rank_fn fn)
{
    for (int i = 0; backends[i] != NULL; i++)
        assert_int_equal(ranks_run(backends[i], 2, NULL, fn, NULL), OAR_OK);
}

static oar_status make_loose(oar_group *world, oar_group **g)
{
    return oar_group_dup_with(
        world, OAR_OPTS(oar_dup_opts, .name = "loose", .loose = 1), g);
}

/* ---- giving up ----------------------------------------------------------- */

static void note_status(void *arg, oar_status status)
{
    atomic_store((_Atomic int *)arg, (int)status);
}

static oar_status give_up_receives(oar_group *g, void *arg)
{
    int32_t first = 1, second = 2, sent = 42;
    int other = 1 - oar_group_rank(g), given_up = -1;
    _Atomic int ended = -1;
    oar_work *a, *b;

    CHECK_OK(oar_recv(g, oar_span_of(&first, 1, OAR_I32), other, 5, NULL, &a));
    CHECK_OK(oar_recv(g, oar_span_of(&second, 1, OAR_I32), OAR_ANY_SOURCE, 5,
                      NULL, &b));
    CHECK_OK(oar_work_then(a, note_status, &ended));
    CHECK_OK(oar_work_cancel(a, &given_up));
    CHECK(given_up == 1);
    CHECK(oar_work_wait(a) == OAR_E_ABORTED);
    CHECK(strstr(oar_last_error_text(), "given up") != NULL);
    CHECK(atomic_load(&ended) == OAR_E_ABORTED);
    CHECK_OK(oar_work_cancel(a, &given_up));
    CHECK(given_up == 0);
    CHECK_OK(oar_barrier(g, NULL, NULL));
    CHECK_OK(oar_send(g, oar_span_of(&sent, 1, OAR_I32), other, 5, NULL, NULL));
    CHECK_OK(oar_work_wait(b));
    CHECK(first == 1 && second == 42);
    CHECK_OK(oar_work_cancel(b, &given_up));
    CHECK(given_up == 0);
    CHECK_OK(oar_work_wait(b));
    oar_work_release(a);
    oar_work_release(b);
    CHECK_OK(oar_barrier(g, NULL, &a));
    CHECK(oar_work_cancel(a, &given_up) == OAR_E_ARG);
    CHECK(oar_work_cancel(NULL, &given_up) == OAR_E_ARG);
    CHECK(oar_work_cancel(a, NULL) == OAR_E_ARG);
    CHECK_OK(oar_work_wait(a));
    oar_work_release(a);
    return OAR_OK;
}

static void a_receive_without_a_message_is_given_up(void **state)
{
    run_all(give_up_receives);
}

/* ---- taking offers back -------------------------------------------------- */

enum { LARGE = 12 << 20, RACES = 12 };

static int is_all(const unsigned char *data, unsigned char value)
{
    return data[0] == value && memcmp(data, data + 1, LARGE - 1) == 0;
}

static oar_status send_and_take_back(oar_group *world, oar_group *g,
                                     unsigned char *data)
{
    oar_span all = oar_span_of(data, LARGE, OAR_U8);
    oar_work *work;
    int given_up;

    memset(data, 1, LARGE);
    CHECK(oar_send(g, all, 1, 3, OAR_OPTS(oar_call_opts, .timeout_ms = 30),
                   NULL) == OAR_E_TIMEOUT);
    memset(data, 2, LARGE);
    CHECK_OK(oar_send(g, all, 1, 3, NULL, &work));
    CHECK_OK(oar_barrier(world, NULL, NULL));
    CHECK_OK(oar_work_wait(work));
    oar_work_release(work);
    CHECK_OK(oar_barrier(world, NULL, NULL));
    memset(data, 3, LARGE);
    CHECK_OK(oar_send(g, all, 1, 4, NULL, &work));
    CHECK_OK(oar_work_cancel(work, &given_up));
    CHECK(given_up == 1);
    CHECK(oar_work_wait(work) == OAR_E_ABORTED);
    oar_work_release(work);
    CHECK_OK(oar_barrier(world, NULL, NULL));
    memset(data, 4, LARGE);
    CHECK_OK(oar_send(g, all, 1, 4, NULL, NULL));
    for (int i = 0; i < RACES; i++) {
        oar_status status;

        memset(data, 10 + i, LARGE);
        status =
            oar_send(g, all, 1, 5,
                     OAR_OPTS(oar_call_opts, .timeout_ms = 1 + i % 8), NULL);
        CHECK(status == OAR_OK || status == OAR_E_TIMEOUT);
    }
    memset(data, 9, LARGE);
    return oar_send(g, all, 1, 5, NULL, NULL);
}

static oar_status receive_the_others(oar_group *world, oar_group *g,
                                     unsigned char *data)
{
    oar_span all = oar_span_of(data, LARGE, OAR_U8);
    int before = 0;

    CHECK_OK(oar_barrier(world, NULL, NULL));
    CHECK_OK(oar_recv(g, all, 0, 3, NULL, NULL));
    CHECK(is_all(data, 2));
    CHECK_OK(oar_barrier(world, NULL, NULL));
    CHECK_OK(oar_barrier(world, NULL, NULL));
    CHECK_OK(oar_recv(g, all, 0, 4, NULL, NULL));
    CHECK(is_all(data, 4));
    do {
        oar_message m = oar_message_init();

        CHECK_OK(oar_recv(g, all, OAR_ANY_SOURCE, 5,
                          OAR_OPTS(oar_call_opts, .at_most = 1, .message = &m),
                          NULL));
        CHECK(m.bytes == LARGE && is_all(data, data[0]));
        CHECK(data[0] == 9 || data[0] > before);
        before = data[0];
    } while (before != 9);
    return OAR_OK;
}

static oar_status take_back(oar_group *world, void *arg)
{
    unsigned char *data = malloc(LARGE);
    oar_group *g;
    oar_status status;

    CHECK(data != NULL);
    CHECK_OK(make_loose(world, &g));
    status = oar_group_rank(g) == 0 ? send_and_take_back(world, g, data)
                                    : receive_the_others(world, g, data);
    CHECK_OK(status);
    CHECK_OK(oar_group_fault(g, NULL));
    CHECK_OK(oar_barrier(world, NULL, NULL));
    oar_group_destroy(g);
    free(data);
    return OAR_OK;
}

static void an_offer_that_is_taken_back_does_not_arrive(void **state)
{
    run_all(take_back);
}

/* ---- starting again ------------------------------------------------------ */

enum { TIMES = 100 };

typedef struct server {
    oar_work *work;
    int32_t value;
    _Atomic int count;
    int64_t sum;
} server;

static void serve(void *arg, oar_status status)
{
    server *s = arg;

    s->sum += s->value;
    if (status == OAR_OK && atomic_fetch_add(&s->count, 1) + 1 < TIMES) {
        oar_work_start(s->work);
        oar_work_then(s->work, serve, s);
    }
}

static oar_status serve_calls(oar_group *g, void *arg)
{
    server s = { 0 };

    if (oar_group_rank(g) == 1) {
        CHECK_OK(oar_barrier(g, NULL, NULL)); /* the receive is under way */
        for (int32_t i = 0; i < TIMES; i++)
            CHECK_OK(
                oar_send(g, oar_span_of(&i, 1, OAR_I32), 0, 3, NULL, NULL));
        return oar_barrier(g, NULL, NULL);
    }
    CHECK_OK(oar_recv(g, oar_span_of(&s.value, 1, OAR_I32), OAR_ANY_SOURCE, 3,
                      OAR_OPTS(oar_call_opts, .prepare = 1), &s.work));
    CHECK_OK(oar_work_start(s.work));
    CHECK(oar_work_start(s.work) == OAR_E_STATE);
    CHECK_OK(oar_work_then(s.work, serve, &s));
    CHECK_OK(oar_barrier(g, NULL, NULL));
    CHECK_OK(oar_work_wait(s.work)); /* for the last of them */
    CHECK(atomic_load(&s.count) == TIMES);
    CHECK(s.sum == TIMES * (TIMES - 1) / 2);
    oar_work_release(s.work);
    return oar_barrier(g, NULL, NULL);
}

static void a_function_starts_its_own_work_again(void **state)
{
    run_all(serve_calls);
}

/* ---- loose groups -------------------------------------------------------- */

static void never(void *arg, int rank, oar_gone how)
{
}

static int is_refused(oar_status status)
{
    return status == OAR_E_UNSUPPORTED &&
           strstr(oar_last_error_text(), "loose") != NULL;
}

static oar_status use_loose(oar_group *world, void *arg)
{
    int me = oar_group_rank(world), ranks[] = { 0, 1 }, value = me, got = -1;
    oar_span one = oar_span_of(&value, 1, OAR_I32);
    oar_group *g, *none;

    CHECK_OK(make_loose(world, &g));
    CHECK(is_refused(oar_barrier(g, NULL, NULL)));
    CHECK(is_refused(oar_all_reduce(g, one, OAR_SUM, NULL, NULL)));
    CHECK(is_refused(oar_monitored_barrier(g, NULL)));
    CHECK(is_refused(oar_group_dup(g, &none)));
    CHECK(is_refused(oar_group_split(g, 0, 0, &none)));
    CHECK(is_refused(oar_group_subset(g, 2, ranks, &none)));
    CHECK(is_refused(oar_group_shrink(g, NULL, &none)));
    CHECK(is_refused(oar_group_on_gone(world, never, NULL)));
    CHECK(oar_group_on_gone(g, NULL, NULL) == OAR_E_ARG);
    CHECK_OK(oar_group_on_gone(g, never, NULL));
    CHECK(oar_group_on_gone(g, never, NULL) == OAR_E_STATE);
    CHECK_OK(oar_sendrecv(g, one, 1 - me, 1, oar_span_of(&got, 1, OAR_I32),
                          1 - me, 1, NULL, NULL));
    CHECK(got == 1 - me);
    CHECK(oar_recv(g, one, 1 - me, 2, OAR_OPTS(oar_call_opts, .timeout_ms = 30),
                   NULL) == OAR_E_TIMEOUT);
    CHECK_OK(oar_group_fault(g, NULL));
    CHECK_OK(oar_barrier(world, NULL, NULL));
    oar_group_destroy(g);
    return oar_barrier(world, NULL, NULL);
}

static void a_loose_group_has_messages_only(void **state)
{
    run_all(use_loose);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_receive_without_a_message_is_given_up),
        cmocka_unit_test(an_offer_that_is_taken_back_does_not_arrive),
        cmocka_unit_test(a_function_starts_its_own_work_again),
        cmocka_unit_test(a_loose_group_has_messages_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
