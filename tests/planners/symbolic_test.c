/* SPDX-License-Identifier: Apache-2.0 */
/* Every planner, for all ranks at once, without a network: each element of each
 * output is the combination of every rank's contribution, once, in the order of
 * ranks, whatever order the ranks run in. The rules are in symbolic.h. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <oarsong/memory.h>

#include "comm/board.h"
#include "comm/planners.h"
#include "support/symbolic.h"

enum { MAX_RANKS = 33 };

static const size_t counts[] = { 0, 1, 3, 17, 63, 64, 65, 130, 577, 1000 };
enum { COUNTS = sizeof counts / sizeof *counts };

/* Sizes that make the edges come near: with the first a chunk is one block of
 * 64 and 1000 elements are sixteen of them; with the second the data of a
 * direct plan that cannot reach fits a line. */
static const struct {
    size_t element, small_bytes, stage_bytes;
} settings[] = { { 8, 512, 64 }, { 4, 64, 4096 }, { 8, 4096, 1024 } };
enum { SETTINGS = sizeof settings / sizeof *settings };

static symbolic_op make_op(const oari_algorithm *a, int ranks, size_t count,
                           int setting)
{
    return (symbolic_op){
        .algorithm = a,
        .reachable = 1,
        .ask = { .kind = a->kind,
                 .ranks = ranks,
                 .root = a->kind == OAR_COLL_BROADCAST ? 0 : -1,
                 .count = a->kind == OAR_COLL_BARRIER ? 0 : count,
                 .element = settings[setting].element,
                 .small_bytes = settings[setting].small_bytes,
                 .line_bytes = oari_line_bytes(settings[setting].small_bytes),
                 .stage_bytes = settings[setting].stage_bytes }
    };
}

static const oari_algorithm *find(const char *name, oar_coll kind)
{
    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++)
        if (strcmp(a->name, name) == 0 && a->kind == kind)
            return a;
    fail_msg("no planner %s of %s", name, oar_coll_name(kind));
    return NULL;
}

/* Whether the library would ever run this. */
static int may_run(const symbolic_op *op)
{
    return oari_choose(&op->ask, op->algorithm->over_memory,
                       op->algorithm->name) == op->algorithm;
}

static void run(const symbolic_case *c, symbolic_counts *did)
{
    const char *wrong = symbolic_run(c, did);

    if (wrong != NULL)
        fail_msg("%s, then %s: %s", c->op[0].algorithm->name,
                 c->op[c->ops - 1].algorithm->name, wrong);
}

/* The operation twice, so that the second meets what the first left. */
static void run_twice(const symbolic_op *op, uint64_t seed)
{
    symbolic_case c = { .ranks = op->ask.ranks,
                        .ops = 2,
                        .op = { *op, *op },
                        .order = (symbolic_order)(seed % SYMBOLIC_ORDERS),
                        .seed = seed };

    c.op[0].in_place = seed * 0x9e3779b97f4a7c15u;
    c.op[1].in_place = ~c.op[0].in_place;
    run(&c, NULL);
}

static int uses_reach(const oari_algorithm *a)
{
    return strcmp(a->name, "direct") == 0;
}

/* Every variant of few ranks; of many, one that the seed picks. */
static uint64_t run_variants(symbolic_op op, uint64_t seed)
{
    int weights = op.ask.kind == OAR_COLL_ALL_REDUCE ? 2 : 1;
    int outcomes = uses_reach(op.algorithm) ? 2 : 1;
    int roots = op.ask.kind == OAR_COLL_BROADCAST ? op.ask.ranks : 1;
    int all = weights * outcomes * roots, few = op.ask.ranks <= 7;

    for (int i = 0; i < (few ? all : 1); i++, seed++) {
        int v = few ? i : (int)(seed * 2654435761u % (uint64_t)all);
        op.ask.weighted = v % weights;
        op.reachable = v / weights % outcomes == 0;
        if (op.ask.kind == OAR_COLL_BROADCAST)
            op.ask.root = v / weights / outcomes;
        run_twice(&op, seed);
    }
    return seed;
}

