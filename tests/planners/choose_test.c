/* SPDX-License-Identifier: Apache-2.0 */
/* What docs/algorithms.md says of each algorithm: bytes sent by each rank,
 * rounds and sync points; and which one is chosen. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <oarsong/memory.h>

#include "plan/planners.h"
#include "support/leak_check.h"
#include "support/plans.h"

enum { MAX_RANKS = 33 };

static symbolic_counts count_once(const symbolic_op *op)
{
    symbolic_case c = {
        .ranks = op->req.ranks, .ops = 1, .op = { *op }, .seed = 3
    };
    symbolic_counts did;

    plans_run(&c, &did);
    return did;
}

/* ---- bytes: the formulas of docs/algorithms.md --------------------------- */

static size_t slice(const symbolic_op *o, int r)
{
    int n = o->req.ranks;

    return oari_slice_count(o->req.count, n, (r % n + n) % n);
}

static size_t part(const symbolic_op *o, int r)
{
    int n = o->req.ranks;

    return symbolic_part(o, (r % n + n) % n);
}

static size_t row(const symbolic_op *o)
{
    size_t total = 0;

    for (int r = 0; r < o->req.ranks; r++)
        total += part(o, r);
    return total;
}

static int log_of(int n)
{
    int rounds = 0;

    while (1 << rounds < n)
        rounds++;
    return rounds;
}

static size_t exchange_all_reduce(const symbolic_op *o, int r)
{
    size_t mine = slice(o, r), others = (size_t)o->req.ranks - 1;

    return (o->req.count - mine + others * mine) * o->req.element;
}

static size_t exchange_reduce(const symbolic_op *o, int r)
{
    return (o->req.count - (r == o->req.root ? slice(o, r) : 0)) *
           o->req.element;
}

static size_t exchange_reduce_scatter(const symbolic_op *o, int r)
{
    return (row(o) - part(o, r)) * o->req.element;
}

static size_t exchange_all_gather(const symbolic_op *o, int r)
{
    return ((size_t)o->req.ranks - 1) * part(o, r) * o->req.element;
}

static size_t ring_all_reduce(const symbolic_op *o, int r)
{
    if (o->req.ranks == 1)
        return 0;
    return (o->req.count - slice(o, r)) * o->req.wide +
           (o->req.count - slice(o, r + 1)) * o->req.element;
}

static size_t ring_reduce_scatter(const symbolic_op *o, int r)
{
    return (row(o) - part(o, r)) * o->req.wide;
}

static size_t ring_all_gather(const symbolic_op *o, int r)
{
    return (row(o) - part(o, r + 1)) * o->req.element;
}

static size_t bruck_all_reduce(const symbolic_op *o, int r)
{
    return ((size_t)o->req.ranks - 1) * o->req.count * o->req.element;
}

static size_t bruck_reduce_scatter(const symbolic_op *o, int r)
{
    return ((size_t)o->req.ranks - 1) * row(o) * o->req.element;
}

static size_t bruck_all_gather(const symbolic_op *o, int r)
{
    size_t sent = 0;

    for (int have = 1; have < o->req.ranks; have *= 2)
        for (int k = 0; k < have && have + k < o->req.ranks; k++)
            sent += part(o, r + k);
    return sent * o->req.element;
}

static size_t bruck_all_to_all(const symbolic_op *o, int r)
{
    size_t parts = 0;

    for (int d = 1; d < o->req.ranks; d++)
        parts += (size_t)__builtin_popcount((unsigned)d);
    return parts * o->req.count * o->req.element;
}

static size_t pairwise_all_to_all(const symbolic_op *o, int r)
{
    size_t sent = 0;

    for (int q = 0; q < o->req.ranks; q++)
        sent += q != r ? symbolic_pair(o, r, q) : 0;
    return sent * o->req.element;
}

/* Counted from root. */
static int place_of(const symbolic_op *o, int r)
{
    return (r - o->req.root + o->req.ranks) % o->req.ranks;
}

static int subtree_of(const symbolic_op *o, int r)
{
    int m = place_of(o, r), low = m & -m;

    return m + low <= o->req.ranks ? low : o->req.ranks - m;
}

