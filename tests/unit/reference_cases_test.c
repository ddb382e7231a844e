/* SPDX-License-Identifier: Apache-2.0 */
/* The cases that ferrotorch tests its collectives with, and those that it gets
 * wrong, on every backend. */
#include "support/ranks.h"

#include <stdlib.h>
#include <string.h>

#include <oarsong/p2p.h>
#include <oarsong/tensor.h>

#include "base/clock.h"
#include "support/last_error.h"

#define F(x)    oar_span_of(x, sizeof(x) / sizeof *(x), OAR_F32)
#define NOTHING oar_span_of(NULL, 0, OAR_F32)

static int same(const float *x, const float *y, size_t count)
{
    return memcmp(x, y, count * sizeof *x) == 0;
}

#define IS(x, ...) \
    CHECK(same(x, (const float[]){ __VA_ARGS__ }, sizeof(x) / sizeof *(x)))

/* ---- four ranks ---------------------------------------------------------- */

static oar_status four(oar_group *g, void *arg)
{
    int r = oar_group_rank(g);
    float me = (float)r;
    float x[3] = { me, me, me }, m[3] = { me, me, me };
    float b[2] = { r == 0 ? 42 : 0, r == 0 ? 42 : 0 };
    float pair[2] = { 10 * me, 10 * me + 1 }, row[8], all[4], each[4], one[1];
    float every[4] = { 1, 2, 3, 4 };

    CHECK_OK(oar_all_reduce(g, F(x), OAR_SUM, NULL, NULL));
    IS(x, 6, 6, 6);
    CHECK_OK(oar_all_reduce(g, F(m), OAR_AVG, NULL, NULL));
    IS(m, 1.5f, 1.5f, 1.5f);
    CHECK_OK(oar_broadcast(g, F(b), 0, NULL, NULL));
    IS(b, 42, 42);
    CHECK_OK(oar_barrier(g, NULL, NULL));
    CHECK_OK(oar_all_gather(g, F(pair), F(row), NULL, NULL));
    IS(row, 0, 1, 10, 11, 20, 21, 30, 31);
    CHECK_OK(oar_reduce_scatter(g, F(every), F(one), OAR_SUM, NULL, NULL));
    CHECK(one[0] == 4 * (me + 1));
    for (int i = 0; i < 4; i++)
        all[i] = 100 * me + (float)i;
    CHECK_OK(oar_all_to_all(g, F(all), F(each), NULL, NULL));
    IS(each, me, 100 + me, 200 + me, 300 + me);
    return OAR_OK;
}

static void the_cases_of_four_ranks_hold(void **state)
{
    ranks_all(4, four, NULL);
}

/* ---- two ranks ----------------------------------------------------------- */

static oar_status two(oar_group *g, void *arg)
{
    int r = oar_group_rank(g), other = 1 - r;
    float me = (float)r, four_of[4] = { me, me, me, me }, half[2];
    float a[4] = { 10, 20, 30, 40 }, b[4] = { 50, 60, 70, 80 }, to[4];
    float mine[2] = { r == 0 ? 1 : 100, r == 0 ? 2 : 200 }, theirs[2];
    float ten[3] = { 10, 20, 30 }, zero[3] = { 0 }, none[1] = { 7 };

    CHECK_OK(oar_reduce_scatter(g, F(four_of), F(half), OAR_AVG, NULL, NULL));
    IS(half, 0.5f, 0.5f);
    CHECK_OK(oar_all_to_all(g, r == 0 ? F(a) : F(b), F(to), NULL, NULL));
    if (r == 0)
        IS(to, 10, 20, 50, 60);
    else
        IS(to, 30, 40, 70, 80);
    CHECK_OK(
        oar_sendrecv(g, F(mine), other, 0, F(theirs), other, 0, NULL, NULL));
    CHECK(theirs[0] == (r == 0 ? 100 : 1) && theirs[1] == 2 * theirs[0]);
    if (r == 0)
        CHECK_OK(oar_send(g, F(ten), 1, 0, NULL, NULL));
    else {
        CHECK_OK(oar_recv(g, F(zero), 0, 0, NULL, NULL));
        IS(zero, 10, 20, 30);
    }
    /* nothing, from one to the other: the original always failed here */
    if (r == 0)
        CHECK_OK(oar_send(g, NOTHING, 1, 0, NULL, NULL));
    else
        CHECK_OK(oar_recv(g, oar_span_of(none, 0, OAR_F32), 0, 0, NULL, NULL));
    CHECK(none[0] == 7);
    CHECK(fails_with(oar_broadcast(g, F(ten), 5, NULL, NULL), OAR_E_RANK,
                     "rank 5 in a group of 2"));
    CHECK(oar_send(g, F(ten), 5, 0, NULL, NULL) == OAR_E_RANK);
    CHECK(oar_recv(g, F(ten), 5, 0, NULL, NULL) == OAR_E_RANK);
    CHECK(oar_reduce_scatter(g, F(ten), F(half), OAR_SUM, NULL, NULL) ==
          OAR_E_ARG);
    return oar_all_gather(g, NOTHING, NOTHING, NULL, NULL);
}