/* The two largest are less for most sizes, but several chunks still. */
static size_t count_for(int n, int c)
{
    int whole = n <= 9 || (n >= 16 && n <= 17) || n >= 32;

    return whole || counts[c] <= 130 ? counts[c] : counts[c] / 4 + 10;
}

static void every_planner_gives_every_rank_the_result(void **state)
{
    uint64_t seed = 1;

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++)
        for (int n = 1; n <= MAX_RANKS; n++)
            for (int c = 0; c < COUNTS; c++) {
                symbolic_op op =
                    make_op(a, n, count_for(n, c), (n + c) % SETTINGS);
                if ((a->kind != OAR_COLL_BARRIER || c == 0) && may_run(&op))
                    seed = run_variants(op, seed);
            }
}

static void every_planner_holds_in_every_order_of_ranks(void **state)
{
    static const int few[] = { 2, 3, 5, 8 };

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++)
        for (int i = 0; i < 4; i++)
            for (uint64_t seed = 1; seed <= 30; seed++) {
                symbolic_op op =
                    make_op(a, few[i], seed & 4 ? 200 : 64, seed & 2 ? 0 : 1);
                op.reachable = seed & 1;
                if (op.ask.root >= 0)
                    op.ask.root = (int)(seed % (uint64_t)few[i]);
                if (may_run(&op))
                    run_twice(&op, seed);
            }
}

/* Whatever comes after whatever, over the same lines, stages and buffers. */
static void operations_of_different_kinds_follow_each_other(void **state)
{
    uint64_t seed = 1;

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++)
        for (const oari_algorithm *b = oari_algorithms; b->name != NULL; b++)
            for (int i = 0; i < 3 * SYMBOLIC_ORDERS; i++, seed++) {
                int n = i < 3 ? 2 : i < 6 ? 3 : 5;
                symbolic_case c = {
                    .ranks = n,
                    .ops = 4,
                    .op = { make_op(a, n, 200, 0), make_op(b, n, 33, 0),
                            make_op(a, n, 65, 0), make_op(b, n, 300, 0) },
                    .order = (symbolic_order)(i % SYMBOLIC_ORDERS),
                    .seed = seed
                };
                for (int k = 0; k < 4; k++) {
                    c.op[k].reachable = seed >> k & 1;
                    if (!may_run(&c.op[k]))
                        c.op[k].ask.count = 60;
                }
                run(&c, NULL);
            }
}

/* ---- planners that are wrong, so that we know that it would show ----------
 */

static void forget_last_meeting(const oari_ask *ask, oari_plan *plan)
{
    plan->shows_buffers = 1;
    oari_plan_meet(plan, 0, 0);
    oari_plan_reduce(
        plan, OARI_ALL_OUT, oari_slice_first(ask->count, ask->ranks, ask->rank),
        OARI_IN, oari_slice_first(ask->count, ask->ranks, ask->rank), 0,
        oari_slice_count(ask->count, ask->ranks, ask->rank));
}

static void hide_buffers(const oari_ask *ask, oari_plan *plan)
{
    forget_last_meeting(ask, plan);
    oari_plan_meet(plan, 0, 0);
    plan->shows_buffers = 0;
}

static void combine_too_much(const oari_ask *ask, oari_plan *plan)
{
    plan->shows_buffers = 1;
    oari_plan_meet(plan, 0, 0);
    oari_plan_reduce(plan, OARI_ALL_OUT, 0, OARI_IN, 0, 0, ask->count);
    oari_plan_meet(plan, 0, 0);
}

static void read_an_old_line(const oari_ask *ask, oari_plan *plan)
{
    oari_plan_meet(plan, 0, ask->count);
    oari_plan_meet(plan, 0, 0);
    oari_plan_reduce(plan, OARI_OUT, 0, OARI_LINE, 0, 0, ask->count);
}

/* The next chunk goes where the last is still being read. */
static void reuse_the_stage(const oari_ask *ask, oari_plan *plan)
{
    for (size_t at = 0; at < ask->count; at += 17) {
        size_t left = ask->count - at, part = left < 17 ? left : 17;
        oari_plan_copy(plan, OARI_STAGE, 0, OARI_IN, -1, at, part);
        oari_plan_meet(plan, 0, 0);
        oari_plan_reduce(plan, OARI_OUT, at, OARI_STAGE, 0, 0, part);
    }
}

