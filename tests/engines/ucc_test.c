/* SPDX-License-Identifier: Apache-2.0 */
/* The backend ucc, with the real library: what conform does not look at. The
 * values of every operation are conform's. */
#include "support/crew.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <oarsong/backend.h>

#include "base/clock.h"

enum {
    RANKS = 3,
    ODD = 1003,
    LARGE = 300007, /* elements: in flight for a while */
    TOLD_MS = 5000,
    REOPENED = 12
};

typedef struct scene {
    crew_flag ready;
    oar_error record[RANKS];
} scene;

static oar_status join(const crew *c, int rank, const char *name, oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();

    o.backend = "ucc";
    o.name = name;
    o.timeout_ms = 30000;
    return crew_join(c, rank, &o, g);
}

static oar_span fill(float *data, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++)
        data[i] = (float)(rank + 1) * (float)(i % 7);
    return oar_span_of(data, count, OAR_F32);
}

static int is_sum(const float *data, size_t count, float factor)
{
    for (size_t i = 0; i < count; i++)
        if (data[i] != factor * (float)(i % 7))
            return 0;
    return 1;
}

static void run(crew_fn fn, const char *what)
{
    scene *s = crew_page(sizeof *s);
    crew c;

    crew_start(&c, RANKS, fn, s, "%s", what);
    for (int r = 0; r < RANKS; r++)
        crew_expect(&c, r, 0);
    crew_end(&c);
    crew_drop_page(s, sizeof *s);
}

/* ---- values -------------------------------------------------------------- */

/* Numbers whose sum depends on the order in which they are added. */
static void fill_oddly(float *data, size_t count, int rank)
{
    uint64_t seed = 77 + (uint64_t)rank;

    for (size_t i = 0; i < count; i++) {
        uint64_t bits = crew_random(&seed);
        data[i] = (float)(int32_t)bits * (bits >> 40 & 7 ? 1e-9f : 1e-3f);
    }
}

static int sum_same_bits(crew *c, int rank, void *arg)
{
    static float mine[LARGE], all[RANKS * ODD];
    static const size_t counts[] = { 1, 3, 17, ODD, 5 * ODD, LARGE };
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, NULL, &g) == OAR_OK);
    CREW_CHECK(c, rank, strcmp(oar_group_backend(g), "ucc") == 0);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        size_t shown = counts[i] < ODD ? counts[i] : ODD;
        fill_oddly(mine, counts[i], rank);
        CREW_CHECK(c, rank,
                   oar_all_reduce(g, oar_span_of(mine, counts[i], OAR_F32),
                                  i % 2 ? OAR_AVG : OAR_SUM, NULL,
                                  NULL) == OAR_OK);
        CREW_CHECK(c, rank,
                   oar_all_gather(g, oar_span_of(mine, shown, OAR_F32),
                                  oar_span_of(all, RANKS * shown, OAR_F32),
                                  NULL, NULL) == OAR_OK);
        for (int r = 0; r < RANKS; r++)
            CREW_CHECK(c, rank,
                       memcmp(all + (size_t)r * shown, mine,
                              shown * sizeof *mine) == 0);
    }
    oar_group_destroy(g);
    return 0;
}

static void all_ranks_have_the_same_bits(void **state)
{
    run(sum_same_bits, "sums of odd numbers");
}

/* UCC's and planned ones, under way together. */
static int mix(crew *c, int rank, void *arg)
{
    static float a[LARGE], b[ODD], d[ODD];
    oar_work *work[3];
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, NULL, &g) == OAR_OK);
    for (int round = 0; round < 5; round++) {
        CREW_CHECK(c, rank,
                   oar_all_reduce(g, fill(a, LARGE, rank), OAR_SUM, NULL,
                                  &work[0]) == OAR_OK);
        CREW_CHECK(c, rank,
                   oar_all_reduce(g, fill(b, ODD, rank), OAR_MAX, NULL,
                                  &work[1]) == OAR_OK);
        CREW_CHECK(c, rank,
                   oar_broadcast(g, fill(d, ODD, rank), round % RANKS, NULL,
                                 &work[2]) == OAR_OK);
        for (int i = 2; i >= 0; i--) {
            CREW_CHECK(c, rank, oar_work_wait(work[i]) == OAR_OK);
            oar_work_release(work[i]);
        }
        CREW_CHECK(c, rank, is_sum(a, LARGE, 6) && is_sum(b, ODD, 3));
        CREW_CHECK(c, rank, is_sum(d, ODD, (float)(round % RANKS + 1)));
    }
    oar_group_destroy(g);
    return 0;
}

