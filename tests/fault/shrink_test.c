/* SPDX-License-Identifier: Apache-2.0 */
/* Survivors form a new group and go on, whichever ranks died, in whatever way,
 * and whatever else dies meanwhile. After every shrink they continue with a
 * loop of sums whose values are checked. */
#include "support/test_job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/engine/engine.h"
#include "comm/group/membership.h"

enum {
    TIMEOUT_MS = 30000, /* of operations: not what ends them */
    SHRINK_MS = 8000,
    QUICK_MS = 700, /* for a rank that is stopped */
    STEPS = 5,
    KILLED = 128 + SIGKILL
};

typedef struct rank_placement {
    const char *backend;
    int hosts; /* ranks are dealt to so many; 0: all on one */
} rank_placement;

static const rank_placement places[] = {
    { "shm", 0 },
    { "tcp", 0 },
    { "native", 2 },
    { "native", 3 },
};
enum { PLACES = sizeof places / sizeof *places };

typedef struct shrink_case {
    rank_placement place;
    int dies[TEST_JOB_RANKS]; /* the rank is killed in the loop */
    int dies_in_shrink;       /* this one, when it has voted; -1: none */
    int stops;                /* this one stops in the loop; -1: none */
    int again;                /* one more dies in the new group; -1: none */
    int expected;             /* ranks in the last group */
    shared_flag survivors;    /* that have got there */
    shared_flag stopped;
} shrink_case;

static oar_status join(test_job *c, int rank, const rank_placement *p,
                       oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();
    char host[16];

    if (p->hosts > 0) {
        snprintf(host, sizeof host, "%d", rank * p->hosts / c->ranks);
        setenv("OARSONG_HOST_ID", host, 1);
    }
    o.backend = p->backend;
    o.timeout_ms = TIMEOUT_MS;
    return test_job_join(c, rank, &o, g);
}

/* One step: the sum of what all ranks have, small and large. */
static oar_status sum_small_and_large(oar_group *g, int number)
{
    enum { COUNT = 10007 };
    static _Thread_local float x[COUNT];
    float sum = 0;
    oar_status status;

    for (int r = 0; r < oar_group_size(g); r++)
        sum += (float)(oar_group_to_world(g, r) + number);
    for (int i = 0; i < 2; i++) {
        size_t count = i == 0 ? 3 : COUNT;
        for (size_t k = 0; k < count; k++)
            x[k] = (float)(oar_group_to_world(g, oar_group_rank(g)) + number);
        status = oar_all_reduce(g, oar_span_of(x, count, OAR_F32), OAR_SUM,
                                NULL, NULL);
        if (status != OAR_OK)
            return status;
        for (size_t k = 0; k < count; k++)
            if (x[k] != sum)
                abort();
    }
    return OAR_OK;
}

static oar_status train(oar_group *g, int steps)
{
    oar_status status = OAR_OK;

    for (int i = 0; i < steps && status == OAR_OK; i++)
        status = sum_small_and_large(g, i);
    return status;
}

/* For a while, and then the victim dies; the others go on until they miss it,
 * some of them in the step before. */
static oar_status train_until_death(oar_group *g, int victim)
{
    oar_status status = train(g, STEPS);

    if (victim)
        raise(SIGKILL);
    return status == OAR_OK ? train(g, 1 << 20) : status;
}

static oar_status shrink(oar_group **g, int64_t timeout_ms)
{
    oar_shrink_opts o = oar_shrink_opts_init();
    oar_group *made = NULL;
    oar_status status;

    o.timeout_ms = timeout_ms;
    status = oar_group_shrink(*g, &o, &made);
    if (status != OAR_OK)
        return status;
    oar_group_destroy(*g);
    *g = made;
    return OAR_OK;
}

static int in_order(const oar_group *g, int rank)
{
    if (oar_group_to_world(g, oar_group_rank(g)) != rank)
        return 0;
    for (int r = 1; r < oar_group_size(g); r++)
        if (oar_group_to_world(g, r) <= oar_group_to_world(g, r - 1))
            return 0;
    return 1;
}

/* ---- deaths -------------------------------------------------------------- */

/* Dies when its vote is out. */
static int vote_and_die(oar_group *g)
{
    oari_ballot note = { .call = 1, .phase = OARI_PHASE_VOTE };

    oari_engine_hold(g);
    if (g->in_tree->show != NULL)
        g->in_tree->show(g->self, OARI_FACT_BALLOT, &note);
    else
        oari_bulletin_write(oari_board_bulletin(g->board, g->board->rank),
                            OARI_FACT_BALLOT, &note);
    for (int i = 0; i < 50 && g->backend->progress != NULL; i++) {
        g->backend->progress(g->self);
        usleep(1000);
    }
    raise(SIGKILL);
    return 1;
}