static size_t binomial_broadcast(const symbolic_op *o, int r)
{
    int m = place_of(o, r), low = m != 0 ? m & -m : 1 << 30, children = 0;

    for (int bit = 1; bit < low && m + bit < o->req.ranks; bit *= 2)
        children++;
    return (size_t)children * o->req.count * o->req.element;
}

static size_t once_up(const symbolic_op *o, int r)
{
    return r != o->req.root ? o->req.count * o->req.wide : 0;
}

static size_t chain_broadcast(const symbolic_op *o, int r)
{
    return place_of(o, r) != o->req.ranks - 1 ? o->req.count * o->req.element
                                              : 0;
}

static size_t binomial_gather(const symbolic_op *o, int r)
{
    return r != o->req.root
               ? (size_t)subtree_of(o, r) * o->req.count * o->req.element
               : 0;
}

static size_t linear_gather(const symbolic_op *o, int r)
{
    return r != o->req.root ? part(o, r) * o->req.element : 0;
}

static size_t linear_scatter(const symbolic_op *o, int r)
{
    return r == o->req.root ? (row(o) - part(o, r)) * o->req.element : 0;
}

/* Returns the number of rank r among the p active ranks of n; -1: none. */
static int active_number(int n, int r, int *active)
{
    int p = 1, e;

    while (2 * p <= n)
        p *= 2;
    *active = p;
    e = n - p;
    return r >= 2 * e ? r - e : r % 2 == 0 ? r / 2 : -1;
}

static size_t doubling_all_reduce(const symbolic_op *o, int r)
{
    int p, me = active_number(o->req.ranks, r, &p), e = o->req.ranks - p;
    size_t all = o->req.count;

    if (me < 0)
        return all * o->req.wide;
    return (size_t)log_of(p) * all * o->req.wide +
           (r < 2 * e ? all * o->req.element : 0);
}

static size_t halving_all_reduce(const symbolic_op *o, int r)
{
    int p, me = active_number(o->req.ranks, r, &p), e = o->req.ranks - p;
    size_t all = o->req.count, shared = 0;

    if (me < 0)
        return all * o->req.wide;
    for (int bit = 1; bit < p; bit *= 2)
        shared += oari_slice_first(all, p, (me & ~(bit - 1)) + bit) -
                  oari_slice_first(all, p, me & ~(bit - 1));
    return (all - oari_slice_count(all, p, me)) * o->req.wide +
           shared * o->req.element + (r < 2 * e ? all * o->req.element : 0);
}

static size_t halving_reduce_scatter(const symbolic_op *o, int r)
{
    int p, me = active_number(o->req.ranks, r, &p);

    return (row(o) - (me >= 0 ? part(o, r) : 0)) * o->req.wide;
}

static const struct {
    const char *name;
    oar_coll kind;
    size_t (*bytes)(const symbolic_op *o, int r);
} formulas[] = {
    { "exchange", OAR_COLL_ALL_REDUCE, exchange_all_reduce },
    { "exchange", OAR_COLL_REDUCE, exchange_reduce },
    { "exchange", OAR_COLL_REDUCE_SCATTER, exchange_reduce_scatter },
    { "exchange", OAR_COLL_ALL_GATHER, exchange_all_gather },
    { "ring", OAR_COLL_ALL_REDUCE, ring_all_reduce },
    { "ring", OAR_COLL_REDUCE_SCATTER, ring_reduce_scatter },
    { "ring", OAR_COLL_ALL_GATHER, ring_all_gather },
    { "bruck", OAR_COLL_ALL_REDUCE, bruck_all_reduce },
    { "bruck", OAR_COLL_REDUCE_SCATTER, bruck_reduce_scatter },
    { "bruck", OAR_COLL_ALL_GATHER, bruck_all_gather },
    { "bruck", OAR_COLL_ALL_TO_ALL, bruck_all_to_all },
    { "pairwise", OAR_COLL_ALL_TO_ALL, pairwise_all_to_all },
    { "binomial", OAR_COLL_BROADCAST, binomial_broadcast },
    { "binomial", OAR_COLL_REDUCE, once_up },
    { "binomial", OAR_COLL_GATHER, binomial_gather },
    { "chain", OAR_COLL_BROADCAST, chain_broadcast },
    { "chain", OAR_COLL_REDUCE, once_up },
    { "linear", OAR_COLL_GATHER, linear_gather },
    { "linear", OAR_COLL_SCATTER, linear_scatter },
    { "doubling", OAR_COLL_ALL_REDUCE, doubling_all_reduce },
    { "halving", OAR_COLL_ALL_REDUCE, halving_all_reduce },
    { "halving", OAR_COLL_REDUCE_SCATTER, halving_reduce_scatter },
};