static void what_ucc_does_and_what_is_planned_go_together(void **state)
{
    run(mix, "a mixture");
}

/* ---- several groups ------------------------------------------------------ */

typedef struct half {
    oar_group *group;
    int rank, wrong;
} half;

static void *drive(void *arg)
{
    half *h = arg;
    float a[ODD];

    for (int i = 0; i < 200; i++) {
        oar_status status =
            oar_all_reduce(h->group, fill(a, 1 + (size_t)i * 5 % ODD, h->rank),
                           OAR_SUM, NULL, NULL);
        h->wrong |= status != OAR_OK || !is_sum(a, 1 + (size_t)i * 5 % ODD, 6);
    }
    return NULL;
}

static int drive_two(crew *c, int rank, void *arg)
{
    half h[2] = { { .rank = rank }, { .rank = rank } };
    pthread_t other;

    CREW_CHECK(c, rank, join(c, rank, NULL, &h[0].group) == OAR_OK);
    CREW_CHECK(c, rank, oar_group_dup(h[0].group, &h[1].group) == OAR_OK);
    CREW_CHECK(c, rank, pthread_create(&other, NULL, drive, &h[1]) == 0);
    drive(&h[0]);
    pthread_join(other, NULL);
    CREW_CHECK(c, rank, !h[0].wrong && !h[1].wrong);
    oar_group_destroy(h[0].group);
    oar_group_destroy(h[1].group);
    return 0;
}

static void two_groups_are_driven_by_two_threads_at_once(void **state)
{
    run(drive_two, "two drivers");
}

static int reopen(crew *c, int rank, void *arg)
{
    int descriptors = 0;
    float a[17];

    for (int i = 0; i < REOPENED; i++) {
        oar_group *g;
        char name[16];

        snprintf(name, sizeof name, "again%d", i);
        CREW_CHECK(c, rank, join(c, rank, name, &g) == OAR_OK);
        CREW_CHECK(c, rank,
                   oar_all_reduce(g, fill(a, 17, rank), OAR_SUM, NULL, NULL) ==
                       OAR_OK);
        CREW_CHECK(c, rank, is_sum(a, 17, 6));
        oar_group_destroy(g);
        if (i == 2) /* by then UCX has what it keeps */
            descriptors = crew_descriptors();
    }
    CREW_CHECK(c, rank, crew_descriptors() <= descriptors);
    return 0;
}

static void groups_made_again_and_again_keep_no_descriptors(void **state)
{
    run(reopen, "groups again and again");
}

/* ---- faults -------------------------------------------------------------- */

static int note(crew *c, int rank, scene *s, oar_group *g, oar_status status)
{
    int64_t start = oari_now_ns();

    s->record[rank].size = sizeof s->record[rank];
    CREW_CHECK(c, rank, oar_group_fault(g, &s->record[rank]) == status);
    oar_group_destroy(g);
    CREW_CHECK(c, rank, crew_in_time(start, TOLD_MS));
    return 0;
}

/* Rank 1 dies, when all ranks have come out of a barrier. */
static int die_after_barrier(crew *c, int rank, scene *s, oar_group *g)
{
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
    crew_raise(&s->ready);
    if (rank == 1) {
        crew_await(&s->ready, RANKS, CREW_PATIENCE_MS);
        raise(SIGKILL);
    }
    return 0;
}

/* Over connections (this program is also run with UCX_TLS=tcp,self) UCC 1.9 may
 * lose the failure of a send in a large all_reduce and call it done. */
