/* SPDX-License-Identifier: Apache-2.0 */
/* Every planner, for all ranks at once, without a network: each element of each
 * output is what it should be and has each contribution once, in the order of
 * ranks where that is promised, in whatever order the ranks run. The rules are
 * in symbolic.h. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "plan/planners.h"
#include "support/plans.h"

enum { MAX_RANKS = 33 };

static const size_t counts[] = { 0, 1, 3, 17, 64, 65, 130, 577 };
enum { COUNTS = sizeof counts / sizeof *counts };

/* Runs the operation twice, so that the second finds what the first left. */
static void run_twice(const symbolic_op *op, uint64_t seed)
{
    symbolic_case c = { .ranks = op->req.ranks,
                        .ops = 2,
                        .op = { *op, *op },
                        .order = (symbolic_order)(seed % SYMBOLIC_ORDERS),
                        .seed = seed };

    c.op[0].in_place = seed * 0x9e3779b97f4a7c15u;
    c.op[1].in_place = ~c.op[0].in_place;
    plans_run(&c, NULL);
}

/* All reachable, none, only one private, only root's output private, or none
 * but inputs that the system copies: for all ranks, or all but one. */
static void set_reach(symbolic_op *op, int how)
{
    uint64_t one = UINT64_C(1) << (op->req.ranks / 2);

    op->in_reach = how == 0 ? UINT64_MAX : how == 1 ? 0 : ~one;
    op->out_reach = how == 0 ? UINT64_MAX : how == 1 ? 0 : ~one;
    op->fetches = how >= 4;
    op->misses = how == 5 ? one : 0;
    if (how >= 4)
        op->in_reach = op->out_reach = 0;
    if (how == 3) {
        op->in_reach = UINT64_MAX;
        op->out_reach = op->req.root >= 0 ? ~(UINT64_C(1) << op->req.root) : 0;
    }
}

static int kinds_of_reach(const oari_algorithm *a)
{
    return a->over == OARI_MEMORY && (strcmp(a->name, "direct") == 0 ||
                                      strcmp(a->name, "sizes") == 0)
               ? 6
               : 1;
}

/* The v-th way to run an operation of this kind; 0: there are fewer. */
static int vary(const oari_algorithm *a, int ranks, int v, plans_variant *out,
                int *reach)
{
    int roots = plans_has_root(a->kind) ? ranks : 1;
    int weights = symbolic_reduces(a->kind) ? 3 : 1;
    int reaches = kinds_of_reach(a);
    int shapes = plans_has_parts(a->kind)       ? 3
                 : plans_can_be_object(a->kind) ? 3
                                                : 1;
    int shape;

    out->root = v % roots;
    v /= roots;
    *reach = v % reaches;
    v /= reaches;
    shape = v % shapes;
    v /= shapes;
    out->weighted = v % weights;
    out->ragged = shape == 1;
    out->object = shape == 2 && plans_can_be_object(a->kind);
    return roots * reaches * shapes * weights;
}

static size_t count_for(const oari_algorithm *a, int n, int c)
{
    size_t count = counts[c];

    if (plans_has_parts(a->kind) && count > 65)
        return count / (size_t)(n < 4 ? 1 : n) + 3;
    return n <= 9 || n == 16 || n >= 32 || count <= 130 ? count
                                                        : count / 4 + 10;
}

/* Every variant of few ranks; of many, some that the seed picks. */
static uint64_t run_variants(const oari_algorithm *a, int n, int c,
                             uint64_t seed)
{
    plans_variant v = { .setting = (n + c) % PLANS_SETTINGS };
    int reach, all = vary(a, n, 0, &v, &reach), few = n <= 3;

    for (int i = 0; i < (few ? all : 1); i++, seed++) {
        symbolic_op op;
        vary(a, n, few ? i : (int)(seed * 2654435761u % (uint64_t)all), &v,
             &reach);
        v.seed = seed;
        op = plans_make(a, n, count_for(a, n, c), v);
        set_reach(&op, reach);
        if (plans_may_run(&op))
            run_twice(&op, seed);
    }
    return seed;
}

static void every_planner_gives_every_rank_the_result(void **state)
{
    uint64_t seed = 1;

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++)
        for (int n = 1; n <= MAX_RANKS; n++)
            for (int c = 0; c < (a->kind == OAR_COLL_BARRIER ? 1 : COUNTS); c++)
                if (n <= 7 || (n + c) % 5 == 0)
                    seed = run_variants(a, n, c, seed);
}