static void leave_the_stage(const oari_ask *ask, oari_plan *plan)
{
    oari_plan_copy(plan, OARI_STAGE, 1 << 20, OARI_IN, -1, 0, ask->count);
}

static void wait_in_a_circle(const oari_ask *ask, oari_plan *plan)
{
    int n = ask->ranks;

    plan->slot_count = ask->count;
    oari_plan_recv(plan, (ask->rank + n - 1) % n, OARI_GATHER, 0, ask->count);
    oari_plan_wait(plan);
    oari_plan_send(plan, (ask->rank + 1) % n, OARI_IN, 0, ask->count);
    oari_plan_wait(plan);
}

static void send_too_little(const oari_ask *ask, oari_plan *plan)
{
    int n = ask->ranks;

    plan->slot_count = ask->count;
    oari_plan_recv(plan, (ask->rank + n - 1) % n, OARI_GATHER, 0, ask->count);
    oari_plan_send(plan, (ask->rank + 1) % n, OARI_IN, 0, ask->count - 1);
    oari_plan_wait(plan);
}

static void write_what_is_sent(const oari_ask *ask, oari_plan *plan)
{
    int n = ask->ranks;

    plan->slot_count = ask->count;
    oari_plan_recv(plan, (ask->rank + n - 1) % n, OARI_GATHER, 0, ask->count);
    oari_plan_send(plan, (ask->rank + 1) % n, OARI_OUT, 0, ask->count);
    oari_plan_copy(plan, OARI_OUT, 0, OARI_IN, -1, 1, 1);
    oari_plan_wait(plan);
}

static void wrong_planners_are_found_out(void **state)
{
    static const struct {
        oari_planner plan;
        const char *why;
    } wrong[] = {
        { forget_last_meeting, "the wrong out" },
        { hide_buffers, "cannot reach" },
        { combine_too_much, "while rank" },
        { read_an_old_line, "before it is written" },
        { reuse_the_stage, "while rank" },
        { leave_the_stage, "which has" },
        { wait_in_a_circle, "waits for ever" },
        { send_too_little, "which expects" },
        { write_what_is_sent, "which a message uses" },
    };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        oari_algorithm a = { "wrong", OAR_COLL_ALL_REDUCE, 1, wrong[i].plan };
        symbolic_case c = {
            .ranks = 3, .ops = 1, .op = { make_op(&a, 3, 200, 0) }, .seed = 5
        };
        const char *text = symbolic_run(&c, NULL);
        if (text == NULL || strstr(text, wrong[i].why) == NULL)
            fail_msg("wrong planner %zu: %s", i, text != NULL ? text : "fine");
    }
}

static void a_barrier_that_does_not_wait_is_found_out(void **state)
{
    oari_algorithm a = *find("dissemination", OAR_COLL_BARRIER);
    symbolic_case c = { .ranks = 3,
                        .ops = 1,
                        .op = { make_op(&a, 3, 0, 0) },
                        .order = SYMBOLIC_LAZY };

    a.plan = oari_plan_exchange; /* of 0 elements: no messages at all */
    assert_non_null(strstr(symbolic_run(&c, NULL), "passes a barrier"));
}

/* ---- what the headers of the planners promise ---------------------------- */

static symbolic_counts count_once(symbolic_op op)
{
    symbolic_case c = {
        .ranks = op.ask.ranks, .ops = 1, .op = { op }, .seed = 3
    };
    symbolic_counts did;

    run(&c, &did);
    return did;
}

static size_t rounds_of(int ranks)
{
    size_t rounds = 0;

    while (1 << rounds < ranks)
        rounds++;
    return rounds;
}

