/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that was killed and started again comes back to the agents of the
 * others: new calls work both ways, and what belonged to its earlier life stays
 * gone. */
#include "support/test_job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/rpc.h>
#include <oarsong/window.h>

#include "support/rpc_functions.h"

enum { RANKS = 3, VICTIM = 2, WAIT_MS = 15000, KILLED = 128 + SIGKILL };

typedef struct net_row {
    const char *backend;
    int hosts;
} net_row;

static const net_row transports[] = { { "shm", 1 },
                                      { "tcp", 1 },
                                      { "native", 2 } };

typedef struct rejoin {
    net_row by;
    int lives, both;      /* both: ranks 1 and 2 are killed */
    shared_flag ready;    /* the first lives have what they need */
    shared_flag dropped;  /* rank 0's value, that the victim held */
    shared_flag back;     /* lives of the victims that called the others */
    shared_flag seen;     /* of the victim, by the survivors */
    shared_flag executed; /* calls of "count" */
} rejoin;

static oar_rref *_Atomic kept; /* of this process */

static oar_status add_one(void *arg, oar_rpc_call *call)
{
    int64_t n;

    (void)arg;
    if (oar_rpc_get_i64(oar_rpc_args(call), &n) != OAR_OK)
        return OAR_E_DATA;
    return oar_rpc_put_i64(oar_rpc_reply(call), n + 1);
}

/* Replies whether the array that came is mapped: then it is read-only. */
static oar_status is_mapped(void *arg, oar_rpc_call *call)
{
    oar_span span;

    (void)arg;
    if (oar_rpc_get_span(oar_rpc_args(call), &span) != OAR_OK ||
        ((const float *)span.data)[1000] != 3)
        return OAR_E_DATA;
    return oar_rpc_put_i64(oar_rpc_reply(call), span.read_only);
}

static oar_status count(void *arg, oar_rpc_call *call)
{
    (void)call;
    shared_flag_raise(&((rejoin *)arg)->executed);
    return OAR_OK;
}

/* Runs until it is cancelled. */
static oar_status hang(void *arg, oar_rpc_call *call)
{
    (void)arg;
    while (!oar_rpc_cancelled(call))
        usleep(1000);
    return OAR_E_CANCELLED;
}

static oar_status keep_one(void *arg, oar_rpc_call *call)
{
    oar_rref *got = NULL;
    oar_status status = oar_rpc_get_rref(oar_rpc_args(call), &got);

    (void)arg;
    oar_rref_release(atomic_exchange(&kept, got));
    return status;
}

static void note_drop(void *value)
{
    shared_flag_raise(&((rejoin *)value)->dropped);
}

static oar_status open_rpc(test_job *c, int rank, rejoin *k, int again,
                           oar_store **store, oar_rpc **rpc)
{
    const oar_rpc_function functions[] = {
        { .size = sizeof *functions, .name = "add_one", .fn = add_one },
        { .size = sizeof *functions, .name = "count", .fn = count, .arg = k },
        { .size = sizeof *functions, .name = "hang", .fn = hang },
        { .size = sizeof *functions, .name = "keep_one", .fn = keep_one },
        { .size = sizeof *functions, .name = "is_mapped", .fn = is_mapped },
    };
    oar_group_opts o = { .size = sizeof o, .backend = k->by.backend };
    oar_rpc_opts opts = oar_rpc_opts_init();
    oar_group *group;
    oar_status status;
    char name[16];

    if (k->by.hosts > 1)
        setenv("OARSONG_HOST_ID", rank == VICTIM ? "far" : "near", 1);
    snprintf(name, sizeof name, "worker%d", rank);
    opts.functions = functions;
    opts.function_count = 5;
    opts.threads = 8; /* "hang" takes some */
    opts.rejoin = "test";
    opts.name = again && rank == 1 ? NULL : name;
    status = test_job_store(c, store);
    opts.store = *store;
    if (status != OAR_OK || again)
        return status != OAR_OK ? status : oar_rpc_rejoin(rank, &opts, rpc);
    status = test_job_join(c, rank, &o, &group);
    if (status == OAR_OK)
        status = oar_rpc_create(group, &opts, rpc);
    oar_group_destroy(group);
    return status;
}

static int close_rpc(test_job *c, int rank, oar_store *store, oar_rpc *rpc)
{
    oar_rref_release(atomic_exchange(&kept, NULL));
    RANK_OK(oar_rpc_shutdown(rpc, WAIT_MS));
    oar_rpc_destroy(rpc);
    oar_store_destroy(store);
    return 0;
}

static int is_victim(const rejoin *k, int rank)
{
    return rank == VICTIM || (k->both && rank == 1);
}

static oar_status give_ref(oar_rpc *rpc, oar_rref *rref, int to)
{
    oar_rpc_message *m;
    oar_status status = oar_rpc_message_create(&m);

    if (status == OAR_OK)
        status = oar_rpc_put_rref(m, rref);
    if (status == OAR_OK)
        status = oar_rpc_sync(rpc, to, "keep_one", m, NULL, NULL);
    return status;
}