static int die_in_the_middle(crew *c, int rank, void *arg)
{
    static float a[LARGE];
    oar_status status;
    int64_t start;
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, NULL, &g) == OAR_OK);
    CREW_CHECK(c, rank, die_after_barrier(c, rank, arg, g) == 0);
    start = oari_now_ns();
    status = oar_all_reduce(g, fill(a, LARGE, rank), OAR_SUM, NULL, NULL);
    CREW_CHECK(c, rank, status == OAR_E_PEER);
    CREW_CHECK(c, rank, crew_in_time(start, TOLD_MS));
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "rank 1") != NULL);
    return note(c, rank, arg, g, OAR_E_PEER);
}

static void a_rank_that_dies_is_named(void **state)
{
    scene *s = crew_page(sizeof *s);
    crew c;

    crew_start(&c, RANKS, die_in_the_middle, s, "a rank dies");
    crew_expect(&c, 1, 128 + SIGKILL);
    crew_expect(&c, 0, 0);
    crew_expect(&c, 2, 0);
    crew_end(&c);
    assert_string_equal(s->record[0].text, s->record[2].text);
    crew_drop_page(s, sizeof *s);
}

/* The others go on without it, over UCC again. */
static int go_on_without(crew *c, int rank, void *arg)
{
    float a[ODD];
    oar_group *g, *left;

    CREW_CHECK(c, rank, join(c, rank, NULL, &g) == OAR_OK);
    CREW_CHECK(c, rank, die_after_barrier(c, rank, arg, g) == 0);
    CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_E_PEER);
    CREW_CHECK(c, rank, oar_group_shrink(g, NULL, &left) == OAR_OK);
    CREW_CHECK(c, rank, oar_group_size(left) == RANKS - 1);
    CREW_CHECK(c, rank, strcmp(oar_group_backend(left), "ucc") == 0);
    CREW_CHECK(c, rank,
               oar_all_reduce(left, fill(a, ODD, rank), OAR_SUM, NULL, NULL) ==
                   OAR_OK);
    CREW_CHECK(c, rank, is_sum(a, ODD, 4));
    oar_group_destroy(g);
    oar_group_destroy(left);
    return 0;
}

static void those_that_are_left_go_on(void **state)
{
    scene *s = crew_page(sizeof *s);
    crew c;

    crew_start(&c, RANKS, go_on_without, s, "a group shrinks");
    crew_expect(&c, 1, 128 + SIGKILL);
    crew_expect(&c, 0, 0);
    crew_expect(&c, 2, 0);
    crew_end(&c);
    crew_drop_page(s, sizeof *s);
}

/* Rank 2 calls something else in the second of two, in several ways. */
static oar_status call_wrongly(oar_group *g, int rank, int way, float *a)
{
    int odd = rank == 2;

    switch (way) {
    case 0:
        return odd ? oar_broadcast(g, fill(a, ODD, rank), 2, NULL, NULL)
                   : oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, NULL, NULL);
    case 1:
        return oar_all_reduce(g, fill(a, odd ? 16 : 17, rank), OAR_SUM, NULL,
                              NULL);
    case 2: /* one of them is planned */
        return oar_all_reduce(g, fill(a, 17, rank), odd ? OAR_MAX : OAR_SUM,
                              NULL, NULL);
    default: return oar_broadcast(g, fill(a, ODD, rank), odd, NULL, NULL);
    }
}

static int differ(crew *c, int rank, void *arg)
{
    static const char *const says[][2] = { { "all_reduce", "broadcast" },
                                           { "16", "17" },
                                           { "max", "sum" },
                                           { "root 0", "root 1" } };
    float a[ODD];

    for (int way = 0; way < 4; way++) {
        char name[24];
        oar_status status;
        oar_group *g;

        snprintf(name, sizeof name, "wrong%d", way);
        CREW_CHECK(c, rank, join(c, rank, name, &g) == OAR_OK);
        CREW_CHECK(c, rank, oar_barrier(g, NULL, NULL) == OAR_OK);
        status = call_wrongly(g, rank, way, a);
        if (status == OAR_OK) /* a root waits for nobody */
            status = oar_barrier(g, NULL, NULL);
        CREW_CHECK(c, rank, status == OAR_E_MISMATCH);
        CREW_CHECK(c, rank, strstr(oar_last_error_text(), says[way][0]));
        CREW_CHECK(c, rank, strstr(oar_last_error_text(), says[way][1]));
        oar_group_destroy(g);
    }
    return 0;
}