static void exchange_sends_what_its_formula_says(void **state)
{
    const oari_algorithm *a = find("exchange", OAR_COLL_ALL_REDUCE);

    for (int n = 1; n <= MAX_RANKS; n++)
        for (int c = 0; c < COUNTS; c++) {
            symbolic_op op = make_op(a, n, counts[c], 0);
            size_t others = (size_t)n - 1, total = 0;
            symbolic_counts did;

            op.ask.weighted = c & 1;
            did = count_once(op);
            for (int r = 0; r < n; r++) {
                size_t mine = oari_slice_count(counts[c], n, r);
                total += did.sent[r];
                assert_int_equal(did.sent[r], counts[c] - mine + others * mine);
                assert_int_equal(did.factors[r], c & 1 ? others : 0);
                assert_true(did.messages[r] <= 2 * others + did.factors[r]);
            }
            assert_int_equal(total, 2 * others * counts[c]);
        }
}

static void
binomial_sends_the_buffer_once_to_each_in_logarithmic_rounds(void **state)
{
    const oari_algorithm *a = find("binomial", OAR_COLL_BROADCAST);

    for (int n = 1; n <= MAX_RANKS; n++) {
        symbolic_counts did = count_once(make_op(a, n, 17, 0));
        size_t total = 0;

        for (int r = 0; r < n; r++) {
            total += did.messages[r];
            assert_int_equal(did.sent[r], 17 * did.messages[r]);
            assert_true(did.messages[r] <= rounds_of(n));
        }
        assert_int_equal(total, n - 1);
    }
}

static void dissemination_takes_logarithmic_rounds(void **state)
{
    const oari_algorithm *a = find("dissemination", OAR_COLL_BARRIER);

    for (int n = 1; n <= MAX_RANKS; n++) {
        symbolic_counts did = count_once(make_op(a, n, 0, 0));

        for (int r = 0; r < n; r++) {
            assert_int_equal(did.messages[r], rounds_of(n));
            assert_int_equal(did.rounds[r], rounds_of(n));
        }
    }
}

static void memory_plans_meet_as_often_as_they_say(void **state)
{
    symbolic_op line = make_op(find("line", OAR_COLL_ALL_REDUCE), 5, 17, 0);
    symbolic_op direct = make_op(find("direct", OAR_COLL_ALL_REDUCE), 5, 17, 0);
    symbolic_op staged =
        make_op(find("staged", OAR_COLL_ALL_REDUCE), 5, 130, 0);

    assert_int_equal(count_once(line).meetings[4], 1);
    assert_int_equal(count_once(direct).meetings[4], 2);
    assert_int_equal(count_once(staged).meetings[4], 2 + 3); /* 3 chunks */
}

/* ---- the table ----------------------------------------------------------- */

static void the_best_planner_comes_first(void **state)
{
    oari_ask ask = make_op(find("line", OAR_COLL_ALL_REDUCE), 3, 17, 0).ask;

    assert_string_equal(oari_choose(&ask, 1, NULL)->name, "line");
    ask.count = 100000;
    assert_string_equal(oari_choose(&ask, 1, NULL)->name, "direct");
    assert_string_equal(oari_choose(&ask, 1, "staged")->name, "staged");
    assert_string_equal(oari_choose(&ask, 0, NULL)->name, "exchange");
    ask.kind = OAR_COLL_BROADCAST;
    assert_string_equal(oari_choose(&ask, 0, NULL)->name, "binomial");
    ask.kind = OAR_COLL_BARRIER;
    ask.count = 0;
    assert_string_equal(oari_choose(&ask, 0, NULL)->name, "dissemination");
    assert_string_equal(oari_choose(&ask, 1, NULL)->name, "line");
}

static void a_name_counts_only_where_it_plans(void **state)
{
    oari_ask ask = make_op(find("line", OAR_COLL_ALL_REDUCE), 3, 17, 0).ask;

    assert_string_equal(oari_choose(&ask, 1, "staged")->name, "staged");
    assert_string_equal(oari_choose(&ask, 1, "magic")->name, "line");
    ask.count = 100000; /* nothing may force more into a line */
    assert_string_equal(oari_choose(&ask, 1, "line")->name, "direct");
    assert_string_equal(oari_choose(&ask, 1, "exchange")->name, "direct");
    ask.kind = OAR_COLL_BARRIER;
    ask.count = 0;
    assert_string_equal(oari_choose(&ask, 1, "staged")->name, "line");
    assert_string_equal(oari_choose(&ask, 0, "exchange")->name,
                        "dissemination");
    ask.kind = OAR_COLL_GATHER; /* nobody plans that yet */
    assert_null(oari_choose(&ask, 1, NULL));
    assert_int_equal(oar_last_error()->status, OAR_E_UNSUPPORTED);
    assert_non_null(strstr(oar_last_error_text(), "gather"));
}