/* Every root, and every kind of parts, of every size. */
static void every_planner_holds_for_every_root(void **state)
{
    uint64_t seed = 1;

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++)
        for (int n = 2; n <= MAX_RANKS && plans_has_root(a->kind); n++)
            for (int root = 0; root < n; root++, seed++) {
                plans_variant v = { .root = root,
                                    .ragged = seed % 3 == 1,
                                    .object = seed % 3 == 2 &&
                                              plans_can_be_object(a->kind),
                                    .seed = seed };
                symbolic_op op = plans_make(a, n, 5, v);
                if (plans_may_run(&op))
                    run_twice(&op, seed);
            }
}

static void every_planner_holds_in_every_order_of_ranks(void **state)
{
    static const int few[] = { 2, 3, 5, 8 };

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++)
        for (int i = 0; i < 4; i++)
            for (uint64_t seed = 1; seed <= 16; seed++) {
                plans_variant v = { .setting = seed & 2 ? 0 : 1,
                                    .root = (int)(seed % (uint64_t)few[i]),
                                    .ragged = seed % 3 == 0,
                                    .object = seed % 3 == 1 &&
                                              plans_can_be_object(a->kind),
                                    .seed = seed };
                symbolic_op op = plans_make(a, few[i], seed & 4 ? 200 : 64, v);
                set_reach(&op, (int)(seed / 2 % 4));
                if (plans_may_run(&op))
                    run_twice(&op, seed);
            }
}

/* Every kind after every other, over the same slots and buffers. */
static void operations_of_different_kinds_follow_each_other(void **state)
{
    static const size_t sizes[] = { 200, 33, 65, 300 };
    uint64_t seed = 1;

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++)
        for (const oari_algorithm *b = oari_algorithms; b->name != NULL; b++)
            for (int i = (int)(seed % 2); i < SYMBOLIC_ORDERS; i += 2, seed++) {
                int n = i == 0 ? 2 : i == 1 ? 3 : 5, fine = 1;
                symbolic_case c = { .ranks = n,
                                    .ops = 4,
                                    .order = (symbolic_order)i,
                                    .seed = seed };
                for (int k = 0; k < 4; k++) {
                    const oari_algorithm *one = k % 2 == 0 ? a : b;
                    plans_variant v = { .root = k % n,
                                        .seed = seed + (uint64_t)k };
                    size_t part = plans_has_parts(one->kind) ? (size_t)n : 1;
                    v.ragged = strcmp(one->name, "sizes") == 0;
                    v.object = v.ragged && plans_can_be_object(one->kind);
                    v.setting = PLANS_SETTINGS - 1;
                    c.op[k] = plans_make(one, n, sizes[k] / part, v);
                    set_reach(&c.op[k], (int)(seed >> k) % 4);
                    if (!plans_may_run(&c.op[k]))
                        c.op[k] = plans_make(one, n, 40 / part, v);
                    fine &= plans_may_run(&c.op[k]);
                }
                if (fine)
                    plans_run(&c, NULL);
            }
}

/* ---- planners that are wrong, so that we know that it would show --------- */

static void reduce_all(oari_plan *plan, oari_buffer to, oari_buffer from,
                       size_t at, size_t count)
{
    oari_plan_reduce(plan, to, at, from, at, count);
}

static void forget_last_sync(const oari_plan_request *req, oari_plan *plan)
{
    plan->shows = OARI_SHOWS_IN | OARI_SHOWS_OUT;
    oari_plan_sync(plan, 0, 0);
    reduce_all(plan, OARI_ALL_OUT, OARI_IN,
               oari_slice_first(req->count, req->ranks, req->rank),
               oari_slice_count(req->count, req->ranks, req->rank));
}

static void hide_buffers(const oari_plan_request *req, oari_plan *plan)
{
    forget_last_sync(req, plan);
    oari_plan_sync(plan, 0, 0);
    plan->shows = 0;
}

static void combine_too_much(const oari_plan_request *req, oari_plan *plan)
{
    plan->shows = OARI_SHOWS_IN | OARI_SHOWS_OUT;
    oari_plan_sync(plan, 0, 0);
    reduce_all(plan, OARI_ALL_OUT, OARI_IN, 0, req->count);
    oari_plan_sync(plan, 0, 0);
}

static void read_an_old_slot(const oari_plan_request *req, oari_plan *plan)
{
    oari_plan_sync(plan, 0, req->count);
    oari_plan_sync(plan, 0, 0);
    reduce_all(plan, OARI_OUT, OARI_SLOT, 0, req->count);
}

/* The next chunk goes where the last is still being read. */
static void reuse_the_bounce_buffer(const oari_plan_request *req,
                                    oari_plan *plan)
{
    for (size_t at = 0; at < req->count; at += 17) {
        size_t left = req->count - at, part = left < 17 ? left : 17;
        oari_plan_copy(plan, OARI_BOUNCE, 0, OARI_IN, -1, at, part);
        oari_plan_sync(plan, 0, 0);
        oari_plan_reduce(plan, OARI_OUT, at, OARI_BOUNCE, 0, part);
    }
}

