/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that need nothing of the others do not wait for them: they run ahead by
 * as many sync points as they have slots, and not further; what they showed is
 * read later. Collectives of all kinds and sizes follow each other, and each
 * finds its own data. */
#include "support/ranks.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "link/shm/control_page.h"
#include "support/last_error.h"

enum {
    AHEAD = OARI_SLOTS - 1, /* calls before a rank must wait */
    LIMIT_MS = 20000,
    SHORT_MS = 200,
    CALLS = 400
};

static _Atomic int ahead; /* ranks that have run ahead */

static oar_status wait_until_ahead(int ranks)
{
    int64_t deadline = oari_deadline(LIMIT_MS);

    while (atomic_load(&ahead) < ranks)
        CHECK(oari_now_ns() < deadline);
    return OAR_OK;
}

/* ---- rooted collectives -------------------------------------------------- */

static oar_status broadcast_ahead(oar_group *g, void *arg)
{
    int root = oar_group_rank(g) == 0;

    if (!root)
        CHECK_OK(wait_until_ahead(1));
    for (int64_t i = 0; i < 2 * AHEAD; i++) {
        int64_t x[2] = { root ? i : -1, root ? -i : 1 };

        if (i == AHEAD)
            atomic_fetch_add(&ahead, root);
        CHECK_OK(oar_broadcast(g, oar_span_of(x, 2, OAR_I64), 0, NULL, NULL));
        CHECK(x[0] == i && x[1] == -i);
    }
    return OAR_OK;
}

static oar_status reduce_ahead(oar_group *g, void *arg)
{
    int n = oar_group_size(g), root = oar_group_rank(g) == 1;

    if (root)
        CHECK_OK(wait_until_ahead(n - 1));
    for (int64_t i = 0; i < 2 * AHEAD; i++) {
        int64_t x = i, sum = -1;

        if (i == AHEAD)
            atomic_fetch_add(&ahead, !root);
        CHECK_OK(
            oar_reduce(g, oar_span_of(&x, 1, OAR_I64),
                       root ? oar_span_of(&sum, 1, OAR_I64) : (oar_span){ 0 },
                       OAR_SUM, 1, NULL, NULL));
        CHECK(!root || sum == n * i);
    }
    return OAR_OK;
}

static void run(oar_rank_fn fn)
{
    atomic_store(&ahead, 0);
    assert_int_equal(ranks_run("sim", 3, NULL, fn, NULL), OAR_OK);
}

static void a_root_runs_ahead_of_those_that_receive(void **state)
{
    run(broadcast_ahead);
}

static void those_that_contribute_run_ahead_of_the_root(void **state)
{
    run(reduce_ahead);
}

/* ---- not too far --------------------------------------------------------- */

static oar_status broadcast_too_far(oar_group *g, void *arg)
{
    int64_t x = 0;

    if (oar_group_rank(g) != 0) /* it only stays */
        return wait_until_ahead(1);
    for (int i = 0; i < AHEAD; i++)
        CHECK_OK(oar_broadcast(g, oar_span_of(&x, 1, OAR_I64), 0, NULL, NULL));
    CHECK(fails_with(
        oar_broadcast(g, oar_span_of(&x, 1, OAR_I64), 0,
                      OAR_OPTS(oar_call_opts, .timeout_ms = SHORT_MS), NULL),
        OAR_E_TIMEOUT, "rank 1"));
    atomic_fetch_add(&ahead, 1);
    return OAR_OK;
}

static void a_root_without_slots_waits_and_names_the_missing_rank(void **state)
{
    run(broadcast_too_far);
}

/* Rank 1 makes another call, does not wait in it, and makes no other one. */
static oar_status call_another_and_go(oar_group *g, void *arg)
{
    int32_t x[3] = { 1, 2, 3 };
    char other[40];

    snprintf(other, sizeof other, "run_ahead_test.c:%d", __LINE__ + 2);
    if (oar_group_rank(g) == 1) {
        CHECK_OK(oar_broadcast(g, oar_span_of(x, 3, OAR_I32), 1, NULL, NULL));
        return wait_until_ahead(1);
    }
    CHECK(oar_all_reduce(g, oar_span_of(x, 3, OAR_I32), OAR_SUM, NULL, NULL) ==
          OAR_E_MISMATCH);
    CHECK(strstr(oar_last_error_text(), "rank 1 has called #1 broadcast of 3 "
                                        "i32 from 1 at ") != NULL);
    CHECK(strstr(oar_last_error_text(), other) != NULL);
    atomic_fetch_add(&ahead, 1);
    return OAR_OK;
}

static void a_rank_that_went_on_after_another_call_is_named(void **state)
{
    atomic_store(&ahead, 0);
    assert_int_equal(ranks_run("sim", 2, NULL, call_another_and_go, NULL),
                     OAR_OK);
}