static void a_name_tells_what_it_works_over(void **state)
{
    assert_int_equal(oari_algorithm_kind("direct"), OARI_OVER_MEMORY);
    assert_int_equal(oari_algorithm_kind("exchange"), OARI_OVER_MESSAGES);
    assert_int_equal(oari_algorithm_kind("magic"), OARI_NO_ALGORITHM);
}

static uint64_t live(void)
{
    oar_memory_stats stats = oar_memory_stats_init();

    assert_int_equal(oar_memory_read(&stats), OAR_OK);
    return stats.live;
}

static void a_plan_without_memory_is_no_plan_and_leaks_nothing(void **state)
{
    uint64_t before = live();

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++) {
        symbolic_op op = make_op(a, 7, 60, 0);
        oari_plan plan;
        int failures = 0;

        for (uint64_t n = 1;; n++, failures++) {
            oar_memory_fail_after(n);
            if (oari_plan_make(a, &op.ask, &plan) == OAR_OK)
                break;
            assert_int_equal(oar_last_error()->status, OAR_E_NOMEM);
            assert_int_equal(live(), before);
        }
        oar_memory_fail_after(0);
        oari_plan_clear(&plan);
        assert_true(failures > 0);
        assert_int_equal(live(), before);
    }
}

/* ---- slices -------------------------------------------------------------- */

static void slices_cover_all_once_and_begin_on_blocks_of_64(void **state)
{
    for (int n = 1; n <= MAX_RANKS; n++)
        for (size_t count = 0; count <= 5000; count += count < 200 ? 1 : 61) {
            size_t next = 0, most = 0, least = SIZE_MAX;
            for (int r = 0; r < n; r++) {
                size_t first = oari_slice_first(count, n, r);
                size_t length = oari_slice_count(count, n, r);
                size_t blocks = (length + 63) / 64;
                assert_int_equal(first, next);
                assert_true(first % 64 == 0 || length == 0);
                most = blocks > most ? blocks : most;
                least = blocks < least ? blocks : least;
                next = first + length;
            }
            assert_int_equal(next, count);
            assert_true(most - least <= 1); /* nobody does much more */
            assert_true(oari_slice_count(count, n, 0) >=
                        oari_slice_count(count, n, n - 1));
        }
}

static void slices_hold_at_sizes_that_no_int_holds(void **state)
{
    size_t count = ((size_t)1 << 40) + 12345;

    for (int n = 1; n <= MAX_RANKS; n++) {
        assert_int_equal(oari_slice_first(count, n, 0), 0);
        assert_int_equal(oari_slice_first(count, n, n), count);
        for (int r = 1; r < n; r++)
            assert_int_equal(oari_slice_first(count, n, r) % 64, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_planner_gives_every_rank_the_result),
        cmocka_unit_test(every_planner_holds_in_every_order_of_ranks),
        cmocka_unit_test(operations_of_different_kinds_follow_each_other),
        cmocka_unit_test(wrong_planners_are_found_out),
        cmocka_unit_test(a_barrier_that_does_not_wait_is_found_out),
        cmocka_unit_test(exchange_sends_what_its_formula_says),
        cmocka_unit_test(
            binomial_sends_the_buffer_once_to_each_in_logarithmic_rounds),
        cmocka_unit_test(dissemination_takes_logarithmic_rounds),
        cmocka_unit_test(memory_plans_meet_as_often_as_they_say),
        cmocka_unit_test(the_best_planner_comes_first),
        cmocka_unit_test(a_name_counts_only_where_it_plans),
        cmocka_unit_test(a_name_tells_what_it_works_over),
        cmocka_unit_test(a_plan_without_memory_is_no_plan_and_leaks_nothing),
        cmocka_unit_test(slices_cover_all_once_and_begin_on_blocks_of_64),
        cmocka_unit_test(slices_hold_at_sizes_that_no_int_holds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