static void check_formula(size_t i, int n, int setting)
{
    const oari_algorithm *a = plans_find(formulas[i].name, formulas[i].kind);
    plans_variant v = { .setting = setting,
                        .root = n / 2,
                        .weighted = setting,
                        .ragged = plans_has_parts(a->kind) && setting == 1 &&
                                  strcmp(a->name, "binomial") != 0 &&
                                  a->kind != OAR_COLL_ALL_TO_ALL,
                        .seed = (uint64_t)n };
    symbolic_op op = plans_make(a, n, 130, v);
    symbolic_counts did;

    if (!plans_may_run(&op))
        return;
    did = count_once(&op);
    for (int r = 0; r < n; r++) {
        size_t words = op.req.mean || (op.req.weighted && a->canonical)
                           ? (size_t)n - 1
                           : 0;
        if (did.sent[r] != formulas[i].bytes(&op, r) || did.words[r] != words)
            fail_msg("%s %s: rank %d of %d sends %zu bytes and %zu words, not "
                     "%zu and %zu",
                     a->name, oar_coll_name(a->kind), r, n, did.sent[r],
                     did.words[r], formulas[i].bytes(&op, r), words);
        assert_true(did.most[r] <= 8 * (size_t)n + 32);
    }
}

static void every_rank_sends_what_the_formula_says(void **state)
{
    for (size_t i = 0; i < sizeof formulas / sizeof *formulas; i++)
        for (int n = 1; n <= MAX_RANKS; n++)
            for (int setting = 0; setting < 3; setting++)
                check_formula(i, n, setting);
}

/* Every algorithm over messages that moves data has a formula, save the
 * scatter of a tree and the two levels, whose sums are below. */
static void no_algorithm_is_without_a_formula(void **state)
{
    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++) {
        int found =
            a->over != OARI_MESSAGES || a->kind == OAR_COLL_BARRIER ||
            strcmp(a->name, "sizes") == 0 ||
            strcmp(a->name, "two_level") == 0 ||
            (strcmp(a->name, "binomial") == 0 && a->kind == OAR_COLL_SCATTER);
        for (size_t i = 0; i < sizeof formulas / sizeof *formulas; i++)
            found |= strcmp(a->name, formulas[i].name) == 0 &&
                     a->kind == formulas[i].kind;
        if (!found)
            fail_msg("%s %s has no row in formulas", a->name,
                     oar_coll_name(a->kind));
    }
}

static size_t total_sent(const symbolic_counts *did, int n)
{
    size_t total = 0;

    for (int r = 0; r < n; r++)
        total += did->sent[r];
    return total;
}

static void a_tree_scatters_what_it_gathers(void **state)
{
    for (int n = 1; n <= MAX_RANKS; n++) {
        plans_variant v = { .root = n / 3 };
        symbolic_op gather =
            plans_make(plans_find("binomial", OAR_COLL_GATHER), n, 17, v);
        symbolic_op scatter =
            plans_make(plans_find("binomial", OAR_COLL_SCATTER), n, 17, v);
        symbolic_counts up = count_once(&gather), down = count_once(&scatter);
        assert_int_equal(total_sent(&up, n), total_sent(&down, n));
    }
}

/* 12 ranks on 3 hosts, 4 rails: each rail is a ring of 3 with a fourth of the
 * buffer. A flat ring sends 22 buffers, this one 4. */
