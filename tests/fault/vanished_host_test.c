/* SPDX-License-Identifier: Apache-2.0 */
/* A host that vanishes, and a process that only does not read: two network
 * namespaces, a rank in each, and a link that drops everything without notice.
 * Needs root and ip(8). */
#include "support/two_hosts.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/p2p.h>

#include "base/clock.h"
#include "net/secret.h"
#include "support/last_error.h"

enum {
    LEASE_MS = 2000,
    BEYOND_MS = 3000, /* the most that it may take longer */
    LONGER_LEASE_MS = 2700,
    OUTAGE_MS = 1600, /* much shorter than that, but until after it the kernel
                         does not ask again */
    TIMEOUT_MS = 60000,
    LARGE = 24 << 20
};

typedef struct lease_context {
    two_hosts hosts;
    shared_flag joined;  /* by ranks */
    shared_flag rounds;  /* of rank 0 */
    shared_flag stopped; /* rank 1 is, or was */
    shared_flag healed;  /* the wire is */
    _Atomic int64_t cut_ns, outage_ms;
} lease_context;

static int join(test_job *c, int rank, lease_context *s, oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();
    char x = 1;

    o.backend = "tcp";
    o.timeout_ms = TIMEOUT_MS;
    RANK_CHECK(two_hosts_enter(&s->hosts, rank));
    RANK_CHECK(test_job_join(c, rank, &o, g) == OAR_OK);
    RANK_CHECK(oar_all_reduce(*g, oar_span_of(&x, 1, OAR_U8), OAR_SUM, NULL,
                              NULL) == OAR_OK);
    RANK_CHECK(x == 2);
    shared_flag_raise(&s->joined);
    return 0;
}

/* The wire is cut while this goes on: it ends in time, and says so. */
static int has_been_told(test_job *c, int rank, lease_context *s,
                         oar_status status)
{
    int64_t took;

    RANK_CHECK(atomic_load(&s->cut_ns) != 0);
    took = ms_since(atomic_load(&s->cut_ns));
    RANK_CHECK(status == OAR_E_PEER);
    RANK_CHECK(strstr(oar_last_error_text(), "cannot be reached any more") !=
               NULL);
    RANK_CHECK(oar_last_error()->peer == 1 - rank);
    printf("    rank %d: after %d ms\n", rank, (int)took);
    RANK_CHECK(took < LEASE_MS + busy_ms(BEYOND_MS));
    return 0;
}

/* ---- what goes on -------------------------------------------------------- */

static int pass_large(test_job *c, int rank, void *arg)
{
    lease_context *s = arg;
    unsigned char *data = calloc(1, LARGE);
    oar_span span = oar_span_of(data, LARGE, OAR_U8);
    oar_status status = OAR_OK;
    oar_group *g;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    while (status == OAR_OK) {
        status = rank == 0 ? oar_send(g, span, 1, 5, NULL, NULL)
                           : oar_recv(g, span, 0, 5, NULL, NULL);
        if (rank == 0)
            shared_flag_raise(&s->rounds);
    }
    RANK_CHECK(has_been_told(c, rank, s, status) == 0);
    oar_group_destroy(g);
    free(data);
    return 0;
}

static int wait_for_each_other(test_job *c, int rank, void *arg)
{
    lease_context *s = arg;
    oar_group *g;
    char x;
    oar_status status;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    shared_flag_raise(&s->rounds);
    shared_flag_raise(&s->rounds);
    status = oar_recv(g, oar_span_of(&x, 1, OAR_U8), 1 - rank, 5, NULL, NULL);
    RANK_CHECK(has_been_told(c, rank, s, status) == 0);
    oar_group_destroy(g);
    return 0;
}

/* Rank 1 is stopped for longer than the lease; rank 0's data waits for it. */
static int outlast_a_stop(test_job *c, int rank, void *arg)
{
    lease_context *s = arg;
    unsigned char *data = calloc(1, LARGE);
    oar_span span = oar_span_of(data, LARGE, OAR_U8);
    oar_group *g;

    RANK_CHECK(join(c, rank, s, &g) == 0);
    data[LARGE - 1] = (unsigned char)(7 * (1 - rank));
    if (rank == 1) {
        shared_flag_raise(&s->rounds);
        shared_flag_raise(&s->rounds);
    } else
        JOB_CHECK(c, 0, shared_flag_await(&s->stopped, 1, TEST_JOB_LIMIT_MS));
    RANK_CHECK((rank == 0 ? oar_send(g, span, 1, 5, NULL, NULL)
                          : oar_recv(g, span, 0, 5, NULL, NULL)) == OAR_OK);
    RANK_CHECK(data[LARGE - 1] == 7);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    oar_group_destroy(g);
    free(data);
    return 0;
}

/* ---- the tests ----------------------------------------------------------- */

static lease_context *make_context(void)
{
    lease_context *s = shared_page(sizeof *s);
    const char *why = two_hosts_create(&s->hosts, 0);

    if (why != NULL) {
        print_message("skipped: %s\n", why);
        shared_page_free(s, sizeof *s);
        skip();
    }
    return s;
}

