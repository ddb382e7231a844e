/* SPDX-License-Identifier: Apache-2.0 */
/* A host that vanishes, and a process that only does not take anything: two
 * namespaces, a rank in each, and a wire that is cut without a word. Needs root
 * and ip(8). */
#include "support/town.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/p2p.h>

#include "base/clock.h"
#include "net/secret.h"
#include "support/says.h"

enum {
    LEASE_MS = 2000,
    BEYOND_MS = 3000, /* the most that it may take longer */
    OUTAGE_MS = 1600, /* shorter than the lease, but until after it the kernel
                         does not ask again */
    TIMEOUT_MS = 60000,
    LARGE = 24 << 20
};

typedef struct scene {
    town town;
    crew_flag joined;  /* by ranks */
    crew_flag rounds;  /* of rank 0 */
    crew_flag stopped; /* rank 1 is, or was */
    crew_flag healed;  /* the wire is */
    _Atomic int64_t cut_ns, outage_ms;
} scene;

static int join(crew *c, int rank, scene *s, oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();
    char x = 1;

    o.backend = "tcp";
    o.timeout_ms = TIMEOUT_MS;
    CREW_CHECK(c, rank, town_move(&s->town, rank));
    CREW_CHECK(c, rank, crew_join(c, rank, &o, g) == OAR_OK);
    CREW_CHECK(c, rank,
               oar_all_reduce(*g, oar_span_of(&x, 1, OAR_U8), OAR_SUM, NULL,
                              NULL) == OAR_OK);
    CREW_CHECK(c, rank, x == 2);
    crew_raise(&s->joined);
    return 0;
}

/* The wire is cut while this goes on: it ends in time, and says so. */
static int has_been_told(crew *c, int rank, scene *s, oar_status status)
{
    int64_t took;

    CREW_CHECK(c, rank, atomic_load(&s->cut_ns) != 0);
    took = crew_ms_since(atomic_load(&s->cut_ns));
    CREW_CHECK(c, rank, status == OAR_E_PEER);
    CREW_CHECK(c, rank,
               strstr(oar_last_error_text(), "cannot be reached any more") !=
                   NULL);
    CREW_CHECK(c, rank, oar_last_error()->peer == 1 - rank);
    printf("    rank %d: after %d ms\n", rank, (int)took);
    CREW_CHECK(c, rank, took < LEASE_MS + crew_busy_ms(BEYOND_MS));
    return 0;
}

/* ---- what goes on -------------------------------------------------------- */

static int pass_large(crew *c, int rank, void *arg)
{
    scene *s = arg;
    unsigned char *data = calloc(1, LARGE);
    oar_span span = oar_span_of(data, LARGE, OAR_U8);
    oar_status status = OAR_OK;
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, s, &g) == 0);
    while (status == OAR_OK) {
        status = rank == 0 ? oar_send(g, span, 1, 5, NULL, NULL)
                           : oar_recv(g, span, 0, 5, NULL, NULL);
        if (rank == 0)
            crew_raise(&s->rounds);
    }
    CREW_CHECK(c, rank, has_been_told(c, rank, s, status) == 0);
    oar_group_destroy(g);
    free(data);
    return 0;
}

static int wait_for_each_other(crew *c, int rank, void *arg)
{
    scene *s = arg;
    oar_group *g;
    char x;
    oar_status status;

    CREW_CHECK(c, rank, join(c, rank, s, &g) == 0);
    crew_raise(&s->rounds);
    crew_raise(&s->rounds);
    status = oar_recv(g, oar_span_of(&x, 1, OAR_U8), 1 - rank, 5, NULL, NULL);
    CREW_CHECK(c, rank, has_been_told(c, rank, s, status) == 0);
    oar_group_destroy(g);
    return 0;
}

/* Rank 1 is stopped for longer than the lease; rank 0's data waits for it. */
static int outlast_a_stop(crew *c, int rank, void *arg)
{
    scene *s = arg;
    unsigned char *data = calloc(1, LARGE);
    oar_span span = oar_span_of(data, LARGE, OAR_U8);
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, s, &g) == 0);
    data[LARGE - 1] = (unsigned char)(7 * (1 - rank));
    if (rank == 1) {
        crew_raise(&s->rounds);
        crew_raise(&s->rounds);
    } else
        CREW_CHECK(c, 0, crew_await(&s->stopped, 1, CREW_PATIENCE_MS));
    CREW_CHECK(c, rank,
               (rank == 0 ? oar_send(g, span, 1, 5, NULL, NULL)
                          : oar_recv(g, span, 0, 5, NULL, NULL)) == OAR_OK);
    CREW_CHECK(c, rank, data[LARGE - 1] == 7);
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
    oar_group_destroy(g);
    free(data);
    return 0;
}