static int be_survivor(test_job *c, int rank, oar_group **g, shrink_case *p)
{
    RANK_CHECK(train_until_death(*g, p->dies[rank]) == OAR_E_PEER);
    if (rank == p->dies_in_shrink)
        return vote_and_die(*g);
    RANK_CHECK(shrink(g, SHRINK_MS) == OAR_OK);
    if (p->again < 0)
        return 0;
    RANK_CHECK(train_until_death(*g, rank == p->again) == OAR_E_PEER);
    RANK_CHECK(shrink(g, SHRINK_MS) == OAR_OK);
    return 0;
}

static int run_case(test_job *c, int rank, void *arg)
{
    shrink_case *p = arg;
    oar_group *g, *copy;

    RANK_CHECK(join(c, rank, &p->place, &g) == OAR_OK);
    if (be_survivor(c, rank, &g, p) != 0)
        return 1;
    RANK_CHECK(oar_group_size(g) == p->expected);
    RANK_CHECK(in_order(g, rank));
    RANK_CHECK(train(g, STEPS) == OAR_OK);
    RANK_CHECK(oar_group_dup(g, &copy) == OAR_OK);
    RANK_CHECK(train(copy, STEPS) == OAR_OK);
    shared_flag_raise(&p->survivors); /* no rank leaves before all are here */
    RANK_CHECK(shared_flag_await(&p->survivors, (uint32_t)p->expected,
                                 TEST_JOB_LIMIT_MS));
    oar_group_destroy(copy);
    oar_group_destroy(g);
    return 0;
}

static void run_shrink_case(shrink_case plan, int ranks, const char *what)
{
    shrink_case *p = shared_page(sizeof *p);
    test_job c;

    *p = plan;
    p->expected = ranks - (p->dies_in_shrink >= 0) - (p->again >= 0);
    for (int r = 0; r < ranks; r++)
        p->expected -= p->dies[r];
    test_job_start(&c, ranks, run_case, p, "%s over %s, %d hosts", what,
                   p->place.backend, p->place.hosts);
    for (int r = 0; r < ranks; r++)
        test_job_expect(
            &c, r,
            p->dies[r] || r == p->dies_in_shrink || r == p->again ? KILLED : 0);
    test_job_end(&c);
    shared_page_free(p, sizeof *p);
}

static shrink_case nobody(int i)
{
    return (shrink_case){
        .place = places[i], .dies_in_shrink = -1, .stops = -1, .again = -1
    };
}

static void one_of_four_dies_and_three_go_on(void **state)
{
    for (int i = 0; i < PLACES; i++) {
        shrink_case p = nobody(i);
        p.dies[2] = 1;
        run_shrink_case(p, 4, "1 of 4");
    }
}

static void two_of_five_die_and_three_go_on(void **state)
{
    for (int i = 0; i < PLACES; i++) {
        shrink_case p = nobody(i);
        p.dies[1] = p.dies[4] = 1;
        run_shrink_case(p, 5, "2 of 5");
    }
}

static void rank_0_dies_and_the_others_go_on(void **state)
{
    for (int i = 0; i < PLACES; i++) {
        shrink_case p = nobody(i);
        p.dies[0] = 1;
        run_shrink_case(p, 4, "rank 0");
    }
}

static void one_dies_in_the_shrink_itself(void **state)
{
    for (int i = 0; i < PLACES; i++) {
        shrink_case p = nobody(i);
        p.dies[3] = 1;
        p.dies_in_shrink = 0;
        run_shrink_case(p, 5, "death in a shrink");
    }
}

static void a_shrunk_group_shrinks_again(void **state)
{
    for (int i = 0; i < PLACES; i++) {
        shrink_case p = nobody(i);
        p.dies[0] = 1;
        p.again = 1;
        run_shrink_case(p, 5, "twice");
    }
}

/* ---- one that is stopped ------------------------------------------------- */