static void leave_the_bounce_buffer(const oari_plan_request *req,
                                    oari_plan *plan)
{
    oari_plan_copy(plan, OARI_BOUNCE, 1 << 20, OARI_IN, -1, 0, req->count);
}

static void wait_in_a_cycle(const oari_plan_request *req, oari_plan *plan)
{
    int n = req->ranks;

    plan->gather_count = req->count;
    oari_plan_recv(plan, (req->rank + n - 1) % n, OARI_GATHER, 0, req->count);
    oari_plan_wait(plan);
    oari_plan_send(plan, (req->rank + 1) % n, OARI_IN, 0, req->count);
    oari_plan_wait(plan);
}

static void send_too_little(const oari_plan_request *req, oari_plan *plan)
{
    int n = req->ranks;

    plan->gather_count = req->count;
    oari_plan_recv(plan, (req->rank + n - 1) % n, OARI_GATHER, 0, req->count);
    oari_plan_send(plan, (req->rank + 1) % n, OARI_IN, 0, req->count - 1);
    oari_plan_wait(plan);
}

static void write_what_is_sent(const oari_plan_request *req, oari_plan *plan)
{
    int n = req->ranks;

    plan->gather_count = req->count;
    oari_plan_recv(plan, (req->rank + n - 1) % n, OARI_GATHER, 0, req->count);
    oari_plan_send(plan, (req->rank + 1) % n, OARI_OUT, 0, req->count);
    oari_plan_copy(plan, OARI_OUT, 0, OARI_IN, -1, 1, 1);
    oari_plan_wait(plan);
}

/* Waits for fewer than it needs. */
static void wait_too_little(const oari_plan_request *req, oari_plan *plan)
{
    int n = req->ranks, before = (req->rank + n - 1) % n;

    plan->work_count = req->count;
    oari_plan_send(plan, (req->rank + 1) % n, OARI_IN, 0, req->count);
    oari_plan_recv(plan, before, OARI_WORK, 0, req->count);
    oari_plan_wait_until(plan, 1);
    oari_plan_combine(plan, (oari_location){ OARI_OUT, 0 },
                      (oari_location){ OARI_WORK, 0 },
                      (oari_location){ OARI_IN, 0 }, 1, req->count);
    oari_plan_wait(plan);
}

static void add_a_neighbour(const oari_plan_request *req, oari_plan *plan,
                            int times)
{
    int n = req->ranks, before = (req->rank + n - 1) % n;
    oari_location work = { OARI_WORK, 0 }, in = { OARI_IN, 0 };

    plan->work_count = req->count;
    oari_plan_send(plan, (req->rank + 1) % n, OARI_IN, 0, req->count);
    oari_plan_recv(plan, before, OARI_WORK, 0, req->count);
    oari_plan_wait(plan);
    for (int i = 1; i < times; i++)
        oari_plan_combine(plan, work, work, in, 0, req->count);
    oari_plan_combine(plan, (oari_location){ OARI_OUT, 0 }, work, in, 1,
                      req->count);
}

static void leave_one_out(const oari_plan_request *req, oari_plan *plan)
{
    add_a_neighbour(req, plan, 1);
}

static void add_mine_twice(const oari_plan_request *req, oari_plan *plan)
{
    add_a_neighbour(req, plan, 2);
}

static void finish_twice(const oari_plan_request *req, oari_plan *plan)
{
    oari_location out = { OARI_OUT, 0 }, none = { OARI_NOWHERE, 0 };

    oari_plan_combine(plan, out, (oari_location){ OARI_IN, 0 }, none, 1,
                      req->count);
    oari_plan_combine(plan, out, out, none, 1, req->count);
}

static void combine_neighbours(const oari_plan_request *req, oari_plan *plan)
{
    plan->work_count = req->count;
    oari_plan_combine(plan, (oari_location){ OARI_WORK, 0 },
                      (oari_location){ OARI_IN, 0 },
                      (oari_location){ OARI_IN, 1 }, 0, 1);
}

static void wrong_planners_are_found_out(void **state)
{
    static const struct {
        oari_planner plan;
        const char *why;
    } wrong[] = {
        { forget_last_sync, "the wrong out" },
        { hide_buffers, "cannot reach" },
        { combine_too_much, "while rank" },
        { read_an_old_slot, "before it is written" },
        { reuse_the_bounce_buffer, "while rank" },
        { leave_the_bounce_buffer, "which has" },
        { wait_in_a_cycle, "waits forever" },
        { send_too_little, "which expects" },
        { write_what_is_sent, "which a message uses" },
        { wait_too_little, "which a message uses" },
        { leave_one_out, "the wrong out" },
        { add_mine_twice, "twice" },
        { finish_twice, "no partial result" },
        { combine_neighbours, "different elements" },
    };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        oari_algorithm a = { "wrong", OAR_COLL_ALL_REDUCE, OARI_MEMORY, 1,
                             NULL,    wrong[i].plan };
        symbolic_case c = { .ranks = 3,
                            .ops = 1,
                            .op = { plans_make(&a, 3, 200,
                                               (plans_variant){ 0 }) },
                            .seed = 5 };
        const char *text = symbolic_run(&c, NULL);
        if (text == NULL || strstr(text, wrong[i].why) == NULL)
            fail_msg("wrong planner %zu: %s", i, text != NULL ? text : "fine");
    }
}