static void two_levels_send_a_buffer_once_for_each_host(void **state)
{
    const oari_algorithm *a = plans_find("two_level", OAR_COLL_ALL_REDUCE);
    symbolic_case c = { .ranks = 12, .ops = 1, .hosts = 3, .seed = 3 };
    symbolic_counts did;

    c.op[0] = plans_make(a, 12, 64 * 48, (plans_variant){ 0 });
    for (int r = 0; r < 12; r++)
        c.host[r] = r / 4;
    plans_run(&c, &did);
    assert_int_equal(total_sent(&did, 12), 2 * (3 - 1) * 64 * 48 * 8);
    for (int r = 0; r < 12; r++)
        assert_int_equal(did.syncs[r], 2);
}

static void barriers_take_logarithmic_rounds(void **state)
{
    for (int n = 1; n <= MAX_RANKS; n++) {
        symbolic_op op =
            plans_make(plans_find("dissemination", OAR_COLL_BARRIER), n, 0,
                       (plans_variant){ 0 });
        symbolic_counts did = count_once(&op);
        for (int r = 0; r < n; r++) {
            assert_int_equal(did.messages[r], log_of(n));
            assert_int_equal(did.rounds[r], log_of(n));
        }
    }
}

static size_t syncs_of(const char *name, oar_coll kind, size_t count,
                       int ragged)
{
    plans_variant v = { .ragged = ragged, .seed = 4 };
    symbolic_op op = plans_make(plans_find(name, kind), 5, count, v);

    return count_once(&op).syncs[4];
}

static void memory_plans_take_as_many_sync_points_as_they_say(void **state)
{
    for (int k = OAR_COLL_BROADCAST; k <= OAR_COLL_ALL_TO_ALL; k++) {
        assert_int_equal(syncs_of("line", (oar_coll)k, 3, 0), 1);
        assert_int_equal(syncs_of("direct", (oar_coll)k, 300, 0), 2);
    }
    assert_int_equal(syncs_of("sizes", OAR_COLL_GATHER, 300, 1), 2);
    assert_int_equal(syncs_of("sizes", OAR_COLL_ALL_TO_ALL, 300, 1), 2);
    /* Chunks of 64: three of them. */
    assert_int_equal(syncs_of("staged", OAR_COLL_ALL_REDUCE, 130, 0), 2 + 3);
    assert_int_equal(syncs_of("staged", OAR_COLL_BROADCAST, 130, 0), 1 + 3);
    assert_int_equal(syncs_of("staged", OAR_COLL_ALL_GATHER, 130, 0), 1 + 3);
}

/* ---- choosing ------------------------------------------------------------ */

static oari_rules normal_rules(void)
{
    oari_rules rules;

    unsetenv("OARSONG_ALGO");
    assert_int_equal(oari_rules_read(&rules, NULL), OAR_OK);
    return rules;
}

static const char *chosen(oar_coll kind, int memory, int ranks, size_t count,
                          const oari_rules *rules)
{
    oari_plan_request req =
        plans_make(plans_find(memory ? "line" : "exchange",
                              memory ? kind : OAR_COLL_ALL_REDUCE),
                   ranks, count, (plans_variant){ .setting = 1 })
            .req;

    req.kind = kind;
    req.root = plans_has_root(kind) ? 0 : -1;
    return oari_choose(&req, rules)->name;
}