static void wrong_programs_are_found_with_both_sides(void **state)
{
    run(differ, "wrong programs");
}

typedef struct aborter {
    oar_group *group;
    scene *scene;
} aborter;

static void *abort_soon(void *arg)
{
    aborter *a = arg;

    crew_await(&a->scene->ready, RANKS - 1, CREW_PATIENCE_MS);
    oar_group_abort(a->group, "enough");
    return NULL;
}

/* Rank 2 does not come; rank 0 aborts while its request is under way. The
 * process goes on with another group. */
static int abort_in_the_middle(crew *c, int rank, void *arg)
{
    static float a[LARGE];
    aborter who = { .scene = arg };
    pthread_t thread;
    int64_t start;
    oar_group *g;

    CREW_CHECK(c, rank, join(c, rank, "first", &g) == OAR_OK);
    who.group = g;
    if (rank == 0)
        CREW_CHECK(c, rank,
                   pthread_create(&thread, NULL, abort_soon, &who) == 0);
    start = oari_now_ns();
    if (rank != 2) {
        crew_raise(&who.scene->ready);
        CREW_CHECK(c, rank,
                   oar_all_reduce(g, fill(a, LARGE, rank), OAR_SUM, NULL,
                                  NULL) == OAR_E_ABORTED);
        CREW_CHECK(c, rank, crew_in_time(start, CREW_PATIENCE_MS));
    }
    if (rank == 0)
        pthread_join(thread, NULL);
    oar_group_destroy(g);
    CREW_CHECK(c, rank, join(c, rank, "second", &g) == OAR_OK);
    CREW_CHECK(c, rank,
               oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, NULL, NULL) ==
                   OAR_OK);
    CREW_CHECK(c, rank, is_sum(a, ODD, 6));
    oar_group_destroy(g);
    return 0;
}

static void an_abort_ends_what_is_under_way(void **state)
{
    run(abort_in_the_middle, "an abort");
}

/* Rank 2 is in the group, as its links see it, but does not open UCC. */
static int stay_out(crew *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    scene *s = arg;
    oar_group *g;

    o.backend = rank == 2 ? "native" : "ucc";
    o.timeout_ms = rank == 2 ? CREW_PATIENCE_MS : 2000;
    if (rank == 2) {
        CREW_CHECK(c, rank, crew_join(c, rank, &o, &g) == OAR_OK);
        crew_await(&s->ready, RANKS - 1, CREW_PATIENCE_MS);
        oar_group_destroy(g);
        return 0;
    }
    CREW_CHECK(c, rank, crew_join(c, rank, &o, &g) == OAR_E_TIMEOUT);
    CREW_CHECK(c, rank, strstr(oar_last_error_text(), "UCC's exchange"));
    crew_raise(&s->ready);
    return 0;
}

static void opening_ends_at_its_deadline(void **state)
{
    run(stay_out, "one that does not come to UCC");
}

/* ---- without it ---------------------------------------------------------- */

static void without_ucc_it_says_what_to_install(void **state)
{
    oar_backend_caps caps = oar_backend_caps_init();
    const char *text;

    assert_int_equal(oar_backend_available("ucc", &caps), OAR_E_UNAVAILABLE);
    text = oar_last_error_text();
    assert_true(strstr(text, "install libucc-dev") != NULL ||
                strstr(text, "OARSONG_UCC is off") != NULL);
}

static int run_without(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_ucc_it_says_what_to_install),
    };

    printf("the rest is skipped: %s\n", oar_last_error_text());
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_have_the_same_bits),
        cmocka_unit_test(what_ucc_does_and_what_is_planned_go_together),
        cmocka_unit_test(two_groups_are_driven_by_two_threads_at_once),
        cmocka_unit_test(groups_made_again_and_again_keep_no_descriptors),
        cmocka_unit_test(a_rank_that_dies_is_named),
        cmocka_unit_test(those_that_are_left_go_on),
        cmocka_unit_test(wrong_programs_are_found_with_both_sides),
        cmocka_unit_test(an_abort_ends_what_is_under_way),
        cmocka_unit_test(opening_ends_at_its_deadline),
    };

    if (oar_backend_available("ucc", NULL) != OAR_OK)
        return run_without();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
