/* SPDX-License-Identifier: Apache-2.0 */
/* Links between two hosts (network namespaces) that are cut, half open, slow or
 * lossy. Under delay and loss all results are right. When nothing gets through
 * any more, every rank learns in time that the other side cannot be reached,
 * all ranks of a side learn the same, and no rank hangs.
 *
 *   bad_network_test            each fault once
 *   bad_network_test all        in every phase and size; also
 *                               OARSONG_TEST_ALL=1
 *   bad_network_test NUMBER...  these rows
 * OARSONG_TEST_SEED is the seed (1). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "support/scenario.h"
#include "support/two_hosts.h"

enum {
    LEASE_MS = 1000,
    /* Beyond that a cut is noticed once what was sent has been retransmitted
     * without an answer, which the kernel does at intervals that grow with the
     * round-trip times before; on a machine with more ranks than cores, after 2
     * s and more. */
    LIMIT_MS = LEASE_MS + 4000,
    TIMEOUT_MS = 20000, /* of the others: not what ends an operation */
    DESTROYED_MS = 1000,
    ROUNDS = 2, /* of everything, on a bad wire */
    TURNS = 3   /* operations before the wire is cut */
};

/* ---- the table ----------------------------------------------------------- */

typedef enum link_fault {
    CUT_HERE,      /* one end goes down */
    CUT_THERE,     /* the other end */
    LOSE_WAY,      /* one host has no route any more */
    SWALLOW,       /* everything is dropped without notice */
    SWALLOW_OTHER, /* the same one way only: half open */
    UNPLUG,        /* the interfaces vanish */
    SLOW,
    SLOWER,
    LOSSY,
    LOSSIER,
    MISHAPS
} link_fault;

static const struct {
    const char *name;
    int relay;
    int delay_us, lost_ppm; /* of a wire that works */
} mishaps[MISHAPS] = {
    [CUT_HERE] = { "a cut on the first host", 0, 0, 0 },
    [CUT_THERE] = { "a cut on the second host", 0, 0, 0 },
    [LOSE_WAY] = { "a host without a route", 0, 0, 0 },
    [SWALLOW] = { "a wire that swallows everything", 1, 0, 0 },
    [SWALLOW_OTHER] = { "a wire that swallows one way", 1, 0, 0 },
    [UNPLUG] = { "a wire that is unplugged", 1, 0, 0 },
    [SLOW] = { "1 ms each way", 1, 1000, 0 },
    [SLOWER] = { "20 ms each way", 1, 20000, 0 },
    [LOSSY] = { "one packet of a hundred lost", 1, 100, 10000 },
    [LOSSIER] = { "one packet of twenty lost", 1, 1000, 50000 },
};

static int ends_the_group(link_fault how)
{
    return how <= UNPLUG;
}

typedef enum link_fault_time {
    WORKING,
    PASSING,
    IDLE,
    FIRST,
    MOMENTS
} link_fault_time;

static const char *const moment_names[MOMENTS] = {
    [WORKING] = "inside collectives",
    [PASSING] = "inside messages",
    [IDLE] = "between operations",
    [FIRST] = "before the first connection",
};

static const int sizes[] = { 2, 5, 4 };
enum { SIZES = 3, ROWS = MISHAPS * MOMENTS * SIZES };

typedef struct link_fault_case {
    int number, ranks, here; /* ranks on the first host */
    link_fault how;
    link_fault_time when;
    operation_case operation;
    two_hosts hosts;
    uint64_t seed;
    shared_flag turns, go, reported, healed;
    _Atomic int64_t struck_ns;
    oar_error record[TEST_JOB_RANKS];
} link_fault_case;

static uint64_t seed = 1;

static void make_case(link_fault_case *s, int number)
{
    uint64_t draw = seed * 1000 + (uint64_t)number;

    memset(s, 0, sizeof *s);
    s->number = number;
    s->how = (link_fault)(number / SIZES / MOMENTS);
    s->when = (link_fault_time)(number / SIZES % MOMENTS);
    s->ranks = sizes[number % SIZES];
    s->here = (s->ranks + 1) / 2;
    s->seed = next_random(&draw);
    s->operation.name = "link";
    s->operation.kind = s->when == PASSING
                            ? OAR_COLL_SEND
                            : scenario_kinds[next_random(&draw) % 9];
    s->operation.count = s->operation.kind == OAR_COLL_BARRIER ? 0
                         : next_random(&draw) % 2              ? 60013
                                                               : 11;
    s->operation.memory = (operation_memory)(next_random(&draw) % 3);
}