/* The first life of a victim: its value is held by rank 0, it holds one of rank
 * 0, and it waits for a call of rank 0 and the other way. */
static int fall(test_job *c, int rank, rejoin *k, oar_rpc *rpc)
{
    oar_rref *own;

    RANK_OK(oar_rref_create(rpc, "value", k, NULL, &own));
    if (rank == VICTIM)
        RANK_OK(give_ref(rpc, own, 0));
    RANK_OK(oar_rpc_async(rpc, 0, "hang", NULL, NULL, NULL));
    shared_flag_raise(&k->ready);
    pause();
    return 1;
}

/* Sends an array in a window: a rank of this host maps it, another gets a copy.
 * A rank that has come back sends copies. */
static int lend(test_job *c, int rank, const rejoin *k, oar_rpc *rpc, int to)
{
    enum { COUNT = 4096 };
    oar_rpc_message *args, *reply = NULL;
    oar_window *window;
    float *numbers;
    int64_t n = -1;

    RANK_OK(oar_window_alloc(COUNT * sizeof(float), &window));
    numbers = oar_window_data(window);
    numbers[1000] = 3;
    RANK_OK(oar_rpc_message_create(&args));
    RANK_OK(oar_rpc_message_map(args, window));
    RANK_OK(oar_rpc_put_span(args, oar_span_of(numbers, COUNT, OAR_F32), NULL,
                             NULL));
    RANK_OK(oar_rpc_sync(rpc, to, "is_mapped", args, NULL, &reply));
    RANK_OK(oar_rpc_get_i64(reply, &n));
    RANK_CHECK(n == (k->by.hosts == 1 && !is_victim(k, rank)));
    oar_rpc_message_destroy(reply);
    oar_window_release(window);
    return 0;
}

/* What a rank does that has come back: calls all, is called, holds and owns. */
static int live_again(test_job *c, int rank, rejoin *k, int life)
{
    oar_store *store;
    oar_rref *own;
    oar_rpc *rpc;
    int64_t n;

    RANK_OK(open_rpc(c, rank, k, 1, &store, &rpc));
    RANK_CHECK(oar_rpc_incarnation(rpc, rank) == life);
    for (int to = 0; to < RANKS; to++) {
        if (is_victim(k, to))
            RANK_OK(oar_rpc_await(rpc, to, WAIT_MS));
        RANK_OK(rpc_number(rpc, to, "add_one", 41, &n));
        RANK_CHECK(n == 42 && oar_rpc_incarnation(rpc, to) >= 0);
        if (to != rank)
            RANK_CHECK(lend(c, rank, k, rpc, to) == 0);
    }
    RANK_OK(oar_rref_create(rpc, "value", k, NULL, &own));
    RANK_OK(give_ref(rpc, own, rank == VICTIM ? 1 : 2));
    oar_rref_release(own);
    RANK_OK(oar_rpc_async(rpc, 0, "hang", NULL, NULL, NULL));
    shared_flag_raise(&k->back);
    if (life < k->lives)
        pause();
    RANK_CHECK(shared_flag_await(
        &k->seen, (uint32_t)(k->both ? 1 : 2) * (uint32_t)life, WAIT_MS));
    /* the calls of "hang" are this rank's: they are cancelled by its end */
    RANK_CHECK(oar_rpc_shutdown(rpc, 100) == OAR_E_TIMEOUT);
    oar_rref_release(atomic_exchange(&kept, NULL));
    oar_rpc_destroy(rpc);
    oar_store_destroy(store);
    return 0;
}

/* Gives the victim a value of this rank, keeps one of it, and calls it. */
static int prepare(test_job *c, int rank, rejoin *k, oar_rpc *rpc,
                   oar_rref **broken, oar_future **hanging)
{
    oar_rref *own;

    RANK_CHECK(shared_flag_await(&k->ready, k->both ? 2 : 1, WAIT_MS));
    if (rank == 0) {
        RANK_OK(oar_rref_create(rpc, "value", k, note_drop, &own));
        RANK_OK(give_ref(rpc, own, VICTIM));
        oar_rref_release(own);
        *broken = atomic_exchange(&kept, NULL);
    }
    RANK_OK(oar_rpc_async(rpc, VICTIM, "hang", NULL, NULL, hanging));
    RANK_OK(oar_rpc_sync(rpc, VICTIM, "count", NULL, NULL, NULL));
    shared_flag_raise(&k->ready); /* one more for each survivor */
    return 0;
}