static void apply_fault(lease_context *s)
{
    two_hosts_destroy(&s->hosts);
    shared_page_free(s, sizeof *s);
}

/* The wire works again before the lease has ended, as measured: on a machine
 * that is too busy it may not. */
static int outlast_an_outage(test_job *c, int rank, void *arg)
{
    lease_context *s = arg;
    unsigned char *data = calloc(1, LARGE);
    oar_span span = oar_span_of(data, LARGE, OAR_U8);
    oar_status status = OAR_OK;
    oar_group *g;

    setenv("OARSONG_TCP_LEASE_MS", "2700", 1);
    RANK_CHECK(join(c, rank, s, &g) == 0);
    while (status == OAR_OK && data[0] == 0) {
        data[0] = rank == 0 && atomic_load(&s->healed) != 0;
        status = rank == 0 ? oar_send(g, span, 1, 5, NULL, NULL)
                           : oar_recv(g, span, 0, 5, NULL, NULL);
        if (rank == 0)
            shared_flag_raise(&s->rounds);
    }
    RANK_CHECK(shared_flag_await(&s->healed, 1, TEST_JOB_LIMIT_MS));
    RANK_CHECK(status == OAR_OK || s->outage_ms >= LONGER_LEASE_MS);
    oar_group_destroy(g);
    free(data);
    return 0;
}

static void an_outage_shorter_than_the_lease_ends_nothing(void **state)
{
    const struct timespec pause = { OUTAGE_MS / 1000,
                                    OUTAGE_MS % 1000 * 1000000L };

    for (int host = 0; host < 2; host++) {
        lease_context *s = make_context();
        int64_t start;
        test_job c;

        test_job_start(&c, 2, outlast_an_outage, s, "an outage at host %d",
                       host);
        if (!shared_flag_await(&s->rounds, 2, TEST_JOB_LIMIT_MS))
            test_job_give_up(&c, "it does not begin");
        start = oari_now_ns();
        assert_true(two_hosts_set_link(&s->hosts, host, 0));
        nanosleep(&pause, NULL);
        assert_true(two_hosts_set_link(&s->hosts, host, 1));
        s->outage_ms = ms_since(start);
        shared_flag_raise(&s->healed);
        for (int r = 0; r < 2; r++)
            test_job_expect(&c, r, 0);
        test_job_end(&c);
        apply_fault(s);
    }
}

static void cut_while(test_job_fn fn, int host, const char *what)
{
    lease_context *s = make_context();
    test_job c;

    test_job_start(&c, 2, fn, s, "%s, cut at host %d", what, host);
    if (!shared_flag_await(&s->joined, 2, TEST_JOB_LIMIT_MS) ||
        !shared_flag_await(&s->rounds, 2, TEST_JOB_LIMIT_MS))
        test_job_give_up(&c, "it does not begin");
    atomic_store(&s->cut_ns, oari_now_ns());
    assert_true(two_hosts_set_link(&s->hosts, host, 0));
    for (int r = 0; r < 2; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    apply_fault(s);
}

static void a_host_that_vanishes_is_noticed_in_a_large_message(void **state)
{
    cut_while(pass_large, 0, "a large message");
    cut_while(pass_large, 1, "a large message");
}

static void a_host_that_vanishes_is_noticed_in_silence(void **state)
{
    cut_while(wait_for_each_other, 0, "silence");
    cut_while(wait_for_each_other, 1, "silence");
}

static void a_process_that_is_stopped_is_not_taken_for_it(void **state)
{
    lease_context *s = make_context();
    struct timespec pause = { 2 * LEASE_MS / 1000 + 1, 0 };
    test_job c;

    test_job_start(&c, 2, outlast_a_stop, s, "a stop");
    if (!shared_flag_await(&s->joined, 2, TEST_JOB_LIMIT_MS) ||
        !shared_flag_await(&s->rounds, 2, TEST_JOB_LIMIT_MS))
        test_job_give_up(&c, "it does not begin");
    kill(c.pid[1], SIGSTOP);
    assert_true(test_job_wait_stopped(&c, 1, TEST_JOB_LIMIT_MS));
    shared_flag_raise(&s->stopped);
    nanosleep(&pause, NULL); /* what is tested is that time does not matter */
    assert_int_equal(test_job_wait(&c, 0, 0), TEST_JOB_LATE);
    kill(c.pid[1], SIGCONT);
    for (int r = 0; r < 2; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    apply_fault(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_that_vanishes_is_noticed_in_a_large_message),
        cmocka_unit_test(a_host_that_vanishes_is_noticed_in_silence),
        cmocka_unit_test(a_process_that_is_stopped_is_not_taken_for_it),
        cmocka_unit_test(an_outage_shorter_than_the_lease_ends_nothing),
    };
    char text[OARI_SECRET_HEX];
    oari_secret secret;

    if (oari_secret_make(&secret) != OAR_OK)
        return 1;
    oari_secret_text(&secret, text);
    setenv("OARSONG_SECRET", text, 1);
    setenv("OARSONG_TCP_LEASE_MS", "2000", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
