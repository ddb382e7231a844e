/* SPDX-License-Identifier: Apache-2.0 */
/* Groups made from groups: their members and ranks, and that their messages
 * never mix. */
#include "support/ranks.h"

#include <string.h>
#include <unistd.h>

#include <oarsong/backend.h>
#include <oarsong/p2p.h>

#include "comm/group/group.h"
#include "support/last_error.h"

static oar_status sum_is(oar_group *g, int64_t mine, int64_t wanted)
{
    int64_t x = mine;

    CHECK_OK(
        oar_all_reduce(g, oar_span_of(&x, 1, OAR_I64), OAR_SUM, NULL, NULL));
    CHECK(x == wanted);
    return OAR_OK;
}

static oar_status split_by_parity(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g), n = oar_group_size(g);
    oar_group *half = NULL;

    CHECK_OK(oar_group_split(g, rank % 2, -rank, &half));
    CHECK(oar_group_size(half) == (n + 1 - rank % 2) / 2);
    /* the key is -rank: the highest comes first */
    CHECK(oar_group_rank(half) == (n - 1 - rank) / 2);
    for (int r = 0; r < oar_group_size(half); r++) {
        int there = oar_group_to_world(half, r);
        CHECK(there % 2 == rank % 2 && oar_group_from_world(half, there) == r);
        CHECK(oar_group_translate(half, r, g) == there);
        CHECK(oar_group_translate(g, there, half) == r);
    }
    CHECK(oar_group_from_world(half, (rank + 1) % 2) == -1);
    CHECK_OK(sum_is(half, 1, oar_group_size(half)));
    CHECK_OK(sum_is(g, 1, n));
    oar_group_destroy(half);
    return oar_barrier(g, NULL, NULL);
}

static void a_split_makes_one_group_a_colour(void **state)
{
    ranks_all(2, split_by_parity, NULL);
    ranks_all(5, split_by_parity, NULL);
}

static oar_status split_out(oar_group *g, void *arg)
{
    int rank = oar_group_rank(g);
    oar_group *rest = g;

    CHECK_OK(oar_group_split(g, rank == 0 ? -1 : 7, 0, &rest));
    CHECK((rest == NULL) == (rank == 0));
    if (rest != NULL)
        CHECK_OK(sum_is(rest, rank, 1 + 2));
    oar_group_destroy(rest);
    return oar_barrier(g, NULL, NULL);
}

static void a_rank_without_a_colour_gets_no_group(void **state)
{
    ranks_all(3, split_out, NULL);
}

static oar_status split_deep(oar_group *g, void *arg)
{
    oar_group *a, *b, *c, *one;

    CHECK_OK(oar_group_dup(g, &a));
    CHECK_OK(oar_group_split(a, oar_group_rank(g) / 2, 0, &b));
    CHECK_OK(oar_group_dup(b, &c));
    oar_group_destroy(a); /* a child outlives its parent */
    oar_group_destroy(b);
    CHECK(oar_group_size(c) == 2);
    CHECK(oar_group_to_world(c, oar_group_rank(c)) == oar_group_rank(g));
    CHECK_OK(sum_is(c, 1, 2));
    CHECK_OK(oar_group_split(c, oar_group_rank(c), 0, &one));
    CHECK(oar_group_size(one) == 1);
    CHECK_OK(sum_is(one, 5, 5));
    oar_group_destroy(c);
    oar_group_destroy(one);
    return oar_barrier(g, NULL, NULL);
}

static void children_have_children_and_outlive_their_parents(void **state)
{
    ranks_all(4, split_deep, NULL);
}

/* A duplicate without timeouts waits for a rank longer than its parent does,
 * and one with a shorter timeout gives up earlier. */
static oar_status dup_with_other_timeouts(oar_group *g, void *arg)
{
    oar_dup_opts patient = { .size = sizeof patient,
                             .name = "checkpoint",
                             .timeout_ms = -1,
                             .stall_ms = -1 };
    oar_dup_opts hasty = { .size = sizeof hasty, .timeout_ms = 100 };
    oar_group *slow, *quick;

    patient.name = "a name that is much too long to be that of a group";
    CHECK(fails_with(oar_group_dup_with(g, &patient, &slow), OAR_E_ARG,
                     "50 bytes"));
    patient.name = "checkpoint";
    CHECK_OK(oar_group_dup_with(g, &patient, &slow));
    CHECK(strcmp(oar_group_name(slow), "world.checkpoint.1") == 0);
    CHECK_OK(oar_group_dup_with(g, &hasty, &quick));
    if (oar_group_rank(g) == 1) {
        usleep(400000);
    } else {
        CHECK(fails_with(oar_barrier(quick, NULL, NULL), OAR_E_TIMEOUT,
                         "100 ms"));
    }
    CHECK_OK(oar_barrier(slow, NULL, NULL));
    oar_group_destroy(quick);
    oar_group_destroy(slow);
    return oar_barrier(g, NULL, NULL);
}