/* Rows in which no rank reports a fault are run for one moment only. */
static int is_a_row(int number)
{
    link_fault how = (link_fault)(number / SIZES / MOMENTS);

    return ends_the_group(how) || number / SIZES % MOMENTS == WORKING;
}

/* ---- ranks --------------------------------------------------------------- */

static int host_of(const link_fault_case *s, int rank)
{
    return rank >= s->here;
}

static int join(test_job *c, int rank, link_fault_case *s, oar_group **g)
{
    oar_group_opts o = operation_opts(&s->operation, TIMEOUT_MS);

    o.backend = "native";
    if (ends_the_group(s->how)) /* too short for a wire that loses packets */
        setenv("OARSONG_TCP_LEASE_MS", "1000", 1);
    setenv("OARSONG_SECRET",
           "6f6172736f6e6720666f7220746573747320616e64206e6f7468696e67206f66",
           1);
    RANK_CHECK(two_hosts_enter(&s->hosts, host_of(s, rank)));
    RANK_CHECK(test_job_join(c, rank, &o, g) == OAR_OK);
    return 0;
}

/* Everything there is, on a wire that is bad but works. */
static int do_everything(test_job *c, int rank, oar_group *g,
                         link_fault_case *s)
{
    for (int i = 0; i < 2 * SCENARIO_KINDS * ROUNDS; i++) {
        operation_case d = { .name = "everything",
                             .kind = scenario_kinds[i / 2 % SCENARIO_KINDS],
                             .count = i % 2 ? 9001 : 3,
                             .last_root = i % 3 == 0 };
        operation_buffers h;
        if (d.kind == OAR_COLL_BARRIER)
            d.count = 0;
        RANK_CHECK(operation_buffers_alloc(&h, &d, rank, c->ranks) == OAR_OK);
        RANK_CHECK(operation_run(&h, g, 0) == OAR_OK);
        RANK_CHECK(operation_result_is_right(&h));
        operation_buffers_free(&h);
    }
    return 0;
}

static int run_on_bad_link(test_job *c, int rank, void *arg)
{
    link_fault_case *s = arg;
    oar_group *g;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    RANK_CHECK(do_everything(c, rank, g, s) == 0);
    oar_group_destroy(g);
    return 0;
}

/* Operations until one fails. */
static int work_on(test_job *c, int rank, link_fault_case *s, oar_group *g,
                   operation_buffers *h)
{
    oar_status status = OAR_OK;
    int in_time;

    while (status == OAR_OK) {
        operation_buffers_fill(h);
        status = operation_run(h, g, 0);
        RANK_CHECK(status != OAR_OK || operation_result_is_right(h));
        if (status == OAR_OK && h->operation->kind != OAR_COLL_BARRIER)
            status = oar_barrier(g, NULL, NULL);
        if (rank == 0 && status == OAR_OK)
            shared_flag_raise(&s->turns);
    }
    RANK_CHECK(s->struck_ns != 0);
    in_time = is_in_time(s->struck_ns, LIMIT_MS);
    if (!in_time)
        fprintf(stderr, "[%s] rank %d reported after %lld ms: %s\n", c->what,
                rank, (long long)ms_since(s->struck_ns), oar_last_error_text());
    RANK_CHECK(in_time);
    s->record[rank].size = sizeof s->record[rank];
    RANK_CHECK(oar_group_fault(g, &s->record[rank]) == status);
    return 0;
}

/* The wire works again, and nothing comes of it. */
static int run_until_group_ends(test_job *c, int rank, link_fault_case *s,
                                oar_group *g, operation_buffers *h)
{
    oar_status status = s->record[rank].status;
    int64_t start;

    for (size_t i = 0; i < h->out_count; i++)
        h->out[i] = 7;
    shared_flag_raise(&s->reported);
    RANK_CHECK(shared_flag_await(&s->healed, 1, TEST_JOB_LIMIT_MS));
    RANK_CHECK(oar_barrier(g, NULL, NULL) == status);
    RANK_CHECK(strcmp(oar_last_error_text(), s->record[rank].text) == 0);
    start = oari_now_ns();
    oar_group_destroy(g);
    RANK_CHECK(is_in_time(start, DESTROYED_MS));
    for (size_t i = 0; i < h->out_count; i++)
        RANK_CHECK(h->out[i] == 7);
    return 0;
}