static void the_best_planner_is_chosen(void **state)
{
    oari_rules rules = normal_rules();
    const size_t large = 4 << 20;

    for (int k = OAR_COLL_BROADCAST; k <= OAR_COLL_ALL_TO_ALL; k++) {
        assert_string_equal(chosen((oar_coll)k, 1, 3, 1, &rules), "line");
        assert_string_equal(chosen((oar_coll)k, 1, 3, large, &rules), "direct");
    }
#define CHOSEN(kind, ranks, count) \
    chosen(OAR_COLL_##kind, 0, ranks, count, &rules)
    assert_string_equal(CHOSEN(BARRIER, 4, 0), "dissemination");
    assert_string_equal(CHOSEN(ALL_REDUCE, 4, 10), "bruck");
    assert_string_equal(CHOSEN(ALL_REDUCE, 32, 10), "doubling");
    assert_string_equal(CHOSEN(ALL_REDUCE, 4, 10000), "halving");
    assert_string_equal(CHOSEN(ALL_REDUCE, 4, large / 16), "halving");
    assert_string_equal(CHOSEN(ALL_REDUCE, 4, large), "ring");
    assert_string_equal(CHOSEN(ALL_REDUCE, 2, large), "exchange");
    assert_string_equal(CHOSEN(BROADCAST, 4, 100), "binomial");
    assert_string_equal(CHOSEN(BROADCAST, 4, large), "chain");
    assert_string_equal(CHOSEN(REDUCE, 4, 100), "binomial");
    assert_string_equal(CHOSEN(REDUCE, 4, large), "chain");
    assert_string_equal(CHOSEN(REDUCE, 16, large / 16), "binomial");
    assert_string_equal(CHOSEN(REDUCE, 16, large), "chain");
    assert_string_equal(CHOSEN(REDUCE, 2, 100), "binomial");
    assert_string_equal(CHOSEN(REDUCE, 2, 10000), "chain");
    assert_string_equal(CHOSEN(GATHER, 4, 100), "linear");
    assert_string_equal(CHOSEN(GATHER, 9, 100), "binomial");
    assert_string_equal(CHOSEN(GATHER, 4, large), "linear");
    assert_string_equal(CHOSEN(ALL_GATHER, 4, 10), "bruck");
    assert_string_equal(CHOSEN(ALL_GATHER, 4, 10000), "bruck");
    assert_string_equal(CHOSEN(ALL_GATHER, 4, large), "ring");
    assert_string_equal(CHOSEN(REDUCE_SCATTER, 2, 10), "exchange");
    assert_string_equal(CHOSEN(REDUCE_SCATTER, 4, 10), "halving");
    assert_string_equal(CHOSEN(REDUCE_SCATTER, 32, 10), "halving");
    assert_string_equal(CHOSEN(REDUCE_SCATTER, 4, 10000), "halving");
    assert_string_equal(CHOSEN(REDUCE_SCATTER, 4, large), "exchange");
    assert_string_equal(CHOSEN(REDUCE_SCATTER, 5, large), "ring");
    assert_string_equal(CHOSEN(ALL_TO_ALL, 4, 10), "bruck");
    assert_string_equal(CHOSEN(ALL_TO_ALL, 4, large), "pairwise");
#undef CHOSEN
}

/* Returns the most elements of 4 bytes that go in a slot. */
static size_t most_in_slot(oar_coll kind, int ranks, int crowded)
{
    oari_rules rules = normal_rules();
    size_t count = 0;
    const char *name;

    do {
        oari_plan_request req =
            plans_make(plans_find("line", kind), ranks, ++count,
                       (plans_variant){ .setting = 1 })
                .req;
        req.element = req.wide = 4;
        req.small_bytes = 512;
        req.slot_bytes = 4096;
        req.crowded = crowded;
        name = oari_choose(&req, &rules)->name;
    } while (strcmp(name, "line") == 0 && count < 10000);
    return count - 1;
}

static void more_goes_in_a_slot_where_waiting_costs_more(void **state)
{
    assert_int_equal(most_in_slot(OAR_COLL_ALL_REDUCE, 3, 0), 512 / 4);
    assert_int_equal(most_in_slot(OAR_COLL_ALL_REDUCE, 2, 0), 1024 / 4);
    assert_int_equal(most_in_slot(OAR_COLL_BROADCAST, 2, 0), 2048 / 4);
    assert_int_equal(most_in_slot(OAR_COLL_BROADCAST, 3, 0), 2048 / 4);
    assert_int_equal(most_in_slot(OAR_COLL_ALL_REDUCE, 3, 1), 4096 / 4);
    assert_int_equal(most_in_slot(OAR_COLL_ALL_REDUCE, 16, 1), 4096 / 4);
    assert_int_equal(most_in_slot(OAR_COLL_ALL_REDUCE, 32, 1), 2048 / 4);
    assert_int_equal(most_in_slot(OAR_COLL_ALL_REDUCE, 1000, 1), 512 / 4);
    assert_int_equal(most_in_slot(OAR_COLL_BROADCAST, 1000, 1), 2048 / 4);
    assert_int_equal(most_in_slot(OAR_COLL_ALL_TO_ALL, 4, 1), 4096 / 4 / 4);
}

static void canonical_requests_get_the_order_of_ranks(void **state)
{
    oari_rules rules = normal_rules();

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++)
        for (int n = 1; n <= MAX_RANKS; n++)
            for (size_t count = 1; count < 10000000; count *= 7) {
                symbolic_op op = plans_make(a, n, count, (plans_variant){ 0 });
                oari_plan_request req = symbolic_request(&op, 0, 0);
                req.canonical = 1;
                req.shm_ranks = 0;
                assert_true(oari_choose(&req, &rules)->canonical);
            }
}