static void a_duplicate_may_have_timeouts_of_its_own(void **state)
{
    ranks_all(2, dup_with_other_timeouts, NULL);
}

/* The cases of the original's sub-backend. */
static oar_status subset_cases(oar_group *g, void *arg)
{
    const int odd[] = { 3, 1 }, messy[] = { 3, 2, 0, 2, 3 }, far[] = { 0, 4 };
    int rank = oar_group_rank(g);
    oar_group *sub = NULL;

    CHECK(
        fails_with(oar_group_subset(g, 0, odd, &sub), OAR_E_WORLD, "no ranks"));
    CHECK(fails_with(oar_group_subset(g, 2, far, &sub), OAR_E_RANK,
                     "rank 4 in a group of 4"));
    if (rank % 2 == 0)
        CHECK(fails_with(oar_group_subset(g, 2, odd, &sub), OAR_E_RANK,
                         "not one of"));
    else {
        CHECK_OK(oar_group_subset(g, 2, odd, &sub));
        CHECK(oar_group_size(sub) == 2 && oar_group_rank(sub) == rank / 2);
        CHECK_OK(sum_is(sub, rank, 4));
        oar_group_destroy(sub);
    }
    if (rank != 1) {
        const int place[] = { 0, -1, 1, 2 };

        CHECK_OK(oar_group_subset(g, 5, messy, &sub));
        CHECK(oar_group_size(sub) == 3 && oar_group_rank(sub) == place[rank]);
        for (int r = 0; r < 4; r++)
            CHECK(oar_group_from_world(sub, r) == place[r]);
        CHECK(oar_group_to_world(sub, 3) == -1);
        CHECK_OK(oar_barrier(sub, NULL, NULL));
        oar_group_destroy(sub);
    }
    return oar_barrier(g, NULL, NULL);
}

/* Lists that were once taken for each other, as their hashes were the same. */
static oar_status similar_lists(oar_group *g, void *arg)
{
    static const int list[][3] = { { 6, 7, -1 }, { 3, 4, 7 },  { 2, -1, -1 },
                                   { 2, 3, -1 }, { 4, 7, -1 }, { 3, 6, 7 } };
    int rank = oar_group_rank(g);

    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        int count = list[i][1] < 0 ? 1 : list[i][2] < 0 ? 2 : 3, mine = 0;
        oar_group *sub;

        for (int j = 0; j < count; j++)
            mine |= list[i][j] == rank;
        if (!mine)
            continue;
        CHECK_OK(oar_group_subset(g, count, list[i], &sub));
        CHECK(oar_group_size(sub) == count);
        CHECK_OK(oar_barrier(sub, NULL, NULL));
        oar_group_destroy(sub);
    }
    return oar_barrier(g, NULL, NULL);
}

static void similar_lists_make_different_groups(void **state)
{
    oar_group_opts opts = { .size = sizeof opts, .timeout_ms = 10000 };

    assert_int_equal(ranks_run("sim", 8, &opts, similar_lists, NULL), OAR_OK);
    assert_int_equal(ranks_run("tcp", 8, &opts, similar_lists, NULL), OAR_OK);
}

static void a_subset_is_sorted_and_has_every_rank_once(void **state)
{
    ranks_all(4, subset_cases, NULL);
}

/* Two groups of the same pair, the same tag, wildcards: each message stays in
 * its group, whatever the order of the receives. */
static oar_status share_a_pair(oar_group *g, void *arg)
{
    oar_backend_caps caps = oar_backend_caps_init();
    const int both[] = { 0, 1 };
    oar_group *a, *b;
    int any;
    int32_t sent[3] = { 10, 20, 30 }, got[3] = { 0 };
    oar_group *order[3];

    if (oar_group_rank(g) > 1)
        return oar_barrier(g, NULL, NULL);
    CHECK_OK(oar_backend_available(oar_group_backend(g), &caps));
    any = (caps.can & OAR_CAN_ANY) != 0;
    CHECK_OK(oar_group_subset(g, 2, both, &a));
    CHECK_OK(oar_group_subset(g, 2, both, &b));
    order[0] = g, order[1] = a, order[2] = b;
    for (int i = 0; i < 3; i++)
        if (oar_group_rank(g) == 0)
            CHECK_OK(oar_send(order[i], oar_span_of(&sent[i], 1, OAR_I32), 1, 5,
                              NULL, NULL));
    for (int i = 2; i >= 0; i--)
        if (oar_group_rank(g) == 1) {
            CHECK_OK(oar_recv(order[i], oar_span_of(&got[i], 1, OAR_I32),
                              i != 1 && any ? OAR_ANY_SOURCE : 0,
                              i != 1 && any ? OAR_ANY_TAG : 5, NULL, NULL));
            CHECK(got[i] == sent[i]);
        }
    oar_group_destroy(a);
    oar_group_destroy(b);
    return oar_barrier(g, NULL, NULL);
}