static oar_status broadcast_then_meet(oar_group *g, void *arg)
{
    int64_t x = 0, y[1024] = { 0 }; /* more than a slot holds */

    if (oar_group_rank(g) != 0)
        return wait_until_ahead(1);
    CHECK_OK(oar_broadcast(g, oar_span_of(&x, 1, OAR_I64), 0, NULL, NULL));
    CHECK(fails_with(
        oar_broadcast(g, oar_span_of(y, 1024, OAR_I64), 0,
                      OAR_OPTS(oar_call_opts, .timeout_ms = SHORT_MS), NULL),
        OAR_E_TIMEOUT, "rank 1"));
    atomic_fetch_add(&ahead, 1);
    return OAR_OK;
}

static void a_large_broadcast_waits_for_the_small_one_before(void **state)
{
    run(broadcast_then_meet);
}

/* ---- calls of all kinds, one after the other ----------------------------- */

static unsigned draw(unsigned *seed, unsigned below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 10) % below;
}

static int32_t value_of(int call, int rank, size_t i)
{
    return (int32_t)((unsigned)call * 977u + (unsigned)rank * 31u + i % 997);
}

static void fill(int32_t *x, size_t count, int call, int rank)
{
    for (size_t i = 0; i < count; i++)
        x[i] = value_of(call, rank, i);
}

/* Whether x is what a rank had in a call, or the sum of what n ranks had. */
static int has(const int32_t *x, size_t count, int call, int rank, int n)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t sum = (uint32_t)value_of(call, rank, i);

        for (int r = rank + 1; r < rank + n; r++)
            sum += (uint32_t)value_of(call, r, i);
        if ((uint32_t)x[i] != sum)
            return 0;
    }
    return 1;
}

static oar_status call_any(oar_group *g, int call, unsigned *seed, int32_t *in,
                           int32_t *out)
{
    static const size_t counts[] = { 1, 2, 100, 256, 700, 3000 };
    int n = oar_group_size(g), me = oar_group_rank(g);
    int root = (int)draw(seed, (unsigned)n), kind = (int)draw(seed, 7);
    size_t count = counts[draw(seed, draw(seed, 4) == 0 ? 6 : 3)];
    oar_span from = oar_span_of(in, count, OAR_I32);
    oar_span to = oar_span_of(out, count, OAR_I32), none = { 0 };
    oar_span row = oar_span_of(out, count * (size_t)n, OAR_I32);

    fill(in, count, call, me);
    none.dtype = OAR_I32;
    switch (kind) {
    case 0:
    case 1:
    case 2:
        CHECK_OK(oar_broadcast(g, from, root, NULL, NULL));
        CHECK(has(in, count, call, root, 1));
        break;
    case 3:
        CHECK_OK(oar_reduce(g, from, me == root ? to : none, OAR_SUM, root,
                            NULL, NULL));
        CHECK(me != root || has(out, count, call, 0, n));
        break;
    case 4:
        CHECK_OK(
            oar_gather(g, from, me == root ? row : none, root, NULL, NULL));
        for (int r = 0; r < n && me == root; r++)
            CHECK(has(out + (size_t)r * count, count, call, r, 1));
        break;
    case 5:
        CHECK_OK(oar_all_reduce(g, from, OAR_SUM, NULL, NULL));
        CHECK(has(in, count, call, 0, n));
        break;
    default: CHECK_OK(oar_barrier(g, NULL, NULL)); break;
    }
    return OAR_OK;
}

static oar_status call_all_kinds(oar_group *g, void *arg)
{
    static _Thread_local int32_t in[3000], out[4 * 3000];
    unsigned seed = 7;

    for (int i = 0; i < CALLS; i++)
        CHECK_OK(call_any(g, i, &seed, in, out));
    return OAR_OK;
}

static void calls_of_all_kinds_keep_their_data(void **state)
{
    oar_group_opts o = oar_group_opts_init();

    o.stage_bytes = 4096;
    assert_int_equal(ranks_run("sim", 3, &o, call_all_kinds, NULL), OAR_OK);
    assert_int_equal(ranks_run("shm", 4, &o, call_all_kinds, NULL), OAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_root_runs_ahead_of_those_that_receive),
        cmocka_unit_test(those_that_contribute_run_ahead_of_the_root),
        cmocka_unit_test(a_root_without_slots_waits_and_names_the_missing_rank),
        cmocka_unit_test(a_rank_that_went_on_after_another_call_is_named),
        cmocka_unit_test(a_large_broadcast_waits_for_the_small_one_before),
        cmocka_unit_test(calls_of_all_kinds_keep_their_data),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