/* ---- the tests ----------------------------------------------------------- */

static scene *set_scene(void)
{
    scene *s = crew_page(sizeof *s);
    const char *why = town_build(&s->town, 0);

    if (why != NULL) {
        print_message("skipped: %s\n", why);
        crew_drop_page(s, sizeof *s);
        skip();
    }
    return s;
}

static void strike(scene *s)
{
    town_raze(&s->town);
    crew_drop_page(s, sizeof *s);
}

/* The wire works again before the lease has ended, as measured: on a machine
 * that is too busy it may not. */
static int outlast_an_outage(crew *c, int rank, void *arg)
{
    scene *s = arg;
    unsigned char *data = calloc(1, LARGE);
    oar_span span = oar_span_of(data, LARGE, OAR_U8);
    oar_status status = OAR_OK;
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, s, &g) == 0);
    while (status == OAR_OK && data[0] == 0) {
        data[0] = rank == 0 && atomic_load(&s->healed) != 0;
        status = rank == 0 ? oar_send(g, span, 1, 5, NULL, NULL)
                           : oar_recv(g, span, 0, 5, NULL, NULL);
        if (rank == 0)
            crew_raise(&s->rounds);
    }
    CREW_CHECK(c, rank, crew_await(&s->healed, 1, CREW_PATIENCE_MS));
    CREW_CHECK(c, rank, status == OAR_OK || s->outage_ms >= LEASE_MS);
    oar_group_destroy(g);
    free(data);
    return 0;
}

static void an_outage_shorter_than_the_lease_ends_nothing(void **state)
{
    const struct timespec pause = { OUTAGE_MS / 1000,
                                    OUTAGE_MS % 1000 * 1000000L };

    for (int host = 0; host < 2; host++) {
        scene *s = set_scene();
        int64_t start;
        crew c;

        crew_start(&c, 2, outlast_an_outage, s, "an outage at host %d", host);
        if (!crew_await(&s->rounds, 2, CREW_PATIENCE_MS))
            crew_give_up(&c, "it does not begin");
        start = oari_now_ns();
        assert_true(town_link(&s->town, host, 0));
        nanosleep(&pause, NULL);
        assert_true(town_link(&s->town, host, 1));
        s->outage_ms = crew_ms_since(start);
        crew_raise(&s->healed);
        for (int r = 0; r < 2; r++)
            crew_expect(&c, r, 0);
        crew_end(&c);
        strike(s);
    }
}

static void cut_while(crew_fn fn, int host, const char *what)
{
    scene *s = set_scene();
    crew c;

    crew_start(&c, 2, fn, s, "%s, cut at host %d", what, host);
    if (!crew_await(&s->joined, 2, CREW_PATIENCE_MS) ||
        !crew_await(&s->rounds, 2, CREW_PATIENCE_MS))
        crew_give_up(&c, "it does not begin");
    atomic_store(&s->cut_ns, oari_now_ns());
    assert_true(town_link(&s->town, host, 0));
    for (int r = 0; r < 2; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
    strike(s);
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
    scene *s = set_scene();
    struct timespec pause = { 2 * LEASE_MS / 1000 + 1, 0 };
    crew c;

    crew_start(&c, 2, outlast_a_stop, s, "a stop");
    if (!crew_await(&s->joined, 2, CREW_PATIENCE_MS) ||
        !crew_await(&s->rounds, 2, CREW_PATIENCE_MS))
        crew_give_up(&c, "it does not begin");
    kill(c.pid[1], SIGSTOP);
    assert_true(crew_wait_stopped(&c, 1, CREW_PATIENCE_MS));
    crew_raise(&s->stopped);
    nanosleep(&pause, NULL); /* what is tested is that time does not matter */
    assert_int_equal(crew_wait(&c, 0, 0), CREW_LATE);
    kill(c.pid[1], SIGCONT);
    for (int r = 0; r < 2; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
    strike(s);
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