static void groups_that_share_a_pair_do_not_mix(void **state)
{
    ranks_all(3, share_a_pair, NULL);
}

/* Operations in flight on several groups at once, waited for in any order. */
static oar_status many_in_flight(oar_group *g, void *arg)
{
    enum { GROUPS = 3, EACH = 4, COUNT = 5003 };
    static _Thread_local float x[GROUPS][EACH][COUNT];
    oar_group *group[GROUPS];
    oar_work *work[GROUPS * EACH];
    int n = oar_group_size(g), rank = oar_group_rank(g);

    group[0] = g;
    CHECK_OK(oar_group_dup(g, &group[1]));
    CHECK_OK(oar_group_split(g, 0, -rank, &group[2]));
    for (int i = 0; i < GROUPS * EACH; i++) {
        float *buffer = x[i % GROUPS][i / GROUPS];

        for (int k = 0; k < COUNT; k++)
            buffer[k] = (float)(rank + i + k % 10);
        CHECK_OK(oar_all_reduce(group[i % GROUPS],
                                oar_span_of(buffer, COUNT, OAR_F32), OAR_SUM,
                                NULL, &work[i]));
    }
    for (int i = GROUPS * EACH - 1; i >= 0; i--) {
        CHECK_OK(oar_work_wait(work[i]));
        oar_work_release(work[i]);
        for (int k = 0; k < COUNT; k++)
            CHECK(x[i % GROUPS][i / GROUPS][k] ==
                  (float)(n * (n - 1) / 2 + n * (i + k % 10)));
    }
    oar_group_destroy(group[1]);
    oar_group_destroy(group[2]);
    return oar_barrier(g, NULL, NULL);
}

static void operations_on_several_groups_go_on_at_once(void **state)
{
    ranks_all(2, many_in_flight, NULL);
    ranks_all(3, many_in_flight, NULL);
}

/* A name that leaves no room for what tells its children apart. */
static oar_status split_long_name(oar_group *g, void *arg)
{
    oar_group *a, *b;

    CHECK_OK(oar_group_dup(g, &a));
    CHECK_OK(oar_group_dup(g, &b));
    CHECK(strlen(oar_group_name(a)) <= OARI_NAME_MAX);
    CHECK(strcmp(oar_group_name(a), oar_group_name(b)) != 0);
    CHECK_OK(sum_is(a, 1, oar_group_size(g)));
    CHECK_OK(sum_is(b, 2, 2 * oar_group_size(g)));
    oar_group_destroy(a);
    oar_group_destroy(b);
    return oar_barrier(g, NULL, NULL);
}

static void children_of_a_long_name_have_names_that_fit(void **state)
{
    oar_group_opts o = oar_group_opts_init();
    char name[OARI_NAME_MAX + 1];

    memset(name, 'z', OARI_NAME_MAX);
    name[OARI_NAME_MAX] = 0;
    o.name = name;
    assert_int_equal(ranks_run("sim", 2, &o, split_long_name, NULL), OAR_OK);
    assert_int_equal(ranks_run("shm", 2, &o, split_long_name, NULL), OAR_OK);
}

/* What it did last is read after it has left, or while it does. */
static oar_status leave_first(oar_group *g, void *arg)
{
    const int *together = arg;
    oar_group *pair;

    CHECK_OK(oar_group_dup(g, &pair));
    CHECK_OK(oar_barrier(pair, NULL, NULL));
    if (oar_group_rank(g) == 0)
        oar_group_destroy(pair);
    if (!*together)
        CHECK_OK(oar_barrier(g, NULL, NULL));
    if (oar_group_rank(g) == 1) {
        CHECK(fails_with(oar_barrier(pair, NULL, NULL), OAR_E_PEER,
                         "its last operation was"));
        oar_group_destroy(pair);
    }
    return oar_barrier(g, NULL, NULL);
}