static void the_cases_of_two_ranks_hold(void **state)
{
    ranks_all(2, two, NULL);
}

static oar_status uneven(oar_group *g, void *arg)
{
    const size_t send[2][2] = { { 1, 3 }, { 2, 2 } };
    const size_t recv[2][2] = { { 1, 2 }, { 3, 2 } };
    float a[4] = { 10, 20, 21, 22 }, b[4] = { 30, 31, 40, 41 };
    float to0[3], to1[5];
    int r = oar_group_rank(g);

    CHECK_OK(oar_all_to_all_v(g, r == 0 ? F(a) : F(b), send[r],
                              r == 0 ? F(to0) : F(to1), recv[r], NULL, NULL));
    if (r == 0)
        IS(to0, 10, 30, 31);
    else
        IS(to1, 20, 21, 22, 40, 41);
    return OAR_OK;
}

static void the_uneven_all_to_all_is_right(void **state)
{
    ranks_all(2, uneven, NULL);
}

/* ---- one rank ------------------------------------------------------------ */

static oar_status alone(oar_group *g, void *arg)
{
    float x[3] = { 1, 2, 3 }, y[3];

    CHECK_OK(oar_all_reduce(g, F(x), OAR_SUM, NULL, NULL));
    CHECK_OK(oar_all_reduce(g, F(x), OAR_AVG, NULL, NULL));
    CHECK_OK(oar_broadcast(g, F(x), 0, NULL, NULL));
    IS(x, 1, 2, 3);
    CHECK_OK(oar_all_gather(g, F(x), F(y), NULL, NULL));
    IS(y, 1, 2, 3); /* a copy: the original gave an alias */
    y[0] = 9;
    IS(x, 1, 2, 3);
    CHECK_OK(oar_reduce_scatter(g, F(x), F(y), OAR_SUM, NULL, NULL));
    CHECK_OK(oar_all_to_all(g, F(x), F(y), NULL, NULL));
    IS(y, 1, 2, 3);
    CHECK(oar_broadcast(g, F(x), 1, NULL, NULL) == OAR_E_RANK);
    CHECK_OK(oar_batch_begin(g)); /* to oneself: the original refused */
    CHECK_OK(oar_send(g, F(x), 0, 4, NULL, NULL));
    CHECK_OK(oar_recv(g, F(y), 0, 4, NULL, NULL));
    CHECK_OK(oar_batch_end(g, NULL));
    IS(y, 1, 2, 3);
    return oar_barrier(g, NULL, NULL);
}

static void the_cases_of_one_rank_hold(void **state)
{
    ranks_all(1, alone, NULL);
}

static oar_status nobody(oar_group *g, void *arg)
{
    return OAR_OK;
}

static void no_ranks_is_an_impossible_world_size(void **state)
{
    assert_fails_with(oar_sim_run(0, nobody, NULL), OAR_E_WORLD, "group of 0");
}

/* ---- what the original could not do -------------------------------------- */

static oar_status every_root(oar_group *g, void *arg)
{
    int r = oar_group_rank(g), n = oar_group_size(g);

    for (int root = 0; root < n; root++) {
        float x[5] = { 0 };

        for (int i = 0; i < 5 && r == root; i++)
            x[i] = (float)(10 * root + i);
        CHECK_OK(oar_broadcast(g, F(x), root, NULL, NULL));
        for (int i = 0; i < 5; i++)
            CHECK(x[i] == (float)(10 * root + i));
    }
    return OAR_OK;
}

static oar_status every_pair(oar_group *g, void *arg)
{
    int r = oar_group_rank(g), n = oar_group_size(g);

    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            int32_t x = 100 * a + b, y = -1;

            if (a == b)
                continue;
            if (r == a)
                CHECK_OK(
                    oar_send(g, oar_span_of(&x, 1, OAR_I32), b, 1, NULL, NULL));
            if (r == b) {
                CHECK_OK(
                    oar_recv(g, oar_span_of(&y, 1, OAR_I32), a, 1, NULL, NULL));
                CHECK(y == x);
            }
        }
    return OAR_OK;
}

static void broadcast_works_from_every_root(void **state)
{
    ranks_all(3, every_root, NULL);
    ranks_all(5, every_root, NULL);
}

