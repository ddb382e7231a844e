/* SPDX-License-Identifier: Apache-2.0 */
/* Death, abort and departure over TCP: which ranks learn of them, and how
 * soon. */
#include "support/test_job.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/p2p.h>

#include "base/clock.h"
#include "support/leak_check.h"

enum { SOON_MS = 3000, LARGE = 64 << 20 };

/* The links: all by TCP, or two hosts of which each shares memory. */
static const struct {
    const char *backend, *wire; /* wire: OARSONG_WIRE; NULL: no secret either */
} kinds[] = {
    { "tcp", NULL },
    { "native", "auth" },
    { "tcp", "tls" },
    { "native", "tls" },
};
enum { KINDS = 4 };

static void set_wire(const char *wire)
{
    if (wire == NULL) {
        unsetenv("OARSONG_WIRE");
        unsetenv("OARSONG_SECRET");
        return;
    }
    setenv("OARSONG_WIRE", wire, 1);
    setenv("OARSONG_SECRET",
           "00112233445566778899aabbccddeeff"
           "ffeeddccbbaa99887766554433221100",
           1);
}

typedef struct tcp_fault_context {
    const char *backend;
    uint64_t seed;
    shared_flag flag[TEST_JOB_RANKS], joined;
} tcp_fault_context;

static oar_span bytes_at(void *data, size_t bytes)
{
    return oar_span_of(data, bytes, OAR_U8);
}

/* Ranks below half on one host, the others on another. All are there before
 * any of them dies, aborts or leaves. */
static int join(test_job *c, int rank, tcp_fault_context *s, oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();

    o.backend = s->backend;
    o.timeout_ms = 15000;
    setenv("OARSONG_HOST_ID", rank < (c->ranks + 1) / 2 ? "a" : "b", 1);
    RANK_CHECK(test_job_join(c, rank, &o, g) == OAR_OK);
    shared_flag_raise(&s->joined);
    RANK_CHECK(
        shared_flag_await(&s->joined, (uint32_t)c->ranks, TEST_JOB_LIMIT_MS));
    return 0;
}

static void run_scenario(int ranks, test_job_fn fn, int dies, uint64_t seed,
                         const char *what)
{
    for (int k = 0; k < KINDS; k++) {
        tcp_fault_context *s = shared_page(sizeof *s);
        test_job c;
        s->backend = kinds[k].backend;
        s->seed = seed;
        set_wire(kinds[k].wire);
        test_job_start(&c, ranks, fn, s, "%s over %s (%s), seed %d", what,
                       kinds[k].backend,
                       kinds[k].wire ? kinds[k].wire : "plain", (int)seed);
        for (int r = 0; r < ranks; r++)
            test_job_expect(&c, r, r == dies ? 128 + SIGKILL : 0);
        test_job_end(&c);
        shared_page_free(s, sizeof *s);
    }
}

/* ---- death --------------------------------------------------------------- */

/* Rank 0 waits for the dead; rank 1 for rank 0, and does not know the dead. */
static int wait_for_the_dead(test_job *c, int rank, void *arg)
{
    tcp_fault_context *s = arg;
    oar_group *g;
    char x = 0;
    int64_t since;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    if (rank == 2) {
        RANK_CHECK(oar_send(g, bytes_at(&x, 1), 0, 1, NULL, NULL) == OAR_OK);
        shared_flag_await(&s->flag[0], 1, TEST_JOB_LIMIT_MS);
        raise(SIGKILL);
    }
    if (rank == 0) {
        RANK_CHECK(oar_recv(g, bytes_at(&x, 1), 2, 1, NULL, NULL) == OAR_OK);
        shared_flag_raise(&s->flag[0]);
    }
    since = oari_now_ns();
    RANK_CHECK(oar_recv(g, bytes_at(&x, 1), rank == 0 ? 2 : 0, 1, NULL, NULL) ==
               OAR_E_PEER);
    RANK_CHECK(rank != 0 || is_in_time(since, SOON_MS));
    RANK_CHECK(oar_last_error()->peer == 2);
    RANK_CHECK(oar_last_error()->rank == 0);
    RANK_CHECK(strstr(oar_last_error_text(), "rank 2") != NULL);
    RANK_CHECK(strstr(oar_last_error_text(), "died") != NULL);
    oar_group_destroy(g);
    return 0;
}

static void
a_death_is_reported_by_ranks_that_wait_and_their_waiters(void **state)
{
    run_scenario(3, wait_for_the_dead, 2, 0, "waiting for the dead");
}

/* The dead one was never connected to. */
static int wait_for_an_unconnected_rank(test_job *c, int rank, void *arg)
{
    tcp_fault_context *s = arg;
    oar_group *g;
    char x = 0;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    shared_flag_raise(&s->flag[0]);
    if (rank == 1) {
        shared_flag_await(&s->flag[0], 2, TEST_JOB_LIMIT_MS);
        raise(SIGKILL);
    }
    RANK_CHECK(oar_recv(g, bytes_at(&x, 1), 1, 1, NULL, NULL) == OAR_E_PEER);
    RANK_CHECK(oar_last_error()->peer == 1);
    oar_group_destroy(g);
    return 0;
}