static void a_barrier_that_does_not_wait_is_found_out(void **state)
{
    oari_algorithm a = *plans_find("dissemination", OAR_COLL_BARRIER);
    symbolic_case c = { .ranks = 3,
                        .ops = 1,
                        .op = { plans_make(&a, 3, 0, (plans_variant){ 0 }) },
                        .order = SYMBOLIC_LAZY };

    a.plan = oari_plan_exchange; /* of 0 elements: no messages at all */
    assert_non_null(strstr(symbolic_run(&c, NULL), "passes a barrier"));
}

/* Rank 0 goes on whenever it can, through broadcasts in which it waits for no
 * rank. */
static void a_rank_that_runs_too_far_ahead_is_found_out(void **state)
{
    symbolic_op op = plans_make(plans_find("line", OAR_COLL_BROADCAST), 3, 1,
                                (plans_variant){ 0 });
    symbolic_case c = {
        .ranks = 3, .ops = 4, .op = { op, op, op, op }, .order = SYMBOLIC_EAGER
    };

    assert_null(symbolic_run(&c, NULL));
    c.careless = 1;
    assert_non_null(strstr(symbolic_run(&c, NULL), "finds another sync point"));
}

/* ---- several hosts ------------------------------------------------------- */

/* Ranks over hosts: in blocks, in turn, or at random; numbered by their lowest
 * rank. */
static int place_on_hosts(symbolic_case *c, int hosts, uint64_t seed)
{
    int number[SYMBOLIC_RANKS], used = 0;

    for (int h = 0; h < hosts; h++)
        number[h] = -1;
    for (int r = 0; r < c->ranks; r++) {
        uint64_t drawn = (seed * 977 + (uint64_t)r) * 0x9e3779b97f4a7c15u >> 40;
        int h = seed % 3 == 0   ? r * hosts / c->ranks
                : seed % 3 == 1 ? r % hosts
                                : (int)(drawn % (uint64_t)hosts);
        if (number[h] < 0)
            number[h] = used++;
        c->host[r] = number[h];
    }
    c->hosts = used;
    return used > 1 && used < c->ranks;
}

static void run_on_hosts(const oari_algorithm *a, int n, int hosts,
                         size_t count, uint64_t seed)
{
    plans_variant v = { .setting = (int)(seed % 3),
                        .root = (int)(seed * 7 % (uint64_t)n),
                        .weighted = (int)(seed / 3 % 3),
                        .ragged = seed % 2 && plans_has_parts(a->kind),
                        .seed = seed };
    symbolic_case c = { .ranks = n,
                        .ops = 2,
                        .order = (symbolic_order)(seed % SYMBOLIC_ORDERS),
                        .seed = seed };

    if (!place_on_hosts(&c, hosts, seed))
        return;
    c.op[0] = plans_make(a, n, plans_has_parts(a->kind) ? count / 4 : count, v);
    set_reach(&c.op[0], (int)(seed / 2 % 3));
    c.op[0].in_place = seed * 0x9e3779b97f4a7c15u;
    c.op[1] = c.op[0];
    c.op[1].in_place = ~c.op[0].in_place;
    plans_run(&c, NULL);
}

static void two_levels_give_the_result_on_any_hosts(void **state)
{
    static const size_t sizes[] = { 0, 1, 65, 300, 1000 };
    uint64_t seed = 1;

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++)
        for (int n = 2; n <= MAX_RANKS && strcmp(a->name, "two_level") == 0;
             n += n < 12 ? 1 : 5)
            for (int hosts = 2; hosts < n && hosts < 8; hosts++)
                for (size_t s = 0; s < 5; s++)
                    run_on_hosts(a, n, hosts, sizes[s], seed++);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_planner_gives_every_rank_the_result),
        cmocka_unit_test(every_planner_holds_for_every_root),
        cmocka_unit_test(every_planner_holds_in_every_order_of_ranks),
        cmocka_unit_test(operations_of_different_kinds_follow_each_other),
        cmocka_unit_test(wrong_planners_are_found_out),
        cmocka_unit_test(a_barrier_that_does_not_wait_is_found_out),
        cmocka_unit_test(a_rank_that_runs_too_far_ahead_is_found_out),
        cmocka_unit_test(two_levels_give_the_result_on_any_hosts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