/* The others go on without it; when it wakes up it is outside, and says so. */
static int run_stopped(test_job *c, int rank, void *arg)
{
    shrink_case *p = arg;
    float x[3] = { 1, 2, 3 };
    oar_span s = oar_span_of(x, 3, OAR_F32);
    oar_group *g, *old;

    RANK_CHECK(join(c, rank, &p->place, &g) == OAR_OK);
    RANK_CHECK(train(g, STEPS) == OAR_OK);
    old = g;
    if (rank == p->stops) {
        raise(SIGSTOP);
        RANK_CHECK(shrink(&g, QUICK_MS) != OAR_OK);
        RANK_CHECK(g == old);
        RANK_CHECK(oar_all_reduce(g, s, OAR_SUM, NULL, NULL) == OAR_E_PEER);
        oar_group_destroy(g);
        return 0;
    }
    RANK_CHECK(shared_flag_await(&p->stopped, 1, TEST_JOB_LIMIT_MS));
    RANK_CHECK(shrink(&g, QUICK_MS) == OAR_OK);
    RANK_CHECK(oar_group_size(g) == c->ranks - 1);
    RANK_CHECK(oar_group_from_world(g, p->stops) == -1);
    RANK_CHECK(train(g, STEPS) == OAR_OK);
    shared_flag_raise(&p->survivors);
    RANK_CHECK(shared_flag_await(&p->survivors, 4, TEST_JOB_LIMIT_MS));
    RANK_CHECK(train(g, STEPS) == OAR_OK);
    oar_group_destroy(g);
    return 0;
}

static void run_stopped_case(int i, int stops)
{
    shrink_case *p = shared_page(sizeof *p);
    test_job c;

    *p = nobody(i);
    p->stops = stops;
    test_job_start(&c, 4, run_stopped, p, "rank %d stops over %s, %d hosts",
                   stops, p->place.backend, p->place.hosts);
    if (!test_job_wait_stopped(&c, stops, TEST_JOB_LIMIT_MS))
        test_job_give_up(&c, "rank %d did not stop", stops);
    shared_flag_raise(&p->stopped);
    if (!shared_flag_await(&p->survivors, 3, TEST_JOB_LIMIT_MS))
        test_job_give_up(&c, "the others did not go on");
    kill(c.pid[stops], SIGCONT);
    test_job_expect(&c, stops, 0);
    shared_flag_raise(&p->survivors);
    for (int r = 0; r < 4; r++)
        if (r != stops)
            test_job_expect(&c, r, 0);
    test_job_end(&c);
    shared_page_free(p, sizeof *p);
}

static void a_stopped_rank_is_left_out_and_finds_itself_outside(void **state)
{
    for (int i = 0; i < PLACES; i++)
        run_stopped_case(i, i % 2 == 0 ? 0 : 2);
}

/* ---- groups that are whole, and parts of groups -------------------------- */

/* Like dup: the old group works on. Then in halves: one rank of the upper half
 * dies; that half shrinks, and the lower one is not disturbed. */
static int run_parts(test_job *c, int rank, void *arg)
{
    shrink_case *p = arg;
    oar_group *g, *whole = NULL, *half;
    int upper = rank >= 3;

    RANK_CHECK(join(c, rank, &p->place, &g) == OAR_OK);
    for (int i = 0; i < 2; i++) {
        RANK_CHECK(oar_group_shrink(g, NULL, &whole) == OAR_OK);
        RANK_CHECK(oar_group_size(whole) == c->ranks);
        RANK_CHECK(train(whole, STEPS) == OAR_OK);
        RANK_CHECK(train(g, STEPS) == OAR_OK);
        if (i == 0)
            oar_group_destroy(whole);
    }
    RANK_CHECK(oar_group_split(whole, upper, 0, &half) == OAR_OK);
    if (upper) {
        RANK_CHECK(train_until_death(half, rank == 4) == OAR_E_PEER);
        RANK_CHECK(shrink(&half, SHRINK_MS) == OAR_OK);
        RANK_CHECK(oar_group_to_world(half, 1) == 5);
    }
    RANK_CHECK(oar_group_size(half) == (upper ? 2 : 3));
    RANK_CHECK(train(half, STEPS) == OAR_OK);
    shared_flag_raise(&p->survivors);
    RANK_CHECK(shared_flag_await(&p->survivors, 5, TEST_JOB_LIMIT_MS));
    oar_group_destroy(half);
    oar_group_destroy(whole);
    oar_group_destroy(g);
    return 0;
}

static void a_whole_group_is_copied_and_a_part_shrinks_alone(void **state)
{
    for (int i = 0; i < PLACES; i++) {
        shrink_case *p = shared_page(sizeof *p);
        test_job c;

        *p = nobody(i);
        test_job_start(&c, 6, run_parts, p, "parts over %s, %d hosts",
                       p->place.backend, p->place.hosts);
        for (int r = 0; r < 6; r++)
            test_job_expect(&c, r, r == 4 ? KILLED : 0);
        test_job_end(&c);
        shared_page_free(p, sizeof *p);
    }
}