static int expect_cut(test_job *c, int rank, void *arg)
{
    link_fault_case *s = arg;
    int descriptors = open_descriptors();
    operation_buffers h;
    oar_group *g;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    RANK_CHECK(operation_buffers_alloc(&h, &s->operation, rank, c->ranks) ==
               OAR_OK);
    if (s->when == IDLE)
        RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    if (s->when == IDLE || s->when == FIRST) {
        shared_flag_raise(&s->turns);
        RANK_CHECK(shared_flag_await(&s->go, 1, TEST_JOB_LIMIT_MS));
    }
    RANK_CHECK(work_on(c, rank, s, g, &h) == 0);
    RANK_CHECK(run_until_group_ends(c, rank, s, g, &h) == 0);
    operation_buffers_free(&h);
    RANK_CHECK(h.shared || open_descriptors() == descriptors);
    return 0;
}

/* ---- the wire ------------------------------------------------------------ */

static int apply_fault(link_fault_case *s)
{
    two_hosts *t = &s->hosts;

    atomic_store(&s->struck_ns, oari_now_ns());
    switch (s->how) {
    case CUT_HERE: return two_hosts_set_link(t, 0, 0);
    case CUT_THERE: return two_hosts_set_link(t, 1, 0);
    case LOSE_WAY: return two_hosts_drop_route(t, 1);
    case SWALLOW: return atomic_store(&t->wire->swallows, 3), 1;
    case SWALLOW_OTHER:
        return atomic_store(&t->wire->swallows, 1 + (int)(s->seed % 2)), 1;
    default: return two_hosts_stop_relay(t), 1;
    }
}

static void repair_link(link_fault_case *s)
{
    for (int host = 0; s->how <= CUT_THERE && host < 2; host++)
        two_hosts_set_link(&s->hosts, host, 1);
    if (s->hosts.wire != NULL)
        atomic_store(&s->hosts.wire->swallows, 0);
    shared_flag_raise(&s->healed);
}

/* ---- what must have been seen -------------------------------------------- */

static void check_side(test_job *c, const link_fault_case *s, int rank,
                       int *first)
{
    const oar_error *e = &s->record[rank], *one;
    int side = host_of(s, rank);

    if (first[side] < 0)
        first[side] = rank;
    one = &s->record[first[side]];
    if (e->status != OAR_E_PEER)
        test_job_give_up(c, "rank %d got %s: %s", rank,
                         oar_status_name(e->status), e->text);
    if (e->peer < 0 || host_of(s, e->peer) == host_of(s, e->rank))
        test_job_give_up(c, "rank %d heard from rank %d of rank %d: %s", rank,
                         e->rank, e->peer, e->text);
    if (e->rank != one->rank || e->peer != one->peer ||
        strcmp(e->site, one->site) != 0 || strcmp(e->text, one->text) != 0)
        test_job_give_up(
            c, "rank %d has \"%s\" of rank %d, rank %d \"%s\" of %d", rank,
            e->text, e->rank, first[side], one->text, one->rank);
}

/* ---- rows ---------------------------------------------------------------- */

/* The relay must have done what it is there for, or the row shows nothing. */
static void await_ranks(test_job *c, link_fault_case *s)
{
    const packet_relay *w = s->hosts.wire;

    for (int r = 0; r < s->ranks; r++)
        test_job_expect(c, r, 0);
    if (w != NULL && (w->passed == 0 || (w->lost_ppm != 0 && w->lost == 0)))
        test_job_give_up(c, "the relay passed %d packets and lost %d",
                         (int)w->passed, (int)w->lost);
    two_hosts_stop_relay(&s->hosts);
}

/* A rank that has ended without having been told has failed. */
static void await_reports(test_job *c, link_fault_case *s)
{
    int64_t deadline = oari_deadline(TEST_JOB_LIMIT_MS);
    int code;

    while (!shared_flag_await(&s->reported, (uint32_t)s->ranks, 20)) {
        for (int r = 0; r < s->ranks; r++)
            if ((code = test_job_wait(c, r, 0)) != TEST_JOB_LATE)
                test_job_give_up(c, "rank %d ended with %d", r, code);
        if (oari_now_ns() > deadline)
            test_job_give_up(c, "%d of %d ranks have reported",
                             (int)s->reported, s->ranks);
    }
}