static void the_death_of_a_rank_without_connections_is_noticed(void **state)
{
    run_scenario(2, wait_for_an_unconnected_rank, 1, 0,
                 "waiting for an unconnected rank");
}

static int sum_until_one_dies(test_job *c, int rank, void *arg)
{
    tcp_fault_context *s = arg;
    static float x[100000];
    uint64_t seed = s->seed;
    int last = (int)(next_random(&seed) % 40);
    size_t count = next_random(&seed) % 2 ? 100000 : 17;
    oar_status status = OAR_OK;
    oar_group *g;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    for (int i = 0; status == OAR_OK; i++) {
        if (rank == 1 && i == last)
            raise(SIGKILL);
        status = oar_all_reduce(g, oar_span_of(x, count, OAR_F32), OAR_SUM,
                                NULL, NULL);
    }
    RANK_CHECK(status == OAR_E_PEER);
    RANK_CHECK(oar_last_error()->peer == 1);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_E_PEER);
    oar_group_destroy(g);
    return 0;
}

static void a_death_between_sums_is_reported_by_all_survivors(void **state)
{
    for (uint64_t seed = 1; seed <= 10; seed++)
        run_scenario(4, sum_until_one_dies, 1, seed, "sums");
}

/* What it had sent counts. */
static int send_and_die(test_job *c, int rank, void *arg)
{
    tcp_fault_context *s = arg;
    oar_group *g;
    int x = 0;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    if (rank == 1) {
        for (int i = 0; i < 100; i++)
            RANK_CHECK(oar_send(g, bytes_at(&i, sizeof i), 0, 1, NULL, NULL) ==
                       OAR_OK);
        shared_flag_await(&s->flag[0], 1, TEST_JOB_LIMIT_MS);
        raise(SIGKILL);
    }
    JOB_CHECK(c, 0,
              oar_recv(g, bytes_at(&x, sizeof x), 1, 1, NULL, NULL) == OAR_OK);
    shared_flag_raise(&s->flag[0]);
    for (int i = 1; i < 100; i++) {
        JOB_CHECK(c, 0,
                  oar_recv(g, bytes_at(&x, sizeof x), 1, 1, NULL, NULL) ==
                      OAR_OK);
        JOB_CHECK(c, 0, x == i);
    }
    JOB_CHECK(c, 0,
              oar_recv(g, bytes_at(&x, sizeof x), 1, 1, NULL, NULL) ==
                  OAR_E_PEER);
    oar_group_destroy(g);
    return 0;
}

static void what_was_sent_before_a_death_arrives(void **state)
{
    run_scenario(2, send_and_die, 1, 0, "sent before");
}

/* ---- departure ----------------------------------------------------------- */

static int leave_early(test_job *c, int rank, void *arg)
{
    tcp_fault_context *s = arg;
    oar_group *g;
    char x = 0;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    if (rank == 0) {
        JOB_CHECK(c, 0,
                  oar_recv(g, bytes_at(&x, 1), 1, 1, NULL, NULL) == OAR_E_PEER);
        JOB_CHECK(c, 0, strstr(oar_last_error_text(), "has left") != NULL);
    }
    oar_group_destroy(g);
    return 0;
}

static void a_rank_that_leaves_is_not_reported_as_dead(void **state)
{
    run_scenario(2, leave_early, -1, 0, "leaving");
}

/* ---- abort --------------------------------------------------------------- */

static int abort_while_others_wait(test_job *c, int rank, void *arg)
{
    tcp_fault_context *s = arg;
    oar_group *g;
    int64_t since;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    shared_flag_raise(&s->flag[1]);
    if (rank == 3) {
        shared_flag_await(&s->flag[1], 4, TEST_JOB_LIMIT_MS);
        RANK_CHECK(oar_group_abort(g, "enough of it") == OAR_OK);
        shared_flag_await(&s->flag[0], 3, TEST_JOB_LIMIT_MS);
    } else {
        since = oari_now_ns();
        RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_E_ABORTED);
        RANK_CHECK(is_in_time(since, SOON_MS));
        RANK_CHECK(strstr(oar_last_error_text(), "enough of it") != NULL);
        RANK_CHECK(oar_last_error()->rank == 3);
        shared_flag_raise(&s->flag[0]);
    }
    oar_group_destroy(g);
    return 0;
}

static void an_abort_is_reported_by_all_with_its_text(void **state)
{
    run_scenario(4, abort_while_others_wait, -1, 0, "abort");
}