/* Meets one more life of the victim. */
static int meet(test_job *c, int rank, rejoin *k, oar_rpc *rpc, int life)
{
    int64_t n;

    while (oar_rpc_incarnation(rpc, VICTIM) < life) {
        RANK_OK(oar_rpc_await(rpc, VICTIM, WAIT_MS));
        usleep(1000);
    }
    RANK_CHECK(oar_rpc_incarnation(rpc, VICTIM) == life);
    RANK_CHECK(oar_rpc_find(rpc, "worker2") == VICTIM);
    for (int i = 0; i < 50; i++) {
        RANK_OK(rpc_number(rpc, VICTIM, "add_one", i, &n));
        RANK_CHECK(n == i + 1);
    }
    RANK_CHECK(lend(c, rank, k, rpc, VICTIM) == 0);
    RANK_OK(oar_rpc_sync(rpc, VICTIM, "count", NULL, NULL, NULL));
    RANK_CHECK(shared_flag_await(&k->back, (uint32_t)life, WAIT_MS));
    if (rank == 1) { /* it was given a value by each life */
        RANK_CHECK(oar_rref_owner(kept) == VICTIM);
        RANK_OK(give_ref(rpc, kept, 0));
    }
    shared_flag_raise(&k->seen);
    return 0;
}

static int run_rank(test_job *c, int rank, void *arg)
{
    rejoin *k = arg;
    oar_rref *broken = NULL;
    oar_future *hanging, *call;
    oar_store *store;
    oar_rpc *rpc;

    RANK_OK(open_rpc(c, rank, k, 0, &store, &rpc));
    if (is_victim(k, rank))
        return fall(c, rank, k, rpc);
    if (prepare(c, rank, k, rpc, &broken, &hanging) != 0)
        return 1;
    RANK_CHECK(oar_future_wait(hanging, NULL) == OAR_E_PEER);
    oar_future_release(hanging);
    for (int life = 1; life <= k->lives; life++)
        if (meet(c, rank, k, rpc, life) != 0)
            return 1;
    if (rank == 0) { /* what was of the first life is of no use in a later */
        RANK_CHECK(oar_rref_call(broken, "add_one", rpc_message_of(1), NULL,
                                 &call) == OAR_E_PEER);
        oar_rref_release(broken);
        RANK_CHECK(shared_flag_await(&k->dropped, 1, WAIT_MS));
    }
    return close_rpc(c, rank, store, rpc);
}

static int run_life_1(test_job *c, int rank, void *arg)
{
    return live_again(c, rank, arg, 1);
}

static int run_life_2(test_job *c, int rank, void *arg)
{
    return live_again(c, rank, arg, 2);
}

static void run_case(net_row by, int lives, int both)
{
    rejoin *k = shared_page(sizeof *k);
    int survivors = both ? 1 : 2;
    test_job c;

    k->by = by;
    k->lives = lives;
    k->both = both;
    test_job_start(&c, RANKS, run_rank, k, "%s, %d hosts, %d lives%s",
                   by.backend, by.hosts, lives, both ? ", two ranks" : "");
    assert_true(shared_flag_await(&k->ready, 3, WAIT_MS));
    for (int life = 1; life <= lives; life++) {
        assert_true(shared_flag_await(
            &k->seen, (uint32_t)(survivors * (life - 1)), WAIT_MS));
        for (int r = survivors; r < RANKS; r++)
            kill(c.pid[r], SIGKILL);
        for (int r = survivors; r < RANKS; r++)
            test_job_expect(&c, r, KILLED);
        for (int r = survivors; r < RANKS; r++)
            test_job_restart(&c, r, life == 1 ? run_life_1 : run_life_2, k);
    }
    for (int r = RANKS - 1; r >= 0; r--)
        test_job_expect(&c, r, 0);
    assert_int_equal(atomic_load(&k->executed),
                     (uint32_t)(survivors * (lives + 1)));
    test_job_end(&c);
    shared_page_free(k, sizeof *k);
}

static void a_rank_comes_back_twice(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof transports / sizeof *transports; t++)
        run_case(transports[t], 2, 0);
}

static void two_ranks_come_back_at_once(void **state)
{
    (void)state;
    run_case(transports[0], 1, 1);
}

static void who_cannot_come_back_is_told(void **state)
{
    oar_rpc_opts opts = oar_rpc_opts_init();
    oar_store *store;
    oar_rpc *rpc;

    (void)state;
    assert_int_equal(oar_store_create_memory(&store), OAR_OK);
    assert_int_equal(oar_rpc_rejoin(0, NULL, &rpc), OAR_E_ARG);
    assert_int_equal(oar_rpc_rejoin(0, &opts, &rpc), OAR_E_ARG);
    opts.rejoin = "nobody";
    opts.store = store;
    opts.timeout_ms = 10;
    assert_int_equal(oar_rpc_rejoin(0, &opts, &rpc), OAR_E_NOT_FOUND);
    assert_non_null(strstr(oar_last_error_text(), "\"nobody\""));
    opts.store = NULL;
    unsetenv("OARSONG_STORE");
    assert_int_equal(oar_rpc_rejoin(0, &opts, &rpc), OAR_E_UNAVAILABLE);
    assert_int_equal(oar_store_from_env(NULL), OAR_E_ARG);
    assert_int_equal(oar_rpc_incarnation(NULL, 0), -1);
    assert_int_equal(oar_rpc_await(NULL, 0, 1), OAR_E_ARG);
    oar_store_destroy(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_comes_back_twice),
        cmocka_unit_test(two_ranks_come_back_at_once),
        cmocka_unit_test(who_cannot_come_back_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