/* ---- without a store ----------------------------------------------------- */

enum { SERVER = 4 };

typedef struct store_outage {
    rank_placement place;
    char address[80];
    shared_flag served, met, gone, survivors;
} store_outage;

static int be_server(test_job *c, store_outage *o)
{
    oar_store_server *server;

    JOB_CHECK(c, SERVER, oar_store_serve("127.0.0.1:0", &server) == OAR_OK);
    snprintf(o->address, sizeof o->address, "%s",
             oar_store_server_address(server));
    shared_flag_raise(&o->served);
    pause();
    return 1;
}

static oar_status join_served(int rank, const store_outage *o, oar_group **g)
{
    oar_group_opts opts = oar_group_opts_init();
    oar_store *store;
    oar_status status;
    char host[16];

    snprintf(host, sizeof host, "%d", o->place.hosts * rank / SERVER);
    if (o->place.hosts > 0)
        setenv("OARSONG_HOST_ID", host, 1);
    opts.backend = o->place.backend;
    opts.timeout_ms = TIMEOUT_MS;
    status = oar_store_create_tcp(o->address, TIMEOUT_MS, &store);
    if (status == OAR_OK)
        status = oar_group_create(store, rank, SERVER, &opts, g);
    if (status == OAR_OK)
        oar_store_destroy(store);
    return status;
}

/* The store's process is killed, which no rank notices. Then rank 0 is, too. */
static int run_outage(test_job *c, int rank, void *arg)
{
    store_outage *o = arg;
    oar_group *g;
    int64_t start;

    if (rank == SERVER)
        return be_server(c, o);
    RANK_CHECK(shared_flag_await(&o->served, 1, TEST_JOB_LIMIT_MS));
    RANK_CHECK(join_served(rank, o, &g) == OAR_OK);
    shared_flag_raise(&o->met);
    RANK_CHECK(shared_flag_await(&o->gone, 1, TEST_JOB_LIMIT_MS));
    RANK_CHECK(train_until_death(g, rank == 0) == OAR_E_PEER);
    RANK_CHECK(oar_last_error()->peer == 0);
    RANK_CHECK(shrink(&g, SHRINK_MS) == OAR_OK);
    RANK_CHECK(train(g, STEPS) == OAR_OK);
    shared_flag_raise(&o->survivors);
    RANK_CHECK(shared_flag_await(&o->survivors, 3, TEST_JOB_LIMIT_MS));
    start = oari_now_ns();
    oar_group_destroy(g);
    RANK_CHECK(is_in_time(start, 2000));
    return 0;
}

static void neither_the_store_nor_rank_0_has_to_live(void **state)
{
    for (int i = 0; i < PLACES - 1; i++) {
        store_outage *o = shared_page(sizeof *o);
        test_job c;

        o->place = places[i];
        test_job_start(&c, SERVER + 1, run_outage, o,
                       "no store over %s, %d hosts", o->place.backend,
                       o->place.hosts);
        if (!shared_flag_await(&o->met, SERVER, TEST_JOB_LIMIT_MS))
            test_job_give_up(&c, "they have not met");
        kill(c.pid[SERVER], SIGKILL);
        test_job_expect(&c, SERVER, KILLED);
        shared_flag_raise(&o->gone);
        for (int r = 0; r < SERVER; r++)
            test_job_expect(&c, r, r == 0 ? KILLED : 0);
        test_job_end(&c);
        shared_page_free(o, sizeof *o);
    }
}

/* ---- too few ------------------------------------------------------------- */

/* Ranks 0 and 1 die: half is left, without rank 0. */
static int run_few(test_job *c, int rank, void *arg)
{
    shrink_case *p = arg;
    oar_group *g;

    RANK_CHECK(join(c, rank, &p->place, &g) == OAR_OK);
    RANK_CHECK(train_until_death(g, rank < 2) == OAR_E_PEER);
    RANK_CHECK(shrink(&g, SHRINK_MS) == OAR_E_WORLD);
    RANK_CHECK(strstr(oar_last_error_text(), "OARSONG_SHRINK") != NULL);
    shared_flag_raise(&p->survivors);
    RANK_CHECK(shared_flag_await(&p->survivors, 2, TEST_JOB_LIMIT_MS));
    setenv("OARSONG_SHRINK", "some", 1);
    RANK_CHECK(shrink(&g, SHRINK_MS) == OAR_E_ARG);
    setenv("OARSONG_SHRINK", "any", 1);
    RANK_CHECK(shrink(&g, SHRINK_MS) == OAR_OK);
    RANK_CHECK(oar_group_size(g) == 2 && oar_group_to_world(g, 0) == 2);
    RANK_CHECK(train(g, STEPS) == OAR_OK);
    oar_group_destroy(g);
    return 0;
}