static void a_rank_that_left_is_named_with_its_last_operation(void **state)
{
    int together = 0;

    assert_int_equal(ranks_run("shm", 2, NULL, leave_first, &together), OAR_OK);
    assert_int_equal(ranks_run("sim", 2, NULL, leave_first, &together), OAR_OK);
    together = 1;
    for (int i = 0; i < 50; i++)
        assert_int_equal(ranks_run("sim", 2, NULL, leave_first, &together),
                         OAR_OK);
}

/* ---- errors -------------------------------------------------------------- */

/* Of ranks 1 and 3 of four: each error on its own group. */
static oar_status fail_in_every_way(oar_group *odd)
{
    oar_call_opts brief = { .size = sizeof brief, .timeout_ms = 200 };
    oar_group *late, *differ, *aborted;
    int me = oar_group_rank(odd);
    float x[2] = { 1, 2 };
    oar_status status;

    CHECK_OK(oar_group_dup(odd, &late));
    CHECK_OK(oar_group_dup(odd, &differ));
    CHECK_OK(oar_group_dup(odd, &aborted));
    if (me == 0) {
        CHECK_OK(oar_send(odd, oar_span_of(x, 2, OAR_F32), 1, 1, NULL, NULL));
        status = oar_barrier(late, &brief, NULL);
        CHECK(fails_with(status, OAR_E_TIMEOUT, "for rank 1 (world rank 3, "));
        CHECK(fails_with(status, OAR_E_TIMEOUT, "[group \""));
        CHECK(fails_with(status, OAR_E_TIMEOUT, ": rank 0 is world rank 1]"));
        CHECK_OK(oar_group_abort(aborted, "enough"));
    } else {
        status = oar_recv(odd, oar_span_of(x, 1, OAR_F32), 0, 1, NULL, NULL);
        CHECK(fails_with(status, OAR_E_SIZE,
                         ": rank 1 is world rank 3, rank 0 is world rank 1]"));
        status = oar_barrier(aborted, NULL, NULL);
        CHECK(fails_with(status, OAR_E_ABORTED, "rank 0 aborted: enough"));
        CHECK(fails_with(status, OAR_E_ABORTED, ": rank 0 is world rank 1]"));
    }
    status = oar_all_reduce(differ, oar_span_of(x, 1 + (size_t)me, OAR_F32),
                            OAR_SUM, NULL, NULL);
    CHECK(fails_with(status, OAR_E_MISMATCH,
                     ": rank 0 is world rank 1, rank 1 is world rank 3]"));
    CHECK_OK(oar_barrier(odd, NULL, NULL));
    oar_group_destroy(late);
    oar_group_destroy(differ);
    oar_group_destroy(aborted);
    return OAR_OK;
}

static oar_status fail_among_the_odd(oar_group *g, void *arg)
{
    oar_group *half;

    CHECK_OK(oar_group_split(g, oar_group_rank(g) % 2, 0, &half));
    if (oar_group_rank(g) % 2 != 0)
        CHECK_OK(fail_in_every_way(half));
    if (oar_group_rank(g) == 1)
        CHECK_OK(oar_group_abort(g, "the end"));
    CHECK(fails_with(oar_barrier(g, NULL, NULL), OAR_E_ABORTED, "the end"));
    CHECK(strstr(oar_last_error_text(), "world rank") == NULL);
    oar_group_destroy(half);
    return OAR_OK;
}

static void errors_of_a_part_name_it_and_the_ranks_of_the_whole(void **state)
{
    /* Not over the plugin, which tells no other rank of an abort. */
    for (int i = 0; i < 3; i++)
        assert_int_equal(
            ranks_run(ranks_backends()[i], 4, NULL, fail_among_the_odd, NULL),
            OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_makes_one_group_a_colour),
        cmocka_unit_test(a_rank_without_a_colour_gets_no_group),
        cmocka_unit_test(children_have_children_and_outlive_their_parents),
        cmocka_unit_test(a_duplicate_may_have_timeouts_of_its_own),
        cmocka_unit_test(a_subset_is_sorted_and_has_every_rank_once),
        cmocka_unit_test(similar_lists_make_different_groups),
        cmocka_unit_test(groups_that_share_a_pair_do_not_mix),
        cmocka_unit_test(operations_on_several_groups_go_on_at_once),
        cmocka_unit_test(children_of_a_long_name_have_names_that_fit),
        cmocka_unit_test(a_rank_that_left_is_named_with_its_last_operation),
        cmocka_unit_test(errors_of_a_part_name_it_and_the_ranks_of_the_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
