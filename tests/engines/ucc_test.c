/* SPDX-License-Identifier: Apache-2.0 */
/* The backend ucc, with the real library: what `oarsong conform` does not
 * cover. It checks the values of every operation. */
#include "support/test_job.h"

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
    REPORT_MS = 5000,
    REOPENED = 12
};

typedef struct ucc_context {
    shared_flag ready;
    oar_error record[RANKS];
} ucc_context;

static oar_status join(const test_job *c, int rank, const char *name,
                       oar_group **g)
{
    oar_group_opts o = oar_group_opts_init();

    o.backend = "ucc";
    o.name = name;
    o.timeout_ms = 30000;
    return test_job_join(c, rank, &o, g);
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

static void run(test_job_fn fn, const char *what)
{
    ucc_context *s = shared_page(sizeof *s);
    test_job c;

    test_job_start(&c, RANKS, fn, s, "%s", what);
    for (int r = 0; r < RANKS; r++)
        test_job_expect(&c, r, 0);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
}

/* ---- values -------------------------------------------------------------- */

/* Numbers whose sum depends on the order in which they are added. */
static void fill_oddly(float *data, size_t count, int rank)
{
    uint64_t seed = 77 + (uint64_t)rank;

    for (size_t i = 0; i < count; i++) {
        uint64_t bits = next_random(&seed);
        data[i] = (float)(int32_t)bits * (bits >> 40 & 7 ? 1e-9f : 1e-3f);
    }
}

static int sum_same_bits(test_job *c, int rank, void *arg)
{
    static float mine[LARGE], all[RANKS * ODD];
    static const size_t counts[] = { 1, 3, 17, ODD, 5 * ODD, LARGE };
    oar_group *g;

    RANK_CHECK(join(c, rank, NULL, &g) == OAR_OK);
    RANK_CHECK(strcmp(oar_group_backend(g), "ucc") == 0);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        size_t shown = counts[i] < ODD ? counts[i] : ODD;
        fill_oddly(mine, counts[i], rank);
        RANK_CHECK(oar_all_reduce(g, oar_span_of(mine, counts[i], OAR_F32),
                                  i % 2 ? OAR_AVG : OAR_SUM, NULL,
                                  NULL) == OAR_OK);
        RANK_CHECK(oar_all_gather(g, oar_span_of(mine, shown, OAR_F32),
                                  oar_span_of(all, RANKS * shown, OAR_F32),
                                  NULL, NULL) == OAR_OK);
        for (int r = 0; r < RANKS; r++)
            RANK_CHECK(memcmp(all + (size_t)r * shown, mine,
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
static int mix(test_job *c, int rank, void *arg)
{
    static float a[LARGE], b[ODD], d[ODD];
    oar_work *work[3];
    oar_group *g;

    RANK_CHECK(join(c, rank, NULL, &g) == OAR_OK);
    for (int round = 0; round < 5; round++) {
        RANK_CHECK(oar_all_reduce(g, fill(a, LARGE, rank), OAR_SUM, NULL,
                                  &work[0]) == OAR_OK);
        RANK_CHECK(oar_all_reduce(g, fill(b, ODD, rank), OAR_MAX, NULL,
                                  &work[1]) == OAR_OK);
        RANK_CHECK(oar_broadcast(g, fill(d, ODD, rank), round % RANKS, NULL,
                                 &work[2]) == OAR_OK);
        for (int i = 2; i >= 0; i--) {
            RANK_CHECK(oar_work_wait(work[i]) == OAR_OK);
            oar_work_release(work[i]);
        }
        RANK_CHECK(is_sum(a, LARGE, 6) && is_sum(b, ODD, 3));
        RANK_CHECK(is_sum(d, ODD, (float)(round % RANKS + 1)));
    }
    oar_group_destroy(g);
    return 0;
}

static void what_ucc_does_and_what_is_planned_go_together(void **state)
{
    run(mix, "a mixture");
}

/* ---- several groups ------------------------------------------------------ */

typedef struct half_thread {
    oar_group *group;
    int rank, wrong;
} half_thread;

static void *drive(void *arg)
{
    half_thread *h = arg;
    float a[ODD];

    for (int i = 0; i < 200; i++) {
        oar_status status =
            oar_all_reduce(h->group, fill(a, 1 + (size_t)i * 5 % ODD, h->rank),
                           OAR_SUM, NULL, NULL);
        h->wrong |= status != OAR_OK || !is_sum(a, 1 + (size_t)i * 5 % ODD, 6);
    }
    return NULL;
}

static int drive_two(test_job *c, int rank, void *arg)
{
    half_thread h[2] = { { .rank = rank }, { .rank = rank } };
    pthread_t other;

    RANK_CHECK(join(c, rank, NULL, &h[0].group) == OAR_OK);
    RANK_CHECK(oar_group_dup(h[0].group, &h[1].group) == OAR_OK);
    RANK_CHECK(pthread_create(&other, NULL, drive, &h[1]) == 0);
    drive(&h[0]);
    pthread_join(other, NULL);
    RANK_CHECK(!h[0].wrong && !h[1].wrong);
    oar_group_destroy(h[0].group);
    oar_group_destroy(h[1].group);
    return 0;
}

static void two_groups_are_driven_by_two_threads_at_once(void **state)
{
    run(drive_two, "two drivers");
}

static int reopen(test_job *c, int rank, void *arg)
{
    int descriptors = 0;
    float a[17];

    for (int i = 0; i < REOPENED; i++) {
        oar_group *g;
        char name[16];

        snprintf(name, sizeof name, "again%d", i);
        RANK_CHECK(join(c, rank, name, &g) == OAR_OK);
        RANK_CHECK(oar_all_reduce(g, fill(a, 17, rank), OAR_SUM, NULL, NULL) ==
                   OAR_OK);
        RANK_CHECK(is_sum(a, 17, 6));
        oar_group_destroy(g);
        if (i == 2) /* by then UCX has what it keeps */
            descriptors = open_descriptors();
    }
    RANK_CHECK(open_descriptors() <= descriptors);
    return 0;
}

static void groups_made_again_and_again_keep_no_descriptors(void **state)
{
    run(reopen, "groups again and again");
}

/* ---- faults -------------------------------------------------------------- */

static int note(test_job *c, int rank, ucc_context *s, oar_group *g,
                oar_status status)
{
    int64_t start = oari_now_ns();

    s->record[rank].size = sizeof s->record[rank];
    RANK_CHECK(oar_group_fault(g, &s->record[rank]) == status);
    oar_group_destroy(g);
    RANK_CHECK(is_in_time(start, REPORT_MS));
    return 0;
}

/* Rank 1 dies, when all ranks have come out of a barrier. */
static int die_after_barrier(test_job *c, int rank, ucc_context *s,
                             oar_group *g)
{
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
    shared_flag_raise(&s->ready);
    if (rank == 1) {
        shared_flag_await(&s->ready, RANKS, TEST_JOB_LIMIT_MS);
        raise(SIGKILL);
    }
    return 0;
}

/* Over connections (this program is also run with UCX_TLS=tcp,self) UCC 1.9 may
 * lose the failure of a send in a large all_reduce and call it done. */
static int die_in_the_middle(test_job *c, int rank, void *arg)
{
    static float a[LARGE];
    oar_status status;
    int64_t start;
    oar_group *g;

    RANK_CHECK(join(c, rank, NULL, &g) == OAR_OK);
    RANK_CHECK(die_after_barrier(c, rank, arg, g) == 0);
    start = oari_now_ns();
    status = oar_all_reduce(g, fill(a, LARGE, rank), OAR_SUM, NULL, NULL);
    RANK_CHECK(status == OAR_E_PEER);
    RANK_CHECK(is_in_time(start, REPORT_MS));
    RANK_CHECK(strstr(oar_last_error_text(), "rank 1") != NULL);
    return note(c, rank, arg, g, OAR_E_PEER);
}

static void a_rank_that_dies_is_named(void **state)
{
    ucc_context *s = shared_page(sizeof *s);
    test_job c;

    test_job_start(&c, RANKS, die_in_the_middle, s, "a rank dies");
    test_job_expect(&c, 1, 128 + SIGKILL);
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 2, 0);
    test_job_end(&c);
    assert_string_equal(s->record[0].text, s->record[2].text);
    shared_page_free(s, sizeof *s);
}

/* The others go on without it, over UCC again. */
static int go_on_without(test_job *c, int rank, void *arg)
{
    float a[ODD];
    oar_group *g, *left;

    RANK_CHECK(join(c, rank, NULL, &g) == OAR_OK);
    RANK_CHECK(die_after_barrier(c, rank, arg, g) == 0);
    RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_E_PEER);
    RANK_CHECK(oar_group_shrink(g, NULL, &left) == OAR_OK);
    RANK_CHECK(oar_group_size(left) == RANKS - 1);
    RANK_CHECK(strcmp(oar_group_backend(left), "ucc") == 0);
    RANK_CHECK(oar_all_reduce(left, fill(a, ODD, rank), OAR_SUM, NULL, NULL) ==
               OAR_OK);
    RANK_CHECK(is_sum(a, ODD, 4));
    oar_group_destroy(g);
    oar_group_destroy(left);
    return 0;
}

static void survivors_go_on(void **state)
{
    ucc_context *s = shared_page(sizeof *s);
    test_job c;

    test_job_start(&c, RANKS, go_on_without, s, "a group shrinks");
    test_job_expect(&c, 1, 128 + SIGKILL);
    test_job_expect(&c, 0, 0);
    test_job_expect(&c, 2, 0);
    test_job_end(&c);
    shared_page_free(s, sizeof *s);
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

static int differ(test_job *c, int rank, void *arg)
{
    static const char *const text_part[][2] = { { "all_reduce", "broadcast" },
                                                { "16", "17" },
                                                { "max", "sum" },
                                                { "root 0", "root 1" } };
    float a[ODD];

    for (int way = 0; way < 4; way++) {
        char name[24];
        oar_status status;
        oar_group *g;

        snprintf(name, sizeof name, "wrong%d", way);
        RANK_CHECK(join(c, rank, name, &g) == OAR_OK);
        RANK_CHECK(oar_barrier(g, NULL, NULL) == OAR_OK);
        status = call_wrongly(g, rank, way, a);
        if (status == OAR_OK) /* a root waits for no rank */
            status = oar_barrier(g, NULL, NULL);
        RANK_CHECK(status == OAR_E_MISMATCH);
        RANK_CHECK(strstr(oar_last_error_text(), text_part[way][0]));
        RANK_CHECK(strstr(oar_last_error_text(), text_part[way][1]));
        oar_group_destroy(g);
    }
    return 0;
}

static void wrong_programs_are_found_with_both_sides(void **state)
{
    run(differ, "wrong programs");
}

typedef struct abort_thread {
    oar_group *group;
    ucc_context *context;
} abort_thread;

static void *abort_soon(void *arg)
{
    abort_thread *a = arg;

    shared_flag_await(&a->context->ready, RANKS - 1, TEST_JOB_LIMIT_MS);
    oar_group_abort(a->group, "enough");
    return NULL;
}

/* Rank 2 does not come; rank 0 aborts while its request is under way. The
 * process goes on with another group. */
static int abort_in_the_middle(test_job *c, int rank, void *arg)
{
    static float a[LARGE];
    abort_thread who = { .context = arg };
    pthread_t thread;
    int64_t start;
    oar_group *g;

    RANK_CHECK(join(c, rank, "first", &g) == OAR_OK);
    who.group = g;
    if (rank == 0)
        RANK_CHECK(pthread_create(&thread, NULL, abort_soon, &who) == 0);
    start = oari_now_ns();
    if (rank != 2) {
        shared_flag_raise(&who.context->ready);
        RANK_CHECK(oar_all_reduce(g, fill(a, LARGE, rank), OAR_SUM, NULL,
                                  NULL) == OAR_E_ABORTED);
        RANK_CHECK(is_in_time(start, TEST_JOB_LIMIT_MS));
    }
    if (rank == 0)
        pthread_join(thread, NULL);
    oar_group_destroy(g);
    RANK_CHECK(join(c, rank, "second", &g) == OAR_OK);
    RANK_CHECK(oar_all_reduce(g, fill(a, ODD, rank), OAR_SUM, NULL, NULL) ==
               OAR_OK);
    RANK_CHECK(is_sum(a, ODD, 6));
    oar_group_destroy(g);
    return 0;
}

static void an_abort_ends_what_is_under_way(void **state)
{
    run(abort_in_the_middle, "an abort");
}

/* Rank 2 is in the group, as its links see it, but does not open UCC. */
static int stay_out(test_job *c, int rank, void *arg)
{
    oar_group_opts o = oar_group_opts_init();
    ucc_context *s = arg;
    oar_group *g;

    o.backend = rank == 2 ? "native" : "ucc";
    o.timeout_ms = rank == 2 ? TEST_JOB_LIMIT_MS : 2000;
    if (rank == 2) {
        RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_OK);
        shared_flag_await(&s->ready, RANKS - 1, TEST_JOB_LIMIT_MS);
        oar_group_destroy(g);
        return 0;
    }
    RANK_CHECK(test_job_join(c, rank, &o, &g) == OAR_E_TIMEOUT);
    RANK_CHECK(strstr(oar_last_error_text(), "UCC's exchange"));
    shared_flag_raise(&s->ready);
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
        cmocka_unit_test(survivors_go_on),
        cmocka_unit_test(wrong_programs_are_found_with_both_sides),
        cmocka_unit_test(an_abort_ends_what_is_under_way),
        cmocka_unit_test(opening_ends_at_its_deadline),
    };

    if (oar_backend_available("ucc", NULL) != OAR_OK)
        return run_without();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