/* No connection, and the one that aborted does nothing any more. */
static int abort_without_connections(test_job *c, int rank, void *arg)
{
    tcp_fault_context *s = arg;
    oar_group *g;
    char x = 0;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    if (rank == 0) {
        RANK_CHECK(oar_group_abort(g, "alone") == OAR_OK);
        shared_flag_raise(&s->flag[0]);
        shared_flag_await(&s->flag[1], 1, TEST_JOB_LIMIT_MS);
    } else {
        RANK_CHECK(shared_flag_await(&s->flag[0], 1, TEST_JOB_LIMIT_MS));
        RANK_CHECK(oar_recv(g, bytes_at(&x, 1), 0, 1, NULL, NULL) ==
                   OAR_E_ABORTED);
        RANK_CHECK(strstr(oar_last_error_text(), "alone") != NULL);
        shared_flag_raise(&s->flag[1]);
    }
    oar_group_destroy(g);
    return 0;
}

static void an_abort_reaches_ranks_without_a_connection(void **state)
{
    run_scenario(2, abort_without_connections, -1, 0,
                 "abort without connections");
}

/* In the middle of a large message, at any moment. */
static int abort_in_the_middle(test_job *c, int rank, void *arg)
{
    tcp_fault_context *s = arg;
    static unsigned char data[LARGE];
    uint64_t seed = s->seed;
    struct timespec pause = { 0, (long)(next_random(&seed) % 30000000) };
    oar_group *g;
    oar_work *work;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    if (rank == 0) {
        JOB_CHECK(c, 0,
                  oar_send(g, bytes_at(data, LARGE), 1, 1, NULL, &work) ==
                      OAR_OK);
        shared_flag_await(&s->flag[0], 1, TEST_JOB_LIMIT_MS);
        nanosleep(&pause, NULL);
        JOB_CHECK(c, 0, oar_group_abort(g, "half-way") == OAR_OK);
        oar_work_wait(work);
        shared_flag_await(&s->flag[1], 1, TEST_JOB_LIMIT_MS);
        oar_work_release(work);
    } else {
        shared_flag_raise(&s->flag[0]);
        if (oar_recv(g, bytes_at(data, LARGE), 0, 1, NULL, NULL) == OAR_OK)
            oar_recv(g, bytes_at(data, 1), 0, 1, NULL, NULL);
        JOB_CHECK(c, 1, oar_last_error()->status == OAR_E_ABORTED);
        JOB_CHECK(c, 1, strstr(oar_last_error_text(), "half-way") != NULL);
        shared_flag_raise(&s->flag[1]);
    }
    oar_group_destroy(g);
    return 0;
}

static void
an_abort_in_the_middle_of_a_message_is_reported_as_such(void **state)
{
    for (uint64_t seed = 1; seed <= 20; seed++)
        run_scenario(2, abort_in_the_middle, -1, seed, "abort half-way");
}

/* ---- deadlines ----------------------------------------------------------- */

static int wait_for_one_that_is_stopped(test_job *c, int rank, void *arg)
{
    tcp_fault_context *s = arg;
    oar_call_opts o = oar_call_opts_init();
    static unsigned char data[LARGE];
    oar_group *g;
    int64_t since;

    o.timeout_ms = 300;
    RANK_CHECK(join(c, rank, s, &g) == 0);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    if (rank == 1) {
        atomic_store(&s->flag[1], (uint32_t)getpid());
        shared_flag_raise(&s->flag[0]);
        shared_flag_await(&s->flag[2], 1, TEST_JOB_LIMIT_MS);
        oar_group_destroy(g);
        return 0;
    }
    JOB_CHECK(c, 0, shared_flag_await(&s->flag[0], 1, TEST_JOB_LIMIT_MS));
    kill((pid_t)atomic_load(&s->flag[1]), SIGSTOP);
    since = oari_now_ns();
    JOB_CHECK(c, 0,
              oar_send(g, bytes_at(data, LARGE), 1, 1, &o, NULL) ==
                  OAR_E_TIMEOUT);
    JOB_CHECK(c, 0, is_in_time(since, SOON_MS));
    JOB_CHECK(c, 0, oar_last_error()->peer == 1);
    oar_group_destroy(g); /* needs no other rank */
    JOB_CHECK(c, 0, is_in_time(since, 2 * SOON_MS));
    kill((pid_t)atomic_load(&s->flag[1]), SIGCONT);
    shared_flag_raise(&s->flag[2]);
    return 0;
}

static void a_stopped_peer_costs_no_more_than_the_deadline(void **state)
{
    run_scenario(2, wait_for_one_that_is_stopped, -1, 0, "stopped");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_death_is_reported_by_ranks_that_wait_and_their_waiters),
        cmocka_unit_test(the_death_of_a_rank_without_connections_is_noticed),
        cmocka_unit_test(a_death_between_sums_is_reported_by_all_survivors),
        cmocka_unit_test(what_was_sent_before_a_death_arrives),
        cmocka_unit_test(a_rank_that_leaves_is_not_reported_as_dead),
        cmocka_unit_test(an_abort_is_reported_by_all_with_its_text),
        cmocka_unit_test(an_abort_reaches_ranks_without_a_connection),
        cmocka_unit_test(
            an_abort_in_the_middle_of_a_message_is_reported_as_such),
        cmocka_unit_test(a_stopped_peer_costs_no_more_than_the_deadline),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