static void cut(test_job *c, link_fault_case *s)
{
    int quiet = s->when == IDLE || s->when == FIRST, first[2] = { -1, -1 };
    struct timespec pause = { 0, (long)(s->seed % 20000000) };

    if (!shared_flag_await(&s->turns, quiet ? (uint32_t)s->ranks : TURNS,
                           TEST_JOB_LIMIT_MS))
        test_job_give_up(c, "the ranks do not work");
    nanosleep(&pause, NULL); /* anywhere in an operation */
    if (!apply_fault(s))
        test_job_give_up(c, "the wire cannot be cut");
    shared_flag_raise(&s->go);
    await_reports(c, s);
    repair_link(s);
    await_ranks(c, s);
    for (int r = 0; r < s->ranks; r++)
        check_side(c, s, r, first);
}

static link_fault_case *current_case; /* NULL: none */

/* Also after a failure. */
static int clear_case(void **state)
{
    if (current_case != NULL) {
        two_hosts_destroy(&current_case->hosts);
        shared_page_free(current_case, sizeof *current_case);
    }
    current_case = NULL;
    return 0;
}

static void run_row(int number)
{
    link_fault_case *s = current_case = shared_page(sizeof *s);
    const char *why;
    test_job c;

    make_case(s, number);
    why = two_hosts_create(&s->hosts, mishaps[s->how].relay);
    if (why != NULL) {
        print_message("skipped: %s\n", why);
        skip();
    }
    if (s->hosts.wire != NULL) {
        s->hosts.wire->seed = s->seed;
        atomic_store(&s->hosts.wire->delay_us, mishaps[s->how].delay_us);
        atomic_store(&s->hosts.wire->lost_ppm, mishaps[s->how].lost_ppm);
    }
    test_job_start(
        &c, s->ranks, ends_the_group(s->how) ? expect_cut : run_on_bad_link, s,
        "link %d (%s, %s, %d ranks), seed %llu", number, mishaps[s->how].name,
        moment_names[s->when], s->ranks, (unsigned long long)seed);
    if (ends_the_group(s->how))
        cut(&c, s);
    else
        await_ranks(&c, s);
    test_job_end(&c);
    clear_case(NULL);
}

/* ---- the tests ----------------------------------------------------------- */

static int wanted[ROWS], wanted_count;

static void run_rows(int failing)
{
    int64_t start = oari_now_ns();
    int run = 0;

    for (int i = 0; i < wanted_count; i++)
        if (ends_the_group((link_fault)(wanted[i] / SIZES / MOMENTS)) ==
            failing) {
            run_row(wanted[i]);
            run++;
        }
    print_message("%d links, seed %llu, %lld ms\n", run,
                  (unsigned long long)seed, (long long)ms_since(start));
}

static void everything_is_right_over_slow_and_lossy_links(void **state)
{
    run_rows(0);
}

static void each_side_of_a_cut_names_the_other(void **state)
{
    run_rows(1);
}

/* In the short form each mishap once, moment and size by the seed. */
static void choose_rows(int argc, char **argv)
{
    const char *given = getenv("OARSONG_TEST_SEED");
    const char *all = getenv("OARSONG_TEST_ALL");
    int everything = (all != NULL && strcmp(all, "1") == 0) ||
                     (argc == 2 && strcmp(argv[1], "all") == 0);

    if (given != NULL)
        seed = strtoull(given, NULL, 10);
    if (argc > 1 && !everything)
        for (int i = 1; i < argc && i < ROWS; i++)
            wanted[wanted_count++] = atoi(argv[i]) % ROWS;
    else if (everything)
        for (int i = 0; i < ROWS; i++) {
            if (is_a_row(i))
                wanted[wanted_count++] = i;
        }
    else
        for (int m = 0; m < MISHAPS; m++)
            wanted[wanted_count++] =
                (m * MOMENTS + (ends_the_group((link_fault)m)
                                    ? (int)(m + seed) % MOMENTS
                                    : WORKING)) *
                    SIZES +
                (int)(m + seed) % SIZES;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(everything_is_right_over_slow_and_lossy_links,
                                  clear_case),
        cmocka_unit_test_teardown(each_side_of_a_cut_names_the_other,
                                  clear_case),
    };

    choose_rows(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