static void messages_work_between_every_pair(void **state)
{
    ranks_all(4, every_pair, NULL);
}

static oar_status wrong_then_right(oar_group *g, void *arg)
{
    unsigned char x[32], y[16], z[4] = { 1, 2, 3, 4 };
    int r = oar_group_rank(g);

    memset(x, 7, sizeof x);
    for (int i = 0; i < 20; i++) {
        if (r == 0) {
            CHECK_OK(oar_send(g, oar_span_of(x, 32, OAR_U8), 1, 0, NULL, NULL));
            CHECK_OK(oar_send(g, oar_span_of(z, 4, OAR_U8), 1, 0, NULL, NULL));
            continue;
        }
        CHECK(fails_with(
            oar_recv(g, oar_span_of(y, 16, OAR_U8), 0, 0, NULL, NULL),
            OAR_E_SIZE, "16 bytes"));
        memset(y, 0, 4);
        CHECK_OK(oar_recv(g, oar_span_of(y, 4, OAR_U8), 0, 0, NULL, NULL));
        CHECK(memcmp(y, z, 4) == 0);
    }
    return oar_barrier(g, NULL, NULL);
}

static void a_message_of_the_wrong_size_does_not_confuse_the_next(void **state)
{
    ranks_all(2, wrong_then_right, NULL);
}

static oar_status several_at_once(oar_group *g, void *arg)
{
    int r = oar_group_rank(g), n = oar_group_size(g);
    float in[6][3], all[6][12], part[6][12], mine[6][3];
    oar_work *work[12];

    for (int i = 0; i < 6; i++) {
        for (int k = 0; k < 3; k++)
            in[i][k] = (float)(100 * i + 10 * r + k);
        for (int k = 0; k < 3 * n; k++)
            part[i][k] = (float)(i + k);
        CHECK_OK(oar_all_gather(g, F(in[i]),
                                oar_span_of(all[i], 3 * (size_t)n, OAR_F32),
                                NULL, &work[2 * i]));
        CHECK_OK(
            oar_reduce_scatter(g, oar_span_of(part[i], 3 * (size_t)n, OAR_F32),
                               F(mine[i]), OAR_SUM, NULL, &work[2 * i + 1]));
    }
    CHECK_OK(oar_work_wait_all(12, work));
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 3 * n; k++) {
            CHECK(all[i][k] == (float)(100 * i + 10 * (k / 3) + k % 3));
            CHECK(mine[i][k % 3] == (float)(n * (i + 3 * r + k % 3)));
        }
    for (int i = 0; i < 12; i++)
        oar_work_release(work[i]);
    return oar_barrier(g, NULL, NULL);
}

static void several_operations_in_flight_do_not_race(void **state)
{
    ranks_all(2, several_at_once, NULL);
    ranks_all(4, several_at_once, NULL);
}

static oar_status brief(oar_group *g, void *arg)
{
    oar_call_opts opts = { .size = sizeof opts, .timeout_ms = 50 };
    int64_t before = oari_now_ns(), took;
    float x[1];

    if (oar_group_rank(g) == 1) {
        oar_status status = oar_recv(g, F(x), 0, 0, &opts, NULL);

        took = (oari_now_ns() - before) / 1000000;
        CHECK(fails_with(status, OAR_E_TIMEOUT, "50 ms"));
        CHECK(took >= 49 && took < 5000);
        return OAR_OK;
    }
    while (oar_group_fault(g, NULL) == OAR_OK && /* it is told */
           oari_now_ns() - before < INT64_C(10000000000))
        oar_probe(g, 1, 0, &(int){ 0 }, NULL);
    return oar_group_fault(g, NULL) == OAR_E_TIMEOUT ? OAR_OK : OAR_E_STATE;
}

static void a_timeout_really_fires(void **state)
{
    const char *const able[] = { "sim", "shm", "tcp" };

    for (int i = 0; i < 3; i++)
        assert_int_equal(ranks_run(able[i], 2, NULL, brief, NULL), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cases_of_four_ranks_hold),
        cmocka_unit_test(the_cases_of_two_ranks_hold),
        cmocka_unit_test(the_uneven_all_to_all_is_right),
        cmocka_unit_test(the_cases_of_one_rank_hold),
        cmocka_unit_test(no_ranks_is_an_impossible_world_size),
        cmocka_unit_test(broadcast_works_from_every_root),
        cmocka_unit_test(messages_work_between_every_pair),
        cmocka_unit_test(a_message_of_the_wrong_size_does_not_confuse_the_next),
        cmocka_unit_test(several_operations_in_flight_do_not_race),
        cmocka_unit_test(a_timeout_really_fires),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