static void sums_that_would_travel_wide_are_exchanged(void **state)
{
    oari_rules rules = normal_rules();
    symbolic_op op = plans_make(plans_find("ring", OAR_COLL_ALL_REDUCE), 8,
                                1 << 20, (plans_variant){ .setting = 2 });

    assert_string_equal(oari_choose(&op.req, &rules)->name, "exchange");
    op.req.wide = op.req.element;
    assert_string_equal(oari_choose(&op.req, &rules)->name, "ring");
}

static void thresholds_come_from_the_environment(void **state)
{
    oari_rules rules;
    char text[200];
    int known = 0;

    setenv("OARSONG_RING_BYTES", "16K", 1);
    setenv("OARSONG_LATENCY_BYTES", "0", 1);
    assert_int_equal(oari_rules_read(&rules, NULL), OAR_OK);
    assert_string_equal(chosen(OAR_COLL_ALL_REDUCE, 0, 4, 5000, &rules),
                        "ring");
    assert_string_equal(chosen(OAR_COLL_ALL_REDUCE, 0, 4, 10, &rules),
                        "halving");
    setenv("OARSONG_RING_BYTES", "many", 1);
    assert_int_equal(oari_rules_read(&rules, NULL), OAR_E_ARG);
    unsetenv("OARSONG_RING_BYTES");
    unsetenv("OARSONG_LATENCY_BYTES");
    for (int i = 0; oar_threshold_text(i, text, sizeof text); i++)
        known += strstr(text, "OARSONG_RING_BYTES (normally 2097152)") != NULL;
    assert_int_equal(known, 1);
}

static void a_name_counts_where_it_plans(void **state)
{
    oari_rules rules;

    assert_int_equal(oari_rules_read(&rules, "staged"), OAR_OK);
    assert_string_equal(chosen(OAR_COLL_ALL_REDUCE, 1, 3, 17, &rules),
                        "staged");
    assert_string_equal(chosen(OAR_COLL_BARRIER, 1, 3, 0, &rules), "line");
    assert_string_equal(chosen(OAR_COLL_ALL_REDUCE, 0, 3, 17, &rules), "bruck");
    assert_int_equal(oari_rules_read(&rules, "line"), OAR_OK);
    assert_string_equal(chosen(OAR_COLL_ALL_REDUCE, 1, 3, 100000, &rules),
                        "direct"); /* nothing may force more into a slot */
    assert_int_equal(oari_rules_read(&rules, "all_reduce:ring,broadcast:chain"),
                     OAR_OK);
    assert_string_equal(chosen(OAR_COLL_ALL_REDUCE, 0, 2, 1, &rules), "ring");
    assert_string_equal(chosen(OAR_COLL_ALL_REDUCE, 1, 2, 1, &rules), "ring");
    assert_string_equal(chosen(OAR_COLL_ALL_GATHER, 0, 4, 10, &rules), "bruck");
    assert_string_equal(chosen(OAR_COLL_BROADCAST, 0, 3, 1, &rules), "chain");
}