static void a_minority_goes_on_only_if_it_is_allowed_to(void **state)
{
    for (int i = 0; i < PLACES; i++) {
        shrink_case *p = shared_page(sizeof *p);
        test_job c;

        *p = nobody(i);
        test_job_start(&c, 4, run_few, p, "a minority over %s, %d hosts",
                       p->place.backend, p->place.hosts);
        for (int r = 0; r < 4; r++)
            test_job_expect(&c, r, r < 2 ? KILLED : 0);
        test_job_end(&c);
        shared_page_free(p, sizeof *p);
    }
}

/* ---- ranks as threads ---------------------------------------------------- */

static oar_status sim_survive(oar_group *g, oar_group **left)
{
    oar_shrink_opts o = oar_shrink_opts_init();

    CHECK(train(g, 1 << 20) == OAR_E_PEER);
    o.timeout_ms = SHRINK_MS;
    CHECK_OK(oar_group_shrink(g, &o, left));
    CHECK(oar_group_size(*left) == oar_group_size(g) - 1);
    return OAR_OK;
}

/* Rank 0 leaves, and then the lowest of those that are left. */
static oar_status run_sim(oar_group *g, void *arg)
{
    oar_group *first, *second;
    int rank = oar_group_rank(g);

    if (rank == 0)
        return train(g, STEPS);
    CHECK_OK(sim_survive(g, &first));
    CHECK(in_order(first, rank));
    if (rank == 1) {
        CHECK_OK(train(first, STEPS));
        oar_group_destroy(first);
        return OAR_OK;
    }
    CHECK_OK(sim_survive(first, &second));
    CHECK(oar_group_size(second) == 3 && in_order(second, rank));
    CHECK_OK(train(second, STEPS));
    oar_group_destroy(first);
    oar_group_destroy(second);
    return OAR_OK;
}

static void threads_shrink_twice(void **state)
{
    for (int i = 0; i < 20; i++)
        if (oar_sim_run(5, run_sim, NULL) != OAR_OK)
            fail_msg("time %d: %s", i, oar_last_error_text());
}

static oar_status run_alone(oar_group *g, void *arg)
{
    oar_group *same;

    CHECK(oar_group_shrink(NULL, NULL, &same) == OAR_E_ARG);
    CHECK(oar_group_shrink(g, NULL, NULL) == OAR_E_ARG);
    CHECK_OK(oar_batch_begin(g));
    CHECK(oar_group_shrink(g, NULL, &same) == OAR_E_STATE);
    CHECK_OK(oar_batch_end(g, NULL));
    CHECK_OK(oar_group_shrink(g, NULL, &same));
    CHECK(oar_group_size(same) == oar_group_size(g));
    CHECK_OK(train(same, STEPS));
    CHECK_OK(train(g, STEPS));
    oar_group_destroy(same);
    return OAR_OK;
}

static void a_group_of_any_size_can_be_shrunk(void **state)
{
    for (int n = 1; n <= 3; n++)
        assert_int_equal(oar_sim_run(n, run_alone, NULL), OAR_OK);
}

/* An argument is a pattern: only the tests that fit it are run. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_of_four_dies_and_three_go_on),
        cmocka_unit_test(two_of_five_die_and_three_go_on),
        cmocka_unit_test(rank_0_dies_and_the_others_go_on),
        cmocka_unit_test(one_dies_in_the_shrink_itself),
        cmocka_unit_test(a_shrunk_group_shrinks_again),
        cmocka_unit_test(a_stopped_rank_is_left_out_and_finds_itself_outside),
        cmocka_unit_test(a_whole_group_is_copied_and_a_part_shrinks_alone),
        cmocka_unit_test(neither_the_store_nor_rank_0_has_to_live),
        cmocka_unit_test(a_minority_goes_on_only_if_it_is_allowed_to),
        cmocka_unit_test(threads_shrink_twice),
        cmocka_unit_test(a_group_of_any_size_can_be_shrunk),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