static void unknown_names_are_refused_with_the_list(void **state)
{
    static const char *const wrong[] = { "magic",       "all_reduce:linear",
                                         "all_reduce:", "everything:ring",
                                         "sizes",       "ring,hope" };
    oari_rules rules;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(oari_rules_read(&rules, wrong[i]), OAR_E_ARG);
    assert_non_null(strstr(oar_last_error_text(), "no algorithm \"hope\""));
    assert_non_null(strstr(oar_last_error_text(), " two_level,"));
    oari_rules_read(&rules, "all_reduce:linear");
    assert_non_null(strstr(oar_last_error_text(), "halving"));
    assert_null(strstr(oar_last_error_text(), "pairwise"));
    assert_int_equal(oari_rules_read(&rules, "direct"), OAR_OK);
    assert_int_equal(oari_rules_check(&rules, OARI_MESSAGES),
                     OAR_E_UNSUPPORTED);
    assert_int_equal(oari_rules_check(&rules, OARI_MEMORY), OAR_OK);
}

/* ---- making -------------------------------------------------------------- */

static void a_plan_without_memory_is_no_plan_and_leaks_nothing(void **state)
{
    static const int hosts[] = { 0, 0, 1, 1, 1, 2, 2 };
    uint64_t before = memory_now().live;

    for (const oari_algorithm *a = oari_algorithms; a->name != NULL; a++) {
        symbolic_op op = plans_make(a, 7, 60, (plans_variant){ 0 });
        oari_plan plan = { 0 };
        int failures = 0;

        op.req.hosts = hosts;
        for (uint64_t n = 1;; n++, failures++) {
            oar_memory_fail_after(n);
            if (oari_plan_make(a->name, a->plan, &op.req, &plan) == OAR_OK)
                break;
            assert_int_equal(oar_last_error()->status, OAR_E_NOMEM);
            assert_int_equal(memory_now().live, before);
        }
        oar_memory_fail_after(0);
        oari_plan_clear(&plan);
        assert_true(failures > 0);
        assert_int_equal(memory_now().live, before);
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
            assert_true(most - least <= 1); /* no rank does much more */
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

static void messages_are_cut_where_it_pays(void **state)
{
    oari_plan_request req = { .chunk_bytes = 512 << 10 };

    assert_int_equal(oari_chunk_size(&req, 64 << 20, 4), (512 << 10) / 4);
    assert_int_equal(oari_chunk_size(&req, 64 << 10, 4),
                     16 << 10); /* in four */
    assert_int_equal(oari_chunk_size(&req, 1000, 4),
                     (32 << 10) / 4); /* at once */
    req.chunk_bytes = 1;
    assert_int_equal(oari_chunk_size(&req, 1000, 4), 64);
}

static void every_algorithm_can_be_listed(void **state)
{
    int found = 0;
    oar_coll kind;
    const char *name;

    for (int i = 0; (name = oar_algorithm_name(i, &kind)) != NULL; i++)
        found += strcmp(name, "ring") == 0 && kind == OAR_COLL_ALL_REDUCE;
    assert_int_equal(found, 1);
    assert_null(oar_algorithm_name(-1, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_can_be_listed),
        cmocka_unit_test(every_rank_sends_what_the_formula_says),
        cmocka_unit_test(no_algorithm_is_without_a_formula),
        cmocka_unit_test(a_tree_scatters_what_it_gathers),
        cmocka_unit_test(two_levels_send_a_buffer_once_for_each_host),
        cmocka_unit_test(barriers_take_logarithmic_rounds),
        cmocka_unit_test(memory_plans_take_as_many_sync_points_as_they_say),
        cmocka_unit_test(the_best_planner_is_chosen),
        cmocka_unit_test(more_goes_in_a_slot_where_waiting_costs_more),
        cmocka_unit_test(canonical_requests_get_the_order_of_ranks),
        cmocka_unit_test(sums_that_would_travel_wide_are_exchanged),
        cmocka_unit_test(thresholds_come_from_the_environment),
        cmocka_unit_test(a_name_counts_where_it_plans),
        cmocka_unit_test(unknown_names_are_refused_with_the_list),
        cmocka_unit_test(a_plan_without_memory_is_no_plan_and_leaks_nothing),
        cmocka_unit_test(slices_cover_all_once_and_begin_on_blocks_of_64),
        cmocka_unit_test(slices_hold_at_sizes_that_no_int_holds),
        cmocka_unit_test(messages_are_cut_where_it_pays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
